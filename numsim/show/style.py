"""How numsim's pictures look, and how they become files. The only place that touches matplotlib's settings.

Colours are Okabe and Ito's, which colour-blind readers tell apart; each format also has a mark and a line style of its
own. The background is opaque white, so that pictures read well in dark pages too. Nothing here uses pyplot, and
matplotlib's settings are as before afterwards.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullLocator

from numsim import files
from numsim.errors import check_choice

STYLES = ("page", "slide")
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY, PALE = "#5F5F5F", "#E4E4E4"
_INK = {ORANGE: "#946600", SKY: "#1F78B0", GREEN: "#007A59", VERMILLION: "#B84F00", PURPLE: "#A0437A"}

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_SIZE = {"page": (7.2, 10.0), "slide": (12.0, 16.0)}  # inches wide, points of type
_DPI = 100


class Look(NamedTuple):
    """How a format is drawn wherever it appears."""

    color: str
    linestyle: Any
    marker: str


_LOOKS = {
    "FP32": Look(BLACK, "-", "D"),
    "TF32": Look(SKY, (0, (5, 1, 1, 1)), "P"),
    "FP16": Look(BLUE, "-", "o"),
    "BF16": Look(VERMILLION, "--", "s"),
    "E4M3": Look(GREEN, "-.", "^"),
    "E5M2": Look(PURPLE, ":", "v"),
}
_SPARE = (Look(ORANGE, "-", "X"), Look(SKY, "--", "*"), Look(GREY, "-.", "<"), Look(ORANGE, ":", ">"))


def look(title: str, others: tuple[str, ...] = ()) -> Look:
    """The look of a format; formats without one of their own take the spare ones in the order of ``others``."""
    if title in _LOOKS:
        return _LOOKS[title]
    spare = [t for t in others if t not in _LOOKS]
    return _SPARE[spare.index(title) % len(_SPARE) if title in spare else 0]


def ink(color: str) -> str:
    """The tone of a colour that is dark enough for type on white."""
    return _INK.get(color, color)


def check_style(style: Any) -> str:
    check_choice("style", style, STYLES, "numsim run swamping --style slide")
    return str(style)


class Picture(Figure):
    """A matplotlib figure that knows its style."""

    look: str = "page"


@contextmanager
def settings(style: str) -> Iterator[None]:
    """matplotlib as this house sets it, for the length of a ``with`` block."""
    size = _SIZE[check_style(style)][1]
    with matplotlib.rc_context():
        matplotlib.style.use("default")  # not the user's own settings: pictures are the same everywhere
        matplotlib.rcParams.update(
            {
                "figure.dpi": _DPI,
                "figure.facecolor": "white",
                "savefig.facecolor": "white",
                "font.family": "sans-serif",
                "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
                "font.size": size,
                "axes.titlesize": size * 1.05,
                "axes.titleweight": "bold",
                "axes.titlelocation": "left",
                "axes.labelsize": size,
                "xtick.labelsize": size * 0.9,
                "ytick.labelsize": size * 0.9,
                "legend.fontsize": size * 0.9,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.linewidth": size * 0.08,
                "lines.linewidth": size * 0.19,
                "lines.markersize": size * 0.66,
                "axes.grid": False,
                "hatch.linewidth": size * 0.06,
                "svg.fonttype": "none",  # text stays text
                "svg.hashsalt": "numsim",
                "path.simplify": True,
            }
        )
        yield


def new_picture(style: str, height: float) -> Picture:
    """An empty figure; ``height`` as a part of the width, at most 9/16 of it for slides. Call within ``settings``."""
    height = min(height, 9 / 16) if style == "slide" else height
    figure = Picture(figsize=(width(style), width(style) * height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.look = style
    return figure


def width(style: str) -> float:
    """The width of a figure, in inches."""
    return _SIZE[style][0]


def type_size(style: str) -> float:
    """The size of ordinary type, in points."""
    return _SIZE[style][1]


# --- what pictures share ---------------------------------------------------------------------------------------------
def power(exponent: float) -> str:
    """A power of two as text.

    >>> power(-14)
    '2⁻¹⁴'
    """
    return f"2{str(int(exponent)).translate(SUPERSCRIPT)}"


def headline(figure: Picture, finding: str, below: str = "") -> None:
    """The finding over the picture, and in smaller grey type what was done."""
    size = type_size(figure.look)
    title = wrapped(figure, finding, size * 1.15, "bold")
    figure.suptitle(title, x=0.012, ha="left", fontsize=size * 1.15, fontweight="bold", linespacing=1.25)
    if below:
        text = wrapped(figure, below, size * 0.85)
        figure.supxlabel(text, x=0.012, ha="left", fontsize=size * 0.85, color=GREY)


def wrapped(figure: Picture, text: str, size: float, weight: str = "normal") -> str:
    """Text in lines that fit the figure, with room for wider fonts; a number stays with its unit."""
    font = FontProperties(size=size, weight=weight)
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    room = figure.bbox.width * 0.94
    lines = [""]
    for word in text.replace(" %", "\u00a0%").split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and renderer.get_text_width_height_descent(longer, font, False)[0] > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Places near ``values`` (parts of an axis) that are at least ``gap`` apart, in the same order and on the axis."""
    order = np.argsort(values, kind="stable")
    places = np.array(values, float)
    for _ in range(100):
        places = np.clip(places, 0.02, 1.0)
        for a, b in itertools.pairwise(order):
            short = gap - (places[b] - places[a])
            if short > 1e-9:
                places[a] -= short / 2
                places[b] += short / 2
    return [float(p) for p in places]


