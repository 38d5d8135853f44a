"""Recipes by ml_dtypes' casts and by the rooms that experiments do not use; the answer; sentences that stay true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numsim.blocks import get_block_format, hadamard, quantize, rules
from numsim.data import load_gradients
from numsim.errors import InputError
from numsim.experiments.block_units import clips, quantized_operand, turn
from numsim.experiments.experiment import Session
from numsim.experiments.recipes import _WAYS, CONTENDERS, EXPERIMENT, OPERANDS, _operands, _planted
from numsim.formats import get_format
from numsim.machines import get_machine
from numsim.scaling import DelayedScaling, list_recipes, quantize_operand
from tests.experiments.runs import lecture, run, table
from tests.experiments.test_mx_scale import Nobody


def tensor(name: str, step: int = 2000) -> Any:
    return load_gradients().matrices[name][step]


def snr(x: Any, values: Any) -> float:
    x = x.astype(float)
    return float(10 * np.log10((x**2).sum() / ((values - x) ** 2).sum()))


def filled(x: Any, format: Any) -> Any:
    block = (1, 1, *(format.block or ()))[-2:]
    return np.pad(x, [(0, -n % (b or 1)) for n, b in zip(x.shape, block, strict=True)])


# --- the same bits as the library ------------------------------------------------------------------------------------
@pytest.mark.parametrize("recipe", [r.name for r in list_recipes()])
@pytest.mark.parametrize("operand", OPERANDS)
def test_questions_give_what_recipes_give(recipe: str, operand: str) -> None:
    made = _operands(recipe)[1][operand]
    x, format = tensor(operand), get_block_format(made.format)
    kept = quantized_operand(Session(get_machine("emulated")), made, x, seed=7)
    whole, options = filled(x, format), {}
    if recipe == "te-delayed":
        settings = DelayedScaling()
        state = settings.initial("backward" if operand == "grad_output" else "forward")
        options["state"] = settings.update(settings.record(state, np.abs(x).max()))
    if made.rounding == "stochastic":
        options["seed"] = 7
    wanted, _ = quantize_operand(recipe, operand, whole, gemm=OPERANDS[operand], **options)
    assert kept is not None and kept.values is not None
    assert kept.values.tobytes() == np.ascontiguousarray(wanted.values[: x.shape[0], : x.shape[1]]).tobytes()


@pytest.mark.parametrize("way", _WAYS)
def test_ways_of_nvfp4_give_what_the_library_gives(way: str) -> None:
    x = np.ascontiguousarray(tensor("grad_output").T)
    kept = quantized_operand(Session(get_machine("emulated")), _WAYS[way], x, seed=7)
    seed = 7 if _WAYS[way].rounding == "stochastic" else None
    values = _WAYS[way].quantize(x, seed=seed).values
    assert kept is not None and kept.values is not None
    if _WAYS[way].transform:
        values = hadamard(values, inverse=True)
    assert np.array_equal(kept.values, values)


# --- by an outsider --------------------------------------------------------------------------------------------------
def test_contenders_by_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = tensor("grad_output")
    amax = np.abs(x).max()
    found = {}
    for title, dtype, most in (("E4M3", ml_dtypes.float8_e4m3fn, 448), ("E5M2", ml_dtypes.float8_e5m2, 57344)):
        scale = np.float32(most) / amax
        found[title] = np.clip(x * scale, -most, most).astype(dtype).astype(float) * float(np.float32(1) / scale)
    blocks = x.reshape(-1, 32)
    exponent = np.ceil(np.log2(np.abs(blocks).max(axis=1, keepdims=True).astype(float) / 448))
    exponent = np.where(np.isfinite(exponent), exponent, -127.0)
    found["MXFP8"] = (
        (blocks * 2.0**-exponent).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(float) * 2.0**exponent
    ).reshape(x.shape)
    series = lecture("recipes")[1].series["contenders"]
    for title, values in found.items():
        assert series[title]["noise"] == pytest.approx(snr(x, values), rel=1e-9)
        assert series[title]["zero"] == np.mean(values[x != 0] == 0)
    assert lecture("recipes")[1].answer == min(found, key=lambda t: snr(x, found[t])) == "E5M2"


def test_the_question_tells_the_truth() -> None:
    series = lecture("recipes")[1].series["contenders"]
    assert "more than a fifth of them becomes 0" in EXPERIMENT.question and series["E4M3"]["zero"] > 0.2
    assert series["E5M2"]["zero"] < 0.001 and series["MXFP8"]["zero"] == 0
    assert series["E4M3"]["noise"] - series["E5M2"]["noise"] > 6
    assert abs(series["E4M3"]["noise"] - series["MXFP8"]["noise"]) < 0.5
    for step in (0, 100, 500):
        assert run("recipes", recipes=["fp8_tensor"], step=step).answer == "E5M2"


def test_without_any_scale_the_wrong_guess_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = rules.RULES["current"]._replace(
        scales=lambda amax, format, tensor=None: rules.Scales(
            np.ones_like(amax), np.full(amax.shape, 0x3F800000, np.uint32)
        )
    )
    monkeypatch.setitem(rules.RULES, "current", ones)
    result = run("recipes", recipes=["fp8_tensor"])
    assert result.answer == EXPERIMENT.wrong_guess and result.series["contenders"]["E4M3"]["zero"] > 0.98


# --- blocks whose scale is 0, clipping, the outlier ----------------------------------------------------------------
def test_blocks_of_nvfp4_without_a_scale() -> None:
    x = tensor("grad_output")
    blocks = x.reshape(-1, 16)
    without = np.abs(blocks).max(axis=1) * (448 / np.abs(x).max()) <= 2.0**-10  # half of the least E4M3 number: a tie
    lost = np.count_nonzero(blocks[without]) / np.count_nonzero(x)
    loss = lecture("recipes")[1].series["plain"]["te-nvfp4"]["grad_output"]
    assert loss["without_scale"] == pytest.approx(lost, rel=1e-9) and 0.1 < lost < loss["zero"]
    # their multiplier is FP32's largest number; what saturates lies in blocks whose small scale was rounded down
    scaled = blocks[~without]
    wanted = np.abs(scaled).max(axis=1) * (448 / np.abs(x).max())
    scaled = np.abs(scaled).T * (448 / np.abs(x).max())
    saturated = scaled / quantize(wanted, "fp8_tensor", multiplier=1.0).values * 6 > 7
    assert loss["clipped"] == pytest.approx(np.count_nonzero(saturated) / np.count_nonzero(x)) and saturated.any()


def test_clipped_in_mxfp8_by_hand() -> None:
    x = tensor("input").reshape(-1, 32).astype(float)
    amax = np.abs(x).max(axis=1, keepdims=True)
    scale = 2.0 ** (np.floor(np.log2(np.where(amax > 0, amax, 1))) - 8)
    share = np.mean((np.abs(x) > 464 * scale)[x != 0])
    plain = lecture("recipes")[1].series["plain"]
    assert plain["mxfp8"]["input"]["clipped"] == pytest.approx(share) and share > 0
    assert plain["te-mxfp8"]["input"]["clipped"] == 0


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1", "e2m3", "e3m2"])
def test_clipped_is_what_rounding_takes_beyond(name: str) -> None:
    """As rounding itself says it, in formats with room above: the numbers next to the tie, and the tie."""
    format = get_format(name)
    tie = turn(format)
    step = 2 * (tie - float(format.max))
    for x in (np.nextafter(tie, 0), tie, np.nextafter(tie, np.inf)):
        # half a step is no tie any more for the even code
        beyond = round(x / step) * step > float(format.max)
        assert clips(np.array([x, -x]), format).tolist() == [beyond, beyond]


def test_outlier() -> None:
    x = tensor("grad_output")
    with_outlier, at = _planted(x, 64.0)
    assert with_outlier[at] == 64 * np.abs(x).max() * np.sign(x[at]) and np.count_nonzero(with_outlier != x) == 1
    planted = lecture("recipes")[1].series["planted"]
    values = quantize(with_outlier, "fp8_tensor").values
    others = np.ones(x.shape, bool)
    others[at] = False
    loss = planted["fp8_tensor"]["grad_output"]
    assert loss["zero"] == np.mean(values[others & (x != 0)] == 0)
    assert loss["noise"] == pytest.approx(snr(x[others], values[others]))
    assert loss["outlier"] == pytest.approx(values[at] / with_outlier[at]) == pytest.approx(1)
    assert planted["te-delayed"]["grad_output"]["outlier"] == pytest.approx(1 / 64)
    delayed, plain = planted["te-delayed"]["grad_output"], lecture("recipes")[1].series["plain"]["te-delayed"]
    assert delayed["zero"] == pytest.approx(plain["grad_output"]["zero"], abs=1e-6)


def test_stochastic_rounding_is_right_on_average() -> None:
    rows = {row[0]: row[1:] for row in table(lecture("recipes")[1], "along the batch").rows}
    one, small, mean, small_mean = ({way: float(row[i]) for way, row in rows.items()} for i in (0, 2, 3, 4))
    assert one["to nearest"] == mean["to nearest"] and one["Hadamard"] == mean["Hadamard"]
    assert small["to nearest"] == 0  # all of them are 0, and that far off
    for way in ("stochastic", "both"):
        assert small[way] < -1 and small_mean[way] - small[way] > 10
        assert one[way] < one["to nearest"] < mean[way]
        assert 10 < mean[way] - one[way] < 10 * np.log10(16) + 1  # 16 draws: 12 dB at most, or the draws are no draws


# --- parameters ------------------------------------------------------------------------------------------------------
def test_other_parameters_other_sentences() -> None:
    result = run("recipes", recipes=["te-mxfp8", "MXFP4"], step=0, outlier=1024.0, draws=2)
    found = " ".join(result.findings)
    assert result.parameters["recipes"] == ["te-mxfp8", "mxfp4"]
    assert "hardly sees" not in found and "te-delayed" not in found and "blocks whose scale" not in found
    assert "mean of 2 draws" in found and "E4M3 2.7 % and 0 %" in found
    assert [row[0] for row in result.tables[0].rows] == ["te-mxfp8", "mxfp4"]
    assert "step 0" in result.tables[0].title and "times 1024" in result.tables[1].title


def test_seed() -> None:
    first, second = (run("recipes", recipes=["te-nvfp4"], draws=2, seed=s).tables[2].rows for s in (1, 2**64 - 1))
    assert first[0] == second[0] and first[1] != second[1]


def test_what_is_clipped_is_said() -> None:
    (sentence,) = [f for f in lecture("recipes")[1].findings if "are clipped" in f]
    assert "mxfp8 0.9 %" in sentence and "E4M3 (448) above 464" in sentence and "E2M1 (6) from 7 on" in sentence
    assert "clipped: none" in " ".join(run("recipes", recipes=["te-mxfp8"], draws=2).findings)


def test_machines_without_casts() -> None:
    result = lecture("recipes", "numpy")[1]
    assert [t.title[:4] for t in result.tables] == ["Bits"] and result.answer == "not answered by this machine"
    pytest.importorskip("ml_dtypes")
    assert lecture("recipes", "ml_dtypes")[1].answer == "E5M2"
    same = lecture("recipes", "ml_dtypes")[1].series["plain"]
    assert same["mxfp4"] == lecture("recipes")[1].series["plain"]["mxfp4"] and "te-nvfp4" not in same


@pytest.mark.parametrize(
    "bad",
    [
        {"recipes": []},
        {"recipes": "te-mxfp8"},
        {"recipes": ["nonsense"]},
        {"recipes": ["nf4"]},
        {"recipes": [8]},
        {"step": 7},
        {"step": True},
        {"outlier": 1.0},
        {"outlier": float("nan")},
        {"draws": 1},
    ],
)
def test_bad_parameters(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"{next(iter(bad))}.*Example: numsim\.experiments\.run"):
        run("recipes", Nobody(), **bad)
    with pytest.raises(InputError, match="seed=-1"):
        run("recipes", Nobody(), seed=-1)


def test_names() -> None:
    assert [_operands(name)[0] for name in ("TE_MXFP8", "mxfp8", "mxfp8-e5m2", " fp8_1x128 ")] == [
        "te-mxfp8", "mxfp8", "mxfp8_e5m2", "fp8_1x128",
    ]  # fmt: skip
    assert set(CONTENDERS) == set(EXPERIMENT.choices)
