"""The table of formats against numbers typed in from the standards."""

import dataclasses
import pickle
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import numsim
from tests import oracle


def p2(n):
    return Fraction(2) ** n


# name: bits, exponent bits, fraction bits, bias, largest, least normal, least subnormal, all integers up to,
#     1+1+... stalls at
# IEEE 754-2019 table 3.5; OCP OFP8 v1.0 table 2 (448, 57344, 2^-6, 2^-14, 2^-9, 2^-16); OCP MX v1.0 tables 1-5 (28,
# 7.5, 6, 2^127); arXiv:2206.02915 (240, 57344); NVIDIA A100 white paper (TF32); ml_dtypes README (e3m4, e4m3,
# e4m3b11fnuz)
FACTS = {
    "fp64": (64, 11, 52, 1023, (2 - p2(-52)) * p2(1023), p2(-1022), p2(-1074), 2**53, 2**53),
    "fp32": (32, 8, 23, 127, (2 - p2(-23)) * p2(127), p2(-126), p2(-149), 16777216, 16777216),
    "tf32": (19, 8, 10, 127, (2 - p2(-10)) * p2(127), p2(-126), p2(-136), 2048, 2048),
    "fp16": (16, 5, 10, 15, Fraction(65504), p2(-14), p2(-24), 2048, 2048),
    "bf16": (16, 8, 7, 127, (2 - p2(-7)) * p2(127), p2(-126), p2(-133), 256, 256),
    "e5m2": (8, 5, 2, 15, Fraction(57344), p2(-14), p2(-16), 8, 8),
    "e4m3fn": (8, 4, 3, 7, Fraction(448), p2(-6), p2(-9), 16, 16),
    "e4m3fnuz": (8, 4, 3, 8, Fraction(240), p2(-7), p2(-10), 16, 16),
    "e5m2fnuz": (8, 5, 2, 16, Fraction(57344), p2(-15), p2(-17), 8, 8),
    "e4m3b11fnuz": (8, 4, 3, 11, Fraction(30), p2(-10), p2(-13), 16, 16),
    "e3m4": (8, 3, 4, 3, Fraction(31, 2), p2(-2), p2(-6), 15, None),  # 15 + 1 overflows
    "e4m3_ieee": (8, 4, 3, 7, Fraction(240), p2(-6), p2(-9), 16, 16),
    "e3m2": (6, 3, 2, 3, Fraction(28), p2(-2), p2(-4), 8, 8),
    "e2m3": (6, 2, 3, 1, Fraction(15, 2), p2(0), p2(-3), 7, Fraction(15, 2)),  # 7 + 1 becomes the largest number
    "e2m1": (4, 2, 1, 1, Fraction(6), p2(0), p2(-1), 4, 4),
    "e8m0": (8, 8, 0, 127, p2(127), p2(-127), None, 2, 2),  # 3 lies between 2 and 4, and 2 has the even code
    "ue4m3": (7, 4, 3, 7, Fraction(448), p2(-6), p2(-9), 16, 16),
}
# name: largest magnitude code, infinity, canonical NaN
CODES = {
    "fp64": (0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000),
    "fp32": (0x7F7FFFFF, 0x7F800000, 0x7FC00000),
    "tf32": (0x3FBFF, 0x3FC00, 0x3FE00),
    "fp16": (0x7BFF, 0x7C00, 0x7E00),
    "bf16": (0x7F7F, 0x7F80, 0x7FC0),
    "e5m2": (0x7B, 0x7C, 0x7E),
    "e4m3fn": (0x7E, None, 0x7F),
    "e4m3fnuz": (0x7F, None, 0x80),
    "e5m2fnuz": (0x7F, None, 0x80),
    "e4m3b11fnuz": (0x7F, None, 0x80),
    "e3m4": (0x6F, 0x70, 0x78),
    "e4m3_ieee": (0x77, 0x78, 0x7C),
    "e3m2": (0x1F, None, None),
    "e2m3": (0x1F, None, None),
    "e2m1": (0x07, None, None),
    "e8m0": (0xFE, None, 0xFF),
    "ue4m3": (0x7E, None, 0x7F),
}
NAMES = list(FACTS)


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_the_standards(name):
    f = numsim.get_format(name)
    bits, exponent_bits, fraction_bits, bias, largest, least_normal, least_subnormal, integers, stall = FACTS[name]
    assert (f.name, f.bits, f.exponent_bits, f.fraction_bits, f.bias) == (
        name,
        bits,
        exponent_bits,
        fraction_bits,
        bias,
    )
    assert f.max == largest
    assert f.least_normal == least_normal
    assert f.least_subnormal == least_subnormal
    assert f.least == (least_subnormal or least_normal)
    assert f.precision == fraction_bits + 1
    assert f.eps == p2(-fraction_bits)
    assert f.unit_roundoff == p2(-fraction_bits - 1)
    assert p2(f.emin) == least_normal
    assert p2(f.emax) <= largest < p2(f.emax + 1)
    assert f.integers_up_to == integers
    assert f.adding_one_stalls_at == stall
    assert (f.max_code, f.infinity_code, f.nan_code) == CODES[name]
    assert f.codes == 1 << bits
    assert f.code_bytes == (1 if bits <= 8 else 2 if bits <= 16 else 4 if bits <= 32 else 8)
    assert f.signed == (name not in ("e8m0", "ue4m3"))
    assert f.source != "user-defined" and f.title


