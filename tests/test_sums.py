"""Every order of a sum against outsiders: each order once more as the textbook's lines, in fractions rounded by the
integer oracle; typed loops of NumPy and ml_dtypes; NumPy's own sums; ``math.fsum`` and MPFR for exact ones."""

import math
from fractions import Fraction

import gmpy2
import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.accumulate import ORDERS, RUNNING
from numsim.errors import InputError
from numsim.machines import get_machine
from numsim.machines.question import ask
from numsim.random import Stream, bits
from tests import oracle, test_arithmetic
from tests.test_accumulate import Own, around_least_normal, from_codes, mild_codes
from tests.test_arithmetic import ML_DTYPES, POLICIES, assert_codes, exact, flushed, number, rounded, tricky_codes

implementation, kernel = test_arithmetic.implementation, test_arithmetic.kernel  # fixtures

NEW = ("neumaier", "double-word", "exact", "pairwise:4", "blocked:4", "blocked:1", "pairwise:numpy")
USES = {"neumaier": 5, "double-word": 10}  # random draws a term


# -- the outsider -----------------------------------------------------------------------------------------------------


def corrects(x):
    """A correction that is zero or not finite is left out."""
    return not isinstance(x[1], str) and x[1] != 0


def chunks(n, size):
    return [range(i, min(i + size, n)) for i in range(0, n, size)]


def left_to_right(parts):
    out = parts[0]
    for part in parts[1:]:
        out = (out, part)
    return out


