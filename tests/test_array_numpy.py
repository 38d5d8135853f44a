"""NumPy's functions on Arrays. For whatever only moves elements, NumPy's own work on the codes is the oracle."""

import inspect

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numsim
from numsim import Array, array, array_protocols, from_codes
from numsim.errors import InputError, NumsimError

NUMPY_2 = int(np.__version__.split(".")[0]) >= 2
quick = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def codes_of(result):
    """Codes in place of Arrays; whatever is an ndarray of codes instead is a mistake of the protocol."""
    if isinstance(result, (list, tuple)):
        return [codes_of(part) for part in result]
    assert isinstance(result, Array), type(result)
    return result.codes


def check(function, x, *args, **kwargs):
    """The function on an Array does what it does on the codes: elements, shapes, and views where it gives views."""
    got = codes_of(function(x, *args, **kwargs))
    right = function(x.codes, *args, **kwargs)
    right = list(right) if isinstance(right, (list, tuple)) else [right]
    got = got if isinstance(got, list) else [got]
    assert len(got) == len(right)
    for a, b in zip(got, right, strict=True):
        assert a.dtype == b.dtype and np.shape(a) == np.shape(b) and np.array_equal(a, b)
        assert np.shares_memory(a, x.codes) == np.shares_memory(b, x.codes)


FORMATS = ["fp16", "e4m3", "e2m1", "tf32", "e8m0", "fp64", numsim.Format("mine", 4, 2, 9)]


@st.composite
def some_arrays(draw, min_dims=0, max_dims=3, formats=FORMATS):
    format = numsim.get_format(draw(st.sampled_from(formats)))
    shape = draw(hnp.array_shapes(min_dims=min_dims, max_dims=max_dims, min_side=0, max_side=4))
    codes = draw(hnp.arrays(f"u{format.code_bytes}", shape, elements=st.integers(0, format.codes - 1)))
    return from_codes(codes, format)


# -- moving: what NumPy does with the codes ----------------------------------------------------------------------------


@quick
@given(some_arrays())
def test_shapes(x):
    for function in (
        np.ravel, np.transpose, np.squeeze, np.copy, np.atleast_1d, np.atleast_2d, np.atleast_3d, np.zeros_like,
    ):  # fmt: skip
        check(function, x)
    check(np.reshape, x, -1) if x.size else None
    check(np.expand_dims, x, 0)
    check(np.broadcast_to, x, (2, *x.shape))
    check(np.repeat, x, 2)
    check(np.tile, x, (2, 1))
    check(np.resize, x, (3,)) if x.size else None
    for a, b in ((x.ravel(), x.codes.ravel()), (x.T, x.codes.T), (x.transpose(), x.codes.transpose()),
                 (x.squeeze(), x.codes.squeeze())):  # fmt: skip
        assert np.array_equal(a.codes, b) and np.shares_memory(a.codes, x.codes) == np.shares_memory(b, x.codes)
    for duplicate in (x.copy(), x.flatten(), np.copy(x)):
        assert not np.shares_memory(duplicate.codes, x.codes) and duplicate.how == x.how


