"""Whole questions on one instruction: numsim's own kernels, run on this CPU, against the model of the chip."""

import re
from dataclasses import replace

import numpy as np
import pytest

from numsim import encode
from numsim.errors import InputError
from numsim.gpu import layouts, units
from numsim.gpu.driver import DeviceError
from numsim.gpu.instructions import Instruction, capability_of, why_missing
from numsim.gpu.ptx import kernel
from numsim.tensorcore import get_model
from numsim.tensorcore.models import TYPES, word_format
from numsim.tensorcore.names import list_models
from numsim.tensorcore.products import chained
from tests.gpu.cpu import Cpu, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
F16, TF32, FP64 = "mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k8.f32.tf32.tf32.f32", "mma.m8n8k4.f64.f64.f64.f64"
FP8, WGMMA = "mma.m16n8k32.f32.e4m3.e5m2.f32", "wgmma.m64n8k16.f32.f16.f16"
FP64_K8 = "mma.m16n8k8.f64.f64.f64.f64"
QUARTERS, WIDENING = "mma.m8n8k4.f32.f16.f16.f32", "mma.m8n8k4.f32.f16.f16.f16"


def everything():
    """(chip, instruction) of all mma, wmma and wgmma without scales that a GPU has."""
    found = {}
    for chip in ("t4", "a100", "h200"):
        for model in list_models(chip):
            i = Instruction.of(model)
            if i.family in ("mma", "wmma", "wgmma") and not i.kind and not why_missing(i, capability_of(chip)):
                found[i.name] = chip, model.instruction
    return list(found.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


def numbers(type_name, shape, seed):
    """Codes of a type: half of them any bits, with all that is special, half of them numbers of some magnitudes."""
    generator, format = np.random.Generator(np.random.PCG64(seed)), word_format(type_name)
    some = np.asarray(encode(generator.standard_normal(shape) * 2.0 ** generator.integers(-3, 4, shape), format))
    any_bits = generator.integers(0, 1 << format.bits, shape, np.uint64, endpoint=False).astype(some.dtype)
    known = generator.choice(encode([np.inf, -np.inf, np.nan, -0.0], format), shape)
    any_bits = np.where(generator.random(shape) < 0.1, known, any_bits)
    special = generator.random(shape[:-1] + (1,) * bool(shape)) < 0.4
    return np.where(special & (generator.random(shape) < 0.5), any_bits, some)


def operands(model, a, b, c, seed=1):
    return tuple(
        numbers(t, s, seed + n) for n, (t, s) in enumerate(zip((model.a, model.b, model.c), (a, b, c), strict=True))
    )


def padded(x, k):
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % k)])


def check(device, model, a, b, c):
    """What the kernels give is what the model gives, in every bit."""
    found = units.multiply(device, model, a, b, c)
    wanted = chained(padded(a, model.k), padded(b, model.k), c, model, None, None)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert np.array_equal(found, wanted)
    return found


# --- every instruction ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("chip", "name"), everything(), ids=lambda x: x)
def test_every_instruction(chip, name, folder):
    device, model = Cpu(chip, folder), get_model(chip, name)
    i = Instruction.of(model)
    more = 1 if i.c == i.d else 0  # another step or two, the last one filled with zeros
    batch = 1 if i.family == "wgmma" else 2
    shapes = (batch, i.m + 1, 1, i.k + more), (batch, 1, i.n + 3, i.k + more), (batch, i.m + 1, i.n + 3)
    found = check(device, model, *operands(model, *shapes))
    assert len(np.unique(found)) > found.size // 8
    assert i.d == "f64" or (found == model.nan).any()
    check(device, model, *operands(model, (19, i.k), (19, i.k), (19,), seed=5))


def test_they_are_all_there():
    assert len(everything()) >= 40


