"""Delayed scaling by a scalar rule and ml_dtypes' casts; parameters that are refused; sentences that stay true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numsim.data import load_gradients
from numsim.errors import InputError
from numsim.experiments import delayed_scaling, get_experiment
from numsim.experiments.delayed_scaling import story
from numsim.scaling import DelayedScaling
from tests.experiments.runs import lecture, run, table
from tests.experiments.test_mx_scale import Nobody


def scales(amaxes: Any, history: int, algo: str, fp8_max: float) -> list[float]:
    """The scale that each step uses, by lists: the amaxes of the last ``history`` steps decide."""
    scale, used, seen = np.float32(1), [], list[float]()
    for amax in np.asarray(amaxes, np.float32):
        used.append(float(scale))
        if amax == 0:
            continue
        seen.append(float(amax))
        chosen = max(seen[-history:]) if algo == "max" else seen[-1]
        if np.isfinite(chosen):
            scale = np.float32(fp8_max) / np.float32(chosen)
    return used


@pytest.mark.parametrize("name", ["max of 16", "most recent"])
def test_traces_by_lists(name: str) -> None:
    trace = lecture("delayed-scaling")[1].traces[name]
    algo = "max" if name == "max of 16" else "most_recent"
    assert trace["scale used"].tolist() == scales(trace["amax"], 16, algo, 448.0)
    assert trace["amax"].tolist() == story(16, 2.0, 64.0).values


@pytest.mark.parametrize("history", [1, 2, 16, 64])
def test_the_scale_stands_still_for_the_history(history: int) -> None:
    """Counted in the scales themselves: after the infinity the amax is half of what it was."""
    result = run("delayed-scaling", history=history)
    at = story(history, 2.0, 64.0).at("infinity")
    scale = result.traces[f"max of {history}"]["scale"]
    assert result.answer == str(history) == str(int(np.argmax(scale[at:] != scale[at - 1])))
    recent = result.traces["most recent"]["scale"]
    assert int(np.argmax(recent[at:] != recent[at - 1])) == 1


def test_zeros_by_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    result = lecture("delayed-scaling")[1]
    x = load_gradients().matrices["grad_output"][2000]
    x = x[x != 0] / np.abs(x).max()
    trace = result.traces["max of 16"]
    for step in (0, 1, 30, 31, 46, 47, 70):
        scaled = np.clip(x * np.float32(trace["amax"][step]) * np.float32(trace["scale used"][step]), -448, 448)
        zero = float(np.mean(scaled.astype(ml_dtypes.float8_e4m3fn).astype(float) == 0))
        assert result.series["zeros"]["max of 16"][step] == zero
    assert result.series["zeros"]["max of 16"][31] > 2 * result.series["zeros"]["max of 16"][30 - 1]


@pytest.mark.parametrize(("name", "element"), [("input", 448.0), ("weight", 448.0), ("grad_output", 57344.0)])
def test_real_amaxes_by_lists(name: str, element: float) -> None:
    amaxes = load_gradients().amaxes[name]
    beyond = {448.0: 464.0, 57344.0: 61440.0}[element]
    rows = table(lecture("delayed-scaling")[1], "real updates").rows
    place = {"input": 1, "weight": 3, "grad_output": 5}[name]
    for row, (history, algo) in zip(rows, ((1, "most_recent"), (4, "max"), (16, "max"), (1024, "max")), strict=True):
        used = np.array(scales(amaxes, history, algo, element))[1:]
        scaled = (amaxes[1:] * used.astype(np.float32)).astype(float)
        clips = scaled > beyond if element == 448.0 else scaled >= beyond
        assert row[place] == np.count_nonzero(clips)
        assert row[place + 1] == pytest.approx(np.log2(element / (amaxes[1:] * used)).mean(), abs=0.006)
        assert row[-1] == history


def test_what_does_not_fail() -> None:
    found = " ".join(lecture("delayed-scaling")[1].findings)
    assert "What does not fail: the amax of the weight" in found
    assert "4 of 4 steps clip, the amax at 2 times the limit" in found
    assert "for 16 steps by max of 16 and for 1 step by most recent" in found
    assert "E4M3 (448) above 464 and E5M2 (57344) from 61440 on" in found


def test_other_parameters_other_sentences() -> None:
    result = run("delayed-scaling", history=4, growth=1.03, spike=2.0)
    found = " ".join(result.findings)
    assert result.answer == "4" and "grows so slowly that none of the 4 steps clips" in found
    assert "for 4 steps by max of 4 and for 1 step by most recent" in found
    assert set(result.traces) == {"max of 4", "most recent"}
    fast = " ".join(run("delayed-scaling", history=1, growth=8.0).findings)
    assert "the amax at 8 times the limit" in fast


def test_full_size_keeps_the_answer() -> None:
    assert run("delayed-scaling", **get_experiment("delayed-scaling").full).answer == "16"


def test_a_rule_without_the_oldest_entry_gives_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry that leaves still counts in its last update: a history of 15 is the off-by-one guess."""

    class Short(DelayedScaling):
        def _next(self, history: Any, *rest: Any) -> Any:
            forgotten = history.copy()
            if history.size > 1:
                forgotten[1] = 0
            return super()._next(forgotten, *rest)

    monkeypatch.setattr(delayed_scaling, "DelayedScaling", Short)
    assert run("delayed-scaling").answer == "15"


def test_machines_without_casts_or_divisions() -> None:
    columns = table(lecture("delayed-scaling", "numpy")[1], "step by step")
    assert all(row[-1] is None for row in columns.rows)
    assert lecture("delayed-scaling", "ml_dtypes")[1].answer == "16"
    rows = table(lecture("delayed-scaling", "ml_dtypes")[1], "real updates").rows
    assert all(row[2] is None and row[1] > 0 for row in rows)


@pytest.mark.parametrize(
    "bad",
    [
        {"history": 0},
        {"history": 65},
        {"history": 16.0},
        {"history": True},
        {"growth": 1.0},
        {"growth": float("nan")},
        {"growth": "2"},
        {"spike": 1.0},
        {"spike": float("inf")},
    ],
)
def test_bad_parameters(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"{next(iter(bad))}=.*Example: numsim\.experiments\.run"):
        run("delayed-scaling", Nobody(), **bad)
