"""``quantize``: codes, scales and values against the oracle, every shape and kind of input."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numsim
from numsim.blocks import get_block_format, quantize
from numsim.blocks.formats import list_block_formats
from numsim.blocks.rules import RULES
from numsim.errors import InputError
from tests.blocks import oracle

KNOWN = {*oracle.KEEPS_NAN, "te", "current", "current-pow2", "absmax", "absmax-127", "nvfp4"}
FORMATS = [f for f in list_block_formats() if f.rule in KNOWN]
NAN, INF = np.nan, np.inf


def blocks_of(shape, format, axis=-1):
    """Every block as a list of index tuples, with the index of its scale: loops, no reshapes."""
    if format.block is None:
        yield (), list(np.ndindex(*shape))
    elif len(format.block) == 1:
        axis %= len(shape)
        size = format.block[0] or max(shape[axis], 1)
        counts = [n // size if i == axis else n for i, n in enumerate(shape)]
        for at in np.ndindex(*counts):
            yield at, [(*at[:axis], at[axis] * size + i, *at[axis + 1 :]) for i in range(size)]
    else:
        rows, columns = format.block
        for at in np.ndindex(*shape[:-2], shape[-2] // rows, shape[-1] // columns):
            corner = at[-2] * rows, at[-1] * columns
            steps = itertools.product(range(rows), range(columns))
            yield at, [(*at[:-2], corner[0] + i, corner[1] + j) for i, j in steps]


def expected(x, format, axis=-1):
    """Codes, codes of scales and the tensor's scale, by the oracle."""
    element = oracle.ELEMENTS[format.element.name]
    tensor = back = 1.0
    if format.has_tensor_scale:
        tensor, back = oracle.tensor_scale(oracle.amax_of(map(float, x.reshape(-1)), False))
    codes, scales = np.empty(x.shape, int), {}
    for at, indices in blocks_of(x.shape, format, axis):
        numbers = [float(x[i]) for i in indices]
        block, scales[at] = oracle.quantize(numbers, format.rule, element, tensor)
        for i, code in zip(indices, block, strict=True):
            codes[i] = code
    return codes, scales, back


def check(x, format, axis=-1, **options):
    got = quantize(x, format, axis=axis, **options)
    codes, scales, back = expected(np.asarray(x, np.float32), got.format, axis)
    np.testing.assert_array_equal(got.codes, codes)
    assert {at: int(got.scales.codes[at]) for at in np.ndindex(*got.scales.shape)} == scales
    assert oracle.bits(got.tensor_scale) == oracle.bits(back)
    element = oracle.ELEMENTS[got.format.element.name]
    values = np.array([oracle.decode(c, element) for c in got.codes.reshape(-1).tolist()]).reshape(got.shape)
    stored = np.asarray(numsim.decode(got.scales.codes, got.format.scale), float)
    scales = np.empty(got.shape)
    for at, indices in blocks_of(got.shape, got.format, axis):
        for i in indices:
            scales[i] = stored[at] * got.tensor_scale
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got.values, values * scales)
    return got


