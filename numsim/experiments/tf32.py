"""TF32: operands that lose 13 bits on the way in, and FP32 products put together from several narrow ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numsim.codes import Codes, decode
from numsim.errors import InputError
from numsim.experiments.experiment import Experiment, Result, Session, Table, cell, check_whole, percent
from numsim.experiments.units import (
    IN_ORDER,
    Floats,
    ask_unit,
    check_chips,
    find_unit,
    headline,
    normal,
    title,
    too_small,
    uniform,
)
from numsim.formats import BF16, FP32, TF32, Format
from numsim.machines.question import ask
from numsim.random import check_seed
from numsim.rounding import Policy, Rounding, convert, encode
from numsim.tensorcore.models import Model

_EXAMPLE = 'numsim.experiments.run("tf32", chips=["h100"])'
_FAMOUS = (1024.5, 1024.75, 1025.5)  # TF32 has whole numbers only from 1024 to 2048
_LOW_NAN = 0x7F800001  # a NaN whose payload lies in the bits that are ignored
_FIRST: dict[str, Rounding] = {"ties away": "nearest-away", "ties even": "nearest-even"}


class Way(NamedTuple):
    """How FP32 operands become narrow ones: so many parts each, and which products of parts are added.

    A part is what rounding makes of the number less the parts before it. Of the products i x j those with
    i + j <= ``last`` are taken (parts count from 0), the small ones first, each pass over all of K and its result the
    next one's c. ``outside``: the largest, 0 x 0, starts from zero in each instruction instead, and these results and
    at last the small products' are added up in FP32.
    """

    format: Format
    parts: int = 1
    last: int = 0
    rounding: Rounding = "nearest-even"
    outside: bool = False

    @property
    def pairs(self) -> list[tuple[int, int]]:
        every = [(i, j) for i in range(self.parts) for j in range(self.parts) if i + j <= self.last]
        return sorted(every, key=sum, reverse=True)


ONE_PRODUCT = {
    "TF32, cut by the unit": Way(TF32, rounding="toward-zero"),
    "TF32, ties away first": Way(TF32, rounding="nearest-away"),
    "TF32, ties even first": Way(TF32),
}
WAYS = ONE_PRODUCT | {
    "3xTF32 cut": Way(TF32, 2, 1, "toward-zero"),
    "3xTF32 rounded": Way(TF32, 2, 1),
    "3xTF32 cut, outside": Way(TF32, 2, 1, "toward-zero", outside=True),
    "3xTF32 rounded, outside": Way(TF32, 2, 1, outside=True),
    "BF16": Way(BF16),
    "BF16x3": Way(BF16, 2, 1),
    "BF16x6": Way(BF16, 3, 2),
    "BF16x9": Way(BF16, 3, 4),
}


def run(
    session: Session,
    *,
    chips: Sequence[str] = ("a100", "h100"),
    size: int = 32,
    k: int = 256,
    seed: int = 1,
) -> Result:
    """Single TF32 products; then errors of products (size, k) x (k, size) of FP32 matrices, computed in several ways.

    Parameters: ``chips``, of which those with TF32 are asked; ``size`` and ``k``, a multiple of 16, of the matrices;
    ``seed`` of their entries: uniform from [0, 1), and normal.
    """
    chosen = check_chips(chips, _EXAMPLE)
    size = check_whole("size", size, 2, 256, _EXAMPLE)
    k = check_whole("k", k, 16, 4096, _EXAMPLE)
    if k % 16:
        raise InputError(f"k={k}: a multiple of 16 is needed, for whole instructions. Example: {_EXAMPLE}")
    seed = check_seed(seed)
    units = {title(chip): Units(m, find_unit(chip, BF16)) for chip in chosen if (m := find_unit(chip, TF32))}
    main = headline(units)
    singles = _singles(session, units, main)
    errors = {kind: _errors(session, units, Matrices.drawn(draw, seed, size, k)) for kind, draw in KINDS.items()}
    found = {key: (e, errors["normal"][key]) for key, e in errors["uniform"].items() if key in errors["normal"]}
    tables = [
        Table(
            "x times 1: by the unit; by the unit after x was rounded to TF32; in FP32",
            ("x", *units, *(f"{ties} first" for ties in _FIRST), "FP32"),
            tuple((x, *row) for x, row in singles.items()),
        ),
        *(
            Table(
                f"{who}, K = {k}: gain (too large on the whole) and mean error, in units of 2^-24",
                ("way", "products", "uniform: gain", "mean", "normal: gain", "mean"),
                tuple(
                    (way, len(WAYS[way].pairs) if way in WAYS else None, *(_brief(x) for e in pair for x in e[:2]))
                    for (by, way), pair in found.items()
                    if by in (who, IN_ORDER)
                ),
            )
            for who in (units if len(found) > 1 else {})
        ),
    ]  # fmt: skip
    return Result(
        experiment="tf32",
        parameters={"chips": chosen, "size": size, "k": k, "seed": seed},
        answer=_answer(singles, list(units), main),
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(singles, found, main)),
        series={
            "singles": singles,
            "errors": [[*key, *(list(e[:2]) for e in pair)] for key, pair in found.items()],
            "relative": {way: e.relative for (by, way), (e, _) in found.items() if by == main and way in ONE_PRODUCT},
            "main": main,
        },
    )


class Units(NamedTuple):
    """The instructions of a chip."""

    tf32: Model
    bf16: Model | None

    def of(self, format: Format) -> Model | None:
        return self.tf32 if format == TF32 else self.bf16


def fine_normal(seed: int, shape: Sequence[int], start: int = 0) -> Floats:
    """Nearly normal numbers; ``normal`` gives multiples of 2^-16, these have bits for all of FP32 below that."""
    return np.asarray(normal(seed, shape, start) + 2.0**-16 * uniform(seed, shape, (1 << 31) + start))


KINDS = {"uniform": uniform, "normal": fine_normal}


# --- single products --------------------------------------------------------------------------------------------------
def _singles(session: Session, units: Mapping[str, Units], main: str | None) -> dict[str, list[Any]]:
    """Each number times 1: by each unit, by one unit after rounding, and in FP32."""
    words = np.append(np.asarray(encode(_FAMOUS, FP32)), np.uint32(_LOW_NAN))
    columns = [_times_one(session, u.tf32, words) for u in units.values()]
    for rounding in _FIRST.values():
        rounded = np.asarray(convert(words, FP32, TF32, Policy(rounding=rounding))) << np.uint32(13)
        columns.append(_times_one(session, units[main].tf32, rounded) if main else None)
    columns.append(session.ask(ask("mul", [FP32, FP32], FP32, [words, np.asarray(encode(1.0, FP32))])))
    if all(c is None for c in columns):
        return {}
    values = [[None] * len(words) if c is None else list(map(cell, decode(c, FP32).tolist())) for c in columns]
    names = [*map(str, _FAMOUS), f"NaN {_LOW_NAN:#x}"]
    return {name: list(row) for name, *row in zip(names, *values, strict=True)}


def _times_one(session: Session, model: Model, words: Codes) -> Codes | None:
    """One product an instruction; the others are zero."""
    a, b = np.zeros((len(words), model.k), np.uint32), np.zeros(model.k, np.uint32)
    a[:, 0], b[0] = words, encode(1.0, FP32)
    return ask_unit(session, model, a, b)


# --- matrix products --------------------------------------------------------------------------------------------------
class Matrices(NamedTuple):
    """FP32 numbers a (size, 1, k) and b (1, size, k); the product and that of the magnitudes, as float64."""

    a: Floats
    b: Floats
    exact: Floats
    magnitude: Floats

    @classmethod
    def drawn(cls, draw: Callable[[int, Sequence[int], int], Floats], seed: int, size: int, k: int) -> Matrices:
        a, b = (decode(encode(draw(seed, (size, k), n * size * k), FP32), FP32) for n in (0, 1))
        a, b = a[:, None, :], b[None, :, :]
        products = a * b  # exact in float64; fsum rounds their sum once
        return cls(a, b, _summed(products), _summed(np.abs(products)))


def _summed(terms: Floats) -> Floats:
    return np.array([[math.fsum(x) for x in row] for row in terms.tolist()])


class Error(NamedTuple):
    """In units of 2^-24: by what factor results are too large on the whole (their gain less 1: < 0 if they are too
    small), and the mean distance from the exact ones, relative to the product of the magnitudes; and each result's
    relative error."""

    gain: float
    mean: float
    relative: list[float]


def _errors(session: Session, units: Mapping[str, Units], m: Matrices) -> dict[tuple[str, str], Error]:
    """For each chip and way that is answered, and for FP32 in order: (who, way) -> errors."""
    a, b = (np.asarray(encode(x, FP32)) for x in (m.a, m.b))
    found = {(IN_ORDER, IN_ORDER): session.ask(ask("dot", [FP32, FP32], FP32, [a, b]))}
    for name, way in WAYS.items():
        left, right = _parts(m.a, way), _parts(m.b, way)
        for who, chip in units.items():
            if (model := chip.of(way.format)) is not None:
                found[who, name] = _product(session, model, left, right, way)
    return {key: _error(decode(d, FP32), m) for key, d in found.items() if d is not None}


def _parts(values: Floats, way: Way) -> list[Codes]:
    """What rounding makes of each number, then of what that leaves, and so on; as codes that units take."""
    parts = []
    for _ in range(way.parts):
        codes = np.asarray(encode(values, way.format, rounding=way.rounding))
        values = values - decode(codes, way.format)  # exact: FP32 numbers, and their differences
        parts.append(codes << np.uint32(13) if way.format == TF32 else codes)
    return parts


def _product(session: Session, model: Model, left: list[Codes], right: list[Codes], way: Way) -> Codes | None:
    d: Codes | None = None
    for i, j in way.pairs:
        if way.outside and i == j == 0:
            return _plus_outside(session, model, left[0], right[0], d)
        if (d := ask_unit(session, model, left[i], right[j], d)) is None:
            return None
    return d


def _plus_outside(session: Session, model: Model, a: Codes, b: Codes, small: Codes | None) -> Codes | None:
    """Each instruction's result from zero, these one after another in FP32, then the small products' sum."""
    a, b = (x.reshape(*x.shape[:2], -1, model.k) for x in (a, b))
    pieces = ask_unit(session, model, a, b)
    if pieces is None or small is None:
        return None
    return session.ask(ask("sum", [FP32], FP32, [np.concatenate([pieces, small[..., None]], axis=-1)]))


def _error(result: Floats, m: Matrices) -> Error:
    off = result - m.exact
    gain = math.fsum((off * m.exact).flat) / math.fsum((m.exact**2).flat)
    mean = math.fsum((np.abs(off) / m.magnitude).flat) / off.size
    return Error(2.0**24 * gain, 2.0**24 * mean, (off / m.exact).ravel().tolist())


# --- words ------------------------------------------------------------------------------------------------------------
def _answer(singles: Mapping[str, list[Any]], chips: list[str], main: str | None) -> str:
    got = singles[str(_FAMOUS[0])][chips.index(main)] if singles and main else None
    return "not answered" if got is None else str(got)


def cut_or_rounded(gains: Mapping[str, float], who: str) -> str:
    """The finding about single products, as pictures and findings say it."""
    cut, *rounded = (gains[way] for way in ONE_PRODUCT)
    off = percent(max(map(abs, rounded)) * 2.0**-24)
    told = f"cut by the unit {too_small(cut * 2.0**-24)}, rounded first off by {off}"
    return f"TF32 products of uniform numbers on {who}: {told}"


def _brief(x: float) -> int | float | str:
    """Three digits and whole numbers.

    >>> _brief(-11012.3), _brief(0.20711)
    (-11012, 0.207)
    """
    return cell(round(x)) if abs(x) >= 100 else cell(x, 3)


def split(means: Mapping[str, float], who: str) -> str:
    """The finding about several products, as pictures and findings say it."""
    inside, outside = (means[f"3xTF32 rounded{where}"] for where in ("", ", outside"))
    return (
        f"3xTF32 on {who} is off by {inside:.3g} units of 2^-24 on average, by {outside:.3g} if the instructions' "
        "results are added outside, in FP32"
    )


def _findings(
    singles: Mapping[str, list[Any]], found: Mapping[tuple[str, str], tuple[Error, Error]], main: str | None
) -> Iterable[str]:
    for x, row in singles.items():
        *units, away, even, wide = row
        answers = list(dict.fromkeys(str(v) for v in units if v is not None))
        told = [f"by the unit {' or '.join(answers)}"] if answers else []
        if None not in (away, even) and "NaN" not in x:
            told.append(f"rounded first {away} (ties away) and {even} (ties even)")
        told += [f"in FP32 {wide}"] if wide is not None else []
        what = f"{x}, with its payload in the 13 bits that the unit ignores, times 1" if "NaN" in x else f"{x} x 1"
        if x != str(_FAMOUS[1]):  # between the two others; the table has it
            yield f"{what}: {', '.join(told)}."
    errors = {way: pair for (who, way), pair in found.items() if who in (main, IN_ORDER)}
    if main is None or len(errors) < 2:
        return
    gains = {way: e.gain for way, (e, _) in errors.items()}
    means = {way: e.mean for way, (e, _) in errors.items()}
    normal_cut = errors[next(iter(ONE_PRODUCT))][1].gain
    yield f"{cut_or_rounded(gains, main)}. Normal numbers, cut by the unit: {too_small(normal_cut * 2.0**-24)}."
    in_order = f"; FP32 in order is off by {means[IN_ORDER]:.3g}" if IN_ORDER in means else ""
    yield f"{split(means, main)}{in_order} (uniform numbers)."
    worse = means["3xTF32 cut, outside"] / means["3xTF32 rounded, outside"]
    yield f"With the sums outside, cutting the parts instead of rounding them makes the error {worse:.2g} times as big."
    names = [way for way in means if way.startswith("BF16") or way.endswith("by the unit")]
    few = ", ".join(f"{way.replace(', ', ' ')} {_brief(means[way])}" for way in names)
    yield f"Mean errors, all in the unit, in units of 2^-24: {few}."


def _draw(result: Result, style: str) -> Any:
    from numsim.show import block_plots

    return block_plots.tf32(result, style)


EXPERIMENT = Experiment(
    name="tf32",
    question="1024.5 x 1 by the TF32 instruction of a tensor core, operands and result in FP32 words: what comes out?",
    choices=("1024.5", "1024", "1025"),
    wrong_guess="1024.5",
    why_wrong=(
        "1024.5 is an FP32 number, but of each operand's word the unit reads 19 bits: sign, exponent, 10 bits of "
        "fraction. From 1024 on that leaves whole numbers, and the rest is cut off. The 1025 that libraries have shown "
        "comes from rounding in software before the instruction."
    ),
    explanation=(
        "Cutting makes every operand too small, by 2^-11 or so, and all errors point the same way: products shrink, "
        "however many are averaged; operands rounded first have errors of both signs, which cancel in long sums. "
        "Two TF32 parts of each number and three products bring nearly all bits of FP32 back (here each pass over all "
        "of K, small products first), and so do two or three BF16 parts and three, six or nine products. "
        "But then the truncation in the unit's accumulator, again always one way, is the largest error, and what "
        "helps is to start from zero in each instruction and to add the results in FP32."
    ),
    sources=(
        "github.com/pytorch/pytorch issue 53635: 1024.5 x 1 is 1025 on an RTX 3090, by PyTorch 1.8",
        "Xie et al., Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units, arXiv:2511.10909v2 (2026)",
        "Ootomo, Yokota, Recovering single precision accuracy from Tensor Cores, IJHPCA 2022, arXiv:2203.03341: parts "
        "of TF32, sums outside",
        "Henry, Tang, Heinecke, Leveraging the bfloat16 datatype for higher-precision computations, ARITH 2019, "
        "arXiv:1904.06376: parts of BF16",
    ),
    defaults={"chips": ("a100", "h100"), "size": 32, "k": 256, "seed": 1},
    run=run,
    draw=_draw,
    against=("numpy", "torch-cpu"),
    full={"size": 64, "k": 2048},
)
