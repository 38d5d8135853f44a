"""The orders of ``numsim.accumulate``, written once for both arithmetics of its kernels.

They are made of three functions: how a first term is rounded, how two numbers add, and what flushing makes of an
operand. Counters are those that the reference documents. Each order has loops of its own, for compiling takes seconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim import accumulate
from numsim.accumulate import Plan
from numsim.kernels._jit import jit


class Order(NamedTuple):
    """An order for sums of one length, as the loops below need it."""

    kind: int
    uses: int
    block: int  # of a tree: how many neighbouring terms are added one after another first
    starts: npt.NDArray[np.int64]  # the same, where blocks differ in length; they are added in eight lanes
    combine: int  # how the blocks are added: by levels, one after another, or by these pairs of blocks
    pairs: npt.NDArray[np.int64]


SEQUENTIAL, KAHAN, NEUMAIER, DOUBLE_WORD, TREE, EXACT = range(6)
LEVELS, CHAIN, PAIRS = range(3)
_KINDS = {"sequential": SEQUENTIAL, "kahan": KAHAN, "neumaier": NEUMAIER, "double-word": DOUBLE_WORD, "exact": EXACT}
_NONE = np.zeros(0, np.int64), LEVELS, np.zeros((0, 2), np.int64)


def order_for(plan: Plan, n: int) -> Order:
    name, _, length = plan.order.partition(":")
    if name in _KINDS:
        return Order(_KINDS[name], plan.uses, 1, *_NONE)
    if name.startswith("("):
        pairs = np.array(list(accumulate.additions(plan.order, n)), np.int64).reshape(-1, 2)
        return Order(TREE, plan.uses, 1, _NONE[0], PAIRS, pairs)
    if length == "numpy":
        starts, halves = _numpy_blocks(n)
        return Order(TREE, plan.uses, 0, np.array([*starts, n]), PAIRS, np.array(halves, np.int64).reshape(-1, 2))
    return Order(TREE, plan.uses, int(length or 1), _NONE[0], CHAIN if name == "blocked" else LEVELS, _NONE[2])


def _numpy_blocks(n: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Where the blocks of "pairwise:numpy" begin, and which of them are added, in order."""
    starts, pairs = list[int](), list[tuple[int, int]]()

    def halve(first: int, n: int) -> int:
        if n <= 128:
            starts.append(first)
            return len(starts) - 1
        half = n // 16 * 8
        i, j = halve(first, half), halve(first + half, n - half)
        pairs.append((i, j))
        return i

    halve(0, n)
    return starts, pairs


@jit
def corrects(x):  # type: ignore[no-untyped-def]
    return x != 0.0 and abs(x) < np.inf


def named(loop: Any, order: Any) -> Any:
    """A loop with a name of its own for each order: its compiled code is kept under that name."""
    loop.__name__ = f"{loop.__name__}_{order.__name__}"
    return loop


