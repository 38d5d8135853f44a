"""Loss scalers on real gradients, by casts of NumPy and state machines of a few lines that share no code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from numsim.data import load_gradients
from numsim.errors import InputError
from numsim.experiments.experiment import Session
from numsim.experiments.loss_scaling import EXPERIMENT
from numsim.experiments.scaler_runs import Limits, follow, in_a_row, says
from numsim.formats import FP16
from numsim.machines import find_machine, get_machine
from numsim.machines.verdict import compare_answers
from numsim.scaling import GradScaler
from numsim.scaling.playback import SAYS
from tests.experiments.runs import lecture, run, table

RECORDED = (0, 100, 500, 2000)
BY_HAND = {  # transcribed by hand from the sources of each system: interval 4, first scale 16, ICICIICCCCCI
    "torch": [8, 8, 4, 4, 2, 1, 1, 1, 1, 2, 2, 1],
    "megatron": [16, 16, 8, 8, 4, 2, 2, 2, 2, 4, 4, 4],
    "deepspeed": [16, 16, 8, 8, 4, 2, 2, 2, 2, 2, 4, 4],
    "deepspeed (consecutive)": [16, 16, 16, 16, 16, 8, 8, 8, 8, 8, 16, 16],
    "apex-hysteresis": [16, 16, 16, 16, 16, 8, 8, 8, 8, 16, 16, 16],
}


def amax(step: int) -> np.float32:
    recorded = max(s for s in RECORDED if s < step or s == 0)
    rows = [r for r in load_gradients().select(step=recorded) if r.kind.endswith("gradient")]
    return np.float32(max(np.abs(r.sample).max() for r in rows))


def skipped(interval: int, steps: int, scale: float, nan: Callable[[int], bool] = lambda step: False) -> list[int]:
    """The steps that a scaler skips, by NumPy's cast: halve on an overflow, double after ``interval`` clean steps."""
    lost, clean = [], 0
    amaxes = {s: amax(s + 1) for s in RECORDED}
    for step in range(1, steps + 1):
        now = amaxes[max(s for s in RECORDED if s < step or s == 0)]
        with np.errstate(over="ignore"):
            fits = bool(np.isfinite(np.float16(now * np.float32(scale)))) and not nan(step)
        if not fits:
            lost, scale, clean = [*lost, step], scale / 2, 0
        elif clean + 1 == interval:
            scale, clean = scale * 2, 0
        else:
            clean += 1
    return lost


def test_the_answer_by_another_way() -> None:
    _, result = lecture("loss-scaling")
    expected = skipped(80, 2500, 2.0**24)
    assert result.answer == str(len(expected)) == EXPERIMENT.choices[2]
    assert result.traces["healthy"].happened("overflow") == expected
    burst = skipped(80, 2500, 2.0**24, lambda step: 1500 <= step < 1505)
    assert result.traces["5 steps of NaN"].happened("overflow") == burst
    (sentence,) = [f for f in result.findings if f.startswith("5 steps of NaN")]
    assert "from step 1500 on: 5 overflows" in sentence and result.series["burst_at"] == 1500


@pytest.mark.parametrize(("interval", "off"), [(80, 81), (80, 79)])
def test_an_interval_that_is_off_by_one_is_seen(interval: int, off: int) -> None:
    assert lecture("loss-scaling")[1].traces["healthy"].happened("overflow") != skipped(off, 2500, 2.0**24)
    assert len(skipped(interval, 2500, 2.0**23)) == len(skipped(interval, 2500, 2.0**24)) - 1  # one step of search


@pytest.mark.parametrize(("interval", "scale", "steps"), [(20, 16, 700), (150, 24, 2200), (2000, 10, 100)])
def test_other_parameters(interval: int, scale: int, steps: int) -> None:
    result = run("loss-scaling", interval=interval, scale=scale, steps=steps)
    expected = skipped(interval, steps, 2.0**scale)
    assert result.answer == str(len(expected)) and result.traces["healthy"].happened("overflow") == expected
    (sentence,) = [f for f in result.findings if f.startswith("In the healthy run")]
    assert f" {len(expected)} of {steps} steps" in sentence
    for word, count in says(result.traces["healthy"]).items():
        assert (f"{count} {word}" in sentence) == (count > 0)


