"""Invariance: which choices of a kernel change the bits of a matrix product, and which cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from numsim.codes import Codes, decode
from numsim.errors import InputError
from numsim.experiments.experiment import (
    Experiment,
    Result,
    Session,
    Table,
    check_whole,
    listed,
    percent,
)
from numsim.experiments.units import (
    IN_ORDER,
    ask_unit,
    check_chips,
    check_multiplied,
    find_unit,
    headline,
    normal,
    operands,
    title,
)
from numsim.formats import BF16, FP32, TF32, Format
from numsim.machines.question import ask
from numsim.random import check_seed
from numsim.rounding import Policy, convert
from numsim.tensorcore.models import Model
from numsim.tensorcore.names import list_models

_EXAMPLE = 'numsim.experiments.run("invariance", chips=["h100"], formats=["bf16"])'
Key: TypeAlias = tuple[str, str]  # who adds, and the operands' format
SIZE = 16  # rows and columns of the result


def run(
    session: Session,
    *,
    chips: Sequence[str] = ("a100", "h100"),
    formats: Sequence[str] = ("fp16", "bf16"),
    k: int = 1024,
    seed: int = 1,
) -> Result:
    """One product of matrices (16, k) x (k, 16), computed in many ways, each compared with the plain walk over K.

    Parameters: ``chips`` and ``formats`` of the operands, the result is FP32; ``k``, a multiple of 256; ``seed`` of the
    entries, which are normal.
    """
    chosen = check_chips(chips, _EXAMPLE)
    operand_formats = check_multiplied(formats, _EXAMPLE)
    k = check_whole("k", k, 256, 16_384, _EXAMPLE)
    if k % 256:
        raise InputError(f"k={k}: a multiple of 256 is needed, for eight parts of whole blocks. Example: {_EXAMPLE}")
    seed = check_seed(seed)
    units = [(chip, f, model) for f in operand_formats for chip in chosen if (model := find_unit(chip, f))]
    adders = [Adder(session, f, None) for f in operand_formats] + [Adder(session, f, model) for _, f, model in units]
    plain: dict[Key, Codes] = {}
    changes: dict[Key, Changes] = {}
    for adder in adders:
        a, b = (operands(normal(seed, (SIZE, k), n * SIZE * k), adder.format) for n in (0, 1))
        if (d := adder.chain(a, b)) is not None:
            plain[adder.key] = d
            found = {choice: vary(adder, a, b) for choice, vary in CHOICES.items()}
            changes[adder.key] = {choice: None if x is None else _change(d, x) for choice, x in found.items()}
    who = headline(name for name, _ in changes)
    main = next((key for key in changes if key[0] == who), None)
    return Result(
        experiment="invariance",
        parameters={"chips": chosen, "formats": [f.name for f in operand_formats], "k": k, "seed": seed},
        answer=_answer(changes, main),
        tables=tuple(_tables(changes)),
        findings=tuple(_findings(changes, plain, main)),
        series={
            "changes": [[*key, {c: x and list(x) for c, x in found.items()}] for key, found in changes.items()],
            "main": main and list(main),
        },
    )


# --- who adds ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Adder:
    """A chip's unit, or without a model FP32 additions one after another; and the format of the operands."""

    session: Session
    format: Format
    model: Model | None

    @property
    def key(self) -> Key:
        return title(self.model.chip) if self.model else IN_ORDER, self.format.title

    @property
    def block(self) -> int:
        """Products that are added together; in order there are none such, and 16 stands for it."""
        return self.model.unit.length if self.model else 16

    def chain(self, a: Codes, b: Codes) -> Codes | None:
        """Codes a (m, k), b (n, k): FP32 codes (m, n), each output a walk over K from zero."""
        a, b = a[:, None, :], b[None, :, :]
        if self.model:
            return ask_unit(self.session, self.model, a, b)
        format = FP32 if self.format == TF32 else self.format  # TF32 comes in FP32 words; FP32 holds all products
        return self.session.ask(ask("dot", [format, format], FP32, [a, b], product="exact"))

    def other(self, family: bool) -> Adder | None:
        """With another instruction of the chip for the same operands: of another family, or of the same and other K."""
        if self.model is None:
            return None
        for m in list_models(self.model.chip):
            types = (m.a, m.b, m.c, m.d, m.scale)
            mine = (self.model.a, self.model.b, self.model.c, self.model.d, self.model.scale)
            same_family = m.instruction.split(".")[0] == self.model.instruction.split(".")[0]
            if types == mine and same_family != family and (family or m.k != self.model.k):
                return Adder(self.session, self.format, m)
        return None

    def add(self, x: Codes | None, y: Codes | None) -> Codes | None:
        return None if x is None or y is None else self.session.ask(ask("add", [FP32, FP32], FP32, [x, y]))


# --- choices ----------------------------------------------------------------------------------------------------------
Choice: TypeAlias = Callable[[Adder, Codes, Codes], Codes | None]


