"""What may be compared bit by bit: codes, floats by their bits, and numbers that have to be ones of a format."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import Array
from numsim.codebooks import Codebook
from numsim.codes import Codes, check_codes, decode
from numsim.errors import FormatError, InputError, short
from numsim.formats import FP64, Format, get_format
from numsim.rounding import Policy, encode, encode_values
from numsim.values import NAN, Rational, Values, as_values, from_torch, is_whole, to_rational

ARRAY, INTEGERS = "numsim Array", "Python integers"
EXAMPLE = "Example: assert_bits_equal(actual, expected, 'e4m3')"
LARGEST = 1 << 31  # numbers in one comparison


@dataclass(frozen=True)
class Numbers:
    """Codes, flat. Where a value is no number of the format ``off`` is True, and ``values`` says what it is."""

    codes: Codes
    off: npt.NDArray[np.bool_] | None = None
    values: Values | None = None

    def rational(self, i: int, format: Format | Codebook) -> Rational:
        if self.values is None or self.off is None or not self.off[i]:
            return to_rational(int(self.codes[i]), format)
        if self.values.rationals is not None:
            return self.values.rationals[i]
        assert self.values.floats is not None
        (x,) = Values((1,), self.values.floats.reshape(-1)[i : i + 1], None)
        return x


@dataclass(frozen=True)
class Side:
    """One side of a comparison as it was given."""

    name: str
    kind: str  # "codes" of whatever format; "bits" of a format of their own; "values"
    what: str  # for people
    data: Any
    format: Format | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def read(self, format: Format | Codebook) -> Numbers:
        """As codes of a format."""
        if self.kind == "values" or (self.kind == "bits" and self.format != format):
            return _as_numbers(self.data if self.kind == "values" else as_values(self.data), format)
        codes = _words(self.data) if self.kind == "bits" else self.data
        return Numbers(check_codes(codes, format).reshape(-1))


def look_at(x: Any, name: str, format: Format | Codebook | None) -> Side:
    """What one side is. Python integers are codes where a format is asked for, else values."""
    side = _look_at(x, name, format)
    if math.prod(side.shape) > LARGEST:
        raise InputError(f"{name} has shape {side.shape}: more than 2^31 numbers. Compare parts: actual[i:j]")
    return side


def _look_at(x: Any, name: str, format: Format | Codebook | None) -> Side:
    if isinstance(x, Array):
        return Side(name, "bits", ARRAY, x.codes, x.format)
    if type(x).__module__.partition(".")[0] == "torch":
        return _typed(from_torch(x), name, short(getattr(x, "dtype", type(x).__name__)))
    if isinstance(x, (np.ndarray, np.generic)):
        return _typed(x, name, f"numpy {x.dtype.name}")
    if not isinstance(x, (list, tuple)) and hasattr(x, "__array__"):
        try:
            array = np.asarray(x)
        except Exception as error:  # each library has its own
            raise InputError(f"{name}={short(x)} gives NumPy no array: {short(str(error))}. "
                             "Example: numsim.array([0.5], 'fp16')") from None  # fmt: skip
        return _typed(from_torch(array), name, type(x).__name__)
    values = as_values(x)
    whole = [is_whole(leaf) for leaf in _leaves(x)] if format is not None else []
    if format is None or not any(whole):
        return Side(name, "values", "Python numbers", values)
    if not all(whole):
        raise InputError(
            f"{name}={short(x)}: whole numbers, which are codes of {format}, and others, which are values, are mixed. "
            f"Write 1.0 for the value; or round first: numsim.array(x, '{format}')"
        )
    return Side(name, "codes", INTEGERS, check_codes(x, format))


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, (list, tuple)):
        for inner in x:
            yield from _leaves(inner)
    else:
        yield x


def _typed(array: Any, name: str, what: str) -> Side:
    """A NumPy array or scalar, by its dtype."""
    if isinstance(array, np.ma.MaskedArray):
        raise InputError(f"{name} is a masked array: what stands under the mask would count. Example: x.filled(0)")
    array = np.asarray(array)
    if array.dtype.kind == "u":
        return Side(name, "codes", what, array)
    if array.dtype.kind in "ib":
        raise InputError(f"{name} is {what}: codes are unsigned integers. Example: x.view(numpy.uint8)")
    try:
        if array.dtype.kind not in "fV" or array.dtype.fields:
            raise FormatError
        return Side(name, "bits", what, array, get_format(array.dtype))
    except FormatError:
        raise InputError(
            f"{name} is {what}: compared are floats of a format that numsim knows, Arrays, and codes. {EXAMPLE}"
        ) from None


def _words(floats: npt.NDArray[Any]) -> Codes:
    """The same memory as unsigned integers of this machine's byte order."""
    if floats.dtype.kind == "u":
        return floats
    words = floats.view(np.dtype(f"u{floats.itemsize}").newbyteorder(floats.dtype.byteorder))
    native: Codes = words.astype(words.dtype.newbyteorder("="), copy=False)
    return native


def _as_numbers(values: Values, format: Format | Codebook) -> Numbers:
    """Values as codes of a format; nothing is rounded: what is no number of the format is marked."""
    if values.floats is None or not format.fits(FP64):
        codes = encode_values(values, format, Policy(nan="zero"), None, None)
        same = (_same(x, to_rational(c, format)) for x, c in zip(values, codes.tolist(), strict=True))
        return Numbers(codes, ~np.fromiter(same, np.bool_, codes.size), values)
    floats = values.floats.reshape(-1)
    codes = np.asarray(encode(floats, format, nan="zero"))
    return Numbers(codes, encode(floats, FP64) != encode(decode(codes, format), FP64), values)


def _same(x: Rational, y: Rational) -> bool:
    if x == NAN or y == NAN:
        return x == y
    return x.sign == y.sign and x.numerator * y.denominator == y.numerator * x.denominator
