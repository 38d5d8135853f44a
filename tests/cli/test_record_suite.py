"""numsim record --suite and numsim check of what it wrote; and that recording takes nothing but NumPy."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numsim import kernels
from numsim.cli import main, record
from numsim.errors import UnavailableError
from numsim.machines import Can, ask, find_machine
from numsim.machines.emulated import emulate
from numsim.machines.recorded import read_record, write_record
from numsim.suites import Suite, tensorcore
from numsim.tensorcore import get_model
from tests.gpu import cpu
from tests.suites.fake import Gpu
from tests.suites.test_tensorcore import changed

F16, FP8 = "mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k32.f32.e4m3.e4m3.f32"
ROOT = Path(__file__).resolve().parents[2]
FILE = "tensorcore-nvidia-h200"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A GPU of two instructions, asked for little."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tensorcore, "list_models", lambda chip: [get_model(chip, name) for name in (F16, FP8)])
    monkeypatch.setattr(tensorcore, "EXPERIMENTS", {"kept-bits": {}})
    monkeypatch.setattr(tensorcore, "OUTPUTS", 128)
    monkeypatch.setattr(tensorcore, "_LARGE", ())
    put(monkeypatch, Gpu())


def put(monkeypatch, machine):
    monkeypatch.setattr(record, "get_machine", lambda name: machine)


def call(capsys, *args):
    code = main(list(args))
    out = capsys.readouterr()
    return code, out.out, out.err


def recorded(capsys, *args):
    return call(capsys, "record", "--suite", "tensorcore", "--machine", "cuda", "--out", "out", *args)


def test_record_and_check(capsys):
    code, out, err = recorded(capsys)
    assert code == 0 and f"numsim: wrote out/{FILE}.html" in err
    assert f"out/{FILE}.npz: 0.1 MB" in out and "mma, 2 instructions" in out and "same bits" in out
    assert "torch is not installed" in out and max(map(len, out.splitlines())) <= 80 and out.isascii()
    kept = read_record(f"out/{FILE}.npz")
    assert kept.suite == "tensorcore" and set(kept.parts) == {F16, FP8, "experiment kept-bits"}
    assert kept.provenance["seed"] == 1
    page = Path(f"out/{FILE}.html").read_text(encoding="utf-8")
    assert F16.replace(".", ".<wbr>") in page and "<svg" in page
    code, out, err = call(capsys, "check", f"out/{FILE}.npz")
    assert code == 0 and f"out/{FILE}.npz: equal" in out and "mma, 2 instructions" in out and err == ""
    assert call(capsys, "run", "kept-bits", "--chip", "h200", "--against", f"out/{FILE}.npz")[0] == 0


def test_check_writes_what_is_asked_for(capsys):
    recorded(capsys)
    for out, written in (
        ("p.html", ["p.html"]),
        ("r.json", ["r.json"]),
        ("folder/", ["folder/check.html", "folder/check.json", "folder/check.txt"]),
    ):
        assert call(capsys, "check", f"out/{FILE}.npz", "--out", out)[0] == 0  # fmt: skip
        assert all(Path(name).exists() for name in written)
    assert "<html" in Path("p.html").read_text(encoding="utf-8")
    told = json.loads(Path("r.json").read_text())["checked"][0]
    assert told["kind"] == "suite" and told["equal"] and {p["part"] for p in told["parts"]} >= {F16, FP8}
    code, out, err = call(capsys, "check", f"out/{FILE}.npz", f"out/{FILE}.npz", "--out", "p.html")
    assert code == 2 and out == "" and "a page is of one record of a suite" in err


def test_json_is_json(capsys):
    code, out, _ = recorded(capsys, "--json", "--seed", "7")
    (told,) = json.loads(out)["records"]
    assert code == 0 and told["suite"] == "tensorcore" and told["device"] == "NVIDIA H200" and not told["unexplained"]
    assert read_record(told["file"]).provenance["seed"] == 7
    assert any("torch is not installed" in why for why in told["skipped"].values())
    code, out, _ = call(capsys, "check", told["file"], "--json")
    assert code == 0 and json.loads(out)["checked"][0]["verdict"]["unexplained"] == 0


def test_an_existing_file_is_kept(capsys, monkeypatch):
    recorded(capsys)
    before = Path(f"out/{FILE}.npz").read_bytes()

    class Silent(Gpu):
        def answer(self, question):
            raise AssertionError("asked before it was known where the answers go")

    put(monkeypatch, Silent())
    code, out, err = recorded(capsys)
    assert code == 2 and out == "" and "exists: --force replaces it" in err
    assert Path(f"out/{FILE}.npz").read_bytes() == before
    put(monkeypatch, Gpu())
    assert recorded(capsys, "--force", "--seed", "2")[0] == 0
    assert Path(f"out/{FILE}.npz").read_bytes() != before


def test_another_unit_is_a_failed_check(capsys, monkeypatch):
    put(monkeypatch, Gpu(way=changed(fraction_bits=26)))
    code, out, _ = recorded(capsys)
    assert code == 1 and "UNEXPLAINED" in out and max(map(len, out.splitlines())) <= 80
    code, out, _ = call(capsys, "check", f"out/{FILE}.npz")
    assert code == 1 and f"out/{FILE}.npz: DIFFERS" in out and "F = 26" in out


def test_nan_codes(capsys, monkeypatch):
    def other(model, arrays):
        made = changed()(model, arrays)
        return np.where(made == model.nan, made.dtype.type(0x7FC00000), made)

    put(monkeypatch, Gpu(way=other))
    assert recorded(capsys)[0] == 0
    assert call(capsys, "check", f"out/{FILE}.npz", "--nan", "bits")[0] == 1


def test_a_failing_instruction(capsys, monkeypatch):
    put(monkeypatch, Gpu(broken=[FP8]))
    code, out, _ = recorded(capsys)
    assert code == 1 and "FAILED" in out and "elements are misplaced" in out and "same bits" in out
    assert call(capsys, "check", f"out/{FILE}.npz")[0] == 1


def test_nothing_answered(capsys, monkeypatch):
    class Mute(Gpu):
        def can(self, question=None):
            return replace_reason(super().can(question))

    def replace_reason(can):
        return can._replace(yes=False, reason="needs compute capability 99.0")

    put(monkeypatch, Mute())
    code, out, err = recorded(capsys)
    assert code == 4 and out == "" and "answered nothing: " in err and "needs compute capability 99.0" in err
    assert not Path("out", f"{FILE}.npz").exists()


def test_a_gpu_whose_units_cannot_be_asked(capsys, monkeypatch):
    """torch's half only: what it answered is kept and compared, and the command says that it is not what was asked."""

    class Half(Gpu):
        chip = property(lambda self: missing(), lambda self, name: None)

        def provenance(self):
            return {"machine": "cuda", "device": "NVIDIA H200", "compute_capability": "9.0"}

        def can(self, question=None):
            return Can(question is None or question.operation == "matmul")

    def missing():
        raise UnavailableError("cuda-bindings does not load: pip install it")

    q = ask("matmul", ["fp32", "fp32"], "fp32", [np.zeros((2, 2), np.uint32)] * 2)
    monkeypatch.setattr(tensorcore, "_library", lambda *arguments: q)
    put(monkeypatch, Half())
    code, out, _ = recorded(capsys)
    said = " ".join(out.split())
    assert code == 4 and "No instruction was asked: cuda-bindings does not load: pip install it." in said
    code, out, _ = recorded(capsys, "--json", "--force")
    (told,) = json.loads(out)["records"]
    assert code == 4 and told["lacks"].startswith("no instruction was asked") and told["status"] == "equal"


