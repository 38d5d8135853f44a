"""Trees from the sizes of their subtrees, and as text."""

from itertools import combinations
from random import Random

import pytest

from numsim.reveal import trees


def size_in(tree):
    """What perfect masks would say: the leaves of the smallest subtree that holds both."""

    def size(i, j):
        t = tree
        while True:
            inner = [s for s in t if isinstance(s, tuple) and {i, j} <= set(trees.leaves_of(s))]
            if not inner:
                return len(trees.leaves_of(t))
            t = inner[0]

    return size


def normal(tree):
    return frozenset(map(normal, tree)) if isinstance(tree, tuple) else tree


def random_tree(leaves, random):
    if len(leaves) == 1:
        return leaves[0]
    parts = [[] for _ in range(random.randint(2, min(len(leaves), 5)))]
    for n, leaf in enumerate(leaves):
        parts[n if n < len(parts) else random.randrange(len(parts))].append(leaf)
    return tuple(random_tree(p, random) for p in parts)


@pytest.mark.parametrize("seed", range(40))
def test_any_tree_is_found(seed):
    random = Random(seed)
    leaves = [*range(random.randint(2, 20)), "c"]
    tree = random_tree(random.sample(leaves, len(leaves)), random)
    assert normal(trees.tree_of(leaves, size_in(tree))) == normal(tree)


def test_sizes_of_no_tree():
    assert trees.tree_of(range(4), lambda i, j: 2) is None
    assert trees.tree_of(range(4), lambda i, j: None) is None
    assert trees.tree_of(range(4), lambda i, j: 5) is None
    sizes = dict.fromkeys(combinations(range(4), 2), 4) | {(0, 1): 3, (2, 3): 2}  # a pair of three leaves
    assert trees.tree_of(range(4), lambda i, j: sizes[i, j]) is None


def test_order():
    assert trees.tree_from_order(range(4), lambda i, j: i > j) == (((("c", 3), 2), 1), 0)
    assert trees.tree_from_order(range(4), lambda i, j: False) == ("c", 0, 1, 2, 3)
    assert trees.tree_from_order(range(3), lambda i, j: (j - i) % 3 == 1) is None  # a circle
    assert trees.tree_from_order(range(3), lambda i, j: True) is None


def test_chains():
    assert trees.chain_of(((("c", 0), 1), 2)) == [["c", 0], [1], [2]]
    assert trees.chain_of((((0, 1), (2, 3)), "c")) is None


def test_as_text():
    lane = ((0, 8), 16)
    shifted = ((4, 12), 20)
    assert trees.show(((lane, shifted), "c")) == "(0>8>16)[+4]>c"
    assert trees.show(("c", ((0, 1), (2, 3)))) == "c>0[+1][+2]"
    assert trees.show((("c", ((0, 1), (2, 3))), ((4, 5), (6, 7)))) == "c>0[+1][+2]>4[+1][+2]"
    assert trees.show((((0, 1, 4, 5), 2, 3, 6, 7), "c")) == "((0-1,4-5)>(2-3,6-7))>c"
    assert trees.show(((0, 5), (1, 7))) == "0[+5]+1[+6]"
    assert trees.lanes_of((((((0, 4), 8), ((2, 6), 10)), (((1, 5), 9), ((3, 7), 11))), "c")) == 4
    assert trees.lanes_of((("c", 0), 1)) == 1
