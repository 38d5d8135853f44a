"""numsim chips: the table, the cards and the pages against the records themselves."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import numsim
from numsim.cli import main
from numsim.show import chips as show
from numsim.show import chips_text
from numsim.show.text import plain
from numsim.tensorcore import get_model, list_chips, list_models, mma
from numsim.tensorcore.chips import SOURCES, TITLES

H200 = "mma.m16n8k16.f32.f16.f16.f32"


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert main(["chips", *argv]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 and line.isascii() for line in lines)
    return lines


def joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


# --- the table --------------------------------------------------------------------------------------------------------
def test_the_table_counts_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys)
    rows = {line.split()[0]: line.split() for line in lines[1 : len(list_chips()) + 1]}
    assert list(rows) == list(list_chips())
    for chip, row in rows.items():
        levels = [m.evidence.level for m in list_models(chip)]
        counts = [0 if n == "-" else int(n) for n in row[-6:-2]]
        assert counts == [len(levels), *(levels.count(level) for level in show.LEVELS)]
        assert " ".join(row[1:-6]) in TITLES[chip].replace(",", "")


def test_the_table_tells_what_is_known_of_the_widths(capsys: pytest.CaptureFixture[str]) -> None:
    """The one finding of a chip, from the papers' tables and not from numsim's."""
    lines = shown(capsys)
    last = {line.split()[0]: line.split()[-2:] for line in lines[1 : len(list_chips()) + 1]}
    assert last["v100"] == ["4x23", "-"] and last["a100"] == ["8x24", "-"] and last["l40s"] == ["8x24", "16x13"]
    assert last["h200"] == ["16x25", "32x13"] and last["b200"] == ["16x25", "32x25"]
    assert last["mi100"] == ["4", "-"] and last["mi300x"] == ["8x24", "16x24"]
    assert "FP8 sums keep 13 bits on l40s, rtx4090, rtx1000ada, h100, h200." in lines


# --- cards ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chip", list_chips())
def test_every_card_holds_every_record(chip: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = joined(shown(capsys, chip))
    models = list_models(chip)
    assert text.startswith(f"{TITLES[chip]} {chip} {len(models)} instructions: ")
    assert sum(len(g.models) for g in show.groups(chip)) == len(models)
    for source in {s for m in models for s in m.evidence.sources}:
        assert " ".join(SOURCES[source].split()) in text
    for m in models:
        assert m.evidence.note in text and m.unit.output in text
        assert all(recording in text for recording in m.evidence.recordings)
    assert ("Recordings:" in text) == any(m.evidence.recordings for m in models)
    assert "Not modelled:" in text and ("cta_group::2" in text) != chip.startswith("mi")


@pytest.mark.parametrize("chip", list_chips())
def test_the_spellings_on_a_card_are_those_of_its_records(chip: str) -> None:
    """What a card prints is a name when types and shapes are put in, and of no other record."""
    for group in show.groups(chip):
        names, written = {m.instruction for m in group.models}, set()
        if chip.startswith("mi"):
            written = set(group.names)
        else:
            name = group.names[0]
            shapes = group.names[1].removeprefix("SHAPE: ").split(", ") if "SHAPE" in name else [""]
            for shape in shapes:
                for a, b in {(m.a, m.b) for m in group.models}:
                    if ".A.A" in name:
                        assert a == b
                    written.add(re.sub(r"\.A\.[AB]", f".{a}.{b}", name.replace("SHAPE", shape)))
        assert written == names


def test_a_group_computes_alike() -> None:
    for chip in list_chips():
        for group in show.groups(chip):
            first = group.first
            for m in group.models:
                assert (m.unit, m.c, m.d, m.scale, m.scale_block) == (
                    first.unit, first.c, first.d, first.scale, first.scale_block
                )  # fmt: skip
                assert (m.evidence.level, m.evidence.note) == (first.evidence.level, first.evidence.note)
                assert f"{m.a} x {m.b}" in group.operands or (m.a in group.operands and m.b in group.operands)


def test_blocks_that_are_not_filled(capsys: pytest.CaptureFixture[str]) -> None:
    text = joined(shown(capsys, "h200"))
    assert "K 8: 1 block of 8; L up to 16, F 25" in text and "K 16: 1 block of 16; L 16, F 25" in text


def test_chains() -> None:
    """Blocks of an instruction as section 3 of Xie et al. has them."""
    cases = {
        ("v100", "mma.m8n8k4.f32.f16.f16.f32"): "K 4: 1 block of 4",
        ("a100", "mma.m16n8k16.f32.f16.f16.f32"): "K 16: 2 blocks of 8",
        ("l40s", "mma.m16n8k32.f32.e4m3.e4m3.f32"): "K 32: 2 blocks of 16",
        ("h200", "mma.m16n8k8.f32.f16.f16.f32"): "K 8: 1 block of 8",
        ("h200", "wgmma.m64n256k32.f32.e4m3.e4m3"): "K 32: 1 block of 32",
        ("h200", "mma.m16n8k16.f16.e4m3.e4m3.f16"): "K 16: 2 blocks of 8",
        ("b200", "tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0"): "K 64: 1 block, 4 groups of 16",
        ("a100", "mma.m8n8k4.f64.f64.f64.f64"): "K 4: 4 fused multiply-adds",
        ("mi300x", "mfma.f32_16x16x1_4b_f32"): "K 1: 1 fused multiply-add",
        ("mi300x", "mfma.f32_16x16x32_fp8_bf8"): "K 32: 2 blocks of 16",
    }
    for (chip, instruction), words in cases.items():
        assert show.chain(get_model(chip, instruction)) == words


# --- one instruction --------------------------------------------------------------------------------------------------
def test_one_instruction(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "h200", H200)
    text = joined(lines)
    assert lines[0] == H200 and "on the H200 (Hopper, sm_90)" in text
    assert "E is the largest exponent of the products and c, at least -133" in text
    assert "a multiple of 2^(E-25)" in text and "0x7fffffff" in text and "recorded: H200 fp16 -> fp32" in text
    assert "Computed alike on h100, b200, rtx5090, rtxpro6000." in text
    full = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    assert shown(capsys, "mi300x", "v_mfma_f32_16x16x32_fp8_fp8")[0] == "mfma.f32_16x16x32_fp8_fp8"
    assert shown(capsys, "NVIDIA H200", full) == shown(capsys, "h200", "--instruction", full) == lines


def test_cdna3_computes_as_its_steps_say() -> None:
    """A sum in fractions with the numbers that the steps name, against ``mma``."""
    rng = np.random.default_rng(8)
    for instruction, bits, emin in (("mfma.f32_32x32x8_f16", 16, -14), ("mfma.f32_32x32x16_fp8_fp8", 8, -7)):
        model = get_model("mi300x", instruction)
        words = " ".join(show.steps(model))
        f, sum_bits, c_bits = (int(n) for n in (re.findall(r"2\^\(E-(\d+)\)", words)[i] for i in (0, -2, -1)))
        last = int(re.findall(r"down to (\d+) bits behind", words)[0])
        drop = int((re.findall(r"below E - (\d+) is dropped", words) or [999])[0])
        apart = 2 if "odd k" in words else 1

        def exponent(x: Fraction, least: int) -> int:
            return max(math.frexp(x)[1] - 1, least) if x else least

        def multiple(x: Fraction, e: int, rule: Callable[[Fraction], int]) -> Fraction:
            return rule(x / Fraction(2) ** e) * Fraction(2) ** e

        a, b = rng.integers(0, 2**bits, (2, 400, model.k)).astype(f"uint{bits}")
        c = (rng.standard_normal(400) * 2.0 ** rng.integers(-40, 40, 400)).astype(np.float32)
        numbers = np.stack([numsim.decode(x, model.formats[0]) for x in (a, b)])
        got = mma(a, b, c.view(np.uint32), chip="mi300x", instruction=instruction)
        for row in np.flatnonzero(np.isfinite(numbers).all(axis=(0, 2))):
            pairs = [(Fraction(x), Fraction(y)) for x, y in zip(*(n[row].tolist() for n in numbers), strict=True)]
            sums = []
            for part in (pairs[i::apart] for i in range(apart)):
                e = max(exponent(x, emin) + exponent(y, emin) for x, y in part if x * y)
                sums.append((e, sum(multiple(x * y, e - f, math.trunc) for x, y in part)))
            top = max(e for e, _ in sums)
            total = sum(multiple(s, top - f, math.floor) for _, s in sums) if apart > 1 else sums[0][1]
            start = Fraction(float(c[row]))
            both = max(top, exponent(start, -126))
            total = multiple(total, both - sum_bits, math.floor)
            if exponent(start, -126) >= both - drop:
                total += multiple(start, both - c_bits, math.floor)
            total = multiple(total, exponent(total, -126) - last, math.floor)
            assert got[row] == numsim.encode(total, "fp32"), (instruction, row)


@pytest.mark.parametrize("chip", list_chips())
def test_every_instruction_has_its_sheet(chip: str) -> None:
    for m in list_models(chip):
        lines = plain(chips_text.sheet(m)).splitlines()
        assert all(len(line) <= 80 and line.isascii() for line in lines)
        assert lines[0] == m.instruction and f" {m.evidence.level}: {show.LEVELS[m.evidence.level]}" in " " + joined(
            lines
        )


# --- JSON -------------------------------------------------------------------------------------------------------------
def test_json_of_all_chips(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chips", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [d["chip"] for d in data] == list(list_chips())
    for d in data:
        assert d["instructions"] == [m.instruction for m in list_models(d["chip"])]
        assert sum(d["evidence"].values()) == len(d["instructions"])


@pytest.mark.parametrize("chip", ["h200", "b200", "mi300x"])
def test_json_of_a_chip_leaves_nothing_out(chip: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["chips", chip, "--json", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert (tmp_path / f"chips-{chip}.json").read_text("utf-8") == out
    assert (tmp_path / f"chips-{chip}.txt").read_text("utf-8").splitlines() == shown(capsys, chip)
    data = json.loads(out)
    for d, m in zip(data["models"], list_models(chip), strict=True):
        assert {k: d[k] for k in ("chip", "instruction", "k", "a", "b", "c", "d")} == {
            k: getattr(m, k) for k in ("chip", "instruction", "k", "a", "b", "c", "d")
        }
        assert d["unit"] == vars(m.unit) and (d["scale"] or "", d["scale_block"] or 0) == (m.scale, m.scale_block)
        assert d["evidence"]["sources"] == {s: SOURCES[s] for s in m.evidence.sources}
        assert d["evidence"]["recordings"] == list(m.evidence.recordings)
        assert int(d["nan"], 16) == m.nan
    assert main(["chips", chip, data["models"][0]["instruction"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == data["models"][0]


# --- pages ------------------------------------------------------------------------------------------------------------
class Page(HTMLParser):
    """The tags that are open, all attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def page(capsys: pytest.CaptureFixture[str], file: Path, *argv: str) -> tuple[str, Page]:
    assert main(["chips", *argv, "--html", "--out", str(file)]) == 0
    assert capsys.readouterr().out == ""
    text = file.read_text("utf-8")
    parsed = Page(text)
    assert not parsed.open and "prefers-color-scheme:dark" in text and "width=device-width" in text
    assert "<script" not in text and "http" not in text and "url(" not in text and "@import" not in text
    for tag, name, value in parsed.attributes:
        assert name not in ("src", "href", "srcset") and not name.startswith("on"), (tag, name, value)
    return text, parsed


