"""The driver's side: a fake ``cuda.bindings.driver`` that can fail anywhere, and the real one over a fake library."""

import ctypes
import enum
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from numsim.errors import UnavailableError
from numsim.gpu import driver, units
from numsim.gpu.driver import DeviceError, Gpu
from numsim.gpu.instructions import Instruction
from numsim.gpu.ptx import Kernel
from numsim.tensorcore import get_model
from numsim.tensorcore.products import chained
from tests.gpu.cpu import Cpu, why_not

HERE = Path(__file__).parent


class Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803


def call(method):
    """A function of the driver: (code, results); it fails where ``fail`` says so, and after a failed launch always."""

    @functools.wraps(method)
    def wrapped(self, *arguments):
        self.calls.append(method.__name__)
        if code := self.fail.get(len(self.calls) - 1) or self.dead:
            self.dead = code if code == Result.CUDA_ERROR_LAUNCH_FAILED else 0
            return (code,)
        value = method(self, *arguments)
        return (Result.CUDA_SUCCESS,) if value is None else (Result.CUDA_SUCCESS, value)

    return wrapped


class FakeCuda:
    """Memory is this process's; a launch is ``execute(kernel, grid, threads, words, numbers)``."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76
    )

    def __init__(self, execute, *, capability=(9, 0), version=13000, devices=1, fail=None):
        self.execute, self.capability, self.version, self.devices = execute, capability, version, devices
        self.fail, self.dead, self.calls, self.kernels = fail or {}, 0, [], []
        self.memory, self.stacks = {}, {}

    @property
    def stack(self):
        return self.stacks.setdefault(threading.get_ident(), [])

    # NVRTC's part: machine code is a number in an ELF
    def compile(self, kernel, architecture):
        assert architecture == "sm_90a"
        self.kernels.append(kernel)
        return b"\x7fELF" + (len(self.kernels) - 1).to_bytes(4, "little")

    @call
    def cuInit(self, flags):  # noqa: N802
        assert flags == 0

    @call
    def cuDeviceGetCount(self):  # noqa: N802
        return self.devices

    @call
    def cuDriverGetVersion(self):  # noqa: N802
        return self.version

    @call
    def cuDeviceGet(self, ordinal):  # noqa: N802
        return ordinal

    @call
    def cuDeviceGetName(self, length, device):  # noqa: N802
        return b"NVIDIA H200".ljust(length, b"\0")

    @call
    def cuDeviceGetAttribute(self, attribute, device):  # noqa: N802
        return self.capability[attribute - 75]

    @call
    def cuDevicePrimaryCtxRetain(self, device):  # noqa: N802
        return "primary"

    @call
    def cuCtxPushCurrent(self, context):  # noqa: N802
        self.stack.append(context)

    @call
    def cuCtxPopCurrent(self):  # noqa: N802
        return self.stack.pop()

    @call
    def cuMemAlloc(self, size):  # noqa: N802
        assert self.stack[-1] == "primary" and size > 0
        buffer = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    @call
    def cuMemFree(self, pointer):  # noqa: N802
        del self.memory[pointer]

    @call
    def cuMemcpyHtoD(self, to, at, size):  # noqa: N802
        assert size <= len(self.memory[to])
        ctypes.memmove(to, at, size)

    @call
    def cuMemcpyDtoH(self, to, at, size):  # noqa: N802
        assert size <= len(self.memory[at])
        ctypes.memmove(to, at, size)

    @call
    def cuMemsetD32(self, pointer, word, count):  # noqa: N802
        ctypes.memmove(pointer, np.full(count, word, np.uint32).ctypes.data, 4 * count)

    @call
    def cuModuleLoadData(self, at):  # noqa: N802
        assert self.stack[-1] == "primary" and ctypes.string_at(at, 4) == b"\x7fELF"
        return self.kernels[int.from_bytes(ctypes.string_at(at + 4, 4), "little")]

    @call
    def cuModuleGetFunction(self, module, name):  # noqa: N802
        assert name == module.function.encode()
        return module

    @call
    def cuLaunchKernel(self, kernel, x, y, z, bx, by, bz, shared, stream, parameters, extra):  # noqa: N802
        assert (by, bz, shared, stream, extra) == (1, 1, 0, 0, 0) and self.stack[-1] == "primary"
        kinds = re.search(rf"{kernel.function}\((.*?)\)", kernel.source)[1].split(",")
        at = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        pointers = [ctypes.c_uint64.from_address(at[n]).value for n, kind in enumerate(kinds) if "*" in kind]
        numbers = [ctypes.c_int32.from_address(at[n]).value for n, kind in enumerate(kinds) if "*" not in kind]
        words = [np.frombuffer(self.memory[p], np.uint32) for p in pointers]
        self.execute(kernel, (x, y, z), bx, words, numbers)

    @call
    def cuCtxSynchronize(self):  # noqa: N802
        assert self.stack[-1] == "primary"


ADD = Kernel("void add(const unsigned *a, const unsigned *b, unsigned *d, int n)", "", "add")


def add(kernel, grid, threads, words, numbers):
    a, b, d = words
    d[:] = a + np.uint32(numbers[0] % 2**32) * b


@pytest.fixture
def start(monkeypatch):
    """A GPU on a fake driver."""

    def started(execute=add, **options):
        cuda = FakeCuda(execute, **options)
        monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=cuda))
        nvrtc = SimpleNamespace(version=(13, 0), compile=cuda.compile)
        monkeypatch.setattr(driver, "compiler", lambda: nvrtc)
        monkeypatch.setattr(driver, "driver_found", lambda: True)
        return Gpu(), cuda

    return started


A, B = np.arange(64, dtype=np.uint32), np.arange(64, dtype=np.uint32) * 7 + 1


def run(gpu):
    return gpu.run(ADD, (2, 1, 1), 32, [A, B], 64, [-3])


# --- what a run does --------------------------------------------------------------------------------------------------
def test_a_run_leaves_nothing_behind(start):
    gpu, cuda = start()
    cuda.stack.append("torch's")  # whatever another library has made current comes back
    for _ in range(2):
        assert np.array_equal(run(gpu), A - 3 * B)
        assert not cuda.memory and cuda.stack == ["torch's"]
    assert (gpu.name, gpu.capability, gpu.cuda) == ("NVIDIA H200", (9, 0), "13.0")
    assert cuda.calls.count("cuLaunchKernel") == cuda.calls.count("cuMemsetD32") == 4
    assert cuda.calls.count("cuModuleLoadData") == 1  # compiled and loaded once
    gpu.run(ADD._replace(header="// another"), (2, 1, 1), 32, [A, B], 64, [1])
    assert cuda.calls.count("cuModuleLoadData") == 2


def test_operands_of_any_layout_and_order(start):
    gpu, _ = start()
    wide = np.repeat(A, 2)[::2], B.astype(">u4")[::-1][::-1]
    assert not wide[0].flags.contiguous
    for x in wide:
        x.flags.writeable = False
    assert np.array_equal(gpu.run(ADD, (2, 1, 1), 32, wide, 64, [5]), A + 5 * B)


def test_from_another_thread(start):
    gpu, cuda = start()
    found = []
    thread = threading.Thread(target=lambda: found.append(run(gpu)))
    thread.start()
    thread.join()
    assert np.array_equal(found[0], A - 3 * B) and not any(cuda.stacks.values())


@pytest.mark.parametrize(
    ("name", "chip"), [("mma.m16n8k16.f32.f16.f16.f32", "h200"), ("mma.m16n8k8.f64.f64.f64.f64", "h200")]
)
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_whole_questions(name, chip, start, tmp_path):
    """numsim's own kernels by way of the driver's calls, pointers and memory."""
    cpu = Cpu(chip, tmp_path)

    def execute(kernel, grid, threads, words, numbers):
        cpu.launch(kernel, grid, threads, words[:-1], words[-1], numbers)

    (gpu, cuda), model = start(execute), get_model(chip, name)
    i = Instruction.of(model)
    dtype = f"u{i.bits('a') // 8}"
    a, b = (
        np.random.PCG64(n).random_raw(s).astype(dtype).reshape(-1, 2 * i.k) for n, s in ((1, 40 * i.k), (2, 22 * i.k))
    )
    c = np.zeros((20, 11), f"u{i.bits('c') // 8}")
    wanted = chained(a[:, None], b[None], c, model, None, None)
    assert np.array_equal(units.multiply(gpu, model, a[:, None], b[None], c), wanted)
    assert not cuda.memory and not cuda.stack


# --- what can go wrong ------------------------------------------------------------------------------------------------
def test_every_return_code_is_looked_at(start):
    gpu, cuda = start()
    begun = len(cuda.calls)
    run(gpu)
    calls = list(cuda.calls)
    assert len(set(calls)) == 18 and begun == 8
    for n, name in enumerate(calls):
        fail = {n: Result.CUDA_ERROR_INVALID_VALUE}
        if n < begun:
            with pytest.raises(UnavailableError, match=f"{name}.*CUDA_ERROR_INVALID_VALUE"):
                start(fail=fail)
            continue
        gpu, cuda = start(fail=fail)
        with pytest.raises(DeviceError, match=f"^{name} on the GPU: CUDA_ERROR_INVALID_VALUE$"):
            run(gpu)
        assert len(cuda.memory) == (name == "cuMemFree") and len(cuda.stack) == (name == "cuCtxPopCurrent")
        if not cuda.stack:
            assert np.array_equal(run(gpu), A - 3 * B)  # the next one works


def test_a_failed_launch_is_the_end_and_is_what_is_told(start):
    gpu, cuda = start()
    run(gpu)
    first = cuda.calls.index("cuCtxSynchronize")
    gpu, cuda = start(fail={first: Result.CUDA_ERROR_LAUNCH_FAILED})
    what = "CUDA_ERROR_LAUNCH_FAILED; this process can use the GPU no more"
    with pytest.raises(DeviceError, match=f"^cuCtxSynchronize on the GPU: {what}$"):
        run(gpu)
    assert cuda.calls[first + 1 :] == ["cuMemFree"] * 3 + ["cuCtxPopCurrent"]  # tried, although nothing works now
    with pytest.raises(DeviceError, match=f"^cuCtxPushCurrent on the GPU: {what}$"):
        run(gpu)


def test_out_of_memory(start):
    gpu, cuda = start()
    run(gpu)
    second = cuda.calls.index("cuMemAlloc") + 1
    gpu, cuda = start(fail={second: Result.CUDA_ERROR_OUT_OF_MEMORY})
    with pytest.raises(DeviceError, match=r"^cuMemAlloc on the GPU: CUDA_ERROR_OUT_OF_MEMORY; nvidia-smi shows"):
        run(gpu)
    assert not cuda.memory and not cuda.stack and cuda.calls.count("cuMemFree") == 1


def test_a_code_that_the_bindings_do_not_know(start):
    gpu, cuda = start()

    def cuCtxSynchronize():  # noqa: N802
        raise ValueError("904 is not a valid CUresult")

    cuda.cuCtxSynchronize = cuCtxSynchronize
    with pytest.raises(DeviceError, match=r"^cuCtxSynchronize on the GPU: 904 is not a valid CUresult$"):
        run(gpu)
    assert not cuda.memory and not cuda.stack


def test_words_that_are_not_written(start):
    def skips(kernel, grid, threads, words, numbers):
        kept = words[-1][[5, 63]].copy()
        add(kernel, grid, threads, words, numbers)
        words[-1][[5, 63]] = kept

    with pytest.raises(DeviceError, match=r"^2 words of 64 are not written by the kernel, or not the same twice$"):
        run(start(skips)[0])


def test_words_that_are_not_the_same_twice(start):
    launches = []

    def wavers(kernel, grid, threads, words, numbers):
        add(kernel, grid, threads, words, numbers)
        launches.append(1)
        words[-1][7] ^= len(launches)

    with pytest.raises(DeviceError, match=r"^1 words of 64 are not written by the kernel, or not the same twice$"):
        run(start(wavers)[0])


def test_a_forked_process_is_told(start, monkeypatch):
    gpu, cuda = start()
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    with pytest.raises(DeviceError, match=r'forked from one that uses the GPU.*get_context\("spawn"\)'):
        run(gpu)
    assert "cuCtxPushCurrent" not in cuda.calls


# --- what is missing --------------------------------------------------------------------------------------------------
def test_no_gpu(start, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UnavailableError, match=r"^no NVIDIA GPU found \(cuInit: CUDA_ERROR_NO_DEVICE\)$"):
        start(fail={0: Result.CUDA_ERROR_NO_DEVICE})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UnavailableError, match=r"CUDA_ERROR_NO_DEVICE, CUDA_VISIBLE_DEVICES=''\)$"):
        start(fail={0: Result.CUDA_ERROR_NO_DEVICE})
    with pytest.raises(
        UnavailableError, match=r"^no NVIDIA GPU found \(cuInit: CUDA_SUCCESS, CUDA_VISIBLE_DEVICES=''\)$"
    ):
        start(devices=0)


def test_a_driver_that_does_not_start(start):
    with pytest.raises(UnavailableError, match=r"does not start \(cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\)$"):
        start(fail={0: Result.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH})


def test_bindings_that_do_not_find_the_library(start, monkeypatch):
    def cuInit(self, flags):  # noqa: N802
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(FakeCuda, "cuInit", cuInit)
    with pytest.raises(UnavailableError, match=r"^no NVIDIA GPU found$"):
        start()


@pytest.mark.parametrize(("version", "what"), [
    (12080, r'it runs CUDA 12\.8, NVRTC here compiles for 13\..*pip install "numsim\[cuda12\]"'),
    (11040, r"it runs CUDA 11\.4, .*a driver of CUDA 12 or later"),
])  # fmt: skip
def test_a_driver_that_is_too_old(version, what, start):
    with pytest.raises(UnavailableError, match=what):
        start(version=version)
    start(version=13000)
    start(version=14010)  # younger drivers run what is older


@pytest.mark.parametrize(("platform", "name"), [("linux", "libcuda.so.1"), ("win32", "nvcuda.dll"), ("darwin", None)])
def test_whether_there_is_a_driver(platform, name, monkeypatch):
    asked = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", asked.append)
    assert driver.driver_found() == (name is not None) and asked == [name] * (name is not None)
    assert driver.missing() == ("" if name else "no NVIDIA GPU found")

    def not_there(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", not_there)
    assert driver.missing() == "no NVIDIA GPU found"


def test_without_a_driver_nothing_else_is_asked_for(monkeypatch):
    monkeypatch.setattr(driver, "driver_found", lambda: False)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(UnavailableError, match=r"^no NVIDIA GPU found$"):
        driver.device.__wrapped__()


def test_with_a_driver_and_no_bindings_it_says_what_to_install(monkeypatch):
    from numsim.gpu.compiler import compiler

    monkeypatch.setattr(driver, "driver_found", lambda: True)
    monkeypatch.setattr(driver, "compiler", compiler.__wrapped__)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(UnavailableError, match=r'cuda-bindings does not load .*pip install "numsim\[cuda\]"'):
        driver.device.__wrapped__()


# --- the real bindings ------------------------------------------------------------------------------------------------
ASKS = """
import ctypes, json, sys
import numpy as np
from numsim.gpu import driver
from numsim.gpu.ptx import Kernel

