"""Tensor cores as data: one frozen record for each chip and instruction, and how sure we are of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from numsim.errors import InputError, short
from numsim.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FP16,
    FP32,
    FP64,
    TF32,
    UE4M3,
    Format,
)

# Types as PTX and AMD write them. TF32 and XF32 operands arrive as FP32 words; the unit reads their upper 19 bits.
TYPES: dict[str, Format] = {
    "f64": FP64, "f32": FP32, "tf32": TF32, "xf32": TF32, "f16": FP16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2,
    "e3m2": E3M2, "e2m3": E2M3, "e2m1": E2M1, "fp8": E4M3FNUZ, "bf8": E5M2FNUZ, "ue8m0": E8M0, "ue4m3": UE4M3,
}  # fmt: skip
IN_WORDS = ("tf32", "xf32")

Path = Literal["block", "groups", "fp8-as-fp16", "fma", "exact", "pairwise", "cdna3", "cdna3-fp8"]
PATHS: dict[str, str] = {
    "block": "products and c are cut to F bits below the largest exponent, added exactly, rounded once",
    "groups": "groups of 16 products are added exactly; the scaled group sums and c are then cut, added, rounded once",
    "fp8-as-fp16": "FP8 becomes FP16; two blocks, of k mod 4 in {0, 1} and in {2, 3}, start from zero; c is added last",
    "fma": "one fused multiply-add after another, c first",
    "exact": "L products and c are added exactly and rounded once",
    "pairwise": "products and sums of neighbours are rounded one by one; subnormal numbers are flushed",
    "cdna3": "L products are cut to F bits and added; the sum and c are then aligned with rounding down",
    "cdna3-fp8": "as cdna3, the products with even and with odd index apart",
}
OUTPUTS: dict[str, str] = {
    "rz-fp32": "truncated to FP32; from 2^128 on infinity",
    "rz-e8m13": "truncated to 13 fraction bits in an FP32 word; from 2^128 on infinity",
    "rne-fp16": "rounded once to the nearest FP16, ties to even",
    "rne-fp32": "rounded to the nearest FP32, ties to even",
    "rne-fp64": "rounded to the nearest FP64, ties to even",
}
ALIGNMENTS = ("toward-zero", "down", "nearest-even")
_CUT = ("block", "groups", "fp8-as-fp16")  # their sums are made numbers of by any rule but FP64's


@dataclass(frozen=True)
class Unit:
    """How a tensor core adds products: the parameters of ``block.py``.

    Parameters
    ----------
    path : which algorithm, see ``PATHS``; nearly all NVIDIA instructions are "block".
    length : products per block (L); an instruction of larger K chains blocks in index order.
    fraction_bits : bits kept below the block's largest exponent when a term is aligned (F).
    floor : the lowest exponent that terms are aligned to (E0).
    output : how the sum becomes a number, see ``OUTPUTS``.
    align, normalised : what no known chip does, for the question "what if": terms cut in another direction; products
        of 2 and more aligned by their own leading bit.

    >>> Unit("block", 16, 25, -133).length
    16
    """

    path: Path = "block"
    length: int = 1
    fraction_bits: int = 0
    floor: int = 0
    output: str = "rz-fp32"
    align: str = "toward-zero"
    normalised: bool = False

    def __post_init__(self) -> None:
        example = "Example: Unit('block', length=16, fraction_bits=25, floor=-133, output='rz-fp32')"
        for name, allowed in (("path", PATHS), ("output", OUTPUTS), ("align", ALIGNMENTS)):
            if not isinstance(value := getattr(self, name), str) or value not in allowed:
                raise InputError(f"{name}={short(value)}: allowed are {', '.join(allowed)}. {example}")
        nearest = ("rne-fp32", "rne-fp64") if self.path == "fma" else ("rne-fp32",)
        rules = tuple(rule for rule in OUTPUTS if rule != "rne-fp64") if self.path in _CUT else nearest
        if self.output not in rules:
            raise InputError(f"output='{self.output}': the path {self.path} has {', '.join(rules)}. {example}")
        for name, low, high in (("length", 1, 1024), ("fraction_bits", 0, 60), ("floor", -2000, 200)):
            if type(value := getattr(self, name)) is not int or not low <= value <= high:
                raise InputError(f"{name}={short(value)}: a whole number from {low} to {high} is needed. {example}")


Level = Literal["validated", "single-source", "unverified"]


@dataclass(frozen=True)
class Evidence:
    """How we know.

    level : "validated" (recorded results of this chip are reproduced bit for bit, by numsim's own tests),
        "single-source" (others measured this chip; no results of it are public), "unverified" (inferred, or sources
        disagree).
    recordings : what was reproduced. sources : keys of ``chips.SOURCES``. note : what remains open.
    """

    level: Level
    recordings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Model:
    """One instruction of one chip.

    chip, instruction : names; ``instruction`` in the spelling of ``numsim chips``.
    k : products of one instruction. a, b, c, d : types as PTX writes them (``TYPES``).
    unit : how it computes. scale, scale_block : type of the block scales and how many elements share one, or "" and 0.
    evidence : not part of equality.

    >>> from numsim.tensorcore import get_model
    >>> m = get_model("h200", "mma.m16n8k16.f32.f16.f16.f32")
    >>> m.unit.length, m.unit.fraction_bits, m.blocks, m.evidence.level
    (16, 25, 1, 'validated')
    """

    chip: str
    instruction: str
    k: int
    a: str
    b: str
    c: str
    d: str
    unit: Unit
    scale: str = ""
    scale_block: int = 0
    evidence: Evidence = field(default=Evidence("unverified"), compare=False)

    def __post_init__(self) -> None:
        made = {"rne-fp16": "f16", "rne-fp64": "f64"}.get(self.unit.output, "f32")
        if self.d != made:
            raise InputError(f"d={short(self.d)}: the output rule {self.unit.output} makes {made}. Example: d='{made}'")

    @property
    def blocks(self) -> int:
        """Blocks that one instruction chains."""
        return 2 if self.unit.path == "fp8-as-fp16" else -(-self.k // self.unit.length)

    @property
    def formats(self) -> tuple[Format, Format, Format, Format]:
        """The formats of a, b, c and d as numbers (TF32 operands arrive in FP32 words: see ``word_format``)."""
        return TYPES[self.a], TYPES[self.b], TYPES[self.c], TYPES[self.d]

    def nan_of(self, format: Format) -> int:
        """The code of NaN on this chip. NVIDIA's has all bits but the sign; FP64's and AMD's are not documented."""
        if format == FP64 or self.instruction.startswith("mfma"):
            return format.nan_code or 0
        return format.nan_code or 0 if format.specials != "ieee" else format.sign_mask - 1

    @property
    def nan(self) -> int:
        """The code of a NaN result."""
        return self.nan_of(TYPES[self.d])

    def __str__(self) -> str:
        return f"{self.instruction} on {self.chip}"


def word_format(type_name: str) -> Format:
    """The format of the codes in which operands of a type are passed: FP32 words for TF32 and XF32.

    >>> word_format("tf32").name, word_format("e2m1").name
    ('fp32', 'e2m1')
    """
    return FP32 if type_name in IN_WORDS else TYPES[type_name]
