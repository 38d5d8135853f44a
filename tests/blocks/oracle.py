"""Block formats once more, in Fractions and Python floats that hold FP32 numbers: shares no code with numsim.

Written from the description of the formats (OCP MX 1.0, Transformer Engine, torchao, bitsandbytes), one number at a
time. Finite numbers are Fractions inside, and every FP32 operation is: exact result, then one rounding.
"""

import bisect
import math
import struct
from fractions import Fraction
from typing import NamedTuple

import gmpy2

INF, NAN = math.inf, math.nan
FLT_MAX = float((2 - Fraction(1, 2**23)) * 2**127)
TWO = Fraction(2)


# --- FP32 -------------------------------------------------------------------------------------------------------------
def floor_log2(q):
    e = q.numerator.bit_length() - q.denominator.bit_length()
    return e if q >= TWO**e else e - 1


def half_even(q):
    """The whole number nearest to q >= 0, ties to even."""
    n, rest = divmod(q.numerator, q.denominator)
    return n + (2 * rest > q.denominator or (2 * rest == q.denominator and n % 2))


def fp32(q):
    """An exact number as the nearest FP32 number (a Python float holds it), overflow to infinity."""
    if q == 0:
        return 0.0
    step = TWO ** (max(floor_log2(abs(q)), -126) - 23)
    n = half_even(abs(q) / step) * step
    return math.copysign(float(n) if n < TWO**128 else INF, q)


def bits(x):
    """The FP32 code of a float; one NaN."""
    return 0x7FC00000 if math.isnan(x) else struct.unpack("<I", struct.pack("<f", x))[0]


def from_bits(code):
    return struct.unpack("<f", struct.pack("<I", code))[0]


def mul(a, b):
    if any(map(math.isnan, (a, b))) or (math.isinf(a) and b == 0) or (a == 0 and math.isinf(b)):
        return NAN
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isinf(a) or math.isinf(b):
        return sign * INF
    return math.copysign(fp32(abs(Fraction(a) * Fraction(b))), sign)


def div(a, b):
    """For a > 0 and b >= 0, not both infinite, or NaN."""
    if math.isnan(a) or math.isnan(b):
        return NAN
    if b == 0 or math.isinf(a):
        return INF
    return 0.0 if math.isinf(b) else fp32(Fraction(a) / Fraction(b))


# --- elements ---------------------------------------------------------------------------------------------------------
class Element(NamedTuple):
    """Magnitudes by code, or (integers) one table of signed values by code."""

    magnitudes: tuple  # of a sign-magnitude format, by code without the sign
    bits: int
    fraction: int  # bits
    nan: int | None = None

    @property
    def max(self):
        return max(self.magnitudes)

    @property
    def emax(self):
        return floor_log2(self.max)


def floating(exponent, fraction, bias, top, nan=None):
    """Magnitudes of codes 0 to ``top``: subnormal, then normal numbers."""

    def value(code):
        e, f = divmod(code, 2**fraction)
        return (
            Fraction(f, 2**fraction) * TWO ** (1 - bias)
            if e == 0
            else (1 + Fraction(f, 2**fraction)) * TWO ** (e - bias)
        )

    return Element(tuple(map(value, range(top + 1))), 1 + exponent + fraction, fraction, nan)


class Integers(NamedTuple):
    bits: int
    step: Fraction

    @property
    def most(self):
        return 2 ** (self.bits - 1) - 1

    @property
    def max(self):
        return self.most * self.step

    @property
    def emax(self):
        return floor_log2(self.max)

    @property
    def fraction(self):
        return self.bits - 2


class Normal4(NamedTuple):
    """NF4 with the comparisons of the original."""

    max: Fraction = Fraction(1)
    zero: int = 7


ELEMENTS = {
    "e4m3": floating(4, 3, 7, 0x7E, nan=0x7F),
    "e5m2": floating(5, 2, 15, 0x7B, nan=0x7E),
    "e2m3": floating(2, 3, 1, 31),
    "e3m2": floating(3, 2, 3, 31),
    "e2m1": floating(2, 1, 1, 7),
    "mxint8_element": Integers(8, Fraction(1, 64)),
    "int8": Integers(8, Fraction(1)),
    "int4": Integers(4, Fraction(1)),
    "nf4_element": Normal4(),
}
ELEMENTS["e4m3fn"] = ELEMENTS["e4m3"]

# NF4 goes one code up where x > limit; decimal literals of a C float
NF4_LIMITS = [
    "-0.8480964004993439", "-0.6106329262256622", "-0.4599952697753906", "-0.33967943489551544", "-0.23460740596055984",
    "-0.13791173323988914", "-0.045525018125772476", "0.03979014977812767", "0.1202552504837513", "0.2035212516784668",
    "0.2920137718319893", "0.3893125355243683", "0.5016634166240692", "0.6427869200706482", "0.8614784181118011",
]  # fmt: skip
NF4_VALUES = [
    "-1.0", "-0.6961928009986877", "-0.5250730514526367", "-0.39491748809814453", "-0.28444138169288635",
    "-0.18477343022823334", "-0.09105003625154495", "0.0", "0.07958029955625534", "0.16093020141124725",
    "0.24611230194568634", "0.33791524171829224", "0.44070982933044434", "0.5626170039176941", "0.7229568362236023",
    "1.0",
]  # fmt: skip


