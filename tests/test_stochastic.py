"""Stochastic rounding as statistics: every draw counted where there are few, bands of five deviations where not.

With r bits there are 2^r draws, so a rate is a count that can be checked exactly; the rule itself, bit by bit, is
tested in ``test_rounding.py``, the generator's own statistics in ``test_random.py``. All seeds are fixed: what passes
here passes everywhere.
"""

import math

import numpy as np
import pytest

import numsim
from numsim import random
from numsim.random import Stream
from tests import test_rounding

implementation = test_rounding.implementation  # a fixture
STOCHASTIC = {"rounding": "stochastic"}
MOST = np.uint32(2**32 - 1)
NAN, INF = float("nan"), float("inf")
SMALL = [f.name for f in numsim.list_formats() if f.bits <= 8] + ["binary8p3se", "binary8p4uf", "binary5p1se"]


def assert_rate(ups, n, probability):
    deviation = (n * probability * (1 - probability)) ** 0.5
    assert abs(ups - n * probability) < 5 * deviation, f"{ups} of {n}, {(ups - n * probability) / deviation:.1f} sigma"


def finite(name):
    """All codes of finite numbers, one for each number."""
    format = numsim.get_format(name)
    codes = np.arange(format.codes, dtype=f"u{format.code_bytes}")
    return codes[np.isin(numsim.classify(codes, format), ("zero", "subnormal", "normal"))]


def above(codes, name, share):
    """The number a share of the way from each code to the next one outwards, exact in float64."""
    ulps = np.array([float(numsim.ulp(c, name)) for c in codes.tolist()])
    values = numsim.decode(codes, name)
    return values + np.copysign(share * ulps, values)


