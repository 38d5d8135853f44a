"""Every record in this folder holds: all its differences from numsim are explained. One made here shows that it can."""

import json
from pathlib import Path

import pytest

from numsim.cli import main
from numsim.gpu import driver
from numsim.machines.cuda import Cuda
from numsim.machines.recorded import read_record
from numsim.suites import SUITES, Collector, get_suite, tensorcore
from numsim.tensorcore import get_model
from tests.gpu import cpu

HERE = Path(__file__).parent
RECORDS = sorted(HERE.glob("*.npz"))
NAME = "mma.m16n8k8.f32.tf32.tf32.f32"


def check(path, capsys):
    """What ``numsim check`` says of a record: exit code, and what it has compared."""
    code = main(["check", str(path), "--json"])
    return code, json.loads(capsys.readouterr().out)["checked"][0]


@pytest.mark.parametrize("path", RECORDS or [None], ids=lambda path: path.stem if path else "none")
def test_every_difference_is_explained(path, capsys):
    if path is None:
        pytest.skip("no record yet: no GPU has been at hand")
    record = read_record(path)
    code, told = check(path, capsys)
    assert record.suite in SUITES and record.machine == "cuda" and path.stat().st_size < 8e6
    assert code == 0 and told["verdict"]["unexplained"] == 0 and told["verdict"]["compared"] > 1000
    assert "would raise" not in " ".join(told["notes"]), "what it proves is not in EVIDENCE yet"


@pytest.mark.skipif(bool(cpu.why_not()), reason=cpu.why_not())
@pytest.mark.parametrize("wrong", [False, True])
def test_a_record_made_here_is_held_against_numsim(wrong, tmp_path, monkeypatch, capsys):
    """By a GPU made of this CPU: its kernels compute, and another unit in it is found."""
    other = {"change": lambda model: get_model("a100", model.instruction)} if wrong else {}
    device = cpu.Cpu("h200", tmp_path, **other)
    monkeypatch.setattr(driver, "device", lambda: device)
    monkeypatch.setattr(tensorcore, "OUTPUTS", 64)
    collector = Collector(Cuda())
    with collector.part(NAME):
        for name, question in tensorcore.questions(get_model("h200", NAME), 1):
            if name in ("near", "subnormal", "K x 2"):
                collector.ask(question)
    path = tmp_path / "tensorcore-made-here.npz"
    path.write_bytes(collector.bytes("tensorcore"))
    code, told = check(path, capsys)
    assert code == wrong and told["equal"] != wrong and told["verdict"]["compared"] >= 3 * 64
    assert bool(told["verdict"]["unexplained"]) == wrong


def test_the_readme_names_every_suite():
    text = (HERE / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text and get_suite(name).name == name for name in SUITES)
    assert bool(RECORDS) != ("There is none yet" in text)
