"""Codebooks through the front doors of the formats: encode, decode, exact, neighbours, ulp, in every mode they have."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import numsim
from numsim import Codebook, get_format, list_codebooks
from numsim.codebooks import BNB_FP4, INT4, INT8, NF4_ELEMENT
from numsim.errors import FormatError, InputError
from numsim.rounding import OVERFLOWS

HOLE = Codebook("hole", (-3, -1, 2, 7))  # no zero, and neighbours of odd distance
BOOKS = [*list_codebooks(), HOLE, Codebook("backwards", tuple(range(7, -9, -2)), ties="lower")]
MODES = ("nearest-even", "up", "down", "toward-zero")


def numbers(book):
    """Points in and beyond all gaps; midpoints and the library's own limits with a step to both sides."""
    values = sorted({v for c, v in enumerate(book.values) if c not in book.unused})
    gaps = [*itertools.pairwise(values)]
    if len(gaps) > 40:
        gaps = [*gaps[:6], *gaps[124:132], *gaps[-6:]]
    points = {values[0] - 1, values[-1] + 1, Fraction(0), *values}
    tiny = Fraction(1, 2**60)
    for low, high in gaps:
        points |= {low + (high - low) * Fraction(n, 8) for n in range(1, 8)}
    points |= {x + d for x in (book.bounds or ()) for d in (-tiny, 0, tiny)}
    return sorted(points)


def searched(x, book, mode, random=0):
    """By looking at every number of the book."""
    values = {c: v for c, v in enumerate(book.values) if c not in book.unused}
    below = max((c for c in values if values[c] <= x), key=values.get, default=None)
    above = min((c for c in values if values[c] >= x), key=values.get, default=None)
    if below is None or above is None or below == above:
        return above if below is None else below
    if mode == "toward-zero":
        mode = "down" if x >= 0 else "up"
    if mode in ("up", "down"):
        return above if mode == "up" else below
    part = (x - values[below]) / (values[above] - values[below])
    if mode == "stochastic":
        away = part if x >= 0 else 1 - part
        outwards = math.floor(away * 2**16) + random >= 2**16
        return above if outwards == (x >= 0) else below
    limit = (values[below] + values[above]) / 2
    if book.bounds:
        limit = next(b for b in book.bounds if values[below] <= b <= values[above])
    if x != limit:
        return above if x > limit else below
    if book.ties == "even":
        return above if above % 2 == 0 else below
    return below if book.ties == "lower" else min((below, above), key=lambda c: abs(values[c]))


@pytest.mark.parametrize("mode", [*MODES, "stochastic"])
@pytest.mark.parametrize("book", BOOKS, ids=str)
def test_every_mode_against_a_search(book, mode):
    xs = numbers(book)
    draws = [0, 1, 2**15, 2**16 - 1] if mode == "stochastic" else [0]
    for random in draws:
        chance = {"random_bits": np.uint16(random)} if mode == "stochastic" else {}
        wanted = [searched(x, book, mode, random) for x in xs]
        assert numsim.encode(xs, book, rounding=mode, **chance).tolist() == wanted
        floats = np.array([float(x) for x in xs])
        wanted = [searched(Fraction(float(x)), book, mode, random) for x in xs]
        assert numsim.encode(floats, book, rounding=mode, **chance).tolist() == wanted
        single = floats.astype(np.float32)
        wanted = [searched(Fraction(float(x)), book, mode, random) for x in single]
        assert numsim.encode(single, book, rounding=mode, **chance).tolist() == wanted


@pytest.mark.parametrize("book", BOOKS, ids=str)
def test_codes_and_values(book):
    codes = np.arange(book.codes, dtype=np.uint8)
    values = numsim.decode(codes, book)
    assert [numsim.exact(int(c), book) for c in codes] == list(book.values) == [Fraction(float(v)) for v in values]
    assert numsim.classify(codes, book).tolist() == ["normal" if v else "zero" for v in book.values]
    used = [c for c in codes.tolist() if c not in book.unused]
    assert numsim.encode(values, book)[used].tolist() == used
    ordered = sorted(used, key=book.values.__getitem__)
    for code, below, above in zip(ordered, [None, *ordered], [*ordered[1:], None], strict=False):
        assert numsim.neighbours(code, book) == (below, above)
        gaps = {s: abs(book.values[c] - book.values[code]) for s, c in ((-1, below), (1, above)) if c is not None}
        sign = 1 if book.values[code] > 0 else -1
        assert numsim.ulp(code, book) == (gaps.get(sign, gaps.get(-sign)) if book.values[code] else min(gaps.values()))
    assert numsim.pack(codes, book).size == book.codes * book.bits // 8 if book.bits < 8 else True


def test_numbers_are_rounded_once():
    """3/2 + 2^-80 is no float64: the nearest one is a tie."""
    x = Fraction(3, 2) + Fraction(1, 2**80)
    book = Codebook("gaps", (0, 1, -1, 2))
    assert float(x) == 1.5 and book.encode(1.5) == 1 and numsim.encode(1.5, book) == 1
    assert numsim.encode(x, book) == book.encode(x) == 3 and numsim.encode("1.50000000000000000000001", "int8") == 2


