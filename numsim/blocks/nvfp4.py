"""NVFP4 beyond ``quantize``: four over six, and what Transformer Engine multiplies a product by.

Row-scaled activations are no format of their own: each row is a tensor, ``[quantize(row, "nvfp4") for row in x]``.
"""

from __future__ import annotations

import sys
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.array import Array
from numsim.blocks.array import BlockArray
from numsim.blocks.array import amaxes as amaxes  # of this room, too
from numsim.blocks.formats import BlockFormat, get_block_format
from numsim.blocks.rules import FLT_MAX, UE4M3_VALUES, F, Floats
from numsim.blocks.tiles import Tiles, as_fp32, one_fp32
from numsim.codes import decode
from numsim.errors import InputError, check_choice, short
from numsim.formats import E2M1, UE4M3
from numsim.rounding import encode
from numsim.values import is_whole


# --- four over six ----------------------------------------------------------------------------------------------------
def four_over_six(
    values: Any, format: Any = "nvfp4", *, axis: int = -1, error: Literal["mae", "mse"] = "mae", scale_max: int = 256
) -> BlockArray:
    """NVFP4 where each block's amax becomes 6 or 4, whichever gives the smaller error: E2M1 has nothing between them.

    A scale of 3/2 maps the amax to 4. With scales up to 448 the largest blocks would have no room for it, so that the
    tensor's amax gets the scale ``scale_max`` = 256 instead: 3/2 x 256 = 384 is an E4M3 number, too.

    Rules
    -----
    NaN : left out of the amaxes; becomes the largest element; its block keeps 6, since no error is smaller than NaN.
    Inf : the tensor's scale becomes 1, the element saturates; its block keeps 6.
    -0 : keeps its sign.
    subnormals : kept. Blocks below 2^-10 x amax / scale_max get the scale 0 and decode to 0.
    overflow : elements and scales saturate.

    Parameters
    ----------
    values : numbers, rounded to FP32 first.
    format : "nvfp4" or "nvfp4_2d".
    error : "mae" or "mse": sums of |d| or d^2, d = element x scale x amax / (6 scale_max) - x, every operation in FP32,
        from left to right; the 16 rows of a tile in pairs of rows 8, 4, 2 and 1 apart. Ties take 6.
    scale_max : 256 or 448.

    Raises ``InputError`` for shapes that blocks do not fill. Cost: ten to fifteen copies of the array.
    Source: Cook et al., Four Over Six, arXiv:2512.02010; Transformer Engine 124d874, quantize_4over6_nvfp4.cuh.

    >>> x = four_over_six([[1.0, 2.0, 3.0, 4.0] * 4, [1.0, 2.0, 3.0, 6.0] * 4])
    >>> x.elements[:, :4].tolist(), x.scales.values[:, 0].tolist()
    ([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 6.0]], [256.0, 256.0])
    """
    format = _nvfp4(format)
    check_choice("error", error, ("mae", "mse"), 'error="mae"')
    if not _is_scale_max(scale_max):
        raise InputError(f"scale_max={short(scale_max)}: allowed are 256 and 448. Example: scale_max=256")
    x = as_fp32(values)
    tiles, room = Tiles(x.shape, format, axis), sys.modules[__name__]
    if x.size and kernels.use(2 * x.size):
        from numsim.kernels import blocks_nvfp4 as room
    matrix, shape = tiles.matrix(x), (tiles.rows, tiles.columns)
    each, denominator = room.amaxes(matrix, *shape, "ignored"), F(6 * scale_max)
    amax = each.max(initial=F(0))
    with np.errstate(all="ignore"):
        whole = min(denominator / amax, FLT_MAX) if amax > 0 else F(0)
        whole = whole if whole > 0 else F(1)
        six = each / F(6) * whole
        candidates = _candidate(six, whole), _candidate(six * F(1.5), whole)
    tile = format.block is not None and len(format.block) == 2
    codes, take4 = room.choose(matrix, *shape, candidates, (amax, denominator), error, tile)
    grid = Array(tiles.scales_back(np.where(take4, candidates[1].codes, candidates[0].codes)), UE4M3)
    back = amax * (F(1) / denominator) if amax > 0 else 1.0
    how = f"4 over 6 by {error}, scales to {scale_max}, nearest-even"
    return BlockArray(tiles.back(codes), grid, format, axis, float(back), how)


