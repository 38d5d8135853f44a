"""Pictures of blocks, tf32 and invariance: titles are findings; other chips; a library without units."""

from __future__ import annotations

import pytest

from numsim.experiments import get_experiment
from numsim.experiments.experiment import Result
from tests.experiments.runs import lecture, run

pytest.importorskip("matplotlib")
plots = pytest.importorskip("tests.show.test_plots")

NAMES = ("blocks", "tf32", "invariance")


def drawn(result: Result, look: str = "page") -> list:
    return list(get_experiment(result.experiment).draw(result, look))


def test_titles_are_findings() -> None:
    """The sentence over a picture is one of the result's own."""
    for name in NAMES:
        result = lecture(name)[1]
        found = " ".join(result.findings)
        for stem, figure, _ in drawn(result):
            title = " ".join(figure.get_suptitle().split()).replace("\u00a0", " ")
            words = title.partition(": c grows")[2] if stem == "blocks-not-monotonic" else title
            assert words in found, stem


@pytest.mark.parametrize(
    ("name", "parameters", "stems"),
    [
        ("blocks", {"chips": ["mi100"]}, ["blocks"]),  # nothing falls
        ("blocks", {"chips": ["v100"], "terms": 64}, plots.STEMS["blocks"]),  # no FP8
        ("blocks", {"chips": ["b200", "rtx5090", "t4", "a30", "h200"], "terms": 64}, plots.STEMS["blocks"]),
        ("tf32", {"chips": ["mi300x"], "size": 4, "k": 16}, plots.STEMS["tf32"]),
        ("tf32", {"chips": ["v100"], "size": 4, "k": 16}, []),  # no TF32
        ("invariance", {"chips": ["t4"], "formats": ["fp16"], "k": 256}, ["invariance"]),
        ("invariance", {"chips": ["a100"], "formats": ["e4m3"], "k": 256}, []),  # no FP8
        ("invariance", {"chips": ["b200", "h100", "l40s"], "formats": ["e4m3"], "k": 256}, ["invariance"]),
    ],
)
def test_other_chips(name: str, parameters: dict[str, object], stems: list[str]) -> None:
    for look in ("page", "slide"):
        pictures = drawn(run(name, **parameters), look)
        assert [stem for stem, _, _ in pictures] == stems
        for stem, figure, alt in pictures:
            assert alt.endswith(".")
            plots.check_texts(figure, stem)


@pytest.mark.parametrize("name", NAMES)
def test_a_library_without_units(name: str) -> None:
    """numpy adds in order and answers nothing else."""
    result = lecture(name, "numpy")[1]
    assert [stem for stem, _, _ in drawn(result)] == (["blocks"] if name == "blocks" else [])
