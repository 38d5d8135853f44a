"""Arrays of other libraries as numsim Arrays and back, by their bits: without a copy where the bits allow.

``from_numpy``, ``from_torch`` and ``from_dlpack`` take the codes as they stand, NaN payloads and all; nothing is
rounded. The Array then shares its memory with the other object: what is written there shows here. Codes are copied
where they are byte-swapped, on a GPU, conjugated or negated lazily, or wider than the format's own.
``Array.to_numpy``, ``Array.to_torch`` and ``Array.__dlpack__`` are the way back. To round numbers instead:
``numsim.array(x, format)``.

fp64, fp32, fp16 : ``float64``, ``float32``, ``float16`` of NumPy and torch.
bf16, e5m2, e4m3fn, e5m2fnuz, e4m3fnuz, e8m0 : ``bfloat16`` and ``float8_...`` of ml_dtypes and torch.
e4m3_ieee, e3m4, e4m3b11fnuz, e3m2, e2m3, e2m1 : ``float8_...``, ``float6_...``, ``float4_...`` of ml_dtypes, a byte a
    number; none of torch.
all others : no dtype; ``x.codes`` are their bits.

DLPack carries unsigned codes, of every format.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from numsim.codes import code_dtype
from numsim.errors import FormatError, InputError, UnavailableError, short
from numsim.formats import Format, get_format
from numsim.values import from_torch as numpy_of_torch

if TYPE_CHECKING:
    from numsim.array import Array

_FLOATS = {"fp64": "float64", "fp32": "float32", "fp16": "float16"}
_IN_TORCH = {
    **_FLOATS, "bf16": "bfloat16", "e5m2": "float8_e5m2", "e4m3fn": "float8_e4m3fn", "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3fnuz": "float8_e4m3fnuz", "e8m0": "float8_e8m0fnu",
}  # fmt: skip
_IN_ML_DTYPES = {
    **{k: v for k, v in _IN_TORCH.items() if k not in _FLOATS},
    "e4m3_ieee": "float8_e4m3", "e3m4": "float8_e3m4", "e4m3b11fnuz": "float8_e4m3b11fnuz",
    "e3m2": "float6_e3m2fn", "e2m3": "float6_e2m3fn", "e2m1": "float4_e2m1fn",
}  # fmt: skip


def from_numpy(x: Any, format: Any = None) -> Array:
    """A NumPy or ml_dtypes array as an Array of the same bits; nothing is rounded.

    Rules: every code is kept, NaN payloads and -0 too. Memory is shared unless ``x`` is byte-swapped or its codes are
    wider than the format's own.
    Parameters: ``x``, an array of a floating dtype that is a format, or of unsigned integers: then they are codes of
    ``format``, which is needed. Raises ``InputError`` for all others. Cost: none without a copy.

    >>> x = np.array([0.5, -2.0], np.float16)
    >>> a = from_numpy(x)
    >>> a, np.shares_memory(a.codes, x)
    (numsim.array([0.5, -2.0], 'fp16'), True)
    >>> from_numpy(np.array([0x3F, 0x40], np.uint8), "binary8p3se")
    numsim.array([0.875, 1.0], 'binary8p3se')
    """
    from numsim.array import Array

    if not isinstance(x, (np.ndarray, np.generic)) or isinstance(x, np.ma.MaskedArray):
        raise InputError(f"{short(x)} ({type(x).__name__}) is no NumPy array. Example: numsim.array(x, 'fp16')")
    array = np.asarray(x)
    if array.dtype.kind == "u":
        if format is None:
            raise InputError(f"codes of dtype {array.dtype}: of which format? Example: numsim.from_numpy(x, 'fp16')")
        return Array(array.astype(array.dtype.newbyteorder("="), copy=False), format, "codes of a NumPy array")
    own = _format_of(array.dtype)
    if format is not None and get_format(format) != own:
        raise InputError(f"an array of {own}, not of {get_format(format)}. Example: numsim.array(x, {format!r}) rounds")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return Array(native.view(code_dtype(own)), own, "bits of a NumPy array")


def _format_of(dtype: np.dtype[Any]) -> Format:
    try:
        found = get_format(dtype)
    except FormatError:
        found = None
    if found is None or found.code_bytes != dtype.itemsize:
        raise InputError(
            f"an array of dtype {dtype}: its numbers are those of no format. Example: numsim.array(x, 'fp32') rounds"
        )
    return found


def from_torch(x: Any, format: Any = None) -> Array:
    """A torch tensor as an Array of the same bits; nothing is rounded.

    As ``from_numpy``; memory is shared with a tensor on the CPU that is not lazily negated, and gradients stay behind.
    torch is not imported: no tensor is without it. Raises ``InputError`` for what is no dense tensor of a format.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is None or not isinstance(x, tensor):
        raise InputError(f"{short(x)} ({type(x).__name__}) is no torch tensor. Example: numsim.array(x, 'fp16')")
    return from_numpy(numpy_of_torch(x), format)


def from_dlpack(x: Any, format: Any = None) -> Array:
    """An object with ``__dlpack__`` (an array of any library, on the CPU) as an Array of the same bits.

    As ``from_numpy``. DLPack knows no 8-bit floats, and NumPy not its bfloat16: let the other library view those as
    unsigned integers first. Raises ``InputError`` for what NumPy cannot take.

    >>> from_dlpack(np.array([0x7E], np.uint8), "e4m3")
    numsim.array([448.0], 'e4m3fn')
    """
    try:
        array = np.from_dlpack(x)
    except Exception as error:  # each library has its own
        raise InputError(
            f"{short(x)} ({type(x).__name__}) gives NumPy no array by DLPack: {short(str(error))}. "
            "Example: numsim.from_dlpack(x.view(torch.uint16), 'bf16')"
        ) from None
    return from_numpy(array, format)


def to_numpy(x: Array) -> npt.NDArray[Any]:
    """The codes as the NumPy or ml_dtypes dtype of the same bits; memory is shared.

    Raises ``InputError`` where no dtype is the format's. (``x.values`` are float64 for every format.)
    """
    if name := _FLOATS.get(_name(x.format)):
        return x.codes.view(name)
    if name := _IN_ML_DTYPES.get(_name(x.format)):
        import ml_dtypes

        return x.codes.view(getattr(ml_dtypes, name))
    raise InputError(f"{x.format} is no dtype of NumPy or ml_dtypes. Example: x.values, or x.codes for the bits")


def to_torch(x: Array) -> Any:
    """The codes as a torch tensor of the same bits; memory is shared unless it is read-only or runs backwards.

    Raises ``InputError`` where no torch dtype is the format's, ``UnavailableError`` without torch.
    """
    name = _IN_TORCH.get(_name(x.format))
    if name is None:
        raise InputError(f"{x.format} is no dtype of torch. Example: torch.from_numpy(x.values), or x.codes")
    try:
        import torch
    except ImportError:
        raise UnavailableError("torch is not installed. Example: python -m pip install torch") from None
    if not hasattr(torch, name):
        raise UnavailableError(f"this torch ({torch.__version__}) has no {name}: a newer one is needed")
    codes = x.codes
    if not codes.flags.writeable or any(step < 0 for step in codes.strides):
        codes = codes.copy()  # torch has no such tensors
    return torch.from_numpy(codes).view(getattr(torch, name))


def _name(format: Format) -> str:
    """The name that stands for the bits; formats of one's own have none."""
    return format.name if format.is_named else ""
