"""Loss scaling: what a fixed scale loses and lets overflow, and how scalers search for it, probe it and fall."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.data import Recorded, load_gradients
from numsim.errors import InputError, short
from numsim.experiments.experiment import Experiment, Result, Session, Table, cell, check_whole, listed, percent
from numsim.experiments.scaler_runs import (
    Limits,
    in_a_row,
    longest_run,
    overflows,
    played,
    power_of,
    says,
    settings_of,
    taking_overflows,
    train,
)
from numsim.experiments.underflow import KINDS, Gradients
from numsim.formats import FP16
from numsim.scaling import get_scaler, replay
from numsim.scaling.playback import SAYS
from numsim.traces import Trace

Floats = npt.NDArray[np.float64]

_SCALES = tuple(range(29))
_SAMPLE = 200  # gradients used of each row's sample
_TOLERATED = 0.01  # the share of zeros that a window of scales allows
_INTERVALS = (20, 500, 2000)
_WINDOW, _FIRST = 4, 16.0  # growth interval and first scale of the short string of events
_EXAMPLE = 'numsim.experiments.run("loss-scaling", interval=200)'


def run(
    session: Session,
    *,
    interval: int = 80,
    scale: int = 24,
    steps: int = 2500,
    burst: int = 5,
    events: str = "ICICIICCCCCI",
) -> Result:
    """A fixed loss scale on real gradients, a scaler's way through a training, and all systems on one string.

    Parameters: ``interval``, clean steps before a growth; the scaler begins at 2^scale; ``steps`` of training;
    ``burst``, steps in a row whose gradients are NaN; ``events``, the string that all systems get, I for an overflow
    and C for a clean step.
    """
    interval = check_whole("interval", interval, 2, 5000, _EXAMPLE)
    scale = check_whole("scale", scale, 0, 24, _EXAMPLE)
    steps = check_whole("steps", steps, 10, 10_000, _EXAMPLE)
    burst = check_whole("burst", burst, 1, 100, _EXAMPLE)
    if not isinstance(events, str) or not 1 <= len(events) <= 12 or set(events) - {"I", "C"}:
        raise InputError(f"events={short(events)}: a text of up to 12 letters I (overflow) and C (clean) is needed. "
                         'Example: numsim.experiments.run("loss-scaling", events="IICCCCI")')  # fmt: skip
    recording = load_gradients()
    recorded = [int(s) for s in recording.meta["steps"]]
    rows = {s: tuple(r for kind in KINDS for r in recording.select(kind, s)) for s in recorded}
    lost = {s: shares for s, r in rows.items() if (shares := _pooled(session, r)) is not None}
    amaxes = {s: max(float(np.abs(r.sample).max()) for r in rows[s]) for s in recorded}
    ends = {s: max(int(r.binades[r.positive + r.negative > 0].max()) + 1 for r in rows[s]) for s in recorded}
    tables = {s: t for s, a in amaxes.items() if (t := Limits.ask(session, a, FP16)) is not None}
    windows = {s: _window(lost[s], tables[s]) for s in recorded if s in lost and s in tables}

    ways: dict[str, Trace] = {}
    counts: list[tuple[int, Trace]] = []
    begins = max(1, steps * 3 // 5)
    if len(tables) == len(recorded):
        limits = [tables[max(s for s in recorded if s < step or s == 0)] for step in range(1, steps + 1)]

        def healthy(step: int, s: float) -> bool:
            return limits[step - 1].overflows(s)

        def broken(step: int, s: float) -> bool:
            return begins <= step < begins + burst or healthy(step, s)

        ways["healthy"] = train(session, "torch", healthy, steps, scale, interval)
        ways[f"{_counted(burst, 'step')} of NaN"] = train(session, "torch", broken, steps, scale, interval)
        counts = [
            (n, ways["healthy"] if n == interval else train(None, "torch", healthy, steps, scale, n))
            for n in sorted({interval, *_INTERVALS})
        ]
    systems = _systems(session, events)
    falls = _falls(ways, begins)
    result_tables = [
        Table(
            f"FP16: scales from and up to which at most {percent(_TOLERATED)} become 0, none overflow",
            ("step", "largest sampled", "all below", "zero at 2^0", "from", "up to", "zero there"),
            tuple(
                (s, cell(amaxes[s], 4), _power(ends[s]), percent(lost[s][0, 0]), _power(low), _power(high),
                 percent(lost[s][high, 0]) if 0 <= high < len(_SCALES) else None)
                for s, (low, high) in windows.items()
            ),
        ),
        Table(
            f"torch.amp.GradScaler from 2^{scale}, {steps} steps: overflows, longest run, last scale",
            ("gradients", "interval", "skipped", *SAYS.values(), "longest", "last"),
            tuple(
                (name, n, *(len(overflows(t)), *says(t).values()), longest_run(t), power_of(t["scale"][-1]))
                for name, n, t in [*(("healthy", n, t) for n, t in counts),
                                   *((name, interval, t) for name, t in ways.items() if name != "healthy")]
            ),
        ),
        Table(
            "Falls, and what follows: growths until it overflows again, steps to be back",
            ("gradients", "step", "overflows", "from", "to", "growths", "back after"),
            tuple(
                (name, f.step, f.count, power_of(f.high), power_of(f.low), f.growths, f.back and f.back - f.step)
                for name, f in falls
            ),
        ),
        Table(
            f"The scale after each event, interval {_WINDOW}, first scale {_FIRST:g} (I: overflow, C: clean)",
            ("system", *(f"{e}{i}" for i, e in enumerate(events, 1))),
            tuple((name, *(cell(x) for x in t["scale"]), *[None] * (len(events) - len(t)))
                  for name, t in systems.items()),
        ),
    ]  # fmt: skip
    return Result(
        experiment="loss-scaling",
        parameters={"interval": interval, "scale": scale, "steps": steps, "burst": burst, "events": events},
        answer=str(len(overflows(ways["healthy"]))) if ways else "not answered by this machine",
        tables=tuple(t for t in result_tables if t.rows),
        findings=tuple(_findings(ways, counts, windows, lost, systems, events, begins)),
        series={
            "scales": list(_SCALES),
            "lost": {str(s): lost[s].tolist() for s in lost},
            "windows": {str(s): list(w) for s, w in windows.items()},
            "tolerated": _TOLERATED,
            "recorded": recorded,
            "amaxes": {str(s): a for s, a in amaxes.items()},
            "burst_at": begins,
            "systems": {name: t["scale"].tolist() for name, t in systems.items()} if lost else {},
        },
        traces=ways,
    )  # fmt: skip


# --- what is asked ---------------------------------------------------------------------------------------------------
def _pooled(session: Session, rows: tuple[Recorded, ...]) -> Floats | None:
    """Shares (scales, fates) of all non-zero gradients of a step."""
    gradients = Gradients(rows, _SAMPLE)
    shares = gradients.shares(session, FP16, _SCALES)
    if shares is None:
        return None
    weights = np.array([row.nonzeros for row in rows], float)
    return np.asarray((shares * weights).sum(axis=-1) / weights.sum())


def _window(lost: Floats, limits: Limits) -> tuple[int | None, int]:
    """Exponents: the least scale of few zeros, the largest without an overflow."""
    few = np.flatnonzero(lost[:, 0] <= _TOLERATED)
    top = int(np.log2(limits.top))  # (a power of two)
    return (int(few[0]) if few.size else None), top


def _systems(session: Session, events: str) -> dict[str, Trace]:
    """The string played to every system that takes overflows."""
    found = ["CI".index(e) for e in events]
    traces = {n: played(session, n, settings_of(n, _FIRST, _WINDOW), found) for n in taking_overflows()}
    consecutive = get_scaler("deepspeed", **settings_of("deepspeed", _FIRST, _WINDOW), consecutive_hysteresis=True)
    return traces | {"deepspeed (consecutive)": replay(consecutive, found)}


@dataclass(frozen=True)
class Fall:
    """A run of overflows that brought a scale down, and what came after it."""

    step: int
    count: int
    high: float
    low: float
    growths: int  # until the next overflow, or to the end
    again: int | None  # the step of that overflow
    back: int | None  # the step after which the scale is what it was


def _fall(trace: Trace, step: int) -> Fall:
    """The run of overflows from a step on."""
    count = in_a_row(trace, step)
    end = step + count - 1
    used, scale = trace["scale used"][step - 1], trace["scale"]
    again = next((e.step for e in overflows(trace) if e.step > end), None)
    growths = sum(end < at <= (again or len(trace)) for at in trace.happened("growth"))
    back = next((at for at, x in enumerate(scale[end:].tolist(), end + 1) if x >= used), None)
    return Fall(step, count, float(used), float(scale[end - 1]), growths, again, back)


def _falls(ways: Mapping[str, Trace], begins: int) -> list[tuple[str, Fall]]:
    """Runs of overflows that are no search from the first step and no single probe; then that of the NaN."""
    if not ways:
        return []
    (name, healthy), (burst, broken) = ways.items()
    events = overflows(healthy)
    starts = [b for a, b in itertools.pairwise(events) if b.step > a.step + 1]
    falls = [(name, _fall(healthy, e.step)) for e in starts if not e.text.startswith("probe")]
    return [*falls, (burst, _fall(broken, begins))]


# --- words -----------------------------------------------------------------------------------------------------------
_MEANING = {
    "searching": "down from the first scale",
    "probing": "for more, after a growth",
    "falling": "the gradients had grown out of a scale that had fitted",
}


def _power(exponent: int | None) -> str:
    return "none" if exponent is None else f"2^{exponent}"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _findings(
    ways: Mapping[str, Trace],
    counts: Sequence[tuple[int, Trace]],
    windows: Mapping[int, tuple[int | None, int]],
    lost: Mapping[int, Floats],
    systems: Mapping[str, Trace],
    events: str,
    begins: int,
) -> list[str]:
    found = []
    if windows:
        each = [
            f"step {s} 2^{low} to 2^{high}" if low is not None and low <= high else f"step {s} none"
            for s, (low, high) in windows.items()
        ]
        found.append(
            f"Scales at which nothing overflows in FP16 and at most {percent(_TOLERATED)} of the non-zero activation "
            f"and weight gradients, taken together, become zero: {'; '.join(each)}."
        )
        tops = [high for _, high in windows.values()]
        worst = max(windows, key=lambda s: lost[s][0, 0])
        found.append(
            f"The largest scale that fits moves between 2^{min(tops)} and 2^{max(tops)} in one training. Without any "
            f"scale {percent(lost[worst][0, 0])} of these gradients become zero at step {worst}, and "
            f"{percent(min(lost[s][0, 0] for s in windows))} at the best of the recorded steps."
        )
    if ways:
        (_, healthy), (burst, broken) = ways.items()
        said, total = says(healthy), len(overflows(healthy))
        parts = [f"{n} {word} ({_MEANING[word]})" for word, n in said.items() if n]
        found.append(
            f"In the healthy run {total} of {len(healthy)} steps are skipped, {percent(total / len(healthy))}"
            f"{f': {listed(parts)}. None is a failure' if parts else ''}."
        )
        probes = [e.step for e in overflows(healthy) if e.text.startswith("probe")]
        if len(probes) > 1:
            apart, often = Counter(b - a for a, b in itertools.pairwise(probes)).most_common(1)[0]
            found[-1] += (
                f" Probes come on schedule, one step each: {often} of {len(probes) - 1} come {apart} steps after the "
                "last one."
            )
        found += _told_apart(healthy, burst, broken, begins)
        probing = [says(t)["probing"] for _, t in counts]
        if probing[0] > probing[-1] and probing == sorted(probing, reverse=True):
            few = [f"{n} with {interval}" for n, (interval, _) in zip(probing, counts, strict=True)]
            found.append(f"The longer the interval, the fewer probes: {listed(few)}.")
    groups: dict[tuple[float, ...], list[str]] = {}
    for name, t in systems.items():
        groups.setdefault(tuple(t["scale"].tolist()), []).append(name)
    ends = [f"{x:g}" for x in sorted({t["scale"][-1] for t in systems.values()})]
    ways_said = f"go {len(groups)} different ways" if len(groups) > 1 else "all go the same way"
    found.append(
        f"On the one string {events} the {len(systems)} scalers (all that take overflows, DeepSpeed's with both of its "
        f"ways to count them) {ways_said} and end at {listed(ends)}; torch goes with {listed(_with('torch', groups))}."
    )
    return found


def _told_apart(healthy: Trace, burst: str, broken: Trace, begins: int) -> list[str]:
    """What a real fall and one of NaN have in common, and what not."""
    *real, (_, nan) = _falls({"healthy": healthy, burst: broken}, begins)
    found = [
        f"The fall at step {f.step} is real: {_counted(f.count, 'overflow')} from {power_of(f.high)} to "
        f"{power_of(f.low)}, where the scale stays: the first growth overflows."
        for _, f in real if f.again and f.growths == 1
    ]  # fmt: skip
    came = "It is not back at the end."
    if nan.back is not None:
        climbs = "without another overflow" if nan.again is None or nan.again > nan.back else "through other overflows"
        came = f"It climbs back {climbs}: it is there {_counted(nan.back - begins, 'step')} later."
    found.append(
        f"{burst[:1].upper()}{burst[1:]} from step {begins} on: {_counted(nan.count, 'overflow')}, and the scale falls "
        f"from {power_of(nan.high)} to {power_of(nan.low)}. {came} The "
        "gradient is NaN before it is scaled: no scale is to blame."
    )
    skipped, total = len(overflows(broken)), len(overflows(healthy))
    little = "Neither number tells them apart" if longest_run(healthy) == longest_run(broken) else (
        "The number of overflows tells little"
    )  # fmt: skip
    if abs(skipped - total) <= 1:
        found.append(
            f"{little}: {skipped} steps skipped with NaN and {total} without, at most {longest_run(broken)} and "
            f"{longest_run(healthy)} in a row."
        )
    return found


def _with(name: str, groups: Mapping[tuple[float, ...], list[str]]) -> list[str]:
    return [n for group in groups.values() if name in group for n in group if n != name] or ["no other"]


def _draw(result: Result, style: str) -> Any:
    from numsim.show import scaling_plots

    return scaling_plots.loss_scaling(result, style)


EXPERIMENT = Experiment(
    name="loss-scaling",
    question=(
        "A small network trains in FP16 for 2500 steps, and nothing is wrong with it. Its loss scaler begins at 2^24 "
        "and doubles the scale after 80 clean steps in a row. How many steps does it skip for an overflow?"
    ),
    choices=("0", "2", "36", "250"),
    wrong_guess="0",
    why_wrong=(
        "It takes an overflow for a sign that training has gone wrong. For a scaler it is the only measurement there "
        "is: it knows that the scale is too large when a gradient overflows, so it looks for that on purpose, again "
        "and again. The step is skipped, the scale halved, and nothing is lost but the step."
    ),
    explanation=(
        "A fixed scale has to fit between gradients that become zero and gradients that overflow, and both ends move "
        "while a network learns. "
        "A dynamic scaler finds the upper end by running into it: it searches downwards at first, then probes after "
        "every interval, and falls where gradients grow (here they are real, but stand still between the recorded "
        "steps, and overflow in a cast from FP32). "
        "A failure is told from that neither by the number of overflows nor by how many come in a row: after a real "
        "fall the scale stays where it landed, after NaN it climbs back, and the unscaled gradient was NaN itself."
    ),
    sources=(
        "P. Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2",
        "pytorch 2.13 torch/amp/grad_scaler.py; the other scalers: numsim.scaling, each with its source",
        "data: numsim/data/README.md (E. Alpaydin, C. Kaynak, UCI digits, doi.org/10.24432/C50P49, CC BY 4.0)",
        "DeepSpeed issue 1599, pull request 3008 (an overflow that leaves the scale as it was: hysteresis) and issue "
        "1022 (a loss scale taken for a factor of the learning rate)",
    ),
    defaults={"interval": 80, "scale": 24, "steps": 2500, "burst": 5, "events": "ICICIICCCCCI"},
    run=run,
    draw=_draw,
    against=("numpy", "torch-cpu"),
    full={"burst": 12},  # the longest from which the scale is back before the end
)
