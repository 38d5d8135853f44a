"""The oracle against everybody else: rationals, MPFR, NumPy and ml_dtypes. numsim takes no part here."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests import inputs, oracle

ML_DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3_ieee": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}


def fraction_of(pattern, width):
    """A finite pattern as an exact rational, through Python's own conversion."""
    dtype = np.uint64 if width == 64 else np.uint32
    return Fraction(float(inputs.as_float(np.array([pattern], dtype))[0]))


def sample(patterns, count, seed=3):
    return np.random.default_rng(seed).choice(patterns, min(count, patterns.size), replace=False)


def finite(patterns):
    negative, kind, _, _ = oracle.take_apart(patterns)
    return patterns[kind == 0], negative[kind == 0]


@pytest.mark.parametrize("width", [64, 32])
@pytest.mark.parametrize("name", oracle.SPECS)
def test_against_rationals(name, width):
    spec = oracle.SPECS[name]
    pool = inputs.boundaries(spec, width) if spec.bits <= 8 else inputs.thorough(spec, width, count=500, sample=200)
    patterns, negative = finite(sample(pool, 36 if spec.bits <= 16 else 16))
    numbers = [fraction_of(p, width) for p in patterns]
    located = oracle.Located(patterns, spec)
    policies = [(o, "keep") for o in oracle.OVERFLOWS] + [("ieee", s) for s in oracle.SUBNORMALS[1:]]
    for rounding in oracle.MODES:
        for overflow, subnormals in policies:
            got, _ = located.encode(rounding, overflow, subnormals)
            expected = [
                oracle.encode_fraction(x, spec, rounding, overflow, subnormals, n)
                for x, n in zip(numbers, negative, strict=True)
            ]
            assert got.tolist() == expected, (rounding, overflow, subnormals)


@pytest.mark.parametrize("r", [1, 8, 16, 32])
@pytest.mark.parametrize("name", [n for n in oracle.SPECS if n != "fp64"])
def test_stochastic_against_rationals(name, r):
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(r)
    pool = inputs.boundaries(spec, 64) if spec.bits <= 8 else inputs.thorough(spec, 64, count=500, sample=200)
    patterns, negative = finite(sample(pool, 60))
    random = rng.integers(0, 2**r, patterns.size, dtype=np.uint64)
    random[::4] = 2**r - 1
    random[1::4] = 0
    located = oracle.Located(patterns, spec)
    # half of the draws sit exactly on the step between staying and going up
    random[::2] = ((1 << r) - located.fraction(r)[::2]) & np.uint64(2**r - 1)
    random[::6] -= random[::6] > 0
    for overflow in oracle.OVERFLOWS:
        got, _ = located.encode("stochastic", overflow, r=r, random=random)
        expected = [
            oracle.encode_fraction(fraction_of(p, 64), spec, "stochastic", overflow, "keep", n, r, int(d))
            for p, n, d in zip(patterns, negative, random, strict=True)
        ]
        assert got.tolist() == expected


@pytest.mark.parametrize("name", ["fp32", "tf32", "fp16", "bf16", "e5m2", "e4m3_ieee", "e3m4"])
def test_against_mpfr(name):
    gmpy2 = pytest.importorskip("gmpy2")
    spec = oracle.SPECS[name]
    modes = {
        "nearest-even": gmpy2.RoundToNearest,
        "toward-zero": gmpy2.RoundToZero,
        "up": gmpy2.RoundUp,
        "down": gmpy2.RoundDown,
    }
    patterns, negative = finite(sample(inputs.thorough(spec, 64, with_nan=False), 2500))
    located = oracle.Located(patterns, spec)
    for rounding, mode in modes.items():
        # MPFR counts exponents for 1/2 <= significand < 1, and its emin is that of the least subnormal
        context = gmpy2.context(
            precision=spec.fraction + 1,
            emax=spec.bias + 1,
            emin=2 - spec.bias - spec.fraction,
            subnormalize=True,
            round=mode,
        )
        codes, _ = located.encode(rounding)
        with gmpy2.context(context):
            theirs = [gmpy2.mpfr(x) for x in inputs.as_float(patterns).tolist()]
        for code, their, pattern, sign in zip(codes.tolist(), theirs, patterns.tolist(), negative, strict=True):
            value = oracle.value_of(code, spec)
            if gmpy2.is_infinite(their):
                right = value == ("-inf" if their < 0 else "inf")
            else:
                right = value == Fraction(*(int(n) for n in their.as_integer_ratio()))
            right &= bool(code & spec.sign) == gmpy2.is_signed(their) == sign
            assert right, f"{pattern:#x} {rounding}: {code:#x}, MPFR says {their}"


