"""The suite casts: recorded without numba and pictures; policies are probed, and what follows none is found out."""

import subprocess
import sys

import numpy as np
import pytest

from numsim.codes import decode
from numsim.formats import BF16, E4M3, E5M2, E8M0, FP16, FP32, FP64
from numsim.machines import Answer, Can, ask, get_machine
from numsim.machines.emulated import emulate
from numsim.machines.recorded import parse_record
from numsim.show import style, suite_text, text
from numsim.suites import casts, collect, get_suite

SUITE = get_suite("casts")


class Casts:
    """The emulator, with other options for what ``wrong`` says: question -> options, or None."""

    name = "mine"

    def __init__(self, wrong=lambda q: None, spoil=lambda q, codes: codes):
        self.wrong, self.spoil = wrong, spoil

    def can(self, question=None):
        return Can(True)

    def answer(self, q):
        options = self.wrong(q)
        found = emulate(q) if options is None else emulate(ask(q.operation, q.inputs, q.output, q.arrays, **options))
        return Answer(self.spoil(q, found), {"machine": self.name})


def compared(machine, monkeypatch, pairs=((FP32, E4M3), (FP16, E5M2)), operations=()):
    monkeypatch.setattr(casts, "CASTS", pairs)
    monkeypatch.setattr(casts, "OPERATIONS", operations)
    record = parse_record(collect(SUITE, machine), "a record")
    return {row.part: row for row in SUITE.compare(record)}


def test_every_cast_is_asked_both_ways():
    names = [casts.part_of(x, y) for x, y in casts.CASTS]
    assert len(set(names)) == 4 * 3 + 2 * 4 * 5
    assert {"fp64 -> e8m0", "e8m0 -> fp64", "bf16 -> fp16"} <= set(names) and "e5m2 -> e4m3fn" not in names


def test_every_code_of_8_bits_and_every_magnitude_of_16():
    (codes,) = casts.cast(E4M3, FP16, 1).arrays
    assert codes.tolist() == list(range(256))
    (codes,) = casts.cast(BF16, FP16, 1).arrays
    assert sorted((codes & 0x7FFF).tolist()) == list(range(32768))
    assert np.count_nonzero(codes >> 15) == 16384


@pytest.mark.parametrize("source", [FP32, FP64])
@pytest.mark.parametrize("target", [E4M3, E5M2, FP16, BF16, E8M0])
def test_ties_and_their_neighbours_are_among_the_numbers(source, target):
    (codes,) = casts.cast(source, target, 1).arrays
    values = set(decode(codes, source).tolist())
    ulp = 2.0**-source.fraction_bits
    for tie in (1.5 if target == E8M0 else 1 + 2.0 ** -(target.fraction_bits + 1), float(target.max)):
        below = ulp / 2 if np.frexp(tie)[0] == 0.5 else ulp
        size = 2.0 ** (np.frexp(tie)[1] - 1)
        assert {tie, -tie, tie + ulp * size, tie - below * size} <= values
    top = float(target.max)
    half = 2.0 ** (target.emax - target.fraction_bits - 1)
    assert top + half in values and np.inf in values and any(np.isnan(v) for v in values)
    least = float(target.least_subnormal or target.least_normal)
    assert {least, -0.0} <= values and (target == E8M0 or least / 2 in values)


def test_nothing_differs_in_the_emulator(monkeypatch):
    rows = compared(Casts(), monkeypatch, operations=("add", "sqrt"))
    assert all(row.verdict.text == "same bits" for row in rows.values()) and len(rows) == 2 + 2 * 4
    assert rows["fp32 -> e4m3fn"].note == "same bits (nearest-even, ieee)" and rows["add fp16"].note == ""


def test_what_happens_beyond_the_largest_number_is_a_choice(monkeypatch):
    row = compared(Casts(lambda q: {"overflow": "saturate"}), monkeypatch)["fp32 -> e4m3fn"]
    assert row.verdict.documented == {"saturate": row.verdict.differ} and row.verdict.differ > 5 and row.verdict.ok
    assert row.note == "as documented: saturate (nearest-even, saturate)" and "saturate" in row.verdict.reasons


@pytest.mark.parametrize("options", [
    {"rounding": "toward-zero"}, {"rounding": "nearest-away"}, {"rounding": "odd"}, {"rounding": "up"},
    {"subnormals": "flush-results"}, {"subnormals": "flush"}, {"rounding": "odd", "overflow": "saturate"},
])  # fmt: skip
def test_another_rounding_is_named_and_no_choice(monkeypatch, options):
    row = compared(Casts(lambda q: options), monkeypatch)["fp32 -> e4m3fn"]
    assert row.verdict.unexplained == row.verdict.differ > 5 and not row.verdict.documented
    assert "UNEXPLAINED" in row.note and next(iter(options.values())) in row.note.partition("(")[2]


