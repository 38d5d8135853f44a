"""Pictures of accumulator, kept-bits and chips: what they say is true; other chips and formats; partial results."""

from __future__ import annotations

from typing import Any

import pytest

from numsim.experiments import get_experiment
from tests.experiments.runs import lecture, run

pytest.importorskip("matplotlib")
from tests.show.test_plots import check_texts


def drawn(result: Any, look: str = "page") -> list[Any]:
    return list(get_experiment(result.experiment).draw(result, look))


def test_findings_are_the_numbers() -> None:
    (_, _, normal), (_, _, drift) = drawn(lecture("accumulator")[1])
    ways = {
        kind: next(w for w in data if w["chips"] == ["H100"] and w["format"] == "E4M3")
        for kind, data in lecture("accumulator")[1].series["errors"].items()
    }
    assert f"more than {100 * ways['normal']['median'][-1]:.2g} % on H100" in normal
    assert f"{-100 * ways['positive']['mean'][-1]:.2g} % too small on H100" in drift
    ((_, _, kept),) = drawn(lecture("kept-bits")[1])
    assert "still count at 2⁻²³ on V100; at 2⁻²⁴ on T4, A100 and L40S; at 2⁻²⁵ on H100" in kept
    ((_, figure, _),) = drawn(lecture("chips")[1])
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert texts.count("same") == len(lecture("chips")[1].series["FP16"]["groups"]) and len(texts) == 64


def test_one_chip_is_held_against_sums_in_order() -> None:
    result = run("chips", chips=["t4"], size=8, k=32)
    ((_, _, alt),) = drawn(result)
    data = result.series["FP16"]
    share = 100 * data["differ"][0][data["groups"].index(["FP32 in order"])] / data["outputs"]
    assert f"FP16 matrices: T4 differs from FP32 in order in {share:.0f} %" in alt and "all chips" not in alt
    ((_, _, alt),) = drawn(run("chips", chips=["a100", "a30"], size=4, k=32))
    assert "all chips asked give the same bits" in alt


def test_formats_that_no_chip_has_are_no_panels() -> None:
    (_, figure, normal), (_, drift, _) = drawn(run("accumulator", chips=["t4"], longest=256, outputs=4))
    for picture in (figure, drift):
        assert [axes.get_title("left") for axes in picture.axes] == ["FP16 products"]
    assert "E4M3" not in normal and "under 0" not in normal and "e-0" in normal.partition(" on T4")[0]


@pytest.mark.parametrize("look", ["page", "slide"])
def test_other_choices_are_drawn(look: str) -> None:
    """One chip, chips without a look of their own, three formats, every chip at once."""
    small: dict[str, Any] = {"longest": 256, "outputs": 4}
    newer = ["rtx5090", "h200", "rtx4090"]
    results = [
        run("accumulator", chips=["h200"], formats=["bf16"], **small),
        run("accumulator", chips=newer, formats=["e4m3", "fp16", "bf16"], **small),
        run("accumulator", chips=["v100"], formats=["e4m3", "fp16"], **small),  # none for E4M3
        run("kept-bits", chips=["h200"], terms=16),
        run("kept-bits", **get_experiment("kept-bits").full),
        run("chips", chips=["a100", "a30"], size=4, k=32),
        run("chips", chips=newer, size=4, k=32, formats=["e4m3", "tf32"]),
    ]
    pictures = [picture for result in results for picture in drawn(result, look)]
    assert [stem for stem, _, _ in pictures] == [
        *["accumulator", "accumulator-drift"] * 3, "kept-bits", "kept-bits", "chips", "chips", "chips-tf32",
    ]  # fmt: skip
    for stem, figure, alt in pictures:
        assert alt.endswith(".")
        check_texts(figure, stem)


@pytest.mark.parametrize("name", ["accumulator", "kept-bits", "chips"])
def test_without_a_chip_there_is_no_picture(name: str) -> None:
    assert drawn(lecture(name, "numpy")[1]) == []
