"""Formats of one's own: every choice by itself, against a list of values written from the fields alone."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

import numsim
from numsim import Format
from numsim.errors import FormatError, InputError
from numsim.rounding import ROUNDINGS

NAN, INF = "nan", "inf"


def p2(n):
    return Fraction(2) ** n


def meaning(code, e, f, bias, signed, specials, infinities, subnormals):
    """(sign, value) of a code by the text of the class: fields, then the top codes."""
    sign, magnitude = divmod(code, 1 << (e + f)) if signed else (0, code)
    field, fraction = divmod(magnitude, 1 << f)
    top = (1 << (e + f)) - 1
    if specials == "ieee" and field == (1 << e) - 1:
        return sign, NAN if fraction else INF
    if specials == "fnuz" and sign and magnitude == 0:
        return 0, NAN
    if specials == "fn" and magnitude == top:
        return sign, NAN
    if infinities and specials != "ieee" and magnitude == top - (specials == "fn"):
        return sign, INF
    if field:
        return sign, (1 + Fraction(fraction, 1 << f)) * p2(field - bias)
    value = Fraction(fraction, 1 << f) * p2(1 - bias) if subnormals else Fraction(0)
    return sign if value or specials != "fnuz" else 0, value


def choices():
    for (e, f), specials, signed, infinities, subnormals in itertools.product(
        [(0, 3), (1, 2), (2, 2), (3, 0), (3, 1)], ("ieee", "fn", "fnuz", "finite"), (True, False), *[(True, False)] * 2
    ):
        fields = {"signed": signed, "specials": specials, "infinities": infinities, "subnormals": subnormals}
        refused = (
            (specials == "ieee" and (e < 2 or f < 1 or not infinities))
            or (specials == "fnuz" and not signed)
            or (not subnormals and f and e == 0)
        )
        if not refused:
            yield e, f, fields


CHOICES = list(choices())


def ident(choice):
    e, f, fields = choice
    return f"e{e}m{f}-" + "-".join(str(v) for v in fields.values())


@pytest.mark.parametrize("choice", CHOICES, ids=ident)
def test_every_code(choice):
    e, f, fields = choice
    bias = 2
    format = Format("own", e, f, bias, **fields)
    values = numsim.decode(np.arange(format.codes, dtype=np.uint8), format)
    seen = {}
    for code in range(format.codes):
        sign, value = meaning(code, e, f, bias, **fields)
        kind = str(numsim.classify(code, format))
        if value is NAN:
            assert kind == "nan" and np.isnan(values[code])
            continue
        assert np.signbit(values[code]) == bool(sign)
        if value is INF:
            assert kind == "infinity" and np.isinf(values[code]) and format.infinity_code == code & ~format.sign_mask
        else:
            wanted = "zero" if value == 0 else "normal" if code & ~format.sign_mask >= 1 << f else "subnormal"
            assert kind == wanted and abs(Fraction(float(values[code]))) == value
            assert numsim.exact(code, format) == (-value if sign else value) and format.holds(-value if sign else value)
        seen.setdefault((sign, value), code)
    for (sign, value), code in seen.items():  # of several zeros the first
        x = float("inf") if value is INF else float(value)
        assert numsim.encode(-x if sign else x, format) == code
        if value is not INF:
            assert numsim.round_to(np.float32([-x if sign else x]), format)[0] == (-x if sign else x)
    finite = [v for (_, v) in seen if v is not INF]
    assert format.max == max(finite) and format.least == min(v for v in finite if v)
    assert (format.infinity_code is not None) == fields["infinities"] == (INF in [v for _, v in seen])
    assert (format.nan_code is not None) == (fields["specials"] != "finite")
    assert format.least_subnormal == (p2(1 - bias - f) if fields["subnormals"] and f else None)
    assert eval(repr(format), {"Format": Format}) == format


def rounded(x, numbers, rounding, random):
    """The nearest of (value, code) pairs that hold 0 and everything above; the largest is not exceeded."""
    i = next(i for i, (v, _) in enumerate(numbers) if v >= abs(x))
    (high, code), part = numbers[i], 0
    if high == abs(x):
        return code
    low, low_code = numbers[i - 1]
    part, odd = (abs(x) - low) / (high - low), low_code % 2 if low else 0  # zero is even
    up = {
        "nearest-even": 2 * part > 1 or (2 * part == 1 and odd), "nearest-away": 2 * part >= 1, "toward-zero": False,
        "up": x > 0, "down": x < 0, "odd": not odd, "stochastic": (part * 2**8).__floor__() + random >= 2**8,
    }[rounding]  # fmt: skip
    return code if up else low_code


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    "fields",
    [(0, 3, {"specials": "finite"}), (3, 2, {"subnormals": False}), (1, 3, {"specials": "fn", "infinities": True}),
     (2, 2, {"subnormals": False, "specials": "fnuz"}), (2, 3, {"signed": False, "subnormals": False})],
)  # fmt: skip
def test_every_mode(fields, rounding):
    """Numbers within the format; without subnormals the first gap is as wide as the least normal number."""
    e, f, options = fields
    format = Format("own", e, f, 3, **options)
    codes = range(format.max_code + 1)
    numbers = [(numsim.exact(c, format), c) for c in codes if c == 0 or numsim.exact(c, format)]
    xs, draws, wanted = [], [], []
    for (low, _), (high, _) in itertools.pairwise(numbers):
        for part, sign, random in itertools.product((0, 1, 31, 32, 33, 63), (1, -1), (0, 127, 255)):
            x = sign * (low + Fraction(part, 64) * (high - low))
            if x >= 0 or format.signed:
                code = rounded(x, numbers, rounding, random)
                sign_bit = format.sign_mask if x < 0 and (code or format.specials != "fnuz") else 0
                xs, draws, wanted = [*xs, x], [*draws, random], [*wanted, code | sign_bit]
    chance = {"random_bits": np.array(draws, np.uint8)} if rounding == "stochastic" else {}
    assert numsim.encode(xs, format, rounding=rounding, **chance).tolist() == wanted
    floats = np.tile(np.array([float(x) for x in xs]), 2)  # so many that a kernel takes them, where there is one
    chance = {"random_bits": np.tile(chance["random_bits"], 2)} if chance else {}
    assert numsim.encode(floats, format, rounding=rounding, **chance).tolist() == wanted * 2


@pytest.mark.parametrize(
    "format", [Format("zero", 0, 1, 1, specials="fn"), Format("zero", 1, 0, 1, specials="fnuz", infinities=True)]
)
def test_no_number_but_zero(format):
    """Beside it NaN, or infinities and NaN: the next number is no NaN, and -inf is below zero."""
    up, down = numsim.next_up(numsim.array(0.0, format)), numsim.next_down(numsim.array(0.0, format))
    values = [float(up), float(down)]
    assert values == ([0.0, 0.0] if format.infinity_code is None else [float("inf"), float("-inf")])
    assert numsim.encode(values, format).tolist() == [int(up.codes), int(down.codes)]


def test_without_subnormals():
    format = Format("no", 5, 10, 15, subnormals=False)
    assert format.least == format.least_normal == p2(-14) and not format.subnormals
    half = p2(-15)
    assert numsim.encode([half, half * Fraction(1025, 1024), -half, -p2(-16)], format).tolist() == [
        0, 1 << 10, 0x8000, 0x8000,
    ]  # fmt: skip
    assert numsim.decode([1, 0x3FF, 0x8001], format).tolist() == [0, 0, 0]  # as on hardware that knows none
    assert numsim.neighbours(0, format) == numsim.neighbours(5, format) == (0x8400, 0x400)
    assert numsim.neighbours(0x400, format) == (0, 0x401) and numsim.neighbours(0x8400, format) == (0x8401, 0x8000)
    assert numsim.ulp(0, format) == p2(-14) and numsim.ulp(0x400, format) == p2(-24)
    x = numsim.array([2.0**-14], format)
    assert (x / 2).codes.tolist() == [0] and (x * 0.75).codes.tolist() == [0x400]
    seen = numsim.Events()
    numsim.encode(np.full(1000, 2.0**-16), format, events=seen)
    assert (seen.underflow, seen.subnormal, seen.inexact) == (1000, 0, 1000)


def test_fixed_point():
    format = Format("fixed", 0, 7, 1, specials="finite")
    assert (format.bits, format.max, format.least, format.emax) == (8, Fraction(127, 128), p2(-7), -1)
    assert numsim.encode([0.5, -0.5, 0.999, 2.0, 1 / 256, 3 / 256], format).tolist() == [64, 192, 127, 127, 0, 2]
    assert format.integers_up_to == 0 and Format("integers", 0, 7, -6, specials="finite").integers_up_to == 127


def test_wide_formats():
    format = Format("wide", 11, 52, 1023, specials="fn")
    assert numsim.exact(numsim.encode("0.1", format), format) == Fraction(0.1) and format.max > numsim.FP64.max
    with pytest.raises(numsim.RangeError):
        numsim.decode([format.max_code], format)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"infinities": False}, "specials='ieee' has infinities"),
        ({"infinities": 1}, "infinities=1: allowed are True and False"),
        ({"subnormals": None}, "subnormals=None: allowed are True and False"),
        ({"exponent_bits": 0, "fraction_bits": 0, "specials": "finite"}, "one besides the sign"),
        ({"exponent_bits": 0, "fraction_bits": 3, "specials": "finite", "subnormals": False}, "no number but zero"),
        ({"exponent_bits": 1, "fraction_bits": 0, "specials": "fn", "infinities": True}, "no number but zero"),
        ({"exponent_bits": 16, "fraction_bits": 1}, r"allowed are 0\.\.15 \(16 without a fraction\)"),
    ],
)
def test_what_makes_no_format(fields, words):
    good = {"name": "mine", "exponent_bits": 5, "fraction_bits": 4, "bias": 15}
    with pytest.raises(FormatError, match=words):
        Format(**(good | fields))


def test_nan_into_a_format_with_infinity_and_without_nan():
    format = Format("x", 3, 2, 3, specials="finite", infinities=True)
    assert numsim.encode([1e9, -1e9], format).tolist() == [0x1F, 0x3F]
    with pytest.raises(InputError, match="NaN has no code"):
        numsim.encode(float("nan"), format)


def test_todays_records_are_equal():
    """Infinities and subnormals follow from the rest where nothing is said of them."""
    for f in numsim.list_formats():
        again = Format(f.name, f.exponent_bits, f.fraction_bits, f.bias, f.signed, f.specials, f.zero)
        assert again == f and again.infinities == (f.specials == "ieee")
        assert again.subnormals == (f.zero and f.fraction_bits > 0)
    assert Format("x", 4, 3, 7, True, "fn") == Format("x", 4, 3, 7, specials="fn", infinities=False, subnormals=True)
    assert Format("x", 4, 3, 7) != Format("x", 4, 3, 7, subnormals=False)


def test_holds_and_fits():
    small = Format("small", 3, 2, 3, subnormals=False)
    assert small.fits(numsim.FP16) and not Format("s", 3, 2, 3).fits(small) and small.fits(Format("s", 3, 2, 3))
    assert not numsim.get_format("binary8p1ue").fits(numsim.E8M0)  # no zero there
    assert [numsim.E8M0.holds(x) for x in (p2(-127), p2(-128), Fraction(0), Fraction(-1))] == [
        True,
        False,
        False,
        False,
    ]
