"""Products of block-scaled arrays: by the definition, and as a chip's tensor cores compute them.

The definition (OCP MX 1.0, section 6): two blocks have the dot product X_A X_B sum_i P_i(A) P_i(B), where X are their
scales and P their elements; longer dot products add those of their blocks. Precision and order inside are left to the
implementation. Here a block's dot product is exact, and what happens between blocks is ``accumulator`` and ``order``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.arithmetic import compute
from numsim.array import Array
from numsim.blocks.array import BlockArray
from numsim.blocks.definition import Rows, defined
from numsim.blocks.tiles import Tiles, one_fp32
from numsim.codes import Codes
from numsim.errors import InputError, short
from numsim.formats import FP32, Format, get_format
from numsim.rounding import Policy, convert, encode
from numsim.tensorcore.chips import TITLES
from numsim.tensorcore.matrices import matmul as chip_matmul
from numsim.tensorcore.matrices import with_nan_of
from numsim.tensorcore.models import TYPES, Model
from numsim.tensorcore.names import CHIPS, chip_name, get_model, list_models

_EXAMPLE = 'Example: numsim.blocks.matmul(quantize(a, "mxfp8"), quantize(b, "mxfp8", axis=0))'
_POLICY = Policy(nan="max")


# --- the front door ---------------------------------------------------------------------------------------------------
def dot(
    a: BlockArray, b: BlockArray, *, accumulator: Any = "fp32", order: str = "sequential", output: Any = None
) -> Array:
    """The dot product of two vectors in block formats; see ``matmul``.

    >>> from numsim.blocks import quantize
    >>> x = quantize([1.0] * 32 + [2.0**-12] * 32, "mxfp8")
    >>> dot(x, x), dot(x, x, accumulator="bf16"), dot(x, x, accumulator="exact", output="fp64")
    (numsim.array(32.0, 'fp32'), numsim.array(32.0, 'bf16'), numsim.array(32.00000190734863, 'fp64'))
    """
    for x, what in ((a, "a"), (b, "b")):
        if not isinstance(x, BlockArray) or len(x.shape) != 1:
            raise InputError(f"{what}={short(x)}: dot takes vectors in a block format. "
                             'Example: numsim.blocks.dot(quantize(a, "mxfp8"), quantize(b, "mxfp8"))')  # fmt: skip
    if a.shape != b.shape:
        raise InputError(f"dot: vectors of {a.shape[0]} and {b.shape[0]} numbers; both need the same length.")
    return defined(_rows(a, 0), _rows(b, 0), accumulator, order, output).reshape(())


def matmul(
    a: BlockArray,
    b: BlockArray,
    *,
    chip: Any = None,
    instruction: str | None = None,
    accumulator: Any = "fp32",
    order: str = "sequential",
    alpha: float | None = None,
    output: Any = None,
    threads: int | None = None,
) -> Array:
    """The matrix product of (M, K) and (K, N) in block formats, by the definition or on a chip.

    Without ``chip``: each pair of blocks gives its exact scaled dot product; the first is rounded to the accumulator,
    every other one is added to it in one rounding, to nearest. "exact" rounds nothing. The result, times both tensors'
    scales, is rounded once to ``output``. Where blocks differ in length, their common parts count as blocks.

    With ``chip``: what a kernel there does.

    * MX and NVFP4 on instructions that take block scales (``numsim.tensorcore.matmul``), K upwards.
    * FP8 with FP32 scales on plain instructions: an FP32 chain for each stretch of K that has one scale on either side
      (1 x 128 and 128 x 128: each 128 numbers), then sum = fma(chain's result, fp32(scale_a x scale_b), sum) in FP32,
      as DeepSeek-V3 promotes. One scale a row or a tensor: a single chain, then one product.
    * The result times ``alpha`` in FP32, by default fp32(tensor scale x tensor scale); Transformer Engine's own is
      ``nvfp4_alpha``. Then one rounding to ``output``.

    Rules
    -----
    NaN : from NaN scales and elements, infinity times zero, infinities of both signs among the products of values; on
        chips as ``mma`` has it. The largest number where ``output`` has no NaN.
    Inf : an infinite value, or a sum that the accumulator cannot hold.
    -0 : sums of zero are +0; a negative sum that underflows is -0.
    subnormals : kept. overflow : as ``overflow="ieee"`` in ``numsim.encode``.

    Parameters
    ----------
    a : (M, K), blocks along the last axis, tiles, or one scale. b : (K, N), blocks along ``axis=0``, tiles, or one.
    chip, instruction : see ``numsim.tensorcore.get_model``; by default the instruction for these formats.
    accumulator, order : of the definition: a format or "exact"; "sequential" or "pairwise" (neighbours, an odd one out
        moves up).
    alpha : what a chip's result is multiplied by.
    output : the result's format; None is the accumulator, and FP32 for "exact" and on chips.
    threads : of the chip's model.

    Returns an Array (M, N); ``how`` names what was done. Raises ``InputError`` for shapes and formats that do not go
    together, and for a chip without such an instruction, with the chips that have one.
    Cost: some 40 nanoseconds for each pair of blocks where float64 provably holds all scaled dot products (MX, NVFP4,
    FP8 with scales that are powers of two; not for E5M2 of a very wide range), else some microseconds. On chips that of
    ``numsim.tensorcore.matmul``.
    Source: OCP MX 1.0, section 6; DeepSeek-V3 report, section 3.3.2, with DeepGEMM's order of scales.

    >>> from numsim.blocks import quantize
    >>> x = np.ones((2, 64))
    >>> a, b = quantize(x, "nvfp4"), quantize(x.T, "nvfp4", axis=0)
    >>> matmul(a, b).values.tolist(), matmul(a, b, chip="b200").values.tolist()
    ([[64.0, 64.0], [64.0, 64.0]], [[64.0, 64.0], [64.0, 64.0]])
    """
    for x, what in ((a, "a"), (b, "b")):
        if not isinstance(x, BlockArray) or len(x.shape) != 2:
            raise InputError(f"{what}={short(x)}: matmul takes matrices in a block format. {_EXAMPLE}")
    if a.shape[1] != b.shape[0]:
        raise InputError(f"matmul: shapes {a.shape} and {b.shape}: (M, K) and (K, N) are needed. {_EXAMPLE}")
    if chip is None:
        if instruction is not None or alpha is not None or threads is not None:
            raise InputError('instruction, alpha and threads belong to a chip. Example: chip="b200"')
        return defined(_rows(a, 1), _rows(b, 0), accumulator, order, output)
    if accumulator != "fp32" or order != "sequential":
        raise InputError(f'accumulator and order are those of the chip. {_EXAMPLE[:-1]}, chip="b200")')
    return _on_chip(a, b, chip, instruction, alpha, get_format("fp32" if output is None else output), threads)


# --- factors with K last ---------------------------------------------------------------------------------------------
def _rows(x: BlockArray, axis: int) -> Rows:
    """A factor of which ``axis`` is summed over."""
    scales, step = _scales(x, np.asarray(x.scales.values, np.float64), axis)
    return Rows(np.moveaxis(np.atleast_2d(x.elements), axis - len(x.shape), -1), scales, step, x.tensor_scale,
                x.format.element)  # fmt: skip


def _scales(x: BlockArray, scales: npt.NDArray[Any], axis: int) -> tuple[npt.NDArray[Any], int]:
    """Scales (rows, K / step) of a factor whose ``axis`` is summed over, and step."""
    block, dimensions, k = x.format.block, len(x.shape), x.shape[axis]
    if block is not None and len(block) == 1 and x.axis % dimensions != axis:
        raise InputError(f"blocks of {x.format} lie along axis {x.axis % dimensions}, and the product sums over axis "
                         f"{axis}. Example: quantize(x, {x.format.name!r}, axis={axis})")  # fmt: skip
    step = k if block is None else (block[0] if len(block) == 1 else block[axis]) or k
    tiles = Tiles(x.shape, x.format, x.axis)
    every = np.moveaxis(np.atleast_2d(tiles.back(tiles.spread(scales))), axis - dimensions, -1)
    return every[:, :: max(step, 1)], step


# --- on a chip --------------------------------------------------------------------------------------------------------
def _on_chip(
    a: BlockArray, b: BlockArray, chip: Any, instruction: str | None, alpha: Any, output: Format, threads: int | None
) -> Array:
    (scales_a, step_a), (scales_b, step_b) = (_scales(x, x.scales.codes, 1 - i) for i, x in enumerate((a, b)))
    model = _model(chip, instruction, a, b, math.gcd(step_a, step_b))
    if alpha is None and (a.format.has_tensor_scale or b.format.has_tensor_scale):
        with np.errstate(over="ignore", under="ignore"):
            alpha = float(np.float32(a.tensor_scale) * np.float32(b.tensor_scale))
    elif alpha is not None:
        alpha = one_fp32("alpha", alpha, "alpha=numsim.blocks.nvfp4_alpha(amax_a, amax_b)")
    after = "" if alpha is None else f", times {alpha:.9g} in fp32"
    if model.scale:
        x, y = (s.repeat(n // model.scale_block, axis=1) for s, n in ((scales_a, step_a), (scales_b, step_b)))
        codes = chip_matmul(a.codes, b.codes, chip=model, scale_a=x, scale_b=y.T, alpha=alpha, output=output,
                            threads=threads)  # fmt: skip
        return Array(codes, output, f"{model}{after}")
    step = math.gcd(step_a, step_b)
    total = np.zeros((a.shape[0], b.shape[1]), np.uint32)
    for at in range(0, a.shape[1], max(step, 1)):
        piece = chip_matmul(a.codes[:, at : at + step], b.codes[at : at + step], chip=model, output=FP32,
                            threads=threads)  # fmt: skip
        total = _fp32("fma", _fp32("mul", scales_a[:, at // step_a, None], scales_b[:, at // step_b]), piece, total)
    if alpha is not None:
        total = _fp32("fma", np.asarray(encode(alpha, FP32)), total, np.zeros((), np.uint32))
    codes = with_nan_of(model, convert(total, FP32, output, _POLICY), output)
    return Array(codes, output, f"{model}, chains of {step} times their scales added in fp32{after}")


def _fp32(operation: str, *operands: Codes) -> Codes:
    return compute(operation, list(operands), [FP32] * len(operands), FP32, Policy())


def _model(chip: Any, instruction: str | None, a: BlockArray, b: BlockArray, step: int) -> Model:
    """The instruction for these formats; refuses what a chip has not."""

    def fits(m: Model) -> bool:
        scaled = m.scale != "" and TYPES[m.scale] == a.format.scale and step % m.scale_block == 0
        plain = m.scale == "" and a.format.scale == FP32
        formats = m.formats[:2] == (a.format.element, b.format.element)
        return formats and a.format.scale == b.format.scale and (scaled or plain)

    what = f"{a.format} x {b.format}"
    if not isinstance(instruction, (str, type(None))):
        raise InputError(f"instruction={short(instruction)}: a name is needed. Example: leave instruction out")
    if instruction is not None or isinstance(chip, Model):
        model = get_model(chip, instruction)
        if not fits(model):
            raise InputError(f"{model} does not take {what}. Example: leave instruction out")
        return model
    found = [m for m in list_models(chip_name(chip)) if fits(m)]
    if found:  # of those with block scales the one with more products: FP4's own
        return max(found, key=lambda m: m.k) if found[0].scale else found[0]
    others = [c for c in CHIPS if any(fits(m) for m in list_models(c))]
    where = f"it exists on {', '.join(others)}" if others else "no chip has one"
    raise InputError(f"{TITLES[chip_name(chip)]} has no instruction for {what}: {where}. By the definition: "
                     "numsim.blocks.matmul(a, b)")  # fmt: skip