def test_what_has_no_code():
    for overflow in OVERFLOWS:
        got = numsim.encode([1e9, -1e9, float("inf"), float("-inf")], "int8", overflow=overflow)
        assert got.tolist() == [127, 0x81, 127, 0x81]
    for x in (float("nan"), [float("nan")], np.array([1.0, np.nan]), np.array([np.nan], np.float32)):
        with pytest.raises(InputError, match="NaN has no code in int8"):
            numsim.encode(x, "int8")
    many = np.array([np.nan, 1.0] * 300)
    assert set(numsim.encode(many, "int8", nan="zero").tolist()) == {0, 1}
    assert numsim.encode(many, "int8", nan="max").tolist() == [127, 1] * 300
    assert numsim.encode("nan", "nf4", nan="max") == 15 and numsim.encode("nan", HOLE, nan="zero") == 1
    for rounding in ("nearest-away", "odd"):
        with pytest.raises(InputError, match="codebook has its own rule for ties"):
            numsim.encode(1.5, "int8", rounding=rounding)


def test_stochastic_rates():
    """Neighbours only, exact values never move, and the mean is the number."""
    x = np.full(1 << 16, -0.3)
    codes = numsim.encode(x, "nf4", rounding="stochastic", seed=3)
    low, high = NF4_ELEMENT.values[3], NF4_ELEMENT.values[4]
    assert set(codes.tolist()) == {3, 4} and low < Fraction(-0.3) < high
    share = float((Fraction(-0.3) - low) / (high - low))
    assert abs(float(np.mean(codes == 4)) - share) < 5 * (share * (1 - share) / x.size) ** 0.5
    exact = numsim.decode(np.repeat(np.arange(16, dtype=np.uint8), 50), "nf4")
    assert numsim.encode(exact, "nf4", rounding="stochastic", seed=5).tolist() == np.repeat(range(16), 50).tolist()


def test_values_come_back_as_floats():
    x = np.array([0.3, -0.26, 7.0], np.float32)
    for book in ("nf4", "bnb_fp4"):
        got = numsim.round_to(x, book)
        assert got.dtype == np.float32 and got.tolist() == numsim.decode(numsim.encode(x, book), book).tolist()
    assert numsim.round_to([0.3, 2.5], "int4").tolist() == [0.0, 2.0]
    with pytest.raises(numsim.RangeError):
        numsim.round_to(np.float32([1]), Codebook("wide", (0, 2.0**-1000)))


def test_events():
    seen = numsim.Events()
    numsim.encode([0.25, 2.0, 900.0, -128.0, float("inf")], "int8", events=seen)
    assert (seen.total, seen.overflow, seen.underflow, seen.inexact, seen.nan) == (5, 2, 1, 3, 0)


# bitsandbytes 0.48, csrc/kernels.cu, dQuantizeFP4: the constants between which |x| is looked up, and what each code is
# there, times 12. Written once more: numsim has a table of values and one of limits.
BNB_LIMITS = [("0.00260417", 0), ("0.0859375", 1), ("0.20833333", 6), ("0.29166667", 7), ("0.4166667", 4),
              ("0.583333", 5), ("0.8333333", 2), ("9", 3)]  # fmt: skip
BNB_TWELFTHS = {0: 0, 1: 0.0625, 6: 2, 7: 3, 4: 4, 5: 6, 2: 8, 3: 12}


def bnb(x):
    return (8 if x < 0 else 0) + next(c for limit, c in BNB_LIMITS if abs(x) <= np.float32(limit))


def test_fp4_of_bitsandbytes():
    limits = np.array([np.float32(x) for x, _ in BNB_LIMITS[:-1]])
    xs = np.concatenate([limits, np.nextafter(limits, np.float32(0)), np.nextafter(limits, np.float32(1))])
    xs = np.concatenate([xs, -xs, np.linspace(-1, 1, 301, dtype=np.float32)])
    wanted = [0 if bnb(x) == 8 else bnb(x) for x in xs]  # 8 is its second zero
    assert numsim.encode(xs, "bnb_fp4").tolist() == wanted and 8 in map(bnb, xs)
    for code, twelfths in BNB_TWELFTHS.items():
        assert numsim.decode([code, code + 8], BNB_FP4).tolist() == [
            np.float32(twelfths / 12),
            -np.float32(twelfths / 12),
        ]


def test_names():
    assert get_format("nf4") is get_format(" NF4_element ") is NF4_ELEMENT and get_format("INT4") is INT4
    assert get_format(INT8) is INT8 and get_format("fp16") is numsim.FP16 and INT8.is_named and not HOLE.is_named
    for book in list_codebooks():
        assert get_format(book.name) is book and numsim.blocks.Codebook is Codebook
    with pytest.raises(FormatError, match="unknown format 'nf5'"):
        get_format("nf5")
    with pytest.raises(FormatError, match="block format"):
        get_format("mxfp4")


def test_arithmetic_is_not_defined():
    for call in (
        lambda: numsim.array([1.0], INT8),
        lambda: numsim.array([1.0], "bnb_fp4"),
        lambda: numsim.add(numsim.array([1.0], "fp16"), numsim.array([1.0], "fp16"), format=INT8),
        lambda: numsim.sum(numsim.array([1.0], "fp16"), accumulator=NF4_ELEMENT),
    ):
        with pytest.raises(FormatError, match="codebook"):
            call()


def test_codebooks_that_make_no_sense():
    with pytest.raises(FormatError, match="all be different, but for unused ones"):
        Codebook("twice", (0, 1, 1, 2))
    assert Codebook("twice", (0, 1, 1, 2), unused=(2,)).encode(1.2) == 1
    with pytest.raises(InputError, match="those of nf4_element are unsigned integers"):
        numsim.decode([16], "nf4")
    for call in (numsim.exact, numsim.neighbours, numsim.ulp):
        with pytest.raises(InputError):
            call(99, "int4")
