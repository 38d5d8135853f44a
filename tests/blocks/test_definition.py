"""Products by the definition: float64, where it is used, gives the bits of fractions."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import numsim
from numsim import FP32, from_codes
from numsim.blocks import BlockArray, BlockFormat, Codebook, definition, dot, get_block_format, matmul, quantize
from tests.blocks.test_dot import F, axis_for, data


def both_ways(monkeypatch, a, b, **options):
    """The product by float64, which must be the one by fractions."""
    asked = []

    def fits(*arguments):
        asked.append(real(*arguments))
        return asked[-1]

    real = definition._fits_float64
    monkeypatch.setattr(definition, "_fits_float64", fits)
    fast = matmul(a, b, **options)
    monkeypatch.setattr(definition, "_fits_float64", lambda *arguments: False)
    slow = matmul(a, b, **options)
    monkeypatch.undo()
    assert fast.codes.dtype == slow.codes.dtype and fast.codes.tolist() == slow.codes.tolist() and fast.how == slow.how
    return asked == [True]


def tight(shape, seed):
    """Blocks of few bits whose sums tie, cancel, and lie just beside ties."""
    rng = np.random.default_rng(seed)
    x = rng.choice(F([0, 1, -1, 1.5, 2, -3, 7]), shape)
    return x * np.exp2(np.repeat(rng.choice([-26, -25, -24, -13, -12, 0, 1], (shape[0], shape[1] // 16)), 16, axis=1))


@pytest.mark.parametrize("order", ["sequential", "pairwise"])
@pytest.mark.parametrize(
    "name", ["mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp4", "mxint8", "nvfp4", "fp8_1x128", "fp8_tensor"]
)
def test_float64_gives_the_bits_of_fractions(monkeypatch, name, order):
    format = get_block_format(name)
    for make in (data, tight):
        a, b = make((5, 512), 1), np.ascontiguousarray(make((4, 512), 3).T)
        x, y = quantize(a, format), quantize(b, format, axis=axis_for(format, 0))
        for accumulator in ("fp32", "bf16", "fp16", "tf32", "e5m2", "e4m3", "e2m1"):
            went = both_ways(monkeypatch, x, y, accumulator=accumulator, order=order)
            # two full FP32 scales are too long beside the sum, and so is E5M2's range beside itself
            assert went != ((name, make is tight) in (("fp8_tensor", False), ("mxfp8_e5m2", True)))
        if name in ("mxfp8", "nvfp4"):
            for output in ("bf16", "fp16", "fp64", "e4m3"):
                assert both_ways(monkeypatch, x, y, output=output) == (name == "mxfp8" or output != "fp64")


@pytest.mark.parametrize("name", ["mxfp8", "mxfp8_e5m2", "nvfp4"])
def test_float64_with_special_numbers(monkeypatch, name):
    rng, n = np.random.default_rng(1), 1 << get_block_format(name).element.bits
    for seed in range(4):
        a, b = (quantize(data(shape, seed), name, axis=axis) for shape, axis in (((6, 96), -1), ((96, 5), 0)))
        codes = [rng.integers(0, n, x.shape).astype(np.uint8) for x in (a, b)]
        a, b = replace(a, codes=np.where(rng.random(a.shape) < 0.03, codes[0], a.codes)), replace(b, codes=codes[1])
        wild = rng.integers(0, a.format.scale.codes, a.scales.shape).astype(np.uint8)
        a = replace(a, scales=from_codes(np.where(rng.random(wild.shape) < 0.2, wild, a.scales.codes), a.scales.format))
        for accumulator in ("fp32", "fp16", "e4m3"):
            went = both_ways(monkeypatch, a, b, accumulator=accumulator, order=("sequential", "pairwise")[seed % 2])
            assert went == (name != "mxfp8_e5m2")  # all its codes at once: from 2^-16 to 57344


@pytest.mark.parametrize(
    "scales", [(0.0, 3.0), (1e-30, 1e-12), (3e38, 3e38), (np.inf, 1.0), (np.inf, 0.0), (1 / 3, 1 / 7)]
)
def test_float64_with_tensor_scales(monkeypatch, scales):
    a, b = quantize(data((4, 64), 5), "nvfp4"), quantize(data((64, 4), 7), "nvfp4", axis=0)
    a, b = (replace(x, tensor_scale=float(F(s))) for x, s in zip((a, b), scales, strict=True))
    for output in ("fp32", "bf16", "fp16"):
        assert both_ways(monkeypatch, a, b, output=output) == np.isfinite(scales).all()


def test_sums_to_odd():
    rng = np.random.default_rng(2)
    x = rng.standard_normal(4000) * np.exp2(rng.integers(-60, 60, 4000))
    y = rng.standard_normal(4000) * np.exp2(rng.integers(-60, 60, 4000))
    y[:1000] = -x[:1000] * (1 + rng.integers(-2, 3, 1000) * 2.0**-52)
    y[1000:1010], x[1010:1020], x[1020], y[1021] = np.inf, -np.inf, np.nan, 0.0
    found = definition._sum_to_odd(x, y)
    moved = 0
    for p, q, r in zip(x, y, found, strict=True):
        if not np.isfinite([p, q]).all():
            assert repr(r) == repr(p + q)
            continue
        exactly = Fraction(p) + Fraction(q)
        if exactly == r:
            continue
        assert int(np.float64(r).view(np.int64)) & 1
        towards = np.nextafter(r, np.inf if exactly > Fraction(r) else -np.inf)
        low, high = sorted((Fraction(r), Fraction(towards)))
        assert low < exactly < high
        moved += 1
    assert moved > 1000


def by_hand(a, b):
    """The exact product of vectors whose scales are 1."""
    return sum(Fraction(x) * Fraction(y) for x, y in zip(a.values.tolist(), b.values.tolist(), strict=True))


@pytest.mark.parametrize("values", [
    (-1, 2**70, Fraction(1, 2), 2**60 + 256),  # the largest is beyond 64 bits, the least of both sides is small
    (-1, Fraction(1, 2**1074), 2, 1), (-(2**100), 2**100, Fraction(1, 2**600), Fraction(3, 2**1000)),
    (-3, Fraction(0.1), Fraction(float(1 / 3)), 1),
], ids=str)  # fmt: skip
def test_numbers_of_own_codebooks(values):
    book = Codebook("own", values)
    format = BlockFormat("own", book, FP32, (4,), "absmax")
    a, b = (BlockArray(np.array(c, np.uint8), numsim.array([1.0, 1.0], "fp32"), format)
            for c in ([0, 1, 2, 3, 3, 2, 1, 0], [3, 1, 1, 0, 2, 2, 3, 1]))  # fmt: skip
    for output in ("fp64", "fp32"):
        found = dot(a, b, accumulator="exact", output=output).codes
        assert found == numsim.encode(by_hand(a, b), output)


def test_what_float64_would_lose_takes_fractions(monkeypatch):
    """A negative product below all of float64 is -0 in the end."""
    format = BlockFormat(
        "tiny", Codebook("tiny", (-1, Fraction(1, 2**600), 1, -Fraction(1, 2**600))), FP32, (4,), "absmax"
    )
    scales = numsim.array([[1.0]], "fp32")
    a = BlockArray(np.array([[1] * 4], np.uint8), scales, format)
    b = BlockArray(np.array([[3]] * 4, np.uint8), scales, format, axis=0)
    assert not both_ways(monkeypatch, a, b)
    assert matmul(a, b).codes == 0x8000_0000
