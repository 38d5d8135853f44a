"""Delayed scaling: a scale that lags one step behind, a spike that it remembers, an infinity that freezes it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import decode
from numsim.data import load_gradients
from numsim.experiments.block_units import clipped_means, saturated
from numsim.experiments.experiment import (
    Experiment,
    Result,
    Session,
    Table,
    cell,
    check_real,
    check_whole,
    listed,
    percent,
)
from numsim.formats import FP32, Format, get_format
from numsim.machines.question import ask
from numsim.rounding import encode
from numsim.scaling import DelayedScaling, replay_amaxes
from numsim.traces import Trace

Floats = npt.NDArray[np.float64]
DIRECTIONS = ("forward", "backward")  # E4M3 and E5M2
_LENGTHS = (1, 4, 16, 1024)
_CALM, _GROWING = 8, 4  # steps before the amax grows, and while it does
_TENSORS = {"input": "forward", "weight": "forward", "grad_output": "backward"}
_EXAMPLE = 'numsim.experiments.run("delayed-scaling", history=16)'


def run(session: Session, *, history: int = 16, growth: float = 2.0, spike: float = 64.0) -> Result:
    """A tensor whose amax grows, has a spike and an infinity, and the amaxes of a real training.

    Parameters: ``history``, the updates that "max" remembers; ``growth``, by which the amax is multiplied in four steps
    in a row; ``spike``, by which it is multiplied in one step.
    """
    history = check_whole("history", history, 1, 64, _EXAMPLE)
    growth = check_real("growth", growth, 1.01, 16.0, _EXAMPLE)
    spike = check_real("spike", spike, 1.125, 4096.0, _EXAMPLE)
    steps = story(history, growth, spike)
    tensor = _tensor()
    made = [_like(tensor, amax, before) for before, amax in itertools.pairwise([1.0, *steps.values])]
    recipes = {f"max of {history}": DelayedScaling(amax_history_len=history),
               "most recent": DelayedScaling(amax_history_len=history, amax_compute_algo="most_recent")}  # fmt: skip
    traces = {(n, d): replay_amaxes(r, tensors=made, direction=d) for n, r in recipes.items() for d in DIRECTIONS}
    zeros = {key: z for key, t in traces.items() if (z := _zeros(session, made, t, key[1])) is not None}

    recorded = load_gradients().amaxes
    quotients = {name: q for name in _TENSORS if (q := _quotients(session, recorded[name], name)) is not None}
    sweep = {
        (algo, n): {name: _fit(recorded[name], quotients.get(name), n, algo, d) for name, d in _TENSORS.items()}
        for algo, n in [("most_recent", 1), *(("max", n) for n in sorted({*_LENGTHS[1:], history} - {1}))]
    }
    frozen = {key: _frozen(*key) for key in sweep}
    long, _ = recipes
    e4m3 = {name: traces[name, "forward"] for name in recipes}
    tables = (
        Table(
            f"E4M3 step by step; M: scale by the {long}, R: by the most recent amax",
            ("step", "what", "amax", "limit M", "limit R", "clipped M", "-> 0 M", "-> 0 R"),
            tuple(
                (i, what, cell(steps.values[i], 5), *(cell(float(t["clip limit"][i]), 5) for t in e4m3.values()),
                 percent(e4m3[long]["share clipped"][i]),
                 *(percent(zeros[n, "forward"][i]) if (n, "forward") in zeros else None for n in recipes))
                for i, what in steps.told.items()
            ),
        ),
        Table(
            f"Of {len(recorded['weight'])} real updates: steps that clip, powers of 2 of room; updates inf freezes",
            ("scale by", *(column for name in _TENSORS for column in (name, "room")), "frozen"),
            tuple(
                (_name(*key), *(x for clips, room, _ in fits.values() for x in (clips, room)), frozen[key])
                for key, fits in sweep.items()
            ),
        ),
    )  # fmt: skip
    answered = bool(session.answers)
    return Result(
        experiment="delayed-scaling",
        parameters={"history": history, "growth": growth, "spike": spike},
        answer=str(len(e4m3[long].happened("frozen"))) if answered else "not answered",
        tables=tables if answered else (),
        findings=tuple(_findings(steps, traces, zeros, sweep, frozen, quotients)),
        series={
            "story": {str(i): what for i, what in steps.told.items()} if answered else {},
            "zeros": {name: zeros[name, "forward"].tolist() for name in recipes if (name, "forward") in zeros},
            "sweep": {_name(*key): {n: list(fit) for n, fit in fits.items()} for key, fits in sweep.items()},
            "updates": len(recorded["weight"]),
        },
        traces=e4m3,
    )


# --- the story -------------------------------------------------------------------------------------------------------
class Story:
    """Amaxes step by step, and at some steps what happens there."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.told: dict[int, str] = {}

    def add(self, what: str, *amaxes: float) -> None:
        """Steps, of which the first is told of."""
        if amaxes:
            self.told[len(self.values)] = what
            self.values.extend(amaxes)

    def at(self, what: str) -> int:
        """The step at which something happens."""
        return next(step for step, told in self.told.items() if told == what)


