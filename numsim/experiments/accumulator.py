"""Accumulator: what a tensor core's narrow sum costs, and how it grows with the length of a dot product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numsim.codes import Codes, decode
from numsim.experiments.experiment import (
    Experiment,
    Result,
    Session,
    Table,
    cell,
    check_whole,
    listed,
    percent,
)
from numsim.experiments.units import (
    IN_ORDER,
    Floats,
    ask_unit,
    check_chips,
    check_multiplied,
    find_unit,
    normal,
    operands,
    title,
    too_small,
    uniform,
)
from numsim.formats import E4M3, FP16, FP32, Format
from numsim.machines.question import ask
from numsim.random import check_seed
from numsim.rounding import round_to
from numsim.tensorcore.models import Model

SHORTEST = 32  # products: one FP8 instruction of Hopper
PROMOTED = 128  # after so many the chain starts again, as DeepSeek-V3 and cuBLASLt do it
ASKED = ("h100", "b200")  # the chips of the question
KINDS = {"normal": "normal numbers", "positive": "uniform numbers from [0, 1)"}
_CHIPS = ("v100", "a100", "l40s", "h100", "b200", "mi300x")
_EXAMPLE = 'numsim.experiments.run("accumulator", chips=["h100", "b200"])'


class Way(NamedTuple):
    """How dot products were computed: by whom, and whether the chain was promoted."""

    format: Format
    chips: tuple[str, ...]  # titles of those with the same bits
    promoted: bool = False

    def __str__(self) -> str:
        return ", ".join(self.chips) + " promoted" * self.promoted


def run(
    session: Session,
    *,
    formats: Sequence[str] = ("e4m3", "fp16"),
    chips: Sequence[str] = _CHIPS,
    longest: int = 8192,
    outputs: int = 64,
    seed: int = 1,
) -> Result:
    """Relative errors of dot products of 32, 64, ... ``longest`` terms, against the exact sum of the same codes.

    The exact sum: every product of two such numbers is a float64, and ``math.fsum`` rounds their sum once.

    Parameters: ``formats`` of the operands (the pictures show two); ``chips``; ``longest``; ``outputs``, dot products
    for each point; ``seed`` of the numbers.
    """
    chips = check_chips(chips, _EXAMPLE)
    longest = check_whole("longest", longest, PROMOTED, 16_384, 'numsim.experiments.run("accumulator", longest=1024)')
    outputs = check_whole("outputs", outputs, 4, 256, 'numsim.experiments.run("accumulator", outputs=16)')
    seed = check_seed(seed)
    chosen = check_multiplied(formats, "formats=['e4m3', 'fp16']")
    lengths = [n for i in range(20) if (n := SHORTEST << i) <= longest]
    small = _small_terms(session, list(dict.fromkeys([*ASKED, *chips])))
    errors = {
        kind: {w: e for f in chosen for w, e in _errors(session, f, chips, kind, lengths, outputs, seed).items()}
        for kind in KINDS
    }
    shown = [n for n in lengths if n >= PROMOTED][::-2][::-1]
    tables = [
        Table(
            "1 x 1 and 31 products 2^-7 x 2^-7 in E4M3",
            ("added by", "sum", "of the 31 terms", "evidence"),
            tuple((name, cell(x, 15), percent((x - 1) / (31 * 2.0**-14)), level) for name, x, level in small),
        ),
        Table(
            f"Normal numbers, {outputs} dot products of K terms: median of |error / sum|",
            ("format", "added by", *(f"K = {n}" for n in shown), "largest"),
            tuple(
                (w.format.title, str(w), *(_size(float(np.median(abs(e[lengths.index(n)])))) for n in shown),
                 _size(float(abs(e[-1]).max())))
                for w, e in errors["normal"].items()
            ),
        ),
        Table(
            "Uniform numbers from [0, 1): mean of error / sum, the drift",
            ("format", "added by", *(f"K = {n}" for n in shown)),
            tuple(
                (w.format.title, str(w), *(_signed(float(e[lengths.index(n)].mean())) for n in shown))
                for w, e in errors["positive"].items()
            ),
        ),
    ]  # fmt: skip
    return Result(
        experiment="accumulator",
        parameters={
            "formats": [f.name for f in chosen], "chips": chips, "longest": longest, "outputs": outputs, "seed": seed,
        },
        answer=_answer(small),
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(small, errors, lengths)),
        series={
            "lengths": lengths,
            "outputs": outputs,
            "small_terms": [list(row) for row in small],
            "errors": {
                kind: [
                    {"format": w.format.title, "chips": list(w.chips), "promoted": w.promoted,
                     "median": [float(np.median(abs(x))) for x in e], "largest": [float(abs(x).max()) for x in e],
                     "mean": [float(x.mean()) for x in e]}
                    for w, e in ways.items()
                ]
                for kind, ways in errors.items()
            },
        },
    )  # fmt: skip


# --- what is asked ----------------------------------------------------------------------------------------------------
def _small_terms(session: Session, chips: Sequence[str]) -> list[tuple[str, float, str]]:
    """The sum of the question: by FP32 in order and by the chips with a unit for E4M3."""
    factors = np.array([1.0] + [2.0**-7] * 31)
    found = []
    if (total := session.ask(ask("sum", [FP32], FP32, [operands(factors * factors, FP32)]))) is not None:
        found.append((IN_ORDER, float(decode(total, FP32)), "IEEE 754"))
    codes = operands(factors, E4M3)
    for chip in chips:
        if (model := find_unit(chip, E4M3)) and (total := ask_unit(session, model, codes, codes)) is not None:
            found.append((title(chip), float(decode(total, FP32)), model.evidence.level))
    return found


def _errors(
    session: Session, format: Format, chips: Sequence[str], kind: str, lengths: Sequence[int], outputs: int, seed: int
) -> dict[Way, Floats]:
    """error / exact sum (where that is 0: the error) for each way: (lengths, outputs). The same bits are one way."""
    shape = (outputs, lengths[-1])
    draw = normal if kind == "normal" else uniform
    a, b = (np.asarray(round_to(draw(seed, shape, i * math.prod(shape)), format)) for i in range(2))
    exact = np.array([[math.fsum(row[:n]) for row in (a * b).tolist()] for n in lengths])
    found: list[tuple[Way, Codes]] = []
    x, y = operands(a, format), operands(b, format)
    for chip in chips:
        if (model := find_unit(chip, format)) and (chain := _chained(session, model, x, y, lengths)) is not None:
            _add(found, Way(format, (title(chip),)), chain)
            if (promoted := _promoted(session, model, x, y, lengths, chain)) is not None:
                _add(found, Way(format, (title(chip),), True), promoted)
    if (in_order := _in_order(session, operands(a, FP32), operands(b, FP32), lengths)) is not None:
        found.append((Way(format, (IN_ORDER,)), in_order))
    scale = np.where(exact == 0, 1.0, exact)
    found.sort(key=lambda way: way[0].promoted)  # keeps the order otherwise
    return {w: (decode(codes, FP32) - exact) / scale for w, codes in found}


def _add(found: list[tuple[Way, Codes]], way: Way, codes: Codes) -> None:
    """One more way; a chip with the bits of another joins it."""
    for i, (known, others) in enumerate(found):
        if known.promoted == way.promoted and np.array_equal(others, codes):
            found[i] = known._replace(chips=known.chips + way.chips), codes
            return
    found.append((way, codes))


def _chained(session: Session, model: Model, a: Codes, b: Codes, lengths: Sequence[int]) -> Codes | None:
    """The chip's chain over the first n terms, for each n: each goes on from the last sum."""
    sums: list[Codes] = []
    for start, end in itertools.pairwise([0, *lengths]):
        d = ask_unit(session, model, a[:, start:end], b[:, start:end], sums[-1] if sums else None)
        if d is None:
            return None
        sums.append(d)
    return np.array(sums)


