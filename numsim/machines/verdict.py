"""Two machines' answers to one question, or two traces, compared bit by bit, and every difference classed.

* equal: the same bits.
* nan: both are NaN and differ in sign or payload; counts as equal unless ``nan="bits"``.
* documented: quirks of the machine (see ``quirks``) predict exactly these bits.
* unexplained: everything else, a zero of the other sign too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import Array
from numsim.codes import classify, decode, exact
from numsim.errors import InputError, NumsimError, check_choice, short
from numsim.formats import FP64, Format
from numsim.machines.emulated import emulate
from numsim.machines.question import ELEMENTWISE, Answer, Question
from numsim.machines.quirks import Quirk, predict, quirks_of
from numsim.traces import Trace

Codes = npt.NDArray[Any]
SHOWN = 10  # differences that a verdict keeps
# What is said of a library's sums in an order that nobody knows
ANY_ORDER = "within the bound of any order"
UNDECIDED = "not decided: the bound of any order is as large as the sum"


@dataclass(frozen=True)
class Difference:
    """One element that two machines answer differently."""

    question: str  # in words
    index: tuple[int, ...]
    operands: tuple[str, ...]  # hex and value, for elementwise operations; the step, for traces
    ours: str
    theirs: str
    reason: str  # "" where nothing explains it

    def __str__(self) -> str:
        of = f" of {', '.join(self.operands)}" if self.operands else f" at {list(self.index)}"
        return f"{self.question}{of}: {self.ours} against {self.theirs}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Verdict:
    """How two machines compare, over one question or many. Verdicts add up with ``+``."""

    machine: str
    against: str
    compared: int = 0
    equal: int = 0
    nan: int = 0
    documented: Mapping[str, int] = field(default_factory=dict)  # reason -> how many
    unexplained: int = 0
    shown: tuple[Difference, ...] = ()  # the first differences, unexplained ones first
    skipped: Mapping[str, int] = field(default_factory=dict)  # reason -> how many questions
    reasons: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # quirk -> sentence, who is right

    @property
    def differ(self) -> int:
        return sum(self.documented.values()) + self.unexplained

    @property
    def quirks(self) -> list[str]:
        """The names in ``documented``, each once, the most frequent first."""
        counts: Counter[str] = Counter()
        for reason, n in self.documented.items():
            counts.update(dict.fromkeys(reason.split(" + "), n))
        return sorted(counts, key=lambda name: (-counts[name], name))

    @property
    def ok(self) -> bool:
        return not self.unexplained

    @property
    def text(self) -> str:
        """The verdict in a few words.

        >>> Verdict("emulated", "numpy", compared=12, equal=12).text
        'same bits'
        >>> Verdict("emulated", "cuda", skipped={"no NVIDIA GPU found": 3}).text
        'skipped: no NVIDIA GPU found'
        """
        if self.unexplained:
            known = f", {self.differ - self.unexplained} as documented" if self.documented else ""
            return f"{self.unexplained} UNEXPLAINED{known}"
        if self.documented:
            return "as documented: " + ", ".join(self.quirks)
        if not self.compared:
            return f"skipped: {'; '.join(self.skipped) or 'nothing to compare'}"
        return "same bits" + (" but for NaN payloads" if self.nan else "")

    def __add__(self, other: Verdict) -> Verdict:
        shown = sorted((*self.shown, *other.shown), key=lambda d: d.reason != "")  # sorts stably
        return Verdict(
            self.machine,
            self.against,
            self.compared + other.compared,
            self.equal + other.equal,
            self.nan + other.nan,
            dict(Counter(self.documented) + Counter(other.documented)),
            self.unexplained + other.unexplained,
            tuple(shown[:SHOWN]),
            dict(Counter(self.skipped) + Counter(other.skipped)),
            {**self.reasons, **other.reasons},
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "machine": self.machine,
            "against": self.against,
            "compared": self.compared,
            "equal": self.equal,
            "nan": self.nan,
            "differ": self.differ,
            "documented": dict(sorted(self.documented.items())),
            "unexplained": self.unexplained,
            "verdict": self.text,
            "reasons": {r: {"what": what, "right": right} for r, (what, right) in sorted(self.reasons.items())},
            "differences": [
                {"question": d.question, "index": list(d.index), "operands": list(d.operands), "ours": d.ours,
                 "theirs": d.theirs, "reason": d.reason or None}
                for d in self.shown
            ],
            "skipped": dict(sorted(self.skipped.items())),
        }  # fmt: skip


def compare(
    question: Question, ours: Answer, theirs: Answer, *, nan: str = "mask", names: Sequence[str] = ()
) -> Verdict:
    """The verdict on two answers to one question.

    nan : "mask": NaNs that differ in sign or payload count as equal; "bits": they do not.
    names : what to call the two machines; default: what their provenance says.

    Raises ``InputError`` where an answer has not the question's shape and dtype.

    >>> import numpy, numsim.machines as m
    >>> q = m.ask("cast", ["fp64"], "bf16", [numpy.array([1 + 2**-8 + 2**-40]).view(numpy.uint64)])
    >>> compare(q, m.get_machine("emulated").answer(q), m.get_machine("ml_dtypes").answer(q)).text
    'as documented: rounds twice'
    """
    check_choice("nan", nan, ("mask", "bits"), "nan='mask'")
    machines = [str(a.provenance.get("machine", "unknown")) for a in (ours, theirs)]
    a, b = (check_answer(question, answer.codes, m) for answer, m in zip((ours, theirs), machines, strict=True))
    format = question.output
    different = a != b
    both_nan = different & _is_nan(a, format) & _is_nan(b, format)
    looked_at = different if nan == "bits" else different & ~both_nan
    reasons: dict[str, tuple[str, str]] = {}
    labels, reason_names = np.zeros(a.shape, np.int32), [""]
    if looked_at.any():
        sides = [a, b]
        if nan == "mask":  # the sign and payload of a NaN are no part of a prediction either
            sides = [np.where(_is_nan(c, format), format.nan_code or 0, c).astype(c.dtype) for c in sides]
        labels, reason_names, reasons = _label(question, sides, machines, looked_at)
    counts = np.bincount(labels[looked_at], minlength=1).tolist()
    documented: Counter[str] = Counter()
    for number, count in enumerate(counts[1:], start=1):
        documented[reason_names[number]] += count
    unexplained = int(counts[0])
    names = tuple(names) or tuple(machines)
    return Verdict(
        names[0],
        names[1],
        compared=a.size,
        equal=a.size - int(np.count_nonzero(different)),
        nan=int(np.count_nonzero(different & ~looked_at)),
        documented=dict(documented),
        unexplained=unexplained,
        shown=tuple(_show(question, a, b, looked_at, labels, reason_names)),
        reasons=reasons,
    )


def compare_answers(
    answers: Sequence[tuple[Question, Answer]], machine: Any, *, name: str = "", nan: str = "mask"
) -> Verdict:
    """Put the questions behind some answers to another machine, and compare; each question once.

    name : what to call the machine that gave the answers.
    """
    total = Verdict(name or (str(answers[0][1].provenance.get("machine")) if answers else "unknown"), machine.name)
    for question, answer in {q.digest: (q, a) for q, a in answers}.values():
        if not (can := machine.can(question)):
            total += _skip(total, can.reason)
            continue
        try:
            other = machine.answer(question)
        except NumsimError as error:  # a library fails, or the emulator refuses (NaN without a code)
            total += _skip(total, str(error))
        else:
            total += compare(question, answer, other, nan=nan, names=(total.machine, total.against))
    return total


def compare_traces(ours: Trace, theirs: Trace, *, nan: str = "mask", names: Sequence[str] = ()) -> Verdict:
    """The verdict on two traces: each number of each series by its bits, and which events happened at which steps.

    Rules: NaNs as for answers; the texts of events, titles and settings are for people, and not compared. The first
    differences shown are those of the first steps.

    names : what to call the two; default: their titles.

    Raises ``InputError`` where steps, series or formats are not the same: such traces tell of different things.

    >>> from numsim.traces import Event
    >>> a = Trace("a", [1, 2], {"scale": [8.0, 4.0]}, [Event(2, "overflow")])
    >>> verdict = compare_traces(a, Trace("b", [1, 2], {"scale": [8.0, 8.0]}))
    >>> verdict.text, str(verdict.shown[0])
    ('2 UNEXPLAINED', 'scale of step 2: 0x4010000000000000 = 4 against 0x4020000000000000 = 8')
    """
    check_choice("nan", nan, ("mask", "bits"), "nan='mask'")
    names = tuple(names) or (ours.title, theirs.title)
    if why := _other_things(ours, theirs):
        raise InputError(f"{short(names[0])} and {short(names[1])} cannot be compared: {why}. Two traces need the same "
                         "steps, and series of the same names and formats.")  # fmt: skip
    compared = same = nans = unexplained = 0
    found: list[Difference] = []
    for format, alike in _by_format(ours).items():
        a, b = (np.stack([_coded(trace.series[name])[0] for name in alike], axis=-1) for trace in (ours, theirs))
        looked_at = different = a != b
        if nan == "mask":
            looked_at = different.copy()
            looked_at[different] = ~(_is_nan(a[different], format) & _is_nan(b[different], format))
        compared += a.size
        same += a.size - int(np.count_nonzero(different))
        nans += int(np.count_nonzero(different & ~looked_at))
        unexplained += int(np.count_nonzero(looked_at))
        for i, k in np.argwhere(looked_at)[:SHOWN].tolist():
            codes = describe(int(a[i, k]), format), describe(int(b[i, k]), format)
            found.append(Difference(alike[k], (i,), (f"step {ours.steps[i]}",), *codes, ""))
    here, there = (Counter((e.step, e.kind) for e in trace.events) for trace in (ours, theirs))
    either, both = here | there, here & there
    odd = either - both
    compared, same, unexplained = compared + either.total(), same + both.total(), unexplained + odd.total()
    for step, kind in sorted(odd)[:SHOWN]:
        mine, other = ({0: "no", 1: "yes"}.get(n, f"{n} times") for n in (here[step, kind], there[step, kind]))
        place = int(np.searchsorted(ours.steps, step))
        found.append(Difference(f"event {kind}", (place,), (f"step {step}",), mine, other, ""))
    order = {name: place for place, name in enumerate(ours.series)}  # events come last
    shown = sorted(found, key=lambda d: (d.index, order.get(d.question, len(order))))[:SHOWN]
    return Verdict(names[0], names[1], compared, same, nans, unexplained=unexplained, shown=tuple(shown))


def _by_format(trace: Trace) -> dict[Format, list[str]]:
    """The series of each format, to be compared at once: there may be thousands of them."""
    names: dict[Format, list[str]] = {}
    for name, numbers in trace.series.items():
        names.setdefault(_coded(numbers)[1], []).append(name)
    return names


def _other_things(ours: Trace, theirs: Trace) -> str:
    """Why two traces do not tell of the same things, or nothing."""
    if not np.array_equal(ours.steps, theirs.steps):
        odd = np.setxor1d(ours.steps, theirs.steps).tolist()
        return f"step {odd[0]} is only in the {'first' if odd[0] in ours.steps else 'second'}"
    if names := sorted(set(ours.series) ^ set(theirs.series)):
        return f"series {names[0]!r} is only in the {'first' if names[0] in ours.series else 'second'}"
    for name in ours.series:
        a, b = ours.series[name], theirs.series[name]
        if isinstance(a, Array) != isinstance(b, Array) or _coded(a)[1] != _coded(b)[1]:
            kinds = [f"codes of {x.format}" if isinstance(x, Array) else "floats" for x in (a, b)]
            return f"series {name!r} has {kinds[0]} in the first and {kinds[1]} in the second"
    return ""


def _coded(numbers: Any) -> tuple[Codes, Format]:
    return (numbers.codes, numbers.format) if isinstance(numbers, Array) else (numbers.view(np.uint64), FP64)


def _skip(like: Verdict, reason: str) -> Verdict:
    return Verdict(like.machine, like.against, skipped={reason: 1})


def check_answer(question: Question, codes: Any, machine: str) -> Codes:
    """An answer's codes, if they are some."""
    array = np.asarray(codes)
    dtype = f"uint{8 * question.output.code_bytes}"
    if array.shape != question.shape or array.dtype.name != dtype:
        raise InputError(
            f"{machine} answered {question} with shape {array.shape}, dtype {array.dtype}: "
            f"{question.shape}, {dtype} is needed."
        )
    if array.size and int(array.max()) >= question.output.codes:
        worst = int(array.max())
        raise InputError(f"{machine} answered {question} with {worst:#x}, which is no code of {question.output}.")
    return array


