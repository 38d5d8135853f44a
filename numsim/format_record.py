"""What a number format is: a frozen record; ``formats.py`` has those with a name.

A format is a frozen record. A magnitude code (the code without its sign bit) reads as ``exponent field | fraction``;
magnitudes are in the order of their codes, so that everything else follows from a few fields, each its own choice:

* exponent field > 0:  value = (1 + fraction / 2^F) * 2^(field - bias)
* exponent field = 0:  value = fraction / 2^F * 2^(1 - bias)         (subnormal numbers and zero)
* where NaN is:        what ``specials`` says
* ``infinities``:      the code above the largest number
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Literal

from numsim.errors import FormatError, short

Specials = Literal["ieee", "fn", "fnuz", "finite"]
_EXAMPLE = "Example: numsim.Format('e5m4', 5, 4, bias=15)"
SPECIALS: dict[str, str] = {  # with ``infinities``, the code above the largest number is taken from the numbers
    "ieee": "top exponent field: infinity (fraction 0) and NaN",
    "fn": "the all-ones code is NaN, no infinity",
    "fnuz": "the code of -0 is NaN, no infinity, no -0",
    "finite": "no infinity, no NaN",
}


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Parameters
    ----------
    name : how the format is called, e.g. ``"fp16"``.
    exponent_bits, fraction_bits : field widths; the significand has one hidden bit more than the fraction.
        Without exponent bits the numbers are evenly spaced: sign and magnitude, fixed point.
    bias : the exponent field of 1.0.
    signed : whether the top bit is a sign.
    specials : where NaN is: ``"ieee"``, ``"fn"``, ``"fnuz"`` or ``"finite"`` (see ``SPECIALS``).
    zero : False where code 0 is a power of two like all others, as in E8M0 (no zero, no subnormals; unsigned).
    title, source : for people; not part of equality.
    infinities : whether the code above the largest number is infinity. None: only in ``"ieee"``, which always has it.
    subnormals : False where nothing lies between zero and the least normal number: what has exponent field 0 is zero,
        as in hardware that knows no subnormal numbers. False in any case where there is no room for them.

    Raises ``FormatError`` when the fields make no format.

    >>> from numsim import FP16
    >>> FP16.max, FP16.least_subnormal == Fraction(1, 2**24), FP16.precision
    (Fraction(65504, 1), True, 11)
    >>> mine = Format("mine", 4, 3, bias=7, specials="fn", infinities=True, subnormals=False)
    >>> str(mine.max), hex(mine.infinity_code), hex(mine.nan_code), str(mine.least)
    ('416', '0x7e', '0x7f', '1/64')
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    bias: int
    signed: bool = True
    specials: Specials = "ieee"
    zero: bool = True
    title: str = field(default="", compare=False)
    source: str = field(default="user-defined", compare=False)
    infinities: bool | None = field(default=None, kw_only=True)
    subnormals: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise FormatError(f"format name {short(self.name)}: a text is needed. {_EXAMPLE}")
        if not isinstance(self.title, str) or not isinstance(self.source, str):
            raise FormatError(f"title={short(self.title)}, source={short(self.source)}: texts are needed. {_EXAMPLE}")
        if not self.title:
            object.__setattr__(self, "title", self.name.upper())
        for field_name in ("exponent_bits", "fraction_bits", "bias"):  # NumPy's integers would wrap
            object.__setattr__(self, field_name, self._whole(field_name))
        e, f = self.exponent_bits, self.fraction_bits
        if not isinstance(self.specials, str) or self.specials not in SPECIALS:
            raise self._refused(f"specials={short(self.specials)} is not one of {', '.join(SPECIALS)}")
        ieee = self.specials == "ieee"
        if self.infinities is None:
            object.__setattr__(self, "infinities", ieee)
        for field_name in ("signed", "zero", "infinities", "subnormals"):
            if not isinstance(flag := getattr(self, field_name), bool):
                raise self._refused(f"{field_name}={short(flag)}: allowed are True and False")
        rules = [
            (
                0 <= e <= 15 + (f == 0) and 0 <= f <= 62,
                f"exponent_bits={e}, fraction_bits={f}: allowed are 0..15 (16 without a fraction) and 0..62",
            ),
            (abs(self.bias) <= 1 << 16, f"bias={short(self.bias)}: allowed are -65536 to 65536"),
            (1 <= e + f and self.bits <= 64, f"{self.bits} bits: a code has at most 64, and one besides the sign"),
            (not ieee or (e >= 2 and f >= 1), "specials='ieee' needs 2 exponent bits and a fraction bit"),
            (not ieee or self.infinities, "specials='ieee' has infinities: specials='fn' has a NaN and none"),
            (self.specials != "fnuz" or (self.signed and self.zero), "specials='fnuz' needs signed=True and zero=True"),
            (self.zero or not self.signed, "zero=False needs signed=False"),
        ]
        for holds, rule in rules:
            if not holds:
                raise self._refused(rule)
        if self.max_code < 0 or (self.gap and self.max_code < 1 << f):
            raise self._refused("infinity, NaN and missing subnormals leave no number but zero")
        object.__setattr__(self, "subnormals", self.subnormals and self.zero and f > 0)

    def _refused(self, rule: str) -> FormatError:
        return FormatError(f"format {short(self.name)}: {rule}. {_EXAMPLE}")

    def _whole(self, field_name: str) -> int:
        value = getattr(self, field_name)
        try:
            number = operator.index(value)
        except TypeError:
            number = 1 << 20
        if isinstance(value, bool) or abs(number) >= 1 << 20:
            raise FormatError(f"{field_name}={short(value)}: a whole number is needed, and no huge one. {_EXAMPLE}")
        return number

    # --- codes -----------------------------------------------------------------------------------------------------
    @cached_property
    def magnitude_bits(self) -> int:
        """Bits of a code without the sign."""
        return self.exponent_bits + self.fraction_bits

    @cached_property
    def bits(self) -> int:
        """Bits of a code."""
        return self.magnitude_bits + self.signed

    @cached_property
    def codes(self) -> int:
        """How many codes there are, NaNs and all."""
        return 1 << self.bits

    @cached_property
    def code_bytes(self) -> int:
        """Bytes of the smallest unsigned integer that holds a code: 1, 2, 4 or 8."""
        return next(b for b in (1, 2, 4, 8) if self.bits <= 8 * b)

    @cached_property
    def sign_mask(self) -> int:
        """The code's sign bit; 0 in unsigned formats."""
        return (1 << self.magnitude_bits) if self.signed else 0

    @cached_property
    def max_code(self) -> int:
        """Magnitude code of the largest finite number."""
        top = (1 << self.magnitude_bits) - 1
        return top - (1 << self.fraction_bits if self.specials == "ieee" else (self.specials == "fn") + self._infinity)

    @cached_property
    def infinity_code(self) -> int | None:
        """The code of +infinity; None where there is none."""
        return self.max_code + 1 if self.infinities else None

    @property
    def _infinity(self) -> int:
        return int(bool(self.infinities))

    @cached_property
    def nan_code(self) -> int | None:
        """The canonical NaN: positive and quiet. FP16 0x7e00, E4M3 0x7f, the fnuz formats 0x80."""
        if self.specials == "ieee":
            return self.max_code + 1 + (1 << (self.fraction_bits - 1))
        all_ones = (1 << self.magnitude_bits) - 1
        return {"fn": all_ones, "fnuz": self.sign_mask, "finite": None}[self.specials]

    @cached_property
    def specials_in_words(self) -> str:
        """What the top codes mean."""
        words = SPECIALS[self.specials]
        if self.infinities and self.specials != "ieee":
            words = words.replace("no infinity", f"code {self.infinity_code:#x} is infinity")
        return words + ("; no subnormals" if self.gap else "" if self.zero else "; no zero, no subnormals")

    @cached_property
    def top_code(self) -> int:
        """Magnitude code of the largest number, infinity counted."""
        return self.max_code + self._infinity

    # --- values ----------------------------------------------------------------------------------------------------
    @cached_property
    def precision(self) -> int:
        """Bits of the significand, hidden bit included."""
        return self.fraction_bits + 1

    @cached_property
    def emin(self) -> int:
        """Exponent of the least normal number."""
        return 1 - self.bias if self.zero else -self.bias

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest finite number: 2^emax <= max < 2^(emax + 1)."""
        return self.max.numerator.bit_length() - self.max.denominator.bit_length()

    @cached_property
    def gap(self) -> bool:
        """Whether there would be room for subnormal numbers, and there are none."""
        return self.zero and self.fraction_bits > 0 and not self.subnormals

    @cached_property
    def max_rank(self) -> int:
        """The ``rank`` of the largest finite number."""
        return self.rank(self.max_code)

    def rank(self, magnitude_code: int) -> int:
        """Place of a magnitude on the grid that counts 0 as 0 (E8M0 has no zero: its code 0 has rank 1)."""
        rank = magnitude_code if self.zero else magnitude_code + (1 << self.fraction_bits)
        return 0 if self.gap and rank < 1 << self.fraction_bits else rank

    def magnitude(self, rank: int) -> Fraction:
        """The exact value at a rank; ranks past ``max_rank`` continue the grid, up to 2^17 binades.

        >>> from numsim import E4M3
        >>> [str(E4M3.magnitude(E4M3.max_rank + i)) for i in (-1, 0, 1, 2)]
        ['416', '448', '480', '512']
        """
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < 1 << 17 + self.fraction_bits:
            raise FormatError(f"rank {short(rank)}: an integer from 0 to 2^{17 + self.fraction_bits} - 1 is needed. "
                              "Example: numsim.E4M3.magnitude(3)")  # fmt: skip
        return Fraction(*self.ratio(rank))

    def ratio(self, rank: int) -> tuple[int, int]:
        """``magnitude`` as numerator and denominator, one of which is a power of two."""
        place = max(rank >> self.fraction_bits, 1) - 1  # exponent above emin
        significand = rank - (place << self.fraction_bits)
        shift = place + self.emin - self.fraction_bits if rank else 0
        return (significand << shift, 1) if shift >= 0 else (significand, 1 << -shift)

    @cached_property
    def max(self) -> Fraction:
        """The largest finite number."""
        return self.magnitude(self.max_rank)

    @cached_property
    def least_normal(self) -> Fraction:
        """2^emin (beyond the largest number where all are subnormal)."""
        return self.magnitude(1 << self.fraction_bits)

    @cached_property
    def least_subnormal(self) -> Fraction | None:
        """The least number above zero that is not normal; None where there are no subnormal numbers."""
        return self.magnitude(1) if self.subnormals else None

    @cached_property
    def least(self) -> Fraction:
        """The least number above zero."""
        return self.least_subnormal or self.least_normal

    @cached_property
    def eps(self) -> Fraction:
        """Distance from 1 to the next number."""
        return Fraction(1, 1 << self.fraction_bits)

    @cached_property
    def unit_roundoff(self) -> Fraction:
        """Largest relative error of rounding to nearest in the normal range: eps / 2."""
        return self.eps / 2

    @cached_property
    def decades(self) -> float:
        """Dynamic range: log10 of largest / least number above zero. For people; rounded by libm."""
        ratio = (self.max or self.least) / self.least
        return (math.log2(ratio.numerator) - math.log2(ratio.denominator)) * math.log10(2)

    @cached_property
    def integers_up_to(self) -> int:
        """The largest n such that all integers 1..n are numbers of the format."""
        return min(1 << self.precision, int(self.max)) if self.holds(Fraction(1)) else 0

    @cached_property
    def adding_one_stalls_at(self) -> Fraction | None:
        """Where 1 + 1 + 1 + ... stops growing (nearest-even); None where it overflows first.

        >>> from numsim import BF16, E4M3, E5M2, FP16
        >>> [int(f.adding_one_stalls_at) for f in (FP16, BF16, E4M3, E5M2)]
        [2048, 256, 16, 8]
        """
        stall = 1 << self.precision  # stall + 1 is halfway to the next number, and the even neighbour is below
        if self.fraction_bits == 0 and (self.bias + 1) % 2:
            stall *= 2  # the code of 2 is odd: 3 becomes 4
        if stall <= self.max:
            return Fraction(stall)
        return self.max if self.infinity_code is None and self.nan_code is None else None

    def holds(self, x: Fraction) -> bool:
        """Whether this very number is one of the format's.

        >>> from numsim import E4M3
        >>> E4M3.holds(Fraction(448)), E4M3.holds(Fraction(449)), E4M3.holds(Fraction(1, 3))
        (True, False, False)
        """
        if not isinstance(x, (int, Fraction)):
            raise FormatError(f"{short(x)}: a Fraction is needed. Example: numsim.FP16.holds(Fraction(1, 3))")
        if x == 0:
            return self.zero
        n, d = abs(x).as_integer_ratio()
        unit = max(n.bit_length() - d.bit_length(), self.emin) - self.fraction_bits
        steps = abs(x) / Fraction(2) ** unit
        return steps.denominator == 1 and self.least <= abs(x) <= self.max and (self.signed or x > 0)

    def __hash__(self) -> int:
        return hash(self.name)  # equality compares all fields; this only has to be quick

    def fits(self, other: Format) -> bool:
        """Whether every finite value of this format is a value of ``other``."""
        if not isinstance(other, Format):
            raise FormatError(f"{short(other)} is no format. Example: numsim.FP16.fits(numsim.FP32)")
        return (
            self.fraction_bits <= other.fraction_bits
            and self.emin - self.fraction_bits >= other.emin - other.fraction_bits
            and self.max <= other.max
            and (other.signed or not self.signed)
            and (other.zero or not self.zero)
            and (not other.gap or self.least >= other.least)
        )

    @cached_property
    def is_named(self) -> bool:
        """Whether the name alone says which format this is: one of the table, an ``eXmY`` or a ``binaryKpP..``.

        >>> from numsim import FP16
        >>> FP16.is_named, Format("fp16", 5, 10, bias=16).is_named
        (True, False)
        """
        from numsim.formats import get_format

        try:
            return get_format(self.name) == self
        except FormatError:
            return False

    def __str__(self) -> str:
        return self.name
