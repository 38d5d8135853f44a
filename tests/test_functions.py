"""Elementary functions against MPFR (gmpy2), bit for bit, and against their own laws.

Two outsiders. MPFR's 53-bit result toward zero with its flag "inexact" is the exact result rounded to odd, which the
integer oracle (tests/oracle.py) then takes to every format, mode and policy. And MPFR itself, told a format's precision
and exponents, rounds in its own modes.

``python -m tests.test_functions`` prints the digests that ``tests/function_digests.txt`` holds.
"""

import ast
import hashlib
import struct
import threading
from functools import cache
from pathlib import Path

import gmpy2
import numpy as np
import pytest

import numsim
from numsim import _function_tables as tables
from numsim import elementary
from numsim.elementary import ELEMENTARY
from numsim.errors import InputError
from numsim.functions import FUNCTIONS
from numsim.random import Stream
from numsim.rounding import OVERFLOWS, ROUNDINGS, SUBNORMALS, Policy, round_rational
from numsim.values import NAN, Rational, to_rational
from tests import oracle

NAMES = tuple(FUNCTIONS)
MODES = oracle.MODES
DIGESTS = Path(__file__).with_name("function_digests.txt")
DIGESTED = ("fp16", "bf16", "e4m3fn", "e5m2", "e3m4")
SPECS = {
    **{name: spec for name, spec in oracle.SPECS.items() if spec.bits <= 16},
    "e6m9": oracle._ieee("e6m9", 6, 9),
    "e2m10": oracle._ieee("e2m10", 2, 10),
    "e10m5": oracle._ieee("e10m5", 10, 5),
}
BITS, FLOAT, NAN_BITS = struct.Struct("<Q"), struct.Struct("<d"), np.uint64(0x7FF8 << 48)


# --- the outsider -----------------------------------------------------------------------------------------------------
def mpfr(name, x):
    """A function of an mpfr number in the context that is set."""
    if name == "rsqrt":
        if x.is_zero() and gmpy2.is_signed(x):
            return gmpy2.mpfr("-inf")  # IEEE 754-2019, 9.2.1; mpfr_rec_sqrt(-0) is documented to be +inf
        return gmpy2.rec_sqrt(x)
    if name == "sigmoid":
        return logistic(x)
    return getattr(gmpy2, name)(x)


def logistic(x):
    """No function of MPFR's: from 200 bits, which tell it from all numbers and ties of 53 bits, and one rounding."""
    if gmpy2.is_finite(x) and not x.is_zero():
        with gmpy2.context(precision=200, emin=gmpy2.get_emin_min(), emax=gmpy2.get_emax_max()):
            # 1 - e^-100 and what is nearer to 1 lie between the same two numbers of 53 bits; e^-10^6 is below formats;
            # 1/2 + 2^-102 and what is nearer to 1/2 are alike again.
            x = max(min(x, gmpy2.mpfr(100)), gmpy2.mpfr(-(10**6)))
            x = max(x, gmpy2.mpfr(2) ** -100) if x > 0 else min(x, -(gmpy2.mpfr(2) ** -100))
            y = 1 / (1 + gmpy2.exp(-x))
        return +y
    return gmpy2.mpfr("nan") if gmpy2.is_nan(x) else gmpy2.mpfr(0 if x < 0 else 1 if x > 0 else 0.5)


def in_odd(name, x, context):
    """The FP64 pattern of f(x) rounded to odd, for an mpfr x. What is beyond 2^1000 is cut to it."""
    context.inexact = False
    y = mpfr(name, x)
    inexact = context.inexact
    bits = BITS.unpack(FLOAT.pack(float(y)))[0]
    if (y or inexact) and gmpy2.is_finite(y) and not 2**-1000 < abs(y) < 2**1000:  # (MPFR's exponents end as well)
        bits, inexact = (0x7E70 if abs(y) > 1 else 0x170) << 48 | (bits >> 63 << 63), True
    return bits | inexact


@cache
def operands(name):
    """All codes of a format as mpfr numbers."""
    bits = oracle.to_bits(np.arange(1 << SPECS[name].bits), SPECS[name])
    return [gmpy2.mpfr(float(x)) for x in bits.view(np.float64)]


