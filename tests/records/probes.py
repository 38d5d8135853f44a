"""The operands of the probe sets: codes (tiles, M, K), (tiles, N, K) and (tiles, M, N), the same for the same seed.

Written without numsim: what is recorded must not depend on what it is to judge. Every output of a tile is a probe of
its own. Sets whose name says what they are for:

    integers   small whole numbers: any unit adds them exactly, so a misplaced element shows
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
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING or __package__:
    from tests.records.fragments import Codes, Instruction
else:
    from fragments import Codes, Instruction

Integers = npt.NDArray[np.int64]
Operands = tuple[Codes, Codes, Codes]


class Type(NamedTuple):
    """A format by its fields; ``ignored`` low bits of the stored word follow."""

    exponent_bits: int
    fraction_bits: int
    ignored: int = 0
    infinities: bool = True

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def emin(self) -> int:
        return 1 - self.bias

    @property
    def emax(self) -> int:
        return self.bias + (not self.infinities)

    @property
    def least(self) -> int:
        """Exponent of the least positive number."""
        return self.emin - self.fraction_bits

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits + self.ignored


TYPES = {
    "f16": Type(5, 10), "bf16": Type(8, 7), "tf32": Type(8, 10, 13), "f32": Type(8, 23),
    "e4m3": Type(4, 3, infinities=False), "e5m2": Type(5, 2),
}  # fmt: skip


class Draw:
    """Random numbers from PCG64's raw stream, which is the same in every NumPy."""

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def integers(self, low: Any, high: Any, shape: tuple[int, ...]) -> Integers:
        """Whole numbers from low to high, both included."""
        raw = self._bits.random_raw(math.prod(shape)).reshape(shape) >> np.uint64(11)
        return np.asarray(low + (raw % np.asarray(high - low + 1, np.uint64)).astype(np.int64))

    def one_in(self, n: int, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        return np.asarray(self.integers(1, n, shape) == 1)

    def sign(self, shape: tuple[int, ...]) -> Integers:
        return self.integers(0, 1, shape)


# --- codes by their fields, as int64 ----------------------------------------------------------------------------------
def powers(exponent: Any, t: Type, sign: Any = 0) -> Integers:
    """Codes of 2^exponent, subnormal where need be; 0 where the format has none."""
    e = np.asarray(exponent, np.int64)
    subnormal = np.int64(1) << np.clip(e - t.least, 0, t.fraction_bits)
    field = np.where(e < t.emin, subnormal, (np.clip(e, t.emin, t.emax) + t.bias) << t.fraction_bits)
    return np.where((e < t.least) | (e > t.emax), 0, _signed(field, t, sign))


def wholes(value: Integers, t: Type) -> Integers:
    """Codes of whole numbers that the format has."""
    size = np.abs(value)
    e = np.frexp(np.maximum(size, 1).astype(float))[1] - 1
    fraction = np.where(e > t.fraction_bits, 0, (size - (1 << e)) << np.maximum(t.fraction_bits - e, 0))
    return np.where(size == 0, 0, _signed((e + t.bias) << t.fraction_bits | fraction, t, value < 0))


def ones(count: int, exponent: Any, t: Type) -> Integers:
    """Codes of the sum of 2^exponent and the count - 1 powers below it."""
    fraction = ((1 << count) - 1) << (t.fraction_bits + 1 - count) & ((1 << t.fraction_bits) - 1)
    return powers(exponent, t) | np.where(exponent < t.emin, 0, fraction << t.ignored)


def normals(draw: Draw, shape: tuple[int, ...], t: Type, low: int, high: int) -> Integers:
    """Any sign and fraction, exponents from low to high as far as the format has them."""
    low, high = (min(max(x, t.emin), t.emax - (not t.infinities)) for x in (low, high))
    rest = draw.integers(0, (1 << (t.fraction_bits + t.ignored)) - 1, shape)
    return powers(draw.integers(low, high, shape), t, draw.sign(shape)) | rest


def anything(draw: Draw, shape: tuple[int, ...], t: Type) -> Integers:
    return draw.integers(0, (1 << t.bits) - 1, shape)


def finite(draw: Draw, shape: tuple[int, ...], t: Type) -> Integers:
    """Any bits but NaNs and infinities: one exponent bit, or E4M3's last fraction bit, is cleared where they are."""
    code = anything(draw, shape, t)
    special = _infinity(t) if t.infinities else _infinity(t) | ((1 << t.fraction_bits) - 1)
    clear = 1 << (t.fraction_bits + t.ignored) if t.infinities else 1
    return np.where(code & special == special, code & ~clear, code)


def subnormals(draw: Draw, shape: tuple[int, ...], t: Type) -> Integers:
    return _signed(draw.integers(0, (1 << t.fraction_bits) - 1, shape), t, draw.sign(shape))


def specials(draw: Draw, shape: tuple[int, ...], t: Type) -> Integers:
    """Zeros, infinities, NaNs of any payload, largest and least numbers. E4M3 has no infinity: NaN, too."""
    infinity = _infinity(t) if t.infinities else (1 << (t.bits - 1)) - 1
    payload = draw.integers(1, (1 << (t.fraction_bits + t.ignored)) - 1, shape)
    nan = infinity | np.where(draw.one_in(2, shape), payload, payload & ((1 << t.ignored) - 1))
    which = draw.integers(0, 4, shape)
    code = np.choose(which, [np.zeros_like(which), np.full_like(which, infinity), nan,
                             np.full_like(which, infinity - 1), np.full_like(which, 1 << t.ignored)])  # fmt: skip
    return np.asarray(code | draw.sign(shape) << (t.bits - 1))


def _infinity(t: Type) -> int:
    """All exponent bits."""
    return ((1 << t.exponent_bits) - 1) << (t.fraction_bits + t.ignored)


def _stored(code: Integers, t: Type) -> Codes:
    return code.astype(f"u{t.bits // 8}")


def _signed(code: Any, t: Type, sign: Any) -> Integers:
    return np.asarray(code, np.int64) << t.ignored | np.asarray(sign, np.int64) << (t.bits - 1)


# --- the sets ---------------------------------------------------------------------------------------------------------
class Sets:
    """The sets of one instruction."""

    def __init__(self, i: Instruction, seed: int, outputs: int = 1024) -> None:
        self.i = i
        self.a, self.b, self.c, self.d = (TYPES[t] for t in (i.a, i.b, i.c, i.d))
        self.seed = (seed, zlib.crc32(i.name.encode()))
        self.tiles = max(outputs // (i.m * i.n * i.groups), 1) * i.groups

    def __iter__(self) -> Iterator[tuple[str, Operands]]:
        """(name, (a, b, c)) of each set."""
        for name in ("integers", "bits", "finite", "near", "ladder", "floor", "tiny", "subnormal", "special", "zeros",
                     "overflow"):  # fmt: skip
            draw = Draw(*self.seed, zlib.crc32(name.encode()))
            a, b, c = getattr(self, "_" + name)(draw)
            if a.any() and b.any():  # "floor" is out of reach where products are never that small
                yield name, (_stored(a, self.a), _stored(b, self.b), _stored(c, self.c))

    def _shapes(self, tiles: int = 0) -> tuple[tuple[int, ...], ...]:
        return tuple((tiles or self.tiles, *self.i.tile(x)) for x in "abc")

    def _integers(self, draw: Draw) -> tuple[Integers, ...]:
        a, b, c = self._shapes()
        return (wholes(draw.integers(-3, 3, a), self.a), wholes(draw.integers(-3, 3, b), self.b),
                wholes(draw.integers(-64, 64, c), self.c))  # fmt: skip

    def _bits(self, draw: Draw) -> tuple[Integers, ...]:
        return tuple(anything(draw, s, t) for s, t in zip(self._shapes(), (self.a, self.b, self.c), strict=True))

    def _finite(self, draw: Draw) -> tuple[Integers, ...]:
        return tuple(finite(draw, s, t) for s, t in zip(self._shapes(), (self.a, self.b, self.c), strict=True))

    def _near(self, draw: Draw) -> tuple[Integers, ...]:
        a, b, c = self._shapes()
        return normals(draw, a, self.a, -3, 3), normals(draw, b, self.b, -3, 3), normals(draw, c, self.c, -6, 8)

    def _ladder(self, draw: Draw) -> tuple[Integers, ...]:
        tiles = -(-24 // self.i.groups) * self.i.groups
        (_, m, k), (_, n, _), _ = shapes = self._shapes(tiles)
        a, b, c = (np.zeros(s, np.int64) for s in shapes)
        top = 7 if self.i.d == "f16" else 10
        half = min(self.d.fraction_bits, 13 if self.a.bits == 8 else 23) + 1  # as far below as a tie lies
        for tile in range(tiles):
            places = np.argsort(draw.integers(0, 1 << 40, (k,)))[:3]
            x = draw.integers(-1, 0, (m,)) + min(self.a.emax, top)
            y = draw.integers(-1, 0, (n,)) + min(self.b.emax, top)
            down = draw.integers(0, np.minimum(x - self.a.least, 18), (m,))
            right = draw.integers(0, np.minimum(y - self.b.least, 18), (n,))
            # the second term: minus the first, half a unit of the result, or anywhere; c: nothing, a pair for it, small
            second = {0: 0, 1: -half, 2: -int(draw.integers(1, 24, ()))}[tile % 3]
            minus = draw.sign((m,))
            for place, row, column, sign in (
                (places[0], x, y, minus),
                (places[1], x + second // 2, y + second - second // 2, minus ^ (tile % 3 == 0)),
                (places[2], x - down, y - right, draw.sign((m,))),
            ):
                a[tile, :, place] = powers(row, self.a, sign)
                b[tile, :, place] = powers(column, self.b)
            first = x[:, None] + y
            c[tile] = np.choose(tile // 3 % 3, [0 * first, powers(first, self.c, 1 - minus[:, None]),
                                                powers(first - draw.integers(8, 30, (m, n)), self.c)])  # fmt: skip
        return a, b, c

    def _floor(self, draw: Draw) -> tuple[Integers, ...]:
        """Terms on the first four places, each tile one power deeper; rows and columns shift all terms alike.

        Where d is truncated: all powers from half of the least number down to the last one, and the last one again;
        without it the sum is just below the least number. Where d is rounded to nearest: half of the least number, a
        tie, and the last power, which decides it.
        """
        tiles = -(-24 // self.i.groups) * self.i.groups
        (_, m, _), (_, n, _), _ = shapes = self._shapes(tiles)
        a, b, c = (np.zeros(s, np.int64) for s in shapes)
        per = self.a.fraction_bits + 1  # powers that one operand can hold
        reach = (-1, 10) if self.i.d == "f32" else (-1, 1)
        for tile in range(tiles):
            half, depth = self.d.least - 1, tile + 1
            runs = [(half - s, min(per, depth - s)) for s in range(0, depth, per)] if self.i.d == "f32" else [(half, 1)]
            down, right = draw.integers(*reach, (m,)), draw.integers(*reach, (n,))
            for place, (exponent, count) in enumerate([*runs[:3], (half - depth + (self.i.d == "f32"), 1)]):
                a[tile, :, place] = ones(count, exponent // 2 + down, self.a)
                b[tile, :, place] = powers(exponent - exponent // 2 + right, self.b, draw.sign((n,)) & (tile % 2))
        return a, b, c

    def _tiny(self, draw: Draw) -> tuple[Integers, ...]:
        a, b, c = self._shapes()
        low, high = (self.d.least - 8) // 2, (self.d.least + 16) // 2
        least = _signed(draw.integers(0, 3, c), self.c, draw.sign(c))
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
        base, rare = self._near(draw), (self.i.k, self.i.k, 4)
        return tuple(
            np.where(draw.one_in(n, x.shape), specials(draw, x.shape, t), x)
            for x, t, n in zip(base, (self.a, self.b, self.c), rare, strict=True)
        )

    def _zeros(self, draw: Draw) -> tuple[Integers, ...]:
        def signed(shape: tuple[int, ...], t: Type, rare: int) -> Integers:
            least = powers(draw.integers(t.least, t.least + 2, shape), t)
            size = np.where(draw.one_in(rare, shape), least, np.where(draw.one_in(rare, shape), powers(0, t), 0))
            return np.asarray(size | draw.sign(shape) << (t.bits - 1))

        a, b, c = self._shapes()
        return signed(a, self.a, self.i.k), signed(b, self.b, 4), signed(c, self.c, 4)

    def _overflow(self, draw: Draw) -> tuple[Integers, ...]:
        a, b, c = self._shapes()
        half = self.d.emax // 2
        positive = ~(1 << (self.a.bits - 1))
        added = normals(draw, c, self.c, self.c.emax - 1, self.c.emax)
        largest = _infinity(self.c) - 1
        return (normals(draw, a, self.a, half - 3, half) & positive, normals(draw, b, self.b, half - 3, half),
                np.where(draw.one_in(2, c), added, largest | added & ~((1 << (self.c.bits - 1)) - 1)))  # fmt: skip


def expected(operands: Operands, i: Instruction) -> Codes:
    """What every unit must make of the set "integers"."""
    values = [np.arange(-n, n + 1) for n in (3, 3, 64)]
    codes = [wholes(v, TYPES[t]) for v, t in zip(values, (i.a, i.b, i.c), strict=True)]
    a, b, c = (
        v[np.argsort(k)[np.searchsorted(np.sort(k), x)]] for v, k, x in zip(values, codes, operands, strict=True)
    )
    return _stored(wholes(a @ b.swapaxes(1, 2) + c, TYPES[i.d]), TYPES[i.d])
