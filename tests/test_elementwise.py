"""The rest of IEEE 754-2019 against outsiders that share no code with numsim, bit for bit, by both implementations.

The outsiders: fractions and the integer oracle of tests/oracle.py; C's ``remainder``, NumPy's ``nextafter``, ``rint``
and kin on float64; MPFR with the format's own range. Digests of all pairs of codes of every 8-bit format are in
``digests_operations.txt``; ``python -m tests.test_elementwise`` prints them.
"""

import contextlib
import hashlib
import itertools
import math
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.arithmetic import ARITY, EXTREMES, OPERATIONS
from numsim.arithmetic import compare as compare_rationals
from numsim.errors import InputError, RangeError, UnavailableError
from numsim.values import to_rational
from tests import oracle
from tests.test_arithmetic import (
    ML_DTYPES,
    Mpfr,
    all_pairs,
    assert_codes,
    flushed,
    nan_option,
    number,
    rounded,
    tricky_codes,
)  # fmt: skip

SEVEN = ("fp64", "fp32", "fp16", "bf16", "e4m3fn", "e5m2", "e3m2")
NEW = [name for name in OPERATIONS if name not in ("add", "sub", "mul", "div", "sqrt", "fma")]
DIGESTS = Path(__file__).with_name("digests_operations.txt")


@pytest.fixture(params=("reference", "kernel"))
def implementation(request):
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(numsim.kernels.force(request.param))
        except UnavailableError as error:
            pytest.skip(str(error))
        yield request.param


def arrays(name, *codes):
    return [numsim.from_codes(c, name) for c in codes]


def codes_of(spec, count, seed):
    if spec.bits <= 8:
        return np.arange(1 << spec.bits).astype(spec.dtype)
    return tricky_codes(spec, count, np.random.default_rng(seed))


def as_float64(codes, spec):
    """What the codes stand for (all of the specs here are in float64)."""
    return oracle.to_bits(codes, spec).view(np.float64)


def encoded(floats, spec, rounding="nearest-even"):
    """Codes of float64 numbers, by the integer oracle; NaN is zero where there is none."""
    bits = np.ascontiguousarray(floats, np.float64).view(np.uint64)
    return oracle.Located(bits.ravel(), spec).encode(rounding, nan="zero", count=False)[0].reshape(floats.shape)


# --- remainder --------------------------------------------------------------------------------------------------------
def c_remainder(x, y):
    try:
        return math.remainder(x, y)
    except ValueError:
        return math.nan


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_remainder_of_all_pairs(name):
    """The C library on float64, where 8-bit numbers and what remains of them are exact; all modes."""
    spec = oracle.SPECS[name]
    a, b = all_pairs(spec)
    x, y = (as_float64(c, spec).tolist() for c in (a, b))
    right = encoded(np.array(list(map(c_remainder, x, y))), spec)
    for rounding in (*oracle.MODES, "stochastic"):
        seed = {"seed": 1} if rounding == "stochastic" else {}
        got = numsim.remainder(*arrays(name, a, b), rounding=rounding, **nan_option(spec), **seed).codes
        assert_codes(got, right, (a, b), f"{name} remainder, {rounding}")


def exact_remainder(x, y):
    """(negative, size) of x - n y, by Python's own rounding of fractions, which is half to even."""
    (x_negative, a), (y_negative, b) = x, y
    if "nan" in (a, b) or a == "inf" or b == 0:
        return (False, "nan")
    if b == "inf":
        return x
    a, b = (-a if x_negative else a), (-b if y_negative else b)
    rest = a - b * round(a / b)
    return (rest < 0 if rest else x_negative, abs(rest))


