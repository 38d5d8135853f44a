"""A string of overflows played to a scaler: one as a ``Trace`` with its events, or many at once."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.array import array
from numsim.errors import InputError, short
from numsim.rounding import encode
from numsim.scaling.scaler import Scaler, ScalerError, as_numbers
from numsim.traces import Event, Trace, number_text

_EXAMPLE = "Example: numsim.scaling.replay(numsim.scaling.GradScaler(), 'ICICCC')"


def replay(scaler: Any, found_inf: Any, state: Any = None) -> Trace:
    """What a scaler does, step by step: series "scale used" (by this step), "scale" (after it), "tracker", and events.

    ``found_inf`` is a text of I (an overflow) and C (clean), or one number for each step (0 clean); for a scaler that
    ``takes`` the amax (log-max), that of each step's unscaled gradients. ``state`` to begin with, by default the
    initial one.

    Events: **overflow**, with a word from ``overflow_kind``;
    **growth**; **cap**, a growth that changed nothing; **hysteresis**, an overflow that was tolerated; **floor**, an
    overflow that left the scale at its minimum or where it was; **stop**, where the original raises: the trace ends.
    Raises ``InputError`` for anything else. Cost: some 100 000 steps a second; ``replay_scales`` is faster.

    >>> from numsim.scaling import GradScaler
    >>> print(replay(GradScaler(init_scale=16.0, growth_interval=2), "ICCIC"))
    torch.amp.GradScaler: 5 steps
      step  scale used  scale  tracker  event
         1          16      8        0  overflow: search, 16 to 8
         3           8     16        0  growth: 8 to 16
         4          16      8        0  overflow: probe, 16 to 8
         5           8      8        1
    """
    _check(scaler)
    numbers = _numbers(found_inf, scaler.takes == "amax")
    if numbers.ndim != 1:
        raise InputError(f"found_inf of shape {numbers.shape}: one string of steps is needed. {_EXAMPLE}")
    state = scaler.initial() if state is None else state
    scaler.check(state)
    used, states, events, stood = [], [], [], None
    for step, found in enumerate(numbers.tolist(), 1):
        before, kind = state, overflow_kind(state.scale, stood)
        used.append(before.scale)
        try:
            state = scaler.update(state, found)
        except ScalerError as error:
            states.append(error.state)
            events.append(Event(step, "overflow", kind))
            events.append(Event(step, "stop", f"{error.original}: {error}"))
            break
        states.append(state)
        change = f"{number_text(before.scale)} to {number_text(state.scale)}"
        stays = state.scale == before.scale or math.isnan(state.scale)
        if scaler.is_overflow(found):
            events.append(Event(step, "overflow", kind if stays else f"{kind}, {change}"))
            if not scaler.backs_off(before):
                events.append(Event(step, "hysteresis", f"{number_text(before.scale)} stays"))
            elif stays or state.scale == scaler.floor:
                events.append(Event(step, "floor", number_text(state.scale)))
        elif scaler.grows(before):
            words = f"{number_text(state.scale)} stays" if stays else change
            events.append(Event(step, "cap" if stays else "growth", words))
            if not stays:
                stood = before.scale
    scales = {"scale used": used, "scale": [s.scale for s in states]}
    series: dict[str, Any] = {
        name: array(x, "fp32") if scaler.keeps == "fp32" else np.array(x, float) for name, x in scales.items()
    }
    if hasattr(state, "growth_tracker"):
        series["tracker"] = [float(s.growth_tracker) for s in states]
    return Trace(scaler.title, np.arange(1, len(states) + 1), series, tuple(events), _about(scaler))


SAYS = {"search": "searching", "probe": "probing", "fall": "falling"}  # what an overflow does, by its kind


def overflow_kind(scale: float, stood: float | None) -> str:
    """What an overflow at a scale says; ``stood`` is the scale that grew last, None before the first growth.

    "search": nothing has grown yet, the scaler looks for its limit from above. "probe": the scale is above the one
    that stood a whole interval; that is how the limit is found, and costs a step. "fall": at or below that one, or at
    1 or below: gradients have become larger, or are lost.

    >>> overflow_kind(65536.0, None), overflow_kind(2048.0, stood=1024.0), overflow_kind(1024.0, stood=1024.0)
    ('search', 'probe', 'fall')
    """
    if scale <= (1.0 if stood is None else stood):
        return "fall"
    return "search" if stood is None else "probe"


def replay_scales(scaler: Any, found_inf: Any) -> npt.NDArray[Any]:
    """The scale after each step of many strings at once: ``found_inf`` (..., steps) gives scales (..., steps).

    float32 where the original keeps fp32, else float64; NaN from the step on where the original raises. ``found_inf``
    is as for ``replay``, or a list of texts. Raises ``InputError`` as it does. Cost: some 200 million updates a second.

    >>> from numsim.scaling import get_scaler
    >>> replay_scales(get_scaler("megatron", init_scale=16.0, growth_interval=4), ["ICICIICC", "CCCCCCCC"])
    array([[16., 16.,  8.,  8.,  4.,  2.,  2.,  2.],
           [16., 16., 16., 32., 32., 32., 32., 64.]], dtype=float32)
    """
    _check(scaler)
    numbers = _numbers(found_inf, scaler.takes == "amax")
    if numbers.ndim == 0:
        raise InputError(f"found_inf={short(found_inf)}: an axis of steps is needed. {_EXAMPLE}")
    found = numbers.reshape(-1, numbers.shape[-1]) if numbers.size else numbers.reshape(0, 0)
    if kernels.use(found.size):
        from numsim.kernels import scaling as fast

        table = fast.scales(scaler, found) if fast.suits(scaler, found) else scales(scaler, found)
    else:
        table = scales(scaler, found)
    if scaler.keeps == "fp32":  # (by way of the codes, which no CPU mode changes)
        table = encode(table, "fp32").view(np.float32)
    return table.reshape(numbers.shape)


def scales(scaler: Any, found: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The scales after each step of (rows, steps), by ``update``: what the kernel is compared with."""
    out = np.full(found.shape, np.nan)
    for row, numbers in zip(out, found.tolist(), strict=True):
        state = scaler.initial()
        for step, number in enumerate(numbers):
            try:
                state = scaler.update(state, number)
            except ScalerError:
                break
            row[step] = state.scale
    return out


