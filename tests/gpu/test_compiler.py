"""Kernels through NVRTC, for every architecture that numsim's records have; what is kept on disk; what is missing."""

import ctypes
import hashlib
import re
import sys
from types import SimpleNamespace

import pytest

from numsim.errors import UnavailableError
from numsim.gpu.compiler import Compiler
from numsim.gpu.instructions import Instruction, capability_of, target, why_missing
from numsim.gpu.ptx import Kernel, kernel
from numsim.tensorcore import get_model
from numsim.tensorcore.names import list_chips, list_models

SMALL = Kernel('#include "instruction.h"\nextern "C" __global__ void fill(float *d) { d[0] = d[1] * d[2] + D; }',
               "#define D 3.0f", "fill")  # fmt: skip


@pytest.fixture(scope="module")
def nvrtc():
    try:
        return Compiler()
    except UnavailableError as error:
        pytest.skip(str(error))  # names cuda-bindings or NVRTC


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMSIM_CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept" / "cuda"


# --- every kernel -----------------------------------------------------------------------------------------------------
def shapes(capability):
    """One instruction of each shape and width of registers that a GPU has: the others differ in the types' names."""
    found = {}
    for chip in filter(capability_of, list_chips()):
        for model in list_models(chip):
            i = Instruction.of(model)
            if not why_missing(i, capability):
                found.setdefault((i.family, i.shape, i.kind, i.scale_block, *map(i.bits, "abcd")), i)
    return list(found.values())


def written(i):
    """The instruction in PTX, by the manual's syntax; of one with a kind, its beginning."""
    if i.family == "tcgen05":
        return rf"tcgen05\.mma\.cta_group::1\.kind::{i.kind}\b\S* "
    if i.family == "wgmma":
        return rf"wgmma\.mma_async\.sync\.aligned\.m64n8k{i.k}\.{i.d}\.{i.a}\.{i.b} "
    if i.family == "wmma":
        return rf"wmma\.mma\.sync\.aligned\.row\.col\.{i.shape}\.{i.d}\.{i.a}\.{i.b}\.{i.c} "
    kind = rf"\.kind::{i.kind}\S*" if i.kind else ""
    return rf"mma\.sync\.aligned\.{i.shape}\.row\.col{kind}\.{i.d}\.{i.a}\.{i.b}\.{i.c}\b\S* "


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)], ids=target)
def test_kernels_compile_to_machine_code(capability, nvrtc):
    own = shapes(capability)
    assert len(own) >= 5
    try:
        nvrtc.compile(SMALL, target(capability))
    except UnavailableError as error:
        pytest.skip(str(error))  # an NVRTC that is older than this GPU
    for i in own:
        assert nvrtc.compile(kernel(i), target(capability))[:4] == b"\x7fELF", i.name  # the assembler took the PTX
        text = nvrtc.compile(kernel(i), target(capability), ptx=True).decode()
        assert len(re.findall(r"(?m)^\s*(?:@\S+ )?" + written(i), text)) == 1, i.name
        assert f".target {target(capability)}" in text and ".entry chain(" in text


@pytest.mark.parametrize("name", ["wgmma.m64n8k32.f32.e4m3.e5m2", "mma.m16n8k8.f32.bf16.bf16.f32"])
def test_types_get_into_the_instruction(name, nvrtc):
    i = Instruction.of(get_model("h200", name))
    assert len(re.findall(written(i), nvrtc.compile(kernel(i), "sm_90a", ptx=True).decode())) == 1


def test_products_and_sums_are_not_fused(nvrtc):
    text = nvrtc.compile(SMALL, "sm_80", ptx=True).decode()
    assert re.search(r"mul(\.rn)?\.f32", text) and re.search(r"add(\.rn)?\.f32", text) and "fma" not in text


# --- errors -----------------------------------------------------------------------------------------------------------
def test_errors_are_one_line(nvrtc):
    version = re.escape(".".join(map(str, nvrtc.version)))
    with pytest.raises(
        UnavailableError, match=rf"^NVRTC {version} does not compile for sm_80: kernel.cu\(1\): error.*$"
    ):
        nvrtc.compile(Kernel("this is no kernel", "", "none"), "sm_80")
    # what the assembler refuses: wgmma is the H100's own, and sm_90 without an a has none of it
    i = Instruction.of(get_model("h200", "wgmma.m64n8k32.f32.e4m3.e4m3"))
    with pytest.raises(UnavailableError, match=r"^NVRTC \S+ does not compile for sm_90: .*wgmma.*$"):
        nvrtc.compile(kernel(i), "sm_90")
    with pytest.raises(UnavailableError, match=r"--gpu-architecture.*\. Another version may: .*numsim\[cuda12\]"):
        nvrtc.compile(SMALL, "sm_10")


