"""Array: what a student types. Operators, NumPy's manners, and refusals that name a call that works."""

import copy
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim import Array, array, from_codes
from numsim.errors import FormatError, InputError, NumsimError, RangeError

NUMPY_2 = int(np.__version__.split(".")[0]) >= 2


@pytest.fixture
def y():
    return array([1.0, 2.0, 0.1], "fp16")


@pytest.fixture
def matrix():
    return array(np.arange(6.0).reshape(2, 3), "fp16")


def same(x, values, format):
    """An Array of this format with these values, signs of zeros included."""
    values = np.asarray(values, np.float64)
    return (
        isinstance(x, Array)
        and x.format == numsim.get_format(format)
        and x.shape == values.shape
        and np.array_equal(x.values, values, equal_nan=True)
        and np.array_equal(np.signbit(x.values), np.signbit(values) & ~np.isnan(values))
    )


# -- making one -------------------------------------------------------------------------------------------------------


def test_array_rounds_once():
    assert same(array([0.1, 1e9, -0.0], "fp16"), [0.0999755859375, np.inf, -0.0], "fp16")
    assert same(array("0.1", "bf16"), 0.10009765625, "bf16")
    assert same(array([[1, 2], [3, 4]], "e4m3"), [[1, 2], [3, 4]], "e4m3fn")
    assert same(array(0.1, "bf16", rounding="down"), 0.099609375, "bf16")
    assert array([1.0], "tf32").codes.dtype == np.uint32
    assert array(1.0, np.float16).format is numsim.FP16
    assert array(1.0, ml_dtypes.bfloat16).format is numsim.BF16
    assert array(1.0, "fp16", overflow="saturate").how == "rounded once to fp16, nearest-even, overflow saturate"
    assert array(1.0, "fp16", rounding="up").how == "rounded once to fp16, up"
    with pytest.raises(FormatError, match="unknown format 'fp8': did you mean e4m3"):
        array(1.0, "fp8")
    with pytest.raises(InputError, match="rounding='even'"):
        array(1.0, "fp16", rounding="even")


def test_from_codes_copies_and_checks():
    codes = np.array([0x3C00, 0x7E00], np.uint16)
    x = from_codes(codes, "fp16")
    codes[0] = 0
    assert same(x, [1.0, np.nan], "fp16") and x.how == "codes given"
    assert from_codes([1, 2], "e4m3").codes.dtype == np.uint8
    assert from_codes(np.array([1, 2], np.uint64), "e4m3").codes.dtype == np.uint8
    assert from_codes(0x3C00, "fp16").shape == ()
    for bad, message in (
        ([256], r"code 0x100 is out of range: e4m3fn has codes 0 to 0xff\. Example: "),
        ([-1], "out of range"),
        ([1.0], "codes of dtype float64: codes are unsigned integers"),
        (np.array([1], np.int64), "codes of dtype int64"),
        ([True], "codes of dtype bool"),
    ):
        with pytest.raises(InputError, match=message):
            from_codes(bad, "e4m3")


def test_astype(y):
    assert same(y.astype("e4m3"), [1.0, 2.0, 0.1015625], "e4m3fn")
    assert same(y.astype("bf16", rounding="up"), [1.0, 2.0, 0.10009765625], "bf16")
    assert same(array([1e5], "bf16").astype("fp16", overflow="saturate"), [65504], "fp16")
    assert same(y.astype("fp16"), y.values, "fp16") and same(array(2.0, "fp64").astype("fp32"), 2.0, "fp32")
    with pytest.raises(InputError, match="NaN has no code in e2m1"):
        array([np.nan], "fp16").astype("e2m1")
    # FP64 in one step: through FP32 it would be 1.0
    assert same(array([1 + 2.0**-8 + 2.0**-40], "fp64").astype("bf16"), [1.0078125], "bf16")


def test_formats_wider_than_float64():
    x = array([1, "1/3"], "e12m40")
    assert np.array_equal((x + x).codes, array([2, "2/3"], "e12m40").codes)
    assert repr(x).startswith("numsim.from_codes([") and np.array_equal(eval(repr(x)).codes, x.codes)
    assert same(x.astype("fp16"), [1.0, 0.333251953125], "fp16")


# -- operators --------------------------------------------------------------------------------------------------------


