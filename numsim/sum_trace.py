"""A sum and where it stopped counting: ``SumTrace``."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import Array
from numsim.codes import classify, exact, ulp
from numsim.errors import InputError
from numsim.reductions import cumsum


@dataclass(frozen=True, eq=False)
class SumTrace:
    """A running sum: ``partial[i]`` is the accumulator after term i.

    counted : bool for each term, whether it changed the accumulator (zeros too: they have nothing to lose).
    """

    terms: Array
    partial: Array
    counted: npt.NDArray[np.bool_]

    @property
    def stalls_at(self) -> int | None:
        """The first term from which on no addition counts, or None if the last one does."""
        if not self.counted.size or self.counted[-1]:
            return None
        return int(self.counted.size - np.argmax(self.counted[::-1])) if self.counted.any() else 0

    @property
    def lost(self) -> int:
        """How many terms changed nothing."""
        return int(np.count_nonzero(~self.counted))

    def exact(self) -> Fraction:
        """The exact sum of the terms."""
        return sum((exact(c, self.terms.format) for c in self.terms.codes), Fraction(0))

    def __str__(self) -> str:
        n = len(self.terms)
        lines = [f"{n} terms, {self.partial.how}"]
        if not n or not np.isfinite(self.partial.values[-1]):
            return "\n".join([*lines, f"result {self.partial.values[-1] if n else 0.0}"])
        if not np.isfinite(self.terms.values).all():
            return "\n".join([*lines, f"result {self.partial.values[-1]}; not all terms are finite"])
        result, true = self.partial[-1].fraction(), self.exact()
        error = f" ({float((result - true) / true):+.2%})" if true else ""
        lines.append(f"result {_text(result)}, exact sum {_text(true)}{error}")
        if (at := self.stalls_at) is not None:
            code = self.partial.codes[-1]
            lines.append(f"from term {at} on no addition counts: {n - at} terms are lost")
            lines.append(
                f"there the accumulator is {_text(result)}, its spacing {_text(ulp(code, self.partial.format))}, "
                f"and the terms are at most {_text(Fraction(float(np.abs(self.terms.values[at:]).max())))}"
            )
        elif self.lost:
            lines.append(f"{self.lost} additions changed nothing")
        else:
            lines.append("every addition of a number but zero changed the accumulator")
        return "\n".join(lines)


def _text(x: Fraction) -> str:
    """Shortest float64 form; sums of numbers near float64's largest may lie beyond."""
    try:
        return repr(float(x))
    except OverflowError:
        return "beyond float64"


def trace_sum(x: Any, **options: Any) -> SumTrace:
    """Sum a 1-D Array in index order and keep every step; options as for ``numsim.cumsum``.

    >>> from numsim.array import array
    >>> print(trace_sum(array(np.full(1000, 0.1), "bf16")))
    1000 terms, sequential sum in bf16, nearest-even
    result 32.0, exact sum 100.09765625 (-68.03%)
    from term 276 on no addition counts: 724 terms are lost
    there the accumulator is 32.0, its spacing 0.25, and the terms are at most 0.10009765625
    """
    if not isinstance(x, Array) or x.ndim != 1:
        raise InputError("trace_sum takes a 1-D Array. Example: numsim.trace_sum(numsim.array([0.1, 0.2], 'bf16'))")
    if options.get("order", "sequential") != "sequential":
        raise InputError("trace_sum follows a sequential sum: other orders keep what an addition loses.")
    partial = cumsum(x, **options)
    before = np.concatenate([partial.codes[:1], partial.codes[:-1]])
    counted = (partial.codes != before) | (classify(x.codes, x.format) == "zero")
    counted[:1] = True  # the sum starts from it
    return SumTrace(x, partial, counted)
