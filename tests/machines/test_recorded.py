"""Records: what comes out is what went in, and nothing else is believed."""

import io
import json
import zipfile

import numpy as np
import pytest

import numsim
from numsim import files
from numsim.errors import InputError, RecordError, UnavailableError
from numsim.machines import Answer, ask, find_machine, get_machine
from numsim.machines.emulated import Emulated
from numsim.machines.recorded import _origin, parse_record, read_record, record_bytes, write_record
from numsim.machines.verdict import compare
from numsim.traces import Event, Trace


def questions():
    fp32 = np.array([0x3DCCCCCD, 0x7FC00001, 0x80000000, 0x477FF000], np.uint32)
    ones = np.full((2, 5), 0x3C00, np.uint16)
    return [
        ask("cast", ["fp32"], "fp16", [fp32]),
        ask("sum", ["fp16"], "fp16", [ones], order="pairwise"),
        ask("dot", ["fp16"] * 2, "fp32", [ones, ones], product="exact"),
        ask("matmul", ["fp16"] * 2, "fp16", [ones, ones.T]),
        ask("add", ["fp64"] * 2, "fp64", [np.array(0x3FF0000000000000, np.uint64), np.zeros((2, 1), np.uint64)]),
        ask("sum", ["fp32"], "fp32", [np.zeros((3, 0), np.uint32)]),
    ]


def record(machine="numpy"):
    machine = get_machine(machine)
    return [(q, machine.answer(q)) for q in questions() if machine.can(q)]


@pytest.fixture(scope="module")
def good():
    return record_bytes(record(), ["swamping"])


TRACES = {
    "gpu": Trace("a run", [1, 2], {"scale": [8.0, float("inf")]}, [Event(2, "overflow")]),
    "cpu": Trace("a run", [1, 2], {"scale": [8.0, 8.0]}),
}
SUITE = {
    "suite": "casts",
    "parts": ["a", "a", "b", "b", "b", ""],
    "skipped": {"c": "no unit"},
    "failed": {"d": "wrong sums"},
    "traces": TRACES,
}


@pytest.fixture(scope="module")
def of_a_suite():
    return record_bytes(record(), ["swamping"], **SUITE)


def test_what_comes_out_is_what_went_in(tmp_path):
    answers = record()
    path = write_record(tmp_path / "r.npz", answers, ["swamping"])
    found = read_record(path)
    assert found.machine == "numpy" and found.numsim == numsim.__version__ and found.experiments == ("swamping",)
    assert dict(found.provenance) == get_machine("numpy").provenance()
    assert [q.digest for q, _ in found.answers] == [q.digest for q, _ in answers]
    for (q, a), (p, b) in zip(answers, found.answers, strict=True):
        assert q.json == p.json and a.codes.dtype == b.codes.dtype and np.array_equal(a.codes, b.codes)
    with np.load(path, allow_pickle=False) as archive:  # plain numpy reads it, without pickle
        assert json.loads(archive["record"].tobytes())["provenance"]["machine"] == "numpy"


def test_what_a_suite_adds(of_a_suite, tmp_path):
    found = read_record(write_record(tmp_path / "r.npz", record(), ["swamping"], **SUITE))
    assert (found.suite, list(found.parts)) == (SUITE["suite"], SUITE["parts"])
    assert (found.skipped, found.failed) == (SUITE["skipped"], SUITE["failed"])
    assert {name: t.digest for name, t in found.traces.items()} == {name: t.digest for name, t in TRACES.items()}
    assert [e.kind for e in found.traces["gpu"].events] == ["overflow"]
    assert (tmp_path / "r.npz").read_bytes() == of_a_suite
    again = {name: getattr(found, name) for name in SUITE}
    assert record_bytes(found.answers, found.experiments, **again) == of_a_suite
    twice = parse_record(record_bytes(record()[:1] * 3, parts=["a", "b", "a"]), "x")
    assert twice.parts == ("a", "b") and len(twice.answers) == 2  # once in each part
    with pytest.raises(ValueError, match="zip"):
        record_bytes(record(), parts=["a"])


def test_the_same_answers_give_the_same_bytes(good):
    assert record_bytes(record(), ["swamping"]) == good
    assert record_bytes(record() * 2, ["swamping"]) == good  # a question is kept once


