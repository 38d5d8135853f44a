"""Data that comes with numsim: handwritten digits, and real gradients recorded while a small network learnt them.

Nothing here needs a download, PyTorch or scikit-learn: both files are plain ``.npz`` archives (no pickle) inside the
package, and reading them takes NumPy only. ``README.md`` beside this file says where the data come from and under
which licence, and how the programs ``numsim.data.make_digits`` and ``numsim.data.record_gradients`` made them.

>>> images, labels = load_digits()
>>> images.shape, images.dtype.name, int(images.max()), labels.shape
((1797, 8, 8), 'uint8', 16, (1797,))
>>> recording = load_gradients()
>>> sorted({row.kind for row in recording.tensors})
['activation', 'activation-gradient', 'weight', 'weight-gradient']
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.data.ranges import gradient_ranges
from numsim.errors import InputError, short
from numsim.values import is_whole

__all__ = ["KINDS", "MATRICES", "GradientRecording", "Recorded", "gradient_ranges", "load_digits", "load_gradients"]

KINDS = ("activation-gradient", "weight-gradient", "activation", "weight")
"""The kinds of tensor in a recording, in the order in which they are stored."""

MATRICES = ("input", "weight", "grad_output")
"""The matrices that a linear layer multiplies in training, as recipes call them; one layer's are kept whole."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """What was recorded of one tensor: all values counted by binade and sign, and a sample of the values themselves.

    A binade is the set of numbers with one exponent e: 2**e <= abs(x) < 2**(e + 1). The values are FP32 (binary32)
    numbers, so e runs from -149 (the least subnormal) to 127. The arrays are read-only.

    kind : ``'activation-gradient'`` (derivative of the loss by the layer's output), ``'weight-gradient'``
        (derivative of the loss by the layer's weights), ``'activation'`` (the layer's output itself, before the
        ReLU) or ``'weight'`` (the layer's weights). All are plain numbers without a unit.
    layer : name of the layer; ``meta['network']`` describes it.
    step : number of updates of the weights made before the recording.
    total : how many values there were, zeros included.
    zeros : how many of them were exactly zero (+0 and -0 together). ReLU and pooling make many gradients exactly
        zero in any number format; they are kept apart here because they are no rounding error.
    binades : int64, shape (277,): -149, -148, ..., 127.
    positive : int64, shape (277,): how many values greater than zero lie in each binade.
    negative : int64, shape (277,): how many values less than zero lie in each binade.
    sample : float32, one-dimensional: a uniform random sample, without replacement, of the non-zero values, in
        random order (so its first n values are a uniform sample too). Rows have samples of about equal size
        whatever their totals: to combine rows, weight a share found in a sample by the row's ``nonzeros``.
    """

    kind: str
    layer: str
    step: int
    total: int
    zeros: int
    binades: npt.NDArray[np.int64]
    positive: npt.NDArray[np.int64]
    negative: npt.NDArray[np.int64]
    sample: npt.NDArray[np.float32]

    @property
    def nonzeros(self) -> int:
        """How many values were not zero: ``total - zeros``."""
        return self.total - self.zeros

    def count_below(self, exponent: int) -> int:
        """How many non-zero values have abs(x) < 2**exponent: exact, since binades end at powers of two."""
        if not is_whole(exponent):
            raise InputError(f"exponent {short(exponent)}: an integer is needed. Example: row.count_below(-24)")
        below = self.binades < max(min(exponent, 1000), -1000)
        return int(self.positive[below].sum() + self.negative[below].sum())


@dataclass(frozen=True, eq=False)
class GradientRecording:
    """Tensors recorded at several steps of one training run in FP32.

    meta : how the recording was made: network, data, optimizer, batch size, loss and its reduction, seed, version
        of PyTorch, and under ``'progress'`` the loss and accuracy at each recorded step.
    tensors : one ``Recorded`` for each step, kind and layer, in that order.
    matrices : what the layer ``linear1`` multiplies, whole and in order, for the first two of the recorded batches:
        ``matrices[name][step]``, float32, read-only. A layer's output is input @ weight.T + bias.
        ``'input'`` is (128, 512), images by features, after the ReLU of the layer before, of step 2000;
        ``'weight'`` (64, 512), outputs by features, of step 2000; ``'grad_output'`` (128, 64), images by outputs, of
        every recorded step: the derivative of a batch's mean loss by the layer's output, before the ReLU; exactly
        zero where the ReLU is off.
    amaxes : the largest magnitude of the same three matrices at each of the 2000 updates, for the batch that is
        learnt there: ``amaxes[name]``, float32, shape (2000,), read-only.
    """

    meta: dict[str, Any]
    tensors: tuple[Recorded, ...]
    matrices: dict[str, dict[int, npt.NDArray[np.float32]]]
    amaxes: dict[str, npt.NDArray[np.float32]]

    def select(self, kind: str | None = None, step: int | None = None, layer: str | None = None) -> Iterator[Recorded]:
        """The rows with the given kind, step and layer; None (the default) accepts any."""
        if not all(x is None or isinstance(x, str) for x in (kind, layer)) or not (step is None or is_whole(step)):
            raise InputError(f"kind={short(kind)}, step={short(step)}, layer={short(layer)}: texts and an integer are "
                             "needed. Example: recording.select('weight', step=100)")  # fmt: skip
        return (
            row
            for row in self.tensors
            if (kind is None or row.kind == kind)
            and (step is None or row.step == step)
            and (layer is None or row.layer == layer)
        )


def load_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Handwritten digits: 1797 grey images of 8 x 8 pixels, and the digit that each shows.

    Returns
    -------
    images : uint8, shape (1797, 8, 8), indexed [image, row, column]; 0 (paper) to 16 (ink). A pixel's value is how
        many of the 4 x 4 black-or-white pixels of the scan that it stands for were black.
    labels : uint8, shape (1797,); 0 to 9.

    Both arrays are read-only; ``images.astype(np.float32) / 16`` gives a copy to compute with.

    >>> images, labels = load_digits()
    >>> images.shape, int(labels[0])
    ((1797, 8, 8), 0)

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
    1998, https://doi.org/10.24432/C50P49, licence CC BY 4.0 (the test set, as scikit-learn distributes it).
    """
    arrays = _load("digits.npz")
    return arrays["images"], arrays["labels"]


def load_gradients() -> GradientRecording:
    """Gradients, activations and weights of a small convolutional network, recorded while it learnt the digits.

    The network was trained in FP32 without loss scaling; see ``GradientRecording``, ``Recorded`` and
    ``README.md`` beside this file. Source: ``numsim.data.record_gradients``, run on the digits of
    ``load_digits``.

    >>> row = next(load_gradients().select(kind="weight-gradient", step=0))
    >>> row.layer, row.total, row.sample.dtype.name
    ('conv1', 1152, 'float32')
    """
    arrays = _load("gradients.npz")
    meta: dict[str, Any] = json.loads(arrays["meta"].tobytes().decode("utf-8"))
    ends = np.cumsum(arrays["sample_sizes"])
    tensors = tuple(
        Recorded(
            kind=row["kind"],
            layer=row["layer"],
            step=row["step"],
            total=int(arrays["total"][index]),
            zeros=int(arrays["zeros"][index]),
            binades=arrays["binades"],
            positive=arrays["positive"][index],
            negative=arrays["negative"][index],
            sample=arrays["samples"][ends[index] - arrays["sample_sizes"][index] : ends[index]],
        )
        for index, row in enumerate(meta.pop("rows"))
    )
    matrices = {
        name: {step: arrays[key] for step in meta["steps"] if (key := f"{name}_{step}") in arrays} for name in MATRICES
    }
    amaxes = {name: arrays[f"amax_{name}"] for name in MATRICES}
    return GradientRecording(meta=meta, tensors=tensors, matrices=matrices, amaxes=amaxes)


def _load(name: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of one data file, read-only."""
    data = resources.files(__name__).joinpath(name).read_bytes()  # also right where the package lies in a zip file
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    for array in arrays.values():
        array.setflags(write=False)
    return arrays
