"""What a GPU's tensor cores answer, recorded: one instruction at a time, from inline PTX, bit for bit.

    python tests/records/tensor_core_probe.py [--out FILE.npz] [--seed N] [--only TEXT] [--force]
    python tests/records/tensor_core_probe.py compare FILE.npz [--chip NAME]

The first needs an NVIDIA GPU, NumPy, cuda-bindings and NVRTC, and of this project ``kernels.py``, ``fragments.py`` and
``probes.py`` only; an H200 should take less than two minutes. What a GPU does not have is listed as skipped. The second
needs numsim: it holds a record against the chip's models. Exit codes: 0 fine, 1 something differs or failed, 2 wrong
use, 4 cannot run here. README.md describes the file.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING or __package__:
    from tests.records.fragments import Codes, Instruction, pack, unpack
    from tests.records.kernels import INSTRUCTIONS, Capability, missing, source, target
    from tests.records.probes import Sets, expected
else:
    from fragments import Codes, Instruction, pack, unpack
    from kernels import INSTRUCTIONS, Capability, missing, source, target
    from probes import Sets, expected

Words = npt.NDArray[np.uint32]
LAYOUT = 1  # of the file
POISON = (0xA5A5A5A5, 0x5A5A5A5A)  # fills d before the first and the second launch


class ProbeError(Exception):
    """A part that cannot be measured, and why."""


class CannotRun(Exception):  # noqa: N818
    """What is missing here."""


# --- the GPU ----------------------------------------------------------------------------------------------------------
class Device(Protocol):
    """Runs one instruction on packed words."""

    capability: Capability

    def provenance(self) -> dict[str, Any]: ...

    def run(self, i: Instruction, operands: Sequence[Words], poison: int) -> Words: ...


class Compiler:
    """NVRTC, to machine code: that checks the inline PTX, too."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import nvrtc  # type: ignore[import-not-found,unused-ignore]

            self._nvrtc = nvrtc
            self.version = "{}.{}".format(*self._call(nvrtc.nvrtcVersion, what="NVRTC"))
        except ImportError:
            raise CannotRun("cuda-bindings is missing (pip install cuda-bindings nvidia-cuda-nvrtc)") from None
        except RuntimeError:  # the bindings load the library at the first call
            raise CannotRun("NVRTC is missing (pip install nvidia-cuda-nvrtc)") from None

    def _call(self, function: Any, *arguments: Any, what: str) -> Any:
        code, *values = function(*arguments)
        if int(code):
            raise ProbeError(f"{what}: {self._nvrtc.nvrtcGetErrorString(code)[1].decode()}")
        return values

    def compile(self, text: str, architecture: str, kind: str = "CUBIN") -> bytes:
        """Machine code ("CUBIN") or "PTX" of a kernel. Raises ``ProbeError`` with the compiler's first words."""
        n = self._nvrtc
        (program,) = self._call(n.nvrtcCreateProgram, text.encode(), b"probe.cu", 0, [], [], what="NVRTC")
        try:
            (code,) = n.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={architecture}".encode()])
            if int(code):
                log = self._output(program, "ProgramLog").decode(errors="replace").strip("\0\n ")
                raise ProbeError(f"NVRTC {self.version} for {architecture}: {log.splitlines()[0] if log else code}")
            return self._output(program, kind)
        finally:
            self._call(n.nvrtcDestroyProgram, program, what="NVRTC")

    def _output(self, program: Any, kind: str) -> bytes:
        (size,) = self._call(getattr(self._nvrtc, f"nvrtcGet{kind}Size"), program, what=kind)
        buffer = bytes(bytearray(size))  # a copy of its own: the call writes into it
        self._call(getattr(self._nvrtc, f"nvrtcGet{kind}"), program, buffer, what=kind)
        return buffer


