"""Accumulation and clipping of gradients: every row of the tables, and torch's own bits."""

import inspect
import math

import numpy as np
import pytest

from numsim import round_to
from numsim.errors import InputError
from numsim.optimizers import (
    SGD,
    Adam,
    AdamW,
    accumulate_gradients,
    clip_grad_norm,
    gradient_norm,
    unscale_and_clip,
)


# --- accumulation ----------------------------------------------------------------------------------------------------
def test_two_thousand_cents():
    cents = np.full(2000, 0.01)
    for name, total in (("bf16", 4.0), ("fp32", 20.001), ("fp16", 19.53125)):
        assert math.isclose(accumulate_gradients(cents, name, divide="never"), total, rel_tol=1e-4), name
    assert accumulate_gradients(cents, "bf16", divide="never") == 4.0
    wide = accumulate_gradients(cents, "bf16", accumulator="fp32", divide="never")
    assert abs(wide - 2000 * round_to(0.01, "bf16")) < 1e-3
    assert abs(accumulate_gradients(cents, "bf16", order="kahan", divide="never") - 20) <= 0.125


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_division_by_powers_of_two_is_exact(name):
    g = np.random.default_rng(1).normal(size=(8, 100)).astype(np.float32)
    before, after = (accumulate_gradients(g, name, divide=d, accumulator="fp32") for d in ("before", "after"))
    np.testing.assert_array_equal(before, after)


def test_division_by_other_numbers_rounds_each_part():
    g = np.random.default_rng(1).normal(size=(3, 1000)).astype(np.float32)
    before, after = (accumulate_gradients(g, "bf16", divide=d, accumulator="fp32") for d in ("before", "after"))
    assert (before != after).mean() > 0.5
    for n in range(3, 9):  # a loss of 1 shared among n and summed again
        assert accumulate_gradients(np.ones(n), "fp32") == 1


def test_fp16_sums_over_ranks_divide_too_early_or_too_late():
    small, large = np.full((8, 1), 2.0**-24), np.full((8, 1), 16384.0)
    assert accumulate_gradients(small, "fp16", divide="before") == 0
    assert accumulate_gradients(small, "fp16", divide="after") == np.float32(2.0**-24)
    assert accumulate_gradients(large, "fp16", divide="before") == 16384
    assert accumulate_gradients(large, "fp16", divide="after") == math.inf


def test_no_sync_adds_in_another_order():
    g = np.random.default_rng(2).normal(size=(4, 2, 500)).astype(np.float32)  # steps, ranks
    late = accumulate_gradients([accumulate_gradients(g[:, r], "fp32", divide="never") for r in (0, 1)], "fp32")
    each = accumulate_gradients([accumulate_gradients(g[s], "fp32") for s in range(4)], "fp32", divide="never")
    assert (late != each).any() and np.allclose(late, each, rtol=1e-5, atol=1e-6)


def test_who_notices_a_forgotten_division():
    g = np.random.default_rng(3).normal(size=(4, 200)).astype(np.float32)
    right, forgot = (accumulate_gradients(g, "fp32", divide=d) for d in ("before", "never"))
    np.testing.assert_array_equal(forgot, 4 * right)
    w = np.zeros(200)
    sgd, adam, exact = SGD(0.1), Adam(1e-3), Adam(1e-3, eps=0.0)
    np.testing.assert_array_equal(sgd.step(sgd.initial(w), forgot).weights, 4 * sgd.step(sgd.initial(w), right).weights)
    for kind in (adam, exact):  # eps is what is left of the factor; a few units without it
        a, b = kind.initial(w), kind.initial(w)
        for _ in range(5):
            a, b = kind.step(a, right), kind.step(b, forgot)
        assert (np.abs(a.weights / b.weights - 1) < 2 * kind.eps / np.abs(right) + 2e-6).all()


