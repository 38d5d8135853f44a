"""The packaged digits and gradients, and the programs that make them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numsim.data import (
    KINDS,
    MATRICES,
    GradientRecording,
    Recorded,
    load_digits,
    load_gradients,
    make_digits,
    record_gradients,
)
from numsim.data._digest import digits_digest

DIGITS_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
RECORDED_SHA256 = "aa1c3e4d137749d107bc7f5a21bcaaf550cc3ad413eb61df127cae67293af23e"
STEPS = [0, 100, 500, 2000]
LAYERS = ["conv1", "conv2", "conv3", "linear1", "linear2"]
# Values of each layer's output for 8 batches of 64 images, and number of weights.
OUTPUTS = {"conv1": 512 * 16 * 64, "conv2": 512 * 32 * 64, "conv3": 512 * 32 * 16, "linear1": 512 * 64, "linear2": 5120}
WEIGHTS = {"conv1": 16 * 9, "conv2": 32 * 16 * 9, "conv3": 32 * 32 * 9, "linear1": 64 * 512, "linear2": 640}


@pytest.fixture(scope="module")
def recording() -> GradientRecording:
    return load_gradients()


def share_below(rows: list[Recorded], exponent: int) -> float:
    """Share of the non-zero values with a magnitude below 2**exponent."""
    return sum(row.count_below(exponent) for row in rows) / sum(row.nonzeros for row in rows)


# --- digits ---------------------------------------------------------------------------------------------------------


def test_digits() -> None:
    images, labels = load_digits()
    assert images.dtype == labels.dtype == np.uint8
    assert images.shape == (1797, 8, 8)
    assert labels.shape == (1797,)
    assert (images.min(), images.max()) == (0, 16)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert not images.flags.writeable
    assert digits_digest(images, labels) == DIGITS_SHA256


def test_digits_digest_wants_uint8() -> None:
    images, labels = load_digits()
    with pytest.raises(TypeError, match="uint8"):
        digits_digest(images.astype(np.int64), labels)


def test_digits_equal_those_of_sklearn(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    images, labels = make_digits.digits_from_sklearn()
    ours = load_digits()
    assert np.array_equal(ours[0], images)
    assert np.array_equal(ours[1], labels)
    written = tmp_path / "digits.npz"
    assert make_digits.main(["--output", str(written)]) == 0
    with np.load(written, allow_pickle=False) as archive:
        assert digits_digest(archive["images"], archive["labels"]) == DIGITS_SHA256


# --- gradients ------------------------------------------------------------------------------------------------------


def test_every_tensor_is_there(recording: GradientRecording) -> None:
    found = [(row.step, row.kind, row.layer) for row in recording.tensors]
    assert found == [(step, kind, layer) for step in STEPS for kind in KINDS for layer in LAYERS]
    for row in recording.tensors:
        whole = {"weight": WEIGHTS[row.layer], "weight-gradient": 8 * WEIGHTS[row.layer]}
        assert row.total == whole.get(row.kind, OUTPUTS[row.layer])


def test_counts_are_consistent(recording: GradientRecording) -> None:
    for row in recording.tensors:
        assert row.binades.dtype == row.positive.dtype == row.negative.dtype == np.int64
        assert row.binades.tolist() == list(range(-149, 128))
        assert row.positive.shape == row.negative.shape == row.binades.shape
        assert row.positive.min() >= 0
        assert row.negative.min() >= 0
        assert 0 <= row.zeros < row.total
        assert row.zeros + row.positive.sum() + row.negative.sum() == row.total
        assert row.count_below(128) == row.nonzeros == row.total - row.zeros
        assert row.count_below(-149) == 0


def test_samples(recording: GradientRecording) -> None:
    for row in recording.tensors:
        limit = recording.meta["sample_sizes"][row.kind]
        assert row.sample.dtype == np.float32
        assert row.sample.shape == (min(limit, row.nonzeros),)
        assert np.isfinite(row.sample).all()
        zeros, positive, negative = record_gradients.count_binades(row.sample)
        assert zeros == 0
        assert (positive <= row.positive).all()  # so a binade without values has none in the sample
        assert (negative <= row.negative).all()
        # Drawn at random: its share in each binade is that of all values, within five standard deviations.
        shares = (row.positive + row.negative) / row.nonzeros
        deviation = np.sqrt(shares * (1 - shares) / row.sample.size)
        assert (np.abs((positive + negative) / row.sample.size - shares) <= 5 * deviation + 2 / row.sample.size).all()


def test_recorded_before_the_matrices_and_still_the_same() -> None:
    """Figures and answers rest on these arrays: whoever adds to the recording leaves them as they are."""
    with resources.as_file(resources.files("numsim.data").joinpath("gradients.npz")) as path, np.load(path) as archive:
        digest = hashlib.sha256()
        for key in ("binades", "meta", "negative", "positive", "sample_sizes", "samples", "total", "zeros"):
            digest.update(archive[key].tobytes())
    assert digest.hexdigest() == RECORDED_SHA256


def test_matrices_are_the_recorded_tensors(recording: GradientRecording) -> None:
    shapes = {"input": (128, 512), "weight": (64, 512), "grad_output": (128, 64)}
    steps = {"input": [2000], "weight": [2000], "grad_output": STEPS}
    assert tuple(recording.matrices) == MATRICES
    for name, matrices in recording.matrices.items():
        assert list(matrices) == steps[name]
        for x in matrices.values():
            assert x.shape == shapes[name] and x.dtype == np.float32 and np.isfinite(x).all()
    (row,) = recording.select("weight", 2000, "linear1")
    zeros, positive, negative = record_gradients.count_binades(recording.matrices["weight"][2000])
    assert (zeros, positive.tolist(), negative.tolist()) == (row.zeros, row.positive.tolist(), row.negative.tolist())
    assert np.isin(row.sample, recording.matrices["weight"][2000]).all()
    (row,) = recording.select("activation", 2000, "conv3")  # before the ReLU; two of eight batches
    _, positive, negative = record_gradients.count_binades(recording.matrices["input"][2000])
    assert (positive <= row.positive).all() and not negative.any()
    for step, x in recording.matrices["grad_output"].items():
        (row,) = recording.select("activation-gradient", step, "linear1")
        zeros, positive, negative = record_gradients.count_binades(x)
        assert zeros <= row.zeros and (positive <= row.positive).all() and (negative <= row.negative).all()
        assert 0.1 < np.isin(row.sample, x).mean() < 0.4  # a quarter of what was sampled from


def test_rows_of_the_matrices_belong_together(recording: GradientRecording) -> None:
    """Their product is the weight gradient, of which a sample from all eight batches is recorded."""
    x, dy = (recording.matrices[name][2000].astype(float) for name in ("input", "grad_output"))
    (row,) = recording.select("weight-gradient", 2000, "linear1")

    def found(order: Any) -> float:
        """Share of the sample that is near an entry of one of the two batches' products."""
        products = [(dy[b].T @ x[b][order]).ravel() for b in (slice(0, 64), slice(64, 128))]
        every = np.sort(np.concatenate(products))
        at = np.clip(np.searchsorted(every, row.sample), 1, every.size - 1)
        near = np.minimum(np.abs(every[at] - row.sample), np.abs(every[at - 1] - row.sample))
        return float(np.mean(near < 1e-6 * np.abs(row.sample)))

    assert found(slice(None)) > 0.2 > 2 * found(slice(None, None, -1))


