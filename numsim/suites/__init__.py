"""Suites: everything that is asked of one GPU (or CPU), recorded once, and compared anywhere.

``numsim record --suite NAME --machine cuda --out DIR`` asks and writes a record; ``numsim check FILE`` compares it.
Asking needs numpy, torch and cuda-bindings only; comparing needs numsim whole.
"""

from __future__ import annotations

import difflib
from importlib import import_module

from numsim.errors import InputError
from numsim.suites.suite import Collector, Row, Suite, collect

__all__ = ["SUITES", "Collector", "Row", "Suite", "collect", "get_suite"]

SUITES = {
    "casts": "numsim.suites.casts",
    "sums": "numsim.suites.sums",
    "loss-scaling": "numsim.suites.loss_scaling",
    "fp8": "numsim.suites.fp8",
    "tensorcore": "numsim.suites.tensorcore",
}


def get_suite(name: str) -> Suite:
    """The suite of that name. Raises ``InputError`` with the nearest names.

    >>> get_suite("casts").name
    'casts'
    """
    key = name.strip().lower().replace("_", "-")
    if key in SUITES:
        suite: Suite = import_module(SUITES[key]).SUITE
        return suite
    near = difflib.get_close_matches(key, SUITES, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(SUITES)}, and all."
    raise InputError(f"unknown suite {name[:60]!r}: {hint} Example: numsim record --suite tensorcore --machine cuda")
