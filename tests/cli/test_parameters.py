"""numsim run --format and --set: an experiment's parameters from the command line."""

import json
import shlex

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
        (["casts", "--chip", "h100"], "no experiment here has a parameter 'chips' (--chip): casts has formats"),
        (["loss-scaling", "--set", "format=bf16"], "events. Example: numsim run loss-scaling --set interval=80\n"),
        (["loss-scaling", "--format", "bf16"], "events. Example: numsim run loss-scaling --set interval=80\n"),
        (["blind-scaler", "--format", "bf16"], "format. Example: numsim run blind-scaler --set format=fp16\n"),
        (["nf4", "adam", "--set", "betas=1"], "steps. Example: numsim run adam --set beta2=0.999\n"),
        (["--set", "amx=1"], "draws, seed. Example: numsim run mx-scale --set amax=480.0\n"),
        (["kept-bits", "--chip", "h300"], "unknown chip 'h300': did you mean"),
        (["chips", "--chip", "foo"], "mi300x. Example: --chip h200\n"),
        (["chips", "--set", "k=33"], "numsim: --set k=33: a multiple of 32 is needed"),
        (["chips", "--set", "chips=[]"], "Example: numsim run chips --chip a100,h100\n"),
        (["casts", "--format", "fp64"], "numsim: --format fp64: formats of at most 16 bits"),
        (["master-weights", "--set", "updates=[]"], 'Example: numsim run master-weights --set "updates=[1e-4,1e-3]"\n'),
        (["accumulator", "--set", "seed=-1"], "numsim: --seed -1: a seed is an integer"),
        (["--set", "k=100"], "numsim: --set k=100: a multiple of 32 is needed"),  # all are checked before one is run
    ],
)
@pytest.mark.parametrize("command", ["run", "record"])
def test_wrong_parameters(command, words, message, tmp_path, capsys):
    machine = ["--machine", "numpy"] if command == "record" else []
    assert main([command, *words, *machine, "--out", str(tmp_path)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("numsim: ") and message in error and not list(tmp_path.iterdir())
    assert "Example:" in error and "numsim.experiments" not in error


def test_examples_of_errors_work(tmp_path, capsys):
    """A list of numbers, as the message spells it for a shell."""
    assert main(["run", "master-weights", "--set", "updates=7", "--out", str(tmp_path)]) == 2
    example = capsys.readouterr().err.partition("Example: numsim ")[2]
    words = [
        *shlex.split(example),
        "--set",
        "steps=20",
        "--set",
        "runs=2",
        "--set",
        "training_steps=10",
        "--json",
        "--out",
        str(tmp_path),
    ]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["parameters"]["updates"] == [1e-4, 1e-3]
