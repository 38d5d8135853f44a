"""OpenSeq2Seq's other scaler: it models the gradients' largest magnitude as log-normal and aims below overflow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numsim.errors import InputError, short
from numsim.scaling.scaler import Scaler, check_order, fp32, number, positive, reciprocal, settle


@dataclass(frozen=True)
class LogMaxState:
    """The scale, and fp32 moving averages of x = log2(amax) with their bias corrections."""

    scale: float = 1.0
    x_hat: float = 0.0
    slow_x_hat: float = 0.0
    xsquared_hat: float = 0.0
    b1_correction: float = 1.0
    b2_correction: float = 1.0

    def __post_init__(self) -> None:
        settle(self, **{name: number(name, x) for name, x in vars(self).items()})

    @property
    def inv_scale(self) -> float:
        """As for all scalers: the fp32 number that gradients are multiplied with."""
        return reciprocal(self.scale)


@dataclass(frozen=True)
class OpenSeq2SeqLogMaxScaler(Scaler):
    """OpenSeq2Seq's ``LogMaxScaler``: scale = 2^(16 - (mu + 3.09 sigma)), of the moving mean and spread of log2(amax).

    ``update`` takes the amax of the **unscaled** gradients instead of a flag. It uses every amax, so it moves at once
    and needs no overflow to find its place.

    Rules: fp32 throughout, one rounding an operation, in the original's order. Traps of the original, kept: a NaN or
    infinite amax counts as x = 2^log_max (65536, where 16 was meant), which pins the scale to its minimum for thousands
    of steps; an amax of 0 gives x = -inf and from then on NaN, which here keeps the scale NaN (what the original's clip
    makes of NaN depends on the device); the 16 in the exponent stays when ``log_max`` changes. What is not determined:
    the last bit of log and of 2^x, which are the device's; here both are rounded from double, and no bits are claimed.

    Raises ``InputError`` for an amax below 0. Source: NVIDIA/OpenSeq2Seq automatic_loss_scaler.py, LogMaxScaler.

    >>> scaler = OpenSeq2SeqLogMaxScaler()
    >>> state = scaler.update(scaler.initial(), 2.0**-8)
    >>> state.scale, scaler.update(state, float("inf")).scale
    (16777216.0, 1.0)
    """

    min_scale: float = 1.0
    max_scale: float = 2.0**24
    log_max: float = 16.0
    beta1: float = 0.99
    beta2: float = 0.999
    overflow_std_dev: float = 3.09

    states = LogMaxState
    title = "OpenSeq2Seq LogMaxScaler"
    source = "NVIDIA/OpenSeq2Seq open_seq2seq/optimizers/automatic_loss_scaler.py at 2383d5d"
    takes = "amax"
    checks = "unscaled"

    def __post_init__(self) -> None:
        for name in ("min_scale", "max_scale"):
            settle(self, **{name: positive(name, getattr(self, name))})
        for name in ("beta1", "beta2"):
            settle(self, **{name: positive(name, getattr(self, name), below=1.0)})
        for name in ("log_max", "overflow_std_dev"):
            settle(self, **{name: number(name, getattr(self, name))})
        check_order(self)

    def initial(self) -> LogMaxState:
        return LogMaxState()

    def update(self, state: Any, amax: Any) -> LogMaxState:
        """The state after a step whose unscaled gradients have this largest magnitude."""
        self.check(state)
        a = number("amax", amax)
        if a < 0:
            raise InputError(f"amax={short(amax)}: a magnitude is needed, 0 or above. Example: update(state, 0.25)")
        x = _log2(fp32(a)) if math.isfinite(a) else _exp2(self.log_max)
        x_hat = _average(self.beta1, state.x_hat, x)
        slow = _average(self.beta2, state.slow_x_hat, x)
        squared = _average(self.beta2, state.xsquared_hat, fp32(x * x))
        b1 = fp32(state.b1_correction * fp32(self.beta1))
        b2 = fp32(state.b2_correction * fp32(self.beta2))
        mu, rest = fp32(x_hat / fp32(1 - b1)), fp32(1 - b2)
        slow_mu, mean_square = fp32(slow / rest), fp32(squared / rest)
        variance = fp32(mean_square - fp32(slow_mu * slow_mu))
        sigma = fp32(math.sqrt(variance if variance > 0 else 0.0 * variance))  # (0 * NaN: it stays)
        cutoff = fp32(fp32(sigma * fp32(self.overflow_std_dev)) + mu)
        return LogMaxState(self._clip(_exp2(fp32(16 - cutoff))), x_hat, slow, squared, b1, b2)

    def is_overflow(self, amax: float) -> bool:
        return not math.isfinite(number("amax", amax))

    def grows(self, state: LogMaxState) -> bool:
        """Never by a count of steps."""
        return False

    @property
    def first_growth(self) -> int:
        """The first step already moves the scale, by its amax."""
        return 1

    def _clip(self, scale: float) -> float:
        return max(min(scale, self.cap), self.floor)  # (NaN comes first, and stays)

    @property
    def floor(self) -> float:
        return fp32(self.min_scale)

    @property
    def cap(self) -> float:
        return fp32(self.max_scale)


def _average(beta: float, old: float, new: float) -> float:
    """beta * old + (1 - beta) * new: fp32, with 1 - beta formed in double and rounded."""
    return fp32(fp32(fp32(beta) * old) + fp32(fp32(1 - beta) * new))


def _log2(x: float) -> float:
    return fp32(fp32(math.log(x)) / fp32(math.log(2.0))) if x else -math.inf


def _exp2(x: float) -> float:
    return x if math.isnan(x) else fp32(2.0 ** min(max(x, -1000.0), 1000.0))
