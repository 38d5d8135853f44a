"""The models of tensor cores as text: a table of chips, a chip's card, one instruction. All from the records.

``show.chips_page`` makes web pages of the same.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from numsim.show.text import WIDTH, Line, Span
from numsim.tensorcore.chips import SOURCES, TITLES
from numsim.tensorcore.models import IN_WORDS, OUTPUTS, PATHS, TYPES, Model
from numsim.tensorcore.names import list_chips, list_models

LEVELS = {
    "validated": "numsim's tests reproduce recorded results of this chip bit for bit",
    "single-source": "others measured it; no results of this chip are public",
    "unverified": "inferred from other chips or instructions, or sources disagree",
}
_WORDS = {
    "K": "products of one instruction",
    "block": "what is added at once; the result goes into the next block as its c",
    "L": "most products of a block",
    "E": "the exponent that all terms of a block are aligned to: the largest among them",
    "E0": "the least that E can be",
    "F": "bits that a term keeps below 2^E; what is below 2^(E - F) is cut, towards zero",
}
RECORDINGS = (
    "Recordings: bits that the chip itself returned, 5,000 dot products for each pair of formats (km-data). Their "
    "values are ordinary: no infinity, no NaN; subnormal numbers in FP8 only. What becomes of those rests on the "
    "sources."
)
_NOT_MODELLED = {
    "nvidia": "2:4 sparse instructions (.sp), .satfinite, integer and one-bit instructions, other roundings of FP64 "
    "than to nearest, tcgen05 with .ws or cta_group::2, chips of sm_103",
    "amd": "sparse (smfmac) and integer instructions, payloads of NaNs, CDNA4 and RDNA",
}
_BOTH = "what a library's kernel chooses: the instruction, split-K (options of numsim.tensorcore.matmul)"

NAMES = "A and B stand for the types. Of a shape only K matters: any M and N is understood, and PTX's full spelling."


# --- what the records say ---------------------------------------------------------------------------------------------
class Group(NamedTuple):
    """Instructions of a chip that compute alike, on equal evidence."""

    models: tuple[Model, ...]

    @property
    def first(self) -> Model:
        return self.models[0]

    @property
    def operands(self) -> str:
        """Such as "f16 x f16 or bf16 x bf16"."""
        pairs = list(dict.fromkeys((m.a, m.b) for m in self.models))
        types = list(dict.fromkeys(a for a, _ in pairs))
        if len(pairs) > len(types):
            return f"{_either(types)} in any pair"
        return _either([f"{a} x {b}" for a, b in pairs])

    @property
    def result(self) -> str:
        m = self.first
        scale = f", {m.scale} per {m.scale_block}" if m.scale else ""
        return m.d + (f" with an {m.c} c" if m.c != m.d else "") + scale

    @property
    def names(self) -> list[str]:
        """The instructions' names; A and B stand for the types where there are several, SHAPE for the shapes."""
        if self.first.instruction.startswith("mfma"):
            return [m.instruction for m in self.models]
        pairs = list(dict.fromkeys((m.a, m.b) for m in self.models))
        shapes = list(dict.fromkeys(shape_of(m) for m in self.models))
        name = self.first.instruction
        if len(pairs) > 1:
            m = self.first
            a, b = ("A", "B") if len(pairs) > len({a for a, _ in pairs}) else ("A", "A")
            name = name.replace(f".{m.d}.{m.a}.{m.b}", f".{m.d}.{a}.{b}")
        if len(shapes) == 1:
            return [name]
        return [name.replace(shapes[0], "SHAPE"), f"SHAPE: {', '.join(shapes)}"]

    @property
    def chains(self) -> str:
        """How instructions are made of blocks, for every K."""
        return "; ".join(dict.fromkeys(chain(m) for m in self.models))

    @property
    def recordings(self) -> list[str]:
        return list(dict.fromkeys(r for m in self.models for r in m.evidence.recordings))

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(s for m in self.models for s in m.evidence.sources))


def groups(chip: str) -> list[Group]:
    """A chip's instructions, those that differ in shapes and types alone together."""
    found: dict[Any, list[Model]] = {}
    for m in list_models(chip):
        kind = next((p for p in m.instruction.split(".") if p.startswith("kind::")), "")
        alike = (m.instruction.split(".")[0], kind, m.c, m.d, m.unit, m.scale, m.scale_block)
        found.setdefault((alike, m.evidence.level, m.evidence.note), []).append(m)
    return [Group(tuple(models)) for models in found.values()]


