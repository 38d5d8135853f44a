"""The probes: fixed sets of crafted operands, made for the formats at hand and blind to every chip's parameters.

In the comments M is a large power of two, v a smaller one; "beside M" means that M and -M cancel in the same sum, so
that the result shows what became of the others. ``reading.py`` says what the answers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy.typing as npt

from numsim.reveal.operands import WIDEST, Batch, Interface, Term, code_of
from numsim.tensorcore.models import IN_WORDS, TYPES, word_format

SIGNS = (1, -1)
LOST = (1, -1, Fraction(3, 2), Fraction(-3, 2))  # halves and three quarters of a unit tell the directions apart


@dataclass(frozen=True)
class Probe:
    """name; what it is about, in words; ``craft(batch)`` adds the rows."""

    name: str
    about: str
    craft: Callable[[Batch], None]


class Sums(NamedTuple):
    """What one probe asks: a key for each row, and the operands as ``Batch.arrays`` gives them."""

    keys: tuple[Any, ...]
    arrays: tuple[npt.NDArray[Any], ...]


@lru_cache(maxsize=16)
def sums_for(interface: Interface) -> dict[str, Sums]:
    """All that is asked of a unit with such operands; probes that these cannot express are left out."""
    found = {}
    for probe in PROBES:
        batch = Batch(interface)
        probe.craft(batch)
        if batch.keys:
            found[probe.name] = Sums(tuple(batch.keys), tuple(batch.arrays()))
    return found


# --- what is added at once, and in which order ------------------------------------------------------------------------
def masks(batch: Batch) -> None:
    """M at one place, -M at another, small ones everywhere else: how many of them survive? c is a place, too."""
    ix = batch.interface
    big = Term(ix.top)
    for low in ix.lows:
        one = Term(low, tiny=low != ix.lows[0])
        for i, j in combinations(leaves(ix), 2):
            terms = {n: t for n, t in ((i, big), (j, -big)) if n != "c"}
            batch.add((low, i, j), terms, -(Fraction(2) ** ix.top) if j == "c" else Fraction(2) ** low, fill=one)


def leaves(ix: Interface) -> list[Any]:
    """The places of a sum."""
    return [*range(ix.k), "c"]


def counting(batch: Batch) -> None:
    """c is 2^(p+1) - 1, with 2 at one place and 1 at another: where both arrive at once the sum is 2^(p+1) + 2; where 2
    comes first, alone, it ends at 2^(p+1), for from there on a 1 is half a unit of p bits."""
    for p in precisions(batch.interface):
        for i, j in permutations(range(batch.interface.k), 2):
            batch.add((p, i, j), {i: Term(1), j: Term(0)}, 2 ** (p + 1) - 1)


def precisions(ix: Interface) -> tuple[int, ...]:
    """Fraction bits that a result may have: its format's, or 13 of those of FP32 where masks may show nothing."""
    narrow = ix.d == "f32" and len(ix.lows) > 1
    return (TYPES[ix.d].fraction_bits, *([13] if narrow else []))


def together(batch: Batch) -> None:
    """Beside a large c: v at place 0 alone, and v at 0 and at another place. Two halves count if they meet before they
    are cut."""
    ix = batch.interface
    others = [j for j in range(1, ix.k - 1) if j == 3 or j & (j - 1) == 0 or j & (j + 1) == 0]
    top = min(ix.large, TYPES[ix.c].emax)
    for e in range(top - 8, top - 44, -1):
        v = Term(e, tiny=True)
        for j in (0, *others):
            batch.add((j, e), {0: v, j: v, ix.k - 1: -Term(top)}, Fraction(2) ** top)


