"""What experiments on blocks, recipes and updates share: numbers, and blocks quantised by a machine's operations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.array import Array
from numsim.blocks import RULES, BlockArray, BlockFormat, Codebook, hadamard
from numsim.blocks.array import amaxes
from numsim.blocks.rules import make_scales
from numsim.blocks.tiles import Tiles
from numsim.codes import Codes, decode
from numsim.experiments.experiment import Session, cell, listed
from numsim.experiments.units import normal
from numsim.formats import E8M0, FP32, Format
from numsim.machines.question import ask
from numsim.rounding import encode
from numsim.scaling import Operand

Floats = npt.NDArray[np.float32]


# --- numbers ----------------------------------------------------------------------------------------------------------
def fp32(values: Any) -> Codes:
    """FP32 codes."""
    return np.asarray(encode(np.asarray(values, np.float32), FP32))


def normals(seed: int, count: int) -> Floats:
    """Nearly normal numbers of variance 1: sums of 48 uniform ones, exact before they are rounded to FP32."""
    return np.asarray(normal(seed, (4, count)).sum(axis=0) / 2, np.float32)


def in_blocks(x: Floats, format: BlockFormat) -> Floats:
    """Numbers as rows of one block each; what does not fill a block is left out."""
    assert format.block is not None
    size = format.block[0]
    return np.ascontiguousarray(x[: len(x) // size * size].reshape(-1, size))


# --- blocks -----------------------------------------------------------------------------------------------------------
def quantized(session: Session, rows: Floats, format: BlockFormat) -> BlockArray | None:
    """``blocks.quantize`` with a machine's casts and FP32 products; None where it has none. A row is a block.

    Scales are the rule's. Products with a power of two are exact, and not asked; the look-up of a codebook rounds
    nothing.
    """
    amax = np.abs(rows).max(axis=1, keepdims=True)
    (multiplier, codes), back = make_scales(amax, format)
    if format.scale == E8M0:
        with np.errstate(all="ignore"):
            scaled = rows * multiplier
    else:
        factors = np.broadcast_to(multiplier, rows.shape)
        product = session.ask(ask("mul", [FP32, FP32], FP32, [rows.view(np.uint32), factors.view(np.uint32)]))
        if product is None:
            return None
        scaled = product.view(np.float32)
    element = format.element
    if isinstance(element, Codebook):
        elements = element.encode(scaled)
    else:
        cast = saturated(session, scaled, element)
        if cast is None:
            return None
        elements = cast
    return BlockArray(elements, Array(codes, format.scale), format, tensor_scale=back)


def saturated(session: Session, scaled: Floats, element: Format, **options: Any) -> npt.NDArray[Any] | None:
    """A machine's cast of numbers that are clamped to the element's range before, as torchao does it."""
    most = np.float32(float(element.max))
    return session.ask(ask("cast", [FP32], element, [np.clip(scaled, -most, most).view(np.uint32)], **options))


def error(session: Session, rows: Floats, format: BlockFormat) -> float | None:
    """RMS of the error over RMS of the numbers."""
    array = quantized(session, rows, format)
    return None if array is None else relative(array.values, rows)


def relative(values: npt.NDArray[np.float64], rows: Floats) -> float:
    """RMS of the error over RMS of the numbers."""
    return float(np.sqrt(np.sum((values - rows) ** 2) / np.sum(rows.astype(np.float64) ** 2)))


# --- a matrix in a recipe ---------------------------------------------------------------------------------------------
class Kept(NamedTuple):
    """What is left of a tensor."""

    values: npt.NDArray[np.float64] | None  # after the way back; None where the machine has no such cast
    clipped: npt.NDArray[np.bool_]  # see ``clips``, though its block has a scale
    without_scale: npt.NDArray[np.bool_]  # in a block whose scale is 0


def quantized_operand(session: Session, operand: Operand, x: Floats, seed: int, amax: Any = None) -> Kept | None:
    """A matrix as a recipe feeds it to a product that sums along its rows: the machine multiplies and casts.

    The scales are numsim's. Where blocks do not fill the matrix it is as if zeros stood beside it. ``amax`` takes the
    place of the tensor's own. None where the machine does neither.
    """
    format, element = operand.format, operand.format.element
    assert isinstance(element, Format)
    rows = _filled(hadamard(x, output="bf16") if operand.transform else x, format)
    tiles = Tiles(rows.shape, format, -1)
    matrix = tiles.matrix(rows)
    amax = amaxes(matrix, tiles.rows, tiles.columns, RULES[format.rule].nan) if amax is None else np.full((1, 1), amax)
    (multiplier, codes), back = make_scales(amax, format)
    factor = tiles.spread(tiles.scales_back(decode(codes, format.scale))) * back
    multiplier = np.ascontiguousarray(tiles.spread(tiles.scales_back(multiplier)))

    product = session.ask(ask("mul", [FP32, FP32], FP32, [matrix.view(np.uint32), multiplier.view(np.uint32)]))
    scaled = matrix * multiplier if product is None else product.view(np.float32)
    drawn = {"rounding": "stochastic", "seed": seed, "sr_bits": operand.sr_bits}
    options = drawn if operand.rounding == "stochastic" else {}
    cast = saturated(session, scaled, element, **options)
    if product is None and cast is None:
        return None
    crop = tuple(slice(n) for n in x.shape)
    clipped, without = (tiles.back(w)[crop] for w in (clips(scaled, element) & (factor != 0), factor == 0))
    if cast is None:
        return Kept(None, clipped, without)
    values = tiles.back(decode(cast, element) * factor)[crop]
    if operand.transform:
        values = hadamard(values, inverse=True).astype(np.float64)
    return Kept(values, clipped, without)


def _filled(x: Floats, format: BlockFormat) -> Floats:
    """Zeros beside and below the matrix, until blocks fill it."""
    block = (1, 1, *(format.block or ()))[-2:]
    return np.pad(x, [(0, -n % (b or 1)) for n, b in zip(x.shape, block, strict=True)])


# --- words ------------------------------------------------------------------------------------------------------------
def turn(element: Format) -> float:
    """Half a step beyond the largest number, where rounding to nearest leaves a format for good.

    >>> from numsim import get_format
    >>> turn(get_format("e4m3")), turn(get_format("e5m2"))
    (464.0, 61440.0)
    """
    return float(element.max + element.magnitude(element.max_rank + 1)) / 2


def clips(scaled: Floats, element: Format) -> npt.NDArray[np.bool_]:
    """Which numbers rounding to nearest would take beyond the largest; a tie goes to the even code."""
    return np.abs(scaled) >= turn(element) if element.max_rank % 2 else np.abs(scaled) > turn(element)


def clipped_means(elements: Iterable[Format]) -> str:
    """What is called clipped, with the limit of each element format.

    >>> from numsim import get_format
    >>> print(clipped_means([get_format("e4m3")]))
    Clipped is what rounding to nearest would take beyond the largest element: E4M3 (448) above 464.
    """
    limits = [
        f"{e.title} ({cell(float(e.max))}) {'from' if e.max_rank % 2 else 'above'} {cell(turn(e))}"
        + (" on" if e.max_rank % 2 else "")
        for e in dict.fromkeys(elements)
    ]
    return f"Clipped is what rounding to nearest would take beyond the largest element: {listed(limits)}."


def percents(share: float | None) -> str:
    """A share with three digits."""
    return "-" if share is None else f"{100 * share:.3g} %"


def power(x: float) -> str:
    """A number next to a power of two, as that.

    >>> power(2.0**-16 * 0.999999), power(0.9999997), power(3e-6)
    ('2^-16', '1', '3e-06')
    """
    exponent = round(math.log2(x)) if x > 0 else 0
    if abs(x / 2.0**exponent - 1) > 1e-4:
        return str(cell(x, 3))
    return f"2^{exponent}" if exponent else "1"
