"""Pictures of gradients and of weights in training; see ``plots`` for how they are made."""

from __future__ import annotations

import math

import numpy as np

from numsim.experiments.experiment import Result, listed, percent
from numsim.experiments.underflow import sentence
from numsim.formats import get_format
from numsim.show.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    SUPERSCRIPT,
    VERMILLION,
    Picture,
    check_style,
    end_labels,
    headline,
    ink,
    look,
    new_picture,
    power,
    settings,
    ticks,
    type_size,
)
from numsim.show.update_plots import lost_updates

Drawn = list[tuple[str, Picture, str]]


# --- underflow -------------------------------------------------------------------------------------------------------
_FATES = {
    "zero": (VERMILLION, "////"),
    "subnormal": (SKY, "\\\\\\\\"),
    "normal": (BLUE, ""),
    "overflow": (PURPLE, "xxxx"),
}


def underflow(result: Result, style: str = "page") -> Drawn:
    """How gradients lie in a format's range at each step; what each loss scale loses."""
    with settings(check_style(style)):
        if not result.series["fates"]:
            return []
        return [_histograms(result, style), _loss_scales(result, style)]


def _histograms(result: Result, style: str) -> tuple[str, Picture, str]:
    series, kind = result.series, "activation-gradient"
    name = "fp16" if "fp16" in series["zero_at_scale_1"] else next(iter(series["zero_at_scale_1"]))
    format, binades = get_format(name), np.array(series["binades"])
    edges = {"zero": format.emin - format.fraction_bits - 1, "subnormal": format.emin, "normal": format.emax + 1}
    shown = np.flatnonzero((binades >= -56) & (binades < 24))
    left, right = -56, 24
    figure = new_picture(style, 0.82)
    grid = figure.subplots(len(series["steps"]), 2, sharex="col", sharey="col", width_ratios=[1, 13])
    for (bar, axes), step in zip(grid, series["steps"], strict=True):
        counts = np.array(series["counts"][kind][str(step)], float)
        share = 100 * counts / counts.sum()
        share[shown[0]] += share[: shown[0]].sum()  # what lies further left stands in the first bar
        fate = [next((f for f, edge in edges.items() if b < edge), "overflow") for b in binades]
        for f, (color, hatch) in _FATES.items():
            here = [i for i in shown if fate[i] == f and share[i] > 0.001]
            axes.bar(
                binades[here] + 0.5, share[here], width=1.0, color=color, hatch=hatch, edgecolor="white", linewidth=0.5,
            )  # fmt: skip
            start = max(
                left, {"zero": left, "subnormal": edges["zero"], "normal": edges["subnormal"]}.get(f, edges["normal"])
            )
            stop = min(right, edges.get(f, right))
            axes.axvspan(start, stop, color=color, alpha=0.10, linewidth=0, zorder=0)
            if axes is grid[0][1] and stop - start > 1:
                text = f if f != "zero" else "become zero"
                axes.text(
                    (start + stop) / 2, 1.03, text, transform=axes.get_xaxis_transform(), ha="center", va="bottom"
                )
        zero = series["zero_at_scale_1"][name][kind][str(step)]
        axes.text(
            min(edges["normal"], right) - 0.7, 0.9, f"step {step}\n{percent(zero)} become zero", ha="right", va="top",
            transform=axes.get_xaxis_transform(),
            fontweight="bold" if step == series["step"] else "normal",
        )  # fmt: skip
        zeros = series["zeros_in_fp32"][kind][str(step)]
        exact = 100 * zeros / (zeros + counts.sum())
        bar.bar([0], [exact], width=0.8, color=GREY)
        bar.text(0, exact + 3, f"{exact:.0f} %", ha="center", va="bottom")
        for a in (bar, axes):
            a.spines["left"].set_visible(False)
            a.tick_params(axis="y", length=0, labelleft=a is axes)
    bar, axes = grid[-1]
    axes.set_xlim(left, right)
    axes.set_ylim(0, None)
    ticks(axes.yaxis, [10], ["10 %"])
    bar.set_xlim(-0.7, 0.7)
    bar.set_ylim(0, 100)
    ticks(bar.xaxis, [0], ["zeros"])
    ticks(bar.yaxis, [], [])
    places = [p for p in sorted({-56, -48, -40, -32, *edges.values(), 0}) if left <= p <= right]
    ticks(axes.xaxis, places, [power(p) for p in places])
    axes.set_xlabel(f"size of the gradient; the bands are the ranges of {format.title}")
    main = sentence(
        series["zero_at_scale_1"][name][kind][str(series["step"])], "activation gradient", series["step"], format.title
    )
    below = (
        "Bars: share of the non-zero gradients in each power of two, counted exactly. Grey: share of all gradients "
        f"that are exactly zero in FP32 already. Loss: {series['loss_reduction']} of {series['batch_size']} images; "
        "FP32 training."
    )
    headline(figure, main, below)
    course = [f"{percent(series['zero_at_scale_1'][name][kind][str(s)])} at step {s}" for s in series["steps"]]
    alt = (
        f"{main}. Histograms of log2 of the gradients over the ranges of {format.title}: zero become {listed(course)}."
    )
    return "underflow", figure, alt


