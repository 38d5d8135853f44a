"""chips: groups and differences again from ``matmul`` and fractions; and the helpers that these experiments share."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from numsim import encode, exact, get_format
from numsim.errors import InputError
from numsim.experiments import units
from numsim.formats import FP16, FP32, TF32
from numsim.random import bits
from numsim.tensorcore import list_chips, matmul
from tests.experiments.runs import lecture, run, table


def test_groups_are_generations() -> None:
    groups = lecture("chips")[1].series["FP16"]["groups"]
    assert groups == [
        ["V100"],
        ["T4", "A100", "A30", "A2", "L40S", "RTX 4090", "RTX 1000 Ada"],
        ["H100", "H200", "B200", "RTX 5090", "RTX PRO 6000"],
        ["MI100"],
        ["MI250X"],
        ["MI300X"],
        ["FP32 in order"],
        ["exact, rounded once"],
    ]
    assert sum(map(len, groups)) == len(list_chips()) + 2


def test_differences_again() -> None:
    """V100, A100, H100, B200 by ``matmul``; exact sums as fractions; FP32 in order by numpy."""
    size, k, result = 6, 96, run("chips", size=6, k=96, seed=3, chips=["v100", "a100", "h100", "b200"])
    a, b = (encode(units.normal(3, (size, k), i * size * k), FP16) for i in range(2))
    names = {"V100": "m8n8k4", "A100": "m16n8k16", "H100": "m16n8k16", "B200": "m16n8k16"}
    codes = {
        name: matmul(a, b.T, chip=name, instruction=f"mma.{shape}.f32.f16.f16.f32") for name, shape in names.items()
    }
    left, right = a.view(np.float16).astype(np.float32), b.view(np.float16).astype(np.float32)
    products = left[:, None] * right[None]
    codes["FP32 in order"] = np.add.accumulate(products, axis=2, dtype=np.float32)[..., -1].view(np.uint32)
    sums = [[sum(map(Fraction, products[i, j].tolist())) for j in range(size)] for i in range(size)]
    codes["exact, rounded once"] = np.array([[encode(s, FP32) for s in row] for row in sums], np.uint32)
    series = result.series["FP16"]
    first = [group[0] for group in series["groups"]]
    assert first == ["V100", "A100", "H100", "FP32 in order", "exact, rounded once"]
    assert series["differ"] == [[int((codes[x] != codes[y]).sum()) for y in first] for x in first]
    same = np.logical_and.reduce([codes["V100"] == codes[name] for name in names])
    assert f"{same.sum()} of 36 outputs have the same bits on V100, A100, H100 and B200" in result.findings[0]
    for name, median, largest in zip(first, series["median_ulps"], series["largest_ulps"], strict=True):
        errors = [
            abs(exact(int(codes[name][i, j]), FP32) - sums[i][j]) / _ulp(codes["exact, rounded once"][i, j])
            for i in range(size)
            for j in range(size)
        ]
        assert (median, largest) == (float(np.median(list(map(float, errors)))), float(max(errors)))


def _ulp(code: int) -> Fraction:
    return Fraction(2) ** (max(int(code) >> 23 & 255, 1) - 150)


def test_the_exact_sum_is_within_half_an_ulp() -> None:
    series = lecture("chips")[1].series["FP16"]
    assert series["largest_ulps"][-1] <= 0.5 < min(series["largest_ulps"][:-1])


def test_answers() -> None:
    assert lecture("chips")[1].answer == "less than half"
    assert run("chips", chips=["a100", "a30"], size=4).answer == "all of them, on A100 and A30"
    assert "not answered" in run("chips", chips=["h200"], size=4).answer
    assert run("chips", chips=["h100", "b200"], size=4).answer == "all of them, on H100 and B200"


def test_other_formats_and_chips_without_them() -> None:
    result = run("chips", formats=["e4m3", "tf32"], size=4, k=32, chips=["v100", "l40s", "h100", "b200", "mi300x"])
    assert result.series["E4M3"]["groups"][:2] == [["L40S"], ["H100"]]
    assert [g for g in result.series["TF32"]["groups"] if "MI300X" in g] and "V100" not in str(result.series)
    assert len(table(result, "TF32, 16 sums").rows) == len(result.series["TF32"]["groups"])


@pytest.mark.parametrize(
    "bad",
    [{"k": 48}, {"k": 0}, {"k": "64"}, {"size": 1}, {"seed": 2**64}, {"chips": {}}, {"chips": ["mi200"]},
     {"formats": ["fp64"]}],
)  # fmt: skip
def test_bad_parameters(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Example: "):
        run("chips", **bad)


# --- units ------------------------------------------------------------------------------------------------------------
def test_uniform_and_normal() -> None:
    u = units.uniform(4, (20, 30))
    assert u[1, 2] == bits(4, 32) * 2.0**-32 and u.min() >= 0 and u.max() < 1
    n = units.normal(4, (20, 30))
    words = [bits(4, 6 * 32 + i) for i in range(6)]
    halves = [w & 0xFFFF for w in words] + [w >> 16 for w in words]
    assert n[1, 2] == sum(halves) / 65536 - 6 + 6 / 65536
    assert np.array_equal(n.ravel()[100:], units.normal(4, (500,), 100))
    many = units.normal(1, (50_000,))
    assert abs(many.mean()) < 0.02 and abs(many.std() - 1) < 0.02


def test_operands_are_words_for_tf32() -> None:
    assert units.operands([1.0, -0.5], TF32).tolist() == [0x3F800000, 0xBF000000]
    assert units.operands(1 + 2.0**-12, TF32) == 0x3F800000  # rounded before
    assert units.operands([1.0], FP16).tolist() == [0x3C00]


def test_units_are_found() -> None:
    assert units.find_unit("v100", get_format("bf16")) is None
    hopper = units.find_unit("h100", get_format("e4m3"))
    assert hopper and hopper.instruction.startswith("wgmma") and hopper.unit.fraction_bits == 13
    assert units.check_chips("NVIDIA H200", "x") == ["h200"]
    assert units.check_chips(("h200", "H200", "a100"), "x") == ["h200", "a100"]
