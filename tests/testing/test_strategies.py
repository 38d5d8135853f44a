"""What the strategies draw: everything they promise, nothing else; and what a failing example shrinks to."""

import subprocess
import sys
from collections import Counter
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import numsim
from numsim.rounding import ROUNDINGS, SUBNORMALS
from numsim.testing import arrays, assert_bits_equal, codes, formats, hard_cases, operand_pairs, policies, values
from tests import oracle

FIXED = settings(
    derandomize=True, database=None, deadline=None, max_examples=500, print_blob=False,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
NAMES = ["fp16", "bf16", "fp32", "fp64", "e4m3", "e5m2", "e4m3fnuz", "e2m1", "e8m0", "ue4m3"]


def drawn(strategy, n=400):
    """n examples, the same ones every time."""
    found = []

    @settings(FIXED, max_examples=n)
    @given(strategy)
    def collect(x):
        found.append(x)

    collect()
    return found


def simplest(strategy, condition):
    return find(strategy, condition, settings=FIXED)


# --- what is drawn ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_codes(name):
    spec = oracle.SPECS[numsim.get_format(name).name]
    found = drawn(codes(name))
    assert all(type(c) is int and 0 <= c < 1 << spec.bits for c in found)
    kinds = Counter(oracle.classify(c, spec) for c in found)
    expected = {"zero", "normal", "subnormal", "infinity", "nan"}
    expected -= {"infinity"} if spec.inf is None else set()
    expected -= {"nan"} if spec.nan is None else set()
    expected -= set() if spec.subnormal else {"zero", "subnormal"}
    assert set(kinds) == expected and min(kinds.values()) >= 3
    magnitudes = {c & (spec.sign - 1) for c in found if oracle.classify(c, spec) in ("normal", "subnormal")}
    assert {spec.top, spec.least_normal, 1} <= magnitudes
    if spec.signed:
        assert spec.negative_zero == (spec.sign in {c for c in found if oracle.classify(c, spec) == "zero"})
        assert 0.2 < sum(bool(c & spec.sign) for c in found) / len(found) < 0.6


@pytest.mark.parametrize("name", ["e2m1", "e4m3"])
def test_every_code_of_a_small_format_comes_up(name):
    assert set(drawn(codes(name), 2500)) == set(range(numsim.get_format(name).codes))


def test_nan_payloads_come_up():
    nans = {c for c in drawn(codes("bf16"), 800) if numsim.classify(c, "bf16") == "nan"}
    assert 0x7FC0 in nans and len(nans) > 3 and any(c & 0x8000 for c in nans)


@pytest.mark.parametrize("name", ["bf16", "fp64", "e4m3", "e4m3fnuz"])
def test_nan_and_infinity_can_be_left_out(name):
    for nan, infinity in ((False, True), (True, False), (False, False)):
        found = drawn(codes(name, allow_nan=nan, allow_infinity=infinity), 80)
        kinds = set(numsim.classify(np.array(found, np.uint64), name).tolist())
        assert nan or "nan" not in kinds
        assert infinity or "infinity" not in kinds


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_codes(name):
    for x in drawn(values(name), 80):
        assert type(x) is float
        assert_bits_equal([x], numsim.array([x], name), "fp64" if name == "fp64" else name, nan="mask")


def test_arrays():
    found = drawn(arrays("bf16"), 80)
    assert all(isinstance(x, numsim.Array) and x.format is numsim.BF16 for x in found)
    shapes = {x.shape for x in found}
    assert {len(s) for s in shapes} == {1, 2} and max(max(s) for s in shapes) <= 8
    assert {x.shape for x in drawn(arrays("e4m3", (2, 3)), 20)} == {(2, 3)}
    assert {x.shape for x in drawn(arrays("e4m3", 4), 20)} == {(4,)}
    assert {x.shape for x in drawn(arrays("e4m3", st.just((0, 2))), 20)} == {(0, 2)}
    assert all(set(x.codes) <= {7, 9} for x in drawn(arrays("e4m3", 4, st.sampled_from([7, 9])), 20))
    assert not any(np.isnan(x.values).any() for x in drawn(arrays("fp16", 5, allow_nan=False), 40))


def test_policies():
    found = drawn(policies(), 150)
    assert {p["rounding"] for p in found} == set(ROUNDINGS) - {"stochastic"}
    assert {p["subnormals"] for p in found} == set(SUBNORMALS)
    for options in (*found[:50], *(p for p in drawn(policies(stochastic=True), 60) if "seed" in p)):
        numsim.encode([0.1, float("nan"), 1e9, -1e-9], "e2m1", **options)
    assert any("seed" in p for p in drawn(policies(stochastic=True), 60))
    assert simplest(policies(stochastic=True), lambda p: True) == {
        "rounding": "nearest-even", "overflow": "ieee", "subnormals": "keep", "nan": "zero"
    }  # fmt: skip


# --- hard cases -------------------------------------------------------------------------------------------------------
place_on_grid = lru_cache(maxsize=None)(oracle._grid_fraction)


def what_happens(x, spec):
    """How the rounding of a number goes, by the outside oracle's grid: tie, carry, where on the grid."""
    magnitude = abs(x)
    low, high = 0, spec.top + 2
    while high - low > 1:  # the place at or below
        middle = (low + high) // 2
        low, high = (middle, high) if place_on_grid(middle, spec) <= magnitude else (low, middle)
    below, above = (place_on_grid(place, spec) for place in (low, low + 1))
    if below == magnitude:
        return {"exact"}
    side = (magnitude - below) * 2 - (above - below)
    up = side > 0 or (side == 0 and low % 2)
    said = {"tie up" if low % 2 else "tie down"} if side == 0 else {"above" if side > 0 else "below"}
    where = "past the top" if low >= spec.top else "subnormal" if low < spec.least_normal else "normal"
    said |= {f"{where} {word}" for word in said} | {where}
    said |= {f"carry from {where}"} if up and (low + 1) % (1 << spec.fraction) == 0 else set()
    return said | ({"underflow"} if low == 0 and not up else set())


@pytest.mark.parametrize(
    ("target", "source"), [("fp16", "fp32"), ("bf16", "fp64"), ("e4m3", "fp16"),
                           ("e5m2", "fp64"), ("e2m1", "fp32"), ("e4m3fnuz", "bf16"), ("fp32", "fp64")]
)  # fmt: skip
def test_hard_cases(target, source):
    """Within 400 examples everything comes up at which a cast may go wrong."""
    spec, found = oracle.SPECS[numsim.get_format(target).name], drawn(hard_cases(target, source))
    assert_bits_equal(found, numsim.array(found, source))  # numbers of the source, all finite
    seen = Counter(word for x in found for word in what_happens(Fraction(x), spec))
    for word in (
        "exact", "tie up", "tie down", "above", "below", "subnormal", "subnormal tie down", "past the top", "underflow",
        "past the top below", "past the top above", "carry from normal", "carry from subnormal",
    ):  # fmt: skip
        assert seen[word], (word, dict(seen))
    assert seen["past the top tie down"] or seen["past the top tie up"], dict(seen)
    assert {np.sign(x) for x in found} >= {-1.0, 1.0}
    beside = [x for x in found if "exact" not in what_happens(Fraction(x), spec)]
    assert sum(not any("tie" in w for w in what_happens(Fraction(x), spec)) for x in beside) > len(beside) / 4


@pytest.mark.parametrize("target", ["bf16", "fp16", "e4m3", "e5m2"])
def test_hard_cases_find_a_second_rounding_fast(target):
    def twice(x):
        return numsim.encode(numsim.round_to(x, "fp32"), target) != numsim.encode(x, target)

    assert any(map(twice, drawn(hard_cases(target), 100)))


OPERATION = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y if y else None,
}  # fmt: skip


