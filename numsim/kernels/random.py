"""The generator of ``numsim.random``, in 32-bit lanes."""

from __future__ import annotations

import numpy as np

from numsim import random
from numsim.kernels._jit import part


@part
def bits(counter, key0, key1):  # type: ignore[no-untyped-def]
    """32 random bits for the low 32 bits of a counter and the two keys of its block (``numsim.random.keys``).

    Every operation is wrapped: numba would go on in 64 bits, which gives other bits and half the speed.
    """
    x = np.uint32(counter ^ key0)
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(15))) * np.uint32(0x846CA68B))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
    x = np.uint32(x ^ key1)
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ np.uint32(x >> np.uint32(16)))


TWINS = [(random.bits, bits)]
