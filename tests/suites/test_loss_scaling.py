"""The suite loss-scaling: what a real scaler did is replayed bit by bit; what is changed in a record is found."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from numsim.array import from_codes
from numsim.errors import InputError, RecordError, UnavailableError
from numsim.machines import find_machine
from numsim.machines.question import Answer, ask
from numsim.machines.recorded import parse_record
from numsim.suites import get_suite, loss_scaling
from numsim.suites.suite import collect
from numsim.traces import Event, Trace

pytest.importorskip("torch")

SUITE = get_suite("loss-scaling")
SCALED = ("fp16", "fp16-odd")


@pytest.fixture(scope="module")
def data():
    return collect(SUITE, find_machine("torch-cpu"), seed=3)


@pytest.fixture
def record(data):
    return parse_record(data, "a record")


def rows(record):
    return {row.part: row for row in SUITE.compare(record)}


def differing(record):
    return {part for part, row in rows(record).items() if row.verdict.unexplained}


def with_trace(record, name, **changes):
    trace = record.traces[name]
    changed = Trace(**{"title": trace.title, "steps": trace.steps, "series": dict(trace.series),
                       "events": trace.events, "about": dict(trace.about)} | changes)  # fmt: skip
    return dataclasses.replace(record, traces={**record.traces, name: changed})


def with_series(record, name, series, step, change):
    """The record with one number of one series changed."""
    old = record.traces[name].series[series]
    if hasattr(old, "codes"):
        codes = np.array(old.codes)
        codes[step] = change(codes[step])
        new = from_codes(codes, old.format)
    else:
        new = np.array(old)
        new[step] = change(new[step])
    return with_trace(record, name, series={**record.traces[name].series, series: new})


def with_answer(record, part, place, change):
    """The record with one code of the first answer of a part changed."""
    n = record.parts.index(part)
    question, answer = record.answers[n]
    codes = np.array(answer.codes)
    codes[place] = change(codes[place])
    answers = list(record.answers)
    answers[n] = question, Answer(codes, answer.provenance)
    return dataclasses.replace(record, answers=tuple(answers))


def test_a_real_run_is_replayed_bit_by_bit(record, data):
    found = rows(record)
    for run in SCALED:
        for what in ("scale", "unscale", "tracker", "events", "found_inf"):
            verdict = found[f"{run}: {what}"].verdict
            assert verdict.compared and verdict.compared == verdict.equal + verdict.nan, (run, what)
            assert not verdict.nan or what == "unscale"
        assert found[f"{run}: scale"].verdict.compared == loss_scaling.STEPS
    assert list(record.traces) == list(loss_scaling.RUNS) and {f"{run}: course" for run in record.traces} <= set(found)
    assert record.suite == "loss-scaling" and not record.skipped and not record.failed and len(data) < 1 << 20
    assert all(trace.about["seed"] == 3 for trace in record.traces.values())


def test_everything_happens_in_a_few_hundred_steps(record):
    for run in SCALED:
        trace = record.traces[run]
        overflows, growths = trace.happened("overflow"), trace.happened("growth")
        assert len(overflows) > 8 and len(growths) > 8 and trace.happened("spike")[0] in overflows
    odd = np.log2(record.traces["fp16-odd"]["scale"])
    assert (odd != np.floor(odd)).all()  # every product was rounded


@pytest.mark.parametrize("run", SCALED)
def test_a_tampered_scale_is_found(record, run):
    assert differing(with_answer(record, f"{run}: scale", 77, lambda code: code + 1)) == {f"{run}: scale"}


@pytest.mark.parametrize(
    ("series", "change", "part"),
    [
        ("scale", lambda code: code ^ 1, "tracker"),
        ("scale used", lambda code: code + (1 << 23), "tracker"),
        ("tracker", lambda n: n + 1, "tracker"),
        ("found_inf", lambda code: code ^ 0x3F800000, "found_inf"),
        ("scaled linear2 amax", lambda code: 0x7F800000, "found_inf"),
    ],
)
def test_a_tampered_number_of_the_trace_is_found(record, series, change, part):
    clean = int(np.flatnonzero(record.traces["fp16"]["found_inf"] == 0)[40])
    assert differing(with_series(record, "fp16", series, clean, change)) == {f"fp16: {part}"}


def test_a_tampered_event_is_found(record):
    trace = record.traces["fp16"]
    assert differing(with_trace(record, "fp16", events=trace.events[1:])) == {"fp16: events"}
    more = (*trace.events, Event(int(trace.steps[-1]), "growth"))
    assert differing(with_trace(record, "fp16", events=more)) == {"fp16: events"}


def test_a_tampered_unscaled_gradient_is_found(record):
    part = "fp16-odd: unscale"
    found = rows(with_answer(record, part, (0, 0), lambda code: 0x3F800000))[part].verdict
    assert found.unexplained == 1 and "mul" in found.shown[0].question


def test_another_interval_is_found(record):
    """As if the device's scaler grew a step early."""
    n = record.parts.index("fp16-odd: scale")
    question, _ = record.answers[n]
    late = dict(question.settings) | {"growth_interval": 6}
    changed = ask("scaler", ["fp32"], "fp32", question.arrays, system="torch", settings=late)
    answers = list(record.answers)
    answers[n] = changed, answers[n][1]
    found = differing(dataclasses.replace(record, answers=tuple(answers)))
    assert found == {"fp16-odd: scale", "fp16-odd: tracker", "fp16-odd: events"}


