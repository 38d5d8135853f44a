"""NVFP4 beyond ``quantize``: four over six, torchao's order of operations, and the whole training recipe as data.

Row-scaled activations are no format of their own: each row is a tensor, ``[quantize(row, "nvfp4") for row in x]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from numsim.array import Array
from numsim.blocks.array import BlockArray, amaxes, quantize
from numsim.blocks.formats import BlockFormat, get_block_format
from numsim.blocks.hadamard import hadamard
from numsim.blocks.rules import FLT_MAX, F, Floats
from numsim.blocks.tiles import Tiles, as_fp32
from numsim.codes import decode
from numsim.errors import InputError, check_choice, short
from numsim.formats import E2M1, UE4M3
from numsim.host import check_ieee
from numsim.rounding import Rounding, encode


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

    Raises ``InputError`` for shapes that blocks do not fill. Cost: some thirty copies of the array.
    Source: Cook et al., Four Over Six, arXiv:2512.02010; Transformer Engine 124d874, quantize_4over6_nvfp4.cuh.

    >>> x = four_over_six([[1.0, 2.0, 3.0, 4.0] * 4, [1.0, 2.0, 3.0, 6.0] * 4])
    >>> x.elements[:, :4].tolist(), x.scales.values[:, 0].tolist()
    ([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 6.0]], [256.0, 256.0])
    """
    format = _nvfp4(format)
    check_choice("error", error, ("mae", "mse"), 'error="mae"')
    if scale_max not in (256, 448) or isinstance(scale_max, float):
        raise InputError(f"scale_max={short(scale_max)}: allowed are 256 and 448. Example: scale_max=256")
    x = as_fp32(values)
    tiles = Tiles(x.shape, format, axis)
    matrix = np.ascontiguousarray(tiles.matrix(x))
    blocks = matrix.reshape(tiles.grid[0], tiles.rows, tiles.grid[1], tiles.columns)
    amax = _whole_amax(matrix, "ignored")
    denominator = F(6 * scale_max)
    with np.errstate(all="ignore"):
        whole = min(denominator / amax, FLT_MAX) if amax > 0 else F(0)
        whole = whole if whole > 0 else F(1)
        six = amaxes(matrix, tiles.rows, tiles.columns, "ignored") / F(6) * whole
        found = []
        for wanted in (six, six * F(1.5)):
            scales = np.asarray(encode(np.fmin(wanted, F(448)), UE4M3, overflow="saturate"))
            stored = np.asarray(decode(scales, UE4M3), np.float32)[:, None, :, None]
            multiplier = np.fmin(F(1) / (stored * (F(1) / whole)), FLT_MAX)
            codes = encode(blocks * multiplier, E2M1, overflow="saturate", nan="max")
            elements = np.asarray(decode(codes, E2M1), np.float32)
            difference = elements * stored * amax / denominator - blocks
            found.append((codes, scales, _error(difference, error)))
    (codes6, scales6, error6), (codes4, scales4, error4) = found
    take4 = error4 < error6
    codes = np.where(take4[:, None, :, None], codes4, codes6).reshape(matrix.shape)
    grid = Array(tiles.scales_back(np.where(take4, scales4, scales6)), UE4M3)
    back = amax * (F(1) / denominator) if amax > 0 else 1.0
    how = f"4 over 6 by {error}, scales to {scale_max}, nearest-even"
    return BlockArray(tiles.back(codes), grid, format, axis, float(back), how)


def _error(difference: Floats, error: str) -> Floats:
    """Sums over each block, in Transformer Engine's order."""
    each = difference * difference if error == "mse" else np.abs(difference)
    total = each[..., 0]
    for column in range(1, each.shape[-1]):
        total = total + each[..., column]
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]


