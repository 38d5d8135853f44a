"""Every other scaler against tables worked out by hand from its source: transitions, bounds, factors, what raises."""

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest

from numsim.errors import InputError
from numsim.scaling import (
    SYSTEMS,
    GradScaler,
    OpenSeq2SeqLogMaxScaler,
    ProtocolError,
    Scaler,
    ScalerError,
    State,
    check_strict,
    get_scaler,
    list_scalers,
)
from numsim.scaling.fp64_scalers import DeepSpeedState, FairseqState
from numsim.scaling.scaler import FLT_MAX, FLT_MIN, HysteresisState, IterationState

INF = math.inf


def run(name, string, **settings):
    """The scale after each step of a string of I (overflow) and C (clean)."""
    scaler = get_scaler(name, **settings)
    state, scales = scaler.initial(), []
    for letter in string.replace(" ", ""):
        state = scaler.update(state, int(letter == "I"))
        scales.append(state.scale)
    return scales


FOUR = {"init_scale": 16.0, "growth_interval": 4}
THREE = {"init_scale": 16.0, "growth_interval": 3}
TABLES = [  # the section-2.6 table, then one for each system, by hand
    ("torch", "ICICIICCCCCI", FOUR, [8, 8, 4, 4, 2, 1, 1, 1, 1, 2, 2, 1]),
    ("megatron", "ICICIICCCCCI", FOUR, [16, 16, 8, 8, 4, 2, 2, 2, 2, 4, 4, 4]),
    ("deepspeed", "ICICIICCCCCI", FOUR, [16, 16, 8, 8, 4, 2, 2, 2, 2, 2, 4, 4]),
    ("deepspeed", "ICICIICCCCCI", FOUR | {"consecutive_hysteresis": True}, [16] * 5 + [8] * 5 + [16] * 2),
    ("apex-hysteresis", "ICICIICCCCCI", FOUR, [16] * 5 + [8] * 4 + [16] * 3),
    ("static", "ICCI", {"init_scale": 3.0}, [3, 3, 3, 3]),
    ("torch", "CCCCCCIC", THREE, [16, 16, 32, 32, 32, 64, 32, 32]),
    ("sharded", "CCCCCCIC", THREE, [16, 16, 32, 32, 32, 64, 32, 32]),
    ("apex", "CCCCCCIC", THREE, [16, 16, 32, 32, 32, 64, 32, 32]),
    ("apex-fp16", "CCCCCCIC", THREE, [16, 16, 32, 32, 32, 64, 32, 32]),
    ("apex-hysteresis", "CCCCCCIIIC", THREE, [16, 16, 32, 32, 32, 64, 64, 32, 16, 16]),
    ("megatron", "CCCCCCIIICCCII", THREE, [16, 16, 32, 32, 32, 64, 64, 32, 16, 16, 16, 32, 32, 16]),
    ("deepspeed", "CCCCCCCI IIICCCCII", THREE,
     [16, 16, 16, 32, 32, 32, 64, 64, 32, 16, 8, 8, 8, 8, 16, 16, 8]),
    ("deepspeed", "CCCCCCCI", THREE | {"hysteresis": 1}, [16, 16, 16, 32, 32, 32, 64, 32]),
    ("keras", "CCCCCCIC", THREE, [16, 16, 32, 32, 32, 64, 32, 32]),
    ("jmp", "CCCCCCIC", THREE, [16, 16, 32, 32, 32, 64, 32, 32]),
    ("flax", "CCCCCCCCI", THREE, [16, 16, 16, 32, 32, 32, 32, 64, 32]),
    ("fairseq", "CCCCCCIC", THREE, [16, 16, 32, 32, 32, 64, 32, 32]),
    ("openseq2seq", "CCCCCCIC", THREE, [16, 16, 32, 32, 32, 64, 32, 32]),
    ("openseq2seq", "CIIC", {"growth_interval": 1}, [2**24, 2**23, 2**22, 2**23]),
    # floors and caps
    ("megatron", "IIII", {"init_scale": 3.0}, [3, 1.5, 1, 1]),
    ("apex", "III", {"init_scale": 3.0, "min_scale": 1.0}, [1.5, 1, 1]),
    ("apex", "II", {"init_scale": 3.0, "min_scale": 0.0}, [1.5, 0.75]),
    ("apex", "C", {"init_scale": 2.0**30, "growth_interval": 1}, [2**24]),
    ("apex-fp16", "III", {"init_scale": 3.0}, [1.5, 1, 1]),
    ("deepspeed", "III", {"init_scale": 3.0, "hysteresis": 1, "raise_error_at_min_scale": False}, [1.5, 1, 1]),
    ("jmp", "III", {"init_scale": 3.0}, [1.5, 1, 1]),
    ("jmp", "CC", {"init_scale": 2.0**126, "growth_interval": 1}, [2.0**127, 2.0**127]),
    ("flax", "II", {"init_scale": 1.5 * FLT_MIN}, [FLT_MIN, FLT_MIN]),
    ("flax", "CCCC", {"init_scale": 2.0**127, "growth_interval": 1}, [2.0**127, FLT_MAX, FLT_MAX, FLT_MAX]),
    ("openseq2seq", "II", {"init_scale": 1.5}, [1, 1]),
    ("fairseq", "III", {"init_scale": 3.0, "threshold": 1.0}, [1.5, 1, 1]),
    ("fairseq", "CICIIC", {"init_scale": 16.0, "tolerance": 0.5}, [16, 8, 8, 4, 2, 2]),
    # 1 overflow in 3 steps is not enough, 2 in 5 are
    ("fairseq", "CCICIC", {"init_scale": 16.0, "tolerance": 0.4}, [16, 16, 16, 16, 8, 8]),
    # growth to infinity, where nothing forbids it, and back
    ("keras", "CCI", {"init_scale": 2.0**126, "growth_interval": 1}, [2.0**127, INF, INF]),
    ("megatron", "CCIII", {"init_scale": 2.0**126, "growth_interval": 1}, [2.0**127, INF, INF, INF, INF]),
    ("sharded", "CCI", {"init_scale": 2.0**126, "growth_interval": 1}, [2.0**127, INF, INF]),
    ("torch", "CCI", {"init_scale": 2.0**126, "growth_interval": 1}, [2.0**127, 2.0**127, 2.0**126]),
    ("apex-hysteresis", "CC", {"init_scale": 2.0**126, "growth_interval": 1}, [2.0**127, 2.0**127]),
    ("apex", "CC", {"init_scale": 2.0**1022, "growth_interval": 1, "max_scale": 2.0**1023}, [2.0**1023] * 2),
    ("apex-fp16", "CCI", {"init_scale": 2.0**1022, "growth_interval": 1}, [2.0**1023, INF, INF]),
    ("deepspeed", "CCC", {"init_scale": 2.0**1022, "growth_interval": 1}, [2.0**1022, 2.0**1023, INF]),
    ("fairseq", "CCI", {"init_scale": 2.0**1022, "growth_interval": 1}, [2.0**1023, INF, INF]),
    # factors: 3 * 1.1 and 3 / 3 tell a double factor from an fp32 one, and multiplying from dividing
    ("torch", "C", {"init_scale": 3.0, "growth_factor": 1.1, "growth_interval": 1}, [3.299999952316284]),
    ("apex-hysteresis", "C", {"init_scale": 3.0, "growth_factor": 1.1, "growth_interval": 1}, [3.299999952316284]),
    ("sharded", "C", {"init_scale": 3.0, "growth_factor": 1.1, "growth_interval": 1}, [3.3000001907348633]),
    ("megatron", "C", {"init_scale": 3.0, "growth_factor": 1.1, "growth_interval": 1}, [3.3000001907348633]),
    ("flax", "CC", {"init_scale": 3.0, "growth_factor": 1.1, "growth_interval": 1}, [3, 3.3000001907348633]),
    ("jmp", "C", {"init_scale": 3.0, "scale_factor": 1.1, "growth_interval": 1}, [3.3000001907348633]),
    ("openseq2seq", "C", {"init_scale": 3.0, "scale_factor": 1.1, "growth_interval": 1}, [3.3000001907348633]),
    ("apex-fp16", "C", {"init_scale": 3.0, "scale_factor": 1.1, "growth_interval": 1}, [3.3000000000000003]),
    ("fairseq", "C", {"init_scale": 3.0, "scale_factor": 1.1, "growth_interval": 1}, [3.3000000000000003]),
    ("torch", "I", {"init_scale": 9.0, "backoff_factor": 0.1}, [0.8999999761581421]),
    ("sharded", "I", {"init_scale": 9.0, "backoff_factor": 0.1}, [0.9000000357627869]),
    ("megatron", "II", {"init_scale": 9.0, "backoff_factor": 0.1, "min_scale": 0.5}, [9, 0.9000000357627869]),
    ("flax", "I", {"init_scale": 9.0, "backoff_factor": 0.1}, [0.9000000357627869]),
    ("torch", "I", {"init_scale": 5.0, "backoff_factor": 1 / 3}, [1.6666666269302368]),
    ("apex-hysteresis", "II", {"init_scale": 5.0, "backoff_factor": 1 / 3}, [5, 1.6666666269302368]),
    ("flax", "I", {"init_scale": 5.0, "backoff_factor": 1 / 3}, [1.6666667461395264]),
    ("jmp", "I", {"init_scale": 5.0, "scale_factor": 3.0}, [1.6666666269302368]),  # (5 / 3, not 5 times 1 / 3)
    ("jmp", "I", {"init_scale": 7.0, "scale_factor": 1.1}, [6.363636016845703]),
    ("openseq2seq", "I", {"init_scale": 7.0, "scale_factor": 1.1}, [6.363636016845703]),
    ("apex-fp16", "I", {"init_scale": 7.0, "scale_factor": 1.1}, [6.363636363636363]),
    ("fairseq", "I", {"init_scale": 7.0, "scale_factor": 1.1}, [6.363636363636363]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "string", "settings", "scales"), TABLES)
