"""The emulator on ordinary cores of a GPU: other chips' tensor cores, bit for bit, for whole matrices.

``cu/emulator.cu`` computes; here codes become the words that it takes. An operand is one integer, its exponent and its
significand side by side, as the unit decodes it: block scales have already moved the exponent, FP8 that is computed in
FP16 is FP16, and K is in the order of the blocks. Where a unit chains FMAs an operand is a number of d's format.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import code_dtype, decode
from numsim.errors import InputError
from numsim.formats import FP16
from numsim.gpu import driver
from numsim.gpu.driver import Device
from numsim.gpu.ptx import Kernel
from numsim.gpu.units import as_product
from numsim.tensorcore.models import IN_WORDS, TYPES, Model
from numsim.tensorcore.products import common_shape

Codes = npt.NDArray[Any]
EDGE, EACH = 16, 2  # threads along each edge of a block, outputs of a thread along each axis
DEPTH = 64  # words of an operand's rows that a block of threads holds
_AT_ONCE = 1 << 26  # elements of a and b of one launch, where a batch can be parted
_WORK = 1 << 36  # products of one launch: some systems stop a kernel after two seconds
_NOTHING, _SPECIAL = -9000, 12000  # exponents of zero, and of NaN and infinity: as in emulator.cu


def suits(model: Model) -> bool:
    """Whether the GPU computes a record bit for bit: NVIDIA's units, block scales too, and FMAs.

    >>> from numsim.tensorcore import get_model
    >>> suits(get_model("b200", "mma.m16n8k16.f32.f16.f16.f32")), suits(get_model("mi300x", "mfma.f32_16x16x16_f16"))
    (True, False)
    """
    unit = model.unit
    formats = TYPES[model.a], TYPES[model.b]
    if unit.path == "fma":
        return model.c == model.d and all(f.fits(TYPES[model.d]) for f in formats)
    small = all(f.precision <= 11 for f in formats) and _length(model) <= DEPTH and unit.fraction_bits <= 40
    return unit.path in ("block", "groups", "fp8-as-fp16") and small and _as_chips(model)


def multiply(
    device: Device, model: Model, a: Codes, b: Codes, c: Codes, scale_a: Codes | None = None,
    scale_b: Codes | None = None,
) -> Codes:  # fmt: skip
    """Dot products as ``tensorcore.products.chained`` takes and gives them, computed by a GPU's ordinary cores.

    Rules: NaN, Inf, -0, subnormals and overflow as ``numsim.tensorcore.mma`` has them.
    Parameters: codes a, b (..., K) of a K that is any multiple of the instruction's, c (...), block scales; shapes
    broadcast.
    Returns codes (...) of d. Raises ``InputError`` for records that do not suit and a K that is no multiple,
    ``DeviceError`` for what the GPU refuses. Cost: some 30 instructions a product where each a meets each b, and 4
    bytes an element.
    Source: numsim/tensorcore/block.py.

    >>> from numsim.gpu.driver import device
    >>> from numsim.tensorcore import get_model
    >>> ones = np.full(32, 0x38, np.uint8)
    >>> multiply(device(), get_model("b200", "mma.m16n8k32.f32.e4m3.e4m3.f32"), ones, ones, np.uint32(0)
    ... )  # doctest: +SKIP
    array(1107296256, dtype=uint32)
    """
    _check(model)
    a, b, c = (np.asarray(x) for x in (a, b, c))
    shape, k = common_shape(a, b, c, scale_a, scale_b), a.shape[-1]
    if not k or k % model.k:
        raise InputError(f"K = {k}: {model} takes multiples of {model.k}.")
    x, y = _operands(a, model.a, scale_a, model), _operands(b, model.b, scale_b, model)
    z = np.broadcast_to(c, shape)
    if not math.prod(shape):
        return np.zeros(shape, code_dtype(TYPES[model.d]))
    product = as_product(x, y, shape)
    if product is not None and min(shape[-2:]) >= EDGE:
        return _products(device, model, *product[:2], z.reshape(-1, *shape[-2:])).reshape(shape)
    return _dots(device, model, x, y, z)


def chains(model: Model) -> Callable[..., Codes]:
    """``tensorcore.products.chains`` on the GPU of this process.

    Raises ``InputError`` for records that do not suit, ``UnavailableError`` with what is missing.
    """
    _check(model)
    device = driver.device()

    def compute(
        a: Codes, b: Codes, c: Codes, model: Model, scale_a: Codes | None, scale_b: Codes | None, threads: int | None
    ) -> Codes:
        if scale_a is None or scale_b is None:
            return multiply(device, model, a[:, None], b.T, c)
        return multiply(device, model, a[:, None], b.T, c, scale_a[:, None], scale_b.T)

    return compute


def _check(model: Model) -> None:
    if not suits(model):
        raise InputError(
            f"{model} is not computed on GPUs: its path is {model.unit.path}, or its parameters are no chip's. "
            "On this CPU it is. Example: matmul(A, B, chip=chip, device=None)"
        )


def _products(device: Device, model: Model, a: Codes, b: Codes, c: Codes) -> Codes:
    """Operands a (batch, M, K), b (batch, N, K), codes c (batch, M, N): codes of d, some rows of some at a time."""
    batch, m, n = c.shape
    tile, k = EDGE * EACH, a.shape[-1]
    rows = min(m, max(tile, _WORK // (n * k)))
    some = min(max(1, _AT_ONCE // ((rows + n) * k)), max(1, _WORK // (rows * n * k)), 65535)
    d = np.empty(c.shape, code_dtype(TYPES[model.d]))
    for at in range(0, batch, some):
        for row in range(0, m, rows):
            here = slice(at, at + some), slice(row, row + rows)
            count, high = c[here].shape[:2]
            tiles = -(-high // tile) * -(-n // tile)
            d[here] = _run(device, model, "products", (tiles, count, 1), a[here], b[here[0]], c[here], [high, n, k])
    return d


def _dots(device: Device, model: Model, a: Codes, b: Codes, c: Codes) -> Codes:
    """Operands a, b (..., K) that broadcast to codes c (...): codes of d, some outputs at a time."""
    shape, k = c.shape or (1,), a.shape[-1]
    a, b, flat = np.broadcast_to(a, (*shape, k)), np.broadcast_to(b, (*shape, k)), c.ravel()
    some = max(1, _AT_ONCE // (2 * k))
    parts = []
    for start in range(0, len(flat), some):
        here = flat[start : start + some]
        at = np.unravel_index(np.arange(start, start + len(here)), shape)
        grid = (-(-len(here) // EDGE**2), 1, 1)
        parts.append(_run(device, model, "dots", grid, a[at], b[at], here, [len(here), k]))
    return np.concatenate(parts).reshape(c.shape)


def _run(
    device: Device, model: Model, function: str, grid: tuple[int, int, int], a: Codes, b: Codes, c: Codes,
    numbers: list[int],
) -> Codes:  # fmt: skip
    """One launch: codes of d."""
    wide = model.d == "f64"
    start = c.view(np.float16).astype(np.float32) if model.c == "f16" else c  # FP32 holds the same number
    operands = [np.ascontiguousarray(x).reshape(-1).view(np.uint32) for x in (a, b, start, _rules(model))]
    found = device.run(kernel(model, function), grid, EDGE**2, operands, c.size * (1 + wide), numbers)
    values = found.view(np.float64 if wide else np.float32)
    d = values.astype(np.float16) if model.d == "f16" else values
    codes = np.array(d.view(code_dtype(TYPES[model.d])))
    codes[np.isnan(values)] = model.nan
    return codes.reshape(c.shape)


# --- what the kernel is told ------------------------------------------------------------------------------------------
def kernel(model: Model, function: str) -> Kernel:
    """``products`` or ``dots`` for the kind of arithmetic that a record needs."""
    lines = [f"#define EDGE {EDGE}", f"#define EACH {EACH}", f"#define DEPTH {DEPTH // (1 + (model.d == 'f64'))}"]
    if model.unit.path == "fma":
        lines += ["#define REAL double", "#define FMA __fma_rn"] if model.d == "f64" else [
            "#define REAL float", "#define FMA __fmaf_rn"]  # fmt: skip
    else:
        groups = model.unit.path == "groups"
        # terms are below 2^(F + 2), those of groups below 2^(F + 12)
        lines += [f"#define TERM unsigned{' long long' * (groups or model.unit.fraction_bits > 29)}"]
        lines += [f"#define GROUP {16 if groups else 1}", *["#define LATE"] * (model.unit.path == "fp8-as-fp16")]
    return Kernel.load("emulator.cu", "\n".join([*lines, ""]), function)


def _rules(model: Model) -> npt.NDArray[np.int32]:
    """``Rules`` of emulator.cu."""
    unit = model.unit
    bits = {"rz-e8m13": 13, "rne-fp16": 10}.get(unit.output, 23)
    product_bits = sum(_fraction_bits(t, model) for t in (model.a, model.b))
    numbers = [
        _length(model), len(_order(model)), unit.fraction_bits, product_bits, unit.floor, TYPES[model.c].emin,
        TYPES[model.d].emin, bits, unit.output.startswith("rne"),
    ]  # fmt: skip
    return np.array(numbers, np.int32)


def _length(model: Model) -> int:
    """Products of a block."""
    return min(model.unit.length, model.k // 2 if model.unit.path == "fp8-as-fp16" else model.k)


@cache
def _order(model: Model) -> npt.NDArray[np.int64]:
    """The places in an instruction's K of the products of its blocks; K itself where there is none: a zero."""
    k = np.arange(model.k)
    runs = [k[k % 4 < 2], k[k % 4 >= 2]] if model.unit.path == "fp8-as-fp16" else [k]
    return np.concatenate([np.pad(run, (0, -len(run) % _length(model)), constant_values=model.k) for run in runs])


