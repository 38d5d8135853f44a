"""Gradient accumulation: a .grad that stops growing, a division that was forgotten, a mean of means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import from_codes
from numsim.codes import Codes, decode
from numsim.errors import InputError, short
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
    percent,
)
from numsim.formats import FP32, Format
from numsim.machines.question import ask
from numsim.optimizers import SGD, AdamW, Optimizer, accumulate_gradients
from numsim.random import check_seed
from numsim.rounding import encode
from numsim.traces import Event, Trace

Floats = npt.NDArray[np.float64]
_WAYS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("plain", {}),
    ("pairwise", {"order": "pairwise"}),
    ("Kahan", {"order": "kahan"}),
    ("stochastic", {"rounding": "stochastic"}),
    ("FP32 accumulator", {}),
)
_COUNTS = (4, 16, 64, 256, 512, 1024)  # micro-batches that a table shows besides all
_SIZES = tuple(float(f"{m}e{e}") for e in range(-12, 0) for m in (1, 2, 5))  # gradients whose division is forgotten
_SHOWN = (1e-2, 1e-6, 1e-8, 1e-10)
_COPIES = range(2, 17)
_LITTLE = 0.02  # an error of a sum that hardly matters
_POINTS = 500  # of a trace
_EXAMPLE = 'numsim.experiments.run("accumulation", count=1000, tokens=(512, 64))'


def run(
    session: Session,
    *,
    gradient: float = 0.01,
    count: int = 2000,
    formats: Sequence[str] = ("bf16", "fp16", "fp32"),
    divisor: int = 4,
    tokens: Sequence[int] = (2048, 1024, 256, 64),
    seed: int = 1,
) -> Result:
    """The same gradient from many micro-batches, added up in .grad; what a forgotten division does to optimizers.

    Parameters: ``gradient``, ``count`` times, rounded to each of ``formats``; ``divisor``, the micro-batches of the
    window whose division is forgotten; ``tokens`` of the micro-batches of another; ``seed`` of stochastic rounding.
    """
    gradient = check_real("gradient", gradient, 1e-4, 10.0, _EXAMPLE)
    count = check_whole("count", count, 2, 100_000, _EXAMPLE)
    chosen = check_formats(
        "formats", formats, lambda f: f.fits(FP32) and f.signed and f.zero and f.max > 2,
        "signed formats with a zero that FP32 holds are needed", "formats=['bf16', 'fp32']",
    )  # fmt: skip
    terms = {f: float(decode(encode(gradient, f), f)) for f in chosen}
    if zeros := [f.name for f, x in terms.items() if x == 0]:
        raise InputError(f"gradient={gradient:g} is 0 in {listed(zeros)}: a larger one is needed. Example: {_EXAMPLE}")
    divisor = check_whole("divisor", divisor, 2, 1024, _EXAMPLE)
    if not isinstance(tokens, (list, tuple)) or not 2 <= len(tokens) <= 16:
        raise InputError(f"tokens={short(tokens)}: 2 to 16 numbers are needed. Example: {_EXAMPLE}")
    tokens = [check_whole("tokens", n, 1, 10**6, _EXAMPLE) for n in tokens]
    seed = check_seed(seed)

    paths = {f: p for f in chosen if (p := _running(session, f, gradient, count)) is not None}
    sums = {f: _sums(session, f, gradient, count, seed) for f in chosen}
    kept = {f: k for f in chosen if (k := _divided(session, f)) is not None}
    # what the machine has added up is what the optimizers of numsim step with
    forgotten = _forgotten(divisor) if paths else {}
    counts = [n for n in _COUNTS if n < count] + [count]
    tables = (
        Table(
            f"{count} gradients of {gradient:g} in .grad, by how they are added (stochastic: one draw)",
            ("format", *(name for name, _ in _WAYS), "exact"),
            tuple(
                (f.title, *(None if s is None else cell(s, 6) for s in sums[f].values()), cell(count * gradient, 6))
                for f in chosen
                if any(s is not None for s in sums[f].values())
            ),
        ),
        Table(
            "What .grad holds after so many micro-batches, and how far off that is",
            ("after", "exact", *(x for f in paths for x in (f.title, "off by"))),
            tuple(
                (n, cell(n * gradient, 6), *(x for p in paths.values() for x in _after(p, n, gradient))) for n in counts
            ) if paths else (),
        ),
        Table(
            f"The first step without the division by {divisor}, as a multiple of the step with it",
            ("gradient", *forgotten),
            tuple((g, *(cell(x[_SIZES.index(g)], 6) for x in forgotten.values())) for g in _SHOWN) if forgotten else (),
        ),
        Table(
            "What one token counts for, in the mean of means and in the mean of all tokens",
            ("micro-batch", "tokens", "mean of means", "mean of tokens", "ratio"),
            tuple(
                (i + 1, n, cell(1 / (len(tokens) * n), 4), cell(1 / sum(tokens), 4),
                 cell(sum(tokens) / (len(tokens) * n), 4))
                for i, n in enumerate(tokens)
            ) if paths else (),
        ),
    )  # fmt: skip
    return Result(
        experiment="accumulation",
        parameters={
            "gradient": gradient, "count": count, "formats": [f.name for f in chosen], "divisor": divisor,
            "tokens": tokens, "seed": seed,
        },
        answer=str(cell(paths[chosen[0]][-1], 6)) if chosen[0] in paths else "not answered by this machine",
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(gradient, paths, sums, terms, kept, forgotten, divisor, tokens)),
        series={
            "gradient": gradient,
            "count": count,
            "divisor": divisor,
            "sizes": list(_SIZES),
            "factors": {name: list(x) for name, x in forgotten.items()},
            "stalls": {f.title: stalls(p) for f, p in paths.items()},
        },
        traces={"grad": _trace(paths, gradient, count)} if paths else {},
    )  # fmt: skip


# --- what is asked ---------------------------------------------------------------------------------------------------
def _running(session: Session, format: Format, gradient: float, count: int) -> Floats | None:
    """.grad after 1, 2, ..., count micro-batches."""
    codes = session.ask(ask("cumsum", [format], format, [_same(format, gradient, count)]))
    return None if codes is None else np.asarray(decode(codes, format))


def _sums(session: Session, format: Format, gradient: float, count: int, seed: int) -> dict[str, float | None]:
    sums: dict[str, float | None] = {}
    for name, options in _WAYS:
        wide = FP32 if name == "FP32 accumulator" else format
        seeds = {"seed": seed} if "rounding" in options else {}
        codes = session.ask(ask("sum", [format], wide, [_same(format, gradient, count)], **options, **seeds))
        sums[name] = None if codes is None else decode(codes, wide).item()
    return sums


def _same(format: Format, gradient: float, count: int) -> Codes:
    return np.full(count, encode(gradient, format))


def _divided(session: Session, format: Format) -> list[int] | None:
    """The window sizes N for which N gradients of 1 / N add up to 1, sequentially."""
    one = np.full(len(_COPIES), encode(1.0, format))
    parts = session.ask(ask("div", [format, format], format, [one, encode(np.array(_COPIES, float), format)]))
    if parts is None:
        return None
    terms = np.where(np.arange(_COPIES[-1]) < np.array(_COPIES)[:, None], parts[:, None], encode(0.0, format))
    total = session.ask(ask("sum", [format], format, [terms]))
    return None if total is None else [n for n, s in zip(_COPIES, total, strict=True) if s == one[0]]


# --- what is computed: no machine has optimizers ---------------------------------------------------------------------
def _forgotten(divisor: int) -> dict[str, list[float]]:
    """The first step with the sum of the gradients over the step with their mean, for gradients of all sizes."""
    sizes = np.tile(np.array(_SIZES, np.float32), (divisor, 1))
    return {
        name: (_first_step(optimizer, sizes, "never") / _first_step(optimizer, sizes, "before")).tolist()
        for name, optimizer in (("SGD", SGD(1.0)), ("AdamW", AdamW(1.0)))
    }


def _first_step(optimizer: Optimizer, gradients: Any, divide: str) -> Floats:
    """What a step adds to weights of 0."""
    gradient = accumulate_gradients(gradients, FP32, divide=divide)
    return optimizer.step(optimizer.initial(np.zeros_like(gradient)), gradient).weights.astype(np.float64)


def stalls(path: Floats) -> int | None:
    """The first micro-batch (from 1) from which on .grad stays the same; None if the last one still counts."""
    moved = np.flatnonzero(path[1:] != path[:-1])
    last = 2 + int(moved[-1]) if moved.size else 1
    return None if last == len(path) else last + 1


def _trace(paths: Mapping[Format, Floats], gradient: float, count: int) -> Trace:
    every = max(1, count // _POINTS)
    steps = np.arange(every, count + 1, every)
    events = []
    for f, path in paths.items():
        at = steps[steps >= (stalls(path) or count + 1)]
        if at.size:
            events.append(Event(int(at[0]), "stall", f"{f.title} stands at {cell(path[-1], 6)}"))
    series = {f.title: from_codes(encode(path[steps - 1], f), f) for f, path in paths.items()}
    return Trace(f".grad of gradients of {gradient:g}", steps, series, tuple(events), about={"gradient": gradient})


# --- words -----------------------------------------------------------------------------------------------------------
def _after(path: Floats, n: int, gradient: float) -> tuple[Any, str]:
    return cell(path[n - 1], 6), _signed(path[n - 1] / (n * gradient) - 1)


def _signed(error: float) -> str:
    """With a sign, if two decimals hold any of it."""
    text = f"{100 * error:+.2f} %"
    return text if float(text[:-1]) else "<0.01 %" if error else "0 %"


def longer(factor: float) -> str:
    """By what a step is longer, as pictures and findings say it.

    >>> longer(4.0), longer(1.00001)
    ('4 times as long', 'as long as ever')
    """
    return "as long as ever" if abs(factor - 1) < 1e-3 else f"{cell(factor, 4)} times as long"


def _findings(
    gradient: float,
    paths: Mapping[Format, Floats],
    sums: Mapping[Format, Mapping[str, float | None]],
    terms: Mapping[Format, float],
    kept: Mapping[Format, Sequence[int]],
    forgotten: Mapping[str, Sequence[float]],
    divisor: int,
    tokens: Sequence[int],
) -> list[str]:
    found = []
    for f, path in paths.items():
        count = len(path)
        off = _signed(path[-1] / (count * gradient) - 1)
        at = stalls(path)
        if at is None:
            found.append(f"In {f.title} every one of {count} gradients counts: {cell(path[-1], 6)}, {off}.")
        else:
            found.append(
                f"In {f.title} .grad stands at {cell(path[-1], 6)} from micro-batch {at} on, {off}: there it is "
                f"{path[-1] / terms[f]:.0f} times as large as a gradient."
            )
    for f in [f for f in paths if stalls(paths[f]) is not None][:1]:
        others = {name: s for name, s in sums[f].items() if name != "plain" and s is not None}
        if others:
            said = [f"{name} {cell(s, 6)}" for name, s in others.items()]
            why = f"{gradient:g} is {cell(terms[f], 6)} in {f.title}, {cell(len(paths[f]) * terms[f], 6)} in all"
            found.append(
                f"The same {len(paths[f])} gradients in {f.title}, added otherwise: {listed(said)} ({why}; stochastic "
                "is one draw of many)."
            )
    few = [n for n in _COUNTS if n < 64]
    small = {
        f: max(abs(p[n - 1] / (n * gradient) - 1) for n in few) for f, p in paths.items() if len(p) >= max(few)
    }  # fmt: skip
    if small:
        said = [f"{percent(x)} in {f.title}" for f, x in small.items()]
        found.append(
            f"Windows of usual size {'hardly suffer' if max(small.values()) < _LITTLE else 'suffer too'}: for "
            f"{listed([str(n) for n in few])} micro-batches the sum is off by at most {listed(said)}, the rounding of "
            "the gradient itself included."
        )
    if forgotten:
        sizes = {name: [longer(x[_SIZES.index(g)]) for g in (1e-2, 1e-8)] for name, x in forgotten.items()}
        found.append(
            f"Without the division by {divisor} the step of SGD is {sizes['SGD'][0]} at any size of gradients; that "
            f"of AdamW is {sizes['AdamW'][0]} for gradients of 0.01, and {sizes['AdamW'][1]} for gradients of 1e-8, "
            "where its eps is as large."
        )
    if paths:
        most, least = sum(tokens) / (len(tokens) * min(tokens)), sum(tokens) / (len(tokens) * max(tokens))
        found.append(
            f"The mean of the means of micro-batches with {listed([str(n) for n in tokens])} tokens is another number "
            f"than the mean of all tokens, in any format: a token of the shortest counts {most:.3g} times, one of the "
            f"longest {least:.3g} times."
            if most != least else
            f"With {tokens[0]} tokens in each micro-batch the mean of means is the mean of all tokens."
        )  # fmt: skip
    if kept:
        said = []
        for f, sizes_kept in kept.items():
            missing = [str(n) for n in _COPIES if n not in sizes_kept]
            said.append(f"{f.title} {f'misses it for N = {listed(missing)}' if missing else 'always hits it'}")
        found.append(f"N gradients of 1 / N, for N from 2 to {_COPIES[-1]}, should add up to 1: {'; '.join(said)}.")
    return found


def _draw(result: Result, style: str) -> Any:
    from numsim.show import update_plots

    return update_plots.accumulation(result, style)


EXPERIMENT = Experiment(
    name="accumulation",
    question=(
        "A gradient of 0.01 comes from each of 2000 micro-batches, and is added to a .grad in BF16, one after another. "
        "What does .grad hold at the end?"
    ),
    choices=("20", "19.5312", "4", "0.01"),
    wrong_guess="20",
    why_wrong=(
        "It adds exactly, and trusts BF16 to hold 20, which it does. But the sum has to get there in steps of 0.01: at "
        "4 the next number of BF16 is 4.03125, and 0.01 is less than half of the way, so that every further gradient "
        "is rounded away."
    ),
    explanation=(
        "A running sum in a narrow format stops once a term is less than half the distance to its next number; BF16, "
        "with 8 bits, gets to about 2^8 to 2^9 times the size of its terms. "
        "A sum in FP32 (as autocast and Megatron have it), Kahan's correction or stochastic rounding prevent that, and "
        "in windows of a few micro-batches it does not come up. "
        "Errors of scale are of another kind: a forgotten division lengthens SGD's steps and leaves Adam's nearly as "
        "they are, since Adam divides by the gradients' own size; and a mean of means weighs tokens unequally however "
        "exactly it is computed."
    ),
    sources=(
        "DeepSpeed issues 1800, 2352 and 2768, pull request 2847: gradients accumulated in BF16",
        "transformers pull requests 34191 and 35207: the mean of means under gradient accumulation",
        "pytorch 2.13 torch/optim/sgd.py, adamw.py (as in numsim.optimizers); D. Kingma, J. Ba, Adam, ICLR 2015",
    ),
    defaults={
        "gradient": 0.01, "count": 2000, "formats": ("bf16", "fp16", "fp32"), "divisor": 4,
        "tokens": (2048, 1024, 256, 64), "seed": 1,
    },
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes", "torch-cpu"),
    full={"count": 20_000},
)  # fmt: skip