def _is_nan(codes: Codes, format: Format) -> Any:
    return np.asarray(classify(codes, format)) == "nan"


def _label(q: Question, answers: Sequence[Codes], machines: Sequence[str], where: Any) -> Any:
    """For each element the number of its reason, or 0 for none; the reasons' names; and what they mean."""
    names: list[str] = [""]
    meanings: dict[str, tuple[str, str]] = {}
    labels = np.zeros(q.shape, np.int32)
    try:
        plain = emulate(q)
        sides = [_explain(q, codes, plain, machine) for codes, machine in zip(answers, machines, strict=True)]
    except NumsimError:  # the emulator refuses (a NaN without a code): nothing can be predicted
        return labels, names, meanings
    pairs = np.stack([np.where(where, side, -1)[where] for side, _ in sides], axis=-1)
    for pair in map(tuple, np.unique(pairs, axis=0).tolist()):
        quirks = [k for number, (_, sets) in zip(pair, sides, strict=True) if number > 0 for k in sets[number]]
        if -1 in pair or not quirks:
            continue
        names.append(" + ".join(dict.fromkeys(k.name for k in quirks)))
        meanings |= {k.name: (k.sentence, k.right) for k in quirks}
        labels[where] = np.where((pairs == pair).all(axis=-1), len(names) - 1, labels[where])
    return labels, names, meanings


