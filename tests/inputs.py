"""Adversarial inputs for a format, built from integers only: float64 and float32 bit patterns.

For every format: each value, midpoint and quarter point (so also the first points past the top, where overflow is
decided), each +-1 and +-2 ulps of the input type and times 1 +- 2^-k; subnormals of the input type; long runs of ones;
NaN payloads; signed zeros and infinities; seeded random patterns. Everything comes with both signs.
"""

import numpy as np

from tests import oracle

RELATIVE = (3, 8, 12, 20, 23, 24, 25, 30, 40, 50, 52)  # the k of 1 +- 2^-k


def _sizes(width):
    return (52, 1023, np.uint64) if width == 64 else (23, 127, np.uint32)


def nans(width):
    """Quiet, signalling and negative NaNs with small, large and mixed payloads."""
    fraction, bias, dtype = _sizes(width)
    infinity, quiet = (2 * bias + 1) << fraction, 1 << (fraction - 1)
    payloads = (quiet, quiet | 1, 1, 2, quiet - 1, (1 << fraction) - 1, quiet >> 1, 1 << (fraction - 3), quiet | 0x2A)
    sign = 1 << (width - 1)
    return np.array([infinity | p | s for p in payloads for s in (0, sign)], dtype)


def special(width):
    """+-0, +-infinity, the input type's own extremes and subnormals, one bit each and long runs of ones."""
    fraction, bias, dtype = _sizes(width)
    infinity = (2 * bias + 1) << fraction
    out = {0, infinity, infinity - 1, 1, 2, 3, (1 << fraction) - 1, 1 << fraction, (1 << fraction) + 1}
    out |= {1 << k for k in range(fraction)}  # subnormals, one bit
    out |= {(1 << k) - 1 for k in range(1, fraction + 1)}  # subnormals, runs of ones
    for field in (1, bias - 30, bias - 1, bias, bias + 3, bias + 8, bias + 15, 2 * bias):
        for k in range(fraction + 1):
            out.add(field << fraction | ((1 << fraction) - 1) >> k)  # 1.000111111
            out.add(field << fraction | (((1 << fraction) - 1) & ~((1 << k) - 1)))  # 1.111110000
    out |= set(range(1 << fraction, infinity, 1 << fraction))  # every power of two
    sign = 1 << (width - 1)
    return np.array(sorted(p | s for p in out for s in (0, sign)), dtype)


def points(spec, width, extra=2, magnitudes=None):
    """Patterns of the format's grid with `extra` more fraction bits (2: quarter points), up to two steps past the top.

    What the input type cannot hold is cut towards zero; what is too large for it is left out."""
    fraction, bias, dtype = _sizes(width)
    if magnitudes is None:
        magnitudes = np.arange((spec.top + 3) << extra, dtype=np.uint64)
    top, significand = oracle.grid(magnitudes, spec, extra)
    fits = top <= bias
    top, significand = top[fits], significand[fits]
    low = top < 1 - bias
    shift = np.minimum(np.where(low, 1 - bias - np.maximum(top, -4000), 0) + 62 - fraction, 63).astype(np.uint64)
    tail = np.where(low, significand, significand & np.uint64((1 << 62) - 1)) >> shift
    field = np.where(low, 0, top + bias).astype(np.uint64)
    return np.unique((tail | field << np.uint64(fraction)).astype(dtype))


def around(patterns, width, steps=(-2, -1, 0, 1, 2), relative=RELATIVE):
    """Each positive pattern, +-1 and +-2 ulps, and (in the integers) times 1 +- 2^-k; then both signs."""
    fraction, bias, dtype = _sizes(width)
    infinity = (2 * bias + 1) << fraction
    base = patterns.astype(np.int64)
    moves = set(steps) | {s << (fraction - k) for k in relative if k <= fraction for s in (-1, 1)}
    out = np.unique(np.concatenate([base + m for m in sorted(moves)]))
    out = out[(out >= 0) & (out <= infinity)].astype(dtype)
    return np.concatenate([out, out | dtype(1 << (width - 1))])


