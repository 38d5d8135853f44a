"""The command line. A command is one module here with ``add(subparsers)`` and ``run(args) -> exit code``.

Only the module of the command that was typed is imported, so that ``explain`` starts without numba and matplotlib.
Exit codes: 0 fine, 1 a check failed, 2 wrong use, 4 cannot run here; and 130 after Ctrl-C, 141 after a closed pipe, 70
for a bug in numsim.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import importlib.util
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn, TextIO

from numsim._version import __version__
from numsim.cli import _output
from numsim.errors import InputError, NumsimError, UnavailableError

FINE, CHECK_FAILED, WRONG_USE, CANNOT_RUN, BUG, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 4, 70, 130, 141

COMMANDS = {
    "explain": "what a format does to a number or an operation, bit by bit",
    "formats": "the number formats: one table, or all about one",
    "chips": "the tensor cores that numsim models, and how sure it is of each",
    "run": "run experiments, with pictures and verdicts against a machine",
    "experiments": "the experiments and the questions they ask",
    "machines": "who can answer here: the emulator, this CPU, recordings",
    "reveal": "find out by probes how a machine multiplies and adds",
    "record": "save a machine's answers",
    "check": "recompute a result or a record",
    "doctor": "what works here and why not, to paste into a forum",
}
_HINTS = {"show": "explain", "info": "doctor", "list": "formats", "format": "formats", "machine": "machines",
          "experiment": "experiments", "version": "--version", "compare": "run", "verify": "check"}  # fmt: skip
_BEGIN = """begin here:
  numsim explain 0.1 --format bf16
  numsim explain "2048 + 1" --format fp16
  numsim run swamping
  numsim run                 (all experiments: half a minute)
  numsim COMMAND --help
"""


class Parser(argparse.ArgumentParser):
    """argparse in the manners of the house: one line per error, near names, 80 columns, no abbreviations."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Help)
        if examples:
            kwargs["epilog"] = "examples:\n" + "\n".join(f"  {line}" for line in examples)
        if "description" in kwargs:
            kwargs["description"] = textwrap.fill(kwargs["description"], 80)
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        near = ""
        if unknown := re.search(r"unrecognized arguments: (--[\w-]+)", message):
            options = sorted({s[2:] for a in self._actions for s in a.option_strings if s.startswith("--")})
            found = difflib.get_close_matches(unknown[1][2:], options, n=2, cutoff=0.6) or options
            near = f": {'known are' if found is options else 'did you mean'} --{', --'.join(found)}"
            near += "." if found is options else "?"
            message = f"unknown option {unknown[1]}"
        raise InputError(f"{message}{near or '.'} Try: {self.prog} --help")


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=80)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Nothing that a user types ends in a traceback."""
    _output.prepare_streams()
    shown, warnings.showwarning = warnings.showwarning, _show_warning
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except UnavailableError as error:
        return _say(error, CANNOT_RUN)
    except NumsimError as error:
        return _say(error, WRONG_USE)
    except BrokenPipeError:
        _silence_stdout()
        return CLOSED_PIPE
    except KeyboardInterrupt:
        return _say("interrupted; files that are written are whole", INTERRUPTED)
    except MemoryError:
        return _say("not enough memory for this here", CANNOT_RUN)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        gone = error.filename is None and not _here_exists()
        return _say("the current folder no longer exists: cd to one that does" if gone else error, WRONG_USE)
    except OSError as error:  # a full disk
        _silence_stdout()
        return _say(error, CANNOT_RUN)
    except Exception as error:
        if os.environ.get("NUMSIM_TRACEBACK"):
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return _say(
            f"a bug in numsim, not in what you typed: {what}\nPlease report it with the command and the output of "
            "'numsim doctor'. NUMSIM_TRACEBACK=1 shows where it happened.", BUG,
        )  # fmt: skip
    finally:
        warnings.showwarning = shown


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int,
                  file: TextIO | None = None, line: str | None = None) -> None:  # fmt: skip
    """numsim's own warnings are one line; where in the program they arose helps nobody. Others are as Python has it."""
    if category.__module__.split(".")[0] == "numsim":
        _output.warn(str(message))
    elif sys.stderr is not None:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))