def in_halves(parts):
    """Level by level from the left is: the largest power of two that is less than all, and the rest."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return in_halves(parts[:half]), in_halves(parts[half:])


def as_numpy(places):
    n = len(places)
    if n < 8:
        return left_to_right(places)
    if n <= 128:
        r = [left_to_right(places[i : n - n % 8 : 8]) for i in range(8)]
        return left_to_right([(((r[0], r[1]), (r[2], r[3])), ((r[4], r[5]), (r[6], r[7]))), *places[n - n % 8 :]])
    half = n // 2 - (n // 2) % 8
    return as_numpy(places[:half]), as_numpy(places[half:])


def shape_of(order, n):
    """The nested tuples of a tree order."""
    if isinstance(order, tuple):
        return order
    kind, _, size = order.partition(":")
    if size == "numpy":
        return as_numpy(list(range(n)))
    parts = [left_to_right(list(c)) for c in chunks(n, int(size or 1))]
    return in_halves(parts) if kind == "pairwise" else left_to_right(parts)


class Steps(Own):
    """One sum in fractions, line by line: what ``numsim.accumulate`` promises."""

    def run(self, factors, names, order, product=None, first=0):
        """Running sums as codes; of a tree the sum alone."""
        specs = [oracle.SPECS[n] for n in names]
        self.uses = USES.get(order, 1) + (product is not None)
        self.first = first
        terms = []
        for i, row in enumerate(zip(*factors, strict=True)):
            x = [flushed(number(int(c), s), s, self.policy[2]) for c, s in zip(row, specs, strict=True)]
            term = x[0] if len(x) == 1 else exact("mul", *x)
            if product is not None:
                _, term = self.round(term, oracle.SPECS[product], first + i * self.uses)
            terms.append(term)
        self.terms = terms
        if not terms:
            return [0]
        if order in ("neumaier", "double-word", "exact"):
            return getattr(self, order.replace("-", "_"))()
        code, _ = self.node(shape_of(order, len(terms)))
        return [self.round(self.terms[0], self.target, self.last(0))[0] if code is None else code]

    def last(self, i):
        return self.first + (i + 1) * self.uses - 1

    def node(self, tree):
        """Code and number of a subtree."""
        if isinstance(tree, int):
            return None, self.terms[tree]
        numbers = [self.node(t)[1] for t in tree]
        total = numbers[0]
        for x in numbers[1:]:
            total = exact("add", total, x, rounding=self.policy[0])
        second = tree[1]
        while isinstance(second, tuple):
            second = second[0]
        return self.round(total, self.target, self.last(second))

    def neumaier(self):
        """Neumaier 1974: W += s - t + x, or x - t + s, the larger one first; in the end s + W."""
        code, s = self.round(self.terms[0], self.target, self.last(0))
        out, w = [code], (False, Fraction(0))
        for i, x in enumerate(self.terms[1:], 1):
            at = self.last(i)
            code, t = self.add(s, x, at - 4)
            sizes = [math.inf if v[1] == "inf" else 0 if v[1] == "nan" else v[1] for v in (s, x)]
            big, small = (s, x) if sizes[0] >= sizes[1] else (x, s)
            _, error = self.sub(big, t, at - 3)
            _, error = self.add(error, small, at - 2)
            _, w = self.add(w, error, at - 1)
            s = t
            out.append(self.add(s, w, at)[0] if corrects(w) else code)
        return out

    def double_word(self):
        """Joldes, Muller, Popescu 2017, algorithm 4: TwoSum, an addition, FastTwoSum."""
        code, high = self.round(self.terms[0], self.target, self.last(0))
        out, low = [code], (False, Fraction(0))
        for i, y in enumerate(self.terms[1:], 1):
            step = iter(range(self.last(i) - 9, self.last(i) + 1))
            code, s = self.add(high, y, next(step))
            _, aa = self.sub(s, y, next(step))
            _, bb = self.sub(s, aa, next(step))
            _, da = self.sub(high, aa, next(step))
            _, db = self.sub(y, bb, next(step))
            _, e = self.add(da, db, next(step))
            _, v = self.add(low, e, next(step))
            high, low = s, (False, Fraction(0))
            if corrects(v):
                code, high = self.add(s, v, next(step))
                _, z = self.sub(high, s, next(step))
                _, low = self.sub(v, z, next(step))
            out.append(code)
        return out

    def exact(self):
        out = []
        for n in range(1, len(self.terms) + 1):
            terms = self.terms[:n]
            kinds = {(negative, size) for negative, size in terms if isinstance(size, str)}
            signs = {negative for negative, _ in terms}
            total = sum((-x if negative else x for negative, x in terms if not isinstance(x, str)), Fraction(0))
            if any(size == "nan" for _, size in kinds) or len(kinds) == 2:
                x = (False, "nan")
            elif kinds:
                x = next(iter(kinds))
            elif total == 0 and len(signs) == 1 and not any(x for _, x in terms):
                x = (signs.pop(), Fraction(0))
            else:
                x = (total < 0 or (total == 0 and self.policy[0] == "down"), abs(total))
            out.append(self.round(x, self.target, self.last(n - 1))[0])
        return out


def random_tree(rng, n, arity=2):
    parts = [int(i) for i in rng.permutation(n)]
    while len(parts) > 1:
        count = min(int(rng.integers(2, arity + 1)), len(parts))
        i = int(rng.integers(0, len(parts) - count + 1))
        parts[i : i + count] = [tuple(parts[i : i + count])]
    return parts[0]


# -- every order, mode and policy against the lines -------------------------------------------------------------------


@pytest.mark.parametrize("order", NEW)
@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "fp32", "fp64"])
def test_sums_in_every_mode(name, order, implementation):
    spec = oracle.SPECS[name]
    rng = np.random.default_rng(1)
    for n in (1, 2, 13):
        codes = mild_codes(spec, (2, n), rng)
        for rounding in oracle.MODES:
            steps = Steps(name, rounding)
            right = [steps.run([row], [name], order) for row in codes]
            x, options = from_codes(codes, name), {"axis": 1, "order": order, "rounding": rounding}
            got = numsim.sum(x, **options).codes
            assert_codes(got, [r[-1] for r in right], (np.arange(2),), f"{name} {order} sum of {n}, {rounding}")
            if order in RUNNING:
                got = numsim.cumsum(x, **options).codes
                assert_codes(got, np.array(right), (codes,), f"{name} {order} cumsum of {n}, {rounding}")


@pytest.mark.parametrize("order", NEW)
def test_sums_under_policies(order, implementation):
    """All 72 policies: near the top, and around the least normal number, where flushing shows."""
    rng = np.random.default_rng(2)
    for name in ("e4m3fn", "fp16", "e2m1"):
        spec = oracle.SPECS[name]
        for rounding, overflow, subnormals in POLICIES:
            high = tricky_codes(spec, 7, rng)
            high[1:4:2] = spec.top - rng.integers(0, 2, 2)
            policy = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals}
            for codes in (high, around_least_normal(spec, 9, rng)):
                right = Steps(name, **policy).run([codes], [name], order)[-1]
                got = int(numsim.sum(from_codes(codes, name), order=order, **policy).codes)
                shown = " ".join(f"{c:#x}" for c in codes)
                assert got == right, f"{name} {order} {policy}: sum of {shown}: got {got:#x}, expected {right:#x}"


@pytest.mark.parametrize("arity", [2, 4])
def test_any_tree(arity, implementation):
    """Shapes at random; brackets of three and more are added exactly."""
    rng = np.random.default_rng(3)
    for name, accumulator in (("fp16", "fp16"), ("bf16", "fp32"), ("fp32", "bf16"), ("fp64", "fp64")):
        for n in (2, 3, 8, 30):
            codes = mild_codes(oracle.SPECS[name], (3, n), rng)
            tree = random_tree(rng, n, arity)
            for rounding in ("nearest-even", "down"):
                steps = Steps(accumulator, rounding)
                right = [steps.run([row], [name], tree)[-1] for row in codes]
                got = numsim.sum(
                    from_codes(codes, name), axis=1, accumulator=accumulator, order=tree, rounding=rounding
                )
                assert_codes(got.codes, right, (np.arange(3),), f"{name} in {accumulator}, {tree}, {rounding} (rows)")


@pytest.mark.parametrize("order", [*NEW, ((2, 0), ((4, 3), 1)), ((2, 0), (4, 3, 1))])
def test_products_in_every_order(order, implementation):
    """Products rounded or exact, accumulators of another format, as dot and as matmul."""
    rng = np.random.default_rng(4)
    ways = ((("fp16", "fp16"), "fp16", "fp16"), (("fp16", "fp16"), None, "fp32"), (("e4m3fn", "e5m2"), "fp16", "bf16"),
            (("fp32", "fp32"), None, "fp32"), (("fp32", "fp32"), None, "fp64"), (("fp64", "fp64"), None, "fp64"),
            (("fp64", "fp64"), "fp64", "fp64"))  # fmt: skip
    for names, product, accumulator in ways:
        a, b = (mild_codes(oracle.SPECS[n], (2, 5), rng) for n in names)
        for rounding in ("nearest-even", "up"):
            steps = Steps(accumulator, rounding)
            options = {"product": product or "exact", "accumulator": accumulator, "order": order, "rounding": rounding}
            right = np.array([[steps.run([u, v], names, order, product)[-1] for v in b] for u in a])
            x, y = from_codes(a, names[0]), from_codes(b, names[1])
            got = numsim.matmul(x, numsim.from_codes(b.T, names[1]), **options).codes
            assert_codes(got, right, np.ix_(range(2), range(2)), f"matmul of {names}, {options} (row, column)")
            got = numsim.dot(x, y, **options).codes
            assert_codes(got, right.diagonal(), (np.arange(2),), f"dot of {names}, {options} (row)")


@pytest.mark.parametrize("order", [*NEW, random_tree(np.random.default_rng(5), 11)])
@pytest.mark.parametrize("product", [None, "e4m3fn"])
def test_counters(order, product, implementation):
    """Sum o of n terms owns the counters from o n uses on; in a tree an addition has its second operand's first one."""
    rng = np.random.default_rng(6)
    names = ["e4m3fn"] * (1 if product is None else 2)
    codes = [mild_codes(oracle.SPECS["e4m3fn"], (3, 11), rng) for _ in names]
    uses = USES.get(order, 1) + (product is not None)
    position = 2**32 - 60  # the keys change on the way
    steps = Steps("bf16", "stochastic", draws=lambda c: bits(5, position + c))
    right = [steps.run([c[o] for c in codes], names, order, product, o * 11 * uses) for o in range(3)]
    options = {"accumulator": "bf16", "order": order, "rounding": "stochastic"}
    stream, x = Stream(5, position), [from_codes(c, "e4m3fn") for c in codes]
    got = numsim.sum(*x, axis=1, seed=stream, **options) if product is None else (
        numsim.dot(*x, product=product, seed=stream, **options))  # fmt: skip
    assert_codes(got.codes, [r[-1] for r in right], (np.arange(3),), f"{order}, product {product} (row)")
    assert stream.position == position + 3 * 11 * uses
    if product is None and order in RUNNING:
        got = numsim.cumsum(*x, axis=1, seed=Stream(5, position), **options).codes
        assert_codes(got, np.array(right), (codes[0],), f"{order} running sum")