@pytest.mark.parametrize("name", SEVEN)
def test_remainder_by_fractions(name, implementation):
    spec = oracle.SPECS[name]
    few = 120 if spec.bits == 64 else 400
    rng = np.random.default_rng(5)
    a, b = (tricky_codes(spec, few, rng) for _ in range(2))
    b[: few // 2] = a[: few // 2] ^ rng.integers(0, 1 << min(spec.fraction + 2, spec.bits - 2), few // 2).astype(
        spec.dtype
    )
    pairs = [(number(int(x), spec), number(int(y), spec)) for x, y in zip(a, b, strict=True)]
    if spec.bits == 64 and implementation == "kernel":
        assert numsim.kernels.use(few)
    for rounding in oracle.MODES:
        right = np.array([rounded(exact_remainder(*p), spec, rounding) for p in pairs], spec.dtype)
        got = numsim.remainder(*arrays(name, a, b), rounding=rounding, **nan_option(spec)).codes
        assert_codes(got, right, (a, b), f"{name} remainder {rounding}")


@pytest.mark.parametrize("name", ["fp64", "fp32", "fp16", "bf16", "e5m2"])
def test_remainder_by_mpfr(name, implementation):
    gmpy2 = pytest.importorskip("gmpy2", reason="MPFR is the outsider here: pip install gmpy2")
    spec = oracle.SPECS[name]
    mpfr = Mpfr(spec, gmpy2)
    rng = np.random.default_rng(6)
    a, b = (tricky_codes(spec, 300, rng) for _ in range(2))
    right = mpfr.codes("remainder", [(mpfr.operand(int(x)), mpfr.operand(int(y))) for x, y in zip(a, b, strict=True)],
                       "nearest-even")  # fmt: skip
    assert_codes(numsim.remainder(*arrays(name, a, b)).codes, right, (a, b), f"{name} remainder against MPFR")


def test_remainder_of_huge_and_tiny(implementation):
    x = numsim.from_codes(np.array([0x7FEFFFFFFFFFFFFF, 0x7FE0000000000001, 5, 0x10000000000000], np.uint64), "fp64")
    y = numsim.from_codes(np.array([3, 0x7FEFFFFFFFFFFFFF, 3, 0x7FE0000000000000], np.uint64), "fp64")
    right = [math.remainder(a, b) for a, b in zip(x.values.tolist(), y.values.tolist(), strict=True)]
    assert numsim.remainder(x, y).values.tolist() == right


# --- extremes ---------------------------------------------------------------------------------------------------------
def chosen(operation, a, b, x, y):
    """Codes, and where they are NaN; ``x`` and ``y`` are the float64 of ``a`` and ``b``: by a list of keys."""
    larger, by_size, takes_number = operation.startswith("max"), "magnitude" in operation, "number" in operation
    less, same = np.zeros(a.shape, bool), np.ones(a.shape, bool)
    for v, w in [(np.abs(x), np.abs(y))] * by_size + [(x, y), (~np.signbit(x), ~np.signbit(y))]:
        less |= same & (v < w)
        same &= v == w
    first, second = np.isnan(x), np.isnan(y)
    picked = np.where(np.where(first | second, first, less == larger), b, a)
    return picked, first & second if takes_number else first | second


def check_extremes(name, a, b, modes):
    spec = oracle.SPECS[name]
    x, y = as_float64(a, spec), as_float64(b, spec)
    for operation in EXTREMES:
        right, nan = chosen(operation, a, b, x, y)
        right = np.where(nan, spec.dtype(spec.nan or 0), right)
        for rounding in modes:
            got = getattr(numsim, operation)(*arrays(name, a, b), rounding=rounding).codes
            assert_codes(got, right, (a, b), f"{name} {operation} {rounding}")


