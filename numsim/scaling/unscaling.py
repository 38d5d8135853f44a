"""How each system takes the scale off the gradients again, and where it looks for numbers that are not finite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numsim.array import Array, array
from numsim.errors import InputError, short
from numsim.formats import FP32, FP64
from numsim.operations import div, mul, sqrt, sum
from numsim.scaling.scaler import ScalerError, fp32, number
from numsim.scaling.torch_scalers import GradScaler


def unscale(scaler: Any, state: Any, grads: Any, format: Any = None) -> tuple[Array, bool]:
    """Gradients without the scale, and whether the system finds an overflow in them.

    Rules: 16-bit and fp32 gradients are computed in fp32. torch and its kin multiply by ``inv_scale``, round to the
    gradients' own format and look at the **scaled** numbers, so what unscaling makes infinite is not seen.
    All others give fp32: Flax and Keras divide, the rest multiply by 1 / scale. Flax, JMP and OpenSeq2Seq look at the
    **unscaled** numbers; Apex at the fp32 sum of the scaled ones (here in index order; the GPU has its own), which
    overflows, or is inf - inf, where no gradient need be; fairseq at the norm, whose squares overflow from 2^64 on.

    ``grads`` is an ``Array``, or numbers with their ``format``. Raises ``ScalerError`` where the scale is a Python
    float of 0: the originals divide by it. Source: as for the scalers.

    >>> from numsim.scaling import ApexScaler, FlaxScaler, State
    >>> grads = array([3e38, -2.0], "fp32")
    >>> [unscale(s, State(2.0**-8), grads)[1] for s in (GradScaler(), FlaxScaler(), ApexScaler())]
    [False, True, False]
    """
    x = grads if isinstance(grads, Array) else array(grads, np.asarray(grads).dtype if format is None else format)
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


def unscale_and_clip(state: Any, grads: Any, norm: Any, max_norm: Any) -> Array:
    """DeepSpeed's fused step: gradients times 1 / (clip scale), one rounding where unscaling and clipping make two.

    Rules: clip = max((norm / scale + 1e-6) / max_norm, 1) in Python floats, with ``norm`` that of the **scaled**
    gradients; the factor is rounded to fp32 before the product. ``grads`` is an fp32 ``Array``, or numbers.
    Source: deepspeedai/DeepSpeed deepspeed/runtime/zero/stage_1_and_2.py, unscale_and_clip_grads.

    >>> from numsim.scaling import State
    >>> unscale_and_clip(State(2.0), [6.0, 8.0], norm=10.0, max_norm=1.0)
    numsim.array([0.5999999046325684, 0.7999998331069946], 'fp32')
    """
    norm, limit = number("norm", norm), number("max_norm", max_norm)
    if not limit > 0:
        raise InputError(f"max_norm={short(max_norm)}: a number above 0 is needed. Example: max_norm=1.0")
    clip = max((norm / state.scale + 1e-6) / limit, 1.0)
    return mul(array(grads, FP32), array(fp32(1 / (clip * state.scale)), FP32))


def _found(checks: str, scaled: Array, result: Array, state: Any) -> bool:
    if checks == "sum":
        return not math.isfinite(float(sum(scaled)))
    if checks == "norm":
        return not math.isfinite(float(mul(sqrt(sum(mul(scaled, scaled))), array(state.inv_scale, FP32))))
    return not bool(np.isfinite((scaled if checks == "scaled" else result).values).all())
