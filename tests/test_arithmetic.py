"""Arithmetic on codes against outsiders that share no code with numsim, bit for bit, through both implementations.

The outsiders: float64 arithmetic where it is exact (or far enough from every tie) and the integer oracle after it;
``Fraction`` and a scan of all values for 4- and 6-bit formats; ml_dtypes and numpy; MPFR with the format's own range.
"""

import contextlib
from fractions import Fraction
from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.errors import InputError, UnavailableError
from numsim.random import Stream
from tests import oracle

BINARY = ("add", "sub", "mul", "div")
POLICIES = [(r, o, s) for r in oracle.MODES for o in oracle.OVERFLOWS for s in oracle.SUBNORMALS]
PLAIN = [(r, "ieee", "keep") for r in oracle.MODES]
IMPLEMENTATIONS = ("reference", "kernel")


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(numsim.kernels.force(request.param))
        except UnavailableError as error:
            pytest.skip(str(error))
        yield request.param


@pytest.fixture
def kernel():
    try:
        with numsim.kernels.force("kernel"):
            yield
    except UnavailableError as error:
        pytest.skip(str(error))


def assert_codes(got, expected, operands, rule):
    """Failure text: how many, the first bad operands in hex, what came, what was right, under which rule."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, (got.shape, expected.shape, rule)
    bad = np.argwhere(np.atleast_1d(got != expected))
    if len(bad):
        at = tuple(bad[0]) if got.ndim else ()
        first = ", ".join(f"{int(x[at]):#x}" for x in np.broadcast_arrays(*operands))
        raise AssertionError(
            f"{rule}: {len(bad)} of {got.size} differ; first: operands {first}: "
            f"got {int(got[at]):#x}, expected {int(expected[at]):#x}"
        )


def compute(operation, operands, name, **options):
    """numsim's answer, as codes."""
    arrays = [numsim.from_codes(c, name) for c in operands]
    return getattr(numsim, operation)(*arrays, **options).codes


def all_pairs(spec):
    codes = np.arange(1 << spec.bits, dtype=spec.dtype)
    return np.repeat(codes, codes.size), np.tile(codes, codes.size)


def nan_option(spec):
    return {"nan": "zero"} if spec.nan is None else {}


# -- one operation on exact numbers, written down once more -----------------------------------------------------------
# A number is (negative, size) with size a Fraction, "inf" or "nan".


@lru_cache(None)
def number(code, spec):
    value = oracle.value_of(code, spec)
    negative = spec.signed and bool(code & spec.sign)
    return (negative, value.lstrip("-") if isinstance(value, str) else abs(value))


def flushed(x, spec, subnormals):
    """The operand under flush-inputs."""
    small = not isinstance(x[1], str) and x[1] < oracle._grid_fraction(spec.least_normal, spec)
    return (x[0], Fraction(0)) if small and subnormals in ("flush-inputs", "flush") else x


def exact(operation, *operands, rounding="nearest-even"):
    """The exact result. IEEE 754-2019, sections 6.1 to 6.3 and 7.2 to 7.3, as a table of what is not arithmetic."""
    if any(x[1] == "nan" for x in operands):
        return (False, "nan")
    if operation == "fma":
        product = exact("mul", *operands[:2])
        return exact("add", product, operands[2], rounding=rounding)
    (a_negative, a), (b_negative, b) = operands
    if operation == "sub":
        return exact("add", operands[0], (not b_negative, b), rounding=rounding)
    if operation == "add":
        if a == "inf" and b == "inf":
            return operands[0] if a_negative == b_negative else (False, "nan")
        if "inf" in (a, b):
            return operands[0] if a == "inf" else operands[1]
        total = (-a if a_negative else a) + (-b if b_negative else b)
        if total == 0:
            return (a_negative if a_negative == b_negative else rounding == "down", Fraction(0))
        return (total < 0, abs(total))
    negative = a_negative != b_negative
    if operation == "div":
        b = Fraction(0) if b == "inf" else "inf" if b == 0 else 1 / b
    if "inf" in (a, b):
        return (False, "nan") if 0 in (a, b) or (operation == "div" and a == b == "inf") else (negative, "inf")
    return (negative, a * b)


@lru_cache(None)
def rounded(x, spec, rounding="nearest-even", overflow="ieee", subnormals="keep", r=32, random=0):
    """The code of an exact result; what does not flush inputs any more."""
    negative, size = x
    results = "flush-results" if subnormals in ("flush-results", "flush") else "keep"
    nan = 0 if spec.nan is None else spec.nan
    if size == "nan" or (negative and not spec.signed and size):
        return nan
    if size == "inf":
        magnitude = spec.top if overflow == "saturate" else spec.inf
        if magnitude is None:
            magnitude = spec.top if spec.nan is None else None
        return spec.nan if magnitude is None else magnitude | (spec.sign if negative and spec.signed else 0)
    return oracle.encode_fraction(-size if negative else size, spec, rounding, overflow, results, negative, r, random)


def expected(operation, operands, specs, result, rounding="nearest-even", overflow="ieee", subnormals="keep", **random):
    """Codes of an operation, element by element (tens of microseconds each)."""
    out = []
    for row in zip(*(x.tolist() for x in operands), strict=True):
        numbers = [flushed(number(c, s), s, subnormals) for c, s in zip(row, specs, strict=True)]
        x = exact(operation, *numbers, rounding=rounding)
        out.append(rounded(x, result, rounding, overflow, subnormals))
    return np.array(out, result.dtype)


# -- formats of up to 8 bits: all pairs -------------------------------------------------------------------------------


def in_float64(operation, a, b, spec, rounding, flush):
    """The result as a float64 that every rounding to ``spec`` takes as it would take the exact result.

    Sums and products of 8-bit formats are exact in float64. A quotient of significands below 32 that is no number of 7
    bits lies 2^-12 or more away from all of them (relatively), float64's error is 2^-53. E8M0's exponents are too far
    apart for an exact sum: there 2^-40 of the larger operand stands for the smaller one.
    """
    a, b = (oracle.to_bits(x, spec).view(np.float64) for x in (a, b))
    if flush:
        least = float(oracle._grid_fraction(spec.least_normal, spec))
        a, b = (np.where(np.abs(x) < least, np.copysign(0.0, x), x) for x in (a, b))
    b = -b if operation == "sub" else b
    with np.errstate(all="ignore"):
        if operation == "mul":
            return a * b
        if operation == "div":
            return a / b
        if not spec.subnormal:
            large, small = np.maximum(np.abs(a), np.abs(b)), np.minimum(np.abs(a), np.abs(b))
            floor = large * 2.0**-40
            a, b = (np.where((np.abs(x) == small) & (small < floor), np.copysign(floor, x), x) for x in (a, b))
        total = a + b
        opposite = np.signbit(a) != np.signbit(b)
        return np.where((total == 0) & opposite, -0.0 if rounding == "down" else 0.0, total)


