"""What each library of ``table.py`` offers: the same work, as its users would write it.

Every method takes a case (a format, or "one to another") and arrays, and yields a name beside the library's, a job, and
how the job's result becomes float64 values (None where its random numbers are its own). Who does not offer a format, or
has another format of that name, yields nothing. numsim's first row is the one that others are compared with.
"""

from __future__ import annotations

import math
import platform
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import ClassVar

import ml_dtypes
import numpy as np

import numsim
from numsim import arithmetic, host
from numsim.rounding import Policy
from tests.benchmarks.bench_matmul import rank_one, rank_one_in_place

IEEE = {"bf16": (8, 7), "fp16": (5, 10), "e5m2": (5, 2)}  # exponent and fraction bits, where all top codes are IEEE's
TWICE = "from float64 it rounds twice, through float32"
OTHER_SUM = "another sum: a wider accumulator, or another order"


def wide(x):
    return np.asarray(x).astype(np.float64)


def uniform(count):
    """16 random bits a number, the same for all who take them."""
    return np.random.default_rng(7).integers(0, 1 << 16, count).astype(np.uint16)


class Numsim:
    def values(self, case):
        return partial(numsim.decode, format=case.split(" to ")[-1])

    def round(self, case, x):
        yield "encode", lambda: numsim.encode(x, case), self.values(case)
        out = np.empty_like(x)
        yield "round_to, out=", lambda: numsim.round_to(x, case, out=out), wide
        yield "encode, up", lambda: numsim.encode(x, case, rounding="up"), None

    def stochastic(self, case, x):
        given = uniform(x.size)
        chance = {"rounding": "stochastic", "sr_bits": 16}
        yield "given bits", lambda: numsim.encode(x, case, random_bits=given, **chance), self.values(case)
        yield "seed", lambda: numsim.encode(x, case, seed=1, **chance), None

    def decode(self, case, codes, *_):
        yield "", lambda: numsim.decode(codes, case), wide

    def convert(self, case, codes):
        source, target = map(numsim.get_format, case.split(" to "))
        yield "", lambda: arithmetic.convert(codes, source, target, Policy()), self.values(case)

    def operation(self, name, case, a, b):
        x, y = (numsim.from_codes(c, case) for c in (a, b))
        function = getattr(numsim, name)
        yield "", lambda: function(x, y), lambda r: r.values
        yield "up", lambda: function(x, y, rounding="up"), None
        yield "stochastic", lambda: function(x, y, rounding="stochastic", seed=1), None

    def add(self, case, a, b):
        return self.operation("add", case, a, b)

    def mul(self, case, a, b):
        return self.operation("mul", case, a, b)

    def exp(self, case, a, *_):
        x = numsim.from_codes(a, case)
        yield "", lambda: numsim.exp(x), lambda r: r.values
        yield "stochastic", lambda: numsim.exp(x, rounding="stochastic", seed=1), None

    def sum(self, case, a):
        x = numsim.from_codes(a, case)
        yield "", lambda: numsim.sum(x, axis=1), lambda r: r.values
        yield "pairwise", lambda: numsim.sum(x, axis=1, order="pairwise"), None
        yield "Kahan", lambda: numsim.sum(x, axis=1, order="kahan"), None

    def exact_sum(self, case, a):
        x = numsim.from_codes(a, case)
        yield "", lambda: numsim.sum(x, axis=1, order="exact"), lambda r: r.values

    def matmul(self, case, a, b):
        x, y = (numsim.from_codes(c, case) for c in (a, b))
        yield "", lambda: numsim.matmul(x, y), lambda r: r.values
        yield "up", lambda: numsim.matmul(x, y, rounding="up"), None


