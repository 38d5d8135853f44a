"""The traps of low-precision code, each with the wrong implementation written out: it fails, and numsim does not.

Each was seen in a published library or in drafts of this one. The right results are written down, or known from the
definition; where a trap is about rates, all 256 values of 8 random bits are tried, and the counts are exact.
"""

import math

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.testing import assert_bits_equal, bits_equal, boundary_codes, boundary_values, compare_bits

f = float.fromhex
BYTES = np.arange(256, dtype=np.uint8)  # all values of 8 random bits


def stochastic(x, format, random_bits=BYTES):
    return numsim.round_to(np.full(len(random_bits), x), format, rounding="stochastic", random_bits=random_bits)


# --- rounding ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("x", "format", "right"),
    [
        (-431.99999999999994, "e4m3", -416.0),
        (1 + 2**-8 + 2**-40, "bf16", 1.0078125),
        (2**-25 * (1 + 2**-52), "fp16", 2**-24),
        (f("0x1.d000000000001p+8"), "e4m3", math.nan),  # just above 464, where overflow begins
        (f("0x1.dfffff1p+15"), "e5m2", 57344.0),
        (2**-133 * 2.5 + 2**-180, "bf16", 3 * 2**-133),
    ],
)
def test_double_rounding_through_float32(x, format, right):
    wrong = numsim.round_to(float(np.float32(x)), format)
    assert_bits_equal(numsim.round_to(x, format), np.float64(right), nan="mask")
    assert not bits_equal(wrong, np.float64(right), nan="mask")


def test_int64_to_bf16_through_float32():
    x = np.array([16_973_823], np.int64)  # one below a tie, which FP32 makes of it
    wrong = x.astype(np.float32).astype(ml_dtypes.bfloat16)
    assert_bits_equal(numsim.array(x, "bf16"), [16_908_288.0])
    assert not bits_equal(wrong, [16_908_288.0])


def test_exponent_by_floor_of_log2():
    """Just below a power of two the logarithm is rounded to it: the exponent is one too large, the step twice."""

    def wrong(x, fraction_bits):
        exponent = math.floor(np.float32(math.log2(x)))
        step = 2.0 ** (exponent - fraction_bits)
        return round(x / step) * step

    x = 2.0**100 - 2.0**77  # a number of 23 bits: nothing is to be rounded
    assert numsim.round_to(x, "e8m22") == x
    assert wrong(x, 22) == 2.0**100


def test_add_a_half_then_floor():
    """The sum rounds, and ties go up."""

    def wrong(x):
        return math.floor(x / 0.5 + 0.5) * 0.5  # E2M1 below 2 is a grid of halves

    for x in (0.24999999999999997, 0.25):
        assert numsim.round_to(x, "e2m1") == 0.0
        assert wrong(x) == 0.5


def test_carry_from_subnormal_to_normal():
    def wrong(x):  # a fraction of two bits, the exponent field known to be 0
        return (round(x / 2.0**-16) & 0b11) * 2.0**-16

    x = 1.75 * 2**-15
    assert numsim.round_to(x, "e5m2") == 2**-14
    assert wrong(x) == 0.0


def test_carry_from_the_largest_number_to_overflow():
    def wrong(x, step):  # the significand is rounded, nobody looks again
        return round(x / step) * step

    for x, step, format in ((65520.0, 32, "fp16"), (248.0, 16, "e4m3_ieee")):
        assert numsim.round_to(x, format) == math.inf
        assert math.isfinite(wrong(x, step))


def test_overflow_tested_before_rounding():
    def wrong(x, format):
        format = numsim.get_format(format)
        return math.inf if x > format.max else numsim.round_to(x, format)

    for x, format, right in ((65519.0, "fp16", 65504.0), (61439.0, "e5m2", 57344.0)):
        assert numsim.round_to(x, format) == right
        assert wrong(x, format) == math.inf
    assert numsim.round_to(464.0, "e4m3") == 448.0  # a tie with 480, were there one


# --- NaN and zero -----------------------------------------------------------------------------------------------------
def test_nan_by_cutting_its_payload():
    x = boundary_codes("fp32").view(np.float32)
    x = x[np.isnan(x)]
    wrong = (x.view(np.uint32) >> 16).astype(np.uint16)
    assert_bits_equal(numsim.array(x, "bf16"), np.full(x.shape, 0x7FC0, np.uint16))
    assert compare_bits(wrong, numsim.array(x, "bf16"), nan="mask").counts == {"NaN on one side": 4}  # infinities


def test_nan_found_by_comparing_with_nan():
    def wrong(x):
        return 0x7F if x == math.nan else int(numsim.encode(max(-448.0, min(448.0, x)), "e4m3"))

    assert numsim.encode(math.nan, "e4m3", overflow="saturate") == 0x7F
    assert wrong(math.nan) == 0x7E  # 448


def test_minus_zero_by_sign_times_magnitude():
    def wrong(x):
        return np.sign(x) * numsim.round_to(np.abs(x), "fp16")

    x, right = np.array([-0.0, -(2.0**-149)]), np.array([-0.0, -0.0])
    assert_bits_equal(numsim.round_to(x, "fp16"), right)
    assert compare_bits(wrong(x), right).counts == {"sign of zero": 1}


# --- storing and comparing --------------------------------------------------------------------------------------------
def test_result_stored_in_the_dtype_of_the_input():
    x = np.float16([65504])

    def wrong(x):
        out = np.empty_like(x)
        with np.errstate(over="ignore"):
            out[:] = numsim.round_to(x, "bf16")
        return out

    assert numsim.round_to(x, "bf16").tolist() == [65536.0]
    assert wrong(x).tolist() == [math.inf]


