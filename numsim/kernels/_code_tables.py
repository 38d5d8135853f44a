"""Tables over codes: what all of them give, worked out once, then looked up.

A table has a place for every number of the codes' dtype, codes of the format or not: whatever the arrays hold, nothing
is read beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import Codes, code_dtype
from numsim.formats import Format
from numsim.kernels import _pool
from numsim.kernels._jit import jit
from numsim.kernels._rounding_plan import as_read_only

MANY = 1 << 14  # codes from which on a table of 2^16 pays


@jit
def one_code(table, a, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = table[a[i]]


@jit
def two_codes(table, a, b, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = table[np.uint16(np.uint16(np.uint16(a[i]) << np.uint16(8)) | np.uint16(b[i]))]


def make(formats: tuple[Format, ...], results: Callable[..., npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The table of ``results(codes, ...)``, called once with all codes of a format of up to 16 bits, or with all pairs
    of codes of two formats of up to 8 bits."""
    codes = [np.arange(f.codes, dtype=code_dtype(f)) for f in formats]
    places = [1 << 8 * f.code_bytes for f in formats]
    given = np.stack(np.meshgrid(*codes, indexing="ij"))
    found = np.asarray(results(*(x.reshape(-1) for x in given)))
    table = np.zeros(places, found.dtype)
    table[tuple(slice(f.codes) for f in formats)] = found.reshape(given.shape[1:])
    return as_read_only(table)


def look_up(table: npt.NDArray[Any], operands: list[Codes]) -> npt.NDArray[Any]:
    """What stands in the table for flat arrays of codes."""
    inputs, out = [as_read_only(x) for x in operands], np.empty(operands[0].size, table.dtype)
    kernel = one_code if len(operands) == 1 else two_codes
    _pool.over_chunks(out.size, lambda i, j: kernel(table, *(x[i:j] for x in inputs), out[i:j]))
    return out
