"""Tensor cores: what each chip's matrix unit does to a sum of products, bit for bit."""

from __future__ import annotations

from numsim.tensorcore.explain import MmaExplanation, explain_mma
from numsim.tensorcore.matrices import matmul
from numsim.tensorcore.models import Evidence, Model, Unit
from numsim.tensorcore.names import get_model, list_chips, list_models
from numsim.tensorcore.products import EvidenceWarning, mma

__all__ = [
    "Evidence",
    "EvidenceWarning",
    "MmaExplanation",
    "Model",
    "Unit",
    "explain_mma",
    "get_model",
    "list_chips",
    "list_models",
    "matmul",
    "mma",
]
