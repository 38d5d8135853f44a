"""Loss scaling: what a fixed scale loses and lets overflow, and how scalers search for it, probe it and fall."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import from_codes
from numsim.codes import decode
from numsim.data import Recorded, load_gradients
from numsim.errors import InputError, short
from numsim.experiments.experiment import Experiment, Result, Session, Table, cell, check_whole, listed, percent
from numsim.experiments.underflow import KINDS, Gradients
from numsim.formats import FP16, FP32, Format
from numsim.machines.question import ask
from numsim.rounding import encode
from numsim.scaling import ScalerError, get_scaler, list_scalers, replay
from numsim.scaling.scaler import FLT_MAX
from numsim.traces import Event, Trace

Floats = npt.NDArray[np.float64]
Overflows = Callable[[int, float], bool]  # (step from 1, scale) -> whether a gradient is not finite

_SCALES = tuple(range(29))
_SAMPLE = 200  # gradients used of each row's sample
_TOLERATED = 0.01  # the share of zeros that a window of scales allows
_INTERVALS = (20, 500, 2000)
_WINDOW, _FIRST = 4, 16.0  # growth interval and first scale of the short string of events
SAYS = {"search": "searching", "probe": "probing", "fall": "falling"}  # what an overflow says
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
        ways[f"{burst} steps of NaN"] = train(session, "torch", broken, steps, scale, interval)
        counts = [
            (n, ways["healthy"] if n == interval else train(None, "torch", healthy, steps, scale, n))
            for n in sorted({interval, *_INTERVALS})
        ]
    systems = _systems(session, events)
    result_tables = [
        Table(
            f"FP16: where a fixed scale makes at most {percent(_TOLERATED)} of the gradients 0, none overflow",
            ("step", "largest gradient", "0 at scale 1", "from", "to", "0 at the top"),
            tuple(
                (s, cell(amaxes[s], 4), percent(lost[s][0, 0]), _power(low), _power(high),
                 percent(lost[s][high, 0]) if 0 <= high < len(_SCALES) else None)
                for s, (low, high) in windows.items()
            ),
        ),
        Table(
            f"torch.amp.GradScaler from 2^{scale} through {steps} steps: what overflows say",
            ("gradients", "interval", "skipped", *SAYS.values(), "in a row", "last"),
            tuple(
                (name, n, *(len(overflows(t)), *says(t).values()), _most(t), power_of(t["scale"][-1]))
                for name, n, t in [*(("healthy", n, t) for n, t in counts),
                                   *((name, interval, t) for name, t in ways.items() if name != "healthy")]
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
        findings=tuple(_findings(recorded, ways, counts, windows, lost, systems, events, begins)),
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


# --- what experiments on scalers share -------------------------------------------------------------------------------
class Limits:
    """At which scales, powers of two and the numbers beyond them, the largest gradient of a step overflows."""

    def __init__(self, table: Mapping[float, bool]) -> None:
        self.table = table

    @classmethod
    def ask(cls, session: Session, amax: float, format: Format, high: float = np.inf) -> Limits | None:
        """From a machine's casts of amax times 0, 2^-149 ... 2^127 and infinity; scales up to ``high``.

        FP32's largest number, to which Flax' scale grows, and its halves are among them.
        """
        powers = np.array([0.0, *np.ldexp(1.0, np.arange(-149, 128)), *np.ldexp(FLT_MAX, -np.arange(254)), np.inf])
        powers = powers[powers <= high]
        with np.errstate(invalid="ignore"):
            scaled = encode(amax * powers, FP32)  # as the FP32 loss is; 0 times infinity is NaN
        codes = session.ask(ask("cast", [FP32], format, [scaled]))
        if codes is None:
            return None
        return cls(dict(zip(powers.tolist(), (~np.isfinite(decode(codes, format))).tolist(), strict=True)))

    def overflows(self, scale: float) -> bool:
        """A Python float beyond FP32 is infinite where it meets an FP32 loss, one below FP32's least number zero."""
        return self.table[scale if 2.0**-149 <= scale < 2.0**128 else np.inf if scale > 1 else 0.0]

    @property
    def top(self) -> float:
        """The largest power of two at which nothing overflows."""
        return max((s for s, over in self.table.items() if not over and np.frexp(s)[0] == 0.5), default=0.0)


