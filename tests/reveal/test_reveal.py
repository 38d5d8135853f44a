"""Libraries, mystery units, recordings."""

import importlib.util
import json

import numpy as np
import pytest

from numsim import kernels
from numsim.errors import InputError, UnavailableError
from numsim.machines import ask, find_machine, get_machine
from numsim.machines.question import Answer
from numsim.machines.recorded import Record, Recorded, write_record
from numsim.reveal import eliminate, reveal, reveal_unit
from numsim.reveal.operands import Interface
from numsim.reveal.probes import sums_for
from numsim.reveal.reading import Reading
from numsim.show.reveal import elimination_lines
from numsim.show.text import plain
from numsim.tensorcore import Model, Unit, mma
from tests.tensorcore.recordings import RECORDINGS, needed

F16 = {"chip": "h200", "instruction": "mma.m16n8k16.f32.f16.f16.f32"}
KEYS = ("machine", "operands", "asked", "findings", "fits", "nearest")


# --- libraries --------------------------------------------------------------------------------------------------------
def added(tree, terms):
    """The terms in the order of a tree, by float32 additions."""
    if not isinstance(tree, tuple):
        return terms[tree]
    first, *others = (added(t, terms) for t in tree)
    for x in others:
        first = np.add(first, x, dtype=np.float32)
    return first


def test_the_tree_of_numpy_is_how_numpy_adds():
    ix = Interface("f32", "f32", "f32", "f32", 64)
    machine, seen = get_machine("numpy"), {}
    for name, sums in sums_for(ix).items():
        codes = machine.answer(ask("mma", ["fp32"] * 3, "fp32", sums.arrays)).codes
        seen[name] = dict(zip(sums.keys, codes.tolist(), strict=True))
    tree = Reading(ix, seen).tree
    rng = np.random.default_rng(1)
    a = (rng.standard_normal((500, 64)) * 2.0 ** rng.integers(-9, 9, (500, 64))).astype(np.float32)
    c = rng.standard_normal(500).astype(np.float32)
    ones = np.ones_like(a)  # products are exact: fused or not is the same
    got = machine.answer(ask("mma", ["fp32"] * 3, "fp32", [x.view(np.uint32) for x in (a, ones, c)])).codes
    with np.errstate(all="ignore"):
        wanted = added(tree, {**{k: a[:, k] for k in range(64)}, "c": c})
    assert np.array_equal(wanted.view(np.uint32), got)


@pytest.mark.parametrize("format", ["fp16", "fp32", "fp64"])
def test_numpy(format):
    r = reveal("numpy", format)
    bits = {"fp16": 10, "fp32": 23, "fp64": 52}[format]
    assert r["output"].value == f"nearest-even, {bits} bits" and r["c"].value == "last" and not r.fits
    assert r["subnormal a"].value.startswith("kept") and r["infinities"].value == "IEEE"
    assert r["block"].value in (1, "tree") and r["fraction bits"].value >= bits
    assert all(len(line) <= 80 for line in str(r).splitlines()) and str(r).isascii()


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
def test_torch_bf16():
    r = reveal("torch-cpu", "bf16")
    assert r["output"].value == "nearest-even, 7 bits" and r["c"].value == "last"
    assert r["fraction bits"].value >= 7 and "no record of a chip takes such operands" in str(r)


# --- units that are only functions ------------------------------------------------------------------------------------
def one_after_another(a, b, c):
    """FP16 products in FP32, rounded, added upwards in FP32 from c on; zero where a is subnormal."""
    x = np.where(a & 0x7C00, a, a & 0x8000).astype(np.uint16)
    with np.errstate(all="ignore"):
        products = x.view(np.float16).astype(np.float32) * b.view(np.float16).astype(np.float32)
        total = c.view(np.float32)
        for k in range(a.shape[1]):
            total = total + products[:, k]
    return total.view(np.uint32)


def downwards(a, b, c):
    return one_after_another(a[:, ::-1], b[:, ::-1], c)


def in_halves(a, b, c):
    """Two sums from zero, then c: written here, not in numsim."""
    zero, half = np.zeros_like(c), a.shape[1] // 2
    parts = [one_after_another(a[:, s], b[:, s], zero) for s in (slice(half), slice(half, None))]
    with np.errstate(all="ignore"):
        return ((parts[0].view(np.float32) + parts[1].view(np.float32)) + c.view(np.float32)).view(np.uint32)