def test_amaxes_at_every_update(recording: GradientRecording) -> None:
    assert tuple(recording.amaxes) == MATRICES
    for x in recording.amaxes.values():
        assert x.shape == (2000,) and x.dtype == np.float32 and np.isfinite(x).all() and (x > 0).all()
    steps = np.abs(np.diff(recording.amaxes["weight"]))
    assert (
        steps.max() < 2 * recording.meta["optimizer"]["learning_rate"]
    )  # as far as Adam moves a weight, or little more
    last = np.abs(recording.matrices["weight"][2000]).max()
    assert abs(recording.amaxes["weight"][-1] - last) < 2 * recording.meta["optimizer"]["learning_rate"]
    for step in STEPS[1:]:  # another batch, the same layer: the same order of magnitude
        assert (
            1 / 50
            < np.abs(recording.matrices["grad_output"][step]).max() / recording.amaxes["grad_output"][step - 1]
            < 50
        )


def test_arrays_are_read_only(recording: GradientRecording) -> None:
    row = recording.tensors[0]
    whole = [x for matrices in recording.matrices.values() for x in matrices.values()]
    for array in (row.binades, row.positive, row.negative, row.sample, *whole, *recording.amaxes.values()):
        assert not array.flags.writeable


def test_metadata_is_complete(recording: GradientRecording) -> None:
    meta = recording.meta
    assert json.loads(json.dumps(meta)) == meta
    assert meta["batch_size"] == 64
    assert meta["recorded_batches"] == 8
    assert meta["loss"] == "cross-entropy"
    assert meta["loss_reduction"] == "mean over the batch"
    assert meta["optimizer"]["name"] == "Adam"
    assert meta["steps"] == STEPS
    assert [layer["layer"] for layer in meta["network"]] == LAYERS
    assert {layer["layer"]: int(np.prod(layer["weights"])) for layer in meta["network"]} == WEIGHTS
    assert meta["data"]["sha256"] == DIGITS_SHA256
    assert isinstance(meta["seed"], int)
    assert meta["torch"]
    assert "rows" not in meta