# --- shapes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("a", "b", "c"), [
    ((16,), (16,), ()),  # one number
    ((1, 16), (1, 16), (1,)),
    ((8, 16), (8, 16), (8,)), ((9, 16), (9, 16), (9,)), ((3, 5, 16), (3, 5, 16), (3, 5)),  # dot products, on diagonals
    ((3, 1, 16), (1, 5, 16), (3, 5)), ((33, 1, 16), (1, 1, 16), (33, 1)), ((1, 1, 16), (1, 17, 16), (1, 17)),
    ((17, 1, 48), (9, 48), (17, 9)), ((17, 1, 48), (9, 48), ()), ((17, 1, 20), (1, 9, 20), (1, 9)),  # products
    ((2, 3, 4, 1, 16), (5, 16), (2, 1, 4, 5)), ((4, 1, 16), (2, 1, 5, 16), (2, 4, 5)),  # batches of products
    ((16,), (16,), (4, 5)), ((16,), (3, 16), ()), ((2, 1, 16), (1, 3, 16), (4, 1, 1, 1)),  # broadcast by c, by b
    ((0, 16), (0, 16), (0,)), ((3, 1, 16), (0, 16), (3, 0)), ((0, 4, 1, 16), (5, 16), ()),  # nothing
    ((7, 3), (7, 3), (7,)),  # less than one step
])  # fmt: skip
def test_shapes(a, b, c, folder):
    check(Cpu("h200", folder), get_model("h200", F16), *operands(get_model("h200", F16), a, b, c))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("name", [QUARTERS, "mma.m8n8k4.f16.f16.f16.f16"])
def test_a_warp_computes_four_tiles_of_a_batch(count, name, folder):
    model = get_model("t4", name)
    check(Cpu("t4", folder), model, *operands(model, (count, 9, 1, 8), (count, 1, 3, 8), (count, 9, 3)))
    check(Cpu("t4", folder), model, *operands(model, (count, 4), (count, 4), (count,)))


@pytest.mark.parametrize(("name", "chip"), [(F16, "h200"), (WGMMA, "h200"), (QUARTERS, "t4"), (FP64, "a100")])
def test_steps_follow_each_other(name, chip, folder):
    # what is added first is lost below what comes later, or is not: the order of the steps shows
    model = get_model(chip, name)
    k, one, big = 5 * model.k, *(int(encode(x, word_format(model.a))) for x in (1.0, 2.0**15))
    a = np.full((k, k), one, word_codes(model.a))
    np.fill_diagonal(a, big)
    b = a[:1] * 0 + one
    b[:, 2 * model.k] = big | 1 << word_format(model.a).bits - 1
    c = np.asarray(encode(np.full((k, 1), 2.0**-9), TYPES[model.c]))
    check(Cpu(chip, folder), model, a[:, None], b[None], c)
    check(Cpu(chip, folder), model, *operands(model, (5, 1, k), (1, 3, k), (5, 3)))


def word_codes(type_name):
    return np.asarray(encode(0.0, word_format(type_name))).dtype


def test_c_of_another_type_takes_one_step_only(folder):
    device, model = Cpu("t4", folder), get_model("t4", WIDENING)
    check(device, model, *operands(model, (5, 1, 4), (1, 3, 4), (5, 3)))
    with pytest.raises(InputError, match=r"m8n8k4.f32.f16.f16.f16 adds to c of f16 and makes f32: .* beyond K = 4"):
        units.multiply(device, model, *operands(model, (5, 1, 8), (1, 3, 8), (5, 3)))


@pytest.mark.parametrize("k", [(0, 0), (16, 32), (32, 16), (1, 16)])
def test_a_and_b_have_the_same_k(k, folder):
    model = get_model("h200", F16)
    with pytest.raises(InputError, match=rf"a of shape \(3, {k[0]}\), b of shape \(3, {k[1]}\): .* same K from 1 on"):
        units.multiply(Cpu("h200", folder), model, *operands(model, (3, k[0]), (3, k[1]), (3,)))