def test_a_reason_is_told_once(capsys, monkeypatch):
    def ask_nothing(collector):
        with collector.part("all"):
            raise UnavailableError("it sleeps")

    silent = {name: Suite(name, "", "?", ask_nothing, lambda r: [], lambda r, s: []) for name in ("a", "b")}
    monkeypatch.setattr(record, "SUITES", {"a": "", "b": "", "tensorcore": ""})
    monkeypatch.setattr(record, "get_suite", lambda name: silent.get(name, tensorcore.SUITE))
    args = ["record", "--suite", "all", "--machine", "cuda", "--out", "out", "--force"]
    code, _, err = call(capsys, *args)
    assert code == 0 and err.count("it sleeps") == 1 and "nothing answered: it sleeps (a, b)" in err
    monkeypatch.setattr(record, "SUITES", {"a": "", "b": ""})
    code, out, err = call(capsys, *args)
    assert (code, out) == (4, "") and err.count("it sleeps") == 1 and len(err.splitlines()) == 1


def test_a_suite_s_record_that_holds_none_of_the_questions(capsys):
    recorded(capsys)
    code, _, err = call(capsys, "run", "swamping", "--against", f"out/{FILE}.npz")
    assert code == 2 and "a record of the suite tensorcore" in err and f"Example: numsim check out/{FILE}.npz" in err


def test_the_status_of_a_record(capsys, monkeypatch):
    for machine, status in ((Gpu(), "equal"), (Gpu(way=changed(fraction_bits=26)), "unexplained"),
                            (Gpu(broken=[FP8]), "failed")):  # fmt: skip
        put(monkeypatch, machine)
        recorded(capsys, "--force")
        checked = json.loads(call(capsys, "check", f"out/{FILE}.npz", "--json")[1])["checked"][0]
        assert checked["status"] == status and checked["equal"] == (status == "equal")


