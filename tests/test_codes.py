"""Codes and values: decode, exact, neighbours, ulp, classify, pack and unpack, on every code of the small formats."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.errors import InputError, RangeError
from tests import inputs, oracle
from tests.test_oracle import ML_DTYPES

UP_TO_16 = [n for n, s in oracle.SPECS.items() if s.bits <= 16]
INFINITY = {"inf": 1, "-inf": -1}


def all_codes(spec):
    """Every code up to 16 bits; of wider formats all edges and a seeded sample."""
    if spec.bits <= 16:
        return np.arange(1 << spec.bits, dtype=np.uint64)
    rng = np.random.default_rng(11)
    special = [
        0,
        1,
        2,
        spec.least_normal - 1,
        spec.least_normal,
        spec.top - 1,
        spec.top,
        spec.inf,
        spec.inf + 1,
        spec.nan,
    ]
    magnitudes = np.concatenate([np.array(special, np.uint64), rng.integers(0, spec.sign, 3000, dtype=np.uint64)])
    return np.concatenate([magnitudes, magnitudes | np.uint64(spec.sign)])


@pytest.mark.parametrize("name", oracle.SPECS)
def test_decode_every_code(name):
    spec = oracle.SPECS[name]
    codes = all_codes(spec)
    values = numsim.decode(codes, name)
    assert values.dtype == np.float64 and values.shape == codes.shape
    expected = oracle.to_bits(codes, spec)
    if name == "fp64":  # NaNs keep their payload where nothing is converted
        keep = ~oracle.is_nan(codes, spec)
        assert np.isnan(values[~keep]).all()
        values, expected = values[keep], expected[keep]
    bad = np.flatnonzero(inputs.as_bits(values) != expected)
    assert bad.size == 0, f"{name} code {int(codes[bad[0]]):#x}: {values[bad[0]]}, expected {expected[bad[0]]:#x}"


@pytest.mark.parametrize("name", [*ML_DTYPES, "fp16"])
def test_decode_against_numpy_and_ml_dtypes(name):
    codes = np.arange(1 << numsim.get_format(name).bits, dtype=oracle.SPECS[name].dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        theirs = codes.view(ML_DTYPES.get(name, np.float16)).astype(np.float64)
    ours = numsim.decode(codes, name)
    assert np.array_equal(ours, theirs, equal_nan=True)
    kept = ~np.isnan(ours)
    assert np.array_equal(np.signbit(ours[kept]), np.signbit(theirs[kept]))


@pytest.mark.parametrize("name", oracle.SPECS)
def test_exact_and_classify_every_code(name):
    spec = oracle.SPECS[name]
    codes = all_codes(spec)
    if codes.size > 4096:
        codes = np.concatenate([codes[:20], codes[20:-20:31], codes[-20:]])
    classes = numsim.classify(codes, name)
    assert classes.shape == codes.shape
    for code, kind in zip(codes.tolist(), classes.tolist(), strict=True):
        assert kind == oracle.classify(code, spec), hex(code)
        value = oracle.value_of(code, spec)
        if isinstance(value, str):
            with pytest.raises(RangeError, match="NaN" if value == "nan" else "infinity"):
                numsim.exact(code, name)
        else:
            ours = numsim.exact(code, name)
            assert ours == value and type(ours) is Fraction, hex(code)


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_neighbours_of_every_code(name):
    """Found again by sorting all values of the format."""
    spec = oracle.SPECS[name]
    place = {}  # value -> its codes, infinity as a number beyond all others
    beyond = 2 * Fraction(2) ** 200
    for code in range(1 << spec.bits):
        value = oracle.value_of(code, spec)
        if value == "nan":
            with pytest.raises(InputError, match="NaN"):
                numsim.neighbours(code, name)
            continue
        place.setdefault(INFINITY.get(value, 0) * beyond if isinstance(value, str) else value, []).append(code)
    order = sorted(place)
    for i, value in enumerate(order):
        for code in place[value]:
            below, above = numsim.neighbours(code, name)
            for ours, j in ((below, i - 1), (above, i + 1)):
                if 0 <= j < len(order):
                    assert ours in place[order[j]], hex(code)
                    if order[j] == 0 and len(place[0]) == 2:  # stepping to zero keeps the sign
                        assert (ours >= spec.sign) == (value < 0), hex(code)
                else:
                    assert ours is None, hex(code)


@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32", "fp32", "fp64"])
def test_neighbours_and_ulp_of_wide_formats(name):
    spec = oracle.SPECS[name]
    for magnitude in (
        1,
        2,
        spec.least_normal - 1,
        spec.least_normal,
        spec.least_normal + 1,
        3 * spec.least_normal,
        spec.top,
    ):
        assert numsim.neighbours(magnitude, name) == (magnitude - 1, magnitude + 1)
        assert numsim.neighbours(magnitude | spec.sign, name) == (
            (magnitude + 1) | spec.sign,
            (magnitude - 1) | spec.sign,
        )
        step = oracle._grid_fraction(magnitude + 1, spec) - oracle._grid_fraction(magnitude, spec)
        assert numsim.ulp(magnitude, name) == numsim.ulp(magnitude | spec.sign, name) == step
    assert numsim.neighbours(0, name) == numsim.neighbours(spec.sign, name) == (spec.sign | 1, 1)
    assert numsim.neighbours(spec.inf, name) == (spec.top, None)
    assert numsim.neighbours(spec.inf | spec.sign, name) == (None, spec.top | spec.sign)


@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_ulp_of_every_code(name):
    spec = oracle.SPECS[name]
    for code in range(1 << spec.bits):
        value = oracle.value_of(code, spec)
        if isinstance(value, str):
            with pytest.raises(InputError):
                numsim.ulp(code, name)
            continue
        magnitude = code & (spec.sign - 1)
        step = oracle._grid_fraction(magnitude + 1, spec) - oracle._grid_fraction(magnitude, spec)
        assert numsim.ulp(code, name) == step, hex(code)


def test_ulps_in_numbers():
    assert numsim.ulp(numsim.encode(1, "fp16"), "fp16") == Fraction(1, 1024)
    assert numsim.ulp(numsim.encode(2048, "fp16"), "fp16") == 2
    assert numsim.ulp(0, "fp16") == numsim.ulp(1, "fp16") == Fraction(1, 2**24)
    assert numsim.ulp(numsim.encode(448, "e4m3"), "e4m3") == 32


# -- packing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "group"), [("e2m1", 2), ("e3m2", 4), ("e2m3", 4)])
def test_pack_is_one_little_endian_number(name, group):
    bits = oracle.SPECS[name].bits
    codes = np.random.default_rng(2).integers(0, 1 << bits, (5, 3, 6 * group), dtype=np.uint8)
    packed = numsim.pack(codes, name)
    assert packed.dtype == np.uint8 and packed.shape == (5, 3, 6 * group * bits // 8)
    for row, bytes_ in zip(codes.reshape(15, -1), packed.reshape(15, -1), strict=True):
        whole = sum(int(c) << (bits * i) for i, c in enumerate(row))
        assert bytes_.tobytes() == whole.to_bytes(bytes_.size, "little")
    assert np.array_equal(numsim.unpack(packed, name), codes)
    assert numsim.unpack(packed, name).dtype == np.uint8
    # any stride and any unsigned dtype
    assert np.array_equal(numsim.pack(codes[:, ::-1].astype(np.uint32), name), packed[:, ::-1])


@pytest.mark.parametrize(("name", "group", "size"), [("e2m1", 2, 1), ("e3m2", 4, 3)])
def test_pack_of_nothing(name, group, size):
    assert numsim.pack(np.empty((0, 3, 2 * group), np.uint8), name).shape == (0, 3, 2 * size)
    assert numsim.pack(np.empty((3, 0), np.uint8), name).shape == (3, 0)
    assert numsim.unpack(np.empty((0, 3, 2 * size), np.uint8), name).shape == (0, 3, 2 * group)
    assert numsim.unpack(np.empty((3, 0), np.uint8), name).shape == (3, 0)


@pytest.mark.parametrize(("bits", "group"), [(2, 4), (3, 8), (4, 2), (5, 8), (6, 4), (7, 8)])
def test_every_width_below_a_byte_is_packed(bits, group):
    """As one little-endian number, written in Python's integers."""
    format = numsim.Format("narrow", bits - 1, 0, 1, specials="finite")
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (3, 5 * group), dtype=np.uint8)
    packed = numsim.pack(codes, format)
    assert packed.dtype == np.uint8 and packed.shape == (3, 5 * group * bits // 8)
    for row, got in zip(codes.tolist(), packed, strict=True):
        number = sum(code << (bits * i) for i, code in enumerate(row))
        assert got.tobytes() == number.to_bytes(5 * group * bits // 8, "little")
    assert np.array_equal(numsim.unpack(packed, format), codes)
    with pytest.raises(InputError, match=f"in groups of {group}"):
        numsim.pack(codes[:, 1:], format)


def test_pack_by_hand():
    assert numsim.pack([0x1, 0xF], "e2m1").tolist() == [0xF1]
    assert numsim.pack([0b000001, 0b000010, 0b000011, 0b111111], "e3m2").tolist() == [
        0b10000001,
        0b00110000,
        0b11111100,
    ]


@pytest.mark.parametrize(
    ("codes", "name"),
    [
        ([1], "e2m1"),
        ([1, 2, 3], "e2m1"),
        (3, "e2m1"),
        ([1, 2], "e3m2"),
        ([1, 16], "e2m1"),
        ([1, -1], "e2m1"),
        ([1.0, 2.0], "e2m1"),
        ([1, 2], "e4m3"),
        ([1, 2], "fp16"),
    ],
)
def test_pack_refuses(codes, name):
    with pytest.raises(InputError):
        numsim.pack(codes, name)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (np.zeros(2, np.uint8), "e3m2"),
        (np.uint8(1), "e2m1"),
        (np.zeros(3, np.int8), "e2m1"),
        (np.zeros(3, np.uint16), "e2m1"),
        (np.zeros(3, np.uint8), "e5m2"),
    ],
)
def test_unpack_refuses(data, name):
    with pytest.raises(InputError):
        numsim.unpack(data, name)


