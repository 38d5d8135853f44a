"""Scale rules: every rule against an oracle of its own, and every edge of the originals by hand."""

import itertools

import gmpy2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numsim
from numsim.blocks.codebooks import INT4, INT8, MXINT8_ELEMENT, NF4_ELEMENT
from numsim.blocks.formats import MXFP8, NVFP4, BlockFormat
from numsim.blocks.rules import RULES, Scales, two_level
from numsim.errors import FormatError
from tests.blocks import oracle

ELEMENTS = {"e4m3": numsim.E4M3} | {e.name: e for e in (numsim.E5M2, numsim.E2M3, numsim.E3M2, numsim.E2M1)}
ELEMENTS |= {e.name: e for e in (MXINT8_ELEMENT, INT8, INT4, NF4_ELEMENT)}
MX = ("floor", "ceil", "rceil", "even", "te")
PAIRS = [(rule, e) for rule in MX for e in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "mxint8_element")]
PAIRS += [
    (rule, e) for rule in ("current", "current-pow2", "torchao", "torchao-pow2") for e in ("e4m3", "e5m2", "e2m1")
]
PAIRS += [("absmax", e) for e in ("nf4_element", "int8", "int4")] + [("absmax-127", "int8"), ("nvfp4", "e2m1")]

FLT_MAX = np.finfo(np.float32).max
MIN, TINY = np.float32(2.0**-126), np.float32(2.0**-149)


def around(numbers):
    """FP32 numbers and their neighbours."""
    codes = np.abs(np.asarray(numbers, np.float32)).view(np.uint32).astype(np.int64)[:, None] + np.arange(-1, 2)
    return np.unique(codes[(codes >= 0) & (codes <= 0x7F7FFFFF)]).astype(np.uint32).view(np.float32)


def hard_amaxes(element, seed=0):
    """Powers of two, the element's largest number and the other thresholds in many binades, with neighbours."""
    powers = np.ldexp(1.0, np.arange(-149, 128))
    some = np.ldexp(1.0, np.arange(-140, 127, 3))
    corners = [float(element.max) / 2.0**element.emax, 1.5, 1.75, 1.875, 1.9375, 1.984375, 1.9921875]
    with np.errstate(over="ignore", under="ignore"):
        thresholds = np.concatenate([(some * c).astype(np.float32) for c in corners])
    random = np.random.default_rng(seed).integers(0, 0x7F800000, 500, dtype=np.uint32).view(np.float32)
    edges = np.array([0, np.inf, np.nan, FLT_MAX], np.float32)
    return np.concatenate([edges, around(powers), around(thresholds[np.isfinite(thresholds)]), random])


def block_format(rule, element):
    return BlockFormat("test", ELEMENTS[element], RULES[rule].scale, (32,), rule)


def compare(rule, element, amaxes, tensor=1.0):
    """numsim's multipliers and codes against the oracle's, bit by bit."""
    got = RULES[rule].scales(amaxes, block_format(rule, element), np.float32(tensor))
    assert isinstance(got, Scales) and got.multiplier.dtype == np.float32
    for amax, multiplier, code in zip(amaxes.tolist(), got.multiplier.tolist(), got.codes.tolist(), strict=True):
        want, stored = oracle.scales(rule, amax, oracle.ELEMENTS[element], tensor)
        assert (oracle.bits(multiplier), code) == (oracle.bits(want), stored), (rule, element, amax.hex())


# an NF4 or INT8 oracle has the largest value as the originals have it; emax follows from it
@pytest.mark.parametrize(("rule", "element"), PAIRS, ids=lambda x: x)
def test_every_rule_and_element_against_the_oracle(rule, element):
    named = oracle.ELEMENTS[element]
    if not hasattr(named, "emax"):
        named = oracle.Integers(8, 1)
    compare(rule, element, hard_amaxes(named))


@given(
    pair=st.sampled_from(PAIRS),
    codes=st.lists(st.integers(0, 0x7FC00000), min_size=1, max_size=8),
    tensor=st.integers(0x07800000, 0x7F7FFFFF),
)
def test_rules_on_any_fp32_amax(pair, codes, tensor):
    amaxes = np.array(codes, np.uint32).view(np.float32)
    compare(*pair, np.where(np.isnan(amaxes), np.float32(np.nan), amaxes), oracle.from_bits(tensor))


