"""The picture of a lost bit as HTML with inline SVG: no script, nothing loaded from elsewhere.

Ordinary ink is the page's own (``currentColor``); blue, green and vermillion are tones of Okabe and Ito's that read
about equally well on white and on black. Hatching says the same as the vermillion, and each bit tells its weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from numsim.show import mma_rows, mma_text, mma_words, text
from numsim.show.mma_rows import Panel, Row
from numsim.show.mma_words import cause_text, note, note_text, typeset, value_of, window_texts, zeros_text

if TYPE_CHECKING:
    from numsim.tensorcore.explain import MmaExplanation

_COLORS = {"product": "#1f82c8", "c": "#008a62"}
_CUT, _TOTAL = "#d05300", "#808080"
_CELL, _PITCH, _BOX, _SIGN = 13, 25, 18, 20  # pixels
_LETTER = 8  # pixels of a character at most, by and large: nothing here can measure type
_LEAST = 0.55  # of its size: narrower windows scroll
_WEIGHT = "weight of the bit"
_SHOWN_CUT = 14  # places right of the window, at most
_FONT = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif"


def explanation(e: MmaExplanation) -> str:
    """The finding, the bits of every block, and where it was lost."""
    parts = mma_rows.parts(e)
    drawn = "".join(_left_out(x) if isinstance(x, str) else _panel(x, len(parts) > 1) for x in parts)
    legend = mma_words.legend([x for x in parts if not isinstance(x, str)])
    unit = f"{e.model.instruction} ({e.model.evidence.level})"
    under = "".join(
        f"<br>{escape(typeset(line))}" for line in (*mma_words.verdict(e), *(f"note: {note_text(n)}" for n in e.notes))
    )
    return (
        f'<div role="figure" aria-label="{escape(mma_words.finding(e))}" style="{_FONT};line-height:1.5;margin:.5em 0">'
        f"<b>{escape(typeset(mma_words.finding(e)))}</b>"
        f'<div style="opacity:.75;font-size:90%">{escape(_what(e))}{escape(unit)}</div>{drawn}'
        f'<div style="font-size:90%;opacity:.85">code {e.code:#x}{under}</div>'
        f'<div style="font-size:90%;opacity:.75;margin-top:.5em">{escape(legend)}</div></div>'
    )


def page(e: MmaExplanation) -> str:
    """A whole page, light or dark as the reader's system is; the same as text below the picture."""
    lines = escape(text.plain(mma_text.explanation(e)))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(mma_words.finding(e))}</title></head>\n"
        f'<body style="max-width:66em;margin:1.5em auto;padding:0 1em">{explanation(e)}'
        f'<details><summary style="{_FONT}">as text</summary><pre>{lines}</pre></details></body></html>\n'
    )


def _what(e: MmaExplanation) -> str:
    return f"{mma_words.expression(e)} by " if e.text else ""


def _left_out(said: str) -> str:
    return f'<div style="opacity:.75;margin-top:.7em">{escape(typeset(said))}</div>'


def _panel(panel: Panel, named: bool) -> str:
    head = f'<div style="font-weight:600;margin-top:.7em">{escape(panel.title)}</div>' if named else ""
    if panel.causes:
        causes = "<br>".join(escape(typeset(cause_text(c))) for c in panel.causes)
        return f'{head}<div style="color:{_CUT};font-weight:600;font-size:120%;margin:.4em 0">{causes}</div>'
    return head + (_Svg(panel).whole() if panel.rows else f"<div>{escape(zeros_text(panel))}</div>")


