"""The matrix units of AMD's CDNA 1 to 3, as published: no results of real chips are public.

Each path takes the exact factors of one block and the exact c, and returns the exact number that is rounded to FP32.
NaN and infinities follow IEEE 754 throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor

from numsim.arithmetic import add, mul
from numsim.formats import FP32, Format
from numsim.rounding import Policy, round_rational
from numsim.tensorcore.models import TYPES, Model
from numsim.values import Rational, as_fraction, to_rational

Numbers = Sequence[Rational]
PLUS_ZERO = Rational(0, 0, 1)


def exact(a: Numbers, b: Numbers, c: Rational, model: Model) -> Rational:
    """CDNA1: c and all products of a block, exactly."""
    for x, y in zip(a, b, strict=True):
        c = add(c, mul(x, y))
    return c


def pairwise(a: Numbers, b: Numbers, c: Rational, model: Model) -> Rational:
    """CDNA2: every product and every sum is rounded to FP32; neighbours are added, then c.

    Subnormal operands and -0, c of the instruction too, count as +0, as mmasim reads it; a subnormal FP32 result
    becomes a zero of its sign.
    """
    return levels(a, b, c, model)[-1][0]


def levels(a: Numbers, b: Numbers, c: Rational, model: Model) -> list[list[Rational]]:
    """All that ``pairwise`` rounds: the products, the sums of neighbours, their sums, and last the sum with c."""
    xs, ys = ([flushed(x, TYPES[t]) for x in numbers] for numbers, t in ((a, model.a), (b, model.b)))
    found = [[_rounded(mul(x, y)) for x, y in zip(xs, ys, strict=True)]]
    while len(found[-1]) > 1:
        found.append([_rounded(add(x, y)) for x, y in zip(found[-1][::2], found[-1][1::2], strict=True)])
    return [*found, [_rounded(add(flushed(c, FP32) if c.numerator else c, found[-1][0]))]]


def flushed(x: Rational, format: Format) -> Rational:
    return PLUS_ZERO if x.denominator and as_fraction(_size(x)) < format.least_normal else x


def _size(x: Rational) -> Rational:
    return x._replace(sign=0)


def _rounded(x: Rational) -> Rational:
    return to_rational(round_rational(x, FP32, Policy(subnormals="flush-results")), FP32)


def cdna3(a: Numbers, b: Numbers, c: Rational, model: Model) -> Rational:
    """CDNA3: the products are cut and added as on NVIDIA's chips, but without c; then the sum and c meet.

    The sum is aligned with c by rounding down to 32 bits, c to 24, the result to 31: sums drift towards minus infinity.
    FP8 adds the products with even and with odd index apart, and drops a c that is far below.
    """
    products = [mul(x, y) for x, y in zip(a, b, strict=True)]
    exponents = [_exponent(x, TYPES[model.a]) + _exponent(y, TYPES[model.b]) for x, y in zip(a, b, strict=True)]
    # 1 a product of 2^128 and more is infinite; NaN and infinities as in IEEE 754
    products = [p if not p.denominator or as_fraction(_size(p)) < 2**128 else Rational(p.sign, 1, 0) for p in products]
    if any(not x.denominator for x in (*products, c)):
        for p in products:
            c = add(c, p)
        return c
    # 2 the products without c: multiples of 2^(top - 24), towards zero
    bits = model.unit.fraction_bits
    apart = 2 if model.unit.path == "cdna3-fp8" else 1
    tops, sums = [], []
    for i in range(apart):
        some = zip(products[i::apart], exponents[i::apart], strict=True)
        mine = [(as_fraction(p), e) for p, e in some if p.numerator]
        tops.append(max((e for _, e in mine), default=_NOWHERE))
        sums.append(sum((_cut(p, tops[i] - bits) for p, _ in mine), Fraction(0)))
    top = max(tops)
    total = sum((_down(s, top - bits) for s in sums), Fraction(0)) if apart > 1 else sums[0]
    # 3 the sum and c: a zero c counts with the least exponent
    c_exponent = _exponent(c, FP32)
    common = max(top, c_exponent)
    total = _down(total, common - 32)
    if apart == 1 or c_exponent >= common - bits - 1:
        total += _down(as_fraction(c), common - bits)
    # 4 31 fraction bits, down; the caller rounds to FP32
    total = _down(total, max(_leading(total), FP32.emin) - 31)
    return Rational(int(total < 0), abs(total.numerator), total.denominator)


_NOWHERE = -999  # the exponent of a sum without terms


def _exponent(x: Rational, format: Format) -> int:
    """The exponent of an operand; of subnormals and zero the format's least."""
    return max(_leading(as_fraction(x)), format.emin) if x.denominator else 0


def _leading(x: Fraction) -> int:
    """floor(log2 |x|); far below everything for 0."""
    if not x:
        return _NOWHERE
    n, d = abs(x.numerator), x.denominator
    e = n.bit_length() - d.bit_length()
    return e if n << max(-e, 0) >= d << max(e, 0) else e - 1


def _down(x: Fraction, unit: int) -> Fraction:
    return floor(x / Fraction(2) ** unit) * Fraction(2) ** unit


def _cut(x: Fraction, unit: int) -> Fraction:
    return _down(x, unit) if x > 0 else -_down(-x, unit)


PATHS: dict[str, Callable[[Numbers, Numbers, Rational, Model], Rational]] = {
    "exact": exact, "pairwise": pairwise, "cdna3": cdna3, "cdna3-fp8": cdna3,
}  # fmt: skip