@pytest.mark.parametrize("name", NAMES)
def test_the_oracles_table_and_this_one_agree(name):
    spec = oracle.SPECS[name]
    assert (spec.bits, spec.exponent, spec.fraction, spec.bias) == FACTS[name][:4]
    assert (spec.top, spec.inf, spec.nan) == CODES[name]
    assert oracle.value_of(spec.top, spec) == FACTS[name][4]
    assert oracle.value_of(spec.least_normal, spec) == FACTS[name][5]


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("fp64", "fp32")])
def test_integers_and_where_adding_one_stalls(name):
    f = numsim.get_format(name)
    for n in {1, 2, 3, f.integers_up_to - 1, f.integers_up_to} - {0}:
        if n <= f.integers_up_to:
            assert numsim.exact(numsim.encode(n, f), f) == n
    after = numsim.encode(f.integers_up_to + 1, f)
    assert numsim.codes.classify(after, f) == "infinity" or numsim.exact(after, f) != f.integers_up_to + 1
    total, steps = Fraction(0) if f.zero else Fraction(1), 0
    while steps < 3000:
        code = numsim.encode(total + 1, f)
        if numsim.classify(code, f) in ("infinity", "nan"):
            total = None
            break
        if numsim.exact(code, f) == total:
            break
        total, steps = numsim.exact(code, f), steps + 1
    assert total == f.adding_one_stalls_at


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "fp64"])
def test_finfo_agrees(name):
    f = numsim.get_format(name)
    info = ml_dtypes.finfo(
        {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64}[name]
    )
    assert f.max == Fraction(float(info.max)) and f.least_normal == Fraction(float(info.smallest_normal))
    assert f.least_subnormal == Fraction(float(info.smallest_subnormal)) and f.eps == Fraction(float(info.eps))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float64, "fp64"),
        (float, "fp64"),
        (np.dtype(">f8"), "fp64"),
        (np.float32, "fp32"),
        (np.dtype("f4"), "fp32"),
        (np.float16, "fp16"),
        (ml_dtypes.bfloat16, "bf16"),
        (np.dtype(ml_dtypes.bfloat16), "bf16"),
        (ml_dtypes.float8_e5m2, "e5m2"),
        (ml_dtypes.float8_e4m3fn, "e4m3fn"),
        (ml_dtypes.float8_e4m3, "e4m3_ieee"),
        (ml_dtypes.float8_e3m4, "e3m4"),
        (ml_dtypes.float8_e4m3fnuz, "e4m3fnuz"),
        (ml_dtypes.float8_e5m2fnuz, "e5m2fnuz"),
        (ml_dtypes.float8_e4m3b11fnuz, "e4m3b11fnuz"),
        (ml_dtypes.float6_e3m2fn, "e3m2"),
        (ml_dtypes.float6_e2m3fn, "e2m3"),
        (ml_dtypes.float4_e2m1fn, "e2m1"),
        (ml_dtypes.float8_e8m0fnu, "e8m0"),
    ],
)
def test_dtypes_map_by_meaning(dtype, name):
    assert numsim.get_format(dtype) == numsim.get_format(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.float32", "fp32"),
        ("torch.bfloat16", "bf16"),
        ("torch.float16", "fp16"),
        ("torch.half", "fp16"),
        ("torch.float8_e4m3fn", "e4m3fn"),
        ("torch.float8_e4m3fnuz", "e4m3fnuz"),
        ("torch.float8_e5m2", "e5m2"),
        ("torch.float8_e8m0fnu", "e8m0"),
    ],
)
def test_torch_dtypes_by_their_name(text, name):
    class FakeTorchDtype:
        def __repr__(self):
            return text

    assert numsim.get_format(FakeTorchDtype()).name == name


def test_names():
    assert numsim.get_format("e4m3") is numsim.get_format("E4M3FN") is numsim.E4M3
    assert numsim.get_format("ue4m3") is numsim.UE4M3 and numsim.get_format("e8m0") is numsim.E8M0
    assert numsim.get_format(numsim.FP16) is numsim.FP16
    assert {f.name for f in numsim.list_formats()} >= set(NAMES)
    for f in numsim.list_formats():
        assert numsim.get_format(f.name) is f and numsim.get_format(str(f)) is f


