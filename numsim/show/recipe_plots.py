"""Pictures of FP8 recipes: a scale that lags behind its tensor, and what each recipe loses of real tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from numsim.experiments.experiment import Result, listed, percent
from numsim.show.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
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
)
from numsim.show.trace_plots import amax_lines

Drawn = list[tuple[str, Picture, str]]


# --- delayed scaling -------------------------------------------------------------------------------------------------
def delayed_scaling(result: Result, style: str = "page") -> Drawn:
    """The limit that lags behind the amax; how often real amaxes clip, by the length of the history."""
    with settings(check_style(style)):
        return [_lag(result, style), _lengths(result, style)] if result.series["story"] else []


def _lag(result: Result, style: str) -> tuple[str, Picture, str]:
    story = {what: int(step) for step, what in reversed(result.series["story"].items())}  # the first of a name
    zeros, size = result.series["zeros"], type_size(style)
    figure = new_picture(style, 0.8 if zeros else 0.62)
    ratios = [0.01, 3, 3, 1.5] if zeros else [0.01, 3, 3]
    keys, *panels = figure.subplots(len(ratios), 1, height_ratios=ratios, sharex=True)
    keys.set_axis_off()
    high = max(np.log2(t["clip limit"]).max() for t in result.traces.values())
    low = min(np.log2(t["amax"]).min() for t in result.traces.values())
    part = (high - low) / 10
    infinite = high + 2 * part  # above all numbers, at a tick of its own
    for axes, (name, trace) in zip(panels, result.traces.items(), strict=False):
        amax_lines(axes, trace, infinite, size)
        title = f"scale by the {name}{'' if name.startswith('max') else ' amax'}"
        axes.set_title(title, fontweight="normal", fontsize=size)
    top = panels[0]
    top.sharey(panels[1])
    top.set_ylim(low - 2.6 * part, high + 5.2 * part)
    for what in ("growth", "spike", "infinity"):
        top.annotate(what, (story[what], high + 4 * part), ha="center", va="center")
    long = next(iter(result.traces.values()))
    frozen = long.happened("frozen")
    y = float(np.log2(long["amax"][-1])) - 0.8 * part
    top.annotate("", (frozen[0], y), (frozen[-1] + 1, y), arrowprops={"arrowstyle": "<->", "color": ink(VERMILLION)})
    middle, words = (frozen[0] + frozen[-1] + 1) / 2, f"frozen, {_updates(len(frozen))}"
    top.text(middle, y - 0.3 * part, words, ha="center", va="top", color=ink(VERMILLION))
    for axes in panels[:2]:
        places = range(0, int(high) + 1, 4 if high < 16 else 8)
        ticks(axes.yaxis, [*places, infinite], [*map(power, places), "inf"])
    panels[0].set_ylabel("magnitude")
    panels[1].set_ylabel("magnitude")
    if zeros:
        for (name, share), (color, dash) in zip(zeros.items(), ((BLACK, "-"), (ORANGE, "--")), strict=True):
            panels[2].step(
                range(len(share)), 100 * np.array(share), where="mid", color=color, linestyle=dash, label=name
            )
        panels[2].set_ylim(0, 150)
        ticks(panels[2].yaxis, [0, 50, 100], ["0 %", "50 %", "100 %"])
        panels[2].set_ylabel("zeros")
        panels[2].legend(loc="upper right", frameon=False, ncols=2, borderaxespad=0)
    panels[-1].set_xlabel("step")
    panels[-1].set_xlim(-1, len(long))
    handles, labels = panels[0].get_legend_handles_labels()
    keys.legend(handles, labels, loc="center left", ncols=3, frameon=False, borderaxespad=0, bbox_to_anchor=(0, 0.5))
    name, other = result.traces
    grows = "; growth clips both" if set(_growing(result)) & set(long.happened("clipped")) else ""
    finding = (
        f"One infinity keeps the scale for {_updates(len(frozen))} with the {name}, for "
        f"{len(result.traces[other].happened('frozen'))} with the most recent amax{grows}"
    )
    below = (
        "E4M3. Limit: 448 / scale, which is made from the steps before; zeros: what becomes 0. Real gradients, times a "
        "made-up amax."
    )
    headline(figure, finding, below)
    clips = [f"{len(t.happened('clipped'))} with the {n}" for n, t in result.traces.items()]
    alt = (
        f"{finding}. Line charts over {len(long)} steps of the amax and of the largest magnitude that the scale leaves "
        f"room for; steps that clip, the infinite one included: {listed(clips)}."
    )
    return "delayed-scaling", figure, alt


def _updates(n: int) -> str:
    return "1 update" if n == 1 else f"{n} updates"


def _growing(result: Result) -> range:
    """The steps while the amax grows."""
    steps = {what: int(step) for step, what in result.series["story"].items()}
    return range(steps["growth"], steps["grown"])


def _lengths(result: Result, style: str) -> tuple[str, Picture, str]:
    sweep, updates, size = result.series["sweep"], result.series["updates"], type_size(style)
    names, ways = list(next(iter(sweep.values()))), list(sweep)
    elements = {"input": "E4M3", "weight": "E4M3", "grad_output": "E5M2"}
    figure = new_picture(style, 0.42)
    panels = figure.subplots(1, len(names), sharey=True, sharex=True)
    most = max(fits[n][0] for fits in sweep.values() for n in names) / updates
    for axes, name in zip(panels, names, strict=True):
        for y, way in enumerate(ways):
            clips, room, _ = sweep[way][name]
            axes.barh(y, clips / updates, height=0.6, color=VERMILLION, hatch="////", edgecolor="white", linewidth=0.5)
            more = "" if room is None else f", room {room:g}"
            axes.text(clips / updates + 0.02 * most, y, f"{clips}{more}", va="center", ha="left", fontsize=size * 0.9)
        axes.set_title(f"{name}, {elements[name]}", fontweight="normal")
        axes.set_xlim(0, 1.75 * most)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        places = [p for p in (0, 0.2, 0.4, 0.6, 0.8, 1) if p <= 1.2 * most]
        ticks(axes.xaxis, places, [f"{100 * p:.0f} %" for p in places])
    ticks(panels[0].yaxis, range(len(ways)), ways)
    panels[0].set_ylim(len(ways) - 0.4, -0.6)
    panels[1].set_xlabel("of the steps clip")
    first, last = ways[0], ways[-1]
    shares = [percent(sweep[way]["grad_output"][0] / updates) for way in (first, last)]
    finding = f"Real gradients clip in {shares[0]} of the steps with the {first} amax, in {shares[1]} with the {last}"
    below = (
        f"{updates} updates of one small network, one layer. Beside the bars: steps that clip, and by how many binades "
        "the limit lies above the amax on average."
    )
    headline(figure, finding, below)
    each = [f"{n} {listed([f'{sweep[w][n][0]} by {w}' for w in ways])}" for n in names]
    return "delayed-scaling-lengths", figure, f"{finding}. Bar charts of the steps that clip: {'; '.join(each)}."


# --- recipes ---------------------------------------------------------------------------------------------------------
def recipes(result: Result, style: str = "page") -> Drawn:
    """The noise and the zeros that each recipe makes of real tensors, with and without an outlier."""
    with settings(check_style(style)):
        return [_recipes(result, style)] if result.series["recipes"] else []


def _recipes(result: Result, style: str) -> tuple[str, Picture, str]:
    series, size = result.series, type_size(style)
    names, plain, planted = series["recipes"], series["plain"], series["planted"]
    times = f"{series['outlier']:g} times as large"
    figure = new_picture(style, min(0.28 + 0.034 * len(names), 0.8))
    keys, (noise, zero, kept) = _grid(figure)
    for y, name in enumerate(names):
        for axes in (noise, zero, kept):
            if y % 2:
                axes.axhspan(y - 0.5, y + 0.5, color=PALE, alpha=0.5, linewidth=0, zorder=0)
        grad, with_outlier = plain[name]["grad_output"], planted[name]["grad_output"]
        levels = [with_outlier["noise"], grad["noise"]]
        noise.plot(levels, [y, y], color=GREY, linewidth=size * 0.08, zorder=1)
        for what, x in (("input", plain[name]["input"]["noise"]), ("gradient", levels[1]), ("outlier", levels[0])):
            noise.plot(x, y, linestyle="none", markersize=size * 0.62, **_MARKS[what])
        for up, share, color, hatch in (
            (-0.19, grad["zero"], BLUE, ""), (0.19, with_outlier["zero"], ORANGE, "////"),
        ):  # fmt: skip
            zero.barh(y + up, share, height=0.36, color=color, hatch=hatch, edgecolor="white", linewidth=0.3)
        most = max(grad["zero"], with_outlier["zero"])
        if most > 0.01:
            zero.text(most + 0.02, y, f"{percent(grad['zero'])}, {percent(with_outlier['zero'])}", va="center",
                      fontsize=size * 0.85)  # fmt: skip
        x = with_outlier["outlier"]
        lost = abs(x - 1) > 0.5
        kept.text(0.5, y, f"{x:.2g} x", ha="center", va="center", fontsize=size * 0.9,
                  color=ink(VERMILLION) if lost else BLACK, fontweight="bold" if lost else "normal")  # fmt: skip
    noise.set_title("signal to noise, dB", fontweight="normal")
    zero.set_title("gradients that become 0", fontweight="normal")
    kept.set_title("outlier", fontweight="normal")
    ticks(noise.yaxis, range(len(names)), names)
    noise.set_ylim(len(names) - 0.5, -0.5)
    largest = max(p[n]["grad_output"]["zero"] for p in (plain, planted) for n in names)
    zero.set_xlim(0, max(1.9 * largest, 0.1))
    ticks(zero.xaxis, places := [p for p in (0, 0.25, 0.5, 0.75, 1) if p <= zero.get_xlim()[1]],
          [f"{100 * p:.0f} %" for p in places])  # fmt: skip
    ticks(kept.xaxis, [], [])
    kept.set_xlim(0, 1)
    for axes in (noise, zero, kept):
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    kept.spines["bottom"].set_visible(False)
    labels = {"input": "input", "gradient": "gradient", "outlier": f"gradient beside an outlier, {times}"}
    for what, label in labels.items():
        keys.plot([], [], linestyle="none", markersize=size * 0.62, label=label, **_MARKS[what])
    keys.legend(loc="center left", ncols=3, frameon=False, borderaxespad=0, handletextpad=0.4, columnspacing=1.4,
                bbox_to_anchor=(0, 0.5))  # fmt: skip
    finding = _finding(result)
    below = (
        f"A linear layer of one small network, gradients of step {series['step']}. Right of the bars: without and "
        "with the outlier, which is left out of shares and noise. Outlier: what becomes of it, as a part of itself."
    )
    headline(figure, finding, below)
    each = [
        f"{n} {percent(plain[n]['grad_output']['zero'])}, {percent(planted[n]['grad_output']['zero'])}" for n in names
    ]
    alt = (
        f"{finding}. For each recipe the signal to noise ratio of input and gradient, and the share of the gradients "
        f"that becomes 0 without and with an outlier: {'; '.join(each)}."
    )
    return "recipes", figure, alt


_MARKS: dict[str, dict[str, Any]] = {
    "input": {"marker": "o", "color": GREEN, "fillstyle": "none"},
    "gradient": {"marker": "^", "color": BLUE},
    "outlier": {"marker": "X", "color": ORANGE, "zorder": 4},
}


def _grid(figure: Picture) -> tuple[Any, list[Any]]:
    """A row for the legend, and three panels that share their rows."""
    spec = figure.add_gridspec(2, 3, height_ratios=[0.03, 1], width_ratios=[4, 4, 1.2])
    keys = figure.add_subplot(spec[0, :])
    keys.set_axis_off()
    panels: list[Any] = []
    for i in range(3):
        panels.append(figure.add_subplot(spec[1, i], sharey=panels[0] if panels else None))
        panels[-1].tick_params(labelleft=i == 0)
    return keys, panels


def _finding(result: Result) -> str:
    """The contenders of the question, where all were answered."""
    three = result.series["contenders"]
    if {"E4M3", "E5M2"} <= set(three) and three["E4M3"]["zero"] > three["E5M2"]["zero"]:
        e4m3, e5m2 = three["E4M3"], three["E5M2"]
        less = "smaller" if e4m3["noise"] > e5m2["noise"] else "larger"
        return (
            f"With one scale for the tensor, E4M3 makes {percent(e4m3['zero'])} of the gradients 0 and E5M2 "
            f"{percent(e5m2['zero'])}; yet the error of E4M3 is the {less}"
        )
    return "What recipes lose of real gradients"
