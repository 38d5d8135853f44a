"""Kept bits: how small a product may be, next to 1, before a tensor core no longer sees it."""

from __future__ import annotations

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
)
from numsim.experiments.units import IN_ORDER, ONE, ask_unit, check_chips, check_multiplied, find_unit, operands, title
from numsim.formats import FP16, FP32, Format, get_format
from numsim.machines.question import ask
from numsim.tensorcore.models import Model
from numsim.tensorcore.names import CHIPS

POWERS = tuple(range(22, 28))  # around FP32's 2^-23
ASKED = 24  # the power of the question
_EXAMPLE = 'numsim.experiments.run("kept-bits", chips=["v100", "h100"])'
_CHIPS = ("v100", "t4", "a100", "l40s", "h100", "b200", "mi100", "mi250x", "mi300x")


class Row(NamedTuple):
    """Who added, and the sums for each power, as FP32 codes: started from 1, and with the 1 among the terms."""

    name: str
    first: list[int]
    other: list[int]
    evidence: str = ""


def run(
    session: Session,
    *,
    chips: Sequence[str] = _CHIPS,
    formats: Sequence[str] = ("fp16", "bf16", "tf32", "e5m2", "e4m3"),
    terms: int = 8,
) -> Result:
    """1 and some equal products of 2^-p, added by FP32 one after another and by each chip's tensor core.

    Parameters: ``chips``; ``formats``, for the table of the smallest product that counts (the others take FP16);
    ``terms``, how many products.
    """
    chips = check_chips(chips, _EXAMPLE)
    terms = check_whole("terms", terms, 2, 64, 'numsim.experiments.run("kept-bits", terms=16)')
    chosen = check_multiplied(formats, "formats=['fp16', 'e4m3']")
    rows = [row for row in [_in_order(session, terms), *(_on_chip(session, c, terms) for c in chips)] if row]
    limits = {c: {f: _limit(session, c, f, terms) for f in chosen} for c in chips}
    limits = {c: found for c, found in limits.items() if any(found.values())}
    powers = tuple(f"2^-{p}" for p in POWERS)
    tables = [
        Table(
            f"Started from c = 1: how many of {terms} products of 2^-p survive (FP16)",
            ("added by", *powers, "evidence"),
            tuple((r.name, *_survivors(r.first), r.evidence) for r in rows),
        ),
        Table(
            "The 1 is the first product, c = 0 (for FP32: the 1 comes last)",
            ("added by", *powers),
            tuple((r.name, *_survivors(r.other)) for r in rows),
        ),
        Table(
            f"The smallest 2^-p of which {terms} products change c = 1 (<=: products end there)",
            ("chip", *(f.title for f in chosen)),
            tuple((title(c), *(found[f] for f in chosen)) for c, found in limits.items()),
        ),
    ]
    return Result(
        experiment="kept-bits",
        parameters={"chips": chips, "formats": [f.name for f in chosen], "terms": terms},
        answer=_answer(rows),
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(rows, limits, terms)),
        series={
            "terms": terms,
            "powers": list(POWERS),
            "rows": [[r.name, _survivors(r.first), _survivors(r.other)] for r in rows],
            "limits": {title(c): {f.title: x for f, x in found.items()} for c, found in limits.items()},
        },
    )


# --- what is asked ----------------------------------------------------------------------------------------------------
def _factors(powers: Sequence[int]) -> tuple[Any, Any]:
    """Two powers of two for each p whose product is 2^-p."""
    half = np.array(powers) // 2
    return 2.0**-half, 2.0 ** (half - np.array(powers))


def _in_order(session: Session, terms: int) -> Row | None:
    """FP32, one addition after another: the 1 first, and the 1 last."""
    small = np.repeat(2.0 ** -np.array(POWERS)[:, None], terms, axis=1)
    ones = np.ones((len(POWERS), 1))
    sums = [
        session.ask(ask("sum", [FP32], FP32, [operands(np.hstack(order), FP32)]))
        for order in ([ones, small], [small, ones])
    ]
    return None if sums[0] is None or sums[1] is None else Row(IN_ORDER, sums[0].tolist(), sums[1].tolist())


def _on_chip(session: Session, chip: str, terms: int) -> Row | None:
    if (model := find_unit(chip, FP16)) is None:
        return None
    first = _products(session, model, FP16, POWERS, terms, 0)
    other = _products(session, model, FP16, POWERS, terms, 1)
    if first is None or other is None:
        return None
    return Row(title(chip), first.tolist(), other.tolist(), model.evidence.level)


