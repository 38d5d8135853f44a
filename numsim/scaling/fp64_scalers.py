"""Scalers whose scale is a Python float: two of Apex, DeepSpeed, fairseq. Settings are named as in ``fp32_scalers``.

They lean on the CPU's own FP64, subnormals too: a CPU that flushes these is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from numsim.errors import InputError, short
from numsim.scaling.scaler import CountingScaler, IterationState, ScalerError, State, number, positive, settle, whole


@dataclass(frozen=True)
class ApexScaler(CountingScaler):
    """Apex amp's ``LossScaler``: factor 2, at most 2^24, no minimum unless one is set; the gradients' sum is checked.

    Rules: Python floats. A ``min_scale`` of 0 or None is none; without it the scale halves to 2^-1074 and then to 0,
    where unscaling divides by zero. Source: NVIDIA/apex apex/amp/scaler.py, before it was removed.

    >>> scaler = ApexScaler(growth_interval=1)
    >>> ApexScaler(init_scale=2.0**30).initial().scale == 2.0**24, scaler.update(State(2.0**24), 0).scale == 2.0**24
    (True, True)
    """

    init_scale: float = 65536.0
    growth_interval: int = 2000
    min_scale: float | None = None
    max_scale: float = 2.0**24

    title = "Apex amp LossScaler"
    _optional = ("min_scale",)
    source = "NVIDIA/apex apex/amp/scaler.py, parent of cb65b8e"
    keeps = "fp64"
    checks = "sum"

    def __post_init__(self) -> None:
        if self.min_scale is not None and number("min_scale", self.min_scale) == 0:
            settle(self, min_scale=None)
        super().__post_init__()

    def initial(self) -> State:
        return State(min(self.max_scale, self.init_scale))

    def overflow(self, state: Any) -> Any:
        return State(state.scale / 2 if self.min_scale is None else max(self.min_scale, state.scale / 2))

    def clean(self, state: Any) -> Any:
        if self.grows(state):
            return State(min(self.max_scale, state.scale * 2))
        return State(state.scale, state.growth_tracker + 1)

    def grows(self, state: State) -> bool:
        return state.growth_tracker + 1 == self.growth_interval

    @property
    def floor(self) -> float | None:
        return self.min_scale

    @property
    def cap(self) -> float:
        return self.max_scale


@dataclass(frozen=True)
class ApexFp16Scaler(CountingScaler):
    """Apex fp16_utils' ``DynamicLossScaler``: not below 1, no maximum; the gradients' sum is checked.

    Rules: Python floats; the window is counted from the last overflow. Source: NVIDIA/apex
    apex/fp16_utils/loss_scaler.py, before it was removed.

    >>> scaler = ApexFp16Scaler(init_scale=1.5, growth_interval=2)
    >>> scaler.update(scaler.initial(), 1)
    IterationState(scale=1.0, cur_iter=1, last_overflow_iter=0)
    """

    init_scale: float = 2.0**32
    scale_factor: float = 2.0
    growth_interval: int = 1000

    states = IterationState
    title = "Apex fp16_utils DynamicLossScaler"
    source = "NVIDIA/apex apex/fp16_utils/loss_scaler.py, parent of cb65b8e"
    keeps = "fp64"
    checks = "sum"

    def initial(self) -> IterationState:
        return IterationState(self.init_scale)

    def overflow(self, state: Any) -> Any:
        return IterationState(max(state.scale / self.scale_factor, 1.0), state.cur_iter + 1, state.cur_iter)

    def clean(self, state: Any) -> Any:
        scale = state.scale * self.scale_factor if self.grows(state) else state.scale
        return replace(state, scale=scale, cur_iter=state.cur_iter + 1)

    def grows(self, state: IterationState) -> bool:
        return (state.cur_iter - state.last_overflow_iter) % self.growth_interval == 0

    @property
    def factors(self) -> tuple[float, float]:
        return self.scale_factor, self.scale_factor

    @property
    def floor(self) -> float:
        return 1.0


@dataclass(frozen=True)
class DeepSpeedState(IterationState):
    """As ``IterationState``, with what is left of the hysteresis."""

    cur_hysteresis: int = 1


@dataclass(frozen=True)
class DeepSpeedScaler(CountingScaler):
    """DeepSpeed's ``DynamicLossScaler``: a growth refills the hysteresis, or (consecutive) any clean step.

    Rules: Python floats; factor 2. The first growth comes after ``growth_interval`` + 1 clean steps, the next ones
    after ``growth_interval``. ``hysteresis`` is its ``delayed_shift``; once down to 1 it stays there.

    Raises ``ScalerError`` (the state has not changed) for an overflow that should lower the scale from ``min_scale``,
    unless ``raise_error_at_min_scale`` is False, and for an overflow at an infinite scale, which its log line cannot
    print. Source: deepspeedai/DeepSpeed deepspeed/runtime/fp16/loss_scaler.py.

    >>> scaler = DeepSpeedScaler(init_scale=2.0, hysteresis=1)
    >>> state = scaler.update(scaler.initial(), 1)
    >>> scaler.update(state, 1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    numsim.scaling.scaler.ScalerError: Current loss scale already at minimum - cannot ...
    """

    init_scale: float = 65536.0
    growth_interval: int = 1000
    min_scale: float = 1.0
    hysteresis: int = 2
    consecutive_hysteresis: bool = False
    raise_error_at_min_scale: bool = True

    states = DeepSpeedState
    title = "DeepSpeed DynamicLossScaler"
    source = "deepspeedai/DeepSpeed deepspeed/runtime/fp16/loss_scaler.py at edaa722"
    keeps = "fp64"
    stops_at_infinity = True

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, hysteresis=whole("hysteresis", self.hysteresis))
        for name in ("consecutive_hysteresis", "raise_error_at_min_scale"):
            if not isinstance(x := getattr(self, name), bool):
                raise InputError(f"{name}={short(x)}: True or False is needed. "
                                 "Example: DeepSpeedScaler(consecutive_hysteresis=True)")  # fmt: skip

    def initial(self) -> DeepSpeedState:
        return DeepSpeedState(self.init_scale, cur_hysteresis=self.hysteresis)

    def overflow(self, state: Any) -> Any:
        lowers = self.backs_off(state)
        if lowers and state.scale == self.min_scale and self.raise_error_at_min_scale:
            raise ScalerError("Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
                              state, "Exception")  # fmt: skip
        if math.isinf(state.scale):
            raise ScalerError("cannot convert float infinity to integer", state, "OverflowError")
        if lowers:
            state = replace(state, scale=max(state.scale / 2, self.min_scale))
        else:
            state = replace(state, cur_hysteresis=state.cur_hysteresis - 1)
        return replace(state, cur_iter=state.cur_iter + 1, last_overflow_iter=state.cur_iter)

    def clean(self, state: Any) -> Any:
        grows = self.grows(state)
        return replace(
            state,
            scale=state.scale * 2 if grows else state.scale,
            cur_hysteresis=self.hysteresis if grows or self.consecutive_hysteresis else state.cur_hysteresis,
            cur_iter=state.cur_iter + 1,
        )

    def grows(self, state: DeepSpeedState) -> bool:
        stable = state.growth_tracker
        return stable > 0 and stable % self.growth_interval == 0

    def backs_off(self, state: DeepSpeedState) -> bool:
        return self.hysteresis == 1 or state.cur_hysteresis == 1

    @property
    def first_growth(self) -> int:
        return self.growth_interval + 1

    @property
    def next_growth(self) -> int:
        return self.growth_interval

    @property
    def refills(self) -> bool:
        return self.consecutive_hysteresis

    @property
    def stops_at_floor(self) -> bool:
        return self.raise_error_at_min_scale

    @property
    def floor(self) -> float:
        return self.min_scale


@dataclass(frozen=True)
class FairseqState(IterationState):
    """As ``IterationState``, with what its ``tolerance`` needs."""

    last_rescale_iter: int = -1
    overflows_since_rescale: int = 0


@dataclass(frozen=True)
class FairseqScaler(CountingScaler):
    """fairseq's ``DynamicLossScaler``: lowers the scale where the share of overflows since it last changed reaches
    ``tolerance``, and ends the training at ``min_scale``.

    Rules: Python floats. ``threshold`` is a floor; with one above ``min_scale`` nothing ever raises. The gradients'
    norm is checked, which overflows before they do.

    Raises ``ScalerError`` (original: FloatingPointError) where the scale would be ``min_scale`` or below: it has the
    scale from before, and the iteration does not count. Source: facebookresearch/fairseq
    fairseq/optim/dynamic_loss_scaler.py.

    >>> scaler = FairseqScaler(init_scale=4.0, growth_interval=2)
    >>> scaler.update(scaler.initial(), 1)
    FairseqState(scale=2.0, cur_iter=1, last_overflow_iter=0, last_rescale_iter=0, overflows_since_rescale=0)
    """

    init_scale: float = 2.0**15
    scale_factor: float = 2.0
    growth_interval: int = 2000
    tolerance: float = 0.0
    threshold: float | None = None
    min_scale: float = 1e-4

    states = FairseqState
    title = "fairseq DynamicLossScaler"
    source = "facebookresearch/fairseq fairseq/optim/dynamic_loss_scaler.py at 0d77035"
    keeps = "fp64"
    checks = "norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, tolerance=number("tolerance", self.tolerance))
        if self.threshold is not None:
            settle(self, threshold=positive("threshold", self.threshold))

    def initial(self) -> FairseqState:
        return FairseqState(self.init_scale)

    def overflow(self, state: Any) -> Any:
        before = state.scale
        lowers = self.backs_off(state)
        state = replace(state, last_overflow_iter=state.cur_iter)
        state = replace(state, overflows_since_rescale=state.overflows_since_rescale + 1)
        if lowers:
            scale = max(before / self.scale_factor, self.threshold or 0.0)
            state = replace(state, scale=scale, last_rescale_iter=state.cur_iter, overflows_since_rescale=0)
        if state.scale <= self.min_scale:
            raise ScalerError(f"Minimum loss scale reached ({self.min_scale}). Your loss is probably exploding.",
                              replace(state, scale=before), "FloatingPointError")  # fmt: skip
        return replace(state, cur_iter=state.cur_iter + 1)

    def clean(self, state: Any) -> Any:
        if self.grows(state):
            state = replace(state, scale=state.scale * self.scale_factor, last_rescale_iter=state.cur_iter)
        return replace(state, cur_iter=state.cur_iter + 1)

    def grows(self, state: FairseqState) -> bool:
        return (state.cur_iter - state.last_overflow_iter) % self.growth_interval == 0

    def backs_off(self, state: FairseqState) -> bool:
        since = state.cur_iter - state.last_rescale_iter or 1000
        return (state.overflows_since_rescale + 1) / since >= self.tolerance

    @property
    def factors(self) -> tuple[float, float]:
        return self.scale_factor, self.scale_factor

    @property
    def stops_from(self) -> float:
        return self.min_scale

    @property
    def floor(self) -> float | None:
        return self.threshold