def test_tables(name, string, settings, scales):
    assert run(name, string, **settings) == scales


COLLAPSE = {  # overflows from 2^16 until nothing changes any more, and the scale that is left; None: it raises
    "torch": (166, 0.0), "sharded": (166, 0.0), "keras": (166, 0.0), "apex-hysteresis": (167, 0.0),
    "apex": (1091, 0.0), "flax": (142, FLT_MIN), "jmp": (16, 1.0), "megatron": (17, 1.0), "apex-fp16": (16, 1.0),
    "openseq2seq": (16, 1.0), "static": (0, 65536.0), "deepspeed": (17, None), "fairseq": (29, None),
}  # fmt: skip


@pytest.mark.parametrize(("name", "steps", "left"), [(k, *v) for k, v in COLLAPSE.items()])
def test_overflows_without_end(name, steps, left):
    scaler = get_scaler(name, init_scale=65536.0)
    state, scales = scaler.initial(), [65536.0]
    try:
        for _ in range(1200):
            state = scaler.update(state, 1)
            scales.append(state.scale)
    except ScalerError:
        assert left is None and len(scales) - 1 == steps
        return
    assert scales[steps] == left == scales[-1] and (steps == 0 or scales[steps - 1] != left)


# --- states, and what raises ------------------------------------------------------------------------------------------
def test_megatron_state_and_asserts():
    scaler = get_scaler("megatron", init_scale=16.0, growth_interval=2)
    state = scaler.initial()
    seen = []
    for found in (1, 0, 1, 1, 0, 0):
        state = scaler.update(state, found)
        seen.append(dataclasses.astuple(state))
    assert seen == [(16, 0, 1), (16, 1, 1), (8, 0, 0), (4, 0, -1), (4, 1, -1), (8, 0, 2)]
    refused = [("init_scale", 0.0), ("init_scale", 0.5), ("min_scale", 0.0), ("growth_factor", 1.0), ("hysteresis", 0)]
    for name, x in [*refused, ("backoff_factor", 1.0), ("backoff_factor", 0.0), ("growth_interval", 0)]:
        with pytest.raises(InputError, match=name):
            get_scaler("megatron", **{name: x})


