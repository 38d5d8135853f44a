"""IEEE 754's other operations, and conversions, beside MPFR; neighbours and exponents beside fractions."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

import numsim
from tests import oracle
from tests.test_arithmetic import IEEE_LIKE, Mpfr, assert_codes, tricky_codes

gmpy2 = pytest.importorskip("gmpy2", reason="MPFR is the outsider here: pip install gmpy2")
EXACT = gmpy2.context(precision=2200, emin=-20000, emax=20000)  # all sums of two numbers of FP64


@pytest.fixture(params=("reference", "kernel"), autouse=True)
def implementation(request):
    if request.param == "kernel" and numsim.kernels.why_not():
        pytest.skip(numsim.kernels.why_not())
    with numsim.kernels.force(request.param):
        yield request.param


def operands(name, seed, count=300):
    """Codes, half of them near 1, where integers and fractions are; as an Array; as numbers of MPFR's."""
    spec, rng = oracle.SPECS[name], np.random.default_rng(seed)
    codes = tricky_codes(spec, count, rng)
    near = (spec.bias << spec.fraction) + rng.integers(-3 << spec.fraction, spec.fraction + 2 << spec.fraction, count)
    near = np.clip(near, 0, spec.top).astype(np.uint64) | rng.integers(0, 2, count).astype(np.uint64) * spec.sign
    codes[::2] = near.astype(codes.dtype)[::2]
    mpfr = Mpfr(spec, gmpy2)
    return codes, numsim.from_codes(codes, name), mpfr, [mpfr.operand(c) for c in codes.tolist()]


def whole(x, rounding):
    """An integer of MPFR's, zeros with the sign of x; MPFR has no odd: of floor and ceiling the odd one."""
    with EXACT:
        if rounding == "odd":
            both = gmpy2.rint_floor(x), gmpy2.rint_ceil(x)
            return next((n for n in both if gmpy2.is_finite(n) and int(n) % 2), both[0])
        return {
            "nearest-even": gmpy2.rint, "nearest-away": gmpy2.rint_round, "toward-zero": gmpy2.rint_trunc,
            "up": gmpy2.rint_ceil, "down": gmpy2.rint_floor,
        }[rounding](x)  # fmt: skip


@pytest.mark.parametrize("name", IEEE_LIKE)
def test_integers(name):
    codes, x, mpfr, numbers = operands(name, 21)
    for rounding in oracle.MODES:
        integers = [whole(v, rounding) for v in numbers]
        right = mpfr.codes("plus", [(n,) for n in integers], "nearest-even")
        got = numsim.round_to_integral(x, rounding=rounding).codes
        right = np.where([v.is_nan() for v in numbers], got, right)  # which stay as they are
        assert_codes(got, right, (codes,), f"{name} round_to_integral {rounding} against MPFR")
        for dtype in ("int16", "uint64"):
            least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
            found = numsim.to_int(x, dtype, rounding=rounding, out_of_range="saturate").tolist()
            for n, have in zip(integers, found, strict=True):
                ends = most if n > 0 else least if n < 0 else 0
                assert have == (min(max(int(n), least), most) if gmpy2.is_finite(n) else ends), (n, dtype, rounding)


@pytest.mark.parametrize("name", IEEE_LIKE)
def test_exponents(name):
    codes, x, mpfr, numbers = operands(name, 22)
    exponents = [
        gmpy2.mpfr("-inf") if v.is_zero() else gmpy2.mpfr(gmpy2.get_exp(v) - 1) if gmpy2.is_finite(v) else abs(v)
        for v in numbers
    ]
    for rounding in oracle.MODES:
        right = mpfr.codes("plus", [(e,) for e in exponents], rounding)
        assert_codes(numsim.log_b(x, rounding=rounding).codes, right, (codes,), f"{name} log_b {rounding}")


@pytest.mark.parametrize("name", IEEE_LIKE)
def test_neighbours(name):
    """The least number above x is x and a trifle, rounded up."""
    codes, x, mpfr, numbers = operands(name, 23)
    spec = mpfr.spec
    for function, sign, rounding in ((numsim.next_up, 1, "up"), (numsim.next_down, -1, "down")):
        trifle = EXACT.div_2exp(gmpy2.mpfr(sign), 3000)
        right = mpfr.codes("add", [(v, trifle) for v in numbers], rounding)
        far = [v.is_infinite() and (v > 0) != (sign > 0) for v in numbers]  # from infinity to the largest number
        right = np.where(far, spec.top | (spec.sign if sign > 0 else 0), right).astype(codes.dtype)
        assert_codes(function(x).codes, right, (codes,), f"{name} {function.__name__} against MPFR")


