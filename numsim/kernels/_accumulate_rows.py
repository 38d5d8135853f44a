"""Sums of ``kernels/accumulate.py``, one output after the other, in float64: any plan that float64 carries.

An addition gives the float64 rounded to odd (``_arithmetic_loops.py`` says why that is exact), and ``round_scalar``
rounds it to the accumulator, in any mode.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.codes import decode
from numsim.formats import Format
from numsim.kernels._accumulate_orders import SEQUENTIAL, named, orders_of
from numsim.kernels._arithmetic_loops import add_odd
from numsim.kernels._exact_sum import DIGITS, exact_sum
from numsim.kernels._jit import as_bits, as_float, fma64, jit
from numsim.kernels.arithmetic import is_native
from numsim.kernels.random import bits as random_bits
from numsim.random import Draw, keys
from numsim.rounding import ROUNDINGS, Policy, overflow_result, with_sign

EVEN, AWAY, TOWARD_ZERO, UP, DOWN, ODD, STOCHASTIC = range(len(ROUNDINGS))


class Grid(NamedTuple):
    """A format and a policy, as ``round_scalar`` needs them."""

    native: bool  # FP64: the hardware has rounded already
    fraction_bits: int
    field: int  # float64 exponent field of the least normal number
    max: float
    least_normal: float
    over: float  # what an overflow becomes, and a negative one
    minus_over: float
    infinity: float
    minus_infinity: float
    minus_zero: float
    mode: int
    flush_inputs: bool
    flush_results: bool


def grid_for(format: Format, policy: Policy) -> Grid:
    def value(code: int) -> float:
        return float(decode(code, format))

    def overflow(negative: bool, infinite: bool) -> float:
        inwards = policy.rounding in ("toward-zero", "odd") or policy.rounding == ("up" if negative else "down")
        saturate = policy.overflow == "saturate" or (not infinite and (policy.overflow != "ieee" or inwards))
        return value(with_sign(format.max_code, negative, format) if saturate else overflow_result(negative, format))

    return Grid(
        is_native(format, policy), format.fraction_bits, format.emin + 1023, float(format.max),
        float(format.least_normal), overflow(False, False), overflow(True, False), overflow(False, True),
        overflow(True, True), value(with_sign(0, True, format)), ROUNDINGS.index(policy.rounding),
        policy.subnormals in ("flush-inputs", "flush"), policy.subnormals in ("flush-results", "flush"),
    )  # fmt: skip


@jit
def round_scalar(x, g, random, r):  # type: ignore[no-untyped-def]
    """A float64 rounded to the grid, in any mode, as in ``numsim.rounding.round_rational``."""
    if g.native or x != x:
        return x
    bits = as_bits(x)
    negative = bits >> np.uint64(63) != np.uint64(0)
    magnitude = abs(x)
    if magnitude == np.inf:
        return g.minus_infinity if negative else g.infinity
    if magnitude == 0.0:
        return g.minus_zero if negative else 0.0
    field = np.int64(bits >> np.uint64(52)) & 0x7FF  # never 0: exact results stay far above float64's subnormals
    significand = np.int64(bits & np.uint64((1 << 52) - 1)) | (1 << 52)
    drop = 52 - g.fraction_bits + max(g.field - field, 0)
    short = min(drop, 62)  # from 54 on the significand is below half a unit, as it is for every larger number
    kept = significand >> short
    dropped = significand - (kept << short)
    if dropped != 0:
        half = np.int64(1) << (short - 1)
        up = False
        if g.mode == EVEN:
            up = dropped > half or (dropped == half and kept & 1 == 1)
        elif g.mode == AWAY:
            up = dropped >= half
        elif g.mode == UP:
            up = not negative
        elif g.mode == DOWN:
            up = negative
        elif g.mode == ODD:
            up = kept & 1 == 0
        elif g.mode == STOCHASTIC:
            if drop <= r:
                fraction = dropped << (r - drop)
            else:
                fraction = dropped >> min(drop - r, 62)
            up = fraction + random >= np.int64(1) << r
        kept += up
    value = kept * as_float(np.uint64(field + drop - 52) << np.uint64(52))  # the unit is a power of two: exact
    if value > g.max:
        return g.minus_over if negative else g.over
    if g.flush_results and value < g.least_normal:
        value = 0.0
    if value == 0.0:
        return g.minus_zero if negative else 0.0
    return -value if negative else value


class Bits(NamedTuple):
    """Where random draws come from: the keys of each block of 2^32 counters from the first on, or given draws."""

    position: int
    keys: npt.NDArray[np.uint32]
    given: npt.NDArray[np.uint32]
    r: int


def bits_for(draw: Draw | None, count: int) -> Bits:
    if draw is None:
        return Bits(0, np.zeros((0, 2), np.uint32), np.zeros(0, np.uint32), 32)
    if draw.given is not None:
        return Bits(0, np.zeros((0, 2), np.uint32), draw.given, draw.r)
    blocks = range(draw.position >> 32, (draw.position + max(count, 1) - 1 >> 32) + 1)
    table = np.array([keys(draw.seed, b) for b in blocks], np.uint32)
    return Bits(draw.position & 0xFFFFFFFF, table, np.zeros(0, np.uint32), draw.r)


@jit
def draw_at(counter, b):  # type: ignore[no-untyped-def]
    if b.given.size:
        return np.int64(b.given[b.position + counter])
    if b.keys.size == 0:
        return np.int64(0)
    place = b.position + counter
    block = place >> 32
    word = random_bits(np.uint32(place & 0xFFFFFFFF), b.keys[block, 0], b.keys[block, 1])
    return np.int64(word) >> (32 - b.r)


@jit
def operand(x, g):  # type: ignore[no-untyped-def]
    """The accumulator or a product as an operand: under flush-inputs a subnormal one is a zero."""
    return math.copysign(0.0, x) if g.flush_inputs and abs(x) < g.least_normal else x


@jit
def start(x, g, counter, bits):  # type: ignore[no-untyped-def]
    return round_scalar(x, g, draw_at(counter, bits), bits.r)


@jit
def plus(a, b, g, counter, bits):  # type: ignore[no-untyped-def]
    s = a + b if g.native else add_odd(a, b, g.mode == DOWN)
    return round_scalar(s, g, draw_at(counter, bits), bits.r)


@jit
def multiply(a, b, exact, gp, uses, first, bits, out):  # type: ignore[no-untyped-def]
    """Terms that are products."""
    for i in range(out.size):
        p = a[i] * b[i]
        out[i] = p if exact else operand(round_scalar(p, gp, draw_at(first + i * uses, bits), bits.r), gp)


@jit
def fused(a, b, trail):  # type: ignore[no-untyped-def]
    """A chain of FP64's own fma; it starts from the rounded product."""
    total = 0.0
    for i in range(a.size):
        total = fma64(a[i], b[i], total) if i else a[i] * b[i]
        if trail.size:
            trail[i] = total
    return total


