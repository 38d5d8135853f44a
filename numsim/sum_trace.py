"""A sum and what each of its additions loses: ``SumTrace``."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.accumulate import RUNNING, Order, Plan, Summation, additions, check_length, sums
from numsim.array import Array
from numsim.codes import Codes, classify, code_dtype, exact, ulp
from numsim.errors import InputError
from numsim.random import Draw
from numsim.reductions import draws_for, plan_for
from numsim.rounding import Overflow, Policy, Rounding, Subnormals
from numsim.values import NAN, Rational, as_fraction

Number = Fraction | float  # a float where it is NaN or an infinity
_COMPENSATED = {  # which of a term's roundings, counted from its last, are the sum and what is kept beside it
    "kahan": ((-2,), 0), "neumaier": ((-4,), -1), "double-word": ((-2, -9), 0),  # -9: nothing to correct
}  # fmt: skip


@dataclass(frozen=True)
class Addition:
    """One addition: numbers went in, one came out.

    operands : the accumulator and the term (at first the term alone); in a tree the sums that are added.
    result : the rounded sum. compensation : what the order keeps beside it, to be added later; 0 in most orders.
    exact : what result and compensation should hold together: the operands and the compensation from before.
    """

    operands: tuple[Number, ...]
    exact: Number
    result: Number
    compensation: Number = Fraction(0)

    @property
    def error(self) -> Fraction | None:
        """What the addition added to the exact sum; None beside NaN and infinities.

        Over all additions these errors make up the whole error of the sum; where there is compensation, that of the
        sum with its compensation.
        """
        parts = self.exact, self.result, self.compensation
        if any(isinstance(x, float) for x in parts):
            return None
        return Fraction(self.result) + Fraction(self.compensation) - Fraction(self.exact)

    @property
    def lost(self) -> tuple[Number, ...]:
        """The operands other than zero that left no trace."""
        return tuple(x for x in self.operands if x and self.error == -x)


@dataclass(frozen=True, eq=False)
class SumTrace:
    """A sum, addition by addition; the last of ``partial`` is the sum.

    partial : of an order with running sums ("sequential", "kahan", "neumaier", "double-word", "exact") the sum up to
        each term; in a tree the result of each addition, in the order in which they are done.
    counted : for each of them, whether the term changed the accumulator or what is kept beside it (zeros count: they
        have nothing to lose); in a tree, whether both operands left a trace.
    """

    terms: Array
    partial: Array
    counted: npt.NDArray[np.bool_]
    plan: Plan
    draw: Draw | None = None

    @cached_property
    def additions(self) -> tuple[Addition, ...]:
        """Each addition in exact numbers, as long as ``partial``. Cost: 20 to 100 microseconds for each."""
        return tuple(_additions(self.terms.codes, self.plan, self.draw))

    @property
    def stalls_at(self) -> int | None:
        """The first term from which on no addition counts, zeros aside; None if the last one does, and in a tree."""
        if self.plan.order not in RUNNING or self.counted.all():
            return None
        moved = self.counted & (classify(self.terms.codes, self.terms.format) != "zero")
        at = int(np.flatnonzero(moved)[-1]) + 1 if moved.any() else 0
        return None if self.counted[at:].all() else at

    @property
    def lost(self) -> int:
        """How many terms changed nothing; in a tree, how many additions lost an operand."""
        return int(np.count_nonzero(~self.counted))

    def exact(self) -> Fraction:
        """The exact sum of the terms."""
        return sum((exact(c, self.terms.format) for c in self.terms.codes), Fraction(0))

    def __str__(self) -> str:
        return "\n".join(part for line in self._lines() for part in textwrap.wrap(line, 80))

    def _lines(self) -> Iterator[str]:
        n = len(self.terms)
        yield f"{n} terms, {self.partial.how}"
        kinds = [classify(x.codes, x.format) for x in (self.partial[-1:], self.terms)]
        result, terms = (not np.isin(kind, ("nan", "infinity")).any() for kind in kinds)
        if not n or not result:
            yield f"result {self.partial.values[-1] if n else 0.0}"
        elif not terms:
            yield f"result {self.partial.values[-1]}; not all terms are finite"
        else:
            total, true = self.partial[-1].fraction(), self.exact()
            error = f" ({float((total - true) / true):+.2%})" if true else ""
            yield f"result {_text(total)}, exact sum {_text(true)}{error}"
            yield from self._losses()

    def _losses(self) -> Iterator[str]:
        order = self.plan.order
        if (at := self.stalls_at) is not None:
            yield f"from term {at} on no addition counts: {np.count_nonzero(~self.counted[at:])} terms are lost"
            if order == "sequential":
                here = self.partial[-1]
                yield (
                    f"there the accumulator is {_text(here.fraction())}, its spacing "
                    f"{_text(ulp(here.codes, here.format))}, and the terms are at most "
                    f"{_text(max(abs(exact(c, self.terms.format)) for c in self.terms.codes[at:]))}"
                )
        elif order in RUNNING:
            beside = " or what is kept beside it" if order in _COMPENSATED or order == "exact" else ""
            if self.lost:
                yield f"{self.lost} additions changed nothing"
            else:
                yield f"every addition of a number but zero changed the accumulator{beside}"
        else:
            yield f"{self.lost} of {len(self.partial)} additions lost an operand"
            sizes = [abs(done.error or Fraction(0)) for done in self.additions]
            worst = sizes.index(max(sizes))
            done = self.additions[worst]
            if done.error:
                yield (
                    f"the largest error is that of addition {worst}: {' + '.join(map(_text, done.operands))} = "
                    f"{_text(done.exact)} gave {_text(done.result)} ({_text(done.error)})"
                )
        if order in _COMPENSATED:
            end = self.additions[-1]
            yield f"at the end the accumulator is {_text(end.result)}, and {_text(end.compensation)} is kept beside it"


def _text(x: Number) -> str:
    """Shortest float64 form; sums of numbers near float64's largest may lie beyond."""
    try:
        return repr(float(x))
    except OverflowError:
        return "beyond float64"