def test_apex_hysteresis_compares_three_ways():
    scaler = get_scaler("apex-hysteresis", init_scale=16.0, growth_interval=5)
    state = HysteresisState(16.0, 3, 2)
    assert scaler.update(state, math.nan) == HysteresisState(8.0, 0, 2)  # at once
    assert scaler.update(HysteresisState(16.0, 3, 1), -1.0) == HysteresisState(8.0, 0, 2)  # and refilled
    assert scaler.update(state, 1.0) == HysteresisState(16.0, 0, 1)
    assert scaler.update(HysteresisState(16.0, 3, 0), 1.0) == HysteresisState(8.0, 0, -1)
    assert scaler.update(HysteresisState(16.0, 3, 0), 0.0) == HysteresisState(16.0, 4, 2)


@pytest.mark.parametrize(("found", "clean"), [(math.nan, True), (0.5, True), (-1, True), (1.0, False), (2.0, False)])
def test_sharded_sums_ranks(found, clean):
    scaler = get_scaler("sharded", init_scale=16.0)
    assert scaler.update(State(16.0, 3), found) == (State(16.0, 4) if clean else State(8.0, 0))


def test_deepspeed_at_its_minimum():
    scaler = get_scaler("deepspeed", init_scale=2.0)
    state = scaler.update(scaler.update(scaler.initial(), 1), 1)
    assert state == DeepSpeedState(1.0, 2, 1, 1)  # hysteresis stays at 1
    with pytest.raises(ScalerError, match="already at minimum - cannot decrease scale anymore") as caught:
        scaler.update(state, 1)
    assert caught.value.state == state and caught.value.original == "Exception"
    assert scaler.update(state, 0) == DeepSpeedState(1.0, 3, 1, 1)
    with pytest.raises(ScalerError, match="cannot convert float infinity to integer") as caught:
        scaler.update(DeepSpeedState(INF, 2, 1, 2), 1)  # in the log line, before anything has changed
    assert caught.value.state == DeepSpeedState(INF, 2, 1, 2)


