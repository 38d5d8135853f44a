"""Each experiment run once at lecture size, for all tests that look at its result."""

from __future__ import annotations

from functools import cache
from typing import Any

from numsim.experiments import get_experiment, list_experiments
from numsim.experiments.experiment import Result, Session, Table
from numsim.machines import get_machine

NAMES = list_experiments()
FORMATS = (  # whose casts ml_dtypes answers; the others are about tensor cores, or ask in FP32 and FP16
    "swamping", "underflow", "master-weights", "casts", "mx-scale", "nf4", "scale-window", "delayed-scaling", "recipes",
    "accumulation", "adam",
)  # fmt: skip


@cache
def lecture(name: str, machine: str = "emulated") -> tuple[Session, Result]:
    session = Session(get_machine(machine))
    experiment = get_experiment(name)
    return session, experiment.run(session, **experiment.defaults)


def run(name: str, machine: Any = None, **parameters: Any) -> Result:
    return get_experiment(name).run(Session(machine or get_machine("emulated")), **parameters)


def table(result: Result, words: str) -> Table:
    """The table with these words in its title."""
    (found,) = [t for t in result.tables if words in t.title]
    return found