def check_all_pairs(name, policies, pairs=None):
    spec = oracle.SPECS[name]
    a, b = all_pairs(spec) if pairs is None else pairs
    for operation in BINARY:
        located = {}
        for rounding, overflow, subnormals in policies:
            flush = subnormals in ("flush-inputs", "flush")
            key = (rounding == "down", flush)
            if key not in located:
                bits = in_float64(operation, a, b, spec, rounding, flush).view(np.uint64)
                unique, back = np.unique(bits, return_inverse=True)
                located[key] = oracle.Located(unique, spec), back.reshape(a.shape)
            results = "flush-results" if subnormals in ("flush-results", "flush") else "keep"
            where, back = located[key]
            right = where.encode(rounding, overflow, results, nan="zero", count=False)[0][back]
            options = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals}
            got = compute(operation, (a, b), name, **options, **nan_option(spec))
            assert_codes(got, right, (a, b), f"{name} {operation}, {options}")


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_all_pairs(name, kernel):
    """All modes and policies; the reference computes the same in an hour or two, with -m exhaustive."""
    check_all_pairs(name, POLICIES)


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_roots_of_all_codes(name, implementation):
    """A root of a number of 5 bits is one of 3 bits, or 2^-12 and more away from all of 6: float64's decides."""
    spec = oracle.SPECS[name]
    codes = np.arange(1 << spec.bits, dtype=spec.dtype)
    values = oracle.to_bits(codes, spec).view(np.float64)
    for rounding, overflow, subnormals in POLICIES if implementation == "kernel" else PLAIN:
        flush, results = subnormals in ("flush-inputs", "flush"), subnormals in ("flush-results", "flush")
        least = float(oracle._grid_fraction(spec.least_normal, spec)) if flush else 0.0
        with np.errstate(invalid="ignore"):
            roots = np.sqrt(np.where(np.abs(values) < least, np.copysign(0.0, values), values)).view(np.uint64)
        kept = "flush-results" if results else "keep"
        right = oracle.Located(roots, spec).encode(rounding, overflow, kept, nan="zero", count=False)[0]
        options = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals}
        assert_codes(compute("sqrt", (codes,), name, **options, **nan_option(spec)), right, (codes,), f"{name} sqrt")


def check_fma(name, triples):
    """All modes. Formats whose x y + z has at most 53 bits: float64 is exact."""
    spec = oracle.SPECS[name]
    x, y, z = (oracle.to_bits(c, spec).view(np.float64) for c in triples)
    for rounding in oracle.MODES:
        with np.errstate(invalid="ignore"):
            product = x * y
            total = product + z
            if rounding == "down":
                total = np.where((total == 0) & (np.signbit(product) != np.signbit(z)), -0.0, total)
        unique, back = np.unique(total.view(np.uint64), return_inverse=True)
        right = oracle.Located(unique, spec).encode(rounding, nan="zero", count=False)[0][back.reshape(x.shape)]
        got = compute("fma", triples, name, rounding=rounding, **nan_option(spec))
        assert_codes(got, right, triples, f"{name} fma {rounding}")


FMA_IN_FLOAT64 = [n for n in oracle.UP_TO_8 if n not in ("e5m2", "e5m2fnuz", "e8m0")]


@pytest.mark.parametrize("name", FMA_IN_FLOAT64)
def test_fma_of_all_pairs(name, kernel):
    """Any third operand with each pair; all triples with -m exhaustive."""
    spec = oracle.SPECS[name]
    a, b = all_pairs(spec)
    check_fma(name, (a, b, np.random.default_rng(12).integers(0, 1 << spec.bits, a.size, spec.dtype)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FMA_IN_FLOAT64)
def test_fma_of_all_triples(name, kernel):
    spec = oracle.SPECS[name]
    a, b = all_pairs(spec)
    for c in range(1 << spec.bits):
        check_fma(name, (a, b, np.full_like(a, c)))


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_fma_by_fractions(name, implementation):
    check_fma_by_fractions(name, 150)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["e5m2", "e5m2fnuz", "e8m0"])
def test_fma_of_all_pairs_by_fractions(name, kernel):
    check_fma_by_fractions(name, None)


