"""numsim: see and check, bit for bit, what number formats do to numbers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from numsim import errors, formats, kernels, random
from numsim._version import __version__
from numsim.array import Array, array, from_codes
from numsim.array_files import load, save
from numsim.codebooks import Codebook, get_format, list_codebooks
from numsim.codes import classify, decode, exact, neighbours, pack, ulp, unpack
from numsim.decimals import to_decimal
from numsim.elementwise import (
    abs,
    copysign,
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    log_b,
    maximum,
    maximum_magnitude,
    maximum_magnitude_number,
    maximum_number,
    minimum,
    minimum_magnitude,
    minimum_magnitude_number,
    minimum_number,
    next_down,
    next_up,
    not_equal,
    remainder,
    round_to_integral,
    scale_b,
    to_int,
    total_order,
    unordered,
)
from numsim.errors import (
    FormatError,
    InputError,
    NumsimError,
    RangeError,
    RecordError,
    UnavailableError,
    UndefinedError,
)
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
    list_formats,
)
from numsim.functions import cos, erf, exp, exp2, log, log2, rsqrt, sigmoid, sin, tanh
from numsim.interop import from_dlpack, from_numpy, from_torch
from numsim.operations import add, div, fma, mul, sqrt, sub
from numsim.reductions import cumsum, dot, matmul, mean, norm, sum
from numsim.rounding import encode, round_to
from numsim.traces import Event, SumTrace, Trace, load_trace, trace_sum

_ROOMS = ("blocks", "data", "experiments", "machines", "optimizers", "reveal", "scaling", "tensorcore", "testing")

if TYPE_CHECKING:
    from numsim import blocks, data, experiments, machines, optimizers, reveal, scaling, tensorcore, testing
else:

    def __getattr__(name):
        """Rooms are loaded when they are first used: ``import numsim`` stays light."""
        if name in _ROOMS:
            return import_module(f"numsim.{name}")
        raise AttributeError(f"module 'numsim' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_ROOMS})


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
    "Codebook",
    "Event",
    "Events",
    "Explanation",
    "Format",
    "FormatError",
    "InputError",
    "NumsimError",
    "RangeError",
    "RecordError",
    "SumTrace",
    "Trace",
    "UnavailableError",
    "UndefinedError",
    "__version__",
    "abs",
    "add",
    "array",
    "blocks",
    "classify",
    "copysign",
    "cos",
    "cumsum",
    "data",
    "decode",
    "div",
    "dot",
    "encode",
    "equal",
    "erf",
    "errors",
    "exact",
    "exp",
    "exp2",
    "experiments",
    "explain",
    "fma",
    "formats",
    "from_codes",
    "from_dlpack",
    "from_numpy",
    "from_torch",
    "get_format",
    "greater",
    "greater_equal",
    "kernels",
    "less",
    "less_equal",
    "list_codebooks",
    "list_formats",
    "load",
    "load_trace",
    "log",
    "log2",
    "log_b",
    "machines",
    "matmul",
    "maximum",
    "maximum_magnitude",
    "maximum_magnitude_number",
    "maximum_number",
    "mean",
    "minimum",
    "minimum_magnitude",
    "minimum_magnitude_number",
    "minimum_number",
    "mul",
    "neighbours",
    "next_down",
    "next_up",
    "norm",
    "not_equal",
    "optimizers",
    "pack",
    "random",
    "remainder",
    "reveal",
    "round_to",
    "round_to_integral",
    "rsqrt",
    "save",
    "scale_b",
    "scaling",
    "sigmoid",
    "sin",
    "sqrt",
    "sub",
    "sum",
    "tanh",
    "tensorcore",
    "testing",
    "to_decimal",
    "to_int",
    "total_order",
    "trace_sum",
    "ulp",
    "unordered",
    "unpack",
]