def _tiles(rows: int, columns: int) -> Choice:
    """The result in tiles of so many rows and columns, each asked for alone."""

    def vary(adder: Adder, a: Codes, b: Codes) -> Codes | None:
        bands = []
        for i in range(0, len(a), rows):
            band = [adder.chain(a[i : i + rows], b[j : j + columns]) for j in range(0, len(b), columns)]
            if any(tile is None for tile in band):
                return None
            bands.append(np.concatenate([tile for tile in band if tile is not None], axis=1))
        return np.concatenate(bands)

    return vary


def _rows_elsewhere(adder: Adder, a: Codes, b: Codes) -> Codes | None:
    d = adder.chain(a[::-1], b)
    return None if d is None else d[::-1]


def _instruction(family: bool) -> Choice:
    def vary(adder: Adder, a: Codes, b: Codes) -> Codes | None:
        other = adder.other(family)
        return other.chain(a, b) if other else None

    return vary


def _zeros(before: int, after: int) -> Choice:
    def vary(adder: Adder, a: Codes, b: Codes) -> Codes | None:
        return adder.chain(*(np.pad(x, [(0, 0), (before, after)]) for x in (a, b)))

    return vary


def _reordered(order: Callable[[int, int], Sequence[int]]) -> Choice:
    """k in another order: ``order(k, block)`` lists the indices."""

    def vary(adder: Adder, a: Codes, b: Codes) -> Codes | None:
        indices = np.asarray(order(a.shape[1], adder.block))
        return adder.chain(a[:, indices], b[:, indices])

    return vary


def _inside(k: int, block: int) -> list[int]:
    return [i - i % block + block - 1 - i % block for i in range(k)]


def _one_swap(k: int, block: int) -> list[int]:
    order = list(range(k))
    order[block - 1], order[block] = block, block - 1
    return order


def _backwards(k: int, block: int) -> list[int]:
    return list(range(k))[::-1]


def _split(parts: int, *, pairwise: bool = False, partials: Format = FP32) -> Choice:
    """K in contiguous parts, each a walk from zero; their results are added in FP32."""

    def vary(adder: Adder, a: Codes, b: Codes) -> Codes | None:
        totals = [adder.chain(x, y) for x, y in zip(*(np.split(z, parts, axis=1) for z in (a, b)), strict=True)]
        if partials != FP32:
            totals = [None if t is None else _through(t, partials) for t in totals]
        while len(totals) > 1:
            if pairwise:
                totals = [adder.add(x, y) for x, y in zip(totals[::2], totals[1::2], strict=True)]
            else:
                totals = [adder.add(totals[0], totals[1]), *totals[2:]]
        return totals[0]

    return vary


def _through(codes: Codes, format: Format) -> Codes:
    """FP32 numbers stored in a narrower format and read again."""
    return np.asarray(convert(convert(codes, FP32, format, Policy()), format, FP32, Policy()))


BATCH, TILE, SPLIT, INSIDE = "batch of 1 instead of 16", "tiles of 8 x 4", "split-K 4", "k turned round in each block"
OUTPUTS = SIZE * SIZE
OTHER_K, SWAP = "instruction of other K", "two k swapped across blocks"
CHOICES: dict[str, Choice] = {
    "run again": _tiles(SIZE, SIZE),
    BATCH: _tiles(1, SIZE),
    "rows in other places": _rows_elsewhere,
    TILE: _tiles(8, 4),
    OTHER_K: _instruction(family=False),
    "wgmma or tcgen05, not mma": _instruction(family=True),
    "64 zeros after K": _zeros(0, 64),
    INSIDE: _reordered(_inside),
    "8 zeros before K, 56 after": _zeros(8, 56),
    SWAP: _reordered(_one_swap),
    "K backwards": _reordered(_backwards),
    "split-K 2": _split(2),
    SPLIT: _split(4),
    "split-K 8": _split(8),
    "split-K 8, in pairs": _split(8, pairwise=True),
    "split-K 8, BF16 partials": _split(8, partials=BF16),
}
ASKED = {"batch size": BATCH, "tile size": TILE, "split-K": SPLIT, "the order inside a block": INSIDE}


class Change(NamedTuple):
    """How many outputs have other bits, and the largest change, in ulps of the largest output."""

    outputs: int
    ulps: float


Changes: TypeAlias = Mapping[str, Change | None]  # by choice


def _change(plain: Codes, other: Codes) -> Change:
    values = decode(plain, FP32)
    ulp = 2.0 ** (math.frexp(np.abs(values).max())[1] - FP32.precision)
    return Change(int(np.count_nonzero(plain != other)), float(np.abs(decode(other, FP32) - values).max() / ulp))


# --- words ------------------------------------------------------------------------------------------------------------
def _tables(changes: Mapping[Key, Changes]) -> Iterable[Table]:
    for format in dict.fromkeys(f for _, f in changes):
        columns = {who: found for (who, f), found in changes.items() if f == format}
        yield Table(
            f"{format}: outputs of {OUTPUTS} that change (by at most so many ulps of the largest)",
            ("choice", *columns),
            tuple((choice, *(_cell(found[choice]) for found in columns.values())) for choice in CHOICES),
        )


