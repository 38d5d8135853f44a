"""Double quantisation: the scales of NF4's blocks are themselves stored in 8 bits (QLoRA)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt

from numsim.array import Array
from numsim.blocks.array import BlockArray
from numsim.blocks.codebooks import Codebook
from numsim.blocks.formats import BlockFormat
from numsim.blocks.rules import F, Floats
from numsim.blocks.tiles import one_fp32
from numsim.errors import InputError, short
from numsim.formats import FP32
from numsim.host import check_ieee
from numsim.rounding import encode
from numsim.values import is_whole

BLOCK = 256  # scales that share a scale


def normal_floats(bits: int = 4, offset: float = 0.9677083) -> Floats:
    """NF4's numbers from their definition: quantiles of the normal distribution, divided by the largest.

    2^(bits - 1) are positive: the probabilities go in even steps from ``offset`` down to 1/2, which is left out. One
    fewer are negative, made the same way; one is 0. Probabilities and results are FP32.
    Source: Dettmers et al., QLoRA, arXiv:2305.14314; create_normal_map of bitsandbytes 95f9af3.

    Raises ``InputError`` for other than 2 to 8 bits, and an offset that is not between 1/2 and 1.

    >>> normal_floats()[-3:].tolist()
    [0.5626170039176941, 0.7229568362236023, 1.0]
    """
    from statistics import NormalDist  # (slow to load, and of use only here)

    example = "numsim.blocks.normal_floats(4, 0.9677083)"
    if not is_whole(bits) or not 2 <= bits <= 8:
        raise InputError(f"bits={short(bits)}: 2 to 8 are possible. Example: {example}")
    if not 0.5 < one_fp32("offset", offset, example) < 1:
        raise InputError(f"offset={short(offset)}: a number between 1/2 and 1, in FP32 too. Example: {example}")
    half = 1 << (bits - 1)
    quantile = NormalDist().inv_cdf
    positive = [F(quantile(float(p))) for p in _linspace(offset, 0.5, half + 1)[:-1]]
    negative = [F(-quantile(float(p))) for p in _linspace(offset, 0.5, half)[:-1]]
    values = np.sort(np.array([*positive, F(0), *negative], np.float32))
    return np.asarray(values / values.max())


@cache
def dynamic_map() -> Codebook:
    """The 256 numbers of bitsandbytes' signed 8-bit dynamic type, from their definition.

    Seven decades 10^-6 ... 1, of which decade d has the midpoints of 2^d even parts of [0.1, 1], times 10^(d - 6), with
    both signs; 0, and 1. Small numbers so get a smaller error, large ones more digits. Every step is FP32, as PyTorch
    computes it (linspace with a fused multiply-add). A number goes to the nearer neighbour, ties to the even code, as
    the binary search of the CUDA kernel ends.
    Source: Dettmers, arXiv:1511.04561; create_dynamic_map and dQuantize of bitsandbytes 95f9af3.

    >>> book = dynamic_map()
    >>> book.codes, book.decode([0, 127, 128, 255]).tolist()
    (256, [-0.992968738079071, 0.0, 5.500000384017767e-07, 1.0])
    """
    values = [F(0), F(1)]
    for decade in range(7):
        parts = _linspace(0.1, 1, (1 << decade) + 1)
        middles = (parts[:-1] + parts[1:]) / F(2) * F(10.0 ** (decade - 6))
        values += [*middles, *-middles]
    ordered = np.sort(np.array(values, np.float32))
    bounds = [(a + b) * F(0.5) for a, b in itertools.pairwise(ordered)]
    return Codebook(
        "dynamic8",
        tuple(Fraction(float(v)) for v in ordered),
        bounds=tuple(Fraction(float(b)) for b in bounds),
        title="signed dynamic 8-bit type",
        source="bitsandbytes 95f9af3, create_dynamic_map",
    )


def _linspace(start: float, end: float, count: int) -> Floats:
    """``torch.linspace`` in FP32: from both ends towards the middle, start + i x step in one rounding."""
    first, last = float(F(start)), float(F(end))
    step = float((F(end) - F(start)) / F(count - 1))
    i = np.arange(count)
    return np.where(i < count // 2, first + step * i, last - step * (count - 1 - i)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class DoubleQuantized:
    """A ``BlockArray`` whose FP32 scales are stored in 8 bits.

    array : the elements, with the scales that come back.
    codes : uint8, one for each scale, in C order. scales : float32, one for each 256 of them. offset : float32.
    A scale is fp32(fp32(number of ``dynamic_map`` x scale) + offset).
    """

    array: BlockArray
    codes: npt.NDArray[np.uint8]
    scales: Floats
    offset: float

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The numbers that all of it stands for: element x restored scale."""
        return self.array.values

    @property
    def nbytes(self) -> float:
        """Bytes of storage: elements packed, a byte a scale, 4 for each 256 scales, 4 for the offset."""
        return self.array.codes.size * self.array.format.element.bits / 8 + self.codes.size + 4 * self.scales.size + 4

    @property
    def bits_per_value(self) -> float:
        """Storage in bits where blocks are full; the offset is not counted."""
        return double_bits(self.array.format)


