# mypy: allow-untyped-defs, allow-untyped-calls
"""Fast twins of ``numsim.rounding``: whole float32 or float64 arrays, as integers.

Words: a *word* is the bit pattern of a source number, a *field* an exponent field of the source (it may go below 1
here), a *rank* the place on the format's grid as in the reference. Everything that depends on format and policy is
worked out once, by the reference's own functions, in a ``Plan``; the loops have no branches, so that they vectorise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim import kernels, random, rounding
from numsim.codes import code_dtype, decode
from numsim.errors import InputError
from numsim.events import Events
from numsim.formats import Format
from numsim.kernels import random as fast_random
from numsim.kernels._jit import as_bits, as_float, flushes_subnormals, jit, left, right
from numsim.kernels._pool import over_chunks
from numsim.random import Draw
from numsim.rounding import Policy
from numsim.values import Rational, Values

Words = npt.NDArray[np.unsignedinteger[Any]]
_BLOCK = 1 << 15  # elements that Python handles while they are in the cache
BLOCK = 1024  # elements that a kernel looks at together


class Plan(NamedTuple):
    """A format and a policy in words of the source. (Kernels read a named tuple at no cost.)"""

    # the source's words
    magnitude: Any  # mask: without the sign; all ones for unsigned formats, where a sign makes the magnitude huge
    # the grid
    shift: Any  # bits that a normal result drops
    field: Any  # exponent field of the least normal number
    base: Any  # word of rank 0 if the normal grid were continued downwards (wraps around)
    fraction_bits: Any
    normal_rank: Any  # the first normal rank
    # nearest-even in the source's own arithmetic
    half: Any  # half a unit less one
    lowest: Any  # 1, or 0 where nothing is dropped
    kept: Any  # mask of what is not dropped
    normal: Any  # words below this are rounded by adding and subtracting ``magic``
    magic: Any
    # what may come out: ranks for ``grid``, words for ``values``
    least_rank: Any
    max_rank: Any
    least: Any
    max: Any
    flush_input: Any  # words below this become zero
    flush_rank: Any  # ranks below this become zero
    flush_result: Any  # words below this become zero
    # the sign
    sign_shift: Any
    sign_mask: Any
    signed_from: Any  # ranks and words below this lose their sign: 1 for formats without -0
    # results that are no number of the grid, or where the policy decides
    nan: Any
    infinity: Any
    minus_infinity: Any
    over: Any
    minus_over: Any
    plain: Any  # 1 where nothing is flushed
    # where the 32 random bits go, above the ones dropped
    draw_right: Any
    draw_left: Any
    # which way (all ones or 0)
    nearest: Any
    away: Any
    up_positive: Any
    up_negative: Any
    to_odd: Any


# --- the kernels, for one width of words --------------------------------------------------------------------------------
def _compile(u: Any, i: Any, width: int, fraction_bits: int) -> SimpleNamespace:
    """The kernels for words of type ``u``; ``i`` is the signed type. Every operation is wrapped, or numba widens it."""
    F = u(fraction_bits)
    BIAS = (1 << (width - 2 - fraction_bits)) - 1
    HIDDEN = u(1 << fraction_bits)
    FRACTION = u((1 << fraction_bits) - 1)
    INFINITY = u((2 * BIAS + 1) << fraction_bits)
    SIGN = u(1 << (width - 1))
    INTEGERS = u((BIAS + fraction_bits) << fraction_bits)  # 2^F: from here on floats are spaced by 1
    SUBNORMAL = u((BIAS + fraction_bits - 1) << fraction_bits)
    ZERO, ONE = u(0), u(1)
    LAST, MOST, WORD = u(width - 1), u(width + 31), u(32)
    ALL = np.uint32((1 << 32) - 1)

    @jit
    def magnitude(word, p):
        """Without the sign. For unsigned formats a negative number comes out above infinity, like NaN; -0 is 0."""
        a = u(word & p.magnitude)
        return ZERO if a == SIGN else a

    @jit
    def special(a, word, result, over, p):
        """``result``, unless the number was not finite or its result is too large."""
        negative = word >= SIGN
        result = (p.minus_over if negative else p.over) if over else result
        result = (p.minus_infinity if negative else p.infinity) if a == INFINITY else result
        return p.nan if a > INFINITY else result

    @jit
    def nearest_even(x, out, p):
        """Values. Normal results: adding half a unit less one, and the last kept bit, carries exactly when
        nearest-even goes up, and a carry into the exponent is the next number, as on the grid. Below the least normal
        number the spacing is that of the numbers from ``magic`` on, so that the CPU's own rounding of the sum is the
        one wanted, and the difference is exact.

        Blocks where every magnitude is at most the largest number need no more than that. A block is read before
        it is written, so ``out`` may be ``x``, and the compiler knows that it may vectorise.
        """
        magic = as_float(p.magic)
        hold = np.empty(BLOCK, x.dtype)
        for start in range(0, x.size, BLOCK):
            words = x[start : start + BLOCK]
            most = ZERO
            for j in range(words.size):
                word = words[j]
                a = u(word & p.magnitude)
                normal = u(u(u(a + p.half) + u(right(a, p.shift) & p.lowest)) & p.kept)
                r = as_bits((as_float(a) + magic) - magic) if a < p.normal else normal
                r = max(r, p.least)
                hold[j] = u(r | u(word & p.sign_mask)) if r >= p.signed_from else r
                most = max(most, a)
            if most > p.max or not p.plain:
                for j in range(words.size):
                    word = words[j]
                    a = magnitude(word, p)
                    normal = u(u(u(a + p.half) + u(right(a, p.shift) & p.lowest)) & p.kept)
                    r = as_bits((as_float(a) + magic) - magic) if a < p.normal else normal
                    r = ZERO if (a < p.flush_input) | (r < p.flush_result) else r
                    r = max(r, p.least)
                    signed = u(r | u(word & p.sign_mask)) if r >= p.signed_from else r
                    hold[j] = special(a, word, signed, r > p.max, p)
            results = out[start : start + BLOCK]
            for j in range(words.size):
                results[j] = hold[j]

    @jit
    def nearest_even_codes(x, out, p):
        """Codes. As above; the rank is how many units the rounded word is above rank 0."""
        magic = as_float(p.magic)
        add = u(p.half - p.base)
        for start in range(0, x.size, BLOCK):
            words, results = x[start : start + BLOCK], out[start : start + BLOCK]
            most = ZERO
            for j in range(words.size):
                word = words[j]
                a = u(word & p.magnitude)
                normal = right(u(u(a + add) + u(right(a, p.shift) & p.lowest)), p.shift)
                rank = u(as_bits(as_float(a) + magic) - p.magic) if a < p.normal else normal
                results[j] = code(rank, word, p)
                most = max(most, a)
            if p.plain and most <= p.max:
                continue
            for j in range(words.size):
                word = words[j]
                a = magnitude(word, p)
                normal = right(u(u(a + add) + u(right(a, p.shift) & p.lowest)), p.shift)
                rank = u(as_bits(as_float(a) + magic) - p.magic) if a < p.normal else normal
                over = rank > p.max_rank
                rank = ZERO if (a < p.flush_input) | (rank < p.flush_rank) else rank
                results[j] = special(a, word, code(rank, word, p), over, p)

    @jit
    def other_modes(x, out, p, values, r, given, first, key0, key1):
        """All other modes, by the rules of ``on_grid``, where nearest-even has its fast way.

        Normal results drop the last s bits of the word: the increments work on the word itself. For stochastic
        rounding R, moved to where the dropped bits are, carries exactly when t + R >= 2^32. Below the least normal
        number the bits to drop are more than s; t is what of the significand falls into the 32 bits below the unit.
        """
        hold = np.empty(BLOCK, out.dtype)
        magic = as_float(p.magic)
        blank = np.uint32(0) if r is None else np.uint32(np.uint32(32) - r)
        least_drop = u(p.shift + p.field)
        all_dropped = u(~p.kept)
        for start in range(0, x.size, BLOCK):
            words = x[start : start + BLOCK]
            begin = np.uint32(first + np.uint32(start))
            bits = None if given is None else given[start : start + BLOCK]
            most = ZERO
            for j in range(words.size):
                word = words[j]
                a = u(word & p.magnitude)
                field = max(right(a, F), ONE)
                significand = u(a - left(u(field - ONE), F))
                drop = u(least_drop - field)
                short = min(drop, LAST)
                rank = right(significand, short)
                if r is None:
                    ones = u(left(ONE, short) - ONE)
                    rank = u(rank + right(u(u(significand & ones) + increment(ones, rank, word, p)), short))
                    normal = u(a + increment(all_dropped, right(a, p.shift), word, p))
                else:
                    if given is None:
                        draw = left(right(fast_random.bits(np.uint32(begin + np.uint32(j)), key0, key1), blank), blank)
                    else:
                        draw = left(bits[j], blank)
                    low = left(significand, min(u(WORD - drop), LAST))
                    high = right(significand, min(u(drop - WORD), LAST))
                    fraction = np.uint32(high if drop > WORD else low)
                    rank = u(rank + u(np.uint32(fraction + draw) < draw))
                    normal = u(a + left(right(u(draw), p.draw_right), p.draw_left))
                if values is None:
                    hold[j] = code(rank if a < p.normal else right(u(normal - p.base), p.shift), word, p)
                else:
                    below = as_bits(as_float(u(p.magic + rank)) - magic)
                    v = max(below if a < p.normal else u(normal & p.kept), p.least)
                    hold[j] = u(v | u(word & p.sign_mask)) if v >= p.signed_from else v
                most = max(most, a)
            results = out[start : start + BLOCK]
            if most > p.max:
                on_grid(words, results, p, values, None, r, bits, begin, key0, key1)
            else:
                for j in range(words.size):
                    results[j] = hold[j]

    @jit
    def increment(ones, kept, word, p):
        """What makes the dropped bits (mask ``ones``) carry exactly when the mode without chance goes up."""
        odd = u(u(kept - p.least_rank) & ONE)
        nearest = u(right(ones, ONE) + u(u(odd | p.away) & u(ones & ONE)))
        directed = u(u(p.up_negative if word >= SIGN else p.up_positive) | u(p.to_odd & u(odd - ONE)))
        return u(u(nearest & p.nearest) | u(ones & directed))

    @jit
    def code(rank, word, p):
        magnitude = u(max(rank, p.least_rank) - p.least_rank)
        return u(magnitude | u(right(word, p.sign_shift) & p.sign_mask)) if magnitude >= p.signed_from else magnitude

    @jit
    def value(rank, word, p):
        """The word of the number at a rank, in integers only.

        A normal rank lacks the dropped zeros and the field. A subnormal one is an integer, which a float conversion
        brings to the form field | fraction. A field below 1 makes a subnormal word: the hidden bit is shifted in.
        """
        rank = max(rank, p.least_rank)
        normal = u(left(rank, p.shift) + p.base)
        subnormal = u(u(integer_word(rank) + p.base) - u(SUBNORMAL - left(p.shift, F)))
        long = i(normal if rank >= p.normal_rank else subnormal)
        deep = u(min(max(i(i(1) - right(long, i(F))), i(0)), i(LAST)))
        significand = u(u(u(long) & FRACTION) | HIDDEN)
        r = u(long) if deep == ZERO else right(significand, deep)
        r = ZERO if rank == ZERO else r
        return u(r | u(word & p.sign_mask)) if r >= p.signed_from else r

    @jit
    def integer_word(n):
        """An integer below 2^F as a float: one exact subtraction, which no flush-to-zero mode touches."""
        return as_bits(as_float(u(n | INTEGERS)) - as_float(INTEGERS))

    @jit
    def locate(a, p):
        """Significand, how many bits of it to drop, and the rank of the binade: rank = (significand >> drop) + rest.

        Source subnormals are brought to the form 1.fraction x 2^(field - bias), with a field below 1.
        """
        long = i(a if a >= HIDDEN else u(integer_word(a) - SUBNORMAL))
        significand = u(u(u(long) & FRACTION) | HIDDEN)
        significand = ZERO if a == ZERO else significand
        above = i(right(long, i(F)) - i(p.field))
        drop = min(u(p.shift + u(max(i(-above), i(0)))), MOST)
        return significand, drop, left(u(max(above, i(0))), p.fraction_bits)

    @jit
    def on_grid(x, out, p, values, counts, r, given, first, key0, key1):
        """All modes, by significand and rank. ``None`` for ``values`` gives codes, for ``counts`` no events, for ``r``
        a mode without chance, for ``given`` numsim's own random bits; each choice compiles by itself.

        Modes without chance: (dropped bits + increment) carries exactly when the mode goes up. With k dropped bits the
        increments are 2^(k-1) - 1 + odd, 2^(k-1), 0 and 2^k - 1. k stops at the width less one, where the significand
        is below half a unit, as it is for every larger k.

        Stochastic: up where floor(2^r * fraction) + random >= 2^r, with fraction = dropped bits / 2^k. With
        t = floor(2^32 * fraction) and R = random * 2^(32-r) that is t + R >= 2^32: the low 32 - r bits of R are 0, so
        those of t cannot carry, and what is left is the sum of floor(2^r * fraction) and random. The top r bits of a
        generated draw, where they stand, are R. t is the dropped bits with the binary point moved up by 32; k is not
        clamped here, so a small number keeps its small probability, and an exact one has t = 0 and never moves.
        """
        hold = np.empty(BLOCK, out.dtype)
        blank = np.uint32(0) if r is None else np.uint32(np.uint32(32) - r)
        for start in range(0, x.size, BLOCK):
            words = x[start : start + BLOCK]
            begin = np.uint32(first + np.uint32(start))
            bits = None if given is None else given[start : start + BLOCK]
            over = minus_over = zero = subnormal = inexact = infinite = negative = minus_infinite = ZERO
            for j in range(words.size):
                word = words[j]
                a = magnitude(word, p)
                significand, drop, rest = locate(a, p)
                short = min(drop, LAST)
                ones = u(left(ONE, short) - ONE)
                dropped = u(significand & ones)
                exact_rank = u(right(significand, short) + rest)
                if r is None:
                    carry = right(u(dropped + increment(ones, exact_rank, word, p)), short)
                else:
                    if given is None:
                        draw = left(right(fast_random.bits(np.uint32(begin + np.uint32(j)), key0, key1), blank), blank)
                    else:
                        draw = left(bits[j], blank)
                    low = left(dropped, min(u(max(drop, WORD) - drop), LAST))
                    high = right(dropped, min(u(max(drop, WORD) - WORD), LAST))
                    carry = u(np.uint32(np.uint32(high if drop > WORD else low) + draw) < draw)
                rank = ZERO if a < p.flush_input else u(exact_rank + carry)
                too_large = rank > p.max_rank
                rank = ZERO if rank < p.flush_rank else rank
                result = code(rank, word, p) if values is None else value(rank, word, p)
                hold[j] = special(a, word, result, too_large, p)
                if counts is not None:
                    rank = max(rank, p.least_rank)
                    finite = a < INFINITY
                    over = u(over + u(finite & too_large & (word < SIGN)))
                    minus_over = u(minus_over + u(finite & too_large & (word >= SIGN)))
                    zero = u(zero + u(finite & (a != ZERO) & (rank == ZERO)))
                    subnormal = u(subnormal + u(finite & (rank != ZERO) & (rank < p.normal_rank)))
                    inexact = u(inexact + u(finite & (too_large | (dropped != ZERO) | (rank != exact_rank))))
                    infinite = u(infinite + u(a == INFINITY))
                    negative = u(negative + u((a > SIGN) & (a < u(SIGN | INFINITY))))
                    minus_infinite = u(minus_infinite + u(a == u(SIGN | INFINITY)))
            results = out[start : start + BLOCK]
            for j in range(words.size):
                results[j] = hold[j]
            if counts is not None:
                tally = (over, minus_over, zero, subnormal, inexact, infinite, negative, minus_infinite)
                for j in range(8):
                    counts[j] += np.int64(tally[j])

    @jit
    def any_nan(x, p):
        """Whether a number is NaN, or below zero where the format has no sign."""
        for start in range(0, x.size, BLOCK):
            words = x[start : start + BLOCK]
            most = ZERO
            for j in range(words.size):
                most = max(most, magnitude(words[j], p))
            if most > INFINITY:
                return True
        return False

    return SimpleNamespace(
        nearest_even=nearest_even,
        nearest_even_codes=nearest_even_codes,
        other_modes=other_modes,
        on_grid=on_grid,
        any_nan=any_nan,
    )


_WIDTHS = {32: _compile(np.uint32, np.int32, 32, 23), 64: _compile(np.uint64, np.int64, 64, 52)}
_WORD = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


# --- the plan -----------------------------------------------------------------------------------------------------------
def _power_of_two(exponent: int, fraction_bits: int, bias: int) -> int:
    """The word of 2^exponent; 0 where it is below the source's range, and past infinity above it."""
    field = exponent + bias
    if field >= 1:
        return min(field, 2 * bias + 2) << fraction_bits
    return 1 << (fraction_bits + field - 1) if fraction_bits + field > 0 else 0


