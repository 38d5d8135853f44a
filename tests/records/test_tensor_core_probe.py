"""The GPU probe, without a GPU: layouts against the PTX manual, kernels through the compiler, a GPU made of Python."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from numsim.tensorcore import get_model
from numsim.tensorcore.chips import TITLES
from numsim.tensorcore.products import chained
from tests.records import fragments, probes
from tests.records import tensor_core_probe as probe
from tests.records.fragments import Instruction, layout, pack, unpack
from tests.records.kernels import INSTRUCTIONS, missing, source, target
from tests.records.tensor_core_probe import CannotRun, Compiler, ProbeError

SCRIPT = Path(probe.__file__)
names = pytest.mark.parametrize("i", INSTRUCTIONS, ids=lambda i: i.name)
# one of each shape and width; the other instructions differ in types only
SHAPES = [Instruction.parse(name) for name in (
    "mma.m16n8k8.f16.f16.f16.f16", "mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k16.f32.bf16.bf16.f32",
    "mma.m16n8k4.f32.tf32.tf32.f32", "mma.m16n8k8.f32.tf32.tf32.f32", "wmma.m16n16k8.f32.tf32.tf32.f32",
    "mma.m16n8k16.f32.e5m2.e4m3.f32", "mma.m16n8k32.f32.e4m3.e5m2.f32", "mma.m16n8k32.f16.e4m3.e4m3.f16",
    "wgmma.m64n8k32.f32.e4m3.e5m2", "wgmma.m64n8k32.f16.e5m2.e5m2", "wgmma.m64n8k16.f32.f16.f16",
    "wgmma.m64n8k8.f32.tf32.tf32",
)]  # fmt: skip


# --- the PTX manual, thread by thread ---------------------------------------------------------------------------------
# A second writing of the layouts, in the manual's own cases (PTX ISA 9.0, sections 9.7.14.5.1 and .6 to .10): where
# element i of a thread's fragment belongs. ``fragments.py`` has one formula for all of them.
def manual(i, operand, thread, e):
    """(tile, row, column) of a, c and d; (tile, column, row) of b: as (N, K)."""
    lane, warp = thread % 32, thread // 32
    group, member = lane >> 2, lane % 4
    if i.shape == "m8n8k4":
        tile, own = lane % 16 // 4, lane % 4 if lane < 16 else lane % 4 + 4
        if operand in "ab" or getattr(i, operand) == "f16":
            return tile, own, e
        x = (lane & 0b1) + (e & 0b10)
        return tile, x if lane < 16 else x + 4, (e & 0b100) + (lane & 0b10) + (e & 0b1)
    if operand in "cd":
        return 0, 16 * warp + (group if e < 2 else group + 8), member * 2 + (e & 0x1)
    bits, k = i.bits(operand), i.k
    if operand == "a":
        low = {
            (16, 8): e in (0, 1), (16, 16): 0 <= e < 2 or 4 <= e < 6, (32, 4): e == 0, (32, 8): e in (0, 2),
            (8, 16): e < 4, (8, 32): 0 <= e < 4 or 8 <= e < 12,
        }[bits, k]  # fmt: skip
        column = {
            (16, 8): member * 2 + (e & 0x1), (16, 16): member * 2 + (e & 0x1) + (0 if e < 4 else 8),
            (32, 4): member, (32, 8): member if e < 2 else member + 4,
            (8, 16): member * 4 + (e & 0x3), (8, 32): member * 4 + (e & 0x3) + (0 if e < 8 else 16),
        }[bits, k]  # fmt: skip
        return 0, 16 * warp + (group if low else group + 8), column
    row = {
        (16, 8): member * 2 + e, (16, 16): member * 2 + (e & 0x1) + (0 if e < 2 else 8),
        (32, 4): member, (32, 8): member if e == 0 else member + 4,
        (8, 16): member * 4 + e, (8, 32): member * 4 + (e & 0x3) + (0 if e < 4 else 16),
    }[bits, k]  # fmt: skip
    return 0, group, row


def in_registers(i, operand):
    return i.family == "mma" or (i.family == "wgmma" and operand != "b")


@names
@pytest.mark.parametrize("operand", "abcd")
def test_every_element_has_one_place(i, operand):
    where = layout(i, operand)
    rows, columns = i.tile(operand)
    assert where.shape == (i.words(operand), 32 // i.bits(operand))
    assert np.array_equal(np.sort(where.ravel()), np.arange(i.groups * rows * columns))


@names
@pytest.mark.parametrize("operand", "abcd")
def test_registers_lie_as_the_manual_says(i, operand):
    if not in_registers(i, operand):
        return
    rows, columns = i.tile(operand)
    per = 32 // i.bits(operand)
    for word, elements in enumerate(layout(i, operand)):
        thread, register = divmod(word, i.registers(operand))
        for low, flat in enumerate(elements):
            tile, row, column = manual(i, operand, thread, register * per + low)
            assert flat == (tile * rows + row) * columns + column


@pytest.mark.parametrize(("name", "operand", "thread", "places"), [
    # what the manual's figures show, read off by eye
    ("mma.m16n8k16.f32.f16.f16.f32", "a", 0, [(0, 0), (0, 1), (8, 0), (8, 1), (0, 8), (0, 9), (8, 8), (8, 9)]),
    ("mma.m16n8k16.f32.f16.f16.f32", "a", 31, [(7, 6), (7, 7), (15, 6), (15, 7), (7, 14), (7, 15), (15, 14), (15, 15)]),
    ("mma.m16n8k16.f32.f16.f16.f32", "b", 5, [(1, 2), (1, 3), (1, 10), (1, 11)]),
    ("mma.m16n8k16.f32.f16.f16.f32", "d", 6, [(1, 4), (1, 5), (9, 4), (9, 5)]),
    ("mma.m16n8k8.f32.tf32.tf32.f32", "a", 1, [(0, 1), (8, 1), (0, 5), (8, 5)]),
    ("mma.m16n8k8.f32.tf32.tf32.f32", "b", 7, [(1, 3), (1, 7)]),
    ("mma.m16n8k32.f32.e4m3.e4m3.f32", "a", 4, [(1, k) for k in range(4)] + [(9, k) for k in range(4)]
     + [(1, k) for k in range(16, 20)] + [(9, k) for k in range(16, 20)]),
    ("mma.m8n8k4.f32.f16.f16.f32", "c", 3, [(1, 2), (1, 3), (3, 2), (3, 3), (1, 6), (1, 7), (3, 6), (3, 7)]),
    ("wgmma.m64n8k32.f32.e4m3.e4m3", "d", 127, [(55, 6), (55, 7), (63, 6), (63, 7)]),
    ("wgmma.m64n8k8.f32.tf32.tf32", "a", 32, [(16, 0), (24, 0), (16, 4), (24, 4)]),
])  # fmt: skip
def test_figures(name, operand, thread, places):
    i = Instruction.parse(name)
    registers = i.registers(operand)
    flat = layout(i, operand)[thread * registers : (thread + 1) * registers].ravel()
    assert [divmod(int(f), i.tile(operand)[1]) for f in flat] == places


def test_shared_memory_is_the_manuals_example():
    # section 9.7.15.5.1.2.1.3: TF32, K-major, no swizzle: layout ((8,2),(4,4)):((4,32),(1,64)) in elements
    leading, stride = 64 * 4, 32 * 4
    for row in range(16):
        for k in range(16):
            element = row % 8 * 4 + row // 8 * 32 + k % 4 * 1 + k // 4 * 64
            assert fragments.shared_address(row, 4 * k, leading, stride) == 4 * element
    code = fragments.descriptor(leading, stride)
    assert (code >> 16 & 0x3FFF, code >> 32 & 0x3FFF, code >> 62) == (16, 8, 0)


def test_the_first_element_lies_in_the_low_bits():
    i = Instruction.parse("mma.m16n8k32.f32.e4m3.e4m3.f32")
    codes = np.arange(512, dtype=np.uint16).reshape(1, 16, 32).astype(np.uint8)
    assert pack(codes, i, "a")[0, 0] == 0x03020100


@names
@pytest.mark.parametrize("operand", "abcd")
def test_words_keep_everything(i, operand):
    bits = np.random.PCG64(3).random_raw(2 * i.groups * np.prod(i.tile(operand)))
    codes = bits.astype(f"u{i.bits(operand) // 8}").reshape(2 * i.groups, *i.tile(operand))
    words = pack(codes, i, operand)
    assert words.dtype == np.uint32 and words.shape == (2, i.words(operand))
    assert np.array_equal(unpack(words, i, operand), codes)


# --- a GPU made of Python ---------------------------------------------------------------------------------------------
class Emulated:
    """Runs a kernel as a GPU would: reads each thread's registers as the manual says, computes, writes d's registers.

    Shares with the script only the kernel's text, of which it reads the descriptor.
    """

    def __init__(self, chip="h200", capability=(9, 0), change=lambda i, model: model, spoil=lambda d, poison: d):
        self.chip, self.capability, self.change, self.spoil = chip, capability, change, spoil

    def provenance(self):
        return {"device": f"NVIDIA {self.chip.upper()} made of Python"}

    def model(self, i):
        name = "mma.m16n8k4.f32.tf32.tf32.f32" if i.family == "wmma" else i.name
        return self.change(i, get_model(self.chip, name))

    def run(self, i, operands, poison):
        a, b, c = (self.read(i, x, words) for x, words in zip("abc", operands, strict=True))
        d = chained(a[:, :, None, :], b[:, None, :, :], c, self.model(i), None, None)
        return self.spoil(self.write(i, d, len(operands[0])), poison)

    def places(self, i, operand):
        """For every word and element: (tile, row, column), by the manual."""
        rows, columns = i.tile(operand)
        per, registers = 32 // i.bits(operand), i.registers(operand)
        if in_registers(i, operand):
            return np.array([
                [manual(i, operand, w // registers, w % registers * per + e) for e in range(per)]
                for w in range(i.words(operand))
            ])  # fmt: skip
        if i.family == "wmma":
            return np.array([[(0, *divmod(w, columns))] for w in range(rows * columns)])
        # the manual's canonical K-major layout ((8,m),(T,2k)):((T,SBO),(1,LBO)), in elements of which 16 bytes hold T
        code, size = int(re.search(r"B = (0x\w+)ull", source(i))[1], 16), i.bits("b") // 8
        t, leading, stride = 16 // size, (code >> 16 & 0x3FFF) * 16 // size, (code >> 32 & 0x3FFF) * 16 // size
        found = np.zeros((rows * columns, 3), int)
        for row in range(rows):
            for k in range(columns):
                found[row % 8 * t + row // 8 * stride + k % t + k // t * leading] = 0, row, k
        return found.reshape(-1, per, 3)

    def read(self, i, operand, words):
        codes = np.zeros((len(words), i.groups, *i.tile(operand)), f"u{i.bits(operand) // 8}")
        for e, (tile, row, column) in enumerate(self.places(i, operand).transpose(1, 2, 0)):
            codes[:, tile, row, column] = words >> e * i.bits(operand) & (1 << i.bits(operand)) - 1
        return codes.reshape(-1, *i.tile(operand))

    def write(self, i, codes, count):
        words = np.zeros((count, i.words("d")), np.uint32)
        codes = codes.reshape(count, i.groups, *i.tile("d"))
        for e, (tile, row, column) in enumerate(self.places(i, "d").transpose(1, 2, 0)):
            words |= codes[:, tile, row, column].astype(np.uint32) << e * i.bits("d")
        return words


def recorded(device, instructions, monkeypatch):
    monkeypatch.setattr(probe, "INSTRUCTIONS", tuple(instructions))
    arrays = probe.record(device, say=lambda _: None)
    return json.loads(arrays["record"].tobytes()), arrays


def rows(device, about, arrays):
    return list(probe.compare(about, arrays, lambda name: get_model(device.chip, name)))


def test_a_whole_kernel_through_the_layouts(monkeypatch):
    device = Emulated()
    about, arrays = recorded(device, SHAPES, monkeypatch)
    assert not about["failed"] and not about["skipped"]
    assert {s["instruction"] for s in about["sets"]} == {i.name for i in SHAPES}
    found = rows(device, about, arrays)
    assert [r for r in found if r.different] == []
    assert min(r.outputs for r in found) >= 1024


def test_each_quarter_of_a_warp_has_its_own_tile(monkeypatch):
    device = Emulated("t4", (7, 5))
    about, arrays = recorded(device, [i for i in INSTRUCTIONS if i.groups == 4], monkeypatch)
    assert len(about["sets"]) >= 30 and not about["failed"]
    assert not any(r.different for r in rows(device, about, arrays))


@pytest.mark.parametrize(("name", "change", "sets"), [
    # what section by section of the reference is open on this chip, and the set that must show it
    ("wgmma.m64n8k32.f32.e4m3.e5m2", {"fraction_bits": 14}, {"near", "ladder", "finite", "subnormal"}),
    ("wgmma.m64n8k32.f16.e4m3.e4m3", {"fraction_bits": 14}, {"near", "ladder"}),
    ("wgmma.m64n8k32.f32.e4m3.e4m3", {"output": "rz-fp32"}, {"near"}),
    ("mma.m16n8k8.f32.tf32.tf32.f32", {"length": 4}, {"near", "ladder"}),
    ("mma.m16n8k32.f32.e4m3.e4m3.f32", {"fraction_bits": 26}, {"finite", "ladder"}),
    ("mma.m16n8k16.f32.bf16.bf16.f32", {"floor": -132}, {"floor"}),
    ("mma.m16n8k16.f32.bf16.bf16.f32", {"floor": -134}, {"floor"}),
    ("mma.m16n8k16.f16.f16.f16.f16", {"floor": -20}, {"floor"}),
    ("mma.m16n8k16.f16.f16.f16.f16", {"fraction_bits": 26}, {"ladder"}),
    ("mma.m16n8k16.f32.f16.f16.f32", {"fraction_bits": 26}, {"near", "ladder", "subnormal"}),
    ("mma.m16n8k16.f32.f16.f16.f32", {"normalised": True}, {"near", "subnormal"}),
    ("mma.m16n8k16.f32.f16.f16.f32", {"align": "down"}, {"near"}),
])  # fmt: skip
def test_another_unit_is_found_out(name, change, sets, monkeypatch):
    device = Emulated(change=lambda i, model: replace(model, unit=replace(model.unit, **change)))
    about, arrays = recorded(device, [Instruction.parse(name)], monkeypatch)
    found = {r.set: r for r in rows(device, about, arrays)}
    assert sets <= {s for s, r in found.items() if r.different}
    assert not found["integers"].different  # whichever unit: small integers are exact
    first = next(r.first for r in found.values() if r.different)
    assert re.fullmatch(r"a \[.+\] b \[.+\] c \[.+\] device \[(.+)\] model \[(?!\1).+\]", first)


def test_fp8_in_other_pairs_of_k_is_found_out():
    # halves instead of k mod 4: the same unit, asked with k in another order
    i = Instruction.parse("mma.m16n8k32.f32.e4m3.e4m3.f32")
    order = np.arange(32).reshape(2, 8, 2).transpose(1, 0, 2).ravel()
    model, different = get_model("h200", i.name), set()
    for name, (a, b, c) in probes.Sets(i, 1):
        d, other = (chained(x[:, :, None], y[:, None], c, model, None, None)
                    for x, y in ((a, b), (a[..., order], b[..., order])))  # fmt: skip
        different |= {name} if (d != other).any() else set()
    assert {"finite", "ladder"} <= different


def test_a_misplaced_element_is_no_measurement(monkeypatch):
    swapped = lambda d, poison: d[:, ::-1].copy()  # noqa: E731
    about, arrays = recorded(Emulated(spoil=swapped), SHAPES[:2], monkeypatch)
    assert not about["sets"] and set(arrays) == {"record"}
    assert all("elements are misplaced" in reason for reason in about["failed"].values()) and len(about["failed"]) == 2


def test_an_unwritten_word_is_no_measurement(monkeypatch):
    def unwritten(d, poison):
        d[-1, 5] = poison
        return d

    about, _ = recorded(Emulated(spoil=unwritten), SHAPES[:1], monkeypatch)
    assert "1 words of 512 are not written" in about["failed"][SHAPES[0].name]


# --- operands ---------------------------------------------------------------------------------------------------------
def test_operands_are_the_same_for_the_same_seed():
    i = SHAPES[1]
    first, again, other = ([x for _, codes in probes.Sets(i, seed) for x in codes] for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    assert not any(np.array_equal(x, y) for x, y in zip(first[:6], other[:6], strict=True))
    # the stream is PCG64's own, which no version of NumPy changes
    assert probe.digest(first[0])[:16] == "c0c53840bc7c8b85"


def test_sets_hold_what_their_names_say():
    f16, bf16 = SHAPES[1], SHAPES[2]
    sets = {i: dict(probes.Sets(i, 1)) for i in (f16, bf16)}
    a, _, _ = sets[f16]["special"]
    assert {0x7C00, 0xFC00, 0x0000, 0x8000, 0x7BFF, 0x0001} <= set(a.ravel().tolist())
    assert len({int(x) for x in a.ravel() if x & 0x7FFF > 0x7C00}) > 10  # NaN payloads
    assert not any((x & 0x7C00 == 0x7C00).any() for x in sets[f16]["finite"][:2])
    assert (sets[f16]["subnormal"][0] & 0x7C00 == 0).any() and (sets[f16]["subnormal"][2] & 0x7F800000 == 0).any()
    assert {0x0000, 0x8000} <= set(sets[f16]["zeros"][1].ravel().tolist())
    assert "floor" in sets[bf16] and "floor" not in sets[f16]  # FP16 products are never that small
    tf32, _, _ = dict(probes.Sets(SHAPES[4], 1))["near"]
    assert len(set((tf32 & 0x1FFF).ravel().tolist())) > 100  # the bits that the unit ignores are there


@names
def test_whole_numbers_and_powers_are_codes(i):
    from numsim import get_format
    from numsim.codes import exact

    for t in {i.a, i.b, i.c, i.d}:
        kind = probes.TYPES[t]
        format = get_format({"f16": "fp16", "f32": "fp32", "tf32": "fp32"}.get(t, t))
        for v in range(-3, 4):
            assert exact(int(probes.wholes(np.array(v), kind)), format) == v
        for e in range(max(kind.least, -160), min(kind.emax, 20) + 1):
            assert exact(int(probes.powers(e, kind)), format) * 2 ** (max(-e, 0)) == 2 ** max(e, 0)
        assert probes.powers(kind.least - 1, kind) == 0 == probes.powers(kind.emax + 1, kind)


# --- kernels ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def compiler():
    try:
        return Compiler()
    except CannotRun as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_kernels_compile_to_machine_code(compiler, capability):
    own = [i for i in INSTRUCTIONS if not missing(i, capability)]
    assert len(own) >= 5
    try:
        compiler.compile("", target(capability))
    except ProbeError as error:
        pytest.skip(f"{error}")  # another version of NVRTC
    for i in own:
        assert compiler.compile(source(i), target(capability))[:4] == b"\x7fELF"  # ptxas accepted the inline PTX
        ptx = compiler.compile(source(i), target(capability), "PTX").decode()
        wanted = {
            "mma": rf"mma\.sync\.aligned\.{i.shape}\.row\.col\.{i.d}\.{i.a}\.{i.b}\.{i.c}",
            "wmma": rf"wmma\.mma\.sync\.aligned\.row\.col\.{i.shape}\.{i.d}\.{i.a}\.{i.b}\.{i.c}",
            "wgmma": rf"wgmma\.mma_async\.sync\.aligned\.{i.shape}\.{i.d}\.{i.a}\.{i.b}",
        }[i.family]
        assert len(re.findall(rf"(?m)^\s*{wanted}\s", ptx)) == 1


def test_a_compiler_error_is_one_line(compiler):
    with pytest.raises(ProbeError, match=r"^NVRTC [\d.]+ for sm_90a: probe.cu.*error.*$"):
        compiler.compile("this is no kernel", "sm_90a")
    i = Instruction.parse("wgmma.m64n8k32.f32.e4m3.e4m3")
    with pytest.raises(ProbeError, match="wgmma"):  # not for sm_90, nor on any other chip
        compiler.compile(source(i), "sm_90")


@names
def test_sources_count_their_registers(i):
    text = source(i)
    assert text.count("{") == text.count("}")
    if i.family == "mma":
        used = sorted({int(n) for n in re.findall(r"%(\d+)", text)})
        assert used == list(range(sum(i.registers(x) for x in "abcd")))
        assert len(re.findall(r'"=?r"\(', text)) == len(used)


def test_what_each_generation_has():
    count = {c: sum(not missing(i, c) for i in INSTRUCTIONS) for c in ((7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0))}
    assert count == {(7, 0): 3, (7, 5): 5, (8, 0): 9, (8, 9): 25, (9, 0): 37, (10, 0): 25}
    assert target((9, 0)) == "sm_90a" and target((8, 9)) == "sm_89" and target((12, 0)) == "sm_120a"


@pytest.mark.parametrize("chip", [c for c, title in TITLES.items() if "sm_" in title])
def test_every_measured_instruction_has_a_model(chip):
    number = int(re.search(r"sm_(\d+)", TITLES[chip])[1])
    device = Emulated(chip)
    for i in INSTRUCTIONS:
        if not missing(i, divmod(number, 10)):
            model = device.model(i)
            assert (model.a, model.b, model.c, model.d) == (i.a, i.b, i.c, i.d)


# --- records and the command line -------------------------------------------------------------------------------------
@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "INSTRUCTIONS", (SHAPES[1], SHAPES[9]))
    path = tmp_path / "record.npz"
    assert probe._record(Emulated(), path, 1, "") == 0
    return path


def test_a_record_says_where_it_comes_from(file):
    about, arrays = probe.read(file)
    assert about["compute_capability"] == [9, 0] and about["target"] == "sm_90a" and about["seed"] == 1
    assert len(about["kernels_sha256"]) == 64 and about["numpy"] == np.__version__
    a, b, c, d = (arrays[f"s0000.{x}"] for x in "abcd")
    assert (a.shape, b.shape, c.shape, d.shape) == ((8, 16, 16), (8, 8, 16), (8, 16, 8), (8, 16, 8))
    assert about["sets"][0]["sha256"]["d"] == probe.digest(d)


def test_compare_from_the_command_line(file, capsys):
    assert probe.main(["compare", str(file)]) == 0
    out = capsys.readouterr().out
    assert "h200" in out and all(f"{i.name:<36}       0 of" in out for i in (SHAPES[1], SHAPES[9]))
    assert probe.main(["compare", str(file), "--chip", "h100"]) == 0  # the same unit
    assert probe.main(["compare", str(file), "--chip", "nonsense"]) == 2
    assert "unknown chip 'nonsense'" in capsys.readouterr().err


def test_compare_shows_what_differs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(probe, "INSTRUCTIONS", SHAPES[1:2])
    one_more = Emulated(change=lambda i, m: replace(m, unit=replace(m.unit, fraction_bits=26)))
    path = tmp_path / "record.npz"
    assert probe._record(one_more, path, 1, "") == 0
    capsys.readouterr()
    assert probe.main(["compare", str(path)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^  near: [1-9]\d* of 1024, first: a \[", out, re.M)
    assert max(map(len, out.splitlines())) <= 80


def test_a_changed_record_is_refused(file, capsys):
    with np.load(file) as record:
        arrays = {name: record[name] for name in record.files}
    arrays["s0001.d"][0, 0, 0] ^= 1
    probe.write(file, arrays)
    assert probe.main(["compare", str(file)]) == 2
    assert "d of set 1 has not the digest" in capsys.readouterr().err
    np.savez(file, other=np.zeros(1, np.uint8))
    assert probe.main(["compare", str(file)]) == 2
    assert "no member record.npy" in capsys.readouterr().err


@pytest.mark.parametrize(("device", "chip"), [
    ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-40GB", "a100"), ("Tesla T4", "t4"),
    ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA RTX 1000 Ada Generation Laptop GPU", "rtx1000ada"),
    ("NVIDIA B200", "b200"), ("Tesla V100-SXM2-16GB", "v100"), ("NVIDIA A2", "a2"), ("NVIDIA RTX A2000", ""),
    ("NVIDIA A10", ""), ("NVIDIA L40S", "l40s"), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
])  # fmt: skip
def test_devices_and_chips(device, chip):
    assert probe.chip_of(device) == chip


def test_without_a_gpu_it_says_what_is_missing(monkeypatch, capsys):
    def none():
        raise CannotRun("no NVIDIA GPU found")

    monkeypatch.setattr(probe, "Gpu", none)
    assert probe.main([]) == 4
    out, err = capsys.readouterr()
    assert (out, err) == ("", "cannot run here: no NVIDIA GPU found\n")


def test_wrong_use(tmp_path, capsys):
    (tmp_path / "there.npz").touch()
    for arguments in (["--only", "nonsense"], ["--seed", "-1"], ["--out", str(tmp_path / "there.npz")], ["--what"]):
        with pytest.raises(SystemExit) as stop:
            probe.main(arguments)
        assert stop.value.code == 2
    assert "exists: --force" in capsys.readouterr().err


def test_the_script_stands_alone(tmp_path):
    """Outside the project, with NumPy only: it runs, and refers to nothing of numsim."""
    for name in ("tensor_core_probe.py", "fragments.py", "kernels.py", "probes.py"):
        (tmp_path / name).write_text((SCRIPT.parent / name).read_text(encoding="utf-8"), encoding="utf-8")
    code = ("import sys; sys.modules['numsim'] = None; sys.path.insert(0, '.'); import tensor_core_probe as p; "
            "print(sum(x.size for i in p.INSTRUCTIONS for _, c in p.Sets(i, 1, 128) for x in c) > 0)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    done = subprocess.run(
        [sys.executable, "tensor_core_probe.py", "--help"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and "compare" in done.stdout
