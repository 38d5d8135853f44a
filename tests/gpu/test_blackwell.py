"""Block-scaled mma and tcgen05: compiled, laid out, and run on this CPU by the PTX manual. No GPU has run them yet."""

import dataclasses
import re

import numpy as np
import pytest

from numsim.errors import InputError, UnavailableError
from numsim.gpu import blackwell, instructions, units
from numsim.gpu.compiler import compiler
from numsim.gpu.driver import DeviceError
from numsim.gpu.instructions import Instruction, never_run, why_missing
from numsim.gpu.layouts import pack
from numsim.gpu.ptx import header, kernel
from numsim.rounding import encode
from numsim.tensorcore import get_model, list_models
from numsim.tensorcore.models import TYPES, word_format
from numsim.tensorcore.products import chained
from tests.gpu import cpu, manual_blackwell

pytestmark = pytest.mark.filterwarnings("ignore:.*is (single-source|unverified)")
B200, RTX = "b200", "rtx5090"
MODELS = [m for chip in (B200, RTX, "rtxpro6000") for m in list_models(chip) if "kind::" in m.instruction]
RTX_MODELS = [m for m in MODELS if m.chip == RTX]
B200_MODELS = [m for m in MODELS if m.chip == B200]
named = {"ids": lambda m: m.instruction}
SOME = [get_model(chip, name) for chip, name in [
    (RTX, "mma.m16n8k32.kind::f8f6f4.f32.e2m1.e3m2.f32"), (RTX, "mma.m16n8k32.kind::f8f6f4.f16.e5m2.e2m3.f16"),
    (RTX, "mma.m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e2m1.f32.ue8m0"),
    (RTX, "mma.m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0"),
    (RTX, "mma.m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue8m0"),
    (RTX, "mma.m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3"),
    (B200, "tcgen05.m128n256k16.kind::f16.f32.bf16.bf16"), (B200, "tcgen05.m128n256k16.kind::f16.f16.f16.f16"),
    (B200, "tcgen05.m128n256k8.kind::tf32.f32.tf32.tf32"), (B200, "tcgen05.m128n256k32.kind::f8f6f4.f16.e2m1.e3m2"),
    (B200, "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e2m3.e5m2.ue8m0"),
    (B200, "tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0"),
    (B200, "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"),
]]  # fmt: skip
SCALED = [m for m in SOME if m.scale]


def instruction(name, chip=B200):
    return Instruction.of(get_model(chip, name))


def random_codes(seed, type_name, shape):
    """Codes of any kind, infinities and NaN among them."""
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape))).reshape(shape)
    bits = word_format(type_name).bits
    return (raw >> np.uint64(11) & np.uint64((1 << bits) - 1)).astype(f"u{max(bits, 8) // 8}")


def usual_codes(seed, type_name, shape):
    """Numbers of like size, and a few codes of any kind."""
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape))).reshape(shape) >> np.uint64(11)
    values = (1 + (raw % 1000) / 999) * 2.0 ** ((raw >> 10) % 8).astype(int) / 16
    if type_name not in ("ue8m0", "ue4m3"):
        values *= 1 - 2.0 * (raw >> 20 & 1)
    codes = np.asarray(encode(values, word_format(type_name)))
    return np.where(raw >> 30 & 0x3FF, codes, random_codes(seed, type_name, shape))


def test_every_kind_is_here():
    kinds = {(m.chip, re.search(r"kind::(\w+)", m.instruction)[1], m.d, m.scale_block) for m in MODELS}
    scaled = {("mxf8f6f4", 32), ("mxf4", 32), ("mxf4nvf4", 32), ("mxf4nvf4", 16)}
    plain = {("f8f6f4", "f32"), ("f8f6f4", "f16")}
    for chip in (RTX, "rtxpro6000"):
        assert {k[1:] for k in kinds if k[0] == chip} == {(k, d, 0) for k, d in plain} | {
            (k, "f32", block) for k, block in scaled
        }
    more = {("f16", "f32"), ("f16", "f16"), ("tf32", "f32")}
    assert {k[1:] for k in kinds if k[0] == B200} == {(k, d, 0) for k, d in plain | more} | {
        (k, "f32", block) for k, block in scaled
    }


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_it_is_said_that_no_gpu_has_run_it(model):
    i = Instruction.of(model)
    assert never_run(i) and not why_missing(i, (10, 0) if model.chip == B200 else (12, 0))
    assert why_missing(i, (9, 0)) and why_missing(i, (12, 0) if model.chip == B200 else (10, 0))


def test_a_kernel_has_run_when_a_record_has_it(monkeypatch):
    models = [Instruction.of(m) for m in list_models("h200")]
    assert all(map(never_run, models))  # no record yet
    monkeypatch.setattr(instructions, "SEEN", frozenset({("wgmma", "")}))
    assert {i.family for i in models if not never_run(i)} == {"wgmma"}