# --- what is lost at the alignment ------------------------------------------------------------------------------------
def large_terms(ix: Interface) -> dict[str, Term]:
    """Products to stand beside: a power of two, one of 2.25 with the same exponents, ones of subnormal numbers."""
    top = ix.large
    found = {"one": Term(0), "big": Term(top), "2.25": Term(top, Fraction(3, 2), Fraction(3, 2))}
    if ix.scale:
        found["unscaled"] = Term(2, at=1)  # 2 x 2 under a scale of 1
    a, b = TYPES[ix.a], TYPES[ix.b]
    found["subnormal a"] = Term(ix.least("a") + b.emax, at=ix.least("a"))
    found["subnormal b"] = Term(a.emax + ix.least("b"), at=a.emax)
    return found


def small_c(batch: Batch) -> None:
    """c = v beside M, v smaller and smaller."""
    ix = batch.interface
    for name, big in large_terms(ix).items():
        for e in range(min(big.exponent, TYPES[ix.c].emax), max(big.exponent - 70, ix.least("c")) - 1, -1):
            for v in LOST if name == "big" else SIGNS:
                batch.add((name, v, e), {0: big, 1: -big}, v * Fraction(2) ** e)


def small_products(batch: Batch) -> None:
    """Products v at all other places beside M, v smaller and smaller; -M stands at place 1, or at the last one."""
    ix = batch.interface
    apart = ix.scale and ix.scale_block < ix.k  # then v has scales of its own
    for name, big in large_terms(ix).items():
        for partner in (1, ix.k - 1) if name == "big" else (1,):
            rest = range(ix.scale_block if apart else 0, ix.k)
            count = sum(k not in (0, partner) for k in rest)
            least = ix.least("d") - (count & -count).bit_length()  # the sum of all is a result
            for e in range(big.exponent - 8, max(big.exponent - 64, least), -1):
                for v in LOST if name == "big" else (1,):
                    small, terms = Term(e, v, tiny=bool(ix.scale)), {0: big, partner: -big}
                    if apart:
                        batch.add((name, partner, v, e), dict.fromkeys(rest, small) | terms)
                    else:
                        batch.add((name, partner, v, e), terms, fill=small)


def places(batch: Batch) -> None:
    """One tiny negative product, or c, beside M and -M at places 0 and 2: what becomes of it?"""
    ix = batch.interface
    big = {0: Term(ix.top), 2: -Term(ix.top)}
    for k in range(ix.k):
        if k not in big:
            batch.add(k, big | {k: -Term(ix.lows[0])})
    batch.add("c", big, -(Fraction(2) ** ix.lows[0]))


def large_c(batch: Batch) -> None:
    """All products 1, or -1, 1.5, -1.5, beside a c of 2^n."""
    ix = batch.interface
    for n in range(1, min(TYPES[ix.c].emax, WIDEST)):
        for v in LOST:
            batch.add((v, n), {}, Fraction(2) ** n, fill=Term(0, v))


def tiny(batch: Batch) -> None:
    """At the edge of the results: their least number less v, and half of it plus v; no c."""
    ix = batch.interface
    edge = ix.least("d")
    second = ix.scale_block if ix.scale and ix.scale_block < ix.k else 1
    for e in range(edge - 2, max(edge - 60, ix.lowest - 300) - 1, -1):
        batch.add(("less", e), {0: Term(edge, tiny=True), second: -Term(e, tiny=True)})
        batch.add(("half", e), {0: Term(edge - 1, tiny=True), second: Term(e, tiny=True)})


# --- what becomes of the sum ------------------------------------------------------------------------------------------
def roundings(batch: Batch) -> None:
    """3 * 1 + 1 + t * 2^-q: eighths to fractions of the last bit that a result near 4 has."""
    ix = batch.interface
    for sign in SIGNS:
        ones = {k: Term(0, sign) for k in range(3)}
        for q in range(3, TYPES[ix.d].fraction_bits + 1):
            for t in (1, 2, 3, 5, 6, 7):
                rest = Fraction(t, 2**q)
                if TYPES[ix.c].fraction_bits >= TYPES[ix.d].fraction_bits:
                    batch.add((sign, q, t), ones, sign * (1 + rest))
                else:
                    batch.add((sign, q, t), ones | {3: Term(-q, t * sign)}, sign)


