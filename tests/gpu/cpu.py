"""A GPU made of this CPU: numsim's own kernels, compiled by g++ and run with a thread for every thread of a block.

Only the instruction itself is somebody else's: all threads hand in their words, and the PTX manual's tables
(``manual.py``) with numsim's model of a chip say which words they get. So what the kernels and the host do with
addresses, strides and steps runs as written, and an index that is wrong gives wrong results here, too.
"""

import ctypes
import hashlib
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

from numsim.gpu.instructions import Instruction, capability_of
from numsim.tensorcore import get_model
from numsim.tensorcore.products import chained
from tests.gpu import manual, manual_blackwell

HERE = Path(__file__).parent
POISON = 0xA5A5A5A5
_COLLECTIVE = ctypes.CFUNCTYPE(None, *[ctypes.POINTER(ctypes.c_uint32)] * 4, ctypes.c_uint64)


def why_not():
    return "" if shutil.which("g++") else "g++ is not installed: kernels cannot run on this CPU"


class Cpu:
    """Answers like a GPU with the tensor cores of ``chip``; ``change(model)`` makes them another's."""

    def __init__(self, chip, folder, change=lambda model: model, spoil=lambda d, poison: d):
        self.chip, self.capability, self.name = chip, capability_of(chip), f"NVIDIA {chip.upper()}"
        self.folder, self.change, self.spoil = Path(folder), change, spoil

    def provenance(self):
        return {"device": self.name, "compute_capability": ".".join(map(str, self.capability)), "driver": "none"}

    def run(self, kernel, grid, threads, operands, size, numbers=()):
        d = np.full(size, POISON, np.uint32)
        self.launch(kernel, grid, threads, operands, d, numbers)
        return self.spoil(d, POISON)

    def launch(self, kernel, grid, threads, operands, d, numbers=()):
        """What a kernel writes into d."""
        library, i = self.build(kernel, threads, len(operands), len(numbers))
        model = self.change(get_model(self.chip, instruction_name(kernel.header)))

        def collective(d, a, b, c, descriptor):
            words = [np.ctypeslib.as_array(p, (count,)) for p, count in zip((a, b, c), counts, strict=True)]
            said = f"DESCRIPTOR {descriptor:#x}ull"  # by the kernel, not by its header
            x, y, z = (manual.read(i, o, w, said) for o, w in zip("abc", words, strict=True))
            codes = chained(x[:, :, None, :], y[:, None, :, :], z, model, None, None)
            result = manual.write(i, codes, said)
            np.ctypeslib.as_array(d, (result.size,))[:] = result

        if i.kind:
            collective = manual_blackwell.collective(model, kernel.header)
        counts, errors = [i.words(o) for o in "abc"], []

        def guarded(*words):
            try:
                collective(*words)
            except Exception as error:  # ctypes would only print it
                errors.append(error)

        library.set_collective(callback := _COLLECTIVE(guarded))
        pointers = [np.ascontiguousarray(x).ctypes.data_as(ctypes.c_void_p) for x in (*operands, d)]
        library.start(*grid, threads, *pointers, *map(ctypes.c_int, numbers))
        del callback
        if errors:
            raise errors[0]

    def build(self, kernel, threads, operands, numbers):
        i = Instruction.of(get_model(self.chip, instruction_name(kernel.header)))
        arguments = [
            *(f"const unsigned *p{n}" for n in range(operands)),
            "unsigned *p",
            *(f"int n{n}" for n in range(numbers)),
        ]
        names = [*(f"p{n}" for n in range(operands)), "p", *(f"n{n}" for n in range(numbers))]
        defines = "\n".join(line for line in kernel.header.splitlines() if line.startswith("#define"))
        source = re.sub(r"asm volatile\([^;]*;[^;]*;", ";", kernel.source.replace('#include "instruction.h"', ""))
        text = f"""#include "cuda_on_cpu.h"
{defines}
typedef void (*Collective)(unsigned *, const unsigned *, const unsigned *, const unsigned *, unsigned long long);
static Collective collective;
extern "C" void set_collective(Collective f) {{ collective = f; }}
{_MULTIPLY[i.family]}
{source}
extern "C" void start(unsigned x, unsigned y, unsigned z, unsigned threads, {", ".join(arguments)})
{{
    launch({{x, y, z}}, threads, [=] {{ {kernel.function}({", ".join(names)}); }});
}}
"""
        return _library(text, self.folder), i


