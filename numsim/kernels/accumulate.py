"""Twins of ``numsim.accumulate``: sums and matrix products.

Every plan runs in float64, one output after the other (``_accumulate_rows.py``), the usual ones in float32 lanes
(``_accumulate_lanes.py``); ``_accumulate_orders.py`` has the orders for both. Exact sums are whole numbers in a long
accumulator (``_exact_sum.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import accumulate
from numsim.accumulate import Plan
from numsim.codes import Codes, code_dtype
from numsim.formats import FP32, FP64, Format
from numsim.host import flushes_subnormals, rounds_to_nearest
from numsim.kernels import _pool
from numsim.kernels import rounding as fast_rounding
from numsim.kernels._accumulate_lanes import SUM_LANES, lane_for, product_lanes
from numsim.kernels._accumulate_orders import order_for
from numsim.kernels._accumulate_rows import SUM_ROWS, bits_for, grid_for
from numsim.kernels._reading import operand_values
from numsim.kernels.arithmetic import carries, is_native, rounds_from_odd
from numsim.random import Draw
from numsim.rounding import Policy


def suits(plan: Plan, draw: Draw | None) -> bool:
    """Whether the kernels compute this plan bit for bit; the reference does the rest."""
    rounded = [plan.accumulator] if plan.product is None else [plan.accumulator, plan.product]
    if not rounds_to_nearest():
        return False
    special = any(f.nan_code is not None or f.infinities for f in (*plan.inputs, *rounded))
    if special and any(f.nan_code is None for f in rounded):
        return False  # a NaN may have nowhere to go: the reference says so
    if not all(f.signed and f.zero and f.fraction_bits for f in (*plan.inputs, *rounded)):
        return False  # (without a fraction the parity of the code is not that of the significand)
    if plan.order.startswith("(") and any(len(a) > 2 for a in accumulate.additions(plan.order)):
        return False  # exact sums within a tree
    native, carried = [is_native(f, plan.policy) for f in rounded], all(map(carries, plan.inputs))
    if native[0] and len(plan.inputs) == 2 and plan.product is None and not carried:
        # one fma has an exact product inside, all else needs it as a float64
        return plan.order == "sequential" and all(f.fits(FP64) for f in plan.inputs)
    if all(native) or (plan.order == "exact" and len(plan.inputs) == 1 and rounds_from_odd(plan.accumulator, draw)
                       and carries(plan.accumulator)):  # fmt: skip
        return all(f.fits(FP64) for f in plan.inputs)
    ok = [n or (rounds_from_odd(f, draw) and carries(f)) for n, f in zip(native, rounded, strict=True)]
    return all(ok) and carried


def _sums_fit_float32(plan: Plan) -> bool:
    """Whether float32 lanes add numbers of the accumulator's format bit for bit (why: see ``_accumulate_lanes.py``)."""
    policy, target = plan.policy, plan.accumulator
    if policy != Policy(overflow=policy.overflow, nan=policy.nan) or policy.overflow == "saturate-finite":
        return False
    if flushes_subnormals() or (target != FP32 and target.precision > 11):
        return False
    return all(f.fits(FP32) and f.emin >= FP32.emin and f.specials != "fnuz" for f in (*plan.inputs, target))