def random_patterns(width, count, seed, spec=None):
    """Seeded random patterns; with a format, half of them have exponents in and around its range."""
    _, bias, dtype = _sizes(width)
    fraction = _sizes(width)[0]
    rng = np.random.default_rng(seed)
    out = rng.integers(0, 2**width, count, dtype=dtype)
    if spec is not None:
        lowest, highest = int(oracle.grid([1], spec)[0][0]), int(oracle.grid([spec.top], spec)[0][0])
        low = max(1, lowest + bias - 3)
        high = min(2 * bias, highest + bias + 3)
        field = rng.integers(low, high + 1, count - count // 2).astype(dtype)
        tail = out[count // 2 :] & dtype((1 << fraction) - 1)
        sign = out[count // 2 :] & dtype(1 << (width - 1))
        out[count // 2 :] = sign | field << dtype(fraction) | tail
    return out


def boundaries(spec, width, with_nan=True):
    """Small and sharp: every value, midpoint and overflow point of a format of up to 8 bits, each -1, 0, +1 ulp."""
    near = around(points(spec, width, extra=1), width, steps=(-1, 0, 1), relative=())
    parts = [near, special(width)[:: 16 if width == 64 else 4], _edges(width)]
    return np.unique(np.concatenate(parts + ([nans(width)] if with_nan else [])))


def _edges(width):
    fraction, bias, dtype = _sizes(width)
    infinity, sign = (2 * bias + 1) << fraction, 1 << (width - 1)
    return np.array([0, sign, infinity, infinity | sign, 1, 1 | sign, infinity - 1, (infinity - 1) | sign], dtype)


def thorough(spec, width, count=4000, seed=1, with_nan=True, sample=3000):
    """All of this file for one format; formats above 8 bits take a seeded sample of their points and all edges."""
    extra = 2 if spec.bits < 64 else 0
    total = (spec.top + 3) << extra
    if total > 4096:
        rng = np.random.default_rng(seed)
        picked = rng.integers(0, total, sample, dtype=np.uint64)
        normal = spec.least_normal << extra
        middles = (24, normal, spec.top << extra)
        edges = [np.arange(max(0, c - 24), min(total, c + 24), dtype=np.uint64) for c in middles]
        binades = np.arange(0, total, 1 << (spec.fraction + extra), dtype=np.uint64)
        magnitudes = np.unique(np.concatenate([picked, binades, binades[1:] - np.uint64(1), *edges]))
        # a random quarter point is a midpoint only one time in four
        magnitudes = np.unique(np.concatenate([magnitudes, picked & ~np.uint64(3) | np.uint64(2)]))
    else:
        magnitudes = None
    parts = [
        around(points(spec, width, extra, magnitudes), width),
        special(width),
        _edges(width),
        random_patterns(width, count, seed, spec),
    ]
    out = np.concatenate(parts + ([nans(width)] if with_nan else []))
    fraction, bias, dtype = _sizes(width)
    if not with_nan:
        out = out[(out & dtype((1 << (width - 1)) - 1)) <= dtype((2 * bias + 1) << fraction)]
    return np.unique(out)


def in_range(patterns, spec):
    """Those whose magnitude is at most the format's largest number (no NaN, no infinity, nothing to overflow)."""
    _, kind, top, significand = oracle.take_apart(patterns)
    largest = oracle.grid(np.full(patterns.size, spec.top), spec)
    return patterns[(kind == 0) & oracle._at_most((top, significand), largest)]


def as_float(patterns):
    """The same memory as floats."""
    return patterns.view(np.float64 if patterns.dtype == np.uint64 else np.float32)


def as_bits(floats):
    """The patterns of floats, NaN payloads kept."""
    floats = np.ascontiguousarray(floats)
    return floats.view(np.uint64 if floats.dtype == np.float64 else np.uint32)


def show(pattern, width):
    return f"{int(pattern):#0{width // 4 + 2}x}"
