"""Many additions in a stated order with a stated accumulator: sums, running sums, dot and matrix products.

Rules that hold everywhere in this room:

* A term is a number, or a product of two. ``product`` is the format that products are rounded to before they are added;
  None leaves them exact, so that product and addition are one fused operation.
* Every addition is exact and rounded once, to the accumulator format. An empty sum is +0; a single term is rounded.
* ``order`` is a word, or a tree. One term after another, starting from the first, rounded: "sequential"; "kahan" and
  "neumaier" (compensated sums) and "double-word" (the accumulator is the sum of two numbers), each of whose operations
  is rounded; "exact", which rounds nothing but the result (a long accumulator). A correction that is zero or not finite
  is left out, so that -0 and infinities stay what they are; Kahan's lines make NaN of an infinity.
* Trees, in which a term goes into its first addition as it is: "pairwise" (neighbours are added level by level; an odd
  one out moves up); "pairwise:128" (blocks of 128 terms, one after another; then the blocks pairwise); "blocked:128"
  (then the blocks one after another); "pairwise:numpy" (as NumPy adds along a contiguous axis; it gives +0 where all
  terms are -0); any other as nested tuples of places or their text, ``((0, 1), (2, 3))``: what ``numsim.reveal`` finds.
  Three and more terms in a bracket are added exactly and rounded once.
* Stochastic: the sums of a call are numbered in C order, and each term owns ``uses`` counters: the first for its
  product if that is rounded, the others for its additions, in the order of the textbook's lines. In a tree an addition
  belongs to the first term of its second operand. So sum o of n terms uses the counters from
  ``position + o * n * uses`` on.

The reference is below; ``kernels/accumulate.py`` holds the fast twin.

Sources: W. Kahan, CACM 8 (1965) 40; A. Neumaier, ZAMM 54 (1974) 39; D. Knuth, TAOCP 2, 4.2.2 (TwoSum); M. Joldes,
J.-M. Muller, V. Popescu, ACM TOMS 44 (2017), article 15res, algorithm 4 (double-word plus number); N. Higham, Accuracy
and Stability of Numerical Algorithms, 2nd ed., chapter 4.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.arithmetic import add, mul, operand, result_policy, sub
from numsim.codes import Codes, code_dtype
from numsim.errors import InputError, short
from numsim.formats import Format
from numsim.random import Draw
from numsim.rounding import Policy, round_rational
from numsim.values import Rational, is_whole

Order: TypeAlias = "str | tuple[Any, ...]"
RUNNING = ("sequential", "kahan", "neumaier", "double-word", "exact")  # have running sums
ORDERS = (*RUNNING, "pairwise", "pairwise:128", "pairwise:numpy", "blocked:128")  # for example; and trees
_USES = {"kahan": 4, "neumaier": 5, "double-word": 10}  # roundings a term; 1 in all other orders


# --- orders -----------------------------------------------------------------------------------------------------------
def check_order(order: Any) -> str:
    """An order as one word, or the text of a tree; ``InputError`` for anything else.

    >>> check_order("pairwise:128"), check_order(((0, 1), (2, 3)))
    ('pairwise:128', '((0,1),(2,3))')
    """
    text = _text(order) if isinstance(order, tuple) else order
    if isinstance(text, str):
        if text in ORDERS or re.fullmatch(r"(pairwise|blocked):[1-9][0-9]{0,8}", text):
            return text
        if text.startswith("("):
            text = "".join(text.split())
            _tree(text)
            return text
    known = ", ".join(ORDERS).replace("128", "N")
    raise InputError(f"order={short(order)}: allowed are {known} and trees of places. "
                     "Example: order='pairwise', order=((0, 1), (2, 3))")  # fmt: skip


def _text(tree: tuple[Any, ...]) -> str:
    """Nested tuples as text. (No recursion: a sum of a thousand terms, one after another, is as deep.)"""
    parts: list[str] = []
    todo: list[Any] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, tuple):
            todo += [")", *reversed(node), "("]
        else:
            parts.append(node if node in ("(", ")") else str(node) if is_whole(node) and node < 10**9 else "?")
    return ",".join(parts).replace("(,", "(").replace(",)", ")")


_TREE = re.compile(r"\((?=[(0-9])|(0|[1-9][0-9]{0,8})(?=[,)])|\)(?=[,)]|$)|,(?=[(0-9])")  # what may follow what


@lru_cache(maxsize=8)
def _tree(text: str) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """The number of terms of a tree, and its additions, as in ``additions``."""
    found: list[tuple[int, ...]] = []
    stack: list[list[int]] = [[]]  # of each node that is open, the first term of each of its children
    places = []
    at = 0
    while match := _TREE.match(text, at):
        at, mark = match.end(), match[0]
        if mark == "(":
            stack.append([])
        elif mark == ")":
            node = stack.pop()
            if len(node) < 2 or not stack:
                break
            found.append(tuple(node))
            stack[-1].append(node[0])
        elif match[1]:
            stack[-1].append(int(mark))
            places.append(int(mark))
    if at < len(text) or len(stack) != 1 or len(stack[0]) != 1 or sorted(places) != list(range(len(places))):
        raise InputError(f"order={short(text)}: a tree holds each place from 0 on once, two or more in a bracket. "
                         "Example: order=((0, 1), (2, 3))")  # fmt: skip
    return len(places), tuple(found)


def additions(order: str, n: int = 0) -> Iterator[tuple[int, ...]]:
    """The additions of a tree on n terms: (i, j) adds to the sum that begins at term i the one that begins at term j.

    >>> list(additions("pairwise", 5)), list(additions("blocked:2", 5))
    ([(0, 1), (2, 3), (0, 2), (0, 4)], [(0, 1), (2, 3), (0, 2), (0, 4)])
    """
    if order.startswith("("):
        yield from _tree(order)[1]
        return
    name, _, length = order.partition(":")
    if length == "numpy":
        yield from _numpy(0, n)
        return
    block = int(length or 1)
    for first in range(0, n, block):
        yield from ((first, j) for j in range(first + 1, min(first + block, n)))
    if name == "blocked":
        yield from ((0, first) for first in range(block, n, block))
    else:
        while block < n:
            yield from ((i, i + block) for i in range(0, n - block, 2 * block))
            block *= 2


def _numpy(first: int, n: int) -> Iterator[tuple[int, int]]:
    """Halves of a multiple of 8 down to 128 terms; these in 8 lanes, what is left over one after another.

    Source: numpy 2.4, numpy/_core/src/umath/loops_utils.h.src, pairwise_sum.
    """
    if n > 128:
        half = n // 2 - n // 2 % 8
        yield from _numpy(first, half)
        yield from _numpy(first + half, n - half)
        yield first, first + half
        return
    whole = first + (n - n % 8 if n >= 8 else 1)
    yield from ((first + j % 8, first + j) for j in range(8, whole - first))
    if n >= 8:
        yield from ((first + i, first + j) for i, j in ((0, 1), (2, 3), (0, 2), (4, 5), (6, 7), (4, 6), (0, 4)))
    yield from ((first, j) for j in range(whole, first + n))


@dataclass(frozen=True)
class Plan:
    """How sums are computed: the formats of the terms' factors, of products and accumulator, order and policy."""

    inputs: tuple[Format, ...]  # one format, or two where the terms are products
    accumulator: Format
    product: Format | None = None
    order: str = "sequential"
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", check_order(self.order))

    @property
    def uses(self) -> int:
        """Random draws that a term owns."""
        return _USES.get(self.order, 1) + (len(self.inputs) == 2 and self.product is not None)

    @property
    def how(self) -> str:
        """Everything that was done, in one line."""
        products = "exact products (fused)" if self.product is None else f"products rounded to {self.product}"
        terms = [products] if len(self.inputs) == 2 else []
        order = self.order
        if order.startswith("("):
            order = f"tree {order}" if len(order) <= 40 else f"tree of {_tree(order)[0]} terms,"
        return ", ".join([f"{order} sum in {self.accumulator}", *terms, str(self.policy)])


