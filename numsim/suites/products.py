"""A library's own matrix products beside what tensor cores, or ordinary ones, would give in the ways that are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.accumulate import Plan, products
from numsim.arithmetic import compute
from numsim.codes import decode
from numsim.errors import InputError
from numsim.formats import BF16, FP16, FP32, FP64, Format
from numsim.machines.question import FUNCTIONS, LIBRARY, Answer, Question
from numsim.rounding import Policy, convert
from numsim.suites.statistics import Floats, Reach, exact_products, in_bits, in_statistics, same_codes, told_ways
from numsim.suites.suite import Row
from numsim.tensorcore import matmul
from numsim.tensorcore.models import IN_WORDS, TYPES, Model, word_format
from numsim.tensorcore.names import get_model, list_chips, list_models

Codes = npt.NDArray[Any]
Places = tuple[Codes, Codes]  # rows and columns of a result
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)  # parts of K
PROMOTE = 128  # elements of K after which sums of FP8 products are added up in FP32
SCALINGS = ("by the product of both scales", "by b's scales, then a's", "by a's scales, then b's")
FP8 = ("e4m3", "e5m2")
_CORNER = 8  # rows and columns of the result on which a way is tried
_PART = 32  # rows and columns of FP64 sums that are exact; the others are NumPy's
_USUAL = {"split_k": 1, "tf32": "truncate", "combine": "serial", "partials": "fp32"}
_ORDERS = (
    ("one FMA after another", "sequential", True),
    ("one product after another", "sequential", False),
    ("products pairwise", "pairwise", False),
)


def compare_product(
    part: str, question: Question, answer: Answer, *, chip: str | None = None, instruction: str | None = None
) -> Row:  # fmt: skip
    """A library's matrix product beside all ways to compute it that numsim knows.

    Those are, for a ``chip``, chains of each of its instructions for such operands: K cut into parts or not, with and
    without promotion to FP32, TF32 operands cut or rounded; and for everything sums on ordinary cores, one after
    another or pairwise, with and without fused multiply-add. Scales and the last rounding follow.

    All are tried: where one alone gives all bits it is named, where several do so much is said. If there is none, the
    nearest one stands beside the exact result (of FP64 operands, exact for a part of the outputs): see
    ``in_statistics``. All errors together are no larger than those of the ways that were tried.

    Parameters
    ----------
    question, answer : of torch.matmul or torch._scaled_mm, two matrices. chip : whose tensor cores it may have used;
        None for a CPU. instruction : only this one of the chip's.

    Raises ``InputError`` for other questions and for chips and instructions that do not exist.
    Cost: seconds for 10^8 products.
    Source: section 3.3.2 of the DeepSeek-V3 report (promotion); N. J. Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., section 3.1 (the bound of a sum in any order).
    """
    if question.operation != LIBRARY or question.system not in ("torch.matmul", "torch._scaled_mm"):
        raise InputError(f"{question} is no matrix product of a library. Example: system='torch.matmul'")
    if question.arrays[0].ndim != 2 or question.arrays[1].ndim != 2:
        raise InputError(f"{question}: two matrices are needed. Example: a (M, K), b (K, N)")
    nearest, most, fit, tried = dict[str, Way](), -1, dict[str, Codes](), list[Codes]()
    places = _fullest(question)
    some = answer.codes[np.ix_(*places)]
    for way in _ways(question, chip, instruction):
        corner = _results(question, way, places)
        tried += corner.values()
        hits = {name: int(same_codes(found, some, question.output).sum()) for name, found in corner.items()}
        best = max(hits, key=lambda name: hits[name])
        if hits[best] == corner[best].size:
            wholes = _results(question, way, None)
            found = {n: whole for n, whole in wholes.items() if same_codes(whole, answer.codes, question.output).all()}
            if len(found) == len(SCALINGS):  # as where all scales are powers of two
                found = {f"{way.name}, scaled in any order": found[best]}
            fit |= found
        if hits[best] > most:
            nearest, most = {best: way}, hits[best]
    if fit:
        return in_bits(part, question, answer, next(iter(fit.values())), told_ways(list(fit)))
    ours = {name: _results(question, way, None)[name] for name, way in nearest.items()}
    reach = _reach(question, chip, instruction)
    there = Reach(*(of[np.ix_(*places)] for of in (reach.exact, reach.sizes, reach.worst)))
    with np.errstate(all="ignore"):
        usual = max(there.relative(np.asarray(decode(codes, question.output))) for codes in tried)
    # what ordinary roundings may add: ways that were tried may happen to be exact
    usual += math.sqrt(question.arrays[0].shape[1]) * 2.0 ** -(FP64 if FP64 in question.inputs else FP32).precision
    return in_statistics(part, question, answer, ours, replace(reach, usual=usual))


def _fullest(q: Question) -> Places:
    """Rows and columns with few zeros: results of zeros are the same in all ways."""
    a, b = (np.asarray(decode(codes, f)) != 0 for codes, f in zip(q.arrays[:2], q.inputs[:2], strict=True))
    counts = (a.sum(axis=1), b.sum(axis=0))
    rows, columns = (np.sort(np.argsort(-n, kind="stable")[:_CORNER]) for n in counts)
    return rows, columns


# --- ways to multiply -------------------------------------------------------------------------------------------------
class Way(NamedTuple):
    """How sums of products may be computed, and their format; scales and the last rounding follow."""

    name: str
    multiply: Callable[[Codes, Codes], Codes]
    format: Format


def _ways(q: Question, chip: str | None, instruction: str | None) -> Iterator[Way]:
    """The likeliest first."""
    yield from _on_tensor_cores(q, chip, instruction)
    yield from _on_ordinary_cores(q)


def ways_to_try(q: Question) -> int:
    """How many products a comparison computes, on the chip that has most ways."""
    return max(len(list(_ways(q, chip, None))) for chip in (None, *list_chips()))


def _on_tensor_cores(q: Question, chip: str | None, instruction: str | None) -> Iterator[Way]:
    k = q.arrays[0].shape[1]
    for model, alike in _models(q, chip, instruction):
        variants: list[dict[str, Any]] = [{}]
        if model.a in FP8:
            variants = [{}, {"promote": PROMOTE}] if flag(q, "use_fast_accum") else [{"promote": PROMOTE}, {}]
        elif model.a in IN_WORDS:
            variants = [{"tf32": how} for how in ("truncate", "nearest-away", "nearest-even")]
        for split in SPLITS:
            if split > 1 and (split * model.k > k or model.d != "f32"):
                break
            for variant in variants:
                for last in _combinations(q.output, split):
                    options = {**variant, "split_k": split, **last}
                    shown = [f"{n}={v}" for n, v in options.items() if _USUAL.get(n) != v]
                    format = FP32 if split > 1 or "promote" in options else TYPES[model.d]
                    multiply = partial(matmul, chip=model.chip, instruction=model.instruction, output=format, **options)
                    name = model.instruction + " or one that computes alike" * (alike > 1)
                    yield Way(", ".join([name, *shown]), multiply, format)


def _combinations(output: Format, split: int) -> list[dict[str, Any]]:
    """How the parts of K come together: in FP32, from FP32 or from results already rounded."""
    if split == 1:
        return [{}]
    kept = ["fp32", output.name] if output in (FP16, BF16) else ["fp32"]
    orders = ["serial", "pairwise"] if split > 3 else ["serial"]  # the same for three
    return [{"partials": f, "combine": c} for f in kept for c in orders]


def _models(q: Question, chip: str | None, instruction: str | None) -> list[tuple[Model, int]]:
    """A chip's instructions for such operands, one of those that compute alike, and how many these are."""
    if chip is None:
        return []
    if instruction is not None:
        return [(get_model(chip, instruction), 1)]
    found: dict[Any, list[Model]] = {}
    for m in list_models(chip):
        takes = [word_format(m.a), word_format(m.b)] == list(q.inputs[:2]) and not m.scale and m.c == m.d
        if takes and (m.a not in IN_WORDS or flag(q, "allow_tf32")):
            length = min(m.k, m.unit.length) if m.unit.path == "block" else m.k
            found.setdefault((m.unit.path, length, m.unit.fraction_bits, m.unit.output), []).append(m)
    firsts = [(some[0], len(some)) for some in found.values()]
    return sorted(firsts, key=lambda m: (m[0].d == "f16", m[0].instruction.startswith("mma"), -m[0].k))


