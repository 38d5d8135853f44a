"""What a block format does to a few numbers, as a record: amax, the rule step by step, each element, the other rules.

``show/blocks.py`` finds the words and draws the columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from numsim import kernels
from numsim.blocks.array import amaxes, quantize
from numsim.blocks.codebooks import Codebook
from numsim.blocks.formats import BlockFormat, get_block_format
from numsim.blocks.rules import FLT_MAX, RULES, F, Floats, half_ulp, tensor_level
from numsim.codes import decode
from numsim.errors import InputError, short
from numsim.events import Events
from numsim.expression import Node, parse
from numsim.formats import FP32, UE4M3
from numsim.rounding import Policy, encode_values
from numsim.values import Rational, Values, rational

Fate = Literal["exact", "rounded", "zero", "saturated", "infinite", "nan", "nan lost"]
MOST = 128  # numbers in one explanation
FAMILIES = (  # rules that can stand for each other
    ("floor", "ceil", "rceil", "even", "te"),
    ("current", "current-pow2", "torchao", "torchao-pow2"),
    ("absmax", "absmax-127"),
    ("nvfp4", "torchao-nvfp4"),
)
_EXAMPLE = 'Example: numsim explain "[0.1, 300, 480, 1]" --format mxfp8'


class ScaleStep(NamedTuple):
    """One operation on the way from amax to the scale, and what came out."""

    what: str
    value: float


class Element(NamedTuple):
    """One number and what became of it.

    text : the number as given. number : in FP32. scaled : number x multiplier, in FP32. element : the value of
        ``code``. value : element x scale (x tensor scale), exactly.
    """

    text: str
    number: float
    scaled: float
    code: int
    element: float
    value: float
    saturated: bool

    @property
    def fate(self) -> Fate:
        """What happened; "saturated" only where nearest-even, with no upper bound, ends beyond the largest element."""
        if math.isnan(self.number) or math.isnan(self.value):
            return "nan" if math.isnan(self.value) else "nan lost"
        if self.value == self.number:
            return "exact"
        if math.isinf(self.value):
            return "infinite"
        return "zero" if self.value == 0 else "saturated" if self.saturated else "rounded"

    @property
    def error(self) -> Fraction | None:
        """value - number; None where either is no finite number."""
        if not (math.isfinite(self.number) and math.isfinite(self.value)):
            return None
        return Fraction(self.value) - Fraction(self.number)


@dataclass(frozen=True)
class Block:
    """Elements that share a scale.

    steps : from amax to the scale. multiplier : what elements are multiplied by. scale : the value of ``scale_code``.
    elements : those that were given; zeros that fill the block are left out.
    others : the same block under the rules of the same family, this one included.
    """

    rule: str
    amax: float
    steps: tuple[ScaleStep, ...]
    multiplier: float
    scale_code: int
    scale: float
    elements: tuple[Element, ...]
    others: tuple[Block, ...] = ()

    def count(self, fate: Fate) -> int:
        return sum(e.fate == fate for e in self.elements)

    @property
    def error(self) -> Fraction | None:
        """The sum of |error| over the sum of |number|; None where a number or a value is not finite."""
        errors, size = Fraction(0), Fraction(0)
        for e in self.elements:
            if e.error is None:
                return None
            errors += abs(e.error)
            size += abs(Fraction(e.number))
        return errors / size if size else errors

    @property
    def largest(self) -> Element:
        """The first element that has the amax."""
        size = [math.nan if math.isnan(e.number) else abs(e.number) for e in self.elements]
        return next((e for e, x in zip(self.elements, size, strict=True) if repr(x) == repr(self.amax)),
                    self.elements[0])  # fmt: skip


@dataclass(frozen=True)
class BlockExplanation:
    """Numbers as a block format, step by step.

    tensor : the steps of the tensor's scale, where the format has one. tensor_scale : what values are multiplied by.
    fill : how many zeros fill the last block up. inexact : how many of the numbers are no FP32 numbers.
    """

    text: str
    format: BlockFormat
    tensor: tuple[ScaleStep, ...]
    tensor_scale: float
    blocks: tuple[Block, ...]
    fill: int
    inexact: int

    @property
    def elements(self) -> tuple[Element, ...]:
        return tuple(e for b in self.blocks for e in b.elements)

    def __str__(self) -> str:
        from numsim.show import blocks, text  # drawing is a floor above; only a call for a picture goes there

        return text.plain(blocks.explanation(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything, exact numbers as strings, for JSON."""
        from numsim.show import blocks

        return blocks.explanation_dict(self)