def check_fma_by_fractions(name, count):
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(13)
    if count is None:
        triples = *all_pairs(spec), rng.integers(0, 1 << spec.bits, 1 << 2 * spec.bits, spec.dtype)
    else:
        triples = tuple(rng.integers(0, 1 << spec.bits, count, spec.dtype) for _ in range(3))
    for rounding in oracle.MODES:
        right = expected("fma", triples, [spec] * 3, spec, rounding)
        got = compute("fma", triples, name, rounding=rounding, **nan_option(spec))
        assert_codes(got, right, triples, f"{name} fma {rounding}")


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_reference_on_pairs(name):
    """Microseconds a number: a seeded sample, all policies."""
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(11)
    with numsim.kernels.force("reference"):
        pairs = tuple(rng.choice(x, 1200) for x in all_pairs(spec)) if spec.bits > 6 else None
        check_all_pairs(name, PLAIN if spec.bits > 4 else POLICIES, pairs)
        check_all_pairs(name, POLICIES, tuple(rng.integers(0, 1 << spec.bits, 24, spec.dtype) for _ in range(2)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_reference_on_all_pairs(name):
    with numsim.kernels.force("reference"):
        check_all_pairs(name, POLICIES)


@pytest.mark.parametrize("name", ["e2m1", "e3m2", "e2m3"])
def test_all_pairs_by_brute_force(name, kernel):
    """No oracle: exact fractions, and a look at every value of the format."""
    spec = oracle.SPECS[name]
    values = [oracle.value_of(c, spec) for c in range(spec.sign)]  # rising
    step = values[-1] - values[-2]
    grid = [*values, values[-1] + step]  # where overflow begins
    codes = [(c, v if c < spec.sign else -v) for c, v in enumerate(values * 2)]

    @lru_cache(None)
    def nearest(size, negative, mode):
        low = max(i for i, v in enumerate(grid) if v <= size) if size < grid[-1] else len(values)
        if low < len(values) and size != grid[low]:
            twice = 2 * size - grid[low] - grid[low + 1]  # above, on or below the middle
            go = {
                "nearest-even": twice > 0 or (twice == 0 and low % 2 == 1),
                "nearest-away": twice >= 0,
                "toward-zero": False,
                "up": not negative,
                "down": negative,
                "odd": low % 2 == 0,
            }[mode]
            low += go
        return min(low, len(values) - 1) | (spec.sign if negative else 0)

    a, b = all_pairs(spec)
    for operation in BINARY:
        for mode in oracle.MODES:
            got = compute(operation, (a, b), name, rounding=mode, nan="zero").reshape(len(codes), len(codes))
            for i, x in codes:
                for j, y in codes:
                    x_sign, y_sign = i >= spec.sign, j >= spec.sign
                    if operation in ("mul", "div"):
                        negative = x_sign != y_sign
                        if operation == "div" and y == 0:
                            # x/0 is an infinity, which is the largest number; 0/0 is NaN, here asked to be zero
                            right = 0 if x == 0 else spec.top | (spec.sign if negative else 0)
                        else:
                            right = nearest(abs(x * y if operation == "mul" else x / y), negative, mode)
                    else:
                        y_sign = y_sign != (operation == "sub")
                        total = x + y if operation == "add" else x - y
                        zero = x_sign if x_sign == y_sign else mode == "down"
                        right = nearest(abs(total), total < 0 if total else zero, mode)
                    assert got[i, j] == right, (
                        f"{name} {operation} {mode}: {i:#x}, {j:#x}: got {got[i, j]:#x}, expected {right:#x}"
                    )


# -- ml_dtypes and numpy ----------------------------------------------------------------------------------------------

ML_DTYPES = {
    "e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3_ieee": "float8_e4m3", "e3m4": "float8_e3m4",
    "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz", "e4m3b11fnuz": "float8_e4m3b11fnuz",
    "e3m2": "float6_e3m2fn", "e2m3": "float6_e2m3fn", "e2m1": "float4_e2m1fn", "bf16": "bfloat16",
    "fp16": "float16", "fp32": "float32", "fp64": "float64",
}  # fmt: skip
NUMPY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}


def peer(operation, operands, name):
    """numpy's or ml_dtypes' answer as codes, and where it is NaN (whose sign and payload are their own)."""
    dtype = np.dtype(getattr(ml_dtypes, ML_DTYPES[name], ML_DTYPES[name]))
    with np.errstate(all="ignore"):
        result = NUMPY[operation](*(x.view(dtype) for x in operands))
    assert result.dtype == dtype, result.dtype
    return result.view(operands[0].dtype), np.isnan(result.astype(np.float64))


def check_peer(operation, operands, name):
    spec = oracle.SPECS[name]
    theirs, nan = peer(operation, operands, name)
    got = compute(operation, operands, name, **nan_option(spec))
    if spec.nan is None:  # 0/0: ml_dtypes makes it -0
        nan = (operands[0] & (spec.sign - 1) == 0) & (operands[1] & (spec.sign - 1) == 0) & (operation == "div")
        assert_codes(got[nan], np.zeros_like(got[nan]), [x[nan] for x in operands], f"{name} 0/0")
    else:
        assert_codes(got[nan], np.full_like(got[nan], spec.nan), [x[nan] for x in operands], f"{name} {operation}, NaN")
    rest = [x[~nan] for x in operands]
    assert_codes(got[~nan], theirs[~nan], rest, f"{name} {operation} beside {ML_DTYPES[name]}")


@pytest.mark.parametrize("name", [n for n in oracle.UP_TO_8 if n in ML_DTYPES])
def test_all_pairs_beside_ml_dtypes(name, kernel):
    for operation in BINARY:
        check_peer(operation, all_pairs(oracle.SPECS[name]), name)


def test_e8m0_beside_ml_dtypes(kernel):
    """Where they differ it is by choice: below 2^-127 ml_dtypes gives NaN, numsim 2^-127; halfway between two powers of
    two (3 = 2 + 1 = 4 - 1) ml_dtypes goes up, numsim to the even code."""
    a, b = all_pairs(oracle.SPECS["e8m0"])
    views = [x.view(ml_dtypes.float8_e8m0fnu) for x in (a, b)]
    numbers = (a != 0xFF) & (b != 0xFF)
    ea, eb = a.astype(int), b.astype(int)
    choices = {
        "mul": ea + eb - 127 < 0,
        "div": ea - eb + 127 < 0,
        "add": np.abs(ea - eb) == 1,
        "sub": (ea - eb == 2) | (ea == eb),
    }
    for operation, choice in choices.items():
        with np.errstate(all="ignore"):
            theirs = NUMPY[operation](*views).view(np.uint8)
        got = compute(operation, (a, b), "e8m0")
        same = ~(choice & numbers)
        assert_codes(got[same], theirs[same], (a[same], b[same]), f"e8m0 {operation} beside ml_dtypes")
        differ = int((got != theirs).sum())
        assert differ == {"mul": 5565, "div": 5565, "add": 254, "sub": 381}[operation], (operation, differ)


def tricky_codes(spec, count, rng):
    """Random codes; a fifth of them near zero, the least normal number, one and the top, NaNs and infinities too."""
    out = rng.integers(0, 1 << spec.bits, count, dtype=np.uint64)
    fifth = count // 5
    one = spec.bias << spec.fraction
    centres = np.array([0, spec.least_normal, one, spec.top, 2 * one // 3], np.int64)
    near = rng.choice(centres, fifth) + rng.integers(-3, 4, fifth)
    near = np.maximum(near, 0).astype(np.uint64) & np.uint64(spec.sign - 1)
    out[:fifth] = near | np.where(rng.integers(0, 2, fifth) == 1, np.uint64(spec.sign), np.uint64(0))
    return rng.permutation(out).astype(spec.dtype)


def tricky_pairs(spec, count, seed):
    """Half of the pairs close in size, so that sums cancel and round."""
    rng = np.random.default_rng(seed)
    a = tricky_codes(spec, count, rng)
    b = tricky_codes(spec, count, rng)
    half = count // 2
    width = min(spec.fraction + 3, 40)
    close = a[:half].astype(np.int64) & (spec.sign - 1)
    close = np.clip(close + rng.integers(-(1 << width), 1 << width, half), 0, spec.sign - 1).astype(np.uint64)
    sign = np.where(rng.integers(0, 2, half) == 1, np.uint64(spec.sign), np.uint64(0))
    b[:half] = (close | sign).astype(spec.dtype)
    return a, b


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "fp64"])
def test_seeded_pairs_beside_numpy(name, implementation):
    a, b = tricky_pairs(oracle.SPECS[name], 200_000 if implementation == "kernel" else 3_000, 21)
    for operation in BINARY:
        check_peer(operation, (a, b), name)


@pytest.mark.parametrize("name", ["fp16", "bf16", "e5m2", "e4m3fnuz", "fp32", "fp64"])
def test_sqrt_beside_numpy(name, implementation):
    """Every code of formats of up to 16 bits; numpy computes FP16's root in float32, which is harmless."""
    spec = oracle.SPECS[name]
    codes = np.arange(1 << min(spec.bits, 16)).astype(spec.dtype)
    if spec.bits > 16 or implementation == "reference":
        codes = tricky_codes(spec, 4000, np.random.default_rng(3))
    check_peer("sqrt", (codes,), name)


def root_codes(size, spec):
    """The square root of a Fraction in all modes: between two neighbours, found by comparing squares."""
    low, high = 0, spec.top
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if oracle._grid_fraction(middle, spec) ** 2 <= size else (low, middle)
    below, above = (oracle._grid_fraction(c, spec) for c in (low, high))
    exact, half = below**2 == size, ((below + above) / 2) ** 2
    up = (half < size or (half == size and low % 2 == 1), half <= size, False, True, False, low % 2 == 0)
    return dict(zip(oracle.MODES, [low + (goes and not exact) for goes in up], strict=True))


@pytest.mark.parametrize("name", ["fp64", "fp32", "fp16", "bf16", "e4m3fn", "e5m2", "e3m2"])
def test_sqrt_by_fractions(name, implementation):
    spec = oracle.SPECS[name]
    codes = tricky_codes(spec, 150, np.random.default_rng(14)) & spec.dtype(spec.sign - 1)
    codes = codes[codes < spec.top]
    right = [root_codes(oracle.value_of(c, spec), spec) for c in codes.tolist()]
    for rounding in oracle.MODES:
        expected_codes = np.array([r[rounding] for r in right], spec.dtype)
        got = compute("sqrt", (codes,), name, rounding=rounding)
        assert_codes(got, expected_codes, (codes,), f"{name} sqrt {rounding}")


# -- MPFR -------------------------------------------------------------------------------------------------------------

IEEE_LIKE = ("e5m2", "e3m4", "fp16", "bf16", "tf32", "fp32", "fp64")


class Mpfr:
    """A format's arithmetic in MPFR: its precision, exponent range and subnormal numbers, any rounding mode.

    MPFR has no nearest-away and no odd. Both come from rounding toward zero: odd is the truncated code, its last bit
    set if something was cut off; nearest-away truncates with one bit more, and halves that code upwards.
    """

    def __init__(self, spec, gmpy2):
        self.spec, self.gmpy2 = spec, gmpy2
        self.modes = {
            "nearest-even": gmpy2.RoundToNearest, "toward-zero": gmpy2.RoundToZero, "odd": gmpy2.RoundToZero,
            "nearest-away": gmpy2.RoundToZero, "up": gmpy2.RoundUp, "down": gmpy2.RoundDown,
        }  # fmt: skip
        self.wide = gmpy2.context(precision=64, emin=-20000, emax=20000)
        self.emin = 1 - spec.bias  # of normal numbers 1.f * 2^e
        self.emax = (spec.top >> spec.fraction) - spec.bias

    def operand(self, code):
        spec, gmpy2 = self.spec, self.gmpy2
        value = oracle.value_of(code, spec)
        if isinstance(value, str):
            return gmpy2.mpfr(value)
        if value == 0:
            return gmpy2.mpfr("-0.0" if code & spec.sign else "0.0")
        shift = value.denominator.bit_length() - 1
        return self.wide.div_2exp(self.wide.plus(gmpy2.mpfr(value.numerator, 64)), shift)

    def codes(self, operation, operands, rounding):
        extra = int(rounding == "nearest-away")
        fraction = self.spec.fraction + extra
        context = self.gmpy2.context(
            precision=fraction + 1, emax=self.emax + 1, emin=self.emin - fraction + 1, subnormalize=True,
            round=self.modes[rounding],
        )  # fmt: skip
        function = getattr(context, operation)
        out = []
        for row in operands:
            context.clear_flags()
            x = function(*row)
            code = self.code(x, fraction)
            magnitude, sign = code & ((1 << (fraction + self.spec.exponent)) - 1), x.is_signed()
            if rounding == "odd" and context.inexact:
                magnitude |= 1
            if extra and not x.is_nan():
                magnitude = (magnitude + 1) >> 1
            out.append(self.spec.nan if x.is_nan() else magnitude | (self.spec.sign if sign else 0))
        return np.array(out, self.spec.dtype)

    def code(self, x, fraction):
        """The magnitude code of a number that is on the grid."""
        if x.is_nan() or x.is_zero():
            return 0
        if x.is_infinite():
            return ((1 << self.spec.exponent) - 1) << fraction
        significand, exponent = x.as_mantissa_exp()
        significand = abs(int(significand))
        exponent = int(exponent)
        top = max(significand.bit_length() - 1 + exponent, self.emin)
        shift = exponent - (top - fraction)
        whole = significand << shift if shift >= 0 else significand >> -shift
        assert shift >= 0 or whole << -shift == significand
        return whole + ((top - self.emin) << fraction)


def tricky_triples(spec, count, seed):
    """A third random; a third where z nearly cancels x y; a third where z is far below x y, of both signs."""
    rng = np.random.default_rng(seed)
    x, y = tricky_pairs(spec, count, seed)
    z = tricky_codes(spec, count, rng)
    third = count // 3
    numbers = [[number(int(c), spec) for c in v[: 2 * third]] for v in (x, y)]
    for i, (a, b) in enumerate(zip(*numbers, strict=True)):
        product = exact("mul", a, b)
        if i < third:
            code = rounded(product, spec) ^ spec.sign
            z[i] = min(max(code + int(rng.integers(-2, 3)), 0), (1 << spec.bits) - 1)
        else:
            z[i] = int(rng.integers(0, 3 << spec.fraction)) | (spec.sign if rng.integers(0, 2) else 0)
            # x and y in the upper half of the exponents, so that the product is far above z
            for v in (x, y):
                code = (spec.bias << spec.fraction) + int(rng.integers(0, spec.bias << spec.fraction >> 1))
                v[i] = code | (spec.sign if rng.integers(0, 2) else 0)
    return x, y, z


@pytest.mark.parametrize("name", IEEE_LIKE)
def test_every_mode_against_mpfr(name, implementation):
    gmpy2 = pytest.importorskip("gmpy2", reason="MPFR is the outsider here: pip install gmpy2")
    spec = oracle.SPECS[name]
    mpfr = Mpfr(spec, gmpy2)
    few = implementation == "reference" or spec.bits == 64
    triples = tricky_triples(spec, 240 if few else 900, 5)
    numbers = [[mpfr.operand(int(c)) for c in v] for v in triples]
    for operation, count in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("sqrt", 1), ("fma", 3)):
        operands, rows = triples[:count], list(zip(*numbers[:count], strict=True))
        for rounding in oracle.MODES:
            right = mpfr.codes(operation, rows, rounding)
            if operation in ("add", "sub", "fma"):  # MPFR takes the sign of an exact zero from its own mode
                zero = right & (spec.sign - 1) == 0
                right[zero] = expected(operation, [v[zero] for v in operands], [spec] * count, spec, rounding)
            got = compute(operation, operands, name, rounding=rounding)
            assert_codes(got, right, operands, f"{name} {operation} {rounding} against MPFR")


