"""Optimizers with every rounding stated: SGD, Adam, AdamW; gradient accumulation; clipping; a small network."""

from __future__ import annotations

from numsim.optimizers.gradients import (
    Clipped,
    accumulate_gradients,
    clip_grad_norm,
    gradient_norm,
    unscale_and_clip,
)
from numsim.optimizers.mlp import train_digits
from numsim.optimizers.optimizers import (
    SGD,
    Adam,
    AdamW,
    Bytes,
    Optimizer,
    State,
    carry_and_cut,
    lost_updates,
)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Bytes",
    "Clipped",
    "Optimizer",
    "State",
    "accumulate_gradients",
    "carry_and_cut",
    "clip_grad_norm",
    "gradient_norm",
    "lost_updates",
    "train_digits",
    "unscale_and_clip",
]
