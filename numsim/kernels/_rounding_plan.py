"""What the loops of ``_rounding_loops.py`` need to know: a format and a policy as a plan of numbers, and random bits.

Everything is worked out once, by the reference's own functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim import random, rounding
from numsim.formats import FP32, FP64, Format
from numsim.kernels._rounding_loops import Plan, loops
from numsim.random import Draw
from numsim.rounding import Policy
from numsim.values import Rational, to_rational

Words = npt.NDArray[np.unsignedinteger[Any]]

LOOPS = {32: loops(np.uint32, np.int32, 32, 23), 64: loops(np.uint64, np.int64, 64, 52)}
WORD: dict[int, np.dtype[Any]] = {32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
_U0, _NONE = np.uint32(0), np.empty(0, np.uint32)
_NONE.flags.writeable = False


class Prepared(NamedTuple):
    plan: Words
    quick: bool  # nearest_even and other_modes serve this format
    plain: bool  # nothing is flushed, and something is dropped: other_modes serves this policy
    leans: bool  # sums or results may be subnormal in the source: no place for a CPU that flushes them
    checks: bool  # NaN is refused
    becomes_nan: tuple[bool, ...]  # what the policy makes of +-overflow, infinity and refused signs


@lru_cache(maxsize=256)
def prepare(format: Format, policy: Policy, width: int, values: bool) -> Prepared:
    """The numbers for the loops: ``values`` says whether the results are values (words) or codes."""
    F, bias = (23, 127) if width == 32 else (52, 1023)
    all_ones = (1 << width) - 1
    shift, field = F - format.fraction_bits, format.emin + bias
    top_of_small = field + shift  # exponent field of C

    # 2^emin: where it is subnormal in the source, its word is a single fraction bit.
    normal = field << F if field >= 1 else 1 << (F + field - 1)
    # Where the spacing of the source's numbers does not change at 2^emin, adding on the words is right below it too.
    below, magic = (normal, top_of_small << F) if field > 1 else (0, 0)
    quick = field >= 1 and top_of_small <= 2 * bias
    if field == 0 and not format.zero and format.fraction_bits == 0:
        # E8M0 in float32: 2^-127 is subnormal, all else is normal. C is one unit up, for a tie goes to the even code.
        quick, below, magic = True, 1 << F, (top_of_small << F) + 1
    if format.fraction_bits == 0 and (field + 1 + format.rank(0)) % 2:
        quick = False  # the last bit of the field is not that of the code

    source = FP32 if width == 32 else FP64

    def word(x: Rational) -> int:
        return rounding.round_rational(x, source, Policy())

    def result(code: int) -> int:
        return word(to_rational(code, format)) if values else code

    def edge(sign: int, numerator: int, denominator: int) -> int:  # the reference says what becomes of it
        return rounding.round_rational(Rational(sign, numerator, denominator), format, policy)

    checks = format.nan_code is None and policy.nan == "raise"
    nan = 0 if checks else rounding.nan_result(format, policy)
    beyond = (4 * (format.max + format.least_normal)).as_integer_ratio()
    over, minus_over = edge(0, *beyond), edge(1, *beyond) if format.signed else nan
    infinity, minus_infinity = edge(0, 1, 0), edge(1, 1, 0) if format.signed else nan

    flush_input = policy.subnormals in ("flush-inputs", "flush")
    flush_result = policy.subnormals in ("flush-results", "flush")
    mode = policy.rounding
    plan = Plan(
        magnitude=all_ones >> format.signed,
        shift=shift,
        field=field,
        base=(field - 1) << F,
        fraction_bits=format.fraction_bits,
        normal_rank=1 << format.fraction_bits,
        half=(1 << shift >> 1) - 1 if shift else 0,
        lowest=int(shift > 0),
        kept=all_ones << shift,
        normal=below,
        magic=magic,
        least_rank=format.rank(0),
        max_rank=format.max_rank,
        least=0 if format.zero else normal,
        max=word(Rational(0, *format.max.as_integer_ratio())),
        flush_input=normal * flush_input,
        flush_rank=(1 << format.fraction_bits) * flush_result,
        flush_result=normal * flush_result,
        plain=int(not flush_input and not flush_result),
        sign_shift=0 if values or not format.signed else width - 1 - format.magnitude_bits,
        sign_mask=format.signed * (1 << (width - 1) if values else format.sign_mask),
        signed_from=int(format.specials == "fnuz"),
        nan=result(nan),
        infinity=result(infinity),
        minus_infinity=result(minus_infinity),
        over=result(over),
        minus_over=result(minus_over),
        nearest=all_ones * (mode in ("nearest-even", "nearest-away")),
        away=int(mode == "nearest-away"),
        up_positive=all_ones * (mode == "up"),
        up_negative=all_ones * (mode == "down"),
        to_odd=all_ones * (mode == "odd"),
        draw_right=max(32 - shift, 0),
        draw_left=max(shift - 32, 0),
    )
    return Prepared(
        plan=np.array([number & all_ones for number in plan], WORD[width]),
        quick=quick,
        plain=bool(plan.plain and shift),
        leans=format.emin - format.fraction_bits < 2 - bias,
        checks=checks,
        becomes_nan=tuple(code == format.nan_code for code in (over, minus_over, infinity, nan)),
    )


def draws(draw: Draw | None, start: int, count: int) -> Iterator[tuple[Any, ...]]:
    """Ranges of ``count`` numbers from ``start``, and for each where its random bits come from: r, given bits, the low
    32 bits of the first counter, and the keys, which change where those low bits pass zero."""
    if draw is None:
        yield 0, count, None, _NONE, _U0, _U0, _U0
    elif draw.given is not None:
        given = draw.given[start : start + count]
        given.flags.writeable = False
        yield 0, count, np.uint32(draw.r), given, _U0, _U0, _U0
    else:
        first = 0
        while first < count:
            high, low = divmod(draw.position + start + first, 1 << 32)
            end = min(count, first + (1 << 32) - low)
            yield first, end, np.uint32(draw.r), _NONE, np.uint32(low), *map(np.uint32, random.keys(draw.seed, high))
            first = end


def as_read_only(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A flat view of the one type for which kernels are compiled."""
    view: npt.NDArray[Any] = np.require(x, requirements=("C", "A")).reshape(-1).view()
    view.flags.writeable = False
    return view
