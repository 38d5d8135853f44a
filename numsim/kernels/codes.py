"""Twin of ``numsim.codes``: many codes as the float64 numbers that they stand for. Why it is exact: ``_reading.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import codes as reference
from numsim.codes import Codes
from numsim.formats import Format
from numsim.kernels import _pool
from numsim.kernels._reading import read, reader, reads
from numsim.kernels._rounding_plan import as_read_only


def suits(format: Format) -> bool:
    return reads(format)


def decode(codes: Codes, format: Format) -> npt.NDArray[np.float64]:
    flat, out, numbers = as_read_only(codes), np.empty(codes.size), reader(format, False)
    _pool.over_chunks(out.size, lambda i, j: read(flat[i:j], out[i:j], numbers))
    return out.reshape(codes.shape)


TWINS: list[tuple[Any, Any]] = [(reference.decode, decode)]
