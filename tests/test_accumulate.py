"""Sums, dot and matrix products against outsiders: numpy's and ml_dtypes' own typed additions in a loop, torch, and a
small exact implementation of each order (fractions, rounded by the integer oracle)."""

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.errors import InputError
from numsim.random import Stream
from tests import oracle, test_arithmetic
from tests.test_arithmetic import (
    ML_DTYPES,
    POLICIES,
    assert_codes,
    exact,
    flushed,
    number,
    rounded,
    tricky_codes,
)

ORDERS = ("sequential", "pairwise", "kahan")
implementation, kernel = test_arithmetic.implementation, test_arithmetic.kernel  # fixtures


# -- the outsider: each order once more, exactly ----------------------------------------------------------------------


class Own:
    """One sum in fractions. ``draws(counter)`` gives the random bits of stochastic rounding."""

    def __init__(self, target, rounding="nearest-even", overflow="ieee", subnormals="keep", draws=None, r=32):
        self.target, self.policy, self.draws, self.r = oracle.SPECS[target], (rounding, overflow, subnormals), draws, r

    def round(self, x, spec, counter):
        """The code, and what it is as an operand."""
        random = self.draws(counter) if self.draws else 0
        code = rounded(x, spec, *self.policy, r=self.r, random=random)
        return code, flushed(number(code, spec), spec, self.policy[2])

    def add(self, x, y, counter):
        return self.round(exact("add", x, y, rounding=self.policy[0]), self.target, counter)

    def sub(self, x, y, counter):
        return self.round(exact("sub", x, y, rounding=self.policy[0]), self.target, counter)

    def sum(self, factors, names, product=None, order="sequential", first=0):
        """Running sums as codes (pairwise: every addition's). ``factors``: one list of codes, or two."""
        specs = [oracle.SPECS[n] for n in names]
        uses = (4 if order == "kahan" else 1) + (product is not None)
        terms = []
        for i, row in enumerate(zip(*factors, strict=True)):
            x = [flushed(number(int(c), s), s, self.policy[2]) for c, s in zip(row, specs, strict=True)]
            term = x[0] if len(x) == 1 else exact("mul", *x)
            if product is not None:
                _, term = self.round(term, oracle.SPECS[product], first + i * uses)
            terms.append(term)
        if not terms:
            return [0]
        last = first + uses - 1  # the counter of a term's only, or last, addition
        if order == "pairwise" and len(terms) > 1:
            out, terms = [], list(enumerate(terms))  # a partial sum, and the place of its first term
            while len(terms) > 1:
                level = []
                while len(terms) > 1:
                    (i, x), (j, y) = terms.pop(0), terms.pop(0)
                    code, x = self.add(x, y, last + j * uses)
                    out.append(code)
                    level.append((i, x))
                terms = level + terms
            return out
        code, s = self.round(terms[0], self.target, last)
        out, c = [code], (False, oracle.Fraction(0))
        for j, x in enumerate(terms[1:], 1):
            at = last + j * uses
            if order == "kahan":  # Kahan 1965: y = x - c; t = s + y; c = (t - s) - y; s = t
                _, y = self.sub(x, c, at - 3)
                code, t = self.add(s, y, at - 2)
                _, z = self.sub(t, s, at - 1)
                _, c = self.sub(z, y, at)
                s = t
            else:
                code, s = self.add(s, x, at)
            out.append(code)
        return out


def own_matmul(a, b, names, target, product=None, order="sequential", draws=None, r=32, **policy):
    own = Own(target, draws=draws, r=r, **policy)
    uses = (4 if order == "kahan" else 1) + (product is not None)
    out = np.zeros((a.shape[0], b.shape[1]), own.target.dtype)
    for o, (i, j) in enumerate(np.ndindex(*out.shape)):
        out[i, j] = own.sum([a[i].tolist(), b[:, j].tolist()], names, product, order, o * a.shape[1] * uses)[-1]
    return out


