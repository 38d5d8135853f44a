"""Where elements lie: one formula against the PTX manual's cases, CUTLASS's strides and figures read by eye."""

import numpy as np
import pytest

from numsim.gpu import layouts
from numsim.gpu.instructions import Instruction, capability_of, why_missing
from numsim.gpu.layouts import descriptor, layout, pack, shared_address, unpack
from numsim.gpu.ptx import header
from numsim.tensorcore import get_model
from numsim.tensorcore.names import list_chips, list_models
from tests.gpu import manual


def instructions():
    """Every mma, wmma and wgmma without scales that a GPU in numsim's records has."""
    found = {}
    for chip in list_chips():
        if capability := capability_of(chip):
            for model in list_models(chip):
                i = Instruction.of(model)
                if i.family in ("mma", "wmma", "wgmma") and not i.kind and not why_missing(i, capability):
                    found[i.name] = i
    return list(found.values())


INSTRUCTIONS = instructions()
all_of_them = pytest.mark.parametrize("i", INSTRUCTIONS, ids=lambda i: i.name)
operands = pytest.mark.parametrize("operand", "abcd")
T4, H200 = "t4", "h200"


def instruction(name, chip=H200):
    return Instruction.of(get_model(chip, name))


def places(i, operand):
    """(tile, row, column) of every element: (threads, elements of a thread, 3)."""
    flat = layout(i, operand).reshape(i.threads, -1)
    return np.stack(np.unravel_index(flat, (i.groups, *i.tile(operand))), -1)


def test_there_are_enough_of_them():
    shapes = {(i.family, i.shape, i.bits("a")) for i in INSTRUCTIONS}
    assert len(INSTRUCTIONS) >= 40 and len(shapes) >= 13
    assert {i.d for i in INSTRUCTIONS} == {"f64", "f32", "f16"} and {i.groups for i in INSTRUCTIONS} == {1, 4}


