"""A CPU that flushes subnormal numbers: refused where results lean on it, harmless where they do not."""

import ctypes
import platform
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from numsim import host, kernels
from numsim.blocks import double_quantize, nvfp4_alpha, quantize
from numsim.blocks.formats import FP8_TENSOR
from numsim.blocks.rules import make_scales
from numsim.errors import UnavailableError
from numsim.optimizers import (
    SGD,
    accumulate_gradients,
    clip_grad_norm,
    gradient_norm,
    lost_updates,
    train_digits,
    unscale_and_clip,
)
from numsim.scaling import (
    DelayedScaling,
    DelayedState,
    GradScaler,
    GradScalerProtocol,
    Parameter,
    State,
    get_scaler,
    power_of_two_scale,
    reduce_amax,
    replay,
    replay_amaxes,
    replay_scales,
)
from tests.kernels.test_jit import flushing  # noqa: F401 - a fixture

RECIPE, WEIGHTS = DelayedScaling(amax_history_len=2), quantize(np.ones(64), "nf4")
APEX, SGD_STATE = get_scaler("apex", init_scale=2.0**-1030), SGD(0.1).initial([1.0])
APEX_STATE, DELAYED, SGD_AFTER = APEX.initial(), RECIPE.initial(), SGD(0.1).step(SGD_STATE, [2.0**-130])
OPTIMIZER = SimpleNamespace(param_groups=[{"params": [Parameter(np.float32([1.0]), np.float32([1.0]))]}])
PROTOCOL = GradScalerProtocol()
PROTOCOL.scale(np.float32(1.0))
CALLS = {
    "quantize": lambda: quantize([1.0], "fp8_tensor"),
    "double_quantize": lambda: double_quantize(WEIGHTS),
    "nvfp4_alpha": lambda: nvfp4_alpha(1e-20, 1e-20),
    "make_scales": lambda: make_scales(np.ones((1, 1), np.float32), FP8_TENSOR),
    "delayed state": lambda: DelayedState(1.0, [1e-40]),
    "delayed record": lambda: RECIPE.record(DELAYED, 1e-40),
    "delayed update": lambda: RECIPE.update(DELAYED),
    "delayed update_ranks": lambda: RECIPE.update_ranks([DELAYED, DELAYED]),
    "delayed inv_scale": lambda: DELAYED.inv_scale,
    "reduce_amax": lambda: reduce_amax([DELAYED]),
    "power_of_two_scale": lambda: power_of_two_scale(1e-40, 1.0, 448.0, RECIPE),
    "inv_scale": lambda: State(3.0).inv_scale,
    "protocol": lambda: PROTOCOL.unscale_(OPTIMIZER),
    "replay_amaxes": lambda: replay_amaxes(RECIPE, [1.0]),
    "apex": lambda: APEX.update(APEX_STATE, 1),
    "replay": lambda: replay(APEX, "I"),
    "replay_scales": lambda: replay_scales(APEX, "I"),
    "initial": lambda: SGD(0.1).initial([1.0]),
    "step": lambda: SGD(0.1).step(SGD_STATE, [1.0]),
    "accumulate_gradients": lambda: accumulate_gradients([1.0], "fp32"),
    "gradient_norm": lambda: gradient_norm([[1.0]]),
    "clip_grad_norm": lambda: clip_grad_norm([[1.0]], 1.0),
    "unscale_and_clip": lambda: unscale_and_clip([[1.0]], 1.0, 1.0),
    "lost_updates": lambda: lost_updates(SGD_STATE, SGD_AFTER),
    "train_digits": lambda: train_digits(SGD(0.1), steps=1, every=1),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused_in_one_voice(name, flushing):  # noqa: F811
    flushing(True)
    with pytest.raises(UnavailableError, match="flush-to-zero, or to another rounding") as caught:
        CALLS[name]()
    with pytest.raises(UnavailableError) as same:
        host.check_ieee()
    assert str(caught.value) == str(same.value)


@pytest.mark.skipif(not sys.platform.startswith("linux") or platform.machine() != "x86_64", reason="glibc on x86-64")
def test_another_rounding_is_refused_too():
    """Scalers in fp32 as well: products of a double factor lean on it, and reciprocals."""
    libm = ctypes.CDLL("libm.so.6")
    calls = CALLS | {name: lambda name=name: replay(get_scaler(name), "I") for name in ("torch", "megatron", "jmp")}
    calls |= {"log-max": lambda: replay(get_scaler("openseq2seq-logmax"), [1.0])}
    passed = []
    for name, call in calls.items():
        assert libm.fesetround(0x800) == 0
        try:
            call()
            passed.append(name)
        except UnavailableError:
            pass
        finally:
            libm.fesetround(0)
    assert not passed


@pytest.mark.parametrize("which", ["kernel", "reference"])
def test_fp32_scales_do_not_lean_on_it(which, flushing):  # noqa: F811
    """Their subnormals are normal doubles, and codes in the end."""
    if which == "kernel" and kernels.why_not() is not None:
        pytest.skip(str(kernels.why_not()))
    scaler, found = GradScaler(2.0**-126), "IIIC"
    wanted = [2.0**-127, 2.0**-128, 2.0**-129, 2.0**-129]
    assert host.is_ieee()
    flushing(True)
    assert not host.is_ieee()
    with kernels.force(which):
        codes, trace = replay_scales(scaler, found).view(np.uint32).tolist(), replay(scaler, found)
    flushing(False)
    assert np.uint32(codes).view(np.float32).tolist() == wanted == trace["scale"].tolist()
