"""Comparing, sorting and extremes of Arrays: exact, whatever the formats. Oracles: Fraction, NumPy's float64."""

import itertools
import math
import operator
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numsim
from numsim import Array, Format, array, from_codes, ordering
from numsim.errors import InputError

ODD = [  # without subnormals, zero, sign; with infinities of their own; of 64 bits
    Format("gap", 3, 2, 3, subnormals=False), Format("fixed", 0, 5, 0, specials="finite"),
    Format("inf", 3, 2, 3, specials="fn", infinities=True), Format("powers", 5, 2, 9, signed=False, zero=False),
    Format("wide", 2, 61, 1, specials="fnuz"), Format("wider", 2, 62, 1, signed=False, specials="finite"),
]  # fmt: skip
SMALL = [f for f in numsim.list_formats() if f.bits <= 8] + ODD[:4]
quick = settings(max_examples=80, deadline=None, derandomize=True)


def number(code, format):
    """A code as Python compares it: Fraction, infinity, NaN, and whether it is -0."""
    kind = str(numsim.classify(code, format))
    negative = bool(format.sign_mask & code)
    if kind == "nan":
        return math.nan
    if kind == "infinity":
        return -math.inf if negative else math.inf
    return numsim.exact(code, format)


def total(code, format):
    """-0 before +0, NaN last."""
    x = number(code, format)
    return (True, 0, 0) if x != x else (False, x, not format.sign_mask & code)


def everything(format):
    return from_codes(np.arange(format.codes, dtype=f"u{format.code_bytes}"), format)


COMPARE = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("format", SMALL, ids=str)
def test_every_pair(format):
    x = everything(format)
    numbers = [number(c, format) for c in x.codes.tolist()]
    for compare in COMPARE:
        right = [[compare(a, b) for b in numbers] for a in numbers]
        got = compare(x[:, None], x)
        assert got.dtype == bool and got.tolist() == right


NAMES = ["e4m3", "e5m2", "e8m0", "ue4m3", "gap", "e2m1", "e3m4", "inf"]


@pytest.mark.parametrize(("a", "b"), list(itertools.pairwise(NAMES)))
def test_pairs_of_two_formats(a, b):
    a, b = ((next((f for f in ODD if f.name == n), None) or numsim.get_format(n)) for n in (a, b))
    x, y = everything(a)[::5], everything(b)[::3]
    pairs = [(number(p, a), number(q, b)) for p in x.codes.tolist() for q in y.codes.tolist()]
    for compare in COMPARE:
        assert compare(x[:, None], y).ravel().tolist() == [compare(*pair) for pair in pairs]


codes64 = st.integers(0, 2**64 - 1)


@quick
@given(st.sampled_from([numsim.FP64, *ODD[4:], numsim.get_format("e11m52"), numsim.get_format("e15m48")]), st.data())
def test_wide_formats(format, data):
    """Beyond float64 and beyond int64: integers and fractions of Python."""
    near = data.draw(st.lists(codes64, min_size=1, max_size=4))
    codes = sorted({(c + d) % 2**64 for c in [*near, 0, 1 << 63] for d in (-1, 0, 1)})
    x = from_codes(np.array(data.draw(st.permutations(codes)), np.uint64), format)
    order = sorted(range(x.size), key=lambda i: total(int(x.codes[i]), format))
    assert np.argsort(x).tolist() == order
    numbers = [number(c, format) for c in x.codes.tolist()]
    for compare in COMPARE:
        assert compare(x, x[::-1]).tolist() == [compare(a, b) for a, b in zip(numbers, numbers[::-1], strict=True)]
    finite = [n for n in numbers if n == n and abs(n) != math.inf]
    assert (x == finite[0]).tolist() == [n == finite[0] for n in numbers]
    assert (x < finite[0]).tolist() == [n < finite[0] for n in numbers]
    assert ordering.is_true(x.codes, format).tolist() == [n != 0 for n in numbers]