@cache
def exact(function, name):
    """The patterns of f(x), rounded to odd, for all codes of a format."""
    with gmpy2.context(
        precision=53, round=gmpy2.RoundToZero, emin=gmpy2.get_emin_min(), emax=gmpy2.get_emax_max()
    ) as context:
        bits = np.array([in_odd(function, x, context) for x in operands(name)], np.uint64)
    return np.where(np.isnan(bits.view(np.float64)), NAN_BITS, bits)


def assert_codes(got, expected, rule, codes=None):
    bad = np.flatnonzero(got != expected)
    if bad.size:
        i = bad[0]
        code = i if codes is None else int(codes[i])
        raise AssertionError(
            f"{rule}: {bad.size} of {got.size} differ; first: operand {code:#x}: got {int(got[i]):#x}, "
            f"expected {int(expected[i]):#x}"
        )


def all_codes(name):
    return numsim.from_codes(np.arange(1 << SPECS[name].bits).astype(SPECS[name].dtype), SPEC_FORMATS[name])


SPEC_FORMATS = {name: numsim.get_format(name) for name in SPECS}


def check(function, source, policies, target=None):
    """All codes of a format, in these modes and policies."""
    target = target or source
    x, spec = all_codes(source), SPECS.get(target) or oracle.SPECS[target]
    locations = {}
    for rounding, overflow, subnormals in policies:
        flush = subnormals in ("flush-inputs", "flush")
        if flush not in locations:
            bits = exact(function, source)
            if flush:
                bits = np.where(is_subnormal(source), zeros_of(function, source), bits)
            locations[flush] = oracle.Located(bits, spec)
        after = "flush-results" if subnormals in ("flush-results", "flush") else "keep"
        expected, _ = locations[flush].encode(rounding, overflow, after, nan="zero", count=False)
        options = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals, "nan": "zero"}
        got = FUNCTIONS[function](x, format=target, **options).codes
        assert_codes(got, expected, f"{function} of {source} in {target}, {options}")


def is_subnormal(name):
    spec = SPECS[name]
    magnitude = np.arange(1 << spec.bits) & (spec.sign - 1)
    return (magnitude > 0) & (magnitude < spec.least_normal)


def zeros_of(function, name):
    """f(+0) or f(-0), by each code's sign."""
    spec = SPECS[name]
    with gmpy2.context(precision=53) as context:
        positive, negative = (np.uint64(in_odd(function, gmpy2.mpfr(z), context)) for z in ("0", "-0"))
    sign = (np.arange(1 << spec.bits) & spec.sign) != 0
    return np.where(sign & spec.signed, negative, positive)


POLICIES = [(r, o, s) for r in MODES for o in OVERFLOWS for s in SUBNORMALS]
PLAIN = [(r, "ieee", "keep") for r in MODES]
SOME = [*PLAIN, ("nearest-even", "saturate", "flush"), ("up", "saturate-finite", "flush-inputs"),
        ("down", "saturate", "flush-results")]  # fmt: skip


@pytest.mark.parametrize("function", NAMES)
@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_all_codes_of_16_bits(name, function):
    check(function, name, SOME)


@pytest.mark.parametrize("function", NAMES)
@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_all_codes_of_8_bits(name, function):
    check(function, name, SOME)


@pytest.mark.parametrize("function", NAMES)
@pytest.mark.parametrize(
    ("source", "target"), [("e4m3fn", "fp16"), ("e5m2", "e3m2"), ("bf16", "e8m0"), ("ue4m3", "fp32")]
)
def test_the_result_may_have_another_format(source, target, function):
    check(function, source, PLAIN, target)


# --- MPFR with a format's own precision and exponents -----------------------------------------------------------------
MPFR_MODES = {
    "nearest-even": gmpy2.RoundToNearest,
    "toward-zero": gmpy2.RoundToZero,
    "up": gmpy2.RoundUp,
    "down": gmpy2.RoundDown,
}


