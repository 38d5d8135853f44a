"""This CPU through numpy: its own float16, float32 and float64, and the small formats of ml_dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import host
from numsim.codes import code_dtype
from numsim.formats import Format
from numsim.machines.library import Library
from numsim.machines.question import MMA, Question

_NUMPY: dict[str, np.dtype[Any]] = {
    "fp64": np.dtype(np.float64),
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
}
_ML_DTYPES = {
    "bf16": "bfloat16",
    "e5m2": "float8_e5m2",
    "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3b11fnuz": "float8_e4m3b11fnuz",
    "e3m4": "float8_e3m4",
    "e4m3_ieee": "float8_e4m3",
    "e8m0": "float8_e8m0fnu",
    "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn",
    "e2m1": "float4_e2m1fn",
}
_UFUNCS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}


class Numpy(Library):
    """numpy's float16, float32 and float64."""

    name = "numpy"
    title = "this CPU through numpy"
    packages: tuple[str, ...] = ("numpy",)

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return _NUMPY

    def load(self, codes: npt.NDArray[Any], format: Format) -> npt.NDArray[Any]:
        return np.array(codes, code_dtype(format), order="C").view(self.dtypes[format.name])

    def store(self, array: npt.NDArray[Any], format: Format) -> npt.NDArray[Any]:
        return np.array(array, order="C").view(code_dtype(format))

    def convert(self, array: npt.NDArray[Any], format: Format) -> npt.NDArray[Any]:
        return array.astype(self.dtypes[format.name])

    def converts(self, source: Format, target: Format) -> bool:
        return np.can_cast(self.dtypes[source.name], self.dtypes[target.name], "unsafe")

    def apply(self, operation: str, *arrays: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(_UFUNCS[operation](*arrays))

    def multiply(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(np.matmul(a, b))

    def amax(self, array: npt.NDArray[Any], format: Format) -> npt.NDArray[Any]:
        return np.asarray(np.max(np.abs(array), axis=-1))

    def running(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # stores, so rounds, every partial sum; np.add.reduce would add pairwise and in wider registers
        return np.asarray(np.add.accumulate(array, axis=0, dtype=array.dtype))


class MlDtypes(Numpy):
    """The types of ml_dtypes (what JAX and TensorFlow store), which compute in float32 and round."""

    name = "ml_dtypes"
    title = "the small formats of ml_dtypes"
    packages = ("ml_dtypes", "numpy")

    def missing(self) -> str:
        return "" if host.version("ml_dtypes") else "ml_dtypes is not installed (pip install ml_dtypes)"

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        return {**_NUMPY, **_ml_dtypes()}

    @property
    def own(self) -> tuple[str, ...]:
        return tuple(_ml_dtypes())

    def _why_not(self, q: Question) -> str:
        if q.operation == MMA:
            return "ml_dtypes has no matrix product that stays in a format: it gives float32 numbers"
        return super()._why_not(q)


@lru_cache(maxsize=1)
def _ml_dtypes() -> dict[str, np.dtype[Any]]:
    """Those of the types that the installed version has."""
    import ml_dtypes

    return {f: np.dtype(getattr(ml_dtypes, name)) for f, name in _ML_DTYPES.items() if hasattr(ml_dtypes, name)}