@quick
@given(st.sampled_from([*SMALL, numsim.FP16, numsim.BF16, numsim.FP32]), st.data())
def test_sorting(format, data):
    codes = data.draw(st.lists(st.integers(0, format.codes - 1), max_size=12))
    x = from_codes(np.array(codes, f"u{format.code_bytes}"), format)
    order = sorted(range(len(codes)), key=lambda i: total(codes[i], format))
    assert np.argsort(x).tolist() == x.argsort(kind="stable").tolist() == order
    in_order = np.sort(x)
    assert isinstance(in_order, Array) and in_order.codes.tolist() == [codes[i] for i in order]
    if codes:
        nans = [i for i, c in enumerate(codes) if number(c, format) != number(c, format)]
        least = (nans or order)[0]
        largest = nans[0] if nans else max(order, key=lambda i: (total(codes[i], format), -i))
        assert int(np.argmin(x)) == least and int(np.argmax(x)) == largest
        assert np.max(x).codes == codes[largest] and np.min(x).codes == codes[least]
        assert np.maximum.reduce(x).codes == np.max(x).codes and np.amin(x).codes == np.min(x).codes


numbers_of_few_kinds = st.sampled_from([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan, 0.1])


@quick
@given(st.lists(st.lists(numbers_of_few_kinds, min_size=3, max_size=3), min_size=1, max_size=4), st.data())
def test_axes_are_numpys(rows, data):
    """Along every axis what NumPy gives for the values."""
    x, values = array(rows, "fp32"), np.array(rows, np.float32)
    axis = data.draw(st.sampled_from([None, 0, 1, -1, (0, 1), ()]))
    keepdims = data.draw(st.booleans())
    for f in (np.max, np.min):
        got, right = f(x, axis=axis, keepdims=keepdims), f(values, axis=axis, keepdims=keepdims)
        assert got.shape == right.shape and np.array_equal(got.values, right, equal_nan=True)
    for f in (np.any, np.all, np.count_nonzero):
        assert np.array_equal(f(x, axis=axis, keepdims=keepdims), f(values, axis=axis, keepdims=keepdims))
    if not isinstance(axis, tuple):
        assert np.array_equal(np.sort(x, axis=axis).values, np.sort(values, axis=axis), equal_nan=True)
        for f, pick in ((np.argmax, np.max), (np.argmin, np.min)):
            place = f(x, axis=axis, keepdims=True)
            assert place.shape == f(values, axis=axis, keepdims=True).shape
            flat = x.ravel()[place] if axis is None else np.take_along_axis(x, place, axis)
            assert np.array_equal(flat.codes, pick(x, axis=axis, keepdims=True).codes)
    small = np.where(np.isfinite(values), values, 1)
    got = array(small, "fp32").sum(axis=axis, keepdims=keepdims)
    assert got.shape == small.sum(axis=axis, keepdims=keepdims).shape


@quick
@given(st.lists(st.sampled_from([0x0000, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0x7E00, 0xFE01, 0x0001]), max_size=9))
def test_unique(codes):
    x = from_codes(np.array(codes, np.uint16), "fp16")
    found, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    keys = [("nan" if numsim.classify(c, "fp16") == "nan" else c) for c in codes]
    assert found.codes.tolist() == [codes[i] for i in first] == np.unique(x).codes.tolist()
    assert np.array_equal(np.argsort(found), np.arange(found.size))
    assert [keys[first[i]] for i in inverse.tolist()] == keys and counts.tolist() == [
        keys.count(keys[i]) for i in first
    ]
    assert first.tolist() == [keys.index(keys[i]) for i in first]


def test_unique_takes_nan_for_no_zero():
    assert np.unique(array([np.nan, 0.0, np.nan], "fp16")).codes.tolist() == [0, 0x7E00]


def test_plain_numbers_are_compared_as_they_are():
    x = array([2.0**53, 0.5, np.nan], "fp64")
    for big in (2**53 + 1, Decimal(2**53 + 1), Fraction(2**53 + 1), str(2**53 + 1), np.array([2**53 + 1])):
        assert (x == big).tolist() == [False] * 3 and (x < big).tolist() == [True, True, False]
        assert (x != big).tolist() == [True] * 3 and (big > x).tolist() == [True, True, False]
    assert (x == [2**53, "1/2", 0]).tolist() == [True, True, False]
    assert (array([0.1], "fp16") == np.float16(0.1)).all() and (array([0.1], "bf16") == ml_dtypes.bfloat16(0.1)).all()
    assert (array(["1/3"], "fp64") < Fraction(1, 3)).tolist() == [float(1 / 3) < Fraction(1, 3)]
    assert (array([1.0], "fp16") == float("nan")).tolist() == [False]