def test_operators(y):
    h = np.array([1.0, 2.0, 0.1], np.float16)
    for x, right in (
        (y + y, h + h), (y - 0.3, h - np.float16(0.3)), (y * y, h * h), (y / 3, h / np.float16(3)), (-y, -h),
        (1 + y, 1 + h), (0.3 - y, np.float16(0.3) - h), (3 * y, 3 * h), (1 / y, 1 / h),
    ):  # fmt: skip
        assert same(x, right, "fp16"), x
    assert same(array([2048.0], "fp16") + 1, [2048.0], "fp16")
    assert (y + y).how == "add rounded once to fp16, nearest-even"


@pytest.mark.parametrize(
    "number",
    [0.1, 1, True, Fraction(1, 10), Decimal("0.1"), "0.1", np.float32(0.1), np.float16(0.1), np.int8(3),
     ml_dtypes.bfloat16(0.1), [1, 0.1, 2], np.array([0.1, 0.2, 0.3]), np.array([1, 2, 3]), np.array(0.1)],
    ids=repr,
)  # fmt: skip
def test_plain_numbers_are_rounded_to_the_format_first(number, y):
    rounded = array(number, "fp16")
    for operation in (numsim.add, numsim.sub, numsim.mul, numsim.div):
        right = operation(y, rounded)
        assert np.array_equal(operation(y, number).codes, right.codes)
    assert np.array_equal((y + number).codes, (y + rounded).codes)
    assert np.array_equal((number + y).codes, (y + rounded).codes)
    assert np.array_equal((number / y).codes, (rounded / y).codes)


def test_a_plain_number_rounds_twice_on_purpose():
    """2049 is no FP16 number: it becomes 2048 before it is added, as the operand of every FP16 unit would."""
    assert same(array([0.0], "fp16") + 2049, [2048.0], "fp16")
    assert same(numsim.add(array([0.0], "fp16"), 2049, format="fp32"), [2048.0], "fp32")


@pytest.mark.parametrize(
    "other", [None, object(), {1: 2}, {1, 2}, b"1", [None], [[1], [2, 3]], "one", 1j, np.array([1j])]
)
def test_no_operand(other, y):
    """Refused from either side, before anything is computed, in numsim's own words."""
    for call in (lambda: y + other, lambda: other * y, lambda: numsim.add(y, other)):
        with pytest.raises(InputError, match=r"Example: |write it like"):
            call()


def test_broadcasting(matrix):
    column = array([[1.0], [2.0]], "fp16")
    assert same(matrix + column, matrix.values + column.values, "fp16")
    assert same(matrix * array(2.0, "fp16"), 2 * matrix.values, "fp16")
    assert same(matrix[0] + matrix, matrix.values[0] + matrix.values, "fp16")
    assert (array(np.ones((0, 3)), "fp16") + matrix[0]).shape == (0, 3)
    with pytest.raises(InputError, match=r"add: shapes \(2, 3\) and \(2,\) do not broadcast"):
        matrix + array([1.0, 2.0], "fp16")


MIXED = [
    ("+", lambda x, y: x + y), ("-", lambda x, y: x - y), ("*", lambda x, y: x * y), ("/", lambda x, y: x / y),
    ("@", lambda x, y: x @ y), ("fma", lambda x, y: numsim.fma(x, y, x)), ("dot", lambda x, y: numsim.dot(x, y)),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "call"), MIXED)
def test_mixed_formats_are_refused(operator, call):
    x, y = array([1.0, 2.0], "bf16"), array([1.0, 2.0], "fp16")
    with pytest.raises(InputError, match=r"operands have formats bf16 and fp16; which one should the result have\?"):
        call(x, y)


@pytest.mark.parametrize(("operator", "call"), MIXED)
def test_the_calls_in_that_message_work(operator, call):
    """And they do what was asked for: the name of the operation stands in them."""
    x, y = array([1.0, 2.0], "bf16"), array([1.0, 2.0], "fp16")
    with pytest.raises(InputError) as error:
        call(x, y)
    examples = str(error.value).partition("Example: ")[2].split(", or ")
    for example in examples:
        assert isinstance(eval(example, {"numsim": numsim, "x": x, "y": y, "z": y}), Array), example
    name = {"+": "add", "-": "sub", "*": "mul", "/": "div", "@": "matmul"}.get(operator, operator)
    assert f"numsim.{name}(" in " ".join(examples)