def check_mpfr(function, format, codes, modes=MPFR_MODES):
    """IEEE-style formats: MPFR rounds, overflows and makes subnormal numbers by itself."""
    precision, emin, emax = format.precision, format.emin + 1, format.emax + 1  # MPFR's significands are below 1
    with gmpy2.context(precision=max(precision, 53), emin=gmpy2.get_emin_min(), emax=gmpy2.get_emax_max()):
        xs = [gmpy2.mpfr(float(v)) for v in numsim.decode(codes, format)]
    x = numsim.from_codes(codes, format)
    for rounding in modes:
        with gmpy2.context(
            precision=precision, emin=emin - precision + 1, emax=emax, subnormalize=True, round=MPFR_MODES[rounding]
        ):
            expected = numsim.encode([float(mpfr(function, v)) for v in xs], format)  # exact: numbers of the format
        assert_codes(
            FUNCTIONS[function](x, rounding=rounding).codes, expected, f"{function} {format} {rounding}", codes
        )


@pytest.mark.parametrize("function", [n for n in NAMES if n != "sigmoid"])
@pytest.mark.parametrize("name", ["fp16", "bf16", "e5m2", "e3m4", "e10m5"])
def test_mpfr_told_the_format(name, function):
    format = numsim.get_format(name)
    step = max(format.codes // 1024, 1) | 1
    check_mpfr(function, format, np.arange(0, format.codes, step).astype(f"u{format.code_bytes}"))


@pytest.mark.parametrize("function", [n for n in NAMES if n != "sigmoid"])
@pytest.mark.parametrize(("name", "count"), [("fp32", 60), ("fp64", 60), ("tf32", 30)])
def test_wide_formats_one_by_one(name, count, function):
    format = numsim.get_format(name)
    rng = np.random.default_rng(NAMES.index(function))
    dtype = f"u{format.code_bytes}"
    anything = rng.integers(0, format.codes, count, dtype=np.uint64).astype(dtype)
    near_one = numsim.encode(rng.normal(size=count), format)
    edges = [0, 1, 2, format.max_code, format.max_code - 1, int(numsim.encode(1.0, format)) + 1]
    edges += [e | format.sign_mask for e in edges]
    check_mpfr(function, format, np.concatenate([anything, near_one, np.array(edges, dtype)]))


@pytest.mark.parametrize("function", [n for n in NAMES if n != "rsqrt"])  # which needs no error bound
def test_stated_errors_hold(function, monkeypatch):
    """Fixed point is never off by more than Ziv's loop takes it to be, at any precision, for large and small x."""
    seen = []
    monkeypatch.setattr(elementary, "_decide", lambda near, *rest: seen.append(near))
    rng = np.random.default_rng(NAMES.index(function))
    xs = [
        float(rng.normal() * 2.0**e) for e in (-60, -20, -5, -1, 0, 1, 2, 4, 7, 9, 12, 17, 40, 1000) for _ in range(3)
    ]
    for x in [*xs, 3.3, -5.7, 9.1, 11.9]:
        x = abs(x) if function in ("log", "log2") else x
        seen.clear()
        ELEMENTARY[function](to_rational(int(numsim.encode(x, "fp64")), numsim.FP64), 200)
        for near in seen:  # none where no bits are needed
            for k in (30, 69, 150, 333, 1100):
                a, e = near(k)
                with gmpy2.context(precision=k + 1200, emin=gmpy2.get_emin_min(), emax=gmpy2.get_emax_max()):
                    y = gmpy2.mpfr(x)
                    right = 1 / (1 + gmpy2.exp(-y)) if function == "sigmoid" else mpfr(function, y)
                    off = gmpy2.mul_2exp(abs(right), k - e) if k >= e else gmpy2.div_2exp(abs(right), e - k)
                    off = abs(off - abs(a))
                assert off < elementary._ERROR, (function, x, k, float(off))


# Found by exhaustive search: results of FP64 numbers that lie within 2^-112 or so of a number or a tie. V. Lefevre,
# J.-M. Muller, "Worst cases for correct rounding of the elementary functions in double precision", ARITH-15, 2001.
HARD = {"log": "0x1.62a88613629b6p+678", "exp": "0x1.9e9cbbfd6080bp-31"}


@pytest.mark.parametrize("function", HARD)
def test_hard_cases(function):
    x = numsim.array(HARD[function], "fp64")
    bits = ELEMENTARY[function](to_rational(int(x.codes), x.format), 160).numerator
    after = f"{bits:b}"[53:110]
    assert len(set(after[1:55])) == 1, after  # all alike: so near to a tie or a number
    check_mpfr(function, x.format, x.codes.reshape(1))


# --- special values, by the standard ----------------------------------------------------------------------------------
INF, MINUS_INF = Rational(0, 1, 0), Rational(1, 1, 0)
PLUS_0, MINUS_0 = Rational(0, 0, 1), Rational(1, 0, 1)
ONE, MINUS_ONE, HALF = Rational(0, 1, 1), Rational(1, 1, 1), Rational(0, 1, 2)
SPECIAL = {  # x: inf, -inf, +0, -0, -1
    "exp": (INF, PLUS_0, ONE, ONE, None),
    "exp2": (INF, PLUS_0, ONE, ONE, HALF),
    "log": (INF, NAN, MINUS_INF, MINUS_INF, NAN),
    "log2": (INF, NAN, MINUS_INF, MINUS_INF, NAN),
    "tanh": (ONE, MINUS_ONE, PLUS_0, MINUS_0, None),
    "sigmoid": (ONE, PLUS_0, HALF, HALF, None),
    "erf": (ONE, MINUS_ONE, PLUS_0, MINUS_0, None),
    "rsqrt": (PLUS_0, NAN, INF, MINUS_INF, NAN),
    "sin": (NAN, NAN, PLUS_0, MINUS_0, None),
    "cos": (NAN, NAN, ONE, ONE, None),
}


@pytest.mark.parametrize("name", NAMES)
def test_special_values(name):
    function = ELEMENTARY[name]
    assert function(NAN, 60) == NAN
    for x, expected in zip((INF, MINUS_INF, PLUS_0, MINUS_0, MINUS_ONE), SPECIAL[name], strict=True):
        assert expected is None or function(x, 60) == expected, (name, x)


def test_exact_results_are_exact():
    for n in (-1074, -3, -1, 0, 1, 2, 127, 1023):
        power = Rational(0, 1 << max(n, 0), 1 << max(-n, 0))
        assert ELEMENTARY["log2"](power, 60) == Rational(int(n < 0), abs(n), 1)
        assert ELEMENTARY["exp2"](Rational(int(n < 0), abs(n), 1), 60) == power
        if n % 2 == 0:
            assert round_rational(ELEMENTARY["rsqrt"](power, 60), numsim.FP64, Policy("odd")) & 1 == 0
    assert ELEMENTARY["log"](ONE, 60) == PLUS_0
    third = round_rational(ELEMENTARY["rsqrt"](Rational(0, 9, 1), 60), numsim.FP64, Policy())
    assert third == numsim.encode(1 / 3, "fp64")


@pytest.mark.parametrize("name", ["tanh", "erf", "sigmoid"])
def test_tails_never_reach_one(name):
    """Distances to 1 far below an ulp, in directed modes."""
    x = numsim.array([20.0, 1e4, 6e4], "fp16")
    below = numsim.from_codes(np.full(3, 0x3BFF, np.uint16), "fp16")
    for rounding in ("down", "toward-zero"):
        assert np.array_equal(FUNCTIONS[name](x, rounding=rounding).codes, below.codes)
    for rounding in ("up", "nearest-even", "nearest-away"):
        assert np.all(FUNCTIONS[name](x, rounding=rounding).values == 1)
    assert np.all(FUNCTIONS[name](numsim.array(np.full(4, np.inf), "fp16"), rounding="down").values == 1)


def test_beyond_every_format():
    far = Rational(0, 1 << 100, 1)
    small = Rational(1, 1 << 100, 1)
    widest = numsim.Format("widest", 15, 0, 0, specials="finite")
    for name in ("exp", "exp2"):
        assert round_rational(ELEMENTARY[name](far, 60), widest, Policy("down")) == widest.max_code
        assert round_rational(ELEMENTARY[name](small, 60), widest, Policy("up")) == 1
        assert round_rational(ELEMENTARY[name](small, 60), widest, Policy("down")) == 0
    assert round_rational(ELEMENTARY["sigmoid"](small, 60), widest, Policy("up")) == 1


def test_a_format_of_large_numbers():
    """Its least number is 2^11: what is beyond it is decided by its largest."""
    format = numsim.Format("large", 5, 10, bias=-20)
    x = numsim.array([5.0, 8.0, 30.0, 36.0, 37.0, 40.0, 700.0], "fp16")
    for rounding in ("nearest-even", "down"):
        expected = numsim.encode([float(gmpy2.exp(v)) for v in x.values], format, rounding=rounding)  # no hard cases
        for which in ("reference", "kernel"):
            with numsim.kernels.force(which):
                assert_codes(numsim.exp(x, format=format, rounding=rounding).codes, expected, f"{rounding}, {which}")


def test_exponents_that_no_float64_has():
    """A format of 16 bits, 13 of them exponent: from the reference, number by number."""
    format = numsim.get_format("e13m2")
    codes = np.random.default_rng(1).integers(0, format.codes, 40).astype(np.uint16)
    xs = [to_rational(c, format) for c in codes.tolist()]
    for function in ("log2", "rsqrt", "exp", "sin"):
        got = FUNCTIONS[function](numsim.from_codes(codes, format), rounding="down").codes
        with gmpy2.context(
            precision=3, emin=format.emin - 1, emax=format.emax + 1, subnormalize=True, round=gmpy2.RoundDown
        ) as context:
            for x, code in zip(xs, got.tolist(), strict=True):
                if x.denominator == 0:
                    continue
                value = gmpy2.mpfr(gmpy2.mpq(x.numerator, x.denominator))
                y = mpfr(function, -value if x.sign else value)
                right = (
                    format.nan_code
                    if gmpy2.is_nan(y)
                    else round_rational(
                        Rational(int(gmpy2.is_signed(y)), 1, 0)
                        if gmpy2.is_infinite(y)
                        else Rational(int(gmpy2.is_signed(y)), *map(int, abs(y).as_integer_ratio())),
                        format,
                        Policy(),
                    )
                )
                assert code == right, (function, x, context)


# --- laws -------------------------------------------------------------------------------------------------------------
def ordered(name):
    """The codes of all numbers, least first, without -0."""
    format = SPEC_FORMATS[name]
    top = format.max_code + (format.infinity_code is not None)
    return np.r_[np.arange(top, 0, -1) | format.sign_mask, np.arange(top + 1)].astype(f"u{format.code_bytes}")


@pytest.mark.parametrize("rounding", MODES[:-1])  # rounding to odd is not monotone
@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn"])
def test_monotone(name, rounding):
    codes = ordered(name)
    positive = codes[codes < SPECS[name].sign]
    for function in ("exp", "exp2", "tanh", "sigmoid", "erf", "log", "log2", "rsqrt"):
        x = numsim.from_codes(positive if function in ("log", "log2", "rsqrt") else codes, name)
        y = FUNCTIONS[function](x, rounding=rounding, overflow="saturate").values
        y = -y if function == "rsqrt" else y
        assert not np.isnan(y).any() and np.all(y[1:] >= y[:-1]), function


@pytest.mark.parametrize("name", ["fp16", "bf16", "e5m2"])
def test_symmetry(name):
    x = all_codes(name)
    minus = numsim.from_codes(x.codes ^ SPECS[name].dtype(SPECS[name].sign), name)
    mirror = {"up": "down", "down": "up"}
    for rounding in MODES:
        for function in ("tanh", "erf", "sin"):
            left = FUNCTIONS[function](minus, rounding=mirror.get(rounding, rounding))
            right = FUNCTIONS[function](x, rounding=rounding)
            turned = np.where(np.isnan(right.values), right.codes, right.codes ^ SPECS[name].dtype(SPECS[name].sign))
            assert_codes(left.codes, turned, f"{function} {rounding}")
        assert_codes(numsim.cos(minus, rounding=rounding).codes, numsim.cos(x, rounding=rounding).codes, "cos")


# --- tables and reference ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("function", NAMES)
def test_table_is_reference(function):
    rng = np.random.default_rng(NAMES.index(function))
    for name in ("fp16", "bf16", "e4m3fn", "e3m4", "e8m0"):
        format = numsim.get_format(name)
        x = numsim.from_codes(rng.integers(0, format.codes, 60).astype(f"u{format.code_bytes}"), format)
        for i, rounding in enumerate(ROUNDINGS):
            options = {"rounding": rounding, "overflow": OVERFLOWS[i % 3], "subnormals": SUBNORMALS[i % 4]}
            if rounding == "stochastic":
                options |= {"seed": 5}
            events = [numsim.Events(), numsim.Events()]
            with numsim.kernels.force("reference"):
                slow = FUNCTIONS[function](x, events=events[0], **options)
                plain = FUNCTIONS[function](x, **options)
            with numsim.kernels.force("kernel"):
                fast = FUNCTIONS[function](x, events=events[1], **options)
                quick = FUNCTIONS[function](x, **options)
            assert_codes(fast.codes, slow.codes, f"{function} {name} {options}", x.codes)
            assert_codes(quick.codes, plain.codes, f"{function} {name} {options}", x.codes)
            assert_codes(quick.codes, fast.codes, f"{function} {name} {options}", x.codes)
            assert events[0] == events[1], (function, name, options)


@pytest.mark.parametrize("function", NAMES)
@pytest.mark.parametrize("r", [32, 8, 1])
def test_stochastic(function, r):
    """Every code of FP16, with given bits: the fraction that decides is the exact one's."""
    random = np.random.default_rng(r).integers(0, 1 << r, 1 << 16, dtype=np.uint64).astype(np.uint32)
    expected, _ = oracle.Located(exact(function, "fp16"), SPECS["fp16"]).encode("stochastic", r=r, random=random)
    got = FUNCTIONS[function](all_codes("fp16"), rounding="stochastic", random_bits=random, sr_bits=r)
    assert_codes(got.codes, expected, f"{function}, {r} random bits")


def test_a_stream_moves_on():
    stream = Stream(3)
    x = numsim.array(np.linspace(-2, 2, 50), "bf16")
    both = [numsim.exp(x, rounding="stochastic", seed=stream) for _ in range(2)]
    assert stream.position == 100 and not np.array_equal(both[0].codes, both[1].codes)
    assert np.array_equal(numsim.exp(x, rounding="stochastic", seed=Stream(3, 50)).codes, both[1].codes)


def test_shapes_and_how():
    x = numsim.array(np.arange(12.0).reshape(3, 4), "fp16")
    for y in (numsim.log(x), numsim.log(x[:, ::2]), numsim.log(x.T), numsim.log(x[0, 0]), numsim.log(x[:0])):
        assert y.format == x.format
    assert numsim.log(x).shape == (3, 4) and numsim.log(x[1, 1]).shape == () and numsim.log(x[:0]).size == 0
    assert np.array_equal(numsim.log(x.T).codes, numsim.log(x).codes.T)
    how = numsim.log(x, format="bf16", rounding="up", overflow="saturate").how
    assert how == "log rounded once to bf16, up, overflow saturate"
    assert set(NAMES) <= set(numsim.__all__) and all(getattr(numsim, n) is FUNCTIONS[n] for n in NAMES)


def test_bad_calls():
    with pytest.raises(InputError, match=r"exp takes an Array, not 0.5. Example: numsim.exp\(numsim.array"):
        numsim.exp(0.5)
    x = numsim.array([-1.0], "e2m1")
    with pytest.raises(InputError, match="NaN has no code in e2m1"):
        numsim.log(x)
    assert numsim.log(numsim.array([2.0], "e2m1")).values[0] == 0.5  # no NaN among these: nothing to refuse
    assert numsim.log(x, nan="max").values[0] == 6
    for options in ({"rounding": "half-up"}, {"seed": 1}, {"events": 3}, {"rounding": "stochastic"}):
        with pytest.raises(InputError):
            numsim.exp(numsim.array([1.0], "fp16"), **options)


def test_counted_events():
    events = numsim.Events()
    numsim.log(numsim.array([-1.0, 0.0, 1.0, 2.0, np.nan], "fp16"), events=events)
    assert (events.total, events.nan, events.inexact, events.overflow) == (5, 1, 1, 0)
    events = numsim.Events()
    numsim.exp(numsim.array([100.0, -100.0, -10.0, 0.0], "fp16"), events=events)
    assert (events.total, events.overflow, events.underflow, events.subnormal, events.inexact) == (4, 1, 1, 1, 3)


# --- the cache, threads, digests --------------------------------------------------------------------------------------
@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMSIM_CACHE_DIR", str(tmp_path))
    tables.table.cache_clear()
    tables._rounded.cache_clear()
    yield tmp_path
    tables.table.cache_clear()
    tables._rounded.cache_clear()


def files(folder):
    return sorted(folder.rglob("*.table"))


def test_tables_are_kept_and_damage_is_noticed(empty_cache, monkeypatch):
    made = []
    monkeypatch.setattr(tables, "_odd", lambda *args, odd=tables._odd: made.append(1) or odd(*args))

    def read():
        tables.table.cache_clear()
        made.clear()
        return tables.table("tanh", numsim.E4M3), len(made)

    right, count = read()
    assert count == 256 and len(files(empty_cache)) == 1
    (path,) = files(empty_cache)
    whole = path.read_bytes()
    again, count = read()
    assert count == 0 and np.array_equal(again, right) and again.dtype == np.uint64
    tables.table("erf", numsim.E4M3)
    other = next(p for p in files(empty_cache) if p != path).read_bytes()
    flipped = bytearray(whole)
    flipped[-9] ^= 1
    for damaged in (whole[:-1], whole + b"\0", b"", bytes(flipped), other, b"\0" * len(whole)):
        path.write_bytes(damaged)
        again, count = read()
        assert count == 256 and np.array_equal(again, right)
        assert path.read_bytes() == whole  # put right
    path.unlink()
    path.mkdir()  # nothing can be read or written there
    again, count = read()
    assert count == 256 and np.array_equal(again, right)


def test_nothing_writable(tmp_path, empty_cache, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMSIM_CACHE_DIR", str(tmp_path / "file"))
    with numsim.kernels.force("kernel"):
        assert numsim.exp2(numsim.array([2.0], "e4m3")).values[0] == 4
    monkeypatch.delenv("NUMSIM_CACHE_DIR")
    monkeypatch.setattr(tables, "cache_home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert tables._path(b"x" * 32) is None


def test_formats_of_one_name_have_tables_of_their_own(empty_cache):
    one, two = (numsim.Format("mine", 4, 3, bias) for bias in (7, 9))
    with numsim.kernels.force("kernel"):
        results = [numsim.exp(numsim.from_codes(np.arange(256, dtype=np.uint8), f)).codes for f in (one, two)]
    assert not np.array_equal(*results) and len(files(empty_cache)) == 2


def test_threads_change_nothing(empty_cache, monkeypatch):
    codes = np.random.default_rng(0).integers(0, 1 << 16, 1 << 19).astype(np.uint16)
    x = numsim.from_codes(codes, "bf16")
    got = []
    workers = [threading.Thread(target=lambda: got.append(numsim.rsqrt(x).codes)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for number in ("1", "3"):
        monkeypatch.setenv("NUMSIM_THREADS", number)
        got.append(numsim.rsqrt(x).codes)
    expected = oracle.encode(exact("rsqrt", "bf16"), SPECS["bf16"])[codes]
    assert len(got) == 6
    for codes in got:
        assert np.array_equal(codes, expected)


def digests():
    """A line for each function and format: the first 16 digits of the SHA-256 of all results, mode by mode."""
    for name in DIGESTED:
        x = all_codes(name)
        for function in NAMES:
            codes = (FUNCTIONS[function](x, rounding=rounding).codes for rounding in MODES)
            words = (c.astype(f"<u{c.itemsize}").tobytes() for c in codes)
            yield " ".join([name, function, *(hashlib.sha256(w).hexdigest()[:16] for w in words)])


def test_digests():
    lines = [line for line in DIGESTS.read_text().splitlines() if not line.startswith("#")]
    assert list(digests()) == lines and len(lines) == len(DIGESTED) * len(NAMES)


def test_integers_alone():
    """No float, no division with a rest lost to one, no module but the square root of integers."""
    tree = ast.parse(Path(elementary.__file__).read_text("utf-8"))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Div), "a division that makes a float"
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "math":
            assert [a.name for a in node.names] == ["isqrt"]


if __name__ == "__main__":
    print(f"# the first 16 digits of SHA-256 of f(all codes in order), little-endian; by mode: {' '.join(MODES)}")  # noqa: T201
    print("\n".join(digests()))  # noqa: T201
