"""The table of scalers: every system by the name that experiments and the command line use."""

from __future__ import annotations

import dataclasses
import difflib
from types import MappingProxyType
from typing import Any

from numsim.errors import InputError, short
from numsim.scaling.fp32_scalers import FlaxScaler, JmpScaler, KerasScaler, MegatronScaler, OpenSeq2SeqScaler
from numsim.scaling.fp64_scalers import ApexFp16Scaler, ApexScaler, DeepSpeedScaler, FairseqScaler
from numsim.scaling.logmax import OpenSeq2SeqLogMaxScaler
from numsim.scaling.scaler import Scaler
from numsim.scaling.torch_scalers import ApexHysteresisScaler, GradScaler, ShardedGradScaler, StaticScaler

# Defaults, first growth, floor, cap, hysteresis, title and source are attributes of the scalers themselves.
SYSTEMS: MappingProxyType[str, type[Scaler]] = MappingProxyType(
    {
        "torch": GradScaler,
        "static": StaticScaler,
        "megatron": MegatronScaler,
        "deepspeed": DeepSpeedScaler,
        "flax": FlaxScaler,
        "sharded": ShardedGradScaler,
        "apex": ApexScaler,
        "apex-fp16": ApexFp16Scaler,
        "apex-hysteresis": ApexHysteresisScaler,
        "keras": KerasScaler,
        "jmp": JmpScaler,
        "fairseq": FairseqScaler,
        "openseq2seq": OpenSeq2SeqScaler,
        "openseq2seq-logmax": OpenSeq2SeqLogMaxScaler,
    }
)


def list_scalers() -> tuple[str, ...]:
    """The names of all scalers; ``get_scaler`` makes one."""
    return tuple(SYSTEMS)


def system_name(name: Any) -> str:
    """The name of a system as the table has it, from one in any case and with "-" or "_".

    >>> system_name("Apex_FP16")
    'apex-fp16'
    """
    key = name.strip().lower().replace("_", "-") if isinstance(name, str) else short(name)
    if key not in SYSTEMS:
        near = " or ".join(difflib.get_close_matches(key, SYSTEMS, n=3, cutoff=0.5))
        hint = f"did you mean {near}?" if near else f"allowed are {', '.join(SYSTEMS)}."
        raise InputError(f"unknown scaler {short(name)}: {hint} Example: numsim.scaling.get_scaler('torch')")
    return key


def get_scaler(name: str, /, **settings: Any) -> Any:
    """A scaler by its name, with its system's defaults unless settings say otherwise; case and "_" do not matter.

    Raises ``InputError`` for an unknown name, a setting that this scaler does not have, and what the scaler refuses.

    >>> get_scaler("megatron", init_scale=16.0, growth_interval=4).first_growth, get_scaler("flax").first_growth
    (4, 2001)
    """
    system = SYSTEMS[system_name(name)]
    known = [field.name for field in dataclasses.fields(system)]  # type: ignore[arg-type]
    if unknown := [key for key in settings if key not in known]:
        raise InputError(f"{name} has no setting {short(unknown[0])}: it has {', '.join(known)}. "
                         "Example: numsim.scaling.get_scaler('torch', init_scale=1024.0)")  # fmt: skip
    return system(**settings)