# --- each addition ----------------------------------------------------------------------------------------------------
class _Watched(Summation):
    """The reference, and all its roundings by their counters: what was rounded, and to what."""

    def __init__(self, plan: Plan, draw: Draw | None) -> None:
        super().__init__(plan, draw, 0)
        self.seen: dict[int, tuple[Rational, Rational]] = {}

    def round(self, x: Rational, format: Any, counter: int) -> tuple[int, Rational]:
        code, value = super().round(x, format, counter)
        self.seen[counter] = x, value
        return code, value


def _additions(codes: Codes, plan: Plan, draw: Draw | None) -> Iterator[Addition]:
    watched = _Watched(plan, draw)
    factors = [codes.tolist()]
    watched.trail(factors)
    terms = [_number(x) for x in watched.terms(factors)]
    seen = [(_number(x), _number(y)) for x, y in watched.seen.values()]  # in the order of the roundings
    if plan.order in _COMPENSATED:
        yield from _compensated(terms, watched)
    elif plan.order in RUNNING:
        before: Number = Fraction(0)
        for i, (x, (total, result)) in enumerate(zip(terms, seen, strict=True)):
            rest = _total(total, -result) if plan.order == "exact" else Fraction(0)
            yield Addition((before, x) if i else (x,), total, result, rest)
            before = total if plan.order == "exact" else result
    elif len(terms) == 1:
        yield Addition((terms[0],), *seen[0])
    else:
        for places, (total, result) in zip(additions(plan.order, len(terms)), seen, strict=True):
            yield Addition(tuple(terms[i] for i in places), total, result)
            terms[places[0]] = result


