"""Random bits that never change: a pure function of (seed, counter), the same on every machine and in every version.

``bits(seed, counter)`` hashes the counter under two 32-bit keys derived from the seed. Within one block of 2^32
counters it is a permutation of the 32-bit integers, so no value comes up twice in a block; across blocks and seeds the
keys differ. The two mixing functions and their constants are published: splitmix64 (Steele, Lea, Flood, OOPSLA 2014)
and lowbias32 (C. Wellons, "Prospecting for Hash Functions", 2018). Not for cryptography.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.errors import InputError, short
from numsim.values import is_whole

_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _U64
    return x ^ (x >> 31)


def _lowbias32(x: Any) -> Any:
    """Of an integer, or of each in an array of uint32, where products wrap by themselves."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _U32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _U32
    return x ^ (x >> 16)


def keys(seed: int, block: int = 0) -> tuple[int, int]:
    """The two 32-bit keys of a block of 2^32 counters."""
    x = _splitmix64(_splitmix64(seed) ^ block)
    return x & _U32, x >> 32


def bits(seed: int, counter: int) -> int:
    """32 random bits as an integer, for a seed in [0, 2^64) and a counter >= 0.

    >>> [hex(bits(7, i)) for i in range(3)]
    ['0xc63b7155', '0x48cf60bc', '0x243d815d']
    """
    return _bits(check_seed(seed), _counter("counter", counter))


def _bits(seed: int, counter: int) -> int:
    key0, key1 = keys(seed, counter >> 32)
    return int(_lowbias32(_lowbias32((counter & _U32) ^ key0) ^ key1))


def bits_from(seed: int, start: int, count: int) -> npt.NDArray[np.uint32]:
    """``bits(seed, i)`` for ``count`` counters i from ``start`` on, in one array.

    Stochastic rounding with the same seed draws these very bits: data made of them need another seed, or each number's
    rounding follows from the number.

    >>> [hex(x) for x in bits_from(7, 0, 3)]
    ['0xc63b7155', '0x48cf60bc', '0x243d815d']
    """
    seed, start, count = check_seed(seed), _counter("start", start), _counter("count", count)
    if count > 1 << 32:
        raise InputError(f"count={short(count)}: at most 2^32 at once. Example: numsim.random.bits_from(7, 0, 3)")
    key0, key1 = map(np.uint32, keys(seed, start >> 32))
    first = start & _U32
    end = min(first + count, 1 << 32)  # of this block
    drawn = _lowbias32(_lowbias32(np.arange(first, end).astype(np.uint32) ^ key0) ^ key1)
    rest = count - (end - first)
    return np.concatenate([drawn, bits_from(seed, start + count - rest, rest)]) if rest else np.asarray(drawn)


def _counter(name: str, x: Any) -> int:
    if not is_whole(x) or x < 0:
        raise InputError(f"{name}={short(x)}: an integer >= 0 is needed. Example: numsim.random.bits_from(7, 0, 3)")
    return int(x)


def check_seed(seed: Any) -> int:
    """A seed as a Python integer; refuses what is no integer in [0, 2^64)."""
    if not is_whole(seed) or not 0 <= seed <= _U64:
        raise InputError(f"seed={short(seed)}: a seed is an integer from 0 to 2^64 - 1. Example: seed=7")
    return int(seed)


class Stream:
    """A seed and a position; each call that uses the stream moves the position on.

    >>> stream = Stream(7)
    >>> import numsim
    >>> _ = numsim.encode([0.1, 0.2], "bf16", rounding="stochastic", seed=stream)
    >>> stream
    Stream(seed=7, position=2)
    """

    def __init__(self, seed: int, position: int = 0) -> None:
        if not is_whole(position) or position < 0:
            raise InputError(
                f"position={short(position)}: a position is an integer >= 0. Example: Stream(7, position=0)"
            )
        self.seed, self.position = check_seed(seed), int(position)

    def take(self, count: int) -> int:
        """The position to use for ``count`` draws; moves on by as many."""
        position, self.position = self.position, self.position + _counter("count", count)
        return position

    def __repr__(self) -> str:
        return f"Stream(seed={self.seed}, position={short(self.position)})"


@dataclass(frozen=True)
class Draw:
    """Where a stochastic operation gets its bits: draw i is ``given[i]``, or ``bits(seed, position + i)``.

    ``r`` is how many bits each draw has (1..32); of a generated draw the top r bits are used.
    """

    r: int
    seed: int = 0
    position: int = 0
    given: npt.NDArray[np.uint32] | None = None

    def __call__(self, i: int) -> int:
        if self.given is not None:
            return int(self.given[i])
        return _bits(self.seed, self.position + i) >> (32 - self.r)

    def after(self, used: int) -> Draw:
        """The draws that follow the first ``used`` ones."""
        given = None if self.given is None else self.given[used:]
        return Draw(self.r, self.seed, self.position + used, given)


def make_draw(count: int, seed: Any, random_bits: Any, sr_bits: int | None, shape: tuple[int, ...]) -> Draw:
    """Check the options of a stochastic call and reserve ``count`` draws."""
    example = 'Example: rounding="stochastic", seed=7'
    if sr_bits is not None and not (is_whole(sr_bits) and 1 <= sr_bits <= 32):
        raise InputError(f"sr_bits={short(sr_bits)}: the number of random bits is 1 to 32. {example}, sr_bits=8")
    if (seed is None) == (random_bits is None):
        raise InputError(f"stochastic rounding needs either seed= or random_bits=. {example}")
    if random_bits is None:
        r = 32 if sr_bits is None else int(sr_bits)
        if isinstance(seed, Stream):
            return Draw(r, seed.seed, seed.take(count))
        return Draw(r, check_seed(seed))
    try:
        given = np.asarray(random_bits)
    except Exception:  # lists of unequal lengths; each library has its own
        raise InputError(f"random_bits={short(random_bits)}: an array is needed. {example}") from None
    if given.size and given.dtype.kind not in "ui":
        raise InputError(f"random_bits of type {given.dtype}: unsigned integers are needed. {example}")
    r = int(sr_bits) if sr_bits is not None else {"uint8": 8, "uint16": 16}.get(given.dtype.name, 32)
    try:
        given = np.broadcast_to(given, shape)
    except ValueError:
        raise InputError(f"random_bits of shape {given.shape} do not fit values of shape {shape}. {example}") from None
    if given.size and (int(given.min()) < 0 or int(given.max()) >> r):
        raise InputError(f"random_bits from {given.min()} to {given.max()}: with {r} bits they lie in [0, 2^{r}).")
    return Draw(r, given=np.ascontiguousarray(given, dtype=np.uint32).reshape(-1))
