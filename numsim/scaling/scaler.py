"""What all loss scalers share: the state, the two calls, the arithmetic, and the checks of settings.

A scaler is a frozen record of settings and a pure machine: ``initial()`` gives a state, ``update(state, found_inf)``
the next one. ``scale`` multiplies the loss, ``inv_scale`` undoes it on the gradients.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from numsim.errors import InputError, NumsimError, short
from numsim.formats import FP32
from numsim.host import check_ieee, rounds_to_nearest
from numsim.values import from_torch, is_whole

FLT_MAX, FLT_MIN = float(FP32.max), float(FP32.least_normal)
_EXAMPLE = "Example: numsim.scaling.GradScaler(init_scale=65536.0, growth_interval=2000)"


class ScalerError(NumsimError, RuntimeError):
    """An original raises here, and training ends: ``state`` is what it holds, ``original`` the exception's name."""

    def __init__(self, message: str, state: Any, original: str) -> None:
        super().__init__(message)
        self.state, self.original = state, original

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.state, self.original)


# --- arithmetic -------------------------------------------------------------------------------------------------------
def fp32(x: float) -> float:
    """The fp32 nearest to a double, ties to even, as a Python float; in integers, so that no CPU mode matters.

    >>> fp32(3 * 1.1), fp32(2.0**128), fp32(2.0**-150)
    (3.299999952316284, inf, 0.0)
    """
    if x == 0 or not math.isfinite(x):
        return x
    unit = max(math.frexp(x)[1] - 24, -149)
    units = abs(round(math.ldexp(x, -unit)))  # (round() of a float ties to even)
    return math.copysign(math.ldexp(units, unit) if unit < 104 or units << unit - 104 < 2**24 else math.inf, x)


def reciprocal(scale: float) -> float:
    """1 / scale in double, rounded once to fp32; 1 / 0 is infinite with the sign of the zero."""
    check_ieee()
    return fp32(1 / scale) if scale else math.copysign(math.inf, scale)


# --- states -----------------------------------------------------------------------------------------------------------
def check_numbers(state: Any) -> None:
    """Make the scale of a state a Python float and its counts Python integers, or refuse them."""
    for name, x in vars(state).items():
        if type(x) is not (float if name == "scale" else int):
            settle(state, **{name: number(name, x) if name == "scale" else whole(name, x, -(2**63))})


@dataclass(frozen=True)
class State:
    """A scale, and the clean steps counted since it last changed."""

    scale: float
    growth_tracker: int = 0

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def inv_scale(self) -> float:
        """The fp32 number that gradients are multiplied with: 1 / scale in double, rounded once.

        It is infinite from scale 2^-128 downwards: gradients that were finite are not finite any more.

        >>> State(3.0).inv_scale, State(2.0**-127).inv_scale, State(2.0**-128).inv_scale
        (0.3333333432674408, 1.7014118346046923e+38, inf)
        """
        return reciprocal(self.scale)


@dataclass(frozen=True)
class HysteresisState(State):
    """As ``State``, with the overflows that are still tolerated before the scale backs off."""

    hysteresis_tracker: int = 1


@dataclass(frozen=True)
class IterationState:
    """A scale, the number of this iteration, and that of the last overflow (-1: none yet)."""

    scale: float
    cur_iter: int = 0
    last_overflow_iter: int = -1

    inv_scale = State.inv_scale

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def growth_tracker(self) -> int:
        """The clean steps since the last overflow; a growth does not set it back."""
        return self.cur_iter - self.last_overflow_iter - 1


