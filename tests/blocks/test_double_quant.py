"""NF4's numbers and the scales that are quantised again: against constants, torch and the search of the CUDA kernel."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from numsim.array import array
from numsim.blocks import (
    NF4_ELEMENT,
    BlockArray,
    double_quantize,
    dynamic_map,
    get_block_format,
    normal_floats,
    quantize,
)
from numsim.errors import InputError

F = np.float32


def test_all_bits_of_the_constants_come_from_the_quantiles():
    assert [Fraction(float(v)) for v in normal_floats()] == list(NF4_ELEMENT.values)
    assert [Fraction(float(v)) for v in normal_floats(offset=0.97)] != list(NF4_ELEMENT.values)
    assert len(normal_floats(3)) == 8


def test_the_dynamic_map_is_torchs():
    torch = pytest.importorskip("torch")
    wanted = [0.0, 1.0]
    for i in range(7):
        edges = torch.linspace(0.1, 1, 2**i + 1, dtype=torch.float32)
        middles = ((edges[:-1] + edges[1:]) / 2.0) * 10 ** (i - 6)
        wanted += middles.tolist() + (-middles).tolist()
    assert dynamic_map().decode(np.arange(256, dtype=np.uint8)).tolist() == sorted(wanted)


def test_numbers_of_the_map_by_hand():
    book = dynamic_map()
    values = [float(v) for v in book.values]
    assert values[127] == 0 and values[255] == 1 and -1 not in values
    assert sum(v > 0 for v in values) == 128 and sum(v < 0 for v in values) == 127
    positive = [v for v in values if v > 0]
    assert [sum(10.0 ** (d - 7) < v < 10.0 ** (d - 6) for v in positive) for d in range(7)] == [1, 2, 4, 8, 16, 32, 64]
    assert positive[0] == F(0.55) * F(1e-6)
    assert [-v for v in values[:127]] == positive[-2::-1]


def searched(book, x):
    """The CUDA kernel's way to a code: seven halvings, then the midpoint on the side where the search ended."""
    pivot, upper, lower = 127, 255, 0
    for step in (64, 32, 16, 8, 4, 2, 1):
        if x > book[pivot]:
            lower, pivot = pivot, pivot + step
        else:
            upper, pivot = pivot, pivot - step
    if x > book[pivot]:
        return upper if x > (book[upper] + book[pivot]) * F(0.5) else pivot
    return lower if x < (book[lower] + book[pivot]) * F(0.5) else pivot


def test_encoding_is_the_search_of_the_kernel():
    book = np.array([float(v) for v in dynamic_map().values], np.float32)
    middles = (book[1:] + book[:-1]) * F(0.5)
    beside = [np.nextafter(v, F(s), dtype=np.float32) for v in (book, middles) for s in (-9, 9)]
    x = np.concatenate([book, middles, *beside, np.array([-np.inf, np.inf, -1, 2, -0.0], np.float32)])
    with np.errstate(over="ignore"):
        assert dynamic_map().encode(x).tolist() == [searched(book, v) for v in x]


def test_scales_are_restored_by_hand():
    x = quantize(np.repeat([1.0, 2.0, 3.0, 3.0], 64).astype(np.float32), "nf4")
    y = double_quantize(x)
    book = [float(v) for v in dynamic_map().values]
    assert y.offset == 2.25 and y.scales.tolist() == [1.25]
    for centred, code, scale in zip([-1.25, -0.25, 0.75, 0.75], y.codes, y.array.scales.values, strict=True):
        nearest = min(book, key=lambda v: abs(v - F(centred) * (F(1) / F(1.25))))
        assert book[code] == nearest and scale == F(F(nearest) * F(1.25)) + F(2.25)
    assert (y.array.codes == x.codes).all()
    assert (y.values == y.array.elements * y.array.scales.values.repeat(64)).all()


