"""Blackwell's instructions with a kind, by the PTX manual: what numsim's layouts and descriptors must agree with.

Shares nothing with ``numsim.gpu.blackwell`` and ``layouts``: shapes, types, places and selectors are read off the PTX
and the descriptors, and looked up here again. Source: NVIDIA, PTX ISA 9.0, sections 9.7.14.3, 9.7.14.5.10 and .11,
9.7.14.5.14 (mma), 9.7.16.2 to .4 and 9.7.16.10 (tcgen05). Where the manual has only a figure, CUTLASS 4 is followed:
mma_traits_sm120.hpp, mma_sm100_desc.hpp.
"""

import re

import numpy as np

from numsim.tensorcore.products import chained

GARBAGE = 0xA5A5A5A5
BITS = {"e4m3": 8, "e5m2": 8, "e3m2": 6, "e2m3": 6, "e2m1": 4, "f16": 16, "bf16": 16, "tf32": 32}


def said(header):
    """The mma or tcgen05.mma of a header, as a dictionary of its parts."""
    text = re.search(r"(tcgen05\.mma|mma\.sync)\.[^;]*;", header)[0]
    kind = re.search(r"kind::(\w+)", text)[1]
    scales = re.search(r"\.block_scale\.scale_vec::(\d)X", text)
    return {"text": text, "kind": kind, "scales": int(scales[1]) if scales else 0, "k": 64 if "mxf4" in kind else 32}


# --- mma: registers of a warp -----------------------------------------------------------------------------------------
def element(k, operand, lane, e):
    """(row, column) of element e of a, c or d; (column, row) of b: as (N, K)."""
    group, member = lane >> 2, lane % 4
    if operand in "cd":
        return group if e < 2 else group + 8, member * 2 + (e & 0x1)
    if operand == "a" and k == 64:
        return group if e < 8 or 16 <= e < 24 else group + 8, member * 8 + (e & 0x7) + (0 if e < 16 else 32)
    if operand == "a":
        return group if 0 <= e < 4 or 8 <= e < 12 else group + 8, member * 4 + (e & 0x3) + (0 if e < 8 else 16)
    if k == 64:
        return group, member * 8 + (e & 0x7) + (0 if e < 8 else 32)
    return group, member * 4 + (e & 0x3) + (0 if e < 4 else 16)


def code(register, k, type_name, e):
    """Element e of a register of a or b."""
    if k == 64:  # no explicit padding
        return register >> 4 * e & 0xF
    byte = register >> 8 * e & 0xFF
    if type_name == "e2m1":  # in the central 4 bits
        assert byte & 0b11000011 == 0
        return byte >> 2
    assert byte >> BITS[type_name] == 0  # FP6 in the lower 6 bits
    return byte


