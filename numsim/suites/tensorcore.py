"""Tensor cores, one instruction at a time: every one that numsim has a record of for this GPU, bit for bit.

Beside the sets of ``operands.py`` each is asked the probes of ``numsim.reveal``, which tell its parameters whatever
they are; then whole products, the experiments on tensor cores, and the library's own products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np

from numsim.codes import code_dtype
from numsim.errors import InputError, UnavailableError
from numsim.experiments import get_experiment
from numsim.experiments.experiment import Session
from numsim.formats import FP32, get_format
from numsim.gpu.instructions import FP8, Instruction, chip_of
from numsim.machines import find_machine
from numsim.machines.question import LIBRARY, MMA, Answer, Question, ask
from numsim.machines.recorded import Record, Recorded
from numsim.machines.verdict import Verdict, compare_answers
from numsim.reveal.operands import Interface
from numsim.reveal.probes import sums_for
from numsim.show.suite_text import many
from numsim.suites.differences import PROBES, Cause, nearest, what_differs
from numsim.suites.operands import Codes, Sets, matrices
from numsim.suites.suite import Collector, Row, Suite, left_out
from numsim.tensorcore.models import TYPES, Model, word_format
from numsim.tensorcore.names import chip_name, list_models

# Of the experiments on tensor cores, asked of one chip: smaller than in lectures, for every operand is in the record.
EXPERIMENTS: Mapping[str, Mapping[str, Any]] = {
    "kept-bits": {},
    "chips": {"formats": ("fp16", "bf16", "tf32", "e4m3")},
    "blocks": {},
    "accumulator": {"longest": 1024, "outputs": 8},
    "tf32": {"size": 16, "k": 64},
    "invariance": {"formats": ("fp16",), "k": 256},
}
OUTPUTS = 512  # of a set; half of them where a chip has so many instructions that the record would grow too large
_MANY = 60
_APART = ("wgmma", "tcgen05")  # asked late: if their kernels crash, the GPU takes no more work from this process
_NONE = "instructions"  # the part that says why there is none
_RARE = ("near", "special", "scales", "scale special", "K x 2")  # sets for two types, and for those below 8 bits
_LARGE = ("f16", "bf16", "tf32", "e4m3")  # whole products: of these types
_SIZE = (128, 128, 1024)  # M, N, K of the library's products
_PRODUCTS: Sequence[tuple[str, str, str, Mapping[str, Any]]] = (  # function, operands, result, settings
    ("torch.matmul", "fp16", "fp16", {}),
    ("torch.matmul", "bf16", "bf16", {}),
    ("torch.matmul", "fp32", "fp32", {}),
    ("torch.matmul", "fp32", "fp32", {"allow_tf32": True}),
    ("torch.matmul", "fp64", "fp64", {}),
    ("torch._scaled_mm", "e4m3fn", "bf16", {}),
    ("torch._scaled_mm", "e4m3fn", "bf16", {"use_fast_accum": True}),
)


# --- asking -----------------------------------------------------------------------------------------------------------
def _ask(collector: Collector) -> None:
    chip = ""
    with collector.part(_NONE):  # a GPU that only torch can use says what its other half lacks
        chip = str(getattr(collector.machine, "chip", ""))
        if not chip:
            raise UnavailableError(f"{collector.machine.name} has no tensor cores that numsim knows")
    models = list_models(chip) if chip else ()
    apart = [m for m in models if m.instruction.startswith(_APART)]
    for model in (m for m in models if m not in apart):
        _ask_instruction(collector, model)
    for system, given, made, settings in _PRODUCTS:
        with collector.part(_library_part(system, given, settings)):
            collector.ask(_library(system, given, made, settings, collector.seed))
    for model in apart:
        _ask_instruction(collector, model)
    for model in _for_products(models):
        with collector.part(_product_part(model)):
            a, b, c = matrices(Instruction.of(model), collector.seed)
            collector.ask(_question(model, (a, b, c)))
    for name, parameters in EXPERIMENTS.items() if chip else ():
        with collector.part(_experiment_part(name)):
            if name == "tf32" and not any(model.a == "tf32" for model in models):
                raise UnavailableError(f"{chip} has no tensor cores for TF32")
            get_experiment(name).run(collector, chips=[chip], **parameters)


def _ask_instruction(collector: Collector, model: Model) -> None:
    with collector.part(model.instruction):
        for _, question in questions(model, collector.seed):
            if collector.ask(question) is None:
                break


def questions(model: Model, seed: int) -> Iterator[tuple[str, Question]]:
    """(set, question) of everything that one instruction is asked."""
    rare = model.a != model.b or TYPES[model.a].bits < 8
    outputs = OUTPUTS if len(list_models(model.chip)) < _MANY else OUTPUTS // 2
    sets = Sets(Instruction.of(model), seed, outputs // 4 if rare else outputs)
    for name, (a, b, c, *scales) in sets:
        if not rare or name in _RARE:
            rows, columns = (x[:, :, None] for x in (a, *scales[:1])), (x[:, None] for x in (b, *scales[1:]))
            (left, *scale_a), (right, *scale_b) = rows, columns
            yield name, _question(model, (left, right, c, *scale_a, *scale_b))
    probes = [sums.arrays for sums in sums_for(Interface.of(model)).values()]
    yield PROBES, _question(model, [np.concatenate(arrays) for arrays in zip(*probes, strict=True)])


def _question(model: Model, arrays: Sequence[Codes]) -> Question:
    words = [word_format(t) for t in (model.a, model.b, model.c, *[model.scale] * 2 * bool(model.scale))]
    return ask(MMA, words, TYPES[model.d], arrays, chip=model.chip, instruction=model.instruction)


def _for_products(models: Sequence[Model]) -> list[Model]:
    """One for each type: the unit that libraries use."""
    chosen = [m for m in models if m.a == m.b and m.c == m.d == "f32" and not m.scale]
    order = sorted(chosen, key=lambda m: (not m.instruction.startswith(("wgmma", "tcgen05")), -m.k))
    found = [next((m for m in order if m.a == t), None) for t in _LARGE]
    return [m for m in found if m is not None]


def _experiment_part(name: str) -> str:
    return f"experiment {name}"


def _product_part(model: Model) -> str:
    return f"product of matrices, {model.instruction}"


def _library_part(system: str, given: str, settings: Mapping[str, Any]) -> str:
    return ", ".join([f"{system} of {given}", *settings])


def _library(system: str, given: str, made: str, settings: Mapping[str, Any], seed: int) -> Question:
    """A library's product of two matrices."""
    f = get_format(given)
    kind = {"fp16": "f16", "fp32": "f32", "fp64": "f64"}.get(f.name, {"e4m3fn": "e4m3"}.get(f.name, f.name))
    i = Instruction("mma", 16, 8, 16, "f32", kind, kind, "f32")
    a, b, _ = matrices(i, seed, *_SIZE)
    one = np.array(0x3F800000, code_dtype(FP32))
    scales = [one, one] if system == "torch._scaled_mm" else []
    return ask(LIBRARY, [f, f, *[FP32] * len(scales)], get_format(made), [a[:, 0], b[0].T, *scales],
               system=system, settings=settings)  # fmt: skip


