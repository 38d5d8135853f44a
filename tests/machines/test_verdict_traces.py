"""Two traces: every number by its bits, every event by step and kind; what tells of other things is refused."""

import json

import numpy as np
import pytest

import numsim
from numsim import Event, Trace, array
from numsim.errors import InputError
from numsim.machines.verdict import SHOWN, compare_traces

SCALES = array([4.0, 4.0, 2.0], "fp32")
AMAX = np.array([0.5, np.inf, np.nan])
HALVED = (Event(3, "overflow", "halved"),)


def a_trace(title="ours", steps=(1, 2, 3), scale=SCALES, amax=AMAX, events=HALVED, **about):
    return Trace(title, list(steps), {"scale": scale, "amax": amax}, events, about)


def test_equal():
    v = compare_traces(a_trace(), a_trace("theirs", events=(Event(3, "overflow", "skipped"),), source="elsewhere"))
    assert (v.machine, v.against, v.compared, v.equal, v.differ, v.text) == ("ours", "theirs", 7, 7, 0, "same bits")
    assert compare_traces(Trace("a", [], {"x": []}), Trace("b", [], {"x": []})).text.startswith("skipped")


@pytest.mark.parametrize("bit", range(32))
@pytest.mark.parametrize("step", [1, 3])
def test_one_bit_of_a_code(step, bit):
    codes = SCALES.codes.copy()
    codes[step - 1] ^= np.uint32(1 << bit)
    v = compare_traces(a_trace(), a_trace(scale=numsim.from_codes(codes, "fp32")))
    assert (v.compared, v.equal, v.unexplained, v.ok) == (7, 6, 1, False)
    assert str(v.shown[0]).startswith(f"scale of step {step}: 0x40") and v.shown[0].index == (step - 1,)


@pytest.mark.parametrize("bit", range(64))
def test_one_bit_of_a_float(bit):
    changed = AMAX.view(np.uint64).copy()
    changed[0] ^= np.uint64(1) << np.uint64(bit)
    v = compare_traces(a_trace(), a_trace(amax=changed.view(np.float64)))
    assert (v.equal, v.unexplained) == (6, 1)
    assert str(v.shown[0]).startswith("amax of step 1: 0x3fe0000000000000 = 0.5 against 0x")


def test_the_sign_of_zero_is_a_difference():
    assert compare_traces(Trace("a", [1], {"x": [0.0]}), Trace("b", [1], {"x": [-0.0]})).unexplained == 1


def test_nans_are_a_class_of_their_own():
    quiet = numsim.from_codes([0x7E00, 0x7E00], "fp16")
    other = numsim.from_codes([0xFE01, 0x7C00], "fp16")  # a NaN of another payload, and infinity
    a, b = Trace("a", [1, 2], {"x": quiet}), Trace("b", [1, 2], {"x": other})
    v = compare_traces(a, b)
    assert (v.nan, v.unexplained, v.shown[0].index) == (1, 1, (1,))
    v = compare_traces(a, b, nan="bits")
    assert (v.nan, v.unexplained) == (0, 2)
    with pytest.raises(InputError, match="nan='quiet'"):
        compare_traces(a, b, nan="quiet")


@pytest.mark.parametrize(
    ("events", "unexplained", "shown"),
    [
        ([], 1, "event overflow of step 3: yes against no"),
        ([Event(2, "overflow")], 2, "event overflow of step 2: no against yes"),
        ([Event(3, "growth")], 2, "event growth of step 3: no against yes"),
        ([Event(3, "overflow"), Event(1, "growth")], 1, "event growth of step 1: no against yes"),
        ([Event(3, "overflow")] * 3, 2, "event overflow of step 3: yes against 3 times"),
    ],
)
def test_events_are_compared(events, unexplained, shown):
    v = compare_traces(a_trace(), a_trace(events=events))
    assert (v.unexplained, v.equal, str(v.shown[0])) == (unexplained, v.compared - unexplained, shown)


def test_the_first_steps_are_shown_whatever_the_series():
    n = 100
    a = Trace("a", range(n), {"x": np.zeros(n), "y": np.zeros(n)})
    b = Trace("b", range(n), {"x": np.arange(n) // 90, "y": np.arange(n) // 5}, [Event(7, "growth")])
    v = compare_traces(a, b)
    assert v.unexplained == 10 + 95 + 1 and len(v.shown) == SHOWN
    told = [(d.question, d.operands[0]) for d in v.shown]
    assert told[:4] == [("y", "step 5"), ("y", "step 6"), ("y", "step 7"), ("event growth", "step 7")]


def test_series_of_all_formats_stand_in_their_order():
    series = {"a": [0.0, 0.0], "b": array([1.0, 1.0], "fp16"), "c": [0.0, 0.0], "d": array([1.0, 1.0], "fp64")}
    other = {"a": [0.0, 1.0], "b": array([1.0, 2.0], "fp16"), "c": [1.0, 1.0], "d": array([1.0, 2.0], "fp64")}
    v = compare_traces(Trace("a", [1, 2], series), Trace("b", [1, 2], dict(reversed(other.items()))))
    assert (v.compared, v.equal, v.unexplained) == (8, 3, 5)
    assert [(d.question, d.index[0]) for d in v.shown] == [("c", 0), ("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    assert v.shown[2].theirs == "0x4000 = 2"


def test_series_of_one_format_are_compared_at_once(monkeypatch):
    calls = []
    monkeypatch.setattr("numsim.machines.verdict._is_nan", lambda codes, format: calls.append(1) or codes != codes)
    a, b = (Trace("x", [1], {f"s{i}": [float(i + k)] for i in range(1000)}) for k in (0, 1))
    v = compare_traces(a, b)
    assert (v.unexplained, len(v.shown), len(calls)) == (1000, SHOWN, 2)
    assert [d.question for d in v.shown] == [f"s{i}" for i in range(SHOWN)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": (1, 2, 4)}, "step 3 is only in the first"),
        ({"scale": np.array([4.0, 4.0, 2.0])}, "codes of fp32 in the first and floats in the second"),
        ({"scale": array([4.0, 4.0, 2.0], "fp64")}, "codes of fp32 in the first and codes of fp64 in the second"),
        ({"amax": array([4.0, 4.0, 2.0], "fp64")}, "floats in the first and codes of fp64 in the second"),
    ],
)
def test_other_things_are_not_compared(change, words):
    change = {"events": (), **change}
    with pytest.raises(InputError, match=words):
        compare_traces(a_trace(), a_trace("theirs", **change))
    with pytest.raises(InputError, match="series 'more' is only in the second"):
        compare_traces(Trace("a", [1], {}), Trace("b", [1], {"more": [1.0]}))


def test_names_sums_and_json():
    v = compare_traces(a_trace(), a_trace(events=()), names=("a.json", "b.json"))
    assert (v.machine, v.against, (v + v).unexplained) == ("a.json", "b.json", 2)
    data = json.loads(json.dumps(v.to_dict(), allow_nan=False))
    assert data["differences"][0]["operands"] == ["step 3"] and data["verdict"] == "1 UNEXPLAINED"
