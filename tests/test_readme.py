"""README shows real output: every ``$ numsim ...`` in a console block is run and compared.

A block that ends with ``[...]`` shows the first lines only. ``python -m tests.test_readme`` writes the present output
into README.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
CUT = "[...]"
BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.DOTALL)


def run(command, folder):
    """What a reader sees in an 80-column terminal, without colours."""
    words = shlex.split(command)
    assert words[0] == "numsim", command
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-m", "numsim", *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    return (done.stdout + (done.stderr if done.returncode else "")).rstrip("\n")


def fresh(block, folder):
    """A block with its command's output replaced by what it prints now."""
    command, *shown = block.splitlines()
    lines = run(command.removeprefix("$ "), folder).splitlines()
    if shown and shown[-1] == CUT:
        lines = [*lines[: len(shown) - 1], CUT]
    return "\n".join([command, *lines, ""])


@pytest.mark.parametrize("block", [m[2] for m in BLOCK.finditer(README.read_text("utf-8"))])
def test_readme_shows_what_the_commands_print(block, tmp_path):
    assert fresh(block, tmp_path) == block


def test_readme_python_examples(tmp_path, monkeypatch):
    import doctest

    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(README), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0 and result.failed == 0


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        text = BLOCK.sub(lambda m: m[1] + fresh(m[2], folder) + m[3], README.read_text("utf-8"))
    README.write_text(text, "utf-8")
