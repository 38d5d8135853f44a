# mypy: allow-untyped-defs, allow-untyped-calls
"""Fast twins of ``numsim.blocks.array``: matrices of tiles, in a few passes over memory.

The largest magnitudes come first, then the rule's scales (NumPy: the rule's own code), then chunks of numbers that stay
in the cache: multiplied into a buffer, and rounded by the loops of ``kernels/rounding.py``. Tiles one wide, which are
blocks along another axis than the last, are read row by row like all others: nothing is transposed.

Why the bits are the reference's: magnitudes are ordered as their words are, NaN above all; a product is one FP32
product; the rest is the same rounding. Nothing depends on where chunks begin: draws are numbered by element.
"""

from __future__ import annotations

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
from numsim.kernels import _blocks_loops as loops
from numsim.kernels import rounding
from numsim.kernels._blocks_codebooks import nearest
from numsim.kernels._blocks_loops import INFINITY, MAGNITUDE
from numsim.kernels._pool import LARGE, over_chunks
from numsim.kernels._rounding_plan import as_read_only, draws, prepare
from numsim.random import Draw
from numsim.rounding import Policy

CHUNK = 1 << 18  # products that wait to be rounded
PIECE = 1 << 16  # of a line, for which a largest magnitude is found
ROWS = 1 << 6  # below each other, for which a largest magnitude is found
_SCALES = 1 << 15  # that a rule computes at a time
_BLOCK = 1 << 11  # products that stay in the nearest cache (no loop knows these numbers: tests change them)
_BEYOND = np.float32(np.inf)


# --- the twins --------------------------------------------------------------------------------------------------------
def amaxes(x: Floats, rows: int, columns: int, nan: str) -> Floats:
    """The largest magnitude of each tile of a matrix, as a grid."""
    words, limit = as_read_only(x).view(np.uint32), INFINITY if nan == "ignored" else MAGNITUDE
    if columns == 1:
        return _amaxes_below_each_other(words, x.shape[1], rows, limit)
    pieces = -(-columns // PIECE)  # of a line
    found = np.empty(x.size // columns * pieces, np.uint32)

    def work(first: int, end: int) -> None:
        if pieces == 1:
            loops.largest(words.reshape(-1, columns)[first:end], limit, found[first:end])
            return
        for i in range(first, end):
            line, piece = divmod(i, pieces)
            row = words[line * columns : (line + 1) * columns][piece * PIECE : (piece + 1) * PIECE]
            loops.largest(row.reshape(1, -1), limit, found[i : i + 1])

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
    lines, element = _lines(x, scales.multiplier, rows, columns), format.element
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
    lines, values = _lines(codes, factors, rows, columns), np.empty(codes.size, np.float64)
    table = as_read_only(table)
    over_chunks(codes.size, lambda first, end: loops.look_up(*lines, table, first, values[first:end]))
    return values.reshape(codes.shape)


TWINS = [(getattr(array, twin.__name__), twin) for twin in (amaxes, quantize_matrix, decode_matrix)]


class _Lines(NamedTuple):
    """Numbers and factors, flat, as ``_blocks_loops.py`` takes them."""

    numbers: npt.NDArray[Any]
    factors: npt.NDArray[Any]
    columns: int
    width: int
    rows: int


def _lines(numbers: npt.NDArray[Any], grid: npt.NDArray[Any], rows: int, columns: int) -> _Lines:
    """A matrix, and a grid of factors of its tiles."""
    each = grid.repeat(rows, axis=0) if columns > 1 and rows > 1 else grid
    return _Lines(as_read_only(numbers), as_read_only(each), columns, numbers.shape[1], rows)


def _amaxes_below_each_other(words: npt.NDArray[Any], width: int, rows: int, limit: Any) -> Floats:
    """Of tiles one wide."""
    pieces, strips = -(-rows // ROWS), -(-width // _BLOCK)
    found = np.empty((words.size // width // rows, pieces, width), np.uint32)
    sizes, flat = (width, rows, ROWS, _BLOCK), found.reshape(-1)

    def work(first: int, end: int) -> None:
        loops.largest_below_each_other(words, limit, *sizes, first, end, flat)

    over_chunks(len(found) * pieces * strips, work, large=LARGE // (min(rows, ROWS) * min(width, _BLOCK)))
    most: npt.NDArray[Any] = found.max(axis=1) if pieces > 1 else found[:, 0]
    return most.view(np.float32)


def _encode_codebook(lines: _Lines, element: Codebook) -> npt.NDArray[Any]:
    codes, (loop, *options) = np.empty(lines.numbers.size, np.uint8), nearest(element)

    def work(first: int, end: int) -> None:
        loop(*lines, first, codes[first:end], np.empty(_BLOCK, np.float32), *options)

    over_chunks(codes.size, work)
    return codes


def _encode_format(
    lines: _Lines, element: Format, draw: Draw | None, policy: Policy, events: Events | None
) -> npt.NDArray[Any]:
    codes = np.empty(lines.numbers.size, code_dtype(element))
    if events is None and kernels.fits_source(np.float32, element):
        _round_products(lines, element, draw, policy, codes)
        return codes
    counted: list[Events | None] = []

    def work(first: int, end: int) -> None:
        products, seen = np.empty(min(CHUNK, end - first), np.float32), None if events is None else Events()
        for start in range(first, end, CHUNK):
            part, span = products[: end - start], slice(start, min(start + CHUNK, end))
            loops.multiply(*lines, _BEYOND, start, part)
            codes[span] = rounding.encode(part, element, policy, draw and draw.after(span.start), seen)
        counted.append(seen)

    over_chunks(codes.size, work)
    for seen in counted:
        if events is not None and seen is not None:
            events.add(seen)
    return codes


def _round_products(lines: _Lines, element: Format, draw: Draw | None, policy: Policy, codes: npt.NDArray[Any]) -> None:
    """The same by the loops of ``kernels/rounding.py`` themselves. What is beyond the largest element becomes it here,
    and then needs no care there. (``quantize`` refuses CPUs that flush subnormal numbers.)"""
    prepared, most = prepare(element, policy, 32, False), np.float32(element.max)
    to_nearest = policy.rounding == "nearest-even" and prepared.quick

    def work(first: int, end: int) -> None:
        products = np.empty(_BLOCK if to_nearest else min(CHUNK, end - first), np.float32)
        given = most, products, as_read_only(products).view(np.uint32), prepared.plan
        if to_nearest:
            loops.nearest_even(*lines, first, codes[first:end], *given)
            return
        quick = prepared.quick and prepared.plain
        for i, j, *chance in draws(draw, first, end - first):
            loops.other_modes(*lines, first + i, codes[first + i : first + j], *given, quick, *chance)

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
