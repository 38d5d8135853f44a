"""Codebooks: formats that are lists of numbers, with no exponent: integers, NF4, FP4 of bitsandbytes.

They are encoded, decoded and explained as the formats with an exponent are; arithmetic is not defined on them.
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from numsim import formats
from numsim.errors import FormatError, InputError, short
from numsim.formats import FP64, Format
from numsim.values import NAN, Rational, as_fraction, is_whole, rational

TIES = {"even": "even code", "lower": "lower number", "zero": "one nearer to 0"}


def _is_float64(x: Fraction) -> bool:
    try:
        return float(x).as_integer_ratio() == x.as_integer_ratio()
    except OverflowError:
        return False


@dataclass(frozen=True)
class Codebook:
    """A finite list of numbers; a number is encoded as the nearest of them.

    Rules: NaN has no code, ``nan`` says what becomes of it; -0 is 0; numbers beyond the ends take the ends, infinities
    too, whatever ``overflow`` says; there are no subnormal numbers. Of the rounding modes there are "nearest-even"
    (ties as ``ties`` says), "up", "down", "toward-zero" and "stochastic".

    Parameters
    ----------
    name : what it is called, e.g. ``"nf4"``.
    values : the number behind each code, in the order of the codes; a power of two of them, those that are used all
        different, and each one that float64 holds: values are float64 everywhere.
    ties : of a number half way: "even" takes the even code, "lower" the lower number, "zero" that nearer to zero.
    bounds : where a library's own constants stand for the midpoints: in order, one less than there are values.
    unused : codes that decode but that encoding never gives (INT8: -128).
    title, source : for people; not part of equality.

    Numbers may be whatever ``numsim.encode`` reads; they are kept as fractions. Raises ``FormatError`` for the rest.

    >>> INT4.encode([0.5, 1.5, -9.0]).tolist(), INT4.decode([0, 2, 9]).tolist()
    ([0, 2, 9], [0.0, 2.0, -7.0])
    """

    name: str
    values: tuple[Fraction, ...]
    ties: Literal["even", "lower", "zero"] = "even"
    bounds: tuple[Fraction, ...] | None = None
    unused: tuple[int, ...] = ()
    title: str = field(default="", compare=False)
    source: str = field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        self._keep("values", self._fractions("values", self.values))
        if self.bounds is not None:
            self._keep("bounds", self._fractions("bounds", self.bounds))
        self._keep("unused", tuple(self._listed("unused", self.unused)))
        n = len(self.values)
        used, codes = n - len(self.unused), all(is_whole(code) and 0 <= code < n for code in self.unused)
        inexact = next((v for v in self.values if not _is_float64(v)), None)
        bounds = self.bounds
        rules = (
            (2 <= n <= 256 and n & (n - 1) == 0, f"{n} values: 2, 4, 8, ... 256 are needed"),
            (inexact is None, f"{short(inexact)} is no float64: round it first, e.g. Fraction(float(x))"),
            (isinstance(self.ties, str) and self.ties in TIES,
             f"ties={short(self.ties)}: allowed are {', '.join(TIES)}"),
            (codes and len(set(self.unused)) == n - used <= n - 2,
             f"unused={short(self.unused)}: different codes below {n}, all but two of them at most"),
            (not codes or len({v for i, v in enumerate(self.values) if i not in self.unused}) == used,
             "the values must all be different, but for unused ones"),
            (bounds is None or (len(bounds) == used - 1 and list(bounds) == sorted(bounds)
                                and all(abs(b) <= FP64.max for b in bounds)),
             f"bounds={short(bounds)}: {used - 1} increasing numbers within float64 are needed"),
            (isinstance(self.name, str), "a name is a text"),
        )  # fmt: skip
        for holds, rule in rules:
            if not holds:
                raise self._refused(rule)

    def _refused(self, rule: str) -> FormatError:
        return FormatError(
            f'codebook {short(self.name)}: {rule}. Example: numsim.blocks.Codebook("two_bits", (-2, -1, 0, 1))'
        )

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _listed(self, name: str, given: Any) -> list[Any]:
        if not isinstance(given, (tuple, list, np.ndarray)) or np.ndim(np.asarray(given, object)) == 0:
            raise self._refused(f"{name}={short(given)}: a tuple is needed")
        return list(given)

    def _fractions(self, name: str, given: Any) -> tuple[Fraction, ...]:
        try:
            found = [rational(x) for x in self._listed(name, given)]
        except InputError:
            found = None
        if found is None or any(x.denominator == 0 for x in found):
            raise self._refused(f"{name}={short(given)}: finite numbers are needed")
        return tuple(as_fraction(x) for x in found)

    @cached_property
    def bits(self) -> int:
        """Bits of a code."""
        return len(self.values).bit_length() - 1

    @cached_property
    def codes(self) -> int:
        """How many codes there are."""
        return len(self.values)

    code_bytes = 1  # of the smallest unsigned integer that holds a code
    nan_code = infinity_code = None

    @property
    def is_named(self) -> bool:
        """Whether the name alone says which codebook this is."""
        return _BY_NAME.get(self.name) == self

    def fits(self, other: Format) -> bool:
        """Whether every value is a value of ``other``."""
        if not isinstance(other, Format):
            raise FormatError(f"{short(other)} is no format. Example: numsim.blocks.INT8.fits(numsim.FP16)")
        return all(map(other.holds, self.values))

    @cached_property
    def max(self) -> Fraction:
        """The largest magnitude that encoding gives on both sides of zero."""
        used = [v for code, v in enumerate(self.values) if code not in self.unused]
        return min(max(used), -min(used))

    @cached_property
    def order(self) -> npt.NDArray[np.uint8]:
        """The codes that encoding gives, by increasing value."""
        used = [code for code in range(self.codes) if code not in self.unused]
        return np.array(sorted(used, key=self.values.__getitem__), np.uint8)

    @cached_property
    def ordered(self) -> tuple[Fraction, ...]:
        """The values that encoding gives, increasing."""
        return tuple(self.values[c] for c in self.order)

    @cached_property
    def thresholds(self) -> tuple[Fraction, ...]:
        """Between which numbers encoding decides, by increasing value: ``bounds``, or the midpoints."""
        return self.bounds or tuple((a + b) / 2 for a, b in itertools.pairwise(self.ordered))

    @cached_property
    def ties_go_up(self) -> tuple[bool, ...]:
        """Whether a number at a threshold takes the upper of its two values."""
        if self.ties == "even":
            return tuple(c % 2 == 0 for c in self.order[1:].tolist())
        return tuple(self.ties == "zero" and m <= 0 for m in self.thresholds)

    # --- rounding: the reference
    def round(self, x: Rational, rounding: str, nan: str = "raise", random: int = 0, r: int = 32) -> int:
        """The code of one exact number; ``random`` are the r random bits of a stochastic rounding."""
        if rounding in ("nearest-away", "odd"):
            raise InputError(f"rounding={rounding!r}: a codebook has its own rule for ties, and no odd significands. "
                             f"Example: numsim.encode(x, {self.name!r}, rounding='nearest-even')")  # fmt: skip
        # 1. NaN has no code.
        if x == NAN:
            if nan == "raise":
                raise InputError(f"NaN has no code in {self}. Example: numpy.nan_to_num(x)")
            x = Rational(0, 0, 1) if nan == "zero" else Rational(0, 1, 0)
            rounding = "nearest-even"
        # 2. What lies at the ends or beyond them takes the ends.
        if x.denominator == 0:
            return int(self.order[0 if x.sign else -1])
        number = as_fraction(x)
        above = min(max(bisect.bisect_left(self.ordered, number), 1), len(self.ordered) - 1)
        low, high = self.ordered[above - 1 : above + 1]
        if not low < number < high:
            return int(self.order[above - (number <= low)])
        # 3. Everything else lies between two neighbours. Those of a number below zero are counted from the upper one.
        part = (number - low) / (high - low)
        match rounding:
            case "nearest-even":
                limit = self.thresholds[above - 1]
                up = number > limit or (number == limit and self.ties_go_up[above - 1])
            case "stochastic":
                away = (1 - part if x.sign else part) * (1 << r)
                up = (away.numerator // away.denominator + random >= 1 << r) != bool(x.sign)
            case _:
                up = rounding == "up" or (rounding == "toward-zero" and bool(x.sign))
        return int(self.order[above - (not up)])

    def neighbours(self, code: int) -> tuple[int | None, int | None]:
        """The codes that are given below and above a code's value; None at the ends."""
        value = self._value(code)
        below, above = bisect.bisect_left(self.ordered, value), bisect.bisect_right(self.ordered, value)
        return (
            int(self.order[below - 1]) if below else None,
            int(self.order[above]) if above < len(self.order) else None,
        )

    def ulp(self, code: int) -> Fraction:
        """The gap to the next number away from zero; at the ends the last gap, of zero the smaller one."""
        value = self._value(code)
        below, above = ([] if c is None else [abs(self.values[c] - value)] for c in self.neighbours(code))
        gaps: list[Fraction] = below + above if value < 0 else above + below
        return gaps[0] if value else min(gaps)

    # --- the same over arrays
    @cached_property
    def above(self) -> npt.NDArray[np.float64]:
        """For each step from one value to the next the largest float64 that still takes the lower one."""
        middles = self.thresholds
        limits = np.array([float(m) for m in middles])
        # down where float64 rounded up, and where the tie itself goes up
        up = np.array([Fraction(float(limit)) > m for limit, m in zip(limits, middles, strict=True)])
        tie = np.array([Fraction(float(limit)) == m for limit, m in zip(limits, middles, strict=True)])
        return np.where(up | (tie & np.array(self.ties_go_up)), np.nextafter(limits, -np.inf), limits)

    def encode(self, values: Any) -> npt.NDArray[np.uint8]:
        """``numsim.encode`` without options: the code of the nearest value."""
        if isinstance(values, np.ndarray) and values.dtype in (np.float32, np.float64):
            return self.nearest(values)
        from numsim.rounding import encode

        return np.asarray(encode(values, self))

    def nearest(self, x: npt.NDArray[Any], nan: str = "raise") -> npt.NDArray[np.uint8]:
        """Codes of a float32 or float64 array: a search in ``above``, whose limits make it exact."""
        with np.errstate(invalid="ignore"):  # signalling NaNs
            codes = self.order[np.searchsorted(self.above, x, side="left")]
        if (missing := np.isnan(x)).any():
            codes = np.where(missing, np.uint8(self.round(NAN, "nearest-even", nan)), codes)
        return np.asarray(codes)

    def decode(self, codes: Any) -> npt.NDArray[np.float64]:
        """The values of codes; refuses codes out of range."""
        return np.asarray(self._table[self.check(codes)])

    def check(self, codes: Any) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Codes as an array of uint8; refuses what is no unsigned integer and codes out of range."""
        try:
            array = np.asarray(codes)
        except Exception:  # lists of unequal lengths; each library has its own
            array = np.array([None])
        kinds = "u" if isinstance(codes, (np.ndarray, np.generic)) else "ui"
        if array.size and not (array.dtype.kind in kinds and 0 <= array.min() and array.max() < self.codes):
            raise InputError(
                f"codes {short(codes)}: those of {self.name} are unsigned integers from 0 to {self.codes - 1:#x}. "
                "Example: numsim.blocks.INT4.decode([0, 15])"
            )
        return array.astype(np.uint8, copy=False)

    def _value(self, code: Any) -> Fraction:
        found = self.check(code)
        if found.ndim:
            raise InputError(f"one code is needed, not {short(code)}. Example: numsim.blocks.INT4.ulp(15)")
        return self.values[int(found)]

    @cached_property
    def _table(self) -> npt.NDArray[np.float64]:
        return np.array([float(v) for v in self.values])

    def __str__(self) -> str:
        return self.name


def _integers(name: str, bits: int, fraction: int, title: str, source: str) -> Codebook:
    """Two's complement times 2^-fraction, used symmetrically: the most negative code is never given."""
    half = 1 << (bits - 1)
    values = tuple(Fraction(code - 2 * half * (code >= half), 1 << fraction) for code in range(2 * half))
    return Codebook(name, values, unused=(half,), title=title, source=source)


