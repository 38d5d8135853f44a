"""Bad input to the library: refused with value, rule and a call that works, before any work; nothing raw escapes."""

from fractions import Fraction

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


UNSIGNED = [  # codes beyond int64's
    Format("a", 11, 53, 1023, signed=False), Format("b", 11, 53, 1023, signed=False, specials="fn", infinities=True),
    Format("c", 2, 62, 1, signed=False, specials="finite"), Format("d", 4, 60, 7, signed=False, specials="fn", zero=False),
    Format("e", 11, 53, 1030, signed=False, specials="finite", subnormals=False),
]  # fmt: skip


def read(code, f):
    """Class and value of a code without a sign, by the definition; ``value`` None for what is no number."""
    field, part = code >> f.fraction_bits, Fraction(code % (1 << f.fraction_bits), 1 << f.fraction_bits)
    last = (1 << f.magnitude_bits) - 1
    if f.specials == "ieee" and field == (1 << f.exponent_bits) - 1:
        return ("nan" if part else "infinity"), None
    if f.specials == "fn" and code >= last - f.infinities:
        return ("nan" if code == last else "infinity"), None
    if field or not f.zero:
        return "normal", (1 + part) * Fraction(2) ** (field - f.bias)
    if not part or not f.subnormals:
        return "zero", Fraction(0)
    return "subnormal", part * Fraction(2) ** (1 - f.bias)


@pytest.mark.parametrize("format", UNSIGNED, ids=str)
def test_codes_of_64_bits_without_a_sign(format):
    f, top = format.fraction_bits, format.top_code
    codes = {0, 1, (1 << f) - 1, 1 << f, (1 << f) + 1, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, top - 1, top}
    codes = sorted(codes | {c for c in (top + 1, top + 2, (1 << 64) - 1) if c < 1 << 64})
    kinds = numsim.classify(np.array(codes, np.uint64), format).tolist()
    values = [read(c, format) for c in codes]
    assert kinds == [kind for kind, _ in values] == [str(numsim.classify(c, format)) for c in codes]
    for code, (_, value) in zip(codes, values, strict=True):
        if value is None:
            with pytest.raises(numsim.RangeError):
                numsim.exact(code, format)
            continue
        assert numsim.exact(code, format) == value and numsim.exact(int(encode(value, format)), format) == value
    numbers = [(c, v) for c, (_, v) in zip(codes, values, strict=True) if v is not None]
    x = from_codes(np.array([c for c, _ in numbers], np.uint64), format)
    for (code, value), (above, larger) in zip(numbers, numbers[1:], strict=False):
        if above == code + 1 and value and larger:
            assert numsim.neighbours(code, format)[1] == above and numsim.ulp(code, format) == larger - value
    assert numsim.less(x[:-1], x[1:]).tolist() == [a < b for (_, a), (_, b) in zip(numbers, numbers[1:], strict=False)]
    assert np.argsort(x[::-1]).tolist()[0] == len(numbers) - 1 - (format.gap and 2)


FLUSHED = [  # whose least numbers are subnormal ones of float64
    numsim.FP64, numsim.get_format("e11m10"), Format("f", 5, 20, 1040), Format("g", 5, 3, 1050, specials="fnuz"),
    Format("h", 3, 1, 1074, signed=False, specials="finite"), Format("i", 8, 30, 1040, specials="fn", subnormals=False),
    Format("j", 12, 8, 2000), Format("k", 5, 8, 1079, specials="finite"),
]  # fmt: skip


@pytest.mark.parametrize("format", FLUSHED, ids=str)
def test_decode_while_subnormals_are_flushed(format):
    """The bits of each float64 are made of integers, so a CPU that flushes subnormal numbers changes none."""
    torch = pytest.importorskip("torch", reason="needs torch to switch flush-to-zero on: pip install torch")
    fields = [
        format.bias - 1074 + n for n in range(-2, 60, 7) if 0 < format.bias - 1074 + n < 1 << format.exponent_bits
    ]
    places = [0, 1, 2, 3, *(1 << s for s in range(2, format.magnitude_bits)), format.max_code - 1, format.max_code]
    places += [(n << format.fraction_bits) | low for n in fields for low in (0, 1 << format.fraction_bits >> 1)]
    codes, expected = [], []
    for code in (sign | c for c in places for sign in sorted({0, format.sign_mask})):
        kind = str(numsim.classify(code, format))
        if kind not in ("nan", "infinity"):
            value = numsim.exact(code, format)
            units = abs(value) * (1 << 1074)
            if (abs(value) < 2 and units.denominator > 1) or abs(value) >= 2**1023:
                continue  # no float64
            codes.append(code)
            magnitude, place = int(units), 0
            while magnitude >> 53:
                magnitude, place = magnitude // 2, place + 1
            expected.append((magnitude + (place << 52)) | (bool(code & format.sign_mask) << 63))
    if not torch.set_flush_denormal(True):
        pytest.skip("torch cannot flush subnormals here")
    try:
        numsim.codes._table.cache_clear()
        found = np.asarray(decode(np.array(codes, f"u{format.code_bytes}"), format)).view(np.uint64).tolist()
    finally:
        torch.set_flush_denormal(False)
        numsim.codes._table.cache_clear()
    assert found == expected and any(0 < word % (1 << 63) < 1 << 52 for word in found)


def test_absurd_thread_counts(monkeypatch):
    from numsim.kernels._pool import threads

    for chosen in ("9" * 5000, "0", "-1", "many", ""):
        monkeypatch.setenv("NUMSIM_THREADS", chosen)
        assert 1 <= threads() < 10_000
