"""Where an instruction differs from its model: in which sets, at which operands first, and what unit would fit."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.arithmetic import compute
from numsim.codes import code_dtype, decode
from numsim.errors import InputError
from numsim.expression import parse_products
from numsim.machines.question import Answer, Question
from numsim.machines.verdict import describe
from numsim.reveal.findings import findings
from numsim.reveal.fit import answers_to_probes, count_differences
from numsim.reveal.operands import Interface
from numsim.reveal.probes import sums_for
from numsim.reveal.reading import Reading
from numsim.rounding import Policy, convert
from numsim.show.suite_text import called
from numsim.tensorcore import EvidenceWarning, explain_mma
from numsim.tensorcore.models import ALIGNMENTS, OUTPUTS, TYPES, Model, word_format
from numsim.tensorcore.products import chained
from numsim.values import Rational, Values

Codes = npt.NDArray[Any]
Answers = Mapping[str, tuple[Question, Answer]]  # by set
PROBES = "probes"  # the set of all probes of ``numsim.reveal``, one after another
Way = Callable[[Sequence[Codes]], Codes]  # a, b, c and the scales -> d
_MOST_PRODUCTS, _LOOKED_AT = 8, 32  # of a sum that is given to ``numsim explain``; how many are looked at for one


def what_differs(model: Model, answers: Answers, numbers: Mapping[str, int], cause: Cause) -> Iterator[str]:
    """Sentences on one instruction whose results differ in the sets ``answers``.

    numbers : which question of the record a set is. cause : see ``nearest``.
    """
    if cause.misses:
        near = cause.change or "none"
        yield (f"{model.instruction}: no change of one thing explains it; the nearest, {near}, misses "
               f"{cause.misses:,} of {cause.results:,} results")  # fmt: skip
    wrong = {name: _differing(model, *answer) for name, answer in answers.items()}
    wrong = {name: at for name, at in wrong.items() if len(at)}
    if counts := ", ".join(f"{name} {len(at):,} of {answers[name][1].codes.size:,}" for name, at in wrong.items()):
        yield f"{model.instruction} differs in the sets {counts}"
        yield _example(model, answers, wrong, numbers)
    if found := probed(model, answers):
        yield f"its probes say {'; '.join(found)}"


def _differing(model: Model, question: Question, answer: Answer) -> Codes:
    """Where results differ, as rows of indices; any NaN is as good as another."""
    ours, theirs = _usual(model, question.arrays), answer.codes
    nan = np.isnan(decode(ours, question.output)) & np.isnan(decode(theirs, question.output))
    return np.argwhere((ours != theirs) & ~nan)


def _example(model: Model, answers: Answers, wrong: Mapping[str, Codes], numbers: Mapping[str, int]) -> str:
    """One result that differs: as a command that explains it, where a sum is short; else where it stands."""
    found: list[tuple[str, str]] = []
    for name, places in wrong.items():
        question, answer = answers[name]
        ours = _usual(model, question.arrays)
        for at in map(tuple, places[:_LOOKED_AT].tolist()):
            if written := _written(model, question, at, int(ours[at])):
                found.append((written, f"one of {name}: {_both(model, answer, ours, at)}"))
    if found:
        written, told = min(found, key=lambda pair: len(pair[0]))
        return f'{told}. numsim explain "{written}" --chip {model.chip} --instruction {model.instruction}'
    name, places = next(iter(wrong.items()))
    question, answer = answers[name]
    at = tuple(places[0].tolist())
    told = _both(model, answer, _usual(model, question.arrays), at)
    return f"first in {name}, question {numbers[name]} of the file, result {list(at)}: {told}"


def _both(model: Model, answer: Answer, ours: Codes, at: tuple[int, ...]) -> str:
    """A result of the machine, and numsim's."""
    theirs, mine = (describe(int(codes[at]), TYPES[model.d]) for codes in (answer.codes, ours))
    return f"{called(str(answer.provenance['machine']))} {theirs}, numsim {mine}"


