"""The whole of ``torch.amp.GradScaler``: stages for each optimizer, scaled losses, unscaled gradients, every error.

Tensors are NumPy arrays or ``Array``s. An optimizer is any object with ``param_groups`` (a list of dicts with a list
``"params"`` of objects with ``grad``) and ``step``, as torch has it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from numsim.array import Array, array
from numsim.errors import InputError, NumsimError, short, truth
from numsim.formats import FP16, FP32, FP64, Format, get_format
from numsim.operations import mul
from numsim.scaling.scaler import State, fp32, number, scale_number, settle, whole
from numsim.scaling.torch_scalers import GradScaler, int32

_EARLIER = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
_NEW_SCALE = (
    "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor with requires_grad=False."
)


class ProtocolError(NumsimError, RuntimeError):
    """A call out of turn: the message is torch's own, ``torch`` the name of the exception that it raises."""

    def __init__(self, message: str, torch: str) -> None:
        super().__init__(message)
        self.torch = torch

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.torch)


class Stage(Enum):
    """What an optimizer has been through since the last update."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


@dataclass(eq=False)
class Parameter:
    """A weight and its gradient, NumPy arrays or ``Array``s; ``grad`` None: no gradient arrived."""

    value: Any
    grad: Any = None


@dataclass
class _Record:
    stage: Stage = Stage.READY
    found_inf: list[float] = field(default_factory=list)  # empty: nothing was checked


class GradScalerProtocol:
    """A ``GradScaler`` as a training loop uses it, call for call and error for error.

    ======== ======================== ======== ========================================================================
    stage    call                     next     what happens
    ======== ======================== ======== ========================================================================
    any      scale                    same     loss times scale; the first call creates scale and tracker
    any      ``unscale_`` step update same     AssertionError before any ``scale``
    READY    ``unscale_``             UNSCALED gradients times inv_scale, in place; found_inf recorded
    READY    ``unscale_``, FP16 grad  same     ValueError, nothing changed
    READY    ``unscale_``, all None   UNSCALED nothing recorded
    UNSCALED ``unscale_``             same     RuntimeError
    STEPPED  ``unscale_``             same     RuntimeError
    READY    step                     STEPPED  ``unscale_`` first, then as UNSCALED
    UNSCALED step                     STEPPED  ``optimizer.step`` runs if found_inf is 0; its result, else None
    UNSCALED step, all None           same     AssertionError; only ``update(new_scale)`` leads on
    STEPPED  step                     same     RuntimeError
    any      step(closure=...)        same     RuntimeError
    any      update                   READY    the scaler's update with the found_inf of all optimizers together
    any      update, none recorded    same     AssertionError
    any      update(new_scale)        READY    a float or a 0-d array becomes the scale; the tracker stays
    ======== ======================== ======== ========================================================================

    An optimizer with ``_step_supports_amp_scaling`` (fused) unscales by itself: from READY its gradients are only
    checked, FP16 ones too; during ``step`` it has ``grad_scale`` (None if UNSCALED) and ``found_inf``, and always runs.

    Rules: a gradient is multiplied in fp32 (fp64 in fp64), rounded to its own format, and checked **before** that. A
    loss without axes in FP16 or BF16 becomes fp32; one with axes keeps its format, where 1 * 65536 is infinite.
    Settings are checked by ``GradScaler``; those set later, or loaded, are not, as in torch. ``enabled=False``: losses
    and gradients pass through untouched. Sparse gradients and several devices are not modelled.

    Raises ``ProtocolError``. Source: torch 2.13, torch/amp/grad_scaler.py.

    >>> from types import SimpleNamespace
    >>> weight = Parameter(np.float32([1.0]), np.float32([np.inf]))
    >>> optimizer = SimpleNamespace(param_groups=[{"params": [weight]}], step=lambda: "stepped")
    >>> scaler = GradScalerProtocol(GradScaler(init_scale=8.0))
    >>> scaler.scale(np.array(0.5, np.float16))
    array(4., dtype=float32)
    >>> scaler.step(optimizer), scaler.stage(optimizer).name
    (None, 'STEPPED')
    >>> scaler.update(); scaler.get_scale()
    4.0
    """

    def __init__(self, scaler: GradScaler | None = None, *, enabled: bool = True) -> None:
        scaler = GradScaler() if scaler is None else scaler
        if type(scaler) is not GradScaler:
            raise InputError("the protocol is that of torch's GradScaler. Example: GradScalerProtocol(GradScaler(8.0))")
        self._enabled = truth("enabled", enabled)
        self._init_scale: Any = scaler.init_scale
        self._init_growth_tracker: Any = 0
        self._growth_factor: Any = scaler.growth_factor
        self._backoff_factor: Any = scaler.backoff_factor
        self._growth_interval: Any = scaler.growth_interval
        self._scale: float | None = None
        self._growth_tracker: int | None = None
        self._records: dict[int, _Record] = {}

    # --- losses
    def scale(self, outputs: Any) -> Any:
        """A loss, or nested iterables of losses, times the scale."""
        if not self._enabled:
            return outputs
        if _is_tensor(outputs):
            if self._scale is None:  # one after the other, as in torch: the second may fail, and the scale is there
                self._scale = _filled(self._init_scale)
                self._growth_tracker = _filled_int(self._init_growth_tracker)
            return _scaled(outputs, self._scale)
        if isinstance(outputs, Iterable):
            results = map(self.scale, outputs)
            return type(outputs)(results) if isinstance(outputs, (list, tuple)) else results
        raise ProtocolError("outputs must be a Tensor or an iterable of Tensors", "ValueError")

    # --- gradients
    def unscale_(self, optimizer: Any) -> None:
        """Multiply the gradients of an optimizer by inv_scale, and remember whether one was not finite."""
        if not self._enabled:
            return
        state, record = self._begun("unscale_"), self._record(optimizer)
        if record.stage is Stage.UNSCALED:
            raise ProtocolError(
                "unscale_() has already been called on this optimizer since the last update().", "RuntimeError"
            )
        if record.stage is Stage.STEPPED:
            raise ProtocolError("unscale_() is being called after step().", "RuntimeError")
        record.found_inf = _unscale(optimizer, state.inv_scale, allow_fp16=False)
        record.stage = Stage.UNSCALED

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Unscale if that has not been done, and call ``optimizer.step`` unless something was not finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise ProtocolError("Closure use is not currently supported if GradScaler is enabled.", "RuntimeError")
        self._begun("step")
        record = self._record(optimizer)
        if record.stage is Stage.STEPPED:
            raise ProtocolError("step() has already been called since the last update().", "RuntimeError")
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            return self._fused_step(optimizer, record, *args, **kwargs)
        if record.stage is Stage.READY:
            self.unscale_(optimizer)
        if not record.found_inf:
            raise ProtocolError("No inf checks were recorded for this optimizer.", "AssertionError")
        result = None if sum(record.found_inf) else optimizer.step(*args, **kwargs)
        record.stage = Stage.STEPPED
        return result

    def _fused_step(self, optimizer: Any, record: _Record, *args: Any, **kwargs: Any) -> Any:
        takes_scaler = "grad_scaler" in inspect.signature(optimizer.step).parameters
        if takes_scaler:  # an older agreement, of which torch warns
            warnings.warn("an optimizer that takes grad_scaler: torch will stop passing it.", FutureWarning, 3)
            kwargs["grad_scaler"] = self
        else:
            given = getattr(optimizer, "grad_scale", None)
            if record.stage is Stage.READY:
                record.found_inf = _unscale(optimizer, 1.0, allow_fp16=True)
                given = fp32(self._begun("step").scale * (1.0 if given is None else fp32(float(given))))
            optimizer.grad_scale, optimizer.found_inf = given, sum(record.found_inf)
        result = optimizer.step(*args, **kwargs)
        record.stage = Stage.STEPPED
        if not takes_scaler:
            del optimizer.grad_scale, optimizer.found_inf
        return result

    # --- the scale
    def update(self, new_scale: Any = None) -> None:
        """The next scale, from what was found since the last update; or a scale of one's own."""
        if not self._enabled:
            return
        state = self._begun("update")
        if new_scale is not None:
            self._scale = _new_scale(new_scale)
        else:
            found = [x for record in self._records.values() for x in record.found_inf]
            if not found:
                raise ProtocolError("No inf checks were recorded prior to update.", "AssertionError")
            state = self._scaler().update(state, sum(found))
            self._scale, self._growth_tracker = state.scale, state.growth_tracker
        self._records = {}

    def _scaler(self) -> GradScaler:
        """The settings of now, which nobody has checked but for their types."""
        scaler = GradScaler()
        settle(
            scaler,
            growth_factor=_argument("scale_growth_factor", 4, self._growth_factor, "float"),
            backoff_factor=_argument("scale_backoff_factor", 5, self._backoff_factor, "float"),
            growth_interval=_argument("growth_interval", 6, self._growth_interval, "int"),
        )
        return scaler

    def _begun(self, call: str) -> State:
        for name in ("_scale", "_growth_tracker"):
            if getattr(self, name) is None:
                raise ProtocolError(f"Attempted {call} but {name} is None.  {_EARLIER}", "AssertionError")
        return State(self._scale, self._growth_tracker)  # type: ignore[arg-type]

    def _record(self, optimizer: Any) -> _Record:
        return self._records.setdefault(id(optimizer), _Record())

    # --- what can be read and set
    @property
    def state(self) -> State | None:
        """Scale and tracker; None before the first ``scale``, or where that could not make the tracker."""
        return None if self._scale is None or self._growth_tracker is None else State(self._scale, self._growth_tracker)

    def stage(self, optimizer: Any) -> Stage:
        """Where this optimizer stands."""
        return self._records.get(id(optimizer), _Record()).stage

    def is_enabled(self) -> bool:
        """Whether gradients are scaled at all."""
        return self._enabled

    def get_scale(self) -> Any:
        """The scale; before the first ``scale`` the initial one as it was given; 1.0 if not enabled."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else self._scale

    def get_growth_factor(self) -> Any:
        """The growth factor."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: Any) -> None:
        """Another growth factor, not checked."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> Any:
        """The backoff factor."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: Any) -> None:
        """Another backoff factor, not checked."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> Any:
        """The growth interval."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: Any) -> None:
        """Another growth interval, not checked; at or below the tracker it is never met until an overflow."""
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """Scale, settings and tracker under torch's names; stages are not in it. Empty if not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._init_growth_tracker if self._growth_tracker is None else self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave; nothing is checked but what a scale can hold."""
        if not self._enabled:
            return
        if not isinstance(state_dict, Mapping):
            raise InputError(f"state_dict={short(state_dict)}: a dict is needed. Example: scaler.state_dict()")
        if not state_dict:
            raise ProtocolError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.",
                "RuntimeError",
            )
        try:  # in torch's order: what comes before a missing or impossible entry has been taken over
            self._init_scale = state_dict["scale"]
            if self._scale is not None:
                self._scale = _filled(state_dict["scale"])
            self._growth_factor = state_dict["growth_factor"]
            self._backoff_factor = state_dict["backoff_factor"]
            self._growth_interval = state_dict["growth_interval"]
            self._init_growth_tracker = state_dict["_growth_tracker"]
            if self._growth_tracker is not None:
                self._growth_tracker = _filled_int(state_dict["_growth_tracker"])
        except KeyError as missing:
            raise ProtocolError(str(missing), "KeyError") from None


