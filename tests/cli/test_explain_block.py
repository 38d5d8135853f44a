"""numsim explain of a list of numbers in a block format, at the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

import numsim
from numsim.blocks import get_block_format, list_block_formats, quantize
from numsim.blocks.explain import explain_block
from numsim.cli import main
from numsim.explain import explain

LIST = "[0.1, 300, 480, 1]"


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["explain", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("argv", [[LIST], ["[0.1,", "300,", "480,", "1]"], [f" {LIST} "], ["[", "0.1,300,480,1", "]"]])
def test_lists_reach_explain_block(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    e = explain_block(LIST, "mxfp8")
    assert shown(capsys, *argv, "--format", "mxfp8") == shown(capsys, *argv, "--format", "MXFP8-E4M3") == f"{e}\n"
    assert json.loads(shown(capsys, *argv, "--format", "mxfp8", "--json")) == e.to_dict()


def test_the_rules_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """480 in E4M3: floor and even saturate at 448, the others double the scale."""
    rows = {line.split()[0]: line.split() for line in shown(capsys, LIST, "--format", "mxfp8").splitlines()}
    assert rows["floor"][:5] == ["floor", "*", "1", "448", "1"] and rows["even"][:4] == ["even", "1", "448", "1"]
    assert all(rows[rule][:4] == [rule, "2", "480", "0"] for rule in ("ceil", "rceil", "te"))
    assert rows["480"] == ["480", "480", "0x7e", "448", "448", "-6.67", "%", "saturated"]
    assert "exponent, floor(log2 amax)               8\n" in shown(capsys, LIST, "--format", "mxfp8")


def test_no_number_is_rounded_in_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert "less 0, the exponent of 1.984375 " in shown(capsys, "[1]", "--format", "mxint8")


def test_a_negative_list_and_equal_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, f"[-6, {', '.join(['3'] * 30)}, 1e-9]", "--format", "mxfp4")
    assert "32 numbers in MXFP4 (E2M1): 1 became zero, 31 exact" in out
    assert "\n    30 x 3 " in out and "note: 1 number had to be rounded to FP32" in out and " zeros fill " not in out


@pytest.mark.parametrize("format", list_block_formats(), ids=str)
@pytest.mark.parametrize("numbers", [
    LIST, "[0]", "[nan, inf, -inf, -0]", "[1e39, 1e-50, -1.2345678901e-10, -1/3, 123456789e30, 2^-149, 0x1.fffffep127]",
    "[-1.2345678e-38, -3.3333333e-17, 1, 3.4e38, -7.7777777e-23]", f"[{', '.join(f'{n}/7' for n in range(128))}]",
])  # fmt: skip
def test_80_columns_of_ascii_and_json(format, numbers: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, numbers, "--format", format.name).splitlines()
    assert all(len(line) <= 80 and line.isascii() and line == line.rstrip() for line in lines)
    told = json.loads(shown(capsys, numbers, "--format", format.name, "--json"))
    count = numbers.count(",") + 1
    elements = [x for block in told["blocks"] for x in block["elements"]]
    assert len(elements) == count and told["format"] == format.name
    for x in elements:  # numsim reads its own numbers
        assert numsim.encode(x["number"], "fp32") == explain(x["text"], "fp32").code
        numsim.encode([x["multiplied"], x["value"], x["element"]], "fp64")


def test_json_gives_exact_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(shown(capsys, LIST, "--format", "nvfp4", "--json"))
    x = quantize([0.1, 300, 480, 1, *[0] * 12], get_block_format("nvfp4"))
    [block] = told["blocks"]
    assert [e["code"] for e in block["elements"]] == x.codes[:4].tolist()
    assert [Fraction(e["value"]) for e in block["elements"]] == [Fraction(v) for v in x.values[:4].tolist()]
    assert block["scale"]["code"] == int(x.scales.codes[0]) and Fraction(told["tensor_scale"]) == x.tensor_scale
    assert (
        told["zeros_that_fill"] == 12
        and told["rounded_to_fp32"] == 1
        and [r["rule"] for r in block["rules"]] == ["nvfp4", "torchao-nvfp4"]
    )


@pytest.mark.parametrize(("argv", "words"), [
    ([LIST], "needs a block format"), ([LIST, "--format", "bf16"], "BF16 is a number format"),
    ([LIST, "--format", "mxfp5"], "unknown block format 'mxfp5': did you mean mxfp8"),
    ([LIST, "--format", ""], "unknown block format ''"), ([LIST, "--format", "\0"], "unknown block format"),
    (["[0.1, 300", "--format", "mxfp8"], "a list ends with ]"), (["[]", "--format", "mxfp8"], "0 numbers: 1 to 128"),
    (["[1,,2]", "--format", "mxfp8"], "it is empty"), (["[1 + 2]", "--format", "mxfp8"], "'1 + 2': numbers between"),
    (["[1]]", "--format", "mxfp8"], "']' is not known"), (["[[1]]", "--format", "mxfp8"], "'[' is not known"),
    (["[١]", "--format", "mxfp8"], "U+0661"), (["[" + "1," * 129 + "1]", "--format", "mxfp8"], "130 numbers"),
    (["[" + "9" * 9999 + "]", "--format", "mxfp8"], "9,999 characters"),
    (["[1e99999]", "--format", "mxfp8"], "five digits"), (["[nope:0x1]", "--format", "mxfp8"], "unknown format 'nope'"),
    ([LIST, "--format", "mxfp8", "--rounding", "up"], "--rounding does not go with a list"),
    ([LIST, "--format", "mxfp8", "--overflow", "saturate"], "--overflow does not go"),
    ([LIST, "--format", "mxfp8", "--seed", "1"], "--seed does not go"),
    ([LIST, "--chip", "h100"], "without --chip. Example"),
    ([LIST, "--format", "mxfp8", "--style", "slide"], "goes with --chip"),
    (["0.1", "--format", "mxfp8"], 'mxfp8 is a block format, no number format: did you mean e4m3 or e5m2 (its numbers) '
     'or e8m0 (its scales)? Example: numsim explain "[0.1, 300]" --format mxfp8'),
    (["nvfp4:0x1"], "nvfp4 is a block format"),
])  # fmt: skip
def test_wrong_use_is_one_message(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("numsim: ") and words in err and "bug" not in err and len(err) < 1000


def test_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e = explain_block(LIST, "mxfp8")
    for out in (tmp_path / "folder", tmp_path / "card.txt", tmp_path / "card.json"):
        assert main(["explain", LIST, "--format", "mxfp8", "--out", str(out)]) == 0
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == ["explain.json", "explain.txt"]
    assert (tmp_path / "card.txt").read_text("utf-8") == f"{e}\n"
    assert json.loads((tmp_path / "card.json").read_text("utf-8")) == e.to_dict()
    capsys.readouterr()
    assert main(["explain", LIST, "--format", "mxfp8", "--out", str(tmp_path / "card.html")]) == 2
    assert "explain writes .json .txt, not .html" in capsys.readouterr().err


def test_colours_are_for_terminals(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ("[0.1, 3]", "--format", "nvfp4")
    plain = shown(capsys, *argv, "--plain")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in shown(capsys, *argv) and shown(capsys, *argv, "--plain") == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(capsys, *argv) == plain and "\x1b" not in plain


@pytest.mark.parametrize("argv", [["explain", f"[{', '.join(['0.1'] * 128)}]", "--format", "mxfp8"],
                                  ["formats", "--json"], ["formats", "nvfp4"]])  # fmt: skip
def test_nothing_heavy_is_loaded(argv: list[str]) -> None:
    code = (f"import sys; from numsim.cli import main; main({argv!r}); "
            "print(sorted({'numba', 'matplotlib', 'torch', 'ml_dtypes'} & set(sys.modules)))")  # fmt: skip
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and done.stderr == ""