class _Svg:
    """The bits of one block. Rows are ``_PITCH`` high, places ``_CELL`` wide."""

    def __init__(self, panel: Panel) -> None:
        rows = [*panel.rows, *panel.totals]
        self.panel, self.edge = panel, panel.edge
        self.left = max((r.first for r in rows), default=0)
        lowest = min((r.last for r in rows), default=0)
        self.right = lowest if self.edge is None else min(max(lowest, self.edge - _SHOWN_CUT), self.edge)
        values = _length(value_of(r) for r in rows)
        others = _length([_WEIGHT, *([zeros_text(panel)] if panel.zeros else [])])
        self.start = (
            4 + max(_length(r.label for r in rows) + values + 2 * _LETTER, others) + _SIGN
        )  # where the bits begin
        self.parts: list[str] = []
        self.y = 42
        begin = self.y
        for row in panel.rows:
            self._row(row)
        if panel.zeros:
            self._text(4, self.y + _PITCH / 2, zeros_text(panel), 'opacity=".7"')
            self.y += _PITCH
        self.notes = self._x(self.right - 1) + 10  # where the notes begin
        self.width = self.notes + _length(map(note, rows))
        line = f'<path d="M4 {self.y + 3}H{self.notes}" stroke="currentColor"/>'
        self.y += 6
        for row in panel.totals:
            self._row(row)
        self.parts = [*self._frame(begin), line, *self.parts]

    def whole(self) -> str:
        hatch = (
            '<defs><pattern id="numsim-cut" width="5" height="5" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><path d="M0 0V5" stroke="#fff" stroke-opacity=".55" stroke-width="2"/>'
            "</pattern></defs>"
        )
        least = self.width * _LEAST
        alt = escape("; ".join(r.alt for r in (*self.panel.rows, *self.panel.totals)))
        return (
            f'<div style="overflow-x:auto"><svg role="img" aria-label="{alt}" width="{self.width:.0f}" '
            f'height="{self.y + 6:.0f}" viewBox="0 0 {self.width:.0f} {self.y + 6:.0f}" font-size="13" '
            f'fill="currentColor" stroke="none" style="max-width:100%;min-width:{least:.0f}px;height:auto">'
            f"{hatch}{''.join(self.parts)}</svg></div>"
        )

    def _x(self, place: int) -> float:
        return self.start + (self.left - place) * _CELL + 4 * (self.edge is not None and place < self.edge)

    def _text(self, x: float, y: float, said: str, options: str = "") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y + 4.5:.1f}" {options}>{escape(typeset(said))}</text>')

    def _frame(self, begin: float) -> list[str]:
        """The window, the weights above it, and the line of the cut."""
        whole, self.parts = self.parts, []
        top, edge = self.panel.top, self.edge
        if top is not None and edge is not None:
            left, right = self._x(top), self._x(edge) + _CELL
            self.parts.append(
                f'<rect x="{left}" y="{begin}" width="{right - left}" height="{self.y - begin}" fill="currentColor" '
                f'fill-opacity=".06" stroke="currentColor" stroke-opacity=".5"/>'
                f'<path d="M{right + 2} {begin - 6}V{self.y + 4}" stroke="{_CUT}" stroke-width="2" '
                'stroke-dasharray="6 4"/>'
            )
            texts = window_texts(top, edge)
            self._text(left, 10, next((t for t in texts if _length([t]) <= right - left), texts[-1]))
            if any(r.last < edge for r in self.panel.rows):
                self._text(self._x(edge - 1) + 2, 10, "cut off", f'fill="{_CUT}"')
        self._text(self.start - _SIGN, 28, _WEIGHT, 'text-anchor="end" opacity=".7"')
        zero = self.left if top is None else top
        for place in range(self.right, self.left + 1):
            if (zero - place) % 4 == 0:
                self._text(self._x(place) + _CELL / 2, 28, f"2^{place}", 'text-anchor="middle" opacity=".7"')
        frame, self.parts = self.parts, whole
        return frame

    def _row(self, row: Row) -> None:
        middle, color = self.y + _PITCH / 2, _COLORS.get(row.kind, _TOTAL)
        bold = 'font-weight="bold"' if row.kind == "result" else f'fill="{color}"' if row.kind == "c" else ""
        self._text(4, middle, row.label, bold)
        self._text(
            self.start - _SIGN, middle, value_of(row), f'text-anchor="end" {bold if row.kind == "result" else ""}'
        )
        begin = self._x(max(row.first, self.right - 1))
        top = self.panel.top
        if top is not None and row.first < top and row.kind in ("product", "c"):
            end = max(begin - 14 * row.minus, self._x(top))
            self.parts.append(f'<path d="M{self._x(top)} {middle}H{end:.1f}" stroke="currentColor" opacity=".4"/>')
        if row.minus:
            self._text(begin - 4, middle, "\N{MINUS SIGN}", 'text-anchor="end" font-weight="bold"')
        for i, bit in enumerate(row.digits):
            if row.first - i < self.right:
                self._text(self._x(self.right - 1), middle, "»", f'fill="{_CUT}"')
                break
            self._bit(row, row.first - i, bit, i < row.kept, color)
        if row.setter and row.exponent is not None:
            self.parts.append(
                f'<rect x="{self._x(row.exponent) - 0.5}" y="{middle - _BOX / 2 - 1.5}" width="{_CELL}" '
                f'height="{_BOX + 3}" fill="none" stroke="currentColor" stroke-width="2"/>'
            )
        if said := note(row):
            shade = f'fill="{_CUT}"' if row.lost and row.kind != "exact" else 'opacity=".7"'
            self._text(self._x(self.right - 1) + 10, middle, said, shade)
        self.y += _PITCH

    def _bit(self, row: Row, place: int, bit: str, kept: bool, color: str) -> None:
        middle, x = self.y + _PITCH / 2, self._x(place)
        full = bit == "1" and row.kind != "exact"
        shape = f'x="{x}" y="{middle - _BOX / 2}" width="{_CELL - 1}" height="{_BOX}"'
        color = color if kept else _CUT
        opacity = 1 if full else 0.4 if bit == "1" else 0.14
        ink = 'fill="#fff"' if full else ""
        self.parts.append(
            f"<g><title>{bit} of weight 2^{place}{'' if kept else ', cut off'}</title>"
            f'<rect {shape} fill="{color}" fill-opacity="{opacity}" stroke="{color}"/>'
            + ("" if kept else f'<rect {shape} fill="url(#numsim-cut)"/>')
            + f'<text x="{x + _CELL / 2 - 0.5}" y="{middle + 4.5}" text-anchor="middle" {ink}>{bit}</text></g>'
        )


def _length(texts: Iterable[str]) -> int:
    """Pixels of the longest."""
    return max((len(typeset(t)) for t in texts), default=0) * _LETTER
