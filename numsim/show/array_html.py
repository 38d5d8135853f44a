"""Arrays as HTML tables for notebooks: values, and their codes below them. No script, no colours but the page's own."""

from __future__ import annotations

from html import escape

import numpy as np

from numsim.array import Array
from numsim.codes import decode
from numsim.errors import RangeError

_EDGE = 4  # rows and columns that are shown at each end
_CELL = "text-align:right;padding:.15em .6em;font-family:ui-monospace,Menlo,Consolas,monospace"
_FAINT = "opacity:.6;font-size:85%"


def table(x: Array) -> str:
    """One or two dimensions as a table, of more the text; where there are many numbers, those at the ends.

    >>> from numsim.array import array
    >>> table(array([0.1], "bf16"))[:69]
    '<div style="overflow-x:auto"><table style="border-collapse:collapse">'
    """
    if x.ndim > 2 or not x.size:
        return f"<pre>{escape(repr(x))}</pre>"
    matrix = x.reshape(1, -1) if x.ndim == 1 else x
    rows, columns = (_shown(n) for n in matrix.shape)
    body = "".join(f"<tr>{''.join(_cell(matrix, i, j) for j in columns)}</tr>" for i in rows)
    shape = " x ".join(map(str, x.shape))
    note = f'<div style="{_FAINT}">{escape(str(x.format))}, {shape}: {escape(x.how)}</div>'
    return f'<div style="overflow-x:auto"><table style="border-collapse:collapse">{body}</table>{note}</div>'


def _shown(n: int) -> list[int | None]:
    """Indices; None where some are left out."""
    return list(range(n)) if n <= 2 * _EDGE + 1 else [*range(_EDGE), None, *range(n - _EDGE, n)]


def _cell(x: Array, i: int | None, j: int | None) -> str:
    if i is None or j is None:
        return f'<td style="{_CELL}">...</td>'
    code = int(x.codes[i, j])
    try:
        value = repr(float(decode(np.asarray(x.codes[i, j]), x.format)))
    except RangeError:  # no float64
        value = "-"
    digits = -(-x.format.bits // 4)
    return f'<td style="{_CELL}">{value}<br><span style="{_FAINT}">0x{code:0{digits}x}</span></td>'
