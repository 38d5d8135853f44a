"""NVIDIA GPUs: this version can only say what is missing."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import sys
from typing import Any

from numsim.errors import UnavailableError
from numsim.machines.question import Answer, Can, Question


class Cuda:
    """An NVIDIA GPU through PyTorch. Not built yet: ``can`` says no, and why."""

    name = "cuda"
    title = "an NVIDIA GPU through PyTorch"

    def can(self, question: Question | None = None) -> Can:
        return Can(False, missing())

    def provenance(self) -> dict[str, Any]:
        return {"machine": self.name}

    def answer(self, question: Question) -> Answer:
        raise UnavailableError(f"cuda cannot answer: {missing()}. Example: --against numpy")


def missing() -> str:
    """The first thing that keeps a GPU from answering."""
    if not driver_found():
        return "no NVIDIA GPU found"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (pip install torch)"
    return "an NVIDIA driver is here, but this version of numsim cannot ask GPUs yet"


def driver_found() -> bool:
    """Whether this system has NVIDIA's driver; loads nothing."""
    if sys.platform == "darwin":
        return False
    if sys.platform == "win32":
        return ctypes.util.find_library("nvcuda") is not None
    return os.path.exists("/dev/nvidiactl") or (os.path.exists("/dev/dxg") and bool(ctypes.util.find_library("cuda")))