@pytest.mark.parametrize("name", SEVEN)
def test_extremes(name, implementation):
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(7)
    a, b = (tricky_codes(spec, 300, rng) for _ in range(2))
    b[:60], b[60:90] = a[:60] ^ spec.dtype(spec.sign), a[60:90]  # equal sizes
    a[90:94], b[90:94] = (0, spec.sign, 0, spec.sign), (spec.sign, 0, 0, spec.sign)
    check_extremes(name, a, b, oracle.MODES if implementation == "kernel" else ("nearest-even", "down"))


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_extremes_of_all_pairs(name):
    check_extremes(name, *all_pairs(oracle.SPECS[name]), ("nearest-even", "odd"))


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64"])
def test_extremes_beside_numpy_and_mpfr(name, implementation):
    """Whose zeros have no order: values are compared. MPFR's minnum is minimumNumber."""
    gmpy2 = pytest.importorskip("gmpy2", reason="MPFR is the outsider here: pip install gmpy2")
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(8)
    a, b = (tricky_codes(spec, 400, rng) for _ in range(2))
    x, y = arrays(name, a, b)
    floats = [c.view(ML_DTYPES[name]) for c in (a, b)]
    for ours, theirs in (("minimum", np.minimum), ("maximum", np.maximum), ("minimum_number", np.fmin),
                         ("maximum_number", np.fmax)):  # fmt: skip
        with np.errstate(invalid="ignore"):  # signalling NaNs
            right = theirs(*floats).astype(np.float64)
        np.testing.assert_array_equal(getattr(numsim, ours)(x, y).values, right)
    mpfr = Mpfr(spec, gmpy2)
    rows = [(mpfr.operand(int(v)), mpfr.operand(int(w))) for v, w in zip(a, b, strict=True)]
    for ours, theirs in (("minimum_number", "minnum"), ("maximum_number", "maxnum")):
        right = mpfr.codes(theirs, rows, "nearest-even")
        assert_codes(getattr(numsim, ours)(x, y).codes, right, (a, b), f"{name} {ours} against MPFR")


def test_extremes_take_formats_and_policies():
    x, y = numsim.array([1.0009765625, 2.0], "fp16"), numsim.array([1.0, 3.0], "bf16")
    with pytest.raises(
        InputError, match=r"maximum: operands have formats bf16 and fp16.*numsim\.maximum\(x, y, format="
    ):
        numsim.maximum(x, y)
    assert numsim.maximum(x, y, format="bf16", rounding="up").values.tolist() == [1.0078125, 3.0]
    tiny = numsim.from_codes([1], "fp16")
    assert numsim.maximum(tiny, 0.0, subnormals="flush").codes == 0
    assert numsim.minimum(x, 1.5).values.tolist() == [1.0009765625, 1.5]
    seen = numsim.Events()
    numsim.remainder(x, 0.0, events=seen)
    assert (seen.total, seen.nan) == (2, 2)


# --- scaling, exponents -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SEVEN)
def test_scale_b_by_fractions(name, implementation):
    """Into and out of the subnormal range, past both ends; once rounded, in every mode and policy of subnormals."""
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(9)
    count = 100 if spec.bits == 64 else 300
    codes = tricky_codes(spec, count, rng)
    span = spec.bias * 2 + spec.fraction + 4
    n = rng.integers(-span, span + 1, count)
    n[:20] = rng.integers(-4, 5, 20)
    for rounding in oracle.MODES:
        for subnormals in ("keep", "flush") if rounding == "nearest-even" else ("keep",):
            numbers = [flushed(number(int(c), spec), spec, subnormals) for c in codes]
            scaled = [(s, v if isinstance(v, str) else v * Fraction(2) ** int(k))
                      for (s, v), k in zip(numbers, n, strict=True)]  # fmt: skip
            right = np.array([rounded(v, spec, rounding, "ieee", subnormals) for v in scaled], spec.dtype)
            got = numsim.scale_b(*arrays(name, codes), n, rounding=rounding, subnormals=subnormals, **nan_option(spec))
            assert_codes(got.codes, right, (codes, n.astype(np.uint64)), f"{name} scale_b {rounding} {subnormals}")