@pytest.mark.parametrize("tensor", [1.0, 2688.0, 26.88, float(FLT_MAX), 7.9e-36], ids=str)
def test_nvfp4_under_tensor_scales(tensor):
    compare("nvfp4", "e2m1", hard_amaxes(oracle.ELEMENTS["e2m1"]), oracle.fp32(oracle.Fraction(tensor)))


@pytest.mark.parametrize("amax", [100.0, 3.7, 0.013, 1e-30], ids=str)
def test_nvfp4_where_two_scales_of_e4m3_are_equally_near(amax):
    """Block amaxes at the midpoints of E4M3, where each rounding on the way decides: times 1/6, not over 6."""
    tensor = oracle.tensor_scale(oracle.fp32(oracle.Fraction(amax)))[0]
    magnitudes = oracle.ELEMENTS["e4m3"].magnitudes
    middles = np.array([float(a + b) / 2 for a, b in itertools.pairwise(magnitudes)])
    compare("nvfp4", "e2m1", around(middles * 6 / tensor), tensor)


def test_every_rule_is_compared():
    assert {rule for rule, _ in PAIRS} == set(RULES) - {"torchao-nvfp4"}  # that one by torch, in test_nvfp4.py


# --- MX by hand -------------------------------------------------------------------------------------------------------
def byte(rule, amax, element="e4m3"):
    return int(RULES[rule].scales(np.array([amax], np.float32), block_format(rule, element), None).codes[0])


TABLE = """ 256          127 127 127 127
            447          127 127 128 127
            448          127 127 128 127
            448.00003    127 128 128 127
            480          127 128 128 127
            495.99997    127 128 128 127
            496          127 128 128 128
            511.9        127 128 128 128
            512          128 128 128 128
            513          128 128 129 128"""


@pytest.mark.parametrize("row", TABLE.splitlines(), ids=lambda row: row.split()[0])
def test_the_four_mx_rules_for_e4m3(row):
    amax, *bytes_ = row.split()
    assert [byte(rule, float(amax)) for rule in ("floor", "rceil", "ceil", "even")] == list(map(int, bytes_))
    assert byte("te", float(amax)) == byte("rceil", float(amax))


@pytest.mark.parametrize(
    ("element", "top", "up"),
    [("e4m3", 8, 1.9375), ("e5m2", 15, 1.875), ("e2m1", 2, 1.75), ("e2m3", 2, 1.9375), ("e3m2", 4, 1.875)],
)
def test_even_has_the_threshold_of_the_element(element, top, up):
    below = np.nextafter(np.float32(up), np.float32(0))
    assert [byte("even", x * 2.0**top, element) for x in (1.0, below, up, 2.0)] == [127, 127, 128, 128]
    largest = np.float32(ELEMENTS[element].max)
    assert [byte("rceil", x, element) for x in (largest, np.nextafter(largest, np.float32(np.inf)))] == [127, 128]
    assert [byte("ceil", 2.0**top * x, element) for x in (1, 1 + 2.0**-23)] == [127, 128]


@pytest.mark.parametrize("rule", MX)
def test_mx_scales_at_the_ends(rule):
    assert byte(rule, 0) == 0
    assert byte(rule, TINY) == 0 and byte(rule, MIN) == 0  # 2^-126 / 2^8 is below 2^-127
    assert byte(rule, np.nan) == 0xFF
    assert byte(rule, np.inf) == (0xFE if rule == "te" else 0xFF)
    top = {"floor": 246, "ceil": 247, "rceil": 247, "even": 247, "te": 247}  # 2^128 / 2^8 or 2^127 / 2^8
    assert byte(rule, FLT_MAX) == top[rule]
    # an element that ends at 127/64 reaches the largest byte: 2^127 is a scale, 2^128 is none
    assert byte(rule, 2.0**127, "mxint8_element") == 254
    assert byte(rule, FLT_MAX, "mxint8_element") == 254


@pytest.mark.parametrize("rule", MX)
def test_multipliers_of_the_bytes_at_the_ends(rule):
    """The reciprocals of bytes 0, 254 and 255, which exponent shifts alone get wrong (Transformer Engine #2408)."""
    format = block_format(rule, "mxint8_element")
    multipliers = RULES[rule].scales(np.array([0, 1, 2.0**127, np.nan], np.float32), format, None).multiplier
    assert multipliers.view(np.uint32).tolist()[:3] == [0x7F000000, 0x3F800000, 0x00400000]
    assert np.isnan(multipliers[3])


