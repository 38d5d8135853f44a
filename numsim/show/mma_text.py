"""A tensor core's sum as text in 80 columns: a line for each term, its bits in their places, cut ones behind a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numsim.show import mma_rows
from numsim.show.mma_rows import Panel, Row, amount, cause_text, value_of, zeros_text
from numsim.show.numbers import hex_code
from numsim.show.text import WIDTH, Line, Span, fit
from numsim.tensorcore.models import OUTPUTS, PATHS

if TYPE_CHECKING:
    from numsim.tensorcore.explain import MmaExplanation


def explanation(e: MmaExplanation) -> list[Line]:
    """The whole card."""
    unit, evidence = e.model.unit, e.model.evidence.level
    lines: list[Line] = [[Span(mma_rows.finding(e), "strong")]]
    by = f"{e.text} by " if e.text else ""
    lines.append([Span(f"  {by}{e.model.instruction} ({evidence})", "faint")])
    if unit.path != "block":
        lines.append([Span(f"  {PATHS[unit.path]}", "faint")])
    for panel in mma_rows.panels(e):
        lines += [[Span("")], *_panel(panel)]
    lines += [[Span("")], [Span(f"  result {hex_code(e.code, e.format)}: {OUTPUTS[unit.output]}", "faint")]]
    lines += [[Span(f"  {text}")] for text in mma_rows.verdict(e)]
    lines += [[Span(f"  note: {note}")] for note in e.notes]
    return [part for line in lines for part in fit(line, WIDTH)]


def _panel(panel: Panel) -> list[Line]:
    lines: list[Line] = [[Span(f"  {panel.title}")]]
    if panel.top is not None and panel.edge is not None:
        kept = f"{panel.top - panel.edge} bits below it are kept"
        lines.append([Span(f"  largest exponent {panel.top}, {panel.setter}; {kept}")])
    lines += [[Span(f"  {cause_text(cause)}", "strong")] for cause in panel.causes]
    lines += [[Span(f"  rounded: {', '.join(level)}")] for level in panel.levels]
    rows = [*panel.rows, *panel.totals]
    if not rows:
        return lines
    names = max(len(r.label) for r in rows)
    values = max(len(value_of(r)) for r in rows)
    left, right = max(r.first for r in rows), panel.edge
    room = WIDTH - 2 - names - 1 - values - 1
    if right is None or left - right + 2 > room:  # bits without a window, or too many: the values say it
        return [*lines, *([Span(f"  {r.label:<{names}} {value_of(r):>{values}}  {_lost(r)}")] for r in rows)]
    cut = max(min(room - (left - right + 4) - max(len(_lost(r)) for r in rows), right - min(r.last for r in rows)), 0)
    first, last = f"2^{left}", f"2^{right}"
    ruler = f"{first}{last.rjust(left - right + 1 - len(first))}"
    lines.append([Span(" " * (4 + names + values) + ruler, "faint")])
    for row in rows:
        if row.kind == "sum":
            lines.append([Span(" " * (4 + names + values) + "-" * (left - right + 1) + "+" + "-" * cut, "faint")])
        lines.append([Span(f"  {row.label:<{names}} {value_of(row):>{values}} "), *_bits(row, left, right, cut)])
        if _lost(row):
            lines[-1].append(Span(f" {_lost(row)}", "fraction" if row.kind != "exact" else "faint"))
    if panel.zeros:
        lines.insert(-len(panel.totals) - 1, [Span(f"  {zeros_text(panel)}", "faint")])
    return lines


def _lost(row: Row) -> str:
    if not row.lost:
        return ""
    return f"{'each ' if row.times > 1 else ''}{amount(row.lost)}"


def _bits(row: Row, left: int, right: int, cut: int) -> Line:
    """The sign, the places down to ``right``, a bar, and ``cut`` places more; dots where a term was shifted."""
    places = "." * (left - row.first) + row.digits
    inside = places[: left - right + 1]
    if row.kind not in ("result", "exact"):
        inside = inside.ljust(left - right + 1, "0")
    outside = places[left - right + 1 :]
    shown = outside[:cut]
    if len(outside) > cut:
        shown = shown[: max(cut - 1, 0)] + ">" * (cut > 0)
    dots = len(inside) - len(inside.lstrip("."))
    sign = Span("-" if row.minus else "+", "sign")
    return [
        sign, Span(inside[:dots], "faint"), Span(inside[dots:].ljust(left - right + 1 - dots)),
        Span("|", "faint"), Span(shown.ljust(cut), "fraction"),
    ]  # fmt: skip
