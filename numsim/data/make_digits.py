"""Write digits.npz from scikit-learn's copy of the UCI digits: ``python -m numsim.data.make_digits``.

Only needed to make the file anew; it takes scikit-learn, which numsim itself does not need.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from numsim.data._digest import digits_digest
from numsim.files import npz_bytes, write_atomic


def digits_from_sklearn() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """scikit-learn's digits as uint8 arrays: images (1797, 8, 8) and labels (1797,), order unchanged."""
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    images = np.asarray(bunch.images).astype(np.uint8)
    labels = np.asarray(bunch.target).astype(np.uint8)
    if not (np.array_equal(images, bunch.images) and np.array_equal(labels, bunch.target)):
        raise ValueError("the digits are not whole numbers from 0 to 255")
    return images, labels


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m numsim.data.make_digits", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("digits.npz"), help="file to write")
    output: Path = parser.parse_args(argv).output
    images, labels = digits_from_sklearn()
    size = write_atomic(output, npz_bytes({"images": images, "labels": labels})).stat().st_size
    print(f"{output.name}: {len(images)} images, {size} bytes, sha256 of the arrays {digits_digest(images, labels)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
