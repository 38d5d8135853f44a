"""Wrong calls of mma and matmul: refused before any work, by a NumsimError with value, rule and a call to make."""

import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest

import numsim
from numsim.errors import NumsimError
from numsim.kernels import tensorcore as kernels
from numsim.machines import ask
from numsim.tensorcore import Model, Unit, get_model, matmul, mma, products

F16 = "mma.m16n8k16.f32.f16.f16.f32"
FP8 = "wgmma.m64n256k32.f32.e4m3.e4m3"
TF32 = "mma.m16n8k8.f32.tf32.tf32.f32"
FP64 = "mma.m8n8k4.f64.f64.f64.f64"
FP4 = "tcgen05.m128n256k32.kind::f8f6f4.f32.e2m1.e3m2"
MX = "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0"
NV = "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"


def u8(*shape):
    return np.zeros(shape, np.uint8)


def u16(*shape):
    return np.zeros(shape, np.uint16)


def u32(*shape):
    return np.zeros(shape, np.uint32)


class Strange:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.fixture(autouse=True)
def no_work(monkeypatch):
    """Neither the reference nor a kernel may be reached."""

    def reached(*arguments):
        raise AssertionError("work was done for a wrong call")

    for module in (products, kernels):
        for name in ("chains", "dots"):
            monkeypatch.setattr(module, name, reached)


def refused(call, *words):
    """The message of the error that a call raises: a NumsimError of a few lines that holds these words."""
    with pytest.raises(NumsimError) as caught:
        call()
    message = str(caught.value)
    assert len(message) < 700, message
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
    return message


# --- mma --------------------------------------------------------------------------------------------------------------
GOOD_MMA = {"a": u16(16), "b": u16(16), "c": u32(), "chip": "h200", "instruction": F16}
TAKES = "takes (..., 16)"
MMA = [
    # shapes
    ({"a": u16(15)}, "a of shape (15,)", TAKES, "numsim.tensorcore.matmul"),
    ({"b": u16(3, 32)}, "b of shape (3, 32)", TAKES, "numsim.tensorcore.matmul"),
    ({"a": u16()}, "a of shape ()", TAKES),
    ({"a": u16(0)}, "a of shape (0,)", TAKES),
    ({"a": u16(16, 2), "b": u16(16, 2)}, "a of shape (16, 2)", TAKES),
    ({"a": u16(2, 16), "b": u16(3, 16)}, "shapes (2, 16), (3, 16), ()", "must broadcast", "Example"),
    ({"c": u32(16), "a": u16(4, 16)}, "shapes (4, 16), (16,), (16,)", "must broadcast", "Example"),
    ({"a": u8(8), "b": u8(8), "instruction": FP8}, "a of shape (8,)", "takes (..., 32)"),
    # codes: dtypes
    ({"a": np.zeros(16)}, "a (f16)", "float64", "unsigned integers", "Example"),
    ({"a": np.zeros(16, np.float16)}, "a (f16)", "float16", "unsigned integers"),
    ({"b": np.zeros(16, np.int16)}, "b (f16)", "int16", "unsigned integers"),
    ({"c": np.int32(0)}, "c (f32)", "int32", "unsigned integers"),
    ({"c": 0.0}, "c (f32)", "unsigned integers"),
    ({"a": np.zeros(16, bool)}, "a (f16)", "bool", "unsigned integers"),
    ({"a": np.zeros(16, complex)}, "a (f16)", "complex128", "unsigned integers"),
    ({"a": np.array(["0"] * 16)}, "a (f16)", "unsigned integers"),
    ({"a": np.zeros(16, "M8[s]")}, "a (f16)", "unsigned integers"),
    ({"a": np.zeros(16, object)}, "a (f16)", "object", "unsigned integers"),
    # codes: out of range
    ({"a": np.full(16, 0x10000, np.uint32)}, "a (f16)", "code 0x10000 is out of range", "0 to 0xffff", "Example"),
    ({"c": np.uint64(1 << 32)}, "c (f32)", "code 0x100000000 is out of range"),
    ({"a": [0] * 15 + [-1]}, "a (f16)", "-0x1 is out of range"),
    ({"a": [0] * 15 + [1 << 70]}, "a (f16)", "unsigned integers"),
    ({"a": np.full(32, 16, np.uint8), "b": u8(32), "chip": "b200", "instruction": FP4}, "a (e2m1)", "0 to 0xf"),
    ({"a": u8(32), "b": np.full(32, 64, np.uint8), "chip": "b200", "instruction": FP4}, "b (e3m2)", "0 to 0x3f"),
    # no arrays at all
    ({"a": None}, "a (f16)", "unsigned integers"),
    ({"c": None}, "c (f32)", "unsigned integers"),
    ({"a": "1" * 16}, "a (f16)", "unsigned integers"),
    ({"a": [[0] * 16, [0] * 15]}, "a (f16)", "regular array"),
    ({"a": {"codes": 1}}, "a (f16)", "unsigned integers"),
    ({"a": object()}, "a (f16)", "unsigned integers"),
    ({"a": Strange()}, "a (f16)", "unsigned integers"),
    ({"a": range(16), "b": {1, 2}}, "b (f16)", "unsigned integers"),
    ({"a": iter([0] * 16)}, "a (f16)", "unsigned integers"),
    # Arrays of another format
    ({"a": numsim.array([0.0] * 16, "bf16")}, "a is BF16", "takes f16 (FP16)", "a.astype('fp16')"),
    ({"c": numsim.array(0.0, "fp16")}, "c is FP16", "takes f32 (FP32)", "c.astype('fp32')"),
    ({"a": numsim.array([0.0] * 32, "e5m2"), "instruction": FP8}, "a is E5M2", "takes e4m3"),
    # what the chip lacks
    ({"chip": "a100", "instruction": FP8}, "a100 has no", "It exists on h100, h200", "numsim chips a100"),
    ({"chip": "v100"}, "v100 has no", "the nearest: mma.m8n8k4", "numsim chips v100"),
    ({"instruction": "mma.m16n8k16.f32.f16.bf16.f32"}, "h200 has no", "the nearest", "numsim chips h200"),
    ({"chip": "h300"}, "unknown chip 'h300'", "did you mean h200", "Example"),
    ({"chip": None}, "chip=None", "a name is needed", "Example"),
    ({"chip": 200}, "chip=200", "a name is needed", "Example"),
    ({"chip": ""}, "unknown chip ''", "known are v100", "Example"),
    ({"instruction": None}, "instruction=None", "which one of h200?", "Example"),
    ({"instruction": 16}, "instruction=16", "which one of h200?", "Example"),
    ({"instruction": "fast"}, "instruction 'fast'", "not understood", "Example"),
    # scales
    ({"scale_a": u8(1)}, "scale_a", "takes no block scales", "Example: chip='b200'"),
    ({"scale_b": u8(1)}, "scale_b", "takes no block scales"),
    # threads
    *[({"threads": x}, f"threads={x!r}", "1 to 1024, or None", "Example") for x in (0, -1, 2000, True, 1.0, "2", [1])],
]  # fmt: skip


