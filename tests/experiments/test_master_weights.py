"""Small updates, by NumPy's float16 and ml_dtypes' bfloat16."""

from __future__ import annotations

import numpy as np
import pytest

from numsim.data import load_gradients
from tests.experiments.runs import lecture, run, table


def paths(name: str, update: float) -> dict[str, list[float]]:
    series = lecture("master-weights")[1].series
    return series["paths"][name][list(series["updates"]).index(update)]


@pytest.mark.parametrize("update", [1e-4, 1e-3])
def test_fp16_plain_by_numpy(update: float) -> None:
    w = np.float16(1)
    trail = [float(w)]
    for _ in range(1000):
        w = w + np.float16(update)
        trail.append(float(w))
    assert paths("FP16", update)["plain"] == trail
    assert trail[-1] == {1e-4: 1.0, 1e-3: 1.9765625}[update]


def test_known_answers() -> None:
    assert set(paths("BF16", 1e-4)["plain"]) == set(paths("BF16", 1e-3)["plain"]) == {1.0}
    assert paths("BF16", 1e-4)["Kahan"][-1] == 1.1015625
    assert paths("BF16", 1e-4)["FP32 master"][-1] == 1.1015625
    assert paths("FP16", 1e-4)["Kahan"][-1] == pytest.approx(1.1, abs=2**-10)
    result = lecture("master-weights")[1]
    assert result.answer == "BF16"
    limits = {row[0]: row[1:] for row in table(result, "limits").rows}
    assert limits == {"FP32": ("2^-150", "2^-24"), "BF16": ("2^-134", "2^-8"), "FP16": ("2^-25", "2^-11")}


@pytest.mark.parametrize("name", ["BF16", "FP16"])
def test_stochastic_rounding_is_right_on_average(name: str) -> None:
    step = {"BF16": 2**-7, "FP16": 2**-10}[name]
    path = paths(name, 1e-4)
    p = 1e-4 / step
    error = step * np.sqrt(1000 * p * (1 - p) / 100)
    assert abs(path["stochastic"][-1] - 1.1) < 4 * error + 1e-4
    assert path["stochastic, low"][-1] < 1.1 < path["stochastic, high"][-1]
    assert path["stochastic"][0] == 1.0


def test_what_does_not_fail_is_reported_as_not_failing() -> None:
    findings = " ".join(lecture("master-weights")[1].findings)
    assert "BF16 holds 1 and FP16 holds 1.9766" in findings
    assert "BF16 holds 1 and FP16 holds 1." in findings  # at 0.0001 both stand still
    rows = {row[0]: row for row in table(lecture("master-weights")[1], "without any cure").rows}
    assert rows[0.01][3] > 10 and rows[0.0003][2:4] == (1, 1)
    big = run("master-weights", updates=(0.01,), runs=2, formats=("bf16", "fp16"))
    assert big.answer == "neither"
    assert run("master-weights", updates=(1e-5,), runs=2).answer == "both"


@pytest.mark.parametrize("name", ["BF16", "FP16"])
def test_real_weights(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = {"BF16": ml_dtypes.bfloat16, "FP16": np.float16}[name]
    series = lecture("master-weights")[1].series
    unmoved = total = 0.0
    for row in load_gradients().select("weight", 2000):
        w = row.sample[:200].astype(dtype)
        unmoved += row.nonzeros * float(np.mean(w - dtype(1e-4) == w))
        total += row.nonzeros
    found = series["standing_still"][name][series["sizes"].index(1e-4)]
    assert found == pytest.approx(unmoved / total)
    assert (found > 0.5) == (name == "BF16")


def test_shares_are_shares() -> None:
    series = lecture("master-weights")[1].series
    shares = [x for key in ("standing_still", "zero_gradients") for row in series[key].values() for x in row]
    assert all(0 <= x <= 1 for x in shares)
    assert series["standing_still"]["BF16"][0] == 1  # all weights, to the last bit


def test_one_picture_for_the_whole_course() -> None:
    series = lecture("master-weights")[1].series
    small_update = series["sizes"].index(1e-4)
    assert series["zero_gradients"]["FP16"][0] > 0.4 and series["zero_gradients"]["BF16"][0] == 0
    assert series["standing_still"]["BF16"][small_update] > 20 * series["standing_still"]["FP16"][small_update]
    assert series["zero_gradients"]["FP16"][0] == pytest.approx(
        lecture("underflow")[1].series["zero_at_scale_1"]["fp16"]["activation-gradient"]["2000"], rel=1e-9
    )


def test_machines_that_have_one_format_say_so() -> None:
    assert lecture("master-weights", "numpy")[1].answer == "neither (BF16 not answered)"
    if "ml_dtypes" in lecture("master-weights", "ml_dtypes")[0].machine.name:
        assert lecture("master-weights", "ml_dtypes")[1].answer == "BF16 (FP16 not answered)"
