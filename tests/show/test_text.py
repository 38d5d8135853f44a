"""Explanations as text: the two of the README word for word, numbers cut and never rounded, colours."""

from __future__ import annotations

import io
import re
from fractions import Fraction

import pytest

from numsim.explain import explain
from numsim.formats import list_formats
from numsim.show import text
from numsim.show.numbers import digits_for, exact_decimal, short, signed

TENTH = """\
0.1 in BF16 is 0.10009765625 = 205/2048 exactly        code 0x3dcd, normal
  0|01111011|1001101     sign|exponent (2^-4)|fraction (7 bits, 1 hidden)
  exact 1.1001100|110011... x 2^-4     guard 1, sticky 1: above half, round up
  error +0.20 ulp (+0.098 %); ulp 2^-11
  neighbours 0x3dcc 0.099609375, 0x3dce 0.1005859375
  elsewhere  FP32 +0.0000015 %   FP16 -0.024 %   E4M3 +1.56 %   E5M2 -6.25 %"""

SWAMPED = """\
2048 + 1 in FP16 is 2048, not 2049                     code 0x6800, normal
  0|11010|0000000000     sign|exponent (2^11)|fraction (10 bits, 1 hidden)
  exact 2049 = 1.0000000000|1 x 2^11     guard 1, sticky 0: a tie, down to even
  2049 lies halfway between 2048 and 2050: a tie. The tie goes to 2048, the even
  one: its last bit is 0. So adding 1 changes nothing: it is lost.
  error -0.50 ulp (-0.049 %); ulp 2; neighbours 0x67ff 2047, 0x6801 2050
  elsewhere  FP32 exact   BF16 -0.049 %   E4M3 NaN (overflow)   E5M2 -0.049 %"""

SUM = """\
0.1 + 0.2 in FP64 is 0.3000000000000000444..., not 0.3
  code 0x3fd3333333333334, normal
  0|01111111101|0011001100110011001100110011001100110011001100110100
  sign|exponent (2^-2)|fraction (52 bits, 1 hidden)
  0.1 -> 0.1000000000000000055... (+5.6e-15 %)
  0.2 -> 0.2000000000000000111... (+5.6e-15 %)
  exact 0.3000000000000000166... =
  1.0011001100110011001100110011001100110011001100110011|1 x 2^-2
        guard 1, sticky 0: a tie, up to even
  0.3000000000000000166... lies halfway between 0.2999999999999999888... and
  0.3000000000000000444...: a tie. The tie goes to 0.3000000000000000444..., the
  even one: its last bit is 0.
  error +0.50 ulp (+9.3e-15 %); ulp 2^-54
  neighbours 0x3fd3333333333333 0.2999999999999999888...
             0x3fd3333333333335 0.3000000000000000999...
  without any rounding 0.3; error of all roundings +1.5e-14 %
  elsewhere  FP32 +0.0000040 %   FP16 -0.065 %   BF16 +0.26 %   E4M3 +4.17 %
             E5M2 -16.7 %"""


@pytest.mark.parametrize(("expression", "format", "card"), [
    ("0.1", "bf16", TENTH), ("2048 + 1", "fp16", SWAMPED), ("0.1 + 0.2", "fp64", SUM),
])  # fmt: skip
def test_golden_cards(expression: str, format: str, card: str) -> None:
    assert str(explain(expression, format)) == card


