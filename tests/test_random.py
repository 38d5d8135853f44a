"""The random bits: known answers, an implementation of the test's own in numpy, and sanity of the statistics.

The statistics are deterministic: fixed seeds, bands of 4.5 standard deviations.
"""

import numpy as np
import pytest

import numsim
from numsim import random
from numsim.errors import InputError
from numsim.random import Draw, Stream, bits, bits_from, keys, make_draw
from tests import oracle, test_arithmetic

implementation = test_arithmetic.implementation  # a fixture
N = 1 << 17


# -- once more, over whole arrays -------------------------------------------------------------------------------------


def splitmix64(x):
    """Steele, Lea, Flood (OOPSLA 2014), as java.util.SplittableRandom and the reference in C have it."""
    with np.errstate(over="ignore"):
        z = np.asarray(x, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def lowbias32(x):
    """C. Wellons, "Prospecting for Hash Functions" (2018), on 32 bits held in 64."""
    low = np.uint64(0xFFFFFFFF)
    x = x ^ (x >> np.uint64(16))
    x = (x * np.uint64(0x7FEB352D)) & low
    x = x ^ (x >> np.uint64(15))
    x = (x * np.uint64(0x846CA68B)) & low
    return x ^ (x >> np.uint64(16))


def own_bits(seed, counters):
    counters = np.asarray(counters, np.uint64)
    low, high = counters & np.uint64(0xFFFFFFFF), counters >> np.uint64(32)
    key = splitmix64(splitmix64(np.uint64(seed)) ^ high)
    key0, key1 = key & np.uint64(0xFFFFFFFF), key >> np.uint64(32)
    return lowbias32(lowbias32(low ^ key0) ^ key1).astype(np.uint32)


def test_published_answers():
    """The first outputs of splitmix64 from the state 1234567, as its authors' code gives them."""
    state, out = 1234567, []
    for _ in range(3):
        out.append(random._splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert out == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(splitmix64(1234567))] == out[:1]


def test_answers_that_never_change():
    """Results that have been handed in depend on these."""
    assert [hex(bits(7, i)) for i in range(3)] == ["0xc63b7155", "0x48cf60bc", "0x243d815d"]
    assert [int(b) for b in own_bits(7, range(3))] == [0xC63B7155, 0x48CF60BC, 0x243D815D]
    assert (bits(0, 0), bits(2**64 - 1, 2**32), bits(2**63, 2**40 + 5)) == (
        int(own_bits(0, 0)), int(own_bits(2**64 - 1, 2**32)), int(own_bits(2**63, 2**40 + 5)),
    )  # fmt: skip


def test_bits_are_the_published_functions():
    rng = np.random.default_rng(1)
    edges = [0, 1, 2, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**48 + 12345, 2**63]
    for seed in (0, 1, 7, 2**32, 2**64 - 1, *rng.integers(0, 2**63, 20).tolist()):
        counters = [*edges, *rng.integers(0, 2**40, 40).tolist()]
        for counter, right in zip(counters, own_bits(seed, counters).tolist(), strict=True):
            got = bits(seed, counter)
            assert got == right, f"seed {seed}, counter {counter}: got {got:#x}, expected {right:#x}"
            assert keys(seed, counter >> 32) == keys(seed, counter >> 32) and 0 <= got < 2**32


def test_arrays_hold_the_same_bits():
    for seed in (0, 1, 7, 2**32, 2**64 - 1, 0x9E3779B97F4A7C15):
        for start in (0, 1, 12345, 2**31 - 5, 2**32 - 200, 2**32 - 1, 2**32, 2**33 + 7, 2**48 - 3, 2**63 + 1):
            got = bits_from(seed, start, 300)
            assert got.dtype == np.uint32 and got.tolist() == [bits(seed, start + i) for i in range(300)], (seed, start)
    assert bits_from(1, 5, 0).tolist() == []
    assert np.array_equal(bits_from(3, 0, N), own_bits(3, np.arange(N)))


@pytest.mark.parametrize("position", [0, 2**32 - 300, 2**32, 2**40 - 17, 2**53 + 1])
def test_rounding_uses_exactly_these_bits(position, implementation):
    """Element i uses counter position + i; of fewer than 32 bits the top ones."""
    x = np.random.default_rng(2).standard_normal(600 if implementation == "kernel" else 60).astype(np.float32)
    given = own_bits(31, np.arange(x.size, dtype=np.uint64) + np.uint64(position))
    located = oracle.Located(x.view(np.uint32), "e5m2")
    for r in (32, 8, 1):
        stream = Stream(31, position)
        got = numsim.encode(x, "e5m2", rounding="stochastic", seed=stream, sr_bits=r)
        right = located.encode("stochastic", r=r, random=given >> np.uint32(32 - r), count=False)[0]
        assert np.array_equal(got, right), f"{r} bits: {int((got != right).sum())} of {x.size} differ"
        assert stream.position == position + x.size


# -- statistics -------------------------------------------------------------------------------------------------------

SEEDS = (0, 1, 2, 12345, 2**64 - 1)


def assert_within(z, what):
    assert np.all(np.abs(z) < 4.5), f"{what}: {np.max(np.abs(z)):.1f} standard deviations"


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_are_uniform(seed):
    """Chi-square of each of the four bytes: 255 degrees of freedom, mean 255, standard deviation sqrt(510)."""
    draws = own_bits(seed, np.arange(N))
    for byte in range(4):
        counts = np.bincount(draws >> np.uint32(8 * byte) & np.uint32(0xFF), minlength=256)
        chi = ((counts - N / 256) ** 2).sum() / (N / 256)
        assert_within((chi - 255) / 510**0.5, f"seed {seed}, byte {byte}")


@pytest.mark.parametrize("seed", SEEDS)
def test_neighbours_are_independent(seed):
    """Pairs of nibbles at distances 1, 2, 3, 64 and 4096 (256 cells), and the correlation of whole numbers."""
    draws = own_bits(seed, np.arange(N))
    for lag in (1, 2, 3, 64, 4096):
        a, b = draws[:-lag], draws[lag:]
        assert_within(np.corrcoef(a, b)[0, 1] * a.size**0.5, f"seed {seed}, distance {lag}")
        for shift in (0, 14, 28):
            cells = (a >> np.uint32(shift) & np.uint32(15)) * np.uint32(16) + (b >> np.uint32(shift) & np.uint32(15))
            counts = np.bincount(cells, minlength=256)
            chi = ((counts - a.size / 256) ** 2).sum() / (a.size / 256)
            assert_within((chi - 255) / 510**0.5, f"seed {seed}, distance {lag}, nibble at {shift}")


def test_seeds_are_independent():
    """Neighbouring seeds, seeds one bit apart, and the blocks of one seed."""
    first = own_bits(0, np.arange(N))
    others = [own_bits(s, np.arange(N)) for s in (1, 2, 3, 2**31, 2**32, 2**63)]
    others += [own_bits(0, np.arange(N) + (block << 32)) for block in (1, 2, 2**20)]
    for other in others:
        assert_within(np.corrcoef(first, other)[0, 1] * N**0.5, "two seeds")
        same = np.unpackbits((first ^ other).view(np.uint8)).mean()  # half of the bits differ
        assert_within((same - 0.5) * 2 * (32 * N) ** 0.5, "bits of two seeds")
        assert_within((np.count_nonzero(first == other) - N / 2**32) / 1.0, "equal numbers")


def test_one_bit_changes_half_of_the_bits():
    """Avalanche of each counter bit. (The finest bands do not fit a hash of two rounds: 1 % of 16 bits.)"""
    counters = np.arange(1 << 14, dtype=np.uint64) * np.uint64(977)
    base = own_bits(99, counters)
    for bit in range(32):
        flipped = own_bits(99, counters ^ np.uint64(1 << bit))
        mean = np.unpackbits((base ^ flipped).view(np.uint8)).mean()
        assert abs(mean - 0.5) < 0.01, f"counter bit {bit}: {mean:.4f} of the bits change"


def test_a_block_is_a_permutation():
    """No number twice among the draws of one block."""
    assert np.unique(own_bits(3, np.arange(1 << 19))).size == 1 << 19


# -- streams and draws ------------------------------------------------------------------------------------------------


def test_stream():
    stream = Stream(7)
    x = np.full(5, 0.1)
    first = numsim.encode(x, "bf16", rounding="stochastic", seed=stream)
    assert repr(stream) == "Stream(seed=7, position=5)" and eval(repr(stream)).position == 5
    second = numsim.encode(x, "bf16", rounding="stochastic", seed=stream)
    both = numsim.encode(np.full(10, 0.1), "bf16", rounding="stochastic", seed=7)
    assert np.array_equal(np.concatenate([first, second]), both)
    assert stream.take(3) == 10 and stream.position == 13
    assert Stream(np.uint64(2**64 - 1), np.int64(4)).seed == 2**64 - 1


def test_the_same_seed_gives_the_same_bits():
    x = np.full(1000, 0.1)
    runs = [
        numsim.encode(x, "fp16", rounding="stochastic", seed=s) for s in (5, np.int64(5), np.uint8(5), Stream(5), 6)
    ]
    assert all(np.array_equal(runs[0], r) for r in runs[1:4]) and not np.array_equal(runs[0], runs[4])


def test_draw():
    assert [Draw(32, 7)(i) for i in range(2)] == [bits(7, 0), bits(7, 1)]
    assert Draw(8, 7, 100)(3) == bits(7, 103) >> 24
    assert Draw(8, given=np.array([5, 6], np.uint32))(1) == 6
    assert make_draw(4, 7, None, None, (4,)) == Draw(32, 7, 0)
    assert make_draw(4, None, np.zeros(4, np.uint8), None, (4,)).r == 8
    assert make_draw(4, None, np.zeros(4, np.uint16), None, (4,)).r == 16
    assert make_draw(4, None, np.zeros(4, np.uint32), None, (4,)).r == 32
    assert make_draw(4, None, [1, 2, 3, 4], 3, (4,)).r == 3
    assert make_draw(6, None, [[1], [2]], None, (2, 3)).given.tolist() == [1, 1, 1, 2, 2, 2]
    assert make_draw(0, None, [], None, (0,)).given.size == 0


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "7", True, np.float64(1), np.bool_(True), [1]])
def test_what_is_no_seed(seed):
    message = r"seed=.*: a seed is an integer from 0 to 2\^64 - 1\. Example: seed=7"
    with pytest.raises(InputError, match=message):
        Stream(seed)
    with pytest.raises(InputError, match=message):
        numsim.encode([0.1], "bf16", rounding="stochastic", seed=seed)


