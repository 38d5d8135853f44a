"""``quantize``: the edges by hand; ``BlockArray``: what it checks, and its manners."""

import dataclasses

import numpy as np
import pytest

import numsim
from numsim.blocks import BlockArray, BlockFormat, get_block_format, quantize
from numsim.errors import InputError
from tests.blocks.test_quantize import FORMATS, INF, NAN, hard_numbers


# --- edges by hand ----------------------------------------------------------------------------------------------------
def test_outliers_in_e4m3():
    """What the largest element of a block comes back as, by rule."""
    back = {rule: [quantize([x] + [0.0] * 31, "mxfp8", rule=rule).values[0] for x in (447, 449, 480, 496, 511.9, 513)]
            for rule in ("floor", "rceil", "ceil", "even")}  # fmt: skip
    assert back["floor"] == [448, 448, 448, 448, 448, 512]
    assert back["rceil"] == [448, 448, 480, 512, 512, 512]
    assert back["ceil"] == [448, 448, 480, 512, 512, 512]
    assert back["even"] == [448, 448, 448, 512, 512, 512]


def test_elements_of_the_table_of_outliers():
    elements = {rule: [quantize([x] + [0.0] * 31, "mxfp8", rule=rule).elements[0] for x in (447, 448.00003, 480, 513)]
                for rule in ("floor", "rceil", "ceil", "even")}  # fmt: skip
    assert elements == {
        "floor": [448, 448, 448, 256],
        "rceil": [448, 224, 240, 256],
        "ceil": [224, 224, 240, 128],
        "even": [448, 448, 448, 256],
    }


def test_the_smallest_numbers_under_byte_zero():
    """2^-126 is 2 at scale 2^-127; the least subnormal number is far below half of 2^-9 x 2^-127."""
    for rule in ("floor", "rceil", "ceil", "even", "te"):
        got = quantize([2.0**-126, 2.0**-149] + [0.0] * 30, "mxfp8", rule=rule)
        assert got.scales.codes.tolist() == [0] and got.elements[:2].tolist() == [2, 0]
        assert got.values[0] == 2.0**-126


def test_the_largest_numbers_under_byte_254():
    got = quantize([3.4028235e38, 2.0**127, 2.0**121, 2.0**119] + [0.0] * 28, "mxint8", rule="rceil")
    assert got.scales.codes.tolist() == [254]
    assert got.values[:4].tolist() == [127 / 64 * 2.0**127, 2.0**127, 2.0**121, 0]


def test_a_block_of_zeros():
    for format in FORMATS:
        size = 128 * 128 if format.block == (128, 128) else 256
        got = quantize(np.zeros((16, 16) if size == 256 and format.block == (16, 16) else (128, size // 128)
                                if size > 256 else (256,)), format)  # fmt: skip
        assert (got.values == 0).all(), format
    assert set(quantize(np.zeros(64), "nf4").codes.tolist()) == {7}
    assert quantize([0.0, -0.0] * 16, "mxfp8").codes.tolist() == [0, 0x80] * 16


def test_nan_and_infinity():
    one = [1.0] * 31
    assert np.isnan(quantize([NAN, *one], "mxfp8").values).all()
    assert np.isnan(quantize([INF, *one], "mxfp4").values).all()
    te = quantize([NAN, *one], "mxfp8", rule="te")
    assert np.isnan(te.values[0]) and (te.values[1:] == 1).all()
    te = quantize([-INF, *one], "mxfp8", rule="te").values
    assert te[0] == -448 * 2.0**127 and (te[1:] == 0).all()
    current = quantize([INF, 500.0, 1.0], "fp8_tensor")
    assert current.scales.values == 1 and current.values.tolist() == [448, 448, 1]
    ao = quantize([INF, 500.0, 1.0], "torchao_tensorwise")
    assert np.isnan(ao.elements[0]) and ao.elements[1:].tolist() == [0, 0]
    assert np.isnan(quantize([INF, 1.0], "int8").values).all()


def test_int8_rows():
    got = quantize([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5], [254.0, 1.0, 3.0]], "int8")
    integers = got.elements
    assert integers.tolist() == [[0, 0, 0], [64, -127, 32], [127, 0, 2]]  # 63.5 and 31.75; 0.5 and 1.5 tie to even
    assert got.scales.values[0, 0] == 0 and got.values[0].tolist() == [0, 0, 0]


def test_nvfp4_blocks_with_a_zero_scale():
    """A block below 2^-10/448 of the largest: its codes saturate, and come back as 0."""
    x = np.concatenate([np.full(16, 100.0), np.full(16, 1.0), np.full(16, -1e-4), np.zeros(16)])
    got = quantize(x, "nvfp4")
    assert got.scales.values.tolist() == [448, 4.5, 0, 0]
    assert got.codes[32:48].tolist() == [0xF] * 16 and got.codes[48:].tolist() == [0] * 16
    assert (got.values[32:] == 0).all() and got.elements[32] == -6


