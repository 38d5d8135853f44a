"""The suite tensorcore: units that are made wrong are found out and named, failures end one part, records are small."""

import re
from dataclasses import replace

import numpy as np
import pytest

from numsim.errors import UnavailableError
from numsim.expression import parse_products
from numsim.gpu import driver
from numsim.gpu.instructions import chip_of
from numsim.machines.cuda import Cuda
from numsim.machines.recorded import Record, parse_record
from numsim.machines.verdict import Verdict
from numsim.suites import tensorcore
from numsim.suites.differences import _written, others
from numsim.suites.suite import Collector
from numsim.tensorcore import explain_mma, get_model, list_models
from numsim.tensorcore.products import chained
from numsim.values import as_fraction
from tests.gpu import cpu
from tests.suites.fake import Gpu

F16, WGMMA8, MIXED = "mma.m16n8k16.f32.f16.f16.f32", "wgmma.m64n256k32.f32.e4m3.e4m3", "wgmma.m64n256k32.f32.e4m3.e5m2"
FP8 = "mma.m16n8k32.f32.e4m3.e4m3.f32"


def record_of(machine, instructions=(), seed=1):
    """What the suite records of some instructions."""
    collector = Collector(machine, seed)
    for name in instructions:
        model = get_model(machine.chip, name)
        with collector.part(model.instruction):
            for _, question in tensorcore.questions(model, seed):
                collector.ask(question)
    return parse_record(collector.bytes("tensorcore"), "a record")


def compared(machine, *instructions):
    record = record_of(machine, instructions)
    rows = tensorcore.SUITE.compare(record)
    return rows, " ".join(tensorcore.SUITE.notes(record, rows))


def usual(model, arrays):
    a, b, c, *scales = arrays
    return chained(a, b, c, model, *(scales or (None, None)))


def explained(text, chip, instruction):
    """The code that ``numsim explain`` comes to."""
    read = parse_products(text)
    a, b = ([as_fraction(x) for x in side] for side in zip(*read.pairs, strict=True))
    return explain_mma(a, b, as_fraction(read.c) if read.c else 0, chip=chip, instruction=instruction).code


def changed(**unit):
    return lambda model, arrays: usual(replace(model, unit=replace(model.unit, **unit)), arrays)


def backwards(model, arrays):
    a, b, c = arrays
    return usual(model, (a[..., ::-1], b[..., ::-1], c))


def halves(model, arrays):
    """FP8 through FP16, the halves of K instead of k mod 4: the same unit, asked with k in another order."""
    a, b, c = arrays
    order = np.arange(32).reshape(2, 8, 2).transpose(1, 0, 2).ravel()
    a, b = (x.reshape(*x.shape[:-1], -1, 32)[..., order].reshape(x.shape) for x in (a, b))
    return usual(model, (a, b, c))


def late(model, arrays):
    """Products alone; c is added to their sum by this CPU, instruction by instruction."""
    a, b, c = arrays
    floats = {"f32": np.float32, "f16": np.float16}[model.d]
    for k in range(0, a.shape[-1], model.k):
        sums = usual(model, (a[..., k : k + model.k], b[..., k : k + model.k], np.zeros_like(c)))
        with np.errstate(all="ignore"):
            made = sums.view(floats) + c.view(floats)
        c = np.where(np.isnan(made), sums.dtype.type(model.nan), made.view(sums.dtype))
    return c


