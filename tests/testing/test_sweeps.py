"""All codes, all pairs, boundaries and samples: complete, in order, bounded in memory; and they find wrong casts."""

from fractions import Fraction
from itertools import islice

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.testing import all_codes, all_pairs, bits_equal, boundary_codes, boundary_values, compare_bits, sample_codes
from numsim.testing.sweeps import CHUNK
from tests import oracle

SMALL = [f.name for f in numsim.list_formats() if f.bits <= 8]


@pytest.mark.parametrize("name", [f.name for f in numsim.list_formats() if f.bits <= 19])
def test_all_codes(name):
    format = numsim.get_format(name)
    (codes,) = all_codes(name)
    assert codes.dtype == f"uint{8 * format.code_bytes}" and np.array_equal(codes, np.arange(format.codes))


def test_wide_formats_come_in_parts():
    first, second, third = islice(all_codes("fp32"), 3)
    assert all(c.dtype == np.uint32 and c.size == CHUNK for c in (first, second, third))
    assert np.array_equal(np.concatenate([first, second, third]), np.arange(3 * CHUNK))
    assert sum(1 for _ in all_codes("e7m16")) == 2**24 // CHUNK


@pytest.mark.parametrize("name", ["e4m3", "e2m1", "e8m0"])
def test_all_pairs(name):
    n = numsim.get_format(name).codes
    ((a, b),) = all_pairs(name)
    assert np.array_equal(a.astype(int) * n + b, np.arange(n * n)) and a.dtype == b.dtype == np.uint8


def test_pairs_of_16_bits_come_in_parts():
    (a, b), (c, d) = islice(all_pairs("fp16"), 2)
    assert a.size == b.size == CHUNK and a.dtype == np.uint16
    numbers = np.concatenate([a, c]).astype(np.int64) << 16 | np.concatenate([b, d])
    assert np.array_equal(numbers, np.arange(2 * CHUNK))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: all_codes("fp64"), "sample_codes"),
        (lambda: all_codes("e8m40"), "sample_codes"),
        (lambda: all_pairs("fp32"), "operand_pairs"),
        (lambda: all_pairs("tf32"), "2\\^38"),
        (lambda: sample_codes("fp16", -1, 7), "n=-1"),
        (lambda: sample_codes("fp16", 1e3, 7), "n=1000.0"),
        (lambda: sample_codes("fp16", 2**40, 7), "2\\^28"),
        (lambda: sample_codes("fp16", True, 7), "n=True"),
        (lambda: sample_codes("fp16", 10, -1), "seed=-1"),
        (lambda: sample_codes("fp16", 10, "a"), "seed="),
        (lambda: boundary_values("fp16", "e15m10"), "float64 does not hold"),
        (lambda: boundary_values("e4m3", "int8"), r"codebook of 256 numbers.*boundary_values\('e4m3fn', 'fp64'\)"),
    ],
)
def test_too_much_is_refused_before_any_work(call, message):
    with pytest.raises(numsim.NumsimError, match=message):
        call()


@pytest.mark.parametrize("function", [all_codes, all_pairs, boundary_codes, boundary_values])
def test_an_unknown_format(function):
    with pytest.raises(numsim.FormatError, match="did you mean"):
        function("fp8")


# --- samples ----------------------------------------------------------------------------------------------------------
def test_samples_never_change():
    assert [hex(c) for c in sample_codes("fp32", 3, 7)] == ["0xc63b7155", "0x48cf60bc", "0x243d815d"]  # numsim.random
    assert [hex(c) for c in sample_codes("fp64", 1, 7)] == ["0xc63b715548cf60bc"]
    assert [hex(c) for c in sample_codes("e2m1", 3, 7)] == ["0xc", "0x4", "0x2"]
    assert sample_codes("fp16", 0, 7).size == 0


