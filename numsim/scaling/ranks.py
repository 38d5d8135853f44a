"""What the ranks of a distributed training do with their found_inf: whether all of them skip the same steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from numsim.errors import InputError, check_choice, short
from numsim.scaling.scaler import number

REDUCTIONS = {"ddp": None, "fsdp": sum, "megatron": max, "deepspeed": max}
_EXAMPLE = "Example: reduce_found_inf([0.0, 1.0], 'fsdp')"


def reduce_found_inf(found_infs: Iterable[Any], system: str) -> tuple[float, ...]:
    """The found_inf that each simulated rank updates its scale with, from what each has found in its own gradients.

    "ddp" communicates nothing: every rank holds the same, all-reduced gradients, in which an infinity or a NaN of one
    rank has gone through the sum. Where ranks hold parts of them ("fsdp", sum; "megatron" and "deepspeed", maximum)
    their scales would part without it.

    Rules: an overflow is a number that is not 0, and NaN counts: a sum or maximum with one is NaN. Raises
    ``InputError`` for no ranks. Source: torch 2.13 torch/distributed/fsdp/sharded_grad_scaler.py; NVIDIA/Megatron-LM
    megatron/core/optimizer/optimizer.py; deepspeedai/DeepSpeed deepspeed/runtime/zero/stage_1_and_2.py.

    >>> reduce_found_inf([0, 1, 1], "fsdp"), reduce_found_inf([0, 1, 1], "deepspeed"), reduce_found_inf([0, 1], "ddp")
    ((2.0, 2.0, 2.0), (1.0, 1.0, 1.0), (0.0, 1.0))

    Two ranks, of which one has an infinity in its half of the gradients: with DDP both see it in the sum.

    >>> import numsim
    >>> from numsim.scaling import GradScaler, unscale
    >>> scaler = GradScaler(init_scale=8.0)
    >>> state = scaler.initial()
    >>> halves = numsim.array([[1.0, 2.0], [float("inf"), 3.0]], "fp16")
    >>> total = numsim.sum(halves, axis=0)  # the all-reduce
    >>> [scaler.update(state, unscale(scaler, state, total)[1]).scale for rank in range(2)]
    [4.0, 4.0]

    With sharded gradients one rank sees it, and the next step's gradients would have two scales.

    >>> found = [unscale(scaler, state, half)[1] for half in halves]
    >>> [scaler.update(state, f).scale for f in found]
    [8.0, 4.0]
    >>> [scaler.update(state, f).scale for f in reduce_found_inf(found, "fsdp")]
    [4.0, 4.0]
    """
    check_choice("system", system, REDUCTIONS, _EXAMPLE.removeprefix("Example: "))
    try:
        found = tuple(number("found_inf", f) for f in found_infs)
    except TypeError:
        found = ()
    if not found:
        raise InputError(f"found_infs={short(found_infs)}: a number for each rank is needed. {_EXAMPLE}")
    reduction = REDUCTIONS[system]
    if reduction is None:
        return found
    return (math.nan if any(map(math.isnan, found)) else float(reduction(found)),) * len(found)
