# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="index"
"""The compiled loops of ``kernels/rounding.py``, made once for 32-bit and once for 64-bit words.

A *word* is the bit pattern of a source number, a *field* its exponent field (which may go below 1 here), a *rank* the
place on the format's grid as in the reference. Format and policy come in as numbers, so one machine code serves all;
there are no branches inside the inner loops, so that they vectorise. No float is computed but where a comment says so.

Two things to know when editing. numba computes ``uint32 op uint32`` in 64 bits, which wraps elsewhere and halves the
vectors: every operation is wrapped in ``u(...)``, every shift is ``left`` or ``right``. And every loop runs over
slices from 0 up: from another start LLVM cannot exclude negative indices, and stays scalar.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from numsim.kernels import random as fast_random
from numsim.kernels._jit import as_bits, as_float, jit, left, part, right

BLOCK = 1024  # numbers that are read before any of them is written, so that a result may replace its number


class Plan(NamedTuple):
    """A format and a policy, as words of the source."""

    # the grid
    magnitude: Any  # mask: all but the sign; all ones for unsigned formats, where a sign makes a number huge
    shift: Any  # bits that a normal result drops
    field: Any  # exponent field of the least normal number
    base: Any  # the word of rank 0 if the normal grid went on downwards (wraps around)
    fraction_bits: Any
    normal_rank: Any  # the least normal number's
    # rounding in the source's own words
    half: Any  # half a unit less one
    lowest: Any  # 1, or 0 where nothing is dropped
    kept: Any  # mask of the bits that are not dropped
    normal: Any  # words below this are rounded with the help of ``magic``
    magic: Any  # C = 2^(emin + shift): from C on the source's numbers have the spacing of the format's subnormals
    # what may come out
    least_rank: Any
    max_rank: Any
    least: Any  # word
    max: Any  # word
    flush_input: Any  # words below this become zero
    flush_rank: Any  # ranks below this become zero
    flush_result: Any  # words below this become zero
    plain: Any  # 1 where nothing is flushed
    # the sign
    sign_shift: Any
    sign_mask: Any
    signed_from: Any  # what is below this loses its sign: 1 for formats without -0
    # results beyond the grid, as the policy decides
    nan: Any
    infinity: Any
    minus_infinity: Any
    over: Any
    minus_over: Any
    # the mode; all ones or 0
    nearest: Any
    away: Any  # 1 or 0
    up_positive: Any
    up_negative: Any
    to_odd: Any
    # where the 32 random bits go
    draw_right: Any
    draw_left: Any


@part
def unpack(p):
    """The plan from an array: a named tuple would cost 3 microseconds a call."""
    return Plan(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11], p[12], p[13], p[14], p[15],
                p[16], p[17], p[18], p[19], p[20], p[21], p[22], p[23], p[24], p[25], p[26], p[27], p[28], p[29], p[30],
                p[31], p[32], p[33])  # fmt: skip


def loops(u: Any, i: Any, width: int, fraction_bits: int) -> SimpleNamespace:
    """The loops for words of type ``u``; ``i`` is the signed type."""
    F = u(fraction_bits)
    BIAS = (1 << (width - 2 - fraction_bits)) - 1
    HIDDEN = u(1 << fraction_bits)
    FRACTION = u((1 << fraction_bits) - 1)
    INFINITY = u((2 * BIAS + 1) << fraction_bits)
    SIGN = u(1 << (width - 1))
    INTEGERS = u((BIAS + fraction_bits) << fraction_bits)  # 2^F: from here on floats are spaced by 1
    SUBNORMAL = u((BIAS + fraction_bits - 1) << fraction_bits)
    ZERO, ONE = u(0), u(1)
    LAST, MOST, WORD, TOP = u(width - 1), u(width + 31), u(32), np.uint32(31)

    @part
    def magnitude(word, p):
        """Without the sign. For unsigned formats a negative number comes out above infinity, like NaN; -0 is 0."""
        a = u(word & p.magnitude)
        return ZERO if a == SIGN else a

    @part
    def special(a, word, result, over, p):
        """``result``, unless the number was not finite or its result is too large."""
        negative = word >= SIGN
        result = (p.minus_over if negative else p.over) if over else result
        result = (p.minus_infinity if negative else p.infinity) if a == INFINITY else result
        return p.nan if a > INFINITY else result

    @jit
    def nearest_even(x, out, plan):
        """Values. Normal results: adding half a unit less one, and the last kept bit, carries exactly when
        nearest-even goes up, and a carry into the exponent is the next number, as on the grid. Below the least normal
        number the spacing is that of the numbers from ``magic`` on, so that the CPU's own rounding of the sum is the
        one wanted, and the difference is exact.

        Blocks where every magnitude is at most the largest number need no more than that. A block is read before
        it is written, so ``out`` may be ``x``, and the compiler knows that it may vectorise.
        """
        p = unpack(plan)
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
    def nearest_even_codes(x, out, plan):
        """Codes. As above; the rank is how many units the rounded word is above rank 0."""
        p = unpack(plan)
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
    def other_modes(x, out, plan, quick, values, counts, r, given, first, key0, key1):
        """All modes and policies. ``values`` None: codes. ``r`` None: a mode without chance. ``given``: the random
        bits, or empty for numsim's own. Blocks of ordinary numbers are rounded here if ``quick``, all others by
        ``on_grid``, which says why the rules are right; here they work on the word where the result is normal:

        Normal results drop the last s bits of the word, and the increment is added to the word. For stochastic
        rounding that is R, moved to where the dropped bits are: it carries exactly when t + R >= 2^32. Below the least
        normal number the bits to drop are more than s; t is what of the significand falls into the 32 bits below the
        unit.
        """
        p = unpack(plan)
        hold = np.empty(BLOCK, x.dtype)
        bits = np.empty(BLOCK, np.uint32)
        magic = as_float(p.magic)
        least_drop = u(p.shift + p.field)
        all_dropped = u(~p.kept)
        for start in range(0, x.size, BLOCK):
            words = x[start : start + BLOCK]
            if r is not None:
                draw(bits, words.size, r, given[start : start + BLOCK], np.uint32(first + np.uint32(start)), key0, key1)
            most = ZERO
            if quick:
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
                        normal = u(a + increment(all_dropped, right(u(a - p.base), p.shift), word, p))
                    else:
                        rank = u(rank + carry(significand, drop, bits[j]))
                        normal = u(a + left(right(u(bits[j]), p.draw_right), p.draw_left))
                    if values is None:
                        hold[j] = code(rank if a < p.normal else right(u(normal - p.base), p.shift), word, p)
                    else:
                        below = as_bits(as_float(u(p.magic + rank)) - magic)
                        v = max(below if a < p.normal else u(normal & p.kept), p.least)
                        hold[j] = u(v | u(word & p.sign_mask)) if v >= p.signed_from else v
                    most = max(most, a)
            if most > p.max or not quick:
                on_grid(words, hold, plan, values, counts, r, bits)
            results = out[start : start + BLOCK]
            for j in range(words.size):
                results[j] = hold[j]

    @jit
    def draw(bits, count, r, given, first, key0, key1):
        """The random bits of a block as R, see ``on_grid``."""
        blank = np.uint32(np.uint32(32) - r)
        if given.size:
            for j in range(count):
                bits[j] = left(given[j], blank)
        else:
            for j in range(count):
                bits[j] = left(right(fast_random.bits(np.uint32(first + np.uint32(j)), key0, key1), blank), blank)

    @part
    def carry(significand, drop, random):
        """1 where t + R >= 2^32: t is what stands in the 32 bits below the last kept one.

        The carry is made of the top bits of both and of their sum: LLVM would make of a comparison an addition with
        overflow flag, which it does not vectorise.
        """
        back, forth = u(WORD - drop), u(drop - WORD)
        near, far = left(significand, min(back, LAST)), right(significand, min(forth, LAST))
        t = np.uint32(near if back <= LAST else far)
        total = np.uint32(t + random)
        return u(right(np.uint32(np.uint32(t & random) | np.uint32(np.uint32(t | random) & np.uint32(~total))), TOP))

    @part
    def increment(ones, kept, word, p):
        """What makes the dropped bits (mask ``ones``) carry exactly when the mode without chance goes up."""
        odd = u(u(kept - p.least_rank) & ONE)
        nearest = u(right(ones, ONE) + u(u(odd | p.away) & u(ones & ONE)))
        directed = u(u(p.up_negative if word >= SIGN else p.up_positive) | u(p.to_odd & u(odd - ONE)))
        return u(u(nearest & p.nearest) | u(ones & directed))

    @part
    def code(rank, word, p):
        magnitude = u(max(rank, p.least_rank) - p.least_rank)
        return u(magnitude | u(right(word, p.sign_shift) & p.sign_mask)) if magnitude >= p.signed_from else magnitude

    @part
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

    @part
    def integer_word(n):
        """An integer below 2^F as a float: one exact subtraction, which no flush-to-zero mode touches.

        Its sign is cut off: in a process that rounds down, x - x is -0.
        """
        return u(as_bits(as_float(u(n | INTEGERS)) - as_float(INTEGERS)) & u(SIGN - u(1)))

    @part
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
    def on_grid(words, out, plan, values, counts, r, bits):
        """One block, by significand and rank as in the reference, and what happened to its numbers.

        Modes without chance: (dropped bits + increment) carries exactly when the mode goes up. With k dropped bits the
        increments are 2^(k-1) - 1 + odd, 2^(k-1), 0 and 2^k - 1. k stops at the width less one, where the significand
        is below half a unit, as it is for every larger k.

        Stochastic: up where floor(2^r * fraction) + random >= 2^r, with fraction = dropped bits / 2^k. With
        t = floor(2^32 * fraction) and R = random * 2^(32-r) that is t + R >= 2^32: the low 32 - r bits of R are 0, so
        those of t cannot carry, and what is left is the sum of floor(2^r * fraction) and random. The top r bits of a
        generated draw, where they stand, are R. t is the dropped bits with the binary point moved up by 32; k is not
        clamped here, so a small number keeps its small probability, and an exact one has t = 0 and never moves.
        """
        p = unpack(plan)
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
                up = right(u(dropped + increment(ones, exact_rank, word, p)), short)
            else:
                up = carry(significand, drop, bits[j])
            rank = ZERO if a < p.flush_input else u(exact_rank + up)
            too_large = rank > p.max_rank
            rank = ZERO if rank < p.flush_rank else rank
            result = code(rank, word, p) if values is None else value(rank, word, p)
            out[j] = special(a, word, result, too_large, p)

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
        tally = (over, minus_over, zero, subnormal, inexact, infinite, negative, minus_infinite)
        for j in range(8):
            counts[j] += np.int64(tally[j])

    @jit
    def any_nan(x, plan):
        """Whether a number is NaN, or below zero where the format has no sign."""
        p = unpack(plan)
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
        any_nan=any_nan,
    )