def _fp32(text: str) -> tuple[Fraction, ...]:
    """Decimal constants as the FP32 numbers that a float in C makes of them.

    One rounding: several limits of NF4 lie so near a tie in FP32 that a detour through float64 changes them.
    """
    units = [Fraction(2) ** (math.frexp(float(x))[1] - 24) for x in text.split()]
    return tuple(round(Fraction(x) / unit) * unit for x, unit in zip(text.split(), units, strict=True))


INT8 = _integers("int8", 8, 0, "INT8", "two's complement; used from -127 to 127, as absmax quantisation does")
INT4 = _integers("int4", 4, 0, "INT4", "two's complement; used from -7 to 7, as absmax quantisation does")
MXINT8_ELEMENT = _integers("mxint8_element", 8, 6, "INT8 x 2^-6", "OCP MX 1.0, section 5.3.4; -2 is left unused")

_BNB = "bitsandbytes 95f9af3, csrc/kernels.cu"
NF4_ELEMENT = Codebook(
    "nf4_element",
    _fp32(
        """
        -1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635
        -0.18477343022823334 -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725
        0.24611230194568634 0.33791524171829224 0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0
        """
    ),
    ties="lower",
    bounds=_fp32(
        """
        -0.8480964004993439 -0.6106329262256622 -0.4599952697753906 -0.33967943489551544 -0.23460740596055984
        -0.13791173323988914 -0.045525018125772476 0.03979014977812767 0.1202552504837513 0.2035212516784668
        0.2920137718319893 0.3893125355243683 0.5016634166240692 0.6427869200706482 0.8614784181118011
        """
    ),
    title="NF4",
    source=f"Dettmers et al., QLoRA, arXiv:2305.14314, appendix E; constants of {_BNB}",
)  # fmt: skip

