"""What may stand for a number, made exact before any rounding.

Everything that comes in ends as one of two things: a float32 or float64 array that holds the values exactly, or a flat
list of rationals. A rational is ``(sign, numerator, denominator)`` with sign 0 or 1 and the fraction >= 0, so that -0
exists; 1/0 is infinity and 0/0 is NaN.
"""

from __future__ import annotations

import math
import numbers
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.errors import InputError, NumsimError, short
from numsim.formats import FP32, FP64, Format

if TYPE_CHECKING:
    from numsim.codebooks import Codebook


class Rational(NamedTuple):
    sign: int
    numerator: int
    denominator: int


NAN = Rational(0, 0, 0)


def to_rational(code: int, format: Format | Codebook) -> Rational:
    """What a code stands for, as sign and exact fraction (as told above)."""
    if not isinstance(format, Format):
        return rational(format.values[code])
    magnitude = code & (format.sign_mask - 1) if format.signed else code
    sign = int(code != magnitude)
    if code == format.nan_code or magnitude > format.top_code:
        return NAN
    if magnitude == format.infinity_code:
        return Rational(sign, 1, 0)
    rank = format.rank(magnitude)
    return Rational(sign if rank or format.specials != "fnuz" else 0, *format.ratio(rank))


_EXAMPLE = "Example: numsim.encode([0.1, 1.5], 'fp16')"
# Floating dtypes that float32 holds exactly; ml_dtypes' own types have kind 'V' or 'f' and are known by name.
_SMALL_FLOATS = ("float16", "bfloat16", "float8_", "float6_", "float4_")


def is_whole(x: Any) -> bool:
    """Whether x is an integer (NumPy counts durations among them)."""
    return isinstance(x, (int, np.integer)) and not isinstance(x, (bool, np.bool_, np.timedelta64))


def rational(x: Any) -> Rational:
    """One number, exactly. Decimal strings are read as written: "0.1" is 1/10.

    >>> rational("0.1"), rational(-0.0), rational(float("inf"))  # doctest: +ELLIPSIS
    (Rational(sign=0, numerator=1, denominator=10), Rational(sign=1, numerator=0, denominator=1), ...denominator=0))
    """
    if isinstance(x, str):
        x = _parse(x)
    if isinstance(x, Rational):
        return x
    if isinstance(x, (bool, np.bool_)):
        x = int(x)
    if isinstance(x, Fraction):
        return Rational(int(x < 0), abs(x.numerator), x.denominator)
    if is_whole(x):
        return Rational(int(x < 0), abs(int(x)), 1)
    if isinstance(x, float):  # by its bits: a CPU that flushes subnormal numbers cannot touch them
        return to_rational(struct.unpack("<Q", struct.pack("<d", x))[0], FP64)
    if isinstance(x, np.float32):  # so too
        return to_rational(int(x.view(np.uint32)), FP32)
    if isinstance(x, (np.floating, Decimal)):
        if isinstance(x, Decimal):
            if x.is_finite() and x and abs(x.adjusted()) >= _ENDS:
                raise InputError(
                    f"{short(str(x))}: exponents from {_ENDS} on are not read; every format ends before. {_EXAMPLE}"
                )
            sign, nan, infinite = int(x.is_signed()), x.is_nan(), x.is_infinite()
        else:
            sign, nan, infinite = int(bool(np.signbit(x))), bool(x != x), bool(np.isinf(x))
        if nan:
            return NAN
        if infinite:
            return Rational(sign, 1, 0)
        n, d = x.as_integer_ratio()
        return Rational(sign, abs(int(n)), int(d))
    if isinstance(x, numbers.Complex) and not isinstance(x, numbers.Real):
        raise InputError(f"{short(x)} is complex: round the real and the imaginary part apart. {_EXAMPLE}")
    if type(x).__module__.startswith("ml_dtypes"):
        return rational(np.asarray(x).astype(np.float32)[()])
    if getattr(x, "shape", None) == () and hasattr(x, "__array__"):  # a single number of some other library, or ours
        inner = _numpy(x)[()]
        if type(inner) is not type(x):
            return rational(inner)
    raise InputError(f"{short(x)} ({type(x).__name__}) is no number. {_EXAMPLE}")


_ENDS = 40_000  # 10^39456 is the largest power that a format holds; a number becomes an integer of as many digits
_HEX = re.compile(r"([+-]?)0x([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?\d{1,6}))?", re.IGNORECASE)


def _parse(text: str) -> Any:
    text = text.strip()
    if match := _HEX.fullmatch(text):  # by hand: float.fromhex rounds
        sign, whole, part, power = match.groups()
        exponent = int(power or 0) - 4 * len(part)
        if whole + part and abs(exponent) < 4 * _ENDS:
            n = int(whole + part, 16)
            n, d = (n << exponent, 1) if exponent >= 0 else (n, 1 << -exponent)
            return Rational(int(sign == "-"), n, d)
    else:
        try:
            return Decimal(text)
        except InvalidOperation:
            pass
        try:
            if "/" in text:
                return Fraction(text)
        except (ValueError, ZeroDivisionError):
            pass
    raise InputError(f"{short(text)} is no number: write it like '0.1', '1e-3', '0x1.8p-3' or '1/3'.")


def as_fraction(x: Rational) -> Fraction:
    """A finite rational as a Fraction (the sign of zero is lost)."""
    return Fraction(-x.numerator if x.sign else x.numerator, x.denominator)


@dataclass(frozen=True)
class Values:
    """Exact input: ``floats`` (C order, native float32 or float64) or, where those cannot hold it, ``rationals``."""

    shape: tuple[int, ...]
    floats: npt.NDArray[Any] | None
    rationals: list[Rational] | None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __iter__(self) -> Iterator[Rational]:
        if self.floats is None:
            return iter(self.rationals or ())
        format = FP32 if self.floats.dtype == np.float32 else FP64
        words = self.floats.ravel().view(f"u{self.floats.itemsize}").tolist()
        return (to_rational(word, format) for word in words)