def test_batches_in_parts(folder, monkeypatch):
    device, model, launches = Cpu("t4", folder), get_model("t4", QUARTERS), []
    units.check_placement(device, Instruction.of(model))
    run = device.run
    device.run = lambda kernel, grid, *rest: launches.append(grid) or run(kernel, grid, *rest)
    questions = [operands(model, (7, 9, 1, 8), (7, 1, 3, 8), (7, 9, 3)), operands(model, (70, 4), (70, 4), (70,))]
    for at_once, parts in ((1 << 28, [1, 1]), (1200, [4, 9]), (3000, [2, 3]), (1, [7, 9])):
        monkeypatch.setattr(units, "_AT_ONCE", at_once)
        for question, count in zip(questions, parts, strict=True):
            launches.clear()
            check(device, model, *question)
            assert len(launches) == count


def test_grids_in_parts(folder, monkeypatch):
    device, model, grids = Cpu("h200", folder), get_model("h200", F16), []
    units.check_placement(device, Instruction.of(model))
    run = device.run
    device.run = lambda kernel, grid, *rest: grids.append(grid) or run(kernel, grid, *rest)
    monkeypatch.setattr(units, "_GRID", 2)
    check(device, model, *operands(model, (2, 70, 1, 16), (2, 1, 35, 16), (2, 70, 35)))
    assert [grid[1:] for grid in grids] == [(2, 2), (2, 2), (1, 2), (2, 2), (2, 2), (1, 2), (2, 1), (2, 1), (1, 1)]


def test_codes_of_any_layout_and_order(folder):
    model = get_model("h200", F16)
    a, b, c = operands(model, (10, 1, 32), (1, 6, 32), (10, 6))
    wanted = check(Cpu("h200", folder), model, a, b, c)
    others = (
        a.astype(">u2"),
        np.asfortranarray(b)[:, ::-1][:, ::-1],
        np.repeat(c, 2, 1).astype(np.int64)[:, ::2].view(np.uint64),
    )
    for x in others:
        x.flags.writeable = False
    assert np.array_equal(units.multiply(Cpu("h200", folder), model, *others), wanted)


# --- trust ------------------------------------------------------------------------------------------------------------
# What one wrong line in a kernel, a header or a layout does. Each is a (file's text, what it should not be).
MMA_CU = [
    ("* THREADS + thread) * A + i", "* THREADS + thread) * A + (i ^ 1)"),  # two registers of a exchanged
    ("* THREADS + thread) * B + i", "* THREADS + (thread ^ 4)) * B + i"),  # two columns of b
    ("c[(tile * THREADS + thread) * C + i]", "c[(tile * THREADS + thread) * C + (i ^ 2)]"),
    ("d[(tile * THREADS + thread) * D + i] =", "d[(tile * THREADS + (thread ^ 1)) * D + i] ="),
    ("a[((row * steps + step)", "a[((row * steps + steps - 1 - step)"),  # another order of steps
    ("b[((column * steps + step)", "b[((column * steps + (step ^ 1))"),
    ("a[((row * steps + step)", "a[((row * steps)"),  # the same step twice
    ("before[i] = after[i]", "before[i] = before[i]"),  # no chain
    ("(size_t)blockIdx.x * gridDim.z + blockIdx.z", "(size_t)blockIdx.x + blockIdx.z"),  # a wrong stride
    ("tile = row * gridDim.y + blockIdx.y", "tile = row * gridDim.z + blockIdx.y"),
    ("column = (size_t)blockIdx.x * gridDim.y + blockIdx.y", "column = blockIdx.y"),
]
WGMMA_CU = [
    ("shared[i] =", "shared[i ^ 1] ="),
    ("i < SHARED", "i < SHARED / 2"),  # the tile is not all there
    ("(column * steps + step) * SHARED", "(column + step) * SHARED"),
    ("thread) * A + i", "thread) * A + (i ^ 1)"),
    ("thread) * D + i] = sum[i]", "thread) * D + i] = sum[i ^ 1]"),
    ("DESCRIPTOR |", "DESCRIPTOR & ~(8ull << 16) |"),  # core matrices on top of each other
]