# --- the training recipe ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Operand:
    """What becomes of one factor of a matrix product on its way in.

    format : a block format or its name. rounding : of the elements; "stochastic" takes ``sr_bits`` random bits each.
    transform : "" or "hadamard", before the amax.

    >>> x = [[0.1, 6.0] * 4 + [0.1] * 8]
    >>> Operand("nvfp4", rounding="stochastic", sr_bits=8).quantize(x, seed=7).elements.tolist()
    [[0.0, 6.0, 0.0, 6.0, 0.5, 6.0, 0.0, 6.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    """

    format: Any
    rounding: Rounding = "nearest-even"
    transform: Literal["", "hadamard"] = ""
    sr_bits: int | None = None

    def __post_init__(self) -> None:
        get_block_format(self.format)
        check_choice("transform", self.transform, ("", "hadamard"), 'transform="hadamard"')

    def quantize(self, values: Any, *, axis: int = -1, seed: Any = None) -> BlockArray:
        """The factor as the product reads it; ``axis`` is the one that is summed over, ``seed`` is for SR alone.

        Transformed numbers are rounded to BF16. Raises ``InputError`` as ``quantize`` and ``hadamard`` do.
        """
        format = get_block_format(self.format)
        x = hadamard(values, axis=axis, output="bf16") if self.transform else values
        drawn = {"seed": seed, "sr_bits": self.sr_bits} if self.rounding == "stochastic" else {}
        lies = format.block is not None and len(format.block) == 1
        return quantize(x, format, axis=axis if lies else -1, rounding=self.rounding, **drawn)


_GRADIENT: dict[str, Any] = {"rounding": "stochastic", "sr_bits": 8}
NVFP4_TRAINING: dict[str, tuple[Operand, Operand]] = {
    # y = x W: neither is transformed, or the transform would be needed on the weights, too
    "fprop": (Operand("nvfp4"), Operand("nvfp4_2d")),
    # dx = dy W^T: the same weights, since tiles are the same from both sides
    "dgrad": (Operand("nvfp4", **_GRADIENT), Operand("nvfp4_2d")),
    # dW = x^T dy: both are transformed along the batch
    "wgrad": (Operand("nvfp4", transform="hadamard"), Operand("nvfp4", transform="hadamard", **_GRADIENT)),
}
"""Transformer Engine's NVFP4BlockScaling (d0067d0): the two factors of the three matrix products of a linear layer.

Stochastic rounding takes 8 bits an element. Transformer Engine's software for it, floor(fma(r / 256, step, |x|)) on the
grid of E2M1, differs where the FP32 fma itself rounds up to the next number: for scaled |x| < 1/2, when |x| + r / 512
lies within 2^-26 below 1/2.
"""


def nvfp4_alpha(amax_a: Any, amax_b: Any, *, scale_max: tuple[int, int] = (448, 448)) -> float:
    """What Transformer Engine multiplies an NVFP4 product by: amax_a amax_b / (6 6 448 448) in FP32.

    Two rounded products with the FP32 reciprocal: not always the product of the two tensor scales.

    >>> nvfp4_alpha(2688.0, 2688.0), nvfp4_alpha(1.0, 3.0) == float(np.float32(3 / 7225344))
    (1.0, True)
    """
    check_ieee()
    with np.errstate(over="ignore", under="ignore"):
        reciprocal = F(1.0 / (36.0 * scale_max[0] * scale_max[1]))
        return float(F(amax_a) * F(amax_b) * reciprocal)


def _whole_amax(matrix: Floats, nan: str) -> Any:
    """The largest magnitude of a tensor, float32."""
    return amaxes(matrix.reshape(1, -1), 1, matrix.size, nan)[0, 0] if matrix.size else F(0)


def _nvfp4(format: Any) -> BlockFormat:
    found = get_block_format(format)
    if found.name not in ("nvfp4", "nvfp4_2d"):
        raise InputError(f"{found} has no 4 over 6: nvfp4 and nvfp4_2d have. "
                         'Example: numsim.blocks.four_over_six(x, "nvfp4")')  # fmt: skip
    return found