def _explain(q: Question, codes: Codes, plain: Codes, machine: str) -> tuple[Any, list[tuple[Quirk, ...]]]:
    """Element by element: 0 where a machine agrees with the emulator, n where set n of quirks gives its bits, else -1.

    One set has to account for the whole answer: the smallest that fits best. Elements name the part of it they need.
    """
    predictions: dict[tuple[Quirk, ...], Codes] = {(): plain}
    best: tuple[Quirk, ...] = ()
    fit = int(np.count_nonzero(plain == codes))
    for chosen in _subsets(quirks_of(machine, q)):
        if fit == codes.size:
            break
        if chosen:
            predictions[chosen] = predict(q, chosen)
        if (fits := int(np.count_nonzero(predictions[chosen] == codes))) > fit:
            best, fit = chosen, fits
    sets = list(_subsets(best))
    numbers = np.full(q.shape, -1, np.int32)
    for n in reversed(range(len(sets))):  # the smallest set wins
        numbers = np.where((predictions[sets[n]] == codes) & (predictions[best] == codes), n, numbers)
    return np.where(plain == codes, 0, numbers), sets


def _subsets(quirks: Sequence[Quirk]) -> Iterator[tuple[Quirk, ...]]:
    for size in range(len(quirks) + 1):
        yield from combinations(quirks, size)


