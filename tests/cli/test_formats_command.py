"""numsim formats: the table and the cards against the formats themselves."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

import numsim
from numsim.cli import main
from numsim.cli.formats import about
from numsim.formats import get_format, list_formats


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert main(["formats", *argv]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 and line.isascii() for line in lines)
    return lines


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys)
    rows = {line.split()[0]: line.split()[1:] for line in lines[: len(list_formats()) + 1]}
    fine = {line.split()[0]: line.split()[1:] for line in lines[len(list_formats()) + 2 : 2 * len(list_formats()) + 3]}
    assert list(rows)[1:] == list(fine)[1:] == [f.name for f in list_formats()]
    assert rows["fp16"] == ["16", "1+5+10", "65504", "2^-14", "2^-24", "inf,", "NaN"]
    assert rows["e4m3fn"] == ["8", "1+4+3", "448", "2^-6", "2^-9", "NaN"]
    assert rows["e8m0"] == ["8", "0+8+0", "2^127", "2^-127", "-", "NaN"]
    assert rows["fp64"][2] == "~1.797e308" and rows["bf16"][2] == "~3.389e38"
    assert fine["fp16"] == ["11", "2^-10", "2^-11", "-14..15", "12.0", "2048", "2048"]
    assert fine["bf16"] == ["8", "2^-7", "2^-8", "-126..127", "78.6", "256", "256"]
    assert fine["e4m3fn"] == ["4", "2^-3", "2^-4", "-6..8", "5.4", "16", "16"]
    assert fine["e3m4"][-2:] == ["15", "never"] and fine["e2m3"][-2:] == ["7", "7.5"]


@pytest.mark.parametrize("name", [*(f.name for f in list_formats()), "e5m10", "e15m48", "e2m61", "float16"])
def test_cards(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, name)
    f = get_format(name)
    text = " ".join(" ".join(lines).split())
    assert lines[0] == f"{f.title}  ({f.name}, {f.bits} bits)" and f.source in text
    assert ("zero " in text.partition("codes of note")[2]) == f.zero
    assert ("infinity 0x" in text) == (f.infinity_code is not None)


def test_several_cards_and_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "e4m3") == shown(capsys, "e4m3fn")
    lines = shown(capsys, "fp16", "bf16")
    assert lines == [*shown(capsys, "fp16"), "", *shown(capsys, "bf16")]


def test_json_is_exact(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["formats", "--json", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "formats.json").read_text(encoding="utf-8") == out
    for record, f in zip(json.loads(out), list_formats(), strict=True):
        assert record["name"] == f.name and record["codes"] == f.codes
        for key in ("max", "least_normal", "eps", "unit_roundoff"):
            assert Fraction(record[key]) == getattr(f, key)
        note = record["codes_of_note"]
        assert note["largest"]["code"] == f.max_code and Fraction(note["largest"]["fraction"]) == f.max
        assert note["one"]["code"] == numsim.encode(1, f)
    assert main(["formats", "fp16", "--json"]) == 0
    assert [r["name"] for r in json.loads(capsys.readouterr().out)] == ["fp16"]


@pytest.mark.parametrize("argv", [["fp8"], ["fp16", "nope"], [""], ["\0"], ["e99m9"], ["x" * 10_000], ["fp16"] * 200])
def test_wrong_names(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("numsim: ") and len(err) < 11_000


@pytest.mark.parametrize(("x", "shown"), [
    (None, "-"), (Fraction(65504), "65504"), (Fraction(31, 2), "15.5"), (Fraction(1, 2), "0.5"),
    (Fraction(1, 4), "2^-2"),
    (Fraction(2) ** 20, "1048576"), (Fraction(2) ** 21, "2^21"), (Fraction(4290772992), "~4.290e9"),
    (Fraction(1, 3), "~0.3333"),
])  # fmt: skip
def test_about(x: Fraction | None, shown: str) -> None:
    assert about(x) == shown
