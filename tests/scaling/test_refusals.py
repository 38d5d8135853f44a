"""What scalers are given by mistake, or by an attacker: an error of numsim's own that says what is needed."""

import dataclasses
import math

import numpy as np
import pytest

from numsim.errors import InputError
from numsim.scaling import (
    SYSTEMS,
    DelayedScaling,
    DelayedState,
    GradScaler,
    State,
    check_strict,
    get_scaler,
    list_scalers,
    power_of_two_scale,
    reduce_amax,
    reduce_found_inf,
    replay,
    replay_amaxes,
    replay_scales,
    unscale,
)

HUGE, RECIPE = 10**400, DelayedScaling(amax_history_len=2)
STATE = RECIPE.initial()


# --- settings ---------------------------------------------------------------------------------------------------------
SETTINGS = [(name, field.name, field.default) for name in list_scalers() for field in dataclasses.fields(SYSTEMS[name])]
MAY_BE_NONE = {("flax", "min_scale"), ("apex", "min_scale"), ("fairseq", "threshold")}


@pytest.mark.parametrize(("name", "setting", "default"), SETTINGS)
def test_settings(name, setting, default):
    fine = (name, setting) in MAY_BE_NONE
    assert (default is None) <= fine
    for value in (None, "", HUGE, 1j, np.zeros(0)):
        if value is None and fine:
            assert len(replay(get_scaler(name, **{setting: value}), "ICI")) == 3
        else:
            with pytest.raises(InputError, match=rf"^{setting}="):
                get_scaler(name, **{setting: value})


def test_a_minimum_above_the_maximum():
    for name in ("openseq2seq", "openseq2seq-logmax", "apex"):
        with pytest.raises(InputError, match=r"min_scale=8.0, max_scale=2.0: .*Example"):
            get_scaler(name, min_scale=8, max_scale=2)
        assert get_scaler(name, min_scale=2, max_scale=2).max_scale == 2.0


