# mypy: allow-untyped-defs, allow-untyped-calls
"""Fast twins of ``numsim.blocks.array``: matrices of tiles, in a few passes over memory.

A *line* is one row of a tile: ``columns`` numbers that lie side by side and share a multiplier. The largest magnitudes
come first, then the rule's scales (NumPy: the rule's own code), then chunks of lines that stay in the cache: multiplied
into a buffer, and rounded by ``kernels/rounding.py``.

Why the bits are the reference's: magnitudes are ordered as their words are, NaN above all; a product is one FP32
product; the rest is the same rounding. Nothing depends on where chunks begin: draws are numbered by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.blocks import array
from numsim.blocks.codebooks import Codebook
from numsim.blocks.formats import BlockFormat
from numsim.blocks.rules import RULES, Floats, Scales, tensor_scale
from numsim.codes import code_dtype
from numsim.events import Events
from numsim.kernels import rounding
from numsim.kernels._jit import as_bits, jit
from numsim.kernels._pool import LARGE, over_chunks
from numsim.random import Draw
from numsim.rounding import Policy

CHUNK = 1 << 18  # numbers whose products stay in the cache until they are rounded
_SCALES = 1 << 15  # scales that a rule computes at a time
_BLOCK = 1024
_MAGNITUDE, _INFINITY, _NAN, _U0 = (np.uint32(word) for word in (0x7FFFFFFF, 0x7F800000, 0x7FC00000, 0))
_F0, _INTEGERS = np.float32(0), np.float32(1.5 * 2**23)  # to which an integer is added exactly, in its low bits


# --- the twins --------------------------------------------------------------------------------------------------------
def amaxes(x: Floats, rows: int, columns: int, nan: str) -> Floats:
    """The largest magnitude of each tile of a matrix, as a grid."""
    lines = _Lines(x.size // columns, columns)
    words, limit = _read_only(x).reshape(-1).view(np.uint32), _INFINITY if nan == "ignored" else _MAGNITUDE
    found = np.empty(lines.units, np.uint32)

    def work(first: int, end: int) -> None:
        for unit, span, held in lines.spans(first, end):
            _largest(words[span].reshape(held.stop - held.start, -1), limit, found[unit])

    over_chunks(lines.units, work, large=lines.large)
    tiles = found.reshape(x.shape[0] // rows, rows, x.shape[1] // columns, lines.pieces)
    return np.asarray(tiles.max(axis=(1, 3))).view(np.float32)


def quantize_matrix(
    x: Floats,
    rows: int,
    columns: int,
    format: BlockFormat,
    given: Scales | None,
    draw: Draw | None,
    policy: Policy,
    events: Events | None,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], float]:
    """A float32 matrix of tiles to codes of elements, codes of scales (a grid), and a tensor scale."""
    scales, back = given, 1.0
    if scales is None:
        amax = amaxes(x, rows, columns, RULES[format.rule].nan)
        whole, back = tensor_scale(amax.max(), format) if format.has_tensor_scale else (np.float32(1), 1.0)
        scales = _scales(amax, format, whole)
    flat, factors = _read_only(x).reshape(-1), _read_only(scales.multiplier.repeat(rows, axis=0)).reshape(-1)
    element: Any = format.element
    nearest = _codebook(element) if isinstance(element, Codebook) else None
    results = np.empty(x.size, np.uint8 if nearest else code_dtype(element))
    # What is beyond the largest element becomes it, and need not go through the loops' careful path; but it is counted.
    most = np.float32(format.element_max if events is None else np.inf)
    counted: list[Events] = []

    def work(first: int, end: int) -> None:
        products, seen = np.empty(min(CHUNK, end - first), np.float32), None if events is None else Events()
        for start in range(first, end, CHUNK):
            part, span = products[: end - start], slice(start, min(start + CHUNK, end))
            _multiply(flat, factors, columns, most, start, part)
            if nearest:
                nearest(part, results[span])
            else:
                results[span] = rounding.encode(part, element, policy, _draws_of(draw, span), seen)
        if seen is not None:
            counted.append(seen)

    over_chunks(x.size, work)
    if events is not None:
        for seen in counted:
            events.add(seen)
    return results.reshape(x.shape), scales.codes, float(back)


TWINS = [(array.amaxes, amaxes), (array.quantize_matrix, quantize_matrix)]


# --- lines ------------------------------------------------------------------------------------------------------------
class _Lines(NamedTuple):
    """So many lines of ``columns`` numbers each, cut into pieces where they are longer than a chunk."""

    lines: int
    columns: int

    @property
    def pieces(self) -> int:
        """Of a line."""
        return -(-self.columns // CHUNK)

    @property
    def units(self) -> int:
        """All pieces."""
        return self.lines * self.pieces

    @property
    def large(self) -> int:
        """So many pieces are worth a second thread."""
        return LARGE // min(self.columns, CHUNK)

    def spans(self, first: int, end: int) -> Iterator[tuple[slice, slice, slice]]:
        """A chunk at a time: which pieces, which numbers, which lines they belong to."""
        if self.pieces == 1:
            step = CHUNK // self.columns
            for line in range(first, end, step):
                held = slice(line, min(line + step, end))
                yield held, slice(held.start * self.columns, held.stop * self.columns), held
        else:
            for unit in range(first, end):
                line, piece = divmod(unit, self.pieces)
                start = line * self.columns + piece * CHUNK
                stop = min(start + CHUNK, (line + 1) * self.columns)
                yield slice(unit, unit + 1), slice(start, stop), slice(line, line + 1)


def _scales(amax: Floats, format: BlockFormat, whole: Any) -> Scales:
    """The rule's scales of a grid: each depends on its own amax only, so the grid may be cut anywhere."""
    flat = amax.reshape(-1)
    found = Scales(np.empty(flat.size, np.float32), np.empty(flat.size, code_dtype(format.scale)))

    def work(first: int, end: int) -> None:
        for start in range(first, end, _SCALES):
            here = slice(start, min(start + _SCALES, end))
            found.multiplier[here], found.codes[here] = RULES[format.rule].scales(flat[here], format, whole)

    over_chunks(flat.size, work, large=_SCALES)
    return Scales(found.multiplier.reshape(amax.shape), found.codes.reshape(amax.shape))


