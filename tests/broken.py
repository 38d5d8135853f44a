"""Copies of numsim's source with one mistake each, in the places of the right ones.

A mistake is an edit of one expression of a file as it stands today; an edit that does not find its text fails, so that
none goes stale. A broken function of the reference takes the right one's place. Broken kernels run as plain Python, on
NumPy's numbers, which round and wrap as the compiled ones do.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import numsim
from numsim import kernels
from numsim.kernels import _pool  # noqa: F401  (compiled by nobody: it stays as it is)

HOME = Path(numsim.__file__).parent


@cache
def compiled(file: str, edit: tuple[str, str] | None = None) -> Any:
    text = (HOME / file).read_text(encoding="utf-8")
    if edit is not None:
        old, new = edit
        assert text.count(old) == 1, f"numsim/{file} holds {old!r} {text.count(old)} times, not once: state it anew"
        text = text.replace(old, new)
    return compile(text, file, "exec", dont_inherit=True)


def run(file: str, edit: tuple[str, str] | None, module: ModuleType) -> dict[str, Any]:
    exec(compiled(file, edit), vars(module))
    return vars(module)


def functions_of(names: dict[str, Any], home: str) -> dict[str, FunctionType]:
    """The functions that a module defines, those of its classes too."""
    found = {}
    for name, x in list(names.items()):
        x = getattr(x, "__wrapped__", x)
        if isinstance(x, type) and x.__module__ == home:
            found |= {f"{name}.{inner}": f for inner, f in functions_of(dict(vars(x)), home).items()}
        elif isinstance(x, FunctionType) and x.__module__ == home:
            found[name] = x
    return found


@contextmanager
def broken_reference(file: str, edit: tuple[str, str] | None) -> Iterator[None]:
    """In place: whoever has the function, has the broken one."""
    home = f"numsim.{file.removesuffix('.py')}"
    live = functions_of(vars(importlib.import_module(home)), home)
    right, wrong = (functions_of(run(file, e, ModuleType(home)), home) for e in (None, edit))
    changed = [name for name in right if right[name].__code__ != wrong[name].__code__]
    assert changed or edit is None, f"{edit} changes no function of {home}"
    with pytest.MonkeyPatch.context() as patch:
        for name in changed:
            patch.setattr(live[name], "__code__", wrong[name].__code__)
        yield


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports kernels as plain Python, one of them with its mistake."""

    def __init__(self, file: str, edit: tuple[str, str] | None) -> None:
        self.edits = {file: edit}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self) if name.startswith("numsim.kernels.") else None

    def exec_module(self, module: ModuleType) -> None:
        file = f"kernels/{module.__name__.rpartition('.')[2]}.py"
        run(file, self.edits.get(file), module)
        vars(module).update({"math": MATH} if "math" in vars(module) else {})


def loaded_kernels() -> list[str]:
    """All that is compiled, or has parts that are."""
    return [n for n in sys.modules if n.startswith("numsim.kernels.") and n != "numsim.kernels._pool"]


@contextmanager
def broken_kernels(file: str, edit: tuple[str, str] | None) -> Iterator[None]:
    """All of them anew, for they share parts."""
    with pytest.MonkeyPatch.context() as patch:
        for name in loaded_kernels():
            patch.delitem(sys.modules, name)
            patch.delattr(kernels, name.rpartition(".")[2], raising=False)
        patch.setitem(sys.modules, "numsim.kernels._jit", PLAIN)
        patch.setattr(sys, "meta_path", [Finder(file, edit), *sys.meta_path])
        patch.setattr(kernels, "_checked", True)
        patch.setattr(kernels, "_why_not", None)
        try:
            yield
        finally:
            for name in loaded_kernels():
                del sys.modules[name]
                vars(kernels).pop(name.rpartition(".")[2], None)


# What kernels import from ``_jit.py``, in Python.
def as_bits(x: Any) -> Any:
    x = x if isinstance(x, np.float32) else np.float64(x)
    return x.view(np.uint32 if isinstance(x, np.float32) else np.uint64)


def as_float(bits: Any) -> Any:
    return bits.view(np.float32 if isinstance(bits, np.uint32) else np.float64)


def fma64(a: Any, b: Any, c: Any) -> Any:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c) if math.isfinite(c) else 0
    try:
        return np.float64(float(exact)) if exact else a * b + c if math.isfinite(c) else c
    except OverflowError:
        return np.copysign(np.inf, float(exact > 0) - 0.5)


PLAIN: Any = ModuleType("numsim.kernels._jit")
vars(PLAIN).update(
    jit=lambda function: function, part=lambda function: function, as_bits=as_bits, as_float=as_float, fma64=fma64,
    left=lambda a, count: a << type(a)(count), right=lambda a, count: a >> type(a)(count),
)  # fmt: skip
MATH = SimpleNamespace(**{**vars(math), "sqrt": np.sqrt, "ldexp": np.ldexp})  # which raise nothing, as numba's


@contextmanager
def broken(file: str, edit: tuple[str, str] | None = None) -> Iterator[None]:
    """What runs in this block runs on copies: the reference, or the kernels, whichever the file belongs to."""
    compiled(file, edit)  # here, where no test is blamed for an edit that does not find its text
    forget()
    try:
        if file.startswith("kernels/"):
            with broken_kernels(file, edit), kernels.force("kernel"), np.errstate(all="ignore"):
                yield
        else:
            with broken_reference(file, edit), kernels.force("reference"):
                yield
    finally:
        forget()


def forget() -> None:
    """Tables and constants that others have made."""
    for name in [n for n in sys.modules if n.startswith("numsim.")]:
        for x in list(vars(sys.modules[name]).values()):
            if hasattr(x, "cache_clear"):
                x.cache_clear()
