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
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.blocks import array
from numsim.blocks.codebooks import Codebook
from numsim.blocks.formats import BlockFormat
from numsim.blocks.rules import RULES, Floats, Scales, tensor_level
from numsim.codes import code_dtype
from numsim.events import Events
from numsim.formats import Format
from numsim.kernels import rounding
from numsim.kernels._jit import as_bits, jit
from numsim.kernels._pool import LARGE, over_chunks
from numsim.random import Draw
from numsim.rounding import Policy

CHUNK = 1 << 18  # products that wait to be rounded
PIECE = 1 << 16  # of a line, for which a largest magnitude is found
_SCALES = 1 << 15  # that a rule computes at a time
_BLOCK = 1 << 11  # products that stay in the nearest cache (no loop knows these numbers: tests change them)
_MAGNITUDE, _INFINITY, _NAN, _U0 = (np.uint32(word) for word in (0x7FFFFFFF, 0x7F800000, 0x7FC00000, 0))
_F0, _BEYOND = np.float32(0), np.float32(np.inf)
_INTEGERS = np.float32(1.5 * 2**23)  # plus an integer it is exact, with the integer in the low bits
_nearest_even_codes, _other_modes_codes = rounding._LOOPS[32].nearest_even_codes, rounding._LOOPS[32].other_modes


