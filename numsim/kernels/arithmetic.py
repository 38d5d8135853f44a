"""Twins of ``numsim.arithmetic``: operations on codes, and conversions between formats.

Few codes and formats of more than 32 bits: values, the exact result, its rounding, some thousand numbers at a time.
Many codes: tables for pairs of up to 8 bits, one fused loop for the operations that matter most, tables of conversions
from up to 16 bits. The loops stand in ``_arithmetic_loops.py``, which says why they are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import arithmetic, kernels, rounding
from numsim.arithmetic import result_policy
from numsim.codes import Codes, check_codes, code_dtype
from numsim.events import Events
from numsim.formats import FP32, FP64, Format
from numsim.host import flushes_subnormals, is_ieee, rounds_to_nearest
from numsim.kernels import _code_tables, _pool
from numsim.kernels import rounding as fast_rounding
from numsim.kernels._arithmetic_loops import FUSED, KERNELS, fused
from numsim.kernels._reading import flushes_inputs, reader, reads, values_of
from numsim.kernels._rounding_loops import BLOCK
from numsim.kernels._rounding_plan import as_read_only, draws, prepare
from numsim.random import Draw
from numsim.rounding import Policy


def carries(format: Format) -> bool:
    """Whether float64 carries exact results for operands of this format: at most 26 bits, far from float64's limits."""
    return format.precision <= 26 and format.emin - format.fraction_bits >= -300 and format.emax <= 300


def rounds_from_odd(format: Format, draw: Draw | None) -> bool:
    """Whether 53 bits rounded to odd decide the rounding: two bits more than the format's, or all random bits more."""
    return format.fits(FP64) and not format.gap and format.precision + (draw.r if draw else 2) <= 52


def is_native(format: Format, policy: Policy) -> bool:
    """FP64 rounded to nearest is what the hardware computes, unless somebody has told it to flush subnormals."""
    return format == FP64 and policy == Policy(nan=policy.nan) and not flushes_subnormals()


def suits(
    operation: str,
    formats: Sequence[Format],
    result: Format,
    policy: Policy,
    draw: Draw | None,
    events: Events | None = None,
) -> bool:
    """Whether the kernel computes this bit for bit; the reference does the rest."""
    if not rounds_to_nearest():
        return False
    if is_native(result, policy):
        return events is None and all(f.fits(FP64) for f in formats) and operation != "scale_b"
    if operation == "scale_b" and not (result.emin - result.fraction_bits > -900 and result.emax < 900):
        return False
    return all(map(carries, formats)) and rounds_from_odd(result, draw)


_BLOCK = 1 << 15  # numbers that go together, so that what lies between decoding and rounding stays in the cache


def compute(
    operation: str,
    operands: Sequence[Codes],
    formats: Sequence[Format],
    result: Format,
    policy: Policy,
    draw: Draw | None = None,
    events: Events | None = None,
) -> npt.NDArray[Any]:
    """Flat code arrays in, codes of ``result`` out."""
    operands = [check_codes(x, f) for x, f in zip(operands, formats, strict=True)]
    few = len(formats) < 3 and sum(8 * f.code_bytes for f in formats) <= 16  # codes, or pairs of codes, there are
    refuses = result.nan_code is None and policy.nan == "raise"  # depends on the numbers at hand
    if few and operands[0].size >= _code_tables.MANY and draw is None and events is None and not refuses:
        return _code_tables.look_up(_table(operation, tuple(formats), result, policy), operands)
    return _compute(operation, operands, formats, result, policy, draw, events)


@lru_cache(maxsize=64)
def _table(operation: str, formats: tuple[Format, ...], result: Format, policy: Policy) -> npt.NDArray[Any]:
    return _code_tables.make(formats, lambda *codes: _compute(operation, codes, formats, result, policy))


