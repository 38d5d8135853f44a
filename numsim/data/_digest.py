"""The digest that names the digits."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def digits_digest(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> str:
    """SHA-256 (hexadecimal) of the bytes of the images, row by row, followed by those of the labels."""
    if images.dtype != np.uint8 or labels.dtype != np.uint8:
        raise TypeError(f"images and labels must be uint8, not {images.dtype} and {labels.dtype}")
    return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