@pytest.mark.parametrize("name", ["e2m1", "e4m3", "fp16", "tf32", "fp32", "fp64", "e8m30"])
def test_samples_are_spread_evenly(name):
    format = numsim.get_format(name)
    codes = sample_codes(name, 1 << 14, seed=1)
    assert codes.dtype == f"uint{8 * format.code_bytes}" and int(codes.max()) < format.codes
    for bit in range(format.bits):  # each bit set half the time: 5 sigma
        assert abs(int(np.count_nonzero(codes >> codes.dtype.type(bit) & codes.dtype.type(1))) - (1 << 13)) < 5 * 64
    assert not np.array_equal(codes, sample_codes(name, 1 << 14, seed=2))


# --- boundaries -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", list(oracle.SPECS))
def test_boundary_codes(name):
    spec, codes = oracle.SPECS[name], boundary_codes(name)
    assert np.all(np.diff(codes.astype(object)) > 0) and codes.dtype == spec.dtype and int(codes[-1]) < 1 << spec.bits
    found = set(codes.tolist())
    signs = (0, spec.sign) if spec.signed else (0,)
    wanted = [0, 1, spec.least_normal, max(spec.least_normal - 1, 0), spec.least_normal + 1, spec.top, spec.top - 1]
    powers = [field << spec.fraction for field in range(1, (spec.top >> spec.fraction) + 1)]
    wanted += powers + [power - 1 for power in powers] + ([] if spec.inf is None else [spec.inf])
    assert {w | s for w in wanted for s in signs} <= found
    if spec.nan is not None:
        nans = oracle.is_nan(codes, spec)
        assert spec.nan in found and np.count_nonzero(nans) >= min(4, np.count_nonzero(nans))
    if spec.nans == "above inf":
        assert {spec.inf + 1, spec.sign - 1, spec.sign | spec.inf + 1} <= found  # the least and the greatest payload


def test_boundary_codes_stay_few():
    assert len(boundary_codes("fp64")) < 21_000 and len(boundary_codes("bf16")) < 2_600


@pytest.mark.parametrize("target", SMALL)
@pytest.mark.parametrize("source", ["fp64", "fp32", "fp16", "bf16"])
def test_boundary_values_of_small_formats(target, source):
    """Every number and every tie, and what the source has beside them."""
    spec, wide = oracle.SPECS[numsim.get_format(target).name], numsim.get_format(source)
    x = boundary_values(target, source)
    assert x.dtype == {"fp32": np.float32, "fp16": np.float16}.get(source, np.float64) and not np.isnan(x).any()
    found = set(x.astype(np.float64).tolist())
    assert {np.inf, -np.inf, 0.0} <= found and np.signbit(x[x == 0]).any()
    assert found == {-v for v in found}
    steps = range(2 * (spec.top + 2)) if spec.subnormal else range(2, 2 * (spec.top + 2))
    for half in steps:  # numbers and ties, the overflow threshold among them
        value = oracle._grid_fraction(half, spec, extra=1)
        if value > wide.max:
            continue
        code = int(numsim.encode(value, wide, rounding="down"))
        for near in range(max(code - 1, 0), min(code + 2, wide.max_code) + 1):
            exact = float(numsim.exact(near, wide))
            assert exact in found or (near == code + 2 and numsim.exact(code, wide) == value), (half, value, exact)


def test_ties_and_their_neighbours_are_there():
    x = boundary_values("bf16", "fp32")
    for binade in (-126, -10, -1, 0, 1, 100, 127):
        tie = np.float32(2.0**binade * (1 + 2**-8))
        beside = [tie, np.nextafter(tie, np.float32(0)), np.nextafter(tie, np.float32(np.inf))]
        assert np.isin(beside, x).all() and np.isin(-np.array(beside), x).all(), binade


def test_formats_that_keep_what_is_below_normal_for_zero():
    mine = numsim.Format("mine", 4, 3, 7, specials="fn", subnormals=False)
    x = boundary_values(mine)
    tie = float(mine.least_normal) / 2
    assert {tie, np.nextafter(tie, 0), np.nextafter(tie, 1)} <= set(x.tolist())