# --- comparing --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class InstructionRow(Row):
    """What an instruction comes to; by set the verdicts, the answers, and which question of the record it is."""

    model: Model | None = None
    sets: Mapping[str, Verdict] = field(default_factory=dict)
    answers: Mapping[str, tuple[Question, Answer]] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def cause(self) -> Cause | None:
        """The change of one thing that explains the most, where something differs."""
        return nearest(self.model, self.answers) if self.model is not None and self.verdict.differ else None

    @property
    def explained(self) -> str:
        """The change of one thing that explains all results, or ""."""
        return self.cause.change if self.cause and not self.cause.misses else ""

    @cached_property
    def differences(self) -> list[str]:
        """What differs, in sentences."""
        if self.model is None or self.cause is None:
            return []
        return list(what_differs(self.model, self.answers, self.numbers, self.cause))


def _compare(record: Record) -> list[Row]:
    emulated, chip = find_machine("emulated"), _chip(record)
    numbers: dict[str, list[int]] = {}
    for number, part in enumerate(record.parts):
        numbers.setdefault(part, []).append(number)
    rows: list[Row] = []
    for part, answers in record.by_part.items():
        question = answers[0][0]
        if question.operation == LIBRARY:
            from numsim.suites.library import compare_product  # loaded where there is something to compare

            rows.append(compare_product(part, *answers[0], chip=chip or None))
        elif question.model is not None and part == question.instruction:
            rows.append(_instruction_row(part, record, question.model, answers, numbers[part]))
        else:
            rows.append(Row(part, compare_answers(answers, emulated, name=record.machine)))
    return [*rows, *left_out(record)]


