"""Codebooks as text: the card of one, and what it does to a number."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from numsim._version import __version__
from numsim.codebooks import TIES, Codebook
from numsim.show import text
from numsim.show.blocks import _columns, _filled, code_text, element_facts
from numsim.show.numbers import fraction_text, short, signed
from numsim.show.text import Line, Span
from numsim.values import NAN, as_fraction

if TYPE_CHECKING:
    from numsim.explain_codebook import CodebookExplanation

_MOST_LISTED = 32


def card(book: Codebook) -> list[Line]:
    """All about one codebook, its numbers among it where they are few."""
    unused = ", ".join(code_text(c, book) for c in book.unused)
    facts = [
        ("numbers", f"{len(book.order)}, from {short(book.ordered[0])} to {short(book.ordered[-1])}"),
        ("codes", f"{book.codes} of {book.bits} bits" + f"; {unused} decodes and is never given" * bool(unused)),
        ("nearest", ("limits are the library's own" if book.bounds else "limits are the midpoints")
         + f"; of a tie the {TIES[book.ties]}"),
        ("other modes", "up, down, toward-zero, stochastic"),
        ("specials", "no infinity, no NaN, no -0; what lies beyond the ends takes the ends"),
        ("source", book.source),
    ]  # fmt: skip
    lines: list[Line] = [[Span(book.title or book.name.upper(), "strong"), Span(f"  ({book.name}, a codebook)")]]
    for label, fact in facts:
        lines += _filled(f"  {label}", fact, 17)
    return [*lines, [Span("")], *listed(book)] if book.codes <= _MOST_LISTED else lines


def listed(book: Codebook) -> list[Line]:
    """The numbers, increasing, and from where on each is the nearest."""
    takes = ["", *(short(x) for x in book.thresholds)]
    rows = [[f"  {code_text(int(c), book)}", short(book.values[c]), above]
            for c, above in zip(book.order, takes, strict=True)]  # fmt: skip
    return _columns(["  code", "value", "of numbers above"], rows, 1)


def facts(book: Codebook) -> dict[str, Any]:
    """All about a codebook for JSON."""
    return {"title": book.title, "codes": book.codes, "library_limits": book.bounds is not None, **element_facts(book)}


# --- one number -------------------------------------------------------------------------------------------------------
def explanation(e: CodebookExplanation) -> list[Line]:
    """The whole card."""
    name = e.format.title or e.format.name.upper()
    # exactly what was taken; FP32 constants have up to 27 digits
    lines = text._beside(
        [Span(f"{e.text} in {name} is {short(e.value, 30)}", "strong")], f"code {_code(e.code, e)}", 55
    )
    lines += [part for sentence in _story(e) for part in text._wrap(sentence)]
    if e.error is not None:
        percent = "" if e.relative_error is None else f" ({signed(e.relative_error * 100)} %)"
        lines += text._wrap(f"error {signed(e.error)}{percent}; gap to the next number {short(_gap(e))}")
    if options := _options(e):
        lines += text._wrap(f"note: {options}", "faint")
    return lines


def _code(code: int, e: CodebookExplanation) -> str:
    return code_text(code, e.format)


def _gap(e: CodebookExplanation) -> Any:
    return e.format.ulp(e.code)


def _story(e: CodebookExplanation) -> list[str]:
    """What decided."""
    if e.exact == NAN:
        return [f"NaN has no code here: nan={e.policy.nan!r} decides"]
    if e.between is None:
        inside = e.exact.denominator and as_fraction(e.exact) == e.value
        return ["it is in the list, nothing to round" if inside else "beyond the end of the list: the end is taken"]
    low, high = e.between
    values = e.format.values
    between = f"between {_code(low, e)} = {short(values[low])} and {_code(high, e)} = {short(values[high])}"
    went = "up" if e.code == high else "down"
    if e.policy.rounding != "nearest-even":
        return [between, f"{e.policy.rounding}: {went}"]
    assert e.limit is not None
    x = as_fraction(e.exact)
    side = "on it, a tie: the " + TIES[e.format.ties] if x == e.limit else "above it" if x > e.limit else "below it"
    whose = "the library's limit" if e.format.bounds else "halfway"
    return [between, f"{whose} {short(e.limit)}: {side}, so {went}"]


def _options(e: CodebookExplanation) -> str:
    draw = f", random {e.random:#x} of {e.random_bits} bits" * (e.policy.rounding == "stochastic")
    return "" if e.policy.rounding == "nearest-even" else f"rounding={e.policy.rounding}{draw}"


def html(e: CodebookExplanation) -> str:
    """The same for notebooks."""
    from numsim.show.html import _BOX

    lines = escape(text.plain(explanation(e)))
    return f'<div role="figure" aria-label="{lines.splitlines()[0]}"><pre style="{_BOX}">{lines}</pre></div>'


def explanation_dict(e: CodebookExplanation) -> dict[str, Any]:
    """An explanation with nothing cut or rounded, as strings and integers."""

    def number(code: int) -> dict[str, Any]:
        return {"code": code, "hex": _code(code, e), "fraction": fraction_text(e.format.values[code])}

    special = "nan" if e.exact == NAN else "-inf" if e.exact.sign else "inf"
    return {
        "numsim": __version__,
        "expression": e.text,
        "format": e.format.name,
        "rounding": e.policy.rounding,
        "exact": fraction_text(as_fraction(e.exact)) if e.exact.denominator else special,
        "result": number(e.code),
        "between": None if e.between is None else [number(code) for code in e.between],
        "limit": None if e.limit is None else fraction_text(e.limit),
        "draw": e.random if e.policy.rounding == "stochastic" else None,
        "error": None if e.error is None else fraction_text(e.error),
        "story": _story(e),
    }