def _say(message: object, code: int) -> int:
    with contextlib.suppress(OSError):  # stderr can be closed, too
        _output.warn(str(message))
    return code


def _silence_stdout() -> None:
    """Python flushes stdout on its way out and would complain about the closed pipe."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def available() -> dict[str, str]:
    """The commands and their one-line help."""
    return {name: text for name, text in COMMANDS.items() if importlib.util.find_spec(f"numsim.cli.{name}")}


def _dispatch(argv: list[str]) -> int:
    commands = available()
    name = argv[0] if argv else ""
    if name in ("", "-h", "--help", "help") and (name != "help" or len(argv) == 1):
        sys.stdout.write(overview(commands))
        return FINE
    if name == "help":
        argv = [argv[1], "--help"]
        name = argv[0]
    if name in ("--version", "-V"):
        sys.stdout.write(f"numsim {__version__}\n")
        return FINE
    if name not in commands:
        _unknown(name, commands)
    module = importlib.import_module(f"numsim.cli.{name}")
    try:
        args = parse(module, name, argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    return int(module.run(args))


def parse(module: ModuleType, name: str, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of one command."""
    parser = Parser(prog="numsim", add_help=False)
    subparsers = parser.add_subparsers(dest="command", parser_class=Parser)
    module.add(subparsers)
    args, rest = parser.parse_known_args(_protect_signs(argv))
    if rest:
        subparsers.choices[name].error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def _protect_signs(argv: Sequence[str]) -> list[str]:
    """-1e-3, -inf and -(1+2) are numbers; a space before them keeps argparse from reading options."""
    number = re.compile(r"-[\d.(+]|-(?i:inf|nan|sqrt|fma)|-\w+:0|-\s")
    return [f" {a}" if number.match(a) else a for a in argv]


def _unknown(name: str, commands: dict[str, str]) -> NoReturn:
    if name.startswith("-"):
        raise InputError(f"{name!r} comes before any command. Example: numsim explain 0.1 --format bf16")
    near = [_HINTS[name]] if name in _HINTS else difflib.get_close_matches(name, commands, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(commands)}."
    raise InputError(f"unknown command {name[:60]!r}: {hint} Example: numsim explain 0.1 --format bf16")


def overview(commands: dict[str, str]) -> str:
    """What ``numsim`` alone prints."""
    rows = "\n".join(f"  {name:<12} {text}" for name, text in commands.items())
    return (
        f"numsim {__version__}: see and check, bit for bit, what number formats do to numbers.\n\n"
        f"usage: numsim COMMAND [OPTIONS]\n\ncommands:\n{rows}\n\n{_BEGIN}"
    )


def add_output(parser: argparse.ArgumentParser, out: str) -> None:
    """The flags of every command: --json, --plain, --out."""
    parser.add_argument("--json", action="store_true", help="print only JSON, with nothing cut")
    parser.add_argument("--plain", action="store_true", help="no colours")
    parser.add_argument("--out", metavar="PATH", help=out)


def add_rounding(parser: argparse.ArgumentParser) -> None:
    """The flags that say how numbers become codes: --rounding, --overflow, --subnormals, --nan, --seed."""
    parser.add_argument(
        "--rounding", metavar="MODE", default="nearest-even",
        help="nearest-even (default), nearest-away, toward-zero, up, down, odd, stochastic",
    )  # fmt: skip
    parser.add_argument("--overflow", metavar="POLICY", default="ieee",
                        help="ieee (default), saturate, saturate-finite")  # fmt: skip
    parser.add_argument("--subnormals", metavar="POLICY", default="keep",
                        help="keep (default), flush-inputs, flush-results, flush")  # fmt: skip
    parser.add_argument("--nan", metavar="POLICY", default="raise",
                        help="for formats without NaN: raise (default), zero, max")  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=_integer, help="for --rounding stochastic")


def _integer(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?\d{1,30}\s*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no integer")
    return int(text)


def _here_exists() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True
