"""Twins of ``numsim.accumulate``: sums and matrix products.

Every plan runs in float64, one output after the other: an addition gives the float64 rounded to odd
(``kernels/arithmetic.py`` says why that is exact), and ``round_scalar`` rounds it to the accumulator in any mode.

The usual plans run in float32 lanes, many outputs of a product side by side, with nearest-even by bit operations. Why
float32 is exact there: a product of two factors of up to 12 bits has at most 24 and is exact
(``_products_fit_float32`` looks at the exponents); a float32 sum of two numbers of p <= 11 bits rounds twice, which is
harmless as 24 >= 2 p + 2; FP32 products and accumulators are rounded once, by the hardware.

Exact sums are whole numbers in a long accumulator (``_exact_sum.py``); ``_accumulate_orders.py`` has the other orders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim import accumulate
from numsim.accumulate import Plan
from numsim.codes import Codes, code_dtype, decode
from numsim.formats import FP32, FP64, Format
from numsim.host import flushes_subnormals, rounds_to_nearest
from numsim.kernels import _pool
from numsim.kernels import rounding as fast_rounding
from numsim.kernels._accumulate_orders import SEQUENTIAL, named, order_for, orders_of
from numsim.kernels._exact_sum import DIGITS, exact_sum
from numsim.kernels._jit import as_bits, as_float, fma64, jit
from numsim.kernels.arithmetic import add_odd, carries, is_native, operand_values, rounds_from_odd
from numsim.kernels.random import bits as random_bits
from numsim.random import Draw, keys
from numsim.rounding import ROUNDINGS, Policy, overflow_result, with_sign

EVEN, AWAY, TOWARD_ZERO, UP, DOWN, ODD, STOCHASTIC = range(len(ROUNDINGS))


def suits(plan: Plan, draw: Draw | None) -> bool:
    """Whether the kernels compute this plan bit for bit; the reference does the rest."""
    rounded = [plan.accumulator] if plan.product is None else [plan.accumulator, plan.product]
    if not rounds_to_nearest():
        return False
    if any(f.nan_code is None for f in rounded) and any(f.nan_code is not None for f in (*plan.inputs, *rounded)):
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


# --- one output after the other, in float64 ---------------------------------------------------------------------------
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


def _grid(format: Format, policy: Policy) -> Grid:
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


def _bits(draw: Draw | None, count: int) -> Bits:
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


# --- many outputs side by side, in float32 lanes ----------------------------------------------------------------------
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


def _lane(format: Format, policy: Policy) -> Lane:
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


def _sums_fit_float32(plan: Plan) -> bool:
    """Whether float32 lanes add numbers of the accumulator's format bit for bit (the reasons stand at the top)."""
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
        lane, order, bits = _lane(plan.accumulator, plan.policy), order_for(plan, n), _bits(None, 0)

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
    g, gp = _grid(plan.accumulator, plan.policy), _grid(plan.product or plan.accumulator, plan.policy)
    n, pair, exact = a.shape[1], len(plan.inputs) == 2, plan.product is None
    order, bits = order_for(plan, n), _bits(draw, out.size * n * plan.uses)

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
        lane, lane_p = _lane(plan.accumulator, plan.policy), _lane(plan.product or FP32, plan.policy)
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
        _sum(x[i], columns[i], n, plan, _after(draw, i * m * n * k * plan.uses), out[i], none)
    return _codes(out.reshape(batch, m, n), plan.accumulator)


def _after(draw: Draw | None, used: int) -> Draw | None:
    if draw is None:
        return None
    given = None if draw.given is None else draw.given[used:]
    return Draw(draw.r, draw.seed, draw.position + used, given)


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
