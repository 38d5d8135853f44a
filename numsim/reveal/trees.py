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


Sizes = dict[tuple[Any, Any], int]  # a pivot and another leaf -> leaves of the smallest subtree that holds both


def tree_by_pivots(leaves: Sequence[Any], measure: Callable[[list[tuple[Any, Any]]], Sequence[int] | None]) -> Tree:
    """The tree of a sum of many terms: asked for the pairs that are needed, in few rounds, instead of all pairs.

    Where one leaf (the pivot) meets all others splits these into groups; each group is a subtree with a pivot of its
    own (FPRev, as above).

    measure : for each pair, the leaves of the smallest subtree that holds both; None where that cannot be had.

    >>> tree_by_pivots(range(4), lambda pairs: [2 if i // 2 == j // 2 else 4 for i, j in pairs])
    ((0, 1), (2, 3))
    """
    sizes: Sizes = {}
    groups = [list(leaves)]
    while groups:
        pairs = [(group[0], leaf) for group in groups for leaf in group[1:]]
        if (found := measure(pairs)) is None:
            return None
        sizes.update(zip(pairs, found, strict=True))
        groups = [below for group in groups for _, below in _classes(group, sizes) if len(below) > 1]
    parts = _parts(list(leaves), len(leaves) + 1, sizes)
    return parts[0] if parts and len(parts) == 1 else None


def _classes(group: list[Any], sizes: Sizes) -> list[tuple[int, list[Any]]]:
    """The leaves that meet the group's first one in the same node, the nearest first."""
    classes: dict[int, list[Any]] = {}
    for leaf in group[1:]:
        classes.setdefault(sizes[group[0], leaf], []).append(leaf)
    return sorted(classes.items())


def _parts(group: list[Any], top: int, sizes: Sizes) -> list[Tree] | None:
    """The trees of a group that meet in a node of ``top`` leaves; None where the sizes are those of no tree."""
    tree, count = group[0], 1
    for size, below in _classes(group, sizes):
        parts = _parts(below, size, sizes) if size <= top else None
        if parts is None or (size < top and size != count + len(below)):
            return None
        if size == top:  # they meet at once with what the caller has
            return [tree, *parts]
        tree = tuple([*parts, tree] if len(below) > count else [tree, *parts])
        count = size
    return [tree]


def rounds_of(tree: Tree) -> list[list[tuple[Any, Any]]] | None:
    """Additions that can be done at the same time, round after round: (i, j) adds to the sum that began at leaf i the
    one that began at leaf j. None where more than two terms meet at once.

    >>> rounds_of((((0, 1), (2, 3)), 4))
    [[(0, 1), (2, 3)], [(0, 2)], [(0, 4)]]
    """
    rounds: list[list[tuple[Any, Any]]] = []
    done: list[tuple[Any, int]] = []  # the first leaf of a subtree, and its height
    todo = [(tree, False)]
    while todo:  # no recursion: a sum of a thousand terms, one after another, is as deep
        node, below_done = todo.pop()
        if not isinstance(node, tuple):
            done.append((node, 0))
        elif len(node) != 2:
            return None
        elif not below_done:
            todo += [(node, True), (node[1], False), (node[0], False)]
        else:
            (j, right), (i, left) = done.pop(), done.pop()
            height = max(left, right)
            rounds += [[] for _ in range(height + 1 - len(rounds))]
            rounds[height].append((i, j))
            done.append((i, height + 1))
    return rounds


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
    leaves, todo = list[Any](), [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, tuple):
            todo += reversed(node)
        else:
            leaves.append(node)
    return leaves


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


def in_words(tree: Tree) -> str:
    """The order of a sum in a few words.

    >>> in_words((((0, 1), 2), 3)), in_words(((0, 1), (2, 3)))
    ('one after another', 'pairwise')
    >>> in_words((((0, 2), 4), ((1, 3), 5)))
    '2 lanes of 3 (one after another), then a tree of 2'
    >>> in_words((((0, 1), (2, 3)), (4, 5)))
    '3 blocks of 2 (a tree), then 3 one after another'
    """
    if rounds_of(tree) is None:
        return "several numbers at once"
    total, levels, part = len(leaves_of(tree)), list[tuple[int, int, bool]](), tree
    while found := _equal_parts(part):
        count, step, part = found
        levels.insert(0, (count, step, count == 2))
    groups: list[tuple[int, list[int], bool]] = []  # count, steps, whether it is a tree; the innermost first
    for count, step, pairs in levels:
        if groups and pairs and groups[-1][2]:
            count, steps = 2 * groups[-1][0], [*groups.pop()[1], step]
        else:
            steps = [step]
        groups.append((count, steps, pairs))
    if isinstance(part, tuple):
        n, how, kind = len(leaves_of(part)), f"a tree of depth {len(rounds_of(part) or [])}", "parts"
        if not groups:
            return how
    else:
        n, steps, pairs = groups.pop(0)
        how = "a tree" if pairs else "one after another"
        neighbours = steps == [2**i for i in range(len(steps))]
        if not groups:
            alone = "pairwise" if pairs else how
            return alone if neighbours else f"{alone}, not with neighbours"
        kind = "blocks" if neighbours else "lanes"
    then = [f"a tree of {count}" if pairs else f"{count} one after another" for count, _, pairs in groups]
    return ", then ".join([f"{total // n} {kind} of {n} ({how})", *then])


def _equal_parts(tree: Tree) -> tuple[int, int, Tree] | None:
    """How many equal parts are added one after another, how far apart they are, and the first of them.

    >>> _equal_parts((((0, 1), (4, 5)), (8, 9)))
    (3, 4, (0, 1))
    """
    if not isinstance(tree, tuple):
        return None
    parts, size, first = [tree[1]], len(leaves_of(tree[1])), tree[0]
    while len(leaves_of(first)) > size:
        parts.insert(0, first[1])
        first = first[0]
    step = leaves_of(parts[0])[0] - leaves_of(first)[0]
    shape, start = rounds_of(first), leaves_of(first)
    for n, part in enumerate(parts, start=1):
        if leaves_of(part) != [leaf + n * step for leaf in start]:
            return None
        if rounds_of(part) != [[(i + n * step, j + n * step) for i, j in pairs] for pairs in shape or []]:
            return None
    return len(parts) + 1, step, first


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
