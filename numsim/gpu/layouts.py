"""Where the elements of a tile lie: the tables of the PTX manual for tensor-core instructions, as formulas.

The kernels only copy words. Which element of a, b, c or d lies in which bits of which word is said here, once, and the
words are made on the host.

Source of the layouts: NVIDIA, Parallel Thread Execution ISA 9.0, sections 9.7.14.5 (fragments of mma), 9.7.15.5.1
(wgmma: registers, shared memory, descriptor); for Blackwell see ``blackwell.py``. The manual shows wgmma's registers in
figures; CUTLASS writes them down as ``ALayout_64x8``, ``ALayout_64x16``, ``ALayout_64x32`` and ``CLayout_64x8``
(mma_traits_sm90_gmma.hpp).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.gpu import blackwell
from numsim.gpu.instructions import WARP, Instruction

Codes = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]

# wgmma, B of eight columns: two core matrices of 8 x 16 bytes, one after the other along K. There is no third, so the
# two offsets of the descriptor can be equal, and taking one for the other is no mistake.
LEADING = STRIDE = 128


@cache
def layout(i: Instruction, operand: str) -> npt.NDArray[np.intp]:
    """(places, elements of a place): which element lies there, counted through the operand's tile or tiles in C order.

    A place is a word, or two where an element has 64 bits. Places in registers are counted thread by thread, elements
    of a place from its low bits.
    """
    rows, columns = i.stored(operand)
    if i.family == "wmma" or (i.family == "tcgen05" and operand in "cd"):
        flat = np.arange(rows * columns)  # through memory, where wmma.load looks; a thread has a row of tensor memory
    elif i.family == "tcgen05" or (i.family == "wgmma" and operand == "b"):
        row, column = np.divmod(np.arange(rows * columns), columns)
        stride = blackwell.STRIDE if i.family == "tcgen05" else STRIDE
        flat = np.argsort(shared_address(row, column * i.bits(operand) // 8, LEADING, stride))
    else:
        group, row, column = _quarters(i, operand) if i.groups > 1 else _quads(i, operand)
        flat = (group * rows + row) * columns + column
    return flat.reshape(-1, max(32 // i.bits(operand), 1))


def _threads(i: Instruction, operand: str) -> list[npt.NDArray[np.intp]]:
    """Thread, register and element of a register, to be broadcast; an element of 64 bits has a register to itself."""
    bits = i.bits(operand)
    return list(np.ogrid[: i.threads, : i.registers(operand) * 32 // max(bits, 32), : max(32 // bits, 1)])


def _quads(i: Instruction, operand: str) -> tuple[Any, Any, Any]:
    """m16n8kK, m8n8k4 of FP64 and m64n8kK: eight groups of four threads; each further warp of wgmma is 16 rows below.

    A register holds neighbours along K; the next register of a is 8 rows below, the one after that 4 registers' worth
    of K further on. The manual's formulas for every type and K are this one.
    """
    thread, register, element = _threads(i, operand)
    group, member = thread % WARP // 4, thread % 4
    top, down = thread // WARP * 16, min(i.m // 8, 2)
    per = max(32 // i.bits(operand), 1)
    if operand == "a":
        return 0, top + group + 8 * (register % down), per * (member + 4 * (register // down)) + element
    if operand == "b":
        return 0, group, per * (member + 4 * register) + element
    number = register * per + element  # two neighbours along N, then two of the row 8 below
    return 0, top + group + 8 * (number // 2) + 0 * element, 2 * member + number % 2


def _quarters(i: Instruction, operand: str) -> tuple[Any, Any, Any]:
    """FP16's m8n8k4: threads 0-3 and 16-19 compute the first tile, 4-7 and 20-23 the second, and so on."""
    thread, register, element = _threads(i, operand)
    quarter, low = thread % 16 // 4, 4 * (thread // 16)
    number = register * (32 // i.bits(operand)) + element
    if operand in "ab" or i.bits(operand) == 16:  # a thread holds a row of a, c and d, a column of b
        return quarter, thread % 4 + low, number
    return quarter, (thread & 1) + (number & 2) + low, (number & 4) + (thread & 2) + (number & 1)


def shared_address(row: Any, byte: Any, leading: int = LEADING, stride: int = STRIDE) -> Any:
    """Where a byte of a K-major operand lies in shared memory, not swizzled: core matrices of 8 rows x 16 bytes.

    ``leading`` bytes lie between core matrices that are neighbours along K, ``stride`` between those along M or N.
    """
    return row // 8 * stride + row % 8 * 16 + byte // 16 * leading + byte % 16


def descriptor(leading: int = LEADING, stride: int = STRIDE) -> int:
    """wgmma's 64-bit matrix descriptor without the start address (bits 0-13): both offsets in 16 bytes; no swizzle.

    >>> hex(descriptor(256, 128))
    '0x800100000'
    """
    return leading >> 4 << 16 | stride >> 4 << 32


# --- words ------------------------------------------------------------------------------------------------------------
def pack(codes: Codes, i: Instruction, operand: str) -> Words:
    """Codes (tiles, rows, columns) as words (launched tiles, words); block scales stand behind the codes of a row."""
    where = layout(i, operand)
    if i.kind and operand in "ab":
        codes, scales = codes[..., : i.k], codes[..., i.k :]
        codes = blackwell.packed(codes, i, operand)
    elements = codes.reshape(-1, where.size)[:, where].astype(f"<u{i.bits(operand) // 8}", order="C")
    words = elements.reshape(len(elements), -1).view("<u4")
    if i.scale_words(operand):  # behind the words of their thread, or of their tile
        parts = i.threads if i.family == "mma" else 1
        both = (x.reshape(len(words), parts, -1) for x in (words, blackwell.scale_words(scales, i, operand)))
        words = np.concatenate(list(both), -1).reshape(len(words), -1)
    return words


def unpack(words: Words, i: Instruction, operand: str) -> Codes:
    """The inverse of ``pack``, for elements of whole bytes without scales: for every d."""
    where = layout(i, operand)
    elements = np.ascontiguousarray(words, "<u4").view(f"<u{i.bits(operand) // 8}").reshape(-1, *where.shape)
    codes = np.zeros((len(elements), where.size), elements.dtype)
    codes[:, where] = elements
    return codes.reshape(-1, *i.tile(operand))