def end_labels(axes: Axes, labels: list[tuple[float, str, str]], gap: float = 0.07) -> None:
    """Names at the right ends of lines: (y in data, text, colour); moved apart where they would overlap."""
    heights = axes.transAxes.inverted().transform(axes.transData.transform([(1, y) for y, _, _ in labels]))[:, 1]
    for place, (_, text, color) in zip(spread(heights.tolist(), gap), labels, strict=True):
        axes.text(1.03, place, text, transform=axes.transAxes, color=ink(color), va="center", ha="left")


def ticks(axis: Any, places: Sequence[float], labels: Sequence[str]) -> None:
    """Ticks at these places and nowhere else."""
    axis.set_major_locator(FixedLocator(list(places)))
    axis.set_ticklabels(list(labels))
    axis.set_minor_locator(NullLocator())


def blue_cells(axes: Axes, cells: Sequence[Sequence[tuple[float, str]]]) -> None:
    """A table of numbers in place of a chart: (depth, text) for each; the deeper, from 0 to 1, the bluer."""
    for y, row in enumerate(cells):
        for x, (depth, text) in enumerate(row):
            shade = tuple(1 - depth * (1 - c) for c in (0.0, 0.447, 0.698))  # to BLUE
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=shade, edgecolor="white", linewidth=1.5))
            axes.text(x, y, text, ha="center", va="center", color="white" if depth > 0.75 else BLACK)
    axes.set_xlim(-0.5, len(cells[0]) - 0.5)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


# --- files -----------------------------------------------------------------------------------------------------------
def save(figure: Figure, stem: Path | str, *, alt: str = "", metadata: Mapping[str, str] | None = None) -> list[Path]:
    """Write a figure as ``stem.png`` (at twice the resolution) and ``stem.svg``; returns the paths.

    Parameters: ``alt`` becomes the description inside both files; ``metadata`` (parameters, seed, version) goes there
    too. The same figure gives the same bytes: no date, no host. Each file is written whole or not at all.
    """
    stem = Path(stem)
    about = "; ".join([*([alt] if alt else []), *(f"{k}: {v}" for k, v in (metadata or {}).items())])
    title = " ".join(figure.get_suptitle().split()) or stem.name
    paths = []
    with settings(getattr(figure, "look", "page")):
        png: dict[str, Any] = {"dpi": 2 * _DPI, "metadata": {"Software": "numsim", "Description": about}}
        svg = {"metadata": {"Creator": "numsim", "Date": None, "Title": title, "Description": about}}
        for kind, options in (("png", png), ("svg", svg)):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, **options)
            paths.append(files.write_atomic(stem.with_name(f"{stem.name}.{kind}"), buffer.getvalue()))
    return paths
