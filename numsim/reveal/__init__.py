"""Probes that reveal how an unknown unit computes d = c + sum of a[k] * b[k], and which chip's unit it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import check_codes
from numsim.errors import InputError, NumsimError, UnavailableError, short
from numsim.formats import get_format
from numsim.machines import get_machine
from numsim.machines.question import MMA, Answer, Question, ask
from numsim.machines.recorded import Recorded
from numsim.reveal.findings import Finding, findings
from numsim.reveal.fit import Elimination, Fit, compute, eliminate, fit_to_dict, fits_of
from numsim.reveal.operands import Interface, type_of
from numsim.reveal.probes import sums_for
from numsim.reveal.reading import Reading
from numsim.tensorcore.models import TYPES, Model
from numsim.tensorcore.names import default_model, get_model

__all__ = ["Elimination", "Finding", "Fit", "Revelation", "eliminate", "reveal", "reveal_unit"]

Codes = npt.NDArray[Any]
LIBRARY_K = 64  # products of one question to a library, which takes any number: enough to see its lanes
_EXAMPLE = "Example: numsim.reveal.reveal('emulated', chip='h200', format='fp16')"


@dataclass(frozen=True)
class Revelation:
    """What the probes found.

    machine : who answered. operands : types and K. asked : how many sums. findings : one for each property.
    fits : records of which every answer agrees, grouped by unit. nearest : where none does, those that come closest.
    answers : all questions and answers, for a recording; empty for a unit that is only a function.
    """

    machine: str
    operands: str
    asked: int
    findings: tuple[Finding, ...]
    fits: tuple[Fit, ...]
    nearest: tuple[Fit, ...]
    answers: tuple[tuple[Question, Answer], ...] = field(default=(), repr=False)

    def __getitem__(self, name: str) -> Finding:
        """A finding by its name."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise InputError(f"no finding {short(name)}: there are {', '.join(f.name for f in self.findings)}.")

    @property
    def models(self) -> tuple[Model, ...]:
        """All records that fit."""
        return tuple(m for fit in self.fits for m in fit.models)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "machine": self.machine,
            "operands": self.operands,
            "asked": self.asked,
            "findings": [{"name": f.name, "value": f.value, "words": f.words, "seen": f.seen} for f in self.findings],
            "fits": [fit_to_dict(f) for f in self.fits],
            "nearest": [fit_to_dict(f) for f in self.nearest],
        }

    def __str__(self) -> str:
        from numsim.show import reveal as show
        from numsim.show.text import plain

        return plain(show.lines(self))


def reveal(
    machine: Any, format: Any = None, output: Any = None, chip: Any = None, instruction: str | None = None
) -> Revelation:
    """Reveal how a machine multiplies and adds.

    Rules: NaN, infinities, -0, subnormal numbers and overflow are among what is probed; nothing is assumed of them.

    Parameters
    ----------
    machine : a name, a recording's file, or a machine.
    format, output : formats of a and b, and of the result; without an instruction. FP16 where neither is given.
    chip, instruction : whose unit answers (see ``numsim.tensorcore.get_model``); not for libraries. A recording of
        probes knows its own. ``chip`` may be a ``Model`` of your own: the emulator then computes like it.

    Raises ``InputError`` for names and formats that do not exist, ``UnavailableError`` where the machine cannot answer.
    Cost: some thousand sums; a second or less on the emulator, and for the records that are compared.
    Source: masks as in FPRev (Xie et al., USENIX ATC 2025); the rest is our own, after the feature tests of Fasi et al.
    (PeerJ CS 7:e330, 2021).

    >>> found = reveal("emulated", chip="a100", instruction="mma.m16n8k16.f32.f16.f16.f32")
    >>> found["block"].value, found["fraction bits"].value, [m.chip for m in found.models][:2]
    (8, 24, ['t4', 'a100'])
    """
    who = get_machine(machine) if isinstance(machine, str) else machine
    if not all(hasattr(who, name) for name in ("name", "can", "answer")):
        raise InputError(f"machine={short(machine)}: a machine's name is needed. {_EXAMPLE}")
    if isinstance(chip, Model) and instruction is None:
        if who.name != "emulated":
            raise InputError(f"chip={short(chip)}: only the emulator computes like a Model of your own. {_EXAMPLE}")
        return _reveal(f"{who.name}, {chip}", Interface.of(chip), partial(compute, chip))
    if isinstance(who, Recorded) and chip is None and instruction is None and format is None:
        chip, instruction = _recorded_unit(who)
    model = _model(who, format, output, chip, instruction)
    interface = _library(format, output) if model is None else Interface.of(model)
    options = {} if model is None else {"chip": model.chip, "instruction": model.instruction}
    answers: list[tuple[Question, Answer]] = []

    def answered(arrays: Sequence[Codes]) -> Codes:
        question = ask(MMA, interface.words, TYPES[interface.d], arrays, **options)
        if not (can := who.can(question)):
            raise UnavailableError(f"{who.name} cannot answer the probes of {model or interface}: {can.reason}.")
        answers.append((question, who.answer(question)))
        return answers[-1][1].codes

    name = f"{who.name}, {model}" if model else who.name
    return _reveal(name, interface, answered, answers)


