"""Every class of difference, every message, and what is refused."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.testing import assert_bits_equal, bits_equal, compare_bits
from numsim.testing.compare import KINDS, NAN_BITS, OFF_GRID, ONE_INFINITY, ONE_NAN, SAME, VALUE, ZERO_SIGN


def said(*args, **options):
    with pytest.raises(AssertionError) as failure:
        assert_bits_equal(*args, **options)
    return str(failure.value)


# --- classes ----------------------------------------------------------------------------------------------------------
FP16 = {  # pairs of FP16 codes -> class and distance
    (0x0000, 0x8000): (ZERO_SIGN, None),
    (0x7E00, 0xFE00): (NAN_BITS, None),
    (0x7E00, 0x7E01): (NAN_BITS, None),
    (0x7E00, 0x7C01): (NAN_BITS, None),
    (0x7E00, 0x3C00): (ONE_NAN, None),
    (0x7C00, 0x7E00): (ONE_NAN, None),
    (0x7C00, 0x7BFF): (ONE_INFINITY, None),
    (0x7C00, 0xFC00): (ONE_INFINITY, None),
    (0x3C00, 0x3C01): (VALUE, 1),
    (0x3BFF, 0x3C01): (VALUE, 2),
    (0x0001, 0x8001): (VALUE, 2),  # zeros of both signs are one place
    (0x8000, 0x0001): (VALUE, 1),
    (0x0001, 0x8000): (VALUE, 1),
    (0x7BFF, 0xFBFF): (VALUE, 2 * 0x7BFF),
}


@pytest.mark.parametrize(("codes", "expected"), FP16.items())
def test_classes(codes, expected):
    a, b = (np.array([0x3C00, c], np.uint16) for c in codes)
    for left, right, format in ((a, b, "fp16"), (a.view(np.float16), b.view(np.float16), None)):
        for seen in (compare_bits(left, right, format), compare_bits(right, left, format)):
            assert not seen.equal and seen.differ == 1 and dict(seen.counts) == {expected[0]: 1}
            assert [(d.index, d.kind, d.ulps) for d in seen.shown] == [((1,), *expected)]
            assert seen.largest == (expected[1] or 0)
            assert not bits_equal(left, right, format)


def test_all_pairs_of_a_small_format_against_numpy():
    """The distance is that of the sorted values; the classes are NumPy's own."""
    codes = np.arange(256, dtype=np.uint8)
    a, b = np.repeat(codes, 256), np.tile(codes, 256)
    x, y = (c.view(ml_dtypes.float8_e5m2).astype(np.float64) for c in (a, b))
    order = np.unique(x[np.isfinite(x)])
    far = np.abs(np.searchsorted(order, x) - np.searchsorted(order, y))
    finite = np.isfinite(x) & np.isfinite(y)
    nan = np.isnan(x) & np.isnan(y)
    either_nan = np.isnan(x) ^ np.isnan(y)
    expected = {
        NAN_BITS: np.count_nonzero(nan & (a != b)),
        ONE_NAN: np.count_nonzero(either_nan),
        ONE_INFINITY: np.count_nonzero((np.isinf(x) | np.isinf(y)) & ~np.isnan(x) & ~np.isnan(y) & (a != b)),
        ZERO_SIGN: np.count_nonzero((x == 0) & (y == 0) & (a != b)),
        VALUE: np.count_nonzero(finite & (x != y)),
    }
    seen = compare_bits(a, b, "e5m2", max_shown=256 * 256)
    assert dict(seen.counts) == {k: n for k, n in expected.items() if n}
    assert len(seen.shown) == seen.differ == np.count_nonzero(a != b)
    for d in seen.shown:
        assert d.ulps == (far[d.index] if d.kind == VALUE else None)
    assert seen.largest == far[finite].max()
    bins = np.bincount(np.digitize(far[finite & (x != y)], [1, 2, 3, 11]), minlength=5)[1:].tolist()
    assert list(seen.ulps.values()) == bins and list(seen.ulps) == [
        "1 ulp",
        "2 ulps",
        "3 to 10 ulps",
        "more than 10 ulps",
    ]