def _instruction_row(
    part: str, record: Record, model: Model, answers: Sequence[tuple[Question, Answer]], numbers: Sequence[int]
) -> InstructionRow:
    emulated, total = find_machine("emulated"), Verdict(record.machine, "emulated")
    names = {q.digest: name for name, q in questions(model, int(record.provenance.get("seed", 1)))}
    named = {names.get(q.digest, f"set {n}"): (q, a) for n, (q, a) in enumerate(answers)}
    sets = {name: compare_answers([answer], emulated, name=record.machine) for name, answer in named.items()}
    for verdict in sets.values():
        total += verdict
    return InstructionRow(part, total, "", model, sets, named, dict(zip(named, numbers, strict=True)))


def _chip(record: Record) -> str:
    """The chip whose records were asked for, or ""."""
    asked = [q.chip for q, _ in record.answers if q.chip]
    if asked or record.machine != "cuda":
        return str(asked[0]) if asked else ""
    capability = str(record.provenance.get("compute_capability", "0.0")).split(".")
    return chip_of(str(record.provenance.get("device")), (int(capability[0]), int(capability[-1])))


# --- what it decides --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Open:
    """A question that public results leave open: which instructions and sets decide it."""

    what: str
    of: Callable[[Model], bool]
    sets: Sequence[str] = ("*",)

    def verdicts(self, rows: Sequence[InstructionRow]) -> list[tuple[InstructionRow, Verdict]]:
        """The instructions that decide it, each with what its sets come to."""
        found = []
        for row in rows:
            total = Verdict("", "emulated")
            for name, verdict in row.sets.items():
                if any(fnmatchcase(name, p) for p in self.sets):
                    total += verdict
            if total.compared and row.model is not None and self.of(row.model):
                found.append((row, total))
        return found


def _family(model: Model) -> str:
    return model.instruction.split(".")[0]


OPEN = (
    Open("FP8 on Hopper's own unit, with c: F = 13, blocks of 32, c early",
         lambda m: _family(m) == "wgmma" and m.a in FP8),
    Open("TF32 with every k: blocks of 8 from Hopper on, of 4 before",
         lambda m: _family(m) != "wmma" and m.a == "tf32" and m.k == 8),
    Open("TF32 through wmma: blocks of 4", lambda m: _family(m) == "wmma" and m.a == "tf32"),
    Open("FP8 mma.sync: which k go together, and in which order",
         lambda m: _family(m) == "mma" and not {m.a, m.b}.isdisjoint(FP8)),
    Open("E0 of BF16 to FP32", lambda m: m.a == "bf16", ("floor", "tiny")),
    Open("E0 of TF32 to FP32", lambda m: m.a == "tf32", ("floor", "tiny")),
    Open("E0 of FP16 to FP16", lambda m: m.a == m.d == "f16", ("floor", "tiny")),
    Open("subnormal operands that hold the largest exponent, subnormal c", lambda m: True, ("subnormal",)),
    Open("zeros of both signs", lambda m: True, ("zeros",)),
    Open("NaNs and infinities", lambda m: True, ("special", "bits")),
    Open("overflow of truncated sums", lambda m: True, ("overflow",)),
    Open("FP16 results: rounded once, and F", lambda m: m.d == "f16", ("ladder", "near", PROBES)),
    Open("FP64: one fused multiply-add after another", lambda m: m.a == "f64"),
    Open("FP16 c with FP32 sums", lambda m: (m.c, m.d) == ("f16", "f32")),
    Open("block scales, and scales that are NaN, least and largest", lambda m: bool(m.scale)),
    Open("several instructions in a row", lambda m: True, ("K x *",)),
)  # fmt: skip

WORDS = (
    "c: what the products are added to; F: how many bits below its largest term a block keeps; E0: the lowest "
    "exponent that a block is aligned to",
    "probe: a crafted sum that tells one of these (numsim reveal); ladder: three terms, each some powers of two below "
    "the one before; near: terms of nearly the same size",
    "floor, tiny: results near the least number; K x 2: two instructions in a row",
)


