"""An NVIDIA GPU: tensor-core instructions through kernels of numsim's own, everything else through PyTorch.

What PyTorch computes is IEEE 754's: CUDA C++ Programming Guide, "Floating-Point Standard": nvcc's defaults, which torch
is built with, keep subnormals and round each FP32 quotient and square root as they should be.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from functools import cache, cached_property
from importlib import resources
from typing import Any

import numpy.typing as npt

from numsim.errors import UnavailableError
from numsim.gpu import driver, units
from numsim.gpu.instructions import Instruction, chip_of, why_missing
from numsim.machines import torch_functions
from numsim.machines.question import Can, Question
from numsim.machines.torch_library import TorchLibrary, first_line

_WITH_CUDA = "install one with CUDA: https://pytorch.org/get-started/locally"


class Cuda(TorchLibrary):
    """The first NVIDIA GPU. Each half says for itself what it lacks: the kernels need cuda-bindings, the rest torch."""

    name = "cuda"
    title = "an NVIDIA GPU"
    torch_device = "cuda"

    @property
    def chip(self) -> str:
        """numsim's name of the GPU, or of a chip of its compute capability; "" where there is none."""
        gpu = driver.device()
        return chip_of(gpu.name, gpu.capability)

    @property
    def dtypes(self) -> dict[str, Any]:
        return {} if self._without_torch else super().dtypes

    @property
    def computes(self) -> tuple[str, ...]:
        return () if self._without_torch else super().computes

    @property
    def capability(self) -> tuple[int, int]:
        found = self.torch.cuda.get_device_capability() if self._without_kernels else driver.device().capability
        return int(found[0]), int(found[1])

    def can(self, question: Question | None = None) -> Can:
        """Without a question: yes where one half works, with what the other one lacks."""
        if question is not None:
            reason = self._why_not(question)
            return Can(not reason, reason)
        torch, kernels = self._without_torch, self._without_kernels
        if torch and kernels:
            return Can(False, "; ".join(dict.fromkeys((torch, kernels))))
        parts = {"casts, sums and library products": torch, "single instructions": kernels}
        return Can(True, next((f"but no {part}: {why}" for part, why in parts.items() if why), ""))

    @cached_property
    def _without_torch(self) -> str:
        """Why torch computes nothing on this GPU, or "": found out by letting it."""
        if self.torch_device == "cuda" and (why := driver.missing()):
            return why
        if why := self.missing():
            return why
        torch = self.torch
        if self.torch_device == "cuda" and torch.version.cuda is None:
            return f"torch {torch.__version__} is built without CUDA: {_WITH_CUDA}"
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                torch.zeros(1, device=self.torch_device).add(1).cpu()
            except Exception as error:  # a driver too old for it, no kernels for this GPU, another one's memory
                told = next((first_line(w.message) for w in said if "CUDA" in str(w.message)), first_line(error))
                return f"torch {torch.__version__} for CUDA {torch.version.cuda} cannot use the GPU ({told})"
        return ""

    @cached_property
    def _without_kernels(self) -> str:
        """Why numsim's own kernels cannot run, or ""."""
        try:
            gpu = driver.device()
        except UnavailableError as error:
            return str(error)
        except Exception as error:  # bindings of another version fail in many ways
            return f"cuda-bindings cannot use the GPU ({type(error).__name__}: {first_line(error)})"
        capability = ".".join(map(str, gpu.capability))
        return "" if self.chip else f"numsim has no record of a GPU of compute capability {capability}"

    def _why_not(self, q: Question) -> str:
        if q.model is None:
            return self._without_torch or super()._why_not(q)
        if why := self._without_kernels:
            return why
        gpu = driver.device()
        if q.chip != self.chip:
            return f"this GPU is {gpu.name}, whose units numsim knows as {self.chip}, not {q.chip}"
        return why_missing(Instruction.of(q.model), gpu.capability)

    def _answer(self, q: Question) -> npt.NDArray[Any]:
        if q.model is not None:
            return units.multiply(driver.device(), q.model, *q.arrays)
        return super()._answer(q)

    def failed(self, told: str) -> UnavailableError:
        return driver.torch_failed(told)

    def provenance(self) -> dict[str, Any]:
        """Device, versions, kernels, and what is switched on: of each half that works."""
        found: dict[str, Any] = {"torch": "not installed"}
        if not self._without_torch:
            found = super().provenance() | {"cuda_of_torch": str(self.torch.version.cuda)}
            if self.torch_device == "cuda":
                capability = ".".join(map(str, self.torch.cuda.get_device_capability()))
                found |= {"device": self.torch.cuda.get_device_name(), "compute_capability": capability}
            found |= torch_functions.stated(self.torch)
        if not self._without_kernels:
            found |= driver.device().provenance()
        if (override := os.environ.get("NVIDIA_TF32_OVERRIDE")) is not None:  # a switch of cuBLAS itself
            found["nvidia_tf32_override"] = override[:20]
        return found | {"machine": self.name, "kernels": kernels_digest()}


@cache
def kernels_digest() -> str:
    """The digest of all that numsim runs on a GPU, and of what prepares it.

    >>> len(kernels_digest())
    16
    """
    here = resources.files("numsim.gpu")
    texts = [f for folder in (here, here / "cu") for f in folder.iterdir() if f.name.endswith((".py", ".cu", ".h"))]
    content = b"".join(hashlib.sha256(f.read_bytes()).digest() for f in sorted(texts, key=lambda f: f.name))
    return hashlib.sha256(content).hexdigest()[:16]
