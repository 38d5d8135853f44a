"""What experiments on loss scalers share: at which scales gradients overflow, a scaler's way, what overflows say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from numsim.array import from_codes
from numsim.codes import decode
from numsim.experiments.experiment import Session
from numsim.formats import FP32, Format
from numsim.machines.question import ask
from numsim.rounding import encode
from numsim.scaling import ScalerError, get_scaler, list_scalers, replay
from numsim.scaling.playback import SAYS
from numsim.scaling.scaler import FLT_MAX
from numsim.traces import Event, Trace

Overflows = Callable[[int, float], bool]  # (step from 1, scale) -> whether a gradient is not finite


class Limits:
    """At which scales, powers of two and the numbers beyond them, the largest gradient of a step overflows."""

    def __init__(self, table: Mapping[float, bool]) -> None:
        self.table = table

    @classmethod
    def ask(cls, session: Session, amax: float, format: Format, high: float = np.inf) -> Limits | None:
        """From a machine's casts of amax times 0, 2^-149 ... 2^127 and infinity; scales up to ``high``.

        FP32's largest number, to which Flax' scale grows, and its halves are among them.
        """
        powers = np.array([0.0, *np.ldexp(1.0, np.arange(-149, 128)), *np.ldexp(FLT_MAX, -np.arange(254)), np.inf])
        powers = powers[powers <= high]
        with np.errstate(invalid="ignore"):
            scaled = encode(amax * powers, FP32)  # as the FP32 loss is; 0 times infinity is NaN
        codes = session.ask(ask("cast", [FP32], format, [scaled]))
        if codes is None:
            return None
        return cls(dict(zip(powers.tolist(), (~np.isfinite(decode(codes, format))).tolist(), strict=True)))

    def overflows(self, scale: float) -> bool:
        """A Python float beyond FP32 is infinite where it meets an FP32 loss, one below FP32's least number zero."""
        return self.table[scale if 2.0**-149 <= scale < 2.0**128 else np.inf if scale > 1 else 0.0]

    @property
    def top(self) -> float:
        """The largest power of two at which nothing overflows."""
        return max((s for s, over in self.table.items() if not over and np.frexp(s)[0] == 0.5), default=0.0)


def settings_of(name: str, scale: float, interval: int) -> dict[str, Any]:
    """A first scale and an interval, as a system takes them."""
    return {"init_scale": scale} | ({} if name == "static" else {"growth_interval": interval})


def train(session: Session | None, name: str, overflow: Overflows, steps: int, scale: int, interval: int) -> Trace:
    """A scaler's way: at each step ``overflow`` says whether the gradients overflow at the scale of this step."""
    settings = settings_of(name, 2.0**scale, interval)
    return played(session, name, settings, follow(get_scaler(name, **settings), overflow, steps)[0])


def follow(scaler: Any, overflow: Overflows, steps: int) -> tuple[list[int], list[float]]:
    """What each step's gradients were, and the scale after each; it ends where the original raises."""
    state, found, scales = scaler.initial(), list[int](), list[float]()
    for step in range(1, steps + 1):
        found.append(int(overflow(step, state.scale)))
        try:
            state = scaler.update(state, found[-1])
        except ScalerError:
            break
        scales.append(state.scale)
    return found, scales


def played(session: Session | None, name: str, settings: dict[str, Any], found: Sequence[int]) -> Trace:
    """The trace of a string of overflows; the scales of torch are the machine's, where one is asked and has them."""
    scaler = get_scaler(name, **settings)
    trace = replay(scaler, list(found))
    if name != "torch" or session is None:
        return trace
    codes = session.ask(ask("scaler", [FP32], FP32, [encode(found, FP32)], system=name, settings=settings))
    if codes is None:
        return trace
    used = np.append(encode(scaler.initial().scale, FP32), codes[:-1])  # the scale after the step before
    scales = {"scale used": from_codes(used, FP32), "scale": from_codes(codes, FP32)}
    return Trace(trace.title, trace.steps, {**trace.series, **scales}, trace.events, trace.about)


def overflows(trace: Trace) -> list[Event]:
    """The skipped steps."""
    return [e for e in trace.events if e.kind == "overflow"]


# --- words -----------------------------------------------------------------------------------------------------------
def power_of(scale: float) -> str:
    return f"2^{int(np.frexp(scale)[1]) - 1}" if np.frexp(scale)[0] == 0.5 else f"{scale:.3g}"


def says(trace: Trace) -> dict[str, int]:
    """How many overflows were of each kind, as ``numsim.scaling.replay`` names them."""
    counts = Counter(e.text.partition(",")[0] for e in overflows(trace))
    return {word: counts[kind] for kind, word in SAYS.items()}


def in_a_row(trace: Trace, first: int) -> int:
    """Overflows one after another from a step on."""
    steps = [e.step for e in overflows(trace) if e.step >= first]
    return sum(step == first + i for i, step in enumerate(steps))


def longest_run(trace: Trace) -> int:
    """The most overflows one after another."""
    return max((in_a_row(trace, e.step) for e in overflows(trace)), default=0)


def taking_overflows() -> list[str]:
    """The scalers that are told of overflows: all but log-max, which is told amaxes."""
    return [name for name in list_scalers() if get_scaler(name).takes != "amax"]


def dynamic() -> list[str]:
    """Of these the ones that move their scale: static does not."""
    return [name for name in taking_overflows() if name != "static"]
