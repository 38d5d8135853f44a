"""Sums and products of Arrays: each says what it rounds, where and in what order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numsim.accumulate import Order, Plan, check_order, products, sums
from numsim.arithmetic import compute
from numsim.array import Array
from numsim.codes import Codes, decode
from numsim.errors import InputError, short, truth
from numsim.formats import FP32, FP64, Format, get_format
from numsim.operands import one, operands
from numsim.random import Draw
from numsim.rounding import Overflow, Policy, Rounding, Subnormals, draw_for, encode


def sum(
    x: Any,
    *,
    axis: int | None = None,
    accumulator: Any = None,
    order: Order = "sequential",
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
) -> Array:
    """The sum along an axis (None: of all elements in C order); see ``numsim.accumulate`` for what is rounded when.

    Rules: NaN, and infinities of both signs, give NaN; one infinity gives itself (NaN with Kahan); the sum of -0 alone
    is -0; an empty sum is +0. An accumulator that overflows on the way stays there; "exact" knows no way.
    Parameters: ``accumulator``, by default the array's own format; ``order`` "sequential", "pairwise", "pairwise:128"
    and "blocked:128" (or any other length of blocks), "pairwise:numpy", "kahan", "neumaier", "double-word", "exact", or
    a tree of places, ``((0, 1), (2, 3))``.
    Raises ``InputError`` for an axis that is not there, an unknown order and a tree of another length.
    Cost, a second and core: 100 to 900 million additions with nearest-even in fp32 and formats of up to 11 bits, exact
    ones 150 million, Kahan and Neumaier 40 to 500, double-word 25 to 100; a tenth of it in other modes and formats.

    >>> from numsim import array
    >>> ones = array(np.ones(4096), "fp16")
    >>> sum(ones), sum(ones, order="pairwise"), sum(ones, accumulator="fp32")
    (numsim.array(2048.0, 'fp16'), numsim.array(4096.0, 'fp16'), numsim.array(4096.0, 'fp32'))
    >>> x = array([2048.0, 1.0, 1.0, -2048.0], "fp16")
    >>> [float(sum(x, order=o)) for o in ("sequential", "blocked:2", ((0, 3), (1, 2)), "neumaier", "exact")]
    [0.0, 1.0, 2.0, 2.0, 2.0]
    """
    x = one("sum", x)
    plan = plan_for((x.format,), accumulator, None, order, Policy(rounding, overflow, subnormals))
    codes = _along("sum", x, axis)
    draw = draws_for(plan, codes.size, seed, random_bits, sr_bits)
    return Array(sums([codes], plan, draw), plan.accumulator, plan.how)


def cumsum(
    x: Any,
    *,
    axis: int | None = None,
    accumulator: Any = None,
    order: Order = "sequential",
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
) -> Array:
    """Running sums; options as for ``sum``, but no trees: what "neumaier" would give after each term, and so on.

    >>> from numsim import array
    >>> cumsum(array([256.0, 1.0, 1.0], "bf16"))
    numsim.array([256.0, 256.0, 256.0], 'bf16')
    """
    x = one("cumsum", x)
    plan = plan_for((x.format,), accumulator, None, order, Policy(rounding, overflow, subnormals))
    codes = _along("cumsum", x, axis)
    draw = draws_for(plan, codes.size, seed, random_bits, sr_bits)
    trail = sums([codes], plan, draw, trail=True)
    if axis is not None and x.ndim:
        trail = np.moveaxis(trail, -1, axis)
    return Array(trail, plan.accumulator, plan.how)


def dot(
    x: Any,
    y: Any,
    *,
    product: Any = None,
    accumulator: Any = None,
    order: Order = "sequential",
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
) -> Array:
    """The dot product of equally shaped Arrays along their last axis.

    Parameters: ``product`` is the format that each product is rounded to, by default the accumulator's, or "exact" for
    products that are not rounded (in index order a chain of fma); ``accumulator``, by default the operands' format. The
    rest as for ``sum``.

    >>> from numsim import array
    >>> x = array(np.full(512, 1 / 512), "e4m3")
    >>> dot(x, array(np.ones(512), "e4m3")), dot(x, array(np.ones(512), "e4m3"), accumulator="fp32")
    (numsim.array(0.03125, 'e4m3fn'), numsim.array(1.0, 'fp32'))
    """
    x, y = operands("dot", (x, y), mixed=accumulator is not None)
    if x.ndim == 0 or x.shape != y.shape:
        raise InputError(f"dot: shapes {x.shape} and {y.shape}: both need the same shape with at least one axis.")
    plan = plan_for((x.format, y.format), accumulator, product, order, Policy(rounding, overflow, subnormals))
    draw = draws_for(plan, x.size, seed, random_bits, sr_bits)
    return Array(sums([x.codes, y.codes], plan, draw), plan.accumulator, plan.how)


def matmul(
    x: Any,
    y: Any,
    *,
    product: Any = None,
    accumulator: Any = None,
    order: Order = "sequential",
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
) -> Array:
    """The matrix product of Arrays (..., M, K) and (..., K, N), vectors as in NumPy; options as for ``dot``.

    Every output is one sum over k, by default in index order; no BLAS. With ``product="exact", order="exact"`` it is
    the exact result, rounded once.
    Cost, a second and core: 10^9 multiply-adds for nearest-even, one format throughout, in index order; 30 million in
    other modes, 7 million for compensated orders.

    >>> from numsim import array
    >>> a = array(np.ones((1, 4096)), "fp16")
    >>> (a @ a.T).values, (a @ a.T).how
    (array([[2048.]]), 'sequential sum in fp16, products rounded to fp16, nearest-even')
    """
    x, y = operands("matmul", (x, y), mixed=accumulator is not None)
    row, column = x.ndim == 1, y.ndim == 1
    a = x.codes[None, :] if row else x.codes
    b = y.codes[:, None] if column else y.codes
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise InputError(f"matmul: shapes {x.shape} and {y.shape}: (..., M, K) and (..., K, N) are needed.")
    try:
        shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise InputError(f"matmul: batch shapes {a.shape[:-2]} and {b.shape[:-2]} do not broadcast.") from None
    plan = plan_for((x.format, y.format), accumulator, product, order, Policy(rounding, overflow, subnormals))
    count = math.prod(shape) * a.shape[-2] * a.shape[-1] * b.shape[-1]
    draw = draws_for(plan, count, seed, random_bits, sr_bits)
    codes = products(a, b, plan, draw)
    codes = codes[..., 0, :] if row else codes
    return Array(codes[..., 0] if column else codes, plan.accumulator, plan.how)


def mean(
    x: Any,
    *,
    axis: int | None = None,
    accumulator: Any = None,
    order: Order = "sequential",
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
) -> Array:
    """The sum along an axis, rounded to the accumulator, divided by how many there are, rounded to it again.

    Rules: as for ``sum`` and ``div``; the number of terms is exact; the mean of nothing is 0/0, NaN. Stochastic: the
    divisions' counters follow those of the sums.
    Options, errors and cost as for ``sum``.

    >>> from numsim import array
    >>> x = array(np.full(4096, 20.0), "fp16")
    >>> mean(x), mean(x, accumulator="fp32")  # NumPy's float16 mean is the second, rounded to fp16
    (numsim.array(inf, 'fp16'), numsim.array(20.0, 'fp32'))
    >>> mean(x, accumulator="fp32").how
    'sequential sum in fp32, nearest-even, divided by 4096 and rounded to fp32'
    """
    x = one("mean", x)
    plan = plan_for((x.format,), accumulator, None, order, Policy(rounding, overflow, subnormals))
    codes = _along("mean", x, axis)
    n, used = codes.shape[-1], codes.size * plan.uses
    draw = draws_for(plan, codes.size, seed, random_bits, sr_bits, math.prod(codes.shape[:-1]))
    total = sums([codes], plan, draw)
    whole = FP32 if n <= 1 << 24 else FP64
    count = np.broadcast_to(encode(n, whole), total.shape)
    formats = [plan.accumulator, whole]
    result = compute("div", [total, count], formats, plan.accumulator, plan.policy, draw and draw.after(used))
    return Array(result, plan.accumulator, f"{plan.how}, divided by {n} and rounded to {plan.accumulator}")


def norm(
    x: Any,
    *,
    axis: int | None = None,
    scaled: bool = False,
    product: Any = None,
    accumulator: Any = None,
    order: Order = "sequential",
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
) -> Array:
    """The 2-norm along an axis: the square root, rounded to the accumulator, of the sum of squares.

    Rules: NaN gives NaN, an infinity +infinity; squares overflow and underflow long before the norm does, unless
    ``scaled``: then a power of two brings the largest magnitude to 1 <= |x| < 2 before (exactly: nothing is lost), and
    its inverse scales the root, rounded again; for formats that fp32 holds. The norm of nothing is +0. Stochastic: the
    roots' counters follow those of the sums, then those of their scaling.
    Parameters: ``product`` is the format that squares are rounded to, as for ``dot``; the rest as for ``sum``.
    Raises ``InputError`` as ``sum`` does, and for a scaled norm in a wider format. Cost: that of ``dot``.

    >>> from numsim import array
    >>> x = array([300.0, 400.0], "fp16")
    >>> norm(x), norm(x, scaled=True), norm(x, accumulator="fp32")
    (numsim.array(inf, 'fp16'), numsim.array(500.0, 'fp16'), numsim.array(500.0, 'fp32'))
    >>> norm(x).how
    'sequential sum in fp16, products rounded to fp16, nearest-even, square root rounded to fp16'
    """
    x = one("norm", x)
    policy = Policy(rounding, overflow, subnormals)
    codes, terms = _along("norm", x, axis), x.format
    if truth("scaled", scaled):
        if not x.format.fits(FP32):
            raise InputError(f"norm: scaled=True is for formats that fp32 holds, not for {x.format}.")
        codes, terms, back = _scaled(codes, x.format, policy)
    target = get_format(accumulator) if accumulator is not None else x.format
    plan = plan_for((terms, terms), target, product, order, policy)
    used, outputs = codes.size * plan.uses, math.prod(codes.shape[:-1])
    draw = draws_for(plan, codes.size, seed, random_bits, sr_bits, outputs * (2 if scaled else 1))
    squares = sums([codes, codes], plan, draw)
    root = compute("sqrt", [squares], [target], target, policy, draw and draw.after(used))
    how = f"{plan.how}, square root rounded to {target}"
    if scaled:
        root = compute("mul", [root, back], [target, terms], target, policy, draw and draw.after(used + outputs))
        how += ", of numbers scaled by a power of two, scaled back and rounded again"
    return Array(root, target, how)


# fp32's numbers times any power of two that scales one of them to 1 <= |x| < 2, and that power.
_WIDE = Format("e9m23", 9, 23, 254)


def _scaled(codes: Codes, format: Format, policy: Policy) -> tuple[Codes, Format, Codes]:
    """Codes along the last axis times 2^-e, exact, e being the exponent of the largest; and 2^e."""
    values = np.asarray(decode(codes, format))
    if policy.subnormals in ("flush-inputs", "flush"):
        values = np.where(np.abs(values) < float(format.least_normal), np.copysign(0.0, values), values)
    largest = np.abs(values).max(axis=-1, initial=0.0)
    e = np.where(np.isfinite(largest) & (largest > 0), np.frexp(largest)[1] - 1, 0)
    return encode(np.ldexp(values, -e[..., None]), _WIDE), _WIDE, encode(np.ldexp(1.0, e), _WIDE)


# --- helpers ----------------------------------------------------------------------------------------------------------
def _along(operation: str, x: Array, axis: int | None) -> Codes:
    if axis is None or x.ndim == 0:
        return x.codes.reshape(-1)
    if not isinstance(axis, (int, np.integer)) or not -x.ndim <= axis < x.ndim:
        raise InputError(f"{operation}: axis={short(axis)} of an Array of shape {x.shape}: allowed are None and "
                         f"{-x.ndim} to {x.ndim - 1}.")  # fmt: skip
    return np.moveaxis(x.codes, axis, -1)


def plan_for(inputs: tuple[Format, ...], accumulator: Any, product: Any, order: Order, policy: Policy) -> Plan:
    target = get_format(accumulator) if accumulator is not None else inputs[0]
    if len(inputs) == 1 or (isinstance(product, str) and product == "exact"):
        rounded = None
    else:
        rounded = get_format(product) if product is not None else target
    return Plan(inputs, target, rounded, check_order(order), policy)


def draws_for(plan: Plan, terms: int, seed: Any, random_bits: Any, sr_bits: int | None, more: int = 0) -> Draw | None:
    count = terms * plan.uses + more
    return draw_for(plan.policy, count, (count,), seed, random_bits, sr_bits)