def _loss_scales(result: Result, style: str) -> tuple[str, Picture, str]:
    series, scales = result.series, np.array(result.series["scales"])
    names, last = list(series["fates"]), int(scales[-1])
    titles = tuple(get_format(n).title for n in names)
    safe = {name: series["without_overflow"][name] for name in names}
    kinds, size = ("activation-gradient", "weight-gradient"), type_size(style)
    figure = new_picture(style, 0.68)
    grid = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=[3.6, 1.5])
    # where curves coincide the one drawn later is thinner, and their marks stand at different scales
    order = sorted(names, key=lambda n: sum(series["fates"][n][kinds[0]][0][::2]))
    place = {name: i for i, name in enumerate([order[0], *reversed(order[1:])])}
    for column, kind in enumerate(kinds):
        top, low = grid[0][column], grid[1][column]
        for name in sorted(names, key=place.__getitem__):
            shape, fates, i = (
                look(get_format(name).title, titles),
                100 * np.array(series["fates"][name][kind]),
                place[name],
            )
            wide = size * max(0.42 - 0.09 * i, 0.13)
            for share, line, fill, first in ((fates[:, 0], "-", "full", i), (fates[:, 2], ":", "none", i + 2)):
                shown = share > (0.02 if line == ":" else -1)
                top.plot(scales[shown], share[shown], color=shape.color, linestyle=line, linewidth=wide)
                marked = (scales % 4 == first % 4) & (shown if line == "-" else share > 1)
                marks = {"marker": shape.marker, "linestyle": "none", "fillstyle": fill}
                top.plot(scales[marked], share[marked], color=shape.color, zorder=4, **marks)
        for y, (name, title) in enumerate(zip(names, titles, strict=True)):
            shape, end = look(title, titles), min(safe[name], last)
            if end < 0:
                continue
            low.barh(y, end + 0.8, left=-0.4, height=0.62, color=shape.color)
            gone = percent(series["fates"][name][kind][end][0])
            inside = end > 0.6 * last and safe[name] > last
            low.text(
                end / 2 if inside else end + 0.9, y, gone, va="center_baseline", ha="center" if inside else "left",
                color="white" if inside else ink(shape.color), fontsize=size * 0.85,
                fontweight="bold" if inside else "normal",
            )  # fmt: skip
        top.set_title(kind.replace("-", " ") + "s", fontweight="normal")
        top.set_ylim(-3, 103)
        low.set_ylim(len(names) - 0.4, -0.6)
        low.set_xlim(-0.8, last + 0.8)
        low.spines["left"].set_visible(False)
        low.tick_params(axis="y", length=0)
        ticks(low.xaxis, places := range(0, last + 1, 8 if last > 8 else 2), [power(p) for p in places])
        low.set_xlabel("loss scale")
    for title in titles:
        shape = look(title, titles)
        grid[0][1].plot([], [], color=shape.color, marker=shape.marker, label=title)
    grid[0][1].plot([], [], color=GREY, label="become zero")
    grid[0][1].plot([], [], color=GREY, linestyle=":", marker="o", fillstyle="none", label="overflow")
    grid[0][1].legend(loc="upper left", bbox_to_anchor=(0.1, 1.04), frameon=False, handlelength=2.4)
    ticks(grid[1][0].yaxis, range(len(names)), titles)
    grid[1][1].tick_params(axis="y", labelleft=False)
    ticks(grid[0][0].yaxis, [0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    grid[0][0].set_ylabel("of the non-zero gradients")
    grid[1][0].set_title("no gradient of either kind overflows here", fontweight="normal", fontsize=size * 0.9)
    for label, title in zip(grid[1][0].get_yticklabels(), titles, strict=True):
        label.set_color(ink(look(title, titles).color))
    said = []
    for name, title in zip(names, titles, strict=True):
        if safe[name] >= 0:
            lost = series["fates"][name][kinds[0]][min(safe[name], last)][0]
            said.append(f"{title} {percent(lost) if lost >= 5e-6 else 'none'}")
    finding = f"Activation gradients lost at the largest loss scale without overflow: {', '.join(said)}"
    below = (
        f"Step {series['step']}. Bars: one loss scale multiplies both kinds, and a scaler skips the whole step at a "
        "single overflow. Beside each bar: what becomes zero at its end."
    )
    headline(figure, finding, below)
    return (
        "underflow-loss-scale",
        figure,
        f"{finding}. Line charts of the share that becomes zero or overflows, by loss scale.",
    )


# --- master weights --------------------------------------------------------------------------------------------------
def master_weights(result: Result, style: str = "page") -> Drawn:
    """Weights that get small updates; what is lost of real gradients and weights, by ratio, and in a training."""
    with settings(check_style(style)):
        drawn = [_weights(result, style)] if any(any(p) for p in result.series["paths"].values()) else []
        both = result.series["zero_gradients"] and result.series["standing_still"]
        return [*drawn, *([_gradients_and_updates(result, style)] if both else []), *lost_updates(result, style)]


def _weights(result: Result, style: str) -> tuple[str, Picture, str]:
    series = result.series
    names, updates, steps = tuple(series["paths"]), series["updates"], series["steps"]
    figure = new_picture(style, 0.56 if len(updates) < 3 else 1.0)
    every = figure.subplots(math.ceil(len(updates) / 2), min(len(updates), 2), squeeze=False).ravel()
    said = []
    for k, (axes, update) in enumerate(zip(every, updates, strict=False)):
        labels, drawn = [], []
        plain = {n: series["paths"][n][k]["plain"] for n in names if "plain" in series["paths"][n][k]}
        cured = next((n for n in names if "FP32 master" in series["paths"][n][k]), None)
        if cured is not None:
            path = series["paths"][cured][k]
            if "stochastic" in path:
                low, high = path["stochastic, low"], path["stochastic, high"]
                drawn.append(high)
                axes.fill_between(range(steps + 1), low, high, color=ORANGE, alpha=0.3, linewidth=0)
                axes.plot(path["stochastic"], color=ORANGE, linestyle="-.")
                labels.append((path["stochastic"][-1], "stochastic", ORANGE))
            if "Kahan" in path:
                axes.plot(path["Kahan"], color=PURPLE, linestyle=":")
                labels.append((path["Kahan"][-1], "Kahan", PURPLE))
            axes.plot(path["FP32 master"], color=BLACK, linewidth=type_size(style) * 0.1)
            labels.append((path["FP32 master"][-1], "FP32 master", BLACK))
        drawn += plain.values()
        for i, (name, path) in enumerate(plain.items()):  # where lines coincide the later one is thinner
            shape, thin = look(name, names), 0.6 ** min(i, 2)
            axes.plot(path, color=shape.color, linestyle=shape.linestyle, linewidth=type_size(style) * 0.28 * thin)
            axes.plot(
                steps, path[-1], color=shape.color, marker=shape.marker, markersize=type_size(style) * 0.8 * thin,
                clip_on=False, zorder=5,
            )  # fmt: skip
            labels.append((path[-1], f"{name} plain", shape.color))
        cures = f"; cures in {cured}" if cured is not None else ""
        axes.set_title(f"updates of {update:g}{cures}", fontweight="normal")
        axes.set_xlim(0, steps)
        top = max([1.25 * steps * update, *(1.04 * (max(y) - 1) for y in drawn)])  # room for labels below the title
        axes.set_ylim(1 - 0.08 * steps * update, 1 + top)
        axes.set_xlabel("updates")
        end_labels(axes, labels)
        still = [name for name, path in plain.items() if path[-1] == 1.0]
        moved = [f"{name} reaches {path[-1]:.4g}" for name, path in plain.items() if path[-1] != 1.0]
        parts = ([f"{listed(still)} {'stays' if len(still) == 1 else 'stay'} at 1"] if still else []) + moved
        if parts:
            said.append(f"updates of {update:g}: {', '.join(parts)}")
    for axes in every[len(updates) :]:
        axes.set_visible(False)
    every[0].set_ylabel("the weight, at first 1")
    finding = f"A weight of 1 after {steps} " + "; ".join(reversed(said))
    below = "Plain: stored in 16 bits, rounded to nearest after each update. Band: 80 % of the stochastic runs."
    headline(figure, finding, below)
    return (
        "master-weights",
        figure,
        f"{finding}. Line charts of the weight over the updates, plain and with three cures.",
    )


def _gradients_and_updates(result: Result, style: str) -> tuple[str, Picture, str]:
    series = result.series
    names = tuple(series["zero_gradients"])
    figure = new_picture(style, 0.56)
    figure.set_layout_engine("constrained", w_pad=0.12)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, x, curves in (
        (left, [2.0**k for k in series["scales"]], series["zero_gradients"]),
        (right, series["sizes"], series["standing_still"]),
    ):
        for name, shares in curves.items():
            shape = look(name, names)
            axes.plot(x, 100 * np.array(shares), color=shape.color, linestyle=shape.linestyle)
            axes.plot(
                x[::4],
                100 * np.array(shares[::4]),
                color=shape.color,
                marker=shape.marker,
                linestyle="none",
                label=name,
                clip_on=False,
                zorder=4,
            )
        axes.set_xlim(x[0], x[-1])
    left.set_xscale("log", base=2)
    right.set_xscale("log")
    places = [0, 8, 16, 24]
    ticks(left.xaxis, [2.0**k for k in places], [power(k) for k in places])
    places = [-8, -7, -6, -5, -4, -3, -2]
    ticks(right.xaxis, [10.0**k for k in places], [f"10{str(k).translate(SUPERSCRIPT)}" for k in places])
    left.set_ylim(-2, 102)
    ticks(left.yaxis, [0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    left.set_title("gradients that become zero", fontweight="normal")
    right.set_title("weights that one update does not move", fontweight="normal")
    left.set_xlabel("loss scale")
    right.set_xlabel("size of the update")
    right.legend(loc="upper right", frameon=False)
    gone = {name: shares[0] for name, shares in series["zero_gradients"].items()}
    at = min(range(len(series["sizes"])), key=lambda i: abs(series["sizes"][i] - 1e-4))
    unmoved = {name: series["standing_still"][name][at] for name in names if name in series["standing_still"]}
    first = ", ".join(f"{name} {percent(x)}" for name, x in gone.items())
    second = ", ".join(f"{name} {percent(x)}" for name, x in unmoved.items())
    small = {"FP16", "BF16"} <= set(gone) and gone["FP16"] > gone["BF16"] and unmoved["BF16"] > unmoved["FP16"]
    opening = "Gradients and updates that are lost"
    if small:
        times = 2 ** (series["limits"]["BF16"][1] - series["limits"]["FP16"][1])
        opening = f"FP16 loses small gradients; BF16 loses updates up to {times} times as large as FP16 does"
    below = (
        f"Left: real activation gradients cast to the format; at loss scale 1: {first}. Right: real weights minus an "
        f"update, rounded; at an update of 0.0001: {second}."
    )
    headline(figure, opening, below)
    alt = f"{opening}: gradients that become zero: {first}; weights that an update of 0.0001 does not move: {second}."
    return "gradients-and-updates", figure, alt
