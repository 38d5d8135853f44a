"""Pictures of traces: loss scales with their overflows, amaxes under a scale that lags behind, ranges of gradients.

Sizes stand on axes of powers of two. Zeros, infinities and NaN have no place there: a line that reaches them ends with
a mark and a word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.errors import InputError, short
from numsim.formats import get_format
from numsim.scaling.playback import SAYS, overflow_kind
from numsim.show.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    SKY,
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
from numsim.traces import Trace
from numsim.wording import listed

Drawn = tuple[str, Picture, str]  # file stem, figure, alt text
Floats = npt.NDArray[np.float64]


def trace_plot(trace: Trace, style: str = "page") -> Drawn:
    """The picture that fits a trace's series: ``amax_plot``, ``scale_plot`` or ``ranges_plot``.

    Raises ``InputError`` where none does.
    """
    if _AMAXES <= set(trace.series):
        return amax_plot(trace, style)
    if "scale" in trace.series:
        return scale_plot({trace.title: trace}, style)
    if _layers(trace):
        return ranges_plot(trace, style)
    raise InputError(
        f"trace {short(trace.title)}: no picture fits its series {short(list(trace.series))}. Needed are scale, or "
        f"amax and clip limit, or {listed(RANGES)}. "
        "Example: Trace('torch', [1, 2, 3], {'scale': [4.0, 4.0, 2.0]}).draw()"
    )


# --- loss scales ------------------------------------------------------------------------------------------------------
def overflow_kinds(trace: Trace) -> dict[int, str]:
    """What each overflow says: "search", "probe" or "fall", by its step.

    The rule is ``numsim.scaling.playback.overflow_kind``; the series are those of ``scale_plot``.

    >>> from numsim.scaling import GradScaler, replay
    >>> overflow_kinds(replay(GradScaler(init_scale=16.0, growth_interval=2), "ICCII"))
    {1: 'search', 4: 'probe', 5: 'fall'}
    """
    overflows = set(trace.happened("overflow"))
    kinds: dict[int, str] = {}
    stood: float | None = None
    for step, before, after in zip(trace.steps.tolist(), _before(trace), trace["scale"], strict=True):
        if step in overflows:
            kinds[step] = overflow_kind(float(before), stood)
        elif after > before:
            stood = float(before)
    return kinds


def _before(trace: Trace) -> Floats:
    """The scale that each step was made with; where it was not written down, the first one is not known."""
    return trace["scale used"] if "scale used" in trace.series else np.array([np.nan, *trace["scale"][:-1]])


_MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "search": ("searching overflow", {"marker": "s", "color": GREY, "fillstyle": "none"}),
    "probe": ("probing overflow", {"marker": "x", "color": BLUE}),
    "fall": ("falling overflow", {"marker": "X", "color": VERMILLION}),
    "growth": ("growth kept", {"marker": "^", "color": GREEN, "fillstyle": "none"}),
    "skipped": ("skipped", {"marker": "|", "color": GREY}),
}


def scale_plot(
    traces: Mapping[str, Trace], style: str = "page", *, stem: str = "scale", finding: str = "", below: str = ""
) -> Drawn:
    """Loss scales over the steps, a panel for each system, with overflows, growths and skipped steps.

    A growth that overflows at once has no mark of its own: the probing overflow stands there.

    Each trace has the series ``scale`` (after each step), and events "overflow"; steps with one are skipped. The series
    ``scale used`` is what a step was made with: without it, the scale after the step before. Grey in the other panels:
    the first system.
    """
    check_style(style)
    check_traces(traces, ("scale",))
    if len(traces) > 99:
        raise InputError(f"{len(traces)} traces: at most 99 are drawn.")
    with settings(style):
        most = ((1, 1), (8, 2), (99, 3)) if style == "page" else ((1, 1), (4, 2), (6, 3), (99, 5))
        columns = next(n for count, n in most if len(traces) <= count)
        rows = math.ceil(len(traces) / columns)
        figure = new_picture(style, 0.22 + 0.24 * rows)
        panels, legend = _panels(figure, rows, columns, len(traces))
        size, first = type_size(style), next(iter(traces.values()))
        floor, top = _span([_log2(x) for t in traces.values() for x in (_before(t), t["scale"])])
        shown: dict[str, Any] = {}
        said = []
        for axes, (name, trace) in zip(panels, traces.items(), strict=True):
            if trace is not first:
                _scale_line(axes, first, color=PALE, linewidth=size * 0.3)
            _scale_line(axes, trace, color=BLACK, linewidth=size * 0.1)
            shown |= _scale_marks(axes, trace, size * (0.6 if rows <= 2 else 0.42))
            _end(axes, trace.steps, trace["scale"], floor, top, "" if columns > 2 else " at step {}")
            kinds = list(overflow_kinds(trace).values())
            counts = [f"{kinds.count(k)} {word}" for k, word in SAYS.items() if k in kinds]
            said.append(f"{name}: {len(kinds)} overflows{f', {listed(counts)}' if counts else ''}")
            if len(traces) > 1:
                axes.set_title(_plain(name), fontweight="normal", fontsize=size * 0.95)
            axes.set_xlabel("step" if axes in panels[-columns:] else "")
        _binades(panels[0].yaxis, floor, top, 8 if rows <= 3 else 4)
        panels[0].set_ylim(floor - 0.2 * (top - floor), top + 0.1 * (top - floor))
        figure.supylabel("loss scale", fontsize=size)
        order = [kind for kind in _MARKS if kind in shown]
        _legend(legend, [shown[k] for k in order], [_MARKS[k][0] for k in order])
        few = len(traces) <= 3
        finding = finding or ("; ".join(said) if few else f"{len(traces)} loss scalers, step by step")
        if len(traces) > 1:
            below = f"{below} Grey: {next(iter(traces))}.".strip()
        headline(figure, _plain(finding), _plain(below))
        alt = f"{finding}. Line charts of the loss scale over the steps, in powers of two: {'; '.join(said)}."
        return stem, figure, alt


def _scale_line(axes: Any, trace: Trace, **look: Any) -> None:
    """From the scale that the first step was made with to the one after the last."""
    scales = np.append(_before(trace)[0], trace["scale"])
    axes.step(np.append(trace.steps[0], trace.steps), _log2(scales), where="post", **look)


def _scale_marks(axes: Any, trace: Trace, size: float) -> dict[str, Any]:
    """Marks on a scale's line: where an overflow met it, where it grew and fitted; below, the skipped steps."""
    kinds, before, y = overflow_kinds(trace), _log2(_before(trace)), _log2(trace["scale"])
    at_once = np.append(np.isin(trace.steps, list(kinds))[1:], False)
    grown = (y > before) & ~at_once
    places = {kind: np.isin(trace.steps, [step for step, k in kinds.items() if k == kind]) for kind in _MARKS}
    rows: dict[str, tuple[Any, Any]] = {kind: (trace.steps[at], before[at]) for kind, at in places.items()}
    rows |= {"growth": (trace.steps[grown], y[grown]), "skipped": (list(kinds), [0.04] * len(kinds))}
    drawn = {}
    for kind, (x, heights) in rows.items():
        if len(x):
            below = {"transform": axes.get_xaxis_transform()} if kind == "skipped" else {}
            (drawn[kind],) = axes.plot(
                x, heights, linestyle="none", markersize=size, zorder=4, **_MARKS[kind][1], **below
            )
    return drawn


