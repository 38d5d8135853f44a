"""What may stand for a number: every kind of input is read exactly, and what is no number is refused by numsim."""

import array as standard_array
import re
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.errors import InputError
from numsim.values import NAN, Rational, as_fraction, as_values, from_torch, rational


def exactly(x):
    """A rational as a fraction, or as "-0", "inf", "-inf", "nan"."""
    if x.denominator == 0:
        return "nan" if x == NAN else "-inf" if x.sign else "inf"
    return "-0" if x.sign and not x.numerator else as_fraction(x)


def values_of(x):
    return [exactly(v) for v in as_values(x)]


# -- one number -------------------------------------------------------------------------------------------------------

ONE_NUMBER = [
    (0, 0), (-3, -3), (2**200 + 1, 2**200 + 1), (True, 1), (0.1, Fraction(3602879701896397, 2**55)), (-0.0, "-0"),
    (5e-324, Fraction(1, 2**1074)), (-5e-324, Fraction(-1, 2**1074)), (float("inf"), "inf"), (float("-inf"), "-inf"),
    (float("nan"), "nan"), (-float("nan"), "nan"), (Fraction(-1, 3), Fraction(-1, 3)), (Fraction(0), 0),
    (Decimal("0.1"), Fraction(1, 10)), (Decimal("-0"), "-0"), (Decimal("-0.000"), "-0"), (Decimal("Infinity"), "inf"),
    (Decimal("-Infinity"), "-inf"), (Decimal("NaN"), "nan"), (Decimal("sNaN"), "nan"), (Decimal("-NaN123"), "nan"),
    (Decimal("1e-400"), Fraction(1, 10**400)), (np.float64(-0.0), "-0"), (np.float32(0.1), Fraction(13421773, 2**27)),
    (np.float16(-2.0), -2), (np.float32("nan"), "nan"), (np.float16("-inf"), "-inf"),
    (np.float32(1e-45), Fraction(1, 2**149)), (np.int8(-128), -128), (np.uint64(2**64 - 1), 2**64 - 1),
    (np.bool_(True), 1), (ml_dtypes.bfloat16(-0.0), "-0"), (ml_dtypes.float8_e4m3fn(448), 448),
    (ml_dtypes.float4_e2m1fn(-0.5), Fraction(-1, 2)), (ml_dtypes.float8_e8m0fnu(2.0**-127), Fraction(1, 2**127)),
    ("0.1", Fraction(1, 10)), ("-0", "-0"), ("-0.0", "-0"), ("+1.5", Fraction(3, 2)), ("1e3", 1000), (" 2 ", 2),
    ("1_000", 1000), (".5", Fraction(1, 2)), ("5.", 5), ("1/3", Fraction(1, 3)), ("-2/6", Fraction(-1, 3)),
    ("inf", "inf"), ("-Infinity", "-inf"), ("nan", "nan"), ("NaN", "nan"), ("-nan", "nan"),
    ("0x1.8p-3", Fraction(3, 16)), ("-0x1p0", -1), ("-0x0p0", "-0"), ("0x10", 16), ("0X1P1", 2),
    ("1e-5000", Fraction(1, 10**5000)), (np.str_("0.1"), Fraction(1, 10)),
    ("\u0663", 3),  # Python reads the digits of all scripts
]  # fmt: skip


def shown(x):
    """Nothing that differs between processes, which pytest-xdist would take for another test."""
    return re.sub(" at 0x.*", "", repr(x))[:30] if not isinstance(x, Fraction) else ""


@pytest.mark.parametrize(("value", "right"), ONE_NUMBER, ids=shown)
def test_one_number(value, right):
    values = as_values(value)
    assert values.shape == () and values.size == 1
    assert [exactly(x) for x in values] == [right]
    if type(value).__module__ != "numpy":  # numpy's scalars go the way of arrays
        assert exactly(rational(value)) == right


