"""SGD, Adam and AdamW on weights of any format: pure functions of a state, rounded where torch rounds.

``order`` says where: "single-tensor" rounds every intermediate tensor to its own format (torch's ``foreach=False``,
the default on the CPU), "foreach" also rounds the betas, momenta and decays that tensors are multiplied by
(``foreach=True`` on the CPU; CUDA's kernels do not), "fused" keeps everything in FP32 and rounds what is written back.
``update`` says how a weight is written back:

* "plain": rounded to the nearest; an update of at most half the spacing of the weight's format is lost.
* "master": the update goes into an FP32 copy, of which the weight is the rounding.
* "stochastic": computed in FP32, rounded up or down with 16 random bits: right on average.
* "kahan": c += u; t = w + c; c += w - t; w = t, every step in the weight's format: c keeps what w cannot show.

Sources: torch 2.13, torch/optim/sgd.py and adam.py; P. Micikevicius et al., Mixed Precision Training, ICLR 2018
(masters); P. Zamirai et al., Revisiting BFloat16 Training, arXiv:2010.06192, and torchdistX's AnyPrecisionAdamW (Kahan,
stochastic); torchao 0.18, torchao/optim/quant_utils.py (16 random bits).
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.errors import InputError, check_choice, short
from numsim.formats import FP32, Format, get_format
from numsim.host import check_ieee
from numsim.optimizers.tensors import Tensor, Tensors, fit
from numsim.values import from_torch, is_whole

UPDATES = ("plain", "master", "stochastic", "kahan")
ORDERS = ("single-tensor", "foreach", "fused")
_INITIAL = "Example: SGD(0.1).initial([1.0, 2.0])"


class Bytes(NamedTuple):
    """Bytes of one parameter: its weight, its gradient, what the optimizer keeps (masters and compensation too).

    >>> Bytes(2, 2, 12).total
    16
    """

    weight: int
    gradient: int
    optimizer: int

    @property
    def total(self) -> int:
        """All bytes together."""
        return self.weight + self.gradient + self.optimizer


@dataclass(frozen=True, eq=False)
class State:
    """Weights and what the optimizer remembers of them; float32 arrays, copies that cannot be written to.

    step : updates so far. weights : values of the weights' format. slots : further tensors by name: "momentum";
    "exp_avg", "exp_avg_sq"; "master"; "compensation". update : what the last step wanted to add to the weights in
    FP32 (without a decoupled weight decay).
    """

    step: int
    weights: Tensor
    slots: Mapping[str, Tensor] = field(default_factory=dict)
    update: Tensor | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.step) or not 0 <= self.step < 1 << 53:
            raise InputError(f"step={short(self.step)}: a count of updates is needed. {_INITIAL}")
        if not isinstance(self.slots, Mapping):
            raise InputError(f"slots={short(self.slots)}: tensors by name are needed. {_INITIAL}")
        weights, slots = _kept(self.weights), {name: _kept(x) for name, x in self.slots.items()}
        update = None if self.update is None else _kept(self.update)
        for name, x in (*slots.items(), ("update", weights if update is None else update)):
            if x.shape != weights.shape:
                raise InputError(f"{short(name)} of shape {x.shape} for weights of shape {weights.shape}: one number "
                                 f"for each weight is needed. {_INITIAL}")  # fmt: skip
        object.__setattr__(self, "step", int(self.step))
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "slots", MappingProxyType(slots))
        object.__setattr__(self, "update", update)


@dataclass(frozen=True)
class Optimizer(ABC):
    """What SGD, Adam and AdamW have in common: formats, and how the weights are written back."""

    lr: float = 1e-3
    _: KW_ONLY
    weight_decay: float = 0.0
    format: Any = "fp32"
    states: Any = None
    gradients: Any = None
    update: str = "plain"
    order: str = "single-tensor"
    fma: bool = True

    def __post_init__(self) -> None:
        check_choice("update", self.update, UPDATES, self._call)
        check_choice("order", self.order, ORDERS, self._call)
        Tensors(self.fma)  # refuses what is no bool
        for name, value in (("format", self.format), ("states", self._states), ("gradients", self._gradients)):
            format = get_format(value)
            if not format.fits(FP32) or not format.signed:
                raise InputError(f"{name}={format}: needed are signed numbers that FP32 holds. Example: {self._call}")
            object.__setattr__(self, name, format)
        if self.update == "kahan" and self.order == "fused":
            raise InputError(f"update='kahan' rounds every step: another order than 'fused' is needed. "
                             f"Example: {self._call}")  # fmt: skip
        for name in self._settings:
            object.__setattr__(self, name, _python(getattr(self, name)))
        for name, value, low, high in self._numbers():
            if not _is_finite(value) or not low <= value < high:
                rule = (
                    f"a finite number from {low:g} on"
                    if high == math.inf
                    else f"a number from {low:g} to below {high:g}"
                )
                raise InputError(f"{name}={short(value)}: {rule} is needed. Example: {self._call}")

    @property
    def _call(self) -> str:
        return f"numsim.optimizers.{type(self).__name__}(1e-3, format='bf16', update='master')"

    @property
    def _states(self) -> Any:
        if self.states is not None:
            return self.states
        return FP32 if self.update == "master" else self.format

    @property
    def _gradients(self) -> Any:
        return self.format if self.gradients is None else self.gradients

    _settings: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")

    def _numbers(self) -> list[tuple[str, Any, float, float]]:
        """Name, value, least allowed, first too large."""
        return [("lr", self.lr, 0.0, math.inf), ("weight_decay", self.weight_decay, 0.0, math.inf)]

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of what the optimizer keeps of each weight, in the states' format."""
        return ()

    @property
    def _slots(self) -> tuple[str, ...]:
        return *{"master": ("master",), "kahan": ("compensation",)}.get(self.update, ()), *self.tensors

    @property
    def bytes(self) -> Bytes:
        """Bytes per parameter.

        >>> AdamW(format="bf16", update="master").bytes, AdamW(format="bf16", update="kahan").bytes
        (Bytes(weight=2, gradient=2, optimizer=12), Bytes(weight=2, gradient=2, optimizer=6))
        """
        extra = {"master": 4, "kahan": _size(self.format)}.get(self.update, 0)
        return Bytes(_size(self.format), _size(self.gradients), len(self.tensors) * _size(self.states) + extra)

    # --- a step
    def initial(self, weights: Any) -> State:
        """The state before the first step; the weights are rounded to their format (the masters to FP32)."""
        check_ieee()
        start = fit(weights, self.format)
        slots = {name: fit(weights, FP32) if name == "master" else np.zeros_like(start) for name in self._slots}
        return State(0, start, slots)

    def step(self, state: State, gradient: Any, *, seed: Any = None, random_bits: Any = None) -> State:
        """One update; the gradient is first rounded to the gradients' format.

        Rules
        -----
        NaN, Inf : computed with as IEEE 754 says, nothing is skipped: that is the loss scaler's business.
        -0, subnormals : kept. overflow : infinity, where the format has one.

        Parameters: ``gradient`` of the weights' shape; ``seed`` or ``random_bits`` (below 2^16) for
        update="stochastic", as for ``numsim.encode``. Raises ``InputError`` for another shape, ``UnavailableError``
        where the CPU flushes subnormal numbers. Cost: some 20 passes over the weights.
        """
        check_ieee()
        if not isinstance(state, State) or state.slots.keys() != set(self._slots):
            has = f"slots {short([*state.slots])}" if isinstance(state, State) else short(state)
            raise InputError(f"a state with {has}: one with slots {[*self._slots]} is needed. "
                             "Example: optimizer.step(optimizer.initial(weights), gradient)")  # fmt: skip
        g = fit(gradient, self.gradients)
        if g.shape != state.weights.shape:
            raise InputError(f"gradient of shape {g.shape} for weights of shape {state.weights.shape}: "
                             f"one number for each weight is needed. Example: step(state, gradient)")  # fmt: skip
        if (seed is not None or random_bits is not None) != (self.update == "stochastic"):
            rule = "needs seed= or random_bits=" if self.update == "stochastic" else "draws no random bits"
            raise InputError(f"update={self.update!r} {rule}. Example: step(state, gradient, seed=7)")
        wide = self.order == "fused" or self.update in ("master", "stochastic")
        w = state.slots.get("master", state.weights)
        with np.errstate(all="ignore"):
            return self._step(state, w, g, FP32 if wide else self.format, seed, random_bits)

    def _step(self, state: State, w: Tensor, g: Tensor, format: Format, seed: Any, random_bits: Any) -> State:
        t = Tensors(self.fma, self.order == "foreach")
        # in the fused order nothing is rounded before it is written back
        inner = FP32 if self.order == "fused" else self.states
        wanted = FP32 if format == FP32 else self.gradients
        w, slots, top, bottom, factor = self._direction(t, state, w, g, (format, inner, wanted))

        def add(x: Tensor, format: Format) -> Tensor:
            if bottom is None:
                return t.add_scaled(x, top, factor, format)
            return t.addcdiv(x, top, bottom, factor, format)

        slots = {name: fit(x, self.states) for name, x in slots.items()}
        if self.update == "kahan":
            c = add(state.slots["compensation"], format)
            new = fit(w + c, format)
            slots["compensation"] = fit(c + fit(w - new, format), format)
        else:
            new = add(w, format)
        if self.update == "master":
            slots["master"] = new
        if self.update == "stochastic":
            new = fit(new, self.format, rounding="stochastic", seed=seed, random_bits=random_bits, sr_bits=16)
        update = np.float32(factor) * top if bottom is None else np.float32(factor) * top / bottom
        return State(state.step + 1, fit(new, self.format), slots, np.asarray(update))

    @abstractmethod
    def _direction(
        self, t: Tensors, state: State, w: Tensor, g: Tensor, formats: tuple[Format, Format, Format]
    ) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor | None, float]:
        """The decayed weights, the new slots, and what is added to the weights: factor * top, or factor * top / bottom.

        ``formats`` are those that weights, slots and gradients have in this calculation.
        """


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent: w -= lr * g, with momentum, dampening, Nesterov's and L2 weight decay.

    Rules: see ``step``. The first step copies the gradient into the momentum buffer. Formats: ``format`` of the
    weights, ``gradients`` (by default the same) and ``states`` (the same; FP32 with masters).
    Raises ``InputError`` for numbers out of range and for what torch refuses.
    torch 2.13's *fused* CPU kernel for 16-bit weights is no reference: it moves only what follows the last full vector.
    Source: torch 2.13, torch/optim/sgd.py.

    >>> sgd = SGD(0.1, format="bf16")
    >>> state = sgd.initial([1.0, 1.0])
    >>> sgd.step(state, [0.5, 0.01]).weights
    array([0.94921875, 1.        ], dtype=float32)
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    _settings = ("lr", "weight_decay", "momentum", "dampening")

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.nesterov, bool):
            raise InputError(f"nesterov={short(self.nesterov)}: allowed are True and False. Example: {self._call}")
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InputError(f"nesterov with momentum={self.momentum}, dampening={self.dampening}: a momentum and no "
                             f"dampening are needed. Example: SGD(0.1, momentum=0.9, nesterov=True)")  # fmt: skip

    def _numbers(self) -> list[tuple[str, Any, float, float]]:
        more = [
            ("momentum", self.momentum, 0.0, math.inf),
            ("dampening", self.dampening, -sys.float_info.max, math.inf),
        ]
        return [*super()._numbers(), *more]

    def _direction(
        self, t: Tensors, state: State, w: Tensor, g: Tensor, formats: tuple[Format, Format, Format]
    ) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor | None, float]:
        _, inner, wanted = formats
        if self.weight_decay:
            g = t.add_scaled(g, w, self.weight_decay, wanted)
        if not self.momentum:
            return w, {}, g, None, -self.lr
        if state.step == 0:
            after = fit(g, inner)
        else:
            after = t.add_scaled(t.mul(state.slots["momentum"], self.momentum, inner), g, 1 - self.dampening, inner)
        step = t.add_scaled(g, after, self.momentum, wanted) if self.nesterov else after
        return w, {"momentum": after}, step, None, -self.lr


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam: w -= lr * m / (sqrt(v) + eps), both averages freed of their start at zero; weight decay is L2.

    Rules: see ``step``. Constants are Python floats as in torch; the powers of the betas are the C library's.
    Formats as for ``SGD``. In "single-tensor" order eps is rounded to the states' format: in FP16 1e-8 is 0, and a
    gradient of 0 gives 0 / 0.
    Source: D. Kingma, J. Ba, Adam, ICLR 2015; torch 2.13, torch/optim/adam.py and FusedAdamKernel.cpp.

    >>> for order in ("single-tensor", "fused"):
    ...     adam = Adam(1e-3, format="fp16", order=order)
    ...     print(order, adam.step(adam.initial([1.0, 1.0]), [0.0, 1e-4]).weights)
    single-tensor [ nan -inf]
    fused [1.         0.99902344]
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    _settings = ("lr", "weight_decay", "eps")
    decoupled = False  # AdamW's

    def __post_init__(self) -> None:
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise InputError(f"betas={short(self.betas)}: two numbers are needed. Example: betas=(0.9, 0.999)")
        object.__setattr__(self, "betas", tuple(map(_python, self.betas)))
        super().__post_init__()

    def _numbers(self) -> list[tuple[str, Any, float, float]]:
        betas = [(f"betas[{i}]", beta, 0.0, 1.0) for i, beta in enumerate(self.betas)]
        return [*super()._numbers(), *betas, ("eps", self.eps, 0.0, math.inf)]

    @property
    def tensors(self) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _direction(
        self, t: Tensors, state: State, w: Tensor, g: Tensor, formats: tuple[Format, Format, Format]
    ) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor | None, float]:
        format, inner, wanted = formats
        (beta1, beta2), step = self.betas, float(state.step + 1)
        if self.weight_decay and self.decoupled:
            w = t.mul(w, 1 - self.lr * self.weight_decay, format)
        elif self.weight_decay:
            g = t.add_scaled(g, w, self.weight_decay, wanted)
        m = t.lerp(state.slots["exp_avg"], g, 1 - beta1, inner)
        v = t.addcmul(t.mul(state.slots["exp_avg_sq"], beta2, inner), g, g, 1 - beta2, inner)
        root = 1 - beta2**step
        root = math.sqrt(root) if self.order == "fused" else root**0.5  # what each of torch's two calls
        bottom = t.add(t.div(t.sqrt(v, inner), root, inner), self.eps, inner)
        return w, {"exp_avg": m, "exp_avg_sq": v}, m, bottom, -(self.lr / (1 - beta1**step))


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: first w *= 1 - lr * weight_decay, then Adam's step.

    Rules, formats, sources as for ``Adam``; I. Loshchilov, F. Hutter, Decoupled Weight Decay Regularization, ICLR 2019.
    In BF16 without masters the decay is a multiplication that does nothing while lr * weight_decay is below 2^-9.

    >>> adamw = AdamW(1e-2, weight_decay=0.1, format="bf16")
    >>> float(adamw.step(adamw.initial(1.0), 0.0).weights)
    1.0
    """

    weight_decay: float = 1e-2

    decoupled = True


def _size(format: Format) -> int:
    return -(-format.bits // 8)


def _python(x: Any) -> Any:
    """NumPy's numbers as Python's."""
    return x.item() if isinstance(x, (np.integer, np.floating)) else x


def _is_finite(x: Any) -> bool:
    """Whether x is a Python number, no bool, that is a finite double."""
    try:
        return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)
    except OverflowError:
        return False


def _kept(x: Any) -> Tensor:
    kept = np.array(fit(x, FP32))
    kept.flags.writeable = False
    return kept


# --- lost updates ----------------------------------------------------------------------------------------------------
def lost_updates(before: State, after: State) -> npt.NDArray[np.bool_]:
    """Where a step wanted to change a weight and nothing that is stored took it: weight, master or compensation.

    A decay alone is no update. With stochastic rounding a weight that stays is chance, and right on average.

    >>> sgd = SGD(0.1, format="bf16")
    >>> first = sgd.initial([1.0, 1.0, 1.0])
    >>> lost_updates(first, sgd.step(first, [0.5, 0.01, 0.0]))
    array([False,  True, False])
    """
    check_ieee()
    if not isinstance(before, State) or not isinstance(after, State):
        raise InputError(f"lost_updates({short(before)}, {short(after)}): two states are needed. "
                         "Example: lost_updates(state, optimizer.step(state, gradient))")  # fmt: skip
    if before.weights.shape != after.weights.shape or before.slots.keys() != after.slots.keys():
        raise InputError("the two states are not of the same weights and optimizer. "
                         "Example: lost_updates(state, optimizer.step(state, gradient))")  # fmt: skip
    if after.update is None:
        raise InputError("the second state is the first of a run: it has no update. Example: lost_updates(s, step(s))")
    kept = [(before.weights, after.weights)]
    kept += [(before.slots[x], after.slots[x]) for x in ("master", "compensation") if x in after.slots]
    return np.asarray((after.update != 0) & np.all([x == y for x, y in kept], axis=0))


def carry_and_cut(values: Any, random_bits: Any) -> Tensor:
    """Stochastic rounding to BF16 as torchao does it: add r below 2^16 to the FP32 bits, cut the low 16.

    Rules
    -----
    NaN : not looked for. With bits in its low half it can carry into the sign and become -0 (0x7FFFFFFF), or, where
        only the low half tells it from infinity, lose its payload and become infinity.
    Inf : kept. -0, subnormals : kept, rounded like all others.
    overflow : the largest finite number can carry to infinity, as in ``numsim.encode(..., rounding="stochastic")``,
        with which this agrees for everything that is no NaN.

    Source: torchao 0.18, torchao/optim/quant_utils.py.

    >>> carry_and_cut(np.uint32([0x7FFFFFFF, 0x3F800001]).view(np.float32), 0xFFFF)
    array([-0.       ,  1.0078125], dtype=float32)
    """
    values = np.asarray(values) if isinstance(values, np.generic) else from_torch(values)
    words = fit(values, FP32).view(np.uint32)
    try:
        drawn = np.asarray(from_torch(random_bits))
        np.broadcast_shapes(words.shape, drawn.shape)
    except (ValueError, TypeError, RuntimeError):
        drawn = np.array("")
    if drawn.dtype.kind not in "ui" or (drawn.size and not 0 <= int(drawn.min()) <= int(drawn.max()) < 1 << 16):
        raise InputError(f"random_bits={short(random_bits)}: integers from 0 to 65535 that broadcast to the values are "
                         "needed. Example: carry_and_cut([1.0, 2.0], [0, 65535])")  # fmt: skip
    return np.asarray((words + drawn.astype(np.uint32)) & np.uint32(0xFFFF0000)).view(np.float32)