@pytest.mark.parametrize("chip", list_chips())
def test_every_chip_has_a_page(chip: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, parsed = page(capsys, tmp_path / "x.html", chip)
    for group in show.groups(chip):
        assert all(name in parsed.words for name in group.names) and group.first.evidence.note in parsed.words
    cut = {m.unit.fraction_bits for m in list_models(chip) if m.unit.path in ("block", "groups", "fp8-as-fp16")}
    assert text.count("<svg") == len(cut) and all(f"2^(E-{f}): cut" in parsed.words for f in cut)
    assert text.count('<section class="card') == len(show.groups(chip))


def test_the_other_pages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, parsed = page(capsys, tmp_path / "all.html")
    assert text.count("<tr>") == 1 + len(list_chips()) and "rtxpro6000" in parsed.words
    text, parsed = page(capsys, tmp_path / "one.html", "h200", H200)
    assert text.count("<svg") == 1 and "at least -133" in parsed.words
    text, parsed = page(capsys, tmp_path / "amd.html", "mi300x")
    assert text.count("<ol>") == 2 and "a c whose exponent is below E - 25 is dropped" in parsed.words
    text, parsed = page(capsys, tmp_path / "fma.html", "h200", "mma.m16n8k16.f64.f64.f64.f64")
    assert "<svg" not in text and "one fused multiply-add after another" in parsed.words


def test_bars_are_as_long_as_their_bits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """13 kept bits of an FP8 block, 25 of an FP16 one; an FP32 c is cut where 2 + 24 bits go beyond F."""
    for argv, f in ((("h200", "wgmma.m64n256k32.f32.e4m3.e4m3"), 13), (("h200", H200), 25)):
        text, parsed = page(capsys, tmp_path / "x.html", *argv)
        lines = [float(v) for t, n, v in parsed.attributes if t == "line" and n == "x1"]
        bit = (lines[1] - lines[0]) / f
        kept = [float(v) for v in re.findall(r'class="kept"[^/]* width="([\d.]+)"', text)]
        lost = [float(v) for v in re.findall(r'class="lost"[^/]* width="([\d.]+)"', text)]
        product = 8 if f == 13 else 22
        assert round(kept[0] / bit) == product  # the largest product fits
        assert round(kept[3] / bit) == f - 2 and any(round(w / bit) == 2 + 24 - f for w in lost)  # c
        assert round(kept[5] / bit, 1) == (14 if f == 13 else 24)  # what is left of the sum in d


def test_a_page_without_a_place_goes_to_the_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["chips", "b200", "--html"]) == 0
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.*")] == ["numsim-results/chips-b200.html"]
    assert main(["chips", "b200", "--out", "x"]) == 0
    assert {p.name for p in (tmp_path / "x").iterdir()} == {f"chips-b200.{s}" for s in ("html", "json", "txt")}


