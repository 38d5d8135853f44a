"""Tensor operations as torch's CPU kernels round them: computed in FP32, each result rounded to the tensor's format.

Tensors are float32 arrays that hold values of a format. Which multiplications and additions share one rounding is the
compiler's choice, found by experiment with torch 2.13 (x86-64): with AVX2 or AVX-512 they are fused (``fma=True``),
with ``ATEN_CPU_CAPABILITY=default`` they are not. Three more things that torch does:

* a Python number that is *added* is first rounded to the tensor's format; one that multiplies or divides is not (it
  becomes FP32, as all constants do), but for ``_foreach_mul_`` on the CPU, which rounds it (``short_factors=True``):
  in BF16 a beta of 0.999 is 1 there;
* ``add_(y, alpha=...)`` on a 16-bit tensor rounds alpha to the format. Without vectors, and for the elements after the
  last full pair of vectors, it rounds the product too: ``fma=False`` does so. An alpha beyond the format's range is
  refused there and infinity here;
* the square root of an FP32 *tensor* comes from a vector library that is off by one unit in the last place now and
  then. Here it is IEEE 754's; torch's fused kernels and 16-bit tensors have that one too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.arithmetic import compute
from numsim.errors import InputError, short
from numsim.formats import FP32, Format
from numsim.rounding import Policy, round_to

Tensor = npt.NDArray[np.float32]
Number = float | np.float32 | Tensor


def fit(values: Any, format: Format, **options: Any) -> Tensor:
    """Numbers rounded once to a format, as float32; options as for ``round_to``."""
    if format == FP32 and not options and isinstance(values, np.ndarray) and values.dtype == np.float32:
        return values
    return np.asarray(round_to(values, format, **options)).astype(np.float32, copy=False)


def fit_all(gradients: Iterable[Any], format: Format) -> list[Tensor]:
    """Several arrays, each as ``fit`` has it."""
    try:
        given = None if isinstance(gradients, (str, bytes, Mapping, Set)) else list(gradients)
    except TypeError:
        given = None
    if given is None:
        raise InputError(f"gradients={short(gradients)}: a list of arrays is needed. Example: [[3.0, 4.0], [12.0]]")
    return [fit(g, format) for g in given]


@dataclass(frozen=True)
class Tensors:
    """The operations of the optimizers.

    fma : whether a multiplication and an addition share one rounding. short_factors : whether the numbers that tensors
    are multiplied by are rounded to the tensor's format first.

    >>> x = np.float32([1.0])
    >>> Tensors().add(x, 1e-8, FP32), Tensors().mul(x, 0.999, FP32)
    (array([1.], dtype=float32), array([0.999], dtype=float32))
    """

    fma: bool = True
    short_factors: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.fma, bool):
            raise InputError(f"fma={short(self.fma)}: allowed are True and False. Example: fma=False")

    def multiply_add(self, x: Number, y: Number, z: Number) -> Tensor:
        """x * y + z in FP32."""
        if not self.fma:
            return np.asarray(np.float32(x) * np.float32(y) + np.float32(z))
        words = [np.asarray(a, np.float32).view(np.uint32) for a in np.broadcast_arrays(x, y, z)]
        return compute("fma", words, [FP32] * 3, FP32, Policy()).view(np.float32)

    def mul(self, x: Tensor, number: float, format: Format) -> Tensor:
        return fit(x * (fit(number, format) if self.short_factors else np.float32(number)), format)

    def div(self, x: Tensor, number: float, format: Format) -> Tensor:
        return fit(x / np.float32(number), format)

    def add(self, x: Tensor, number: float, format: Format) -> Tensor:
        return fit(x + fit(number, format), format)

    def add_scaled(self, x: Tensor, y: Tensor, alpha: float, format: Format) -> Tensor:
        """x + alpha * y."""
        factor = fit(np.float32(alpha), format)
        if format != FP32 and not self.fma:
            return fit(x + fit(factor * y, format), format)
        return fit(self.multiply_add(y, factor, x), format)

    def lerp(self, x: Tensor, end: Tensor, weight: float, format: Format) -> Tensor:
        """x + weight * (end - x); from a weight of 0.5 on it is end - (1 - weight) * (end - x)."""
        part = np.float32(weight)
        if abs(part) < 0.5:
            return fit(self.multiply_add(part, end - x, x), format)
        return fit(self.multiply_add(part - np.float32(1), end - x, end), format)

    def addcmul(self, x: Tensor, y: Tensor, z: Tensor, value: float, format: Format) -> Tensor:
        """x + value * y * z."""
        return fit(self.multiply_add(np.float32(value) * y, z, x), format)

    def addcdiv(self, x: Tensor, y: Tensor, z: Tensor, value: float, format: Format) -> Tensor:
        """x + value * y / z: the product is rounded, then the quotient."""
        return fit(x + np.float32(value) * y / z, format)

    def sqrt(self, x: Tensor, format: Format) -> Tensor:
        return fit(np.sqrt(x), format)