# --- compiled ---------------------------------------------------------------------------------------------------------
def compiled(model, **options):
    try:
        return compiler().compile(
            kernel(Instruction.of(model)), {B200: "sm_100a", RTX: "sm_120a"}[model.chip], **options
        )
    except UnavailableError as error:
        if "does not compile" in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("model", RTX_MODELS + B200_MODELS, **named)
def test_it_compiles_to_machine_code(model):
    assert compiled(model)[:4] == b"\x7fELF"


def ptx_of(model):
    """The instruction as the manual writes it, from numsim's name of it."""
    family, shape, *rest = model.instruction.split(".")
    kind = rest[0]
    block = {"block32": 32, "block16": 16}.get(rest[1])
    types = [t for t in rest[1:] if not t.startswith("block")]
    scales = f".block_scale.scale_vec::{model.k // block}X" if block else ""
    if family == "mma":
        return ".".join(["mma.sync.aligned", shape, "row.col", kind + scales, *types])
    return f"tcgen05.mma.cta_group::1.{kind}{scales}"


@pytest.mark.parametrize("model", SOME, **named)
def test_its_ptx_has_the_instruction(model):
    text = compiled(model, ptx=True).decode()
    found = set(re.findall(r"(?:tcgen05\.mma|mma\.sync)\S+", text))  # in a loop that the compiler may unroll
    assert found == {ptx_of(model)}
    if model.chip == B200:
        for part in ("alloc", "relinquish_alloc_permit", "dealloc", "commit", "wait::st", "wait::ld"):
            assert f"tcgen05.{part}" in text
        assert len(re.findall(r"tcgen05\.mma", text)) == 1


@pytest.mark.parametrize("model", RTX_MODELS + B200_MODELS, **named)
def test_its_header_has_the_instruction(model):
    text = manual_blackwell.said(header(Instruction.of(model)))["text"]
    assert text.split(" ")[0] == ptx_of(model)
    assert text.count("{0, 0}") == (2 if model.scale and model.chip == RTX else 0)
    assert text.count("], ") == (3 if model.scale else 1) * (model.chip == B200)