def _written(model: Model, question: Question, at: tuple[int, ...], code: int) -> str:
    """A sum as ``numsim explain`` reads it, if it is short and comes to ``code`` there, too; else "" (it takes no
    scales, and no NaN of a certain code)."""
    if len(question.arrays) > 3:
        return ""
    a, b = (np.broadcast_to(x, (*question.shape, x.shape[-1]))[at] for x in question.arrays[:2])
    c = np.broadcast_to(question.arrays[2], question.shape)[at]
    if model.a == "tf32":  # the unit does not see the low bits of its words
        a, b = (n & np.uint32(0xFFFFE000) for n in (a, b))
    x, y = (np.asarray(decode(n, word_format(t))).tolist() for n, t in ((a, model.a), (b, model.b)))
    last = max((k for k, pair in enumerate(zip(x, y, strict=True)) if 0 not in pair), default=-1)
    digits = 17 if model.a == "f64" else 9
    terms: list[str] = []
    zeros = products = 0
    for k in range(last + 1):
        if 0 in (x[k], y[k]):
            zeros += 1  # a place that has to be filled
            continue
        terms += [f"{zeros} x 0*0"] * bool(zeros) + [f"{_number(x[k], digits)}*{_number(y[k], digits)}"]
        zeros, products = 0, products + 1
    start = float(decode(c, word_format(model.c)))
    if not 1 <= products <= _MOST_PRODUCTS or not np.isfinite([*x, *y, start]).all():
        return ""
    written = " + ".join([*terms, *[_number(start, digits)] * (start != 0)]).replace("+ -", "- ")
    read = parse_products(written)
    left, right = (Values((len(read.pairs),), None, list(numbers)) for numbers in zip(*read.pairs, strict=True))
    lone = Values((), None, [read.c or Rational(0, 0, 1)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvidenceWarning)  # told beside the verdict
        found = explain_mma(left, right, lone, chip=model.chip, instruction=model.instruction)
    return written if found.code == code else ""


def _number(x: float, digits: int = 9) -> str:
    """In few signs, and to the bit: an operand is rounded to the nearest on its way in."""
    m, e = math.frexp(abs(x))
    power = m == 0.5 and not 1 <= abs(x) < 1024
    return "-" * (x < 0) + (f"2^{e - 1}" if power else f"{abs(x):.{digits}g}")


def probed(model: Model, answers: Answers) -> list[str]:
    """What the probes of ``numsim.reveal`` find that is not so in the model."""
    if PROBES not in answers:
        return []
    interface, found = Interface.of(model), []
    probes = sums_for(interface)
    ends = np.cumsum([len(sums.keys) for sums in probes.values()])
    seen = dict(zip(probes, np.split(answers[PROBES][1].codes, ends[:-1]), strict=True))
    for codes in (seen, answers_to_probes(model, interface)):
        rows = {n: dict(zip(sums.keys, codes[n].tolist(), strict=True)) for n, sums in probes.items()}
        found.append({f.name: f.value for f in findings(Reading(interface, rows))})
    own, modelled = found
    names = [name for name in {**own, **modelled} if own.get(name) != modelled.get(name)]
    return [f"{name} {_told(own.get(name))}, not {_told(modelled.get(name))}" for name in names]


def _told(value: Any) -> str:
    text = "not observable" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Cause(NamedTuple):
    """A change of one thing in a model, how many results it leaves unexplained, and of how many."""

    change: str  # several with "or" between them; "" where the model as it is comes as near
    misses: int
    results: int


def nearest(model: Model, answers: Answers) -> Cause:
    """The change of one thing that explains all results, or the most of them."""
    some = sorted(answers.values(), key=lambda answer: answer[1].codes.size)
    total = sum(answer.codes.size for _, answer in some)
    least, best = _misses(model, partial(_usual, model), some, total), [""]
    for name, way in others(model):
        if (n := _misses(model, way, some, least)) <= least:
            best = [*best, name] if n == least else [name]
            least = n
    return Cause(" or ".join(filter(None, best)), least, total)


def _misses(model: Model, way: Way, answers: Sequence[tuple[Question, Answer]], most: int) -> int:
    """How many results are others; not all are looked at where there are more than ``most``."""
    misses = 0
    for question, answer in answers:
        misses += count_differences(model, way(question.arrays), answer.codes)
        if misses > most:
            break
    return misses


def others(model: Model) -> Iterator[tuple[str, Way]]:
    """Units that differ from a model in one thing, by name."""
    unit, bits, seen = model.unit, model.unit.fraction_bits, {model.unit}
    yield "k in the opposite order", lambda arrays: _usual(model, _reversed(arrays))
    if model.c == model.d and model.d != "f64":
        yield "c added last", partial(_late, model)
    if unit.path == "fp8-as-fp16":
        k = np.arange(model.k)
        for name, order in (("even and odd k", np.argsort(k % 2, kind="stable")), ("halves of K", k)):
            # what the model takes for k mod 4 in {0, 1}, then in {2, 3}
            places = np.argsort(k % 4 // 2, kind="stable")
            yield f"{name} go together", partial(_regrouped, model, order, places)
    changes: list[tuple[str, dict[str, Any]]] = [
        *((f"F = {n}", {"fraction_bits": n}) for n in (13, *range(22, 28), *range(bits - 2, bits + 3))),
        *((f"blocks of {n}", {"length": n}) for n in (1, 2, 4, 8, 16, 32, 64) if n <= model.k),
        *((f"E0 = {e}", {"floor": e}) for e in (*range(unit.floor - 3, unit.floor + 4), -126, -14)),
        *((f"d {text}", {"output": rule}) for rule, text in OUTPUTS.items()),
        *((f"terms cut {how}", {"align": how}) for how in ALIGNMENTS),
        ("products of 2 and more aligned by their own leading bit", {"normalised": True}),
        ("one fused multiply-add after another", {"path": "fma", "length": 1, "output": f"rne-fp{model.d[1:]}"}),
    ]  # fmt: skip
    for name, change in changes:
        try:
            other = replace(model, unit=replace(unit, **change))
        except InputError:  # no such unit
            continue
        if other.unit not in seen:  # two changes may make the same unit
            seen.add(other.unit)
            yield name, partial(_usual, other)


def _usual(model: Model, arrays: Sequence[Codes]) -> Codes:
    a, b, c, *scales = arrays
    return chained(a, b, c, model, *(scales or (None, None)))


def _reversed(arrays: Sequence[Codes]) -> list[Codes]:
    a, b, c, *scales = arrays
    return [a[..., ::-1], b[..., ::-1], c, *(s[..., ::-1] for s in scales)]


def _late(model: Model, arrays: Sequence[Codes]) -> Codes:
    """Each instruction starts from zero; what went before is added to its result, rounded to nearest."""
    a, b, c, *scales = arrays
    sums = np.broadcast_to(c, np.broadcast_shapes(a.shape[:-1], b.shape[:-1], c.shape))
    zero, f = np.zeros((), code_dtype(TYPES[model.d])), TYPES[model.d]
    for first in range(0, a.shape[-1], model.k):
        part = slice(first, first + model.k)
        block = slice(first // (model.scale_block or 1), (first + model.k) // (model.scale_block or 1))
        made = _usual(model, [a[..., part], b[..., part], zero, *(s[..., block] for s in scales)])
        made = np.broadcast_to(made, sums.shape)
        sums = compute("add", [made, sums], [f, f], f, Policy())
        nan = np.asarray(convert(sums, f, f, Policy()) == (f.nan_code or 0))
        sums = np.where(nan, sums.dtype.type(model.nan), sums)
    return np.asarray(sums)


def _regrouped(model: Model, order: Any, places: Any, arrays: Sequence[Codes]) -> Codes:
    """Within each instruction, the first half of ``order`` at the places that are added first."""
    a, b, *rest = arrays
    where = np.empty(model.k, np.intp)
    where[places] = order
    shaped = [x.reshape(*x.shape[:-1], -1, model.k)[..., where].reshape(x.shape) for x in (a, b)]
    return _usual(model, [*shaped, *rest])
