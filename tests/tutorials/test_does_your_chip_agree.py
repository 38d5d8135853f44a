"""Every command of "Does your chip agree?" that can run without a GPU prints what the page shows.

``[...]`` alone on a line stands for any lines, within a line for any text: versions, and what this computer is called.
``python -m tests.tutorials.test_does_your_chip_agree`` makes the two records beside the page anew, and writes the
present output into blocks that are no longer right; cuts are to be made again by hand.
"""

import re
import shutil
import tempfile
from dataclasses import replace

import numpy as np
import pytest

from numsim.cli import CANNOT_RUN, main
from numsim.gpu.driver import driver_found
from numsim.machines import Can
from numsim.machines.emulated import Emulated
from numsim.machines.question import Answer
from numsim.machines.recorded import parse_record, read_record
from numsim.reveal.fit import compute
from numsim.show.suite_text import WORDS
from numsim.suites import SUITES, collect, tensorcore
from tests.test_readme import run
from tests.tutorials.notebooks import TUTORIALS

FILE = TUTORIALS / "does-your-chip-agree.md"
PAGE = FILE.read_text("utf-8")
RECORD, RECORD_23 = "t4-stand-in.npz", "t4-stand-in-23-bits.npz"
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
CUT = "[...]"


class StandIn(Emulated):
    """In place of a T4: numsim's own model of one, or of a unit that keeps fewer bits."""

    name, chip = "stand-in", "t4"

    def can(self, question=None):
        if question is not None and (question.model is None or question.chip != self.chip):
            return Can(False, "a stand-in has only a T4's instructions")
        return super().can(question)

    def provenance(self):
        return {"machine": self.name, "device": "T4 stand-in", "what": "numsim's own model, no GPU"}


class StandIn23(StandIn):
    bits = 23

    def answer(self, question):
        model = question.model
        other = replace(model, unit=replace(model.unit, fraction_bits=self.bits))
        return Answer(compute(other, question.arrays), self.provenance())

    def provenance(self):
        return {**super().provenance(), "device": "T4 stand-in, 23 bits", "what": "numsim's own model, F = 23, no GPU"}


RECORDS = {RECORD: (StandIn, tensorcore.EXPERIMENTS), RECORD_23: (StandIn23, {"kept-bits": {}})}


def made(name):
    """A record of a stand-in; that of 23 bits without the experiments that would make it large."""
    machine, experiments = RECORDS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorcore, "EXPERIMENTS", experiments)
        return collect(tensorcore.SUITE, machine())


def commands(block):
    """The commands of a block, each with what it shows."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def matches(shown, printed):
    lines = [
        r"(?:.*\n)*" if line == CUT else ".*".join(map(re.escape, line.split(CUT))) + r"\n"
        for line in shown.splitlines()
    ]
    return re.fullmatch("".join(lines), printed + "\n") is not None


@pytest.mark.parametrize("block", BLOCKS, ids=[b.partition("\n")[0][2:60] for b in BLOCKS])
def test_commands_print_what_the_page_shows(block, tmp_path):
    for name in RECORDS:
        shutil.copy(TUTORIALS / name, tmp_path)
    for command, shown in commands(block):
        if "cuda" in command and driver_found():
            pytest.skip("there is a GPU here: the page shows what happens without one")
        printed = run(command, tmp_path)
        assert matches(shown, printed), f"{command} prints\n{printed}"


def test_a_line_that_is_not_printed_is_noticed():
    assert matches("a\n[...]\nd 1[...]\n", "a\nb\nc\nd 12")
    assert not matches("a\n[...]\nd 1[...]\n", "a\nb\nc\nd 2")
    assert not matches("a\n", "a\nb")


@pytest.mark.skipif(driver_found(), reason="there is a GPU here")
def test_without_a_gpu_commands_end_with_4(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for suite in (*SUITES, "all"):
        assert main(["record", "--suite", suite, "--machine", "cuda", "--out", "my-gpu"]) == CANNOT_RUN
        assert "no NVIDIA GPU found" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_every_suite_is_on_the_page():
    for suite in SUITES:
        assert f"| `{suite}` |" in PAGE


def test_the_verdicts_are_those_that_numsim_gives():
    from numsim.machines.verdict import Verdict

    given = {
        Verdict("a", "b", compared=1, equal=1).text,
        Verdict("a", "b", compared=1, nan=1).text,
        "as documented: *name*",
        "within the bound of any order",
        "not decided: *why*",
        "*n* UNEXPLAINED",
        "skipped: *why*",
        "FAILED: *why*",
        "other words",
    }
    table = PAGE.partition("| verdict | what it means |\n|---|---|\n")[2].partition("\n\n")[0]
    assert {line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()} == given
    assert Verdict("a", "b", compared=3, unexplained=3).text == "3 UNEXPLAINED"
    assert Verdict("a", "b", compared=3, documented={"saturates": 3}).text == "as documented: saturates"
    assert len(given) == len(WORDS) + 1  # NaN payloads count as the same


def test_links_lead_somewhere():
    anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)", PAGE, re.M)}
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        path, _, anchor = target.partition("#")
        assert "://" in target or not path or (TUTORIALS / path).exists(), target
        assert not anchor or path or anchor in anchors, target


@pytest.mark.parametrize("name", RECORDS)
def test_the_records_are_what_numsim_makes(name):
    """Made anew by the module's own command where the suite asks other things."""
    kept, now = read_record(TUTORIALS / name), parse_record(made(name), name)
    assert kept.provenance == now.provenance and kept.machine == "stand-in" and "no GPU" in kept.provenance["what"]
    assert kept.inputs == now.inputs and kept.parts == now.parts
    assert all(np.array_equal(a.codes, b.codes) for (_, a), (_, b) in zip(kept.answers, now.answers, strict=True))


def test_the_records_are_small():
    assert sum((TUTORIALS / name).stat().st_size for name in RECORDS) < 2e6


if __name__ == "__main__":
    for name in RECORDS:
        (TUTORIALS / name).write_bytes(made(name))
    for block in BLOCKS:
        with tempfile.TemporaryDirectory() as folder:
            for name in RECORDS:
                shutil.copy(TUTORIALS / name, folder)
            fresh = ""
            for command, shown in commands(block):
                printed = run(command, folder)
                fresh += f"$ {command}\n" + (shown if matches(shown, printed) else printed + "\n")
        PAGE = PAGE.replace(block, fresh)
    FILE.write_text(PAGE, "utf-8")