def test_a_format_on_the_way_is_named(monkeypatch):
    def via(q, codes):
        return emulate(ask("cast", [FP32], q.output, [emulate(ask("cast", q.inputs, FP32, q.arrays))]))

    rows = compared(Casts(spoil=via), monkeypatch, pairs=((FP64, FP16),))
    assert rows["fp64 -> fp16"].verdict.documented == {"fp32": rows["fp64 -> fp16"].verdict.differ}
    assert rows["fp64 -> fp16"].note.endswith("via fp32)")


def test_one_wrong_code_is_unexplained(monkeypatch):
    def spoil(q, codes):
        return (
            np.where(q.arrays[0] == 0x3F800000, codes + 1, codes).astype(codes.dtype) if q.inputs[0] == FP32 else codes
        )

    rows = compared(Casts(spoil=spoil), monkeypatch)
    assert rows["fp32 -> e4m3fn"].verdict.unexplained and rows["fp16 -> e5m2"].verdict.ok
    assert "(" not in rows["fp32 -> e4m3fn"].note  # it follows no policy


@pytest.mark.parametrize("how", ["flush-inputs", "flush-results", "flush"])
def test_operations_that_flush_subnormal_numbers_are_found_out(monkeypatch, how):
    machine = Casts(lambda q: {"subnormals": how} if q.operation == "mul" and q.output == FP32 else None)
    rows = compared(machine, monkeypatch, operations=("mul", "add"))
    assert rows["mul fp32"].verdict.unexplained == rows["mul fp32"].verdict.differ > 0
    assert rows["mul fp32"].note.endswith(f"UNEXPLAINED ({how})")
    assert all(row.verdict.text == "same bits" for part, row in rows.items() if part != "mul fp32")


def test_an_operation_that_rounds_otherwise_is_unexplained(monkeypatch):
    machine = Casts(lambda q: {"rounding": "toward-zero"} if q.operation == "div" else None)
    assert compared(machine, monkeypatch, operations=("div",))["div fp16"].verdict.unexplained > 100


def test_a_gpu_may_have_the_quirks_of_its_library(monkeypatch):
    machine = Casts(lambda q: {"overflow": "saturate"} if q.output == E4M3 else None)
    machine.name = "cuda"
    row = compared(machine, monkeypatch)["fp32 -> e4m3fn"]
    assert row.verdict.documented == {"saturates": row.verdict.differ} and row.verdict.machine == "cuda"


def test_what_is_not_answered_is_skipped(monkeypatch):
    class NoFp8(Casts):
        def can(self, question=None):
            return Can(question is None or question.output != E4M3, "no FP8")

    rows = compared(NoFp8(), monkeypatch)
    assert rows["fp32 -> e4m3fn"].verdict.text == "skipped: no FP8" and rows["fp16 -> e5m2"].verdict.ok


@pytest.fixture(scope="module")
def torchs(tmp_path_factory):
    """torch on this CPU, recorded without what only comparing needs."""
    pytest.importorskip("torch")
    file = tmp_path_factory.mktemp("casts") / "casts.npz"
    code = f"""
import sys
for name in ("numba", "ml_dtypes", "matplotlib", "rich"):
    sys.modules[name] = None
from numsim.machines import get_machine
from numsim.suites import collect, get_suite
open({str(file)!r}, "wb").write(collect(get_suite("casts"), get_machine("torch-cpu")))
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert file.stat().st_size < 2_000_000
    return parse_record(file.read_bytes(), "a record")


def test_torchs_casts_are_explained(torchs):
    rows = SUITE.compare(torchs)
    assert all(row.verdict.ok for row in rows)
    assert len(rows) == len(casts.CASTS) + len(casts.OPERATIONS) * len(casts.WIDE)
    notes = {row.part: row.note for row in rows}
    assert notes["fp32 -> bf16"].endswith("(nearest-even, ieee)") and notes["fp64 -> fp16"].endswith("via fp32)")
    lines = text.plain(suite_text.table_lines(SUITE, torchs, rows)).splitlines()
    assert max(map(len, lines)) <= 80


def test_the_map_shows_every_cast(torchs, tmp_path):
    for look in ("page", "slide"):
        ((stem, figure, alt),) = SUITE.draw(torchs, look)
        assert stem == "casts" and style.save(figure, tmp_path / f"{stem}-{look}", alt=alt)[0].stat().st_size > 10_000
        assert len(figure.axes[0].patches) == len(casts.CASTS)
    assert "fp64 -> fp16: rounds twice" in alt


def test_the_machine_that_is_recorded_answers_again(torchs):
    who = casts.replayed(torchs)
    question, answer = torchs.answers[0]
    assert who.answer(question).codes.tolist() == answer.codes.tolist()
    assert get_machine("emulated").can(question)
