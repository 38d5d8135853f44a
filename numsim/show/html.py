"""Explanations as HTML for notebooks: inline CSS only, everything escaped, no script, nothing loaded from elsewhere.

Colours come from the page (``currentColor``), so that light and dark themes both read well; the fields of the code use
tones of Okabe and Ito's blue, bluish green and vermillion with about equal contrast on white and on black, and the bars
between the fields say the same without colour.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from numsim.formats import Format
from numsim.show import text
from numsim.show.numbers import bit_fields
from numsim.show.words import headline, sentence

if TYPE_CHECKING:
    from numsim.explain import Explanation

_BOX = "font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.45;margin:.5em 0;overflow-x:auto"
_FIELD = {"sign": "#1f82c8", "exponent": "#008a62", "fraction": "#d05300"}


def _bit_titles(code: int, format: Format) -> list[str]:
    """What each bit is worth, left to right."""
    titles = ["sign: 1 means minus"] * format.signed
    titles += [f"exponent bit, worth {1 << i}" for i in range(format.exponent_bits - 1, -1, -1)]
    magnitude = code & ~format.sign_mask
    finite = magnitude <= format.max_code and not (format.specials == "fnuz" and code == format.nan_code)
    field = magnitude >> format.fraction_bits
    power = max(field - format.bias, format.emin)
    for i in range(1, format.fraction_bits + 1):
        titles.append(f"fraction bit, worth 2^{power - i}" if finite else "fraction bit of infinity or NaN")
    return titles


def bits(code: int, format: Format) -> str:
    """The code as coloured bits with bars between the fields; each bit says its weight."""
    titles = iter(_bit_titles(code, format))
    groups = []
    for field, digits in bit_fields(code, format):
        spans = "".join(f'<span title="{escape(next(titles))}">{b}</span>' for b in digits)
        groups.append(f'<span style="color:{_FIELD[field]};font-weight:bold">{spans}</span>')
    return '<span style="opacity:.6">|</span>'.join(groups)


def explanation(e: Explanation) -> str:
    """The card of ``show.text``, with the bits in colour and their weights on hovering."""
    code = text.bits_line(e.code, e.format)
    rows = []
    for line in text.explanation(e):
        if line[1 : 1 + len(code)] == code:  # the line of the bits, which are richer here
            rest = "".join(_span(span) for span in line[1 + len(code) :])
            rows.append(f"{_span(line[0])}{bits(e.code, e.format)}{rest}")
        else:
            rows.append("".join(_span(span) for span in line))
    body = "\n".join(rows)
    return f'<div role="figure" aria-label="{escape(sentence(e))}"><pre style="{_BOX}">{body}</pre></div>'


def _span(span: text.Span) -> str:
    style = {
        "strong": "font-weight:bold",
        "faint": "opacity:.6",
        **{k: f"color:{v};font-weight:bold" for k, v in _FIELD.items()},
    }.get(span.style, "")
    return f'<span style="{style}">{escape(span.text)}</span>' if style else escape(span.text)


def page(e: Explanation) -> str:
    """A whole page, light or dark as the reader's system is."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(headline(e))}</title></head>\n<body>{explanation(e)}</body></html>\n"
    )
