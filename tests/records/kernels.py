"""The kernels of the GPU probe: CUDA C++ around one instruction of inline PTX, and which GPU has which.

Source of the syntax and of what exists where: NVIDIA, Parallel Thread Execution ISA 9.0, sections 9.7.14.4 (wmma),
9.7.14.5 (mma), 9.7.15 (wgmma).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from tests.records.fragments import LEADING, STRIDE, Instruction, descriptor
else:
    from fragments import LEADING, STRIDE, Instruction, descriptor

Capability = tuple[int, int]

FP8 = ("e4m3", "e5m2")
# wgmma last: if a launch fails, the GPU takes no further work from this process
INSTRUCTIONS = tuple(Instruction.parse(name) for name in (
    "mma.m8n8k4.f32.f16.f16.f32", "mma.m8n8k4.f32.f16.f16.f16", "mma.m8n8k4.f16.f16.f16.f16",
    *(f"mma.m16n8k{k}.{d}.f16.f16.{d}" for k in (8, 16) for d in ("f32", "f16")),
    *(f"mma.m16n8k{k}.f32.bf16.bf16.f32" for k in (8, 16)),
    *(f"mma.m16n8k{k}.f32.tf32.tf32.f32" for k in (4, 8)),
    "wmma.m16n16k8.f32.tf32.tf32.f32",
    *(f"mma.m16n8k{k}.{d}.{a}.{b}.{d}" for k in (16, 32) for d in ("f32", "f16") for a in FP8 for b in FP8),
    *(f"wgmma.m64n8k32.{d}.{a}.{b}" for d in ("f32", "f16") for a in FP8 for b in FP8),
    "wgmma.m64n8k16.f32.f16.f16", "wgmma.m64n8k16.f16.f16.f16", "wgmma.m64n8k16.f32.bf16.bf16",
    "wgmma.m64n8k8.f32.tf32.tf32",
))  # fmt: skip


def missing(i: Instruction, capability: Capability) -> str:
    """Why a GPU of this compute capability has no such unit, or ""."""
    if i.family == "wgmma":
        return "" if capability == (9, 0) else "wgmma exists on compute capability 9.0 only"
    if i.shape == "m8n8k4":
        return "" if capability[0] == 7 else "tensor cores compute m8n8k4 on compute capability 7.x only"
    least = (8, 9) if i.a in FP8 else (7, 5) if (i.a, i.k) == ("f16", 8) else (8, 0)
    return "" if capability >= least else f"needs compute capability {least[0]}.{least[1]}"


def target(capability: Capability) -> str:
    """The architecture to compile for; from 9.0 on with the features of this one only, which wgmma is."""
    return f"sm_{capability[0]}{capability[1]}" + "a" * (capability >= (9, 0))


# --- source ----------------------------------------------------------------------------------------------------------
KERNEL = """extern "C" __global__ void probe(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *d)
{{
    const unsigned tile = blockIdx.x, thread = tile * {threads} + threadIdx.x;
{body}
}}
"""


def source(i: Instruction) -> str:
    """CUDA C++ of the kernel: one block a tile; each thread copies its words in, the instruction runs, words go out."""
    body = {"mma": _mma, "wmma": _wmma, "wgmma": _wgmma}[i.family](i)
    return KERNEL.format(threads=i.threads, body="\n".join("    " + line for line in body))


def _mma(i: Instruction) -> list[str]:
    name = f"mma.sync.aligned.{i.shape}.row.col.{i.d}.{i.a}.{i.b}.{i.c}"
    first = 0
    groups = []
    for operand in "dabc":
        groups.append("{" + ", ".join(f"%{first + n}" for n in range(i.registers(operand))) + "}")
        first += i.registers(operand)
    return [
        *_load(i, "a", "b", "c"), f"unsigned D[{i.registers('d')}];",
        f'asm volatile("{name} {", ".join(groups)};"',
        f"    : {_registers(i, 'd', '=r')}",
        f"    : {_registers(i, 'a')}, {_registers(i, 'b')}, {_registers(i, 'c')});",
        *_store(i),
    ]  # fmt: skip


def _wgmma(i: Instruction) -> list[str]:
    """a and the accumulators in registers, b in shared memory. Writes there must be made visible to wgmma's proxy."""
    d, a, bits = i.registers("d"), i.registers("a"), descriptor(LEADING, STRIDE)
    accumulators, operand = (", ".join(f"%{n}" for n in r) for r in (range(d), range(d, d + a)))
    name = f"wgmma.mma_async.sync.aligned.{i.shape}.{i.d}.{i.a}.{i.b}"
    more = ", 0" * (i.a in ("f16", "bf16"))  # 16-bit types can be transposed: no
    return [
        *_load(i, "a", "c"),
        f"__shared__ __align__(128) unsigned S[{i.words('b')}];",
        f"if (threadIdx.x < {i.words('b')}) S[threadIdx.x] = b[tile * {i.words('b')} + threadIdx.x];",
        'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");',
        "__syncthreads();",
        "const unsigned start = (unsigned)__cvta_generic_to_shared(S);",
        f"const unsigned long long B = {bits:#x}ull | (start & 0x3FFFF) >> 4;",
        'asm volatile("{\\n"',
        '    ".reg .pred p; setp.eq.u32 p, 0, 0;\\n"',  # scale-d is true: c is added
        '    "wgmma.fence.sync.aligned;\\n"',
        f'    "{name} {{{accumulators}}}, {{{operand}}}, %{d + a}, p, 1, 1{more};\\n"',
        '    "wgmma.commit_group.sync.aligned;\\n"',
        '    "wgmma.wait_group.sync.aligned 0;\\n}"',
        f'    : {_registers(i, "c", "+r")} : {_registers(i, "a")}, "l"(B) : "memory");',
        *_store(i, "C"),
    ]


