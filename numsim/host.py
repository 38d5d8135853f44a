"""What can be said about this computer without naming its owner: CPU model, versions, flush-to-zero."""

from __future__ import annotations

import platform
import re
import struct
import subprocess
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from numsim.errors import UnavailableError

_LEAST_NORMAL = sys.float_info.min  # names, not literals: the compiler would multiply literals itself
_LEAST = struct.unpack("<d", b"\1" + bytes(7))[0]  # 5e-324, which Python reads as 0 on a CPU that flushes
_ONE, _QUARTER, _THREE_QUARTERS = 1.0, 2.0**-54, 1.5 * 2.0**-53  # the latter as shares of the spacing above 1


def flushes_subnormals() -> bool:
    """Whether this thread's CPU takes subnormal operands or results for zero: any library can switch that on.

    >>> flushes_subnormals()
    False
    """
    return _LEAST_NORMAL * 0.5 == 0.0 or _LEAST * 2.0**100 == 0.0


def rounds_to_nearest() -> bool:
    """Whether this thread's CPU rounds to nearest: C code can choose another direction and leave it so.

    >>> rounds_to_nearest()
    True
    """
    return _ONE + _QUARTER == 1.0 and _ONE + _THREE_QUARTERS > 1.0 and -_ONE - _THREE_QUARTERS < -1.0


def is_ieee() -> bool:
    """Whether this thread's CPU computes as IEEE 754 says by default: subnormals kept, rounding to nearest.

    >>> is_ieee()
    True
    """
    return rounds_to_nearest() and not flushes_subnormals()


def check_ieee() -> None:
    """Raise ``UnavailableError`` unless ``is_ieee()``: for what leans on the CPU's own FP32 or FP64 arithmetic."""
    if not is_ieee():
        raise UnavailableError(
            "a library has switched this thread's CPU to flush-to-zero, or to another rounding: FP32 and FP64 results "
            "would not be IEEE 754's. Switch that off, or run numsim in a fresh process. "
            "Example: torch.set_flush_denormal(False)"
        )


@lru_cache
def version(package: str) -> str | None:
    """The version of an installed package, without importing it; None where it is not installed.

    >>> version("numpy") is not None, version("no such package")
    (True, None)
    """
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return None


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The CPU's name as its maker wrote it, as far as this system tells."""
    try:
        name = _cpu_name()
    except (OSError, subprocess.SubprocessError, ImportError, ValueError):
        name = ""
    name = re.sub(r"[^ -~]+|\s+", " ", name or platform.processor() or platform.machine()).strip()
    return name[:100] or "unknown"


def _cpu_name() -> str:
    if sys.platform == "win32":
        import winreg

        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0") as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.lower().startswith("model name"):
            return line.partition(":")[2]
    return ""


def provenance(machine: str, *packages: str) -> dict[str, str | bool]:
    """The part of a provenance that every machine on this CPU shares."""
    versions = {name: version(name) or "unknown" for name in packages}
    return {
        "machine": machine,
        **versions,
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "flush_to_zero": flushes_subnormals(),
        "rounds_to_nearest": rounds_to_nearest(),
    }