# --- tensors ----------------------------------------------------------------------------------------------------------
def _is_tensor(x: Any) -> bool:
    return isinstance(x, (Array, np.ndarray, np.generic))


def _as_array(x: Any) -> Array:
    """As an Array; integers and booleans become fp32, as next to an fp32 scale."""
    if isinstance(x, Array):
        return x
    return array(x, get_format(x.dtype) if x.dtype.kind in "fV" else FP32)


def _like(x: Any, result: Array) -> Any:
    """The result as an Array if x is one, else as NumPy."""
    if isinstance(x, Array):
        return result
    return np.asarray(result.values).astype(np.float32 if result.format == FP32 else x.dtype)


def _wide(format: Format) -> Format:
    return FP64 if format == FP64 else FP32


def _scaled(loss: Any, scale: float) -> Any:
    x = _as_array(loss)
    wide = _wide(x.format)
    product = mul(x.astype(wide), array(scale, wide))
    return _like(loss, product.astype(x.format if x.ndim else wide))


def _unscale(optimizer: Any, inv_scale: float, *, allow_fp16: bool) -> list[float]:
    """Multiply the gradients in place; [0.0] or [1.0] if one was not finite, [] if there was none."""
    try:
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    except (AttributeError, TypeError, KeyError):
        raise InputError(
            f"optimizer={short(optimizer)}: param_groups are needed, dicts with a list of params. "
            "Example: SimpleNamespace(param_groups=[{'params': [Parameter(w, grad)]}], step=...)"
        ) from None
    formats = [_as_array(p.grad).format for p in params]
    if FP16 in formats and not allow_fp16:
        raise ProtocolError("Attempting to unscale FP16 gradients.", "ValueError")
    found = 0.0
    for p in params:
        grad = _as_array(p.grad)
        wide = grad.astype(_wide(grad.format))
        found = found if np.isfinite(wide.values).all() else 1.0
        if inv_scale != 1:
            result = mul(wide, array(inv_scale, wide.format)).astype(grad.format)
            if isinstance(p.grad, np.ndarray):
                p.grad[...] = _like(p.grad, result)
            else:
                p.grad = result
    return [found] if params else []


