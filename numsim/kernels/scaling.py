"""Twin of ``numsim.scaling.playback.scales``: all scalers as one machine, over many strings of overflows.

Why it is exact. An fp32 product or quotient is the double one rounded to fp32: a product of two fp32 numbers is exact
in double, and a quotient has too few bits to be a tie in double without being one exactly. torch's double factor times
an fp32 scale is rounded to double first, here as there. Counting back
from the last overflow or growth is the same as taking the iteration modulo the window, and a hysteresis that falls
below 1 is the same as one that stays at 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.host import is_ieee
from numsim.kernels import _pool
from numsim.kernels._jit import jit
from numsim.scaling import playback
from numsim.scaling.fp64_scalers import FairseqScaler
from numsim.scaling.scaler import FlagScaler
from numsim.scaling.torch_scalers import ApexHysteresisScaler


class Machine(NamedTuple):
    """A scaler as the loop needs it."""

    initial: float
    single: bool  # fp32 results
    up: float
    down: float
    divides: bool  # by ``down``
    first: int  # clean steps after an overflow
    period: int  # and after a growth
    keeps_finite: bool
    floor: float
    cap: float
    least_growth: float  # the floor of growths
    hysteresis: int
    refills: bool  # by any clean step, not only by a growth
    stops_at_floor: bool
    stops_at_infinity: bool
    least: float  # stops where an overflow leads to this scale or below; NaN: never


def suits(scaler: Any, found: npt.NDArray[Any]) -> bool:
    """Whether the machine does what this scaler does; the reference does the rest."""
    if not isinstance(scaler, FlagScaler) or not is_ieee():
        return False
    if isinstance(scaler, ApexHysteresisScaler):
        return bool((found >= 0).all())  # (NaN and numbers below 0 have cases of their own)
    return not isinstance(scaler, FairseqScaler) or scaler.tolerance <= 0


def _machine(scaler: FlagScaler) -> Machine:
    up, down = scaler.factors
    floor = -math.inf if scaler.floor is None else scaler.floor
    return Machine(
        scaler.initial().scale, scaler.keeps == "fp32", up, down, scaler.divides, _steps(scaler.first_growth),
        _steps(scaler.next_growth), scaler.keeps_finite, floor, math.inf if scaler.cap is None else scaler.cap,
        floor if scaler.floors_growth else -math.inf, scaler.hysteresis, scaler.refills, scaler.stops_at_floor,
        scaler.stops_at_infinity, scaler.stops_from,
    )  # fmt: skip


def _steps(n: int | None) -> int:
    """A number of steps as an int64, which no run exceeds; -1 for never."""
    return min(n or -1, 2**63 - 1)


@jit
def _run(overflow, m, first_row, rows, out):  # type: ignore[no-untyped-def]
    for row in range(first_row, first_row + rows):
        scale, clean, due, left, stopped = m.initial, 0, m.first, m.hysteresis, False
        for step in range(overflow.shape[1]):
            if overflow[row, step] and not stopped:
                clean, due = 0, m.first
                stopped = (m.stops_at_infinity and math.isinf(scale)) or (
                    m.stops_at_floor and left <= 1 and scale == m.floor
                )
                if left > 1:
                    left -= 1
                else:
                    scale = scale / m.down if m.divides else scale * m.down
                    if m.single:
                        scale = np.float64(np.float32(scale))
                    if scale < m.floor:
                        scale = m.floor
                    stopped = stopped or scale <= m.least
            elif not stopped:
                clean += 1
                if m.refills:
                    left = m.hysteresis
                if clean == due:
                    clean, due, left = 0, m.period, m.hysteresis
                    grown = scale * m.up
                    if m.single:
                        grown = np.float64(np.float32(grown))
                    if math.isfinite(grown) or not m.keeps_finite:
                        scale = m.cap if grown > m.cap else grown
                        if scale < m.least_growth:
                            scale = m.least_growth
            out[row, step] = np.nan if stopped else scale


def scales(scaler: Any, found: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The scales after each step of (rows, steps)."""
    overflow = np.ascontiguousarray(scaler.is_overflow(found))
    machine, out = _machine(scaler), np.empty(found.shape)
    large = max(1, _pool.LARGE // max(1, found.shape[1]))
    _pool.over_chunks(len(out), lambda i, end: _run(overflow, machine, i, end - i, out), large=large)
    return out


TWINS = ((playback.scales, scales),)
