"""Ranges of recorded tensors over layers and steps, as a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numsim.errors import InputError, check_choice, short
from numsim.traces import Trace

if TYPE_CHECKING:
    from numsim.data import GradientRecording, Recorded

_PERCENT = {"p5": 5, "median": 50, "p95": 95, "amax": 100}


def gradient_ranges(recording: GradientRecording, kind: str = "activation-gradient") -> Trace:
    """Where a recording's magnitudes lie at each step: series ``p5``, ``median``, ``p95`` and ``amax`` of each layer.

    Rules: each is the power of two at or below the number itself, exactly, for all values are counted by binade. Of n
    numbers p5 is the one of rank ceil(0.05 n). Exact zeros are left out; NaN where there is nothing else.

    Raises ``InputError`` for a kind of tensor that ``numsim.data.KINDS`` has not.

    >>> from numsim.data import load_gradients
    >>> trace = gradient_ranges(load_gradients())
    >>> trace.steps.tolist(), trace["linear2 amax"].tolist()
    ([0, 100, 500, 2000], [0.0078125, 0.0078125, 0.0078125, 0.0078125])

    ``trace.draw()`` draws it, a panel for each layer.
    """
    from numsim.data import KINDS, GradientRecording

    if not isinstance(recording, GradientRecording):
        raise InputError(f"{short(recording)} is no recording. Example: gradient_ranges(numsim.data.load_gradients())")
    check_choice("kind", kind, KINDS, "gradient_ranges(load_gradients(), 'weight-gradient')")
    steps = sorted({row.step for row in recording.select(kind)})
    layers = dict.fromkeys(row.layer for row in recording.select(kind))
    series: dict[str, Any] = {}
    for layer in layers:
        rows = {row.step: _ranges(row) for row in recording.select(kind, layer=layer)}
        for i, name in enumerate(_PERCENT):
            series[f"{layer} {name}"] = [rows[step][i] for step in steps]
    about = {"kind": kind, "rule": "each value is the power of two at or below it; zeros are left out"}
    return Trace(f"{kind}s of a recorded training", np.array(steps, np.int64), series, (), about)


def _ranges(row: Recorded) -> Sequence[float]:
    if not row.nonzeros:
        return [np.nan] * len(_PERCENT)
    up_to = np.cumsum(row.positive + row.negative)
    ranks = [-(-row.nonzeros * percent // 100) for percent in _PERCENT.values()]
    return [float(np.ldexp(1.0, row.binades[np.searchsorted(up_to, rank)])) for rank in ranks]