def _compensated(terms: list[Number], watched: _Watched) -> Iterator[Addition]:
    sums, beside = _COMPENSATED[watched.plan.order]
    sign = -1 if watched.plan.order == "kahan" else 1  # Kahan keeps what is to be subtracted
    before: Number = Fraction(0)
    kept: Number = Fraction(0)
    for i, x in enumerate(terms):
        last = (i + 1) * watched.plan.uses - 1
        seen = {place: _number(watched.seen[at][1]) for place in range(-9, 1) if (at := last + place) in watched.seen}
        if i == 0:
            yield Addition((x,), x, seen[0])
            before = seen[0]
            continue
        result = next(seen[place] for place in sums if place in seen)
        rest = sign * seen[beside] if beside in seen else Fraction(0)
        yield Addition((before, x), _total(before, x, kept), result, rest)
        before, kept = result, rest


def _number(x: Rational) -> Number:
    if x.denominator:
        return as_fraction(x)
    return math.nan if x == NAN else -math.inf if x.sign else math.inf


def _total(*parts: Number) -> Number:
    odd = [x for x in parts if isinstance(x, float)]
    return sum(odd) if odd else sum((Fraction(x) for x in parts), Fraction(0))


# --- the front door ---------------------------------------------------------------------------------------------------
def trace_sum(
    x: Any,
    *,
    accumulator: Any = None,
    order: Order = "sequential",
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
) -> SumTrace:
    """Sum a 1-D Array and keep every addition: what went in, what came out, what was lost.

    Rules: the bits of ``numsim.sum`` in every order; NaN, infinities, -0, subnormals and overflow as there. Beside NaN
    and infinities nothing counts as lost.
    Parameters: those of ``numsim.sum``. Raises ``InputError`` for what is no 1-D Array, and as ``sum`` does.
    Cost: "sequential" and "exact" that of ``numsim.cumsum``; other orders go through the reference, 20 to
    100 microseconds an addition.

    >>> from numsim.array import array
    >>> x = array(np.full(1000, 0.1), "bf16")
    >>> print(trace_sum(x))
    1000 terms, sequential sum in bf16, nearest-even
    result 32.0, exact sum 100.09765625 (-68.03%)
    from term 276 on no addition counts: 724 terms are lost
    there the accumulator is 32.0, its spacing 0.25, and the terms are at most
    0.10009765625
    >>> print(trace_sum(x, order="pairwise"))
    1000 terms, pairwise sum in bf16, nearest-even
    result 100.0, exact sum 100.09765625 (-0.10%)
    0 of 999 additions lost an operand
    the largest error is that of addition 998: 51.25 + 49.0 = 100.25 gave 100.0
    (-0.25)
    >>> last = trace_sum(x, order="kahan").additions[-1]
    >>> float(last.result), float(last.compensation), float(last.error)
    (100.0, 0.0146484375, 0.0)
    """
    if not isinstance(x, Array) or x.ndim != 1:
        raise InputError("trace_sum takes a 1-D Array. Example: numsim.trace_sum(numsim.array([0.1, 0.2], 'bf16'))")
    plan = plan_for((x.format,), accumulator, None, order, Policy(rounding, overflow, subnormals))
    check_length(plan.order, x.size)
    draw = draws_for(plan, x.size, seed, random_bits, sr_bits)
    running = plan.order in RUNNING
    trail = sums([x.codes], plan, draw, trail=True) if running else Summation(plan, draw, 0).trail([x.codes.tolist()])
    partial = Array(np.asarray(trail, code_dtype(plan.accumulator)), plan.accumulator, plan.how)
    trace = SumTrace(x, partial, np.ones(partial.size, np.bool_), plan, draw)
    if plan.order == "sequential":
        before = np.concatenate([partial.codes[:1], partial.codes[:-1]])
        spared = np.isin(classify(partial.codes, partial.format), ("nan", "infinity"))
        spared |= classify(x.codes, x.format) == "zero"
        trace.counted[:] = (partial.codes != before) | spared
    elif plan.order != "exact":  # which takes everything
        lost = ((done.lost, done.operands[-1]) for done in trace.additions)
        trace.counted[:] = [term not in gone if running else not gone for gone, term in lost]
    if running:
        trace.counted[:1] = True  # the sum starts from it
    return trace
