"""One NVIDIA GPU through the driver: memory, modules, launches; every return code is looked at."""

from __future__ import annotations

import ctypes.util
import os
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


class DeviceError(UnavailableError):
    """A GPU that failed: its driver says so, or its results cannot be trusted."""


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
        self.compiler: Compiler = compiler()
        from cuda.bindings import driver

        self._cu = cu = driver
        try:
            (code,) = cu.cuInit(0)
        except (RuntimeError, OSError):  # the bindings load the library at the first call
            raise UnavailableError("no NVIDIA driver found") from None
        if int(code) or self._call(cu.cuDeviceGetCount)[0] < 1:
            raise UnavailableError(f"no NVIDIA GPU found (cuInit: {code.name})")
        (version,) = self._call(cu.cuDriverGetVersion)
        self.cuda = f"{version // 1000}.{version % 1000 // 10}"
        if version // 1000 < self.compiler.version[0]:
            raise UnavailableError(
                f"the driver is too old: it runs CUDA {self.cuda}, NVRTC here compiles for {self.compiler.version[0]}. "
                f'Example: python -m pip install "numsim[cuda{version // 1000}]"'
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

    def _call(self, function: Any, *arguments: Any) -> list[Any]:
        code, *values = function(*arguments)
        if int(code):
            again = "" if code.name.endswith("OUT_OF_MEMORY") else "; this process can use the GPU no more"
            raise DeviceError(f"{function.__name__} on the GPU: {code.name}{again}")
        return list(values)

    def provenance(self) -> dict[str, Any]:
        module = Path("/proc/driver/nvidia/version")
        text = module.read_text(errors="replace").splitlines()[0] if module.exists() else "unknown"
        return {
            "device": self.name,
            "compute_capability": f"{self.capability[0]}.{self.capability[1]}",
            "driver": " ".join(text.split())[:200],
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
        function = self._function(kernel)
        with self._current(), self._memory([*(x.nbytes for x in operands), 4 * size]) as pointers:
            for pointer, x in zip(pointers, operands, strict=False):
                self._call(cu.cuMemcpyHtoD, pointer, np.ascontiguousarray(x).ctypes.data, x.nbytes)
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
        self._call(self._cu.cuCtxPushCurrent, self._context)
        try:
            yield
        finally:
            self._cu.cuCtxPopCurrent()

    @contextmanager
    def _memory(self, sizes: Sequence[int]) -> Iterator[list[Any]]:
        pointers: list[Any] = []
        try:
            for size in sizes:
                pointers += self._call(self._cu.cuMemAlloc, max(size, 4))
            yield pointers
        finally:
            for pointer in pointers:
                self._cu.cuMemFree(pointer)  # after a failed launch this fails, too

    def _function(self, kernel: Kernel) -> Any:
        if kernel not in self._modules:
            image = np.frombuffer(self.compiler.compile(kernel, target(self.capability)), np.uint8)
            with self._current():
                (module,) = self._call(self._cu.cuModuleLoadData, image.ctypes.data)
                (function,) = self._call(self._cu.cuModuleGetFunction, module, kernel.function.encode())
            self._modules[kernel] = function, module, image
        return self._modules[kernel][0]


@cache
def device() -> Device:
    """The GPU of this process. Raises ``UnavailableError`` with what is missing."""
    if why := missing():
        raise UnavailableError(why)
    return Gpu()


def missing() -> str:
    """Why no GPU can be here, or ""; loads nothing."""
    return "" if driver_found() else "no NVIDIA GPU found"


def driver_found() -> bool:
    """Whether this system has NVIDIA's driver."""
    if sys.platform == "darwin":
        return False
    if sys.platform == "win32":
        return ctypes.util.find_library("nvcuda") is not None
    return os.path.exists("/dev/nvidiactl") or (os.path.exists("/dev/dxg") and bool(ctypes.util.find_library("cuda")))
