"""What a format does to one number or one short expression, as a record of exact steps.

Meaning: every operand is rounded to the format first; then every operation is computed exactly and rounded once.
``show/`` draws the record and finds the words; nothing here is a float.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from numsim import arithmetic
from numsim.codebooks import Codebook, get_format
from numsim.codes import check_code, classify, ulp
from numsim.errors import InputError
from numsim.explain_codebook import CodebookExplanation, explain_codebook, refuse_operation
from numsim.expression import Node, negative, parse
from numsim.formats import FP32, Format, list_formats
from numsim.random import Draw
from numsim.rounding import (
    Nan,
    Overflow,
    Policy,
    Rounding,
    Subnormals,
    below_normal,
    draw_for,
    round_rational,
    round_to_grid,
)
from numsim.values import Rational, as_fraction, rational, to_rational

_MAX_BITS = 50_000  # the true value of an expression is not followed beyond integers of this size


# --- the record ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Place:
    """Where an exact magnitude lies on the format's grid, which is continued past the largest number.

    lower, upper : the magnitudes on either side (``lower`` itself where the number is on the grid).
    part : how far from lower to upper, exactly; 0 <= part < 1.
    exponent, kept, rest : the exact significand in binary is ``kept`` then ``rest``, times 2^exponent; ``rest`` ends
        in "..." where bits were left out.
    guard, sticky : the first bit that does not fit, and whether any later bit is 1.
    moved : "exact", "up" (away from zero) or "down" (towards zero).
    """

    lower: Fraction
    upper: Fraction
    part: Fraction
    exponent: int
    kept: str
    rest: str
    guard: int
    sticky: int
    moved: str

    @property
    def tie(self) -> bool:
        return self.part == Fraction(1, 2)

    @property
    def spacing(self) -> Fraction:
        return self.upper - self.lower


@dataclass(frozen=True)
class Step:
    """One rounding: of an operand, or of the exact result of an operation.

    operation : "" for an operand, "code" for a code taken as it is; "add", "sub", "mul", "div", "sqrt", "fma", "neg".
    operands : codes. exact : what was rounded; where ``irrational``, a stand-in good to 128 bits.
    policy : the one in force for this rounding. random, random_bits : the draw of a stochastic rounding, and its width.
    """

    text: str
    operation: str
    operands: tuple[int, ...]
    exact: Rational
    irrational: bool
    format: Format
    policy: Policy
    code: int
    random: int = 0
    random_bits: int = 32

    @cached_property
    def place(self) -> Place | None:
        """None where nothing is rounded (NaN, infinity, zero, flushed inputs, a sign that does not exist)."""
        x, flush = self.exact, self.policy.subnormals in ("flush-inputs", "flush")
        if self.operation in ("code", "neg") or not x.numerator or not x.denominator:
            return None
        if (x.sign and not self.format.signed) or (flush and below_normal(x, self.format)):
            return None
        return _place(x, self.format, self.policy.rounding, self.random, self.random_bits)

    @property
    def result(self) -> Rational:
        return to_rational(self.code, self.format)

    @property
    def kind(self) -> str:
        """The class of the result: "zero", "subnormal", "normal", "infinity" or "nan"."""
        return str(classify(self.code, self.format))

    @property
    def error(self) -> Fraction | None:
        """Result minus exact; None where either is no finite number."""
        if not self.exact.denominator or not self.result.denominator:
            return None
        return as_fraction(self.result) - as_fraction(self.exact)

    @property
    def spacing(self) -> Fraction | None:
        """The unit that ``error_ulp`` counts in: the format's spacing where the exact number lies."""
        if self.error is None:
            return None
        return self.place.spacing if self.place else ulp(self.code, self.format)

    @property
    def error_ulp(self) -> Fraction | None:
        """The error in units of ``spacing``; positive where the result lies too far from zero."""
        if self.error is None or self.spacing is None:
            return None
        return (-self.error if self.exact.sign else self.error) / self.spacing

    @property
    def relative_error(self) -> Fraction | None:
        """(result - exact) / exact; None where that is no number."""
        return _relative_error(self.result, self.exact)


class Elsewhere(NamedTuple):
    """The same in another format; ``code`` is None where the result is NaN and the format has none."""

    format: Format
    code: int | None
    relative_error: Fraction | None


