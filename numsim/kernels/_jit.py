"""How kernels are compiled: one decorator, a cache on disk, and the machine instructions that numba has no name for.

Nothing compiles at import: a kernel compiles, or is read from the cache, when it is first called. The cache is
numsim's own, so no setting of numba changes for anybody else's code.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from numba.core import types
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.extending import intrinsic

from numsim.files import cache_home

_announced = False


def jit(function: Any) -> Any:
    """Compile for whole arrays: without the GIL, floating point as written, kept on disk."""
    return _compiled(function)


def part(function: Any) -> Any:
    """Compile for use within the loops of other kernels: a call that is left there keeps a loop from vectorising."""
    return _compiled(function, forceinline=True)


def _compiled(function: Any, **options: Any) -> Any:
    kernel = numba.njit(nogil=True, fastmath=False, error_model="numpy", **options)(function)
    if hasattr(kernel, "_cache"):
        kernel._cache = _DiskCache(function)
    return kernel


def self_test() -> str | None:
    """The reason why kernels cannot run here, or None."""
    return "NUMBA_DISABLE_JIT is set" if numba.config.DISABLE_JIT else None


# --- the cache --------------------------------------------------------------------------------------------------------
def _digest_sources() -> bytes:
    """A digest of the kernels' source files, or nothing where there are none to read."""
    try:
        sources = sorted(Path(__file__).parent.glob("*.py"))
        parts = [hashlib.sha256(f"{path.name}\n".encode() + path.read_bytes()).digest() for path in sources]
    except OSError:
        return b""
    return b"".join(parts)


# Now, while Python reads them: what is compiled from them must not be named after an edit that comes later.
_SOURCES = _digest_sources()


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """The folder of this very set of kernels, compiler and CPU; None where there can be none.

    Its name is a digest of everything that the machine code depends on, so nothing in it is ever out of date: numba
    alone would not notice an edit in a helper in another file.
    """
    try:
        versions = (numba.__version__, llvmlite.__version__, np.__version__, platform.python_version(), sys.platform)
        parts = [_SOURCES, *(str(v).encode() for v in (*versions, llvmlite.binding.get_host_cpu_name()))]
        digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
        return cache_home() / f"kernels-{digest[:20]}" if _SOURCES else None
    except (OSError, RuntimeError):  # no home
        return None


class _DiskCache:
    """What numba asks of a cache (load, save), with one file for each kernel and signature.

    A file is a digest and what it digests, written under a temporary name and renamed: a reader sees all of it or
    none, however many processes write. Whatever goes wrong with the disk, the kernel is compiled in memory.
    """

    cache_path = None

    def __init__(self, function: Any) -> None:
        self.function = function
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    def load_overload(self, signature: Any, target: Any) -> Any:
        target.refresh()
        path = self._path(signature, target.codegen())
        try:
            data = path.read_bytes() if path else b""
            if data[:32] == hashlib.sha256(data[32:]).digest():
                return CompileResult._rebuild(target, *pickle.loads(data[32:]))
        except Exception:  # not there, not readable, or from a numba that packs otherwise: compile
            pass
        _announce(path)
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        path = self._path(signature, result.codegen)
        if path is None or result.library.has_dynamic_globals:
            return
        try:
            data = dumps(result._reduce())
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="writing-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(data).digest() + data)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except Exception:
            pass

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        if (folder := cache_folder()) is None:
            return None
        cells = [cell.cell_contents for cell in self.function.__closure__ or ()]
        constants = [repr(c) for c in cells if isinstance(c, (int, float, np.generic, type))]
        digest = hashlib.sha256(repr((signature, constants, codegen.magic_tuple())).encode()).hexdigest()
        return folder / f"{self.name}-{digest[:20]}"

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


def _announce(path: Path | None) -> None:
    """Say, once in a process, why the first call takes so long; make the folder for what is going to be compiled."""
    global _announced
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path.parent).close()
        kept = path is not None
    except OSError:
        kept = False
    if not _announced and sys.stderr is not None:
        _announced = True
        when = "once after installation" if kept else "in every process, for no cache folder can be written"
        sys.stderr.write(f"numsim: compiling kernels, {when}: about 3 s\n")


# --- instructions -----------------------------------------------------------------------------------------------------
_OTHER: dict[Any, Any] = {
    types.uint32: types.float32,
    types.uint64: types.float64,
    types.float32: types.uint32,
    types.float64: types.uint64,
}


def _bitcast(of: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return _OTHER[of](of), generate


@intrinsic
def as_float(context: Any, bits: Any) -> Any:
    """The float32 or float64 that has these bits."""
    return _bitcast(bits)


@intrinsic
def as_bits(context: Any, x: Any) -> Any:
    """The bits of a float32 or float64."""
    return _bitcast(x)


@intrinsic
def left(context: Any, a: Any, count: Any) -> Any:
    """a << count, in a's own width, for count below it. (numba's own shift widens, and two lanes become one.)"""
    return a(a, a), lambda _, builder, signature, args: builder.shl(*args)


@intrinsic
def right(context: Any, a: Any, count: Any) -> Any:
    """a >> count, in a's own width, for count below it."""
    return a(a, a), lambda _, builder, signature, args: (builder.ashr if a.signed else builder.lshr)(*args)


@intrinsic
def fma64(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""

    of = types.float64(types.float64, types.float64, types.float64)
    return of, lambda _, builder, signature, args: builder.fma(*args)
