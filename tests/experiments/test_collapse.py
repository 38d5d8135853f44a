"""The death spiral, by NumPy's float32 and float16."""

from __future__ import annotations

import numpy as np
import pytest

from numsim.errors import InputError
from numsim.experiments.collapse import EXPERIMENT
from numsim.experiments.experiment import Session
from numsim.machines import find_machine, get_machine
from numsim.machines.verdict import compare_answers
from tests.experiments.runs import lecture, run, table

ONE = np.float32(1)


def after(overflows: int, start: int = 16, half: bool = False, g: float = 0.01, rate: float = 0.1) -> tuple[float, ...]:
    """Scale, and what one clean step makes of a weight of 1."""
    scale = ONE * np.float32(2.0**start)
    with np.errstate(all="ignore"):
        for _ in range(overflows):
            scale = np.float32(float(scale) * 0.5)
        scaled = np.float32(g) * scale
        if half:
            scaled = np.float32(np.float16(scaled))
        inverse = np.float32(np.float64(1) / np.float64(scale))
        return float(scale), float(ONE - np.float32(rate) * (scaled * inverse))


def test_the_answer() -> None:
    _, result = lecture("collapse")
    first = next(n for n in range(200) if not np.isfinite(after(n)[1]))
    assert result.answer == str(first) == "144" and after(144)[0] == 2.0**-128
    assert next(n for n in range(200) if after(n)[0] == 0) == 166
    assert result.traces["torch"]["scale"][164:166].tolist() == [2.0**-149, 0]


@pytest.mark.parametrize("half", [False, True])
def test_every_weight(half: bool) -> None:
    weights = lecture("collapse")[1].series["weight"]["fp16" if half else "fp32"]
    expected = [after(n, half=half)[1] for n in range(201)]
    assert np.array_equal(weights, expected, equal_nan=True) and len(weights) == 201


def test_rows_of_the_table() -> None:
    rows = {row[0]: row[1:] for row in table(lecture("collapse")[1], "torch.amp").rows}
    assert rows[144][:2] == ("2^-128", "inf") and rows[144][4] == "-inf" and rows[144][6] == "nan"
    assert rows[143][:2] == ("2^-127", "2^127") and rows[143][4] == 0.999
    assert rows[165][0] == "2^-149" and rows[166][0] == "0"
    assert rows[34][5] == pytest.approx(2.0**-24, rel=1e-3) and rows[35][5:] == (0, 1)


def test_every_systems_floor() -> None:
    rows = {row[0]: row[1:] for row in table(lecture("collapse")[1], "static and log-max").rows}
    assert rows["megatron"][:3] == ("2^0", 17, None) and rows["jmp"][:3] == ("2^0", 16, None)
    assert rows["deepspeed"] == ("2^0", 17, "raises at 18", None, None, None)
    assert rows["fairseq"] == ("2^-13", 29, "raises at 30", None, None, None)
    assert 2.0**-14 <= 1e-4 < 2.0**-13
    assert rows["flax"] == ("2^-126", 142, None, 0.999, 1, None)
    assert rows["torch"] == ("0", 166, None, "nan", "nan", 144)
    assert rows["apex"] == ("2^-184", 200, None, "nan", "nan", 144)  # a Python float does not stop at 2^-149
    assert rows["keras"][-1] == 166  # it divides: no inverse to overflow
    assert rows["apex-hysteresis"][-1] == 145


def test_other_parameters() -> None:
    result = run("collapse", scale=3, gradient=2.0**-10, overflows=180)
    first = next(n for n in range(180) if not np.isfinite(after(n, 3, g=2.0**-10)[1]))
    assert result.answer == str(first) == "131"
    gone = next(n for n in range(180) if np.float16(2.0**-10 * after(n, 3)[0]) == 0)
    assert f"from {gone} overflows on" in result.findings[1]
    assert "deepspeed at overflow 5" in " ".join(result.findings)


def test_machines_agree() -> None:
    session, _ = lecture("collapse")
    for name in ("numpy", "torch-cpu"):
        machine = find_machine(name)
        if machine.can():
            verdict = compare_answers(session.answers, machine, name="emulated")
            assert verdict.ok and verdict.compared > 1000, name


@pytest.mark.parametrize(
    "bad",
    [
        {"scale": -1}, {"scale": 40}, {"overflows": 20}, {"overflows": 10**6}, {"overflows": 200.5}, {"gradient": 0.0},
        {"gradient": float("nan")}, {"learning_rate": -0.1}, {"learning_rate": "fast"},
    ],
)  # fmt: skip
def test_refused(bad: dict[str, object]) -> None:
    session = Session(get_machine("emulated"))
    with pytest.raises(InputError, match=rf"{next(iter(bad))}=.*Example: "):
        EXPERIMENT.run(session, **{**EXPERIMENT.defaults, **bad})
    assert not session.answers
