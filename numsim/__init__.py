"""numsim: see and check, bit for bit, what number formats do to numbers."""

from __future__ import annotations

from numsim import errors, formats, kernels, random, tensorcore
from numsim._version import __version__
from numsim.array import Array, array, from_codes
from numsim.codes import classify, decode, exact, neighbours, pack, ulp, unpack
from numsim.errors import FormatError, InputError, NumsimError, RangeError, RecordError, UnavailableError
from numsim.events import Events
from numsim.explain import Explanation, explain
from numsim.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E3M4,
    E4M3,
    E4M3_IEEE,
    E4M3B11FNUZ,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FP16,
    FP32,
    FP64,
    TF32,
    UE4M3,
    Format,
    get_format,
    list_formats,
)
from numsim.operations import add, cumsum, div, dot, fma, matmul, mul, sqrt, sub, sum
from numsim.rounding import encode, round_to
from numsim.traces import SumTrace, trace_sum

__all__ = [
    "BF16",
    "E2M1",
    "E2M3",
    "E3M2",
    "E3M4",
    "E4M3",
    "E4M3B11FNUZ",
    "E4M3FNUZ",
    "E4M3_IEEE",
    "E5M2",
    "E5M2FNUZ",
    "E8M0",
    "FP16",
    "FP32",
    "FP64",
    "TF32",
    "UE4M3",
    "Array",
    "Events",
    "Explanation",
    "Format",
    "FormatError",
    "InputError",
    "NumsimError",
    "RangeError",
    "RecordError",
    "SumTrace",
    "UnavailableError",
    "__version__",
    "add",
    "array",
    "classify",
    "cumsum",
    "decode",
    "div",
    "dot",
    "encode",
    "errors",
    "exact",
    "explain",
    "fma",
    "formats",
    "from_codes",
    "get_format",
    "kernels",
    "list_formats",
    "matmul",
    "mul",
    "neighbours",
    "pack",
    "random",
    "round_to",
    "sqrt",
    "sub",
    "sum",
    "tensorcore",
    "trace_sum",
    "ulp",
    "unpack",
]