def test_the_recorded_machine_is_the_machine(tmp_path):
    path = write_record(tmp_path / "r.npz", record())
    for name in (str(path), f"recorded:{path}"):
        machine = get_machine(name)
        assert machine.title == "a recording of numpy" and machine.provenance()["machine"] == "numpy"
        for q, answer in record():
            assert machine.can(q)
            assert np.array_equal(machine.answer(q).codes, answer.codes)
            assert compare(q, Emulated().answer(q), machine.answer(q)).ok
    other = ask("cast", ["fp32"], "fp16", [np.zeros(1, np.uint32)])
    assert machine.can(other).reason == "the record does not hold this question"
    with pytest.raises(UnavailableError, match="does not hold this question"):
        machine.answer(other)


def test_a_recordings_quirks_are_its_machines(tmp_path):
    q = ask("cast", ["fp64"], "bf16", [np.array([1 + 2**-8 + 2**-40]).view(np.uint64)])
    path = write_record(tmp_path / "r.npz", [(q, get_machine("ml_dtypes").answer(q))])
    assert compare(q, Emulated().answer(q), get_machine(str(path)).answer(q)).text == "as documented: rounds twice"


def test_recorded_needs_a_file():
    assert not find_machine("recorded").can()
    with pytest.raises(UnavailableError, match=r"--against FILE\.npz"):
        get_machine("recorded")
    with pytest.raises(InputError, match="there is no such file"):
        get_machine("nothing.npz")


def test_what_cannot_be_recorded():
    with pytest.raises(InputError, match="nothing to record"):
        record_bytes([])
    q = questions()[0]
    with pytest.raises(InputError, match="one machine"):
        record_bytes([(q, get_machine("numpy").answer(q)), (q, Emulated().answer(q))])
    own = numsim.Format("fp16", 5, 10, bias=14)
    q = ask("cast", ["fp32"], own, [np.zeros(1, np.uint32)])
    with pytest.raises(InputError, match="is your own"):
        record_bytes([(q, Emulated().answer(q))])
    with pytest.raises(InputError, match="is needed"):
        record_bytes([(questions()[0], Answer(np.zeros(3, np.uint16), {"machine": "x"}))])


def test_records_are_not_replaced(tmp_path):
    path = write_record(tmp_path / "r.npz", record())
    with pytest.raises(InputError, match="exists"):
        write_record(path, record())
    write_record(path, record(), replace=True)


# --- damage -----------------------------------------------------------------------------------------------------------
def changed(good, change):
    """A record whose text (as Python data) or arrays were changed."""
    arrays = files.parse_npz(good, "x")
    data = json.loads(arrays.pop("record").tobytes())
    change(data, arrays)
    arrays["record"] = np.frombuffer(json.dumps(data).encode(), np.uint8)
    return files.npz_bytes(arrays)


def set_in(data, *path_and_value):
    *path, key, value = path_and_value
    for step in path:
        data = data[step]
    data[key] = value