@pytest.mark.parametrize("n", range(len(MMA)))
def test_mma(n):
    change, *words = MMA[n]
    refused(lambda: mma(**{**GOOD_MMA, **change}), *words)


GOOD_MX = {"a": u8(32), "b": u8(32), "c": u32(), "chip": "b200", "instruction": MX, "scale_a": u8(1), "scale_b": u8(1)}
SCALED = [
    ({"scale_a": None}, "scale_a is missing", "a ue8m0 scale for every 32 elements", "np.full((..., 1), 127"),
    ({"scale_b": None}, "scale_b is missing", "Example"),
    ({"scale_a": u8()}, "scale_a of shape ()", "takes (..., 1), one scale for every 32"),
    ({"scale_a": u8(2)}, "scale_a of shape (2,)", "takes (..., 1)"),
    ({"scale_b": u8(32)}, "scale_b of shape (32,)", "takes (..., 1)"),
    ({"scale_b": u8(1, 0)}, "scale_b of shape (1, 0)", "takes (..., 1)"),
    ({"scale_a": u8(3, 1), "a": u8(2, 32)}, "must broadcast"),
    ({"scale_a": np.ones(1)}, "scale_a (ue8m0)", "float64", "unsigned integers"),
    ({"scale_a": np.array([256], np.uint16)}, "scale_a (ue8m0)", "code 0x100 is out of range"),
    ({"scale_a": [1.0]}, "scale_a (ue8m0)", "unsigned integers"),
    ({"scale_a": numsim.array([1.0], "ue4m3")}, "scale_a is UE4M3", "takes ue8m0"),
    ({"instruction": NV, "a": u8(64), "b": u8(64)}, "scale_a of shape (1,)", "takes (..., 4), one scale for every 16"),
    ({"instruction": NV, "a": u8(64), "b": u8(64), "scale_a": np.full(4, 256, np.uint16)}, "scale_a (ue4m3)", "0x100"),
    ({"instruction": NV, "a": u8(64), "b": u8(64), "scale_a": None}, "scale_a is missing", "0x38, np.uint8) is 1.0"),
    ({"instruction": NV, "a": u8(64), "b": u8(64), "scale_a": "x"}, "scale_a (ue4m3)", "unsigned integers"),
]  # fmt: skip