# -- beside typed arithmetic, NumPy's sums, math.fsum and MPFR --------------------------------------------------------


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64", "bf16"])
def test_compensated_beside_typed_loops(name, kernel):
    """The textbook lines on scalars of NumPy and ml_dtypes."""
    spec = oracle.SPECS[name]
    dtype = np.dtype(getattr(ml_dtypes, ML_DTYPES[name], ML_DTYPES[name]))
    rng = np.random.default_rng(7)
    for length in (2, 37, 400):
        x = (rng.standard_normal(length) * 2.0 ** rng.integers(-6, 7, length)).astype(dtype)
        s, w = x[0], dtype.type(0)
        high, low = x[0], dtype.type(0)
        for y in x[1:]:
            t = s + y
            w = w + (((s - t) + y) if abs(s) >= abs(y) else ((y - t) + s))
            s = t
            t = high + y
            a = t - y
            b = t - a
            v = low + ((high - a) + (y - b))
            high = t + v
            low = v - (high - t)
        for order, right in (("neumaier", s + w), ("double-word", high)):
            got = int(numsim.sum(from_codes(x.view(spec.dtype), name), order=order).codes)
            assert got == int(np.array(right, dtype).view(spec.dtype)), (name, order, length)


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_numpys_own_sums(name, implementation):
    spec, dtype = oracle.SPECS[name], {"fp32": np.float32, "fp64": np.float64}[name]
    rng = np.random.default_rng(8)
    for n in (*range(1, 40), 127, 128, 129, 255, 256, 257, 1000, 5001):
        x = (rng.standard_normal(n) * 2.0 ** rng.integers(-9, 9, n)).astype(dtype)
        got = numsim.sum(from_codes(x.view(spec.dtype), name), order="pairwise:numpy").codes
        assert got == np.sum(x).view(spec.dtype), f"{name} sum of {n}"
        mean = numsim.mean(from_codes(x.view(spec.dtype), name), order="pairwise:numpy").codes
        assert mean == np.mean(x).view(spec.dtype), f"{name} mean of {n}"