@pytest.mark.parametrize("name", ["fp64", "fp32", "fp16", "bf16", "e5m2"])
def test_scale_b_by_mpfr(name, implementation):
    gmpy2 = pytest.importorskip("gmpy2", reason="MPFR is the outsider here: pip install gmpy2")
    spec = oracle.SPECS[name]
    mpfr = Mpfr(spec, gmpy2)
    rng = np.random.default_rng(10)
    codes = tricky_codes(spec, 200, rng)
    n = rng.integers(-2 * spec.bias - spec.fraction, 2 * spec.bias, 200)
    wide = mpfr.wide
    rows = [((wide.mul_2exp if k >= 0 else wide.div_2exp)(mpfr.operand(int(c)), abs(int(k))),)
            for c, k in zip(codes, n, strict=True)]  # fmt: skip
    for rounding in oracle.MODES:
        right = mpfr.codes("plus", rows, rounding)
        got = numsim.scale_b(*arrays(name, codes), n, rounding=rounding).codes
        assert_codes(got, right, (codes, n.astype(np.uint64)), f"{name} scale_b {rounding} against MPFR")


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_scale_b_of_all_codes(name):
    """By every power of two that leaves something, and some more: exact in float64."""
    spec = oracle.SPECS[name]
    span = spec.top >> spec.fraction  # of exponents
    n = np.arange(-span - spec.fraction - 3, span + spec.fraction + 4)
    codes, n = (x.ravel() for x in np.meshgrid(np.arange(1 << spec.bits, dtype=spec.dtype), n))
    scaled = np.ldexp(as_float64(codes, spec), n.astype(np.int32))
    for rounding in oracle.MODES:
        got = numsim.scale_b(*arrays(name, codes), n, rounding=rounding, **nan_option(spec)).codes
        assert_codes(got, encoded(scaled, spec, rounding), (codes, n.astype(np.uint64)), f"{name} scale_b {rounding}")


def test_scale_b_takes_any_integers():
    x = numsim.array([1.0, -3.0], "fp16")
    assert numsim.scale_b(x, 10**400).values.tolist() == [np.inf, -np.inf]
    assert numsim.scale_b(x, [-(10**400), 3]).values.tolist() == [0.0, -24.0]
    assert numsim.scale_b(x, np.uint64(2**64 - 1), overflow="saturate").values.tolist() == [65504.0, -65504.0]
    assert numsim.scale_b(x, np.array([[1], [2]], np.int8)).values.tolist() == [[2.0, -6.0], [4.0, -12.0]]
    assert numsim.scale_b(x, 0, format="bf16").format == numsim.BF16
    far = numsim.Format("far", 4, 3, 60_000)  # numbers about 2^-60000
    back = numsim.scale_b(numsim.from_codes([1, 0x70], far), 60_000, format="fp32")
    assert back.values.tolist() == [2.0**-2, 2.0**14]
    for n in (0.5, [1, 0.5], np.nan, np.inf, "1/3", Fraction(1, 2)):
        with pytest.raises(InputError, match=r"scale_b: n=.*integers are needed. Example: numsim.scale_b\(x, -3\)"):
            numsim.scale_b(x, n)
    with pytest.raises(InputError, match="scale_b takes an Array, not float"):
        numsim.scale_b(1.0, 3)


@pytest.mark.parametrize("name", [*oracle.SPECS])
def test_log_b(name, implementation):
    spec = oracle.SPECS[name]
    codes = codes_of(spec, 400, 11)
    x = as_float64(codes, spec)
    with np.errstate(all="ignore"):
        right = np.where(x == 0, -np.inf, np.where(np.isfinite(x), np.frexp(x)[1] - 1.0, np.abs(x)))
    for rounding in oracle.MODES:
        got = numsim.log_b(*arrays(name, codes), rounding=rounding, **nan_option(spec)).codes
        assert_codes(got, encoded(right, spec, rounding), (codes,), f"{name} log_b {rounding}")


# --- integers ---------------------------------------------------------------------------------------------------------
def nearest_integer(x, rounding):
    """Of a Fraction, by floor and ceiling."""
    low, high = math.floor(x), math.ceil(x)
    if low == high:
        return low
    inwards = low if x > 0 else high
    outwards = low + high - inwards
    return {
        "nearest-even": round(x),
        "nearest-away": outwards if abs(outwards - x) <= Fraction(1, 2) else inwards,
        "toward-zero": inwards, "up": high, "down": low, "odd": low if low % 2 else high,
    }[rounding]  # fmt: skip