def test_the_network_learns(recording: GradientRecording) -> None:
    progress = recording.meta["progress"]
    assert [entry["step"] for entry in progress] == STEPS
    losses = [entry["training_loss"] for entry in progress]
    assert losses == sorted(losses, reverse=True)
    assert abs(losses[0] - np.log(10)) < 0.02  # at first it guesses: ten classes, equally likely
    assert progress[-1]["test_accuracy"] > 0.95


def test_gradients_shrink_as_the_network_learns(recording: GradientRecording) -> None:
    activation = [list(recording.select("activation-gradient", step)) for step in STEPS]
    weight = [list(recording.select("weight-gradient", step)) for step in STEPS]
    # FP16 rounds magnitudes below 2**-25, half its least subnormal number, to zero.
    assert share_below(activation[0], -25) < 0.01
    assert share_below(activation[2], -25) < share_below(activation[3], -25)
    assert share_below(activation[3], -25) > 0.1
    assert share_below(weight[3], -25) < share_below(activation[3], -25)
    # BF16, with the range of FP32, has no such trouble: its least normal number is 2**-126.
    assert share_below(activation[3], -126) == 0


def test_select(recording: GradientRecording) -> None:
    assert list(recording.select()) == list(recording.tensors)
    (row,) = recording.select("weight", 500, "conv3")
    assert (row.kind, row.step, row.layer) == ("weight", 500, "conv3")
    assert not list(recording.select("bias"))


def test_count_binades() -> None:
    below_one = np.nextafter(np.float32(1), np.float32(0))
    greatest = np.finfo(np.float32).max
    values = np.array([0, -0.0, 1, below_one, -1.5, 2**-149, -(2**-126), greatest], dtype=np.float32)
    zeros, positive, negative = record_gradients.count_binades(values)
    assert zeros == 2
    assert {int(index) - 149: int(positive[index]) for index in np.flatnonzero(positive)} == {
        -149: 1,
        -1: 1,
        0: 1,
        127: 1,
    }
    assert {int(index) - 149: int(negative[index]) for index in np.flatnonzero(negative)} == {-126: 1, 0: 1}


def test_count_binades_refuses() -> None:
    with pytest.raises(TypeError, match="float32"):
        record_gradients.count_binades(np.ones(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite"):
        record_gradients.count_binades(np.array([np.inf], dtype=np.float32))


def test_recording_again_gives_the_same_counts(recording: GradientRecording) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    if str(torch.__version__) != recording.meta["torch"]:
        pytest.skip(f"recorded with PyTorch {recording.meta['torch']}, not {torch.__version__}")
    arrays = record_gradients.record(steps=(0, 3))
    for name in MATRICES:  # as far as this processor's sums go the same way
        assert np.allclose(arrays[f"amax_{name}"], recording.amaxes[name][:3], rtol=1e-3)
    assert np.allclose(arrays["grad_output_0"], recording.matrices["grad_output"][0], rtol=1e-2, atol=1e-6)
    first = list(recording.select(step=0))
    assert arrays["total"][: len(first)].tolist() == [row.total for row in first]
    for index, row in enumerate(first):
        moved = (
            np.abs(arrays["positive"][index] - row.positive).sum()
            + np.abs(arrays["negative"][index] - row.negative).sum()
        )
        # Another processor may sum in another order, which carries a few values across a power of two.
        assert moved <= (0 if row.kind == "weight" else 1e-3 * row.total)
        if row.kind == "weight":
            assert np.array_equal(
                arrays["samples"][sum(arrays["sample_sizes"][:index]) :][: row.sample.size], row.sample
            )


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "limit"), [("digits.npz", 70_000), ("gradients.npz", 1_080_000)])
def test_files_are_small_and_carry_no_time(name: str, limit: int) -> None:
    with resources.as_file(resources.files("numsim.data").joinpath(name)) as path:
        assert path.stat().st_size <= limit
        with zipfile.ZipFile(path) as archive:
            assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
            assert archive.namelist() == sorted(archive.namelist())
