"""Codebooks: thresholds and ties against exact arithmetic, the constants of NF4, codes that are refused."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numsim
from numsim.blocks import INT4, INT8, NF4_ELEMENT, Codebook
from numsim.blocks.codebooks import MXINT8_ELEMENT
from numsim.errors import FormatError, InputError
from tests.blocks import oracle

BOOKS = [INT4, INT8, MXINT8_ELEMENT, NF4_ELEMENT]


def fp32_limits():
    return np.array([oracle.fp32(Fraction(x)) for x in oracle.NF4_LIMITS], np.float32)


@pytest.mark.parametrize("book", BOOKS, ids=str)
def test_every_code_comes_back(book):
    codes = np.setdiff1d(np.arange(book.codes), book.unused).astype(np.uint8)
    np.testing.assert_array_equal(book.encode(book.decode(codes)), codes)
    want = [oracle.decode(int(c), oracle.ELEMENTS[book.name]) for c in range(book.codes)]
    np.testing.assert_array_equal(book.decode(np.arange(book.codes, dtype=np.uint8)), want)


@pytest.mark.parametrize("book", BOOKS, ids=str)
def test_thresholds_and_their_fp32_neighbours(book):
    ordered = np.sort(book.decode(book.order))
    middles = ((ordered[1:] + ordered[:-1]) / 2).astype(np.float32)
    if book is NF4_ELEMENT:
        middles = fp32_limits()
    x = np.concatenate([middles, np.nextafter(middles, np.float32(-9e9)), np.nextafter(middles, np.float32(9e9))])
    x = np.concatenate([x, [-np.inf, np.inf, -0.0, 3e38, -3e38, 1e-45]])
    want = [oracle.encode(v, oracle.ELEMENTS[book.name]) for v in x.tolist()]
    np.testing.assert_array_equal(book.encode(x), want)


def test_ties_of_nf4_take_the_lower_number_on_both_sides():
    limits = fp32_limits()
    np.testing.assert_array_equal(NF4_ELEMENT.encode(limits), np.arange(15))
    np.testing.assert_array_equal(NF4_ELEMENT.encode(np.nextafter(limits, np.float32(2))), np.arange(1, 16))


def test_the_limits_of_nf4_are_rounded_once():
    """A detour through float64 would give other FP32 numbers: the midpoints of FP32 numbers are ties."""
    twice = [Fraction(float(np.float32(float(x)))) for x in oracle.NF4_LIMITS]
    assert [i for i, (a, b) in enumerate(zip(twice, NF4_ELEMENT.bounds, strict=True)) if a != b] == [0, 8, 12, 14]
    assert [float(b) for b in NF4_ELEMENT.bounds] == fp32_limits().tolist()


def test_the_limits_of_nf4_are_its_midpoints_in_fp32():
    """All fifteen constants are the FP32 numbers nearest to the exact midpoints, or the next ones."""
    values = [Fraction(oracle.decode(c, oracle.ELEMENTS["nf4_element"])) for c in range(16)]
    for low, high, limit in zip(values[:-1], values[1:], NF4_ELEMENT.bounds, strict=True):
        steps = (Fraction(limit) - (low + high) / 2) / Fraction(float(np.spacing(np.float32(float(limit)))))
        assert abs(steps) <= 1


def test_integers_tie_to_even_and_are_symmetric():
    assert INT8.encode([0.5, 1.5, 2.5, -0.5, -1.5, 127.5, 1e9, -128, -1e9]).astype(np.int8).tolist() == [
        0, 2, 2, 0, -2, 127, 127, -127, -127,
    ]  # fmt: skip
    assert INT8.decode(np.uint8(0x80)) == -128 and INT4.decode(8) == -8
    assert MXINT8_ELEMENT.max == Fraction(127, 64) and MXINT8_ELEMENT.decode(1) == 2.0**-6


def test_nan_has_no_code():
    with pytest.raises(InputError, match="NaN has no code in int8"):
        INT8.encode([1.0, np.nan])


@pytest.mark.parametrize(
    "codes",
    [16, -1, 1.5, [[1], [1, 2]], None, [0, 16], np.array([1], np.int8), np.array([16], np.uint8), np.array([1.0]), "a"],
    ids=repr,
)
def test_codes_out_of_range(codes):
    with pytest.raises(InputError, match="those of int4 are unsigned integers from 0 to 0xf"):
        INT4.decode(codes)


@pytest.mark.parametrize("values", ["x", None, [1j], np.array([1j])], ids=repr)
def test_what_is_no_number(values):
    with pytest.raises(InputError):
        INT4.encode(values)


@given(
    st.lists(st.fractions(-4, 4, max_denominator=999), min_size=8, max_size=8, unique_by=float),
    st.sampled_from(["even", "lower"]),
    st.lists(st.floats(-5, 5), min_size=1, max_size=9),
)
def test_any_codebook_is_exact(values, ties, numbers):
    """Also where a midpoint is no float64."""
    values = [Fraction(float(v)) for v in values]
    book = Codebook("thirds", tuple(values), ties)
    ordered = sorted(values)
    middles = [(a + b) / 2 for a, b in itertools.pairwise(ordered)]
    for x in [*numbers, *map(float, middles), *(np.nextafter(float(m), 9) for m in middles)]:
        exact, code = Fraction(float(x)), int(book.encode(x))
        best = min(abs(exact - v) for v in values)
        nearest = sorted(v for v in values if abs(exact - v) == best)
        wanted = nearest[0] if ties == "lower" else min(nearest, key=lambda v: values.index(v) % 2)
        if len(nearest) == 2 and ties == "even" and len({values.index(v) % 2 for v in nearest}) == 1:
            assert values[code] in nearest  # neither code or both are even
        else:
            assert values[code] == wanted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": (Fraction(0),) * 3}, "3 values: 2, 4, 8"),
        ({"values": (Fraction(0),) * 4}, "must all be different"),
        ({"ties": "away"}, "ties='away': allowed are even, lower"),
        ({"unused": (4,)}, "codes below 4"),
        ({"bounds": (Fraction(1),)}, "3 increasing numbers"),
        ({"bounds": (Fraction(1), Fraction(0), Fraction(2))}, "3 increasing numbers"),
        ({"bounds": (0, 1, 10**400)}, "3 increasing numbers within float64"),
        ({"bounds": (0, 1, np.nan)}, "bounds=.*nan.*finite numbers"),
        ({"bounds": True}, "bounds=True: a tuple"),
        ({"values": None}, "values=None: a tuple"),
        ({"values": "0123"}, "values='0123': a tuple"),
        ({"values": (0, None)}, "values=.*finite numbers"),
        ({"values": (0, np.inf)}, "values=.*finite numbers"),
        ({"values": (0, Fraction(1, 3))}, r"Fraction\(1, 3\) is no float64"),
        ({"values": (0, 10**400)}, "is no float64"),
        ({"values": (0, Fraction(1, 10**400))}, "is no float64"),
        ({"values": (0, 2**53 + 1)}, "is no float64"),
        ({"unused": None}, "unused=None: a tuple"),
        ({"unused": [[]]}, "different codes below 4"),
        ({"unused": (0, 0)}, "different codes below 4"),
        ({"unused": (0, 1, 2)}, "different codes below 4"),
        ({"unused": (True,)}, "different codes below 4"),
        ({"ties": np.zeros(2)}, "allowed are even, lower"),
        ({"name": None}, "a name is a text"),
    ],
)
def test_impossible_codebooks(change, message):
    fields = {"name": "x", "values": tuple(map(Fraction, range(4)))} | change
    with pytest.raises(FormatError, match=message):
        Codebook(**fields)


def test_what_is_read_is_kept_as_fractions():
    values = (Fraction(0), Fraction(1, 2), Fraction(1), Fraction(-1))
    wanted = Codebook("x", values, bounds=(-1, 0, 1), unused=())
    for same in (["0", "1/2", 1, -1.0], np.array([0, 0.5, 1, -1]), (0, "0.5", np.float32(1), Fraction(-1))):
        made = Codebook("x", same, bounds=[-1, "0", 1.0], unused=[])
        assert made == wanted and hash(made) == hash(wanted) and made.values == values


def test_blocks_are_reached_from_the_package():
    assert numsim.blocks.INT4 is INT4