def test_mixed_formats_when_asked_for():
    x, y = array([0.1, 2.0], "bf16"), array([1.0, 2.0], "fp16")
    assert same(numsim.add(x, y, format="fp32"), [1.10009765625, 4.0], "fp32")
    assert same(x.astype("fp16") + y, [1.099609375, 4.0], "fp16")
    assert same(numsim.matmul(x, y, accumulator="fp32"), 4.10009765625, "fp32")
    with pytest.raises(InputError, match="beside Arrays of several formats a plain number has no format"):
        numsim.fma(x, y, 1, format="fp32")


@pytest.mark.parametrize(
    "source",
    ["x ** 2", "x // 2", "divmod(x, 2)", "x << 1", "x & 1", "~x", "x ^ x"],
)
def test_operators_that_would_hide_rounding(source, y):
    with pytest.raises(TypeError, match=r"is not defined on numsim Arrays.*x\.values"):
        eval(source, {"x": y})


def test_in_place():
    """Rounded once, into the codes that views share; the result must have the Array's format and shape."""
    x = array([1.0, 2.0, 0.1], "fp16")
    view, before = x[1:], x.codes.copy()
    x += 1
    assert same(x, [2.0, 3.0, 1.099609375], "fp16") and same(view, [3.0, 1.099609375], "fp16")
    assert x.how == "add rounded once to fp16, nearest-even; plain numbers rounded to fp16 first"
    x -= array([1.0, 1.0, 1.0], "fp16")
    x *= 2
    x /= [2, 2, 4]
    assert same(x, [1.0, 2.0, 0.0498046875], "fp16") and not np.array_equal(x.codes, before)
    x[1:] += x[:-1]  # the operands as they were
    assert same(x, [1.0, 3.0, 2.05078125], "fp16")
    with pytest.raises(InputError, match=r"out= has shape \(3,\), the result \(2, 3\)"):
        x += np.ones((2, 3))
    with pytest.raises(InputError, match="operands have formats bf16 and fp16"):
        x += array([1.0, 1.0, 1.0], "bf16")
    assert same(x, [1.0, 3.0, 2.05078125], "fp16")


def test_out(y):
    out = array(np.zeros(3), "fp16")
    assert np.add(y, y, out=out) is out and same(out, (y + y).values, "fp16") and out.how.startswith((y + y).how)
    assert np.equal(y, 2, out=(mask := np.zeros(3, bool))) is mask and mask.tolist() == [False, True, False]
    for call in (
        lambda: np.add(y, y, out=np.zeros(3)),
        lambda: np.add(y, y, out=array(np.zeros(3), "bf16")),
        lambda: np.add(np.zeros(3), 1, out=y),
        lambda: np.equal(y, y, out=array(np.zeros(3), "fp16")),
    ):
        with pytest.raises(TypeError, match=r"np\.(add|equal): .*Example: "):
            call()


def test_plain_numbers_are_named_in_how(y):
    assert (
        (y + 1).how
        == (0.1 * y).how.replace("mul", "add")
        == ("add rounded once to fp16, nearest-even; plain numbers rounded to fp16 first")
    )
    assert "plain" not in (y + y).how


# -- comparisons ------------------------------------------------------------------------------------------------------


def test_comparisons_are_of_values():
    """Exact ones: the plain number is not rounded, formats may differ."""
    x = array([0.1, 2.0, np.nan, -0.0], "bf16")
    assert (x == 0.1).tolist() == [False, False, False, False]
    assert (x == 0.10009765625).tolist() == [True, False, False, False]
    assert (x == 0).tolist() == [False, False, False, True]
    assert (x != x).tolist() == [False, False, True, False]
    assert (x < 1).tolist() == [True, False, False, True] and (1 >= x).tolist() == [True, False, False, True]
    assert (x <= array([0.1, 2, 3, 4], "fp16")).tolist() == [False, True, False, True]
    assert (x > [0, 0, 0, 0]).tolist() == [True, True, False, False]
    assert (x == Fraction(2)).tolist() == [False, True, False, False]
    assert (x == None).tolist() == [False] * 4  # noqa: E711
    assert isinstance(x == 1, np.ndarray) and (x == 1).dtype == bool
    assert bool(array(2.0, "bf16") == 2)


def test_membership(y):
    assert 2.0 in y and 0.1 not in y and array(0.1, "fp16") in y and Fraction(2) in y
    assert 3.0 not in array([], "fp16")


def test_membership_in_two_dimensions(matrix):
    assert 2.0 in matrix and 9.0 not in matrix