class Gpu:
    """One NVIDIA GPU through the driver."""

    def __init__(self, number: int = 0) -> None:
        self.compiler = Compiler()
        from cuda.bindings import driver

        self._cu = cu = driver
        try:
            (code,) = cu.cuInit(0)
        except RuntimeError:
            raise CannotRun("no NVIDIA driver found") from None
        if int(code) or self._call(cu.cuDeviceGetCount)[0] <= number:
            raise CannotRun(f"no NVIDIA GPU found (cuInit: {code.name})")
        (self._device,) = self._call(cu.cuDeviceGet, number)
        (context,) = self._call(cu.cuDevicePrimaryCtxRetain, self._device)
        self._call(cu.cuCtxSetCurrent, context)
        (self._stream,) = self._call(cu.cuStreamCreate, 0)
        attribute = cu.CUdevice_attribute
        self.capability: Capability = tuple(
            self._call(cu.cuDeviceGetAttribute, a, self._device)[0]
            for a in (attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                      attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        )  # fmt: skip
        self._functions: dict[Instruction, Any] = {}

    def _call(self, function: Any, *arguments: Any) -> Any:
        code, *values = function(*arguments)
        if int(code):
            raise ProbeError(f"{function.__name__}: {code.name}")
        return values

    def provenance(self) -> dict[str, Any]:
        (name,) = self._call(self._cu.cuDeviceGetName, 128, self._device)
        (version,) = self._call(self._cu.cuDriverGetVersion)
        module = Path("/proc/driver/nvidia/version")
        import cuda.bindings  # type: ignore[import-not-found,unused-ignore]

        return {
            "device": name.split(b"\0")[0].decode(),
            "cuda_of_driver": f"{version // 1000}.{version % 1000 // 10}",
            "driver": module.read_text().splitlines()[0] if module.exists() else "unknown",
            "nvrtc": self.compiler.version,
            "cuda_bindings": cuda.bindings.__version__,
        }

    def run(self, i: Instruction, operands: Sequence[Words], poison: int) -> Words:
        """Words of d (tiles, words) from words of a, b and c."""
        cu, tiles = self._cu, len(operands[0])
        d = np.zeros((tiles, i.words("d")), np.uint32)
        pointers: list[Any] = []
        try:
            for x in (*operands, d):
                pointers += self._call(cu.cuMemAlloc, x.nbytes)
            for pointer, x in zip(pointers, operands, strict=False):
                self._call(cu.cuMemcpyHtoD, pointer, x.ctypes.data, x.nbytes)
            self._call(cu.cuMemsetD32, pointers[-1], poison, d.size)
            values = [np.array([int(p)], np.uint64) for p in pointers]
            parameters = np.array([v.ctypes.data for v in values], np.uint64)
            self._call(cu.cuCtxSynchronize)
            self._call(cu.cuLaunchKernel, self._function(i), tiles, 1, 1, i.threads, 1, 1, 0, self._stream,
                       parameters.ctypes.data, 0)  # fmt: skip
            self._call(cu.cuStreamSynchronize, self._stream)
            self._call(cu.cuMemcpyDtoH, d.ctypes.data, pointers[-1], d.nbytes)
        finally:
            for pointer in pointers:
                cu.cuMemFree(pointer)  # after a failed launch this fails, too
        return d

    def _function(self, i: Instruction) -> Any:
        if i not in self._functions:
            image = np.frombuffer(self.compiler.compile(source(i), target(self.capability)), np.uint8)
            (module,) = self._call(self._cu.cuModuleLoadData, image.ctypes.data)
            self._functions[i] = (*self._call(self._cu.cuModuleGetFunction, module, b"probe"), module, image)
        return self._functions[i][0]


# --- measuring --------------------------------------------------------------------------------------------------------
def measure(device: Device, i: Instruction, seed: int) -> Iterator[tuple[str, tuple[Codes, Codes, Codes, Codes]]]:
    """(set, codes of a, b, c and d) of every probe set. Raises ``ProbeError`` where the answers cannot be trusted."""
    for name, codes in Sets(i, seed):
        words = [pack(x, i, operand) for x, operand in zip(codes, "abc", strict=True)]
        first, second = (device.run(i, words, poison) for poison in POISON)
        if not np.array_equal(first, second):
            wrong = int((first != second).sum())
            raise ProbeError(f"{name}: {wrong} words of {first.size} are not written, or not the same twice")
        d = unpack(first, i, "d")
        if name == "integers" and not np.array_equal(d, expected(codes, i)):
            wrong = int((d != expected(codes, i)).sum())
            raise ProbeError(f"{wrong} of {d.size} sums of small integers are wrong: elements are misplaced")
        yield name, (*codes, d)


def record(device: Device, seed: int = 1, only: str = "", say: Any = print) -> dict[str, npt.NDArray[Any]]:
    """All arrays of a record: "record", JSON text as bytes, and "s0000.a" and so on, the codes of each probe set."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    sets: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for i in (i for i in INSTRUCTIONS if only in i.name):
        if reason := missing(i, device.capability):
            skipped[i.name] = reason
            continue
        try:
            results = list(measure(device, i, seed))
        except ProbeError as error:
            failed[i.name] = str(error)
            say(_wrapped(f"{i.name} FAILED: {error}"))
            continue
        for name, codes in results:
            prefix = f"s{len(sets):04}"
            arrays |= {f"{prefix}.{x}": y for x, y in zip("abcd", codes, strict=True)}
            digests = {x: digest(y) for x, y in zip("abcd", codes, strict=True)}
            sets.append({"instruction": i.name, "set": name, "sha256": digests})
        say(f"{i.name:<36} {sum(codes[3].size for _, codes in results):7} outputs")
    kernels = "\0".join(source(i) for i in INSTRUCTIONS)
    about = {
        "tensor_core_probe": LAYOUT, **device.provenance(), "compute_capability": list(device.capability),
        "target": target(device.capability), "python": platform.python_version(), "numpy": np.__version__,
        "kernels_sha256": hashlib.sha256(kernels.encode()).hexdigest(), "seed": seed,
        "sets": sets, "skipped": skipped, "failed": failed,
    }  # fmt: skip
    arrays["record"] = np.frombuffer(json.dumps(about, sort_keys=True).encode(), np.uint8)
    return arrays


def digest(codes: Codes) -> str:
    """SHA-256 of the codes' little-endian bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(codes, codes.dtype.newbyteorder("<")).tobytes()).hexdigest()


def write(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Whole or not at all."""
    temporary = path.with_name(path.name + f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # of all keywords
    os.replace(temporary, path)


# --- comparing --------------------------------------------------------------------------------------------------------
class Row(NamedTuple):
    """One probe set held against a model: how many outputs, how many differ, the first one that does."""

    instruction: str
    set: str
    outputs: int
    different: int
    first: str = ""


def read(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """(what the record says of itself, its arrays). Raises ``ValueError`` for what is no record or was changed."""
    from numsim import files

    arrays = files.parse_npz(files.read_bytes(path), path.name)
    if "record" not in arrays:
        raise ValueError("it has no member record.npy")
    about: dict[str, Any] = files.parse_json(arrays["record"].tobytes(), path.name)
    if about["tensor_core_probe"] != LAYOUT:
        raise ValueError(f"it has layout {about['tensor_core_probe']}; this script reads layout {LAYOUT}")
    for n, entry in enumerate(about["sets"]):
        for x, stated in entry["sha256"].items():
            if digest(arrays[f"s{n:04}.{x}"]) != stated:
                raise ValueError(f"{x} of set {n} has not the digest that the record states: it was changed")
    return about, arrays


def chip_of(device: str) -> str:
    """numsim's name of a device, or "": "NVIDIA A100-SXM4-40GB" is a100."""
    from numsim.tensorcore import list_chips

    words = re.split(r"[\s_-]+", re.sub(r"nvidia|geforce|tesla", "", device.lower()).strip())
    names = ["".join(words[:n]) for n in (1, 2, 3)]  # "RTX 4090" is one name
    return next((chip for chip in list_chips() if chip in names), "")


def compare(
    about: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], model_of: Callable[[str], Any]
) -> Iterator[Row]:
    """Every probe set against numsim's model of its instruction."""
    from numsim.tensorcore.products import chained

    for n, entry in enumerate(about["sets"]):
        a, b, c, d = (arrays[f"s{n:04}.{x}"] for x in "abcd")
        i = Instruction.parse(entry["instruction"])
        # wmma has no record of its own: it becomes steps of K = 4 (Khattak and Mikaitis, arXiv:2512.07004)
        name = "mma.m16n8k4.f32.tf32.tf32.f32" if i.family == "wmma" else i.name
        wanted = chained(a[:, :, None, :], b[:, None, :, :], c, model_of(name), None, None)
        wrong = np.argwhere(wanted != d)
        first = ""
        if len(wrong):
            t, row, column = at = tuple(wrong[0])
            first = (f"a {_hex(a[t, row])} b {_hex(b[t, column])} c {_hex(c[at])} "
                     f"device {_hex(d[at])} model {_hex(wanted[at])}")  # fmt: skip
        yield Row(entry["instruction"], entry["set"], d.size, len(wrong), first)


def _hex(codes: Any) -> str:
    codes = np.atleast_1d(codes)
    return "[" + " ".join(f"{int(x):0{2 * codes.itemsize}x}" for x in codes) + "]"


# --- command line -----------------------------------------------------------------------------------------------------
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tensor_core_probe.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write the record; default: named after the device")
    parser.add_argument("--seed", type=int, default=1, help="of the operands; default 1")
    parser.add_argument("--only", default="", metavar="TEXT", help="instructions whose names contain this")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    commands = parser.add_subparsers(dest="command", metavar="compare")
    comparing = commands.add_parser("compare", help="hold a record against numsim's model of the chip")
    comparing.add_argument("file", type=Path)
    comparing.add_argument("--chip", help="as numsim chips names it; default: from the record")
    chosen = parser.parse_args(arguments)
    if chosen.command == "compare":
        return _compare(chosen.file, chosen.chip)
    if chosen.seed < 0 or not any(chosen.only in i.name for i in INSTRUCTIONS):
        parser.error(f"--seed {chosen.seed} --only {chosen.only!r}: a seed is 0 or more, and the names are "
                     f"{INSTRUCTIONS[3].name} and so on. Example: --only wgmma")  # fmt: skip
    if chosen.out and chosen.out.exists() and not chosen.force:
        parser.error(f"{chosen.out} exists: --force replaces it")
    try:
        device = Gpu()
    except (CannotRun, ProbeError) as error:
        print(f"cannot run here: {error}", file=sys.stderr)
        return 4
    return _record(device, chosen.out, chosen.seed, chosen.only)


def _record(device: Device, out: Path | None, seed: int, only: str) -> int:
    start = time.monotonic()
    arrays = record(device, seed, only)
    about = json.loads(arrays["record"].tobytes())
    if out is None:
        name = re.sub(r"[^a-z0-9]+", "-", about["device"].lower()).strip("-")
        out = Path(f"tensor-core-{name}-{time.strftime('%Y%m%d-%H%M%S')}.npz")
    write(out, arrays)
    for reason in dict.fromkeys(about["skipped"].values()):
        print(f"skipped: {sum(r == reason for r in about['skipped'].values())} instructions, {reason}")
    print(f"{out}: {len(about['sets'])} probe sets of {about['device']} in {time.monotonic() - start:.0f} s")
    return 1 if about["failed"] or not about["sets"] else 0


def _compare(path: Path, chip: str | None) -> int:
    try:
        about, arrays = read(path)
        chip = chip or chip_of(about["device"])
        if not chip:
            raise ValueError(f"numsim has no model of {about['device']!r}. Example: --chip h200")
        from numsim.tensorcore import get_model

        rows = list(compare(about, arrays, lambda name: get_model(chip, name)))
    except ImportError as error:
        print(f"cannot run here: {error}", file=sys.stderr)
        return 4
    except KeyError as error:
        print(f"{path}: it has no entry {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError, TypeError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    print(f"{about['device']} against numsim's {chip}: outputs that differ, of all")
    for instruction in dict.fromkeys(row.instruction for row in rows):
        own = [row for row in rows if row.instruction == instruction]
        print(f"{instruction:<36} {sum(r.different for r in own):7} of {sum(r.outputs for r in own)}")
        for row in own:
            if row.different:
                print(_wrapped(f"  {row.set}: {row.different} of {row.outputs}, first: {row.first}"))
    for name, reason in about["failed"].items():
        print(_wrapped(f"{name} was not measured: {reason}"))
    return 1 if any(row.different for row in rows) else 0


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 79, subsequent_indent="    ")


if __name__ == "__main__":
    sys.exit(main())