@pytest.mark.parametrize("step", RECORDED)
def test_windows_by_counts_and_by_numpy(step: int) -> None:
    rows = [r for r in load_gradients().select(step=step) if r.kind.endswith("gradient")]
    total = sum(r.nonzeros for r in rows)
    # a value of at most half the least number, 2^-25, becomes zero
    zero = [sum(r.count_below(-25 - k) for r in rows) / total for k in range(29)]
    with np.errstate(over="ignore"):
        fits = [k for k in range(29) if np.isfinite(np.float16(amax(step + 1) * np.float32(2.0**k)))]
    low, high = lecture("loss-scaling")[1].series["windows"][str(step)]
    assert high == max(fits)
    assert zero[low] <= 0.0101 and (low == 0 or zero[low - 1] > 0.0099)
    lost = np.array(lecture("loss-scaling")[1].series["lost"][str(step)])
    assert np.abs(lost[:, 0] - zero).max() < 1e-3 and lost[: high + 1, 2].max() == 0


@pytest.mark.parametrize("name", BY_HAND)
def test_one_string_through_all_systems(name: str) -> None:
    _, result = lecture("loss-scaling")
    rows = {row[0]: list(row[1:]) for row in table(result, "after each event").rows}
    assert rows[name] == result.series["systems"][name] == BY_HAND[name]
    assert len(rows) == 14 and rows["static"] == [16] * 12


def test_a_system_that_raises_ends_there() -> None:
    rows = {row[0]: row[1:] for row in table(run("loss-scaling", events="I" * 12), "after each event").rows}
    assert rows["deepspeed"] == (16, 8, 4, 2, 1, 1, *[None] * 6)  # the original holds 1 where it raises
    assert rows["megatron"][-1] == 1 and rows["torch"][-1] == cell_of(16 * 2.0**-12)


def cell_of(x: float) -> float:
    return float(f"{x:.9g}")


def test_torch_itself_takes_the_same_way() -> None:
    pytest.importorskip("torch")
    session, _ = lecture("loss-scaling")
    replays = [(q, a) for q, a in session.answers if q.operation == "scaler"]
    verdict = compare_answers(replays, find_machine("torch-cpu"), name="emulated")
    assert len(replays) == 3 and verdict.ok and not verdict.skipped and verdict.compared == 5012


def test_numpys_casts_give_the_same_result() -> None:
    ours, theirs = lecture("loss-scaling")[1], lecture("loss-scaling", "numpy")[1]
    assert theirs.answer == ours.answer and theirs.tables == ours.tables and theirs.series == ours.series


@pytest.mark.parametrize(("interval", "scale", "burst"), [(80, 24, 5), (20, 24, 3), (300, 24, 40), (60, 12, 1)])
def test_what_overflows_say_is_what_the_picture_marks(interval: int, scale: int, burst: int) -> None:
    plots = pytest.importorskip("numsim.show.trace_plots")
    result = run("loss-scaling", interval=interval, scale=scale, burst=burst)
    for trace in result.traces.values():
        marked = list(plots.overflow_kinds(trace).values())
        assert {word: marked.count(kind) for kind, word in SAYS.items()} == says(trace)


def test_runs_of_overflows() -> None:
    trace = run("loss-scaling", burst=7).traces["7 steps of NaN"]
    assert in_a_row(trace, 1500) == 7 and in_a_row(trace, 1499) == 0 and in_a_row(trace, 101) == 6


def test_limits() -> None:
    session = Session(get_machine("emulated"))
    limits = Limits.ask(session, 0.5, FP16)
    assert limits is not None and limits.top == 2.0**16
    assert not any(limits.overflows(s) for s in (0.0, 2.0**-149, 2.0**16))
    assert all(limits.overflows(s) for s in (2.0**17, 2.0**200, np.inf))
    zero = Limits.ask(session, 0.0, FP16)
    assert zero is not None and not zero.overflows(2.0**127) and zero.overflows(np.inf) and zero.overflows(2.0**128)
    found, scales = follow(GradScaler(init_scale=2.0**18, growth_interval=2), lambda _, s: limits.overflows(s), 6)
    assert found == [1, 1, 0, 0, 1, 0] and scales == [2.0**k for k in (17, 16, 16, 17, 16, 16)]