def test_what_may_pass():
    a, b = np.float16([0.0, np.nan, 1]), np.array([0x8000, 0xFE01, 0x3C00], np.uint16).view(np.float16)
    assert dict(compare_bits(a, b).counts) == {ZERO_SIGN: 1, NAN_BITS: 1}
    seen = compare_bits(a, b, nan="mask", zero_sign=False)
    assert seen.equal and dict(seen.passed) == {ZERO_SIGN: 1, NAN_BITS: 1} and not seen.counts and not seen.shown
    assert bits_equal(a, b, nan="mask", zero_sign=False) and not bits_equal(a, b, nan="mask")
    assert_bits_equal(a, b, nan="mask", zero_sign=False)
    assert not bits_equal([0x7E00], [0x3C00], "fp16", nan="mask")  # a NaN is never a number
    assert "sign of zero                    1   let pass" in str(compare_bits(a, b, zero_sign=False))


@pytest.mark.parametrize("name", [f.name for f in numsim.list_formats() if f.bits <= 16])
def test_each_code_equals_itself_only(name):
    format = numsim.get_format(name)
    codes = np.arange(format.codes, dtype=np.uint64).astype(f"u{format.code_bytes}")
    assert bits_equal(codes, codes, name) and bits_equal(codes, numsim.from_codes(codes, name))
    other = np.roll(codes, 1)
    seen = compare_bits(codes, other, name, max_shown=0)
    assert seen.differ == codes.size and sum(seen.ulps.values()) == seen.counts[VALUE]


def test_wide_formats_count_steps_beyond_63_bits():
    a, b = (np.array([x]) for x in (np.finfo(np.float64).max, np.finfo(np.float64).min))
    assert compare_bits(a, b).largest == 2 * 0x7FEFFFFFFFFFFFFF
    wide = numsim.Format("wide", 8, 56, 127, signed=False, specials="finite")
    assert compare_bits([0], [2**64 - 1], wide).largest == 2**64 - 1
    assert compare_bits([5], [7], "e15m10").shown[0].actual == "0x0000005 = 1.25 x 2^-16390"


# --- what is compared -------------------------------------------------------------------------------------------------
def test_the_same_numbers_of_many_libraries():
    values = [1.0, -2.5, 0.0, 448.0]
    array = numsim.array(values, "bf16")
    same = [array, array.codes, np.array(values, ml_dtypes.bfloat16), array.codes.astype(">u2"), values,
            [Fraction(v) for v in values], ["1", "-2.5", "0", "4.48e2"]]  # fmt: skip
    for x in same:
        assert bits_equal(x, array) and bits_equal(array, x)
        for y in same[:4]:  # typed; two lists would be FP64
            codes = all(isinstance(side, np.ndarray) and side.dtype.kind == "u" for side in (x, y))
            assert isinstance(x, list) or bits_equal(x, y, "bf16" if codes else None)
    assert bits_equal(np.float32(values), array, "bf16") and bits_equal(np.float64(values), values, "bf16")


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, -0.0, 3.5])
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float8_e4m3fn, "e4m3"), (torch.float16, "fp16")):
        assert bits_equal(x.to(dtype), numsim.array([1.0, -0.0, 3.5], name))
        assert "0x80" in said(x.to(dtype), numsim.array([1.0, 0.0, 3.5], name))
    payload = torch.tensor([0x7FC1], dtype=torch.uint16).view(torch.bfloat16)
    assert dict(compare_bits(payload, [float("nan")]).counts) == {NAN_BITS: 1}
    assert bits_equal(torch.tensor([0x7E], dtype=torch.uint8), [448.0], "e4m3")
    assert bits_equal(x.requires_grad_(), x.detach().numpy())


X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("x", [X[::2], X[::-1], X.T, X[None], X[:0], X[1, 2], X.astype(">f4"), X.astype(">f4")[:, 1]])
def test_memory_is_no_difference(x):
    assert_bits_equal(x, x.astype(np.float32, order="C"))
    assert_bits_equal(x, numsim.array(x, "fp32"))