def twice(batch: Batch) -> None:
    """For FP16 results: half a unit and a little more. It rounds up, unless FP32 drops the little first."""
    ix = batch.interface
    if ix.d != "f16":
        return
    for e in range(-12, ix.least("c") - 1, -1):
        if ix.k > 4:
            batch.add(e, {0: Term(0), 1: Term(0), 2: Term(0), 3: Term(0), 4: Term(-9)}, Fraction(2) ** e)
        else:
            rest = {k: Term(0) for k in range(3)}
            batch.add(e, rest | {3: Term(0, 1 + Fraction(1, 512))}, Fraction(2) ** e)


def overflow(batch: Batch) -> None:
    """The largest number as c, and products of 1/4, 1/2 and 1 of its last unit; huge products that cancel."""
    ix = batch.interface
    d = TYPES[ix.d]
    half = d.emax - d.fraction_bits - 1
    for sign in SIGNS:
        half_unit = Term(half, sign)
        for name, terms in (
            ("quarter", {0: Term(half - 1, sign)}),
            ("half", {0: half_unit}),
            ("unit", {0: half_unit, 1: half_unit}),
        ):
            batch.add((name, sign), terms, sign * d.max)
    if ix.highest > d.emax:
        huge = Term(ix.highest)
        batch.add("huge", {0: huge})
        batch.add("huge, cancelled", {0: huge, 1: -huge})


def subnormals(batch: Batch) -> None:
    """Subnormal operands alone, subnormal c alone, and normal numbers whose difference is subnormal."""
    ix = batch.interface
    a, b, d = TYPES[ix.a], TYPES[ix.b], TYPES[ix.d]
    batch.add("a", {0: Term(ix.least("a") + min(b.emax, WIDEST), at=ix.least("a"))})
    batch.add("b", {0: Term(min(a.emax, WIDEST) + ix.least("b"), at=min(a.emax, WIDEST))})
    for name, c in (("c", TYPES[ix.c].least_subnormal), ("c, largest", _largest_subnormal(ix.c))):
        batch.add(name, {}, c or 0)
        batch.add(f"{name}, negative", {}, -(c or 0))
    e = max(ix.lowest, d.emin)
    batch.add("d", {0: -Term(e)}, Fraction(2) ** e + Fraction(2) ** (d.emin - 1))


def _largest_subnormal(type_name: str) -> Fraction:
    format = TYPES[type_name]
    return format.least_normal - (format.least_subnormal or 0)


def zeros(batch: Batch) -> None:
    """Zeros of both signs, and differences that are zero."""
    ix = batch.interface
    a, d = TYPES[ix.a], TYPES[ix.c]
    minus = a.sign_mask << (13 if ix.a in IN_WORDS else 0)
    products = dict.fromkeys(range(ix.k), (minus, 0))
    if a.specials != "fnuz":
        batch.add_codes("all -0", products, d.sign_mask)
        batch.add_codes("-0 products, c +0", products, 0)
    batch.add_codes("+0 products, c -0", {}, d.sign_mask)
    batch.add("1 - 1", {0: Term(0), 1: -Term(0)})
    batch.add("c - 1 * 1", {0: -Term(0)}, 1)


def specials(batch: Batch) -> None:
    """NaN and infinities wherever the formats have them."""
    ix = batch.interface
    for name, products, c in _special_rows(ix):
        batch.add_codes(name, products, c)


