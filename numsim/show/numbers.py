"""Exact numbers as text. A shortened number ends in "..." and is cut, never rounded; all text is ASCII.

Errors (in ulp and per cent) are rounded to two or three digits.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from numsim.codes import neighbours
from numsim.formats import Format
from numsim.values import NAN, as_fraction, to_rational

if TYPE_CHECKING:
    pass


def digits(n: int) -> str:
    """An integer in decimal, however long (``str`` refuses beyond 4300 digits)."""
    return format(Decimal(n), "f")


def exact_decimal(x: Fraction) -> str | None:
    """All decimal digits of a fraction; None where they never end.

    >>> exact_decimal(Fraction(205, 2048)), exact_decimal(Fraction(1, 3))
    ('0.10009765625', None)
    """
    twos = (x.denominator & -x.denominator).bit_length() - 1
    rest = x.denominator >> twos
    fives = round((rest.bit_length() - 1) / math.log2(5))  # the only candidates: 5^k has about 2.32 k bits
    fives = next((k for k in (fives, fives + 1) if 5**k == rest), -1)
    if fives < 0:
        return None
    places = max(twos, fives)
    text = digits(abs(x.numerator) * (10**places // x.denominator)).rjust(places + 1, "0")
    return ("-" if x < 0 else "") + (f"{text[:-places]}.{text[-places:]}" if places else text)


def _leading(x: Fraction, count: int) -> tuple[int, int, bool]:
    """The first ``count`` decimal digits of x > 0, cut; the power of ten of the first; whether that is all of x."""
    # log10 from the bit lengths, at most one off; then exact
    power = int((x.numerator.bit_length() - x.denominator.bit_length()) * 0.30102999566398120) - 1
    while Fraction(10) ** (power + 1) <= x:
        power += 1
    while Fraction(10) ** power > x:
        power -= 1
    scaled = x * Fraction(10) ** (count - 1 - power)
    return scaled.numerator // scaled.denominator, power, scaled.denominator == 1


def _place_point(text: str, power: int, mark: str = "") -> str:
    """Digits whose first has the weight 10^power, in plain or scientific notation."""
    if -5 <= power < 0:
        return f"0.{'0' * (-power - 1)}{text}{mark}"
    if 0 <= power < len(text):
        return f"{text[: power + 1]}.{text[power + 1 :]}{mark}" if power + 1 < len(text) else text + mark
    if 0 <= power < 16 and not mark:
        return text.ljust(power + 1, "0")
    return f"{text[0]}{'.' * (len(text) > 1)}{text[1:]}{mark}e{power}"


def short(x: Fraction, count: int = 17, *, powers: tuple[int, int] | None = (-10, 20)) -> str:
    """A number in few characters: exact, or its first ``count`` digits and "...".

    powers : a power of two outside of this range of exponents is shown as 2^k; None: never.

    >>> short(Fraction(205, 2048)), short(Fraction(1, 3)), short(Fraction(1, 2**24)), short(Fraction(-65504))
    ('0.10009765625', '0.33333333333333333...', '2^-24', '-65504')
    """
    if x == 0:
        return "0"
    sign, x = "-" if x < 0 else "", abs(x)
    if powers and (k := power_of_two(x)) is not None and not powers[0] <= k <= powers[1]:
        return f"{sign}2^{k}"
    leading, power, complete = _leading(x, count)
    if not complete and 15 <= count < 21:  # a few digits more are better than a mark
        more, _, complete = _leading(x, 21)
        leading = more if complete else leading
    text = digits(leading)
    return sign + (_place_point(text.rstrip("0"), power) if complete else _place_point(text, power, "..."))


def power_of_two(x: Fraction) -> int | None:
    """k where x = 2^k."""
    n, d = x.numerator, x.denominator
    return n.bit_length() - d.bit_length() if n > 0 and n & (n - 1) == 0 and d & (d - 1) == 0 else None


def fraction_text(x: Fraction) -> str:
    """All of a fraction: "205/2048"."""
    return digits(x.numerator) + (f"/{digits(x.denominator)}" if x.denominator != 1 else "")


def short_fraction(x: Fraction) -> str:
    """A dyadic fraction as n/d, n/2^k or n * 2^k, whichever is short."""
    d = x.denominator
    if d.bit_length() <= 21:
        twos = (x.numerator & -x.numerator).bit_length() - 1
        return f"{digits(x.numerator >> twos)} * 2^{twos}" if d == 1 and twos > 40 else fraction_text(x)
    return f"{digits(x.numerator)}/2^{d.bit_length() - 1}"


def signed(x: Fraction) -> str:
    """An error with its sign, rounded to two digits (three from 1 on).

    >>> [signed(Fraction(n, 10**6)) for n in (200000, -24414, 1562500, 0)]
    ['+0.20', '-0.024', '+1.56', '0']
    """
    if x == 0:
        return "0"
    count = 3 if abs(x) >= 1 else 2
    more, power, complete = _leading(abs(x), count + 1)
    rounded = (more + 5) // 10 if more % 10 != 5 or not complete else (more // 10) + (more // 10) % 2
    if rounded == 10**count:
        rounded, power = rounded // 10, power + 1
    text = digits(rounded)
    if -8 < power < 0:
        shown = f"0.{'0' * (-power - 1)}{text}"
    else:
        shown = _place_point(text, power) if 0 <= power < 6 else f"{text[0]}.{text[1:]}e{power}"
    return ("-" if x < 0 else "+") + shown


def digits_for(format: Format) -> int:
    """How many digits tell the numbers of a format apart, with a few to spare."""
    return max(17, format.precision * 3 // 10 + 4)


def value_text(code: int, format: Format, count: int = 0) -> str:
    """The value of a code in few characters."""
    x = to_rational(code, format)
    if x == NAN:
        return "NaN"
    if not x.denominator or not x.numerator:
        return ("-" if x.sign else "") + ("0" if x.denominator else "infinity")
    return short(as_fraction(x), count or digits_for(format))


def hex_code(code: int, format: Format) -> str:
    return f"{code:#0{2 + -(-format.bits // 4)}x}"


def bit_fields(code: int, format: Format) -> list[tuple[str, str]]:
    """The code as ("sign" | "exponent" | "fraction", bits); fields of no width are left out."""
    bits = f"{code:0{format.bits}b}"
    e = format.signed + format.exponent_bits
    fields = [("sign", bits[: format.signed]), ("exponent", bits[format.signed : e]), ("fraction", bits[e:])]
    return [f for f in fields if f[1]]


def both_neighbours(code: int, format: Format) -> tuple[int | None, int | None]:
    """``neighbours``, and none for NaN."""
    return (None, None) if to_rational(code, format) == NAN else neighbours(code, format)
