# mypy: allow-untyped-defs, allow-untyped-calls
"""The fast twin of ``numsim.blocks.hadamard``: as many columns at a time as the nearest cache holds 16 times.

Sixteen rows of a buffer are added and subtracted in place, two rounds at a time (1 and 2 apart, then 4 and 8), rounded
there, and written out. Every sum is the same FP32 sum of the same two numbers as in the reference.
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
from numsim.kernels._rounding_plan import LOOPS, prepare
from numsim.rounding import Policy

WIDTH = 1 << 9  # columns at a time (no loop knows this number: tests change it)
_QUARTER = np.float32(0.25)
_nearest_even = LOOPS[32].nearest_even


def butterflies(x: Floats, signs: int, inverse: bool, format: Format) -> Floats:
    """Sums and differences along the middle one of three axes, and one rounding."""
    prepared = prepare(format, Policy(nan="max"), 32, True)
    if not (prepared.quick and format.max_rank and kernels.fits_source(np.float32, format)):
        return reference(x, signs, inverse, format)
    out, (groups, _, width) = np.empty(x.size, np.float32), x.shape
    numbers = np.require(x, requirements=("C", "A")).reshape(-1).view()
    numbers.flags.writeable = False
    units = -(-groups // WIDTH) if width == 1 else groups * -(-width // WIDTH)

    def work(first: int, end: int) -> None:
        hold = np.empty(16 * min(WIDTH, groups if width == 1 else width), np.float32)
        words, read_only = hold.view(np.uint32), hold.view(np.uint32)
        read_only.flags.writeable = False
        given = sign_factors(signs), inverse, width, first, end, WIDTH, hold, words, read_only, prepared.plan
        _sixteens(numbers, out, *given)

    over_chunks(units, work, large=max(LARGE // (16 * min(WIDTH, x.size // 16)), 1))
    return out.reshape(x.shape)


TWINS = [(reference, butterflies)]


@jit
def _sixteens(x, out, signs, inverse, width, first, end, most, hold, words, read_only, plan):
    """Sixteen rows of ``width``, or for width 1 sixteen numbers side by side, which become columns of the buffer."""
    strips = (width + most - 1) // most
    for unit in range(first, end):
        if width == 1:
            top, count = unit * most * 16, min(most, x.size // 16 - unit * most)
        else:
            top, count = unit // strips * 16 * width + unit % strips * most, min(most, width - unit % strips * most)
        size = 16 * count
        for i in range(16):
            row, factor = hold[i * count : (i + 1) * count], _QUARTER if inverse else np.float32(signs[i] * _QUARTER)
            if width == 1:
                _take_every_16th(x[top : top + size], i, factor, row)
            else:
                _multiply(x[top + i * width : top + i * width + count], factor, row)
        for apart in (1, 4):
            for i in range(16):
                if i // apart % 4 == 0:
                    _four(hold, i * count, apart * count, count)
        if inverse:
            for i in range(16):
                _multiply(hold[i * count : (i + 1) * count], signs[i], hold[i * count : (i + 1) * count])
        _nearest_even(read_only[:size], words[:size], plan)
        for i in range(16):
            row = hold[i * count : (i + 1) * count]
            if width == 1:
                _put_every_16th(row, i, out[top : top + size])
            else:
                out[top + i * width : top + i * width + count] = row


@jit
def _multiply(row, factor, out):
    for j in range(out.size):
        out[j] = np.float32(row[j] * factor)


@jit
def _take_every_16th(numbers, i, factor, out):
    for j in range(out.size):
        out[j] = np.float32(numbers[16 * j + i] * factor)


@jit
def _put_every_16th(row, i, out):
    for j in range(row.size):
        out[16 * j + i] = row[j]


@jit
def _four(hold, start, apart, count):
    """Two rounds among four rows."""
    a, b = hold[start : start + count], hold[start + apart : start + apart + count]
    c, d = hold[start + 2 * apart : start + 2 * apart + count], hold[start + 3 * apart : start + 3 * apart + count]
    for j in range(count):
        sum0, difference0 = np.float32(a[j] + b[j]), np.float32(a[j] - b[j])
        sum1, difference1 = np.float32(c[j] + d[j]), np.float32(c[j] - d[j])
        a[j], c[j] = np.float32(sum0 + sum1), np.float32(sum0 - sum1)
        b[j], d[j] = np.float32(difference0 + difference1), np.float32(difference0 - difference1)
