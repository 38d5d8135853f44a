"""The trace of a sum: where additions stop counting."""

import numpy as np
import pytest

import numsim
from numsim import InputError, array, trace_sum


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
    with pytest.raises(InputError, match="sequential"):
        trace_sum(array([1.0], "fp16"), order="kahan")