def test_the_course_stands_beside_this_cpus(record):
    """On this machine the two are the same training."""
    for name, trace in record.traces.items():
        here = loss_scaling.beside(name, trace)
        assert here.digest == trace.digest
        row = rows(record)[f"{name}: course"]
        assert not row.verdict.compared and f"({loss_scaling.final_loss(here):.2g})" in row.note and "(CPU" in row.note
    bare, scaled = (loss_scaling.lost(record.traces[name]) for name in ("fp16-bare", "fp16"))
    assert bare > 4 * scaled > 0  # what loss scaling is for
    assert loss_scaling.lost(record.traces["fp32"]) == 0


def test_without_torch_the_bits_are_compared_all_the_same(record, monkeypatch):
    def missing(*arguments, **options):
        raise UnavailableError("torch is not installed")

    monkeypatch.setattr(loss_scaling, "train", missing)
    loss_scaling._trained.cache_clear()
    try:
        found = rows(record)
        assert "no torch" in found["bf16: course"].note and found["fp16: tracker"].verdict.equal
        assert [stem for stem, _, _ in SUITE.draw(record, "page")] == [
            "loss-scaling-scales", "loss-scaling-ranges", "loss-scaling-lost"
        ]  # fmt: skip
    finally:
        loss_scaling._trained.cache_clear()


def test_pictures_say_what_they_show(record):
    drawn = SUITE.draw(record, "slide")
    overflows = len(record.traces["fp16"].happened("overflow"))
    assert f"fp16: {overflows} overflows" in drawn[0][2] and "fp16-bare" in drawn[2][2]
    assert all(len(alt) > 60 and figure.look == "slide" for _, figure, alt in drawn)
    assert SUITE.draw(dataclasses.replace(record, traces={}), "page") == []


@pytest.mark.parametrize("about", [
    {}, {"spikes": 3}, {"steps": 3000}, {"batch": 1}, {"scaler": "torch"}, {"dtype": ["float16"]}
])  # fmt: skip
def test_other_settings_than_the_suites_are_not_trained_again(record, about, monkeypatch):
    sound = dict(record.traces["bf16"].about) if about else {}
    changed = with_trace(record, "bf16", about=sound | about)
    trained, real = [], loss_scaling._trained
    monkeypatch.setattr(loss_scaling, "_trained", lambda options: trained.append(options) or real(options))
    assert "not this suite's settings" in rows(changed)["bf16: course"].note
    assert len(trained) == len(record.traces) - 1


def test_a_seed_that_is_none_is_refused(record):
    with pytest.raises(RecordError, match="does not say how it was trained"):
        SUITE.compare(with_trace(record, "bf16", about=dict(record.traces["bf16"].about) | {"seed": "mine"}))


def test_a_trace_without_steps_is_refused(record):
    trace = record.traces["fp32"]
    empty = {name: np.zeros(0) for name in trace.series}
    with pytest.raises(RecordError, match="no steps"):
        SUITE.compare(with_trace(record, "fp32", steps=np.zeros(0, int), series=empty, events=()))


def test_a_trace_without_its_series_is_refused(record):
    for name, series in (("fp16", "tracker"), ("bf16", "loss"), ("fp16", "scaled linear3 amax")):
        left = {k: v for k, v in record.traces[name].series.items() if k != series}
        with pytest.raises(RecordError, match=series):
            SUITE.compare(with_trace(record, name, series=left))


def test_a_machine_that_does_not_train_is_told():
    with pytest.raises(InputError, match="nothing to record"):
        collect(SUITE, find_machine("numpy"))


def test_a_dtype_that_the_device_lacks_is_one_part_only(monkeypatch):
    real = loss_scaling.train

    def train(device, *, dtype, **options):
        if dtype == "bfloat16":
            raise UnavailableError("training in bfloat16 on cpu failed: not supported")
        return real(device, dtype=dtype, **options)

    monkeypatch.setattr(loss_scaling, "train", train)
    monkeypatch.setattr(loss_scaling, "RUNS", {n: loss_scaling.RUNS[n] for n in ("fp16", "bf16")})
    record = parse_record(collect(SUITE, find_machine("torch-cpu")), "a record")
    assert set(record.skipped) == {"bf16: course"} and "not supported" in record.skipped["bf16: course"]
    assert set(record.traces) == {"fp16"} and rows(record)["bf16: course"].verdict.skipped


def test_recording_needs_numpy_and_torch_only():
    code = """
import sys
for name in ("numba", "ml_dtypes", "matplotlib", "rich", "cuda", "gmpy2"):
    sys.modules[name] = None
from numsim.machines import get_machine
from numsim.suites import get_suite, loss_scaling
from numsim.suites.suite import collect
loss_scaling.STEPS = 150
machine = get_machine("torch-cpu")
print([len(collect(get_suite(name), machine)) > 10_000 for name in ("loss-scaling", "fp8")])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "[True, True]\n" and done.stderr == ""
