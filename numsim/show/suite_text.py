"""A suite's record held against numsim, as text in 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numsim.errors import InputError
from numsim.experiments.experiment import Table
from numsim.machines.recorded import Record
from numsim.machines.verdict import ANY_ORDER, UNDECIDED, Difference, Verdict
from numsim.show import report
from numsim.show.text import Line, Span
from numsim.tensorcore.chips import TITLES
from numsim.tensorcore.names import chip_name
from numsim.wording import listed

if TYPE_CHECKING:
    from numsim.suites.suite import Row, Suite

WORDS = {  # what can become of a part
    "same": "numsim computes the same",
    "documented": "it differs, and a known cause explains it",
    "bounded": "it differs by no more than the order of additions can: no probe has shown which it is",
    "undecided": "not decided: the bound of any order is as large as the sums",
    "differs": "it differs, and nothing explains it",
    "told": "told, not compared bit by bit",
    "failed": "the results cannot be trusted, and are not kept",
    "skipped": "not compared, for a reason that is told",
}
UNASKED = ("failed", "skipped")  # told below the table
_SHOWN_OF_A_PART, _SHOWN = 3, 20  # unexplained differences in text


# --- what a record comes to -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Group:
    """Parts of one family that come to the same, and what they come to together."""

    family: str
    outcome: str  # what became of them, a key of WORDS
    says: str
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """The part, or how many of the family."""
        parts = [row.part for row in self.rows]
        return parts[0] if len(parts) == 1 else f"{self.family}, {many(len(parts), noun(parts))}"

    @property
    def verdict(self) -> Verdict:
        total = self.rows[0].verdict
        for row in self.rows[1:]:
            total += row.verdict
        return total


def called(machine: str) -> str:
    """A machine, in the words of a reader of differences.

    >>> called("cuda"), called("emulated"), called("torch-cpu")
    ('GPU', 'numsim', 'torch-cpu')
    """
    return {"cuda": "GPU", "emulated": "numsim"}.get(machine, machine)


def outcome(row: Row) -> str:
    """What became of a part: "same", "documented", "bounded", "undecided", "differs", "told", "failed" or "skipped".

    >>> from numsim.suites import Row
    >>> outcome(Row("wgmma", Verdict("cuda", "emulated", compared=8, equal=8)))
    'same'
    """
    if row.note.startswith("FAILED"):
        return "failed"
    if row.verdict.unexplained:
        return "differs"
    if row.verdict.documented:
        return "bounded" if set(row.verdict.documented) == {ANY_ORDER} else "documented"
    if undecided := row.verdict.skipped.get(UNDECIDED):
        return "undecided" if undecided >= row.verdict.compared else "bounded"
    if row.verdict.compared:
        return "same"
    return "skipped" if row.verdict.skipped else "told"


def groups(rows: Iterable[Row]) -> list[Group]:
    """Rows of one family with the same words, together; a part that differs but for known causes stands alone."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        family, kind = _family(row.part), outcome(row)
        own = row.part if kind in ("differs", "bounded", "undecided") else ""  # their words count
        found.setdefault((family, kind, says(row), own), []).append(row)
    return [Group(family, kind, said, tuple(some)) for (family, kind, said, _), some in found.items()]


def summary(record: Record, rows: Sequence[Row]) -> str:
    """The verdict in one or two sentences.

    >>> from numsim.suites import Row
    >>> row = Row("fp32 to bf16", Verdict("cuda", "emulated", compared=8, equal=8))
    >>> summary(Record("0.1.0", {"machine": "cuda"}, (), parts=("fp32 to bf16",) * 2), [row])
    'Same bits in 1 of 1 part: 2 questions, 8 results.'
    """
    kinds = [outcome(row) for row in rows]
    asked = [row for row in rows if row.verdict.compared]
    count = {kind: kinds.count(kind) for kind in WORDS}
    compared, recorded = sum(row.verdict.compared for row in asked), sum(a.codes.size for _, a in record.answers)
    of = many(len(asked), noun(row.part for row in asked))
    said = [f"Same bits in {count['same']} of {of}"]
    said += [f"{count['documented']} as documented"] * bool(count["documented"])
    said += [f"{count['bounded']} {ANY_ORDER}"] * bool(count["bounded"])
    said += [f"{count['undecided']} not decided"] * bool(count["undecided"])
    said += [f"{count['differs']} WITH UNEXPLAINED DIFFERENCES"] * bool(count["differs"])
    text = f"{', '.join(said)}: {many(len(record.parts), 'question')}, {many(compared, 'result')}"
    if compared < recorded:
        text += f" of {recorded:,}; the others are told, not compared bit by bit"
    text += "."
    rest = [f"{count[kind]} {word}" for kind, word in (("failed", "FAILED"), ("skipped", "skipped")) if count[kind]]
    return f"{text} {', '.join(rest)}." if rest else text


