"""Tensor-core blocks, many outputs of a row side by side: the paths block, fp8-as-fp16, groups, cdna3, cdna3-fp8.

Why floating point is exact here. An operand is its significand (float32, at most 24 bits; NaN and infinity are
themselves) and its exponent (int16; subnormals keep the least one, zero has ``NOTHING``). A product of significands has
at most 24 bits, so float32 holds it; times a power of two and truncated it is the aligned term, an integer below
2^(F + 2) that float32 still holds. float64 holds the sum of a thousand of them, F <= 40, and the sum in units of
2^(E - F), and the accumulator. Its low bits masked away are the truncation; rounding to nearest is its integer add.

NaN, infinities and infinity times zero pass through the same additions. Below the exponents of FP32 float64 is still
far from its own subnormal numbers, so nothing changes where a library has told the CPU to flush them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.kernels._jit import as_bits, as_float, jit, left, part
from numsim.tensorcore.models import TYPES, Model

NOTHING = -9000  # the exponent of zero: below every sum of exponents
NO_TERMS = -700  # of an empty sum, on CDNA3
ROWS = 8  # whose accumulators are in work at a time
CUT, TO_FP16, TO_FP32 = range(3)
BLOCK, LATE, GROUPS, CDNA3 = range(4)
PATHS = {"block": BLOCK, "fp8-as-fp16": LATE, "groups": GROUPS, "cdna3": CDNA3, "cdna3-fp8": CDNA3}


class Rules(NamedTuple):
    """A unit's parameters, as the loops take them."""

    path: int
    k: int  # products of an instruction
    length: int
    step: int  # 2 where products with even and with odd index are added apart
    fraction_bits: int
    floor: int
    c_emin: int  # the least exponent of c and d
    output: int  # cut, or rounded to the nearest FP16 or FP32 number
    mask: np.uint64  # float64 bits that a normal result keeps where it is cut
    tiny: np.float64  # 2^n, with 2^-n the unit of subnormal results


