"""The order of numbers, from their codes alone: comparing, sorting, extremes. Nothing is rounded, no float is compared.

Within a format magnitudes are in the order of their codes, so that a signed integer orders its numbers: ``keys``.
Numbers of different formats are compared as FP64 codes where those hold them, and as fractions where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import Codes
from numsim.errors import InputError
from numsim.formats import FP64, Format
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


def keys(codes: Codes, format: Format) -> npt.NDArray[Any]:
    """Integers in the order of the numbers: +0 is 0, -0 is -1. Those of NaN say nothing.

    >>> keys(np.array([0, 1, 1 << 63, (1 << 63) + 1], np.uint64), FP64).tolist()
    [0, 1, -1, -2]
    """
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
    return np.lexsort((keys(codes, format), is_nan(codes, format)))


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


def choose(x: Codes, y: Codes, format: Format, largest: bool, skip_nan: bool) -> Codes:
    """The larger or the smaller of each pair, as it stands; of NaN and a number NaN, or with ``skip_nan`` the number.

    IEEE 754-2019, 9.6: minimum and maximum, minimumNumber and maximumNumber; -0 is below +0.
    """
    first, second = keys(x, format), keys(y, format)
    take_x = (first >= second if largest else first <= second).astype(bool)
    x_nan, y_nan = is_nan(x, format), is_nan(y, format)
    take_x = np.where(y_nan, ~x_nan | take_x, take_x & ~x_nan) if skip_nan else np.where(y_nan, x_nan, take_x | x_nan)
    return np.where(take_x, x, y)


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
    formats = {side[1] for side in pairs if isinstance(side, tuple)}
    if len(formats) > 1 or not all(isinstance(side, tuple) for side in pairs):
        doubles = [_as_fp64(side) for side in pairs]
        if any(codes is None for codes in doubles):
            with np.errstate(invalid="ignore"):  # NaN
                return np.asarray(COMPARISONS[name](*map(_fractions, pairs))).astype(bool)
        pairs = [(codes, FP64) for codes in doubles]
    places = [keys(*side) for side in pairs]
    result = COMPARISONS[name](*(np.where(place < 0, place + 1, place) for place in places))
    unordered = is_nan(*pairs[0]) | is_nan(*pairs[1])
    return np.asarray(np.where(unordered, name == "not_equal", result)).astype(bool)


def _as_fp64(side: Side) -> Codes | None:
    """FP64 codes of the very numbers; None where FP64 does not hold them."""
    if isinstance(side, tuple):
        return convert(*side, FP64, Policy()) if side[1].fits(FP64) else None
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