def test_long_strings():
    """Longer than the 4300 digits that int() reads."""
    digits = "1" * 6000
    assert values_of("0." + digits) == [Fraction((10**6000 - 1) // 9, 10**6000)]
    assert numsim.encode(digits, "fp16") == 0x7C00


def test_strings_are_exact_where_a_float_is_not():
    """Each lies a little beside a tie that float64 would land on: BF16, then FP16."""
    for text, name, code in (
        ("0x1.01000000000000001p0", "bf16", 0x3F81),
        ("0x1.00ffffffffffffffffp0", "bf16", 0x3F80),
        ("1.00390625000000000000000001", "bf16", 0x3F81),
        ("2049.0000000000000000000001", "fp16", 0x6801),
        ("2049", "fp16", 0x6800),
        ("0x1p-1075", "fp16", 0),
    ):
        assert numsim.encode(text, name) == code, (text, name)
    assert numsim.encode("0x1p-1075", "fp16", rounding="up") == 1
    assert numsim.encode("0x1p1024", "fp16") == 0x7C00
    assert numsim.encode(Decimal("1e-400"), "fp64", rounding="up") == 1
    assert numsim.encode(2**53 + 1, "fp64", rounding="up") == numsim.encode(2.0**53 + 2, "fp64")


def test_as_fraction():
    assert as_fraction(rational("-1/3")) == Fraction(-1, 3) and as_fraction(rational("-0")) == 0
    assert rational(Rational(1, 2, 3)) == Rational(1, 2, 3)


WORDS = ["", "one", "0.1.2", "1/0", "1e", "0x", "0xg", "1 2", "--1", "0x1p", "1/2/3", "\x00", "1j", "0.1f", "1,5"]
OBJECTS = [None, b"0.1", {}, set(), object(), iter([1.0]), range(3), [1, None], ["0.1", "x"], [{}], [b"1"]]
NO_NUMBER = [
    *[(x, "is no number") for x in (*WORDS, *OBJECTS, np.array(["x"]), np.array([b"x"]))],
    (1j, "is complex"), ([1, 1j], "is complex"), (np.complex64(1), "complex64"), (np.array([1j]), "complex128"),
    ("1e99999", "exponents from 40000"), ("1e-00012345678901", "from 40000"), ("1E+40000", "from 40000"),
    (np.array([None]), "array of dtype object"), (np.array([Fraction(1, 2)]), "array of dtype object"),
    (np.array(["2020-01-01"], "M8[D]"), "array of dtype datetime64"), (np.array([1], "m8[s]"), "dtype timedelta64"),
    (np.zeros(2, "f4,f4"), "array of dtype void"), ([1, [2, 3]], "unequal lengths"), ([[1, 2], [3]], "unequal lengths"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), NO_NUMBER, ids=shown)
def test_no_number(value, message):
    """From encode and array alike: an InputError that shows what came and what would have worked."""
    for call in (numsim.encode, numsim.round_to, numsim.array):
        with pytest.raises(InputError, match=message) as error:
            call(value, "fp16")
        assert "Example: " in str(error.value) or "write it like" in str(error.value) or "from 40000" in message


@pytest.mark.parametrize("text", ["1e4_0000", "1e\u0664\u0660\u0660\u0660\u0660"])
def test_exponents_in_disguise(text):
    """Decimal reads underscores and the digits of all scripts."""
    with pytest.raises(InputError, match="from 40000"):
        numsim.encode(text, "fp16")


# -- arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    ["f8", "f4", "f2", ">f8", ">f4", ">f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i8", ">u4", "?", "g"],
)
def test_numpy_arrays(dtype):
    """Any byte order and stride; C order of the elements; a copy where the memory is not as kernels want it."""
    dtype = np.dtype(dtype)
    base = np.array([[0, 1, 2, 3], [1, 0, 1, 5], [7, 6, 5, 4]]).astype(dtype)
    if dtype.kind == "f":
        base[0, 0], base[1, 1] = -0.0, 0.5
    for x in (base, base.T, base[::2, ::-1], base[:, 1:3], base[0], base[:0], base[1, 1], base[1:2, 1:2]):
        right = [exactly(rational(v)) for v in np.asarray(x).ravel().tolist()]
        values = as_values(x)
        assert values.shape == np.shape(x) and values_of(x) == right
        if values.floats is not None:
            assert values.floats.dtype.isnative and values.floats.flags.c_contiguous and values.floats.flags.aligned
            assert values.floats.dtype == (np.float32 if dtype.itemsize <= 4 and dtype.kind == "f" else np.float64)


def test_special_values_of_arrays():
    for dtype in ("f8", "f4", "f2", "g"):
        x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], dtype)
        assert values_of(x) == [0, "-0", "inf", "-inf", "nan", "nan"], dtype
    signalling = np.array([0x7D00, 0x7C01, 0xFC01], np.uint16).view(np.float16)
    assert values_of(signalling) == ["nan"] * 3
    assert values_of(np.array([0x7F800001], np.uint32).view(np.float32)) == ["nan"]


