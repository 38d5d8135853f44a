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


def test_words_beside_bars_stand_clear_of_the_dotted_line() -> None:
    (_, figure, _) = list(get_experiment("blind-scaler").draw(lecture("blind-scaler")[1], "page"))[1]
    starts = {t.get_text(): t.get_position()[0] for t in figure.axes[0].texts}
    assert all(x < 100 or x > 128 for x in starts.values()) and len(starts) >= 4


def test_stops_and_zeros_of_a_collapse_are_named_with_their_overflows() -> None:
    ((_, figure, _),) = get_experiment("collapse").draw(lecture("collapse")[1], "page")
    words = " ".join(" ".join(t.get_text().split()) for t in figure.axes[0].texts)
    assert "zero: torch, sharded, keras after 166; apex-hysteresis after 167" in words