# --- what they are for ------------------------------------------------------------------------------------------------
def test_boundary_values_find_a_second_rounding():
    """FP64 to BF16 and E4M3 through FP32, as ml_dtypes does it."""
    for name, dtype in (
        ("bf16", ml_dtypes.bfloat16),
        ("e4m3", ml_dtypes.float8_e4m3fn),
        ("e5m2", ml_dtypes.float8_e5m2),
    ):
        x = boundary_values(name)
        with np.errstate(over="ignore"):
            twice = x.astype(np.float32).astype(dtype)
        assert not bits_equal(twice, numsim.array(x, name), nan="mask")
        assert bits_equal(numsim.array(x, name), numsim.encode(x.tolist(), name), nan="mask")


def test_boundary_values_of_a_sound_cast_differ_nowhere():
    x = boundary_values("bf16", "fp32")
    assert bits_equal(x.astype(ml_dtypes.bfloat16), numsim.array(x, "bf16"))
    x = boundary_values("fp16", "fp64")
    with np.errstate(over="ignore"):
        assert bits_equal(x.astype(np.float16), numsim.array(x, "fp16"))


def test_all_pairs_of_products():
    """Products of E5M2 computed by ml_dtypes."""
    for a, b in all_pairs("e5m2"):
        x, y = (numsim.from_codes(c, "e5m2") for c in (a, b))
        with np.errstate(all="ignore"):
            theirs = a.view(ml_dtypes.float8_e5m2) * b.view(ml_dtypes.float8_e5m2)
        seen = compare_bits(theirs, x * y, nan="mask")
        assert seen.equal and seen.compared == 65536, str(seen)


# --- codebooks --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("book", numsim.list_codebooks(), ids=str)
def test_sweeps_of_codebooks(book):
    (codes,) = all_codes(book)
    assert codes.tolist() == list(range(book.codes)) == boundary_codes(book).tolist()
    ((a, b),) = all_pairs(book)
    assert a.size == b.size == book.codes**2 and (a.astype(int) * book.codes + b == np.arange(a.size)).all()
    drawn = sample_codes(book, 4000, 3)
    assert drawn.dtype == np.uint8 and set(drawn.tolist()) == set(range(book.codes))


@pytest.mark.parametrize("book", numsim.list_codebooks(), ids=str)
@pytest.mark.parametrize(("source", "dtype"), [("fp32", np.float32), ("fp64", np.float64)])
def test_boundary_values_of_codebooks(book, source, dtype):
    """Each number and each limit with what the source has beside them; there the nearest code changes, nowhere else."""
    x = boundary_values(book, source)
    assert x.dtype == dtype and {np.inf, -np.inf, 0.0} <= set(x.tolist()) and not np.isnan(x).any()
    for point in (*book.values, *book.thresholds):
        near = dtype(float(point))
        assert {near, np.nextafter(near, dtype(-np.inf)), np.nextafter(near, dtype(np.inf))} <= set(x.tolist()), point
    x = np.sort(x[np.isfinite(x)])
    codes = numsim.encode(x, book)
    for i in np.flatnonzero(np.diff(numsim.decode(codes, book))):
        between = [t for t in book.thresholds if Fraction(float(x[i])) <= t <= Fraction(float(x[i + 1]))]
        assert len(between) == 1 and x[i + 1] <= np.nextafter(x[i], dtype(np.inf))
    assert len(set(codes.tolist())) == book.codes - len(book.unused)


def test_the_points_are_exact():
    """1 + 2^-8 is the tie above 1 in BF16; the next float64 is there as a float64, not as a Fraction rounded."""
    x = boundary_values("bf16")
    tie = 1 + Fraction(1, 256)
    above = min(v for v in map(Fraction, x[(x > 1) & np.isfinite(x)].tolist()) if v > tie)
    assert above - tie == Fraction(1, 2**52)
