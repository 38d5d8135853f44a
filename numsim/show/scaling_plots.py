"""Pictures of loss scaling: windows of scales, scalers that search and probe, scales that collapse."""

from __future__ import annotations

import textwrap

import numpy as np

from numsim.experiments.experiment import Result, listed, percent
from numsim.formats import get_format
from numsim.show.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILLION,
    Picture,
    blue_cells,
    check_style,
    end_labels,
    headline,
    ink,
    new_picture,
    power,
    settings,
    ticks,
    type_size,
)
from numsim.show.trace_plots import scale_plot

Drawn = list[tuple[str, Picture, str]]


# --- loss-scaling -----------------------------------------------------------------------------------------------------
def loss_scaling(result: Result, style: str = "page") -> Drawn:
    """What a fixed scale loses; a scaler's way, healthy and through NaN; all systems on one string."""
    with settings(check_style(style)):
        if not result.series["lost"]:
            return []
        return [_fixed(result, style), _ways(result, style), _systems(result, style)]


def _fixed(result: Result, style: str) -> tuple[str, Picture, str]:
    series, size = result.series, type_size(style)
    scales, least = np.array(series["scales"]), 1e-3
    figure = new_picture(style, 0.62)
    panels = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
    said = []
    for axes, (step, lost) in zip(panels, series["lost"].items(), strict=True):
        low, high = series["windows"][step]
        fits = low is not None and low <= high
        if fits:
            axes.axvspan(low - 0.3, high + 0.3, color=SKY, alpha=0.25, linewidth=0)
        shares = 100 * np.array(lost)
        for i, color, dash, mark, name in (
            (0, VERMILLION, "-", "o", "become zero"), (2, PURPLE, "--", "s", "overflow"),
        ):  # fmt: skip
            y = np.where(shares[:, i] >= least, shares[:, i], np.nan)
            axes.plot(scales, y, color=color, linestyle=dash, marker=mark, markersize=size * 0.4, label=name)
        window = f"2^{low} to 2^{high}" if fits else "none"
        axes.set_title(f"step {step}: {_powers(window)}", fontweight="normal")
        said.append(f"{_powers(window)} at step {step}")
    panels[0].set_yscale("log")
    panels[0].set_ylim(least, 200)
    ticks(panels[0].yaxis, [0.001, 0.01, 0.1, 1, 10, 100], ["0.001 %", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"])
    ticks(panels[0].xaxis, range(0, 29, 4), [power(k) for k in range(0, 29, 4)])
    for axes in panels[2:]:
        axes.set_xlabel("fixed loss scale")
    panels[0].legend(loc="upper left", frameon=False)
    finding = f"The loss scales that fit move while a network learns: {said[0]}, {said[-1]}"
    below = (
        f"Real activation and weight gradients, together, times a scale, cast to FP16: shares of the non-zero ones, "
        f"from {least:g} % on. Blue: at most {percent(series['tolerated'])} become zero and none overflows."
    )
    headline(figure, finding, below)
    alt = f"{finding}. Line charts of the shares that become zero and that overflow, over the loss scale."
    return "loss-scaling", figure, alt


def _ways(result: Result, style: str) -> tuple[str, Picture, str]:
    (_, healthy), (burst, broken) = result.traces.items()
    n, m = len(healthy.happened("overflow")), len(broken.happened("overflow"))
    finding = f"Overflows are how a scaler measures: {n} in a healthy run, {m} with {burst}"
    below = (
        f"torch.amp.GradScaler, interval {result.parameters['interval']}, on real gradients that stand still between "
        f"recorded steps; NaN from step {result.series['burst_at']} on."
    )
    return scale_plot(result.traces, style, stem="loss-scaling-trace", finding=finding, below=below)


def _systems(result: Result, style: str) -> tuple[str, Picture, str]:
    systems, events = result.series["systems"], result.parameters["events"]
    figure = new_picture(style, 0.62)
    axes = figure.subplots()
    logs = {n: [float(np.log2(s)) for s in scales] for n, scales in systems.items()}
    every = [x for row in logs.values() for x in row]
    least, most = min(every), max(every)
    cells = [
        [((x - least) / max(most - least, 1), f"{2.0**x:g}") for x in row]
        + [(0.0, "stop")] * (len(events) - len(row))
        for row in logs.values()
    ]  # fmt: skip
    blue_cells(axes, cells)
    ticks(axes.yaxis, range(len(systems)), list(systems))
    ticks(axes.xaxis, range(len(events)), list(events))
    axes.xaxis.tick_top()
    axes.set_xlabel("")
    ways = len({tuple(row) for row in systems.values()})
    ends = sorted({row[-1] for row in systems.values()})
    finding = f"{len(systems)} loss scalers, one string of overflows: " + (
        f"{ways} ways to {len(ends)} different scales" if len(ends) > 1 else
        f"{f'{ways} ways, but' if ways > 1 else 'one way, and'} the same scale at the end"
    )  # fmt: skip
    below = "The scale after each event. I: an overflow, C: a clean step; growth interval 4, first scale 16."
    headline(figure, finding, below)
    said = [f"{name} ends at {row[-1]:g}" for name, row in systems.items()]
    return "loss-scaling-systems", figure, f"{finding}. A table of the scales after {events}: {listed(said)}."


# --- scale-window -----------------------------------------------------------------------------------------------------
def scale_window(result: Result, style: str = "page") -> Drawn:
    """For each format, where the smallest gradient is zero, where the largest overflows, and what is between."""
    with settings(check_style(style)):
        windows = result.series["windows"]
        if not windows:
            return []
        size = type_size(style)
        low = [w["zero_up_to"] for w in windows.values()]
        high = [w["finite_up_to"] for w in windows.values()]
        ends = [x for x in (*low, *high) if -60 < x < 60] or [0]
        left, right = min(ends) - 6, max(ends) + 8
        figure = new_picture(style, 0.22 + 0.1 * len(windows))
        axes = figure.subplots()
        names = [get_format(name).title for name in windows]
        said = []
        for y, w in enumerate(windows.values()):
            zero, finite = w["zero_up_to"] + 0.5, w["finite_up_to"] + 0.5
            bars: list[tuple[float, float, float, float, str, str]] = [
                (left, zero, y - 0.36, 0.34, VERMILLION, "////"), (finite, right, y + 0.02, 0.34, PURPLE, "xxxx"),
            ]  # fmt: skip
            if zero < finite:
                bars.append((max(zero, left), min(finite, right), y - 0.36, 0.72, BLUE, ""))
            for start, stop, bottom, height, color, hatch in bars:
                if stop > start:
                    axes.barh(bottom, stop - start, height, start, align="edge", color=color, hatch=hatch,
                              edgecolor="white", linewidth=0.5)  # fmt: skip
            first, last = w["zero_up_to"] + 1, w["finite_up_to"]
            text = "none" if first > last else f"2^{first}" if first == last else f"2^{first} to 2^{last}"
            said.append(f"{names[y]} {_powers(text)}")
        axes.set_xlim(left, right)
        axes.set_ylim(len(windows) - 0.5, -0.5)
        first = -(-left // 4) * 4
        ticks(axes.xaxis, range(first, right + 1, 4), [power(k) for k in range(first, right + 1, 4)])
        ticks(axes.yaxis, range(len(windows)), names)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("loss scale")
        handles = [axes.barh(-9, 0, color=c, hatch=h, edgecolor="white") for c, h in (
            (VERMILLION, "////"), (BLUE, ""), (PURPLE, "xxxx"),
        )]  # fmt: skip
        small, large = result.series["smallest"], result.series["largest"]
        words = [f"{small:g} becomes zero", "both are kept", f"{large:g} overflows"]
        axes.legend(handles, words, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False,
                    fontsize=size * 0.9)  # fmt: skip
        finding = f"Powers of two that keep {large:g} and {small:g}: {', '.join(said)}"
        headline(figure, finding, "Kept: the largest gradient is finite, the smallest is not zero, after one cast.")
        return [("scale-window", figure, f"{finding}. Bars for each format over the loss scale, in powers of two.")]


# --- blind-scaler -----------------------------------------------------------------------------------------------------
def blind_scaler(result: Result, style: str = "page") -> Drawn:
    """Scales under gradients that never change; where each system gets to with gradients of zero."""
    with settings(check_style(style)):
        if not result.traces:
            return []
        counts = {name: len(t.happened("overflow")) for name, t in result.traces.items()}
        until = "until they overflow" if any(counts.values()) else "and none overflows"
        lost = [f"{n} {name.removeprefix('gradients ')}" for name, n in counts.items()]
        finding = f"Gradients never change, the scale doubles {until}; steps lost: {', '.join(lost)}"
        below = (
            f"torch.amp.GradScaler, interval {result.parameters['interval']}, in {result.series['format']}; a panel "
            "for each size of the largest gradient."
        )
        drawn = [scale_plot(result.traces, style, stem="blind-scaler", finding=finding, below=below)]
        return drawn + ([_zeros(result, style)] if result.series["zeros"] else [])


def _zeros(result: Result, style: str) -> tuple[str, Picture, str]:
    zeros, size, end = result.series["zeros"], type_size(style), 134.0
    figure = new_picture(style, 0.56)
    axes = figure.subplots()
    order = sorted(zeros, key=lambda n: (zeros[n]["stuck"], zeros[n]["most"]))
    for y, name in enumerate(order):
        z = zeros[name]
        x = end if z["stuck"] else float(np.log2(z["most"]))
        color = VERMILLION if z["stuck"] else ORANGE if z["most"] != z["last"] else BLUE
        hatch = "////" if z["stuck"] else "\\\\\\\\" if z["most"] != z["last"] else ""
        axes.barh(y, x, 0.66, color=color, hatch=hatch, edgecolor="white", linewidth=0.5)
        words = (
            "infinite: skips for ever" if z["stuck"] else
            f"{power(x)}, and back" if z["most"] != z["last"] else
            power(x) if x == int(x) else "FP32's largest"
        )  # fmt: skip
        axes.text((128 if 120 < x < 128 else x) + 2, y, words, va="center", fontsize=size * 0.9)  # beside the line
    ticks(axes.yaxis, range(len(order)), order)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 185)
    axes.axvline(128, color=GREY, linestyle=":", linewidth=size * 0.1)
    ticks(axes.xaxis, [0, 32, 64, 96, 128], [power(k) for k in (0, 32, 64, 96, 128)])
    axes.set_xlabel("largest scale that is reached; the dotted line is the end of FP32")
    stuck = [n for n in order if zeros[n]["stuck"]]
    finding = (
        f"With gradients of zero the scale of {listed(stuck)} becomes infinite, and every later step is skipped"
        if stuck else "With gradients of zero every scale stays finite"
    )  # fmt: skip
    headline(figure, finding, "Only the scale itself can overflow here, and zero times infinity is NaN.")
    return "blind-scaler-zeros", figure, f"{finding}. Bars of the largest scale of each system, in powers of two."


# --- collapse ---------------------------------------------------------------------------------------------------------
def collapse(result: Result, style: str = "page") -> Drawn:
    """Scales that fall with every overflow, and where each system stops."""
    with settings(check_style(style)):
        series = result.series
        if not series:
            return []
        return [_collapse(result, style)]


def _collapse(result: Result, style: str) -> tuple[str, Picture, str]:
    series, size, last = result.series, type_size(style), result.parameters["overflows"]
    logs = {name: np.log2([s for s in fall if s > 0]) for name, fall in series["falls"].items()}
    start = max(float(y[0]) for y in logs.values())
    floor = min(float(y.min()) for y in logs.values())
    room = 0.14 * (start - floor)
    fatal, gone = series["destroyed_from"].get("torch"), series["fp16_zero_from"]
    figure = new_picture(style, 0.66)
    axes = figure.subplots()
    bands = [
        (gone, last if fatal is None else fatal, PALE, 0.6, "FP16 gradients are zero:\na clean step does nothing"),
        (fatal, last, ORANGE, 0.3, "1 / scale is infinite:\nit destroys the weight"),
    ]
    for left, right, color, alpha, words in bands:
        if left is not None:
            axes.axvspan(left, right, color=color, alpha=alpha, linewidth=0)
            if right - left > 0.2 * last:
                axes.text(left + 0.01 * last, start + 1.6 * room, words, va="top", fontsize=size * 0.85)
    held: dict[float, list[str]] = {}  # by the scale at the end
    gone_to_zero, stopped = list[str](), dict[str, str]()
    for name, y in logs.items():
        at = (len(y) - 1, float(y[-1]))
        axes.plot(y, color=BLACK, linewidth=size * 0.12)
        if name in series["stops"]:
            stopped[name] = f"{name} {series['stops'][name]}"
            mark, color = "X", VERMILLION
        elif len(y) == last + 1:
            held.setdefault(at[1], []).append(name)
            mark, color = "s", BLUE
        else:
            gone_to_zero.append(name)
            mark, color = "o", VERMILLION
        axes.plot(*at, marker=mark, color=color, markersize=size * 0.8, zorder=4, clip_on=False,
                  markeredgecolor="white", markeredgewidth=size * 0.06)  # fmt: skip
    for name, words in stopped.items():
        x, k = len(logs[name]) - 1, float(logs[name][-1])
        up = k in held  # a line runs on there
        axes.annotate(words, (x, k), xytext=(size, size * 0.3 * up), textcoords="offset points",
                      va="bottom" if up else "center", fontsize=size * 0.9)  # fmt: skip
    if gone_to_zero:
        x, k = len(logs[gone_to_zero[0]]) - 1, float(logs[gone_to_zero[0]][-1])
        after: dict[int, list[str]] = {}
        for name in gone_to_zero:
            after.setdefault(len(logs[name]), []).append(name)
        each = "; ".join(f"{', '.join(names)} after {n}" for n, names in sorted(after.items()))
        words = textwrap.fill(f"zero: {each}", 26, break_on_hyphens=False)
        left = x > last / 2  # below the lines, else beside them
        axes.annotate(words, (x, k), xytext=(-size * 0.8, -size * 0.8) if left else (size, 0), ha="right" if left else
                      "left", va="top" if left else "center", textcoords="offset points", color=ink(VERMILLION),
                      fontsize=size * 0.9)  # fmt: skip
    axes.set_xlim(0, last)
    axes.set_ylim(floor - room, start + 1.8 * room)
    end_labels(axes, [
        (k, textwrap.fill(f"{power(k)}: {', '.join(names)}", 18, break_on_hyphens=False), BLUE)
        for k, names in held.items()
    ], 0.1)  # fmt: skip
    places = [k for k in range(-1088, 33, 32 if start - floor < 400 else 128) if floor - room <= k <= start + room]
    ticks(axes.yaxis, places, [power(k) for k in places])
    axes.set_xlabel("overflows in a row")
    axes.set_ylabel("loss scale")
    when = f": after {fatal} of them torch's clean step destroys the weight" if fatal is not None else ""
    finding = f"Overflows that no scale cures{when}"
    below = (
        "Shaded: what a clean step of torch does. Squares: where the scale is at the end. X: an error ends the "
        "training. Circles: the last scale above zero."
    )
    headline(figure, finding, below)
    said = [f"{listed(names)} at {power(k)}" for k, names in held.items()]
    said += [f"{listed(gone_to_zero)} at zero"] if gone_to_zero else []
    said += list(stopped.values())
    return "collapse", figure, f"{finding}. Lines of the loss scale, in powers of two; they end: {'; '.join(said)}."


def _powers(text: str) -> str:
    """2^9 to 2^16 with raised exponents."""
    return " ".join(power(int(w[2:])) if w.startswith("2^") else w for w in text.split())