def _cast(patterns, dtype, unsigned):
    with np.errstate(all="ignore"):
        return inputs.as_float(patterns).astype(dtype).view(unsigned)


NUMPY = [("fp16", np.float16, np.uint16), ("fp32", np.float32, np.uint32)]


@pytest.mark.parametrize(("name", "dtype", "unsigned"), NUMPY)
@pytest.mark.parametrize("width", [64, 32])
def test_against_numpy(name, dtype, unsigned, width):
    spec = oracle.SPECS[name]
    patterns = inputs.thorough(spec, width)
    theirs = _cast(patterns, dtype, unsigned)
    ours = oracle.encode(patterns, spec)
    nan = oracle.is_nan(ours, spec)
    assert np.array_equal(nan, oracle.is_nan(theirs, spec))
    assert np.array_equal(ours[~nan], theirs[~nan])


@pytest.mark.parametrize("name", ML_DTYPES)
def test_against_ml_dtypes_from_float32(name):
    spec = oracle.SPECS[name]
    patterns = inputs.thorough(spec, 32)
    located = oracle.Located(patterns, spec)
    ours, _ = located.encode(nan="zero")
    theirs = _cast(patterns, ML_DTYPES[name], spec.dtype)
    nan = oracle.is_nan(ours, spec)
    left_out = located.kind == 2 if spec.nan is None else np.zeros(nan.shape, bool)  # ml_dtypes makes -0 of NaN there
    if name == "e8m0":
        left_out |= _e8m0_differences(patterns, located, ours, theirs)
    keep = ~left_out
    assert np.array_equal(nan[keep], oracle.is_nan(theirs, spec)[keep])
    keep &= ~nan
    bad = np.flatnonzero(ours[keep] != theirs[keep])
    assert bad.size == 0, [(hex(patterns[keep][i]), hex(ours[keep][i]), hex(theirs[keep][i])) for i in bad[:5]]


def _e8m0_differences(patterns, located, ours, theirs):
    """Where ml_dtypes (and torch) choose otherwise; the format has no zero and OCP MX fixes no rounding."""
    # NaN of zero (torch: 2^-127 as here)
    assert np.all(theirs[located.zero] == 0xFF) and np.all(ours[located.zero] == 0)
    # ties always up, at the top to NaN; here to the even code
    tie = located.tie & ~located.negative
    assert np.array_equal(theirs[tie], located.below[tie] + 1) and np.all(ours[tie] % 2 == 0)
    # whatever is above 2^-127, a float32 subnormal, becomes 2^-126: no rounding to nearest
    low = (patterns > 0x400000) & (patterns < 0x800000)
    assert np.all(theirs[low] == 1) and np.any(ours[low] == 0)
    return located.zero | tie | low


@pytest.mark.parametrize("name", [*ML_DTYPES, "fp16"])
def test_values_against_ml_dtypes(name):
    spec = oracle.SPECS[name]
    codes = np.arange(1 << spec.bits, dtype=spec.dtype)
    theirs = codes.view(ML_DTYPES.get(name, np.float16)).astype(np.float32)
    ours = oracle.to_bits(codes, spec, 32)
    nan = oracle.is_nan(codes, spec)
    assert np.array_equal(nan, np.isnan(theirs))
    assert np.array_equal(ours[~nan], inputs.as_bits(theirs)[~nan])
    for code in codes[:: max(1, codes.size // 512)].tolist():
        value = oracle.value_of(code, spec)
        number = float(theirs[code])
        assert str(number) == value if isinstance(value, str) else Fraction(number) == value


@pytest.mark.parametrize("name", oracle.SPECS)
def test_every_value_is_its_own_code(name):
    spec = oracle.SPECS[name]
    if spec.bits <= 16:
        codes = np.arange(1 << spec.bits, dtype=np.uint64)
    else:
        codes = np.random.default_rng(5).integers(0, 2**spec.bits, 2000, dtype=np.uint64)
    codes = codes[~oracle.is_nan(codes, spec)]
    located = oracle.Located(oracle.to_bits(codes, spec), spec)
    for rounding in oracle.MODES:
        got, events = located.encode(rounding)
        assert np.array_equal(got, codes)
        assert events["inexact"] == events["overflow"] == events["underflow"] == events["nan"] == 0


def test_boundaries_hold_what_they_promise():
    """Every midpoint of E4M3, the overflow tie 464 and their neighbours are among the inputs."""
    spec = oracle.SPECS["e4m3fn"]
    patterns = set(inputs.boundaries(spec, 64).tolist())
    values = [oracle.value_of(c, spec) for c in range(0x7F)] + [Fraction(480)]
    for a, b in itertools.pairwise(values):
        middle = int(inputs.as_bits(np.array([(a + b) / 2], np.float64))[0])
        assert {middle - 1, middle, middle + 1} <= patterns