@pytest.mark.parametrize(
    "bad",
    [
        {"interval": 0}, {"interval": -3}, {"interval": 2.5}, {"scale": -1}, {"scale": True}, {"scale": float("inf")},
        {"steps": 0}, {"steps": 10**9}, {"burst": 0}, {"events": ""}, {"events": "IXC"}, {"events": "C" * 13},
        {"events": ["I"]},
    ],
)  # fmt: skip
def test_refused(bad: dict[str, object]) -> None:
    session = Session(get_machine("emulated"))
    with pytest.raises(InputError, match=rf"{next(iter(bad))}=.*Example: "):
        EXPERIMENT.run(session, **{**EXPERIMENT.defaults, **bad})
    assert not session.answers


# --- what is said -----------------------------------------------------------------------------------------------------
def falls(**parameters: int) -> dict[object, tuple[object, ...]]:
    return {row[0]: row[1:] for row in table(run("loss-scaling", **parameters), "Falls").rows}


def test_a_real_fall_stays_and_one_of_nan_climbs_back() -> None:
    """What follows each run of overflows, by the loop above: scales are counted by hand from its skipped steps."""
    lost = skipped(80, 2500, 2.0**24, lambda step: 1500 <= step < 1505)
    real, nan = (next(s for s in lost if s > last) for last in (106, 1504))  # the next overflow after each fall
    assert (real - 106, nan - 1504) == (81, 6 * 80 + 1)  # one growth, and six: 2^11 to 2^17
    assert falls() == {
        "healthy": (101, 6, "2^22", "2^16", 1, None),
        "5 steps of NaN": (1500, 5, "2^16", "2^11", 6, 5 * 80 + 4),
    }
    said = " ".join(lecture("loss-scaling")[1].findings)
    assert "The fall at step 101 is real" in said and "climbs back without another overflow: it is there 404 " in said
    assert "36 steps skipped with NaN and 36 without, at most 6 and 6 in a row" in said


@pytest.mark.parametrize(
    ("parameters", "words", "not_words"),
    [
        ({"burst": 1}, ["1 step of NaN from", ": 1 overflow, and"], [" 1 steps", " 1 overflows"]),
        ({"burst": 100}, ["It is not back at the end."], ["Neither number", "tells little", "404"]),
        ({"steps": 10}, [": 2 searching (down from the first scale). None"], ["fewer probes", "The fall at step"]),
        ({"events": "C"}, ["all go the same way and end at 16;"], ["different ways"]),
        ({"interval": 5000, "scale": 0}, ["101 with 20, 0 with 500"], ["None is a failure", "The fall at step"]),
    ],
)
def test_sentences_hold_for_other_parameters(
    parameters: dict[str, object], words: list[str], not_words: list[str]
) -> None:
    said = " ".join(run("loss-scaling", **parameters).findings)
    assert all(w in said for w in words) and not any(w in said for w in not_words), said


def test_full_size_keeps_the_answer_and_comes_back() -> None:
    assert run("loss-scaling", **EXPERIMENT.full).answer == EXPERIMENT.choices[2]
    backs = [falls(burst=n)[f"{n} steps of NaN"][-1] for n in (EXPERIMENT.full["burst"], EXPERIMENT.full["burst"] + 1)]
    assert backs[0] is not None and backs[1] is None


def test_the_sampled_maxima_lie_in_the_highest_binade_of_all_gradients() -> None:
    """The largest gradient is that of a sample; all are counted by binade."""
    for step, largest, below, *_ in table(lecture("loss-scaling")[1], "scales from").rows:
        counts = sum(r.positive + r.negative for r in load_gradients().select(step=step) if r.kind.endswith("gradient"))
        top = load_gradients().tensors[0].binades[counts > 0].max()
        assert below == f"2^{top + 1}" and 2.0**top <= largest < 2.0 ** (top + 1)