def shape_of(m: Model) -> str:
    """Such as "m16n8k16"."""
    return m.instruction.split(".")[1]


def chain(m: Model) -> str:
    """How one instruction is made of blocks.

    >>> from numsim.tensorcore import get_model
    >>> chain(get_model("a100", "mma.m16n8k16.f32.f16.f16.f32"))
    'K 16: 2 blocks of 8'
    """
    if m.unit.path == "fma":
        return f"K {m.k}: {m.k} fused multiply-add{'s' * (m.k > 1)}"
    if m.unit.path == "groups":
        return f"K {m.k}: 1 block, {m.k // 16} groups of 16"
    if m.unit.path == "fp8-as-fp16":
        return f"K {m.k}: 2 blocks of {m.k // 2}"
    size = min(m.k, m.unit.length)
    return f"K {m.k}: {m.k // size} block{'s' * (m.k > size)} of {size}"


def parameters(m: Model) -> list[tuple[str, str]]:
    """L, F and E0, where a path has them."""
    unit, rows = m.unit, []
    if unit.path not in ("fma", "groups", "fp8-as-fp16"):
        rows.append(("L", str(unit.length)))
    if unit.fraction_bits:
        rows.append(("F", str(unit.fraction_bits)))
    if unit.floor:
        rows.append(("E0", str(unit.floor)))
    return rows


def steps(m: Model) -> list[str]:
    """What one block does, in order."""
    unit = m.unit
    end = f"the exact sum is {OUTPUTS[unit.output]}"
    if unit.path == "block":
        scaled = ", moved by the powers of two that are the scales" if m.scale else ""
        return [
            f"{min(m.k, unit.length)} exact products{scaled}; none is normalised, and zeros do not count",
            f"E is the largest exponent of the products and c, at least {unit.floor}",
            f"every product and c is cut, towards zero, to a multiple of 2^(E - {unit.fraction_bits})",
            end,
        ]
    if unit.path == "fp8-as-fp16":
        return [
            "FP8 becomes FP16, exactly",
            f"the {m.k // 2} products with k mod 4 in {{0, 1}} are added from zero, in a block of the FP16 unit: cut, "
            f"towards zero, to multiples of 2^(E - {unit.fraction_bits}) with E the largest exponent, at least "
            f"{unit.floor}; {end}",
            f"the {m.k // 2} products with k mod 4 in {{2, 3}} are added to that, in a second block",
            f"c is added last, rounded to the nearest {TYPES[m.d].title}",
        ]
    if unit.path == "groups":
        return [
            f"{m.k // 16} groups of 16 products, each added exactly, times its scales of a and of b",
            f"E is the largest exponent of the groups' scales and c, at least {unit.floor}",
            f"every group and c is cut, towards zero, to a multiple of 2^(E - {unit.fraction_bits})",
            end,
        ]
    return [*PATHS[unit.path].split("; "), f"the result is {OUTPUTS[unit.output]}"]


def not_modelled(chip: str) -> str:
    maker = "amd" if chip.startswith("mi") else "nvidia"
    return f"Not modelled: {_NOT_MODELLED[maker]}; {_BOTH}."


def typical(chip: str, *types: str) -> Model | None:
    """The instruction for two operands of one of these types and FP32 results; the first that a chip's table has."""
    found = (m for m in list_models(chip) if m.a == m.b and m.a in types and m.d == "f32" and not m.scale)
    return next(found, None)


def evidence_counts(models: Sequence[Model]) -> dict[str, int]:
    counts = Counter(m.evidence.level for m in models)
    return {level: counts[level] for level in LEVELS}  # type: ignore[index]


def kept(chip: str, *types: str) -> str:
    """Products of a block x bits kept; "-" where a chip has no such instruction."""
    m = typical(chip, *types)
    return (
        "-" if m is None else f"{m.unit.length}x{m.unit.fraction_bits}" if m.unit.fraction_bits else f"{m.unit.length}"
    )


COLUMNS = ("chip", "generation", "count", "validated", "single", "unverified", "FP16", "FP8")


