"""numsim's emulator of tensor cores on an NVIDIA GPU of any generation: only its ordinary cores are used."""

from __future__ import annotations

from typing import Any

from numsim._version import __version__
from numsim.errors import UnavailableError
from numsim.gpu import driver
from numsim.gpu.emulator import multiply, suits
from numsim.machines.question import Answer, Can, Question


class CudaEmulated:
    """The emulator on the first GPU that the driver shows: whole matrices in seconds."""

    name = "emulated-cuda"
    title = "numsim's emulator on an NVIDIA GPU"

    def can(self, question: Question | None = None) -> Can:
        if question is not None and question.model is None:
            return Can(False, "on a GPU the emulator only multiplies, like the tensor cores of a chip that is named")
        if question is not None and question.model is not None and not suits(question.model):
            return Can(False, f"on a GPU there is no emulator of {question.model}")
        try:
            driver.device()
        except UnavailableError as error:
            return Can(False, str(error))
        return Can(True)

    def provenance(self) -> dict[str, Any]:
        return {"machine": self.name, "numsim": __version__, **driver.device().provenance()}

    def answer(self, question: Question) -> Answer:
        if not (can := self.can(question)) or question.model is None:
            raise UnavailableError(f"{self.name} cannot answer: {can.reason}. Example: --against emulated")
        a, b, c, *scales = question.arrays
        return Answer(multiply(driver.device(), question.model, a, b, c, *scales), self.provenance())
