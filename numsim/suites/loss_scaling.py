"""Loss scaling for real: a network learns under autocast with torch's GradScaler on the machine, and is replayed here.

What the scaler does is arithmetic that numsim predicts: from the string of overflows every scale, every count and every
unscaled gradient follow, bit by bit. What the network learns is not: two devices add up matrix products in different
orders, after one step the weights differ in their last bits, and after fifty they are others. So loss and ranges of
gradients stand beside those of a run on this CPU, to be looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from numsim.array import array
from numsim.codes import decode
from numsim.errors import InputError, RecordError, UnavailableError, short
from numsim.formats import FP32
from numsim.machines.question import REPLAYS, Answer, Question, ask
from numsim.machines.recorded import Record
from numsim.machines.verdict import Verdict, compare_traces
from numsim.rounding import encode
from numsim.scaling import replay
from numsim.scaling.scaler import reciprocal
from numsim.suites.suite import Collector, Row, Suite, compare_parts
from numsim.traces import Trace
from numsim.training.digits import LAYERS, SCALER, Run, train
from numsim.wording import percent

STEPS, BATCH = 200, 32
_SPIKE, _KEEP = 100, (1, 50, 100, 150)
_ODD = {"init_scale": 3e6, "growth_factor": 1.7, "backoff_factor": 0.6, "growth_interval": 5}
_SCALED = {"dtype": "float16", "spikes": (_SPIKE,), "keep": _KEEP}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "fp16": {**_SCALED, "scaler": SCALER},
    "fp16-odd": {**_SCALED, "scaler": _ODD},  # factors that are no powers of two: every product is rounded
    "fp16-bare": {"dtype": "float16", "scaler": None},
    "bf16": {"dtype": "bfloat16", "scaler": None},
    "fp32": {"dtype": "float32", "scaler": None},
}
DEVICES = {"cuda": "cuda", "torch-cpu": "cpu"}  # of machines that train


def device_of(machine: Any) -> str:
    """torch's name of what a machine trains on. Raises ``UnavailableError`` where it does not train."""
    if machine.name not in DEVICES:
        raise UnavailableError(f"{machine.name} trains no network. Example: --machine torch-cpu")
    return DEVICES[machine.name]


def _ask(collector: Collector) -> None:
    for name, settings in RUNS.items():
        part = f"{name}: scale" if settings["scaler"] else f"{name}: course"
        with collector.part(part):
            run = train(device_of(collector.machine), steps=STEPS, batch=BATCH, seed=collector.seed, **settings)
            collector.traces[name] = run.trace
            if settings["scaler"]:
                _give(collector, part, *_scales(run, settings["scaler"]))
                for question, codes in _unscaled(run):
                    _give(collector, f"{name}: unscale", question, codes)


def _give(collector: Collector, part: str, question: Question, codes: Any) -> None:
    """What the machine's own training has already computed, as its answer."""
    collector.answers.append((question, Answer(codes, collector.machine.provenance())))
    collector.parts.append(part)


def _scales(run: Run, settings: Mapping[str, float]) -> tuple[Question, Any]:
    """The run's string of overflows, and its scale after each step."""
    found, scale = (run.trace.series[name].codes for name in ("found_inf", "scale"))  # type: ignore[union-attr]
    return ask("scaler", ["fp32"], "fp32", [found], system="torch", settings=dict(settings)), scale


def _unscaled(run: Run) -> Iterator[tuple[Question, Any]]:
    """Gradients times 1 / scale, as the scaler's kernel has computed them."""
    for step, tensors in run.tensors.items():
        inverse = encode(reciprocal(float(run.trace["scale used"][step - 1])), FP32)
        yield ask("mul", ["fp32", "fp32"], "fp32", [tensors["scaled"], inverse]), tensors["gradient"]


# --- comparing --------------------------------------------------------------------------------------------------------
def _compare(record: Record) -> list[Row]:
    rows = compare_parts(record)
    strings = {part: q for part, (q, _) in zip(record.parts, record.answers, strict=True) if q.operation in REPLAYS}
    for name, trace in record.traces.items():
        if not len(trace):
            raise RecordError(f"the trace {short(name)} has no steps.")
        _check(name, trace, ["loss", *(s for what in ("amax", "least", "lost") for s in _of_layers(what))])
        if string := strings.get(f"{name}: scale"):
            rows += _replayed(record.machine, name, trace, string)
        rows.append(_beside(record.machine, name, trace))
    return rows


