"""Arithmetic on Arrays: each result exact, then rounded once. Options are keywords; ``how`` names them."""

from __future__ import annotations

from typing import Any

import numpy as np

from numsim.array import Array
from numsim.codes import classify
from numsim.errors import InputError
from numsim.operands import round_once


def add(x: Any, y: Any, **options: Any) -> Array:
    """x + y, exact, then rounded once.

    Rules: IEEE 754 for NaN, infinities and signed zeros; ``rounding``, ``overflow``, ``subnormals``, ``nan``, ``seed``,
    ``random_bits``, ``sr_bits``, ``events`` as for ``encode``; ``format=`` is the format of the result, by default that
    of the operands, which must agree unless ``format`` is given.

    >>> from numsim import array
    >>> one = array(1.0, "e4m3")
    >>> add(one, array(0.0625, "e4m3")), add(one, array(0.0625, "e4m3"), rounding="up")
    (numsim.array(1.0, 'e4m3fn'), numsim.array(1.125, 'e4m3fn'))
    """
    return round_once("add", (x, y), **options)


def sub(x: Any, y: Any, **options: Any) -> Array:
    """x - y, rounded once; options as for ``add``."""
    return round_once("sub", (x, y), **options)


def mul(x: Any, y: Any, **options: Any) -> Array:
    """x * y, rounded once; options as for ``add``."""
    return round_once("mul", (x, y), **options)


def div(x: Any, y: Any, **options: Any) -> Array:
    """x / y, rounded once; options as for ``add``."""
    return round_once("div", (x, y), **options)


def sqrt(x: Any, **options: Any) -> Array:
    """The square root, rounded once; options as for ``add``."""
    return round_once("sqrt", (x,), **options)


def fma(x: Any, y: Any, z: Any, **options: Any) -> Array:
    """x * y + z with one rounding; options as for ``add``.

    >>> from numsim import array
    >>> x, y, z = (array([float.fromhex(h)], "fp16") for h in ("0x1.c64p-1", "0x1.8ccp+1", "-0x1.9dp+9"))
    >>> fma(x, y, z)  # computed in float32 and rounded again it would be -823.0
    numsim.array([-823.5], 'fp16')
    """
    return round_once("fma", (x, y, z), **options)


def negative(x: Array) -> Array:
    """-x: the sign bit flipped, nothing rounded (NaN stays as it is; -0 becomes +0 where it does not exist)."""
    if not x.format.signed:
        raise InputError(f"{x.format} is unsigned: it has no negative numbers. Example: -x.astype('fp32')")
    flipped = x.codes ^ x.codes.dtype.type(x.format.sign_mask)
    keep = classify(x.codes, x.format) == "nan"
    if x.format.specials == "fnuz":
        keep = keep | (x.codes == 0)
    return Array(np.where(keep, x.codes, flipped), x.format, "negative")