@jit
def exactly(x, n, g, o, first, bits, trail, space):  # type: ignore[no-untyped-def]
    """The order whose only roundings are those of results."""
    digits = np.empty((2, DIGITS), np.int64)
    total = exact_sum(x, n, g.native, g.mode == DOWN, digits[0], digits[1], trail)
    last = first + o.uses - 1
    for i in range(trail.size):
        trail[i] = start(trail[i], g, last + i * o.uses, bits)
    return start(total, g, last + (n - 1) * o.uses, bits)


def _sum_rows(kind: int, one_sum: Any) -> Any:
    """The loop over outputs for one order: sums of terms a[r], or of products.

    Products are a[r] * b[r], or for a matrix product of so many columns a[r // columns] * b[r % columns].
    """

    def sum_rows(a, b, columns, first, end, pair, exact, g, gp, o, bits, out, trail):  # type: ignore[no-untyped-def]
        n = a.shape[1]
        terms, space = np.empty(n if pair else 0), np.empty(n)
        for r in range(first, end if n else first):
            x, y = (a[r // columns], b[r % columns]) if columns else (a[r], b[r])
            counter = r * n * o.uses
            if kind == SEQUENTIAL and pair and exact and g.native:
                out[r] = fused(x, y, trail[r])
                continue
            if pair:
                multiply(x, y, exact, gp, o.uses, counter, bits, terms)
                x = terms
            out[r] = one_sum(x, n, g, o, counter, bits, trail[r], space)

    return jit(named(sum_rows, one_sum))


SUM_ROWS = [_sum_rows(kind, f) for kind, f in enumerate([*orders_of(np.float64, start, plus, operand), exactly])]