@pytest.mark.parametrize(("chip", "name", "way", "sets", "fit"), [
    # what is open on a chip, the sets that must show it, and what the notes must say would fit
    ("h200", WGMMA8, changed(fraction_bits=14), {"near", "ladder", "finite", "subnormal", "K x 2"}, "F = 14"),
    ("h200", MIXED, changed(fraction_bits=14), {"near", "K x 2", "probes"}, "F = 14"),
    ("h200", WGMMA8, changed(output="rz-fp32"), {"near"}, "d truncated to FP32"),
    ("h200", WGMMA8, late, {"near", "ladder"}, "c added last"),
    ("h200", "wgmma.m64n256k32.f16.e4m3.e4m3", changed(fraction_bits=14), {"near", "ladder"}, "F = 14"),
    ("h200", "wgmma.m64n256k32.f16.e4m3.e4m3", late, {"near"}, "c added last"),
    ("h200", "mma.m16n8k8.f32.tf32.tf32.f32", changed(length=4), {"near", "ladder"}, "blocks of 4"),
    ("h200", "wmma.m16n16k8.f32.tf32.tf32.f32", changed(length=8), {"near", "ladder"}, "blocks of 8"),
    ("h200", FP8, changed(fraction_bits=26), {"finite", "ladder"}, "F = 26"),
    ("h200", FP8, halves, {"finite", "ladder"}, "halves of K go together"),
    ("h200", "mma.m16n8k16.f32.bf16.bf16.f32", changed(floor=-132), {"floor"}, "E0 = -132"),
    ("h200", "mma.m16n8k16.f32.bf16.bf16.f32", changed(floor=-134), {"floor"}, "E0 = -134"),
    ("h200", "mma.m16n8k16.f16.f16.f16.f16", changed(floor=-20), {"floor"}, "E0 = -20"),
    ("h200", "mma.m16n8k16.f16.f16.f16.f16", changed(fraction_bits=26), {"ladder"}, "F = 26"),
    ("h200", F16, changed(fraction_bits=26), {"near", "ladder", "subnormal", "K x 3"}, "F = 26"),
    ("h200", F16, changed(normalised=True), {"near", "subnormal"}, "by their own leading bit"),
    ("h200", F16, changed(align="down"), {"near"}, "terms cut down"),
    ("a100", F16, changed(length=16), {"near", "ladder"}, "blocks of 16"),
    ("a100", F16, backwards, {"near", "ladder", "K x 4"}, "k in the opposite order"),
    ("h200", "mma.m8n8k4.f64.f64.f64.f64", backwards, {"near", "ladder"}, "k in the opposite order"),
    ("b200", "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3", changed(fraction_bits=25), {"scales"},
     "F = 25"),
])  # fmt: skip
def test_another_unit_is_found_out(chip, name, way, sets, fit, monkeypatch):
    monkeypatch.setattr(tensorcore, "OUTPUTS", 256)  # half of what a GPU is asked
    (row,), notes = compared(Gpu(chip, way), name)
    assert row.verdict.unexplained and sets <= {s for s, v in row.sets.items() if v.unexplained}
    cause, told, _ = notes.partition(f" (all {row.verdict.compared:,} results of {row.part})")
    causes = cause.removeprefix("explained if ").split(" or ")
    assert told and any(c.startswith(fit) or fit in c for c in causes) and len(causes) == len(set(causes))
    assert f"{row.part} differs in the sets" in notes and "NOT as modelled" not in notes
    assert "the same explains what differs in: " in notes
    example = re.search(r'GPU (0x\w+) = .*?, numsim (0x\w+) = .*?\. numsim explain "(.*?)" --chip', notes)
    if example:  # the line to paste comes to what numsim is said to have
        assert explained(example[3], chip, name) == int(example[2], 16) != int(example[1], 16)
    else:
        assert re.search(r"first in [\w ]+, question \d+ of the file, result \[[\d, ]+\]: GPU 0x", notes)
        assert row.model.scale or sets == {"scales"}
    assert "would not raise the evidence" in notes and "would raise" not in notes


def test_the_probes_name_what_is_other():
    (row,), _ = compared(Gpu("h200", changed(fraction_bits=14)), WGMMA8)
    assert any("its probes say fraction bits 14, not 13" in line for line in row.differences)


def test_no_single_change_fits():
    (row,), notes = compared(Gpu("h200", changed(fraction_bits=27, floor=-130, align="down")), F16)
    assert row.verdict.unexplained and "no change of one thing explains it; the nearest" in notes
    assert "NOT as modelled" in notes and "explained if" not in notes


def test_what_agrees_decides():
    rows, notes = compared(Gpu("h200"), F16, WGMMA8, MIXED, FP8)
    assert [row.verdict.text for row in rows] == ["same bits"] * 4 and not any(row.differences for row in rows)
    assert "FP8 on Hopper's own unit, with c: F = 13, blocks of 32, c early: as modelled" in notes
    assert f"would raise h200 from single-source to validated: {FP8}" in notes
    assert f"would raise h200 from unverified to validated: {MIXED}" in notes
    assert f"leave open (only c = 0 is recorded): {WGMMA8}" in notes
    assert F16 not in notes  # validated already, nothing open


def test_notes_name_what_the_chip_has():
    rows, notes = compared(Gpu("t4"), *(model.instruction for model in list_models("t4")))
    assert len(rows) == 5 and not any(name in notes for name in ("BF16", "TF32", "FP8", "FP64", "scales"))
    assert re.search(r"FP16 results: rounded once, and F: as modelled, of [\d,]+ results of 2 instructions", notes)
    assert re.search(r"FP16 c with FP32 sums: as modelled, of [\d,]+ results of 1 instruction", notes)