def test_truth():
    """As an array of NumPy: that of the one element, and refused for several."""
    assert not bool(array([0.0], "fp16")) and not bool(array(0.0, "fp16")) and bool(array([3.0], "fp16"))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(array([1.0, 2.0], "fp16"))


def test_not_hashable(y):
    """Equality is elementwise."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(y)


# -- NumPy's functions ------------------------------------------------------------------------------------------------


def test_ufuncs_that_round_once(y):
    for got, right in (
        (np.add(y, 1), y + 1), (np.subtract(1, y), 1 - y), (np.multiply(y, y), y * y), (np.divide(y, 3), y / 3),
        (np.true_divide(y, 3), y / 3), (np.sqrt(y), numsim.sqrt(y)), (np.negative(y), -y),
        (np.exp(y), numsim.exp(y)), (np.log2(y), numsim.log2(y)), (np.sin(y), numsim.sin(y)),
        (np.square(y), y * y), (np.reciprocal(y), numsim.div(array(1, "fp16"), y)),
    ):  # fmt: skip
        assert same(got, right.values, "fp16") and got.how == right.how
    assert same(np.sqrt(array([2.0, -1.0, -0.0], "bf16")), [1.4140625, np.nan, -0.0], "bf16")
    assert np.equal(y, y).all() and np.less(y, 3).all()


def test_sums(matrix):
    assert same(np.sum(matrix), 15.0, "fp16") and same(matrix.sum(axis=0), [3, 5, 7], "fp16")
    assert same(np.sum(matrix, axis=-1), [3, 12], "fp16")
    assert same(np.cumsum(matrix, axis=1), [[0, 1, 3], [3, 7, 12]], "fp16")
    assert np.sum(matrix).how == "sequential sum in fp16, nearest-even"
    assert same(matrix.sum(accumulator="fp32", order="pairwise"), 15.0, "fp32")
    assert same(np.sum(array(np.ones(4096), "fp16")), 2048.0, "fp16")
    for bad in ({"dtype": np.float32}, {"out": np.zeros(())}):
        with pytest.raises(InputError, match=r"dtype= and out= are not for Arrays\. Example: numsim\.sum"):
            np.sum(matrix, **bad)
    with pytest.raises(InputError, match="axis=2"):
        np.sum(matrix, axis=2)


def test_reductions_of_ufuncs(matrix):
    """As in NumPy over axis 0 where none is named."""
    for got, right in (
        (np.add.reduce(matrix), matrix.sum(axis=0)), (np.add.reduce(matrix, axis=None), matrix.sum()),
        (np.add.accumulate(matrix), matrix.cumsum(axis=0)), (np.maximum.reduce(matrix), matrix.max(axis=0)),
        (np.minimum.reduce(matrix, axis=1, keepdims=True), matrix.min(axis=1, keepdims=True)),
    ):  # fmt: skip
        assert same(got, right.values, "fp16") and got.how == right.how
    assert np.logical_and.reduce(matrix).tolist() == [False, True, True]


def test_several_axes_are_summed_in_the_order_of_the_array():
    x = array([[2048.0, 1.0, 1.0], [-2048.0, 1.0, 1.0]], "fp16")
    for axis in ((0, 1), (1, 0), (-1, -2), None):
        assert same(np.sum(x, axis=axis), 2.0, "fp16")
    cube = array(np.stack([x.values, x.values[::-1]]), "fp16")
    for axis in ((1, 2), (2, 1)):
        assert same(np.sum(cube, axis=axis), [2.0, 4.0], "fp16")
    assert same(np.mean(x, axis=(1, 0), keepdims=True), [[0.333251953125]], "fp16")


def test_matrix_products(matrix, y):
    assert same(matrix @ matrix.T, [[5, 14], [14, 50]], "fp16")
    assert same(np.matmul(matrix, matrix.T), [[5, 14], [14, 50]], "fp16")
    assert same(matrix @ [1, 2, 3], [8, 26], "fp16") and same([1, 2] @ matrix, [6, 9, 12], "fp16")
    assert same(np.ones((1, 2)) @ matrix, [[3, 5, 7]], "fp16")
    assert same(matrix.dot(matrix[0]), [5, 14], "fp16")
    assert (matrix @ y).how == "sequential sum in fp16, products rounded to fp16, nearest-even"
    with pytest.raises(InputError, match=r"matmul: shapes \(2, 3\) and \(2, 3\)"):
        matrix @ matrix


@pytest.mark.parametrize(
    "call",
    [np.prod, np.arctan, lambda x: np.multiply.reduce(x), lambda x: np.subtract.accumulate(x), np.cbrt,
     lambda x: np.add.outer(x, x), lambda x: np.power(x, 2), lambda x: np.add.at(x, [0], 1), lambda x: np.modf(x),
     lambda x: np.hypot(x, x), lambda x: np.floor_divide(x, 2), lambda x: np.add.reduceat(x, [0])],
)  # fmt: skip
def test_refused_ufuncs(call, y):
    with pytest.raises(InputError, match=r"not defined on numsim Arrays: .*Defined are .*x\.values") as error:
        call(y)
    assert isinstance(error.value, TypeError)  # as NumPy and Python expect it


@pytest.mark.parametrize("option", [{"where": [True, False, True]}, {"dtype": np.float32}, {"casting": "unsafe"}])
def test_refused_options_of_ufuncs(option, y):
    with pytest.raises(TypeError, match=r"np\.add takes no (where|dtype|casting)= on Arrays\. Example: n"):
        np.add(y, y, **option)
    assert same(np.add(y, y, where=True), (y + y).values, "fp16")


@pytest.mark.parametrize(
    "call",
    [lambda x: np.dot(x, x), np.mean, np.var, lambda x: np.einsum("i,i", x, x), np.linalg.norm, np.round, np.sort,
     lambda x: np.concatenate([x, x]), lambda x: np.stack([x, x]), lambda x: np.where(x == 1, x, x),
     lambda x: np.inner(x, x)],
)  # fmt: skip
def test_functions_that_are_no_ufuncs_do_not_compute_in_float64(call, y):
    """Either an Array or a refusal."""
    try:
        got = call(y)
    except TypeError as error:
        got = str(error)
    assert isinstance(got, Array) or "numsim" in str(got)


def test_conversion_to_numpy(y):
    """By the protocol of NumPy 1 and 2: float64, a new array each time."""
    values = np.asarray(y)
    assert values.dtype == np.float64 and np.array_equal(values, y.values)
    values[:] = 0
    assert y.values[1] == 2.0
    assert np.asarray(y, np.float32).dtype == np.float32 and np.array(y, copy=True)[1] == 2.0
    assert np.asarray(array(3.0, "fp16")).shape == () and np.asarray(array([], "fp16")).shape == (0,)
    assert np.array_equal(y.__array__(), y.values) and y.__array__(np.float32).dtype == np.float32
    assert y.__array__(dtype=np.float64, copy=True).dtype == np.float64
    with pytest.raises(ValueError, match="always a copy"):
        y.__array__(copy=False)
    if NUMPY_2:
        with pytest.raises(ValueError, match="always a copy"):
            np.asarray(y, copy=False)
    assert np.array_equal(array(y, "bf16").codes, y.astype("bf16").codes)


def test_one_number():
    x = array(0.1, "bf16")
    assert float(x) == 0.10009765625 and x.fraction() == Fraction(205, 2048) and x.ndim == 0 and x.size == 1
    assert math.isclose(x, 0.1, rel_tol=1e-2) and complex(x) == 0.10009765625 + 0j
    for bad in (lambda: len(x), lambda: x[0], lambda: list(x)):
        with pytest.raises((TypeError, IndexError)):
            bad()
    for several in (array([1.0, 2.0], "bf16"), array([], "bf16")):
        with pytest.raises(TypeError):
            float(several)
        with pytest.raises(InputError, match="one code is needed"):
            several.fraction()
    for special in (np.nan, np.inf):
        with pytest.raises(RangeError, match="no exact fraction"):
            array(special, "bf16").fraction()


def test_one_number_of_any_shape():
    for x in (array(2.5, "bf16"), array([2.5], "bf16"), array([[2.5]], "bf16")):
        assert float(x) == x.item() == 2.5 and int(x) == 2 and bool(x)
    assert int(array(-(2.0**70), "fp32")) == -(2**70) and int(array("1e300", "e15m40")) // 10**299 == 9
    assert bool(array(np.nan, "fp16")) and not bool(array(-0.0, "fp16"))
    for convert, call in ((float, r"float\(x\[0\]\)"), (int, r"int\(x\[0\]\)"), (bool, r"np\.any\(x\)")):
        for several in (array([1.0, 2.0], "bf16"), array([], "bf16")):
            with pytest.raises(InputError, match=rf"needs one number.*Example: .*{call}"):
                convert(several)
    with pytest.raises(TypeError):  # as a float, no index
        [1, 2, 3][array(1.0, "fp16")]
    for special in (np.nan, np.inf):
        with pytest.raises(RangeError):
            int(array(special, "fp16"))
    assert (
        array([[0.1, 2.0]], "bf16").tolist() == [[0.10009765625, 2.0]] and array(0.1, "bf16").tolist() == 0.10009765625
    )


# -- indexing, shapes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [0, -1, (1, 2), slice(None, None, -1), (slice(None), 1), ..., (..., 0), None, [1, 0], ([0, 1], [2, 0]),
     np.array([True, False]), np.array([[True, False, True]] * 2), (slice(0, 0), 1), np.int64(1)],
    ids=repr,
)  # fmt: skip
def test_indexing_is_numpys(index, matrix):
    right = matrix.values[index]
    got = matrix[index]
    assert isinstance(got, Array) and got.shape == np.shape(right) and np.array_equal(got.values, right)
    assert got.how == matrix.how


def test_bad_indices(matrix):
    for index in (2, (0, 3), "a", 1.0, (0, 0, 0), matrix):
        with pytest.raises(IndexError):
            matrix[index]


def test_shapes(matrix):
    assert (matrix.shape, matrix.ndim, matrix.size, len(matrix)) == ((2, 3), 2, 6, 2)
    assert matrix.T.shape == (3, 2) and np.array_equal(matrix.T.values, matrix.values.T)
    for shape in (((3, 2),), (3, 2), (-1,), (6,)):
        assert np.array_equal(matrix.reshape(*shape).values, matrix.values.reshape(*shape))
    with pytest.raises(ValueError, match="reshape"):
        matrix.reshape(4, 4)


def test_iteration(matrix, y):
    rows = list(matrix)
    assert [type(r) for r in rows] == [Array, Array] and np.array_equal(rows[1].values, [3, 4, 5])
    assert [float(v) for v in y] == y.values.tolist() and [float(v) for v in reversed(y)] == y.values[::-1].tolist()
    assert list(array([], "fp16")) == []
    first, *rest = y
    assert float(first) == 1.0 and len(rest) == 2


def test_inputs_are_not_modified(y, matrix):
    before = y.codes.copy(), matrix.codes.copy()
    _ = y + 1, y * y, -y, matrix @ y, matrix.sum(), numsim.cumsum(y), y.astype("e4m3"), np.sqrt(y)
    assert np.array_equal(y.codes, before[0]) and np.array_equal(matrix.codes, before[1])
    values = np.array([0.1, 0.2])
    values.flags.writeable = False
    _ = array(values, "bf16") + values
    codes = np.array([1, 2], np.uint16)
    codes.flags.writeable = False
    assert (from_codes(codes, "fp16") + 1).shape == (2,)


def test_strided_and_foreign_byte_order():
    base = np.arange(12.0).reshape(3, 4)
    for view in (
        base[::2, ::-1],
        base.T,
        base.astype(">f8"),
        base.astype(">f4"),
        base.astype(">f2"),
        base.astype(">i4"),
    ):
        assert same(array(view, "fp16"), view.astype(np.float64), "fp16")
        assert same(array(np.ones(view.shape), "fp16") + view, view.astype(np.float64) + 1, "fp16")


# -- negation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", [f for f in numsim.list_formats() if f.signed and f.bits <= 16], ids=str)
def test_negation_of_every_code(format):
    """The sign bit and nothing else; NaN stays as it is; -0 becomes +0 where it does not exist."""
    x = from_codes(np.arange(format.codes, dtype=f"u{format.code_bytes}"), format)
    got = -x
    nan = np.isnan(x.values)
    assert np.array_equal(got.codes[nan], x.codes[nan])
    right = (x.codes ^ x.codes.dtype.type(format.sign_mask))[~nan]
    if format.specials == "fnuz":
        right[x.codes[~nan] == 0] = 0
    assert np.array_equal(got.codes[~nan], right)
    assert np.array_equal(got.values[~nan], -x.values[~nan])


def test_unsigned_formats_have_no_negative_numbers():
    for name in ("e8m0", "ue4m3"):
        x = array([1.0, 2.0], name)
        with pytest.raises(InputError, match=f"{name} is unsigned"):
            np.negative(x)
        with pytest.raises(InputError, match=f"{name} is unsigned"):
            _ = -x
        assert np.isnan((x - 4).values).all()
    assert same(array([1.0], "ue4m3") - 1, [0.0], "ue4m3")
    assert same(numsim.sub(array([1.0], "ue4m3"), 2, format="e2m1"), [-1.0], "e2m1")


# -- repr -------------------------------------------------------------------------------------------------------------


def test_repr_tells_the_truth(y):
    """Enough digits to name each value, as Python writes floats; NumPy's settings do not change that."""
    assert repr(array([1.1015625, 3.0], "bf16")) == "numsim.array([1.1015625, 3.0], 'bf16')"
    assert repr(array(0.1, "bf16")) == "numsim.array(0.10009765625, 'bf16')"
    assert repr(array([np.nan, np.inf, -np.inf, -0.0], "fp16")) == "numsim.array([nan, inf, -inf, -0.0], 'fp16')"
    assert repr(array([], "fp16")) == "numsim.array([], 'fp16')"
    assert repr(array([2.0**-24, 1e4], "fp16")) == "numsim.array([5.960464477539063e-08, 10000.0], 'fp16')"
    with np.printoptions(precision=2, suppress=True):
        assert repr(y) == "numsim.array([1.0, 2.0, 0.0999755859375], 'fp16')"
    assert str(y) == repr(y)


