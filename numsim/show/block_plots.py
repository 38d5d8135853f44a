"""Pictures of sums in blocks, of TF32, and of what changes a product's bits; see ``plots`` for how they are made."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from numsim.experiments.blocks import ONES, Steps, falling, saved
from numsim.experiments.experiment import Result
from numsim.experiments.invariance import OUTPUTS, Change, kept_and_changed, ulps
from numsim.experiments.tf32 import WAYS, cut_or_rounded, split
from numsim.experiments.units import IN_ORDER
from numsim.show.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    PALE,
    VERMILLION,
    Picture,
    check_style,
    headline,
    ink,
    new_picture,
    power,
    settings,
    ticks,
    type_size,
    width,
)

Drawn = list[tuple[str, Picture, str]]


# --- blocks -----------------------------------------------------------------------------------------------------------
def blocks(result: Result, style: str = "page") -> Drawn:
    """How many of sixteen ones arrive in a large sum; a sum that falls though a term grows."""
    with settings(check_style(style)):
        drawn = [_arrive(result, style)] if result.series["arrived"] else []
        return drawn + ([_falls(result, style)] if result.series["steps"] else [])


def _arrive(result: Result, style: str) -> tuple[str, Picture, str]:
    starts, arrived = result.series["starts"], result.series["arrived"]
    size = type_size(style)
    figure = new_picture(style, (len(arrived) * 1.75 * size + 11 * size) / 72 / width(style))
    axes = figure.subplots()
    for y, row in enumerate(arrived.values()):
        for x, n in enumerate(row):
            whole = n == ONES
            axes.add_patch(
                Rectangle(
                    (x - 0.5, y - 0.5), 1, 1, facecolor=BLUE if whole else "white", linewidth=1.5,
                    edgecolor="white" if whole else "#D0D0D0", zorder=2 if whole else 1,
                )
            )  # fmt: skip
            axes.text(x, y, str(n), ha="center", va="center", color="white" if whole else GREY, zorder=3)
    axes.axhline(len(arrived) - 1.5, color=BLACK, linewidth=1, zorder=4)
    axes.set_xlim(-0.5, len(starts) - 0.5)
    axes.set_ylim(len(arrived) - 0.5, -0.5)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(f"the sum before {ONES} ones are added to it", loc="left")
    ticks(axes.xaxis, range(len(starts)), [power(e) for e in starts])
    ticks(axes.yaxis, range(len(arrived)), list(arrived))
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    finding = saved(arrived)
    below = f"How many of the {ONES} ones (FP16 products 1 x 1) are in the FP32 result. Last row: rounded once."
    headline(figure, finding, below)
    across = f"the sum from 2^{starts[0]} to 2^{starts[-1]} across"
    return "blocks", figure, f"{finding}. A table of how many ones arrive: who adds down, {across}."


def _falls(result: Result, style: str) -> tuple[str, Picture, str]:
    steps = {name: Steps(**s) for name, s in result.series["steps"].items()}
    figure = new_picture(style, 0.56)
    grid = figure.subplots(1, len(steps), squeeze=False)[0]
    for axes, (name, s) in zip(grid, steps.items(), strict=True):
        _panel(axes, name, s, type_size(style))
    grid[-1].legend(frameon=False, loc=(0.02, 0.2) if len(grid) > 1 else "upper left")
    name, s = max(steps.items(), key=lambda item: item[1].result[item[1].c.index(0.0) - 1])
    finding = falling(s, name)
    below = (
        "c + a full block of equal products. Both axes: distance from 1, in units of the last bit that the result "
        "keeps. Dashed: the exact sum. As c reaches 1, the cut moves up one bit and the products fall below it."
    )
    headline(figure, finding, below)
    kept = {IN_ORDER} if any(s.in_order for s in steps.values()) else set()
    more = f" {', '.join(kept)} never falls." if kept else ""
    return "blocks-not-monotonic", figure, f"{finding}. Step charts of the sum as c grows past 1.{more}"


def _panel(axes: Axes, name: str, s: Steps, size: float) -> None:
    gain = s.products * 2.0 ** (s.last - s.size)
    ends = [s.c[0], s.c[-1]]
    axes.plot(ends, [c + gain for c in ends], color=GREY, linestyle="--", label="exact", zorder=1)
    if s.in_order:
        axes.plot(
            s.c, s.in_order, color=VERMILLION, linestyle="none", marker="D", markerfacecolor="none",
            markersize=size, label=IN_ORDER,
            zorder=3,
        )  # fmt: skip
    axes.plot(s.c, s.result, color=BLUE, linestyle="none", marker="o", label="one block", zorder=4)
    at = s.c.index(0.0)
    axes.annotate(
        "", (0, s.result[at]), (0, s.result[at - 1]),
        arrowprops={"arrowstyle": "-|>", "color": BLACK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 4},
    )  # fmt: skip
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"{name}: {s.products} products {power(-s.size)}", fontweight="normal")
    axes.set_xlabel(f"(c - 1) / {power(-s.last)}")
    axes.set_ylabel(f"(sum - 1) / {power(-s.last)}")


# --- tf32 -------------------------------------------------------------------------------------------------------------
def tf32(result: Result, style: str = "page") -> Drawn:
    """Errors of single TF32 products, cut and rounded; errors of products put together from several."""
    with settings(check_style(style)):
        drawn = [_cut_or_rounded(result, style)] if result.series["relative"] else []
        return drawn + ([_ways(result, style)] if drawn else [])


def _cut_or_rounded(result: Result, style: str) -> tuple[str, Picture, str]:
    relative = {way: 100 * np.array(errors) for way, errors in result.series["relative"].items()}
    low, high = min(x.min() for x in relative.values()), max(x.max() for x in relative.values())
    margin = 0.04 * (high - low)
    edges = np.linspace(low - margin, high + margin, 81)
    figure = new_picture(style, 0.5)
    grid = figure.subplots(len(relative), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (way, errors), color in zip(grid, relative.items(), (VERMILLION, BLUE, GREEN), strict=True):
        axes.hist(errors, edges, color=color)
        axes.axvline(0, color=BLACK, linewidth=1)
        axes.set_ylabel(way.replace(", ", ",\n"), rotation=0, ha="right", va="center", color=ink(color))
        axes.spines["left"].set_visible(False)
        ticks(axes.yaxis, [], [])
    grid[-1].set_xlim(edges[0], edges[-1])
    grid[-1].set_xlabel("relative error of a result, in percent")
    finding = cut_or_rounded(_by_way(result), result.series["main"])
    parameters = result.parameters
    below = (
        f"Histograms of the {parameters['size'] ** 2} results of a product of matrices with numbers from [0, 1), "
        f"{parameters['k']} products each. The black line is no error."
    )
    headline(figure, finding, below)
    return "tf32", figure, f"{finding}. Three histograms of relative errors, one below the other."


def _by_way(result: Result) -> dict[str, float]:
    """Gains."""
    return {way: pair[0][0] for who, way, *pair in result.series["errors"] if who == result.series["main"]}


def _ways(result: Result, style: str) -> tuple[str, Picture, str]:
    main = result.series["main"]
    rows = {way: [e[1] for e in pair] for who, way, *pair in result.series["errors"] if who in (main, IN_ORDER)}
    rows = {way: rows[way] for way in [*WAYS, IN_ORDER] if way in rows}
    figure = new_picture(style, 0.6)
    axes = figure.subplots()
    kinds = (("from [0, 1)", BLUE, "o", BLUE), ("normal", VERMILLION, "D", "white"))
    for i, (label, color, marker, fill) in enumerate(kinds):
        axes.plot(
            [pair[i] for pair in rows.values()], range(len(rows)), color=color, linestyle="none", marker=marker,
            markerfacecolor=fill, label=label, zorder=4 - i,
        )  # fmt: skip
    for y in range(0, len(rows), 2):
        axes.axhspan(y - 0.5, y + 0.5, color=PALE, alpha=0.55, linewidth=0, zorder=0)
    axes.set_xscale("log")
    ticks(axes.xaxis, [10.0**e for e in range(-1, 5)], ["0.1", "1", "10", "100", "1000", "10 000"])
    ticks(axes.yaxis, range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"mean error, in units of {power(-24)} of the product of the magnitudes")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=2)
    finding = split({way: pair[0] for way, pair in rows.items()}, main)
    below = (
        "3xTF32 takes each number as two TF32 parts, BF16x3, x6 and x9 as two or three BF16 parts; outside: the "
        "results of single instructions are added in FP32."
    )
    headline(figure, finding, below)
    return "tf32-split", figure, f"{finding}. A chart of mean errors, one row for each of {len(rows)} ways to multiply."


# --- invariance -------------------------------------------------------------------------------------------------------
def invariance(result: Result, style: str = "page") -> Drawn:
    """Which choices change the bits of how many outputs."""
    with settings(check_style(style)):
        return [_changed(result, style)] if result.series["main"] else []


def _changed(result: Result, style: str) -> tuple[str, Picture, str]:
    main = tuple(result.series["main"])
    found = {who: changes for who, f, changes in result.series["changes"] if f == main[1]}
    names = sorted(found, key=lambda who: (who != IN_ORDER, who != main[0]))[:3]
    rows = list(found[main[0]])
    size = type_size(style)
    figure = new_picture(style, 0.82)
    axes = figure.subplots()
    looks = ((VERMILLION, "D"), (BLUE, "o"), (GREEN, "s"))  # in order, the unit in question, another one
    offsets = np.linspace(-0.26, 0.26, len(names))
    for who, (color, marker), offset in zip(names, looks, offsets, strict=False):
        places = [(100 * c[0] / OUTPUTS, y + offset) for y, row in enumerate(rows) if (c := found[who][row])]
        axes.plot(
            *zip(*places, strict=True), color=color, linestyle="none", marker=marker, label=who, clip_on=False,
            markerfacecolor=color if who == main[0] else "white", zorder=4 + (who == main[0]),
        )  # fmt: skip
    for y, row in enumerate(rows):
        if y % 2 == 0:
            axes.axhspan(y - 0.5, y + 0.5, color=PALE, alpha=0.55, linewidth=0, zorder=0)
        change = found[main[0]][row]
        text = "-" if change is None else f"{ulps(change[1])} ulp{'s' * (change[1] != 1)}" if change[0] else "same bits"
        axes.text(104, y, text, ha="left", va="center", color=ink(BLUE), fontsize=size * 0.9)
    axes.set_xlim(-3, 103)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    ticks(axes.xaxis, [0, 25, 50, 75, 100], ["none", "25 %", "50 %", "75 %", "100 %"])
    ticks(axes.yaxis, range(len(rows)), rows)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"outputs with other bits than the plain walk over K = {result.parameters['k']}")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=3)
    finding = kept_and_changed({r: c and Change(*c) for r, c in found[main[0]].items()}, main)
    below = f"Right: the largest change on {main[0]}, in ulps of the largest output. No mark: no such instruction."
    headline(figure, finding, below)
    return (
        "invariance",
        figure,
        f"{finding}. A chart of how many outputs change, one row for each of {len(rows)} choices.",
    )
