"""Write gradients.npz: train a small network on the digits in FP32 and record its gradients.

    python -m numsim.data.record_gradients

Only needed to make the file anew; it takes PyTorch (CPU) and some 15 seconds. The recording answers a question
that invented random numbers cannot: how large are the gradients of a real network, and how many of them would a
narrow number format turn into zero? Activation gradients and weight gradients are kept apart, as in P. Micikevicius
et al., "Mixed Precision Training", ICLR 2018 (figure 3).

The same version of PyTorch on the same kind of processor gives the same file, byte for byte. Another version, or a
processor with other vector instructions, sums in another order: the values at step 0 then differ by rounding errors,
and those of later steps by more, since training amplifies them; the picture that the counts give stays the same.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.data import KINDS, MATRICES, load_digits
from numsim.data._digest import digits_digest
from numsim.files import npz_bytes, write_atomic

STEPS = (0, 100, 500, 2000)
WHOLE_LAYER = "linear1"  # whose matrices are kept whole, for the first batches, and their amaxes at every update
WHOLE_BATCHES = 2
WHOLE_STEPS = {"input": STEPS[-1:], "weight": STEPS[-1:], "grad_output": STEPS}
SEED = 20180220
BATCH_SIZE = 64
RECORDED_BATCHES = 8
TRAINING_IMAGES = 1500
LEARNING_RATE = 1e-3
SAMPLE_SIZES = {"activation-gradient": 3000, "weight-gradient": 3000, "activation": 2000, "weight": 2000}

LEAST_BINADE, GREATEST_BINADE = -149, 127  # of FP32, subnormal numbers included

# Each layer's output is what is recorded: the result of the convolution or matrix product, bias included, before ReLU.
LAYERS: tuple[tuple[str, str], ...] = (
    ("conv1", "convolution 3 x 3, 1 -> 16 channels, on 8 x 8 pixels, zero padding; then ReLU"),
    ("conv2", "convolution 3 x 3, 16 -> 32 channels, on 8 x 8 pixels, zero padding; then ReLU, then 2 x 2 max pooling"),
    ("conv3", "convolution 3 x 3, 32 -> 32 channels, on 4 x 4 pixels, zero padding; then ReLU"),
    ("linear1", "linear, 512 -> 64; then ReLU"),
    ("linear2", "linear, 64 -> 10; its outputs are the logits"),
)


def count_binades(values: npt.NDArray[np.float32]) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Count zeros, and the positive and the negative values by binade from -149 to 127.

    The binade is floor(log2(abs(x))), read from the exponent of the number itself: a computed logarithm could round up
    to the next whole number just below a power of two.
    """
    if values.dtype != np.float32:
        raise TypeError(f"values must be float32, not {values.dtype}")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite")
    nonzero = values[values != 0]
    _, exponents = np.frexp(nonzero)  # abs(x) = f * 2**exponent with 1/2 <= f < 1, hence the -1
    index = exponents.astype(np.int64) - 1 - LEAST_BINADE
    length = GREATEST_BINADE - LEAST_BINADE + 1
    positive = np.bincount(index[nonzero > 0], minlength=length).astype(np.int64)
    negative = np.bincount(index[nonzero < 0], minlength=length).astype(np.int64)
    return int(values.size - nonzero.size), positive, negative


def record(
    steps: Sequence[int] = STEPS, report: Callable[[str], None] = lambda line: None
) -> dict[str, npt.NDArray[Any]]:
    """Train, record at the given steps (increasing) and return the arrays of gradients.npz.

    PyTorch's number of threads, its choice of deterministic algorithms and its global random state are set for the run
    and put back at the end.
    """
    torch: Any = importlib.import_module("torch")
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)  # more threads would sum in another order
    torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)  # for the initial weights; all else has a generator of its own
            return _record(torch, tuple(steps), report)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)