def check_length(order: str, n: int) -> None:
    """Refuse a tree on sums of another length."""
    if order.startswith("(") and _tree(order)[0] != n:
        raise InputError(f"order={short(order)} is a tree of {_tree(order)[0]} terms; the sum has {n}.")


# --- the reference: one sum -------------------------------------------------------------------------------------------
class Summation:
    """One sum: its plan and where its random draws begin."""

    def __init__(self, plan: Plan, draw: Draw | None, first_draw: int) -> None:
        self.plan, self.draw, self.first = plan, draw, first_draw
        self.after = result_policy(plan.policy)

    def round(self, x: Rational, format: Format, counter: int) -> tuple[int, Rational]:
        random, r = (self.draw(self.first + counter), self.draw.r) if self.draw else (0, 32)
        code = round_rational(x, format, self.after, random, r)
        return code, operand(code, format, self.plan.policy)

    def plus(self, x: Rational, y: Rational, counter: int) -> tuple[int, Rational]:
        return self.round(add(x, y, self.plan.policy.rounding), self.plan.accumulator, counter)

    def minus(self, x: Rational, y: Rational, counter: int) -> Rational:
        return self.round(sub(x, y, self.plan.policy.rounding), self.plan.accumulator, counter)[1]

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
        """The accumulator's code after each term, or in a tree after each addition."""
        plan, terms = self.plan, self.terms(factors)
        order = {"kahan": self.kahan, "neumaier": self.neumaier, "double-word": self.double_word, "exact": self.exact,
                 "sequential": self.sequential}.get(plan.order, self.tree)  # fmt: skip
        return list(order(terms)) if terms else []

    def counters(self, terms: Sequence[Rational]) -> Iterator[tuple[Rational, int]]:
        """Each term, and its last counter."""
        return ((x, (i + 1) * self.plan.uses - 1) for i, x in enumerate(terms))

    def sequential(self, terms: Sequence[Rational]) -> Iterator[int]:
        s = None
        for x, at in self.counters(terms):
            code, s = self.round(x, self.plan.accumulator, at) if s is None else self.plus(s, x, at)
            yield code

    def kahan(self, terms: Sequence[Rational]) -> Iterator[int]:
        s, lost = None, _ZERO
        for x, at in self.counters(terms):
            if s is None:
                code, s = self.round(x, self.plan.accumulator, at)
            else:
                y = self.minus(x, lost, at - 3)
                code, t = self.plus(s, y, at - 2)
                lost = self.minus(self.minus(t, s, at - 1), y, at)
                s = t
            yield code

    def neumaier(self, terms: Sequence[Rational]) -> Iterator[int]:
        s, lost = None, _ZERO
        for x, at in self.counters(terms):
            if s is None:
                code, s = self.round(x, self.plan.accumulator, at)
            else:
                code, t = self.plus(s, x, at - 4)
                large, small = (s, x) if _size_at_least(s, x) else (x, s)
                _, error = self.plus(self.minus(large, t, at - 3), small, at - 2)
                _, lost = self.plus(lost, error, at - 1)
                s = t
            yield self.plus(s, lost, at)[0] if _corrects(lost) else code

    def double_word(self, terms: Sequence[Rational]) -> Iterator[int]:
        s, low = None, _ZERO
        for x, at in self.counters(terms):
            if s is None:
                code, s = self.round(x, self.plan.accumulator, at)
            else:
                code, high = self.plus(s, x, at - 9)  # TwoSum: high + error = s + x
                a = self.minus(high, x, at - 8)
                b = self.minus(high, a, at - 7)
                _, error = self.plus(self.minus(s, a, at - 6), self.minus(x, b, at - 5), at - 4)
                _, low = self.plus(low, error, at - 3)
                s = high
                if _corrects(low):  # FastTwoSum
                    code, s = self.plus(high, low, at - 2)
                    low = self.minus(low, self.minus(s, high, at - 1), at)
                else:
                    low = _ZERO
            yield code

    def exact(self, terms: Sequence[Rational]) -> Iterator[int]:
        s = None
        for x, at in self.counters(terms):
            s = x if s is None else _lowest(add(s, x, self.plan.policy.rounding))
            yield self.round(s, self.plan.accumulator, at)[0]

    def tree(self, terms: list[Rational]) -> Iterator[int]:
        uses, sums = self.plan.uses, terms.copy()
        if len(terms) == 1:
            yield self.round(terms[0], self.plan.accumulator, uses - 1)[0]
        for i, *others in additions(self.plan.order, len(terms)):
            for j in others[:-1]:
                sums[i] = _lowest(add(sums[i], sums[j], self.plan.policy.rounding))
            code, sums[i] = self.plus(sums[i], sums[others[-1]], others[0] * uses + uses - 1)
            yield code


