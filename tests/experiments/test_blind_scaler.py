"""Gradients that never change, by a loop of a few lines with NumPy's cast."""

from __future__ import annotations

import numpy as np
import pytest

from numsim.errors import InputError
from numsim.experiments.blind_scaler import EXPERIMENT
from numsim.experiments.experiment import Session
from numsim.machines import get_machine
from numsim.scaling import list_scalers
from tests.experiments.runs import lecture, run, table


def scales(largest: float, interval: int, steps: int, scale: float = 2.0**16) -> list[float]:
    after, clean = [], 0
    for _ in range(steps):
        with np.errstate(over="ignore"):
            fits = np.isfinite(np.float16(np.float32(largest) * np.float32(scale)))
        scale, clean = (scale / 2, 0) if not fits else (scale * 2, 0) if clean + 1 == interval else (scale, clean + 1)
        after.append(scale)
    return after


@pytest.mark.parametrize("largest", [0.5, 0.001, 1e-6, 0.0])
def test_the_way_of_the_scale(largest: float) -> None:
    name = f"gradients up to {largest:g}" if largest else "gradients of zero"
    assert lecture("blind-scaler")[1].traces[name]["scale"].tolist() == scales(largest, 100, 3000)


def test_the_answer() -> None:
    _, result = lecture("blind-scaler")
    way = scales(0.001, 100, 3000)
    falls = [i + 1 for i in range(1, 3000) if way[i] < way[i - 1]]
    assert max(way) == 2.0**26 and set(np.diff(falls)) == {101}
    assert result.answer == "it doubles to 2^26, then overflows every 101 steps"
    row = next(row for row in table(result, "torch.amp").rows if row[0] == "0.001")
    assert row == ("0.001", "2^25", falls[0], len(falls), 101, "2^25")
    assert scales(0.001, 101, 3000) != way  # an interval that is off by one


@pytest.mark.parametrize(
    ("parameters", "answer"),
    [
        ({"largest": 1e10}, "it halves to 2^-18, then overflows every 101 steps"),
        ({"largest": 0.5, "interval": 10, "steps": 100}, "it doubles to 2^17, then overflows every 11 steps"),
        ({"format": "bf16"}, "it doubles to 2^46, and never overflows"),
        ({"steps": 50}, "it stays at 2^16, and never overflows"),
        ({"steps": 100}, "it doubles to 2^17, and never overflows"),
        ({"largest": 1e5, "steps": 50}, "it halves to 2^-1"),
    ],
)
def test_other_parameters(parameters: dict[str, object], answer: str) -> None:
    result = run("blind-scaler", **parameters)
    assert result.answer == answer
    trace = next(t for name, t in result.traces.items() if name == f"gradients up to {result.series['largest']:g}")
    skipped = len(trace.happened("overflow"))
    assert (f"{skipped} of {len(trace)} steps are skipped" in result.findings[0]) == (skipped > 0)
    assert any(f.startswith("At the limit one step in") for f in result.findings) == ("every" in answer)


def test_size_is_not_looked_at() -> None:
    ways = [t["scale"] for t in lecture("blind-scaler")[1].traces.values()]
    assert all((way[:100] == ways[0][:100]).all() for way in ways)
    assert "up to step 100" in next(f for f in lecture("blind-scaler")[1].findings if "never looks" in f)


def test_systems_at_the_limit_and_with_zeros() -> None:
    result = lecture("blind-scaler")[1]
    still, zeros = ({row[0]: row[1:] for row in table(result, x).rows} for x in ("log-max", "gradients of zero"))
    rows = {name: still[name] + zeros[name] for name in zeros}
    assert set(rows) == set(still) == set(list_scalers()) - {"static", "openseq2seq-logmax"}
    assert rows["torch"] == (1001, 20, "2^25", "2^127", "2^127", None)
    assert rows["flax"][:3] == (1011, 20, "2^25")  # 10 growths of 101 steps
    assert rows["deepspeed"][0] == 1002  # one more before the first growth only
    for name in ("apex", "openseq2seq"):
        assert rows[name] == (None, 0, "2^24", "2^24", "2^24", None)
    for name in ("keras", "megatron", "sharded"):
        assert rows[name][3:] == ("inf", "inf", "for ever")
    for name in ("megatron", "deepspeed", "apex-hysteresis"):  # hysteresis: two overflows for each probe
        assert rows[name][1] == 40
    assert [rows[n][3] for n in ("deepspeed", "fairseq", "apex-fp16")] == ["2^128"] * 3
    assert rows["flax"][3] == f"{np.finfo(np.float32).max:.3g}"


@pytest.mark.parametrize(
    "bad",
    [
        {"largest": 0.0}, {"largest": -0.5}, {"largest": float("nan")}, {"interval": 0}, {"interval": 1},
        {"scale": 25}, {"scale": 1.5}, {"steps": 5}, {"format": "fp32"}, {"format": ["fp16", "bf16"]},
    ],
)  # fmt: skip
def test_refused(bad: dict[str, object]) -> None:
    session = Session(get_machine("emulated"))
    with pytest.raises(InputError, match=rf"{next(iter(bad))}=.*Example: "):
        EXPERIMENT.run(session, **{**EXPERIMENT.defaults, **bad})
    assert not session.answers
