"""A PyTorch network learns the digits under autocast, with torch's own gradient scaler, and every step is written down.

Weights and batches come from numsim's random bits, so that each device starts from the same bits and sees the same
images. The matrix products are the device's own: two devices add in other orders, and their weights part after a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import from_codes
from numsim.data import MATRICES, load_digits
from numsim.errors import InputError, UnavailableError, check_choice, short
from numsim.formats import FP16, FP32
from numsim.gpu.driver import torch_failed
from numsim.optimizers.mlp import initial_weights
from numsim.random import bits_from, check_seed
from numsim.scaling import check_strict, get_scaler
from numsim.traces import Event, Trace

Codes = npt.NDArray[np.uint32]

LAYERS = ("linear1", "linear2", "linear3")
SCALER: Mapping[str, float] = MappingProxyType({"init_scale": 2.0**24, "growth_interval": 8})
"""So large and so short that a few hundred steps see a search, growths and probes."""

_SIZES = (64, 64, 32, 10)
_KEPT = 1  # the layer whose tensors are kept
_TRAIN = 1500  # images to learn from; the other 297 test
_RATE, _MOMENTUM = 0.05, 0.9
_MOST_STEPS, _MOST_KEPT = 5000, 100
_BATCHES = 1 << 32  # where the random bits of batches begin
_EXAMPLE = "Example: train('cuda', dtype='float16', steps=200)"


@dataclass(frozen=True, eq=False)
class Run:
    """What happened in a training.

    trace : series over the steps, see ``train``. tensors : for each step that was kept, by name, FP32 codes of the
    second layer: its input, weight and grad_output (as the loss scale makes it), and its weight's gradient: "scaled"
    before the scaler unscales it, "gradient" after.
    """

    trace: Trace
    tensors: Mapping[int, Mapping[str, Codes]]


def train(
    device: str = "cpu",
    *,
    dtype: str = "float16",
    steps: int = 200,
    batch: int = 32,
    seed: int = 1,
    scaler: Mapping[str, float] | None = SCALER,
    spikes: Sequence[int] = (),
    keep: Sequence[int] = (),
) -> Run:
    """Train three linear layers (64, 64, 32, 10) with ReLU by ``torch.autocast``, FP32 weights, SGD with momentum.

    Rules
    -----
    NaN, Inf : with a scaler, a gradient that is not finite skips the step; without one it reaches the weights.
    spikes : in these steps, after the backward pass and before the scaler looks, an element of the first layer's
        gradient is made infinite.

    Parameters
    ----------
    device, dtype : "cpu" or "cuda"; "float16", "bfloat16" or "float32" (no autocast).
    scaler : settings of ``torch.amp.GradScaler``, or None: the loss is not scaled, no step is skipped.
    keep : the steps, from 1 on, whose tensors are kept.

    Returns a ``Run``. Its trace has, with a scaler, "found_inf" (read from the scaler), "scale used", "scale" (FP32)
    and "tracker" after the step, and events overflow, growth and spike. All have the loss, and of each layer's gradient
    (weight and bias) "amax", "least" (the least magnitude that is not 0; NaN where there is none), "zeros" and "below"
    (shares of zeros, and of what lies between 0 and FP16's least normal number); with a scaler each also as "scaled",
    before it is unscaled. "lost" is the share of zeros that are none in FP32, at the same weights.
    Raises ``InputError`` for parameters that are none, ``UnavailableError`` where torch or its GPU is missing or fails.
    Cost: some milliseconds a step.
    Source: torch.autocast and torch.amp.GradScaler; the digits are ``numsim.data.load_digits``.

    >>> run = train(steps=100)  # doctest: +SKIP
    >>> run.trace.happened("overflow")[:3]  # doctest: +SKIP
    [1, 2, 3]
    >>> train(scaler={"growth_interval": 0})
    Traceback (most recent call last):
        ...
    numsim.errors.InputError: growth_interval=0: at least 1 is needed. Example:
    numsim.scaling.GradScaler(init_scale=65536.0, growth_interval=2000)
    """
    check_choice("device", device, ("cpu", "cuda"), "train('cuda')")
    check_choice("dtype", dtype, ("float16", "bfloat16", "float32"), "dtype='float16'")
    for name, value, most in (("steps", steps, _MOST_STEPS), ("batch", batch, _TRAIN)):
        if type(value) is not int or not 1 <= value <= most:
            raise InputError(f"{name}={short(value)}: an integer from 1 to {most} is needed. {_EXAMPLE}")
    for name, chosen in (("spikes", spikes), ("keep", keep)):
        if len(chosen) > _MOST_KEPT or any(type(s) is not int or not 1 <= s <= steps for s in chosen):
            raise InputError(f"{name}={short(chosen)}: at most {_MOST_KEPT} steps from 1 to {steps} are needed. "
                             f"Example: {name}=[1, {steps}]")  # fmt: skip
    if scaler is not None:
        check_strict(get_scaler("torch", **scaler))
    about = {"dtype": dtype, "steps": steps, "batch": batch, "seed": check_seed(seed), "spikes": list(spikes),
             "scaler": None if scaler is None else dict(scaler)}  # fmt: skip
    torch = _load(device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on the CPU: so small a network is faster so, and the same on any number of cores
    try:
        network = _Network(torch, device, dtype, seed, scaler)
        rows, tensors = [], {}
        for step in range(1, steps + 1):
            row, found = network.step(_batch(step, batch, seed), spike=step in spikes)
            rows.append(row)
            if step in keep:
                tensors[step] = found
        return Run(_trace(device, about, rows, network.accuracy()), tensors)
    except RuntimeError as error:  # of the device; or an older torch lacks something
        raise torch_failed(f"training in {dtype} on {device} failed: {_line(error)}") from error
    finally:
        torch.set_num_threads(threads)


class _Network:
    """Weights, optimizer and scaler on a device."""

    def __init__(self, torch: Any, device: str, dtype: str, seed: int, scaler: Mapping[str, float] | None) -> None:
        self.torch, self.device, self.dtype = torch, device, getattr(torch, dtype)
        images, labels = load_digits()
        self.pixels = self._put(images.reshape(len(images), -1).astype(np.float32) / np.float32(16))
        self.labels = self._put(labels.astype(np.int64))
        weights = initial_weights(_SIZES, seed)  # no number of torch's own generator is used
        self.layers = [
            tuple(torch.nn.Parameter(self._put(np.ascontiguousarray(x))) for x in (w[:-1].T, w[-1])) for w in weights
        ]
        parameters = [x for layer in self.layers for x in layer]
        self.optimizer = torch.optim.SGD(parameters, lr=_RATE, momentum=_MOMENTUM)
        self.scaler = None if scaler is None else torch.amp.GradScaler(device, **scaler)

    def _put(self, x: npt.NDArray[Any]) -> Any:
        return self.torch.from_numpy(x).to(self.device)

    def forward(self, x: Any) -> tuple[list[Any], list[Any]]:
        """What goes into each layer, and what comes out of it."""
        inputs, outputs = [], []
        for weight, bias in self.layers:
            inputs.append(x)
            outputs.append(self.torch.nn.functional.linear(x, weight, bias))
            x = self.torch.relu(outputs[-1])
        return inputs, outputs

    def step(self, chosen: npt.NDArray[np.int64], *, spike: bool) -> tuple[dict[str, float], dict[str, Codes]]:
        """One step: its row of the trace, and the kept layer's tensors."""
        torch, scaler = self.torch, self.scaler
        at = self._put(chosen)
        with torch.autocast(self.device, dtype=self.dtype, enabled=self.dtype != torch.float32):
            inputs, outputs = self.forward(self.pixels[at])
            loss = torch.nn.functional.cross_entropy(outputs[-1], self.labels[at])
        exact = self.exact(at)
        outputs[_KEPT].retain_grad()
        self.optimizer.zero_grad()
        (loss if scaler is None else scaler.scale(loss)).backward()
        if spike:
            self.layers[0][0].grad[0, 0] = float("inf")
        kept = (inputs[_KEPT], self.layers[_KEPT][0], outputs[_KEPT].grad)
        tensors = {name: _codes(x) for name, x in zip(MATRICES, kept, strict=True)}
        row, scaled = {"loss": loss.item()}, {}
        if scaler is None:
            self.optimizer.step()
        else:
            scaled = self.ranges("scaled ")
            tensors["scaled"] = _codes(self.layers[_KEPT][0].grad)
            row["scale used"] = scaler.get_scale()
            scaler.unscale_(self.optimizer)
            row["found_inf"] = sum(x.item() for x in scaler._found_inf_per_device(self.optimizer).values())
            scaler.step(self.optimizer)
            scaler.update()
            state = scaler.state_dict()
            row |= {"scale": state["scale"], "tracker": state["_growth_tracker"]}
        tensors["gradient"] = _codes(self.layers[_KEPT][0].grad)
        return row | self.ranges() | self.lost(exact) | scaled, tensors

    def exact(self, at: Any) -> list[Any]:
        """The gradients in FP32, not scaled: what underflow is measured by."""
        loss = self.torch.nn.functional.cross_entropy(self.forward(self.pixels[at])[1][-1], self.labels[at])
        return list(self.torch.autograd.grad(loss, [x for layer in self.layers for x in layer]))

    def ranges(self, prefix: str = "") -> dict[str, float]:
        """Where the gradients of each layer lie."""
        row: dict[str, float] = {}
        for name, layer in zip(LAYERS, self.layers, strict=True):
            row |= {f"{prefix}{name} {what}": number for what, number in _ranges(_sizes(x.grad for x in layer)).items()}
        return row

    def lost(self, exact: Sequence[Any]) -> dict[str, float]:
        """The share of each layer's gradients that is 0 here and not in FP32."""
        row = {}
        for i, (name, layer) in enumerate(zip(LAYERS, self.layers, strict=True)):
            here, there = _sizes(x.grad for x in layer), _sizes(exact[2 * i : 2 * i + 2])
            row[f"{name} lost"] = float(np.mean((here == 0) & (there != 0)))
        return row

    def accuracy(self) -> float:
        """Share of the test images that are read right."""
        with self.torch.no_grad():
            read = self.forward(self.pixels[_TRAIN:])[1][-1].argmax(dim=1)
        return float((read == self.labels[_TRAIN:]).sum().item()) / (len(self.labels) - _TRAIN)


def _load(device: str) -> Any:
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways
        raise UnavailableError(f"torch does not load here ({_line(error)}): python -m pip install torch") from None
    if device == "cuda" and not torch.cuda.is_available():
        raise UnavailableError("torch finds no NVIDIA GPU (torch.cuda.is_available() is False)")
    return torch


def _batch(step: int, size: int, seed: int) -> npt.NDArray[np.int64]:
    return bits_from(seed, _BATCHES + step * size, size).astype(np.int64) % _TRAIN


def _codes(x: Any) -> Codes:
    """A tensor of any type as FP32 codes, which hold it exactly."""
    return np.array(x.detach().float().cpu().numpy(), np.float32).view(np.uint32)


def _sizes(gradients: Iterable[Any]) -> npt.NDArray[np.float32]:
    return np.asarray(np.abs(np.concatenate([_codes(x).view(np.float32).ravel() for x in gradients])))


def _ranges(sizes: npt.NDArray[np.float32]) -> dict[str, float]:
    positive = sizes[sizes > 0]
    return {
        "amax": float(sizes.max()),  # NaN where there is one
        "least": float(positive.min()) if positive.size else np.nan,
        "zeros": float(np.mean(sizes == 0)),
        "below": float(np.mean((sizes > 0) & (sizes < float(FP16.least_normal)))),
    }


def _trace(device: str, about: dict[str, Any], rows: Sequence[Mapping[str, float]], accuracy: float) -> Trace:
    """The rows as series: as FP32 codes what is an FP32 number."""
    series: dict[str, Any] = {}
    for name in rows[0]:
        numbers = np.array([row[name] for row in rows], np.float64)
        plain = name.split()[-1] in ("loss", "tracker", "zeros", "below", "lost")
        series[name] = numbers if plain else from_codes(numbers.astype(np.float32).view(np.uint32), FP32)
    events = [Event(step, "spike", "an infinity in linear1's gradient") for step in about["spikes"]]
    for step, row in enumerate(rows, 1):
        if row.get("found_inf"):
            events.append(Event(step, "overflow"))
        elif row.get("scale", 0) > row.get("scale used", 0):
            events.append(Event(step, "growth"))
    title = f"digits in {about['dtype']} on {device}, {'no scaler' if about['scaler'] is None else 'GradScaler'}"
    return Trace(title, np.arange(1, len(rows) + 1), series, tuple(events), about | {"accuracy": accuracy})


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120]