def _new_scale(x: Any) -> float:
    if isinstance(x, float):
        return _filled(x)
    if not isinstance(x, (Array, np.ndarray)):
        try:
            x.device.type  # noqa: B018 - torch's own way to find out, and its own words
        except AttributeError as error:
            raise ProtocolError(str(error), "AttributeError") from None
    if x.size != 1:
        raise ProtocolError(_NEW_SCALE, "AssertionError")
    if x.ndim:
        shape = list(x.shape)
        raise ProtocolError(f"output with shape [] doesn't match the broadcast shape {shape}", "RuntimeError")
    return float(_as_array(x).astype(FP32))


# --- numbers that go into tensors, and into the kernel ----------------------------------------------------------------
def _filled(x: Any) -> float:
    """A number as an fp32 tensor takes it."""
    number("scale", x)
    try:
        return fp32(scale_number("init_scale", x))
    except InputError:
        raise ProtocolError("value cannot be converted to type float without overflow", "RuntimeError") from None


def _filled_int(x: Any) -> int:
    """A number as an int32 tensor takes it: cut towards 0."""
    value = number("_growth_tracker", x)
    if not -(2.0**31) <= value < 2.0**31:
        raise ProtocolError("value cannot be converted to type int without overflow", "RuntimeError")
    return int32(int(value))


def _argument(name: str, position: int, x: Any, kind: str) -> Any:
    try:
        return number(name, x) if kind == "float" else whole(name, x, -(2**63))
    except InputError:
        text = f"_amp_update_scale_(): argument '{name}' (position {position}) must be {kind}, not {type(x).__name__}"
        raise ProtocolError(text, "TypeError") from None
