"""The window of loss scales: between a smallest gradient that becomes zero and a largest that overflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import decode
from numsim.errors import InputError
from numsim.experiments.experiment import (
    Experiment,
    Result,
    Session,
    Table,
    cell,
    check_formats,
    check_real,
    listed,
    percent,
)
from numsim.formats import FP32, Format
from numsim.machines.question import ask
from numsim.rounding import encode

Floats = npt.NDArray[np.float64]

_EXPONENTS = tuple(range(-126, 128))  # loss scales are FP32 numbers, here all powers of two that are normal
_LONG = 12  # binades of a window that is shown whole
_NEAR = 2  # binades shown on either side of a window
_EXAMPLE = 'numsim.experiments.run("scale-window", largest=100.0, smallest=1e-6)'


def run(
    session: Session,
    *,
    largest: float = 0.5,
    smallest: float = 1e-10,
    formats: Sequence[str] = ("fp16", "bf16", "e5m2", "e4m3"),
) -> Result:
    """Which powers of two keep the largest and the smallest gradient in a format: finite, and not zero.

    Parameters: ``largest`` and ``smallest``, magnitudes from 1e-30 to 1e30, which are rounded to FP32; ``formats`` of
    at most 16 bits.
    """
    largest = check_real("largest", largest, 1e-30, 1e30, _EXAMPLE)
    smallest = check_real("smallest", smallest, 1e-30, 1e30, _EXAMPLE)
    if smallest > largest:
        raise InputError(f"smallest={smallest:g}: at most largest={largest:g} is allowed. Example: {_EXAMPLE}")
    chosen = check_formats(
        "formats", formats, lambda f: f.bits <= 16 and f.signed and f.zero and f.nan_code is not None,
        "signed formats of at most 16 bits with zero and NaN are needed", "formats=['fp16', 'e5m2']",
    )  # fmt: skip
    windows = {f: w for f in chosen if (w := _window(session, f, largest, smallest)) is not None}
    head = next(iter(windows), None)
    return Result(
        experiment="scale-window",
        parameters={"largest": largest, "smallest": smallest, "formats": [f.name for f in chosen]},
        answer="not answered by this machine" if chosen[0] not in windows else windows[chosen[0]].text,
        tables=() if head is None else (_overview(windows), _around(head, windows[head])),
        findings=tuple(_findings(windows, largest, smallest)),
        series={
            "largest": largest,
            "smallest": smallest,
            "windows": {
                f.name: {"zero_up_to": w.zero, "finite_up_to": w.finite, "normal_from": w.normal}
                for f, w in windows.items()
            },
        },
    )


@dataclass(frozen=True, eq=False)
class Window:
    """What a format makes of the two gradients at each scale, and from which exponent to which both are kept."""

    large: Floats
    small: Floats
    exact: float  # the smallest gradient, in FP32
    least_normal: float
    between: float | None = None  # a scale that is no power of two and keeps both, where no power of two does

    @property
    def zero(self) -> int:
        """The largest exponent at which the smallest gradient becomes zero; one below all that there are: at none."""
        return _EXPONENTS[0] - 1 + int(np.count_nonzero(self.small == 0))

    @property
    def finite(self) -> int:
        """The largest exponent at which the largest gradient stays finite; one below all: at none."""
        return _EXPONENTS[0] - 1 + int(np.count_nonzero(np.isfinite(self.large)))

    @property
    def normal(self) -> int:
        """The least exponent at which the smallest gradient is a normal number, and has all its bits."""
        return _EXPONENTS[0] + int(np.count_nonzero(self.small < self.least_normal))

    @property
    def text(self) -> str:
        low, high = self.zero + 1, self.finite
        return "none" if low > high else f"2^{low}" if low == high else f"2^{low} to 2^{high}"

    @property
    def best_at_the_top(self) -> bool:
        """Whether no scale of the window leaves the smallest gradient a smaller error than the largest of them."""
        errors = [abs(self.error(k)) for k in range(self.zero + 1, self.finite + 1)]
        return errors[-1] == min(errors)

    def error(self, exponent: int) -> float:
        """The relative error of the smallest gradient, cast at a scale and unscaled."""
        return float(np.ldexp(self.at(exponent)[1], -exponent)) / self.exact - 1

    def at(self, exponent: int) -> tuple[float, float]:
        """What the largest and the smallest become."""
        i = exponent - _EXPONENTS[0]
        return float(self.large[i]), float(self.small[i])


def _window(session: Session, format: Format, largest: float, smallest: float) -> Window | None:
    """Both gradients in FP32, times every scale in FP32, cast."""
    exact = decode(encode([largest, smallest], FP32), FP32)
    large, small = (_cast(session, np.ldexp(x, _EXPONENTS), format) for x in exact)
    if large is None or small is None:
        return None
    beyond = np.ldexp(exact[0], _EXPONENTS) > _limits(format)[1]
    large = np.where(beyond, np.inf, large)  # what a library that saturates clips is not kept either
    window = Window(large, small, float(exact[1]), float(format.least_normal))
    if window.zero >= window.finite and (middle := _middle(format, *exact)) is not None:
        got = _cast(session, exact * middle, format)
        if got is not None and np.isfinite(got[0]) and got[1] > 0:
            return replace(window, between=middle)
    return window


def _cast(session: Session, values: Floats, format: Format) -> Floats | None:
    """Rounded to FP32, as a scaled loss is, then cast by the machine."""
    codes = session.ask(ask("cast", [FP32], format, [encode(values, FP32)]))
    return None if codes is None else decode(codes, format)


def _limits(format: Format) -> tuple[float, float]:
    """What still becomes zero, and the first number that overflows."""
    return float(format.least) / 2, float(format.max + format.magnitude(format.max_rank + 1)) / 2


def _middle(format: Format, largest: float, smallest: float) -> float | None:
    """A scale, of two digits, in the middle of those that keep both, whether it is a power of two or not."""
    zero, limit = _limits(format)
    low, high = zero / smallest, limit / largest
    return float(f"{np.sqrt(low * high):.2g}") if low < high else None


# --- words -----------------------------------------------------------------------------------------------------------
def _overview(windows: Mapping[Format, Window]) -> Table:
    return Table(
        "Loss scales: the smallest is zero up to, the largest finite up to, both kept",
        ("format", "zero up to", "finite up to", "both kept", "smallest is normal from"),
        tuple((f.title, _power(w.zero), _power(w.finite), w.text, _power(w.normal)) for f, w in windows.items()),
    )


def _power(exponent: int) -> str:
    return f"2^{exponent}" if _EXPONENTS[0] <= exponent <= _EXPONENTS[-1] else "none"


def _around(format: Format, w: Window) -> Table:
    """Every scale of a short window, the ends of a long one, and some on either side."""
    ends = sorted((w.zero + 1, w.finite))
    near = {k + i for k in ends for i in range(-_NEAR, _NEAR + 1)}
    between = set(range(*ends)) if ends[1] - ends[0] <= _LONG else set[int]()
    return Table(
        f"{format.title}: what the two become",
        ("scale", "largest", "smallest", "smallest, unscaled", "its error"),
        tuple(
            (f"2^{k}", cell(w.at(k)[0], 6), cell(w.at(k)[1], 4), cell(float(np.ldexp(w.at(k)[1], -k)), 4),
             percent(w.error(k)) if np.isfinite(w.at(k)[1]) else None)
            for k in sorted((near | between) & set(_EXPONENTS))
        ),
    )  # fmt: skip


def _findings(windows: Mapping[Format, Window], largest: float, smallest: float) -> list[str]:
    apart = float(np.log2(largest / smallest))
    found = []
    for f, w in windows.items():
        if w.zero >= w.finite:
            continue
        low, high = w.zero + 1, w.finite
        first = f"{f.title} keeps both at {w.text}"
        below = f"at {_power(w.zero)} the smallest becomes zero" if w.zero >= _EXPONENTS[0] else "it is never zero"
        above = f"at 2^{high + 1} the largest overflows" if high < _EXPONENTS[-1] else "2^127 is FP32's last"
        found.append(f"{first}: {below}, {above}.")
        if f is next(iter(windows)):
            whole = "is never a normal number" if w.normal > _EXPONENTS[-1] else (
                f"is a normal number only from 2^{w.normal} on" + (", where the largest overflows" * (w.normal > high))
            )  # fmt: skip
            found.append(
                f"Kept is not the same as exact: unscaled, the smallest is off by {_off(w.error(low))} at 2^{low} and "
                f"by {_off(w.error(high))} at 2^{high}. It {whole}."
            )
    none = [
        f"{f.title} would need {_power(w.zero + 1)} or more, and 2^{w.finite} or less"
        for f, w in windows.items()
        if w.zero >= w.finite
    ]
    if none:
        odd = [f"{w.between:g} in {f.title}" for f, w in windows.items() if w.between is not None]
        also = f" Scales that are no powers of two would do where the two ends are near: {listed(odd)}." if odd else ""
        found.append(f"No power of two keeps both in some formats: {'; '.join(none)}.{also}")
    rooms = [f"{f.title} {_room(f):.1f}" for f in windows]
    if rooms:
        together = "" if f"{apart:.1f}" == "0.0" else "; one scale moves both, and cannot bring them together"
        found.append(
            f"The two gradients are {apart:.1f} binades apart. From half the least number to the first that overflows "
            f"there are, in binades: {listed(rooms)}{together}."
        )
    best = [f.title for f, w in windows.items() if w.zero + 1 < w.finite and w.best_at_the_top]
    if best:
        found.append(
            f"In the window of {listed(best)} no scale leaves the smallest a smaller error than the upper end does, "
            "and the largest loses nothing before it overflows: that is where a dynamic scaler goes."
        )
    return found


def _off(error: float) -> str:
    return percent(error) if error else "nothing"


def _room(format: Format) -> float:
    zero, limit = _limits(format)
    return float(np.log2(limit) - np.log2(zero))


def _draw(result: Result, style: str) -> Any:
    from numsim.show import scaling_plots

    return scaling_plots.scale_window(result, style)


EXPERIMENT = Experiment(
    name="scale-window",
    question=(
        "The largest gradient is 0.5, the smallest 1e-10. Which powers of two, as loss scales, keep both in FP16: the "
        "largest does not overflow, the smallest does not become zero?"
    ),
    choices=("none", "2^9 to 2^16", "2^10 to 2^17", "2^24 and above"),
    wrong_guess="none",
    why_wrong=(
        "FP16's normal numbers start at 6.1e-5 = 2^-14: 1e-10 would need 2^20 to get there, and 0.5 overflows from "
        "2^17 on. But subnormal numbers are kept too, with fewer bits, down to 2^-24, and what is more than half of "
        "that is rounded up to it."
    ),
    explanation=(
        "A loss scale is one number for all gradients: it moves them up together, so that the smallest and the largest "
        "of them leave a window of scales, or none. "
        "At its lower end the smallest gradient is what rounds to the least subnormal number; at its upper end the "
        "largest is what still rounds to the largest finite one. "
        "Scaling saves gradients from zero and gives them no more bits than the format has; a wider format for "
        "gradients, such as BF16, has the window so wide that no scale is needed."
    ),
    sources=(
        "IEEE 754-2019, sections 3.4, 4.3.1 and 7.4 (subnormal numbers, rounding, overflow)",
        "P. Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2",
        "P. Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433 (E4M3, E5M2)",
    ),
    defaults={"largest": 0.5, "smallest": 1e-10, "formats": ("fp16", "bf16", "e5m2", "e4m3")},
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes", "torch-cpu"),
    full={"formats": ("fp16", "bf16", "e5m2", "e4m3", "e5m2fnuz", "e4m3fnuz", "e3m4")},
)
