"""The line of PTX that runs an instruction, as the header ``instruction.h`` that the kernels in ``cu`` include.

A kernel says how words travel; its header says how many each of its THREADS holds (A, B, C and D) and defines
``multiply(d, a, b, c)``. tcgen05's says how large the operands are in shared and tensor memory.

Source of the syntax: NVIDIA, Parallel Thread Execution ISA 9.0, sections 9.7.14.4 (wmma), 9.7.14.5 (mma), 9.7.15
(wgmma), 9.7.16 (tcgen05).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import NamedTuple

from numsim.gpu import blackwell
from numsim.gpu.instructions import WARP, Instruction
from numsim.gpu.layouts import descriptor


class Kernel(NamedTuple):
    """A kernel's text, the header that it includes, and the name of its function."""

    source: str
    header: str
    function: str

    @classmethod
    def load(cls, file: str, header: str = "", function: str = "chain") -> Kernel:
        """From a file of the folder ``cu``."""
        return cls(_read(file), header, function)


def _read(file: str) -> str:
    return (resources.files("numsim.gpu") / "cu" / file).read_text("utf-8")


@cache
def kernel(i: Instruction) -> Kernel:
    """The kernel that chains an instruction along K."""
    return Kernel.load(f"{i.family}.cu", header(i))


def header(i: Instruction) -> str:
    """``instruction.h``: numbers of words, and the instruction."""
    lines = [f"// {i.name}", f"#define THREADS {i.threads}"]
    if i.family != "tcgen05":
        lines += [f"#define {x.upper()} {i.words(x) // i.threads}" for x in "abcd"]
    return "\n".join([*lines, *{"mma": _mma, "wmma": _wmma, "wgmma": _wgmma, "tcgen05": _tcgen05}[i.family](i), ""])


_MULTIPLY = "static __device__ __forceinline__ void multiply("


def _mma(i: Instruction) -> Iterator[str]:
    yield f"{_MULTIPLY}unsigned *d, const unsigned *a, const unsigned *b, const unsigned *c)"
    yield "{"
    groups, values, first = [], {}, 0
    for operand in "dabc":
        count = i.registers(operand) * 32 // max(i.bits(operand), 32)
        groups.append("{" + ", ".join(f"%{first + n}" for n in range(count)) + "}")
        values[operand] = [_register(i, operand, n) for n in range(count)]
        first += count
    if i.d == "f64":
        yield f"    double sums[{len(values['d'])}];"
        values["d"] = [f'"=d"(sums[{n}])' for n in range(len(values["d"]))]
    name = f"mma.sync.aligned.{i.shape}.row.col{_kind(i)}.{i.d}.{i.a}.{i.b}.{i.c}"
    if i.scale:  # behind the elements in a and b; byte and thread of a group of four that a row's scales come from
        name += f".{i.scale}"
        groups += [f"%{first}, {{0, 0}}", f"%{first + 1}, {{0, 0}}"]
        values["c"] += [f'"r"({x}[{len(values[x])}])' for x in "ab"]
    yield f'    asm volatile("{name} {", ".join(groups)};"'
    yield f"        : {', '.join(values['d'])} : {', '.join(values['a'] + values['b'] + values['c'])});"
    if i.d == "f64":
        yield f"    for (int i = 0; i < {len(values['d'])}; i++) {{"
        yield "        d[2 * i] = __double2loint(sums[i]);"
        yield "        d[2 * i + 1] = __double2hiint(sums[i]);"
        yield "    }"
    yield "}"


def _kind(i: Instruction) -> str:
    """As in ``.kind::mxf4.block_scale.scale_vec::2X``."""
    return (f".kind::{i.kind}" if i.kind else "") + (f".block_scale.scale_vec::{i.scales}X" if i.scale else "")


def _register(i: Instruction, operand: str, n: int) -> str:
    if i.bits(operand) == 64:
        return f'"d"(__hiloint2double({operand}[{2 * n + 1}], {operand}[{2 * n}]))'
    return f'"{"=r" if operand == "d" else "r"}"({operand}[{n}])'