def test_nothing_to_compile_with(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(UnavailableError, match=r'^cuda-bindings does not load \(.*\): .*"numsim\[cuda\]"'):
        Compiler()


# --- what is kept -----------------------------------------------------------------------------------------------------
class Code(int):
    name = "NVRTC_ERROR_COMPILATION"


class Nvrtc:
    """A fake ``cuda.bindings.nvrtc``, whose machine code says what it is made of; the call ``fail`` fails."""

    def __init__(self, version=(13, 0), fail="", log=b""):
        self.version, self.fail, self.log, self.compiled, self.alive = version, fail, log, [], 0

    def _code(self, name):
        return Code(6 * (name == self.fail))

    def nvrtcVersion(self):  # noqa: N802
        return self._code("version"), *self.version

    def nvrtcGetErrorString(self, code):  # noqa: N802
        return Code(0), b"NVRTC_ERROR_COMPILATION"

    def nvrtcCreateProgram(self, source, name, count, headers, names):  # noqa: N802
        assert (name, count, names) == (b"kernel.cu", len(headers), [b"instruction.h"])
        self.alive += self.fail != "create"
        return self._code("create"), SimpleNamespace(text=source + headers[0])

    def nvrtcCompileProgram(self, program, count, options):  # noqa: N802
        assert count == len(options)
        self.compiled.append(options)
        program.options = b" ".join(options)
        return (self._code("compile"),)

    def nvrtcGetCUBINSize(self, program):  # noqa: N802
        return self._code("size"), len(program.text + program.options)

    def nvrtcGetCUBIN(self, program, buffer):  # noqa: N802
        ctypes.memmove(buffer, program.text + program.options, len(buffer))
        return (self._code("get"),)

    def nvrtcGetPTXSize(self, program):  # noqa: N802
        return Code(0), 3

    def nvrtcGetPTX(self, program, buffer):  # noqa: N802
        ctypes.memmove(buffer, b"PTX", 3)
        return (Code(0),)

    def nvrtcGetProgramLogSize(self, program):  # noqa: N802
        return Code(0), len(self.log)

    def nvrtcGetProgramLog(self, program, buffer):  # noqa: N802
        ctypes.memmove(buffer, self.log, len(self.log))
        return (Code(0),)

    def nvrtcDestroyProgram(self, program):  # noqa: N802
        self.alive -= 1
        return (self._code("destroy"),)


@pytest.fixture
def start(monkeypatch):
    def started(**options):
        fake = Nvrtc(**options)
        monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(nvrtc=fake))
        return Compiler(), fake

    return started


def test_the_second_time_it_comes_from_disk(start, folder):
    compiler, fake = start()
    image = compiler.compile(SMALL, "sm_80")
    assert image == (SMALL.source + SMALL.header).encode() + b"--gpu-architecture=sm_80 --fmad=false"
    assert fake.compiled == [[b"--gpu-architecture=sm_80", b"--fmad=false"]] and fake.alive == 0
    again, other = start()
    assert again.compile(SMALL, "sm_80") == image and other.compiled == []
    assert len(list(folder.iterdir())) == 1


def test_what_makes_it_another_program(start, folder):
    compiler, fake = start()
    compiler.compile(SMALL, "sm_80")
    for n, other in enumerate([
        lambda: compiler.compile(SMALL._replace(source=SMALL.source + " "), "sm_80"),
        lambda: compiler.compile(SMALL._replace(header=SMALL.header + " "), "sm_80"),
        lambda: compiler.compile(SMALL._replace(source=SMALL.source[:-1], header="}" + SMALL.header), "sm_80"),
        lambda: compiler.compile(SMALL, "sm_86"),
        lambda: compiler.compile(SMALL, "sm_80", ptx=True),
        lambda: start(version=(13, 1))[0].compile(SMALL, "sm_80"),
    ]):  # fmt: skip
        other()
        assert len(list(folder.iterdir())) == n + 2
    assert len(fake.compiled) == 6


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:31], lambda data: data[:-1], lambda data: data + b"x",
    lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: bytes([data[0] ^ 1]) + data[1:],
])  # fmt: skip
def test_a_damaged_file_is_none(damage, start, folder):
    compiler, fake = start()
    image = compiler.compile(SMALL, "sm_80")
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    assert hashlib.sha256(whole[32:]).digest() == whole[:32] and whole[32:] == image
    file.write_bytes(damage(whole))
    assert compiler.compile(SMALL, "sm_80") == image and len(fake.compiled) == 2
    assert file.read_bytes() == whole  # and written anew


def test_without_a_place_to_keep_it(start, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMSIM_CACHE_DIR", str(tmp_path / "file"))  # no folder can be made below a file
    compiler, fake = start()
    assert compiler.compile(SMALL, "sm_80") == compiler.compile(SMALL, "sm_80") and len(fake.compiled) == 2


@pytest.mark.parametrize("call", ["create", "size", "get", "destroy"])
def test_every_return_code_is_looked_at(call, start, folder):
    compiler, fake = start(fail=call)
    with pytest.raises(UnavailableError, match=rf"^NVRTC: nvrtc\w*(?i:{call})\w*: NVRTC_ERROR_COMPILATION$"):
        compiler.compile(SMALL, "sm_80")
    assert fake.alive == 0 and not folder.exists()
    with pytest.raises(UnavailableError, match=r"^NVRTC: nvrtcVersion: "):
        start(fail="version")


@pytest.mark.parametrize(("log", "what"), [
    (b"a.cu(3): warning: odd\na.cu(7):   error: bad\nmore error\n\0", r"a\.cu\(7\): error: bad"),
    (b"something else\n\0", "something else"), (b"\0", "NVRTC_ERROR_COMPILATION"), (b"", "NVRTC_ERROR_COMPILATION"),
    (b"error: \xff" + b"x" * 1000, r"error: .x+"),
])  # fmt: skip
def test_a_failed_compilation_is_told_in_a_line(log, what, start, folder):
    compiler, fake = start(fail="compile", log=log)
    with pytest.raises(UnavailableError, match=rf"^NVRTC 13\.0 does not compile for sm_80: {what}$") as told:
        compiler.compile(SMALL, "sm_80")
    assert fake.alive == 0 and not folder.exists() and len(str(told.value)) < 200


def test_bindings_without_the_library(start, monkeypatch):
    def nvrtcVersion(self):  # noqa: N802
        raise RuntimeError("Failure finding libnvrtc.so")

    monkeypatch.setattr(Nvrtc, "nvrtcVersion", nvrtcVersion)
    with pytest.raises(UnavailableError, match=r"^NVRTC, NVIDIA's run-time compiler, is missing: .*numsim\[cuda\]"):
        start()