def flag(q: Question, name: str) -> bool:
    """A flag of the library's function."""
    return bool({**FUNCTIONS[q.system][1], **dict(q.settings)}.get(name))


def _on_ordinary_cores(q: Question) -> Iterator[Way]:
    format = FP64 if q.inputs[0] == FP64 else FP32
    for name, order, fused in _ORDERS:
        plan = Plan(q.inputs[:2], format, None if fused else format, order)
        yield Way(f"{name} in {format.title}", partial(products, plan=plan), format)


def _results(q: Question, way: Way, places: Places | None) -> dict[str, Codes]:
    """The result, or some rows and columns of it, by name: sums may be scaled in several ways."""
    a, b, *scales = q.arrays if places is None else _operands(q, *places)
    total, format = way.multiply(a, b), way.format
    results = {way.name: total}
    if scales:
        total, format = convert(total, format, FP32, Policy()), FP32
        left, right = scales
        factors = ([_times(left, right)], [right, left], [left, right])
        results = {f"{way.name}, scaled {how}": reduce(_times, some, total)
                   for how, some in zip(SCALINGS, factors, strict=True)}  # fmt: skip
    overflow: Any = "saturate" if q.output.bits == 8 else "ieee"
    return {name: convert(x, format, q.output, Policy(overflow=overflow)) for name, x in results.items()}