def test_read_only_and_untouched():
    x = np.float32([1, np.nan, -0.0])
    x.flags.writeable = False
    before = x.tobytes()
    assert not bits_equal(x, np.float32([2, 3, 0.0]))
    assert x.tobytes() == before


def test_values_that_are_no_numbers_of_the_format():
    """Floats of a wider type are found where they were not rounded."""
    x = np.float32([1.0, 1.001, 2.0, np.inf, np.nan, -0.0])
    rounded = x.astype(ml_dtypes.bfloat16)
    seen = compare_bits(x, rounded, "bf16")
    assert dict(seen.counts) == {OFF_GRID: 1}
    (d,) = seen.shown
    assert (d.index, d.actual, d.expected) == ((1,), "1.00100005", "0x3f80 = 1")
    assert d.ulps == Fraction(float(x[1]) - 1) / Fraction(1, 128)
    assert dict(compare_bits(x, x, "bf16").counts) == {OFF_GRID: 1}  # on both sides, too
    assert compare_bits(np.float32(0.1), 0.1).counts == compare_bits(np.float32(0.1), "0.1").counts == {OFF_GRID: 1}
    assert compare_bits([float("nan")], [0.0], "e2m1").counts == {OFF_GRID: 1}  # no NaN there
    assert compare_bits([-0.0], [0.0], "e4m3fnuz").counts == {OFF_GRID: 1}  # no -0
    assert compare_bits([-1.0], [1.0], "e8m0").counts == {OFF_GRID: 1}
    assert compare_bits([Fraction(1, 3)], [0.5], "e15m10").counts == {OFF_GRID: 1}
    assert bits_equal([Fraction(1, 4), "0.25"], [0.25, 0.25], "e15m10")


def test_whole_numbers_are_codes_where_a_format_is_asked_for_and_values_where_not():
    one = np.float16([1])
    assert bits_equal(one, [1]) and bits_equal(one, [0x3C00], "fp16") and bits_equal(one, [1.0], "fp16")
    assert not bits_equal(one, [1], "fp16")
    assert bits_equal(0.1 + 0.2, 0.30000000000000004) and bits_equal(3, 3.0)


# --- messages ---------------------------------------------------------------------------------------------------------
def test_the_message():
    x, y = np.ones((64, 64), np.float16), np.ones((64, 64), np.float16)
    y.view(np.uint16)[3, 5] += 1
    y.view(np.uint16)[10, 0] -= 7
    y[60, 63], x[60, 63] = 0.0, -0.0
    y[61, 0] = np.nan
    assert said(x, y, names=("mine", "numsim")) == (
        "mine and numsim differ in 4 of 4096 numbers of fp16\n"
        "  NaN on one side                 1\n"
        "  value                           2   1 ulp: 1, 3 to 10 ulps: 1, largest 7\n"
        "  sign of zero                    1\n"
        "  index     mine         numsim                ulps\n"
        "  [3, 5]    0x3c00 = 1   0x3c01 = 1.00097656   1\n"
        "  [10, 0]   0x3c00 = 1   0x3bf9 = 0.996582031  7\n"
        "  [60, 63]  0x8000 = -0  0x0000 = 0\n"
        "  [61, 0]   0x3c00 = 1   0x7e00 = nan"
    )


def test_ten_are_shown_or_as_many_as_asked_for():
    x = np.arange(30, dtype=np.uint8)
    text = said(x, x + np.uint8(1), "e4m3").splitlines()
    assert sum(line.startswith("  [") for line in text) == 10 and text[-1] == "  and 20 more"
    assert said(x, x + np.uint8(1), "e4m3", max_shown=0).splitlines()[-1].startswith("  value")
    assert len(compare_bits(x, x + np.uint8(1), "e4m3", max_shown=99).shown) == 30


def test_differences_far_apart_are_all_counted():
    """More numbers than are looked at together."""
    x = np.zeros(2_500_000, np.uint8)
    y = x.copy()
    y[[0, 1_048_576, 2_499_999]] = 1
    seen = compare_bits(x, y, "e4m3", max_shown=2)
    assert (seen.differ, seen.compared) == (3, x.size) and [d.index for d in seen.shown] == [(0,), (1_048_576,)]