def test_numpys_float16_sums(kernel):
    """NumPy adds float16 in float32 registers and rounds once: order and accumulator are two things."""
    rng = np.random.default_rng(9)
    for n in (1, 5, 8, 100, 129, 1000, 4097):
        x = rng.standard_normal(n).astype(np.float16)
        for function, numpys in ((numsim.sum, np.sum), (numsim.mean, np.mean)):
            wide = function(from_codes(x.view(np.uint16), "fp16"), accumulator="fp32", order="pairwise:numpy")
            assert numsim.encode(wide, "fp16") == numpys(x).view(np.uint16), (n, numpys)


def hard_sums(dtype, rng):
    """Rows of numbers of all sizes, with much cancellation; subnormal and largest numbers among them."""
    info = np.finfo(dtype)
    for n, low, high in ((10, -3, 3), (300, info.minexp - 20, info.maxexp - 12), (1000, -40, 40), (501, -120, -90)):
        with np.errstate(under="ignore"):
            x = np.ldexp(rng.standard_normal(n), rng.integers(low, high, n)).astype(dtype)
        yield x
        x = np.concatenate([x, -x, x[:3] * dtype(2.0**-20)])
        yield rng.permutation(x)
    yield np.array([info.max] * 3 + [-info.max] * 3 + [info.smallest_subnormal], dtype)
    yield np.array([info.max, info.smallest_subnormal, -info.smallest_subnormal], dtype)
    yield np.array([1, info.eps / 2, info.smallest_subnormal], dtype)  # just above a tie
    yield np.array([1, info.eps / 2, -info.smallest_subnormal], dtype)  # just below


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_exact_beside_mpfr(name, implementation):
    """mpfr_sum is correctly rounded, in all of its modes."""
    dtype, precision, emin, emax = {
        "fp32": (np.float32, 24, -148, 128),
        "fp64": (np.float64, 53, -1073, 1024),
    }[name]
    spec, modes = oracle.SPECS[name], {
        "nearest-even": gmpy2.RoundToNearest, "toward-zero": gmpy2.RoundToZero, "up": gmpy2.RoundUp,
        "down": gmpy2.RoundDown,
    }  # fmt: skip
    for x in hard_sums(dtype, np.random.default_rng(10)):
        for rounding, mode in modes.items():
            with gmpy2.context(precision=precision, emin=emin, emax=emax, subnormalize=True, round=mode):
                right = dtype(float(gmpy2.fsum([gmpy2.mpfr(float(v)) for v in x])))
            got = numsim.sum(from_codes(x.view(spec.dtype), name), order="exact", rounding=rounding).codes
            right = right.view(spec.dtype)
            assert got == right, f"{name}, {rounding}, {x.size} terms: {int(got):#x}, MPFR {int(right):#x}"
        if name == "fp64" and np.abs(x).max() < 2.0**1000:  # fsum overflows midway
            assert float(numsim.sum(from_codes(x.view(np.uint64), name), order="exact")) == math.fsum(x)


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e5m2", "e3m2", "tf32", "fp64"])
def test_exact_sums_into_another_format(name, kernel):
    """Fractions added, rounded once by the oracle; FP64 terms, too, whose sums leave float64's range both ways."""
    spec, rng = oracle.SPECS[name], np.random.default_rng(11)
    for n in (3, 600):
        codes = rng.integers(0, 1 << spec.bits, (4, n), dtype=np.uint64).astype(spec.dtype)
        codes = np.where(codes & (spec.sign - 1) > spec.top, 0, codes).astype(spec.dtype)
        codes[1] %= spec.dtype(100)  # subnormal sums
        for target in ("fp32", "bf16", "e5m2", name):
            for rounding in ("nearest-even", "up", "odd"):
                got = numsim.sum(from_codes(codes, name), axis=1, order="exact", accumulator=target, rounding=rounding)
                for row, code in zip(codes, got.codes.tolist(), strict=True):
                    total = sum((oracle.value_of(int(c), spec) for c in row), Fraction(0))
                    right = rounded((total < 0, abs(total)), oracle.SPECS[target], rounding)
                    assert code == right, f"{name}, {n} terms in {target}, {rounding}: {code:#x}, right {right:#x}"


