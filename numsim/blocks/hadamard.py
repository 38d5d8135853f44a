"""The random Hadamard transform: outliers are spread over their 16 neighbours before a block's amax is taken.

A row of 16 numbers x becomes x S H / 4: S flips signs, H is Sylvester's matrix of ones and minus ones. S H / 4 is
orthogonal, so where both factors of a product are transformed along the summed axis, the product stays the same.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.blocks.rules import F, Floats
from numsim.blocks.tiles import as_fp32, in_c_order
from numsim.errors import InputError, short
from numsim.formats import Format, get_format
from numsim.random import bits, check_seed
from numsim.rounding import round_to
from numsim.values import is_whole

SIZE = 16
TE_SIGNS = 0xD7E8
"""The signs that Transformer Engine uses always; bit i set: number i is negated."""


def random_signs(seed: int) -> int:
    """A mask of 16 random signs, the upper half of the seed's first random word.

    >>> hex(random_signs(7))
    '0xc63b'
    """
    return bits(check_seed(seed), 0) >> 16


def hadamard_matrix(signs: int = TE_SIGNS) -> npt.NDArray[np.float32]:
    """S H / 4, 16 x 16: all entries are 1/4 or -1/4, exact in every format from BF16 on.

    >>> m = hadamard_matrix()
    >>> m[:4, 0].tolist(), bool((m @ m.T == np.eye(16)).all())
    ([0.25, 0.25, 0.25, -0.25], True)
    """
    return hadamard(np.eye(SIZE, dtype=np.float32), signs=signs)


def hadamard(
    values: Any, *, axis: int = -1, signs: int = TE_SIGNS, inverse: bool = False, output: Any = "fp32"
) -> Floats:
    """The transform of every 16 numbers along an axis.

    Rules
    -----
    NaN : makes its 16 numbers NaN, the canonical one.
    Inf : makes its 16 numbers infinite; two of them make some infinite and some NaN.
    -0 : zeros add as in IEEE 754; numbers that cancel give +0.
    subnormals : kept; numbers below 2^-124 lose bits when they are divided by 4.
    overflow : none on the way that is not one of the result.
    rounding : FP32: x S / 4, then four rounds of sums and differences of numbers 1, 2, 4 and 8 apart, each rounded to
        nearest. Chips sum differently; ``hadamard_matrix`` with ``numsim.tensorcore.matmul`` does as they do.

    Parameters
    ----------
    values : numbers, rounded to FP32 first; 16 must divide the axis.
    signs : a mask of 16 bits, as ``TE_SIGNS`` and ``random_signs`` give.
    inverse : the transposed matrix, which undoes the transform where no sum was rounded.
    output : the format that results are rounded to, e.g. "bf16".

    Returns float32. Raises ``InputError`` for other shapes and masks.
    Cost: some four copies of the array.
    Source: NVIDIA Transformer Engine d0067d0, nvfp4_tensor.py.

    >>> hadamard([[0.0] * 3 + [64.0] + [0.0] * 12])[0, :4], hadamard(hadamard(np.arange(16.0)), inverse=True)[:4]
    (array([-16.,  16.,  16., -16.], dtype=float32), array([0., 1., 2., 3.], dtype=float32))
    """
    x = as_fp32(values)
    if not is_whole(axis) or not -x.ndim <= axis < x.ndim or x.shape[axis] % SIZE:
        raise InputError(f"axis={short(axis)} of shape {x.shape}: an axis is needed whose length 16 divides. "
                         "Example: numsim.blocks.hadamard(numpy.ones((4, 32)), axis=-1)")  # fmt: skip
    if not is_whole(signs) or not 0 <= signs < 1 << SIZE:
        raise InputError(f"signs={short(signs)}: 16 bits are needed. Example: signs=numsim.blocks.random_signs(7)")
    if not isinstance(inverse, (bool, np.bool_)):
        raise InputError(f"inverse={short(inverse)}: True or False is needed. Example: inverse=True")
    before, length, after = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis:][1:])
    sixteens = in_c_order(x).reshape(before * length // SIZE, SIZE, after)
    format, room = get_format(output), sys.modules[__name__]
    if x.size and kernels.suit(np.float32, format) and kernels.use(4 * x.size):
        from numsim.kernels import blocks_hadamard as room
    return np.asarray(room.butterflies(sixteens, int(signs), inverse, format).reshape(x.shape))


def butterflies(x: Floats, signs: int, inverse: bool, format: Format) -> Floats:
    """The reference: sums and differences along the middle one of three axes, and one rounding."""
    factors = sign_factors(signs)[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        t = x * F(0.25) if inverse else x * (factors * F(0.25))
        for apart in (1, 2, 4, 8):
            pairs = t.reshape(len(x), SIZE // (2 * apart), 2, apart, x.shape[2])
            a, b = pairs[:, :, 0], pairs[:, :, 1]
            t = np.stack([a + b, a - b], axis=2).reshape(x.shape)
        if inverse:
            t = t * factors
    return np.asarray(round_to(t, format, nan="max"))


def sign_factors(signs: int) -> Floats:
    """-1 for each bit that is set, else 1."""
    bits = np.uint32(signs) >> np.arange(SIZE, dtype=np.uint32) & np.uint32(1)
    return np.asarray(np.where(bits, F(-1), F(1)))
