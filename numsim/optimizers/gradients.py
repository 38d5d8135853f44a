"""What happens to gradients before the optimizer sees them: accumulation over micro-batches, clipping of their norm.

Sources: torch 2.13, torch/nn/utils/clip_grad.py; DeepSpeed, runtime/zero/stage_1_and_2.py (one multiplication).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numsim.accumulate import Order
from numsim.array import array
from numsim.errors import InputError, check_choice, short
from numsim.formats import FP32, Format, get_format
from numsim.host import check_ieee
from numsim.optimizers.tensors import Tensor, Tensors, fit, fit_all
from numsim.reductions import sum as array_sum

DIVIDE = ("before", "after", "never")
_EXAMPLE = "Example: unscale_and_clip(gradients, 65536.0, 1.0)"
LANES = 8  # partial sums of torch's norm on x86-64


def accumulate_gradients(
    gradients: Any,
    format: Any,
    *,
    accumulator: Any = None,
    divide: str = "before",
    order: Order = "sequential",
) -> Tensor:
    """The gradient of N micro-batches, as it adds up in ``.grad``.

    Rules
    -----
    NaN, Inf, -0, subnormals, overflow : IEEE 754's, in the accumulator's format.

    Parameters: ``gradients`` of shape (N, ...), rounded to ``format``; ``accumulator`` is the format of the sum, by
    default the same (Megatron and autocast have "fp32"); ``divide`` by N "before" (as loss / N does: each quotient is
    rounded to ``format``), "after" (the sum, once), "never" (forgotten: SGD's steps become N times as long, Adam's
    hardly change); ``order`` as for ``numsim.sum``. Returns float32 values of the accumulator's format.
    Raises ``InputError`` for no gradients. Cost: as ``numsim.sum``.

    >>> cents = np.full(2000, 0.01)
    >>> for accumulator in ("bf16", "fp16", "fp32"):
    ...     print(accumulator, accumulate_gradients(cents, "bf16", accumulator=accumulator, divide="never"))
    bf16 4.0
    fp16 19.53125
    fp32 20.019531
    """
    check_ieee()
    check_choice("divide", divide, DIVIDE)
    format = _format(format)
    wide = format if accumulator is None else _format(accumulator)
    parts = fit(gradients, format)
    if parts.ndim == 0 or len(parts) == 0:
        raise InputError("accumulate_gradients needs an array of shape (N, ...), one gradient for each micro-batch.")
    count = np.float32(len(parts))
    with np.errstate(all="ignore"):
        parts = fit(parts / count, format) if divide == "before" else parts
        total = array_sum(array(parts, format), axis=0, accumulator=wide, order=order).values.astype(np.float32)
        return fit(total / count, wide) if divide == "after" else total


class Clipped(NamedTuple):
    """Gradients after clipping, their norm before, and the number that all were multiplied by."""

    gradients: list[Tensor]
    norm: float
    coefficient: float


def gradient_norm(gradients: Sequence[Any], format: Any = "fp32", *, fma: bool = True) -> float:
    """The 2-norm of all gradients as torch forms it: of each tensor in its format, then of these norms.

    Rules
    -----
    NaN, Inf : NaN, infinity. subnormals : kept. overflow : squares add up in FP32 and the norm is rounded to
        ``format``: in FP16 a norm of 65520 or more is infinity.

    The squares go to 8 partial sums in turn, which are added one after another, then what is left over at the end;
    that tail is fused (``fma``), the rest is not. torch has the same bits for lengths that 8 divides or below 4; for
    other lengths its compiler fuses the tail in part. In 16-bit formats the last rounding hides that nearly always.

    >>> gradient_norm([[3.0, 4.0], [12.0]]), gradient_norm([np.full(100_000, 1000.0)], "fp16")
    (13.0, inf)
    """
    check_ieee()
    format = _format(format)
    t = Tensors(fma)
    with np.errstate(all="ignore"):
        norms = [_norm(t, g.reshape(-1), format) for g in fit_all(gradients, format)]
        return float(_norm(t, np.array(norms, np.float32), format))


def clip_grad_norm(gradients: Sequence[Any], max_norm: float, format: Any = "fp32", *, fma: bool = True) -> Clipped:
    """All gradients times min(max_norm / (norm + 1e-6), 1), rounded as ``torch.nn.utils.clip_grad_norm_`` does.

    Rules
    -----
    NaN : a NaN norm makes every gradient NaN. Inf : an infinite norm makes the coefficient 0: finite gradients become
        0, infinite ones NaN. -0, subnormals : kept. overflow : see ``gradient_norm``: an FP16 norm that overflows
        silently makes all gradients 0.

    Everything is rounded to ``format``: the norm, the sum with 1e-6 (which is rounded itself), its reciprocal, that
    times max_norm, the products. There is no test whether clipping is needed: a coefficient of 1 multiplies too.
    Parameters: a list of arrays of any shapes, all in one format. Raises ``InputError`` for a max_norm that is no
    number. Cost: two passes.

    >>> clip_grad_norm([[3.0, 4.0]], 1.0)
    Clipped(gradients=[array([0.5999999 , 0.79999983], dtype=float32)], norm=5.0, coefficient=0.19999995827674866)
    >>> clip_grad_norm([[1.0, float("inf")]], 1.0).gradients
    [array([ 0., nan], dtype=float32)]
    """
    format = _format(format)
    _check_number("max_norm", max_norm, "Example: clip_grad_norm(gradients, 1.0)")
    check_ieee()
    values = fit_all(gradients, format)
    norm = np.float32(gradient_norm(values, format, fma=fma))
    t = Tensors(fma)
    with np.errstate(all="ignore"):
        inverse = fit(np.float32(1) / t.add(norm, 1e-6, format), format)
        coefficient = np.minimum(t.mul(inverse, max_norm, format), np.float32(1))  # NaN stays
        clipped = [fit(g * coefficient, format) for g in values]
    return Clipped(clipped, float(norm), float(coefficient))


def unscale_and_clip(gradients: Sequence[Any], scale: float, max_norm: float, format: Any = "fp32") -> Clipped:
    """DeepSpeed's way: scaled gradients are unscaled and clipped by one multiplication, with one rounding.

    Rules
    -----
    NaN, Inf : a norm that is not finite becomes 1 there (a mark of -1, of which a norm is taken again): nothing is
        clipped, unless max_norm is below 1 / scale. Its scaler skips such a step; but see overflow.
    overflow : a sum of squares beyond FP32, of *scaled* gradients whose norm is 2^64 or more, is such a norm, though no
        gradient is infinite and no step is skipped.
    -0, subnormals : kept.

    Squares add up in FP64; their sum is rounded to FP32 and so is its root, the ``norm`` (of the scaled gradients).
    clip = max((norm / scale + 1e-6) / max_norm, 1), and the coefficient 1 / (clip * scale), are FP32, with Python
    numbers rounded to FP32 first, as torch has it on the CPU (on a GPU it divides by a Python number by multiplying
    with its reciprocal: the same for powers of two). Here FP64 sums are rounded once; torch's, in an order of their
    own, are the same after FP32 but for one in some 10^8.
    Parameters: gradients in ``format``; results are FP32, as its copies for the optimizer are. Raises ``InputError``
    for a scale or max_norm that is no number above 0. Cost: some 80 ns a gradient, for the exact sum.
    Source: deepspeedai/DeepSpeed 02aa38c, runtime/zero/stage_1_and_2.py, get_grad_norm_direct, unscale_and_clip_grads.

    >>> unscale_and_clip([[3.0 * 1024, 4.0 * 1024]], 1024.0, 1.0)
    Clipped(gradients=[array([0.5999999 , 0.79999983], dtype=float32)], norm=5120.0, coefficient=0.00019531245925463736)
    >>> unscale_and_clip([[2.0**64]], 1024.0, 1.0).gradients[0] == 2.0**54  # not clipped
    array([ True])
    """
    check_ieee()
    format = _format(format)
    for name, value in (("scale", scale), ("max_norm", max_norm)):
        _check_number(name, value, _EXAMPLE)
    values = fit_all(gradients, format)
    with np.errstate(all="ignore"):
        one, scale32 = np.float32(1), np.float32(scale)
        norms = [math.sqrt(math.fsum(np.square(g, dtype=np.float64).ravel().tolist())) for g in values]
        norm = np.sqrt(np.float32(math.fsum(n * n for n in norms)))
        norm = norm if np.isfinite(norm) else one
        clip = (norm / scale32 + np.float32(1e-6)) / np.float32(max_norm)
        coefficient = one / (np.maximum(clip, one) * scale32)
        clipped = [np.asarray(g * coefficient) for g in values]
    return Clipped(clipped, float(norm), float(coefficient))


def _norm(t: Tensors, x: Tensor, format: Format) -> Tensor:
    whole = x.size - x.size % LANES
    squares = array((x[:whole] * x[:whole]).reshape(-1, LANES), FP32)
    total = array_sum(array_sum(squares, axis=0)).values.astype(np.float32)
    for value in x[whole:]:
        total = t.multiply_add(value, value, total)
    return fit(np.sqrt(total), format)


def _format(value: Any) -> Format:
    format: Format = get_format(value)
    if not format.fits(FP32) or not format.signed:
        raise InputError(f"format={format}: needed are signed numbers that FP32 holds. Example: format='bf16'")
    return format


def _check_number(name: str, value: Any, example: str) -> None:
    value = value.item() if isinstance(value, (np.integer, np.floating)) else value
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= sys.float_info.max:  # (the largest double: integers may be larger)
        raise InputError(f"{name}={short(value)}: a number above 0 is needed. {example}")