_ZERO = Rational(0, 0, 1)


def _corrects(x: Rational) -> bool:
    return x.numerator != 0 and x.denominator != 0


def _size_at_least(x: Rational, y: Rational) -> bool:
    return x.numerator * y.denominator >= y.numerator * x.denominator


def _lowest(x: Rational) -> Rational:
    """In lowest terms: long sums would grow longer denominators."""
    common = math.gcd(x.numerator, x.denominator) or 1
    return Rational(x.sign, x.numerator // common, x.denominator // common)


def check_running(order: str) -> None:
    """Refuse an order that has no running sums."""
    if order not in RUNNING:
        raise InputError(f"order={short(order)} has no running sum: {', '.join(RUNNING)} have. Example: order='exact'")


# --- whole arrays -----------------------------------------------------------------------------------------------------
def sums(factors: Sequence[Codes], plan: Plan, draw: Draw | None = None, *, trail: bool = False) -> npt.NDArray[Any]:
    """Sums along the last axis. ``factors``: one or two equally shaped code arrays (..., n).

    Returns accumulator codes: (...), or with ``trail`` (orders of ``RUNNING``) the running sums (..., n).
    """
    if trail:
        check_running(plan.order)
    arrays = np.broadcast_arrays(*factors)
    shape, n = arrays[0].shape[:-1], arrays[0].shape[-1]
    check_length(plan.order, n)
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
        codes = Summation(plan, draw, o * n * plan.uses).trail([a[o].tolist() for a in flat])
        if trail:
            result[o] = codes
        elif codes:
            result[o] = codes[-1]
    return result.reshape(*shape, n) if trail else result.reshape(shape)


def products(a: Codes, b: Codes, plan: Plan, draw: Draw | None = None) -> npt.NDArray[Any]:
    """The matrix product of codes a (..., M, K) and b (..., K, N): accumulator codes (..., M, N), each a sum over K."""
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (m, k), n = a.shape[-2:], b.shape[-1]
    check_length(plan.order, k)
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
        codes = Summation(plan, draw, o * k * plan.uses).trail([left[at, i].tolist(), right[at, :, j].tolist()])
        result[at, i, j] = codes[-1] if codes else 0
    return result.reshape(*shape, m, n)
