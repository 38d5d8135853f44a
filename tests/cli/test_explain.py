"""numsim explain at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import numsim
from numsim.cli import main
from numsim.explain import explain


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["explain", *argv]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("argv", "expression"), [
    (["0.1", "--format", "bf16"], "0.1"), (["2048 + 1", "--format", "bf16"], "2048 + 1"),
    (["2048", "+", "1", "--format", "bf16"], "2048 + 1"), (["--format", "bf16", "2048", "-", "1"], "2048 - 1"),
    (["-0.1", "--format", "bf16"], "-0.1"), (["-1e-3", "--format", "bf16"], "-1e-3"), (["-.5", "--format=bf16"], "-.5"),
    (["-inf", "--format", "bf16"], "-inf"), (["-NaN", "--format", "bf16"], "-nan"),
    (["-0x1p3", "--format", "bf16"], "-0x1p3"),
    (["-(1+2)", "--format", "bf16"], "-(1+2)"), (["-sqrt(2)", "--format", "bf16"], "-sqrt(2)"),
    (["-1/3", "--format", "bf16"], "-1/3"),
    (["-e4m3:0x7e", "--format", "bf16"], "-e4m3:0x7e"), (["-fma(1,2,3)", "--format", "bf16"], "-fma(1,2,3)"),
    (["--format", "bf16", "--", "-1 + 2"], "-1 + 2"), (["-1 + 2", "--format", "bf16"], "-1 + 2"),
    (["1", "-1", "--format", "bf16"], "1 -1"), (["-", "1", "--format", "bf16"], "- 1"),
])  # fmt: skip
def test_expressions_reach_explain(argv: list[str], expression: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = shown(capsys, *argv).rstrip("\n").splitlines()
    expected = str(explain(expression, "bf16")).splitlines()
    assert rest == expected[1:] and first.lower() == expected[0].lower()


def test_options_are_those_of_explain(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["-465", "--format", "e4m3", "--rounding", "down", "--overflow", "saturate", "--subnormals", "flush"]
    e = explain("-465", "e4m3", rounding="down", overflow="saturate", subnormals="flush")
    assert shown(capsys, *argv) == f"{e}\n"
    assert json.loads(shown(capsys, *argv, "--json")) == e.to_dict()
    e = explain("0.1", "bf16", rounding="stochastic", seed=7)
    assert shown(capsys, "0.1", "--format", "bf16", "--rounding", "stochastic", "--seed", "7") == f"{e}\n"


@pytest.mark.parametrize(("argv", "words"), [
    (["nan", "--format", "e2m1"], "NaN has no code in e2m1 (nor has a negative number in an unsigned format). Example: "
     "--nan zero or --nan max"),
    (["0.1", "--rounding", "stochastic"], "Example: --seed 7"),
    (["0.1", "--seed", "7"], "--rounding nearest-even draws no random numbers"),
    (["0.1", "--rounding", "stochastic", "--seed", "-1"], "--seed -1: a seed is"),
    (["0.1", "--rounding", "nearest"], "--rounding nearest: allowed are"), (["1,5"], "a decimal point, not a comma"),
    (["0.1", "--overflow", "wrap"], "Example: --overflow ieee"), (["0.1", "--nan", "x"], "Example: --nan raise"),
    (["0.1", "--format", "nvfp4"], "did you mean e2m1"), (["0.1", "--format", "mxfp8"], "did you mean e4m3 or e5m2"),
    (["0.1", "--format", "zzz"], "e5m2, e4m3, e4m3fnuz"),
])  # fmt: skip
def test_errors_speak_the_language_of_the_command_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *argv]) == 2
    err = capsys.readouterr().err
    assert words in err and not any(f"{name}=" in err for name in ("seed", "nan", "rounding", "overflow"))


def test_nan_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "nan", "--format", "e2m1", "--nan", "zero") == f"{explain('nan', 'e2m1', nan='zero')}\n"


def test_formats_that_need_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "in FP32 is" in shown(capsys, "0.1")
    assert shown(capsys, "e4m3:0x7e").startswith("e4m3:0x7e in E4M3 is 448")


@pytest.mark.parametrize("argv", [
    ["1e999999999"], ["9" * 100_000], ["(" * 5000], ["__import__('os')"], ["\0"], ["١"], ["1/"], [""], [" "],
    ["nan", "--format", "e2m1"],
    ["0.1", "--format", ""], ["0.1", "--format", "e99m99"], ["0.1", "--format", "\0"], ["0.1", "--rounding", "nearest"],
    ["0.1", "--seed", "3"], ["0.1", "--rounding", "stochastic"], ["0.1", "--rounding", "stochastic", "--seed", "-1"],
    ["0.1", "--rounding", "stochastic", "--seed", str(2**64)], ["0.1", "--out", ""], ["0.1", "--out", "a\0b"],
    ["nope:0x1"],
    ["e4m3:0x1ff"], ["0.1", "0.2"], ["--", "--format"], ["0.1", "--overflow", "wrap"], ["0.1", "--subnormals", "no"],
])  # fmt: skip
def test_hostile_input_is_one_message(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("numsim: ") and "bug" not in err and len(err) < 1000


def test_out_writes_a_folder_or_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a b" / "結果"
    e = explain("2048 + 1", "fp16")
    assert main(["explain", "2048 + 1", "--format", "fp16", "--out", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{e}\n" and err.count("numsim: wrote ") == 3
    assert sorted(p.name for p in folder.iterdir()) == ["explain.html", "explain.json", "explain.txt"]
    assert (folder / "explain.txt").read_text(encoding="utf-8") == f"{e}\n"
    assert json.loads((folder / "explain.json").read_text(encoding="utf-8")) == e.to_dict()
    for suffix in ("html", "json", "txt"):
        file = tmp_path / f"card.{suffix}"
        assert main(["explain", "2048 + 1", "--format", "fp16", "--out", str(file)]) == 0
        assert file.read_bytes() == (folder / f"explain.{suffix}").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a b", "card.html", "card.json", "card.txt"]


def test_out_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    folders = (tmp_path / "file", tmp_path / "file" / "x.json", Path("/proc/nope/x.html"))
    why = {**dict.fromkeys(folders, "cannot write"), tmp_path / ("n" * 300): "is no path"}
    for bad, words in why.items():
        assert main(["explain", "0.1", "--out", str(bad)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("numsim: ") and words in err
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_every_format_at_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for format in numsim.list_formats():
        card = shown(capsys, "1.3", "--format", format.name)
        assert f" in {format.title} is " in card
