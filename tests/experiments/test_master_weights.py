"""Small updates, by NumPy's float16 and ml_dtypes' bfloat16."""

from __future__ import annotations

import numpy as np
import pytest

from numsim.data import load_gradients
from numsim.errors import InputError
from numsim.optimizers import Adam, train_digits
from tests.experiments.runs import lecture, run, table
from tests.experiments.test_mx_scale import Nobody


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


@pytest.mark.parametrize("name", ["BF16", "FP16"])
def test_lost_by_ratio(name: str) -> None:
    """1 + 2^-8 is 1 in BF16 and 1 - 2^-9 too; 2^-11 and 2^-12 in FP16. By other libraries' sums."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype, bits = {"BF16": (ml_dtypes.bfloat16, 7), "FP16": (np.float16, 10)}[name]
    series = lecture("master-weights")[1].series
    w = (1 + np.arange(2**bits) / 2**bits).astype(dtype)
    for exponent in range(-14, -5):
        u = (w.astype(np.float64) * 2.0**exponent).astype(dtype)
        share = (float(np.mean(w + u == w)) + float(np.mean(w - u == w))) / 2
        assert series["lost_by_ratio"][name][series["ratios"].index(2.0**exponent)] == share
        assert (share == 1) == (exponent <= -bits - 2) and (share > 0) == (exponent <= -bits - 1)
    assert f"in {name} all up to 2^{-bits - 2} of the weight, some up to 2^{-bits - 1}" in " ".join(
        lecture("master-weights")[1].findings
    )


def test_network_on_the_digits() -> None:
    """At the middle rate BF16 loses most of its updates and learns less; FP16 and the cures do as FP32 does."""
    traces = lecture("master-weights")[1].traces
    loss = {name: trace["loss"][-1] for name, trace in traces.items()}
    size = {name: trace["lost size"].mean() for name, trace in traces.items()}
    middle, base = "lr 0.0003", loss["FP32, lr 0.0003"]
    assert size[f"BF16, {middle}"] > 0.7 and loss[f"BF16, {middle}"] > base + 0.2
    for way in ("FP16", "BF16, stochastic", "BF16, Kahan", "BF16, FP32 master"):
        assert abs(loss[f"{way}, {middle}"] - base) < 0.02
    assert size[f"FP16, {middle}"] < 0.1 and size[f"BF16, Kahan, {middle}"] < 0.001
    rows = {row[:2]: row[4:] for row in table(lecture("master-weights")[1], "network").rows}
    assert rows["BF16, stochastic", 0.0003] == (None, None) and None not in rows["BF16", 0.0003]
    # a tenth of the rate: FP16 fails too; ten times: neither does
    assert size["FP16, lr 3e-05"] > 0.7 and loss["FP16, lr 3e-05"] > loss["FP32, lr 3e-05"] + 0.04
    assert size["BF16, lr 0.003"] < 0.2 and abs(loss["BF16, lr 0.003"] - loss["FP32, lr 0.003"]) < 0.02


def test_trained_as_the_optimizers_train() -> None:
    result = run("master-weights", formats=["fp16"], runs=2, steps=10, training_steps=20, seed=3)
    adam = Adam(3e-4, format="fp16", states="fp32", gradients="fp32")
    trace = result.traces["FP16, lr 0.0003"]
    assert trace.digest == train_digits(adam, steps=20, batch=32, every=10, seed=3).digest
    assert set(result.traces) == {
        *(f"{way}, lr {rate}" for way in ("FP32", "FP16") for rate in ("3e-05", "0.0003", "0.003")),
        *(f"FP16, {cure}, lr 0.0003" for cure in ("stochastic", "Kahan", "FP32 master")),
    }
    (lost,) = [row for row in table(result, "network").rows if row[:2] == ("FP16", 0.0003)]
    assert lost[2] == float(f"{trace['loss'][-1]:.4g}")


@pytest.mark.parametrize(
    "bad",
    [
        {"learning_rate": 0.0}, {"learning_rate": "1"}, {"training_steps": 5}, {"updates": 0.1}, {"updates": []},
        {"updates": [float("nan")]}, {"updates": ["0.1"]}, {"steps": 2}, {"steps": 100_000, "runs": 1000},
        {"formats": ["fp32"]},
    ],
)  # fmt: skip
def test_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match=rf"{next(iter(bad))}=.*Example: "):
        run("master-weights", Nobody(), **bad)


def test_machines_that_have_one_format_say_so() -> None:
    assert lecture("master-weights", "numpy")[1].answer == "neither (BF16 not answered)"
    if "ml_dtypes" in lecture("master-weights", "ml_dtypes")[0].machine.name:
        assert lecture("master-weights", "ml_dtypes")[1].answer == "BF16 (FP16 not answered)"
