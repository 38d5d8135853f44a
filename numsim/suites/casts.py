"""The suite ``casts``: every cast between the formats of training, and single operations, on codes that tell.

A cast is probed for its policy (rounding, overflow, subnormal numbers, a format on the way); where that is another one
than numsim's default, its bits are those of numsim with that policy, or they are unexplained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from numsim.codes import code_dtype, decode
from numsim.errors import NumsimError
from numsim.formats import BF16, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0, FP16, FP32, FP64, Format
from numsim.machines.emulated import emulate
from numsim.machines.policies import CastPolicy, cast_policy, probe
from numsim.machines.question import Answer, Question, ask
from numsim.machines.recorded import Record, Recorded
from numsim.machines.verdict import Verdict, compare
from numsim.suites.statistics import random_words, same_codes
from numsim.suites.suite import Collector, Row, Suite, left_out

if TYPE_CHECKING:
    from numsim.show.suite_plots import Drawn

Codes = npt.NDArray[Any]
WIDE = (FP64, FP32, FP16, BF16)
SMALL = (E5M2, E4M3, E5M2FNUZ, E4M3FNUZ, E8M0)
OPERATIONS = ("add", "sub", "mul", "div", "sqrt")
CASTS = tuple((x, y) for x in (*WIDE, *SMALL) for y in (*WIDE, *SMALL) if x != y and not (x in SMALL and y in SMALL))
_RANDOM = 1024
_DEFAULT = CastPolicy("nearest-even", "ieee", "keep", "")
_FLUSHING = ("flush-results", "flush-inputs", "flush")
_LIBRARY = {"cuda": "torch-cpu"}  # the same library: what it chooses on a CPU is looked for on a GPU, too


def part_of(source: Format, target: Format) -> str:
    return f"{source} -> {target}"


# --- asking -----------------------------------------------------------------------------------------------------------
def ask_all(collector: Collector) -> None:
    for source, target in CASTS:
        with collector.part(part_of(source, target)):
            for question in (probe(source, target), cast(source, target, collector.seed)):
                collector.ask(question)
    for operation in OPERATIONS:
        for format in WIDE:
            with collector.part(f"{operation} {format}"):
                collector.ask(single(operation, format, collector.seed))


def cast(source: Format, target: Format, seed: int) -> Question:
    """All codes of 8 bits; of 16 bits all magnitudes, the signs by turns; of wider formats those that tell."""
    if source.bits <= 8:
        codes = np.arange(source.codes)
    elif source.bits == 16:
        step = 16 if source.fits(target) else 1  # nothing is rounded
        codes = np.arange(0, source.sign_mask, step) | np.arange(source.sign_mask // step) % 2 * source.sign_mask
    else:
        codes = _telling(source, target, seed)
    return ask("cast", [source], target, [codes.astype(code_dtype(source))])


def _telling(source: Format, target: Format, seed: int) -> Codes:
    """Numbers of the target, ties, what is next to both and what is beyond; special codes; random ones; both signs."""
    target = source if source.fits(target) else target  # nothing is rounded: the source's own numbers
    f = target.fraction_bits
    sizes = np.arange(min(target.max_code, 256))
    if target.bits > 8:  # some of each binade
        ends = np.array([0, 1, 1 << (f - 1), (1 << f) - 1])
        sizes = (np.arange((target.max_code >> f) + 1)[:, None] * (1 << f) + ends).ravel()
        sizes = np.append(sizes[sizes < target.max_code - 1], target.max_code - 1)
    here, above = (np.asarray(decode(n.astype(code_dtype(target)), target)) for n in (sizes, sizes + 1))
    beyond = above[-1] + (above[-1] - here[-1]) * np.array([0, 0.25, 0.5, 0.75, 1, 2, 4])
    with np.errstate(over="ignore"):
        points = np.concatenate([here, (here + above) / 2, beyond]).astype(f"f{source.code_bytes}")
    codes = points.view(code_dtype(source)).astype(np.uint64)
    steps = [1, 1 << (source.fraction_bits - 30)] if source == FP64 else [1]  # 2^-30: lost where FP32 comes first
    near = [np.where(codes >= n, codes - np.uint64(n), codes) for n in steps] + [codes + np.uint64(n) for n in steps]
    infinity, one = int(source.infinity_code or 0), 1 << source.fraction_bits
    special = [0, 1, one - 1, one, infinity - 1, infinity, infinity | 1, infinity | one >> 1, infinity | one - 1]
    magnitudes = np.concatenate([codes, *near, np.array(special, np.uint64)])
    sign = np.uint64(source.sign_mask)
    found: npt.NDArray[np.uint64] = np.unique(
        np.concatenate([magnitudes, magnitudes | sign, _random(source, _RANDOM, seed)])
    )
    return found


def single(operation: str, format: Format, seed: int) -> Question:
    """Operands of all exponents, half of the second ones near the first; special ones with each other."""
    x, y = (_random(format, _RANDOM, seed + n) for n in (0, 1))
    nearby = np.uint64((2 << format.fraction_bits) - 1)
    y[::2] = x[::2] ^ (y[::2] & nearby)
    infinity, one = int(format.infinity_code or 0), 1 << format.fraction_bits
    special = np.array([0, 1, one - 1, one, one | 1, format.bias << format.fraction_bits, infinity - 1, infinity,
                        infinity | one >> 1], np.uint64)  # fmt: skip
    special = np.concatenate([special, special | np.uint64(format.sign_mask)])
    pairs = np.concatenate([[x, y], np.array(np.meshgrid(special, special)).reshape(2, -1)], axis=1)
    operands = pairs[: 1 if operation == "sqrt" else 2].astype(code_dtype(format))
    return ask(operation, [format] * len(operands), format, list(operands))


def _random(format: Format, count: int, seed: int) -> npt.NDArray[np.uint64]:
    return np.asarray(random_words(count, seed) >> np.uint64(64 - format.bits))


# --- comparing --------------------------------------------------------------------------------------------------------
def compare_all(record: Record) -> list[Row]:
    """A row for each cast, which names its policy, and for each operation."""
    who, rows = replayed(record), []
    for part, answers in record.by_part.items():
        question = answers[0][0]
        policy = _policy(who, question)
        verdicts = [_compare(q, a, policy) for q, a in answers]
        total = sum(verdicts[1:], verdicts[0])
        told = policy or (_flushing(*answers[0]) if total.unexplained else "")
        rows.append(Row(part, total, f"{total.text} ({told})" if told else ""))
    return [*rows, *left_out(record)]


def replayed(record: Record) -> Recorded:
    """A record that has been read, as the machine that answers from it."""
    who = Recorded()
    who.record, who.answers = record, {q.digest: a for q, a in record.answers}
    return who


def _policy(who: Recorded, q: Question) -> CastPolicy | None:
    """Of a cast, as its probe shows it."""
    if q.operation != "cast":
        return None
    try:
        return cast_policy(who, q.inputs[0], q.output)
    except NumsimError:  # the probe was not answered
        return None


def _flushing(q: Question, answer: Answer) -> str:
    """How a single operation flushes subnormal numbers, if that gives its bits; else nothing."""
    policies = [CastPolicy("nearest-even", "ieee", how, "") for how in _FLUSHING]
    return next((p.subnormals for p in policies if same_codes(_with_policy(q, p), answer.codes, q.output).all()), "")


def _compare(q: Question, answer: Answer, policy: CastPolicy | None) -> Verdict:
    """By bits, the quirks of the library, and what it does beyond the largest number or rounds to first.

    Those are choices. Another rounding than to nearest-even, or subnormals that are flushed, are not what the library
    says of itself: they stay unexplained, and the row names them.
    """
    machine = str(answer.provenance.get("machine"))
    theirs = Answer(answer.codes, {"machine": _LIBRARY.get(machine, machine)})
    verdict = compare(q, theirs, Answer(emulate(q), {"machine": "emulated"}), names=(machine, "emulated"))
    if not verdict.unexplained or policy is None or policy[:1] + policy[2:3] != _DEFAULT[:1] + _DEFAULT[2:3]:
        return verdict
    if policy != _DEFAULT and same_codes(_with_policy(q, policy), answer.codes, q.output).all():
        name = ", ".join(x for x, usual in zip(policy, _DEFAULT, strict=True) if x != usual)
        why = {name: (f"rounds with the policy {policy}", "A choice: with this policy numsim gives the same bits")}
        return replace(verdict, documented={name: verdict.differ}, unexplained=0, shown=(), reasons=why)
    return verdict


def _with_policy(q: Question, policy: CastPolicy) -> Codes:
    options, via = policy._asdict(), policy.via
    del options["via"]
    if via:
        first = emulate(ask(q.operation, q.inputs, via, q.arrays, rounding=policy.rounding))
        return emulate(ask("cast", [via], q.output, [first], **options))
    return emulate(ask(q.operation, q.inputs, q.output, q.arrays, **options))


def draw(record: Record, style: str) -> Drawn:
    """A map of all casts."""
    from numsim.show import suite_plots  # matplotlib comes in only where pictures are made

    return suite_plots.casts(compare_all(record), record, style)


SUITE = Suite(
    name="casts",
    title="Casts and single operations",
    question="Does it round as IEEE 754 and the formats' standards say, and where not, which policy does it follow?",
    ask=ask_all,
    compare=compare_all,
    draw=draw,
    sources=(
        "IEEE 754-2019, sections 4.3, 5.4, 7.4",
        "OCP 8-bit Floating Point Specification (OFP8) 1.0",
        "OCP Microscaling Formats (MX) 1.0, section 5.4 (E8M0)",
    ),
)