def _products_fit_float32(plan: Plan, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether they multiply these operands bit for bit, too, and add them in index order."""
    policy, target, product = plan.policy, plan.accumulator, plan.product
    if plan.order != "sequential" or not _sums_fit_float32(plan):
        return False
    if product is not None and not (product.fits(FP32) and product.emin >= FP32.emin and product.specials != "fnuz"):
        return False
    if target != FP32 and not (product is not None and product.fits(target)):
        return False
    if product == FP32:
        return True  # the hardware's own product
    if plan.inputs[0].precision + plan.inputs[1].precision > 24:
        return False
    if product is None and policy.overflow == "saturate" and not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False  # a lane would saturate an infinite product before it is added
    (a_least, a_most), (b_least, b_most) = _exponents(a), _exponents(b)
    least = a_least - plan.inputs[0].precision + b_least - plan.inputs[1].precision
    return least >= -149 and (product is not None or a_most + b_most <= 128)


def _exponents(x: npt.NDArray[Any]) -> tuple[int, int]:
    """The least and the greatest e with 2^(e-1) <= |x| < 2^e, over all finite numbers but zero."""
    sizes = np.abs(x[(x != 0) & np.isfinite(x)])
    if not sizes.size:
        return 0, 0
    return math.frexp(float(sizes.min()))[1], math.frexp(float(sizes.max()))[1]


# --- the twins --------------------------------------------------------------------------------------------------------
def sums(factors: Sequence[Codes], plan: Plan, draw: Draw | None, trail: bool) -> npt.NDArray[Any]:
    """One or two code arrays (rows, n): accumulator codes (rows,), or the running sums (rows, n)."""
    lanes = len(factors) == 1 and plan.inputs[0].fits(plan.accumulator) and _sums_fit_float32(plan)
    lanes = lanes and plan.order != "exact"
    dtype = np.float32 if lanes else np.float64
    values = [_values(f, i, plan.policy, dtype) for f, i in zip(factors, plan.inputs, strict=True)]
    rows, n = values[0].shape
    out, running = np.zeros(rows, dtype), np.zeros((rows, n if trail else 0), dtype)
    if lanes:
        lane, order, bits = lane_for(plan.accumulator, plan.policy), order_for(plan, n), bits_for(None, 0)

        def chunk(first: int, end: int) -> None:
            SUM_LANES[order.kind](values[0], first, end, lane, order, bits, out, running)

        _pool.over_chunks(rows, chunk, **_grain(n))
    else:
        _sum(values[0], values[-1], 0, plan, draw, out, running)
    return _codes(running if trail else out, plan.accumulator)


def _sum(
    a: npt.NDArray[Any], b: npt.NDArray[Any], columns: int, plan: Plan, draw: Draw | None, out: Any, running: Any
) -> None:
    """``sum_rows`` over all threads."""
    g, gp = grid_for(plan.accumulator, plan.policy), grid_for(plan.product or plan.accumulator, plan.policy)
    n, pair, exact = a.shape[1], len(plan.inputs) == 2, plan.product is None
    order, bits = order_for(plan, n), bits_for(draw, out.size * n * plan.uses)

    def chunk(first: int, end: int) -> None:
        SUM_ROWS[order.kind](a, b, columns, first, end, pair, exact, g, gp, order, bits, out, running)

    _pool.over_chunks(out.size, chunk, **_grain(n))


def products(a: Codes, b: Codes, plan: Plan, draw: Draw | None) -> npt.NDArray[Any]:
    """Codes a (batch, M, K) and b (batch, K, N): accumulator codes (batch, M, N)."""
    x, y = (_values(c, f, plan.policy) for c, f in zip((a, b), plan.inputs, strict=True))
    batch, m, k = x.shape
    n = y.shape[2]
    if _products_fit_float32(plan, x, y):
        x, y = x.astype(np.float32), y.astype(np.float32)
        result = np.zeros((batch, m, n), np.float32)
        lane, lane_p = lane_for(plan.accumulator, plan.policy), lane_for(plan.product or FP32, plan.policy)
        for i in range(batch):
            _pool.over_chunks(
                m,
                lambda first, end, i=i: product_lanes(  # type: ignore[misc]
                    x[i], y[i], first, end - first, lane, lane_p, result[i]
                ),
                **_grain(k * n),
            )
        return _codes(result, plan.accumulator)
    out = np.zeros((batch, m * n))
    columns = _read_only(np.ascontiguousarray(y.transpose(0, 2, 1)))
    none = np.zeros((m * n, 0))
    for i in range(batch):
        _sum(x[i], columns[i], n, plan, draw and draw.after(i * m * n * k * plan.uses), out[i], none)
    return _codes(out.reshape(batch, m, n), plan.accumulator)


_GRAIN = 1 << 18  # roundings a chunk


def _grain(roundings: int) -> dict[str, int]:
    """How many outputs of so many roundings go together."""
    outputs = max(1, _GRAIN // max(roundings, 1))
    return {"chunk": outputs, "large": outputs}


def _values(codes: Codes, format: Format, policy: Policy, dtype: Any = np.float64) -> npt.NDArray[Any]:
    """As ``operand_values``; where codes are the hardware's own numbers, no more than a look at them."""
    if format in (FP32, FP64) and policy.subnormals == "keep" and not flushes_subnormals():
        own = np.float32 if format == FP32 else np.float64
        with np.errstate(invalid="ignore"):  # signalling NaN
            return _read_only(np.ascontiguousarray(codes, code_dtype(format)).view(own).astype(dtype, copy=False))
    return _read_only(operand_values(codes, format, policy).astype(dtype, copy=False))


def _read_only(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As all numbers that go into the loops: whether they may be written to is part of what is compiled."""
    x = x.view()
    x.flags.writeable = False
    return x


def _codes(values: npt.NDArray[Any], format: Format) -> npt.NDArray[Any]:
    """Codes of values that are on the grid already."""
    return fast_rounding.encode(values.reshape(-1), format, Policy(), None, None).reshape(values.shape)


TWINS = [(accumulate.sums, sums), (accumulate.products, products)]
