"""Codes as the float64 numbers that they stand for, by their bits and in vectors: no table, no branch.

A normal code is a float64's exponent and fraction with another bias, so a shift and an addition give the word; below
the least normal number the code counts units, and the product of two such numbers is exact. Infinities and NaN, which
some formats have in places of their own, are chosen last.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.codes import Codes, check_codes, decode
from numsim.formats import FP64, Format
from numsim.kernels._jit import as_bits, as_float, jit
from numsim.kernels._rounding_plan import as_read_only
from numsim.rounding import Policy

_INFINITY, _NAN = np.uint64(0x7FF << 52), np.uint64(0x7FF8 << 48)


class Reader(NamedTuple):
    """A format as numbers of 64 bits."""

    magnitude: int  # mask: all but the sign
    sign: int  # mask
    sign_shift: int
    shift: int  # from the format's fraction to float64's
    base: int  # the difference of the biases, in place
    normal: int  # codes below this count units
    unit: int  # word of the least subnormal; of zero where subnormal numbers are zeros
    max: int
    infinity: int  # the code, or one that no magnitude has
    minus_zero: int  # the code that is NaN instead of -0, or none


def reads(format: Format) -> bool:
    """Whether ``read`` knows this format: codes of up to 32 bits, no number near the ends of float64."""
    if format.gap and format.specials == "fnuz":
        return False  # many codes with a sign bit are +0 there
    if format.fraction_bits > 31:
        return False  # more units than an int32 counts
    return format.bits <= 32 and -1000 < format.emin - format.fraction_bits < 1000 and format.emax < 1000


@lru_cache(maxsize=256)
def reader(format: Format, flush: bool) -> npt.NDArray[np.uint64]:
    """What ``read`` needs; ``flush`` makes zeros of subnormal numbers."""
    none = (1 << 64) - 1
    unit = 0.0 if flush or not format.subnormals else 2.0 ** (format.emin - format.fraction_bits)
    numbers = Reader(
        magnitude=(1 << format.magnitude_bits) - 1,
        sign=format.sign_mask,
        sign_shift=63 - format.magnitude_bits,
        shift=52 - format.fraction_bits,
        base=(FP64.bias - format.bias) << 52,
        normal=1 << format.fraction_bits if format.zero else 0,
        unit=int(np.float64(unit).view(np.uint64)),
        max=format.max_code,
        infinity=none if format.infinity_code is None else format.infinity_code,
        minus_zero=format.sign_mask if format.specials == "fnuz" else none,
    )
    return as_read_only(np.array([n & none for n in numbers], np.uint64))


@jit
def read(codes, out, numbers):  # type: ignore[no-untyped-def]
    r = Reader(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6], numbers[7],
               numbers[8], numbers[9])  # fmt: skip
    unit = as_float(r.unit)
    for j in range(out.size):
        code = np.uint64(codes[j])
        a = code & r.magnitude
        word = as_bits(np.float64(np.int32(a)) * unit) if a < r.normal else (a << r.shift) + r.base
        word = _INFINITY if a == r.infinity else word
        word |= (code & r.sign) << r.sign_shift
        word = _NAN if (a > r.max and a != r.infinity) or code == r.minus_zero else word
        out[j] = as_float(word)


def flushes_inputs(policy: Policy) -> bool:
    return policy.subnormals in ("flush-inputs", "flush")


def operand_values(codes: Codes, format: Format, policy: Policy) -> npt.NDArray[np.float64]:
    """The operands' values; under flush-inputs subnormal ones are zeros of their sign."""
    codes = check_codes(codes, format)
    return values_of(codes, format, policy, np.empty(codes.shape))


def values_of(codes: Codes, format: Format, policy: Policy, out: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The same for codes that have been checked; ``out`` may hold them."""
    flush = flushes_inputs(policy)
    if reads(format):
        read(as_read_only(codes), out.reshape(-1), reader(format, flush))
        return out
    values: npt.NDArray[np.float64] = np.ascontiguousarray(decode(codes, format))
    if flush:
        values = np.where(np.abs(values) < float(format.least_normal), np.copysign(0.0, values), values)
    return values