@dataclass(frozen=True)
class Explanation:
    """What ``explain`` found: ``str()`` draws it in 80 columns, notebooks show it as HTML, ``to_dict()`` is for JSON.

    steps : all roundings in order; the last one gives the result.
    true : the exact value of the expression with no rounding at all; None where it is not followed (it holds the root
        of something irrational, or has more than 50,000 bits). ``true_irrational``: a stand-in good to 128 bits.
    """

    text: str
    format: Format
    policy: Policy
    steps: tuple[Step, ...]
    true: Rational | None
    true_irrational: bool
    elsewhere: tuple[Elsewhere, ...]
    notes: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def last(self) -> Step:
        """The rounding that gives the result."""
        return self.steps[-1]

    @property
    def code(self) -> int:
        """The code of the result."""
        return self.last.code

    @property
    def value(self) -> Fraction | None:
        """The exact value of the result; None for infinities and NaN."""
        return as_fraction(self.last.result) if self.last.result.denominator else None

    @property
    def relative_error(self) -> Fraction | None:
        """(result - true) / true; None where that is no number."""
        return _relative_error(self.last.result, self.true)

    def __str__(self) -> str:
        from numsim.show import text  # drawing is a floor above; only a call for a picture goes there

        return text.plain(text.explanation(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        from numsim.show import html

        return html.explanation(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, exact numbers as strings, for JSON."""
        from numsim.show import record

        return record.explanation_dict(self)


def _relative_error(result: Rational, true: Rational | None) -> Fraction | None:
    if true is None or not true.denominator or not result.denominator or not true.numerator:
        return None
    return (as_fraction(result) - as_fraction(true)) / as_fraction(true)


# --- evaluation ------------------------------------------------------------------------------------------------------
_SHOWN_BITS = 12  # of the bits that do not fit
_NEGATE = Policy(nan="zero")  # a change of sign is exact; only an unsigned format needs a rule


def _place(x: Rational, format: Format, rounding: str, random: int, r: int) -> Place:
    low = round_to_grid(x, format, "toward-zero")
    rounded = round_to_grid(x, format, rounding, random, r)
    next_up = round_to_grid(Rational(0, x.numerator, x.denominator), format, "up")
    lower, upper = format.magnitude(low), format.magnitude(max(next_up, low + 1))
    part = (abs(as_fraction(x)) - lower) / (upper - lower)
    above_emin = max(low >> format.fraction_bits, 1) - 1
    gap = format.gap and low == 0  # from zero to the least normal number: its fraction is not resolved
    kept = "0" if gap else f"{low - (above_emin << format.fraction_bits):0{format.precision}b}"
    scaled = part * 2**_SHOWN_BITS
    rest = f"{scaled.numerator // scaled.denominator:0{_SHOWN_BITS}b}"
    return Place(
        lower,
        upper,
        part,
        exponent=format.emin + above_emin,
        kept=f"{kept[0]}.{kept[1:]}" if format.fraction_bits and not gap else kept,
        rest=(rest.rstrip("0") if scaled.denominator == 1 else f"{rest}...") if part else "",
        guard=int(part >= Fraction(1, 2)),
        sticky=int(part not in (0, Fraction(1, 2))),
        moved="exact" if not part else "up" if rounded > low else "down",
    )


def _round(
    node: Node, operation: str, operands: tuple[int, ...], x: Rational, format: Format, policy: Policy,
    draw: Draw | None, i: int,
) -> Step:  # fmt: skip
    random, r = (draw(i), draw.r) if draw else (0, 32)
    code = round_rational(x, format, policy, random, r)
    irrational = operation == "sqrt" and _irrational(x, to_rational(operands[0], format))
    return Step(node.text, operation, operands, x, irrational, format, policy, code, random, r)


def _evaluate(node: Node, format: Format, policy: Policy, draw: Draw | None) -> tuple[Step, ...]:
    """All roundings in order; rounding i of the expression (operands too, changes of sign not) uses draw i."""
    steps: list[Step] = []
    drawn = 0

    def visit(node: Node) -> int:
        nonlocal drawn
        operands = tuple([visit(a) for a in node.arguments])
        if node.operation == "neg":
            x = negative(to_rational(operands[0], format))
            steps.append(_round(node, "neg", operands, x, format, _NEGATE, None, 0))
        elif node.code is not None and node.code[0] == format:
            steps.append(Step(node.text, "code", (), node.value, False, format, policy, node.code[1]))
            drawn += 1
        else:
            x, after = node.value, policy
            if node.operation:
                exact = [arithmetic.operand(c, format, policy) for c in operands]
                x = arithmetic.OPERATIONS[node.operation](*exact, policy.rounding)
                after = arithmetic.result_policy(policy)
            steps.append(_round(node, node.operation, operands, x, format, after, draw, drawn))
            drawn += 1
        return steps[-1].code

    visit(node)
    return tuple(steps)


def _irrational(root: Rational, x: Rational) -> bool:
    return bool(root.denominator and root.numerator and as_fraction(root) ** 2 != as_fraction(x))


def _true(node: Node) -> tuple[Rational, bool] | None:
    """The value with no rounding at all, and whether it stands for an irrational one; None where not followed."""
    if not node.operation:
        return node.value, False
    values = [_true(a) for a in node.arguments]
    xs = [v[0] for v in values if v and not v[1]]
    if len(xs) < len(values):
        return None
    x = negative(xs[0]) if node.operation == "neg" else arithmetic.OPERATIONS[node.operation](*xs)
    irrational = node.operation == "sqrt" and _irrational(x, xs[0])
    if x.denominator and not irrational:
        x = Rational(x.sign, *Fraction(x.numerator, x.denominator).as_integer_ratio())
    return None if x.numerator.bit_length() + x.denominator.bit_length() > _MAX_BITS else (x, irrational)


def _roundings(node: Node) -> int:
    return (node.operation != "neg") + sum(map(_roundings, node.arguments))


# --- the front door --------------------------------------------------------------------------------------------------
def explain(
    x: Any,
    format: Any = None,
    *,
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    nan: Nan = "raise",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
) -> Explanation | CodebookExplanation:
    """Explain what a format does to a number, or to the operations of a short expression.

    Every operand is rounded to the format; then every operation is computed exactly and rounded once. The options
    are those of ``numsim.encode``; the code of a number is that of ``numsim.encode``.

    Rules
    -----
    NaN : as in ``encode``; a format without NaN does what ``nan`` says.
    Inf : ``inf`` is read; a number divided by zero gives infinity, or what ``overflow`` makes of it.
    -0 : kept where the format has it.
    subnormals, overflow : as in ``encode``; under "flush-inputs" operations take subnormal operands as zero.

    Parameters
    ----------
    x : a number as for ``encode``, or text: numbers (``0.1``, ``1/3``, ``0x1.8p-3``, ``inf``, ``nan``, the code
        ``e4m3:0x7e``), ``+ - * /``, parentheses, ``sqrt(x)``, ``fma(a, b, c)``. A whole text like ``1/3`` without
        spaces is one number. A minus directly before a number belongs to the number.
    format : any format; None for that of a code, else FP32. A codebook looks up one number, without operations.
    seed, random_bits, sr_bits : for "stochastic"; rounding i of the expression uses draw i, operands counted.

    Returns an ``Explanation`` (of a codebook a ``CodebookExplanation``).
    Raises ``InputError`` for what cannot be read, with the place marked; ``FormatError`` for an unknown format.
    Cost: about a millisecond. Source: IEEE 754-2019, sections 4.3 to 7.4.

    >>> e = explain("2048 + 1", "fp16")
    >>> e.value, e.last.place.tie, e.last.error_ulp
    (Fraction(2048, 1), True, Fraction(-1, 2))
    >>> hex(explain(0.1, "bf16").code)
    '0x3dcd'
    """
    node, notes = _read(x)
    format = get_format(format) if format is not None else node.code[0] if node.code else FP32
    policy = Policy(rounding, overflow, subnormals, nan)
    if isinstance(format, Codebook):
        if node.operation:
            raise refuse_operation(node.text, format)
        return explain_codebook(node.text, node.value, format, policy, seed, random_bits, sr_bits)
    count = _roundings(node)
    draw = draw_for(policy, count, (count,), seed, random_bits, sr_bits)
    steps = _evaluate(node, format, policy, draw)
    if "/" in node.text and not node.operation and draw is None:
        notes += _division(node, steps[-1].code, format, policy)
    true = _true(node)
    value, irrational = true or (None, False)
    elsewhere = []
    for other in list_formats():
        if other != format:
            try:
                code = _evaluate(node, other, policy, draw)[-1].code
            except InputError:  # NaN in a format without NaN
                elsewhere.append(Elsewhere(other, None, None))
            else:
                elsewhere.append(Elsewhere(other, code, _relative_error(to_rational(code, other), value)))
    used = draw.seed if draw and draw.given is None else None
    return Explanation(node.text, format, policy, steps, value, irrational, tuple(elsewhere), notes, used)


def _division(node: Node, code: int, format: Format, policy: Policy) -> tuple[str, ...]:
    """1/3 is one number; where dividing would round an operand or give another result, say so."""
    spaced = node.text.replace("/", " / ")
    try:
        *operands, division = _evaluate(parse(spaced), format, policy, None)
    except InputError:
        return ()
    if division.code == code and not any(s.error for s in operands):
        return ()
    from numsim.show.numbers import value_text

    same = division.code == code
    gives = "the same here, after other roundings" if same else value_text(division.code, format)
    return (f"{node.text} is read as one number; with spaces it is a division, and gives {gives}",)


def _read(x: Any) -> tuple[Node, tuple[str, ...]]:
    """Text through the parser; a numsim number as its code; anything else as ``encode`` reads it."""
    if isinstance(x, str):
        return parse(x), ()
    if hasattr(x, "codes") and isinstance(getattr(x, "format", None), Format):
        code = check_code(x.codes, x.format)
        return Node(f"{x.format}:{code:#x}", "", value=to_rational(code, x.format), code=(x.format, code)), ()
    if getattr(x, "shape", ()) != () or isinstance(x, (list, tuple)):
        raise InputError(
            f"{type(x).__name__} of several numbers: one is explained at a time. Example: explain(x[0], 'fp16')"
        )
    value = rational(x.item() if type(x).__name__ == "ndarray" else x)
    if isinstance(x, (int, Fraction)):
        parts = [format(Decimal(int(n)), "f") for n in (x.numerator, x.denominator)]  # str refuses long integers
        return Node("/".join(parts[: 1 + (x.denominator != 1)]), "", value=value), ()
    text = str(x)
    try:
        written = parse(text).value if value.denominator else value
    except InputError:  # something that prints in its own way
        written = value
    if written == value or as_fraction(written) == as_fraction(value):
        return Node(text, "", value=value), ()
    from numsim.show.numbers import short

    note = f"the {type(x).__name__} {text} is exactly {short(as_fraction(value), 20)}"
    return Node(text, "", value=value), (note,)
