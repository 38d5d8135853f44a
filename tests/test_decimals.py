"""Decimal strings: Python's ``repr`` and NumPy's shortest digits as outsiders; every other string by looking for it.

A string is right if ``encode`` gives the code back, if no string with one digit less does, and if no other with as many
digits is nearer. That is checked in fractions, over neighbouring decimals.
"""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import numsim
from numsim.decimals import to_decimal
from numsim.errors import InputError
from tests import oracle
from tests.test_arithmetic import tricky_codes

MODES = oracle.MODES


def codes_of(format, count=400, seed=1):
    if format.bits <= 8:
        return np.arange(format.codes, dtype=np.uint8)
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, format.codes, count, dtype=np.uint64)
    edges = [0, 1, 1 << format.fraction_bits, format.bias << format.fraction_bits, format.max_code]
    near = np.clip(rng.choice(edges, count // 3) + rng.integers(-3, 4, count // 3), 0, format.max_code)
    codes[: near.size] = near
    return codes.astype(f"u{format.code_bytes}")


# --- outsiders --------------------------------------------------------------------------------------------------------
def test_fp64_is_pythons_repr():
    codes = tricky_codes(oracle.SPECS["fp64"], 3000, np.random.default_rng(2))
    powers = np.array([2.0**k for k in range(-1074, 1024, 7)] + [10.0**k for k in range(-30, 31)]).view(np.uint64)
    hard = np.array([5e-324, 2.2250738585072014e-308, 9007199254740993.0, 1e23, 9.5, 0.3, 1e16, 1e-5, 123456.0])
    codes = np.concatenate([codes, powers, hard.view(np.uint64)])
    texts = to_decimal(numsim.from_codes(codes, "fp64")).tolist()
    right = [repr(x) for x in codes.view(np.float64).tolist()]
    assert [(a, b) for a, b in zip(texts, right, strict=True) if a != b and b != "nan"] == []
    assert {a for a, b in zip(texts, right, strict=True) if b == "nan"} <= {"nan"}


@pytest.mark.parametrize(("name", "dtype"), [("fp16", np.float16), ("fp32", np.float32)])
def test_narrower_ones_are_numpys(name, dtype):
    """Digits and exponent; the layout is NumPy's scientific one there."""
    spec = oracle.SPECS[name]
    codes = (
        np.arange(0, 1 << 16, 5).astype(np.uint16)
        if name == "fp16"
        else tricky_codes(spec, 3000, np.random.default_rng(3))
    )
    floats = codes.view(dtype)
    for text, x in zip(to_decimal(numsim.from_codes(codes, name)).tolist(), floats, strict=True):
        theirs = np.format_float_scientific(x, unique=True)
        if not np.isfinite(x):
            assert text == str(float(x))
        else:
            assert Decimal(text) == Decimal(theirs) and len(digits(text)) == len(digits(theirs)), (text, theirs)


def digits(text):
    """Significant digits."""
    return text.partition("e")[0].replace(".", "").lstrip("-").strip("0")


# --- every format, every mode -----------------------------------------------------------------------------------------
def decimals_around(x, count, e):
    """Decimals of so many digits on both sides of x > 0, which is about 10^e."""
    while Fraction(10) ** e > x:
        e -= 1
    while Fraction(10) ** (e + 1) <= x:
        e += 1
    unit = Fraction(10) ** (e + 1 - count)
    n = x // unit
    return [n * unit, (n + 1) * unit]


FORMATS = [*numsim.list_formats(), numsim.get_format("binary8p3se"), numsim.get_format("binary6p1uf"),
           numsim.get_format("e15m48"), numsim.Format("no_subnormals", 4, 3, 7, subnormals=False),
           numsim.Format("fixed", 0, 7, 3, specials="finite")]  # fmt: skip


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_shortest(format):
    codes = codes_of(format, 12 if format.exponent_bits > 11 else 40)
    if format.bits <= 8:
        codes = codes[:: 3 if format.bits > 6 else 1]
    for rounding in MODES:
        for code, text in zip(
            codes.tolist(), to_decimal(numsim.from_codes(codes, format), rounding=rounding), strict=True
        ):
            kind = numsim.classify(code, format)
            if kind in ("nan", "infinity"):
                assert text.lstrip("-") == {"nan": "nan", "infinity": "inf"}[kind]
                continue
            if kind == "zero":
                assert text in ("0.0", "-0.0")
                continue
            assert back(str(text), format, rounding) == code, (rounding, hex(code), text)
            x, count, e = abs(numsim.exact(code, format)), len(digits(text)), Decimal(str(text)).adjusted()
            sign = -1 if text.startswith("-") else 1
            # What is beyond the largest number, and comes back as it does not overflow, is not counted.
            stops = rounding in ("toward-zero", "up", "down", "odd")
            last = x == format.max and (stops or (format.infinity_code is None and format.nan_code is None))
            found = {n: [d for d in decimals_around(x, n, e) if d and back(sign * d, format, rounding) == code]
                     for n in (count - 1, count) if n}  # fmt: skip
            found = {n: [d for d in ds if d < x or not last] for n, ds in found.items()}
            assert not found.get(count - 1), (rounding, hex(code), text, found)
            distance = abs(abs(Fraction(*Decimal(str(text)).as_integer_ratio())) - x)
            assert all(distance <= abs(d - x) for d in found[count]), (rounding, hex(code), text, found)


def back(x, format, rounding):
    return int(numsim.encode(x, format, rounding=rounding))


@pytest.mark.parametrize("name", ["fp64", "fp32", "fp16", "bf16", "e4m3fn", "e5m2", "e3m2", "e8m0", "e15m48"])
def test_exact(name):
    format = numsim.get_format(name)
    x = numsim.from_codes(codes_of(format, 150), name)
    texts = to_decimal(x, exact=True)
    for code, text in zip(x.codes.tolist(), texts.tolist(), strict=True):
        if numsim.classify(code, format) in ("zero", "subnormal", "normal"):
            assert Decimal(text).as_integer_ratio() == numsim.exact(code, format).as_integer_ratio()
            assert text.startswith("-") == bool(code & format.sign_mask)
            assert len(digits(text)) == len(digits(f"{Decimal(text):f}".replace(".", "").strip("0")))
    finite = np.char.find(texts, "n") < 0
    again = numsim.array(texts[finite], name)
    assert np.array_equal(again.codes, x.codes[finite])


# --- reading ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fp64", "fp32", "fp16", "bf16", "e4m3fn", "e5m2", "e3m2"])
def test_strings_of_any_length_round_once(name):
    """A tie, and ten thousand digits later a one: above the tie. One less in the last place: below."""
    format = numsim.get_format(name)
    for rank in (0, 1, 2, 1 << format.fraction_bits, format.bias << format.fraction_bits, format.max_rank - 1):
        low, high = format.magnitude(rank), format.magnitude(rank + 1)
        text = decimal_of((low + high) / 2)
        above = text + "0" * 10_000 + "1"
        assert int(numsim.encode(above, name)) == rank + 1
        assert int(numsim.encode(text, name)) == (rank if rank % 2 == 0 else rank + 1)
        below = text[:-1] + str(int(text[-1]) - 1) + "9" * 10_000 if text[-1] not in ".0" else None
        if below:
            assert int(numsim.encode(below, name)) == rank


def decimal_of(x):
    """A dyadic fraction's digits, by long division."""
    whole, rest = divmod(x.numerator, x.denominator)
    out = [str(whole), "."]
    while rest:
        digit, rest = divmod(rest * 10, x.denominator)
        out.append(str(digit))
    return "".join(out)


# --- form -------------------------------------------------------------------------------------------------------------
def test_layout():
    x = numsim.array([1e16, 9999999999999998.0, 1e-4, 1e-5, 1.5e300, -0.0, 100.0], "fp64")
    assert to_decimal(x).tolist() == ["1e+16", "9999999999999998.0", "0.0001", "1e-05", "1.5e+300", "-0.0", "100.0"]
    assert (
        to_decimal(numsim.array(0.1, "fp64"), exact=True) == "0.1000000000000000055511151231257827021181583404541015625"
    )
    assert to_decimal(numsim.array(448.0, "e4m3")) == "450.0"
    assert to_decimal(numsim.array(2.0**-149, "fp32"), exact=True).endswith("125e-45")


@pytest.mark.parametrize("bias", [60000, -60000])
def test_formats_far_out(bias):
    """10^18062 and 10^-18061 are read back, and so are hexadecimal numbers."""
    format = numsim.Format("far", 2, 1, bias)
    x = numsim.from_codes(np.arange(6, dtype=np.uint8), format)
    assert np.array_equal(numsim.encode(to_decimal(x).tolist(), format), x.codes)
    assert numsim.encode(f"0x1p{1 - bias}", format) == 2


def test_shapes():
    x = numsim.array(np.arange(6).reshape(2, 3) / 8, "fp16")
    assert to_decimal(x).tolist() == [["0.0", "0.125", "0.25"], ["0.375", "0.5", "0.625"]]
    assert isinstance(to_decimal(x[0, 0]), str)
    assert to_decimal(x[:0]).shape == (0, 3) and to_decimal(x[:0]).dtype.kind == "U"
    assert np.array_equal(numsim.array(to_decimal(x), "fp16").codes, x.codes)


def test_refusals():
    x = numsim.array(0.1, "fp16")
    with pytest.raises(InputError, match=r"to_decimal takes an Array, not 0\.1\. Example: numsim\.to_decimal\("):
        to_decimal(0.1)
    with pytest.raises(InputError, match="rounding='stochastic': no string surely rounds back"):
        to_decimal(x, rounding="stochastic")
    with pytest.raises(InputError, match="rounding='nearest': allowed are"):
        to_decimal(x, rounding="nearest")
    with pytest.raises(InputError, match="exact=1: allowed are True and False"):
        to_decimal(x, exact=1)
