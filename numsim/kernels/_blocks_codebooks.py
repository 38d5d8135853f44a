# mypy: allow-untyped-defs, allow-untyped-calls
"""Products as codes of codebooks: the loops, and which of them serves which codebook."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from numsim.blocks.codebooks import Codebook
from numsim.kernels._blocks_loops import ZERO, multiply
from numsim.kernels._jit import as_bits, jit

_F0, _BEYOND = np.float32(0), np.float32(np.inf)
_INTEGERS = np.float32(1.5 * 2**23)  # plus an integer it is exact, with the integer in the low bits


@lru_cache(maxsize=64)
def nearest(element: Codebook) -> tuple[Any, ...]:
    """The loop that finds the nearest value, and what it needs to know of the codebook."""
    integers, mask = np.arange(len(element.order)) - len(element.order) // 2, element.codes - 1
    used = element.decode(element.order)
    step = float(used[-1] - used[-2])
    if (
        element.bounds is None
        and element.ties == "even"
        and math.frexp(step)[0] == 0.5
        and np.array_equal(used, integers * step)
        and np.array_equal(element.order, integers & mask)
    ):
        ends = np.float32(integers[0]), np.float32(integers[-1])
        return nearest_integers, np.float32(1 / step), *ends, np.uint32(mask)

    order = element.order.astype(np.uint32)
    with np.errstate(over="ignore"):
        bounds = element.above.astype(np.float32)
    bounds = np.where(bounds > element.above, np.nextafter(bounds, np.float32(-np.inf)), bounds)
    if len(bounds) < 16 and np.array_equal(order, np.arange(len(order))):
        return count_in_fours, np.pad(bounds, (0, 15 - len(bounds)), constant_values=np.inf)  # nothing is above that
    fours = (0, -len(bounds) % 4)  # what is added changes nothing
    bounds, changes = np.pad(bounds, fours), np.pad(order[:-1] ^ order[1:], fours)
    return count_bounds, bounds, changes, order[0]


@jit
def nearest_integers(x, factors, columns, width, rows, first, codes, products, step, least, most, mask):
    """Two's complement. From 2^23 on the spacing of float32 is 1: the CPU's own rounding of the sum is the one wanted,
    and leaves the integer in the low bits. ``step`` is a power of two; NaN counts as zero."""
    for start in range(0, codes.size, products.size):
        results = codes[start : start + products.size]
        multiply(x, factors, columns, width, rows, _BEYOND, first + start, products[: results.size])
        for j in range(results.size):
            y = np.float32(products[j] * step)
            y = y if y == y else _F0
            y = most if y > most else (least if y < least else y)
            results[j] = np.uint8(np.uint32(as_bits(np.float32(y + _INTEGERS)) & mask))


@jit
def count_in_fours(x, factors, columns, width, rows, first, codes, products, bounds):
    """How many of 15 bounds are below a number: first by fours, then among the three between. NaN counts as zero."""
    b0, b1, b2, b3, b4 = bounds[0], bounds[1], bounds[2], bounds[3], bounds[4]
    b5, b6, b7, b8, b9 = bounds[5], bounds[6], bounds[7], bounds[8], bounds[9]
    b10, b11, b12, b13, b14 = bounds[10], bounds[11], bounds[12], bounds[13], bounds[14]
    for start in range(0, codes.size, products.size):
        results = codes[start : start + products.size]
        multiply(x, factors, columns, width, rows, _BEYOND, first + start, products[: results.size])
        for j in range(results.size):
            y = products[j] if products[j] == products[j] else _F0
            low = b12 if y > b11 else (b8 if y > b7 else (b4 if y > b3 else b0))
            middle = b13 if y > b11 else (b9 if y > b7 else (b5 if y > b3 else b1))
            high = b14 if y > b11 else (b10 if y > b7 else (b6 if y > b3 else b2))
            code = np.uint32(12 if y > b11 else (8 if y > b7 else (4 if y > b3 else 0)))
            code = np.uint32(code + np.uint32(y > low))
            code = np.uint32(code + np.uint32(y > middle))
            results[j] = np.uint8(np.uint32(code + np.uint32(y > high)))


@jit
def count_bounds(x, factors, columns, width, rows, first, codes, products, bounds, changes, lowest):
    """From the lowest value's code on, each bound below a number changes some bits of the code. NaN counts as zero."""
    hold = np.empty(products.size, np.uint32)
    for start in range(0, codes.size, products.size):
        results = codes[start : start + products.size]
        part = products[: results.size]
        multiply(x, factors, columns, width, rows, _BEYOND, first + start, part)
        for j in range(part.size):
            part[j] = part[j] if part[j] == part[j] else _F0
            hold[j] = lowest
        for k in range(0, bounds.size, 4):
            b0, b1, b2, b3 = bounds[k], bounds[k + 1], bounds[k + 2], bounds[k + 3]
            c0, c1, c2, c3 = changes[k], changes[k + 1], changes[k + 2], changes[k + 3]
            for j in range(part.size):
                y = part[j]
                low = np.uint32((c0 if y > b0 else ZERO) ^ (c1 if y > b1 else ZERO))
                high = np.uint32((c2 if y > b2 else ZERO) ^ (c3 if y > b3 else ZERO))
                hold[j] = np.uint32(hold[j] ^ np.uint32(low ^ high))
        for j in range(part.size):
            results[j] = np.uint8(hold[j])
