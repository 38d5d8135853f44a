"""Recipes: the same real tensors in every FP8, FP6 and FP4 recipe; what each loses, and to an outlier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.blocks import list_block_formats
from numsim.data import load_gradients
from numsim.errors import InputError, short
from numsim.experiments.block_units import Kept, clipped_means, quantized_operand
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
from numsim.formats import Format
from numsim.random import check_seed
from numsim.scaling import Operand, get_recipe, list_recipes

Floats = npt.NDArray[np.float64]
FP32s = npt.NDArray[np.float32]
OPERANDS = {"input": "fprop", "weight": "fprop", "grad_output": "dgrad"}  # each tensor, and the product it is made for
CONTENDERS = {"E4M3": "fp8_tensor", "E5M2": "fp8_tensor_e5m2", "MXFP8": "te-mxfp8"}  # of the question
FORMATS = {f.name: f for f in list_block_formats() if isinstance(f.element, Format)}
_RECIPES = tuple(r.name for r in list_recipes())
_WIDER = ("fp8_tensor", "fp8_tensor_e5m2", "mxfp8_e5m2", "mxfp6_e3m2")  # formats that no recipe has for all tensors
_WAYS = {  # of NVFP4, on the gradient along the batch
    "to nearest": Operand("nvfp4"),
    "stochastic": Operand("nvfp4", rounding="stochastic", sr_bits=8),
    "Hadamard": Operand("nvfp4", transform="hadamard"),
    "both": Operand("nvfp4", rounding="stochastic", transform="hadamard", sr_bits=8),  # the recipe's own
}
_EXAMPLE = 'numsim.experiments.run("recipes", recipes=["te-mxfp8", "mxfp4"])'


class Loss(NamedTuple):
    """What a tensor loses; shares are of the numbers that are not 0, and shares and noise leave an outlier out."""

    noise: float  # signal to noise in dB: 10 log10 of sum x^2 / sum (x' - x)^2
    zero: float  # share that becomes 0
    clipped: float
    without_scale: float
    outlier: float  # what the outlier became, as a part of itself


def run(
    session: Session,
    *,
    recipes: Sequence[str] = (*_RECIPES, *_WIDER),
    step: int = 2000,
    outlier: float = 64.0,
    draws: int = 16,
    seed: int = 1,
) -> Result:
    """A linear layer's input, weight and gradient of its output, as each recipe feeds them to the products.

    Parameters: ``recipes``, names of recipes and of block formats whose elements are floating-point numbers; ``step``
    of the recording that the gradient is from; ``outlier``, by which the largest number is multiplied; ``draws`` of
    stochastic rounding, of which the first has this ``seed``.
    """
    chosen = _chosen(recipes)
    matrices = load_gradients().matrices
    if step not in matrices["grad_output"] or isinstance(step, bool):
        steps = ", ".join(map(str, matrices["grad_output"]))
        raise InputError(f"step={short(step)}: recorded are {steps}. Example: {_EXAMPLE[:-1]}, step=500)")
    outlier = check_real("outlier", outlier, 2.0, 65536.0, _EXAMPLE)
    draws = check_whole("draws", draws, 2, 256, _EXAMPLE)
    seed = check_seed(seed)
    tensors = {name: matrices[name].get(step, matrices[name][2000]) for name in OPERANDS}

    plain: dict[tuple[str, str], Loss] = {}
    planted: dict[tuple[str, str], Loss] = {}
    for name, operands in {**chosen, **{name: _operands(name)[1] for name in CONTENDERS.values()}}.items():
        for tensor, operand in operands.items():
            x = tensors[tensor]
            if (found := quantized_operand(session, operand, x, seed)) is not None:
                plain[name, tensor] = _loss(x, found)
            if tensor == "weight" or name not in chosen:
                continue
            with_outlier, at = _planted(x, outlier)
            # delayed scaling has seen the tensors before, and no outlier among them
            seen = np.abs(x).max() if name == "te-delayed" else None
            if (found := quantized_operand(session, operand, with_outlier, seed, seen)) is not None:
                planted[name, tensor] = _loss(with_outlier, found, at)
    gradient = np.ascontiguousarray(tensors["grad_output"].T)
    ways = _ways(session, gradient, seed, draws)
    cast = {name: o for name, o in chosen.items() if all(_known(plain.get((name, t))) for t in OPERANDS)}
    short_names = [name.removesuffix("_output") for name in OPERANDS]
    tables = (
        Table(
            f"Signal to noise in dB, and -> 0: share that becomes 0 (gradient of step {step})",
            ("recipe", "grad in", *(column for name in short_names for column in (name, "-> 0"))),
            tuple(
                (name, operands["grad_output"].format.element.title,
                 *(c for t in OPERANDS for c in (_db(plain[name, t].noise), percent(plain[name, t].zero))))
                for name, operands in cast.items()
            ),
        ),
        Table(
            f"The largest number (max) times {outlier:g}: what it becomes; the rest, in dB and -> 0",
            ("recipe", "input max", "rest dB", "-> 0", "grad max", "rest dB", "-> 0"),
            tuple(
                (name, *(c for t in ("input", "grad_output") for x in [planted[name, t]]
                         for c in (f"{x.outlier:.2g} x", _db(x.noise), percent(x.zero))))
                for name in cast
            ),
        ),
        Table(
            "NVFP4, the gradient along the batch, in dB; small: those that nearest makes 0",
            ("rounding", "one draw: all", "-> 0", "small", f"mean of {draws}: all", "small"),
            tuple((way, _db(w.noise), percent(w.zero), *map(_db, w[2:])) for way, w in ways.items()),
        ),
        Table(
            "Bits a number (gradient), and the share of the numbers that is clipped",
            ("recipe", "bits", "scale", *OPERANDS),
            tuple(
                (name, cell(f.bits_per_value), f.scale.title, *(percent(plain[name, t].clipped) for t in OPERANDS))
                for name, operands in chosen.items()
                for f in [operands["grad_output"].format]
                if all((name, t) in plain for t in OPERANDS)
            ),
        ),
    )  # fmt: skip
    return Result(
        experiment="recipes",
        parameters={"recipes": list(chosen), "step": step, "outlier": outlier, "draws": draws, "seed": seed},
        answer=_answer(plain),
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(list(cast), plain, planted, ways, outlier, draws, tensors["grad_output"])),
        series={
            "recipes": list(cast),
            "outlier": outlier,
            "step": step,
            "plain": {name: {t: plain[name, t]._asdict() for t in OPERANDS} for name in cast},
            "planted": {name: {t: planted[name, t]._asdict() for t in ("input", "grad_output")} for name in cast},
            "contenders": {title: plain[name, "grad_output"]._asdict() for title, name in CONTENDERS.items()
                           if _known(plain.get((name, "grad_output")))},
        },
    )  # fmt: skip


def _chosen(recipes: Any) -> dict[str, dict[str, Operand]]:
    if not isinstance(recipes, (list, tuple)) or not recipes:
        raise InputError(f"recipes={short(recipes)}: one or more names are needed. Example: {_EXAMPLE}")
    return dict(_operands(name) for name in recipes)


def _operands(name: Any) -> tuple[str, dict[str, Operand]]:
    """A recipe or block format by its name, and what it makes of each tensor."""
    key = name.strip().lower().replace("_", "-") if isinstance(name, str) else None
    if key in _RECIPES:
        recipe = get_recipe(key)
        operands = {o: recipe.operand(o, gemm) for o, gemm in OPERANDS.items()}
        return recipe.name, {o: made for o, made in operands.items() if made is not None}
    if key is None or key.replace("-", "_") not in FORMATS:
        raise InputError(f"recipes: {short(name)} is none: known are {', '.join([*_RECIPES, *FORMATS])}. "
                         f"Example: {_EXAMPLE}")  # fmt: skip
    format = FORMATS[key.replace("-", "_")]
    return format.name, dict.fromkeys(OPERANDS, Operand(format))


# --- what is asked ---------------------------------------------------------------------------------------------------
def _planted(x: FP32s, outlier: float) -> tuple[FP32s, tuple[Any, ...]]:
    """The matrix with its largest number multiplied, and where that is."""
    at = np.unravel_index(np.abs(x).argmax(), x.shape)
    planted = x.copy()
    planted[at] *= np.float32(outlier)
    return planted, at


def _loss(x: FP32s, kept: Kept, at: tuple[Any, ...] | None = None) -> Loss:
    """What is lost; with an outlier at a place, of all other numbers."""
    there, became = x != 0, np.nan
    if at is not None:
        there[at] = False
        became = np.nan if kept.values is None else float(kept.values[at] / x[at])
    noise, zero = np.nan, np.nan
    if kept.values is not None:
        others = (
            np.ones(x.shape, bool)
            if at is None
            else np.arange(x.size).reshape(x.shape) != np.ravel_multi_index(at, x.shape)
        )
        noise, zero = _noise(x[others], kept.values[others]), float(np.mean(kept.values[there] == 0))
    return Loss(noise, zero, float(kept.clipped[there].mean()), float(kept.without_scale[there].mean()), became)


def _noise(x: FP32s, values: Floats) -> float:
    """Signal to noise in dB; infinite where nothing is lost."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(10 * np.log10(np.sum(x.astype(np.float64) ** 2) / np.sum((values - x) ** 2)))


