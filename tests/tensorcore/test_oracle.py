"""Reference = kernel = outsider, for every way of computing that any chip has, specials included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numsim import kernels
from numsim.codes import code_dtype
from numsim.tensorcore import list_chips, list_models
from numsim.tensorcore.block import dot
from numsim.tensorcore.models import PATHS, TYPES, word_format
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
