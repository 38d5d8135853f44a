"""Pictures of the suites that train: loss scales, ranges of gradients beside a CPU's, FP8 scales and codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from numsim.formats import FP16
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
from numsim.show.trace_plots import scale_plot
from numsim.traces import Trace
from numsim.wording import listed, percent

Drawn = list[tuple[str, Picture, str]]
_BELOW = "Not bit by bit: two devices add up products in different orders, and after a step the weights differ."


# --- loss-scaling -----------------------------------------------------------------------------------------------------
def loss_scaling(traces: Mapping[str, Trace], here: Mapping[str, Trace | None], style: str = "page") -> Drawn:
    """The scales with their overflows; where gradients lie, on the machine and here; shares of zeros likewise."""
    check_style(style)
    drawn: Drawn = []
    if scaled := {name: trace for name, trace in traces.items() if "scale" in trace.series}:
        spikes = {step for trace in scaled.values() for step in trace.happened("spike")}
        below = "torch's GradScaler while a network learns the digits."
        below += f" Made infinite: a gradient of step {listed(sorted(map(str, spikes)))}." if spikes else ""
        drawn.append(scale_plot(scaled, style, stem="loss-scaling-scales", below=below))
    with settings(style):
        if traces:
            kinds: dict[Any, str] = {}  # a run of each: other settings of the scaler leave the ranges where they are
            for name, trace in traces.items():
                kinds.setdefault((trace.about.get("dtype"), "scale" in trace.series), name)
            drawn += [
                _ranges({n: traces[n] for n in kinds.values()}, here, style),
                _zeros(traces, here, style),
            ]
    return drawn


def _ranges(traces: Mapping[str, Trace], here: Mapping[str, Trace | None], style: str) -> tuple[str, Picture, str]:
    """Largest and least gradients, a panel for each run and layer."""
    layers = [name.removesuffix(" zeros") for name in next(iter(traces.values())).series if _is_share(name)]
    size, rows = type_size(style), len(traces)
    figure = new_picture(style, 0.22 + 0.2 * rows)
    panels, legend = _panels(figure, rows, len(layers))
    limits = (FP16.emin, GREEN, "-.", "FP16: least normal"), (FP16.emin - FP16.fraction_bits, GREY, ":", "least number")
    for line, (name, trace) in zip(panels, traces.items(), strict=True):
        for axes, layer in zip(line, layers, strict=True):
            for of, color, dash, label in ((here[name], ORANGE, "--", "this CPU"), (trace, BLUE, "-", "the machine")):
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


def _zeros(traces: Mapping[str, Trace], here: Mapping[str, Trace | None], style: str) -> tuple[str, Picture, str]:
    """The share of zeros in the last layer's gradients, which has no dark pixels below it."""
    last = [name for name in next(iter(traces.values())).series if _is_share(name)][-1]
    figure = new_picture(style, 0.2 + 0.07 * len(traces))
    axes, size = figure.subplots(), type_size(style)
    said = []
    for y, (name, trace) in enumerate(traces.items()):
        shares = []
        for of, shift, color, hatch in ((trace, -0.2, BLUE, ""), (here[name], 0.2, ORANGE, "////")):
            if of is not None:
                shares.append(float(np.mean(of[last])))
                axes.barh(y + shift, shares[-1], 0.36, color=color, hatch=hatch, edgecolor="white")
                axes.text(shares[-1], y + shift, f" {percent(shares[-1])}", va="center", fontsize=size * 0.85)
        said.append(f"{name} {' and '.join(map(percent, shares))}")
    ticks(axes.yaxis, range(len(traces)), list(traces))
    axes.invert_yaxis()
    ticks(axes.xaxis, [], [])
    finding = f"Zeros among the gradients of {last.split()[0]}, mean of all steps"
    headline(figure, finding, f"Blue: the machine. Hatched: this CPU. FP32 shows what ReLU makes zero. {_BELOW}")
    return "loss-scaling-zeros", figure, f"{finding}, on the machine and on this CPU: {listed(said)}. {_BELOW}"


def _panels(figure: Picture, rows: int, columns: int) -> tuple[Any, Any]:
    """Panels (rows, columns) on the same axes, and above them an empty one for the legend."""
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[0.1, *[1] * rows])
    legend = figure.add_subplot(grid[0, :])
    legend.set_axis_off()
    panels = np.empty((rows, columns), object)
    for at in np.ndindex(rows, columns):
        first = panels[0, 0]
        panels[at] = figure.add_subplot(grid[at[0] + 1, at[1]], sharex=first, sharey=first)
        panels[at].label_outer()
    return panels, legend


def _is_share(name: str) -> bool:
    return name.endswith(" zeros") and not name.startswith("scaled")


def _log2(values: Any) -> Any:
    """For drawing only; NaN where there is none."""
    with np.errstate(all="ignore"):
        logs = np.log2(values)
    return np.where(np.isfinite(logs), logs, np.nan)
