"""The sums of a tensor core as rows of bits: what text, HTML and pictures have in common.

A bit's place is its exponent: the bit in place -3 is worth 2^-3.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

from numsim.show.mma_words import amount, block_title, loss, omitted, setter_text
from numsim.show.numbers import short
from numsim.tensorcore.models import TYPES, Model
from numsim.values import Rational

if TYPE_CHECKING:
    from numsim.tensorcore.explain import Cause, Item, MmaExplanation

MAX_PANELS = 4
Kind = Literal["product", "c", "sum", "result", "exact"]


class Row(NamedTuple):
    """A number as bits: ``digits`` from place ``first`` down to its last 1; of them ``kept`` stay.

    label : "k 1-31", "c", "sum". times : how many terms look like this. words : the value.
    exponent : where the unit takes a term to begin; None for sums. setter : whether it is the largest.
    lost : what is cut off, of each.
    """

    kind: Kind
    label: str
    times: int
    words: str
    minus: bool
    first: int
    digits: str
    kept: int
    lost: Fraction
    exponent: int | None = None
    setter: bool = False

    @property
    def last(self) -> int:
        """The place of the last digit."""
        return self.first - len(self.digits) + 1

    @property
    def alt(self) -> str:
        """The row in words."""
        many = f"{self.times} times " if self.times > 1 else ""
        lost = f", of which {amount(self.lost)} is cut off" if self.lost else ""
        return f"{self.label}: {many}{self.words}{lost}"


class Panel(NamedTuple):
    """A block, ``e.blocks[number]``: its terms, alike ones together; then sum, result and exact sum.

    rows, totals : none for NaN and infinity, and where all is 0. zeros : products that are 0.
    top, edge : the common exponent and the last place kept; None on paths without them.
    place : of the last bit that the result's format has room for.
    setter : who has the largest exponent, in words. causes : of a special result, see ``Block``.
    levels : what is rounded on the way, for CDNA2.
    """

    number: int
    title: str
    rows: tuple[Row, ...]
    totals: tuple[Row, ...]
    zeros: int
    top: int | None
    edge: int | None
    place: int
    setter: str
    causes: tuple[Cause, ...]
    levels: tuple[tuple[Rational, ...], ...]


# --- rows -------------------------------------------------------------------------------------------------------------
def panels(e: MmaExplanation, rows: int | None = None) -> list[Panel]:
    """The blocks to show, in order: four at most, those that lose most; of ``rows`` in all, unless it is one.

    Of more than four, those that lose nothing are not worth a place.
    """
    chosen: dict[int, Panel] = {}
    busy = [i for i, x in enumerate(e.blocks) if not x.idle] or [0]
    worst = sorted(busy, key=lambda i: loss(e.blocks[i]), reverse=True)
    if len(busy) > MAX_PANELS:
        worst = [i for i in worst[:MAX_PANELS] if any(loss(e.blocks[i]))] or worst[:1]
    for i in worst:
        panel = _panel(e, i)
        if rows is not None:
            rows -= len(panel.rows) + len(panel.totals)
            if chosen and rows < 0:
                break
        chosen[i] = panel
    return [chosen[i] for i in sorted(chosen)]


def parts(e: MmaExplanation) -> list[Panel | str]:
    """The blocks to show, and between them a line about those that are left out."""
    found: list[Panel | str] = []
    at = 0
    for panel in panels(e):
        found += [*_gap(e, at, panel.number), panel]
        at = panel.number + 1
    return [*found, *_gap(e, at, len(e.blocks))]


def _gap(e: MmaExplanation, begin: int, end: int) -> Iterable[str]:
    return [omitted(e, range(begin, end))] if begin < end else []


def _panel(e: MmaExplanation, index: int) -> Panel:
    block, model = e.blocks[index], e.model
    title = block_title(index, e)
    place = result_place(block.code, model)
    if block.causes or not block.items:  # zeros have no bits, either
        return Panel(index, title, (), (), block.zeros, None, None, place, "", block.causes, ())
    top, edge = (block.sum.top, block.sum.unit) if block.sum else (None, None)
    alike: dict[object, list[Item]] = {}
    for x in block.items:
        alike.setdefault((x.term._replace(source=0), x.kept, x.name.split()[0]), []).append(x)
    rows = tuple(_term_row(items, top, edge) for items in alike.values())
    totals = []
    if block.exact is not None and block.total is not None:
        end = place if edge is None else max(place, edge)  # no bits are made below the window
        totals.append(_total_row("sum", "sum", block.total, block.rounded, top, edge, place))
        if block.value is not None:
            totals.append(_total_row("result", "result", block.value, None, top, end, place))
        totals.append(_total_row("exact", "exact", block.exact, block.cut, top, None, place if edge is None else edge))
    return Panel(index, title, rows, tuple(totals), block.zeros, top, edge, place, setter_text(block, model),
                 block.causes, block.levels[:-1])  # fmt: skip


def _term_row(items: list[Item], top: int | None, edge: int | None) -> Row:
    x = items[0]
    first = max(x.leading, x.term.exponent)
    digits = _digits(abs(x.term.significand), x.term.unit, first)
    last = first - len(digits) + 1
    if edge is None and x.lost:  # a path that rounds each product for itself
        edge = 1 - x.kept.denominator.bit_length() if x.kept else first + 1
    kept = len(digits) if edge is None else len(digits) - min(max(edge - last, 0), len(digits))
    kind: Kind = "c" if not x.products else "product"
    return Row(kind, _label([i.name for i in items]), len(items), amount(x.value, 7), x.value < 0, first, digits, kept,
               x.lost, x.term.exponent, x.term.exponent == top)  # fmt: skip


def _total_row(
    kind: Kind, label: str, x: Fraction, lost: Fraction | None, top: int | None, end: int | None, edge: int
) -> Row:
    """A sum, with zeros down to place ``end``; what is below ``edge`` is cut if that loses anything."""
    size, unit = abs(x.numerator), 1 - x.denominator.bit_length()
    leading = unit + size.bit_length() - 1 if size else edge
    first = leading if top is None else max(leading, top)
    digits = _digits(size, unit, first)
    digits = digits if end is None else digits.ljust(first - end + 1, "0")
    kept = len(digits) - min(max(edge - (first - len(digits) + 1), 0), len(digits)) if lost else len(digits)
    return Row(kind, label, 1, short(x, 10), x < 0, first, digits, kept, lost or Fraction(0))


def _digits(size: int, unit: int, first: int) -> str:
    """size * 2^unit from place ``first`` to its last 1; at least the digit at ``first``."""
    text = f"{size:b}".rstrip("0") or "0"
    last = unit + size.bit_length() - len(text)
    return text.rjust(first - last + 1, "0")


def result_place(code: int, model: Model) -> int:
    """The place of the last bit that the result's format has room for."""
    d = TYPES[model.d]
    field = code >> d.fraction_bits & ((1 << d.exponent_bits) - 1)
    bits = 13 if model.unit.output == "rz-e8m13" else d.fraction_bits
    return max(field - d.bias, d.emin) - bits


def _label(names: list[str]) -> str:
    """ "k 1-31" for many; a few with gaps are listed."""
    kind, _, first = names[0].partition(" ")
    numbers = [int(n.partition(" ")[2]) for n in names] if first else []
    if len(numbers) < 2:
        return names[0]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{kind} {numbers[0]}-{numbers[-1]}"
    listed = ",".join(map(str, numbers))
    return f"{kind} {listed}" if len(listed) <= 7 else f"{kind} {numbers[0]}.."