def test_repr_of_many_numbers():
    text = repr(array(np.arange(30) / 7, "fp16"))
    lines = text.splitlines()
    assert len(lines) > 1 and all(line.startswith(" " * 7) for line in lines[1:])  # under the first number
    assert max(map(len, lines[:-1])) < 80, text
    assert ", ..., " in repr(array(np.arange(200), "fp16"))
    assert repr(array(np.eye(2), "fp16")) == "numsim.array([[1.0, 0.0],\n       [0.0, 1.0]], 'fp16')"


@pytest.mark.parametrize(
    "name", ["fp64", "fp32", "tf32", "fp16", "bf16", "e4m3fn", "e5m2fnuz", "e2m1", "e8m0", "e10m30"]
)
def test_repr_names_every_value(name):
    """The numbers in it, read back with Python's float, are the values."""
    format = numsim.get_format(name)
    codes = np.random.default_rng(1).integers(0, format.codes, 60, dtype=np.uint64).astype(f"u{format.code_bytes}")
    x = from_codes(codes, name)
    again = eval(repr(x), {"numsim": numsim, "nan": np.nan, "inf": np.inf})
    assert again.format == x.format and np.array_equal(again.codes, x.codes)


def test_repr_can_be_read_back(y, matrix):
    names = {"numsim": numsim, "nan": np.nan, "inf": np.inf}
    for x in (y, matrix, array(0.1, "bf16"), array([np.nan, -np.inf, -0.0], "e5m2"), array(np.zeros((0, 3)), "fp16")):
        again = eval(repr(x), names)
        assert again.format == x.format and np.array_equal(again.codes, x.codes) and again.shape == x.shape