def rows() -> list[tuple[str, ...]]:
    """The table of chips."""
    table = []
    for chip in list_chips():
        counts = evidence_counts(list_models(chip))
        generation = TITLES[chip].rpartition("(")[2].rstrip(")").replace(",", "")
        numbers = [str(n) if n else "-" for n in counts.values()]
        table.append((chip, generation, str(sum(counts.values())), *numbers, kept(chip, "f16"), kept(chip, *_FP8)))
    return table


_FP8 = ("e4m3", "fp8")


def findings() -> list[str]:
    """What the table shows, in sentences."""
    told = []
    for name, types in (("FP16", ("f16",)), ("FP8", _FP8)):
        by_bits: dict[int, list[str]] = {}
        for chip in list_chips():
            if (m := typical(chip, *types)) and m.unit.fraction_bits:
                by_bits.setdefault(m.unit.fraction_bits, []).append(chip)
        told += [f"{name} sums keep {bits} bits on {', '.join(by_bits[bits])}." for bits in sorted(by_bits)]
    return told


TABLE_LEGEND = (
    ("count", "instructions, every shape and pair of types"),
    ("validated", LEVELS["validated"]),
    ("single", f"single-source: {LEVELS['single-source']}"),
    ("unverified", LEVELS["unverified"]),
    ("FP16, FP8", "for FP32 results: products of a block x bits kept below the largest term; one number alone: the "
                  "chip adds in another way, see its card"),
)  # fmt: skip


def legend(models: Sequence[Model]) -> list[tuple[str, str]]:
    """The words that a card of these records uses."""
    used = {name for m in models for name, _ in parameters(m)} | {"K"}
    used |= {"E", "block"} if "F" in used else set()
    found = [(word, text) for word, text in _WORDS.items() if word in used]
    if scaled := next((m for m in models if m.scale), None):
        one = f"{scaled.scale} per {scaled.scale_block}"
        found.append((one, "block scales: one of this type for so many elements of a and of b"))
    found += [(rule, text) for rule, text in OUTPUTS.items() if any(m.unit.output == rule for m in models)]
    found += [(path, text) for path, text in PATHS.items() if any(m.unit.path == path for m in models)]
    return found + [(level, text) for level, text in LEVELS.items() if any(m.evidence.level == level for m in models)]


# --- as text ----------------------------------------------------------------------------------------------------------
def table() -> list[Line]:
    """All chips."""
    cells = [COLUMNS, *rows()]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    lines: list[Line] = []
    for row in cells:
        texts = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append([Span("  ".join(texts), "strong" if row is COLUMNS else "")])
    lines.append([Span("")])
    for sentence in findings():
        lines += _filled(sentence)
    lines.append([Span("")])
    for word, text in TABLE_LEGEND:
        lines += _filled(text, f"{word:<12}", "faint")
    return [*lines, [Span("All about one chip: numsim chips h200", "faint")]]


def card(chip: str) -> list[Line]:
    """A chip: its instructions, the words, the sources, what is missing."""
    models = list_models(chip)
    lines: list[Line] = [[Span(TITLES[chip], "strong"), Span(f"  {chip}")], [Span(summary(models))]]
    for group in groups(chip):
        lines += [[Span("")], *_group(group)]
    lines.append([Span("")])
    for word, text in legend(models):
        lines += _filled(text, f"{word:<15}", "faint")
    lines.append([Span("")])
    lines += _sources(models)
    if any(m.evidence.recordings for m in models):
        lines += _filled(RECORDINGS)
    lines += _filled(not_modelled(chip))
    more = f"All about one instruction: numsim chips {chip} {models[0].instruction}"
    return [*lines, [Span("")], *_filled(NAMES, style="faint"), [Span(more, "faint")]]


def summary(models: Sequence[Model]) -> str:
    """Such as "39 instructions: 12 validated, 19 single-source, 8 unverified"."""
    counts = ", ".join(f"{n} {level}" for level, n in evidence_counts(models).items() if n)
    return f"{len(models)} instruction{'s' * (len(models) > 1)}: {counts}"


