"""The network on the digits: its gradients, its determinism, and what each way of storing weights loses."""

import math
from fractions import Fraction

import numpy as np
import pytest

from numsim.errors import InputError
from numsim.optimizers import SGD, Adam
from numsim.optimizers.mlp import exponential, initial_weights, logarithm, loss_and_gradients, train_digits

# the loss and the exact sums of the gradients of each layer, as float.hex

EXACT = ("0x1.3e7e048bea0dcp+1", "0x1.77eda96db0000p+1", "-0x1.5400000000000p-26")


def batch():
    x = np.random.default_rng(0).random((16, 12)).astype(np.float32)
    return initial_weights((12, 7, 10), 1), x, np.arange(16) % 10


def test_gradients_against_torch():
    torch = pytest.importorskip("torch")
    weights, x, labels = batch()
    loss, gradients = loss_and_gradients(weights, x, labels)
    tensors = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in weights]
    h = torch.relu(torch.tensor(x, dtype=torch.float64) @ tensors[0][:-1] + tensors[0][-1])
    theirs = torch.nn.functional.cross_entropy(h @ tensors[1][:-1] + tensors[1][-1], torch.tensor(labels))
    theirs.backward()
    assert math.isclose(loss, theirs.item(), rel_tol=1e-6)
    for g, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(g, tensor.grad.numpy(), atol=1e-7)


def test_exponential_and_logarithm():
    x = np.concatenate([-np.linspace(0, 60, 4001), [-300.0, -689.0, -691.0, -math.inf]])
    want = np.array([math.exp(t) for t in x])
    got = exponential(x)
    np.testing.assert_allclose(got[:-2], want[:-2], rtol=2e-13)
    np.testing.assert_allclose(got[:1000], want[:1000], rtol=4e-15)
    assert got[0] == 1 and (got[-2:] == 0).all()
    y = np.concatenate([np.linspace(1, 10, 2001), [1e6]])
    np.testing.assert_allclose(logarithm(y), [math.log(t) for t in y], rtol=1e-14, atol=1e-15)
    assert logarithm(np.array([1.0]))[0] == 0


def test_same_settings_same_bits_and_other_seeds_other_bits():
    traces = [train_digits(SGD(0.1, format="fp16"), steps=20, seed=s) for s in (0, 0, 1)]
    assert traces[0].digest == traces[1].digest != traces[2].digest


def test_bits_that_must_not_change():
    """Weights after one step, summed exactly: the same on every machine."""
    weights, x, labels = batch()
    loss, gradients = loss_and_gradients(weights, x, labels)
    sums = [sum(map(Fraction, g.ravel().tolist()), Fraction(0)) for g in gradients]
    assert (loss.hex(), *(float(s).hex() for s in sums)) == EXACT


@pytest.fixture(scope="module")
def runs():
    ways = [("fp32", "plain"), ("fp16", "plain"), ("bf16", "plain"), ("bf16", "stochastic"), ("bf16", "kahan"),
            ("bf16", "master")]  # fmt: skip
    return {
        (name, update): train_digits(SGD(0.01, format=name, update=update, states="fp32"), steps=120, every=30)
        for name, update in ways
    }


def test_bf16_loses_most_updates_and_learns_less(runs):
    """120 steps of SGD at 0.01: FP16 loses many updates too, but small ones, and learns as FP32 does."""
    loss = {way: trace["loss"][-1] for way, trace in runs.items()}
    lost = {way: trace["lost"].mean() for way, trace in runs.items()}
    size = {way: trace["lost size"].mean() for way, trace in runs.items()}
    base = loss["fp32", "plain"]
    assert lost["bf16", "plain"] > 0.8 and size["bf16", "plain"] > 0.6 and loss["bf16", "plain"] > base + 0.08
    assert 0.3 < lost["fp16", "plain"] < 0.6 and size["fp16", "plain"] < 0.15 and loss["fp16", "plain"] < base + 0.02
    for cure in ("stochastic", "kahan", "master"):
        assert abs(loss["bf16", cure] - base) < 0.03
    assert lost["bf16", "stochastic"] > 0.7  # chance, not loss
    assert lost["bf16", "kahan"] < 0.05 and lost["bf16", "master"] < 0.01 < runs["bf16", "master"]["unmoved"].mean()


def test_traces_say_what_was_done(runs):
    trace = runs["bf16", "plain"]
    assert trace.steps.tolist() == [30, 60, 90, 120]
    assert list(trace.series) == ["loss", "accuracy", "unmoved", "lost", "lost size"]
    assert "bf16" in trace.title and "lr=0.01" in trace.about["optimizer"] and trace.about["batch"] == 64


def test_other_networks_and_diverging_ones():
    assert len(train_digits(Adam(1e-3), steps=4, every=2, batch=100, hidden=(8, 8))) == 2
    assert len(train_digits(Adam(1e-3), steps=2, every=2, hidden=())) == 1
    assert math.isnan(train_digits(SGD(1e30, format="fp16"), steps=4, every=4)["loss"][-1])


@pytest.mark.parametrize(
    "options",
    [{"steps": 0}, {"batch": 1501}, {"batch": 1.5}, {"every": 301}, {"hidden": (0,)}, {"seed": -1}, {"every": True}],
)
def test_bad_settings(options):
    with pytest.raises(InputError, match=next(iter(options))):
        train_digits(SGD(0.1), **options)
