"""Compiled twins of the rooms above, and the one place that decides who computes: reference or kernel.

Both give the same bits, so the choice shows in time only. numba costs about a second to load and compile, so small
work stays on the reference. Importing this package loads no numba.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import numpy as np
import numpy.typing as npt

from numsim.errors import UnavailableError, check_choice
from numsim.formats import FP32, FP64, Format

_LIMIT = 60_000  # roundings that the reference does in the time that numba takes to start
_forced: ContextVar[str | None] = ContextVar("numsim_kernels", default=None)
_spent = 0
_why_not: str | None = None
_checked = _told = False


@contextmanager
def force(which: Literal["reference", "kernel"]) -> Iterator[None]:
    """Within the block everything runs on the reference, or on the kernels (which raises where numba is missing).

    >>> import numsim
    >>> with force("reference"):
    ...     numsim.round_to(0.1, "bf16")
    np.float64(0.10009765625)
    """
    check_choice("which", which, ("reference", "kernel"))
    if which == "kernel" and (why := why_not()):
        raise UnavailableError(f"kernels cannot run here: {why}")
    token = _forced.set(which)
    try:
        yield
    finally:
        _forced.reset(token)


def why_not() -> str | None:
    """The reason why kernels cannot run here, or None."""
    global _checked, _why_not
    if not _checked:
        _checked = True
        if os.environ.get("NUMSIM_NO_KERNELS"):
            _why_not = "NUMSIM_NO_KERNELS is set"
        elif importlib.util.find_spec("numba") is None:
            _why_not = "numba is not installed"
        else:
            try:
                from numsim.kernels import _jit

                _why_not = _jit.self_test()
            except Exception as error:  # a broken numba fails in many ways at import
                _why_not = f"numba does not work here ({type(error).__name__}: {' '.join(str(error).split())[:100]})"
    return _why_not


def use(work: int) -> bool:
    """Whether a job of so many roundings should go to the kernels."""
    global _spent, _told
    if forced := _forced.get():
        return forced == "kernel"
    started = "numsim.kernels._jit" in sys.modules
    if work < (256 if started else 1) or (not started and _spent + work < _LIMIT):
        _spent += work
        return False
    if (why := why_not()) is None:
        return True
    if not _told:
        _told = True
        sys.stderr.write(f"numsim: {why}; everything runs on the reference, bit-equal and slower.\n")
    return False


def suit(dtype: npt.DTypeLike, format: Format) -> bool:
    """Whether the rounding kernels take input of this dtype to this format (float32 widens to float64 if it must)."""
    return dtype in (np.float32, np.float64) and format.fits(FP64) and not format.gap


def fits_source(dtype: npt.DTypeLike, format: Format) -> bool:
    """Whether every value of the format is a value of the source dtype."""
    return format.fits(FP32 if dtype == np.float32 else FP64)
