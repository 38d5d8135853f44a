"""Bad input to the library: refused with value, rule and a call that works, before any work; nothing raw escapes."""

import numpy as np
import pytest

import numsim
from numsim import Format, NumsimError, array, decode, encode, from_codes, get_format, round_to

FIELDS = {"name": "x", "exponent_bits": 5, "fraction_bits": 2, "bias": 15}


@pytest.mark.parametrize(
    "change",
    [
        {"signed": 5}, {"signed": -1}, {"zero": 3}, {"bias": 15.5}, {"bias": float("nan")}, {"bias": "5"},
        {"bias": None}, {"bias": 10**30}, {"name": 5}, {"name": ""}, {"specials": [5]}, {"specials": "none"},
        {"exponent_bits": "5"}, {"exponent_bits": None}, {"exponent_bits": 10**5000}, {"exponent_bits": True},
        {"exponent_bits": 0}, {"fraction_bits": 63}, {"fraction_bits": 0}, {"exponent_bits": 15, "fraction_bits": 60},
        {"specials": "fnuz", "signed": False}, {"zero": False},
    ],
)  # fmt: skip
def test_fields_that_make_no_format(change):
    with pytest.raises(NumsimError, match=r"Example: numsim\.Format"):
        Format(**{**FIELDS, **change})


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64, np.uint8])
def test_formats_of_numpys_integers_do_not_wrap(kind):
    made = Format("x", kind(5), kind(2), kind(15))
    assert made.max == numsim.E5M2.max and encode([1e300, 3.3], made).tolist() == encode([1e300, 3.3], "e5m2").tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda: encode([np.datetime64("2020")], "fp16"),
        lambda: encode([np.timedelta64(5)], "fp16"),
        lambda: encode(np.array(["2020"], "M8[D]"), "fp16"),
        lambda: encode(np.zeros(1, [("a", "f4")]), "fp16"),
        lambda: encode(np.array([1.0], object), "fp16"),
        lambda: encode(1j, "fp16"),
        lambda: encode(np.array([1j]), "fp16"),
        lambda: encode([[1.0], [1.0, 2.0]], "fp16"),
        lambda: encode(None, "fp16"),
        lambda: encode("0x1p" + "9" * 5000, "fp16"),
        lambda: encode("9" * 200_000, "fp16"),
        lambda: encode("z" * 200_000, "fp16"),
        lambda: encode(1.0, "fp16", rounding=10**5000),
        lambda: encode(1.0, "fp16", rounding=np.array(["up", "down"])),
        lambda: encode(1.0, "fp16", overflow=["ieee"]),
        lambda: encode(1.0, "fp16", events=3),
        lambda: encode(1.0, "fp16", rounding="stochastic", seed=np.timedelta64(5, "s")),
        lambda: encode(1.0, "fp16", rounding="stochastic", random_bits=[[1], [1, 2]]),
        lambda: encode(1.0, "fp16", rounding="stochastic", seed=1, sr_bits=True),
        lambda: encode(1.0, "fp16", seed=1),
        lambda: round_to(np.ones(1), "fp16", out=np.broadcast_to(0.0, (1,))),
        lambda: round_to(np.ones(2), "fp16", out=np.ones(3)),
        lambda: decode([[[1] * 2], [[1]]], "fp16"),
        lambda: decode(np.array([-1]), "fp16"),
        lambda: decode([70000], "fp16"),
        lambda: decode([10**30], "fp16"),
        lambda: from_codes([[1], [1, 2]], "fp16"),
        lambda: numsim.unpack([[1], [1, 2]], "e2m1"),
        lambda: get_format(10**5000),
        lambda: get_format(None),
        lambda: numsim.sum(array([1.0], "fp16"), order=np.array(["a", "b"])),
        lambda: numsim.sum(array([1.0], "fp16"), axis=10**5000),
        lambda: numsim.dot(array([1.0], "fp16"), array([1.0], "fp16"), product=np.array(["a", "b"])),
        lambda: numsim.matmul(array(np.ones((2, 3)), "fp16"), array(np.ones((2, 3)), "fp16")),
        lambda: numsim.random.Stream(1, np.timedelta64(1)),
        lambda: numsim.kernels.force("nonsense").__enter__(),
        lambda: numsim.trace_sum([1.0]),
    ],
)
def test_refusals(call):
    with pytest.raises(NumsimError) as error:
        call()
    assert 10 < len(str(error.value)) < 500


def test_a_refused_call_leaves_out_and_events_alone():
    out, seen = np.full(2, 7.0), numsim.Events()
    with pytest.raises(NumsimError):
        round_to(np.array([1.0, np.nan]), "e2m1", out=out, events=seen)
    assert out.tolist() == [7.0, 7.0] and seen == numsim.Events()


def test_arrays_while_subnormals_are_flushed():
    """Codes are the truth: what looks at them is right, comparisons too."""
    torch = pytest.importorskip("torch", reason="needs torch to switch flush-to-zero on: pip install torch")
    x = from_codes([1, 3], "fp64")
    if not torch.set_flush_denormal(True):
        pytest.skip("torch cannot flush subnormals here")
    try:
        shown, truth = repr(x), bool(from_codes(1, "fp64"))
        trace = numsim.trace_sum(from_codes([0x3FF0000000000000, 1, 1], "fp64"))
        same = [(x == other).tolist() for other in (from_codes([2, 3], "fp64"), 0.0, from_codes([1, 3], "fp32"))]
    finally:
        torch.set_flush_denormal(False)
    assert shown == "numsim.from_codes([1, 3], 'fp64')" and truth and trace.lost == 2
    assert same == [[False, True], [False, False], [False, False]]


def test_absurd_thread_counts(monkeypatch):
    from numsim.kernels._pool import threads

    for chosen in ("9" * 5000, "0", "-1", "many", ""):
        monkeypatch.setenv("NUMSIM_THREADS", chosen)
        assert 1 <= threads() < 10_000