# --- calls ------------------------------------------------------------------------------------------------------------
CALLS = {
    "scale of a state": lambda: State(""),
    "huge scale": lambda: State(HUGE),
    "tracker": lambda: State(1.0, 0.5),
    "update of nothing": lambda: GradScaler().update(None, 1),
    "state of another": lambda: get_scaler("deepspeed").update(State(1.0), 1),
    "state of the log-max scaler": lambda: get_scaler("openseq2seq-logmax").update(State(1.0), 1.0),
    "hysteresis without": lambda: get_scaler("apex-hysteresis").update(State(1.0), 1),
    "replay from True": lambda: replay(GradScaler(), "I", state=True),
    "ragged": lambda: replay(GradScaler(), [[1], [1, 2]]),
    "huge": lambda: replay_scales(GradScaler(), [HUGE]),
    "unscale without a scaler": lambda: unscale(None, State(1.0), [1.0]),
    "unscale without a state": lambda: unscale(GradScaler(), None, [1.0]),
    "unscale with a delayed state": lambda: unscale(GradScaler(), STATE, [1.0]),
    "unscale ragged": lambda: unscale(GradScaler(), State(1.0), [[1], [1, 2]]),
    "check_strict": lambda: check_strict(None),
    "found_inf of no ranks": lambda: reduce_found_inf(None, "ddp"),
    "delayed, huge scale": lambda: DelayedState(HUGE, [0.0]),
    "delayed, text": lambda: DelayedState("", [0.0]),
    "delayed, text history": lambda: DelayedState(1.0, ""),
    "delayed, dict": lambda: DelayedState(1.0, {}),
    "delayed, negative": lambda: DelayedState(1.0, [-1.0]),
    "delayed, amax": lambda: DelayedState(1.0, [0.0], amax=HUGE),
    "record": lambda: RECIPE.record(STATE, HUGE),
    "record nowhere": lambda: RECIPE.record(None, 1.0),
    "update": lambda: RECIPE.update(None),
    "quantize": lambda: RECIPE.quantize(None, [1.0]),
    "update_ranks": lambda: RECIPE.update_ranks("a"),
    "update_ranks of nothing": lambda: RECIPE.update_ranks(None),
    "reduce_amax": lambda: reduce_amax(None),
    "tensors": lambda: replay_amaxes(RECIPE, tensors=True),
    "huge amax from a function": lambda: DelayedScaling(amax_compute_algo=lambda history: HUGE).update(
        DelayedScaling().initial()
    ),
    "huge scale from a function": lambda: DelayedScaling(scaling_factor_compute_algo=lambda *given: HUGE).update(
        DelayedScaling().initial()
    ),
    "power_of_two_scale": lambda: power_of_two_scale(HUGE, 1.0, 448.0, RECIPE),
    "power_of_two_scale without a recipe": lambda: power_of_two_scale(1.0, 1.0, 448.0, None),
    "longer history": lambda: DelayedScaling(amax_history_len=4).update(STATE),
    "shorter history": lambda: DelayedScaling(amax_history_len=1).record(STATE, 1.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    with pytest.raises(InputError) as error:
        CALLS[name]()
    assert len(str(error.value)) < 400


def test_states_keep_plain_numbers():
    state = State(np.float32(2.5), np.int8(3))
    assert (type(state.scale), type(state.growth_tracker)) == (float, int) and state == State(2.5, 3)


def test_beyond_fp32_is_infinite():
    """Rounding, without a warning of NumPy's."""
    state = DelayedState(1e308, [1e308, 0.0])
    assert state.scale == math.inf and state.amax_history.tolist() == [math.inf, 0.0]


class Nameless:
    @property
    def __name__(self):
        raise KeyError("no name")

    def __call__(self, history):
        return history.max()


def test_names_of_functions():
    def long(history):
        return history.max()

    def red(history):
        return history.max()

    long.__name__, red.__name__ = "x" * 1000, "\x1b[31m"
    for function in (Nameless(), long, red):
        trace = replay_amaxes(DelayedScaling(amax_compute_algo=function, amax_history_len=2), [1.0, 2.0])
        assert trace.title == "delayed scaling, E4M3, a function, unfused" and trace["scale"][-1] == 224.0


# --- torch ------------------------------------------------------------------------------------------------------------
def test_torch_tensors():
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    found = torch.tensor([1.0, 0.0], dtype=torch.bfloat16)
    for given in (found, found.float().requires_grad_(), torch.nn.Parameter(found)):
        assert replay(GradScaler(8.0), given)["scale"].tolist() == replay_scales(GradScaler(8.0), given).tolist()
        assert replay_scales(GradScaler(8.0), given).tolist() == [4.0, 4.0]
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        weight = torch.nn.Parameter(torch.tensor([3.0, 1.0], dtype=dtype))
        values, seen = unscale(GradScaler(), State(2.0), weight)
        assert values.values.tolist() == [1.5, 0.5] and not seen
        assert values.format.bits == 8 * weight.element_size()
    assert GradScaler(torch.tensor(8.0, dtype=torch.bfloat16)).init_scale == 8.0
    recipe = DelayedScaling(amax_history_len=2)
    assert recipe.record(recipe.initial(), torch.tensor(2.0, requires_grad=True)).amax_history[0] == 2.0
    assert replay_amaxes(recipe, found).steps.size == 2


def test_torch_tensors_that_have_no_numbers():
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    for bad in (torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.ones(2, dtype=torch.complex64)):
        for call in (
            lambda x: replay(GradScaler(), x),
            lambda x: replay_scales(GradScaler(), x),
            lambda x: unscale(GradScaler(), State(1.0), x),
            lambda x: GradScaler(x),
            lambda x: replay_amaxes(RECIPE, x),
            lambda x: replay_amaxes(RECIPE, tensors=[x]),
        ):
            with pytest.raises(InputError):
                call(bad)
    with pytest.raises(InputError, match="found_inf="):
        replay(GradScaler(), [torch.tensor(1.0, requires_grad=True)])
