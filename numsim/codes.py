"""Codes and the values that they stand for. Codes are the truth; floats are a view of them."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.codebooks import Codebook, get_format
from numsim.errors import InputError, RangeError, short
from numsim.formats import FP32, FP64, Format
from numsim.host import flushes_subnormals
from numsim.values import NAN, as_fraction, to_rational

Codes = npt.NDArray[np.unsignedinteger[Any]]


def code_dtype(format: Format | Codebook) -> np.dtype[Any]:
    """The smallest unsigned dtype that holds the codes.

    >>> code_dtype(get_format("tf32"))
    dtype('uint32')
    """
    return np.dtype(f"uint{8 * format.code_bytes}")


def check_codes(codes: Any, format: Format | Codebook) -> Codes:
    """Codes as an array of the format's dtype; refuses signed dtypes, floats and codes out of range."""
    if isinstance(format, Codebook):
        return format.check(codes)
    example = f"Example: numsim.from_codes([0x{format.max_code:x}], '{format}')"
    try:
        array = np.asarray(codes)
    except Exception:  # each library has its own
        raise InputError(f"codes {short(codes)}: a regular array of unsigned integers is needed. {example}") from None
    typed = isinstance(codes, (np.ndarray, np.generic))
    if (array.size or array.dtype.kind == "c") and array.dtype.kind != "u" and (typed or array.dtype.kind != "i"):
        raise InputError(f"codes of dtype {array.dtype}: codes are unsigned integers. {example}")
    if array.dtype == code_dtype(format) and format.bits == 8 * array.itemsize:
        return array  # every code of the dtype is one of the format
    if array.size and (int(array.min()) < 0 or int(array.max()) >= format.codes):
        bad = array.min() if array.min() < 0 else array.max()
        raise InputError(
            f"code {int(bad):#x} is out of range: {format} has codes 0 to {format.codes - 1:#x}. {example}"
        )
    return array.astype(code_dtype(format), copy=False)


def check_code(code: Any, format: Format | Codebook) -> int:
    """One code as a Python integer."""
    array = check_codes(code, format)
    if array.ndim:
        raise InputError(
            f"one code is needed, not an array of shape {array.shape}. Example: numsim.exact(0x3c00, 'fp16')"
        )
    return int(array)


# --- one code, in integers --------------------------------------------------------------------------------------------
def exact(code: Any, format: Any) -> Fraction:
    """The exact value of one code.

    Rules: NaN and infinity raise ``RangeError``; -0 gives 0.

    >>> exact(0x3DCD, "bf16")
    Fraction(205, 2048)
    """
    format = get_format(format)
    value = to_rational(check_code(code, format), format)
    if value.denominator == 0:
        raise RangeError(
            f"code {int(code):#x} of {format} is {'NaN' if value == NAN else 'infinity'}: no exact fraction."
        )
    return as_fraction(value)


def neighbours(code: Any, format: Any) -> tuple[int | None, int | None]:
    """The codes of the next number below and the next above; None where there is none.

    Rules: NaN raises; an infinity counts as a neighbour of the largest number; both zeros lie between the two least
    numbers. Of a codebook only the codes that encoding gives are neighbours.

    >>> [hex(c) for c in neighbours(0x3DCD, "bf16")]
    ['0x3dcc', '0x3dce']
    >>> neighbours(0x7E, "e4m3")  # 448: nothing above
    (125, None)
    """
    format = get_format(format)
    code = check_code(code, format)
    if isinstance(format, Codebook):
        return format.neighbours(code)
    if to_rational(code, format) == NAN:
        raise InputError(f"code {code:#x} of {format} is NaN: it has no neighbours.")
    sign, magnitude = (code & format.sign_mask), code & ~format.sign_mask
    least = 1 << format.fraction_bits if format.gap else 1
    if magnitude < least:  # zero, or the least number of a format without zero
        outer = least if least <= format.top_code else None
        return (format.sign_mask | outer if format.signed and outer else None), outer
    outer = magnitude + 1 | sign if magnitude < format.top_code else None
    inner = magnitude - 1 if magnitude > least else 0
    if inner or format.specials != "fnuz":  # from the least negative number to -0, or to +0 where -0 does not exist
        inner |= sign
    return (outer, inner) if sign else (inner, outer)