def _draws_of(draw: Draw | None, span: slice) -> Draw | None:
    """The draws of some numbers."""
    if draw is None:
        return None
    if draw.given is not None:
        return replace(draw, given=draw.given[span])
    return replace(draw, position=draw.position + span.start)


def _read_only(x: Floats) -> Floats:
    """A view of the one type for which kernels are compiled."""
    view: Floats = np.require(x, requirements=("C", "A")).view()
    view.flags.writeable = False
    return view


# --- loops ------------------------------------------------------------------------------------------------------------
@jit
def _largest(words, limit, out):
    """The largest magnitude of each row, of those up to ``limit``; NaN comes out quiet."""
    for i in range(words.shape[0]):
        row = words[i]
        most = _U0
        for j in range(row.size):
            a = np.uint32(row[j] & _MAGNITUDE)
            most = max(most, _U0 if a > limit else a)
        out[i] = most if most <= _INFINITY else _NAN


@jit
def _multiply(x, factors, columns, most, start, products):
    """Numbers from ``start`` on times the factors of their lines, none larger than ``most``; NaN stays."""
    line, place, done = start // columns, start % columns, 0
    while done < products.size:
        count = min(columns - place, products.size - done)
        row, factor, out = x[start + done : start + done + count], factors[line], products[done : done + count]
        for j in range(out.size):
            y = np.float32(row[j] * factor)
            out[j] = most if y > most else (-most if y < -most else y)
        line, place, done = line + 1, 0, done + count


# --- codebooks --------------------------------------------------------------------------------------------------------
Encoder = Callable[[Floats, Any], None]


@lru_cache(maxsize=64)
def _codebook(element: Codebook) -> Encoder:
    """What writes the code of the nearest value for each of some numbers; NaN counts as zero."""
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
        found = np.float32(1 / step), np.float32(integers[0]), np.float32(integers[-1]), np.uint32(mask)
        return lambda x, codes: _nearest_integers(x, *found, codes)

    order = element.order.astype(np.uint32)
    with np.errstate(over="ignore"):
        bounds = element.above.astype(np.float32)
    bounds = np.where(bounds > element.above, np.nextafter(bounds, np.float32(-np.inf)), bounds)
    none = -len(bounds) % 4  # nothing is above infinity
    bounds, changes = np.pad(bounds, (0, none), constant_values=np.inf), np.pad(order[:-1] ^ order[1:], (0, none))
    return lambda x, codes: _count_bounds(x, bounds, changes, order[0], codes)


@jit
def _nearest_integers(x, factor, least, most, mask, codes):
    """Two's complement. From 2^23 on the spacing of float32 is 1: the CPU's own rounding of the sum is the one wanted,
    and leaves the integer in the low bits. The factor is a power of two."""
    for j in range(x.size):
        y = np.float32(x[j] * factor)
        y = y if y == y else _F0
        y = most if y > most else (least if y < least else y)
        codes[j] = np.uint8(np.uint32(as_bits(np.float32(y + _INTEGERS)) & mask))


@jit
def _count_bounds(x, bounds, changes, lowest, codes):
    """From the lowest value's code on, each bound below a number changes some bits of the code."""
    clean, hold = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.uint32)
    for start in range(0, x.size, _BLOCK):
        part, results = x[start : start + _BLOCK], codes[start : start + _BLOCK]
        for j in range(part.size):
            clean[j] = part[j] if part[j] == part[j] else _F0
            hold[j] = lowest
        for k in range(0, bounds.size, 4):
            b0, b1, b2, b3 = bounds[k], bounds[k + 1], bounds[k + 2], bounds[k + 3]
            c0, c1, c2, c3 = changes[k], changes[k + 1], changes[k + 2], changes[k + 3]
            for j in range(part.size):
                y = clean[j]
                low = np.uint32((c0 if y > b0 else _U0) ^ (c1 if y > b1 else _U0))
                high = np.uint32((c2 if y > b2 else _U0) ^ (c3 if y > b3 else _U0))
                hold[j] = np.uint32(hold[j] ^ np.uint32(low ^ high))
        for j in range(part.size):
            results[j] = np.uint8(hold[j])
