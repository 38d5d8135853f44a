"""``BlockArray``: codes, scales and their block format; ``quantize`` makes one from numbers."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.array import Array
from numsim.blocks.codebooks import Codebook
from numsim.blocks.formats import BlockFormat, get_block_format
from numsim.blocks.rules import RULES, F, Floats, Scales, tensor_scale
from numsim.codes import check_codes, decode
from numsim.errors import InputError, UnavailableError, short
from numsim.events import Events
from numsim.formats import FP32
from numsim.host import flushes_subnormals, rounds_to_nearest
from numsim.random import Draw, bits_from
from numsim.rounding import Policy, Rounding, check_events, convert, draw_for, encode, encode_values
from numsim.values import Values, as_values


@dataclass(frozen=True, eq=False)
class BlockArray:
    """Elements and the scales that they share: value = element x scale of its block x tensor scale.

    codes : unsigned integers in the shape of the numbers, one right-aligned code an element.
    scales : ``Array`` in the block format's scale format: (..., N / block) along ``axis``, (..., M / rows, N / columns)
        for tiles, () for one scale.
    format : the ``BlockFormat``.
    axis : along which blocks of one dimension lie.
    tensor_scale : float32, 1 where the format has none.
    how : in words what made it.

    >>> x = quantize([[1.0, 2.0, 3.0, 5.0] * 8], "mxfp4")
    >>> x.scales.values, x.values[0, :4]
    (array([[1.]]), array([1., 2., 3., 4.]))
    """

    codes: npt.NDArray[Any]
    scales: Array
    format: BlockFormat
    axis: int = -1
    tensor_scale: float = 1.0
    how: str = "codes given"

    def __post_init__(self) -> None:
        element = self.format.element
        codes = element.check(self.codes) if isinstance(element, Codebook) else check_codes(self.codes, element)
        object.__setattr__(self, "codes", codes)
        if not isinstance(self.scales, Array):
            raise InputError(
                f"scales={short(self.scales)}: a numsim Array is needed. Example: "
                f"numsim.array([1.0], {self.format.scale.name!r})"
            )
        matrix = _Tiles(self.codes.shape, self.format, self.axis)
        if self.scales.format != self.format.scale or self.scales.shape != matrix.scales_shape:
            raise InputError(
                f"scales of shape {self.scales.shape} in {self.scales.format}: {self.format} needs "
                f"{matrix.scales_shape} in {self.format.scale} for codes of shape {self.codes.shape}."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    @property
    def elements(self) -> npt.NDArray[np.float64]:
        """The elements' values, without any scale."""
        return decode_elements(self.codes, self.format)

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The numbers that codes and scales stand for: exact products in float64.

        NaN scales give NaN. (Libraries round here once more, to the format that they dequantise to.)
        """
        tiles = _Tiles(self.shape, self.format, self.axis)
        matrix, scales = np.ascontiguousarray(tiles.matrix(self.codes)), np.asarray(self.scales.values, np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            factors = tiles.scales_grid(scales) * self.tensor_scale
        room = _room(self.codes.size, self.format)
        return np.asarray(tiles.back(room.decode_matrix(matrix, tiles.rows, tiles.columns, self.format, factors)))

    @property
    def nbytes(self) -> float:
        """Bytes of storage: codes packed, scales, and 4 for a tensor scale."""
        scales = self.scales.size * 8 * self.scales.format.code_bytes
        return (self.codes.size * self.format.element.bits + scales) / 8 + 4 * self.format.has_tensor_scale

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("values are decoded from codes, which is always a copy")
        return np.asarray(self.values, dtype=dtype)

    def __repr__(self) -> str:
        return f"numsim.blocks.BlockArray({self.format}, shape {self.shape}, {self.how})"


class _Tiles:
    """An array as a matrix in which every block is a tile of ``rows`` x ``columns``, and back."""

    def __init__(self, shape: tuple[int, ...], format: BlockFormat, axis: int) -> None:
        lies = format.block is not None and len(format.block) == 1
        if not lies and axis != -1:
            raise InputError(f"axis={short(axis)}: {format} has blocks on its own axes. Example: leave axis out")
        whole = isinstance(axis, (int, np.integer)) and not isinstance(axis, bool)
        if lies and (not whole or not -len(shape) <= axis < len(shape)):
            allowed = f"allowed are {-len(shape)} to {len(shape) - 1}" if shape else f"{format} needs an axis"
            raise InputError(f"axis={short(axis)} of an array of shape {shape}: {allowed}. Example: axis=-1")
        self.axis, self.shape = axis, shape
        self.moved = (*np.delete(shape, axis).tolist(), shape[axis]) if lies else shape
        self.rows, self.columns = format.tiles(self.moved, axis)
        self.scales_moved: tuple[int, ...] = ()
        if format.block is None:
            self.size, self.grid = (1, math.prod(shape)), (1, 1)  # one scale even where there are no numbers
            return
        self.size = (math.prod(self.moved[:-1]), self.moved[-1])
        self.grid = (self.size[0] // self.rows, self.size[1] // self.columns)
        high = self.moved[:-1] if lies else (*self.moved[:-2], self.moved[-2] // self.rows)
        self.scales_moved = (*high, self.grid[1])

    @property
    def scales_shape(self) -> tuple[int, ...]:
        return np.moveaxis(np.empty(self.scales_moved), -1, self.axis).shape if self.scales_moved else ()

    def matrix(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return (np.moveaxis(x, self.axis, -1) if self.scales_moved else x).reshape(self.size)

    def back(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        x = matrix.reshape(self.moved)
        return np.moveaxis(x, -1, self.axis) if self.scales_moved else x

    def scales_back(self, grid: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self.scales_moved:
            return grid.reshape(())
        return np.moveaxis(grid.reshape(self.scales_moved), -1, self.axis)

    def scales_grid(self, scales: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A number for each block, as given by ``scales_shape``, in the order of the matrix."""
        return (np.moveaxis(scales, self.axis, -1) if self.scales_moved else scales).reshape(self.grid)

    def spread(self, scales: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """... repeated for each element of the matrix."""
        return self.scales_grid(scales).repeat(self.rows, axis=0).repeat(self.columns, axis=1)


def quantize(
    values: Any,
    format: Any,
    *,
    axis: int = -1,
    rule: str | None = None,
    scale: Any = None,
    rounding: Rounding = "nearest-even",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
    events: Events | None = None,
) -> BlockArray:
    """Numbers as a block format: amax of each block, its scale by the format's rule, elements x scale rounded once.

    Rules
    -----
    NaN : stays NaN in element formats that have it, becomes the largest element in the others (the zero of a
        codebook); whether it makes the scale NaN or is left out of the amax is the rule's (``RULES[rule].nan``).
    Inf : the amax is infinite: what the scale becomes is the rule's; the element saturates.
    -0 : keeps its sign where the element has one.
    overflow : elements saturate.
    input : the recipes are defined on FP32 numbers; other numbers are rounded to FP32 first, to nearest.

    Parameters
    ----------
    values : an array of numbers, as for ``encode``, or a torch tensor; blocks must fill it.
    format : a block format or its name.
    axis : along which blocks of one dimension lie.
    rule : another scale rule than the format's.
    scale : multipliers given instead of made from amaxes (delayed scaling): float32, in the shape of the scales or one
        for all; what is stored is their FP32 reciprocal, so the scale format must be FP32.
    rounding, seed, random_bits, sr_bits, events : of the elements, as for ``encode``.

    Raises ``InputError`` for what is no array of numbers, and for shapes that blocks do not fill.
    Cost: a few copies of the array.

    >>> quantize([0.1, 300.0, 480.0, 1.0] * 8, "mxfp8").scales.values, quantize([480.0] * 32, "mxfp8").values[0]
    (array([1.]), np.float64(448.0))
    """
    format = get_block_format(format)
    if rule is not None:
        format = replace(format, rule=rule)
    x = _as_fp32(values)
    tiles = _Tiles(x.shape, format, axis)
    policy = Policy(rounding, "saturate", "keep", "max")
    check_events(events)
    if isinstance(format.element, Codebook) and (rounding != "nearest-even" or events is not None):
        raise InputError(f"{format} rounds to the nearest of its {len(format.element.order)} values, and counts no "
                         "events. Example: leave rounding and events out")  # fmt: skip
    given = None if scale is None else _given(scale, format, tiles)
    draw = draw_for(policy, x.size, x.shape, seed, random_bits, sr_bits)
    matrix = np.ascontiguousarray(tiles.matrix(x))
    room = _room(x.size, format)
    if x.size:
        codes, scales, back = room.quantize_matrix(
            matrix, tiles.rows, tiles.columns, format, given, _in_order(draw, tiles, x.shape), policy, events
        )
    else:
        nothing = given or RULES[format.rule].scales(np.zeros(tiles.grid, np.float32), format, F(1))
        codes, scales, back = encode_elements(matrix, format, draw, policy, events), nothing.codes, 1.0
    how = f"{format.rule if scale is None else 'scale given'}, {policy.rounding}"
    return BlockArray(
        tiles.back(codes), Array(tiles.scales_back(scales), format.scale), format, axis, back, how
    )  # fmt: skip


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
    """The reference: a float32 matrix of tiles to codes of elements, codes of scales (a grid), and a tensor scale."""
    rule, scales, back = RULES[format.rule], given, 1.0
    if scales is None:
        amax = amaxes(x, rows, columns, rule.nan)
        whole, back = tensor_scale(amax.max(), format) if format.has_tensor_scale else (F(1), 1.0)
        scales = rule.scales(amax, format, whole)
    blocks = x.reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    with np.errstate(all="ignore"):
        scaled = (blocks * scales.multiplier[:, None, :, None]).reshape(x.shape)
    return encode_elements(scaled, format, draw, policy, events), scales.codes, float(back)


def encode_elements(
    scaled: Floats, format: BlockFormat, draw: Draw | None, policy: Policy, events: Events | None
) -> npt.NDArray[Any]:
    """Scaled numbers as codes of the element."""
    element = format.element
    if isinstance(element, Codebook):
        return element.encode(np.where(np.isnan(scaled), F(0), scaled))
    return encode_values(Values(scaled.shape, scaled.reshape(-1), None), element, policy, draw, events).reshape(
        scaled.shape
    )


def decode_elements(codes: npt.NDArray[Any], format: BlockFormat) -> npt.NDArray[np.float64]:
    """The elements' values, without any scale."""
    element = format.element
    return np.asarray(element.decode(codes) if isinstance(element, Codebook) else decode(codes, element))


def decode_matrix(
    codes: npt.NDArray[Any], rows: int, columns: int, format: BlockFormat, factors: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The reference: a matrix of tiles of codes to values, elements times the factor of their tile (a grid)."""
    tiles = decode_elements(codes, format).reshape(codes.shape[0] // rows, rows, codes.shape[1] // columns, columns)
    with np.errstate(invalid="ignore", over="ignore"):
        return (tiles * factors[:, None, :, None]).reshape(codes.shape)


def amaxes(x: Floats, rows: int, columns: int, nan: str) -> Floats:
    """The largest magnitude of each tile of a matrix, as a grid; 0 where there is nothing. NaN is kept or ignored."""
    tiles = np.abs(x).reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    if nan == "ignored":  # (by hand: fmax makes NaN of a number and a signalling NaN)
        tiles = np.where(np.isnan(tiles), F(0), tiles)
    return np.asarray(np.maximum.reduce(tiles, axis=(1, 3), initial=F(0)))


def _room(size: int, format: BlockFormat) -> Any:
    """Who computes: this room, or its compiled twins."""
    known = isinstance(format.element, Codebook) or kernels.suit(np.float32, format.element)
    if known and kernels.use(size):
        from numsim.kernels import blocks

        return blocks
    return sys.modules[__name__]


def _as_fp32(values: Any) -> Floats:
    if flushes_subnormals() or not rounds_to_nearest():
        raise UnavailableError(
            "scales are computed in FP32 by the CPU, and a library has made this thread flush subnormal numbers or "
            "round in another direction. Example: torch.set_flush_denormal(False)"
        )
    if type(values).__module__ == "torch":  # also what NumPy has no type for, and what has a gradient
        values = values.detach().cpu().float().numpy()
    if type(values) is np.ndarray and values.dtype == np.float32:
        return values
    if isinstance(values, Array):
        codes = convert(values.codes, values.format, FP32, Policy())
    else:
        as_values(values)  # refuses what is no number
        codes = np.asarray(encode(values, FP32))
    return codes.view(np.float32)


def _given(scale: Any, format: BlockFormat, tiles: _Tiles) -> Scales:
    """Multipliers as the caller gives them, with their FP32 reciprocals."""
    example = "Example: numsim.blocks.quantize(x, 'fp8_tensor', scale=448.0)"
    if format.scale != FP32 or format.has_tensor_scale:
        raise InputError(f"scale={short(scale)}: {format} computes its own {format.scale} scales. {example}")
    multiplier = _as_fp32(scale)
    try:
        multiplier = np.broadcast_to(multiplier, tiles.scales_shape)
    except ValueError:
        raise InputError(
            f"scale of shape {multiplier.shape}: {tiles.scales_shape} or one number is needed. {example}"
        ) from None
    grid = (np.moveaxis(multiplier, tiles.axis, -1) if tiles.scales_moved else multiplier).reshape(tiles.grid)
    with np.errstate(all="ignore"):
        return Scales(grid, np.asarray(encode((F(1) / grid).astype(np.float32), FP32)))


def _in_order(draw: Draw | None, tiles: _Tiles, shape: tuple[int, ...]) -> Draw | None:
    """Random bits in the order of the matrix: element i in C order of the array keeps its draw i."""
    if draw is None or not tiles.scales_moved or tiles.axis in (-1, len(shape) - 1):
        return draw
    given = draw.given
    if given is None:
        given = bits_from(draw.seed, draw.position, math.prod(shape)) >> np.uint32(32 - draw.r)
    return replace(draw, given=np.ascontiguousarray(tiles.matrix(given.reshape(shape))).reshape(-1))
