"""Arithmetic on codes: special cases listed, then the exact result, then one rounding.

Each operation below takes exact operands and returns the exact result as a rational; IEEE 754-2019 sections 6 and 7
(5.3 and 9.6 for what is no sum or product) are the numbered cases. ``compute`` applies one to arrays of codes.
``kernels/arithmetic.py`` holds the fast twin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.codebooks import Codebook
from numsim.codes import Codes, code_dtype
from numsim.errors import InputError
from numsim.events import Events
from numsim.formats import Format
from numsim.random import Draw
from numsim.rounding import Policy, below_normal, count_events, round_rational
from numsim.rounding import convert as _convert
from numsim.values import NAN, Rational, to_rational


def add(x: Rational, y: Rational, rounding: str = "nearest-even") -> Rational:
    """x + y.

    >>> add(Rational(0, 1, 2), Rational(1, 1, 2))  # an exact zero is +0, except when rounding down
    Rational(sign=0, numerator=0, denominator=4)
    """
    # 1. NaN.  2. Infinities of both signs.
    if x == NAN or y == NAN or (x.denominator == y.denominator == 0 and x.sign != y.sign):
        return NAN
    # 3. One infinity.
    if x.denominator == 0 or y.denominator == 0:
        return x if x.denominator == 0 else y
    # 4. The exact sum; the sign of a zero is that of both operands, or that of the rounding direction.
    a, b = x.numerator * y.denominator, y.numerator * x.denominator
    total = (-a if x.sign else a) + (-b if y.sign else b)
    if total == 0:
        sign = x.sign if x.sign == y.sign else int(rounding == "down")
        return Rational(sign, 0, x.denominator * y.denominator)
    return Rational(int(total < 0), abs(total), x.denominator * y.denominator)


def sub(x: Rational, y: Rational, rounding: str = "nearest-even") -> Rational:
    """x - y = x + (-y)."""
    return add(x, y if y == NAN else Rational(1 - y.sign, y.numerator, y.denominator), rounding)


def mul(x: Rational, y: Rational, rounding: str = "nearest-even") -> Rational:
    """x * y. With 1/0 for infinity and 0/0 for NaN the fractions multiply into the right special values."""
    # 1. NaN, and 0 * infinity: 0/0.  2. Infinity: n/0.  3. The exact product.
    return _canonical(x.sign ^ y.sign, x.numerator * y.numerator, x.denominator * y.denominator)


def div(x: Rational, y: Rational, rounding: str = "nearest-even") -> Rational:
    """x / y = x * (1/y). Dividing a number by zero gives infinity, by infinity zero; 0/0 and inf/inf give NaN."""
    return _canonical(x.sign ^ y.sign, x.numerator * y.denominator, x.denominator * y.numerator)


def sqrt(x: Rational, rounding: str = "nearest-even") -> Rational:
    """The square root; where it is irrational, a stand-in that every rounding of up to 64 bits takes the same way."""
    # 1. NaN, and numbers below zero.  2. Infinity, and both zeros, are their own root.
    if x == NAN or (x.sign and x.numerator):
        return NAN
    if x.denominator == 0 or x.numerator == 0:
        return x
    # 3. floor(sqrt(x) * 2^k) with 128 bits and more; if a rest remains, half a unit says "a little above".
    k = 128 + max(0, x.denominator.bit_length() - x.numerator.bit_length()) // 2
    scaled, rest = divmod(x.numerator << 2 * k, x.denominator)
    root = math.isqrt(scaled)
    inexact = rest != 0 or root * root != scaled
    return Rational(0, 2 * root + inexact, 2 << k)


def fma(x: Rational, y: Rational, z: Rational, rounding: str = "nearest-even") -> Rational:
    """x * y + z, exact: one rounding, not two."""
    return add(mul(x, y), z, rounding)


def remainder(x: Rational, y: Rational, rounding: str = "nearest-even") -> Rational:
    """x - n y for the integer n nearest to x / y, the even one where two are: exact, and no further from 0 than y / 2.

    >>> remainder(Rational(0, 5, 1), Rational(0, 2, 1)), remainder(Rational(0, 7, 1), Rational(0, 2, 1))
    (Rational(sign=0, numerator=1, denominator=1), Rational(sign=1, numerator=1, denominator=1))
    """
    # 1. NaN, an infinity divided, and division by zero.  2. By an infinity: n is 0.
    if x == NAN or y == NAN or x.denominator == 0 or y.numerator == 0:
        return NAN
    if y.denominator == 0:
        return x
    # 3. What remains, between 0 and y, or y less than that.  A zero has the sign of x.
    a, b = x.numerator * y.denominator, y.numerator * x.denominator
    n, rest = divmod(a, b)
    if 2 * rest > b or (2 * rest == b and n % 2):
        rest -= b
    return Rational(x.sign ^ int(rest < 0), abs(rest), x.denominator * y.denominator)


def scale_b(x: Rational, n: Rational, rounding: str = "nearest-even") -> Rational:
    """x * 2^n for an integer n."""
    # 1. NaN, and what is no integer.  2. Infinities and zeros stay.
    if x == NAN or n.denominator == 0 or n.numerator % n.denominator:
        return NAN
    if x.denominator == 0 or x.numerator == 0:
        return x
    # 3. The exact product; beyond 2^18 places every format has ended, from wherever one starts.
    k = min(n.numerator // n.denominator, 1 << 18)
    return Rational(x.sign, x.numerator, x.denominator << k) if n.sign else x._replace(numerator=x.numerator << k)


def log_b(x: Rational, rounding: str = "nearest-even") -> Rational:
    """The exponent e of x = +-1.f * 2^e, for subnormal numbers too, as an integer."""
    # 1. NaN.  2. Both infinities give infinity, both zeros -infinity.
    if x == NAN or x.denominator == 0:
        return x if x == NAN else Rational(0, 1, 0)
    if x.numerator == 0:
        return Rational(1, 1, 0)
    # 3. floor(log2 |x|).
    e = x.numerator.bit_length() - x.denominator.bit_length()
    if x.numerator << max(-e, 0) < x.denominator << max(e, 0):
        e -= 1
    return Rational(int(e < 0), abs(e), 1)


def compare(x: Rational, y: Rational) -> int | None:
    """-1, 0 or 1 for x < y, x = y, x > y; None where they are unordered: one of them is NaN. Zeros are equal.

    >>> compare(Rational(1, 0, 1), Rational(0, 0, 1)), compare(Rational(1, 1, 0), Rational(0, 1, 0)), compare(NAN, NAN)
    (0, -1, None)
    """
    if x == NAN or y == NAN:
        return None
    s, t = ((-1 if z.sign else 1) if z.numerator else 0 for z in (x, y))
    if s != t:
        return 1 if s > t else -1
    a, b = x.numerator * y.denominator, y.numerator * x.denominator
    return s * ((a > b) - (a < b))


def extreme(
    larger: bool, magnitude: bool, number: bool, x: Rational, y: Rational, rounding: str = "nearest-even"
) -> Rational:
    """The smaller or larger of two numbers, -0 below +0; ``magnitude``: by size first; ``number``: rather than NaN."""
    # 1. NaN.
    if x == NAN or y == NAN:
        return (y if x == NAN else x) if number else NAN
    # 2. By size, if asked; by value; zeros by their signs.
    order = compare(x._replace(sign=0), y._replace(sign=0)) if magnitude else 0
    order = order or compare(x, y) or y.sign - x.sign
    return y if (order < 0) == larger else x


def _canonical(sign: int, n: int, d: int) -> Rational:
    if d == 0:
        return Rational(sign, 1, 0) if n else NAN
    return Rational(sign, n, d)


EXTREMES = {  # IEEE 754-2019, 9.6: larger, magnitude, number
    "minimum": (False, False, False), "maximum": (True, False, False),
    "minimum_number": (False, False, True), "maximum_number": (True, False, True),
    "minimum_magnitude": (False, True, False), "maximum_magnitude": (True, True, False),
    "minimum_magnitude_number": (False, True, True), "maximum_magnitude_number": (True, True, True),
}  # fmt: skip
OPERATIONS: dict[str, Callable[..., Rational]] = {
    "add": add, "sub": sub, "mul": mul, "div": div, "sqrt": sqrt, "fma": fma,
    "remainder": remainder, "scale_b": scale_b, "log_b": log_b,
    **{name: partial(extreme, *choice) for name, choice in EXTREMES.items()},
}  # fmt: skip
ARITY = {"sqrt": 1, "log_b": 1, "fma": 3}


def operand(code: int, format: Format, policy: Policy) -> Rational:
    """The exact value of an operand; under flush-inputs a subnormal one is a zero of its sign."""
    x = to_rational(code, format)
    if policy.subnormals in ("flush-inputs", "flush") and x.denominator and below_normal(x, format):
        return Rational(x.sign, 0, 1)
    return x


def result_policy(policy: Policy) -> Policy:
    """The policy for an operation's result: inputs have been flushed already."""
    subnormals = {"flush-inputs": "keep", "flush": "flush-results"}.get(policy.subnormals, policy.subnormals)
    return policy if subnormals == policy.subnormals else replace(policy, subnormals=subnormals)