def explain_block(numbers: Any, format: Any) -> BlockExplanation:
    """Explain what a block format does to up to 128 numbers in a row; zeros fill the last block up.

    Elements are rounded to nearest-even and saturate, as ``numsim.blocks.quantize`` does it.

    Rules
    -----
    NaN, Inf, -0, overflow : as in ``quantize``.
    subnormals : kept.

    Parameters
    ----------
    numbers : a list of what ``numsim.encode`` takes for a number, or a text of them in brackets, as typed at the
        command line. They are rounded to FP32 first.
    format : a block format or its name.

    Raises ``InputError`` for what is no list of 1 to 128 numbers; ``FormatError`` for an unknown block format.
    Cost: some milliseconds. Source: that of the format's rule, ``numsim.blocks.RULES``.

    >>> e = explain_block([0.1, 300, 480, 1], "mxfp8")
    >>> [(x.value, x.fate) for x in e.elements]
    [(0.1015625, 'rounded'), (288.0, 'rounded'), (448.0, 'saturated'), (1.0, 'exact')]
    >>> {b.rule: b.scale for b in e.blocks[0].others}
    {'floor': 1.0, 'ceil': 2.0, 'rceil': 2.0, 'even': 1.0, 'te': 2.0}
    """
    format = get_block_format(format)
    texts, exact = _read(numbers)
    seen = Events()
    x = encode_values(Values((len(exact),), None, exact), FP32, Policy(), None, seen).view(np.float32)
    family = _family(format)
    blocks = _blocks(texts, x, format)
    if family:
        others = zip(*(_blocks(texts, x, replace(format, rule=rule)) for rule in family), strict=True)
        blocks = [replace(b, others=same) for b, same in zip(blocks, others, strict=True)]
    amax = amaxes(x.reshape(1, -1), 1, x.size, RULES[format.rule].nan)
    back = float(tensor_level(amax, format)[1])
    steps = _tensor_steps(amax, format) if format.has_tensor_scale else ()
    fill = math.prod(_block_shape(len(x), format)) * len(blocks) - len(x)
    return BlockExplanation(f"[{', '.join(texts)}]", format, steps, back, tuple(blocks), fill, seen.inexact)


def _family(format: BlockFormat) -> tuple[str, ...]:
    """The rules that could stand in the format; LLM.int8's is for elements up to 127."""
    family: tuple[str, ...] = next((f for f in FAMILIES if format.rule in f), ())
    return tuple(rule for rule in family if rule != "absmax-127" or rule == format.rule or format.element_max == 127)


def _read(numbers: Any) -> tuple[list[str], list[Rational]]:
    """The numbers as given, and exactly."""
    if isinstance(numbers, str):
        inside = re.fullmatch(r"\s*\[(.*)\]\s*", numbers, re.DOTALL)
        if not inside:
            raise InputError(f"{short(numbers)}: a list ends with ]. {_EXAMPLE}")
        items: Sequence[Any] = inside[1].rstrip().removesuffix(",").split(",") if inside[1].strip() else []
    else:
        items = np.ravel(numbers).tolist() if isinstance(numbers, np.ndarray) else numbers
    if not isinstance(items, (list, tuple)):
        raise InputError(f"{short(numbers)}: a list of numbers is needed. {_EXAMPLE}")
    if not 1 <= len(items) <= MOST:
        raise InputError(f"{len(items)} numbers: 1 to {MOST} are explained. {_EXAMPLE}")
    texts, exact = [], []
    for item in items:
        node = _parsed(item) if isinstance(item, str) else None
        if node is not None and node.operation:
            raise InputError(f"{short(node.text)}: numbers between commas are needed, no operations. {_EXAMPLE}")
        texts.append(node.text if node is not None else str(item))
        exact.append(node.value if node is not None else rational(item))
    return texts, exact


