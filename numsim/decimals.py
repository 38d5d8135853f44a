"""Decimal strings of numbers: the shortest that rounds back, and the exact one. In integers throughout.

Reading is ``encode``: a string of any length is an exact fraction and rounds once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numsim.array import Array
from numsim.errors import InputError, short
from numsim.formats import Format
from numsim.rounding import ROUNDINGS, Policy, Rounding
from numsim.values import NAN, to_rational


def to_decimal(x: Any, *, exact: bool = False, rounding: Rounding = "nearest-even") -> Any:
    """The shortest decimal string that rounds back to each number, the nearest to it of those; or its exact value.

    Rules
    -----
    NaN, Inf, -0 : "nan", "inf", "-inf", "-0.0".
    subnormals : as other numbers; they need fewer digits.
    overflow : the largest number ends where the grid, continued, would round to the next one.
    layout : as Python's ``repr`` of a float: "0.001", "123.0", "1e-05", "1e+16".

    Parameters
    ----------
    x : an Array of any shape.
    exact : all digits of the exact value, however many.
    rounding : how the string will be rounded when it is read: ``encode(text, format, rounding=rounding)`` gives the
        code back. With "odd" and the directed modes a string on the right side of the number is found. Not
        "stochastic".

    Returns a ``str`` for a single number, else an array of strings of that shape.
    Raises ``InputError`` for what is no Array and for an unknown mode.
    Cost: 5 to 50 microseconds for each different number.
    Source: Steele and White, How to Print Floating-Point Numbers Accurately, PLDI 1990 (what "shortest" means).

    >>> from numsim import array
    >>> to_decimal(array([0.1, 65504.0, 6e-8], "fp16")).tolist()
    ['0.1', '65500.0', '6e-08']
    >>> to_decimal(array(0.1, "fp16"), exact=True), to_decimal(array(0.1, "fp16"), rounding="up")
    ('0.0999755859375', '0.09997')
    """
    if not isinstance(x, Array):
        raise InputError(
            f"to_decimal takes an Array, not {short(x)}. Example: numsim.to_decimal(numsim.array(0.1, 'fp16'))"
        )
    if not isinstance(exact, (bool, np.bool_)):
        raise InputError(f"exact={short(exact)}: allowed are True and False.")
    Policy(rounding)
    if rounding == "stochastic":
        raise InputError(
            f"rounding='stochastic': no string surely rounds back. Allowed are {', '.join(ROUNDINGS[:-1])}."
        )
    different, where = np.unique(x.codes, return_inverse=True)
    texts = [_text(code, x.format, exact, rounding) for code in different.tolist()]
    return np.array(texts or [""])[where.reshape(x.shape)] if x.ndim else texts[0]


def _text(code: int, format: Format, exact: bool, rounding: str) -> str:
    x = to_rational(code, format)
    sign = "-" * x.sign
    if x.denominator == 0:
        return "nan" if x == NAN else f"{sign}inf"
    if x.numerator == 0:
        return f"{sign}0.0"
    rank = format.rank(code & ((1 << format.magnitude_bits) - 1))
    alone = rounding == "odd" and _is_even(rank, format) and rank > format.rank(0)  # nothing else rounds to it
    if exact or alone:  # n / 2^s = n 5^s / 10^s
        s = x.denominator.bit_length() - 1
        return sign + _layout(_digits(x.numerator * 5**s), -s)
    digits, last = shortest(rank, bool(x.sign), format, rounding)
    return sign + _layout(_digits(digits), last)


def shortest(rank: int, negative: bool, format: Format, rounding: str = "nearest-even") -> tuple[int, int]:
    """The integer n and the exponent e of the shortest n * 10^e that rounds to the magnitude at a rank.

    >>> from numsim.formats import E4M3
    >>> shortest(E4M3.max_rank, False, E4M3)  # 448: 432 to 464 would do
    (45, 1)
    """
    # 1. What rounds to the number, in halves of the unit of it and its neighbours: from ``low`` to ``high``.
    below = 0 if rank == format.rank(0) or rank - 1 < _least(format) else rank - 1
    ratios = [format.ratio(r) for r in (below, rank, rank + 1)]
    unit = max(d for _, d in ratios)
    under, x, over = (2 * n * (unit // d) for n, d in ratios)
    unit *= 2
    low, high, low_counts, high_counts = _interval(rank, negative, format, rounding, under, x, over)
    if rank == format.rank(0):  # E8M0 has no zero: its least number stands for all that is below
        low, low_counts = 0, False
    # 2. From one digit on: the two decimals around it. The first that lie in the interval are the shortest.
    e = _floor_log10(x, unit)
    up, down = 10 ** max(-e, 0), 10 ** max(e, 0)
    x, low, high, unit = x * up, low * up, high * up, unit * down
    while True:
        n, rest = divmod(x, unit)
        found = [
            c for c in (n, n + 1)
            if (low < c * unit < high) or (low_counts and c * unit == low) or (high_counts and c * unit == high)
        ]  # fmt: skip
        if found:
            # 3. The nearer one of two; the even one of two as near.
            further = 2 * rest > unit or (2 * rest == unit and n % 2 == 1)
            return (found[-1] if further else found[0]), e
        x, low, high, e = x * 10, low * 10, high * 10, e - 1


def _is_even(rank: int, format: Format) -> bool:
    """Whether the code is."""
    return (rank - format.rank(0)) % 2 == 0


def _least(format: Format) -> int:
    """The rank of the least number above zero."""
    return 1 << format.fraction_bits if format.gap else 1


def _interval(
    rank: int, negative: bool, format: Format, rounding: str, under: int, x: int, over: int
) -> tuple[int, int, bool, bool]:
    """The ends of what rounds to x > 0, which lies between two neighbours, and whether each end does, too."""
    even = _is_even(rank, format)
    low, high = (under + x) // 2, (x + over) // 2
    if rounding == "nearest-even":  # (half of the least number, which may go to zero, is no decimal that is tried)
        return low, high, even, even
    if rounding == "nearest-away":
        return low, high, True, False
    if rounding == "odd":
        return (x, x, True, True) if even else (under, over, False, False)
    if rounding == ("down" if negative else "up"):
        return under, x, False, True
    return x, over, True, False


def _floor_log10(n: int, d: int) -> int:
    e = (n.bit_length() - d.bit_length()) * 30103 // 100000 - 1  # log10(2); at most as large as it should be
    while n * 10 ** max(-e - 1, 0) >= d * 10 ** max(e + 1, 0):
        e += 1
    return e


def _digits(n: int) -> str:
    """``str`` for integers of any length (Python's own stops at 4300 digits)."""
    if n.bit_length() < 10_000:
        return str(n)
    half = n.bit_length() * 30103 // 200000
    high, low = divmod(n, 10**half)
    return _digits(high) + _digits(low).rjust(half, "0")


def _layout(digits: str, last: int) -> str:
    """digits * 10^last as ``repr`` writes floats."""
    point = len(digits) + last
    digits = digits.rstrip("0")
    if not -4 < point <= 16:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{digits[0]}{fraction}e{point - 1:+03d}"
    if point <= 0:
        return "0." + "0" * -point + digits
    return f"{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