def settings_of(name: str, scale: float, interval: int) -> dict[str, Any]:
    """A first scale and an interval, as a system takes them."""
    return {"init_scale": scale} | ({} if name == "static" else {"growth_interval": interval})


def train(session: Session | None, name: str, overflow: Overflows, steps: int, scale: int, interval: int) -> Trace:
    """A scaler's way: at each step ``overflow`` says whether the gradients overflow at the scale of this step."""
    settings = settings_of(name, 2.0**scale, interval)
    return played(session, name, settings, follow(get_scaler(name, **settings), overflow, steps)[0])


def follow(scaler: Any, overflow: Overflows, steps: int) -> tuple[list[int], list[float]]:
    """What each step's gradients were, and the scale after each; it ends where the original raises."""
    state, found, scales = scaler.initial(), list[int](), list[float]()
    for step in range(1, steps + 1):
        found.append(int(overflow(step, state.scale)))
        try:
            state = scaler.update(state, found[-1])
        except ScalerError:
            break
        scales.append(state.scale)
    return found, scales


def played(session: Session | None, name: str, settings: dict[str, Any], found: Sequence[int]) -> Trace:
    """The trace of a string of overflows; the scale of torch is the machine's, where one is asked and has it."""
    trace = replay(get_scaler(name, **settings), list(found))
    if name != "torch" or session is None:
        return trace
    codes = session.ask(ask("scaler", [FP32], FP32, [encode(found, FP32)], system=name, settings=settings))
    if codes is None:
        return trace
    series = {**trace.series, "scale": from_codes(codes, FP32)}
    return Trace(trace.title, trace.steps, series, trace.events, trace.about)


def overflows(trace: Trace) -> list[Event]:
    """The skipped steps."""
    return [e for e in trace.events if e.kind == "overflow"]


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
    names = [name for name in list_scalers() if name != "openseq2seq-logmax"]  # it takes amaxes
    traces = {name: played(session, name, settings_of(name, _FIRST, _WINDOW), found) for name in names}
    consecutive = get_scaler("deepspeed", **settings_of("deepspeed", _FIRST, _WINDOW), consecutive_hysteresis=True)
    return traces | {"deepspeed, in a row": replay(consecutive, found)}


# --- words -----------------------------------------------------------------------------------------------------------
_MEANING = {
    "searching": "down from the first scale",
    "probing": "for more, after a growth",
    "falling": "the gradients had grown out of a scale that had fitted",
}


def _power(exponent: int | None) -> str:
    return "none" if exponent is None else f"2^{exponent}"


def power_of(scale: float) -> str:
    return f"2^{int(np.frexp(scale)[1]) - 1}" if np.frexp(scale)[0] == 0.5 else f"{scale:.3g}"


def says(trace: Trace) -> dict[str, int]:
    """How many overflows were of each kind, as ``numsim.scaling.replay`` names them."""
    counts = Counter(e.text.partition(",")[0] for e in overflows(trace))
    return {word: counts[kind] for kind, word in SAYS.items()}


def in_a_row(trace: Trace, first: int) -> int:
    """Overflows one after another from a step on."""
    steps = [e.step for e in overflows(trace) if e.step >= first]
    return sum(step == first + i for i, step in enumerate(steps))


def _most(trace: Trace) -> int:
    """The longest run of overflows."""
    return max((in_a_row(trace, e.step) for e in overflows(trace)), default=0)


