"""A GPU in the place of a real one: instructions through the emulator, or any other way to add; torch's on this CPU."""

from numsim.errors import UnavailableError
from numsim.gpu.driver import DeviceError
from numsim.gpu.instructions import capability_of
from numsim.machines.emulated import emulate
from numsim.machines.question import LIBRARY, Answer, Can


class Gpu:
    """``way(model, arrays)`` computes what an instruction answers; ``broken`` ones fail."""

    name, title = "cuda", "an NVIDIA GPU"

    def __init__(self, chip="h200", way=None, broken=()):
        self.chip, self.way, self.broken = chip, way, broken

    def provenance(self):
        capability = ".".join(map(str, capability_of(self.chip)))
        return {"machine": "cuda", "device": f"NVIDIA {self.chip.upper()}", "compute_capability": capability}

    def can(self, question=None):
        if question is None:
            return Can(True)
        if question.operation == LIBRARY:
            return Can(False, "torch is not installed")
        if question.chip not in (None, self.chip):
            return Can(False, f"this GPU is an {self.chip}, not {question.chip}")
        return Can(True)

    def answer(self, question):
        if not self.can(question):
            raise UnavailableError(self.can(question).reason)
        if question.instruction in self.broken:
            raise DeviceError("elements are misplaced")
        made = self.way(question.model, question.arrays) if self.way and question.model else emulate(question)
        return Answer(made, self.provenance())
