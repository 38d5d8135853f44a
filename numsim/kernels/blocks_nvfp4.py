# mypy: allow-untyped-defs, allow-untyped-calls
"""The fast twin of ``numsim.blocks.nvfp4``: both candidates of a few blocks at a time, in the nearest cache.

Every operation is the reference's, on FP32 numbers and in the same order; only what does not depend on each other goes
side by side: the columns of a row, and down the columns the sums of tiles one wide.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.blocks import nvfp4
from numsim.blocks.nvfp4 import Candidate
from numsim.blocks.rules import Floats
from numsim.formats import E2M1
from numsim.kernels._blocks_loops import multiply
from numsim.kernels._jit import jit
from numsim.kernels._pool import LARGE, over_chunks
from numsim.kernels._rounding_plan import LOOPS, as_read_only, prepare
from numsim.kernels.blocks import amaxes as amaxes
from numsim.rounding import Policy

STRIP = 1 << 12  # columns at a time (no loop knows this number: tests change it)
_MOST = np.float32(6)
_nearest_even, _nearest_even_codes = LOOPS[32].nearest_even, LOOPS[32].nearest_even_codes


def choose(
    matrix: Floats,
    rows: int,
    columns: int,
    candidates: tuple[Candidate, Candidate],
    level: tuple[Any, Any],
    error: str,
    tile: bool,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Codes of the elements, and a grid of where the second candidate has the smaller error."""
    width = matrix.size if rows == 1 and columns > 1 else matrix.shape[1]
    strip = max(STRIP // columns, 1) * columns
    codes, take4 = np.empty(matrix.size, np.uint8), np.empty(candidates[0].codes.size, np.bool_)
    numbers = as_read_only(matrix)
    scales = [x.reshape(-1) for c in candidates for x in (c.multiplier, c.stored)]
    policy = Policy("nearest-even", "saturate", "keep", "max")
    plans = prepare(E2M1, policy, 32, False).plan, prepare(E2M1, policy, 32, True).plan
    count = min(strip, width)

    def work(first: int, end: int) -> None:
        held, sums = np.empty((2, rows, count), np.uint8), np.empty((2, rows, count // columns), np.float32)
        each, values, spread = np.empty((3, count), np.float32)
        words = each.view(np.uint32)
        words.flags.writeable = False
        shape, buffers = (
            (width, rows, columns, strip),
            (held, sums, each, words, values, values.view(np.uint32), spread),
        )
        _choose(numbers, *scales, *level, *shape, tile, error == "mse", first, end, *buffers, *plans, codes, take4)

    over_chunks(matrix.size // (width * rows) * -(-width // strip), work, large=max(LARGE // (rows * count), 1))
    return codes.reshape(matrix.shape), take4.reshape(candidates[0].codes.shape)


TWINS = [(nvfp4.choose, choose)]


@jit
def _choose(x, multipliers6, stored6, multipliers4, stored4, amax, denominator, width, rows, columns, strip, tile,
            squared, first, end, held, sums, each, words, values, value_words, spread, to_codes, to_values, codes,
            take4):  # fmt: skip
    strips = (width + strip - 1) // strip
    for unit in range(first, end):
        band, place = unit // strips, unit % strips * strip
        count = min(strip, width - place)
        tiles, top, start = count // columns, (band * width * rows + place), (band * width + place) // columns
        for way in range(2):
            multipliers = (multipliers6 if way == 0 else multipliers4)[start : start + tiles]
            stored = (stored6 if way == 0 else stored4)[start : start + tiles]
            scales = stored
            if columns > 1:
                _spread(stored, columns, spread[:count])
                scales = spread[:count]
            for i in range(rows):
                row, own = x[top + i * width : top + i * width + count], sums[way, i, :tiles]
                multiply(row, multipliers, columns, count, 1, _MOST, 0, each[:count])
                _nearest_even_codes(words[:count], held[way, i, :count], to_codes)
                _nearest_even(words[:count], value_words[:count], to_values)
                _errors(row, values, scales, amax, denominator, squared, each[:count])
                if columns > 1:
                    _sum_each(each[:count], columns, own)
                else:
                    own[:] = each[:count]
            _add_rows(sums[way, :, :tiles], tile)
        four = take4[start : start + tiles]
        for t in range(tiles):
            four[t] = sums[1, 0, t] < sums[0, 0, t]
        for i in range(rows):
            out = codes[top + i * width : top + i * width + count]
            _choose_codes(held[0, i, :count], held[1, i, :count], four, columns, out)


@jit
def _spread(scales, columns, out):
    """A scale for each number."""
    for t in range(scales.size):
        scale, own = scales[t], out[t * columns : (t + 1) * columns]
        for j in range(own.size):
            own[j] = scale


@jit
def _errors(row, values, scales, amax, denominator, squared, out):
    """|d| or d^2 of each number."""
    for j in range(out.size):
        value = np.float32(np.float32(np.float32(values[j] * scales[j]) * amax) / denominator)
        out[j] = np.float32(value - row[j])
    if squared:
        for j in range(out.size):
            out[j] = np.float32(out[j] * out[j])
    else:
        for j in range(out.size):
            out[j] = abs(out[j])


@jit
def _choose_codes(first, second, four, columns, out):
    if columns == 1:
        for j in range(out.size):
            out[j] = second[j] if four[j] else first[j]
        return
    for t in range(four.size):
        a, b = first[t * columns : (t + 1) * columns], second[t * columns : (t + 1) * columns]
        own, second_one = out[t * columns : (t + 1) * columns], four[t]
        for j in range(own.size):
            own[j] = b[j] if second_one else a[j]


@jit
def _sum_each(each, columns, out):
    """Each ``columns`` numbers, from left to right."""
    for t in range(out.size):
        total = each[t * columns]
        for j in range(t * columns + 1, (t + 1) * columns):
            total = np.float32(total + each[j])
        out[t] = total


@jit
def _add_rows(sums, tile):
    """All rows into the first: by halves in a tile, else one by one."""
    half = sums.shape[0] // 2
    while tile and half:
        for i in range(half):
            sums[i] += sums[i + half]
        half //= 2
    if not tile:
        for i in range(1, sums.shape[0]):
            sums[0] += sums[i]
