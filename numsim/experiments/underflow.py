"""Underflow: real gradients that a narrow format takes for zero, and the loss scale that saves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.codes import decode
from numsim.data import Recorded, load_gradients
from numsim.errors import InputError
from numsim.experiments.experiment import (
    Experiment,
    Result,
    Session,
    Table,
    check_formats,
    check_whole,
    listed,
    percent,
)
from numsim.formats import FP16, FP32, Format
from numsim.machines.question import ask

Floats = npt.NDArray[Any]
KINDS = ("activation-gradient", "weight-gradient")
FATES = ("zero", "subnormal", "overflow")
_PROBES = 16  # numbers a binade that stand for it where no sampled gradient lies in it
_NEAR = 0.001  # scales that lose at most 0.1 percentage points more than the best count as equally good
_EXAMPLE = 'numsim.experiments.run("underflow", step=2000)'


@dataclass(frozen=True, eq=False)
class Gradients:
    """Rows of the recording: exact counts by binade, and the first values of each row's random sample.

    ``shares`` weighs what a machine does to the sampled values by the exact counts: within a row and binade the
    sample stands for all values there. Where a whole binade has one fate, the result is therefore exact; it is an
    estimate only for the one or two binades in which a format's limit lies. A binade without a sampled value is
    represented by 16 evenly spaced numbers. Where a row's sample is all of its values, all of it is used.
    """

    rows: tuple[Recorded, ...]
    sample: int

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """(rows, binades)."""
        return np.array([row.positive + row.negative for row in self.rows])

    @cached_property
    def values(self) -> npt.NDArray[np.float32]:
        """All sampled values, then the probes of each binade that holds any value."""
        binades = np.repeat(self.rows[0].binades[self.filled], _PROBES)
        probes = np.ldexp(np.tile(1 + (np.arange(_PROBES) + 0.5) / _PROBES, len(self.filled)), binades)
        return np.concatenate([*self.taken, probes.astype(np.float32)])

    @cached_property
    def taken(self) -> list[npt.NDArray[np.float32]]:
        """The sampled values of each row that are used."""
        return [row.sample[: None if _complete(row) else self.sample] for row in self.rows]

    @cached_property
    def filled(self) -> npt.NDArray[np.intp]:
        """Places of the binades that hold any value."""
        return np.flatnonzero(self.counts.sum(axis=0))

    @cached_property
    def cells(self) -> npt.NDArray[np.intp]:
        """For each of ``values``: row * binades + binade; probes form a row of their own at the end."""
        lengths = [*map(len, self.taken), _PROBES * len(self.filled)]
        row = np.repeat(np.arange(len(lengths)), lengths)
        binade = np.frexp(self.values)[1] - 1 - int(self.rows[0].binades[0])
        return np.asarray(row * self.counts.shape[1] + binade)

    def shares(self, session: Session, format: Format, scales: Sequence[int]) -> Floats | None:
        """Of the non-zero values of each row, times 2^scale and cast from FP32: shares (scales, fates, rows).

        A fate is "zero", "subnormal" or "overflow" (infinity or NaN); the rest is normal.
        """
        scaled = np.ldexp(self.values, np.array(scales)[:, None]).astype(np.float32)
        codes = session.ask(ask("cast", [FP32], format, [scaled.view(np.uint32)]))
        if codes is None:
            return None
        got = np.abs(decode(codes, format))
        fates = [got == 0, (got > 0) & (got < float(format.least_normal)), ~np.isfinite(got)]
        rows, binades = self.counts.shape
        size = (rows + 1) * binades
        seen = np.bincount(self.cells, minlength=size).reshape(rows + 1, binades)
        result = np.empty((len(scales), len(FATES), rows))
        for i in range(len(scales)):
            for j, fate in enumerate(fates):
                hits = np.bincount(self.cells, weights=fate[i], minlength=size).reshape(rows + 1, binades)
                with np.errstate(invalid="ignore"):
                    rate = hits / seen
                rate = np.where(seen[:-1] > 0, rate[:-1], rate[-1])
                result[i, j] = np.nansum(self.counts * rate, axis=1) / self.counts.sum(axis=1)
        return result

    def zero_exactly(self, format: Format, scales: Sequence[int]) -> Floats:
        """The share of zeros from the counts alone (scales, rows): below half the least number all become zero.

        A value of exactly half the least number, which is a tie and becomes zero too, is not counted.
        """
        half = format.emin - format.fraction_bits - 1
        return np.array([[row.count_below(half - k) / row.nonzeros for row in self.rows] for k in scales])

    def pool(self, shares: Floats, kind: str, step: int) -> Floats:
        """Shares of rows as shares of all non-zero values of one kind and step (last axis)."""
        weights = np.array([row.nonzeros * (row.kind == kind and row.step == step) for row in self.rows], float)
        return np.asarray(np.ascontiguousarray(shares * weights).sum(axis=-1) / weights.sum())


def run(
    session: Session,
    *,
    formats: Sequence[str] = ("fp16", "bf16", "e5m2", "e4m3"),
    step: int = 2000,
    largest_scale: int = 28,
    sample: int = 400,
) -> Result:
    """What casting recorded gradients from FP32 does to them, against loss scale.

    Parameters: ``formats`` of at most 16 bits; ``step`` of the recording that the loss scales are tried on;
    ``largest_scale``, loss scales are 2^0 to 2^largest_scale; ``sample``, values used of each row's sample.
    """
    recording = load_gradients()
    steps = tuple(recording.meta["steps"])
    if step not in steps or isinstance(step, bool):
        raise InputError(f"step={step!r}: recorded are {', '.join(map(str, steps))}. Example: {_EXAMPLE}")
    scales = list(range(check_whole("largest_scale", largest_scale, 0, 60, _EXAMPLE) + 1))
    sample = check_whole("sample", sample, 50, 3000, _EXAMPLE)
    chosen = check_formats(
        "formats", formats, lambda f: f.bits <= 16 and f.signed and f.zero and f.nan_code is not None,
        "signed formats of at most 16 bits with zero and NaN are needed", "formats=['fp16', 'e5m2']",
    )  # fmt: skip
    gradients = Gradients(tuple(row for kind in KINDS for row in recording.select(kind)), sample)
    now = Gradients(tuple(row for row in gradients.rows if row.step == step), sample)
    at_one = {f: s for f in chosen if (s := gradients.shares(session, f, [0])) is not None}
    swept = {f: s for f in chosen if (s := now.shares(session, f, scales)) is not None}

    zero = {(f, k, s): float(gradients.pool(at_one[f][0, 0], k, s)) for f in at_one for k in KINDS for s in steps}
    fates = {(f, k): now.pool(swept[f], k, step) for f in swept for k in KINDS}  # (scales, fates)
    counted = {(f, k): now.pool(now.zero_exactly(f, scales), k, step) for f, k in fates}
    checked = max((float(np.abs(fates[key][:, 0] - counted[key]).max()) for key in fates), default=0.0)
    best = {key: _best(fates[key].T) for key in fates}
    largest = max(map(_largest, now.rows))
    safe = {f: _without_overflow(f, largest) for f in swept}
    total = {k: sum(r.total for r in now.rows if r.kind == k) for k in KINDS}
    zeros = {k: sum(r.zeros for r in now.rows if r.kind == k) / total[k] for k in KINDS}
    below = {(k, s): _below_normal(gradients, k, s) for k in KINDS for s in steps}
    meta = recording.meta
    tables = [
        Table(
            "Share of the non-zero gradients that become zero, loss scale 1",
            ("gradients", "step", "training loss", *(f.title for f in at_one), "below 2^-14"),
            tuple(
                (_short(k), s, f"{progress['training_loss']:.4f}", *(percent(zero[f, k, s]) for f in at_one),
                 percent(below[k, s]))
                for k in KINDS
                for s, progress in zip(steps, meta["progress"], strict=True)
            ),
        ),
        Table(
            f"What becomes of the non-zero gradients of step {step}, loss scale 1",
            ("gradients", "format", "zero", "subnormal", "normal", "overflow"),
            tuple(
                (_short(k), f.title, percent(z), percent(s), percent(max(1 - z - s - o, 0.0)), percent(o))
                for k in KINDS
                for f in swept
                for z, s, o in [fates[f, k][0]]
            ),
        ),
        Table(
            f"Lost at the largest loss scale at which no gradient of step {step} overflows",
            ("gradients", "format", "lost at 1", "largest scale", "lost there"),
            tuple(
                (_short(k), f.title, percent(fates[f, k][0, 0] + fates[f, k][0, 2]), _up_to(safe[f], scales[-1]),
                 percent(fates[f, k][min(safe[f], scales[-1]), 0]) if safe[f] >= 0 else "-")
                for k in KINDS
                for f in swept
            ),
        ),
    ]  # fmt: skip
    return Result(
        experiment="underflow",
        parameters={
            "formats": [f.name for f in chosen], "step": step, "largest_scale": scales[-1], "sample": sample,
        },
        answer=next((percent(zero[f, KINDS[0], step]) for f in at_one if f.name == "fp16"), "not answered"),
        tables=tuple(t for t in tables if len(t.columns) > 4 and t.rows),
        findings=tuple(_findings(meta, step, zero, below, zeros, fates, best, safe, checked)),
        series={
            "step": step,
            "steps": list(steps),
            "scales": scales,
            "binades": gradients.rows[0].binades.tolist(),
            "counts": {k: {str(s): _counts(gradients, k, s) for s in steps} for k in KINDS},
            "zeros_in_fp32": {k: {str(s): _zeros(gradients, k, s) for s in steps} for k in KINDS},
            "zero_at_scale_1": {f.name: {k: {str(s): zero[f, k, s] for s in steps} for k in KINDS} for f in at_one},
            "fates": {f.name: {k: fates[f, k].tolist() for k in KINDS} for f in swept},
            "without_overflow": {f.name: safe[f] for f in swept},
            "best": {f.name: {k: list(best[f, k]) for k in KINDS} for f in swept},
            "batch_size": meta["batch_size"],
            "loss_reduction": meta["loss_reduction"],
        },
    )  # fmt: skip


# --- numbers ---------------------------------------------------------------------------------------------------------
class Best(NamedTuple):
    """The loss scales 2^low to 2^high lose about least, overflows counted like zeros; ``lost`` at best."""

    low: int
    high: int
    lost: float


def _best(fates: Floats) -> Best:
    """From shares (fates, scales). No loss scaler gets there: it skips a whole step at a single overflow."""
    lost = fates[0] + fates[2]
    low = high = int(lost.argmin())
    while low > 0 and lost[low - 1] <= lost.min() + _NEAR:
        low -= 1
    while high + 1 < len(lost) and lost[high + 1] <= lost.min() + _NEAR:
        high += 1
    return Best(low, high, float(lost.min()))


def _complete(row: Recorded) -> bool:
    """Whether a row's sample is all of its non-zero values."""
    return len(row.sample) == row.nonzeros


