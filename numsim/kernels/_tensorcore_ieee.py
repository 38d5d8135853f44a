"""Units that round to nearest, over many outputs of a row: the paths fma, exact and pairwise, on float64 values.

Why that is exact. FP64 is the hardware's own fused multiply-add. A product of two numbers of up to 26 bits is a
float64; a sum rounded to odd at 53 bits rounds on to FP32 as the exact sum would (``_arithmetic_loops.py``), and that
is all for FP32's fused multiply-add. "exact" adds with TwoSum, which also gives what was lost: where it is nothing, the
float64 is the exact sum; else the terms are added again without any loss, as in ``math.fsum``, and rounded to odd.
"pairwise" is the hardware's own FP32 arithmetic, whose results below 2^-126 the unit flushes.
"""

from __future__ import annotations

import numpy as np

from numsim.kernels._arithmetic_loops import add_odd, to_odd
from numsim.kernels._jit import fma64, jit, part
from numsim.kernels._tensorcore_lanes import from_word, nearest, to_word

FMA, EXACT, PAIRWISE = range(3)
PATHS = {"fma": FMA, "exact": EXACT, "pairwise": PAIRWISE}


@jit
def exact_block(a, b, i, first, end, acc, sums, lost, parts):  # type: ignore[no-untyped-def]
    """acc + products first to end, exactly, then rounded to FP32."""
    for j in range(acc.size):
        sums[j], lost[j] = acc[j], 0.0
    for n in range(first, end):
        x, column = a[n, i], b[n]
        for j in range(acc.size):
            p = x * column[j]
            s = sums[j] + p
            part = s - sums[j]
            lost[j] += abs((sums[j] - (s - part)) + (p - part))  # TwoSum: Knuth, TAOCP 2, section 4.2.2
            sums[j] = s
    for j in range(acc.size):
        if lost[j] != 0.0 and abs(sums[j]) < np.inf:
            sums[j] = careful_sum(a, b, i, j, first, end, acc[j], parts)
        acc[j] = nearest(sums[j])


@jit
def careful_sum(a, b, i, j, first, end, c, parts):  # type: ignore[no-untyped-def]
    """c + products first to end, rounded to odd: ``parts`` add up to it exactly and do not overlap.

    J. R. Shewchuk: Adaptive precision floating-point arithmetic, Discrete Comput. Geom. 18 (1997), theorem 10.
    """
    parts[0], count = c, 1
    for n in range(first, end):
        x, kept = a[n, i] * b[n, j], 0
        for m in range(count):
            s = x + parts[m]
            part = s - x
            rest = (x - (s - part)) + (parts[m] - part)
            if rest != 0.0:
                parts[kept] = rest
                kept += 1
            x = s
        parts[kept] = x
        count = kept + 1
    high, low = parts[count - 1], 0.0
    for m in range(count - 2, -1, -1):
        s = high + parts[m]
        low = parts[m] - (s - high)
        high = s
        if low != 0.0:
            break  # what follows is smaller than the last bit of ``low``
    return to_odd(high, low)


@part
def flushed(x):  # type: ignore[no-untyped-def]
    """A float32 below the normal numbers becomes a zero of its sign."""
    return np.copysign(np.float32(0), x) if abs(x) < np.float32(2.0**-126) else x


@jit
def pairwise_block(a, b, i, first, end, acc):  # type: ignore[no-untyped-def]
    """acc + ((p0 + p1) + (p2 + p3)), or acc + (p0 + p1): every product and sum rounded and flushed."""
    for j in range(acc.size):
        s = np.float32(0)
        for n in range(first, end, 2):
            p = flushed(np.float32(np.float32(a[n, i]) * np.float32(b[n, j])))
            q = flushed(np.float32(np.float32(a[n + 1, i]) * np.float32(b[n + 1, j])))
            t = flushed(np.float32(p + q))
            s = t if n == first else flushed(np.float32(s + t))
        c = np.float32(acc[j])
        c = np.float32(0) if 0 < abs(c) < np.float32(2.0**-126) else c
        acc[j] = flushed(np.float32(c + s))


@jit
def fma_block(a, b, i, first, end, acc):  # type: ignore[no-untyped-def]
    """One FP32 product after the other."""
    for n in range(first, end):
        x, column = a[n, i], b[n]
        for j in range(acc.size):
            acc[j] = nearest(add_odd(x * column[j], acc[j], False))


# --- chains -----------------------------------------------------------------------------------------------------------
@jit
def chain_values(a, b, words, first, end, column, path, length, k):  # type: ignore[no-untyped-def]
    """Instructions of k products, for rows first to end, all columns: a, b (K, outputs); FP32 words change."""
    a, b = a.values, b.values
    width = b.shape[1]
    acc, sums, lost, parts = np.empty(width), np.empty(width), np.empty(width), np.empty(length + 1)
    for i in range(first, end):
        row = words[i, column : column + width]
        for j in range(width):
            acc[j] = from_word(row[j])
        for n in range(0, b.shape[0], length):
            if path == EXACT:
                exact_block(a, b, i, n, n + length, acc, sums, lost, parts)
            elif path == PAIRWISE:
                if n % k == 0:
                    acc += 0.0  # c of an instruction: the sign of zero is lost
                pairwise_block(a, b, i, n, n + length, acc)
            else:
                fma_block(a, b, i, n, n + length, acc)
        for j in range(width):
            row[j] = to_word(acc[j])


@jit
def chain_doubles(a, b, results, first, end, column):  # type: ignore[no-untyped-def]
    """The same in FP64: float64 results (rows, columns) change."""
    a, b = a.values, b.values
    for i in range(first, end):
        row = results[i, column : column + b.shape[1]]
        for n in range(b.shape[0]):
            x, values = a[n, i], b[n]
            for j in range(row.size):
                row[j] = fma64(x, values[j], row[j])


@jit
def dot_doubles(a, b, results):  # type: ignore[no-untyped-def]
    """Every output with operands of its own: a, b (outputs, K)."""
    for i in range(results.size):
        for n in range(a.shape[1]):
            results[i] = fma64(a[i, n], b[i, n], results[i])
