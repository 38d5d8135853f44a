"""accumulator: every error again from whole matrix products and exact fractions; signs and orders of size."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from numsim import decode, encode, get_format
from numsim.errors import InputError
from numsim.experiments.units import find_unit, normal, uniform
from numsim.tensorcore import matmul
from tests.experiments.runs import lecture, run, table

SMALL = {"longest": 512, "outputs": 4, "seed": 5}


def ways(result: Any, kind: str, format: str, promoted: bool = False) -> dict[str, dict[str, Any]]:
    """By the name of each chip."""
    found = [w for w in result.series["errors"][kind] if (w["format"], w["promoted"]) == (format, promoted)]
    return {name: w for w in found for name in w["chips"]}


def test_the_answer() -> None:
    result = lecture("accumulator")[1]
    assert result.answer == "1 on H100, 1.00189208984375 on B200"
    rows = {r[0]: r[1:3] for r in table(result, "1 x 1 and 31 products").rows}
    assert rows["FP32 in order"] == rows["B200"] == (1 + 31 * 2.0**-14, "100 %")
    assert rows["H100"] == rows["L40S"] == (1, "0 %")


@pytest.mark.parametrize("kind", ["normal", "positive"])
@pytest.mark.parametrize(
    ("format", "chip"), [("e4m3", "h100"), ("fp16", "a100"), ("bf16", "b200"), ("e2m3", "rtx5090")]
)
def test_errors_again(kind: str, format: str, chip: str) -> None:
    """Chains and promotion as ``matmul`` has them, the exact sums as fractions."""
    f = get_format(format)
    series = run("accumulator", formats=[format], chips=[chip], **SMALL).series
    assert series["lengths"] == [32, 64, 128, 256, 512]
    draw = {"normal": normal, "positive": uniform}[kind]
    a, b = (encode(draw(5, (4, 512), i * 4 * 512), f) for i in range(2))
    model = find_unit(chip, f)
    assert model
    for promoted in (False, True):
        (way,) = [w for w in series["errors"][kind] if w["promoted"] == promoted and w["chips"] != ["FP32 in order"]]
        for i, n in enumerate(series["lengths"]):
            d = matmul(a[:, :n], b[:, :n].T, chip=model.chip, instruction=model.instruction,
                       promote=128 if promoted and n > 128 else None)  # fmt: skip
            errors = []
            for row in range(4):
                exact = sum(
                    Fraction(float(x)) * Fraction(float(y))
                    for x, y in zip(decode(a[row, :n], f), decode(b[row, :n], f), strict=True)
                )
                errors.append((float(decode(d[row, row], "fp32")) - float(exact)) / float(exact))
            assert way["mean"][i] == np.array(errors).mean()
            assert way["median"][i] == np.median(np.abs(errors))
            assert way["largest"][i] == np.abs(errors).max()


def test_fp32_in_order_by_numpy() -> None:
    series = run("accumulator", formats=["fp16"], chips=["h100"], **SMALL).series
    (way,) = [w for w in series["errors"]["positive"] if w["chips"] == ["FP32 in order"]]
    a, b = (uniform(5, (4, 512), i * 4 * 512).astype(np.float16).astype(np.float32) for i in range(2))
    sums = np.add.accumulate(a * b, axis=1, dtype=np.float32)[:, [n - 1 for n in series["lengths"]]].T
    exact = np.array([[float(sum(map(Fraction, row[:n].tolist()))) for row in a * b] for n in series["lengths"]])
    assert way["mean"] == ((sums - exact) / exact).mean(axis=1).tolist()


def test_truncation_drifts_and_promotion_stops_it() -> None:
    result = lecture("accumulator")[1]
    for format, chip in (("E4M3", "H100"), ("E4M3", "L40S"), ("FP16", "V100"), ("FP16", "A100"), ("FP16", "H100")):
        means = ways(result, "positive", format)[chip]["mean"]
        assert all(later < earlier < 0 for earlier, later in itertools.pairwise(means)), (format, chip)
        repaired = ways(result, "positive", format, True)[chip]["mean"]
        assert repaired[:3] == means[:3]  # 32, 64, 128
        assert abs(repaired[-1]) < 1.3 * abs(means[2]) < abs(means[-1]) / 20
    assert ways(result, "positive", "E4M3")["H100"]["mean"][-1] < -0.1
    for format in ("E4M3", "FP16"):
        assert abs(ways(result, "positive", format)["FP32 in order"]["mean"][-1]) < 1e-6


def test_rounding_to_nearest_does_not_drift() -> None:
    means = ways(lecture("accumulator")[1], "positive", "FP16")["MI300X"]["mean"]
    assert max(map(abs, means)) < 1e-6 and min(means) < 0 < max(means)


def test_blackwell_needs_no_promotion() -> None:
    result = lecture("accumulator")[1]
    plain, hopper = (ways(result, "normal", "E4M3")[chip]["median"][-1] for chip in ("B200", "H100"))
    assert plain == 0 and hopper > 5e-4


def test_chips_with_the_same_bits_are_one() -> None:
    result = lecture("accumulator")[1]
    assert ways(result, "normal", "FP16")["A100"]["chips"] == ["A100", "L40S"]
    assert ways(result, "normal", "FP16")["B200"]["chips"] == ["H100", "B200"]
    assert ways(result, "normal", "E4M3")["L40S"]["chips"] == ["L40S"]  # blocks of 16 against Hopper's 32


def test_more_bits_need_not_help() -> None:
    """The bits beyond FP32's are cut from the sum, towards zero; a V100 has none and cuts products of either sign."""
    result = lecture("accumulator")[1]
    (found,) = [f for f in result.findings if "More kept bits need not help" in f]
    assert "on V100 (23 bits)" in found and "on H100 (25)" in found


def test_seed_and_chips_matter() -> None:
    one, other = (run("accumulator", chips=["h100"], **{**SMALL, "seed": s}) for s in (1, 2))
    assert one.series["errors"] != other.series["errors"]
    assert one.answer == other.answer == "1 on H100, 1.00189208984375 on B200"
    none = run("accumulator", chips=["v100"], formats=["e4m3"], **SMALL)  # no unit for E4M3
    assert {tuple(w["chips"]) for w in none.series["errors"]["normal"]} == {("FP32 in order",)}


@pytest.mark.parametrize(
    "bad",
    [{"longest": 64}, {"longest": 10**6}, {"outputs": 1}, {"seed": -1}, {"chips": 3}, {"chips": ["h10"]},
     {"formats": "fp32"}, {"formats": []}],
)  # fmt: skip
def test_bad_parameters(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Example: "):
        run("accumulator", **bad)