@pytest.mark.parametrize("operation", OPERATION)
@pytest.mark.parametrize("name", ["fp16", "e4m3"])
def test_operand_pairs(name, operation):
    spec, found = oracle.SPECS[numsim.get_format(name).name], drawn(operand_pairs(name, operation), 600)
    seen = Counter()
    for pair in found:
        x, y = (oracle.value_of(code, spec) for code in pair)
        if isinstance(x, str) or isinstance(y, str):
            seen[f"{x if isinstance(x, str) else y}"] += 1
        elif (exact := OPERATION[operation](x, y)) is not None:
            seen.update(what_happens(exact, spec))
            close = x and exact and abs(exact) <= abs(x) / 2**spec.fraction
            seen["cancellation"] += bool(close and operation in ("add", "sub"))
            seen["exact zero"] += exact == 0 != x
    wanted = ["exact", "nan", "exact zero", "above", "below", "past the top"]
    if operation in ("add", "sub"):
        wanted += ["tie up", "tie down", "cancellation", "carry from normal"]
    if operation == "mul":
        wanted += ["tie up", "tie down", "subnormal tie down"]
    if operation in ("mul", "div"):  # sums below normal are exact; quotients tie only there
        wanted += ["subnormal", "underflow"]
    if operation == "div":
        wanted.remove("exact zero")
    for word in wanted:
        assert seen[word], (word, dict(seen))


