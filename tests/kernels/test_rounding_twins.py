"""encode and round_to: reference = kernel, bit for bit, and the same events.

The words tested are built from the format alone: every number, quarter point and midpoint of the grid, from below the
least number to two steps past the largest, each with its two neighbours in the source, in both signs; zeros,
infinities, NaNs with payloads, the source's own subnormals and extremes. Formats of up to 8 bits: all codes. Wider
ones: the edges of the grid and 24 seeded ranks. Every mode sees all words; the cross product of mode, overflow and
subnormals sees those near the edges where a policy decides (``-m exhaustive``: all words).
"""

import itertools
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest

import numsim
from numsim import kernels
from numsim.errors import InputError
from numsim.formats import FP32, FP64, Format
from numsim.random import Draw, Stream
from numsim.rounding import NANS, OVERFLOWS, ROUNDINGS, SUBNORMALS, Policy, encode_values
from numsim.values import Rational, Values

pytestmark = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))

SMALL = [f for f in numsim.list_formats() if f.bits <= 8]
WIDE = [f for f in numsim.list_formats() if f.bits > 8]
ODD = [  # what a user may define, one for each exception in the kernels
    Format("wide_low", 8, 2, 130),  # least normal number subnormal in float32
    Format("wide_low64", 11, 2, 1030),  # ... and in float64
    Format("only_large", 3, 3, -100),  # C would overflow float32
    Format("no_zero", 3, 2, 3, signed=False, zero=False, specials="finite"),
    Format("unsigned", 3, 2, 3, signed=False, specials="finite"),
    Format("no_fraction", 4, 0, 7, specials="finite"),  # code parity is not the source's, for one of the two
    Format("no_fraction8", 4, 0, 8, specials="finite"),
    Format("one_binade", 1, 3, 0, specials="fn"),
    Format("one_number", 1, 0, 0, specials="fnuz"),
    Format("all_zero", 1, 0, 0, specials="fn"),
    numsim.get_format("e5m7"),
    *map(numsim.get_format, ("binary5p3se", "binary5p1uf", "binary5p5ue")),
    Format("fixed", 0, 3, -2, specials="finite"),  # no exponent: all numbers are subnormal
    Format("fixed_ends", 0, 3, 140, specials="fn", infinities=True),
    Format("no_nan", 2, 2, 3, specials="finite", infinities=True),
]
MODES = [m for m in ROUNDINGS if m != "stochastic"]


def names(formats):
    return pytest.mark.parametrize("format", formats, ids=lambda f: f.name)


@lru_cache(maxsize=8)
def floats(format, width, edges_only=False):
    """The words to test, as floats."""
    source, kind = (FP32, np.float32) if width == 32 else (FP64, np.float64)
    top, normal = format.max_rank, 1 << format.fraction_bits
    ranks = {0, 1, 2, normal - 1, normal, normal + 1, top - 1, top, top + 1, top + 2}
    if not edges_only:
        rng = np.random.default_rng(format.bits)
        ranks |= set(range(top)) if format.bits <= 8 else {int(r) for r in rng.integers(0, top, 24, dtype=np.uint64)}
    words = {0, 1, 2, source.infinity_code, source.infinity_code - 1}
    words |= {1 << k for k in range(source.bits - 1)} if not edges_only else set()
    words |= {source.infinity_code + k for k in (1, 0x155, 1 << (source.fraction_bits - 1), source.max_code & 0xFFF)}
    for rank in ranks:
        if rank >= 0:
            low, high = format.magnitude(rank), format.magnitude(rank + 1)
            for x in {low, (3 * low + high) / 4, (low + high) / 2, (low + 3 * high) / 4}:
                word = nearest_word(x, source)
                words |= {word, max(word - 1, 0), word + 1}
    words = np.array(sorted(words), f"u{width // 8}")
    words = np.concatenate([words, words | words.dtype.type(source.sign_mask)])
    return words.view(kind)


def nearest_word(x, source):
    return numsim.rounding.round_rational(Rational(0, *x.as_integer_ratio()), source, Policy())


def bits_of(array):
    return array if array.dtype.kind == "u" else array.view(f"u{array.itemsize}")


