"""numsim check: what is right is equal, what was changed is found, and what is hostile is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import numsim
from numsim import files
from numsim.cli import check, main
from numsim.experiments.results import _differ
from numsim.machines import Answer, ask, get_machine
from numsim.machines.recorded import record_bytes
from tests.cli import fake

RESULT = Path("numsim-results/fast.json")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake.install(monkeypatch.setattr, pictures=False)


def call(capsys, *args):
    code = main(list(args))
    out = capsys.readouterr()
    return code, out.out, out.err


def make(capsys, *args):
    assert call(capsys, "run", "fast", "--json", *args)[0] == 0
    return json.loads(RESULT.read_text())


# --- results ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("args", [[], ["--size", "full"], ["--seed", "77"], ["--student", "学生 7", "--course", "c"]])
def test_what_was_computed_is_equal(capsys, args):
    make(capsys, *args)
    code, out, err = call(capsys, "check", str(RESULT))
    assert code == 0 and err == "" and out.splitlines()[0].endswith("fast.json: equal")
    assert ("student 学生 7 of c" in out) == ("--student" in args)


CHANGES = {
    "question": (lambda d: d.update(question="Is it?"), 'question: "Is it?" in the file, "What is the float64'),
    "no question": (lambda d: d.pop("question"), "question: null in the file"),
    "answer": (lambda d: d.update(answer="-448"), 'answer: "-448" in the file, "-416.0" recomputed'),
    "finding": (lambda d: d["findings"].__setitem__(0, "x"), "findings 1:"),
    "cell": (lambda d: d["tables"][0]["rows"][1].__setitem__(1, 7), "tables 1 rows 2 2: 7 in the file"),
    "row": (lambda d: d["tables"][0]["rows"].pop(), "tables 1 rows:"),
    "title": (lambda d: d["tables"][0].update(title="x"), "tables 1 title:"),
    "series": (lambda d: d["series"]["values"].__setitem__(0, 5.0), "series values 1: 5.0 in the file"),
    "series more": (lambda d: d["series"].update(more=1), "series: {"),
    "series gone": (lambda d: d["series"].clear(), "series: {} in the file"),
    "answer's digest": (lambda d: d["answers"][0].update(answer="0" * 64), "answers 1 answer:"),
    "question's digest": (lambda d: d["answers"][0].update(question="0"), "answers 1 question:"),
    "no answers": (lambda d: d["answers"].clear(), "answers: [] in the file"),
    "seed": (lambda d: d["parameters"].update(seed=2), "series values 3:"),
    "other type": (lambda d: d["tables"][0]["rows"][1].__setitem__(0, True), "tables 1 rows 2 1: true in the file"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_is_found(capsys, name):
    data = make(capsys)
    change, words = CHANGES[name]
    change(data)
    RESULT.write_text(json.dumps(data))
    code, out, _ = call(capsys, "check", str(RESULT))
    assert code == 1 and "fast.json: DIFFERS" in out and words in " ".join(out.split())
    code, out, _ = call(capsys, "check", str(RESULT), "--json")
    told = json.loads(out)["checked"][0]
    assert code == 1 and told["equal"] is False and any(words in d for d in told["differences"])


def test_statistics_may_differ_in_the_last_digits(capsys):
    data = make(capsys)
    data["series"]["values"][2] *= 1 + 1e-13
    RESULT.write_text(json.dumps(data))
    assert call(capsys, "check", str(RESULT))[0] == 0


def test_what_is_compared_is_told(capsys):
    data = make(capsys)
    data["verdicts"].clear()
    RESULT.write_text(json.dumps(data))
    code, out, _ = call(capsys, "check", str(RESULT))
    told = "findings, tables, series, traces, all answers' bits not compared: verdicts, guess"
    assert code == 0 and told in " ".join(out.split())


def test_one_is_not_true(capsys):
    told = list(_differ({"a": [1, 1.0]}, {"a": [True, True]}, ""))
    assert told == ["a 1: 1 in the file, true recomputed", "a 2: 1.0 in the file, true recomputed"]
    assert not list(_differ({"a": [1, "x", None, 0.1]}, {"a": [1.0, "x", None, 0.1]}, ""))


def test_somebody_elses_seed_is_found(capsys):
    data = make(capsys, "--student", "s1")
    data["student"] = "s2"
    RESULT.write_text(json.dumps(data))
    code, out, _ = call(capsys, "check", str(RESULT))
    assert code == 1 and "is that of student s2" in " ".join(out.split())


def test_another_version_is_told(capsys):
    data = make(capsys)
    data["numsim"] = "0.0.1"
    RESULT.write_text(json.dumps(data))
    code, out, _ = call(capsys, "check", str(RESULT))
    assert code == 0 and f"written by numsim 0.0.1; this is {numsim.__version__}" in out


def test_a_result_of_another_machine(capsys, monkeypatch):
    assert call(capsys, "run", "fast", "--machine", "ml_dtypes")[0] == 0
    path = Path("numsim-results/fast-ml_dtypes.json")
    code, out, _ = call(capsys, "check", str(path))
    assert code == 0 and "fast-ml_dtypes.json: as documented" in out and "ml_dtypes gives the same here" in out
    data = json.loads(path.read_text())
    data["answer"] = "17"
    path.write_text(json.dumps(data))
    code, out, _ = call(capsys, "check", str(path))
    assert code == 1 and '"17" in the file, "-448.0" recomputed' in " ".join(out.split())
    data["machine"] = "cuda"
    path.write_text(json.dumps(data))
    code, out, _ = call(capsys, "check", str(path))
    assert code == 4 and "cuda cannot be asked here" in " ".join(out.split())
    assert "cannot be checked here" in out and "recomputed" not in out  # only the reason
    data["machine"] = "recorded"
    path.write_text(json.dumps(data))
    code, out, _ = call(capsys, "check", str(path))
    assert code == 4 and "numsim check FILE.npz" in out and "recomputed" not in out
    data["machine"] = "HAL 9000"
    path.write_text(json.dumps(data))
    assert call(capsys, "check", str(path))[0] == 4


HOSTILE = {
    "not JSON": b"hello",
    "empty": b"",
    "cut": b'{"numsim_result": 1, "numsim',
    "binary": bytes(range(256)),
    "a list": b"[1, 2]",
    "a number": b"7",
    "deep": b"[" * 200_000,
    "NaN": b'{"numsim_result": NaN}',
    "beyond float64": b'{"numsim_result": 1e999}',
    "another file": b'{"name": "x"}',
}
WILD = {
    "layout": lambda d: d.update(numsim_result=2),
    "layout that is true": lambda d: d.update(numsim_result=True),
    "layout that is a list": lambda d: d.update(numsim_result=[1] * 1000),
    "experiment": lambda d: d.update(experiment="../../etc/passwd"),
    "experiment that is a number": lambda d: d.update(experiment=7),
    "parameters that are a list": lambda d: d.update(parameters=[1]),
    "an unknown parameter": lambda d: d["parameters"].update(session="x"),
    "a wild parameter": lambda d: d["parameters"].update(target=["e4m3"]),
    "a wild format": lambda d: d["parameters"].update(target="fp17"),
    "a wild number": lambda d: d["parameters"].update(numbers="many"),
    "no tables": lambda d: d.pop("tables"),
    "tables that are a text": lambda d: d.update(tables="x"),
    "a student that is a list": lambda d: d.update(student=["s1"]),
    "a student who writes to the terminal": lambda d: d.update(student="\x1b[2J", seed=1),
    "a machine of two lines": lambda d: d.update(machine="emulated\nnumpy"),
    "an endless version": lambda d: d.update(numsim="9" * 999),
    "no machine": lambda d: d.pop("machine"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*HOSTILE, *WILD])
def test_hostile_results(capsys, name):
    if name in HOSTILE:
        RESULT.parent.mkdir()
        RESULT.write_bytes(HOSTILE[name])
    else:
        data = make(capsys)
        WILD[name](data)
        RESULT.write_text(json.dumps(data))
    code, out, err = call(capsys, "check", str(RESULT))
    assert (code, out) == (2, "") and err.startswith("numsim: ") and "fast.json" in err
    assert "Traceback" not in err and "bug" not in err and len(err) < 600


@pytest.mark.parametrize(
    ("name", "words"),
    [("no.json", "there is no such file"), (".", "is a folder"), ("", "is no path"), ("a\0b", "is no path")],
)
def test_files_that_are_none(capsys, name, words):
    code, _, err = call(capsys, "check", name)
    assert code == 2 and words in err


def test_numsims_own_experiments_refuse_wild_parameters(capsys, monkeypatch):
    """A submission cannot ask for a year of work or a terabyte."""
    monkeypatch.undo()
    from numsim.experiments import get_experiment, list_experiments
    from numsim.experiments.results import recompute
    from numsim.machines import find_machine

    for name in list_experiments():
        for key in set(get_experiment(name).defaults) - {"seed"}:
            for wild in (10**12, -1, 1e300, "x" * 1000, ["x"], [["fp16"]], {"a": 1}, None):
                data = {"experiment": name, "parameters": {key: wild}}
                with pytest.raises(numsim.errors.RecordError, match="cannot be recomputed"):
                    recompute(data, find_machine("emulated"), "x.json")


# --- records ----------------------------------------------------------------------------------------------------------
def cast(machine="numpy"):
    q = ask("cast", ["fp32"], "fp16", [np.array([0x3DCCCCCD, 0x7FC00001, 0], np.uint32)])
    return q, get_machine(machine).answer(q)


def test_a_record_that_is_right(capsys):
    Path("r.npz").write_bytes(record_bytes([cast()]))
    code, out, _ = call(capsys, "check", "r.npz")
    assert code == 0 and "r.npz: equal" in out and "1 question, 3 results of numpy" in out
    Path("no suffix").write_bytes(record_bytes([cast()]))
    assert call(capsys, "check", "no suffix")[0] == 0  # known by its first bytes


def test_a_record_with_a_wrong_bit(capsys):
    q, answer = cast()
    codes = answer.codes.copy()
    codes[0] ^= 1
    Path("r.npz").write_bytes(record_bytes([(q, Answer(codes, answer.provenance))]))  # forged, digests and all
    code, out, _ = call(capsys, "check", "r.npz")
    assert code == 1 and "r.npz: DIFFERS" in out and "1 UNEXPLAINED" in out
    assert "0x2e67 = 0.10003662109375 against 0x2e66 = 0.0999755859375" in " ".join(out.split())


def test_nan_bits(capsys):
    q, answer = cast()
    codes = answer.codes.copy()
    codes[1] = 0xFE01
    Path("r.npz").write_bytes(record_bytes([(q, Answer(codes, answer.provenance))]))
    assert call(capsys, "check", "r.npz")[0] == 0
    assert call(capsys, "check", "r.npz", "--nan", "bits")[0] == 1


def test_hostile_records(capsys):
    good = record_bytes([cast()])
    for data in (b"PK", b"", good[:100], good[:-10], files.npz_bytes({"a": np.zeros(3, np.uint8)})):
        Path("r.npz").write_bytes(data)
        code, out, err = call(capsys, "check", "r.npz")
        assert (code, out) == (2, "") and "r.npz" in err and "Traceback" not in err


def test_a_question_that_the_emulator_refuses(capsys):
    q = ask("cast", ["fp32"], "e2m1", [np.array([0x7FC00000], np.uint32)])  # NaN, nan="raise"
    Path("r.npz").write_bytes(record_bytes([(q, get_machine("ml_dtypes").answer(q))]))
    code, out, _ = call(capsys, "check", "r.npz")
    assert code == 1 and "NaN has no code in e2m1" in " ".join(out.split())


def test_small_files_that_ask_for_hours_or_for_all_memory(capsys):
    """Directed rounding of FP64 has no kernel; operands of an elementwise question may broadcast to a huge result."""
    big = np.zeros((700, 700), np.uint64)
    slow = ask("matmul", ["fp64", "fp64"], "fp64", [big, big], rounding="up")
    wide = ask("add", ["e4m3", "e4m3"], "e4m3", [np.zeros((1, 15000), np.uint8), np.zeros((15000, 1), np.uint8)])
    for q, words in ((slow, "some minutes"), (wide, "results: so many are not recomputed")):
        answer = np.zeros(q.shape, f"u{q.output.code_bytes}")
        Path("r.npz").write_bytes(record_bytes([(q, Answer(answer, {"machine": "numpy"}))]))
        code, _, err = call(capsys, "check", "r.npz")
        assert code == 2 and words in " ".join(err.split())


def test_parameters_must_be_all_there(capsys):
    data = make(capsys)
    data["parameters"].popitem()
    RESULT.write_text(json.dumps(data))
    code, _, err = call(capsys, "check", str(RESULT))
    assert code == 2 and "is missing" in " ".join(err.split())


def test_work_is_bounded(capsys, monkeypatch):
    Path("r.npz").write_bytes(record_bytes([cast()]))
    monkeypatch.setattr(check, "_MOST_WORK", 2)
    code, _, err = call(capsys, "check", "r.npz")
    assert code == 2 and "at most 2e+00 roundings where numsim has a kernel" in err
    a, b = np.zeros((30, 20), np.uint16), np.zeros((20, 40), np.uint16)
    assert check.work(ask("matmul", ["fp16"] * 2, "fp16", [a, b])) == 30 * 20 * 40
    assert check.work(ask("sum", ["fp16"], "fp16", [a])) == 600


def test_several_files_and_a_report(capsys):
    make(capsys)
    Path("r.npz").write_bytes(record_bytes([cast()]))
    code, out, _ = call(capsys, "check", str(RESULT), "r.npz", "--out", "report.json")
    assert code == 0 and out.count(": equal") == 2
    assert [c["kind"] for c in json.loads(Path("report.json").read_text())["checked"]] == ["result", "record"]


def test_a_file_of_something_else(capsys):
    Path("README.md").write_text("# numbers\n")
    code, out, err = call(capsys, "check", "README.md")
    assert (code, out) == (2, "") and "README.md is no result (.json) or record (.npz) of numsim" in err
    Path("broken.json").write_text("{")
    code, out, err = call(capsys, "check", "broken.json")
    assert (code, out) == (2, "") and "is no result" not in err and "broken.json" in err