def rules(model: Model) -> Rules:
    unit, path = model.unit, PATHS[model.unit.path]
    kept = 13 if unit.output == "rz-e8m13" else 23
    length = {LATE: model.k // 2, GROUPS: model.k // 16}.get(path, model.k)
    return Rules(
        path=path,
        k=model.k,
        length=min(unit.length, length),
        step=2 if unit.path == "cdna3-fp8" else 1,
        fraction_bits=unit.fraction_bits,
        floor=NO_TERMS if path == CDNA3 else unit.floor,
        c_emin=TYPES[model.d].emin,
        output={"rne-fp16": TO_FP16, "rne-fp32": TO_FP32}.get(unit.output, CUT),
        mask=np.uint64((1 << 64) - (1 << (52 - kept))),
        tiny=np.float64(2.0 ** (126 + kept)),
    )


# --- numbers ----------------------------------------------------------------------------------------------------------
@part
def power(e):  # type: ignore[no-untyped-def]
    """2^e as a float64, for -1022 <= e <= 1023."""
    return as_float(np.uint64(np.int64(e) + 1023) << np.uint64(52))


@part
def exponent_of(x, least):  # type: ignore[no-untyped-def]
    """The exponent of a float64; ``least`` for all below, 128 for all above."""
    return min(max((np.int64(as_bits(x) >> np.uint64(52)) & 0x7FF) - 1023, least), np.int64(128))


@part
def nearest(x):  # type: ignore[no-untyped-def]
    """A float64 rounded to the nearest FP32 number, as a float64; its zeros, NaN and infinities stay."""
    size = abs(x)
    bits = as_bits(size)
    odd = (bits >> np.uint64(29)) & np.uint64(1)
    w = as_float((bits + np.uint64((1 << 28) - 1) + odd) & np.uint64((1 << 64) - (1 << 29)))
    w = (size + 2.0**-97) - 2.0**-97 if size < 2.0**-126 else w  # float64's own rounding, to multiples of 2^-149
    w = np.inf if w >= 2.0**128 else w
    w = w if size < np.inf else size
    return np.copysign(w, x)


@part
def finish(v, r):  # type: ignore[no-untyped-def]
    """The output rule, for an exact sum."""
    if r.output == TO_FP16:
        size = abs(v)
        bits = as_bits(size)
        odd = (bits >> np.uint64(42)) & np.uint64(1)
        w = as_float((bits + np.uint64((1 << 41) - 1) + odd) & np.uint64((1 << 64) - (1 << 42)))
        w = (size + 2.0**28) - 2.0**28 if size < 2.0**-14 else w  # float64's own rounding, to multiples of 2^-24
        w = np.inf if w >= 65536.0 else w
        w = np.copysign(w, v)
    elif r.output == TO_FP32:
        w = nearest(v)
    else:
        w = as_float(as_bits(v) & r.mask)
        w = np.trunc(v * r.tiny) * (1.0 / r.tiny) if abs(v) < 2.0**-126 else w
        w = np.copysign(np.inf, v) if abs(w) >= 2.0**128 else w
    return w + 0.0  # -0 becomes +0


@part
def from_word(word):  # type: ignore[no-untyped-def]
    """The float64 of an FP32 word, by integers: a CPU that flushes subnormal numbers must not touch it."""
    magnitude = np.uint64(word & np.uint32(0x7FFFFFFF))
    bits = (magnitude << np.uint64(29)) + np.uint64((1023 - 127) << 52)
    x = as_float(bits)
    x = np.float64(magnitude) * 2.0**-149 if magnitude < np.uint64(1 << 23) else x
    x = np.inf if magnitude == np.uint64(0x7F800000) else x
    x = np.nan if magnitude > np.uint64(0x7F800000) else x
    return -x if word >> np.uint32(31) else x


@part
def to_word(x):  # type: ignore[no-untyped-def]
    """The FP32 word of a float64 that is an FP32 number; of NaN 0x7FFFFFFF."""
    size = abs(x)
    sign = np.uint32(as_bits(x) >> np.uint64(32)) & np.uint32(0x80000000)
    word = np.uint32((as_bits(size) - np.uint64((1023 - 127) << 52)) >> np.uint64(29))
    word = np.uint32(np.int64(size * 2.0**149)) if size < 2.0**-126 else word
    word = np.uint32(0x7F800000) if size == np.inf else word
    return np.uint32(sign | word) if x == x else np.uint32(0x7FFFFFFF)


# --- one block --------------------------------------------------------------------------------------------------------
@jit
def find_tops(a, b, i, first, end, step, tops):  # type: ignore[no-untyped-def]
    """The largest exponent among the products of every output of row i."""
    for j in range(tops.size):
        tops[j] = np.int16(-20000)
    for n in range(first, end, step):
        e, column = a.exponents[n, i], b.exponents[n]
        for j in range(tops.size):
            x = np.int16(e + column[j])
            tops[j] = x if x > tops[j] else tops[j]


@jit
def add_terms(a, b, i, first, end, step, tops, sums, bits):  # type: ignore[no-untyped-def]
    """The products, each cut to a multiple of 2^(top - bits), added up in that unit."""
    for j in range(sums.size):
        sums[j] = 0.0
    for n in range(first, end, step):
        s, e = a.significands[n, i], np.int32(np.int32(a.exponents[n, i]) + np.int32(bits + 127))
        significands, exponents = b.significands[n], b.exponents[n]
        for j in range(sums.size):
            field = np.int32(np.int32(e + np.int32(exponents[j])) - np.int32(tops[j]))
            field = field if field > 1 else np.int32(1)  # further down nothing is left in any case
            scale = as_float(np.uint32(left(field, np.int32(23))))
            sums[j] += np.float64(np.trunc(np.float32(np.float32(s * significands[j]) * scale)))


@jit
def block(a, b, i, first, end, acc, tops, sums, r):  # type: ignore[no-untyped-def]
    """acc + the sum of products first to end, for every output of row i."""
    find_tops(a, b, i, first, end, r.step, tops)
    for j in range(acc.size):
        e = np.int16(exponent_of(acc[j], r.c_emin))
        e = e if acc[j] != 0.0 and e > tops[j] else tops[j]
        tops[j] = e if e > r.floor else np.int16(r.floor)
    add_terms(a, b, i, first, end, r.step, tops, sums, r.fraction_bits)
    for j in range(acc.size):
        top = np.int64(tops[j])
        total = sums[j] + np.trunc(acc[j] * power(r.fraction_bits - top))
        acc[j] = finish(total * power(top - r.fraction_bits), r)


@jit
def group_sums(a, b, i, first, found):  # type: ignore[no-untyped-def]
    """The path "groups": 16 products, added exactly and scaled, count as one product of the numbers ``found``.

    16 products of E2M1 are below 2^10 in quarters, a scale has 4 bits: float32 holds their products, too.
    """
    sizes = np.empty(b.significands.shape[1], np.float32)
    for g in range(found.significands.shape[0]):
        total, top = found.significands[g], found.exponents[g]
        for j in range(sizes.size):
            total[j] = sizes[j] = np.float32(0)
        for n in range(first + 16 * g, first + 16 * g + 16):
            x, column = a.significands[n, i], b.significands[n]
            for j in range(sizes.size):
                p = np.float32(x * column[j])
                total[j] += p
                sizes[j] += abs(p)
        at = first // 16 + g
        s, e = a.scales[at, i], a.places[at, i]
        scales, places = b.scales[at], b.places[at]
        for j in range(sizes.size):
            total[j] *= np.float32(s * scales[j])
            top[j] = np.int16(e + places[j]) if sizes[j] != 0 else np.int16(NOTHING)


@jit
def infinite_products(a, b, i, first, end, step, sums):  # type: ignore[no-untyped-def]
    """CDNA3: a product of 2^128 and more is infinite."""
    for n in range(first, end, step):
        for j in range(sums.size):
            e = np.int64(a.exponents[n, i]) + np.int64(b.exponents[n, j])
            p = a.significands[n, i] * b.significands[n, j]
            if e >= 128 or (e == 127 and abs(p) >= 2):
                sums[j] += np.copysign(np.inf, p)


@jit
def cdna3_sums(a, b, i, first, end, tops, sums, r):  # type: ignore[no-untyped-def]
    """The products without c: their sum in units of 2^(top - F)."""
    find_tops(a, b, i, first, end, r.step, tops)
    high = False
    for j in range(tops.size):
        tops[j] = tops[j] if tops[j] > r.floor else np.int16(r.floor)
        high |= tops[j] >= 127
    add_terms(a, b, i, first, end, r.step, tops, sums, r.fraction_bits)
    if high:
        infinite_products(a, b, i, first, end, r.step, sums)


@jit
def cdna3_block(a, b, i, first, end, acc, tops, sums, odd_tops, odd_sums, r):  # type: ignore[no-untyped-def]
    """As ``tensorcore/cdna.py``: the sums of 24 bits, rounded down to 32 below the common exponent, meet c."""
    cdna3_sums(a, b, i, first, end, tops, sums, r)
    if r.step == 2:
        cdna3_sums(a, b, i, first + 1, end, odd_tops, odd_sums, r)
        for j in range(acc.size):
            top = max(tops[j], odd_tops[j])
            even = np.floor(sums[j] * power(np.int64(tops[j]) - top))
            sums[j] = even + np.floor(odd_sums[j] * power(np.int64(odd_tops[j]) - top))
            tops[j] = top
    for j in range(acc.size):
        top, e = np.int64(tops[j]), exponent_of(acc[j], np.int64(-126))
        common = max(top, e)
        total = np.floor(sums[j] * power(top - common + 32 - r.fraction_bits))
        c = np.floor(acc[j] * power(r.fraction_bits - common)) * power(np.int64(32) - r.fraction_bits)
        total += 0.0 if r.step == 2 and e < min(common - r.fraction_bits - 1, 128) else c
        total *= power(common - 32)
        unit = exponent_of(total, np.int64(-126)) - 31
        acc[j] = nearest(np.floor(total * power(-unit)) * power(unit))


@jit
def add_rounded(acc, sums, r):  # type: ignore[no-untyped-def]
    """acc + sums, to the nearest number of d's format."""
    for j in range(acc.size):
        s = acc[j] + sums[j]  # of two FP32 or FP16 numbers: float64 rounds it harmlessly, if at all
        acc[j] = finish(s, r) if r.output == TO_FP16 else nearest(s)


# --- chains -----------------------------------------------------------------------------------------------------------
class Numbers(NamedTuple):
    """Operands, K first: (K, outputs)."""

    significands: npt.NDArray[np.float32]  # for "groups" the values themselves
    exponents: npt.NDArray[np.int16]
    scales: npt.NDArray[np.float32]  # of every group of 16: significands and exponents; else empty
    places: npt.NDArray[np.int16]


@jit
def chain_lanes(a, b, words, first, end, column, r):  # type: ignore[no-untyped-def]
    """K in order, for rows first to end and all columns of b; ``words`` (rows, columns) are c and become d."""
    length, width = b.significands.shape
    acc, inner = np.empty((ROWS, width)), np.empty(width)
    tops, odd_tops = np.empty(width, np.int16), np.empty(width, np.int16)
    sums, odd_sums = np.empty(width), np.empty(width)
    groups = r.k // 16 if r.path == GROUPS else 0
    found = Numbers(np.empty((groups, width), np.float32), np.empty((groups, width), np.int16), b.scales, b.places)
    one = Numbers(np.ones((groups, 1), np.float32), np.zeros((groups, 1), np.int16), b.scales, b.places)
    for start in range(first, end, ROWS):
        rows = min(ROWS, end - start)
        for i in range(rows):
            row, target = words[start + i, column : column + width], acc[i]
            for j in range(width):
                target[j] = from_word(row[j])
        for n in range(0, length, r.k):
            for i in range(rows):
                x, y, at, here, stop, target = a, b, start + i, n, n + r.k, acc[i]
                if r.path == GROUPS:
                    group_sums(a, b, at, n, found)
                    x, y, at, here, stop = one, found, 0, 0, groups
                elif r.path == LATE:  # an instruction starts from zero, and c is added last
                    target = inner
                    target[:] = 0.0
                for m in range(here, stop, r.length):
                    last = min(m + r.length, stop)
                    if r.path == CDNA3:
                        cdna3_block(x, y, at, m, last, target, tops, sums, odd_tops, odd_sums, r)
                    else:
                        block(x, y, at, m, last, target, tops, sums, r)
                if r.path == LATE:
                    add_rounded(acc[i], inner, r)
        for i in range(rows):
            row, target = words[start + i, column : column + width], acc[i]
            for j in range(width):
                row[j] = to_word(target[j])
