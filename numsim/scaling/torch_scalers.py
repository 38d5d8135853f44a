"""The scaler of ``torch.amp``, and those that copy its arithmetic: FSDP's, Apex's kernel; and a scale that stays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from numsim.errors import InputError, short
from numsim.scaling.scaler import (
    FLT_MAX,
    FlagScaler,
    HysteresisState,
    State,
    fp32,
    number,
    scale_number,
    settle,
    whole,
)


@dataclass(frozen=True)
class StaticScaler(FlagScaler):
    """A scale that never changes; overflows are skipped, and nothing is learned from them.

    Rules: the scale is rounded to fp32. Source: DeepSpeed's LossScaler and Megatron's ConstantGradScaler.

    >>> scaler = StaticScaler(1024.0)
    >>> scaler.update(scaler.initial(), 1)
    State(scale=1024.0, growth_tracker=0)
    """

    init_scale: float = 65536.0

    title = "a static scale"
    source = "NVIDIA/Megatron-LM megatron/core/optimizer/grad_scaler.py, ConstantGradScaler"

    def __post_init__(self) -> None:
        settle(self, init_scale=scale_number("init_scale", self.init_scale))

    def initial(self) -> State:
        return State(fp32(self.init_scale))

    def overflow(self, state: State) -> State:
        return state

    def clean(self, state: State) -> State:
        return state

    def grows(self, state: State) -> bool:
        return False

    def backs_off(self, state: State) -> bool:
        return False

    @property
    def factors(self) -> tuple[float, float]:
        return 1.0, 1.0

    @property
    def first_growth(self) -> None:
        return None


@dataclass(frozen=True)
class GradScaler(FlagScaler):
    """``torch.amp.GradScaler``: halve on overflow, double after ``growth_interval`` clean steps in a row.

    Rules: the product of scale and factor is formed in double and rounded once to fp32. A growth that is not finite is
    dropped (and the count starts again); nothing else bounds the scale: it can become infinite, 0 or NaN, and stays so.
    It accepts what torch accepts: a scale of 0, below 0, infinite or NaN, a backoff of 0 or below, an interval of 0 or
    below (it never grows), a factor of NaN. The tracker is an int32 and wraps. ``check_strict`` refuses all that.

    Raises ``InputError`` where torch raises: a growth factor of at most 1, a backoff of at least 1, a finite scale
    beyond fp32, an interval that is a bool or a float. Source: torch 2.13, torch/amp/grad_scaler.py and
    ``_amp_update_scale_``.

    >>> scaler = GradScaler(init_scale=3.0, growth_factor=1.1, growth_interval=2)
    >>> state = scaler.update(scaler.initial(), 0.0)
    >>> state, scaler.update(state, 0.0), scaler.update(state, float("nan"))
    (State(scale=3.0, growth_tracker=1), State(scale=3.299999952316284, growth_tracker=0),
     State(scale=1.5, growth_tracker=0))
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    title = "torch.amp.GradScaler"
    source = "pytorch 2.13 torch/amp/grad_scaler.py"
    divides = False
    keeps_finite = True

    def __post_init__(self) -> None:
        growth = number("growth_factor", self.growth_factor)
        backoff = number("backoff_factor", self.backoff_factor)
        if growth <= 1.0:  # (so that NaN passes, as it does in torch)
            raise InputError(f"growth_factor={short(self.growth_factor)}: The growth factor must be > 1.0. "
                             "Example: GradScaler(growth_factor=2.0)")  # fmt: skip
        if backoff >= 1.0:
            raise InputError(f"backoff_factor={short(self.backoff_factor)}: The backoff factor must be < 1.0. "
                             "Example: GradScaler(backoff_factor=0.5)")  # fmt: skip
        interval = whole("growth_interval", self.growth_interval, -(2**63))
        scale = scale_number("init_scale", self.init_scale)
        settle(self, init_scale=scale, growth_factor=growth, backoff_factor=backoff, growth_interval=interval)

    def initial(self) -> Any:
        return State(fp32(self.init_scale))

    def overflow(self, state: Any) -> Any:
        return replace(state, scale=fp32(state.scale * self.factors[1]), growth_tracker=0)

    def clean(self, state: Any) -> Any:
        if not self.grows(state):
            return replace(state, growth_tracker=int32(state.growth_tracker + 1))
        grown = fp32(state.scale * self.factors[0])
        kept = math.isfinite(grown) or not self.keeps_finite
        return replace(state, scale=grown if kept else state.scale, growth_tracker=0)

    def grows(self, state: Any) -> bool:
        return int32(state.growth_tracker + 1) == self.growth_interval

    @property
    def factors(self) -> tuple[float, float]:
        return self.growth_factor, self.backoff_factor

    @property
    def first_growth(self) -> int | None:
        return self.growth_interval if 0 < self.growth_interval < 2**31 else None

    @property
    def cap(self) -> float | None:
        return FLT_MAX


