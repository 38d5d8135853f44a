"""Sums and products of ``kernels/accumulate.py`` in float32 lanes: many outputs of a product side by side.

Nearest-even by bit operations. Why float32 is exact there: a product of two factors of up to 12 bits has at most 24 and
is exact (``accumulate.py`` looks at the exponents); a float32 sum of two numbers of p <= 11 bits rounds twice, which is
harmless as 24 >= 2 p + 2; FP32 products and accumulators are rounded once, by the hardware.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numsim.codes import decode
from numsim.formats import FP32, Format
from numsim.kernels._accumulate_orders import named, orders_of
from numsim.kernels._jit import as_bits, as_float, jit
from numsim.rounding import Policy, overflow_result


class Lane(NamedTuple):
    """Nearest-even to a format on the bits of a float32."""

    half: np.uint32  # half a unit less one
    lowest: np.uint32  # 1, or 0 where nothing is dropped (FP32)
    shift: np.uint32
    kept: np.uint32
    normal: np.uint32  # bits below this are rounded by adding and subtracting ``magic``
    magic: np.float32
    max: np.uint32
    over: np.uint32
    native: bool  # FP32: the hardware has rounded already


def lane_for(format: Format, policy: Policy) -> Lane:
    shift = 23 - format.fraction_bits

    def word(value: float) -> Any:
        return np.array(value, np.float32).view(np.uint32)[()]

    over = format.max_code if policy.overflow == "saturate" else overflow_result(False, format)
    return Lane(
        np.uint32((1 << shift >> 1) - 1 if shift else 0), np.uint32(shift > 0), np.uint32(shift),
        np.uint32((0xFFFFFFFF << shift) & 0xFFFFFFFF),
        word(float(format.least_normal)) if format.emin > FP32.emin else np.uint32(0),
        np.float32(2.0 ** (23 + format.emin - format.fraction_bits)), word(float(format.max)),
        word(float(decode(over, format))), format == FP32 and policy.overflow == "ieee",
    )  # fmt: skip


@jit
def round_lane(x, p):  # type: ignore[no-untyped-def]
    """As ``kernels.rounding.nearest_even``, for one number inside a loop over lanes."""
    bits = as_bits(x)
    a = np.uint32(bits & np.uint32(0x7FFFFFFF))
    normal = np.uint32(np.uint32(a + np.uint32(p.half + np.uint32(np.uint32(a >> p.shift) & p.lowest))) & p.kept)
    below = as_bits(np.float32(np.float32(as_float(a) + p.magic) - p.magic))
    r = below if a < p.normal else normal
    r = p.over if r > p.max else r
    r = a if a > np.uint32(0x7F800000) else r  # NaN
    return as_float(np.uint32(r | np.uint32(bits & np.uint32(0x80000000))))


@jit
def start_lane(x, p, counter, bits):  # type: ignore[no-untyped-def]
    return x if p.native else round_lane(x, p)


@jit
def plus_lane(a, b, p, counter, bits):  # type: ignore[no-untyped-def]
    return a + b if p.native else round_lane(a + b, p)


@jit
def as_it_is(x, p):  # type: ignore[no-untyped-def]
    return x


def _sum_lanes(one_sum: Any) -> Any:
    """The same for terms that need no more than float32."""

    def sum_lanes(x, first, end, p, o, bits, out, trail):  # type: ignore[no-untyped-def]
        n = x.shape[1]
        space = np.empty(n, np.float32)
        for r in range(first, end if n else first):
            out[r] = one_sum(x[r], n, p, o, 0, bits, trail[r], space)

    return jit(named(sum_lanes, one_sum))


SUM_LANES = [_sum_lanes(f) for f in orders_of(np.float32, start_lane, plus_lane, as_it_is)]


@jit
def product_lanes(a, b, first_row, rows, g, gp, out):  # type: ignore[no-untyped-def]
    """Rows of a (rows, K) times b (K, N): k in order, all columns of a row at once."""
    k, n = b.shape
    for i in range(first_row, first_row + rows):
        row = out[i]
        for t in range(k):
            x = a[i, t]
            for j in range(n):
                p = round_lane(x * b[t, j], gp)
                row[j] = round_lane(p if t == 0 else row[j] + p, g)
