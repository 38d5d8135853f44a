"""Elementary functions of one exact number, in integers: exp, exp2, log, log2, tanh, sigmoid, erf, rsqrt, sin, cos.

Each function below is a numbered list: the special cases of IEEE 754-2019, section 9.2.1 (C23, annex F.10, agrees),
then the arguments whose result is rational, then the rest. The rest is irrational, so that no fraction is the result;
but a rounding asks no more than between which two neighbours of a fine grid it lies. So the answer is a *stand-in*:
the first ``bits`` significant bits of the result, and half a unit for all that follows. It rounds like the result
itself, in every mode, to every format of fewer bits: ``bits`` is at least precision + 1, with r random bits precision
+ r, and never less than x has itself.

How the bits are found. A result is computed in fixed point, as a whole number of units of 2^-k, every step with a
stated error. If the bits of the number less its error and plus its error agree, they are right; if not, more units
will tell (A. Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded last bit", ACM TOMS 17,
1991). A result too close to a number of the grid for that, such as cos(2^-100), is known to lie just beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isqrt

from numsim.formats import Format
from numsim.values import NAN, Rational

Fixed = tuple[int, int]  # a, e: the number a * 2^(e - k)

ZERO, ONE = Rational(0, 0, 1), Rational(0, 1, 1)
FAR = 1 << 18  # numbers beyond 2^FAR, and below 2^-FAR, are alike to every format: exponents end at 2^17
_ERROR = 16  # units that a result in fixed point may be off: more than any function below needs


# --- the functions ----------------------------------------------------------------------------------------------------
def exp(x: Rational, bits: int = 128) -> Rational:
    """e^x.

    >>> from numsim.values import as_fraction
    >>> float(as_fraction(exp(Rational(0, 1, 1))))
    2.718281828459045
    """
    # 1. NaN.  2. e^inf = inf, e^-inf = 0.  3. e^0 = 1: the only rational result (Lindemann).
    if x == NAN:
        return NAN
    if x.denominator == 0:
        return ZERO if x.sign else x
    if x.numerator == 0:
        return ONE
    # 4. Beyond every format.  5. Just beside 1: |e^x - 1| < 2|x|.
    if x.numerator >= FAR * x.denominator:
        return _far(x.sign)
    if _is_below(x, bits + 1):
        return _beside(ONE, not x.sign, bits)
    # 6. m * 2^n with m in [1, 2).
    n, d = _signed(x), x.denominator
    return _decide(lambda k: _exp(n, d, k), bits)


def exp2(x: Rational, bits: int = 128) -> Rational:
    """2^x."""
    # 1. NaN.  2. 2^inf = inf, 2^-inf = 0.
    if x == NAN:
        return NAN
    if x.denominator == 0:
        return ZERO if x.sign else x
    # 3. Beyond every format.
    if x.numerator >= FAR * x.denominator:
        return _far(x.sign)
    # 4. Whole numbers: a power of two. All other roots of powers of two are irrational.
    n, d = _signed(x), x.denominator
    whole, rest = divmod(n, d)
    if rest == 0:
        return Rational(0, 1 << max(whole, 0), 1 << max(-whole, 0))
    # 5. Just beside 1.
    if _is_below(x, bits + 1):
        return _beside(ONE, not x.sign, bits)
    # 6. 2^whole * e^(rest/d * ln 2); off by 7 units at most.
    return _decide(lambda k: (_exp_small((rest * _ln2(k)) // d, k), whole), bits)


def log(x: Rational, bits: int = 128) -> Rational:
    """The natural logarithm."""
    # 1. NaN, and numbers below zero.  2. log of either zero = -inf.  3. log inf = inf.
    if x == NAN or (x.sign and x.numerator):
        return NAN
    if x.numerator == 0:
        return Rational(1, 1, 0)
    if x.denominator == 0:
        return x
    # 4. log 1 = +0: the only rational result.
    if x.numerator == x.denominator:
        return ZERO
    # 5. e ln 2 + log m; spare bits for e times the error of ln 2.
    e, p, q = _centred(x)
    spare = e.bit_length() + 2
    return _decide(lambda k: ((e * _ln2(k + spare) >> spare) + _log_near_1(p, q, k), 0), bits)


def log2(x: Rational, bits: int = 128) -> Rational:
    """The logarithm to base 2."""
    # 1. NaN, and numbers below zero.  2. log of either zero = -inf.  3. log inf = inf.
    if x == NAN or (x.sign and x.numerator):
        return NAN
    if x.numerator == 0:
        return Rational(1, 1, 0)
    if x.denominator == 0:
        return x
    # 4. Powers of two: whole numbers. All other logarithms of rational numbers are irrational.
    e, p, q = _centred(x)
    if p == q:
        return Rational(int(e < 0), abs(e), 1)
    # 5. e + log m / ln 2; off by 6 units at most.
    return _decide(lambda k: ((e << k) + (_log_near_1(p, q, k) << k) // _ln2(k), 0), bits)


def tanh(x: Rational, bits: int = 128) -> Rational:
    """The hyperbolic tangent, (1 - q) / (1 + q) with q = e^-2x."""
    # 1. NaN.  2. Infinity: 1 with its sign.  3. Both zeros are their own.
    if x == NAN:
        return NAN
    if x.denominator == 0:
        return Rational(x.sign, 1, 1)
    if x.numerator == 0:
        return x
    # 4. Just below x: x - x^3/3 + ...  5. Just below 1: 1 - tanh x < 2q.
    n, d = x.numerator, x.denominator
    if _is_below(x, bits // 2 + 1):
        return _beside(x, False, bits)
    if 2 * n >= (bits + 1) * d:
        return _beside(Rational(x.sign, 1, 1), False, bits)

    # 6. The rest, from |x|. q is off by 5 units at most, the quotient by twice that and one.
    def near(k: int) -> Fixed:
        m, e = _exp(-2 * n, d, k)
        one, q = 1 << k, m >> -e
        return ((one - q) << k) // (one + q), 0

    return _decide(near, bits, x.sign, d.bit_length() - n.bit_length())


def sigmoid(x: Rational, bits: int = 128) -> Rational:
    """The logistic function, 1 / (1 + e^-x). No standard names its special cases: they are its limits."""
    # 1. NaN.  2. 1 at inf, 0 at -inf.  3. 1/2 at both zeros.
    if x == NAN:
        return NAN
    if x.denominator == 0:
        return ZERO if x.sign else ONE
    if x.numerator == 0:
        return Rational(0, 1, 2)
    # 4. Beyond every format.  5. Just beside 1/2: 1/2 + x/4 - ...  6. Just below 1: 1 - sigmoid x < e^-x.
    n, d = _signed(x), x.denominator
    if n <= -FAR * d:
        return _far(1)
    if _is_below(x, bits + 1):
        return _beside(Rational(0, 1, 2), not x.sign, bits)
    if n >= bits * d:
        return _beside(ONE, False, bits)

    # 7. With e^-x = m * 2^e: 2^-e / (2^-e + m) for e >= 0, 1 / (1 + m * 2^e) for e < 0; off by 6 units at most.
    def near(k: int) -> Fixed:
        m, e = _exp(-n, d, k)
        one = 1 << k
        return (1 << 2 * k) // ((one >> e) + m if e >= 0 else one + (m >> -e)), -max(e, 0)

    return _decide(near, bits)


def erf(x: Rational, bits: int = 128) -> Rational:
    """The error function, 2 / sqrt(pi) times the integral of e^-t^2 from 0 to x."""
    # 1. NaN.  2. Infinity: 1 with its sign.  3. Both zeros are their own.
    if x == NAN:
        return NAN
    if x.denominator == 0:
        return Rational(x.sign, 1, 1)
    if x.numerator == 0:
        return x
    # 4. Just below 1: 1 - erf x < e^-x^2 < 2^-bits, as 3/4 > ln 2.
    n, d = x.numerator, x.denominator
    if 4 * n * n >= 3 * bits * d * d:
        return _beside(Rational(x.sign, 1, 1), False, bits)

    # 5. 2 / sqrt(pi) * (x - x^3 / (1! 3) + x^5 / (2! 5) - ...). The terms grow to e^(x^2) before they fall, and errors
    #    grow as they do, to some e^(x^2) for each of the terms: log2 e < 2.
    def near(k: int) -> Fixed:
        inner = k + 2 * (n * n // (d * d) + 1) + k.bit_length() + 16
        square = (n * n << inner) // (d * d)
        power = total = (n << inner) // d
        i = 0
        while power:
            i += 1
            power = (power * square >> inner) // i
            total += power // (2 * i + 1) * (-1) ** i
        return (total << inner + 1) // _sqrt_pi(inner) >> inner - k, 0

    return _decide(near, bits, x.sign, d.bit_length() - n.bit_length())


def rsqrt(x: Rational, bits: int = 128) -> Rational:
    """1 / sqrt(x)."""
    # 1. NaN, and numbers below zero.  2. An infinity of its sign at both zeros.  3. 0 at inf.
    if x == NAN or (x.sign and x.numerator):
        return NAN
    if x.numerator == 0:
        return Rational(x.sign, 1, 0)
    if x.denominator == 0:
        return ZERO
    # 4. floor(2^k / sqrt(x)), of ``bits`` bits at least; if a rest remains, half a unit says "a little above".
    k = bits + 1 + max(0, x.numerator.bit_length() - x.denominator.bit_length() + 1) // 2
    scaled, rest = divmod(x.denominator << 2 * k, x.numerator)
    root = isqrt(scaled)
    return Rational(0, 2 * root + (rest != 0 or root * root != scaled), 2 << k)


def sin(x: Rational, bits: int = 128) -> Rational:
    """The sine of an angle in radians."""
    # 1. NaN, and infinity.  2. Both zeros are their own.
    if x.denominator == 0:
        return NAN
    if x.numerator == 0:
        return x
    # 3. Just below x: x - x^3/6 + ...
    if _is_below(x, bits // 2 + 1):
        return _beside(x, False, bits)
    # 4. The rest.
    return _decide(lambda k: _turn(x, 0, k), bits, x.sign, x.denominator.bit_length() - x.numerator.bit_length())


def cos(x: Rational, bits: int = 128) -> Rational:
    """The cosine of an angle in radians."""
    # 1. NaN, and infinity.  2. cos 0 = 1.
    if x.denominator == 0:
        return NAN
    if x.numerator == 0:
        return ONE
    # 3. Just below 1: 1 - x^2/2 + ...
    if _is_below(x, bits // 2 + 1):
        return _beside(ONE, False, bits)
    # 4. The rest.
    return _decide(lambda k: _turn(x, 1, k), bits)


ELEMENTARY: dict[str, Callable[[Rational, int], Rational]] = {
    f.__name__: f for f in (exp, exp2, log, log2, tanh, sigmoid, erf, rsqrt, sin, cos)
}


def evaluate(name: str, x: Rational, format: Format, bits: int) -> Rational:
    """A function of x, to be rounded to a format: exp and its kin grow no further than the format can tell."""
    far = max(format.emax + 2, format.fraction_bits - format.emin + 34)  # with 32 random bits and two for safety
    if name in ("exp", "exp2", "sigmoid") and x.denominator and x.numerator > far * x.denominator:
        x = Rational(x.sign, far, 1)
    return ELEMENTARY[name](x, bits)


# --- stand-ins --------------------------------------------------------------------------------------------------------
def _decide(near: Callable[[int], Fixed], bits: int, sign: int = 0, zeros: int = 0) -> Rational:
    """Ziv's loop: the first ``bits`` bits of a number, and half a unit.

    ``near(k)`` gives the number to within 16 units of 2^-k; ``zeros`` is how many of its first k bits may be zero.
    """
    more = 16
    k = bits + more + max(zeros, 0)
    while True:
        a, e = near(k)
        low, high = abs(a) - _ERROR, abs(a) + _ERROR
        drop = low.bit_length() - bits
        if low > 0 and drop > 0 and low >> drop == high >> drop:
            shift = e - k + drop - 1
            return Rational(sign ^ (a < 0), (2 * (low >> drop) + 1) << max(shift, 0), 1 << max(-shift, 0))
        k += max(more - drop, more)
        more *= 2


def _beside(x: Rational, above: bool, bits: int) -> Rational:
    """A number so little above or below a magnitude of at most ``bits`` bits that none of ``bits`` lies between."""
    return Rational(x.sign, (x.numerator << bits + 2) + (1 if above else -1), x.denominator << bits + 2)


def _far(small: int) -> Rational:
    """A number above, or below, those of every format."""
    return Rational(0, 1, 1 << FAR) if small else Rational(0, 1 << FAR, 1)


def _is_below(x: Rational, power: int) -> bool:
    """|x| < 2^-power."""
    return x.numerator << power < x.denominator


def _signed(x: Rational) -> int:
    return -x.numerator if x.sign else x.numerator


# --- fixed point: whole numbers of units of 2^-k ----------------------------------------------------------------------
def _exp(n: int, d: int, k: int) -> Fixed:
    """e^(n/d) = m * 2^e with m in [1, 2), off by 4 units at most."""
    # ln 2 is off by 2 units, and counts e times: ``spare`` bits are for that.
    spare = max(n.bit_length() - d.bit_length(), 0) + 8
    e, rest = divmod((n << k + spare) // d, _ln2(k + spare))
    return _exp_small(rest >> spare, k), e


def _exp_small(y: int, k: int) -> int:
    """e^y for 0 <= y <= ln 2, off by a unit, and by two for each unit that y is off.

    y is halved some times, so that the series 1 + y + y^2/2! + ... is short, and the sum is squared as often. A term
    loses 3 units at most, a square one, and each squaring doubles what was lost before: spare bits are for all that.
    """
    halvings = isqrt(k)
    inner = k + halvings + k.bit_length() + 8
    y <<= inner - k - halvings
    term = total = 1 << inner
    i = 1
    while term:
        term = (term * y >> inner) // i
        total += term
        i += 1
    for _ in range(halvings):
        total = total * total >> inner
    return total >> inner - k


def _centred(x: Rational) -> tuple[int, int, int]:
    """x = p/q * 2^e with p/q from 1/sqrt(2) to sqrt(2)."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    p, q = x.numerator << max(-e, 0), x.denominator << max(e, 0)  # 1/2 < p/q < 2
    if p * p > 2 * q * q:
        return e + 1, p, 2 * q
    if 2 * p * p < q * q:
        return e - 1, 2 * p, q
    return e, p, q