def test_pairs_of_any_operation():
    assert all(0 <= c < 256 for pair in drawn(operand_pairs("e4m3")) for c in pair)
    assert all(0 <= c < 255 for pair in drawn(operand_pairs("e8m0"), 100) for c in pair if c != 255)


# --- shrinking --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fp16", "fp64", "e4m3"])
@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        (lambda x: True, 0.0),
        (lambda x: x != 0, 1.0),
        (lambda x: x >= 3, 3.0),
        (lambda x: x < 0, -1.0),
        (lambda x: 0 < x < 1, 0.5),
        (lambda x: x == x and x > 9.5, 10.0),
        (lambda x: x < -2.5, -3.0),
    ],
    ids=["any", "not 0", ">= 3", "< 0", "below 1", "> 9.5", "< -2.5"],
)
def test_values_shrink_to_what_reads_easily(name, condition, shown):
    found = simplest(values(name), condition)
    assert found == shown or (shown == 10.0 and found in (10.0, 12.0, 16.0))  # not every format has a 10 or an 11


def test_nan_and_infinity_are_the_last_resort():
    assert simplest(codes("fp16"), lambda c: numsim.classify(c, "fp16") == "nan") == 0x7E00
    assert simplest(codes("fp16"), lambda c: numsim.classify(c, "fp16") == "infinity") == 0x7C00
    assert simplest(codes("fp16"), lambda c: numsim.classify(c, "fp16") in ("nan", "infinity")) == 0x7C00
    assert simplest(values("fp16"), lambda x: not x < 4) == 4.0


def test_hard_cases_shrink_to_what_stands_beside_one():
    def wrong(x):  # ties away
        return numsim.encode(x, "bf16", rounding="nearest-away") != numsim.encode(x, "bf16")

    assert simplest(hard_cases("bf16"), wrong) == 1 + 2**-8
    assert simplest(hard_cases("bf16"), lambda x: numsim.round_to(x, "bf16") == x) == 1.0
    twice = simplest(
        hard_cases("bf16"), lambda x: numsim.round_to(numsim.round_to(x, "fp32"), "bf16") != numsim.round_to(x, "bf16")
    )
    assert twice == 1 + 2**-8 + 2**-52


def test_arrays_shrink_to_few_zeros():
    assert simplest(arrays("fp16"), lambda x: x.size > 2).values.ravel().tolist() == [0, 0, 0]


def test_pairs_shrink_to_zero_and_one():
    assert simplest(operand_pairs("fp16", "add"), lambda p: True) == (0, 0)
    assert simplest(operand_pairs("fp16", "add"), lambda p: p[0] != 0 != p[1]) == (0x3C00, 0x3C00)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
