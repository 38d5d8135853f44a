"""numsim formats: the tables of number formats, block formats and recipes, or all about one."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
import textwrap
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from numsim.blocks.formats import BlockFormat, get_block_format, list_block_formats
from numsim.blocks.rules import RULES
from numsim.cli import FINE, _output, add_output
from numsim.codebooks import Codebook, get_format, list_codebooks
from numsim.errors import FormatError, InputError
from numsim.errors import short as as_typed
from numsim.formats import Format, list_formats
from numsim.rounding import encode
from numsim.scaling.recipes import ACCUMULATIONS, GEMMS, SCALINGS, Recipe, list_recipes
from numsim.show import blocks, codebooks, text
from numsim.show.numbers import exact_decimal, fraction_text, hex_code, power_of_two, short
from numsim.show.record import code_dict
from numsim.show.text import Line, Span


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "formats",
        description="The number formats, the block formats (elements that share scales) and the recipes (what a "
        "layer's matrix products take in): tables of all named ones, or all about those that are named.",
        examples=[
            "numsim formats",
            "numsim formats e4m3",
            "numsim formats fp16 bf16",
            "numsim formats e6m9        (any eXmY is IEEE-style)",
            "numsim formats binary8p3se (IEEE P3109 draft: any K, P, s or u, e or f)",
            "numsim formats mxfp8       (its edges, and a worked block)",
            "numsim formats te-nvfp4    (a recipe)",
            "numsim formats --json",
        ],
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="fp16, bf16, e4m3, any eXmY, binary8p3se, mxfp8, nf4, bnb_fp4, te-nvfp4, ...",
    )
    add_output(parser, "a folder, or a file .json or .txt, to write to as well")


def run(args: argparse.Namespace) -> int:
    if len(args.names) > 100:
        raise InputError(f"{len(args.names)} names: at most 100 at a time.")
    formats = [named(name) for name in args.names]
    if args.names:
        lines: list[Line] = []
        for format in formats:
            lines += [[Span("")]] * bool(lines)
            lines += _CARDS[type(format)][0](format)
    else:
        lines = [*table(list_formats()), [Span("")], *blocks.table(list_block_formats()), [Span("")], *recipe_table()]
    if args.json or args.out is not None:
        chosen = formats or [*list_formats(), *list_block_formats(), *_recipes()]
        data = _output.to_json([_CARDS[type(f)][1](f) for f in chosen])
    if args.out is not None:
        _output.write_out(args.out, "formats", {"txt": text.plain(lines), "json": data})
    if args.json:
        sys.stdout.write(data + "\n")
    else:
        text.write(lines, sys.stdout, colour=_output.colour(args.plain))
    return FINE


def named(name: str) -> Format | Codebook | BlockFormat | Recipe:
    """The block format (of a codebook: the one that uses it), recipe or format; ``FormatError`` names the near.

    Of a block format and a recipe of one name the format is meant.
    """
    key = name.strip().lower()
    for format in list_block_formats():
        if key == format.name or (isinstance(format.element, Codebook) and format.element.name == key):
            return format
    recipes = {recipe.name: recipe for recipe in list_recipes()}
    if (recipe := recipes.get(key.replace("_", "-"))) is not None:
        return recipe
    try:
        return get_block_format(name)
    except FormatError:
        pass
    try:
        return get_format(name)
    except FormatError:
        books = (book.name for book in list_codebooks())
        known = dict.fromkeys([*(f.name for f in list_block_formats()), *books, *recipes])
        near = difflib.get_close_matches(key, known, n=2, cutoff=0.8)
        if not near:
            raise
    raise FormatError(
        f"unknown format {as_typed(name)}: did you mean {' or '.join(near)}? Example: numsim formats {near[0]}"
    )


def about(x: Fraction | None) -> str:
    """A number in at most nine characters: exact, as a power of two, or with a ~."""
    if x is None:
        return "-"
    if (k := power_of_two(x)) is not None and not -1 <= k <= 20:
        return f"2^{k}"
    decimal = exact_decimal(x)
    if decimal is not None and len(decimal) <= 7:
        return decimal
    head, _, exponent = short(x, 4, powers=None).partition("...")
    return f"~{head}{exponent}"


def _rows(header: list[str], rows: list[list[str]]) -> list[Line]:
    """Columns: the first to the left, all others to the right."""
    cells = [header, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return [
        [Span("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))),
              "strong" if row is header else "")]
        for row in cells
    ]  # fmt: skip


_SPECIAL_WORDS = {"ieee": "inf, NaN", "fn": "NaN", "fnuz": "NaN, no -0", "finite": "none"}


def table(formats: tuple[Format, ...]) -> list[Line]:
    """Which numbers exist, then how finely they lie."""
    ranges = [
        [f.name, str(f.bits), f"{int(f.signed)}+{f.exponent_bits}+{f.fraction_bits}", about(f.max),
         about(f.least_normal), about(f.least_subnormal), _SPECIAL_WORDS[f.specials]]
        for f in formats
    ]  # fmt: skip
    steps = [
        [f.name, str(f.precision), about(f.eps), about(f.unit_roundoff), f"{f.emin}..{f.emax}", f"{f.decades:.1f}",
         about(Fraction(f.integers_up_to)), about(f.adding_one_stalls_at) if f.adding_one_stalls_at else "never"]
        for f in formats
    ]  # fmt: skip
    return [
        *_rows(["format", "bits", "s+e+f", "max", "least normal", "subnormal", "specials"], ranges),
        [Span("")],
        *_rows(["format", "precision", "eps", "roundoff", "exponents", "decades", "integers", "stalls"], steps),
        [Span("")],
        *[[Span(line, "faint")] for line in (
            "s+e+f      bits of sign, exponent and fraction; there are 2^bits codes",
            "subnormal  the least subnormal number; ~ marks numbers that are cut",
            "precision  bits of the significand, with the hidden one",
            "eps        from 1 to the next number; roundoff is half of it",
            "decades    log10 of the largest number / the least above zero",
            "integers   all integers up to there exist",
            "stalls     where 1 + 1 + 1 + ... stops growing; never: it overflows first,",
            "           to infinity or NaN; a format with neither stops at its largest number",
            "All about one format: numsim formats e4m3",
        )],
    ]  # fmt: skip


def card(format: Format) -> list[Line]:
    """All about one format."""
    f = format

    def both(x: Fraction) -> str:
        shown, k = short(x, powers=None), power_of_two(x)
        return shown if k is None or len(shown) < 6 else f"2^{k} = {shown}"

    stall = f.adding_one_stalls_at
    facts = [
        ("fields", f"{int(f.signed)} sign, {f.exponent_bits} exponent, {f.fraction_bits} fraction; bias {f.bias}"),
        ("precision", f"{f.precision} significand bit{'s' * (f.precision > 1)} with the hidden one"),
        ("exponents", f"{f.emin} to {f.emax}" if f.emin <= f.emax else "one, for all are subnormal"),
        ("largest", both(f.max)),
        ("least normal", both(f.least_normal) if f.least_normal <= f.max else "none"),
        ("least subnormal", both(f.least_subnormal) if f.least_subnormal else "none"),
        ("eps", f"{both(f.eps)} (from 1 to the next number)"),
        ("unit roundoff", f"{both(f.unit_roundoff)} (largest relative error)"),
        ("range", f"{f.decades:.1f} decades"),
        ("codes", both(Fraction(f.codes))),
        ("integers", f"all up to {both(Fraction(f.integers_up_to))}"),
        ("1 + 1 + 1 + ...", _stalls(f) if stall in (None, f.max) else f"stalls at {both(stall)}"),
        ("specials", f.specials_in_words),
        ("source", f.source),
    ]  # fmt: skip
    lines: list[Line] = [[Span(f"{f.title}", "strong"), Span(f"  ({f.name}, {f.bits} bits)")]]
    for name, fact in facts:
        for i, part in enumerate(textwrap.wrap(fact, 60)):
            lines.append([Span(f"  {'' if i else name:<16} {part}")])
    lines.append([Span("  codes of note")])
    for name, code in landmarks(f):
        line, bits = [Span(f"    {name:<16} {hex_code(code, f)}  ")], text.bits_line(code, f)
        lines += [[*line, *bits]] if f.bits <= 40 else [line, [Span("      "), *bits]]
    return lines


def _stalls(f: Format) -> str:
    """What stops the sum at the largest number, where all that is below can be counted."""
    beyond = short(Fraction(f.integers_up_to + 1), powers=None)
    if f.infinity_code is None and f.nan_code is None:
        return f"stalls at {short(f.max)}: {beyond} is more, and there is no infinity to overflow to"
    return f"overflows before it stalls: {beyond} is {'infinity' if f.infinity_code is not None else 'NaN'}"


def landmarks(format: Format) -> list[tuple[str, int]]:
    """Codes of note, from zero up to NaN."""
    codes = [("zero", 0 if format.zero else None)]
    codes.append(("least subnormal", 1 if format.least_subnormal else None))
    normals = format.least_normal <= format.max
    codes.append(("least normal", int(encode(format.least_normal, format)) if normals else None))
    codes.append(("one", int(encode(1, format)) if format.holds(Fraction(1)) else None))
    codes.append(("largest", format.max_code))
    codes.append(("infinity", format.infinity_code))
    codes.append(("NaN", format.nan_code))
    return [(name, code) for name, code in codes if code is not None]


def facts(format: Format) -> dict[str, Any]:
    """All about a format for JSON; numbers as exact fractions."""
    f = format
    stall, least_subnormal = f.adding_one_stalls_at, f.least_subnormal
    return {
        "kind": "number", "name": f.name, "title": f.title,
        "bits": f.bits, "signed": f.signed, "exponent_bits": f.exponent_bits,
        "fraction_bits": f.fraction_bits, "bias": f.bias, "specials": f.specials,
        "specials_in_words": f.specials_in_words, "infinities": f.infinities, "subnormals": f.subnormals,
        "zero": f.zero, "precision": f.precision, "emin": f.emin,
        "emax": f.emax, "max": fraction_text(f.max), "least_normal": fraction_text(f.least_normal),
        "least_subnormal": None if least_subnormal is None else fraction_text(least_subnormal),
        "eps": fraction_text(f.eps), "unit_roundoff": fraction_text(f.unit_roundoff), "decades": round(f.decades, 3),
        "codes": f.codes, "integers_up_to": f.integers_up_to,
        "adding_one_stalls_at": None if stall is None else fraction_text(stall), "source": f.source,
        "codes_of_note": {name: code_dict(code, f) for name, code in landmarks(f)},
    }  # fmt: skip


# --- recipes ----------------------------------------------------------------------------------------------------------
def _recipes() -> list[Recipe]:
    """Those that are more than a block format of the same name."""
    return [r for r in list_recipes() if named(r.name) is r]


def recipe_table() -> list[Line]:
    """The recipes and their titles."""
    width = max(len(r.name) for r in _recipes()) + 2
    titles = {r.name: textwrap.wrap(r.title, text.WIDTH - width) for r in _recipes()}
    return [
        [Span("recipe", "strong")],
        *([Span(f"{'' if i else name:<{width}}{x}")] for name, title in titles.items() for i, x in enumerate(title)),
        [Span("")],
        [Span("What a recipe makes of a layer's matrix products: numsim formats te-nvfp4", "faint")],
    ]


def recipe_card(recipe: Recipe) -> list[Line]:
    """All about a recipe: what each factor of the three products becomes, and how their sums are made."""
    r = recipe
    name, title, header, *rows = str(r).splitlines()
    gemms = [r.gemm(name) for name in GEMMS]
    rules = dict.fromkeys(x.format.rule for g in gemms for x in (g.a, g.b) if x is not None)
    facts = [("scaling", f"{r.scaling}: {SCALINGS[r.scaling]}")]
    if r.delayed is None:
        facts += [("rule", f"{rule}: {RULES[rule].what}") for rule in rules]
    else:
        facts += [("settings", ", ".join(f"{k}={v!r}" for k, v in dataclasses.asdict(r.delayed).items()))]
    facts += [("sums", f"{x}: {ACCUMULATIONS[x]}") for x in dict.fromkeys(g.accumulation for g in gemms)]
    facts += [("hardware", _hardware(r)), *([("note", r.note)] if r.note else []), ("source", r.source)]
    lines: list[Line] = [[Span(name, "strong")], *([Span(x)] for x in textwrap.wrap(title, text.WIDTH))]
    lines += [[Span(f"  {header}", "faint")], *([Span(f"  {x}")] for x in rows)]
    for i, (label, fact) in enumerate(facts):
        head = label if i == 0 or facts[i - 1][0] != label else ""
        for j, part in enumerate(textwrap.wrap(fact, 66, break_on_hyphens=False)):
            lines.append([Span(f"  {'' if j else head:<9} {part}")])
    return lines


def _hardware(r: Recipe) -> str:
    if r.least is None:
        return "any: no library asks for a GPU"
    below = "" if r.below is None else f" and below {r.below[0]}.{r.below[1]}"
    return f"NVIDIA GPUs of compute capability {r.least[0]}.{r.least[1]} and higher{below}"


def recipe_facts(recipe: Recipe) -> dict[str, Any]:
    """All about a recipe for JSON."""
    r = recipe

    def operand(x: Any) -> dict[str, Any] | None:
        if x is None:
            return None
        format = x.format
        return {
            "format": format.name,
            "rule": "delayed" if r.delayed is not None else format.rule,
            "rounding": x.rounding,
            "sr_bits": x.sr_bits,
            "transform": x.transform,
        }

    def product(name: str) -> dict[str, Any]:
        gemm = r.gemm(name)
        factors = dict(zip(GEMMS[name], map(operand, (gemm.a, gemm.b)), strict=True))
        return {"factors": factors, "accumulation": gemm.accumulation}

    return {
        "kind": "recipe", "name": r.name, "title": r.title, "scaling": r.scaling,
        "products": {name: product(name) for name in GEMMS},
        "delayed": None if r.delayed is None else dataclasses.asdict(r.delayed),
        "least": r.least, "below": r.below, "note": r.note, "source": r.source,
    }  # fmt: skip


_CARDS: dict[type, tuple[Callable[[Any], list[Line]], Callable[[Any], dict[str, Any]]]] = {
    Format: (card, facts),
    Codebook: (codebooks.card, codebooks.facts),
    BlockFormat: (blocks.card, blocks.facts),
    Recipe: (recipe_card, recipe_facts),
}
