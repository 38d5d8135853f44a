"""The suite sums: recorded without numba and pictures, compared anywhere; machines that add otherwise are found out."""

import subprocess
import sys

import numpy as np
import pytest

from numsim.formats import BF16, FP16, FP32
from numsim.machines.recorded import parse_record
from numsim.machines.verdict import ANY_ORDER
from numsim.show import style, suite_page, suite_text, text
from numsim.suites import Collector, collect, get_suite, sums
from numsim.suites.library import add_in_order
from tests.suites.test_library import Adds, four_lanes, halves, one_after_another

SUITE = get_suite("sums")
SHORT = [p for p in sums.parts() if p.length in (33, 36, 4096)]


def recorded(machine, monkeypatch, parts=SHORT):
    monkeypatch.setattr(sums, "parts", lambda: list(parts))
    return parse_record(collect(SUITE, machine), "a record")


def rows_of(record):
    return {row.part: row for row in SUITE.compare(record)}


class Mixed(Adds):
    """Sums in four lanes, running sums one after another; in FP64 where ``wide``."""

    def answer(self, q):
        order = one_after_another if q.system == "torch.cumsum" else four_lanes
        return Adds(order, self.accumulator).answer(q)


def test_parts_have_names_of_their_own():
    names = [p.name for p in sums.parts()]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 30
    assert names[:2] == ["sum fp16, 36 numbers", "sum fp16, 128 numbers"]


@pytest.mark.parametrize("format", [FP16, BF16, FP32])
def test_the_numbers_tell_orders_apart(format):
    (question,) = sums.Part("torch.sum", format, 36, False, 64).questions(1)
    x = question.arrays[0]
    trees = []
    for order in (one_after_another, halves, four_lanes):
        trees.append(order(Numbered(range(36)), lambda a, b: (a, b)))
    found = [add_in_order(x, format, tree, FP32, format) for tree in trees]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.count_nonzero(found[a] != found[b]) >= 16


class Numbered:
    def __init__(self, items):
        self.items, self.shape = list(items), (len(items),)

    def __getitem__(self, at):
        found = self.items[at[-1]]
        return Numbered(found) if isinstance(found, list) else found


def test_an_order_of_ones_own_gives_the_same_bits_everywhere(monkeypatch):
    rows = rows_of(recorded(Mixed(), monkeypatch))
    assert all(row.verdict.ok for row in rows.values())
    for f in ("fp16", "bf16", "fp32"):
        for part in (f"sum {f}, 36 numbers", f"sum {f}, 33 numbers alone", f"cumsum {f}, 36 numbers"):
            assert rows[part].verdict.text == "same bits", part
        assert rows[f"sum {f}, 4096 ones alone"].note == f"n = 4096 ones: 4096, as n rounded to {f.upper()}"
    assert rows["cumsum fp16, 36 numbers"].note == "same bits: one after another; FP32"


def test_fp16_accumulators_stall_and_are_named(monkeypatch):
    parts = [p for p in SHORT if p.format == FP16]
    rows = rows_of(recorded(Mixed(accumulator=np.float16), monkeypatch, parts))
    assert rows["sum fp16, 36 numbers"].note.endswith("; FP16") and rows["sum fp16, 36 numbers"].verdict.ok
    assert rows["cumsum fp16, 4096 ones alone"].note == ("n = 4096 ones: 2048, where n rounded to FP16 is 4096")


def test_another_order_than_the_probes_is_unexplained(monkeypatch):
    class Sly(Mixed):
        """Adds powers of two in lanes, and other numbers pairwise: what probes show is not what happens."""

        def answer(self, q):
            f = q.inputs[0]
            probe = not (q.arrays[0] & ((1 << f.fraction_bits) - 1)).any() or f.name == "fp16"
            return super().answer(q) if probe else Adds(halves).answer(q)

    rows = rows_of(recorded(Sly(), monkeypatch, [p for p in SHORT if p.format == FP32 and p.system == "torch.sum"]))
    assert rows["sum fp32, 36 numbers"].verdict.unexplained > 16
    assert rows["sum fp32, 33 numbers alone"].verdict.unexplained > 1
    assert rows["sum fp32, 4096 numbers alone"].verdict.ok  # within the bound of any order


