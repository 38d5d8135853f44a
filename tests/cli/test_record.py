"""numsim record: a machine's answers in a file."""

import json
from pathlib import Path

import numpy as np
import pytest

from numsim.cli import main
from numsim.machines import get_machine
from numsim.machines.recorded import read_record
from tests.cli import fake


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake.install(monkeypatch.setattr, pictures=False)


def call(capsys, *args):
    code = main(list(args))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_record_and_use(capsys):
    code, out, err = call(capsys, "record", "fast", "--machine", "ml_dtypes", "--out", "r.npz")
    assert code == 0 and err == "" and "1 question, 6 results of ml_dtypes in r.npz" in out
    record = read_record("r.npz")
    assert record.machine == "ml_dtypes" and record.experiments == ("fast",)
    machine = get_machine("ml_dtypes")
    for q, a in record.answers:
        assert np.array_equal(machine.answer(q).codes, a.codes)
    code, out, _ = call(capsys, "run", "fast", "--against", "r.npz")
    assert code == 0 and "fast        emulated  recorded         6       1  as documented: rounds" in out
    code, out, _ = call(capsys, "run", "fast", "--machine", "r.npz")
    assert code == 0 and "answer    -448.0" in out
    code, out, _ = call(capsys, "check", "r.npz")
    assert code == 0 and "r.npz: as documented" in out


def test_the_same_again_gives_the_same_bytes(capsys):
    for name in ("one.npz", "two.npz"):
        assert call(capsys, "record", "--machine", "emulated", "--out", name, "--seed", "5")[0] == 0
    assert Path("one.npz").read_bytes() == Path("two.npz").read_bytes()


def test_where_it_goes(capsys):
    assert call(capsys, "record", "--machine", "emulated")[0] == 0
    assert call(capsys, "record", "fast", "--machine", "emulated", "--out", "folder/")[0] == 0
    assert call(capsys, "record", "fast", "--machine", "emulated", "--out", "a/b/c.npz")[0] == 0
    assert sorted(str(p.as_posix()) for p in Path().rglob("*.npz")) == [
        "a/b/c.npz", "folder/fast-emulated.npz", "numsim-results/all-emulated.npz",
    ]  # fmt: skip
    code, out, err = call(capsys, "record", "--machine", "emulated")
    assert (code, out) == (2, "") and "all-emulated.npz exists: --force replaces it" in err
    assert call(capsys, "record", "--machine", "emulated", "--force")[0] == 0


def test_json(capsys):
    code, out, _ = call(capsys, "record", "--machine", "ml_dtypes", "--out", "r.npz", "--json")
    data = json.loads(out)
    assert (
        code == 0
        and data["machine"] == "ml_dtypes"
        and data["answers"] == 6
        and data["experiments"] == ["fast", "plain"]
    )


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([], 2, "--machine"),
        (["--machine", "cuda"], 4, "cuda"),
        (["--machine", "numpy"], 4, "numpy cannot answer any of these questions: numpy has no e4m3fn"),
        (["--machine", "tpu"], 2, "unknown machine 'tpu'"),
        (["--machine", "numpy", "--out", "r.json"], 2, "a record is an .npz file"),
        (["--machine", "numpy", "--out", "file/r.npz"], 2, "is no folder"),
        (["nothing", "--machine", "numpy"], 2, "unknown experiment"),
    ],
)
def test_wrong_use(capsys, args, code, words):
    Path("file").write_text("mine")
    got, out, err = call(capsys, "record", *args)
    assert (got, out) == (code, "") and words in err and "Traceback" not in err
    assert not list(Path().rglob("*.npz")) and not list(Path().rglob("*.tmp"))