class Mutant(Cpu):
    """Runs kernels in which a text is replaced by another."""

    def __init__(self, chip, folder, old, new):
        super().__init__(chip, folder)
        self.old, self.new, self.changed = old, new, 0

    def run(self, kernel, *rest):
        self.changed += self.old in kernel.source
        return super().run(kernel._replace(source=kernel.source.replace(self.old, self.new)), *rest)


@pytest.mark.parametrize(("name", "old", "new"), [(F16, *x) for x in MMA_CU] + [(WGMMA, *x) for x in WGMMA_CU])
def test_a_kernel_with_a_mistake_is_not_asked(name, old, new, folder):
    device, model = Mutant("h200", folder, old, new), get_model("h200", name)
    with pytest.raises(DeviceError, match=re.escape(Instruction.of(model).name) + ": .* elements are misplaced"):
        units.multiply(device, model, *operands(model, (3, 1, 16), (1, 3, 16), (3, 3)))
    assert device.changed == 1


def exchanged(where, i, operand):
    where = where.copy()
    where[[1, 7]] = where[[7, 1]]
    return where


MISTAKES = [
    exchanged,  # two words
    lambda where, i, operand: where[:, ::-1] if where.shape[1] > 1 else where[::-1],  # elements from the high bits down
    lambda where, i, operand: np.roll(where, 1, 0),
    lambda where, i, operand: (
        where % i.tile(operand)[0] * i.tile(operand)[1] + where // i.tile(operand)[0]
    ),  # transposed
]


@pytest.mark.parametrize(
    ("name", "mistakes"), [(TF32, MISTAKES), (FP8, MISTAKES), (FP64_K8, MISTAKES), (WGMMA, MISTAKES[:1])]
)
@pytest.mark.parametrize("operand", "abcd")
def test_a_layout_with_a_mistake_is_noticed(name, mistakes, operand, folder, monkeypatch):
    i, right = Instruction.of(get_model("h200", name)), layouts.layout
    for mistake in mistakes:

        def wrong(which, x, mistake=mistake):
            return mistake(right(which, x), which, x) if x == operand else right(which, x)

        monkeypatch.setattr(layouts, "layout", wrong)
        with pytest.raises(DeviceError, match="elements are misplaced"):
            units.check_placement(Cpu("h200", folder), i)


@pytest.mark.parametrize("leading", [256, 64, 0])
def test_a_wrong_offset_in_the_descriptor_is_noticed(leading, folder, monkeypatch):
    i = Instruction.of(get_model("h200", WGMMA))
    right, wrong = (f"{layouts.descriptor(*x):#x}" for x in ((), (leading, 128)))
    text = kernel(i)._replace(header=kernel(i).header.replace(right, wrong))
    assert text != kernel(i)
    monkeypatch.setattr(units, "kernel", lambda _: text)
    with pytest.raises((DeviceError, IndexError)):  # the latter: beyond the shared memory that there is
        units.check_placement(Cpu("h200", folder), i)


def test_another_unit_is_no_misplacement(folder):
    """Whatever a unit does with rounding, sums of small integers are exact: only the model's answer is another."""
    model = get_model("h200", F16)
    other = Cpu("h200", folder, change=lambda m: replace(m, unit=replace(m.unit, length=4, fraction_bits=14)))
    question = operands(model, (9, 1, 32), (1, 9, 32), (9, 9))
    wanted = chained(*question, other.change(model), None, None)
    assert np.array_equal(units.multiply(other, model, *question), wanted)
    assert (wanted != chained(*question, model, None, None)).any()


def test_trust_is_asked_for_once(folder):
    device, model, launches = Cpu("h200", folder), get_model("h200", F16), []
    run = device.run
    device.run = lambda *x: launches.append(1) or run(*x)
    for _ in range(3):
        check(device, model, *operands(model, (3, 16), (3, 16), (3,)))
    assert len(launches) == 4
    check(Cpu("h200", folder), get_model("h200", F16), *operands(model, (3, 16), (3, 16), (3,)))