def _known(loss: Loss | None) -> bool:
    """Whether the machine could cast."""
    return loss is not None and not np.isnan(loss.noise)


class Way(NamedTuple):
    """NVFP4 in one of its ways: signal to noise of one draw and of the mean of several, and zeros of one draw."""

    noise: float
    zero: float
    small: float  # signal to noise of the numbers that rounding to nearest makes 0
    mean_noise: float
    mean_small: float


def _ways(session: Session, x: FP32s, seed: int, draws: int) -> dict[str, Way]:
    """Each way that the machine has; none where it cannot even round to nearest."""
    made: dict[str, list[Floats]] = {}
    for way, operand in _WAYS.items():
        seeds = [(seed + i) % 2**64 for i in range(draws if operand.rounding == "stochastic" else 1)]
        kept = [quantized_operand(session, operand, x, s) for s in seeds]
        made[way] = [k.values for k in kept if k is not None and k.values is not None]
    if not made["to nearest"]:
        return {}
    small = (made["to nearest"][0] == 0) & (x != 0)

    def both(values: Floats) -> tuple[float, float]:
        return _noise(x, values), _noise(x[small], values[small])

    ways = {}
    for way, values in made.items():
        if values:
            (noise, lost), mean = both(values[0]), both(np.mean(values, axis=0))
            ways[way] = Way(noise, float(np.mean(values[0][x != 0] == 0)), lost, *mean)
    return ways


