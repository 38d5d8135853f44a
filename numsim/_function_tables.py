"""Tables of the elementary functions: what all codes of a format give, worked out once by the reference and kept.

A table holds an FP64 code for each code of its format: the exact result *rounded to odd*. That is a number which rounds
on to every format of up to 50 bits, in every mode, as the exact result would: it is neither a tie nor a number of such
a format unless the exact result is. So one table serves all formats and modes of the result; from it come, on demand,
the codes for one of them, and to apply a function is to look up codes.

A table of 2^16 results takes about a second. Tables are kept in the folder ``functions-...`` of numsim's cache
(``files.cache_home``), each a SHA-256 and half a megabyte that it digests. A file that is not whole is made again.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.arithmetic import convert, result_policy
from numsim.codes import Codes, classify, code_dtype
from numsim.elementary import evaluate
from numsim.errors import InputError
from numsim.events import Events
from numsim.files import cache_home, write_atomic
from numsim.formats import FP64, Format
from numsim.kernels import _pool
from numsim.random import Draw
from numsim.rounding import Policy, round_rational
from numsim.values import Rational, to_rational

_BLOCK = 1 << 18  # look-ups that go together: NumPy makes 64-bit indices of them first


def suits(source: Format, result: Format, draw: Draw | None) -> bool:
    """Whether a table answers: results well within what FP64 rounded to odd decides, and no 2^16 sines of 2^16384."""
    return (
        source.bits <= 16
        and source.emax < 1 << 12
        and result.precision + (draw.r if draw else 2) < FP64.precision
        and result.emin - result.fraction_bits > -1000
        and result.emax < 1000
    )


def look_up(
    name: str,
    codes: Codes,
    source: Format,
    result: Format,
    policy: Policy,
    draw: Draw | None = None,
    events: Events | None = None,
) -> npt.NDArray[Any]:
    """A function of codes of ``source``, rounded once to ``result``; codes in the same shape."""
    flush = policy.subnormals in ("flush-inputs", "flush")
    refuses = result.nan_code is None and policy.nan == "raise"  # depends on the codes at hand
    if draw is None and events is None and not refuses:
        return _take(_rounded(name, source, result, result_policy(policy), flush), codes)
    exact = _flushed(name, source) if flush else table(name, source)
    words = _take(exact, codes)
    rounded = convert(words, FP64, result, result_policy(policy), draw, events)
    if events is not None and result.nan_code is not None:  # log(-1), sin(inf)
        made = (classify(words, FP64) == "nan") & (classify(codes, source) != "nan")
        events.nan += int(np.count_nonzero(made))
    return rounded


def _take(table: npt.NDArray[Any], codes: Codes) -> npt.NDArray[Any]:
    flat, out = codes.reshape(-1), np.empty(codes.size, table.dtype)

    def chunk(first: int, end: int) -> None:
        for i in range(first, end, _BLOCK):
            part = slice(i, min(i + _BLOCK, end))
            np.take(table, flat[part], out=out[part], mode="clip")  # (with "raise" NumPy copies)

    _pool.over_chunks(flat.size, chunk)
    return out.reshape(codes.shape)


# --- tables -----------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def _rounded(name: str, source: Format, result: Format, policy: Policy, flush: bool) -> npt.NDArray[Any]:
    """The codes of ``result`` for all codes of ``source``."""
    return convert(_flushed(name, source) if flush else table(name, source), FP64, result, policy)


def _flushed(name: str, source: Format) -> npt.NDArray[np.uint64]:
    """The table with a zero of its sign in place of each subnormal number."""
    codes = np.arange(source.codes, dtype=code_dtype(source))
    positive, negative = (_odd(name, Rational(sign, 0, 1)) for sign in (0, 1))
    zeros = np.where(codes & codes.dtype.type(source.sign_mask), np.uint64(negative), np.uint64(positive))
    return np.where(classify(codes, source) == "subnormal", zeros, table(name, source))


@lru_cache(maxsize=64)
def table(name: str, source: Format) -> npt.NDArray[np.uint64]:
    """FP64 codes, rounded to odd, of a function of every code: from the cache on disk, or worked out and put there."""
    key = _key(name, source)
    path = _path(key)
    try:
        data = path.read_bytes() if path else b""
    except OSError:
        data = b""
    if len(data) == 32 + 8 * source.codes and data[:32] == hashlib.sha256(key + data[32:]).digest():
        return np.frombuffer(data, "<u8", offset=32).astype(np.uint64)
    words = np.array([_odd(name, to_rational(c, source)) for c in range(source.codes)], np.uint64)
    content = words.astype("<u8").tobytes()
    if path:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, hashlib.sha256(key + content).digest() + content)
        except (InputError, OSError):  # nothing writable: in memory only
            pass
    return words


def _odd(name: str, x: Rational) -> int:
    return round_rational(evaluate(name, x, FP64, FP64.precision + 1), FP64, Policy("odd"))


# --- the cache --------------------------------------------------------------------------------------------------------
def _digest_sources() -> bytes:
    """A digest of the source files that a table comes from, or nothing where there are none to read."""
    rooms = [sys.modules[part.__module__] for part in (evaluate, to_rational, Format, round_rational, table)]
    try:
        return b"".join(hashlib.sha256(Path(str(room.__file__)).read_bytes()).digest() for room in rooms)
    except OSError:
        return b""


_SOURCES = _digest_sources()  # now: a table must not be named after an edit that comes later


def _key(name: str, source: Format) -> bytes:
    """What a table depends on: the sources, the function, and all of the format but its name."""
    meaning = [(f.name, getattr(source, f.name)) for f in fields(source) if f.compare and f.name != "name"]
    return hashlib.sha256(_SOURCES + repr((name, meaning)).encode()).digest()


def _path(key: bytes) -> Path | None:
    if not _SOURCES:
        return None
    folder = f"functions-{hashlib.sha256(_SOURCES).hexdigest()[:20]}"
    try:
        return cache_home() / folder / f"{key.hex()[:32]}.table"
    except (OSError, RuntimeError):  # no home
        return None