def test_mystery_units():
    r = reveal_unit(one_after_another, "fp16", "fp16", "fp32", 8)
    assert (r["block"].value, r["order"].value, r["c"].value) == (1, "c>0>1>..>7", "first")
    assert r["subnormal a"].value == "flushed" and r["subnormal b"].value == "kept" and not r.fits
    assert r["output"].value == "nearest-even, 23 bits" and r["fraction bits"].value == 23
    assert reveal_unit(downwards, "f16", "f16", "f32", 4)["order"].value == "c>3>2>1>0"
    halves = reveal_unit(in_halves, "f16", "f16", "f32", 8)
    assert halves["c"].value == "last" and halves["order"].value == "(0>1>2>3)[+4]>c"
    assert halves["block"].value == "tree"


def test_a_unit_by_its_records():
    def scaled(a, b, c, sa, sb):
        name = "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"
        return mma(a, b, c, chip="b200", instruction=name, scale_a=sa, scale_b=sb)

    r = reveal_unit(scaled, "e2m1", "e2m1", "f32", 64, scale="ue4m3", scale_block=16)
    assert r["groups"].value == 16 and {m.chip for m in r.models} == {"b200", "rtx5090", "rtxpro6000"}
    assert r["odd scales"].value.startswith("NaN: nan")


def test_two_roundings_are_seen():
    def twice(a, b, c):
        wide = mma(a, b, c.view(np.float16).astype(np.float32).view(np.uint32), **F16)
        with np.errstate(all="ignore"):
            return wide.view(np.float32).astype(np.float16).view(np.uint16)

    def once(a, b, c):
        return mma(a, b, c, chip="h200", instruction="mma.m16n8k16.f16.f16.f16.f16")

    r = reveal_unit(twice, "f16", "f16", "f16", 16)
    assert r["rounded once"].value == "no" and r["output"].value == "nearest-even, 10 bits" and not r.fits
    assert reveal_unit(once, "f16", "f16", "f16", 16)["rounded once"].value == "yes"


def test_one_wrong_bit_is_seen():
    def almost(a, b, c):
        codes = mma(a, b, c, **F16)
        return np.where(codes == 0x7FFFFFFF, np.uint32(0x7FC00000), codes)

    r = reveal_unit(almost, "f16", "f16", "f32", 16)
    assert not r.fits and list(r.nearest[0].differs) == ["specials"] and r["NaN"].value == "0x7fc00000"


# --- recordings -------------------------------------------------------------------------------------------------------
def test_a_recording_of_the_probes(tmp_path):
    live = reveal("emulated", **F16)
    path = write_record(tmp_path / "r.npz", live.answers, ["reveal"])
    again = reveal(str(path))
    assert again.findings == live.findings and again.models == live.models
    assert reveal(Recorded(path), **F16).findings == live.findings
    with pytest.raises(UnavailableError, match="does not hold"):
        reveal(str(path), chip="a100", instruction=F16["instruction"])


def random_record(tmp_path, count=300, scale=1.0):
    rng = np.random.default_rng(5)
    a, b = ((rng.standard_normal((count, 16)) * scale).astype(np.float16).view(np.uint16) for _ in range(2))
    c = (rng.standard_normal(count) * scale).astype(np.float32).view(np.uint32)
    question = ask("mma", ["fp16", "fp16", "fp32"], "fp32", [a, b, c], **F16)
    return write_record(tmp_path / "random.npz", [(question, find_machine("emulated").answer(question))])


def test_elimination(tmp_path):
    record = Recorded(random_record(tmp_path)).record
    [e] = eliminate(record)
    good = {m.chip for f in e.fits if not f.total for m in f.models}
    assert good == {"h100", "h200", "b200", "rtx5090", "rtxpro6000"}
    (a100,) = (f for f in e.fits if ("a100", 16) in [(m.chip, m.k) for m in f.models])
    mine = mma(*record.answers[0][0].arrays, chip="a100", instruction=F16["instruction"])
    assert a100.total == np.count_nonzero(mine != record.answers[0][1].codes) > 0
    text = plain(elimination_lines([e]))
    told = f"all 300 answers are those of {F16['instruction']}: validated on h100, h200, b200;"
    assert told in " ".join(text.split()) and f"{a100.total} of 300" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert json.loads(json.dumps(e.to_dict()))["records"][0]["differs"] == 0


