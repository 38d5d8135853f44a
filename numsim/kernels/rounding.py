"""Fast twins of ``numsim.rounding``, for whole float32 and float64 arrays.

``_rounding_plan.py`` works out once what depends on format and policy; ``_rounding_loops.py`` holds the loops. Which of
them runs:

* nearest-even: ``nearest_even`` and ``nearest_even_codes``, at the speed of copying;
* other modes: ``other_modes``, at about half of it;
* for events, flushed subnormals, formats whose least normal number is subnormal in the source, and under a CPU that
  flushes subnormal numbers where that matters, ``other_modes`` goes by ``on_grid``, at about a quarter of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels, rounding
from numsim.codes import code_dtype, decode
from numsim.events import Events
from numsim.formats import Format
from numsim.host import flushes_subnormals, rounds_to_nearest
from numsim.kernels._pool import over_chunks
from numsim.kernels._rounding_plan import LOOPS, WORD, Words, draws, prepare
from numsim.random import Draw
from numsim.rounding import Policy
from numsim.values import Values

_BLOCK = 1 << 15  # numbers that are widened at a time


def encode(
    x: npt.NDArray[Any],
    format: Format,
    policy: Policy,
    draw: Draw | None,
    events: Events | None,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Codes of a flat float32 or float64 array; ``out`` may hold them."""
    codes = np.empty(x.size, code_dtype(format)) if out is None else out
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
    only_subnormals = format.max_rank < 1 << format.fraction_bits  # events and flushing have exceptions of their own
    if format.max_rank == 0 or (only_subnormals and (events is not None or policy.subnormals != "keep")):
        codes = rounding.encode_values(Values(x.shape, x, None), format, policy, draw, events)
        out[:] = decode(codes, format) if values else codes
        return
    x = np.require(np.asarray(x), requirements="A")
    if values and np.may_share_memory(x, out) and not _same_memory(x, out):
        x = x.copy()
    target = np.require(out, requirements="A")
    widen = x.itemsize == 4 and (out.itemsize == 8 if values else not kernels.fits_source(x.dtype, format))
    width = 64 if widen else 8 * x.itemsize
    word, loop = WORD[width], LOOPS[width]
    prepared = prepare(format, policy, width, values)
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
            for i, j, *chance in draws(draw, start, words.size):
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