def headline(suite: Suite, record: Record, rows: Sequence[Row]) -> str:
    """The verdict, and before it what is missing of what the suite is for."""
    lacks = suite.lacks(record)
    return f"{lacks[0].upper()}{lacks[1:]}. {summary(record, rows)}" if lacks else summary(record, rows)


def evidence(record: Record) -> str:
    """Which chip's models a GPU's instructions are held against, and whether anything was recorded before; or ""."""
    models = {q.model for q, _ in record.answers if q.model is not None}
    if record.machine != "cuda" or not models:
        return ""
    chips = sorted({m.chip for m in models})
    text = f"Held against numsim's models of {listed([TITLES[chip] for chip in chips])}"
    try:
        own = chips == [chip_name(str(record.provenance.get("device")))]
    except InputError:
        own = False
    if not own:
        return f"{text}, which is not this GPU."
    if not (new := sum(m.evidence.level != "validated" for m in models)):
        return f"{text}, all confirmed by recorded results."
    return f"{text}; {new} of {many(len(models), 'instruction')} had no recorded results: this run is the evidence."


def noun(parts: Iterable[str]) -> str:
    of_chip = [re.match(r"(wg|w)?mma\.|tcgen05\.", part) is not None for part in parts]
    return "instruction" if of_chip and all(of_chip) else "part"


