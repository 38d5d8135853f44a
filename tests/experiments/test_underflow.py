"""Shares recomputed from the raw recording by code that shares nothing with the experiment."""

from __future__ import annotations

import math

import numpy as np
import pytest

from numsim.data import load_gradients
from numsim.experiments.experiment import Session, percent
from numsim.experiments.underflow import EXPERIMENT, KINDS, Gradients
from numsim.formats import E4M3, FP16
from numsim.machines import get_machine
from tests.experiments.runs import lecture, run, table

HALF_LEAST = {"fp16": -25, "bf16": -134, "e5m2": -17, "e4m3fn": -10}  # log2 of half the least number


def counted(kind: str, step: int, exponent: int) -> float:
    """Share of the non-zero values below 2^exponent, straight from the arrays."""
    below = total = 0
    for row in load_gradients().select(kind=kind, step=step):
        for b, positive, negative in zip(
            row.binades.tolist(), row.positive.tolist(), row.negative.tolist(), strict=True
        ):
            total += positive + negative
            below += (positive + negative) * (b < exponent)
    return below / total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0, 100, 500, 2000])
@pytest.mark.parametrize("name", HALF_LEAST)
def test_zeros_at_scale_1(kind: str, step: int, name: str) -> None:
    found = lecture("underflow")[1].series["zero_at_scale_1"][name][kind][str(step)]
    # exact but for ties: values of just 2^exponent
    assert counted(kind, step, HALF_LEAST[name]) <= found + 1e-12
    assert found == pytest.approx(counted(kind, step, HALF_LEAST[name]), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HALF_LEAST)
def test_zeros_against_loss_scale(kind: str, name: str) -> None:
    fates = np.array(lecture("underflow")[1].series["fates"][name][kind])
    for k in range(0, 29, 4):
        assert fates[k, 0] == pytest.approx(counted(kind, 2000, HALF_LEAST[name] - k), abs=2e-4)
    assert np.all(np.diff(fates[:, 0]) <= 1e-12) and np.all(np.diff(fates[:, 2]) >= -1e-12)
    assert np.all(fates >= 0) and np.all(fates.sum(axis=1) <= 1 + 1e-12)


def test_the_answer_and_the_wrong_guess_are_the_data_s() -> None:
    _, result = lecture("underflow")
    assert result.answer == percent(counted(KINDS[0], 2000, -25)) == "44 %"
    assert EXPERIMENT.choices[0] == percent(counted(KINDS[0], 2000, -14))
    assert EXPERIMENT.choices[2] == percent(counted(KINDS[0], 500, -25))
    assert "training images" in EXPERIMENT.question
    assert load_gradients().meta["data"]["training_images"] == 1500


def test_subnormal_and_overflow_by_numpy() -> None:
    """Weighted samples through NumPy's float16: within the error of sampling."""
    fates = np.array(run("underflow", sample=3000).series["fates"]["fp16"][KINDS[0]])
    rows = list(load_gradients().select(KINDS[0], 2000))
    weights = np.array([row.nonzeros for row in rows]) / sum(row.nonzeros for row in rows)
    for k in (0, 8, 24, 28):
        with np.errstate(over="ignore"):
            cast = [np.abs((row.sample * np.float32(2.0**k)).astype(np.float16).astype(float)) for row in rows]
        for j, fate in enumerate((lambda x: x == 0, lambda x: (x > 0) & (x < 2.0**-14), np.isinf)):
            share = np.array([fate(x).mean() for x in cast])
            error = math.sqrt(np.sum(weights**2 * share * (1 - share) / 3000)) + 1e-4
            assert abs(fates[k, j] - weights @ share) < 4 * error, (k, j)


