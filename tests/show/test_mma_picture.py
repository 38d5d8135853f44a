"""The picture of a lost bit: what is drawn is what was cut; the page is well formed; settings are left alone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from numsim.errors import InputError
from numsim.show import mma_html, mma_rows, mma_words
from numsim.tensorcore import explain_mma

matplotlib = pytest.importorskip("matplotlib")
picture = pytest.importorskip("numsim.show.mma_picture")
style = pytest.importorskip("numsim.show.style")

X = [1] + [2**-7] * 31
K32 = [(-1) ** k * (1 + k % 7) * 2.0 ** -(k % 9) for k in range(32)]
NVFP4 = "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"
CASES = {
    "lost": lambda: explain_mma(X, X, chip="h100", format="e4m3"),
    "kept": lambda: explain_mma(X, X, chip="b200", format="e4m3"),
    "airy": lambda: explain_mma([1.5, 2, -0.001, 3], [1.5, 0.3, 0.7, 2**-14], 0.1, chip="v100"),
    "two blocks": lambda: explain_mma(K32[:16], K32[16:], -1.3, chip="a100"),
    "subnormal": lambda: explain_mma([2**-24, 2**-11], [2**10, 1.0009765625 * 2**-14], chip="h100"),
    "groups": lambda: explain_mma([6, -4] * 16, [1] * 32, 0.1, chip="b200", instruction=NVFP4, scale_a=[2, 2**-9]),
    "all of 32": lambda: explain_mma(K32, K32[::-1], 0.5, chip="h100", format="e4m3"),
    "far": lambda: explain_mma([2**100, 2**-120], [2**20, 2**-10], chip="h100", format="bf16"),
    "nan": lambda: explain_mma([1, float("inf")], [1, 0], chip="h100"),
    "overflow": lambda: explain_mma([2**100], [2**100], chip="h100", format="bf16"),
    "nothing": lambda: explain_mma([0], [0], chip="h100"),
    "fma": lambda: explain_mma([0.1, 0.2], [0.3, 0.4], 0.5, chip="h100", format="fp64"),
    "cdna3": lambda: explain_mma(K32[:8], K32[8:16], 0.1, chip="mi300x"),
}  # fmt: skip


def cut_bits(e) -> int:
    """Digits behind the cut, in all rows; those of the picture, where no row is longer than it shows."""
    panels = mma_rows.panels(e)
    return sum(len(r.digits) - r.kept for p in panels for r in (*p.rows, *p.totals))


def hatched(figure) -> int:
    return sum(patch.get_hatch() is not None for patch in figure.axes[0].patches)


@pytest.mark.parametrize(("look", "theme"), [("page", "light"), ("slide", "dark")])
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_sum_is_drawn(name: str, look: str, theme: str) -> None:
    e = CASES[name]()
    before = dict(matplotlib.rcParams)
    figure = e.draw(look, theme)
    assert dict(matplotlib.rcParams) == before
    texts = figure.axes[0].texts
    shown = " ".join(t.get_text().replace("\n", " ") for t in texts)
    assert mma_words.typeset(mma_words.finding(e)) in shown
    assert figure.get_figwidth() == style.width(look)
    tallest = picture._TALLEST if look == "page" else style.width(look) * 9 / 16
    assert figure.get_figheight() <= tallest * 1.001
    low, high = figure.axes[0].get_ylim()[::-1]
    assert all(low <= t.get_position()[1] <= high for t in texts)
    ends = [t.get_window_extent(figure.canvas.get_renderer()).x1 for t in texts]
    assert max(ends) <= figure.bbox.width and min(t.get_fontsize() for t in texts) >= 4


@pytest.mark.parametrize("name", ["lost", "kept", "airy", "subnormal", "groups", "all of 32", "cdna3"])
def test_what_is_hatched_is_what_was_cut(name: str) -> None:
    e = CASES[name]()
    assert hatched(e.draw()) == cut_bits(e) == mma_html.explanation(e).count(", cut off</title>")
    assert (cut_bits(e) == 0) == (name == "kept")


def test_rows_of_one_picture() -> None:
    panel = mma_rows.panels(CASES["lost"]())[0]
    assert [(r.label, r.times, r.digits, r.kept, r.first, r.setter) for r in panel.rows] == [
        ("k 0", 1, "1", 1, 0, True), ("k 1-31", 31, "001", 2, -12, False),
    ]  # fmt: skip
    assert [(r.kind, r.digits, r.kept) for r in panel.totals] == [
        ("sum", "1" + "0" * 13, 14), ("result", "1" + "0" * 13, 14), ("exact", "100000000011111", 14),
    ]  # fmt: skip
    assert (panel.top, panel.edge, panel.zeros) == (0, -13, 0)
    rounded = mma_rows.panels(explain_mma([1], [1], 2**-24, chip="h100"))[0].totals[0]
    assert (rounded.digits[rounded.kept :], mma_words.note(rounded)) == ("10", "rounding loses 2^-24")
    hollow = mma_rows.panels(CASES["subnormal"]())[0].rows[0]
    assert hollow.digits == "0" * 10 + "1" and mma_words.note(hollow) == "sets E, starts with 0"


def test_several_chips_share_one_axis() -> None:
    pair = [CASES["lost"](), CASES["kept"]()]
    figure = picture.draw_together(pair)
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert "H100, one block: k 0 to 31 and c" in texts and "B200, one block: k 0 to 31 and c" in texts
    places = {t.get_position()[0] for t in figure.axes[0].texts if t.get_text() == "2⁻⁴"}
    assert len(places) == 1  # the same weight stands in the same place
    assert picture.alt(pair).startswith("H100: 31 of 32 products are lost, 1 instead of 1.0018.... B200: ")
    assert "31 times 2^-14, of which 2^-14 is cut off" in picture.alt(pair)


def test_only_the_worst_blocks_are_drawn() -> None:
    x = [1.0, 2**-12] * 16
    e = explain_mma(x, x, 2**10, chip="v100")
    assert len(e.blocks) == 8
    texts = [t.get_text() for t in e.draw().axes[0].texts]
    titles = [t for t in texts if t.startswith("block ")]
    assert len(titles) == mma_rows.MAX_PANELS and titles == sorted(titles)
    assert any("4 blocks not drawn: none loses more than 2⁻²³" in t for t in texts)


AS_FP16 = "mma.m16n8k32.f32.e4m3.e4m3.f32"  # each instruction adds c last: a block without products
TWICE = [0.5] * 60
LOSSLESS = ([2**-12] * 100, [2**-12] * 100, 1)  # 14 blocks of A100, the last without a product


@pytest.mark.parametrize(("a", "b", "c", "chip", "said"), [
    (*LOSSLESS, "a100", ["blocks 2 to 14, not shown: none loses anything, 1 has only zeros"]),
    ([1], [2], 0, "mi250x", ["blocks 2 to 4: only zeros"]),
    ([1], [2], 0, "a100", ["block 2: only zeros"]),
    ([1] * 60, [1] * 60, 1, "l40s", ["blocks 2 to 8, not shown: none loses anything"]),
    (TWICE, TWICE, 0.7, "h100", ["blocks 1 to 2, not shown: none loses anything",
                                 "blocks 3 to 4, not shown: none loses anything"]),
    ([float("inf")] * 24, [1] * 24, 0, "v100", ["blocks 5 to 6, not shown: NaN or infinity stays"]),
])  # fmt: skip
def test_the_count_of_blocks_adds_up(a: list, b: list, c: float, chip: str, said: list[str]) -> None:
    e = explain_mma(a, b, c, chip=chip, instruction=AS_FP16 if a is TWICE else None)
    parts = mma_rows.parts(e)
    assert [p for p in parts if isinstance(p, str)] == said
    assert all(line in str(e).replace("\n ", "") and line in mma_html.explanation(e) for line in said)
    left_out = mma_words.omitted_in_all(e, [p.number for p in parts if not isinstance(p, str)])
    assert left_out.split(" not drawn: ")[1] == said[0].split(": ")[1]


def test_zeros_and_nan_are_drawn_without_a_grid() -> None:
    texts = [t.get_text() for t in CASES["nothing"]().draw().axes[0].texts]
    assert texts[-2:] == ["all 16 products are 0", ""]
    assert mma_words.legend(mma_rows.panels(CASES["nan"]())) == ""
    nan, lost = (CASES[name]().draw().get_figheight() for name in ("nan", "lost"))
    assert nan < 0.45 * lost


@pytest.mark.parametrize("name", ["lost", "two blocks", "all of 32", "subnormal", "airy"])
def test_what_stands_above_the_window_fits_there(name: str) -> None:
    # letters of 13 px are 8 px wide at most, by and large; "cut off" begins where the window ends
    drawn = mma_html.explanation(CASES[name]())
    for x, said in re.findall(r'<text x="([\d.]+)" y="14.5" >([^<]*)</text>', drawn):
        end = re.search(r'<text x="([\d.]+)" y="14.5" fill', drawn[drawn.index(said) :])
        assert float(x) + 8 * len(said) <= (float(end[1]) if end else 10**4)
    assert "a square is a bit" in drawn
    shortened = "E = 0, F = 13" in drawn
    assert shortened == (name in ("lost", "all of 32"))


@pytest.mark.parametrize(("options", "words"), [
    ({"theme": "blue"}, "theme='blue': allowed are light, dark"), ({"style": "poster"}, "allowed are page, slide"),
])  # fmt: skip
def test_wrong_looks(options: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CASES["lost"]().draw(**options)
    with pytest.raises(InputError, match="no explanation"):
        picture.draw_together([])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_files_are_the_same_again_and_say_what_they_show(theme: str, tmp_path: Path) -> None:
    e = CASES["subnormal"]()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        style.save(e.draw("page", theme), tmp_path / folder / "x", alt=picture.alt([e]))
    for suffix in ("png", "svg"):
        data = (tmp_path / "a" / f"x.{suffix}").read_bytes()
        assert data == (tmp_path / "b" / f"x.{suffix}").read_bytes() and b"H100: 1 of 2 products loses bits" in data
    image = matplotlib.image.imread(tmp_path / "a" / "x.png")
    assert tuple(round(float(v) * 255) for v in image[2, 2, :3]) == {"light": (255,) * 3, "dark": (20, 23, 26)}[theme]


# --- HTML -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CASES)
def test_pages_are_well_formed_and_alone(name: str) -> None:
    e = CASES[name]()
    page = mma_html.page(e)
    assert "script" not in page and "http" not in page and "src=" not in page
    ElementTree.fromstring(re.sub(r"^<!DOCTYPE html>|<meta[^>]*>|<br>", "", page))
    assert e._repr_html_() in page and 'content="light dark"' in page
    for block in mma_rows.panels(e):
        for row in block.rows:
            assert f">{mma_words.typeset(mma_words.value_of(row))}</text>" in page


def test_hostile_text_stays_text() -> None:
    from dataclasses import replace

    page = mma_html.page(replace(CASES["lost"](), text="<script>alert(1)</script>"))
    assert "<script" not in page and "&lt;script&gt;" in page
