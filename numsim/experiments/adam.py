"""Adam in 16 bits: an eps that is zero, a second moment that stalls and never decays, a weight decay without effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import from_codes
from numsim.codes import Codes, decode, ulp
from numsim.experiments.block_units import fp32, power
from numsim.experiments.experiment import (
    Experiment,
    Result,
    Session,
    Table,
    cell,
    check_formats,
    check_real,
    check_whole,
    listed,
)
from numsim.formats import FP32, FP64, Format
from numsim.machines.question import ask
from numsim.optimizers import Adam
from numsim.optimizers.optimizers import ORDERS
from numsim.rounding import encode
from numsim.traces import Event, Trace

Floats = npt.NDArray[np.float64]
_CONSTANTS = ((1e-8, "eps"), (1e-7, "eps"), (0.9, "beta1"), (0.95, "beta2"), (0.999, "beta2"), (0.001, "1 - beta2"))
_BETAS = (0.9, 0.95, 0.99, 0.999, 0.9999)
_GRADIENTS = (0.0, 1e-4, 1e-3, 1e-2, 1.0)  # of the first step
_HALVES = tuple(2.0**-k for k in range(7, 17))  # the largest decay without effect is half a spacing below 1
_DECAYS = tuple(sorted({*(float(f"{m}e{e}") for e in range(-5, -1) for m in (1, 1.5, 2, 3, 5, 7)), *_HALVES}))
_SHOWN = (1e-5, 1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2)
_TIMES = 1000  # weight decays
_POINTS = 250  # of a trace
_EXAMPLE = 'numsim.experiments.run("adam", gradient=0.5, beta2=0.99)'


def run(
    session: Session,
    *,
    formats: Sequence[str] = ("bf16", "fp16"),
    gradient: float = 1.0,
    beta2: float = 0.999,
    eps: float = 1e-8,
    lr: float = 1e-3,
    steps: int = 5000,
) -> Result:
    """Adam's constants, second moment, first step and weight decay in formats of at most 16 bits.

    Parameters: ``formats`` of weights, gradients and states; ``gradient``, the same for ``steps`` steps, and 0 for as
    many more; ``beta2``, ``eps`` and ``lr`` of the optimizer. The second moment is computed without fused
    multiply-adds; for gradients that are powers of two that makes no difference.
    """
    chosen = check_formats(
        "formats", formats, lambda f: f.bits <= 16 and f.fits(FP32) and f.signed and f.zero and f.nan_code is not None,
        "signed formats of at most 16 bits with zero and NaN are needed", "formats=['bf16', 'fp16']",
    )  # fmt: skip
    gradient = check_real("gradient", gradient, 1e-6, 1e6, _EXAMPLE)
    beta2 = check_real("beta2", beta2, 0.5, 0.99999, _EXAMPLE)
    eps = check_real("eps", eps, 0.0, 1.0, _EXAMPLE)
    lr = check_real("lr", lr, 1e-8, 1.0, _EXAMPLE)
    steps = check_whole("steps", steps, 10, 100_000, _EXAMPLE)

    constants = {f: c for f in chosen if (c := _constants(session, f)) is not None}
    betas = sorted({*_BETAS, beta2})
    moments = {(f, b): m for f in chosen for b in betas if (m := SecondMoment.ask(session, f, b, gradient))}
    ends = {key: {order: m.follow(order, steps) for order in ORDERS} for key, m in moments.items()}
    decays = {f: d for f in chosen if (d := _decays(session, f)) is not None}
    gone = {f: g for f in chosen if (g := _first_moment_is_zero(session, f, beta2)) is not None}
    ways = [(f, order) for f in chosen for order in ORDERS if f in constants]
    first = {way: _first_step(*way, beta2, eps, lr) for way in ways}
    asked = {f: ends[f, beta2] for f in chosen if (f, beta2) in ends}
    tables = (
        Table(
            "Adam's constants, cast",
            ("constant", "", *(f.title for f in constants)),
            tuple((x, name, *(cell(c[i], 6) for c in constants.values())) for i, (x, name) in enumerate(_CONSTANTS)),
        ),
        *(
            Table(
                title,
                ("v in", "order", *(f"{b:g}" for b in betas)),
                (
                    ("exact", None, *(cell(_exact(b, gradient, steps, at), 3) for b in betas)),
                    *((f.title, o, *(cell(ends[f, b][o][at], 3) for b in betas)) for f in asked for o in ORDERS),
                ) if asked else (),
            )
            for title, at in (
                (f"v after {steps} gradients of {gradient:g}, by beta2", steps),
                (f"v after {steps} more gradients of 0, by beta2", 2 * steps),
            )
        ),
        Table(
            f"A weight of 1 after the first step, by its gradient; lr {lr:g}, eps {eps:g}",
            ("stored in", "order", *(f"{g:g}" for g in _GRADIENTS)),
            tuple((f.title, order, *(cell(w, 6) for w in weights)) for (f, order), weights in first.items()),
        ),
        Table(
            f"A weight of 1 after {_TIMES} weight decays: w *= 1 - lr * weight_decay",
            ("lr * weight_decay", "exact", *(f.title for f in decays)),
            tuple((x, cell((1 - x) ** _TIMES, 4), *(cell(d[_DECAYS.index(x)], 4) for d in decays.values()))
                  for x in _SHOWN),
        ),
    )  # fmt: skip
    every = max(1, steps // _POINTS)
    at = np.arange(0, 2 * steps + 1, every)
    zeros = int(at[np.searchsorted(at, steps)])  # the first step shown that knows of them
    return Result(
        experiment="adam",
        parameters={
            "formats": [f.name for f in chosen], "gradient": gradient, "beta2": beta2, "eps": eps, "lr": lr,
            "steps": steps,
        },
        answer=str(cell(asked[chosen[0]]["single-tensor"][steps], 4))
        if chosen[0] in asked else "not answered by this machine",
        tables=tuple(t for t in tables if t.rows and len(t.columns) > 2),
        findings=tuple(_findings(constants, asked, decays, gone, first, (gradient, beta2, eps, steps))),
        series={
            "gradient": gradient,
            "beta2": beta2,
            "steps": steps,
            "decays": list(_DECAYS),
            "decayed": {f.title: d.tolist() for f, d in decays.items()},
        },
        traces={
            f.title: Trace(
                f"v in {f.title}, gradients of {gradient:g}, then of 0", at,
                {order: from_codes(moments[f, beta2].codes(order, steps)[at], f) for order in ORDERS},
                (Event(zeros, "zeros", "from here on gradients are 0"),),
                about={"beta2": beta2, "gradient": gradient},
            )
            for f in asked
        },
    )  # fmt: skip


# --- what is asked ---------------------------------------------------------------------------------------------------
def _constants(session: Session, format: Format) -> Floats | None:
    codes = encode([x for x, _ in _CONSTANTS], FP64)
    answer = session.ask(ask("cast", [FP64], format, [codes]))
    return None if answer is None else decode(answer, format)


class SecondMoment:
    """What one step makes of every v of a format: v <- beta2 * v + (1 - beta2) * g * g, in each order of roundings.

    The steps are tables over all codes, so that thousands of them need a handful of questions.
    """

    def __init__(self, format: Format, grows: Mapping[str, Codes], decays: Mapping[str, Codes]) -> None:
        self.format, self.grows, self.decays = format, grows, decays

    @classmethod
    def ask(cls, session: Session, format: Format, beta2: float, gradient: float) -> SecondMoment | None:
        v = _all_codes(format)
        g = decode(encode(gradient, format), format)
        short = _cast(session, fp32(beta2), format)  # foreach rounds the factor first
        part = _mul(session, _mul(session, fp32(1 - beta2), fp32(g)), fp32(g))
        whole = _mul(session, fp32(decode(v, format)), fp32(beta2))
        cut = None if short is None else _mul(session, fp32(decode(v, format)), fp32(decode(short, format)))
        grows, decays = {}, {}
        for order, product in (("single-tensor", whole), ("foreach", cut), ("fused", whole)):
            if product is None or part is None or (rounded := _cast(session, product, format)) is None:
                return None
            kept = product if order == "fused" else fp32(decode(rounded, format))
            sums = session.ask(ask("add", [FP32, FP32], FP32, [kept, part]))
            grown = None if sums is None else _cast(session, sums, format)
            if grown is None:
                return None
            grows[order], decays[order] = grown, rounded
        return cls(format, grows, decays)

    def codes(self, order: str, steps: int) -> Codes:
        """v from 0 on, after 0, 1, ... steps with the gradient and as many with a gradient of 0."""
        path = [0]
        for table in (self.grows[order].tolist(), self.decays[order].tolist()):
            for _ in range(steps):
                path.append(table[path[-1]])
        return np.array(path, self.grows[order].dtype)

    def follow(self, order: str, steps: int) -> Floats:
        return np.asarray(decode(self.codes(order, steps), self.format))


def _all_codes(format: Format) -> Codes:
    """All codes without a sign, of numbers from 0 to NaN."""
    return np.arange(format.sign_mask, dtype=np.asarray(encode(0.0, format)).dtype)


def _mul(session: Session, x: Codes | None, y: Codes) -> Codes | None:
    return None if x is None else session.ask(ask("mul", [FP32, FP32], FP32, [x, y]))


def _cast(session: Session, x: Codes | None, format: Format) -> Codes | None:
    return None if x is None else session.ask(ask("cast", [FP32], format, [x]))


def _first_moment_is_zero(session: Session, format: Format, beta2: float) -> float | None:
    """The largest gradient whose (1 - beta2) * g * g is zero in the format."""
    g = fp32(decode(_all_codes(format), format))
    v = _cast(session, _mul(session, _mul(session, g, fp32(1 - beta2)), g), format)
    return None if v is None else float(decode(_all_codes(format), format)[int(np.count_nonzero(v == 0)) - 1])


def _decays(session: Session, format: Format) -> Floats | None:
    """A weight of 1 after all decays, for each size of them."""
    weights = _all_codes(format)[: int(encode(1.0, format)) + 1]
    factors = fp32([1 - x for x in _DECAYS])
    smaller = _cast(session, _mul(session, fp32(decode(weights, format)), factors[:, None]), format)
    if smaller is None:
        return None
    w = np.full(len(_DECAYS), weights[-1])
    for _ in range(_TIMES):
        w = smaller[np.arange(len(w)), w]
    return np.asarray(decode(w, format))


def _first_step(format: Format, order: str, beta2: float, eps: float, lr: float) -> list[float]:
    adam = Adam(lr, betas=(0.9, beta2), eps=eps, format=format, order=order)
    return adam.step(adam.initial(np.ones(len(_GRADIENTS))), _GRADIENTS).weights.tolist()  # type: ignore[no-any-return]


def _exact(beta2: float, gradient: float, steps: int, at: int) -> float:
    """v after ``at`` steps, of which the first ``steps`` had the gradient and the others none."""
    return float((1 - beta2**steps) * beta2 ** (at - steps) * gradient**2)


# --- words -----------------------------------------------------------------------------------------------------------
def _findings(
    constants: Mapping[Format, Floats],
    asked: Mapping[Format, Mapping[str, Floats]],
    decays: Mapping[Format, Floats],
    gone: Mapping[Format, float],
    first: Mapping[tuple[Format, str], list[float]],
    settings: tuple[float, float, float, int],
) -> list[str]:
    gradient, beta2, eps, steps = settings
    found = []
    due = cell(_exact(beta2, gradient, steps, steps), 4)
    for f, ends in asked.items():
        said = [f"{cell(v[steps], 4)} ({order})" for order, v in ends.items()]
        found.append(f"v should be {due} after {steps} gradients of {gradient:g}: in {f.title} it is {listed(said)}.")
    for f, ends in asked.items():
        tops = [v[steps] for v in ends.values()]
        stuck = [order for order, v in ends.items() if v[-1] == v[steps] > 0]
        if not np.isfinite(tops).all() or not any(tops):
            found.append(f"In {f.title} {'v is 0 at every step' if not any(tops) else 'v overflows'}.")
        elif stuck:
            why = {order: _kept(f, order, ends[order][steps], beta2) for order in stuck}
            reasons = [f"{listed([o for o in stuck if why[o] == w])} {w}" for w in dict.fromkeys(why.values())]
            found.append(
                f"In {f.title} v never decays ({listed(stuck)}): after {steps} gradients of 0 it is what it was. "
                f"{'; '.join(reasons)}."
            )
        else:
            said = [f"{cell(v[-1], 3)} ({order})" for order, v in ends.items()]
            exact = cell(_exact(beta2, gradient, steps, 2 * steps), 3)
            found.append(f"In {f.title} v does decay, to {listed(said)}; exactly it would be {exact}.")
    rounded = [f"{cell(c[i], 6)} in {f.title}" for i in (0, 4) for f, c in constants.items()]
    if constants:
        half = len(constants)
        found.append(
            f"Cast, an eps of 1e-8 is {listed(rounded[:half])}; a beta2 of 0.999 is {listed(rounded[half:])}. "
            "A tensor is multiplied by the constant itself in the orders single-tensor and fused; foreach on the CPU "
            "casts it first."
        )
    odd = {
        way: [f"{w} at {g:g}" for g, w in zip(_GRADIENTS, weights, strict=True) if not np.isfinite(w)]
        for way, weights in first.items()
    }
    broken = [f"{f.title} {order}: {listed(said)}" for (f, order), said in odd.items() if said]
    fine = [f"{f.title} {order}" for (f, order), said in odd.items() if not said]
    if broken:
        rest = f" Finite weights in {listed(fine)}." if fine else ""
        found.append(f"One step with an eps of {eps:g} gives {'; '.join(broken)} (the gradient).{rest}")
    elif fine:
        found.append(f"One step with an eps of {eps:g} gives finite weights in all of {listed(fine)}.")
    if gone:
        zeros = [f"{cell(g, 3)} in {f.title}" for f, g in gone.items()]
        found.append(f"After the first step v is 0 for gradients up to {listed(zeros)}.")
    if decays:
        still = [
            f"{power(max(x for x, w in zip(_DECAYS, d, strict=True) if w == 1))} in {f.title}"
            for f, d in decays.items()
            if (d == 1).any()
        ]
        found.append(
            f"Weight decay leaves a weight of 1 where it is, {_TIMES} times over, for lr * weight_decay up to "
            f"{listed(still)}."
            if still else f"No weight decay tried here leaves a weight of 1 where it is in {_titles(decays)}."
        )  # fmt: skip
    return found


def _kept(format: Format, order: str, v: float, beta2: float) -> str:
    """Why v stays as it is, in an order of roundings."""
    factor = float(decode(encode(beta2, format), format)) if order == "foreach" else beta2
    if factor == 1:
        return "casts beta2 to 1, which takes nothing"
    above = float(ulp(encode(v, format), format))
    below = above / 2 if np.frexp(v)[0] == 0.5 else above
    return f"takes {(1 - factor) * v:.2g} from {cell(v, 4)}, and the next number below is {below:.2g} away"


def _titles(formats: Mapping[Format, Any]) -> str:
    return listed([f.title for f in formats])


def _draw(result: Result, style: str) -> Any:
    from numsim.show import update_plots

    return update_plots.adam(result, style)


EXPERIMENT = Experiment(
    name="adam",
    question=(
        "Adam keeps its second moment v in BF16, with beta2 0.999, and torch rounds after every operation. "
        "The gradient is 1 at each of 5000 steps, so that v should be 0.9933. What is v?"
    ),
    choices=("0.9933", "0.5", "0.25", "0"),
    wrong_guess="0.9933",
    why_wrong=(
        "BF16 holds 0.9933 to 3 digits, so its error should be small. But v gets there in steps of a thousandth, and "
        "at 0.5 BF16's numbers are 1/256 apart: a thousandth is less than half of that, and every addition is lost. "
        "So is every multiplication by 0.999, which changes v by less than half a spacing at any size. "
        "That is torch's order single-tensor, one tensor after another, each result rounded; foreach, for lists of "
        "tensors, rounds the constants too on a CPU; fused, one kernel, rounds only what it stores."
    ),
    explanation=(
        "An average with a beta near 1 changes by a small part of itself at each step, and a format whose numbers lie "
        "further apart than that does not see it: BF16's v stalls on its way up and never comes down again. "
        "FP16 has the bits for it and lacks the range: an eps of 1e-8 and small squared gradients are zero, and 0 / 0 "
        "is NaN. "
        "The same arithmetic in FP32 has neither trouble: states in FP32, or a fused kernel for the denominator, or an "
        "eps that the format has; a fused kernel still rounds v when it is stored."
    ),
    sources=(
        "D. Kingma, J. Ba, Adam, ICLR 2015; I. Loshchilov, F. Hutter, Decoupled Weight Decay, ICLR 2019",
        "pytorch 2.13 torch/optim/adam.py (what is rounded when: numsim.optimizers)",
        "optax issue 1754, pytorch issue 8860, chainer issue 6299: NaN from an eps that is 0 in FP16",
        "OneTrainer issues 996 and 1005: weight decay without effect in BF16",
    ),
    defaults={
        "formats": ("bf16", "fp16"), "gradient": 1.0, "beta2": 0.999, "eps": 1e-8, "lr": 1e-3, "steps": 5000,
    },
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes", "torch-cpu"),
    full={"steps": 50_000},
)  # fmt: skip