def _show(
    q: Question, a: Codes, b: Codes, where: Any, labels: npt.NDArray[Any], names: Sequence[str]
) -> Iterator[Difference]:
    """The first differences; unexplained ones before documented ones."""
    order = np.argsort(labels[where] > 0, kind="stable")[:SHOWN]
    operands = np.broadcast_arrays(*q.arrays) if q.operation in ELEMENTWISE else []
    for place in np.argwhere(where)[order]:
        i = tuple(int(k) for k in place)
        yield Difference(
            str(q),
            i,
            tuple(describe(int(o[i]), f) for o, f in zip(operands, q.inputs, strict=False)),
            describe(int(a[i]), q.output),
            describe(int(b[i]), q.output),
            names[int(labels[i])],
        )


def describe(code: int, format: Format) -> str:
    """A code and its value.

    >>> from numsim import E4M3
    >>> describe(0x7E, E4M3), describe(0x80, E4M3), describe(0x7F, E4M3)
    ('0x7e = 448', '0x80 = -0', '0x7f = nan')
    """
    width = (format.bits + 3) // 4
    if format.fits(FP64):
        value = decode(np.array(code, f"uint{8 * format.code_bytes}"), format)
        text = f"{float(value):.17g}"
    else:
        text = "nan or infinity" if str(classify(code, format)) in ("nan", "infinity") else str(exact(code, format))
    return f"{code:#0{width + 2}x} = {text}"