@pytest.mark.parametrize("name", [*oracle.SPECS])
def test_round_to_integral_by_fractions(name, implementation):
    spec = oracle.SPECS[name]
    codes = codes_of(spec, 300, 12)
    if spec.bits > 8:  # most of them within the range where something is rounded
        rng = np.random.default_rng(13)
        one = spec.bias << spec.fraction
        near = one + rng.integers(-3 << spec.fraction, (spec.fraction + 2) << spec.fraction, 240)
        codes[:240] = np.clip(near, 0, spec.top).astype(np.uint64) | (
            rng.integers(0, 2, 240).astype(np.uint64) * np.uint64(spec.sign if spec.signed else 0)
        )
    for rounding in oracle.MODES:
        right = []
        for code in codes.tolist():
            negative, size = number(code, spec)
            if isinstance(size, str):
                right.append(code)
            else:
                integer = nearest_integer(-size if negative else size, rounding)
                right.append(rounded((negative, Fraction(abs(integer))), spec, rounding))
        got = numsim.round_to_integral(*arrays(name, codes), rounding=rounding).codes
        assert_codes(got, np.array(right, spec.dtype), (codes,), f"{name} round_to_integral {rounding}")


@pytest.mark.parametrize("name", ["fp64", "fp32", "fp16"])
def test_round_to_integral_beside_numpy(name, implementation):
    codes = tricky_codes(oracle.SPECS[name], 500, np.random.default_rng(14))
    x, floats = numsim.from_codes(codes, name), codes.view(ML_DTYPES[name])
    for rounding, theirs in (("nearest-even", np.rint), ("toward-zero", np.trunc), ("up", np.ceil), ("down", np.floor)):
        got = numsim.round_to_integral(x, rounding=rounding).values
        with np.errstate(invalid="ignore"):  # signalling NaNs
            right = theirs(floats).astype(np.float64)
        np.testing.assert_array_equal(got, right)
        np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(right[~np.isnan(got)]))


def test_round_to_integral_by_chance(implementation):
    """Up where floor(2^r fraction) + bits >= 2^r; integers never move."""
    x = numsim.array([2.25, -2.25, 3.0, 0.75], "fp16")
    for bits, right in ((0xBF, [2.0, -2.0, 3.0, 1.0]), (0xC0, [3.0, -3.0, 3.0, 1.0]), (0x3F, [2.0, -2.0, 3.0, 0.0])):
        got = numsim.round_to_integral(x, rounding="stochastic", random_bits=np.uint8(bits))
        assert got.values.tolist() == right
    many = numsim.array(np.full(20_000, 10.25), "fp16")
    ups = np.count_nonzero(numsim.round_to_integral(many, rounding="stochastic", seed=1).values == 11.0)
    assert abs(ups - 5000) < 5 * 61.2


def test_round_to_integral_beyond_the_largest_number():
    small = numsim.Format("small", 2, 3, 4, specials="fn")  # up to 0.875
    x = numsim.from_codes([small.max_code, 1], small)
    assert numsim.round_to_integral(x, rounding="up").codes.tolist() == [small.nan_code] * 2
    assert numsim.round_to_integral(x, rounding="up", overflow="saturate").codes.tolist() == [small.max_code] * 2
    assert numsim.round_to_integral(x).codes.tolist() == [small.nan_code, 0]  # 1 has no code
    assert numsim.round_to_integral(numsim.from_codes([3], "fp16"), rounding="up", subnormals="flush").codes == 0


@pytest.mark.parametrize("name", ["e15m48", "fp64", "fp32", "bf16", "e4m3fn", "e8m0"])
def test_to_int(name, implementation):
    format = numsim.get_format(name)
    rng = np.random.default_rng(15)
    codes = rng.integers(0, format.codes, 150, dtype=np.uint64)
    one, F = format.bias << format.fraction_bits, format.fraction_bits
    codes[:100] = np.clip(one + rng.integers(-2 << F, 66 << F, 100), 0, format.max_code)  # from 1/4 to 2^66
    codes[:50] |= np.uint64(format.sign_mask)
    codes = codes.astype(f"u{format.code_bytes}")
    x = numsim.from_codes(codes, name)
    for dtype, rounding in itertools.product(("int8", "uint16", "int64", "uint64"), oracle.MODES):
        info, right = np.iinfo(dtype), []
        for code in codes.tolist():
            sign, n, d = to_rational(code, format)
            value = nearest_integer(Fraction(-n if sign else n, d), rounding) if d else (-n if sign else n) * 2**99
            right.append(min(max(value, int(info.min)), int(info.max)))
        got = numsim.to_int(x, dtype, rounding=rounding, out_of_range="saturate")
        assert got.dtype == dtype and got.tolist() == right, (dtype, rounding)