def test_what_accumulation_refuses():
    for call, message in (
        (lambda: accumulate_gradients([], "bf16"), "one gradient for each"),
        (lambda: accumulate_gradients(1.0, "bf16"), "one gradient for each"),
        (lambda: accumulate_gradients([1.0], "bf16", divide="later"), "divide='later'"),
        (lambda: accumulate_gradients([1.0], "fp64"), "format=fp64"),
        (lambda: accumulate_gradients([1.0], "bf16", order="random"), "order="),
    ):
        with pytest.raises(InputError, match=message):
            call()


# --- clipping --------------------------------------------------------------------------------------------------------
INF, NAN = math.inf, math.nan


def test_an_infinite_norm_makes_zeros_and_nan():
    clipped = clip_grad_norm([[1.0, INF], [2.0, -3.0]], 1.0)
    assert clipped.norm == INF and clipped.coefficient == 0
    np.testing.assert_array_equal(clipped.gradients[0], [0, NAN])
    np.testing.assert_array_equal(clipped.gradients[1], [0, -0.0])


def test_a_nan_makes_everything_nan():
    clipped = clip_grad_norm([[1.0, NAN], [2.0]], 1.0)
    assert math.isnan(clipped.norm) and all(np.isnan(g).all() for g in clipped.gradients)


def test_an_fp16_norm_that_overflows_makes_all_gradients_zero():
    g = np.full(100_000, 1000.0)
    clipped = clip_grad_norm([g], 1.0, "fp16")
    assert clipped.norm == INF and (clipped.gradients[0] == 0).all()
    assert gradient_norm([g], "bf16") == 315392 and abs(gradient_norm([g]) - 316227.766) < 20  # 1e5 squares in FP32
    # each tensor's norm fits, their norm does not
    assert gradient_norm([[50000.0], [50000.0]], "fp16") == INF and gradient_norm([[50000.0]], "fp16") == 49984


def test_clipping_before_unscaling_makes_tiny_updates():
    g, scale = np.array([3.0, 4.0], np.float32), np.float32(65536)
    right = clip_grad_norm([g * scale / scale], 1.0).gradients[0]
    early = clip_grad_norm([g * scale], 1.0).gradients[0] / scale
    np.testing.assert_allclose(early * 65536, right, rtol=1e-6)


def test_small_gradients_are_multiplied_by_one():
    clipped = clip_grad_norm([[0.3, -0.0]], 1.0)
    assert clipped.coefficient == 1 and clipped.gradients[0].tobytes() == np.float32([0.3, -0.0]).tobytes()


def test_unscaling_and_clipping_at_once_rounds_once():
    g = np.random.default_rng(4).normal(size=5000).astype(np.float32)
    for scale, equal in ((1024.0, True), (3000.0, False)):
        scaled = g * np.float32(scale)
        once = unscale_and_clip([scaled], scale, 1.0)
        twice = clip_grad_norm([scaled * np.float32(1 / scale)], 1.0)
        np.testing.assert_allclose(once.gradients[0], twice.gradients[0], rtol=5e-7)
        assert (once.gradients[0] != twice.gradients[0]).any() or equal
        assert math.isclose(once.norm, scale * twice.norm, rel_tol=1e-6)
    assert unscale_and_clip([[0.5 * 1024]], 1024.0, 1.0).gradients[0] == 0.5  # nothing to clip


