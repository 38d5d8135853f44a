"""Which of numsim's policies a machine's casts follow, found out by asking: never read off a version.

One question holds numbers on which any two policies differ; the policy whose bits are the machine's is its policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.codes import classify, code_dtype, exact
from numsim.errors import UnavailableError
from numsim.formats import FP32, Format, get_format
from numsim.machines.emulated import emulate
from numsim.machines.question import Question, ask
from numsim.rounding import encode

Codes = npt.NDArray[Any]
_ROUNDINGS = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "odd")
_OVERFLOWS = ("ieee", "saturate", "saturate-finite")
_SUBNORMALS = ("keep", "flush-inputs", "flush-results", "flush")
_VIA = (None, FP32)
_SOME = 8  # neighbouring codes that are looked at, at each place that matters


class CastPolicy(NamedTuple):
    """How a machine casts, in the words of ``numsim.encode``; ``via`` is a format that it rounds to first, or ""."""

    rounding: str
    overflow: str
    subnormals: str
    via: str

    def __str__(self) -> str:
        kept = [self.subnormals] * (self.subnormals != "keep")
        return ", ".join([self.rounding, self.overflow, *kept, *[f"via {self.via}"] * bool(self.via)])


def cast_policy(machine: Any, source: Any, target: Any) -> CastPolicy | None:
    """The policy of a machine's casts from one format to another; None where none of numsim's gives its bits.

    Rules: of policies that give the same bits the simplest is named: a cast that cannot overflow is "ieee". The sign
    and payload of NaN do not count; NaN into a format without NaN is not asked. Stochastic rounding is not looked for.

    Raises ``UnavailableError`` where the machine does not answer. Cost: a question of some thousand numbers, and
    some ten milliseconds.

    >>> from numsim.machines import get_machine
    >>> print(cast_policy(get_machine("ml_dtypes"), "fp64", "bf16"))
    nearest-even, ieee, via fp32
    """
    question = probe(source, target)
    if not (can := machine.can(question)):
        raise UnavailableError(f"{machine.name} does not cast from {source} to {target}: {can.reason}. "
                               "Example: cast_policy(get_machine('numpy'), 'fp64', 'fp16')")  # fmt: skip
    codes, format = question.arrays[0], question.output
    answer = _alike(machine.answer(question).codes, format)
    odd: list[int] = []  # numbers that ruled out a policy: most others fail on the same few
    for policy in _policies():
        for places in (odd, slice(None)):
            wrong = _alike(_cast(codes[places], question.inputs[0], format, policy), format) != answer[places]
            if wrong.any():
                break
        else:
            return policy
        if places is not odd:
            odd.append(int(np.argmax(wrong)))
    return None


@cache
def probe(source: Any, target: Any) -> Question:
    """The cast of the numbers that tell policies apart.

    Ties and what lies next to them, the least and the largest numbers, what is just beyond and far beyond, infinity,
    NaN and -0, as far as the source has them.
    """
    x, y = get_format(source), get_format(target)
    codes = np.arange(x.codes, dtype=code_dtype(x)) if x.bits <= 8 else _crafted(x, y)
    if y.nan_code is None:
        codes = codes[np.asarray(classify(codes, x)) != "nan"]
    return ask("cast", [x], y, [codes])


def _policies() -> Iterator[CastPolicy]:
    """The simplest come first."""
    for via, rounding, subnormals, overflow in product(_VIA, _ROUNDINGS, _SUBNORMALS, _OVERFLOWS):
        yield CastPolicy(rounding, overflow, subnormals, via.name if via else "")


def _cast(codes: Codes, source: Format, target: Format, policy: CastPolicy) -> Codes:
    options = policy._asdict()
    if via := options.pop("via"):
        codes = emulate(ask("cast", [source], via, [codes], rounding=policy.rounding))
        source = get_format(via)
    return emulate(ask("cast", [source], target, [codes], **options))


def _alike(codes: Codes, format: Format) -> Codes:
    nan = np.asarray(classify(codes, format)) == "nan"
    return np.where(nan, format.nan_code or 0, codes)


def _crafted(source: Format, target: Format) -> Codes:
    """Codes of a wide source around those numbers of the target at which policies part, of either sign."""
    values = [exact(code, target) for code in _places(target)]
    step = values[-1] - values[-2]
    values += [values[-1] + step * n / 4 for n in (1, 2, 3, 4, 6, 8)] + [2 * values[-1]]
    values += [(a + b) / 2 for a, b in pairwise(values)]
    values += [exact(code, source) for code in _places(source)]
    inside = sorted({v for v in values if v <= source.max})
    found = np.asarray(encode(inside, source, rounding="toward-zero")).astype(np.int64)
    near = np.unique(np.clip([found + d for d in (-1, 0, 1, 2)], 0, source.max_code))
    special = [c for c in (source.infinity_code, source.nan_code) if c is not None]
    codes = np.array([*near.tolist(), *special], code_dtype(source))
    return np.unique([codes, codes | source.sign_mask]) if source.signed else codes


def _places(format: Format) -> list[int]:
    """Codes of positive numbers: the least, around the least normal, around 1, and the largest, with neighbours."""
    if format.bits <= 8:
        return list(range(format.max_code + 1))
    marks = 0, int(encode(format.least_normal, format)), int(encode(1, format)), format.max_code
    near = {c + d for c in marks for d in range(-_SOME, _SOME + 1)}
    return sorted(c for c in near if 0 <= c <= format.max_code)