def _wgmma(i: Instruction) -> Iterator[str]:
    """a and the accumulators in registers; b in shared memory, where its descriptor says."""
    d, a = i.registers("d"), i.registers("a")
    accumulators, operand = (", ".join(f"%{n}" for n in r) for r in (range(d), range(d, d + a)))
    more = ", 0" * (i.a in ("f16", "bf16"))  # 16-bit types can be transposed: no
    name = f"wgmma.mma_async.sync.aligned.{i.shape}.{i.d}.{i.a}.{i.b}"
    inout, given = (
        ", ".join(f'"{how}"({x}[{n}])' for n in range(i.registers(x))) for how, x in (("+r", "d"), ("r", "a"))
    )
    yield f"#define SHARED {i.words('b')}"
    yield f"#define DESCRIPTOR {descriptor():#x}ull"
    yield f"{_MULTIPLY}unsigned *d, const unsigned *a, unsigned long long b)"
    yield "{"
    yield '    asm volatile("{\\n"'
    yield '        ".reg .pred p; setp.eq.u32 p, 0, 0;\\n"'  # scale-d is true: what d holds is added
    yield '        "wgmma.fence.sync.aligned;\\n"'
    yield f'        "{name} {{{accumulators}}}, {{{operand}}}, %{d + a}, p, 1, 1{more};\\n"'
    yield '        "wgmma.commit_group.sync.aligned;\\n"'
    yield '        "wgmma.wait_group.sync.aligned 0;\\n}"'
    yield f'        : {inout} : {given}, "l"(b) : "memory");'
    yield "}"


def _wmma(i: Instruction) -> Iterator[str]:
    """Through memory: how wmma's registers are laid out is not documented."""
    load = "wmma.load.{}.sync.aligned.{}.{}.{} {{{}}}, [%{}], {};"
    a, b = (", ".join(f"{x}{n}" for n in range(i.registers(x))) for x in "ab")
    c = ", ".join(f"c{n}" for n in range(i.registers("c")))
    lines = [
        f".reg .b32 a<{i.registers('a')}>, b<{i.registers('b')}>; .reg .f32 c<{i.registers('c')}>;",
        load.format("a", "row", i.shape, i.a, a, 1, i.k),
        load.format("b", "col", i.shape, i.b, b, 2, i.k),
        load.format("c", "row", i.shape, i.c, c, 3, i.n),
        f"wmma.mma.sync.aligned.row.col.{i.shape}.{i.d}.{i.a}.{i.b}.{i.c} {{{c}}}, {{{a}}}, {{{b}}}, {{{c}}};",
        f"wmma.store.d.sync.aligned.row.{i.shape}.{i.d} [%0], {{{c}}}, {i.n};",
    ]
    yield f"{_MULTIPLY}unsigned *d, const unsigned *a, const unsigned *b, const unsigned *c)"
    yield "{"
    yield '    asm volatile("{\\n"'
    yield from (f'        "{line}\\n"' for line in lines)
    yield '        "}" :: "l"(d), "l"(a), "l"(b), "l"(c) : "memory");'
    yield "}"


def _tcgen05(i: Instruction) -> Iterator[str]:
    """a and b in shared memory, where their descriptors say; the sum and the block scales in tensor memory."""
    yield f"#define COLUMNS {i.n}"
    yield f"#define MASK {(1 << (16 if i.d == 'f16' else 32)) - 1:#x}u"
    for x in "ab":
        yield f"#define SHARED_{x.upper()} {i.words(x) - i.scale_words(x)}"
        yield f"#define SCALES_{x.upper()} {i.scale_words(x) // WARP}"
    yield f"#define DESCRIPTOR {blackwell.matrix_descriptor():#x}ull"
    yield f"#define INSTRUCTION {blackwell.instruction_descriptor(i):#x}u"
    yield _read("tcgen05.h")
    scales = ", [%4], [%5]" * bool(i.scale)
    yield f"{_MULTIPLY}"
    yield "    unsigned d, unsigned long long a, unsigned long long b, unsigned scales_a, unsigned scales_b)"
    yield "{"
    yield '    asm volatile("{\\n"'
    yield '        ".reg .pred p; setp.eq.u32 p, 0, 0;\\n"'  # enable-input-d is true: what d holds is added
    yield f'        "tcgen05.mma.cta_group::1{_kind(i)} [%0], %1, %2, %3{scales}, p;\\n}}"'
    yield '        :: "r"(d), "l"(a), "l"(b), "r"(INSTRUCTION), "r"(scales_a), "r"(scales_b) : "memory");'
    yield "}"