@pytest.mark.parametrize("scale", [1.0, 65536.0, 3000.0, 0.1, 1e39])
@pytest.mark.parametrize("max_norm", [1.0, 0.37, 1e-7, 1000])
def test_unscaling_and_clipping_as_deepspeed_does(scale, max_norm):
    """The lines of get_grad_norm_direct and unscale_and_clip_grads, for one group on one rank."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(9)
    groups = [[torch.tensor(e)] for e in ([0.0, -0.0], [INF, 1.0], [NAN, 1.0], [2.0**64, 1.0], [1e-30, 1e-45], [3e38])]
    groups += [[torch.randn(n, generator=generator) * 10**e for n in (64, 1, 5000)] for e in (-4, 0, 4)]
    for group in groups:
        norms = [torch.linalg.vector_norm(g.double(), ord=2.0) for g in group]
        total = torch.stack(norms).square().sum().float()
        # pow(1 / 2) on a GPU is IEEE 754's root, on torch's CPU not always
        total = torch.from_numpy(np.sqrt(total.numpy(), out=np.empty((), np.float32)))
        total.masked_fill_(total.isinf().logical_or(total.isnan()), -1.0)
        norm = torch.linalg.vector_norm(torch.stack([total]), ord=2)
        clip = torch.clamp(((norm / scale) + 1e-6) / max_norm, min=1.0)
        factor = 1.0 / (clip * scale)
        ours = unscale_and_clip([g.numpy() for g in group], scale, max_norm)
        assert np.float32([ours.norm, ours.coefficient]).tolist() == [norm.item(), factor.item()]
        for g, got in zip(group, ours.gradients, strict=True):
            theirs = g.clone().mul_(factor).numpy()
            assert np.where(np.isnan(got), 0, got.view(np.uint32)).tolist() == (
                np.where(np.isnan(theirs), 0, theirs.view(np.uint32)).tolist()
            )


def test_fp16_gradients_are_unscaled_in_fp32():
    once = unscale_and_clip([[1.0, 2.0**-24]], 1024.0, 1.0, "fp16")
    assert once.gradients[0].tolist() == [2.0**-10, 2.0**-34] and once.gradients[0].dtype == np.float32


def test_limits_as_numpy_numbers():
    a, b = (clip_grad_norm([[3.0, 4.0]], x) for x in (np.float32(0.5), 0.5))
    assert (a.gradients[0] == b.gradients[0]).all()


def test_no_gradients_and_bad_limits():
    assert clip_grad_norm([], 1.0) == ([], 0.0, 1.0)
    for value in (0, -1.0, NAN, INF, "1", True):
        with pytest.raises(InputError, match="max_norm="):
            clip_grad_norm([[1.0]], value)
        with pytest.raises(InputError, match="scale="):
            unscale_and_clip([[1.0]], value, 1.0)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("max_norm", [1.0, 0.37, 1000])
def test_clipping_as_torch_does(name, max_norm):
    torch = pytest.importorskip("torch")
    dtype, format = getattr(torch, name), {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[name]
    fma = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    generator = torch.Generator().manual_seed(7)
    edges = [[0.0] * 8, [INF] + [1.0] * 7, [NAN] * 8, [6e4] * 8, [1e-5] * 8, [-0.0] * 8]
    groups = [[torch.tensor(e)] for e in edges]
    groups += [
        [torch.randn(n, generator=generator) * 10**e for n in sizes]
        for sizes in ((8,), (64, 8), (800,), (16, 24, 4096))
        for e in (-3, 0, 1)
    ]
    for group in groups:
        parameters = [torch.nn.Parameter(torch.zeros_like(g, dtype=dtype)) for g in group]
        for p, g in zip(parameters, group, strict=True):
            p.grad = g.to(dtype)
        ours = clip_grad_norm([p.grad.float().numpy().copy() for p in parameters], max_norm, format, fma=fma)
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        np.testing.assert_array_equal(np.float32(norm.float()), np.float32(ours.norm))
        for p, g in zip(parameters, ours.gradients, strict=True):
            theirs = p.grad.float().numpy()
            np.testing.assert_array_equal(theirs, g)
            numbers = ~np.isnan(g)
            np.testing.assert_array_equal(theirs[numbers].view(np.uint32), g[numbers].view(np.uint32))


@pytest.mark.parametrize("call", [Adam, AdamW, SGD, gradient_norm, clip_grad_norm, unscale_and_clip])
def test_help_names_the_default_format(call):
    assert inspect.signature(call).parameters["format"].default == "fp32"
