"""Pages and tables of suites: everything that was recorded is told, hostile texts are text, nothing is loaded."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from numsim.errors import InputError, RecordError
from numsim.machines import get_machine
from numsim.machines.question import ask
from numsim.machines.recorded import Record
from numsim.machines.verdict import Difference, Verdict
from numsim.show import suite_page, suite_text, text
from numsim.show.style import headline, new_picture, settings
from numsim.suites.statistics import ANY_ORDER, UNDECIDED
from numsim.suites.suite import Row, Suite
from tests.show.test_html import Reader

EVIL = "<script>alert(1)</script>\"'&"
MODEL = "mma.m16n8k16.f32.f16.f16.f32"
DIFFERENCE = Difference("mma f16 -> f32", (3, 4), (), "0x1 = 1e-45", "0x2 = 3e-45", "")


def figures(record, style):
    drawn = []
    with settings(style):
        for n in range(2):  # alike, so that their names would clash
            figure = new_picture(style, 0.5)
            figure.add_subplot().plot([1, 2], [1, 2], marker="o", clip_on=True)
            headline(figure, f"Finding {n}")
            drawn.append((f"stem{n}", figure, f"picture {n}, {EVIL}"))
    return drawn


SUITE = Suite("tensorcore", "Tensor cores", "Is it so & why?", lambda c: None, lambda r: [], figures, ("A source",))


def parts(family, count):
    return [f"{family}.m16n8k{8 + n}.f32.f16.f16.f32" for n in range(count)]


def same(part, n=256):
    return Row(part, Verdict("cuda", "emulated", compared=n, equal=n))


def skipped(part, why, note=""):
    return Row(part, Verdict("cuda", "emulated", skipped={why: 1}), note)


def record(rows, chip="a100", **provenance):
    """A record whose parts are those that were answered, each with two questions."""
    one = np.zeros((1, 16), np.uint16), np.zeros((1, 16), np.uint16), np.zeros(1, np.uint32)
    q = ask("mma", ["fp16", "fp16", "fp32"], "fp32", one, chip=chip, instruction=MODEL)
    answer = get_machine("emulated").answer(q)
    answered = [row.part for row in rows if row.verdict.compared for _ in range(2)]
    facts = {"machine": "cuda", "device": f"NVIDIA {chip.upper()}", "compute_capability": "8.0", **provenance}
    return Record("0.1.0", facts, ((q, answer),) * len(answered), suite="tensorcore", parts=tuple(answered))


GOOD = [*map(same, parts("mma", 14)), *map(same, parts("wgmma", 3)), same("wmma.m16n16k8.f32.tf32.tf32.f32")]
DIFFERS = Row(
    "mma.m16n8k32.f32.e4m3.e4m3.f32",
    Verdict("cuda", "emulated", compared=100, equal=99, unexplained=1, shown=(DIFFERENCE,)),
)
DOCUMENTED = Row(
    "mma.m8n8k4.f64.f64.f64.f64",
    Verdict("cuda", "emulated", compared=10, equal=8, documented={"ties away": 2}, reasons={"ties away": ("It rounds "
            "ties away from zero", "IEEE 754 is")}, shown=(replace(DIFFERENCE, reason="ties away"),)),
)  # fmt: skip
SKIPPED = [skipped(part, "needs compute capability 9.0") for part in parts("tcgen05", 6)]
FAILED = [skipped("emulator", "out of memory", "FAILED: out of memory")]
TOLD = Row("loss", Verdict("cuda", "torch-cpu"), "0.1, this CPU 0.2")
BOUNDED = Row("torch.sum fp32", Verdict("cuda", "emulated", compared=4, equal=3, documented={ANY_ORDER: 1}))
ALL = [*GOOD, TOLD, DIFFERS, DOCUMENTED, BOUNDED, *SKIPPED, *FAILED]


def read(page):
    return Reader(page.replace("<wbr>", ""))  # places to break a line, which have no end


def lines(rows, **options):
    return text.plain(suite_page.table_lines(SUITE, record(rows), rows, **options))


# --- the table --------------------------------------------------------------------------------------------------------
def test_parts_that_come_to_the_same_share_a_row():
    shown = lines(GOOD)
    assert re.search(r"^mma, 14 instructions +3,584 +0  same bits$", shown, re.MULTILINE)
    assert re.search(r"^wgmma, 3 instructions +768 +0  same bits$", shown, re.MULTILINE)
    assert re.search(r"^wmma\.m16n16k8\.f32\.tf32\.tf32\.f32 +256 +0  same bits$", shown, re.MULTILINE)
    assert "Same bits in 18 of 18 instructions: 36 questions, 4,608 results." in shown
    assert len(shown.splitlines()) == 10


def test_a_part_that_differs_stands_alone_and_shows_how():
    shown = lines([*GOOD, DIFFERS, replace(DIFFERS, part="mma.m16n8k32.f32.e5m2.e5m2.f32")])
    for part in (DIFFERS.part, "mma.m16n8k32.f32.e5m2.e5m2.f32"):
        assert re.search(rf"^{part} +100 +1  1 UNEXPLAINED$", shown, re.MULTILINE)
        assert f"UNEXPLAINED in {part}:" in shown
    assert shown.count("    at [3, 4]: GPU 0x1 = 1e-45, numsim 0x2 = 3e-45") == 2
    assert "2 WITH UNEXPLAINED DIFFERENCES" in shown


def test_few_differences_are_shown():
    many = replace(DIFFERS.verdict, unexplained=1234, shown=(DIFFERENCE,) * 10)
    shown = lines([Row(f"part {n}", many) for n in range(9)])
    assert shown.count("GPU 0x1") == 20 and shown.count("    1,231 more: --json") == 6 and "part 7:" not in shown
    assert "No more are shown here: --json has" in shown and re.search(r"^part 8 .*  1,234 UNEXPLAINED$", shown, re.M)


def test_what_is_not_compared_is_counted():
    rec = record([TOLD, *GOOD])
    q, answer = rec.answers[0]
    rec = replace(rec, answers=((replace(q, arrays=q.arrays), replace(answer, codes=np.zeros(5000, np.uint32))),))
    said = suite_text.summary(rec, [TOLD, *GOOD])
    assert "4,608 results of 5,000; the others are told, not compared bit by bit." in said


def test_a_record_without_what_the_suite_is_for_says_so_first():
    suite = replace(SUITE, lacks=lambda record: "nothing was asked: no <driver>", words=("c: a number",))
    shown = text.plain(suite_page.table_lines(suite, record(GOOD), GOOD))
    assert "Nothing was asked: no <driver>. Same bits in 18" in " ".join(shown.split()) and "c: a number" not in shown
    page = suite_page.page(suite, record(GOOD), GOOD)
    assert '<p class="verdict skipped">' in page and "Nothing was asked: no &lt;driver&gt;. Same" in page


def test_words_are_told_where_there_are_some():
    suite = replace(SUITE, words=("c: a number", "d: another"))
    assert "\nwords     c: a number\n          d: another\n" in text.plain(
        suite_page.table_lines(suite, record(SKIPPED), SKIPPED)
    )
    assert "c: a number." in read(suite_page.page(suite, record(GOOD), GOOD)).words


def test_what_is_missing_is_told_by_reason():
    shown = lines(ALL)
    assert "skipped   needs compute capability 9.0: 6 tcgen05 instructions" in shown
    assert "FAILED    out of memory: emulator" in shown
    assert "1 FAILED, 6 skipped." in " ".join(shown.split())
    assert "ties away: It rounds ties away from zero." in shown and "IEEE 754 is" not in shown


def test_what_is_missing_of_a_part_with_answers():
    rec = replace(record(GOOD), skipped={GOOD[0].part: "torch has no float8"})
    shown = text.plain(suite_page.table_lines(SUITE, rec, GOOD))
    assert f"torch has no float8: of {GOOD[0].part} in part" in " ".join(shown.split())
    assert "torch has no float8, in part: " + GOOD[0].part in read(suite_page.page(SUITE, rec, GOOD)).words


def test_full_has_a_row_for_every_part():
    shown = lines(ALL, full=True)
    for row in ALL:
        assert re.search(rf"^{re.escape(row.part)} ", shown, re.MULTILINE), row.part
    assert "IEEE 754 is." in shown


def test_a_note_stands_for_the_verdict():
    rows = [
        Row("torch.matmul fp16", Verdict("cuda", "emulated", compared=4, equal=4), "same bits: 4 lanes"),
        *GOOD,
    ]
    shown = lines(rows)
    assert re.search(r"^torch.matmul fp16 +4 +0  same bits: 4 lanes$", shown, re.MULTILINE)
    assert "Same bits in 19 of 19 parts" in shown


def test_what_is_told_is_not_compared():
    shown = lines([TOLD, *GOOD])
    assert re.search(r"^loss +- +-  0.1, this CPU 0.2$", shown, re.MULTILINE)
    assert "Same bits in 18 of 18" in shown


def test_a_first_recording_is_the_evidence():
    known = suite_text.evidence(record(GOOD))
    assert known == "Held against numsim's models of A100 (Ampere, sm_80), all confirmed by recorded results."
    new = record(GOOD, chip="a30")
    assert "1 of 1 instruction had no recorded results: this run is the evidence." in suite_text.evidence(new)
    assert suite_text.evidence(new) in suite_page.page(SUITE, new, GOOD).replace("&#x27;", "'")
    assert "this run is the evidence" in " ".join(text.plain(suite_page.table_lines(SUITE, new, GOOD)).split())
    assert suite_text.evidence(record(GOOD, chip="a30", machine="emulated")) == ""
    other = suite_text.evidence(record(GOOD, chip="a30", device="NVIDIA A30X"))
    assert other == "Held against numsim's models of A30 (Ampere, sm_80), which is not this GPU."


def test_other_things_are_called_parts():
    rows = [same("kept-bits: f16"), same("kept-bits: bf16"), *GOOD]
    assert "kept-bits, 2 parts" in lines(rows) and "20 of 20 parts" in lines(rows)


def test_what_a_suite_finds_stands_below_the_table():
    suite = replace(SUITE, notes=lambda record, rows: [f"{len(rows)} rows of <{record.machine}>", "more"])
    shown = text.plain(suite_page.table_lines(suite, record(GOOD), GOOD))
    assert "found     18 rows of <cuda>\n          more" in shown
    assert "<li>18 rows of &lt;cuda&gt;</li><li>more</li>" in suite_page.page(suite, record(GOOD), GOOD)


def test_nothing_answered():
    shown = lines(SKIPPED)
    assert "6 skipped." in shown and "needs compute capability 9.0" in shown and "same bits" not in shown
    assert "needs compute capability 9.0" in suite_page.page(SUITE, record(SKIPPED), SKIPPED)


@pytest.mark.parametrize("full", [False, True])
def test_the_table_fits_80_columns_and_is_ascii(full):
    long = "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"
    rows = [*ALL, same(long, 10**9), skipped("x " * 40, "y" * 300)]
    shown = lines(rows, full=full)
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.isascii()


# --- the page ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def page():
    return suite_page.page(SUITE, record(ALL, driver=EVIL), ALL)


def test_the_page_is_well_formed_and_loads_nothing(page):
    reader = read(page)
    assert page.startswith("<!DOCTYPE html>") and reader.tags.count("h1") == 1
    assert not re.search(r"https?:|<link|<img|<script|@import|src=|\son\w+=", page)
    assert all(value.startswith("#") for name, value in reader.attributes if name == "href")
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_the_page_tells_everything(page):
    words = read(page).words
    for row in ALL:
        assert row.part in words, row.part
    for said in (
        "Tensor cores: NVIDIA A100", "Is it so & why?", "compute capability8.0", "needs compute capability 9.0",
        "out of memory", "at [3, 4]: GPU 0x1 = 1e-45, numsim 0x2 = 3e-45",
        "It rounds ties away from zero. IEEE 754 is.",
        "numsim check FILE.npz", "numsim record --suite tensorcore --machine cuda", "numsim doctor", "A source",
        suite_text.summary(record(ALL), ALL),
    ):  # fmt: skip
        assert said in words, said


def test_hostile_texts_are_text():
    evil = Row(EVIL, Verdict(EVIL, EVIL, compared=2, documented={EVIL: 1}, unexplained=1, reasons={EVIL: (EVIL, EVIL)},
               shown=(Difference(EVIL, (), (EVIL,), EVIL, EVIL, ""),)))  # fmt: skip
    rows = [evil, skipped(EVIL + "2", EVIL), skipped(EVIL + "3", EVIL, f"FAILED: {EVIL}")]
    rec = record(rows, machine=EVIL, device=EVIL, driver=EVIL)
    suite = replace(SUITE, name=EVIL, title=EVIL, question=EVIL, sources=(EVIL,))
    page = suite_page.page(suite, rec, rows)
    assert "<script" not in page and "&lt;script&gt;" in page
    assert read(page).words.count(EVIL) >= 12


def test_marks_say_it_without_colour():
    rows = [*ALL, Row("torch.sum fp16", Verdict("cuda", "emulated", skipped={UNDECIDED: 4}))]
    page = suite_page.page(SUITE, record(rows), rows)
    for kind, mark in suite_page.MARKS.items():
        assert re.search(
            rf'class="{kind}".*?<span class="mark" title="[^"]+">{re.escape(mark)}</span>', page, re.DOTALL
        ), kind
    assert len(set(suite_page.MARKS.values())) == len(suite_page.MARKS) == len(suite_text.WORDS)
    assert '<p class="verdict differs">' in page
    assert '<p class="verdict same">' in suite_page.page(SUITE, record(GOOD), GOOD)
    assert '<p class="verdict skipped">' in suite_page.page(SUITE, record(SKIPPED), SKIPPED)


def test_light_and_dark_have_the_same_colours_to_set(page):
    light = set(re.findall(r"(--\w+):", re.search(r":root\{(.*?)\}", page)[1]))
    dark = re.search(r"prefers-color-scheme:dark\)\{:root\{(.*?)\}\}", page)[1]
    assert light == set(re.findall(r"(--\w+):", dark)) and len(light) == 7
    assert set(re.findall(r"var\((--\w+)\)", page)) <= light
    assert "color-scheme:light dark" in page


def test_pictures_are_in_the_page_with_names_of_their_own(page):
    reader = read(page)
    assert reader.tags.count("svg") == 2
    labels = [value for name, value in reader.attributes if name == "aria-label"]
    assert labels == [f"picture {n}, {EVIL}" for n in range(2)]
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(set(ids)) == len(ids) and {i.partition("-")[0] for i in ids} == {"picture0", "picture1"}
    used = [*re.findall(r"url\(#([^)]+)\)", page), *(v[1:] for n, v in reader.attributes if n == "href")]
    assert used and set(used) <= set(ids)
    assert "metadata" not in reader.tags and "xmlns" not in page


def test_slides_are_larger_and_other_styles_refused():
    assert "1152pt" not in suite_page.page(SUITE, record(GOOD), GOOD)
    assert 'width="864pt"' in suite_page.page(SUITE, record(GOOD), GOOD, style="slide")
    with pytest.raises(InputError, match="style='poster'"):
        suite_page.page(SUITE, record(GOOD), GOOD, style="poster")


def test_without_matplotlib_the_page_says_so(monkeypatch):
    def draw(record, style):
        import matplotlib  # noqa: F401

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = suite_page.page(replace(SUITE, draw=draw), record(GOOD), GOOD)
    assert "matplotlib does not load here" in page and "<svg" not in page
    assert re.search("Same bits in 18 of 18", page)


def test_what_cannot_be_drawn_leaves_the_rest():
    def draw(record, style):
        raise RecordError(f"no trace {EVIL}")

    page = suite_page.page(replace(SUITE, draw=draw), record(GOOD), GOOD)
    assert (
        f"No picture: they cannot be drawn (no trace {EVIL})." in read(page).words and "Same bits in 18 of 18" in page
    )


def test_written_whole(tmp_path):
    path = suite_page.write(tmp_path / "page.html", SUITE, record(GOOD), GOOD)
    assert path.read_text("utf-8") == suite_page.page(SUITE, record(GOOD), GOOD)
    with pytest.raises(InputError, match="cannot write"):
        suite_page.write(tmp_path / "none" / "page.html", SUITE, record(GOOD), GOOD)
