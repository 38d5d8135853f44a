"""Which chips' records give the same answers, bit for bit: to the probes, or to the questions of any recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from numsim.codes import decode
from numsim.errors import InputError, UnavailableError, short
from numsim.formats import Format
from numsim.machines.question import MMA
from numsim.machines.recorded import Record
from numsim.reveal.operands import Interface
from numsim.reveal.probes import sums_for
from numsim.tensorcore.models import TYPES, Level, Model, word_format
from numsim.tensorcore.names import list_chips, list_models
from numsim.tensorcore.products import chained

LEVELS = get_args(Level)  # the surest first
Arrays = Sequence[npt.NDArray[Any]]  # a, b, c and the scales


@dataclass(frozen=True)
class Fit:
    """Records that compute alike, and in how many answers they differ from what was seen.

    differs : by probe, or by question; without entries where all answers agree.
    """

    models: tuple[Model, ...]
    asked: int
    differs: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many answers differ."""
        return sum(self.differs.values())

    def __str__(self) -> str:
        return names_of(self.models)


def names_of(models: Sequence[Model]) -> str:
    """Records in short: chips by instruction.

    >>> from numsim.tensorcore import get_model
    >>> names_of([get_model(c, "mma.m16n8k16.f32.f16.f16.f32") for c in ("h100", "h200")])
    'h100, h200: mma.m16n8k16.f32.f16.f16.f32'
    """
    chips: dict[str, list[str]] = {}
    for m in models:
        chips.setdefault(m.instruction, []).append(m.chip)
    together: dict[str, list[str]] = {}
    for instruction, on in chips.items():
        together.setdefault(", ".join(on), []).append(instruction)
    return "; ".join(f"{on}: {', '.join(instructions)}" for on, instructions in together.items())


def evidence_of(models: Sequence[Model]) -> list[str]:
    """Records in short, with how sure they are: a line for the instructions of the same chips.

    >>> from numsim.tensorcore import get_model
    >>> evidence_of([get_model(c, "mma.m8n8k4.f32.f16.f16.f32") for c in ("v100", "t4")])
    ['mma.m8n8k4.f32.f16.f16.f32: validated on v100; unverified on t4']
    """
    sure: dict[str, dict[str, list[str]]] = {}
    for m in models:
        sure.setdefault(m.instruction, {}).setdefault(m.evidence.level, []).append(m.chip)
    together: dict[str, list[str]] = {}
    for instruction, levels in sure.items():
        known = "; ".join(f"{level} on {', '.join(levels[level])}" for level in LEVELS if level in levels)
        together.setdefault(known, []).append(instruction)
    return [f"{', '.join(instructions)}: {known}" for known, instructions in together.items()]


def candidates(words: Sequence[Format], d: Format, k: int, scale_block: int) -> list[tuple[Model, ...]]:
    """Records that take such codes, grouped by what they compute; of smaller K they are chained."""
    groups: dict[Any, list[Model]] = {}
    for chip in list_chips():
        for m in list_models(chip):
            takes = [word_format(t) for t in (m.a, m.b, m.c, *[m.scale] * 2 * bool(m.scale))]
            if takes == list(words) and TYPES[m.d] == d and k % m.k == 0 and m.scale_block == scale_block:
                nan = m.nan_of(TYPES[m.d])
                groups.setdefault((m.unit, m.a, m.b, m.c, m.k, nan), []).append(m)
    return [tuple(g) for g in groups.values()]


def compute(model: Model, arrays: Arrays) -> npt.NDArray[Any]:
    """What the emulator answers."""
    a, b, c, *scales = arrays
    return chained(a, b, c, model, *(scales or (None, None)))


@lru_cache(maxsize=512)
def answers_to_probes(model: Model, interface: Interface) -> dict[str, npt.NDArray[Any]]:
    """What a record answers to all probes: the same whenever it is asked."""
    return {name: compute(model, sums.arrays) for name, sums in sums_for(interface).items()}