# -- fma: what breaks a float32 or float64 in the middle --------------------------------------------------------------


def value_codes(values, name):
    return np.array([int(numsim.encode(v, name)) for v in values], oracle.SPECS[name].dtype)


KNOWN = [
    # format, x, y, z, rounding, right: who is wrong stands in the comment
    ("fp16", *map(float.fromhex, ("0x1.c64p-1", "0x1.8ccp+1", "-0x1.9dp+9")), "nearest-even", -823.5),  # float32: -823
    ("bf16", 2.0**127, 1.0, 2.0**-133, "up", 2.0**127 * (1 + 2.0**-7)),  # float64: 2^127
    ("bf16", 2.0**127, 1.0, -2.0**-133, "down", 2.0**127 * (1 - 2.0**-8)),
    ("bf16", 2.0**127, 1.0, -2.0**-133, "toward-zero", 2.0**127 * (1 - 2.0**-8)),
    ("bf16", 2.0**127, 1.0, 2.0**-133, "odd", 2.0**127 * (1 + 2.0**-7)),
    ("bf16", 2.0**127, 1.0, 2.0**-133, "nearest-even", 2.0**127),
    ("bf16", -2.0**127, 1.0, -2.0**-133, "up", -(2.0**127)),
    ("bf16", 2.0**127, 2.0**127, -np.inf, "nearest-even", -np.inf),  # a product past the top is no infinity yet
    ("bf16", 2.0**127, 2.0, -2.0**127, "nearest-even", 2.0**127),
    ("fp32", 4097.0, 4097.0, 2.0**-30, "nearest-even", 16785410.0),  # a tie and a little: float64 gives 16785408
    ("fp32", 4097.0, 4097.0, -2.0**-30, "nearest-away", 16785408.0),
    ("fp16", 2.0**-14, 2.0**-14, -2.0**-24, "up", -0.0),
    ("fp16", 2.0**-14, 2.0**-14, -2.0**-24, "toward-zero", -0.0),
    ("fp16", 65504.0, 2.0, -65504.0, "nearest-even", 65504.0),
    ("fp16", 65504.0, 65504.0, -np.inf, "nearest-even", -np.inf),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x", "y", "z", "rounding", "right"), KNOWN)
def test_known_fma_traps(name, x, y, z, rounding, right, implementation):
    codes = [value_codes([v], name) for v in (x, y, z)]
    got = numsim.fma(*(numsim.from_codes(c, name) for c in codes), rounding=rounding)
    assert got.values[0] == right and np.signbit(got.values[0]) == np.signbit(right), (got, right)
    if y == 1:  # the same with one addition less
        got = numsim.add(numsim.from_codes(codes[0], name), numsim.from_codes(codes[2], name), rounding=rounding)
        assert got.values[0] == right, (got, right)


def fma_traps(spec, rounding, count, bits, rng):
    """Triples whose exact x y is a number of the format (or a tie, for nearest modes), and z changes the answer but is
    lost beside x y in a float of ``bits`` bits."""
    p = spec.fraction + 1
    least, most = 1 - spec.bias - spec.fraction, spec.bias  # exponents of the least number and the largest
    out = []
    while len(out) < count:
        tie = rounding.startswith("nearest")
        length = p + 1 if tie else p - 1 if rounding == "odd" else p  # p - 1 bits: an even code
        short = int(rng.integers(2, p))
        m = int(rng.integers(1 << (short - 1), 1 << short)) | 1
        n = int(rng.integers(1, 1 << max(length - short + 1, 1))) | 1
        product = m * n
        if product.bit_length() != length or n.bit_length() > p:
            continue
        # exponents: x y at 2^top, z below half a unit of the middle format but a number of its own
        top = int(rng.integers(least + bits + 2, most))
        exponent = int(rng.integers(least, top - bits))
        negative = bool(rng.integers(0, 2))
        shift = top - (product.bit_length() - 1)
        e1 = int(rng.integers(0, 3)) + shift // 2
        e2 = shift - e1
        size = Fraction(2) ** exponent
        z = size if rng.integers(0, 2) else -size
        if tie:
            kept = product >> 1
            if rounding == "nearest-even":
                z = size if kept % 2 == 0 else -size  # against where the tie would go
            else:
                z = -size
        elif rounding == "up":
            z = size * (-1 if negative else 1)
        elif rounding == "down":
            z = -size * (-1 if negative else 1)
        elif rounding == "toward-zero":
            z = -size
        x, y = Fraction(m) * Fraction(2) ** e1, Fraction(n) * Fraction(2) ** e2
        if negative:
            x, z = -x, -z
        codes = [oracle.encode_fraction(v, spec) for v in (x, y, z)]
        if all(number(c, spec) == (v < 0, abs(v)) for c, v in zip(codes, (x, y, z), strict=True)):
            out.append(codes)
    return [np.array(v, spec.dtype) for v in zip(*out, strict=True)]


@pytest.mark.parametrize("rounding", oracle.MODES)
@pytest.mark.parametrize(("name", "middle"), [("bf16", 64), ("tf32", 64), ("fp32", 64), ("fp16", 32), ("bf16", 32)])
def test_constructed_fma_traps(name, middle, rounding, implementation):
    """First that the naive way falls into every one of them; then that numsim does not."""
    spec = oracle.SPECS[name]
    triples = fma_traps(spec, rounding, 60, 53 if middle == 64 else 24, np.random.default_rng(middle))
    right = expected("fma", triples, [spec] * 3, spec, rounding)
    dtype = np.float64 if middle == 64 else np.float32
    x, y, z = (oracle.to_bits(v, spec, middle).view(dtype) for v in triples)
    naive = oracle.encode((x * y + z).view(f"u{middle // 8}"), spec, rounding=rounding)
    assert np.all(naive != right), f"{name}: {int((naive == right).sum())} traps do not trap"
    assert_codes(compute("fma", triples, name, rounding=rounding), right, triples, f"{name} fma {rounding}")


@pytest.mark.parametrize("rounding", oracle.MODES)
@pytest.mark.parametrize("name", ["bf16", "fp32", "tf32"])
def test_twosum_traps(name, rounding, implementation):
    """Sums that no float64 holds, of every sign and both orders of size (the short TwoSum needs |a| >= |b|)."""
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(9)
    large = ((rng.integers(180, 250, 300).astype(np.uint64) << np.uint64(spec.fraction)) | rng.integers(
        0, 1 << spec.fraction, 300, dtype=np.uint64)).astype(spec.dtype)  # fmt: skip
    small = rng.integers(1, 90 << spec.fraction, 300, dtype=np.uint64).astype(spec.dtype)
    signs = [np.where(rng.integers(0, 2, 300) == 1, spec.dtype(spec.sign), spec.dtype(0)) for _ in range(2)]
    a, b = large | signs[0], small | signs[1]
    for operands in ((a, b), (b, a)):
        for operation in ("add", "sub"):
            right = expected(operation, operands, [spec] * 2, spec, rounding)
            got = compute(operation, operands, name, rounding=rounding)
            assert_codes(got, right, operands, f"{name} {operation} {rounding}")
            if rounding in ("up", "down", "toward-zero", "odd"):
                with np.errstate(all="ignore"):
                    values = [oracle.to_bits(v, spec).view(np.float64) for v in operands]
                    naive = NUMPY[operation](*values)
                assert np.any(oracle.encode(naive.view(np.uint64), spec, rounding=rounding) != right)


# -- special cases ----------------------------------------------------------------------------------------------------

SPECIAL = [
    # operation, operands, result; NaN and infinity stand for what a format has in their place
    ("add", "inf inf", "inf"), ("add", "inf -inf", "nan"), ("add", "-inf inf", "nan"), ("add", "-inf -inf", "-inf"),
    ("add", "inf -1", "inf"), ("add", "1 -inf", "-inf"), ("add", "nan 1", "nan"), ("add", "-inf nan", "nan"),
    ("sub", "inf inf", "nan"), ("sub", "inf -inf", "inf"), ("sub", "-inf -inf", "nan"), ("sub", "1 inf", "-inf"),
    ("sub", "1 nan", "nan"), ("sub", "nan nan", "nan"),
    ("mul", "inf 0", "nan"), ("mul", "-0 inf", "nan"), ("mul", "inf -1", "-inf"), ("mul", "-inf -inf", "inf"),
    ("mul", "nan 0", "nan"), ("mul", "inf nan", "nan"),
    ("div", "0 0", "nan"), ("div", "0 -0", "nan"), ("div", "inf inf", "nan"), ("div", "inf -inf", "nan"),
    ("div", "1 0", "inf"), ("div", "1 -0", "-inf"), ("div", "-1 0", "-inf"), ("div", "-1 -0", "inf"),
    ("div", "inf 0", "inf"), ("div", "inf -0", "-inf"), ("div", "-inf -2", "inf"), ("div", "1 inf", "0"),
    ("div", "-1 inf", "-0"), ("div", "0 inf", "0"), ("div", "0 -inf", "-0"), ("div", "nan 0", "nan"),
    ("div", "1 nan", "nan"),
    ("sqrt", "0", "0"), ("sqrt", "-0", "-0"), ("sqrt", "inf", "inf"), ("sqrt", "-inf", "nan"), ("sqrt", "-1", "nan"),
    ("sqrt", "nan", "nan"), ("sqrt", "4", "2"),
    ("fma", "inf 0 1", "nan"), ("fma", "0 inf nan", "nan"), ("fma", "inf 1 -inf", "nan"), ("fma", "inf 1 inf", "inf"),
    ("fma", "1 1 -inf", "-inf"), ("fma", "nan 1 1", "nan"), ("fma", "1 nan 1", "nan"), ("fma", "1 1 nan", "nan"),
    ("fma", "-inf 2 1", "-inf"), ("fma", "-inf 0 inf", "nan"),
]  # fmt: skip


def special_code(text, spec, result=False):
    """The code of "inf", "-0", "1"…; None where the format has no such operand."""
    negative, text = text.startswith("-"), text.lstrip("-")
    sign = spec.sign if negative else 0
    if text == "nan":
        return spec.nan if spec.nan is not None else 0 if result else None
    if text == "inf":
        if spec.inf is not None:
            return spec.inf | sign
        return (spec.top | sign if spec.nan is None else spec.nan) if result else None
    if text == "0" and negative and not spec.negative_zero:
        return 0 if result else None
    return oracle.encode_fraction(Fraction(text), spec) | sign


@pytest.mark.parametrize("name", [n for n, s in oracle.SPECS.items() if s.signed])
def test_special_cases(name, implementation):
    """In every mode: no rounding happens, and saturation is not asked for."""
    spec = oracle.SPECS[name]
    for operation, operands, result in SPECIAL:
        codes = [special_code(x, spec) for x in operands.split()]
        if None in codes:
            continue
        right = special_code(result, spec, result=True)
        for rounding in oracle.MODES:
            got = compute(operation, [[c] for c in codes], name, rounding=rounding, **nan_option(spec))[0]
            assert got == right, f"{name} {operation} {operands} {rounding}: got {got:#x}, expected {right:#x}"


ZEROS = [
    # operation, operands, sign of the zero, and when rounding down: IEEE 754-2019, 6.3
    ("add", "0 0", "0", "0"), ("add", "0 -0", "0", "-0"), ("add", "-0 0", "0", "-0"), ("add", "-0 -0", "-0", "-0"),
    ("add", "1 -1", "0", "-0"), ("add", "-1 1", "0", "-0"),
    ("sub", "0 0", "0", "-0"), ("sub", "0 -0", "0", "0"), ("sub", "-0 0", "-0", "-0"), ("sub", "-0 -0", "0", "-0"),
    ("sub", "1 1", "0", "-0"), ("sub", "-1 -1", "0", "-0"),
    ("mul", "0 1", "0", "0"), ("mul", "-0 1", "-0", "-0"), ("mul", "0 -1", "-0", "-0"), ("mul", "-0 -0", "0", "0"),
    ("div", "0 1", "0", "0"), ("div", "-0 1", "-0", "-0"), ("div", "0 -1", "-0", "-0"), ("div", "-0 -1", "0", "0"),
    ("fma", "1 1 -1", "0", "-0"), ("fma", "-1 1 1", "0", "-0"), ("fma", "0 1 0", "0", "0"),
    ("fma", "0 1 -0", "0", "-0"), ("fma", "0 -1 -0", "-0", "-0"), ("fma", "0 -1 0", "0", "-0"),
    ("fma", "-0 -1 0", "0", "0"),
]  # fmt: skip


@pytest.mark.parametrize("name", [n for n, s in oracle.SPECS.items() if s.signed])
def test_signs_of_exact_zeros(name, implementation):
    spec = oracle.SPECS[name]
    for operation, operands, usual, down in ZEROS:
        codes = [special_code(x, spec, result=True) for x in operands.split()]
        if "-0" in operands.split() and not spec.negative_zero:
            continue
        for rounding in (*oracle.MODES, "stochastic"):
            right = special_code(down if rounding == "down" else usual, spec, result=True)
            seed = {"seed": 1} if rounding == "stochastic" else {}
            got = compute(operation, [[c] for c in codes], name, rounding=rounding, **seed)[0]
            assert got == right, f"{name} {operation} {operands} {rounding}: got {got:#x}, expected {right:#x}"


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "e5m2", "e4m3fn"])
def test_zeros_from_below_keep_their_sign(name, implementation):
    """What underflows is no exact zero: the sign is that of the number, in every mode."""
    spec = oracle.SPECS[name]
    for sign_x in (0, spec.sign):
        for sign_y in (0, spec.sign):
            for rounding in oracle.MODES:
                operands = [np.array([c], spec.dtype) for c in (1 | sign_x, 1 | sign_y)]
                right = expected("mul", operands, [spec] * 2, spec, rounding)
                assert right[0] in (sign_x ^ sign_y, 1 | (sign_x ^ sign_y))
                assert_codes(compute("mul", operands, name, rounding=rounding), right, operands, (name, rounding))