def _notes(record: Record, rows: Sequence[Row]) -> list[str]:
    """What explains the differences, what the record decides of what is open, whose evidence it would raise, and what
    differs in which way."""
    own = [row for row in rows if isinstance(row, InstructionRow)]
    causes: dict[str, list[InstructionRow]] = {}
    for row in own:
        if row.explained:
            causes.setdefault(row.explained, []).append(row)
    told = [
        f"explained if {change} (all {sum(row.verdict.compared for row in some):,} results of {_named(some)})"
        for change, some in causes.items()
    ]
    consequences = []
    for question in OPEN:
        found = question.verdicts(own)
        if wrong := [(row, verdict) for row, verdict in found if verdict.differ]:
            if all(row.explained for row, _ in wrong):
                consequences.append(question.what)
                continue
            differ = sum(verdict.differ for _, verdict in wrong)
            says = f"NOT as modelled: {many(differ, 'result')} of {_named([row for row, _ in wrong])} differ"
        else:
            says = "as modelled"
        if nan := sum(verdict.nan for _, verdict in found):
            says += f", {many(nan, 'NaN')} of another code"
        if found:
            compared = sum(verdict.compared for _, verdict in found)
            told.append(f"{question.what}: {says}, of {compared:,} results of {many(len(found), 'instruction')}")
    if consequences:
        told.insert(len(causes), f"the same explains what differs in: {'; '.join(consequences)}")
    told += _evidence(record, own)
    for row in own:
        told += row.differences
    return told


def _named(rows: Sequence[Row]) -> str:
    parts = [row.part for row in rows]
    return ", ".join(parts) if len(parts) < 3 else f"{many(len(parts), 'instruction')}, {parts[0]} first"


def _lacks(record: Record) -> str:
    if any(part == q.instruction for part, (q, _) in zip(record.parts, record.answers, strict=True)):
        return ""
    why = record.skipped.get(_NONE) or next(iter(record.skipped.values()), "")
    return "no instruction was asked" + f": {why}" * bool(why)


def _evidence(record: Record, rows: Sequence[InstructionRow]) -> Iterator[str]:
    """Whose evidence these answers would raise: one line for those that have the same."""
    chip, device = _chip(record), str(record.provenance.get("device", record.machine))
    try:
        same = chip_name(device) == chip
    except InputError:
        same = False
    if rows and not same:
        yield f"numsim has no records of {device} itself: these are those of {chip}, and no evidence is raised"
        return
    raised: dict[str, list[str]] = {}
    for row in rows:
        if row.model is None:
            continue
        evidence = row.model.evidence
        if row.verdict.differ or (row.verdict.nan and row.model.nan_documented):
            raised.setdefault(f"would not raise the evidence of {chip}, for it differs", []).append(row.part)
        elif evidence.level != "validated":
            raised.setdefault(f"would raise {chip} from {evidence.level} to validated", []).append(row.part)
        elif evidence.note:
            raised.setdefault(f"would settle for {chip} what its recordings leave open ({evidence.note})", []).append(
                row.part
            )
    for what, parts in raised.items():
        named = parts if len(parts) < 4 else [f"{len(parts)} instructions", parts[0], "...", parts[-1]]
        yield f"{what}: {', '.join(named)}"


# --- drawing ----------------------------------------------------------------------------------------------------------
def _draw(record: Record, style: str) -> list[tuple[str, Any, str]]:
    """The experiments' own pictures, of what this machine answered."""
    machine, chip = Recorded(), _chip(record)
    machine.record, machine.answers = record, {q.digest: a for q, a in record.answers}
    pictures: list[tuple[str, Any, str]] = []
    for name, parameters in EXPERIMENTS.items():
        if _experiment_part(name) in record.parts:
            experiment = get_experiment(name)
            pictures += experiment.draw(experiment.run(Session(machine), chips=[chip], **parameters), style)
    return pictures


SUITE = Suite(
    name="tensorcore",
    title="Tensor cores, one instruction at a time",
    question="Does each tensor-core instruction of this GPU compute what numsim's model of the chip says, bit for bit?",
    ask=_ask,
    compare=_compare,
    draw=_draw,
    notes=_notes,
    words=WORDS,
    lacks=_lacks,
    sources=(
        "P. Xie et al., arXiv:2511.10909v2 (2026); F. Khattak, M. Mikaitis, ACM TACO 23(3) (2026)",
        "NVIDIA, Parallel Thread Execution ISA 9.0, sections 9.7.14 to 9.7.16",
    ),
)
