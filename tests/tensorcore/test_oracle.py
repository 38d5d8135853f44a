"""Reference = kernel = outsider, for every way of computing that any chip has, specials included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numsim
from numsim import kernels
from numsim.codes import code_dtype
from numsim.tensorcore import get_model, list_chips, list_models
from numsim.tensorcore.block import dot
from numsim.tensorcore.models import PATHS, TYPES, word_format
from numsim.tensorcore.products import chained
from tests.tensorcore import oracle

COMMON = settings(deadline=None, derandomize=True, max_examples=200, print_blob=False, database=None)


def distinct_models():
    """One record for each way of computing: unit, types, K, scales, NaN."""
    found = {}
    for chip in list_chips():
        for m in list_models(chip):
            found.setdefault((m.unit, m.a, m.b, m.c, m.d, m.k, m.scale, m.scale_block, m.nan), m)
    return list(found.values())


MODELS = distinct_models()


def kernel_dots(model, inputs):
    """The kernel on a list of inputs, or None where there is none."""
    if kernels.why_not() is not None:
        return None
    from numsim.kernels import tensorcore as fast

    if not fast.suits(model):
        return None
    kinds = [word_format(model.a), word_format(model.b), TYPES[model.c]]
    a, b, c = (np.array(x, code_dtype(f)) for x, f in zip(list(zip(*inputs, strict=True))[:3], kinds, strict=True))
    scales = [np.array([v[i] for v in inputs], np.uint8) if model.scale else None for i in (3, 4)]
    return fast.dots(a, b, c, model, *scales, None).tolist()


def test_every_path_is_met():
    assert {m.unit.path for m in MODELS} == set(PATHS)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_seeded(model):
    """Two vectors of each regime in one instruction, one in a chain of two."""
    for seed, count, instructions in ((1, 18, 1), (2, 9, 2)):
        inputs = oracle.vectors(model, count, seed, instructions)
        expected = [oracle.dot(a, b, c, model, sa, sb) for a, b, c, sa, sb in inputs]
        assert [dot(a, b, c, model, sa, sb) for a, b, c, sa, sb in inputs] == expected
        fast = kernel_dots(model, inputs)
        assert fast is None or fast == expected


@st.composite
def cases(draw):
    """A record and codes: few different ones, from all and from the edges, so that they meet again."""
    model = draw(st.sampled_from(MODELS))

    def codes(kind, size):
        exponent_bits, width, bias, _ = oracle.FIELDS[kind]
        edges = [0, 1, 2, (1 << width) - 1, 1 << width, bias << width, (1 << exponent_bits + width) - 1]
        edges += [(1 << exponent_bits) - 1 << width, bias + 1 << width, (bias << width) + 1]
        signs = [0, 1 << exponent_bits + width]
        one = st.builds(int.__or__, st.sampled_from(edges), st.sampled_from(signs))
        one = st.one_of(one, st.integers(0, (1 << 1 + exponent_bits + width) - 1))
        few = draw(st.lists(one, min_size=1, max_size=4))
        return draw(st.lists(st.sampled_from(few), min_size=size, max_size=size))

    size = model.k // model.scale_block if model.scale else 0
    near_one = st.integers(125, 129) if model.scale == "ue8m0" else st.integers(50, 60)
    scales = st.lists(st.one_of(near_one, st.integers(0, 255)), min_size=size, max_size=size)
    a, b, (c,) = codes(model.a, model.k), codes(model.b, model.k), codes(model.c, 1)
    return model, a, b, c, draw(scales), draw(scales)


@COMMON
@given(cases())
def test_any(case):
    model, a, b, c, sa, sb = case
    expected = oracle.dot(a, b, c, model, sa, sb)
    assert dot(a, b, c, model, sa, sb) == expected
    fast = kernel_dots(model, [(a, b, c, sa, sb)])
    assert fast is None or fast == [expected]


# --- widths of CDNA3 that no field of a record holds: each vector turns on one bit ------------------------------------
F16, FP8 = "mfma.f32_16x16x16_f16", "mfma.f32_16x16x32_fp8_fp8"
WIDTHS = [  # instruction, (a, b) of one product, c, code of the result by the rule
    (F16, (383 * 2.0**-18, -(2.0**-14)), 1.0, 0x3F7FFFFF),  # the sum keeps 2^-32: above a tie to the even neighbour
    (F16, (767 * 2.0**-19, -(2.0**-14)), 1.0, 0x3F7FFFFE),  # 2^-33 goes, rounded down, here or with the result
    (F16, (257 * 2.0**-18, 2.0**-14), 1.0, 0x3F800000),  # with c, 2^-32 is cut: a tie
    (F16, (129 * 2.0**-17, 2.0**-14), 1.0, 0x3F800001),  # ... and 2^-31 is not
    (F16, (1.0, 1.0), -(2.0**-30), 0x3F7FFFFF),  # c is rounded down, to -2^-24
    (F16, (1.0, 1.0), 2.0**-25, 0x3F800000),  # ... so that a positive one is lost
    (FP8, (1.0, 1.0), -(2.0**-25), 0x3F7FFFFF),  # FP8: c of exponent E - 25 is rounded down
    (FP8, (1.0, 1.0), -(2.0**-26), 0x3F800000),  # ... and of E - 26 dropped
]


def check(m, a, b, c, expected):
    """Outsider, reference and kernel, against a code worked out by hand."""
    assert (oracle.dot(a, b, c, m), dot(a, b, c, m)) == (expected, expected)
    if kernels.why_not() is None:
        arrays = (np.array([codes], code_dtype(TYPES[m.a])) for codes in (a, b))
        with kernels.force("kernel"):
            assert chained(*arrays, np.array([c], np.uint32), m, None, None).tolist() == [expected]


@pytest.mark.parametrize("n", range(len(WIDTHS)))
def test_last_bits_of_cdna3(n):
    instruction, (x, y), z, expected = WIDTHS[n]
    m = get_model("mi300x", instruction)
    format = TYPES[m.a].name
    a, b = ([int(numsim.encode(v, format))] + [0] * (m.k - 1) for v in (x, y))
    c = int(numsim.encode(z, "fp32"))
    check(m, a, b, c, expected)


BF16, BF16_2 = ("mi300x", "mfma.f32_16x16x16_bf16"), ("mi250x", "mfma.f32_16x16x16bf16_1k")
EDGES = [  # instruction, a, b, c, code of the result: what happens at the ends of FP32's range
    (BF16, [2.0**64, 2.0**64], [2.0**64, -(2.0**63)], 0.0, 0x7F800000),  # a product of 2^128 is infinite
    (BF16, [2.0**64, 2.0**64], [1.75 * 2.0**63, -(2.0**63)], 0.0, 0x7EC00000),  # ... and of less is not
    (BF16_2, [2.0**-126], [0.5], 0.0, 0),  # a subnormal product is flushed
    (BF16_2, [2.0**-126, -1.5], [1.0, 2.0**-126], 0.0, 0),  # ... a subnormal sum, to -0, which meets the +0 of others
    (BF16_2, [2.0**-125, -1.5], [1.0, 2.0**-126], 2.0**-126, 0x00800000),  # ... before c is added
    (BF16_2, [2.0**-126], [1.0], 0.0, 0x00800000),  # the least normal number stays
]  # fmt: skip


@pytest.mark.parametrize("n", range(len(EDGES)))
def test_ends_of_the_range(n):
    unit, x, y, z, expected = EDGES[n]
    m = get_model(*unit)
    a, b = ([int(numsim.encode(v, "bf16")) for v in [*values, *[0.0] * (m.k - len(values))]] for values in (x, y))
    check(m, a, b, int(numsim.encode(z, "fp32")), expected)
