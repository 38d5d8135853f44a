"""A real training: the same bits twice, overflows that numsim's scaler replays, and a network that is what it says."""

import sys

import numpy as np
import pytest

from numsim.codes import decode
from numsim.data import load_digits
from numsim.errors import InputError, UnavailableError
from numsim.formats import FP32
from numsim.optimizers.mlp import initial_weights, loss_and_gradients
from numsim.scaling import GradScaler, replay
from numsim.training import digits
from numsim.training.digits import LAYERS, SCALER, train

torch = pytest.importorskip("torch")

SHORT = {"steps": 40, "spikes": (30,), "keep": (1, 2, 20, 30, 31, 40)}


@pytest.fixture(scope="module")
def run():
    return train(**SHORT)


def codes(run, name):
    return run.trace.series[name].codes


def test_the_same_bits_twice_whatever_torchs_own_generator_holds(run):
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    again = train(**SHORT)
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads
    assert again.trace.digest == run.trace.digest
    for step in SHORT["keep"]:
        for name, array in run.tensors[step].items():
            assert np.array_equal(again.tensors[step][name], array), (step, name)
    assert train(seed=2, **SHORT).trace.digest != run.trace.digest


def test_overflows_backoffs_growths_and_the_spike_all_happen(run):
    trace = run.trace
    overflows, growths = trace.happened("overflow"), trace.happened("growth")
    assert overflows[:3] == [1, 2, 3] and growths and trace.happened("spike") == [30] and 30 in overflows
    assert trace["scale used"][0] == SCALER["init_scale"] and trace["scale"].min() < 2.0**20
    assert {i + 1 for i in np.flatnonzero(trace["found_inf"])} == set(overflows)
    amaxes = np.array([trace[f"scaled {layer} amax"] for layer in LAYERS])
    assert np.array_equal(~np.isfinite(amaxes).all(axis=0), trace["found_inf"] != 0)


def test_the_scaler_replays_to_the_same_bits(run):
    ours = replay(GradScaler(**SCALER), run.trace["found_inf"])
    for name in ("scale used", "scale"):
        assert np.array_equal(codes(run, name), ours.series[name].codes)
    assert np.array_equal(run.trace["tracker"], ours["tracker"])
    assert [(e.step, e.kind) for e in ours.events] == [(e.step, e.kind) for e in run.trace.events if e.kind != "spike"]


def test_a_skipped_step_leaves_the_weights_and_another_does_not(run):
    weight = {step: run.tensors[step]["weight"] for step in SHORT["keep"]}
    assert np.array_equal(weight[1], weight[2]) and np.array_equal(weight[30], weight[31])
    assert not np.array_equal(weight[20], weight[40])
    assert np.isinf(run.trace["scaled linear1 amax"][29])


def test_gradients_are_unscaled_by_the_reciprocal_of_the_scale(run):
    for step in (20, 40):
        scaled, gradient = (run.tensors[step][name].view(np.float32) for name in ("scaled", "gradient"))
        inverse = np.float32(1 / run.trace["scale used"][step - 1])
        assert np.array_equal((scaled * inverse).view(np.uint32), gradient.view(np.uint32)) and gradient.any()


@pytest.mark.parametrize(("dtype", "mask"), [("float16", 0x1FFF), ("bfloat16", 0xFFFF), ("float32", 0)])
def test_autocast_computes_in_its_type_and_keeps_weights_in_fp32(dtype, mask):
    run = train(dtype=dtype, steps=3, scaler={"init_scale": 256.0}, keep=(3,))
    kept = run.tensors[3]
    for name in ("input", "grad_output", "scaled"):
        values = np.abs(kept[name].view(np.float32))
        normal = kept[name][values >= 2.0**-14]
        assert normal.size and not (normal & mask).any(), name
        if not mask:
            assert (normal & 0x1FFF).any()
    assert (kept["weight"] & 0x1FFF).any()


def test_without_a_scaler_nothing_is_skipped():
    run = train(dtype="float16", scaler=None, steps=6, spikes=(3,), keep=(3, 4))
    assert set(run.trace.series) == {"loss"} | {
        f"{x} {y}" for x in LAYERS for y in ("amax", "least", "zeros", "below", "lost")
    }
    assert set(run.tensors[3]) == {"input", "weight", "grad_output", "gradient"}
    assert np.isfinite(run.trace["loss"][:3]).all() and np.isnan(run.trace["loss"][3:]).all()  # it reached the weights


def test_the_network_is_numsims_own():
    """In FP32 the first loss and gradient are those of numsim's network, but for the order of sums."""
    run = train(dtype="float32", scaler=None, steps=1, keep=(1,))
    images, labels = load_digits()
    chosen = digits._batch(1, 32, 1)
    assert chosen.shape == (32,) and chosen.max() < 1500 and len(set(chosen.tolist())) > 20
    pixels = images.reshape(len(images), -1)[chosen].astype(np.float32) / np.float32(16)
    loss, gradients = loss_and_gradients(initial_weights((64, 64, 32, 10), 1), pixels, labels[chosen])
    assert abs(run.trace["loss"][0] - loss) < 1e-6
    ours, theirs = gradients[1][:-1].T, decode(run.tensors[1]["gradient"], FP32)
    assert np.abs(ours - theirs).max() < 1e-6 < np.abs(ours).max()


def test_it_learns():
    about = train(steps=200).trace.about
    assert about["accuracy"] > 0.7 and about["scaler"] == dict(SCALER)


def test_ranges_count_zeros_and_small_numbers():
    sizes = np.array([0, 0, 2.0**-15, 2.0**-14, 1], np.float32)
    assert digits._ranges(sizes) == {"amax": 1.0, "least": 2.0**-15, "zeros": 0.4, "below": 0.2}
    nothing = digits._ranges(np.zeros(2, np.float32))
    assert nothing["amax"] == 0 and np.isnan(nothing["least"]) and nothing["zeros"] == 1
    assert np.isnan(digits._ranges(np.array([np.nan, 1], np.float32))["amax"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "tpu"}, "device"),
        ({"dtype": "float8"}, "dtype"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 10**9}, "steps=1000000000"),
        ({"batch": True}, "batch=True"),
        ({"seed": -1}, "seed=-1"),
        ({"scaler": {"growth": 2.0}}, "no setting"),
        ({"scaler": {"growth_interval": 0}}, "growth_interval=0"),
        ({"steps": 5, "spikes": (6,)}, "spikes=(6,)"),
        ({"steps": 5, "keep": (0,)}, "keep=(0,)"),
    ],
)
def test_parameters_are_refused_before_any_work(options, text):
    with pytest.raises(InputError) as error:
        train(**options)
    assert text in str(error.value)


def test_what_is_missing_is_named(monkeypatch):
    if not torch.cuda.is_available():
        with pytest.raises(UnavailableError, match="no NVIDIA GPU"):
            train("cuda", steps=1)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnavailableError, match="pip install torch"):
        train(steps=1)


def test_a_device_that_fails_is_told(monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("CUDA error: an illegal memory access\nwas encountered")

    monkeypatch.setattr(torch.nn.functional, "linear", fail)
    with pytest.raises(UnavailableError, match="training in float16 on cpu failed: CUDA error: an illegal memory"):
        train(steps=1)
