"""What must hold whatever the numbers: Hypothesis looks for counterexamples. And what fails, with an example."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from numsim.tensorcore import get_model
from numsim.tensorcore.block import dot
from tests.tensorcore import oracle
from tests.tensorcore.oracle import FIELDS, code, decode, power
from tests.tensorcore.test_oracle import MODELS

# Without shrinking: it takes minutes here, and a failing case is short enough.
COMMON = settings(
    deadline=None, derandomize=True, max_examples=150, print_blob=False, database=None, phases=[Phase.generate]
)
NVIDIA = [m for m in MODELS if m.unit.path in ("block", "groups", "fp8-as-fp16")]
BLOCK = [m for m in NVIDIA if m.unit.path == "block"]
WIDE = [m for m in BLOCK if not m.scale and m.a in ("f16", "bf16", "tf32", "e5m2") and m.b == m.a]


def number(kind):
    """Codes near 1, with zeros: where nothing overflows or vanishes when it is scaled a little."""
    exponent_bits, width, bias, _ = FIELDS[kind]
    magnitude = st.integers(max(bias - 2, 0) << width, (min(bias + 3, 1 << exponent_bits) << width) - 1)
    signed = st.builds(int.__or__, magnitude, st.sampled_from([0, 1 << exponent_bits + width]))
    return st.one_of(signed, signed, signed, st.just(0))


def anything(kind):
    return st.one_of(number(kind), st.integers(0, (1 << 1 + sum(FIELDS[kind][:2])) - 1))


@st.composite
def operands(draw, models, element=number, instructions=1, c=None):
    model = draw(st.sampled_from(models))
    size = model.k * instructions
    a = draw(st.lists(element(model.a), min_size=size, max_size=size))
    b = draw(st.lists(element(model.b), min_size=size, max_size=size))
    scales = size // model.scale_block if model.scale else 0
    low, high = (120, 134) if model.scale == "ue8m0" else (48, 64)
    sa, sb = (draw(st.lists(st.integers(low, high), min_size=scales, max_size=scales)) for _ in "ab")
    return model, a, b, draw((c or element)(model.c)), sa, sb


def negated(codes, kind):
    return [x ^ 1 << sum(FIELDS[kind][:2]) for x in codes]


def scaled(x, kind, p):
    """A code times 2^p: normal numbers that stay normal."""
    return x + (p << FIELDS[kind][1]) if decode(x, kind).value else x


# --- what holds ------------------------------------------------------------------------------------------------------
@COMMON
@given(st.data())
def test_order_inside_a_block_is_irrelevant(data):
    model, a, b, c, sa, sb = data.draw(operands(NVIDIA, anything))
    places = {"block": lambda k: k // model.unit.length, "groups": lambda k: k // 16}.get(
        model.unit.path, lambda k: k % 4 in (0, 1)
    )
    order = list(range(model.k))
    for place in {places(k) for k in order}:
        mine = [k for k in range(model.k) if places(k) == place]
        for k, other in zip(mine, data.draw(st.permutations(mine)), strict=True):
            order[k] = other
    mixed = dot([a[k] for k in order], [b[k] for k in order], c, model, sa, sb)
    assert mixed == dot(a, b, c, model, sa, sb)


@COMMON
@given(operands([m for m in WIDE if m.d == "f32"]), st.integers(-4, 4), st.integers(-4, 4))
def test_scaling_by_powers_of_two(case, p, q):
    """a times 2^p and b times 2^-p: the same bits. a times 2^q and c times 2^q: the result times 2^q."""
    model, a, b, c, _, _ = case
    d = dot(a, b, c, model)
    assert dot([scaled(x, model.a, p) for x in a], [scaled(x, model.b, -p) for x in b], c, model) == d
    shifted = dot([scaled(x, model.a, q) for x in a], b, scaled(c, model.c, q), model)
    assert decode(shifted, "f32").value == decode(d, "f32").value * power(q)


@COMMON
@given(operands(NVIDIA, anything, instructions=2))
def test_negation(case):
    """Cutting is towards zero: a and c negated negate the result, but for zero, which is always +0, and NaN."""
    model, a, b, c, sa, sb = case
    d, minus = dot(a, b, c, model, sa, sb), dot(negated(a, model.a), b, *negated([c], model.c), model, sa, sb)
    late_zero = model.unit.path == "fp8-as-fp16" and not decode(d, model.d).value
    assert minus == (d if d in (0, model.nan) or late_zero else negated([d], model.d)[0])


@COMMON
@given(operands(BLOCK))
def test_error_of_one_block(case):
    """|d - exact| < terms * 2^(E - F) + one ulp of the result.

    Each of the products and c that are not zero loses less than 2^(E - F) when it is cut; their sum is exact; the
    conversion moves it by less than one ulp (half of one to nearest).
    """
    model, a, b, c, sa, sb = case
    k, unit = min(model.unit.length, model.k), model.unit
    scales = [oracle.decode_scale(s[0], model.scale) for s in (sa, sb)] if model.scale else [oracle.ONE] * 2
    by, shift = scales[0].value * scales[1].value, scales[0].exponent + scales[1].exponent
    pairs = [(decode(x, model.a), decode(y, model.b)) for x, y in zip(a[:k], b[:k], strict=True)]
    terms = [(x.value * y.value * by, x.exponent + y.exponent + shift) for x, y in pairs]
    terms = [(value, e) for value, e in (*terms, decode(c, model.c)[::2]) if value]
    exact, e = sum(value for value, _ in terms), max([unit.floor, *(e for _, e in terms)])
    d = decode(dot(a[:k], b[:k], c, replace(model, k=k), sa, sb), model.d)
    ulp = power(d.exponent - {"rz-fp32": 23, "rz-e8m13": 13, "rne-fp16": 10}[unit.output])
    assert abs(d.value - exact) < len(terms) * power(e - unit.fraction_bits) + ulp


@COMMON
@given(operands(NVIDIA, anything), st.booleans())
def test_more_zeros_change_nothing(case, first):
    """K padded with whole instructions of zeros, at either end: what c loses it loses once."""
    model, a, b, c, sa, sb = case
    zeros, ones = [0] * model.k, [127 if model.scale == "ue8m0" else 0x38] * len(sa)

    def padded(x, zeros):
        return zeros + x if first else x + zeros

    more = dot(padded(a, zeros), padded(b, zeros), c, model, padded(sa, ones), padded(sb, ones))
    assert more == dot(a, b, c, model, sa, sb)


@COMMON
@given(operands(MODELS, anything, instructions=3))
def test_chain_is_one_instruction_after_another(case):
    model, a, b, c, sa, sb = case
    whole, k, s = dot(a, b, c, model, sa, sb), model.k, model.k // (model.scale_block or model.k + 1)
    for n in range(3):
        here, there = slice(n * k, (n + 1) * k), slice(n * s, (n + 1) * s)
        c = dot(a[here], b[here], c, model, sa[there], sb[there])
        model = replace(model, c=model.d)
    assert c == whole


@COMMON
@given(operands([m for m in BLOCK if m.blocks > 1], anything))
def test_instruction_is_one_block_after_another(case):
    model, a, b, c, _, _ = case
    assert dot(a, b, c, replace(model, k=model.unit.length)) == dot(a, b, c, model)


# --- what fails ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("chip", "instruction", "bits"),
    [("v100", "mma.m8n8k4.f32.f16.f16.f32", 23), ("a100", "mma.m16n8k8.f32.f16.f16.f32", 24),
     ("h200", "mma.m16n8k16.f32.f16.f16.f32", 25)],
)  # fmt: skip
def test_more_can_be_less(chip, instruction, bits):
    """c grows from just below 1 to 1; the products, of 2^(-1 - F) each, are then cut away; the sum falls."""
    model = get_model(chip, instruction)
    a = [code(2**-9, "f16")] * model.k
    b = [code(power(8 - bits), "f16")] * model.k
    below, one = code(1 - power(-24), "f32"), code(1, "f32")
    products = model.unit.length * power(-1 - bits)
    assert decode(dot(a, b, below, model), "f32").value > 1
    assert decode(dot(a, b, one, model), "f32").value == 1 < 1 + products


def test_order_of_blocks_matters():
    """A100, K = 16: 2^25 in the first block hides ones that come after it, and not those that came before."""
    model = get_model("a100", "mma.m16n8k16.f32.f16.f16.f32")
    big, ones = [code(2**12, "f16")] * 2 + [0] * 6, [code(1, "f16")] * 2 + [0] * 6
    for a, c, total in (
        (big + ones, 0, 2**25),
        (ones + big, 0, 2**25),
        (big + ones, 2, 2**25),
        (ones + big, 2, 2**25 + 4),
    ):
        assert decode(dot(a, a, code(c, "f32"), model), "f32").value == total


def test_two_halves_are_not_the_whole():
    """Ada's FP8 unit, 13 bits: 1 + 16 * 2^-14 is 1 where the ones come one block later, and more where they share."""
    model = get_model("l40s", "mma.m16n8k32.f32.e4m3.e4m3.f32")
    small, one = code(2**-7, "e4m3"), code(1, "e4m3")
    together = dot([one] + [small] * 15 + [0] * 16, [one] + [small] * 15 + [0] * 16, 0, model)
    apart = dot([small] * 15 + [0] + [one] + [0] * 15, [small] * 15 + [0] + [one] + [0] * 15, 0, model)
    assert decode(together, "f32").value == 1
    assert decode(apart, "f32").value == 1 + 14 * power(-14)  # 15 * 2^-14, cut to 13 bits below 1


def test_cdna3_is_not_symmetric():
    """MI300X: a tiny c is aligned with rounding down; a negative one becomes -2^-24, and that tips a tie."""
    model = get_model("mi300x", "mfma.f32_16x16x16_f16")
    a, b = ([code(x, "f16") for x in (1, small)] + [0] * 14 for small in (2**-12, 2**-11))
    tiny = code(power(-40), "f32")
    assert dot(a, b, tiny, model) == code(1 + power(-23), "f32")
    assert dot(negated(a, "f16"), b, *negated([tiny], "f32"), model) == code(-1 - power(-22), "f32")