@dataclass(frozen=True)
class ShardedGradScaler(GradScaler):
    """FSDP's ``ShardedGradScaler`` on the CPU: its own Python update, not the kernel.

    Rules: overflow is found_inf >= 1, so that NaN, 0.5 and -1 pass as clean (it is a sum over ranks, 0 or at least 1).
    The factor is rounded to fp32 before the product; growth has no cap. Settings as for ``GradScaler``, of which it
    is a kind (torch's own takes backoff before growth, by position).
    Source: torch 2.13, torch/distributed/fsdp/sharded_grad_scaler.py.

    >>> scaler = ShardedGradScaler(init_scale=3.0, growth_factor=1.1, growth_interval=1)
    >>> scaler.update(scaler.initial(), 0).scale
    3.3000001907348633
    """

    title = "torch FSDP ShardedGradScaler (CPU)"
    source = "pytorch 2.13 torch/distributed/fsdp/sharded_grad_scaler.py"
    keeps_finite = False

    def is_overflow(self, found_inf: Any) -> Any:
        return found_inf >= 1.0

    @property
    def factors(self) -> tuple[float, float]:
        return fp32(self.growth_factor), fp32(self.backoff_factor)

    @property
    def cap(self) -> float | None:
        return None


@dataclass(frozen=True)
class ApexHysteresisScaler(GradScaler):
    """Apex's ``update_scale_hysteresis`` kernel: as torch, but it takes ``hysteresis`` overflows in a row.

    Rules: an overflow with hysteresis left only sets the tracker to 0; any clean step refills the hysteresis. Once it
    is used up, it goes on falling below 0. found_inf is compared with 0 three ways: NaN lowers the scale at once and
    leaves the hysteresis as it is, a number below 0 lowers the scale and refills it.
    Source: NVIDIA/apex csrc/update_scale_hysteresis.cu.

    >>> scaler = ApexHysteresisScaler(init_scale=16.0, hysteresis=2)
    >>> state = scaler.update(scaler.initial(), 1)
    >>> state, scaler.update(state, 1).scale
    (HysteresisState(scale=16.0, growth_tracker=0, hysteresis_tracker=1), 8.0)
    """

    hysteresis: int = 2

    states = HysteresisState
    title = "Apex update_scale_hysteresis"
    source = "NVIDIA/apex csrc/update_scale_hysteresis.cu at 6424da3"

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, hysteresis=whole("hysteresis", self.hysteresis, -(2**31)))

    def initial(self) -> HysteresisState:
        return HysteresisState(fp32(self.init_scale), 0, self.hysteresis)

    def update(self, state: Any, found_inf: Any) -> Any:
        self.check(state)
        found = number("found_inf", found_inf)
        if found > 0:
            state = replace(state, hysteresis_tracker=state.hysteresis_tracker - 1)
            if state.hysteresis_tracker > 0:
                return replace(state, growth_tracker=0)
        state = self.overflow(state) if found != 0 else self.clean(state)
        return replace(state, hysteresis_tracker=self.hysteresis) if found <= 0 else state

    def backs_off(self, state: HysteresisState) -> bool:
        return state.hysteresis_tracker <= 1

    @property
    def refills(self) -> bool:
        return True


def int32(x: int) -> int:
    """An integer as an int32 that wraps."""
    return (x + 2**31) % 2**32 - 2**31
