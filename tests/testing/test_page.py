"""The page "Testing your own code": its files are written, its commands run, and print what the page shows.

``[...]`` alone on a line stands for any lines, within a line for any text.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import numsim.testing

PAGE = Path(__file__).parents[2] / "tutorials" / "testing-your-own-code.md"
TEXT = PAGE.read_text("utf-8")
BLOCKS = re.findall(r"^```(python|console)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
CUT = "[...]"


def matches(shown, printed):
    lines = (
        r"(?:.*\n)*?" if line == CUT else ".*".join(map(re.escape, line.split(CUT))) + r"\n"
        for line in shown.splitlines()
    )
    return re.fullmatch("".join(lines), printed) is not None


def test_files_and_commands(tmp_path):
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    ran = 0
    for kind, block in BLOCKS:
        if kind == "python" and (name := re.match(r"# (\w+\.py)\n", block)):
            (tmp_path / name[1]).write_text(block, "utf-8")
        elif kind == "console":
            command, _, shown = block.partition("\n")
            python, *words = shlex.split(command.removeprefix("$ "))
            assert python == "python"
            done = subprocess.run(
                [sys.executable, *words],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                encoding="utf-8",
                timeout=300,
            )
            assert matches(shown, done.stdout), f"{command} prints\n{done.stdout}{done.stderr}"
            ran += 1
    assert ran == 3


def test_examples():
    for kind, block in BLOCKS:
        if kind == "python" and block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, {}, "page", str(PAGE), 0)
            assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_every_tool_is_on_the_page():
    for name in set(numsim.testing.__all__) - {"Comparison", "Difference", "values"}:
        assert name in TEXT, name


def test_a_line_that_is_not_printed_is_noticed():
    assert matches("a\n[...]\nd 1[...]\n", "a\nb\nc\nd 12\n")
    assert not matches("a\n[...]\nd 1[...]\n", "a\nb\nc\nd 2\n")


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("https://") or (PAGE.parent / target).exists(), target


@pytest.mark.parametrize("line", TEXT.splitlines())
def test_lines_are_short(line):
    assert len(line) <= 124 and line.isascii()
