"""Strings of overflows: the events of a trace, batches, and the compiled twin against the scalers, bit for bit."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import numsim
from numsim import kernels
from numsim.errors import InputError
from numsim.scaling import GradScaler, State, get_scaler, list_scalers, playback, replay, replay_scales
from numsim.traces import load_trace

needs_kernels = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))
COUNTING = [name for name in list_scalers() if name != "openseq2seq-logmax"]


def events(scaler, string, **options):
    return [(e.step, e.kind, e.text) for e in replay(scaler, string, **options).events]


# --- traces -----------------------------------------------------------------------------------------------------------
def test_a_probe_is_told_from_a_failure():
    scaler = GradScaler(16.0, growth_interval=2)
    assert events(scaler, "II CC CC I C I I") == [
        (1, "overflow", "search, 16 to 8"), (2, "overflow", "search, 8 to 4"), (4, "growth", "4 to 8"),
        (6, "growth", "8 to 16"), (7, "overflow", "probe, 16 to 8"), (9, "overflow", "fall, 8 to 4"),
        (10, "overflow", "fall, 4 to 2"),
    ]  # fmt: skip
    assert events(scaler, "CI")[0][2] == "search, 16 to 8"  # nothing had grown
    kinds = [(kind, text.split(",")[0]) for _, kind, text in events(GradScaler(2.0**126, growth_interval=1), "CCI")]
    assert kinds == [("growth", "2^126 to 2^127"), ("cap", "2^127 stays"), ("overflow", "probe")]
    assert events(GradScaler(2.0**127, growth_interval=1), "CI")[1][2].startswith("search")  # a cap is no growth


def test_cap_floor_hysteresis_and_stop():
    assert events(GradScaler(2.0**127, growth_interval=1), "C") == [(1, "cap", "2^127 stays")]
    assert events(get_scaler("apex", growth_interval=1, init_scale=2.0**24), "C") == [(1, "cap", "2^24 stays")]
    assert events(get_scaler("megatron", init_scale=2.0), "III") == [
        (1, "overflow", "search"), (1, "hysteresis", "2 stays"), (2, "overflow", "search, 2 to 1"), (2, "floor", "1"),
        (3, "overflow", "fall"), (3, "floor", "1"),
    ]  # fmt: skip
    trace = replay(get_scaler("deepspeed", init_scale=2.0, hysteresis=1), "IICC")
    assert len(trace) == 2 and trace["scale"].tolist() == [1.0, 1.0]
    assert trace.events[-1].kind == "stop" and "Exception: Current loss scale already" in trace.events[-1].text
    assert events(GradScaler(2.0**-149), "II")[1:] == [(2, "overflow", "fall"), (2, "floor", "0")]
    assert events(GradScaler(math.inf), "I") == [(1, "overflow", "search"), (1, "floor", "inf")]
    assert events(get_scaler("static"), "IC") == [(1, "overflow", "search"), (1, "hysteresis", "65536 stays")]


def test_the_scale_that_each_step_was_made_with():
    for name in COUNTING:
        trace = replay(get_scaler(name), "ICIC")
        assert trace["scale used"].tolist() == [get_scaler(name).initial().scale, *trace["scale"][:-1]]
        assert tuple(trace.series)[:2] == ("scale used", "scale")
    assert replay(GradScaler(), "CI", State(4.0))["scale used"].tolist() == [4.0, 4.0]
    trace = replay(get_scaler("deepspeed", init_scale=2.0, hysteresis=1), "IICC")
    assert trace["scale used"].tolist() == [2.0, 1.0]  # of the step that stopped it, too
    assert replay(GradScaler(), "I").series["scale used"].format.name == "fp32"


def test_series_are_codes_where_the_original_keeps_fp32(tmp_path):
    trace = replay(get_scaler("megatron", init_scale=16.0, growth_interval=2), [1, 0, 0, math.nan])
    assert trace.series["scale"].format.name == "fp32" and trace["scale"].tolist() == [16, 16, 32, 32]
    assert trace["tracker"].tolist() == [0, 1, 0, 0] and trace.steps.tolist() == [1, 2, 3, 4]
    assert load_trace(trace.save(tmp_path / "t.json")).digest == trace.digest
    assert isinstance(replay(get_scaler("deepspeed"), "I").series["scale"], np.ndarray)
    assert replay(GradScaler(growth_factor=math.inf), "C").json  # settings that JSON has not


def test_from_a_state():
    assert replay(GradScaler(growth_interval=9), "C", State(4.0, 8))["scale"].tolist() == [8.0]
    sharded = replay(get_scaler("sharded"), [math.nan, 1.0])
    assert sharded.happened("overflow") == [2]


def test_states_of_other_scalers():
    for name, state in (("torch", 5), ("torch", "I"), ("deepspeed", State(4.0)), ("megatron", State(4.0))):
        with pytest.raises(InputError, match=r"state=.*State is needed"):
            replay(get_scaler(name), "IC", state)
    megatron = get_scaler("megatron")
    assert replay(megatron, "C", megatron.update(megatron.initial(), 1))["scale used"] == [2.0**32]


def test_log_max_takes_amaxes():
    trace = replay(get_scaler("openseq2seq-logmax"), [0.5, 0.25, math.inf, 0.5])
    assert trace.happened("overflow") == [3] and trace["scale"][2:].tolist() == [1.0, 1.0]
    assert (trace["scale"] == replay_scales(get_scaler("openseq2seq-logmax"), [[0.5, 0.25, math.inf, 0.5]])[0]).all()
    with pytest.raises(InputError, match="the amax of each step"):
        replay(get_scaler("openseq2seq-logmax"), "IC")


@pytest.mark.parametrize("wrong", ["IXC", ["IC", "I"], [["I"]], [None], [1j], 3])
def test_bad_strings(wrong):
    for call in (replay, replay_scales):
        with pytest.raises(InputError, match="found_inf"):
            call(GradScaler(), wrong)


def test_bad_scalers():
    for call in (replay, replay_scales):
        with pytest.raises(InputError, match="a scaler is needed"):
            call("torch", "IC")
    with pytest.raises(InputError, match=r"shape \(1, 2\)"):
        replay(GradScaler(), [[0, 1]])


# --- batches ----------------------------------------------------------------------------------------------------------
def test_shapes_and_types():
    found = np.zeros((2, 3, 4), bool)
    assert replay_scales(GradScaler(), found).shape == (2, 3, 4) and replay_scales(GradScaler(), found).dtype == "f4"
    assert replay_scales(get_scaler("apex"), "ICI").tolist() == [32768.0, 32768.0, 16384.0]
    assert replay_scales(get_scaler("apex"), "ICI").dtype == np.float64
    assert replay_scales(GradScaler(), np.zeros((0, 5))).shape == (0, 5)
    assert replay_scales(GradScaler(), np.zeros((3, 0))).shape == (3, 0)
    assert replay_scales(GradScaler(), "").shape == (0,)
    assert replay_scales(GradScaler(2.0**-149), "CI").view(np.uint32).tolist() == [1, 0]  # subnormals too
    stopped = replay_scales(get_scaler("deepspeed", init_scale=2.0, hysteresis=1), "IIC")
    assert stopped[0] == 1.0 and np.isnan(stopped[1:]).all()


@st.composite
def scalers(draw):
    name = draw(st.sampled_from(COUNTING))
    wild = name in ("torch", "sharded", "apex-hysteresis")
    scale = draw(st.sampled_from([1.0, 3.0, 65536.0, 2.0**120] + [2.0**-140, 0.0, -3.0, math.inf, math.nan] * wild))
    settings = {"init_scale": scale}
    known = get_scaler(name).__dataclass_fields__
    extra = {
        "growth_interval": st.sampled_from([1, 2, 3] + [0, -1, 2**40] * wild),
        "growth_factor": st.sampled_from([2.0, 1.1, 3.0, 2.0**60] + [math.nan, math.inf] * wild),
        "backoff_factor": st.sampled_from([0.5, 0.1, 1 / 3] + [0.0, -2.0, math.nan] * wild),
        "scale_factor": st.sampled_from([2.0, 1.1, 3.0, 2.0**60]),
        "hysteresis": st.integers(1, 3),
        "consecutive_hysteresis": st.booleans(),
        "raise_error_at_min_scale": st.booleans(),
        "min_scale": st.sampled_from([1.0, 0.3, 1e-3]),
        "threshold": st.sampled_from([None, 0.7]),
        "tolerance": st.sampled_from([0.0, -1.0, 0.5]),
    }
    for key in extra.keys() & known.keys():
        settings[key] = draw(extra[key])
    return get_scaler(name, **settings)


def numbers(x):
    return np.where(np.isnan(x), np.nan, x).view(np.uint64)


@needs_kernels
@settings(max_examples=600, deadline=None)
@given(scalers(), st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0, 1.0, 0.5, -1.0, math.nan]), min_size=1, max_size=60))
def test_kernel_is_the_reference(scaler, found):
    from numsim.kernels import scaling as fast

    found = np.array([found, [0.0] * len(found), [1.0] * len(found)])
    for strings in (found, np.abs(found) >= 1, np.nan_to_num(found).astype(np.int8)):
        if fast.suits(scaler, strings):
            assert (numbers(fast.scales(scaler, strings)) == numbers(playback.scales(scaler, strings))).all()


@needs_kernels
@pytest.mark.parametrize("name", COUNTING)
def test_long_strings_on_both(name):
    """Thousands of steps: growths, probes, infinities and floors, of every scaler, on the kernel and without."""
    rng = np.random.default_rng(4)
    found = rng.random((4, 3000)) < np.array([[0.0], [0.01], [0.2], [0.9]])
    scaler = get_scaler(name, **({} if name == "static" else {"growth_interval": 3, "init_scale": 65536.0}))
    from numsim.kernels import scaling as fast

    assert fast.suits(scaler, found)
    with kernels.force("kernel"):
        got = replay_scales(scaler, found)
    with kernels.force("reference"):
        wanted = replay_scales(scaler, found)
    assert np.array_equal(got, wanted, equal_nan=True) and got.dtype == wanted.dtype


CORNERS = [
    ("openseq2seq", {"init_scale": 0.125, "growth_interval": 1}, "CC", [1.0, 2.0]),  # growths are floored, too
    ("openseq2seq", {"init_scale": 0.125, "min_scale": 1.0, "growth_interval": 1}, "IC", [1.0, 2.0]),
    ("openseq2seq", {"max_scale": 1e39, "init_scale": 1e39, "scale_factor": 1e39}, "IC", [math.nan, math.nan]),
    ("jmp", {"init_scale": 1e39, "scale_factor": 1e39}, "II", [math.nan, math.nan]),  # jnp.maximum keeps NaN
    ("jmp", {"init_scale": 0.125, "growth_interval": 1}, "CI", [0.25, 1.0]),
    ("flax", {"growth_interval": 2**63 - 1}, "CI", [65536.0, 32768.0]),
    ("deepspeed", {"growth_interval": 2**63 - 1, "hysteresis": 2**63 - 1}, "CI", [65536.0, 65536.0]),
    ("sharded", {"growth_interval": 2**63 - 1}, "CI", [65536.0, 32768.0]),
]


@needs_kernels
@pytest.mark.parametrize(("name", "options", "string", "wanted"), CORNERS)
def test_corners_on_both(name, options, string, wanted):
    for which in ("kernel", "reference"):
        with kernels.force(which):
            got = replay_scales(get_scaler(name, **options), string)
        assert np.array_equal(got, wanted, equal_nan=True), which
    assert np.array_equal(replay(get_scaler(name, **options), string)["scale"], wanted, equal_nan=True)


@needs_kernels
def test_kernel_is_paired_and_leaves_the_rest():
    from numsim.kernels import scaling as fast

    for reference, kernel in fast.TWINS:
        assert (reference.__module__, reference.__name__) == ("numsim.scaling.playback", kernel.__name__)
    assert not fast.suits(get_scaler("fairseq", tolerance=0.5), np.zeros((1, 2)))
    assert not fast.suits(get_scaler("apex-hysteresis"), np.array([[math.nan]]))
    assert not fast.suits(get_scaler("openseq2seq-logmax"), np.ones((1, 2)))
    with kernels.force("kernel"):  # the reference steps in
        assert replay_scales(get_scaler("fairseq", tolerance=0.6), "CIII").tolist() == [
            32768.0,
            32768.0,
            16384.0,
            8192.0,
        ]


@needs_kernels
def test_a_cpu_that_flushes_subnormals_keeps_them(monkeypatch):
    from numsim.kernels import scaling as fast

    monkeypatch.setattr(fast, "is_ieee", lambda: False)
    assert not fast.suits(GradScaler(), np.zeros((1, 2)))


def test_torch_replayed():
    torch = pytest.importorskip("torch")
    found = np.random.default_rng(4).random(3000) < 0.1
    scale, tracker = torch.tensor(3.0), torch.tensor(0, dtype=torch.int32)
    wanted = []
    for f in found:
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(f)), 1.1, 0.7, 5)
        wanted.append(scale.item())
    got = replay_scales(GradScaler(3.0, 1.1, 0.7, 5), found)
    assert got.tolist() == wanted and replay(GradScaler(3.0, 1.1, 0.7, 5), found)["scale"].tolist() == wanted
    assert numsim.array(wanted, "fp32").codes.tolist() == got.view(np.uint32).tolist()