def test_exact_sums_forget_the_order(kernel):
    """The same bits for every permutation, stride and byte order, also as a dot product with ones."""
    rng = np.random.default_rng(12)
    x = (rng.standard_normal(3000) * 2.0 ** rng.integers(-30, 30, 3000)).astype(np.float32)
    right = numsim.sum(numsim.array(x, "fp32"), order="exact").codes
    assert right == np.float32(math.fsum(x.astype(float))).view(np.uint32)  # (53 bits first: no tie here)
    ones = numsim.array(np.ones(3000), "fp32")
    for y in (x[::-1], rng.permutation(x), x.astype(">f4"), np.repeat(x, 2)[::2]):
        y = numsim.array(y, "fp32")
        assert numsim.sum(y, order="exact").codes == right
        assert numsim.dot(y, ones, product="exact", order="exact").codes == right


# -- special values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_special_values(order, implementation):
    inf, nan = float("inf"), float("nan")
    for name in ("fp16", "fp32", "bf16", "fp64"):

        def total(terms, name=name, **options):
            return float(numsim.sum(numsim.array(terms, name), order=order, **options))

        assert math.isnan(total([1.0, nan, 2.0, 3.0])) and math.isnan(total([inf, 1.0, -inf]))
        for terms in ([1.0, inf, 2.0, 3.0, 4.0], [inf, 5.0], [-7.0, 1.0, inf]):
            one = total(terms)
            assert one == inf or (order == "kahan" and math.isnan(one)), (name, terms, one)
            one = total([-x for x in terms])
            assert one == -inf or (order == "kahan" and math.isnan(one)), (name, terms, one)
        for count in (1, 2, 9, 300):
            zero = total([-0.0] * count)
            assert zero == 0 and math.copysign(1, zero) == -1, (name, count)
            if order != "kahan":  # whose first line is 0 - 0
                assert math.copysign(1, total([0.0] * count, rounding="down")) == 1
        assert math.copysign(1, total([0.0, -0.0, 1.0, -1.0])) == 1
        assert math.copysign(1, total([0.0, -0.0])) == math.copysign(1, total([-0.0, 0.0])) == 1
        assert math.copysign(1, total([0.0, -0.0], rounding="down")) == -1
        assert total([]) == 0 and math.copysign(1, total([])) == 1
        assert total([3.0]) == 3.0
        largest = float(numsim.get_format(name).max)
        midway = total([largest, largest, -largest, -largest, 1.0])
        assert midway == 1.0 if order == "exact" else not math.isfinite(midway), (name, midway)
        assert total([largest, largest]) == inf
        assert total([largest, largest], overflow="saturate") == largest


def test_what_each_order_keeps(implementation):
    """Swamping: 2048 and a thousand ones in FP16, then -2048. Kahan loses what a larger term pushes out."""
    x = numsim.array([2048.0, *[1.0] * 1000, -2048.0], "fp16")
    found = {order: float(numsim.sum(x, order=order)) for order in ("sequential", "kahan", "neumaier", "double-word")}
    assert found == {"sequential": 0.0, "kahan": 1000.0, "neumaier": 1000.0, "double-word": 1000.0}
    x = numsim.array([1.0, 1e4, 1.0, -1e4], "bf16")  # Neumaier's own example
    found = {order: float(numsim.sum(x, order=order)) for order in ("kahan", "neumaier", "double-word", "exact")}
    assert found == {"kahan": 0.0, "neumaier": 2.0, "double-word": 2.0, "exact": 2.0}