def test_long_texts_are_shortened():
    """And say so: "..." stands for the rest, whatever shows it."""
    for x in (array(np.arange(200) % 7, "fp16"), from_codes(np.full(200, 0x7E01, np.uint16), "fp16"),
              array(["1/3"] * 200, "e12m40"), array(np.ones((15, 15)), "fp16")):  # fmt: skip
        text = repr(x)
        assert ("..., " in text or "...,\n" in text) and len(text) < 800
    assert "..." not in repr(array(np.arange(100), "fp16"))


def test_repr_of_formats_without_a_name():
    mine = numsim.Format("mine", 4, 2, 9, specials="fn", title="t", source="s")
    for x in (array([0.5, np.nan], mine), array(1.0, numsim.Format("fp16", 5, 10, 16)), array(np.zeros((0, 2)), mine)):
        again = eval(repr(x), {"numsim": numsim, "nan": np.nan})
        assert again.format == x.format and np.array_equal(again.codes, x.codes) and again.shape == x.shape
    x = from_codes(np.zeros((2, 0), np.uint64), "e12m40")
    assert eval(repr(x), {"numsim": numsim}).shape == (2, 0)


def test_format_strings(y):
    assert f"{array(0.1, 'bf16'):.3g}" == "0.1" and f"{array(0.1, 'bf16'):10.4f}|" == "    0.1001|"
    assert f"{array(np.nan, 'fp16'):.1f} {array(-0.0, 'fp16'):.1f} {array(-np.inf, 'fp16'):e}" == "nan -0.0 -inf"
    assert f"{y:.3g}" == "[1, 2, 0.1]" and f"{y}" == str(y) and f"{array([], 'fp16'):.2f}" == "[]"
    assert f"{array([[1.0, 2.0], [3.0, 4.0]], 'fp16'):.1f}" == "[[1.0, 2.0],\n [3.0, 4.0]]"
    assert "..." in f"{array(np.arange(200), 'fp16'):.0f}"
    with pytest.raises(ValueError, match="format"):
        f"{y:.3d}"


