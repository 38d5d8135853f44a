"""The sums of a tensor core as rows of bits and as sentences: what text, HTML and pictures have in common.

A bit's place is its exponent: the bit in place -3 is worth 2^-3.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

from numsim.show.numbers import power_of_two, short, signed, value_text
from numsim.tensorcore.chips import TITLES
from numsim.tensorcore.models import TYPES, Model
from numsim.values import NAN, Rational, as_fraction

if TYPE_CHECKING:
    from numsim.tensorcore.explain import Block, Item, MmaExplanation

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
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
    """A block: its terms, alike ones together; then sum, result and exact sum (none for NaN and infinity).

    zeros : products that are 0. top, edge : the common exponent and the last place kept; None on paths without them.
    setter : who has the largest exponent, in words. causes : of a special result, see ``Block``.
    levels : what is rounded on the way, for CDNA2.
    """

    title: str
    rows: tuple[Row, ...]
    totals: tuple[Row, ...]
    zeros: int
    top: int | None
    edge: int | None
    setter: str
    causes: tuple[tuple[str, str, str], ...]
    levels: list[list[str]]


# --- rows -------------------------------------------------------------------------------------------------------------
def panels(e: MmaExplanation) -> list[Panel]:
    """The blocks in which something happens."""
    busy = [i for i, x in enumerate(e.blocks) if not x.idle] or [0]
    return [_panel(e.blocks[i], block_title(i, e), e.model) for i in busy]


def _panel(block: Block, title: str, model: Model) -> Panel:
    top, edge = (block.sum.top, block.sum.unit) if block.sum else (None, None)
    alike: dict[object, list[Item]] = {}
    for x in block.items:
        alike.setdefault((x.term._replace(source=0), x.kept, x.name.split()[0]), []).append(x)
    rows = tuple(_term_row(items, top, edge) for items in alike.values())
    totals = []
    if block.exact is not None and block.total is not None:
        place = result_place(block.code, model)
        end = place if edge is None else max(place, edge)  # no bits are made below the window
        totals.append(_total_row("sum", "sum", block.total, block.rounded, top, edge, place))
        if block.value is not None:
            totals.append(_total_row("result", "result", block.value, None, top, end, place))
        totals.append(_total_row("exact", "exact", block.exact, block.cut, top, None, place if edge is None else edge))
    return Panel(title, rows, tuple(totals), block.zeros, top, edge, _setter(block), block.causes,
                 [[rational_text(x) for x in level] for level in block.levels[:-1]])  # fmt: skip


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


def value_of(row: Row) -> str:
    return f"{row.times} x {row.words}" if row.times > 1 else row.words


def note(row: Row) -> str:
    """What there is to say of a row, for its right end."""
    lost = amount(abs(row.lost)) if row.lost else ""
    each = " each" if row.times > 1 else ""
    if row.kind == "sum":
        return f"rounding loses {lost}" if row.lost * (1 - 2 * row.minus) > 0 else f"rounding adds {lost}" * bool(lost)
    if row.kind == "exact":
        return f"cut in all: {lost}" if lost else ""
    if lost:
        return f"loses {lost}{each}" if "1" in row.digits[: row.kept] else f"all lost: {lost}{each}"
    return ("sets E, starts with 0" if row.digits[0] == "0" else "sets E") if row.setter else ""


# --- words ------------------------------------------------------------------------------------------------------------
def amount(x: Fraction, digits: int = 0) -> str:
    """A number in few characters: a power of two as such, else its leading digits (errors: rounded to two or three)."""
    twos = power_of_two(abs(x))
    if twos is not None and not -4 <= twos <= 13:
        return f"{'-' * (x < 0)}2^{twos}"
    if digits:
        return short(x, digits, powers=None)
    return short(x) if len(short(x)) < 9 else signed(x).removeprefix("+")


def rational_text(x: Rational) -> str:
    return short(as_fraction(x), 9) if x.denominator else "NaN" if x == NAN else "-infinity" if x.sign else "infinity"


def chip_name(e: MmaExplanation) -> str:
    """ "H100"."""
    return TITLES.get(e.model.chip, e.model.chip).partition(" (")[0]


def zeros_text(panel: Panel) -> str:
    return f"{plural(panel.zeros, 'product')} {'is' if panel.zeros == 1 else 'are'} 0"


def cause_text(cause: tuple[str, str, str]) -> str:
    """ "k 1: infinity * 0 is NaN"."""
    name, kind, how = cause
    special = {"nan": "NaN", "inf": "infinity", "-inf": "-infinity"}[kind]
    return f"{name}: {how}" + (f" is {special}" if how != special else "")


def typeset(text: str) -> str:
    """ASCII as print has it: 2^-14 with its exponent raised, signs for times and minus, and an ellipsis."""
    text = re.sub(r"\^(-?\d+)", lambda m: m[1].translate(_RAISED), text)
    text = re.sub(r"(?<![\w)])-(?=\d|infinity)", "\N{MINUS SIGN}", text)
    return text.replace(" x ", " × ").replace("*", "·").replace("...", "…")


def plural(n: int, thing: str) -> str:
    return f"{n} {thing}{'s' * (n != 1)}"


def finding(e: MmaExplanation) -> str:
    """What happened, in one sentence that begins with the chip.

    >>> from numsim.tensorcore import explain_mma
    >>> finding(explain_mma([1] + [2**-7] * 31, [1] + [2**-7] * 31, chip="h100", format="e4m3"))
    'H100: 31 of 32 products are lost, 1 instead of 1.0018...'
    """
    chip, result = chip_name(e), value_text(e.code, e.format)
    for x in e.blocks:
        if x.causes:
            name, _, how = x.causes[0]
            kinds = {kind for _, kind, _ in x.causes}
            if "nan" not in kinds and len(kinds) > 1:
                return f"{chip}: {result}, because infinities of both signs meet"
            return f"{chip}: {result}, because {name} is {how}"
    if e.exact is None or e.value is None:
        return f"{chip}: {result}, the sum leaves the range of {e.format.title}"
    if not e.lost:
        return f"{chip}: {result} is exact{', although bits were lost on the way' if hidden(e) else ''}"
    instead = _instead(e.value, e.exact)
    terms = [i for x in e.blocks for i in x.items]
    of = f"of {plural(e.count, 'product')}"
    if gone := sum(i.products for i in terms if i.value and not i.kept):
        return f"{chip}: {gone} {of} {'is' if gone == 1 else 'are'} lost, {instead}"
    cut, rounded = losses(e)
    if abs(rounded) >= abs(cut):
        return f"{chip}: rounding to {e.format.title} loses most, {instead}" if cut else (
            f"{chip}: only the rounding to {e.format.title} loses something, {instead}")  # fmt: skip
    if hurt := sum(i.products for i in terms if i.lost):
        return f"{chip}: {hurt} {of} {'loses' if hurt == 1 else 'lose'} bits, {instead}"
    if any(i.lost for i in terms):
        return f"{chip}: c loses bits, {instead}"
    return f"{chip}: bits are lost inside the unit, {instead}"


def _instead(x: Fraction, exact: Fraction) -> str:
    """A result and the exact sum with enough digits to tell them apart.

    >>> _instead(Fraction(1), Fraction(100189208984375, 10**14))
    '1 instead of 1.0018...'
    """
    apart = abs(x - exact) / max(abs(x), abs(exact))
    if apart * 10**11 < 1:
        return f"{short(x, 9)} is off by {amount(abs(x - exact))}"
    count = next(n for n in range(1, 12) if apart * 10**n >= 1) + 2
    powers = (-10, 20) if apart == 1 else None
    return f"{short(x, count, powers=powers)} instead of {short(exact, count, powers=powers)}"


def losses(e: MmaExplanation) -> tuple[Fraction, Fraction]:
    """What was lost before the roundings, and by them; blocks of NaN and infinity count as nothing."""
    return (sum((x.cut or Fraction(0) for x in e.blocks), Fraction(0)),
            sum((x.rounded or Fraction(0) for x in e.blocks), Fraction(0)))  # fmt: skip


def hidden(e: MmaExplanation) -> bool:
    """Whether something was lost on the way."""
    return any(x.cut or x.rounded for x in e.blocks)


def block_title(index: int, e: MmaExplanation) -> str:
    """ "block 1 of 2: k 0 to 7 and c"."""
    x = e.blocks[index]
    where = x.link.where
    if not where:
        return "at the end c is added and the sum rounded to nearest"
    if list(where) != list(range(where[0], where[-1] + 1)):
        what = f"k {', '.join(map(str, where[:4]))}, ..."
    else:
        what = f"k {where[0]}" if len(where) == 1 else f"k {where[0]} to {where[-1]}"
    what += " and c" if index == 0 and e.model.unit.path != "fp8-as-fp16" else ""
    blocks = sum(bool(b.link.where) for b in e.blocks)
    number = sum(bool(b.link.where) for b in e.blocks[: index + 1])
    return f"block {number} of {blocks}: {what}" if blocks > 1 else f"one block: {what}"


def _setter(block: Block) -> str:
    if not block.sum:
        return ""
    names = [x.name for x in block.setters]
    if not names:
        return "the unit's lowest" if block.items else "the unit's lowest; there is no term"
    below = all(x.leading < x.term.exponent for x in block.setters)
    many = f"{names[0]} and {len(names) - 1} more" if len(names) > 2 else " and ".join(names)
    return f"from {many}{': its first bit is 0, its exponent counts' if below else ''}"


def verdict(e: MmaExplanation) -> list[str]:
    """Where it was lost; the result of one correct rounding."""
    if e.exact is None or e.value is None or e.nearest is None:
        return []
    said = []
    if e.lost or hidden(e):
        cut, rounded = losses(e)
        how = "aligning" if any(x.sum for x in e.blocks) else "what the unit does inside"
        where = f"all by {how}" if not rounded else "all by rounding" if not cut else (
            f"{short(cut, 12)} by {how}, {short(rounded, 12)} by rounding")  # fmt: skip
        percent = "" if e.relative_error is None else f" ({signed(e.relative_error * 100)} %)"
        said.append(f"lost {short(e.lost or Fraction(0), 12)}{percent}: {where}")
    same = "the same" if e.nearest == e.code else value_text(e.nearest, e.format)
    said.append(f"exact sum rounded once to nearest {e.format.title}: {same}")
    return said
