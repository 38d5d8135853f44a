"""``BlockArray``: codes, scales and their block format; ``quantize`` makes one from numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.array import Array
from numsim.blocks.codebooks import Codebook
from numsim.blocks.formats import BlockFormat, get_block_format
from numsim.blocks.rules import RULES, F, Floats, Scales, make_scales
from numsim.blocks.tiles import Tiles, as_fp32, one_fp32
from numsim.codes import check_codes, decode
from numsim.errors import InputError, short
from numsim.events import Events
from numsim.formats import FP32
from numsim.random import Draw
from numsim.rounding import Policy, Rounding, check_events, draw_for, encode, encode_values
from numsim.values import Values


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
        object.__setattr__(self, "format", get_block_format(self.format))
        element = self.format.element
        codes = element.check(self.codes) if isinstance(element, Codebook) else check_codes(self.codes, element)
        object.__setattr__(self, "codes", codes)
        if not isinstance(self.scales, Array):
            raise InputError(
                f"scales={short(self.scales)}: a numsim Array is needed. Example: "
                f"numsim.array([1.0], {self.format.scale.name!r})"
            )
        matrix = Tiles(self.codes.shape, self.format, self.axis)
        if self.scales.format != self.format.scale or self.scales.shape != matrix.scales_shape:
            raise InputError(
                f"scales of shape {self.scales.shape} in {self.scales.format}: {self.format} needs "
                f"{matrix.scales_shape} in {self.format.scale} for codes of shape {self.codes.shape}."
            )
        whole = one_fp32("tensor_scale", self.tensor_scale, "leave tensor_scale out")
        if not self.format.has_tensor_scale and whole != 1:
            raise InputError(f"tensor_scale={short(self.tensor_scale)}: {self.format} has none. "
                             "Example: leave tensor_scale out")  # fmt: skip
        object.__setattr__(self, "tensor_scale", whole)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return self.codes.shape

    @property
    def elements(self) -> npt.NDArray[np.float64]:
        """The elements' values, without any scale."""
        return decode_elements(self.codes, self.format)

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The numbers that codes and scales stand for, in float64: element x (scale x tensor scale).

        NaN scales give NaN. Both products are exact for all named formats; where elements have more than 29 significant
        bits (25 under a tensor scale) the first is rounded, to nearest. (Libraries round here once more, to the format
        that they dequantise to.)
        """
        tiles = Tiles(self.shape, self.format, self.axis)
        matrix, scales = tiles.matrix(self.codes), np.asarray(self.scales.values, np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            factors = scales.reshape(tiles.grid) * self.tensor_scale
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


def quantize(
    values: Any,
    format: Any,
    *,
    axis: int = -1,
    rule: str | None = None,
    multiplier: Any = None,
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
    multiplier : what elements are multiplied by, given instead of made from amaxes (delayed scaling): float32, in the
        shape of the scales or one for all; the scale is its FP32 reciprocal, so the scale format must be FP32.
    rounding, seed, random_bits, sr_bits, events : of the elements, as for ``encode``.

    Raises ``InputError`` for what is no array of numbers, and for shapes that blocks do not fill.
    Cost: a few copies of the array.

    >>> quantize([0.1, 300.0, 480.0, 1.0] * 8, "mxfp8").scales.values, quantize([480.0] * 32, "mxfp8").values[0]
    (array([1.]), np.float64(448.0))
    """
    format = get_block_format(format)
    if rule is not None:
        format = replace(format, rule=rule)
    x = as_fp32(values)
    tiles = Tiles(x.shape, format, axis)
    policy = Policy(rounding, "saturate", "keep", "max")
    check_events(events)
    if isinstance(format.element, Codebook) and (rounding != "nearest-even" or events is not None):
        raise InputError(f"{format} rounds to the nearest of its {len(format.element.order)} values, and counts no "
                         "events. Example: leave rounding and events out")  # fmt: skip
    given = None if multiplier is None else _given(multiplier, format, tiles)
    draw = draw_for(policy, x.size, x.shape, seed, random_bits, sr_bits)
    matrix, room = tiles.matrix(x), _room(x.size, format)
    if x.size:
        codes, scales, back = room.quantize_matrix(
            matrix, tiles.rows, tiles.columns, format, given, draw, policy, events
        )
    else:
        nothing = given or make_scales(np.zeros(tiles.grid, np.float32), format)[0]
        codes, scales, back = encode_elements(matrix, format, draw, policy, events), nothing.codes, 1.0
    how = f"{f'rule {format.rule}' if given is None else 'multiplier given'}, {policy.rounding}"
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
    scales, back = (given, 1.0) if given else make_scales(amaxes(x, rows, columns, RULES[format.rule].nan), format)
    blocks = x.reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    with np.errstate(all="ignore"):
        scaled = (blocks * scales.multiplier[:, None, :, None]).reshape(x.shape)
    return encode_elements(scaled, format, draw, policy, events), scales.codes, back


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


def _given(multiplier: Any, format: BlockFormat, tiles: Tiles) -> Scales:
    """Multipliers as the caller gives them, with their FP32 reciprocals."""
    example = "Example: numsim.blocks.quantize(x, 'fp8_tensor', multiplier=448.0)"
    if format.scale != FP32 or format.has_tensor_scale:
        raise InputError(f"multiplier={short(multiplier)}: {format} computes its own {format.scale} scales. {example}")
    multiplier = as_fp32(multiplier)
    try:
        multiplier = np.broadcast_to(multiplier, tiles.scales_shape)
    except ValueError:
        raise InputError(
            f"multiplier of shape {multiplier.shape}: {tiles.scales_shape} or one number is needed. {example}"
        ) from None
    grid = multiplier.reshape(tiles.grid)
    with np.errstate(all="ignore"):
        return Scales(grid, np.asarray(encode((F(1) / grid).astype(np.float32), FP32)))
