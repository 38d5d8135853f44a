"""The gallery shows what the experiments find now: titles, labels and numbers of every committed picture.

Lines and glyph positions depend on the matplotlib version; the words do not. ``python -m numsim run --out figures``
makes the gallery anew.
"""

import re
from pathlib import Path

import pytest

from numsim import experiments
from numsim.show.style import save

FIGURES = Path(__file__).parent.parent / "figures"


def words(svg):
    text = svg.read_text("utf-8")
    return [re.sub(r"<[^>]*>", "", t) for t in re.findall(r"<(?:text|title|dc:description)[ >].*?</[^>]+>", text, re.S)]


def test_every_picture_is_in_the_gallery_in_both_forms():
    stems = {p.stem for p in FIGURES.glob("*.svg")}
    assert stems and stems == {p.stem for p in FIGURES.glob("*.png")}


@pytest.mark.parametrize("name", experiments.list_experiments())
def test_committed_pictures_say_what_is_found_now(name, tmp_path):
    result = experiments.run(name)
    for stem, figure, alt in experiments.get_experiment(name).draw(result, "page"):
        save(figure, tmp_path / stem, alt=alt)
        drawn, committed = tmp_path / f"{stem}.svg", FIGURES / f"{stem}.svg"
        for now, then in zip(words(drawn), words(committed), strict=True):
            # parameters and version stand behind the alt text in the description
            assert now == then or then.startswith(now), stem