def _times(x: Codes, y: Codes) -> Codes:
    return compute("mul", [x, y], [FP32, FP32], FP32, Policy())


def _operands(q: Question, rows: Codes, columns: Codes) -> list[Codes]:
    """The operands of some rows and columns, with their scales."""
    a, b, *scales = q.arrays
    some = [s if s.size == 1 else s[rows] if s.shape[0] > 1 else s[:, columns] for s in scales]
    return [a[rows], b[:, columns], *some]


# --- how far off any of them can be -----------------------------------------------------------------------------------
def _reach(q: Question, chip: str | None, instruction: str | None) -> Reach:
    """How far any order can get from the exact results: on ordinary cores, or where a chip has them on tensor cores."""
    a, b, *scales = q.arrays
    x, y = (np.asarray(decode(codes, f)) for codes, f in zip((a, b), q.inputs[:2], strict=True))
    wide, k = FP64 in q.inputs, x.shape[1]
    last = 2.0 ** -(FP64 if wide else FP32).precision
    units = [m for m, _ in _models(q, chip, instruction) if m.unit.path in ("block", "fp8-as-fp16")]
    cut = [_lost_on(m, q, k) for m in units if m.d != "f16" or flag(q, "allow_fp16_accumulation")]
    with np.errstate(all="ignore"):
        sizes = np.abs(x) @ np.abs(y)
        exact = x @ y  # in FP64, whose own errors are the last term below
        if wide:
            exact[:_PART, :_PART] = exact_products(x[:_PART], y[:, :_PART])
        worst = max([k * last, *cut]) * sizes + _lost_on_parts(q, chip, x, y) + k * 2.0**-53 * sizes
        spread = (1 + wide) * math.sqrt(k) * last * sizes if chip is None else None
        for s in scales:
            factor = np.asarray(decode(s, FP32))
            exact, sizes, worst = exact * factor, sizes * np.abs(factor), worst * np.abs(factor)
            spread = None if spread is None else spread * np.abs(factor)
        scaled = len(scales) * 2.0**-23 * np.abs(exact)
        return Reach(exact, sizes, worst + scaled, None if spread is None else spread + scaled)


def _lost_on_parts(q: Question, chip: str | None, x: Floats, y: Floats) -> Floats:
    """A GPU may cut K into parts. Each is rounded, and each sum of some in a row: none is larger than the range of all
    running sums."""
    total, least, most = np.zeros((3, len(x), y.shape[1]))
    for i in range(x.shape[1] if chip else 0):
        total = total + np.multiply.outer(x[:, i], y[i])
        least, most = np.minimum(least, total), np.maximum(most, total)
    last = 2.0 ** -(q.output if _rounds_parts(q) else FP32).precision
    return np.asarray((2 * max(SPLITS) - 1) * last * (most - least))


def _rounds_parts(q: Question) -> bool:
    """Whether the library may add up the parts of K in the result's own format."""
    return q.output in (FP16, BF16) and flag(q, f"allow_{q.output.name}_reduced_precision_reduction")


def _lost_on(m: Model, q: Question, k: int) -> float:
    """Every term is cut to F bits, each block's sum c among them, and each result to those that it has."""
    if m.a in FP8 and not flag(q, "use_fast_accum"):
        k = min(k, PROMOTE)
    blocks = -(-k // min(m.k, m.unit.length))
    kept = {"rz-e8m13": 13, "rne-fp16": 10}.get(m.unit.output, 23)
    words = 2 * 2.0**-10 if m.a in IN_WORDS else 0.0  # both operands are cut to TF32 first
    return (k + blocks) * 2.0**-m.unit.fraction_bits + blocks * 2.0**-kept + words