# -- policies, mixed formats, chance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32", "fp32", "fp64"])
def test_policies_of_wide_formats(name, implementation):
    """All 72 combinations, each on a few triples of its own: near the top, near the least numbers, anywhere."""
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(31)
    for rounding, overflow, subnormals in POLICIES:
        for operation, count in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("fma", 3)):
            operands = [tricky_codes(spec, 10, rng) for _ in range(count)]
            for v in operands[:2]:  # so that sums and products come near the borders
                v[:2] = spec.top - np.abs(rng.integers(0, 3, 2))
                v[2:4] = rng.integers(0, 3 << spec.fraction, 2)
            options = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals}
            right = expected(operation, operands, [spec] * count, spec, rounding, overflow, subnormals)
            assert_codes(
                compute(operation, operands, name, **options), right, operands, f"{name} {operation}, {options}"
            )


MIXED = [
    (("fp16", "fp16"), "fp32"), (("fp32", "bf16"), "e4m3fn"), (("bf16", "fp16"), "bf16"), (("e5m2", "e4m3fn"), "fp16"),
    (("fp32", "fp32"), "fp16"), (("e8m0", "bf16"), "bf16"), (("e4m3fnuz", "e2m1"), "e8m0"), (("fp16", "e8m0"), "ue4m3"),
    (("fp16", "fp32"), "fp64"), (("fp64", "fp32"), "fp16"), (("fp64", "fp64"), "fp32"), (("e3m2", "e2m1"), "e2m3"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "result"), MIXED)
