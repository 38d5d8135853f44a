"""Number formats as data: those with a name, by their standards, and how a name is read.

The names of the formats of the IEEE P3109 draft (interim report 4.0, June 2026: a draft, subject to change) say all of
them: ``binary8p3se`` has 8 bits, a precision of 3, a sign, and infinities (extended). The draft's words for overflow:
SatFinite is ``overflow="saturate"``, SatPropagate "saturate-finite", OvfInf "ieee". Where they part: finite formats
saturate in the draft under all three, here only under "saturate"; unsigned ones take what is below zero to 0 there, to
NaN here; ToOdd with OvfInf gives infinity in signed formats there, the largest number here.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from numsim.errors import FormatError, short
from numsim.format_record import SPECIALS, Format, Specials

__all__ = ["SPECIALS", "Format", "Specials", "get_format", "list_formats"]  # and the formats themselves


def _ieee(name: str, e: int, f: int, title: str, source: str) -> Format:
    return Format(name, e, f, (1 << (e - 1)) - 1, title=title, source=source)


_P3109 = re.compile(r"binary(\d{1,2})p(\d{1,2})([su])([ef])")


def _p3109(name: str, bits: int, precision: int, signed: bool, extended: bool) -> Format:
    """One NaN and one zero: the code of -0 is NaN, or the top code where there is no sign."""
    most = bits - signed
    if not (3 <= bits <= 16 and 1 <= precision <= most):
        raise FormatError(
            f"unknown format {name!r}: binaryKpP has K from 3 to 16 and P from 1 to K{' - 1' * signed}. "
            "Example: numsim formats binary8p3se"
        )
    return Format(
        name, most + 1 - precision, precision - 1, 1 << (most - precision), signed, "fnuz" if signed else "fn",
        title=name.capitalize(), source="IEEE P3109 interim report 4.0 (draft, June 2026)", infinities=extended,
    )  # fmt: skip


_IEEE754 = "IEEE 754-2019, table 3.5"
_OCP8 = "OCP 8-bit Floating Point Specification (OFP8) 1.0, table 1"
_MX = "OCP Microscaling Formats (MX) 1.0, section 5.3"
_NOUNE = "Noune et al., 8-bit Numerical Formats for Deep Neural Networks, arXiv:2206.02915"

FP64 = _ieee("fp64", 11, 52, "FP64", _IEEE754)
FP32 = _ieee("fp32", 8, 23, "FP32", _IEEE754)
TF32 = _ieee("tf32", 8, 10, "TF32", "NVIDIA A100 architecture whitepaper (2020); 19 bits held in a 32-bit word")
FP16 = _ieee("fp16", 5, 10, "FP16", _IEEE754)
BF16 = _ieee("bf16", 8, 7, "BF16", "Intel, BFLOAT16 Hardware Numerics Definition (2018)")
E5M2 = _ieee("e5m2", 5, 2, "E5M2", _OCP8)
E4M3 = Format("e4m3fn", 4, 3, 7, specials="fn", title="E4M3", source=_OCP8)
E4M3FNUZ = Format("e4m3fnuz", 4, 3, 8, specials="fnuz", source=_NOUNE)
E5M2FNUZ = Format("e5m2fnuz", 5, 2, 16, specials="fnuz", source=_NOUNE)
E4M3B11FNUZ = Format("e4m3b11fnuz", 4, 3, 11, specials="fnuz", source="ml_dtypes float8_e4m3b11fnuz")
E3M4 = _ieee("e3m4", 3, 4, "E3M4", "ml_dtypes float8_e3m4, after IEEE 754")
E4M3_IEEE = _ieee("e4m3_ieee", 4, 3, "E4M3-IEEE", "ml_dtypes float8_e4m3, after IEEE 754")
E3M2 = Format("e3m2", 3, 2, 3, specials="finite", source=f"{_MX}.2 (FP6)")
E2M3 = Format("e2m3", 2, 3, 1, specials="finite", source=f"{_MX}.2 (FP6)")
E2M1 = Format("e2m1", 2, 1, 1, specials="finite", source=f"{_MX}.3 (FP4)")
E8M0 = Format(
    "e8m0", 8, 0, 127, signed=False, specials="fn", zero=False, source="OCP Microscaling Formats (MX) 1.0, section 5.4"
)
UE4M3 = Format("ue4m3", 4, 3, 7, signed=False, specials="fn", source="NVIDIA PTX ISA, alternate formats (NVFP4 scales)")

_TABLE = (
    FP64, FP32, TF32, FP16, BF16, E5M2, E4M3, E4M3FNUZ, E5M2FNUZ, E4M3B11FNUZ, E3M4, E4M3_IEEE,
    E3M2, E2M3, E2M1, E8M0, UE4M3,
)  # fmt: skip
_BY_NAME = {f.name: f for f in _TABLE}

# numpy, ml_dtypes and torch dtypes by meaning: float8_e4m3 of ml_dtypes is the IEEE-style one.
_ALIASES = {
    "e4m3": "e4m3fn", "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16",
    "double": "fp64", "float": "fp32", "half": "fp16", "single": "fp32",
    "float8_e5m2": "e5m2", "float8_e4m3fn": "e4m3fn", "float8_e4m3": "e4m3_ieee", "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e5m2fnuz": "e5m2fnuz", "float8_e4m3b11fnuz": "e4m3b11fnuz", "float8_e3m4": "e3m4",
    "float8_e8m0fnu": "e8m0", "float6_e3m2fn": "e3m2", "float6_e2m3fn": "e2m3", "float4_e2m1fn": "e2m1",
}  # fmt: skip

_HINTS = {
    "fp8": "e4m3 (forward) or e5m2 (gradients)",
    "float8": "e4m3 (forward) or e5m2 (gradients)",
    "fp6": "e3m2 or e2m3",
    "fp4": "e2m1 (MXFP4, NVFP4) or bnb_fp4",
    "e5m0": "e8m0",
}
# numsim.codebooks, a floor above, has them; int8, int4 and nf4 are names of block formats too
_CODEBOOKS = ("int8", "int4", "nf4", "nf4_element", "mxint8_element", "bnb_fp4")
_BLOCK_FORMATS = {  # numsim.blocks, a floor above, makes them: here is what their numbers and scales are
    name: parts
    for parts, names in (
        ("e4m3 or e5m2 (its numbers) or e8m0 (its scales)", "mxfp8 mxfp8_e4m3 mxfp8_e5m2"),
        ("e2m3 or e3m2 (its numbers) or e8m0 (its scales)", "mxfp6 mxfp6_e2m3 mxfp6_e3m2"),
        ("e2m1 (its numbers) or e8m0 (its scales)", "mxfp4 mxfp4_e2m1"),
        ("e2m1 (its numbers) or ue4m3 (its scales)", "nvfp4 nvfp4_1d nvfp4_2d"),
        ("e4m3 or e5m2 (its numbers)", "fp8_tensor fp8_tensor_e5m2 fp8_1x128 fp8_128x128"),
        ("e4m3 (its numbers)", "torchao_tensorwise torchao_rowwise"),
        ("mxint8_element (its numbers) or e8m0 (its scales)", "mxint8"),
    )
    for name in names.split()
}


def list_formats() -> tuple[Format, ...]:
    """All named formats, widest first.

    >>> [f.name for f in list_formats()][:5]
    ['fp64', 'fp32', 'tf32', 'fp16', 'bf16']
    """
    return _TABLE


def get_format(x: Any) -> Format:
    """The format that ``x`` names: a ``Format``, a name, ``eXmY``, or a numpy, ml_dtypes or torch dtype.

    Any ``eXmY`` that is not in the table is IEEE-style with bias 2^(X-1) - 1. ``binaryKpPse`` and its kin, signed or
    unsigned and extended or finite, are those of the IEEE P3109 draft. Torch is not imported.
    Raises ``FormatError`` with the nearest names.

    >>> get_format("e4m3").name, get_format("e6m9").bits, get_format("float16") is FP16
    ('e4m3fn', 16, True)
    >>> str(get_format("binary8p3se").max), get_format("Binary8p4sf").nan_code
    ('49152', 128)
    """
    if isinstance(x, Format):
        return x
    if isinstance(x, str):
        name = x.strip().lower()
    else:  # dtypes: numpy's have .name, numpy's scalar types are classes, torch's print as torch.name
        name = getattr(x, "name", None) or (x.__name__ if isinstance(x, type) else short(x))
        name = str(name).removeprefix("torch.")
        if x is float:  # Python's float is a double
            name = "fp64"
    name = _ALIASES.get(name, name)
    if name in _BY_NAME:
        return _BY_NAME[name]
    if match := re.fullmatch(r"e(\d{1,2})m(\d{1,2})", name):
        e, f = int(match[1]), int(match[2])
        if not (2 <= e <= 15 and f >= 1 and 1 + e + f <= 64):
            raise FormatError(
                f"unknown format {short(name)}: an IEEE-style eXmY has X from 2 to 15, Y of at least 1 and 64 bits "
                "in all. Example: numsim explain 0.1 --format e5m4"
            )
        return _ieee(name, e, f, name.upper(), "IEEE 754-2019 style, bias 2^(X-1) - 1")
    if match := _P3109.fullmatch(name):
        return _p3109(name, int(match[1]), int(match[2]), match[3] == "s", match[4] == "e")
    if hasattr(x, "thresholds") or name in _CODEBOOKS:
        raise FormatError(
            f"{short(name)} is a codebook, a list of numbers: they are encoded and decoded, not added. "
            'Example: numsim.encode(0.3, "nf4"), or with scales numsim.blocks.quantize(x, "nf4")'
        )
    if (block := name.replace("-", "_")) in _BLOCK_FORMATS:
        raise FormatError(
            f"{block} is a block format, no number format: did you mean {_BLOCK_FORMATS[block]}? "
            f'Example: numsim explain "[0.1, 300]" --format {block}, or numsim.blocks.quantize(x, "{block}")'
        )
    names = [*_BY_NAME, *_ALIASES]
    near = _HINTS.get(name) or " or ".join(difflib.get_close_matches(name, names, n=3, cutoff=0.5))
    known = ", ".join("e4m3" if n == "e4m3fn" else n for n in _BY_NAME)
    if name.startswith(("binary", "p3109")):
        near = near or "binary8p3se (8 bits, precision 3, s or u: signed or not, e or f: with infinities or not)"
    hint = f"did you mean {near}?" if near else f"known are {known}, any eXmY, and P3109's such as binary8p3se."
    raise FormatError(f"unknown format {short(x)}: {hint} Example: numsim explain 0.1 --format e4m3")