def test_fairseq_at_its_minimum():
    scaler = get_scaler("fairseq", init_scale=2e-4)
    with pytest.raises(ScalerError, match="Minimum loss scale reached") as caught:
        scaler.update(scaler.initial(), 1)
    assert caught.value.original == "FloatingPointError"
    assert caught.value.state == FairseqState(2e-4, 0, 0, 0, 0)  # the scale from before; the iteration does not count
    # 1000 stands for no iterations since the last change
    tolerant = get_scaler("fairseq", init_scale=2.0, tolerance=0.0011)
    assert tolerant.update(FairseqState(2.0, 0, 0, 0, 0), 1) == FairseqState(2.0, 1, 0, 0, 1)
    tolerant = get_scaler("fairseq", init_scale=2.0, tolerance=0.001)
    assert tolerant.update(FairseqState(2.0, 0, 0, 0, 0), 1) == FairseqState(1.0, 1, 0, 0, 0)


def test_iterations_count_from_the_last_overflow():
    scaler = get_scaler("openseq2seq", init_scale=4.0, growth_interval=3)
    state = scaler.update(scaler.update(scaler.initial(), 0), 1)
    assert state == IterationState(2.0, 2, 1) and state.growth_tracker == 0 and state.inv_scale == 0.5
    assert scaler.update(state, 0).growth_tracker == 1


def test_flax_without_a_minimum_gets_to_zero():
    scaler = get_scaler("flax", init_scale=2.0**-149, min_scale=None)
    assert scaler.update(scaler.initial(), 1).scale == 0.0 and scaler.floor is None


@pytest.mark.parametrize("found", [math.nan, -1.0, 0.5, True, INF])
@pytest.mark.parametrize("name", ["megatron", "keras", "jmp", "flax", "apex", "apex-fp16", "fairseq", "openseq2seq"])
def test_anything_but_zero_is_an_overflow(name, found):
    scaler = get_scaler(name)
    assert scaler.update(scaler.initial(), found) == scaler.update(scaler.initial(), 1)
    assert scaler.update(scaler.initial(), -0.0) == scaler.update(scaler.initial(), 0)


# --- log-max ----------------------------------------------------------------------------------------------------------
def test_log_max_by_hand():
    """The first step has no spread: mu = log2(amax), and the scale is 2^(16 - mu) but for the roundings of mu."""
    scaler = OpenSeq2SeqLogMaxScaler(max_scale=2.0**30)
    state = scaler.update(scaler.initial(), 2.0**-4)
    assert abs(math.log2(state.scale) - 20) < 1e-3
    for _ in range(3000):  # steady amaxes: the spread stays small
        state = scaler.update(state, 2.0**-4)
    assert abs(math.log2(state.scale) - 20) < 0.2
    wide = scaler.initial()
    for i in range(3000):  # x is 0 and -8 in turn: mu -4, sigma 4
        wide = scaler.update(wide, 1.0 if i % 2 else 2.0**-8)
    assert abs(math.log2(wide.scale) - (16 + 4 - 3.09 * 4)) < 0.1


