"""numsim explain --chip at the command line, and the sums of products that it reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from numsim.cli import main
from numsim.errors import InputError
from numsim.expression import MAX_PRODUCTS, parse_products
from numsim.tensorcore import explain_mma
from numsim.values import Rational, as_fraction

SUM = "1*1 + 31 x 2^-7*2^-7"
X = [1] + [2**-7] * 31


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["explain", *argv]) == 0
    return capsys.readouterr().out


# --- what is read -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("text", "pairs", "c"), [
    ("2*3", [(2, 3)], None), ("1 + 2*3", [(2, 3)], 1), ("2*3 - 1", [(2, 3)], -1), ("-2*3", [(-2, 3)], None),
    ("1 - 2*3 - 4*5", [(-2, 3), (-4, 5)], 1), ("-(2*3 - 4*5) + 1", [(-2, 3), (4, 5)], 1),
    ("3 x 2*5", [(2, 5)] * 3, None), ("3x(2*5)", [(2, 5)] * 3, None), ("3 X 2*5", [(2, 5)] * 3, None),
    ("2 x2^-3*-4", [(Fraction(1, 8), -4)] * 2, None), ("1*1 - 2 x 3*4", [(1, 1), (-3, 4), (-3, 4)], None),
    ("-2 x 3*4", [(-3, 4)] * 2, None), ("2 x 3 x 1*1", [(1, 1)] * 6, None),
    ("2 x (1*2 - 3*4)", [(1, 2), (-3, 4)] * 2, None), ("1/3*3 - 1/4", [(Fraction(1, 3), 3)], Fraction(-1, 4)),
    ("e4m3:0x7e * 0x1p-3", [(448, Fraction(1, 8))], None), ("2^3*2**-3", [(8, Fraction(1, 8))], None),
    ("7", [], 7), ("2 × 3", [(2, 3)], None),
])  # fmt: skip
def test_sums_of_products(text: str, pairs: list, c: object) -> None:
    read = parse_products(text)
    assert [(as_fraction(a), as_fraction(b)) for a, b in read.pairs] == pairs
    assert (read.c is None and c is None) or (read.c is not None and as_fraction(read.c) == c)


def test_signs_of_zero_and_infinity_are_read() -> None:
    read = parse_products("-0*1 - inf*2 - 0")
    assert [a for a, _ in read.pairs] == [Rational(1, 0, 1), Rational(1, 1, 0)] and read.c == Rational(1, 0, 1)


@pytest.mark.parametrize(("text", "words"), [
    ("1 + 2", "1 and 2 are no products: one lone number is c, write any other as 2*1"), ("1*2*3", "two numbers, a*b"),
    ("31 × 2*2", "31 x a*b"), ("(1+2)*3", "two numbers, a*b"), ("sqrt(2)", "only multiplies and adds"),
    ("2*1/3", "only multiplies and adds"), ("0 x 1*1", "from 1 to 1024"), ("1.5 x 1*1", "from 1 to 1024"),
    ("2000 x 1*1", "from 1 to 1024"), ("33 x 32 x 1*1", "more than 1024 products"), ("31 x", "a number is missing"),
    ("x 1*1", "'x' is no number"), ("1*1 +", "a number is missing at the end"), ("3^2*1", "powers of two"),
    ("1 x " * 50 + "1*1", "levels deep"), ("", "it is empty"), ("2 x 1", "1 and 1 are no products"),
])  # fmt: skip
def test_other_texts_are_refused_with_a_sum_that_works(text: str, words: str) -> None:
    with pytest.raises(InputError, match="--chip h100") as error:
        parse_products(text)
    assert words in str(error.value)


def test_the_longest_sum() -> None:
    assert len(parse_products(f"{MAX_PRODUCTS} x 1*1 + 1").pairs) == MAX_PRODUCTS


# --- what is printed --------------------------------------------------------------------------------------------------
def test_the_command_prints_the_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    e = replace(explain_mma(X, X, chip="h100", format="e4m3"), text=SUM)
    argv = [SUM, "--chip", "h100", "--format", "e4m3"]
    assert shown(capsys, *argv) == f"{e}\n" and SUM in str(e)
    assert shown(capsys, *SUM.split(), "--chip=h100", "--format=e4m3", "--plain") == f"{e}\n"
    assert json.loads(shown(capsys, *argv, "--json")) == e.to_dict()


def test_instructions_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert "mma.m16n8k16.f32.f16.f16.f32" in shown(capsys, "2*3", "--chip", "a100")
    name = "mma.m16n8k16.f16.f16.f16.f16"
    assert (
        json.loads(shown(capsys, "2*3 + 1", "--chip", "a100", "--instruction", name, "--json"))["result"]["hex"]
        == "0x4700"
    )


@pytest.mark.parametrize(("argv", "words"), [
    (["1*1", "--chip", "h10"], "did you mean h100 or v100? Example: --chip h200"),
    (["1*1", "--chip", "h100", "--format", "e2m1"], "has no instruction for e2m1"),
    (["1*1", "--chip", "h100", "--instruction", "foo"], "Example: --chip h200 --instruction mma"),
    (["1*1", "--chip", "h100", "--rounding", "down"], "--rounding does not go with --chip"),
    (["1*1", "--chip", "h100", "--seed", "1"], "--seed does not go with --chip"),
    (["1*1", "--chip", "h100", "--overflow", "saturate"], "--overflow does not go with --chip"),
    (["1*1", "--instruction", "x"], "--instruction goes with --chip"), (["1", "--style", "slide"], "goes with --chip"),
    (["1*1", "--chip", "h100", "--style", "poster"], "invalid choice"), (["1", "--chip", "h100"], "no product a*b"),
    (["nan*1", "--chip", "b200", "--format", "e2m1"], "NaN has no code in e2m1. Example: numsim explain"),
    (["1*1", "--chip", "h100", "--format", "zzz"], "unknown format"),
])  # fmt: skip
def test_wrong_use(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *argv]) == 2
    out, err = capsys.readouterr()
    assert words in err and not out and "explain_mma" not in err and "chip=" not in err


# --- what is written --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", ["txt", "json", "html", "png", "svg"])
def test_one_file(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"sum.{suffix}"
    shown(capsys, SUM, "--chip", "h100", "--format", "e4m3", "--out", str(path), "--theme", "dark")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert b"31 of 32 products are lost" in path.read_bytes()


def test_a_folder_gets_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "1 + 2*3", "--chip", "v100", "--out", str(tmp_path / "new"), "--style", "slide"]) == 0
    files = sorted(p.name for p in (tmp_path / "new").iterdir())
    assert files == [f"explain.{kind}" for kind in ("html", "json", "png", "svg", "txt")]
    assert capsys.readouterr().err.count("numsim: wrote ") == 5


@pytest.mark.parametrize(("chip", "name", "words"), [
    ([], "q.png", "explain writes .html .json .txt (with --chip also .png .svg), not .png"),
    (["--chip", "h100"], "e.pdf", "explain writes .html .json .txt .png .svg, not .pdf"),
    (["--chip", "h100"], "z.jpg", "Example: --out explain.html"),
])  # fmt: skip
def test_unknown_endings_make_no_folder(
    chip: list[str], name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "1*1", *chip, "--out", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert words in err and not out and not list(tmp_path.iterdir())
    assert main(["explain", "1*1", *chip, "--out", f"{tmp_path / name}/"]) == 0  # a folder, as the / says
    assert main(["explain", "1*1", *chip, "--out", str(tmp_path / name)]) == 0  # one that exists
    assert {p.suffix for p in (tmp_path / name).iterdir()} >= {".html", ".json", ".txt"}


def test_names_that_the_format_option_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "1*1", "--chip", "mi300x", "--format", "e4m3"]) == 2
    assert "it takes bf16, e4m3fnuz, e4m3fnuz x e5m2fnuz, e5m2fnuz" in capsys.readouterr().err
    shown(capsys, "1*1", "--chip", "mi300x", "--format", "e4m3fnuz")


# --- warnings ---------------------------------------------------------------------------------------------------------
def test_evidence_is_one_calm_line() -> None:
    argv = [sys.executable, "-m", "numsim", "explain", SUM, "--chip", "b200", "--format", "e4m3", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["evidence"] == "single-source"
    assert done.stderr == "numsim: this instruction is single-source: numsim chips b200 names the sources\n"
    assert len(done.stderr) <= 81


def test_warnings_of_others_stay_as_they_are() -> None:
    code = ("import warnings; from numsim import cli; cli._dispatch = lambda argv: warnings.warn('mine'); "
            "before = warnings.showwarning; cli.main([]); assert warnings.showwarning is before")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UserWarning: mine" in done.stderr


def test_a_backend_that_is_not_there_draws_all_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "numsim", "explain", "1*1", "--chip", "h100", "--out", str(tmp_path / "x.svg")]
    done = subprocess.run(command, env={**os.environ, "MPLBACKEND": "bogus"}, capture_output=True, timeout=120)
    assert done.returncode == 0 and (tmp_path / "x.svg").read_bytes().startswith(b"<?xml")
