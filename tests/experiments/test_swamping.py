"""Known answers, and the same sums by NumPy's own float16 and float32."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from numsim.experiments.swamping import EXPERIMENT
from tests.experiments.runs import lecture, run, table


def series() -> dict:
    return lecture("swamping")[1].series


def test_where_sums_stall() -> None:
    stalls = {"FP16": 2048, "BF16": 256, "E4M3": 16, "E5M2": 8}
    assert {name: trail[-1] for name, trail in series()["ones"].items() if name in stalls} == stalls
    assert {name: trail[-1] for name, trail in series()["tenths"].items() if name != "FP32"} == {
        "FP16": 256, "BF16": 32, "E4M3": 2, "E5M2": 1,
    }  # fmt: skip
    assert len(series()["ones"]["FP32"]) == 4096 == series()["ones"]["FP32"][-1]
    rows = {row[0]: row for row in table(lecture("swamping")[1], "Adding 1 until").rows}
    assert {name: row[3] for name, row in rows.items()} == stalls | {"FP64": "2^53", "FP32": "2^24", "TF32": 2048}
    assert rows["FP16"][4] == "1" and rows["FP32"][4] == "2^24 - 4"
    assert lecture("swamping")[1].answer == "2048"


def test_stanford_exercise() -> None:
    """assignment 2, mixed_precision_accumulation: the loops, in NumPy."""
    wide = narrow = mixed = np.float32(0)
    narrow = np.float16(0)
    for _ in range(1000):
        wide += np.float32(0.01)
        narrow += np.float16(0.01)
        mixed += np.float32(np.float16(0.01))
    found = {(a, b): s for a, b, s in series()["exercise"]}
    assert found["FP32", "FP32"] == float(wide) == 10.000133514404297
    assert found["FP16", "FP16"] == float(narrow) == 9.953125
    assert found["FP16", "FP32"] == float(mixed) == 10.00213623046875


@pytest.mark.parametrize(("name", "dtype"), [("FP16", np.float16), ("FP32", np.float32)])
@pytest.mark.parametrize(
    ("key", "number", "terms"), [("ones", 1.0, 4096), ("tenths", 0.1, 4096), ("hundredths", 0.01, 1000)]
)
def test_running_sums(name: str, dtype: type, key: str, number: float, terms: int) -> None:
    expected = np.add.accumulate(np.full(terms, number, dtype), dtype=dtype)
    found = series()[key][name]
    found = found + [found[-1]] * (terms - len(found))
    assert np.array_equal(np.array(found, dtype), expected)


def pairwise(x: list) -> np.floating:
    while len(x) > 1:
        x = [a + b for a, b in zip(x[::2], x[1::2], strict=False)] + x[len(x) // 2 * 2 :]
    return x[0]


def kahan(x: list) -> np.floating:
    total, lost = x[0], type(x[0])(0)
    for term in x[1:]:
        wanted = term - lost
        new = total + wanted
        lost = (new - total) - wanted
        total = new
    return total


@pytest.mark.parametrize("name", ["FP16", "BF16", "E4M3", "E5M2"])
def test_cures(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    types = {
        "FP16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "E4M3": ml_dtypes.float8_e4m3fn,
        "E5M2": ml_dtypes.float8_e5m2,
    }
    terms = [types[name](0.1)] * 1000
    found = series()["cures"][name]
    exact = float(sum(Fraction(float(t)) for t in terms))
    assert found["exact"] == exact
    assert found["sums"]["pairwise"] == [float(pairwise(terms))]
    assert found["sums"]["Kahan"] == [float(kahan(terms))]
    assert found["sums"]["FP32 accumulator"] == [exact]
    plain = terms[0]
    for t in terms[1:]:
        plain = plain + t
    assert found["sums"]["plain"] == [float(plain)]
    stochastic = found["sums"]["stochastic"]
    assert len(set(stochastic)) > 1 and all(abs(s / exact - 1) < 0.5 for s in stochastic)


def test_full_size_shows_the_issue_of_ml_dtypes() -> None:
    """Ten and twenty thousand uniform BF16 numbers both sum to 256."""
    for n in (10_000, 20_000):
        result = run("swamping", formats=["bf16"], uniform_terms=n)
        assert result.series["uniform"]["BF16"][0] == 256
        assert result.series["uniform"]["BF16"][1] == pytest.approx(n / 2, rel=0.02)
    assert EXPERIMENT.full["uniform_terms"] == 20_000


def test_odd_formats() -> None:
    """Formats that overflow, saturate, or take 0.1 for zero, before they stall."""
    result = run("swamping", formats=["e3m4", "e2m1", "e2m3", "fp64"], terms=64, uniform_terms=16)
    rows = {(row[0], row[1]): row for row in table(result, "The same number").rows}
    assert rows["E3M4", 1.0][6] == "overflow" and rows["E3M4", 1.0][4] == "inf"
    assert rows["E2M1", 1.0][6] == 4 and rows["E2M1", 0.1][2] == 0
    assert rows["E2M3", 1.0][6] == 7.5
    assert result.answer == "inf in E3M4"


def test_loads_neither_numba_nor_torch_nor_matplotlib() -> None:
    program = (
        "import sys\n"
        "from numsim.experiments import get_experiment\n"
        "from numsim.experiments.experiment import Session\n"
        "from numsim.machines import get_machine\n"
        "get_experiment('swamping').run(Session(get_machine('emulated')))\n"
        "print(*(m for m in ('numba', 'torch', 'matplotlib', 'ml_dtypes') if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "" and done.stderr == ""