@pytest.mark.parametrize(("expression", "format", "words"), [
    ("70000", "fp16", "Overflow: 70000 is beyond the largest number, 65504; the result is infinity."),
    ("65520", "fp16", "between 65504 and 65536 (which would come next): a tie. The tie goes to 65536, the even one."),
    ("65520", "fp16", "Overflow: rounding takes 65520 past the largest number, 65504"),
    ("464", "e4m3", "The tie goes to 448, the even one"),
    ("-465", "e4m3", "past the most negative number, -448; the result is NaN."),
    ("100", "e2m1", "the result is the largest number."),
    ("1e-8", "fp16", "Underflow: 1e-8 is not zero and becomes zero; the least number above zero is 2^-24."),
    ("3e-6", "fp16", "the spacing stays 2^-24, so that 6 of 11 significand bits are left."),
    ("0", "e8m0", "E8M0 has no zero: the least number"),
    ("1e-300", "e8m0", "what is too small becomes 2^-127."),
    ("-1", "ue4m3", "UE4M3 has no sign: below zero becomes NaN"),
    ("-(1)", "ue4m3", "UE4M3 has no sign: below zero becomes NaN"),
    ("-0", "e4m3fnuz", "E4M3FNUZ has no -0: +0"),
    ("-(0)", "e4m3fnuz", "E4M3FNUZ has no -0: +0"),
    ("inf", "e4m3", "E4M3 has no infinity: NaN"),
    ("nan", "fp16", "NaN stays NaN"),
    ("nan + 1", "fp16", "NaN stays NaN"),
    ("0/0", "e4m3", "0 / 0 has no value: NaN"),
    ("inf - inf", "fp16", "infinity - infinity has no value: NaN"),
    ("fma(0, inf, 1)", "fp16", "0 * infinity + 1 has no value: NaN"),
    ("sqrt(-2)", "fp16", "no root of a number below zero: NaN"),
    ("1 / 0", "fp16", "a number divided by zero: infinity"),
    ("1 / 0", "e4m3", "a number divided by zero is infinite; E4M3 has no infinity: NaN"),
    ("1e46", "fp32", "guard 0, sticky 1: overflow, FP32 has no exponent 2^152"),
    ("448 + 33", "e4m3", "1.111 x 2^8 overflow, E4M3 keeps this pattern for NaN"),
    ("500", "e4m3", "sticky 1: overflow, E4M3 has no number here"),
    ("7", "e2m1", "lies halfway between 6 and 8 (which would come next)"),
    ("16777217", "fp32", "between 16777216 and 16777218: a tie. The tie goes to 16777216, the even one"),
    ("-1 / 0", "e2m1", "a number divided by zero is infinite; E2M1 has no infinity: the most negative number"),
    ("1e9 * 2", "fp16", "an infinity stays one"),
    ("e4m3:0x7e + e4m3:0x01", "e4m3", "e4m3:0x7e -> 448 e4m3:0x01 -> 0.001953125 exact 448.001953125 ="),
    ("e4m3fnuz:0x80", None, "NaN: the code of -0"),
    ("1 - 2048", "bf16", "exact -2047 = -1.1111111|111 x 2^10"),
    ("1 + 2048", "fp16", "So 1 is lost beside 2048."),
    ("2048 - 0.25", "fp16", "So subtracting 0.25 changes nothing: it is lost."),
    ("fma(0.1, 0.1, -0.01)", "bf16", "This step is exact: what is wrong comes from the roundings before it."),
    ("1e5 + 1", "fp16", "1e5 -> infinity (overflow)"),
    ("1e-9 + 1", "fp16", "1e-9 -> 0 (underflow, -100 %)"),
    ("sqrt(2)", "fp32", "exact 1.4142135623730950... = 1.01101010000010011110011|001100... x 2^0"),
])  # fmt: skip
def test_cases_in_words(expression: str, format: str | None, words: str) -> None:
    assert words in " ".join(str(explain(expression, format)).split())


@pytest.mark.parametrize(("rounding", "words"), [
    ("nearest-away", "a tie, away from zero"), ("toward-zero", "toward-zero cuts the rest off"),
    ("up", "up means towards +infinity: towards zero"), ("down", "down means towards -infinity: away from zero"),
    ("odd", "inexact: away from zero to the odd code"),
])  # fmt: skip
def test_modes_in_words(rounding: str, words: str) -> None:
    assert words in str(explain("-2049", "fp16", rounding=rounding))
    assert f"note: rounding={rounding}" in str(explain("-2049", "fp16", rounding=rounding))


def test_chance_in_words() -> None:
    card = str(explain("0.1", "bf16", rounding="stochastic", seed=7))
    assert (
        "3,435,973,836 of 4,294,967,296\n  draws round away from zero. This draw, 3,325,784,405, is one of them."
        in card
    )
    assert "note: rounding=stochastic, seed=7" in card


