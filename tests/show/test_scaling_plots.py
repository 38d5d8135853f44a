"""Pictures of loss scaling: they say what was found, in both styles, and no two texts overlap."""

from __future__ import annotations

import pytest

from numsim.experiments import get_experiment
from tests.experiments.runs import lecture, run

pytest.importorskip("matplotlib")
from tests.show.test_plots import check_texts

STEMS = {
    "loss-scaling": ["loss-scaling", "loss-scaling-trace", "loss-scaling-systems"],
    "scale-window": ["scale-window"],
    "blind-scaler": ["blind-scaler", "blind-scaler-zeros"],
    "collapse": ["collapse"],
}


@pytest.mark.parametrize("look", ["page", "slide"])
@pytest.mark.parametrize("name", STEMS)
def test_titles_and_texts(name: str, look: str) -> None:
    pictures = list(get_experiment(name).draw(lecture(name)[1], look))
    assert [stem for stem, _, _ in pictures] == STEMS[name]
    for stem, figure, alt in pictures:
        title = " ".join(figure.get_suptitle().split()).replace("\u00a0", " ")
        assert alt.replace("\u00a0", " ").startswith(title) and len(alt) > len(title) + 20 and alt.endswith(".")
        check_texts(figure, stem)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("loss-scaling", {"interval": 20, "events": "II", "steps": 600}, ["in a healthy run", "after II:"]),
        ("scale-window", {"largest": 1e4, "smallest": 1e-8, "formats": ["fp16"]}, ["FP16 2²"]),
        ("scale-window", {"largest": 0.25, "smallest": 1e-9}, ["0.25 and 1e-09", "FP16 2⁵ to 2¹⁷", "E4M3 none"]),
        ("blind-scaler", {"format": "bf16"}, ["and none overflows", "0 up to 0.001"]),
        ("collapse", {"overflows": 1000, "scale": 3}, ["after 131 of them", "deepspeed raises at 5"]),
    ],
)
def test_other_parameters_other_words(name: str, parameters: dict[str, object], words: list[str]) -> None:
    pictures = list(get_experiment(name).draw(run(name, **parameters), "page"))
    told = " ".join(alt for _, _, alt in pictures)
    assert all(word in told for word in words), told
    for stem, figure, _ in pictures:
        check_texts(figure, stem)