# --- words -----------------------------------------------------------------------------------------------------------
def _db(noise: float) -> str:
    return f"{noise:.1f}"


def _error(noise: float) -> str:
    """The RMS error as a part of the RMS."""
    return percent(10 ** (-noise / 20))


def _answer(plain: Mapping[tuple[str, str], Loss]) -> str:
    """Which of the three has the largest RMS error."""
    noise = {title: plain[name, "grad_output"].noise for title, name in CONTENDERS.items()
             if _known(plain.get((name, "grad_output")))}  # fmt: skip
    if len(noise) < len(CONTENDERS):
        return "not answered by this machine"
    return min(noise, key=noise.__getitem__)


def _findings(
    names: list[str],
    plain: Mapping[tuple[str, str], Loss],
    planted: Mapping[tuple[str, str], Loss],
    ways: Mapping[str, Way],
    outlier: float,
    draws: int,
    gradient: FP32s,
) -> list[str]:
    found = []
    three = {t: plain[n, "grad_output"] for t, n in CONTENDERS.items() if _known(plain.get((n, "grad_output")))}
    said = [f"{t} {_error(x.noise)} and {percent(x.zero)}" for t, x in three.items()]
    if said:
        found.append(f"RMS error, as a part of the RMS, and share of the gradients that becomes 0: {listed(said)}.")
    if "E4M3" in three and (lost := three["E4M3"].zero):
        squares = np.sort(gradient[gradient != 0].astype(np.float64) ** 2)
        least, largest = round(lost * squares.size), round(0.01 * squares.size)
        parts = [percent(float(part.sum() / squares.sum())) for part in (squares[:least], squares[-largest:])]
        found.append(
            f"The error hardly sees the small ones: the {percent(lost)} that E4M3 makes 0 hold {parts[0]} of the sum "
            f"of squares, the largest 1 % hold {parts[1]}."
        )
    pairs = {n: (plain[n, "grad_output"], planted[n, "grad_output"]) for n in names}
    gone = sorted((n for n in names if pairs[n][0].zero > 0.01), key=lambda n: -pairs[n][0].zero)
    if gone:
        unscaled = {n: percent(pairs[n][0].without_scale) for n in gone if pairs[n][0].without_scale}
        why = {n: f" ({share} lie in blocks whose scale is 0)" for n, share in unscaled.items()}
        each = [f"{n} {percent(pairs[n][0].zero)}{why.get(n, '')}" for n in gone]
        found.append(f"Of the gradients become 0: in {listed(each)}.")
    if "te-delayed" in pairs:
        left = pairs["te-delayed"][1].outlier
        found.append(f"te-delayed clips the outlier to {left:.2g} of itself: its scale is older than the outlier.")
    more = [
        f"{n} {percent(x.zero)} instead of {percent(p.zero)}" for n, (p, x) in pairs.items() if x.zero > p.zero + 0.01
    ]
    if more:
        found.append(f"Beside the gradient times {outlier:g}, of the others become 0: in {listed(more)}.")
    calm = [n for n, (p, x) in pairs.items() if x.zero <= p.zero + 0.01 and p.noise - x.noise < 1 and n != "te-delayed"]
    if calm:
        found.append(
            f"What does not fail: in {listed(calm)} the outlier costs the others less than 1 dB, and makes at most 1 % "
            "more of them 0."
        )
    inputs = names or [n for n, t in plain if t == "input"]  # without casts the products tell
    full = {n: percent(plain[n, "input"].clipped) for n in inputs if plain[n, "input"].clipped}
    if inputs:
        elements = [_operands(n)[1]["input"].format.element for n in full or inputs]
        which = listed([f"{n} {share}" for n, share in full.items()]) if full else "none"
        meant = clipped_means(e for e in elements if isinstance(e, Format))
        found.append(f"Of the numbers of the input are clipped: {which}. {meant}")
    if set(_WAYS) <= set(ways):
        near, sr, both = (ways[way] for way in ("to nearest", "stochastic", "both"))
        found.append(
            f"NVFP4's gradient has {_db(near.noise)} dB to nearest, {_db(sr.noise)} stochastically, {_db(both.noise)} "
            f"with the Hadamard transform too; the mean of {draws} draws {_db(sr.mean_noise)} and "
            f"{_db(both.mean_noise)}. Of what nearest makes 0 one draw has {_db(sr.small)} and {_db(both.small)} dB, "
            f"the mean {_db(sr.mean_small)} and {_db(both.mean_small)}; 0 dB is as far off as 0 is."
        )
    return found