def test_without_a_gpu(capsys, monkeypatch):
    monkeypatch.undo()
    if find_machine("cuda").can():
        pytest.skip("there is a GPU here")
    code, out, err = call(capsys, "record", "--suite", "tensorcore", "--machine", "cuda")
    assert code == 4 and out == "" and len(err.splitlines()) == 1 and "GPU" in err
    assert err.endswith("Example: numsim record --suite casts --machine torch-cpu\n")
    _, _, err = call(capsys, "record", "casts", "--machine", "cuda")
    assert err.endswith("Example: numsim record casts --machine torch-cpu\n")


def test_without_kernels_it_is_only_recorded(capsys, monkeypatch):
    monkeypatch.setattr(kernels, "why_not", lambda: "numba is not installed")
    code, out, _ = recorded(capsys)
    assert code == 0 and "\nnot compared here: numba is not installed\n" in out
    assert f"\ncompare it anywhere: numsim check out/{FILE}.npz\n" in out
    assert "skipped: torch is not installed (7 parts)" in out and "verdict" not in out


@pytest.mark.parametrize(("args", "words"), [
    (["--suite", "tensorcores"], "unknown suite 'tensorcores': did you mean tensorcore?"),
    (["kept-bits", "--suite", "tensorcore"], "--suite asks what it asks"),
    (["--suite", "tensorcore", "--chip", "h100"], "--suite asks what it asks"),
    (["--suite", "tensorcore", "--out", "x.npz"], "records of suites go to a folder"),
])  # fmt: skip
def test_wrong_use(capsys, args, words):
    code, out, err = call(capsys, "record", *args, "--machine", "cuda")
    assert code == 2 and out == "" and words in err and "Example: " in err and len(err.splitlines()) == 1


def test_a_record_of_a_suite_that_is_unknown(capsys):
    recorded(capsys)
    kept = read_record(f"out/{FILE}.npz")
    parts = {"suite": "nonsense", "parts": kept.parts}
    write_record("other.npz", kept.answers, **parts)
    code, out, err = call(capsys, "check", "other.npz")
    assert code == 2 and out == "" and "unknown suite 'nonsense'" in err


LEAN = """
import sys, pathlib
absent = ("numba", "ml_dtypes", "matplotlib", "rich", "torch")
sys.modules.update(dict.fromkeys(absent))  # no import finds them
from numsim.gpu import driver
from numsim.tensorcore import get_model
from numsim.suites import tensorcore
from tests.gpu.cpu import Cpu
device = Cpu("t4", pathlib.Path(sys.argv[1]))
driver.device = lambda: device
tensorcore.list_models = lambda chip: [get_model(chip, "mma.m16n8k8.f32.f16.f16.f32")]
tensorcore.EXPERIMENTS = {"kept-bits": {}}
tensorcore.OUTPUTS, tensorcore._LARGE = 16, ()
tensorcore.questions = lambda model, seed, all=tensorcore.questions: [q for q in all(model, seed) if q[0] == "near"]
from numsim.cli import main
code = main(["record", "--suite", "tensorcore", "--machine", "cuda", "--out", sys.argv[1]])
loaded = [name for name in sys.modules if name.partition(".")[0] in absent and sys.modules[name]]
print(code, loaded)
"""


@pytest.mark.skipif(bool(cpu.why_not()), reason=cpu.why_not())
def test_recording_takes_numpy_only(tmp_path, monkeypatch):
    """The kernels, on a GPU made of this CPU; numba, torch and what draws cannot be imported, and nobody tries to."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LEAN, str(tmp_path)], cwd=ROOT, env=environment,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "0 []" and "compare it anywhere: numsim check" in done.stdout
    kept = read_record(tmp_path / "tensorcore-nvidia-t4.npz")
    assert {"mma.m16n8k8.f32.f16.f16.f32", "experiment kept-bits"} == set(kept.parts)
    monkeypatch.undo()  # compared as any record is
    assert [row.verdict.text for row in tensorcore.SUITE.compare(kept)][:2] == ["same bits"] * 2


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_what_was_answered_before_an_end_is_kept(how, monkeypatch, capsys):
    def way(model, arrays):
        if model.instruction == FP8:
            if how == "Ctrl-C":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGTERM)
        return emulate(tensorcore._question(model, arrays))

    put(monkeypatch, Gpu(way=way))
    before = signal.getsignal(signal.SIGTERM)
    code, _, err = recorded(capsys)
    assert code == 130 and "interrupted" in err and signal.getsignal(signal.SIGTERM) == before
    kept = read_record(f"out/{FILE}.npz")
    assert set(kept.parts) == {F16} and kept.skipped["the rest"] == "recording was stopped"


def test_what_goes_wrong_in_a_part_costs_that_part_only(monkeypatch, capsys):
    def way(model, arrays):
        if model.instruction == F16:
            raise ValueError("a library's own")
        return emulate(tensorcore._question(model, arrays))

    put(monkeypatch, Gpu(way=way))
    code, _, _ = recorded(capsys)
    kept = read_record(f"out/{FILE}.npz")
    assert code == 1 and kept.failed[F16] == "ValueError: a library's own" and FP8 in kept.parts
