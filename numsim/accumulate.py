"""Many additions in a stated order with a stated accumulator: sums, running sums, dot and matrix products.

Rules that hold everywhere in this room:

* A term is a number, or a product of two. ``product`` is the format that products are rounded to before they are added;
  None leaves them exact, so that product and addition are one fused operation.
* A sum starts from its first term, rounded to the accumulator format; an empty sum is +0. Every addition after that
  is exact and rounded once, to the accumulator format.
* ``order``: "sequential" (index order), "pairwise" (neighbours are added level by level; an odd one out moves up),
  "kahan" (compensated; each of its four operations is rounded).
* Stochastic: the sums of a call are numbered in C order, and each term owns ``uses`` counters: the first for its
  product if that is rounded, the others for its additions. Addition j of a sum (the start is addition 0) belongs to
  term j, so sum o of n terms uses the counters from ``position + o * n * uses`` on.

The reference is below; ``kernels/accumulate.py`` holds the fast twin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.arithmetic import add, mul, operand, result_policy, sub
from numsim.codes import Codes, code_dtype
from numsim.errors import InputError, short
from numsim.formats import Format
from numsim.random import Draw
from numsim.rounding import Policy, round_rational
from numsim.values import Rational

Order = Literal["sequential", "pairwise", "kahan"]
ORDERS = ("sequential", "pairwise", "kahan")


@dataclass(frozen=True)
class Plan:
    """How sums are computed: the formats of the terms' factors, of products and accumulator, order and policy."""

    inputs: tuple[Format, ...]  # one format, or two where the terms are products
    accumulator: Format
    product: Format | None = None
    order: str = "sequential"
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        if not isinstance(self.order, str) or self.order not in ORDERS:
            raise InputError(f"order={short(self.order)}: allowed are {', '.join(ORDERS)}. Example: order='pairwise'")

    @property
    def uses(self) -> int:
        """Random draws that a term owns."""
        return (4 if self.order == "kahan" else 1) + (len(self.inputs) == 2 and self.product is not None)

    @property
    def how(self) -> str:
        """Everything that was done, in one line."""
        products = "exact products (fused)" if self.product is None else f"products rounded to {self.product}"
        terms = [products] if len(self.inputs) == 2 else []
        return ", ".join([f"{self.order} sum in {self.accumulator}", *terms, str(self.policy)])


# --- the reference: one sum -------------------------------------------------------------------------------------------
class _Sum:
    """One sum: its plan and where its random draws begin."""

    def __init__(self, plan: Plan, draw: Draw | None, first_draw: int) -> None:
        self.plan, self.draw, self.first = plan, draw, first_draw
        self.after = result_policy(plan.policy)

    def round(self, x: Rational, format: Format, counter: int) -> tuple[int, Rational]:
        random, r = (self.draw(self.first + counter), self.draw.r) if self.draw else (0, 32)
        code = round_rational(x, format, self.after, random, r)
        return code, operand(code, format, self.plan.policy)

    def terms(self, factors: Sequence[Sequence[int]]) -> list[Rational]:
        plan = self.plan
        exact = [[operand(c, f, plan.policy) for c in row] for f, row in zip(plan.inputs, factors, strict=True)]
        if len(exact) == 1:
            return exact[0]
        products = [mul(x, y) for x, y in zip(*exact, strict=True)]
        if plan.product is None:
            return products
        return [self.round(p, plan.product, i * plan.uses)[1] for i, p in enumerate(products)]

    def trail(self, factors: Sequence[Sequence[int]]) -> list[int]:
        """The accumulator's code after each addition."""
        plan, terms = self.plan, self.terms(factors)
        rounding, target = plan.policy.rounding, plan.accumulator
        last = plan.uses - 1
        if not terms:
            return []
        codes = []
        if plan.order == "pairwise":
            additions = 0
            while len(terms) > 1:
                level = []
                for x, y in zip(terms[::2], terms[1::2], strict=False):
                    additions += 1
                    code, total = self.round(add(x, y, rounding), target, additions * plan.uses + last)
                    codes.append(code)
                    level.append(total)
                terms = level + terms[len(level) * 2 :]
            return codes or [self.round(terms[0], target, last)[0]]
        code, total = self.round(terms[0], target, last)
        codes.append(code)
        lost = Rational(0, 0, 1)
        for i, x in enumerate(terms[1:], start=1):
            counter = i * plan.uses + last
            if plan.order == "kahan":
                _, wanted = self.round(sub(x, lost, rounding), target, counter - 3)
                code, new = self.round(add(total, wanted, rounding), target, counter - 2)
                _, gained = self.round(sub(new, total, rounding), target, counter - 1)
                _, lost = self.round(sub(gained, wanted, rounding), target, counter)
                total = new
            else:
                code, total = self.round(add(total, x, rounding), target, counter)
            codes.append(code)
        return codes


# --- whole arrays -----------------------------------------------------------------------------------------------------
def sums(factors: Sequence[Codes], plan: Plan, draw: Draw | None = None, *, trail: bool = False) -> npt.NDArray[Any]:
    """Sums along the last axis. ``factors``: one or two equally shaped code arrays (..., n).

    Returns accumulator codes: (...), or with ``trail`` (sequential and Kahan) the running sums (..., n).
    """
    if trail and plan.order == "pairwise":
        raise InputError("order='pairwise' has no running sum. Example: order='sequential'")
    arrays = np.broadcast_arrays(*factors)
    shape, n = arrays[0].shape[:-1], arrays[0].shape[-1]
    rows = math.prod(shape)
    flat = [a.reshape(rows, n) for a in arrays]
    dtype = code_dtype(plan.accumulator)
    if kernels.use(arrays[0].size * plan.uses):
        from numsim.kernels import accumulate as fast

        if fast.suits(plan, draw):
            result = fast.sums(flat, plan, draw, trail)
            return result.reshape(*shape, n) if trail else result.reshape(shape)
    result = np.zeros((rows, n) if trail else rows, dtype)
    for o in range(rows):
        codes = _Sum(plan, draw, o * n * plan.uses).trail([a[o].tolist() for a in flat])
        if trail:
            result[o] = codes
        elif codes:
            result[o] = codes[-1]
    return result.reshape(*shape, n) if trail else result.reshape(shape)


def products(a: Codes, b: Codes, plan: Plan, draw: Draw | None = None) -> npt.NDArray[Any]:
    """The matrix product of codes a (..., M, K) and b (..., K, N): accumulator codes (..., M, N), each a sum over K."""
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = math.prod(shape)
    left = np.broadcast_to(a, (*shape, m, k)).reshape(batch, m, k)
    right = np.broadcast_to(b, (*shape, k, n)).reshape(batch, k, n)
    work = len(left) * m * n * k * plan.uses
    if kernels.use(work):
        from numsim.kernels import accumulate as fast

        if fast.suits(plan, draw):
            return fast.products(left, right, plan, draw).reshape(*shape, m, n)
    result = np.zeros((len(left), m, n), code_dtype(plan.accumulator))
    for o, (at, i, j) in enumerate(np.ndindex(*result.shape)):
        codes = _Sum(plan, draw, o * k * plan.uses).trail([left[at, i].tolist(), right[at, :, j].tolist()])
        result[at, i, j] = codes[-1] if codes else 0
    return result.reshape(*shape, m, n)