def _check(scaler: Any) -> None:
    if not isinstance(scaler, Scaler):
        raise InputError(f"{short(scaler)}: a scaler is needed. {_EXAMPLE}")


def _numbers(found_inf: Any, amaxes: bool) -> npt.NDArray[Any]:
    """Numbers or booleans, from numbers or from texts of I and C."""
    texts = [found_inf] if isinstance(found_inf, str) else found_inf
    if not amaxes and isinstance(texts, (list, tuple)) and texts and all(isinstance(t, str) for t in texts):
        letters = [t.replace(" ", "").upper() for t in texts]
        if len({len(t) for t in letters}) != 1 or set("".join(letters)) - {"I", "C"}:
            raise InputError(
                f"found_inf={short(found_inf)}: I (overflow) and C (clean), texts of one length. {_EXAMPLE}"
            )
        table = np.array([[c == "I" for c in t] for t in letters], bool).reshape(len(letters), -1)
        return table[0] if isinstance(found_inf, str) else table
    numbers = as_numbers(found_inf)
    if numbers.dtype.kind not in "buif":
        what = "the amax of each step" if amaxes else "a text of I and C, or a number for each step,"
        raise InputError(f"found_inf={short(found_inf)}: {what} is needed. {_EXAMPLE}")
    return numbers


def _about(scaler: Any) -> dict[str, Any]:
    settings = {f.name: getattr(scaler, f.name) for f in dataclasses.fields(scaler)}
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in settings.items()}
