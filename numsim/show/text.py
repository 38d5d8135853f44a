"""Explanations and tables as text in 80 columns: plain, or in colour where a terminal takes it."""

from __future__ import annotations

import os
import textwrap
from itertools import groupby
from typing import IO, TYPE_CHECKING, NamedTuple

from numsim.formats import Format
from numsim.rounding import Policy
from numsim.show.numbers import bit_fields, both_neighbours, digits_for, hex_code, short, signed, value_text
from numsim.show.words import event, headline, reason, story
from numsim.values import as_fraction

if TYPE_CHECKING:
    from numsim.explain import Elsewhere, Explanation, Step

WIDTH = 80
# Okabe and Ito's colours, which colour-blind readers tell apart; the bars between the fields say the same.
COLOURS = {"sign": "#0072B2", "exponent": "#009E73", "fraction": "#D55E00"}
SHOWN_ELSEWHERE = ("fp32", "fp16", "bf16", "e4m3fn", "e5m2")
_REST = 6  # bits shown of those that do not fit


class Span(NamedTuple):
    """A piece of a line; ``style`` is "", "strong", "faint" or a field of a code."""

    text: str
    style: str = ""


Line = list[Span]


def plain(lines: list[Line]) -> str:
    """Lines without colour."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def write(lines: list[Line], file: IO[str], *, colour: bool | None = None) -> None:
    """Print lines; in colour unless ``colour`` is False, NO_COLOR is set or the file is no terminal.

    Terminals of fewer than 80 columns get lines that break between words.
    """
    if (width := columns(file)) < WIDTH:
        lines = [part for line in lines for part in fit(line, width)]
    if colour is False or (colour is None and os.environ.get("NO_COLOR")):
        file.write(plain(lines) + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    styles = {"strong": "bold", "faint": "dim", **{k: f"bold {v}" for k, v in COLOURS.items()}}
    console = Console(file=file, highlight=False, soft_wrap=True, force_terminal=colour)
    if not console.is_terminal:
        file.write(plain(lines) + "\n")
        return
    for line in lines:
        text = Text()
        for span in line:
            text.append(span.text, styles.get(span.style, ""))
        console.print(text, soft_wrap=True)


def columns(file: IO[str]) -> int:
    """How wide a terminal is; 80 for everything else."""
    try:
        return os.get_terminal_size(file.fileno()).columns or WIDTH if file.isatty() else WIDTH
    except (OSError, ValueError, AttributeError):
        return WIDTH


def fit(line: Line, width: int) -> list[Line]:
    """A line broken between words where it is too long; what follows keeps the indentation, or that of the label.

    >>> [plain([part]) for part in fit([Span("  one two three", "faint")], 10)]
    ['  one two', '  three']
    """
    letters = [(c, span.style) for span in line for c in span.text]
    while letters and letters[-1][0] == " ":
        letters.pop()
    text = "".join(c for c, _ in letters)
    label = line[0].text if len(line) > 1 and line[0].text.endswith("  ") else ""
    indent = min(max(len(text) - len(text.lstrip()), len(label)), width // 2)
    parts = []
    while len(text) > width and (at := text.rfind(" ", indent + 1, width + 1)) > indent and text[:at].strip():
        parts.append(letters[: len(text[:at].rstrip())])
        rest = letters[at:]
        while rest[0][0] == " ":
            rest = rest[1:]
        letters = [(" ", "")] * indent + rest
        text = "".join(c for c, _ in letters)
    return [[Span("".join(c for c, _ in run), style) for style, run in groupby(p, lambda c: c[1])]
            for p in (*parts, letters)]  # fmt: skip


def _length(line: Line) -> int:
    return sum(len(span.text) for span in line)


def _beside(left: Line, right: str, column: int = 0, indent: int = 2) -> list[Line]:
    """Right of a line if there is room, else below it."""
    start = max(column, _length(left) + 5)
    if not right:
        return [left]
    if start + len(right) > WIDTH:
        start = max(_length(left) + 2, WIDTH - len(right))
    if start + len(right) <= WIDTH:
        return [[*left, Span(" " * (start - _length(left)) + right)]]
    return [left, [Span(" " * indent + right)]]


def _wrap(text: str, style: str = "", indent: str = "  ") -> list[Line]:
    parts = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [[Span(part, style)] for part in parts]


# --- the parts of an explanation -------------------------------------------------------------------------------------
def bits_line(code: int, format: Format) -> Line:
    line: Line = []
    for field, bits in bit_fields(code, format):
        line += [Span("|", "faint")] * bool(line) + [Span(bits, field)]
    return line


def bits_legend(code: int, format: Format, kind: str) -> str:
    """What the fields of a code say."""
    field = code >> format.fraction_bits & ((1 << format.exponent_bits) - 1)
    power = max(field - format.bias, format.emin)
    exponent = {
        "normal": f"exponent (2^{power})",
        "subnormal": f"exponent (0: 2^{power})",
        "zero": "exponent (0)",
        "infinity": "exponent (all ones: infinity)",
        "nan": "exponent (NaN: the code of -0)" if format.specials == "fnuz" else "exponent (all ones: NaN)",
    }[kind]
    n = format.fraction_bits
    hidden = {"normal": ", 1 hidden", "subnormal": ", no hidden 1"}.get(kind, "")
    fraction = [f"fraction ({n} bit{'s' * (n > 1)}{hidden})"] if n else []
    return "|".join([*["sign"] * format.signed, *[exponent] * (format.exponent_bits > 0), *fraction])


def exact_line(step: Step) -> list[Line]:
    """The exact significand in binary, and what is done with the bits that do not fit."""
    place, why = step.place, reason(step)
    if place is None:
        return _wrap(why)
    significand = [Span("-" * step.exact.sign), Span(place.kept, "fraction")]
    if place.rest:
        significand += [Span(".", "fraction")] * ("." not in place.kept)
        room = WIDTH - len(f"  -{place.kept}|... x 2^{place.exponent}")
        shown = max(1, min(_REST, room))  # fewer beside the widest significands
        rest = place.rest if len(place.rest) <= shown else place.rest[:shown] + "..."
        significand += [Span("|", "faint"), Span(rest)]
        why = f"guard {place.guard}, sticky {place.sticky}: {why}"
    significand.append(Span(f" x 2^{place.exponent}"))
    label = f"  exact {short(as_fraction(step.exact), digits_for(step.format))} = " if step.operation else "  exact "
    if len(label) + _length(significand) > WIDTH:
        return [[Span(label)], *_beside([Span("  "), *significand], why, indent=8)]
    return _beside([Span(label), *significand], why, indent=8)


def error_line(step: Step) -> list[Line]:
    """The error of this rounding, the unit in the last place, and the neighbours of the result."""
    error = _error(step)
    near = [c for c in both_neighbours(step.code, step.format) if c is not None]
    shown = [f"{hex_code(c, step.format)} {value_text(c, step.format)}" for c in near]
    one_line = "neighbours " + ", ".join(shown) if shown else ""
    together = "  " + "; ".join(filter(None, (error, one_line)))
    if len(together) <= WIDTH:
        return [[Span(together)]] if together.strip() else []
    lines: list[Line] = [[Span(f"  {error}")]] if error else []
    if len(one_line) + 2 <= WIDTH:
        return [*lines, [Span(f"  {one_line}")]]
    return [*lines, [Span(f"  neighbours {shown[0]}")], *[[Span(f"             {s}")] for s in shown[1:]]]


def _error(step: Step) -> str:
    ulps, spacing = step.error_ulp, step.spacing
    if ulps is None or spacing is None or step.error is None:
        return ""
    percent = "" if step.relative_error is None else f"{signed(step.relative_error * 100)} %"
    if step.place and step.place.lower > step.format.max:  # no ulp out there
        return f"error {percent}"
    if ulps == 0:
        return f"error 0; ulp {short(spacing, powers=(-3, 20))}"
    shown = signed(ulps)
    if shown[1:] == "0.50" and abs(ulps) * 2 != 1:
        shown = ("just under " if abs(ulps) * 2 < 1 else "just over ") + shown
    return f"error {shown} ulp{f' ({percent})' if percent else ''}; ulp {short(spacing, powers=(-3, 20))}"


def elsewhere_word(other: Elsewhere, e: Explanation) -> str:
    """The result in another format: "exact", its error in per cent, or what became of it."""
    if other.code is None:
        return "no NaN"
    value = value_text(other.code, other.format, 6)
    if value in ("NaN", "infinity", "-infinity"):
        finite = e.true is not None and e.true.denominator
        return value.replace("infinity", "inf") + " (overflow)" * bool(finite and _beyond(e, other.format))
    if other.relative_error is None:
        exact = e.true is not None and e.true.denominator and value in ("0", "-0")
        return "exact" if exact else value
    if other.relative_error == 0:
        return "exact"
    return "0" if value in ("0", "-0") else f"{signed(other.relative_error * 100)} %"


def _beyond(e: Explanation, format: Format) -> bool:
    return e.true is not None and abs(as_fraction(e.true)) > format.max and (format.signed or not e.true.sign)


def elsewhere_line(e: Explanation) -> list[Line]:
    others = {o.format.name: o for o in e.elsewhere}
    items = [f"{o.format.title} {elsewhere_word(o, e)}" for n in SHOWN_ELSEWHERE if (o := others.get(n))]
    lines, line = [], "  elsewhere"
    for item in items:
        gap = "  " if line.endswith("elsewhere") else "   "
        if len(line) + len(gap) + len(item) > WIDTH:
            lines.append([Span(line)])
            line, gap = " " * 11, "  "
        line += gap + item
    return [*lines, [Span(line)]]


def step_line(step: Step) -> list[Line]:
    """A step before the last: what came of it, and its error."""
    name = step.text if len(step.text) <= 30 else step.text[:27] + "..."
    line = f"  {name} -> {value_text(step.code, step.format)}"
    remarks = [event(step)] if event(step) else []
    if step.relative_error:
        remarks.append(f"{signed(step.relative_error * 100)} %")
    elif step.error is None and not remarks and step.exact != step.result:
        remarks.append(reason(step))
    return _wrap(line.strip() + f" ({', '.join(remarks)})" * bool(remarks))


def explanation(e: Explanation) -> list[Line]:
    """The whole card."""
    last, format = e.last, e.format
    lines = _beside([Span(headline(e), "strong")], f"code {hex_code(e.code, format)}, {last.kind}", 55)
    bits = [Span("  "), *bits_line(e.code, format)]
    lines += _beside(bits, bits_legend(e.code, format, last.kind))
    for step in dict.fromkeys(e.steps[:-1]):  # the same operand twice is told once
        same = step.error == 0 or step.exact == step.result
        if step.operation != "neg" and (step.operation or not same):
            lines += step_line(step)
    lines += exact_line(last)
    if sentences := " ".join(story(last)):
        lines += _wrap(sentences)
    lines += error_line(last)
    lines += total_line(e)
    lines += elsewhere_line(e)
    for note in e.notes:
        lines += _wrap(f"note: {note}")
    for options in _options(e):
        lines += _wrap(f"note: {options}", "faint")
    return lines


def _options(e: Explanation) -> list[str]:
    """Options that are not the defaults are named: no hidden arithmetic."""
    used, default = e.policy, Policy()
    names = ("rounding", "overflow", "subnormals", "nan")
    other = [f"{n}={getattr(used, n)}" for n in names if getattr(used, n) != getattr(default, n)]
    other += [f"seed={e.seed}"] * (e.seed is not None)
    return [", ".join(other)] if other else []


def total_line(e: Explanation) -> list[Line]:
    """The error of all roundings together, where there were several."""
    if all(s.error == 0 for s in e.steps[:-1]) or e.true is None or not e.true.denominator:
        return []
    true = ("about " if e.true_irrational else "") + short(as_fraction(e.true), digits_for(e.format))
    percent = "" if e.relative_error is None else f"; error of all roundings {signed(e.relative_error * 100)} %"
    lines = _wrap(f"without any rounding {true}{percent}")
    if e.last.operation in ("add", "sub", "fma") and e.last.error == 0 and e.value != as_fraction(e.true):
        lines += _wrap("This step is exact: what is wrong comes from the roundings before it.")
    return lines