@pytest.mark.parametrize("n", range(len(SCALED)))
def test_mma_with_scales(n):
    change, *words = SCALED[n]
    refused(lambda: mma(**{**GOOD_MX, **change}), *words)


# --- matmul -----------------------------------------------------------------------------------------------------------
GOOD = {"A": u16(4, 32), "B": u16(32, 3), "chip": "h200", "instruction": F16}
MATMUL = [
    # shapes
    ({"B": u16(3, 32)}, "A of shape (4, 32) and B of shape (3, 32)", "(..., M, K) and (..., K, N)", "transpose_b=True"),
    ({"A": u16(32)}, "A of shape (32,)", "a matrix is needed", "A[None, :]"),
    ({"B": u16()}, "B of shape ()", "a matrix is needed"),
    ({"C": u32(2, 1, 1)}, "C of shape (2, 1, 1)", "the product has shape (4, 3)"),
    ({"A": u16(2, 4, 32), "B": u16(3, 32, 3)}, "the batches do not go together"),
    ({"A": u16(4, 0), "B": u16(0, 3)}, "K is 0", "any K from 1 on"),
    ({"transpose_a": True}, "A of shape (32, 4)", "are needed"),
    ({"C": u32(3, 4)}, "C of shape (3, 4)", "the product has shape (4, 3)"),
    ({"C": u32(2, 4, 3)}, "C of shape (2, 4, 3)", "the product has shape (4, 3)"),
    ({"C": u32(4)}, "C of shape (4,)", "the product has shape (4, 3)"),
    # codes
    ({"A": np.zeros((4, 32))}, "A (f16)", "float64", "unsigned integers"),
    ({"B": np.zeros((32, 3), np.int32)}, "B (f16)", "int32", "unsigned integers"),
    ({"A": np.full((4, 32), 0x10000, np.uint32)}, "A (f16)", "out of range"),
    ({"A": [[0] * 32, [0] * 31]}, "A (f16)", "regular array"),
    ({"A": None}, "A (f16)", "unsigned integers"),
    ({"C": np.zeros((4, 3), np.float32)}, "C (f32)", "float32", "unsigned integers"),
    ({"C": 1.5}, "C (f32)", "unsigned integers"),
    ({"C": "0"}, "C (f32)", "unsigned integers"),
    ({"A": numsim.array(np.zeros((4, 32)), "bf16")}, "A is BF16", "takes f16 (FP16)", "A.astype('fp16')"),
    ({"A": u32(4, 32).view(np.float32), "instruction": TF32}, "A (tf32)", "unsigned integers"),
    # chips
    ({"instruction": None}, "instruction=None", "which one of h200?", "Example"),
    ({"chip": "a100", "instruction": FP8}, "a100 has no", "It exists on h100, h200"),
    ({"chip": "h20"}, "unknown chip 'h20'", "did you mean h200", "Example"),
    ({"chip": b"h200"}, "chip=b'h200'", "a name is needed"),
    # options
    *[({"tf32": x, "instruction": TF32, "A": u32(4, 32), "B": u32(32, 3)}, "tf32=", "nearest-away, nearest-even")
      for x in ("round", None, True, 1, ["truncate"])],
    ({"tf32": "nearest-even"}, "tf32='nearest-even'", "takes no TF32 operands"),
    *[({"promote": x}, f"promote={x!r}", "a multiple of the instruction's K = 16", "promote=128")
      for x in (0, -16, 8, 17, 16.0, True, "128", 1 << 200 | 1, [16])],
    *[({"split_k": x}, f"split_k={x!r}", "1 to 2 parts", "K = 32 is 2 instructions long")
      for x in (0, -1, 3, 2.0, True, None, "2", 1 << 200)],
    *[({"combine": x}, "combine=", "serial, pairwise") for x in ("tree", None, 1, ["serial"])],
    *[({"partials": x}, "format") for x in ("fp17", None, 3, "")],
    *[({"partials": x}, f"partials={x!r}", "has no NaN", "partials='bf16'") for x in ("e2m1", "e3m2")],
    *[({"output": x}, "format") for x in ("fp17", 3, "", ["fp16"])],
    *[({"overflow": x}, "overflow", "ieee") for x in ("wrap", None, True, ["ieee"])],
    ({"overflow": "wrap", "output": "bf16"}, "overflow", "ieee"),
    *[({"alpha": x}, "alpha") for x in ("2", "x", True, [1.0, 2.0], np.ones(3), 1j, object(), Strange(), {})],
    *[({"beta": x, "C": u32(4, 3)}, "beta") for x in ("2", True, [[1.0]], 1j, object())],
    ({"beta": 1.0}, "beta scales C, and C is missing", "Example"),
    ({"beta": 1.0, "C": numsim.array(np.zeros((4, 3)), "fp16")}, "C is FP16", "takes f32 (FP32)"),
    *[({"threads": x}, f"threads={x!r}", "1 to 1024, or None") for x in (0, -3, 1 << 40, True, 1.5, "2")],
    *[({"transpose_a": x}, "transpose_a=", "True or False") for x in (None, 1, "yes", [True])],
    *[({"transpose_b": x}, "transpose_b=", "True or False") for x in (0, "no")],
    # FP64 has no FP32 steps
    *[({"chip": "a100", "instruction": FP64, "A": np.zeros((4, 32), np.uint64), "B": np.zeros((32, 3), np.uint64), **o},
       "compute in FP32: not with FP64 results") for o in ({"split_k": 2}, {"promote": 32}, {"alpha": 1.0})],
    # scales
    ({"scale_a": u8(4, 1)}, "scale_a", "takes no block scales"),
    ({"scale_b": u8(1, 3)}, "scale_b", "takes no block scales"),
]  # fmt: skip


