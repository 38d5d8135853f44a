"""Twins of ``numsim.tensorcore.products``: chains of tensor-core instructions over whole matrices.

Operands are decoded a panel of K at a time and K first: (K, outputs). ``_tensorcore_lanes.py`` computes the units that
align and cut, ``_tensorcore_ieee.py`` those that round to nearest, for a row of outputs at once. Dot products are the
same: a row of ones times a matrix of products, which are as exact as the factors were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.codes import Codes, code_dtype
from numsim.codes import decode as decode_values
from numsim.host import flushes_subnormals, rounds_to_nearest
from numsim.kernels import _pool, _tensorcore_ieee, _tensorcore_lanes
from numsim.kernels._jit import as_float, jit
from numsim.kernels._tensorcore_ieee import chain_doubles, chain_values, dot_doubles
from numsim.kernels._tensorcore_lanes import NOTHING, Numbers, chain_lanes
from numsim.kernels._tensorcore_lanes import rules as rules_of
from numsim.tensorcore import products
from numsim.tensorcore.models import IN_WORDS, TYPES, Model

TILE = 256  # outputs side by side
PANEL = 512  # of K that is decoded at a time
_GRAIN, _SOME = 1 << 24, 1 << 16  # products a task, of matrices and of vectors
_ALONE = 1 << 18  # fewer are done before a second thread has woken up


def suits(model: Model) -> bool:
    """Whether the kernels compute this record bit for bit; the reference does the rest."""
    unit, types = model.unit, (TYPES[model.a], TYPES[model.b])
    if not rounds_to_nearest() or unit.align != "toward-zero" or unit.normalised:
        return False
    bits = sum(f.precision for f in types)
    if unit.path in _tensorcore_lanes.PATHS:
        if unit.path == "fp8-as-fp16" and model.k // 2 % min(unit.length, model.k // 2):
            return False
        known = bits <= 24 and unit.fraction_bits <= 40 and unit.floor >= -800
        return known and (model.c == model.d or model.blocks == 1)
    lengths = {"fma": (1,), "pairwise": (2, 4), "exact": range(1, 1025)}[unit.path]
    if unit.length not in lengths or model.k % unit.length or model.c != model.d:
        return False
    if model.d == "f64":  # the hardware's own
        return not flushes_subnormals()
    return bits <= (24 if unit.path == "pairwise" else 52)


class Values(NamedTuple):
    """Operands of units that round to nearest, K first: (K, outputs)."""

    values: npt.NDArray[np.float64]


# --- operands ---------------------------------------------------------------------------------------------------------
class Layout(NamedTuple):
    """How to read the codes of a type."""

    drop: int  # low bits that the unit ignores
    bits: int  # that it reads, without the sign
    fraction_bits: int
    emin: int
    infinity: int  # magnitude code; above the largest where there is none
    nan: int  # the least magnitude code that is NaN, or above all
    minus_zero_is_nan: bool


def _layout(type_name: str) -> Layout:
    f = TYPES[type_name]
    beyond = 1 << f.magnitude_bits
    nan = f.max_code + 1 + (f.specials == "ieee") if f.specials in ("ieee", "fn") else beyond
    return Layout(
        13 if type_name in IN_WORDS else 0, f.magnitude_bits, f.fraction_bits, f.emin,
        beyond if f.infinity_code is None else f.infinity_code, nan, f.specials == "fnuz",
    )  # fmt: skip


@jit
def _decode(codes, f, significands, exponents):  # type: ignore[no-untyped-def]
    """Codes, words of 32 bits, as significands and exponents of the same shape."""
    one = np.float32(as_float(np.uint32((127 - f.fraction_bits) << 23)))  # 2^-fraction_bits
    for i in range(codes.shape[0]):
        for j in range(codes.shape[1]):
            code = np.int32(codes[i, j] >> np.uint32(f.drop))
            magnitude = np.int32(code & np.int32((1 << f.bits) - 1))
            field = np.int32(magnitude >> np.int32(f.fraction_bits))
            hidden = np.int32(0) if field == 0 else np.int32(1 << f.fraction_bits)
            fraction = np.int32(magnitude & np.int32((1 << f.fraction_bits) - 1))
            s = np.float32(np.float32(fraction + hidden) * one)
            s = np.float32(np.inf) if magnitude >= f.infinity else s
            s = -s if code > magnitude else s
            s = np.float32(np.nan) if magnitude >= f.nan or (f.minus_zero_is_nan and code == 1 << f.bits) else s
            significands[i, j] = s
            place = np.int16(field - 1 + f.emin) if field > 1 else np.int16(f.emin)
            exponents[i, j] = np.int16(NOTHING) if magnitude == 0 else place


def _decoded(codes: Codes, type_name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int16]]:
    words = codes.astype(np.uint32, order="C")
    found = np.empty(words.shape, np.float32), np.empty(words.shape, np.int16)
    _decode(words, _layout(type_name), *found)
    return found


def _numbers(codes: Codes, type_name: str, scales: Codes | None, model: Model) -> Numbers:
    """Codes (K, n) decoded; E8M0 scales (K / block, n) of single products join the exponents.

    FP8 that is computed in FP16 becomes FP16, with k mod 4 in {0, 1} first in every instruction.
    """
    path = model.unit.path
    if path == "fp8-as-fp16":
        format = TYPES[type_name]
        table = decode_values(np.arange(format.codes, dtype=np.uint8), format).astype(np.float16).view(np.uint16)
        k = np.arange(len(codes))
        codes, type_name = table[codes[np.lexsort((k, k % 4 // 2, k // model.k))]], "f16"
    s, e = _decoded(codes, type_name)
    none = s[:0], e[:0]
    if scales is None:
        return Numbers(s, e, *none)
    if path == "groups":
        return Numbers(np.ldexp(s, e), e, *_scales(np.repeat(scales, model.scale_block // 16, axis=0), model.scale))
    factors, places = _scales(np.repeat(scales, model.scale_block, axis=0), model.scale)
    return Numbers(s * factors, e + places, *none)


def _scales(codes: Codes, type_name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int16]]:
    if type_name == "ue8m0":  # 0xff is NaN
        return np.where(codes == 255, np.float32(np.nan), np.float32(1)), codes.astype(np.int16) - np.int16(127)
    return _decoded(codes & np.uint8(0x7F), type_name)  # the sign bit is ignored


def _values(codes: Codes, type_name: str, scales: None, model: Model) -> Values:
    """Codes (K, n) as float64; what CDNA2 flushes is +0."""
    format, drop = TYPES[type_name], 13 if type_name in IN_WORDS else 0
    values = np.array(decode_values(np.ascontiguousarray(codes) >> codes.dtype.type(drop), format), order="C")
    if model.unit.path == "pairwise":
        values[np.abs(values) < float(format.least_normal)] = 0.0
    return Values(values)


def _outputs(x: Any, first: int, end: int) -> Any:
    """The operands of some outputs."""
    return type(x)(*(np.ascontiguousarray(part[:, first:end]) for part in x))


@np.errstate(all="ignore")
def _product(x: Any, y: Any) -> tuple[Any, Any]:
    """(K, n) times (K, n) as ones (K, 1) and products (K, n)."""
    if isinstance(x, Values):
        return Values(np.ones_like(x.values[:, :1])), Values(x.values * y.values)
    ones = Numbers(*(np.full_like(part[:, :1], one) for part, one in zip(x, (1, 0, 1, 0), strict=True)))
    found = x.significands * y.significands, x.exponents + y.exponents, x.scales * y.scales, x.places + y.places
    return ones, Numbers(*found)


# --- the twins --------------------------------------------------------------------------------------------------------
class Step(NamedTuple):
    """A panel of K: whole instructions; where c and d are of different types, the first instruction by itself."""

    first: int
    end: int
    decode: Any  # codes (K, n), their type, scales and the model: operands
    loop: Any  # operands, results, first and last row, first column
    options: tuple[Any, ...]  # of the loop

    def operand(self, codes: Codes, type_name: str, scales: Codes | None, model: Model) -> Any:
        """The panel's part of codes (K, n)."""
        here = slice(self.first // (model.scale_block or 1), self.end // (model.scale_block or 1))
        part = None if scales is None else scales[here]
        return self.decode(codes[self.first : self.end], type_name, part, model)


def _steps(length: int, model: Model) -> Iterator[Step]:
    """The panels of K, and how the record is computed."""
    path = model.unit.path
    way: tuple[Any, Any, Any] = _values, chain_doubles, ()
    if path in _tensorcore_lanes.PATHS:
        way = _numbers, chain_lanes, (rules_of(model),)
    elif model.d != "f64":
        way = _values, chain_values, (_tensorcore_ieee.PATHS[path], model.unit.length, model.k)
    start = 0
    if model.c != model.d and length:
        start = model.k
        decode, loop, (rules,) = way
        yield Step(0, start, decode, loop, (rules._replace(c_emin=TYPES[model.c].emin),))
    most = max(1, PANEL // model.k) * model.k
    for first in range(start, length, most):
        yield Step(first, min(first + most, length), *way)


def chains(
    a: Codes, b: Codes, c: Codes, model: Model, scale_a: Codes | None, scale_b: Codes | None, threads: int | None
) -> npt.NDArray[Any]:
    """Codes a (M, K), b (K, N), c (M, N), scales (M, K / block) and (K / block, N): codes of d (M, N)."""
    m, n = c.shape
    sa, sb = None if scale_a is None else scale_a.T, scale_b
    if n < min(m, TILE):  # lanes are columns, and no unit knows which factor is which
        turned = replace(model, a=model.b, b=model.a)
        return np.transpose(chains(b.T, a.T, c.T, turned, None if sb is None else sb.T, sa, threads))
    results = _results(c, model)
    for step in _steps(a.shape[1], model):
        x, y = step.operand(a.T, model.a, sa, model), step.operand(b, model.b, sb, model)
        depth = step.end - step.first
        rows = max(1, _GRAIN // (TILE * depth))

        def tile(row: int, column: int, step: Step = step, x: Any = x, y: Any = y, rows: int = rows) -> None:
            columns = _outputs(y, column, column + TILE)
            step.loop(x, columns, results, row, min(row + rows, m), column, *step.options)

        tiles = [(row, column) for column in range(0, n, TILE) for row in range(0, m, rows)]
        _share(tiles, tile, m * n * depth, threads)
    return _codes(results, model)


def dots(
    a: Codes, b: Codes, c: Codes, model: Model, scale_a: Codes | None, scale_b: Codes | None, threads: int | None
) -> npt.NDArray[Any]:
    """Codes a, b (n, K), c (n,), scales (n, K / block): codes of d (n,)."""
    results, length = _results(c, model), a.shape[1]
    chunk = max(64, _SOME // max(1, min(length, PANEL)))  # so many outputs that their operands stay in the cache

    def some(start: int) -> None:
        here = slice(start, start + chunk)
        if model.d == "f64":  # whose products are not exact
            x, y = (_values(z[here], t, None, model).values for z, t in ((a, model.a), (b, model.b)))
            dot_doubles(x, y, results[here])
            return
        parts = [None if s is None else s[here].T for s in (scale_a, scale_b)]
        for step in _steps(length, model):
            x, y = step.operand(a[here].T, model.a, parts[0], model), step.operand(b[here].T, model.b, parts[1], model)
            step.loop(*_product(x, y), results[None, here], 0, 1, 0, *step.options)

    _share([(start,) for start in range(0, len(results), chunk)], some, a.size, threads)
    return _codes(results, model)


def _share(tasks: Sequence[tuple[int, ...]], do: Callable[..., None], products: int, threads: int | None) -> None:
    """Every task once, on several threads where there is enough to do."""

    def work(first: int, end: int) -> None:
        for task in tasks[first:end]:
            do(*task)

    _pool.over_chunks(len(tasks), work, large=1 if products > _ALONE else len(tasks), number=threads)


def _results(c: Codes, model: Model) -> npt.NDArray[Any]:
    """c as FP32 words, FP16 widened without rounding; FP64 as float64."""
    if model.c == "f64":
        return np.array(c, np.uint64, order="C").view(np.float64)
    if model.c == "f16":
        return np.array(c, np.uint16, order="C").view(np.float16).astype(np.float32).view(np.uint32)
    return np.array(c, np.uint32, order="C")


def _codes(results: npt.NDArray[Any], model: Model) -> npt.NDArray[Any]:
    values = results if model.d == "f64" else results.view(np.float32)
    codes = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
    found = values.astype(codes[model.d], copy=False).view(code_dtype(TYPES[model.d]))
    found[np.isnan(values)] = model.nan
    return found


TWINS = [(products.chains, chains), (products.dots, dots)]