def mild_codes(spec, shape, rng):
    """Numbers of one size, so that sums neither stall at once nor overflow; some subnormal, zero, huge or special."""
    count = int(np.prod(shape))
    field = spec.bias + rng.integers(-3, 2, count)
    codes = (np.clip(field, 0, (spec.top >> spec.fraction) - 1) << spec.fraction) + rng.integers(
        0, 1 << spec.fraction, count
    )
    codes = codes.astype(np.uint64) | np.where(rng.integers(0, 4, count) == 0, np.uint64(spec.sign), np.uint64(0))
    few = rng.integers(0, 12, count) == 0
    codes[few] = tricky_codes(spec, count, rng)[few]
    return codes.astype(spec.dtype).reshape(shape)


def from_codes(codes, name):
    return numsim.from_codes(codes, name)


# -- sequential sums beside numpy and ml_dtypes -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64"])
def test_sequential_beside_numpy(name, implementation):
    """np.add.accumulate adds one after the other, in the array's own type."""
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(1)
    for shape in ((0,), (1,), (2,), (7,), (300,), (3, 40), (2, 3, 5)):
        codes = mild_codes(spec, shape, rng)
        x = codes.view(ML_DTYPES[name])
        for axis in (None, *range(-len(shape), len(shape))):
            with np.errstate(all="ignore"):
                running = np.add.accumulate(x.reshape(-1) if axis is None else x, axis=axis or 0)
            nan = np.isnan(running)
            right = np.where(nan, spec.dtype(spec.nan), running.view(spec.dtype))
            got = numsim.cumsum(from_codes(codes, name), axis=axis)
            assert_codes(got.codes, right, (got.codes,), f"{name} cumsum of {shape} along {axis}")
            total = numsim.sum(from_codes(codes, name), axis=axis)
            if codes.size:
                assert_codes(total.codes, right.take(-1, axis or 0), (total.codes,), f"{name} sum of {shape}, {axis}")
            else:
                assert total.codes == 0


@pytest.mark.parametrize("name", ["bf16", "e5m2", "e4m3fn", "e4m3fnuz", "e3m4", "e2m1"])
def test_sequential_beside_ml_dtypes(name, implementation):
    """A loop over ml_dtypes scalars, which round every addition."""
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(2)
    dtype = getattr(ml_dtypes, ML_DTYPES[name])
    for length in (1, 2, 5, 200):
        codes = mild_codes(spec, length, rng)
        if spec.nan is not None:
            codes = codes[~oracle.is_nan(codes, spec)]
        x = codes.view(dtype)
        total, right = x[0], [x[0]]
        with np.errstate(all="ignore"):
            for term in x[1:]:
                total = total + term
                assert isinstance(total, dtype)
                right.append(total)
        right = np.array(right, dtype)
        nan = np.isnan(right.astype(np.float32))
        right = np.where(nan, spec.dtype(spec.nan or 0), right.view(spec.dtype))
        got = numsim.cumsum(from_codes(codes, name)).codes
        assert_codes(got, right, (codes,), f"{name} running sum of {length}")
        assert numsim.sum(from_codes(codes, name)).codes == right[-1]


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64", "bf16", "e5m2"])
def test_kahan_and_pairwise_beside_typed_loops(name, implementation):
    """The textbook lines on typed scalars and arrays."""
    spec = oracle.SPECS[name]
    dtype = np.dtype(getattr(ml_dtypes, ML_DTYPES[name], ML_DTYPES[name]))
    rng = np.random.default_rng(3)
    for length in (1, 2, 3, 6, 37, 256, 301):
        codes = mild_codes(spec, length, rng)
        codes = codes[codes & (spec.sign - 1) <= spec.top]
        x = codes.view(dtype)
        s, c = x[0], dtype.type(0)
        with np.errstate(all="ignore"):
            for term in x[1:]:
                y = term - c
                t = s + y
                c = (t - s) - y
                s = t
            level = x
            while level.size > 1:
                pairs = level.size // 2 * 2
                level = np.concatenate([level[:pairs:2] + level[1:pairs:2], level[pairs:]])
        for order, right in (("kahan", s), ("pairwise", level[0])):
            right = spec.nan if np.isnan(np.float64(right)) else int(np.array(right, dtype).view(spec.dtype))
            got = int(numsim.sum(from_codes(codes, name), order=order).codes)
            assert got == right, f"{name} {order} sum of {length}: got {got:#x}, expected {right:#x}"


