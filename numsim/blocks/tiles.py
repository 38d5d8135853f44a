"""Arrays as matrices of tiles, and numbers as FP32: what every way to quantise begins with."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import Array
from numsim.blocks.formats import BlockFormat
from numsim.errors import InputError, short
from numsim.formats import FP32
from numsim.host import check_ieee
from numsim.random import Draw, bits_from
from numsim.rounding import Policy, convert, encode
from numsim.values import as_values

Floats = npt.NDArray[np.float32]


class Tiles:
    """An array as a matrix in which every block is a tile of ``rows`` x ``columns``, and back."""

    def __init__(self, shape: tuple[int, ...], format: BlockFormat, axis: int) -> None:
        lies = format.block is not None and len(format.block) == 1
        if not lies and axis != -1:
            raise InputError(f"axis={short(axis)}: {format} has blocks on its own axes. Example: leave axis out")
        whole = isinstance(axis, (int, np.integer)) and not isinstance(axis, bool)
        if lies and (not whole or not -len(shape) <= axis < len(shape)):
            allowed = f"allowed are {-len(shape)} to {len(shape) - 1}" if shape else f"{format} needs an axis"
            raise InputError(f"axis={short(axis)} of an array of shape {shape}: {allowed}. Example: axis=-1")
        self.axis, self.shape = axis, shape
        self.moved = (*np.delete(shape, axis).tolist(), shape[axis]) if lies else shape
        self.rows, self.columns = format.tiles(self.moved, axis)
        self.scales_moved: tuple[int, ...] = ()
        if format.block is None:
            self.size, self.grid = (1, math.prod(shape)), (1, 1)  # one scale even where there are no numbers
            return
        self.size = (math.prod(self.moved[:-1]), self.moved[-1])
        self.grid = (self.size[0] // self.rows, self.size[1] // self.columns)
        high = self.moved[:-1] if lies else (*self.moved[:-2], self.moved[-2] // self.rows)
        self.scales_moved = (*high, self.grid[1])

    @property
    def scales_shape(self) -> tuple[int, ...]:
        return np.moveaxis(np.empty(self.scales_moved), -1, self.axis).shape if self.scales_moved else ()

    def matrix(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return (np.moveaxis(x, self.axis, -1) if self.scales_moved else x).reshape(self.size)

    def back(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        x = matrix.reshape(self.moved)
        return np.moveaxis(x, -1, self.axis) if self.scales_moved else x

    def scales_back(self, grid: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self.scales_moved:
            return grid.reshape(())
        return np.moveaxis(grid.reshape(self.scales_moved), -1, self.axis)

    def scales_grid(self, scales: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A number for each block, as given by ``scales_shape``, in the order of the matrix."""
        return (np.moveaxis(scales, self.axis, -1) if self.scales_moved else scales).reshape(self.grid)

    def spread(self, scales: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """... repeated for each element of the matrix."""
        return self.scales_grid(scales).repeat(self.rows, axis=0).repeat(self.columns, axis=1)


def as_fp32(values: Any) -> Floats:
    """Numbers as a float32 array, rounded once to nearest; a torch tensor's are copied to the CPU.

    Raises ``InputError`` for what is no number, ``UnavailableError`` where the CPU flushes subnormal numbers.
    """
    check_ieee()
    if type(values).__module__ == "torch":  # also what NumPy has no type for, and what has a gradient
        values = values.detach().cpu().float().numpy()
    if type(values) is np.ndarray and values.dtype == np.float32:
        return values
    if isinstance(values, Array):
        codes = convert(values.codes, values.format, FP32, Policy())
    else:
        as_values(values)  # refuses what is no number
        codes = np.asarray(encode(values, FP32))
    return codes.view(np.float32)


def in_order(draw: Draw | None, tiles: Tiles) -> Draw | None:
    """Random bits in the order of the matrix: element i in C order of the array keeps its draw i."""
    if draw is None or not tiles.scales_moved or tiles.axis in (-1, len(tiles.shape) - 1):
        return draw
    given = draw.given
    if given is None:
        given = bits_from(draw.seed, draw.position, math.prod(tiles.shape)) >> np.uint32(32 - draw.r)
    return replace(draw, given=np.ascontiguousarray(tiles.matrix(given.reshape(tiles.shape))).reshape(-1))