# Sign and three bits that index a table: 0 and 1/12 times 1/16, 8, 12, 4, 6, 2, 3.
_FP4 = _fp32("0.0 0.005208333333 0.66666667 1.0 0.33333333 0.5 0.16666667 0.25")
_FP4_BOUNDS = _fp32("0.00260417 0.0859375 0.20833333 0.29166667 0.4166667 0.583333 0.8333333")
BNB_FP4 = Codebook(
    "bnb_fp4",
    _FP4 + tuple(-v for v in _FP4),
    ties="zero",
    bounds=tuple(-b for b in _FP4_BOUNDS[::-1]) + _FP4_BOUNDS,
    unused=(8,),
    title="FP4 (bitsandbytes)",
    source=f"{_BNB}; code 8 is a second zero there, given to what rounds to zero from below",
)

_TABLE = (INT8, INT4, MXINT8_ELEMENT, NF4_ELEMENT, BNB_FP4)
_BY_NAME = {book.name: book for book in _TABLE}


def list_codebooks() -> tuple[Codebook, ...]:
    """All named codebooks.

    >>> [book.name for book in list_codebooks()]
    ['int8', 'int4', 'mxint8_element', 'nf4_element', 'bnb_fp4']
    """
    return _TABLE


def get_format(x: Any) -> Format | Codebook:
    """The format that ``x`` names: a ``Format`` or ``Codebook``, or a name of either.

    As ``numsim.formats.get_format``, and codebooks: ``int8``, ``int4``, ``nf4``, ``bnb_fp4`` (bitsandbytes). In a
    block format of the same name, numbers are scaled before they are looked up in the codebook: here they are not.
    Raises ``FormatError`` with the nearest names.

    >>> get_format("e4m3").name, get_format("NF4").name, get_format("binary8p3se").bits
    ('e4m3fn', 'nf4_element', 8)
    """
    if isinstance(x, Codebook):
        return x
    name = x.strip().lower() if isinstance(x, str) else ""
    return _BY_NAME.get("nf4_element" if name == "nf4" else name) or formats.get_format(x)