def test_elimination_of_all(tmp_path):
    record = Recorded(random_record(tmp_path)).record
    (question, answer), *_ = record.answers
    [e] = eliminate(Record("", {"machine": "x"}, ((question, Answer(answer.codes ^ np.uint32(1), {})),)))
    assert all(f.total for f in e.fits) and e.fits[-1].total <= 300
    assert "no record of a chip gives all" in plain(elimination_lines([e]))
    cast = ask("cast", ["fp32"], "fp16", [np.zeros(1, np.uint32)])
    with pytest.raises(UnavailableError, match="no answers of a matrix unit"):
        eliminate(Record("", {"machine": "x"}, ((cast, Answer(np.zeros(1, np.uint16), {})),)))


@needed
@pytest.mark.parametrize("recording", [r for r in RECORDINGS if r.output == "f32"], ids=lambda r: r.name)
def test_recorded_chips(recording):
    """The chip's own record is among those that real results leave."""
    a, b, c, d = recording.load(2000)
    words = Interface.of(recording.model).words
    question = ask("mma", words, "fp32", [a, b, c], chip=recording.chip, instruction=recording.instruction)
    [e] = eliminate(Record("", {"machine": recording.gpu}, ((question, Answer(d, {})),)))
    left = [m for f in e.fits if not f.total for m in f.models]
    assert recording.model in left and any(f.total for f in e.fits)


# --- wrong use --------------------------------------------------------------------------------------------------------
def test_wrong_use():
    for call, text in (
        (lambda: reveal("emulated"), "which one"),
        (lambda: reveal("emulated", instruction=F16["instruction"]), "of which chip"),
        (lambda: reveal("emulated", "fp16", **F16), "names its formats"),
        (lambda: reveal("numpy", "e8m0"), "block scales"),
        (lambda: reveal("emulated", "e4m3", chip="v100"), "has no instruction"),
        (lambda: reveal_unit(one_after_another, "f16", "f16", "f32", 2), "from 4 to 256"),
        (lambda: reveal_unit(one_after_another, "e3m4", "f16", "f32", 8), "a_type='e3m4'"),
        (lambda: reveal_unit(one_after_another, "f16", "f16", "f32", 8, scale="ue8m0"), "or neither"),
        (lambda: reveal_unit(lambda a, b, c: c[:1], "f16", "f16", "f32", 8), "for each is needed"),
        (lambda: reveal_unit(lambda a, b, c: c.view(np.float32), "f16", "f16", "f32", 8), "for each is needed"),
        (lambda: reveal("emulated", **F16)["colour"], "no finding 'colour'"),
    ):
        with pytest.raises(InputError, match=text):
            call()
    with pytest.raises(UnavailableError, match="no arithmetic in bf16"):
        reveal("numpy", "bf16")


def test_as_a_dictionary():
    data = reveal("emulated", "tf32", chip="a100").to_dict()
    assert tuple(data) == KEYS and json.loads(json.dumps(data)) == data
    assert {"name": "floor", "value": -132} in [{k: f[k] for k in ("name", "value")} for f in data["findings"]]


# --- found by attack --------------------------------------------------------------------------------------------------
def test_a_unit_that_writes_into_its_operands_spoils_nothing():
    def unit(a, b, c):
        d = mma(a, b, c, **F16)
        a[:] = 0
        return d

    assert reveal_unit(unit, "f16", "f16", "f32", 16)["block"].value == 16
    found = reveal("emulated", **F16)
    assert found["block"].value == 16 and found.fits


@pytest.mark.parametrize("which", ["reference", "kernel"])
def test_an_instruction_of_three_products(which):
    """Chained, so that no probe asks for a part of it."""
    if which == "kernel" and (why := kernels.why_not()):
        pytest.skip(why)
    with kernels.force(which):
        found = reveal("emulated", chip=Model("m", "i", 3, "f16", "f16", "f32", "f32", Unit("block", 3, 25, -133)))
    assert (found["block"].value, found["fraction bits"].value) == (3, 25)


@pytest.mark.parametrize("call", [
    lambda: reveal(None), lambda: reveal(5), lambda: reveal_unit(None, "f16", "f16", "f32", 16),
    lambda: reveal_unit(lambda a, b, c: [[1], [1, 2]], "f16", "f16", "f32", 16),
    lambda: reveal_unit(min, "f16", "f16", "f32", 16, scale_block=None),
    lambda: reveal_unit(min, "f16", "f16", "f32", 16, scale=[]),
])  # fmt: skip
def test_what_is_no_unit(call):
    with pytest.raises(InputError):
        call()