def many(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def reasons(rows: Sequence[Row], kind: str) -> dict[str, list[str]]:
    """Why parts have no answers: reason -> parts."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if outcome(row) == kind:
            for why in row.verdict.skipped or (row.note,):
                found.setdefault(why, []).append(row.part)
    return found


def in_part(record: Record, rows: Sequence[Row]) -> dict[str, list[str]]:
    """Why something was left out of parts that have answers: reason -> parts."""
    left: dict[str, list[str]] = {}
    for part, why in record.skipped.items():
        if part in record.parts:
            left.setdefault(why, []).append(part)
    for row in rows:
        if row.verdict.compared and row.verdict.skipped:
            left.setdefault(report.skipped(row.verdict), []).append(row.part)
    return left


def meanings(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    return {name: meaning for row in rows for name, meaning in row.verdict.reasons.items()}


def by_question(differences: Iterable[Difference], machine: str, against: str) -> dict[str, list[str]]:
    """Differences in words, below the question that they answer."""
    found: dict[str, list[str]] = {}
    for d in differences:
        of = f"of {', '.join(d.operands)}" if d.operands else f"at {list(d.index)}"
        why = f" ({d.reason})" if d.reason else ""
        found.setdefault(d.question, []).append(f"{of}: {called(machine)} {d.ours}, {called(against)} {d.theirs}{why}")
    return found


def says(row: Row) -> str:
    """The verdict in a few words."""
    return row.note or re.sub(r"^\d+", lambda n: f"{int(n[0]):,}", row.verdict.text)


# --- the table --------------------------------------------------------------------------------------------------------
def table_lines(suite: Suite, record: Record, rows: Sequence[Row], *, full: bool = False) -> list[Line]:
    """The verdicts in 80 columns: parts that come to the same share a row; below it differences and what is missing.

    full : a row for every part, and what documented differences mean.
    """
    lines: list[Line] = [[Span(suite.name, "strong")], *report.wrapped(_machine(record), indent=2), []]
    cells = []
    shown = [g for row in rows for g in groups([row])] if full else groups(rows)
    for group in shown:
        v = group.verdict
        if group.outcome in UNASKED and not full:
            continue
        counts = (f"{v.compared:,}", f"{v.differ:,}") if v.compared else ("-", "-")
        cells.append((group.name, *counts, group.says))
    if cells:
        lines += _aligned(cells)
    lines += [[], *report.wrapped(f"{headline(suite, record, rows)} {evidence(record)}".strip(), indent=2)]
    notes = suite.notes(record, rows)
    for i, note in enumerate(notes):
        lines += report.wrapped(note, "" if i else "found")
    for i, words in enumerate(suite.words if notes or not suite.lacks(record) else ()):
        lines += report.wrapped(words, "" if i else "words", "faint")
    for kind, label in (("failed", "FAILED"), ("skipped", "skipped")):
        for why, parts in reasons(rows, kind).items() if not full else ():
            lines += report.wrapped(f"{why}: {told_parts(parts)}", label)
    for why, parts in in_part(record, rows).items():
        lines += report.wrapped(f"{why}: of {told_parts(parts)} in part", "skipped")
    for name, (what, right) in meanings(rows).items():
        lines += report.wrapped(f"{name}: {what}. {right}." if full else f"{name}: {what}.", "note")
    return lines + _unexplained(rows)


def _unexplained(rows: Sequence[Row]) -> list[Line]:
    """The first differences that nothing explains: a few of each part, and not too many in all."""
    lines: list[Line] = []
    room = _SHOWN
    for row in rows:
        v = row.verdict
        if v.unexplained:
            shown = [d for d in v.shown if not d.reason][: min(_SHOWN_OF_A_PART, room)]
            room -= len(shown)
            lines += [[], *report.wrapped(f"UNEXPLAINED in {row.part}:", "", "strong", indent=0)] if shown else []
            for asked, found in by_question(shown, v.machine, v.against).items():
                lines += report.wrapped(asked, indent=2)
                lines += [line for text in found for line in report.wrapped(text, indent=4)]
            if shown and v.unexplained > len(shown):
                lines += report.wrapped(f"{v.unexplained - len(shown):,} more: --json", indent=4)
    if room == 0:
        lines += [[], *report.wrapped("No more are shown here: --json has the first of every part.", indent=0)]
    return lines


def _aligned(cells: Sequence[tuple[str, ...]]) -> list[Line]:
    """Cells in columns, the numbers to the right."""
    widths = [max(len(row[i]) for row in (("", "compared", "differ"), *cells)) for i in (1, 2)]
    rows = [(name, compared.rjust(widths[0]), differ.rjust(widths[1]), says) for name, compared, differ, says in cells]
    heads = ("part", "compared".rjust(widths[0]), "differ".rjust(widths[1]), "verdict")
    return report.table_lines(Table("", heads, tuple(rows)))


def told_parts(parts: Sequence[str]) -> str:
    """Parts by name where they are few; of instructions how many of each family, of others the first and how many."""
    if len(parts) <= 3:
        return ", ".join(parts)
    if noun(parts) == "part":
        return f"{parts[0]}, ... ({len(parts)} parts)"
    families = [_family(part) for part in parts]
    return ", ".join(f"{families.count(f)} {f}" for f in dict.fromkeys(families)) + " instructions"


def _family(part: str) -> str:
    """Of experiments each is one of its own; of a library's functions, the function.

    >>> _family("torch.matmul of fp32"), _family("mma.m16n8k16.f32.f16.f16.f32")
    ('torch.matmul', 'mma')
    """
    if part.startswith("torch."):
        return part.split(" ")[0]
    return part if part.startswith("experiment ") else re.split(r"[.:, ]", part)[0]


def _machine(record: Record) -> str:
    """The machine in one line."""
    facts = record.provenance
    named = {"compute_capability": "compute capability", "torch": "torch"}
    known = [str(facts.get("device") or facts.get("cpu") or "unknown")]
    known += [f"{word} {facts[key]}" for key, word in named.items() if key in facts]
    return f"{record.machine}: {', '.join(known)}; numsim {record.numsim}"