def test_e8m0_bytes_come_back():
    assert numsim.decode(np.array([0, 1, 127, 254], np.uint8), "e8m0").tolist() == [2.0**-127, 2.0**-126, 1, 2.0**127]
    assert np.isnan(numsim.decode(np.uint8(255), "e8m0"))


# --- FP32 scales by hand ----------------------------------------------------------------------------------------------
def scale(rule, amax, element="e4m3"):
    return float(RULES[rule].scales(np.array([amax], np.float32), block_format(rule, element), None).multiplier[0])


def stored(rule, amax, element="e4m3"):
    return float(
        RULES[rule].scales(np.array([amax], np.float32), block_format(rule, element), None).codes.view("f4")[0]
    )


def test_current_scaling_at_the_edges():
    """compute_scale_from_amax: 1 for 0, infinity and NaN; FLT_MAX, or 2^127, where the quotient overflows."""
    assert [scale("current", x) for x in (0, np.inf, np.nan, 448, 1)] == [1, 1, 1, 1, 448]
    assert [scale("current-pow2", x) for x in (0, np.inf, np.nan, 448, 1)] == [1, 1, 1, 1, 256]
    assert scale("current", TINY) == float(FLT_MAX) and scale("current-pow2", TINY) == 2.0**127
    assert scale("current", 448 / FLT_MAX * np.float32(1.01)) < float(FLT_MAX)
    below = np.nextafter(np.float32(448), np.float32(0))
    assert scale("current-pow2", below) == 1  # 448 / 447.99997 > 1, and 1 after the fraction bits are cleared
    above = np.nextafter(np.float32(448), np.float32(512))
    assert scale("current", above) < 1 and scale("current-pow2", above) == 0.5
    assert stored("current", 1) == float(np.float32(1) / np.float32(448)) and stored("current-pow2", 1) == 2.0**-8
    assert stored("current", TINY) == float(np.float32(1) / FLT_MAX) != 0  # a subnormal number


def test_torchao_scaling_at_the_edges():
    """448 / max(amax, 1e-12): zero has a scale, infinity gives 0, NaN stays."""
    assert scale("torchao", 0) == float(np.float32(448e12)) and scale("torchao-pow2", 0) == 2.0**48
    assert scale("torchao", np.inf) == 0 and scale("torchao-pow2", np.inf) == 0
    assert stored("torchao", np.inf) == np.inf
    assert np.isnan(scale("torchao", np.nan)) and np.isnan(scale("torchao-pow2", np.nan))
    below = np.nextafter(np.float32(448), np.float32(0))
    assert scale("torchao-pow2", below) == 1 and scale("torchao-pow2", 448) == 1


# --- log2 in FP32 -----------------------------------------------------------------------------------------------------
def whole_log2(scales):
    """floor(log2) with log2 rounded once to FP32, as torchao-pow2 has it, through amax = max / scale at max 1."""
    from numsim.blocks.rules import _log2_rounds_up

    significand, exponent = np.frexp(scales)
    return exponent - 1 + (significand >= _log2_rounds_up(exponent))


def exact_log2(scales):
    with gmpy2.context(precision=24, round=gmpy2.RoundToNearest):
        return np.array([int(gmpy2.floor(gmpy2.log2(gmpy2.mpfr(float(s))))) for s in scales])


def near_powers():
    """The 100 FP32 numbers below every power of two, the power and the next number (there are 46 that round up)."""
    codes = (np.arange(1, 256)[:, None] << 23) + np.arange(-100, 2)
    return np.unique(codes[(codes > 0) & (codes < 0x7F800000)]).astype(np.uint32).view(np.float32)


def test_log2_in_fp32_is_exact_for_all_exponents_near_the_thresholds():
    scales = np.concatenate([near_powers(), np.array([TINY, 3 * TINY, FLT_MAX, 1.5], np.float32)])
    np.testing.assert_array_equal(whole_log2(scales), exact_log2(scales))


