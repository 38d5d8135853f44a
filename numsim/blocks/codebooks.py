"""Codebooks: element types that are lists of numbers, not formats with an exponent: integers, NF4."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from numsim.codes import exact
from numsim.errors import FormatError, InputError, short
from numsim.formats import FP32, FP64
from numsim.rounding import encode, round_to
from numsim.values import as_fraction, is_whole, rational


@dataclass(frozen=True)
class Codebook:
    """A finite list of numbers; a number is encoded as the nearest of them.

    Parameters
    ----------
    name : what it is called, e.g. ``"nf4"``.
    values : the number behind each code, in the order of the codes; a power of two of them, all different, and each one
        that float64 holds: values are float64 everywhere.
    ties : of a number half way: "even" takes the even code, "lower" the lower number.
    bounds : where a library's own constants stand for the midpoints: in order, one less than there are values.
    unused : codes that decode but that encoding never gives (INT8: -128).
    title, source : for people; not part of equality.

    Numbers may be whatever ``numsim.encode`` reads; they are kept as fractions. Raises ``FormatError`` for the rest.

    >>> INT4.encode([0.5, 1.5, -9.0]).tolist(), INT4.decode([0, 2, 9]).tolist()
    ([0, 2, 9], [0.0, 2.0, -7.0])
    """

    name: str
    values: tuple[Fraction, ...]
    ties: Literal["even", "lower"] = "even"
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
        inexact = next((v for v in self.values if abs(v) > FP64.max or Fraction(float(v)) != v), None)
        bounds = self.bounds
        rules = (
            (2 <= n <= 256 and n & (n - 1) == 0, f"{n} values: 2, 4, 8, ... 256 are needed"),
            (len(set(self.values)) == n, "the values must all be different"),
            (inexact is None, f"{short(inexact)} is no float64: round it first, e.g. Fraction(float(x))"),
            (isinstance(self.ties, str) and self.ties in ("even", "lower"),
             f"ties={short(self.ties)}: allowed are even, lower"),
            (codes and len(set(self.unused)) == n - used <= n - 2,
             f"unused={short(self.unused)}: different codes below {n}, all but two of them at most"),
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
        if not isinstance(given, (tuple, list, np.ndarray)) or np.shape(given[:0]) == ():
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
        return len(self.values).bit_length() - 1

    @cached_property
    def codes(self) -> int:
        """How many codes there are."""
        return len(self.values)

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
    def thresholds(self) -> tuple[Fraction, ...]:
        """Between which numbers encoding decides, by increasing value: ``bounds``, or the midpoints."""
        ordered = [self.values[c] for c in self.order]
        return self.bounds or tuple((a + b) / 2 for a, b in itertools.pairwise(ordered))

    @cached_property
    def above(self) -> npt.NDArray[np.float64]:
        """For each step from one value to the next the largest float64 that still takes the lower one."""
        middles = self.thresholds
        limits = np.array([float(m) for m in middles])
        # down where float64 rounded up, and where the upper code is the even one: there the tie itself goes up
        up = np.array([Fraction(float(limit)) > m for limit, m in zip(limits, middles, strict=True)])
        tie = np.array([Fraction(float(limit)) == m for limit, m in zip(limits, middles, strict=True)])
        upper = (self.ties == "even") & (self.order[1:] % 2 == 0)
        return np.where(up | (tie & upper), np.nextafter(limits, -np.inf), limits)

    def encode(self, values: Any) -> npt.NDArray[np.uint8]:
        """The code of the nearest value; numbers beyond the ends take the ends, infinities too.

        Raises ``InputError`` for NaN, which no code stands for, and for what is no number. Numbers that are no float64
        are rounded to it first.
        """
        x = values if isinstance(values, np.ndarray) and values.dtype.kind == "f" else round_to(values, "fp64")
        if np.isnan(x).any():
            raise InputError(f"NaN has no code in {self.name}. Example: numpy.nan_to_num(x)")
        return np.asarray(self.order[np.searchsorted(self.above, x, side="left")])

    def decode(self, codes: Any) -> npt.NDArray[np.float64]:
        """The values of codes; refuses codes out of range."""
        return np.asarray(self._table[self.check(codes)])

    def check(self, codes: Any) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Codes as an array of uint8; refuses what is no unsigned integer and codes out of range."""
        try:
            array = np.asarray(codes)
        except ValueError:  # lists of unequal lengths
            array = np.array([None])
        kinds = "u" if isinstance(codes, (np.ndarray, np.generic)) else "ui"
        if array.size and not (array.dtype.kind in kinds and 0 <= array.min() and array.max() < self.codes):
            raise InputError(
                f"codes {short(codes)}: those of {self.name} are unsigned integers from 0 to {self.codes - 1:#x}. "
                "Example: numsim.blocks.INT4.decode([0, 15])"
            )
        return array.astype(np.uint8, copy=False)

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


def _floats(text: str) -> tuple[Fraction, ...]:
    """Decimal constants as the FP32 numbers that a float in C makes of them.

    One rounding: several limits of NF4 lie so near a tie in FP32 that a detour through float64 changes them.
    """
    return tuple(exact(encode(x, FP32), FP32) for x in text.split())


INT8 = _integers("int8", 8, 0, "INT8", "two's complement; used from -127 to 127, as absmax quantisation does")
INT4 = _integers("int4", 4, 0, "INT4", "two's complement; used from -7 to 7, as absmax quantisation does")
MXINT8_ELEMENT = _integers("mxint8_element", 8, 6, "INT8 x 2^-6", "OCP MX 1.0, section 5.3.4; -2 is left unused")

_BNB = "bitsandbytes 95f9af3, csrc/kernels.cu"
NF4_ELEMENT = Codebook(
    "nf4_element",
    _floats(
        """
        -1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635
        -0.18477343022823334 -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725
        0.24611230194568634 0.33791524171829224 0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0
        """
    ),
    ties="lower",
    bounds=_floats(
        """
        -0.8480964004993439 -0.6106329262256622 -0.4599952697753906 -0.33967943489551544 -0.23460740596055984
        -0.13791173323988914 -0.045525018125772476 0.03979014977812767 0.1202552504837513 0.2035212516784668
        0.2920137718319893 0.3893125355243683 0.5016634166240692 0.6427869200706482 0.8614784181118011
        """
    ),
    title="NF4",
    source=f"Dettmers et al., QLoRA, arXiv:2305.14314, appendix E; constants of {_BNB}",
)  # fmt: skip
