"""Codes and numbers to test with: all of a format, pairs of them, its boundaries, or a sample. Arrays, no loops."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codebooks import Codebook, get_format
from numsim.codes import Codes, code_dtype, decode
from numsim.errors import InputError, RangeError, short
from numsim.formats import FP16, FP32, FP64, Format
from numsim.random import bits_from, check_seed
from numsim.rounding import encode
from numsim.values import is_whole

CHUNK = 1 << 20  # numbers in one array of a sweep
_LARGEST_SAMPLE = 1 << 28
_FLOATS = {FP64: np.float64, FP32: np.float32, FP16: np.float16}


def all_codes(format: Any) -> Iterator[Codes]:
    """All codes of a format, NaNs and infinities too, in ascending order: arrays of 2^20 codes, or one smaller one.

    Raises ``InputError`` above 32 bits. Memory: that of one array.

    >>> [c.size for c in all_codes("e4m3")], sum(c.size for c in all_codes("tf32")) == 2**19
    ([256], True)
    """
    format = get_format(format)
    if format.bits > 32:
        raise InputError(
            f"{format} has 2^{format.bits} codes, too many to go through. "
            f"Example: sample_codes('{format}', 10**6, seed=7), boundary_codes('{format}')"
        )
    return _ranges(format.codes, format)


def _ranges(count: int, format: Format | Codebook) -> Iterator[Codes]:
    for start in range(0, count, CHUNK):
        yield np.arange(start, min(start + CHUNK, count), dtype=np.uint64).astype(code_dtype(format))


def all_pairs(format: Any) -> Iterator[tuple[Codes, Codes]]:
    """All pairs of codes of a format, as two arrays of at most 2^20 codes; the second runs faster.

    Raises ``InputError`` above 16 bits, where there are 2^32 pairs, minutes of work. Memory: that of two arrays.

    >>> [(a.size, b.size) for a, b in all_pairs("e4m3")]
    [(65536, 65536)]
    """
    format = get_format(format)
    if format.bits > 16:
        raise InputError(
            f"{format} has 2^{2 * format.bits} pairs of codes, too many to go through. "
            f"Example: numsim.testing.operand_pairs('{format}'), or two calls of sample_codes('{format}', 10**6, seed)"
        )
    return _pairs(format)


def _pairs(format: Format | Codebook) -> Iterator[tuple[Codes, Codes]]:
    rows = max(1, CHUNK // format.codes)
    second = np.arange(format.codes, dtype=np.uint64).astype(code_dtype(format))
    for start in range(0, format.codes, rows):
        first = second[start : start + rows]
        yield np.repeat(first, second.size), np.tile(second, first.size)


def sample_codes(format: Any, n: int, seed: int) -> Codes:
    """n codes drawn at random, each code as likely as any other; the same in every version (``numsim.random``).

    Raises ``InputError`` for a negative n, one above 2^28, and for what is no seed.

    >>> [hex(c) for c in sample_codes("fp16", 3, seed=7)]
    ['0xc63b', '0x48cf', '0x243d']
    """
    format, seed = get_format(format), check_seed(seed)
    if not is_whole(n) or not 0 <= n <= _LARGEST_SAMPLE:
        raise InputError(
            f"n={short(n)}: from 0 to 2^28 codes are drawn. Example: sample_codes('{format}', 1000, seed=7)"
        )
    n = int(n)
    if format.bits <= 32:
        words: Codes = bits_from(seed, 0, n) >> np.uint32(32 - format.bits)
    else:
        halves = bits_from(seed, 0, 2 * n).astype(np.uint64)
        words = (halves[0::2] << np.uint64(32) | halves[1::2]) >> np.uint64(64 - format.bits)
    return words.astype(code_dtype(format))


# --- boundaries -------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=64)
def edge_ranks(format: Format) -> tuple[int, ...]:
    """Places on the grid where something ends: zero, subnormal numbers, each binade, the largest number and past it."""
    one = 1 << format.fraction_bits
    powers = range(one, format.max_rank + one, one)  # every power of two
    starts = [0, *powers, format.max_rank + 1, *([one // 2] if format.gap else [])]  # half the least normal number
    places = {start + k for start in starts for k in (-2, -1, 0, 1, 2)}
    return tuple(sorted(p for p in places if format.rank(0) <= p <= format.max_rank + 2))


def boundary_codes(format: Any) -> Codes:
    """The codes at which something begins or ends: zeros, the least and the largest numbers, subnormal to normal, every
    power of two and its neighbours, infinities, NaNs with the least, the greatest and the canonical payload. Of a
    codebook all codes, each of which is a step of its own.

    >>> [hex(c) for c in boundary_codes("e2m1")]
    ['0x0', '0x1', '0x2', '0x3', '0x4', '0x5', '0x6', '0x7', '0x8', '0x9', '0xa', '0xb', '0xc', '0xd', '0xe', '0xf']
    >>> len(boundary_codes("fp32"))
    2560
    """
    format = get_format(format)
    if isinstance(format, Codebook):
        return np.arange(format.codes, dtype=code_dtype(format))
    top = (1 << format.magnitude_bits) - 1
    magnitudes = {r - format.rank(0) for r in edge_ranks(format) if r <= format.max_rank}
    magnitudes |= {m for k in (1, 2, 3) if (m := format.max_code + k) <= top} | {top}
    codes = {m | sign for m in magnitudes for sign in (0, format.sign_mask)}
    codes |= set() if format.nan_code is None else {format.nan_code, format.nan_code | format.sign_mask}
    return np.array(sorted(codes), code_dtype(format))


def boundary_values(target: Any, source: Any = "fp64") -> npt.NDArray[Any]:
    """Numbers of ``source`` at which rounding to ``target`` changes its mind.

    Around the edges of the target (each power of two, where subnormal and normal numbers meet, zero, overflow, and for
    formats of up to 10 bits every number): the number itself, the tie beside it, and what the source has on either side
    of both; with both signs, infinities and zeros. Of a codebook its numbers, the limits between them, what lies
    beyond its ends. No NaN: those are in ``boundary_codes(source)``.

    Returns float64, float32 or float16 where that is the source, else the source's values as float64, ascending by
    code. Raises ``RangeError`` for a source that float64 does not hold, ``InputError`` for a codebook as the source.

    >>> [v in boundary_values("int8", "fp32") for v in (126, 126.5, 126.50001, 127.5)]
    [True, True, True, False]
    >>> x = boundary_values("e4m3", "fp16")
    >>> [v in x for v in (448, 464, 463.75, 464.25, 2**-10, 1.0625, 0.9375 + 2**-5)]
    [True, True, True, True, True, True, True]
    """
    target = get_format(target)
    source = source_of(target, source, "boundary_values")
    points = codebook_points(target) if isinstance(target, Codebook) else _points(target, source)
    points = sorted({x for x in map(abs, points) if x <= source.max})
    below = np.asarray(encode(points, source, rounding="toward-zero")).astype(object)
    near = {code + step for code in below for step in (-1, 0, 1, 2)}
    magnitudes = {0} | {m for m in near if 0 <= m <= source.max_code}
    magnitudes |= set() if source.infinity_code is None else {source.infinity_code}
    signs = (0, source.sign_mask) if source.specials != "fnuz" else (source.sign_mask,)
    codes = np.array(
        sorted({m | s for m in magnitudes for s in (0, *signs) if m | s != source.nan_code}), code_dtype(source)
    )
    return codes.view(_FLOATS[source]) if source in _FLOATS else np.asarray(decode(codes, source))


def _points(target: Format, source: Format) -> list[Fraction]:
    """Numbers of the target, and the ties above them, as far as the source reaches."""
    ranks = edge_ranks(target) if target.bits > 10 else range(target.rank(0), target.max_rank + 3)
    first = bisect_left(ranks, source.least / 2, key=target.magnitude)  # below the source's numbers there is only zero
    ranks = ranks[max(first - 1, 0) : bisect_right(ranks, source.max, key=target.magnitude)]
    grid = [target.magnitude(r) for r in ranks]
    return grid + [(x + target.magnitude(r + 1)) / 2 for r, x in zip(ranks, grid, strict=True)]


def codebook_points(book: Codebook) -> list[Fraction]:
    """Numbers of a codebook, the limits between them, and one number beyond each end."""
    low, high = min(book.values), max(book.values)
    return sorted({*book.values, *book.thresholds, low - (high - low), high + (high - low)})


def source_of(target: Format | Codebook, source: Any, name: str) -> Format:
    """A format whose numbers float64 holds; a codebook's are few enough to take them all."""
    found = get_format(source)
    if isinstance(found, Codebook):
        raise InputError(
            f"{name}: {found} is a codebook of {found.codes} numbers: take them all, with all_codes('{found}'). "
            f"Example: {name}('{target}', 'fp64')"
        )
    if not found.fits(FP64):
        raise RangeError(f"{found} has values that float64 does not hold. Example: {name}('{target}', 'fp64')")
    return found
