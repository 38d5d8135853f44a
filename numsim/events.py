"""Counts of what rounding did, on request: nothing is silent."""

from __future__ import annotations

from dataclasses import dataclass, fields

from numsim.errors import InputError, short


@dataclass
class Events:
    """Pass one as ``events=`` to ``encode``, ``round_to`` and friends; each call adds to it.

    total : values rounded.
    overflow : finite values whose rounded magnitude, with no upper bound on the exponent, exceeds the largest finite
        number (whatever the policy then made of them).
    underflow : non-zero finite values that became zero.
    subnormal : results that are subnormal (and not zero).
    inexact : finite values that differ from their result.
    nan : NaN results of inputs that were no NaN.

    >>> import numsim
    >>> seen = numsim.Events()
    >>> _ = numsim.encode([0.1, 1.0, 1e-9, 1e9], "fp16", events=seen)
    >>> seen
    Events(total=4, overflow=1, underflow=1, subnormal=0, inexact=3, nan=0)
    """

    total: int = 0
    overflow: int = 0
    underflow: int = 0
    subnormal: int = 0
    inexact: int = 0
    nan: int = 0

    def add(self, other: Events) -> None:
        """Add another's counts to these."""
        if not isinstance(other, Events):
            raise InputError(f"{short(other)}: Events are needed. Example: seen.add(numsim.Events(total=1))")
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))
