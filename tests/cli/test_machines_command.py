"""numsim machines and numsim experiments: tables and cards."""

import importlib.util
import json
from pathlib import Path

import pytest

from numsim.cli import machines, main
from numsim.errors import UnavailableError
from numsim.gpu import driver
from numsim.machines.cuda import Cuda
from tests.cli import fake


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(capsys, *args):
    code = main(list(args))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_machines(capsys, monkeypatch):
    monkeypatch.setattr(driver, "driver_found", lambda: False)
    code, out, _ = call(capsys, "machines")
    assert code == 0 and all(len(line) <= 80 for line in out.splitlines())
    rows = {line.split()[0]: line for line in out.splitlines()[1:7]}
    assert rows["numpy"].rstrip().endswith("yes") and rows["cuda"].rstrip().endswith("no: no NVIDIA GPU found")
    torch = rows["torch-cpu"].rstrip()
    assert torch.endswith("yes") if importlib.util.find_spec("torch") else "no: torch is not installed" in torch


def test_what_is_there_for_a_gpu(capsys, monkeypatch):
    def compiler():
        raise UnavailableError("NVRTC, NVIDIA's run-time compiler, is missing: pip")

    monkeypatch.setattr(driver, "driver_found", lambda: False)
    monkeypatch.setattr(machines, "compiler", compiler)
    monkeypatch.setattr(machines.host, "version", lambda package: None)
    monkeypatch.setattr(Cuda, "missing", lambda self: "torch is not installed (pip install torch)")
    code, out, _ = call(capsys, "machines", "cuda")
    assert code == 0 and all(len(line) <= 80 for line in out.splitlines())
    lines = " ".join(out.split())
    assert "driver missing: NVIDIA's driver" in lines and "cuda-bindings missing: python -m pip install" in lines
    assert "NVRTC missing: NVRTC" in lines and "torch missing: torch is not installed" in lines
    monkeypatch.undo()
    (told,) = json.loads(call(capsys, "machines", "cuda", "--json")[1])
    assert list(told["software"]) == ["driver", "cuda-bindings", "NVRTC", "torch"]
    (told,) = json.loads(call(capsys, "machines", "numpy", "--json")[1])
    assert told["software"] is None


def test_a_machines_card(capsys):
    code, out, _ = call(capsys, "machines", "ml_dtypes")
    assert code == 0 and all(len(line) <= 80 for line in out.splitlines())
    assert "differs" in out and "rounds twice: rounds to float32 first" in " ".join(out.split()) and "e2m1" in out


def test_a_records_card(capsys, monkeypatch):
    fake.install(monkeypatch.setattr, pictures=False)
    assert call(capsys, "record", "fast", "--machine", "ml_dtypes", "--out", "r.npz")[0] == 0
    code, out, _ = call(capsys, "machines", "r.npz")
    assert code == 0 and "a recording of ml_dtypes" in out and "questions          1" in out and "rounds twice" in out


def test_machines_as_json(capsys):
    code, out, _ = call(capsys, "machines", "--json")
    data = json.loads(out)
    assert code == 0 and [d["name"] for d in data][:3] == ["emulated", "numpy", "ml_dtypes"]
    assert data[1]["here"] is True and data[6]["here"] is False and "record" in data[6]["why_not"]
    assert data[2]["differs"][0]["name"] == "rounds twice"
    assert call(capsys, "machines", "--out", "m.json")[0] == 0
    assert json.loads(Path("m.json").read_text()) == data


def test_unknown_machine(capsys):
    code, out, err = call(capsys, "machines", "tochr-cpu")
    assert (code, out) == (2, "") and "did you mean torch-cpu?" in err


def test_experiments(capsys):
    code, out, _ = call(capsys, "experiments")
    assert code == 0 and all(len(line) <= 80 for line in out.splitlines())
    assert all(f"\n{name} " in f"\n{out}" for name in ("swamping", "underflow", "master-weights", "casts"))


def test_an_experiments_card_keeps_the_answer(capsys, monkeypatch):
    fake.install(monkeypatch.setattr, pictures=False)
    code, out, _ = call(capsys, "experiments", "fast")
    assert code == 0 and "b) -416.0" in out and "never a tie" not in out and "tempting guess" not in out
    assert "numbers = 4; 9 with --size full" in out and "against   numpy, ml_dtypes" in out


def test_experiments_as_json(capsys):
    code, out, _ = call(capsys, "experiments", "casts", "--json")
    assert code == 0 and json.loads(out)[0]["name"] == "casts" and "answer" not in json.loads(out)[0]
    code, _, err = call(capsys, "experiments", "sum")
    assert code == 2 and "did you mean swamping?" in err
