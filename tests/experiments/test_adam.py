"""Adam in 16 bits, by numsim's optimizers and by NumPy's float16."""

from __future__ import annotations

import math

import numpy as np
import pytest

from numsim.errors import InputError
from numsim.optimizers import Adam, AdamW
from tests.experiments.runs import lecture, run, table
from tests.experiments.test_mx_scale import Nobody


def rows(words: str) -> dict[tuple[object, object], tuple[object, ...]]:
    return {row[:2]: row[2:] for row in table(lecture("adam")[1], words).rows}


def test_known_answers() -> None:
    result = lecture("adam")[1]
    assert result.answer == "0.5"
    up, down = rows("gradients of 1"), rows("more gradients")
    assert [up["BF16", o][3] for o in ("single-tensor", "foreach", "fused")] == [0.5, 0.5, 0.25]
    assert [down["BF16", o][3] for o in ("single-tensor", "foreach", "fused")] == [0.5, 0.5, 0.25]
    assert up["exact", None][3] == 0.993 and down["exact", None][3] == 0.00668
    assert 0.007 < down["FP16", "fused"][3] < 0.01 < 0.7 < up["FP16", "fused"][3] < 0.8
    constants = {row[0]: row[2:] for row in table(result, "constants").rows}
    assert constants[1e-8][1] == 0 and constants[0.999] == (1, 0.999023) and constants[1e-7][1] == 1.19209e-7
    first = rows("first step")
    assert first["FP16", "single-tensor"][:2] == ("nan", "-inf") and first["FP16", "fused"][:2] == (1, 0.999023)
    assert set(first["BF16", "single-tensor"]) == set(first["BF16", "fused"]) == {1}


@pytest.mark.parametrize("order", ["single-tensor", "foreach", "fused"])
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_v_by_the_optimizer(name: str, order: str) -> None:
    """240 steps up and 240 down, every one, also where the multiply-adds are fused."""
    trace = run("adam", formats=[name], gradient=2.0, steps=240).traces[name.upper()]
    adam = Adam(1e-3, format=name, order=order)
    state = adam.initial([1.0])
    path = [0.0]
    for step in range(480):
        state = adam.step(state, [2.0 if step < 240 else 0.0])
        path.append(float(state.slots["exp_avg_sq"][0]))
    assert trace[order].tolist() == path
    assert trace.happened("zeros") == [240]


def test_other_gradients_without_fused_multiply_adds() -> None:
    trace = run("adam", formats=["fp16"], gradient=0.3, beta2=0.99, steps=100).traces["FP16"]
    adam = Adam(1e-3, betas=(0.9, 0.99), format="fp16", order="fused", fma=False)
    state = adam.initial([1.0])
    for _ in range(100):
        state = adam.step(state, [0.3])
    assert trace["fused"][100] == state.slots["exp_avg_sq"][0] != 0


@pytest.mark.parametrize("name", ["BF16", "FP16"])
def test_weight_decay_by_the_optimizer(name: str) -> None:
    series = lecture("adam")[1].series
    decays = (2e-4, 1e-3, 2e-3, 5e-3)
    ways = [AdamW(1e-2, weight_decay=d * 100, eps=1e-3, format=name.lower()) for d in decays]
    states = [adamw.initial([1.0]) for adamw in ways]
    for _ in range(1000):
        states = [adamw.step(state, [0.0]) for adamw, state in zip(ways, states, strict=True)]
    weights = [series["decayed"][name][series["decays"].index(d)] for d in decays]
    assert weights == [float(s.weights[0]) for s in states]


def test_weight_decay_by_numpy() -> None:
    w = np.float16(1)
    for _ in range(1000):
        w = np.float16(np.float32(w) * np.float32(1 - 1e-3))
    series = lecture("adam")[1].series
    assert series["decayed"]["FP16"][series["decays"].index(1e-3)] == w


def test_first_v_that_is_zero() -> None:
    g = np.arange(1, 0x3C00, dtype=np.uint16).view(np.float16)
    v = (np.float32(0.001) * g.astype(np.float32) * g.astype(np.float32)).astype(np.float16)
    assert f"{float(g[v == 0].max()):.3g} in FP16" in " ".join(lecture("adam")[1].findings)
    assert 5.45e-3 < float(g[v == 0].max()) < 5.47e-3


def test_other_parameters_other_sentences() -> None:
    mild = run("adam", beta2=0.95, eps=1e-4, steps=2000)
    words = " ".join(mild.findings)
    assert mild.answer != "0.5" and "In BF16 v does decay" in words and "never decays" not in words
    assert "gives finite weights in all of" in words
    large = run("adam", beta2=0.9999, steps=5000)
    assert "In FP16 v never decays" in " ".join(large.findings)
    assert run("adam", formats=["fp16"]).answer == "0.7324"
    assert "In FP16 v overflows." in run("adam", formats=["fp16"], gradient=1e6, steps=20).findings
    assert "In FP16 v is 0 at every step." in run("adam", formats=["fp16"], gradient=1e-4, steps=20).findings


def test_why_v_never_decays() -> None:
    """beta2 is 1 where foreach casts it; the largest decays without effect are powers of two, by other libraries."""
    (bf16,) = [f for f in lecture("adam")[1].findings if "never decays" in f]
    assert "foreach casts beta2 to 1" in bf16 and "single-tensor takes 0.0005 from 0.5" in bf16
    (decay,) = [f for f in lecture("adam")[1].findings if "Weight decay leaves" in f]
    assert decay.endswith("up to 2^-9 in BF16 and 2^-12 in FP16.")
    least = np.nextafter(np.float32(2.0**-12), np.float32(1))
    assert np.float16(np.float32(1) - np.float32(2.0**-12)) == 1 > np.float16(1 - float(least))


def test_only_what_was_answered() -> None:
    assert lecture("adam", "numpy")[1].answer == "not answered by this machine"  # no BF16
    assert list(lecture("adam", "numpy")[1].traces) == ["FP16"]
    assert lecture("adam", "numpy")[1].traces["FP16"].digest == lecture("adam")[1].traces["FP16"].digest
    if lecture("adam", "ml_dtypes")[0].answers:
        assert not lecture("adam", "ml_dtypes")[1].traces  # no FP32 products


@pytest.mark.parametrize(
    "bad",
    [
        {"gradient": 0.0}, {"gradient": math.inf}, {"beta2": 1.0}, {"beta2": 0.1}, {"eps": -1e-8}, {"lr": 0.0},
        {"steps": 1}, {"steps": 2.5}, {"formats": ["fp32"]}, {"formats": ["e2m1"]}, {"formats": []},
    ],
)  # fmt: skip
def test_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match=rf"{next(iter(bad))}=.*Example: "):
        run("adam", Nobody(), **bad)
