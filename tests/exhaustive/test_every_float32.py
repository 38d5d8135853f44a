"""All 2^32 float32 inputs, and all 2^16 inputs of the 16-bit formats. Minutes each: run with -m exhaustive.

Rounding to nearest is monotone in the magnitude, so a cast is known by where it steps: the oracle finds the first
float32 pattern of every code by bisection, and the runs between the steps are compared in full, chunk by chunk.
"""

import numpy as np
import pytest

import numsim
from tests import inputs, oracle
from tests.test_oracle import ML_DTYPES
from tests.test_rounding import assert_same, check_policies, nan_rule

pytestmark = pytest.mark.exhaustive
CHUNK = 1 << 24
INFINITY = 0x7F800000
CASTS = ["bf16", "fp16", "e4m3fn", "e5m2"]


def steps(spec, overflow):
    """(first, code): from which positive float32 pattern on which code is the result, NaN inputs left out."""
    located = oracle.Located(np.array([0, INFINITY - 1, INFINITY], np.uint32), spec)
    ends = located.encode(overflow=overflow)[0]
    codes = np.unique(np.concatenate([np.arange(spec.top + 1), ends[1:]]))
    # codes grow with the input: numbers, then infinity or NaN, both above the largest number
    low = np.full(codes.size, -1, np.int64)
    high = np.full(codes.size, INFINITY, np.int64)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        reached = oracle.encode(np.maximum(middle, 0).astype(np.uint32), spec, overflow=overflow) >= codes
        reached &= middle >= 0
        high, low = np.where(reached, middle, high), np.where(reached, low, middle)
    used = high[1:] > high[:-1]  # a code that no input gives has an empty run
    return high, codes, used


def expected_chunk(start, stop, first, codes):
    """The codes of the positive patterns from start to stop, written out run by run."""
    edges = np.clip(np.append(first, INFINITY + 1), start, stop)
    return np.repeat(codes, np.diff(edges))


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("name", CASTS)
def test_all_float32_inputs(name, overflow):
    spec = oracle.SPECS[name]
    first, codes, used = steps(spec, overflow)
    assert used.all() and first[0] == 0
    codes = codes.astype(spec.dtype)
    # the steps really are the oracle: checked on a million patterns beside them and anywhere
    rng = np.random.default_rng(6)
    probe = np.concatenate([rng.integers(0, INFINITY + 1, 1 << 20), first, np.maximum(first, 1) - 1]).astype(np.uint32)
    found = codes[np.searchsorted(first, probe, side="right") - 1]
    assert np.array_equal(found, oracle.encode(probe, spec, overflow=overflow))
    for sign in (0, 1 << 31):
        negative = spec.dtype(spec.sign if sign else 0)
        for start in range(0, INFINITY + 1, CHUNK):
            stop = min(start + CHUNK, INFINITY + 1)
            patterns = np.arange(start | sign, stop | sign, dtype=np.uint32)
            expected = expected_chunk(start, stop, first, codes)
            expected = np.where(expected <= spec.top + (spec.inf is not None), expected | negative, expected)
            got = numsim.encode(inputs.as_float(patterns), name, overflow=overflow)
            assert_same(got, expected.astype(spec.dtype), patterns, spec, overflow)
            if overflow == "ieee":
                back = numsim.round_to(inputs.as_float(patterns), name)
                table = oracle.to_bits(np.arange(1 << spec.bits), spec, 32)
                assert_same(inputs.as_bits(back), table[expected], patterns, spec, "round_to")
        for start in range(INFINITY + 1, 1 << 31, CHUNK):
            stop = min(start + CHUNK, 1 << 31)
            patterns = np.arange(start | sign, stop | sign, dtype=np.uint32)
            assert np.all(numsim.encode(inputs.as_float(patterns), name, overflow=overflow) == spec.nan)


@pytest.mark.parametrize("name", CASTS)
def test_all_float32_inputs_against_ml_dtypes(name):
    """Right from float32, so a second witness."""
    spec, dtype = oracle.SPECS[name], ML_DTYPES.get(name, np.float16)
    for start in range(0, 1 << 32, CHUNK):
        floats = inputs.as_float(np.arange(start, start + CHUNK, dtype=np.uint32))
        with np.errstate(all="ignore"):
            theirs = floats.astype(dtype).view(spec.dtype)
        ours = numsim.encode(floats, name)
        nan = oracle.is_nan(ours, spec)
        assert np.array_equal(nan, oracle.is_nan(theirs, spec))
        assert np.array_equal(ours[~nan], theirs[~nan])


@pytest.mark.parametrize("implementation", ["reference", "kernel"])
@pytest.mark.parametrize("target", [n for n in oracle.SPECS if n != "fp64"])
@pytest.mark.parametrize("source", oracle.IEEE_16)
def test_all_16_bit_inputs(source, target, implementation):
    """Every FP16 and BF16 number into every format, in every mode (kernel: under every policy too)."""
    spec = oracle.SPECS[target]
    patterns = oracle.to_bits(np.arange(1 << 16), oracle.SPECS[source], 32)
    policies = [(r, "ieee", "keep") for r in oracle.MODES]
    if implementation == "kernel":
        policies = [(r, o, s) for r in oracle.MODES for o in oracle.OVERFLOWS for s in oracle.SUBNORMALS]
    with numsim.kernels.force(implementation):
        check_policies(patterns, spec, policies, events=implementation == "kernel", back=implementation == "kernel")


@pytest.mark.parametrize("width", [64, 32])
@pytest.mark.parametrize("name", oracle.IEEE_16)
def test_every_boundary_of_the_16_bit_formats(name, width):
    """All quarter points with all their surroundings, in every mode and policy."""
    spec = oracle.SPECS[name]
    patterns = inputs.around(inputs.points(spec, width), width)
    policies = [(r, o, s) for r in oracle.MODES for o in oracle.OVERFLOWS for s in oracle.SUBNORMALS]
    for start in range(0, patterns.size, 1 << 20):
        part = patterns[start : start + (1 << 20)]
        check_policies(part, spec, policies, back=False)
        check_policies(part, spec, policies[:1])


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_reference_on_every_boundary_and_policy(name):
    spec = oracle.SPECS[name]
    policies = [(r, o, s) for r in oracle.MODES for o in oracle.OVERFLOWS for s in oracle.SUBNORMALS]
    with numsim.kernels.force("reference"):
        check_policies(inputs.boundaries(spec, 64), spec, policies, events=True)


@pytest.mark.parametrize("r", [1, 3, 8])
@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_every_draw_of_few_bits(name, r):
    """Stochastic rounding with r bits: every boundary under each of the 2^r draws."""
    spec = oracle.SPECS[name]
    patterns = inputs.boundaries(spec, 64)
    located = oracle.Located(patterns, spec)
    for draw in range(1 << r):
        random = np.full(patterns.size, draw, np.uint8)
        options = {"rounding": "stochastic", **nan_rule(spec)}
        got = numsim.encode(inputs.as_float(patterns), name, random_bits=random, sr_bits=r, **options)
        assert_same(got, located.encode(r=r, random=random, **options)[0], patterns, spec, (r, draw))
