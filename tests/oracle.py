"""The outsider: an integer-only oracle for rounding, sharing no code with numsim.

Style: nothing is rounded and then assembled. A number is located between two neighbouring codes by bisecting over the
codes and comparing exactly; what happens then is looked up by mode and policy. Half-way points and the fraction that
stochastic rounding looks at come from the same bisection on a grid with 1 or r more fraction bits, whose codes are the
old ones times 2 or 2^r. The grid is continued past the top code by letting the exponent field grow.

A magnitude is a pair (top, significand): 2^top * significand / 2^62, with 2^62 <= significand < 2^63; zero is
(ZERO_TOP, 0).
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

ZERO_TOP = -(2**20)
HIDDEN = np.uint64(1 << 62)

MODES = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "odd")
OVERFLOWS = ("ieee", "saturate", "saturate-finite")
SUBNORMALS = ("keep", "flush-inputs", "flush-results", "flush")

# Two choices that the standards leave open, kept in one place each.
# OCP MX v1.0 does not say how E8M0 rounds. "even": a tie goes to the even code, 1.5 * 2^127 to 254. "away": as in torch
# and ml_dtypes every tie goes up, 1.5 * 2^127 to NaN.
E8M0_TIES = "even"
# A tiny negative number under flush-inputs, unsigned format: a zero first (True, +0), or negative first (False, NaN).
FLUSH_BEFORE_SIGN = False


@dataclass(frozen=True)
class Spec:
    """One format, typed in by hand. Codes without a sign bit are called magnitudes here."""

    name: str
    exponent: int
    fraction: int
    bias: int
    top: int  # magnitude of the largest finite number
    inf: int | None  # magnitude of infinity
    nan: int | None  # the canonical NaN, a full code
    nans: str  # which codes are NaN: "above inf", "magnitude", "code", "none"
    signed: bool = True
    negative_zero: bool = True
    subnormal: bool = True

    @property
    def bits(self):
        return self.exponent + self.fraction + self.signed

    @property
    def sign(self):
        return 1 << (self.exponent + self.fraction)

    @property
    def dtype(self):
        return next(t for t in (np.uint8, np.uint16, np.uint32, np.uint64) if np.dtype(t).itemsize * 8 >= self.bits)

    @property
    def least_normal(self):
        """Magnitude of the least normal number."""
        return 1 << self.fraction if self.subnormal else 0


def _ieee(name, exponent, fraction):
    inf = ((1 << exponent) - 1) << fraction
    # IEEE 754-2019, 3.4: exponent all ones; fraction 0 is infinity, else NaN; quiet: first fraction bit 1 (6.2.1)
    return Spec(name, exponent, fraction, 2 ** (exponent - 1) - 1, inf - 1, inf, inf | 1 << (fraction - 1), "above inf")


SPECS = {
    s.name: s
    for s in (
        _ieee("fp64", 11, 52),  # IEEE 754-2019, table 3.5
        _ieee("fp32", 8, 23),
        _ieee("fp16", 5, 10),
        _ieee("bf16", 8, 7),  # upper half of an fp32
        _ieee("tf32", 8, 10),  # NVIDIA A100 white paper: 8 exponent bits, 10 fraction bits
        _ieee("e5m2", 5, 2),  # OCP OFP8 v1.0, table 1
        Spec("e4m3fn", 4, 3, 7, 0x7E, None, 0x7F, "magnitude"),  # OCP OFP8 v1.0, table 1: S.1111.111 is NaN
        _ieee("e4m3_ieee", 4, 3),  # ml_dtypes float8_e4m3
        _ieee("e3m4", 3, 4),  # ml_dtypes float8_e3m4
        # arXiv:2206.02915 (Graphcore, AMD, Qualcomm): one NaN at the place of -0, bias one more
        Spec("e4m3fnuz", 4, 3, 8, 0x7F, None, 0x80, "code", negative_zero=False),
        Spec("e5m2fnuz", 5, 2, 16, 0x7F, None, 0x80, "code", negative_zero=False),
        Spec("e4m3b11fnuz", 4, 3, 11, 0x7F, None, 0x80, "code", negative_zero=False),  # ml_dtypes float8_e4m3b11fnuz
        Spec("e3m2", 3, 2, 3, 0x1F, None, None, "none"),  # OCP MX v1.0, 5.3.2: every code is a number
        Spec("e2m3", 2, 3, 1, 0x1F, None, None, "none"),
        Spec("e2m1", 2, 1, 1, 0x07, None, None, "none"),  # OCP MX v1.0, 5.3.3
        # OCP MX v1.0, 5.4.1: 2^(code - 127), 0xFF is NaN, neither zero nor infinity
        Spec("e8m0", 8, 0, 127, 0xFE, None, 0xFF, "magnitude", signed=False, negative_zero=False, subnormal=False),
        # PTX ISA, "ue4m3": the 7 bits of an e4m3 without its sign
        Spec("ue4m3", 4, 3, 7, 0x7E, None, 0x7F, "magnitude", signed=False, negative_zero=False),
    )
}
UP_TO_8 = tuple(n for n, s in SPECS.items() if s.bits <= 8)
IEEE_16 = ("fp16", "bf16")
WIDE = ("tf32", "fp32")
WITHOUT_NAN = tuple(n for n, s in SPECS.items() if s.nan is None)


class NanRefusedError(Exception):
    """A NaN went into a format without one, under nan="raise"."""


# -- codes to numbers ------------------------------------------------------------------------------------------------


def grid(magnitudes, spec, extra=0):
    """(top, significand) of magnitude codes on the grid with `extra` more fraction bits, continued past the top."""
    magnitudes = np.asarray(magnitudes, np.uint64)
    fraction = spec.fraction + extra
    field = (magnitudes >> np.uint64(fraction)).astype(np.int64)
    tail = (magnitudes & np.uint64((1 << fraction) - 1)) << np.uint64(62 - fraction)
    top, significand = field - spec.bias, tail | HIDDEN
    if spec.subnormal:
        low = np.flatnonzero(field == 0)
        if low.size:
            top[low], significand[low] = _normalise(np.full(low.size, 1 - spec.bias, np.int64), tail[low])
    return top, significand


def _normalise(top, significand):
    """Shift left until bit 62 is set."""
    top, significand = top.copy(), significand.copy()
    for step in (32, 16, 8, 4, 2, 1):
        short = significand < np.uint64(1 << (63 - step))
        significand[short] <<= np.uint64(step)
        top[short] -= step
    zero = significand == 0
    top[zero] = ZERO_TOP
    return top, significand


def _at_most(a, b):
    return (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] <= b[1]))


def _same(a, b):
    return (a[0] == b[0]) & (a[1] == b[1])


def is_nan(codes, spec):
    codes = np.asarray(codes, np.uint64)
    magnitude = codes & np.uint64(spec.sign - 1)
    if spec.nans == "above inf":
        return magnitude > np.uint64(spec.inf)
    if spec.nans == "none":
        return np.zeros(codes.shape, bool)
    return (magnitude if spec.nans == "magnitude" else codes) == np.uint64(spec.nan)


def value_of(code, spec):
    """One code as a Fraction, or the string "nan", "inf", "-inf". Zeros of both signs are Fraction(0)."""
    code = int(code)
    negative = spec.signed and bool(code & spec.sign)
    magnitude = code & (spec.sign - 1)
    if bool(is_nan(code, spec)):
        return "nan"
    if magnitude == spec.inf:
        return "-inf" if negative else "inf"
    return -_grid_fraction(magnitude, spec) if negative else _grid_fraction(magnitude, spec)


def _grid_fraction(magnitude, spec, extra=0):
    fraction = spec.fraction + extra
    field, tail = divmod(magnitude, 1 << fraction)
    if field or not spec.subnormal:
        tail += 1 << fraction
    else:
        field = 1
    return Fraction(tail) * Fraction(2) ** (field - spec.bias - fraction)


def classify(code, spec):
    value, magnitude = value_of(code, spec), int(code) & (spec.sign - 1)
    if value == "nan":
        return "nan"
    if isinstance(value, str):
        return "infinity"
    if value == 0:
        return "zero"
    return "subnormal" if magnitude < spec.least_normal else "normal"


def to_bits(codes, spec, width=64):
    """Codes as float64 or float32 patterns, exactly; NaN as the positive quiet one. Refuses what does not fit."""
    if spec.bits <= 8:
        return _table(spec, width)[codes]
    return _to_bits(codes, spec, width)


@lru_cache
def _table(spec, width):
    return _to_bits(np.arange(1 << spec.bits), spec, width)


def _to_bits(codes, spec, width):
    codes = np.asarray(codes, np.uint64)
    fraction, bias = (52, 1023) if width == 64 else (23, 127)
    magnitude = codes & np.uint64(spec.sign - 1)
    top, significand = grid(magnitude, spec)
    tail = significand & np.uint64(int(HIDDEN) - 1)
    low = (top < 1 - bias) & (top != ZERO_TOP)
    shift = np.where(low, 1 - bias - top, 0).astype(np.uint64) + np.uint64(62 - fraction)
    whole = np.where(low, significand, tail)
    shift = np.minimum(shift, np.uint64(63))
    out = whole >> shift
    lost = ((out << shift) != whole) | (top > bias)
    if np.any(lost & (magnitude <= np.uint64(spec.top))):
        raise AssertionError(f"{spec.name} has values outside float{width}")
    out |= np.where(low | (top == ZERO_TOP), 0, top + bias).astype(np.uint64) << np.uint64(fraction)
    infinity = np.uint64((2 * bias + 1) << fraction)
    if spec.inf is not None:
        out[magnitude == np.uint64(spec.inf)] = infinity
    if spec.signed:
        out |= ((codes & np.uint64(spec.sign)) != 0).astype(np.uint64) << np.uint64(width - 1)
    out[is_nan(codes, spec)] = infinity | np.uint64(1 << (fraction - 1))
    return out.astype(np.uint64 if width == 64 else np.uint32)


# -- numbers to codes ------------------------------------------------------------------------------------------------


def take_apart(bits):
    """float64 (uint64) or float32 (uint32) patterns -> negative, kind (0 finite, 1 infinity, 2 NaN), number."""
    bits = np.asarray(bits)
    width, fraction, bias = (64, 52, 1023) if bits.dtype == np.uint64 else (32, 23, 127)
    assert bits.dtype in (np.uint64, np.uint32), bits.dtype
    bits = bits.astype(np.uint64).ravel()
    negative = (bits >> np.uint64(width - 1)) != 0
    field = ((bits >> np.uint64(fraction)) & np.uint64(2 * bias + 1)).astype(np.int64)
    tail = bits & np.uint64((1 << fraction) - 1)
    special = field == 2 * bias + 1
    kind = np.where(special, np.where(tail == 0, 1, 2), 0)
    significand = (tail | np.where(field > 0, np.uint64(1 << fraction), np.uint64(0))) << np.uint64(62 - fraction)
    top, significand = _normalise(np.maximum(field, 1) - bias, significand)
    return negative, kind, top, significand


class Located:
    """Input patterns placed on the grid of one format: done once, then asked for every mode and policy."""

    def __init__(self, bits, spec):
        if isinstance(spec, str):
            spec = SPECS[spec]
        self.spec = spec
        self.negative, self.kind, top, significand = take_apart(bits)
        self.number = (top, significand)
        self.zero = (top == ZERO_TOP) & (self.kind == 0)
        beyond_code = np.full(top.shape, spec.top + 1, np.uint64)
        self.beyond = _at_most(grid(beyond_code, spec), self.number)
        least = grid(np.zeros(top.shape, np.uint64), spec)
        self.under = ~_at_most(least, self.number)  # E8M0 only: smaller than every number of the format
        halves = self._floor(1)
        exact = _same(grid(halves, spec, 1), self.number) | self.beyond
        self.below = halves >> np.uint64(1)
        upper_half = (halves & np.uint64(1)) != 0
        self.exact = exact & ~upper_half
        self.tie = exact & upper_half
        self.over_half = upper_half & ~exact
        self.tiny = ~_at_most(grid(np.full(top.shape, spec.least_normal, np.uint64), spec), self.number) & ~self.zero
        self._fraction = None

    def _floor(self, extra, start=None):
        """The largest code of the finer grid not above the number; at most that of the first point past the top.

        `start` gives the code of the format's own grid below the number, where that is known already."""
        spec = self.spec
        if start is None:
            low = np.zeros(self.beyond.shape, np.uint64)
            high = np.full(self.beyond.shape, (spec.top + 1) << extra, np.uint64)
        else:
            low = start << np.uint64(extra)
            high = (start + np.uint64(1)) << np.uint64(extra)
        low = np.where(self.beyond, np.uint64((spec.top + 1) << extra), low)
        high = np.where(self.beyond, low + np.uint64(1), high)
        while np.any(high - low > 1):
            middle = low + ((high - low) >> np.uint64(1))
            reached = _at_most(grid(middle, spec, extra), self.number)
            low, high = np.where(reached, middle, low), np.where(reached, high, middle)
        return low

    def fraction(self, r):
        """floor(2^r * (how far the number is on its way from the code below to the next one)), r <= 32."""
        if self._fraction is None:
            self._fraction = self._floor(32, self.below) - (self.below << np.uint64(32))
        return self._fraction >> np.uint64(32 - r)  # a floor of a floor

    def encode(
        self, rounding="nearest-even", overflow="ieee", subnormals="keep", nan="raise", r=32, random=None, count=True
    ):
        """(codes, events): codes in the format's own dtype, events as a dict (None unless counted)."""
        spec, negative = self.spec, self.negative
        finite, infinite, is_nan_in = self.kind == 0, self.kind == 1, self.kind == 2
        zero = self.zero.copy()
        if subnormals in ("flush-inputs", "flush"):
            zero |= finite & self.tiny
        if spec.signed:
            refused = np.zeros(zero.shape, bool)
        else:
            refused = negative & ~is_nan_in & ~(zero if FLUSH_BEFORE_SIGN else self.zero)

        go_up = self._goes_away(rounding, r, random)
        magnitude = self.below + (go_up & ~self.exact).astype(np.uint64)
        magnitude[self.under] = 0
        magnitude[zero] = 0
        over = (magnitude > np.uint64(spec.top)) & finite & ~zero

        # what stands where infinity would be, as a magnitude; -1 for NaN
        instead = spec.inf if spec.inf is not None else (-1 if spec.nan is not None else spec.top)
        if rounding in ("toward-zero", "odd") or overflow != "ieee":
            to_largest = np.ones(zero.shape, bool)
        elif rounding == "up":
            to_largest = negative
        elif rounding == "down":
            to_largest = ~negative
        else:
            to_largest = np.zeros(zero.shape, bool)
        result_nan = is_nan_in | refused
        for which, largest in ((over, to_largest), (infinite, np.full(zero.shape, overflow == "saturate"))):
            magnitude[which & largest] = spec.top
            if instead < 0:
                result_nan = result_nan | (which & ~largest)
            else:
                magnitude[which & ~largest] = instead

        if subnormals in ("flush-results", "flush"):
            magnitude[magnitude < np.uint64(spec.least_normal)] = 0
        codes = magnitude | np.where(negative & spec.signed, np.uint64(spec.sign), np.uint64(0))
        if not spec.negative_zero:
            codes[magnitude == 0] = 0

        if spec.nan is None:
            if nan == "raise" and result_nan.any():
                raise NanRefusedError(spec.name)
            magnitude[result_nan] = spec.top if nan == "max" else 0
            codes[result_nan] = magnitude[result_nan]
            result_nan = np.zeros(result_nan.shape, bool)
        else:
            codes[result_nan] = spec.nan
        codes = codes.astype(spec.dtype)
        if not count:
            return codes, None

        is_number = finite & ~result_nan & (magnitude <= np.uint64(spec.top))
        same = is_number & _same(grid(np.where(is_number, magnitude, 0), spec), self.number) & ~refused
        is_zero = is_number & (magnitude == 0) & spec.subnormal
        return codes, {
            "total": int(zero.size),
            "overflow": int((over & ~refused).sum()),
            "underflow": int((is_zero & ~self.zero).sum()),
            "subnormal": int((is_number & (magnitude > 0) & (magnitude < np.uint64(spec.least_normal))).sum()),
            "inexact": int((finite & ~same).sum()),
            "nan": int((result_nan & ~is_nan_in).sum()),
        }

    def _goes_away(self, rounding, r, random):
        """Whether an inexact number takes the neighbour farther from zero."""
        odd_below = (self.below & np.uint64(1)) != 0
        if rounding == "nearest-even":
            if self.spec.name == "e8m0" and E8M0_TIES == "away":
                odd_below = np.ones(odd_below.shape, bool)
            return self.over_half | (self.tie & odd_below)
        if rounding == "nearest-away":
            return self.over_half | self.tie
        if rounding == "toward-zero":
            return np.zeros(self.tie.shape, bool)
        if rounding == "up":
            return ~self.negative
        if rounding == "down":
            return self.negative.copy()
        if rounding == "odd":
            return ~odd_below
        assert rounding == "stochastic", rounding
        random = np.asarray(random).ravel().astype(np.uint64)
        assert np.all(random < np.uint64(1 << r))
        return self.fraction(r) + random >= np.uint64(1 << r)


