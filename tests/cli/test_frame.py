"""The command line as a whole: exit codes, streams, encodings, no traceback; light starts."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import numsim
from numsim import cli
from numsim.cli import COMMANDS, main
from numsim.errors import InputError, UnavailableError

FORMATS = [sys.executable, "-m", "numsim", "formats"]


def numsim_process(*args: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    env = {
        k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "PYTHONIOENCODING", "PYTHONUTF8")
    }
    return subprocess.run([sys.executable, "-m", "numsim", *args], capture_output=True, timeout=120, check=False,
                          env={**env, **environment})  # fmt: skip


# --- help ------------------------------------------------------------------------------------------------------------
def test_numsim_alone_says_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--help"], ["-h"], ["help"]):
        assert main(argv) == 0
        shown = capsys.readouterr().out
        assert 'numsim explain "2048 + 1" --format fp16' in shown
        assert all(f"\n  {name} " in shown for name in COMMANDS)
        assert len(shown.splitlines()) <= 24 and all(len(line) <= 80 for line in shown.splitlines())


def test_the_table_of_commands_and_the_modules_agree() -> None:
    modules = {m.name for m in pkgutil.iter_modules(cli.__path__) if not m.name.startswith("_")}
    assert modules == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_screen_and_ends_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    lines = shown.rstrip().splitlines()
    assert lines[0].startswith(f"usage: numsim {name} ")
    assert len(lines) <= 44 and all(len(line) <= 80 for line in lines)
    examples = lines[lines.index("examples:") + 1 :]
    assert examples and all(line.startswith("  numsim ") for line in examples)
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == main(["-V"]) == 0
    assert capsys.readouterr().out == f"numsim {numsim.__version__}\n" * 2


def test_the_script_and_the_module_are_one_program() -> None:
    scripts = [e for e in importlib.metadata.entry_points(group="console_scripts") if e.name == "numsim"]
    assert all(script.load() is main for script in scripts)  # none where numsim runs without being installed
    assert numsim_process("--version").stdout.split() == [b"numsim", numsim.__version__.encode()]


# --- wrong use -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("argv", "words"), [
    (["explan"], "did you mean explain?"), (["show"], "did you mean explain?"), (["info"], "did you mean doctor?"),
    (["zzzz"], "known are explain, formats"), (["EXPLAIN"], "unknown command"), (["\ud800é\n"], "unknown command"),
    (["--format", "fp16"], "comes before any command"), (["explain"], "EXPR"), (["help", "zzzz"], "unknown command"),
    (["explain", "0.1", "--fromat", "fp16"], "unknown option --fromat: did you mean --format?"),
    (["explain", "0.1", "--form", "fp16"], "unknown option --form"),
    (["explain", "0.1", "--format"], "expected one argument"),
    (["explain", "0.1", "--bogus"], "known are --"), (["formats", "--seed", "3"], "unknown option --seed"),
    (["explain", "0.1", "--format", "fp8"], "did you mean e4m3 (forward) or e5m2 (gradients)?"),
    (["explain", "0.1", "--seed", "x"], "no integer"), (["explain", "0.1", "--seed", "9" * 5000], "no integer"),
])  # fmt: skip
def test_wrong_use_is_one_message_and_code_2(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and words in shown.err
    assert shown.err.startswith("numsim: ") and "Traceback" not in shown.err and len(shown.err) < 800


# --- errors of all kinds ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("error", "code", "words"), [
    (UnavailableError("no GPU here"), 4, "numsim: no GPU here"), (InputError("wrong"), 2, "numsim: wrong"),
    (KeyboardInterrupt(), 130, "numsim: interrupted"), (MemoryError(), 4, "not enough memory"),
    (PermissionError(13, "Permission denied", "x"), 2, "Permission denied"), (BrokenPipeError(), 141, ""),
    (ZeroDivisionError("what\nis this"), 70, "a bug in numsim, not in what you typed: ZeroDivisionError: what is this"),
    (RecursionError("deep"), 70, "NUMSIM_TRACEBACK=1"),
])  # fmt: skip
def test_errors_have_codes_and_no_traceback(
    error: BaseException, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr("numsim.cli.formats.run", fail)
    monkeypatch.setattr(cli, "_silence_stdout", lambda: None)
    monkeypatch.delenv("NUMSIM_TRACEBACK", raising=False)
    assert main(["formats"]) == code
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err
    if code == 70:
        monkeypatch.setenv("NUMSIM_TRACEBACK", "1")
        with pytest.raises(type(error)):
            main(["formats"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(FORMATS, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 4 and done.stderr.startswith(b"numsim: ") and done.stderr.count(b"\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="closes file descriptors")
def test_closed_streams_and_pipes_are_quiet() -> None:
    closed = "import os, sys; os.close({}); os.execv(sys.executable, [sys.executable, '-m', 'numsim', 'formats'])"
    for descriptors in ("1", "2"):
        command = [sys.executable, "-c", closed.format(descriptors)]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0 and done.stderr == b""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(FORMATS, stdout=pipe, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_is_one_line() -> None:
    # a pytest started in the background (nohup pytest &) ignores SIGINT, and its children inherit that
    code = ("import signal, sys, time, numsim.cli, numsim.cli.formats as f;"
            "signal.signal(signal.SIGINT, signal.default_int_handler);"
            "f.run = lambda a: (print('up', flush=True), time.sleep(60));"
            "sys.exit(numsim.cli.main(['formats']))")  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130 and err == b"numsim: interrupted; files that are written are whole\n"


# --- encodings and colours -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("encoding", ["cp932", "cp1252", "ascii", "utf-8", "utf-16"])
def test_any_encoding_gets_the_same_content(encoding: str, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["explain", "2048 + 1", "--format", "fp16"], ["formats"]):
        assert main(args) == 0
        plain = capsys.readouterr().out
        done = numsim_process(*args, PYTHONIOENCODING=encoding)
        assert done.returncode == 0 and done.stderr == b""
        assert done.stdout.decode(encoding).replace("\r\n", "\n") == plain and plain.isascii()


@pytest.mark.parametrize("encoding", ["cp932", "cp1252", "ascii"])
def test_errors_can_name_any_character(encoding: str) -> None:
    for wrong in ("1 é 二 😀", "…"):
        done = numsim_process("explain", wrong, PYTHONIOENCODING=encoding)
        assert done.returncode == 2 and done.stderr.decode(encoding).startswith("numsim: cannot read the expression")
    done = numsim_process("explain", "1", "--format", "二é", PYTHONIOENCODING=encoding)
    assert done.returncode == 2 and b"unknown format" in done.stderr


@pytest.mark.parametrize("encoding", ["cp932", "cp1252", "ascii"])
def test_other_signs_turn_into_ascii(encoding: str) -> None:
    code = "from numsim.cli import _output; _output.prepare_streams(); print('a ≤ 2 × b … → ─┼─ ✓ é 二')"
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, timeout=60, check=True)
    shown = done.stdout.decode(encoding)
    if encoding == "ascii":
        assert shown.strip() == r"a <= 2 x b ... -> -+- ok \xe9 \u4e8c"
    assert shown.startswith("a ")


def test_no_colour_without_a_terminal() -> None:
    assert b"\x1b" not in numsim_process("explain", "0.1", "--format", "bf16").stdout
    assert b"\x1b[" in numsim_process("explain", "0.1", FORCE_COLOR="1", TERM="xterm-256color").stdout
    for off in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert b"\x1b" not in numsim_process("explain", "0.1", **{"FORCE_COLOR": "1", "TERM": "xterm", **off}).stdout
    assert b"\x1b" not in numsim_process("explain", "0.1", "--plain", FORCE_COLOR="1", TERM="xterm").stdout


# --- what is loaded --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "args", [["explain", "2048 + 1", "--format", "fp16"], ["formats"], ["formats", "e4m3", "--json"], []]
)
def test_light_commands_load_nothing_heavy(args: list[str]) -> None:
    code = (f"import sys; from numsim.cli import main; code = main({args!r});"
            "print(*sys.modules, file=sys.stderr); sys.exit(code)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "numsim" in loaded
    assert loaded.isdisjoint({"numba", "llvmlite", "torch", "matplotlib", "ml_dtypes", "scipy", "IPython"})


def test_json_is_alone_on_stdout() -> None:
    for args in (["explain", "nan", "--format", "fp16"], ["formats"]):
        done = numsim_process(*args, "--json", FORCE_COLOR="1")
        assert done.returncode == 0
        json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    done = numsim_process("explain", "1 +", "--json")
    assert done.returncode == 2 and done.stdout == b""
