"""Swamping: small terms stop counting once the sum is large, and what helps against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.codes import decode, exact
from numsim.experiments.experiment import (
    Experiment,
    Result,
    Session,
    Table,
    cell,
    check_formats,
    check_whole,
    listed,
    percent,
)
from numsim.formats import FP32, FP64, Format, get_format
from numsim.machines.question import ask
from numsim.random import bits, check_seed
from numsim.rounding import encode

Codes = npt.NDArray[Any]
_EXAMPLE = 'numsim.experiments.run("swamping", terms=4096)'
CURES = ("plain", "stochastic", "Kahan", "pairwise", "FP32 accumulator")
_CURED = 1000  # "0.1 a thousand times"
_RUNS = 4  # of stochastic rounding


def run(
    session: Session,
    *,
    formats: Sequence[str] = ("fp32", "fp16", "bf16", "e4m3", "e5m2"),
    terms: int = 4096,
    uniform_terms: int = 1024,
    seed: int = 1,
) -> Result:
    """Sums of equal and of uniform terms, in order, in each format; then the cures.

    Parameters: ``formats`` to sum in (any that float64 holds); ``terms``, how many ones and tenths are added at most;
    ``uniform_terms``, how many uniform numbers from [0, 1); ``seed`` of these and of stochastic rounding.
    """
    terms = check_whole("terms", terms, 16, 100_000, _EXAMPLE)
    uniform_terms = check_whole("uniform_terms", uniform_terms, 16, 100_000, _EXAMPLE)
    seed = check_seed(seed)
    chosen = check_formats(
        "formats", formats, lambda f: f.fits(FP64) and f.zero and f.precision >= 2,
        "formats with a zero that float64 holds are needed", "formats=['fp16', 'bf16']",
    )  # fmt: skip
    with kernels.force("reference"):  # a few tens of thousands of additions: done before numba would have loaded
        ones = {f: _count_up(session, f, 1.0, terms) for f in chosen}
        tenths = {f: _count_up(session, f, 0.1, terms) for f in chosen}
        hundredths = {f: _count_up(session, f, 0.01, _CURED) for f in chosen}
        stalls = [(f, *_near_stall(session, f)) for f in _with_stall(chosen)]
        mixed = _mixed_hundredths(session)
        uniform = _uniform(session, chosen, uniform_terms, seed)
        cures = {f: _cures(session, f, seed) for f in chosen if f.precision < FP32.precision}

    tables = [
        Table(
            "Adding 1 until nothing happens any more",
            ("format", "bits of significand", "largest number", "sum stalls at", "asked from"),
            tuple(_stall_row(f, start, trail, ones.get(f)) for f, start, trail in stalls if trail is not None),
        ),
        Table(
            "The same number again and again, in order, accumulator = format",
            ("format", "number", "stored as", "terms", "sum", "exact sum", "stalls at"),
            tuple(
                (f.title, cell(number), _about(stored), n, _about(trail[min(n, len(trail)) - 1]), _about(n * stored),
                 _stalls_at(trail))
                for number, sums, n in ((1.0, ones, terms), (0.1, tenths, terms), (0.01, hundredths, _CURED))
                for f in chosen
                for stored in [exact(_stored(number, f), f)]
                if (trail := sums[f]) is not None
            ),
        ),
        Table(
            "0.01 a thousand times: what is stored, and what it is added up in",
            ("terms in", "accumulator", "sum", "error"),
            tuple((a, b, _about(s, 12), percent(abs(s / 10 - 1))) for a, b, s in _exercise(hundredths, mixed)),
        ),
        Table(
            f"{uniform_terms} numbers, uniform between 0 and 1 (seed {seed}), in order",
            ("format", "sum", "exact sum of the stored numbers", "error"),
            tuple((f.title, _about(s), _about(e), _error(s, e)) for f, (s, e) in uniform.items()),
        ),
        Table(
            f"0.1 a thousand times: errors (of stochastic rounding the worst of {_RUNS} runs)",
            ("format", *CURES),
            tuple((f.title, *(_worst(sums.get(c), total) for c in CURES)) for f, (total, sums) in cures.items()),
        ),
    ]  # fmt: skip
    return Result(
        experiment="swamping",
        parameters={"formats": [f.name for f in chosen], "terms": terms, "uniform_terms": uniform_terms, "seed": seed},
        answer=_answer(ones, terms),
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(ones, tenths, _exercise(hundredths, mixed), uniform, cures, terms)),
        series={
            "terms": terms,
            "ones": {f.title: trail for f, trail in ones.items() if trail},
            "tenths": {f.title: trail for f, trail in tenths.items() if trail},
            "hundredths": {f.title: trail for f, trail in hundredths.items() if trail},
            "exercise": [list(row) for row in _exercise(hundredths, mixed)],
            "uniform": {f.title: [s, e] for f, (s, e) in uniform.items()},
            "cures": {f.title: {"exact": total, "sums": sums} for f, (total, sums) in cures.items()},
        },
    )


# --- the sums --------------------------------------------------------------------------------------------------------
def _stored(number: float, format: Format) -> int:
    return int(encode(number, format))


def _count_up(session: Session, format: Format, number: float, terms: int) -> list[float] | None:
    """The running sum of one number, in order; it ends early where the sum has stopped changing, for then it stays.

    Asked in growing pieces, each from the last total on: a sequential sum can be cut anywhere.
    """
    code, trail, piece = _stored(number, format), np.zeros(0, np.uint64), 32
    while len(trail) < terms:
        new = min(piece, terms - len(trail))
        start = [int(trail[-1])] if len(trail) else []
        answer = session.ask(ask("cumsum", [format], format, [_codes([*start, *[code] * new], format)]))
        if answer is None:
            return None
        trail = np.append(trail, answer[len(start) :])
        if len(answer) > 3 and answer[-1] == answer[-2] == answer[-3]:
            break
        piece *= 2
    values = decode(trail.astype(np.uint64), format).tolist()
    while len(values) > 2 and values[-1] == values[-2] == values[-3]:
        values.pop()
    return values  # type: ignore[no-any-return]


def _codes(codes: list[int], format: Format) -> Codes:
    return np.array(codes, dtype=f"uint{8 * format.code_bytes}")


def _with_stall(chosen: Sequence[Format]) -> list[Format]:
    """FP64 to E5M2 and the formats asked for, those in which adding 1 stalls."""
    formats = dict.fromkeys([FP64, *(get_format(n) for n in ("fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2")), *chosen])
    return [f for f in formats if f.adding_one_stalls_at is not None and f.adding_one_stalls_at >= 8]


def _near_stall(session: Session, format: Format) -> tuple[int, list[float] | None]:
    """Eight times + 1 from four below 2^p, where the ones should stop counting."""
    start = int(format.adding_one_stalls_at or 0) - 4
    terms = np.asarray(encode([float(start)] + [1.0] * 8, format))
    answer = session.ask(ask("cumsum", [format], format, [terms]))
    return start, None if answer is None else decode(answer, format).tolist()


def _mixed_hundredths(session: Session) -> float | None:
    """0.01 stored in FP16, added a thousand times in FP32."""
    terms = np.full(_CURED, _stored(0.01, get_format("fp16")), np.uint16)
    answer = session.ask(ask("sum", ["fp16"], "fp32", [terms]))
    return None if answer is None else float(decode(answer, "fp32"))


def _uniform(session: Session, formats: Sequence[Format], n: int, seed: int) -> dict[Format, tuple[float, float]]:
    numbers = np.array([bits(seed, i) for i in range(n)]) / 2.0**32
    sums = {}
    for f in formats:
        terms = np.asarray(encode(numbers, f))
        answer = session.ask(ask("sum", [f], f, [terms]))
        if answer is not None:
            sums[f] = float(decode(answer, f)), float(sum(map(Fraction, decode(terms, f).tolist())))
    return sums


def _cures(session: Session, format: Format, seed: int) -> tuple[float, dict[str, list[float]]]:
    """0.1 a thousand times: the exact sum, and what each way of adding gives."""
    code = _stored(0.1, format)
    terms = _codes([code] * _CURED, format)
    questions = {
        "plain": ask("sum", [format], format, [terms]),
        "stochastic": ask("sum", [format], format, [np.tile(terms, (_RUNS, 1))], rounding="stochastic", seed=seed),
        "Kahan": ask("sum", [format], format, [terms], order="kahan"),
        "pairwise": ask("sum", [format], format, [terms], order="pairwise"),
        "FP32 accumulator": ask("sum", [format], FP32, [terms]),
    }
    answers = {cure: (q, session.ask(q)) for cure, q in questions.items()}
    sums = {c: np.atleast_1d(decode(a, q.output)).tolist() for c, (q, a) in answers.items() if a is not None}
    return float(_CURED * exact(code, format)), sums


# --- words -----------------------------------------------------------------------------------------------------------
def _about(x: float | Fraction, digits: int = 9) -> int | float | str:
    """A number for a table; with ~ where its digits are cut.

    >>> _about(0.25), _about(np.float32(0.1).item()), _about(Fraction(4096))
    (0.25, '~0.100000001', 4096)
    """
    shown = cell(float(x), digits)
    return shown if isinstance(shown, str) or Fraction(repr(shown)) == Fraction(x) else f"~{shown}"


def _stalls_at(trail: list[float] | None) -> int | float | str | None:
    """Where a running sum stopped changing; None if it did not."""
    if not trail or len(trail) < 2 or trail[-1] != trail[-2]:
        return None
    total = trail[-1]
    power = math.frexp(total)[1] - 1
    if not math.isfinite(total):
        return "overflow"
    return f"2^{power}" if total > 10**6 and total == 2.0**power else cell(total)


def _stall_row(format: Format, start: int, trail: list[float], counted: list[float] | None) -> tuple[Any, ...]:
    from_one = _stalls_at(counted)
    stalled = from_one if from_one is not None else _stalls_at(trail)
    largest = f"{float(format.max):.6g}"
    near = f"2^{format.precision} - 4" if start > 10**6 else str(start)
    return format.title, format.precision, largest, stalled, "1" if from_one is not None else near


def _exercise(hundredths: dict[Format, list[float] | None], mixed: float | None) -> list[tuple[str, str, float]]:
    rows = [(f.title, f.title, trail[-1]) for f, trail in hundredths.items() if trail]
    if mixed is not None:
        rows.insert(min(1, len(rows)), ("FP16", "FP32", mixed))
    return rows


def _error(value: float, exact_value: float) -> str:
    if not math.isfinite(value):
        return "overflow"
    if value == exact_value:
        return "exact"
    return percent(abs(value - exact_value) / abs(exact_value)) if exact_value else f"{value:.3g}"


def _worst(sums: list[float] | None, total: float) -> str | None:
    return None if sums is None else _error(max(sums, key=lambda s: abs(s - total)), total)


def _answer(ones: dict[Format, list[float] | None], terms: int) -> str:
    """The sum of ones in FP16, or else in the first format that was answered."""
    answered = {f: trail for f, trail in ones.items() if trail}
    for f in sorted(answered, key=lambda f: f.name != "fp16"):
        total = cell(answered[f][min(terms, len(answered[f])) - 1])
        return f"{total}" if f.name == "fp16" else f"{total} in {f.title}"
    return "not answered by this machine"


def _findings(
    ones: dict[Format, list[float] | None],
    tenths: dict[Format, list[float] | None],
    exercise: list[tuple[str, str, float]],
    uniform: dict[Format, tuple[float, float]],
    cures: dict[Format, tuple[float, dict[str, list[float]]]],
    terms: int,
) -> list[str]:
    found = []
    for number, sums in (("1", ones), ("0.1", tenths)):
        stalled = [f"{f.title} at {at}" for f, trail in sums.items() if (at := _stalls_at(trail)) is not None]
        moving = [f.title for f, trail in sums.items() if trail and _stalls_at(trail) is None]
        if stalled:
            rest = f"; {listed(moving)} still counts after {terms} terms" if moving else ""
            found.append(f"Adding {number} again and again stops counting in {listed(stalled)}{rest}.")
    by_name = {(a, b): s for a, b, s in exercise}
    if ("FP16", "FP32") in by_name:
        parts = [f"{cell(s, 9)} in {b}" + (f" of {a} terms" if a != b else "") for (a, b), s in by_name.items()]
        found.append(f"0.01 a thousand times is {listed(parts)}.")
    lost = [f"{f.title} {_error(s, e)}" for f, (s, e) in uniform.items()]
    if lost:
        found.append(f"A sum of uniform numbers is off by: {', '.join(lost)}.")
    for f, (total, ways) in cures.items():
        if f.bits == 16 and "plain" in ways and len(ways) > 2:
            helped = [
                f"{cure} {'up to ' * (len(s) > 1)}{_worst(s, total)}" for cure, s in ways.items() if cure != "plain"
            ]
            plain = _worst(ways["plain"], total)
            found.append(f"0.1 a thousand times in {f.title}: plain is off by {plain}, {', '.join(helped)}.")
    return found


def _draw(result: Result, style: str) -> Any:
    from numsim.show import plots

    return plots.swamping(result, style)


EXPERIMENT = Experiment(
    name="swamping",
    question="FP16 reaches 65504. What is 1 + 1 + ... + 1 in FP16, 4096 ones added one after another?",
    choices=("4096", "2048", "65504", "infinity"),
    wrong_guess="4096",
    why_wrong=(
        "4096 is an FP16 number, and far from the largest. But the sum must pass 2049, which is none: from 2048 on "
        "the numbers are 2 apart, 2048 + 1 lies halfway, the tie goes to the even code, and that is 2048 again."
    ),
    explanation=(
        "A sum stalls where half the distance between neighbouring numbers has grown to the size of the term: for "
        "ones at 2^p, p bits of significand, far below the largest number. "
        "Before that, terms are bent: in FP16 between 64 and 256 each 0.1 counts as 0.125. "
        "A wider accumulator or adding in pairs keeps partner and sum alike in size, Kahan's sum carries along what "
        "was lost (and stalls too, near 2^2p terms), and stochastic rounding is right on average but noisy."
    ),
    sources=(
        "N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002), chapter 4",
        "Stanford CS336 (2025), assignment 2, problem mixed_precision_accumulation",
        "github.com/jax-ml/ml_dtypes issue 63: 10,000 and 20,000 uniform BF16 numbers both sum to 256",
    ),
    defaults={
        "formats": ("fp32", "fp16", "bf16", "e4m3", "e5m2"), "terms": 4096, "uniform_terms": 1024, "seed": 1,
    },
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes"),
    full={"terms": 16_384, "uniform_terms": 20_000},
)  # fmt: skip