def _largest(row: Recorded) -> Fraction:
    """A row's largest magnitude, or where the sample is not all: the end of the binade in which it lies."""
    if _complete(row):
        return Fraction(float(np.abs(row.sample).max()))
    return Fraction(2) ** (int(row.binades[(row.positive + row.negative) > 0].max()) + 1)


def _without_overflow(format: Format, largest: Fraction) -> int:
    """The largest k for which largest * 2^k is below the first number that overflows."""
    limit = (format.max + format.magnitude(format.max_rank + 1)) / 2
    k = format.emax + 200
    while largest * Fraction(2) ** k >= limit:
        k -= 1
    return k


def _of(gradients: Gradients, kind: str, step: int) -> list[Recorded]:
    return [row for row in gradients.rows if row.kind == kind and row.step == step]


def _counts(gradients: Gradients, kind: str, step: int) -> list[int]:
    return np.sum([row.positive + row.negative for row in _of(gradients, kind, step)], axis=0).tolist()  # type: ignore[no-any-return]


def _zeros(gradients: Gradients, kind: str, step: int) -> int:
    return sum(row.zeros for row in _of(gradients, kind, step))


def _below_normal(gradients: Gradients, kind: str, step: int) -> float:
    """Share of non-zero values below FP16's least normal number, exact."""
    rows = _of(gradients, kind, step)
    return sum(row.count_below(FP16.emin) for row in rows) / sum(row.nonzeros for row in rows)


