"""Hypothesis strategies for the numbers of a format: codes, values, arrays, pairs of operands, what is hard to round.

A failing example shrinks towards what people read easily: 0, 1, small integers, powers of two, few bits, positive; NaN
and infinities last. Under ``derandomize=True`` the same examples come every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

from numsim.array import Array
from numsim.codebooks import Codebook, get_format
from numsim.codes import code_dtype, decode
from numsim.errors import InputError, RangeError, check_choice, short, truth
from numsim.formats import FP64, Format
from numsim.rounding import Policy, round_rational, with_sign
from numsim.testing._hypothesis import numpy_strategies, st
from numsim.testing.sweeps import codebook_points, edge_ranks, source_of
from numsim.values import as_fraction, is_whole, rational, to_rational

_T = TypeVar("_T")
OPERATIONS = ("add", "sub", "mul", "div")
LARGEST = 1 << 16  # numbers in an array


# --- codes and values -------------------------------------------------------------------------------------------------
def codes(format: Any, *, allow_nan: bool = True, allow_infinity: bool = True) -> st.SearchStrategy[int]:
    """Codes of a format, as Python integers.

    Rules: all codes come up, NaN payloads too; zeros, subnormal numbers and the ends of the format more often than
    by chance. Shrinks to 0, small integers, powers of two, numbers of few bits; then infinities, then NaN. Of a
    codebook each is as likely as any other; those that encoding never gives are the last resort.

    >>> from hypothesis import find, settings
    >>> fixed = settings(derandomize=True, database=None)
    >>> from numsim import decode
    >>> hex(find(codes("fp16"), lambda code: decode(code, "fp16") > 1, settings=fixed))
    '0x4000'
    """
    format = get_format(format)
    if isinstance(format, Codebook):
        return st.sampled_from(_readable_codes(format))
    return st.one_of(
        _signed(st.sampled_from(_readable(format)), format),
        _any(format, nan := truth("allow_nan", allow_nan), infinity := truth("allow_infinity", allow_infinity)),
        _edges(format, nan, infinity),
    )


def values(format: Any, *, allow_nan: bool = True, allow_infinity: bool = True) -> st.SearchStrategy[float]:
    """Numbers of a format, as Python floats; as ``codes``.

    Raises ``RangeError`` for a format with values that float64 does not hold.

    >>> from hypothesis import find, settings
    >>> fixed = settings(derandomize=True, database=None)
    >>> [find(values("bf16"), f, settings=fixed) for f in (lambda x: x >= 3, lambda x: x < 0)]
    [3.0, -1.0]
    """
    format = get_format(format)
    if not format.fits(FP64):
        raise RangeError(f"{format} has values that float64 does not hold. Example: numsim.testing.codes('{format}')")
    return codes(format, allow_nan=allow_nan, allow_infinity=allow_infinity).map(lambda c: float(decode(c, format)))


def arrays(
    format: Any,
    shape: Any = None,
    elements: st.SearchStrategy[int] | None = None,
    *,
    allow_nan: bool = True,
    allow_infinity: bool = True,
) -> st.SearchStrategy[Array]:
    """numsim Arrays of a format.

    Parameters: ``shape``, a number, a tuple or a strategy of tuples, by default up to two dimensions of up to 8;
    ``elements``, a strategy of codes, by default ``codes(format)``. Raises ``InputError`` above 65,536 numbers.

    >>> from hypothesis import find, settings
    >>> fixed = settings(derandomize=True, database=None)
    >>> find(arrays("fp16", 3), lambda x: bool((x.values > 1).any()), settings=fixed)
    numsim.array([0.0, 0.0, 2.0], 'fp16')
    """
    format = get_format(format)
    if isinstance(format, Codebook):
        raise InputError(
            f"arrays: there are no Arrays of {format}, which is a codebook. Example: "
            f"hypothesis.extra.numpy.arrays('uint8', (4, 8), elements=numsim.testing.codes('{format}'))"
        )
    if elements is None:
        elements = codes(format, allow_nan=allow_nan, allow_infinity=allow_infinity)
    if not isinstance(elements, st.SearchStrategy):
        raise InputError(
            f"elements={short(elements)}: a strategy of codes is needed. "
            f"Example: arrays('{format}', (4, 8), numsim.testing.codes('{format}'))"
        )
    if shape is None:
        shape = numpy_strategies.array_shapes(min_dims=1, max_dims=2, max_side=8)
    elif not isinstance(shape, st.SearchStrategy):
        sides = shape if isinstance(shape, tuple) else (shape,)
        if not all(is_whole(n) and n >= 0 for n in sides) or math.prod(sides) > LARGEST:
            raise InputError(
                f"shape={short(shape)}: a number, a tuple of them or a strategy is needed, with up to 65,536 elements. "
                f"Example: arrays('{format}', (4, 8))"
            )
    found: st.SearchStrategy[Any] = numpy_strategies.arrays(code_dtype(format), shape, elements=elements)
    return found.map(lambda c: Array(c, format))


@lru_cache(maxsize=64)
def _readable(format: Format) -> tuple[int, ...]:
    """Small integers that are numbers of the format, and powers of two beside 1."""
    wanted = [Fraction(n) for n in range(17)] + [Fraction(2) ** k for k in (5, 6, 7, 8, -1, -2, -3, -4)]
    found = (_code_of(x, format) for x in wanted)
    exact = [c for c, x in zip(found, wanted, strict=True) if as_fraction(to_rational(c, format)) == x]
    return tuple(exact) or (_code_of(Fraction(1), format),)


def _readable_codes(book: Codebook) -> list[int]:
    """0, 1, -1, other small integers, fractions."""
    simple = [(abs(v.denominator), abs(v.numerator), v < 0) for v in book.values]
    return sorted(range(book.codes), key=lambda code: (code in book.unused, *simple[code]))


def _edges(format: Format, allow_nan: bool, allow_infinity: bool) -> st.SearchStrategy[int]:
    """What stands at the ends: zero, where normal numbers begin, the largest number, infinity, NaN.

    As many choices as ``_any`` makes, for Hypothesis takes fewer choices to be simpler.
    """
    normal, top = 1 << format.fraction_bits, format.max_code
    ends = [(0, 1, 2), (normal, normal - 1, normal + 1), (top, top - 1, top - 2)]
    if allow_infinity and format.infinity_code is not None:
        ends.append((format.infinity_code,) * 3)
    if allow_nan and format.nan_code is not None:
        ends.append((format.nan_code,) * 3)

    def magnitude(end: tuple[int, int, int], place: int) -> int:
        return end[place] if end[0] > top else min(max(end[place], 0), top)

    return _signed(_made(magnitude, st.sampled_from(ends), st.integers(0, 2)), format)


def _any(format: Format, allow_nan: bool = False, allow_infinity: bool = False) -> st.SearchStrategy[int]:
    """Any code, as three choices that shrink one by one: few bits, exponent near 0, positive."""
    fraction_bits = format.fraction_bits

    def magnitude(tail: int, field: int) -> int:
        bits = f"{tail:0{fraction_bits}b}"[::-1] if fraction_bits else "0"  # so that 1 is the first fraction bit
        code = field << fraction_bits | int(bits, 2)
        special = code > format.max_code
        allowed = allow_infinity if code == format.infinity_code else allow_nan
        return format.max_code if special and not allowed else code

    return _signed(_made(magnitude, st.integers(0, (1 << fraction_bits) - 1), st.sampled_from(_fields(format))), format)


@lru_cache(maxsize=64)
def _fields(format: Format) -> tuple[int, ...]:
    """Exponent fields: those of 1, 2, 1/2, 4, 1/4 and so on first."""
    top = (1 << format.exponent_bits) - 1
    one = min(max(format.bias, 0), top)
    return tuple(sorted(range(top + 1), key=lambda field: (abs(field - one), -field)))


def _made(function: Callable[..., _T], *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[_T]:
    """As ``builds``, whose failing examples Hypothesis shows as the call that made them, and not as numbers."""
    return st.tuples(*parts).map(lambda drawn: function(*drawn))


def _signed(magnitudes: st.SearchStrategy[int], format: Format) -> st.SearchStrategy[int]:
    if not format.signed:
        return magnitudes
    return _made(lambda m, negative: with_sign(m, negative, format), magnitudes, st.booleans())


def _code_of(x: Fraction, format: Format) -> int:
    """The code of x, or of the next number nearer to zero."""
    return round_rational(rational(x), format, Policy("toward-zero", "saturate", nan="zero"))


# --- numbers that are hard to round -----------------------------------------------------------------------------------
def hard_cases(target: Any, source: Any = "fp64") -> st.SearchStrategy[float]:
    """Numbers of ``source``, as Python floats, where rounding to ``target`` is easy to get wrong.

    A number of the target or the tie above it, or what the source has next to either: so ties to both sides, ties
    plus and minus one ulp of the source, carries into the next binade, the ends of the subnormal numbers and the
    overflow threshold all come up within some hundred examples. Finite, both signs. Shrinks to 1 and what is beside it.
    Of a codebook: its numbers, the limits between them, one number beyond each end; shrinks to 0.

    Raises ``RangeError`` for a source with values that float64 does not hold, ``InputError`` for a codebook as source.

    >>> from hypothesis import find, settings
    >>> fixed = settings(derandomize=True, database=None)
    >>> from numsim import round_to
    >>> differ = lambda x: round_to(x, "fp16") != round_to(x, "fp16", rounding="nearest-away")
    >>> find(hard_cases("fp16"), differ, settings=fixed).hex()
    '0x1.0020000000000p+0'
    """
    target = get_format(target)
    source = source_of(target, source, "hard_cases")
    if isinstance(target, Codebook):
        points = codebook_points(target)
        readable = sorted(points, key=lambda x: (x.denominator, abs(x.numerator), x < 0))
        drawn = st.sampled_from(readable) | st.sampled_from(points[:3] + points[-3:])  # the ends more often
        return _made(lambda x, steps: _float_beside(x, steps, x < 0, source), drawn, _STEPS)

    def number(rank: int, half: int, steps: int, negative: bool) -> float:
        return _float_beside(_place(rank, half, target), steps, negative, source)

    return _made(number, _ranks(target), _HALVES, _STEPS, st.booleans())


_HALVES = st.sampled_from((0, 1))  # half steps above a place of the grid
_STEPS = st.sampled_from((0, 1, -1))  # to what lies beside


def _ranks(format: Format) -> st.SearchStrategy[int]:
    """Places on the grid: where a binade begins, that of 1 first; the ends, and where subnormal numbers end; any."""
    sign, normal, top = format.sign_mask, 1 << format.fraction_bits, format.max_rank
    one = format.rank(_code_of(Fraction(1), format))
    edges = sorted(edge_ranks(format), key=lambda r: (abs(r - one), -r))
    ends = [r for r in (top, top + 1, normal - 1, normal, 0, 1, top - 1) if r in edges]
    anywhere = _any(format).map(lambda c: format.rank(c & ~sign))
    return st.one_of(st.sampled_from(edges[:8]), st.sampled_from(edges), st.sampled_from(ends), anywhere)


def _place(rank: int, half: int, format: Format) -> Fraction:
    low = format.magnitude(rank)
    return low + half * (format.magnitude(rank + 1) - low) / 2


def _beside(x: Fraction, steps: int, format: Format) -> int:
    """The magnitude code that many steps from x."""
    return min(max(_code_of(abs(x), format) + steps, 0), format.max_code)


def _float_beside(x: Fraction, steps: int, negative: bool, source: Format) -> float:
    return float(decode(with_sign(_beside(x, steps, source), negative and source.signed, source), source))


# --- operands ---------------------------------------------------------------------------------------------------------
def operand_pairs(format: Any, operation: str | None = None) -> st.SearchStrategy[tuple[int, int]]:
    """Pairs of codes whose sum, difference, product or quotient is hard to round.

    The first operand is any; the second is what takes the exact result to a number of the format, a tie, or the
    threshold of underflow or overflow, or one step beside that. So ties, cancellation to the last bit, carries,
    subnormal results, underflow and overflow all come up; pairs of any codes do too, NaN and infinities among them.

    Parameters: ``operation`` "add", "sub", "mul" or "div"; None: any of them.

    >>> from hypothesis import given, settings
    >>> from numsim import from_codes
    >>> @settings(derandomize=True, database=None)
    ... @given(operand_pairs("e4m3", "add"))
    ... def sums_commute(pair):
    ...     x, y = from_codes(pair, "e4m3")
    ...     assert repr(x + y) == repr(y + x)
    >>> sums_commute()
    """
    format = get_format(format)
    if isinstance(format, Codebook):
        raise InputError(
            f"operand_pairs: arithmetic is not defined on {format}, which is a codebook. Example of all pairs of its "
            f"codes: numsim.testing.all_pairs('{format}')"
        )
    if operation is not None:
        check_choice("operation", operation, OPERATIONS, f"operand_pairs('{format}', 'add')")
    hard = [_hard_pairs(name, format) for name in OPERATIONS if operation in (None, name)]
    return st.one_of(st.tuples(codes(format), codes(format)), *hard)


def _hard_pairs(operation: str, format: Format) -> st.SearchStrategy[tuple[int, int]]:
    def near(code: int, steps_away: int, half: int, steps: int) -> tuple[int, int]:
        """The result is beside the first operand."""
        rank = max(format.rank(code & ~format.sign_mask) + steps_away, format.rank(0))
        target = _place(rank, half, format)
        return _solve(operation, code, -target if code & format.sign_mask else target, steps, format)

    def anywhere(code: int, rank: int, half: int, negative: bool, steps: int) -> tuple[int, int]:
        target = _place(rank, half, format)
        return _solve(operation, code, -target if negative else target, steps, format)

    first = codes(format, allow_nan=False, allow_infinity=False)
    pairs = st.one_of(
        _made(near, first, st.integers(0, 2), _HALVES, _STEPS),
        _made(anywhere, first, _ranks(format), _HALVES, st.booleans(), _STEPS),
    )
    return pairs | _tied_products(format) if operation == "mul" and format.precision > 2 else pairs


def _solve(operation: str, first: int, target: Fraction, steps: int, format: Format) -> tuple[int, int]:
    """An operand and what goes with it so that the exact result is the target, or the nearest that there is."""
    x = as_fraction(to_rational(first, format))
    if operation in ("mul", "div") and not x:
        return first, first
    y = {"add": lambda: target - x, "sub": lambda: x - target, "mul": lambda: target / x, "div": lambda: target * x}
    found = y[operation]()
    other = with_sign(_beside(found, steps, format), found < 0 and format.signed, format)
    return (other, first) if operation == "div" else (first, other)


def _tied_products(format: Format) -> st.SearchStrategy[tuple[int, int]]:
    """Two odd integers whose product has one bit more than the format, each times a power of two."""
    p = format.precision

    def pair(x: int, pick: int, exponent_x: int, exponent: int) -> tuple[int, int]:
        low, high = -(-(1 << p) // x), ((2 << p) - 1) // x
        y = min(low + pick % (high - low + 1) | 1, high)
        scaled = [Fraction(x) * Fraction(2) ** exponent_x, Fraction(y) * Fraction(2) ** (exponent - p - exponent_x)]
        return _code_of(scaled[0], format), _code_of(scaled[1], format)

    odd = st.integers(1, (1 << (p - 1)) - 1).map(lambda k: 2 * k + 1)
    exponents = st.sampled_from(_fields(format)).map(lambda field: field - format.bias)
    return _made(pair, odd, st.integers(0, (1 << p) - 1), exponents.map(lambda e: e // 2), exponents)
