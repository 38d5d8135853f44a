"""Scalers whose scale is an fp32 tensor: Megatron, Keras, JMP, Flax, OpenSeq2Seq; a class and a few lines each.

Settings have one name everywhere: ``init_scale``, ``growth_interval`` (their window, period, dynamic_growth_steps),
``growth_factor`` and ``backoff_factor`` or one ``scale_factor``, ``min_scale``, ``max_scale``, ``hysteresis``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from numsim.errors import InputError, short
from numsim.scaling.scaler import (
    FLT_MAX,
    FLT_MIN,
    CountingScaler,
    HysteresisState,
    IterationState,
    State,
    fp32,
    settle,
    whole,
)


@dataclass(frozen=True)
class MegatronScaler(CountingScaler):
    """Megatron's ``DynamicGradScaler``: ``hysteresis`` overflows, in a row or not, lower the scale; growth refills.

    Rules: factors are fp32 tensors, products fp32. An overflow sets the tracker to 0 and takes one from the hysteresis,
    at 0 or below the scale backs off, not below ``min_scale``. Growth has no cap: the scale can become infinite.
    Settings are checked as the original asserts. Source: NVIDIA/Megatron-LM megatron/core/optimizer/grad_scaler.py.

    >>> scaler = MegatronScaler(init_scale=16.0)
    >>> state = scaler.initial()
    >>> for found_inf in (1, 0, 1, 1):
    ...     state = scaler.update(state, found_inf)
    >>> state
    HysteresisState(scale=4.0, growth_tracker=0, hysteresis_tracker=-1)
    """

    init_scale: float = 2.0**32
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 1000
    min_scale: float = 1.0
    hysteresis: int = 2

    states = HysteresisState
    title = "Megatron-LM DynamicGradScaler"
    source = "NVIDIA/Megatron-LM megatron/core/optimizer/grad_scaler.py at d98e8a6"
    divides = False

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, hysteresis=whole("hysteresis", self.hysteresis))
        if self.min_scale > self.init_scale:
            raise InputError(f"min_scale={short(self.min_scale)}: at most init_scale={self.init_scale!r} is allowed. "
                             "Example: MegatronScaler(init_scale=65536.0, min_scale=1.0)")  # fmt: skip

    def initial(self) -> HysteresisState:
        return HysteresisState(fp32(self.init_scale), 0, self.hysteresis)

    def overflow(self, state: Any) -> Any:
        lower = max(fp32(state.scale * fp32(self.backoff_factor)), fp32(self.min_scale))
        scale = lower if self.backs_off(state) else state.scale
        return HysteresisState(scale, 0, state.hysteresis_tracker - 1)

    def clean(self, state: Any) -> Any:
        if self.grows(state):
            return HysteresisState(fp32(state.scale * fp32(self.growth_factor)), 0, self.hysteresis)
        return replace(state, growth_tracker=state.growth_tracker + 1)

    def grows(self, state: HysteresisState) -> bool:
        return state.growth_tracker + 1 == self.growth_interval

    def backs_off(self, state: HysteresisState) -> bool:
        return state.hysteresis_tracker <= 1

    @property
    def factors(self) -> tuple[float, float]:
        return fp32(self.growth_factor), fp32(self.backoff_factor)

    @property
    def floor(self) -> float:
        return fp32(self.min_scale)


@dataclass(frozen=True)
class KerasScaler(CountingScaler):
    """Keras' ``LossScaleOptimizer``: factor 2, no bounds at all; gradients are divided by the scale.

    Rules: fp32; 2^127 doubles to infinity, and infinity / 2 stays infinite; from 2^-149 it halves to 0, and stays. (A
    back end that flushes subnormals gets to 0 from 2^-126.) Source: keras-team/keras loss_scale_optimizer.py.

    >>> scaler = KerasScaler(init_scale=2.0**127, growth_interval=1)
    >>> scaler.update(scaler.update(scaler.initial(), 0), 1)
    State(scale=inf, growth_tracker=0)
    """

    init_scale: float = 2.0**15
    growth_interval: int = 2000

    title = "Keras LossScaleOptimizer"
    source = "keras-team/keras keras/src/optimizers/loss_scale_optimizer.py at 054e295"
    unscales = "divide"

    def initial(self) -> State:
        return State(fp32(self.init_scale))

    def overflow(self, state: Any) -> Any:
        return State(fp32(state.scale / 2))

    def clean(self, state: Any) -> Any:
        return State(fp32(state.scale * 2)) if self.grows(state) else State(state.scale, state.growth_tracker + 1)

    def grows(self, state: State) -> bool:
        return state.growth_tracker == self.growth_interval - 1


@dataclass(frozen=True)
class JmpScaler(CountingScaler):
    """JMP's ``DynamicLossScale``: as torch, with a minimum; it divides by its factor, and drops infinite growth.

    Rules: fp32; the factor is rounded to fp32. The original forgets a ``min_scale`` other than 1 when the object passes
    through a JAX transformation; this one does not. Source: google-deepmind/jmp jmp/_src/loss_scale.py.

    >>> scaler = JmpScaler(init_scale=2.0**127, growth_interval=1)
    >>> scaler.update(scaler.initial(), 0).scale == 2.0**127, scaler.update(State(1.5), 1).scale
    (True, 1.0)
    """

    init_scale: float = 2.0**15
    scale_factor: float = 2.0
    growth_interval: int = 2000
    min_scale: float = 1.0

    title = "JMP DynamicLossScale"
    source = "google-deepmind/jmp jmp/_src/loss_scale.py at 9c1cdbb"
    checks = "unscaled"
    keeps_finite = True

    def initial(self) -> State:
        return State(fp32(self.init_scale))

    def overflow(self, state: Any) -> Any:
        return State(max(fp32(state.scale / fp32(self.scale_factor)), self.floor))  # (NaN comes first, and stays)

    def clean(self, state: Any) -> Any:
        if not self.grows(state):
            return State(state.scale, (state.growth_tracker + 1) % self.growth_interval)
        grown = fp32(state.scale * fp32(self.scale_factor))
        return State(grown if math.isfinite(grown) else state.scale)

    def grows(self, state: State) -> bool:
        return state.growth_tracker == self.growth_interval - 1

    @property
    def factors(self) -> tuple[float, float]:
        return fp32(self.scale_factor), fp32(self.scale_factor)

    @property
    def floor(self) -> float:
        return fp32(self.min_scale)

    @property
    def cap(self) -> float:
        return FLT_MAX


@dataclass(frozen=True)
class FlaxScaler(CountingScaler):
    """Flax' ``DynamicScale``: grows every ``growth_interval`` + 1 clean steps; divides in fp32 and then checks.

    Rules: fp32, as it computes under ``jit`` (without it the first product is one of Python floats). The scale stays
    between ``min_scale`` (2^-126; None: no minimum, and it can become 0) and the largest fp32. Source: google/flax
    flax/training/dynamic_scale.py.

    >>> scaler = FlaxScaler(init_scale=4.0, growth_interval=1)
    >>> state = scaler.update(scaler.initial(), 0)
    >>> state, scaler.update(state, 0)
    (State(scale=4.0, growth_tracker=1), State(scale=8.0, growth_tracker=0))
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float | None = FLT_MIN

    title = "Flax DynamicScale"
    _optional = ("min_scale",)
    source = "google/flax flax/training/dynamic_scale.py at 0e5fc04"
    divides = False
    unscales = "divide"
    checks = "unscaled"

    def initial(self) -> State:
        return State(fp32(self.init_scale))

    def overflow(self, state: Any) -> Any:
        scale = fp32(state.scale * fp32(self.backoff_factor))
        return State(scale if self.floor is None else max(scale, self.floor))

    def clean(self, state: Any) -> Any:
        if self.grows(state):
            return State(min(fp32(state.scale * fp32(self.growth_factor)), FLT_MAX))
        return State(state.scale, state.growth_tracker + 1)

    def grows(self, state: State) -> bool:
        return state.growth_tracker == self.growth_interval

    @property
    def factors(self) -> tuple[float, float]:
        return fp32(self.growth_factor), fp32(self.backoff_factor)

    @property
    def first_growth(self) -> int:
        return self.growth_interval + 1

    @property
    def floor(self) -> float | None:
        return None if self.min_scale is None else fp32(self.min_scale)

    @property
    def cap(self) -> float:
        return FLT_MAX