class Candidate(NamedTuple):
    """One of the two scales of each block, as grids."""

    codes: npt.NDArray[Any]
    stored: Floats  # their values
    multiplier: Floats


def _candidate(wanted: Floats, whole: Any) -> Candidate:
    codes = np.asarray(encode(np.fmin(wanted, F(448)), UE4M3, overflow="saturate"))
    stored = UE4M3_VALUES[codes]
    return Candidate(codes, stored, np.asarray(np.fmin(F(1) / (stored * (F(1) / whole)), FLT_MAX)))


def choose(
    matrix: Floats,
    rows: int,
    columns: int,
    candidates: tuple[Candidate, Candidate],
    level: tuple[Any, Any],
    error: str,
    tile: bool,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The reference: codes of the elements, and a grid of where the second candidate has the smaller error."""
    blocks = matrix.reshape(matrix.shape[0] // rows, rows, matrix.shape[1] // columns, columns)
    found = []
    with np.errstate(all="ignore"):
        for _, stored, multiplier in candidates:
            scaled = blocks * multiplier[:, None, :, None]
            codes = np.asarray(encode(scaled, E2M1, overflow="saturate", nan="max"))
            values = np.asarray(decode(codes, E2M1), np.float32) * stored[:, None, :, None] * level[0] / level[1]
            found.append((codes, _error(values - blocks, error, tile)))
    (codes6, error6), (codes4, error4) = found
    take4 = error4 < error6
    return np.where(take4[:, None, :, None], codes4, codes6).reshape(matrix.shape), take4


def _error(difference: Floats, error: str, tile: bool) -> Floats:
    """Sums over each block, in Transformer Engine's order: along a block one by one, the rows of a tile by halves."""
    each = difference * difference if error == "mse" else np.abs(difference)
    total = np.add.accumulate(each, axis=3)[..., -1]
    if not tile:
        return np.asarray(np.add.accumulate(total, axis=1)[:, -1])
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]


def nvfp4_alpha(amax_a: Any, amax_b: Any, *, scale_max: tuple[int, int] = (448, 448)) -> float:
    """What Transformer Engine multiplies an NVFP4 product by: amax_a amax_b / (6 6 448 448) in FP32.

    Two rounded products with the FP32 reciprocal: not always the product of the two tensor scales. ``scale_max`` is 256
    for a factor by four over six. Amaxes are rounded to FP32. Raises ``InputError`` for what is no number.

    >>> nvfp4_alpha(2688.0, 2688.0), nvfp4_alpha(1.0, 3.0) == float(np.float32(3 / 7225344))
    (1.0, True)
    """
    example = "numsim.blocks.nvfp4_alpha(3.5, 120.0)"
    a, b = (F(one_fp32(name, x, example)) for name, x in (("amax_a", amax_a), ("amax_b", amax_b)))
    if not isinstance(scale_max, (tuple, list)) or len(scale_max) != 2 or not all(map(_is_scale_max, scale_max)):
        raise InputError(f"scale_max={short(scale_max)}: two of 256 and 448. Example: scale_max=(256, 448)")
    with np.errstate(all="ignore"):
        reciprocal = F(1.0 / (36.0 * scale_max[0] * scale_max[1]))
        return float(a * b * reciprocal)


def _is_scale_max(x: Any) -> bool:
    return is_whole(x) and x in (256, 448)


def _nvfp4(format: Any) -> BlockFormat:
    found = get_block_format(format)
    if found.name not in ("nvfp4", "nvfp4_2d"):
        raise InputError(f"{found} has no 4 over 6: nvfp4 and nvfp4_2d have. "
                         'Example: numsim.blocks.four_over_six(x, "nvfp4")')  # fmt: skip
    return found