def _special_rows(ix: Interface) -> Iterator[tuple[str, dict[int, tuple[int, int]], int]]:
    def word(code: int, type_name: str) -> int:
        return code << 13 if type_name in IN_WORDS else code

    a, b, c = TYPES[ix.a], TYPES[ix.b], TYPES[ix.c]
    one_a, one_b = code_of(1, 0, ix.a), code_of(1, 0, ix.b)
    if a.nan_code is not None:
        yield "NaN a", {0: (word(a.nan_code, ix.a), one_b)}, 0
        if a.specials == "ieee":
            yield "NaN a, negative, payload", {0: (word(a.nan_code | a.sign_mask | 1, ix.a), one_b)}, 0
    if b.nan_code is not None:
        yield "NaN b", {0: (one_a, word(b.nan_code, ix.b))}, 0
    if c.nan_code is not None:
        yield "NaN c", {}, c.nan_code
        yield "NaN c, negative, payload", {}, c.nan_code | c.sign_mask | 1
    if c.infinity_code is not None:
        yield "inf c", {0: (one_a, one_b)}, c.infinity_code
        yield "-inf c", {0: (one_a, one_b)}, c.infinity_code | c.sign_mask
    if a.infinity_code is not None:
        inf, minus = (word(a.infinity_code | s, ix.a) for s in (0, a.sign_mask))
        yield "inf * 1", {0: (inf, one_b)}, 0
        yield "-inf * 1", {0: (minus, one_b)}, 0
        yield "inf * 0", {0: (inf, 0)}, 0
        yield "inf * 1 - inf * 1", {0: (inf, one_b), ix.k - 1: (minus, one_b)}, 0
        if c.infinity_code is not None:
            yield "inf * 1 + c of -inf", {0: (inf, one_b)}, c.infinity_code | c.sign_mask
        if ix.a in IN_WORDS:
            yield "NaN a in the low 13 bits", {0: (inf | 1, one_b)}, 0


def bits_read(batch: Batch) -> None:
    """FP32 words: (1 + 2^-r) * 1 for every bit, and 1 plus 3/4 of a TF32 unit."""
    ix = batch.interface
    word = word_format(ix.a)
    if word.name != "fp32":
        return
    one, one_b = word.bias << 23, code_of(1, 0, ix.b)
    for r in range(1, 24):
        batch.add_codes(r, {0: (one | 1 << (23 - r), one_b)}, 0)
    batch.add_codes("3/4", {0: (one | 3 << 11, one_b)}, 0)


def scales(batch: Batch) -> None:
    """Block scales: 2 for one block, NaN, the least, zero."""
    ix = batch.interface
    if not ix.scale:
        return
    ones = dict.fromkeys(range(ix.k), (code_of(1, 0, ix.a), code_of(1, 0, ix.b)))
    one, two = code_of(1, 0, ix.scale), code_of(1, 1, ix.scale)
    format = TYPES[ix.scale]
    for s in range(ix.k // ix.scale_block):
        batch.add_codes(("a", s), ones, 0, {s: (two, one)})
        batch.add_codes(("b", s), ones, 0, {s: (one, two)})
    batch.add_codes("NaN", ones, 0, {0: (format.nan_code or 0, one)})
    batch.add_codes("NaN, no products", {}, 0, {0: (format.nan_code or 0, one)})
    batch.add_codes("code 0", ones, 0, dict.fromkeys(range(ix.k // ix.scale_block), (0, one)))
    batch.add_codes("code 1", ones, 0, dict.fromkeys(range(ix.k // ix.scale_block), (1, one)))


PROBES = (
    Probe("masks", "which terms meet where", masks),
    Probe("counting", "which terms meet where", counting),
    Probe("together", "terms added before they are cut", together),
    Probe("small c", "a small c beside large products", small_c),
    Probe("small products", "small products beside large ones", small_products),
    Probe("places", "one tiny term, at each place", places),
    Probe("large c", "products beside a large c", large_c),
    Probe("tiny", "sums of tiny products", tiny),
    Probe("roundings", "rounding to the result", roundings),
    Probe("twice", "rounding twice", twice),
    Probe("overflow", "overflow", overflow),
    Probe("subnormals", "subnormal numbers", subnormals),
    Probe("zeros", "signs of zeros", zeros),
    Probe("specials", "NaN and infinities", specials),
    Probe("bits read", "low bits of FP32 words", bits_read),
    Probe("scales", "block scales", scales),
)