# -- every order, mode and policy against fractions -------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e5m2fnuz", "fp32", "fp64"])
def test_sums_in_every_mode(name, order, implementation):
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(4)
    codes = mild_codes(spec, (3, 19), rng)
    for rounding in oracle.MODES:
        own = Own(name, rounding)
        right = np.array([own.sum([row], [name], order=order)[-1] for row in codes], spec.dtype)
        got = numsim.sum(from_codes(codes, name), axis=1, order=order, rounding=rounding).codes
        assert_codes(got, right, (np.arange(3),), f"{name} {order} sum, {rounding} (rows)")
        if order != "pairwise":
            right = np.array([own.sum([row], [name], order=order) for row in codes], spec.dtype)
            got = numsim.cumsum(from_codes(codes, name), axis=1, order=order, rounding=rounding).codes
            assert_codes(got, right, (codes,), f"{name} {order} cumsum, {rounding}")


def around_least_normal(spec, shape, rng):
    """Within two powers of two of the least normal number, both signs: what flushing is about."""
    count = int(np.prod(shape))
    codes = rng.integers(0, 3 << spec.fraction, count).astype(np.uint64)
    codes |= np.where(rng.integers(0, 2, count) == 0, np.uint64(spec.sign), np.uint64(0))
    return codes.astype(spec.dtype).reshape(shape)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["fp16", "e4m3fn", "e2m1", "bf16"])
def test_sums_under_policies(name, order, implementation):
    """All 72 policies: numbers near the top with small ones between, and numbers around the least normal one."""
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(5)
    for rounding, overflow, subnormals in POLICIES:
        high = tricky_codes(spec, 7, rng)
        high[1:4:2] = spec.top - rng.integers(0, 2, 2)
        high[2:5:2] = rng.integers(0, 2 << spec.fraction, 2)
        policy = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals}
        for codes in (high, around_least_normal(spec, 9, rng)):
            right = Own(name, **policy).sum([codes], [name], order=order)[-1]
            got = int(numsim.sum(from_codes(codes, name), order=order, **policy).codes)
            shown = " ".join(f"{c:#x}" for c in codes)
            assert got == right, f"{name} {order} {policy}: sum of {shown}: got {got:#x}, expected {right:#x}"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["fp16", "e4m3fn", "e2m1"])
def test_sums_past_the_largest_number(name, order, implementation):
    """The largest number and what is next to half a unit of it: a sum beyond it may still be rounded to it."""
    spec = oracle.SPECS[name]
    half = oracle.encode_fraction((oracle.value_of(spec.top, spec) - oracle.value_of(spec.top - 1, spec)) / 2, spec)
    codes = [[spec.top, c] for c in (0, half - 1, half, half + 1, spec.top)] + [[spec.top - 1, half + 1]]
    codes = np.array([[c | sign for c in row] for row in codes for sign in (0, spec.sign)], spec.dtype)
    for rounding, overflow, subnormals in POLICIES:
        policy = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals}
        right = [Own(name, **policy).sum([row], [name], order=order)[-1] for row in codes]
        got = numsim.sum(from_codes(codes, name), axis=1, order=order, **policy).codes
        assert_codes(got, right, codes.T, f"{name} {order} {policy}")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("product", ["e5m2", None])
def test_products_under_flushing(product, order, implementation):
    """A subnormal factor, product or accumulator is a zero of its sign wherever it is an operand."""
    rng = np.random.default_rng(14)
    spec = oracle.SPECS["e5m2"]
    for rounding, _, subnormals in POLICIES[::3]:
        for _ in range(3):
            a = around_least_normal(spec, (1, 9), rng)
            b = mild_codes(spec, (9, 1), rng)
            policy = {"rounding": rounding, "subnormals": subnormals}
            right = own_matmul(a, b, ("e5m2", "e5m2"), "e5m2", product, order, **policy)
            x, y = from_codes(a, "e5m2"), from_codes(b, "e5m2")
            got = numsim.matmul(x, y, product=product or "exact", order=order, **policy).codes
            assert_codes(got, right, (np.zeros((1, 1), int),), f"{a} times {b.T}, product {product}, {order}, {policy}")