def test_html():
    html = array([[0.1, np.nan], [-0.0, 300.0]], "e4m3")._repr_html_()
    for part in ("0.1015625<br>", "0x1d<", ">nan<br>", "0x7f<", "-0.0<br>", "0x80<", "e4m3fn, 2 x 2: rounded once"):
        assert part in html, part
    assert html.count("<tr>") == 2 and html.count("<td") == 4 and "<script" not in html and "color:#" not in html
    long = array(np.zeros((50, 50)), "fp16")._repr_html_()
    assert long.count("<tr>") == 9 and long.count("<td") == 81 and long.count("...<") == 17
    assert "<pre>" in array(np.zeros((1, 1, 1)), "fp16")._repr_html_()
    assert "<pre" in array(0.1, "fp16")._repr_html_()
    evil = Array(np.array([1], np.uint8), numsim.Format("<b>", 4, 2, 9), how="<script>")
    assert "<script>" not in evil._repr_html_() and "<b>" not in evil._repr_html_()
    assert "<b>" not in evil.reshape(1, 1, 1)._repr_html_()
    assert ">-<br>" in array(["1e400"], "e15m40")._repr_html_()


def test_the_constructor_checks():
    for bad in (([1.5], "fp16"), (np.array([1.5]), numsim.FP16), (np.array([1], np.int64), numsim.FP16)):
        with pytest.raises(NumsimError):
            Array(*bad)


