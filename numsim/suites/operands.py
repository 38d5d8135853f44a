"""What one instruction is asked: sets of operands as codes, the same for the same seed and in every NumPy.

Written without numsim's rounding and without its emulator: what is recorded must not depend on what it is to judge.
Every output of a tile is a probe of its own. What the sets are for:

    bits       any bits at all
    finite     any bits that are no NaN and no infinity: exponents of the whole range
    near       exponents close together: the last bits that are kept decide
    ladder     2^e, 2^(e - s) and 2^(e - t) at three places, cancelling or on a tie: F, L, the order, when c is added
    floor      products that add up to half of d's least number and less: the lowest alignment exponent E0
    tiny       products and c around d's least number
    subnormal  subnormal operands that hold the largest exponent, subnormal c
    special    some zeros, infinities, NaNs with payloads, largest numbers among others
    zeros      zeros of both signs, results that underflow
    overflow   sums around d's largest number
    scales     block scales far apart
    scale special  block scales that are NaN, the least and the largest
    K x 2, K x 3, K x 4   several instructions in a row, each adding to what the last one made
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.gpu.instructions import Instruction

Codes = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Operands = tuple[Codes, ...]  # a (tiles, M, K), b (tiles, N, K), c (tiles, M, N), scales (tiles, M or N, K / block)

SETS = ("bits", "finite", "near", "ladder", "floor", "tiny", "subnormal", "special", "zeros", "overflow",
        "scales", "scale special")  # fmt: skip
STEPS = (2, 3, 4)  # instructions in a row
_ROWS = 16, 64  # of a tile that has more: one output is as good as another
_LADDER = 24  # powers of two that a ladder goes down


class Type(NamedTuple):
    """A format by its fields; ``ignored`` low bits of the stored word follow."""

    exponent_bits: int
    fraction_bits: int
    ignored: int = 0
    top: str = "infinity"  # what the largest exponent holds: "infinity" and NaN; numbers and one "NaN"; "numbers"

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def emin(self) -> int:
        return 1 - self.bias

    @property
    def emax(self) -> int:
        return self.bias + (self.top != "infinity")

    @property
    def least(self) -> int:
        """Exponent of the least positive number."""
        return self.emin - self.fraction_bits

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits + self.ignored

    @property
    def sign(self) -> int:
        """The sign bit, of an int64."""
        return 1 << (self.bits - 1) if self.bits < 64 else -1 << 63

    @property
    def largest(self) -> int:
        """Code of the largest number."""
        full = (1 << (self.bits - 1)) - 1
        below = {"infinity": 1 << (self.fraction_bits + self.ignored), "NaN": 1, "numbers": 0}[self.top]
        return full - below


TYPES = {
    "f64": Type(11, 52), "f32": Type(8, 23), "tf32": Type(8, 10, 13), "f16": Type(5, 10), "bf16": Type(8, 7),
    "e4m3": Type(4, 3, top="NaN"), "e5m2": Type(5, 2), "e3m2": Type(3, 2, top="numbers"),
    "e2m3": Type(2, 3, top="numbers"), "e2m1": Type(2, 1, top="numbers"),
}  # fmt: skip
SCALES = {"ue8m0": (127, 0, 255), "ue4m3": (7, 3, 127)}  # bias, fraction bits, the code of NaN


class Draw:
    """Random numbers from PCG64's raw stream, which is the same in every NumPy."""

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def bits(self, count: int, shape: tuple[int, ...]) -> Integers:
        raw = self._bits.random_raw(math.prod(shape)).reshape(shape) >> np.uint64(64 - count)
        return np.asarray(raw.view(np.int64))

    def integers(self, low: Any, high: Any, shape: tuple[int, ...]) -> Integers:
        """Whole numbers from low to high, both included."""
        return np.asarray(low + self.bits(53, shape) % np.asarray(high - low + 1))

    def one_in(self, n: int, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        return np.asarray(self.integers(1, n, shape) == 1)

    def sign(self, shape: tuple[int, ...], t: Type) -> Integers:
        """The sign bit or nothing."""
        return np.asarray(self.bits(1, shape) * np.int64(t.sign))


# --- codes by their fields, as int64 ----------------------------------------------------------------------------------
def powers(exponent: Any, t: Type) -> Integers:
    """Codes of 2^exponent, subnormal where need be; 0 where the format has none."""
    e = np.asarray(exponent, np.int64)
    subnormal = np.int64(1) << np.clip(e - t.least, 0, t.fraction_bits)
    field = np.where(e < t.emin, subnormal, (np.clip(e, t.emin, t.emax) + t.bias) << t.fraction_bits)
    return np.where((e < t.least) | (e > t.emax), 0, field << t.ignored)


def ones(count: int, exponent: Any, t: Type) -> Integers:
    """Codes of the sum of 2^exponent and the count - 1 powers below it."""
    fraction = ((1 << count) - 1) << (t.fraction_bits + 1 - count) & ((1 << t.fraction_bits) - 1)
    return powers(exponent, t) | np.where(np.asarray(exponent) < t.emin, 0, fraction << t.ignored)


def normals(draw: Draw, shape: tuple[int, ...], t: Type, low: int, high: int) -> Integers:
    """Any sign and fraction, exponents from low to high as far as the format has them."""
    low, high = (min(max(x, t.emin), t.emax - (t.top == "NaN")) for x in (low, high))
    rest = draw.bits(t.fraction_bits + t.ignored, shape)
    return powers(draw.integers(low, high, shape), t) | draw.sign(shape, t) | rest


def anything(draw: Draw, shape: tuple[int, ...], t: Type) -> Integers:
    return draw.bits(t.bits, shape)


def finite(draw: Draw, shape: tuple[int, ...], t: Type) -> Integers:
    """Any bits but NaNs and infinities: the lowest bit of the exponent, or of E4M3's fraction, is cleared where they
    are."""
    code = anything(draw, shape, t)
    special = code & ~np.int64(t.sign) > t.largest | (1 << t.ignored) - 1
    clear = 1 << (t.fraction_bits + t.ignored) if t.top == "infinity" else 1
    return np.where(special, code & ~np.int64(clear), code)


def subnormals(draw: Draw, shape: tuple[int, ...], t: Type) -> Integers:
    return draw.bits(t.fraction_bits, shape) << t.ignored | draw.sign(shape, t)


def specials(draw: Draw, shape: tuple[int, ...], t: Type) -> Integers:
    """Zeros, least and largest numbers, and infinities and NaNs of any payload where the format has them."""
    infinity = {"infinity": t.largest + 1, "NaN": t.largest + 1, "numbers": t.largest}[t.top]
    payload = draw.bits(t.fraction_bits + t.ignored, shape) | 1
    low = payload & ((1 << t.ignored) - 1)  # of TF32: bits that the unit does not read
    nan = infinity | np.where(draw.one_in(2, shape) | (t.ignored == 0), payload, low) * (t.top == "infinity")
    which = draw.integers(0, 4, shape)
    code = np.choose(which, [np.zeros_like(which), np.full_like(which, infinity), nan, np.full_like(which, t.largest),
                             np.full_like(which, 1 << t.ignored)])  # fmt: skip
    return np.asarray(code | draw.sign(shape, t))


# --- the sets of one instruction --------------------------------------------------------------------------------------
class Sets:
    """Operands of one instruction.

    outputs : how many a set has at least; ladders have more.

    >>> from numsim.tensorcore import get_model
    >>> i = Instruction.of(get_model("h200", "mma.m16n8k16.f32.f16.f16.f32"))
    >>> [(x.dtype.name, x.shape) for x in Sets(i, seed=1, outputs=256).draw("near")]
    [('uint16', (2, 16, 16)), ('uint16', (2, 8, 16)), ('uint32', (2, 16, 8))]
    """

    def __init__(self, i: Instruction, seed: int, outputs: int = 512) -> None:
        self.i = i
        self.a, self.b, self.c, self.d = (TYPES[t] for t in (i.a, i.b, i.c, i.d))
        self.m, self.n, self.k = min(i.m, max(_ROWS[0], min(outputs // i.n, _ROWS[1]))), i.n, i.k
        self.seed = (seed, zlib.crc32(i.name.encode()))
        self.outputs = outputs

    def __iter__(self) -> Iterator[tuple[str, Operands]]:
        """(name, operands) of each set that the formats can express."""
        for name in SETS:
            if self.i.scale or not name.startswith("scale"):
                a, b, *rest = self.draw(name)
                if a.any() and b.any():  # "floor" is out of reach where products are never that small
                    yield name, (a, b, *rest)
        for steps in STEPS:
            if self.i.c == self.i.d:
                yield f"K x {steps}", self.draw("near", steps)

    def draw(self, name: str, steps: int = 1) -> Operands:
        """The operands of a set."""
        self.k = self.i.k * steps
        draw = Draw(*self.seed, zlib.crc32(name.encode()), steps)
        codes = getattr(self, "_" + name.replace(" ", "_"))(draw)
        stored = [x.astype(f"u{max(t.bits, 8) // 8}") for x, t in zip(codes, (self.a, self.b, self.c), strict=True)]
        if not self.i.scale:
            return tuple(stored)
        return *stored, *(self._block_scales(draw, name, x.shape) for x in stored[:2])

    def _block_scales(self, draw: Draw, name: str, shape: tuple[int, ...]) -> Codes:
        """One scale for each block: around 1, but for the sets that are about scales."""
        bias, fraction_bits, nan = SCALES[self.i.scale]
        shape = (*shape[:2], shape[2] // self.i.scale_block)
        far = (20 if self.i.scale == "ue8m0" else 6) if name == "scales" else 1
        codes = (bias + draw.integers(-far, far, shape)) << fraction_bits | draw.bits(3, shape) >> 3 - fraction_bits
        if name == "scale special":
            ends = np.choose(draw.integers(0, 4, shape), [np.full(shape, x) for x in (0, 1, nan - 1, nan, bias)])
            codes = np.where(draw.one_in(2, shape), ends, codes)
        return codes.astype(np.uint8)

    def _shapes(self, tiles: int = 0) -> tuple[tuple[int, ...], ...]:
        count = tiles or -(-self.outputs * self.i.k // self.k // (self.m * self.n))  # the fewer, the longer K
        return (count, self.m, self.k), (count, self.n, self.k), (count, self.m, self.n)

    def _bits(self, draw: Draw) -> tuple[Integers, ...]:
        return tuple(anything(draw, s, t) for s, t in zip(self._shapes(), (self.a, self.b, self.c), strict=True))

    def _finite(self, draw: Draw) -> tuple[Integers, ...]:
        return tuple(finite(draw, s, t) for s, t in zip(self._shapes(), (self.a, self.b, self.c), strict=True))

    def _near(self, draw: Draw) -> tuple[Integers, ...]:
        a, b, c = self._shapes()
        return normals(draw, a, self.a, -3, 3), normals(draw, b, self.b, -3, 3), normals(draw, c, self.c, -6, 8)

    _scales = _scale_special = _near

    def _ladder(self, draw: Draw) -> tuple[Integers, ...]:
        tiles = max(9, -(-3072 // (self.m * self.n)))
        (_, m, k), (_, n, _), _ = shapes = self._shapes(tiles)
        a, b, c = (np.zeros(s, np.int64) for s in shapes)
        top = 7 if self.i.d == "f16" else 10
        half = min(self.d.fraction_bits, 13 if self.a.bits <= 8 else 52) + 1  # as far below as a tie lies
        for tile in range(tiles):
            places = np.argsort(draw.integers(0, 1 << 40, (k,)))[:3]
            x = draw.integers(-1, 0, (m,)) + min(self.a.emax, top)
            y = draw.integers(-1, 0, (n,)) + min(self.b.emax, top)
            down = draw.integers(0, np.minimum(x - self.a.least, 18), (m,))
            right = draw.integers(0, np.minimum(y - self.b.least, 18), (n,))
            # the second term: minus the first, half a unit of the result, or anywhere; c: nothing, a pair for it, small
            second = {0: 0, 1: -half, 2: -int(draw.integers(1, max(_LADDER, half), ()))}[tile % 3]
            minus, other = draw.sign((m,), self.a), draw.sign((m,), self.a)
            opposite = np.int64(self.a.sign) * (tile % 3 == 0)
            for place, row, column, sign in (
                (places[0], x, y, minus),
                (places[1], x + second // 2, y + second - second // 2, minus ^ opposite),
                (places[2], x - down, y - right, other),
            ):
                a[tile, :, place] = powers(row, self.a) | sign
                b[tile, :, place] = powers(column, self.b)
            first = x[:, None] + y
            against = np.where(minus == 0, np.int64(self.c.sign), 0)[:, None]
            c[tile] = np.choose(tile // 3 % 3, [0 * first, powers(first, self.c) | against,
                                                powers(first - draw.integers(8, 30, (m, n)), self.c)])  # fmt: skip
        return a, b, c

    def _floor(self, draw: Draw) -> tuple[Integers, ...]:
        """Terms on the first four places, each tile one power deeper; rows and columns shift all terms alike.

        Where d is truncated: all powers from half of the least number down to the last one, and the last one again;
        without it the sum is just below the least number. Where d is rounded to nearest: half of the least number, a
        tie, and the last power, which decides it.
        """
        (_, m, _), (_, n, _), _ = shapes = self._shapes(_LADDER)
        a, b, c = (np.zeros(s, np.int64) for s in shapes)
        per = self.a.fraction_bits + 1  # powers that one operand can hold
        truncated = self.i.d == "f32"
        reach = (-1, 10) if truncated else (-1, 1)
        for tile in range(_LADDER):
            half, depth = self.d.least - 1, tile + 1
            runs = [(half - s, min(per, depth - s)) for s in range(0, depth, per)] if truncated else [(half, 1)]
            down, right = draw.integers(*reach, (m,)), draw.integers(*reach, (n,))
            for place, (exponent, count) in enumerate([*runs[:3], (half - depth + truncated, 1)]):
                a[tile, :, place] = ones(count, exponent // 2 + down, self.a)
                minus = draw.sign((n,), self.b) * (tile % 2)
                b[tile, :, place] = powers(exponent - exponent // 2 + right, self.b) | minus
        return a, b, c

    def _tiny(self, draw: Draw) -> tuple[Integers, ...]:
        a, b, c = self._shapes()
        low, high = (self.d.least - 8) // 2, (self.d.least + 16) // 2
        least = draw.integers(0, 3, c) | draw.sign(c, self.c)
        return normals(draw, a, self.a, low, high), normals(draw, b, self.b, low, high), least

    def _subnormal(self, draw: Draw) -> tuple[Integers, ...]:
        a, b, c = self._shapes()
        left = np.where(draw.one_in(2, a), subnormals(draw, a, self.a),
                        normals(draw, a, self.a, self.a.emin, self.a.emin + 4))  # fmt: skip
        right = normals(draw, b, self.b, self.b.emax - 4, self.b.emax)
        middle = self.a.emin + self.b.emax
        added = np.where(draw.one_in(2, c), subnormals(draw, c, self.c),
                         normals(draw, c, self.c, middle - 8, middle + 4))  # fmt: skip
        return left, right, added

    def _special(self, draw: Draw) -> tuple[Integers, ...]:
        rare = (self.i.k, self.i.k, 4)
        return tuple(
            np.where(draw.one_in(n, x.shape), specials(draw, x.shape, t), x)
            for x, t, n in zip(self._near(draw), (self.a, self.b, self.c), rare, strict=True)
        )

    def _zeros(self, draw: Draw) -> tuple[Integers, ...]:
        def signed(shape: tuple[int, ...], t: Type, rare: int) -> Integers:
            least = powers(draw.integers(t.least, t.least + 2, shape), t)
            size = np.where(draw.one_in(rare, shape), least, np.where(draw.one_in(rare, shape), powers(0, t), 0))
            return np.asarray(size | draw.sign(shape, t))

        a, b, c = self._shapes()
        return signed(a, self.a, self.i.k), signed(b, self.b, 4), signed(c, self.c, 4)

    def _overflow(self, draw: Draw) -> tuple[Integers, ...]:
        a, b, c = self._shapes()
        half = self.d.emax // 2
        added = normals(draw, c, self.c, self.c.emax - 1, self.c.emax)
        return (normals(draw, a, self.a, half - 3, half) & ~np.int64(self.a.sign),
                normals(draw, b, self.b, half - 3, half),
                np.where(draw.one_in(2, c), added, self.c.largest | added & np.int64(self.c.sign)))  # fmt: skip


# --- whole products ---------------------------------------------------------------------------------------------------
def matrices(i: Instruction, seed: int, m: int = 256, n: int = 128, k: int = 1024) -> Operands:
    """a (M, 1, K), b (1, N, K) and c (N,) of one product of matrices.

    Each row is the one before it, moved on by some numbers: a record of it is small, and no two sums are the same.
    """
    draw = Draw(seed, zlib.crc32(i.name.encode()), m, n, k)
    found = []
    for operand, count, step in (("a", m, 3), ("b", n, 5)):
        t = TYPES[getattr(i, operand)]
        numbers = normals(draw, (k + step * count,), t, -3, 3).astype(f"u{max(t.bits, 8) // 8}")
        found.append(numbers[step * np.arange(count)[:, None] + np.arange(k)])
    c = TYPES[i.c]
    return found[0][:, None], found[1][None], normals(draw, (n,), c, -3, 3).astype(f"u{c.bits // 8}")