def story(history: int, growth: float, spike: float) -> Story:
    """A first step, growth, a spike, an infinity; each is followed until a history of that length has forgotten it."""
    told, high = Story(), growth**_GROWING
    told.add("first step", 1.0)
    told.add("calm", *[1.0] * (_CALM - 1))
    told.add("growth", *(growth**k for k in range(1, _GROWING + 1)))
    told.add("grown", *[high] * (history + 2))
    told.add("spike", high * spike)
    told.add("after the spike", high)
    told.add("one step later", *[high] * (history - 1))
    told.add("spike forgotten", *[high] * 3)
    told.add("infinity", np.inf)
    told.add("after infinity", high / 2)
    told.add("one step later", *[high / 2] * (history - 1))
    told.add("inf forgotten", *[high / 2] * 4)
    return told


def _tensor() -> npt.NDArray[np.float32]:
    """The recorded gradients of a layer's output that are not zero, the largest of them 1."""
    x = load_gradients().matrices["grad_output"][2000]
    x = x[x != 0]
    return np.asarray(x / np.abs(x).max())


def _like(tensor: npt.NDArray[np.float32], amax: float, before: float) -> npt.NDArray[np.float32]:
    """The tensor with another amax; for an infinite one the tensor of the step before, its largest element infinite."""
    like: npt.NDArray[np.float32] = tensor * np.float32(before if np.isinf(amax) else amax)
    return np.where(np.abs(tensor) == 1, np.copysign(np.float32(amax), tensor), like)


def _zeros(session: Session, tensors: Sequence[npt.NDArray[np.float32]], trace: Trace, direction: str) -> Floats | None:
    """The share of each step's numbers that become 0, by the machine's casts."""
    element = get_format(DelayedScaling().format(direction).element)
    with np.errstate(all="ignore"):
        scaled = np.stack(tensors) * trace["scale used"].astype(np.float32)[:, None]
    codes = saturated(session, scaled, element)
    return None if codes is None else np.mean(decode(codes, element) == 0, axis=1)


# --- a real training -------------------------------------------------------------------------------------------------
def _quotients(session: Session, amaxes: npt.NDArray[np.float32], name: str) -> Floats | None:
    """The scale that each amax itself would have made: the machine divides."""
    fp8_max = np.full(amaxes.shape, encode(DelayedScaling().format(_TENSORS[name]).element_max, FP32))
    codes = session.ask(ask("div", [FP32, FP32], FP32, [fp8_max, amaxes.view(np.uint32)]))
    return None if codes is None else decode(codes, FP32)


def _fit(
    amaxes: npt.NDArray[np.float32], quotients: Floats | None, history: int, algo: str, direction: str
) -> tuple[int, float | None, float]:
    """Steps that clip, binades between amax and limit on average, and how far above the limit the worst amax is.

    The first step, with its scale of 1, is left out.
    """
    recipe = DelayedScaling(amax_history_len=history, amax_compute_algo=algo)
    trace = replay_amaxes(recipe, amaxes, direction=direction)
    clipped = [step for step in trace.happened("clipped") if step]
    used = trace["scale used"][1:]
    room = None if quotients is None else round(float(np.log2(quotients[1:] / used).mean()), 2) + 0.0
    worst = float((amaxes[1:] / trace["clip limit"][1:]).max())
    return len(clipped), room, worst


def _frozen(algo: str, history: int) -> int:
    """For how many updates an infinity keeps the scale."""
    recipe = DelayedScaling(amax_history_len=history, amax_compute_algo=algo)
    return len(replay_amaxes(recipe, [1.0, np.inf, *[1.0] * (history + 2)]).happened("frozen"))


# --- words -----------------------------------------------------------------------------------------------------------
def _name(algo: str, history: int) -> str:
    return "most recent" if algo == "most_recent" else f"max of {history}"