# --- amax and the scale that lags behind ------------------------------------------------------------------------------
_AMAXES = {"amax", "clip limit"}


def amax_plot(trace: Trace, style: str = "page", *, stem: str = "amax", finding: str = "", below: str = "") -> Drawn:
    """The amax at each step, and the largest magnitude that the scale in use leaves room for; what clips is marked.

    The trace is one of ``numsim.scaling.replay_amaxes``: series ``amax`` and ``clip limit``, events "clipped".
    """
    check_style(style)
    check_traces({trace.title: trace}, ("amax", "clip limit"))
    with settings(style):
        figure = new_picture(style, 0.52)
        (axes,), legend = _panels(figure, 1, 1, 1)
        logs = [_log2(trace[name]) for name in ("amax", "clip limit")]
        floor, top = _span(logs)
        amax_lines(axes, trace, top, type_size(style))
        _end(axes, trace.steps, trace["amax"], floor, top)
        _binades(axes.yaxis, floor, top)
        axes.set_ylim(floor - 0.06 * (top - floor), top + 0.1 * (top - floor))
        axes.set_xlabel("step")
        axes.set_ylabel("magnitude")
        _legend(legend, *axes.get_legend_handles_labels())
        count = len(set(trace.happened("clipped")))
        finding = finding or f"{trace.title}: values clip in {count} of {len(trace)} steps"
        headline(figure, _plain(finding), below or "Limit: the format's largest number / the scale in use.")
        alt = (f"{finding}. Line chart of the amax and of the largest magnitude that fits, in powers of two; values "
               f"clip in {count} of {len(trace)} steps.")  # fmt: skip
        return stem, figure, alt


