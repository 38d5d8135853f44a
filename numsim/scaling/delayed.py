"""Delayed scaling: an FP8 scale made from the largest magnitudes of earlier steps, as Transformer Engine makes it.

The tensor of this step is quantised with the scale that the steps before have left, so that nothing waits for its amax;
the amax is noted, and after the step the scale follows. The price is a lag of one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numsim import kernels
from numsim.blocks import BlockArray, BlockFormat, quantize
from numsim.blocks.array import amaxes
from numsim.blocks.formats import FP8_TENSOR, FP8_TENSOR_E5M2
from numsim.blocks.rules import FLT_MAX, F, Floats
from numsim.blocks.tiles import as_fp32
from numsim.errors import InputError, check_choice, short
from numsim.files import is_label
from numsim.host import check_ieee
from numsim.scaling.scaler import as_numbers, number, reciprocal, settle
from numsim.traces import Event, Trace
from numsim.values import is_whole

DIRECTIONS = ("forward", "backward")
_BEYOND = {  # from which FP32 number on rounding to nearest leaves the range: 464 still ties to 448
    FP8_TENSOR.name: np.nextafter(F(464), F(np.inf)),
    FP8_TENSOR_E5M2.name: F(61440),
}
_STATES, _RECORDS = "Example: recipe.initial()", "Example: recipe.record(state, 2.5)"
_EXAMPLE = "Example: DelayedScaling(margin=0, fp8_format='HYBRID', amax_history_len=1024, amax_compute_algo='max')"


@dataclass(frozen=True, eq=False)
class DelayedState:
    """What delayed scaling remembers of one tensor.

    scale : an FP32 number as a float; the next tensor is multiplied by it.
    amax_history : float32, kept read-only. [0] is the largest magnitude since the last update, [1:] those of the
        updates before, from the oldest to the newest.
    direction : "forward" (inputs and weights) or "backward" (gradients of outputs).
    amax : what the last update made the scale from; 0 where it had nothing.

    >>> state = DelayedScaling(amax_history_len=4).initial()
    >>> state.scale, state.amax_history.tolist()
    (1.0, [0.0, 0.0, 0.0, 0.0])
    """

    scale: float
    amax_history: Floats
    direction: str = "forward"
    amax: float = 0.0

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, DIRECTIONS, "recipe.initial('backward')")
        history = as_fp32(self.amax_history).copy()
        if history.ndim != 1 or not history.size or (history < 0).any():
            raise InputError(f"amax_history={short(self.amax_history)}: one axis and at least one number, none of them "
                             f"negative, are needed. {_STATES}")  # fmt: skip
        history.flags.writeable = False
        scale, amax = (_number(name, getattr(self, name), _STATES) for name in ("scale", "amax"))
        settle(self, amax_history=history, scale=float(scale), amax=float(amax))

    @property
    def inv_scale(self) -> float:
        """What is stored with the codes to undo the scale: 1 / scale in FP32."""
        check_ieee()
        return reciprocal(self.scale)


@dataclass(frozen=True)
class DelayedScaling:
    """Transformer Engine's recipe of the same name: settings, and what becomes of a state.

    A step quantises (``quantize``, which notes the amax), then updates: the scale becomes largest code / amax.

    Rules
    -----
    NaN : elements that are NaN stay NaN, and are left out of the amax. A NaN in the history (only a given state or a
        given ``reduced`` has one) is left out by the fused update; the unfused update then keeps the scale.
    Inf : an infinite amax keeps the scale: for one update with "most_recent", with "max" until it has left the
        history, ``amax_history_len`` updates. Infinite elements saturate.
    zero : a largest magnitude of 0 (zeros, or a module that did not run) changes nothing in the fused update; the
        unfused one moves the history on and makes the scale anew.
    overflow : elements beyond the largest code / scale saturate; a scale that overflows is FP32's largest number. One
        that underflows (a large margin and a large amax) is 0, and decoding gives NaN: the original has no guard.
    arithmetic : FP32, a rounding an operation. Fused: (largest code x 2^-margin) / amax. Unfused: ((1 / amax) x largest
        code) / 2^margin, since torch divides a number by a tensor so; one scale in four is an ulp away from the fused
        one, and the product may overflow before the margin divides it.

    Parameters
    ----------
    margin : a whole number from -126 to 126; the scale is 2^margin times smaller than it could be.
    fp8_format : "HYBRID" (E4M3 forward, E5M2 backward) or "E4M3" (both).
    amax_history_len : how many updates are remembered, at least 1.
    amax_compute_algo : "max", "most_recent", or a function of the history (float32, [0] is the newest) to an amax.
    scaling_factor_compute_algo : None, or a function (amax, scale, fp8_max, recipe) to the new scale, which is taken as
        it is; ``power_of_two_scale`` is the formula of the first versions.
    reduce_amax : whether simulated ranks share their largest amax (``update_ranks``).
    fused : one kernel for all tensors, the original's default; functions make any recipe unfused.

    The original's fp8_dpa and fp8_mha (attention in FP8) are not modelled. Its first versions had a history of 1.
    Raises ``InputError``. Cost: an update walks through the history.
    Source: NVIDIA Transformer Engine d0067d0, common/recipe/delayed_scaling.cu, pytorch/quantization.py.

    >>> recipe = DelayedScaling(amax_history_len=4)
    >>> state = recipe.initial()
    >>> x, state = recipe.quantize(state, [1.0, 2.0, 1000.0])  # with the scale 1: 1000 saturates
    >>> x.values.tolist(), recipe.update(state).scale
    ([1.0, 2.0, 448.0], 0.4480000138282776)

    Recomputation under checkpointing needs the state of the first forward pass, and states are values: keep it.

    >>> before = state = recipe.update(state)
    >>> first, state = recipe.quantize(state, [1.0, 2.0, 1000.0])
    >>> state = recipe.update(state)
    >>> again, _ = recipe.quantize(before, [1.0, 2.0, 1000.0])  # its amax is counted already
    >>> (first.codes == again.codes).all()
    np.True_

    Weights are quantised in the first micro-batch only; the updates after the others find no amax and change nothing.

    >>> recipe.update(state).scale == state.scale
    True
    """

    margin: int = 0
    fp8_format: str = "HYBRID"
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable[[Floats], Any] = "max"
    scaling_factor_compute_algo: Callable[[np.float32, np.float32, float, DelayedScaling], Any] | None = None
    reduce_amax: bool = True
    fused: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.fp8_format, str) and self.fp8_format == "E5M2":
            raise InputError(
                "fp8_format='E5M2': training in E5M2 alone is refused, as in the original; HYBRID has it for the "
                f"gradients. {_EXAMPLE}"
            )
        check_choice("fp8_format", self.fp8_format, ("HYBRID", "E4M3"), "DelayedScaling(fp8_format='HYBRID')")
        for name, value, low, high in (
            ("margin", self.margin, -126, 126),
            ("amax_history_len", self.amax_history_len, 1, 1 << 24),
        ):
            if not is_whole(value) or not low <= value <= high:
                raise InputError(f"{name}={short(value)}: a whole number from {low} to {high} is needed. {_EXAMPLE}")
        if not callable(self.amax_compute_algo):
            allowed = ("max", "most_recent")
            check_choice("amax_compute_algo", self.amax_compute_algo, allowed, _EXAMPLE.removeprefix("Example: "))
        if self.scaling_factor_compute_algo is not None and not callable(self.scaling_factor_compute_algo):
            raise InputError(f"scaling_factor_compute_algo={short(self.scaling_factor_compute_algo)}: None or a "
                             "function is needed. Example: scaling_factor_compute_algo=power_of_two_scale")  # fmt: skip
        for name in ("reduce_amax", "fused"):
            if not isinstance(value := getattr(self, name), bool):
                raise InputError(f"{name}={short(value)}: True or False is needed. {_EXAMPLE}")

    @property
    def is_fused(self) -> bool:
        """Whether the fused kernel updates: functions are never fused."""
        return self.fused and not callable(self.amax_compute_algo) and self.scaling_factor_compute_algo is None

    def format(self, direction: str = "forward") -> BlockFormat:
        """The block format of tensors of a direction: one scale a tensor."""
        check_choice("direction", direction, DIRECTIONS, "recipe.format('backward')")
        return FP8_TENSOR_E5M2 if direction == "backward" and self.fp8_format == "HYBRID" else FP8_TENSOR

    def initial(self, direction: str = "forward") -> DelayedState:
        """The state before the first step: scale 1, no amax seen."""
        return DelayedState(1.0, np.zeros(self.amax_history_len, np.float32), direction)

    def quantize(self, state: DelayedState, x: Any) -> tuple[BlockArray, DelayedState]:
        """Numbers in FP8 with the scale that the state has, and the state that has noted their largest magnitude."""
        self._check(state)
        made = quantize(x, self.format(state.direction), multiplier=state.scale)
        return made, self.record(state, _amax(as_fp32(x)))

    def record(self, state: DelayedState, amax: Any) -> DelayedState:
        """Note the largest magnitude of a tensor; several tensors before an update leave the largest."""
        self._check(state)
        history = state.amax_history.copy()
        history[0] = np.fmax(history[0], _as_amax("amax", amax))
        return DelayedState(state.scale, history, state.direction, state.amax)

    def update(self, state: DelayedState, reduced: Any = None) -> DelayedState:
        """The state after a step; ``reduced`` is the largest amax of all ranks (``reduce_amax``)."""
        self._check(state)
        if reduced is not None:
            reduced = _as_amax("reduced", reduced)
        fp8_max = self.format(state.direction).element_max
        with np.errstate(all="ignore"):
            amax, history, scale = self._next(state.amax_history, F(state.scale), fp8_max, reduced)
        return DelayedState(float(scale), history, state.direction, float(amax))

    def update_ranks(self, states: Iterable[DelayedState]) -> tuple[DelayedState, ...]:
        """One update on each simulated rank; with ``reduce_amax`` all see the largest amax of all."""
        states = _as_states(states)
        reduced = reduce_amax(states) if self.reduce_amax and len(states) > 1 else None
        return tuple(self.update(state, reduced) for state in states)

    def _check(self, state: Any) -> None:
        check_ieee()
        _as_states([state])
        if len(state.amax_history) != self.amax_history_len:
            raise InputError(f"a state with a history of {len(state.amax_history)} for a recipe with one of "
                             f"{self.amax_history_len}: the same is needed. {_STATES}")  # fmt: skip

    def _next(
        self, history: Floats, scale: np.float32, fp8_max: float, reduced: np.float32 | None = None
    ) -> tuple[np.float32, Floats, np.float32]:
        """The amax to scale by, the next history, the next scale."""
        algo, amax = self.amax_compute_algo, F(0)
        if self.is_fused:
            last = reduced or history[0]  # a reduced 0 does not count
            if last != 0:  # the oldest, history[1], goes, and still has its say
                amax = last if algo == "most_recent" else np.fmax.reduce(history[1:], initial=last)
                history = _rolled(history, last)
        else:
            if reduced is not None:
                history = history.copy()
                history[0] = reduced
            if callable(algo):
                amax = _number("what amax_compute_algo returned", algo(history.copy()))
            else:
                amax = history[0] if algo == "most_recent" else np.maximum.reduce(history)
            history = _rolled(history, history[0])
        if self.scaling_factor_compute_algo is not None:
            made = self.scaling_factor_compute_algo(amax, scale, fp8_max, self)
            return amax, history, _number("what scaling_factor_compute_algo returned", made)
        if 0 < amax < np.inf:
            if self.is_fused:
                scale = F(fp8_max) * _power(-self.margin) / amax
            else:
                scale = _quotient(fp8_max, amax) / _power(self.margin)
        return amax, history, FLT_MAX if np.isinf(scale) else scale


def power_of_two_scale(amax: np.float32, scale: np.float32, fp8_max: float, recipe: DelayedScaling) -> np.float32:
    """The scale of the versions before 0.13: 2^(floor(log2(fp8_max / amax)) - margin), a power of two.

    Rules: an amax of 0 or NaN keeps the scale. An infinite one turns it into its reciprocal: the original inverts where
    the exponent is negative, after it has put the old scale in. Nothing guards against overflow: a tiny amax gives an
    infinite scale. log2 is FP32's, which just below a power of two rounds up to it.
    Source: NVIDIA Transformer Engine before PR 427, pytorch/fp8.py.

    >>> recipe = DelayedScaling(amax_history_len=1, scaling_factor_compute_algo=power_of_two_scale)
    >>> recipe.update(recipe.record(recipe.initial(), 3.0)).scale, 448 / 3
    (128.0, 149.33333333333334)
    """
    check_ieee()
    if not isinstance(recipe, DelayedScaling):
        raise InputError(f"recipe={short(recipe)}: a DelayedScaling is needed. "
                         "Example: DelayedScaling(scaling_factor_compute_algo=power_of_two_scale)")  # fmt: skip
    amax, scale, largest = (
        _number(name, x, "Example: power_of_two_scale(2.0, 1.0, 448.0, recipe)")
        for name, x in (("amax", amax), ("scale", scale), ("fp8_max", fp8_max))
    )
    with np.errstate(all="ignore"):
        quotient = float(_quotient(float(largest), amax))
        if 0 < quotient < math.inf:
            # FP64's log2 rounded is FP32's: no FP32 number has a logarithm near enough to half way
            exponent = int(np.floor(F(math.log2(quotient)))) - recipe.margin
            size = _power(abs(exponent))
        else:  # amax is 0, infinite or NaN, or so tiny that the quotient overflows
            exponent, size = -1 if quotient == 0 else 1, F(np.inf)
        if not 0 < amax < np.inf:
            size = scale
        return F(1 / size) if exponent < 0 else size


def reduce_amax(states: Iterable[DelayedState]) -> float:
    """The largest amax that simulated ranks have noted since their last update: an all-reduce with MAX.

    >>> recipe = DelayedScaling(amax_history_len=4)
    >>> ranks = [recipe.record(recipe.initial(), amax) for amax in (1.0, 4.0)]
    >>> reduce_amax(ranks), [state.scale for state in recipe.update_ranks(ranks)]
    (4.0, [112.0, 112.0])
    """
    check_ieee()
    states = _as_states(states)
    return float(np.fmax.reduce([state.amax_history[0] for state in states], initial=F(0)))


def replay_amaxes(
    recipe: DelayedScaling, amaxes: Any = None, *, tensors: Iterable[Any] | None = None, direction: str = "forward"
) -> Trace:
    """Delayed scaling over a series of amaxes, or of tensors: what scale each step used, and what it left.

    Series: "amax", "scale used" (by the step's own tensor), "scale" (after the update), "clip limit" (largest code /
    scale used) and, where tensors are given, "share clipped" of their elements. Clipped is what rounding to nearest
    takes beyond the largest code. Events: "clipped" (the step's amax is), "inf" (it is infinite), "frozen" (an infinity
    or NaN in the history keeps the scale), "skipped" (an amax of 0 in the fused update: nothing changes).

    Parameters
    ----------
    amaxes : non-negative numbers in one axis, rounded to FP32; a NaN counts as an amax of 0.
    tensors : arrays instead of amaxes.

    Raises ``InputError``. Cost: some ten microseconds a step, and the history's length.

    >>> recipe = DelayedScaling(amax_history_len=4)
    >>> print(replay_amaxes(recipe, [1, 2, 4, 0, 0.5]))
    delayed scaling, E4M3, max of 4: 5 steps
      step  amax  scale used  scale  clip limit  event
         0     1           1    448         448
         1     2         448    224           1  clipped: 2 x the limit
         2     4         224    112           2  clipped: 2 x the limit
         3     0         112    112           4  skipped: nothing noted
         4   0.5         112    112           4
    """
    if not isinstance(recipe, DelayedScaling) or (amaxes is None) == (tensors is None):
        raise InputError(f"replay_amaxes({short(recipe)}, ...): a DelayedScaling and either amaxes or tensors are "
                         "needed. Example: replay_amaxes(DelayedScaling(), [1.0, 2.0, 4.0])")  # fmt: skip
    check_ieee()
    algo, factor = (_name(x) for x in (recipe.amax_compute_algo, recipe.scaling_factor_compute_algo))
    try:
        steps = iter(_as_amaxes(amaxes) if tensors is None else map(as_fp32, tensors))
    except TypeError:
        raise InputError(f"tensors={short(tensors)}: arrays in a list are needed. "
                         "Example: replay_amaxes(recipe, tensors=[[1.0, 2.0], [4.0]])") from None  # fmt: skip
    format = recipe.format(direction)
    fp8_max, beyond = format.element_max, _BEYOND[format.name]
    history, scale = recipe.initial(direction).amax_history.copy(), F(1)
    rows, shares, events = list[tuple[float, float, float]](), list[float](), list[Event]()
    with np.errstate(all="ignore"):
        for step, given in enumerate(steps):
            amax, used = (given if tensors is None else _amax(given)), scale
            history[0] = amax
            chosen, history, scale = recipe._next(history, scale, fp8_max)
            rows.append((float(amax), float(used), float(scale)))
            if tensors is not None:
                shares.append(np.count_nonzero(np.abs(given) * used >= beyond) / max(given.size, 1))
            if amax * used >= beyond:
                events.append(Event(step, "clipped", f"{float(amax) * float(used) / fp8_max:.4g} x the limit"))
            if np.isinf(amax):
                events.append(Event(step, "inf"))
            if not np.isfinite(chosen) and scale == used:
                events.append(Event(step, "frozen", f"amax {chosen} in the history"))
            if amax == 0 and recipe.is_fused:
                events.append(Event(step, "skipped", "nothing noted"))
    amax_series, used_series, scale_series = np.array(rows, np.float64).reshape(-1, 3).T
    with np.errstate(all="ignore"):
        clip_limit = fp8_max / used_series
    series = {"amax": amax_series, "scale used": used_series, "scale": scale_series, "clip limit": clip_limit}
    if tensors is not None:
        series["share clipped"] = np.array(shares)
    about = {
        "recipe": "delayed scaling", "direction": direction, "margin": int(recipe.margin),
        "fp8_format": recipe.fp8_format, "amax_history_len": int(recipe.amax_history_len), "amax_compute_algo": algo,
        "scaling_factor_compute_algo": factor, "fused": recipe.is_fused,
    }  # fmt: skip
    what = f"max of {recipe.amax_history_len}" if algo == "max" else str(algo).replace("_", " ")
    title = f"delayed scaling, {format.element.title}, {what}{'' if recipe.is_fused else ', unfused'}"
    return Trace(title, np.arange(len(rows)), series, tuple(events), about)


# --- parts ------------------------------------------------------------------------------------------------------------
def _rolled(history: Floats, last: np.float32) -> Floats:
    """Entries one place nearer to the front, the last step's at the end, 0 in front."""
    rolled = np.empty_like(history)
    rolled[:-1] = history[1:]
    rolled[-1] = last
    rolled[0] = 0
    return rolled