def _parsed(item: str) -> Node:
    try:
        return parse(item)
    except InputError as error:  # what it says of expressions in general does not belong here
        said = re.sub("(the|an) expression", "a number of the list", str(error))
        raise InputError(f"{said.rpartition(chr(10))[0] or said}\n{_EXAMPLE}") from None


def _block_shape(count: int, format: BlockFormat) -> tuple[int, int]:
    """Rows and columns of a block among ``count`` numbers in one row."""
    rows, columns = (1, *(format.block or (0,)))[-2:]
    return rows or 1, columns or count


def _blocks(texts: list[str], x: Floats, format: BlockFormat) -> list[Block]:
    """The numbers as one row of blocks; the other rows of a tile are zeros, and change nothing."""
    columns = _block_shape(len(x), format)[1]
    filled = np.zeros(-(-len(x) // columns) * columns, np.float32)
    filled[: len(x)] = x
    with kernels.force("reference"):  # done before numba would have loaded
        result = quantize(filled, replace(format, block=(columns,)))
        values, elements = result.values, result.elements
    rule = RULES[format.rule]
    amax_of = amaxes(filled.reshape(1, -1), 1, columns, rule.nan)
    whole = tensor_level(amax_of, format)[0]
    multipliers = rule.scales(amax_of[0], format, whole).multiplier
    with np.errstate(all="ignore"):
        scaled = filled * np.repeat(multipliers, columns)
    told = [
        Element(text, float(x[i]), float(scaled[i]), int(result.codes[i]), float(elements[i]), float(values[i]),
                _saturates(float(scaled[i]), format))
        for i, text in enumerate(texts)
    ]  # fmt: skip
    return [
        Block(format.rule, float(amax), tuple(_steps(amax, format, whole)), float(multiplier), int(code), float(scale),
              tuple(told[i * columns : (i + 1) * columns]))
        for i, (amax, multiplier, code, scale) in enumerate(
            zip(amax_of[0], multipliers, result.scales.codes, result.scales.values, strict=True))
    ]  # fmt: skip


def _saturates(scaled: float, format: BlockFormat) -> bool:
    """Whether rounding to nearest-even on the element's grid, continued past its end, ends beyond the last number."""
    element = format.element
    if isinstance(element, Codebook):
        last, before = (element.values[c] for c in element.order[[-1, -2]])
        odd = int(element.order[-1]) % 2
    else:
        last, before = (Fraction(float(decode(element.max_code - i, element))) for i in range(2))
        odd = element.max_code % 2
    if not math.isfinite(scaled):
        return math.isinf(scaled)
    half_way = last + (last - before) / 2
    return abs(Fraction(scaled)) > half_way or (abs(Fraction(scaled)) == half_way and bool(odd))


# --- from amax to the scale, one operation at a time ------------------------------------------------------------------
def _tensor_steps(amaxes: Floats, format: BlockFormat) -> tuple[ScaleStep, ...]:
    amax, most = float(amaxes.max()), f"{UE4M3.max} x {_largest(format)}"
    level, back = (float(y) for y in tensor_level(amaxes, format))
    first = ScaleStep("amax of the tensor", amax)
    if format.rule == "torchao-nvfp4":
        return first, ScaleStep(f"tensor scale t: amax / ({most})", back)
    ordinary = math.isfinite(amax) and amax > 0
    return (
        first,
        ScaleStep(f"multiplier S: {most} / amax" if ordinary else "multiplier S, of such an amax", level),
        ScaleStep(f"tensor scale: amax x fp32(1 / ({most}))" if ordinary else "tensor scale", back),
    )


def _largest(format: BlockFormat) -> str:
    return f"{format.element_max:.12g}"


def _power(format: BlockFormat, what: str, exponent: int) -> list[ScaleStep]:
    return [
        ScaleStep(what, exponent),
        ScaleStep(f"less {format.emax}, the exponent of {_largest(format)}", exponent - format.emax),
    ]


def _floor(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    return _power(format, "exponent, floor(log2 amax)", math.frexp(amax)[1] - 1)


def _ceil(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    return _power(format, "exponent, ceil(log2 amax)", math.frexp(amax)[1] - (math.frexp(amax)[0] == 0.5))


def _rceil(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    quotient = amax * (F(1) / F(format.element_max))
    steps = [ScaleStep(f"amax x fp32(1/{_largest(format)})", float(quotient))]
    if quotient == 0:
        return [*steps, ScaleStep("exponent, the least there is", -127)]
    significand, exponent = math.frexp(quotient)
    return [*steps, ScaleStep("exponent, ceil(log2) of that", exponent - (significand == 0.5))]


def _even(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    fraction = getattr(format.element, "fraction_bits", format.element.bits - 2)
    bits = int(F(amax).view(np.uint32)) + half_ulp(format)
    more = ScaleStep(
        f"amax + half an ulp of {fraction} fraction bits", float(np.uint32(bits).view(np.float32))
    )  # fmt: skip
    return [more, *_power(format, "its exponent, floor(log2)", (bits >> 23) - 127)]


def _current(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    return [ScaleStep(f"{_largest(format)} / amax, in FP32", float(F(format.element_max) / amax))]


def _current_pow2(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    scale = min(F(format.element_max) / amax, FLT_MAX)
    power = (F(scale).view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
    return [*_current(amax, format, whole), ScaleStep("down to a power of two", float(power))]


def _torchao(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    clamped = np.maximum(np.float64(amax), 1e-12)
    return [
        ScaleStep("amax, at least 1e-12", float(clamped)),
        ScaleStep(f"{_largest(format)} / that, in FP64, then FP32", float(F(format.element_max / clamped))),
    ]


def _torchao_pow2(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    power = RULES["torchao-pow2"].scales(np.asarray(amax), format, whole).multiplier
    return [*_torchao(amax, format, whole), ScaleStep("2^floor(log2), the log2 in FP32", float(power))]


def _absmax(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    inverse = F(1) / amax
    scaled = [ScaleStep(f"x {_largest(format)}", float(inverse * F(format.element_max)))]
    return [ScaleStep("1 / amax, in FP32", float(inverse)), *(scaled if format.element_max != 1 else [])]


def _nvfp4(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    part = whole * (F(1) / F(format.element_max))
    return [
        ScaleStep(f"S x fp32(1/{_largest(format)})", float(part)),
        ScaleStep("amax x that", float(F(amax * part))),
    ]


def _torchao_nvfp4(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    part = amax / F(format.element_max)
    wanted = part / whole
    return [
        ScaleStep(f"amax / {_largest(format)}", float(part)),
        ScaleStep("that / t", float(wanted)),
        ScaleStep("at least 2^-6, at most 448", float(np.clip(wanted, F(2.0**-6), F(448)))),
    ]


Steps = Callable[[Any, BlockFormat, Any], list[ScaleStep]]
_STEPS: dict[str, Steps] = {
    "floor": _floor, "ceil": _ceil, "rceil": _rceil, "even": _even, "te": _rceil,
    "current": _current, "current-pow2": _current_pow2, "torchao": _torchao, "torchao-pow2": _torchao_pow2,
    "absmax": _absmax, "absmax-127": _current, "nvfp4": _nvfp4,
    "torchao-nvfp4": _torchao_nvfp4,
}  # fmt: skip
# The others have cases of their own for 0, infinity and NaN.
_ANY_AMAX = ("torchao", "torchao-pow2", "nvfp4", "torchao-nvfp4")


def _steps(amax: Any, format: BlockFormat, whole: Any) -> list[ScaleStep]:
    """Empty where the amax is a case of its own."""
    ordinary = np.isfinite(amax) and amax > 0
    if not (ordinary or format.rule in _ANY_AMAX):
        return []
    with np.errstate(all="ignore"):
        return _STEPS[format.rule](F(amax), format, F(whole))
