"""Pictures of sums and casts; those of gradients and weights are next door in ``gradient_plots``.

Each function takes an experiment's result and a style, and returns (file stem, figure, alt text). matplotlib comes in
with this module, so it is imported only when pictures are made. Titles and alt texts are the finding as a sentence,
made from the result's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from numsim.experiments.experiment import Result, listed, percent
from numsim.experiments.swamping import CURES
from numsim.formats import get_format
from numsim.show.style import (
    BLACK,
    BLUE,
    GREY,
    PALE,
    VERMILLION,
    Picture,
    blue_cells,
    check_style,
    end_labels,
    headline,
    ink,
    look,
    new_picture,
    settings,
    ticks,
    type_size,
    width,
)

Drawn = list[tuple[str, Picture, str]]


# --- swamping --------------------------------------------------------------------------------------------------------
def swamping(result: Result, style: str = "page") -> Drawn:
    """Running sums until they stall; errors of the cures."""
    with settings(check_style(style)):
        drawn = [_stalls(result, style)] if result.series["ones"] else []
        return drawn + ([_cures(result, style)] if any(c["sums"] for c in result.series["cures"].values()) else [])


def _stalls(result: Result, style: str) -> tuple[str, Picture, str]:
    terms, ones, tenths = result.series["terms"], result.series["ones"], result.series["tenths"]
    stops = [f"{name} stops at {trail[-1]:g}" for name, trail in ones.items() if len(trail) < terms]
    finding = f"Adding 1 again and again: {listed([*stops[:1], *(s.replace('stops ', '') for s in stops[1:])])}"
    figure = new_picture(style, 0.56)
    left, right = figure.subplots(1, 2)
    for axes, series in ((left, ones), (right, tenths)):
        labels = []
        for name, trail in series.items():
            shape = look(name, tuple(ones))
            full = [*trail, *[trail[-1]] * (terms - len(trail))]
            axes.plot(range(1, terms + 1), full, color=shape.color, linestyle=shape.linestyle)
            if len(trail) < terms:
                axes.plot(len(trail), trail[-1], color=shape.color, marker=shape.marker, clip_on=False, zorder=5)
            labels.append((full[-1], f"{name}  {full[-1]:.4g}", shape.color))
        axes.set_xlim(1, terms)
        if axes is left:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.set_ylim(1, terms * 1.3)
            places = [8.0**k for k in range(int(math.log2(terms)) // 3 + 1)]
            ticks(axes.yaxis, places, [f"{p:.0f}" for p in places])
            axes.set_ylabel("sum")
        else:
            axes.set_ylim(0, None)
            places = [1.0, *(terms * k / 4 for k in (1, 2, 3, 4))]
        ticks(axes.xaxis, places, [f"{p:.0f}" for p in places])
        end_labels(axes, labels)
    left.set_title("adding 1 (both axes in powers of 2)", fontweight="normal")
    left.set_xlabel("how often 1 was added")
    right.set_title("adding 0.1", fontweight="normal")
    right.set_xlabel("how often 0.1 was added")
    if (bent := _bent(tenths.get("FP16", []))) is not None:
        at, step = bent
        right.annotate(
            f"in FP16 each 0.1\ncounts as {step:g} here", (at, tenths["FP16"][at]), (0.05, 0.78), color=BLUE,
            va="center", textcoords="axes fraction", arrowprops={"arrowstyle": "-", "color": BLUE, "shrinkB": 4},
        )  # fmt: skip
    headline(
        figure, finding, "In order; after each addition the sum is rounded to the format. A mark shows where it stops."
    )
    at_tenths = [f"{name} at {trail[-1]:.4g}" for name, trail in tenths.items() if len(trail) < terms]
    more = f" Adding 0.1 stops in {listed(at_tenths)}." if at_tenths else ""
    return "swamping", figure, f"{finding}. Two line charts of the running sum.{more}"


def _bent(trail: list[float]) -> tuple[int, float] | None:
    """The middle of the longest stretch in which a tenth counts as more than it is, and as how much."""
    steps = np.diff(trail)
    inside = np.flatnonzero(steps > 0.11)
    return (int(inside[len(inside) // 2]), float(steps[inside[len(inside) // 2]])) if len(inside) else None


def _cures(result: Result, style: str) -> tuple[str, Picture, str]:
    cures = {name: c for name, c in result.series["cures"].items() if c["sums"]}
    rows = [c for c in CURES if any(c in x["sums"] for x in cures.values())]
    edge = 1e-4  # what is smaller stands left of it, as exact
    figure = new_picture(style, 0.56)
    axes = figure.subplots()
    offsets = np.linspace(-0.32, 0.32, len(cures)) if len(cures) > 1 else [0.0]
    for offset, (name, data) in zip(offsets, cures.items(), strict=True):
        shape = look(name, tuple(cures))
        for y, cure in enumerate(rows):
            errors = [abs(s / data["exact"] - 1) for s in data["sums"].get(cure, [])]
            axes.plot(
                [max(e, edge * 0.3) for e in errors], [y + offset] * len(errors), color=shape.color, linestyle="none",
                marker=shape.marker, label=name if y == 0 else None, markeredgecolor="white", markeredgewidth=0.4,
            )  # fmt: skip
    for y in range(0, len(rows), 2):
        axes.axhspan(y - 0.5, y + 0.5, color=PALE, alpha=0.55, linewidth=0, zorder=0)
    axes.set_xscale("log")
    axes.set_xlim(edge * 0.17, 1.7)
    axes.axvline(edge * 0.6, color=GREY, linewidth=0.8, linestyle=":")
    ticks(axes.xaxis, [edge * 0.3, edge, 1e-3, 1e-2, 0.1, 1], ["exact", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"])
    ticks(axes.yaxis, range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("error of the sum")
    axes.legend(
        loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, ncols=len(cures), handletextpad=0.1,
        columnspacing=1.2,
    )  # fmt: skip
    name = "BF16" if "BF16" in cures else next(iter(cures))
    by_error: dict[str, list[str]] = {}
    for cure, sums in cures[name]["sums"].items():
        error = max(abs(s / cures[name]["exact"] - 1) for s in sums)
        size = percent(error) if error else "none"
        by_error.setdefault(f"up to {size}" if len(sums) > 1 and error else size, []).append(cure)
    finding = f"0.1 a thousand times in {name}, error: " + ", ".join(f"{listed(c)} {e}" for e, c in by_error.items())
    below = "Each mark is one sum; stochastic rounding was run several times. "
    headline(figure, finding, f"{below}The error is against the exact sum of the terms as they are stored.")
    return "swamping-cures", figure, f"{finding}. A chart of the errors of ways to add, for {listed(list(cures))}."


# --- casts -----------------------------------------------------------------------------------------------------------
def casts(result: Result, style: str = "page") -> Drawn:
    """Two roundings beside one on a number line; a map of who would differ where."""
    with settings(check_style(style)):
        row = next((r for r in result.series["famous"] if r[0] == "-431.99999999999994" and r[2] != r[3]), None)
        drawn = [_number_line(row, style)] if row and row[2] is not None else []
        return drawn + ([_map(result, style)] if result.series["counts"].get("fp64") else [])


def _number_line(row: list[str], style: str) -> tuple[str, Picture, str]:
    text, target, once, twice, _ = row
    name, size = get_format(target).title, type_size(style)
    figure = new_picture(style, 0.52)
    axes = figure.subplots()
    low, high, tie = -448.0, -416.0, -432.0
    axes.set_xlim(low - 4, high + 4)
    axes.set_ylim(-0.5, 3.6)
    axes.axis("off")
    start = tie + 1.3  # further from the tie than it is: the true distance would not be seen
    lanes = ((2.25, f"float64 to {name}", BLUE), (0.2, f"float64 to FP32 to {name}", VERMILLION))
    for y, way, color in lanes:
        axes.plot([low - 3, high + 3], [y, y], color=BLACK, linewidth=1)
        axes.plot([tie, tie], [y - 0.14, y + 0.14], color=GREY, linewidth=1.4, linestyle=":")
        axes.text(tie - 0.4, y - 0.2, "-432 is halfway", ha="right", va="top", color=GREY, fontsize=size * 0.9)
        axes.text(start - 0.6, y - 0.2, text, ha="left", va="top", fontsize=size * 0.9)
        for x in (low, high):
            axes.plot([x, x], [y - 0.14, y + 0.14], color=BLACK, linewidth=1.4)
            axes.text(
                x,
                y - 0.2,
                f"{x:g}",
                ha="center",
                va="top",
                fontweight="bold" if f"{x:g}" in (once, twice) else "normal",
            )
        axes.text(low - 3, y + 1.2, way, ha="left", va="center", color=ink(color), fontweight="bold")
        axes.plot(start, y, marker="o", color=color, zorder=5)
    arrow = {"arrowstyle": "-|>", "shrinkA": 3, "shrinkB": 3, "linewidth": size * 0.19}
    for tail, head, y, color, bend, words, place in (
        (start, high, 2.25, BLUE, -0.3, f"nearest: {once}", (start + high) / 2),
        (start, tie, 0.2, VERMILLION, 0.9, "1. to -432, a tie", tie + 4.6),
        (tie, low, 0.2, VERMILLION, 0.3, f"2. tie to the even code: {twice}", (low + tie) / 2),
    ):
        style_ = {**arrow, "color": color, "connectionstyle": f"arc3,rad={bend}"}
        axes.annotate("", (head, y), (tail, y), arrowprops=style_)
        height = 0.83 if abs(head - tail) > 5 else 0.42
        axes.text(place, y + height, words, ha="center", va="center", color=ink(color))
    finding = f"{text} in {name} is {once}; cast to FP32 first it becomes {twice}"
    headline(
        figure, finding, "The dot is drawn further from the halfway point than it lies: the true distance is 2⁻⁴⁴."
    )
    return (
        "casts-number-line",
        figure,
        f"{finding}. A number line from -448 to -416, drawn twice, with arrows for the roundings.",
    )


def _map(result: Result, style: str) -> tuple[str, Picture, str]:
    counts = result.series["counts"]["fp64"]
    rules = [r for r in result.series["rules"] if any(r in c for c in counts.values())]
    heads = {
        "twice": ("rounds\ntwice", "ml_dtypes,\ntorch"),
        "saturates": ("largest on\noverflow", "torch,\nfor E4M3"),
        "ties away": ("ties away\nfrom zero", "ml_dtypes,\ntorch: E8M0"),
        "flushes": ("flushes\nsubnormals", "JAX*"),
        "no -0": ("drops the\nsign of 0", "QPyTorch*,\nmptorch*"),
    }  # fmt: skip
    size = type_size(style)
    figure = new_picture(style, (len(counts) * 2.1 * size / 72 + 15 * size / 72) / width(style))
    axes = figure.subplots()
    blue_cells(axes, [[_cell(count, rule) for rule in rules] for count in counts.values()])
    for y, count in enumerate(counts.values()):
        axes.text(len(rules) - 0.4, y, f"of {count['inputs']}", ha="left", va="center", color=GREY)
    axes.set_xlim(-0.5, len(rules) + 0.3)
    axes.xaxis.tick_top()
    ticks(axes.xaxis, range(len(rules)), [heads[r][0] for r in rules])
    for x, rule in enumerate(rules):
        axes.text(x, len(counts) - 0.4, heads[rule][1], ha="center", va="top", color=GREY, fontsize=size * 0.85)
    axes.text(-0.6, len(counts) - 0.4, "so do", ha="right", va="top", color=GREY, fontsize=size * 0.85)
    ticks(axes.yaxis, range(len(counts)), list(counts))
    total = sum(c["inputs"] for c in counts.values())
    twice = sum(c.get("twice", 0) for c in counts.values())
    where = f"{total} FP64 numbers at the boundaries of {len(counts)} formats"
    finding = f"Of {where}, {twice} would come out wrong if all were rounded through FP32"
    below = (
        "How many results differ from one rounding to nearest-even (overflow to infinity or NaN) if a library does "
        "what stands above. The inputs are chosen to be hard: no rates in real data. *: measured elsewhere."
    )
    headline(figure, finding, below)
    return "casts-map", figure, f"{finding}. A table of counts: formats down, five ways to differ across."


def _cell(count: Mapping[str, int], rule: str) -> tuple[float, str]:
    """Light where few differ, dark where many do; the numbers say it exactly."""
    share = count.get(rule, 0) / count["inputs"]
    depth = min(1.0, 0.15 + 0.85 * math.sqrt(share / 0.15)) if share else 0.0
    return depth, str(count.get(rule, "-"))