# --- scalers ----------------------------------------------------------------------------------------------------------
class Scaler(ABC):
    """A loss scaler: settings, and what becomes of a state.

    ``takes`` names what ``update`` is told of a step: "found_inf", or the "amax" of its unscaled gradients. ``states``
    is the class of its states, ``keeps`` the type of their scale: "fp32", a tensor, or "fp64", a Python float.
    ``unscales`` says whether gradients are multiplied by 1 / scale or divided by it, ``checks`` where non-finite ones
    are looked for.
    """

    title: ClassVar[str]
    source: ClassVar[str]
    takes: ClassVar[Literal["found_inf", "amax"]] = "found_inf"
    states: ClassVar[type] = State
    keeps: ClassVar[Literal["fp32", "fp64"]] = "fp32"
    unscales: ClassVar[Literal["multiply", "divide"]] = "multiply"
    checks: ClassVar[Literal["scaled", "unscaled", "sum", "norm"]] = "scaled"

    @abstractmethod
    def initial(self) -> Any:
        """The state before the first step."""

    @abstractmethod
    def update(self, state: Any, found: Any) -> Any:
        """The state after a step of which ``found`` is what the scaler takes."""

    def check(self, state: Any) -> None:
        """Refuse what is no state of this scaler, and a CPU that would compute another one from it."""
        if not isinstance(state, self.states):
            raise InputError(f"state={short(state)}: a {self.states.__name__} is needed. "
                             "Example: scaler.update(scaler.initial(), 1.0)")  # fmt: skip
        if self.keeps == "fp64" or not rounds_to_nearest():  # fp32 numbers, even subnormal ones, are normal doubles
            check_ieee()

    @abstractmethod
    def is_overflow(self, found: Any) -> Any:
        """Whether the original skips such a step."""

    @abstractmethod
    def grows(self, state: Any) -> bool:
        """Whether a clean step is now due to raise the scale."""

    def backs_off(self, state: Any) -> bool:
        """Whether an overflow now lowers the scale: hysteresis, where there is any, is used up."""
        return True

    @property
    @abstractmethod
    def first_growth(self) -> int | None:
        """The clean steps that the first growth takes; None: it never comes."""

    @property
    def floor(self) -> float | None:
        """The least scale that an overflow leaves."""
        return None

    @property
    def cap(self) -> float | None:
        """The largest scale that a growth leaves."""
        return None

    @property
    def hysteresis(self) -> int:
        """The overflows that it takes to lower the scale."""
        return 1


class FlagScaler(Scaler):
    """A scaler that is told of each step whether it overflowed, and counts: rules in words and, below, in numbers."""

    divides: ClassVar[bool] = True  # an overflow divides by its factor, or else multiplies
    keeps_finite: ClassVar[bool] = False  # a growth that is not finite is dropped
    floors_growth: ClassVar[bool] = False  # a growth is not below the floor either
    stops_at_infinity: ClassVar[bool] = False  # an overflow at an infinite scale raises

    def update(self, state: Any, found_inf: Any) -> Any:
        """The state after a step; ``found_inf`` is a number: 0 clean, anything else (NaN too) an overflow."""
        self.check(state)
        return self.overflow(state) if self.is_overflow(number("found_inf", found_inf)) else self.clean(state)

    def is_overflow(self, found_inf: Any) -> Any:
        """Whether this value of found_inf, or each of an array, is an overflow."""
        return found_inf != 0

    @abstractmethod
    def overflow(self, state: Any) -> Any:
        """The state after an overflow."""

    @abstractmethod
    def clean(self, state: Any) -> Any:
        """The state after a clean step."""

    @property
    def factors(self) -> tuple[float, float]:
        """Of a growth and of an overflow, as the original's arithmetic has them."""
        return 2.0, 2.0

    @property
    def next_growth(self) -> int | None:
        """The clean steps from one growth to the next."""
        return self.first_growth

    @property
    def refills(self) -> bool:
        """Whether any clean step restores the hysteresis, not only a growth."""
        return False

    @property
    def stops_at_floor(self) -> bool:
        """Whether an overflow at the floor raises."""
        return False

    @property
    def stops_from(self) -> float:
        """An overflow that leads to this scale, or below, raises; NaN: none does."""
        return math.nan


# --- settings ---------------------------------------------------------------------------------------------------------
def number(name: str, x: Any, example: str = _EXAMPLE) -> float:
    """A Python or NumPy number, or a torch tensor without axes, as a Python float; anything else is refused."""
    x = _single(x)
    if not (is_whole(x) or isinstance(x, (bool, float, np.bool_, np.floating))):
        raise InputError(f"{name}={short(x)}: a number is needed. {example}")
    try:
        return float(x)
    except OverflowError:
        raise InputError(f"{name}={short(x)}: beyond the largest double. {example}") from None


def as_numbers(x: Any) -> npt.NDArray[Any]:
    """Nested lists, an array or a torch tensor as an array; of texts, for the caller to refuse, where that is none."""
    try:
        array = np.asarray(from_torch(x))
        return array.astype(np.float32) if array.dtype.kind == "V" else array  # BF16, FP8
    except NumsimError:
        raise
    except (ValueError, TypeError, RuntimeError):  # ragged, or tensors in a list that torch does not give to NumPy
        return np.asarray([""])


def _single(x: Any) -> Any:
    """The number in a torch tensor without axes; anything else as it is."""
    inner = from_torch(x)
    return x if inner is x or inner.ndim else inner.item()


def whole(name: str, x: Any, least: int = 1) -> int:
    """An integer of 64 bits, not below ``least``, as a Python int; no bool and no float (as torch has it)."""
    x = _single(x)
    if not is_whole(x):
        raise InputError(f"{name}={short(x)}: an integer is needed. {_EXAMPLE}")
    if not max(least, -(2**63)) <= x < 2**63:
        raise InputError(f"{name}={short(x)}: an integer from {least} on (64 bits) is needed. {_EXAMPLE}")
    return int(x)


