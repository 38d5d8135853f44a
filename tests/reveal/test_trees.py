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


@pytest.mark.parametrize("seed", range(40))
def test_any_tree_is_found_by_pivots_with_fewer_pairs(seed):
    random = Random(seed)
    leaves = list(range(random.randint(2, 40)))
    tree = random_tree(leaves, random)
    size, asked = size_in(tree), []

    def measure(pairs):
        asked.extend(pairs)
        return [size(i, j) for i, j in pairs]

    assert normal(trees.tree_by_pivots(leaves, measure)) == normal(tree)
    assert len(asked) == len(set(asked)) <= len(leaves) * (len(leaves) - 1) // 2


def test_sizes_of_no_tree_are_refused_by_pivots():
    assert trees.tree_by_pivots(range(4), lambda pairs: [2] * len(pairs)) is None
    assert trees.tree_by_pivots(range(4), lambda pairs: None) is None
    assert trees.tree_by_pivots(range(4), lambda pairs: [5] * len(pairs)) is None


def test_a_long_chain_needs_one_round_and_no_recursion():
    rounds = []

    def measure(pairs):
        rounds.append(len(pairs))
        return [j + 1 for _, j in pairs]

    tree = trees.tree_by_pivots(range(3000), measure)
    assert rounds == [2999] and [len(r) for r in trees.rounds_of(tree)] == [1] * 2999


@pytest.mark.parametrize("seed", range(20))
def test_rounds_add_each_leaf_once(seed):
    random = Random(seed)

    def binary(leaves):
        if len(leaves) == 1:
            return leaves[0]
        cut = random.randint(1, len(leaves) - 1)
        return binary(leaves[:cut]), binary(leaves[cut:])

    def text(tree):
        return f"({text(tree[0])}{text(tree[1])})" if isinstance(tree, tuple) else str(tree)

    tree = binary(list(range(random.randint(2, 30))))
    held = {i: str(i) for i in trees.leaves_of(tree)}
    for pairs in trees.rounds_of(tree):
        assert len({x for pair in pairs for x in pair}) == 2 * len(pairs)
        for i, j in pairs:
            held[i] = f"({held[i]}{held.pop(j)})"
    assert list(held.values()) == [text(tree)]
