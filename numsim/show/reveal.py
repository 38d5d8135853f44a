"""What probes revealed of a unit, as text in 80 columns."""

from __future__ import annotations

from numsim.experiments.experiment import Table
from numsim.reveal import Elimination, Fit, Revelation
from numsim.reveal.fit import names_of, unseen
from numsim.show.report import table_lines, wrapped
from numsim.show.text import Line, Span

QUESTION = (
    "Which products are added at once, how many bits of them are kept, how is the sum rounded - and which chip's unit "
    "computes like this?"
)
_INDENT = 18
_MOST = 4  # differing records that are told of


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
    if not found.fits:
        near = [_difference(f, "answers") for f in found.nearest]
        none = "no record of a chip gives these answers" if near else "no record of a chip takes such operands"
        text = wrapped(none, "fits", "strong")
        for sentence in near:
            text += wrapped(sentence, "nearest" if sentence is near[0] else "")
        return text
    text = wrapped(names_of(found.models), "fits", "strong")
    if len(found.models) > 1:
        hidden = list(unseen(found.fits))
        why = "one unit, as far as these operands show: these records cannot be told apart"
        if hidden:
            why = f"they differ in {' and '.join(hidden)}, which no sum of these operands shows"
        text += wrapped(why)
    return text


def _difference(fit: Fit, what: str) -> str:
    where = sorted(fit.differs.items(), key=lambda d: -d[1])
    shown = ", ".join(f"{name} {n}" for name, n in where[:_MOST]) + ", ..." * (len(where) > _MOST)
    return f"{fit} differ{'s' * (len(fit.models) == 1)} in {fit.total} of {fit.asked} {what}: {shown}"


def elimination_lines(found: list[Elimination]) -> list[Line]:
    """Which records reproduce a recording."""
    text: list[Line] = []
    for e in found:
        text += [*([[]] if text else []), *wrapped(f"{e.operands}; {e.answers} answers", "record")]
        good = [f for f in e.fits if not f.total]
        bad = [f for f in e.fits if f.total]
        if good:
            text += wrapped(f"all {e.answers} answers are those of {names_of([m for f in good for m in f.models])}",
                            "fits", "strong")  # fmt: skip
            if hidden := list(unseen(good)):
                text += wrapped(f"they differ in {' and '.join(hidden)}: these sums do not show it")
        else:
            text += wrapped("no record of a chip gives all these answers", "fits", "strong")
        if bad:
            rows = tuple((f"{f.total} of {f.asked}", str(f)) for f in bad)
            text += [[], *table_lines(Table("", ("differ", "records"), rows))]
    return text