def test_to_int_refuses_what_does_not_fit():
    x = numsim.array([127.0, 127.5], "fp16")
    assert numsim.to_int(x, "int8", rounding="toward-zero").tolist() == [127, 127]
    with pytest.raises(
        RangeError, match=r"to_int: 127.5 \(code 0x57f8\) is no int8 \(-128 to 127\)\. Example: .*'int64'"
    ):
        numsim.to_int(x, "int8")
    for bad, text in ((np.nan, "nan"), (-np.inf, "-inf"), (-1.0, "-1.0")):
        with pytest.raises(RangeError, match=rf"to_int: {text} \(code .* is no uint64"):
            numsim.to_int(numsim.array(bad, "fp32"), np.uint64)
    with pytest.raises(RangeError, match="is no int64"):
        numsim.to_int(numsim.array(2.0**63, "fp32"))
    assert numsim.to_int(numsim.array(-(2.0**63), "fp32")) == -(2**63)
    assert numsim.to_int(numsim.array([], "fp16")).shape == (0,)
    for dtype in ("float32", "no dtype", object, bool, None):
        with pytest.raises(InputError, match=r"to_int: dtype=.* is no integer dtype\. Example: numsim.to_int"):
            numsim.to_int(x, dtype)
    with pytest.raises(InputError, match="out_of_range='clip': allowed are raise, saturate"):
        numsim.to_int(x, out_of_range="clip")
    with pytest.raises(InputError, match="seed="):
        numsim.to_int(x, seed=1)


def test_integers_round_once_on_the_way_in():
    """2^63 + 2^39 + 1 is above a tie of FP32; through FP64 it would be the tie."""
    for n in (2**63 + 2**39 + 1, -(2**63) - 2**39 - 1, 2**63 + 2**39, 10**40):
        right = oracle.encode_fraction(Fraction(n), "fp32")
        assert int(numsim.array(n, "fp32").codes) == right
        if abs(n) < 2**64 and n > 0:
            assert int(numsim.array(np.array([n], np.uint64), "fp32").codes[0]) == right


# --- neighbours and signs ---------------------------------------------------------------------------------------------
def test_next_of_every_code():
    """Beside a sorted list of all values."""
    for format in [
        *numsim.list_formats(),
        *map(numsim.get_format, ("binary8p3se", "binary6p3ue", "binary8p4sf", "e6m9")),
        numsim.Format("no_subnormals", 4, 3, 7, subnormals=False),
    ]:
        if format.bits > 16 or (format.bits > 12 and format.name not in ("fp16", "bf16")):
            continue
        codes = np.arange(format.codes).astype(f"u{format.code_bytes}")
        x = numsim.from_codes(codes, format)
        values = x.values
        ladder = np.unique(values[~np.isnan(values)])
        places = np.searchsorted(ladder, values)
        for function, step, sign in ((numsim.next_up, 1, -1), (numsim.next_down, -1, 1)):
            got = function(x)
            nan = np.isnan(values)
            assert np.all(got.codes[nan] == format.nan_code)
            right = ladder[np.clip(places[~nan] + step, 0, ladder.size - 1)]
            assert np.array_equal(got.values[~nan], right), (format.name, function.__name__)
            made = got.codes[~nan][(right == 0) & (values[~nan] != 0)]
            assert set(made.tolist()) <= {0, format.sign_mask}, format.name
            zeros = got.values[~nan][(right == 0) & (values[~nan] != 0)]  # from the least number: -0 going up
            if format.signed and format.specials != "fnuz":
                assert np.all(np.signbit(zeros) == (sign == -1)) and zeros.size == 1


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64"])
def test_next_beside_numpy(name):
    codes = tricky_codes(oracle.SPECS[name], 1000, np.random.default_rng(16))
    floats = codes.view(ML_DTYPES[name])
    for function, towards in ((numsim.next_up, np.inf), (numsim.next_down, -np.inf)):
        with np.errstate(all="ignore"):
            right = np.nextafter(floats, floats.dtype.type(towards)).view(codes.dtype)
        right = np.where(np.isnan(floats), numsim.get_format(name).nan_code, right).astype(codes.dtype)
        assert_codes(function(numsim.from_codes(codes, name)).codes, right, (codes,), f"{name} {function.__name__}")


