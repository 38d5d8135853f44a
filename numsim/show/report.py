"""Experiments, their results and verdicts as text in 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from numsim.errors import InputError
from numsim.experiments import get_experiment
from numsim.experiments.experiment import Experiment, Result, Table
from numsim.machines.verdict import Verdict
from numsim.show.text import WIDTH, Line, Span
from numsim.wording import listed

_GAP = 2
_NARROWEST = 6
_LABEL = 10
LETTERS = "abcdefgh"  # of choices


def wrapped(text: str, label: str = "", style: str = "", indent: int = _LABEL) -> list[Line]:
    """A paragraph with a label to its left."""
    parts = textwrap.wrap(text, WIDTH - indent, break_on_hyphens=False) or [""]
    head = Span(f"{label:<{indent}}", "faint")
    return [[head if i == 0 else Span(" " * indent), Span(part, style)] for i, part in enumerate(parts)]


# --- tables -----------------------------------------------------------------------------------------------------------
def table_lines(table: Table) -> list[Line]:
    """A table: numbers to the right, words to the left; long cells go over several lines.

    >>> from numsim.show.text import plain
    >>> print(plain(table_lines(Table("Stalls", ("format", "at"), (("FP16", 2048), ("BF16", 256))))))
    Stalls
      format    at
      FP16    2048
      BF16     256
    """
    lines: list[Line] = [[Span(part, "strong")] for part in textwrap.wrap(table.title, WIDTH)]
    cells = [[_cell(c) for c in row] for row in table.rows]
    columns = [str(c) for c in table.columns]
    right = [
        bool(table.rows) and all(c is None or isinstance(c, (int, float)) for c in column)
        for column in (zip(*table.rows, strict=True) if table.rows else [[]] * len(columns))
    ]
    indent = 2 if table.title else 0
    widths = _widths(columns, cells, WIDTH - indent)
    for n, row in enumerate([columns, *cells]):
        parts = [_fold(c, w) for c, w in zip(row, widths, strict=True)]
        height = max(map(len, parts), default=0)
        if n == 0:  # headers stand on the first row
            parts = [[""] * (height - len(p)) + p for p in parts]
        for i in range(height):
            texts = [p[i] if i < len(p) else "" for p in parts]
            aligned = [t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True)]
            line = (" " * indent + (" " * _GAP).join(aligned)).rstrip()
            lines.append([Span(line, "faint" if n == 0 else "")])
    return lines


def _cell(x: Any) -> str:
    return "-" if x is None else str(x)


def _fold(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Column widths that fit; the widest give way first, headers before contents."""
    room = width - _GAP * (len(columns) - 1)
    content = [max((len(row[i]) for row in cells), default=0) for i in range(len(columns))]
    words = [max([_longest_word(row[i]) for row in cells] + [_longest_word(c)]) for i, c in enumerate(columns)]
    widths = [max(n, w) for n, w in zip(content, words, strict=True)]
    for floor in (words, [min(w, _NARROWEST) for w in words]):
        while sum(widths) > room and any(w > f for w, f in zip(widths, floor, strict=True)):
            widest = max((i for i in range(len(widths)) if widths[i] > floor[i]), key=lambda i: widths[i])
            widths[widest] -= 1
    for i, name in enumerate(columns):  # what is left goes to headers
        widths[i] += max(0, min(len(name) - widths[i], room - sum(widths)))
    return widths


# --- experiments ------------------------------------------------------------------------------------------------------
def question_lines(e: Experiment, *, choices: bool = True, result: Result | None = None) -> list[Line]:
    """The question; its choices with letters, or else in one line.

    result : where it is there already, and the question does not stand: what it was asked at, and what is so here.
    """
    lines: list[Line] = [[Span(e.name, "strong")], *wrapped(e.question, "question", "strong")]
    if result is not None and (asked_at := e.asked_at(result)):
        lines += wrapped(settings(asked_at), "asked at")
        return lines + wrapped(settings(e.changed(result.parameters)), "here", "strong")
    if choices or any("," in choice for choice in e.choices):
        for letter, choice in zip(LETTERS, e.choices, strict=False):
            lines += wrapped(f"{letter}) {choice}", "", indent=_LABEL)
    elif e.choices:
        *others, last = e.choices
        lines += wrapped(f"{', '.join(others)}{' or ' * bool(others)}{last}?")
    return lines


def result_lines(e: Experiment, result: Result) -> list[Line]:
    """Everything after the question: answer, the wrong guess and why, tables, findings, explanation, sources."""
    lines = wrapped(result.answer, "answer", "strong")
    why = e.explanation
    if asked_at := e.asked_at(result):
        why = f"(for the {listed(list(asked_at))} of the question) {why}"
    elif result.answer == e.wrong_guess:  # a machine that is wrong
        lines += wrapped(e.why_wrong, "but")
    else:
        lines += wrapped(f"{e.wrong_guess}, a tempting guess. {e.why_wrong}", "not")
    lines += _found_lines(result)
    lines += wrapped(why, "why")
    for i, source in enumerate(e.sources):
        lines += wrapped(source, "" if i else "sources", "faint")
    return lines


def brief_lines(e: Experiment, result: Result) -> list[Line]:
    """The answer in one line, after the question."""
    tempting = not e.asked_at(result) and result.answer != e.wrong_guess
    wrong = f"  (a tempting guess: {e.wrong_guess})" if tempting else ""
    return wrapped(f"{result.answer}{wrong}", "answer", "strong")