@pytest.mark.skipif(int(np.__version__.partition(".")[0]) < 2, reason="NumPy 1 compares with Python numbers in float64")
def test_comparing_in_float32_what_is_no_float32():
    """NEP 50: beside a NumPy scalar a Python float is a float32 too."""

    def wrong(t):
        return bool(np.float32(t) == t)

    assert wrong(0.1) and wrong(1 + 2**-30)
    assert not bits_equal(np.float32(0.1), 0.1) and not bits_equal(np.float32(1 + 2**-30), 1 + 2**-30)
    assert bits_equal(np.float32(0.5), 0.5)


# --- stochastic rounding ----------------------------------------------------------------------------------------------
def test_stochastic_rounding_by_adding_floats():
    """The sum of the number and the random fraction rounds: exact values move."""

    def wrong(x, random):
        return math.floor(np.float32(x * 1024) + np.float32(random)) / 1024

    assert wrong(1.5, 1 - 2**-24) == 1537 / 1024
    x = np.arange(0x3C00, 0x4000, dtype=np.uint16).view(np.float16).astype(np.float64)
    for random in (0, 1, 2**32 - 1):
        rounded = numsim.round_to(x, "fp16", rounding="stochastic", random_bits=np.full(x.shape, random, np.uint32))
        assert_bits_equal(rounded, x)


def test_stochastic_rounding_with_a_shift_beyond_31():
    """A processor takes the count of a 32-bit shift modulo 32, so what is tiny becomes large again."""

    def wrong(exponent, random):  # of 2^exponent to FP16, in units of 2^-24; 24 bits of significand
        shift = -24 - exponent + 23 & 31
        return (1 << 23) + (random & (1 << shift) - 1) >> shift

    assert wrong(-60, 2**32 - 1) == 1
    assert numsim.round_to(2.0**-60, "fp16", rounding="stochastic", random_bits=np.uint32(2**32 - 1)) == 0.0


def test_stochastic_rounding_between_the_largest_number_and_overflow():
    """A quarter of the way to 65536 means infinity one time in four."""

    def wrong(x, random):
        return math.inf if random >= 128 else 65504.0

    assert np.count_nonzero(np.isinf(stochastic(65504.0 + 8, "fp16"))) == 64
    assert sum(wrong(65504.0 + 8, random) == math.inf for random in range(256)) == 128


def test_stochastic_rounding_with_a_sticky_bit():
    """What the random bits do not reach is dropped; or-ed into the last bit it would change the rate."""

    def wrong(fraction, random):
        kept = math.floor(fraction * 256)
        return (kept | (kept != fraction * 256)) + random >= 256

    for fraction, right, off in ((2 / 256 + 2**-12, 2, 3), (2**-9, 0, 1)):
        assert np.count_nonzero(stochastic(1 + fraction * 2**-10, "fp16") > 1) == right
        assert sum(wrong(fraction, random) for random in range(256)) == off


# --- arithmetic -------------------------------------------------------------------------------------------------------
def test_fma_through_float32():
    x, y, z = f("0x1.c64p-1"), f("0x1.8ccp+1"), f("-0x1.9dp+9")
    wrong = np.float16(np.float32(x) * np.float32(y) + np.float32(z))
    assert numsim.fma(*(numsim.array(v, "fp16") for v in (x, y, z))).values == -823.5
    assert wrong == -823.0


# --- machines and compilers -------------------------------------------------------------------------------------------
def test_a_host_that_flushes_subnormal_numbers():
    """BF16 has FP32's exponents: a flush before the cast loses numbers of BF16."""

    def wrong(x):
        return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x).astype(ml_dtypes.bfloat16)

    x = np.arange(1, 128, dtype=np.uint32).__lshift__(16).view(np.float32)
    right = np.arange(1, 128, dtype=np.uint16)  # all subnormal numbers of BF16
    assert compare_bits(wrong(x), right, "bf16").differ == 127
    assert_bits_equal(numsim.encode(x, "bf16"), right, "bf16")


def test_a_library_that_switches_the_flush_on():
    torch = pytest.importorskip("torch")
    x = np.arange(1, 128, dtype=np.uint32).__lshift__(16).view(np.float32)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no such switch")
    try:
        assert float(x[0] * np.float32(1)) == 0.0
        codes = numsim.encode(x, "bf16")
    finally:
        torch.set_flush_denormal(False)
    assert_bits_equal(codes, np.arange(1, 128, dtype=np.uint16), "bf16")


def test_a_compiler_that_drops_pairs_of_casts():
    """float32 -> BF16 -> float32 optimised to nothing: no value is far off, and none was rounded."""

    def wrong(x):
        return x

    x = boundary_values("bf16", "fp32")
    x = x[np.abs(x) <= numsim.BF16.max]
    right = numsim.array(x, "bf16")
    assert_bits_equal(numsim.round_to(x, "bf16"), right, "bf16")
    seen = compare_bits(wrong(x), right, "bf16")
    assert list(seen.counts) == ["no number of the format"] and seen.differ > x.size / 2


def test_tails_of_vector_loops():
    def wrong(x):
        out, whole = x.copy(), x.size // 8 * 8
        out[:whole] = numsim.round_to(x[:whole], "fp16")
        return out

    x = np.full(80, 0.1, np.float32)
    right = x.astype(np.float16)
    for n in range(80):
        assert_bits_equal(numsim.round_to(x[:n], "fp16"), right[:n], "fp16")
        assert bits_equal(wrong(x[:n]), right[:n], "fp16") == (n % 8 == 0)