def ulp(code: Any, format: Any) -> Fraction:
    """Unit in the last place: the weight of the last fraction bit of this code.

    Of zero it is the least number above it, of a codebook's number the gap to the next one away from zero.

    >>> ulp(0x3DCD, "bf16") == Fraction(1, 2**11)
    True
    """
    format = get_format(format)
    code = check_code(code, format)
    if isinstance(format, Codebook):
        return format.ulp(code)
    if to_rational(code, format).denominator == 0:
        raise InputError(f"code {code:#x} of {format} is no finite number: it has no ulp.")
    rank = format.rank(code & ~format.sign_mask)
    if rank == 0:
        return Fraction(format.least)
    exponent = max(rank >> format.fraction_bits, 1) - 1 + format.emin
    shift = exponent - format.fraction_bits
    return Fraction(1 << shift) if shift >= 0 else Fraction(1, 1 << -shift)


# --- arrays -----------------------------------------------------------------------------------------------------------
def decode(codes: Any, format: Any) -> Any:
    """The values of codes, as float64.

    Rules: NaN codes give NaN, infinities give infinities, -0 gives -0.0.
    Parameters: codes, any shape, any unsigned dtype. Returns float64 of that shape.
    Raises ``RangeError`` where a value is no float64 (``exact`` always works), ``InputError`` for codes out of
    range. Cost, a second and core: 2 billion codes of up to 32 bits, 400 million where numba is missing.

    >>> decode([0x3C00, 0xFC00, 0x0001], "fp16")
    array([1.00000000e+00,           -inf, 5.96046448e-08])
    """
    format = get_format(format)
    codes = check_codes(codes, format)
    if isinstance(format, Codebook):
        return format.decode(codes)[()]
    if not format.fits(FP64):
        return np.array([_as_float(c, format) for c in codes.ravel().tolist()]).reshape(codes.shape)[()]
    if kernels.use(codes.size >> 6):  # a look-up takes far less than the rounding that such work is counted in
        from numsim.kernels import codes as fast

        if fast.suits(format):
            return fast.decode(codes, format)[()]
    return (_table(format)[codes] if format.bits <= 16 else _decode(codes, format))[()]


def _as_float(code: int, format: Format) -> float:
    sign, n, d = to_rational(code, format)
    if d == 0:
        return math.nan if n == 0 else (-math.inf if sign else math.inf)
    if n and not FP64.holds(Fraction(n, d)):
        raise RangeError(f"code {code:#x} of {format} is no float64. Example: numsim.exact({code:#x}, '{format}')")
    units = Fraction(n, d) / FP64.least
    if units < 1 << 52:  # subnormal: by its bits, for a CPU that flushes such numbers flushes a quotient too
        value = float(np.uint64(int(units)).view(np.float64))
    else:
        value = n / d
    return -value if sign else value


@lru_cache(maxsize=64)
def _table(format: Format) -> npt.NDArray[np.float64]:
    table = _decode(np.arange(format.codes, dtype=code_dtype(format)), format)
    table.flags.writeable = False
    return table


def _decode(codes: Codes, format: Format) -> npt.NDArray[np.float64]:
    magnitude = codes.astype(np.int64) & ((1 << format.magnitude_bits) - 1)
    for base, unsigned, floats in ((FP64, np.uint64, np.float64), (FP32, np.uint32, np.float32)):
        if _is_cut_off(format, base) and (base == FP64 or not flushes_subnormals()):  # else a conversion would flush
            shift = unsigned(base.fraction_bits - format.fraction_bits)
            sign = (codes.astype(unsigned) & unsigned(format.sign_mask)) << unsigned(base.bits - format.bits)
            with np.errstate(invalid="ignore"):  # signalling NaNs
                values = (sign | magnitude.astype(unsigned) << shift).view(floats).astype(np.float64)
            return np.where(np.isnan(values), np.nan, values)
    rank = magnitude if format.zero else magnitude + (1 << format.fraction_bits)
    rank = np.minimum(rank, format.max_rank)  # infinities and NaN are put in below
    if format.gap:
        rank = np.where(rank < 1 << format.fraction_bits, 0, rank)
    place = np.maximum(rank >> format.fraction_bits, 1) - 1  # exponent above emin
    significand = rank - (place << format.fraction_bits)  # below 2^53: exact as float64
    power = place + (format.emin - format.fraction_bits)
    values = np.ldexp(significand.astype(np.float64), power.astype(np.int32))
    if format.least < FP64.least_normal:  # by their bits: a CPU that flushes subnormal numbers flushes in ldexp too
        shift = np.clip(power + 1074, 0, 52)
        values = np.where(significand >> (52 - shift), values, (significand << shift).view(np.float64))
    if format.infinity_code is not None:
        values = np.where(magnitude == format.infinity_code, np.inf, values)
    negative = (codes & np.uint64(format.sign_mask)) != 0
    if format.specials == "fnuz":
        negative &= (rank > 0) | (magnitude > format.max_code)
    values = np.where(negative, -values, values)
    return np.asarray(np.where(_is_nan(codes, magnitude, format), np.nan, values))


