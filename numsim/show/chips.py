"""The models of tensor cores in words, all from the records: groups of instructions, steps of a block, legends.

``chips_text`` makes tables and cards of them, ``chips_page`` web pages, ``chips_record`` JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from numsim.tensorcore.chips import TITLES
from numsim.tensorcore.models import IN_WORDS, OUTPUTS, PATHS, TYPES, Model
from numsim.tensorcore.names import list_chips, list_models

LEVELS = {
    "validated": "numsim's tests reproduce recorded results of this chip bit for bit",
    "single-source": "others measured it; no results of this chip are public",
    "unverified": "inferred from other chips or instructions, or sources disagree",
}
_OPEN = "a note tells what these leave open, such as chains of blocks or c other than 0"
_WORDS = {
    "K": "products of one instruction",
    "block": "what is added at once; the result goes into the next block as its c",
    "L": "most products of a block",
    "E": "the exponent that all terms of a block are aligned to: the largest among them",
    "E0": "the least that E can be",
    "F": "bits that a term keeps below 2^E; what is below 2^(E-F) is cut, towards zero",
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

_NAMES = {
    "nvidia": "A and B stand for the types. Of a shape only K matters: any M and N is understood, and PTX's full "
    "spelling.",
    "amd": "Of a shape only K matters: any M and N is understood, and the assembler's spelling, v_mfma_...",
}


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
        if len(pairs) == len(types) ** 2 > 1:
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
            b = "A" if all(x == y for x, y in pairs) else "B"
            name = name.replace(f".{m.d}.{m.a}.{m.b}", f".{m.d}.A.{b}")
        if len(shapes) == 1:
            return [name]
        return [name.replace(shapes[0], "SHAPE"), f"SHAPE: {', '.join(shapes)}"]

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """L, F and E0; of L the most where an instruction does not fill a block."""
        return parameters(min(self.models, key=lambda m: m.k))

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
        rows.append(("L", f"up to {unit.length}" if m.k < unit.length else str(unit.length)))
    if unit.fraction_bits:
        rows.append(("F", str(unit.fraction_bits)))
    if unit.floor:
        rows.append(("E0", str(unit.floor)))
    return rows


def steps(m: Model) -> list[str]:
    """What one block does, in order."""
    unit = m.unit
    length, cut = min(m.k, unit.length), f"a multiple of 2^(E-{unit.fraction_bits})"
    end = f"the exact sum is {OUTPUTS[unit.output]}"
    if unit.path == "block":
        scaled = ", moved by the powers of two that are the scales" if m.scale else ""
        return [
            f"{length} exact products{scaled}; none is normalised, and zeros do not count",
            f"E is the largest exponent of the products and c, at least {unit.floor}",
            f"every product and c is cut, towards zero, to {cut}",
            end,
        ]
    if unit.path == "fp8-as-fp16":
        return [
            "FP8 becomes FP16, exactly",
            f"the {m.k // 2} products with k mod 4 in {{0, 1}} are added from zero, in a block of the FP16 unit: cut, "
            f"towards zero, to multiples of 2^(E-{unit.fraction_bits}) with E the largest exponent, at least "
            f"{unit.floor}; {end}",
            f"the {m.k // 2} products with k mod 4 in {{2, 3}} are added to that, in a second block",
            f"c is added last, rounded to the nearest {TYPES[m.d].title}",
        ]
    if unit.path == "groups":
        return [
            f"{m.k // 16} groups of 16 products, each added exactly, times its scales of a and of b",
            f"E is the largest exponent of the groups' scales and c, at least {unit.floor}",
            f"every group and c is cut, towards zero, to {cut}",
            end,
        ]
    if unit.path == "exact":
        return [f"{length} exact products", "they and c are added exactly: nothing is aligned, nothing is cut", end]
    if unit.path == "pairwise":
        return [
            "subnormal numbers and -0 among a, b and the instruction's c count as +0",
            f"{length} products p, each {OUTPUTS[unit.output]}",
            f"neighbours are added, every sum rounded in the same way: {_pairs([f'p{k}' for k in range(length)])}",
            "c is added last, rounded in the same way",
            "wherever a rounded number is below 2^-126, a zero of its sign takes its place",
        ]
    if unit.path in ("cdna3", "cdna3-fp8"):
        return _cdna3_steps(m, length, cut)
    return [f"{PATHS[unit.path]}: the exact product is added to the sum so far", end]


def _pairs(words: list[str]) -> str:
    while len(words) > 1:
        words = [f"({x} + {y})" for x, y in zip(words[::2], words[1::2], strict=True)]
    return words[0][1:-1]


def _cdna3_steps(m: Model, length: int, cut: str) -> list[str]:
    """As ``tensorcore.cdna.cdna3`` computes."""
    added = f"each is cut, towards zero, to {cut}, and they are added exactly"
    found = [f"{length} exact products; none is normalised, zeros do not count, one of 2^128 and more is infinite"]
    drop = ""
    if m.unit.path == "cdna3":
        found.append(f"E is the largest exponent of the products, c aside; {added}")
    else:
        found += [
            f"products of even and of odd k are summed apart, with an E of their own, the largest exponent: {added}",
            f"E is the larger of both; each of the two sums is rounded down to {cut}, and they are added",
        ]
        drop = f"; a c whose exponent is below E - {m.unit.fraction_bits + 1} is dropped"
    return [
        *found,
        f"then E is raised to c's exponent, if that is larger (a zero c has -126): the sum is rounded down to a "
        f"multiple of 2^(E-32), c to {cut}, and they are added{drop}",
        "what comes out is rounded down to 31 bits behind its leading bit, none below 2^-157; down is towards minus "
        "infinity, for negative numbers too",
        f"that is {OUTPUTS[m.unit.output]}",
    ]


def not_modelled(chip: str) -> str:
    return f"Not modelled: {_NOT_MODELLED[_maker(chip)]}; {_BOTH}."


def names(chip: str) -> str:
    """How the names on a card are meant."""
    return _NAMES[_maker(chip)]


def _maker(chip: str) -> str:
    return "amd" if chip.startswith("mi") else "nvidia"


def typical(chip: str, *types: str) -> Model | None:
    """The instruction for two operands of one of these types and FP32 results; the first that a chip's table has."""
    found = (m for m in list_models(chip) if m.a == m.b and m.a in types and m.d == "f32" and not m.scale)
    return next(found, None)


