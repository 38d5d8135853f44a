"""What the functions on Arrays share: the operands that they take, and results that are rounded once."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from numsim.arithmetic import compute
from numsim.array import Array, array
from numsim.codes import Codes
from numsim.errors import InputError
from numsim.events import Events
from numsim.formats import get_format
from numsim.rounding import Nan, Overflow, Policy, Rounding, Subnormals, check_events, draw_for


def operands(operation: str, inputs: tuple[Any, ...], mixed: bool) -> list[Array]:
    """Arrays as given; plain numbers and float arrays rounded to the format of the Arrays beside them."""
    formats = {x.format for x in inputs if isinstance(x, Array)}
    wider = "accumulator" if operation in ("dot", "matmul") else "format"
    example = f"Example: numsim.{operation}({', '.join('xyz'[: len(inputs)])}, {wider}='fp32')"
    if not formats:
        raise InputError(f"{operation}: no operand is a numsim Array. Example: numsim.array([0.1, 0.2], 'bf16')")
    if len(formats) > 1 and not mixed:
        names = " and ".join(sorted(f.name for f in formats))
        raise InputError(f"{operation}: operands have formats {names}; which one should the result have? {example}")
    if len(formats) > 1 and not all(isinstance(x, Array) for x in inputs):
        raise InputError(f"{operation}: beside Arrays of several formats a plain number has no format. {example}")
    format = next(iter(formats))
    for x in inputs:
        if not isinstance(x, (Array, numbers.Number, np.ndarray, np.generic, str, list, tuple)):
            raise InputError(f"{operation}: {type(x).__name__} is no operand. {example}")
    return [x if isinstance(x, Array) else array(x, format) for x in inputs]


def one(operation: str, x: Any) -> Array:
    """x, which must be an Array."""
    if not isinstance(x, Array):
        raise InputError(f"{operation} takes an Array, not {type(x).__name__}. "
                         f"Example: numsim.{operation}(numsim.array([0.1, 0.2], 'bf16'))")  # fmt: skip
    return x


def broadcast(operation: str, x: Array, y: Array) -> tuple[Codes, Codes]:
    """The codes of both in one shape."""
    try:
        codes, others = np.broadcast_arrays(x.codes, y.codes)
    except ValueError:
        raise InputError(f"{operation}: shapes {x.shape} and {y.shape} do not broadcast.") from None
    return codes, others


def round_once(
    operation: str,
    inputs: tuple[Any, ...],
    format: Any = None,
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    nan: Nan = "raise",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
    events: Events | None = None,
) -> Array:
    """An elementwise operation of ``arithmetic.py`` on Arrays, with the options of ``encode``."""
    arrays = operands(operation, inputs, mixed=format is not None)
    result = get_format(format) if format is not None else arrays[0].format
    policy = Policy(rounding, overflow, subnormals, nan)
    check_events(events)
    try:
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
    except ValueError:
        shapes = " and ".join(str(x.shape) for x in arrays)
        raise InputError(f"{operation}: shapes {shapes} do not broadcast.") from None
    draw = draw_for(policy, math.prod(shape), shape, seed, random_bits, sr_bits)
    codes = compute(operation, [x.codes for x in arrays], [x.format for x in arrays], result, policy, draw, events)
    return Array(codes, result, f"{operation} rounded once to {result}, {policy}")
