"""What a suite is, and the collector through which it asks a machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from numsim.errors import NumsimError, UnavailableError
from numsim.experiments.experiment import Session
from numsim.gpu.driver import DeviceError
from numsim.machines import find_machine
from numsim.machines.question import Answer, Question
from numsim.machines.recorded import Record, record_bytes
from numsim.machines.verdict import Verdict, compare_answers
from numsim.traces import Trace


class Collector(Session):
    """A session that knows to which part of a suite each answer belongs, and why a part has none."""

    def __init__(self, machine: Any, seed: int = 1, say: Callable[[str], None] = lambda line: None) -> None:
        super().__init__(machine)
        self.seed, self.say = seed, say
        self.parts: list[str] = []
        self.traces: dict[str, Trace] = {}
        self.missing: dict[str, str] = {}  # part -> what the machine lacks
        self.failed: dict[str, str] = {}  # part -> why its answers cannot be trusted
        self._part = ""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is asked within belongs to the part ``name``: a row of the verdicts.

        A device that fails, or anything else that goes wrong, ends this part only; what it answered before is not kept.
        """
        self._part, before = name, len(self.answers)
        self.say(name)
        try:
            yield
        except Exception as error:
            if isinstance(error, UnavailableError) and not isinstance(error, DeviceError):
                self.missing[name] = str(error)
            else:  # whatever it is, the answers of the other parts are worth a record
                self.failed[name] = str(error) if isinstance(error, NumsimError) else f"{type(error).__name__}: {error}"
                del self.answers[before:], self.parts[before:]
        finally:
            self._part = ""

    def ask(self, question: Question) -> npt.NDArray[Any] | None:
        codes = super().ask(question)
        if codes is None:
            self.missing.setdefault(self._part, self.machine.can(question).reason)
        else:
            self.parts.append(self._part)
        return codes

    def bytes(self, suite: str) -> bytes:
        """The record of all this; the seed is part of where it comes from."""
        answers = [
            (q, Answer(a.codes, {**a.provenance, "seed": self.seed}))
            for (q, a), _ in zip(self.answers, self.parts, strict=False)
        ]  # (the last may have been interrupted)
        return record_bytes(answers, suite=suite, parts=self.parts, skipped=self.missing, failed=self.failed,
                            traces=self.traces)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What one part of a suite comes to: a line of the table."""

    part: str
    verdict: Verdict
    note: str = ""  # instead of the verdict's own words


@dataclass(frozen=True)
class Suite:
    """Questions for a machine that belong together, and what their answers are compared with.

    ask(collector) : asks; needs numpy, and torch where it says so; nothing else. compare(record) : a row for each part,
    anywhere. draw(record, style) : pictures as (file stem, matplotlib figure, alt text). notes(record, rows) :
    sentences on what the verdicts mean, to stand below them. words : what the words in parts and notes mean.
    lacks(record) : why a record has nothing of what the suite is for, or "".
    """

    name: str
    title: str
    question: str
    ask: Callable[[Collector], None]
    compare: Callable[[Record], Sequence[Row]]
    draw: Callable[[Record, str], Sequence[tuple[str, Any, str]]]
    sources: tuple[str, ...] = ()
    notes: Callable[[Record, Sequence[Row]], Sequence[str]] = lambda record, rows: ()
    words: tuple[str, ...] = ()
    lacks: Callable[[Record], str] = lambda record: ""


def collect(suite: Suite, machine: Any, seed: int = 1, say: Callable[[str], None] = lambda line: None) -> bytes:
    """Ask a machine everything in a suite, such as ``get_suite`` gives: the content of a record.

    Raises ``InputError`` where the machine answered nothing.
    """
    collector = Collector(machine, seed, say)
    suite.ask(collector)
    return collector.bytes(suite.name)


def compare_parts(record: Record, nan: str = "mask", against: Any = None) -> list[Row]:
    """A row for each part of a record, its answers held against the emulator's; what was skipped comes last."""
    emulated = against or find_machine("emulated")
    rows = [
        Row(part, compare_answers(answers, emulated, name=record.machine, nan=nan))
        for part, answers in record.by_part.items()
    ]
    return [*rows, *left_out(record)]


def left_out(record: Record) -> list[Row]:
    """A row for each part without answers, and why."""
    rows = []
    for part, why in {**record.skipped, **record.failed}.items():
        if part in record.failed or part not in record.parts:
            note = f"FAILED: {why}" if part in record.failed else ""
            rows.append(Row(part, Verdict(record.machine, "emulated", skipped={why: 1}), note))
    return rows


def file_name(suite: str, record_of: Mapping[str, Any]) -> str:
    """Of a record: "tensorcore-nvidia-h200.npz".

    >>> file_name("casts", {"machine": "cuda", "device": "NVIDIA H200"})
    'casts-nvidia-h200.npz'
    """
    of = str(record_of.get("device") or record_of["machine"])
    return f"{suite}-{re.sub(r'[^a-z0-9]+', '-', of.lower()).strip('-')}.npz"
