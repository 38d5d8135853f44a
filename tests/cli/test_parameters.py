"""numsim run --format and --set: an experiment's parameters from the command line."""

import json

import pytest

from numsim.cli import main


def test_parameters_reach_the_experiment_and_its_file(tmp_path, capsys):
    words = ["run", "swamping", "--format", "e4m3,e5m2", "--set", "terms=64", "--set", "uniform_terms=32", "--json"]
    assert main([*words, "--against", "numpy", "--out", str(tmp_path)]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["parameters"]["formats"] == ["e4m3fn", "e5m2"]
    assert (result["parameters"]["terms"], result["parameters"]["uniform_terms"]) == (64, 32)
    assert main(["check", str(tmp_path / "swamping.json")]) == 0


def test_chips_reach_the_experiment(tmp_path, capsys):
    words = ["run", "kept-bits", "--chip", "H200,NVIDIA A100", "--json", "--against", "numpy", "--out", str(tmp_path)]
    assert main(words) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["parameters"]["chips"] == ["h200", "a100"]
    assert [row[0] for row in result["series"]["rows"]] == ["FP32 in order", "H200", "A100"]
    assert result["answer"] == "FP32 in order: 1; H200: 1 + 4 x 2^-23; A100: 1 + 4 x 2^-23"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["swamping", "--format", "fp8"], "did you mean e4m3"),
        (["swamping", "--set", "trems=64"], "no experiment here has a parameter 'trems'"),
        (["swamping", "--set", "terms"], "a name and a value"),
        (["swamping", "--set", "terms=many"], "a whole number"),
        (["casts", "--set", "terms=64"], "casts has formats"),
        (["casts", "--chip", "h100"], "no experiment here has a parameter 'chips'"),
        (["kept-bits", "--chip", "h300"], "unknown chip 'h300': did you mean"),
    ],
)
def test_wrong_parameters(words, message, tmp_path, capsys):
    assert main(["run", *words, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error and "Example:" in error and not list(tmp_path.iterdir())