SUM_PAIRS = [("e4m3fn", "fp16"), ("fp16", "fp32"), ("bf16", "fp32"), ("fp32", "bf16"), ("fp32", "fp16"),
             ("e2m1", "e4m3fnuz"), ("fp16", "fp64"), ("tf32", "e5m2"), ("e4m3fnuz", "e3m2")]  # fmt: skip


@pytest.mark.parametrize(("name", "accumulator"), SUM_PAIRS)
def test_accumulators_of_another_format(name, accumulator, implementation):
    """Wider and narrower ones: terms are not rounded before they are added, the first one is."""
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(6)
    for order in ORDERS:
        codes = mild_codes(spec, (3, 13), rng)
        if oracle.SPECS[accumulator].nan is None:
            codes &= spec.dtype(0x3F)  # no NaN, no -0
        right = [Own(accumulator).sum([row], [name], order=order)[-1] for row in codes]
        got = numsim.sum(from_codes(codes, name), axis=-1, accumulator=accumulator, order=order)
        assert got.format.name == accumulator
        assert_codes(got.codes, np.array(right), (np.arange(3),), f"{name} in {accumulator}, {order} (rows)")


MATMULS = [
    # inputs, product (None: exact), accumulator
    (("fp16", "fp16"), "fp16", "fp16"), (("fp16", "fp16"), None, "fp16"), (("fp16", "fp16"), "fp32", "fp32"),
    (("fp16", "fp16"), None, "fp32"), (("bf16", "bf16"), "bf16", "bf16"), (("bf16", "bf16"), None, "fp32"),
    (("bf16", "bf16"), "bf16", "fp32"), (("bf16", "fp16"), None, "bf16"), (("fp32", "fp32"), "fp32", "fp32"),
    (("fp32", "fp32"), None, "fp32"), (("tf32", "tf32"), None, "fp32"), (("e4m3fn", "e5m2"), None, "fp16"),
    (("e4m3fn", "e4m3fn"), "e4m3fn", "fp32"), (("e4m3fn", "e4m3fn"), "e5m2", "fp16"),
    (("e2m1", "e2m1"), None, "e4m3fn"), (("e2m1", "e3m2"), "e2m3", "e3m2"),
    (("e4m3fnuz", "e4m3fnuz"), "e4m3fnuz", "e4m3fnuz"),
    (("fp64", "fp64"), None, "fp64"), (("fp64", "fp64"), "fp64", "fp64"), (("fp16", "fp32"), None, "fp64"),
    (("fp32", "fp32"), "fp16", "fp64"), (("fp16", "fp16"), "fp64", "fp16"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "product", "accumulator"), MATMULS)
def test_matmul_against_fractions(names, product, accumulator, implementation):
    """Product rounded, or fused exact; nearest-even in three orders, then every mode in one."""
    rng = np.random.default_rng(7)
    specs = [oracle.SPECS[n] for n in names]
    a, b = mild_codes(specs[0], (2, 9), rng), mild_codes(specs[1], (9, 3), rng)
    x, y = from_codes(a, names[0]), from_codes(b, names[1])
    cases = [(o, "nearest-even") for o in ORDERS] + [("sequential", r) for r in oracle.MODES[1:]]
    for order, rounding in cases:
        right = own_matmul(a, b, names, accumulator, product, order, rounding=rounding)
        options = {"product": product or "exact", "accumulator": accumulator, "order": order, "rounding": rounding}
        got = numsim.matmul(x, y, **options)
        assert_codes(got.codes, right, np.ix_(range(2), range(3)), f"matmul of {names}, {options} (row, column)")
        got = numsim.dot(
            from_codes(np.repeat(a, 3, 0), names[0]), from_codes(np.tile(b.T, (2, 1)), names[1]), **options
        )
        assert_codes(got.codes, right.reshape(-1), (np.arange(6),), f"dot of {names}, {options} (row)")


