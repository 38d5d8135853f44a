"""Pictures of updates: lost ones, gradients that add up, Adam's second moment, clipping; see ``plots``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numsim.experiments.accumulation import longer
from numsim.experiments.block_units import power as power_of
from numsim.experiments.experiment import Result, cell, listed, percent
from numsim.show.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SUPERSCRIPT,
    VERMILLION,
    Look,
    Picture,
    check_style,
    end_labels,
    headline,
    look,
    new_picture,
    power,
    settings,
    ticks,
    type_size,
)

Drawn = list[tuple[str, Picture, str]]


# --- master-weights --------------------------------------------------------------------------------------------------
def lost_updates(result: Result, style: str = "page") -> Drawn:
    """Updates that are lost, by their ratio to the weight; a network that learns in each format at three rates."""
    drawn = [_by_ratio(result, style)] if result.series["lost_by_ratio"] else []
    return drawn + ([_digits(result, style)] if result.traces else [])


def _by_ratio(result: Result, style: str) -> tuple[str, Picture, str]:
    ratios, curves = np.array(result.series["ratios"]), result.series["lost_by_ratio"]
    names = tuple(curves)
    figure = new_picture(style, 0.5)
    axes = figure.subplots()
    said, places = [], {-16, -14, -4, -2}
    for name, shares in curves.items():
        shape, y = look(name, names), 100 * np.array(shares)
        axes.plot(ratios, y, color=shape.color, linestyle=shape.linestyle)
        axes.plot(ratios[::4], y[::4], color=shape.color, marker=shape.marker, linestyle="none", label=name, zorder=4)
        whole, some = (math.log2(ratios[here].max()) for here in (y == 100, y > 0))
        places |= {round(whole), round(some)}
        said.append(f"{name} loses all up to {power(round(whole))} of the weight, and none above {power(round(some))}")
    axes.set_xscale("log", base=2)
    ticks(axes.xaxis, [2.0**p for p in sorted(places)], [power(p) for p in sorted(places)])
    axes.set_xlim(ratios[0], ratios[-1])
    axes.set_ylim(-3, 103)
    ticks(axes.yaxis, [0, 50, 100], ["0 %", "50 %", "100 %"])
    axes.set_xlabel("update, as a part of the weight")
    axes.set_ylabel("updates lost")
    axes.legend(loc="upper right", frameon=False, handlelength=3)
    finding = f"Updates: {'; '.join(said)}"
    below = "All weights of one power of two (at most 1024), each with an update upwards and one downwards."
    headline(figure, finding, below)
    return "lost-updates", figure, f"{finding}. Line chart of the share of updates that are lost, by their ratio."


def _digits(result: Result, style: str) -> tuple[str, Picture, str]:
    size, rates = type_size(style), result.series["rates"]
    formats = tuple(result.series["lost_by_ratio"])
    figure = new_picture(style, 0.56)
    panels = figure.subplots(1, len(rates), sharey=True)
    cures = {"stochastic": (ORANGE, "-."), "Kahan": (PURPLE, ":")}
    said: dict[float, list[str]] = {}
    for axes, rate in zip(panels, rates, strict=True):
        lost, names = [], ("FP32", *formats)
        for i, name in enumerate(sorted(names, key=lambda n: (n != "FP32", n))):  # the later one is thinner
            trace, shape = result.traces[f"{name}, lr {rate:g}"], look(name, names)
            axes.plot(trace.steps, trace["loss"], color=shape.color, linestyle=shape.linestyle,
                      linewidth=size * (0.36 - 0.08 * min(i, 2)), label=name)  # fmt: skip
            axes.plot(trace.steps[-1:], trace["loss"][-1:], color=shape.color, marker=shape.marker, clip_on=False,
                      markersize=size * (0.8 - 0.15 * min(i, 2)), zorder=5 + i)  # fmt: skip
            if name in formats:
                lost.append(f"{name} {percent(float(trace['lost size'].mean()))}")
        for cure, (color, line) in cures.items():
            for key in [k for k in result.traces if k.endswith(f"{cure}, lr {rate:g}")]:
                trace = result.traces[key]
                axes.plot(trace.steps, trace["loss"], color=color, linestyle=line, label=key.partition(", lr")[0])
        said[rate] = lost
        text = f"lost: {', '.join(lost)}"
        text = text if len(text) <= 30 else text.replace(", ", ",\n")
        axes.set_title(f"learning rate {rate:g}\n{text}", fontweight="normal", fontsize=size * 0.9)
        axes.set_xlabel("step")
    panels[0].set_ylabel("loss")
    panels[0].set_ylim(bottom=0)
    handles = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    panels[0].legend(handles.values(), handles, loc="lower left", frameon=False, handlelength=3)
    finding = f"Updates that a network on the digits loses at a learning rate of {rates[1]:g}: {listed(said[rates[1]])}"
    below = (
        f"Adam, {result.parameters['training_steps']} steps; only the weights are stored in the format. Lost: "
        "the share of the sum of all magnitudes. Steps of stochastic rounding are right on average."
    )
    headline(figure, finding, below)
    rest = "; ".join(f"at {r:g}: {listed(x)}" for r, x in said.items() if r != rates[1])
    return "digits-in-16-bits", figure, f"{finding}; {rest}. Line charts of the loss over the steps, for each format."


# --- accumulation ----------------------------------------------------------------------------------------------------
def accumulation(result: Result, style: str = "page") -> Drawn:
    """.grad over the micro-batches; steps without the division, by the size of the gradient."""
    with settings(check_style(style)):
        return [_grad(result, style), _forgotten_division(result, style)] if result.traces else []


def _grad(result: Result, style: str) -> tuple[str, Picture, str]:
    series, trace, size = result.series, result.traces["grad"], type_size(style)
    names, count = tuple(trace.series), series["count"]
    figure = new_picture(style, 0.5)
    axes = figure.subplots()
    exact = trace.steps * series["gradient"]
    axes.plot(trace.steps, exact, color=PALE, linewidth=size * 0.5)
    labels, said = [(float(exact[-1]), "exact", GREY)], []
    for name in names:
        shape, y, stall = look(name, names), trace[name], series["stalls"][name]
        axes.plot(trace.steps, y, color=shape.color, linestyle=shape.linestyle)
        axes.plot(trace.steps[-1], y[-1], color=shape.color, marker=shape.marker, clip_on=False, zorder=5)
        labels.append((float(y[-1]), name, shape.color))
        value = cell(float(y[-1]), 4)
        said.append(f"{name} {f'stands at {value} from micro-batch {stall} on' if stall else f'holds {value}'}")
    axes.set_xlim(0, count)
    axes.set_ylim(0, 1.06 * float(max(exact[-1], *(trace[name].max() for name in names))))
    axes.set_xlabel("micro-batches")
    axes.set_ylabel(".grad")
    end_labels(axes, labels)
    finding = f"{count} gradients of {series['gradient']:g}: {'; '.join(said)}"
    below = "Each gradient is added to a .grad of the format, in index order, and the sum is rounded every time."
    headline(figure, finding, below)
    alt = f"{finding}. Line chart of .grad over the micro-batches, beside the exact sum {cell(float(exact[-1]), 4)}."
    return "accumulation", figure, alt


_STEPS = (Look(BLUE, "-", "o"), Look(VERMILLION, "--", "s"))


def _forgotten_division(result: Result, style: str) -> tuple[str, Picture, str]:
    series, sizes = result.series, result.series["sizes"]
    figure = new_picture(style, 0.5)
    axes = figure.subplots()
    labels = []
    for (name, factors), shape in zip(series["factors"].items(), _STEPS, strict=True):
        axes.plot(sizes, factors, color=shape.color, linestyle=shape.linestyle, marker=shape.marker, clip_on=False)
        labels.append((factors[-1], name, shape.color))
    axes.set_xscale("log")
    places = list(range(-12, 0, 2))
    ticks(axes.xaxis, [10.0**k for k in places], [f"10{str(k).translate(SUPERSCRIPT)}" for k in places])
    axes.set_xlim(sizes[0], sizes[-1])
    axes.set_ylim(0, 1.1 * series["divisor"])
    axes.set_xlabel("size of the gradient (AdamW's eps is 10⁻⁸)")
    axes.set_ylabel("times the right step")
    end_labels(axes, labels)
    sgd, adamw = (x[sizes.index(1e-2)] for x in series["factors"].values())
    finding = (
        f"Without the division by {series['divisor']} SGD's step is {longer(sgd)}, and AdamW's {longer(adamw)}, until "
        "gradients are as small as its eps"
    )
    headline(
        figure, finding, "The first step of each optimizer, in FP32, over the step with the mean of the gradients."
    )
    alt = f"{finding}. Line chart of the factor by the size of the gradient, from 10^-12 to 0.5."
    return "accumulation-forgotten-division", figure, alt


# --- clipping --------------------------------------------------------------------------------------------------------
_BEFORE, _AFTER = Look(VERMILLION, "--", "s"), Look(BLUE, "-", "o")


def clipping(result: Result, style: str = "page") -> Drawn:
    """The length of an update that is clipped before or after unscaling; that of one whose norm grows."""
    with settings(check_style(style)):
        return [_clipping(result, style)] if result.series["before"] and result.series["lengths"] else []


def _clipping(result: Result, style: str) -> tuple[str, Picture, str]:
    series, size, scale = result.series, type_size(style), result.parameters["scale"]
    figure = new_picture(style, 0.56)
    left, right = figure.subplots(1, 2)
    scales = np.arange(len(series["before"]))
    for shape, name, at in ((_AFTER, "unscaled, then clipped", "after"), (_BEFORE, "clipped, then unscaled", "before")):
        y = np.log2(series[at])
        left.plot(scales, y, color=shape.color, linestyle=shape.linestyle)
        left.plot(scales[::4], y[::4], color=shape.color, marker=shape.marker, linestyle="none", label=name)
    top = float(np.log2(max(series["after"])))
    _powers(left.yaxis, float(np.log2(min(series["before"]))), top)
    left.set_ylim(top=top + 3.5)
    ticks(left.xaxis, [0, 8, 16, 24], [power(k) for k in (0, 8, 16, 24)])
    left.set_xlabel("loss scale")
    left.set_title("length of the update", fontweight="normal")
    left.legend(loc="lower left", frameon=False)
    names, norms = tuple(series["lengths"]), np.log2(series["norms"])
    order = sorted(names, key=lambda name: series["lengths"][name].count(0.0))
    for i, name in enumerate(order):  # where lines coincide the later one is thinner
        shape, y = look(name, names), np.array(series["lengths"][name]) / series["max_norm"]
        right.plot(norms, y, color=shape.color, linestyle=shape.linestyle, marker=shape.marker, label=name,
                   linewidth=size * (0.3 - 0.08 * min(i, 2)), markersize=size * (0.95 - 0.2 * min(i, 2)),
                   clip_on=False)  # fmt: skip
    ticks(right.xaxis, [8, 12, 16, 20], [power(k) for k in (8, 12, 16, 20)])
    right.set_ylim(0, 1.2)
    right.set_xlabel("norm of the gradients")
    right.set_title("length after clipping, of max_norm", fontweight="normal")
    right.legend(loc="lower left", frameon=False)
    factor = power_of(series["before"][scale] / series["intended"])
    if factor.startswith("2^"):
        factor = power(int(factor[2:]))
    gone = {
        name: [n for n, y in zip(series["norms"], series["lengths"][name], strict=True) if y == 0] for name in names
    }
    zero = [f"{name} from {power(math.log2(min(n)))} on" for name, n in gone.items() if n]
    finding = f"Clipped before a scale of {power(scale)} is taken off, the update is {factor} of the intended one"
    finding += f"; norms that overflow make it 0, in {listed(zero)}" if zero else ""
    below = (
        f"Left: gradients of norm {series['norm']:g}, clipped to {series['max_norm']:g}. Right: equal gradients, "
        "clipped in the format that they and their norm have."
    )
    headline(figure, finding, below)
    alt = f"{finding}. Line charts of the length of the update, by loss scale and order, and by norm and format."
    return "clipping", figure, alt


def _powers(axis: Any, low: float, high: float) -> None:
    """Ticks at every fourth or eighth power of two."""
    every = 4 if high - low <= 16 else 8
    places = range(math.ceil(low / every) * every, math.floor(high + 0.01) + 1, every)
    ticks(axis, places, [power(p) for p in places])


# --- adam ------------------------------------------------------------------------------------------------------------
_ORDERS = {
    "single-tensor": Look(VERMILLION, "--", "s"),
    "foreach": Look(ORANGE, ":", "^"),
    "fused": Look(BLUE, "-.", "o"),
}


def adam(result: Result, style: str = "page") -> Drawn:
    """The second moment on its way up and down; weight decays that do nothing."""
    with settings(check_style(style)):
        drawn = [_second_moment(result, style)] if result.traces else []
        return drawn + ([_weight_decay(result, style)] if result.series["decayed"] else [])


def _second_moment(result: Result, style: str) -> tuple[str, Picture, str]:
    series, size = result.series, type_size(style)
    steps, beta2, due = series["steps"], series["beta2"], series["gradient"] ** 2
    rows = math.ceil(len(result.traces) / 2)
    figure = new_picture(style, 0.56 if rows == 1 else 0.2 + 0.36 * rows)
    panels = figure.subplots(rows, min(len(result.traces), 2), sharey=True, squeeze=False).ravel()
    said = []
    for axes in panels[len(result.traces) :]:
        axes.set_visible(False)
    for axes, (name, trace) in zip(panels, result.traces.items(), strict=False):
        x = trace.steps
        up = 1 - beta2 ** np.minimum(x, steps).astype(float)
        exact = due * up * beta2 ** np.maximum(x - steps, 0).astype(float)
        axes.axvspan(steps, x[-1], color=GREY, alpha=0.08, linewidth=0)
        axes.plot(x, exact, color=BLACK, linewidth=size * 0.1)
        labels = [(float(exact[-1]), "exact", BLACK)]
        for i, (order, shape) in enumerate(_ORDERS.items()):  # where lines coincide the later one is thinner
            y = trace[order]
            axes.plot(x, y, color=shape.color, linestyle=shape.linestyle, linewidth=size * (0.3 - 0.07 * i))
            mark = {"color": shape.color, "marker": shape.marker, "linestyle": "none", "clip_on": False, "zorder": 4}
            axes.plot(x[-1], y[-1], markersize=size * (0.75 - 0.12 * i), **mark)
            labels.append((float(y[-1]), order, shape.color))
        ends = trace.steps <= steps
        tops = list(dict.fromkeys(str(cell(float(trace[order][ends][-1]), 3)) for order in _ORDERS))
        stays = all(trace[o][-1] == trace[o][ends][-1] > 0 for o in _ORDERS)
        said.append(f"{name} reaches {listed(tops)}, and {'stays there' if stays else 'comes down'}")
        axes.set_title(name, fontweight="normal")
        axes.set_xlim(0, x[-1])
        axes.set_ylim(-0.03 * due, 1.12 * due)
        axes.text(steps / 2, 1.1 * due, f"gradient {series['gradient']:g}", ha="center", va="top", color=GREY)
        axes.text(1.5 * steps, 1.1 * due, "gradient 0", ha="center", va="top", color=GREY)
        ticks(axes.xaxis, [0, steps, 2 * steps], ["0", f"{steps}", f"{2 * steps}"])
        axes.set_xlabel("step")
        # an infinity has no place
        end_labels(axes, [label for label in labels if math.isfinite(label[0])], 0.075 if rows == 1 else 0.17)
    panels[0].set_ylabel("second moment v")
    top = cell((1 - beta2**steps) * due, 3)
    finding = f"Adam's v should reach {top} and come down: {'; '.join(said)}"
    below = (
        f"beta2 {beta2:g}, grey: gradients of 0. single-tensor rounds each result, foreach the constant too, fused "
        "only what is stored."
    )
    headline(figure, finding, below)
    return "adam-second-moment", figure, f"{finding}. Line charts of v over the steps, in each order of roundings."


def _weight_decay(result: Result, style: str) -> tuple[str, Picture, str]:
    series, size = result.series, type_size(style)
    sizes, names = np.array(series["decays"]), tuple(series["decayed"])
    figure = new_picture(style, 0.5)
    axes = figure.subplots()
    exact = (1 - sizes) ** 1000
    axes.plot(sizes, exact, color=BLACK, linewidth=size * 0.1, label="exact")
    said = []
    for name, weights in series["decayed"].items():
        shape, w = look(name, names), np.array(weights)
        axes.plot(sizes, w, color=shape.color, linestyle=shape.linestyle, marker=shape.marker, label=name)
        if (w == 1).any():
            said.append(f"{name} up to {power(round(math.log2(sizes[w == 1].max())))}")
    axes.set_xscale("log")
    ticks(axes.xaxis, [1e-5, 1e-4, 1e-3, 1e-2], ["10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²"])
    axes.set_ylim(-0.03, 1.06)
    axes.set_xlim(sizes[0] * 0.9, sizes[-1] * 1.1)
    axes.set_xlabel("lr · weight_decay")
    axes.set_ylabel("the weight, at first 1")
    axes.legend(loc="lower left", frameon=False, handlelength=3)
    finding = f"A weight decay that does nothing: {', '.join(said)}" if said else "Every weight decay does something"
    below = "A weight of 1 after 1000 decays w *= 1 - lr · weight_decay, each result rounded to the format."
    headline(figure, finding, below)
    return "adam-weight-decay", figure, f"{finding}. Line chart of the weight by lr * weight_decay, with the exact one."