@pytest.mark.parametrize(
    ("strategy", "shown"),
    [
        (codes("fp16").filter(lambda c: 0x3C00 < c < 0x7C00), "x=16384"),
        (values("fp16").filter(lambda x: x > 2), "x=3.0"),
        (hard_cases("bf16").filter(lambda x: x > 1), "x=1.0000000000000002"),
        (operand_pairs("e4m3", "mul"), "x=(0, 0)"),
        (arrays("e4m3", 2), "x=numsim.array([0.0, 0.0], 'e4m3fn')"),
    ],
    ids=["codes", "values", "hard_cases", "operand_pairs", "arrays"],
)
def test_a_failing_example_is_shown_as_numbers(strategy, shown):
    """And not as the call that made it."""

    @settings(FIXED, phases=[Phase.generate, Phase.shrink])
    @given(strategy)
    def fails(x):
        raise RuntimeError

    with pytest.raises(RuntimeError) as failure:
        fails()
    told = " ".join(" ".join(failure.value.__notes__).split())
    assert shown in told.replace("x=array", "x=numsim.array"), told


def test_the_same_examples_every_time():
    for strategy in (codes("bf16"), hard_cases("fp16"), operand_pairs("e4m3"), formats(), arrays("e2m1", 3)):
        assert list(map(repr, drawn(strategy, 60))) == list(map(repr, drawn(strategy, 60)))


# --- refused ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: codes("fp8"), "did you mean"),
        (lambda: values("e15m10"), "numsim.testing.codes"),
        (lambda: hard_cases("fp16", "e15m10"), "float64 does not hold"),
        (lambda: arrays("fp16", 10**6), "up to 65,536 elements"),
        (lambda: arrays("fp16", -1), "shape=-1"),
        (lambda: arrays("fp16", "3"), "shape='3'"),
        (lambda: arrays("fp16", (2, 2.5)), "shape="),
        (lambda: arrays("fp16", 3, [1, 2]), "elements="),
        (lambda: operand_pairs("fp16", "fma"), "allowed are add, sub, mul, div"),
        (lambda: hard_cases("fp16", "int8"), r"codebook of 256 numbers.*Example: hard_cases\('fp16', 'fp64'\)"),
        (lambda: arrays("nf4"), "hypothesis.extra.numpy.arrays"),
        (lambda: operand_pairs("int4", "add"), r"numsim\.testing\.all_pairs\('int4'\)"),
    ],
)
def test_refused_when_asked_for(call, message):
    with pytest.raises(numsim.NumsimError, match=message):
        call()


def test_elements_have_to_be_codes_of_the_format():
    with pytest.raises(numsim.InputError, match="out of range"):
        find(arrays("e2m1", 3, st.just(200)), lambda x: True, settings=FIXED)


def test_what_cannot_be_is_not_found():
    with pytest.raises(NoSuchExample):
        find(codes("e2m1"), lambda c: c > 15, settings=FIXED)


# --- Hypothesis -------------------------------------------------------------------------------------------------------
def python(code):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_hypothesis_is_imported_for_strategies_only():
    """And where it is missing everything else works, and a sentence says what is."""
    assert python(
        "import sys; sys.modules['hypothesis'] = None\n"
        "import numsim; t = numsim.testing; print(t.bits_equal(1.0, 1.0), t.boundary_codes('e2m1').size, "
        "'codes' in dir(t))\n"
        "try: t.codes\n"
        "except numsim.UnavailableError as error: print(error)\n"
    ) == (
        "True 16 True\n"
        "the strategies of numsim.testing need Hypothesis, which is not installed. Example: pip install hypothesis; "
        "without it there are numsim.testing.boundary_codes('e4m3') and sample_codes('e4m3', 1000, seed=7)\n"
    )


def test_the_light_half_stays_light():
    heavy = "{'hypothesis', 'numba', 'torch', 'matplotlib', 'ml_dtypes'}"
    code = f"import sys, numsim.testing; print(sorted({heavy} & set(sys.modules)), end=' '); "
    code += "numsim.testing.codes; print('hypothesis' in sys.modules)"
    assert python(code) == "[] True\n"


def test_no_other_name():
    with pytest.raises(AttributeError, match=r"numsim\.testing.*'code'"):
        numsim.testing.code  # noqa: B018