def _times(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _findings(
    steps: Story,
    traces: Mapping[tuple[str, str], Trace],
    zeros: Mapping[tuple[str, str], Floats],
    sweep: Mapping[tuple[str, int], Mapping[str, tuple[int, float | None, float]]],
    frozen: Mapping[tuple[str, int], int],
    quotients: Mapping[str, Floats],
) -> list[str]:
    long, short = (name for name, d in traces if d == "forward")
    e4m3, recent = traces[long, "forward"], traces[short, "forward"]
    growing = range(steps.at("growth"), steps.at("growth") + _GROWING)
    spike, after = steps.at("spike"), steps.at("after the spike")
    late = [i for i in growing if i in e4m3.happened("clipped")]
    found = []
    if late:
        over = cell(steps.values[late[0]] / float(e4m3["clip limit"][late[0]]), 3)
        found.append(
            f"While the amax grows, {len(late)} of {_GROWING} steps clip, the amax at {over} times the limit: the "
            "scale is that of the step before. No history helps against growth, for it holds what was smaller."
        )
    else:
        found.append(f"The amax grows so slowly that none of the {_GROWING} steps clips: 464 still rounds to 448.")
    meant = clipped_means(e for d in DIRECTIONS if isinstance(e := DelayedScaling().format(d).element, Format))
    found[-1] += f" {meant}"
    lasting = [f"for {_times(_since(t, after), 'step')} by {name}" for name, t in ((long, e4m3), (short, recent))]
    found.append(
        f"The spike clips {percent(e4m3['share clipped'][spike])} of the numbers in E4M3. Then the limit is "
        f"{cell(float(e4m3['clip limit'][after]), 5)}, {listed(lasting)}."
    )
    for d in DIRECTIONS:
        if (long, d) in zeros:
            z = zeros[long, d]
            found.append(
                f"What a limit that is too high costs in {DelayedScaling().format(d).element.title}: "
                f"{percent(z[spike - 1])} of the numbers become 0 before the spike, {percent(z[after])} after it, "
                f"{percent(z[0])} in the first step with its scale of 1."
            )
    ice = [f"{_times(n, 'update')} by {_name(*key)}" for key, n in frozen.items()]
    found.append(
        f"One infinity keeps the scale for {listed(ice)}: a maximum is infinite as long as one of its numbers."
    )
    if quotients:
        ends = [min(sweep, key=lambda k: k[1]), max(sweep, key=lambda k: k[1])]
        said = [
            f"{_name(*key)} clips {clips} steps and leaves {room:g} binades of room"
            for key in ends
            for clips, room, _ in [sweep[key]["grad_output"]]
        ]
        found.append(f"Real gradients (grad_output, E5M2): {listed(said)} on average, a binade being a factor of 2.")
    never = [name for name in _TENSORS if not any(fits[name][0] for fits in sweep.values())]
    if never:
        most = max(fits[name][2] for fits in sweep.values() for name in never)
        found.append(
            f"What does not fail: the amax of the {listed(never)} moves so little in a step that no length of history "
            f"clips it (at most {cell(most, 5)} times the limit; rounding to nearest allows 464 / 448)."
        )
    return found


def _since(trace: Trace, step: int) -> int:
    """How many steps the scale of one step is used."""
    used = trace["scale used"][step:]
    return int(np.argmax(used != used[0]))


def _draw(result: Result, style: str) -> Any:
    from numsim.show import recipe_plots

    return recipe_plots.delayed_scaling(result, style)


EXPERIMENT = Experiment(
    name="delayed-scaling",
    question=(
        "FP8 with delayed scaling, history 16, algorithm max. One gradient overflows to infinity, once; all later ones "
        "are finite. For how many updates does the scale stay as it is?"
    ),
    choices=("1", "15", "16", "for ever"),
    wrong_guess="1",
    why_wrong=(
        "The step with the infinity passes, but its amax (largest magnitude) has gone into the history, and the "
        "largest of the history is infinite until the entry has left it. The entry that leaves still counts in its "
        "last update, so it is 16 updates and not 15; with the default history of 1024 it is 1024. Below, the limit is "
        "448 / scale, the largest number that the scale leaves room for, and -> 0 the share of numbers that becomes 0."
    ),
    explanation=(
        "Delayed scaling quantises a tensor with a scale made from the amaxes of earlier steps, so that it need not "
        "read the tensor twice; what grows from one step to the next is clipped. "
        "A long history takes the largest of many steps, which leaves room and clips seldom, but remembers a spike and "
        "an infinity for as long as it is; a short one forgets at once and clips often. "
        "The growth, the spike and the infinity are made up, the tensor and the amaxes are those of one small network."
    ),
    sources=(
        "NVIDIA Transformer Engine d0067d0, common/recipe/delayed_scaling.cu and pytorch/quantization.py",
        "P. Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433 (2022)",
        "github.com/NVIDIA/TransformerEngine issue 814 and pull request 825: a history that moved without a tensor",
        "data: numsim/data/README.md (E. Alpaydin, C. Kaynak, UCI digits, doi.org/10.24432/C50P49, CC BY 4.0)",
    ),
    defaults={"history": 16, "growth": 2.0, "spike": 64.0},
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes", "torch-cpu"),
    full={"spike": 4096.0},  # another history would have another answer
)
