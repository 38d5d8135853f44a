"""A small network that learns the digits in NumPy, on weights of any format: what does each way to store them lose?

Everything but the stored weights is FP32: matrix products are numsim's (sequential sums in FP32, every product
rounded, no BLAS), the exponential and the logarithm of the loss are series in float64 written out below. Same
settings, same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import from_codes
from numsim.data import load_digits
from numsim.errors import InputError, short
from numsim.formats import FP32
from numsim.host import check_ieee
from numsim.optimizers.optimizers import Optimizer, State, lost_updates
from numsim.optimizers.tensors import Tensor
from numsim.random import Stream, bits_from, check_seed
from numsim.reductions import matmul
from numsim.traces import Trace

Doubles = npt.NDArray[np.float64]
_TRAIN = 1500  # images to learn from; the other 297 test
_STEPS, _LAYERS, _WIDTH = 100_000, 8, 1024  # at most
_LN2 = math.log(2.0)
_SHUFFLE, _ROUND = 1 << 32, 1 << 48  # where the random bits of batches and of stochastic rounding begin


def train_digits(
    optimizer: Optimizer,
    *,
    steps: int = 300,
    batch: int = 64,
    hidden: Iterable[int] = (32,),
    seed: int = 0,
    every: int = 10,
) -> Trace:
    """Train a network (64 pixels, hidden layers with ReLU, 10 digits) and count the updates that are lost.

    Rules
    -----
    NaN, Inf : go where IEEE 754 sends them; the loss is NaN then. Nothing is scaled or skipped.

    Parameters: ``optimizer`` says in which format weights, gradients and states are, and how weights are written back;
    ``every`` so many steps the trace has an entry. The same ``seed`` starts all formats from the same FP32 weights and
    shows them the same batches.
    Returns a ``Trace`` with "loss" (mean over the batches since the last entry), "accuracy" (of 297 images that are not
    learnt), "unmoved" (of the updates that were not zero, the share after which the weight was the same), "lost" (the
    share that nothing took: no weight, master or compensation; with stochastic rounding that is chance, and right on
    average) and "lost size" (the same share, but of the sum of magnitudes: small updates are lost first).
    Raises ``InputError`` for what is no optimizer, numbers that are no positive integers, more than 100,000 steps, 8
    hidden layers or 1024 numbers in one.
    Cost: 300 steps take a second or two.
    Source: the digits of ``numsim.data.load_digits``.

    >>> from numsim.optimizers import SGD
    >>> trace = train_digits(SGD(0.01, format="bf16"), steps=20)
    >>> trace.steps.tolist(), bool((trace["lost"] > 0.5).all())
    ([10, 20], True)
    """
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer={short(optimizer)}: an optimizer is needed. Example: train_digits(SGD(0.01))")
    try:
        hidden = tuple(islice(hidden, _LAYERS + 1))  # (it may have no end)
    except TypeError:
        raise InputError(
            f"hidden={short(hidden)}: the widths of hidden layers are needed. Example: hidden=(32,)"
        ) from None
    if len(hidden) > _LAYERS:
        raise InputError(f"hidden={short(hidden)}: at most {_LAYERS} layers are allowed. Example: hidden=(32,)")
    limits = {"steps": (steps, _STEPS), "batch": (batch, _TRAIN), "every": (every, steps)}
    limits |= {f"hidden[{i}]": (n, _WIDTH) for i, n in enumerate(hidden)}
    for name, (value, most) in limits.items():
        if type(value) is not int or not 1 <= value <= most:
            raise InputError(f"{name}={short(value)}: an integer from 1 to {most} is needed. "
                             "Example: steps=300, batch=64, hidden=(32,), every=10")  # fmt: skip
    check_ieee()
    images, labels = load_digits()
    pixels = images.reshape(len(images), -1).astype(np.float32) / np.float32(16)
    states = [optimizer.initial(w) for w in initial_weights((pixels.shape[1], *hidden, 10), check_seed(seed))]
    stream = Stream(seed, _ROUND) if optimizer.update == "stochastic" else None
    rows: list[tuple[float, ...]] = []
    losses, counts = [], np.zeros(5)
    for step in range(1, steps + 1):
        chosen = _batch(step - 1, batch, seed)
        loss, gradients = loss_and_gradients([s.weights for s in states], pixels[chosen], labels[chosen])
        after = [optimizer.step(s, g, seed=stream) for s, g in zip(states, gradients, strict=True)]
        losses.append(loss)
        counts += sum(_counts(a, b) for a, b in zip(states, after, strict=True))
        states = after
        if step % every == 0:
            right = np.argmax(forward([s.weights for s in states], pixels[_TRAIN:])[-1], axis=1) == labels[_TRAIN:]
            updates, unmoved, lost, size, lost_size = counts
            shares = (unmoved / max(updates, 1.0), lost / max(updates, 1.0), lost_size / size if size else 0.0)
            rows.append((math.fsum(losses) / len(losses), right.mean(), *shares))
            losses, counts = [], np.zeros(5)
    series = np.array(rows, np.float64).T
    about = {"optimizer": repr(optimizer), "batch": batch, "hidden": list(hidden), "seed": seed}
    title = f"{type(optimizer).__name__} on {optimizer.format} weights, {optimizer.update} updates"
    names = ("loss", "accuracy", "unmoved", "lost", "lost size")
    return Trace(title, np.arange(every, steps + 1, every), dict(zip(names, series, strict=True)), about=about)


def initial_weights(sizes: Sequence[int], seed: int) -> list[Tensor]:
    """FP32 weights of each layer, (inputs + 1, outputs): uniform within sqrt(6 / inputs), the last row (bias) zero.

    Source: K. He et al., Delving Deep into Rectifiers, ICCV 2015.
    """
    layers, position = [], 0
    for inputs, outputs in pairwise(sizes):
        drawn = bits_from(seed, position, inputs * outputs).astype(np.float64) * 2.0**-31 - 1
        position += inputs * outputs
        weights = (drawn * math.sqrt(6 / inputs)).astype(np.float32).reshape(inputs, outputs)
        layers.append(np.vstack([weights, np.zeros((1, outputs), np.float32)]))
    return layers


def forward(weights: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """The inputs of each layer, with a column of ones for the bias, and the outputs of the last."""
    layers = []
    for w in weights:
        layers.append(np.hstack([x, np.ones((len(x), 1), np.float32)]))
        x = _product(layers[-1], w)
        outputs = x
        x = np.maximum(x, np.float32(0))
    return [*layers, outputs]


def loss_and_gradients(weights: Sequence[Tensor], x: Tensor, labels: Any) -> tuple[float, list[Tensor]]:
    """The mean cross-entropy of a batch, and its gradient by the weights of each layer."""
    *inputs, outputs = forward(weights, x)
    rows = np.arange(len(x))
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True)
        powers = exponential(shifted)
        total = np.add.accumulate(powers, axis=1)[:, -1:]  # from left to right
        loss = math.fsum(logarithm(total[:, 0]) - shifted[rows, labels]) / len(x)
        share = (powers / total).astype(np.float32)
        share[rows, labels] -= np.float32(1)
        back = share / np.float32(len(x))
        gradients = []
        for w, layer in zip(reversed(weights), reversed(inputs), strict=True):
            gradients.append(_product(layer.T, back))
            back = _product(back, w[:-1].T) * (layer[:, :-1] > 0)
    return loss, gradients[::-1]


def exponential(x: Doubles) -> Doubles:
    """e^x for x from -inf to 0: 2^k times Taylor's series of the rest; below e^-690 it is zero.

    The relative error is about 1e-15 near 0 and 1e-13 at -690.

    >>> exponential(np.array([0.0, -1.0, -float("inf")]))
    array([1.        , 0.36787944, 0.        ])
    """
    k = np.rint(np.maximum(x, -700.0) / _LN2)
    rest = np.maximum(x, -700.0) - k * _LN2
    power = np.ones_like(rest)
    for n in range(16, 0, -1):
        power = 1 + power * rest / n
    return np.where(x < -690.0, 0.0, np.ldexp(power, np.nan_to_num(k).astype(np.int32)))


def logarithm(x: Doubles) -> Doubles:
    """The natural logarithm of x >= 1, to about 1e-15: Halley's steps on the exponential.

    >>> logarithm(np.array([1.0, 10.0]))
    array([0.        , 2.30258509])
    """
    fraction, exponent = np.frexp(x)
    y = 2 * (fraction - 1) / (fraction + 1)  # of the fraction, between 0.5 and 1: 0 or below
    for _ in range(3):
        power = exponential(y)
        y = y + 2 * (fraction - power) / (fraction + power)
    return np.asarray(y + exponent * _LN2)


def _product(a: Tensor, b: Tensor) -> Tensor:
    words = [from_codes(np.ascontiguousarray(x).view(np.uint32), FP32) for x in (a, b)]
    return np.asarray(matmul(*words).codes.view(np.float32))


def _batch(step: int, size: int, seed: int) -> npt.NDArray[np.intp]:
    """Images of a batch: every epoch is a permutation of its own, cut into whole batches."""
    epoch, place = divmod(step, _TRAIN // size)
    order = np.argsort(bits_from(seed, _SHUFFLE * (1 + epoch), _TRAIN), kind="stable")
    return np.asarray(order[place * size : (place + 1) * size])


def _counts(before: State, after: State) -> Any:
    """Updates that were not zero; after which the weight was the same; that nothing took; sizes of first and last."""
    wanted, lost = after.update != 0, lost_updates(before, after)
    same = wanted & (after.weights == before.weights)
    sizes = np.abs(np.asarray(after.update, np.float64))
    counts = [np.count_nonzero(x) for x in (wanted, same, lost)]
    return np.array([*counts, math.fsum(sizes.ravel()), math.fsum(sizes[lost])], np.float64)