@all_of_them
@operands
def test_every_element_has_one_place(i, operand):
    where, (rows, columns) = layout(i, operand), i.tile(operand)
    assert where.shape == (i.groups * rows * columns // where.shape[1], max(32 // i.bits(operand), 1))
    assert where.shape[0] * max(i.bits(operand) // 32, 1) == i.words(operand)
    if manual.in_registers(i, operand):
        assert i.words(operand) == i.threads * i.registers(operand)
    assert np.array_equal(np.sort(where.ravel()), np.arange(i.groups * rows * columns))


@all_of_them
@operands
def test_registers_lie_as_the_manual_says(i, operand):
    if not manual.in_registers(i, operand):
        return
    for thread, elements in enumerate(places(i, operand)):
        for e, found in enumerate(elements):
            assert tuple(found) == manual.element(i, operand, thread, e), (thread, e)


# CuTe's layouts (thread, value) -> row + rows * column, of CUTLASS 3: mma_traits_sm70, _sm80, _sm90, _sm90_gmma.hpp;
# FP8's are those of its 8-bit integers. (family, bits of an element, K, operand): (shape, strides).
QUADS, WARPS = (4, 8), (4, 8, 4)
CUTE = {
    ("mma", 16, 8, "a"): ((QUADS, (2, 2)), ((32, 1), (16, 8))),
    ("mma", 16, 8, "b"): ((QUADS, (2,)), ((16, 1), (8,))),
    ("mma", 16, 16, "a"): ((QUADS, (2, 2, 2)), ((32, 1), (16, 8, 128))),
    ("mma", 16, 16, "b"): ((QUADS, (2, 2)), ((16, 1), (8, 64))),
    ("mma", 32, 4, "a"): ((QUADS, (2,)), ((16, 1), (8,))),
    ("mma", 32, 4, "b"): ((QUADS, (1,)), ((8, 1), (0,))),
    ("mma", 32, 8, "a"): ((QUADS, (2, 2)), ((16, 1), (8, 64))),
    ("mma", 32, 8, "b"): ((QUADS, (2,)), ((8, 1), (32,))),
    ("mma", 8, 16, "a"): ((QUADS, (4, 2)), ((64, 1), (16, 8))),
    ("mma", 8, 16, "b"): ((QUADS, (4,)), ((32, 1), (8,))),
    ("mma", 8, 32, "a"): ((QUADS, (4, 2, 2)), ((64, 1), (16, 8, 256))),
    ("mma", 8, 32, "b"): ((QUADS, (4, 2)), ((32, 1), (8, 128))),
    ("mma", 64, 8, "a"): ((QUADS, (2, 2)), ((16, 1), (8, 64))),
    ("mma", 64, 8, "b"): ((QUADS, (2,)), ((8, 1), (32,))),
    ("mma", 64, 16, "a"): ((QUADS, (2, 4)), ((16, 1), (8, 64))),
    ("mma", 64, 16, "b"): ((QUADS, (4,)), ((8, 1), (32,))),
    ("wgmma", 32, 8, "a"): ((WARPS, (2, 2)), ((64, 1, 16), (8, 256))),
    ("wgmma", 16, 16, "a"): ((WARPS, (2, 2, 2)), ((128, 1, 16), (64, 8, 512))),
    ("wgmma", 8, 32, "a"): ((WARPS, (4, 2, 2)), ((256, 1, 16), (64, 8, 1024))),
}
SUMS = {"mma": ((QUADS, (2, 2)), ((32, 1), (16, 8))), "wgmma": ((WARPS, (2, 2)), ((128, 1, 16), (64, 8)))}
SMALL = {  # m8n8k4: FP64's, and FP16's for the eight threads of a quarter, which are 0-3 and 16-19 of the first
    ("f64", "a"): ((QUADS, (1,)), ((8, 1), (0,))), ("f64", "d"): ((QUADS, (2,)), ((16, 1), (8,))),
    ("f16", "a"): (((8,), (4,)), ((1,), (8,))),
    (("f16", "d"), 16): (((8,), (8,)), ((1,), (8,))),
    (("f16", "d"), 32): (((2, 2, 2), (2, 2, 2)), ((1, 16, 4), (8, 2, 32))),
}  # fmt: skip


def cute(shape, strides):
    """(threads, values): row + rows * column; the first of a group of indices counts fastest."""
    axes = [np.zeros(1, int)] * 2
    for n in (0, 1):
        for size, stride in zip(shape[n], strides[n], strict=True):
            axes[n] = (axes[n] + np.arange(size)[:, None] * stride).ravel()
    return axes[0][:, None] + axes[1]


@all_of_them
@operands
def test_registers_lie_as_cutlass_says(i, operand):
    if not manual.in_registers(i, operand):
        return
    like = "a" if operand in "ab" else "d"
    if i.shape != "m8n8k4":
        wanted = cute(*(SUMS[i.family] if like == "d" else CUTE[i.family, i.bits(operand), i.k, operand]))
    elif i.a == "f64":
        wanted = cute(*SMALL["f64", like])
    else:
        wanted = cute(*(SMALL["f16", "a"] if like == "a" else SMALL[("f16", "d"), i.bits(operand)]))
    tile, row, column = np.moveaxis(places(i, operand), -1, 0)
    quarters = (
        np.arange(32) if i.groups == 1 else [[4 * q + n + 16 * h for h in (0, 1) for n in range(4)] for q in range(4)]
    )
    for q, threads in enumerate(quarters if i.groups > 1 else [slice(None)]):
        assert np.array_equal((row + i.tile(operand)[0] * column)[threads], wanted)
        assert (tile[threads] == q).all()


@pytest.mark.parametrize(("name", "operand", "thread", "wanted"), [
    # what the manual's figures show, read off by eye
    ("mma.m16n8k16.f32.f16.f16.f32", "a", 0, [(0, 0), (0, 1), (8, 0), (8, 1), (0, 8), (0, 9), (8, 8), (8, 9)]),
    ("mma.m16n8k16.f32.f16.f16.f32", "a", 31, [(7, 6), (7, 7), (15, 6), (15, 7), (7, 14), (7, 15), (15, 14), (15, 15)]),
    ("mma.m16n8k16.f32.f16.f16.f32", "b", 5, [(1, 2), (1, 3), (1, 10), (1, 11)]),
    ("mma.m16n8k16.f32.f16.f16.f32", "d", 6, [(1, 4), (1, 5), (9, 4), (9, 5)]),
    ("mma.m16n8k8.f32.tf32.tf32.f32", "a", 1, [(0, 1), (8, 1), (0, 5), (8, 5)]),
    ("mma.m16n8k8.f32.tf32.tf32.f32", "b", 7, [(1, 3), (1, 7)]),
    ("mma.m16n8k32.f32.e4m3.e4m3.f32", "a", 4, [(1, k) for k in range(4)] + [(9, k) for k in range(4)]
     + [(1, k) for k in range(16, 20)] + [(9, k) for k in range(16, 20)]),
    ("mma.m16n8k16.f64.f64.f64.f64", "a", 5, [(1, 1), (9, 1), (1, 5), (9, 5), (1, 9), (9, 9), (1, 13), (9, 13)]),
    ("mma.m16n8k16.f64.f64.f64.f64", "b", 31, [(7, 3), (7, 7), (7, 11), (7, 15)]),
    ("mma.m8n8k4.f64.f64.f64.f64", "a", 6, [(1, 2)]),
    ("mma.m8n8k4.f64.f64.f64.f64", "d", 6, [(1, 4), (1, 5)]),
    ("mma.m8n8k4.f32.f16.f16.f32", "a", 17, [(5, k) for k in range(4)]),
    ("mma.m8n8k4.f32.f16.f16.f32", "c", 3, [(1, 2), (1, 3), (3, 2), (3, 3), (1, 6), (1, 7), (3, 6), (3, 7)]),
    ("mma.m8n8k4.f16.f16.f16.f16", "d", 31, [(31, n) for n in range(8)]),  # the last row of the last of four tiles
    ("wgmma.m64n8k32.f32.e4m3.e4m3", "d", 127, [(55, 6), (55, 7), (63, 6), (63, 7)]),
    ("wgmma.m64n8k8.f32.tf32.tf32", "a", 32, [(16, 0), (24, 0), (16, 4), (24, 4)]),
    ("wgmma.m64n8k16.f16.f16.f16", "d", 64, [(32, 0), (32, 1), (40, 0), (40, 1)]),
])  # fmt: skip
def test_figures(name, operand, thread, wanted):
    i = instruction(name, T4 if "m8n8k4.f32" in name or "m8n8k4.f16" in name else H200)
    flat = layout(i, operand).reshape(i.threads, -1)[thread]
    assert [divmod(int(f), i.tile(operand)[1]) for f in flat] == wanted


# --- shared memory ----------------------------------------------------------------------------------------------------
def test_shared_memory_is_the_manuals_example():
    # section 9.7.15.5.1.2.1.3: TF32, K-major, no swizzle: layout ((8,2),(4,4)):((4,32),(1,64)) in elements
    leading, stride = 64 * 4, 32 * 4
    for row in range(16):
        for k in range(16):
            element = row % 8 * 4 + row // 8 * 32 + k % 4 * 1 + k // 4 * 64
            assert shared_address(row, 4 * k, leading, stride) == 4 * element
    code = descriptor(leading, stride)
    assert (code >> 16 & 0x3FFF, code >> 32 & 0x3FFF, code >> 62) == (16, 8, 0)
    assert code & 0x3FFF == code >> 30 & 0x3 == code >> 46 == 0  # the start comes later; no base offset, no swizzle


@pytest.mark.parametrize("i", [i for i in INSTRUCTIONS if i.family == "wgmma"], ids=lambda i: i.name)
def test_b_in_shared_memory_by_its_descriptor(i):
    size, columns = i.bits("b") // 8, i.tile("b")[1]
    found = {int(flat): place for place, flat in enumerate(layout(i, "b").ravel())}
    for flat, place in found.items():
        row, k = divmod(flat, columns)
        # a core matrix is 8 rows of 16 bytes, one after the other; the second one along K follows 128 bytes later
        assert place * size == 16 * row + k * size % 16 + 128 * (k * size // 16)
    assert columns * size == 32 and layouts.LEADING == layouts.STRIDE == 128


# --- words ------------------------------------------------------------------------------------------------------------
def test_the_first_element_lies_in_the_low_bits():
    codes = np.arange(512, dtype=np.uint16).astype(np.uint8).reshape(1, 16, 32)
    assert pack(codes, instruction("mma.m16n8k32.f32.e4m3.e4m3.f32"), "a")[0, 0] == 0x03020100
    halves = np.arange(256, dtype=np.uint16).reshape(1, 16, 16)
    assert pack(halves, instruction("mma.m16n8k16.f32.f16.f16.f32"), "a")[0, :2].tolist() == [0x00010000, 0x00810080]
    doubles = np.full((1, 16, 16), 0x0123456789ABCDEF, np.uint64)
    assert pack(doubles, instruction("mma.m16n8k16.f64.f64.f64.f64"), "a")[0, :2].tolist() == [0x89ABCDEF, 0x01234567]


@all_of_them
@operands
def test_words_keep_everything(i, operand):
    bits = np.random.PCG64(3).random_raw(2 * i.groups * np.prod(i.tile(operand)))
    codes = bits.astype(f"u{i.bits(operand) // 8}").reshape(2 * i.groups, *i.tile(operand))
    words = pack(codes, i, operand)
    assert words.dtype == np.uint32 and words.shape == (2, i.words(operand))
    assert np.array_equal(unpack(words, i, operand), codes)
    for n, half in enumerate(words):  # the second writing reads the same
        assert np.array_equal(manual.read(i, operand, half, header(i)), codes[n * i.groups : (n + 1) * i.groups])
    if operand == "d":
        assert np.array_equal(manual.write(i, codes[: i.groups], header(i)), words[0])


@pytest.mark.parametrize("wide", [np.uint16, np.uint32, np.uint64, ">u8"])
def test_words_do_not_depend_on_how_codes_are_held(wide):
    i = instruction("mma.m16n8k32.f32.e4m3.e4m3.f32")
    codes = np.random.PCG64(4).random_raw(2 * 16 * 32).astype(np.uint8).reshape(2, 16, 32)
    assert np.array_equal(pack(codes.astype(wide), i, "a"), pack(codes, i, "a"))
    assert np.array_equal(pack(np.asfortranarray(codes)[::-1], i, "a"), pack(codes, i, "a")[::-1])
    words = pack(codes, i, "a")
    assert np.array_equal(unpack(words.astype(">u4"), i, "a"), codes)
    assert np.array_equal(unpack(np.repeat(words, 2, axis=1)[:, ::2], i, "a"), codes)