# --- words -----------------------------------------------------------------------------------------------------------
def _short(kind: str) -> str:
    return kind.removesuffix("-gradient")


def _range(low: int, high: int) -> str:
    return f"2^{low}" if low == high else f"2^{low} to 2^{high}"


def _up_to(safe: int, last: int) -> str:
    return "none" if safe < 0 else f"2^{safe}" if safe <= last else f"2^{last} or more"


def sentence(zero: float, kind: str, step: int, title: str, scale: int = 0) -> str:
    """The loss in words, as pictures and findings say it."""
    at = "loss scale 1" if scale == 0 else f"loss scale 2^{scale}"
    return f"{percent(zero)} of the non-zero {kind}s of step {step} become zero in {title} at {at}"


def _findings(
    meta: dict[str, Any],
    step: int,
    zero: dict[tuple[Format, str, int], float],
    below: dict[tuple[str, int], float],
    zeros: dict[str, float],
    fates: dict[tuple[Format, str], Floats],
    best: dict[tuple[Format, str], Best],
    safe: dict[Format, int],
    checked: float,
) -> list[str]:
    formats, kind = list(dict.fromkeys(f for f, _, _ in zero)), KINDS[0].replace("-", " ")
    found = []
    if FP16 in formats:
        under = below[KINDS[0], step]
        survive = percent(1 - zero[FP16, KINDS[0], step] / under)
        found.append(
            f"{sentence(zero[FP16, KINDS[0], step], kind, step, FP16.title)} ({percent(under)} lie below its least "
            f"normal number 2^-14; {survive} of these become subnormal). Of the weight gradients it is "
            f"{percent(zero[FP16, KINDS[1], step])}."
        )
    others = [f"{f.title} {percent(zero[f, KINDS[0], step])}" for f in formats if f != FP16]
    if others:
        found.append(f"In other formats: {listed(others)} of the activation gradients.")
    if FP16 in formats:
        course = [
            f"{percent(zero[FP16, KINDS[0], p['step']])} at step {p['step']} (training accuracy "
            f"{percent(p['training_accuracy'])})"
            for p in meta["progress"]
        ]
        found.append(f"The share of activation gradients that FP16 loses follows the falling loss: {listed(course)}.")
    reached = {
        f: percent(fates[f, KINDS[0]][min(k, len(fates[f, KINDS[0]]) - 1), 0]) for f, k in safe.items() if k >= 0
    }
    if reached:
        last = len(next(iter(fates.values()))) - 1
        lost = [f"{f.title} {x} at {_up_to(safe[f], last)}" for f, x in reached.items()]
        found.append(
            "One loss scale multiplies all gradients, and a scaler skips the whole step at a single overflow. At the "
            f"largest scale at which no gradient of step {step} overflows, of the activation gradients become zero: "
            f"{', '.join(lost)}."
        )
    beyond = [
        f"{f.title} {percent(b.lost)} at {_range(b.low, b.high)}"
        for (f, k), b in best.items()
        if k == KINDS[0] and b.low > safe[f]
    ]
    if beyond:
        found.append(
            "Out of a scaler's reach, for some gradients overflow there: activation gradients alone would lose least, "
            f"zeros and overflows together, in {listed(beyond)}."
        )
    found.append(
        f"Not counted: {percent(zeros[KINDS[0]])} of the activation gradients of step {step} are exactly zero in FP32 "
        f"already (ReLU and pooling). All are gradients of the {meta['loss_reduction']} of {meta['batch_size']} images."
    )
    if best:
        found.append(
            f"Counting whole binades, without any sample, gives the same shares of zeros to within {percent(checked)}; "
            "it misses values of exactly half the least number, which are ties and become zero too."
        )
    return found


