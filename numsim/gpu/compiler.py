"""NVRTC, NVIDIA's run-time compiler, to machine code: that checks the inline PTX, too. Results are kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
from functools import cache
from typing import Any

from numsim import files
from numsim.errors import UnavailableError
from numsim.gpu.ptx import Kernel

INSTALL = 'python -m pip install "numsim[cuda]", or for drivers of CUDA 12 "numsim[cuda12]"'


class Compiler:
    """NVRTC through cuda-bindings.

    Raises ``UnavailableError`` where one of them is missing.
    """

    def __init__(self) -> None:
        try:
            from cuda.bindings import nvrtc
        except ImportError as error:
            raise UnavailableError(f"cuda-bindings does not load ({_line(error)}): {INSTALL}") from None
        self._nvrtc = nvrtc
        try:
            self.version: tuple[int, int] = tuple(self._call(nvrtc.nvrtcVersion))
        except UnavailableError:
            raise
        except (RuntimeError, OSError):  # the bindings load the library at the first call
            raise UnavailableError(f"NVRTC, NVIDIA's run-time compiler, is missing: {INSTALL}") from None

    def _call(self, function: Any, *arguments: Any) -> list[Any]:
        code, *values = function(*arguments)
        if int(code):
            name = self._nvrtc.nvrtcGetErrorString(code)[1].decode()
            raise UnavailableError(f"NVRTC: {function.__name__}: {name}")
        return list(values)

    def compile(self, kernel: Kernel, architecture: str, *, ptx: bool = False) -> bytes:
        """Machine code of a kernel for "sm_90a" and the like, or its PTX.

        Raises ``UnavailableError`` with the compiler's first error: this NVRTC does not know the architecture, say.
        """
        options = [f"--gpu-architecture={architecture}".encode(), b"--fmad=false"]
        parts = [kernel.source.encode(), kernel.header.encode(), *options, repr((self.version, ptx)).encode()]
        key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
        if (kept := _load(key)) is not None:
            return kept
        image = self._compiled(kernel, architecture, options, "PTX" if ptx else "CUBIN")
        _keep(key, image)
        return image

    def _compiled(self, kernel: Kernel, architecture: str, options: list[bytes], kind: str) -> bytes:
        n = self._nvrtc
        headers = [kernel.header.encode()], [b"instruction.h"]
        (program,) = self._call(n.nvrtcCreateProgram, kernel.source.encode(), b"kernel.cu", 1, *headers)
        try:
            (code,) = n.nvrtcCompileProgram(program, len(options), options)
            if int(code):
                log = self._output(program, "ProgramLog").decode(errors="replace").strip("\0\n ")
                first = next((line for line in log.splitlines() if "error" in line), log or code.name)
                cure = f". Another version may: {INSTALL}" if "--gpu-architecture" in first or "ptxas" in first else ""
                version = f"{self.version[0]}.{self.version[1]}"
                raise UnavailableError(f"NVRTC {version} does not compile for {architecture}: {_line(first)}{cure}")
            return self._output(program, kind)
        finally:
            self._call(n.nvrtcDestroyProgram, program)

    def _output(self, program: Any, kind: str) -> bytes:
        (size,) = self._call(getattr(self._nvrtc, f"nvrtcGet{kind}Size"), program)
        buffer = bytes(bytearray(size))  # a copy of its own: the call writes into it
        self._call(getattr(self._nvrtc, f"nvrtcGet{kind}"), program, buffer)
        return buffer


@cache
def compiler() -> Compiler:
    """The compiler of this process."""
    return Compiler()


def _load(key: str) -> bytes | None:
    """What was compiled before: a file is a digest and what it digests, so half a file is none."""
    with contextlib.suppress(OSError, RuntimeError):
        data = (files.cache_home() / "cuda" / f"{key}.bin").read_bytes()
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            return data[32:]
    return None


def _keep(key: str, image: bytes) -> None:
    with contextlib.suppress(Exception):  # nothing writable: it is compiled again next time
        files.write_atomic(files.make_folder(files.cache_home() / "cuda") / f"{key}.bin",
                           hashlib.sha256(image).digest() + image)  # fmt: skip


def _line(error: BaseException | str) -> str:
    return " ".join(str(error).split())[:120]