def test_shares_are_weighted_by_counts_not_by_sample() -> None:
    """Rows of a small and a large layer: the pooled share is that of all values, not the mean of the rows."""
    rows = tuple(load_gradients().select(KINDS[0], 500))
    gradients = Gradients(rows, 400)
    shares = gradients.shares(Session(get_machine("emulated")), FP16, [0])
    assert shares is not None and shares.shape == (1, 3, len(rows))
    pooled = gradients.pool(shares[:, 0], KINDS[0], 500)[0]
    assert pooled == pytest.approx(counted(KINDS[0], 500, -25), abs=1e-4)
    assert abs(pooled - shares[0, 0].mean()) > 0.005


def test_ties_are_real() -> None:
    """p - 1 is a multiple of 2^-24 in FP32, so some output gradients of the learnt network equal 2^-29 exactly."""
    (row,) = load_gradients().select(KINDS[0], 2000, "linear2")
    gradients = Gradients((row,), 3000)
    shares = gradients.shares(Session(get_machine("emulated")), FP16, [4])
    assert shares is not None
    assert shares[0, 0, 0] > gradients.zero_exactly(FP16, [4])[0, 0]
    assert (np.abs(row.sample) == 2.0**-29).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fp16", "e4m3fn"])
def test_best_scales(kind: str, name: str) -> None:
    series = lecture("underflow")[1].series
    lost = np.array(series["fates"][name][kind])[:, [0, 2]].sum(axis=1)
    low, high, least = series["best"][name][kind]
    assert least == lost.min() and low <= int(lost.argmin()) <= high
    assert all(lost[k] <= least + 0.001 for k in range(low, high + 1))
    assert low == 0 or lost[low - 1] > least + 0.001


def test_the_largest_scale_without_overflow_in_either_kind() -> None:
    """By NumPy and ml_dtypes: the largest gradient of all is a sampled one, and the next scale makes it overflow."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rows = [row for kind in KINDS for row in load_gradients().select(kind, 2000)]
    largest = np.float32(max(float(np.abs(row.sample).max()) for row in rows))
    for row in rows:
        filled = row.binades[(row.positive + row.negative) > 0]
        assert len(row.sample) == row.nonzeros or 2.0 ** (filled.max() + 1) < largest
    series = lecture("underflow")[1].series
    types = {"fp16": np.float16, "e5m2": ml_dtypes.float8_e5m2, "e4m3fn": ml_dtypes.float8_e4m3fn}
    for name, dtype in types.items():
        k = series["without_overflow"][name]
        with np.errstate(over="ignore"):
            finite = [bool(np.isfinite(np.ldexp(largest, j).astype(dtype))) for j in (k, k + 1)]
        assert finite == [True, False], name
        for kind in KINDS:
            assert np.array(series["fates"][name][kind])[: k + 1, 2].max() == 0, (name, kind)
    assert series["without_overflow"] == {"fp16": 18, "bf16": 129 + 1, "e5m2": 18, "e4m3fn": 11}
    rows_ = {row[:2]: row[2:] for row in table(lecture("underflow")[1], "Lost at the largest").rows}
    for name, title in (("fp16", "FP16"), ("e5m2", "E5M2"), ("e4m3fn", "E4M3")):
        k = series["without_overflow"][name]
        assert rows_["activation", title][1] == f"2^{k}"
        shown = float(rows_["activation", title][2].removesuffix(" %")) / 100
        assert shown == pytest.approx(counted(KINDS[0], 2000, HALF_LEAST[name] - k), rel=0.03)
    assert rows_["activation", "BF16"] == ("0 %", "2^28 or more", "0 %")


def test_a_machine_without_the_format_is_left_out() -> None:
    _, result = lecture("underflow", "numpy")
    assert list(result.series["fates"]) == ["fp16"]
    assert result.series["fates"] == {"fp16": lecture("underflow")[1].series["fates"]["fp16"]}
    assert table(result, "What becomes").rows[0][1] == "FP16"


def test_bf16_keeps_all_and_e4m3_none_at_scale_1() -> None:
    series = lecture("underflow")[1].series["zero_at_scale_1"]
    assert all(x == 0 for kind in KINDS for x in series["bf16"][kind].values())
    assert series[E4M3.name][KINDS[0]]["2000"] > 0.99