def test_strides_bytes_and_threads(kernel, monkeypatch):
    rng = np.random.default_rng(13)
    values = rng.standard_normal((37, 9000)).astype(np.float32)
    for name in ("fp32", "fp16"):
        x = numsim.array(values, name)
        for order in ORDERS:
            got = {}
            for threads in ("1", "3"):
                monkeypatch.setenv("NUMSIM_THREADS", threads)
                got[threads] = numsim.sum(x, axis=1, order=order).codes
            assert np.array_equal(got["1"], got["3"]), (name, order)
            swapped = numsim.array(values.astype(">f4"), name)
            assert np.array_equal(numsim.sum(swapped[::-1], axis=1, order=order).codes[::-1], got["1"]), (name, order)
            turned = numsim.sum(x.T, axis=0, order=order).codes
            assert np.array_equal(turned, got["1"]), (name, order)


# -- means and norms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["sequential", "pairwise", "neumaier", "exact"])
def test_means(order, implementation):
    """The sum as it is, divided by an exact number of terms: one more rounding."""
    rng = np.random.default_rng(14)
    for name, accumulator in (("fp16", "fp16"), ("e4m3fn", "bf16"), ("bf16", "fp32")):
        codes = mild_codes(oracle.SPECS[name], (4, 13), rng)
        spec = oracle.SPECS[accumulator]
        for rounding in oracle.MODES:
            options = {"axis": 1, "accumulator": accumulator, "order": order, "rounding": rounding}
            sums = numsim.sum(from_codes(codes, name), **options)
            count = (False, Fraction(13))
            right = [rounded(exact("div", number(int(c), spec), count), spec, rounding) for c in sums.codes]
            got = numsim.mean(from_codes(codes, name), **options)
            assert_codes(got.codes, right, (np.arange(4),), f"{name} {order} mean in {accumulator}, {rounding} (rows)")
            assert got.how == f"{sums.how}, divided by 13 and rounded to {accumulator}"


def test_mean_of_a_count_that_the_format_lacks(implementation):
    """2049 is no FP16 number: divided by 2048 the mean of as many ones would be 1."""
    x = numsim.array(np.ones(2049), "fp16")
    assert float(numsim.mean(x, order="exact")) == 1 - 2.0**-11  # 2048 / 2049, rounded
    assert math.isnan(float(numsim.mean(numsim.array([], "fp16"))))
    assert np.isnan(numsim.mean(numsim.array(np.ones((2, 0)), "fp16"), axis=1).values).all()


def test_draws_of_means_and_norms(implementation):
    """Divisions and roots use the counters after those of the sums."""
    rng = np.random.default_rng(15)
    x = from_codes(mild_codes(oracle.SPECS["e4m3fn"], (3, 7), rng), "e4m3fn")
    spec = oracle.SPECS["bf16"]
    options = {"axis": 1, "accumulator": "bf16", "rounding": "stochastic"}
    stream = Stream(9, 100)
    got = numsim.mean(x, seed=stream, **options).codes
    sums = numsim.sum(x, seed=Stream(9, 100), **options).codes
    assert stream.position == 100 + 21 + 3
    for o, (code, total) in enumerate(zip(got.tolist(), sums.tolist(), strict=True)):
        quotient = exact("div", number(total, spec), (False, Fraction(7)))
        assert code == rounded(quotient, spec, "stochastic", random=bits(9, 121 + o)), o
    stream = Stream(9, 100)
    got = numsim.norm(x, seed=stream, **options).codes
    assert stream.position == 100 + 42 + 3
    squares = numsim.dot(x, x, accumulator="bf16", rounding="stochastic", seed=Stream(9, 100))
    assert np.array_equal(got, numsim.sqrt(squares, rounding="stochastic", seed=Stream(9, 142)).codes)
    tiny = numsim.array([[3 * 2.0**-24, 5 * 2.0**-24, 7 * 2.0**-24]] * 40, "fp16")  # scaled by 2^22
    near = numsim.array([[0.75, 1.25, 1.75]] * 40, "fp16")
    stream, own = Stream(9, 100), {"rounding": "stochastic"}
    got_tiny = numsim.norm(tiny, axis=1, scaled=True, seed=stream, **own).codes
    assert stream.position == 100 + 240 + 40 + 40
    root = numsim.sqrt(numsim.dot(near, near, seed=Stream(9, 100), **own), seed=Stream(9, 340), **own)
    assert np.array_equal(got_tiny, numsim.encode(root.values * 2.0**-22, "fp16", seed=Stream(9, 380), **own))
    words = np.array([bits(9, 100 + i) for i in range(45)], np.uint32)
    assert np.array_equal(numsim.norm(x, random_bits=words, **options).codes, got)


