"""The emulator on a GPU's ordinary cores: the very kernels, run by this CPU, give the bits of the CPU's emulator.

Operands are those of ``tests/kernels/test_tensorcore.py``: of kinds that reach every rule of a unit.
"""

from dataclasses import replace

import numpy as np
import pytest

from numsim.codes import code_dtype
from numsim.errors import InputError, UnavailableError
from numsim.gpu import driver, emulator
from numsim.gpu.compiler import compiler
from numsim.machines import Answer, ask, get_machine
from numsim.machines.emulated import emulate
from numsim.tensorcore import Unit, get_model, matmul, products
from numsim.tensorcore.models import TYPES, word_format
from tests.gpu.cpu import CpuEmulator, why_not
from tests.kernels.test_tensorcore import CASES, KINDS, any_codes, count_of, numbers, operands, scales, starts

needs_cpp = pytest.mark.skipif(bool(why_not()), reason=why_not())
SUITED = [m for m in CASES if emulator.suits(m)]
F16 = get_model("h200", "mma.m16n8k16.f32.f16.f16.f32")
LATE = get_model("h200", "mma.m16n8k32.f32.e4m3.e4m3.f32")
MX = get_model("b200", "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0")
NVFP4 = get_model("b200", "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3")
FP32 = get_model("mi100", "mfma.f32_16x16x4f32")
FP64 = get_model("h200", "mma.m16n8k16.f64.f64.f64.f64")
KERNELS = (F16, LATE, NVFP4, FP32, FP64)  # one record of every kernel
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    return CpuEmulator(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    """This CPU has few cores: tiles of 8 x 8 for blocks of 16 threads."""
    monkeypatch.setattr(emulator, "EDGE", 4)


def drawn(m, rows, instructions, rng):
    """a, b (rows of every kind, K) and their scales."""
    k, per = count_of(m, instructions)
    pairs = [operands(kind, m, (rows, k), rng) for kind in KINDS]
    a, b = (np.concatenate(x) for x in zip(*pairs, strict=True))
    return a, b, scales(m, (len(a), per), rng), scales(m, (len(b), per), rng)


def side(x, axis):
    return None if x is None else np.expand_dims(x, axis)


def assert_same(found, right, m, a, b, c):
    assert found.dtype == right.dtype and found.shape == right.shape
    if len(bad := np.argwhere(found != right)):
        at = tuple(bad[0])
        raise AssertionError(
            f"{m}: {len(bad)} of {found.size} differ; first at {at}: c {int(np.broadcast_to(c, found.shape)[at]):#x}, "
            f"GPU {int(found[at]):#x}, CPU {int(right[at]):#x}"
        )


# --- bits -------------------------------------------------------------------------------------------------------------
@needs_cpp
@pytest.mark.parametrize("m", SUITED, ids=lambda m: f"{m.chip} {m.instruction}")
def test_dots(m, gpu):
    """Dot products of every kind: of three instructions against the CPU's kernel, of one against the reference."""
    rng = np.random.default_rng(CASES.index(m) + 7)
    for instructions, rows in ((3, 5), (1, 1)):
        a, b, sa, sb = drawn(m, rows, instructions, rng)
        c = starts(m, len(a), rng)
        compute = products.chained if rows > 1 else products.dots
        right = compute(a, b, c, m, sa, sb, None)
        assert_same(emulator.multiply(gpu, m, a, b, c, sa, sb), right, m, a, b, c)


@needs_cpp
@pytest.mark.parametrize("m", SUITED, ids=lambda m: f"{m.chip} {m.instruction}")
def test_matrices(m, gpu):
    """A row of every kind meets a column of every kind: several tiles, the last ones not full, several panels of K."""
    rng = np.random.default_rng(CASES.index(m) + 77)
    a, b, sa, sb = drawn(m, 1, max(1, 96 // m.k), rng)
    a, sa = a[:-2], None if sa is None else sa[:-2]
    c = starts(m, (len(a), len(b)), rng)
    right = products.chained(side(a, 1), b, c, m, side(sa, 1), sb)
    gpu.launches.clear()
    found = emulator.multiply(gpu, m, side(a, 1), b, c, side(sa, 1), sb)
    assert_same(found, right, m, a, b, c)
    assert [(kernel.function, grid) for kernel, grid, _ in gpu.launches] == [("products", (4, 1, 1))]


CUSTOM = [
    Unit("block", length, bits, floor, output)
    for length, bits, floor, output in [
        (12, 25, -133, "rz-fp32"), (5, 30, -40, "rz-fp32"), (16, 40, -800, "rz-fp32"), (1, 24, -2000, "rz-fp32"),
        (16, 13, 200, "rz-fp32"), (16, 3, -133, "rne-fp32"), (7, 29, -133, "rne-fp32"), (16, 0, 0, "rz-e8m13"),
        (3, 22, 10, "rz-e8m13"),
    ]
]  # fmt: skip


@needs_cpp
@pytest.mark.parametrize("unit", CUSTOM, ids=str)
def test_units_that_no_chip_has(unit, gpu):
    """Blocks that fill neither an instruction nor a panel, kept bits around those of a product and of c, high and low
    floors."""
    m = replace(F16, chip="?", unit=unit)
    rng = np.random.default_rng(CUSTOM.index(unit))
    a, b, *_ = drawn(m, 1, 5, rng)
    c = starts(m, (len(a), len(b)), rng)
    right = products.chains(a, b.T, c, m, None, None, None)
    assert_same(emulator.multiply(gpu, m, side(a, 1), b, c), right, m, a, b, c)
    assert_same(emulator.multiply(gpu, m, a, b, c.diagonal()), right.diagonal(), m, a, b, c.diagonal())


@needs_cpp
@pytest.mark.parametrize("output", ["rz-fp32", "rne-fp32", "rz-e8m13"])
def test_sums_far_below_the_least_number(output, gpu):
    """Without a floor units reach down to 2^-292: all that is left of a sum may be that it is not zero."""
    m = get_model("h200", "mma.m16n8k16.f32.bf16.bf16.f32")
    m = replace(m, chip="?", unit=Unit("block", 4, 40, -2000, output))
    rng = np.random.default_rng(1)
    a, b = numbers("bf16", 0, 30, (60, 16), rng), numbers("bf16", 0, 60, (60, 16), rng)
    c = rng.choice([0, 0, 1, 2, 0x80000001, 0x007FFFFF], 60).astype(np.uint32)
    assert_same(emulator.multiply(gpu, m, a, b, c), products.dots(a, b, c, m, None, None, None), m, a, b, c)


@needs_cpp
def test_c_of_fp16_keeps_its_least_exponent(gpu):
    """Subnormal numbers of FP16 are normal in FP32, but the unit aligns them as FP16's: to 2^-14."""
    m = get_model("v100", "mma.m8n8k4.f32.f16.f16.f16")
    rng = np.random.default_rng(2)
    a, b = numbers("f16", 0, 2, (60, 4), rng), numbers("f16", 0, 2, (60, 4), rng)
    c = numbers("f16", 0, 0, 60, rng)
    assert_same(emulator.multiply(gpu, m, a, b, c), products.dots(a, b, c, m, None, None, None), m, a, b, c)


@needs_cpp
@pytest.mark.parametrize("length", [16, 8, 6, 5])
@pytest.mark.parametrize("output", ["rz-fp32", "rne-fp32", "rz-e8m13"])
def test_halves_that_blocks_do_not_fill(length, output, gpu):
    m = replace(LATE, chip="?", unit=replace(LATE.unit, length=length, output=output))
    rng = np.random.default_rng(length)
    a, b, *_ = drawn(m, 1, 2, rng)
    c = starts(m, len(a), rng)
    assert_same(emulator.multiply(gpu, m, a, b, c), products.dots(a, b, c, m, None, None, None), m, a, b, c)


@needs_cpp
def test_c_is_added_last_at_every_distance(gpu):
    """The sum of a chain and c, rounded to nearest: exponents up to far beyond the bits of either, ties and their
    neighbours."""
    rng = np.random.default_rng(3)
    for m in (LATE, get_model("h200", "mma.m16n8k32.f16.e4m3.e4m3.f16")):
        d = TYPES[m.d]
        a, b = np.zeros((4000, m.k), np.uint8), np.full((4000, m.k), 0x38, np.uint8)  # times 1
        a[:, :3] = rng.integers(0, 0x7F, (4000, 3))
        a[:, 0] |= 0x80 * rng.integers(0, 2, 4000).astype(np.uint8)
        field = np.clip(d.bias + rng.integers(-60, 60, 4000), 0, d.max_code >> d.fraction_bits)
        ends = rng.choice([0, 1, 2, 3, -1, -2, 1 << d.fraction_bits - 1], 4000) % (1 << d.fraction_bits)
        c = (field << d.fraction_bits | ends | rng.integers(0, 2, 4000) * d.sign_mask).astype(code_dtype(d))
        right = products.chained(a, b, c, m, None, None)
        assert_same(emulator.multiply(gpu, m, a, b, c), right, m, a, b, c)


@needs_cpp
@pytest.mark.parametrize("m", KERNELS, ids=lambda m: m.unit.path + m.d)
def test_blocks_of_threads_as_on_a_gpu(m, gpu, monkeypatch):
    """256 threads, tiles of 32 x 32, and K of several panels."""
    monkeypatch.setattr(emulator, "EDGE", 16)
    rng = np.random.default_rng(5)
    k, per = count_of(m, max(3, 160 // m.k))
    kinds = [KINDS[i % len(KINDS)] for i in range(67)]
    a, b = (np.concatenate([operands(kind, m, (1, k), rng)[i] for kind in kinds]) for i in (0, 1))
    a, sa, sb = a[:45], scales(m, (45, per), rng), scales(m, (67, per), rng)
    c = starts(m, (45, 67), rng)
    gpu.launches.clear()
    found = emulator.multiply(gpu, m, side(a, 1), b, c, side(sa, 1), sb)
    assert_same(found, products.chained(side(a, 1), b, c, m, side(sa, 1), sb), m, a, b, c)
    assert [(grid, threads) for _, grid, threads in gpu.launches] == [((6, 1, 1), 256)]


# --- shapes -----------------------------------------------------------------------------------------------------------
@needs_cpp
@pytest.mark.parametrize("m", [F16, MX, FP64], ids=str)
@pytest.mark.parametrize(
    "lead",
    [
        ((), (), ()), ((1,), (1,), (1,)), ((0,), (1,), ()), ((3,), (1,), (3,)), ((5, 1), (5, 6), (6,)),
        ((6, 1), (7,), ()), ((6, 1), (1, 7), (7,)), ((2, 6, 1), (5,), (6, 5)), ((3, 1, 5, 1), (2, 1, 6), ()),
        ((2, 3, 9), (1, 9), (2, 1, 1)), ((70,), (), (1,)), ((0, 5, 1), (6,), ()),
    ],
)  # fmt: skip
def test_shapes_broadcast(m, lead, gpu, monkeypatch):
    """In one launch and in as many as can be."""
    rng = np.random.default_rng(9)
    k, per = count_of(m, 2)
    left, right, start = lead
    a, b = operands("any", m, (*left, k), rng)[0], operands("any", m, (*right, k), rng)[1]
    c, sa, sb = starts(m, start, rng), scales(m, (*left, per), rng), scales(m, (*right, per), rng)
    wanted = products.chained(a, b, np.asarray(c), m, sa, sb)
    for at_once, work in ((1 << 26, 1 << 36), (1, 1), (16 * k, 64 * k)):
        monkeypatch.setattr(emulator, "_AT_ONCE", at_once)
        monkeypatch.setattr(emulator, "_WORK", work)
        assert_same(emulator.multiply(gpu, m, a, b, c, sa, sb), wanted, m, a, b, c)


def test_what_is_refused():
    a, c = np.zeros(16, np.uint16), np.uint32(0)
    with pytest.raises(InputError, match=r"cdna3.*On this CPU it is"):
        emulator.multiply(None, get_model("mi300x", "mfma.f32_16x16x16_f16"), a, a, c)
    for change in ({"align": "down"}, {"normalised": True}, {"fraction_bits": 41}):
        assert not emulator.suits(replace(F16, unit=replace(F16.unit, **change)))
    assert not emulator.suits(replace(F16, k=128, unit=replace(F16.unit, length=128)))
    assert not emulator.suits(replace(F16, a="f32", b="f32"))
    assert not emulator.suits(replace(FP32, a="f64"))
    for k in (0, 8, 24):
        with pytest.raises(InputError, match=f"K = {k}: .* takes multiples of 16"):
            emulator.multiply(None, F16, a[:k] if k < 16 else np.zeros(k, np.uint16), np.zeros(k, np.uint16), c)


def test_every_unit_of_nvidia_suits():
    assert all(emulator.suits(m) for m in CASES if not m.instruction.startswith("mfma"))


# --- the compiler -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("m", KERNELS, ids=lambda m: m.unit.path + m.d)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile(m, architecture):
    pytest.importorskip("cuda.bindings.nvrtc")
    image = compiler().compile(emulator.kernel(m, "products"), architecture)
    assert all(name in image for name in (b"\x7fELF", b"products", b"dots"))


# --- who uses it ------------------------------------------------------------------------------------------------------
@pytest.fixture
def found_gpu(gpu, monkeypatch):
    monkeypatch.setattr(driver, "device", lambda: gpu)
    gpu.launches.clear()
    return gpu


@needs_cpp
@pytest.mark.parametrize(
    ("m", "options"),
    [
        (F16, {}), (F16, {"promote": 32, "split_k": 2}), (F16, {"alpha": 0.5, "beta": -2.0, "output": "bf16"}),
        (F16, {"transpose_a": True, "transpose_b": True, "split_k": 3, "combine": "pairwise"}),
        (LATE, {}), (MX, {"promote": 32}), (NVFP4, {"transpose_b": True}), (FP64, {}),
        (get_model("h200", "mma.m16n8k8.f32.tf32.tf32.f32"), {"tf32": "nearest-away"}),
    ],
    ids=str,
)  # fmt: skip
def test_matmul_on_a_gpu(m, options, found_gpu):
    """Batches of odd shapes; a K that is padded."""
    rng = np.random.default_rng(11)
    k = 3 * m.k - 3
    left, right = any_codes(m.a, (2, 9, k), rng), any_codes(m.b, (k, 7), rng)
    per = -(-k // m.scale_block) if m.scale else 0
    more = {"scale_a": scales(m, (2, 9, per), rng), "scale_b": scales(m, (per, 7), rng)} if m.scale else {}
    c = starts(m, (9, 7), rng)
    a = left.swapaxes(1, 2) if options.get("transpose_a") else left
    b = right.T if options.get("transpose_b") else right
    right = matmul(a, b, c, chip=m, **more, **options)
    assert not found_gpu.launches
    found = matmul(a, b, c, chip=m, device="cuda", **more, **options)
    assert found_gpu.launches and {kernel.function for kernel, *_ in found_gpu.launches} == {"products"}
    assert np.array_equal(found, right) and found.dtype == right.dtype


def test_matmul_without_a_gpu(monkeypatch):
    a = np.zeros((2, 16), np.uint16)
    monkeypatch.setattr(driver, "missing", lambda: "no NVIDIA GPU found")
    driver.device.cache_clear()
    with pytest.raises(UnavailableError, match="no NVIDIA GPU found"):
        matmul(a, a.T, chip=F16, device="cuda")
    for wrong in ("gpu", "cpu", 0, np.zeros(3)):
        with pytest.raises(InputError, match=r"allowed are cuda\. Example: matmul\(A, B"):
            matmul(a, a.T, chip=F16, device=wrong)
    with pytest.raises(InputError, match="On this CPU it is"):
        matmul(a, a.T, chip="mi300x", instruction="mfma.f32_16x16x16_f16", device="cuda")


def question(m, shape=(3,), seed=0):
    rng = np.random.default_rng(seed)
    k, per = count_of(m, 2)
    arrays = [any_codes(m.a, (*shape, k), rng), any_codes(m.b, (*shape, k), rng), starts(m, shape, rng)]
    inputs = [word_format(t) for t in (m.a, m.b, m.c)]
    if m.scale:
        arrays += [scales(m, (*shape, per), rng) & 0x7F for _ in "ab"]
        inputs += [TYPES[m.scale]] * 2
    return ask("mma", inputs, TYPES[m.d], arrays, chip=m.chip, instruction=m.instruction)


@needs_cpp
@pytest.mark.parametrize("m", KERNELS, ids=lambda m: m.unit.path + m.d)
def test_the_machine_answers(m, found_gpu):
    machine = get_machine("emulated-cuda")
    q = question(m)
    assert machine.can(q)
    answer = machine.answer(q)
    assert isinstance(answer, Answer) and np.array_equal(answer.codes, emulate(q))
    assert answer.provenance["device"] == found_gpu.name and answer.provenance["machine"] == "emulated-cuda"


def test_the_machine_says_what_it_cannot(monkeypatch):
    from numsim.machines import find_machine

    monkeypatch.setattr(driver, "missing", lambda: "no NVIDIA GPU found")
    driver.device.cache_clear()
    machine = find_machine("emulated-cuda")
    assert machine.can().reason == machine.can(question(F16)).reason == "no NVIDIA GPU found"
    with pytest.raises(UnavailableError, match="emulated-cuda cannot answer here: no NVIDIA GPU found"):
        get_machine("emulated-cuda")
    with pytest.raises(UnavailableError, match="no NVIDIA GPU found"):
        machine.answer(question(F16))
    cast = ask("cast", ["fp32"], "bf16", [np.zeros(2, np.uint32)])
    assert "only multiplies" in machine.can(cast).reason
    other = question(get_model("mi300x", "mfma.f32_16x16x16_f16"))
    assert machine.can(other).reason == "on a GPU there is no emulator of mfma.f32_16x16x16_f16 on mi300x"