def encode(bits, spec, **policy):
    """Patterns (uint64 for float64, uint32 for float32) -> codes."""
    return Located(bits, spec).encode(**policy, count=False)[0]


# -- one number at a time, from any rational ---------------------------------------------------------------------------


def encode_fraction(
    value, spec, rounding="nearest-even", overflow="ieee", subnormals="keep", negative=None, r=32, random=0
):
    """The code of one rational number, by Fraction comparisons; a second way that also takes numbers no float64 holds.

    `negative` gives the sign of a zero."""
    if isinstance(spec, str):
        spec = SPECS[spec]
    value = Fraction(value)
    negative = value < 0 if value else bool(negative)
    size = abs(value)
    least_normal = _grid_fraction(spec.least_normal, spec)
    if size and size < least_normal and subnormals in ("flush-inputs", "flush"):
        size = Fraction(0)
    if negative and not spec.signed and (size or (value and not FLUSH_BEFORE_SIGN)):
        return spec.nan
    past_top = _grid_fraction(spec.top + 1, spec)
    if size < _grid_fraction(0, spec):
        magnitude = 0
    elif size >= past_top:
        magnitude = spec.top + 1
    else:
        low, high = 0, spec.top + 1
        while high - low > 1:
            middle = (low + high) // 2
            if _grid_fraction(middle, spec) <= size:
                low = middle
            else:
                high = middle
        a, b = _grid_fraction(low, spec), _grid_fraction(high, spec)
        if a == size:
            magnitude = low
        else:
            way = (size - a) / (b - a)
            even, odd = (low, high) if low % 2 == 0 else (high, low)
            magnitude = {
                "nearest-even": low if way < Fraction(1, 2) else high if way > Fraction(1, 2) else even,
                "nearest-away": low if way < Fraction(1, 2) else high,
                "toward-zero": low,
                "up": low if negative else high,
                "down": high if negative else low,
                "odd": odd,
                "stochastic": high if (way * 2**r).__floor__() + random >= 2**r else low,
            }[rounding]
    if magnitude > spec.top:
        inward = rounding in ("toward-zero", "odd") or (rounding, negative) in (("up", True), ("down", False))
        if overflow != "ieee" or inward:
            magnitude = spec.top
        elif spec.inf is not None:
            magnitude = spec.inf
        elif spec.nan is not None:
            return spec.nan
        else:
            magnitude = spec.top
    if subnormals in ("flush-results", "flush") and magnitude < spec.least_normal:
        magnitude = 0
    if negative and spec.signed and (magnitude or spec.negative_zero):
        magnitude |= spec.sign
    return magnitude