@pytest.mark.parametrize("n", range(len(MATMUL)))
def test_matmul(n):
    change, *words = MATMUL[n]
    refused(lambda: matmul(**{**GOOD, **change}), *words)


MATMUL_MX = [
    ({"scale_a": None}, "scale_a is missing"),
    ({"scale_a": u8(4, 1)}, "scale_a of shape (4, 1) and scale_b of shape (2, 3)", "(4, 2) and (2, 3) are needed"),
    ({"scale_b": u8(3, 2)}, "scale_b of shape (3, 2)", "(4, 2) and (2, 3) are needed"),
    ({"scale_a": u8(2, 4)}, "scale_a of shape (2, 4)", "one scale for every 32 elements of K"),
    ({"scale_a": u8(2)}, "scale_a of shape (2,)", "are needed"),
    ({"scale_a": u8()}, "scale_a of shape ()", "are needed"),
    ({"scale_b": np.ones((2, 3))}, "scale_b (ue8m0)", "unsigned integers"),
    ({"scale_a": u8(5, 4, 2)}, "batches"),
]


@pytest.mark.parametrize("n", range(len(MATMUL_MX)))
def test_matmul_with_scales(n):
    good = {"A": u8(4, 40), "B": u8(40, 3), "chip": "b200", "instruction": MX, "scale_a": u8(4, 2), "scale_b": u8(2, 3)}
    change, *words = MATMUL_MX[n]
    refused(lambda: matmul(**{**good, **change}), *words)


def test_formats_that_the_chip_does_not_take():
    x = numsim.array([[1.0] * 16], "e4m3")
    words = "A100 (Ampere, sm_80) has no instruction for e4m3fn x e4m3fn", "it takes bf16, fp16, fp64, tf32"
    refused(lambda: matmul(x, x.T, chip="a100"), *words, "numsim chips a100")
    refused(lambda: mma(x, x, 0, chip="a100"), *words)
    y = numsim.array([[1.0]] * 16, "fp16")
    refused(lambda: matmul(x, y, chip="h200"), "no instruction for e4m3fn x fp16")
    refused(lambda: matmul(x, x.T, chip="mi300x"), "it takes bf16, e4m3fnuz", "e5m2fnuz")


