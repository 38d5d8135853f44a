# mypy: allow-untyped-defs, allow-untyped-calls
"""The compiled loops of ``kernels/blocks.py``: largest magnitudes, products, values, and codes of formats.

A *line* is a row of a tile that is at least two wide: numbers side by side that share a factor; ``factors`` has one for
each line. Tiles one wide lie below each other: ``factors`` then has rows like the matrix, one for ``rows`` of its own.
"""

from __future__ import annotations

import numpy as np

from numsim.kernels._jit import jit
from numsim.kernels._rounding_plan import LOOPS

MAGNITUDE, INFINITY, NAN, ZERO = (np.uint32(word) for word in (0x7FFFFFFF, 0x7F800000, 0x7FC00000, 0))
_nearest_even_codes, _other_modes_codes = LOOPS[32].nearest_even_codes, LOOPS[32].other_modes


# --- largest magnitudes -----------------------------------------------------------------------------------------------
@jit
def largest(words, limit, out):
    """The largest magnitude of each row, of those up to ``limit``; NaN comes out quiet."""
    for i in range(out.size):
        row = words[i]
        most = ZERO
        for j in range(row.size):
            a = np.uint32(row[j] & MAGNITUDE)
            most = max(most, ZERO if a > limit else a)
        out[i] = most if most <= INFINITY else NAN


@jit
def largest_below_each_other(words, limit, width, rows, piece, strip, first, end, out):
    """The same down the columns of a matrix, in pieces of each ``rows`` rows; as many columns at a time as the nearest
    cache holds."""
    pieces, strips = (rows + piece - 1) // piece, (width + strip - 1) // strip
    for unit in range(first, end):
        line, place = unit // strips, unit % strips * strip
        top = line // pieces * rows + line % pieces * piece
        bottom = min(top + piece, (line // pieces + 1) * rows)
        most = out[line * width + place : line * width + min(place + strip, width)]
        for j in range(most.size):
            most[j] = ZERO
        for i in range(top, bottom):
            row = words[i * width + place : i * width + place + most.size]
            for j in range(most.size):
                a = np.uint32(row[j] & MAGNITUDE)
                most[j] = max(most[j], ZERO if a > limit else a)
        for j in range(most.size):
            most[j] = most[j] if most[j] <= INFINITY else NAN


# --- products ---------------------------------------------------------------------------------------------------------
@jit
def multiply(x, factors, columns, width, rows, most, start, products):
    """Numbers from ``start`` on times their factors, none beyond ``most``; NaN stays."""
    length = columns if columns > 1 else width
    line, place, done = start // length, start % length, 0
    while done < products.size:
        count = min(length - place, products.size - done)
        row, out = x[start + done : start + done + count], products[done : done + count]
        if columns > 1:
            factor = factors[line]
            for j in range(out.size):
                y = np.float32(row[j] * factor)
                out[j] = most if y > most else (-most if y < -most else y)
        else:
            own = factors[line // rows * width + place : line // rows * width + place + count]
            for j in range(out.size):
                y = np.float32(row[j] * own[j])
                out[j] = most if y > most else (-most if y < -most else y)
        line, place, done = line + 1, 0, done + count


@jit
def look_up(codes, factors, columns, width, rows, table, start, values):
    """Values of codes from ``start`` on times their factors."""
    length = columns if columns > 1 else width
    line, place, done = start // length, start % length, 0
    while done < values.size:
        count = min(length - place, values.size - done)
        row, out = codes[start + done : start + done + count], values[done : done + count]
        if columns > 1:
            factor = factors[line]
            for j in range(out.size):
                out[j] = table[row[j]] * factor
        else:
            own = factors[line // rows * width + place : line // rows * width + place + count]
            for j in range(out.size):
                out[j] = table[row[j]] * own[j]
        line, place, done = line + 1, 0, done + count


# --- codes of products ------------------------------------------------------------------------------------------------
@jit
def nearest_even(x, factors, columns, width, rows, first, codes, most, products, words, plan):
    """Codes of products, a few at a time; ``words`` are the products again."""
    for start in range(0, codes.size, products.size):
        results = codes[start : start + products.size]
        multiply(x, factors, columns, width, rows, most, first + start, products[: results.size])
        _nearest_even_codes(words[: results.size], results, plan)


@jit
def other_modes(
    x, factors, columns, width, rows, first, codes, most, products, words, plan, quick, r, given, counter, key0, key1
):
    counts = np.zeros(8, np.int64)
    for start in range(0, codes.size, products.size):
        results = codes[start : start + products.size]
        multiply(x, factors, columns, width, rows, most, first + start, products[: results.size])
        bits, low = given[start : start + products.size], np.uint32(counter + np.uint32(start))
        _other_modes_codes(words[: results.size], results, plan, quick, None, counts, r, bits, low, key0, key1)