def _record(torch: Any, steps: tuple[int, ...], report: Callable[[str], None]) -> dict[str, npt.NDArray[Any]]:
    functional = torch.nn.functional
    modules = {
        "conv1": torch.nn.Conv2d(1, 16, 3, padding=1),
        "conv2": torch.nn.Conv2d(16, 32, 3, padding=1),
        "conv3": torch.nn.Conv2d(32, 32, 3, padding=1),
        "linear1": torch.nn.Linear(512, 64),
        "linear2": torch.nn.Linear(64, 10),
    }
    names = [name for name, _ in LAYERS]
    parameters = [parameter for name in names for parameter in modules[name].parameters()]
    weights = [modules[name].weight for name in names]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)

    def forward(x: Any) -> list[Any]:
        """The outputs of all layers; the last are the logits."""
        outputs = [modules["conv1"](x)]
        outputs.append(modules["conv2"](functional.relu(outputs[-1])))
        outputs.append(modules["conv3"](functional.max_pool2d(functional.relu(outputs[-1]), 2)))
        outputs.append(modules["linear1"](functional.relu(outputs[-1]).flatten(1)))
        outputs.append(modules["linear2"](functional.relu(outputs[-1])))
        return outputs

    images, labels = load_digits()
    pixels = torch.from_numpy(images.astype(np.float32) / 16).unsqueeze(1)
    classes = torch.from_numpy(labels.astype(np.int64))
    training, test = slice(0, TRAINING_IMAGES), slice(TRAINING_IMAGES, None)

    def shifted(x: Any, generator: Any) -> Any:
        """Each image moved at random by -1, 0 or 1 pixel in x and in y; the gap is filled with zeros."""
        count = x.shape[0]
        windows = functional.pad(x, (1, 1, 1, 1)).unfold(2, 8, 1).unfold(3, 8, 1)  # (count, 1, 3, 3, 8, 8)
        down, right = torch.randint(0, 3, (2, count), generator=generator)
        return windows[torch.arange(count), :, down, right].contiguous()

    # The batches whose gradients are recorded are the same at every step, so that the steps can be compared.
    recording_generator = torch.Generator().manual_seed(SEED + 1)
    order = torch.randperm(TRAINING_IMAGES, generator=recording_generator)
    recorded_batches = [
        (shifted(pixels[chosen], recording_generator), classes[chosen])
        for chosen in order[: RECORDED_BATCHES * BATCH_SIZE].split(BATCH_SIZE)
    ]
    sample_generator = torch.Generator().manual_seed(SEED + 2)

    rows: list[dict[str, Any]] = []
    columns: dict[str, list[Any]] = {key: [] for key in ("total", "zeros", "positive", "negative", "samples")}
    at = names.index(WHOLE_LAYER)
    matrices: dict[str, npt.NDArray[np.float32]] = {}
    amaxes: dict[str, list[float]] = {name: [] for name in MATRICES}

    def add(kind: str, layer: str, step: int, tensors: Sequence[Any]) -> None:
        values = np.concatenate([tensor.detach().numpy().ravel() for tensor in tensors])
        zeros, positive, negative = count_binades(values)
        nonzero = values[values != 0]
        chosen = torch.randperm(nonzero.size, generator=sample_generator)[: SAMPLE_SIZES[kind]].numpy()
        rows.append({"kind": kind, "layer": layer, "step": step})
        entries = (values.size, zeros, positive, negative, nonzero[chosen])
        for key, entry in zip(columns, entries, strict=True):
            columns[key].append(entry)

    def evaluate(part: slice) -> tuple[float, float]:
        """Mean loss and accuracy on a part of the images, none of them shifted."""
        with torch.no_grad():
            logits = forward(pixels[part])[-1]
            loss = functional.cross_entropy(logits, classes[part]).item()
            accuracy = (logits.argmax(1) == classes[part]).double().mean().item()
        return round(loss, 6), round(accuracy, 6)

    progress: list[dict[str, Any]] = []

    def record_step(step: int) -> None:
        losses: list[float] = []
        recorded: dict[str, list[list[Any]]] = {kind: [[] for _ in names] for kind in KINDS}
        recorded["weight"] = [[weight] for weight in weights]
        for x, y in recorded_batches:
            outputs = forward(x)
            loss = functional.cross_entropy(outputs[-1], y)  # mean over the batch
            losses.append(loss.item())
            gradients = torch.autograd.grad(loss, [*outputs, *weights])
            for index, output in enumerate(outputs):
                recorded["activation"][index].append(output)
                recorded["activation-gradient"][index].append(gradients[index])
                recorded["weight-gradient"][index].append(gradients[len(names) + index])
        for kind in KINDS:
            for name, tensors in zip(names, recorded[kind], strict=True):
                add(kind, name, step, tensors)
        below = recorded["activation"][at - 1][:WHOLE_BATCHES]
        whole = {
            "input": [functional.relu(x).flatten(1) for x in below],
            "weight": [weights[at]],
            "grad_output": recorded["activation-gradient"][at][:WHOLE_BATCHES],
        }
        for name in MATRICES:
            if step in WHOLE_STEPS[name]:
                matrices[f"{name}_{step}"] = torch.cat(whole[name]).detach().numpy()
        training_loss, training_accuracy = evaluate(training)
        test_loss, test_accuracy = evaluate(test)
        progress.append(
            {
                "step": step,
                "recorded_batches_loss": round(float(np.mean(losses)), 6),
                "training_loss": training_loss,
                "training_accuracy": training_accuracy,
                "test_loss": test_loss,
                "test_accuracy": test_accuracy,
            }
        )
        report(f"step {step}: training loss {training_loss}, test accuracy {test_accuracy}")

    training_generator = torch.Generator().manual_seed(SEED + 3)
    batches: list[Any] = []
    for step in range(steps[-1] + 1):
        if step in steps:
            record_step(step)
        if step == steps[-1]:
            break
        if not batches:  # a new epoch; the last 1500 % 64 = 28 images of its order are left out
            order = torch.randperm(TRAINING_IMAGES, generator=training_generator)
            batches = [batch for batch in order.split(BATCH_SIZE) if len(batch) == BATCH_SIZE]
        chosen = batches.pop(0)
        outputs = forward(shifted(pixels[chosen], training_generator))
        loss = functional.cross_entropy(outputs[-1], classes[chosen])
        optimizer.zero_grad()
        outputs[at].retain_grad()
        loss.backward()
        for name, tensor in zip(
            MATRICES, (functional.relu(outputs[at - 1]), weights[at], outputs[at].grad), strict=True
        ):
            amaxes[name].append(tensor.detach().abs().max().item())
        optimizer.step()

    meta = {
        "program": "numsim.data.record_gradients",
        "torch": str(torch.__version__),
        "vector_instructions": str(torch.backends.cpu.get_cpu_capability()),
        "threads": 1,
        "seed": SEED,
        "format": "FP32 (binary32) throughout, no loss scaling",
        "data": {
            "name": "digits of numsim.data.load_digits, pixels divided by 16",
            "sha256": digits_digest(images, labels),
            "training_images": TRAINING_IMAGES,
            "test_images": len(images) - TRAINING_IMAGES,
            "split": "the first images in the order of the file are for training, the rest for testing",
            "augmentation": (
                "each image of a training or recorded batch is shifted at random by -1, 0 or 1 pixel in x and in y"
            ),
        },
        "network": [
            {"layer": name, "description": description, "weights": list(weight.shape)}
            for (name, description), weight in zip(LAYERS, weights, strict=True)
        ],
        "initial_weights": "PyTorch's default: uniform between -1/sqrt(n) and 1/sqrt(n), n inputs to each output",
        "optimizer": {"name": "Adam", "learning_rate": LEARNING_RATE, "betas": [0.9, 0.999], "eps": 1e-8},
        "weight_decay": 0,
        "batch_size": BATCH_SIZE,
        "loss": "cross-entropy",
        "loss_reduction": "mean over the batch",
        "recorded_batches": RECORDED_BATCHES,
        "recorded": (
            f"at each step the same {RECORDED_BATCHES} batches of training images; each batch's gradients are those of "
            "its own mean loss, and the values of all batches are counted together; weights are counted once; biases "
            "are left out; a layer's output is taken before the ReLU"
        ),
        "sample_sizes": SAMPLE_SIZES,
        "steps": list(steps),
        "progress": progress,
        "rows": rows,
    }
    samples = columns.pop("samples")
    arrays = {key: np.array(entries, dtype=np.int64) for key, entries in columns.items()}
    return {
        **arrays,
        **matrices,
        **{f"amax_{name}": np.array(series, np.float32) for name, series in amaxes.items()},
        "binades": np.arange(LEAST_BINADE, GREATEST_BINADE + 1, dtype=np.int64),
        "samples": np.concatenate(samples),
        "sample_sizes": np.array([sample.size for sample in samples], dtype=np.int64),
        "meta": np.frombuffer(json.dumps(meta, sort_keys=True).encode("utf-8"), dtype=np.uint8),
    }


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m numsim.data.record_gradients", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("gradients.npz"), help="file to write")
    output: Path = parser.parse_args(argv).output
    arrays = record(report=print)
    size = write_atomic(output, npz_bytes(arrays)).stat().st_size
    print(f"{output.name}: {len(arrays['total'])} tensors, {int(arrays['total'].sum())} values, {size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
