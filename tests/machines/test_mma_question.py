"""The question "mma": what it is called for ever, what it refuses, who answers it, and how answers compare."""

import hashlib
import json

import numpy as np
import pytest

import numsim
from numsim.errors import InputError, NumsimError, RecordError, UnavailableError
from numsim.machines import Answer, ask, find_machine, get_machine, list_machines
from numsim.machines.emulated import emulate, has_kernel
from numsim.machines.recorded import Recorded, read_record, write_record
from numsim.machines.verdict import compare, compare_answers
from numsim.tensorcore import Model, get_model, list_chips, list_models, mma, products
from numsim.tensorcore.models import TYPES, word_format

F16 = "mma.m16n8k16.f32.f16.f16.f32"
MX = "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e2m1.ue8m0"
ONES = [np.full(16, 0x3C00, np.uint16), np.full((2, 16), 0x3C00, np.uint16), np.zeros((3, 1), np.uint32)]


def question(arrays=None, inputs=("fp16", "fp16", "fp32"), output="fp32", **options):
    return ask("mma", inputs, output, ONES if arrays is None else arrays,
               **{"chip": "h200", "instruction": F16, **options})  # fmt: skip


def of(model, shape=(), k=None, seed=0):
    """A question for a record, with codes of any kind."""
    rng = np.random.default_rng(seed)

    def codes(type_name, shape):
        f = word_format(type_name) if type_name not in ("ue8m0", "ue4m3") else TYPES[type_name]
        return np.asarray(numsim.encode(rng.uniform(0.5, 4, shape), f, nan="max"))

    k = model.k if k is None else k
    arrays = [codes(model.a, (*shape, k)), codes(model.b, (*shape, k)), codes(model.c, shape)]
    inputs = [word_format(model.a), word_format(model.b), word_format(model.c)]
    if model.scale:
        arrays += [codes(model.scale, (*shape, k // model.scale_block)) for _ in "ab"]
        inputs += [TYPES[model.scale]] * 2
    return ask("mma", inputs, TYPES[model.d], arrays, chip=model.chip, instruction=model.instruction)


# --- what it is called ------------------------------------------------------------------------------------------------
def test_the_digest_is_for_ever():
    """Records of GPUs are looked up by it."""
    text = json.dumps(
        {
            "operation": "mma", "inputs": ["fp16", "fp16", "fp32"], "output": "fp32",
            "options": {"chip": "h200", "instruction": F16},
            "arrays": [
                {"shape": list(a.shape), "dtype": a.dtype.name, "sha256": hashlib.sha256(a.tobytes()).hexdigest()}
                for a in ONES
            ],
        },
        sort_keys=True, separators=(",", ":"),
    )  # fmt: skip
    assert question().json == text
    assert question().digest == "4ba548ab51ff7bd5b8a92712b9ea54f9aa0dff59035aced91473b2032b4a506c"


def test_one_instruction_has_one_digest():
    q = question()
    same = [
        question(instruction="mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
        question(instruction="mma.m64n8k16.f32.f16.f16.f32", chip="NVIDIA H200"),
        question([np.repeat(a, 2, -1)[..., ::2] for a in ONES]),
        question([a.astype(">u8") for a in ONES]),
        question(rounding="nearest-even", order="sequential"),  # the defaults
    ]
    assert {p.digest for p in same} == {q.digest}
    assert {(p.chip, p.instruction) for p in same} == {("h200", F16)}
    others = [
        question(chip="h100"),
        question([ONES[0], ONES[1], ONES[2] | np.uint32(1)]),
        question([ONES[0][None], ONES[1], ONES[2]]),
        question([ONES[1], ONES[0], ONES[2]]),
        question(instruction="mma.m16n8k8.f32.f16.f16.f32"),
        ask("mma", ["fp32"] * 3, "fp32", [np.zeros(16, np.uint32)] * 2 + [ONES[2]]),
    ]
    assert len({p.digest for p in (q, *others)}) == 7


def test_in_words():
    q = question()
    assert str(q) == f"mma fp16[16] fp16[2, 16] fp32[3, 1] -> fp32 chip=h200 instruction={F16}"
    assert q.shape == (3, 2) and q.model is get_model("h200", F16)
    with pytest.raises(ValueError, match="read-only"):
        q.arrays[2][0] = 0


@pytest.mark.parametrize("chip", list_chips())
def test_every_record_can_be_asked_and_is_answered_as_mma_does(chip):
    models = list_models(chip)
    for model in models if len(models) < 30 else models[::7]:
        q = of(model, (2,), seed=len(model.instruction))
        scales = dict(zip(("scale_a", "scale_b"), q.arrays[3:], strict=False))
        direct = mma(*q.arrays[:3], chip=chip, instruction=model.instruction, **scales)
        answer = get_machine("emulated").answer(q)
        assert np.array_equal(answer.codes, direct) and answer.codes.dtype == direct.dtype
        assert compare(q, answer, Answer(direct, {"machine": "x"})).text == "same bits"


def test_k_is_any_multiple_of_the_instructions():
    """Chained: the result of the first instruction is the c of the second."""
    for chip, name in (("h200", F16), ("h200", "mma.m16n8k16.f16.f16.f16.f16"), ("b200", MX)):
        model = get_model(chip, name)
        q = of(model, (5,), 3 * model.k)
        c = q.arrays[2]
        for n in range(3):
            part, scales = slice(n * model.k, (n + 1) * model.k), {}
            if model.scale:
                per = model.k // model.scale_block
                scales = {
                    s: x[:, n * per : (n + 1) * per] for s, x in zip(("scale_a", "scale_b"), q.arrays[3:], strict=True)
                }
            c = mma(q.arrays[0][:, part], q.arrays[1][:, part], c, chip=chip, instruction=name, **scales)
        assert np.array_equal(emulate(q), c)


@pytest.mark.parametrize(
    ("shapes", "shape"),
    [
        ([(16,), (16,), ()], ()),
        ([(16,), (16,), (4,)], (4,)),
        ([(5, 1, 16), (3, 32), ()], None),
        ([(5, 1, 32), (3, 32), ()], (5, 3)),
        ([(2, 16), (16,), (3, 1)], (3, 2)),
        ([(0, 16), (16,), ()], (0,)),
        ([(16,), (16,), (2, 0)], (2, 0)),
        ([(), (16,), ()], None),
        ([(16,), (), ()], None),
        ([(8,), (8,), ()], None),
        ([(24,), (24,), ()], None),
        ([(0,), (0,), ()], None),
        ([(2, 16), (3, 16), ()], None),
        ([(2, 16), (2, 16), (3,)], None),
    ],
)
def test_shapes(shapes, shape):
    arrays = [np.zeros(s, t) for s, t in zip(shapes, (np.uint16, np.uint16, np.uint32), strict=True)]
    if shape is None:
        with pytest.raises(InputError, match=r"do not go together: a \(..., K\), .* K a multiple of 16"):
            question(arrays)
        return
    q = question(arrays)
    assert q.shape == shape == emulate(q).shape
    assert has_kernel(q)


def test_shapes_without_a_chip():
    with pytest.raises(InputError, match="K from 1 on"):
        ask("mma", ["fp32"] * 3, "fp32", [np.zeros(0, np.uint32)] * 2 + [np.zeros((), np.uint32)])
    q = ask("mma", ["fp32"] * 3, "fp32", [np.zeros(7, np.uint32)] * 2 + [np.zeros((), np.uint32)])
    assert q.shape == () and q.model is None and not has_kernel(q)


# --- what it refuses --------------------------------------------------------------------------------------------------
SCALED = [np.zeros(32, np.uint8)] * 2 + [np.uint32(0)] + [np.zeros(1, np.uint8)] * 2
SCALED_FORMATS = ["e4m3", "e2m1", "fp32", "e8m0", "e8m0"]
B200 = {"chip": "b200", "instruction": MX}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"inputs": ["fp16", "bf16", "fp32"]}, "takes fp16 fp16 fp32 and gives fp32; here fp16 bf16 fp32"),
        ({"inputs": ["fp16", "fp16", "fp16"], "arrays": [ONES[0]] * 3}, "takes fp16 fp16 fp32"),
        ({"output": "fp16"}, "gives fp32; here fp16 fp16 fp32 and fp16. Example: ask('mma', 'fp16 fp16 fp32'.split()"),
        ({"inputs": ["fp16"] * 2, "arrays": ONES[:2]}, "mma takes 3 arrays"),
        ({"inputs": ["fp16", "fp16", "fp32", "fp32"], "arrays": [*ONES, ONES[2]]}, "mma takes 5 arrays"),
        ({"inputs": SCALED_FORMATS[:3], "arrays": SCALED[:3], **B200}, "takes e4m3fn e2m1 fp32 e8m0 e8m0"),
        *[({"inputs": SCALED_FORMATS, "arrays": [*SCALED[:3], x, SCALED[4]], **B200}, "scales (..., K / 32)")
          for x in (np.zeros(2, np.uint8), np.zeros((), np.uint8))],
        ({"inputs": ["e4m3", "e2m1", "fp32", "ue4m3", "ue4m3"], "arrays": SCALED, **B200}, "e8m0 e8m0 and gives fp32"),
        ({"inputs": ["fp32"] * 5, "arrays": [np.zeros(32, np.uint32)] * 5, "chip": None, "instruction": None},
         "block scales belong to an instruction of a chip"),
        ({"inputs": ["tf32", "tf32", "fp32"], "arrays": [np.zeros(8, np.uint32)] * 2 + [np.uint32(0)],
          "instruction": "mma.m16n8k8.f32.tf32.tf32.f32"}, "takes fp32 fp32 fp32"),  # TF32 operands are FP32 words
        ({"arrays": [ONES[0].astype(np.int32), *ONES[1:]]}, "codes are unsigned integers"),
        ({"arrays": [ONES[0] + np.uint32(0x10000), *ONES[1:]]}, "out of range"),
        ({"arrays": [[[0] * 16, [0] * 15], *ONES[1:]]}, "regular arrays"),
        ({"chip": "h300"}, "did you mean h200"),
        ({"chip": None}, "chip=None: a name is needed"),
        ({"instruction": None}, "which one of h200?"),
        ({"chip": "a100", "instruction": "wgmma.m64n256k32.f32.e4m3.e4m3"}, "It exists on h100, h200"),
        ({"chip": get_model("h200", F16), "instruction": None}, "a question knows chips by name"),
        *[({k: v}, f"mma multiplies as the unit does: it takes no {k}, only chip and instruction")
          for k, v in (("rounding", "up"), ("overflow", "saturate"), ("subnormals", "flush"), ("nan", "max"),
                       ("order", "pairwise"), ("product", "exact"), ("seed", 1), ("sr_bits", 8))],
        ({"speed": "fast"}, "unknown options"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(call, words):
    with pytest.raises(NumsimError) as caught:
        question(**call)
    assert words in str(caught.value)


def test_a_chip_belongs_to_mma():
    for operation, inputs in (("cast", ["fp16"]), ("dot", ["fp16", "fp16"])):
        with pytest.raises(InputError, match="belong to mma"):
            ask(operation, inputs, "fp32", [ONES[0]] * len(inputs), chip="h200", instruction=F16)


# --- who answers ------------------------------------------------------------------------------------------------------
def plain(format, shape=(3,), k=5, seed=1):
    rng = np.random.default_rng(seed)
    codes = [np.asarray(numsim.encode(rng.integers(-4, 5, s), format)) for s in ((*shape, k), (*shape, k), shape)]
    return ask("mma", [format] * 3, format, codes), codes


@pytest.mark.parametrize("name", ["numpy", "torch-cpu", "ml_dtypes"])
@pytest.mark.parametrize("format", ["fp64", "fp32", "fp16", "bf16", "e5m2"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_libraries_multiply_in_one_format(name, format, shape):
    """Small integers: every order of adding gives the same sum, so the answer is known."""
    machine = find_machine(name)
    if not machine.can():
        pytest.skip(machine.can().reason)
    q, codes = plain(format, shape)
    multiplies = {"numpy": ("fp64", "fp32", "fp16"), "torch-cpu": ("fp64", "fp32", "fp16", "bf16"), "ml_dtypes": ()}
    assert machine.can(q).yes == (format in multiplies[name])
    if not machine.can(q):
        assert name in machine.can(q).reason
        with pytest.raises(UnavailableError, match="cannot answer"):
            machine.answer(q)
        return
    a, b, c = (numsim.decode(x, format) for x in codes)
    answer = machine.answer(q)
    assert np.array_equal(answer.codes, numsim.encode((a * b).sum(-1) + c, format)) and answer.codes.shape == q.shape
    assert answer.provenance["machine"] == name


def test_libraries_broadcast_as_the_emulator_does():
    shapes = ((2, 1, 4), (3, 4), (5, 1, 1))
    codes = [np.asarray(numsim.encode(np.random.default_rng(2).integers(-4, 5, s), "fp32")) for s in shapes]
    q = ask("mma", ["fp32"] * 3, "fp32", codes)
    a, b, c = (numsim.decode(x, "fp32") for x in codes)
    assert q.shape == (5, 2, 3)
    assert np.array_equal(get_machine("numpy").answer(q).codes, numsim.encode((a * b).sum(-1) + c, "fp32"))


def test_libraries_answer_what_they_should():
    """NumPy and PyTorch multiply FP32; neither is a chip, neither mixes formats."""
    for name in ("numpy", "torch-cpu"):
        machine = find_machine(name)
        if machine.can():
            assert machine.can(plain("fp32")[0])
            assert machine.can(question()).reason == f"{name} has no tensor cores"
            mixed = ask("mma", ["fp16", "fp16", "fp32"], "fp32", ONES)
            assert not machine.can(mixed) and "one format" in machine.can(mixed).reason
            small = ask("mma", ["e4m3"] * 3, "e4m3", [np.zeros(4, np.uint8)] * 2 + [np.zeros((), np.uint8)])
            assert not machine.can(small)


def test_the_emulator_needs_a_chip():
    q, _ = plain("fp32")
    assert "needs a chip" in get_machine("emulated").can(q).reason
    with pytest.raises(InputError, match="which chip"):
        get_machine("emulated").answer(q)
    assert get_machine("emulated").can(question())


def test_every_machine_says_yes_or_why_not():
    for machine in list_machines():
        for q in (
            question(),
            plain("fp32")[0],
            of(get_model("b200", MX)),
            of(get_model("mi300x", "mfma.f32_16x16x16_f16")),
        ):
            can = machine.can(q)
            assert can.yes or can.reason
            if not can:
                with pytest.raises(NumsimError):
                    machine.answer(q)


# --- records and verdicts ---------------------------------------------------------------------------------------------
def answered(*questions):
    machine = get_machine("emulated")
    return [(q, machine.answer(q)) for q in questions]


def test_a_record_comes_back(tmp_path):
    models = [get_model("h200", F16), get_model("b200", MX), get_model("a100", "mma.m16n8k8.f32.tf32.tf32.f32"),
              get_model("mi300x", "mfma.f32_16x16x32_fp8_bf8")]  # fmt: skip
    answers = answered(*(of(m, (4,), 2 * m.k) for m in models), question())
    path = write_record(tmp_path / "mma.npz", answers)
    record = read_record(path)
    for (q, a), (p, b) in zip(answers, record.answers, strict=True):
        assert p.json == q.json and p.model is q.model and np.array_equal(a.codes, b.codes)
    machine = Recorded(path)
    for q, a in answers:
        again = ask("mma", q.inputs, q.output, q.arrays, **q.options)
        assert machine.can(again) and np.array_equal(machine.answer(again).codes, a.codes)
    assert not machine.can(question(chip="h100")) and "does not hold" in machine.can(question(chip="h100")).reason
    assert compare_answers(answers, machine, name="emulated").text == "same bits"


def test_a_record_of_an_unknown_instruction_is_damaged(tmp_path, monkeypatch):
    """It names a chip that this version does not have."""
    path = write_record(tmp_path / "mma.npz", answered(question()))
    monkeypatch.setattr("numsim.tensorcore.names.ROWS", {"v100": []})
    with pytest.raises(RecordError, match="damaged: unknown chip"):
        read_record(path)


def test_verdicts(tmp_path):
    """A GPU that adds with another F, or gives another NaN, is found out."""
    rng = np.random.default_rng(5)
    h200 = get_model("h200", F16)
    a, b, c = (np.asarray(numsim.encode(rng.standard_normal(s), f)) for s, f in (
        ((200, 16), "fp16"), ((200, 16), "fp16"), ((200,), "fp32")))  # fmt: skip
    a[0, 0] = 0x7E00
    q = question([a, b, c])
    ours = get_machine("emulated").answer(q)
    as_a100 = np.asarray(mma(a, b, c, chip="a100", instruction=F16))  # blocks of 8, 24 bits
    theirs = Answer(as_a100, {"machine": "gpu"})
    verdict = compare(q, ours, theirs)
    assert verdict.compared == 200 and verdict.unexplained == int(np.count_nonzero(as_a100 != ours.codes)) > 20
    assert not verdict.ok and str(q) in str(verdict.shown[0]) and verdict.shown[0].index == (verdict.shown[0].index[0],)
    other_nan = np.where(ours.codes == h200.nan, np.uint32(0x7FC00000), ours.codes)
    verdict = compare(q, ours, Answer(other_nan, {"machine": "gpu"}))
    assert verdict.text == "same bits but for NaN payloads" and verdict.nan == 1
    assert compare(q, ours, Answer(other_nan, {"machine": "gpu"}), nan="bits").unexplained == 1
    path = write_record(tmp_path / "gpu.npz", [(q, theirs)])
    total = compare_answers([(q, ours)], Recorded(path), name="emulated")
    assert (total.machine, total.against, total.unexplained) == (
        "emulated",
        "recorded",
        compare(q, ours, theirs).unexplained,
    )


def test_verdicts_without_a_model():
    """Two libraries compared where the emulator cannot predict: differences are unexplained, nothing raises."""
    q, _ = plain("fp32")
    answer = get_machine("numpy").answer(q)
    other = Answer(answer.codes ^ np.uint32(1), {"machine": "torch-cpu"})
    assert compare(q, answer, answer).text == "same bits"
    assert compare(q, answer, other).unexplained == 3


def test_an_own_model_is_no_question():
    """A changed record that keeps the chip's name must not be answered by the chip's own."""
    changed = Model("h200", F16, 16, "f16", "f16", "f32", "f32", get_model("a100", F16).unit)
    with pytest.raises(InputError, match="by name"):
        question(chip=changed, instruction=F16)


def test_each_with_each_is_a_matrix_product(monkeypatch):
    """However operands broadcast, and in however many pieces: the same bits."""
    model = get_model("h200", "mma.m16n8k16.f32.f16.f16.f32")
    rng = np.random.default_rng(7)
    a, b = (rng.integers(0, 1 << 16, shape).astype(np.uint16) for shape in ((9, 1, 64), (1, 11, 64)))
    c = rng.integers(0, 1 << 32, 11).astype(np.uint32)
    columns = [(b[:, j], c[j : j + 1]) for j in range(11)]
    one_by_one = [[products.dots(x, y, z, model, None, None, None)[0] for y, z in columns] for x in a]
    for limit in (1 << 26, 100):
        monkeypatch.setattr(products, "_AT_ONCE", limit)
        assert products.chained(a, b, c, model, None, None).tolist() == one_by_one
        wide = np.broadcast_to(a, (9, 11, 64))
        assert products.chained(wide, b, c, model, None, None).tolist() == one_by_one
