"""What an experiment is, and the session in which it asks a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from numsim.machines.question import Answer, Question


class Session:
    """A machine being questioned: remembers every question and answer, and what could not be answered and why."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.answers: list[tuple[Question, Answer]] = []
        self.skipped: dict[str, int] = {}  # reason -> how often

    def ask(self, question: Question) -> npt.NDArray[Any] | None:
        """The codes, or None where the machine cannot answer (the reason is kept)."""
        if not (can := self.machine.can(question)):
            self.skipped[can.reason] = self.skipped.get(can.reason, 0) + 1
            return None
        answer = self.machine.answer(question)
        self.answers.append((question, answer))
        return answer.codes  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Table:
    """Rows for people and for JSON: column names, and a list of cells (str, int, float or None) a row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Result:
    """What an experiment found; ``series`` (plain lists and arrays) is what its picture draws."""

    experiment: str
    parameters: Mapping[str, Any]
    answer: str  # the checkable answer to the experiment's question, from what was computed
    tables: tuple[Table, ...]
    findings: tuple[str, ...]  # sentences, made from the numbers
    series: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Experiment:
    """A question with parameters.

    ``run(session, **parameters)`` returns a ``Result``; ``draw(result, style)`` returns a list of (file stem, matplotlib
    figure, alt text) and is imported only when pictures are made.
    """

    name: str
    question: str
    choices: tuple[str, ...]  # for --ask; the first is the common wrong guess
    wrong_guess: str
    why_wrong: str
    explanation: str  # three sentences
    sources: tuple[str, ...]
    defaults: Mapping[str, Any]
    run: Callable[..., Result]
    draw: Callable[[Result, str], Sequence[tuple[str, Any, str]]]
    against: tuple[str, ...]  # machines that `numsim run` compares with by default
    full: Mapping[str, Any] = field(default_factory=dict)  # parameters for --size full
