"""Sums that are wrong in small ways: probes are answers too, and nothing is vouched for that nobody looked at."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from numsim.cli.check import compare_suite
from numsim.errors import RecordError
from numsim.formats import FP16, FP32
from numsim.machines.question import Answer
from numsim.machines.verdict import UNDECIDED
from numsim.suites import sums
from tests.suites.test_library import Adds, four_lanes
from tests.suites.test_sums import Mixed, recorded, rows_of

PART = sums.Part("torch.sum", FP16, 36, False, 64)
ALONE = sums.Part("torch.sum", FP32, 33, True, 8)
CHANGES = {
    "zeros that are not zero": lambda x, codes: np.where((x == 0).all(axis=-1), 1, codes),
    "doubled": lambda x, codes: np.where(codes & 0x7FFF, codes + (1 << 10), codes),
    "other sign": lambda x, codes: codes ^ 0x8000,
    "zero": lambda x, codes: codes * 0,
    "every 64th": lambda x, codes: codes ^ (np.arange(codes.size) % 64 == 63),
}


class Broken(Mixed):
    """Right but for a change of its codes; of probes only, which have no bits below the first."""

    def __init__(self, change, probes=False, **options):
        super().__init__(**options)
        self.change, self.probes = change, probes

    def answer(self, q):
        found = super().answer(q)
        if self.probes and (q.arrays[0] & 0x3F).any():
            return found
        return Answer(self.change(q.arrays[0], found.codes).astype(np.uint16), found.provenance)


def found_out(machine, monkeypatch, part=PART):
    row = rows_of(recorded(machine, monkeypatch, [part]))[part.name]
    return row.verdict.unexplained


def test_right_sums_have_all_probes_compared(monkeypatch):
    record = recorded(Mixed(), monkeypatch, [PART])
    row = rows_of(record)[PART.name]
    assert row.verdict.ok and row.verdict.compared == sum(a.codes.size for _, a in record.answers) > 300


@pytest.mark.parametrize("how", CHANGES)
def test_sums_that_are_wrong_everywhere_are_found_out(how, monkeypatch):
    assert found_out(Broken(CHANGES[how]), monkeypatch)


@pytest.mark.parametrize("how", ["zeros that are not zero", "every 64th"])
def test_probes_that_are_wrong_are_found_out(how, monkeypatch):
    assert found_out(Broken(CHANGES[how], probes=True), monkeypatch)


def test_a_number_that_is_dropped_is_found_out(monkeypatch):
    class Drops(Mixed):
        def answer(self, q):
            return Adds(lambda x, add: four_lanes(x[..., 4:], add)).answer(q)

    assert found_out(Drops(), monkeypatch)


def test_rows_of_one_part_are_told_together(monkeypatch):
    """Without a tree eight vectors are compared at once, and counted together."""

    class Exact(Mixed):
        def answer(self, q):
            total = np.float32(math.fsum(q.arrays[0].view(np.float32).tolist()))
            return Answer(np.asarray(total).view(np.uint32), {"machine": "mine"})

    record = recorded(Exact(), monkeypatch, [ALONE])
    row = rows_of(record)[ALONE.name]
    assert row.verdict.ok and row.verdict.skipped[UNDECIDED] > 8 and ": 0 of 8 as " in row.note
    one = compare_suite(record, "mine.npz", "mask")  # numbers that cancel: any order may lose them all
    assert not one["equal"] and one["status"] == "not decided" and "1 not decided" in one["what"]


def test_probes_alone_have_a_row(monkeypatch):
    record = recorded(Mixed(), monkeypatch, [PART])
    numbers = {q.digest for q in PART.questions(1)}
    kept = [n for n, (q, _) in enumerate(record.answers) if q.digest not in numbers]
    stopped = dataclasses.replace(
        record, answers=tuple(record.answers[n] for n in kept), parts=(PART.name,) * len(kept)
    )
    row = rows_of(stopped)[PART.name]
    assert row.verdict.ok and row.verdict.compared == 64 * len(kept)


def test_what_is_no_question_of_a_part_is_not_vouched_for(monkeypatch):
    record = recorded(Mixed(), monkeypatch, [PART])
    assert compare_suite(record, "mine.npz", "mask")["equal"]
    moved = dataclasses.replace(record, parts=(*record.parts[:-1], "another part"))
    with pytest.raises(RecordError, match=r"mine\.npz does not fit the suite sums: 0 of 64 results of another part"):
        compare_suite(moved, "mine.npz", "mask")