def ordinary(x, format):
    """Where no block needs the care that overflow, infinity, NaN and refused signs get."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        keep = np.abs(x.astype(np.float64)) <= float(format.max)
    return keep if format.signed else keep & ~np.signbit(x)


def assert_equal(x, format, **options):
    """Codes and values with events, without them, and for ordinary numbers alone: each has its own loops."""
    fits = kernels.fits_source(x.dtype, format)
    plain = ordinary(x, format)
    subset = dict(options)
    if "random_bits" in options:
        subset["random_bits"] = options["random_bits"][plain]
    with kernels.force("reference"):
        seen = numsim.Events()
        codes = numsim.encode(x, format, events=seen, **options)
        values = numsim.round_to(x, format, **options) if fits else None
    with kernels.force("kernel"):
        for function, expected in [(numsim.encode, codes), (numsim.round_to, values)]:
            if expected is not None:
                found = numsim.Events()
                compare(x, expected, function(x, format, events=found, **options), format, options)
                compare(x, expected, function(x, format, **options), format, options)
                if "seed" not in options:
                    compare(x[plain], expected[plain], function(x[plain], format, **subset), format, options)
                assert seen == found, (format.name, x.dtype, options)


def compare(x, expected, got, format, options):
    assert expected.dtype == got.dtype
    bad = np.flatnonzero(bits_of(expected) != bits_of(got))
    if bad.size:
        i = bad[0]
        raise AssertionError(
            f"{format.name} {options}: {bad.size} of {x.size} differ; first: {x.dtype} {float(x[i]).hex()}: "
            f"reference {bits_of(expected)[i]:#x}, kernel {bits_of(got)[i]:#x}"
        )


def accepted(x, format, nan):
    """Without the numbers that nan="raise" refuses."""
    if format.nan_code is not None or nan != "raise":
        return x
    return x[~np.isnan(x) & (format.signed | ~np.signbit(x))]


def nans(format):
    return NANS if format.nan_code is None else ("raise",)


def chance(mode, count, seed):
    """Options for random bits: generated and given, of each number of bits."""
    if mode != "stochastic":
        return [{}]
    rng = np.random.default_rng(seed)
    given = [{"sr_bits": r, "random_bits": rng.integers(0, 1 << r, count, dtype=np.uint64)} for r in (1, 8, 31, 32)]
    return [given[seed % 4], {"sr_bits": (1, 8, 31, 32)[(seed + 1) % 4], "seed": seed}]


def check(format, width, modes, policies, edges_only):
    for i, (mode, (overflow, subnormals, nan)) in enumerate(itertools.product(modes, policies)):
        x = accepted(floats(format, width, edges_only), format, nan)
        if not format.signed and format.nan_code is None and nan != "raise":
            x = x[~np.signbit(x) | (x == 0)]  # see test_negative_numbers_in_unsigned_formats
        for options in chance(mode, x.size, i):
            assert_equal(x, format, rounding=mode, overflow=overflow, subnormals=subnormals, nan=nan, **options)


@pytest.mark.parametrize("width", [32, 64])
@names(SMALL + WIDE + ODD)
def test_every_mode(format, width):
    check(format, width, ROUNDINGS, [("ieee", "keep", nans(format)[-1])], edges_only=False)


@pytest.mark.parametrize("width", [32, 64])
@names(SMALL + WIDE + ODD)
def test_every_policy_at_the_edges(format, width):
    policies = list(itertools.product(OVERFLOWS, SUBNORMALS, nans(format)[-1:]))
    policies += itertools.product(OVERFLOWS, ["keep"], nans(format)[:-1])
    policies = policies[::3] if format.bits > 8 else policies[width == 64 :: 2]  # (exhaustive tests take them all)
    check(format, width, ROUNDINGS, policies, edges_only=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [32, 64])
@names(SMALL + WIDE + ODD)
def test_every_policy(format, width):
    check(format, width, ROUNDINGS, list(itertools.product(OVERFLOWS, SUBNORMALS, nans(format))), edges_only=False)


@pytest.mark.parametrize("nan", ["zero", "max"])
@names([f for f in ODD if not f.signed])
def test_negative_numbers_in_unsigned_formats(format, nan):
    x = -np.array([0.1, 0.7, 1e30, np.inf, np.nan])  # none is the negative of a number of the format
    assert_equal(x, format, nan=nan)


# --- where the loops end, and whose memory they use -------------------------------------------------------------------
@pytest.fixture(scope="module")
def numbers():
    x = np.random.default_rng(3).standard_normal(3000).astype(np.float32)
    x[::97] *= 1e6
    x[::89] *= 1e-6
    x[1500] = np.nan
    return x


def expected(x, format, **options):
    with kernels.force("reference"):
        return numsim.round_to(x, format, **options)


def test_odd_lengths_and_offsets(numbers):
    whole = expected(numbers, "e4m3").view(np.uint32)
    codes = kernels_codes(numbers, "e4m3")
    with kernels.force("kernel"):
        for n in (*range(70), 127, 128, 129, 1023, 1024, 1025, 2047, 2049, 2999):
            for offset in (0, 1):
                part = slice(offset, offset + n)
                assert (numsim.round_to(numbers[part], "e4m3").view(np.uint32) == whole[part]).all()
                assert (numsim.encode(numbers[part], "e4m3") == codes[part]).all()


def kernels_codes(x, format):
    with kernels.force("reference"):
        return numsim.encode(x, format)


@pytest.mark.parametrize("options", [{}, {"rounding": "up"}, {"subnormals": "flush"}, {"rounding": "odd", "events": 1}])
def test_memory(numbers, options):
    """In place; read-only, unaligned, strided, memory-mapped and foreign-endian input; shifted and unaligned output."""
    options = {k: numsim.Events() if k == "events" else v for k, v in options.items()}
    wanted = expected(numbers, "fp16", **options).view(np.uint32)

    def check(x, out=None):
        got = numsim.round_to(x, "fp16", out=out, **options)
        assert out is None or got is out
        assert (np.ascontiguousarray(got).view(np.uint32) == wanted).all()

    with kernels.force("kernel"):
        own = numbers.copy()
        check(own, out=own)
        frozen = numbers.copy()
        frozen.flags.writeable = False
        check(frozen)
        assert not frozen.flags.writeable
        raw = np.zeros(numbers.nbytes + 1, np.uint8)
        odd = raw[1:].view(np.float32)
        odd[:] = numbers
        check(odd)
        check(odd, out=odd)
        check(np.repeat(numbers, 2)[::2])
        check(numbers.astype(">f4"))
        long = np.concatenate([numbers, numbers[:1]])
        long[:-1] = numbers
        check(long[:-1], out=long[1:])
        spaced = np.zeros(2 * numbers.size, np.float32)
        check(numbers, out=spaced[::2])


def test_nothing_is_written_before_nan_is_refused(numbers):
    own = numbers.copy()
    with kernels.force("kernel"), pytest.raises(InputError, match="NaN has no code in e2m1"):
        numsim.round_to(own, "e2m1", out=own)
    assert (own.view(np.uint32) == numbers.view(np.uint32)).all()
    with kernels.force("kernel"), pytest.raises(InputError, match="unsigned"):
        numsim.encode(np.float32([1, -1]), ODD[4])


def test_one_specimen_in_a_block_of_ordinary_numbers():
    """Blocks without overflow, infinity and NaN take a short cut."""
    for special in (np.inf, -np.inf, np.nan, 1e9, -1e9, 464.0, 464.1, -0.0, 1e-9):
        for mode in MODES:
            x = np.full(1500, 1.06, np.float32)
            x[1234] = special
            assert_equal(x[1200:1300], numsim.E4M3, rounding=mode)


# --- random bits ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("r", [1, 8, 31, 32])
@pytest.mark.parametrize("position", [2**32 - 37, 2**33 - 2**11 + 5, 2**64 - 37])
def test_positions_across_a_block_of_counters(position, r):
    x = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    for options in ({}, {"subnormals": "flush"}):
        results = []
        for which in ("reference", "kernel"):
            with kernels.force(which):
                stream = Stream(7, position)
                results.append(numsim.encode(x, "e4m3", rounding="stochastic", seed=stream, sr_bits=r, **options))
                assert stream.position == position + 100
        assert (results[0] == results[1]).all()


@pytest.mark.parametrize("width", [32, 64])
@names([numsim.FP16, numsim.E4M3, numsim.E8M0, numsim.BF16, numsim.get_format("e6m20")])
def test_the_random_bits_that_decide(format, width):
    """For each fraction the last random number that rounds down and the first that rounds up, with r bits."""
    source = FP32 if width == 32 else FP64
    rng = np.random.default_rng(width)
    ranks = np.concatenate([[0, 1, format.max_rank - 2, format.max_rank - 1], rng.integers(0, format.max_rank, 12)])
    for r in (1, 8, 31, 32):
        values, random_bits = [], []
        for rank in map(int, ranks):
            low, high = format.magnitude(rank), format.magnitude(rank + 1)
            for share in (
                Fraction(1, 2),
                Fraction(1, 3),
                Fraction(1, 2**r),
                2 / Fraction(2**40),
                1 - 1 / Fraction(2**33),
            ):
                word = nearest_word(low + share * (high - low), source)
                fraction = (numsim.exact(word, source) - low) / (high - low)
                first_up = 2**r - (2**r * fraction).__floor__()
                for bits in (first_up - 1, first_up, 0, 2**r - 1):
                    if 0 <= bits < 2**r:
                        values.append(word)
                        random_bits.append(bits)
        x = np.array(values, f"u{width // 8}").view(f"f{width // 8}")
        assert_equal(x, format, rounding="stochastic", random_bits=np.array(random_bits, np.uint64), sr_bits=r)


def test_generator_twin():
    """The kernel's generator against numsim.random.bits, and the rates of a tiny fraction."""
    from numsim.kernels import random as fast

    for seed, counter in itertools.product((0, 7, 2**64 - 1), (0, 1, 2**32 - 1, 2**32, 2**40 + 12345)):
        key0, key1 = map(np.uint32, numsim.random.keys(seed, counter >> 32))
        assert fast.bits(np.uint32(counter & 0xFFFFFFFF), key0, key1) == numsim.random.bits(seed, counter)