def _wmma(i: Instruction) -> list[str]:
    """Through memory: how wmma's registers are laid out is not documented."""
    load = "wmma.load.{}.sync.aligned.{}.{}.{} {{{}}}, [%{}], {};"
    a, b = (", ".join(f"{x}{n}" for n in range(i.registers(x))) for x in "ab")
    c = ", ".join(f"c{n}" for n in range(i.registers("c")))
    lines = [
        f".reg .b32 a<{i.registers('a')}>, b<{i.registers('b')}>; .reg .f32 c<{i.registers('c')}>;",
        load.format("a", "row", i.shape, i.a, a, 0, i.k),
        load.format("b", "col", i.shape, i.b, b, 1, i.k),
        load.format("c", "row", i.shape, i.c, c, 2, i.n),
        f"wmma.mma.sync.aligned.row.col.{i.shape}.{i.d}.{i.a}.{i.b}.{i.c} {{{c}}}, {{{a}}}, {{{b}}}, {{{c}}};",
        f"wmma.store.d.sync.aligned.row.{i.shape}.{i.d} [%3], {{{c}}}, {i.n};",
    ]
    pointers = ", ".join(f'"l"({x} + tile * {i.words(x)})' for x in "abcd")
    return [
        'asm volatile("{\\n"', *(f'    "{line}\\n"' for line in lines),
        f'    "}}" :: {pointers} : "memory");', "(void)thread;",
    ]  # fmt: skip


def _load(i: Instruction, *operands: str) -> list[str]:
    return [
        f"unsigned {x.upper()}[{(r := i.registers(x))}]; "
        f"for (int i = 0; i < {r}; i++) {x.upper()}[i] = {x}[thread * {r} + i];"
        for x in operands
    ]


def _store(i: Instruction, registers: str = "D") -> list[str]:
    return [f"for (int i = 0; i < {(r := i.registers('d'))}; i++) d[thread * {r} + i] = {registers}[i];"]


def _registers(i: Instruction, operand: str, constraint: str = "r") -> str:
    return ", ".join(f'"{constraint}"({operand.upper()}[{n}])' for n in range(i.registers(operand)))
