"""Every ufunc and every function of NumPy on Arrays: defined, with the bits of NumPy's own numbers, or refused."""

import math

import numpy as np
import pytest

import numsim
from numsim import Array, array, from_codes
from numsim.errors import UndefinedError
from numsim.testing import assert_bits_equal, boundary_codes

UFUNCS = sorted({u for u in vars(np).values() if isinstance(u, np.ufunc)}, key=str)
X = from_codes(boundary_codes("fp16"), "fp16")
HALF = {  # exact, or float16's own rounding: computed in float32, which is innocuous
    "absolute", "fabs", "negative", "positive", "sign", "rint", "trunc", "floor", "ceil", "sqrt", "square",
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "fmax", "fmin", "copysign", "nextafter",
    "fmod", "remainder", "reciprocal", "frexp", "isnan", "isinf", "isfinite", "signbit", "logical_not",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor",
}  # fmt: skip
DOUBLE = {"exp", "exp2", "log", "log2", "tanh", "sin", "cos"}  # float64's last bits do not reach float16
OTHERS = {"matmul", "ldexp", "spacing"}  # tested below
METHODS = {("add", "reduce"), ("add", "accumulate"), ("maximum", "reduce"), ("minimum", "reduce"),
           ("logical_and", "reduce"), ("logical_or", "reduce")}  # fmt: skip


def halves(x):
    return x.codes.view(np.float16)


@pytest.mark.parametrize("ufunc", UFUNCS, ids=str)
def test_every_ufunc(ufunc):
    name = ufunc.__name__
    operands = (X,) if ufunc.nin == 1 else (X[:, None], X)
    if name in HALF | DOUBLE:
        right = [x.values if name in DOUBLE else halves(x) for x in operands]
        with np.errstate(all="ignore"):
            expected = ufunc(*right)
        pairs = [(ufunc(*operands), expected)] if ufunc.nout == 1 else zip(ufunc(*operands), expected, strict=True)
        for got, wanted in pairs:
            if isinstance(got, np.ndarray):
                assert got.dtype == wanted.dtype and np.array_equal(got, wanted)
                continue
            wanted = array(wanted, "fp16")  # float64's results rounded
            either = ("maximum", "minimum", "fmax", "fmin", "nextafter")  # of two zeros NumPy takes one or the other
            assert_bits_equal(got, wanted, nan="mask", zero_sign=name not in either)
    elif name not in OTHERS and not hasattr(numsim, name):
        with pytest.raises(UndefinedError, match=rf"np\.{name} is not defined on numsim Arrays"):
            ufunc(*(x[:3] for x in operands))
    for method in ("reduce", "accumulate", "outer", "at", "reduceat"):
        args = {"outer": (X, X), "at": (X.copy(), [0], *[1.0] * (ufunc.nin - 1)), "reduceat": (X, [0])}
        if (name, method) not in METHODS:
            with pytest.raises((UndefinedError, ValueError, TypeError, RuntimeError)):  # the others are NumPy's own
                getattr(ufunc, method)(*args.get(method, (X,)))


def test_the_table_is_whole():
    names = {u.__name__ for u in UFUNCS}
    assert not (HALF | DOUBLE | OTHERS) - names