@pytest.mark.parametrize(("x", "y"), [(5, 7), (8, 3), (6, 9), (2, 2), (4, 11), (11, 20)])
def test_any_other_exmy_is_ieee_style(x, y):
    f = numsim.get_format(f"e{x}m{y}")
    assert (f.bits, f.bias) == (1 + x + y, 2 ** (x - 1) - 1)
    assert f.max == (2 - p2(-y)) * p2(f.bias)
    assert f.infinity_code == (2**x - 1) << y and f.least_subnormal == p2(1 - f.bias - y)


@pytest.mark.parametrize("name", ["fp8", "", "e1m2", "e0m3", "e99m1", "e5m", "int8x", "fp33", "e40m40", "e8m60"])
def test_unknown_names_are_refused_with_help(name):
    with pytest.raises(numsim.errors.FormatError, match="Example: numsim explain"):
        numsim.get_format(name)
    with pytest.raises(ValueError, match="format"):
        numsim.encode(1.0, name)


@pytest.mark.parametrize("thing", [None, 3, 1.5, int, object(), np.int32, np.dtype("i4"), ["fp16"]])
def test_what_is_no_format_is_refused(thing):
    with pytest.raises(numsim.errors.FormatError):
        numsim.get_format(thing)


def test_fp8_is_answered_with_the_two_choices():
    with pytest.raises(numsim.errors.FormatError, match=r"unknown format 'fp8': did you mean e4m3 \(forward\) or e5m2"):
        numsim.get_format("fp8")


@pytest.mark.parametrize(
    "fields",
    [
        {"exponent_bits": 0},
        {"exponent_bits": 16},
        {"exponent_bits": 1},  # IEEE style needs room for infinity and numbers
        {"fraction_bits": -1},
        {"fraction_bits": 0},
        {"exponent_bits": 15, "fraction_bits": 60},
        {"specials": "other"},
        {"specials": "fnuz", "signed": False},
        {"zero": False},
    ],
)
def test_impossible_formats_are_refused(fields):
    good = {"name": "mine", "exponent_bits": 5, "fraction_bits": 4, "bias": 15}
    numsim.Format(**good)
    with pytest.raises(numsim.errors.FormatError, match="mine"):
        numsim.Format(**(good | fields))


def test_formats_are_frozen_records():
    with pytest.raises(dataclasses.FrozenInstanceError):
        numsim.FP16.bias = 3
    mine = numsim.Format("fp16", 5, 10, 15, title="another title")
    assert mine == numsim.FP16 and hash(mine) == hash(numsim.FP16)
    assert pickle.loads(pickle.dumps(numsim.E4M3)) == numsim.E4M3
    assert numsim.Format("mine", 5, 10, 14) != numsim.Format("mine", 5, 10, 15)


@pytest.mark.parametrize("specials", ["ieee", "fn", "fnuz", "finite"])
def test_ones_own_format_rounds(specials):
    """A format nobody has: 3 exponent bits, 3 fraction bits, bias 5."""
    mine = numsim.Format("mine", 3, 3, 5, specials=specials)
    assert mine.least_subnormal == p2(-7)
    assert numsim.exact(numsim.encode("0.3", mine), mine) == Fraction(5, 16)
    codes = numsim.encode([1e9, -1e9], mine)
    assert (
        numsim.classify(codes, mine).tolist()
        == {
            "ieee": ["infinity"] * 2,
            "fn": ["nan"] * 2,
            "fnuz": ["nan"] * 2,
            "finite": ["normal"] * 2,
        }[specials]
    )
    values = numsim.decode(np.arange(mine.codes, dtype=np.uint8), mine)
    again = numsim.encode(values, mine, nan="zero")
    kept = ~np.isnan(values)
    assert np.array_equal(again[kept], np.arange(mine.codes)[kept])


def test_fits():
    order = [
        ("e2m1", "e4m3fn"),
        ("e4m3fn", "fp16"),
        ("fp16", "fp32"),
        ("bf16", "tf32"),
        ("tf32", "fp32"),
        ("e8m0", "fp32"),
    ]
    for small, large in order:
        assert numsim.get_format(small).fits(numsim.get_format(large))
        assert not numsim.get_format(large).fits(numsim.get_format(small))
    assert not numsim.FP16.fits(numsim.BF16) and not numsim.BF16.fits(numsim.FP16)
    assert not numsim.E5M2FNUZ.fits(numsim.E5M2)  # 2^-17
    assert numsim.UE4M3.fits(numsim.E4M3) and not numsim.E4M3.fits(numsim.UE4M3)
