"""What every command says and writes: text on any terminal, JSON alone on stdout, files written whole."""

from __future__ import annotations

import codecs
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numsim import files
from numsim.errors import InputError, short
from numsim.show.text import WIDTH, columns

# What a terminal that is not UTF-8 gets in place of the signs that it lacks; anything else becomes \uXXXX.
_ASCII = {
    "…": "...", "×": "x", "·": ".", "−": "-", "–": "-", "—": "-", "≤": "<=", "≥": ">=", "≈": "~", "≠": "!=", "±": "+-",
    "→": "->", "←": "<-", "↑": "^", "↓": "v", "∞": "inf", "√": "sqrt", "²": "^2", "³": "^3", "µ": "u", "‘": "'",
    "’": "'", "“": '"', "”": '"', "•": "*", "✓": "ok", "✗": "no", "│": "|", "┃": "|", "║": "|", "─": "-", "━": "-",
    "═": "=", "\N{NO-BREAK SPACE}": " ",
}  # fmt: skip


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_ASCII.get(c, "+" if "─" <= c <= "╿" else c.encode("ascii", "backslashreplace").decode())
                   for c in characters), error.end  # fmt: skip


codecs.register_error("numsim-ascii", _in_ascii)


def prepare_streams() -> None:
    """Let stdout and stderr print anything, whatever their encoding."""
    if sys.stdout is None:  # started with stdout closed
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="numsim-ascii")


def warn(text: str) -> None:
    """A line on stderr: stdout is for results. Terminals get it folded, logs whole: to be found and copied."""
    if sys.stderr is not None:
        said = f"numsim: {text}\n"
        sys.stderr.write(_folded(said, columns(sys.stderr)) if sys.stderr.isatty() else said)
        sys.stderr.flush()


def _folded(text: str, width: int) -> str:
    """Long lines broken between words; indented ones are drawings."""
    return "".join(
        line
        if line.startswith(" ")
        else textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) + "\n"
        for line in text.splitlines(keepends=True)
    )


def to_json(data: Any) -> str:
    """JSON in ASCII; NaN and infinity are not JSON, and refused."""
    return json.dumps(data, indent=2, ensure_ascii=True, allow_nan=False)


def print_json(data: Any) -> None:
    sys.stdout.write(to_json(data) + "\n")


def colour(plain: bool) -> bool | None:
    """For ``show.text.write``: None lets the terminal and NO_COLOR decide."""
    return False if plain else None


def check_out(out: str, name: str, endings: Iterable[str], *, more: str = "") -> Path:
    """The path that ``--out`` names: a folder, or a file with one of the endings; raises ``InputError`` for others."""
    path, known = files.check_path(out), list(endings)
    suffix = path.suffix.lower().removeprefix(".")
    if suffix and suffix not in known and not path.is_dir() and not out.endswith(("/", os.sep)):
        raise InputError(
            f"--out {short(out)}: {name} writes {' '.join(f'.{x}' for x in known)}{more}, not .{suffix}; a folder of "
            f"that name ends in /. Example: --out {name}.{known[0]}"
        )
    return path


def write_out(out: str, name: str, contents: Mapping[str, str], *, more: str = "") -> list[Path]:
    """Write what ``--out`` asks for; each file whole or not at all.

    out : a file that ends in one of the suffixes of ``contents``, or a folder, which gets ``name`` with all of them.
    contents : text by suffix, as ``{"json": ..., "html": ...}``. more : other endings, for the message.

    Returns the paths written. Raises ``InputError`` where that cannot be, and for any other ending: it would be a
    folder's, and nobody means that.
    """
    path = check_out(out, name, contents, more=more)
    suffix = path.suffix.lower().removeprefix(".")
    if suffix in contents and not path.is_dir():
        chosen = {path: contents[suffix]}
    else:
        folder = files.make_folder(path)
        chosen = {folder / f"{name}.{suffix}": text for suffix, text in contents.items()}
    for file, text in chosen.items():
        files.write_atomic(file, text.rstrip("\n") + "\n")
        warn(f"wrote {files.show(file)}")
    return list(chosen)


class Progress:
    """One line on stderr that replaces itself; on a terminal only."""

    _shown = False

    def __init__(self, head: str) -> None:
        self.head = head

    def say(self, what: str) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            self.clear()
            # the cursor goes back, so that whatever else writes to stderr writes over this line
            sys.stderr.write(f"{self.head}: {what} ..."[: Progress._room() - 1] + "\r")
            sys.stderr.flush()
            Progress._shown = True

    @staticmethod
    def clear() -> None:
        if Progress._shown and sys.stderr is not None:
            sys.stderr.write("\r" + " " * Progress._room() + "\r")
            sys.stderr.flush()
            Progress._shown = False

    @staticmethod
    def _room() -> int:
        """One less than the terminal has columns: the last one would begin a new line."""
        return max(min(columns(sys.stderr), WIDTH) - 1, 1)