def generation(chip: str) -> str:
    """Such as "Volta"."""
    return re.sub(r".*\((\w+).*", r"\1", TITLES[chip])


def evidence_counts(models: Sequence[Model]) -> dict[str, int]:
    counts = Counter(m.evidence.level for m in models)
    return {level: counts[level] for level in LEVELS}  # type: ignore[index]


def kept(chip: str, *types: str) -> str:
    """Products of a block x bits kept; "-" where a chip has no such instruction."""
    m = typical(chip, *types)
    return (
        "-" if m is None else f"{m.unit.length}x{m.unit.fraction_bits}" if m.unit.fraction_bits else f"{m.unit.length}"
    )


FP8 = ("e4m3", "fp8")
COLUMNS = ("chip", "generation", "count", "validated", "single", "unverified", "FP16", "FP8")


def rows() -> list[tuple[str, ...]]:
    """The table of chips."""
    table = []
    for chip in list_chips():
        counts = evidence_counts(list_models(chip))
        made = TITLES[chip].rpartition("(")[2].rstrip(")").replace(",", "")
        numbers = [str(n) if n else "-" for n in counts.values()]
        table.append((chip, made, str(sum(counts.values())), *numbers, kept(chip, "f16"), kept(chip, *FP8)))
    return table


def findings() -> list[str]:
    """What the table shows, in sentences."""
    told = []
    for name, types in (("FP16", ("f16",)), ("FP8", FP8)):
        by_bits: dict[int, list[str]] = {}
        for chip in list_chips():
            if (m := typical(chip, *types)) and m.unit.fraction_bits:
                by_bits.setdefault(m.unit.fraction_bits, []).append(chip)
        told += [f"{name} sums keep {bits} bits on {', '.join(by_bits[bits])}." for bits in sorted(by_bits)]
    return told


TABLE_LEGEND = (
    ("count", "instructions, every shape and pair of types"),
    ("validated", f"{LEVELS['validated']}; on a card {_OPEN}"),
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
    levels = {**LEVELS, "validated": f"{LEVELS['validated']}; {_OPEN}"}
    return found + [(level, text) for level, text in levels.items() if any(m.evidence.level == level for m in models)]


def summary(models: Sequence[Model]) -> str:
    """Such as "39 instructions: 12 validated, 19 single-source, 8 unverified"."""
    counts = ", ".join(f"{n} {level}" for level, n in evidence_counts(models).items() if n)
    return f"{len(models)} instruction{'s' * (len(models) > 1)}: {counts}"


def facts(m: Model) -> list[tuple[str, str]]:
    """What goes in and comes out, and the parameters."""

    def told(type_name: str) -> str:
        words = " in FP32 words, whose low 13 bits are ignored" if type_name in IN_WORDS else ""
        return f"{type_name} ({TYPES[type_name].title}){words}"

    found = [("a, b", told(m.a))] if m.a == m.b else [("a", told(m.a)), ("b", told(m.b))]
    found += [("c, d", told(m.d))] if m.c == m.d else [("c", told(m.c)), ("d", told(m.d))]
    if m.scale:
        found.append(("scales", f"{told(m.scale)}, one for every {m.scale_block} elements of a and of b"))
    nan = f"{m.nan:#x}, {'whatever NaN went in' if m.nan_documented else 'here: what the chip gives is not documented'}"
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
