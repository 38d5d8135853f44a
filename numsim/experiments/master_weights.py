"""Master weights: small updates that a 16-bit weight does not feel, and three ways to keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import decode
from numsim.data import load_gradients
from numsim.errors import InputError
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
from numsim.experiments.underflow import KINDS, Gradients
from numsim.formats import FP32, FP64, Format
from numsim.machines.question import ask
from numsim.optimizers import Adam, train_digits
from numsim.random import check_seed
from numsim.rounding import encode
from numsim.traces import Trace

Floats = npt.NDArray[Any]
CURES = ("stochastic", "Kahan", "FP32 master")
_UPDATES = {"plain": "plain", "stochastic": "stochastic", "Kahan": "kahan", "FP32 master": "master"}
_SWEEP = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)  # sizes of update that the tables show
_SIZES = tuple(float(f"{m}e{e}") for e in range(-8, -1) for m in (1, 1.5, 2, 3, 5, 7))  # for the curve on real weights
_SCALES = 25  # loss scales 2^0 to 2^24
_STEP = 2000  # of the recorded gradients and weights
_WEIGHTS = 200  # recorded weights used of each layer
_RATIOS = tuple(2.0 ** (k / 8) for k in range(-128, -15))  # of an update to its weight
_BATCH, _EVERY = 32, 10  # of the network: images of a step, steps from one entry of a trace to the next
_EXAMPLE = 'numsim.experiments.run("master-weights", updates=(1e-4, 1e-3))'


def run(
    session: Session,
    *,
    formats: Sequence[str] = ("bf16", "fp16"),
    updates: Sequence[float] = (1e-4, 1e-3),
    steps: int = 1000,
    runs: int = 100,
    learning_rate: float = 3e-4,
    training_steps: int = 150,
    seed: int = 1,
) -> Result:
    """A weight of 1 that gets the same small update again and again; real weights and gradients; a small network.

    Parameters: ``formats`` that weights are stored in; ``updates``, added ``steps`` times each; ``runs`` of
    stochastic rounding, whose ``seed`` is given; ``learning_rate`` of Adam, and ``training_steps``, of a network that
    learns the digits at this rate, a tenth and ten times it. Its gradients and Adam's states are FP32.
    """
    chosen = check_formats(
        "formats", formats, lambda f: f.fits(FP32) and f != FP32 and f.zero and f.signed and f.max > 2,
        "signed formats with a zero and narrower than FP32 are needed", "formats=['bf16', 'fp16']",
    )  # fmt: skip
    if not isinstance(updates, (list, tuple)) or not 1 <= len(updates) <= 4:
        raise InputError(f"updates={updates!r}: one to four numbers are needed. Example: {_EXAMPLE}")
    updates = [check_real("updates", u, 1e-8, 1.0, _EXAMPLE) for u in updates]
    steps = check_whole("steps", steps, 10, 100_000, _EXAMPLE)
    runs = check_whole("runs", runs, 2, 1000, _EXAMPLE)
    if steps * runs > 10**7:
        raise InputError(f"steps={steps}, runs={runs}: steps * runs is at most 10^7. Example: {_EXAMPLE}")
    rate = check_real("learning_rate", learning_rate, 1e-7, 0.1, _EXAMPLE)
    training_steps = check_whole("training_steps", training_steps, _EVERY, 10_000, _EXAMPLE)
    seed = check_seed(seed)

    paths = {(f, u): _paths(session, f, u, steps, runs, seed) for u in updates for f in chosen}
    swept = {f: w for f in [FP32, *chosen] if (w := _plain(session, f, _SWEEP, steps)) is not None}
    still = {f: s for f in [FP32, *chosen] if (s := _standing_still(session, f)) is not None}
    lost = {f: s for f in chosen if (s := _zero_gradients(session, f)) is not None}
    limits = {f: _limits(session, f) for f in [FP32, *chosen]}
    ratios = {f: r for f in chosen if (r := _by_ratio(session, f)) is not None}
    rates = (float(f"{rate / 10:.6g}"), rate, float(f"{rate * 10:.6g}"))
    trained = _trained([f for f in chosen if f in ratios], chosen[0], rates, training_steps, seed)
    tables = (
        Table(
            f"A weight of 1 after {steps} updates (stochastic: mean of {runs} runs)",
            ("stored in", "update", "plain", *CURES, "exact"),
            tuple(
                (f.title, u, _last(p, "plain"), *(_last(p, c) for c in CURES), cell(1 + steps * u))
                for (f, u), p in paths.items()
                if p
            ),
        ),
        Table(
            f"The same without any cure: the weight after {steps} updates",
            ("update", *(f.title for f in swept), "exact"),
            tuple((u, *(cell(w[i], 6) for w in swept.values()), cell(1 + steps * u, 6)) for i, u in enumerate(_SWEEP)),
        ),
        Table(
            "Where the limits lie",
            ("format", "gradients become zero up to", "at a weight of 1 updates are lost up to"),
            tuple((f.title, _power(g), _power(u)) for f, (g, u) in limits.items() if g is not None or u is not None),
        ),
        Table(
            f"Share of real weights (step {_STEP}) that one update leaves where they are",
            ("update", *(f.title for f in still)),
            tuple((u, *(percent(s[_SIZES.index(u)]) for s in still.values())) for u in _SWEEP),
        ),
        Table(
            "Share of updates lost, by their ratio to the weight",
            ("ratio", *(f.title for f in ratios)),
            tuple((f"2^{k}", *(percent(r[_RATIOS.index(2.0**k)]) for r in ratios.values())) for k in range(-13, -6)),
        ),
        Table(
            f"A network on the digits, {training_steps} steps of Adam: loss, accuracy, lost updates",
            ("weights", "lr", "loss", "accuracy", "lost", "of their size"),
            tuple(
                (
                    way,
                    r,
                    cell(t["loss"][-1], 4),
                    percent(t["accuracy"][-1]),
                    # a step that stochastic rounding does not take is not lost: it is right on average
                    None if way.endswith("stochastic") else percent(_mean(t, "lost")),
                    None if way.endswith("stochastic") else percent(_mean(t, "lost size")),
                )
                for (way, r), t in trained.items()
            ),
        ),
    )
    return Result(
        experiment="master-weights",
        parameters={
            "formats": [f.name for f in chosen], "updates": updates, "steps": steps, "runs": runs,
            "learning_rate": rate, "training_steps": training_steps, "seed": seed,
        },
        answer=_answer(chosen, paths, max(updates)),
        tables=tuple(t for t in tables if t.rows and len(t.columns) > 2),
        findings=tuple(
            _findings(chosen, paths, still, lost, limits, ratios, steps) + _of_training(ratios, trained, rates)
        ),
        series={
            "updates": updates,
            "steps": steps,
            "paths": {f.title: [paths[f, u] for u in updates] for f in chosen},
            "sizes": list(_SIZES),
            "standing_still": {f.title: s for f, s in still.items()},
            "scales": list(range(_SCALES)),
            "zero_gradients": {f.title: s for f, s in lost.items()},
            "limits": {f.title: list(pair) for f, pair in limits.items()},
            "ratios": list(_RATIOS),
            "lost_by_ratio": {f.title: r for f, r in ratios.items()},
            "rates": list(rates),
        },
        traces={f"{way}, lr {r:g}": t for (way, r), t in trained.items()},
    )  # fmt: skip


# --- what is asked ---------------------------------------------------------------------------------------------------
def _terms(updates: Sequence[float], steps: int, format: Format) -> Any:
    """Codes (updates, 1 + steps): a weight of 1, and the same update again and again."""
    rows = np.asarray(encode(np.array([[1.0, u] for u in updates]), format))
    return np.concatenate([rows[:, :1], np.repeat(rows[:, 1:], steps, axis=1)], axis=1)


def _paths(session: Session, format: Format, update: float, steps: int, runs: int, seed: int) -> dict[str, list[float]]:
    """The weight after 0, 1, ..., steps updates, for each way of storing it that was answered."""
    terms, wide = _terms([update], steps, format), _terms([update], steps, FP32)
    paths = {}
    for name, options in (("plain", {}), ("Kahan", {"order": "kahan"})):
        if (answer := session.ask(ask("cumsum", [format], format, [terms[0]], **options))) is not None:
            paths[name] = decode(answer, format).tolist()
    noisy = ask(
        "cumsum", [format], format, [np.repeat(terms, runs, axis=0)], rounding="stochastic", seed=seed,
    )  # fmt: skip
    if (answer := session.ask(noisy)) is not None:
        values = np.sort(decode(answer, format), axis=0)
        paths["stochastic"] = values.mean(axis=0).tolist()
        paths["stochastic, low"] = values[runs // 10].tolist()
        paths["stochastic, high"] = values[-1 - runs // 10].tolist()
    master = session.ask(ask("cumsum", [FP32], FP32, [wide[0]]))
    seen = session.ask(ask("cast", [FP32], format, [master])) if master is not None else None
    if seen is not None:
        paths["FP32 master"] = decode(seen, format).tolist()
    return paths


def _plain(session: Session, format: Format, updates: Sequence[float], steps: int) -> list[float] | None:
    answer = session.ask(ask("sum", [format], format, [_terms(updates, steps, format)]))
    return None if answer is None else decode(answer, format).tolist()


def _limits(session: Session, format: Format) -> tuple[int | None, int | None]:
    """Exponents of the largest power of two that becomes zero, and of the largest that leaves 1 as it is."""
    powers = np.ldexp(1.0, -np.arange(1, 161))
    cast = session.ask(ask("cast", [FP64], format, [powers.view(np.uint64)]))
    gone = None if cast is None else _first(decode(cast, format) == 0)
    small = np.asarray(encode(powers[powers >= float(format.least)], format))
    one = np.full(small.shape, encode(1.0, format))
    added = session.ask(ask("add", [format, format], format, [one, small]))
    return gone, None if added is None else _first(added == one)


def _first(where: Any) -> int | None:
    return -1 - int(where.argmax()) if where.any() else None


def _standing_still(session: Session, format: Format) -> list[float] | None:
    """Share of the recorded weights that w - u leaves as they are, for each size of u; layers weighted by size."""
    rows = list(load_gradients().select("weight", _STEP))
    codes = np.asarray(encode(np.concatenate([row.sample[:_WEIGHTS] for row in rows]), format))
    sizes = np.asarray(encode(np.array(_SIZES), format))
    before, update = np.broadcast_arrays(codes, sizes[:, None])
    after = session.ask(ask("sub", [format, format], format, [before, update]))
    if after is None:
        return None
    weight = np.concatenate([np.full(n := min(_WEIGHTS, len(r.sample)), r.nonzeros / n) for r in rows])
    # summed as the total is, and divided last: no share comes out above 1
    return (np.where(after == before, weight, 0.0).sum(axis=1) / weight.sum()).tolist()  # type: ignore[no-any-return]


def _by_ratio(session: Session, format: Format) -> list[float] | None:
    """Share of the updates u = r * w, up and down, that leave w as it is, for each r; w are the numbers from 1 to 2."""
    if format.precision > 14:  # its limits lie below all ratios
        return None
    weights = 1 + np.arange(n := 2 ** min(format.fraction_bits, 10)) / n
    before, update = (encode(x, format) for x in (weights, weights * np.array(_RATIOS)[:, None]))
    same = []
    for operation in ("add", "sub"):
        after = session.ask(ask(operation, [format, format], format, [np.broadcast_to(before, update.shape), update]))
        if after is None:
            return None
        same.append((after == before).mean(axis=1))
    return ((same[0] + same[1]) / 2).tolist()  # type: ignore[no-any-return]


def _zero_gradients(session: Session, format: Format) -> list[float] | None:
    """Share of the non-zero activation gradients that become zero, for each loss scale."""
    gradients = Gradients(tuple(load_gradients().select(KINDS[0], _STEP)), 400)
    shares = gradients.shares(session, format, range(_SCALES))
    return None if shares is None else gradients.pool(shares[:, 0], KINDS[0], _STEP).tolist()


# --- what is computed: no machine has optimizers ---------------------------------------------------------------------
def _trained(
    formats: Sequence[Format], cured: Format, rates: Sequence[float], steps: int, seed: int
) -> dict[tuple[str, float], Trace]:
    """A training in FP32 and in each format at each rate; with the cures of one format at the middle one."""
    ways = {f.title: (f, "plain") for f in ([FP32, *formats] if formats else [])}
    cures = {f"{cured.title}, {c}": (cured, c) for c in CURES if cured in formats}
    return {
        (name, rate): _train(format, _UPDATES[way], rate, steps, seed)
        for rate in rates
        for name, (format, way) in (ways | cures if rate == rates[1] else ways).items()
    }


@lru_cache(maxsize=64)
def _train(format: Format, update: str, rate: float, steps: int, seed: int) -> Trace:
    adam = Adam(rate, format=format, update=update, states=FP32, gradients=FP32)
    return train_digits(adam, steps=steps, batch=_BATCH, seed=seed, every=_EVERY)


# --- words -----------------------------------------------------------------------------------------------------------
def _last(paths: dict[str, list[float]], name: str) -> int | float | str | None:
    return cell(paths[name][-1]) if name in paths else None


def _power(exponent: int | None) -> str | None:
    return None if exponent is None else f"2^{exponent}"


def _answer(formats: list[Format], paths: dict[tuple[Format, float], dict[str, list[float]]], update: float) -> str:
    """The formats that still hold 1."""
    plain = {f: p["plain"] for f in formats if "plain" in (p := paths[f, update])}
    if not plain:
        return "not answered by this machine"
    stuck = [f.title for f, p in plain.items() if p[-1] == 1.0]
    both = len(stuck) == len(plain) == 2
    text = "both" if both else listed(stuck) if stuck else "neither"
    missing = [f.title for f in formats if f not in plain]
    return f"{text} ({listed(missing)} not answered)" if missing else text


def _findings(
    formats: list[Format],
    paths: dict[tuple[Format, float], dict[str, list[float]]],
    still: dict[Format, list[float]],
    lost: dict[Format, list[float]],
    limits: dict[Format, tuple[int | None, int | None]],
    ratios: Mapping[Format, list[float]],
    steps: int,
) -> list[str]:
    found = []
    for u in dict.fromkeys(u for _, u in paths):
        plain = [f"{f.title} holds {cell(paths[f, u]['plain'][-1], 5)}" for f in formats if "plain" in paths[f, u]]
        if plain:
            due = cell(1 + steps * u)
            found.append(f"After {steps} updates of {u:g} a weight of 1 should be {due}: {listed(plain)}.")
    least = min(u for _, u in paths)
    for f in formats[:1]:
        cures = [f"{c} {cell(path[c][-1], 8)}" for path in [paths[f, least]] for c in CURES if c in path]
        if cures:
            found.append(f"The cures in {f.title}, updates of {least:g}: {listed(cures)}.")
    if ratios:
        r, said = np.array(_RATIOS), []
        for f, lost_by in ratios.items():
            whole, some = (np.log2(r[here].max()) for here in (np.equal(lost_by, 1), np.greater(lost_by, 0)))
            said.append(f"in {f.title} all up to 2^{cell(whole)} of the weight, some up to 2^{cell(some)}")
        zeros = [f"{f.title} up to 2^{limits[f][0]}" for f in formats if limits[f][0] is not None]
        gradients = f" Gradients become zero: {listed(zeros)}." if zeros else ""
        found.append(f"Updates are lost: {'; '.join(said)}.{gradients}")
    unmoved = [f"{percent(still[f][_SIZES.index(1e-4)])} in {f.title}" for f in formats if f in still]
    gone = [f"{percent(lost[f][0])} in {f.title}" for f in formats if f in lost]
    if unmoved and gone:
        found.append(
            f"Step {_STEP} of a real training run: of the weights an update of 0.0001 does not move {listed(unmoved)}; "
            f"of the non-zero activation gradients a cast makes {listed(gone)} zero."
        )
    return found


def _mean(trace: Trace, name: str) -> float:
    return float(trace[name].mean())


def _of_training(
    ratios: Mapping[Format, list[float]], trained: Mapping[tuple[str, float], Trace], rates: Sequence[float]
) -> list[str]:
    found = []
    for low, rate in enumerate(rates):
        parts = [
            f"{way} {cell(t['loss'][-1], 3)}"
            + (f", losing {percent(_mean(t, 'lost'))} of the updates, {percent(_mean(t, 'lost size'))} of their size"
               if way in [f.title for f in ratios] else "")
            for (way, r), t in trained.items() if r == rate
        ]  # fmt: skip
        if parts:
            opening = "A network on the digits learns" if low == 0 else "It learns"
            found.append(f"{opening} at a rate of {rate:g}, to a loss of: {'; '.join(parts)}.")
    return found


def _draw(result: Result, style: str) -> Any:
    from numsim.show import gradient_plots

    return gradient_plots.master_weights(result, style)


EXPERIMENT = Experiment(
    name="master-weights",
    question=(
        "A weight of 1 gets 1000 updates of +0.001 each. It is stored in 16 bits, without an FP32 master copy. "
        "In which format is it still 1 at the end?"
    ),
    choices=("FP16", "BF16", "both", "neither"),
    wrong_guess="FP16",
    why_wrong=(
        "FP16 is the format with the bad name, for its short range: small gradients become zero. Here the range is not "
        "asked for. An update counts if it is more than half the distance between numbers at the weight; BF16 paid for "
        "its range with 3 bits of significand, so that its numbers lie 8 times as far apart."
    ),
    explanation=(
        "FP16 loses small gradients; BF16 loses updates up to 8 times as large as FP16 does: once an optimizer's step "
        "is a thousandth of the weight or less, it is under half of BF16's spacing, and rounding to nearest undoes it "
        "every single time. "
        "A master copy in FP32 collects what the 16-bit copy cannot show yet; Kahan compensation keeps the lost part "
        "in a second 16-bit number; stochastic rounding moves the weight seldom but by a whole step, right on average. "
        "At small enough updates FP16 stands still just as well, and at large ones neither does: that BF16 fails and "
        "FP16 does not is true between, for learning rates within about a factor of ten, and there it decides."
    ),
    sources=(
        "P. Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.1 (FP32 master copy of weights)",
        "P. Zamirai et al., Revisiting BFloat16 Training, arXiv:2010.06192 (stochastic rounding, Kahan summation)",
        "S. Gupta et al., Deep Learning with Limited Numerical Precision, ICML 2015 (stochastic rounding)",
        "data: numsim/data/README.md (E. Alpaydin, C. Kaynak, UCI digits, doi.org/10.24432/C50P49, CC BY 4.0)",
    ),
    defaults={
        "formats": ("bf16", "fp16"), "updates": (1e-4, 1e-3), "steps": 1000, "runs": 100,
        "learning_rate": 3e-4, "training_steps": 150, "seed": 1,
    },
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes", "torch-cpu"),
    full={"runs": 1000, "training_steps": 1000},
)  # fmt: skip