def test_log_max_in_the_originals_order():
    """The same formulas on NumPy's float32, where Python numbers become float32 as they do in TensorFlow."""
    f = np.float32
    scaler = OpenSeq2SeqLogMaxScaler(max_scale=2.0**40, beta1=0.9, beta2=0.97, log_max=4.0)
    x_hat, slow, squared, b1, b2 = f(0), f(0), f(0), f(1), f(1)
    state = scaler.initial()
    for amax in np.exp2(np.random.default_rng(4).normal(-6, 3, 300)).astype(f):
        x = f(f(math.log(amax)) / f(math.log(2)))
        x_hat = f(0.9) * x_hat + f(1 - 0.9) * x
        slow, squared = f(0.97) * slow + f(1 - 0.97) * x, f(0.97) * squared + f(1 - 0.97) * (x * x)
        b1, b2 = b1 * f(0.9), b2 * f(0.97)
        mu, slow_mu = x_hat / (f(1) - b1), slow / (f(1) - b2)
        sigma = np.sqrt(np.maximum(squared / (f(1) - b2) - slow_mu * slow_mu, f(0)))
        exponent = f(16) - (sigma * f(3.09) + mu)  # 16, whatever log_max is
        state = scaler.update(state, amax)
        assert (state.x_hat, state.slow_x_hat, state.xsquared_hat) == (x_hat, slow, squared)
        assert state.scale == f(min(max(2.0 ** float(exponent), 1.0), 2.0**40))


def test_log_max_traps():
    scaler = OpenSeq2SeqLogMaxScaler()
    state = scaler.initial()
    for _ in range(100):
        state = scaler.update(state, 0.01)
    for wrong in (INF, math.nan):
        after = scaler.update(state, wrong)
        for _ in range(2000):
            assert after.scale == 1.0
            after = scaler.update(after, 0.01)
    assert math.isnan(scaler.update(scaler.update(state, 0.0), 0.01).scale)
    for wrong in (-1.0, "1", None):
        with pytest.raises(InputError, match="amax"):
            scaler.update(state, wrong)