def test_sums_in_no_known_order_are_told_apart_from_documented_ones(monkeypatch, tmp_path):
    long = [p for p in SHORT if (p.format, p.length, p.ones) == (FP32, 4096, False)]
    record = recorded(Mixed(), monkeypatch, [p for p in SHORT if p.format == FP32 and (p.probed or p in long)])
    rows = SUITE.compare(record)
    (bounded,) = (row for row in rows if row.part == "sum fp32, 4096 numbers alone")
    assert suite_text.outcome(bounded) == "bounded" and bounded.verdict.documented[ANY_ORDER] > 0
    shown = " ".join(text.plain(suite_text.table_lines(SUITE, record, rows)).split())
    assert "1 within the bound of any order" in suite_text.summary(record, rows)
    page = suite_page.write(tmp_path / "page.html", SUITE, record, rows).read_text(encoding="utf-8")
    for told in (shown, page):
        assert "an order that no probe has shown" in told and "documented:" not in told and "as documented" not in told
    assert "Nobody is wrong" in page


def test_a_single_sum_has_no_root_mean_square(monkeypatch):
    part = sums.Part("torch.sum", FP32, 65536, True, 1)
    rows = rows_of(recorded(Mixed(), monkeypatch, [*(p for p in SHORT if p.format == FP32), part]))
    note = rows[part.name].note
    assert "relative error" in note and "root mean square" not in note and rows[part.name].verdict.ok


def test_the_overflow_of_ones_is_compared_with_the_exact_sum(monkeypatch):
    part = sums.Part("torch.sum", FP16, 65536, True, 1, ones=True)
    rows = rows_of(recorded(Mixed(), monkeypatch, [*(p for p in SHORT if p.format == FP16), part]))
    assert rows[part.name].note == "n = 65536 ones: inf, as n rounded to FP16"


def test_what_a_machine_cannot_answer_is_skipped(monkeypatch):
    class NoBf16(Mixed):
        def can(self, question=None):
            can = super().can(question)
            return can._replace(yes=False, reason="no BF16") if question and question.output == BF16 else can

    rows = rows_of(recorded(NoBf16(), monkeypatch))
    assert {row.verdict.text for part, row in rows.items() if "bf16" in part} == {"skipped: no BF16"}
    assert len(rows) == len(SHORT)


def test_pictures_show_the_tree_and_the_errors(monkeypatch, tmp_path):
    record = recorded(Mixed(), monkeypatch)
    for look in ("page", "slide"):
        drawn = SUITE.draw(record, look)
        assert [stem for stem, _, _ in drawn] == ["sums-trees", "sums-errors"]
        for stem, figure, alt in drawn:
            assert style.save(figure, tmp_path / f"{stem}-{look}", alt=alt)[0].stat().st_size > 10_000
    assert "FP16, BF16 and FP32: 10 additions deep, partial sums in FP32" in drawn[0][2]


def test_a_record_without_sums_has_no_pictures(monkeypatch):
    parts = [p for p in SHORT if p.system == "torch.cumsum" and p.format == FP32]
    assert SUITE.draw(recorded(Mixed(), monkeypatch, parts), "page") == []


def test_torch_is_recorded_without_numba_or_pictures_and_adds_as_its_probes_say(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "sums.npz"
    code = f"""
import sys
for name in ("numba", "ml_dtypes", "matplotlib", "rich"):
    sys.modules[name] = None
from numsim.machines import get_machine
from numsim.suites import collect, get_suite
with open({str(file)!r}, "wb") as file:
    file.write(collect(get_suite("sums"), get_machine("torch-cpu")))
import torch
print(torch.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)
    assert file.stat().st_size < 3_000_000
    record = parse_record(file.read_bytes(), "a record")
    assert record.provenance["threads"] == int(done.stdout)
    rows = rows_of(record)
    assert [*rows] == [p.name for p in sums.parts()] and all(row.verdict.ok for row in rows.values())
    for part in sums.parts():
        if part.probed:
            assert rows[part.name].verdict.text == "same bits", rows[part.name]
    shown = text.plain(suite_text.table_lines(SUITE, record, list(rows.values())))
    assert max(map(len, shown.splitlines())) <= 80


def test_the_collector_says_which_part_is_asked(monkeypatch):
    said = []
    monkeypatch.setattr(sums, "parts", lambda: SHORT[:2])
    SUITE.ask(Collector(Mixed(), say=said.append))
    assert said == [p.name for p in SHORT[:2]]
