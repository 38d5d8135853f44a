"""Gradients that add up, by NumPy's float16 and float32, ml_dtypes' bfloat16, and the formulas of the optimizers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from numsim.errors import InputError
from tests.experiments.runs import lecture, run, table
from tests.experiments.test_mx_scale import Nobody


def sums(dtype: type, term: float, count: int) -> list[float]:
    total, trail = dtype(0), []
    for _ in range(count):
        total = dtype(total + dtype(term))
        trail.append(float(total))
    return trail


@pytest.mark.parametrize("name", ["BF16", "FP16", "FP32"])
def test_grad_by_other_libraries(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    trail = sums({"BF16": ml_dtypes.bfloat16, "FP16": np.float16, "FP32": np.float32}[name], 0.01, 2000)
    result = lecture("accumulation")[1]
    trace = result.traces["grad"]
    assert trace[name].tolist() == [trail[step - 1] for step in trace.steps]
    last = 1 + max(i for i in range(2000) if i == 0 or trail[i] != trail[i - 1])
    assert result.series["stalls"][name] == (None if last == 2000 else last + 1)


def test_known_answers() -> None:
    result = lecture("accumulation")[1]
    assert result.answer == "4" and result.series["stalls"] == {"BF16": 351, "FP16": None, "FP32": None}
    rows = {row[0]: row[1:] for row in table(result, "how they are added").rows}
    assert rows["BF16"][:3] == (4, 20, 20) and rows["BF16"][4] == 20.0195  # 2000 * bf16(0.01) in FP32
    assert 17 < rows["BF16"][3] < 23  # chance, of a standard deviation of 0.8
    assert result.traces["grad"].happened("stall") == [352]


def test_forgotten_division() -> None:
    """The first step is lr * g for SGD, lr * g / (|g| + eps) for AdamW."""
    series = lecture("accumulation")[1].series
    assert set(series["factors"]["SGD"]) == {4.0}
    for g, factor in zip(series["sizes"], series["factors"]["AdamW"], strict=True):
        assert factor == pytest.approx(4 * (g + 1e-8) / (4 * g + 1e-8), rel=1e-5)
    thirds = run("accumulation", divisor=3)
    assert "of SGD is 3 times as long" in " ".join(thirds.findings) and "Without the division by 3" in " ".join(
        thirds.findings
    )


def test_mean_of_means() -> None:
    rows = table(lecture("accumulation")[1], "one token").rows
    for row, tokens in zip(rows, (2048, 1024, 256, 64), strict=True):
        ratio = Fraction(1, 4 * tokens) / Fraction(1, 3392)
        assert row[1] == tokens and row[-1] == float(f"{float(ratio):.4g}")
    same = run("accumulation", tokens=(7, 7, 7))
    assert "the mean of means is the mean of all tokens" in " ".join(same.findings)


def test_quotients_that_do_not_add_up() -> None:
    missed = []
    for n in range(2, 17):
        total = np.float16(0)
        for _ in range(n):
            total = np.float16(total + np.float16(1) / np.float16(n))
        if total != 1:
            missed.append(str(n))
    assert (
        f"FP16 misses it for N = {', '.join(missed[:-1])} and {missed[-1]}" in lecture("accumulation")[1].findings[-1]
    )
    assert not {"2", "4", "8", "16"} & set(missed)


def test_other_parameters_other_sentences() -> None:
    few = run("accumulation", count=8, formats=["bf16"])
    assert few.answer != "4" and "every one of 8 gradients counts" in few.findings[0]
    many = run("accumulation", count=30_000, formats=["fp16"])
    assert many.series["stalls"]["FP16"] and many.answer == "32"
    assert run("accumulation", gradient=1.0, count=1000).answer == "256"


def test_windows_of_usual_size() -> None:
    """Off from the gradients as they are, as in the table: the larger of the errors for 4 and 16 of them."""
    (small,) = [f for f in lecture("accumulation")[1].findings if "Windows of usual size" in f]
    assert "hardly suffer" in small and "1.1 % in BF16, 0.021 % in FP16" in small
    trail = sums(np.float16, 0.01, 16)
    assert round(100 * max(abs(trail[3] / 0.04 - 1), abs(trail[15] / 0.16 - 1)), 3) == 0.021
    (coarse,) = [f for f in run("accumulation", formats=["e5m2"]).findings if "Windows of usual size" in f]
    assert "suffer too" in coarse and "hardly" not in coarse
    cells = [c for row in table(lecture("accumulation")[1], "holds after").rows for c in row]
    assert "<0.01 %" in cells and not {"-0.00 %", "+0.00 %"} & set(cells)


def test_what_bf16_makes_of_the_gradient() -> None:
    """2000 times 0.01 as BF16 has it is what FP32 adds up to."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    term = float(ml_dtypes.bfloat16(0.01))
    (sentence,) = [f for f in lecture("accumulation")[1].findings if "added otherwise" in f]
    assert f"0.01 is {term:.6g} in BF16, {2000 * term:.6g} in all" in sentence and "one draw" in sentence


def test_only_what_was_answered() -> None:
    assert lecture("accumulation", "numpy")[1].answer == "not answered by this machine"  # no BF16
    assert list(lecture("accumulation", "numpy")[1].series["stalls"]) == ["FP16", "FP32"]
    if lecture("accumulation", "ml_dtypes")[0].answers:
        assert lecture("accumulation", "ml_dtypes")[1].answer == "4"


@pytest.mark.parametrize(
    "bad",
    [
        {"gradient": 0.0}, {"gradient": float("nan")}, {"count": 1}, {"count": True}, {"formats": ["fp64"]},
        {"formats": []}, {"divisor": 1}, {"tokens": 5}, {"tokens": (5,)}, {"tokens": (5, 0)}, {"tokens": (5, 1.5)},
    ],
)  # fmt: skip
def test_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match=rf"{next(iter(bad))}=.*Example: "):
        run("accumulation", Nobody(), **bad)


def test_a_gradient_that_is_zero_in_the_format() -> None:
    with pytest.raises(InputError, match=r"gradient=0.0001 is 0 in e2m3.*Example: "):
        run("accumulation", gradient=1e-4, formats=["e2m3"])


def test_bad_seed() -> None:
    with pytest.raises(InputError, match="seed"):
        run("accumulation", seed=-1)