@lru_cache(maxsize=256)
def plan(format: Format, policy: Policy, width: int, values: bool) -> tuple[Plan, bool]:
    """The plan, and whether the nearest-even kernels serve it (they need a C; see there)."""
    F, bias = (23, 127) if width == 32 else (52, 1023)
    word = (np.uint32, np.uint64)[width == 64]
    source = (np.float32, np.float64)[width == 64]
    all_ones = (1 << width) - 1
    shift = F - format.fraction_bits
    field = format.emin + bias
    normal = _power_of_two(format.emin, F, bias)

    def result(code: int) -> int:
        if not values:
            return code
        return int(np.asarray(decode(code, format), np.float64).astype(source).view(word))

    def edge(x: Rational) -> int:  # what the reference makes of it
        return result(rounding.round_rational(x, format, policy))

    beyond = 4 * (format.max + format.least_normal)
    no_nan = format.nan_code is None and policy.nan == "raise"  # such an array is refused before any kernel runs
    nan = 0 if no_nan else result(rounding.nan_result(format, policy))
    infinity, over = edge(Rational(0, 1, 0)), edge(Rational(0, *beyond.as_integer_ratio()))
    minus_infinity, minus_over = nan, nan
    if format.signed:
        minus_infinity, minus_over = edge(Rational(1, 1, 0)), edge(Rational(1, *beyond.as_integer_ratio()))

    # Below the least normal number nearest-even adds and subtracts C = 2^(emin + shift). Where the source's numbers end
    # there too, they have one spacing below and above, and the integer addition is right all the way down.
    e8m0_like = not format.zero and format.fraction_bits == 0
    top_of_small = field + shift  # C's exponent field
    magic, below = (top_of_small << F, normal) if field > 1 else (0, 0)
    suits = field >= 1 and 1 <= top_of_small <= 2 * bias
    if field == 0 and e8m0_like:  # 2^emin is subnormal in the source, 2^(emin + 1) is not
        suits, magic, below = True, (top_of_small << F) + 1, 1 << F  # one unit up, for a tie goes to the even code
    if format.fraction_bits == 0 and (field + 1 + format.rank(0)) % 2:
        suits = False  # the fields' parity is not the codes'

    flush_input = policy.subnormals in ("flush-inputs", "flush")
    flush_result = policy.subnormals in ("flush-results", "flush")
    mode = policy.rounding
    numbers = dict(
        magnitude=all_ones >> 1 if format.signed else all_ones,
        shift=shift,
        field=field,
        base=(field - 1) << F,
        fraction_bits=format.fraction_bits,
        normal_rank=1 << format.fraction_bits,
        half=(1 << shift >> 1) - 1 if shift else 0,
        lowest=1 if shift else 0,
        kept=all_ones << shift,
        normal=below,
        magic=magic,
        least_rank=format.rank(0),
        max_rank=format.max_rank,
        least=0 if format.zero else normal,
        max=_word_of(format.max, source, word),
        flush_input=normal if flush_input else 0,
        flush_rank=1 << format.fraction_bits if flush_result else 0,
        flush_result=normal if flush_result else 0,
        sign_shift=0 if values or not format.signed else width - 1 - format.magnitude_bits,
        sign_mask=0 if not format.signed else (1 << (width - 1) if values else format.sign_mask),
        signed_from=1 if format.specials == "fnuz" else 0,
        nan=nan,
        infinity=infinity,
        minus_infinity=minus_infinity,
        over=over,
        minus_over=minus_over,
        plain=int(not flush_input and not flush_result),
        draw_right=max(32 - shift, 0),
        draw_left=max(shift - 32, 0),
        nearest=all_ones if mode in ("nearest-even", "nearest-away") else 0,
        away=1 if mode == "nearest-away" else 0,
        up_positive=all_ones if mode == "up" else 0,
        up_negative=all_ones if mode == "down" else 0,
        to_odd=all_ones if mode == "odd" else 0,
    )
    return Plan(**{name: word(number & all_ones) for name, number in numbers.items()}), suits