def test_nvfp4_of_one_infinity():
    """The tensor's multiplier is 1, the block's scale saturates, and all that comes back is infinite or no number."""
    x = np.concatenate([[INF], np.full(15, 8.0), np.full(16, 6.0)])
    got = quantize(x, "nvfp4")
    assert got.scales.values.tolist() == [448, 1] and got.tensor_scale == INF
    assert got.elements[[0, 1, 16]].tolist() == [6, 0, 6]
    assert got.values[0] == INF and np.isnan(got.values[1]) and got.values[16] == INF


def test_nvfp4_ties_of_e2m1():
    x = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, 0]
    format = BlockFormat("fp4", numsim.E2M1, numsim.FP32, (16,), "current")
    got = quantize(x, format, multiplier=1.0).elements
    assert got.tolist() == [6, 0, 1, 1, 2, 2, 4, 4, 0, -1, -1, -2, -2, -4, -4, 0]


# --- the array --------------------------------------------------------------------------------------------------------
def test_codes_and_scales_are_checked():
    scales = numsim.array([1.0], "e8m0")
    format = get_block_format("mxfp4")
    fine = BlockArray(np.full(32, 15, np.uint8), scales, format)
    assert (fine.values == -6).all()
    for codes, message in [
        (np.full(32, 16, np.uint8), "code 0x10 is out of range"),
        (np.full(32, -1), "unsigned"),
        (np.ones(32), "unsigned"),
        (np.zeros(33, np.uint8), "do not fill"),
        (np.zeros(64, np.uint8), r"scales of shape \(1,\) in e8m0: mxfp4 needs \(2,\) in e8m0"),
    ]:
        with pytest.raises(InputError, match=message):
            BlockArray(codes, scales, format)
    with pytest.raises(InputError, match=r"needs \(1,\) in e8m0"):
        BlockArray(np.zeros(32, np.uint8), numsim.array([1.0], "fp32"), format)
    with pytest.raises(InputError, match="a numsim Array is needed"):
        BlockArray(np.zeros(32, np.uint8), np.ones(1), format)
    with pytest.raises(InputError, match="from 0 to 0xf"):
        BlockArray(np.full(64, 16, np.uint8), numsim.array([1.0], "fp32"), get_block_format("nf4"))
    for scale in (3.0, np.nan, "x", None, True, [1.0], 10**400):
        with pytest.raises(InputError, match=r"^tensor_scale="):
            BlockArray(np.zeros(32, np.uint8), scales, format, tensor_scale=scale)
    assert BlockArray(np.zeros(32, np.uint8), scales, "mxfp4").format == format
    nvfp4 = quantize(np.ones(16), "nvfp4")
    assert dataclasses.replace(nvfp4, tensor_scale=0.1).tensor_scale == np.float32(0.1)
    assert BlockArray([0] * 32, scales, format).codes.dtype == np.uint8  # lists of integers are codes too


def test_manners():
    got = quantize(np.ones((2, 64)), "mxfp4")
    assert repr(got) == "numsim.blocks.BlockArray(mxfp4, shape (2, 64), rule floor, nearest-even)"
    assert got.nbytes == 2 * 64 / 2 + 4 and quantize(np.ones(32), "nvfp4").nbytes == 32 / 2 + 2 + 4
    np.testing.assert_array_equal(np.asarray(got), got.values)
    assert np.asarray(got, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="always a copy"):
        got.__array__(copy=False)  # which np.array(got, copy=False) asks for from NumPy 2 on
    again = quantize(got, "mxfp4")  # a second time nothing moves
    np.testing.assert_array_equal(again.codes, got.codes)
    with pytest.raises(AttributeError):
        got.axis = 0


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "mxint8", "fp8_tensor", "nf4", "int8"])
def test_twice_is_as_once(name):
    """Under the scales of the first time nothing moves; so it is for MX by its own rule too."""
    x = hard_numbers((4, 64), 10)
    x[~np.isfinite(x)] = 0
    once = quantize(np.clip(x, -1e30, 1e30), name)
    if name.startswith("mx"):
        np.testing.assert_array_equal(quantize(once.values, name).values, once.values)
    assert (np.abs(once.values - np.clip(x, -1e30, 1e30)) <= np.abs(x).max()).all()


def test_values_are_exact_or_rounded_once():
    """29 bits of an element meet 24 of a scale: more than that is rounded; a NaN scale gives NaN."""
    for bits, exact in ((29, True), (30, False)):
        element = numsim.Format("long", 5, bits - 1, 15)
        format = BlockFormat("mine", element, numsim.FP32, None, "absmax")
        scale = numsim.array(1 + 2.0**-23, "fp32")
        code = np.array([numsim.encode(2 - 2.0 ** (1 - bits), element)])
        value = BlockArray(code, scale, format).values[0]
        wanted = numsim.exact(code[0], element) * numsim.exact(scale.codes, numsim.FP32)
        assert (wanted == value) == exact and value == float(wanted)
    nan = numsim.array(NAN, "fp32")
    assert np.isnan(BlockArray(np.zeros(3, np.uint8), nan, get_block_format("fp8_tensor")).values).all()
