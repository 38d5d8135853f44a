"""A scaler is blind: with gradients that never change it doubles the scale until they overflow, again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from numsim.experiments.experiment import (
    Experiment,
    Result,
    Session,
    Table,
    check_formats,
    check_real,
    check_whole,
    listed,
    percent,
)
from numsim.experiments.scaler_runs import (
    Limits,
    dynamic,
    follow,
    in_a_row,
    overflows,
    power_of,
    says,
    settings_of,
    train,
)
from numsim.scaling import get_scaler
from numsim.traces import Trace

_SIZES = (0.5, 1e-6, 0.0)  # beside the one that is asked for
_EXAMPLE = 'numsim.experiments.run("blind-scaler", largest=0.25)'


def run(
    session: Session,
    *,
    largest: float = 0.001,
    interval: int = 100,
    scale: int = 16,
    steps: int = 3000,
    format: str = "fp16",
) -> Result:
    """What loss scalers do with gradients that are the same at every step.

    Parameters: ``largest``, the magnitude of the largest gradient; ``interval``, clean steps before a growth; the
    scale begins at 2^scale; ``steps`` of training; ``format``, one of at most 16 bits, that gradients are cast to.
    """
    largest = check_real("largest", largest, 1e-30, 1e30, _EXAMPLE)
    interval = check_whole("interval", interval, 2, 500, _EXAMPLE)
    scale = check_whole("scale", scale, 0, 24, _EXAMPLE)
    steps = check_whole("steps", steps, 10, 10_000, _EXAMPLE)
    (chosen,) = check_formats(
        "format", format if isinstance(format, str) else [], lambda f: f.bits <= 16 and f.nan_code is not None,
        "the name of one format of at most 16 bits with NaN is needed", 'format="bf16"',
    )  # fmt: skip
    sizes = sorted({largest, *_SIZES}, reverse=True)
    limits = {x: t for x in sizes if (t := Limits.ask(session, x, chosen)) is not None}
    ways = {
        x: train(session if x == largest else None, "torch", _by(t), steps, scale, interval) for x, t in limits.items()
    }
    systems: dict[str, Trace] = {}
    zeros: dict[str, Zeros] = {}
    for name in dynamic():
        scaler = get_scaler(name, **settings_of(name, 2.0**scale, interval))
        high = np.inf if scaler.cap is None else scaler.cap
        if (limit := Limits.ask(session, largest, chosen, high)) is not None:
            systems[name] = ways[largest] if name == "torch" else train(
                session, name, _by(limit), steps, scale, interval
            )  # fmt: skip
        if (limit := Limits.ask(session, 0.0, chosen, high)) is not None:
            zeros[name] = Zeros.of(scaler, limit, (130 - scale) * (interval + 1))
    tables = (
        Table(
            f"torch.amp.GradScaler from 2^{scale}, interval {interval}: {steps} steps in {chosen.title}, all the same",
            ("largest gradient", "fits up to", "first overflow", "skipped", "then every", "last scale"),
            tuple(
                (f"{x:g}", power_of(limits[x].top), _first(t), len(overflows(t)), _period(t),
                 power_of(t["scale"][-1]))
                for x, t in ways.items()
            ),
        ),
        Table(
            f"The scalers but static and log-max: a largest gradient of {largest:g}",
            ("system", "first overflow", "skipped", "last scale"),
            tuple((n, _first(t), len(overflows(t)), power_of(t["scale"][-1])) for n, t in systems.items()),
        ),
        Table(
            "The same scalers: gradients of zero, until the scale goes no further",
            ("system", "largest scale", "last scale", "then skips"),
            tuple(
                (n, power_of(z.most), power_of(z.last), "for ever" if z.stuck else None) for n, z in zeros.items()
            ),
        ),
    )  # fmt: skip
    return Result(
        experiment="blind-scaler",
        parameters={
            "largest": largest, "interval": interval, "scale": scale, "steps": steps, "format": chosen.name,
        },
        answer=_answer(ways[largest], scale) if largest in ways else "not answered by this machine",
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(largest, interval, limits, ways, systems, zeros)),
        series={
            "largest": largest,
            "format": chosen.title,
            "zeros": {n: {"most": z.most, "last": z.last, "stuck": z.stuck} for n, z in zeros.items()},
        },
        traces={_name(x): t for x, t in ways.items()},
    )  # fmt: skip


class Zeros:
    """Where a scaler gets to with gradients that are all zero: no scale makes them overflow, but 0 times inf is NaN."""

    def __init__(self, most: float, last: float, stuck: bool) -> None:
        self.most, self.last, self.stuck = most, last, stuck

    @classmethod
    def of(cls, scaler: Any, limits: Limits, steps: int) -> Zeros:
        found, scales = follow(scaler, _by(limits), steps)
        return cls(max(scales), scales[-1], all(found[-2:]) and scales[-1] == scales[-2])


def _by(limits: Limits) -> Any:
    """The same gradients at every step."""
    return lambda step, scale: limits.overflows(scale)


# --- words -----------------------------------------------------------------------------------------------------------
def _name(largest: float) -> str:
    return f"gradients up to {largest:g}" if largest else "gradients of zero"


def _first(trace: Trace) -> int | None:
    return next((e.step for e in overflows(trace)), None)


def _period(trace: Trace) -> int | None:
    """The distance of the last two overflows."""
    steps = [e.step for e in overflows(trace)]
    return steps[-1] - steps[-2] if len(steps) > 1 else None


def _answer(trace: Trace, scale: int) -> str:
    falls = in_a_row(trace, 1)
    scales, period = trace["scale"], _period(trace)
    way = f"it stays at 2^{scale}"
    if falls:
        way = f"it halves to {power_of(scales[falls - 1])}"
    elif scales.max() > 2.0**scale:
        way = f"it doubles to {power_of(scales.max())}"
    if len(overflows(trace)) < falls + 2:
        return way if overflows(trace) else f"{way}, and never overflows"
    return f"{way}, then overflows every {period} steps"


def _findings(
    largest: float,
    interval: int,
    limits: Mapping[float, Limits],
    ways: Mapping[float, Trace],
    systems: Mapping[str, Trace],
    zeros: Mapping[str, Zeros],
) -> list[str]:
    found = []
    if largest in ways:
        trace, top = ways[largest], limits[largest].top
        skipped, period = len(overflows(trace)), _period(trace)
        each = f", and the last two are {period} steps apart" if period else ""
        found.append(
            f"With a largest gradient of {largest:g} scales up to {power_of(top)} fit. "
            + (f"The first overflow comes at step {_first(trace)}{each}; {skipped} of {len(trace)} steps are skipped, "
               f"{percent(skipped / len(trace))}." if skipped else
               f"No step of {len(trace)} overflows: the last scale is {power_of(trace['scale'][-1])}.")
        )  # fmt: skip
        if period == interval + 1:
            found.append(
                f"At the limit one step in {interval + 1} is wasted, which is the interval and one; with torch's "
                f"default of 2000 it would be one in 2001, {percent(1 / 2001)}."
            )
    firsts = [first for t in ways.values() if (first := _first(t))]
    if len(ways) > 1 and firsts:
        until = min(firsts) - 1
        same = len({tuple(t["scale"][:until].tolist()) for t in ways.values()}) == 1
        if same and until:
            found.append(
                f"It never looks at their size: up to step {until}, before anything overflows, the scale is the same "
                f"for gradients of {listed([f'{x:g}' for x in ways])}."
            )
    capped = [n for n, t in systems.items() if not overflows(t) and t.happened("cap")]
    quiet = [n for n, t in systems.items() if not overflows(t) and n not in capped]
    if capped:
        caps = listed([f"{n} at {power_of(systems[n]['scale'][-1])}" for n in capped])
        found.append(f"A cap below the limit ends the probing: {caps} waste no step.")
    twice = [n for n, t in systems.items() if get_scaler(n).hysteresis > 1 and overflows(t)]
    if twice and says(systems["torch"])["probing"] and (_first(systems["torch"]) or 0) > interval:
        counts = [f"{n} skips {len(overflows(systems[n]))}" for n in twice]
        found.append(
            "Hysteresis waits for another overflow before it lowers the scale, so that a probe costs more: "
            f"{listed(counts)} steps where torch skips {len(overflows(systems['torch']))}."
        )
    if quiet:
        found.append(f"No overflow yet, and no cap that was reached: {listed(quiet)}.")
    if zeros:
        groups: dict[str, list[str]] = {}
        for name, z in zeros.items():
            how = "to infinity, where every step is skipped" if z.stuck else (
                f"to {power_of(z.last)}" if z.most == z.last else f"to {power_of(z.most)} and back, again and again"
            )  # fmt: skip
            groups.setdefault(how, []).append(name)
        said = "; ".join(f"{how} ({listed(names)})" for how, names in groups.items())
        found.append(f"With gradients of zero nothing overflows but the scale itself, and it goes {said}.")
    return found


def _draw(result: Result, style: str) -> Any:
    from numsim.show import scaling_plots

    return scaling_plots.blind_scaler(result, style)


EXPERIMENT = Experiment(
    name="blind-scaler",
    question=(
        "The gradients are the same at every step, and the largest of them is 0.001. A loss scaler for FP16 begins at "
        "2^16 and doubles after 100 clean steps. What does the scale do?"
    ),
    choices=(
        "it stays at 2^16",
        "it doubles to 2^25, and never overflows",
        "it doubles to 2^26, then overflows every 101 steps",
        "it halves to 2^10",
    ),
    wrong_guess="it stays at 2^16",
    why_wrong=(
        "The gradients do not change, so why should the scale? Because the scaler never sees them: it learns only "
        "whether one was infinite or NaN. Clean steps raise the scale, whatever the gradients are, until one overflows."
    ),
    explanation=(
        "A dynamic loss scaler counts clean steps, and knows no magnitudes: it does not rise because gradients shrink, "
        "it rises because nothing happened. "
        "So at rest it runs into the limit after every interval, skips that step, halves, and begins to count again, "
        "unless a cap stops it below. "
        "Where nothing can overflow, as with gradients of zero, the scale goes on to its cap or to the end of FP32, "
        "and what comes then differs from system to system."
    ),
    sources=(
        "pytorch issue 98828 and pull request 98876: the scale grows until it is infinite",
        "google/flax issue 2547: an infinite scale stays infinite",
        "the scalers: numsim.scaling, each with its source",
    ),
    defaults={"largest": 0.001, "interval": 100, "scale": 16, "steps": 3000, "format": "fp16"},
    run=run,
    draw=_draw,
    against=("numpy", "torch-cpu"),
    full={"steps": 10_000},
)
