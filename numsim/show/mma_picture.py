"""The picture of a lost bit: a tensor core's terms as rows of bits under one another, and what is cut off.

The horizontal axis is the weight of the bits. Drawn in inches from the upper left corner, so that squares are squares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle

from numsim.errors import InputError, check_choice
from numsim.show import mma_rows, mma_words
from numsim.show.mma_rows import Panel, Row
from numsim.show.mma_words import cause_text, note, typeset, value_of, window_texts, zeros_text
from numsim.show.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    SKY,
    VERMILLION,
    Picture,
    check_style,
    new_picture,
    power,
    settings,
    type_size,
    width,
    wrapped,
)

if TYPE_CHECKING:
    from numsim.tensorcore.explain import MmaExplanation

_MOST_ROWS = {"page": 56, "slide": 16}  # more than one block is drawn up to that
_SHOWN_CUT = 12  # places right of the window, at most
_TALLEST = 10.0  # inches, for pages
_LEAST_DIGIT = 4.6  # points: smaller ones are left out
_LEGIBLE = 0.45  # of the ordinary type: names that would be smaller are left out
_MOST_CAUSES = 6
_WEIGHT = "weight of the bit"


class Theme(NamedTuple):
    """Colours on light or dark paper; ``tint`` is how much of a colour a 0 has."""

    paper: str
    ink: str
    faint: str
    window: str
    product: str
    c: str
    total: str
    cut: str
    cut_ink: str
    on_color: str


THEMES = {
    "light": Theme("#FFFFFF", BLACK, GREY, "#F1F3F6", BLUE, "#007A59", "#3C3C3C", VERMILLION, "#B84F00", "#FFFFFF"),
    "dark": Theme("#14171A", "#ECECEC", "#A3A8AE", "#22272C", SKY, "#19B98C", "#C9CCD0", "#F08A3C", ORANGE, "#10131A"),
}


Named = tuple["MmaExplanation", Panel]


def draw(
    e: MmaExplanation, *, style: Literal["page", "slide"] = "page", theme: Literal["light", "dark"] = "light"
) -> Picture:
    """One explanation: its blocks below one another (the four that lose most, where there are more)."""
    return draw_together([e], style=style, theme=theme)


def draw_together(
    explanations: Sequence[MmaExplanation], *, style: Literal["page", "slide"] = "page",
    theme: Literal["light", "dark"] = "light",
) -> Picture:  # fmt: skip
    """Several explanations of one sum, on one axis of weights: the same bits on different chips.

    Raises ``InputError`` for an unknown style or theme, and for no explanation at all.
    """
    check_choice("theme", theme, THEMES, "draw(theme='dark')")
    if not explanations:
        raise InputError("no explanation to draw. Example: draw_together([explain_mma(...), explain_mma(...)])")
    rows = _MOST_ROWS[check_style(style)] // len(explanations)
    panels = [(e, p) for e in explanations for p in mma_rows.panels(e, rows)]
    with settings(style):
        return _Sheet(panels, explanations, style, THEMES[theme]).figure


def alt(explanations: Sequence[MmaExplanation]) -> str:
    """The picture in words."""
    said = ". ".join(mma_words.finding(e) for e in explanations)
    rows = [row.alt for e in explanations for p in mma_rows.panels(e) for row in p.rows]
    more = f"; and {len(rows) - 8} more" if len(rows) > 8 else ""
    return f"{said}. A chart with the bits of each term in a row, by weight. {'; '.join(rows[:8])}{more}."


class _Sheet:
    """One picture while it is drawn; ``y`` is how far down it is."""

    def __init__(self, panels: list[Named], explanations: Sequence[MmaExplanation], style: str, theme: Theme) -> None:
        self.theme, self.size, self.width = theme, type_size(style), width(style)
        self.em, self.line = self.size / 72, self.size / 72 * 1.3
        self.chips = len(explanations) > 1
        self.many = self.chips or any(len(e.blocks) > 1 for e in explanations)
        scratch = new_picture(style, 0.5)
        self.renderer = FigureCanvasAgg(scratch).get_renderer()  # type: ignore[no-untyped-call]
        findings = [typeset(mma_words.finding(e)) for e in explanations]
        title = "\n".join(wrapped(scratch, finding, self.size * 1.15, "bold") for finding in findings)
        below = wrapped(scratch, _below(explanations, panels), self.size * 0.85)
        self._columns([p for _, p in panels])
        texts = (title.count("\n") + 1) * 1.15 + (below.count("\n") + 1) * 0.85
        texts += 0.85 * len(wrapped(scratch, _legend(panels, True), self.size * 0.85).splitlines())
        fixed = texts * self.line + 2.6 * self.em + sum(_lines(p, self.many) for _, p in panels) * self.line
        self._heights([p for _, p in panels], (_TALLEST if style == "page" else self.width * 9 / 16) - fixed)
        height = fixed + sum(self.height(r) for _, p in panels for r in (*p.rows, *p.totals))
        height += sum(self.pitch for _, p in panels if p.rows and p.zeros)

        self.figure = new_picture(style, height / self.width)
        self.figure.set_layout_engine("none")
        self.figure.suptitle(". ".join(findings), visible=False)  # for the title inside files
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.axis("off")
        self.axes.set_xlim(0, self.width)
        self.axes.set_ylim(max(height, self.figure.get_figheight()), 0)
        self.box(0, 0, self.width, self.axes.get_ylim()[0], theme.paper, zorder=-9)
        self.y = self.em * 0.8
        self.paragraph(title, theme.ink, 1.15, fontweight="bold")
        self.y += self.em * 0.3
        self.paragraph(below, theme.faint, 0.85)
        self.y += self.em * 0.4
        for e, panel in panels:
            self._panel(e, panel)
        self.y += self.em * 0.4
        unnamed = any(self._type(r) < self.size * _LEGIBLE for _, p in panels for r in p.rows)
        self.paragraph(wrapped(scratch, _legend(panels, unnamed), self.size * 0.85), theme.faint, 0.85)

    # --- measures
    def _columns(self, panels: list[Panel]) -> None:
        """What stands left and right of the bits, and how wide a bit is."""
        rows = [r for p in panels for r in (*p.rows, *p.totals)]

        def widest(texts: Iterable[str], size: float) -> float:
            return max((self.length(typeset(t), self.size * size) for t in texts), default=0.0)

        names = widest((r.label for r in rows), 1) + widest((value_of(r) for r in rows), 1.15)  # some are bold
        names = max(names + self.em, widest([_WEIGHT, *(zeros_text(p) for p in panels if p.zeros)], 1))
        self.start = self.em * 3 + names
        self.left = max((r.first for r in rows), default=0)
        edges = [p.edge for p in panels if p.edge is not None]
        self.right = max(min((r.last for r in rows), default=0), min(edges) - _SHOWN_CUT if edges else self.left - 63)
        self.right = min([self.right, *edges])
        self.gap = self.em * 0.3  # between what is kept and what is cut
        count = self.left - self.right + 1
        room = self.width - self.start - widest(map(note, rows), 0.9) - self.em * 2.4
        self.cell = min(room / count, self.em * 1.9)
        self.notes_at = self.start + count * self.cell + self.gap + self.em * 0.8

    def _heights(self, panels: list[Panel], room: float) -> None:
        """How high rows are: where all do not fit, those that lose nothing become thin."""
        rows = [r for p in panels for r in (*p.rows, *p.totals)]
        zeros = sum(bool(p.rows and p.zeros) for p in panels)
        count = max(len(rows) + zeros, 1)
        heavy = sum(map(_counts, rows)) + zeros
        self.pitch = self.thin = min(self.line * (1.75 if count <= 12 else 1.35), max(room / count, self.line * 0.25))
        if self.pitch < self.line * 0.85 and heavy < count:
            self.pitch = max(self.pitch, min(self.line * 0.85, room * 0.6 / heavy))
            self.thin = max((room - self.pitch * heavy) / (count - heavy), self.line * 0.15)

    def length(self, text: str, size: float) -> float:
        """Inches of a line of type."""
        if not text:
            return 0.0
        wide = self.renderer.get_text_width_height_descent(text, FontProperties(size=size), False)[0]
        return float(wide / self.renderer.dpi)

    def height(self, row: Row) -> float:
        return self.pitch if _counts(row) else self.thin

    def _type(self, row: Row) -> float:
        return min(self.size, self.height(row) * 72 * 0.78)

    def x(self, place: int, edge: int | None = None) -> float:
        """The left side of a bit; what is cut off stands a little apart."""
        return self.start + (self.left - place) * self.cell + (self.gap if edge is not None and place < edge else 0.0)

    # --- strokes
    def write(self, x: float, y: float, text: str, color: str, size: float, **options: Any) -> None:
        self.axes.text(x, y, text, color=color, fontsize=size, **{"va": "center", **options})

    def paragraph(self, text: str, color: str, size: float, **options: Any) -> None:
        self.write(self.em, self.y, text, color, self.size * size, va="top", linespacing=1.25, **options)
        self.y += (text.count("\n") + 1) * self.line * size

    def stroke(self, xs: Sequence[float], ys: Sequence[float], color: str, thick: float, **options: Any) -> None:
        self.axes.plot(xs, ys, color=color, linewidth=self.size * thick, **options)

    def box(self, x: float, y: float, wide: float, high: float, fill: Any, **options: Any) -> None:
        self.axes.add_artist(Rectangle((x, y), wide, high, facecolor=fill, **{"linewidth": 0, **options}))

    # --- parts
    def _panel(self, e: MmaExplanation, panel: Panel) -> None:
        theme, line = self.theme, self.line
        if self.many:
            chip = f"{mma_words.chip_name(e)}, " if self.chips else ""
            self.write(self.em, self.y + line * 0.7, f"{chip}{panel.title}", theme.ink, self.size, fontweight="bold")
            self.y += line * 1.3
        for cause in panel.causes[:_MOST_CAUSES]:
            said = typeset(cause_text(cause))
            self.write(self.em * 2, self.y + line, said, theme.cut_ink, self.size * 1.3, fontweight="bold")
            self.y += line * 1.8
        if not panel.rows:
            if not panel.causes:
                self.write(self.em * 2, self.y + line * 0.7, zeros_text(panel), theme.ink, self.size)
                self.y += line * 1.4
            return
        self._ruler(panel)
        begin = self.y
        for row in panel.rows:
            self._row(row, panel)
        if panel.zeros:
            self.write(
                self.em, self.y + self.pitch / 2, zeros_text(panel), theme.faint, min(self.size, self.pitch * 56)
            )
            self.y += self.pitch
        self.stroke([self.em, self.notes_at], [self.y + line * 0.2] * 2, theme.ink, 0.08)
        self.y += line * 0.4
        for row in panel.totals:
            self._row(row, panel)
        if panel.top is not None and panel.edge is not None:
            left, right = self.x(panel.top), self.x(panel.edge) + self.cell
            self.box(left, begin, right - left, self.y - begin, theme.window, edgecolor=theme.faint,
                     linewidth=self.size * 0.06, zorder=-5)  # fmt: skip
            self.stroke([right + self.gap / 2] * 2, [begin - line * 0.3, self.y + line * 0.15], theme.cut, 0.16,
                        linestyle=(0, (4, 2)), zorder=3)  # fmt: skip
        self.y += line * 0.6

    def _ruler(self, panel: Panel) -> None:
        """The weights, the common exponent E, and where the cut is."""
        theme, size, line = self.theme, self.size * 0.85, self.line
        if panel.top is not None and panel.edge is not None:
            left, cut = self.x(panel.top), self.x(panel.edge - 1, panel.edge) + self.em * 0.2
            texts = [typeset(t) for t in window_texts(panel.top, panel.edge)]
            said = next((t for t in texts if self.length(t, size) <= cut - left - self.em), texts[-1])
            self.write(left, self.y + line * 0.55, said, theme.ink, size)
            if any(row.last < panel.edge for row in panel.rows):
                self.write(cut, self.y + line * 0.55, "cut off", theme.cut_ink, size)
            self.y += line
        self.write(self.start - self.em * 1.2, self.y + line * 0.45, _WEIGHT, theme.faint, size, ha="right")
        label = max(self.length(power(p), size) for p in (self.left, self.right)) + self.em * 0.5
        step = next(n for n in (1, 2, 4, 5, 8, 10, 16, 20, 32, 64, 128) if n * self.cell > label)
        zero = self.left if panel.top is None else panel.top
        for place in range(self.right, self.left + 1):
            if (zero - place) % step == 0:
                middle = self.x(place, panel.edge) + self.cell / 2
                self.write(middle, self.y + line * 0.45, power(place), theme.faint, size, ha="center")
        self.y += line

    def _row(self, row: Row, panel: Panel) -> None:
        theme, em = self.theme, self.em
        height, size = self.height(row), self._type(row)
        middle = self.y + height / 2
        color = {"product": theme.product, "c": theme.c}.get(row.kind, theme.total)
        bold = {"fontweight": "bold" if row.kind == "result" else "normal"}
        if size >= self.size * _LEGIBLE:
            self.write(em, middle, typeset(row.label), color if row.kind == "c" else theme.ink, size, **bold)
            self.write(self.start - em * 1.5, middle, typeset(value_of(row)), theme.ink, size, ha="right", **bold)
        begin = self.x(max(row.first, self.right - 1), panel.edge)
        if panel.top is not None and row.first < panel.top and row.kind in ("product", "c"):
            shifted = [self.x(panel.top), max(begin - row.minus * em * 1.2, self.x(panel.top))]
            self.stroke(shifted, [middle] * 2, theme.faint, 0.06, zorder=-4)
        if row.minus:
            self.write(begin - em * 0.3, middle, "\N{MINUS SIGN}", color, max(size, self.size * 0.6), ha="right",
                       fontweight="bold")  # fmt: skip
        high = min(self.cell * 1.6, height * 0.78)
        self._bits(row, panel.edge, middle, high, color)
        if row.setter and row.exponent is not None:
            self.box(self.x(row.exponent), middle - high * 0.6, self.cell, high * 1.2, "none", edgecolor=theme.ink,
                     linewidth=self.size * 0.15, zorder=4)  # fmt: skip
        loses = row.lost and row.kind != "exact"
        self.write(self.notes_at, middle, typeset(note(row)), theme.cut_ink if loses else theme.faint, size * 0.9)
        self.y += height

    def _bits(self, row: Row, edge: int | None, middle: float, high: float, color: str) -> None:
        theme, digit = self.theme, min(self.cell * 65, high * 58, self.size * 0.9)
        for i, bit in enumerate(row.digits):
            place, kept = row.first - i, i < row.kept
            if place < self.right:  # the rest does not fit
                self.write(self.x(self.right - 1, edge), middle, "»", theme.cut_ink, max(digit, self.size * 0.5))
                break
            shade = color if kept else theme.cut
            full = bit == "1" and row.kind != "exact"
            fill = shade if full else _mixed(shade, theme.paper, 0.14 if bit == "0" else 0.32)
            line = shade if kept else _mixed(shade, theme.paper, 0.55)  # it is the hatching's colour, too
            self.box(self.x(place, edge) + self.cell * 0.05, middle - high / 2, self.cell * 0.9, high, fill,
                     edgecolor=line, linewidth=self.size * 0.04, hatch=None if kept else "/////")  # fmt: skip
            if digit >= _LEAST_DIGIT:
                weight = "normal" if kept else "bold"
                self.write(self.x(place, edge) + self.cell / 2, middle, bit, theme.on_color if full else theme.ink,
                           digit, ha="center", va="center_baseline", fontweight=weight)  # fmt: skip


def _counts(row: Row) -> bool:
    """Whether a row must be seen well, even if many do not fit."""
    return bool(row.lost or row.setter or row.kind != "product")


def _lines(panel: Panel, many: bool) -> float:
    """Lines of type that a panel takes besides its rows."""
    if not panel.rows:
        return 1.3 * many + (1.8 * min(len(panel.causes), _MOST_CAUSES) or 1.4)
    return 1.3 * many + 2.0 + (panel.top is not None)


def _mixed(color: str, paper: str, share: float) -> tuple[float, ...]:
    """A tint: so much of the colour on the paper."""
    rgb, ground = matplotlib.colors.to_rgb(color), matplotlib.colors.to_rgb(paper)
    return tuple(share * c + (1 - share) * g for c, g in zip(rgb, ground, strict=True))


def _below(explanations: Sequence[MmaExplanation], panels: list[Named]) -> str:
    """What was done: the expression, by which instructions, and which blocks are not drawn."""
    units = "; ".join(
        f"{mma_words.chip_name(x)}:\u00a0{x.model.instruction}\u00a0({x.model.evidence.level})" for x in explanations
    )
    said = f"{mma_words.expression(explanations[0])} by {units}" if explanations[0].text else units
    for e in explanations:
        shown = [p.number for other, p in panels if other is e]
        if rest := mma_words.omitted_in_all(e, shown):
            said += f". {mma_words.chip_name(e) + ': ' if len(explanations) > 1 else ''}{typeset(rest)}"
    return said


def _legend(panels: list[Named], unnamed: bool) -> str:
    said = mma_words.legend([p for _, p in panels])
    return f"{said} Rows without a name lose nothing." if said and unnamed else said