def double_bits(format: BlockFormat) -> float:
    """Bits a value with FP32 scales that are quantised again; the offset is not counted.

    >>> from numsim.blocks import get_block_format
    >>> round(double_bits(get_block_format("nf4")), 3)
    4.127
    """
    return format.element.bits + (format.bits_per_value - format.element.bits) * (8 + 32 / BLOCK) / 32


def double_quantize(x: BlockArray) -> DoubleQuantized:
    """Scales minus their mean, 256 at a time as 8-bit numbers of ``dynamic_map`` under an FP32 scale.

    Rules
    -----
    NaN, Inf : one infinite scale makes all scales NaN, since their mean is infinite.
    zeros : a block of zeros gets a scale that is not zero, and stays zero where the element has zero. Where all scales
        are the mean, they come back exactly.
    signs : a small scale may come back as 0 or below 0: its block turns its signs.
    mean : the exactly rounded FP64 sum / count, rounded to FP32 (bitsandbytes adds in FP32, in PyTorch's order).

    Parameters: ``x``, an array with FP32 block scales, such as ``quantize(weights, "nf4")``.
    Raises ``InputError`` for other scales. Cost: small beside ``quantize``.
    Source: Dettmers et al., QLoRA, arXiv:2305.14314, section 3; quantize_4bit(compress_statistics=True) of
    bitsandbytes 95f9af3.

    >>> from numsim.blocks import quantize
    >>> x = double_quantize(quantize(np.repeat([1.0, 2.0, 3.0, 3.0], 64), "nf4"))
    >>> x.offset, x.codes.tolist(), x.array.scales.values.tolist(), round(x.bits_per_value, 3)
    (2.25, [0, 56, 226, 226], [1.0087890625, 1.9931640625, 2.9990234375, 2.9990234375], 4.127)
    """
    if not isinstance(x, BlockArray) or x.format.scale != FP32 or x.scales.size == 0:
        raise InputError(f"{short(x)}: FP32 block scales are needed. Example: numsim.blocks.double_quantize("
                         'numsim.blocks.quantize(weights, "nf4"))')  # fmt: skip
    check_ieee()
    book, absmax = dynamic_map(), np.asarray(x.scales.values, np.float32).reshape(-1)
    with np.errstate(all="ignore"):
        offset = F(math.fsum(absmax.tolist()) / absmax.size)
        centred = np.zeros((-(-absmax.size // BLOCK), BLOCK), np.float32)
        centred.reshape(-1)[: absmax.size] = absmax - offset
        scales = np.fmax.reduce(np.abs(centred), axis=1)
        scaled = centred * (F(1) / scales)[:, None]
        # where the original's search ends that no comparison stops: code 0
        codes = book.encode(np.where(np.isnan(scaled), -np.inf, scaled))
        back = (book.decode(codes).astype(np.float32) * scales[:, None] + offset).reshape(-1)[: absmax.size]
    restored = Array(np.asarray(encode(back, FP32)).reshape(x.scales.shape), FP32, "double quantised")
    array = replace(x, scales=restored, how=f"{x.how}, scales double quantised")
    return DoubleQuantized(array, codes.reshape(-1)[: absmax.size], scales, float(offset))
