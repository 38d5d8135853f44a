"""Blackwell's own layouts: FP6 and FP4 in bytes, block scales, and the descriptors of tcgen05.

Source: NVIDIA, Parallel Thread Execution ISA 9.0, sections 5.5.1.1.1 (sub-byte types in shared memory), 9.7.14.3 (block
scales of mma), 9.7.14.5.14 (FP6 and FP4 in registers), 9.7.16.4 (descriptors of tcgen05), 9.7.16.10.4 (packing),
9.7.16.10.6 (shared memory), 9.7.16.10.7 (block scales in tensor memory). The manual shows several of them in figures
only; CUTLASS writes down the same: mma_traits_sm120.hpp (registers), mma_sm100_desc.hpp (descriptors),
mma_traits_sm100.hpp (shared memory). No GPU has run any of it for numsim yet: see ``instructions.never_run``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.gpu.instructions import WARP, Instruction

Codes = npt.NDArray[Any]

# A row of a or b is 32 bytes for every kind: two core matrices of 8 rows x 16 bytes, neighbours along K one after the
# other, then the next 8 rows.
LEADING, STRIDE = 128, 256
_TYPES = {
    "f16": {"f16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "f8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "mxf4": {"e2m1": 1},
}
_TYPES |= {"mxf8f6f4": _TYPES["f8f6f4"], "mxf4nvf4": _TYPES["mxf4"]}


# --- elements ---------------------------------------------------------------------------------------------------------
def packed(codes: Codes, i: Instruction, operand: str) -> Codes:
    """Codes (..., K) of a or b of an instruction with a kind, as they are stored in registers or shared memory.

    K = 64: two FP4 share a byte, the first in its low bits. K = 32: mma takes each element in a byte of its own, FP6 in
    its low bits, FP4 in its middle ones. tcgen05 takes 16 elements from 16 bytes, one after the other without gaps, the
    rest of the 16 bytes empty. (Of this the manual speaks for kind::mxf8f6f4; CUTLASS does the same for kind::f8f6f4.)
    """
    if i.k == 64:
        return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4)
    width = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(getattr(i, operand), 0)
    if not width:
        return codes
    if i.family == "mma":
        return codes << 2 if width == 4 else codes
    bits = codes.reshape(-1, 16, 1) >> np.arange(width, dtype=codes.dtype) & 1
    filled = np.zeros((len(bits), 128), np.uint8)
    filled[:, : 16 * width] = bits.reshape(len(bits), -1)
    return np.packbits(filled, axis=1, bitorder="little").reshape(codes.shape)


# --- scales -----------------------------------------------------------------------------------------------------------
def scale_words(scales: Codes, i: Instruction, operand: str) -> npt.NDArray[np.uint32]:
    """Block scales (tiles, rows, scales of a row) as words (tiles, words): a word holds a row's, the first one lowest.

    mma reads a row's from one thread of its group of four; here each pair holds the same, so that any selector would do
    (CUTLASS's ``SFALayout``, ``SFBLayout``). tcgen05 reads row r from lane r % 32, column r // 32 of tensor memory, as
    cuBLAS's blocks of 128 x 4 scales come to lie there ("1D Block Scaling Factors Layout" in its manual), and wants it
    in all four quarters of the lanes, which the kernel sees to. Where a word has room, it repeats itself.
    """
    rows = i.tile(operand)[0]
    lane, column = np.ogrid[:WARP, : i.scale_words(operand) // WARP]
    if i.family == "mma":
        row = lane // 4 + (8 * (lane % 2) if operand == "a" else 0) + 0 * column
    else:
        row = (lane + WARP * column) % rows
    words = scales.reshape(-1, rows, i.scales)[:, row][..., np.arange(4) % i.scales].astype(np.uint8, order="C")
    return words.reshape(len(words), -1).view("<u4")


# --- descriptors of tcgen05 -------------------------------------------------------------------------------------------
def matrix_descriptor() -> int:
    """Of a or b in shared memory, without the start address (bits 0-13): offsets in 16 bytes, 0b001, no swizzle.

    >>> hex(matrix_descriptor())
    '0x401000080000'
    """
    return LEADING >> 4 << 16 | STRIDE >> 4 << 32 | 1 << 46


def instruction_descriptor(i: Instruction) -> int:
    """Types, M and N of a tcgen05.mma: dense, nothing negated or transposed, scales from the low bytes of a word.

    With scales the manual has M / 128 in bits 27 and 28, CUTLASS M / 16 in bits 24 to 28: the same for M = 128.

    >>> from numsim.tensorcore import get_model
    >>> i = Instruction.of(get_model("b200", "tcgen05.m128n256k32.kind::f8f6f4.f32.e5m2.e2m1"))
    >>> hex(instruction_descriptor(i))
    '0x8041490'
    """
    types = _TYPES[i.kind]
    code = types[i.a] << 7 | types[i.b] << 10 | i.n >> 3 << 17 | i.m >> 4 << 24
    return code | ((i.scale == "ue8m0") << 23 if i.scale else (i.d == "f32") << 4)