@pytest.mark.parametrize(("one", "other"), [("fp64", "fp64"), ("fp32", "fp16"), ("bf16", "fp64"), ("e5m2", "fp16")])
def test_comparisons(one, other):
    _, x, _, left = operands(one, 24)
    _, y, _, right = operands(other, 25)
    if one == other:
        y, right = (
            numsim.from_codes(np.where(np.arange(300) % 3, y.codes, x.codes), one),
            [r if i % 3 else v for i, (v, r) in enumerate(zip(left, right, strict=True))],
        )
    relations = {
        "equal": "__eq__",
        "less": "__lt__",
        "less_equal": "__le__",
        "greater": "__gt__",
        "greater_equal": "__ge__",
    }
    for name, method in relations.items():
        wanted = [bool(getattr(a, method)(b)) for a, b in zip(left, right, strict=True)]
        assert getattr(numsim, name)(x, y).tolist() == wanted, name
    unordered = [a.is_nan() or b.is_nan() for a, b in zip(left, right, strict=True)]
    assert numsim.unordered(x, y).tolist() == unordered
    assert numsim.not_equal(x, y).tolist() == [a != b for a, b in zip(left, right, strict=True)]


def smaller(a, b, magnitude, number):
    """The minimum of two numbers of MPFR's."""
    if a.is_nan() or b.is_nan():
        return (b if a.is_nan() else a) if number else gmpy2.mpfr("nan")
    if magnitude and abs(a) != abs(b):
        return a if abs(a) < abs(b) else b
    return a if a < b or (a == b and a.is_signed()) else b


@pytest.mark.parametrize("name", IEEE_LIKE)
def test_extremes(name):
    a, x, mpfr, left = operands(name, 26)
    b, y, _, right = operands(name, 27)
    for magnitude, number in itertools.product((False, True), repeat=2):
        kind = "_magnitude" * magnitude + "_number" * number
        least = [smaller(v, w, magnitude, number) for v, w in zip(left, right, strict=True)]
        most = [w if s is v else v if s is w else s for v, w, s in zip(left, right, least, strict=True)]
        if number:  # the only number is both
            most = [s if v.is_nan() or w.is_nan() else m for v, w, s, m in zip(left, right, least, most, strict=True)]
        for word, wanted in (("minimum", least), ("maximum", most)):
            codes = mpfr.codes("plus", [(v,) for v in wanted], "nearest-even")
            assert_codes(getattr(numsim, word + kind)(x, y).codes, codes, (a, b), f"{name} {word}{kind} against MPFR")


@pytest.mark.parametrize(("source", "target"), [*itertools.permutations(("fp64", "fp32", "fp16", "bf16", "e5m2"), 2)])
def test_conversions(source, target):
    codes, x, _, numbers = operands(source, 28)
    mpfr = Mpfr(oracle.SPECS[target], gmpy2)
    for rounding in oracle.MODES:
        right = mpfr.codes("plus", [(v,) for v in numbers], rounding)
        assert_codes(x.astype(target, rounding=rounding).codes, right, (codes,), f"{source} to {target} {rounding}")


# --- fractions --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", oracle.UP_TO_8)
def test_every_neighbour_and_exponent_by_fractions(name):
    spec = oracle.SPECS[name]
    codes = np.arange(1 << spec.bits, dtype=np.uint8)
    values = {code: v for code in codes.tolist() if isinstance(v := oracle.value_of(code, spec), Fraction)}
    ladder = sorted(set(values.values()))
    x = numsim.from_codes(np.array(list(values), np.uint8), name)
    for function, step in ((numsim.next_up, 1), (numsim.next_down, -1)):
        for code, found in zip(values, function(x).codes.tolist(), strict=True):
            place = ladder.index(values[code]) + step
            if 0 <= place < len(ladder):  # beyond lies infinity, or nothing
                assert oracle.value_of(found, spec) == ladder[place], hex(code)
    some = [code for code, v in values.items() if v]
    exponents = numsim.log_b(numsim.from_codes(np.array(some, np.uint8), name), format="fp32").values
    for code, e in zip(some, exponents.astype(int).tolist(), strict=True):
        assert Fraction(2) ** e <= abs(values[code]) < Fraction(2) ** (e + 1), hex(code)