def test_next_beside_ml_dtypes():
    """Where they end they differ: past 448 ml_dtypes gives NaN, numsim stays."""
    codes = np.arange(256, dtype=np.uint8)
    for name in ("e5m2", "e3m4", "e4m3_ieee", "e4m3fn"):
        floats = codes.view(getattr(ml_dtypes, ML_DTYPES[name]))
        with np.errstate(all="ignore"):
            top = np.uint8(oracle.SPECS[name].top).view(floats.dtype)
            right = np.nextafter(floats, top).view(np.uint8)
        finite = np.isfinite(floats.astype(np.float32)) & (codes & 0x7F != oracle.SPECS[name].top)
        assert_codes(
            numsim.next_up(numsim.from_codes(codes, name)).codes[finite], right[finite], (codes[finite],), name
        )


def test_signs():
    for format in numsim.list_formats():
        codes = np.arange(min(format.codes, 1 << 16)).astype(f"u{format.code_bytes}")
        if format.bits > 16:
            codes = tricky_codes(oracle.SPECS[format.name], 500, np.random.default_rng(17))
        x = numsim.from_codes(codes, format)
        number_ = ~np.isnan(x.values)
        np.testing.assert_array_equal(
            numsim.abs(x).codes[number_], numsim.array(np.abs(x.values[number_]), format).codes
        )
        assert np.array_equal(numsim.abs(x).codes[~number_], codes[~number_])
        if not format.signed:
            with pytest.raises(InputError, match=f"copysign: {format} is unsigned"):
                numsim.copysign(x, x)
            continue
        for y in (numsim.array([1.0, -1.0], "bf16"), numsim.array([0.0, -0.0], "fp64")):
            got = numsim.copysign(numsim.from_codes(codes[:, None], format), y)
            right = numsim.array(np.copysign(x.values[number_][:, None], [1.0, -1.0]), format).codes
            assert np.array_equal(got.codes[number_], right)
            assert np.array_equal(got.codes[~number_], np.stack([codes[~number_]] * 2, 1))


# --- order ------------------------------------------------------------------------------------------------------------
COMPARISONS = {"equal": (0,), "not_equal": (-1, 1, None), "less": (-1,), "less_equal": (-1, 0), "greater": (1,),
               "greater_equal": (0, 1), "unordered": (None,)}  # fmt: skip


PAIRS = [("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fnuz"), ("e3m2", "e8m0"), ("e2m1", "fp16"), ("e15m48", "fp64"),
         ("bf16", "bf16"), ("e8m55", "e8m55")]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_comparisons(one, other):
    """Formats mixed or not: the reference on exact numbers, and for what float64 holds NumPy."""
    formats = [numsim.get_format(n) for n in (one, other)]
    rng = np.random.default_rng(18)
    codes = [rng.integers(0, f.codes, 60, dtype=np.uint64).astype(f"u{f.code_bytes}") for f in formats]
    if one == other:
        codes[1][:30] = codes[0][:30]
    for x, format in zip(codes, formats, strict=True):
        x[30:34] = 0, format.sign_mask, format.max_code, format.max_code | format.sign_mask
        x[34:36] = format.infinity_code or 0, (format.infinity_code or 0) | format.sign_mask
    a, b = (x.ravel() for x in np.meshgrid(*codes))
    relations = [compare_rationals(to_rational(int(x), formats[0]), to_rational(int(y), formats[1]))
                 for x, y in zip(a, b, strict=True)]  # fmt: skip
    x, y = numsim.from_codes(a, one), numsim.from_codes(b, other)
    for name, holds in COMPARISONS.items():
        got = getattr(numsim, name)(x, y)
        assert got.dtype == bool and got.tolist() == [r in holds for r in relations], name
        if all(f.fits(numsim.FP64) for f in formats) and name != "unordered":
            np.testing.assert_array_equal(got, getattr(np, name)(x.values, y.values))


