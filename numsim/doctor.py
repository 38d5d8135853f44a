"""What works here and why not: versions, CPU, flush-to-zero, kernels, machines. Never fails; names no user, no home."""

from __future__ import annotations

import getpass
import importlib.util
import locale
import os
import platform
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from numsim import host
from numsim._version import __version__

_PACKAGES = ("numpy", "numba", "llvmlite", "ml_dtypes", "matplotlib", "rich", "torch", "cuda-bindings")


def report() -> dict[str, dict[str, str]]:
    """Facts by section, as text; whatever cannot be found out says why.

    Rules: reads only; loads numba where it is installed, and what the machines load to say whether they can run.
    Cost: a second or two.

    >>> list(report())
    ['versions', 'computer', 'terminal', 'kernels', 'machines']
    """
    sections: dict[str, Callable[[], dict[str, str]]] = {
        "versions": _versions, "computer": _computer, "terminal": _terminal, "kernels": _kernels, "machines": _machines,
    }  # fmt: skip
    result = {}
    for name, ask in sections.items():
        try:
            facts = ask()
        except Exception as error:  # a doctor must not fall ill
            facts = {"unknown": f"{type(error).__name__}: {error}"}
        result[name] = {key: scrub(value) for key, value in facts.items()}
    return result


def scrub(text: str) -> str:
    """Text without the reader's home folder, user name and computer name; one line, and not endless.

    >>> scrub(str(Path.home() / "x"))
    '~/x'
    """
    text = " ".join(str(text).split())[:300]
    homes = {str(Path(p)) for p in (os.path.expanduser("~"), os.environ.get("USERPROFILE", "")) if p not in ("", "~")}
    for home in sorted(homes, key=len, reverse=True):
        if len(home) > 1:
            text = re.sub(re.escape(home) + r"(?![\w-])", "~", text)
    for label, ask in {"<user>": getpass.getuser, "<computer>": platform.node}.items():
        try:
            name = ask()
        except Exception:  # nobody to hide
            continue
        # a name like "numpy" would spoil the report; as part of a path it is gone with the home folder
        if len(name) > 2 and name.lower() not in ("root", "user", "localhost", "numsim", *_PACKAGES):
            text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", label, text)
    return text.replace("~\\", "~/")


def _try(ask: Callable[[], Any]) -> str:
    try:
        return str(ask())
    except Exception as error:
        return f"unknown ({type(error).__name__})"


def _versions() -> dict[str, str]:
    found = {"numsim": __version__, "python": f"{platform.python_version()} ({platform.python_implementation()})"}
    for name in _PACKAGES:  # torch is asked for its version without loading it
        found[name] = _try(partial(_installed, name))
    return found


def _installed(name: str) -> str:
    return host.version(name) or "not installed"


def _computer() -> dict[str, str]:
    return {
        "system": _try(lambda: f"{platform.system()} {platform.release()} {platform.machine()}"),
        "cpu": _try(host.cpu_model),
        "cores": _try(_cores),
        "byte order": sys.byteorder,
        "subnormals": _try(_subnormals),
    }


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return f"{os.cpu_count()}" + (f", {usable} usable" if usable not in (None, os.cpu_count()) else "")


def _subnormals() -> str:
    kept = "FLUSHED TO ZERO" if host.flushes_subnormals() else "kept (no flush-to-zero)"
    return kept if host.rounds_to_nearest() else f"{kept}; and NOT ROUNDING TO NEAREST"


def _terminal() -> dict[str, str]:
    out = sys.stdout
    terminal = bool(out is not None and out.isatty())
    encoding = getattr(out, "encoding", None) or "unknown encoding"
    return {
        "stdout": f"{encoding}, {'a terminal' if terminal else 'not a terminal'}",
        "columns": _try(lambda: os.get_terminal_size().columns if terminal else os.environ.get("COLUMNS", "not set")),
        "locale": _try(locale.getpreferredencoding),
        "colours": "off: NO_COLOR is set" if os.environ.get("NO_COLOR") else "on terminals",
    }


def _kernels() -> dict[str, str]:
    from numsim import kernels

    why = kernels.why_not()
    found = {"compiled": "yes" if why is None else f"no: {why}; the reference does all, bit-equal and slower"}
    if importlib.util.find_spec("numba") and why is None:
        from numsim.kernels import _jit

        def cache() -> str:
            folder = _jit.cache_folder()
            if folder is None:
                return "none: every process compiles anew"
            kept = len(list(folder.glob("*"))) if folder.is_dir() else 0
            parent = next(p for p in (folder, *folder.parents) if p.exists())
            writable = "writable" if os.access(parent, os.W_OK) else "NOT writable: every process compiles anew"
            return f"{folder} ({kept} files, {writable})"

        def others() -> str:
            folder = _jit.cache_folder()
            found = [] if folder is None else [f for f in folder.parent.glob("kernels-*") if f.is_dir() and f != folder]
            if folder is None or not found:
                return "none"
            told = "1 folder" if len(found) == 1 else f"{len(found)} folders"
            return f"{told} in {folder.parent} for other versions of numsim, numba or numpy; may be deleted"

        found["cache"] = _try(cache)
        found["old caches"] = _try(others)
    return found


def _machines() -> dict[str, str]:
    try:
        from numsim.machines import list_machines
    except ImportError as error:
        return {"unknown": str(error)}
    found = {}
    for machine in list_machines():

        def answer(machine: Any = machine) -> str:
            can = machine.can()
            return ", ".join(filter(None, (f"yes: {machine.title}", can.reason))) if can else f"no: {can.reason}"

        found[str(machine.name)] = _try(answer)
    return found
