"""encode and round_to against the outside oracle, bit for bit, through both implementations."""

from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.errors import InputError, RangeError, UnavailableError
from numsim.random import Stream
from tests import inputs, oracle

WIDTHS = (64, 32)
POLICIES = [(r, o, s) for r in oracle.MODES for o in oracle.OVERFLOWS for s in oracle.SUBNORMALS]
IN_RANGE = [p for p in POLICIES if p[1] == "ieee" and p[2] in ("keep", "flush")]
WIDE = [*oracle.IEEE_16, *oracle.WIDE]


@pytest.fixture(params=["reference", "kernel"])
def implementation(request):
    try:
        forced = numsim.kernels.force(request.param)
        forced.__enter__()
    except UnavailableError as error:
        pytest.skip(str(error))
    yield request.param
    forced.__exit__(None, None, None)


def test_kernels_run_where_numba_is():
    """Or the tests below would skip the kernels unnoticed."""
    pytest.importorskip("numba")
    with numsim.kernels.force("kernel"):
        assert numsim.encode(1.0, "fp16") == 0x3C00


def assert_same(got, expected, patterns, spec, rule):
    """Failure text: how many, the first bad input, what came, what was right, under which rule."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape, (got.dtype, expected.dtype, got.shape)
    bad = np.flatnonzero(got != expected)
    if bad.size:
        i, width = bad[0], patterns.dtype.itemsize * 8
        value = float(inputs.as_float(patterns[i : i + 1])[0])
        raise AssertionError(
            f"{spec.name}, {rule}: {bad.size} of {got.size} differ; first: float{width} "
            f"{inputs.show(patterns[i], width)} = {value.hex()}: got {int(got[i]):#x}, expected {int(expected[i]):#x}"
        )


def nan_rule(spec):
    return {"nan": "zero"} if spec.nan is None else {}


def check_policies(patterns, spec, policies, events=False, back=True):
    width = patterns.dtype.itemsize * 8
    located = oracle.Located(patterns, spec)
    floats = inputs.as_float(patterns)
    before = patterns.copy()
    for rounding, overflow, subnormals in policies:
        options = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals, **nan_rule(spec)}
        expected, happened = located.encode(**options, count=events)
        seen = numsim.Events() if events else None
        got = numsim.encode(floats, spec.name, events=seen, **options)
        assert_same(got, expected, patterns, spec, options)
        if events:
            assert vars(seen) == happened, (spec.name, options)
        if back:
            seen = numsim.Events() if events else None
            got = numsim.round_to(floats, spec.name, events=seen, **options)
            assert_same(inputs.as_bits(got), oracle.to_bits(expected, spec, width), patterns, spec, options)
            if events:
                assert vars(seen) == happened, (spec.name, options)
    assert np.array_equal(patterns, before), "the input was modified"


# -- every mode x overflow x subnormals -------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_small_formats(name, width, implementation):
    spec = oracle.SPECS[name]
    if implementation == "kernel":
        patterns = inputs.thorough(spec, width)
        check_policies(patterns, spec, POLICIES)
        # pieces without overflow or NaN go another way
        check_policies(inputs.in_range(patterns, spec), spec, IN_RANGE)
        return
    # microseconds a number: all boundaries in all modes, a seeded sample under the other policies
    patterns = inputs.boundaries(spec, width)
    check_policies(patterns, spec, [(r, "ieee", "keep") for r in oracle.MODES], back=False)
    check_policies(np.random.default_rng(7).choice(patterns, 100), spec, POLICIES)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", WIDE)
def test_wide_formats(name, width, implementation):
    """Seeded sample: 500 quarter points, powers of two, edges, each with its surroundings; 2,000 random patterns."""
    spec = oracle.SPECS[name]
    patterns = inputs.thorough(spec, width, count=2000, sample=500)
    if implementation == "kernel":
        check_policies(patterns, spec, [p for i, p in enumerate(POLICIES) if i % 5 == 0 or p[1:] == ("ieee", "keep")])
        check_policies(inputs.in_range(patterns, spec), spec, IN_RANGE)
    else:
        rng = np.random.default_rng(7)
        check_policies(rng.choice(patterns, 1500), spec, [(r, "ieee", "keep") for r in oracle.MODES], back=False)
        check_policies(rng.choice(patterns, 60), spec, POLICIES)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*oracle.UP_TO_8, *WIDE])
def test_events(name, width, implementation):
    spec = oracle.SPECS[name]
    patterns = inputs.boundaries(spec, width) if spec.bits <= 8 else inputs.thorough(spec, width, 500, sample=50)
    if implementation == "reference":
        edges = inputs.as_bits(np.array([0, float(numsim.get_format(name).least_normal)], f"f{width // 8}"))
        patterns = np.append(np.random.default_rng(8).choice(patterns, 38), edges)
    check_policies(patterns, spec, POLICIES, events=True)


@pytest.mark.parametrize("width", WIDTHS)
def test_fp64_takes_everything(width, implementation):
    """Nothing to round: NaNs become canonical, flushing still flushes."""
    spec = oracle.SPECS["fp64"]
    patterns = inputs.thorough(spec, width, count=500, sample=30)
    patterns = np.random.default_rng(3).choice(patterns, 800)
    located = oracle.Located(patterns, spec)
    for subnormals in oracle.SUBNORMALS:
        for rounding in ("nearest-even", "down", "odd"):
            got = numsim.encode(inputs.as_float(patterns), "fp64", rounding=rounding, subnormals=subnormals)
            assert_same(got, located.encode(rounding, "ieee", subnormals)[0], patterns, spec, (rounding, subnormals))


@pytest.mark.parametrize("name", ["e6m9", "e2m4", "e8m2", "e9m20", "e11m3", "e11m30"])
def test_formats_nobody_has(name, implementation):
    """IEEE-style eXmY between and beyond the usual ones; e11 has float64's own range, so its edges are float64's."""
    x, y = (int(n) for n in name[1:].split("m"))
    spec = oracle._ieee(name, x, y)
    patterns = inputs.thorough(spec, 64, count=500, sample=100)
    if implementation == "reference":
        patterns = np.random.default_rng(9).choice(patterns, 300)
    check_policies(patterns, spec, [p for i, p in enumerate(POLICIES) if i % 7 == 0])
    check_policies(inputs.in_range(patterns, spec), spec, [p for p in IN_RANGE if p[2] == "keep"])


OWN = [
    # (exponent bits, fraction bits, bias, specials, signed, zero)
    *((4, 2, 9, specials, signed, True) for specials in ("ieee", "fn", "finite") for signed in (True, False)),
    (4, 2, 9, "fnuz", True, True),
    (2, 1, 1, "ieee", True, True),
    # one bit of precision: ties go to the even code, not to an even significand
    *((4, 0, bias, specials, True, True) for bias in (6, 7) for specials in ("fn", "fnuz", "finite")),
    (4, 0, 7, "finite", False, True),
    # no zero
    (4, 0, 6, "fn", False, False),
    (4, 0, 7, "finite", False, False),
    (4, 2, 9, "fn", False, False),
    (3, 3, 127, "finite", False, False),
    # one exponent bit, or none to speak of
    (1, 3, 1, "finite", True, True),
    (1, 2, 0, "fnuz", True, True),
    (1, 0, 0, "finite", True, True),
    (1, 0, 0, "fn", True, True),  # nothing but zeros
    # at the edges of float32 and float64, whose subnormals are normal here and the other way round
    (5, 2, 140, "ieee", True, True),
    (5, 2, 147, "fn", True, True),
    (5, 2, -90, "finite", True, True),
    (5, 2, 125, "ieee", True, True),
    (6, 3, 1060, "ieee", True, True),
    (6, 3, 1072, "finite", False, True),
    (6, 3, -940, "fnuz", True, True),
    (6, 3, 1021, "ieee", True, True),
    (6, 2, 1023, "ieee", True, True),
]


def own_spec(exponent, fraction, bias, specials, signed, zero):
    whole = 1 << (exponent + fraction)
    infinity = whole - (1 << fraction) if specials == "ieee" else None
    top = {"ieee": (infinity or 0) - 1, "fn": whole - 2, "fnuz": whole - 1, "finite": whole - 1}[specials]
    nan = {"ieee": (infinity or 0) + (1 << fraction >> 1), "fn": whole - 1, "fnuz": whole, "finite": None}[specials]
    nans = {"ieee": "above inf", "fn": "magnitude", "fnuz": "code", "finite": "none"}[specials]
    minus_zero = signed and specials != "fnuz"
    return oracle.Spec("own", exponent, fraction, bias, top, infinity, nan, nans, signed, minus_zero, zero)


@pytest.mark.parametrize("fields", OWN, ids=str)
def test_ones_own_formats(fields, implementation):
    exponent, fraction, bias, specials, signed, zero = fields
    own = numsim.Format("own", exponent, fraction, bias, signed=signed, specials=specials, zero=zero)
    spec = own_spec(*fields)
    for width in WIDTHS:
        patterns = inputs.boundaries(spec, width)
        if implementation == "reference":
            patterns = np.random.default_rng(5).choice(patterns, 60)
        back = width == 64 or own.fits(numsim.FP32)
        for part in (patterns, inputs.in_range(patterns, spec))[: 1 + (implementation == "kernel")]:
            located, floats = oracle.Located(part, spec), inputs.as_float(part)
            for i, (rounding, overflow, subnormals) in enumerate(POLICIES):
                if i % 5 and (overflow, subnormals) != ("ieee", "keep"):
                    continue
                nan = ("zero", "max")[i % 2] if spec.nan is None else "raise"
                options = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals, "nan": nan}
                expected, happened = located.encode(**options)
                assert_same(numsim.encode(floats, own, **options), expected, part, spec, options)
                seen = numsim.Events()
                assert_same(numsim.encode(floats, own, events=seen, **options), expected, part, spec, options)
                assert vars(seen) == happened, options
                if back:
                    right = oracle.to_bits(expected, spec, width)
                    got = numsim.round_to(floats, own, **options)
                    assert_same(inputs.as_bits(got), right, part, spec, options)
            random = random_for(located, 16, seed=2)
            given = {"rounding": "stochastic", "random_bits": random.astype(np.uint16), **nan_rule(spec)}
            expected = located.encode("stochastic", r=16, random=random, **nan_rule(spec), count=False)[0]
            assert_same(numsim.encode(floats, own, **given), expected, part, spec, "stochastic")
            if back:
                got = numsim.round_to(floats, own, **given)
                assert_same(inputs.as_bits(got), oracle.to_bits(expected, spec, width), part, spec, "stochastic")


@pytest.mark.parametrize("length", [*range(20), 31, 32, 33, 63, 64, 65, 127, 129, 255, 257, 1023])
def test_odd_lengths(length, implementation):
    """Loops that take several numbers at once must not forget the last ones."""
    spec = oracle.SPECS["e4m3fn"]
    for width in WIDTHS:
        patterns = np.resize(inputs.boundaries(spec, width)[::7], length + 3)[3:]
        expected, happened = oracle.Located(patterns, spec).encode("nearest-away", "saturate-finite")
        seen = numsim.Events()
        floats = inputs.as_float(patterns)
        got = numsim.encode(floats, "e4m3", rounding="nearest-away", overflow="saturate-finite", events=seen)
        assert_same(got, expected, patterns, spec, length)
        assert vars(seen) == happened


@pytest.mark.parametrize("fits", [False, True])
@pytest.mark.parametrize("name", ["e4m3fn", "bf16"])
def test_large_arrays(name, fits):
    """Several chunks, on all threads: the same codes as in one small piece, counters and counts included."""
    pytest.importorskip("numba")
    spec = oracle.SPECS[name]
    for width in WIDTHS:
        patterns = inputs.boundaries(spec, width) if spec.bits <= 8 else inputs.random_patterns(width, 3001, 2, spec)
        if fits:
            patterns = inputs.in_range(patterns, spec)
        times = 700_001 // patterns.size + 1
        floats = np.tile(inputs.as_float(patterns), times)
        located = oracle.Located(patterns, spec)
        for rounding in ("nearest-even", "down"):
            expected, happened = located.encode(rounding)
            seen = numsim.Events()
            assert np.array_equal(numsim.encode(floats, name, rounding=rounding), np.tile(expected, times))
            assert np.array_equal(numsim.encode(floats, name, rounding=rounding, events=seen), np.tile(expected, times))
            assert vars(seen) == {k: v * times for k, v in happened.items()}
            itself = floats.copy()
            numsim.round_to(itself, name, rounding=rounding, out=itself)
            assert np.array_equal(inputs.as_bits(itself), np.tile(oracle.to_bits(expected, spec, width), times))
        start = 2**32 - 400_000
        whole = numsim.encode(floats, name, rounding="stochastic", seed=Stream(5, start))
        for i in (0, 131_071, 262_144, 399_990, floats.size - 50):
            piece = floats[i : i + 50]
            with numsim.kernels.force("reference"):
                assert np.array_equal(
                    numsim.encode(piece, name, rounding="stochastic", seed=Stream(5, start + i)), whole[i : i + 50]
                )
        random = np.random.default_rng(1).integers(0, 2**16, floats.size, dtype=np.uint16)
        got = numsim.encode(floats, name, rounding="stochastic", random_bits=random)
        for i in range(0, floats.size, patterns.size * 37):
            part = slice(i, i + patterns.size)
            assert np.array_equal(got[part], located.encode("stochastic", r=16, random=random[part], count=False)[0])


# -- NaN ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", oracle.SPECS)
def test_every_nan(name, width, implementation):
    """Quiet, signalling, negative, any payload: the canonical code, under every policy."""
    spec = oracle.SPECS[name]
    floats = inputs.as_float(inputs.nans(width))
    for overflow in oracle.OVERFLOWS:
        for rounding in oracle.MODES:
            options = {"rounding": rounding, "overflow": overflow}
            if spec.nan is not None:
                assert np.all(numsim.encode(floats, name, **options) == spec.nan), options
                continue
            for call in (numsim.encode, numsim.round_to):
                with pytest.raises(InputError, match="NaN"):
                    call(floats[:1], name, **options)
                with pytest.raises(InputError, match="NaN"):
                    call(np.append(np.ones(40, floats.dtype), floats[0]), name, **options)
            assert np.all(numsim.encode(floats, name, nan="zero", **options) == 0), options
            assert np.all(numsim.encode(floats, name, nan="max", **options) == spec.top), options
            assert np.all(numsim.round_to(floats, name, nan="max", **options) == float(numsim.get_format(name).max))


def test_nan_of_round_to_is_the_positive_quiet_one(implementation):
    for width, quiet in ((64, 0x7FF8000000000000), (32, 0x7FC00000)):
        floats = inputs.as_float(inputs.nans(width))
        for name in ("fp16", "e4m3", "e5m2fnuz", "fp32"):
            assert np.all(inputs.as_bits(numsim.round_to(floats, name)) == quiet)


# -- what other libraries get wrong ------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
DISAGREEMENTS = [
    # (value, format, options, right): who says otherwise stands in the comment
    (-431.99999999999994, "e4m3", {}, -416.0),  # through float32: -448
    (1 + 2.0**-8 + 2.0**-40, "bf16", {}, 1.0078125),  # through float32: 1.0
    (2.0**-25 * (1 + 2.0**-52), "fp16", {}, 2.0**-24),  # through float32: 0
    (float.fromhex("0x1.d000000000001p+8"), "e4m3", {}, NAN),  # just above 464; through float32: 448
    (float.fromhex("0x1.d000000000001p+8"), "e4m3", {"overflow": "saturate"}, 448.0),
    (float.fromhex("0x1.dfffff1p+15"), "e5m2", {}, 57344.0),  # through float32: inf
    (2.0**-133, "bf16", {}, 2.0**-133),  # the least subnormal; flushed: 0
    (464.0, "e4m3", {}, 448.0),  # a tie, to even
    (464.0, "e4m3", {"rounding": "nearest-away"}, NAN),
    (465.0, "e4m3", {}, NAN),
    (465.0, "e4m3", {"overflow": "saturate"}, 448.0),
    (465.0, "e4m3", {"overflow": "saturate-finite"}, 448.0),
    (1e4, "e4m3", {}, NAN),
    (INF, "e4m3", {}, NAN),
    (INF, "e4m3", {"overflow": "saturate"}, 448.0),
    (INF, "e4m3", {"overflow": "saturate-finite"}, NAN),
    (300.0, "e4m3fnuz", {}, NAN),
    (300.0, "e4m3fnuz", {"overflow": "saturate"}, 240.0),
    (float.fromhex("0x1.cp-15"), "e5m2", {}, 2.0**-14),  # carry into the least normal number
    (65520.0, "fp16", {}, INF),  # carry past the largest number
    (65519.99, "fp16", {}, 65504.0),
    (65536.0, "fp16", {}, INF),
    (248.0, "e4m3_ieee", {}, INF),
    (float.fromhex("0x1.fffffep-26"), "fp16", {}, 0.0),  # exponent by floor(log2(x)): 2^-24
    (1.00048828125, "fp16", {}, 1.0),  # ties away: 1.0009765625
    (float.fromhex("0x1.fffffep+127"), "fp16", {}, INF),
    (float.fromhex("0x1.fffffep+127"), "e5m2", {}, INF),
    (-0.0, "fp16", {}, -0.0),
    (-(2.0**-149), "fp16", {}, -0.0),
    (-(2.0**-149), "fp16", {"rounding": "up"}, -0.0),  # the sign of a zero that comes from below
    (np.nextafter(2.0**-25, 0), "fp16", {"rounding": "nearest-away"}, 0.0),  # floor(x + 0.5): 2^-24
    (np.nextafter(0.5, 0), "e8m0", {"rounding": "nearest-away"}, 0.5),
    (0.0, "e8m0", {}, 2.0**-127),  # ml_dtypes: NaN
    (-0.0, "e8m0", {}, 2.0**-127),
    (-1.0, "e8m0", {}, NAN),  # torch: +1.0
    (-INF, "e8m0", {"overflow": "saturate"}, NAN),
    (-1.0, "ue4m3", {"overflow": "saturate"}, NAN),
    (-0.0, "ue4m3", {}, 0.0),
    (1.5 * 2.0**127, "e8m0", {}, 2.0**127),  # tie to the even code 254; torch and ml_dtypes: NaN
    (1.5 * 2.0**127, "e8m0", {"rounding": "nearest-away"}, NAN),
    (1.75 * 2.0**127, "e8m0", {}, NAN),
    (1.5, "e8m0", {}, 2.0),  # between codes 127 and 128
    (3.0, "e8m0", {}, 2.0),  # between codes 128 and 129; torch and ml_dtypes: 4
    (float.fromhex("0x1.000004p-127"), "e8m0", {}, 2.0**-127),  # torch and ml_dtypes: 2^-126
    (NAN, "e2m1", {"nan": "zero"}, 0.0),  # ml_dtypes: -0
    (NAN, "e2m1", {"nan": "max"}, 6.0),
    (2.0**-20, "fp16", {}, 2.0**-20),  # a subnormal; flushed: 0
    (2.0**-20, "fp16", {"subnormals": "flush-results"}, 0.0),
    (-(2.0**-20), "fp16", {"subnormals": "flush-inputs"}, -0.0),
    (2.0**-14 - 2.0**-40, "fp16", {"subnormals": "flush-results"}, 2.0**-14),  # rounds to normal first
    (2.0**-14 - 2.0**-40, "fp16", {"subnormals": "flush-inputs"}, 0.0),
    (4.25, "e4m3", {}, 4.0),  # tie to even, taken for a bug
    (0.49999999023, "fp16", {}, 0.5),  # carry lost: 0.25
    (1.8131605, "e4m3", {}, 1.875),  # 1.75
    (126.24, "e4m3", {}, 128.0),  # 64
    (232.0368, "e4m3", {}, 240.0),  # truncated: 224
    (61440.0, "e5m2", {}, INF),  # tie to even, which is past the top
    (0.25000006, "e2m1", {}, 0.5),  # 0
    (0.25, "e2m1", {}, 0.0),
    (5.0, "e2m1", {}, 4.0),
    (1e300, "e2m1", {}, 6.0),  # no infinity, no NaN
    (-INF, "e2m1", {}, -6.0),
    (INF, "e4m3fnuz", {}, NAN),
    (-(2.0**-30), "e4m3fnuz", {}, 0.0),  # no -0
    (1.125, "e8m0", {"rounding": "up"}, 2.0),
]


@pytest.mark.parametrize(("value", "name", "options", "right"), DISAGREEMENTS)
def test_where_libraries_disagree(value, name, options, right, implementation):
    for x in (value, np.float64(value), np.array([value]), [value, value]):
        got = np.atleast_1d(numsim.round_to(x, name, **options))
        assert np.array_equal(got, np.full(got.shape, right), equal_nan=True)
        assert np.isnan(right) or np.all(np.signbit(got) == np.signbit(right))
        codes = numsim.encode(x, name, **options)
        assert np.array_equal(np.atleast_1d(numsim.decode(codes, name)), got, equal_nan=True)
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if np.float64(single) == value or np.isnan(value):
        got = numsim.round_to(np.array([single]), name, **options)
        assert got.dtype == np.float32 and np.array_equal(got, [np.float32(right)], equal_nan=True)


def test_not_through_the_input_dtype(implementation):
    """65504 fits float16, its BF16 neighbour 65536 does not."""
    x = np.array([65504.0], np.float16)
    assert numsim.round_to(x, "bf16")[0] == 65536.0 and numsim.encode(x, "bf16")[0] == 0x4780
    x = np.array([448.0], ml_dtypes.float8_e4m3fn)
    assert numsim.round_to(x, "e5m2")[0] == 448.0 and numsim.round_to(x, "e8m0")[0] == 512.0


def test_all_fp16_and_bf16_inputs(implementation):
    """Every float16 and bfloat16 number into a few formats; the reference takes every 16th."""
    codes = np.arange(0, 1 << 16, 1 if implementation == "kernel" else 16, dtype=np.uint16)
    for source, dtype, targets in (
        ("fp16", np.float16, ("bf16", "e4m3fn", "e5m2", "fp16")),
        ("bf16", ml_dtypes.bfloat16, ("fp16", "e4m3fn", "e8m0", "bf16")),
    ):
        patterns = oracle.to_bits(codes, oracle.SPECS[source], 32)
        for target in targets:
            got = numsim.encode(codes.view(dtype), target)
            assert_same(got, oracle.encode(patterns, target), patterns, oracle.SPECS[target], source)


@pytest.mark.parametrize("source", oracle.UP_TO_8)
def test_every_small_format_into_every_other(source, implementation):
    """Codes to codes, in every mode; so many that the kernels make tables."""
    spec = oracle.SPECS[source]
    codes = np.arange(1 << spec.bits, dtype=spec.dtype)
    patterns = oracle.to_bits(codes, spec)
    x = numsim.from_codes(codes if implementation == "reference" else np.resize(codes, 1 << 14), source)
    for target in oracle.UP_TO_8:
        located = oracle.Located(patterns, oracle.SPECS[target])
        for rounding in oracle.MODES:
            right = located.encode(rounding, nan="zero", count=False)[0]
            got = x.astype(target, rounding=rounding, **nan_rule(oracle.SPECS[target])).codes
            right, given = np.resize(right, x.size), np.resize(patterns, x.size)
            assert_same(got, right, given, oracle.SPECS[target], (source, rounding))


def test_just_below_every_power_of_two(implementation):
    """Where floor(log2(x)) is one too many."""
    for name in ("fp16", "bf16", "e4m3fn"):
        exponents = np.arange(-30, 16)
        for width in WIDTHS:
            one_below = inputs.as_bits(np.ldexp(np.ones(exponents.size, f"f{width // 8}"), exponents)) - 1
            one_below = one_below.astype(f"u{width // 8}")
            got = numsim.encode(inputs.as_float(one_below), name, rounding="toward-zero")
            spec = oracle.SPECS[name]
            assert_same(got, oracle.encode(one_below, spec, rounding="toward-zero"), one_below, spec, "toward-zero")


def test_more_precision_in_the_input_than_a_float32_comparison_sees(implementation):
    """np.float32(t) == t is decided in float32 (NEP 50), so a tie must be decided on the bits."""
    tie = 1 + 2.0**-8
    for step, right in ((-1, 0x3F80), (0, 0x3F80), (1, 0x3F81)):
        bits = inputs.as_bits(np.array([tie]))[0].astype(np.int64) + step
        assert numsim.encode(np.array([bits]).view(np.float64), "bf16")[0] == right
        assert numsim.encode(np.array([bits]).view(np.float64)[0], "bf16") == right


# -- the host's own floating-point state -------------------------------------------------------------------------------


def test_flush_to_zero_on_the_host(implementation):
    """Any library can switch it on for the thread; results must stay the same, or be refused."""
    torch = pytest.importorskip("torch")
    patterns = {w: inputs.special(w) for w in WIDTHS}
    cases = [
        (w, n, r)
        for w in WIDTHS
        for n in ("bf16", "fp32", "fp16", "e8m0", "tf32")
        for r in ("nearest-even", "up", "odd")
    ]
    got, back = {}, {}
    if not torch.set_flush_denormal(True):
        pytest.skip("torch cannot flush subnormals here")
    try:
        for w, n, r in cases:
            try:
                got[w, n, r] = numsim.encode(inputs.as_float(patterns[w]), n, rounding=r)
                back[w, n, r] = numsim.round_to(inputs.as_float(patterns[w]), n, rounding=r)
            except numsim.NumsimError as error:
                assert "flush" in str(error)  # noqa: PT017
    finally:
        torch.set_flush_denormal(False)
    for (w, n, r), codes in got.items():
        spec, rule = oracle.SPECS[n], f"{r}, flush-to-zero on"
        right = oracle.encode(patterns[w], n, rounding=r)
        assert_same(codes, right, patterns[w], spec, rule)
        assert_same(inputs.as_bits(back[w, n, r]), oracle.to_bits(right, spec, w), patterns[w], spec, rule)


# -- stochastic rounding -----------------------------------------------------------------------------------------------


def random_for(located, r, seed):
    """Random integers, two thirds of them on the step between staying and going up."""
    rng = np.random.default_rng(seed)
    size = located.kind.size
    random = rng.integers(0, 2**r, size, dtype=np.uint64)
    step = (np.uint64(1 << r) - located.fraction(r)) & np.uint64(2**r - 1)
    random[::3] = step[::3]
    random[1::3] = (step[1::3] - np.uint64(1)) & np.uint64(2**r - 1)
    return random


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*oracle.UP_TO_8, *WIDE])
def test_stochastic_rule(name, width, implementation):
    """Up iff floor(2^r * fraction) + random >= 2^r, for several r, in the subnormals and at overflow too."""
    spec = oracle.SPECS[name]
    patterns = inputs.thorough(spec, width, count=1000, sample=100)
    patterns = np.random.default_rng(4).choice(patterns, 150 if implementation == "reference" else 4000)
    draws = [(8, np.uint8), (16, np.uint16), (32, np.uint32), (32, np.uint64), (1, np.uint8), (23, np.uint32)]
    # in pieces with overflow, and in pieces without
    for part in (patterns, inputs.in_range(patterns, spec)):
        located = oracle.Located(part, spec)
        floats = inputs.as_float(part)
        for i, (r, dtype) in enumerate(draws):
            random = random_for(located, r, seed=r)
            given = {"random_bits": random.astype(dtype)}
            if {np.uint8: 8, np.uint16: 16}.get(dtype, 32) != r:
                given["sr_bits"] = r
            policies = [("ieee", "keep"), ("saturate", "flush"), ("saturate-finite", "flush-results")]
            for overflow, subnormals in policies if r == 8 else [policies[0], policies[i % 3]]:
                options = {"rounding": "stochastic", "overflow": overflow, "subnormals": subnormals, **nan_rule(spec)}
                expected, happened = located.encode(r=r, random=random, **options)
                got = numsim.encode(floats, name, **given, **options)
                assert_same(got, expected, part, spec, (options, r))
                if r in (8, 23):
                    seen = numsim.Events()
                    got = numsim.encode(floats, name, events=seen, **given, **options)
                    assert_same(got, expected, part, spec, (options, r))
                    assert vars(seen) == happened, (options, r)
                else:
                    back = numsim.round_to(floats, name, **given, **options)
                    assert_same(inputs.as_bits(back), oracle.to_bits(expected, spec, width), part, spec, (options, r))


def test_seed_is_a_counter(implementation):
    """Element i in C order uses position + i: slices, shapes and streams give the same bits."""
    x = np.random.default_rng(0).normal(size=(6, 7))
    whole = numsim.encode(x, "e4m3", rounding="stochastic", seed=7)
    bits = np.array([numsim.random.bits(7, i) for i in range(42)], np.uint32).reshape(6, 7)
    assert np.array_equal(whole, numsim.encode(x, "e4m3", rounding="stochastic", random_bits=bits))
    fortran = np.asfortranarray(x)
    assert np.array_equal(whole, numsim.encode(fortran, "e4m3", rounding="stochastic", seed=7))
    assert np.array_equal(whole, numsim.encode(x.astype(">f8"), "e4m3", rounding="stochastic", seed=7))
    assert np.array_equal(whole.ravel(), numsim.encode(x.ravel(), "e4m3", rounding="stochastic", seed=7))
    stream = Stream(7)
    parts = [numsim.encode(row, "e4m3", rounding="stochastic", seed=stream) for row in x]
    assert np.array_equal(whole, parts) and stream.position == 42
    assert numsim.round_to(x, "e4m3", rounding="stochastic", seed=stream).shape == (6, 7) and stream.position == 84
    assert not np.array_equal(whole, numsim.encode(x, "e4m3", rounding="stochastic", seed=8))
    back = numsim.round_to(x, "e4m3", rounding="stochastic", seed=7)
    assert np.array_equal(back, numsim.decode(whole, "e4m3"))
    mixed = [[Fraction(v) for v in row] for row in x]
    assert np.array_equal(whole, numsim.encode(mixed, "e4m3", rounding="stochastic", seed=7))


def test_positions_cross_a_block(implementation):
    """The counter goes on past 2^32."""
    x = np.full(64, 1.0 + 2.0**-8)
    start = 2**32 - 30
    bits = np.array([numsim.random.bits(9, start + i) for i in range(64)], np.uint32)
    got = numsim.encode(x, "bf16", rounding="stochastic", seed=Stream(9, start))
    assert np.array_equal(got, numsim.encode(x, "bf16", rounding="stochastic", random_bits=bits))
    assert len(set(got.tolist())) == 2


@pytest.mark.parametrize("r", [1, 8, 13, 31])
def test_sr_bits_takes_the_top_bits_of_a_draw(r, implementation):
    x = np.random.default_rng(r).normal(size=100)
    bits = np.array([numsim.random.bits(3, i) for i in range(100)], np.uint32) >> np.uint32(32 - r)
    got = numsim.encode(x, "e4m3", rounding="stochastic", seed=3, sr_bits=r)
    assert np.array_equal(got, numsim.encode(x, "e4m3", rounding="stochastic", random_bits=bits, sr_bits=r))


def test_random_bits_broadcast(implementation):
    x = np.full((2, 3), 1 + 2.0**-9)
    got = numsim.round_to(x, "bf16", rounding="stochastic", random_bits=np.array([[0], [192]], np.uint8))
    assert np.array_equal(got, [[1.0] * 3, [1.0078125] * 3])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seed": 1, "random_bits": [1, 2]},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 1.5},
        {"seed": "7"},
        {"seed": True},
        {"random_bits": [0.5, 0.5]},
        {"random_bits": [1, 2, 3]},
        {"random_bits": np.array([256, 0], np.uint16), "sr_bits": 8},
        {"random_bits": [2**32, 0]},
        {"random_bits": [-1, 0]},
        {"seed": 1, "sr_bits": 0},
        {"seed": 1, "sr_bits": 33},
        {"seed": 1, "sr_bits": 1.5},
    ],
)
def test_stochastic_refuses(options):
    with pytest.raises(InputError):
        numsim.encode([1.1, 2.2], "fp16", rounding="stochastic", **options)


@pytest.mark.parametrize("options", [{"seed": 7}, {"random_bits": [1]}, {"sr_bits": 8}])
def test_random_options_without_stochastic_are_refused(options):
    with pytest.raises(InputError, match="stochastic"):
        numsim.encode([1.1], "fp16", **options)


# -- what may come in --------------------------------------------------------------------------------------------------

EXACT = [
    # (input, its exact value)
    (3, Fraction(3)),
    (True, Fraction(1)),
    (np.True_, Fraction(1)),
    (np.int8(-5), Fraction(-5)),
    (2**53 + 1, Fraction(2**53 + 1)),
    (16_973_823, Fraction(16_973_823)),  # through float32 it is 16,973,824, a bfloat16 tie
    (10**400, Fraction(10**400)),
    (-(10**400), Fraction(-(10**400))),
    (np.int64(2**62 + 1), Fraction(2**62 + 1)),
    (np.uint64(2**64 - 1), Fraction(2**64 - 1)),
    (Fraction(1, 3), Fraction(1, 3)),
    (Fraction(-1, 10**40), Fraction(-1, 10**40)),
    (Fraction(10**500, 7), Fraction(10**500, 7)),
    (Decimal("0.1"), Fraction(1, 10)),
    ("0.1", Fraction(1, 10)),
    ("-1e-3", Fraction(-1, 1000)),
    ("1/3", Fraction(1, 3)),
    ("0x1.8p-3", Fraction(3, 16)),
    ("0x1.00000000000001p+0", 1 + Fraction(1, 2**56)),  # more digits than a float64 has
    ("-0x1.8p2000", -3 * Fraction(2) ** 1999),  # no float64 is that large
    ("1e-400", Fraction(1, 10**400)),
    ("1e400", Fraction(10**400)),
    (np.float16(0.1), Fraction(float(np.float16(0.1)))),
    (np.float32(0.1), Fraction(float(np.float32(0.1)))),
    (ml_dtypes.bfloat16(0.1), Fraction(float(ml_dtypes.bfloat16(0.1)))),
]


@pytest.mark.parametrize(("given", "value"), EXACT)
@pytest.mark.parametrize("name", ["bf16", "fp16", "e4m3fn", "fp32", "fp64", "e2m1"])
def test_kinds_of_numbers(given, value, name, implementation):
    """One rounding, from the exact value."""
    for rounding in oracle.MODES:
        expected = oracle.encode_fraction(value, name, rounding)
        got = numsim.encode(given, name, rounding=rounding)
        assert np.ndim(got) == 0 and int(got) == expected, (rounding, hex(got), hex(expected))
        assert numsim.encode([given, given], name, rounding=rounding).tolist() == [expected, expected]
        got = numsim.encode([[given], [0.5]], name, rounding=rounding)
        assert got.shape == (2, 1) and int(got[0, 0]) == expected


def test_strings_beyond_float64(implementation):
    for text, value in (
        ("0x1p-2000", Fraction(1, 2**2000)),
        ("1e-600", Fraction(1, 10**600)),
        ("1e600", Fraction(10**600)),
    ):
        assert numsim.encode(text, "e15m10") == oracle.encode_fraction(value, oracle._ieee("e15m10", 15, 10)), text


@pytest.mark.parametrize("text", ["1e999999999", "-1e-999999999", "1e99999", "0x1p999999999"])
def test_absurd_exponents_cost_nothing(text):
    """Either refused at once or rounded; never a number of a billion digits."""
    try:
        code = int(numsim.encode(text, "fp16"))
    except InputError:
        return
    assert code == (0x8000 if text.startswith("-") else 0x7C00)


def test_zero_keeps_its_sign(implementation):
    assert numsim.encode([-0.0, 0.0, 0, "-0.0", Decimal("-0")], "fp16").tolist() == [0x8000, 0, 0, 0x8000, 0x8000]
    assert numsim.encode(-0.0, "fp16") == 0x8000
    # a small negative number of any kind ends as -0
    assert numsim.encode([Fraction(-1, 10**60), "-1e-60", -1e-60], "fp16").tolist() == [0x8000] * 3


def test_special_strings(implementation):
    assert numsim.encode(["inf", "-inf", "nan", "Infinity"], "fp16").tolist() == [0x7C00, 0xFC00, 0x7E00, 0x7C00]


def test_lists_that_mix(implementation):
    got = numsim.encode([2**53 + 1, 0.5, "0.1", Fraction(1, 3), True], "fp64", rounding="up")
    right = [2**53 + 2, 0.5, 0.1, np.nextafter(1 / 3, 1), 1.0]
    assert np.array_equal(numsim.decode(got, "fp64"), right)
    # 0.1 as a float64 lies above 1/10
    assert numsim.encode(["0.1", 0.1], "fp64", rounding="down").tolist() == [0x3FB9999999999999, 0x3FB999999999999A]


def test_arrays_of_any_layout(implementation):
    spec = oracle.SPECS["e5m2"]
    for width in WIDTHS:
        patterns = np.resize(inputs.boundaries(spec, width)[::5], 360).reshape(6, 5, 12)
        x = inputs.as_float(patterns)
        expected = oracle.encode(patterns, spec).reshape(patterns.shape)
        before = patterns.copy()
        views = {
            "big endian": (x.astype(x.dtype.newbyteorder(">")), expected),
            "little endian": (x.astype(x.dtype.newbyteorder("<")), expected),
            "Fortran": (np.asfortranarray(x), expected),
            "reversed": (x[::-1, :, ::-1], expected[::-1, :, ::-1]),
            "strided": (x[1::2, ::3, ::5], expected[1::2, ::3, ::5]),
            "transposed": (x.transpose(2, 0, 1), expected.transpose(2, 0, 1)),
            "broadcast": (np.broadcast_to(x[:, :1], x.shape), np.broadcast_to(expected[:, :1], x.shape)),
            "empty": (x[:0], expected[:0]),
            "0-d": (x[2, 3, 4, ...], expected[2, 3, 4, ...]),
        }
        unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
        unaligned[...] = x
        views["unaligned"] = (unaligned, expected)
        frozen = x.copy()
        frozen.flags.writeable = False
        views["read-only"] = (frozen, expected)
        for kind, (view, right) in views.items():
            got = numsim.encode(view, "e5m2")
            assert got.shape == right.shape and np.array_equal(got, right), kind
            assert got.dtype == np.uint8
            back = numsim.round_to(view, "e5m2")
            assert back.shape == right.shape and back.dtype == f"f{width // 8}", kind
            assert back.dtype.isnative
            assert np.array_equal(numsim.encode(back, "e5m2"), right), kind
        assert np.array_equal(patterns, before)


def test_signalling_nans_survive_a_change_of_byte_order(implementation):
    for width in WIDTHS:
        floats = inputs.as_float(inputs.nans(width))
        assert np.all(numsim.encode(floats.byteswap().view(floats.dtype.newbyteorder()), "fp16") == 0x7E00)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, bool]
)
def test_integer_arrays(dtype, implementation):
    info = (
        np.array([0, 1], dtype) if dtype is bool else np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 1, 0], dtype)
    )
    big = [v for v in (2**53 + 1, 2**62 + 1, 2**53 - 1, 16_973_823) if dtype is not bool and v <= np.iinfo(dtype).max]
    x = np.concatenate([info, np.array(big, dtype)])
    before = x.copy()
    for name in ("bf16", "fp32", "fp64", "e4m3fn", "e8m0"):
        expected = [oracle.encode_fraction(int(v), name) for v in x]
        assert numsim.encode(x, name).tolist() == expected
        assert numsim.encode(x.tolist(), name).tolist() == expected
        assert numsim.round_to(x, name).dtype == np.float64
    assert np.array_equal(x, before)


def test_integers_just_beyond_float64(implementation):
    """2^53 + 1 is where float64 starts to lose integers."""
    for dtype, n in ((np.int64, 2**53 + 1), (np.int64, -(2**53) - 1), (np.uint64, 2**53 + 1)):
        for given in (np.array([n], dtype), dtype(n), n, [n], np.array(n, dtype)):
            for rounding in ("up", "down"):
                got = np.atleast_1d(numsim.encode(given, "fp64", rounding=rounding))
                assert got.tolist() == [oracle.encode_fraction(n, "fp64", rounding)]


def test_longdouble(implementation):
    """Where it is wider than float64, its last bits count."""
    one = np.longdouble(1)
    x = np.array([one + np.longdouble(2) ** -8 + np.longdouble(2) ** -60, one, -one / 3, np.inf, np.nan, -0.0])
    expected = [oracle.encode_fraction(Fraction(*v.as_integer_ratio()), "bf16") for v in x[:3]]
    assert numsim.encode(x, "bf16").tolist() == [*expected, 0x7F80, 0x7FC0, 0x8000]
    assert numsim.encode(x[0], "bf16") == expected[0]
    assert numsim.encode(list(x[:3]), "bf16").tolist() == expected
    assert numsim.round_to(x, "bf16").dtype == np.float64


def test_scalars_in_scalars_out(implementation):
    for x in (0.1, 1, "0.1", np.float32(0.1), np.float64(0.1), np.array(0.1), Fraction(1, 10), np.float16(0.1)):
        assert np.ndim(numsim.encode(x, "bf16")) == 0 and numsim.encode(x, "bf16").dtype == np.uint16
    assert numsim.round_to(np.float32(0.1), "bf16").dtype == np.float32
    assert numsim.round_to(0.1, "bf16").dtype == numsim.round_to(np.float16(0.1), "bf16").dtype == np.float64
    assert numsim.round_to([np.float32(0.1)], "bf16").dtype == np.float64
    assert numsim.encode([], "bf16").shape == (0,) and numsim.round_to([[]], "bf16").shape == (1, 0)


@pytest.mark.parametrize(
    "bad",
    [
        1j,
        np.complex64(1),
        np.array([1j]),
        [1.0, 2j],
        np.array([1.0, 2.0], object),
        np.array([Fraction(1)], object),
        "",
        "one",
        "0x",
        "1/0",
        "1,5",
        ["0.1", "x"],
        np.array(["x"]),
        b"0.1",
        None,
        [None],
        [[1.0], [1.0, 2.0]],
        [1.0, [2.0]],
        {},
        {1.0},
        object(),
        np.array(["2020-01-01"], "M8[D]"),
        np.array([1], "m8[s]"),
        np.zeros(2, [("a", "f4")]),
        np.ma.masked_array([1.0, 2.0], [True, False]),
    ],
)
def test_what_is_no_number_is_refused(bad):
    for call in (numsim.encode, numsim.round_to):
        with pytest.raises(InputError):
            call(bad, "fp16")
    assert issubclass(InputError, ValueError)


@pytest.mark.parametrize(
    "options",
    [
        {"rounding": "nearest"},
        {"rounding": None},
        {"overflow": "sat"},
        {"subnormals": True},
        {"nan": "ignore"},
        {"rounding": ["up"]},
    ],
)
def test_unknown_options_are_refused_with_what_is_allowed(options):
    with pytest.raises(InputError, match="allowed are"):
        numsim.encode([1.0], "fp16", **options)
    with pytest.raises(InputError, match="allowed are"):
        numsim.round_to([], "fp16", **options)


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        numsim.encode([1.0], "fp16", "up")


def test_bad_input_counts_nothing_and_draws_nothing():
    seen, stream = numsim.Events(), Stream(1)
    for options in ({"rounding": "stochastic", "seed": stream, "sr_bits": 99}, {"rounding": "x"}):
        with pytest.raises(InputError):
            numsim.encode([1.1, 2.2], "fp16", events=seen, **options)
    assert seen == numsim.Events() and stream.position == 0


# -- round_to: dtypes, ranges, out -------------------------------------------------------------------------------------


def test_round_to_refuses_formats_that_do_not_fit():
    with pytest.raises(RangeError, match="float32"):
        numsim.round_to(np.ones(2, np.float32), "fp64")
    with pytest.raises(RangeError, match="float32"):
        numsim.round_to(np.ones(2, np.float32), "e5m24")
    with pytest.raises(RangeError, match="float64"):
        numsim.round_to(np.ones(2), "e12m3")
    assert numsim.round_to(np.ones(2), "e5m24").tolist() == [1.0, 1.0]
    assert numsim.encode(np.ones(2), "e12m3").tolist() == [0x7FF << 3] * 2


def test_formats_beyond_float64_still_encode(implementation):
    """15 exponent bits: every float64 is in range, subnormals included."""
    spec = oracle._ieee("e15m10", 15, 10)
    patterns = inputs.special(64)[::5]
    got = numsim.encode(inputs.as_float(patterns), "e15m10")
    expected = []
    for p in patterns:
        negative, kind, _, _ = oracle.take_apart(np.array([p]))
        value = Fraction(float(inputs.as_float(np.array([p]))[0])) if kind[0] == 0 else 0
        infinity = spec.inf | (spec.sign if negative[0] else 0)
        expected.append(oracle.encode_fraction(value, spec, negative=negative[0]) if kind[0] == 0 else infinity)
    assert got.tolist() == expected


def test_out(implementation):
    spec = oracle.SPECS["fp16"]
    for width in WIDTHS:
        patterns = inputs.random_patterns(width, 60, 1, spec)
        x = inputs.as_float(patterns).reshape(6, 10)
        right = oracle.to_bits(oracle.encode(patterns, spec), spec, width).reshape(6, 10)
        out = np.empty_like(x)
        assert numsim.round_to(x, "fp16", out=out) is out and np.array_equal(inputs.as_bits(out), right)
        strided = np.zeros((12, 20), x.dtype)
        assert numsim.round_to(x, "fp16", out=strided[::2, 1::2]).base is strided
        assert np.array_equal(inputs.as_bits(strided[::2, 1::2]), right) and not strided[1::2].any()
        columns = np.empty((10, 6), x.dtype).T
        numsim.round_to(x, "fp16", out=columns)
        assert np.array_equal(inputs.as_bits(columns), right)
        itself = x.copy()
        numsim.round_to(itself, "fp16", out=itself)
        assert np.array_equal(inputs.as_bits(itself), right)
        flipped = x.copy()  # out overlaps the input in another order
        numsim.round_to(flipped[::-1], "fp16", out=flipped)
        assert np.array_equal(inputs.as_bits(flipped), right[::-1])
        line = np.append(x.ravel(), x.dtype.type(0))
        numsim.round_to(line[:-1], "fp16", out=line[1:])
        assert np.array_equal(inputs.as_bits(line[1:]), right.ravel())
        line = np.append(x.dtype.type(0), x.ravel())
        numsim.round_to(line[1:], "fp16", out=line[:-1])
        assert np.array_equal(inputs.as_bits(line[:-1]), right.ravel())


@pytest.mark.parametrize(
    "out", [np.empty(3), np.empty((4, 1)), np.empty(4, np.float32), np.empty(4, ">f8"), np.empty(4, int), [0.0] * 4]
)
def test_out_must_fit(out):
    with pytest.raises((InputError, TypeError)):
        numsim.round_to(np.ones(4), "fp16", out=out)


def test_read_only_out_is_refused():
    out = np.zeros(4)
    out.flags.writeable = False
    with pytest.raises((InputError, ValueError)):
        numsim.round_to(np.ones(4), "fp16", out=out)
    assert not out.any()


# -- events ------------------------------------------------------------------------------------------------------------


def test_events_in_words(implementation):
    seen = numsim.Events()
    numsim.encode([0.1, 1.0, 1e-9, 1e9, 1e-7, INF, NAN], "fp16", events=seen)
    assert seen == numsim.Events(total=7, overflow=1, underflow=1, subnormal=1, inexact=4, nan=0)
    numsim.encode([INF, -1e9], "e4m3", events=seen)  # adds to the same counts
    assert seen == numsim.Events(total=9, overflow=2, underflow=1, subnormal=1, inexact=5, nan=2)
    numsim.encode([465.0], "e4m3", overflow="saturate", events=seen)
    assert (seen.overflow, seen.nan) == (3, 2)  # overflow is counted whatever the policy makes of it


def test_overflow_is_counted_after_rounding(implementation):
    """448 + something that rounds back to 448 is no overflow; toward zero nothing below 480 is."""
    for options, value, overflow in (
        ({}, 463.0, 0),
        ({}, 465.0, 1),
        ({"rounding": "toward-zero"}, 479.0, 0),
        ({"rounding": "toward-zero"}, 480.0, 1),
        ({"rounding": "up"}, 448.0, 0),
        ({"rounding": "up"}, 448.5, 1),
        ({"rounding": "up"}, -448.5, 0),
        ({"rounding": "odd"}, 448.5, 1),
    ):
        seen = numsim.Events()
        numsim.encode(value, "e4m3", events=seen, **options)
        assert seen.overflow == overflow, (options, value)


def test_e8m0_zero_is_counted(implementation):
    seen = numsim.Events()
    assert numsim.encode([0.0, -0.0, 2.0**-140, -1.0], "e8m0", events=seen).tolist() == [0, 0, 0, 0xFF]
    assert seen == numsim.Events(total=4, inexact=4, nan=1)