# -- what codes may be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64, ">u2", ">u4"])
def test_any_unsigned_dtype(dtype):
    codes = np.array([[0, 0x38, 0x7E], [0x7F, 0x80, 0xFF]], dtype)
    before = codes.copy()
    codes.flags.writeable = False
    assert np.array_equal(numsim.decode(codes, "e4m3"), [[0, 1, 448], [np.nan, 0, np.nan]], equal_nan=True)
    assert np.array_equal(numsim.decode(codes[::-1, ::2], "e4m3"), [[np.nan, np.nan], [0, 448]], equal_nan=True)
    assert np.array_equal(codes, before)
    assert numsim.classify(codes, "e4m3")[0].tolist() == ["zero", "normal", "normal"]


def test_shapes_and_scalars():
    assert numsim.decode(0x3C00, "fp16") == 1.0 and np.ndim(numsim.decode(0x3C00, "fp16")) == 0
    assert numsim.decode(np.uint16(0x3C00), "fp16") == 1.0
    assert numsim.decode(np.array(0x3C00, np.uint16), "fp16") == 1.0
    assert numsim.decode([], "fp16").shape == (0,) and numsim.decode(np.empty((0, 3), np.uint8), "e5m2").shape == (0, 3)
    assert numsim.decode([[0x3C00], [0x4000]], "fp16").shape == (2, 1)