def registers(words, operand, header, type_name):
    """Words of all threads of a or b: codes (rows, K), scales (rows, scales of a row)."""
    s, rows = said(header), 16 if operand == "a" else 8
    of_a_thread = words.reshape(32, -1).tolist()
    per, held = s["k"] // 8, {"a": 4, "b": 2}[operand]
    codes, scales = np.zeros((rows, s["k"]), np.uint8), np.zeros((rows, s["scales"]), np.uint8)
    for lane, own in enumerate(of_a_thread):
        for e in range(held * per):
            codes[element(s["k"], operand, lane, e)] = code(own[e // per], s["k"], type_name, e % per)
    if s["scales"]:
        byte, thread = map(int, re.findall(r"\{(\d), (\d)\}", s["text"])["ab".index(operand)])
        for row in range(rows):
            # a: threads 2t and 2t + 1 of a group of four give rows `group` and `group + 8`; b: thread t its column
            lane = row % 8 * 4 + 2 * thread + row // 8 if operand == "a" else row * 4 + thread
            scales[row] = [of_a_thread[lane][held] >> 8 * (byte + n) & 0xFF for n in range(s["scales"])]
    return codes, scales


def sums(words, bits):
    """Words of all threads of c: codes (16, 8)."""
    codes, of_a_thread = np.zeros((16, 8), f"u{bits // 8}"), words.reshape(32, -1).tolist()
    for lane, own in enumerate(of_a_thread):
        for e in range(4):
            codes[element(0, "c", lane, e)] = own[e * bits // 32] >> e * bits % 32 & (1 << bits) - 1
    return codes


def sum_words(codes, bits):
    found = np.zeros((32, 4 * bits // 32), np.uint32)
    for lane in range(32):
        for e in range(4):
            found[lane, e * bits // 32] |= np.uint32(int(codes[element(0, "d", lane, e)]) << e * bits % 32)
    return found.ravel()


def product(model, a, b, c, scale_a, scale_b):
    some = scale_a.shape[-1] > 0
    scales = (scale_a[:, None], scale_b[None]) if some else (None, None)
    return chained(a[:, None], b[None], c, model, *scales)


def mma(model, header):
    """What all threads of a warp get for what they hand in."""
    bits = {"f32": 32, "f16": 16}[model.d]
    types = re.search(r"\.(f\d\d)\.(\w+)\.(\w+)\.(f\d\d)", said(header)["text"]).groups()
    assert types == (model.d, model.a, model.b, model.c)

    def run(d, a, b, c, _):
        count = 5 if said(header)["scales"] else 4
        x, scale_a = registers(np.ctypeslib.as_array(a, (32 * count,)), "a", header, model.a)
        y, scale_b = registers(np.ctypeslib.as_array(b, (32 * (count - 2),)), "b", header, model.b)
        z = sums(np.ctypeslib.as_array(c, (32 * 4 * bits // 32,)), bits)
        result = sum_words(product(model, x, y, z, scale_a, scale_b), bits)
        np.ctypeslib.as_array(d, (result.size,))[:] = result

    return run


# --- tcgen05: shared and tensor memory --------------------------------------------------------------------------------
TYPES = {
    "f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}, "mxf4": {1: "e2m1"}, "mxf4nvf4": {1: "e2m1"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
}  # fmt: skip
TYPES["mxf8f6f4"] = TYPES["f8f6f4"]
K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}


def field(word, low, size):
    return word >> low & (1 << size) - 1


def instruction(word, kind):
    """The fields of an instruction descriptor; those that must be zero are."""
    types = TYPES[kind]
    found = {"n": field(word, 17, 6) << 3, "k": K[kind]}
    found |= {"a": types[field(word, 7, 3)], "b": types[field(word, 10, 3)]}
    assert field(word, 0, 4) == field(word, 6, 1) == field(word, 13, 4) == 0, "dense, not negated, not transposed"
    if kind.startswith("mx"):
        assert field(word, 24, 3) == field(word, 31, 1) == 0
        scale = "ue8m0" if field(word, 23, 1) else "ue4m3"
        return found | {"m": field(word, 27, 2) << 7, "scale": scale, "ids": (field(word, 29, 2), field(word, 4, 2))}
    assert field(word, 23, 1) == field(word, 29, 3) == 0
    return found | {"m": field(word, 24, 5) << 4, "d": {0: "f16", 1: "f32"}[field(word, 4, 2)]}


def row_bytes(memory, descriptor, row, count):
    """``count`` bytes of a row of a K-major matrix without swizzle."""
    assert field(descriptor, 46, 3) == 0b001 and field(descriptor, 49, 4) == 0 and field(descriptor, 61, 3) == 0
    start, leading, stride = (field(descriptor, low, 14) << 4 for low in (0, 16, 32))
    at = [start + row // 8 * stride + row % 8 * 16 + chunk * leading for chunk in range(count // 16)]
    return b"".join(bytes(memory[x : x + 16]) for x in at)


def row_codes(data, type_name, kind):
    bits = BITS[type_name]
    if bits >= 8:
        return np.frombuffer(data, f"<u{bits // 8}")
    if kind.startswith("mxf4"):
        return np.array([data[n // 2] >> 4 * (n % 2) & 0xF for n in range(2 * len(data))], np.uint8)
    found = []
    for n in range(0, len(data), 16):  # sixteen elements in 64 or 96 bits, the rest of 16 bytes is padding
        whole = int.from_bytes(data[n : n + 16], "little")
        assert whole >> 16 * bits == 0
        found += [whole >> bits * e & (1 << bits) - 1 for e in range(16)]
    return np.array(found, np.uint8)


def matrix(memory, descriptor, rows, type_name, kind):
    return np.array([row_codes(row_bytes(memory, descriptor, r, 32), type_name, kind) for r in range(rows)])


def block_scales(tensor, column, identity, rows, count):
    """Row r in lane r % 32, r // 32 columns on; in all four quarters of the lanes. ``identity``: the first byte."""
    found = np.zeros((rows, count), np.uint8)
    for row in range(rows):
        words = {int(tensor[row % 32 + 32 * quarter, column + row // 32]) for quarter in range(4)}
        assert len(words) == 1, "the quarters of the lanes differ"
        found[row] = list(words.pop().to_bytes(4, "little")[identity : identity + count])
    return found


def tcgen05(model, header):
    """What an instruction does to tensor memory."""
    s = said(header)
    d_bits = 16 if model.d == "f16" else 32

    def run(tensor, window, arguments, _, broken):
        assert not broken, RULES[broken]
        d, a, b, scale_a, scale_b, word = np.ctypeslib.as_array(arguments, (8,))[[0, 1, 3, 5, 6, 7]].tolist()
        a, b = (low | int(arguments[n]) << 32 for low, n in ((a, 2), (b, 4)))
        i = instruction(word, s["kind"])
        assert (i["m"], i["k"], i["a"], i["b"]) == (128, model.k, model.a, model.b)
        assert i.get("d", "f32") == model.d and i.get("scale", "") == model.scale
        memory = np.ctypeslib.as_array(window, (4096,)).view(np.uint8)
        lanes = np.ctypeslib.as_array(tensor, (128 * 512,)).reshape(128, 512)
        x, y = matrix(memory, a, 128, i["a"], s["kind"]), matrix(memory, b, i["n"], i["b"], s["kind"])
        z = (lanes[:, d : d + i["n"]] & ((1 << d_bits) - 1)).astype(f"u{d_bits // 8}")
        scales = [np.zeros((1, 0))] * 2
        if s["scales"]:
            scales = [
                block_scales(lanes, column, identity, rows, s["scales"])
                for column, identity, rows in zip((scale_a, scale_b), i["ids"], (128, i["n"]), strict=True)
            ]
        result = product(model, x, y, z, *scales).astype(np.uint32)
        lanes[:, d : d + i["n"]] = result if d_bits == 32 else result | GARBAGE & 0xFFFF0000

    return run


RULES = {
    1: "a warp reaches its own 32 lanes only",
    2: "columns that are not allocated",
    3: "tensor memory that a thread stored is not handed over",
    4: "not every thread has handed over what it wrote to shared memory",
    5: "the thread that multiplies has not taken over what the others wrote",
    6: "tensor memory is read before the instruction is done",
    7: "released what was not allocated",
}
ON_CPU = """
#include <atomic>
enum { FIRST = 96, ALLOCATED = 32 };
static unsigned tensor[128 * 512];
static unsigned char *window; // shared memory begins at an address that is a multiple of 128
static std::atomic<unsigned> completed, handed, unfinished;
static unsigned issued;
static thread_local unsigned stores, seen;
static thread_local bool taken;
static void require(bool holds, int rule) { if (!holds) collective(tensor, tensor, tensor, tensor, rule); }
static unsigned long long __cvta_generic_to_shared(void *p) { window = (unsigned char *)p - 1024; return 1024; }
static unsigned &cell(unsigned address)
{
    const unsigned column = address & 0xFFFF;
    require(address >> 16 == threadIdx.x / 32 * 32, 1);
    require(column >= FIRST && column < FIRST + ALLOCATED, 2);
    return tensor[threadIdx.x * 512 + column % 512];
}
static void allocate(unsigned *start)
{
    for (int column = FIRST; column < FIRST + ALLOCATED; column++)
        for (int quarter = 0; quarter < 4; quarter++)
            tensor[(threadIdx.x + 32 * quarter) * 512 + column] = 0xA5A5A5A5;
    if (threadIdx.x == 0) *start = FIRST;
}
static void release(unsigned start) { require(start == FIRST, 7); }
static void store(unsigned address, unsigned word) { cell(address) = word; unfinished += !stores++; }
static unsigned load(unsigned address) { require(seen == issued && completed == issued, 6); return cell(address); }
static void hand_over() { unfinished -= stores > 0; stores = 0; taken = false; handed++; }
static void take_over() { seen = completed; taken = true; }
static void prepare(unsigned long long *) { completed = issued = handed = unfinished = 0; }
static void multiply(unsigned d, unsigned long long a, unsigned long long b, unsigned scales_a, unsigned scales_b)
{
    require(unfinished == 0, 3);
    require(handed >= THREADS, 4);
    require(taken, 5);
    handed = 0;
    issued++;
    unsigned arguments[] = {d, (unsigned)a, (unsigned)(a >> 32), (unsigned)b, (unsigned)(b >> 32), scales_a, scales_b,
                            INSTRUCTION};
    collective(tensor, (unsigned *)window, arguments, arguments, 0);
}
static void commit(unsigned long long *) { completed++; completed.notify_all(); }
static void await(unsigned long long *, unsigned parity)
{
    for (unsigned now; ((now = completed) & 1) == parity;)
        completed.wait(now);
}
"""


def collective(model, header):
    return {"mma": mma, "tcgen05": tcgen05}[model.instruction.split(".")[0]](model, header)