def amax_lines(axes: Any, trace: Trace, infinite: float, size: float) -> None:
    """The lines and marks of ``amax_plot``; an infinite amax stands at the height ``infinite``."""
    limit, amax = _log2(trace["clip limit"]), _log2(trace["amax"])
    ends = np.where(np.isposinf(trace["amax"]), infinite, amax)
    axes.step(trace.steps, amax, where="mid", color=BLACK, linewidth=size * 0.12, label="amax")
    axes.step(trace.steps, limit, where="mid", color=BLUE, linestyle="--", linewidth=size * 0.19, label="limit")
    clipped = np.isin(trace.steps, trace.happened("clipped"))
    axes.plot(trace.steps[clipped], ends[clipped], color=VERMILLION, marker="X", linestyle="none", zorder=4,
              markersize=size * 0.6, label="clipped")  # fmt: skip
    axes.vlines(trace.steps[clipped], limit[clipped], ends[clipped], color=VERMILLION, linewidth=size * 0.1)


# --- ranges -----------------------------------------------------------------------------------------------------------
RANGES = ("p5", "median", "p95", "amax")
_LIMITS = ((VERMILLION, "--"), (BLUE, "-."), (GREEN, ":"), (ORANGE, "-"))


def ranges_plot(
    trace: Trace,
    style: str = "page",
    *,
    formats: Sequence[Any] = ("fp16",),
    stem: str = "ranges",
    finding: str = "",
    below: str = "",
) -> Drawn:
    """Ranges of magnitudes over the steps, a panel for each layer: amax, median, and where 90 % of them lie.

    The trace has the series ``p5``, ``median``, ``p95`` and ``amax``, or these with a layer's name before each, such as
    ``conv1 amax``; ``numsim.data.gradient_ranges`` makes one. Lines across: each format's largest number and the least
    that is not 0.

    >>> from numsim.data import gradient_ranges, load_gradients
    >>> print(ranges_plot(gradient_ranges(load_gradients()))[2].partition(".")[0])
    The widest range from 5 % to the amax is that of linear2
    """
    check_style(style)
    layers = _layers(trace)
    if not layers:
        check_traces({trace.title: trace}, RANGES)
    check_traces({trace.title: trace}, ())
    if len(layers) > 99:
        raise InputError(f"{len(layers)} layers: at most 99 are drawn.")
    chosen = [get_format(f) for f in formats]
    if len(chosen) > len(_LIMITS):
        raise InputError(f"formats={short(formats)}: at most {len(_LIMITS)} are told apart. Example: formats=['fp16']")
    with settings(style):
        rows = math.ceil(len(layers) / (4 if style == "page" else 6))
        columns = math.ceil(len(layers) / rows)
        figure = new_picture(style, 0.24 + 0.3 * rows)
        panels, legend = _panels(figure, rows, columns, len(layers))
        size = type_size(style)
        limits = [(float(math.log2(f.max)), float(f.emin - f.fraction_bits)) for f in chosen]
        logs = {name: [_log2(trace[series]) for series in four] for name, four in layers.items()}
        floor, top = _span([*(x for four in logs.values() for x in four), np.ravel(limits)])
        few = len(trace) <= 12
        for axes, (name, (low, middle, high, amax)) in zip(panels, logs.items(), strict=True):
            axes.fill_between(trace.steps, low, high, color=SKY, alpha=0.35, linewidth=0, label="5 to 95 %")
            axes.plot(trace.steps, middle, color=BLACK, linewidth=size * 0.16, label="median")
            axes.plot(trace.steps, amax, color=BLACK, linewidth=size * 0.08, label="amax", linestyle=":",
                      marker="^" if few else "")  # fmt: skip
            for f, ends, (color, dash) in zip(chosen, limits, _LIMITS, strict=False):
                for y, label in zip(ends, (f"{f.title}: largest, least", None), strict=True):
                    axes.axhline(y, color=color, linestyle=dash, linewidth=size * 0.12, label=label)
            axes.set_title(_plain(name), fontweight="normal", fontsize=size * 0.95)
            axes.set_xlabel("step" if axes in panels[-columns:] else "")
        figure.supylabel("magnitude", fontsize=size)
        _binades(panels[0].yaxis, floor, top, 8 if rows <= 3 else 4)
        panels[0].set_ylim(floor - 0.04 * (top - floor), top + 0.04 * (top - floor))
        _legend(legend, *panels[0].get_legend_handles_labels())
        widths = {name: float(np.nanmax(np.append(amax - low, 0))) for name, (low, *_, amax) in logs.items()}
        widest = max(widths, key=lambda name: widths[name])
        finding = finding or f"The widest range from 5 % to the amax is that of {widest}"
        headline(figure, _plain(finding), below)
        alt = (f"{finding}. Panels for {listed(list(layers))}: amax, median and the middle 90 % of the magnitudes over "
               f"the steps, in powers of two, with the limits of {listed([f.title for f in chosen])}.")  # fmt: skip
        return stem, figure, alt