@dataclass(frozen=True)
class OpenSeq2SeqScaler(CountingScaler):
    """OpenSeq2Seq's ``BackoffScaler``: begins at its maximum 2^24 (there is no other choice), and stays above 1.

    Rules: fp32; the factor is rounded to fp32, an overflow divides by it. The window is counted from the last overflow.
    Source: NVIDIA/OpenSeq2Seq open_seq2seq/optimizers/automatic_loss_scaler.py.

    >>> scaler = OpenSeq2SeqScaler(growth_interval=1)
    >>> state = scaler.update(scaler.initial(), 1)
    >>> state.scale == 2.0**23, scaler.update(scaler.update(state, 0), 0).scale == 2.0**24
    (True, True)
    """

    init_scale: float = 2.0**24
    scale_factor: float = 2.0
    growth_interval: int = 2000
    min_scale: float = 1.0
    max_scale: float = 2.0**24

    states = IterationState
    title = "OpenSeq2Seq BackoffScaler"
    source = "NVIDIA/OpenSeq2Seq open_seq2seq/optimizers/automatic_loss_scaler.py at 2383d5d"
    checks = "unscaled"
    floors_growth = True

    def initial(self) -> IterationState:
        return IterationState(fp32(min(self.max_scale, self.init_scale)))

    def overflow(self, state: Any) -> Any:
        scale = self._clip(fp32(state.scale / fp32(self.scale_factor)))
        return IterationState(scale, state.cur_iter + 1, state.cur_iter)

    def clean(self, state: Any) -> Any:
        scale = self._clip(fp32(state.scale * fp32(self.scale_factor))) if self.grows(state) else state.scale
        return replace(state, scale=scale, cur_iter=state.cur_iter + 1)

    def grows(self, state: IterationState) -> bool:
        return (state.cur_iter - state.last_overflow_iter) % self.growth_interval == 0

    def _clip(self, scale: float) -> float:
        return max(min(scale, self.cap), self.floor)

    @property
    def factors(self) -> tuple[float, float]:
        return fp32(self.scale_factor), fp32(self.scale_factor)

    @property
    def floor(self) -> float:
        return fp32(self.min_scale)

    @property
    def cap(self) -> float:
        return fp32(self.max_scale)
