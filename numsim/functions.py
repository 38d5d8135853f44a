"""Elementary functions of Arrays, correctly rounded in every mode: nothing of libm, NumPy's or the chip's own.

``elementary.py`` has the reference: one number at a time, to as many bits as a rounding needs. For many numbers of a
format of up to 16 bits ``_function_tables.py`` lets it work out all of them once. Both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import _function_tables as tables
from numsim import kernels
from numsim.arithmetic import operand, result_policy
from numsim.array import Array
from numsim.codes import Codes, code_dtype
from numsim.elementary import evaluate
from numsim.errors import InputError, short
from numsim.events import Events
from numsim.formats import Format, get_format
from numsim.random import Draw
from numsim.rounding import (
    Nan,
    Overflow,
    Policy,
    Rounding,
    Subnormals,
    check_events,
    count_events,
    draw_for,
    round_rational,
)
from numsim.values import NAN

_FEW = 2000  # numbers that the reference does while a table is made
_spent = 0


# --- the functions ----------------------------------------------------------------------------------------------------
def exp(x: Any, **options: Any) -> Array:
    """e^x, rounded once from its exact value.

    Rules
    -----
    NaN : NaN. So it is for all functions here; where the result's format has none, ``nan`` says what is done.
    Inf : e^inf = inf, e^-inf = +0.
    -0 : 1, as for +0.
    subnormals, overflow : ``subnormals`` and ``overflow`` as for ``encode``; "flush-inputs" takes a subnormal x for a
        zero of its sign.

    Parameters
    ----------
    x : an Array of any shape.
    format : of the result, by default that of x.
    rounding, overflow, subnormals, nan, seed, random_bits, sr_bits, events : as for ``encode``.

    Returns an Array; ``how`` names function, format and policy. Raises ``InputError`` for what is no Array.
    Cost: formats of up to 16 bits: about a second for a table, the first time that many numbers come (it is kept on
    disk), then a look-up, about 10^9 a second and core. Wider formats: 10 to 100 microseconds a number, milliseconds
    where exponents have 13 bits and more.
    Source: IEEE 754-2019, section 9.2; C23, annex F.10.

    >>> from numsim import array
    >>> x = array([0.0, 1.0, 12.0], "fp16")
    >>> exp(x), exp(x, rounding="down"), exp(x, format="bf16")
    (numsim.array([1.0, 2.71875, inf], 'fp16'),
     numsim.array([1.0, 2.716796875, 65504.0], 'fp16'),
     numsim.array([1.0, 2.71875, 162816.0], 'bf16'))
    >>> exp(x).how
    'exp rounded once to fp16, nearest-even'
    """
    return _apply("exp", x, **options)


def exp2(x: Any, **options: Any) -> Array:
    """2^x, rounded once; exact for whole x. Rules for special values, options and cost as for ``exp``.

    >>> from numsim import array
    >>> exp2(array([-3.0, 0.5, 8.0], "e4m3"))
    numsim.array([0.125, 1.375, 256.0], 'e4m3fn')
    """
    return _apply("exp2", x, **options)


def log(x: Any, **options: Any) -> Array:
    """The natural logarithm, rounded once; options and cost as for ``exp``.

    Rules: numbers below zero give NaN, both zeros -inf, inf gives inf; log(1) is +0.

    >>> from numsim import array
    >>> log(array([0.0, 1.0, 10.0, -1.0], "bf16"))
    numsim.array([-inf, 0.0, 2.296875, nan], 'bf16')
    """
    return _apply("log", x, **options)


def log2(x: Any, **options: Any) -> Array:
    """The logarithm to base 2, rounded once; exact for powers of two. Rules as for ``log``, options as for ``exp``.

    >>> from numsim import array
    >>> log2(array([0.125, 10.0], "bf16"))
    numsim.array([-3.0, 3.328125], 'bf16')
    """
    return _apply("log2", x, **options)


def tanh(x: Any, **options: Any) -> Array:
    """The hyperbolic tangent, rounded once; options and cost as for ``exp``.

    Rules: both zeros are their own result; inf gives 1, -inf -1. Other results are never exact: rounded down, even
    tanh(100) is the number below 1.

    >>> from numsim import array
    >>> tanh(array([0.5, 100.0, -0.0], "e4m3")), tanh(array(100.0, "e4m3"), rounding="down")
    (numsim.array([0.46875, 1.0, -0.0], 'e4m3fn'), numsim.array(0.9375, 'e4m3fn'))
    """
    return _apply("tanh", x, **options)


def sigmoid(x: Any, **options: Any) -> Array:
    """The logistic function 1 / (1 + e^-x), rounded once (not five times); options and cost as for ``exp``.

    Rules: both zeros give 1/2, inf gives 1, -inf +0. Other results are never exact.

    >>> from numsim import array
    >>> sigmoid(array([-10.0, 0.0, 3.0], "fp16"))
    numsim.array([4.5418739318847656e-05, 0.5, 0.95263671875], 'fp16')
    """
    return _apply("sigmoid", x, **options)


def erf(x: Any, **options: Any) -> Array:
    """The error function, rounded once; rules as for ``tanh``, options and cost as for ``exp``.

    >>> from numsim import array
    >>> erf(array([-0.5, 0.0, 2.0], "fp16"))
    numsim.array([-0.5205078125, 0.0, 0.9951171875], 'fp16')
    """
    return _apply("erf", x, **options)


def rsqrt(x: Any, **options: Any) -> Array:
    """1 / sqrt(x), rounded once; options and cost as for ``exp``.

    Rules: numbers below zero give NaN, +0 inf, -0 -inf (as IEEE 754-2019, 9.2.1; MPFR has +inf), inf +0.

    >>> from numsim import array
    >>> rsqrt(array([0.25, 3.0, 0.0, -0.0], "bf16"))
    numsim.array([2.0, 0.578125, inf, -inf], 'bf16')
    """
    return _apply("rsqrt", x, **options)


def sin(x: Any, **options: Any) -> Array:
    """The sine of an angle in radians, rounded once, however large the angle; options and cost as for ``exp``.

    Rules: infinities give NaN; both zeros are their own result.

    >>> from numsim import array
    >>> sin(array([1.0, 65504.0, -0.0], "fp16"))
    numsim.array([0.84130859375, 0.9755859375, -0.0], 'fp16')
    """
    return _apply("sin", x, **options)


def cos(x: Any, **options: Any) -> Array:
    """The cosine of an angle in radians, rounded once, however large the angle; options and cost as for ``exp``.

    Rules: infinities give NaN; both zeros give 1.

    >>> from numsim import array
    >>> cos(array([0.0, 1.0, 1e38], "bf16"))
    numsim.array([1.0, 0.5390625, 0.70703125], 'bf16')
    """
    return _apply("cos", x, **options)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "exp": exp, "exp2": exp2, "log": log, "log2": log2, "tanh": tanh, "sigmoid": sigmoid, "erf": erf, "rsqrt": rsqrt,
    "sin": sin, "cos": cos,
}  # fmt: skip


# --- how they are applied ---------------------------------------------------------------------------------------------
def _apply(
    name: str,
    x: Any,
    format: Any = None,
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    nan: Nan = "raise",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
    events: Events | None = None,
) -> Array:
    if not isinstance(x, Array):
        raise InputError(
            f"{name} takes an Array, not {short(x)}. Example: numsim.{name}(numsim.array([0.1, 0.2], 'bf16'))"
        )
    result = get_format(format) if format is not None else x.format
    policy = Policy(rounding, overflow, subnormals, nan)
    check_events(events)
    draw = draw_for(policy, x.size, x.shape, seed, random_bits, sr_bits)
    codes = compute(name, x.codes, x.format, result, policy, draw, events)
    return Array(codes, result, f"{name} rounded once to {result}, {policy}")


def compute(
    name: str,
    codes: Codes,
    source: Format,
    result: Format,
    policy: Policy,
    draw: Draw | None = None,
    events: Events | None = None,
) -> npt.NDArray[Any]:
    """A function of each code of ``source``, rounded once to ``result``; codes in the same shape."""
    if tables.suits(source, result, draw) and _are_many(codes.size, source):
        return tables.look_up(name, codes, source, result, policy, draw, events)
    after = result_policy(policy)
    bits = max(result.precision + (draw.r if draw else 1), source.precision)
    different, where = np.unique(codes, return_inverse=True)
    operands = [operand(c, source, policy) for c in different.tolist()]
    results = [evaluate(name, x, result, bits) for x in operands]
    out, seen = np.empty(codes.size, code_dtype(result)), Events()
    for i, j in enumerate(where.reshape(-1).tolist()):
        x, y = operands[j], results[j]
        random, r = (draw(i), draw.r) if draw else (0, 32)
        out[i] = code = round_rational(y, result, after, random, r)
        if events is not None:
            seen.add(count_events(y, code, result, after, random, r))
            seen.nan += y == NAN != x and code == result.nan_code  # log(-1), sin(inf)
    if events is not None:
        events.add(seen)
    return out.reshape(codes.shape)


def _are_many(count: int, source: Format) -> bool:
    """Whether to look up; a first few numbers are quicker without a table."""
    global _spent
    if forced := kernels._forced.get():
        return forced == "kernel"
    _spent += count
    return _spent > _FEW or source.bits <= 8
