"""Twins of ``numsim.tensorcore.products``: chains of tensor-core instructions over whole matrices.

Why floating point is exact here. An operand is split into its significand (float32, 24 bits at most) and its exponent
(int16; subnormals keep the least one). A product of significands has at most 22 bits (11 and 11), so float32 holds it;
times a power of two, cut by the conversion to int32, it is the aligned term: below 2^(F + 2), so F may be 29. Up to
some thousand such integers add up exactly in float64, which also holds the sum in units of 2^(E - F) and the
accumulator; masking float64's low bits is the truncation, and its integer add the rounding to nearest.

``block_lanes`` runs over 256 outputs of a row at once. Rows and columns with NaN or infinity, other paths than
"block", and processes that flush subnormal numbers take one output at a time, with the same arithmetic in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.codes import Codes
from numsim.codes import decode as decode_values
from numsim.host import flushes_subnormals
from numsim.kernels import _pool
from numsim.kernels._jit import as_bits, as_float, jit, left, part
from numsim.tensorcore import products
from numsim.tensorcore.models import IN_WORDS, TYPES, Model

TILE = 256  # outputs side by side
PANEL = 512  # of K that is decoded at a time
NOTHING = -9000  # the exponent of zero: below every sum of exponents
_PATHS = ("block", "groups", "fp8-as-fp16")


def suits(model: Model) -> bool:
    """Whether there is a kernel for this record."""
    unit = model.unit
    return unit.path in _PATHS and unit.align == "toward-zero" and not unit.normalised and unit.fraction_bits <= 40


# --- operands ---------------------------------------------------------------------------------------------------------
class Layout(NamedTuple):
    """How to read the codes of a type."""

    drop: int  # low bits that the unit ignores
    bits: int  # that it reads, without the sign
    fraction_bits: int
    emin: int
    infinity: int  # magnitude code; above the largest where there is none
    nan: int  # the least magnitude code that is NaN, or above all
    minus_zero_is_nan: bool


def _layout(type_name: str) -> Layout:
    f = TYPES[type_name]
    beyond = 1 << f.magnitude_bits
    nan = f.max_code + 1 + (f.specials == "ieee") if f.specials in ("ieee", "fn") else beyond
    return Layout(
        13 if type_name in IN_WORDS else 0, f.magnitude_bits, f.fraction_bits, f.emin,
        beyond if f.infinity_code is None else f.infinity_code, nan, f.specials == "fnuz",
    )  # fmt: skip


@jit
def decode(codes, f, significands, exponents):  # type: ignore[no-untyped-def]
    """Codes (rows, n) as significands and exponents of the same shape."""
    one = np.float32(as_float(np.uint32((127 - f.fraction_bits) << 23)))  # 2^-fraction_bits
    for i in range(codes.shape[0]):
        for j in range(codes.shape[1]):
            code = np.int32(np.uint32(codes[i, j]) >> np.uint32(f.drop))
            magnitude = np.int32(code & np.int32((1 << f.bits) - 1))
            field = np.int32(magnitude >> np.int32(f.fraction_bits))
            hidden = np.int32(0) if field == 0 else np.int32(1 << f.fraction_bits)
            fraction = np.int32(magnitude & np.int32((1 << f.fraction_bits) - 1))
            s = np.float32(np.float32(fraction + hidden) * one)
            s = np.float32(np.inf) if magnitude >= f.infinity else s
            s = -s if code > magnitude else s
            s = np.float32(np.nan) if magnitude >= f.nan or (f.minus_zero_is_nan and code == 1 << f.bits) else s
            significands[i, j] = s
            place = np.int16(field - 1 + f.emin) if field > 1 else np.int16(f.emin)
            exponents[i, j] = np.int16(NOTHING) if magnitude == 0 else place


class Numbers(NamedTuple):
    significands: npt.NDArray[np.float32]
    exponents: npt.NDArray[np.int16]


def _numbers(codes: Codes, type_name: str, scales: Codes | None, model: Model) -> Numbers:
    """Codes (rows, n) decoded; E8M0 scales (rows, n / block) join the exponents.

    FP8 that is computed in FP16 becomes FP16, with k mod 4 in {0, 1} first in every instruction.
    """
    if model.unit.path == "fp8-as-fp16":
        format = TYPES[type_name]
        table = decode_values(np.arange(format.codes, dtype=np.uint8), format).astype(np.float16).view(np.uint16)
        k = np.arange(codes.shape[1])
        codes, type_name = table[codes[:, np.lexsort((k, k % 4 // 2, k // model.k))]], "f16"
    found = Numbers(np.empty(codes.shape, np.float32), np.empty(codes.shape, np.int16))
    decode(codes, _layout(type_name), *found)
    if scales is not None and model.unit.path == "block":
        each = np.repeat(scales, model.scale_block, axis=1)
        found.exponents[...] += each.astype(np.int16) - np.int16(127)
        found.significands[each == 255] = np.nan
    return found


# --- one block, one output --------------------------------------------------------------------------------------------
class Rules(NamedTuple):
    """A unit's parameters, as the loops take them."""

    length: int
    fraction_bits: int
    floor: int
    c_emin: int  # the least exponent of c and d
    to_fp16: bool
    mask: np.uint64  # float64 bits that a normal result keeps
    tiny: np.float64  # 2^n, with 2^-n the unit of subnormal results
    late: bool  # an instruction starts from zero and c is added last


