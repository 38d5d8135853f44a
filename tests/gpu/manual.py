"""Where the elements of a tile lie, by the PTX manual's own cases, one element at a time: what numsim must agree with.

Shares nothing with ``numsim.gpu.layouts``, which has one formula for all of them. Source: NVIDIA, PTX ISA 9.0, sections
9.7.14.5.1 and .6 to .10 (mma), 9.7.15.5.1 (wgmma).
"""

import re
from functools import cache

import numpy as np


def element(i, operand, thread, e):
    """(tile, row, column) of element e of a thread's fragment of a, c or d; (tile, column, row) of b: as (N, K)."""
    lane, warp = thread % 32, thread // 32
    group, member = lane >> 2, lane % 4
    if i.shape == "m8n8k4" and i.a == "f16":
        tile, own = lane % 16 // 4, lane % 4 if lane < 16 else lane % 4 + 4
        if operand in "ab" or getattr(i, operand) == "f16":
            return tile, own, e
        x = (lane & 0b1) + (e & 0b10)
        return tile, x if lane < 16 else x + 4, (e & 0b100) + (lane & 0b10) + (e & 0b1)
    if i.shape == "m8n8k4":  # of FP64
        return (0, group, member) if operand in "ab" else (0, group, member * 2 + (e & 0x1))
    if operand in "cd":
        return 0, 16 * warp + (group if e < 2 else group + 8), member * 2 + (e & 0x1)
    bits, k = i.bits(operand), i.k
    if bits == 64:  # m16n8k4, k8, k16
        if operand == "a":
            return 0, group if e % 2 == 0 else group + 8, member + 4 * (e // 2)
        return 0, group, member + 4 * e
    if operand == "a":
        low = {
            (16, 8): e in (0, 1), (16, 16): 0 <= e < 2 or 4 <= e < 6, (32, 4): e == 0, (32, 8): e in (0, 2),
            (8, 16): e < 4, (8, 32): 0 <= e < 4 or 8 <= e < 12,
        }[bits, k]  # fmt: skip
        column = {
            (16, 8): member * 2 + (e & 0x1), (16, 16): member * 2 + (e & 0x1) + (0 if e < 4 else 8),
            (32, 4): member, (32, 8): member if e < 2 else member + 4,
            (8, 16): member * 4 + (e & 0x3), (8, 32): member * 4 + (e & 0x3) + (0 if e < 8 else 16),
        }[bits, k]  # fmt: skip
        return 0, 16 * warp + (group if low else group + 8), column
    row = {
        (16, 8): member * 2 + e, (16, 16): member * 2 + (e & 0x1) + (0 if e < 2 else 8),
        (32, 4): member, (32, 8): member if e == 0 else member + 4,
        (8, 16): member * 4 + e, (8, 32): member * 4 + (e & 0x3) + (0 if e < 4 else 16),
    }[bits, k]  # fmt: skip
    return 0, group, row


def in_registers(i, operand):
    return i.family == "mma" or (i.family == "wgmma" and operand != "b")


@cache
def places(i, operand, header):
    """(places, elements of a place, 3): (tile, row, column) of each element of the words in memory order."""
    rows, columns = i.tile(operand)
    per, bits = max(32 // i.bits(operand), 1), i.bits(operand)
    if in_registers(i, operand):
        held = i.registers(operand) * 32 // max(bits, 32)
        return np.array([
            [element(i, operand, thread, register * per + e) for e in range(per)]
            for thread in range(i.threads) for register in range(held)
        ])  # fmt: skip
    if i.family == "wmma":
        return np.array([[(0, *divmod(place, columns))] for place in range(rows * columns)])
    # the manual's canonical K-major layout ((8,m),(T,2k)):((T,SBO),(1,LBO)), in elements of which 16 bytes hold T
    code, size = int(re.search(r"DESCRIPTOR (0x\w+)ull", header)[1], 16), bits // 8
    t, leading, stride = 16 // size, (code >> 16 & 0x3FFF) * 16 // size, (code >> 32 & 0x3FFF) * 16 // size
    assert code >> 46 == 0 < t  # neither a base offset nor a swizzle
    found = np.zeros((rows * columns, 3), int)
    for row in range(rows):
        for k in range(columns):
            found[row % 8 * t + row // 8 * stride + k % t + k // t * leading] = 0, row, k
    return found.reshape(-1, per, 3)


def read(i, operand, words, header):
    """Words (of one launch of the instruction) as codes (tiles, rows, columns)."""
    where, bits = places(i, operand, header), i.bits(operand)
    held = words.reshape(len(where), -1).astype(np.uint64)
    whole = sum(held[:, n] << np.uint64(32 * n) for n in range(held.shape[1]))
    codes = np.zeros((i.groups, *i.tile(operand)), np.uint64)
    for e, at in enumerate(where.transpose(1, 2, 0)):
        codes[tuple(at)] = whole >> np.uint64(e * bits) & np.uint64((1 << bits) - 1)
    return codes.astype(f"u{bits // 8}")


def write(i, codes, header):
    """Codes of d (tiles, rows, columns) as words."""
    where, bits = places(i, "d", header), i.bits("d")
    elements = enumerate(where.transpose(1, 2, 0))
    whole = sum(codes[tuple(at)].astype(np.uint64) << np.uint64(e * bits) for e, at in elements)
    words = [whole >> np.uint64(32 * n) & np.uint64(0xFFFFFFFF) for n in range(max(bits // 32, 1))]
    return np.stack(words, -1).astype(np.uint32).ravel()
