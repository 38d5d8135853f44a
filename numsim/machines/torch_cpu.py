"""This CPU through PyTorch. torch is imported when a question comes, not before."""

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
from numsim.machines.library import Library
from numsim.machines.question import REPLAYS, Question

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
_MOST_STEPS = 20_000  # of a real scaler, some 60 microseconds each


class TorchCpu(Library):
    """PyTorch on this CPU: one elementwise operation at a time; its own GradScaler, driven step by step."""

    name = "torch-cpu"
    title = "this CPU through PyTorch"
    packages = ("torch", "numpy")

    def missing(self) -> str:
        if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
            return "torch is not installed (pip install torch)"
        try:
            _ = self._torch
        except Exception as error:  # a broken installation fails in many ways
            return f"torch does not load here ({type(error).__name__}: {_first_line(error)})"
        return ""

    @cached_property
    def _torch(self) -> Any:
        import torch

        return torch

    @cached_property
    def dtypes(self) -> dict[str, Any]:
        return {f: getattr(self._torch, name) for f, name in _TYPES.items() if hasattr(self._torch, name)}

    @property
    def computes(self) -> tuple[str, ...]:
        return ("fp64", "fp32", "fp16", "bf16")

    def provenance(self) -> dict[str, Any]:
        return super().provenance() | {"torch": str(self._torch.__version__)}

    def _why_not(self, q: Question) -> str:
        if q.operation == "sqrt" and q.output.name in ("fp32", "fp64") and self._torch.backends.mkl.is_available():
            return f"torch's sqrt in {q.output} comes from Intel MKL and is up to 1 ulp off: no rounding predicts it"
        if q.operation == "scaler" and q.system == "torch":
            steps = math.prod(q.shape)
            return f"torch-cpu replays at most {_MOST_STEPS} steps, not {steps}" if steps > _MOST_STEPS else ""
        return super()._why_not(q)

    def _answer(self, q: Question) -> npt.NDArray[Any]:
        if q.operation not in REPLAYS:
            return super()._answer(q)
        rows = self.load(q.arrays[0], q.inputs[0]).reshape(-1, q.shape[-1] or 1).tolist()
        scales = [self._scales(row, dict(q.settings)) for row in rows]
        return np.array(scales, np.float32).reshape(q.shape).view(np.uint32)

    def _scales(self, found_inf: list[float], settings: dict[str, Any]) -> list[float]:
        """The scale after each step of a training whose gradients are finite or not, as found_inf says."""
        torch = self._torch
        weight = torch.nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.amp.GradScaler("cpu", **settings)
        scaler.scale(weight)  # the first one makes the scale
        scales = []
        for found in found_inf:
            weight.grad = torch.tensor(found * math.inf if found else 1.0)
            scaler.step(optimizer)  # unscales first
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    # Bits pass as signed integers, which every torch has.
    def load(self, codes: npt.NDArray[Any], format: Format) -> Any:
        signed = np.array(codes, code_dtype(format), order="C").view(f"i{format.code_bytes}")
        return self._torch.from_numpy(signed).view(self.dtypes[format.name])

    def store(self, array: Any, format: Format) -> npt.NDArray[Any]:
        signed = getattr(self._torch, f"int{8 * format.code_bytes}")
        return np.array(array.contiguous().view(signed).numpy()).view(code_dtype(format))

    def convert(self, array: Any, format: Format) -> Any:
        return array.to(self.dtypes[format.name])

    def apply(self, operation: str, *arrays: Any) -> Any:
        return getattr(self._torch, operation)(*arrays)

    def multiply(self, a: Any, b: Any) -> Any:
        return self._torch.matmul(a, b)

    def stack(self, arrays: list[Any]) -> Any:
        return self._torch.stack(arrays)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:100]
