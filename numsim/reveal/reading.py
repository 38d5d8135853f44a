"""What the answers to the probes mean, in numbers: a unit's properties, from the bits alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial
from math import ceil, floor
from typing import Any

from numsim.reveal import trees
from numsim.reveal.operands import Interface
from numsim.reveal.probes import LOST, SIGNS, leaves, precisions
from numsim.tensorcore.models import TYPES
from numsim.values import NAN, as_fraction, to_rational

Answers = Mapping[str, Mapping[Any, int]]  # probe -> row -> code
Value = Fraction | str  # a number, or "nan", "inf", "-inf"


# --- roundings, exactly -----------------------------------------------------------------------------------------------
DIRECTIONS: dict[str, Callable[[Fraction], int]] = {
    "toward-zero": lambda x: floor(x) if x > 0 else ceil(x),
    "nearest-even": round,
    "nearest-away": lambda x: floor(x + Fraction(1, 2)) if x > 0 else ceil(x - Fraction(1, 2)),
    "down": floor,
    "up": ceil,
}


def power(e: int) -> Fraction:
    return Fraction(2) ** e


def lowest_kept(rungs: Sequence[tuple[int, bool]]) -> tuple[int | None, bool]:
    """Of a ladder of (exponent, kept), highest first: the last that is kept, and whether anything is lost below.

    What is lost above the first that is kept is too large for the result.

    >>> lowest_kept([(4, False), (3, True), (2, True), (1, False)])
    (2, True)
    """
    last = None
    for e, kept in rungs:
        if not kept and last is not None:
            return last, True
        last = e if kept else None
    return last, False


class Reading:
    """The answers of one unit, and what follows from them. Properties are None where nothing can be seen."""

    def __init__(self, interface: Interface, answers: Answers) -> None:
        self.interface = interface
        self.answers = answers

    def code(self, probe: str, key: Any) -> int | None:
        return self.answers.get(probe, {}).get(key)

    def value(self, probe: str, key: Any) -> Value | None:
        """What came out, None where it could not be asked."""
        if (code := self.code(probe, key)) is None:
            return None
        x = to_rational(code, TYPES[self.interface.d])
        if x == NAN:
            return "nan"
        return as_fraction(x) if x.denominator else "-inf" if x.sign else "inf"

    # --- order ----------------------------------------------------------------------------------------------------
    @cached_property
    def tree(self) -> trees.Tree:
        """Which terms meet where: from masks, or from counting where masks show nothing."""
        return self.tree_by_masks or self._tree_by_counting()

    @cached_property
    def tree_by_masks(self) -> trees.Tree:
        """By the smallest ones that work: the sum of many must be lost beside M, too."""
        ix = self.interface
        found = (trees.tree_of(leaves(ix), partial(self._size, low)) for low in reversed(ix.lows))
        return next((t for t in found if t is not None), None)

    def _size(self, low: int, i: Any, j: Any) -> int | None:
        left = self.value("masks", (low, i, j))
        if not isinstance(left, Fraction) or (count := left / power(low)).denominator != 1:
            return None
        return self.interface.k + 1 - int(count)

    def _tree_by_counting(self) -> trees.Tree:
        if (p := self.output_bits) not in precisions(self.interface):
            return None
        k, limit = self.interface.k, 2 ** ((p or 0) + 1)
        values = {(i, j): self.value("counting", (p, i, j)) for i in range(k) for j in range(k) if i != j}
        if not set(values.values()) <= {Fraction(limit), Fraction(limit + 2)}:
            return None
        return trees.tree_from_order(range(k), lambda i, j: values[i, j] == limit)

    @cached_property
    def chain(self) -> list[list[Any]] | None:
        return None if self.tree is None else trees.chain_of(self.tree)

    @cached_property
    def length(self) -> int | None:
        """Products that meet at once, where all groups of the chain have as many; 1 for a sum term by term."""
        sizes = [n for g in self.chain or [] if (n := sum(x != "c" for x in g))]
        if len(sizes) > 1 and sizes[0] == 2 and "c" not in (self.chain or [[]])[0]:
            sizes[0] = sizes[1] if sizes[1] == 1 else 2  # the first two of a sum meet anyhow
        return sizes[0] if len(set(sizes)) == 1 else None

    def at_once(self, *places: Any) -> bool:
        """Whether these meet in one node."""
        return any(set(places) <= set(g) for g in self.chain or [])

    @cached_property
    def group(self) -> int | None:
        """Products that are added exactly before the sum is cut: 1 if each is cut on its own."""
        rows = self.answers.get("together", {}) if self.at_once("c", 0, self.interface.k - 1) else {}
        kept = {key: self.value("together", key) == power(key[1]) * (1 if key[0] == 0 else 2) for key in rows}
        alone = [(e, ok) for (j, e), ok in kept.items() if j == 0]
        last, lost = lowest_kept(alone)
        if not lost or last is None:
            return None
        size = 1
        for j in sorted(j for j, e in rows if j and e == last - 1):
            if not kept[j, last - 1]:
                break
            size = j + 1
        return size

    # --- alignment ------------------------------------------------------------------------------------------------
    def cut_of_c(self, name: str = "big") -> int | None:
        """The least exponent that c keeps beside a large product; None where nothing is lost or shown."""
        rungs = [
            (e, self.value("small c", (n, v, e)) == power(e))
            for n, v, e in self.answers.get("small c", {}) if (n, v) == (name, 1)
        ]  # fmt: skip
        last, lost = lowest_kept(rungs)
        return last if lost else None

    def cut_of_products(self, name: str = "big", partner: int = 1) -> int | None:
        """The least exponent that all products keep beside a large one."""
        count = len(self.small_places(partner))
        rungs = [
            (e, self.value("small products", (n, j, v, e)) == count * power(e))
            for n, j, v, e in self.answers.get("small products", {}) if (n, j, v) == (name, partner, 1)
        ]  # fmt: skip
        last, lost = lowest_kept(rungs)
        return last if lost else None

    def small_places(self, partner: int) -> list[int]:
        ix = self.interface
        first = ix.scale_block if ix.scale and ix.scale_block < ix.k else 0
        return [k for k in range(first, ix.k) if k not in (0, partner)]

    def cut(self, name: str = "big") -> int | None:
        """The least exponent that is kept beside a large product, by c or by products."""
        last = self.interface.k - 1
        found = {"c": self.cut_of_c(name), 1: self.cut_of_products(name), last: self.cut_of_products(name, last)}
        blocks = (self.length or 0) > 1  # then only what meets in one of them shows its alignment
        kept = [cut for where, cut in found.items() if cut is not None and (not blocks or self.at_once(0, 1, where))]
        return max(kept, default=None)

    @cached_property
    def fraction_bits(self) -> int | None:
        """Bits kept below the exponent of the largest term."""
        cut = self.cut()
        return None if cut is None else self.interface.large - cut

    @cached_property
    def bits_between_blocks(self) -> int | None:
        """Fraction bits of a block's sum when the next block takes it over."""
        last = self.interface.k - 1
        cut = self.cut_of_products("big", last)
        if cut is None or (self.length or 0) < 2 or self.at_once(0, last):
            return None
        return self.interface.large - cut

    @cached_property
    def c_direction(self) -> str | None:
        """How c is cut where it meets two products at once."""
        cut = self.cut_of_c()
        if cut is None or not self.at_once("c", 0, 1):
            return None
        rungs = [
            {v: self.value("small c", ("big", v, cut - n)) for v in LOST} for n in (1, 2, 3)
        ]  # fmt: skip
        for rule, rounded in DIRECTIONS.items():
            expected = [{v: rounded(v * power(-n)) * power(cut) for v in LOST} for n in (1, 2, 3)]
            hits = [all(r[v] in (None, x[v]) for v in LOST) for r, x in zip(rungs, expected, strict=True)]
            if all(hits):
                return rule
            if hits[0] and all(x in (None, 0) for r in rungs[1:] for x in r.values()):
                return f"{rule}, then dropped"
        return "other"

    @cached_property
    def product_direction(self) -> str | None:
        """How products are cut beside others, or else beside c."""
        cut = self.cut_of_products()
        if cut is None or not self.at_once(0, 1) or not (self.length or 0) > 2:
            return self._direction_beside_c()
        near: dict[int, int] = {}  # products added before they are cut -> how many
        far, group = 0, self.group or 1
        for k in self.small_places(1):
            if self.at_once(0, 1, k):
                near[k // group] = near.get(k // group, 0) + 1
            else:
                far += 1
        for rule, rounded in DIRECTIONS.items():
            hits = True
            for n in (1, 2, 3, 4):
                for v in LOST:
                    x = v * power(-n)
                    expected = (sum(rounded(x * m / group) * group for m in near.values()) + far * x) * power(cut)
                    hits = hits and self.value("small products", ("big", 1, v, cut - n)) in (None, expected)
            if hits:
                return rule
        return "other"

    def _direction_beside_c(self) -> str | None:
        n = self.half_beside_c
        if n is None or not self.at_once("c", 0, 1):
            return None
        moved = {v for v in LOST if self.value("large c", (v, n)) != power(n)}
        for rule, rounded in DIRECTIONS.items():
            if moved == {v for v in LOST if rounded(Fraction(v) / 2)}:
                return rule
        return "other"

    @cached_property
    def half_beside_c(self) -> int | None:
        """The n for which products of 1 are half a unit beside a c of 2^n."""
        ix = self.interface
        apart = 0 < ix.scale_block < ix.k  # then products may be added before they are cut
        if self.fraction_bits is None or (apart and self.group is None):
            return None
        n = self.fraction_bits + (self.group or 1).bit_length()
        return n if self.code("large c", (1, n)) is not None else None

    @cached_property
    def apart(self) -> list[Any]:
        """Places where a tiny negative product, or c, takes a unit with it beside M and -M at places 0 and 2."""
        return [k for k in self.answers.get("places", {}) if self._drags(k)]

    def _drags(self, place: Any) -> bool:
        x = self.value("places", place)
        return isinstance(x, Fraction) and x < -power(self.interface.lows[0])

    # --- the result -----------------------------------------------------------------------------------------------
    @cached_property
    def output_bits(self) -> int | None:
        """Fraction bits of a result."""
        rows = self.answers.get("roundings", {})
        rungs = [(q, self.value("roundings", (1, q, 1)) == 4 + power(-q)) for s, q, t in rows if (s, t) == (1, 1)]
        last, lost = lowest_kept(rungs)
        return last + 2 if last is not None and lost else None

    @cached_property
    def output_is_exact(self) -> bool:
        """Whether a result holds all that the alignment has kept."""
        p, bits = self.output_bits, self.fraction_bits
        return p is not None and bits is not None and p >= bits + 2

    @cached_property
    def output_direction(self) -> str | None:
        if (p := self.output_bits) is None:
            return None
        keys = [(s, p, t) for s in SIGNS for t in (1, 2, 3, 5, 6, 7) if self.code("roundings", (s, p, t)) is not None]
        for lost in (0, 1):  # bits of t that the alignment has cut before
            for rule, rounded in DIRECTIONS.items():
                sums = {k: 4 * k[0] + rounded(Fraction(k[0] * (k[2] >> lost << lost), 4)) * power(2 - p) for k in keys}
                if keys and all(self.value("roundings", k) == x for k, x in sums.items()):
                    return rule
        return "other"

    @cached_property
    def tiny_cut(self) -> tuple[int, int] | None:
        """Where all is tiny: the exponent of the first term, and the least exponent that still counts."""
        edge = self.interface.least("d")
        for name, first, counted in (("less", edge, Fraction(0)), ("half", edge - 1, power(edge))):
            rungs = [(e, self.value("tiny", (n, e)) == counted) for n, e in self.answers.get("tiny", {}) if n == name]
            last, lost = lowest_kept(rungs)
            if last is not None and lost:
                return first, last
        return None