def from_torch(x: Any) -> Any:
    """A torch tensor as a NumPy array of the same numbers (ml_dtypes' types where NumPy has none); else ``x`` itself.

    The tensor may live on a GPU, have a gradient, or be a parameter. Raises ``InputError`` for complex, sparse,
    quantised, packed and meta tensors. torch is not imported: no tensor is without it.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if not isinstance(tensor, type) or not isinstance(x, tensor):
        return x
    t: Any = x
    name = str(t.dtype).removeprefix("torch.")
    what = f"a torch tensor of dtype {name}, layout {str(t.layout).removeprefix('torch.')}, on {t.device}"
    if t.is_complex():
        raise InputError(f"{what}: round the real and the imaginary part apart. {_EXAMPLE}")
    try:
        t = t.detach().cpu().resolve_neg()
        if name.startswith(("bfloat16", "float8_")):
            import ml_dtypes

            bits = t.contiguous().view(
                sys.modules["torch"].uint16 if name == "bfloat16" else sys.modules["torch"].uint8
            )
            return bits.numpy().view(getattr(ml_dtypes, name))
        return t.numpy()
    except (TypeError, RuntimeError, AttributeError):  # (NotImplementedError too)
        raise InputError(
            f"{what}: its numbers cannot be read. Example: numsim.encode(tensor.to_dense(), 'fp16')"
        ) from None


def _numpy(x: Any) -> npt.NDArray[Any]:
    """What another library's object gives for NumPy."""
    x = from_torch(x)
    try:
        return np.asarray(x)
    except NumsimError:  # of an Array
        raise
    except Exception as error:
        raise InputError(
            f"{short(x)} ({type(x).__name__}) gives NumPy no numbers: {short(str(error))}. {_EXAMPLE}"
        ) from None


def _with_arrays(values: Any) -> Any:
    """Nested lists with arrays for the torch tensors in them; None where there are none."""
    if isinstance(values, (list, tuple)):
        inner = [_with_arrays(x) for x in values]
        if all(x is None for x in inner):
            return None
        return [x if new is None else new for x, new in zip(values, inner, strict=True)]
    array = from_torch(values)
    return None if array is values else array


def as_values(values: Any) -> Values:
    """Read Python numbers, ``Fraction``, decimal strings, nested lists of them, or numpy, ml_dtypes and torch arrays.

    Raises ``InputError`` for complex and object arrays, ragged lists and whatever is no number.
    """
    if isinstance(values, np.ndarray) or (isinstance(values, np.generic) and not isinstance(values, (str, bytes))):
        return _from_array(np.asanyarray(values))
    if isinstance(values, (list, tuple)):
        return _from_list(values)
    if not isinstance(values, (numbers.Number, Decimal, str)) and hasattr(values, "__array__"):
        return _from_array(_numpy(values))
    return Values((), None, [rational(values)])


def _from_array(array: npt.NDArray[Any]) -> Values:
    kind, name = array.dtype.kind, array.dtype.name
    if isinstance(array, np.ma.MaskedArray):
        raise InputError("a masked array: what stands under the mask would be rounded too. Example: x.filled(0)")
    array = np.asarray(array)  # subclasses have shapes of their own
    if kind == "c":
        raise InputError(f"array of {name}: round the real and the imaginary part apart. {_EXAMPLE}")
    if kind in "biu" and array.dtype.itemsize <= 4:
        return Values(array.shape, np.ascontiguousarray(array, np.float64), None)
    if kind in "iu":
        if not array.size or (int(array.max()) <= 1 << 53 and int(array.min()) >= -(1 << 53)):
            return Values(array.shape, np.ascontiguousarray(array, np.float64), None)
        return Values(array.shape, None, [rational(x) for x in array.ravel().tolist()])
    if name in ("float32", "float64"):
        return Values(array.shape, np.ascontiguousarray(array, array.dtype.newbyteorder("=")), None)
    if name.startswith(_SMALL_FLOATS):
        return Values(array.shape, np.ascontiguousarray(array.astype(np.float32)), None)
    if kind == "f":  # longdouble
        return Values(array.shape, None, [rational(x) for x in array.ravel()])
    if kind in "US":
        return Values(
            array.shape,
            None,
            [rational(x.decode("ascii", "replace") if kind == "S" else str(x)) for x in array.ravel()],
        )
    raise InputError(f"array of dtype {name}: numbers are needed, as float, integer or ml_dtypes arrays. {_EXAMPLE}")


def _from_list(values: Any) -> Values:
    try:  # object first: np.asarray([2**53 + 1, 0.5]) would round the integer
        leaves = np.array(values, dtype=object)
    except ValueError:
        raise InputError(f"nested lists of unequal lengths are no array. {_EXAMPLE}") from None
    except Exception as error:  # a tensor that torch does not give to NumPy, or another library's object
        readable = _with_arrays(values)
        if readable is None:
            raise InputError(f"{short(values)} gives NumPy no numbers: {short(str(error))}. {_EXAMPLE}") from None
        return _from_list(readable)
    flat = [x[()] if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in leaves.ravel().tolist()]
    if any(isinstance(x, (list, tuple, np.ndarray)) for x in flat):
        raise InputError(f"nested lists of unequal lengths are no array. {_EXAMPLE}")
    if all(type(x) is float or (type(x) is int and -(1 << 53) <= x <= 1 << 53) for x in flat):
        return Values(leaves.shape, np.array(flat, dtype=np.float64).reshape(leaves.shape), None)
    return Values(leaves.shape, None, [rational(x) for x in flat])
