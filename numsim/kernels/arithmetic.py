"""Twin of ``numsim.arithmetic.compute``: the exact result of each operation, carried by a float64 rounded to odd.

Why that is exact. The hardware gives the float64 nearest to the exact result, and an error-free transformation (TwoSum,
or the residue of an fma) tells on which side the exact result lies. Where it is not the float64 itself, the one of its
two float64 neighbours with the odd last bit stands for it: a number rounded to odd at 53 bits rounds on to any shorter
format, in any mode, as the exact number would, because it is never a tie nor a number of the format unless the exact
one is. Rounding to nearest twice would not do (FP16: fma; BF16: 2^127 + 2^-133 rounded up).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import arithmetic
from numsim.arithmetic import result_policy
from numsim.codes import Codes, decode
from numsim.events import Events
from numsim.formats import FP64, Format
from numsim.host import flushes_subnormals, rounds_to_nearest
from numsim.kernels import _pool
from numsim.kernels import rounding as fast_rounding
from numsim.kernels._jit import as_bits, as_float, fma64, jit
from numsim.random import Draw
from numsim.rounding import Policy


def carries(format: Format) -> bool:
    """Whether float64 carries exact results for operands of this format: at most 26 bits, far from float64's limits."""
    return format.precision <= 26 and format.emin - format.fraction_bits >= -300 and format.emax <= 300


def rounds_from_odd(format: Format, draw: Draw | None) -> bool:
    """Whether 53 bits rounded to odd decide the rounding: two bits more than the format's, or all random bits more."""
    return format.fits(FP64) and not format.gap and format.precision + (draw.r if draw else 2) <= 52


def is_native(format: Format, policy: Policy) -> bool:
    """FP64 rounded to nearest is what the hardware computes, unless somebody has told it to flush subnormals."""
    return format == FP64 and policy == Policy(nan=policy.nan) and not flushes_subnormals()


def suits(
    operation: str,
    formats: Sequence[Format],
    result: Format,
    policy: Policy,
    draw: Draw | None,
    events: Events | None = None,
) -> bool:
    """Whether the kernel computes this bit for bit; the reference does the rest."""
    if not rounds_to_nearest():
        return False
    if is_native(result, policy):
        return events is None and all(f.fits(FP64) for f in formats)
    return all(map(carries, formats)) and rounds_from_odd(result, draw)


@jit
def to_odd(s, error):  # type: ignore[no-untyped-def]
    """The float64 rounded to odd, from the nearest float64 ``s`` and the sign of exact result minus ``s``."""
    bits = as_bits(s)
    if (error > 0.0 or error < 0.0) and bits & np.uint64(1) == np.uint64(0):  # false for NaN: infinities stay
        outwards = (error > 0.0) == (bits >> np.uint64(63) == np.uint64(0))
        return as_float(np.uint64(bits + np.uint64(1)) if outwards else np.uint64(bits - np.uint64(1)))
    return s


@jit
def add_odd(a, b, down):  # type: ignore[no-untyped-def]
    """a + b rounded to odd (TwoSum: Knuth, TAOCP 2, section 4.2.2, theorem B)."""
    s = a + b
    part = s - a
    error = (a - (s - part)) + (b - part)
    if down and s == 0.0 and (math.copysign(1.0, a) != math.copysign(1.0, b)):
        return -0.0  # IEEE 754-2019, 6.3: x - x is -0 when rounding down
    return to_odd(s, error)


@jit
def add(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = a[i] + b[i] if native else add_odd(a[i], b[i], down)


@jit
def sub(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = a[i] - b[i] if native else add_odd(a[i], -b[i], down)


@jit
def mul(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = a[i] * b[i]  # native, or two times 26 bits: exact


@jit
def div(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        q = a[i] / b[i]
        rest = fma64(-q, b[i], a[i])  # exact: a - q b
        out[i] = q if native else to_odd(q, rest if b[i] > 0.0 else -rest)


@jit
def sqrt(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        root = math.sqrt(a[i])
        out[i] = root if native else to_odd(root, fma64(-root, root, a[i]))


@jit
def fma(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = fma64(a[i], b[i], c[i]) if native else add_odd(a[i] * b[i], c[i], down)


KERNELS = {"add": add, "sub": sub, "mul": mul, "div": div, "sqrt": sqrt, "fma": fma}


def operand_values(codes: Codes, format: Format, policy: Policy) -> npt.NDArray[np.float64]:
    """The operands' values; under flush-inputs subnormal ones are zeros of their sign."""
    values = np.ascontiguousarray(decode(codes, format))
    if policy.subnormals in ("flush-inputs", "flush"):
        values = np.where(np.abs(values) < float(format.least_normal), np.copysign(0.0, values), values)
    return values


def compute(
    operation: str,
    operands: Sequence[Codes],
    formats: Sequence[Format],
    result: Format,
    policy: Policy,
    draw: Draw | None = None,
    events: Events | None = None,
) -> npt.NDArray[Any]:
    """Flat code arrays in, codes of ``result`` out."""
    values = [operand_values(a, f, policy) for a, f in zip(operands, formats, strict=True)]
    values += [values[0]] * (3 - len(values))  # kernels take three operands; those not needed are not read
    exact = np.empty(values[0].size)
    kernel = KERNELS[operation]
    down, native = policy.rounding == "down", is_native(result, policy)

    def chunk(first: int, end: int) -> None:
        kernel(*(v[first:end] for v in values), exact[first:end], down, native)

    with np.errstate(all="ignore"):
        _pool.over_chunks(exact.size, chunk)
    if events is not None and result.nan_code is not None:  # inf - inf, 0 / 0
        events.nan += int(np.count_nonzero(np.isnan(exact) & ~np.isnan(values).any(axis=0)))
    return fast_rounding.encode(exact, result, result_policy(policy), draw, events)


TWINS = [(arithmetic.compute, compute)]