def test_norms_beside_mpfr(implementation):
    """Exact squares, exact sum, rounded; then the correctly rounded root of that."""
    rng = np.random.default_rng(16)
    for name, precision in (("fp16", 11), ("bf16", 8), ("fp32", 24)):
        x = numsim.array(rng.standard_normal((5, 40)), name)
        got = numsim.norm(x, axis=1, product="exact", order="exact")
        for row, result in zip(x.values, got.values, strict=True):
            with gmpy2.context(precision=300):
                total = sum((gmpy2.mpfr(float(v)) ** 2 for v in row), gmpy2.mpfr(0))
            with gmpy2.context(precision=precision):
                assert float(gmpy2.sqrt(+total)) == result, name
    assert got.how == "exact sum in fp32, exact products (fused), nearest-even, square root rounded to fp32"


@pytest.mark.parametrize("rounding", ["nearest-even", "up"])
def test_scaled_norms(rounding, implementation):
    """Scaled by a power of two that makes the largest 1 <= |x| < 2: exactly, then back with one rounding."""
    rng = np.random.default_rng(17)
    for name in ("fp16", "bf16", "e4m3fn", "fp32"):
        spec = oracle.SPECS[name]
        for codes in (tricky_codes(spec, 6, rng), around_least_normal(spec, 9, rng), mild_codes(spec, 9, rng)):
            codes = np.where(codes & (spec.sign - 1) > spec.top, 0, codes).astype(spec.dtype)
            values = [oracle.value_of(int(c), spec) for c in codes]
            largest = max(abs(v) for v in values)
            scale = Fraction(1)
            while largest and not 1 <= largest * scale < 2:
                scale *= 2 if largest * scale < 1 else Fraction(1, 2)
            own = Own(name, rounding)
            total = None
            for v in values:
                _, square = own.round((False, (v * scale) ** 2), spec, 0)
                total = square if total is None else own.add(total, square, 0)[1]
            code = numsim.sqrt(numsim.array(total[1], name), rounding=rounding).codes
            right = rounded(exact("mul", number(int(code), spec), (False, 1 / scale)), spec, rounding)
            got = numsim.norm(from_codes(codes, name), scaled=True, rounding=rounding).codes
            assert got == right, f"{name} {rounding}: {codes}: {int(got):#x}, right {right:#x}"


def test_norms_of_special_values(implementation):
    inf = float("inf")
    for scaled in (False, True):

        def norm(values, name="fp16", scaled=scaled, **options):
            return float(numsim.norm(numsim.array(values, name), scaled=scaled, **options))

        assert math.isnan(norm([1.0, float("nan")])) and norm([1.0, -inf]) == inf
        assert norm([]) == 0 and norm([-0.0, 0.0]) == 0
        assert norm([60000.0]) == (60000.0 if scaled else inf)
        assert norm([2.0**-24] * 4) == (2.0**-23 if scaled else 0.0)
        assert norm([2.0**-24, 1.0], subnormals="flush-inputs") == 1.0
    x = numsim.array([1.0, *[1.5 * 2.0**-5] * 64], "e4m3")  # whose squares are 1.125 * 2^-9: scaled less they vanish
    assert norm(x, "e4m3", True, product="e4m3", accumulator="fp32") == np.sqrt(np.float32(1.125))
    x = numsim.array([[3.0, 4.0], [6144.0, 8192.0]], "fp16")
    assert numsim.norm(x, axis=1, scaled=True).values.tolist() == [5.0, 10240.0]
    assert numsim.norm(x, axis=1).values.tolist() == [5.0, inf]
    with pytest.raises(InputError, match="scaled=True is for formats that fp32 holds"):
        numsim.norm(numsim.array([1.0], "fp64"), scaled=True)


# -- words, refusals and machines -------------------------------------------------------------------------------------


