"""The rest of IEEE 754-2019 for Arrays: remainder, extremes, scaling, exponents, integers, neighbours, signs, order.

What rounds takes the options of ``numsim.add`` and goes through ``arithmetic.py``. Comparing, choosing and the sign bit
are exact, on codes.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from numsim import ordering
from numsim.arithmetic import convert
from numsim.array import Array
from numsim.codes import Codes, classify
from numsim.decimals import to_decimal
from numsim.errors import InputError, RangeError, check_choice, short
from numsim.formats import FP64, Format
from numsim.operands import broadcast, one, operands, round_once
from numsim.rounding import Overflow, Policy, Rounding, Subnormals, draw_for, encode
from numsim.values import as_values, to_rational


# --- what may round ---------------------------------------------------------------------------------------------------
def remainder(x: Any, y: Any, **options: Any) -> Array:
    """x - n y for the integer n nearest to x / y (the even one of two): exact, unlike x - y * round(x / y).

    Rules: NaN for an infinite x and for y = 0; x itself for an infinite y; a zero has the sign of x. Nothing is rounded
    unless ``format`` is narrower; options as for ``add``. (C's ``fmod`` and Python's ``%`` take another n.)
    Source: IEEE 754-2019, 5.3.1.

    >>> from numsim import array
    >>> remainder(array([5.0, 7.0, -6.0], "fp16"), 4)
    numsim.array([1.0, -1.0, 2.0], 'fp16')
    """
    return round_once("remainder", (x, y), **options)


def minimum(x: Any, y: Any, **options: Any) -> Array:
    """The smaller of two numbers; of NaN and anything NaN.

    Rules: -0 is below +0; NaN results are the canonical NaN. Nothing is rounded unless ``format`` is narrower; options
    as for ``add``. Its kin: ``maximum``; ``minimum_number`` and ``maximum_number`` take a number rather than NaN;
    ``minimum_magnitude``, ``maximum_magnitude``, ``minimum_magnitude_number`` and ``maximum_magnitude_number`` go by
    size first, by value where sizes are equal.
    Source: IEEE 754-2019, 9.6 (the minNum of 2008, which was not associative, is gone).

    >>> from numsim import array
    >>> x, y = array([1.0, -0.0, np.nan], "bf16"), array([2.0, 0.0, 5.0], "bf16")
    >>> minimum(x, y), minimum_number(x, y)
    (numsim.array([1.0, -0.0, nan], 'bf16'), numsim.array([1.0, -0.0, 5.0], 'bf16'))
    """
    return round_once("minimum", (x, y), **options)


def maximum(x: Any, y: Any, **options: Any) -> Array:
    """The larger of two numbers; rules and options as for ``minimum``."""
    return round_once("maximum", (x, y), **options)


def minimum_number(x: Any, y: Any, **options: Any) -> Array:
    """The smaller of two numbers, or the only number; rules and options as for ``minimum``."""
    return round_once("minimum_number", (x, y), **options)


def maximum_number(x: Any, y: Any, **options: Any) -> Array:
    """The larger of two numbers, or the only number; rules and options as for ``minimum``."""
    return round_once("maximum_number", (x, y), **options)


def minimum_magnitude(x: Any, y: Any, **options: Any) -> Array:
    """The one nearer to zero; rules and options as for ``minimum``."""
    return round_once("minimum_magnitude", (x, y), **options)


def maximum_magnitude(x: Any, y: Any, **options: Any) -> Array:
    """The one further from zero; rules and options as for ``minimum``."""
    return round_once("maximum_magnitude", (x, y), **options)


def minimum_magnitude_number(x: Any, y: Any, **options: Any) -> Array:
    """The one nearer to zero, or the only number; rules and options as for ``minimum``."""
    return round_once("minimum_magnitude_number", (x, y), **options)


def maximum_magnitude_number(x: Any, y: Any, **options: Any) -> Array:
    """The one further from zero, or the only number; rules and options as for ``minimum``."""
    return round_once("maximum_magnitude_number", (x, y), **options)


# Exponents as numbers of a format: integers of up to 21 bits, none of them subnormal.
_EXPONENTS = Format("exponents", 5, 20, 1, specials="finite")


def scale_b(x: Any, n: Any, **options: Any) -> Array:
    """x * 2^n, rounded once: where nothing overflows or becomes subnormal, exact.

    Rules: NaN, infinities and zeros stay; options as for ``add``.
    Parameters: ``n``, integers of any size: a number, or a list or an array that broadcasts with x.
    Raises ``InputError`` for an n that is no integer. Source: IEEE 754-2019, 5.3.3.

    >>> from numsim import array
    >>> scale_b(array([1.0, 1.25, -0.0], "e4m3"), [8, -9, 5])
    numsim.array([256.0, 0.001953125, -0.0], 'e4m3fn')
    """
    x, powers = one("scale_b", x), as_values(n)
    if powers.floats is not None:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            whole = bool(np.all(np.isfinite(powers.floats) & (np.rint(powers.floats) == powers.floats)))
    else:
        whole = all(k.denominator == 1 for k in powers)
    if not whole:
        raise InputError(f"scale_b: n={short(n)}: integers are needed. Example: numsim.scale_b(x, -3)")
    codes = encode(n, _EXPONENTS, overflow="saturate")  # beyond every format's range, from wherever x starts
    return round_once("scale_b", (x, Array(np.asarray(codes), _EXPONENTS)), **{"format": x.format, **options})


def log_b(x: Any, **options: Any) -> Array:
    """The exponent e of each number +-f * 2^e with 1 <= f < 2, as a number.

    Rules: NaN stays; infinities give infinity, zeros -infinity; of subnormal numbers it is the exponent that they would
    have with room for it. Rounded where the format lacks such an integer; options as for ``add``.
    Source: IEEE 754-2019, 5.3.3.

    >>> from numsim import array
    >>> log_b(array([1.0, -0.3, 6e-8, 0.0], "fp16"))
    numsim.array([0.0, -2.0, -24.0, -inf], 'fp16')
    """
    return round_once("log_b", (x,), **options)


# --- integers ---------------------------------------------------------------------------------------------------------
# The integers as formats: codes are the integers themselves, below 2^53 for what float64 holds, else below 2^63.
_INTEGERS = {bits: Format(f"integers{bits}", 1, bits, 1 - bits, specials="finite") for bits in (52, 62)}


def _integers(
    name: str, x: Any, policy: Policy, seed: Any, random_bits: Any, sr_bits: int | None
) -> tuple[Array, Format, Codes, npt.NDArray[np.bool_]]:
    """x, integers in its place, and where it is itself: an integer of 2^52 (or 2^62) and more, infinite or NaN."""
    x = one(name, x)
    draw = draw_for(policy, x.size, x.shape, seed, random_bits, sr_bits)
    source, codes, word = x.format, x.codes, x.codes.dtype.type
    grid = _INTEGERS[52 if source.fits(FP64) else 62]
    if policy.subnormals in ("flush-inputs", "flush"):
        codes = np.where(classify(codes, source) == "subnormal", codes & word(source.sign_mask), codes)
    integers = convert(codes, source, grid, Policy(policy.rounding, "saturate", nan="zero"), draw)
    whole = 1 << grid.fraction_bits
    first = int(encode(whole, source, rounding="up")) if source.max >= whole else source.max_code + 1
    itself = (codes & word((1 << source.magnitude_bits) - 1)) >= first
    return x, grid, integers, itself | ordering.is_nan(codes, source)


def round_to_integral(
    x: Any,
    *,
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
) -> Array:
    """Each number rounded to an integer, in its own format.

    Rules: NaN and infinities stay; zeros, and what becomes zero, keep their sign; from 2^(fraction bits) on all numbers
    are integers. Where the format's largest number is below that integer, ``overflow`` decides.
    Parameters: ``rounding``, any mode: "toward-zero" is trunc, "down" floor, "up" ceil, "odd" takes the odd one of two;
    the rest as for ``encode``. Source: IEEE 754-2019, 5.9.

    >>> from numsim import array
    >>> x = array([-2.5, -0.25, 0.5, 1.5, 1000.0], "fp16")
    >>> round_to_integral(x), round_to_integral(x, rounding="up")
    (numsim.array([-2.0, -0.0, 0.0, 2.0, 1000.0], 'fp16'), numsim.array([-2.0, -0.0, 1.0, 2.0, 1000.0], 'fp16'))
    """
    policy = Policy(rounding, overflow, subnormals)
    x, grid, integers, itself = _integers("round_to_integral", x, policy, seed, random_bits, sr_bits)
    after = Policy("nearest-even" if rounding == "stochastic" else rounding, overflow)
    codes = convert(integers, grid, x.format, after)
    return Array(np.where(itself, x.codes, codes), x.format, f"rounded to integers, {policy}")


def to_int(
    x: Any,
    dtype: npt.DTypeLike = np.int64,
    *,
    rounding: Rounding = "nearest-even",
    out_of_range: Literal["raise", "saturate"] = "raise",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
) -> Any:
    """Each number rounded to an integer of NumPy's: int8 to int64, uint8 to uint64.

    Rules: what is outside the dtype after rounding, NaN and infinities are refused, or with "saturate" become the
    nearest integer there is, NaN 0 (as in Rust and WebAssembly). Zeros of both signs give 0.
    Parameters: ``rounding`` as for ``encode`` ("toward-zero" is what C and Python's ``int`` do).
    Returns an array of that dtype, in the shape of x. Raises ``RangeError`` as told; ``InputError`` for other dtypes.
    Source: IEEE 754-2019, 5.8. From integers: ``numsim.array``, which rounds integers of any size once.

    >>> from numsim import array
    >>> x = array([2.5, -1.75, 448.0], "e4m3")
    >>> to_int(x), to_int(x, "int8", rounding="toward-zero", out_of_range="saturate")
    (array([  2,  -2, 448]), array([  2,  -1, 127], dtype=int8))
    """
    check_choice("out_of_range", out_of_range, ("raise", "saturate"))
    try:
        target = np.dtype(dtype)
    except Exception:  # TypeError, ValueError, SyntaxError, UnicodeEncodeError, ...
        target = np.dtype(bool)
    if target.kind not in "iu":
        raise InputError(f"to_int: dtype={short(dtype)} is no integer dtype. Example: numsim.to_int(x, 'int32')")
    low, high = int(np.iinfo(target).min), int(np.iinfo(target).max)
    x, grid, integers, itself = _integers("to_int", x, Policy(rounding), seed, random_bits, sr_bits)
    magnitude = (integers & np.uint64(grid.sign_mask - 1)).astype(np.int64)
    small = np.where(itself, 0, np.where(integers >= np.uint64(grid.sign_mask), -magnitude, magnitude))
    least, most = max(low, -(1 << 63)), min(high, (1 << 63) - 1)
    out = np.asarray(np.clip(small, least, most)).astype(target)
    refused = (small < least) | (small > most) if out_of_range == "raise" else np.zeros(small.shape, bool)
    for at in map(tuple, np.argwhere(itself | refused).tolist()):
        sign, n, d = to_rational(int(x.codes[at]), x.format)
        size = n // d if d else n << 64  # an infinity is beyond all dtypes; NaN counts 0
        number = (-size if sign else size) if itself[at] else int(small[at])
        if out_of_range == "raise" and (d == 0 or not low <= number <= high):
            raise RangeError(
                f"to_int: {to_decimal(x[at])} (code {int(x.codes[at]):#x}) is no {target} ({low} to {high}). "
                "Example: numsim.to_int(x, 'int64'), or out_of_range='saturate'"
            )
        out[at] = min(max(number, low), high)
    return out[()]


# --- neighbours and signs ---------------------------------------------------------------------------------------------
def next_up(x: Any) -> Array:
    """The least number above each number.

    Rules: NaN gives the canonical NaN; both zeros give the least number above zero, and that number's negative gives -0
    (+0 where there is no -0); from -inf comes the lowest finite number; the top, +inf or the largest number of a format
    without it, stays. Source: IEEE 754-2019, 5.3.1. Cost: a few passes over the codes.

    >>> from numsim import array
    >>> next_up(array([1.0, 0.0, 448.0], "e4m3")), next_down(array([1.0, 0.0, 448.0], "e4m3"))
    (numsim.array([1.125, 0.001953125, 448.0], 'e4m3fn'), numsim.array([0.9375, -0.001953125, 416.0], 'e4m3fn'))
    """
    return _next("next_up", x, up=True)


def next_down(x: Any) -> Array:
    """The greatest number below each number; rules as for ``next_up``, which it mirrors: -next_up(-x)."""
    return _next("next_down", x, up=False)


def _next(name: str, x: Any, up: bool) -> Array:
    x = one(name, x)
    format, word = x.format, x.codes.dtype.type
    negative, magnitude = ordering.is_negative(x.codes, format), x.codes & word((1 << format.magnitude_bits) - 1)
    least = word(1 << format.fraction_bits if format.gap else 1)
    zero = (magnitude < least) & format.zero
    negative = np.where(zero, format.signed and not up, negative)
    first = least if least <= format.top_code else word(0)  # where zero is the only number
    outwards = np.where(zero, first, magnitude + (magnitude < word(format.top_code)).astype(magnitude.dtype))
    inwards = np.where(magnitude <= least, 0, magnitude - (magnitude > 0).astype(magnitude.dtype))
    moved = np.where(negative != up, outwards, np.where(zero, magnitude, inwards)).astype(magnitude.dtype)
    codes = _signed(moved, negative, format)
    if format.nan_code is not None:
        codes = np.where(ordering.is_nan(x.codes, format), word(format.nan_code), codes)
    return Array(codes, format, name)


def abs(x: Any) -> Array:
    """|x|: the sign bit cleared, nothing rounded; NaN stays as it is.

    >>> from numsim import array
    >>> abs(array([-2.0, -0.0], "fp16"))
    numsim.array([2.0, 0.0], 'fp16')
    """
    x = one("abs", x)
    positive = x.codes & x.codes.dtype.type((1 << x.format.magnitude_bits) - 1)
    return Array(np.where(ordering.is_nan(x.codes, x.format), x.codes, positive), x.format, "abs")


def copysign(x: Any, y: Any) -> Array:
    """The magnitude of x with the sign of y, nothing rounded.

    Rules: NaN in x stays as it is; NaN in y counts by its sign bit (the one NaN of the fnuz formats has none); -0
    becomes +0 where it does not exist. Formats may differ: the result has that of x.
    Raises ``InputError`` for an unsigned x. Source: IEEE 754-2019, 5.5.1.

    >>> from numsim import array
    >>> copysign(array([1.0, -2.0], "fp16"), array([-0.0, 5.0], "bf16"))
    numsim.array([-1.0, 2.0], 'fp16')
    """
    x, y = operands("copysign", (x, y), mixed=True)
    if not x.format.signed:
        raise InputError(f"copysign: {x.format} is unsigned: it has no negative numbers. "
                         "Example: numsim.copysign(x.astype('fp32'), y)")  # fmt: skip
    codes, others = broadcast("copysign", x, y)
    magnitude = codes & codes.dtype.type(x.format.sign_mask - 1)
    signed = _signed(magnitude, ordering.is_negative(others, y.format), x.format)
    return Array(np.where(ordering.is_nan(codes, x.format), codes, signed), x.format, "copysign")


def _signed(magnitude: Codes, negative: Any, format: Format) -> Codes:
    if format.specials == "fnuz":
        negative = negative & (magnitude != 0)
    word = magnitude.dtype.type
    return np.asarray(magnitude | np.where(negative, word(format.sign_mask), word(0)))


# --- order ------------------------------------------------------------------------------------------------------------
def equal(x: Any, y: Any) -> Any:
    """Whether x = y, exactly and quietly, as an array of bool.

    Rules: NaN is unequal to everything, itself too; -0 equals +0. Formats may differ, and plain numbers are taken as
    they are, not rounded: 0.1 equals no FP16 number. Its kin: ``not_equal``, ``less``, ``less_equal``, ``greater``,
    ``greater_equal``, ``unordered``; all but ``not_equal`` and ``unordered`` are False for NaN.
    Source: IEEE 754-2019, 5.11.

    >>> from numsim import array
    >>> x = array([0.1, 0.5, np.nan], "fp16")
    >>> equal(x, 0.5), less(x, array(0.1, "bf16")), unordered(x, 0)
    (array([False,  True, False]), array([ True, False, False]), array([False, False,  True]))
    """
    return _compare("equal", x, y)


def not_equal(x: Any, y: Any) -> Any:
    """Whether x and y differ, or one of them is NaN; rules as for ``equal``."""
    return _compare("not_equal", x, y)


def less(x: Any, y: Any) -> Any:
    """Whether x < y; rules as for ``equal``."""
    return _compare("less", x, y)


def less_equal(x: Any, y: Any) -> Any:
    """Whether x <= y; rules as for ``equal``."""
    return _compare("less_equal", x, y)


def greater(x: Any, y: Any) -> Any:
    """Whether x > y; rules as for ``equal``."""
    return _compare("greater", x, y)


def greater_equal(x: Any, y: Any) -> Any:
    """Whether x >= y; rules as for ``equal``."""
    return _compare("greater_equal", x, y)


def unordered(x: Any, y: Any) -> Any:
    """Whether x or y is NaN; rules as for ``equal``."""
    return ~(_compare("less_equal", x, y) | _compare("greater", x, y))


def _compare(name: str, x: Any, y: Any) -> Any:
    if not isinstance(x, Array) and not isinstance(y, Array):
        one(name, x)  # refuses
    x, y = ((z.codes, z.format) if isinstance(z, Array) else as_values(z) for z in (x, y))
    return ordering.compare(name, x, y)[()]


def total_order(x: Any, y: Any) -> Any:
    """Whether x comes before y, or is y, in an order of all codes: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN.

    Rules: NaNs are in the order of their sign and payload, signalling before quiet where both are positive; the one NaN
    of the fnuz formats is the last. Both in one format; a plain number is rounded to it.
    Returns an array of bool. Source: IEEE 754-2019, 5.10.

    >>> from numsim import from_codes
    >>> x = from_codes([0xFE, 0xFC, 0x80, 0x00, 0x7C, 0x7E], "e5m2")  # -NaN -inf -0 +0 inf NaN
    >>> total_order(x[:-1], x[1:]).all(), total_order(x[1:], x[:-1]).any()
    (np.True_, np.False_)
    """
    x, y = operands("total_order", (x, y), mixed=False)
    keys = []
    for codes in broadcast("total_order", x, y):
        key = ordering.keys(codes, x.format)
        last = ordering.is_nan(codes, x.format) & (x.format.specials == "fnuz")
        keys.append(np.where(last, 1 << x.format.magnitude_bits, key))
    return np.asarray(keys[0] <= keys[1]).astype(bool)[()]
