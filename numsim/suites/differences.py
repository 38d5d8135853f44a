"""Where an instruction differs from its model: in which sets, at which operands first, and what unit would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.arithmetic import compute
from numsim.codes import code_dtype
from numsim.errors import InputError
from numsim.machines.question import Answer, Question
from numsim.reveal.findings import findings
from numsim.reveal.fit import answers_to_probes, count_differences
from numsim.reveal.operands import Interface
from numsim.reveal.probes import sums_for
from numsim.reveal.reading import Reading
from numsim.rounding import Policy, convert
from numsim.tensorcore.models import ALIGNMENTS, OUTPUTS, TYPES, Model
from numsim.tensorcore.products import chained

Codes = npt.NDArray[Any]
Answers = Mapping[str, tuple[Question, Answer]]  # by set
PROBES = "probes"  # the set of all probes of ``numsim.reveal``, one after another
Way = Callable[[Sequence[Codes]], Codes]  # a, b, c and the scales -> d


def what_differs(model: Model, answers: Answers, differ: Mapping[str, int]) -> Iterator[str]:
    """Sentences on one instruction.

    answers : of each set. differ : how many of a set are not what the model says.
    """
    wrong = {name: n for name, n in differ.items() if n}
    counts = ", ".join(f"{name} {n} of {answers[name][1].codes.size}" for name, n in wrong.items())
    yield f"{model.instruction} differs in the sets {counts}"
    yield f"first in {_first(model, *answers[next(iter(wrong))])}"
    if found := probed(model, answers):
        yield f"its probes say {'; '.join(found)}"
    yield nearest(model, answers)


def _first(model: Model, question: Question, answer: Answer) -> str:
    """The operands of the first result that differs, in hexadecimal; terms that are zero are left out."""
    ours = _usual(model, question.arrays)
    at = tuple(int(n) for n in np.argwhere(ours != answer.codes)[0])
    lead = ours.shape
    a, b = (np.broadcast_to(x, (*lead, x.shape[-1]))[at] for x in question.arrays[:2])
    c = np.broadcast_to(question.arrays[2], lead)[at]
    terms = [f"k={k} {_hex(x)} x {_hex(y)}" for k, (x, y) in enumerate(zip(a, b, strict=True)) if x and y]
    shown = ", ".join(terms[:4]) + (f" and {len(terms) - 4} more" if len(terms) > 4 else "")
    scales = [np.broadcast_to(x, (*lead, x.shape[-1]))[at] for x in question.arrays[3:]]
    scaled = f", scales {' x '.join(' '.join(map(_hex, s)) for s in scales)}" if scales else ""
    return f"{list(at)}: c {_hex(c)}, {shown}{scaled}: {_hex(answer.codes[at])}, where the model has {_hex(ours[at])}"


def _hex(code: Any) -> str:
    return f"{int(code):0{2 * code.itemsize}x}"


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


def nearest(model: Model, answers: Answers) -> str:
    """The change of one thing that explains all answers, or the most of them."""
    some = sorted(answers.values(), key=lambda answer: answer[1].codes.size)
    total = sum(answer.codes.size for _, answer in some)
    least, best = _misses(model, partial(_usual, model), some, total), [""]
    for name, way in others(model):
        if (n := _misses(model, way, some, least)) <= least:
            best = [*best, name] if n == least else [name]
            least = n
    told = " or ".join(filter(None, best))
    if least == 0:
        return f"what would fit all {total} results: {told}"
    return f"no change of one thing fits; the nearest, {told or 'none'}, misses {least} of {total} results"


def _misses(model: Model, way: Way, answers: Sequence[tuple[Question, Answer]], most: int) -> int:
    """How many answers are others; not all are looked at where there are more than ``most``."""
    misses = 0
    for question, answer in answers:
        misses += count_differences(model, way(question.arrays), answer.codes)
        if misses > most:
            break
    return misses


def others(model: Model) -> Iterator[tuple[str, Way]]:
    """Units that differ from a model in one thing, by name."""
    unit, bits = model.unit, model.unit.fraction_bits
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
        *((f"blocks of {n}", {"length": n}) for n in (1, 2, 4, 8, 16, 32, 64)),
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
        if other.unit != unit:
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
