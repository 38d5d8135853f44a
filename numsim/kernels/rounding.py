"""Fast twins of ``numsim.rounding``, for whole float32 and float64 arrays.

Everything that depends on format and policy is worked out once, by the reference's own functions, as a plan of
numbers; ``_rounding_loops.py`` holds the loops. Which of them runs:

* nearest-even: ``nearest_even`` and ``nearest_even_codes``, at the speed of copying;
* other modes: ``other_modes``, at about half of it;
* for events, flushed subnormals, formats whose least normal number is subnormal in the source, and under a CPU that
  flushes subnormal numbers where that matters, ``other_modes`` goes by ``on_grid``, at about a quarter of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim import kernels, random, rounding
from numsim.codes import code_dtype, decode
from numsim.events import Events
from numsim.formats import FP32, FP64, Format
from numsim.host import flushes_subnormals, rounds_to_nearest
from numsim.kernels._pool import over_chunks
from numsim.kernels._rounding_loops import Plan, loops
from numsim.random import Draw
from numsim.rounding import Policy
from numsim.values import Rational, Values, to_rational

Words = npt.NDArray[np.unsignedinteger[Any]]

_LOOPS = {32: loops(np.uint32, np.int32, 32, 23), 64: loops(np.uint64, np.int64, 64, 52)}
_WORD: dict[int, np.dtype[Any]] = {32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
_BLOCK = 1 << 15  # numbers that are widened at a time
_U0, _NONE = np.uint32(0), np.empty(0, np.uint32)
_NONE.flags.writeable = False


def encode(
    x: npt.NDArray[Any], format: Format, policy: Policy, draw: Draw | None, events: Events | None
) -> npt.NDArray[Any]:
    """Codes of a flat float32 or float64 array."""
    codes = np.empty(x.size, code_dtype(format))
    _round(x, format, policy, draw, events, codes, values=False)
    return codes


def round_to(
    x: npt.NDArray[Any],
    format: Format,
    policy: Policy,
    draw: Draw | None,
    events: Events | None,
    out: npt.NDArray[Any],
) -> None:
    """Values of a flat array, into ``out`` of its dtype or float64, which the format fits; ``out`` may be ``x``."""
    _round(x, format, policy, draw, events, out, values=True)


TWINS = [(rounding.encode, encode), (rounding.round_to, round_to)]


# --- the plan ---------------------------------------------------------------------------------------------------------
class _Prepared(NamedTuple):
    plan: Words
    quick: bool  # nearest_even and other_modes serve this format
    plain: bool  # nothing is flushed, and something is dropped: other_modes serves this policy
    leans: bool  # sums or results may be subnormal in the source: no place for a CPU that flushes them
    checks: bool  # NaN is refused
    becomes_nan: tuple[bool, ...]  # what the policy makes of +-overflow, infinity and refused signs


@lru_cache(maxsize=256)
def _prepare(format: Format, policy: Policy, width: int, values: bool) -> _Prepared:
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
    return _Prepared(
        plan=np.array([number & all_ones for number in plan], _WORD[width]),
        quick=quick,
        plain=bool(plan.plain and shift),
        leans=format.emin - format.fraction_bits < 2 - bias,
        checks=checks,
        becomes_nan=tuple(code == format.nan_code for code in (over, minus_over, infinity, nan)),
    )


# --- running ----------------------------------------------------------------------------------------------------------
def _round(
    x: npt.NDArray[Any],
    format: Format,
    policy: Policy,
    draw: Draw | None,
    events: Events | None,
    out: npt.NDArray[Any],
    values: bool,
) -> None:
    if format.max_rank == 0:  # all numbers are zero: the events have exceptions of their own
        codes = rounding.encode_values(Values(x.shape, x, None), format, policy, draw, events)
        out[:] = decode(codes, format) if values else codes
        return
    x = np.require(np.asarray(x), requirements="A")
    if values and np.may_share_memory(x, out) and not _same_memory(x, out):
        x = x.copy()
    target = np.require(out, requirements="A")
    widen = x.itemsize == 4 and (out.itemsize == 8 if values else not kernels.fits_source(x.dtype, format))
    width = 64 if widen else 8 * x.itemsize
    word, loop = _WORD[width], _LOOPS[width]
    prepared = _prepare(format, policy, width, values)
    plan, results = prepared.plan, target.view(word) if values else target
    as_values = True if values else None
    tallies: list[npt.NDArray[np.int64]] = []

    def blocks(first: int, end: int) -> Iterator[tuple[int, Words]]:
        """The numbers as words, and where they start."""
        step = _BLOCK if widen else max(end - first, 1)
        wide = np.empty(min(step, end - first), np.float64) if widen else None
        for start in range(first, end, step):
            part = x[start : min(start + step, end)]
            if wide is not None:
                part = _widened(part, wide[: part.size])
            words = part.view(word)
            words.flags.writeable = False  # the same type for all, so that nothing compiles twice
            yield start, words

    def check(first: int, end: int) -> None:
        for _, words in blocks(first, end):
            if loop.any_nan(words, plan):
                rounding.nan_result(format, policy)  # raises

    def work(first: int, end: int) -> None:
        exact = prepared.quick and rounds_to_nearest() and not (prepared.leans and flushes_subnormals())
        for start, words in blocks(first, end):
            part = results[start : start + words.size]
            if policy.rounding == "nearest-even" and exact and events is None:
                (loop.nearest_even if values else loop.nearest_even_codes)(words, part, plan)
                continue
            quick = exact and prepared.plain and events is None
            counts = np.zeros(8, np.int64)
            for i, j, *chance in _draws(draw, start, words.size):
                loop.other_modes(words[i:j], part[i:j], plan, quick, as_values, counts, *chance)
            tallies.append(counts)

    if prepared.checks:  # before anything is written
        over_chunks(x.size, check)
    over_chunks(x.size, work)
    if events is not None:
        events.add(_sum(tallies, x.size, prepared.becomes_nan, format, policy))
    if target is not out:
        out[:] = target


def _same_memory(x: npt.NDArray[Any], out: npt.NDArray[Any]) -> bool:
    """Whether number i is stored where result i goes; shifted against each other they would not do."""
    return x.itemsize == out.itemsize and x.__array_interface__["data"][0] == out.__array_interface__["data"][0]


def _widened(x: npt.NDArray[Any], wide: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """float32 as float64, in ``wide``. A CPU that flushes subnormal numbers meets only their integer significands."""
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        wide[:] = x
    if flushes_subnormals():
        bits = x.view(np.uint32)
        small = (bits & 0x7F800000) == 0
        wide[small] = np.copysign((bits[small] & 0x7FFFFF) * 2.0**-149, x[small])
    return wide


def _draws(draw: Draw | None, start: int, count: int) -> Iterator[tuple[Any, ...]]:
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


def _sum(tallies: list[Any], total: int, becomes_nan: tuple[bool, ...], format: Format, policy: Policy) -> Events:
    """Events of what the loops counted. A NaN result is counted by what became NaN."""
    sums = [int(n) for n in np.sum([np.zeros(8, np.int64), *tallies], axis=0)]
    over, minus_over, zero, subnormal, inexact, infinite, negative, minus_infinite = sums
    could = (over, minus_over, infinite, negative + minus_infinite)
    vanish = format.nan_code is None and policy.nan == "zero" and format.zero
    return Events(
        total=total,
        overflow=over + minus_over,
        underflow=zero + negative * vanish,
        subnormal=subnormal,
        inexact=inexact + negative,
        nan=sum(n for n, is_nan in zip(could, becomes_nan, strict=True) if is_nan),
    )
