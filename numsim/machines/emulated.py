"""The emulator as a machine: it answers every question."""

from __future__ import annotations

import platform
from typing import Any

import numpy.typing as npt

from numsim._version import __version__
from numsim.accumulate import Plan, products, sums
from numsim.arithmetic import compute
from numsim.formats import get_format
from numsim.machines.question import ELEMENTWISE, Answer, Can, Question
from numsim.random import Draw
from numsim.rounding import convert


class Emulated:
    """numsim itself."""

    name = "emulated"
    title = "numsim's emulator"

    def can(self, question: Question | None = None) -> Can:
        return Can(True)

    def provenance(self) -> dict[str, Any]:
        return {"machine": self.name, "numsim": __version__, "python": platform.python_version()}

    def answer(self, question: Question) -> Answer:
        return Answer(emulate(question), self.provenance())


def emulate(q: Question) -> npt.NDArray[Any]:
    """The codes that numsim computes for a question."""
    draw = Draw(q.sr_bits or 32, q.seed or 0) if q.rounding == "stochastic" else None
    if q.operation == "cast":
        return convert(q.arrays[0], q.inputs[0], q.output, q.policy, draw)
    if q.operation in ELEMENTWISE:
        return compute(q.operation, q.arrays, q.inputs, q.output, q.policy, draw)
    product = q.output if q.product is None else None if q.product == "exact" else get_format(q.product)
    plan = Plan(q.inputs, q.output, product if len(q.inputs) == 2 else None, q.order, q.policy)
    if q.operation == "matmul":
        a, b = q.arrays
        return products(a, b, plan, draw)
    return sums(q.arrays, plan, draw, trail=q.operation == "cumsum")
