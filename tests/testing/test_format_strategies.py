"""Formats of every kind are drawn, and every other strategy works over each of them; and codebooks."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numsim
from numsim.testing import (
    arrays,
    assert_bits_equal,
    boundary_codes,
    codes,
    formats,
    hard_cases,
    operand_pairs,
    sample_codes,
    values,
)
from tests.testing.test_strategies import FIXED, drawn, simplest


def test_every_kind_comes_up():
    found = drawn(formats(), 400)
    mine = [f for f in found if f.name.startswith("mine")]
    named = {f.name for f in found if f.is_named}
    assert {"fp16", "e4m3fn", "fp64"} <= named
    assert any(n.startswith("e") and numsim.get_format(n) not in numsim.list_formats() for n in named)  # eXmY
    drafts = {n for n in named if n.startswith("binary")}
    assert {n[-2:] for n in drafts} == {"se", "sf", "ue", "uf"}
    assert {numsim.get_format(n).bits for n in drafts} >= {3, 4, 8, 16}
    assert {f.specials for f in mine} == {"ieee", "fn", "fnuz", "finite"}
    for what in ("signed", "zero", "gap", "infinities"):
        assert {bool(getattr(f, what)) for f in mine} == {True, False}, what
    assert {0, 1, 11} <= {f.exponent_bits for f in mine} and {0, 1} <= {f.fraction_bits for f in mine}
    assert min(f.emax for f in mine) < -20_000 and max(f.emin for f in mine) > 20_000


@pytest.mark.parametrize(
    ("options", "holds"),
    [
        ({"max_bits": 8}, lambda f: f.bits <= 8),
        ({"max_bits": 3}, lambda f: f.bits <= 3),
        ({"signed": True}, lambda f: f.signed),
        ({"signed": False}, lambda f: not f.signed),
        ({"within": "fp32"}, lambda f: f.fits(numsim.FP32)),
        ({"user_defined": False}, lambda f: f.is_named),
        ({"named": False, "p3109": False}, lambda f: not f.is_named),
        ({"named": False, "user_defined": False}, lambda f: f.name.startswith("binary")),
        ({"p3109": False}, lambda f: not f.name.startswith("binary")),
        ({"max_bits": 4, "signed": False, "user_defined": False}, lambda f: f.bits <= 4 and not f.signed),
    ],
)
def test_restricted(options, holds):
    assert all(map(holds, drawn(formats(**options), 80)))


def test_shrinks_to_named_ones():
    assert simplest(formats(), lambda f: True) is numsim.FP16
    assert simplest(formats(), lambda f: f.bits > 16).is_named
    assert simplest(formats(), lambda f: not f.signed).is_named
    assert simplest(formats(named=False), lambda f: True).name == "binary3p1se"
    assert simplest(formats(), lambda f: f.exponent_bits == 0).bits <= 4


@settings(FIXED, max_examples=80)
@given(st.data())
def test_all_strategies_over_any_format(data):
    """Codes are in range and keep their bits; hard cases and pairs are drawn; sweeps are complete."""
    format = data.draw(formats(max_bits=24))
    code = data.draw(codes(format, allow_nan=False))
    assert 0 <= code < format.codes and numsim.classify(code, format) != "nan"
    zero = numsim.classify(code, format) == "zero" and format.gap  # several codes mean zero there
    if numsim.classify(code, format) != "infinity" and not zero:
        exact = numsim.exact(code, format)
        negative_zero = not exact and code
        assert negative_zero or int(numsim.encode(exact, format)) == code
    assert all(0 <= c < format.codes for c in data.draw(operand_pairs(format)))
    assert np.isfinite(data.draw(hard_cases(format, "fp32")))
    assert data.draw(arrays(format, 2)).format == format
    ends = boundary_codes(format)
    assert {0, format.max_code, format.codes - 1} <= set(ends.tolist()) and (np.diff(ends.astype(np.int64)) > 0).all()
    assert int(sample_codes(format, 50, 1).max()) < format.codes


@settings(FIXED, max_examples=40)
@given(st.data())
def test_values_of_formats_within_float64(data):
    format = data.draw(formats(max_bits=32, within="fp64"))
    x = data.draw(values(format, allow_nan=False))
    assert numsim.encode(numsim.array(x, format).values, "fp64") == numsim.encode(x, "fp64")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: formats(max_bits=2), "max_bits=2"),
        (lambda: formats(max_bits=2.5), "max_bits=2.5"),
        (lambda: formats(signed="yes"), "signed='yes'"),
        (lambda: formats(within="nf4"), "a codebook holds no format"),
        (lambda: formats(within="fp8"), "did you mean"),
        (lambda: formats(named=False, p3109=False, user_defined=False), "leave no format"),
    ],
)
def test_refused(call, message):
    with pytest.raises(numsim.NumsimError, match=message):
        call()


# --- codebooks --------------------------------------------------------------------------------------------------------
BOOKS = [*numsim.list_codebooks(), numsim.Codebook("mine", (0, 3, Fraction(1, 2), -7), ties="zero")]


@pytest.mark.parametrize("book", BOOKS, ids=str)
def test_codes_and_values_of_codebooks(book):
    wanted = range(book.codes) if book.codes <= 16 else range(40)
    found = set(drawn(codes(book), 400))
    assert found <= set(range(book.codes)) and len(found) > 0.5 * len(wanted)
    assert set(drawn(values(book), 50)) <= {float(v) for v in book.values}
    assert simplest(values(book), lambda x: True) == 0
    unused = simplest(codes(book), lambda c: True)
    assert unused not in book.unused


@pytest.mark.parametrize("book", BOOKS, ids=str)
@pytest.mark.parametrize("source", ["fp32", "fp16"])
def test_hard_cases_of_codebooks(book, source):
    """Numbers, limits between them and what lies beside both: against the definition in fractions."""
    found = drawn(hard_cases(book, source), 300)
    assert_bits_equal(found, numsim.array(found, source))
    limits = [float(t) for t in book.thresholds if numsim.get_format(source).holds(t)]
    assert any(x in limits for x in found) == bool(limits)
    assert any(x > max(book.values) for x in found) and any(x < min(book.values) for x in found)
    for x in found:
        exact = Fraction(x)
        code = int(numsim.encode(x, book))
        if book.bounds is None:  # the nearest number: none is nearer
            assert abs(book.values[code] - exact) == min(abs(v - exact) for v in book.ordered)
