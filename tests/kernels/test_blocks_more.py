"""The Hadamard transform and four over six: reference = kernel, bit for bit, with borders everywhere."""

import numpy as np
import pytest

from numsim import kernels
from numsim.blocks import four_over_six, hadamard, random_signs
from numsim.kernels import _pool
from tests.kernels.test_blocks import numbers, ordinary

pytestmark = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))
SHAPES = [(48,), (3, 32), (32, 3), (32, 1), (2, 48, 21), (16, 100), (1, 16, 16)]


@pytest.fixture(params=[1, 3, 16, 1 << 12])
def cut(request, monkeypatch):
    """As many columns at a time, on two threads that get few."""
    from numsim.kernels import blocks_hadamard, blocks_nvfp4

    def over_chunks(count, work, large=0):
        _pool.over_chunks(count, work, chunk=2, large=1)

    monkeypatch.setenv("NUMSIM_THREADS", "2")
    for room, name in ((blocks_hadamard, "WIDTH"), (blocks_nvfp4, "STRIP")):
        monkeypatch.setattr(room, name, request.param)
        monkeypatch.setattr(room, "over_chunks", over_chunks)


def axes(shape):
    return [axis for axis, n in enumerate(shape) if n % 16 == 0]


def both(function, x, *arguments, **options):
    found = []
    for which in ("reference", "kernel"):
        with kernels.force(which):
            found.append(function(x, *arguments, **options))
    return found


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("output", ["fp32", "bf16", "fp16", "e4m3", "ue4m3", "e2m1"])
def test_hadamard(shape, output):
    for x in (numbers(shape, 1), ordinary(shape)):
        for axis in axes(shape):
            for options in ({}, {"signs": random_signs(3)}, {"inverse": True}):
                a, b = both(hadamard, x, axis=axis, output=output, **options)
                assert a.dtype == b.dtype == np.float32 and a.shape == b.shape and a.tobytes() == b.tobytes()
                assert set(a[np.isnan(a)].view(np.uint32)) <= {0x7FC00000}


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("error", ["mae", "mse"])
def test_four_over_six(shape, error):
    for x in (numbers(shape, 2), ordinary(shape), close(shape)):
        for axis in axes(shape):
            same(both(four_over_six, x, axis=axis, error=error))
        if len(shape) > 1 and shape[-1] % 16 == shape[-2] % 16 == 0:
            same(both(four_over_six, x, "nvfp4_2d", error=error))


def close(shape):
    """Numbers of which several errors are alike, so that the order of their sums decides."""
    rng = np.random.default_rng(3)
    return (rng.integers(-40, 41, shape) / rng.choice([7.0, 8.0, 10.0, 12.0], (*shape[:-1], 1))).astype(np.float32)


def same(pair):
    a, b = pair
    assert a.codes.dtype == b.codes.dtype and np.array_equal(a.codes, b.codes)
    assert np.array_equal(a.scales.codes, b.scales.codes) and a.tensor_scale == b.tensor_scale


def test_twins_have_their_names():
    from numsim.kernels import blocks_hadamard, blocks_nvfp4

    for room, reference, name in (
        (blocks_hadamard, "numsim.blocks.hadamard", "butterflies"),
        (blocks_nvfp4, "numsim.blocks.nvfp4", "choose"),
    ):
        own = {
            n for n, f in vars(room).items() if not n.startswith("_") and getattr(f, "__module__", "") == room.__name__
        }
        assert own == {name} and [twin.__name__ for _, twin in room.TWINS] == [name]
        assert [(r.__module__, r.__name__) for r, _ in room.TWINS] == [(reference, name)]
