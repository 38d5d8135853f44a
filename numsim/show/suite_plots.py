"""Pictures of the suites ``casts`` and ``sums``: a map of all casts, the trees of sums, their errors."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from numsim.experiments.experiment import listed
from numsim.formats import Format, get_format
from numsim.machines.recorded import Record
from numsim.reveal import trees
from numsim.show.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALE,
    SKY,
    VERMILLION,
    Picture,
    check_style,
    headline,
    ink,
    look,
    new_picture,
    settings,
    ticks,
    type_size,
)
from numsim.show.suite_text import outcome

if TYPE_CHECKING:
    from numsim.suites.suite import Row

Drawn = list[tuple[str, Picture, str]]
# outcome: colour, mark, words
_CELLS = {
    "same": (BLUE, "=", "same bits"),
    "documented": (ORANGE, "~", "as documented"),
    "differs": (VERMILLION, "x", "unexplained"),
    "skipped": (PALE, "-", "not compared"),
}


def who(record: Record) -> str:
    """The device, or the machine, in a few words."""
    return str(record.provenance.get("device") or record.machine)


# --- casts ------------------------------------------------------------------------------------------------------------
def casts(rows: Sequence[Row], record: Record, style: str = "page") -> Drawn:
    """Which casts give numsim's bits, which others, which documented ones."""
    found = {row.part: row for row in rows if " -> " in row.part}
    if not found:
        return []
    names = list(dict.fromkeys(part.split(" -> ")[0] for part in found))
    with settings(check_style(style)):
        figure, size = new_picture(style, 0.62), type_size(style)
        axes = figure.subplots()
        kinds = dict.fromkeys(_CELLS, 0)
        for y, source in enumerate(names):
            for x, target in enumerate(names):
                row = found.get(f"{source} -> {target}")
                if row is None:
                    continue
                kind = outcome(row) if outcome(row) in _CELLS else "skipped"
                kinds[kind] += 1
                color, mark, _ = _CELLS[kind]
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=color, edgecolor="white", linewidth=1.5))
                lines = [line for reason in row.verdict.quirks for line in textwrap.wrap(reason, 15)]
                text = "\n".join(lines) if kind == "documented" else mark
                shade = "white" if color in (BLUE, VERMILLION) else BLACK
                small = min(0.52, 1.65 / max(len(lines), 1)) if text != mark else 1
                axes.text(x, y, text, ha="center", va="center", color=shade, fontsize=size * small)
        titles = [get_format(name).title for name in names]
        ticks(axes.xaxis, range(len(names)), titles)
        ticks(axes.yaxis, range(len(names)), titles)
        axes.tick_params(axis="x", labelrotation=30)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_ylabel("from")
        axes.set_xlabel("to")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        counts = [f"{n} {_CELLS[kind][2]}" for kind, n in kinds.items() if n]
        finding = f"Casts of {who(record)}: {listed(counts)}"
        key = ", ".join(f"{mark} {words}" for kind, (_, mark, words) in _CELLS.items() if kind != "documented")
        headline(figure, finding, f"{key}; where a difference is documented, its reasons stand in the cell.")
        documented = [
            f"{part}: {', '.join(row.verdict.quirks)}" for part, row in found.items() if outcome(row) == "documented"
        ]
        alt = f"{finding}. A table of casts, from rows to columns. {'; '.join(documented)}".strip()
        return [("casts", figure, alt)]


# --- sums -------------------------------------------------------------------------------------------------------------
Errors = Mapping[Format, Mapping[int, Sequence[float]]]  # by length: of the machine, and of two other ways


def sums(
    orders: Sequence[tuple[Format, Any, Format | None]], errors: Errors, record: Record, style: str = "page"
) -> Drawn:
    """The tree of a small sum in each format, with its accumulator; and errors by length."""
    with settings(check_style(style)):
        pictures = [_trees(orders, record, style)] if orders else []
        return [*pictures, _errors(errors, record, style)] if errors else pictures


