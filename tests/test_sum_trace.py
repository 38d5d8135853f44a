"""The trace of a sum: the bits of the sum in every order, what each addition loses, where additions stop counting."""

import math
from fractions import Fraction

import numpy as np
import pytest

import numsim
from numsim import InputError, array, from_codes, trace_sum
from numsim.accumulate import ORDERS

TREE = (((3, 0), 1), (2, (4, 6, 5)))
SOME = ["sequential", "kahan", "neumaier", "double-word", "exact", "pairwise", "pairwise:2", "pairwise:numpy",
        "blocked:3", TREE]  # fmt: skip
POLICIES = [{}, {"rounding": "up"}, {"rounding": "odd", "overflow": "saturate"}, {"subnormals": "flush"},
            {"rounding": "stochastic", "seed": 5}, {"accumulator": "fp32"}, {"accumulator": "e4m3"}]  # fmt: skip


def rows(format, n=7, count=12):
    """Numbers of all sizes, zeros and subnormal numbers among them; the last rows have NaN and infinities."""
    codes = numsim.testing.sample_codes(format, n * count, 3).reshape(count, n)
    kinds = numsim.classify(codes, format)
    codes[:-3][np.isin(kinds[:-3], ("nan", "infinity"))] = 1
    codes[1], codes[2, ::2], codes[-1, 2] = 0x80 << (codes.itemsize - 1) * 8, 0, 0
    return codes


@pytest.mark.parametrize("order", SOME, ids=str)
@pytest.mark.parametrize("format", ["fp16", "e5m2"])
def test_every_order_ends_with_the_sum(order, format):
    for codes in rows(format):
        x = from_codes(codes, format)
        for options in POLICIES:
            trace, total = trace_sum(x, order=order, **options), numsim.sum(x, order=order, **options)
            assert trace.partial.codes[-1] == total.codes and trace.partial.how == total.how
            assert len(trace.additions) == len(trace.partial) == len(trace.counted)
            errors = [done.error for done in trace.additions]
            if None in errors:
                assert not np.isfinite(trace.partial.values).all() or not np.isfinite(x.values).all()
            elif options.get("subnormals") != "flush":  # which changes the terms
                last = trace.additions[-1]
                assert sum(errors) == last.result + last.compensation - trace.exact()
            if order == "sequential":
                for done, after in zip(trace.additions, trace.partial, strict=True):
                    assert done.error is None or done.result == after.fraction()


@pytest.mark.parametrize("order", [o for o in ORDERS if o.startswith(("pairwise", "blocked"))])
def test_long_sums_end_with_the_sum(order):
    x = array(np.random.default_rng(2).normal(size=300), "bf16")
    for n in (1, 2, 7, 8, 129, 300):
        trace = trace_sum(x[:n], order=order)
        assert trace.partial.codes[-1] == numsim.sum(x[:n], order=order).codes
        assert len(trace.partial) == max(n - 1, 1)


def numpys(order, x):
    """The textbook's lines in NumPy's float32: sum and what is kept beside it, after each term."""
    s, kept = x[0], np.float32(0)
    yield s, kept
    for y in x[1:]:
        if order == "kahan":
            y = y - kept
            t = s + y
            kept = (t - s) - y
            yield t, -kept
        elif order == "neumaier":
            t = s + y
            kept = kept + ((s - t) + y if abs(s) >= abs(y) else (y - t) + s)
            yield t, kept
        else:
            t = s + y
            a = t - s
            low = kept + ((s - (t - a)) + (y - a))
            t, before = t + low, t
            kept = low - (t - before)
            yield t, kept
        s = t


@pytest.mark.parametrize("order", ["kahan", "neumaier", "double-word"])
def test_what_is_kept_beside_the_sum(order):
    x = (np.random.default_rng(4).normal(size=400) * 10.0 ** np.arange(400)[::-1].clip(0, 6)).astype(np.float32)
    additions = trace_sum(array(x, "fp32"), order=order).additions
    for done, (s, kept) in zip(additions, numpys(order, x), strict=True):
        assert (done.result, done.compensation) == (Fraction(float(s)), Fraction(float(kept)))
    assert any(done.compensation for done in additions)


def test_operands_of_a_tree():
    a, b, c, d, e = (np.float16(v) for v in (0.1, 0.2, 2048.0, 0.3, 1e-3))
    trace = trace_sum(array([a, b, c, d, e], "fp16"), order="pairwise")
    expected = [(a, b, a + b), (c, d, c + d), (a + b, c + d, (a + b) + (c + d)), (c, e, c)]
    for done, (x, y, result) in zip(trace.additions, expected, strict=True):
        assert (*done.operands, done.result) == tuple(Fraction(float(v)) for v in (x, y, result))
        assert done.exact == sum(done.operands) and done.error == done.result - done.exact
    assert trace.counted.tolist() == [True, False, False, False] and trace.stalls_at is None
    assert trace.additions[1].lost == (Fraction(float(d)),)


def test_a_bracket_of_three_is_one_addition():
    (one,) = trace_sum(array([2048.0, 1.0, 1.0], "fp16"), order=((0, 1, 2))).additions
    assert one.operands == (2048, 1, 1) and one.result == 2050 and one.error == 0