def _word_of(x: Any, source: Any, word: Any) -> int:
    return int(np.asarray(float(x), np.float64).astype(source).view(word))


# --- the twins ----------------------------------------------------------------------------------------------------------
def encode(
    x: npt.NDArray[Any], format: Format, policy: Policy, draw: Draw | None, events: Events | None
) -> npt.NDArray[Any]:
    """Codes of a flat float32 or float64 array."""
    codes = np.empty(x.size, code_dtype(format))
    _round(x, format, policy, draw, events, codes, values=False)
    return codes


def round_to(
    x: npt.NDArray[Any],
    format: Format,
    policy: Policy,
    draw: Draw | None,
    events: Events | None,
    out: npt.NDArray[Any],
) -> None:
    """Values of a flat array, into ``out`` of the same dtype; ``out`` may be ``x``. The format fits the dtype."""
    _round(x, format, policy, draw, events, out, values=True)


TWINS = [(rounding.encode, encode), (rounding.round_to, round_to)]


def _round(
    x: npt.NDArray[Any],
    format: Format,
    policy: Policy,
    draw: Draw | None,
    events: Events | None,
    out: npt.NDArray[Any],
    values: bool,
) -> None:
    if format.max == 0:  # a format with nothing but zeros: nothing to be gained
        return _on_the_reference(x, format, policy, draw, events, out, values)
    widen = x.dtype == np.float32 and not kernels.fits_source(x.dtype, format)
    x = np.require(np.asarray(x), requirements="A")
    width = 64 if widen else 8 * x.itemsize
    word, kernel = _WORD[width // 8], _WIDTHS[width]
    p, suits = plan(format, policy, width, values)
    fast = suits and events is None
    near = policy.rounding == "nearest-even"
    small = format.emin - format.fraction_bits < (-125 if width == 32 else -1021)  # sums or results may be subnormal
    target = out.view(word) if values else out
    tallies: list[npt.NDArray[np.int64]] = []

    def blocks(first: int, end: int) -> Iterator[tuple[int, int, Words]]:
        step = _BLOCK if widen else max(end - first, 1)
        wide = np.empty(min(step, end - first), np.float64) if widen else None
        for start in range(first, end, step):
            part = x[start : min(start + step, end)]
            if wide is not None:
                with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
                    wide[: part.size] = part
                part = wide[: part.size]
            words = part.view(word)
            words.flags.writeable = False  # one signature for all, so one compilation
            yield start, start + part.size, words

    if format.nan_code is None and policy.nan == "raise":
        if any(kernel.any_nan(part, p) for _, _, part in blocks(0, x.size)):
            rounding.nan_result(format, policy)

    def work(first: int, end: int) -> None:
        exact = fast and not (small and flushes_subnormals())
        for start, stop, part in blocks(first, end):
            block(part, start, target[start:stop], exact)

    def block(part: Words, first: int, result: Words, exact: bool) -> None:
        if exact and near:
            (kernel.nearest_even if values else kernel.nearest_even_codes)(part, result, p)
            return
        as_values = True if values else None
        counts = None if events is None else np.zeros(8, np.int64)
        quick = exact and bool(p.plain) and bool(p.shift)

        def run(first: int, end: int, *chance: Any) -> None:
            if quick:
                kernel.other_modes(part[first:end], result[first:end], p, as_values, *chance)
            else:
                kernel.on_grid(part[first:end], result[first:end], p, as_values, counts, *chance)

        if draw is None:
            run(0, part.size, None, None, _U0, _U0, _U0)
        elif draw.given is not None:
            given = draw.given[first : first + part.size]
            given.flags.writeable = False
            run(0, part.size, np.uint32(draw.r), given, _U0, _U0, _U0)
        else:
            done = 0
            while done < part.size:  # the keys change where the counter's low 32 bits pass zero
                high, low = divmod(draw.position + first + done, 1 << 32)
                end = min(part.size, done + (1 << 32) - low)
                run(done, end, np.uint32(draw.r), None, np.uint32(low), *map(np.uint32, random.keys(draw.seed, high)))
                done = end
        if counts is not None:
            tallies.append(counts)

    over_chunks(x.size, work)
    if events is not None:
        _add(events, x.size, tallies, format, policy)


_U0 = np.uint32(0)


def _add(events: Events, total: int, tallies: list[Any], format: Format, policy: Policy) -> None:
    sums = map(int, np.sum([[0] * 8, *tallies], axis=0))
    over, minus_over, zero, subnormal, inexact, infinite, negative, minus_infinite = sums

    def becomes_nan(sign: int, numerator: int, denominator: int) -> bool:
        x = Rational(sign, numerator, denominator)
        return format.nan_code is not None and rounding.round_rational(x, format, policy) == format.nan_code

    beyond = (4 * (format.max + format.least_normal)).as_integer_ratio()
    events.add(
        Events(
            total=total,
            overflow=over + minus_over,
            underflow=zero + negative * (format.nan_code is None and policy.nan == "zero" and format.zero),
            subnormal=subnormal,
            inexact=inexact + negative,
            nan=over * becomes_nan(0, *beyond)
            + minus_over * becomes_nan(1, *beyond)
            + infinite * becomes_nan(0, 1, 0)
            + (negative + minus_infinite) * (format.nan_code is not None),
        )
    )


def _on_the_reference(
    x: npt.NDArray[Any],
    format: Format,
    policy: Policy,
    draw: Draw | None,
    events: Events | None,
    out: npt.NDArray[Any],
    values: bool,
) -> None:
    codes = rounding.encode_values(Values(x.shape, x, None), format, policy, draw, events)
    out[:] = decode(codes, format) if values else codes
