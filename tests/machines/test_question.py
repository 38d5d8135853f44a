"""Questions are frozen, named by what is in them, and refused where they make no sense."""

import copy
import hashlib

import numpy as np
import pytest

import numsim
from numsim.errors import FormatError, InputError
from numsim.machines import Question, ask, get_machine
from numsim.machines.emulated import emulate

CODES = np.array([0x3C00, 0x4000, 0x7E00], np.uint16)


def test_the_digest_is_for_ever():
    """Records are looked up by it: a change here makes every record useless."""
    q = ask("cast", ["fp16"], "bf16", [CODES], rounding="stochastic", seed=3)
    inside = hashlib.sha256(bytes.fromhex("003c0040007e")).hexdigest()
    text = (
        f'{{"arrays":[{{"dtype":"uint16","sha256":"{inside}","shape":[3]}}],"inputs":["fp16"],"operation":"cast",'
        '"options":{"rounding":"stochastic","seed":3},"output":"bf16"}'
    )
    assert q.json == text
    assert q.digest == hashlib.sha256(text.encode()).hexdigest()


def test_the_same_question_has_the_same_digest():
    q = ask("sum", ["fp16"], "fp16", [CODES])
    same = (
        ask("sum", [numsim.FP16], "float16", [CODES.astype(np.uint32)], order="sequential", rounding="nearest-even"),
        ask("sum", ["fp16"], "fp16", [CODES.astype(">u2")]),
        ask("sum", ["fp16"], "fp16", [np.repeat(CODES, 2)[::2]]),
        copy.copy(q),
    )
    assert {p.digest for p in same} == {q.digest}
    others = (
        ask("sum", ["fp16"], "fp32", [CODES]),
        ask("cumsum", ["fp16"], "fp16", [CODES]),
        ask("sum", ["bf16"], "fp16", [CODES]),
        ask("sum", ["fp16"], "fp16", [CODES], order="kahan"),
        ask("sum", ["fp16"], "fp16", [CODES[:, None]]),
        ask("sum", ["fp16"], "fp16", [CODES[::-1]]),
    )
    assert len({p.digest for p in (q, *others)}) == 7


def test_a_question_does_not_change():
    mine = CODES.copy()
    q = ask("cast", ["fp16"], "bf16", [mine])
    mine[0] = 0
    assert q.arrays[0][0] == 0x3C00
    with pytest.raises(ValueError, match="read-only"):
        q.arrays[0][0] = 0
    with pytest.raises(AttributeError):
        q.operation = "add"
    with pytest.raises(TypeError):
        q.options["rounding"] = "up"
    for name in ("numpy", "ml_dtypes"):  # no machine writes into it
        if get_machine(name).can(q):
            get_machine(name).answer(q)
    assert q.arrays[0].tolist() == CODES.tolist()


@pytest.mark.parametrize(
    ("operation", "shapes", "shape"),
    [
        ("cast", [(2, 3)], (2, 3)),
        ("cast", [()], ()),
        ("add", [(2, 1), (3,)], (2, 3)),
        ("fma", [(2, 1), (3,), ()], (2, 3)),
        ("sum", [(2, 3)], (2,)),
        ("sum", [(3, 0)], (3,)),
        ("cumsum", [(2, 3)], (2, 3)),
        ("dot", [(2, 3), (3,)], (2,)),
        ("matmul", [(2, 3), (3, 4)], (2, 4)),
        ("matmul", [(5, 1, 2, 3), (7, 3, 4)], (5, 7, 2, 4)),
        ("add", [(2,), (3,)], None),
        ("sum", [()], None),
        ("dot", [(), (3,)], None),
        ("matmul", [(3,), (3, 4)], None),
        ("matmul", [(2, 3), (4, 3)], None),
        ("matmul", [(2, 2, 3), (3, 3, 4)], None),
    ],
)
def test_shapes(operation, shapes, shape):
    arrays = [np.zeros(s, np.uint16) for s in shapes]
    if shape is None:
        with pytest.raises(InputError, match="do not go together"):
            ask(operation, ["fp16"] * len(arrays), "fp16", arrays)
        return
    q = ask(operation, ["fp16"] * len(arrays), "fp16", arrays)
    assert q.shape == shape == emulate(q).shape


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"operation": "exp"}, "operation 'exp': known are cast, add"),
        ({"inputs": ["fp16", "fp16"]}, "cast takes 1 arrays"),
        ({"arrays": []}, "cast takes 1 arrays"),
        ({"arrays": [np.array([70000], np.uint32)]}, "out of range"),
        ({"arrays": [np.zeros(2)]}, "codes are unsigned integers"),
        ({"speed": "fast"}, "unknown options"),
        ({"order": "random"}, "order='random'"),
        ({"rounding": "sideways"}, "rounding='sideways'"),
        ({"overflow": ["ieee"]}, "overflow"),
        ({"nan": None}, "nan=None"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"sr_bits": 33}, "sr_bits=33"),
        ({"sr_bits": True}, "sr_bits=True"),
        ({"operation": "cumsum", "order": "pairwise"}, "no running sum"),
    ],
)
def test_nonsense_is_refused(change, words):
    fields = {"operation": "cast", "inputs": ["fp16"], "output": "bf16", "arrays": [CODES], **change}
    with pytest.raises(InputError, match=words):
        ask(**fields)


def test_unknown_formats():
    for fields in ({"inputs": ["fp17"]}, {"output": "fp17"}, {"product": "fp17"}):
        with pytest.raises(FormatError, match="unknown format"):
            ask(**{"operation": "cast", "inputs": ["fp16"], "output": "bf16", "arrays": [CODES], **fields})
    with pytest.raises(FormatError):
        Question("cast", (numsim.FP16,), numsim.BF16, (CODES,), {"product": "fp17"})


def test_in_words():
    q = ask("dot", ["fp16", "bf16"], "fp32", [CODES, CODES], product="exact", order="kahan")
    assert str(q) == "dot fp16[3] bf16[3] -> fp32 order=kahan product=exact"
    assert (q.order, q.product, q.seed, q.policy.rounding) == ("kahan", "exact", None, "nearest-even")
    with pytest.raises(AttributeError):
        _ = q.colour