@pytest.mark.parametrize(
    ("a", "b", "format"),
    [
        (np.float64([[-1.2345678901234567e-308, np.nan]]), np.float64([[1.7976931348623157e308, -np.inf]]), None),
        (np.float64(1), 1.0000000000000002, None),
        (10**400, "1e-400", None),
        (np.full((3, 1, 2), 1e-45, np.float32), np.full((3, 1, 2), -3.40282347e38, np.float32), None),
        ([0], [2**30 - 1], "e15m14"),
        (np.float32([1.1]), [1.0], "e2m1"),
    ],
)  # fmt: skip
def test_messages_fit_80_columns(a, b, format):
    text = said(a, b, format)
    assert max(map(len, text.splitlines())) <= 76 and text.isascii(), text


def test_wide_numbers_stand_one_above_the_other():
    assert said(np.float64([1.0]), [1.0000000000000002]).splitlines()[2:] == [
        "  at [0], 1 ulp apart",
        "    actual    0x3ff0000000000000 = 1",
        "    expected  0x3ff0000000000001 = 1.0000000000000002",
    ]


def test_a_comparison_that_holds_says_so():
    assert str(compare_bits([1, 2], [1, 2], "e4m3")) == "actual and expected agree in 2 numbers of e4m3fn"


@pytest.mark.parametrize(
    ("a", "b", "format", "message"),
    [
        (np.zeros(3, np.float32), np.zeros((3, 1), np.float32), None, "shapes differ: actual (3,), expected (3, 1)"),
        (np.zeros(1, np.float32), 0.0, None, "shapes differ: actual (1,), expected ()"),
        (np.zeros(2, np.float32), np.zeros(2), None,
         "formats differ: actual fp32 (numpy float32), expected fp64 (numpy float64)"),
        (numsim.array([1.0], "fp16"), np.ones(1, ml_dtypes.bfloat16), None,
         "formats differ: actual fp16 (numsim Array), expected bf16 (numpy bfloat16)"),
        (numsim.array([1.0], "fp16"), [1.0], "bf16",
         "formats differ: actual fp16 (numsim Array), asked for is bf16"),
        (np.zeros(2, np.uint8), np.zeros(2, np.uint16), "e4m3",
         "dtypes differ: actual numpy uint8, expected numpy uint16"),
    ],
)  # fmt: skip
def test_what_is_told_before_any_number(a, b, format, message):
    assert said(a, b, format) == message
    seen = compare_bits(a, b, format)
    assert not seen.equal and seen.compared == seen.differ == 0 and str(seen) == seen.mismatch == message


