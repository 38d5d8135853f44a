# mypy: allow-untyped-defs, allow-untyped-calls
"""The fast twin of ``numsim.blocks.hadamard``: as many columns at a time as the near caches hold 16 times.

The first of four rounds goes from the numbers to a buffer, two stay there, the last one goes to the results, which are
rounded where they are. Every sum is the same FP32 sum of the same two numbers as in the reference.
"""

from __future__ import annotations

import numpy as np

from numsim import kernels
from numsim.blocks.hadamard import butterflies as reference
from numsim.blocks.hadamard import sign_factors
from numsim.blocks.rules import Floats
from numsim.formats import Format
from numsim.kernels._jit import jit
from numsim.kernels._pool import LARGE, over_chunks
from numsim.kernels._rounding_plan import LOOPS, as_read_only, prepare
from numsim.rounding import Policy

WIDTH = 1 << 12  # columns at a time (no loop knows this number: tests change it)
_nearest_even = LOOPS[32].nearest_even


def butterflies(x: Floats, signs: int, inverse: bool, format: Format) -> Floats:
    """Sums and differences along the middle one of three axes, and one rounding."""
    prepared = prepare(format, Policy(nan="max"), 32, True)
    if not (prepared.quick and format.max_rank and kernels.fits_source(np.float32, format)):
        return reference(x, signs, inverse, format)
    out, (groups, _, width) = np.empty(x.size, np.float32), x.shape
    numbers, words = as_read_only(x), out.view(np.uint32)
    factors, ones = sign_factors(signs), np.ones(16, np.float32)
    before, after = (ones, factors) if inverse else (factors, ones)
    before, count = before * np.float32(0.25), min(WIDTH, width) if width > 1 else min(-(-WIDTH // 8), groups)

    def work(first: int, end: int) -> None:
        hold, turned = np.empty((2, 16 * count), np.float32)
        if width > 1:
            results = out, words, as_read_only(words)
            _below_each_other(numbers, *results, before, after, prepared.plan, width, count, first, end, hold)
        else:
            buffers = hold, turned, turned.view(np.uint32), as_read_only(turned.view(np.uint32))
            _side_by_side(numbers, out, before, after, prepared.plan, count, first, end, *buffers)

    units = groups * -(-width // count) if width > 1 else -(-groups // count)
    over_chunks(units, work, large=max(LARGE // (16 * count), 1))
    return out.reshape(x.shape)


TWINS = [(reference, butterflies)]


# --- loops ------------------------------------------------------------------------------------------------------------
@jit
def _below_each_other(x, out, words, read_only, before, after, plan, width, most, first, end, hold):
    """Sixteen rows of ``width``, ``most`` columns at a time."""
    strips = (width + most - 1) // most
    for unit in range(first, end):
        top, count = unit // strips * 16 * width + unit % strips * most, min(most, width - unit % strips * most)
        _first_round(x, top, width, before, hold, count)
        _two_rounds(hold, count)
        _last_round(hold, count, after, out, top, width)
        for i in range(16):
            here = top + i * width
            _nearest_even(read_only[here : here + count], words[here : here + count], plan)


@jit
def _side_by_side(x, out, before, after, plan, most, first, end, hold, turned, words, read_only):
    """Sixteen numbers that lie side by side become columns of a buffer, and go back."""
    for unit in range(first, end):
        top, count = unit * most * 16, min(most, x.size // 16 - unit * most)
        size = 16 * count
        for i in range(16):
            _take_every_16th(x[top : top + size], i, turned[i * count : (i + 1) * count])
        _first_round(turned, 0, count, before, hold, count)
        _two_rounds(hold, count)
        _last_round(hold, count, after, turned, 0, count)
        _nearest_even(read_only[:size], words[:size], plan)
        for i in range(16):
            _put_every_16th(turned[i * count : (i + 1) * count], i, out[top : top + size])


@jit
def _take_every_16th(numbers, i, out):
    for j in range(out.size):
        out[j] = numbers[16 * j + i]


@jit
def _put_every_16th(row, i, out):
    for j in range(row.size):
        out[16 * j + i] = row[j]


@jit
def _first_round(x, top, width, factors, hold, count):
    """Rows 1 apart, times their factors."""
    for i in range(0, 16, 2):
        at, p, q = top + i * width, factors[i], factors[i + 1]
        a, b = x[at : at + count], x[at + width : at + width + count]
        c, d = hold[i * count : (i + 1) * count], hold[(i + 1) * count : (i + 2) * count]
        for j in range(count):
            left, right = np.float32(a[j] * p), np.float32(b[j] * q)
            c[j], d[j] = np.float32(left + right), np.float32(left - right)


@jit
def _two_rounds(hold, count):
    """Rows 2 and then 4 apart, in place."""
    for i in (0, 1, 8, 9):
        a, b = hold[i * count : (i + 1) * count], hold[(i + 2) * count : (i + 3) * count]
        c, d = hold[(i + 4) * count : (i + 5) * count], hold[(i + 6) * count : (i + 7) * count]
        for j in range(count):
            sum0, difference0 = np.float32(a[j] + b[j]), np.float32(a[j] - b[j])
            sum1, difference1 = np.float32(c[j] + d[j]), np.float32(c[j] - d[j])
            a[j], c[j] = np.float32(sum0 + sum1), np.float32(sum0 - sum1)
            b[j], d[j] = np.float32(difference0 + difference1), np.float32(difference0 - difference1)


@jit
def _last_round(hold, count, factors, out, top, width):
    """Rows 8 apart; the results times their factors."""
    for i in range(8):
        at, p, q = top + i * width, factors[i], factors[i + 8]
        a, b = hold[i * count : (i + 1) * count], hold[(i + 8) * count : (i + 9) * count]
        c, d = out[at : at + count], out[at + 8 * width : at + 8 * width + count]
        for j in range(count):
            left, right = np.float32(a[j] + b[j]), np.float32(a[j] - b[j])
            c[j], d[j] = np.float32(left * p), np.float32(right * q)