def test_plain_numbers_and_out():
    x = array([1.5, -2.0, 3.0], "bf16")
    for ufunc in (np.fmod, np.remainder, np.nextafter):
        for args in ((x, 2.0), (2.0, x)):
            out, right = x.copy(), ufunc(*(np.float64(a) if a is not x else x.values for a in args))
            assert ufunc(*args, out=out) is out and out.format is x.format
            if ufunc is not np.nextafter:
                assert out.values.tolist() == right.tolist()
    assert (x % 2).values.tolist() == [1.5, 0.0, 1.0]
    assert np.nextafter(array([448.0, 1.0], "e4m3"), np.inf).values.tolist() == [448.0, 1.125]  # no infinity to reach
    for call in (lambda: divmod(x, x), lambda: x // x, lambda: x**2):
        with pytest.raises(UndefinedError, match="Instead: "):
            call()
    with pytest.raises(UndefinedError, match="takes no out="):
        np.frexp(x, out=(x.copy(), np.zeros(3, np.int32)))
    for ufunc in (np.fmod, np.remainder, np.nextafter):
        with pytest.raises(numsim.InputError, match=r"Example: .*x\.astype\(y\.format\)"):
            ufunc(x, array(1.0, "fp16"))


@pytest.mark.parametrize("name", ["e4m3", "e2m1", "e4m3fnuz", "binary6p3se"])
def test_remainders_in_small_formats(name):
    """Against NumPy's float64, exact there but for one addition; formats that lack what is needed refuse."""
    format = numsim.get_format(name)
    codes = np.arange(format.codes).astype(np.uint8)
    x = from_codes(codes[np.isfinite(numsim.decode(codes, format))], format)
    x, y = x[:, None], x[x != 0]
    assert_bits_equal(np.fmod(x, y), array(np.fmod(x.values, y.values), format))
    assert_bits_equal(x % y, array(x.values % y.values, format))
    if name != "e2m1":
        f, e = np.frexp(x)
        assert np.array_equal(np.ldexp(f, e).codes, x.codes)
    with pytest.raises(UndefinedError, match="e2m1 does not hold"):
        np.frexp(array([1.0], "e2m1"))
    for lacking in (numsim.UE4M3, numsim.Format("no_subnormals", 4, 3, 7, specials="fn", subnormals=False)):
        with pytest.raises(UndefinedError, match="lacks"):
            np.fmod(array(3.0, lacking), 2.0)


@pytest.mark.parametrize(
    "format", ["e8m0", "e2m1", "e4m3fnuz", numsim.Format("gap", 3, 2, 3, subnormals=False)], ids=str
)
def test_sign_spacing_and_neighbours_of_odd_formats(format):
    format = numsim.get_format(format)
    x = from_codes(np.arange(format.codes).astype(np.uint8), format)
    finite = x[np.isfinite(x)]
    assert np.sign(finite).values.tolist() == np.sign(finite.values).tolist()
    ulps = [math.copysign(float(numsim.ulp(c, format)), v) if v else float(numsim.ulp(c, format))
            for c, v in zip(finite.codes, finite.values, strict=True)]  # fmt: skip
    assert_bits_equal(np.spacing(finite), array(ulps, format))
    assert_bits_equal(np.nextafter(finite, 2.0**200), numsim.next_up(finite))
    assert np.array_equal(np.nextafter(finite, finite).codes, finite.codes)


def test_spacing_of_wide_formats():
    """NumPy's, but for the largest number, where it says inf; its float16 loses the sign."""
    for name, dtype in (("fp32", np.float32), ("fp64", np.float64)):
        codes = boundary_codes(name)
        x = from_codes(codes[np.abs(codes.view(dtype)) < np.finfo(dtype).max], name)
        assert_bits_equal(np.spacing(x), np.spacing(x.codes.view(dtype)))
        assert np.isnan(np.spacing(array([np.inf, -np.inf, np.nan], name))).all()


def test_other_functions():
    x = array([[-0.5, 1.5, 2.5], [np.nan, 4.0, -0.0]], "fp16")
    h = halves(x)
    for got, right in (
        (np.round(x), np.round(h)), (np.around(x), np.round(h)), (np.fix(x), np.trunc(h)),
        (np.clip(x, 0.5, 2), np.clip(h, 0.5, 2)), (np.clip(x, None, 2), np.minimum(h, 2)),
        (np.clip(x, a_min=1, a_max=None), np.maximum(h, 1)), (np.clip(x, min=1, max=2), np.minimum(np.maximum(h, 1), 2))
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else (x, h),
        (np.ldexp(x, [1, -30, 2]), np.ldexp(h, [1, -30, 2])),
        (array([[1, 2], [3, 4]], "fp16") @ array([5, 6], "fp16"), np.float16([17, 39])),
    ):  # fmt: skip
        assert_bits_equal(got, right.astype(np.float16), nan="mask")
    y = array([3.0, 4.0], "fp16")
    assert float(np.linalg.norm(y)) == 5 and np.linalg.norm(y).how == numsim.norm(y).how
    assert np.linalg.norm(array([[3, 4], [6, 8]], "fp16"), axis=1).values.tolist() == [5, 10]
    assert float(np.linalg.norm(array([[1, 1], [1, 1]], "fp16"))) == 2
    for call in (
        lambda: np.linalg.norm(y, 1), lambda: np.linalg.norm(y, axis=(0,)), lambda: np.linalg.norm(x, 2),
        lambda: np.linalg.norm(y, keepdims=True), lambda: np.round(y, 2), lambda: np.clip(y, 0, 1, y),
        lambda: np.linalg.norm(y, keepdims=np.array([0, 1])), lambda: np.round(y, np.array([0, 1])),
    ):  # fmt: skip
        with pytest.raises(UndefinedError, match="Example: "):
            call()


# --- functions --------------------------------------------------------------------------------------------------------
FUNCTIONS = [  # whatever NumPy sends through __array_function__
    pytest.param(f, id=f"{room.__name__}.{name}")
    for room in (np, np.linalg, np.fft)
    for name, f in sorted(vars(room).items())
    if type(f).__name__ == "_ArrayFunctionDispatcher" or hasattr(f, "__wrapped__")
]
TEXT = ("array2string", "array_repr", "array_str", "printoptions", "errstate", "_no_nep50_warning")
M = array([[1.0, 2.0], [0.1, -3.0]], "bf16")
MASK = [[True, False], [False, True]]
CALLS = {  # of functions that take something else
    "apply_over_axes": [(np.sum, M, [0])], "insert": [(M, 0, 1.0)], "place": [(M.copy(), MASK, [1.0])],
    "putmask": [(M.copy(), MASK, 1.0)], "put_along_axis": [(M.copy(), np.array([[0], [1]]), 1.0, 1)],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy 1.26 has names that NumPy 2 dropped
@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_function_decodes_out_of_sight(function):
    """Each function gives Arrays, integers or truth values, or refuses in numsim's words; never floats."""
    if function.__name__ in TEXT:
        return
    outcomes = set()
    for args in CALLS.get(function.__name__, [(M,), (M, M), (M, 1), (M, [0], M)]):
        try:
            got = function(*args)
        except UndefinedError:
            outcomes.add("refused")
        except (TypeError, ValueError, IndexError, AttributeError):  # NumPy's own: a wrong number of arguments
            continue
        else:
            outcomes.add("defined")
            for part in got if isinstance(got, (list, tuple)) else [got]:
                assert part is None or isinstance(part, (Array, bool, int)) or part.dtype.kind in "bi", part
    assert outcomes  # some call came as far as numsim
