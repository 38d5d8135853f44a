"""Functions that NumPy has under a name and with rules of its own: ``np.sign``, ``np.remainder``, ``np.frexp``, ...

What can be exact is exact; the rest is rounded once, to nearest, even. ``array_protocols.py`` sends them here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import elementwise, operations, ordering, reductions
from numsim.array import Array, array
from numsim.codes import code_dtype, ulp
from numsim.errors import UndefinedError
from numsim.formats import Format
from numsim.operands import operands
from numsim.values import is_whole


def sign(x: Array) -> Array:
    """-1, 0 or 1; both zeros give +0, NaN stays."""
    one = array(1, x.format)
    minus = operations.negative(one) if x.format.signed else one
    kinds = [
        ordering.is_nan(x.codes, x.format),
        ~ordering.is_true(x.codes, x.format),
        ordering.is_negative(x.codes, x.format),
    ]
    codes = np.select(kinds, [x.codes, array(0, x.format).codes, minus.codes], one.codes)
    return Array(codes.astype(x.codes.dtype), x.format, "sign")


def nextafter(x: Any, y: Any) -> Array:
    """The next number from x towards y, which may be a plain number; where they are equal y, as in C."""
    x = x if isinstance(x, Array) else array(x, y.format)
    moved = [elementwise.next_up(x).codes, elementwise.next_down(x).codes]
    here = y.codes if isinstance(y, Array) else x.codes
    codes = np.select([elementwise.less(x, y), elementwise.greater(x, y)], moved, here)
    return _with_nan(codes, elementwise.unordered(x, y), x.format, "nextafter")


def _with_nan(codes: Any, nan: Any, format: Format, how: str) -> Array:
    """Codes, and NaN in some places; refused where the format has none."""
    codes = np.where(nan, array(np.nan, format).codes, codes) if np.any(nan) else codes
    return Array(np.asarray(codes, code_dtype(format)), format, how)


def spacing(x: Array) -> Array:
    """The unit in the last place, with the sign of x (``numsim.ulp``); NaN for infinities.

    Of the largest number too, where NumPy says inf. Rounded where a format lacks subnormal numbers.
    """
    format, word = x.format, x.codes.dtype.type
    odd = ordering.is_nan(x.codes, format) | ordering.is_infinite(x.codes, format)
    magnitude = np.where(odd, 0, x.codes & word((1 << format.magnitude_bits) - 1))
    _, first, place = np.unique(magnitude >> word(format.fraction_bits), return_index=True, return_inverse=True)
    units = array([ulp(int(c), format) for c in magnitude.reshape(-1)[first]], format)
    codes = units.codes[place.reshape(x.shape)]
    if format.signed:
        negative = ordering.is_negative(x.codes, format) & ordering.is_true(x.codes, format)
        codes = np.where(negative, operations.negative(Array(codes, format)).codes, codes)
    return _with_nan(codes, odd, format, f"spacing, rounded to {format}")


def frexp(x: Array) -> tuple[Array, npt.NDArray[np.int32]]:
    """x = f * 2^e with 1/2 <= |f| < 1, exact; zeros, infinities and NaN stay, with e = 0."""
    if x.format.emin > -1 or x.format.max < 1:
        raise UndefinedError(f"np.frexp: {x.format} does not hold all f with 1/2 <= f < 1. Example: numsim.log_b(x)")
    exponents = elementwise.log_b(x, format="fp64").values
    e = np.where(np.isfinite(exponents), exponents + 1, 0).astype(np.int32)
    return Array(elementwise.scale_b(x, -e).codes, x.format, "frexp"), e


def fmod(x: Any, y: Any) -> Array:
    """x - y * trunc(x / y), exact, with the sign of x (C's fmod); NaN for y = 0 and infinite x."""
    x, y = operands("fmod", (x, y), mixed=False)
    format = x.format
    if not format.signed or format.gap:
        lacks = "subnormal numbers" if format.signed else "negative ones"
        raise UndefinedError(f"np.fmod: {format} lacks {lacks}. Example: np.fmod(x.astype('fp32'), y.astype('fp32'))")
    size = elementwise.abs(y)
    rest = elementwise.remainder(elementwise.abs(x), size)  # IEEE 754's: from -y/2 to y/2
    codes = np.where(elementwise.less(rest, 0), operations.add(rest, size).codes, rest.codes)  # exact: below y
    return Array(elementwise.copysign(Array(codes, format), x).codes, format, "fmod, exact")


def remainder(x: Any, y: Any) -> Array:
    """x - y * floor(x / y), rounded once, with the sign of y (NumPy's and Python's %); IEEE 754's is another."""
    x, y = operands("remainder", (x, y), mixed=False)
    rest = fmod(x, y)
    other_side = ordering.is_negative(rest.codes, x.format) != ordering.is_negative(y.codes, x.format)
    codes = np.select(
        [elementwise.equal(rest, 0), other_side & ~ordering.is_nan(rest.codes, x.format)],
        [elementwise.copysign(rest, y).codes, operations.add(rest, y).codes],
        rest.codes,
    )
    return Array(codes, x.format, f"x - y * floor(x / y) rounded once to {x.format}")


def clip(x: Array, a_min: Any = None, a_max: Any = None, out: None = None, *, min: Any = None, max: Any = None) -> Any:
    """Between two bounds, which may be left out; NaN stays."""
    low, high = (a if a is not None else b for a, b in ((a_min, min), (a_max, max)))
    if out is not None:
        raise UndefinedError("np.clip takes no out= on Arrays. Example: x[...] = np.clip(x, 0, 1)")
    result: Any = x.copy() if low is None else np.maximum(x, low)
    return result if high is None else np.minimum(result, high)


def round(x: Array, decimals: int = 0, out: None = None) -> Array:
    """To whole numbers, ties to even; decimal places are not numbers of a binary format."""
    if not is_whole(decimals) or decimals != 0 or out is not None:
        raise UndefinedError("np.round takes no decimals= and no out= on Arrays. Example: np.rint(x)")
    return elementwise.round_to_integral(x)


def norm(x: Array, ord: Any = None, axis: int | None = None, keepdims: bool = False) -> Array:
    """The 2-norm of all elements, or along an axis: ``numsim.norm``."""
    two = ord is None or (isinstance(ord, int) and ord == 2 and (x.ndim == 1 or axis is not None))
    if not two or isinstance(axis, tuple) or keepdims is not False:
        raise UndefinedError("np.linalg.norm of Arrays is the 2-norm along one axis. Example: numsim.norm(x, axis=-1)")
    return reductions.norm(x, axis=axis)
