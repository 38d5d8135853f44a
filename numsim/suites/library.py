"""A library's own sums: the order and the accumulator that probes reveal, and its bits beside numsim's in that order.

Where no order shows, what remains is the error, beside that of orders that numsim knows and the bound that holds for
any order. ``compare_product`` does the same for matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.accumulate import Plan, sums
from numsim.arithmetic import compute
from numsim.codes import code_dtype, decode
from numsim.errors import InputError, short
from numsim.formats import BF16, FP16, FP32, FP64, Format, get_format
from numsim.machines.question import LIBRARY, Answer, Question, ask
from numsim.reveal import trees
from numsim.rounding import Policy, convert, encode
from numsim.suites.products import compare_product
from numsim.suites.statistics import Floats, Reach, exact_sums, in_bits, in_statistics
from numsim.suites.suite import Row

__all__ = ["ROWS", "Answers", "SumTree", "add_in_order", "compare_product", "compare_sum", "emulated", "sum_tree"]

Codes = npt.NDArray[Any]
ROWS = 64  # sums of one question: how many there are can decide which kernel a GPU takes, so it is always as many
_MOST = 32_000  # sums that probes may take
_SHARE = 32768  # numbers of a thread at least: PyTorch, ATen/TensorIterator.h and native/TensorIteratorReduce.cpp
_STALLS = 2.0**-6  # from here on n numbers rounded to u (n u) may be too small for their sum: all are rounded down
_ACCUMULATORS = (BF16, FP16, FP32, FP64)


@dataclass(frozen=True)
class SumTree:
    """In which order a library's sum adds, and in what.

    system, format, length : of which sum. rows : how many sums a question asked for; 0: a vector alone.
    trees : the tree of the sum (see ``numsim.reveal.trees``), of running sums one for each place; empty where none
        shows. kept : fraction bits of the first partial sum and of the last but one, on the longest way through the
        tree; None where that does not show. why : why there is no tree.
    """

    system: str
    format: Format
    length: int
    rows: int
    trees: tuple[Any, ...] = ()
    kept: tuple[int | None, ...] = ()
    why: str = ""

    @property
    def accumulator(self) -> Format | None:
        """The format that partial sums are rounded to, where it is one from the first addition to the last."""
        found = [f for f in _ACCUMULATORS if {f.fraction_bits} == set(self.kept)]
        return found[0] if found else None

    @property
    def sequential(self) -> bool:
        """Whether all sums add one number after another."""
        chains = [[[(0, j)] for j in range(1, n)] for n in self._lengths]
        return bool(self.trees) and [trees.rounds_of(t) for t in self.trees] == chains

    @property
    def _lengths(self) -> list[int]:
        return list(range(1, self.length + 1)) if len(self.trees) > 1 else [self.length]

    @property
    def words(self) -> str:
        """Order and accumulator in a few words."""
        if not self.trees:
            return self.why
        if len(set(self.kept)) > 1:
            there = " then ".join("?" if n is None else str(n + 1) for n in self.kept)
            return f"{trees.in_words(self.trees[-1])}; {there} bits"
        return f"{trees.in_words(self.trees[-1])}; {self.accumulator.title if self.accumulator else '?'}"


def sum_tree(
    machine: Any, system: str, format: Any, length: int, settings: Mapping[str, Any] | None = None, *, rows: int = ROWS
) -> SumTree:
    """Reveal in which order a library's sum adds n numbers, and how wide its accumulator is.

    Rules: sums of 2^big, -2^big and ones; nothing else is assumed than that a large number swallows small ones. NaN,
    infinities, -0 and overflow do not occur. Where the library flushes subnormal numbers, normal ones take their place.

    Parameters
    ----------
    machine : anything that answers questions: a machine, a ``Collector``, or ``Answers``, which repeats what was
        recorded. system : "torch.sum" or "torch.cumsum". format : of the numbers and of the result. length : 2 to 4096;
        running sums take all pairs, so that 64 is plenty. settings : of the question. rows : sums of one question; 0
        asks for the sums of single vectors, one by one.

    Raises ``InputError`` for systems and lengths that it does not know. Where nothing shows, or the machine has no
    answer, there is no tree, and ``why`` says so.
    Cost: n log n sums or so, in questions of ``rows`` sums; n^2 / 2 for running sums.
    Source: FPRev (Xie et al., USENIX ATC 2025), see ``numsim.reveal.trees``; the widths are our own.

    >>> from numsim.machines import Answer, Can
    >>> class Numpy:  # adds in FP32, 16 lanes or so, and rounds to FP16 at the end
    ...     def can(self, question): return Can(True)
    ...     def answer(self, question):
    ...         x = question.arrays[0].view(np.float16)
    ...         return Answer(x.cumsum(-1, np.float32)[..., -1].astype(np.float16).view(np.uint16), {"machine": "me"})
    >>> sum_tree(Numpy(), "torch.sum", "fp16", 40).words
    'one after another; FP32'
    """
    f = get_format(format)
    if system not in ("torch.sum", "torch.cumsum"):
        raise InputError(f"system={short(system)}: torch.sum and torch.cumsum are sums.")
    if type(length) is not int or not 2 <= length <= 4096:
        raise InputError(f"length={short(length)}: 2 to 4096 numbers can be probed. Example: length=128")
    masks = _Masks(machine, system, f, length, settings, rows)
    if masks.why:
        return SumTree(system, f, length, rows, why=masks.why)
    if system == "torch.cumsum":
        found = masks.running_trees()
    else:
        tree = trees.tree_by_pivots(range(length), masks.sizes)
        found = () if tree is None else (tree,)
    if not found or any(t is None for t in found):
        return SumTree(system, f, length, rows, why=masks.why or "no order shows: nothing is swallowed, or by no tree")
    return SumTree(system, f, length, rows, found, masks.kept(found[-1]))


class Answers:
    """Recorded answers as a machine that can be asked again; ``rest`` are those that nobody has asked for."""

    def __init__(self, answers: Sequence[tuple[Question, Answer]]) -> None:
        self.answers = {q.digest: (q, a) for q, a in answers}
        self.rest = dict(self.answers)

    def ask(self, question: Question) -> Codes | None:
        self.rest.pop(question.digest, None)
        found = self.answers.get(question.digest)
        return None if found is None else found[1].codes


class _Masks:
    """Sums of M, -M and ones: how many of the ones survive?"""

    def __init__(
        self, machine: Any, system: str, format: Format, length: int, settings: Mapping[str, Any] | None, rows: int
    ) -> None:
        self.machine, self.system, self.format, self.length = machine, system, format, length
        self.settings, self.rows, self.asked, self.why = dict(settings or {}), rows, 0, ""
        self.top = min(format.emax, 100)
        least = format.emin - format.fraction_bits
        for one in [0] if self.top == 100 else [least, format.emin]:
            # so many ones are counted exactly, and swallowed by M in 24 bits
            self.one, self.most = one, 2 ** min(format.precision, self.top - one - 25)
            ones = self._row({}, range(min(self.most, length)))
            total = self.sums(ones[None])
            if total is None or total[0, -1] == min(self.most, length):
                return
        self.why = "small numbers alone do not add up"

    def _row(self, large: Mapping[int, int], ones: range = range(0)) -> Codes:
        """Codes: powers of two at some places, ones at others."""
        row = np.zeros(self.length, code_dtype(self.format))
        row[ones.start : ones.stop] = encode_power(self.one, self.format)
        for place, exponent in large.items():
            row[place] = encode_power(exponent, self.format)
        return row

    def sums(self, rows: Codes) -> npt.NDArray[np.float64] | None:
        """The sums of some rows, in ones: (rows, 1), or (rows, length) for running sums. None: no answer."""
        self.asked += len(rows)
        if self.asked > (_MOST if self.rows else _MOST // ROWS):
            self.why = "too many probes are needed"
            return None
        found = []
        for first in range(0, len(rows), self.rows or 1):
            some = rows[first : first + (self.rows or 1)]
            if self.rows:  # as many rows each time
                some = np.concatenate([some, np.zeros((self.rows - len(some), self.length), rows.dtype)])
            array = some if self.rows else some[0]
            question = ask(LIBRARY, [self.format], self.format, [array], system=self.system, settings=self.settings)
            if (codes := _answer(self.machine, question)) is None:
                self.why = "not answered"
                return None
            values = np.asarray(decode(codes, self.format)).reshape(max(self.rows, 1), -1)
            found.append(values[: len(rows) - first] * 2.0**-self.one)
        return np.concatenate(found)

    def sizes(self, pairs: Sequence[tuple[int, int]]) -> list[int] | None:
        """Leaves of the smallest subtree that holds both, for the whole sum."""
        swallowed = self.swallowed(pairs)
        return None if swallowed is None else (swallowed[:, -1] + 2).tolist()

    def swallowed(self, pairs: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64] | None:
        """For each pair, how many ones M and -M swallow: (pairs, 1), or in each running sum."""
        parts = [range(at, min(at + self.most, self.length)) for at in range(0, self.length, self.most)]
        sign = int(self.format.sign_mask)
        rows = np.stack([self._row({}, part) for part in parts])
        masked = np.tile(rows, (len(pairs), 1))
        i, j = np.repeat(np.array(pairs), len(parts), axis=0).T
        at, large = np.arange(len(masked)), encode_power(self.top, self.format)
        masked[at, i], masked[at, j] = large, large | sign
        if (found := self.sums(masked)) is None:
            return None
        survived = found.reshape(len(pairs), len(parts), -1).sum(axis=1)
        ends = np.array([self.length]) if survived.shape[1] == 1 else np.arange(1, self.length + 1)
        inside = (np.array(pairs)[:, :, None] < ends).sum(axis=1)  # of M and -M, how many a running sum has reached
        lost = ends - inside - survived
        whole = (lost == np.floor(lost)) & (lost >= 0)
        return np.where(whole, lost, self.length).astype(np.int64)  # too many for any tree

    def running_trees(self) -> tuple[Any, ...]:
        """The tree of each running sum, from all pairs."""
        pairs = list(combinations(range(self.length), 2))
        if (lost := self.swallowed(pairs)) is None:
            return ()
        sizes = dict(zip(pairs, (lost + 2).tolist(), strict=True))

        def tree(n: int) -> Any:
            return trees.tree_of(range(n), lambda i, j: sizes[i, j][n - 1])

        return tuple(tree(n) for n in range(1, self.length + 1))

    def kept(self, tree: Any) -> tuple[int | None, ...]:
        """Fraction bits of partial sums, of the first and of the last: is 2^top + 2^(top - n) - 2^top more than 0?"""
        first, met = trees.leaves_of(tree)[0], _met(tree)
        if len(met) < 2:
            return ()
        least = self.format.emin - self.format.fraction_bits
        steps = [n for f in _ACCUMULATORS for n in (f.fraction_bits, f.fraction_bits + 1) if self.top - n >= least]
        found: list[int | None] = []
        for small, minus in (met[:2], met[-2:]):
            rows = np.stack([self._row({first: self.top, minus: self.top, small: self.top - n}) for n in steps])
            rows[:, minus] |= int(self.format.sign_mask)
            if (left := self.sums(rows)) is None:
                return ()
            there = dict(zip(steps, left[:, -1] != 0, strict=True))
            found.append(next((n for n in there if there[n] and not there.get(n + 1, True)), None))
        return tuple(found)


def _answer(machine: Any, question: Question) -> Codes | None:
    if hasattr(machine, "ask"):
        codes: Codes | None = machine.ask(question)
        return codes
    return machine.answer(question).codes if machine.can(question) else None


def _met(tree: Any) -> list[int]:
    """A leaf of each partial sum that the first leaf meets, in their order; empty where several meet at once."""
    own, met = trees.leaves_of(tree)[0], []
    for i, j in (pair for pairs in trees.rounds_of(tree) or [] for pair in pairs):
        if own in (i, j):
            met.append(j if own == i else i)
            own = i
    return met


def encode_power(exponent: int, format: Format) -> int:
    """The code of 2^exponent."""
    return int(encode(2.0**exponent, format))


# --- comparing --------------------------------------------------------------------------------------------------------
def add_in_order(codes: Codes, format: Format, tree: Any, accumulator: Format, output: Format) -> Codes | None:
    """Sums of codes (..., n) along a tree, each addition rounded to the accumulator, the last result to ``output``.

    None where more than two terms meet at once.

    >>> x = np.array([[0x6800, 0x3C00, 0x3C00]], np.uint16)  # 2048 + 1 + 1 in FP16
    >>> [float(decode(add_in_order(x, FP16, t, FP16, FP16), FP16)[0]) for t in (((0, 1), 2), (0, (1, 2)))]
    [2048.0, 2050.0]
    """
    if (rounds := trees.rounds_of(tree)) is None:
        return None
    partial = convert(codes, format, accumulator, Policy())
    for pairs in rounds:
        i, j = np.array(pairs).T
        terms = [partial[..., i], partial[..., j]]
        partial[..., i] = compute("add", terms, [accumulator] * 2, accumulator, Policy())
    return convert(partial[..., trees.leaves_of(tree)[0]], accumulator, output, Policy())


def compare_sum(part: str, question: Question, answer: Answer, tree: SumTree, *, probe: bool = False) -> Row:
    """A library's sums beside numsim's in the order and with the accumulator that probes revealed, bit by bit.

    Where the tree is not that of such sums: by statistics, see ``in_statistics``. (Of sums one after another it is, for
    running sums of any length.)

    probe : powers of two, most of which are swallowed: their errors have one sign, and are held to the bound only.
    """
    ours = emulated(question, tree)
    if ours is not None:
        return in_bits(part, question, answer, ours, tree.words)
    return _by_statistics(part, question, answer, tree, probe)


def emulated(q: Question, tree: SumTree) -> Codes | None:
    """The sums in the order and with the accumulator of a tree; None where it is not that of such sums."""
    x, f, accumulator = q.arrays[0], q.inputs[0], tree.accumulator
    running = q.shape == x.shape
    if accumulator is None or f != tree.format or q.system != tree.system:
        return None
    if tree.sequential and (running or (x.shape[-1] == tree.length and (x.ndim > 1) == (tree.rows > 0))):
        found = sums([x], Plan((f,), accumulator), trail=running)
        return convert(found, accumulator, q.output, Policy())
    if x.shape[-1] != tree.length or (x.ndim > 1) != (tree.rows > 0):
        return None
    results = [add_in_order(x[..., :n], f, t, accumulator, q.output)
               for t, n in zip(tree.trees, tree._lengths, strict=True)]  # fmt: skip
    if any(r is None for r in results):
        return None
    return np.stack(results, axis=-1) if running else results[0]  # type: ignore[arg-type]


def _by_statistics(part: str, q: Question, answer: Answer, tree: SumTree, probe: bool) -> Row:
    """Beside sums one after another and pairwise, in the accumulator or what it may be; of one vector also in parts."""
    x, f = q.arrays[0], q.inputs[0]
    running, n = q.system == "torch.cumsum", x.shape[-1]
    candidates = {}
    for a in [tree.accumulator] if tree.accumulator else dict.fromkeys((FP32, f)):
        for order, name in (("sequential", "one after another"), ("pairwise", "pairwise"))[: 1 if running else 2]:
            found = sums([x], Plan((f,), a, order=order), trail=running)
            candidates[f"{name} in {a.title}"] = convert(found, a, q.output, Policy())
    if f in (FP16, BF16) and not running and not tree.rows:
        threads = answer.provenance.get("threads")
        for parts in range(2, 1 + min(threads if isinstance(threads, int) else 1, n // _SHARE)):
            if n % parts == 0:
                name = f"{parts} equal parts, partial sums stored in {f.title}, then one after another"
                candidates[name] = _in_parts(x, f, parts)
    reach = _reach(np.asarray(decode(x, f)), running, tree)
    return in_statistics(part, q, answer, candidates, replace(reach, spread=None) if probe else reach)


def _in_parts(x: Codes, format: Format, parts: int) -> Codes:
    """Sums of parts in FP32, each stored in the format, as threads do; then the sum of these."""
    for _ in range(2):
        x = convert(sums([x.reshape(*x.shape[:-1], parts, -1)], Plan((format,), FP32)), FP32, format, Policy())
        parts = 1
    return x[..., 0]


def _reach(x: Floats, running: bool, tree: SumTree) -> Reach:
    """Of n numbers in the accumulator that showed; where none did, in FP32, which libraries promise."""
    shown = [n + 1 for n in tree.kept if n is not None]
    last = 2.0 ** -min(shown, default=FP32.precision)
    sizes = np.cumsum(np.abs(x), axis=-1) if running else np.abs(x).sum(axis=-1)
    additions = np.arange(x.shape[-1]) if running else max(x.shape[-1] - 1, 0)
    independent = len(set(tree.kept)) < 2 and x.shape[-1] * last < _STALLS
    spread = np.sqrt(additions) * last * sizes if independent else None
    return Reach(exact_sums(x, running), sizes, additions * last * sizes, spread)
