"""What PyTorch answers, on a CPU or on a GPU: casts, single operations, sums of them, its own functions and scaler."""

from __future__ import annotations

import importlib.util
import math
import sys
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import code_dtype
from numsim.formats import Format
from numsim.machines import torch_functions
from numsim.machines.library import Library
from numsim.machines.question import LIBRARY, Question

_TYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "e5m2": "float8_e5m2",
    "e4m3fn": "float8_e4m3fn",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e8m0": "float8_e8m0fnu",
}
_MOST_STEPS = 20_000  # of a real scaler, some 60 microseconds each; a few times that on a GPU


class TorchLibrary(Library):
    """PyTorch's arrays on one device: one elementwise operation at a time; its GradScaler, driven step by step.

    FP16 and BF16 are computed in FP32 and rounded, which changes no sum, difference, product, quotient or square root:
    FP32 has more than twice their precision and two bits.
    """

    packages = ("torch", "numpy")
    torch_device: str

    def missing(self) -> str:
        if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
            return "torch is not installed (pip install torch)"
        try:
            _ = self.torch
        except Exception as error:  # a broken installation fails in many ways
            return f"torch does not load here ({type(error).__name__}: {first_line(error)})"
        return ""

    @cached_property
    def torch(self) -> Any:
        import torch

        return torch

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability of a GPU."""
        return None

    @property
    def dtypes(self) -> dict[str, Any]:
        return {f: getattr(self.torch, name) for f, name in _TYPES.items() if hasattr(self.torch, name)}

    @property
    def computes(self) -> tuple[str, ...]:
        return ("fp64", "fp32", "fp16", "bf16")

    def provenance(self) -> dict[str, Any]:
        threads = {} if self.capability else {"threads": self.torch.get_num_threads()}  # they cut long sums into parts
        return super().provenance() | {"torch": str(self.torch.__version__), **threads}

    def _why_not(self, q: Question) -> str:
        if q.operation == "scaler" and q.system == "torch":
            steps = math.prod(q.shape)
            return f"{self.name} replays at most {_MOST_STEPS} steps, not {steps}" if steps > _MOST_STEPS else ""
        if q.operation == LIBRARY:
            return torch_functions.why_not(self, q)
        return super()._why_not(q)

    def _answer(self, q: Question) -> npt.NDArray[Any]:
        if q.operation == LIBRARY:
            return self.store(torch_functions.call(self, q), q.output)
        if q.operation != "scaler":
            return super()._answer(q)
        found_inf = self.load(q.arrays[0], q.inputs[0]).reshape(-1, q.shape[-1] or 1).tolist()
        scales = [self._scales(row, dict(q.settings)) for row in found_inf]
        return np.array(scales, np.float32).reshape(q.shape).view(np.uint32)

    def _scales(self, found_inf: list[float], settings: dict[str, Any]) -> list[float]:
        """The scale after each step of a training whose gradients are finite or not, as found_inf says."""
        torch, device = self.torch, self.torch_device
        weight = torch.nn.Parameter(torch.zeros((), device=device))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.amp.GradScaler(device, **settings)
        scaler.scale(weight)  # the first one makes the scale
        scales = []
        for found in found_inf:
            weight.grad = torch.tensor(found * math.inf if found else 1.0, device=device)
            scaler.step(optimizer)  # unscales first
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    # Bits pass as signed integers, which every torch has. They go to the device as such: on the way a blocking copy
    # would convert on the CPU, and a GPU's casts are what is asked for.
    def load(self, codes: npt.NDArray[Any], format: Format) -> Any:
        signed = np.array(codes, code_dtype(format), order="C").view(f"i{format.code_bytes}")
        return self.torch.from_numpy(signed).to(self.torch_device).view(self.dtypes[format.name])

    def store(self, array: Any, format: Format) -> npt.NDArray[Any]:
        signed = getattr(self.torch, f"int{8 * format.code_bytes}")
        return np.array(array.contiguous().view(signed).cpu().numpy()).view(code_dtype(format))

    def convert(self, array: Any, format: Format) -> Any:
        return array.to(self.dtypes[format.name])

    def apply(self, operation: str, *arrays: Any) -> Any:
        return getattr(self.torch, operation)(*arrays)

    def multiply(self, a: Any, b: Any) -> Any:
        return self.torch.matmul(a, b)

    def amax(self, array: Any, format: Format) -> Any:
        if format.name in self.computes:
            return array.abs().amax(-1)
        return array.to(self.torch.float32).abs().amax(-1).to(array.dtype)  # FP8 has neither; FP32 holds it exactly

    def stack(self, arrays: list[Any]) -> Any:
        return self.torch.stack(arrays)


def first_line(error: object) -> str:
    return (str(error).splitlines() or [""])[0][:100]