def _group(group: Group) -> list[Line]:
    m = group.first
    head = f"{group.operands} -> {group.result}"
    level = m.evidence.level
    gap = WIDTH - len(head) - len(level)
    lines: list[Line] = [[Span(head, "strong"), Span(" " * gap + level)]] if gap > 1 else [
        *_filled(head, style="strong"), [Span(f"  {level}")]]  # fmt: skip
    for name in group.names:
        lines.append([Span(f"  {name}")])
    facts = [" ".join(p) for p in parameters(m)]
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
    for name, fact in facts(m):
        lines += _filled(fact, f"  {name:<10}")
    lines += [[Span("")], [Span(f"One {'step' if m.unit.path == 'fma' else 'block'}", "strong")]]
    for n, step in enumerate(steps(m), start=1):
        lines += _filled(step, f"  {n} ")
    lines += [[Span("")], [Span("How we know", "strong")]]
    evidence = m.evidence
    lines += _filled(f"{evidence.level}: {LEVELS[evidence.level]}", "  ")
    for recording in evidence.recordings:
        lines += _filled(f"recorded: {recording}", "  ")
    lines += _filled(f"note: {evidence.note}", "  ") if evidence.note else []
    lines += _sources([m])
    if others := alike(m):
        lines += [[Span("")], *_filled(f"Computed alike on {', '.join(others)}.")]
    return lines


def facts(m: Model) -> list[tuple[str, str]]:
    """What goes in and comes out, and the parameters."""

    def told(type_name: str) -> str:
        words = " in FP32 words, whose low 13 bits are ignored" if type_name in IN_WORDS else ""
        return f"{type_name} ({TYPES[type_name].title}){words}"

    found = [("a, b", told(m.a))] if m.a == m.b else [("a", told(m.a)), ("b", told(m.b))]
    found += [("c, d", told(m.d))] if m.c == m.d else [("c", told(m.c)), ("d", told(m.d))]
    if m.scale:
        found.append(("scales", f"{told(m.scale)}, one for every {m.scale_block} elements of a and of b"))
    documented = m.d != "f64" and not m.instruction.startswith("mfma")
    nan = f"{m.nan:#x}, {'whatever NaN went in' if documented else 'here: what the chip gives is not documented'}"
    return [*found, ("chain", chain(m)), *parameters(m), ("output", OUTPUTS[m.unit.output]), ("NaN", nan)]


def alike(m: Model) -> list[str]:
    """Other chips that have the instruction and compute alike."""
    return [
        other for other in list_chips()
        if other != m.chip
        and any(o.instruction == m.instruction and o.unit == m.unit for o in list_models(other))
    ]  # fmt: skip


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _filled(text: str, label: str = "", style: str = "") -> list[Line]:
    """A paragraph with a label to its left."""
    indent = len(label)
    parts = textwrap.wrap(text, WIDTH - indent, break_on_hyphens=False)
    return [[Span((" " * indent if i else label) + part, style)] for i, part in enumerate(parts)]


# --- as data ----------------------------------------------------------------------------------------------------------
def model_dict(m: Model) -> dict[str, Any]:
    """A record with nothing left out, for JSON."""
    u, e = m.unit, m.evidence
    return {
        "chip": m.chip, "instruction": m.instruction, "k": m.k, "a": m.a, "b": m.b, "c": m.c, "d": m.d,
        "formats": [f.name for f in m.formats], "scale": m.scale or None, "scale_block": m.scale_block or None,
        "unit": {"path": u.path, "length": u.length, "fraction_bits": u.fraction_bits, "floor": u.floor,
                 "output": u.output, "align": u.align, "normalised": u.normalised},
        "chain": chain(m), "steps": steps(m), "nan": f"{m.nan:#x}",
        "evidence": {"level": e.level, "recordings": list(e.recordings), "note": e.note or None,
                     "sources": {key: SOURCES[key] for key in e.sources}},
        "alike_on": alike(m),
    }  # fmt: skip


def chip_dict(chip: str) -> dict[str, Any]:
    """A chip and all its records, for JSON."""
    models = list_models(chip)
    return {**overview(chip), "not_modelled": not_modelled(chip), "models": [model_dict(m) for m in models]}


def overview(chip: str) -> dict[str, Any]:
    """A chip's row of the table, for JSON."""
    models = list_models(chip)
    return {
        "chip": chip, "title": TITLES[chip], "evidence": evidence_counts(models), "fp16": kept(chip, "f16"),
        "fp8": kept(chip, *_FP8), "instructions": [m.instruction for m in models],
    }  # fmt: skip