# --- units of one's own -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "magic"}, ("path='magic'", "allowed are block, groups")),
        ({"path": None}, ("path=None", "allowed are")),
        ({"path": ["block"]}, ("path=", "allowed are")),
        ({"length": 0}, ("length=0", "1 to 1024")),
        ({"length": True}, ("length=True", "1 to 1024")),
        ({"length": 16.0}, ("length=16.0", "1 to 1024")),
        ({"fraction_bits": -1}, ("fraction_bits=-1", "0 to 60")),
        ({"fraction_bits": 10**6}, ("fraction_bits=1000000", "0 to 60")),
        ({"floor": "low"}, ("floor='low'", "-2000 to 200")),
        ({"output": "rz-fp8"}, ("output='rz-fp8'", "rz-fp32, rz-e8m13")),
        ({"align": "up"}, ("align='up'", "toward-zero, down, nearest-even")),
        ({"align": {}}, ("align=", "toward-zero")),
    ],
)
def test_units(change, words):
    refused(lambda: Unit(**change), *words, "Example: Unit(")


def test_a_model_of_your_own_is_held_to_its_types():
    mine = Model("mine", F16, 16, "f16", "f16", "f32", "f32", Unit("block", 16, 30, -133))
    refused(lambda: mma(u16(8), u16(8), 0, chip=mine), "a of shape (8,)", "takes (..., 16)")
    refused(lambda: mma(u16(16), u16(16), 0, chip=mine, instruction="mma"), "the Model names its own")


# --- before any work --------------------------------------------------------------------------------------------------
LATE = [
    {"overflow": "wrap"}, {"output": "fp17"}, {"partials": "fp17"}, {"alpha": "x"}, {"beta": 1.0}, {"promote": 7},
    {"split_k": 10**9}, {"threads": 0}, {"combine": "tree"}, {"C": u32(2, 2)}, {"scale_a": u8(1)},
    {"tf32": "nearest-away"}, {"transpose_a": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", LATE, ids=lambda c: next(iter(c)))
def test_large_products_are_refused_at_once(change):
    """A result of 40 GB and operands of 1 TB (of one element in memory): nothing of that is made."""
    a, b = np.broadcast_to(np.uint16(0), (10**5, 5 * 10**6)), np.broadcast_to(np.uint16(0), (5 * 10**6, 10**5))
    tracemalloc.start()
    try:
        with pytest.raises(NumsimError):
            matmul(a, b, **{"chip": "h200", "instruction": F16, **change})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_refused_call_does_not_warn(monkeypatch):
    """That a model is unverified is said when it is used, not when a call is wrong."""
    monkeypatch.setattr(products, "_warned", set())
    good = {"A": u8(4, 40), "B": u8(40, 3), "chip": "b200", "instruction": MX, "scale_a": u8(4, 2), "scale_b": u8(2, 3)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for change in (
            {"scale_a": u8(4, 1)},
            {"overflow": "wrap"},
            {"C": u32(9, 9)},
            {"partials": "x"},
            {"alpha": "x"},
        ):
            refused(lambda change=change: matmul(**{**good, **change}))
        refused(lambda: mma(u8(32), u8(32), 0, chip="b200", instruction=MX, scale_a=u8(2), scale_b=u8(1)))
        refused(lambda: mma(u8(2, 32), u8(3, 32), 0, chip="b200", instruction=MX, scale_a=u8(1), scale_b=u8(1)))
    assert not products._warned


# --- found by attack --------------------------------------------------------------------------------------------------
TWO = np.array([1, 2])
Q = {"operation": "mma", "inputs": ["fp16"] * 3, "output": "fp32", "arrays": []}
WORDS = [
    lambda: matmul(**{**GOOD, "tf32": TWO}), lambda: matmul(**{**GOOD, "combine": TWO}),
    lambda: get_model(get_model("h200", F16), TWO), lambda: replace(get_model("h200", F16), scale=TWO),
    lambda: replace(get_model("h200", F16), unit=None), lambda: replace(get_model("h200", F16), evidence=None),
    lambda: replace(get_model("h200", F16), chip=[]), lambda: replace(get_model("h200", F16), a="ue8m0"),
    lambda: replace(get_model("h200", F16), b="ue4m3"), lambda: ask(**{**Q, "inputs": None}),
    lambda: ask(**{**Q, "arrays": None}), lambda: ask(**{**Q, "operation": []}), lambda: ask(**Q, order=TWO),
    lambda: ask(**Q, product=TWO), lambda: kernels_force(TWO),
    lambda: products.chained(u16(5), u16(5), u32(), get_model("h200", F16), None, None),
]  # fmt: skip


def kernels_force(which):
    with numsim.kernels.force(which):
        pass


@pytest.mark.parametrize("n", range(len(WORDS)))
def test_arrays_and_none_in_place_of_words(n):
    refused(WORDS[n])