# --- the twins --------------------------------------------------------------------------------------------------------
def amaxes(x: Floats, rows: int, columns: int, nan: str) -> Floats:
    """The largest magnitude of each tile of a matrix, as a grid."""
    words, limit = _read_only(x).view(np.uint32), _INFINITY if nan == "ignored" else _MAGNITUDE
    pieces = -(-columns // PIECE)  # of a line
    found = np.empty(x.size // columns * pieces, np.uint32)

    def work(first: int, end: int) -> None:
        if pieces == 1:
            _largest(words.reshape(-1, columns)[first:end], limit, found[first:end])
            return
        for i in range(first, end):
            line, piece = divmod(i, pieces)
            row = words[line * columns : (line + 1) * columns][piece * PIECE : (piece + 1) * PIECE]
            _largest(row.reshape(1, -1), limit, found[i : i + 1])

    over_chunks(found.size, work, large=LARGE // min(columns, PIECE))
    tiles = found.reshape(x.shape[0] // rows, rows, x.shape[1] // columns, pieces)
    most: npt.NDArray[Any] = tiles.max(axis=(1, 3)) if rows * pieces > 1 else tiles[:, 0, :, 0]
    return most.view(np.float32)


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
        whole, back = tensor_level(amax, format)
        scales = _scales(amax, format, whole)
    lines, element = _Lines(_read_only(x), _by_line(scales.multiplier, rows), columns), format.element
    if isinstance(element, Codebook):
        codes = _encode_codebook(lines, element)
    else:
        codes = _encode_format(lines, element, draw, policy, events)
    return codes.reshape(x.shape), scales.codes, float(back)


def decode_matrix(
    codes: npt.NDArray[Any], rows: int, columns: int, format: BlockFormat, factors: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """A matrix of tiles of codes to values, elements times the factor of their tile."""
    if format.element.bits > 16:
        return array.decode_matrix(codes, rows, columns, format, factors)
    table = array.decode_elements(np.arange(format.element.codes, dtype=codes.dtype), format)
    lines = _read_only(codes), _by_line(factors, rows), columns
    values = np.empty(codes.size, np.float64)
    over_chunks(codes.size, lambda first, end: _look_up(*lines, _read_only(table), first, values[first:end]))
    return values.reshape(codes.shape)


TWINS = [(getattr(array, twin.__name__), twin) for twin in (amaxes, quantize_matrix, decode_matrix)]


class _Lines(NamedTuple):
    """Numbers, flat, and a factor for each line of them."""

    numbers: Floats
    factors: Floats
    columns: int


def _encode_codebook(lines: _Lines, element: Codebook) -> npt.NDArray[Any]:
    codes, (loop, *options) = np.empty(lines.numbers.size, np.uint8), _nearest(element)

    def work(first: int, end: int) -> None:
        loop(*lines, first, codes[first:end], np.empty(_BLOCK, np.float32), *options)

    over_chunks(codes.size, work)
    return codes


def _encode_format(
    lines: _Lines, element: Format, draw: Draw | None, policy: Policy, events: Events | None
) -> npt.NDArray[Any]:
    codes = np.empty(lines.numbers.size, code_dtype(element))
    if events is None and element.max_rank and kernels.fits_source(np.float32, element):
        _round_products(lines, element, draw, policy, codes)
        return codes
    counted: list[Events | None] = []

    def work(first: int, end: int) -> None:
        products, seen = np.empty(min(CHUNK, end - first), np.float32), None if events is None else Events()
        for start in range(first, end, CHUNK):
            part, span = products[: end - start], slice(start, min(start + CHUNK, end))
            _multiply(*lines, _BEYOND, start, part)
            codes[span] = rounding.encode(part, element, policy, _draws_of(draw, span), seen)
        counted.append(seen)

    over_chunks(codes.size, work)
    for seen in counted:
        if events is not None and seen is not None:
            events.add(seen)
    return codes


def _round_products(lines: _Lines, element: Format, draw: Draw | None, policy: Policy, codes: npt.NDArray[Any]) -> None:
    """The same by the loops of ``kernels/rounding.py`` themselves. What is beyond the largest element becomes it here,
    and then needs no care there. (``quantize`` refuses CPUs that flush subnormal numbers.)"""
    prepared, most = rounding._prepare(element, policy, 32, False), np.float32(element.max)
    nearest = policy.rounding == "nearest-even" and prepared.quick

    def work(first: int, end: int) -> None:
        products = np.empty(_BLOCK if nearest else min(CHUNK, end - first), np.float32)
        given = most, products, _read_only(products).view(np.uint32), prepared.plan
        if nearest:
            _nearest_even(*lines, first, codes[first:end], *given)
            return
        quick = prepared.quick and prepared.plain
        for i, j, *chance in rounding._draws(draw, first, end - first):
            _other_modes(*lines, first + i, codes[first + i : first + j], *given, quick, *chance)

    over_chunks(codes.size, work)


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


def _by_line(grid: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """A number for each tile, repeated for each of its lines."""
    return _read_only(grid if rows == 1 else grid.repeat(rows, axis=0))


def _read_only(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A flat view of the one type for which kernels are compiled."""
    view: npt.NDArray[Any] = np.require(x, requirements=("C", "A")).reshape(-1).view()
    view.flags.writeable = False
    return view


# --- loops ------------------------------------------------------------------------------------------------------------
@jit
def _largest(words, limit, out):
    """The largest magnitude of each row, of those up to ``limit``; NaN comes out quiet."""
    for i in range(out.size):
        row = words[i]
        most = _U0
        for j in range(row.size):
            a = np.uint32(row[j] & _MAGNITUDE)
            most = max(most, _U0 if a > limit else a)
        out[i] = most if most <= _INFINITY else _NAN


@jit
def _multiply(x, factors, columns, most, start, products):
    """Numbers from ``start`` on times the factors of their lines, none beyond ``most``; NaN stays."""
    line, place, done = start // columns, start % columns, 0
    while done < products.size:
        count = min(columns - place, products.size - done)
        row, factor, out = x[start + done : start + done + count], factors[line], products[done : done + count]
        for j in range(out.size):
            y = np.float32(row[j] * factor)
            out[j] = most if y > most else (-most if y < -most else y)
        line, place, done = line + 1, 0, done + count


@jit
def _look_up(codes, factors, columns, table, start, values):
    """Values of codes from ``start`` on times the factors of their lines."""
    line, place, done = start // columns, start % columns, 0
    while done < values.size:
        count = min(columns - place, values.size - done)
        row, factor, out = codes[start + done : start + done + count], factors[line], values[done : done + count]
        for j in range(out.size):
            out[j] = table[row[j]] * factor
        line, place, done = line + 1, 0, done + count


@jit
def _nearest_even(x, factors, columns, first, codes, most, products, words, plan):
    """Codes of products, a few at a time; ``words`` are the products again."""
    for start in range(0, codes.size, products.size):
        results = codes[start : start + products.size]
        _multiply(x, factors, columns, most, first + start, products[: results.size])
        _nearest_even_codes(words[: results.size], results, plan)


@jit
def _other_modes(x, factors, columns, first, codes, most, products, words, plan, quick, r, given, counter, key0, key1):
    counts = np.zeros(8, np.int64)
    for start in range(0, codes.size, products.size):
        results = codes[start : start + products.size]
        _multiply(x, factors, columns, most, first + start, products[: results.size])
        bits, low = given[start : start + products.size], np.uint32(counter + np.uint32(start))
        _other_modes_codes(words[: results.size], results, plan, quick, None, counts, r, bits, low, key0, key1)


# --- codebooks --------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=64)
def _nearest(element: Codebook) -> tuple[Any, ...]:
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
        return _nearest_integers, np.float32(1 / step), *ends, np.uint32(mask)

    order = element.order.astype(np.uint32)
    with np.errstate(over="ignore"):
        bounds = element.above.astype(np.float32)
    bounds = np.where(bounds > element.above, np.nextafter(bounds, np.float32(-np.inf)), bounds)
    if len(bounds) < 16 and np.array_equal(order, np.arange(len(order))):
        return _count_in_fours, np.pad(bounds, (0, 15 - len(bounds)), constant_values=np.inf)  # nothing is above that
    fours = (0, -len(bounds) % 4)  # what is added changes nothing
    bounds, changes = np.pad(bounds, fours), np.pad(order[:-1] ^ order[1:], fours)
    return _count_bounds, bounds, changes, order[0]


@jit
def _nearest_integers(x, factors, columns, first, codes, products, step, least, most, mask):
    """Two's complement. From 2^23 on the spacing of float32 is 1: the CPU's own rounding of the sum is the one wanted,
    and leaves the integer in the low bits. ``step`` is a power of two; NaN counts as zero."""
    for start in range(0, codes.size, products.size):
        results = codes[start : start + products.size]
        _multiply(x, factors, columns, _BEYOND, first + start, products[: results.size])
        for j in range(results.size):
            y = np.float32(products[j] * step)
            y = y if y == y else _F0
            y = most if y > most else (least if y < least else y)
            results[j] = np.uint8(np.uint32(as_bits(np.float32(y + _INTEGERS)) & mask))


@jit
def _count_in_fours(x, factors, columns, first, codes, products, bounds):
    """How many of 15 bounds are below a number: first by fours, then among the three between. NaN counts as zero."""
    b0, b1, b2, b3, b4, b5, b6, b7 = (
        bounds[0],
        bounds[1],
        bounds[2],
        bounds[3],
        bounds[4],
        bounds[5],
        bounds[6],
        bounds[7],
    )
    b8, b9, b10, b11, b12, b13, b14 = bounds[8], bounds[9], bounds[10], bounds[11], bounds[12], bounds[13], bounds[14]
    for start in range(0, codes.size, products.size):
        results = codes[start : start + products.size]
        _multiply(x, factors, columns, _BEYOND, first + start, products[: results.size])
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
def _count_bounds(x, factors, columns, first, codes, products, bounds, changes, lowest):
    """From the lowest value's code on, each bound below a number changes some bits of the code. NaN counts as zero."""
    hold = np.empty(products.size, np.uint32)
    for start in range(0, codes.size, products.size):
        results = codes[start : start + products.size]
        part = products[: results.size]
        _multiply(x, factors, columns, _BEYOND, first + start, part)
        for j in range(part.size):
            part[j] = part[j] if part[j] == part[j] else _F0
            hold[j] = lowest
        for k in range(0, bounds.size, 4):
            b0, b1, b2, b3 = bounds[k], bounds[k + 1], bounds[k + 2], bounds[k + 3]
            c0, c1, c2, c3 = changes[k], changes[k + 1], changes[k + 2], changes[k + 3]
            for j in range(part.size):
                y = part[j]
                low = np.uint32((c0 if y > b0 else _U0) ^ (c1 if y > b1 else _U0))
                high = np.uint32((c2 if y > b2 else _U0) ^ (c3 if y > b3 else _U0))
                hold[j] = np.uint32(hold[j] ^ np.uint32(low ^ high))
        for j in range(part.size):
            results[j] = np.uint8(hold[j])
