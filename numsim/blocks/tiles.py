"""Arrays as matrices of tiles, and numbers as FP32: what every way to quantise begins with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import Array
from numsim.blocks.formats import BlockFormat
from numsim.errors import InputError, short
from numsim.formats import FP32
from numsim.host import check_ieee
from numsim.rounding import Policy, convert, encode
from numsim.values import as_values, from_torch

Floats = npt.NDArray[np.float32]


class Tiles:
    """An array as a matrix in which every block is a tile of ``rows`` x ``columns``, and back.

    Nothing moves: the matrix has the numbers in the array's own C order. Blocks along the last axis are tiles one high;
    along another axis they are tiles one wide, in a matrix that has all later axes in its columns.
    """

    def __init__(self, shape: tuple[int, ...], format: BlockFormat, axis: int) -> None:
        lies = format.block is not None and len(format.block) == 1
        if not lies and axis != -1:
            raise InputError(f"axis={short(axis)}: {format} has blocks on its own axes. Example: leave axis out")
        whole = isinstance(axis, (int, np.integer)) and not isinstance(axis, bool)
        if lies and (not whole or not -len(shape) <= axis < len(shape)):
            allowed = f"allowed are {-len(shape)} to {len(shape) - 1}" if shape else f"{format} needs an axis"
            raise InputError(f"axis={short(axis)} of an array of shape {shape}: {allowed}. Example: axis=-1")
        self.shape = shape
        self.scales_shape: tuple[int, ...] = ()
        if format.block is None:
            self.rows, self.columns = format.tiles(shape)
            self.size, self.grid = (1, math.prod(shape)), (1, 1)  # one scale even where there are no numbers
            return
        if lies:
            place = axis % len(shape)
            before, length, after = shape[:place], shape[place], shape[place + 1 :]
            self.rows, self.columns = format.tiles((*before, *after, length), axis)
            self.scales_shape = (*before, length // self.columns, *after)
            self.size = (math.prod(before), length)
            if math.prod(after) != 1:
                self.rows, self.columns = self.columns, self.rows
                self.size = (math.prod(before) * length, math.prod(after))
        else:
            self.rows, self.columns = format.tiles(shape)
            self.scales_shape = (*shape[:-2], shape[-2] // self.rows, shape[-1] // self.columns)
            self.size = (math.prod(shape[:-1]), shape[-1])
        self.grid = (self.size[0] // self.rows, self.size[1] // self.columns)

    def matrix(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return in_c_order(x).reshape(self.size)

    def back(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return matrix.reshape(self.shape)

    def scales_back(self, grid: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return grid.reshape(self.scales_shape)

    def spread(self, scales: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A number for each block, in the shape of the scales, repeated for each element of the matrix."""
        return scales.reshape(self.grid).repeat(self.rows, axis=0).repeat(self.columns, axis=1)


def in_c_order(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, or a copy where it does not lie in C order; of a large matrix piece by piece, for the caches' sake."""
    if x.flags.c_contiguous or x.ndim != 2 or x.size < 1 << 16:
        return np.ascontiguousarray(x)
    copy = np.empty(x.shape, x.dtype)
    for i in range(0, x.shape[0], 64):
        for j in range(0, x.shape[1], 256):
            copy[i : i + 64, j : j + 256] = x[i : i + 64, j : j + 256]
    return copy


def as_fp32(values: Any) -> Floats:
    """Numbers as a float32 array, rounded once to nearest; a torch tensor's are copied to the CPU.

    Raises ``InputError`` for what is no number, ``UnavailableError`` where the CPU flushes subnormal numbers.
    """
    check_ieee()
    values = from_torch(values)
    if type(values) is np.ndarray and values.dtype == np.float32:
        return values
    if isinstance(values, Array):
        codes = convert(values.codes, values.format, FP32, Policy())
    else:
        as_values(values)  # refuses what is no number
        codes = np.asarray(encode(values, FP32))
    return codes.view(np.float32)


def one_fp32(name: str, x: Any, example: str) -> float:
    """A single number, rounded to FP32; refuses texts and truth values, which are mistakes here."""
    try:
        found = None if isinstance(x, (str, bytes, bool, np.bool_)) else as_fp32(x)
    except InputError:
        found = None
    if found is None or found.shape or getattr(x, "dtype", None) == np.bool_:
        raise InputError(f"{name}={short(x)}: a number is needed. Example: {example}")
    return float(found)