def test_large_integers_are_exact():
    for x in (
        np.array([2**53 + 1, -(2**63), 0]),
        np.array([2**64 - 1, 2**53 + 1], np.uint64),
        np.array([2**53, -(2**53)]),
    ):
        assert values_of(x) == [int(v) for v in x]
    assert values_of([2**53 + 1, 0.5]) == [2**53 + 1, Fraction(1, 2)]
    assert values_of([2**100, -(2**100)]) == [2**100, -(2**100)]


def test_long_doubles_are_exact():
    """Where they are longer than float64."""
    x = np.array([1, 3], np.longdouble) + np.finfo(np.longdouble).eps
    assert [as_fraction(v) for v in as_values(x)] == [Fraction(*v.as_integer_ratio()) for v in x]
    assert as_fraction(next(iter(as_values(x[0])))) == Fraction(*x[0].as_integer_ratio())


SMALL = [
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3b11fnuz",
    "float8_e3m4",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
]


@pytest.mark.parametrize("name", SMALL)
def test_every_number_of_ml_dtypes(name):
    """Arrays, and scalars in lists: what decode makes of the same bits."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    format = numsim.get_format(name)
    codes = np.arange(format.codes, dtype=f"u{format.code_bytes}")
    x = codes.view(dtype)
    assert as_values(x).floats.dtype == np.float32
    right = numsim.encode(numsim.decode(codes, format), "fp64")
    assert np.array_equal(numsim.encode(x, "fp64"), right)
    assert np.array_equal(numsim.encode(list(x[:300]), "fp64"), right[:300])
    assert np.array_equal(numsim.encode(x.reshape(-1, 2)[:, ::-1], "fp64"), right.reshape(-1, 2)[:, ::-1])


def test_arrays_of_strings():
    x = np.array([["0.1", "1/3"], ["-0", "inf"]])
    assert values_of(x) == [Fraction(1, 10), Fraction(1, 3), "-0", "inf"] and as_values(x).shape == (
        2,
        2,
    )
    assert values_of(np.array([b"0.1", b"2"])) == [Fraction(1, 10), 2]


def test_bytes_that_are_no_text():
    with pytest.raises(InputError):
        as_values(np.array([b"\xff"]))


def test_masked_arrays_are_refused():
    with pytest.raises(InputError, match="mask"):
        as_values(np.ma.array([1.0, 2.0], mask=[False, True]))


# -- lists and others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shape"),
    [([], (0,)), ([[], []], (2, 0)), ([[]], (1, 0)), ((), (0,)), ([1], (1,)), ([[1, 2], [3, 4]], (2, 2)),
     (((1,), (2,)), (2, 1)),
     ([1, 0.5, "0.1", Fraction(1, 3), Decimal("0.2"), True, np.float32(0.1), ml_dtypes.bfloat16(1)], (8,)),
     ([np.array([1, 2]), np.array([3, 4])], (2, 2)), ([np.float64(1), np.int8(2)], (2,)), ([[[1.0]]], (1, 1, 1))],
    ids=repr,
)  # fmt: skip
def test_lists(value, shape):
    assert as_values(value).shape == shape
    flat = np.array(value, dtype=object).ravel().tolist()
    assert values_of(value) == [exactly(rational(v)) for v in flat]


def test_lists_of_floats_take_the_fast_way():
    assert as_values([0.1, -0.0, 3]).floats.tolist() == [0.1, -0.0, 3.0]
    assert np.signbit(as_values([0.1, -0.0]).floats[1])


def test_whatever_offers_an_array():
    """By NumPy's protocol: numsim's own Array, pandas, torch tensors on the CPU, memory views as lists of NumPy's."""

    class Offers:
        def __array__(self, dtype=None, copy=None):
            return np.array([0.5, 1.5], np.float32)

    assert values_of(Offers()) == [Fraction(1, 2), Fraction(3, 2)]
    x = numsim.array([0.1, 2.0], "bf16")
    assert values_of(x) == x.values.tolist()
    assert values_of(np.asarray(standard_array.array("d", [0.5]))) == [Fraction(1, 2)]


