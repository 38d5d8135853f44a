"""A long accumulator: float64 numbers added without any rounding, and the one rounding at the end.

The accumulator is a whole number of units of 2^-1074, in 32-bit digits held by int64 words: a number touches three
neighbouring digits, with its sign, and 2^29 numbers fit before a carry has to move on. (After R. Neal, "Fast exact
summation using small and large superaccumulators", 2015, and U. Kulisch's long accumulator.)
"""

from __future__ import annotations

import math

import numpy as np

from numsim.kernels._jit import as_bits, jit, part

DIGITS = 70  # 2^-1074 to 2^1024 are 66; two that a number at the top touches; room for carries
_OFTEN = 1 << 29
_LOW = (1 << 32) - 1
_SIGN = np.uint64(1 << 63)
_MAX, _TINY = 1.7976931348623157e308, 2.0**-1000


@part
def put(digits, bits):  # type: ignore[no-untyped-def]
    """Add the finite float64 that has these bits."""
    field = np.int64(bits >> np.uint64(52)) & 0x7FF
    normal = np.int64(field > 0)
    significand = np.int64(bits & np.uint64((1 << 52) - 1)) | normal << 52
    position = field - normal
    minus = -np.int64(bits >> np.uint64(63))  # all ones, or zero: (x ^ -1) + 1 is -x
    if significand & ((1 << 21) - 1) == 0:  # what is left, as of all numbers but FP64's, lies in two digits
        position += 21
        at, shift = position >> 5, position & 31
        whole = (significand >> 21) << shift
        digits[at] += (whole & _LOW ^ minus) - minus
        digits[at + 1] += (whole >> 32 ^ minus) - minus
        return
    at, shift = position >> 5, position & 31
    low, high = (significand & _LOW) << shift, (significand >> 32) << shift
    digits[at] += (low & _LOW ^ minus) - minus
    digits[at + 1] += ((low >> 32) + (high & _LOW) ^ minus) - minus
    digits[at + 2] += (high >> 32 ^ minus) - minus


@jit
def carry(digits):  # type: ignore[no-untyped-def]
    """Every digit but the last to 0 .. 2^32 - 1: the last one has the sign."""
    over = np.int64(0)
    for i in range(DIGITS - 1):
        digit = digits[i] + over
        digits[i] = digit & _LOW
        over = digit >> 32
    digits[DIGITS - 1] += over


@jit
def take(digits, nearest):  # type: ignore[no-untyped-def]
    """The sum as a float64: the nearest one, or rounded to odd.

    To odd, so that a shorter format's rounding goes as that of the exact sum; sums beyond float64's numbers, or so
    small that only their sign matters, have the largest number or 2^-1000 stand for them. The digits are spent.
    """
    carry(digits)
    negative = digits[DIGITS - 1] < 0
    if negative:
        for i in range(DIGITS):
            digits[i] = -digits[i]
        carry(digits)
    top = DIGITS - 1
    while top > 0 and digits[top] == 0:
        top -= 1
    high = np.uint64(digits[top])
    if high == np.uint64(0):
        return 0.0
    middle = np.uint64(digits[top - 1]) if top > 0 else np.uint64(0)
    low = digits[top - 2] if top > 1 else np.int64(0)
    free = 0
    while high << np.uint64(free + 1) <= np.uint64(_LOW):
        free += 1
    # 64 bits, the first one set, and whether anything follows
    window = (high << np.uint64(32) | middle) << np.uint64(free) | np.uint64(low >> (32 - free))
    sticky = low & ((1 << (32 - free)) - 1) != 0
    for i in range(top - 2):
        sticky = sticky or digits[i] != 0
    exponent = 32 * top - 1074 - 32 - free
    if nearest:  # 62 bits, the last one sticky, are rounded to 53 by the hardware; subnormal sums are exact anyway
        q = np.int64(window >> np.uint64(2)) | np.int64(sticky or window & np.uint64(3) != np.uint64(0))
        value = math.ldexp(float(q), exponent + 2)
    elif exponent + 63 > 1023:
        value = _MAX
    elif exponent + 63 < -1000:  # (a CPU that flushes subnormal numbers takes them for zero)
        value = _TINY
    else:
        q = np.int64(window >> np.uint64(11)) | np.int64(sticky or window & np.uint64(2047) != np.uint64(0))
        value = math.ldexp(float(q), exponent + 11)
    return -value if negative else value


@jit
def exact_sum(x, n, nearest, down, digits, spare, trail):  # type: ignore[no-untyped-def]
    """The sum of x[:n], as ``take`` gives it; ``trail`` gets the running sums, if it has room."""
    digits[:] = 0
    special = 0.0  # infinities and NaN, added
    every, some = _SIGN, np.uint64(0)  # bits that all numbers have, bits that any has: the sign of a zero
    for first in range(0, n, _OFTEN):
        if first:
            carry(digits)
        for i in range(first, min(n, first + _OFTEN)):
            bits = as_bits(x[i])
            every, some = every & bits, some | bits
            if bits & ~_SIGN >= np.uint64(0x7FF << 52):
                special += x[i]
            else:
                put(digits, bits)
            if trail.size:
                spare[:] = digits
                trail[i] = _finish(take(spare, nearest), special, every, some, down)
    return _finish(take(digits, nearest), special, every, some, down)


@jit
def _finish(total, special, every, some, down):  # type: ignore[no-untyped-def]
    if special != 0.0:
        return special
    if total != 0.0:
        return total
    # IEEE 754-2019, 6.3: zeros of one sign keep it; x - x is +0, or -0 when rounding down
    minus = every == _SIGN and some == _SIGN
    return -0.0 if minus or (down and some != np.uint64(0)) else 0.0
