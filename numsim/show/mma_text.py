"""A tensor core's sum as text in 80 columns: a line for each term, its bits in their places, cut ones behind a bar."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from numsim.show import mma_rows, mma_words
from numsim.show.chips import LEVELS
from numsim.show.mma_rows import Panel, Row
from numsim.show.mma_words import amount, cause_text, note, note_text, rational_text, value_of, zeros_text
from numsim.show.numbers import hex_code
from numsim.show.text import WIDTH, Line, Span, fit, plain
from numsim.tensorcore.models import OUTPUTS, PATHS

if TYPE_CHECKING:
    from numsim.tensorcore.explain import MmaExplanation
    from numsim.tensorcore.models import Unit

_LEAST_CUT = 2  # places behind the bar, if there is room for them


def explanation(e: MmaExplanation) -> list[Line]:
    """The whole card."""
    unit, evidence = e.model.unit, e.model.evidence
    lines: list[Line] = [[Span(mma_words.finding(e), "strong")]]
    by = f"{e.text} by " if e.text else ""
    lines.append([Span(f"  {by}{e.model.instruction} ({evidence.level})", "faint")])
    if unit.path != "block":
        lines.append([Span(f"  {_path(unit)}", "faint")])
    for part in mma_rows.parts(e):
        lines += [[Span("")], *([[Span(f"  {part}")]] if isinstance(part, str) else _panel(part))]
    output = OUTPUTS[unit.output if e.blocks[-1].link.where else "rne-fp32"]  # c, added last, is rounded to nearest
    lines += [[Span("")], [Span(f"  result {hex_code(e.code, e.format)}: {output}", "faint")]]
    lines += [[Span(f"  {said}")] for said in mma_words.verdict(e)]
    lines += [[Span(f"  note: {note_text(note)}")] for note in e.notes]
    if key := _key(e, plain(lines)):
        lines.append([Span(f"  {key}", "faint")])
    open_question = f" ({evidence.note})" if evidence.note else ""
    lines.append([Span(f"  {evidence.level}: {LEVELS[evidence.level]}{open_question}", "faint")])
    return [part for line in lines for part in fit(line, WIDTH)]


def _path(unit: Unit) -> str:
    """How the unit adds, with its numbers for the letters of the tables."""
    return re.sub(r"\b[LF]\b", lambda m: str(unit.length if m[0] == "L" else unit.fraction_bits), PATHS[unit.path])


def _key(e: MmaExplanation, drawn: str) -> str:
    """The signs that are in the card."""
    window = any(p.edge is not None for p in mma_rows.panels(e))
    ends = "right of it bits are cut off" if window else f"the result's last place ({e.format.title})"
    signs = {"+.": ". before a term's first bit", "|": f"| {ends}", ">": "> more bits", "  acc ": "acc: the sum so far"}
    used = [meaning for sign, meaning in signs.items() if sign in drawn]
    return f"key: {'; '.join(used)}" if used else ""


def _panel(panel: Panel) -> list[Line]:
    lines: list[Line] = [[Span(f"  {panel.title}")]]
    if panel.top is not None and panel.edge is not None:
        kept = f"{panel.top - panel.edge} bits below it are kept"
        lines.append([Span(f"  largest exponent E = {panel.top}, {panel.setter}; {kept}")])
    lines += [[Span(f"  {cause_text(cause)}", "strong")] for cause in panel.causes]
    for what, level in zip(["products", *["sums"] * len(panel.levels)], panel.levels, strict=False):
        lines.append([Span(f"  {what} rounded: {', '.join(map(rational_text, level))}")])
    zeros: list[Line] = [[Span(f"  {zeros_text(panel)}", "faint")]] if panel.zeros and not panel.causes else []
    if not panel.rows:
        return [*lines, *zeros]
    rows = [*panel.rows, *panel.totals]
    names, values = max(len(r.label) for r in rows), max(len(value_of(r)) for r in rows)
    left, bar = max(r.first for r in rows), panel.place if panel.edge is None else panel.edge
    lowest = min(r.last for r in rows)
    start = 5 + names + values  # after the sign
    for told in (note, _amount):
        cut = WIDTH - start - (left - bar + 1) - 1 - max(1 + len(told(r)) for r in rows)
        if cut >= min(_LEAST_CUT, bar - lowest):
            break
    else:  # too many bits: the values say it
        found = [[Span(f"  {r.label:<{names}} {value_of(r):>{values}}  {note(r)}")] for r in rows]
        return [*lines, *found[: len(panel.rows)], *zeros, *found[len(panel.rows) :]]
    cut = min(cut, max(bar - lowest, 0))
    first, last = f"2^{left}", f"2^{bar}"
    lines.append([Span(" " * start + first + last.rjust(left - bar + 1 - len(first)), "faint")])
    for row in rows:
        if row is panel.totals[0]:
            lines += [*zeros, [Span(" " * start + "-" * (left - bar + 1) + "+" + "-" * cut, "faint")]]
        lines.append([Span(f"  {row.label:<{names}} {value_of(row):>{values}} "), *_bits(row, left, bar, cut, panel)])
        if said := told(row):
            lines[-1].append(Span(f" {said}", "fraction" if row.lost and row.kind != "exact" else "faint"))
    return lines


def _amount(row: Row) -> str:
    """``note`` where there is little room."""
    return f"{amount(abs(row.lost))}{' each' * (row.times > 1)}" if row.lost else ""


def _bits(row: Row, left: int, bar: int, cut: int, panel: Panel) -> Line:
    """The sign, the places down to ``bar``, a bar, and ``cut`` places more; dots where a term was shifted."""
    places = "." * (left - row.first) + row.digits
    inside = places[: left - bar + 1]
    if row.kind not in ("result", "exact") and panel.edge is not None:
        inside = inside.ljust(left - bar + 1, "0")
    outside = places[left - bar + 1 :]
    shown = outside[:cut]
    if len(outside) > cut:
        shown = shown[: max(cut - 1, 0)] + ">" * (cut > 0)
    dots = len(inside) - len(inside.lstrip("."))
    sign = Span("-" if row.minus else "+", "sign")
    return [
        sign, Span(inside[:dots], "faint"), Span(inside[dots:].ljust(left - bar + 1 - dots)),
        Span("|", "faint"), Span(shown.ljust(cut), "fraction"),
    ]  # fmt: skip
