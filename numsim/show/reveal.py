"""What probes revealed of a unit, as text in 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from numsim.experiments.experiment import Table
from numsim.reveal import Elimination, Fit, Revelation
from numsim.reveal.fit import evidence_of, unseen
from numsim.reveal.probes import PROBES
from numsim.show.chips import generation
from numsim.show.report import table_lines, wrapped
from numsim.show.text import Line, Span

QUESTION = (
    "Which products are added at once, how many bits of them are kept, how is the sum rounded - and which chip's unit "
    "computes like this?"
)
_INDENT = 18
_MOST = 4  # kinds of differences that are told of
_NEAR = 0.1  # of the answers: what differs in more is no near miss
_ABOUT = {probe.name: probe.about for probe in PROBES}


def question_lines() -> list[Line]:
    """What is asked, before any answer."""
    return [[Span("reveal", "strong")], *wrapped(QUESTION, "question", "strong")]


def lines(found: Revelation, *, seen: bool = False) -> list[Line]:
    """All findings, and the records that fit. seen : also how each was seen."""
    text: list[Line] = [*wrapped(found.machine, "unit"), *wrapped(f"{found.operands}; {found.asked} sums", "asked"), []]
    for f in found.findings:
        text += wrapped(f.words, f.name, "faint" if f.value is None else "", indent=_INDENT)
        if seen and f.seen:
            text += wrapped(f"({f.seen})", "", "faint", indent=_INDENT)
    return [*text, [], *_fit_lines(found)]


def _fit_lines(found: Revelation) -> list[Line]:
    if found.fits:
        why = "one unit, as far as these operands show: these records cannot be told apart"
        return _fitting(found.fits, "fits", why, "which no sum of these operands shows")
    if not found.nearest:
        return wrapped("no record of a chip takes such operands", "fits", "strong")
    text = wrapped("no record of a chip gives these answers", "fits", "strong")
    near = [f for f in found.nearest if f.total <= _NEAR * f.asked]
    if not near:
        text += wrapped(f"nor comes near: at least {found.nearest[0].total} of {found.asked} answers differ")
    for n, fit in enumerate(near):
        text += wrapped(_difference(fit), "" if n else "nearest")
    return text


def _fitting(fits: Sequence[Fit], label: str, alike: str, hidden: str) -> list[Line]:
    """Records that give all answers, how sure each is, and what tells them apart or does not."""
    models = [m for f in fits for m in f.models]
    text: list[Line] = []
    for known in evidence_of(models):
        text += wrapped(known, "" if text else label, "strong")
    if differ := list(unseen(fits)):
        text += wrapped(f"they differ in {' and '.join(differ)}, {hidden}")
    elif len(models) > 1 and alike:
        text += wrapped(alike)
    made: dict[str, list[str]] = {}
    for chip in dict.fromkeys(m.chip for m in models):
        made.setdefault(generation(chip), []).append(chip)
    if len(made) > 1:
        told = ", ".join(f"{name} ({_listed(chips)})" for name, chips in made.items())
        text += wrapped(f"chips of several generations: {told}")
    notes: dict[str, list[str]] = {}
    for m in models:
        if m.evidence.level == "unverified" and m.evidence.note:
            notes.setdefault(m.evidence.note, []).append(m.chip)
    for note, chips in notes.items():
        text += wrapped(f"{_listed(chips)} unverified: {note}", "", "faint")
    return text


def _listed(chips: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(chips))


def _difference(fit: Fit) -> str:
    counts: Counter[str] = Counter()
    for name, n in fit.differs.items():
        counts[_ABOUT[name]] += n
    where = counts.most_common()
    shown = ", ".join(f"{about} ({n})" for about, n in where[:_MOST]) + ", ..." * (len(where) > _MOST)
    return f"{fit} differ{'s' * (len(fit.models) == 1)} in {fit.total} of {fit.asked} answers: {shown}"


def summary_lines(found: Sequence[Elimination]) -> list[Line]:
    """A row for each instruction that was recorded: whether all its answers are those of a record, and of which."""
    together: dict[str, list[Elimination]] = {}
    for e in found:
        operands, _, instruction = e.operands.partition(", recorded as ")
        together.setdefault(instruction or operands, []).append(e)
    rows = []
    for instruction, some in together.items():
        misses: dict[str, list[int]] = {}  # by record: of each kind of operands that it takes
        for e in some:
            for fit in e.fits:
                for m in fit.models:
                    misses.setdefault(str(m), []).append(fit.total)
        totals = {name: sum(n) for name, n in misses.items() if len(n) == len(some)}
        least, asked = min(totals.values(), default=0), sum(e.answers for e in some)
        near = [name for name, n in totals.items() if n == least]
        told = _chips(near, instruction) if near else "no record takes such operands"
        if least:
            told = f"{least:,} differ on {told}, the nearest"
        rows.append((instruction, f"{asked:,}".rjust(8), "no" if least or not near else "yes", told))
    return [*table_lines(Table("", ("instruction", " results", "fits", "records"), tuple(rows))), [],
            [Span("All records that were compared: --seen", "faint")]]  # fmt: skip


def _chips(records: Sequence[str], instruction: str) -> str:
    """Records in short: the chips of the same instruction; if there are none, the first record."""
    chips = [name.rpartition(" on ")[2] for name in records if name.startswith(f"{instruction} on ")]
    return _listed(chips) if chips else next(iter(records), "")


def elimination_lines(found: Sequence[Elimination]) -> list[Line]:
    """Which records reproduce a recording."""
    text: list[Line] = []
    for e in found:
        text += [*([[]] if text else []), *wrapped(f"{e.operands}; {e.answers:,} answers", "record")]
        good = [f for f in e.fits if not f.total]
        bad = [f for f in e.fits if f.total]
        if good:
            text += wrapped(f"all {e.answers:,} answers are those of", "fits")
            text += _fitting(good, "", "", "which these sums do not show")
        else:
            text += wrapped("no record of a chip gives all these answers", "fits", "strong")
        if bad:
            rows = tuple((f"{f.total:,} of {f.asked:,}", str(f)) for f in bad)
            text += [[], *table_lines(Table("", ("differ", "records"), rows))]
    return text