# --- laid out ---------------------------------------------------------------------------------------------------------
def tile(model, seed=1):
    """Codes of one tile of a and b, and scales: (rows, K), (rows, scales of a row)."""
    i, found = Instruction.of(model), {}
    for operand in "ab":
        rows = {"a": i.m, "b": i.n}[operand]
        codes = random_codes(seed, getattr(model, operand), (rows, i.k))
        scales = random_codes(seed + 1, model.scale or "ue8m0", (rows, i.k // model.scale_block if model.scale else 0))
        found[operand] = i, codes, scales
        seed += 2
    return found


@pytest.mark.parametrize("model", RTX_MODELS, **named)
def test_registers_hold_what_the_manual_says(model):
    for operand, (i, codes, scales) in tile(model).items():
        words = pack(np.concatenate([codes, scales], -1)[None], i, operand)
        assert words.dtype == np.uint32 and words.shape == (1, i.words(operand))
        found = manual_blackwell.registers(words[0], operand, header(i), getattr(model, operand))
        assert np.array_equal(found[0], codes) and np.array_equal(found[1], scales)


@pytest.mark.parametrize("model", B200_MODELS, **named)
def test_shared_memory_holds_what_the_descriptor_says(model):
    i = Instruction.of(model)
    (a, b), (x, y) = zip(*[(t[1], t[2]) for t in tile(model).values()], strict=True)
    descriptor = int(re.search(r"DESCRIPTOR (0x\w+)ull", header(i))[1], 16)
    for operand, codes, scales in (("a", a, x), ("b", b, y)):
        words = pack(np.concatenate([codes, scales], -1)[None], i, operand)[0]
        held = len(codes) * 32 // 4
        found = manual_blackwell.matrix(words.view(np.uint8), descriptor, len(codes), getattr(model, operand), i.kind)
        assert np.array_equal(found, codes)
        lanes = words[held:].reshape(32, -1)  # of each quarter
        if model.scale:
            tensor = np.tile(lanes, (4, 1))
            read = manual_blackwell.block_scales(tensor, 0, 0, len(codes), i.k // model.scale_block)
            assert np.array_equal(read, scales)
        assert lanes.size == (32 * -(-len(codes) // 32) if model.scale else 0)


def test_words_by_hand():
    e2m1 = np.arange(32, dtype=np.uint8)[None] % 16 * np.ones((16, 1), np.uint8)  # a row: 0, 1, 2, ... 15, 0, 1, ...
    plain = instruction("mma.m16n8k32.kind::f8f6f4.f32.e2m1.e2m1.f32", RTX)
    assert pack(e2m1[None], plain, "a")[0, 4:8].tolist() == [0x1C181410] * 4  # thread 1: 4, 5, 6, 7 in the middle bits
    e2m3 = instruction("mma.m16n8k32.kind::f8f6f4.f32.e2m3.e2m3.f32", RTX)
    assert pack(e2m1[None], e2m3, "a")[0, 4] == 0x07060504
    packed = instruction("mma.m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0", RTX)
    row = np.concatenate([e2m1[0], e2m1[0], [0x7F, 0x80]]).astype(np.uint8)
    words = pack(np.broadcast_to(row, (1, 16, 66)), packed, "a")[0].reshape(32, 5)
    assert words[0].tolist() == [0x76543210] * 4 + [0x807F807F] and words[1, 0] == 0xFEDCBA98
    tc = instruction("tcgen05.m128n256k32.kind::f8f6f4.f32.e2m1.e2m3")
    a = pack(np.broadcast_to(e2m1[0], (1, 128, 32)), tc, "a")[0]
    assert a[:4].tolist() == [0x76543210, 0xFEDCBA98, 0, 0] and a[32:36].tolist() == a[:4].tolist()
    b = pack(np.broadcast_to(e2m1[0], (1, 16, 32)), tc, "b")[0]
    assert int(b[0]) == sum(n << 6 * n for n in range(6)) & 0xFFFFFFFF and b[3] == 0


@pytest.mark.parametrize(("name", "wanted"), [
    # N = 256, from Triton's test/Conversion/tritongpu_to_llvm_blackwell.mlir
    ("tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3", 138413184),
    ("tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0", 146801792),
])  # fmt: skip
def test_descriptors_of_others(name, wanted):
    assert blackwell.instruction_descriptor(dataclasses.replace(instruction(name), n=256)) == wanted


@pytest.mark.parametrize("model", B200_MODELS, **named)
def test_instruction_descriptors(model):
    i = Instruction.of(model)
    word = int(re.search(r"INSTRUCTION (0x\w+)u", header(i))[1], 16)
    wanted = {"m": 128, "n": 16, "k": model.k, "a": model.a, "b": model.b}
    wanted |= {"scale": model.scale, "ids": (0, 0)} if model.scale else {"d": model.d}
    assert manual_blackwell.instruction(word, i.kind) == wanted


# --- run on this CPU --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if why := cpu.why_not():
        pytest.skip(why)
    return tmp_path_factory.mktemp("kernels")


def same(found, wanted):
    return found.dtype == wanted.dtype and np.array_equal(found, wanted)


@pytest.mark.parametrize("model", SOME, **named)
def test_products_are_the_models(model, folder):
    m, n, steps = (130, 17, 2) if model.chip == B200 else (17, 9, 3)
    k = steps * model.k
    a, b = usual_codes(1, model.a, (m, 1, k)), usual_codes(2, model.b, (1, n, k))
    c = usual_codes(3, model.c, (m, n))
    scales = [None, None]
    if model.scale:
        count = k // model.scale_block
        scales = [usual_codes(4, model.scale, (m, 1, count)), usual_codes(5, model.scale, (1, n, count))]
    found = units.multiply(cpu.Cpu(model.chip, folder), model, a, b, c, *scales)
    wanted = chained(a, b, c, model, *scales)
    assert same(found, wanted) and len(np.unique(wanted)) > wanted.size / 4


@pytest.mark.parametrize("model", SCALED[:4], **named)
def test_scales_are_broadcast_and_padded(model, folder):
    """A batch of dot products whose K ends in the middle of an instruction: what is missing has the scale 1."""
    k = model.k + model.scale_block
    a, b, c = usual_codes(1, model.a, (5, k)), usual_codes(2, model.b, k), usual_codes(3, model.c, (2, 1, 5))
    scales = [usual_codes(4, model.scale, (2, 1, 1, 2 * k // model.scale_block))[..., : k // model.scale_block],
              usual_codes(5, model.scale, (5, k // model.scale_block))]  # fmt: skip
    found = units.multiply(cpu.Cpu(model.chip, folder), model, a, b, c, *scales)
    one = {"ue8m0": 0x7F, "ue4m3": 0x38}[model.scale]
    more = -k % model.k

    def longer(x, last, count):
        return np.concatenate([x, np.full((*x.shape[:-1], count), last, x.dtype)], -1)

    padded = [longer(a, 0, more), longer(b, 0, more), c]
    wanted = chained(*padded, model, *(longer(s, one, more // model.scale_block) for s in scales))
    assert found.shape == (2, 1, 5) and same(found, wanted)


def test_wrong_scales_are_refused(folder):
    model = SCALED[0]
    codes, c = np.zeros((2, model.k), np.uint8), np.zeros(2, np.uint32)
    scales = np.zeros((2, 1 + model.k // model.scale_block), np.uint8)
    with pytest.raises(InputError, match="one for 32 codes"):
        units.multiply(cpu.Cpu(model.chip, folder), model, codes, codes, c, scales, scales)


class Changed(cpu.Cpu):
    """A GPU that runs other kernels than it is given."""

    def __init__(self, chip, folder, old, new):
        super().__init__(chip, folder)
        self.change_text = lambda text: text.replace(old, new)
        self.found = False

    def run(self, kernel, *arguments, **options):
        changed = kernel._replace(source=self.change_text(kernel.source), header=self.change_text(kernel.header))
        self.found |= changed != kernel
        return super().run(changed, *arguments, **options)


NVF4, F16 = "m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3", "m128n256k16.kind::f16.f16.f16.f16"
STEP_1, STEP_2 = "        hand_over();\n        __syncthreads();\n", "        await(&barrier, step & 1);\n"


@pytest.mark.parametrize(("name", "old", "new", "message"), [
    (NVF4, "SHARED_A / 4", "SHARED_A / 8", "elements are misplaced"),
    (NVF4, "lane * SCALES_A + i", "i * 32 + lane", "elements are misplaced"),
    (NVF4, "own + scales_a + i", "own + scales_a + SCALES_A - 1 - i", "elements are misplaced"),
    (NVF4, "scales_a = sum + COLUMNS", "scales_a = sum + COLUMNS + 16", "not allocated"),
    (NVF4, "from_b[SHARED_B", "(thread < 32) * from_b[SHARED_B", "quarters of the lanes"),
    (NVF4, STEP_1, "        __syncthreads();\n", "not handed over"),
    (NVF4, "    take_over();\n            multiply", "    multiply", "not taken over"),
    (F16, "own + sum + i, c", "sum + i, c", "its own 32 lanes"),
    (F16, STEP_1, "        if (thread < 64)\n            hand_over();\n        __syncthreads();\n", "not handed over"),
    (F16, STEP_2, "", "before the instruction is done"),
    (F16, "column * steps + step", "column * steps", "elements are misplaced"),
    (F16, "0x401000080000ull", "0x400800100000ull", "elements are misplaced"),
    (F16, "INSTRUCTION 0x8040000u", "INSTRUCTION 0x8048000u", "not transposed"),
])  # fmt: skip
def test_what_is_wrong_shows(name, old, new, message, folder):
    i = instruction(f"tcgen05.{name}")
    gpu = Changed(B200, folder, old, new)
    with pytest.raises((DeviceError, AssertionError, ValueError), match=message):
        units.check_placement(gpu, i)
    assert gpu.found


def test_an_fp16_result_has_a_word_to_itself(folder):
    """Tensor memory above it holds anything, which must not be in what two launches are compared by."""

    class Seen(cpu.Cpu):
        def run(self, *arguments):
            self.words = super().run(*arguments)
            return self.words

    gpu = Seen(B200, folder)
    units.check_placement(gpu, instruction(f"tcgen05.{F16}"))
    assert gpu.words.any() and not (gpu.words >> 16).any()


def test_the_scales_of_mma_are_behind_its_elements():
    """What the CPU does not see: it reads words, not the PTX around them."""
    text = header(instruction("mma.m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0", RTX))
    assert re.search(r'"r"\(c\[3\]\), "r"\(a\[4\]\), "r"\(b\[2\]\)\);', text)
    assert "{%14, %15, %16, %17}" not in text and "%14, {0, 0}, %15, {0, 0};" in text


def test_misplaced_scales_are_found(folder, monkeypatch):
    real = blackwell.scale_words
    for model in SCALED:
        i = Instruction.of(model)
        for wrong in (lambda s, i, o: np.roll(real(s, i, o), 1, axis=1), lambda s, i, o: real(s[..., ::-1, :], i, o)):
            monkeypatch.setattr(blackwell, "scale_words", wrong)
            with pytest.raises(DeviceError, match="misplaced"):
                units.check_placement(cpu.Cpu(model.chip, folder), i)


def test_the_check_asks_for_more_than_one_scale(folder):
    """Powers of two that differ between rows and blocks: one for all would pass any misplacement."""

    class Seen(cpu.Cpu):
        def run(self, kernel, grid, threads, operands, *rest):
            self.operands = operands
            return super().run(kernel, grid, threads, operands, *rest)

    model = SCALED[-1]
    gpu, i = Seen(model.chip, folder), Instruction.of(model)
    units.check_placement(gpu, i)
    scales = gpu.operands[0].reshape(-1, i.words("a"))[:, -i.scale_words("a") :]
    found = np.unique(np.ascontiguousarray(scales).view(np.uint8))
    assert set(encode(2.0 ** np.arange(7), TYPES[model.scale]).tolist()) <= set(found.tolist())
