"""NF4, E2M1 and INT4 by their lists of numbers: nearest by search, scales by plain FP32 division."""

from __future__ import annotations

import math

import numpy as np
import pytest

from numsim.blocks import NF4_ELEMENT
from numsim.data import load_gradients
from numsim.errors import InputError
from numsim.experiments import nf4
from numsim.experiments.block_units import normals
from tests.experiments.runs import lecture, run, table
from tests.experiments.test_mx_scale import Nobody

LEVELS = {
    "NF4": np.array([
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022833234, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ]),
    "E2M1": np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]) / 6,
    "INT4": np.arange(-7, 8) / 7,
}  # fmt: skip


def error(x: np.ndarray, name: str, block: int) -> float:
    """RMS error with the nearest level of x / absmax, in float64."""
    rows = x[: len(x) // block * block].astype(float).reshape(-1, block)
    amax = np.abs(rows).max(axis=1, keepdims=True)
    scaled = rows / np.where(amax == 0, 1, amax)
    levels = LEVELS[name]
    right = np.clip(np.searchsorted(levels, scaled), 1, len(levels) - 1)
    lower, upper = levels[right - 1], levels[right]
    back = np.where(scaled - lower < upper - scaled, lower, upper) * amax
    return float(np.sqrt(np.sum((back - rows) ** 2) / np.sum(rows**2)))


def weights(kind: str) -> np.ndarray:
    recording = load_gradients()
    if kind == "untrained":
        return next(recording.select("weight", 0, "linear1")).sample
    return recording.matrices["weight"][2000].ravel() if kind == "trained" else normals(1, 65_536)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("kind", ["normal", "untrained", "trained"])
def test_errors_by_search(kind: str, name: str) -> None:
    """As exact as FP32 products let them be: few weights lie so near a midpoint that a rounding decides."""
    found = lecture("nf4")[1].series["errors"][kind][name]
    assert found == pytest.approx(error(weights(kind), name, 64), rel=1e-6)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("kind", ["normal", "trained"])
def test_sweep_by_search(kind: str, name: str) -> None:
    points = lecture("nf4")[1].series["swept"][kind][name]
    assert [size for _, size, _ in points] == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    for bits, size, found in points:
        assert bits == 4 + 32 / size
        assert found == pytest.approx(error(weights(kind), name, size), rel=1e-6)


def test_the_answer() -> None:
    result = lecture("nf4")[1]
    errors = {name: error(weights("untrained"), name, 64) for name in LEVELS}
    assert result.answer == min(errors, key=errors.__getitem__) == "INT4"
    assert min(result.series["errors"]["trained"], key=result.series["errors"]["trained"].__getitem__) == "NF4"


def test_untrained_weights_are_uniform() -> None:
    """So the recording bears out the explanation: all within 1/sqrt(512), and no part of that range is rare."""
    w = weights("untrained") * np.sqrt(512)
    assert np.abs(w).max() < 1
    counts = np.histogram(w, np.linspace(-1, 1, 9))[0]
    assert counts.sum() == len(w) == 2000
    assert np.all(np.abs(counts - 250) < 5 * math.sqrt(250))


def test_bits() -> None:
    """4 + 8/64 + 32/(64 256) bits, and the bytes that a double quantised array takes."""
    rows = {row[0]: row for row in table(lecture("nf4")[1], "by block size").rows}
    assert rows[64][1] == "4.5" and rows[64][-2] == "4.127" == f"{4 + 8 / 64 + 32 / (64 * 256):.4g}"
    used = {(row[0], row[1]): row[2] for row in table(lecture("nf4")[1], "As they are used").rows}
    assert used == {
        ("NF4", 64): "4.5", ("NF4, double", 64): "4.127", ("NF4, double", 16): "4.508", ("E2M1", 64): "4.5",
        ("INT4", 32): "5", ("MXFP4 (E2M1)", 32): "4.25", ("NVFP4", 16): "4.5",
    }  # fmt: skip
    from numsim.blocks import double_quantize, quantize

    array = double_quantize(quantize(normals(1, 65_536).reshape(-1, 64), "nf4"))
    assert 8 * (array.nbytes - 4) / 65_536 == nf4._bits(nf4.DOUBLE, 64) == array.bits_per_value
    (said,) = [f for f in lecture("nf4")[1].findings if "4.5 to 4.127 in blocks of 64" in f]
    plain, double = (7e9 * bits / 8 / 1e9 for bits in (4.5, array.bits_per_value))
    assert f"7 billion weights from {plain:.3g} to {double:.3g} GB" in said and "BF16: 14 GB" in said


def test_what_is_said() -> None:
    result = lecture("nf4")[1]
    swept, used = result.series["swept"], result.series["used"]
    for kind in ("normal", "trained"):
        plain, double, e2m1, int4 = ([e for *_, e in swept[kind][n]] for n in ("NF4", "NF4, double", "E2M1", "INT4"))
        assert all(a < min(b, c) for a, b, c in zip(plain, e2m1, int4, strict=True))  # "at no size"
        assert all(b / a < 1.01 for a, b in zip(plain, double, strict=True))  # "next to no error"
        assert plain == sorted(plain) and int4[-1] / int4[0] > plain[-1] / plain[0]  # "and INT4 most"
        assert any(f"NF4 on {kind} weights" in f and "at no size" in f for f in result.findings)
    trained = {(name, block): e for name, block, _, e in used["trained"]}
    # at 4.5 bits NF4 loses to NVFP4's small blocks, and wins with its own, double quantised
    assert trained["NF4, double", 16] < trained["NVFP4", 16] < trained["NF4", 64]
    assert "NF4, double (blocks of 16) 8.22 %, NVFP4 (blocks of 16) 9.5 %, NF4" in result.findings[-1]


def test_levels_are_drawn_where_they_lie() -> None:
    for name, levels in lecture("nf4")[1].series["levels"].items():
        assert levels == pytest.approx(LEVELS[name], abs=1e-7), name
    density = lecture("nf4")[1].series["density"]["normal"]
    assert sum(density) == pytest.approx(1) and len(density) == 40
    assert density == pytest.approx(density[::-1], abs=0.005)


def test_other_parameters_give_other_sentences() -> None:
    small = run("nf4", block=8, values=4096)
    assert small.answer == "INT4" and "each 8, normal" in small.findings[0]
    assert small.findings[0] != run("nf4", block=8, values=4096, seed=2).findings[0]
    assert run("nf4", values=4096).series["swept"]["trained"] == lecture("nf4")[1].series["swept"]["trained"]


def test_a_mutant_changes_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained weights in the place of the untrained ones."""
    trained = weights("trained")
    real = nf4._weights
    monkeypatch.setattr(nf4, "_weights", lambda values, seed: real(values, seed) | {"untrained": trained})
    assert run("nf4", values=4096).answer == "NF4"


def test_a_machine_without_e2m1_says_so() -> None:
    assert lecture("nf4", "numpy")[1].answer == "INT4 (E2M1 not answered)"
    assert lecture("nf4", "numpy")[1].series["errors"]["normal"].keys() == {"NF4", "INT4"}


def test_numbers_drawn_are_normal() -> None:
    x = normals(3, 1 << 17).astype(float)
    assert abs(x.mean()) < 0.01 and abs(x.var() - 1) < 0.015
    assert abs(np.mean(np.abs(x) < 1) - math.erf(1 / math.sqrt(2))) < 0.006
    assert abs(np.mean(np.abs(x) > 3) - math.erfc(3 / math.sqrt(2))) < 0.0006
    assert float(NF4_ELEMENT.max) == 1


@pytest.mark.parametrize(
    "bad", [{"block": 4}, {"block": 64.0}, {"block": True}, {"block": 2048}, {"values": 100}, {"values": 1 << 23},
            {"seed": "x"}],
)  # fmt: skip
def test_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Example: ") as caught:
        run("nf4", Nobody(), **bad)
    assert next(iter(bad)) in str(caught.value)