def _quotient(number: float, tensor: np.float32) -> np.float32:
    """A Python number divided by a tensor in torch (eager, scripted or compiled): by its reciprocal."""
    quotient: np.float32 = F(1) / tensor * F(number)
    return quotient


def _power(exponent: int) -> np.float32:
    power: np.float32 = F(math.ldexp(1.0, int(exponent)))
    return power


def _amax(x: Floats) -> np.float32:
    """The largest magnitude, NaN left out; 0 where there is nothing."""
    find = amaxes
    if kernels.use(x.size):
        from numsim.kernels import blocks

        find = blocks.amaxes
    row = np.ascontiguousarray(x).reshape(1, -1)
    amax: np.float32 = find(row, 1, x.size, "ignored")[0, 0] if x.size else F(0)
    return amax


def _number(name: str, x: Any, example: str = "Example: lambda history: history.max()") -> np.float32:
    """What was given, or what a function of the caller's returned, rounded to FP32."""
    x = x[()] if isinstance(x, np.ndarray) and not x.ndim else x
    value = number(name, x, example)
    with np.errstate(all="ignore"):
        rounded: np.float32 = F(value)
        return rounded


def _as_amax(name: str, x: Any) -> np.float32:
    amax = F(-1) if isinstance(x, (bool, np.bool_)) else _number(name, x, _RECORDS)
    if amax < 0:
        raise InputError(f"{name}={short(x)}: a number that is not negative is needed. {_RECORDS}")
    return amax


def _as_amaxes(x: Any) -> Floats:
    amaxes = as_numbers(x)
    if amaxes.ndim != 1 or (amaxes.size and amaxes.dtype.kind not in "uif") or (amaxes < 0).any():
        raise InputError(f"amaxes={short(x)}: numbers that are not negative, in one axis, are needed. "
                         "Example: [1.0, 2.0, 4.0]")  # fmt: skip
    with np.errstate(over="ignore"):
        rounded: Floats = np.fmax(amaxes, 0).astype(np.float32)
        return rounded


def _as_states(states: Any) -> list[DelayedState]:
    try:
        given = list(states)
    except TypeError:  # a single one
        given = [states]
    for state in given:
        if not isinstance(state, DelayedState):
            raise InputError(f"{short(state)}: a DelayedState is needed. {_STATES}")
    return given


def _name(algo: Any) -> str | None:
    """How a trace calls an algorithm of the recipe."""
    if algo is None or isinstance(algo, str):
        return algo
    try:
        name = algo.__name__
    except Exception:  # somebody's own callable
        name = None
    return name if is_label(name, 60) and name.strip() else "a function"