def _draw(result: Result, style: str) -> Any:
    from numsim.show import recipe_plots

    return recipe_plots.recipes(result, style)


EXPERIMENT = Experiment(
    name="recipes",
    question=(
        "Real activation gradients are cast to E4M3 and to E5M2, each with one scale for the whole tensor, and to "
        "MXFP8. In E4M3 more than a fifth of them becomes 0, in the others next to none. Which of the three has the "
        "largest RMS error?"
    ),
    choices=("E4M3", "E5M2", "MXFP8"),
    wrong_guess="E4M3",
    why_wrong=(
        "The RMS error is made by the largest numbers, and these E4M3 rounds to 4 bits of significand, E5M2 to 3 bits. "
        "What becomes 0 is so small that its squares do not count: whoever looks at the error alone does not see that "
        "part of the gradients is gone. Below, errors are told as signal to noise: 20 dB is an RMS error of 10 % of "
        "the RMS, 40 dB one of 1 %. In gw-hp the product for the weight's gradient is left in high precision."
    ),
    explanation=(
        "A scale for the whole tensor gives all numbers the range of the element format below the largest, and what "
        "lies under it becomes 0; scales of rows or blocks move the range to where the numbers are, so that 8 bits "
        "lose none and an outlier disturbs its own row or block only. "
        "FP32 scales reach everywhere, E8M0 scales nearly so, and NVFP4's E4M3 scales only so far below the largest "
        "block, which is why whole blocks of NVFP4 can vanish. "
        "It is one layer of one small network at one step, with an outlier made up: take the kinds of loss from it, "
        "not the percentages."
    ),
    sources=(
        "NVIDIA Transformer Engine d0067d0, common/recipe; pytorch/ao 36027d8, float8/config.py",
        "B. Rouhani et al., Microscaling Data Formats for Deep Learning, arXiv:2310.10537 (2023)",
        "NVIDIA, Pretraining Large Language Models with NVFP4, arXiv:2509.25149 (2025)",
        "data: numsim/data/README.md (E. Alpaydin, C. Kaynak, UCI digits, doi.org/10.24432/C50P49, CC BY 4.0)",
    ),
    defaults={"recipes": (*_RECIPES, *_WIDER), "step": 2000, "outlier": 64.0, "draws": 16, "seed": 1},
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes", "torch-cpu"),
    full={"draws": 128},
)
