"""PyTorch's own sums and products, in whatever order they add, with the flags that change their bits.

Source: PyTorch documentation, torch.backends.cuda, and "Numerical accuracy"; for ``torch._scaled_mm``, which is not
documented, the checks in ATen/native/cuda/ScaledBlas.cpp (Blas.cpp before 2.9).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from numsim.machines.question import FUNCTIONS, Question

_FP8 = ("e4m3fn", "e5m2")


def why_not(machine: Any, q: Question) -> str:
    """Why a machine (a ``TorchLibrary``) has no answer from torch, or ""."""
    torch = machine.torch
    if not hasattr(torch, _name(q)):
        return f"torch {torch.__version__} has no {q.system}"
    for flag, _ in q.settings:
        if not machine.capability:
            return f"{flag} changes nothing on a CPU"
        if flag.startswith("allow_fp16") and not hasattr(torch.backends.cuda.matmul, flag):
            return f"torch {torch.__version__} has no {flag}"
    scaled = q.system == "torch._scaled_mm"
    for f in q.inputs[:2]:
        if f.name not in (_FP8 if scaled else machine.computes):
            return f"{q.system} takes no {f}"
    if f"{q.output}" not in (machine.dtypes if scaled else machine.computes):
        return f"{q.system} gives no {q.output}"
    if q.system == "torch.matmul" and len({*q.inputs, q.output}) > 1:
        return "torch.matmul multiplies numbers of one format, and gives that format"
    return _why_not_scaled(machine.capability, q) if scaled and machine.capability else ""


def _why_not_scaled(capability: tuple[int, int], q: Question) -> str:
    if capability < (8, 9):
        return f"torch._scaled_mm needs compute capability 8.9, and this GPU has {capability[0]}.{capability[1]}"
    (m, k), n = q.arrays[0].shape, q.shape[1]
    if k % 16 or n % 16 or not m * n * k:
        return f"torch._scaled_mm on a GPU needs K and N that are multiples of 16, not {k} and {n}"
    if all(f.name == "e5m2" for f in q.inputs[:2]):
        return "torch._scaled_mm on a GPU multiplies no two e5m2 matrices"
    return ""


def call(machine: Any, q: Question) -> Any:
    """The function's result, a tensor in the question's format."""
    torch, dtype = machine.torch, machine.dtypes[q.output.name]
    function = getattr(torch, _name(q))
    if q.system == "torch._scaled_mm":
        a, transposed = (machine.load(x, f) for x, f in zip((q.arrays[0], q.arrays[1].T), q.inputs, strict=False))
        scales = [machine.load(x, f) for x, f in zip(q.arrays[2:], q.inputs[2:], strict=True)]
        fast = dict(q.settings).get("use_fast_accum", False)
        return function(a, transposed.t(), *scales, out_dtype=dtype, use_fast_accum=fast)  # b is column-major
    arrays = [machine.load(x, f) for x, f in zip(q.arrays, q.inputs, strict=True)]
    if q.system == "torch.matmul":
        with flags(torch, {**FUNCTIONS[q.system][1], **dict(q.settings)}):
            return function(*arrays)
    return function(arrays[0], dim=-1, dtype=dtype)


def _name(q: Question) -> str:
    return str(q.system).removeprefix("torch.")


# --- flags ------------------------------------------------------------------------------------------------------------
@contextmanager
def _quietly() -> Iterator[None]:
    """Newer versions warn that TF32 has a newer switch, which older ones have not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@contextmanager
def flags(torch: Any, wanted: Mapping[str, bool]) -> Iterator[None]:
    """Flags of products on a GPU for a while; one that this torch lacks is off in it."""
    matmul = torch.backends.cuda.matmul
    before = {name: _state(matmul, name) for name in wanted if name == "allow_tf32" or hasattr(matmul, name)}
    try:
        for name in before:
            _set(matmul, name, wanted[name])
        yield
    finally:
        for name, state in before.items():
            _restore(matmul, name, state)


def stated(torch: Any) -> dict[str, Any]:
    """What is switched on in this process that can change bits, for the provenance."""
    matmul = torch.backends.cuda.matmul
    tf32, precision = _state(matmul, "allow_tf32")
    return {
        "tf32": (precision == "tf32") if precision else tf32,
        "fp16_reduced_precision": matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision": matmul.allow_bf16_reduced_precision_reduction,
        "fp16_accumulation": getattr(matmul, "allow_fp16_accumulation", False),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@_quietly()
def _state(matmul: Any, name: str) -> tuple[bool, Any]:
    """A flag, and what newer versions keep beside it."""
    if name != "allow_tf32":
        return getattr(matmul, name), getattr(matmul, f"{name}_split_k", None)
    precision = getattr(matmul, "fp32_precision", None)
    try:
        return matmul.allow_tf32, precision
    except RuntimeError:  # the two do not say the same: torch refuses to tell the older one
        return precision != "tf32", precision


@_quietly()
def _set(matmul: Any, name: str, value: bool) -> None:
    setattr(matmul, name, value)


@_quietly()
def _restore(matmul: Any, name: str, state: tuple[bool, Any]) -> None:
    value, more = state
    if name == "allow_tf32":
        matmul.allow_tf32 = value  # sets both
        if more is not None:
            matmul.fp32_precision = more
    else:
        setattr(matmul, name, value if more is None else state)
