"""Pictures of the suites that train: loss scales, ranges of gradients beside a CPU's, FP8 scales and codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from numsim.formats import FP16, Format
from numsim.show.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Picture,
    check_style,
    headline,
    new_picture,
    power,
    settings,
    ticks,
    type_size,
)
from numsim.show.trace_plots import amax_lines, scale_plot
from numsim.traces import Trace
from numsim.wording import listed, percent

Drawn = list[tuple[str, Picture, str]]
_BELOW = "Not bit by bit: two devices add up products in different orders, and after a step the weights differ."


# --- loss-scaling -----------------------------------------------------------------------------------------------------
def loss_scaling(traces: Mapping[str, Trace], here: Mapping[str, Trace | None], style: str = "page") -> Drawn:
    """The scales with their overflows; where gradients lie, on the machine and here; what underflow takes."""
    check_style(style)
    drawn: Drawn = []
    if scaled := {name: trace for name, trace in traces.items() if "scale" in trace.series}:
        spikes = {step for trace in scaled.values() for step in trace.happened("spike")}
        below = "torch's GradScaler while a network learns the digits. Searching: down from the first scale; probing: "
        below += "after a growth; falling: gradients had grown out of a scale that had fitted."
        below += f" Made infinite: a gradient of step {listed(sorted(map(str, spikes)))}." if spikes else ""
        drawn.append(scale_plot(scaled, style, stem="loss-scaling-scales", below=below))
    with settings(style):
        if traces:
            kinds: dict[Any, str] = {}  # a run of each: other settings of the scaler leave the ranges where they are
            for name, trace in traces.items():
                kinds.setdefault((trace.about.get("dtype"), "scale" in trace.series), name)
            drawn += [
                _ranges({n: traces[n] for n in kinds.values()}, here, style),
                _lost(traces, here, style),
            ]
    return drawn


def _ranges(traces: Mapping[str, Trace], here: Mapping[str, Trace | None], style: str) -> tuple[str, Picture, str]:
    """Largest and least gradients, a panel for each run and layer."""
    layers = _layers(next(iter(traces.values())))
    size, rows = type_size(style), len(traces)
    figure = new_picture(style, 0.22 + 0.2 * rows)
    panels, legend = _panels(figure, rows, len(layers))
    limits = (FP16.emin, GREEN, "-.", "FP16: least normal"), (FP16.emin - FP16.fraction_bits, GREY, ":", "least number")
    for line, (name, trace) in zip(panels, traces.items(), strict=True):
        for axes, layer in zip(line, layers, strict=True):
            # the CPU's dashes lie on the machine's line, where both are the same
            for of, color, dash, label in ((trace, BLUE, "-", "the machine"), (here[name], ORANGE, "--", "this CPU")):
                if of is not None:
                    least, most = (_log2(of[f"{layer} {what}"]) for what in ("least", "amax"))
                    axes.plot(of.steps, most, color=color, linestyle=dash, linewidth=size * 0.08, label=label)
                    axes.plot(of.steps, least, color=color, linestyle=dash, linewidth=size * 0.08)
            for y, color, dash, label in limits:
                axes.axhline(y, color=color, linestyle=dash, linewidth=size * 0.1, label=label)
            axes.set_title(f"{name}, {layer}", fontweight="normal", fontsize=size * 0.9)
    ticks(panels[0][0].yaxis, range(-64, 9, 16), [power(k) for k in range(-64, 9, 16)])
    panels[0][0].set_ylim(-72, 12)
    for axes in panels[-1]:
        axes.set_xlabel("step")
    figure.supylabel("largest and least magnitude of a gradient", fontsize=size)
    handles, labels = panels[0][0].get_legend_handles_labels()
    legend.legend(handles, labels, loc="center left", ncols=len(labels), frameon=False)
    finding = "Where unscaled gradients lie, on the machine and on this CPU"
    headline(figure, finding, _BELOW)
    alt = (f"{finding}: line charts of the largest and the least magnitude over the steps, in powers of two, for "
           f"{listed(list(traces))}. {_BELOW}")  # fmt: skip
    return "loss-scaling-ranges", figure, alt


def _lost(traces: Mapping[str, Trace], here: Mapping[str, Trace | None], style: str) -> tuple[str, Picture, str]:
    """Bars: the share of gradients that is zero, and would not be in FP32 at the same weights."""
    figure = new_picture(style, 0.2 + 0.07 * len(traces))
    axes, size = figure.subplots(), type_size(style)
    said = []
    for y, (name, trace) in enumerate(traces.items()):
        shares = []
        for of, shift, color, hatch in ((trace, -0.2, BLUE, ""), (here[name], 0.2, ORANGE, "////")):
            if of is not None:
                shares.append(float(np.mean([of[f"{layer} lost"] for layer in _layers(of)])))
                axes.barh(y + shift, shares[-1], 0.36, color=color, hatch=hatch, edgecolor="white")
                axes.text(shares[-1], y + shift, f" {percent(shares[-1])}", va="center", fontsize=size * 0.85)
        said.append(f"{name} {' and '.join(map(percent, shares))}")
    ticks(axes.yaxis, range(len(traces)), list(traces))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    ticks(axes.xaxis, [], [])
    finding = "Gradients that underflow makes zero: in FP32, at the same weights, they are not"
    headline(figure, finding, f"Blue: the machine. Hatched: this CPU. Mean of all layers and steps. {_BELOW}")
    return "loss-scaling-lost", figure, f"{finding}. On the machine and on this CPU: {listed(said)}. {_BELOW}"


def _layers(trace: Trace) -> list[str]:
    return [name.removesuffix(" lost") for name in trace.series if name.endswith(" lost")]


# --- fp8 --------------------------------------------------------------------------------------------------------------
def fp8(traces: Mapping[str, Trace], codes: Mapping[str, Any], formats: Mapping[str, Format], style: str) -> Drawn:
    """Amaxes under the scales that lag behind; which exponents the codes have, with a lagging and with a fresh scale.

    traces, codes : by recipe and tensor, such as "delayed input". formats : of the codes, by tensor.
    """
    check_style(style)
    with settings(style):
        return [*_lags(traces, style), *_exponents(codes, formats, style)]


def _lags(traces: Mapping[str, Trace], style: str) -> Drawn:
    shown = {name: trace for name, trace in traces.items() if not name.startswith("current")}
    rows, columns = _grid(shown)
    if not shown:
        return []
    figure, size = new_picture(style, 0.25 + 0.22 * len(rows)), type_size(style)
    panels, legend = _panels(figure, len(rows), len(columns), shared=False)
    clipped = []
    for name, trace in shown.items():
        recipe, tensor = name.split()
        axes = panels[rows.index(recipe), columns.index(tensor)]
        amax_lines(axes, trace, 0, size)
        axes.set_title(trace.title, fontweight="normal", fontsize=size * 0.9)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(lambda y, _: power(y))
        axes.tick_params(labelbottom=recipe == rows[-1])
        axes.set_xlabel("update" if recipe == rows[-1] else "")
        clipped.append(f"{name} {len(trace.happened('clipped'))}")
    figure.supylabel("magnitude", fontsize=size)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    legend.legend(handles, labels, loc="center left", ncols=len(labels), frameon=False)
    steps, clips = (sum(map(len, x)) for x in (shown.values(), (t.happened("clipped") for t in shown.values())))
    finding = f"Delayed scales lag a step behind their tensors: values clip in {clips} of {steps} casts"
    below = "Limit: the format's largest number / the scale in use, which earlier amaxes have made; the first is 1."
    headline(figure, finding, below)
    alt = f"{finding}. Line charts of amaxes and limits; steps in which values clip: {listed(clipped)}."
    return [("fp8-scales", figure, alt)]


def _exponents(codes: Mapping[str, Any], formats: Mapping[str, Format], style: str) -> Drawn:
    shown = {name: x for name, x in codes.items() if not name.startswith("unfused")}
    recipes, tensors = _grid(shown)
    if not shown:
        return []
    figure, size = new_picture(style, 0.5), type_size(style)
    panels, legend = _panels(figure, 1, len(tensors))
    said = []
    for axes, tensor in zip(panels[0], tensors, strict=True):
        format = formats[tensor]
        for recipe, shift, color, hatch in zip(recipes, (-0.2, 0.2), (BLUE, ORANGE), ("", "////"), strict=False):
            if (found := shown.get(f"{recipe} {tensor}")) is not None:
                fields = (np.ravel(found) & (format.sign_mask - 1)) >> format.fraction_bits
                shares = np.bincount(fields, minlength=1 << format.exponent_bits) / max(fields.size, 1)
                axes.bar(np.arange(shares.size) + shift, 100 * shares, 0.4, color=color, hatch=hatch, label=recipe,
                         edgecolor="white", linewidth=0.2)  # fmt: skip
                said.append(f"{recipe} {tensor} {percent(float(shares[0]))}")
        axes.set_title(f"{tensor}, {format.title}", fontweight="normal", fontsize=size * 0.95)
        axes.set_xlabel("exponent field")
    panels[0, 0].set_ylabel("share of the codes, %")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    legend.legend(handles, labels, loc="center left", ncols=len(labels), frameon=False)
    finding = "Which exponents FP8 codes have, with a scale that lags and with one of their own"
    headline(figure, finding, "Codes of all steps; an exponent field of 0 are zeros and subnormal numbers.")
    return [("fp8-codes", figure, f"{finding}. Bar charts; zeros and subnormal numbers: {listed(said)}.")]


def _grid(named: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The recipes and the tensors in names of both."""
    recipes, tensors = (list(dict.fromkeys(name.split()[i] for name in named)) for i in (0, 1))
    return recipes, tensors


# --- what they share --------------------------------------------------------------------------------------------------
def _panels(figure: Picture, rows: int, columns: int, *, shared: bool = True) -> tuple[Any, Any]:
    """Panels (rows, columns) on the same axes, and above them an empty one for the legend."""
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[0.1, *[1] * rows])
    legend = figure.add_subplot(grid[0, :])
    legend.set_axis_off()
    panels = np.empty((rows, columns), object)
    for at in np.ndindex(rows, columns):
        first = panels[0, 0]
        panels[at] = figure.add_subplot(
            grid[at[0] + 1, at[1]], sharex=first if shared else None, sharey=first if shared else None
        )
        if shared:
            panels[at].label_outer()
    return panels, legend


def _log2(values: Any) -> Any:
    """For drawing only; NaN where there is none."""
    with np.errstate(all="ignore"):
        logs = np.log2(values)
    return np.where(np.isfinite(logs), logs, np.nan)