def encode(x, element):
    """One FP32 number as a code: to nearest, ties to even, saturated; NaN as numsim documents it."""
    if isinstance(element, Normal4):
        return element.zero if math.isnan(x) else sum(x > fp32(Fraction(limit)) for limit in NF4_LIMITS)
    if isinstance(element, Integers):
        if math.isnan(x):
            return 0
        n = element.most if math.isinf(x) else min(half_even(abs(Fraction(x)) / element.step), element.most)
        return (-n if x < 0 else n) % 2**element.bits
    if math.isnan(x):
        return len(element.magnitudes) - 1 if element.nan is None else element.nan
    sign = (math.copysign(1, x) < 0) << (element.bits - 1)
    if math.isinf(x) or abs(Fraction(x)) >= element.max:
        return sign | (len(element.magnitudes) - 1)
    q = abs(Fraction(x))
    up = bisect.bisect_right(element.magnitudes, q)
    middle = (element.magnitudes[up - 1] + element.magnitudes[up]) / 2
    return sign | (up if q > middle or (q == middle and up % 2 == 0) else up - 1)


def decode(code, element):
    if isinstance(element, Normal4):
        return fp32(Fraction(NF4_VALUES[code]))
    if isinstance(element, Integers):
        return float((code - (code > element.most) * 2**element.bits) * element.step)
    magnitude = code % 2 ** (element.bits - 1)
    if magnitude >= len(element.magnitudes):
        return NAN
    return math.copysign(float(element.magnitudes[magnitude]), -1 if code >> (element.bits - 1) else 1)


# --- scale rules: (multiplier, stored code) ---------------------------------------------------------------------------
def mx(exponent):
    byte = min(max(exponent, -127), 127) + 127
    return float(TWO ** (127 - byte)), byte


def round_up(q):
    """The least e with 2^e >= q."""
    e = floor_log2(q)
    return e if q == TWO**e else e + 1


def mx_rule(rule, amax, element):
    if math.isnan(amax) or (math.isinf(amax) and rule != "te"):
        return NAN, 0xFF
    if math.isinf(amax):
        return float(TWO**-127), 0xFE
    if amax == 0:
        return mx(-127)
    q = Fraction(amax)
    if rule == "floor":
        return mx(floor_log2(q) - element.emax)
    if rule == "ceil":
        return mx(round_up(q) - element.emax)
    if rule == "even":  # half a step of the element's fraction more; steps of subnormal numbers are those of 2^-126
        e = max(floor_log2(q), -126)
        more = q + TWO ** (e - element.fraction - 1)
        return mx((floor_log2(more) if more >= TWO**-126 else -127) - element.emax)
    quotient = mul(amax, div(1.0, float(element.max)))
    return mx(round_up(Fraction(quotient)) if quotient else -127)


def inverse(scale):
    return scale, bits(div(1.0, scale))


def current(amax, element):
    if math.isnan(amax) or math.isinf(amax) or amax == 0:
        return 1.0
    return min(div(float(element.max), amax), FLT_MAX)


def torchao(amax, element):
    if math.isnan(amax):
        return NAN
    if math.isinf(amax):
        return 0.0
    return fp32(Fraction(float(element.max) / max(amax, 1e-12)))  # FP64, then FP32


def whole_log2(scale):
    """floor(log2 scale) with log2 rounded to FP32, by MPFR."""
    with gmpy2.context(precision=24, round=gmpy2.RoundToNearest):
        return int(gmpy2.floor(gmpy2.log2(gmpy2.mpfr(scale))))


def scales(rule, amax, element, tensor=1.0):
    """What elements are multiplied by and the stored code, for one amax (an FP32 number as a float)."""
    if rule in ("floor", "ceil", "rceil", "even", "te"):
        return mx_rule(rule, amax, element)
    if rule == "current":
        return inverse(current(amax, element))
    if rule == "current-pow2":
        return inverse(from_bits(bits(current(amax, element)) & 0xFF800000))
    if rule == "torchao":
        return inverse(torchao(amax, element))
    if rule == "torchao-pow2":
        scale = torchao(amax, element)
        return inverse(fp32(TWO ** whole_log2(scale)) if scale > 0 else scale)
    most = float(element.max)
    if rule == "absmax":
        return (mul(div(1.0, amax), most) if amax else 0.0), bits(div(amax, most))
    if rule == "absmax-127":
        return (div(most, amax) if amax else 0.0), bits(mul(amax, div(1.0, most)))
    if rule == "nvfp4":
        wanted = mul(amax, mul(tensor, div(1.0, most)))
        code = encode(wanted, ELEMENTS["e4m3"])
        scale = decode(code, ELEMENTS["e4m3"])
        return min(div(1.0, mul(scale, div(1.0, tensor))), FLT_MAX), code
    raise KeyError(rule)


def tensor_scale(amax, most=2688.0):
    """NVFP4's second scale: what multiplies, and what comes back."""
    scale = min(div(most, amax), FLT_MAX)
    back = mul(amax, div(1.0, most))
    return (1.0, 1.0 if amax == 0 else back) if amax == 0 or scale == 0 else (scale, back)


def amax_of(numbers, keeps_nan):
    if keeps_nan and any(map(math.isnan, numbers)):
        return NAN
    return max((abs(x) for x in numbers if not math.isnan(x)), default=0.0)


KEEPS_NAN = {"floor", "ceil", "rceil", "even", "torchao", "torchao-pow2"}


def quantize(numbers, rule, element, tensor=1.0):
    """A block of FP32 numbers: codes and the stored scale's code."""
    multiplier, stored = scales(rule, amax_of(numbers, rule in KEEPS_NAN), element, tensor)
    return [encode(mul(x, multiplier), element) for x in numbers], stored