class NumPy:
    """Arrays with a type for the format: NumPy's own here, ml_dtypes' below."""

    DTYPES: ClassVar = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
    REASONS: ClassVar = {"exp": "not correctly rounded", "sum": OTHER_SUM}

    def typed(self, case, *codes):
        return [c.view(self.DTYPES[case]) for c in codes] if case in self.DTYPES else None

    def round(self, case, x):
        if case in self.DTYPES:
            yield "", lambda: x.astype(self.DTYPES[case]), wide

    def decode(self, case, codes, *_):
        if x := self.typed(case, codes):
            yield "", lambda: x[0].astype(np.float64), wide

    def ufunc(self, function, case, *codes):
        if x := self.typed(case, *codes):
            yield "", lambda: function(*x), wide

    def add(self, case, a, b):
        return self.ufunc(np.add, case, a, b)

    def mul(self, case, a, b):
        return self.ufunc(np.multiply, case, a, b)

    def exp(self, case, a, *_):
        return self.ufunc(np.exp, case, a)

    def sum(self, case, a):
        if x := self.typed(case, a):
            yield "add.accumulate", lambda: np.add.accumulate(x[0], axis=1)[:, -1], wide
            yield "sum", lambda: np.sum(x[0], axis=1), wide

    def matmul(self, case, a, b):
        if x := self.typed(case, a, b):
            yield "loop over k", lambda: rank_one(*x), wide


class MlDtypes(NumPy):
    DTYPES: ClassVar = {"bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
    REASONS: ClassVar = {"round": TWICE, "exp": "not correctly rounded", "sum": OTHER_SUM}

    def convert(self, case, codes):
        types = NumPy.DTYPES | self.DTYPES
        source, target = (types[name] for name in case.split(" to "))
        x = codes.view(source)
        yield "", lambda: x.astype(target), wide


class Python:
    def exact_sum(self, case, a):
        if case == "fp64":
            x = a.view(np.float64).tolist()
            yield "math.fsum of lists", lambda: [math.fsum(row) for row in x], wide


class Torch:
    REASONS: ClassVar = {
        "round": f"{TWICE}; e4m3 saturates since torch 2.12 (numsim: overflow='saturate')",
        "convert": "e4m3 saturates since torch 2.12 (numsim: overflow='saturate')",
        "exp": "not correctly rounded",
        "mul": "e4m3 saturates since torch 2.12 (numsim: overflow='saturate')",
        "sum": OTHER_SUM,
        "matmul": "another sum: a float32 accumulator, rounded at the end",
    }

    def __init__(self):
        import torch

        self.torch = torch
        self.types = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn,
                      "e5m2": torch.float8_e5m2, "fp32": torch.float32, "fp64": torch.float64}  # fmt: skip

    def typed(self, case, *codes):
        return [self.torch.from_numpy(np.array(c)).view(self.types[case]) for c in codes]

    def values(self, x):
        return x.to(self.torch.float64).numpy()

    def round(self, case, x):
        tensor = self.torch.from_numpy(x)
        yield "", lambda: tensor.to(self.types[case]), self.values

    def decode(self, case, codes, *_):
        (x,) = self.typed(case, codes)
        yield "", lambda: x.to(self.torch.float64), self.values

    def convert(self, case, codes):
        source, target = case.split(" to ")
        (x,) = self.typed(source, codes)
        yield "", lambda: x.to(self.types[target]), self.values

    def add(self, case, a, b):
        if not case.startswith("e"):  # float8 tensors do not add
            x, y = self.typed(case, a, b)
            yield "", lambda: x + y, self.values

    def mul(self, case, a, b):
        x, y = self.typed(case, a, b)
        yield "", lambda: x * y, self.values

    def exp(self, case, a, *_):
        if not case.startswith("e"):
            (x,) = self.typed(case, a)
            yield "", lambda: x.exp(), self.values

    def sum(self, case, a):
        (x,) = self.typed(case, a)
        yield "", lambda: x.sum(dim=1), self.values

    def matmul(self, case, a, b):
        if not case.startswith("e"):
            x, y = self.typed(case, a, b)
            yield "loop over k", lambda: rank_one_in_place(self.torch, x, y), self.values
            yield "@", lambda: x @ y, self.values