@pytest.mark.parametrize("position", [-1, 0.5, True, "0", None])
def test_what_is_no_position(position):
    with pytest.raises(InputError, match="a position is an integer >= 0"):
        Stream(1, position)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either seed= or random_bits="),
        ({"seed": 1, "random_bits": [1, 2, 3]}, "either seed= or random_bits="),
        ({"random_bits": [0.5, 1, 2]}, "unsigned integers are needed"),
        ({"random_bits": ["1", "2", "3"]}, "unsigned integers are needed"),
        ({"random_bits": [True, False, True]}, "unsigned integers are needed"),
        ({"random_bits": [1, 2]}, r"random_bits of shape \(2,\) do not fit values of shape \(3,\)"),
        ({"random_bits": [-1, 2, 3]}, r"they lie in \[0, 2\^32\)"),
        ({"random_bits": [2**32, 2, 3]}, r"they lie in \[0, 2\^32\)"),
        ({"random_bits": [8, 2, 3], "sr_bits": 3}, r"with 3 bits they lie in \[0, 2\^3\)"),
        ({"random_bits": np.array([1, 2, 256], np.uint16), "sr_bits": 8}, r"with 8 bits they lie in \[0, 2\^8\)"),
        ({"seed": 1, "sr_bits": 0}, "the number of random bits is 1 to 32"),
        ({"seed": 1, "sr_bits": 33}, "the number of random bits is 1 to 32"),
        ({"seed": 1, "sr_bits": 8.0}, "the number of random bits is 1 to 32"),
    ],
)
def test_refusals(options, message, implementation):
    for call in (numsim.encode, numsim.round_to):
        with pytest.raises(InputError, match=message):
            call([0.1, 0.2, 0.3], "bf16", rounding="stochastic", **options)


def test_a_refused_call_takes_nothing_from_a_stream(implementation):
    stream = Stream(1, 10)
    for options in ({"sr_bits": 99}, {"random_bits": [1]}, {"overflow": "none"}):
        with pytest.raises(InputError):
            numsim.encode([0.1], "bf16", **{"rounding": "stochastic", "seed": stream, **options})
    assert stream.position == 10