def page(result: Result) -> list[Line]:
    """Question and result; of an experiment that numsim does not know, what is in the result alone."""
    try:
        e = get_experiment(result.experiment)
    except InputError:
        return [[Span(result.experiment, "strong")], *wrapped(result.answer, "answer", "strong"), *_found_lines(result)]
    return [*question_lines(e, result=result), *result_lines(e, result)]


def _found_lines(result: Result) -> list[Line]:
    lines: list[Line] = []
    for table in result.tables:
        lines += [[], *table_lines(table)]
    lines += [[]]
    for i, sentence in enumerate(result.findings):
        lines += wrapped(sentence, "" if i else "found")
    return lines


def settings(parameters: Mapping[str, Any]) -> str:
    """Parameters and their values in words.

    >>> settings({"amax": 480.0, "formats": ("fp16", "bf16")})
    'amax = 480; formats = fp16, bf16'
    """
    return "; ".join(f"{name} = {setting(value)}" for name, value in parameters.items())


def setting(x: Any) -> str:
    """A parameter's value in words."""
    if isinstance(x, (list, tuple)):
        return ", ".join(map(setting, x))
    return str(int(x)) if isinstance(x, float) and x.is_integer() and abs(x) < 1e15 else str(x)


# --- verdicts ---------------------------------------------------------------------------------------------------------
def verdict_table(rows: Sequence[tuple[str, Verdict]]) -> list[Line]:
    """The table of verdicts: one row for each experiment and machine; why a machine was skipped is told once."""
    cells, told = [], set()
    for name, v in rows:
        counts = (v.compared, v.differ) if v.compared else (None, None)
        again = not v.compared and (v.against, v.text) in told
        told.add((v.against, v.text))
        against = v.against + "*" * bool(v.compared and v.skipped)
        cells.append((name, v.machine, against, *counts, "skipped, as above" if again else v.text))
    return table_lines(Table("", ("experiment", "machine", "against", "compared", "differ", "verdict"), tuple(cells)))


def verdict_notes(rows: Sequence[tuple[str, Verdict]], *, full: bool = False) -> list[Line]:
    """Below the table: the documented differences and how many; every unexplained difference shown.

    full : also say what the documented differences are and who is right, and what could not be compared in rows that
        compare something.
    """
    lines: list[Line] = []
    totals = {_owner(v): _of(rows, v) for _, v in rows if v.documented}
    meanings = {name: meaning for _, v in rows for name, meaning in v.reasons.items()}
    for name, (what, right) in meanings.items():
        counts = {
            owner: sum(n for r, n in v.documented.items() if name in r.split(" + ")) for owner, v in totals.items()
        }
        who = ", ".join(f"{machine} {n}" for machine, n in counts.items() if n)
        told = f"{name} ({who}): {what}. {right}." if full else f"{name}: {who}"
        lines += wrapped(told, "note" if full or not lines else "", indent=6)
    for owner, v in totals.items():
        if several := sum(n for r, n in v.documented.items() if " + " in r):
            causes = max(r.count(" + ") + 1 for r in v.documented)
            told = "two causes and are" if causes == 2 else "several causes and are"
            told = told if several > 1 else told.replace("are", "is")
            lines += wrapped(f"{several} of {v.differ} answers of {owner} {'have' if several > 1 else 'has'} {told} "
                             "counted under each.", "note" if full else "", indent=6)  # fmt: skip
    if meanings and not full:
        named = list(dict.fromkeys(name for name, v in rows if v.documented))
        lines += wrapped(f"what each means, and who is right: numsim run {' '.join(named)}", indent=6)
    for name, v in rows:
        if v.unexplained:
            lines += [[], [Span(f"UNEXPLAINED in {name}, {v.machine} against {v.against}:", "strong")]]
            lines += [line for d in v.shown if not d.reason for line in wrapped(str(d), indent=2)]
        if full and v.compared and v.skipped:
            lines += wrapped(f"* not compared: {skipped(v)}.", "note", indent=6)
    if not full and any(v.compared and v.skipped for _, v in rows):
        lines += wrapped("* not everything: what the other machine cannot do, numsim run NAME tells", "note", indent=6)
    return lines


def skipped(v: Verdict) -> str:
    """Why questions were not compared and how many, the most frequent reason first.

    >>> skipped(Verdict("emulated", "numpy", skipped={"numpy has no tf32": 1, "numpy has no bf16": 2}))
    'numpy has no bf16 (2), tf32 (1)'
    """
    reasons = sorted(v.skipped.items(), key=lambda r: -r[1])
    head = f"{v.against} has no "
    same = [f"{reason.removeprefix(head)} ({n})" for reason, n in reasons if reason.startswith(head)]
    other = [f"{reason} ({n})" for reason, n in reasons if not reason.startswith(head)]
    return "; ".join([*([head + ", ".join(same)] if same else []), *other])


def _owner(v: Verdict) -> str:
    """The machine whose ways are documented."""
    return v.machine if v.against == "emulated" else v.against


def _of(rows: Sequence[tuple[str, Verdict]], like: Verdict) -> Verdict:
    """All verdicts against one machine together."""
    total = Verdict(like.machine, like.against)
    for _, v in rows:
        if (v.machine, v.against) == (like.machine, like.against):
            total += v
    return total