def test_a_product_past_the_top_is_no_infinity(kernel):
    """BF16 products reach 2^254; fused into FP32 they are exact until the sum is rounded."""
    big, inf = 2.0**127, float("inf")
    a, b = numsim.array([[-inf, big]], "bf16"), numsim.array([[1.0], [big]], "bf16")
    options = {"product": "exact", "accumulator": "fp32"}
    assert numsim.matmul(a, b, **options).values[0, 0] == -inf  # not inf - inf = NaN
    a, b = numsim.array([[-big, -big, big]], "bf16"), numsim.array([[1.0], [1.0], [big]], "bf16")
    got = numsim.matmul(a, b, overflow="saturate", **options).values[0, 0]
    assert got == float(numsim.FP32.max)  # not max - max = 0


# -- rank-1 loops of other libraries ----------------------------------------------------------------------------------


def normal(shape, rng):
    return rng.standard_normal(shape).astype(np.float32)


def rank_one(a, b, zeros):
    """C = a_0 b_0; C += a_k b_k: each product and each sum rounded to the arrays' type."""
    out = None
    for k in range(a.shape[1]):
        p = a[:, k : k + 1] * b[k : k + 1, :]
        out = p if out is None else out + p
    return zeros if out is None else out


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64", "bf16", "e4m3fn", "e5m2", "e4m3fnuz", "e3m4"])
@pytest.mark.parametrize("shape", [(33, 65, 31), (1, 200, 17), (64, 1, 64), (5, 130, 1)])
def test_matmul_beside_rank_one_loops(name, shape, kernel):
    """numpy and ml_dtypes, with odd sizes; on a scale where FP8 neither stalls at once nor overflows always."""
    spec = oracle.SPECS[name]
    dtype = np.dtype(getattr(ml_dtypes, ML_DTYPES[name], ML_DTYPES[name]))
    m, k, n = shape
    rng = np.random.default_rng(8)
    with np.errstate(all="ignore"):
        a, b = (normal(s, rng).astype(dtype) for s in ((m, k), (k, n)))
        right = rank_one(a, b, None)
    nan = np.isnan(right.astype(np.float64))
    right = np.where(nan, spec.dtype(spec.nan), right.view(spec.dtype))
    got = from_codes(a.view(spec.dtype), name) @ from_codes(b.view(spec.dtype), name)
    assert_codes(got.codes, right, np.ix_(range(m), range(n)), f"{name} {shape} matmul (row, column)")
    assert got.how == f"sequential sum in {name}, products rounded to {name}, nearest-even"


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32"])
def test_matmul_beside_torch(name, kernel):
    torch = pytest.importorskip("torch", reason="torch is the outsider here: pip install torch")
    dtype = getattr(torch, {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[name])
    rng = np.random.default_rng(9)
    a, b = (torch.from_numpy(normal(s, rng)).to(dtype) for s in ((37, 129), (129, 23)))
    right = rank_one(a, b, None).to(torch.float64).numpy()
    x, y = (numsim.array(v.to(torch.float64).numpy(), name) for v in (a, b))
    got = (x @ y).values
    bad = np.argwhere(got != right)
    assert not len(bad), f"{name}: {len(bad)} differ; first at {bad[0]}: {got[tuple(bad[0])]}, {right[tuple(bad[0])]}"


# -- shapes -----------------------------------------------------------------------------------------------------------


def test_shapes_of_matmul(implementation):
    """As np.matmul, for small integers, which all formats here hold exactly."""
    rng = np.random.default_rng(10)
    shapes = [
        ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4)),
        ((0,), (0,)), ((2, 0), (0, 4)), ((0, 3), (3, 4)), ((2, 3), (3, 0)), ((0, 2, 3), (0, 3, 4)), ((5, 2, 0), (0, 4)),
        ((0, 0), (0, 0)), ((1, 1), (1, 1)),
    ]  # fmt: skip
    for left, right in shapes:
        a, b = rng.integers(-3, 4, left).astype(float), rng.integers(-3, 4, right).astype(float)
        for options in ({}, {"product": "exact", "accumulator": "fp32"}, {"order": "kahan"}, {"order": "pairwise"}):
            got = numsim.matmul(numsim.array(a, "fp16"), numsim.array(b, "fp16"), **options)
            expected = np.matmul(a, b)
            assert got.shape == expected.shape, (left, right, got.shape)
            assert np.array_equal(got.values, expected), (left, right, options)
            assert got.codes.dtype == (np.uint32 if options.get("accumulator") else np.uint16)
    for left, right in (((2, 3), (2, 3)), ((3,), (4,)), ((2, 3), (4,)), ((2, 2, 3), (3, 3, 4)), ((), (3,))):
        with pytest.raises(InputError, match="matmul: "):
            numsim.matmul(numsim.array(np.ones(left), "fp16"), numsim.array(np.ones(right), "fp16"))