# -- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol, matrix):
    for x in (matrix, array(0.1, "bf16"), array([1.0], numsim.Format("mine", 4, 2, 9))):
        again = pickle.loads(pickle.dumps(x, protocol))
        assert np.array_equal(again.codes, x.codes) and again.format == x.format and again.how == x.how
        assert again.codes.shape == x.codes.shape


def test_copies(matrix):
    for duplicate in (copy.copy, copy.deepcopy):
        again = duplicate(matrix)
        assert np.array_equal(again.codes, matrix.codes) and again.format == matrix.format and again.how == matrix.how
    again = copy.deepcopy(matrix)
    again.codes[0, 0] = 1
    assert matrix.codes[0, 0] == 0


def test_copies_are_copies(matrix):
    """Also of views, and of what other Arrays share: nothing is written through."""
    for duplicate in (copy.copy, copy.deepcopy, Array.copy, np.copy, lambda x: pickle.loads(pickle.dumps(x))):
        again = duplicate(matrix.T)
        again[0, 0] = 7.0
        assert float(matrix[0, 0]) == 0.0 and float(again[0, 0]) == 7.0


def test_pickle_is_checked(matrix):
    """What comes out of a pickle has been through the constructor: no codes out of range, no unknown format."""
    function, arguments = matrix.__reduce__()
    assert function is Array and arguments[1:] == ("fp16", matrix.how)
    for codes, format in ((np.array([1.5]), "fp16"), (np.array([99], np.uint8), "e2m1"), (arguments[0], "fp17")):
        with pytest.raises(NumsimError):
            function(codes, format, "")
    mine = numsim.Format("fp16", 5, 10, 16)
    again = pickle.loads(pickle.dumps(array([3.0], mine)))
    assert again.format == mine and again.format != numsim.FP16


def test_attributes_are_fixed(y):
    with pytest.raises(AttributeError):
        y.value = 1  # a typing mistake for values


# -- refusals of functions --------------------------------------------------------------------------------------------


def test_functions_take_arrays():
    with pytest.raises(InputError, match=r"add: no operand is a numsim Array\. Example: numsim\.array"):
        numsim.add(1, 2)
    for function in (numsim.sum, numsim.cumsum):
        with pytest.raises(InputError, match=r"takes an Array, not list\. Example: numsim\.(cum)?sum\(numsim\.array"):
            function([1.0, 2.0])
    for function in (numsim.dot, numsim.matmul):
        with pytest.raises(InputError, match="no operand is a numsim Array"):
            function([1.0], [1.0])
    with pytest.raises(TypeError):
        numsim.add(array(1.0, "fp16"), 1, axis=0)