@pytest.mark.parametrize("blocks", [1, 255, 256, 257, 600])
def test_bytes_and_bits(blocks):
    y = double_quantize(quantize(np.arange(64.0 * blocks), "nf4"))
    assert y.codes.shape == (blocks,) and y.codes.dtype == np.uint8
    assert y.nbytes == 32 * blocks + blocks + 4 * math.ceil(blocks / 256) + 4
    assert y.bits_per_value == 4 + 8 / 64 + 32 / (64 * 256) and round(y.bits_per_value, 3) == 4.127


def test_numbers_are_multiplied_by_the_reciprocal():
    """A million scales: a few of them are rounded otherwise after a division."""
    x = np.random.default_rng(6).uniform(0, 1, 1 << 20).astype(np.float32)
    found = double_quantize(quantize(x, replace(get_block_format("nf4"), block=(1,))))
    centred = (x - F(math.fsum(x.tolist()) / x.size)).reshape(-1, 256)
    largest = np.abs(centred).max(1, keepdims=True)
    assert (found.codes == dynamic_map().encode(centred * (F(1) / largest)).ravel()).all()
    assert (found.codes != dynamic_map().encode(centred / largest).ravel()).any()


def test_each_256_scales_have_their_own():
    scales = np.ones(512, np.float32)
    scales[300] = 100.0
    y = double_quantize(quantize(scales.repeat(64), "nf4"))
    assert y.offset == F(611 / 512)
    assert y.scales.tolist() == [abs(F(1) - F(611 / 512)), F(100) - F(611 / 512)]


def test_zero_equal_and_tiny_scales():
    zeros = double_quantize(quantize(np.zeros((3, 64)), "nf4"))
    assert zeros.offset == 0 and (zeros.values == 0).all()
    equal = double_quantize(quantize(np.full((5, 64), 3.0), "nf4"))
    assert equal.array.scales.values.ravel().tolist() == [3.0] * 5 and (equal.values == 3).all()
    # a block of zeros has element 0 and so stays zero, whatever its scale becomes
    some = double_quantize(quantize(np.repeat([0.0, 1.0, 5.0], 64), "nf4"))
    assert some.array.scales.values[0] != 0 and (some.values[:64] == 0).all()


def test_a_small_scale_may_turn_its_sign():
    scales = np.array([100.0, 0.001] + [1.0] * 250, np.float32)
    y = double_quantize(quantize(scales.repeat(64), "nf4"))
    assert y.array.scales.values[1] < 0 and y.values[64] < 0 < scales[1]


def test_one_infinity_spoils_all_scales_and_nan_does_not():
    x = np.ones((4, 64), np.float32)
    x[1, 5] = np.inf
    y = double_quantize(quantize(x, "nf4"))
    assert np.isnan(y.values).all() and y.codes.tolist() == [0] * 4  # where the search ends that NaN never stops
    x[1, 5] = np.nan
    y = double_quantize(quantize(x, "nf4"))
    assert (y.array.scales.values == 1).all() and y.values[1, 5] == 0  # NaN is not in the amax, and takes zero


def test_other_axes_and_formats():
    x = np.random.default_rng(1).normal(size=(128, 6)).astype(np.float32)
    y = double_quantize(quantize(x, "nf4", axis=0))
    assert y.array.axis == 0 and y.array.scales.shape == (2, 6) and y.codes.shape == (12,)
    assert double_quantize(quantize(x, "int8")).array.scales.shape == (128, 1)
    for wrong in (quantize(np.ones(32), "mxfp8"), quantize(np.ones(16), "nvfp4"), quantize(np.ones((0, 64)), "nf4")):
        with pytest.raises(InputError, match="FP32 block scales"):
            double_quantize(wrong)


def test_nan_scales_given():
    x = quantize(np.ones((2, 64)), "nf4")
    y = double_quantize(replace(x, scales=array([[np.nan], [1.0]], "fp32")))
    assert isinstance(y.array, BlockArray) and np.isnan(y.values).all()
