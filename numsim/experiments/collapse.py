"""The death spiral of a loss scale: overflows that no scale cures, and what each system's floor does about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import decode
from numsim.experiments.experiment import Experiment, Result, Session, Table, cell, check_real, check_whole, listed
from numsim.experiments.scaler_runs import dynamic, played, power_of
from numsim.formats import FP16, FP32, Format
from numsim.machines.question import ask
from numsim.rounding import encode
from numsim.scaling import get_scaler
from numsim.scaling.scaler import reciprocal
from numsim.traces import Trace

Floats = npt.NDArray[np.float64]

_WEIGHT = 1.0
_EXAMPLE = 'numsim.experiments.run("collapse", overflows=300)'


def run(
    session: Session, *, scale: int = 16, overflows: int = 200, gradient: float = 0.01, learning_rate: float = 0.1
) -> Result:
    """Every step overflows; then one clean step comes, and a weight of 1 gets its update.

    Parameters: the scale begins at 2^scale; ``overflows`` in a row, from NaN that no scale cures; ``gradient`` of the
    clean step and ``learning_rate``, both rounded to FP32.
    """
    scale = check_whole("scale", scale, 0, 24, _EXAMPLE)
    overflows = check_whole("overflows", overflows, 180, 1000, _EXAMPLE)
    gradient = check_real("gradient", gradient, 1e-6, 1e3, _EXAMPLE)
    learning_rate = check_real("learning_rate", learning_rate, 1e-6, 1.0, _EXAMPLE)
    falls = {n: played(session, n, {"init_scale": 2.0**scale}, [1] * overflows) for n in dynamic()}
    scales = np.array([2.0**scale, *falls["torch"]["scale"]])
    steps = {f: s for f in (FP32, FP16) if (s := _clean_step(session, "torch", scales, gradient, learning_rate, f))}
    ends = {
        n: {f: _clean_step(session, n, _lived(t, scale), gradient, learning_rate, f) for f in (FP32, FP16)}
        for n, t in falls.items()
    }
    answered = FP32 in steps
    tables = (
        Table(
            "torch.amp.GradScaler: a clean step after so many overflows, in FP32 and FP16",
            ("after", "scale", "1 / scale", "scaled", "unscaled", "weight", "in FP16", "its weight"),
            tuple(_row(n, scales, steps) for n in (_milestones(scales, steps) if answered else [])),
        ),
        Table(
            f"The scalers but static and log-max, {overflows} overflows from 2^{scale}, then a clean step",
            ("system", "scale", "since", "ends", "weight", "in FP16", "destroyed from"),
            tuple(
                (n, power_of(t["scale"][-1]), _reached(t), _stop(t),
                 *(None if _stop(t) else _outcome(ends[n][f]) for f in (FP32, FP16)), _fatal(ends[n][FP32]))
                for n, t in falls.items()
            ) if answered else (),
        ),
    )  # fmt: skip
    return Result(
        experiment="collapse",
        parameters={
            "scale": scale, "overflows": overflows, "gradient": gradient, "learning_rate": learning_rate,
        },
        answer=str(_fatal(steps[FP32])) if answered else "not answered by this machine",
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(scales, steps, falls, ends)),
        series={
            "start": 2.0**scale,
            "weight": {f.name: s.weight.tolist() for f, s in steps.items()},
            "falls": {n: _lived(t, scale).tolist() for n, t in falls.items()},
            "fp16_zero_from": _first(steps[FP16].scaled == 0) if FP16 in steps else None,
            "stops": {n: stop for n, t in falls.items() if (stop := _stop(t))},
            "destroyed_from": {n: _fatal(e[FP32]) for n, e in ends.items()},
        } if answered else {},
        traces={"torch": falls["torch"]} if answered else {},
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Step:
    """One clean gradient, at each scale: scaled, unscaled again, whether that was found to overflow, the weight."""

    scaled: Floats
    unscaled: Floats
    found: npt.NDArray[np.bool_]
    weight: Floats


def _clean_step(
    session: Session, name: str, scales: Floats, gradient: float, learning_rate: float, format: Format
) -> Step | None:
    """A finite gradient, through a system's scaling and unscaling, by the machine's own FP32."""
    scaler = get_scaler(name)
    by, rate, g = (encode(np.broadcast_to(x, scales.shape), FP32) for x in (scales, learning_rate, gradient))
    scaled = session.ask(ask("mul", [FP32, FP32], FP32, [g, by]))
    if scaled is not None and format != FP32:
        narrow = session.ask(ask("cast", [FP32], format, [scaled]))
        scaled = None if narrow is None else session.ask(ask("cast", [format], FP32, [narrow]))
    if scaled is None:
        return None
    operation, factor = "div", by
    if scaler.unscales == "multiply":
        operation, factor = "mul", encode([reciprocal(s) for s in scales.tolist()], FP32)
    unscaled = session.ask(ask(operation, [FP32, FP32], FP32, [scaled, factor]))
    update = None if unscaled is None else session.ask(ask("mul", [FP32, FP32], FP32, [rate, unscaled]))
    one = encode(np.full(scales.shape, _WEIGHT), FP32)
    weight = None if update is None else session.ask(ask("sub", [FP32, FP32], FP32, [one, update]))
    if unscaled is None or weight is None:
        return None
    values = [decode(x, FP32) for x in (scaled, unscaled, weight)]
    looked_at = values[1] if scaler.checks == "unscaled" else values[0]
    return Step(values[0], values[1], ~np.isfinite(looked_at), values[2])


# --- words -----------------------------------------------------------------------------------------------------------
def _first(where: npt.NDArray[np.bool_]) -> int | None:
    return int(where.argmax()) if where.any() else None


def _milestones(scales: Floats, steps: Mapping[Format, Step]) -> list[int]:
    """Numbers of overflows at which something changes, and the ones before."""
    turns = [_first(scales == 1), _first(scales == 0), _fatal(steps[FP32])]
    turns += [_first(step.scaled == 0) for step in steps.values()]
    return sorted({0, len(scales) - 1, *(n - i for n in turns if n for i in (0, 1))})


def _row(n: int, scales: Floats, steps: Mapping[Format, Step]) -> tuple[Any, ...]:
    wide, narrow = steps[FP32], steps.get(FP16)
    in_fp16 = (None, None) if narrow is None else (cell(narrow.scaled[n], 4), cell(narrow.weight[n], 4))
    in_fp32 = (cell(x[n], 4) for x in (wide.scaled, wide.unscaled, wide.weight))
    return n, power_of(scales[n]), power_of(reciprocal(scales[n])), *in_fp32, *in_fp16


def _lived(trace: Trace, scale: int) -> Floats:
    """The scale after 0, 1, ... overflows, as long as the system goes on."""
    scales = np.array([2.0**scale, *trace["scale"]])
    return scales[:-1] if trace.happened("stop") else scales


def _reached(trace: Trace) -> int | None:
    """The overflow that brought the scale to where it ended."""
    return int(trace.steps[trace["scale"] == trace["scale"][-1]][0])


def _stop(trace: Trace) -> str | None:
    stops = trace.happened("stop")
    return f"raises at {stops[0]}" if stops else None


def _outcome(step: Step | None) -> float | int | str | None:
    """The weight after the last of the steps."""
    if step is None:
        return None
    return "skipped" if step.found[-1] else cell(step.weight[-1], 6)


def _fatal(step: Step | None) -> int | None:
    """After how many overflows a clean step runs and leaves no number."""
    return None if step is None else _first(~np.isfinite(step.weight) & ~step.found)


def _findings(
    scales: Floats,
    steps: Mapping[Format, Step],
    falls: Mapping[str, Trace],
    ends: Mapping[str, Mapping[Format, Step | None]],
) -> list[str]:
    found = []
    inverses = np.array([reciprocal(s) for s in scales.tolist()])
    infinite, zero = int(np.isinf(inverses).argmax()), _first(scales == 0)
    found.append(
        f"Nothing stops torch's scale: after {infinite} overflows it is {power_of(scales[infinite])}, whose inverse is "
        f"infinite in FP32; after {zero} it is 0, and stays 0."
    )
    if FP16 in steps and (gone := _first(steps[FP16].scaled == 0)) is not None and steps[FP32].scaled[gone]:
        found.append(
            f"Made in FP16, the gradient itself is lost first: from {gone} overflows on, at a scale of "
            f"{power_of(scales[gone])}, it becomes zero. A step then runs, counts as clean, and changes nothing."
        )
    written = [f"{f.title}: {way}" for f, step in steps.items() if (way := _written(step)) and not step.found.any()]
    if written:
        found.append(
            f"What the clean step writes into the weight, after so many overflows: {'; '.join(written)}. No scaled "
            "gradient is infinite or NaN, so the step runs."
        )
    stopped = [f"{n} at overflow {t.happened('stop')[0]}" for n, t in falls.items() if t.happened("stop")]
    if stopped:
        found.append(f"An error ends the training with {listed(stopped)}.")
    floors: dict[str, list[str]] = {}
    for n, t in falls.items():
        if not t.happened("stop") and t["scale"][-1] == get_scaler(n).floor:
            floors.setdefault(power_of(t["scale"][-1]), []).append(n)
    if floors:
        said = ", ".join(f"{listed(names)} at {scale}" for scale, names in floors.items())
        found.append(f"Floors hold the scale, so that it can come back: {said}.")
    lost: dict[int, list[str]] = {}
    for n, e in ends.items():
        if (fatal := _fatal(e[FP32])) is not None:
            lost.setdefault(fatal, []).append(n)
    if lost:
        said = ", ".join(f"{listed(names)} from {fatal} overflows on" for fatal, names in sorted(lost.items()))
        found.append(
            f"A clean step destroys the weight with {said}.{_divides([n for group in lost.values() for n in group])}"
        )
    return found


def _divides(names: list[str]) -> str:
    dividing = [n for n in names if get_scaler(n).unscales == "divide"]
    return f" The scale itself divides the gradients in {listed(dividing)}: no inverse to overflow." if dividing else ""


def _written(step: Step) -> str:
    """Which numbers that are none, and from how many overflows on."""
    texts = [f"{w:g}" for w in step.weight]
    firsts = {text: texts.index(text) for text in texts if text in ("inf", "-inf", "nan")}
    return ", ".join(f"{text} from {n} on" for text, n in firsts.items())


def _draw(result: Result, style: str) -> Any:
    from numsim.show import scaling_plots

    return scaling_plots.collapse(result, style)


EXPERIMENT = Experiment(
    name="collapse",
    question=(
        "A layer gives NaN, so that every step overflows at any scale. torch.amp.GradScaler, which began at 2^16, "
        "halves it each time. Then one step is clean. After how many overflows does that step destroy the weights?"
    ),
    choices=("never", "16", "144", "166"),
    wrong_guess="never",
    why_wrong=(
        "A clean step is where recovery begins, if 1 / scale is a number. Below 2^-127 it is not: 2^128 is beyond "
        "FP32, and a finite gradient times infinity is infinite, or NaN if it was zero. What is checked is the scaled "
        "gradient, which is finite, so that the step runs."
    ),
    explanation=(
        "Halving cures overflows that come from the scale; NaN does not come from the scale, and without a floor "
        "nothing ends the halving. "
        "The scale passes 1, then FP16's least numbers, then the last scale whose inverse FP32 has, and at the end "
        "becomes zero: from there no step, clean or not, brings it back. "
        "A floor keeps the scale in reach, and a scaler that raises at its floor says what matters: the scale is not "
        "to blame, look for the first tensor that is not finite."
    ),
    sources=(
        "pytorch issue 99640 and pull request 101569: the scale sinks below 1, to 0; insightface issue 2262",
        "DeepSpeed issue 5426; fairseq issues 282 and 515; metaseq pull request 115: loss scale already at minimum",
        "the scalers: numsim.scaling, each with its source",
    ),
    defaults={"scale": 16, "overflows": 200, "gradient": 0.01, "learning_rate": 0.1},
    run=run,
    draw=_draw,
    against=("numpy", "torch-cpu"),
    full={"overflows": 1000},
)
