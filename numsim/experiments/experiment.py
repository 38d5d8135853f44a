"""What an experiment is, and the session in which it asks a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.errors import InputError, short
from numsim.formats import Format, get_format
from numsim.machines.question import Answer, Question
from numsim.traces import Trace
from numsim.wording import cell as cell
from numsim.wording import listed as listed
from numsim.wording import percent as percent


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
    """What an experiment found; ``series`` (plain lists and arrays) and ``traces`` are what its picture draws.

    A trace is made of what the session answered: other machines are asked the same questions, so that no trace needs a
    comparison of its own. ``numsim check`` recomputes it, every number by its bits.
    """

    experiment: str
    parameters: Mapping[str, Any]
    answer: str  # the checkable answer to the experiment's question, from what was computed
    tables: tuple[Table, ...]
    findings: tuple[str, ...]  # sentences, made from the numbers
    series: Mapping[str, Any] = field(default_factory=dict, repr=False)
    traces: Mapping[str, Trace] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Experiment:
    """A question with parameters.

    ``run(session, **parameters)`` checks all parameters before its first question, and returns a ``Result``;
    ``draw(result, style)`` returns a list of (file stem, matplotlib figure, alt text) and is imported only when
    pictures are made.
    """

    name: str
    question: str
    choices: tuple[str, ...]  # for --ask; the first is a tempting wrong guess
    wrong_guess: str
    why_wrong: str
    explanation: str  # three sentences
    sources: tuple[str, ...]
    defaults: Mapping[str, Any]
    run: Callable[..., Result]
    draw: Callable[[Result, str], Sequence[tuple[str, Any, str]]]
    against: tuple[str, ...]  # machines that `numsim run` compares with by default
    full: Mapping[str, Any] = field(default_factory=dict)  # parameters for --size full


# --- what experiments share -------------------------------------------------------------------------------------------
def check_whole(name: str, value: Any, low: int, high: int, example: str) -> int:
    """A parameter that is a whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise InputError(f"{name}={short(value)}: a whole number from {low} to {high} is needed. Example: {example}")
    return int(value)


def check_real(name: str, value: Any, low: float, high: float, example: str) -> float:
    """A parameter that is a finite number from ``low`` to ``high``."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not real or not low <= value <= high:
        raise InputError(f"{name}={short(value)}: a number from {low:g} to {high:g} is needed. Example: {example}")
    return float(value)


def check_formats(name: str, value: Any, allowed: Callable[[Format], bool], rule: str, example: str) -> list[Format]:
    """A parameter that names one or more formats; each must be ``allowed``, and ``rule`` says which are."""
    items = [value] if isinstance(value, (str, Format)) else list(value) if isinstance(value, (list, tuple)) else []
    formats = list(dict.fromkeys(get_format(item) for item in items))
    refused = [f.name for f in formats if not allowed(f)]
    if not formats or refused:
        which = f"; not {', '.join(refused)}" if refused else ""
        raise InputError(f"{name}={short(value)}: {rule}{which}. Example: {example}")
    return formats