def _findings(
    recorded: Sequence[int],
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
            f"Scales at which nothing overflows in FP16 and at most {percent(_TOLERATED)} of the non-zero gradients "
            f"become zero: {'; '.join(each)}."
        )
        tops = [high for _, high in windows.values()]
        worst = max(windows, key=lambda s: lost[s][0, 0])
        found.append(
            f"The largest scale that fits moves between 2^{min(tops)} and 2^{max(tops)} in one training. Without any "
            f"scale {percent(lost[worst][0, 0])} of the gradients of step {worst} become zero, and "
            f"{percent(min(lost[s][0, 0] for s in windows))} at the best of the recorded steps."
        )
    if ways:
        (_, healthy), (burst, broken) = ways.items()
        said, total = says(healthy), len(overflows(healthy))
        parts = [f"{n} {word} ({_MEANING[word]})" for word, n in said.items() if n]
        found.append(
            f"In the healthy run {total} of {len(healthy)} steps are skipped, {percent(total / len(healthy))}"
            f"{f': {listed(parts)}' if parts else ''}. None is a failure."
        )
        probes = [e.step for e in overflows(healthy) if e.text.startswith("probe")]
        if len(probes) > 1:
            apart, often = Counter(b - a for a, b in itertools.pairwise(probes)).most_common(1)[0]
            found.append(
                f"Probes come on schedule, one step each: {often} of {len(probes) - 1} come {apart} steps after the "
                "last one. A run of overflows is another thing: gradients have grown, or are lost."
            )
        back, skipped = _back(broken, begins), len(overflows(broken))
        took = f"it takes {back - begins} steps to be back" if back else "it is not back at the end"
        more = "as many as" if skipped == total else f"{'fewer' if skipped < total else 'more'} than"
        found.append(
            f"With {burst} from step {begins} on there are {in_a_row(broken, begins)} overflows in a row; the scale "
            f"falls from {power_of(broken['scale'][begins - 2])} to {power_of(broken['scale'][begins - 1 :].min())} "
            f"and {took}, an interval for each growth. The number tells little: {skipped} in all, {more} without."
        )
        few = [f"{len(overflows(t))} with {n}" for n, t in counts]
        found.append(f"The longer the interval, the fewer probes, of {len(healthy)} steps skipped: {listed(few)}.")
    groups: dict[tuple[float, ...], list[str]] = {}
    for name, t in systems.items():
        groups.setdefault(tuple(t["scale"].tolist()), []).append(name)
    ends = sorted({t["scale"][-1] for t in systems.values()})
    found.append(
        f"On the one string {events} the {len(systems)} scalers go {len(groups)} different ways and end at "
        f"{listed([f'{x:g}' for x in ends])}; torch goes with {listed(_with('torch', groups))}."
    )
    return found


def _with(name: str, groups: Mapping[tuple[float, ...], list[str]]) -> list[str]:
    return [n for group in groups.values() if name in group for n in group if n != name] or ["no other"]


def _back(trace: Trace, begins: int) -> int | None:
    """The first step after the burst at which the scale is what it was before."""
    before = trace["scale"][begins - 2] if begins > 1 else trace["scale"][0]
    for step, scale in zip(trace.steps[begins - 1 :].tolist(), trace["scale"][begins - 1 :], strict=True):
        if scale >= before and step > begins:
            return int(step)
    return None


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
        "every interval, and falls where gradients grow. "
        "The gradients are real but stand still between the recorded steps, and the overflows are those of a cast of "
        "FP32 gradients; a failure is told from a probe by what comes after: many overflows in a row, at every scale."
    ),
    sources=(
        "P. Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2",
        "pytorch 2.13 torch/amp/grad_scaler.py; the other scalers: numsim.scaling, each with its source",
        "data: numsim/data/README.md (E. Alpaydin, C. Kaynak, UCI digits, doi.org/10.24432/C50P49, CC BY 4.0)",
        "DeepSpeed issue 1022: skipped steps taken for an error of training",
    ),
    defaults={"interval": 80, "scale": 24, "steps": 2500, "burst": 5, "events": "ICICIICCCCCI"},
    run=run,
    draw=_draw,
    against=("numpy", "torch-cpu"),
    full={"steps": 10_000, "interval": 500},
)