def _log_near_1(p: int, q: int, k: int) -> int:
    """log(p/q) for p/q from 1/sqrt(2) to sqrt(2), off by 2 units at most.

    log(p/q) = 2 artanh z = 2 (z + z^3/3 + z^5/5 + ...) with z = (p - q)/(p + q), |z| < 0.18. Each term loses 3 units.
    """
    inner = k + k.bit_length() + 4
    power = total = (abs(p - q) << inner) // (p + q)
    square = power * power >> inner
    i = 1
    while power:
        power = power * square >> inner
        i += 2
        total += power // i
    total = total >> inner - k - 1
    return total if p >= q else -total


def _turn(x: Rational, quarters: int, k: int) -> Fixed:
    """sin(|x| + quarters * pi/2), off by 4 units at most."""
    # Whole quarters of a turn are taken away; from -pi/4 to pi/4 is left. ``spare`` bits are for the error of pi, which
    # is multiplied by the number of quarters, and ``guard`` bits for the terms of the series, which lose 3 units each.
    n, d = x.numerator, x.denominator
    spare, guard = max(n.bit_length() - d.bit_length(), 0) + 8, k.bit_length() + 4
    inner = k + guard
    quarter = _pi(inner + spare - 1)
    turned, rest = divmod((n << inner + spare) // d + quarter // 2, quarter)
    rest = (rest - quarter // 2) >> spare
    turned = (turned + quarters) & 3

    # An odd number of quarters makes it a cosine, 1 - y^2/2! + ...; else a sine, y - y^3/3! + ...
    square = rest * rest >> inner
    term, i = (1 << inner, 1) if turned & 1 else (abs(rest), 2)
    negative = bool(turned & 2) ^ (rest < 0 and i == 2)
    total, sign = 0, 1
    while term:
        total += sign * term
        term = (term * square >> inner) // (i * (i + 1))
        sign, i = -sign, i + 2
    return (-total if negative else total) >> guard, 0


# --- constants: each once for every power of two of digits, off by 2 units at most ------------------------------------
def _ln2(k: int) -> int:
    return _digits("ln2", k)


def _pi(k: int) -> int:
    return _digits("pi", k)


def _sqrt_pi(k: int) -> int:
    return _digits("sqrt pi", k)


def _digits(name: str, k: int) -> int:
    long = max(256, 1 << k.bit_length())
    return _long_digits(name, long) >> long - k


@cache
def _long_digits(name: str, k: int) -> int:
    if name == "sqrt pi":
        return isqrt(_pi(2 * k))
    k += 32
    if name == "pi":  # J. Machin, 1706
        total = 16 * _series(5, -1, k) - 4 * _series(239, -1, k)
    else:  # (27/25)^9 * (4800/4802) * (8750/8748)^4 = 2
        total = 18 * _series(26, 1, k) - 2 * _series(4801, 1, k) + 8 * _series(8749, 1, k)
    return total >> 32


def _series(n: int, sign: int, k: int) -> int:
    """arctan (sign -1) or artanh (sign 1) of 1/n: 1/n + sign/3n^3 + 1/5n^5 + ..., each term off by 3 units at most."""
    power, i, total, factor = (1 << k) // n, 1, 0, 1
    while power:
        total += power // i * factor
        power //= n * n
        factor *= sign
        i += 2
    return total