def _trees(orders: Sequence[tuple[Format, Any, Format | None]], record: Record, style: str) -> tuple[str, Picture, str]:
    alike: dict[Any, list[str]] = {}
    for format, tree, accumulator in orders:
        alike.setdefault((tree, accumulator), []).append(format.title)
    figure = new_picture(style, 0.16 + 0.3 * len(alike))
    panels = np.atleast_1d(figure.subplots(len(alike), 1))
    words = []
    for axes, ((tree, accumulator), titles) in zip(panels, alike.items(), strict=True):
        depth = _dendrogram(axes, tree, type_size(style))
        kept = f"partial sums in {accumulator.title}" if accumulator else "partial sums of several widths"
        axes.set_title(f"{listed(titles)}: {kept}", fontweight="normal")
        words.append(f"{listed(titles)}: {depth} additions deep, {kept}")
    n = len(trees.leaves_of(orders[0][1]))
    finding = f"How torch.sum adds {n} numbers on {who(record)}"
    below = "Each number stands at its place in the sum, and is numbered by its place in the array; a bracket adds."
    headline(figure, finding, below)
    return "sums-trees", figure, f"{finding}, as a tree. {'; '.join(words)}."


def _dendrogram(axes: Axes, tree: Any, size: float) -> int:
    """A tree of additions; returns how deep it is."""
    leaves = trees.leaves_of(tree)
    at = {leaf: (float(x), 0) for x, leaf in enumerate(leaves)}
    for height, pairs in enumerate(trees.rounds_of(tree) or [], start=1):
        for i, j in pairs:
            (x, low), (y, high) = at[i], at[j]
            axes.plot([x, x, y, y], [low, height, height, high], color=BLUE, linewidth=size * 0.11)
            at[i] = (x + y) / 2, height
    ticks(axes.xaxis, range(len(leaves)), [str(leaf) for leaf in leaves])
    axes.tick_params(axis="x", labelsize=size * 0.6, length=0)
    axes.set_xlim(-0.7, len(leaves) - 0.3)
    depth = max(height for _, height in at.values())
    ticks(axes.yaxis, [0, depth], ["0", str(depth)])
    axes.set_ylabel("additions")
    axes.spines["bottom"].set_visible(False)
    return depth


def _errors(errors: Errors, record: Record, style: str) -> tuple[str, Picture, str]:
    figure, size = new_picture(style, 0.5), type_size(style)
    grid = figure.add_gridspec(2, len(errors), height_ratios=(0.01, 3))
    keys, first = figure.add_subplot(grid[0, :]), figure.add_subplot(grid[1, 0])
    keys.set_axis_off()
    panels = [first, *(figure.add_subplot(grid[1, n], sharey=first) for n in range(1, len(errors)))]
    names = ("torch.sum", "one after another in FP32", "one after another in the format")
    looks = (("D", "-", BLACK), ("o", "--", SKY), ("s", ":", VERMILLION))
    for axes, (format, by_length) in zip(panels, errors.items(), strict=True):
        lengths = sorted(by_length)
        for way, (name, (marker, dash, color)) in enumerate(zip(names, looks, strict=True)):
            shown = [(float(n), by_length[n][way]) for n in lengths if by_length[n][way] > 0]  # a logarithm has no 0
            axes.plot(*np.array(shown or [(1.0, np.nan)]).T, marker=marker, linestyle=dash, color=color, label=name)
        axes.axhline(2.0 ** -(format.fraction_bits + 1), color=GREY, linewidth=size * 0.06)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(format.title, fontweight="normal", color=ink(look(format.title).color))
        axes.set_xlabel("numbers")
    panels[0].set_ylabel("relative error (RMS)")
    for axes in panels[1:]:
        axes.tick_params(axis="y", labelleft=False)
    handles, labels = first.get_legend_handles_labels()
    keys.legend(handles, labels, loc="center left", ncols=3, frameon=False, borderaxespad=0, bbox_to_anchor=(0, 0.5))
    most = max(max(by_length) for by_length in errors.values())
    says = [f"{f.title} {e[most][0]:.1g} and {e[most][2]:.1g}" for f, e in errors.items() if most in e]
    finding = f"Errors of torch.sum with {most} numbers, and of adding them one after another: {', '.join(says)}"
    below = (
        f"{who(record)}. Positive numbers, evenly spread below 1. The grey line is half a unit of the format, which "
        "the last rounding alone can cost."
    )
    headline(figure, finding, below)
    return "sums-errors", figure, f"{finding}. Line charts over how many numbers are added, for each format."
