"""Every command of ``tutorials/claims.md`` runs and shows what the table says that it shows."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from numsim.cli import main
from tests.tutorials.notebooks import TUTORIALS

PAGE = (TUTORIALS / "claims.md").read_text(encoding="utf-8")
HEADER = "| where | the claim | verdict | try it → see | what is right | source |"
VERDICT = re.compile(r"holds|holds if .+|contradicts itself|wrong|no source")
TRY = re.compile(r"`(?P<command>(?:numsim|python -c) [^`]+)` → `(?P<seen>[^`]+)`")
SOURCE = re.compile(
    r"(?:IEEE 754-2019|OFP8|OCP MX 1\.0|Transformer Engine|NVIDIA \d{4}|[A-Z][a-z]+ \d{4}|"
    r"(?:executorch|pytorch|transformers) \d+)"
)
PLACE = re.compile(r"[12]|[13] §\d(\.\d)?(, §\d\.\d)*")


class Claim(NamedTuple):
    where: str
    claim: str
    verdict: str
    tried: str
    right: str
    source: str


def rows() -> list[list[str]]:
    """The cells of all rows of all tables, headers and rulers left out."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    lines = [line for line in lines if line != HEADER and not re.fullmatch(r"[|-]+", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


CLAIMS = [Claim(*row) for row in rows()]


def name(claim: Claim) -> str:
    return re.sub(r"\W+", "-", f"{claim.where} {claim.claim}")[:60].strip("-")


def words(text: str) -> str:
    """Text without line breaks and repeated spaces: output is wrapped at 80 columns."""
    return " ".join(text.split())


@cache
def run(command: str) -> str:
    """What a command prints; in this process, for thirty of them would spend their time on starting Python."""
    first, *rest = shlex.split(command)
    printed = io.StringIO()
    with redirect_stdout(printed):
        if first == "numsim":
            assert main(rest) == 0, command
        else:
            flag, code = rest
            assert flag == "-c"
            exec(code, {"__name__": "__main__"})
    return words(printed.getvalue())


@pytest.mark.parametrize("claim", CLAIMS, ids=name)
def test_command_shows_it(claim: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # numsim run writes there
    tried = TRY.fullmatch(claim.tried)
    assert tried, claim.tried
    assert words(tried["seen"]) in run(tried["command"])


def test_rows_are_complete() -> None:
    assert len(CLAIMS) >= 61
    assert PAGE.count(HEADER) == 6
    assert len({claim.claim for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert all(claim), claim
        assert VERDICT.fullmatch(claim.verdict), claim.verdict
        for place in re.split(r", (?=[123])", claim.where):
            assert PLACE.fullmatch(place), claim.where


def test_sources_are_listed() -> None:
    """Every "Name year" in a row is spelled out under Sources."""
    listed = PAGE.partition("## Sources")[2]
    for claim in CLAIMS:
        for source in re.findall(SOURCE, claim.source):
            assert source in listed, source


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        if "://" not in target:
            assert (TUTORIALS / target).exists(), target
