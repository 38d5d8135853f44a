"""Questions with a checkable answer, each in a file of its own. Nothing is imported before it is asked for."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

from numsim.errors import InputError, short
from numsim.experiments.experiment import Experiment, Result, Session

__all__ = ["Experiment", "Result", "Session", "get_experiment", "list_experiments", "run"]

_MODULES = {
    "swamping": "numsim.experiments.swamping",
    "underflow": "numsim.experiments.underflow",
    "master-weights": "numsim.experiments.master_weights",
    "casts": "numsim.experiments.casts",
    "accumulator": "numsim.experiments.accumulator",
    "kept-bits": "numsim.experiments.kept_bits",
    "chips": "numsim.experiments.chips",
    "blocks": "numsim.experiments.blocks",
    "tf32": "numsim.experiments.tf32",
    "invariance": "numsim.experiments.invariance",
    "mx-scale": "numsim.experiments.mx_scale",
    "nf4": "numsim.experiments.nf4",
    "accumulation": "numsim.experiments.accumulation",
    "adam": "numsim.experiments.adam",
    "clipping": "numsim.experiments.clipping",
    "loss-scaling": "numsim.experiments.loss_scaling",
    "scale-window": "numsim.experiments.scale_window",
    "blind-scaler": "numsim.experiments.blind_scaler",
    "collapse": "numsim.experiments.collapse",
    "delayed-scaling": "numsim.experiments.delayed_scaling",
    "recipes": "numsim.experiments.recipes",
}
_HINTS = {"sum": "swamping", "sums": "swamping", "gradients": "underflow", "scaler": "loss-scaling",
          "masters": "master-weights", "weights": "master-weights", "rounding": "casts", "cast": "casts",
          "fp22": "accumulator", "promotion": "accumulator", "bits": "kept-bits", "chip": "chips",
          "block": "blocks", "cancellation": "blocks", "3xtf32": "tf32", "xf32": "tf32", "split-k": "invariance",
          "order": "invariance", "batch": "invariance",
          "mx": "mx-scale", "floor": "mx-scale", "rceil": "mx-scale", "int4": "nf4", "qlora": "nf4"}  # fmt: skip


def list_experiments() -> tuple[str, ...]:
    """The names of all experiments, in the order in which they are run.

    >>> print(*list_experiments()[:5])
    swamping underflow master-weights casts accumulator
    """
    return tuple(_MODULES)


def get_experiment(name: str) -> Experiment:
    """The experiment of that name. Raises ``InputError`` with the nearest names.

    >>> get_experiment("swamping").name
    'swamping'
    """
    if not isinstance(name, str):
        raise InputError(f"experiment {short(name)}: a name is needed. Example: numsim run swamping")
    key = name.strip().lower().replace("_", "-")
    if key in _MODULES:
        experiment: Experiment = import_module(_MODULES[key]).EXPERIMENT
        return experiment
    near = [_HINTS[key]] if key in _HINTS else difflib.get_close_matches(key, _MODULES, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(_MODULES)}."
    raise InputError(f"unknown experiment {name[:60]!r}: {hint} Example: numsim run swamping")


def run(name: str, machine: str = "emulated", **parameters: Any) -> Result:
    """Run an experiment and return what it found; parameters that are not given have their defaults.

    Raises ``InputError`` for unknown names and parameters, ``UnavailableError`` for a machine that cannot run here.

    >>> run("swamping", terms=4096).answer
    '2048'
    """
    from numsim.machines import get_machine

    experiment = get_experiment(name)
    if unknown := set(parameters) - set(experiment.defaults):
        known = ", ".join(experiment.defaults)
        raise InputError(f"{name} has no parameter {', '.join(sorted(unknown))}: it has {known}.")
    return experiment.run(Session(get_machine(machine)), **{**experiment.defaults, **parameters})
