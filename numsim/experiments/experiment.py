"""What an experiment is, and the session in which it asks a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.errors import FormatError, InputError, short
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
        if not isinstance(question, Question):
            raise InputError(f"{short(question)} is no question. Example: session.ask(numsim.machines.ask(...))")
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


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        size = f"tables {len(self.tables)}, findings {len(self.findings)}"
        return f"<Result of {self.experiment}: answer {self.answer!r}, {size}; print() shows them>"

    def __str__(self) -> str:
        """The page that ``numsim run NAME`` prints, without verdicts."""
        from numsim.show import report, text

        return text.plain(report.page(self))


@dataclass(frozen=True)
class Experiment:
    """A question with parameters.

    ``run(session, **parameters)`` checks all parameters before its first question, and returns a ``Result``;
    ``draw(result, style)`` returns a list of (file stem, matplotlib figure, alt text) and is imported only when
    pictures are made. Question, choices and explanation are written for the ``defaults``: see ``asked_at``.
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

    def changed(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that are not the defaults; a seed changes what is drawn, not what is asked."""
        if not isinstance(parameters, Mapping):
            raise InputError(f"parameters {short(parameters)}: a dict is needed. Example: changed({{'seed': 1}})")
        defaults = {k: _canonical(v) for k, v in self.defaults.items() if k != "seed"}
        return {k: v for k, v in parameters.items() if k in defaults and _canonical(v) != defaults[k]}

    def asked_at(self, result: Result) -> dict[str, Any]:
        """Of the parameters that a result has otherwise, those that question, choices and explanation are written for.

        Empty where the question stands: with the defaults, and in full size if the answer is one of the choices.
        """
        if not isinstance(result, Result):
            raise InputError(f"{short(result)} is no result. Example: numsim.experiments.run('swamping')")
        changed = self.changed(result.parameters)
        full = {k: _canonical(v) for k, v in self.full.items()}
        in_full = all(k in full and _canonical(v) == full[k] for k, v in changed.items())
        return {} if in_full and result.answer in self.choices else {k: self.defaults[k] for k in changed}


def _canonical(x: Any) -> Any:
    """A parameter by its meaning: a format by its name, a list as a tuple."""
    if isinstance(x, (list, tuple)):
        return tuple(map(_canonical, x))
    try:
        return get_format(x).name if isinstance(x, (str, Format)) else x
    except FormatError:
        return x


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