def test_one_cause_of_several_instructions_is_told_once():
    _, notes = compared(Gpu("h200", changed(fraction_bits=14)), WGMMA8, MIXED)
    assert notes.count("explained if") == 1 and f"results of {WGMMA8}, {MIXED})" in notes


def test_no_change_is_named_twice():
    for chip, name in (("t4", "mma.m16n8k8.f32.f16.f16.f32"), ("h200", WGMMA8), ("h200", F16)):
        names = [change for change, _ in others(get_model(chip, name))]
        assert len(names) == len(set(names)) > 10


def test_numbers_are_written_to_the_bit():
    model = get_model("a100", "mma.m16n8k8.f32.tf32.tf32.f32")
    words = np.array([0x3F801FFF, 0, 0xC0490FDB, 0, 0, 0, 0, 0], np.uint32)
    question = tensorcore._question(model, (words, words, np.array(0x80000001, np.uint32)))
    code = int(usual(model, question.arrays))
    assert explained(_written(model, question, (), code), "a100", model.instruction) == code
    assert _written(model, question, (), code ^ 1) == ""  # what explain would contradict is not written


def test_another_gpu_raises_nothing():
    class Other(Gpu):
        def provenance(self):
            return {**super().provenance(), "device": "NVIDIA RTX A2000"}

    _, notes = compared(Other("a2"), F16)
    assert "numsim has no records of NVIDIA RTX A2000 itself" in notes and "would raise" not in notes


def test_nan_codes_are_told():
    def other(model, arrays):
        made = usual(model, arrays)
        return np.where(made == model.nan, made.dtype.type(0x7FC00000), made)

    (row,), notes = compared(Gpu("h200", other), WGMMA8)
    assert row.verdict.text == "same bits but for NaN payloads"
    assert "NaNs of another code" in notes and "would not raise" in notes


# --- asking -----------------------------------------------------------------------------------------------------------
def few(monkeypatch, *instructions, experiments=("kept-bits",)):
    """A suite of few parts."""
    monkeypatch.setattr(tensorcore, "list_models", lambda chip: tuple(get_model(chip, i) for i in instructions))
    monkeypatch.setattr(tensorcore, "EXPERIMENTS", {name: {} for name in experiments})


def asked(machine):
    collector = Collector(machine)
    tensorcore.SUITE.ask(collector)
    return collector, parse_record(collector.bytes("tensorcore"), "a record")


def test_a_part_that_fails_ends_alone(monkeypatch):
    few(monkeypatch, F16, FP8)
    collector, record = asked(Gpu(broken=[FP8]))
    assert collector.failed == {FP8: "elements are misplaced", f"product of matrices, {FP8}": "elements are misplaced"}
    assert {F16, "experiment kept-bits", f"product of matrices, {F16}"} == set(record.parts)
    rows = {row.part: row for row in tensorcore.SUITE.compare(record)}
    assert rows[FP8].note == "FAILED: elements are misplaced" and rows[F16].verdict.text == "same bits"
    assert "torch is not installed" in rows["torch.matmul of fp16"].verdict.text


def test_the_same_seed_asks_the_same(monkeypatch):
    few(monkeypatch, FP8, experiments=())
    digests = []
    for seed in (1, 1, 2):
        collector = Collector(Gpu(), seed)
        tensorcore.SUITE.ask(collector)
        record = parse_record(collector.bytes("tensorcore"), "a record")
        assert record.provenance["seed"] == seed
        row = tensorcore.SUITE.compare(record)[0]
        assert {"near", "ladder", "probes", "K x 4"} <= set(row.sets)  # sets have names again, of any seed
        digests.append(record.inputs)
    assert digests[0] == digests[1] != digests[2]


def test_a_machine_without_tensor_cores(monkeypatch):
    class Plain(Gpu):
        name, chip = "numpy", ""

        def __init__(self):
            pass

    collector = Collector(Plain())
    tensorcore.SUITE.ask(collector)
    assert collector.answers == [] and "no tensor cores" in collector.missing["instructions"]


def test_a_missing_half_says_what_to_install():
    class Half(Gpu):
        @property
        def chip(self):
            raise UnavailableError("cuda-bindings does not load (why): pip install it")

        @chip.setter
        def chip(self, name):
            pass

    collector = Collector(Half())
    tensorcore.SUITE.ask(collector)
    assert collector.missing["instructions"] == "cuda-bindings does not load (why): pip install it"