def test_mixed_formats(names, result, implementation):
    """Operands of several formats, one rounding to a third."""
    specs, target = [oracle.SPECS[n] for n in names], oracle.SPECS[result]
    rng = np.random.default_rng(41)
    operands = [tricky_codes(s, 60, rng) for s in specs]
    arrays = [numsim.from_codes(c, n) for c, n in zip(operands, names, strict=True)]
    for operation in BINARY:
        for rounding in oracle.MODES:
            right = expected(operation, operands, specs, target, rounding)
            got = getattr(numsim, operation)(*arrays, format=result, rounding=rounding, **nan_option(target)).codes
            assert_codes(got, right, operands, f"{operation} of {names} to {result}, {rounding}")
    third = numsim.from_codes(operands[0], names[0])
    got = numsim.fma(*arrays, third, format=result, **nan_option(target)).codes
    right = expected("fma", [*operands, operands[0]], [*specs, specs[0]], target)
    assert_codes(got, right, operands, f"fma of {names} to {result}")


@pytest.mark.parametrize("rounding", oracle.MODES)
def test_long_results(rounding, implementation):
    """FP32 operands into 46 bits: quotients and sums whose float64 is a tie or a number of the result by accident."""
    fp32, long = oracle.SPECS["fp32"], oracle._ieee("e8m45", 8, 45)
    rng = np.random.default_rng(43)
    codes = rng.integers(0x38000000, 0x48000000, (2, 150)).astype(np.uint32)
    codes |= (rng.integers(0, 2, codes.shape) << 31).astype(np.uint32)
    arrays = [numsim.from_codes(c, "fp32") for c in codes]
    for operation in BINARY:
        right = expected(operation, codes, [fp32] * 2, long, rounding)
        got = getattr(numsim, operation)(*arrays, format="e8m45", rounding=rounding).codes
        assert_codes(got, right, codes, f"{operation} of fp32 to e8m45, {rounding}")


