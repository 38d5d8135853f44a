"""The orders of a sum, written once for anything that can be added: library arrays or codes.

``terms`` are equally shaped arrays, one for each place in the sum; ``add`` and ``sub`` round to the accumulator format.
The rules are those of ``numsim.accumulate``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

ORDERS = ("sequential", "pairwise", "kahan")  # of those that numsim has
Operation = Callable[[Any, Any], Any]


def sequential(terms: Iterable[Any], add: Operation) -> Iterator[Any]:
    """The running sum in index order.

    >>> list(sequential([1, 2, 3], int.__add__))
    [1, 3, 6]
    """
    total = None
    for x in terms:
        total = x if total is None else add(total, x)
        yield total


def kahan(terms: Iterable[Any], add: Operation, sub: Operation) -> Iterator[Any]:
    """The running sum with the rounding error carried along; four roundings a term."""
    total = lost = None
    for x in terms:
        if total is None:
            total = x
        else:
            wanted = x if lost is None else sub(x, lost)
            new = add(total, wanted)
            lost = sub(sub(new, total), wanted)
            total = new
        yield total


def pairwise(terms: Iterable[Any], add: Operation) -> Any:
    """Neighbours are added level by level; an odd one out moves up.

    >>> pairwise("abcde", "({}{})".format)
    '(((ab)(cd))e)'
    """
    level = list(terms)
    while len(level) > 1:
        pairs = [add(x, y) for x, y in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def last(running: Iterator[Any]) -> Any:
    """The last of a running sum that is not empty."""
    total = None
    for total in running:  # noqa: B007
        pass
    return total
