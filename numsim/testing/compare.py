"""Two sets of numbers compared bit by bit: what differs is classed, counted, and the first of it shown.

The classes, in the order in which they are told:

* no number of the format: a value that the format does not have; something was not rounded.
* NaN on one side, infinity on one side (or infinities of both signs).
* value: two numbers, and how many steps of the format's grid lie between them, in ulps.
* sign of zero; NaN sign or payload: the same value, other bits. Another code of the same value: where a codebook has a
  value twice, or a format without subnormal numbers has many codes for zero.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from numsim.codebooks import Codebook, get_format
from numsim.codes import Codes, classify, decode, ulp
from numsim.errors import InputError, check_choice, short
from numsim.formats import FP32, FP64, Format
from numsim.testing.reading import ARRAY, EXAMPLE, INTEGERS, Numbers, Side, look_at
from numsim.values import NAN, Rational, as_fraction, is_whole

OFF_GRID, ONE_NAN, ONE_INFINITY, VALUE = "no number of the format", "NaN on one side", "infinity on one side", "value"
ZERO_SIGN, NAN_BITS, SAME = "sign of zero", "NaN sign or payload", "same value, other code"
KINDS = (OFF_GRID, ONE_NAN, ONE_INFINITY, VALUE, ZERO_SIGN, NAN_BITS, SAME)
STEPS = (
    (1, "1 ulp"),
    (2, "2 ulps"),
    (10, "3 to 10 ulps"),
    (1 << 64, "more than 10 ulps"),
)  # the bins of VALUE, by their upper ends

_CHUNK = 1 << 20  # looked at together
_WIDTH = 76  # pytest puts its own mark before each line


@dataclass(frozen=True)
class Difference:
    """One number that differs: where, in which way, both sides in hex and value, and the steps between them."""

    index: tuple[int, ...]
    kind: str
    actual: str
    expected: str
    ulps: int | Fraction | None  # None where one side is no finite number


@dataclass(frozen=True)
class Comparison:
    """How two sets of numbers compare. ``str()`` of it is what ``assert_bits_equal`` says."""

    format: Format | Codebook
    compared: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)  # class -> how many differ
    ulps: Mapping[str, int] = field(default_factory=dict)  # of the class "value": bin -> how many
    largest: int = 0  # ulps between the two values farthest apart
    passed: Mapping[str, int] = field(default_factory=dict)  # what nan="mask" and zero_sign=False let pass
    shown: tuple[Difference, ...] = ()
    mismatch: str = ""  # shapes, dtypes or formats differ: then no numbers were compared
    names: tuple[str, str] = ("actual", "expected")

    @property
    def differ(self) -> int:
        """How many numbers differ."""
        return sum(self.counts.values())

    @property
    def equal(self) -> bool:
        """Whether shapes and all numbers are the same."""
        return not self.mismatch and not self.differ

    def __str__(self) -> str:
        return "\n".join(_lines(self))


# --- the front door ---------------------------------------------------------------------------------------------------
def compare_bits(
    actual: Any,
    expected: Any,
    format: Any = None,
    *,
    nan: str = "bits",
    zero_sign: bool = True,
    names: Sequence[str] = ("actual", "expected"),
    max_shown: int = 10,
) -> Comparison:
    """Compare two sets of numbers by their bits; returns what ``assert_bits_equal`` would say, as data.

    Rules and parameters: those of ``assert_bits_equal``.

    >>> import numpy as np
    >>> seen = compare_bits(np.float16([1, 2, 0.0]), np.float16([1, 2.002, -0.0]))
    >>> seen.equal, seen.differ, dict(seen.counts), dict(seen.ulps)
    (False, 2, {'value': 1, 'sign of zero': 1}, {'1 ulp': 1})
    >>> seen.shown[1].index, seen.shown[1].actual, seen.shown[1].expected
    ((2,), '0x0000 = 0', '0x8000 = -0')
    """
    check_choice("nan", nan, ("bits", "mask"), "nan='mask'")
    if not isinstance(zero_sign, (bool, np.bool_)):
        raise InputError(f"zero_sign={short(zero_sign)}: allowed are True and False. Example: zero_sign=False")
    if not is_whole(max_shown) or max_shown < 0:
        raise InputError(f"max_shown={short(max_shown)}: a whole number from 0 on is needed. Example: max_shown=3")
    if isinstance(names, str) or not isinstance(names, Sequence) or [type(n) for n in names] != [str, str]:
        raise InputError(f"names={short(names)}: two texts are needed. Example: names=('mine', 'numsim')")
    both, asked = (names[0], names[1]), None if format is None else get_format(format)
    sides = [look_at(x, name, asked) for x, name in zip((actual, expected), both, strict=True)]
    common = asked or next((s.format for s in sides if s.format is not None), None)
    if common is None and any(s.kind == "codes" for s in sides):
        what = next(s for s in sides if s.kind == "codes")
        raise InputError(f"{what.name} is {what.what}: of which format are these codes? {EXAMPLE}")
    common = common or FP64
    if wrong := _mismatch(sides, common, asked):
        return Comparison(common, mismatch=wrong, names=both)
    a, b = (side.read(common) for side in sides)
    return _compare(a, b, sides[0].shape, common, nan, bool(zero_sign), both, int(max_shown))


def bits_equal(actual: Any, expected: Any, format: Any = None, *, nan: str = "bits", zero_sign: bool = True) -> bool:
    """Whether two sets of numbers have the same shape, format and bits. Rules: those of ``assert_bits_equal``.

    >>> bits_equal(0.1 + 0.2, 0.3), bits_equal([0x80], [0x00], "e4m3", zero_sign=False)
    (False, True)
    """
    return compare_bits(actual, expected, format, nan=nan, zero_sign=zero_sign, max_shown=0).equal


def assert_bits_equal(
    actual: Any,
    expected: Any,
    format: Any = None,
    *,
    nan: str = "bits",
    zero_sign: bool = True,
    names: Sequence[str] = ("actual", "expected"),
    max_shown: int = 10,
) -> None:
    """Fail unless two sets of numbers have the same shape, format and bits.

    Rules
    -----
    NaN : sign and payload count; under ``nan="mask"`` every NaN equals every other.
    Inf : equals an infinity of its sign only.
    -0 : is not +0, unless ``zero_sign=False``; nor is the second zero of a codebook.
    subnormals, overflow : nothing is rounded or flushed; bits are read as they stand.

    Parameters
    ----------
    actual, expected : numsim Arrays; numpy, ml_dtypes and torch floats, taken by their bits; unsigned integers, which
        are codes and need ``format``; Python numbers, ``Fraction`` and decimal strings, alone or in lists, which are
        values. Shapes must be equal, nothing is broadcast; byte order and strides are no difference.
    format : the format of codes, or a codebook. Where it is given Python integers are codes, and floats of another type
        are values of it: a float32 array that holds BF16 numbers is compared as BF16, and what was not rounded is
        found. Without it values are of the other side's format, or FP64.
    nan : "bits" or "mask".
    names : what to call the two sides.
    max_shown : how many differences are listed.

    Raises ``AssertionError`` with the differences: shape, dtype or format first; then the classes and their counts, and
    the first numbers in hex, value and ulps (steps from number to number between the two). ``InputError`` for what has
    no bits to compare: objects, structures, complex and masked arrays, codes out of range, more than 2^31 numbers.
    Cost: about that of comparing integers; what differs costs some 0.3 us a number.

    >>> assert_bits_equal([0x3F80, 0x4000], [0x3F80, 0x4001], "bf16")
    Traceback (most recent call last):
    AssertionError: actual and expected differ in 1 of 2 numbers of bf16
      value                        1   1 ulp: 1
      index  actual      expected            ulps
      [1]    0x4000 = 2  0x4001 = 2.015625   1
    """
    __tracebackhide__ = True
    seen = compare_bits(actual, expected, format, nan=nan, zero_sign=zero_sign, names=names, max_shown=max_shown)
    if not seen.equal:
        raise AssertionError(str(seen))


# --- comparing --------------------------------------------------------------------------------------------------------
def _mismatch(sides: Sequence[Side], format: Format | Codebook, asked: Format | Codebook | None) -> str:
    """What differs before any number does, or nothing."""
    a, b = sides
    if a.shape != b.shape:
        return f"shapes differ: {a.name} {a.shape}, {b.name} {b.shape}"
    for side in sides:  # floats of another type may hold numbers of the format asked for; an Array says its own
        if side.format not in (None, format) and (asked is None or side.what == ARRAY):
            if asked:
                return f"formats differ: {side.name} {side.format} ({side.what}), asked for is {asked}"
            return "formats differ: " + ", ".join(f"{s.name} {s.format} ({s.what})" for s in sides)
    if a.kind == b.kind == "codes" and a.what != b.what and INTEGERS not in (a.what, b.what):
        return f"dtypes differ: {a.name} {a.what}, {b.name} {b.what}"
    return ""


def _compare(
    a: Numbers, b: Numbers, shape: tuple[int, ...], format: Format | Codebook, nan: str, zero_sign: bool,
    names: tuple[str, str], max_shown: int,
) -> Comparison:  # fmt: skip
    counts, passed, bins = Counter[str](), Counter[str](), Counter[str]()
    largest, shown = 0, list[Difference]()
    let_pass = {NAN_BITS} if nan == "mask" else set[str]()
    let_pass |= set() if zero_sign else {ZERO_SIGN}
    for start in range(0, a.codes.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        different = a.codes[part] != b.codes[part]
        for side in (a, b):
            if side.off is not None:
                different |= side.off[part]
        places = np.flatnonzero(different) + start
        if not places.size:
            continue
        steps = _steps(a.codes[places], b.codes[places], format)
        kinds = _kinds(a, b, places, steps, format)
        for kind in KINDS:
            (passed if kind in let_pass else counts)[kind] += int(np.count_nonzero(kinds == kind))
        if (far := steps[kinds == VALUE]).size:
            largest = max(largest, int(far.max()))
            edges = np.array([top for top, _ in STEPS[:-1]], np.uint64)
            for k, n in enumerate(np.bincount(np.searchsorted(edges, far), minlength=len(STEPS)).tolist()):
                bins[STEPS[k][1]] += n
        for j in np.flatnonzero(~np.isin(kinds, list(let_pass)))[: max_shown - len(shown)].tolist():
            i, kind = int(places[j]), str(kinds[j])
            index = tuple(int(k) for k in np.unravel_index(i, shape))
            apart = _apart(a, b, i, format) if kind == OFF_GRID else int(steps[j]) if kind == VALUE else None
            shown.append(Difference(index, kind, _text(a, i, format), _text(b, i, format), apart))
    return Comparison(format, a.codes.size, +counts, +bins, largest, +passed, tuple(shown), names=names)


def _kinds(a: Numbers, b: Numbers, places: Any, steps: Any, format: Format | Codebook) -> Any:
    """The class of each difference."""
    x, y = (side.codes[places] for side in (a, b))
    here, there = classify(x, format), classify(y, format)
    off = np.zeros(places.shape, np.bool_)
    for side in (a, b):
        if side.off is not None:
            off |= side.off[places]
    both = {kind: (here == kind) & (there == kind) for kind in ("nan", "zero")}
    either = {kind: (here == kind) | (there == kind) for kind in ("nan", "infinity")}
    signs = isinstance(format, Codebook) or (x ^ y) & x.dtype.type(format.sign_mask) != 0
    return np.select(
        [off, both["nan"], either["nan"], either["infinity"], both["zero"] & signs, steps == 0],
        [OFF_GRID, NAN_BITS, ONE_NAN, ONE_INFINITY, ZERO_SIGN, SAME],
        VALUE,
    )


def _steps(a: Codes, b: Codes, format: Format | Codebook) -> Any:
    """How many steps of the grid lie between codes of numbers; zeros of both signs are one place."""
    if isinstance(format, Codebook):
        _, places = np.unique(decode(np.arange(format.codes, dtype=np.uint8), format), return_inverse=True)
        return np.abs(places[a] - places[b]).astype(np.uint64)
    sign = np.uint64(format.sign_mask)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    here, there = (_ranks(m & ~sign, format) for m in (x, y))
    return np.where((x ^ y) & sign, here + there, np.maximum(here, there) - np.minimum(here, there))


def _ranks(magnitudes: Any, format: Format) -> Any:
    """Places on the grid, up to a constant: codes below the normal numbers are one place where they all mean zero."""
    if not format.gap:
        return magnitudes
    return np.maximum(magnitudes, np.uint64((1 << format.fraction_bits) - 1))


def _apart(a: Numbers, b: Numbers, i: int, format: Format | Codebook) -> Fraction | None:
    """The distance of two exact values in ulps of the expected one."""
    x, y = a.rational(i, format), b.rational(i, format)
    if x.denominator == 0 or y.denominator == 0:
        return None
    code = int(b.codes[i])
    if isinstance(format, Format) and classify(code, format) in ("nan", "infinity"):
        code = format.max_code
    return abs(as_fraction(x) - as_fraction(y)) / ulp(code, format)


# --- in words ---------------------------------------------------------------------------------------------------------
def _lines(seen: Comparison) -> Iterator[str]:
    a, b = seen.names
    if seen.mismatch:
        yield seen.mismatch
        return
    numbers = f"{seen.compared} numbers of {seen.format}"
    yield f"{a} and {b} " + (f"agree in {numbers}" if seen.equal else f"differ in {seen.differ} of {numbers}")
    for kind in KINDS:
        if count := seen.counts.get(kind):
            more = ", ".join(f"{name}: {seen.ulps[name]}" for _, name in STEPS if seen.ulps.get(name))
            more += f", largest {seen.largest}" if seen.largest > 2 else ""
            line = f"  {kind:24} {count:>8}" + (f"   {more}" if kind == VALUE else "")
            yield from textwrap.wrap(line, _WIDTH, subsequent_indent=" " * 38)
    for kind, count in seen.passed.items():
        yield f"  {kind:24} {count:>8}   let pass"
    if not seen.shown:
        return
    rows = [("index", a, b, "ulps")]
    rows += [(str(list(d.index)) if d.index else "", d.actual, d.expected, _ulps(d.ulps)) for d in seen.shown]
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    if sum(widths) + 8 <= _WIDTH:
        yield from ("  " + "  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    else:
        side = max(len(a), len(b))
        for index, here, there, ulps in rows[1:]:
            yield f"  {f'at {index}' if index else 'here'}" + (
                f", {ulps} ulp{'s' * (ulps != '1')} apart" if ulps else ""
            )
            yield from (f"    {name:{side}}  {text}" for name, text in ((a, here), (b, there)))
    if (rest := seen.differ - len(seen.shown)) > 0:
        yield f"  and {rest} more"


def _text(side: Numbers, i: int, format: Format | Codebook) -> str:
    """Hex and value; the value alone where there is no code."""
    value = number_text(side.rational(i, format), format)
    if side.off is not None and side.off[i]:
        return value
    return f"{int(side.codes[i]):#0{(format.bits + 3) // 4 + 2}x} = {value}"


def number_text(x: Rational, format: Format | Codebook) -> str:
    """A value in decimal: 9 digits, which tell all numbers of up to 24 bits apart, or 17; as 2^e beyond FP64."""
    if x == NAN:
        return "nan"
    sign = "-" if x.sign else ""
    if x.denominator == 0:
        return f"{sign}inf"
    exact = Fraction(x.numerator, x.denominator)
    if FP64.least <= exact <= FP64.max or not exact:
        narrow = format.fits(FP32) if isinstance(format, Codebook) else format.precision <= 24
        return f"{sign}{float(exact):.{9 if narrow else 17}g}"
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    return f"{sign}{float(exact / Fraction(2) ** exponent):.9g} x 2^{exponent}"


def _ulps(apart: int | Fraction | None) -> str:
    if apart is None or isinstance(apart, int):
        return "" if apart is None else str(apart)
    return f"{float(apart):.3g}" if apart < 1 << 60 else "huge"