def scale_number(name: str, x: Any) -> float:
    """A number that an fp32 tensor takes: infinities and NaN, but nothing finite beyond its range; not yet rounded."""
    if isinstance(x, int) and not -(2**63) <= x < 2**64:
        raise InputError(f"{name}={short(x)}: an integer of 64 bits or a float is needed. {_EXAMPLE}")
    if isinstance(x, (complex, np.complexfloating)) and x.imag == 0:  # (torch fills a tensor with its real part)
        x = x.real
    value = number(name, x)
    if math.isfinite(value) and abs(value) > FLT_MAX:
        raise InputError(f"{name}={short(x)}: beyond the largest fp32, {FLT_MAX!r}. {_EXAMPLE}")
    return value


def positive(name: str, x: Any, *, below: float = math.inf, above: float = 0.0) -> float:
    """A finite number between the two."""
    value = number(name, x)
    if not above < value < below:
        raise InputError(f"{name}={short(x)}: a number above {above:g} and below {below:g} is needed. {_EXAMPLE}")
    return value


def settle(scaler: Any, **values: Any) -> None:
    """Put checked settings into a frozen record."""
    for name, value in values.items():
        object.__setattr__(scaler, name, value)


def check_order(scaler: Any) -> None:
    """Refuse a minimum above the maximum, where there are both."""
    least, most = getattr(scaler, "min_scale", None), getattr(scaler, "max_scale", None)
    if least is not None and most is not None and least > most:
        raise InputError(f"min_scale={least!r}, max_scale={most!r}: the minimum must not be above the maximum. "
                         "Example: get_scaler('openseq2seq', min_scale=1.0, max_scale=2.0**24)")  # fmt: skip


class CountingScaler(FlagScaler):
    """A ``growth_interval`` of at least 1, and a positive first scale; what the originals check or take for granted."""

    init_scale: float
    growth_interval: int
    _above: ClassVar = {"growth_factor": 1.0, "scale_factor": 1.0}
    _below: ClassVar = {"backoff_factor": 1.0}
    _optional: ClassVar[tuple[str, ...]] = ()  # which may be None

    def __post_init__(self) -> None:
        settle(self, growth_interval=whole("growth_interval", self.growth_interval))
        has = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        for name in ("init_scale", "growth_factor", "backoff_factor", "scale_factor", "min_scale", "max_scale"):
            if name in has and not (getattr(self, name) is None and name in self._optional):
                bounds = {"above": self._above.get(name, 0.0), "below": self._below.get(name, math.inf)}
                settle(self, **{name: positive(name, getattr(self, name), **bounds)})
        check_order(self)

    @property
    def first_growth(self) -> int:
        return self.growth_interval


# --- strict checks ----------------------------------------------------------------------------------------------------
_STRICT: dict[str, tuple[float, float]] = {  # open intervals, by the name of the setting
    "init_scale": (0, math.inf), "growth_factor": (1, math.inf), "scale_factor": (1, math.inf),
    "backoff_factor": (0, 1), "min_scale": (0, math.inf), "max_scale": (0, math.inf),
}  # fmt: skip
_COUNTS = ("growth_interval", "hysteresis", "history", "amax_history_len")


def check_strict(settings: Any) -> None:
    """Refuse settings that make no sense for training, though an original may take them: a record, or keywords as dict.

    Rules: scale finite and above 0, growth above 1, backoff between 0 and 1, interval, hysteresis and history at least
    1, a minimum not above the first scale. Raises ``InputError`` that names the setting; None (not set) passes.

    >>> from numsim.scaling import GradScaler
    >>> check_strict(GradScaler(growth_interval=0))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    numsim.errors.InputError: growth_interval=0: at least 1 is needed. Example: ...
    """
    if isinstance(settings, dict):
        given = settings
    elif dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        given = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    else:
        raise InputError(f"{short(settings)}: a scaler, or its settings as a dict, is needed. {_EXAMPLE}")
    for name, (above, below) in _STRICT.items():
        if (x := given.get(name)) is not None:
            positive(name, x, above=above, below=below)
    for name in _COUNTS:
        if (x := given.get(name)) is not None and whole(name, x, -(2**63)) < 1:
            raise InputError(f"{name}={short(x)}: at least 1 is needed. {_EXAMPLE}")
    first, least, most = (given.get(name) for name in ("init_scale", "min_scale", "max_scale"))
    if first is not None and ((least is not None and least > first) or (most is not None and most < first)):
        raise InputError(
            f"init_scale={short(first)}: not between the minimum {least} and the maximum {most}. {_EXAMPLE}"
        )