def reveal_unit(
    unit: Callable[..., Any], a_type: Any, b_type: Any, d_type: Any, k: int, *, c_type: Any = None,
    scale: str = "", scale_block: int = 0,
) -> Revelation:  # fmt: skip
    """Reveal a unit that is only a function: ``unit(a, b, c) -> codes``, with scales ``unit(a, b, c, sa, sb)``.

    Parameters
    ----------
    unit : takes codes a (n, K), b (n, K), c (n,) and block scales (n, K / block); returns codes (n,) of d.
    a_type, b_type, c_type, d_type : types as PTX writes them, or formats; c's is d's where it is not given. TF32 comes
        as FP32 words.
    k : products of one call, 4 at least. scale, scale_block : type of the block scales, and elements that share one.

    Rules, errors, cost and source: as for ``reveal``.

    >>> from numsim.tensorcore import mma
    >>> mystery = lambda a, b, c: mma(a, b, c, chip="h200", instruction="wgmma.m64n256k32.f32.e4m3.e4m3")
    >>> reveal_unit(mystery, "e4m3", "e4m3", "fp32", 32)["fraction bits"].value
    13
    """
    if type(k) is not int or not 4 <= k <= 256:
        raise InputError(f"k={short(k)}: a whole number from 4 to 256 is needed (chain smaller instructions).")
    if not callable(unit):
        raise InputError(f"unit={short(unit)}: a function of codes a, b, c is needed. {_EXAMPLE}")
    whole = isinstance(scale, str) and type(scale_block) is int and scale_block >= 0
    if not whole or bool(scale) != bool(scale_block) or (scale_block and k % scale_block):
        raise InputError(f"scale={short(scale)}, scale_block={short(scale_block)}: both, and k a multiple, or neither.")
    d = type_of(d_type, "d_type")
    c = d if c_type is None else type_of(c_type, "c_type")
    a, b = type_of(a_type, "a_type"), type_of(b_type, "b_type")
    _check_operands(a_type=a, b_type=b, c_type=c, d_type=d)
    interface = Interface(a, b, c, d, k, scale, scale_block)
    return _reveal("a unit", interface, lambda arrays: unit(*(x.copy() for x in arrays)))


def _reveal(name: str, ix: Interface, answered: Callable[[Sequence[Codes]], Any], answers: Any = ()) -> Revelation:
    """Ask all probes, read the answers, and compare them with the records'."""
    d = TYPES[ix.d]
    codes: dict[str, Codes] = {}
    for probe, sums in sums_for(ix).items():
        try:
            found = np.asarray(answered(sums.arrays))
        except Exception as error:
            if isinstance(error, NumsimError):
                raise
            raise InputError(f"the unit returned no array of codes, or failed: {short(str(error))}.") from error
        if found.shape != (len(sums.keys),) or found.dtype.kind != "u":
            raise InputError(f"the unit returned {found.dtype}{list(found.shape)} for {len(sums.keys)} sums: an "
                             f"unsigned code of {d} for each is needed.")  # fmt: skip
        codes[probe] = check_codes(found, d)
    seen = {p: dict(zip(sums.keys, codes[p].tolist(), strict=True)) for p, sums in sums_for(ix).items()}
    fits = fits_of(ix, codes)
    good = tuple(f for f in fits if not f.total)
    count = sum(c.size for c in codes.values())
    return Revelation(name, str(ix), count, tuple(findings(Reading(ix, seen))), good,
                      () if good else tuple(fits[:2]), tuple(answers))  # fmt: skip


# --- who is asked, and with what --------------------------------------------------------------------------------------
def _model(who: Any, format: Any, output: Any, chip: Any, instruction: str | None) -> Model | None:
    """The record of the unit that is asked, or None for a library's own product."""
    if chip is None:
        if instruction is not None:
            raise InputError(f"instruction={short(instruction)}: of which chip? {_EXAMPLE}")
        if who.name == "emulated":
            raise InputError(f"the emulator multiplies like a chip: which one? {_EXAMPLE}")
        return None
    if instruction is not None:
        if format is not None or output is not None:
            raise InputError(f"instruction {short(instruction)} names its formats: no format or output beside it.")
        return get_model(chip, instruction)
    operand = get_format("fp16" if format is None else format)
    return default_model(chip, operand, operand, None if output is None else type_of(output, "output"))


def _check_operands(**types: str) -> None:
    for what, t in types.items():
        if not (TYPES[t].signed and TYPES[t].zero):
            raise InputError(f"{what}={short(t)}: that is a format of block scales. {_EXAMPLE}")


def _library(format: Any, output: Any) -> Interface:
    """Operands of one format, as libraries multiply them."""
    name = type_of("fp16" if format is None else format, "format")
    d = name if output is None else type_of(output, "output")
    _check_operands(format=name, output=d)
    return Interface(name, name, d, d, LIBRARY_K)


def _recorded_unit(who: Recorded) -> tuple[Any, Any]:
    """Chip and instruction of the probes in a recording."""
    questions = [q for q, _ in who.record.answers if q.operation == MMA] if who.record else []
    if not questions:
        raise UnavailableError("this recording holds no answers of a matrix unit (operation mma).")
    return questions[0].chip, questions[0].instruction