def _layers(trace: Trace) -> dict[str, list[str]]:
    """The four series of each layer, by the layer's name; one without a name has the trace's title."""
    heads = [name.removesuffix("amax") for name in trace.series if name.endswith("amax")]
    fours = {head.strip() or trace.title: [head + series for series in RANGES] for head in heads}
    return {name: four for name, four in fours.items() if set(four) <= set(trace.series)}


# --- what they share --------------------------------------------------------------------------------------------------
def check_traces(traces: Mapping[str, Trace], needed: Sequence[str]) -> None:
    """Refuse what cannot be drawn: no trace, an empty one, one without a series."""
    if not traces:
        raise InputError("no traces: one at least is needed. Example: scale_plot({'torch': trace})")
    for name, trace in traces.items():
        if missing := [s for s in needed if s not in trace.series]:
            raise InputError(f"trace {short(name)} has no series {missing[0]!r}: needed are {', '.join(needed)}.")
        if not len(trace):
            raise InputError(f"trace {short(name)} has no steps: there is nothing to draw.")


def _panels(figure: Picture, rows: int, columns: int, count: int) -> tuple[list[Any], Any]:
    """Panels that share their axes, and above them a row for the legend."""
    spec = figure.add_gridspec(rows + 1, columns, height_ratios=[0.02, *[1] * rows])
    legend = figure.add_subplot(spec[0, :])
    legend.set_axis_off()
    panels: list[Any] = []
    for i in range(count):
        axes = figure.add_subplot(spec[1 + i // columns, i % columns], sharex=panels[0] if panels else None,
                                  sharey=panels[0] if panels else None)  # fmt: skip
        axes.tick_params(labelbottom=i + columns >= count, labelleft=i % columns == 0)
        panels.append(axes)
    return panels, legend


def _legend(axes: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    axes.legend(handles, labels, loc="center left", bbox_to_anchor=(-0.02, 0.5), ncols=len(labels), frameon=False,
                borderaxespad=0, handletextpad=0.2, columnspacing=0.8)  # fmt: skip


def _plain(text: str) -> str:
    """Names are the user's: a dollar sign is one, not a formula's beginning."""
    return text.replace("$", r"\$")


def _log2(values: Floats) -> Floats:
    """log2, for drawing only; NaN where there is none."""
    with np.errstate(all="ignore"):
        logs = np.log2(np.where(values > 0, values, np.nan))
    return np.where(np.isfinite(logs), logs, np.nan)


def _span(logs: Sequence[Floats]) -> tuple[float, float]:
    """The least and the largest of them, at least four binades apart."""
    flat = np.concatenate(logs)
    finite = flat[np.isfinite(flat)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    wider = max(4 - (high - low), 0) / 2
    return low - wider, high + wider


def _binades(axis: Any, low: float, high: float, most: int = 8) -> None:
    """Ticks at powers of two, not many more than ``most``."""
    every = next(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if (high - low) / n <= most)
    places = range(math.ceil(low / every) * every, math.floor(high) + 1, every)
    ticks(axis, places, [power(p) for p in places])


def _end(axes: Any, steps: Any, values: Floats, floor: float, top: float, when: str = " at step {}") -> None:
    """The first step at which a series has no place among the powers of two, and what it is there."""
    gone = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if gone.size:
        x, step = values[gone[0]], steps[gone[0]]
        place = {"xytext": (-14, -2), "textcoords": "offset points", "va": "center", "ha": "right"}
        axes.annotate(f"{x:g}{when.format(step)}", (step, floor if x == 0 else top), **place, color=ink(VERMILLION),
                      fontweight="bold")  # fmt: skip