@pytest.mark.parametrize("call", [numsim.decode, numsim.classify])
@pytest.mark.parametrize(
    ("codes", "name"),
    [
        (np.array([1], np.int16), "fp16"),
        (np.array([1.0]), "fp16"),
        ([0.5], "fp16"),
        ([True], "fp16"),
        (["1"], "fp16"),
        ([-1], "fp16"),
        ([0x10000], "fp16"),
        (np.array([256], np.uint16), "e4m3"),
        ([16], "e2m1"),
        ([64], "e3m2"),
        ([128], "ue4m3"),
        ([1 << 19], "tf32"),
        ([1 << 64], "fp64"),
        (None, "fp16"),
    ],
)
def test_bad_codes_are_refused(call, codes, name):
    with pytest.raises(InputError):
        call(codes, name)


def test_one_code_is_needed():
    for call in (numsim.exact, numsim.neighbours, numsim.ulp):
        with pytest.raises(InputError, match="one code"):
            call([0x3C00], "fp16")
        with pytest.raises(InputError):
            call(0x10000, "fp16")


def test_decoded_tables_are_not_handed_out():
    """Writing into a result must not change the next one."""
    first = numsim.decode([0x3C00], "fp16")
    first[0] = 7
    whole = numsim.decode(np.arange(256, dtype=np.uint8), "e5m2")
    whole[:] = 0
    assert numsim.decode([0x3C00], "fp16")[0] == 1.0 and numsim.decode(0x3C, "e5m2") == 1.0