# All threads hand in their words; one of them calls; all take their part of the result.
_MULTIPLY = {
    "mma": """
static unsigned all_a[THREADS * A], all_b[THREADS * B], all_c[THREADS * C], all_d[THREADS * D];
static void multiply(unsigned *d, const unsigned *a, const unsigned *b, const unsigned *c)
{
    memcpy(all_a + threadIdx.x * A, a, 4 * A);
    memcpy(all_b + threadIdx.x * B, b, 4 * B);
    memcpy(all_c + threadIdx.x * C, c, 4 * C);
    __syncthreads();
    if (threadIdx.x == 0) collective(all_d, all_a, all_b, all_c, 0);
    __syncthreads();
    memcpy(d, all_d + threadIdx.x * D, 4 * D);
}""",
    "wmma": """
static void multiply(unsigned *d, const unsigned *a, const unsigned *b, const unsigned *c)
{
    __syncthreads();
    if (threadIdx.x == 0) collective(d, a, b, c, 0);
    __syncthreads();
}""",
    "wgmma": """
static unsigned char *window; // shared memory begins at an address that is a multiple of 128
static unsigned long long __cvta_generic_to_shared(void *p) { window = (unsigned char *)p - 1024; return 1024; }
static unsigned all_a[THREADS * A], all_d[THREADS * D];
static void multiply(unsigned *d, const unsigned *a, unsigned long long b)
{
    memcpy(all_a + threadIdx.x * A, a, 4 * A);
    memcpy(all_d + threadIdx.x * D, d, 4 * D);
    __syncthreads();
    if (threadIdx.x == 0) collective(all_d, all_a, (unsigned *)(window + (b & 0x3FFF) * 16), all_d, b);
    __syncthreads();
    memcpy(d, all_d + threadIdx.x * D, 4 * D);
}""",
    "tcgen05": manual_blackwell.ON_CPU,
}


@cache
def _library(text, folder):
    stem = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    source, target = stem.with_suffix(".cpp"), stem.with_suffix(".so")
    source.write_text(text)
    _compile(["-shared", "-I", _header(folder), "-I", HERE, "-o", target, source])
    return ctypes.CDLL(str(target))


@cache
def _header(folder):
    """A folder with what most of the time goes into: the header, compiled once."""
    _compile(["-x", "c++-header", "-o", folder / "cuda_on_cpu.h.gch", HERE / "cuda_on_cpu.h"])
    return folder


def _compile(options):
    subprocess.run(["g++", "-std=c++20", "-O1", "-fPIC", "-pthread", *options], check=True)


def instruction_name(header):
    return re.search(r"// (\S+)", header)[1]


# --- kernels without an instruction -----------------------------------------------------------------------------------
class CpuEmulator:
    """Runs kernels on ordinary cores, such as the emulator's, which need nothing but C++."""

    name, capability = "NVIDIA GeForce RTX 3060", (8, 6)

    def __init__(self, folder):
        self.folder, self.launches = Path(folder), []

    def provenance(self):
        return {"device": self.name, "compute_capability": "8.6", "driver": "none"}

    def run(self, kernel, grid, threads, operands, size, numbers=()):
        self.launches.append((kernel, grid, threads))
        source = kernel.source.replace('#include "instruction.h"', kernel.header)
        names = [*(f"{{p{n}}}" for n in range(len(operands))), "{p}", *(f"n{n}" for n in range(len(numbers)))]
        pointers = ", ".join(f"void *{name[1:-1]}" for name in names if name[0] == "{")
        text = f"""#include "cuda_on_cpu.h"
#include <algorithm>
#include <cmath>
#define __launch_bounds__(threads)
#define __clz __builtin_clz
#define __clzll __builtin_clzll
static float __fmaf_rn(float a, float b, float c) {{ return std::fma(a, b, c); }}
static double __fma_rn(double a, double b, double c) {{ return std::fma(a, b, c); }}
using std::abs, std::max, std::min;
struct Pointer {{
    void *p;
    template <class T> operator T *() const {{ return (T *)p; }}
}};
{source}
extern "C" void start(unsigned x, unsigned y, unsigned z, unsigned threads, {pointers}, const int *numbers)
{{
    launch({{x, y, z}}, threads, [=] {{
        {kernel.function}({", ".join(f"Pointer{n}" if n[0] == "{" else f"numbers[{n[1:]}]" for n in names)});
    }});
}}
"""
        d = np.full(size, 0xA5A5A5A5, np.uint32)
        given = [np.ascontiguousarray(x) for x in (*operands, d)]
        integers = np.array(numbers, np.int32)
        arguments = [x.ctypes.data_as(ctypes.c_void_p) for x in (*given, integers)]
        _library(text, self.folder).start(*grid, threads, *arguments)
        return given[-1]
