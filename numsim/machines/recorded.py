"""Recordings: a machine's answers in a file, and the machine that answers from it.

A record is an .npz file without pickle. ``record.npy`` holds JSON text (UTF-8, as bytes): numsim's version, the
provenance, and for every question its options and the digests of what goes in and what came out. The other members are
the codes: ``q00000.a0.npy`` and so on for the operands, ``q00000.answer.npy`` for the answer. A record of a suite (see
``numsim.suites``) also says to which part each question belongs and what was skipped and why, and holds traces, as JSON
text in ``t00.npy`` and so on. Reading checks all of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import files
from numsim._version import __version__
from numsim.errors import InputError, NumsimError, RecordError, UnavailableError, short
from numsim.formats import get_format
from numsim.machines.question import Answer, Can, Question, array_digest
from numsim.machines.verdict import check_answer
from numsim.traces import Trace, read_trace

_LAYOUT = 2  # of the file; goes up when its meaning changes
_KEYS = {"numsim_record", "numsim", "provenance", "experiments", "suite", "skipped", "failed", "inputs", "origin",
         "questions", "traces"}  # fmt: skip


@dataclass(frozen=True)
class Record:
    """A machine's answers: what was asked, what came back, on what.

    suite : the suite that asked, or "". parts : to which part of it each question belongs. skipped, failed : parts that
    have no answers, and why: the machine lacks something, or its answers could not be trusted. traces : by name.
    """

    numsim: str  # version
    provenance: Mapping[str, Any]
    answers: tuple[tuple[Question, Answer], ...]
    experiments: tuple[str, ...] = ()
    suite: str = ""
    parts: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    traces: Mapping[str, Trace] = field(default_factory=dict)

    @property
    def machine(self) -> str:
        return str(self.provenance.get("machine", "unknown"))

    @property
    def by_part(self) -> dict[str, list[tuple[Question, Answer]]]:
        """What was asked and answered in each part, in the order of the record."""
        parts: dict[str, list[tuple[Question, Answer]]] = {}
        for part, answer in zip(self.parts, self.answers, strict=True):
            parts.setdefault(part, []).append(answer)
        return parts

    @property
    def inputs(self) -> str:
        """Digest of all that was asked."""
        return hashlib.sha256("\n".join(q.digest for q, _ in self.answers).encode()).hexdigest()


# --- writing ----------------------------------------------------------------------------------------------------------
def record_bytes(
    answers: Sequence[tuple[Question, Answer]],
    experiments: Sequence[str] = (),
    *,
    suite: str = "",
    parts: Sequence[str] = (),
    skipped: Mapping[str, str] = MappingProxyType({}),
    failed: Mapping[str, str] = MappingProxyType({}),
    traces: Mapping[str, Trace] = MappingProxyType({}),
) -> bytes:
    """A record as a file's content, see ``Record``. The same questions and answers give the same bytes.

    Raises ``InputError`` where there is nothing to record, the answers come from several machines, or a format is
    one's own (a record knows formats by name).
    """
    if not answers:
        raise InputError("nothing to record: the machine answered no question.")
    provenance = dict(answers[0][1].provenance)
    if any(dict(a.provenance) != provenance for _, a in answers):
        raise InputError("a record holds the answers of one machine.")
    arrays: dict[str, npt.NDArray[Any]] = {}
    questions = []
    of = parts or [""] * len(answers)
    for i, (q, a, part) in enumerate(
        {(q.digest, part): (q, a, part) for (q, a), part in zip(answers, of, strict=True)}.values()
    ):
        for f in (*q.inputs, q.output):
            if not f.is_named:
                raise InputError(f"format {f.name!r} is your own: a record knows formats by name.")
        arrays |= {f"q{i:05}.a{n}": array for n, array in enumerate(q.arrays)}
        arrays[f"q{i:05}.answer"] = check_answer(q, a.codes, str(provenance.get("machine")))
        questions.append({"question": q.record, "digest": q.digest, "answer": array_digest(a.codes), "part": part})
    for i, trace in enumerate(traces.values()):
        arrays[f"t{i:02}"] = np.frombuffer(trace.json.encode(), np.uint8)
    data = {
        "numsim_record": _LAYOUT,
        "numsim": __version__,
        "provenance": provenance,
        "experiments": list(experiments),
        "suite": suite,
        "skipped": {part: _one_line(why) for part, why in skipped.items()},
        "failed": {part: _one_line(why) for part, why in failed.items()},
        "inputs": hashlib.sha256("\n".join(str(q["digest"]) for q in questions).encode()).hexdigest(),
        "questions": questions,
        "traces": [{"name": name, "digest": trace.digest} for name, trace in traces.items()],
    }
    data["origin"] = _origin(data)
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    arrays["record"] = np.frombuffer(text.encode(), np.uint8)
    return files.npz_bytes(arrays)


def write_record(
    path: Path | str,
    answers: Sequence[tuple[Question, Answer]],
    experiments: Sequence[str] = (),
    *,
    replace: bool = False,
    **more: Any,
) -> Path:
    """Write a record, whole or not at all; ``more`` is what ``record_bytes`` takes."""
    return files.write_atomic(path, record_bytes(answers, experiments, **more), replace=replace)


def _one_line(text: str) -> str:
    """What a library said, as reading accepts it."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:1000]


# --- reading ----------------------------------------------------------------------------------------------------------
def read_record(path: Path | str) -> Record:
    """Read a record and check everything in it. Raises ``RecordError`` for what is damaged, hostile or no record."""
    return parse_record(files.read_bytes(path), files.show(path))