class Compiler:
    version = 12, 6
    compile = staticmethod(lambda kernel, architecture: b"\\x7fELF")

driver.compiler = Compiler
said = {}
try:
    gpu = driver.device()
    a = np.arange(64, dtype=np.uint32)
    kernel = Kernel("", "", "scaled")
    said["equal"] = bool((gpu.run(kernel, (2, 1, 1), 32, [a, a * 7 + 1], 64, [-3]) == a - 3 * (a * 7 + 1)).all())
    said["provenance"], said["capability"] = gpu.provenance(), gpu.capability
    try:
        gpu.run(kernel, (2, 1, 1), 32, [a, np.zeros(1 << 20, np.uint32)], 64, [1])
    except driver.DeviceError as error:
        said["memory"] = str(error)
    try:
        gpu.run(kernel._replace(function="other"), (2, 1, 1), 32, [a, a], 64, [1])
    except driver.DeviceError as error:
        said["function"] = str(error)
    library = ctypes.CDLL("libcuda.so.1")
    said |= {name: ctypes.c_int.in_dll(library, name).value for name in ("depth", "allocated", "launched")}
except driver.UnavailableError as error:
    said["missing"] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def asks(tmp_path_factory):
    """What a process says whose NVIDIA driver is ``libcuda.c``."""
    pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    if sys.platform != "linux" or not shutil.which("gcc"):
        pytest.skip("needs Linux and gcc")
    folder = tmp_path_factory.mktemp("driver")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", folder / "libcuda.so.1", HERE / "libcuda.c", "-ldl"]
    subprocess.run(command, check=True)

    def asked(**environment):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), **environment}
        done = subprocess.run([sys.executable, "-c", ASKS], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return asked


def test_the_real_bindings_take_every_argument(asks):
    said = asks()
    assert said["equal"] and said["capability"] == [8, 9] and said["provenance"]["device"] == "NVIDIA Fake 1"
    assert said["memory"].startswith("cuMemAlloc on the GPU: CUDA_ERROR_OUT_OF_MEMORY")
    assert said["function"] == "cuModuleGetFunction on the GPU: CUDA_ERROR_NOT_FOUND"
    assert (said["depth"], said["allocated"], said["launched"]) == (0, 0, 2)


@pytest.mark.parametrize(("code", "what"), [
    (100, "no NVIDIA GPU found (cuInit: CUDA_ERROR_NO_DEVICE)"),
    (803, "NVIDIA's driver does not start (cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"),
    (98765, "cuInit on the GPU: 98765 is not a valid CUresult"),
])  # fmt: skip
def test_the_real_bindings_when_the_driver_does_not_start(code, what, asks, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert asks(FAKE_INIT=str(code)) == {"missing": what}
