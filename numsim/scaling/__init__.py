"""Scaling: loss scalers as pure state machines, state in, state out, with the arithmetic of their originals."""

from numsim.scaling.delayed import (
    DelayedScaling,
    DelayedState,
    power_of_two_scale,
    reduce_amax,
    replay_amaxes,
)
from numsim.scaling.fp32_scalers import FlaxScaler, JmpScaler, KerasScaler, MegatronScaler, OpenSeq2SeqScaler
from numsim.scaling.fp64_scalers import ApexFp16Scaler, ApexScaler, DeepSpeedScaler, FairseqScaler
from numsim.scaling.logmax import OpenSeq2SeqLogMaxScaler
from numsim.scaling.playback import replay, replay_scales
from numsim.scaling.protocol import GradScalerProtocol, Parameter, ProtocolError, Stage
from numsim.scaling.ranks import reduce_found_inf
from numsim.scaling.recipes import (
    Gemm,
    Operand,
    Recipe,
    default_recipe,
    get_recipe,
    list_recipes,
    quantize_operand,
)
from numsim.scaling.scaler import Scaler, ScalerError, State, check_strict
from numsim.scaling.systems import SYSTEMS, get_scaler, list_scalers
from numsim.scaling.torch_scalers import ApexHysteresisScaler, GradScaler, ShardedGradScaler, StaticScaler
from numsim.scaling.unscaling import unscale

__all__ = [
    "SYSTEMS",
    "ApexFp16Scaler",
    "ApexHysteresisScaler",
    "ApexScaler",
    "DeepSpeedScaler",
    "DelayedScaling",
    "DelayedState",
    "FairseqScaler",
    "FlaxScaler",
    "Gemm",
    "GradScaler",
    "GradScalerProtocol",
    "JmpScaler",
    "KerasScaler",
    "MegatronScaler",
    "OpenSeq2SeqLogMaxScaler",
    "OpenSeq2SeqScaler",
    "Operand",
    "Parameter",
    "ProtocolError",
    "Recipe",
    "Scaler",
    "ScalerError",
    "ShardedGradScaler",
    "Stage",
    "State",
    "StaticScaler",
    "check_strict",
    "default_recipe",
    "get_recipe",
    "get_scaler",
    "list_recipes",
    "list_scalers",
    "power_of_two_scale",
    "quantize_operand",
    "reduce_amax",
    "reduce_found_inf",
    "replay",
    "replay_amaxes",
    "replay_scales",
    "unscale",
]
