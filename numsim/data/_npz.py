"""Write .npz files whose bytes depend on the arrays alone (no times, no pickle)."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip archive can state


def write_npz(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> int:
    """Write ``arrays`` to ``path`` as a compressed .npz file and return its size in bytes.

    ``numpy.savez_compressed`` stamps each member with the time of writing; here the date is fixed and the members are
    sorted by name, so that writing the same arrays again gives the same file (with the same zlib library: another
    version may compress differently; the arrays are the same in any case).
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        for name in sorted(arrays):
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(arrays[name]), version=(1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=_FIXED_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # "Unix", whatever the system, so that the attributes below mean the same
            info.external_attr = 0o644 << 16
            writer.writestr(info, member.getvalue(), compresslevel=9)
    data = archive.getvalue()
    path.write_bytes(data)
    return len(data)


def digits_digest(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> str:
    """SHA-256 (hexadecimal) of the bytes of the images, row by row, followed by those of the labels."""
    if images.dtype != np.uint8 or labels.dtype != np.uint8:
        raise TypeError(f"images and labels must be uint8, not {images.dtype} and {labels.dtype}")
    return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