# --- wrong use --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["h300"], "did you mean h200"),
        (["gaudi"], "known are v100"),
        ([""], "known are v100"),
        (["\0"], "unknown chip"),
        (["x" * 10_000], "unknown chip"),
        (["h200", "mma.m16n8k16.f32.f16.f16"], "the nearest: mma.m16n8k16.f32.f16.f16.f32"),
        (["h200", "tcgen05.m128n256k32.kind::f8f6f4.f32.e4m3.e4m3"], "It exists on b200."),
        (["a100", "mma.m16n8k32.f32.e4m3.e4m3.f32"], "It exists on l40s, rtx4090, rtx1000ada, h100, h200, b200"),
        (["h200", "hmma"], "not understood"),
        (["h200", ""], "not understood"),
        (["h200", "h100"], "not understood"),
        (["h200", "mma." + "x" * 10_000], "unknown or not modelled"),
        (["h200", "mma.sync.m16n8k16.row.col.satfinite.f32.f16.f16.f32"], "'satfinite' is unknown or not modelled"),
        (["h200", H200, "--instruction", H200], "one at a time"),
        (["--instruction", H200], "on which chip?"),
        (["h200", "--html", "--out", "x.json"], "--html writes a page"),
        (["h200", "--colour"], "unknown option"),
        (["h200", H200, "more"], "unrecognized arguments"),
    ],
)  # fmt: skip
def test_wrong_use(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chips", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("numsim: ") and words in err and len(err) < 1200
    assert re.search("numsim chips|--out chips-h200.html", err) and "instruction='" not in err  # a call to type