def test_what_was_done_is_named():
    x = numsim.array([1.0, 2.0, 3.0], "bf16")
    assert numsim.sum(x, order="blocked:2").how == "blocked:2 sum in bf16, nearest-even"
    assert numsim.sum(x, order=((2, 1), 0)).how == "tree ((2,1),0) sum in bf16, nearest-even"
    assert numsim.sum(x, order="( (2, 1), 0 )").how == "tree ((2,1),0) sum in bf16, nearest-even"
    long = left_to_right(list(range(5000)))
    assert numsim.sum(numsim.array(np.ones(5000), "fp16"), order=long).how == (
        "tree of 5000 terms, sum in fp16, nearest-even")  # fmt: skip


def test_what_reveal_finds_is_an_order(implementation):
    """A tree found by probing sums that somebody else adds gives their bits."""
    from numsim.reveal.trees import tree_by_pivots

    n = 16
    tree = shape_of("blocked:4", n)

    def size(i, j):
        """Leaves of the smallest subtree that holds both."""
        node = tree
        while True:
            inner = [t for t in node if isinstance(t, tuple) and {i, j} <= set(_leaves(t))]
            if not inner:
                return len(_leaves(node))
            node = inner[0]

    found = tree_by_pivots(range(n), lambda pairs: [size(i, j) for i, j in pairs])
    x = numsim.array(np.random.default_rng(18).standard_normal((20, n)), "fp16")
    assert np.array_equal(numsim.sum(x, axis=1, order=found).codes, numsim.sum(x, axis=1, order="blocked:4").codes)


def _leaves(tree):
    return [leaf for t in tree for leaf in _leaves(t)] if isinstance(tree, tuple) else [tree]


@pytest.mark.parametrize(
    "order",
    ["", "Exact", "pairwise:", "pairwise:0", "pairwise:-1", "pairwise:1e3", "pairwise:9999999999", "blocked", "kahan:4",
     "blocked:numpy", "(", "()", "(0)", "(0,0)", "(0,2)", "(0,1", "0,1", "(0,1)(2,3)", "(0,1),2", "((0,1))", "(0,1,)",
     "(0,-1)", "(0,01)", "(0,x)", "(٠,١)", "(0,9999999999999)", (), (0,), (0, 0), (0, 2), (0, 1.0), ("c", 0), (0, None),
     ((0, 1),), (0, 10**5000), [0, 1], None, 3, np.array([0, 1]), ["exact"], True, (0, True)],
)  # fmt: skip
def test_orders_refused(order, implementation):
    x = numsim.array([1.0, 2.0], "bf16")
    for function in (
        numsim.sum,
        numsim.mean,
        numsim.norm,
        numsim.cumsum,
        lambda x, order: numsim.dot(x, x, order=order),
    ):
        with pytest.raises(InputError, match=r"order=.*Example"):
            function(x, order=order)


def test_trees_of_another_length(implementation):
    x = numsim.array(np.ones((2, 3)), "bf16")
    for call in (lambda: numsim.sum(x, axis=1, order=(0, 1)), lambda: numsim.matmul(x, x.T, order=((0, 1), (2, 3)))):
        with pytest.raises(InputError, match=r"a tree of \d terms; the sum has 3"):
            call()
    for order in ("pairwise", "pairwise:128", "blocked:2", ((0, 1), 2)):
        with pytest.raises(InputError, match=r"has no running sum: sequential, .*Example"):
            numsim.cumsum(x, axis=1, order=order)


def test_machines_and_orders():
    """The emulator has them all; libraries answer those that they can do step by step; old digests stay."""
    codes = numsim.encode(np.linspace(1, 2, 6), "fp16")
    for order in (*ORDERS, "blocked:4", ((0, 1, 2), (3, (4, 5)))):
        q = ask("sum", ["fp16"], "fp16", [codes], order=order)
        right = numsim.sum(from_codes(codes, "fp16"), order=order).codes
        assert get_machine("emulated").answer(q).codes == right
        can = get_machine("numpy").can(q)
        assert bool(can) == (q.order in ("sequential", "pairwise", "kahan")), (order, can)
        assert can or can.reason == f"numpy has no order={q.order!r}"
    assert ask("sum", ["fp16"], "fp16", [codes], order="sequential").options.get("order") is None
    text = ask("sum", ["fp16"], "fp16", [codes], order="((0,1,2),(3,(4,5)))")
    assert text.digest == q.digest
    for options, message in (({"order": (0, 1)}, "tree of 2 terms"), ({"order": "tree"}, "order='tree': allowed are")):
        with pytest.raises(InputError, match=message):
            ask("sum", ["fp16"], "fp16", [codes], **options)
    with pytest.raises(InputError, match="no running sum"):
        ask("cumsum", ["fp16"], "fp16", [codes], order="blocked:4")