def test_a_chip_without_tf32_is_not_asked_the_experiment(monkeypatch):
    few(monkeypatch, "mma.m16n8k8.f32.f16.f16.f32", experiments=("tf32",))
    collector, _ = asked(Gpu("t4"))
    assert collector.missing["experiment tf32"] == "t4 has no tensor cores for TF32"


@pytest.mark.parametrize("chip", ["t4", "h200"])
def test_every_instruction_has_a_place_in_a_few_questions(chip):
    """Of each instruction some sets and the probes; the part's name fits into a record."""
    for model in list_models(chip):
        names = [name for name, _ in tensorcore.questions(model, 1)]
        assert names[-1] == "probes" and len(names) == len(set(names)) >= 4 and len(model.instruction) <= 80


def test_a_record_of_an_h200_is_small():
    """All that is asked of it, and an answer to everything: some megabytes."""
    collector = Collector(Gpu("h200"))
    tensorcore.SUITE.ask(collector)
    assert len(collector.bytes("tensorcore")) < 6e6
    assert {m.instruction for m in list_models("h200")} < set(collector.parts) and not collector.failed
    assert {f"experiment {name}" for name in tensorcore.EXPERIMENTS} < set(collector.parts)


def test_pictures_are_those_of_the_experiments(monkeypatch):
    few(monkeypatch, F16)
    _, record = asked(Gpu("a100"))
    (stem, _, alt), *_ = tensorcore.SUITE.draw(record, "page")
    assert "kept-bits" in stem and "A100" in alt


@pytest.mark.parametrize(("device", "capability", "chip"), [
    ("NVIDIA H200", (9, 0), "h200"), ("NVIDIA H100 80GB HBM3", (9, 0), "h100"), ("Tesla T4", (7, 5), "t4"),
    ("NVIDIA A100-SXM4-40GB", (8, 0), "a100"), ("NVIDIA GeForce RTX 4090", (8, 9), "rtx4090"),
    ("NVIDIA RTX 1000 Ada Generation Laptop GPU", (8, 9), "rtx1000ada"), ("NVIDIA B200", (10, 0), "b200"),
    ("Tesla V100-SXM2-16GB", (7, 0), "v100"), ("NVIDIA A2", (8, 6), "a2"), ("NVIDIA RTX A2000", (8, 6), "a2"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), "rtxpro6000"), ("NVIDIA GB10", (12, 1), ""),
])  # fmt: skip
def test_devices_and_chips(device, capability, chip):
    """Whose records a GPU is asked for; evidence is raised only for a chip of its own name."""
    assert chip_of(device, capability) == chip
    model = get_model(chip or "h200", "mma.m8n8k4.f32.f16.f16.f32" if chip in ("t4", "v100") else F16)
    row = tensorcore.InstructionRow(model.instruction, Verdict("cuda", "emulated", compared=1), "", model)
    facts = {"machine": "cuda", "device": device, "compute_capability": ".".join(map(str, capability))}
    notes = " ".join(tensorcore._evidence(Record("0", facts, ()), [row]))
    assert ("no evidence is raised" in notes) == (device in ("NVIDIA RTX A2000", "NVIDIA GB10"))


# --- the kernels themselves -------------------------------------------------------------------------------------------
@pytest.mark.skipif(bool(cpu.why_not()), reason=cpu.why_not())
@pytest.mark.parametrize(("chip", "name"), [("t4", "mma.m16n8k8.f32.f16.f16.f32"), ("h200", WGMMA8)])
def test_through_the_kernels(chip, name, monkeypatch, tmp_path):
    """The machine cuda with a GPU made of this CPU: questions of the suite, layouts, kernels, verdicts."""
    monkeypatch.setattr(driver, "device", lambda: cpu.Cpu(chip, tmp_path))
    monkeypatch.setattr(tensorcore, "OUTPUTS", 64)
    machine, collector = Cuda(), Collector(Cuda())
    model = get_model(chip, name)
    with collector.part(name):
        for _, question in [q for q in tensorcore.questions(model, 1) if q[0] in ("near", "special", "K x 2")]:
            assert machine.can(question)
            collector.ask(question)
    (row,) = tensorcore.SUITE.compare(parse_record(collector.bytes("tensorcore"), "a record"))
    assert row.verdict.text == "same bits" and set(row.sets) == {"near", "special", "K x 2"}