def test_just_below_a_power_of_two_log2_rounds_up_for_all_but_four():
    exponents = np.arange(-125, 128)
    below = np.nextafter(np.ldexp(np.float32(1), exponents), np.float32(0))
    up = whole_log2(below) == exponents
    assert exponents[~up].tolist() == [-1, 0, 1, 2]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_log2_of_this_cpu(library):
    """What libraries compute on this CPU: only numbers within a few last places of a threshold may differ."""
    scales = near_powers()
    if library == "torch":
        torch = pytest.importorskip("torch")
        wholes = torch.floor(torch.log2(torch.from_numpy(scales))).numpy()
    else:
        wholes = np.floor(np.log2(scales))
    other = wholes != whole_log2(scales)
    assert not other.any(), scales[other][:10]


# --- absmax by hand ---------------------------------------------------------------------------------------------------
def test_absmax_at_the_edges():
    assert (scale("absmax", 0, "nf4_element"), stored("absmax", 0, "nf4_element")) == (0, 0)
    assert (scale("absmax-127", 0, "int8"), stored("absmax-127", 0, "int8")) == (0, 0)
    assert (scale("absmax", 0.3, "nf4_element"), stored("absmax", 0.3, "nf4_element")) == (
        float(np.float32(1) / np.float32(0.3)),
        float(np.float32(0.3)),
    )
    assert (scale("absmax", np.inf, "nf4_element"), stored("absmax", np.inf, "nf4_element")) == (0, np.inf)
    assert (scale("absmax-127", np.inf, "int8"), stored("absmax-127", np.inf, "int8")) == (0, np.inf)
    assert scale("absmax", TINY, "nf4_element") == np.inf == scale("absmax-127", TINY, "int8")
    assert scale("absmax-127", 254, "int8") == 0.5 and scale("absmax", 3.5, "int4") == 2
    # 1/127 in FP32 is a little more than 1/127: what is stored is not amax / 127
    assert stored("absmax-127", 3, "int8") == float(np.float32(3) * (np.float32(1) / np.float32(127)))


# --- NVFP4 by hand ----------------------------------------------------------------------------------------------------
def test_tensor_scale_of_nvfp4():
    assert two_level(2688, NVFP4) == (1, float(np.float32(2688) * (np.float32(1) / np.float32(2688))))
    assert two_level(0, NVFP4) == (1, 1)
    assert two_level(np.inf, NVFP4) == (1, np.inf)
    scale, back = two_level(1e-38, NVFP4)
    assert scale == FLT_MAX and 0 < back < 1e-41  # the pair no longer cancels: the original's own edge


@given(st.integers(0, 0x7F800000))
def test_tensor_scale_against_the_oracle(code):
    amax = oracle.from_bits(code)
    assert tuple(map(oracle.bits, map(float, two_level(amax, NVFP4)))) == tuple(
        map(oracle.bits, oracle.tensor_scale(amax))
    )


def nvfp4(amax, tensor):
    got = RULES["nvfp4"].scales(np.array([amax], np.float32), NVFP4, np.float32(tensor))
    return float(numsim.decode(got.codes, "ue4m3")[0]), float(got.multiplier[0])


def test_nvfp4_blocks_of_100_1_and_a_ten_thousandth():
    tensor, _ = two_level(100, NVFP4)
    assert [nvfp4(amax, tensor)[0] for amax in (100, 1, 1e-4)] == [448, 4.5, 0]
    assert nvfp4(1e-4, tensor)[1] == float(FLT_MAX)  # the codes saturate, and decode to 0


def test_nvfp4_scales_are_zero_below_2_to_the_minus_10_of_448():
    """A scale that ties with half of 2^-9 is 0; the next one is 2^-9."""
    tensor, _ = two_level(1, NVFP4)
    edge = np.float32(2.0**-10 / 448)
    values = [nvfp4(x, tensor)[0] for x in (edge * np.float32(0.999), edge * np.float32(1.001))]
    assert values == [0, 2.0**-9]


def test_nvfp4_scales_saturate():
    assert nvfp4(np.inf, 1)[0] == 448 and nvfp4(6 * 449, 1)[0] == 448 and nvfp4(6 * 1000, 1)[0] == 448


# --- rules and formats ------------------------------------------------------------------------------------------------
def test_a_rule_needs_its_scale_format():
    with pytest.raises(FormatError, match=r"rule='nvfp4' makes ue4m3 scales, and 'test' has e8m0 scales. Example"):
        BlockFormat("test", numsim.E2M1, numsim.E8M0, (16,), "nvfp4")
    with pytest.raises(FormatError, match="rule='current' makes fp32 scales"):
        numsim.blocks.quantize([1.0] * 32, MXFP8, rule="current")