def _promoted(session: Session, model: Model, a: Codes, b: Codes, lengths: Sequence[int], chain: Codes) -> Codes | None:
    """Chains of 128 terms, each from zero, added up in FP32 one after another; up to 128 terms that is the chain."""
    count = len(a)
    whole = lengths[-1] // PROMOTED * PROMOTED
    pieces = ask_unit(
        session, model, *(x[:, :whole].reshape(count, whole // PROMOTED, PROMOTED) for x in (a, b))
    )  # (outputs, pieces)
    if pieces is None or (totals := session.ask(ask("cumsum", [FP32], FP32, [pieces]))) is None:
        return None
    return np.array([chain[i] if n < PROMOTED else totals[:, n // PROMOTED - 1] for i, n in enumerate(lengths)])


def _in_order(session: Session, a: Codes, b: Codes, lengths: Sequence[int]) -> Codes | None:
    """FP32 without a tensor core: one addition after another, each rounded to nearest."""
    sums = [session.ask(ask("dot", [FP32, FP32], FP32, [a[:, :n], b[:, :n]])) for n in lengths]
    return None if any(s is None for s in sums) else np.array(sums)


# --- words ------------------------------------------------------------------------------------------------------------
def _size(x: float) -> str:
    return f"{x:.1e}" if x else "0"


def _signed(x: float) -> str:
    return f"{x:+.1e}" if x else "0"


def _answer(small: Sequence[tuple[str, float, str]]) -> str:
    """What the chips of the question gave, or else the first that answered."""
    sums = {name: f"{cell(x, 15)} on {name}" for name, x, _ in small if name != IN_ORDER}
    wanted = [sums[t] for t in map(title, ASKED) if t in sums] or [*sums.values()][:2]
    return ", ".join(wanted) or "not answered by this machine"


def _findings(
    small: Sequence[tuple[str, float, str]], errors: dict[str, dict[Way, Floats]], lengths: Sequence[int]
) -> list[str]:
    found = []
    lost = [name for name, x, _ in small if x == 1]
    kept = [name for name, x, _ in small if x != 1]
    if lost:
        rest = f" {listed(kept)} keep them." if kept else ""
        found.append(f"All 31 terms of 2^-14 next to 1 are lost on {listed(lost)}.{rest}")
    elif kept:
        found.append(f"The 31 terms of 2^-14 next to 1 survive on {listed(kept)}.")
    last = lengths[-1]
    medians = {w: float(np.median(abs(e[-1]))) for w, e in errors["normal"].items()}
    for kind, ways in errors.items():
        for f in dict.fromkeys(w.format for w in ways):
            parts = []
            for w, e in ways.items():
                if w.format == f and not w.promoted:
                    told = _size(medians[w]) if kind == "normal" else too_small(float(e[-1].mean()))
                    parts.append(f"{listed(w.chips)} {told}")
            what = "median of |error / sum|" if kind == "normal" else "the sums are on average"
            found.append(f"{f.title}, {last} {KINDS[kind]}, {what}: {'; '.join(parts)}.")
    by_chip = {name: x for w, x in medians.items() if (w.format, w.promoted) == (FP16, False) for name in w.chips}
    if "V100" in by_chip and "H100" in by_chip and by_chip["V100"] < by_chip["H100"]:
        volta, hopper = (m.unit.fraction_bits for chip in ("v100", "h100") if (m := find_unit(chip, FP16)))
        found.append(
            f"More kept bits need not help: the median is {_size(by_chip['V100'])} on V100 ({volta} bits), "
            f"{_size(by_chip['H100'])} on H100 ({hopper}). A V100 cuts products, whose signs vary; bits beyond FP32's "
            f"{FP32.fraction_bits} are cut from the sum after each block, always towards zero."
        )
    if cure := _worst(medians):
        plain, promoted = (errors["positive"][w] for w in cure)
        found.append(
            f"With the chain promoted every {PROMOTED} terms, {cure[0].format.title} on {cure[0].chips[0]} is "
            f"{too_small(float(promoted[-1].mean()))} over {last} instead of {too_small(float(plain[-1].mean()))}: the "
            f"loss stays that of {PROMOTED} terms, {too_small(float(plain[lengths.index(PROMOTED)].mean()))}."
        )
    return found


def _worst(medians: dict[Way, float]) -> tuple[Way, Way] | None:
    """The chain with the largest errors, and the same one promoted."""
    ways = sorted((w for w in medians if w.chips != (IN_ORDER,)), key=lambda w: -medians[w])
    return next(
        ((w, other) for w in ways for other in ways
         if not w.promoted and other.promoted and w.format == other.format and w.chips[0] in other.chips),
        None,
    )  # fmt: skip


def _draw(result: Result, style: str) -> Any:
    from numsim.show import tensor_plots

    return tensor_plots.accumulator(result, style)


EXPERIMENT = Experiment(
    name="accumulator",
    question=(
        "1 x 1 plus 31 products 2^-7 x 2^-7 is exactly 1.00189208984375. What do the FP8 tensor cores of an H100 and a "
        "B200 give for this sum of E4M3 products, accumulated in FP32?"
    ),
    choices=(
        "1.00189208984375 on H100, 1.00189208984375 on B200",
        "1 on H100, 1.00189208984375 on B200",
        "1 on H100, 1 on B200",
        "1.00189208984375 on H100, 1 on B200",
    ),
    wrong_guess="1.00189208984375 on H100, 1.00189208984375 on B200",
    why_wrong=(
        "FP32 would hold the sum, and adding in FP32 one after another gives it. But the FP8 unit of Hopper keeps only "
        "13 fraction bits below the largest product of a block: each 2^-14 next to 1 is cut to zero before it is "
        "added, and 31 times zero is zero. Blackwell keeps 25."
    ),
    explanation=(
        "Ada and Hopper align FP8 products to the largest exponent, keep 13 fraction bits and give 13 to the next "
        "instruction: the same fact is known as 14 bits (with the leading 1) and as FP22 (a sign, 8 exponent and 13 "
        "fraction bits). "
        "What is cut is cut towards zero, so sums of positive terms come out too small, and the more so the longer "
        "they are, for each term is cut at the last bit of an ever larger sum; rounding to nearest has no such drift. "
        "The cure in software is to begin again from zero every 128 terms and to add the pieces up in FP32 proper, as "
        "DeepSeek-V3 does; Blackwell needs none."
    ),
    sources=(
        "DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.3.2: 14 bits, promotion every 128",
        "SageAttention2, arXiv:2411.10958: the accumulator as FP22; P. Xie et al., arXiv:2511.10909v2 (2026): E8M13",
        "deepseek-ai/DeepGEMM issues 37 (mma.sync on H100 shows no loss: it is no FP8 unit) and 176 (25 bits on B200)",
        "recorded FP8 results of an H100 start from c = 0; how a chain goes on rests on the papers: numsim chips h100",
    ),
    defaults={"formats": ("e4m3", "fp16"), "chips": _CHIPS, "longest": 8192, "outputs": 64, "seed": 1},
    run=run,
    draw=_draw,
    against=("numpy",),
    full={"formats": ("e4m3", "fp16", "bf16"), "outputs": 256},
)
