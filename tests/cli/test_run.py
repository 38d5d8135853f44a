"""numsim run: text, pictures, JSON, verdicts, exit codes; and everything that can go wrong."""

import hashlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import numsim
from numsim.cli import main
from numsim.experiments import get_experiment, list_experiments, results
from numsim.gpu import driver
from numsim.machines import numpy_cpu
from numsim.machines.question import Answer
from numsim.machines.verdict import Verdict
from numsim.show import report
from numsim.show.text import plain
from tests.cli import fake

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake.install(monkeypatch.setattr, pictures=False)


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.setattr(fake.Fast, "EXPERIMENT", fake.experiment("fast"))


def call(capsys, *args):
    code = main(list(args))
    out = capsys.readouterr()
    return code, out.out, out.err


def start(*args, names="fast,plain", **options):
    """numsim in a process of its own, with fake experiments."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    command = [sys.executable, "-m", "tests.cli.fake", names, *args]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, stdin=subprocess.DEVNULL, **options
    )


def files_of(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in Path(folder).iterdir()}


# --- what it prints ---------------------------------------------------------------------------------------------------
def test_all(capsys, pictures):
    code, out, err = call(capsys, "run")
    assert code == 0 and err == "" and all(len(line) <= 80 for line in out.splitlines())
    assert (
        out.index("fast\nquestion")
        < out.index("answer    -416.0  (a tempting guess: -448)")
        < out.index("plain\nquestion")
    )
    assert "found" not in out and "sources" not in out and "a)" not in out  # one line each
    table = out[out.index("experiment  machine") :].splitlines()
    assert table[0] == "experiment  machine   against    compared  differ  verdict"
    assert table[1].split() == ["fast", "emulated", "numpy", "-", "-", "skipped:", "numpy", "has", "no", "e4m3fn"]
    assert "fast        emulated  ml_dtypes         6       1  as documented: rounds" in out
    assert "\n          -448 or -416.0?\n" in out
    assert "note  rounds twice: ml_dtypes 1\n      what each means, and who is right: numsim run fast\n" in out
    assert "rounds to float32 first" not in out
    assert out.endswith("next  look at numsim-results/fast-picture.png; numsim run fast tells why\n")
    assert "1 picture (PNG and SVG) and 2 results (JSON) in numsim-results" in out
    assert set(files_of("numsim-results")) == {"fast.json", "plain.json", "fast-picture.png", "fast-picture.svg"}


def test_one_thing_is_told_once(capsys):
    out = call(capsys, "run", "fast", "plain", "--against", "numpy", "--against", "ml_dtypes", "--against", "numpy")[1]
    table = out[out.index("experiment  machine") :]
    assert table.count("numpy has no e4m3fn") == 1 and table.count("emulated  numpy") == 2
    assert "note  rounds twice (ml_dtypes 1): rounds to float32 first" in table and "next  " not in table


def test_answers_with_two_causes_are_told():
    reasons = {name: (f"it {name}", "A choice") for name in ("drops", "doubles")}
    v = Verdict("emulated", "torch-cpu", 9, 2, documented={"drops": 4, "drops + doubles": 3}, reasons=reasons)
    for full in (True, False):
        told = " ".join(plain(report.verdict_notes([("a", v)], full=full)).split())
        assert "3 of 7 answers of torch-cpu have two causes and are counted under each." in told
    assert "drops: torch-cpu 7" in told and "doubles: torch-cpu 3" in told


def test_one_is_told_in_full(capsys, pictures):
    code, out, _ = call(capsys, "run", "fast")
    assert code == 0
    order = ["question", "a) -448", "answer    -416.0", "not       -448, a tempting guess. It was never a tie.",
             "Casts of – numbers", "found", "why       One. Two. Three", "sources ", "experiment  machine"]  # fmt: skip
    assert [out.index(words) for words in order] == sorted(out.index(words) for words in order)
    assert "  fast-picture.png" in out


def test_json_is_all_there_is(capsys, pictures):
    code, out, err = call(capsys, "run", "--json")
    assert code == 0 and err == ""
    data = json.loads(out)
    fast = data["results"][0]
    assert data["numsim"] == numsim.__version__ and fast == json.loads(Path("numsim-results/fast.json").read_text())
    assert fast["answer"] == "-416.0" and fast["parameters"] == {"numbers": 4, "target": "e4m3", "seed": 1}
    assert fast["series"]["nothing"] == "nan" and fast["provenance"]["numsim"] == numsim.__version__
    assert [v["verdict"] for v in fast["verdicts"]] == ["skipped: numpy has no e4m3fn", "as documented: rounds twice"]
    assert fast["pictures"] == [{"file": "fast-picture", "alt": "four numbers"}]
    assert fast["answers"][0]["question"].startswith("cast fp64[6] -> e4m3fn")


def test_a_rerun_changes_nothing(capsys, pictures):
    call(capsys, "run")
    before = files_of("numsim-results")
    call(capsys, "run")
    assert files_of("numsim-results") == before
    text = b"".join(Path("numsim-results", n).read_bytes() for n in ("fast-picture.svg", "fast-picture.png"))
    assert not re.search(rb"20\d\d-\d\d-\d\d", text)


def test_size_seed_student_and_course(capsys):
    def parameters(*args):
        assert call(capsys, "run", "fast", "--json", *args)[0] == 0
        return json.loads(Path("numsim-results/fast.json").read_text())

    assert parameters("--size", "full")["parameters"]["numbers"] == 9
    assert parameters("--seed", "0x10")["parameters"]["seed"] == 16
    one, same, two = (parameters("--student", s) for s in ("s123456", " s123456 ", "s123457"))
    assert one["parameters"]["seed"] == same["parameters"]["seed"] != two["parameters"]["seed"]
    assert one["student"] == "s123456" and one["course"] == "numsim"
    other = parameters("--student", "s123456", "--course", "numerics 2026")
    assert other["parameters"]["seed"] == results.student_seed("s123456", "numerics 2026") != one["parameters"]["seed"]
    assert parameters("--student", "学生7")["student"] == "学生7"


def test_a_seed_that_changes_nothing_is_told(capsys):
    assert "plain draws no random numbers: a seed changes nothing" in call(capsys, "run", "plain", "--seed", "3")[2]
    assert call(capsys, "run", "--seed", "3")[2] == ""


def test_slides_and_other_machines_have_names_of_their_own(capsys, pictures):
    call(capsys, "run", "fast", "--style", "slide")
    code, out, _ = call(capsys, "run", "fast", "--machine", "ml_dtypes")
    assert code == 0 and "fast        ml_dtypes  emulated         6       1  as documented" in out
    assert "answer    -448.0" in out
    assert set(files_of("numsim-results")) == {
        "fast.json", "fast-ml_dtypes.json", "fast-picture-slide.png", "fast-picture-slide.svg",
        "fast-picture-ml_dtypes.png", "fast-picture-ml_dtypes.svg",
    }  # fmt: skip


def test_what_could_not_be_asked_is_told(capsys):
    code, out, _ = call(capsys, "run", "--machine", "numpy")
    assert code == 0 and "answer    not answered" in out
    assert "skipped   fast: numpy has no e4m3fn (1)" in out


def test_a_machine_that_gives_the_common_guess(capsys, monkeypatch):
    monkeypatch.setattr(fake.Fast, "EXPERIMENT", fake.experiment("fast", wrong_guess="-448.0"))
    out = call(capsys, "run", "fast", "--machine", "ml_dtypes")[1]
    assert "but       It was never a tie." in out and "tempting guess" not in out


def test_against(capsys):
    _, out, _ = call(capsys, "run", "--against", "ml_dtypes", "--against", "emulated")
    rows = [line.split()[:3] for line in out.splitlines() if line.startswith(("fast  ", "plain  "))]
    assert rows == [[e, "emulated", m] for e in ("fast", "plain") for m in ("ml_dtypes", "emulated")]


# --- exit codes -------------------------------------------------------------------------------------------------------
def wrong_bit(monkeypatch, bit=1):
    """ml_dtypes with one bit wrong in one answer: the mutation that must be caught."""
    honest = numpy_cpu.MlDtypes.answer

    def lie(self, question):
        answer = honest(self, question)
        codes = answer.codes.copy()
        codes[1] ^= bit
        return Answer(codes, answer.provenance)

    monkeypatch.setattr(numpy_cpu.MlDtypes, "answer", lie)


@pytest.mark.parametrize("bit", [1, 2, 64, 128])
def test_one_wrong_bit_fails_the_run(capsys, monkeypatch, bit):
    wrong_bit(monkeypatch, bit)
    code, out, _ = call(capsys, "run", "fast")
    assert code == 1 and "1 UNEXPLAINED, 1 as" in out
    assert "UNEXPLAINED in fast, emulated against ml_dtypes:" in out
    assert "0x3fb999999999999a = 0.10000000000000001: 0x1d = 0.1015625 against" in " ".join(out.split())
    assert json.loads(Path("numsim-results/fast.json").read_text())["verdicts"][1]["unexplained"] == 1
    assert call(capsys, "run")[0] == 1


def test_a_wrong_bit_in_numsim_is_caught_too(capsys, monkeypatch):
    from numsim.machines.emulated import Emulated

    honest = Emulated.answer

    def lie(self, question):
        answer = honest(self, question)
        answer.codes[1] ^= 1
        return answer

    monkeypatch.setattr(Emulated, "answer", lie)
    assert call(capsys, "run", "fast")[0] == 1


def test_nan_bits(capsys, monkeypatch):
    def run(session):
        session.ask(fake.ask("cast", ["fp32"], "bf16", [np.array([0xFFC00001], np.uint32)]))
        return fake.run_without_numbers(session)

    only = fake.experiment("plain", run, defaults={}, draw=lambda r, s: [], against=("ml_dtypes",))
    monkeypatch.setattr(fake.Plain, "EXPERIMENT", only)
    code, out, _ = call(capsys, "run", "plain")
    assert code == 0 and "same bits but for NaN" in out
    assert call(capsys, "run", "plain", "--nan", "bits")[0] == 1


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--machine", "cuda"], 4, "no NVIDIA GPU found"),
        (["--against", "cuda"], 4, "no NVIDIA GPU found"),
        (["--against", "recorded"], 4, "--against FILE.npz"),
        (["--machine", "nunpy"], 2, "did you mean numpy?"),
        (["--against", "missing.npz"], 2, "there is no such file"),
        (["fats"], 2, "did you mean fast?"),
        (["quantum"], 2, "known are fast, plain"),
        (["--size", "huge"], 2, "invalid choice"),
        (["--nan", "quiet"], 2, "invalid choice"),
        (["--style", "poster"], 2, "invalid choice"),
        (["--seed", "-1"], 2, "from 0 to 2^64 - 1"),
        (["--seed", "18446744073709551616"], 2, "from 0 to 2^64 - 1"),
        (["--seed", "x" * 99], 2, "is no integer"),
        (["--seed", "１２"], 2, "is no integer"),
        (["--seed", "1", "--student", "x"], 2, "a student's seed comes from the ID"),
        (["--course", "x"], 2, "goes with --student"),
        (["--student", ""], 2, "printable characters"),
        (["--student", "a\nb"], 2, "printable characters"),
        (["--student", "x" * 201], 2, "printable characters"),
        (["--out", ""], 2, "is no path"),
        (["--out", "a\0b"], 2, "is no path"),
        (["--out", "file"], 2, "is no folder"),
        (["--out", "file/deeper"], 2, "is no folder"),
        (["--speed"], 2, "unknown option --speed"),
    ],
)
def test_wrong_use(capsys, monkeypatch, args, code, words):
    monkeypatch.setattr(driver, "driver_found", lambda: False)
    Path("file").write_text("mine")
    got, out, err = call(capsys, "run", *args)
    assert (got, out) == (code, "") and words in err and "Traceback" not in err and err.startswith("numsim: ")
    assert [p.name for p in Path().iterdir() if p.name != "file"] in ([], ["numsim-results"])


def test_a_folder_that_refuses(capsys, monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    code, out, err = call(capsys, "run", "--out", "numsim-results")
    assert (code, out) == (2, "") and "cannot write into numsim-results: permission denied" in err
    assert "Try another place: --out " in err and "--out numsim-results" not in err


@pytest.mark.skipif(
    os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_folder_without_permission(capsys, tmp_path):
    (tmp_path / "shut").mkdir(mode=0o500)
    code, _, err = call(capsys, "run", "--out", "shut")
    assert code == 2 and "permission denied" in err


def test_somebody_elses_file_is_not_replaced(capsys):
    Path("plain.json").write_text("{}")
    code, out, err = call(capsys, "run", "--out", ".")
    assert (code, out) == (2, "") and "plain.json is no result of numsim: --force" in err  # before any work
    assert Path("plain.json").read_text() == "{}" and files_of(".") == files_of(".")
    assert call(capsys, "run", "--out", ".", "--force")[0] == 0
    assert call(capsys, "run", "--out", ".")[0] == 0  # ours: replaced without asking


def test_without_matplotlib_the_rest_works(capsys, monkeypatch):
    def missing(result, style):
        raise ModuleNotFoundError("No module named 'matplotlib'")

    monkeypatch.setattr(fake.Fast, "EXPERIMENT", fake.experiment("fast", draw=missing))
    code, out, _ = call(capsys, "run", "fast")
    assert code == 0 and "skipped   pictures: matplotlib does not load here" in out
    assert json.loads(Path("numsim-results/fast.json").read_text())["pictures"] == []


@pytest.mark.parametrize("folder", ["with space", "結果 フォルダ", "ä'\""])
def test_folders_of_any_name(capsys, folder):
    code, out, _ = call(capsys, "run", "fast", "--out", folder)
    assert code == 0 and f"in {folder}" in out and "fast.json" in files_of(folder)


# --- guesses ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("typed", "guess", "words"),
    [("a", "-448", "-448: not so"), ("B)", "-416.0", "-416.0: right"), ("-416.0", "-416.0", "right"), ("", None, None),
     ("-416.0 %", "-416.0", "right")],
)  # fmt: skip
def test_ask(capsys, monkeypatch, typed, guess, words):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: typed)
    _, out, _ = call(capsys, "run", "fast", "--ask")
    assert json.loads(Path("numsim-results/fast.json").read_text()).get("guess") == guess
    assert (f"you said  {guess}" in out and words in out) if words else "you said" not in out


def test_ask_shows_the_choices_and_asks_again(capsys, monkeypatch):
    typed = iter(["42", "c", "b"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed, ""))
    out = call(capsys, "run", "--ask")[1]
    assert "a) -448\n          b) -416.0\n" in out and out.count("  please a to b, or Enter for no guess\n") == 2
    assert "you said  -416.0: right" in out


@pytest.mark.parametrize(
    ("words", "asked"),
    [(["--set", "numbers=9"], 1), (["--set", "numbers=4"], 1), (["--set", "target=E4M3FN"], 1),
     (["--set", "numbers=5"], 0), (["--set", "target=e5m2"], 0)],
)  # fmt: skip
def test_ask_when_the_choices_stand(capsys, monkeypatch, words, asked):
    """Full size with an answer that is one of the choices, and another spelling, leave the question as it is."""
    prompts = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or "b")
    code, out, err = call(capsys, "run", "fast", "--ask", *words)
    name, value = {"numbers=5": ("numbers", 4), "target=e5m2": ("target", "e4m3")}.get(words[1], ("", None))
    assert code == 0 and len(prompts) == asked == out.count("you said  -416.0: right") == out.count("b) -416.0")
    assert asked or f"fast: the choices are for {name} = {value}: no guess is asked for" in err
    data = json.loads(Path("numsim-results/fast.json").read_text())
    assert data.get("guess") == ("-416.0" if asked else None)
    assert data.get("asked_at") == (None if asked else {name: value})
    assert call(capsys, "check", "numsim-results/fast.json")[0] == 0


def test_other_parameters_than_the_questions(capsys):
    out = call(capsys, "run", "fast", "--set", "target=e5m2")[1]
    assert "\n          as it should be?\nasked at  target = e4m3\nhere      target = e5m2\nanswer    -448.0\n" in out
    assert "not  " not in out and "a)" not in out and "why       (for the target of the question) One. Two." in out
    out = call(capsys, "run", "--set", "numbers=5")[1]
    assert "asked at  numbers = 4\nhere      numbers = 5\nanswer    -416.0\n\nplain\nquestion" in out
    before = call(capsys, "run", "fast")[1]
    assert call(capsys, "run", "fast", "--set", "target=e4m3fn", "--seed", "1")[1] == before


def test_ask_without_a_terminal(capsys):
    code, out, err = call(capsys, "run", "fast", "--ask")
    assert code == 0 and "--ask needs a terminal" in err and "you said" not in out


def test_ask_and_end_of_input(capsys, monkeypatch):
    def end(prompt):
        raise EOFError

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", end)
    assert call(capsys, "run", "fast", "--ask")[0] == 0


# --- processes --------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
@pytest.mark.parametrize("names", ["fast,slow", "slow"])
def test_ctrl_c_leaves_what_is_finished(names):
    with start("run", names=names) as process:
        try:
            while (line := process.stderr.readline()) != b"waiting\n":
                assert line, process.communicate()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130 and b"Traceback" not in err
    if names == "slow":
        assert b"interrupted in slow; nothing was finished" in err and files_of("numsim-results") == {}
        return
    assert b"interrupted in slow; finished and saved: fast" in err and b"answer    -416.0" in out
    assert set(files_of("numsim-results")) == {"fast.json", "fast-picture.png", "fast-picture.svg"}
    assert main(["check", "numsim-results/fast.json"]) == 0


@pytest.mark.parametrize("encoding", ["cp932", "cp1252", "ascii", "utf-8"])
def test_any_output_encoding(encoding):
    with start("run", "fast", "--out", "結果 ä", env={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}) as process:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0 and err == b""
    text = out.decode(encoding)
    assert re.search("E4M3 [-–] rounded", " ".join(text.split())) and "Three" in text
    assert max(map(len, text.splitlines())) <= 80
    assert set(files_of("結果 ä")) == {"fast.json", "fast-picture.png", "fast-picture.svg"}


def test_a_closed_pipe_is_no_error():
    with start("run", "fast") as process:
        try:
            process.stdout.close()
            err = process.stderr.read()
            process.wait(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 141 and b"Traceback" not in err


@pytest.mark.parametrize("columns", [0, 30, 60, 200])
def test_progress_is_for_terminals_only(columns):
    pty, fcntl, termios = (pytest.importorskip(m, reason="no pseudo-terminals") for m in ("pty", "fcntl", "termios"))
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "tests.cli.fake", "fast", "run"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, env=environment, timeout=60, check=False)
    os.close(terminal)
    shown = os.read(controller, 65536).decode()
    os.close(controller)
    assert done.returncode == 0 and "[1/1] fast: asking emulated" in shown and "comparing with" in shown
    room = min(columns or 80, 80) - 1
    assert all(len(part) <= room for part in shown.split("\r"))
    assert shown.endswith("\r" + " " * room + "\r") and b"asking" not in done.stdout


# --- numsim's own -----------------------------------------------------------------------------------------------------
def test_run_swamping_is_light_and_quick(tmp_path):
    code = (
        "import sys, numsim.cli; code = numsim.cli.main(['run', 'swamping']);"
        "print('LOADED', sorted({'numba', 'torch', 'llvmlite'} & set(sys.modules)), code)"
    )
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert "LOADED [] 0" in done.stdout and done.stderr == ""
    assert "answer    2048" in done.stdout and time.perf_counter() - begin < 30  # about 2 s; CI may be slow


def test_the_registry(monkeypatch):
    monkeypatch.undo()
    cores = ("accumulator", "kept-bits", "chips", "blocks", "tf32", "invariance")
    blocks = ("mx-scale", "nf4")
    updates = ("accumulation", "adam", "clipping")
    scaling = ("loss-scaling", "scale-window", "blind-scaler", "collapse", "delayed-scaling", "recipes")
    first = ("swamping", "underflow", "master-weights", "casts")
    assert list_experiments() == (*first, *cores, *blocks, *updates, *scaling)
    for name in list_experiments():
        e = get_experiment(name)
        assert e.name == name and e.choices[0] == e.wrong_guess
        assert set(e.full) <= set(e.defaults) and set(e.against) <= {"numpy", "ml_dtypes", "torch-cpu"}
    assert get_experiment("Master_Weights ").name == "master-weights"