# --- where results lie ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*SMALL, "fp16", "bf16"])
def test_exact_values_never_move(name, implementation):
    """Every number of the format and the infinities, whatever the bits: more bits round up more often, so the most."""
    codes = finite(name)
    codes = codes[:: 1 if implementation == "kernel" else 1 + codes.size // 400]
    values = numsim.decode(codes, name)
    for options in ({"random_bits": MOST}, {"random_bits": np.uint8(1), "sr_bits": 1}, {"seed": 7}):
        assert np.array_equal(numsim.encode(values, name, **STOCHASTIC, **options), codes)
        assert np.array_equal(numsim.round_to(values, name, **STOCHASTIC, **options), values)
    infinite = np.array([INF, -INF])
    for bits in (np.uint32(0), MOST):
        got = numsim.encode(infinite, name, **STOCHASTIC, random_bits=bits, nan="max")
        assert np.array_equal(got, numsim.encode(infinite, name, nan="max"))


def test_fp32_numbers_never_move(implementation):
    x = random.bits_from(5, 0, 1 << 16 if implementation == "kernel" else 400)
    x = x[(x & 0x7F800000) != 0x7F800000].view(np.float32)
    for wide in (x, x.astype(np.float64)):
        got = numsim.encode(wide, "fp32", **STOCHASTIC, random_bits=MOST)
        assert np.array_equal(got, x.view(np.uint32))


@pytest.mark.parametrize("name", [*SMALL, "fp16", "bf16"])
def test_only_the_two_neighbours(name, implementation):
    """Between any number but the largest and the next one outwards: one of the two; which one, the bits decide."""
    format, codes = numsim.get_format(name), finite(name)
    codes = codes[codes & codes.dtype.type((1 << format.magnitude_bits) - 1) < format.max_code]
    step = 1 if format.bits <= 8 else 1 + codes.size // 3000
    codes = codes[:: step if implementation == "kernel" else 1 + codes.size // 60]
    for share in (2.0**-10, 0.5, 1 - 2.0**-10, 2.0**-33):
        x = above(codes, name, share)
        low, high, drawn = (
            numsim.encode(x, name, **STOCHASTIC, **options)
            for options in ({"random_bits": np.uint32(0)}, {"random_bits": MOST}, {"seed": 11})
        )
        assert np.array_equal(low, codes)
        assert np.array_equal(high, codes + (share >= 2.0**-32))  # what 32 bits do not reach stays below
        assert np.all((drawn == low) | (drawn == high))


def test_both_signs_alike(implementation):
    x = numsim.decode(random.bits_from(3, 0, 1000), "fp32")
    x = np.where(np.isfinite(x), x, 1.3)
    for name in ("bf16", "fp16", "e4m3", "e2m1"):
        format = numsim.get_format(name)
        up, down = (numsim.encode(s * x, name, **STOCHASTIC, seed=5, overflow="saturate") for s in (1, -1))
        assert np.array_equal(up ^ down, np.full(x.size, format.sign_mask, up.dtype))


# --- rates, every draw counted ----------------------------------------------------------------------------------------
PLACES = [  # a code, and the code of what comes next outwards
    ("fp16", 0x3C00, 0x3C01),
    ("fp16", 0xBC00, 0xBC01),
    ("fp16", 0x0000, 0x0001),  # below the least number: the rate is x / least
    ("fp16", 0x8000, 0x8001),
    ("fp16", 0x03FF, 0x0400),  # from the subnormal numbers to the normal ones
    ("fp16", 0x3BFF, 0x3C00),  # a carry
    ("fp16", 0x7BFF, 0x7C00),  # between the largest number and the next point of the grid: overflow
    ("fp16", 0xFBFF, 0xFC00),
    ("bf16", 0x0000, 0x0001),
    ("bf16", 0x7F7F, 0x7F80),
    ("e4m3", 0x07, 0x08),
    ("e4m3", 0x7E, 0x7F),  # NaN in place of an infinity
    ("e4m3fnuz", 0x7F, 0x80),
    ("e4m3fnuz", 0xFF, 0x80),
    ("e5m2", 0x7B, 0x7C),
    ("e2m1", 0x00, 0x01),
    ("e2m1", 0x07, 0x07),  # neither infinity nor NaN: the largest number
    ("e8m0", 0x80, 0x81),  # 2 and 4: on a line between them
    ("e8m0", 0xFE, 0xFF),
    ("binary8p1ue", 0x80, 0x81),
]


@pytest.mark.parametrize(("name", "here", "there"), PLACES)
def test_every_draw_of_ten_bits(name, here, there, implementation):
    """k/1024 of the way up: of all 1024 draws k round up, for every k."""
    k = np.arange(1024) if implementation == "kernel" else np.array([0, 1, 341, 1023])
    codes = np.full(1, here, f"u{numsim.get_format(name).code_bytes}")
    x = np.repeat([above(codes, name, share)[0] for share in (k / 1024).tolist()], 1024).reshape(-1, 1024)
    got = numsim.encode(x, name, **STOCHASTIC, random_bits=np.arange(1024, dtype=np.uint16), sr_bits=10)
    assert np.all((got == here) | (got == there))
    assert np.array_equal((got == there).sum(axis=1), k if there != here else np.full(k.size, 1024))
    if there != here:
        saturated = numsim.encode(x, name, **STOCHASTIC, random_bits=np.uint32(2**32 - 1), overflow="saturate")
        largest = here & ~numsim.get_format(name).sign_mask == numsim.get_format(name).max_code
        assert np.array_equal(np.unique(saturated), [here] if largest else [here, there])


@pytest.mark.parametrize("r", [1, 4, 8, 16])
def test_every_draw_of_fewer_and_more_bits(r, implementation):
    """floor(2^r fraction) of 2^r draws round up: a rate of 2^-10 needs ten bits, with fewer it is zero."""
    draws = np.arange(1 << r, dtype=np.uint16)
    if implementation == "reference" and r == 16:
        draws = draws[-70:]  # from the top: those that round up first
    for k in (1, 3, 512, 700, 1023):
        ups = min((k << r) // 1024, draws.size)
        for name, here in (("bf16", 0x3F80), ("fp16", 0), ("e4m3", 0x7E)):
            x = np.full(draws.size, above(np.array([here], np.uint16), name, k / 1024)[0])
            for sign in (1, -1):
                got = numsim.encode(sign * x, name, **STOCHASTIC, random_bits=draws, sr_bits=r)
                moved = got != numsim.encode(sign * x, name, rounding="toward-zero")
                assert np.array_equal(moved, np.arange(draws.size) >= draws.size - ups)


@pytest.mark.parametrize("name", ["fp16", "e4m3", "e5m2", "e4m3fnuz", "bf16"])
def test_beyond_the_next_point_of_the_grid_all_overflow(name, implementation):
    format = numsim.get_format(name)
    end = float(format.max) + float(numsim.ulp(format.max_code, format))
    x = np.array([end, 2 * end, -end, 1e300])
    for bits in (np.uint32(0), MOST):
        assert np.array_equal(
            numsim.encode(x, name, **STOCHASTIC, random_bits=bits), numsim.encode([INF, INF, -INF, INF], name)
        )
        saturated = numsim.round_to(x, name, **STOCHASTIC, random_bits=bits, overflow="saturate")
        assert np.array_equal(saturated, np.copysign(float(format.max), x))


# --- rates, by the generator ------------------------------------------------------------------------------------------
RATES = [
    # (value, format, up, down, probability of up)
    (1 + 2.0**-17, "bf16", 1 + 2.0**-7, 1.0, 2.0**-10),
    (1 + 2.0**-7 - 2.0**-17, "bf16", 1 + 2.0**-7, 1.0, 1 - 2.0**-10),
    (2.0**-34, "fp16", 2.0**-24, 0.0, 2.0**-10),  # far below half the least subnormal number
    (2.0**-19, "e4m3", 2.0**-9, 0.0, 2.0**-10),
    (2.0**-14 - 2.0**-34, "fp16", 2.0**-14, 2.0**-14 - 2.0**-24, 1 - 2.0**-10),
    (448 + 32 * 2.0**-10, "e4m3", NAN, 448.0, 2.0**-10),
    (65504 + 8.0, "fp16", INF, 65504.0, 0.25),
    (-(65504 + 8.0), "fp16", -INF, -65504.0, 0.25),
    (-(1 + 2.0**-13), "fp16", -(1 + 2.0**-10), -1.0, 0.125),
    (3.0, "e8m0", 4.0, 2.0, 0.5),
]


@pytest.mark.parametrize(("value", "name", "up", "down", "probability"), RATES)
def test_rates_of_full_draws(value, name, up, down, probability):
    n = 1 << 18
    for dtype in (np.float64, np.float32):
        x = np.full(n, value, dtype)
        if x[0] != value:
            continue
        got = numsim.round_to(x, name, **STOCHASTIC, seed=2024)
        ups = int(np.isnan(got).sum() if np.isnan(up) else (got == up).sum())
        assert ups + int((got == down).sum()) == n
        assert_rate(ups, n, probability)


def test_the_mean_is_the_number():
    """Many different numbers: the sum of all errors, in units of its own standard deviation."""
    n = 1 << 17
    significands = random.bits_from(1, 0, n) >> np.uint32(2)  # 30 bits, 20 of them are cut off
    x = 1.0 + significands / 2.0**30
    fraction = (significands & np.uint32(2**20 - 1)) / 2.0**20
    error = (numsim.round_to(x, "fp16", **STOCHASTIC, seed=2) - x) * 2**10  # in ulps: 1 - fraction, or -fraction
    assert abs(math.fsum(error)) < 5 * math.fsum(fraction * (1 - fraction)) ** 0.5
    cut = (numsim.round_to(x, "fp16", rounding="down") - x) * 2**10
    assert abs(math.fsum(cut)) > 100 * math.fsum(fraction * (1 - fraction)) ** 0.5  # the test can fail


# --- draws do not know each other -------------------------------------------------------------------------------------
def ups_of(share, n=1 << 17, seed=7):
    """Where 1 + share of an ulp rounds up."""
    return numsim.encode(np.full(n, 1 + share * 2.0**-7), "bf16", **STOCHASTIC, seed=seed) == 0x3F81


@pytest.mark.parametrize("share", [0.5, 0.25, 2.0**-5])
def test_neighbours_are_independent(share):
    """Pairs at several distances: chi-square of the four outcomes, three degrees of freedom with known rates."""
    for seed, start in ((0, 0), (7, 2**32 - 2**16), (2**64 - 1, 2**40)):
        ups = ups_of(share, seed=Stream(seed, start))
        for distance in (1, 2, 3, 64, 1024):
            pairs = 2 * ups[:-distance].astype(np.int64) + ups[distance:]
            expected = pairs.size * np.outer([1 - share, share], [1 - share, share]).ravel()
            chi = float(((np.bincount(pairs, minlength=4) - expected) ** 2 / expected).sum())
            assert chi < 3 + 5 * 6**0.5, f"seed {seed}, share {share}, distance {distance}: chi-square {chi:.1f}"


def test_counts_in_windows_are_binomial():
    """Of 64 draws in a row: neither too even, as of a sequence that fills gaps, nor in clusters."""
    counts = np.bincount(ups_of(0.25, n=1 << 18).reshape(-1, 64).sum(axis=1), minlength=65)
    expected = np.array([math.comb(64, i) * 3.0 ** (64 - i) / 4.0**64 for i in range(65)]) * counts.sum()
    middle = expected > 20
    cells = [*zip(counts[middle], expected[middle], strict=True), (counts[~middle].sum(), expected[~middle].sum())]
    chi, freedom = sum((n - e) ** 2 / e for n, e in cells), len(cells) - 1
    assert freedom > 15 and abs(chi - freedom) < 5 * (2 * freedom) ** 0.5


def test_seeds_and_calls_are_independent():
    stream = Stream(7)
    runs = [ups_of(0.5, seed=s) for s in (stream, stream, 8, 7 + 2**32, Stream(7, 2**32))]
    for i, one in enumerate(runs):
        for other in runs[:i]:
            assert_rate(int((one == other).sum()), one.size, 0.5)


# --- the generator ----------------------------------------------------------------------------------------------------
def unxor(y, shift, bits):
    """x of y = x ^ (x >> shift)."""
    x = y
    for _ in range(bits // shift):
        x = y ^ (x >> shift)
    return x


def test_no_two_counters_or_seeds_collide():
    """Both mixing functions can be undone, so they are permutations: of 2^32 counters, and of 2^64 seeds."""
    u32, u64 = 1 << 32, 1 << 64
    a, b = pow(0x7FEB352D, -1, u32), pow(0x846CA68B, -1, u32)
    c, d = pow(0xBF58476D1CE4E5B9, -1, u64), pow(0x94D049BB133111EB, -1, u64)

    def unmix32(y):
        return unxor(unxor(unxor(y, 16, 32) * b % u32, 15, 32) * a % u32, 16, 32)

    def unmix64(y):
        y = unxor(unxor(unxor(y, 31, 64) * d % u64, 27, 64) * c % u64, 30, 64)
        return (y - 0x9E3779B97F4A7C15) % u64

    for i in range(200):
        seed = random.bits(1, 2 * i) << 32 | random.bits(1, 2 * i + 1)
        counter = random.bits(2, i) + (i << 32)
        key0, key1 = random.keys(seed, counter >> 32)
        assert unmix32(unmix32(random.bits(seed, counter)) ^ key1) ^ key0 == counter % u32
        assert unmix64(unmix64(key1 << 32 | key0) ^ (counter >> 32)) == seed