def count_differences(model: Model, mine: npt.NDArray[Any], codes: npt.NDArray[Any]) -> int:
    """How many answers differ. NaNs count as equal where the chip's code of NaN is not documented."""
    different, d = mine != codes, TYPES[model.d]
    if not model.nan_documented:
        different &= ~(np.isnan(decode(mine, d)) & np.isnan(decode(codes, d)))
    return int(different.sum())


def fits_of(interface: Interface, answers: Mapping[str, npt.NDArray[Any]]) -> list[Fit]:
    """All records that take such operands against answers to the probes, the nearest first."""
    asked = sum(codes.size for codes in answers.values())
    found = []
    for models in candidates(interface.words, TYPES[interface.d], interface.k, interface.scale_block):
        mine = answers_to_probes(models[0], interface)
        counts = {name: count_differences(models[0], mine[name], codes) for name, codes in answers.items()}
        found.append(Fit(models, asked, {name: n for name, n in counts.items() if n}))
    return ranked(found)


def ranked(fits: Sequence[Fit]) -> list[Fit]:
    """The nearest first."""
    return sorted(fits, key=lambda f: f.total)


# --- any recording ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Elimination:
    """Which records reproduce the answers of a recording, for one kind of operands."""

    operands: str
    answers: int
    fits: tuple[Fit, ...]  # the nearest first

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {"operands": self.operands, "answers": self.answers, "records": [fit_to_dict(f) for f in self.fits]}


def eliminate(record: Record) -> list[Elimination]:
    """All mma answers of a recording against all records that take such operands.

    Raises ``UnavailableError`` where it holds none. ``reveal`` does the same with a machine and questions of its own.
    """
    if not isinstance(record, Record):
        raise InputError(f"{short(record)} is no record. Example: numsim.machines.get_machine('x.npz').record")
    found: dict[Any, list[tuple[str, Arrays, npt.NDArray[Any]]]] = {}
    for q, answer in record.answers:
        if q.operation == MMA:
            block = q.arrays[0].shape[-1] // q.arrays[3].shape[-1] if len(q.arrays) > 3 else 0
            key = (q.inputs, q.output, q.arrays[0].shape[-1], block, q.instruction)
            found.setdefault(key, []).append((str(q), q.arrays, answer.codes))
    if not found:
        raise UnavailableError("this recording holds no answers of a matrix unit (operation mma).")
    return [_eliminate(key, rows) for key, rows in found.items()]


def _eliminate(key: Any, rows: Sequence[tuple[str, Arrays, npt.NDArray[Any]]]) -> Elimination:
    words, d, k, block, instruction = key
    asked = sum(codes.size for _, _, codes in rows)
    fits = []
    for models in candidates(words, d, k, block):
        counts = {q: count_differences(models[0], compute(models[0], arrays), codes) for q, arrays, codes in rows}
        fits.append(Fit(models, asked, {q: n for q, n in counts.items() if n}))
    operands = f"{' '.join(map(str, words))} -> {d}, K = {k}{f', recorded as {instruction}' if instruction else ''}"
    return Elimination(operands, asked, tuple(ranked(fits)))


def fit_to_dict(fit: Fit) -> dict[str, Any]:
    """As JSON has it."""
    models = [{"chip": m.chip, "instruction": m.instruction, "evidence": m.evidence.level} for m in fit.models]
    return {"models": models, "asked": fit.asked, "differs": fit.total, "where": dict(fit.differs)}


def unseen(fits: Sequence[Fit]) -> Iterator[str]:
    """Parameters in which fitting units differ: no probe shows them with these operands."""
    for name in ("path", "length", "fraction_bits", "floor", "output", "align", "normalised"):
        values = {str(getattr(f.models[0].unit, name)) for f in fits}
        if len(values) > 1:
            yield f"{name} ({', '.join(sorted(values))})"
