"""Tensor cores as data: one frozen record for each chip and instruction, and how sure we are of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from numsim.errors import FormatError, InputError, short
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
    "cdna3-fp8": "as cdna3, the products with even and with odd index apart; a c far below is dropped",
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
        if self.path not in _CUT and self.align != "toward-zero":
            raise InputError(f"align='{self.align}': only {', '.join(_CUT)} can be asked what if. {example}")
        if type(self.normalised) is not bool or (self.normalised and self.path not in ("block", "fp8-as-fp16")):
            rule = "True or False, and True only for the paths block and fp8-as-fp16"
            raise InputError(f"normalised={short(self.normalised)}: {rule}. {example}")
        if self.path == "fma" and self.length != 1:
            raise InputError(f"length={self.length}: a fused multiply-add has one product. {example}")


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
        example = "Example: dataclasses.replace(get_model('h200', 'mma.m16n8k16.f32.f16.f16.f32'), k=32)"
        for holds, rule in self._rules():
            if not holds:
                raise InputError(f"model {short(self.instruction)}: {rule}. {example}")

    def _rules(self) -> Iterator[tuple[bool, str]]:
        """What makes a record a unit that can be computed; looked at in this order."""
        for name, kind in (("chip", str), ("instruction", str), ("unit", Unit), ("evidence", Evidence), ("scale", str)):
            yield isinstance(getattr(self, name), kind), f"{name}={short(getattr(self, name))}: no {kind.__name__}"
        types, unit, path = (self.a, self.b, self.c, self.d), self.unit, self.unit.path
        whole = all(type(x) is int for x in (self.k, self.scale_block)) and 1 <= self.k <= 4096
        yield whole, f"k={short(self.k)}, scale_block={short(self.scale_block)}: whole numbers, K from 1 to 4096"
        for x in (*types, *([self.scale] if self.scale != "" else [])):
            yield isinstance(x, str) and x in TYPES, f"type {short(x)}: known are {', '.join(TYPES)}"
        numbers = all(TYPES[x].signed and TYPES[x].zero for x in types)
        yield numbers, f"a={self.a}, b={self.b}, c={self.c}, d={self.d}: block scales are no operands"
        made = {"rne-fp16": "f16", "rne-fp64": "f64"}.get(unit.output, "f32")
        yield self.d == made, f"d={short(self.d)}: the output rule {unit.output} makes {made}"
        wider = path == "block" and (self.c, self.d) == ("f16", "f32")
        yield self.c == self.d or wider, f"c={short(self.c)}: c has d's type, or is f16 for f32 on the path block"
        scales = {"block": ("", "ue8m0"), "groups": ("ue8m0", "ue4m3")}.get(path, ("",))
        yield (
            self.scale in scales,
            f"scale={short(self.scale)}: the path {path} takes {', '.join(filter(None, scales)) or 'none'}",
        )
        block = self.scale_block
        fits = block > 0 and self.k % block == 0 if self.scale else block == 0
        yield fits, f"scale_block={short(block)}: with scales a divisor of K = {self.k}, without them 0"
        if path == "groups":
            yield self.a == self.b == "e2m1", f"a={self.a}, b={self.b}: groups are of e2m1"
            whole = self.k % 16 == block % 16 == 0 and unit.length >= self.k
            yield whole, f"k={self.k}, scale_block={block}, length={unit.length}: groups of 16, all of K in one block"
        if path == "fp8-as-fp16":
            small = all(x in ("e4m3", "e5m2") for x in (self.a, self.b))
            yield small and self.k % 4 == 0, f"a={self.a}, b={self.b}, k={self.k}: e4m3 or e5m2, K a multiple of 4"
        if path == "pairwise":
            pairs = unit.length & (unit.length - 1) == 0 and self.k % unit.length == 0
            yield pairs, f"length={unit.length}: pairwise sums need a power of two that divides K = {self.k}"

    @property
    def blocks(self) -> int:
        """Blocks that one instruction chains."""
        return 2 if self.unit.path == "fp8-as-fp16" else -(-self.k // self.unit.length)

    @property
    def formats(self) -> tuple[Format, Format, Format, Format]:
        """The formats of a, b, c and d as numbers (TF32 operands arrive in FP32 words: see ``word_format``)."""
        return TYPES[self.a], TYPES[self.b], TYPES[self.c], TYPES[self.d]

    @property
    def nan_documented(self) -> bool:
        """Whether it is known which NaN the chip returns: not so for AMD and FP64, which get the format's."""
        return self.d != "f64" and not self.instruction.startswith("mfma")

    def nan_of(self, format: Format) -> int:
        """The code of NaN on this chip. NVIDIA's has all bits but the sign; FP64's and AMD's are not documented."""
        if not isinstance(format, Format):
            raise FormatError(f"{short(format)} is no format. Example: model.nan_of(numsim.FP32)")
        if not self.nan_documented or format == FP64:
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