@quick
@given(some_arrays(min_dims=2, max_dims=3), st.data())
def test_axes(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    other = data.draw(st.integers(0, x.ndim - 1))
    check(np.swapaxes, x, axis, other)
    check(np.moveaxis, x, axis, other)
    check(np.flip, x, axis)
    check(np.roll, x, 2, axis)
    check(np.rot90, x)
    check(np.flipud, x)
    check(np.fliplr, x)
    check(np.diagonal, x)
    check(np.tril, x)
    check(np.triu, x)
    check(np.delete, x, slice(0, 1), axis)
    check(np.array_split, x, 2, axis)
    check(np.split, x, [1], axis)
    check(np.vsplit, x, [1])
    check(np.hsplit, x, [1])
    n = x.shape[axis]
    places = data.draw(st.lists(st.integers(0, n - 1), max_size=3)) if n else []
    check(np.take, x, np.array(places, int), axis)
    check(
        np.take_along_axis, x, np.zeros([1 if i == axis % x.ndim else m for i, m in enumerate(x.shape)], int), axis
    ) if n else None
    if NUMPY_2:
        check(np.matrix_transpose, x)
        check(np.permute_dims, x)
    assert np.array_equal(x.swapaxes(axis, other).codes, x.codes.swapaxes(axis, other))
    assert np.array_equal(x.take(places, axis).codes, x.codes.take(places, axis))
    assert np.array_equal(x.repeat(2, axis).codes, x.codes.repeat(2, axis))


@quick
@given(some_arrays(min_dims=1, max_dims=2), st.data())
def test_several_at_once(x, data):
    y = from_codes(data.draw(st.permutations(list(x.codes))) if x.size else x.codes, x.format)
    pair = (x.codes, y.codes)
    for function in (np.concatenate, np.stack, np.hstack, np.vstack, np.dstack, np.column_stack):
        got = function([x, y])
        assert isinstance(got, Array) and got.format == x.format and np.array_equal(got.codes, function(pair)), function
    assert np.array_equal(np.block([[x, y], [y, x]]).codes, np.block([[pair[0], pair[1]], [pair[1], pair[0]]]))
    mask = data.draw(hnp.arrays(bool, x.shape))
    assert np.array_equal(np.where(mask, x, y).codes, np.where(mask, *pair))
    assert np.array_equal(np.extract(mask, x).codes, np.extract(mask, x.codes))
    assert np.array_equal(np.append(x, y, 0).codes, np.append(*pair, 0))
    assert np.array_equal(np.insert(x, 0, y[:1], 0).codes, np.insert(x.codes, 0, y.codes[:1], 0))
    for a, b in zip(np.broadcast_arrays(x, y[:1]), np.broadcast_arrays(x.codes, y.codes[:1]), strict=True):
        assert np.array_equal(a.codes, b)
    out = x.copy()
    assert np.concatenate([x[:0], y], out=out) is out and np.array_equal(out.codes, y.codes)


@quick
@given(some_arrays(max_dims=3), st.data())
def test_indexing(x, data):
    """Basic indices give views, the others copies; assignment writes what NumPy would write into the codes."""
    index = data.draw(
        hnp.basic_indices(x.shape, allow_newaxis=True)
        | hnp.arrays(bool, x.shape)
        | (hnp.integer_array_indices(x.shape) if all(x.shape) and x.ndim else st.just(...))
    )
    right = x.codes[index]
    got = x[index]
    assert np.array_equal(got.codes, right) and got.shape == np.shape(right)
    if isinstance(right, np.ndarray):
        assert np.shares_memory(got.codes, x.codes) == np.shares_memory(right, x.codes)
    one = data.draw(st.integers(0, x.format.codes - 1))
    changed, codes = x.copy(), x.codes.copy()
    changed[index] = from_codes(one, x.format)
    codes[index] = one
    assert np.array_equal(changed.codes, codes) and changed.how.endswith(", then elements assigned")


def test_every_function_that_moves_is_tested_above():
    source = inspect.getsource(inspect.getmodule(test_shapes))
    known = {name for name in array_protocols._MOVES | array_protocols._WRITES if hasattr(np, name)}
    assert not sorted(name for name in known if f"np.{name}" not in source)


def test_the_rest_that_moves():
    x = array([[1.0, -0.0, np.nan], [4.0, 5.0, 6.0]], "fp16")
    check(np.dsplit, x.reshape(1, 2, 3), [1])
    check(np.diag, x[0])
    check(np.diag, x)
    check(np.diagflat, x)
    check(np.rollaxis, x, 1)
    check(np.meshgrid, x[0])
    assert np.array_equal(np.compress([True, False, True], x, axis=1).codes, x.codes[:, ::2])
    if hasattr(np, "unstack"):
        check(np.unstack, x)
    for mode in ("constant", "edge", "reflect", "symmetric", "wrap"):
        check(np.pad, x, 1, mode)
    assert np.array_equal(np.pad(x, 1, constant_values=0.1).codes, np.pad(x.codes, 1, constant_values=0x2E66))
    assert (
        np.full_like(x, 0.1).codes.tolist() == [[0x2E66] * 3] * 2 and np.ones_like(x).values.tolist() == [[1] * 3] * 2
    )
    for mode in ("mean", "linear_ramp", "maximum", "empty"):
        with pytest.raises(TypeError, match=r"np\.pad is not defined"):
            np.pad(x, 1, mode)


def test_writing():
    codes = np.arange(6, dtype=np.uint16).reshape(2, 3)
    half = 0x3800
    for write in (
        lambda x, v: np.copyto(x, v), lambda x, v: np.copyto(x, v, where=[True, False, True]),
        lambda x, v: np.put(x, [0, 4], v), lambda x, v: np.place(x, np.eye(2, 3, dtype=bool), [v]),
        lambda x, v: np.putmask(x, np.eye(2, 3, dtype=bool), v), lambda x, v: np.fill_diagonal(x, v),
        lambda x, v: np.put_along_axis(x, np.array([[1], [2]]), v, 1),
    ):  # fmt: skip
        x, right = from_codes(codes, "fp16"), codes.copy()
        assert write(x, 0.5) is None
        write(right, half)
        assert np.array_equal(x.codes, right) and x.how == "codes given, then elements assigned"
    with pytest.raises(TypeError, match="what is written to must be an Array"):
        np.copyto(np.zeros(3), from_codes(codes[0], "fp16"))


# -- plain numbers, mixtures, refusals ---------------------------------------------------------------------------------


def test_plain_numbers_are_rounded_once_and_named():
    x = array([1.0, 2.0], "e4m3")
    for got, right in (
        (np.concatenate([x, [0.1, 449.0]]), [1, 2, 0.1015625, 448]),
        (np.where([True, False], x, 0.1), [1, 0.1015625]),
        (np.where([True, False], 0.1, x), [0.1015625, 2]),
        (np.append(x, 0.1), [1, 2, 0.1015625]), (np.insert(x, 1, 0.1), [1, 0.1015625, 2]),
        (np.clip(x, 1.1, 1.9), [1.125, 1.875]), (np.maximum(x, 1.1), [1.125, 2]),
    ):  # fmt: skip
        assert got.values.tolist() == right and got.format is x.format
        assert got.how.endswith("; plain numbers rounded to e4m3fn first")
    assert np.concatenate([x, x]).how == x.how and np.concatenate([x, x + 1]).how == "np.concatenate"


@pytest.mark.parametrize(
    "call",
    [lambda x, y: np.concatenate([x, y]), lambda x, y: np.where([True, False], x, y), lambda x, y: np.stack([x, y]),
     lambda x, y: np.append(x, y), lambda x, y: np.maximum(x, y), lambda x, y: np.copyto(x, y),
     lambda x, y: np.fmin(x, y), lambda x, y: x + y, lambda x, y: x @ y, lambda x, y: np.concatenate([x], out=y)],
)  # fmt: skip
def test_mixed_formats_are_refused_with_calls_that_work(call):
    x, y = array([1.0, 2.0], "bf16"), array([1.0, 2.0], "fp16")
    with pytest.raises(InputError, match=r"operands have formats bf16 and fp16; which one .* Example: ") as error:
        call(x, y)
    example = str(error.value).partition("Example: ")[2]
    if "(...)" not in example:
        for source in example.split(", or "):
            assert isinstance(eval(source, {"np": np, "numsim": numsim, "x": x, "y": y}), Array), source


def test_assignment_rounds_once_or_refuses():
    x = array([1.0, 2.0, 3.0], "bf16")
    view = x[1:]
    x[0] = 0.1
    x[1:] = ["1/3", 2**70]
    assert x.codes.tolist() == [numsim.encode(v, "bf16") for v in (0.1, "1/3", 2**70)]
    assert np.shares_memory(view.codes, x.codes) and view.values[1] == 2.0**70
    x[::-1] = x
    assert float(x[2]) == 0.10009765625
    x[x > 1] = np.nan
    assert np.isnan(x).tolist() == [True, False, False]
    with pytest.raises(InputError, match=r"fp16 into an Array of bf16.*Example: x\[i\] = y\.astype\(x\.format\)"):
        x[0] = array(1.0, "fp16")
    with pytest.raises(InputError, match=r"read-only view\. Example: x = x\.copy\(\)"):
        np.broadcast_to(x, (2, 3))[0] = 1.0
    with pytest.raises(InputError, match="is no number"):
        x[0] = "one"
    with pytest.raises(InputError, match="NaN has no code in e2m1"):
        array([1.0], "e2m1")[...] = np.nan
    with pytest.raises(ValueError, match="broadcast"):
        x[:2] = [1, 2, 3]
    with pytest.raises(IndexError):
        x[3] = 1.0


def test_refusals_name_a_call_that_works():
    x, y = array([1.0, 2.0], "bf16"), array([3.0, 4.0], "bf16")
    names = {"np": np, "numsim": numsim, "x": x, "y": y}
    for name, instead in array_protocols._INSTEAD.items():
        function = getattr(np, name, None) or getattr(np.linalg, name, None)
        if "save" in name or function is None:  # an older NumPy has no matvec and vecmat
            continue
        args = {"einsum": ("i,i", x, y), "tensordot": (x, y, 1), "select": ([x > 0], [x])}.get(name)
        calls = [args] if args else [(x, y), (x,)]
        refused = False
        for call in calls:
            try:
                function(*call)
            except NumsimError as error:
                refused = f"Instead: {instead}. " in str(error)
            except TypeError:
                continue
        assert refused, name
        if "assert" in instead:
            with pytest.raises(AssertionError):
                eval(instead, names)
        else:
            assert isinstance(eval(instead, names), (Array, np.ndarray)), instead


@pytest.mark.parametrize(
    "call",
    [lambda x: np.where(x, x, x), lambda x: np.compress(x, [1, 2, 3]),
     lambda x: np.take(x, x), lambda x: np.repeat(x, x), lambda x: np.reshape(x, x)],
)  # fmt: skip
def test_an_array_is_no_index(call):
    with pytest.raises((TypeError, IndexError), match=r"an Array is no index|not defined on numsim Arrays"):
        call(array([1.0, 0.0, 1.0], "fp16"))


@pytest.mark.parametrize("option", [{"dtype": np.float32}, {"dtype": np.uint16, "casting": "unsafe"}])
def test_no_dtype(option):
    x = array([1.0], "fp16")
    with pytest.raises(TypeError, match="takes no dtype= and casting="):
        np.concatenate([x, x], **option)
