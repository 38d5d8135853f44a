"""One NVIDIA GPU through the driver: memory, modules, launches; every return code is looked at."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from numsim import host
from numsim.errors import UnavailableError
from numsim.gpu.compiler import Compiler, compiler
from numsim.gpu.instructions import Capability, target
from numsim.gpu.ptx import Kernel

Words = npt.NDArray[np.uint32]
Grid = tuple[int, int, int]
_POISON = (0xA5A5A5A5, 0x5A5A5A5A)  # fills the results before the first and the second launch
_LIBRARY = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}  # of the driver; on WSL, too
_LAST = frozenset({214, 700, 702, 710, *range(714, 720), 721})  # errors after which a process cannot use the GPU again


class DeviceError(UnavailableError):
    """A GPU that failed: its driver says so, or its results cannot be trusted."""


# of torch's and cuBLAS's CUDA errors, those after which the GPU goes on working
_HARMLESS = ("out of memory", "ALLOC_FAILED", "NOT_SUPPORTED", "INVALID_VALUE", "no kernel image")


def torch_failed(told: str) -> UnavailableError:
    """What torch's error means for the GPU: something is not to be had here, or the GPU takes no more work.

    >>> torch_failed("CUDA error: an illegal memory access was encountered")
    DeviceError('CUDA error: an illegal memory access was encountered; this process can use the GPU no more')
    """
    broken = "CUDA error" in told and not any(word in told for word in _HARMLESS)
    return DeviceError(f"{told}; this process can use the GPU no more") if broken else UnavailableError(told)


class Device(Protocol):
    """Runs kernels on words. Tests put a GPU made of this CPU in its place."""

    name: str
    capability: Capability

    def __hash__(self) -> int: ...

    def provenance(self) -> dict[str, Any]: ...

    def run(
        self,
        kernel: Kernel,
        grid: Grid,
        threads: int,
        operands: Sequence[Words],
        size: int,
        numbers: Sequence[int] = (),
    ) -> Words: ...


class Gpu:
    """The first GPU that the driver shows (CUDA_VISIBLE_DEVICES chooses).

    Raises ``UnavailableError`` with the first thing that is missing.
    """

    def __init__(self) -> None:
        if why := missing():
            raise UnavailableError(why)
        self.compiler: Compiler = compiler()
        from cuda.bindings import driver

        self._cu = cu = driver
        self._process = os.getpid()
        self._start()
        (version,) = self._call(cu.cuDriverGetVersion)
        self.cuda = f"{version // 1000}.{version % 1000 // 10}"
        if version // 1000 < self.compiler.version[0]:
            # the bindings of CUDA 12 load NVRTC 13 where pip has left it
            other = 'python -m pip uninstall -y nvidia-cuda-nvrtc; python -m pip install "numsim[cuda12]"'
            cure = other if version // 1000 == 12 else "a driver of CUDA 12 or later"
            raise UnavailableError(
                f"the driver is too old: it runs CUDA {self.cuda}, NVRTC here compiles for {self.compiler.version[0]}. "
                f"What helps: {cure}"
            )
        (self._device,) = self._call(cu.cuDeviceGet, 0)
        self.name = self._call(cu.cuDeviceGetName, 128, self._device)[0].split(b"\0")[0].decode()
        a = cu.CUdevice_attribute
        self.capability: Capability = (
            self._call(cu.cuDeviceGetAttribute, a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self._device)[0],
            self._call(cu.cuDeviceGetAttribute, a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self._device)[0],
        )
        (self._context,) = self._call(cu.cuDevicePrimaryCtxRetain, self._device)  # torch's own, too
        self._modules: dict[Kernel, Any] = {}

    def _start(self) -> None:
        try:
            code, *_ = _answer(self._cu.cuInit, 0)
        except DeviceError:
            raise
        except (RuntimeError, OSError):  # the bindings load the library at the first call
            raise UnavailableError("no NVIDIA GPU found") from None
        if code.name not in ("CUDA_SUCCESS", "CUDA_ERROR_NO_DEVICE"):
            raise UnavailableError(f"NVIDIA's driver does not start (cuInit: {code.name})")
        if int(code) or self._call(self._cu.cuDeviceGetCount)[0] < 1:
            chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
            shown = "" if chosen is None else f", CUDA_VISIBLE_DEVICES={chosen!r}"
            raise UnavailableError(f"no NVIDIA GPU found (cuInit: {code.name}{shown})")

    def _call(self, function: Any, *arguments: Any) -> list[Any]:
        code, *values = _answer(function, *arguments)
        _check(function, code)
        return values

    def provenance(self) -> dict[str, Any]:
        return {
            "device": self.name,
            "compute_capability": f"{self.capability[0]}.{self.capability[1]}",
            "driver": _driver(),
            "cuda_of_driver": self.cuda,
            "nvrtc": f"{self.compiler.version[0]}.{self.compiler.version[1]}",
            "cuda_bindings": host.version("cuda-bindings") or "unknown",
        }

    def run(
        self,
        kernel: Kernel,
        grid: Grid,
        threads: int,
        operands: Sequence[Words],
        size: int,
        numbers: Sequence[int] = (),
    ) -> Words:
        """``size`` words that a kernel makes of operands: its arguments are the operands, the result, the numbers.

        It is launched twice, over results filled with different words: a word that is not written, or not the same
        twice, raises ``DeviceError``; so does whatever the driver refuses.
        """
        cu = self._cu
        if os.getpid() != self._process:
            raise DeviceError(
                "this process was forked from one that uses the GPU, which CUDA does not allow. "
                'Example: multiprocessing.get_context("spawn")'
            )
        operands = [np.ascontiguousarray(x, np.uint32) for x in operands]  # and kept until they are copied
        with self._current(), self._memory([*(x.nbytes for x in operands), 4 * size]) as pointers:
            function = self._function(kernel)
            for pointer, x in zip(pointers, operands, strict=False):
                self._call(cu.cuMemcpyHtoD, pointer, x.ctypes.data, x.nbytes)
            values: list[npt.NDArray[Any]] = [np.array([int(p)], np.uint64) for p in pointers]
            values += [np.array([n], np.int32) for n in numbers]
            arguments = np.array([v.ctypes.data for v in values], np.uint64)
            found = []
            for poison in _POISON:
                self._call(cu.cuMemsetD32, pointers[-1], poison, size)
                self._call(cu.cuLaunchKernel, function, *grid, threads, 1, 1, 0, 0, arguments.ctypes.data, 0)
                self._call(cu.cuCtxSynchronize)
                result = np.empty(size, np.uint32)
                self._call(cu.cuMemcpyDtoH, result.ctypes.data, pointers[-1], result.nbytes)
                found.append(result)
        if wrong := int(np.count_nonzero(found[0] != found[1])):
            raise DeviceError(f"{wrong} words of {size} are not written by the kernel, or not the same twice")
        return found[0]

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._call(self._cu.cuCtxPushCurrent, self._context)  # of this thread; whatever else is current comes back
        try:
            yield
        finally:
            code, *_ = _answer(self._cu.cuCtxPopCurrent)
        _check(self._cu.cuCtxPopCurrent, code)

    @contextmanager
    def _memory(self, sizes: Sequence[int]) -> Iterator[list[Any]]:
        pointers: list[Any] = []
        try:
            for size in sizes:
                pointers += self._call(self._cu.cuMemAlloc, max(size, 4))
            yield pointers
        finally:
            codes = [_answer(self._cu.cuMemFree, pointer)[0] for pointer in pointers]
        for code in codes:  # after a failed launch these fail, too: what is raised then is the launch
            _check(self._cu.cuMemFree, code)

    def _function(self, kernel: Kernel) -> Any:
        if kernel not in self._modules:
            image = np.frombuffer(self.compiler.compile(kernel, target(self.capability)), np.uint8)
            (module,) = self._call(self._cu.cuModuleLoadData, image.ctypes.data)
            (function,) = self._call(self._cu.cuModuleGetFunction, module, kernel.function.encode())
            self._modules[kernel] = function, module
        return self._modules[kernel][0]


@cache
def _driver() -> str:
    """Its version alone: what stands around it can name who built it, and where."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:  # Windows, WSL, sandboxes
        return "unknown"
    found = re.search(r"\b\d{3,}(\.\d+)+", text)
    return found[0] if found else "unknown"


def _answer(function: Any, *arguments: Any) -> list[Any]:
    try:
        return list(function(*arguments))
    except (KeyError, ValueError) as error:  # a code that is younger than the bindings
        raise DeviceError(f"{function.__name__} on the GPU: {error}") from None


def _check(function: Any, code: Any) -> None:
    if int(code):
        after = "; this process can use the GPU no more" if int(code) in _LAST else ""
        if code.name == "CUDA_ERROR_OUT_OF_MEMORY":
            after = "; nvidia-smi shows who holds its memory. Fewer outputs at a time need less"
        raise DeviceError(f"{function.__name__} on the GPU: {code.name}{after}")


@cache
def device() -> Device:
    """The GPU of this process. Raises ``UnavailableError`` with what is missing."""
    return Gpu()


def missing() -> str:
    """Why no GPU can be here, or ""; wakes none up."""
    return "" if driver_found() else "no NVIDIA GPU found"


def driver_found() -> bool:
    """Whether NVIDIA's driver is installed. Whether it shows a GPU, ``device`` finds out."""
    if (name := _LIBRARY.get(sys.platform)) is None:
        return False
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