def _rules(model: Model) -> Rules:
    unit, d = model.unit, TYPES[model.d]
    kept = 13 if unit.output == "rz-e8m13" else 23
    late = unit.path == "fp8-as-fp16"
    return Rules(
        min(unit.length, model.k // 2 if late else model.k), unit.fraction_bits, unit.floor, d.emin,
        unit.output == "rne-fp16",
        np.uint64((1 << 64) - (1 << (52 - kept))), np.float64(2.0 ** (126 + kept)), late,
    )  # fmt: skip


@part
def power(e):  # type: ignore[no-untyped-def]
    """2^e as a float64, for -1022 <= e <= 1023."""
    return as_float(np.uint64(np.int64(e) + 1023) << np.uint64(52))


@part
def finish(v, r):  # type: ignore[no-untyped-def]
    """The output rule, for a finite exact sum."""
    if r.to_fp16:
        size = abs(v)
        bits = as_bits(size)
        odd = (bits >> np.uint64(42)) & np.uint64(1)
        w = as_float((bits + np.uint64((1 << 41) - 1) + odd) & np.uint64((1 << 64) - (1 << 42)))
        w = (size + 2.0**28) - 2.0**28 if size < 2.0**-14 else w  # float64's own rounding, to multiples of 2^-24
        w = np.inf if w >= 65536.0 else w
        return np.copysign(w, v) if w != 0.0 else 0.0
    w = as_float(as_bits(v) & r.mask)
    w = np.trunc(v * r.tiny) * (1.0 / r.tiny) if abs(v) < 2.0**-126 else w
    w = np.copysign(np.inf, v) if abs(w) >= 2.0**128 else w
    return w + 0.0  # -0 becomes +0


@jit
def exponent_of(x, least):  # type: ignore[no-untyped-def]
    """The exponent of a float64 that is not zero and not subnormal, ``least`` for all below."""
    return max((np.int64(as_bits(x) >> np.uint64(52)) & 0x7FF) - 1023, least)


@jit
def one_block(sa, ea, sb, eb, k, count, acc, r):  # type: ignore[no-untyped-def]
    """acc + the sum of count products from k on, for one output."""
    special = 0.0
    top = r.floor
    for n in range(k, k + count):
        p = np.float64(sa[n]) * np.float64(sb[n])
        if not np.isfinite(p):
            special += p  # infinities of both signs give NaN
        elif p != 0.0:
            top = max(top, np.int64(ea[n]) + np.int64(eb[n]))
    if not np.isfinite(acc):
        special += acc
    if special != 0.0:
        return special
    if acc != 0.0:
        top = max(top, exponent_of(acc, r.c_emin))
    total = np.trunc(acc * power(max(r.fraction_bits - top, -1000)))
    for n in range(k, k + count):
        p = np.float64(sa[n]) * np.float64(sb[n])
        total += np.trunc(p * power(max(np.int64(ea[n]) + np.int64(eb[n]) - top + r.fraction_bits, -1000)))
    return finish(total * power(top - r.fraction_bits), r)


@jit
def group_block(sa, ea, sb, eb, k, count, scales_a, scales_b, acc, r):  # type: ignore[no-untyped-def]
    """The path "groups": ``scales`` holds significand and exponent of each group's scale."""
    top, special = r.floor, 0.0
    for g in range(count // 16):
        special += scales_a[g, 0] * scales_b[g, 0] * 0.0  # NaN stays
    if np.isnan(special) or not np.isfinite(acc):
        return acc + special
    if acc != 0.0:
        top = max(top, exponent_of(acc, r.c_emin))
    for g in range(count // 16):
        alive = False
        for n in range(k + 16 * g, k + 16 * g + 16):
            alive |= sa[n] != 0 and sb[n] != 0
        if alive and scales_a[g, 0] * scales_b[g, 0] != 0.0:
            top = max(top, np.int64(scales_a[g, 1] + scales_b[g, 1]))
    total = np.trunc(acc * power(max(r.fraction_bits - top, -1000)))
    for g in range(count // 16):
        s = 0.0
        for n in range(k + 16 * g, k + 16 * g + 16):
            if sa[n] != 0 and sb[n] != 0:
                s += np.float64(sa[n]) * np.float64(sb[n]) * power(np.int64(ea[n]) + np.int64(eb[n]))
        scale = np.int64(scales_a[g, 1] + scales_b[g, 1]) - top + r.fraction_bits
        total += np.trunc(s * scales_a[g, 0] * scales_b[g, 0] * power(max(scale, -1000)))
    return finish(total * power(top - r.fraction_bits), r)


@jit
def one_chain(sa, ea, sb, eb, scales_a, scales_b, acc, k, r):  # type: ignore[no-untyped-def]
    """All blocks of one output, K in order; ``k`` is the instruction's."""
    n = 0
    while n < sa.shape[0]:
        if scales_a.shape[0]:
            g = n // 16
            acc = group_block(
                sa, ea, sb, eb, n, k, scales_a[g : g + k // 16], scales_b[g : g + k // 16], acc, r
            )  # fmt: skip
        elif r.late:
            inner = 0.0
            for m in range(n, n + k, r.length):
                inner = one_block(sa, ea, sb, eb, m, min(r.length, n + k - m), inner, r)
            acc = nearest(acc + inner, r)
        else:
            for m in range(n, n + k, r.length):
                acc = one_block(sa, ea, sb, eb, m, min(r.length, n + k - m), acc, r)
        n += k
    return acc


@part
def nearest(x, r):  # type: ignore[no-untyped-def]
    """A sum of two numbers of d's format, which float64 holds or rounds harmlessly, rounded to it."""
    if r.to_fp16:
        return finish(x, r) if np.isfinite(x) else x
    if abs(x) < 2.0**-126:
        return x  # multiples of 2^-149 already
    bits = as_bits(x)
    odd = (bits >> np.uint64(29)) & np.uint64(1)
    w = as_float((bits + np.uint64((1 << 28) - 1) + odd) & np.uint64((1 << 64) - (1 << 29)))
    w = np.copysign(np.inf, x) if abs(w) >= 2.0**128 else w
    return w if np.isfinite(x) else x


@part
def from_word(bits):  # type: ignore[no-untyped-def]
    """The float64 of an FP32 word, by integers: a process that flushes subnormals cannot touch it."""
    field = np.int64(bits >> np.uint32(23)) & 0xFF
    fraction = np.int64(bits) & 0x7FFFFF
    if field == 255:
        x = np.nan if fraction else np.inf
    elif field == 0:
        x = np.float64(fraction) * 2.0**-149
    else:
        x = np.float64(fraction | 0x800000) * power(field - 150)
    return -x if bits >> np.uint32(31) else x


@part
def to_word(x):  # type: ignore[no-untyped-def]
    """The FP32 word of a float64 that is one; NaN is canonical."""
    if x != x:
        return np.uint32(0x7FFFFFFF)
    size = abs(x)
    sign = np.uint32(as_bits(x) >> np.uint64(32)) & np.uint32(0x80000000)
    if size == np.inf:
        return sign | np.uint32(0x7F800000)
    if size < 2.0**-126:
        return sign | np.uint32(np.int64(size * 2.0**149))
    bits = as_bits(size)
    return sign | np.uint32((bits - np.uint64((1023 - 127) << 52)) >> np.uint64(29))


@jit
def chains_one_by_one(sa, ea, sb, eb, scales_a, scales_b, rows, columns, words, k, r):  # type: ignore[no-untyped-def]
    """The outputs of some rows and columns: a (rows, n), b (columns, n); FP32 words are updated."""
    for i in rows:
        for j in columns:
            acc = from_word(words[i, j])
            acc = one_chain(sa[i], ea[i], sb[j], eb[j], scales_a[i], scales_b[j], acc, k, r)
            words[i, j] = to_word(acc)


@jit
def dots_one_by_one(sa, ea, sb, eb, scales_a, scales_b, first, end, words, k, r):  # type: ignore[no-untyped-def]
    """Outputs first to end, each with operands of its own."""
    for i in range(first, end):
        acc = one_chain(sa[i], ea[i], sb[i], eb[i], scales_a[i], scales_b[i], from_word(words[i]), k, r)
        words[i] = to_word(acc)


# --- many outputs side by side ----------------------------------------------------------------------------------------
@jit
def block_lanes(sa, ea, sb, eb, k, count, words, tops, sums, r):  # type: ignore[no-untyped-def]
    """One block of TILE outputs of a row: a (n,), b (n, TILE), FP32 words (TILE,)."""
    least = np.int16(-20000)
    for j in range(TILE):
        tops[j] = least
    for n in range(k, k + count):
        e, column = ea[n], eb[n]
        for j in range(TILE):
            x = np.int16(e + column[j])
            tops[j] = x if x > tops[j] else tops[j]
    for j in range(TILE):
        magnitude = np.uint32(words[j] & np.uint32(0x7FFFFFFF))
        x = np.int16(np.int32(magnitude >> np.uint32(23)) - np.int32(127))
        x = x if x > r.c_emin else np.int16(r.c_emin)
        x = x if magnitude != 0 else least
        x = x if x > tops[j] else tops[j]
        tops[j] = x if x > r.floor else np.int16(r.floor)
        sums[j] = 0.0
    for n in range(k, k + count):
        s, e = sa[n], np.int32(np.int32(ea[n]) + np.int32(r.fraction_bits + 127))
        significands, exponents = sb[n], eb[n]
        for j in range(TILE):
            field = np.int32(np.int32(e + np.int32(exponents[j])) - np.int32(tops[j]))
            field = field if field > 1 else np.int32(1)
            scale = as_float(np.uint32(left(field, np.int32(23))))
            sums[j] += np.float64(np.int32(np.float32(np.float32(s * significands[j]) * scale)))
    for j in range(TILE):
        acc = np.float64(as_float(words[j]))
        top = np.int64(tops[j])
        total = sums[j] + np.trunc(acc * power(r.fraction_bits - top))
        w = finish(total * power(top - r.fraction_bits), r)
        w = w if abs(acc) < np.inf else acc
        words[j] = as_bits(np.float32(w))


@jit
def chain_lanes(sa, ea, sb, eb, first, end, k, words, column, width, r):  # type: ignore[no-untyped-def]
    """Rows first to end of a tile of columns: a (rows, n), b (n, TILE). K in order, rows within a block of b."""
    tops, sums = np.empty(TILE, np.int16), np.empty(TILE, np.float64)
    acc = np.zeros(TILE, np.uint32)
    for n in range(0, sb.shape[0], k):
        if r.late:
            for i in range(first, end):
                acc[:] = np.uint32(0)
                for m in range(n, n + k, r.length):
                    block_lanes(sa[i], ea[i], sb, eb, m, min(r.length, n + k - m), acc, tops, sums, r)
                row = words[i]
                for j in range(width):
                    row[column + j] = to_word(nearest(from_word(row[column + j]) + from_word(acc[j]), r))
        else:
            for m in range(n, n + k, r.length):
                count = min(r.length, n + k - m)
                for i in range(first, end):
                    row = words[i]
                    acc[:width] = row[column : column + width]
                    block_lanes(sa[i], ea[i], sb, eb, m, count, acc, tops, sums, r)
                    row[column : column + width] = acc[:width]


# --- the twins --------------------------------------------------------------------------------------------------------
_GRAIN = 1 << 20  # products a chunk


def chains(
    a: Codes, b: Codes, c: Codes, model: Model, scale_a: Codes | None, scale_b: Codes | None, threads: int | None
) -> npt.NDArray[Any]:
    """Codes a (M, K), b (K, N), c (M, N), scales (M, K / block) and (K / block, N): codes of d (M, N)."""
    (m, n), words = c.shape, _words(c, model.c)
    for first, end, rules in _panels(a.shape[1], model):
        sa, sb = _part(scale_a, first, end, model, 1), _part(scale_b, first, end, model, 0)
        sb = None if sb is None else sb.T
        x, y = _numbers(a[:, first:end], model.a, sa, model), _numbers(b[first:end].T, model.b, sb, model)
        groups = _groups(sa, model, m), _groups(sb, model, n)
        rows, columns = np.arange(m), np.arange(n)
        if model.unit.path != "groups" and model.unit.fraction_bits <= 29 and not flushes_subnormals():
            fine, good = _finite(x), _finite(y)
            aside = words[:, ~good]
            _lanes(x, y, words, rows[fine], model, rules, threads)
            words[:, ~good] = aside
            _scalars(x, y, groups, words, rows[~fine], columns, model, rules, threads)
            _scalars(x, y, groups, words, rows[fine], columns[~good], model, rules, threads)
        else:
            _scalars(x, y, groups, words, rows, columns, model, rules, threads)
    return _codes(words, model)


def dots(
    a: Codes, b: Codes, c: Codes, model: Model, scale_a: Codes | None, scale_b: Codes | None, threads: int | None
) -> npt.NDArray[Any]:
    """Codes a, b (n, K), c (n,), scales (n, K / block): codes of d (n,)."""
    words = _words(c, model.c)
    for first, end, rules in _panels(a.shape[1], model):
        sa, sb = _part(scale_a, first, end, model, 1), _part(scale_b, first, end, model, 1)
        x, y = _numbers(a[:, first:end], model.a, sa, model), _numbers(b[:, first:end], model.b, sb, model)
        groups = _groups(sa, model, len(words)), _groups(sb, model, len(words))

        def work(start: int, stop: int, x: Any = x, y: Any = y, groups: Any = groups, rules: Any = rules) -> None:
            dots_one_by_one(*x, *y, *groups, start, stop, words, model.k, rules)

        grain = max(1, _GRAIN // (end - first))
        _pool.over_chunks(len(words), work, chunk=grain, large=grain, number=threads)
    return _codes(words, model)


def _panels(length: int, model: Model) -> Any:
    """Pieces of K, whole instructions each, and the rules for them: a c of another type is met only once."""
    rules, start = _rules(model), 0
    if model.c != model.d and length:
        start = model.k
        yield 0, start, rules._replace(c_emin=TYPES[model.c].emin)
    step = max(1, PANEL // model.k) * model.k
    for first in range(start, length, step):
        yield first, min(first + step, length), rules


def _part(scales: Codes | None, first: int, end: int, model: Model, axis: int) -> Codes | None:
    if scales is None:
        return None
    here = slice(first // model.scale_block, end // model.scale_block)
    return scales[:, here] if axis else scales[here]


def _words(c: Codes, type_name: str) -> npt.NDArray[np.uint32]:
    """c as FP32 words; FP16 widens without rounding."""
    if type_name == "f16":
        return np.ascontiguousarray(c.view(np.float16).astype(np.float32)).view(np.uint32)
    return np.array(c, np.uint32)


def _codes(words: npt.NDArray[np.uint32], model: Model) -> npt.NDArray[Any]:
    values = words.view(np.float32)
    nan = np.isnan(values)
    codes = values.astype(np.float16).view(np.uint16) if model.d == "f16" else words
    codes[nan] = model.nan
    return codes


def _finite(x: Numbers) -> npt.NDArray[np.bool_]:
    return np.asarray(np.isfinite(x.significands).all(axis=1))


def _groups(scales: Codes | None, model: Model, rows: int) -> npt.NDArray[np.float64]:
    """(rows, groups of 16, 2): significand and exponent of each group's scale; nothing for other paths."""
    if scales is None or model.unit.path != "groups":
        return np.zeros((rows, 0, 2))
    codes = np.repeat(scales, model.scale_block // 16, axis=1)
    s, e = np.empty(codes.shape, np.float32), np.empty(codes.shape, np.int16)
    if model.scale == "ue8m0":
        s[...], e[...] = np.where(codes == 255, np.nan, 1.0), codes.astype(np.int16) - 127
    else:
        decode(codes & np.uint8(0x7F), _layout(model.scale), s, e)
    return np.stack([s.astype(np.float64), e.astype(np.float64)], axis=-1)


def _scalars(
    x: Numbers, y: Numbers, groups: Any, words: npt.NDArray[np.uint32], rows: npt.NDArray[Any],
    columns: npt.NDArray[Any], model: Model, rules: Rules, threads: int | None,
) -> None:  # fmt: skip
    if not (rows.size and columns.size):
        return

    def work(first: int, end: int) -> None:
        chains_one_by_one(*x, *y, *groups, rows[first:end], columns, words, model.k, rules)

    grain = max(1, _GRAIN // max(1, columns.size * x.significands.shape[1]))
    _pool.over_chunks(rows.size, work, chunk=grain, large=grain, number=threads)


def _lanes(
    x: Numbers, y: Numbers, words: npt.NDArray[np.uint32], rows: npt.NDArray[Any], model: Model, rules: Rules,
    threads: int | None,
) -> None:  # fmt: skip
    """The outputs of finite rows (columns that are not finite get garbage)."""
    if not rows.size:
        return
    whole = rows.size == words.shape[0]
    sa, ea = x if whole else (x.significands[rows], x.exponents[rows])
    mine = words if whole else words[rows]
    k, n = y.significands.shape[1], words.shape[1]
    for column in range(0, n, TILE):
        width = min(TILE, n - column)
        sb, eb = np.zeros((k, TILE), np.float32), np.full((k, TILE), NOTHING, np.int16)
        sb[:, :width] = y.significands[column : column + width].T
        eb[:, :width] = y.exponents[column : column + width].T

        def work(first: int, end: int, column: int = column, width: int = width, sb: Any = sb, eb: Any = eb) -> None:
            chain_lanes(sa, ea, sb, eb, first, end, model.k, mine, column, width, rules)

        grain = max(1, _GRAIN // (TILE * k))
        _pool.over_chunks(rows.size, work, chunk=grain, large=grain, number=threads)
    if not whole:
        words[rows] = mine


TWINS = [(products.chains, chains), (products.dots, dots)]