def _is_cut_off(format: Format, base: Format) -> bool:
    """Whether the codes are those of ``base`` without the last fraction bits, as BF16's are of FP32."""
    same = ("exponent_bits", "bias", "signed", "specials", "zero", "infinities", "gap")
    return format.fraction_bits <= base.fraction_bits and all(getattr(format, n) == getattr(base, n) for n in same)


def _is_nan(codes: Codes, magnitude: npt.NDArray[Any], format: Format) -> Any:
    if format.specials == "fnuz":
        return codes == format.nan_code
    return magnitude > format.top_code


def classify(codes: Any, format: Any) -> Any:
    """The class of each code: "zero", "subnormal", "normal", "infinity" or "nan", as an array of strings.

    >>> classify([0x00, 0x01, 0x08, 0x7F], "e4m3").tolist()
    ['zero', 'subnormal', 'normal', 'nan']
    """
    format = get_format(format)
    codes = check_codes(codes, format)
    if isinstance(format, Codebook):
        return np.where(format.decode(codes) == 0, "zero", "normal")[()]
    magnitude = codes.astype(np.uint64) & np.uint64((1 << format.magnitude_bits) - 1)  # unsigned: up to 64 bits
    below = (magnitude < 1 << format.fraction_bits) & format.zero
    infinity = magnitude == format.infinity_code if format.infinity_code is not None else np.zeros(codes.shape, bool)
    return np.select(
        [_is_nan(codes, magnitude, format), infinity, below if format.gap else below & (magnitude == 0), below],
        ["nan", "infinity", "zero", "subnormal"],
        "normal",
    )[()]


def pack(codes: Any, format: Any) -> npt.NDArray[np.uint8]:
    """Codes of a format of 2 to 7 bits side by side in bytes, along the last axis; the first code in the low bits.

    The last axis must fill whole bytes: a multiple of 2 codes (4 bits), 4 codes (2 bits in a byte, 6 bits in three) or
    8 codes (3, 5 and 7 bits, in as many bytes).

    >>> pack([0x1, 0xF], "e2m1")
    array([241], dtype=uint8)
    """
    format = get_format(format)
    group = _group(format)
    codes = check_codes(codes, format)
    if codes.ndim == 0 or codes.shape[-1] % group:
        raise InputError(
            f"codes of shape {codes.shape}: {format.bits}-bit codes pack in groups of {group} along the last axis. "
            f"Example: numsim.pack([0] * {group}, '{format}')"
        )
    words = codes.reshape(*codes.shape[:-1], codes.shape[-1] // group, group).astype(np.uint64)
    word = np.bitwise_or.reduce(words << np.arange(0, group * format.bits, format.bits, dtype=np.uint64), axis=-1)
    size = group * format.bits // 8
    parts = word[..., None] >> np.arange(0, 8 * size, 8, dtype=np.uint64) & np.uint64(0xFF)
    return np.asarray(parts, np.uint8).reshape(*codes.shape[:-1], codes.shape[-1] // group * size)


def unpack(packed: Any, format: Any) -> npt.NDArray[np.uint8]:
    """The codes that ``pack`` put side by side.

    >>> unpack(pack([1, 2, 3, 63], "e3m2"), "e3m2").tolist()
    [1, 2, 3, 63]
    """
    format = get_format(format)
    group = _group(format)
    size = group * format.bits // 8
    example = f"Example: numsim.unpack(numsim.pack([0] * {group}, '{format}'), '{format}')"
    try:
        data = np.asarray(packed)
    except Exception:  # each library has its own
        raise InputError(f"packed data {short(packed)}: a regular array of uint8 is needed. {example}") from None
    if data.dtype != np.uint8 or data.ndim == 0 or data.shape[-1] % size:
        raise InputError(
            f"packed data of dtype {data.dtype}, shape {data.shape}: uint8 with a last axis of a multiple of {size}. "
            f"{example}"
        )
    parts = data.reshape(*data.shape[:-1], data.shape[-1] // size, size).astype(np.uint64)
    word = np.bitwise_or.reduce(parts << np.arange(0, 8 * size, 8, dtype=np.uint64), axis=-1)
    places = np.arange(0, group * format.bits, format.bits, dtype=np.uint64)
    codes = word[..., None] >> places & np.uint64(format.codes - 1)
    return np.asarray(codes, np.uint8).reshape(*data.shape[:-1], data.shape[-1] // size * group)


def _group(format: Format | Codebook) -> int:
    if not 2 <= format.bits <= 7:
        raise InputError(
            f"{format} has {format.bits} bits: codes of 2 to 7 bits are packed. Example: numsim.pack([1, 2], 'e2m1')"
        )
    return 8 // math.gcd(8, format.bits)
