"""Windows of loss scales, by casts of NumPy and ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numsim.errors import InputError
from numsim.experiments.experiment import Session
from numsim.experiments.scale_window import EXPERIMENT
from numsim.machines import get_machine
from tests.experiments.runs import lecture, run, table

ml_dtypes = pytest.importorskip("ml_dtypes")
TYPES: dict[str, Any] = {
    "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "e5m2": ml_dtypes.float8_e5m2, "e4m3fn": ml_dtypes.float8_e4m3fn,
}  # fmt: skip


def kept(name: str, largest: float, smallest: float) -> list[int]:
    """Exponents at which both are kept, by casting."""
    found = []
    for k in range(-126, 128):
        with np.errstate(over="ignore"):
            both = np.array([largest, smallest], np.float32) * np.float32(2.0**k)
            big, small = both.astype(TYPES[name]).astype(float)
        if np.isfinite(big) and small > 0:
            found.append(k)
    return found


def words(exponents: list[int]) -> str:
    if not exponents:
        return "none"
    assert exponents == list(range(exponents[0], exponents[-1] + 1))
    return f"2^{exponents[0]}" if len(exponents) == 1 else f"2^{exponents[0]} to 2^{exponents[-1]}"


def test_the_answer() -> None:
    assert lecture("scale-window")[1].answer == words(kept("fp16", 0.5, 1e-10)) == "2^9 to 2^16"


@pytest.mark.parametrize(
    ("largest", "smallest"), [(0.5, 1e-10), (1.0, 1e-3), (65519.0, 6e-8), (3e4, 1e-9), (2e-5, 2e-5)]
)
def test_windows_of_all_formats(largest: float, smallest: float) -> None:
    result = run("scale-window", largest=largest, smallest=smallest)
    names = dict(zip(TYPES, ("FP16", "BF16", "E5M2", "E4M3"), strict=True))
    rows = {row[0]: row for row in table(result, "Loss scales").rows}
    for name, title in names.items():
        window = words(kept(name, largest, smallest))
        assert rows[title][3] == window, name
        (sentence, *_) = [f for f in result.findings if f.startswith((f"{title} keeps", "No power")) and title in f]
        assert sentence.startswith("No power" if window == "none" else f"{title} keeps both at {window}")


def test_the_rules_matter() -> None:
    """Counting only normal numbers, or letting the largest reach 65520, would give another answer."""
    w = lecture("scale-window")[1].series["windows"]["fp16"]
    assert w == {"zero_up_to": 8, "finite_up_to": 16, "normal_from": 20}
    assert 1e-10 * 2.0**20 >= 2.0**-14 > 1e-10 * 2.0**19
    limit = [run("scale-window", largest=x, smallest=1.0, formats="fp16").series["windows"]["fp16"]["finite_up_to"]
             for x in (65519.0, 65520.0)]  # fmt: skip
    assert limit == [0, -1]


def test_half_the_least_number_is_a_tie_and_becomes_zero() -> None:
    at = [run("scale-window", smallest=x, formats=["fp16"]).series["windows"]["fp16"]["zero_up_to"]
          for x in (2.0**-25, float(np.nextafter(np.float32(2.0**-25), np.float32(1))))]  # fmt: skip
    assert at == [0, -1]


def test_what_the_two_become() -> None:
    for scale, largest, smallest, unscaled, error in table(lecture("scale-window")[1], "become").rows:
        k = int(scale[2:])
        with np.errstate(over="ignore"):
            big, small = (np.array([0.5, 1e-10], np.float32) * np.float32(2.0**k)).astype(np.float16).astype(float)
        assert largest == ("inf" if np.isinf(big) else big)
        assert smallest == pytest.approx(small, rel=1e-3) and unscaled == pytest.approx(small * 2.0**-k, rel=1e-3)
        exact = float(np.float32(1e-10))
        assert float(error.removesuffix(" %")) == pytest.approx(100 * (small * 2.0**-k / exact - 1), rel=0.06)


def test_a_library_that_saturates_does_not_keep_what_it_clips() -> None:
    pytest.importorskip("torch")
    ours, torch = (lecture("scale-window", machine)[1] for machine in ("emulated", "torch-cpu"))
    assert torch.series == ours.series and torch.tables == ours.tables and torch.findings == ours.findings


def test_a_scale_that_is_no_power_of_two_is_told_where_it_helps() -> None:
    (sentence,) = [f for f in lecture("scale-window")[1].findings if f.startswith("No power")]
    assert "97000 in E5M2" in sentence and "in E4M3" not in sentence.partition("Scales that")[2]
    scaled = np.array([0.5, 1e-10], np.float32) * np.float32(97000)
    big, small = scaled.astype(ml_dtypes.float8_e5m2).astype(float)
    assert np.isfinite(big) and small > 0


@pytest.mark.parametrize(
    "bad",
    [
        {"largest": 0.0}, {"largest": float("inf")}, {"largest": "x"}, {"smallest": -1.0}, {"smallest": float("nan")},
        {"smallest": 0.6}, {"formats": []}, {"formats": ["e2m1"]}, {"formats": ["fp32"]},
    ],
)  # fmt: skip
def test_refused(bad: dict[str, object]) -> None:
    session = Session(get_machine("emulated"))
    with pytest.raises(InputError, match=rf"{next(iter(bad))}=.*Example: "):
        EXPERIMENT.run(session, **{**EXPERIMENT.defaults, **bad})
    assert not session.answers


def test_what_is_said_of_windows() -> None:
    none, same = run("scale-window", formats=["e4m3"]), run("scale-window", largest=1.0, smallest=1.0)
    assert not any(f.startswith("In the window") for f in none.findings)
    assert "cannot bring them together" in none.findings[-1]
    assert not any("cannot bring them together" in f for f in same.findings)
    (best,) = [f for f in lecture("scale-window")[1].findings if f.startswith("In the window")]
    assert best.startswith("In the window of FP16 and BF16 no scale")
    one, exact = np.float32(1e-10), 1e-10
    errors = [abs(float(np.float16(one * np.float32(2.0**k))) * 2.0**-k - exact) for k in kept("fp16", 0.5, 1e-10)]
    assert errors[-1] == min(errors)
