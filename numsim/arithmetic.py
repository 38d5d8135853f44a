"""Arithmetic on codes: special cases listed, then the exact result, then one rounding.

Each operation below takes exact operands and returns the exact result as a rational; IEEE 754-2019 sections 6 and 7
are the numbered cases. ``compute`` applies one to arrays of codes. ``kernels/arithmetic.py`` holds the fast twin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.codes import Codes, code_dtype
from numsim.errors import InputError
from numsim.events import Events
from numsim.formats import Format
from numsim.random import Draw
from numsim.rounding import Policy, below_normal, count_events, round_rational
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


def _canonical(sign: int, n: int, d: int) -> Rational:
    if d == 0:
        return Rational(sign, 1, 0) if n else NAN
    return Rational(sign, n, d)


OPERATIONS: dict[str, Callable[..., Rational]] = {
    "add": add, "sub": sub, "mul": mul, "div": div, "sqrt": sqrt, "fma": fma,
}  # fmt: skip
ARITY = {"sqrt": 1, "fma": 3}


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
