"""How each system takes the scale off the gradients again, and where it looks for numbers that are not finite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numsim.array import Array, array
from numsim.errors import InputError, short
from numsim.formats import FP32, FP64
from numsim.operations import div, mul, sqrt
from numsim.reductions import sum
from numsim.scaling.logmax import LogMaxState
from numsim.scaling.scaler import IterationState, Scaler, ScalerError, State
from numsim.scaling.torch_scalers import GradScaler
from numsim.values import from_torch


def unscale(scaler: Any, state: Any, grads: Any, format: Any = None) -> tuple[Array, bool]:
    """Gradients without the scale, and whether the system finds an overflow in them.

    Rules: 16-bit and fp32 gradients are computed in fp32. torch and its kin multiply by ``inv_scale``, round to the
    gradients' own format and look at the **scaled** numbers, so what unscaling makes infinite is not seen.
    All others give fp32: Flax and Keras divide, the rest multiply by 1 / scale. Flax, JMP and OpenSeq2Seq look at the
    **unscaled** numbers; Apex at the fp32 sum of the scaled ones (here in index order; the GPU has its own), which
    overflows, or is inf - inf, where no gradient need be; fairseq at the norm, whose squares overflow from 2^64 on.

    ``grads`` is an ``Array``, or numbers with their ``format``. Raises ``InputError`` for what is no scaler or no
    state, ``ScalerError`` where the scale is a Python float of 0: the originals divide by it. Source: as for the
    scalers.

    >>> from numsim.scaling import ApexScaler, FlaxScaler, State
    >>> grads = array([3e38, -2.0], "fp32")
    >>> [unscale(s, State(2.0**-8), grads)[1] for s in (GradScaler(), FlaxScaler(), ApexScaler())]
    [False, True, False]
    """
    if not isinstance(scaler, Scaler) or not isinstance(state, (State, IterationState, LogMaxState)):
        raise InputError(f"unscale({short(scaler)}, {short(state)}, ...): a scaler and a state are needed. "
                         "Example: unscale(scaler, scaler.initial(), gradients, 'fp16')")  # fmt: skip
    grads = from_torch(grads)
    if isinstance(grads, Array):
        x = grads
    else:
        x = array(grads, getattr(grads, "dtype", FP64) if format is None else format)
    scaled = x.astype(FP32) if x.format != FP64 else x
    result = divide_scale(scaler, state, scaled)
    if isinstance(scaler, GradScaler):
        result = result.astype(x.format)
    else:
        scaled, result = scaled.astype(FP32), result.astype(FP32)
    return result, _found(scaler.checks, scaled, result, state)


def divide_scale(scaler: Any, state: Any, scaled: Array) -> Array:
    """The scaled gradients times 1 / scale, or divided by it, in their own format."""
    if scaler.unscales == "divide":
        return div(scaled, array(state.scale, scaled.format))
    if scaler.keeps == "fp64" and state.scale == 0:
        raise ScalerError("float division by zero", state, "ZeroDivisionError")
    return mul(scaled, array(state.inv_scale, scaled.format))


def _found(checks: str, scaled: Array, result: Array, state: Any) -> bool:
    if checks == "sum":
        return not math.isfinite(float(sum(scaled)))
    if checks == "norm":
        return not math.isfinite(float(mul(sqrt(sum(mul(scaled, scaled))), array(state.inv_scale, FP32))))
    return not bool(np.isfinite((scaled if checks == "scaled" else result).values).all())