def test_torch_tensors():
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    assert values_of(torch.tensor([0.5, -0.0])) == [Fraction(1, 2), "-0"]
    assert values_of(torch.tensor(3)) == [3]
    assert as_values(torch.ones(2, 3)).shape == (2, 3)
    weight = torch.nn.Parameter(torch.tensor([0.5, 2.0]))
    assert values_of(weight) == values_of([weight[0], weight[1]]) == [Fraction(1, 2), 2]
    assert values_of([[weight[0], 1.0], [2**60 + 1, "0.1"]]) == [Fraction(1, 2), 1, 2**60 + 1, Fraction(1, 10)]
    assert values_of(torch.ones(2, dtype=torch.complex64).conj().imag) == ["-0", "-0"]  # a view that negates


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_torch_tensors_of_types_that_numpy_has_not(name):
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    tensor = torch.tensor([[0.5, 2.0, 4.0], [1.0, 8.0, 0.25]]).to(getattr(torch, name))
    assert from_torch(tensor).dtype == getattr(ml_dtypes, name)
    assert values_of(tensor.T) == [Fraction(1, 2), 1, 2, 8, 4, Fraction(1, 4)]  # strides
    assert values_of([tensor[0, 0], 1]) == [Fraction(1, 2), 1]
    assert as_values(tensor[0, 0]).shape == () and as_values(tensor[:0]).shape == (0, 3)


def test_torch_tensors_without_readable_numbers():
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    for tensor in (
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.ones(2, dtype=torch.bfloat16, device="meta"),
        torch.ones(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    ):
        for x in (tensor, [tensor], [[tensor, tensor], [1.0, tensor]]):
            with pytest.raises(InputError):
                as_values(x)
        with pytest.raises(InputError, match=f"torch tensor of dtype {str(tensor.dtype).removeprefix('torch.')}, "):
            numsim.encode(tensor, "fp16")


def test_arrays_that_cannot_be_had():
    class Broken:
        shape = ()

        def __array__(self, dtype=None, copy=None):
            raise KeyError("gone")

    for x in (Broken(), [Broken()], [[1.0], [Broken()]]):
        with pytest.raises(InputError, match="gone"):
            as_values(x)
    with pytest.raises(InputError, match="gone"):
        rational(Broken())
    with pytest.raises(numsim.errors.RangeError):  # what an Array says of itself
        as_values(numsim.array(["1e1000"], "e15m3"))


def test_lists_of_single_numbers_of_an_array():
    x = numsim.array([0.1, 2.0], "bf16")
    assert np.array_equal(numsim.array(list(x), "bf16").codes, x.codes)


def test_inputs_are_only_read():
    x = np.arange(5.0)
    x.flags.writeable = False
    assert as_values(x).floats.tolist() == [0, 1, 2, 3, 4]
    numbers = [0.1, "0.2", Fraction(1, 3)]
    as_values(numbers)
    assert numbers == [0.1, "0.2", Fraction(1, 3)]