def _draw(result: Result, style: str) -> Any:
    from numsim.show import gradient_plots

    return gradient_plots.underflow(result, style)


EXPERIMENT = Experiment(
    name="underflow",
    question=(
        "A small network has learnt its 1500 training images (step 2000). Its gradients are cast from FP32 to FP16 "
        "without loss scaling: what share of the non-zero activation gradients becomes zero?"
    ),
    choices=("95 %", "44 %", "5.6 %", "0 %"),
    wrong_guess="95 %",
    why_wrong=(
        "That is the share below 6.1e-5 = 2^-14, where FP16 is often said to start. There start only its normal "
        "numbers: subnormal ones go down to 2^-24, and only what is at most half of that, 2^-25 = 3.0e-8, becomes zero."
    ),
    explanation=(
        "Gradients shrink as the loss falls, and those below half the least number of a format become zero; a loss "
        "scale 2^k moves all of them up by k binades before the cast, until the largest overflow. "
        "Take the spread and its drift from this, not the percentages: it is one small network and one seed, and step "
        "2000 lies past the point where all training images are learnt (tiny gradients matter little then; step 500 is "
        "mid-training). "
        "It shows one cast of FP32 gradients: in training in FP16 itself, what is lost in one layer is missing in all "
        "layers below, and whether training suffers is another question, often answered with no."
    ),
    sources=(
        "P. Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2 and figure 3",
        "data: numsim/data/README.md (E. Alpaydin, C. Kaynak, UCI digits, doi.org/10.24432/C50P49, CC BY 4.0)",
        "github.com/engichang1467/Open-Rig3R issue 35: everything below 6.1e-5 said to become zero",
    ),
    defaults={"formats": ("fp16", "bf16", "e5m2", "e4m3"), "step": 2000, "largest_scale": 28, "sample": 400},
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes", "torch-cpu"),
    full={"largest_scale": 40, "sample": 3000},
)