def parse_record(data: bytes, what: str) -> Record:
    """A record from a file's content."""
    arrays = files.parse_npz(data, what)
    text = arrays.pop("record", None)
    if text is None or text.dtype != np.uint8 or text.ndim != 1:
        raise RecordError(f"{what} is no numsim record: it has no member record.npy. Example: numsim record swamping "
                          "--machine numpy --out swamping.npz")  # fmt: skip
    try:
        return _assemble(files.parse_json(text.tobytes(), what), arrays, what)
    except RecordError:
        raise
    except (NumsimError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise RecordError(f"{what} is damaged: {' '.join(str(error).split())[:200]}") from None


def _assemble(data: Any, arrays: dict[str, npt.NDArray[Any]], what: str) -> Record:
    if not isinstance(data, dict) or set(data) != _KEYS:
        raise RecordError(f"{what} is no numsim record: it has not the entries {', '.join(sorted(_KEYS))}.")
    if type(data["numsim_record"]) is not int or data["numsim_record"] != _LAYOUT:
        layout = short(data["numsim_record"])
        raise RecordError(f"{what} has layout {layout}; numsim {__version__} reads layout {_LAYOUT}.")
    provenance, experiments = data["provenance"], data["experiments"]
    plain = isinstance(provenance, dict) and all(
        files.is_label(k, 40) and (isinstance(v, (int, float)) or files.is_label(v)) for k, v in provenance.items()
    )
    named = isinstance(experiments, list) and all(files.is_label(e, 40) for e in experiments)
    named = named and files.is_label(data["suite"], 40) and isinstance(data["traces"], list)
    for why in (data["skipped"], data["failed"]):
        named = named and isinstance(why, dict) and all(files.is_label(t, 1000) for pair in why.items() for t in pair)
    if not (plain and named and files.is_label(provenance.get("machine"), 40) and files.is_label(data["numsim"], 40)):
        raise RecordError(f"{what} is damaged: provenance, experiments and version are not short texts and numbers.")
    if data["origin"] != _origin(data) or not provenance["machine"]:
        raise RecordError(f"{what} has not the digest of its origin that it states: it was changed.")
    answers, parts = [], []
    for i, entry in enumerate(data["questions"]):
        q = _question(entry["question"], arrays, i)
        codes = arrays.pop(f"q{i:05}.answer")
        check_answer(q, codes, provenance["machine"])
        if q.record != entry["question"] or q.digest != entry["digest"] or array_digest(codes) != entry["answer"]:
            raise RecordError(f"{what}: question {i} has not the digest that the record states: it was changed.")
        if not files.is_label(entry["part"], 80):
            raise RecordError(f"{what}: question {i} belongs to no part with a name.")
        answers.append((q, Answer(codes, provenance)))
        parts.append(entry["part"])
    traces = {}
    for i, entry in enumerate(data["traces"]):
        trace = read_trace(files.parse_json(arrays.pop(f"t{i:02}").tobytes(), what), what)
        known = entry["name"] in traces
        if known or not files.is_label(entry["name"], 60) or trace.digest != entry["digest"]:
            raise RecordError(f"{what}: trace {i} has not the digest that the record states: it was changed.")
        traces[entry["name"]] = trace
    if arrays:
        raise RecordError(f"{what}: member {min(arrays)} belongs to no question.")
    record = Record(data["numsim"], provenance, tuple(answers), tuple(experiments), data["suite"], tuple(parts),
                    data["skipped"], data["failed"], traces)  # fmt: skip
    if not answers or record.inputs != data["inputs"]:
        raise RecordError(f"{what} has not the digest of inputs that it states: it was changed.")
    return record


def _origin(data: Mapping[str, Any]) -> str:
    """The digest of where a record comes from."""
    parts = {key: data[key] for key in ("numsim", "provenance", "experiments", "suite", "skipped", "failed", "traces")}
    parts["parts"] = [q["part"] for q in data["questions"]]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _question(entry: Mapping[str, Any], arrays: dict[str, npt.NDArray[Any]], i: int) -> Question:
    if not isinstance(entry["inputs"], list):
        raise ValueError("a list of formats is needed")
    names = [*entry["inputs"], entry["output"]]
    if not all(isinstance(n, str) and re.fullmatch(r"[a-z0-9_]{1,40}", n) for n in names):
        raise ValueError("a format's name is no name")
    formats = [get_format(n) for n in names]
    operands = tuple(arrays.pop(f"q{i:05}.a{n}") for n in range(len(formats) - 1))
    return Question(entry["operation"], tuple(formats[:-1]), formats[-1], operands, dict(entry["options"]))


# --- the machine ------------------------------------------------------------------------------------------------------
class Recorded:
    """A recording as a machine: it answers the questions that it holds, and no others."""

    name = "recorded"

    def __init__(self, path: Path | str | None = None) -> None:
        self.record = None if path is None else read_record(path)
        self.answers = {q.digest: a for q, a in self.record.answers} if self.record else {}

    @property
    def title(self) -> str:
        return f"a recording of {self.record.machine}" if self.record else "a recording (--against FILE.npz)"

    def can(self, question: Question | None = None) -> Can:
        if self.record is None:
            return Can(False, "needs a record: --against FILE.npz (numsim record makes one)")
        if question is not None and question.digest not in self.answers:
            return Can(False, "the record does not hold this question")
        return Can(True)

    def provenance(self) -> dict[str, Any]:
        return dict(self.record.provenance) if self.record else {"machine": self.name}

    def answer(self, question: Question) -> Answer:
        if not (can := self.can(question)):
            raise UnavailableError(f"recorded cannot answer {question}: {can.reason}.")
        return self.answers[question.digest]