def hard_numbers(size, seed):
    """Blocks of many sizes: normal numbers in many binades, a few of any bits, zeros of both signs, ties."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(size) * 2.0 ** rng.integers(-9, 9, size)
    x = np.where(rng.random(size) < 0.2, np.round(x), x).astype(np.float32)
    x[rng.random(size) < 0.05] = 0
    x[rng.random(size) < 0.05] = np.float32(-0.0)
    any_bits = rng.integers(0, 1 << 32, size, dtype=np.uint32).view(np.float32)
    return np.where((rng.random(size) < 0.004) & np.isfinite(any_bits), any_bits, x)


def shape_for(format):
    if format.block is None:
        return (3, 40)
    if len(format.block) == 2:
        return tuple(b * n for b, n in zip(format.block, (1, 2) if format.block[0] > 99 else (2, 3), strict=True))
    return (8, 2 * (format.block[0] or 20))


@pytest.mark.parametrize("which", ["reference", "kernel"])
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_every_format_against_the_oracle(format, which):
    if which == "kernel" and numsim.kernels.why_not():
        pytest.skip("no kernels here")
    with numsim.kernels.force(which):
        check(hard_numbers(shape_for(format), 1), format)


SMALL = [f for f in FORMATS if f.block is not None and len(f.block) == 1 and f.block[0] <= 64]


@pytest.mark.parametrize("format", SMALL, ids=str)
@pytest.mark.parametrize("special", [NAN, INF, -INF, 3.4028235e38, 1e-45, -0.0], ids=str)
def test_one_special_number_in_a_block(format, special):
    size = format.block[0] or 8
    x = hard_numbers((4, size), 2)
    x[0, 3], x[1, :] = special, 0
    x[2, :] = special
    x[1, 0] = special
    check(x, format)


@pytest.mark.parametrize("rule", [r for r in RULES if r in KNOWN and RULES[r].scale == numsim.E8M0])
@pytest.mark.parametrize("name", ["mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "mxint8"])
def test_every_mx_format_under_every_rule(name, rule):
    format = dataclasses.replace(get_block_format(name), rule=rule)
    x = hard_numbers((6, 32), 3)
    x[0] *= np.float32(2.0**-120)
    x[1] *= np.float32(2.0**-140)
    x[2, 0], x[3, 5] = 3.4028235e38, NAN
    assert check(x, format).format.rule == rule


@given(
    codes=st.lists(st.integers(0, 0xFFFFFFFF), min_size=16, max_size=16),
    name=st.sampled_from(["mxfp8", "mxfp4", "mxint8", "nvfp4", "nf4", "int8", "fp8_tensor", "torchao_rowwise"]),
)
def test_any_sixteen_fp32_numbers(codes, name):
    format = get_block_format(name)
    if format.block:
        format = dataclasses.replace(format, block=(16,))
    check(np.array(codes, np.uint32).view(np.float32), format)


# --- shapes and axes --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "int8"])
def test_every_axis_of_three(name, axis):
    shape = [2, 3, 2]
    shape[axis] = 64 if name != "int8" else 5
    x = hard_numbers(tuple(shape), 4)
    got = check(x, name, axis)
    moved = quantize(np.moveaxis(x, axis, -1).copy(), name)
    np.testing.assert_array_equal(np.moveaxis(got.codes, axis, -1), moved.codes)
    np.testing.assert_array_equal(np.moveaxis(got.scales.codes, axis, -1), moved.scales.codes)
    if name != "nvfp4":  # NumPy integers are axes too
        np.testing.assert_array_equal(quantize(x, name, axis=np.int64(axis)).codes, got.codes)


@pytest.mark.parametrize("shape", [(2, 32, 48), (1, 2, 16, 16)])
def test_tiles_of_the_last_two_axes(shape):
    got = check(hard_numbers(shape, 5), "nvfp4_2d")
    assert got.scales.shape == (*shape[:-2], shape[-2] // 16, shape[-1] // 16)


def test_weights_in_tiles_are_equal_to_their_transpose():
    x = np.random.default_rng(6).standard_normal((32, 48), np.float32)
    for format in ("nvfp4_2d", dataclasses.replace(get_block_format("fp8_128x128"), block=(16, 16))):
        np.testing.assert_array_equal(quantize(x, format).values.T, quantize(x.T, format).values)
    rows, columns = quantize(x, "nvfp4").values, quantize(x.T, "nvfp4").values
    assert (rows.T != columns).any()  # 1 x 16 blocks are other numbers in the other direction


@pytest.mark.parametrize(
    ("shape", "name", "scales"),
    [
        ((0,), "mxfp8", (0,)), ((0, 32), "mxfp8", (0, 1)), ((3, 0), "mxfp8", (3, 0)), ((3, 0), "int8", (3, 0)),
        ((0,), "nvfp4", (0,)), ((0, 32), "nvfp4_2d", (0, 2)), ((16, 0), "nvfp4_2d", (1, 0)), ((0,), "fp8_tensor", ()),
        ((2, 0, 3), "fp8_tensor", ()), ((0, 128), "fp8_128x128", (0, 1)), ((0,), "nf4", (0,)),
    ],
)  # fmt: skip
def test_empty_arrays(shape, name, scales):
    got = quantize(np.zeros(shape), name)
    assert (got.shape, got.scales.shape, got.values.shape) == (shape, scales, shape)
    assert got.codes.dtype == np.uint8 and got.tensor_scale == 1


def test_a_single_number_has_a_tensor_scale_and_no_axis():
    got = quantize(-3.0, "fp8_tensor")
    assert (
        got.shape == ()
        and got.elements == -448
        and got.scales.values == np.float32(1) / np.float32(np.float32(448) / 3)
    )
    with pytest.raises(InputError, match=r"axis=-1 of an array of shape \(\): mxfp8 needs an axis"):
        quantize(1.0, "mxfp8")


# --- kinds of input ---------------------------------------------------------------------------------------------------
def kinds():
    import ml_dtypes

    x = np.arange(64, dtype=np.float32).reshape(2, 32)
    yield "big-endian", x.astype(">f4")
    yield "float64", x.astype(float)
    yield "big-endian float64", x.astype(">f8")
    yield "Fortran", np.asfortranarray(x)
    yield "strides", np.repeat(x, 3, axis=1)[:, ::3]
    yield "backwards", np.ascontiguousarray(x[:, ::-1])[:, ::-1]
    yield "float16", x.astype(np.float16)
    yield "bfloat16", x.astype(ml_dtypes.bfloat16)
    yield "integers", x.astype(np.int64)
    yield "bytes", x.astype(np.uint8)
    yield "lists", x.astype(int).tolist()
    yield "Array", numsim.array(x, "bf16")
    yield "a class of its own", x.view(type("Own", (np.ndarray,), {}))
    frozen = x.copy()
    frozen.setflags(write=False)
    yield "read-only", frozen


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "int8", "fp8_tensor"])
@pytest.mark.parametrize(("kind", "x"), list(kinds()), ids=lambda x: x if isinstance(x, str) else "")
def test_the_kind_of_input_does_not_matter(kind, x, name):
    plain = quantize(np.arange(64, dtype=np.float32).reshape(2, 32), name)
    got = quantize(x, name)
    np.testing.assert_array_equal(got.codes, plain.codes)
    np.testing.assert_array_equal(got.scales.codes, plain.scales.codes)
    assert type(got.codes) is np.ndarray


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32"])
def test_torch_tensors(dtype):
    torch = pytest.importorskip("torch")
    x = torch.arange(64).reshape(2, 32).to(getattr(torch, dtype))
    plain = quantize(np.arange(64).reshape(2, 32), "mxfp8")
    np.testing.assert_array_equal(quantize(x, "mxfp8").codes, plain.codes)
    np.testing.assert_array_equal(quantize(x.t(), "mxfp8", axis=0).codes, plain.codes.T)
    if x.is_floating_point():
        np.testing.assert_array_equal(quantize(x.requires_grad_(), "mxfp8").codes, plain.codes)


def test_input_is_rounded_to_fp32_first():
    """480 and a little in FP64 is 480 in FP32; a number beyond FP32 is infinity."""
    assert quantize([1.9375 * 256 - 1e-9] * 32, "mxfp8", rule="even").scales.values == [2]
    assert np.isnan(quantize([1e39] * 32, "mxfp8").values).all()


def test_input_stays_as_it_was():
    x = hard_numbers((2, 64), 7)
    before = x.copy()
    for format in FORMATS:
        if format.block is None or (len(format.block) == 1 and format.block[0] <= 64):
            quantize(x, format)
    np.testing.assert_array_equal(x.view(np.uint32), before.view(np.uint32))


@pytest.mark.parametrize(
    ("x", "name", "options", "message"),
    [
        (np.ones(33), "mxfp8", {}, r"shape \(33,\): blocks of 32 do not fill axis -1 of mxfp8. Example: numpy.pad"),
        (np.ones((33, 2)), "mxfp8", {"axis": 0}, "blocks of 32 do not fill axis 0 of mxfp8"),
        (np.ones((17, 32)), "nvfp4_2d", {}, "blocks of 16 x 16 do not fill the last two axes"),
        (np.ones(16), "nvfp4_2d", {}, r"nvfp4_2d needs 2 axes, not shape \(16,\). Example: x.reshape"),
        (np.ones((16, 16)), "nvfp4_2d", {"axis": 0}, "axis=0: nvfp4_2d has blocks on its own axes. Example"),
        (np.ones(32), "mxfp8", {"axis": 1}, r"axis=1 of an array of shape \(32,\): allowed are -1 to 0. Example"),
        (np.ones(32), "mxfp8", {"axis": 0.0}, "axis=0.0 of an array"),
        (np.ones(32), "mxfp8", {"axis": True}, "axis=True of an array"),
        (np.ones(32, complex), "mxfp8", {}, "complex128"),
        (np.array([None] * 32), "mxfp8", {}, "dtype object"),
        ("abc", "mxfp8", {}, "'abc' is no number"),
        (np.ma.ones(32, np.float32), "mxfp8", {}, "a masked array"),
        (np.ones(32), "mxfp8", {"multiplier": 2.0}, "mxfp8 computes its own e8m0 scales"),
        (np.ones(16), "nvfp4", {"multiplier": 2.0}, "nvfp4 computes its own ue4m3 scales"),
        (np.ones((2, 4)), "fp8_tensor", {"multiplier": [1, 2]}, r"multiplier of shape \(2,\): \(\) or one number"),
        (np.ones((2, 4)), "torchao_rowwise", {"multiplier": [1, 2]}, r"of shape \(2,\): \(2, 1\) or one number"),
        (np.ones(32), "mxfp8", {"rounding": "stochastic"}, "needs either seed= or random_bits="),
        (np.ones(32), "mxfp8", {"rounding": "nearest"}, "rounding='nearest'"),
        (np.ones(64), "nf4", {"rounding": "toward-zero"}, "nf4 rounds to the nearest of its 16 values"),
        (np.ones(32), "mxint8", {"events": numsim.Events()}, "counts no events"),
        (np.ones(32), "mxfp8", {"events": 3}, "events"),
    ],
)  # fmt: skip
def test_bad_input(x, name, options, message):
    with pytest.raises(InputError, match=message):
        quantize(x, name, **options)


# --- scales that are given, rounding, events --------------------------------------------------------------------------
def test_a_given_scale():
    x = np.array([[1.0, 2.0, 1000.0], [0.1, -0.0, -3.0]])
    got = quantize(x, "fp8_tensor", multiplier=448.0)
    np.testing.assert_array_equal(got.elements, [[448, 448, 448], [44, -0.0, -448]])
    assert got.scales.values == np.float32(1) / np.float32(448) and got.how == "multiplier given, nearest-even"
    rows = quantize(x, "torchao_rowwise", multiplier=[[1.0], [64.0]])
    np.testing.assert_array_equal(rows.elements, [[1, 2, 448], [6.5, -0.0, -192]])
    assert rows.scales.values.tolist() == [[1], [2.0**-6]]
    columns = quantize(x.T, "torchao_rowwise", multiplier=[[1.0, 64.0]], axis=0)
    np.testing.assert_array_equal(columns.values, rows.values.T)


def test_random_bits_follow_the_array_not_the_blocks():
    """Element i in C order has draw i, whatever the axis of the blocks."""
    x = hard_numbers((32, 4), 8)
    bits = np.random.default_rng(9).integers(0, 256, x.shape, dtype=np.uint8)
    down = quantize(x, "mxfp4", axis=0, rounding="stochastic", random_bits=bits)
    across = quantize(x.T, "mxfp4", rounding="stochastic", random_bits=bits.T)
    np.testing.assert_array_equal(down.codes, across.codes.T)
    seeded = quantize(x, "mxfp4", axis=0, rounding="stochastic", seed=3)
    scaled = np.moveaxis(x.T.reshape(4, 1, 32), 0, 0) * np.ldexp(1.0, 127 - down.scales.codes.T.astype(int))[:, :, None]
    plain = numsim.encode(scaled.reshape(4, 32).T, "e2m1", rounding="stochastic", overflow="saturate", seed=3)
    np.testing.assert_array_equal(seeded.codes, plain)


def test_rounding_half_away_is_the_default_of_the_mx_emulator():
    """microxcaling rounds ties away from zero unless told otherwise."""
    x = [4.0, 0.25, 0.75, 1.25, 2.5, 3.5, -0.25, -2.5] * 4
    even = quantize(x, "mxfp4").values[:8]
    away = quantize(x, "mxfp4", rounding="nearest-away").values[:8]
    assert even.tolist() == [4, 0, 1, 1, 2, 4, 0, -2] and away.tolist() == [4, 0.5, 1, 1.5, 3, 4, -0.5, -3]


def test_events_are_counted():
    events = numsim.Events()
    quantize([480.0, 1e-4, 3e-3] + [0.0] * 29, "mxfp8", events=events)
    assert (events.total, events.overflow, events.underflow, events.subnormal) == (32, 1, 1, 1)


@pytest.mark.parametrize("shape", [(32, 32), (32, 3), (2, 32, 32)])
def test_random_bits_belong_to_elements_along_every_axis(shape):
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    moved = np.ascontiguousarray(np.moveaxis(x, -2, -1))
    given = numsim.random.bits_from(11, 0, x.size).reshape(shape)
    drawn = quantize(x, "mxfp4", axis=-2, rounding="stochastic", seed=11)
    there = quantize(moved, "mxfp4", rounding="stochastic", random_bits=np.moveaxis(given, -2, -1))
    assert (np.moveaxis(drawn.codes, -2, -1) == there.codes).all()