def _compute(
    operation: str,
    operands: Sequence[Codes],
    formats: Sequence[Format],
    result: Format,
    policy: Policy,
    draw: Draw | None = None,
    events: Events | None = None,
) -> npt.NDArray[Any]:
    kernel, after = KERNELS[operation], result_policy(policy)
    down, native = policy.rounding == "down", is_native(result, policy)
    inputs = [as_read_only(x) for x in operands]
    codes = np.empty(inputs[0].size, code_dtype(result))
    seen: list[Events] = []

    def block(first: int, end: int, room: npt.NDArray[np.float64]) -> None:
        rows = zip(inputs, formats, room, strict=False)
        values = [values_of(x[first:end], f, policy, row[: end - first]) for x, f, row in rows]
        exact = room[3, : end - first]
        kernel(*_three(values), exact, down, native)
        happened = None if events is None else Events()
        fast_rounding.encode(exact, result, after, draw and draw.after(first), happened, codes[first:end])
        if happened is not None:
            if result.nan_code is not None:  # inf - inf, 0 / 0
                happened.nan += int(np.count_nonzero(np.isnan(exact) & ~np.isnan(values).any(axis=0)))
            seen.append(happened)

    run = _fuse(operation, inputs, formats, result, policy, draw, codes) if events is None and not native else None

    def chunk(start: int, stop: int) -> None:
        if run and is_ieee():
            run(start, stop)
            return
        room = np.empty((4, min(_BLOCK, stop - start)))
        with np.errstate(all="ignore"):
            for first in range(start, stop, _BLOCK):
                block(first, min(first + _BLOCK, stop), room)

    _pool.over_chunks(codes.size, chunk)
    for happened in seen:
        events.add(happened)  # type: ignore[union-attr]
    return codes


def _fuse(
    operation: str,
    inputs: Sequence[Codes],
    formats: Sequence[Format],
    result: Format,
    policy: Policy,
    draw: Draw | None,
    out: npt.NDArray[Any],
) -> Callable[[int, int], None] | None:
    """``fused`` over a range of the codes, or None where it does not serve or is not worth compiling."""
    if operation not in FUSED or out.size < _code_tables.MANY or not all(map(reads, formats)):
        return None
    if len({f.code_bytes for f in formats}) > 1:  # every other mixture would compile anew
        return None
    prepared = prepare(result, result_policy(policy), 64, False)
    if prepared.checks or not prepared.quick or result.max_rank < 1 << result.fraction_bits:
        return None
    readers = np.stack(_three([reader(f, flushes_inputs(policy)) for f in formats]))
    down, nearest = policy.rounding == "down", policy.rounding == "nearest-even"

    def run(start: int, stop: int) -> None:
        exact = np.empty(BLOCK)
        for i, j, *chance in draws(draw, start, stop - start):
            codes = _three([x[start + i : start + j] for x in inputs])
            words, results = as_read_only(exact.view(np.uint64)), out[start + i : start + j]
            args = (readers, exact, words, results, down, nearest, prepared.plain, prepared.plan, *chance)
            fused(FUSED.index(operation), *codes, *args)

    return run


def _three(x: Sequence[Any]) -> list[Any]:
    """Kernels take three operands; those not needed are not read."""
    return [*x, *[x[0]] * (3 - len(x))]


# --- conversions ------------------------------------------------------------------------------------------------------
def converts(
    count: int,
    source: Format,
    format: Format,
    policy: Policy,
    draw: Draw | None = None,
    events: Events | None = None,
) -> bool:
    """Whether ``convert`` is quicker than decoding and encoding."""
    if source in (FP32, FP64):
        return kernels.suit(np.dtype(f"f{source.code_bytes}"), format)
    refuses = format.nan_code is None and policy.nan == "raise"
    return source.bits <= 16 and count >= _code_tables.MANY and draw is None and events is None and not refuses


def convert(
    codes: Codes,
    source: Format,
    format: Format,
    policy: Policy,
    draw: Draw | None = None,
    events: Events | None = None,
) -> npt.NDArray[Any]:
    """Flat codes in, codes of ``format`` out: FP32 and FP64 words are numbers as they are, others are looked up."""
    codes = check_codes(codes, source)
    if source in (FP32, FP64):
        return fast_rounding.encode(codes.view(f"f{source.code_bytes}"), format, policy, draw, events)
    return _code_tables.look_up(_conversion(source, format, policy), [codes])


@lru_cache(maxsize=64)
def _conversion(source: Format, format: Format, policy: Policy) -> npt.NDArray[Any]:
    return _code_tables.make((source,), lambda codes: rounding.convert(codes, source, format, policy))


TWINS = [(arithmetic.compute, compute), (arithmetic.convert, convert)]