def _products(
    session: Session, model: Model, format: Format, powers: Sequence[int], terms: int, ones: int
) -> Codes | None:
    """For each p: products of 2^-p, after one of 1 * 1 or added to c = 1."""
    k = -(-(terms + ones) // model.k) * model.k
    sides = []
    for factor in _factors(powers):
        side = np.zeros((len(powers), k))
        side[:, :ones] = 1
        side[:, ones : ones + terms] = factor[:, None]
        sides.append(operands(side, format))
    return ask_unit(session, model, sides[0], sides[1], operands(1.0 - ones, FP32))


def _limit(session: Session, chip: str, format: Format, terms: int) -> str | None:
    """The smallest product that counts."""
    if (model := find_unit(chip, format)) is None:
        return None
    last = min(2 * (format.fraction_bits - format.emin), 30)  # the product of the two least numbers
    powers = range(1, last + 1)
    if (sums := _products(session, model, format, powers, terms, 0)) is None:
        return None
    seen = [p for p, code in zip(powers, sums.tolist(), strict=True) if code != ONE]
    return None if not seen else f"{'<=' * (seen[-1] == last)}2^-{seen[-1]}"


# --- numbers and words ------------------------------------------------------------------------------------------------
def _survivors(codes: Sequence[int]) -> list[int | float | str]:
    """How many terms of 2^-p a sum holds beyond 1."""
    values = decode(np.array(codes, np.uint32), FP32)
    return [cell((float(v) - 1) * 2.0**p) for v, p in zip(values, POWERS, strict=True)]


def _sum(code: int) -> str:
    """A sum from 1 on, in units of FP32's last place."""
    return "1" if code == ONE else f"1 + {code - ONE} x 2^-23"


def _answer(rows: Sequence[Row]) -> str:
    """What FP32, the V100 and the A100 made of it; where one is missing, what the first three made, with names."""
    sums = {r.name: _sum(r.first[POWERS.index(ASKED)]) for r in rows}
    wanted = [IN_ORDER, "V100", "A100"]
    if set(wanted) <= set(sums):
        return ", ".join(sums[name] for name in wanted)
    return "; ".join(f"{name}: {x}" for name, x in [*sums.items()][:3]) or "not answered by this machine"


def _findings(rows: Sequence[Row], limits: dict[str, dict[Format, str | None]], terms: int) -> list[str]:
    asked = POWERS.index(ASKED)
    found = []
    chips = [r for r in rows if r.evidence]
    for r in rows:
        if not r.evidence:
            found.append(
                f"{IN_ORDER}: from 1 on, {terms} terms of 2^-{ASKED} give {_sum(r.first[asked])}; with the 1 added "
                f"last, {_sum(r.other[asked])}. The same numbers, another order."
            )
    for p in (ASKED, ASKED + 1):
        groups = _groups({r.name: _sum(r.first[POWERS.index(p)]) for r in chips})
        if groups:
            parts = [f"{listed(names)} give{'s' * (len(names) == 1)} {x}" for x, names in groups.items()]
            found.append(f"c = 1 and {terms} products of 2^-{p}: {'; '.join(parts)}.")
    moved = {r.name: f"{_survivors(r.other)[asked]} instead of {_survivors(r.first)[asked]}" for r in chips
             if r.first[asked] != r.other[asked]}  # fmt: skip
    if moved:
        parts = [f"{x} on {listed(names)}" for x, names in _groups(moved).items()]
        found.append(
            f"With the 1 as the first product, of {terms} products of 2^-{ASKED} there survive {'; '.join(parts)}: the "
            "blocks begin elsewhere, and each is cut to FP32 at its end."
        )
    elif chips:
        found.append(f"Whether the 1 is c or the first product makes no difference at 2^-{ASKED} here.")
    for name in ("fp16", "e4m3"):
        groups = _groups({title(c): x for c, found_ in limits.items() if (x := found_.get(get_format(name)))})
        if groups:
            parts = [f"{x.removeprefix('<=')} on {listed(names)}{' and perhaps smaller' * (x[0] == '<')}"
                     for x, names in groups.items()]  # fmt: skip
            found.append(f"In {get_format(name).title}, the smallest product that still counts is {'; '.join(parts)}.")
    return found


def _groups(words: dict[str, str]) -> dict[str, list[str]]:
    """Names by what is said of them."""
    groups: dict[str, list[str]] = {}
    for name, word in words.items():
        groups.setdefault(word, []).append(name)
    return groups


def _draw(result: Result, style: str) -> Any:
    from numsim.show import tensor_plots

    return tensor_plots.kept_bits(result, style)


EXPERIMENT = Experiment(
    name="kept-bits",
    question=(
        "1 plus eight products of 2^-24 is exactly 1 + 4 x 2^-23, an FP32 number. What do FP32 additions in order, a "
        "V100 and an A100 give, all of which accumulate FP16 products in FP32?"
    ),
    choices=(
        "1, 1, 1",
        "1, 1, 1 + 4 x 2^-23",
        "1, 1 + 4 x 2^-23, 1 + 4 x 2^-23",
        "1 + 4 x 2^-23, 1 + 4 x 2^-23, 1 + 4 x 2^-23",
    ),
    wrong_guess="1, 1, 1",
    why_wrong=(
        "Added one at a time, each 2^-24 is half of FP32's last place: a tie, and the even neighbour is 1. But a "
        "tensor core does not add one at a time: it aligns a block of products with c, cuts each below its last kept "
        "bit, and adds what is left exactly. The A100 keeps one bit more than FP32 has, so eight halves become four."
    ),
    explanation=(
        "An NVIDIA tensor core keeps F fraction bits below the largest exponent of a block: 23 on Volta, 24 from "
        "Turing to Ada, 25 on Hopper and Blackwell, and 13 for FP8 on Ada and Hopper. "
        "What lies below is cut off from each product alone, towards zero and without a trace, so eight small "
        "products can be lost together though their sum is not small. "
        'So "FP32 accumulation" names the format of the result, not one arithmetic: how many products make a '
        "block, how many bits survive, and where the 1 stands all change the sum."
    ),
    sources=(
        "M. Fasi, N. J. Higham, M. Mikaitis, S. Pranesh, PeerJ CS 7:e330 (2021): extra bits and blocks of V100 to A100",
        "P. Xie et al., arXiv:2511.10909v2 (2026), tables 3 to 5; F. Khattak, M. Mikaitis, ACM TACO 23(3) (2026)",
        "what each chip's model rests on: numsim chips NAME",
    ),
    defaults={"chips": _CHIPS, "formats": ("fp16", "bf16", "tf32", "e5m2", "e4m3"), "terms": 8},
    run=run,
    draw=_draw,
    against=("numpy", "torch-cpu"),
    full={"chips": CHIPS},
)