def test_shapes_of_sums(implementation):
    for shape in ((), (0,), (1,), (0, 3), (3, 0), (2, 3, 4)):
        x = np.ones(shape)
        for axis in (None, *range(-len(shape), len(shape))):
            for order in ORDERS:
                got = numsim.sum(numsim.array(x, "bf16"), axis=axis, order=order)
                assert got.shape == np.sum(x, axis=axis).shape and np.array_equal(got.values, np.sum(x, axis=axis))
            got = numsim.cumsum(numsim.array(x, "bf16"), axis=axis)
            assert np.array_equal(got.values, np.cumsum(x, axis=axis)), (shape, axis)
    x = numsim.array(np.ones((2, 0)), "bf16")
    assert np.array_equal(numsim.dot(x, x).values, [0.0, 0.0]) and not np.signbit(numsim.dot(x, x).values).any()


def test_an_empty_sum_is_plus_zero_in_every_mode(implementation):
    x = numsim.array([], "fp16")
    for rounding in oracle.MODES:
        assert numsim.sum(x, rounding=rounding).codes == 0
        assert numsim.matmul(x, x, rounding=rounding).codes == 0


@pytest.mark.parametrize("order", ORDERS)
def test_sums_of_negative_zeros(order, implementation):
    """-0 + -0 = -0: a sum starts from its first term, not from +0."""
    x = numsim.array([-0.0] * 5, "fp16")
    assert numsim.sum(x, order="sequential").codes == 0x8000
    assert int(numsim.sum(x, order=order).codes) == Own("fp16").sum([x.codes], ["fp16"], order=order)[-1]
    one = numsim.array([1.0] * 5, "fp16")
    assert numsim.dot(x, one).codes == numsim.matmul(x[None], one[:, None]).codes[0, 0] == 0x8000
    assert numsim.dot(x, one, product="exact", accumulator="fp32").codes == 0x80000000


# -- numbers that the course quotes -----------------------------------------------------------------------------------


def test_a_hundredth_a_thousand_times(implementation):
    """CS336: FP16 gives 9.953125, FP32 10.000133."""
    right = {"fp16": 9.953125, "fp32": float(np.add.accumulate(np.full(1000, 0.01, np.float32))[-1]), "bf16": 4.0}
    for name, value in right.items():
        assert float(numsim.sum(numsim.array(np.full(1000, 0.01), name))) == value, name
    assert abs(right["fp32"] - 10.000133) < 1e-6


def test_master_weight_in_bf16(implementation):
    """1 and a thousand times 1e-4: plain stays at 1, Kahan reaches 1.1015625, an FP32 accumulator 1.1."""
    x = numsim.array([1.0, *[1e-4] * 1000], "bf16")
    assert float(numsim.sum(x)) == 1.0
    assert float(numsim.sum(x, order="kahan")) == 1.1015625
    assert abs(float(numsim.sum(x, accumulator="fp32")) - 1.1001) < 1e-4


@pytest.mark.parametrize(
    ("name", "step", "stall"),
    [("fp16", 1, 2048), ("bf16", 1, 256), ("e4m3", 1, 16), ("e5m2", 1, 8), ("fp16", 0.1, 256), ("bf16", 0.1, 32)],
)
def test_where_sums_stall(name, step, stall, kernel):
    running = numsim.cumsum(numsim.array(np.full(4100, step), name)).values
    assert running[-1] == stall and running[-2] == stall


