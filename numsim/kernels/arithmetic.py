"""Twin of ``numsim.arithmetic.compute``: the exact result of each operation, carried by a float64 rounded to odd.

Why that is exact. The hardware gives the float64 nearest to the exact result, and an error-free transformation (TwoSum,
or the residue of an fma) tells on which side the exact result lies. Where it is not the float64 itself, the one of its
two float64 neighbours with the odd last bit stands for it: a number rounded to odd at 53 bits rounds on to any shorter
format, in any mode, as the exact number would, because it is never a tie nor a number of the format unless the exact
one is. Rounding to nearest twice would not do (FP16: fma; BF16: 2^127 + 2^-133 rounded up).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import arithmetic, kernels, rounding
from numsim.arithmetic import result_policy
from numsim.codes import Codes, check_codes, code_dtype, decode
from numsim.events import Events
from numsim.formats import FP32, FP64, Format
from numsim.host import flushes_subnormals, is_ieee, rounds_to_nearest
from numsim.kernels import _code_tables, _pool
from numsim.kernels import rounding as fast_rounding
from numsim.kernels._jit import as_bits, as_float, fma64, jit
from numsim.kernels._reading import read, reader, reads
from numsim.kernels._rounding_loops import BLOCK
from numsim.kernels._rounding_plan import LOOPS, as_read_only, draws, prepare
from numsim.random import Draw
from numsim.rounding import Policy

_nearest_even, _other_modes = LOOPS[64].nearest_even_codes, LOOPS[64].other_modes


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


@jit
def to_odd(s, error):  # type: ignore[no-untyped-def]
    """The float64 rounded to odd, from the nearest float64 ``s`` and the sign of exact result minus ``s``."""
    bits = as_bits(s)
    even = np.uint64(~bits & np.uint64(1))
    inexact = (error > 0.0) | (error < 0.0)  # false for NaN: infinities stay
    outwards = (error > 0.0) == (bits >> np.uint64(63) == np.uint64(0))
    step = even if outwards else np.uint64(np.uint64(0) - even)
    return as_float(np.uint64(bits + step)) if inexact else s


@jit
def add_odd(a, b, down):  # type: ignore[no-untyped-def]
    """a + b rounded to odd (TwoSum: Knuth, TAOCP 2, section 4.2.2, theorem B)."""
    s = a + b
    part = s - a
    error = (a - (s - part)) + (b - part)
    if down and s == 0.0 and (math.copysign(1.0, a) != math.copysign(1.0, b)):
        return -0.0  # IEEE 754-2019, 6.3: x - x is -0 when rounding down
    return to_odd(s, error)


@jit
def add(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = a[i] + b[i] if native else add_odd(a[i], b[i], down)


@jit
def sub(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = a[i] - b[i] if native else add_odd(a[i], -b[i], down)


@jit
def mul(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = a[i] * b[i]  # native, or two times 26 bits: exact


@jit
def div(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        q = a[i] / b[i]
        rest = fma64(-q, b[i], a[i])  # exact: a - q b
        out[i] = q if native else to_odd(q, rest if b[i] > 0.0 else -rest)


@jit
def sqrt(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        root = math.sqrt(a[i])
        out[i] = root if native else to_odd(root, fma64(-root, root, a[i]))


@jit
def fma(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = fma64(a[i], b[i], c[i]) if native else add_odd(a[i] * b[i], c[i], down)


@jit
def remainder(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    """The rest of a division by 2 |b|, which is exact, less |b| once or twice: exact too (Sterbenz's lemma)."""
    for i in range(out.size):
        x, y = abs(a[i]), abs(b[i])
        if x == np.inf or y != y:
            out[i] = np.nan
            continue
        x = np.fmod(x, y + y) if y <= 2.0**1023 else x
        half = 0.5 * y
        tiny = y < 2.0**-1021  # where a half may not exist, twice x does
        if x + x > y if tiny else x > half:
            x -= y
            if x + x >= y if tiny else x >= half:
                x -= y
        out[i] = -x if math.copysign(1.0, a[i]) < 0.0 else x


@jit
def scale_b(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    """Exact but for exponents beyond +-1000, where every result of this kernel has long over- or underflowed."""
    for i in range(out.size):
        x, n = a[i], b[i]
        if not abs(n) < np.inf or n != np.floor(n):
            out[i] = np.nan
        elif x == 0.0 or not abs(x) < np.inf:
            out[i] = x
        else:
            fraction, e = math.frexp(x)
            out[i] = math.ldexp(fraction, int(min(max(e + n, -1000.0), 1000.0)))


@jit
def log_b(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        x = abs(a[i])
        out[i] = -np.inf if x == 0.0 else math.frexp(x)[1] - 1.0 if x < np.inf else x


def _extreme(larger: int, magnitude: int, number: int) -> Any:
    @jit
    def extreme(a, b, c, out, down, native):  # type: ignore[no-untyped-def]
        for i in range(out.size):
            x, y = a[i], b[i]
            below = x < y or (x == y and math.copysign(1.0, x) < math.copysign(1.0, y))
            if magnitude and abs(x) != abs(y):
                below = abs(x) < abs(y)
            chosen = y if below == (larger == 1) else x
            if x != x or y != y:
                chosen = (y if x != x else x) if number else np.nan
            out[i] = chosen

    return extreme


EXTREMES = {name: _extreme(*map(int, choice)) for name, choice in arithmetic.EXTREMES.items()}
KERNELS = {
    "add": add, "sub": sub, "mul": mul, "div": div, "sqrt": sqrt, "fma": fma, "remainder": remainder,
    "scale_b": scale_b, "log_b": log_b, **EXTREMES,
}  # fmt: skip


FUSED = ("add", "sub", "mul", "div", "fma")


@jit
def fused(operation, a, b, c, readers, exact, words, out, down, nearest, quick, plan, r, given, first, key0, key1):  # type: ignore[no-untyped-def]
    """An operation on codes, in one pass over blocks that stay in the nearest cache: values, exact result, rounding.

    ``exact`` and ``words`` are the same memory, as numbers to write and as words to read. The rest is as for
    ``other_modes`` of ``_rounding_loops.py``. (All operations in one kernel: each of its own would compile for longer.)
    """
    counts = np.zeros(8, np.int64)
    x, y, z = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for start in range(0, out.size, BLOCK):
        n = min(BLOCK, out.size - start)
        u, v, w, e = x[:n], y[:n], z[:n], exact[:n]
        read(a[start : start + n], u, readers[0])
        read(b[start : start + n], v, readers[1])
        if operation == 0:
            add(u, v, w, e, down, False)
        elif operation == 1:
            sub(u, v, w, e, down, False)
        elif operation == 2:
            mul(u, v, w, e, down, False)
        elif operation == 3:
            div(u, v, w, e, down, False)
        else:
            read(c[start : start + n], w, readers[2])
            fma(u, v, w, e, down, False)
        results = out[start : start + n]
        if nearest:
            _nearest_even(words[:n], results, plan)
        else:
            draws, counter = given[start : start + n], np.uint32(first + np.uint32(start))
            _other_modes(words[:n], results, plan, quick, None, counts, r, draws, counter, key0, key1)


_BLOCK = 1 << 15  # numbers that go together, so that what lies between decoding and rounding stays in the cache


def operand_values(codes: Codes, format: Format, policy: Policy) -> npt.NDArray[np.float64]:
    """The operands' values; under flush-inputs subnormal ones are zeros of their sign."""
    codes = check_codes(codes, format)
    return _operand_values(codes, format, policy, np.empty(codes.shape))


def _operand_values(
    codes: Codes, format: Format, policy: Policy, out: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The same for codes that have been checked; ``out`` may hold them."""
    flush = policy.subnormals in ("flush-inputs", "flush")
    if reads(format):
        read(as_read_only(codes), out.reshape(-1), reader(format, flush))
        return out
    values: npt.NDArray[np.float64] = np.ascontiguousarray(decode(codes, format))
    if flush:
        values = np.where(np.abs(values) < float(format.least_normal), np.copysign(0.0, values), values)
    return values


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
        values = [_operand_values(x[first:end], f, policy, row[: end - first]) for x, f, row in rows]
        exact = room[3, : end - first]
        kernel(*_three(values), exact, down, native)
        happened = None if events is None else Events()
        fast_rounding.encode(exact, result, after, _from(draw, first), happened, codes[first:end])
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
    flush = policy.subnormals in ("flush-inputs", "flush")
    readers = np.stack(_three([reader(f, flush) for f in formats]))
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


def _from(draw: Draw | None, first: int) -> Draw | None:
    """The draws of the numbers from ``first`` on."""
    if draw is None:
        return None
    given = None if draw.given is None else draw.given[first:]
    return Draw(draw.r, draw.seed, draw.position + first, given)


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
