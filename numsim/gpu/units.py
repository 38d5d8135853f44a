"""Whole questions on one instruction of this GPU: operands into tiles, chained along K, results out of them.

Where a and b are a matrix product (a varies along the rows, b along the columns of the result), tiles hold it as it is.
Any other batch of dot products lies on the diagonals of tiles, which wastes most of each.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import code_dtype
from numsim.errors import InputError
from numsim.gpu.driver import Device, DeviceError
from numsim.gpu.instructions import Instruction, never_run
from numsim.gpu.layouts import pack, unpack
from numsim.gpu.ptx import kernel
from numsim.random import bits_from
from numsim.rounding import encode
from numsim.tensorcore.models import TYPES, Model

Codes = npt.NDArray[Any]
_AT_ONCE = 1 << 28  # bytes of operands and results of one launch, where a batch can be parted
_GRID = 65535  # tiles along M, and along N, of one launch; CUDA allows no more


def multiply(
    device: Device, model: Model, a: Codes, b: Codes, c: Codes, scale_a: Codes | None = None,
    scale_b: Codes | None = None,
) -> Codes:  # fmt: skip
    """Codes a (..., K), b (..., K), c (...) and block scales (..., K / block) as ``tensorcore.mma`` takes them, K
    chained: codes of d, from the GPU.

    Raises ``DeviceError`` for what the GPU refuses or cannot be trusted in, before anything else is asked of the
    instruction: sums of small integers, which any unit adds exactly.
    """
    i = Instruction.of(model)
    if not 0 < a.shape[-1] == b.shape[-1]:
        raise InputError(f"a of shape {a.shape}, b of shape {b.shape}: (..., K) with the same K from 1 on.")
    a, b = _rows(a, scale_a, i), _rows(b, scale_b, i)
    check_placement(device, i)
    shape = np.broadcast_shapes(a.shape[:-1], b.shape[:-1], c.shape)
    if not math.prod(shape):
        return np.zeros(shape, code_dtype(TYPES[model.d]))
    if (product := as_product(a, b, shape)) is not None:
        x, y, rows, columns = product
        z = np.broadcast_to(c, shape).reshape(-1, rows, columns)
        return _products(device, i, x, y, z).reshape(shape)
    k = a.shape[-1]
    x, y = (np.broadcast_to(v, (*shape, k)).reshape(-1, k) for v in (a, b))
    return _diagonals(device, i, x, y, np.broadcast_to(c, shape).ravel()).reshape(shape)


def _rows(x: Codes, scales: Codes | None, i: Instruction) -> Codes:
    """Rows of whole steps: K codes, zeros behind, and for each step its block scales, ones behind."""
    x = _padded(x, -1, i.k)
    if scales is None:
        return x
    steps = x.shape[-1] // i.k
    more = steps * i.scales - scales.shape[-1]
    if not 0 <= more < i.scales:
        raise InputError(
            f"block scales of shape {scales.shape} for K = {x.shape[-1]}: {i.name} takes one for {i.scale_block} codes."
        )
    one = int(encode(1.0, TYPES[i.scale]))  # times nothing; what a scale of 0 stands for need not be a number
    scales = np.pad(scales, [(0, 0)] * (scales.ndim - 1) + [(0, more)], constant_values=one)
    shape = np.broadcast_shapes(x.shape[:-1], scales.shape[:-1])
    parts = (np.broadcast_to(y, (*shape, y.shape[-1])).reshape(*shape, steps, -1) for y in (x, scales))
    return np.concatenate(list(parts), -1).reshape(*shape, -1)


def as_product(a: Codes, b: Codes, shape: tuple[int, ...]) -> tuple[Codes, Codes, int, int] | None:
    """a (batch, M, K) and b (batch, N, K) where results (..., M, N) are matrix products; else None."""
    if len(shape) < 2:
        return None
    lead, (m, n), k = shape[:-2], shape[-2:], a.shape[-1]
    x, y = (z.reshape((1,) * (len(shape) + 1 - z.ndim) + z.shape) for z in (a, b))
    if x.shape[len(lead) + 1] != 1 or y.shape[len(lead)] != 1:
        return None
    x, y = np.broadcast_to(x, (*lead, m, 1, k)), np.broadcast_to(y, (*lead, 1, n, k))
    return x.reshape(-1, m, k), y.reshape(-1, n, k), m, n


def _products(device: Device, i: Instruction, a: Codes, b: Codes, c: Codes) -> Codes:
    """a (batch, M, K), b (batch, N, K), c (batch, M, N): codes of d."""
    m, n = _GRID * i.m, _GRID * i.n
    if c.shape[1] > m:
        return np.concatenate([_products(device, i, a[:, s], b, c[:, s]) for s in (slice(m), slice(m, None))], 1)
    if c.shape[2] > n:
        return np.concatenate([_products(device, i, a, b[:, s], c[..., s]) for s in (slice(n), slice(n, None))], 2)
    each = 4 * (a[0].size + b[0].size + 2 * c[0].size)  # bytes, at most some times as many
    some = max(1, _AT_ONCE // each)
    parts = [_launch(device, i, *(x[n : n + some] for x in (a, b, c))) for n in range(0, len(a), some)]
    return np.concatenate(parts)


def _diagonals(device: Device, i: Instruction, a: Codes, b: Codes, c: Codes) -> Codes:
    """a, b (outputs, K), c (outputs,): one output after another on the diagonals of tiles."""
    count, side = len(c), min(i.m, i.n)
    a, b, c = (_padded(x, 0, side).reshape(-1, side, *x.shape[1:]) for x in (a, b, c))
    square = np.zeros((len(c), side, side), c.dtype)
    at = np.arange(side)
    square[:, at, at] = c
    found: Codes = _products(device, i, a, b, square)[:, at, at].ravel()[:count]
    return found


def _launch(device: Device, i: Instruction, a: Codes, b: Codes, c: Codes) -> Codes:
    batch, m, n = c.shape
    a, b = _padded(a, 1, i.m), _padded(b, 1, i.n)
    c = _padded(_padded(c, 1, i.m), 2, i.n)
    groups, rows, columns, steps = i.groups, a.shape[1] // i.m, b.shape[1] // i.n, a.shape[2] // i.tile("a")[1]
    if steps > 1 and i.c != i.d:
        raise InputError(f"{i.name} adds to c of {i.c} and makes {i.d}: it cannot be chained beyond K = {i.k}.")
    if groups > 1:  # a warp computes so many tiles: of a batch
        a, b, c = (_padded(x, 0, groups) for x in (a, b, c))
    words = [_tiled(x, i, operand) for x, operand in zip((a, b, c), "abc", strict=True)]
    size = len(a) // groups * rows * columns * i.words("d")
    grid = (len(a) // groups, columns, rows)
    d = device.run(kernel(i), grid, i.threads, words, size, [steps])
    tiles = unpack(d.reshape(-1, i.words("d")), i, "d").reshape(-1, rows, columns, groups, i.m, i.n)
    codes = tiles.transpose(0, 3, 1, 4, 2, 5).reshape(-1, rows * i.m, columns * i.n)
    return np.asarray(codes[:batch, :m, :n], code_dtype(TYPES[i.d]))


def _tiled(x: Codes, i: Instruction, operand: str) -> npt.NDArray[np.uint32]:
    """Codes (batch, rows, columns) as words of tiles: (batch, tile rows, tile columns), of groups of the batch."""
    height, width = i.tile(operand)
    _, rows, columns = x.shape
    tiles = x.reshape(-1, i.groups, rows // height, height, columns // width, width).transpose(0, 2, 4, 1, 3, 5)
    return pack(np.ascontiguousarray(tiles), i, operand)


def _padded(x: Codes, axis: int, multiple: int) -> Codes:
    """Zeros behind, up to a multiple along an axis: +0, which adds nothing to any sum."""
    more = -x.shape[axis] % multiple
    return x if not more else np.pad(x, [(0, more * (n == axis % x.ndim)) for n in range(x.ndim)])


# --- trust ------------------------------------------------------------------------------------------------------------
@cache
def check_placement(device: Device, i: Instruction) -> None:
    """Sums of small integers over several tiles and steps, blocks scaled by powers of two: any unit adds them exactly,
    so a misplaced element or scale shows.
    """
    steps = 2 if i.c == i.d else 1
    batch, m, n, k = 2 * i.groups, i.m + 3, 2 * i.n + 3, steps * i.k  # fewer tile rows than columns
    a, b = _below(7, (batch, m, k), 1) - 3, _below(5, (batch, n, k), 2) - 2
    c = _below(101, (batch, m, n), 3) - 50
    x, y = _integers(a, i.a), _integers(b, i.b)
    if i.scale:
        scale_a, scale_b = (1 << _below(7, (batch, rows, steps * i.scales), seed) for rows, seed in ((m, 4), (n, 5)))
        x, y = (_rows(z, encode(s, TYPES[i.scale]), i) for z, s in ((x, scale_a), (y, scale_b)))
        a, b = (z * np.repeat(s, i.scale_block, -1) for z, s in ((a, scale_a), (b, scale_b)))
    wanted = encode(a @ b.swapaxes(1, 2) + c, TYPES[i.d])
    found = _launch(device, i, x, y, _integers(c, i.c))
    if wrong := int(np.count_nonzero(found != wanted)):
        unseen = " (no GPU has run this kernel before)" if never_run(i) else ""
        raise DeviceError(f"{i.name}: {wrong} of {found.size} sums of small integers are wrong: elements are "
                          f"misplaced{unseen}")  # fmt: skip


def _below(limit: int, shape: tuple[int, ...], seed: int) -> npt.NDArray[np.int64]:
    """Without a period, which a layout could share."""
    return (bits_from(seed, 0, math.prod(shape)) % limit).astype(np.int64).reshape(shape)


def _integers(x: npt.NDArray[np.int64], type_name: str) -> Codes:
    codes = np.asarray(encode(x, TYPES[type_name]))
    return codes << 13 if type_name == "tf32" else codes
