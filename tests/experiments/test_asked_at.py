"""Parameters that are not the question's: what still stands, in text and from Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from numsim.experiments import get_experiment
from numsim.experiments.experiment import Result
from numsim.experiments.results import parameters_for
from numsim.show import report, text
from tests.experiments.runs import NAMES, lecture, run


def shown(result: Result) -> str:
    return " ".join(str(result).split())


@pytest.mark.parametrize("name", NAMES)
def test_the_lecture_asks_what_is_written(name: str) -> None:
    e, (_, result) = get_experiment(name), lecture(name)
    assert e.changed(result.parameters) == {} == e.asked_at(result)  # names of formats as the defaults spell them, too
    seeded = replace(result, parameters={**result.parameters, "seed": 99})
    assert e.asked_at(seeded) == {}
    written = [*report.question_lines(e), *report.result_lines(e, result)]
    assert str(result) == text.plain(written) and "asked at" not in str(result)
    assert all(len(line) <= 80 for line in str(result).splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_full_size_stands_while_the_answer_does(name: str) -> None:
    e = get_experiment(name)
    full = Result(name, parameters_for(e, "full"), e.choices[1], (), ())
    assert e.asked_at(full) == {}
    assert e.asked_at(replace(full, answer="something else")) == {k: e.defaults[k] for k in e.full}


@pytest.mark.parametrize(("name", "parameters", "answer", "asked", "here"), [
    ("mx-scale", {"amax": 600, "blocks": 64}, "576", "amax = 480; blocks = 2048", "amax = 600; blocks = 64"),
    ("mx-scale", {"amax": 449}, "448", "amax = 480", "amax = 449"),  # one of the choices, by chance
    ("accumulation", {"gradient": 1}, "256", "gradient = 0.01", "gradient = 1"),
    ("accumulation", {"formats": ["fp16"]}, "19.5312", "formats = bf16, fp16, fp32", "formats = fp16"),
    ("delayed-scaling", {"history": 64}, "64", "history = 16", "history = 64"),  # as --size full
    ("delayed-scaling", {"history": 1}, "1", "history = 16", "history = 1"),  # the tempting guess is right here
    ("swamping", {"terms": 100}, "100", "terms = 4096", "terms = 100"),
])  # fmt: skip
def test_another_question_is_told_as_such(
    name: str, parameters: dict[str, Any], answer: str, asked: str, here: str
) -> None:
    e, result = get_experiment(name), run(name, **parameters)
    page = shown(result)
    assert result.answer == answer
    assert f"{e.question} asked at {asked} here {here} answer {answer} " in page
    assert "tempting guess" not in page and e.why_wrong not in page
    assert not any(f"{letter}) {choice}" in page for letter, choice in zip("abcd", e.choices, strict=False))
    names = here.split(" = ")[0] if ";" not in here else "amax and blocks"
    assert f"why (for the {names} of the question) {e.explanation}" in page
    assert " ".join(result.findings) in page and " ".join(e.sources) in page


def test_spellings_are_no_change() -> None:
    e = get_experiment("swamping")
    assert e.changed({**e.defaults, "formats": ["FP32", "float16", "bf16", "e4m3fn", "e5m2"], "terms": 4096.0}) == {}
    assert e.changed({**e.defaults, "formats": ["fp16", "fp32", "bf16", "e4m3fn", "e5m2"]}).keys() == {"formats"}


def test_a_result_is_short_in_a_line() -> None:
    assert repr(lecture("swamping")[1]).startswith("<Result of swamping: answer '2048', tables ")
    assert len(repr(lecture("chips")[1])) < 120


def test_a_result_of_somebodys_own_experiment() -> None:
    result = replace(lecture("swamping")[1], experiment="mine")
    assert str(result).startswith("mine\nanswer    2048\n\nAdding 1") and result.findings[0] in shown(result)