@pytest.mark.parametrize("rounding", oracle.MODES)
def test_long_roots(rounding, implementation):
    """The same for roots: just beside 1 they are numbers of 46 bits, or ties, as float64."""
    gmpy2 = pytest.importorskip("gmpy2", reason="MPFR is the outsider here: pip install gmpy2")
    fp32, long = oracle.SPECS["fp32"], oracle._ieee("e8m45", 8, 45)
    one = fp32.bias << fp32.fraction
    codes = np.append(np.arange(one - 40, one + 40), np.arange(one - 300_000, one + 300_000, 7919)).astype(np.uint32)
    rows = [(Mpfr(fp32, gmpy2).operand(c),) for c in codes.tolist()]
    right = Mpfr(long, gmpy2).codes("sqrt", rows, rounding)
    got = numsim.sqrt(numsim.from_codes(codes, "fp32"), format="e8m45", rounding=rounding).codes
    assert_codes(got, right, (codes,), f"sqrt of fp32 to e8m45, {rounding}")


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e5m2", "fp32"])
@pytest.mark.parametrize("r", [1, 8, 16, 32])
def test_stochastic(name, r, implementation):
    """Up exactly where floor(2^r fraction) + random >= 2^r; given bits, and the same bits by seed and counter."""
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(r)
    start = 2**32 - 30  # the keys change in the middle
    for operation, count in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("fma", 3)):
        operands = [tricky_codes(spec, 60, rng) for _ in range(count)]
        bits = np.array([numsim.random.bits(99, start + i) >> (32 - r) for i in range(60)], np.uint32)
        numbers = [[number(c, spec) for c in v.tolist()] for v in operands]
        results = [exact(operation, *row) for row in zip(*numbers, strict=True)]
        right = np.array(
            [rounded(x, spec, "stochastic", r=r, random=int(b)) for x, b in zip(results, bits, strict=True)], spec.dtype
        )
        options = {"rounding": "stochastic", "sr_bits": r}
        got = compute(operation, operands, name, **options, random_bits=bits)
        assert_codes(got, right, operands, f"{name} {operation} stochastic, {r} bits given")
        stream = Stream(99, start)
        got = compute(operation, operands, name, **options, seed=stream)
        assert_codes(got, right, operands, f"{name} {operation} stochastic, {r} bits by seed")
        assert stream.position == start + 60


