"""The order of a sum from masks: a large M, -M and ones show which terms meet where.

Where M at one place and -M at another cancel, the small terms that were added to either before are lost: all leaves of
the smallest subtree that holds both. The sizes of these subtrees give the tree, nodes of many terms included. The idea
is that of FPRev (Xie et al., USENIX ATC 2025).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import Any

Tree = Any  # a leaf (a place k, or "c") or a tuple of trees that are added at once


def tree_of(leaves: Sequence[Any], size: Callable[[Any, Any], int | None]) -> Tree:
    """The tree of a sum, or None where the sizes are those of no tree (partial sums are exact, or nothing is lost).

    size : leaves of the smallest subtree that holds both.

    >>> sizes = {(0, 1): 2, (0, 2): 4, (1, 2): 4, (0, 3): 4, (1, 3): 4, (2, 3): 4}
    >>> tree_of(range(4), lambda i, j: sizes[i, j])
    ((0, 1), 2, 3)
    """
    if len(leaves) == 1:
        return leaves[0]
    sizes = {(i, j): size(i, j) for i, j in combinations(leaves, 2)}
    if any(n is None or not 2 <= n <= len(leaves) for n in sizes.values()):
        return None
    classes: list[list[Any]] = []
    for leaf in leaves:  # those that met before the root
        for members in classes:
            if sizes[members[0], leaf] != len(leaves):
                members.append(leaf)
                break
        else:
            classes.append([leaf])
    if len(classes) == 1:
        return None
    below = [tree_of(members, size) for members in classes]
    return None if any(t is None for t in below) else tuple(sorted(below, key=_rank))


def _rank(tree: Tree) -> tuple[bool, bool, int]:
    """Partial sums before single terms, what starts from c before others, larger before smaller."""
    leaves = leaves_of(tree)
    return len(leaves) == 1, "c" not in leaves, -len(leaves)


def chain_of(tree: Tree) -> list[list[Any]] | None:
    """The groups of a chain in the order in which they are added, or None for another tree.

    >>> chain_of((("c", 0, 1), 2, 3))
    [['c', 0, 1], [2, 3]]
    """
    groups: list[list[Any]] = []
    while isinstance(tree, tuple):
        inner = [t for t in tree if isinstance(t, tuple)]
        if len(inner) > 1:
            return None
        groups.append([t for t in tree if not isinstance(t, tuple)])
        tree = inner[0] if inner else None
    return groups[::-1]


def tree_from_order(leaves: Sequence[int], before: Callable[[int, int], bool]) -> Tree:
    """The chain in which places come, from which of two comes first; c starts it. None if that is no order.

    >>> tree_from_order(range(4), lambda i, j: i // 2 < j // 2)
    (('c', 0, 1), 2, 3)
    """
    ranks = {i: sum(before(j, i) for j in leaves if j != i) for i in leaves}
    if any(before(i, j) != (ranks[i] < ranks[j]) for i in leaves for j in leaves if i != j):
        return None
    tree: Tree = None
    for rank in sorted(set(ranks.values())):
        group = [i for i in leaves if ranks[i] == rank]
        tree = ("c" if tree is None else tree, *group)
    return tree


def leaves_of(tree: Tree) -> list[Any]:
    """All leaves, left to right."""
    return [leaf for t in tree for leaf in leaves_of(t)] if isinstance(tree, tuple) else [tree]


# --- in words ---------------------------------------------------------------------------------------------------------
def show(tree: Tree) -> str:
    """A tree in one line: (0-7 c) is added at once, + adds two partial sums, > adds one after another.

    X[+s] is X plus the same of places s further on.

    >>> show((((("c", 0), 1), 2), 3)), show((("c", 0, 1), 2, 3))
    ('c>0>1>2>3', '(0-1 c)>(2-3)')
    >>> show(((0, 1, 2, 3), "c")), show((((0, 2), (1, 3)), "c")), show(((0, 1), (2, 5), 9))
    ('(0-3)>c', '0[+2][+1]>c', '0[+1]+2[+3]+9')
    """
    if not isinstance(tree, tuple):
        return str(tree)
    inner = [t for t in tree if isinstance(t, tuple)]
    if len(tree) > 2 and len(inner) < 2:
        here = [t for t in tree if not isinstance(t, tuple)]
        group = f"({places([t for t in here if t != 'c'])}{' c' * ('c' in here)})"
        return f"{show(inner[0])}>{group}" if inner else group
    if shift := _shift(tree):
        return f"{_bracketed(tree[0])}[+{shift}]"
    line = spine(tree)
    if len(line) == 1 or (len(line) == 2 and "c" not in line):
        return "+".join(_bracketed(t) for t in tree)
    return ">".join(_shortened(line))


def spine(tree: Tree) -> list[Tree]:
    """What is added one after another, from the start on: single terms, or anything to the sum that holds c."""
    if not isinstance(tree, tuple) or len(tree) != 2 or _apart(tree):
        return [tree]
    line = [*spine(tree[0]), tree[1]]
    return [line[1], line[0], *line[2:]] if len(line) > 2 and line[1] == "c" else line


def lanes_of(tree: Tree) -> int:
    """How many equal sums, interleaved in k, are added up in the end; 1 if it is not so.

    >>> lanes_of(((((0, 2), 4), ((1, 3), 5)), "c"))
    2
    """
    if isinstance(tree, tuple) and len(tree) == 2 and tree[1] == "c":
        tree = tree[0]
    steps = []
    while shift := _shift(tree):
        steps.append(shift)
        tree = tree[0]
    fitting = [n for n in range(len(steps) + 1) if sorted(steps[:n]) == [2**i for i in range(n)]]
    return int(2 ** max(fitting))


def _shift(tree: Tree) -> int:
    """s, if a tree is X plus the same s places further on; else 0."""
    if not isinstance(tree, tuple) or len(tree) != 2:
        return 0
    first, second = leaves_of(tree[0]), leaves_of(tree[1])
    if "c" in (*first, *second) or len(first) != len(second):
        return 0
    step: int = second[0] - first[0]
    return step if _moved(tree[0], step) == tree[1] else 0


def _moved(tree: Tree, step: int) -> Tree:
    return tuple(_moved(t, step) for t in tree) if isinstance(tree, tuple) else tree + step


def _apart(tree: Tree) -> bool:
    """Whether two partial sums meet, neither with c in it."""
    return isinstance(tree[1], tuple) and "c" not in leaves_of(tree[0])


def _bracketed(tree: Tree) -> str:
    text = show(tree)
    closed = not isinstance(tree, tuple) or _shift(tree) or re.fullmatch(r"\([^()]*\)", text)
    return text if closed else f"({text})"


def _shortened(line: Sequence[Tree]) -> list[str]:
    """A line of additions; a long run of places that repeats itself further on is cut short.

    >>> ">".join(_shortened([0, 1, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, "c"]))
    '0>1>3>2>5>4>..>13>12>c'
    """
    parts = [_bracketed(t) for t in line]
    for period in (1, 2, 4, 8):
        pairs = zip(line, line[period:], strict=False)
        steps = [j - i if isinstance(i, int) and isinstance(j, int) else 0 for i, j in pairs]
        at, run = max(((i, _run(steps[i:])) for i in range(len(steps))), key=lambda x: x[1], default=(0, 0))
        if run > 4 * period:
            return [*parts[: at + 2 * period], "..", *parts[at + run :]]
    return parts


def _run(steps: Sequence[int]) -> int:
    """How often the first step is repeated."""
    return next((i for i, s in enumerate(steps) if s != steps[0]), len(steps)) if steps[0] else 0


def places(indices: Sequence[int]) -> str:
    """Indices as runs.

    >>> places([0, 1, 2, 3, 8, 9]), places([0, 4, 8, 12]), places([0, 1, 4, 5, 8, 9, 12, 13])
    ('0-3,8-9', '0,4..12', '0-1,4-5,8-9,12-13')
    """
    steps = {j - i for i, j in pairwise(indices)}
    if len(indices) > 3 and len(steps) == 1 and steps != {1}:
        return f"{indices[0]},{indices[1]}..{indices[-1]}"
    runs: list[list[int]] = []
    for i in indices:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