class Gfloat:
    def __init__(self):
        import gfloat
        from gfloat import formats

        self.gfloat = gfloat
        self.formats = {"bf16": formats.format_info_bfloat16, "fp16": formats.format_info_binary16,
                        "e4m3": formats.format_info_ocp_e4m3, "e5m2": formats.format_info_ocp_e5m2}  # fmt: skip

    def round(self, case, x):
        yield "round_ndarray", lambda: self.gfloat.round_ndarray(self.formats[case], x), wide

    def stochastic(self, case, x):
        bits, mode = uniform(x.size).astype(np.int64), self.gfloat.RoundMode.Stochastic
        yield (
            "given bits",
            lambda: self.gfloat.round_ndarray(self.formats[case], x, mode, srbits=bits, srnumbits=16),
            wide,
        )

    def decode(self, case, codes, *_):
        yield "", lambda: self.gfloat.decode_ndarray(self.formats[case], codes), wide


class Pychop:
    REASONS: ClassVar = {"round": "overflow by carry stays a number, 65536 becomes 0 in fp16, -0 loses its sign"}

    def __init__(self):
        import pychop

        self.chop = pychop.Chop

    def round(self, case, x):
        if case in IEEE:
            chop = self.chop(*IEEE[case])
            yield "Chop", lambda: chop(x), wide

    def stochastic(self, case, x):
        if case in IEEE:
            chop = self.chop(*IEEE[case], rmode=5)
            yield "Chop", lambda: chop(x), None


class APyTypes:
    REASONS: ClassVar = {"convert": "0.5.1's cast makes 0 of what rounds up to the least normal number"}

    def __init__(self):
        import apytypes

        self.apy = apytypes

    def typed(self, case, *codes):
        e, m = IEEE[case]
        return [self.apy.APyFloatArray.from_bits(np.ascontiguousarray(c), exp_bits=e, man_bits=m) for c in codes]

    def values(self, x):
        return x.to_numpy()

    def round(self, case, x):
        if case in IEEE:
            e, m = IEEE[case]
            yield "from_array", lambda: self.apy.APyFloatArray.from_array(x, exp_bits=e, man_bits=m), self.values

    def stochastic(self, case, x):
        if case in IEEE:
            e, m = IEEE[case]
            a = self.apy.APyFloatArray.from_array(x, exp_bits=8, man_bits=23)
            weighted = self.apy.QuantizationMode.STOCH_WEIGHTED
            yield "cast", lambda: a.cast(exp_bits=e, man_bits=m, quantization=weighted), None

    def decode(self, case, codes, *_):
        if case in IEEE:
            (x,) = self.typed(case, codes)
            yield "to_numpy", lambda: x.to_numpy(), wide

    def convert(self, case, codes):
        source, target = case.split(" to ")
        if source in IEEE and target in IEEE:
            (x,), (e, m) = self.typed(source, codes), IEEE[target]
            yield "cast", lambda: x.cast(exp_bits=e, man_bits=m), self.values

    def add(self, case, a, b):
        if case in IEEE:
            x, y = self.typed(case, a, b)
            yield "", lambda: x + y, self.values

    def mul(self, case, a, b):
        if case in IEEE:
            x, y = self.typed(case, a, b)
            yield "", lambda: x * y, self.values

    def sum(self, case, a):
        if case in IEEE:
            (x,) = self.typed(case, a)
            yield "sum", lambda: x.sum(axis=1), self.values

    def matmul(self, case, a, b):
        if case in IEEE:
            x, y = self.typed(case, a, b)
            yield "@", lambda: x @ y, self.values


_CLASSES = {
    "numsim": (Numsim, "numsim"), "NumPy": (NumPy, "numpy"), "ml_dtypes": (MlDtypes, "ml_dtypes"),
    "torch": (Torch, "torch"), "gfloat": (Gfloat, "gfloat"), "pychop": (Pychop, "pychop"),
    "APyTypes": (APyTypes, "apytypes"), "Python": (Python, "math"),
}  # fmt: skip


@lru_cache(maxsize=1)
def libraries():
    """Those that are installed, by name."""
    return {name: made() for name, (made, module) in _CLASSES.items() if find_spec(module)}


def versions():
    yield f"Python {platform.python_version()}"
    for name, (_, module) in _CLASSES.items():
        if name in libraries() and (version := host.version(module)):
            yield f"{name} {version}"
    yield f"numba {host.version('numba')}"