# --- operands ---------------------------------------------------------------------------------------------------------
def _operands(codes: Codes, type_name: str, scales: Codes | None, model: Model) -> npt.NDArray[Any]:
    """Codes (..., K) as words of an operand, in the order of the blocks."""
    if model.unit.path == "fma":
        values = decode(_significant(codes, type_name), TYPES[type_name])
        return np.asarray(values, np.float64 if model.d == "f64" else np.float32)
    words = _table(type_name, model.unit.path)[_significant(codes, type_name)]
    if scales is not None:
        words = _scaled(words, np.repeat(_table(model.scale, "block")[_significant(scales, model.scale)],
                                         model.scale_block, axis=-1))  # fmt: skip
    if np.array_equal(_order(model), np.arange(model.k)):
        return words
    parts = words.reshape(*words.shape[:-1], -1, model.k)
    nothing = np.full((*parts.shape[:-1], 1), _word(0, _NOTHING), np.int32)
    return np.concatenate([parts, nothing], axis=-1)[..., _order(model)].reshape(*words.shape[:-1], -1)


def _significant(codes: Codes, type_name: str) -> Codes:
    """The bits that the unit looks at: twin of ``block.significant``."""
    if type_name in IN_WORDS:
        return codes >> 13
    return codes & 0x7F if type_name == "ue4m3" else codes