# --- refused ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("bad", "format", "message"),
    [
        (np.zeros(3, object), None, "numpy object"),
        (np.zeros(3, "i4,f4"), None, "compared are floats of a format that numsim knows"),
        (np.zeros(3, np.complex64), None, "numpy complex64"),
        (np.zeros(3, "datetime64[s]"), None, "numpy datetime64"),
        (np.array(["a"]), None, "numpy str"),
        (np.zeros(3, np.longdouble), None, np.dtype(np.longdouble).name),
        (np.ma.masked_array([1.0], [True]), None, "masked"),
        (np.zeros(3, np.int16), "fp16", r"x.view\(numpy.uint"),
        (np.zeros(3, bool), "fp16", "codes are unsigned integers"),
        (np.zeros(3, ml_dtypes.int4), None, "compared are floats"),
        (np.zeros(3, np.uint8), None, "of which format are these codes"),
        (np.array([300], np.uint16), "e4m3", "out of range"),
        ([-1], "e4m3", "out of range"),
        ([1, 2.0, 3], "fp16", "are mixed"),
        ([[1, 2], [3]], "fp16", "unequal lengths"),
        (["x"], None, "no number"),
        (None, None, "no number"),
        ({1: 2}, None, "no number"),
        (1j, None, "complex"),
        (np.broadcast_to(np.float32(0), (1 << 20, 1 << 20)), None, r"2\^31"),
    ],
)  # fmt: skip
def test_what_has_no_bits_to_compare(bad, format, message):
    """Refused on either side, and nothing but numsim's own error comes out."""
    other = bad if isinstance(bad, np.ndarray) and bad.dtype.kind == "u" else [0.0] if format is None else [0]
    for args in ((bad, bad), (bad, other)):
        with pytest.raises(numsim.InputError, match=message):
            compare_bits(*args, format)
        with pytest.raises(numsim.NumsimError):
            assert_bits_equal(*args[::-1], format)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nan": "ignore"}, "allowed are bits, mask"),
        ({"zero_sign": "no"}, "zero_sign="),
        ({"max_shown": -1}, "max_shown=-1"),
        ({"max_shown": 2.5}, "max_shown=2.5"),
        ({"names": "mine"}, "two texts"),
        ({"names": ("a", 1)}, "two texts"),
        ({"names": ("a", "b", "c")}, "two texts"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(numsim.InputError, match=message):
        compare_bits([1.0], [1.0], **options)


def test_an_unknown_format():
    with pytest.raises(numsim.FormatError, match="did you mean e4m3"):
        assert_bits_equal([1], [1], "fp8")


def test_the_failure_points_at_the_test():
    """pytest leaves frames out that say so."""
    with pytest.raises(AssertionError) as failure:
        assert_bits_equal(1.0, 2.0)
    assert failure.traceback[-1].frame.f_locals["__tracebackhide__"] is True


def test_kinds_are_told_in_one_order():
    assert KINDS == (OFF_GRID, ONE_NAN, ONE_INFINITY, VALUE, ZERO_SIGN, NAN_BITS, SAME)


# --- codebooks --------------------------------------------------------------------------------------------------------
def test_codes_of_codebooks():
    """Steps are those from number to number in order of size, whatever the codes."""
    book = numsim.get_format("nf4")
    codes = np.arange(16, dtype=np.uint8)
    a, b = np.repeat(codes, 16), np.tile(codes, 16)
    seen = compare_bits(a, b, book, max_shown=256)
    assert dict(seen.counts) == {VALUE: 240} and {d.ulps for d in seen.shown} == set(range(1, 16))
    assert all(d.ulps == abs(int(a[d.index]) - int(b[d.index])) for d in seen.shown)  # NF4's codes are in order
    assert compare_bits([0x80, 0x01], [0x7F, 0xFF], "int8").largest == 255
    assert "0x3 = 1  " in said([3], [4], "bnb_fp4") and "0.333333343" in said([3], [4], "bnb_fp4")


def test_a_value_with_two_codes():
    seen = compare_bits([8, 0, 8], [0, 8, 1], "bnb_fp4")  # the second zero: what came from below
    assert dict(seen.counts) == {VALUE: 1, ZERO_SIGN: 2} and bits_equal([8], [0], "bnb_fp4", zero_sign=False)
    twice = numsim.Codebook("twice", (0, 1, 1, 2), unused=(2,))
    assert [d.kind for d in compare_bits([1, 1], [2, 3], twice).shown] == [SAME, VALUE]
    gap = numsim.Format("gap", 4, 3, 7, subnormals=False)
    assert [d.kind for d in compare_bits([1, 0, 1], [2, 0x80, 8], gap).shown] == [SAME, ZERO_SIGN, VALUE]


def test_floats_that_should_be_numbers_of_a_codebook():
    x = np.float32([-1, 0.5, np.nan, 300, 7])
    seen = compare_bits(x, numsim.encode([-1, 0, 0, 7, 7], "int4"), "int4")
    assert dict(seen.counts) == {OFF_GRID: 3} and [d.ulps for d in seen.shown] == [Fraction(1, 2), None, 293]
    assert_bits_equal(numsim.decode([1, 9, 15], "int4"), [1, 9, 15], "int4")
    with pytest.raises(numsim.InputError, match="from 0 to 0xf"):
        bits_equal([16], [1], "int4")
