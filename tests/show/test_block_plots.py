"""Pictures of blocks, tf32 and invariance: the same bytes again, texts on the figure and apart, parts of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from numsim.experiments import get_experiment
from numsim.experiments.experiment import Result
from tests.experiments.runs import lecture, run

pytest.importorskip("matplotlib")
plots = pytest.importorskip("tests.show.test_plots")
style = pytest.importorskip("numsim.show.style")

STEMS = {
    "blocks": ["blocks", "blocks-not-monotonic"],
    "tf32": ["tf32", "tf32-split"],
    "invariance": ["invariance"],
}


def drawn(result: Result, look: str = "page") -> list:
    return list(get_experiment(result.experiment).draw(result, look))


@pytest.mark.parametrize("name", STEMS)
def test_deterministic_files(name: str, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for stem, figure, alt in drawn(lecture(name)[1]):
            style.save(figure, tmp_path / folder / stem, alt=alt)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == sorted(f"{stem}.{kind}" for stem in STEMS[name] for kind in ("png", "svg"))
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


@pytest.mark.parametrize("look", ["page", "slide"])
@pytest.mark.parametrize("name", STEMS)
def test_titles_and_texts(name: str, look: str) -> None:
    pictures = drawn(lecture(name)[1], look)
    assert [stem for stem, _, _ in pictures] == STEMS[name]
    for stem, figure, alt in pictures:
        title = " ".join(figure.get_suptitle().split()).replace("\u00a0", " ")
        assert alt.startswith(title) and len(alt) > len(title) and alt.endswith(".")
        plots.check_texts(figure, stem)


def test_titles_are_findings() -> None:
    """The sentence over a picture is one of the result's own."""
    for name in STEMS:
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
        ("blocks", {"chips": ["v100"], "terms": 64}, STEMS["blocks"]),  # no FP8
        ("blocks", {"chips": ["b200", "rtx5090", "t4", "a30", "h200"], "terms": 64}, STEMS["blocks"]),
        ("tf32", {"chips": ["mi300x"], "size": 4, "k": 16}, STEMS["tf32"]),
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


@pytest.mark.parametrize("name", STEMS)
def test_a_library_without_units(name: str) -> None:
    """numpy adds in order and answers nothing else."""
    result = lecture(name, "numpy")[1]
    assert [stem for stem, _, _ in drawn(result)] == (["blocks"] if name == "blocks" else [])