# -- stochastic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [4, 32])
@pytest.mark.parametrize("order", ORDERS)
def test_counters_of_sums(order, r, implementation):
    """As the docstring of numsim.accumulate numbers them: sum o of n terms owns the counters from o n uses on."""
    name, spec = "bf16", oracle.SPECS["bf16"]
    rng = np.random.default_rng(11)
    rows, n, uses = 3, 11, {"kahan": 4}.get(order, 1)
    codes = mild_codes(spec, (rows, n), rng)
    position = 2**32 - 20  # the keys change in the middle
    count = rows * n * uses

    def draws(counter):
        return numsim.random.bits(77, position + counter) >> (32 - r)

    own = Own(name, "stochastic", draws=draws, r=r)
    right = [own.sum([row], [name], order=order, first=o * n * uses)[-1] for o, row in enumerate(codes)]
    options = {"axis": 1, "order": order, "rounding": "stochastic", "sr_bits": r}
    if order != "pairwise":
        trail = [own.sum([row], [name], order=order, first=o * n * uses) for o, row in enumerate(codes)]
        got = numsim.cumsum(from_codes(codes, name), seed=Stream(77, position), **options).codes
        assert_codes(got, np.array(trail), (codes,), f"{order} running sum, {r} bits by seed")
    stream = Stream(77, position)
    got = numsim.sum(from_codes(codes, name), seed=stream, **options).codes
    assert_codes(got, np.array(right), (np.arange(rows),), f"{order}, {r} bits by seed (row)")
    assert stream.position == position + count
    bits = np.array([draws(i) for i in range(count)], np.uint32)
    got = numsim.sum(from_codes(codes, name), random_bits=bits, **options).codes
    assert_codes(got, np.array(right), (np.arange(rows),), f"{order}, {r} bits given (row)")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("product", ["e4m3fn", None])
def test_counters_of_products(product, order, implementation):
    """Term i owns ``uses`` counters, the first for its product if that is rounded; outputs and batches in C order."""
    names, target = ("e4m3fn", "e4m3fn"), "bf16"
    rng = np.random.default_rng(12)
    batch, m, k, n = 2, 2, 5, 3
    a, b = (mild_codes(oracle.SPECS["e4m3fn"], s, rng) for s in ((batch, m, k), (batch, k, n)))
    uses = {"kahan": 4}.get(order, 1) + (product is not None)
    position = 2**32 - 37

    def draws(counter):
        return numsim.random.bits(78, position + counter)

    options = {"product": product or "exact", "accumulator": target, "order": order, "rounding": "stochastic"}
    right = np.stack([
        own_matmul(a[i], b[i], names, target, product, order, rounding="stochastic",
                   draws=lambda c, i=i: draws(i * m * n * k * uses + c))
        for i in range(batch)
    ])  # fmt: skip
    x, y = from_codes(a, names[0]), from_codes(b, names[1])
    own = Own(target, "stochastic", draws=draws)
    rows = [numsim.from_codes(v.reshape(-1, k), "e4m3fn") for v in (a, b.transpose(0, 2, 1)[:, :m])]
    firsts = [own.sum([u, v], names, product, order, o * k * uses)[-1]
              for o, (u, v) in enumerate(zip(*(r.codes.tolist() for r in rows), strict=True))]  # fmt: skip
    got = numsim.dot(*rows, seed=Stream(78, position), **options).codes
    assert_codes(got, np.array(firsts), (np.arange(batch * m),), f"dot, {options} by seed (row)")
    stream = Stream(78, position)
    got = numsim.matmul(x, y, seed=stream, **options).codes
    where = np.ix_(range(batch), range(m), range(n))
    assert_codes(got, right, where, f"{options} by seed (batch, row, column)")
    assert stream.position == position + batch * m * n * k * uses
    bits = np.array([draws(i) for i in range(batch * m * n * k * uses)], np.uint32)
    got = numsim.matmul(x, y, random_bits=bits, **options).codes
    assert_codes(got, right, where, f"{options}, bits given (batch, row, column)")


