"""What section 7 of the house asks of each experiment, and what the command line relies on."""

from __future__ import annotations

import inspect
import json
import re

import numpy as np
import pytest

from numsim.errors import InputError
from numsim.experiments import get_experiment
from numsim.experiments.experiment import Session, cell, check_formats, check_real, check_whole, listed, percent
from numsim.experiments.results import plain, recompute
from numsim.formats import get_format
from numsim.machines import MACHINES, find_machine, get_machine
from numsim.machines.question import Can
from tests.experiments.runs import FORMATS, NAMES, lecture, run


@pytest.mark.parametrize("name", NAMES)
def test_teaches(name: str) -> None:
    e, (_, result) = get_experiment(name), lecture(name)
    assert e.name == result.experiment == name
    assert e.question.endswith("?")
    assert e.choices[0] == e.wrong_guess != result.answer
    assert result.answer in e.choices
    assert len(set(e.choices)) == len(e.choices) >= 3
    assert len(re.findall(r"[.!?](?= [A-Z]|$)", e.explanation)) == 3
    assert e.sources and e.why_wrong
    assert 4 <= len(result.findings) <= 8 and all(f.endswith(".") for f in result.findings)


@pytest.mark.parametrize("name", NAMES)
def test_parameters(name: str) -> None:
    e, (_, result) = get_experiment(name), lecture(name)
    signature = inspect.signature(e.run).parameters
    assert {k: p.default for k, p in signature.items() if k != "session"} == dict(e.defaults)
    assert set(result.parameters) == set(e.defaults)
    assert set(e.full) <= set(e.defaults) and e.full
    assert set(e.against) <= set(MACHINES)


@pytest.mark.parametrize("name", NAMES)
def test_tables_fit_80_columns(name: str) -> None:
    for t in lecture(name)[1].tables:
        assert len(t.title) <= 80, t.title
        assert all(len(row) == len(t.columns) for row in t.rows)
        lines = [t.columns, *(["-" if c is None else str(c) for c in row] for row in t.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        assert sum(widths) + 2 * (len(widths) - 1) <= 78, t.title
        cells = [c for row in t.rows for c in row]
        assert all(c is None or isinstance(c, (str, int, float)) for c in cells)


@pytest.mark.parametrize("name", NAMES)
def test_same_again_through_json(name: str) -> None:
    session, result = lecture(name)
    data = {"experiment": name, "parameters": json.loads(json.dumps(plain(result.parameters)))}
    again, recomputed = recompute(data, get_machine("emulated"), "the file")
    assert plain(recomputed.series) == plain(result.series)
    assert recomputed.tables == result.tables and recomputed.findings == result.findings
    assert [q.digest for q, _ in again.answers] == [q.digest for q, _ in session.answers]


@pytest.mark.parametrize("machine", ["numpy", "ml_dtypes", "torch-cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_runs_on_other_machines(name: str, machine: str) -> None:
    if not (can := find_machine(machine).can()):
        pytest.skip(can.reason)
    session, result = lecture(name, machine)
    if machine == "ml_dtypes" and name not in FORMATS:  # no FP32 or FP16 arithmetic, no products of matrices
        assert not session.answers and "not answered" in result.answer
        return
    assert session.answers and (session.skipped or machine == "torch-cpu")
    assert result.answer and result.findings and result.tables


class Mute:
    """A machine that answers nothing."""

    name = "mute"

    def can(self, question: object = None) -> Can:
        return Can(False, "mute says nothing")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_answered(name: str) -> None:
    session = Session(Mute())
    result = get_experiment(name).run(session)
    assert "not answered" in result.answer
    assert session.skipped["mute says nothing"] > 5
    drawn = get_experiment(name).draw(result, "page")
    assert list(drawn) == []


class Unasked(Mute):
    """A machine that is not to be asked: the command line relies on parameters being checked before."""

    def can(self, question: object = None) -> Can:
        raise AssertionError("asked before the parameters were checked")


# those of other experiments stand in their own tests
@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("swamping", {"terms": 0}),
        ("swamping", {"terms": 10**9}),
        ("swamping", {"terms": True}),
        ("swamping", {"uniform_terms": 3.5}),
        ("swamping", {"seed": -1}),
        ("swamping", {"formats": []}),
        ("swamping", {"formats": 7}),
        ("swamping", {"formats": ["fp16", "e8m0"]}),
        ("underflow", {"step": 7}),
        ("underflow", {"step": True}),
        ("underflow", {"largest_scale": -1}),
        ("underflow", {"sample": 10**6}),
        ("underflow", {"formats": "fp32"}),
        ("underflow", {"formats": ["e2m1"]}),
        ("casts", {"formats": ["fp64"]}),
        ("casts", {"every_number": 1}),
        ("casts", {"formats": ["nonsense"]}),
        ("casts", {"seed": "x"}),
        ("accumulator", {"seed": -1}),
        ("kept-bits", {"formats": ["fp64"]}),
        ("chips", {"k": 48}),
        ("blocks", {"terms": 1}),
        ("tf32", {"seed": 2**64}),
        ("invariance", {"k": 300}),
        ("loss-scaling", {"interval": 0}),
        ("loss-scaling", {"interval": -1}),
        ("loss-scaling", {"scale": float("inf")}),
        ("loss-scaling", {"events": "IX"}),
        ("scale-window", {"largest": float("inf")}),
        ("scale-window", {"smallest": 1.0}),
        ("blind-scaler", {"interval": 0}),
        ("blind-scaler", {"largest": float("nan")}),
        ("collapse", {"overflows": -1}),
        ("collapse", {"learning_rate": 2.0}),
    ],
)
def test_bad_parameters(name: str, bad: dict[str, object]) -> None:
    with pytest.raises(InputError if bad.get("formats") != ["nonsense"] else ValueError) as caught:
        run(name, Unasked(), **bad)
    message = str(caught.value)
    ((key, value),) = list(bad.items())[:1]
    assert "Example: " in message
    assert key in message or repr(value) in message or "nonsense" in message


def test_helpers() -> None:
    assert check_whole("n", np.int64(3), 1, 5, "n=2") == 3
    assert check_real("x", np.float32(0.5), 0, 1, "x=0.1") == 0.5
    assert [f.name for f in check_formats("f", ("e4m3", "e4m3fn"), lambda f: True, "any", "f='fp16'")] == ["e4m3fn"]
    assert check_formats("f", get_format("fp16"), lambda f: True, "any", "f='fp16'") == [get_format("fp16")]
    assert [cell(x) for x in (3.0, 0.1, 1e300, float("nan"))] == [3, 0.1, 1e300, "nan"]
    assert type(cell(3.0)) is int
    assert [percent(x) for x in (0.0995, 0.0994, 1.5, 1e-5, 9e-6)] == [
        "10 %",
        "9.9 %",
        "150 %",
        "0.001 %",
        "under 0.001 %",
    ]
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"], "or")] == ["a", "a and b", "a, b or c"]
