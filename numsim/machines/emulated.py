"""The emulator as a machine: it answers every question."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim._version import __version__
from numsim.accumulate import Plan, products, sums
from numsim.arithmetic import compute
from numsim.codes import classify, code_dtype, decode
from numsim.errors import InputError
from numsim.formats import FP64, Format, get_format
from numsim.machines.question import AMAX, ELEMENTWISE, LIBRARY, MMA, REPLAYS, Answer, Can, Question
from numsim.random import Draw
from numsim.rounding import convert
from numsim.tensorcore.products import chained


class Emulated:
    """numsim itself."""

    name = "emulated"
    title = "numsim's emulator"

    def can(self, question: Question | None = None) -> Can:
        if question is not None and question.operation == MMA and question.model is None:
            return Can(False, "the emulator needs a chip and an instruction to multiply like")
        if question is not None and question.operation == LIBRARY:
            return Can(False, f"{question.system} states no order in which it adds")
        return Can(True)

    def provenance(self) -> dict[str, Any]:
        return {"machine": self.name, "numsim": __version__, "python": platform.python_version()}

    def answer(self, question: Question) -> Answer:
        return Answer(emulate(question), self.provenance())


def emulate(q: Question) -> npt.NDArray[Any]:
    """The codes that numsim computes for a question."""
    if q.operation == MMA:
        if q.model is None:
            raise InputError(f"{q}: which chip? numsim chips lists them.")
        a, b, c, *scales = q.arrays
        return chained(a, b, c, q.model, *(scales or (None, None)))
    if q.operation in REPLAYS:
        from numsim.scaling import replay_scales  # loaded for replays only

        return replay_scales(q.scaler, decode(q.arrays[0], q.inputs[0])).view(code_dtype(q.output))
    if q.operation == AMAX:
        return amax(q.arrays[0], q.output)
    if q.operation == LIBRARY:
        raise InputError(f"{q}: {q.system} states no order in which it adds. Example: ask('sum', ...), which has one")
    draw = _draw(q)
    if q.operation == "cast":
        return convert(q.arrays[0], q.inputs[0], q.output, q.policy, draw)
    if q.operation in ELEMENTWISE:
        return compute(q.operation, q.arrays, q.inputs, q.output, q.policy, draw)
    if q.operation == "matmul":
        a, b = q.arrays
        return products(a, b, _plan(q), draw)
    return sums(q.arrays, _plan(q), draw, trail=q.operation == "cumsum")


def amax(codes: npt.NDArray[Any], format: Format) -> npt.NDArray[Any]:
    """The largest magnitude along the last axis: magnitudes are ordered as their codes are. NaN where there is one."""
    nan = np.asarray(classify(codes, format)) == "nan"
    sizes = np.where(nan, 0, codes & ((1 << format.magnitude_bits) - 1))
    largest = np.max(sizes, axis=-1, initial=0)
    return np.where(nan.any(axis=-1), format.nan_code or 0, largest).astype(code_dtype(format))


def has_kernel(q: Question) -> bool:
    """Whether a large question of this kind is a matter of seconds; the reference takes microseconds a rounding."""
    if q.operation in (AMAX, LIBRARY):  # NumPy does the one, nobody the other
        return True
    if kernels.why_not():
        return False
    if q.operation == "cast":
        return q.inputs[0].fits(FP64) and q.output.fits(FP64)
    if q.operation in REPLAYS:
        from numsim.kernels import scaling  # loaded for replays only

        return scaling.suits(q.scaler, decode(q.arrays[0], q.inputs[0]))
    from numsim.kernels import accumulate, arithmetic, tensorcore

    if q.operation == MMA:
        return q.model is not None and tensorcore.suits(q.model)
    if q.operation in ELEMENTWISE:
        return arithmetic.suits(q.operation, q.inputs, q.output, q.policy, _draw(q))
    return accumulate.suits(_plan(q), _draw(q))


def _draw(q: Question) -> Draw | None:
    return Draw(q.sr_bits or 32, q.seed or 0) if q.rounding == "stochastic" else None


def _plan(q: Question) -> Plan:
    product = q.output if q.product is None else None if q.product == "exact" else get_format(q.product)
    return Plan(q.inputs, q.output, product if len(q.inputs) == 2 else None, q.order, q.policy)