def compute(
    operation: str,
    operands: Sequence[Codes],
    formats: Sequence[Format],
    result: Format,
    policy: Policy,
    draw: Draw | None = None,
    events: Events | None = None,
) -> npt.NDArray[Any]:
    """An operation on equally shaped arrays of codes, each element rounded once to ``result``.

    Operands may have formats of their own (FP16 times FP16 into FP32). Returns codes of ``result``.
    """
    function, count = OPERATIONS[operation], ARITY.get(operation, 2)
    if len(operands) != count or len(formats) != count:
        raise InputError(f"{operation} takes {count} operands, not {len(operands)}.")
    arrays = np.broadcast_arrays(*operands)
    if kernels.use(arrays[0].size):
        from numsim.kernels import arithmetic as fast

        if fast.suits(operation, formats, result, policy, draw, events):
            flat = fast.compute(operation, [a.reshape(-1) for a in arrays], formats, result, policy, draw, events)
            return flat.reshape(arrays[0].shape)
    codes, seen = np.empty(arrays[0].size, code_dtype(result)), Events()
    rounding, after = policy.rounding, result_policy(policy)
    for i, row in enumerate(zip(*(a.ravel().tolist() for a in arrays), strict=True)):
        xs = [operand(c, f, policy) for c, f in zip(row, formats, strict=True)]
        x = function(*xs, rounding)
        random, r = (draw(i), draw.r) if draw else (0, 32)
        codes[i] = code = round_rational(x, result, after, random, r)
        if events is not None:
            seen.add(count_events(x, code, result, after, random, r))
            seen.nan += x == NAN and NAN not in xs and code == result.nan_code  # inf - inf, 0 / 0
    if events is not None:
        events.add(seen)
    return codes.reshape(arrays[0].shape)


def convert(
    codes: Codes,
    source: Format | Codebook,
    format: Format | Codebook,
    policy: Policy,
    draw: Draw | None = None,
    events: Events | None = None,
) -> npt.NDArray[Any]:
    """Codes of one format rounded to another: ``rounding.convert``, with tables for many codes."""
    if isinstance(source, Format) and isinstance(format, Format) and kernels.use(codes.size):
        from numsim.kernels import arithmetic as fast

        if fast.converts(codes.size, source, format, policy, draw, events):
            return fast.convert(codes.reshape(-1), source, format, policy, draw, events).reshape(codes.shape)
    return _convert(codes, source, format, policy, draw, events)
