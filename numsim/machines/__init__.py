"""Who answers questions: the emulator, this CPU through several libraries, and recordings.

Every machine has ``name``, ``title``, ``can(question=None) -> Can`` (with no question: whether it works here at all),
``provenance() -> dict`` and ``answer(question) -> Answer``. Machines load what they need only when asked.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

from numsim.errors import InputError, UnavailableError, short
from numsim.machines.question import Answer, Can, Question, ask

__all__ = ["Answer", "Can", "Question", "ask", "get_machine", "list_machines"]

_MACHINES = {
    "emulated": ("emulated", "Emulated"),
    "numpy": ("numpy_cpu", "Numpy"),
    "ml_dtypes": ("numpy_cpu", "MlDtypes"),
    "torch-cpu": ("torch_cpu", "TorchCpu"),
    "cuda": ("cuda", "Cuda"),
    "emulated-cuda": ("cuda_emulated", "CudaEmulated"),
    "recorded": ("recorded", "Recorded"),
}
_ALIASES = {
    "numsim": "emulated", "emulator": "emulated", "cpu": "numpy", "ml-dtypes": "ml_dtypes", "jax": "ml_dtypes",
    "torch": "torch-cpu", "pytorch": "torch-cpu", "torch_cpu": "torch-cpu", "gpu": "cuda", "nvidia": "cuda",
}  # fmt: skip
MACHINES = tuple(_MACHINES)


def list_machines() -> tuple[Any, ...]:
    """All machines, whether they can run here or not; ``machine.can()`` says.

    >>> [m.name for m in list_machines()]
    ['emulated', 'numpy', 'ml_dtypes', 'torch-cpu', 'cuda', 'emulated-cuda', 'recorded']
    """
    return tuple(_make(name) for name in _MACHINES)


def find_machine(name: str) -> Any:
    """The machine of that name, even if it cannot run here. A name that ends in .npz is a record's file.

    Raises ``InputError`` with the nearest names.
    """
    if not isinstance(name, str):
        raise InputError(f"machine {short(name)}: a name is needed. Example: numsim run casts --against numpy")
    if name.startswith("recorded:") or name.lower().endswith(".npz"):
        return _make("recorded", name.removeprefix("recorded:"))
    key = name.strip().lower()
    if key in _MACHINES:
        return _make(key)
    near = [_ALIASES[key]] if key in _ALIASES else difflib.get_close_matches(key, _MACHINES, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(_MACHINES)}."
    raise InputError(f"unknown machine {short(name)}: {hint} Example: numsim run casts --against numpy")


def get_machine(name: str) -> Any:
    """The machine of that name, ready to answer.

    Raises ``UnavailableError`` with what is missing where it cannot run, ``InputError`` for an unknown name,
    ``RecordError`` for a damaged record.

    >>> get_machine("numpy").title
    'this CPU through numpy'
    """
    machine = find_machine(name)
    if not (can := machine.can()):
        raise UnavailableError(f"{machine.name} cannot answer here: {can.reason}. Example: numsim run --against numpy")
    return machine


def _make(name: str, *arguments: str) -> Any:
    module, kind = _MACHINES[name]
    return getattr(import_module(f"numsim.machines.{module}"), kind)(*arguments)