DAMAGE = {
    "an answer": lambda d, a: a.update({"q00000.answer": a["q00000.answer"] ^ np.uint16(1)}),
    "an operand": lambda d, a: a.update({"q00000.a0": a["q00000.a0"] ^ np.uint32(1)}),
    "an answer's dtype": lambda d, a: a.update({"q00000.answer": a["q00000.answer"].astype(np.uint32)}),
    "an answer's shape": lambda d, a: a.update({"q00000.answer": a["q00000.answer"].reshape(2, 2)}),
    "an operand out of range": lambda d, a: a.update({"q00000.a0": np.full(4, 2**40, np.uint64)}),
    "a missing answer": lambda d, a: a.pop("q00001.answer"),
    "a missing operand": lambda d, a: a.pop("q00002.a1"),
    "another CPU": lambda d, a: set_in(d, "provenance", "cpu", "another"),
    "less provenance": lambda d, a: d.update(provenance={"machine": "numpy"}),
    "no machine": lambda d, a: set_in(d, "provenance", "machine", ""),
    "another experiment": lambda d, a: d.update(experiments=["casts"]),
    "another version": lambda d, a: d.update(numsim="9.9"),
    "a layout that is True": lambda d, a: d.update(numsim_record=True),
    "a member too many": lambda d, a: a.update({"extra": np.zeros(1, np.uint8)}),
    "another operation": lambda d, a: set_in(d, "questions", 0, "question", "operation", "sqrt"),
    "no operation": lambda d, a: set_in(d, "questions", 0, "question", "operation", None),
    "an unknown operation": lambda d, a: set_in(d, "questions", 0, "question", "operation", "exec"),
    "another format": lambda d, a: set_in(d, "questions", 0, "question", "output", "bf16"),
    "an unknown format": lambda d, a: set_in(d, "questions", 0, "question", "output", "fp17"),
    "a format that is a number": lambda d, a: set_in(d, "questions", 0, "question", "output", 16),
    "a format that is a list": lambda d, a: set_in(d, "questions", 0, "question", "inputs", [["fp32"]]),
    "another order": lambda d, a: set_in(d, "questions", 1, "question", "options", {"order": "kahan"}),
    "a wild order": lambda d, a: set_in(d, "questions", 1, "question", "options", {"order": {"a": 1}}),
    "an unknown option": lambda d, a: set_in(d, "questions", 1, "question", "options", {"speed": "fast"}),
    "a wild product": lambda d, a: set_in(d, "questions", 2, "question", "options", {"product": [1]}),
    "a wild seed": lambda d, a: set_in(d, "questions", 0, "question", "options", {"seed": -1}),
    "wild bits": lambda d, a: set_in(d, "questions", 0, "question", "options", {"sr_bits": 10**9}),
    "options that are a list": lambda d, a: set_in(d, "questions", 0, "question", "options", [1]),
    "a shape in words only": lambda d, a: set_in(d, "questions", 0, "question", "arrays", 0, "shape", [9]),
    "a default in words": lambda d, a: set_in(d, "questions", 0, "question", "options", {"rounding": "nearest-even"}),
    "a digest": lambda d, a: set_in(d, "questions", 0, "digest", "0" * 64),
    "an answer's digest": lambda d, a: set_in(d, "questions", 0, "answer", "0" * 64),
    "no digest": lambda d, a: d["questions"][0].pop("digest"),
    "the digest of inputs": lambda d, a: set_in(d, "inputs", "0" * 64),
    "one question less": lambda d, a: [d["questions"].pop(), a.pop("q00005.a0"), a.pop("q00005.answer")],
    "no questions": lambda d, a: [d["questions"].clear(), a.clear()],
    "questions that are a number": lambda d, a: set_in(d, "questions", 3),
    "a question that is null": lambda d, a: set_in(d, "questions", 0, None),
    "another layout": lambda d, a: set_in(d, "numsim_record", 3),
    "the layout before": lambda d, a: set_in(d, "numsim_record", 1),
    "no provenance": lambda d, a: d.pop("provenance"),
    "a provenance without machine": lambda d, a: d["provenance"].pop("machine"),
    "a provenance that is deep": lambda d, a: set_in(d, "provenance", "cpu", {"a": [1]}),
    "a machine that is a number": lambda d, a: set_in(d, "provenance", "machine", 7),
    "a machine with an escape sequence": lambda d, a: set_in(d, "provenance", "machine", "\x1b[31mnumpy"),
    "a provenance of two lines": lambda d, a: set_in(d, "provenance", "cpu", "a\nb"),
    "a provenance without end": lambda d, a: set_in(d, "provenance", "cpu", "a" * 1000),
    "a version that is a number": lambda d, a: set_in(d, "numsim", 1),
    "experiments that are numbers": lambda d, a: set_in(d, "experiments", [1]),
    "an entry too many": lambda d, a: set_in(d, "more", 1),
    "another suite": lambda d, a: set_in(d, "suite", "sums"),
    "a suite that is a number": lambda d, a: set_in(d, "suite", 1),
    "no suite": lambda d, a: d.pop("suite"),
    "another part": lambda d, a: set_in(d, "questions", 0, "part", "b"),
    "a part that is a number": lambda d, a: set_in(d, "questions", 0, "part", 1),
    "a part with an escape sequence": lambda d, a: set_in(d, "questions", 0, "part", "\x1b[2J"),
    "a part without end": lambda d, a: set_in(d, "questions", 0, "part", "a" * 81),
    "no part": lambda d, a: d["questions"][0].pop("part"),
    "another reason": lambda d, a: set_in(d, "skipped", "c", "nothing"),
    "one skipped less": lambda d, a: d["skipped"].clear(),
    "skipped that is a list": lambda d, a: set_in(d, "skipped", ["c"]),
    "failed that is null": lambda d, a: set_in(d, "failed", None),
    "failed without failure": lambda d, a: d["failed"].clear(),
    "a trace less": lambda d, a: [d["traces"].pop(), a.pop("t01")],
    "a trace's member gone": lambda d, a: a.pop("t00"),
    "a trace's digest": lambda d, a: set_in(d, "traces", 0, "digest", "0" * 64),
    "a trace's name": lambda d, a: set_in(d, "traces", 0, "name", "other"),
    "a trace's numbers": lambda d, a: a.update({"t00": np.frombuffer(TRACES["cpu"].json.encode(), np.uint8) + 0}),
    "a trace that is no text": lambda d, a: a.update({"t00": np.full(9, 0xFF, np.uint8)}),
    "traces that are a number": lambda d, a: set_in(d, "traces", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_changed_records(of_a_suite, name):
    with pytest.raises(RecordError):
        parse_record(changed(of_a_suite, DAMAGE[name]), "x.npz")


def signed(good, change):
    """A record that was changed by somebody who wrote its origin anew."""

    def both(data, arrays):
        change(data, arrays)
        data["origin"] = _origin(data)

    return changed(good, both)


HOSTILE = {
    "a suite with an escape sequence": lambda d, a: set_in(d, "suite", "\x1b[31m"),
    "a suite without end": lambda d, a: set_in(d, "suite", "a" * 41),
    "a suite that is null": lambda d, a: set_in(d, "suite", None),
    "a reason with an escape sequence": lambda d, a: set_in(d, "skipped", "c", "\x1b[31m"),
    "a reason of two lines": lambda d, a: set_in(d, "failed", "d", "a\nb"),
    "a reason without end": lambda d, a: set_in(d, "skipped", "c", "a" * 1001),
    "a reason that is a number": lambda d, a: set_in(d, "skipped", "c", 1),
    "a part with an escape sequence": lambda d, a: d["failed"].update({"\x1b[2J": "x"}),
    "skipped that is a list": lambda d, a: set_in(d, "skipped", [["c", "x"]]),
    "failed that is a text": lambda d, a: set_in(d, "failed", "d"),
    "traces that are a dict": lambda d, a: set_in(d, "traces", {}),
    "a trace that is a text": lambda d, a: set_in(d, "traces", 0, "gpu"),
    "a trace twice": lambda d, a: set_in(d, "traces", 1, {**d["traces"][0], "digest": d["traces"][1]["digest"]}),
    "a trace's name with an escape sequence": lambda d, a: set_in(d, "traces", 0, "name", "\x1b[2J"),
    "a trace's name that is a list": lambda d, a: set_in(d, "traces", 0, "name", []),
    "a trace too many": lambda d, a: d["traces"].append({"name": "x", "digest": "0" * 64}),
    "a member too many": lambda d, a: a.update({"t02": a["t00"]}),
    "a record as a trace": lambda d, a: a.update({"t00": np.frombuffer(b"{}", np.uint8)}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_forged_records_of_suites(of_a_suite, name):
    with pytest.raises(RecordError) as error:
        parse_record(signed(of_a_suite, HOSTILE[name]), "x.npz")
    assert len(str(error.value)) < 400 and str(error.value).isprintable()


def test_what_a_library_says_is_kept_on_one_line():
    found = parse_record(record_bytes(record(), skipped={"c": "no\n  \x1b[2J" + "x" * 2000}), "x")
    assert found.skipped["c"].startswith("no  [2Jxxx") and len(found.skipped["c"]) == 1000
    assert found.parts == ("",) * 6 and (found.suite, found.failed, found.traces) == ("", {}, {})


def test_nothing_changed_is_fine(of_a_suite):
    for again in (changed, signed):
        assert parse_record(again(of_a_suite, lambda d, a: None), "x").machine == "numpy"


def test_other_files(good):
    for data in (b"", b"text", good[:-40], good[:2000], json.dumps({"a": 1}).encode()):
        with pytest.raises(RecordError, match=r"x\.npz"):
            parse_record(data, "x.npz")
    with pytest.raises(RecordError, match=r"no member record\.npy"):
        parse_record(files.npz_bytes({"a": np.zeros(3, np.uint8)}), "x")
    for text in (b"[]", b"7", b"{}", b"nonsense", b"\xff", b"[" * 9999):
        with pytest.raises(RecordError):
            parse_record(files.npz_bytes({"record": np.frombuffer(text, np.uint8)}), "x")
    with pytest.raises(RecordError):
        parse_record(files.npz_bytes({"record": np.zeros((2, 2), np.uint8)}), "x")


def test_every_byte_counts(good):
    """Flipped bits are refused, unless they hit what means nothing (dates, attributes)."""
    rng = np.random.default_rng(9)
    for _ in range(400):
        data = bytearray(good)
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        try:
            found = parse_record(bytes(data), "x")
        except RecordError:
            continue
        for (q, a), (p, b) in zip(found.answers, record(), strict=True):
            assert q.digest == p.digest and np.array_equal(a.codes, b.codes)


def test_a_record_of_another_zip_writer_is_read(good):
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(buffer, "w") as new:  # stored, other dates and order
        for name in reversed(old.namelist()):
            new.writestr(name, old.read(name))
    assert parse_record(buffer.getvalue(), "x").machine == "numpy"
