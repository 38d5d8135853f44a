"""The models of tensor cores as text: a table of chips, a chip's card, one instruction."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from numsim.show import chips
from numsim.show.chips import Group
from numsim.show.text import WIDTH, Line, Span
from numsim.tensorcore.chips import SOURCES, TITLES
from numsim.tensorcore.models import Model
from numsim.tensorcore.names import list_models


def table() -> list[Line]:
    """All chips."""
    cells = [chips.COLUMNS, *chips.rows()]
    widths = [max(len(row[i]) for row in cells) for i in range(len(chips.COLUMNS))]
    lines: list[Line] = []
    for row in cells:
        texts = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append([Span("  ".join(texts), "strong" if row is chips.COLUMNS else "")])
    lines.append([Span("")])
    for sentence in chips.findings():
        lines += _filled(sentence)
    lines.append([Span("")])
    for word, text in chips.TABLE_LEGEND:
        lines += _filled(text, f"{word:<12}", "faint")
    return [*lines, [Span("All about one chip: numsim chips h200", "faint")]]


def card(chip: str) -> list[Line]:
    """A chip: its instructions, the words, the sources, what is missing."""
    models = list_models(chip)
    lines: list[Line] = [[Span(TITLES[chip], "strong"), Span(f"  {chip}")], [Span(chips.summary(models))]]
    for group in chips.groups(chip):
        lines += [[Span("")], *_group(group)]
    lines.append([Span("")])
    for word, text in chips.legend(models):
        lines += _filled(text, f"{word:<15}", "faint")
    lines.append([Span("")])
    lines += _sources(models)
    if any(m.evidence.recordings for m in models):
        lines += _filled(chips.RECORDINGS)
    lines += _filled(chips.not_modelled(chip))
    more = f"All about one instruction: numsim chips {chip} {models[0].instruction}"
    return [*lines, [Span("")], *_filled(chips.names(chip), style="faint"), [Span(more, "faint")]]


def _group(group: Group) -> list[Line]:
    m = group.first
    head = f"{group.operands} -> {group.result}"
    level = m.evidence.level
    gap = WIDTH - len(head) - len(level)
    lines: list[Line] = [[Span(head, "strong"), Span(" " * gap + level)]] if gap > 1 else [
        *_filled(head, style="strong"), [Span(f"  {level}")]]  # fmt: skip
    for name in group.names:
        lines.append([Span(f"  {name}")])
    facts = [" ".join(p) for p in group.parameters]
    lines += _filled("; ".join([group.chains, ", ".join([*facts, f"output {m.unit.output}", *_path(m)])]), "  ")
    if group.recordings:
        lines += _filled(f"recorded: {', '.join(group.recordings)}", "  ", "faint")
    if m.evidence.note:
        lines += _filled(f"note: {m.evidence.note}", "  ", "faint")
    if group.sources:
        lines += _filled(f"sources: {', '.join(group.sources)}", "  ", "faint")
    return lines


def _path(m: Model) -> list[str]:
    return [] if m.unit.path == "block" else [f"path {m.unit.path}"]


def _sources(models: Sequence[Model]) -> list[Line]:
    used = {s for m in models for s in m.evidence.sources}
    lines: list[Line] = [[Span("Sources", "strong")]] if used else []
    for key, text in SOURCES.items():
        if key in used:
            lines += _filled(text, f"  {key:<13}")
    return lines


def sheet(m: Model) -> list[Line]:
    """All about one instruction."""
    lines: list[Line] = [[Span(m.instruction, "strong")], [Span(f"on the {TITLES[m.chip]}")]]
    for name, fact in chips.facts(m):
        lines += _filled(fact, f"  {name:<10}")
    lines += [[Span("")], [Span(f"One {'step' if m.unit.path == 'fma' else 'block'}", "strong")]]
    for n, step in enumerate(chips.steps(m), start=1):
        lines += _filled(step, f"  {n} ")
    lines += [[Span("")], [Span("How we know", "strong")]]
    evidence = m.evidence
    lines += _filled(f"{evidence.level}: {chips.LEVELS[evidence.level]}", "  ")
    for recording in evidence.recordings:
        lines += _filled(f"recorded: {recording}", "  ")
    lines += _filled(f"note: {evidence.note}", "  ") if evidence.note else []
    lines += _sources([m])
    if others := chips.alike(m):
        lines += [[Span("")], *_filled(f"Computed alike on {', '.join(others)}.")]
    return lines


def _filled(text: str, label: str = "", style: str = "") -> list[Line]:
    """A paragraph with a label to its left."""
    indent = len(label)
    parts = textwrap.wrap(text, WIDTH - indent, break_on_hyphens=False)
    return [[Span((" " * indent if i else label) + part, style)] for i, part in enumerate(parts)]
