"""The suite ``sums``: in which order and with which accumulator torch adds, for a few numbers and for many.

Sums of 64 rows and of one vector are asked apart: a GPU takes other kernels for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.accumulate import Plan
from numsim.accumulate import sums as add
from numsim.codes import code_dtype, decode
from numsim.formats import BF16, FP16, FP32, Format
from numsim.machines.question import LIBRARY, Answer, Question, ask
from numsim.machines.recorded import Record
from numsim.reveal.trees import rounds_of
from numsim.rounding import Policy, convert, encode
from numsim.suites.library import ROWS, Answers, SumTree, compare_sum, emulated, encode_power, sum_tree
from numsim.suites.statistics import cancelling_codes, exact_sums, uniform_codes
from numsim.suites.suite import Collector, Row, Suite, left_out

if TYPE_CHECKING:
    from numsim.show.suite_plots import Drawn

Codes = npt.NDArray[Any]
FORMATS = (FP16, BF16, FP32)
# Multiples of 4: where a row begins at another address, a GPU that loads 4 numbers at once adds in another order
# (PyTorch, ATen/native/cuda/Reduce.cuh).
LENGTHS = (36, 128, 1000)
_POSITIVE, _TINY = 40, 56  # from which of the 64 rows on numbers are positive, or subnormal; in others they cancel
_VECTORS = 8


class Part(NamedTuple):
    """Sums that are asked alike.

    vectors : how many, as rows of one question or each of its own; ones : all numbers are 1.
    """

    system: str
    format: Format
    length: int
    alone: bool
    vectors: int
    ones: bool = False

    @property
    def name(self) -> str:
        numbers = "ones" if self.ones else "numbers"
        return f"{self.system[6:]} {self.format}, {self.length} {numbers}{' alone' * self.alone}"

    @property
    def probed(self) -> bool:
        return not self.ones and self.length <= LENGTHS[-1 if self.system == "torch.sum" else 0]

    def tree(self, machine: Any) -> SumTree:
        """What probes reveal; of a recording, by the same probes again."""
        return sum_tree(machine, self.system, self.format, self.length, rows=0 if self.alone else ROWS)

    def questions(self, seed: int) -> list[Question]:
        """The numbers to add."""
        f, shape, key = self.format, (self.vectors, self.length), 1000 * seed + self.length
        if self.ones:
            codes = np.full(shape, encode_power(0, f), code_dtype(f))
        elif self.alone and not self.probed:
            codes = _positive(f, shape, key)
        else:
            codes = cancelling_codes(f, shape, key)
            if self.vectors == ROWS:
                codes[_POSITIVE:] = _positive(f, (ROWS - _POSITIVE, self.length), key)
                codes[_TINY:] &= codes.dtype.type((1 << f.fraction_bits) - 1)
        return [ask(LIBRARY, [f], f, [x], system=self.system) for x in (codes if self.alone else [codes])]


def _positive(format: Format, shape: tuple[int, ...], seed: int) -> Codes:
    codes = uniform_codes(format, shape, seed)
    return np.asarray(codes & codes.dtype.type(format.sign_mask - 1))


def parts() -> list[Part]:
    """All parts, in the order in which they are asked."""
    found = []
    for f in FORMATS:
        found += [Part("torch.sum", f, n, False, ROWS) for n in LENGTHS]
        found += [Part("torch.sum", f, n, True, count) for n, count in ((33, _VECTORS), (4096, 4), (65536, 1))]
        found += [Part("torch.sum", f, n, True, 1, ones=True) for n in (4096, 65536)]
        found += [Part("torch.cumsum", f, 36, False, ROWS), Part("torch.cumsum", f, 1000, False, 8)]
        found += [Part("torch.cumsum", f, 4096, True, 1, ones=True)]
    return found


def ask_all(collector: Collector) -> None:
    for part in parts():
        with collector.part(part.name):
            if part.probed:
                part.tree(collector)
            for question in part.questions(collector.seed):
                collector.ask(question)


# --- comparing --------------------------------------------------------------------------------------------------------
class Found(NamedTuple):
    """Of one part: its tree, or that of fewer numbers that were asked alike; the numbers to add; and the probes."""

    part: Part
    tree: SumTree
    asked: tuple[tuple[Question, Answer], ...]
    probes: tuple[tuple[Question, Answer], ...]


def read(record: Record) -> list[Found]:
    """The parts of a record that have answers."""
    by_part = record.by_part
    found, trees = list[Found](), dict[tuple[str, Format, bool], SumTree]()
    for part in parts():
        answers = Answers(by_part.get(part.name, []))
        kind = (part.system, part.format, part.alone and part.system == "torch.sum")
        if part.probed:
            tree = part.tree(answers)
            trees.setdefault(kind, tree)
        else:
            untold = SumTree(
                part.system, part.format, part.length, 0 if part.alone else ROWS, why="no probes are there"
            )
            tree = trees.get(kind, untold)
        probes = (pair for digest, pair in answers.answers.items() if digest not in answers.rest)
        if answers.answers:
            found.append(Found(part, tree, tuple(answers.rest.values()), tuple(probes)))
    return found


def compare_all(record: Record) -> list[Row]:
    """A row for each part, its probes among them: bit by bit in the order that was revealed, else by statistics."""
    return [*map(_row, read(record)), *left_out(record)]


def _row(found: Found) -> Row:
    part, tree, asked, probes = found
    known = bool(asked) and emulated(asked[0][0], tree) is not None
    if asked and part.alone and not known:
        asked = (_stacked(asked),)
    rows = [compare_sum(part.name, q, a, tree) for q, a in asked]
    rows += [compare_sum(part.name, q, a, tree, probe=True) for q, a in probes]
    verdict = sum((row.verdict for row in rows[1:]), rows[0].verdict)
    note = next((row.note for row in rows if row.verdict.unexplained), rows[0].note)
    if known:
        note = f"{verdict.text}: {tree.words}"
    if part.ones and not verdict.unexplained:
        note = _told_ones(part, asked[0][1].codes)
    return Row(part.name, verdict, note)


def _told_ones(part: Part, codes: Codes) -> str:
    """What n ones come to, and what they should."""
    found, right = (float(decode(c, part.format)) for c in (np.ravel(codes)[-1], encode(part.length, part.format)))
    than = (
        f"as n rounded to {part.format.title}"
        if found == right
        else f"where n rounded to {part.format.title} is {right:g}"
    )
    return f"n = {part.length} ones: {found:g}, {than}"


def _stacked(asked: Sequence[tuple[Question, Answer]]) -> tuple[Question, Answer]:
    """Vectors as rows: what is left to compare are statistics."""
    first = asked[0][0]
    rows, codes = np.stack([q.arrays[0] for q, _ in asked]), np.stack([a.codes for _, a in asked])
    question = ask(LIBRARY, first.inputs, first.output, [rows], system=first.system)
    return question, Answer(codes, asked[0][1].provenance)


def errors(found: Sequence[Found]) -> dict[Format, dict[int, list[float]]]:
    """Relative errors (RMS) of sums of positive numbers by length: the machine's, and of two other ways to add.

    Those add one number after another, in FP32 and in the format itself.
    """
    by_format: dict[Format, dict[int, list[float]]] = {}
    for part, _, asked, _ in found:
        f = part.format
        if not asked or part.system != "torch.sum" or part.ones or (part.alone and part.length < 1000):
            continue
        question, answer = _stacked(asked) if part.alone else asked[0]
        x = question.arrays[0]
        values = np.asarray(decode(x, f))
        positive = (values >= 0).all(axis=1) & (values.max(axis=1) > float(f.least_normal))
        ways = [answer.codes[positive]]
        for accumulator in (FP32, f):
            ways.append(convert(add([x[positive]], Plan((f,), accumulator)), accumulator, f, Policy()))
        if not positive.any():
            continue
        exact = exact_sums(values[positive])
        relative = [np.asarray(decode(way, f)) / exact - 1 for way in ways]
        by_format.setdefault(f, {})[part.length] = [float(np.sqrt(np.mean(e**2))) for e in relative]
    return by_format


def draw(record: Record, style: str) -> Drawn:
    """The revealed trees of the shortest sums, and errors by length."""
    from numsim.show import suite_plots  # matplotlib comes in only where pictures are made

    found = read(record)
    orders = [
        (part.format, tree.trees[0], tree.accumulator)
        for part, tree, _, _ in found
        if (part.system, part.length, part.alone) == ("torch.sum", LENGTHS[0], False)
        if tree.trees and rounds_of(tree.trees[0]) is not None
    ]
    return suite_plots.sums(orders, errors(found), record, style)


SUITE = Suite(
    name="sums",
    title="Sums",
    question="In which order does torch add, how wide is its accumulator, and does numsim get the same bits that way?",
    ask=ask_all,
    compare=compare_all,
    draw=draw,
    sources=(
        "Xie et al., FPRev, USENIX ATC 2025 (the order of a sum from masks)",
        "N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002), chapter 4 (errors of sums)",
    ),
)