def test_what_is_no_number_equals_none():
    y = array([1.0, 2.0], "fp16")
    for other in (1j, 1 + 0j, [None, 1], np.array([1j, 2]), np.ma.array([1.0, 2.0]), [[1], [1, 2]]):
        with pytest.raises(InputError):
            _ = y == other
    for other in (None, object(), "one", {1}, b"1"):
        assert (y == other).tolist() == [False, False] and (y != other).tolist() == [True, True]
        assert other not in y
        with pytest.raises(InputError):
            _ = y < other
    with pytest.raises(InputError, match=r"equal: shapes \(2,\) and \(3,\) do not broadcast"):
        _ = y == [1, 2, 3]


def test_questions_about_kinds():
    x = everything(numsim.E5M2)
    values = x.values
    for f in (np.isnan, np.isinf, np.isfinite, np.logical_not):
        assert np.array_equal(f(x), f(values)), f
    assert np.array_equal(np.signbit(x), x.codes >= 0x80)  # of NaN too
    assert not np.signbit(from_codes(0x80, "e4m3fnuz"))
    assert np.array_equal(np.logical_and(x, x[::-1]), np.logical_and(values, values[::-1]))
    assert np.array_equal(np.nonzero(x)[0], np.nonzero(values)[0])
    assert np.array_equal(np.argwhere(x), np.argwhere(values))
    for format in (*SMALL, *ODD[4:]):
        x = everything(format) if format.bits <= 8 else from_codes(np.array([0, 1 << 63, 2**64 - 1], np.uint64), format)
        kinds = np.array(["zero", "normal", "normal"]) if format is ODD[5] else numsim.classify(x.codes, format)
        assert np.array_equal(np.isnan(x), kinds == "nan") and np.array_equal(np.isinf(x), kinds == "infinity")


def test_choices_are_those_of_numsim():
    x, y = array([1.0, -0.0, np.nan, 3.0], "bf16"), array([2.0, 0.0, 5.0, -4.0], "bf16")
    for got, right in (
        (np.maximum(x, y), numsim.maximum(x, y)), (np.fmin(x, y), numsim.minimum_number(x, y)),
        (np.minimum(x, y), numsim.minimum(x, y)), (np.fmax(x, y), numsim.maximum_number(x, y)),
        (np.abs(x), numsim.abs(x)), (abs(x), numsim.abs(x)), (np.copysign(x, y), numsim.copysign(x, y)),
        (np.ldexp(x, 3), numsim.scale_b(x, 3)), (np.rint(x), numsim.round_to_integral(x)), (+x, x),
        (np.floor(x), numsim.round_to_integral(x, rounding="down")),
        (np.ceil(x), numsim.round_to_integral(x, rounding="up")),
        (np.trunc(x), numsim.round_to_integral(x, rounding="toward-zero")),
    ):  # fmt: skip
        assert isinstance(got, Array) and np.array_equal(got.codes, right.codes) and got.how == right.how
    nan = np.isnan(x)
    assert np.array_equal(np.copysign(x, array(-1.0, "fp16")).codes, np.where(nan, x.codes, x.codes | 0x8000))
    assert (np.abs(x) - x).how == "sub rounded once to bf16, nearest-even"


def test_empty_extremes():
    for f in (np.max, np.min, np.argmax):
        with pytest.raises(InputError, match=r"has no largest and no least number along axis None\. Example"):
            f(array([], "fp16"))
    assert np.max(array(np.zeros((3, 0)), "fp16"), axis=0).shape == (0,)
    for bad in (3, "a", (0, 0), 1.5, (0, 2)):
        with pytest.raises(InputError, match="axis="):
            np.max(array([[1.0]], "fp16"), axis=bad)


def test_equal_arrays():
    x = array([1.0, np.nan], "fp16")
    assert np.array_equal(x[:1], array([1.0], "bf16")) and np.array_equal(x[:1], [1.0]) and np.array_equal([1], x[:1])
    assert not np.array_equal(x, x) and np.array_equal(x, x, equal_nan=True) and not np.array_equal(x, x[:1])
    assert not np.array_equal(x[:1], array([[1.0]], "fp16"))