def test_formats_beyond_float64():
    wide = numsim.Format("wide", 15, 60 - 16, bias=16383)
    top = wide.max_code
    with pytest.raises(RangeError, match="float64"):
        numsim.decode([top], wide)
    assert numsim.exact(top, wide) == (2 - Fraction(1, 2**44)) * Fraction(2) ** 16383
    assert numsim.exact(1, wide) == Fraction(1, 2 ** (16382 + 44))
    assert numsim.classify([0, 1, 1 << 44, top, top + 1, top + 2], wide).tolist() == [
        "zero",
        "subnormal",
        "normal",
        "normal",
        "infinity",
        "nan",
    ]


@pytest.mark.parametrize("name", ["e11m3", "e11m20", "e11m51"])
def test_formats_with_float64s_whole_range(name):
    """The codes above the largest number must not trip over float64's own overflow (warnings are errors here)."""
    f = numsim.get_format(name)
    codes = np.array([f.max_code, f.infinity_code, f.nan_code, f.nan_code - 1, 1, f.sign_mask | f.max_code], np.uint64)
    values = numsim.decode(codes, f)
    assert values[0] == float(f.max) == -values[5] and values[1] == np.inf and np.isnan(values[2:3]).all()
    assert Fraction(float(values[4])) == f.least_subnormal


@pytest.mark.parametrize("name", UP_TO_16)
def test_ml_dtypes_arrays_come_in_exactly(name):
    """encode of an ml_dtypes (or float16) array of the same format gives its own codes back."""
    dtype = np.float16 if name == "fp16" else ML_DTYPES.get(name)
    if dtype is None:
        dtype, name = ml_dtypes.bfloat16, "bf16"
    spec = oracle.SPECS[name]
    codes = np.arange(1 << spec.bits, dtype=spec.dtype)
    again = numsim.encode(codes.view(dtype), name)
    kept = ~oracle.is_nan(codes, spec)
    assert np.array_equal(again[kept], codes[kept])
    assert np.all(again[~kept] == spec.nan if spec.nan is not None else True)


def test_empty_arrays_of_complex_numbers_are_no_codes():
    with pytest.raises(InputError, match="complex128"):
        numsim.decode(np.zeros(0, complex), "fp16")


def test_powers_of_two_down_to_the_least_of_float64():
    """Without a fraction a significand is 1, among float64's subnormal numbers and far above them."""
    format = numsim.Format("powers", 9, 0, 1070, specials="finite", zero=False, signed=False)
    expected = [math.ldexp(1.0, code - 1070) for code in range(format.codes)]
    assert numsim.decode(np.arange(format.codes, dtype=np.uint16), format).tolist() == expected
