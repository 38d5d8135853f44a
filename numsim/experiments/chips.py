"""Chips: one matrix product on every chip, and which of them give the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from operator import mul
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from numsim.codes import Codes, decode, ulp
from numsim.errors import InputError
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
)
from numsim.formats import FP32, Format
from numsim.machines.question import ask
from numsim.random import check_seed
from numsim.rounding import encode, round_to
from numsim.tensorcore.names import CHIPS

ASKED = ("v100", "a100", "h100", "b200")  # the chips of the question
STEP = 32  # products of the longest instruction here
ROUNDED = "exact, rounded once"
_EXAMPLE = 'numsim.experiments.run("chips", chips=["a100", "h100"])'
_ANSWERS = ("all of them", "more than half", "less than half", "none")


class Group(NamedTuple):
    """Who gave the same bits for every output: the FP32 codes, and their errors in units in the last place."""

    names: tuple[str, ...]
    codes: Codes
    errors: Floats

    def __str__(self) -> str:
        return ", ".join(self.names)


def run(
    session: Session,
    *,
    formats: Sequence[str] = ("fp16",),
    chips: Sequence[str] = CHIPS,
    size: int = 32,
    k: int = 64,
    seed: int = 1,
) -> Result:
    """A product of two matrices of normal numbers, size x k and k x size, on each chip, with FP32 results.

    Parameters: ``formats`` of the operands, one product for each; ``chips``; ``size``; ``k``, a multiple of 32;
    ``seed`` of the numbers.
    """
    chips = check_chips(chips, _EXAMPLE)
    size = check_whole("size", size, 2, 128, 'numsim.experiments.run("chips", size=16)')
    k = check_whole("k", k, STEP, 4096, 'numsim.experiments.run("chips", k=256)')
    if k % STEP:
        raise InputError(f"k={k}: a multiple of {STEP} is needed, whole instructions on every chip. Example: k=256")
    seed = check_seed(seed)
    chosen = check_multiplied(formats, "formats=['fp16', 'bf16']")
    groups = {f: found for f in chosen if (found := _groups(session, f, chips, size, k, seed))}
    outputs = size * size
    tables: list[Table] = []
    for f, found in groups.items():
        tables += [
            Table(
                f"{f.title}, {outputs} sums of {k} products: rounded right, off by ulps, short of the sum",
                ("", "the same bits on", "right", "ulps", "most", "short"),
                tuple(
                    (letter, str(g), percent(_same(g, found[-1])), *(_ulps(x) for x in _errors(g)), percent(_short(g)))
                    for letter, g in zip(ascii_uppercase, found, strict=False)
                ),
            ),
            Table(
                f"{f.title}: share of the {outputs} outputs in which two differ",
                ("", *(letter for letter, _ in zip(ascii_uppercase, found, strict=False))),
                tuple(
                    (letter, *("-" if g is h else percent(1 - _same(g, h)) for h in found))
                    for letter, g in zip(ascii_uppercase, found, strict=False)
                ),
            ),
        ]
    return Result(
        experiment="chips",
        parameters={"formats": [f.name for f in chosen], "chips": chips, "size": size, "k": k, "seed": seed},
        answer=_answer(groups),
        tables=tuple(tables),
        findings=tuple(_findings(groups, k)),
        series={
            f.title: {
                "outputs": outputs,
                "k": k,
                "groups": [list(g.names) for g in found],
                "differ": [[int(np.count_nonzero(g.codes != h.codes)) for h in found] for g in found],
                "median_ulps": [_errors(g)[0] for g in found],
                "largest_ulps": [_errors(g)[1] for g in found],
            }
            for f, found in groups.items()
        },
    )


# --- what is asked ----------------------------------------------------------------------------------------------------
def _groups(session: Session, format: Format, chips: Sequence[str], size: int, k: int, seed: int) -> list[Group]:
    """Everyone who answered, in groups of the same bits; the exact sums rounded once come last."""
    a, b = (np.asarray(round_to(normal(seed, (size, k), i * size * k), format)) for i in range(2))  # b transposed
    found: list[tuple[str, Codes]] = []
    x, y = operands(a, format), operands(b, format)
    for chip in chips:
        if (model := find_unit(chip, format)) and (d := ask_unit(session, model, x[:, None], y[None])) is not None:
            found.append((title(chip), d))
    in_order = ask("matmul", [FP32, FP32], FP32, [operands(a, FP32), operands(b.T, FP32)])
    if (d := session.ask(in_order)) is not None:
        found.append((IN_ORDER, d))
    if not found:
        return []
    exact = _exact_sums(a, b, format)
    rounded = np.asarray(encode(exact, FP32)).reshape(size, size)
    names: dict[bytes, list[str]] = {}
    for name, codes in [*found, (ROUNDED, rounded)]:
        names.setdefault(codes.tobytes(), []).append(name)
    codes_of = {codes.tobytes(): codes for codes in [*(d for _, d in found), rounded]}
    units = [ulp(int(c), FP32) for c in rounded.flat]
    return [
        Group(tuple(same), codes_of[key], _in_ulps(codes_of[key], exact, units))
        for key, same in sorted(names.items(), key=lambda item: ROUNDED in item[1])
    ]


def _exact_sums(a: Floats, b: Floats, format: Format) -> list[Fraction]:
    """All sums of products of rows of a and of b, in integers."""
    unit = format.fraction_bits - format.emin  # every number is a multiple of 2^-unit
    left, right = ([[int(Fraction(v) * 2**unit) for v in row] for row in x.tolist()] for x in (a, b))
    return [Fraction(sum(map(mul, row, column)), 1 << 2 * unit) for row in left for column in right]


def _in_ulps(codes: Codes, exact: Sequence[Fraction], units: Sequence[Fraction]) -> Floats:
    values = decode(codes, FP32).ravel().tolist()
    return np.array([float((Fraction(v) - s) / u) for v, s, u in zip(values, exact, units, strict=True)])


# --- numbers ----------------------------------------------------------------------------------------------------------
def _same(g: Group, h: Group) -> float:
    return float(np.mean(g.codes == h.codes))


def _errors(g: Group) -> tuple[float, float]:
    """Median and largest error, in ulps."""
    size = np.abs(g.errors)
    return float(np.median(size)), float(size.max())


def _short(g: Group) -> float:
    """The share of outputs nearer to zero than the exact sum, of those that are not exact."""
    values = decode(g.codes, FP32).ravel()
    inexact = g.errors != 0
    return float(np.mean((g.errors * np.sign(values) < 0)[inexact])) if inexact.any() else 0.0


def _ulps(x: float) -> int | float | str:
    return cell(x, 2) if x < 10 else round(x)


def _agreeing(groups: Sequence[Group]) -> tuple[list[str], int, int] | None:
    """The chips of the question, or if not two of them answered all chips: how many outputs are the same, of how many.

    None where fewer than two chips answered.
    """
    asked = list(map(title, ASKED))
    chips = {name: g.codes for g in groups for name in g.names if name not in (IN_ORDER, ROUNDED)}
    codes = {name: chips[name] for name in asked if name in chips}
    codes = codes if len(codes) > 1 else chips
    if len(codes) < 2:
        return None
    first, *others = codes.values()
    same = np.logical_and.reduce([first == x for x in others])
    return list(codes), int(np.count_nonzero(same)), same.size


# --- words ------------------------------------------------------------------------------------------------------------
def _answer(groups: dict[Format, list[Group]]) -> str:
    """How many outputs are the same, in one of four classes; of the first format."""
    for found in groups.values():
        if agreeing := _agreeing(found):
            names, same, of = agreeing
            which = 0 if same == of else 3 if not same else 1 if 2 * same > of else 2
            return _ANSWERS[which] + (f", on {listed(names)}" if names != list(map(title, ASKED)) else "")
    return "not answered: it takes two chips"


def _findings(groups: dict[Format, list[Group]], k: int) -> list[str]:
    told = []
    for f, found in groups.items():
        chips = [g for g in found if not {IN_ORDER, ROUNDED} & set(g.names)]
        if agreeing := _agreeing(found):
            names, same, of = agreeing
            told.append(f"{f.title}: {same} of {of} outputs have the same bits on {listed(names)}.")
        alike = [g for g in chips if len(g.names) > 1]
        if alike:
            told.append(f"{f.title}: the same bits throughout on {'; on '.join(listed(g.names) for g in alike)}.")
        if len(chips) > 1:
            pairs = [(1 - _same(g, h), g, h) for i, g in enumerate(chips) for h in chips[:i]]
            most, g, h = max(pairs, key=lambda p: p[0])
            told.append(f"{f.title}: most differ {h.names[0]} and {g.names[0]}, in {percent(most)} of the outputs.")
        rights = [f"{g.names[0]} {percent(_same(g, found[-1]))}" for g in found[:-1]]
        told.append(f"{f.title}: right, as the exact sum rounded once, are: {', '.join(rights)}.")
        shorts = [f"{g.names[0]} {percent(_short(g))}" for g in found[:-1]]
        told.append(f"{f.title}: of the inexact results, nearer to zero than the sum are: {', '.join(shorts)}.")
    return told


def _draw(result: Result, style: str) -> Any:
    from numsim.show import tensor_plots

    return tensor_plots.chips(result, style)


EXPERIMENT = Experiment(
    name="chips",
    question=(
        "The same FP16 matrices (32 x 64 times 64 x 32, normal numbers) go through the tensor cores of a V100, an "
        "A100, an H100 and a B200, all with FP32 accumulation. How many of the 1024 results have the same bits on all "
        "four?"
    ),
    choices=_ANSWERS,
    wrong_guess="all of them",
    why_wrong=(
        "The inputs are the same, the products are exact, and FP32 holds the result. But sums are cut: the chips align "
        "blocks of 4, 8 or 16 products, keep 23, 24 or 25 bits below the largest, and so lose different bits of the "
        "same numbers."
    ),
    explanation=(
        "Each chip cuts products to its own number of bits and begins its blocks at its own places, so results differ "
        "in the last bits, though each chip by itself always gives the same. "
        "Chips of one generation agree to the bit, and often two generations do. "
        "A difference in the last bit is no fault of either; it only means that bits can be compared within a group "
        "and not across, and that a test against another chip needs a tolerance, or an emulator."
    ),
    sources=(
        "P. Xie et al., arXiv:2511.10909v2 (2026), tables 3 to 5; F. Khattak, M. Mikaitis, ACM TACO 23(3) (2026)",
        "what each chip's model rests on: numsim chips NAME",
    ),
    defaults={"formats": ("fp16",), "chips": CHIPS, "size": 32, "k": 64, "seed": 1},
    run=run,
    draw=_draw,
    against=("numpy",),
    full={"formats": ("fp16", "bf16", "tf32", "e4m3"), "k": 256},
)
