"""numsim formats: the table and the cards against the formats themselves."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

import numsim
from numsim.blocks import RULES, BlockFormat, list_block_formats
from numsim.blocks.explain import explain_block
from numsim.cli import main
from numsim.cli.formats import about
from numsim.errors import FormatError
from numsim.formats import get_format, list_formats
from numsim.scaling import get_recipe, list_recipes
from numsim.scaling.recipes import GEMMS
from numsim.show.blocks import WORKED
from numsim.show.numbers import short

RECIPES = [r.name for r in list_recipes() if r.name not in {f.name for f in list_block_formats()}]


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
    text = " ".join(" ".join(lines).split())
    assert "never: it overflows first, to infinity or NaN; a format with neither stops at its largest" in text
    assert fine["e3m4"][-2:] == ["15", "never"] and fine["e2m3"][-2:] == ["7", "7.5"]


@pytest.mark.parametrize("name", [*(f.name for f in list_formats()), "e5m10", "e15m48", "e2m61", "float16"])
def test_cards(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, name)
    f = get_format(name)
    text = " ".join(" ".join(lines).split())
    assert lines[0] == f"{f.title}  ({f.name}, {f.bits} bits)" and f.source in text
    assert ("zero " in text.partition("codes of note")[2]) == f.zero
    assert ("infinity 0x" in text) == (f.infinity_code is not None)


@pytest.mark.parametrize(("name", "fact"), [
    ("fp16", "stalls at 2048"), ("e2m1", "stalls at 4"),
    ("e3m4", "overflows before it stalls: 16 is infinity"),
    ("e2m3", "stalls at 7.5: 8 is more, and there is no infinity to overflow to"),
])  # fmt: skip
def test_where_the_sum_of_ones_stops(name: str, fact: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"1 + 1 + 1 + ... {fact} specials" in " ".join(" ".join(shown(capsys, name)).split())


def test_several_cards_and_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "e4m3") == shown(capsys, "e4m3fn")
    lines = shown(capsys, "fp16", "bf16")
    assert lines == [*shown(capsys, "fp16"), "", *shown(capsys, "bf16")]


def test_json_is_exact(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["formats", "--json", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "formats.json").read_text(encoding="utf-8") == out
    records = json.loads(out)
    kinds = ["number"] * len(list_formats()) + ["block"] * len(list_block_formats()) + ["recipe"] * len(RECIPES)
    assert [r["kind"] for r in records] == kinds
    for record, f in zip(records[: len(list_formats())], list_formats(), strict=True):
        assert record["name"] == f.name and record["codes"] == f.codes
        for key in ("max", "least_normal", "eps", "unit_roundoff"):
            assert Fraction(record[key]) == getattr(f, key)
        note = record["codes_of_note"]
        assert note["largest"]["code"] == f.max_code and Fraction(note["largest"]["fraction"]) == f.max
        assert note["one"]["code"] == numsim.encode(1, f)
    assert main(["formats", "fp16", "--json"]) == 0
    assert [r["name"] for r in json.loads(capsys.readouterr().out)] == ["fp16"]


# --- block formats ----------------------------------------------------------------------------------------------------
def test_the_tables_of_block_formats_and_codebooks(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys)
    start = next(i for i, line in enumerate(lines) if line.startswith("block format"))
    rows = {line.split()[0]: line.split()[1:] for line in lines[start + 1 : start + 1 + len(list_block_formats())]}
    assert list(rows) == [f.name for f in list_block_formats()]
    assert rows["mxfp8"] == ["e4m3fn", "e8m0", "32", "floor", "8.25"]
    assert rows["nvfp4"] == ["e2m1", "ue4m3", "16", "nvfp4", "4.5"]
    assert rows["nvfp4_2d"] == ["e2m1", "ue4m3", "16", "x", "16", "nvfp4", "4.03125"]
    assert rows["fp8_128x128"][-2:] == ["current-pow2", "~8.002"] and rows["int8"][2:] == ["row", "absmax-127", "8"]
    start = next(i for i, line in enumerate(lines) if line.startswith("codebook"))
    books = {line.split()[0]: line.split()[1:] for line in lines[start + 1 : lines.index("", start)]}
    assert books["nf4_element"] == ["NF4", "4", "16", "-1", "1", "lower", "number"]
    assert books["int4"] == ["INT4", "4", "15", "-7", "7", "even", "code"] and "mxint8_element" in books


@pytest.mark.parametrize("format", list_block_formats(), ids=str)
def test_cards_of_block_formats(format: BlockFormat, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, format.name)
    text = " ".join(" ".join(lines).split())
    rule = RULES[format.rule]
    assert lines[0] == f"{format.title}  ({format.name}, a block format)"
    for said in (format.source, rule.what, rule.source, f"scale {format.scale.name}:", f"element {format.element}:"):
        assert said in text
    worked = lines[lines.index("a block, worked") + 1 :]
    assert worked == str(explain_block(list(WORKED), format)).splitlines()


@pytest.mark.parametrize(("name", "edges"), [
    # OCP MX 1.0 section 6.3 and torchao: zeros have byte 0, infinity and NaN byte 0xff
    ("mxfp8", {"0": ["2^-127", "0x00", "2^127", "0"], "inf, 1": ["NaN", "0xff", "NaN", "NaN, NaN"],
               "NaN, 1": ["NaN", "0xff", "NaN", "NaN, NaN"], "2^-149": ["2^-127", "0x00", "2^127", "0"]}),
    ("mxfp4", {"largest FP32, 1": ["2^125", "0xfc", "2^-125", "2.5521...e38, 0"]}),
    # Transformer Engine, recipe_common.cuh: 1 where amax is 0 or infinite; NaN is not seen
    ("fp8_tensor", {"0": ["1", "0x3f800000", "1", "0"], "inf, 1": ["1", "0x3f800000", "1", "448, 1"]}),
    # torchao: an amax of at least 1e-12; infinity has the multiplier 0
    ("torchao_rowwise", {"0": ["2^-48", "0x27800000", "2^48", "0"], "inf, 1": ["inf", "0x7f800000", "0", "NaN, NaN"]}),
    # bitsandbytes: 0 for a block of zeros
    ("nf4", {"0": ["0", "0x00000000", "0", "0"], "NaN, 1": ["1", "0x3f800000", "1", "0, 1"]}),
    ("nvfp4", {"2^-20 beside 1": ["0", "0x00", "3.4028...e38", "0"]}),
])  # fmt: skip
def test_edges(name: str, edges: dict[str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, name)
    start = next(i for i, line in enumerate(lines) if line.startswith("block of"))
    cells = [re.split(r"  +", line.strip()) for line in lines[start + 1 : lines.index("", start)]]
    rows = {row[0]: row[1:] for row in cells}
    assert {words: rows[words] for words in edges} == edges
    assert ("2^-20 beside 1" in rows) == (name == "nvfp4")


def test_nf4_lists_its_numbers_and_thresholds(capsys: pytest.CaptureFixture[str]) -> None:
    """Some of them in decimals from the source of bitsandbytes, rounded once to FP32."""

    def fp32(x: str) -> Fraction:
        return numsim.exact(int(numsim.encode(x, "fp32")), "fp32")

    rows = [line.split() for line in shown(capsys, "nf4") if re.fullmatch(r"  0x[0-9a-f]  .*", line)]
    assert [row[0] for row in rows] == [f"{code:#x}" for code in range(16)]
    assert rows[0] == ["0x0", "-1"] and rows[7] == ["0x7", "0", short(fp32("-0.045525018125772476"))]
    assert rows[1] == ["0x1", short(fp32("-0.6961928009986877")), short(fp32("-0.8480964004993439"))]
    assert rows[15] == ["0xf", "1", short(fp32("0.8614784181118011"))]
    assert main(["formats", "nf4", "--json"]) == 0
    element = json.loads(capsys.readouterr().out)[0]["element"]
    assert Fraction(element["values"][9]) == fp32("0.16093020141124725")
    assert Fraction(element["thresholds"][7]) == fp32("0.03979014977812767") and len(element["thresholds"]) == 15
    assert not any(re.fullmatch(r"  0x[0-9a-f]{1,2}  .*", line) for line in shown(capsys, "int8"))  # 255 are no card


def test_json_of_a_block_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "mxfp8", "nvfp4_2d", "int4", "--json"]) == 0
    mx, nv, int4 = json.loads(capsys.readouterr().out)
    assert mx["element"] == {"name": "e4m3fn", "bits": 8, "max": "448", "kind": "number"} and mx["block"] == [32]
    assert mx["worked"] == explain_block(list(WORKED), "mxfp8").to_dict() and mx["bits_per_value"] == 8.25
    assert (nv["block"], nv["scale"], nv["tensor_scale"], mx["tensor_scale"]) == ([16, 16], "ue4m3", True, False)
    assert int4["element"]["unused"] == [8] and int4["element"]["thresholds"][:2] == ["-13/2", "-11/2"]
    assert {e["of"]: e["scale"]["hex"] for e in mx["edges"]}["inf, 1"] == "0xff"


def test_names_of_block_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "MXFP8-E4M3") == shown(capsys, "mxfp8")
    for book, format in (("nf4_element", "nf4"), ("mxint8_element", "mxint8"), ("int8", "int8"), ("int4", "int4")):
        assert shown(capsys, book) == shown(capsys, format)  # a codebook is told with the format that uses it
        assert f"({format}, a block format)" in shown(capsys, book)[0]
    assert shown(capsys, "fp16", "nf4") == [*shown(capsys, "fp16"), "", *shown(capsys, "nf4")]
    for wrong, near in (("mxfp", "mxfp8 or mxfp6"), ("nvfp", "nvfp4"), ("fp8", "e4m3 (forward)"), ("fp4", "e2m1")):
        assert main(["formats", wrong]) == 2
        assert f"unknown format '{wrong}': did you mean {near}" in capsys.readouterr().err


CODEBOOKS = ("nf4", "int8", "int4")  # block formats whose names are those of codebooks, too


@pytest.mark.parametrize("name", ["MXFP8-e5m2", *(f.name for f in list_block_formats() if f.name not in CODEBOOKS)])
def test_a_block_format_is_no_number_format(name: str) -> None:
    with pytest.raises(FormatError, match=r"is a block format, no number format.*numsim\.blocks\.quantize") as error:
        get_format(name)
    for called in re.findall(r"\w+(?= or| \(its)", str(error.value).partition("did you mean")[2]):
        numsim.get_format(called)


@pytest.mark.parametrize("argv", [
    ["fp8"], ["fp16", "nope"], ["mxfp8", "nope"], ["nvfp"], [""], ["\0"], ["e99m9"], ["x" * 10_000], ["fp16"] * 200,
])  # fmt: skip
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


# --- recipes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", RECIPES)
def test_cards_of_recipes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, lines = get_recipe(name), shown(capsys, name)
    text = " ".join(" ".join(lines).split())
    assert lines[:2] == [f"{name}, a recipe", recipe.title] and recipe.source in text and recipe.note in text
    assert str(recipe).splitlines() == [*lines[:2], *(line[2:] for line in lines[2:9])]
    assert f"capability {recipe.least[0]}.{recipe.least[1]} and higher" in text
    assert shown(capsys, name.upper()) == lines
    assert main(["formats", name, "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)
    rows = iter(lines[3:9])
    for gemm, tensors in GEMMS.items():
        product = facts["products"][gemm]
        assert product["accumulation"] == recipe.gemm(gemm).accumulation and list(product["factors"]) == list(tensors)
        for tensor in tensors:
            cells, x, told = next(rows).split(), recipe.operand(tensor, gemm), product["factors"][tensor]
            assert tensor in cells
            if x is None:
                assert told is None and "high precision" in " ".join(cells)
            else:
                rule = "delayed" if recipe.delayed else x.format.rule
                assert told["format"] == x.format.name and told["rule"] == rule and told["sr_bits"] == x.sr_bits
                assert {x.format.name, rule} <= set(cells)


def test_what_nvfp4_training_does(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in shown(capsys, "te_nvfp4")[3:9]]
    assert rows == [
        ["fprop", "input", "nvfp4", "nvfp4", "nearest-even", "native"],
        ["weight", "nvfp4_2d", "nvfp4", "nearest-even"],
        ["dgrad", "grad_output", "nvfp4", "nvfp4", "stochastic,", "8", "bits", "native"],
        ["weight", "nvfp4_2d", "nvfp4", "nearest-even"],
        ["wgrad", "input", "nvfp4", "nvfp4", "nearest-even", "hadamard", "native"],
        ["grad_output", "nvfp4", "nvfp4", "stochastic,", "8", "bits", "hadamard"],
    ]
    assert "transform" not in shown(capsys, "te-mxfp8")[2]


def test_names_of_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "torchao-rowwise")[0] == "torchao-rowwise, a recipe"
    assert shown(capsys, "torchao_rowwise")[0].endswith("(torchao_rowwise, a block format)")
    assert shown(capsys, "mxfp8")[0].endswith("(mxfp8, a block format)")
    lines = shown(capsys)
    start = lines.index("recipe")
    told = [line.split()[0] for line in lines[start + 1 : lines.index("", start)] if not line.startswith(" ")]
    assert told == RECIPES
    assert main(["formats", "te-nvfp"]) == 2
    assert "unknown format 'te-nvfp': did you mean te-nvfp4" in capsys.readouterr().err
