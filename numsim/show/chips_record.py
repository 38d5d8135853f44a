"""The models of tensor cores as plain dictionaries for JSON, with nothing cut."""

from __future__ import annotations

from typing import Any

from numsim.show import chips
from numsim.tensorcore.chips import SOURCES, TITLES
from numsim.tensorcore.models import Model
from numsim.tensorcore.names import list_models


def model_dict(m: Model) -> dict[str, Any]:
    """A record with nothing left out."""
    u, e = m.unit, m.evidence
    return {
        "chip": m.chip, "instruction": m.instruction, "k": m.k, "a": m.a, "b": m.b, "c": m.c, "d": m.d,
        "formats": [f.name for f in m.formats], "scale": m.scale or None, "scale_block": m.scale_block or None,
        "unit": {"path": u.path, "length": u.length, "fraction_bits": u.fraction_bits, "floor": u.floor,
                 "output": u.output, "align": u.align, "normalised": u.normalised},
        "chain": chips.chain(m), "steps": chips.steps(m), "nan": f"{m.nan:#x}",
        "evidence": {"level": e.level, "recordings": list(e.recordings), "note": e.note or None,
                     "sources": {key: SOURCES[key] for key in e.sources}},
        "alike_on": chips.alike(m),
    }  # fmt: skip


def chip_dict(chip: str) -> dict[str, Any]:
    """A chip and all its records."""
    models = list_models(chip)
    return {**overview(chip), "not_modelled": chips.not_modelled(chip), "models": [model_dict(m) for m in models]}


def overview(chip: str) -> dict[str, Any]:
    """A chip's row of the table."""
    models = list_models(chip)
    return {
        "chip": chip, "title": TITLES[chip], "evidence": chips.evidence_counts(models), "fp16": chips.kept(chip, "f16"),
        "fp8": chips.kept(chip, *chips.FP8), "instructions": [m.instruction for m in models],
    }  # fmt: skip