def test_errors_mirror_with_the_sign_of_the_number() -> None:
    for x in ("0.1", "1e-9", "2049", "3e-6"):
        plus, minus = explain(x, "fp16"), explain(f"-{x}", "fp16")
        assert (plus.relative_error, plus.last.error_ulp) == (minus.relative_error, minus.last.error_ulp)


# --- numbers ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("x", "shown"), [
    (Fraction(0), "0"), (Fraction(1, 10), "0.1"), (Fraction(-65504), "-65504"), (Fraction(1, 2**24), "2^-24"),
    (Fraction(2) ** 127, "2^127"), (Fraction(1, 1024), "0.0009765625"), (Fraction(2, 3), "0.66666666666666666..."),
    (Fraction(10) ** 30, "1e30"), (Fraction(123, 10**9), "1.23e-7"), (10**18 + Fraction(1), "1000000000000000001"),
    (Fraction(10**40 + 1), "1.0000000000000000...e40"), (Fraction(99999999999999999999999), "9.9999999999999999...e22"),
])  # fmt: skip
def test_short_numbers_are_exact_or_cut_and_marked(x: Fraction, shown: str) -> None:
    assert short(x) == shown


@pytest.mark.parametrize("format", list_formats(), ids=str)
def test_what_has_no_mark_is_exact(format) -> None:
    step = max(1, format.max_rank // 300)
    for rank in range(1, format.max_rank + 1, step):
        x = format.magnitude(rank)
        shown = short(x, digits_for(format), powers=None)
        number, marked, exponent = shown.partition("...")
        value = Fraction(number + exponent)
        last = Fraction(10) ** (int(exponent[1:] or 0) - len(number.partition(".")[2]))
        assert value <= x < value + last if marked else value == x
        assert Fraction(exact_decimal(x)) == x


@pytest.mark.parametrize(("x", "shown"), [
    (0, "0"), (Fraction(1, 5), "+0.20"), (Fraction(-1, 2), "-0.50"), (Fraction(999, 1000), "+1.0"),
    (Fraction(9996, 1000), "+10.0"),
    (Fraction(-625, 100), "-6.25"), (Fraction(245, 10000), "+0.024"), (Fraction(255, 10000), "+0.026"), (100, "+100"),
    (Fraction(245, 10000) + Fraction(1, 10**40), "+0.025"), (1234567, "+1.23e6"), (Fraction(1, 10**12), "+1.0e-12"),
    (Fraction(149, 10**8), "+0.0000015"),
])  # fmt: skip
def test_errors_are_rounded_once(x: Fraction | int, shown: str) -> None:
    assert signed(Fraction(x)) == shown


def test_an_error_just_under_half_an_ulp_is_not_half() -> None:
    x = Fraction(2049) - Fraction(1, 10**9)
    assert "error just under -0.50 ulp" in str(explain(x, "fp16"))
    assert "error -0.50 ulp" in str(explain("2049", "fp16"))


# --- colours ---------------------------------------------------------------------------------------------------------
class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_colour_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def written(file: io.StringIO, **options: bool) -> str:
    text.write(text.explanation(explain("2048 + 1", "fp16")), file, **options)
    return file.getvalue()


def test_terminals_get_colours_and_the_same_text() -> None:
    shown = written(Terminal())
    assert "\x1b[" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == SWAMPED + "\n"


def test_files_no_color_and_plain_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(io.StringIO()) == written(Terminal(), colour=False) == SWAMPED + "\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert written(Terminal()) == SWAMPED + "\n"


@pytest.mark.parametrize("width", [30, 45, 60, 79])
def test_narrow_terminals_get_lines_that_break_between_words(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(text, "columns", lambda file: width)
    shown = written(Terminal(), colour=False)
    assert shown.split() == SWAMPED.split() and all(len(line) <= width for line in shown.splitlines())
    assert re.sub(r"\x1b\[[0-9;]*m", "", written(Terminal())) == shown


def test_a_label_stays_alone_in_its_column() -> None:
    line = [text.Span("note  ", "faint"), text.Span("one two three")]
    assert text.plain(text.fit(line, 14)) == "note  one two\n      three"
    assert text.fit(line, 80) == [line]
    assert text.plain(text.fit([text.Span("x" * 90)], 60)) == "x" * 90