def test_any_number_of_threads(kernel, monkeypatch):
    """Several chunks of rows, random numbers included."""
    rng = np.random.default_rng(13)
    x = numsim.array(rng.standard_normal((700, 900)), "bf16")
    a, b = (numsim.array(rng.standard_normal(s), "fp16") for s in ((75, 140), (140, 120)))
    stochastic = {"rounding": "stochastic"}
    got = {}
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("NUMSIM_THREADS", threads)
        got[threads] = [
            numsim.sum(x, axis=1).codes,
            numsim.sum(x, axis=1, order="pairwise", seed=Stream(1, 2**32 - 300_000), **stochastic).codes,
            numsim.cumsum(x, axis=1, rounding="up").codes,
            (a @ b).codes,
            numsim.matmul(a, b, product="exact", seed=Stream(2, 2**32 - 500_000), **stochastic).codes,
        ]
    for threads in ("2", "5"):
        for i, (one, many) in enumerate(zip(got["1"], got[threads], strict=True)):
            assert np.array_equal(one, many), f"job {i} on {threads} threads: {int((one != many).sum())} differ"


def test_stochastic_keeps_what_is_exact(kernel):
    """Small integers add up exactly in FP16: no draw moves them."""
    x = numsim.array(np.arange(60.0), "fp16")
    for seed in range(20):
        for order in ORDERS:
            assert float(numsim.sum(x, order=order, rounding="stochastic", seed=seed)) == 1770.0


def test_stochastic_mean(kernel):
    """w = 1, 1e-4 a thousand times in BF16: the mean of 2,000 sums is 1.1001 (1e-4 is 1.0014e-4 in BF16).

    Each addition moves w by 2^-7 with probability 0.0128: the standard deviation of a sum is 2^-7 sqrt(1000 0.0128)
    = 0.028, that of the mean 6.2e-4; the band is four of them. Nearest-even stays at 1."""
    x = np.full((2000, 1001), 1e-4)
    x[:, 0] = 1.0
    mean = numsim.sum(numsim.array(x, "bf16"), axis=1, rounding="stochastic", seed=5).values.mean()
    assert abs(mean - (1 + 1000 * float(numsim.round_to(1e-4, "bf16")))) < 4 * 6.2e-4, mean


def test_random_bits_are_one_for_each_use(implementation):
    x = numsim.array([1.0, 2.0, 3.0], "bf16")
    for order, uses in (("sequential", 1), ("kahan", 4)):
        for count in (3 * uses - 1, 3 * uses + 1):
            with pytest.raises(InputError, match="random_bits of shape"):
                numsim.sum(x, order=order, rounding="stochastic", random_bits=np.zeros(count, np.uint32))
    got = numsim.sum(x, rounding="stochastic", random_bits=np.zeros(3, np.uint8))
    assert float(got) == 6.0


# -- words and refusals -----------------------------------------------------------------------------------------------


def test_what_was_done_is_named():
    x = numsim.array([1.0, 2.0], "bf16")
    assert numsim.sum(x).how == "sequential sum in bf16, nearest-even"
    how = numsim.dot(x, x, accumulator="fp32", product="exact", order="kahan", rounding="up", overflow="saturate",
                     subnormals="flush").how  # fmt: skip
    assert how == "kahan sum in fp32, exact products (fused), up, overflow saturate, subnormals flush"
    assert (x @ x).how == "sequential sum in bf16, products rounded to bf16, nearest-even"


def test_refusals(implementation):
    x, y = numsim.array([1.0, 2.0], "bf16"), numsim.array([1.0, 2.0], "fp16")
    with pytest.raises(InputError, match=r"order='tree': allowed are sequential, kahan, .* Example"):
        numsim.sum(x, order="tree")
    with pytest.raises(InputError, match="order='pairwise' has no running sum"):
        numsim.cumsum(x, order="pairwise")
    with pytest.raises(InputError, match="axis=1"):
        numsim.sum(x, axis=1)
    with pytest.raises(InputError, match="formats bf16 and fp16"):
        numsim.matmul(x, y)
    with pytest.raises(InputError, match=r"dot: shapes \(2,\) and \(1,\)"):
        numsim.dot(x, x[:1])
    with pytest.raises(InputError, match="NaN has no code in e2m1"):
        numsim.sum(numsim.array([np.nan], "fp16"), accumulator="e2m1")
    with pytest.raises(InputError, match="either seed= or random_bits="):
        numsim.sum(x, rounding="stochastic")
    with pytest.raises(numsim.errors.FormatError, match="unknown format"):
        numsim.sum(x, accumulator="fp8")
