"""Clipping: the experiment's questions against ``numsim.optimizers``, torch and plain NumPy; the order of unscaling."""

from __future__ import annotations

import numpy as np
import pytest

from numsim.errors import InputError
from numsim.experiments.clipping import clip
from numsim.experiments.experiment import Session
from numsim.formats import get_format
from numsim.machines import get_machine
from numsim.optimizers import clip_grad_norm
from tests.experiments.runs import lecture, run, table
from tests.experiments.test_mx_scale import Nobody


def gradients() -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(0).normal(size=1000)
    return {
        "large": drawn * 300, "small": drawn * 1e-3, "inf": np.array([1.0, 2.0, np.inf]), "nan": np.array([np.nan, 1]),
        "overflow": np.full(8000, 1000.0), "zeros": np.zeros(16),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("kind", list(gradients()))
def test_as_the_optimizers_clip(kind: str, name: str) -> None:
    x = gradients()[kind]
    got = clip(Session(get_machine("emulated")), get_format(name), x, 0.7)
    want = clip_grad_norm([np.pad(x, (0, -len(x) % 8))], 0.7, name)
    values = want.gradients[0][: len(x)].astype(np.float64)
    assert got is not None
    np.testing.assert_array_equal(
        [got.norm, got.coefficient, got.first, got.last], [want.norm, want.coefficient, values[0], values[-1]]
    )
    np.testing.assert_allclose(got.length, np.linalg.norm(values), rtol=1e-12)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_as_torch_clips(name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    for x in ([3.0, 4.0], [0.3, 0.4], [3.0, np.inf], [3.0, np.nan], np.full(100_000, 1000.0)):
        weight = torch.zeros(len(x), dtype=dtype, requires_grad=True)
        weight.grad = torch.tensor(np.asarray(x), dtype=dtype)
        norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
        got = clip(Session(get_machine("emulated")), get_format(name), x, 1.0)
        assert got is not None
        np.testing.assert_array_equal(
            [got.norm, got.first, got.last], [float(norm), float(weight.grad[0]), float(weight.grad[-1])]
        )


def test_known_answers() -> None:
    result = lecture("clipping")[1]
    assert result.answer == "2^-16"
    rows = {row[:2]: row[2:] for row in table(result, "in each format").rows}
    assert rows["100000 times 1000", "FP16"] == ("inf", 0, 0, 0)
    assert rows["100000 times 1000", "BF16"][0] == 315392 and rows["100000 times 1000", "BF16"][-1] > 0
    for name in ("FP16", "BF16", "FP32"):
        assert rows["3, inf", name] == ("inf", 0, 0, "nan")
        assert rows["3, NaN", name] == ("nan",) * 4
        assert rows["0.3, 0.4", name][1] == 1  # a coefficient of 1 multiplies, and changes nothing
    lengths = result.series["lengths"]
    assert next(n for n, y in zip(result.series["norms"], lengths["FP16"], strict=True) if y == 0) == 2.0**16
    assert 0 not in lengths["BF16"] and 0 not in lengths["FP32"]


def test_order_by_arithmetic() -> None:
    """Clipped to 1 and divided by the scale; unscaled and clipped, whatever the scale."""
    series = lecture("clipping")[1].series
    for k, (before, after) in enumerate(zip(series["before"], series["after"], strict=True)):
        assert before == pytest.approx(2.0**-k, rel=1e-6) and after == pytest.approx(1, rel=1e-6)


def test_who_notices() -> None:
    steps = [row[2] for row in table(lecture("clipping")[1], "notice").rows]
    assert steps == ["skipped"] * 4 + ["made with a gradient of 0"] * 2


def test_other_parameters_other_sentences() -> None:
    short = run("clipping", norm=0.01, count=1000)
    words = " ".join(short.findings)
    assert "Up to a loss scale of 2^6 the order does not matter" in words  # 0.01 * 2^6 < 1 < 0.01 * 2^7
    assert run("clipping", norm=0.01, scale=1, count=1000).findings[0].count("all of the intended") == 1
    assert "Only without a scale" in " ".join(lecture("clipping")[1].findings)
    assert short.answer != "2^-16" and float(short.answer) == pytest.approx(2**-16 / 0.01, rel=1e-2)
    assert "No gradient becomes 0" in words and "the others are harmless" in words  # the norm is 31623
    assert run("clipping", scale=3).answer == "2^-3"
    fine = run("clipping", formats=["bf16"], norm=3.0, max_norm=0.7)
    assert "of 4096 FP32 gradients get other bits" in " ".join(fine.findings)
    assert "No gradient becomes 0" in " ".join(fine.findings)


def test_only_what_torch_answers() -> None:
    pytest.importorskip("torch")
    assert {row[1] for row in table(lecture("clipping", "torch-cpu")[1], "in each format").rows} == {
        "FP16", "BF16", "FP32",
    }  # fmt: skip


def test_only_what_was_answered() -> None:
    assert {row[1] for row in table(lecture("clipping", "numpy")[1], "in each format").rows} == {"FP16", "FP32"}
    assert lecture("clipping", "numpy")[1].answer == "2^-16"


@pytest.mark.parametrize(
    "bad",
    [
        {"norm": 0.0}, {"max_norm": -1.0}, {"max_norm": float("inf")}, {"scale": 0}, {"scale": 25}, {"scale": 1.5},
        {"formats": ["e4m3"]}, {"formats": ["fp64"]}, {"count": 7}, {"size": 1e5}, {"size": float("nan")},
    ],
)  # fmt: skip
def test_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match=rf"{next(iter(bad))}=.*Example: "):
        run("clipping", Nobody(), **bad)