def _replayed(machine: str, name: str, trace: Trace, string: Question) -> Iterator[Row]:
    """The trace of a run, and what numsim's scaler makes of its overflows."""
    scaler = ("scale used", "scale", "tracker")
    _check(name, trace, ["found_inf", *scaler, *_of_layers("amax", "scaled ")])
    ours = replay(string.scaler, decode(string.arrays[0], FP32))
    amaxes = [trace[series] for series in _of_layers("amax", "scaled ")]
    infinite = array(~np.isfinite(amaxes).all(axis=0), FP32)
    events = [e for e in trace.events if e.kind != "spike"]
    pairs = {
        "tracker": (_part(trace, scaler), _part(ours, scaler)),
        "events": (Trace(trace.title, trace.steps, {}, tuple(events)), Trace(ours.title, ours.steps, {}, ours.events)),
        "found_inf": (_part(trace, ["found_inf"]), Trace(ours.title, ours.steps, {"found_inf": infinite})),
    }
    for part, (theirs, mine) in pairs.items():
        yield Row(f"{name}: {part}", compare_traces(theirs, mine, names=(machine, "emulated")))


def _part(trace: Trace, names: Sequence[str]) -> Trace:
    return Trace(trace.title, trace.steps, {name: trace.series[name] for name in names})


def _beside(machine: str, name: str, trace: Trace) -> Row:
    """What no bits predict: what underflow makes zero, and the loss; with those of the same training on this CPU."""
    here = beside(name, trace)
    why = "no torch for a CPU's" if _of_this_suite(name, trace) else "not this suite's settings: no CPU's beside it"
    note = f"lost {percent(lost(trace))}, loss {final_loss(trace):.2g}; {why}"
    if here:
        note = f"lost {percent(lost(trace))} (CPU {percent(lost(here))}), "
        note += f"loss {final_loss(trace):.2g} ({final_loss(here):.2g})"
    return Row(f"{name}: course", Verdict(machine, "torch-cpu"), note)


def _of_this_suite(name: str, trace: Trace) -> bool:
    """Whether a run has the suite's own settings, with any seed: others are not trained again, they may take hours."""
    if name not in RUNS:
        return False
    run = RUNS[name]
    own = {"dtype": run["dtype"], "steps": STEPS, "batch": BATCH, "spikes": list(run.get("spikes", ())),
           "scaler": run["scaler"] and dict(run["scaler"])}  # fmt: skip
    return own == {key: trace.about.get(key) for key in own}


def beside(name: str, trace: Trace) -> Trace | None:
    """The same training on this CPU; None where torch cannot do it, or where it is none of this suite's."""
    if not _of_this_suite(name, trace):
        return None
    options = {key: trace.about.get(key) for key in ("dtype", "steps", "batch", "seed", "spikes", "scaler")}
    try:
        return _trained(json.dumps(options, sort_keys=True))
    except (InputError, TypeError, AttributeError) as error:
        raise RecordError(f"the trace {short(trace.title)} does not say how it was trained: {error}") from None


@lru_cache(maxsize=len(RUNS))
def _trained(options: str) -> Trace | None:
    try:
        return train("cpu", **json.loads(options)).trace
    except UnavailableError:
        return None


def lost(trace: Trace) -> float:
    """The mean share of gradients that underflow makes zero, of all layers and steps."""
    return float(np.mean([trace[series] for series in _of_layers("lost")]))


def final_loss(trace: Trace) -> float:
    """The mean loss of the last tenth of the steps."""
    return float(np.mean(trace["loss"][-max(len(trace) // 10, 1) :]))


def _of_layers(what: str, prefix: str = "") -> list[str]:
    return [f"{prefix}{layer} {what}" for layer in LAYERS]


def _check(name: str, trace: Trace, needed: Sequence[str]) -> None:
    if missing := [series for series in needed if series not in trace.series]:
        raise RecordError(f"the trace {name!r} is none of this suite: it has no series {missing[0]!r}.")


# --- pictures ---------------------------------------------------------------------------------------------------------
def _draw(record: Record, style: str) -> Any:
    from numsim.show import suite_training_plots

    return suite_training_plots.loss_scaling(record.traces, {n: beside(n, t) for n, t in record.traces.items()}, style)


SUITE = Suite(
    name="loss-scaling",
    title="Loss scaling on a real device",
    question=(
        "A small network learns the digits in FP16 under torch.autocast and GradScaler. Is every scale, every count "
        "and every unscaled gradient what numsim's scaler makes of the same overflows? Its loss and the share of "
        "gradients that underflow makes zero stand beside those of a run on this CPU, not bit by bit: two devices add "
        "in different orders."
    ),
    ask=_ask,
    compare=_compare,
    draw=_draw,
    words=(
        f"fp16: with GradScaler; fp16-odd: with factors {_ODD['growth_factor']} and {_ODD['backoff_factor']}, no "
        "powers of two; fp16-bare, bf16, fp32: without a scaler",
        "course: what a run learns, beside the same on this CPU; lost: gradients that underflow made zero",
    ),
    sources=(
        "PyTorch 2.13, torch/amp/grad_scaler.py and ATen's _amp_update_scale_",
        "P. Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2",
        "E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, doi.org/10.24432/C50P49, CC BY 4.0",
    ),
)