def test_small_probabilities_stay_small():
    """2^-12 of the least number: about 64 in 2^18 go up (clamped shifts made this 2^-9 elsewhere)."""
    x = np.full(1 << 18, 2.0**-36, np.float32)
    with kernels.force("kernel"):
        ups = int((numsim.encode(x, "fp16", rounding="stochastic", seed=5) == 1).sum())
    assert 30 < ups < 110


def test_threads_change_nothing(monkeypatch):
    x = np.random.default_rng(8).standard_normal(300_001).astype(np.float32)
    options = [{}, {"rounding": "stochastic", "seed": Stream(3, 2**32 - 200_000)}, {"rounding": "odd"}]
    results = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("NUMSIM_THREADS", threads)
        with kernels.force("kernel"):
            seen = numsim.Events()
            codes = [numsim.encode(x, "e5m2", **o) for o in options if "seed" not in o]
            codes.append(numsim.encode(x, "e5m2", rounding="stochastic", seed=Stream(3, 2**32 - 200_000)))
            codes.append(numsim.encode(x, "e5m2", events=seen))
            results.append(([c.tobytes() for c in codes], seen))
    assert results[0] == results[1] == results[2]


def test_given_bits_across_chunks(monkeypatch):
    """A draw belongs to its element, whichever chunk that is in."""
    n = 200_000
    x = np.full(n, 1.0625, np.float32)  # halfway in E4M3: up iff the top bit is set
    given = np.random.default_rng(2).integers(0, 1 << 32, n, dtype=np.uint32)
    monkeypatch.setenv("NUMSIM_THREADS", "2")
    with kernels.force("kernel"):
        codes = numsim.encode(x, "e4m3", rounding="stochastic", random_bits=given)
    assert ((codes == 0x39) == (given >> 31 == 1)).all()


def test_direct_calls_take_the_reference_semantics():
    """float32 in, float64 out, as ``round_to`` may ask."""
    from numsim.kernels import rounding as fast

    x = np.float32([0.1, -1e-40, np.inf, np.nan])
    out = np.empty(4)
    fast.round_to(x, numsim.E8M0, Policy(), None, None, out)
    codes = encode_values(Values(x.shape, x, None), numsim.E8M0, Policy(), None, None)
    assert (out.view(np.uint64) == np.asarray(numsim.decode(codes, "e8m0")).view(np.uint64)).all()
    given = Draw(8, given=np.array([255, 0, 0, 0], np.uint32))
    fast.encode(x, numsim.E8M0, Policy("stochastic"), given, None)
    assert given.given is not None and given.given.flags.writeable