def orders_of(real: Any, start: Any, plus: Any, operand: Any) -> list[Any]:
    """The orders, by kind, for numbers of type ``real``: one sum of x[:n], n > 0; ``trail`` gets the running sums."""

    @jit
    def sequential(x, n, g, o, first, bits, trail, space):  # type: ignore[no-untyped-def]
        last = first + o.uses - 1
        s = start(x[0], g, last, bits)
        for i in range(n):
            if i:
                s = plus(operand(s, g), x[i], g, last + i * o.uses, bits)
            if trail.size:
                trail[i] = s
        return s

    @jit
    def kahan(x, n, g, o, first, bits, trail, space):  # type: ignore[no-untyped-def]
        last = first + o.uses - 1
        s, lost = start(x[0], g, last, bits), real(0.0)
        for i in range(n):
            if i:
                at = last + i * o.uses
                s = operand(s, g)
                y = operand(plus(x[i], -operand(lost, g), g, at - 3, bits), g)
                t = plus(s, y, g, at - 2, bits)
                gained = operand(plus(operand(t, g), -s, g, at - 1, bits), g)
                lost = plus(gained, -y, g, at, bits)
                s = t
            if trail.size:
                trail[i] = s
        return s

    @jit
    def neumaier(x, n, g, o, first, bits, trail, space):  # type: ignore[no-untyped-def]
        last = first + o.uses - 1
        s, lost = start(x[0], g, last, bits), real(0.0)
        for i in range(n):
            at = last + i * o.uses
            if i:
                s = operand(s, g)
                t = plus(s, x[i], g, at - 4, bits)
                large = abs(s) >= abs(x[i])
                rest = operand(plus(s if large else x[i], -operand(t, g), g, at - 3, bits), g)
                error = operand(plus(rest, x[i] if large else s, g, at - 2, bits), g)
                lost = operand(plus(lost, error, g, at - 1, bits), g)
                s = t
            if trail.size:
                trail[i] = plus(operand(s, g), lost, g, at, bits) if corrects(lost) else s
        return plus(operand(s, g), lost, g, last + (n - 1) * o.uses, bits) if corrects(lost) else s

    @jit
    def double_word(x, n, g, o, first, bits, trail, space):  # type: ignore[no-untyped-def]
        last = first + o.uses - 1
        s, low = start(x[0], g, last, bits), real(0.0)
        for i in range(n):
            if i:
                at = last + i * o.uses
                t = operand(s, g)
                s = plus(t, x[i], g, at - 9, bits)
                high = operand(s, g)
                a = operand(plus(high, -x[i], g, at - 8, bits), g)
                b = operand(plus(high, -a, g, at - 7, bits), g)
                a = operand(plus(t, -a, g, at - 6, bits), g)
                b = operand(plus(x[i], -b, g, at - 5, bits), g)
                error = operand(plus(a, b, g, at - 4, bits), g)
                low = operand(plus(low, error, g, at - 3, bits), g)
                if corrects(low):
                    s = plus(high, low, g, at - 2, bits)
                    gained = operand(plus(operand(s, g), -high, g, at - 1, bits), g)
                    low = operand(plus(low, -gained, g, at, bits), g)
                else:
                    low = real(0.0)
            if trail.size:
                trail[i] = s
        return s

    @jit
    def run(x, begin, end, g, o, first, bits):  # type: ignore[no-untyped-def]
        """Neighbours one after another; the first goes in as it is."""
        s = t = x[begin]
        for i in range(begin + 1, end):
            t = plus(s, x[i], g, first + (i + 1) * o.uses - 1, bits)
            s = operand(t, g)
        return t

    @jit
    def eight_lanes(x, begin, end, g, o, first, bits, lanes):  # type: ignore[no-untyped-def]
        """As NumPy adds 8 to 128 neighbours."""
        last = first + o.uses - 1
        lanes[:] = x[begin : begin + 8]
        whole = end - (end - begin) % 8
        for i in range(begin + 8, whole, 8):
            for j in range(8):
                lanes[j] = operand(plus(lanes[j], x[i + j], g, last + (i + j) * o.uses, bits), g)
        t = lanes[0]
        for i, j in ((0, 1), (2, 3), (0, 2), (4, 5), (6, 7), (4, 6), (0, 4)):
            t = plus(lanes[i], lanes[j], g, last + (begin + j) * o.uses, bits)
            lanes[i] = operand(t, g)
        for i in range(whole, end):
            t = plus(operand(t, g), x[i], g, last + i * o.uses, bits)
        return t

    @jit
    def tree(x, n, g, o, first, bits, trail, space):  # type: ignore[no-untyped-def]
        last = first + o.uses - 1
        if n == 1:
            return start(x[0], g, last, bits)
        lanes = np.empty(8, x.dtype)
        count = o.starts.size - 1 if o.starts.size else (n + o.block - 1) // o.block
        t = x[0]
        if o.block == 1:
            space[:n] = x
        for b in range(count if o.block != 1 else 0):
            begin = o.starts[b] if o.starts.size else b * o.block
            end = o.starts[b + 1] if o.starts.size else min(begin + o.block, n)
            if o.starts.size and end - begin >= 8:
                t = eight_lanes(x, begin, end, g, o, first, bits, lanes)
            else:
                t = run(x, begin, end, g, o, first, bits)
            space[b] = operand(t, g) if end - begin > 1 else t
        if o.combine == CHAIN:
            for b in range(1, count):
                t = plus(space[0], space[b], g, last + b * o.block * o.uses, bits)
                space[0] = operand(t, g)
        elif o.combine == PAIRS:
            for k in range(len(o.pairs)):
                i, j = o.pairs[k]
                begin = o.starts[j] if o.starts.size else j
                t = plus(space[i], space[j], g, last + begin * o.uses, bits)
                space[i] = operand(t, g)
        else:
            step = o.block
            while count > 1:
                for k in range(count // 2):
                    t = plus(space[2 * k], space[2 * k + 1], g, last + (2 * k + 1) * step * o.uses, bits)
                    space[k] = operand(t, g)
                if count % 2:
                    space[count // 2] = space[count - 1]
                count = count // 2 + count % 2
                step *= 2
        return t

    return [sequential, kahan, neumaier, double_word, tree]
