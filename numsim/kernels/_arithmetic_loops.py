"""The loops of ``kernels/arithmetic.py``: the exact result of each operation, carried by a float64 rounded to odd.

Why that is exact. The hardware gives the float64 nearest to the exact result, and an error-free transformation (TwoSum,
or the residue of an fma) tells on which side the exact result lies. Where it is not the float64 itself, the one of its
two float64 neighbours with the odd last bit stands for it: a number rounded to odd at 53 bits rounds on to any shorter
format, in any mode, as the exact number would, because it is never a tie nor a number of the format unless the exact
one is. Rounding to nearest twice would not do (FP16: fma; BF16: 2^127 + 2^-133 rounded up).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numsim import arithmetic
from numsim.kernels._jit import as_bits, as_float, fma64, jit
from numsim.kernels._reading import read
from numsim.kernels._rounding_loops import BLOCK
from numsim.kernels._rounding_plan import LOOPS

_nearest_even, _other_modes = LOOPS[64].nearest_even_codes, LOOPS[64].other_modes


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
