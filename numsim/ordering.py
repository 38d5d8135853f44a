"""The order of numbers: comparing, sorting, extremes. Nothing is rounded.

Within a format magnitudes are in the order of their codes, so that a signed integer orders its numbers: ``keys``.
Any two numbers are compared as float64 where that holds both, and as fractions where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import Codes, code_dtype
from numsim.errors import InputError
from numsim.formats import FP64, Format
from numsim.host import flushes_subnormals
from numsim.rounding import Policy, convert, encode, round_rational
from numsim.values import NAN, Rational, Values, as_fraction, to_rational

Side = tuple[Codes, Format] | Values
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal,
}  # fmt: skip


# --- one format -------------------------------------------------------------------------------------------------------
def is_negative(codes: Codes, format: Format) -> npt.NDArray[np.bool_]:
    """Whether the sign bit is set; the NaN of the fnuz formats has none."""
    sign = (codes & codes.dtype.type(format.sign_mask)) != 0
    return np.asarray(sign & (codes != format.nan_code) if format.specials == "fnuz" else sign)


def is_nan(codes: Codes, format: Format) -> npt.NDArray[np.bool_]:
    if format.specials == "fnuz":
        return np.asarray(codes == format.nan_code)
    return np.asarray((codes & codes.dtype.type((1 << format.magnitude_bits) - 1)) > format.top_code)


def is_infinite(codes: Codes, format: Format) -> npt.NDArray[np.bool_]:
    if format.infinity_code is None:
        return np.zeros(codes.shape, bool)
    return np.asarray((codes & codes.dtype.type((1 << format.magnitude_bits) - 1)) == format.infinity_code)


def keys(codes: Codes, format: Format) -> npt.NDArray[Any]:
    """Integers in the order of the numbers: +0 is 0, -0 is -1. Those of NaN say nothing.

    >>> keys(np.array([0, 1, 1 << 63, (1 << 63) + 1], np.uint64), FP64).tolist()
    [0, 1, -1, -2]
    """
    return np.asarray(_table(format)[codes]) if format.bits <= 16 else _keys(codes, format)


@lru_cache(maxsize=64)
def _table(format: Format) -> npt.NDArray[np.int32]:
    table = _keys(np.arange(format.codes, dtype=code_dtype(format)), format).astype(np.int32)
    table.flags.writeable = False
    return table


def _keys(codes: Codes, format: Format) -> npt.NDArray[Any]:
    wide = format.magnitude_bits > 62  # beyond int64 in Python's integers
    words: npt.NDArray[Any] = codes.astype(object if wide else np.int64)
    ranks = words & ((1 << format.magnitude_bits) - 1)
    if not format.zero:
        ranks = ranks + (1 << format.fraction_bits)
    if format.gap:
        ranks = np.where(ranks < 1 << format.fraction_bits, 0, ranks)
    return np.asarray(np.where(is_negative(codes, format), -1 - ranks, ranks))


def is_true(codes: Codes, format: Format) -> npt.NDArray[np.bool_]:
    """As Python and NumPy have it: everything but zero, NaN too."""
    places = keys(codes, format)
    return np.asarray(((places != 0) & (places != -1)).astype(bool) | is_nan(codes, format))


def argsort(codes: Codes, format: Format) -> npt.NDArray[np.intp]:
    """Places along the last axis in increasing order: -0 before +0, NaN last, equals as they stood."""
    nan = is_nan(codes, format)
    return np.lexsort((np.where(nan, 0, keys(codes, format)), nan))


def argmax(codes: Codes, format: Format, largest: bool = True) -> npt.NDArray[np.intp]:
    """The place along the last axis of the first NaN, or of the first largest (or least) number; -0 is below +0."""
    order, nan = keys(codes, format), is_nan(codes, format)
    place = order.argmax(axis=-1) if largest else order.argmin(axis=-1)
    return np.asarray(np.where(nan.any(axis=-1), nan.argmax(axis=-1), place))


def dense_ranks(codes: Codes, format: Format) -> npt.NDArray[np.intp]:
    """For each code of a flat array how many different numbers are below it; all NaN are one, -0 and +0 two."""
    order = argsort(codes, format)
    nan = is_nan(codes, format)[order]
    places = np.where(nan, 0, keys(codes, format)[order])
    new = (places[1:] != places[:-1]) | (nan[1:] != nan[:-1])
    ranks = np.empty(codes.size, np.intp)
    ranks[order] = np.concatenate([np.zeros(min(codes.size, 1), np.intp), np.cumsum(new, dtype=np.intp)])
    return ranks


# --- any two ----------------------------------------------------------------------------------------------------------
def compare(name: str, x: Side, y: Side) -> npt.NDArray[np.bool_]:
    """Whether x and y are equal, less, ...: exact. Each is a pair of codes and format, or ``as_values`` of anything.

    Rules: NaN is unequal to everything; -0 equals +0. Raises ``InputError`` for shapes that do not broadcast.

    >>> from numsim.values import as_values
    >>> compare("less", as_values("0.1"), as_values(0.1)), compare("equal", as_values(2**53 + 1), as_values(2.0**53))
    (array(True), array(False))
    """
    pairs: list[Any] = [x, y]
    shapes = [side[0].shape if isinstance(side, tuple) else side.shape for side in pairs]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        raise InputError(f"{name}: shapes {shapes[0]} and {shapes[1]} do not broadcast.") from None
    doubles = [_as_fp64(side) for side in pairs]
    if all(codes is not None for codes in doubles):
        if not flushes_subnormals():
            with np.errstate(invalid="ignore"):  # NaN
                return np.asarray(COMPARISONS[name](*(codes.view(np.float64) for codes in doubles)))
        pairs = [(codes, FP64) for codes in doubles]
    elif not (isinstance(x, tuple) and isinstance(y, tuple) and x[1] == y[1]):
        with np.errstate(invalid="ignore"):
            return np.asarray(COMPARISONS[name](*map(_fractions, pairs))).astype(bool)
    places = [keys(*side) for side in pairs]
    result = COMPARISONS[name](*(np.where(place < 0, place + 1, place) for place in places))
    unordered = is_nan(*pairs[0]) | is_nan(*pairs[1])
    return np.asarray(np.where(unordered, name == "not_equal", result)).astype(bool)


def _as_fp64(side: Side) -> Any:
    """FP64 codes of the very numbers; None where FP64 does not hold them."""
    if isinstance(side, tuple):
        return np.asarray(convert(*side, FP64, Policy())) if side[1].fits(FP64) else None
    if side.floats is not None:
        return np.asarray(encode(side.floats, FP64)).reshape(side.shape)
    codes = np.array([round_rational(x, FP64, Policy()) for x in side], np.uint64)
    if all(_number(x) == _number(to_rational(c, FP64)) for x, c in zip(side, codes.tolist(), strict=True) if x != NAN):
        return codes.reshape(side.shape)
    return None


def _fractions(side: Side) -> npt.NDArray[Any]:
    """Fractions, and floats where they are infinite or NaN: Python compares them exactly."""
    if isinstance(side, tuple):
        numbers = [to_rational(code, side[1]) for code in side[0].ravel().tolist()]
    else:
        numbers = list(side)
    shape = side[0].shape if isinstance(side, tuple) else side.shape
    out = np.empty(len(numbers), object)
    out[:] = [_number(x) for x in numbers]
    return out.reshape(shape)


def _number(x: Rational) -> Any:
    if x.denominator:
        return as_fraction(x)
    return math.nan if not x.numerator else -math.inf if x.sign else math.inf
