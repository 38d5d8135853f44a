"""An NVIDIA GPU: tensor-core instructions through kernels of numsim's own, everything else through PyTorch."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from numsim.errors import UnavailableError
from numsim.gpu import driver, units
from numsim.gpu.instructions import Instruction, chip_of, why_missing
from numsim.machines.question import Question
from numsim.machines.torch_cpu import TorchCpu


class Cuda(TorchCpu):
    """The first NVIDIA GPU. Each half says for itself what it lacks: the kernels need cuda-bindings, the rest torch."""

    name = "cuda"
    title = "an NVIDIA GPU"
    torch_device = "cuda"

    @property
    def chip(self) -> str:
        """numsim's name of the GPU, or of a chip of its compute capability; "" where there is none."""
        gpu = driver.device()
        return chip_of(gpu.name, gpu.capability)

    def _why_not(self, q: Question) -> str:
        if q.model is None:
            return super()._why_not(q)
        try:
            gpu = driver.device()
        except UnavailableError as error:
            return str(error)
        if q.chip != self.chip:
            return f"this GPU is {gpu.name}, whose units numsim knows as {self.chip or 'nothing'}, not {q.chip}"
        return why_missing(Instruction.of(q.model), gpu.capability)

    def _answer(self, q: Question) -> npt.NDArray[Any]:
        if q.model is not None:
            return units.multiply(driver.device(), q.model, *q.arrays)
        return super()._answer(q)


def missing() -> str:
    """The first thing that keeps a GPU from answering."""
    return driver.missing()
