"""Records that are well formed and are none of their suite: refused by name, and no page fails."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from numsim.cli import main
from numsim.cli.check import compare_suite, work
from numsim.errors import RecordError
from numsim.machines import get_machine
from numsim.machines.question import Answer, ask
from numsim.machines.recorded import Record, parse_record, record_bytes
from numsim.machines.verdict import Verdict
from numsim.show import suite_page, suite_text
from numsim.suites import SUITES, Row, get_suite
from numsim.suites.products import ways_to_try

X = np.arange(8, dtype=np.uint32)
CAST = ask("cast", ["fp32"], "bf16", [X])


def record_of(suite, part="a part", q=CAST, **options):
    answer = get_machine("numpy").answer(ask("cast", ["fp32"], "fp16", [X]))
    return record_bytes([(q, Answer(answer.codes, answer.provenance))], suite=suite, parts=[part], **options)


@pytest.mark.parametrize("error", [ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError])
def test_what_a_suite_cannot_make_out_names_the_file(error, monkeypatch):
    def fails(*_):
        raise error("odd")

    suite = dataclasses.replace(get_suite("casts"), compare=fails)
    monkeypatch.setattr("numsim.cli.check.get_suite", lambda name: suite)
    with pytest.raises(RecordError, match=r"mine\.npz does not fit the suite casts: .*odd"):
        compare_suite(parse_record(record_of("casts"), "mine.npz"), "mine.npz", "mask")
    record = parse_record(record_of("casts"), "mine.npz")
    drawn = suite_page.page(dataclasses.replace(suite, draw=fails), record, [])
    assert "No picture: they cannot be drawn" in drawn and "odd" in drawn


@pytest.mark.parametrize("suite", SUITES)
def test_a_strange_record_never_fails_within(suite, tmp_path, capsys):
    (tmp_path / "r.npz").write_bytes(record_of(suite, "amax: input", ask("cast", ["fp32"], "fp16", [X])))
    assert main(["check", str(tmp_path / "r.npz"), "--out", str(tmp_path / "r.html"), "--plain"]) in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_a_record_of_casts_without_casts_has_a_page(tmp_path, capsys):
    (tmp_path / "stopped.npz").write_bytes(record_of("casts", "add fp32", ask("cast", ["fp32"], "fp16", [X])))
    assert main(["check", str(tmp_path / "stopped.npz"), "--out", str(tmp_path / "p.html")]) == 0
    assert "No picture" not in (tmp_path / "p.html").read_text(encoding="utf-8")


def test_nothing_compared_is_not_equal(monkeypatch):
    refused = Row("a part", Verdict("numpy", "emulated", skipped={"NaN without a code": 1}))
    suite = dataclasses.replace(get_suite("casts"), compare=lambda record: [refused])
    monkeypatch.setattr("numsim.cli.check.get_suite", lambda name: suite)
    one = compare_suite(parse_record(record_of("casts"), "mine.npz"), "mine.npz", "mask")
    assert not one["equal"] and one["status"] == "nothing compared"
    assert "not asked" not in suite_text.WORDS[suite_text.outcome(refused)]


def test_a_product_costs_k_for_each_way():
    a, b = np.zeros((4, 64), np.uint16), np.zeros((64, 8), np.uint16)
    q = ask("library", ["fp16", "fp16"], "fp16", [a, b], system="torch.matmul")
    assert work(q) == 4 * 64 * 8 * ways_to_try(q) and ways_to_try(q) > 10


def test_words_for_parts():
    assert suite_text.noun([]) == "part" and suite_text.noun(["mma.m16n8k8"]) == "instruction"
    rows = [Row(f"torch.matmul of {f}", Verdict("cuda", "emulated", compared=4, equal=4)) for f in ("fp16", "fp32")]
    assert [g.name for g in suite_text.groups(rows)] == ["torch.matmul, 2 parts"]
    bounded = [dataclasses.replace(r, verdict=Verdict("cuda", "emulated", 4, 3, documented={
        "within the bound of any order": 1})) for r in rows]  # fmt: skip
    assert len(suite_text.groups(bounded)) == 2  # their words count
    assert suite_text.summary(Record("0.1.0", {"machine": "cuda"}, ()), []).startswith("Same bits in 0 of 0 parts")