# --- the table --------------------------------------------------------------------------------------------------------
DEFAULTS = {  # section 2.6: init, growth, backoff, window, floor, cap, hysteresis, clean steps for the first growth
    "torch": (2**16, 2, 0.5, 2000, None, FLT_MAX, 1, 2000),
    "apex": (2**16, None, None, 2000, None, 2**24, 1, 2000),
    "apex-fp16": (2**32, 2, 2, 1000, 1, None, 1, 1000),
    "megatron": (2**32, 2, 0.5, 1000, 1, None, 2, 1000),
    "deepspeed": (2**16, None, None, 1000, 1, None, 2, 1001),
    "keras": (2**15, None, None, 2000, None, None, 1, 2000),
    "jmp": (2**15, 2, 2, 2000, 1, FLT_MAX, 1, 2000),
    "flax": (2**16, 2, 0.5, 2000, FLT_MIN, FLT_MAX, 1, 2001),
    "fairseq": (2**15, 2, 2, 2000, None, None, 1, 2000),
    "openseq2seq": (2**24, 2, 2, 2000, 1, 2**24, 1, 2000),
    "sharded": (2**16, 2, 0.5, 2000, None, None, 1, 2000),
    "apex-hysteresis": (2**16, 2, 0.5, 2000, None, FLT_MAX, 2, 2000),
    "static": (2**16, None, None, None, None, None, 1, None),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    s = get_scaler(name)
    one = getattr(s, "scale_factor", None)
    growth, backoff = (getattr(s, x, one) for x in ("growth_factor", "backoff_factor"))
    interval = getattr(s, "growth_interval", None)
    row = s.init_scale, growth, backoff, interval, s.floor, s.cap, s.hysteresis, s.first_growth
    assert row == DEFAULTS[name]
    assert s.initial().scale == s.init_scale and s.title and s.source
    check_strict(s)


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("interval", [1, 5])
def test_first_growth_comes_when_it_says(name, interval):
    if name == "static":
        return
    scaler = get_scaler(name, init_scale=4.0, growth_interval=interval)
    state, steps = scaler.initial(), 0
    while state.scale == 4.0:
        due = scaler.grows(state)
        state, steps = scaler.update(state, 0), steps + 1
        assert due == (state.scale == 8.0)
    assert steps == scaler.first_growth


def test_the_table_and_bad_input():
    assert set(DEFAULTS) | {"openseq2seq-logmax"} == set(list_scalers()) == set(SYSTEMS)
    check_strict(get_scaler("openseq2seq-logmax"))
    with pytest.raises(InputError, match="unknown scaler 'amp': did you mean jmp or apex"):
        get_scaler("amp")
    with pytest.raises(InputError, match="keras has no setting 'growth_factor': it has init_scale, growth_interval"):
        get_scaler("keras", growth_factor=2.0)
    for name in DEFAULTS.keys() - {"torch", "static", "sharded", "apex-hysteresis"}:
        for wrong in ({"growth_interval": 0}, {"growth_interval": 2.0}, {"init_scale": 0.0}, {"init_scale": math.nan}):
            with pytest.raises(InputError, match=next(iter(wrong))):
                get_scaler(name, **wrong)


@pytest.mark.parametrize("name", DEFAULTS)
def test_pure_and_plain(name):
    """States are Python numbers, never changed; numpy settings too."""
    scaler = get_scaler(name, init_scale=np.float32(16.0))
    state = scaler.initial()
    kept = dataclasses.astuple(state)
    after = scaler.update(scaler.update(state, np.float32(1)), np.bool_(False))
    assert dataclasses.astuple(state) == kept
    assert {type(x) for x in dataclasses.astuple(after)} <= {int, float} and type(after.scale) is float
    with pytest.raises(dataclasses.FrozenInstanceError):
        scaler.init_scale = 1.0


def test_names_in_any_case_and_near_ones():
    assert get_scaler("Apex_FP16") == get_scaler("apex-fp16") and get_scaler(" TORCH ") == get_scaler("torch")
    for wrong, words in (("megatorn", "did you mean megatron"), ("pytorch", "did you mean torch"), (5, "allowed are")):
        with pytest.raises(InputError, match=f"unknown scaler {wrong!r}: {words}"):
            get_scaler(wrong)


@pytest.mark.parametrize("wrong", [5, None, "torch", GradScaler, [1]])
def test_strict_checks_need_settings(wrong):
    with pytest.raises(InputError, match="a scaler, or its settings as a dict, is needed"):
        check_strict(wrong)


def test_log_max_is_a_scaler_that_takes_amaxes():
    assert [name for name in SYSTEMS if get_scaler(name).takes == "amax"] == ["openseq2seq-logmax"]
    for name in SYSTEMS:
        scaler = get_scaler(name)
        assert isinstance(scaler, Scaler) and scaler.update(scaler.initial(), 0.5).scale > 0
        assert scaler.is_overflow(math.inf) and not scaler.is_overflow(0.0)


def test_errors_travel():
    """As between processes."""
    scaler = get_scaler("deepspeed", init_scale=1.0, hysteresis=1)
    with pytest.raises(ScalerError) as caught:
        scaler.update(scaler.initial(), 1)
    for again in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert (str(again), again.state, again.original) == (str(caught.value), scaler.initial(), "Exception")
    error = pickle.loads(pickle.dumps(ProtocolError("words", "KeyError")))
    assert (str(error), error.torch) == ("words", "KeyError")


def test_complex_numbers_are_torchs_alone():
    assert get_scaler("torch", init_scale=3 + 0j).init_scale == get_scaler("static", init_scale=3 + 0j).init_scale == 3
    for name in ("megatron", "apex", "flax"):
        with pytest.raises(InputError, match="init_scale"):
            get_scaler(name, init_scale=3 + 0j)


def test_the_largest_fp32():
    assert FLT_MAX == float(np.finfo(np.float32).max) and FLT_MIN == float(np.finfo(np.float32).tiny)