def _cell(change: Change | None) -> str | None:
    if change is None:
        return None
    return f"{change.outputs} ({ulps(change.ulps)})" if change.outputs else "same"


def ulps(x: float) -> str:
    """A distance with the digits that matter.

    >>> ulps(0.25), ulps(17.3), ulps(33241.0)
    ('0.25', '17', '33241')
    """
    return f"{x:.2g}" if x < 10 else f"{x:.0f}"


def _answer(changes: Mapping[Key, Changes], main: Key | None) -> str:
    found = changes[main] if main else {}
    asked = {name: found.get(choice) for name, choice in ASKED.items()}
    if None in asked.values():
        return "not answered"
    guilty = [name for name, change in asked.items() if change and change.outputs]
    if len(guilty) in (0, len(ASKED)):
        return "all four" if guilty else "none of them"
    return f"{guilty[0]} only" if len(guilty) == 1 else listed(guilty)


def kept_and_changed(found: Changes, main: Key) -> str:
    """The finding in short, as pictures and findings say it."""
    asked = {name: found[choice] for name, choice in ASKED.items()}
    same = [name for name, x in asked.items() if x and not x.outputs]
    other = [
        f"{name} changes {percent(x.outputs / OUTPUTS)} of the outputs" for name, x in asked.items() if x and x.outputs
    ]
    kept = [f"{listed(same)} change{'s' * (len(same) == 1)} no bit"] if same else []
    return f"{main[1]} matrix product on {main[0]}: {', '.join(kept + other)}"


def _findings(changes: Mapping[Key, Changes], plain: Mapping[Key, Codes], main: Key | None) -> Iterable[str]:
    if main is not None:
        found = changes[main]
        yield f"{kept_and_changed(found, main)}."
        same = [choice for choice, x in found.items() if x and not x.outputs]
        yield f"All that changes nothing there: {'; '.join(same) or 'nothing'}."
        moved = [f"{choice} by {ulps(x.ulps)}" for choice, x in found.items() if x and choice.startswith("split-K")]
        if moved:
            yield f"Outputs move at most, in ulps of the largest one: {'; '.join(moved)}."
    for choice, why in (
        (INSIDE, "to a unit the order inside a block is nothing"),
        (OTHER_K, "and perhaps with shorter blocks"),
        (SWAP, "the last product of the first block and the next one"),
    ):
        cells = [f"{format} {who} {_cell(c[choice])}" for (who, format), c in changes.items() if c[choice]]
        if cells:
            yield f"{choice[0].upper()}{choice[1:]} ({why}): {', '.join(cells)}."
    for format in dict.fromkeys(f for _, f in plain):
        walks = {who: d for (who, f), d in plain.items() if f == format and who != IN_ORDER}
        if len(walks) > 1:
            (one, x), (two, y), *_ = walks.items()
            differ = np.count_nonzero(x != y)
            yield f"The same plain walk in {format} on {one} and {two}: {differ} of {OUTPUTS} outputs differ."


def _draw(result: Result, style: str) -> Any:
    from numsim.show import block_plots

    return block_plots.invariance(result, style)


EXPERIMENT = Experiment(
    name="invariance",
    question=(
        "A matrix product on an H100, FP16 to FP32, each output one walk up K. Which of these change its bits: batch "
        "size, tile size (M and N), split-K, the order of k inside a block?"
    ),
    choices=("all four", "split-K only", "split-K and the order inside a block", "none of them"),
    wrong_guess="all four",
    why_wrong=(
        "Floating-point addition is not associative, but only a choice that regroups the sum of one output can "
        "matter. Batch and tile sizes choose which outputs are computed together, each still alone; and inside a block "
        "the products are cut one by one and then added exactly, so that no order is left to change."
    ),
    explanation=(
        "An output is a chain of blocks over K: what changes the blocks (split-K, their length, shifts and swaps "
        "across them) changes bits, what does not (batch, tiles, zeros after K, the order inside a block) cannot. "
        "In a library the bits do change with the batch size, because it then picks another kernel, with another split "
        "of K, and whole answers of a language model with them. "
        "Storing partial sums in BF16 is another matter than regrouping: it moves results more than a thousand times "
        "as far."
    ),
    sources=(
        "H. He, Thinking Machines Lab, Defeating Nondeterminism in LLM Inference (2025)",
        "Yuan et al., Understanding and Mitigating Numerical Sources of Nondeterminism in LLM Inference, NeurIPS 2025, "
        "arXiv:2506.09501",
        "Xie et al., Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units, arXiv:2511.10909v2 (2026): outputs "
        "are computed each alone",
        "github.com/modular/modular issue 7165: partial sums of split-K stored in BF16",
    ),
    defaults={"chips": ("a100", "h100"), "formats": ("fp16", "bf16"), "k": 1024, "seed": 1},
    run=run,
    draw=_draw,
    against=("numpy",),
    full={"k": 8192},
)