def test_a_compensated_sum_stalls_where_its_compensation_does():
    """Neumaier's sum stops at 32, and so does what it keeps; Kahan's goes on."""
    x = array(np.full(1000, 0.1), "bf16")
    trace = trace_sum(x, order="neumaier")
    assert trace.stalls_at == 602 and trace.additions[-1].result == trace.additions[-1].compensation == 32
    assert trace_sum(x, order="kahan").lost == trace_sum(x, order="double-word").lost == 0


def test_infinities_and_nan_lose_nothing():
    trace = trace_sum(array([np.inf, 1.0, -np.inf, 2.0], "fp16"), order="pairwise")
    assert trace.lost == 0 and [done.error for done in trace.additions] == [None] * 3
    assert [float(done.exact) for done in trace.additions[:2]] == [np.inf, -np.inf]
    assert np.isnan(float(trace.additions[2].exact)) and str(trace).endswith("result nan")


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ("kahan", "changed the accumulator or what is kept"),
        ("neumaier", "32.0 is kept beside it"),
        ("double-word", "is kept beside it"),
        ("exact", "or what is kept beside it"),
        ("pairwise", "addition 998: 51.25 + 49.0 = 100.25 gave 100.0"),
        ("blocked:100", "0 of 999 additions lost an operand"),
    ],
)
def test_text(order, text):
    told = str(trace_sum(array(np.full(1000, 0.1), "bf16"), order=order))
    assert text in " ".join(told.split()) and max(map(len, told.splitlines())) <= 80 and told.isascii()


# --- in index order ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("format", "terms", "stalls_at", "lost"),
    [
        ("fp16", 4096, 2048, 2048),
        ("bf16", 300, 256, 44),
        ("e4m3", 100, 16, 84),
        ("e5m2", 9, 8, 1),
        ("fp32", 5000, None, 0),
    ],
)
def test_ones(format, terms, stalls_at, lost):
    trace = trace_sum(array(np.ones(terms), format))
    assert (trace.stalls_at, trace.lost) == (stalls_at, lost)
    assert trace.exact() == terms and float(trace.partial[-1]) == terms - lost
    assert trace.counted.sum() == terms - lost


def test_partial_sums_are_numpys():
    x = np.random.default_rng(1).normal(size=500).astype(np.float16)
    trace = trace_sum(array(x, "fp16"))
    assert np.array_equal(trace.partial.codes, np.add.accumulate(x).view(np.uint16))
    before, after = np.add.accumulate(x)[:-1], np.add.accumulate(x)[1:]
    assert np.array_equal(trace.counted[1:], before != after)


def test_lost_in_the_middle_is_no_stall():
    trace = trace_sum(array([1.0, 2.0**-12, 1.0], "fp16"))
    assert trace.stalls_at is None and trace.lost == 1 and trace.counted.tolist() == [True, False, True]
    assert "1 additions changed nothing" in str(trace)


@pytest.mark.parametrize(
    ("terms", "stalls_at", "lost"),
    [
        ([2048, *[1] * 5, 0, *[1] * 5], 1, 10),
        ([0, 2048, 1, 0, 1, 0, -0.0], 2, 2),
        ([2048, 1, 0, 2, 0], None, 1),
        ([0, 2048, 0, 0], None, 0),
        ([math.inf, 1, 1], None, 0),
        ([65504, 65504, 1], None, 0),
    ],
)
@pytest.mark.parametrize("order", ["sequential", "kahan"])
def test_zeros_do_not_hide_a_stall_and_infinities_lose_nothing(terms, stalls_at, lost, order):
    trace = trace_sum(array(terms, "fp16"), order=order)
    if order == "kahan":  # ones are kept beside the sum
        stalls_at, lost = None, 0
    assert (trace.stalls_at, trace.lost) == (stalls_at, lost)
    assert stalls_at is None or f"from term {stalls_at} on no addition counts: {lost} terms are lost" in str(trace)


def test_fp64_codes_are_compared_as_integers():
    trace = trace_sum(array([1.0] + [2.0**-50] * 5, "fp64"))
    assert trace.stalls_at is None and trace.lost == 0


def test_zeros_are_not_lost():
    trace = trace_sum(array([1.0, 0.0, -0.0], "bf16"))
    assert trace.lost == 0 and "number but zero" in str(trace)


@pytest.mark.parametrize(
    ("terms", "format", "options", "text"),
    [
        ([], "fp16", {}, "0 terms"),
        ([60000.0, 60000.0], "fp16", {}, "result inf"),
        ([1.0, np.nan], "fp16", {}, "result nan"),
        ([np.inf, 1.0], "fp16", {"overflow": "saturate"}, "not all terms are finite"),
        ([1.7e308, 1.7e308], "fp64", {"overflow": "saturate"}, "beyond float64"),
    ],
)
def test_ends_that_are_no_number(terms, format, options, text):
    assert text in str(trace_sum(array(terms, format), **options))


def test_options_and_refusals():
    wide = trace_sum(array(np.ones(4096), "fp16"), accumulator="fp32")
    assert wide.lost == 0 and wide.partial.format == numsim.FP32 and "sequential sum in fp32" in str(wide)
    for bad in ([1.0, 2.0], array([[1.0]], "fp16"), array(1.0, "fp16")):
        with pytest.raises(InputError, match="1-D Array"):
            trace_sum(bad)
    with pytest.raises(InputError, match="allowed are sequential"):
        trace_sum(array([1.0], "fp16"), order="fastest")
    with pytest.raises(InputError, match="a tree of 2 terms"):
        trace_sum(array([1.0, 2.0, 3.0], "fp16"), order=(0, 1))
