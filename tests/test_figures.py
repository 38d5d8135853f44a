"""The gallery shows what the experiments find now: titles, labels and numbers of every committed picture.

Lines and glyph positions depend on the matplotlib version; the words do not. ``python -m tests.test_figures`` makes the
gallery anew: what ``numsim run`` draws, and explanations of tensor cores.
"""

import re
from pathlib import Path

import pytest

from numsim import cli, experiments
from numsim.show import mma_picture
from numsim.show.style import save
from numsim.tensorcore import explain_mma

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


SUMS = {  # pictures of lost bits: the same sum on some chips
    "lost-bit": (["h200", "b200"], "e4m3", [1.0] + [2.0**-7] * 31, [1.0] + [2.0**-7] * 31, 0),
    "lost-bits": (
        ["h200"], "fp16",
        [0.98, -3.4, 0.31, 41.5, 0.0107, 0.62, -1.7, 0.14, 0.4, -40.75, 0.93, 0.27, 0.033, -0.9, 1.6, 0.11],
        [1.02, 0.7, 1.3, 3.27, -1.05, 0.53, 0.64, 0.8, 0.39, 3.33, 0.47, 0.35, 2.1, 0.75, 0.58, 1.04], 0.37,
    ),
}  # fmt: skip


def draw_sum(name, folder):
    chips, format, a, b, c = SUMS[name]
    told = [explain_mma(a, b, c, chip=chip, format=format) for chip in chips]
    return save(mma_picture.draw_together(told), folder / name, alt=mma_picture.alt(told))


@pytest.mark.parametrize("name", SUMS)
def test_pictures_of_lost_bits_say_what_is_found_now(name, tmp_path):
    draw_sum(name, tmp_path)
    assert words(tmp_path / f"{name}.svg") == words(FIGURES / f"{name}.svg")


if __name__ == "__main__":
    cli.main(["run", "--out", str(FIGURES)])
    for each in SUMS:
        draw_sum(each, FIGURES)
