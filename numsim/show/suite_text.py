"""A suite's record held against numsim, as text in 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numsim.errors import InputError
from numsim.experiments.experiment import Table
from numsim.machines.recorded import Record
from numsim.machines.verdict import Difference, Verdict
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
    "differs": "it differs, and nothing explains it",
    "told": "told, not compared bit by bit",
    "failed": "the answers cannot be trusted, and are not kept",
    "skipped": "not asked: this machine cannot answer it",
}
UNASKED = ("failed", "skipped")  # told below the table


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


def outcome(row: Row) -> str:
    """What became of a part: "same", "documented", "differs", "told", "failed" or "skipped".

    >>> from numsim.suites import Row
    >>> outcome(Row("wgmma", Verdict("cuda", "emulated", compared=8, equal=8)))
    'same'
    """
    if row.note.startswith("FAILED"):
        return "failed"
    if row.verdict.unexplained:
        return "differs"
    if row.verdict.documented:
        return "documented"
    if row.verdict.compared:
        return "same"
    return "skipped" if row.verdict.skipped else "told"


def groups(rows: Iterable[Row]) -> list[Group]:
    """Rows of one family with the same words, together; a part with unexplained differences stands alone."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        family, kind, says = _family(row.part), outcome(row), row.note or row.verdict.text
        found.setdefault((family, kind, says, row.part if kind == "differs" else ""), []).append(row)
    return [Group(family, kind, says, tuple(some)) for (family, kind, says, _), some in found.items()]


def summary(record: Record, rows: Sequence[Row]) -> str:
    """The verdict in one or two sentences.

    >>> from numsim.suites import Row
    >>> row = Row("fp32 to bf16", Verdict("cuda", "emulated", compared=8, equal=8))
    >>> summary(Record("0.1.0", {"machine": "cuda"}, (), parts=("fp32 to bf16",) * 2), [row])
    'Same bits in 1 of 1 part: 2 sets, 8 results.'
    """
    kinds = [outcome(row) for row in rows]
    asked = [row for row in rows if row.verdict.compared]
    parts = {row.part for row in asked}
    count = {kind: kinds.count(kind) for kind in WORDS}
    sets = sum(part in parts for part in record.parts)
    of = many(len(asked), noun(row.part for row in asked))
    said = [f"Same bits in {count['same']} of {of}"]
    said += [f"{count['documented']} as documented"] * bool(count["documented"])
    said += [f"{count['differs']} WITH UNEXPLAINED DIFFERENCES"] * bool(count["differs"])
    text = f"{', '.join(said)}: {many(sets, 'set')}, {many(sum(r.verdict.compared for r in asked), 'result')}."
    rest = [f"{count[kind]} {word}" for kind, word in (("failed", "FAILED"), ("skipped", "skipped")) if count[kind]]
    return f"{text} {', '.join(rest)}." if rest else text


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
    return "instruction" if all(re.match(r"(wg|w)?mma\.|tcgen05\.", part) for part in parts) else "part"


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


def by_question(differences: Iterable[Difference]) -> dict[str, list[str]]:
    """Differences in words, below the question that they answer."""
    found: dict[str, list[str]] = {}
    for d in differences:
        found.setdefault(d.question, []).append(str(d).removeprefix(d.question).strip())
    return found


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
    lines += [[], *report.wrapped(f"{summary(record, rows)} {evidence(record)}".strip(), indent=2)]
    for i, note in enumerate(suite.notes(record, rows)):
        lines += report.wrapped(note, "" if i else "found")
    for kind, label in (("failed", "FAILED"), ("skipped", "skipped")):
        for why, parts in reasons(rows, kind).items() if not full else ():
            lines += report.wrapped(f"{why}: {told_parts(parts)}", label)
    for why, parts in in_part(record, rows).items():
        lines += report.wrapped(f"{why}: of {told_parts(parts)} in part", "skipped")
    for name, (what, right) in meanings(rows).items():
        lines += report.wrapped(f"{name}: {what}. {right}." if full else f"{name}: {what}.", "note")
    for row in rows:
        if row.verdict.unexplained:
            lines += [[], [Span(f"UNEXPLAINED in {row.part}, {row.verdict.machine} against {row.verdict.against}:",
                                "strong")]]  # fmt: skip
            for asked, found in by_question(d for d in row.verdict.shown if not d.reason).items():
                lines += report.wrapped(asked, indent=2)
                lines += [line for text in found for line in report.wrapped(text, indent=4)]
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
    return re.split(r"[.:, ]", part)[0]


def _machine(record: Record) -> str:
    """The machine in one line."""
    facts = record.provenance
    named = {"compute_capability": "compute capability", "torch": "torch"}
    known = [str(facts.get("device") or facts.get("cpu") or "unknown")]
    known += [f"{word} {facts[key]}" for key, word in named.items() if key in facts]
    return f"{record.machine}: {', '.join(known)}; numsim {record.numsim}"