def test_stochastic_leaves_exact_results_alone(kernel):
    """1.5 stays 1.5 whatever the bits: the largest and the least draw give what every other mode gives."""
    spec = oracle.SPECS["fp16"]
    a = np.arange(0x3C00, 0x4400, dtype=np.uint16)
    b = np.full_like(a, 0x4000)
    for operation in ("mul", "add", "sub"):
        right = expected(operation, (a, b), [spec] * 2, spec, "toward-zero")
        same = expected(operation, (a, b), [spec] * 2, spec, "up") == right
        for bits in (0, 2**32 - 1):
            got = compute(operation, (a, b), "fp16", rounding="stochastic", random_bits=np.uint32(bits))
            assert_codes(got[same], right[same], (a[same], b[same]), f"{operation}, random {bits:#x}")


def test_stochastic_mean(kernel):
    """1 + 2^-12 in FP16 is 1 + 2^-10 one time in four: 65,536 draws, a band of five standard deviations."""
    one, small = (numsim.array(np.full(65536, v), "fp16") for v in (1.0, 2.0**-12))
    ups = int((numsim.add(one, small, rounding="stochastic", seed=2024).values > 1).sum())
    assert abs(ups - 16384) < 5 * 111, ups


def test_any_number_of_threads(kernel, monkeypatch):
    """Several chunks: the same bits on one thread and on seven."""
    a, b = tricky_pairs(oracle.SPECS["bf16"], 400_001, 8)
    got = {}
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("NUMSIM_THREADS", threads)
        events = numsim.Events()
        got[threads] = (
            compute("add", (a, b), "bf16"),
            compute("div", (a, b), "bf16", rounding="stochastic", seed=Stream(3, 2**32 - 200_000), events=events),
            events,
        )
    for threads in ("2", "7"):
        for x, y in zip(got["1"], got[threads], strict=True):
            assert np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y


# -- events -----------------------------------------------------------------------------------------------------------


def test_events_of_an_operation(implementation):
    def happened(operation, *values, **options):
        seen = numsim.Events()
        arrays = [numsim.array(v, "fp16") for v in values]
        getattr(numsim, operation)(*arrays, events=seen, **options)
        return {k: v for k, v in vars(seen).items() if v}

    assert happened("add", [1.0, 2048.0], [1.0, 1.0]) == {"total": 2, "inexact": 1}
    assert happened("mul", [65504.0, 2.0**-24], [2.0, 0.25]) == {
        "total": 2, "inexact": 2, "overflow": 1, "underflow": 1,
    }  # fmt: skip
    assert happened("mul", [2.0**-14], [0.5]) == {"total": 1, "subnormal": 1}
    assert happened("div", [1.0, 4.0], [3.0, 2.0]) == {"total": 2, "inexact": 1}
    assert happened("sqrt", [2.0, 4.0, 0.0]) == {"total": 3, "inexact": 1}
    assert happened("fma", [1.0], [1.0], [2.0**-24], rounding="up") == {"total": 1, "inexact": 1}
    assert happened("add", [np.nan], [1.0]) == {"total": 1}


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_events_where_the_hardware_rounds(name, implementation):
    """1 + 2^-60 is inexact in FP64 too."""
    seen = numsim.Events()
    numsim.add(numsim.array([1.0, 1.0], name), numsim.array([2.0**-60, 1.0], name), events=seen)
    assert (seen.total, seen.inexact) == (2, 1), seen


def test_invalid_operations_are_counted(implementation):
    """Events: "NaN results of inputs that were no NaN"."""
    seen = numsim.Events()
    numsim.sub(numsim.array([np.inf, 1.0], "fp16"), numsim.array([np.inf, 1.0], "fp16"), events=seen)
    assert seen.nan == 1, seen


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_refusals(implementation):
    x = numsim.array([1.0, 2.0], "fp16")
    with pytest.raises(InputError, match=r"NaN has no code in e2m1.*nan=\"zero\""):
        numsim.div(numsim.array([0.0], "e2m1"), 0)
    with pytest.raises(InputError, match="rounding='nearest': allowed are nearest-even"):
        numsim.add(x, x, rounding="nearest")
    with pytest.raises(InputError, match=r"stochastic rounding needs either seed= or random_bits="):
        numsim.add(x, x, rounding="stochastic")
    with pytest.raises(InputError, match="seed="):
        numsim.add(x, x, seed=1)
    with pytest.raises(InputError, match=r"shapes \(2,\) and \(3,\) do not broadcast"):
        numsim.add(x, [1, 2, 3])
    with pytest.raises(InputError, match=r"random_bits of shape \(3,\) do not fit"):
        numsim.add(x, x, rounding="stochastic", random_bits=[1, 2, 3])


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 1, 3)])
def test_shapes(shape, implementation):
    """0-d stays 0-d, empty stays empty."""
    x = numsim.array(np.ones(shape), "bf16")
    for y in (numsim.add(x, x), numsim.sqrt(x), numsim.fma(x, x, x), x + 1):
        assert y.shape == shape and y.codes.dtype == np.uint16