def _fraction_bits(type_name: str, model: Model) -> int:
    """Of a word's significand."""
    if model.unit.path == "groups":
        return 1 + TYPES[model.scale].fraction_bits
    return FP16.fraction_bits if model.unit.path == "fp8-as-fp16" else TYPES[type_name].fraction_bits


@cache
def _table(type_name: str, path: str) -> npt.NDArray[np.int32]:
    """The word of every code. In groups elements are whole halves: their exponent is that of the scale alone."""
    format = TYPES[type_name]
    values = decode(np.arange(format.codes, dtype=code_dtype(format)), format)
    as_fp16 = path == "fp8-as-fp16"
    bits, least = (FP16.fraction_bits, FP16.emin) if as_fp16 else (format.fraction_bits, format.emin)
    finite = np.where(np.isfinite(values), values, 0)
    exponents = np.maximum(np.frexp(finite)[1] - 1, least)
    if path == "groups":
        exponents[:] = 0
    significands = np.ldexp(finite, bits - exponents).astype(np.int32)
    significands[np.isinf(values)] = np.sign(values[np.isinf(values)])
    exponents = np.where(finite == 0, _NOTHING, exponents)
    return _word(significands, np.where(np.isfinite(values), exponents, _SPECIAL))


def _scaled(words: npt.NDArray[np.int32], scales: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Elements times their scales; a NaN scale makes them NaN."""
    (s, e), (t, f) = _parts(words), _parts(scales)
    return _word(s * t, np.where(f == _SPECIAL, _SPECIAL, np.maximum(e + f, _NOTHING)))


def _word(significand: Any, exponent: Any) -> npt.NDArray[np.int32]:
    return np.asarray(exponent * 65536 + significand, np.int32)


def _parts(words: npt.NDArray[np.int32]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Significands and exponents."""
    significands = words.astype(np.int16).astype(np.int32)
    return significands, (words - significands) >> 16


def _as_chips(model: Model) -> bool:
    """Not one of the units that no known chip has."""
    return model.unit.align == "toward-zero" and not model.unit.normalised
