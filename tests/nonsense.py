"""Arguments that no function expects, by name; made anew for each call, for some are used up."""

import functools
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np

import numsim
from numsim import blocks, machines, scaling


class Thing:
    def __repr__(self):
        raise RuntimeError("no text")


class Liar:
    """Says that it is an array, and fails."""

    shape, dtype, ndim = (), np.dtype(float), 0

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array")


def unaligned(dtype):
    return np.frombuffer(bytes(range(1, 26)), np.uint8)[1:25].view(dtype)


def recursive():
    x = [1.0]
    x.append(x)
    return x


def tensors():
    try:
        import torch
    except ImportError:
        return {}
    return {
        "tensor": torch.tensor([1.0, -2.0, 0.25], requires_grad=True),
        "tensor of bool": torch.tensor([True, False]),
        "tensor of complex": torch.tensor([1j]),
        "meta tensor": torch.empty(3, device="meta"),
        "sparse tensor": torch.tensor([1.0, 0.0]).to_sparse(),
    }


def nonsense():
    """Made anew for each call that might change or use up one."""
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    return {
        "None": None,
        "True": True,
        "minus one": -1,
        "zero": 0,
        "seven": 7,
        "2^31": 1 << 31,
        "2^64": 1 << 64,
        "2^70": 1 << 70,
        "5000 digits": 10**5000,
        "-2^63": -(1 << 63),
        "half": 1.5,
        "nan": float("nan"),
        "inf": float("inf"),
        "-0": -0.0,
        "1e308": 1e308,
        "5e-324": 5e-324,
        "complex": 1j,
        "Fraction": Fraction(1, 3),
        "Decimal nan": Decimal("nan"),
        "Decimal snan": Decimal("snan"),
        "Decimal huge": Decimal("1e20000"),
        "no text": "",
        "override": "\u202e",
        "zero byte": "e4m3\x00",
        "surrogate": "\ud800",
        "long text": "x" * 100_000,
        "digits": "9" * 5000,
        "fp16": "fp16",
        "nf4": "nf4",
        "e8m0": "e8m0",
        "nonsense": "nonsense",
        "bytes": b"x",
        "[]": [],
        "[[]]": [[]],
        "ragged": [[1.0], [1.0, 2.0]],
        "list": [1.5, -2.0, 0.25],
        "list of None": [None, 1],
        "list of texts": ["a", "b"],
        "recursive": recursive(),
        "deep": functools.reduce(lambda x, _: [x], range(200), 1.0),
        "tuple": (3, -1),
        "objects": np.array([None, 1.5], object),
        "record": np.zeros(3, [("a", "f4"), ("b", "u1")]),
        "dates": np.array(["2020", "NaT"], "M8[D]"),
        "durations": np.array([1, 2], "m8[s]"),
        "complexes": np.array([1j, 2]),
        "texts": np.array(["a", "b"]),
        "number texts": np.array(["1", "nan"]),
        "bytes array": np.array([b"1"]),
        "void": np.zeros(3, "V3"),
        "(0,)": np.zeros(0),
        "(0, 3)": np.zeros((0, 3), np.float32),
        "0-d": np.array(1.5),
        "one": np.ones((1, 1, 1)),
        "matrix": wide,
        "reversed": wide[::-1, ::-2],
        "swapped": wide.astype(">f4"),
        "read-only": np.broadcast_to(np.float64(2), (3,)),
        "unaligned": unaligned("<u4"),
        "float16": np.arange(3, dtype=np.float16),
        "longdouble": np.ones(3, np.longdouble),
        "nans": np.array([np.nan, np.inf, -np.inf]),
        "snan": np.array([0x7F800001], np.uint32).view(np.float32),
        "bool array": np.array([True, False, True]),
        "uint64": np.array([1 << 63, (1 << 64) - 1], np.uint64),
        "int64": np.array([-(1 << 63), (1 << 63) - 1]),
        "uint8": np.arange(3, dtype=np.uint8),
        "many axes": np.ones((1,) * 32),
        "masked": np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]),
        "np.matrix": np.eye(2).view(np.matrix),
        "float scalar": np.float32(1.5),
        "int scalar": np.int8(-3),
        "bool scalar": np.True_,
        "duration": np.timedelta64(5, "s"),
        "instance": Thing(),
        "liar": Liar(),
        "class": Thing,
        "function": lambda *a, **k: None,
        "dtype": np.dtype("f4"),
        "bad dtype": np.dtype("M8[s]"),
        "dict": {"a": 1},
        "empty dict": {},
        "set": {1, 2},
        "generator": (i for i in range(3)),
        "range": range(3),
        "ellipsis": ...,
        "slice": slice(None, 2),
        "module": np,
        "namespace": SimpleNamespace(shape=(3,), format="fp16", codes=[1]),
        "Array": numsim.array([1.5, -2.0], "bf16"),
        "0-d Array": numsim.array(2.0, "fp64"),
        "wide Array": numsim.from_codes([1, 2, 3], numsim.Format("w", 15, 40, 9)),
        "codebook": numsim.get_format("int8"),
        "format": numsim.FP16,
        "own format": numsim.Format("mine", 3, 2, 3, specials="fnuz"),
        "block array": blocks.quantize([1.0] * 32, "mxfp8"),
        "stream": numsim.random.Stream(1),
        "events": numsim.Events(),
        "state": scaling.State(4.0),
        "question": machines.ask("cast", ["fp32"], "bf16", [np.array([0x3DCCCCCD], np.uint32)]),
        **tensors(),
    }
