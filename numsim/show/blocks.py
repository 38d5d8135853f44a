"""Block formats as text and for JSON: the tables, a format's card, and what a format does to a few numbers."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from numsim._version import __version__
from numsim.blocks.formats import BlockFormat
from numsim.blocks.rules import RULES
from numsim.codebooks import TIES, Codebook, list_codebooks
from numsim.formats import SPECIALS, UE4M3, Format
from numsim.show.numbers import exact_decimal, fraction_text, short, signed
from numsim.show.record import code_dict
from numsim.show.text import WIDTH, Line, Span

if TYPE_CHECKING:
    from numsim.blocks.explain import Block, BlockExplanation

# for the worked block of a card: amax just below a power of two, and one number far below it
WORKED = ("0.02", "-0.3", "0.75", "1", "-1.6", "2.2", "3.1", "-3.8")
_MOST_LISTED = 16  # values of a codebook


# --- numbers and columns ----------------------------------------------------------------------------------------------
def number(x: float, digits: int = 9) -> str:
    """A float in few characters, cut and never rounded.

    >>> number(0.1015625), number(1 / 3, 4), number(float("nan")), number(-0.0), number(2.0**-127)
    ('0.1015625', '0.3333...', 'NaN', '-0', '2^-127')
    """
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else "inf" if x > 0 else "-inf"
    return "-0" if x == 0 and math.copysign(1, x) < 0 else short(Fraction(x), digits)


def exactly(x: float) -> str:
    """All of a float as text that ``numsim.encode`` reads."""
    if not math.isfinite(x):
        return str(x)
    return "-" * (x == 0 and math.copysign(1, x) < 0) + fraction_text(Fraction(x))


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]], left: int, indent: str = "") -> list[Line]:
    """Columns, the first ``left`` and the last to the left, the others to the right."""
    cells = [header, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    last = len(header) - 1
    lines: list[Line] = []
    for row in cells:
        texts = [c.ljust(w) if i < left or i == last else c.rjust(w)
                 for i, (c, w) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        lines.append([Span(indent + "  ".join(texts).rstrip(), "strong" if row is header else "")])
    return lines


def _wide(lines: list[Line]) -> bool:
    return any(sum(len(span.text) for span in line) > WIDTH for line in lines)


def _filled(label: str, text: str, width: int, style: str = "") -> list[Line]:
    parts = textwrap.wrap(text, WIDTH - width, break_on_hyphens=False)
    return [[Span(f"{'' if i else label:<{width}}{part}", style)] for i, part in enumerate(parts)]


def _plural(n: int, word: str) -> str:
    return f"{n} {word}{'s' * (n != 1)}"


# --- a format's parts in words ----------------------------------------------------------------------------------------
def code_text(code: int, element: Format | Codebook) -> str:
    return f"{code:#0{2 + -(-element.bits // 4)}x}"


def block_words(format: BlockFormat, long: bool = False) -> str:
    """Which elements share a scale."""
    if format.block is None:
        return "the whole tensor" if long else "tensor"
    if format.block == (0,):
        return "a whole row: all elements along one axis" if long else "row"
    sizes = " x ".join(str(n) if n else "whole" for n in format.block)
    if not long:
        return sizes
    one = len(format.block) == 1
    return f"{sizes} elements along one axis" if one else f"tiles of {sizes} elements, of the last two axes"


def bits_words(format: BlockFormat, long: bool = False) -> str:
    size, scale = math.prod(format.block or ()), 8 * format.scale.code_bytes
    each = Fraction(format.bits_per_value)
    if not long:
        return exact if len(exact := exact_decimal(each) or "") <= 7 else f"~{float(each):.3f}"
    more = ", and 32 for the whole tensor" if format.has_tensor_scale else ""
    if format.block is None or not size:
        return f"{format.element.bits}, and {scale} for each {'tensor' if format.block is None else 'row'}"
    return f"{format.element.bits} + {scale}/{size} = {exact_decimal(each)}{more}"


def _element_words(element: Format | Codebook) -> str:
    if isinstance(element, Codebook):
        used = [element.values[c] for c in element.order]
        unused = f"; code {code_text(element.unused[0], element)} is never given" if element.unused else ""
        return (f"{element.name}: {len(used)} numbers from {short(used[0])} to {short(used[-1])}{unused}; no infinity, "
                f"no NaN; of a tie the {TIES[element.ties]}")  # fmt: skip
    least = element.least_subnormal or element.least_normal
    return (
        f"{element.name}: largest {short(element.max)}, least above zero {short(least)}; {SPECIALS[element.specials]}"
    )


def _scale_words(scale: Format) -> str:
    if not scale.zero:
        return f"{scale.name}: powers of two from {short(scale.least)} to {short(scale.max)}, or NaN"
    signs = "" if scale.signed else ", no sign"
    return f"{scale.name}: largest {number(float(scale.max), 5)}, {scale.precision} significand bits{signs}"


# --- the tables -------------------------------------------------------------------------------------------------------
def table(formats: Sequence[BlockFormat]) -> list[Line]:
    """All block formats, then the codebooks."""
    rows = [[f.name, f.element.name, f.scale.name, block_words(f), f.rule, bits_words(f)] for f in formats]
    numbers = [
        [b.name, b.title.partition(" (")[0], str(b.bits), str(len(b.order)), short(b.ordered[0]), short(b.ordered[-1]),
         TIES[b.ties]]
        for b in list_codebooks()
    ]  # fmt: skip
    legend = (
        "scale      the format of the scales; the element is what they scale",
        "block      which elements share a scale; row, tensor: all of it",
        "rule       how the scale comes from a block's largest magnitude, amax",
        "bits/value the share of the scales included, but for rows and tensors",
        "All about one, with a worked block: numsim formats mxfp8",
        'Numbers in one: numsim explain "[0.1, 300, 480, 1]" --format mxfp8',
    )
    return [
        *_columns(["block format", "element", "scale", "block", "rule", "bits/value"], rows, 5),
        [Span("")],
        *_columns(["codebook", "", "bits", "numbers", "least", "largest", "of a tie"], numbers, 2),
        [Span("")],
        *[[Span(line, "faint")] for line in legend],
    ]


def card(format: BlockFormat) -> list[Line]:
    """All about one block format: its parts, its edges and a worked block, both computed."""
    from numsim.blocks.explain import explain_block

    rule, f = RULES[format.rule], format
    tensor = f" x tensor scale (FP32: amax of the tensor / ({UE4M3.max} x {f.element_max:g}))" * f.has_tensor_scale
    facts = [
        ("element", _element_words(f.element)),
        ("scale", _scale_words(f.scale)),
        ("block", block_words(f, long=True)),
        ("value", f"element x scale{tensor}"),
        ("rule", f"{f.rule}: {rule.what}; a NaN among the elements is {rule.nan} when amax is taken"),
        ("bits a value", bits_words(f, long=True)),
        ("source", f.source),
        ("of the rule", rule.source),
    ]
    lines: list[Line] = [[Span(f.title or f.name.upper(), "strong"), Span(f"  ({f.name}, a block format)")]]
    for label, fact in facts:
        lines += _filled(f"  {label}", fact, 17)
    if isinstance(f.element, Codebook) and f.element.codes <= _MOST_LISTED:
        lines += [[Span("")], *_listed(f.element)]
    lines += [[Span("")], *_edges(f), [Span("")], [Span("a block, worked", "strong")]]
    return [*lines, *explanation(explain_block(list(WORKED), f))]


def _listed(book: Codebook) -> list[Line]:
    takes = ["", *(short(x) for x in book.thresholds)]
    rows = [[code_text(int(c), book), short(book.values[c]), above]
            for c, above in zip(book.order, takes, strict=True)]  # fmt: skip
    return _columns(["  code", "value", "of numbers above"], [[f"  {c}", *rest] for c, *rest in rows], 1)


def edge_cases(format: BlockFormat) -> list[tuple[str, Block]]:
    """Blocks at the ends: what stands in them (zeros fill them), and what becomes of it."""
    from numsim.blocks.explain import explain_block

    cases = [("0", ["0"]), ("inf, 1", ["inf", "1"]), ("NaN, 1", ["nan", "1"]),
             ("largest FP32, 1", ["0x1.fffffep127", "1"]), ("2^-149", ["2^-149"])]  # fmt: skip
    found = [(words, explain_block(x, format).blocks[0]) for words, x in cases]
    if format.has_tensor_scale and format.block:  # too small beside another block
        other = ["1", *["0"] * (format.block[-1] - 1)]
        found.append(("2^-20 beside 1", explain_block([*other, "2^-20"], format).blocks[1]))
    return found


def _edges(format: BlockFormat) -> list[Line]:
    rows = [
        [f"  {words}", number(b.scale, 5), code_text(b.scale_code, format.scale), number(b.multiplier, 5),
         ", ".join(number(e.value, 5) for e in b.elements)]
        for words, b in edge_cases(format)
    ]  # fmt: skip
    return _columns(["block of", "scale", "code", "multiplier", "comes back as"], rows, 1)


# --- numbers in a block format ----------------------------------------------------------------------------------------
_FATES = {
    "rounded": "rounded", "saturated": "saturated", "zero": "became zero", "infinite": "became infinite",
    "exact": "exact", "nan": "NaN", "nan lost": "NaN lost",
}  # fmt: skip


def explanation(e: BlockExplanation) -> list[Line]:
    """From amax to the scale, each number, and what the other rules would do."""
    format, count = e.format, len(e.elements)
    counts = [f"{n} {word}" for fate, word in _FATES.items() if (n := sum(x.fate == fate for x in e.elements))]
    title = format.title or format.name.upper()
    lines = [[Span(part, "strong")] for part in
             textwrap.wrap(f"{_plural(count, 'number')} in {title}: {', '.join(counts)}", WIDTH)]  # fmt: skip
    if e.fill:
        lines += _filled("", f"{_plural(e.fill, 'zero')} fill the rest ({block_words(format, long=True)}).", 0)
    for step in e.tensor:
        lines.append(_step(step.what, number(step.value)))
    first = 1
    for n, block in enumerate(e.blocks, start=1):
        if len(e.blocks) > 1:
            last = first + len(block.elements) - 1
            which = f"numbers {first} to {last}" if last > first else f"number {last}"
            lines += [[Span("")], [Span(f"block {n}: {which}", "strong")]]
        lines += _block(block, format)
        first += len(block.elements)
    of_rules = "; of rules: sum of |error| / sum of |number|" * any(len(b.others) > 1 for b in e.blocks)
    lines += _filled("", f"error: (value - number) / number{of_rules}", 0, "faint")
    if e.inexact:
        some = f"{_plural(e.inexact, 'number')} had to be rounded to FP32 first; errors count from there"
        lines += _filled("", f"note: {some}", 0, "faint")
    return lines


def _step(what: str, value: str) -> Line:
    return [Span(f"  {what:<40} {value}")]


def _block(b: Block, format: BlockFormat) -> list[Line]:
    code = code_text(b.scale_code, format.scale)
    amax = _step("amax", number(b.amax))
    if b.largest.text != number(b.amax):
        told = _step("amax", f"{number(b.amax)}  (of {b.largest.text})")
        amax = amax if _wide([told]) else told
    lines = [
        [Span(f"  scale by {b.rule}: {RULES[b.rule].what}")],
        amax,
        *([[Span(f"  ({_own_case(b)})", "faint")]] if not b.steps else []),
        *[_step(s.what, number(s.value)) for s in b.steps],
        _step(f"scale, stored in {format.scale.name}", f"{number(b.scale)} = code {code}"),
        _step("elements are multiplied by", number(b.multiplier)),
        *_elements(b, format),
    ]
    if len(b.others) > 1:
        lines += _others(b)
    return lines


def _own_case(b: Block) -> str:
    """What the rule makes of an amax that it does not compute with."""
    amax = "NaN" if math.isnan(b.amax) else "inf" if b.amax else "0"
    if math.isnan(b.scale):
        what = "the whole block becomes NaN"
    elif b.multiplier == 1:
        what = "nothing is scaled" + ", infinity saturates" * (b.amax > 0)
    else:
        what = "the rule has a fixed scale for it"
    return f"amax {amax} is a case of its own: {what}"


def _elements(b: Block, format: BlockFormat) -> list[Line]:
    """Columns with as many digits as there is room for."""
    runs = [(same[0], len(same)) for _, group in itertools.groupby(b.elements, repr) for same in [list(group)]]
    lines: list[Line] = []
    for digits in (7, 6, 5, 4, 3, 2):
        rows = [
            [f"{n} x {said}" if n > 1 else said, number(x.scaled, digits),
             code_text(x.code, format.element), number(x.element, digits), number(x.value, digits),
             _percent(x.error, x.number), "" if x.fate == "rounded" else _FATES[x.fate].removeprefix("became ")]
            for x, n in runs
            for said in [x.text if len(x.text) <= digits + 6 else number(x.number, digits)]
        ]  # fmt: skip
        lines = _columns(["number", "multiplied", "code", "element", "value", "error", ""], rows, 0, "    ")
        if not _wide(lines):
            break
    return lines


def _percent(error: Fraction | None, number: float) -> str:
    if error is None or (error and not number):
        return "-"
    return f"{signed(error / Fraction(number) * 100)} %" if error else "0"


def _others(b: Block) -> list[Line]:
    """The same block under each rule; the one in force has a star."""
    rows = []
    for o in b.others:
        error = o.error
        rows.append([
            f"{o.rule} {'*' * (o.rule == b.rule)}", number(o.scale, 5), number(o.largest.value, 5),
            str(o.count("saturated")), str(o.count("zero")),
            "-" if error is None else f"{signed(error * 100)} %".lstrip("+"), RULES[o.rule].what,
        ])  # fmt: skip
    head = ["rule", "scale", "amax comes back", "saturated", "zero", "error", ""]
    lines = _columns(head, rows, 1, "    ")
    if _wide(lines):
        lines = _columns([*head[:-2], "error"], [row[:-1] for row in rows], 1, "    ")
    return lines


# --- for JSON ---------------------------------------------------------------------------------------------------------
def facts(format: BlockFormat) -> dict[str, Any]:
    """All about a block format; numbers as exact fractions."""
    from numsim.blocks.explain import explain_block

    f, rule = format, RULES[format.rule]
    return {
        "kind": "block", "name": f.name, "title": f.title, "element": element_facts(f.element), "scale": f.scale.name,
        "block": None if f.block is None else list(f.block), "rule": f.rule, "rule_in_words": rule.what,
        "rule_source": rule.source, "nan_in_amax": rule.nan, "tensor_scale": f.has_tensor_scale,
        "bits_per_value": f.bits_per_value, "source": f.source,
        "edges": [{"of": words, **_block_dict(b, f)} for words, b in edge_cases(f)],
        "worked": explanation_dict(explain_block(list(WORKED), f)),
    }  # fmt: skip


def element_facts(element: Format | Codebook) -> dict[str, Any]:
    most = {"name": element.name, "bits": element.bits, "max": fraction_text(element.max)}
    if isinstance(element, Format):
        return {**most, "kind": "number"}
    return {
        **most, "kind": "codebook", "ties": element.ties, "unused": list(element.unused), "source": element.source,
        "values": [fraction_text(v) for v in element.values],
        "thresholds": [fraction_text(x) for x in element.thresholds],
    }  # fmt: skip


def explanation_dict(e: BlockExplanation) -> dict[str, Any]:
    """An explanation with nothing cut or rounded, as strings and integers."""
    return {
        "numsim": __version__,
        "numbers": e.text,
        "format": e.format.name,
        "rule": e.format.rule,
        "zeros_that_fill": e.fill,
        "rounded_to_fp32": e.inexact,
        "tensor_steps": [{"what": s.what, "value": exactly(s.value)} for s in e.tensor],
        "tensor_scale": exactly(e.tensor_scale),
        "blocks": [{**_block_dict(b, e.format), "rules": [_block_dict(o, e.format) for o in b.others]}
                   for b in e.blocks],
    }  # fmt: skip


def _block_dict(b: Block, format: BlockFormat) -> dict[str, Any]:
    return {
        "rule": b.rule,
        "amax": exactly(b.amax),
        "steps": [{"what": s.what, "value": exactly(s.value)} for s in b.steps],
        "scale": code_dict(b.scale_code, format.scale),
        "multiplier": exactly(b.multiplier),
        "error": None if b.error is None else fraction_text(b.error),
        "elements": [
            {"text": x.text, "number": exactly(x.number), "multiplied": exactly(x.scaled), "code": x.code,
             "hex": code_text(x.code, format.element), "element": exactly(x.element), "value": exactly(x.value),
             "error": None if x.error is None else fraction_text(x.error), "fate": x.fate}
            for x in b.elements
        ],
    }  # fmt: skip