def test_comparisons_take_numbers_as_they_are():
    x = numsim.array([0.1, 0.5], "fp16")
    assert numsim.equal(x, 0.1).tolist() == [False, False] and numsim.equal(0.5, x).tolist() == [False, True]
    assert numsim.less(x, "0.1").tolist() == [True, False]
    assert numsim.less(numsim.array(2.0**53, "fp64"), 2**53 + 1) is np.True_
    with pytest.raises(InputError, match="less takes an Array, not float"):
        numsim.less(0.1, 0.2)
    with pytest.raises(InputError, match=r"shapes \(2,\) and \(3,\)"):
        numsim.less(x, [1, 2, 3])


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_total_order_of_all_pairs(name):
    """Along a list of all codes, sorted by hand: negative ones from the largest magnitude down, then the rest."""
    format = numsim.get_format(name)
    half = format.sign_mask or format.codes
    order = [*range(format.codes - 1, half - 1, -1), *range(half)]
    if format.specials == "fnuz":
        order.remove(format.nan_code)
        order.append(format.nan_code)
    x = numsim.from_codes(np.array(order, np.uint8), format)
    n = np.arange(format.codes)
    assert np.array_equal(numsim.total_order(x.reshape(-1, 1), x), n[:, None] <= n)


def test_total_order_of_wide_formats():
    x = numsim.from_codes(
        np.array([2**64 - 1, 2**63 | 0x7FF0 << 48, 2**63, 0, 1, 0x7FF1 << 48, 0x7FF8 << 48], np.uint64), "fp64"
    )
    assert numsim.total_order(x[:-1], x[1:]).all() and not numsim.total_order(x[1:], x[:-1]).any()
    with pytest.raises(InputError, match="total_order: operands have formats"):
        numsim.total_order(x, numsim.array(1.0, "fp16"))


# --- all pairs, as digests --------------------------------------------------------------------------------------------
def digests():
    """For every format of up to 8 bits and every operation: SHA-256 of all results, mode by mode, 12 digits of each."""
    for name in oracle.UP_TO_8:
        spec = oracle.SPECS[name]
        x, y = arrays(name, *all_pairs(spec))
        every = numsim.from_codes(np.arange(1 << spec.bits, dtype=np.uint8), name)
        for operation in [*OPERATIONS, "round_to_integral"]:
            if ARITY.get(operation) == 1 or operation == "round_to_integral":
                operands = [every]
            else:
                others = {"fma": [y, y[::-1]], "scale_b": [y.codes.astype(int) - spec.bias]}
                operands = [x, *others.get(operation, [y])]
            options = {} if operation == "round_to_integral" else nan_option(spec)
            results = [getattr(numsim, operation)(*operands, rounding=mode, **options).codes for mode in oracle.MODES]
            yield " ".join([name, operation, *(hashlib.sha256(c.tobytes()).hexdigest()[:12] for c in results)])


@pytest.mark.parametrize("which", ["kernel"])
def test_digests(which):
    try:
        with numsim.kernels.force(which):
            found = list(digests())
    except UnavailableError as error:
        pytest.skip(str(error))
    assert found == [line for line in DIGESTS.read_text().splitlines() if not line.startswith("#")]


@pytest.mark.exhaustive
def test_digests_of_the_reference():
    with numsim.kernels.force("reference"):
        assert list(digests()) == [line for line in DIGESTS.read_text().splitlines() if not line.startswith("#")]


if __name__ == "__main__":
    print("# 12 digits of SHA-256 of all results, x in order, for each x all y; modes: " + " ".join(oracle.MODES))  # noqa: T201
    print("# fma: x y + z, where z are all y in reverse; scale_b: by the code of y minus the bias")  # noqa: T201
    print("\n".join(digests()))  # noqa: T201
