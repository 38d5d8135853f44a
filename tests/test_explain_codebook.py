"""What a codebook does to a number: the record, its text, and the command line."""

import json
from fractions import Fraction

import pytest

import numsim
from numsim import explain
from numsim.cli import main
from numsim.codebooks import BNB_FP4, INT8, NF4_ELEMENT
from numsim.errors import InputError


@pytest.mark.parametrize(
    "x", ["0.3", "-0.3", "0.5", "1/3", "-7", "1e9", "-inf", "inf", "-0.0", "0.29201376438140869140625"]
)
@pytest.mark.parametrize("name", ["nf4", "int4", "bnb_fp4", "mxint8_element"])
def test_the_record_is_what_encode_does(name, x):
    for rounding in ("nearest-even", "up", "down", "toward-zero", "stochastic"):
        options = {"rounding": rounding, **({"seed": 4} if rounding == "stochastic" else {})}
        e = explain(x, name, **options)
        assert e.code == numsim.encode(x, name, **options) and e.value == numsim.exact(e.code, name)
        if e.between is not None:
            low, high = (e.format.values[c] for c in e.between)
            assert low < Fraction(x) < high and low <= e.limit <= high and e.code in e.between
            assert e.error == e.value - Fraction(x)
        lines = str(e).splitlines()
        assert all(len(line) <= 80 and line.isascii() for line in lines)
        assert lines[0].startswith(f"{x} in ") and f"{e.code:x}" in lines[0]
        assert json.loads(json.dumps(e.to_dict()))["result"]["code"] == e.code and "<pre" in e._repr_html_()


def test_the_words():
    assert "halfway 2.5: on it, a tie: the even code, so down" in str(explain(2.5, INT8))
    assert "beyond the end of the list: the end is taken" in str(explain(1e9, INT8))
    assert "it is in the list, nothing to round" in str(explain(-5, INT8))
    assert "the library's limit 0.29201376438140869...: above it, so up" in str(explain(0.3, NF4_ELEMENT))
    tie = str(explain(Fraction(BNB_FP4.thresholds[9]), BNB_FP4))
    assert "on it, a tie: the one nearer to 0, so down" in " ".join(tie.split())
    assert "nan='max' decides" in str(explain("nan", "int4", nan="max"))
    assert "stochastic: " in str(explain(0.3, "nf4", rounding="stochastic", seed=1))


def test_refusals():
    for x in ("0.3 + 1", "sqrt(2)"):
        with pytest.raises(InputError, match="arithmetic is not defined on nf4_element"):
            explain(x, "nf4")
    for options in ({}, {"rounding": "odd", "nan": "zero"}):
        with pytest.raises(InputError):
            explain("nan" if not options else 0.3, "int8", **options)


def test_the_command_line(capsys, tmp_path):
    assert main(["explain", "0.3", "--format", "nf4"]) == 0
    assert capsys.readouterr().out == f"{explain('0.3', 'nf4')}\n"
    assert main(["explain", "0.3", "--format", "bnb_fp4", "--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == explain("0.3", "bnb_fp4").to_dict()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["explain.json", "explain.txt"]
    assert main(["explain", "1 + 1", "--format", "int8"]) == 2
    assert "arithmetic is not defined" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bnb_fp4", "binary8p3se", "BINARY6P6UF", "binary16p1ue", "binary3p1sf"])
def test_cards(capsys, name):
    assert main(["formats", name]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 and line.isascii() for line in out.splitlines())
    assert main(["formats", name, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["name"] == name.lower() and record["bits"] == numsim.get_format(name).bits
    if record["kind"] == "number":
        assert "P3109" in out and record["infinities"] == (name[-1].lower() == "e")
    else:
        assert record["unused"] == [8] and len(record["values"]) == 16 and "0.33333334326744079" in out


def test_p3109_and_formats_of_ones_own_are_explained():
    assert "code 0x39" in str(explain(0.3, "binary8p3se")) and explain(1e9, "Binary8p3se").last.kind == "infinity"
    without = explain("0x1.9p-15", numsim.Format("ftz", 5, 10, 15, subnormals=False))
    assert (without.code, without.last.place.part, without.last.error_ulp) == (
        1 << 10, Fraction(25, 32), Fraction(7, 32),
    )  # fmt: skip
    assert "sign|fraction (7 bits" in str(explain(0.3, numsim.Format("fixed", 0, 7, 1, specials="finite")))
    for precision in range(1, 8):
        for x in ("0.3", "-3", "1e9", "0", "2^-90", "nan"):
            for end in "ef":
                lines = str(explain(x, f"binary8p{precision}s{end}")).splitlines()
                assert all(len(line) <= 80 and line.isascii() for line in lines)
