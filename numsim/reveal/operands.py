"""Crafted operands: sums of few chosen products, for whatever formats a unit takes.

A probe thinks in terms ``x * y * 2^exponent`` at places k. Here a term becomes two codes: the exponent is shared out
between a, b and, where there are any, the scales of the block that k lies in. What the formats cannot hold is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.codes import code_dtype
from numsim.errors import InputError, short
from numsim.formats import Format, get_format
from numsim.rounding import Policy, round_rational
from numsim.tensorcore.models import IN_WORDS, TYPES, Model, word_format
from numsim.values import as_fraction, rational, to_rational

Number = Fraction | int | float
WIDEST = 60  # exponents beyond +-60 show nothing that those within do not


class UnreachableError(Exception):
    """The formats hold no such operand."""


@dataclass(frozen=True)
class Interface:
    """What a unit takes and gives, and nothing of how it computes.

    a, b, c, d : types as in ``numsim.tensorcore.models.TYPES``. k : products of one question, 4 at least.
    scale, scale_block : type of the block scales and how many elements share one, or "" and 0.
    """

    a: str
    b: str
    c: str
    d: str
    k: int
    scale: str = ""
    scale_block: int = 0

    @classmethod
    def of(cls, model: Model) -> Interface:
        """That of a record. Instructions of less than 4 products are chained, up to 4 and more."""
        k = model.k * -(-4 // model.k)
        return cls(model.a, model.b, model.c, model.d, k, model.scale, model.scale_block)

    @cached_property
    def words(self) -> tuple[Format, ...]:
        """The formats of the codes that go in: a, b, c and the scales."""
        return tuple(word_format(t) for t in (self.a, self.b, self.c, *[self.scale] * 2 * bool(self.scale)))

    @cached_property
    def lowest(self) -> int:
        """Exponent of the least product of normal numbers, scales aside."""
        return TYPES[self.a].emin + TYPES[self.b].emin

    @cached_property
    def highest(self) -> int:
        """Exponent of the largest product of powers of two, scales aside."""
        return TYPES[self.a].emax + TYPES[self.b].emax

    @cached_property
    def top(self) -> int:
        """A large exponent that products, c and d all have, with any others beside."""
        return min(self.highest, TYPES[self.c].emax, TYPES[self.d].emax, WIDEST)

    @cached_property
    def lows(self) -> tuple[int, ...]:
        """Small exponents beside ``top``: of normal products and results, and of subnormal ones where that is near."""
        a, b, c, d = (TYPES[t] for t in (self.a, self.b, self.c, self.d))
        low = max(a.emin + b.emin, c.emin, d.emin, -WIDEST)
        if self.top - low > 40:
            return (low,)
        return low, max(self.least("a") + self.least("b"), self.least("c"), self.least("d"))

    @cached_property
    def large(self) -> int:
        """The exponent of a large product, with scales of its own where there are any."""
        return min(2 * TYPES[self.scale].emax, WIDEST) if self.scale else self.top

    def least(self, name: str) -> int:
        """Exponent of the least subnormal number of operand a, b, c or d."""
        format = TYPES[getattr(self, name)]
        return format.emin - format.fraction_bits

    def __str__(self) -> str:
        scaled = f", a {self.scale} scale for {self.scale_block}" if self.scale else ""
        return f"{self.a} x {self.b} + {self.c} -> {self.d}, K = {self.k}{scaled}"


def type_of(name: Any, what: str = "a_type") -> str:
    """A type as PTX writes it, from that or from a format.

    >>> type_of("tf32"), type_of("fp16"), type_of("e4m3fnuz")
    ('tf32', 'f16', 'fp8')
    """
    if isinstance(name, str) and name in TYPES:
        return name
    format = get_format(name)
    found = [t for t, f in TYPES.items() if f == format]
    if not found:
        raise InputError(f"{what}={short(name)}: allowed are {', '.join(TYPES)}, or their formats' names.")
    return found[0]


class Term(NamedTuple):
    """The product x * y * 2^exponent.

    at : the exponent of a's factor where it matters (then a scale of 1 is used); else it is shared out between normal
        numbers, or with ``tiny`` between any.
    """

    exponent: int
    x: Number = 1
    y: Number = 1
    at: int | None = None
    tiny: bool = False

    def __neg__(self) -> Term:
        return self._replace(x=-self.x)


@lru_cache(maxsize=1 << 16)
def code_of(significand: Number, exponent: int, type_name: str) -> int:
    """The code of significand * 2^exponent exactly. Raises ``UnreachableError``."""
    format = TYPES[type_name]
    value = Fraction(significand) * Fraction(2) ** exponent
    code = round_rational(rational(value), format, Policy(overflow="saturate"))
    if as_fraction(to_rational(code, format)) != value:
        raise UnreachableError
    return code << 13 if type_name in IN_WORDS else code


class Batch:
    """Rows of operands, each under a key."""

    def __init__(self, interface: Interface) -> None:
        self.interface = interface
        self.keys: list[Any] = []
        self._rest: list[tuple[int, int]] = []  # codes of a and b at all other places
        self._at: list[int] = []  # places in all rows, counted through, and their codes
        self._codes: list[tuple[int, int]] = []
        self._c: list[int] = []
        self._scales: list[list[tuple[int, ...]]] = []

    def add(self, key: Any, terms: Mapping[int, Term], c: Number = 0, *, fill: Term | None = None) -> None:
        """A row of terms at their places, ``fill`` at all others, and c. Left out if the formats cannot hold it."""
        ix = self.interface
        if ix.scale and fill:  # it has other codes in each block
            terms, fill = dict.fromkeys(range(ix.k), fill) | dict(terms), None
        try:
            shifts = self._shifts(terms) if ix.scale else {}
            codes = {k: self._factors(t, shifts[k // ix.scale_block] if ix.scale else 0) for k, t in terms.items()}
            scales = {s: tuple(code_of(1, e, ix.scale) for e in (n // 2, n - n // 2)) for s, n in shifts.items()}
            rest = self._factors(fill, 0) if fill else (0, 0)
            self.add_codes(key, codes, code_of(Fraction(c), 0, ix.c), scales, rest)
        except UnreachableError:
            return

    def add_codes(
        self, key: Any, products: Mapping[int, tuple[int, int]], c: int,
        scales: Mapping[int, tuple[int, ...]] | None = None, rest: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """A row of codes: (a, b) at some places, ``rest`` elsewhere; scales (a, b) of some blocks, 1 elsewhere."""
        ix = self.interface
        first = len(self.keys) * ix.k
        self.keys.append(key)
        self._rest.append(rest)
        self._at += [first + k for k in products]
        self._codes += products.values()
        self._c.append(c)
        if ix.scale:
            one = code_of(1, 0, ix.scale)
            self._scales.append([(scales or {}).get(s, (one, one)) for s in range(ix.k // ix.scale_block)])

    def arrays(self) -> list[npt.NDArray[Any]]:
        """a (n, K), b (n, K), c (n,) and the scales (n, K / block)."""
        ix, found = self.interface, []
        at = np.array(self._at, np.intp)
        rest, codes = (np.array(x, np.uint64).reshape(-1, 2).T for x in (self._rest, self._codes))
        for i, format in enumerate(ix.words[:2]):
            array = np.repeat(rest[i].astype(code_dtype(format)), ix.k)
            array[at] = codes[i]
            found.append(array.reshape(-1, ix.k))
        found.append(np.array(self._c, code_dtype(ix.words[2])))
        if ix.scale:
            found.extend(np.array(self._scales, np.uint8).transpose(2, 0, 1))
        for kept in found:
            kept.flags.writeable = False  # and asked again
        return found

    def _shifts(self, terms: Mapping[int, Term]) -> dict[int, int]:
        """The exponent that a block's two scales carry, for each block that has terms."""
        ix = self.interface
        blocks: dict[int, list[int]] = {}
        for k, term in terms.items():
            blocks.setdefault(k // ix.scale_block, []).extend([term.exponent] * (term.at is None))
        scale = TYPES[ix.scale]
        least = scale.emin - scale.fraction_bits * scale.zero
        wanted = {
            s: (min(es) if max(es) - min(es) <= ix.highest else max(es) - ix.highest) if es else 0
            for s, es in blocks.items()
        }
        return {s: max(min(n, 2 * scale.emax), 2 * least) for s, n in wanted.items()}

    def _factors(self, term: Term, shift: int) -> tuple[int, int]:
        ix = self.interface
        return _factor_codes(term, term.exponent - shift, ix.a, ix.b)


@lru_cache(maxsize=1 << 16)
def _factor_codes(term: Term, exponent: int, a: str, b: str) -> tuple[int, int]:
    """The codes of both factors, the exponent shared out evenly as far as the ranges allow."""
    x, y = TYPES[a], TYPES[b]
    low_x, low_y = (f.emin - f.fraction_bits * term.tiny for f in (x, y))
    i = min(max(exponent // 2, low_x), x.emax) if term.at is None else term.at
    j = exponent - i
    if term.at is None:
        j = min(max(j, low_y), y.emax)
        i = exponent - j
        if not low_x <= i <= x.emax:
            raise UnreachableError
    return code_of(term.x, i, a), code_of(term.y, j, b)
