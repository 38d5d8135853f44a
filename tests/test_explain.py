"""numsim.explain: the story of one rounding is the truth, in every format and mode, for any input."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.errors import FormatError, InputError
from numsim.explain import explain
from numsim.expression import MAX_LENGTH, MAX_OPERATIONS, parse
from numsim.formats import Format, get_format, list_formats
from numsim.rounding import OVERFLOWS, ROUNDINGS, SUBNORMALS
from numsim.values import NAN, as_fraction, to_rational

# Every named format, IEEE-style ones of all shapes, and corners that only a user can define.
FORMATS = [
    *list_formats(),
    *map(get_format, ("e2m2", "e5m10", "e3m60", "e15m48", "e11m4")),
    Format("steep", 4, 0, 5, specials="fn"),
    Format("flat", 1, 3, -20, specials="finite"),
    Format("half", 5, 2, 15, signed=False),
    Format("nozero", 3, 2, 3, signed=False, zero=False, specials="finite"),
]
IDS = [f.name for f in FORMATS]


def points(f: Format, rng: random.Random, count: int) -> list[Fraction]:
    """Numbers on, between and beyond the grid of a format."""
    found = []
    for _ in range(count):
        rank = rng.choice([rng.randrange(f.max_rank + 2), rng.randrange(4), f.max_rank + rng.randrange(-1, 3)])
        low, high = f.magnitude(rank), f.magnitude(rank + 1)
        part = rng.choice([Fraction(0), Fraction(1, 2), Fraction(1, 3), Fraction(1, 2) + Fraction(1, 10**30)])
        found.append(rng.choice([1, -1]) * (low + part * (high - low)))
    return found


# --- against encode -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("format", FORMATS, ids=IDS)
def test_the_code_is_that_of_encode_and_the_place_says_why(format: Format, rounding: str) -> None:
    rng = random.Random(f"{format.name} {rounding}")
    for x in points(format, rng, 8):
        options = {"rounding": rounding, "overflow": rng.choice(OVERFLOWS), "subnormals": rng.choice(SUBNORMALS)}
        options |= {"nan": "zero"} | ({"seed": 7} if rounding == "stochastic" else {})
        e = explain(x, format, **options)
        assert e.code == numsim.encode(x, format, **options)
        check_place(e)
        str(e), json.dumps(e.to_dict(), allow_nan=False)


def check_place(e) -> None:
    """The words of a step against its numbers, from the exact value alone."""
    step, place = e.last, e.last.place
    if place is None:
        return
    x, f = abs(as_fraction(step.exact)), e.format
    assert place.lower <= x < place.upper and place.part == (x - place.lower) / (place.upper - place.lower)
    # the bits shown are the significand
    kept, power = int(place.kept.replace(".", ""), 2), Fraction(2) ** (place.exponent - f.fraction_bits)
    assert kept * power == place.lower and place.spacing == power
    rest = place.rest.removesuffix("...")
    fraction = Fraction(int(rest or "0", 2), 2 ** len(rest))
    assert fraction <= place.part < fraction + Fraction(1, 2 ** len(rest)) or place.part == fraction == 0
    assert (fraction == place.part) == (not place.rest.endswith("..."))
    assert (place.guard, place.sticky) == (int(place.part >= Fraction(1, 2)), int(place.part * 2 % 1 != 0))
    assert (place.moved == "exact") == (place.part == 0) and place.tie == (2 * place.part == 1)
    # and the result is one of the two neighbours, unless a policy says otherwise
    rounded = place.upper if place.moved == "up" else place.lower
    if rounded <= f.max and rounded >= (f.least_normal if f.zero else f.least):
        assert abs(as_fraction(step.result)) == rounded
        assert step.error_ulp == (rounded - x) / place.spacing


@pytest.mark.parametrize("format", FORMATS, ids=IDS)
def test_one_operation_is_that_of_exact_arithmetic_and_one_encode(format: Format) -> None:
    rng = random.Random(format.name)
    for _ in range(12):
        a, b = (numsim.exact(numsim.encode(abs(x), format), format) for x in small(points(format, rng, 2), format))
        if b == 0:
            continue
        for sign, exact in {"+": a + b, "-": a - b, "*": a * b, "/": a / b}.items():
            text = f"{code_literal(a, format)} {sign} {code_literal(b, format)}"
            e = explain(text, format, nan="zero") if format in list_formats() else None
            if e is not None:
                assert e.code == numsim.encode(exact, format, nan="zero")
                check_place(e)


def small(xs: list[Fraction], format: Format) -> list[Fraction]:
    return [min(abs(x), format.max) for x in xs]


def code_literal(x: Fraction, format: Format) -> str:
    return f"{format.name}:{int(numsim.encode(x, format)):#x}"


@pytest.mark.parametrize("format", list_formats(), ids=str)
def test_code_literals_are_taken_as_they_are(format: Format) -> None:
    codes = range(format.codes) if format.bits <= 8 else [0, 1, format.max_code, format.nan_code, format.codes - 1]
    for code in codes:
        e = explain(f"{format}:{code:#x}")
        assert (e.format, e.code, e.last.kind) == (format, code, numsim.classify(code, format))
        assert explain(f"{format}:0b{code:0{format.bits}b}").code == code
        str(e), e._repr_html_(), json.dumps(e.to_dict(), allow_nan=False)


@pytest.mark.parametrize("x", [0.1, -0.0, float("inf"), float("nan"), 3, 10**400, Fraction(1, 3), Decimal("1e-9"),
                               np.float32(0.1), np.float16(7), np.int64(-5), np.array(0.1), np.bool_(True),
                               ml_dtypes.bfloat16(0.1), True])  # fmt: skip
def test_python_and_numpy_numbers_are_read_as_encode_reads_them(x: object) -> None:
    for format in ("fp16", "e4m3", "fp64"):
        assert explain(x, format).code == numsim.encode(x, format)
        str(explain(x, format))


def test_a_float_is_told_from_the_decimal_that_it_prints_as() -> None:
    assert "the float 0.1 is exactly 0.10000000000000000555..." in str(explain(0.1, "bf16"))
    assert "note" not in str(explain("0.1", "bf16")) + str(explain(0.5, "bf16"))
    assert explain(0.1, "fp64").last.error == 0 != explain("0.1", "fp64").last.error


def test_an_array_of_one_number_is_explained_by_its_code() -> None:
    assert explain(numsim.array(0.1, "bf16")).code == 0x3DCD
    for several in ([1, 2], np.ones(3), numsim.array([1, 2], "fp16")):
        with pytest.raises(InputError):
            explain(several, "fp16")


# --- what expressions mean ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("text", "value"), [
    ("2048 + 1", 2048), ("2048+3", 2052), ("1 - 2 - 3", -4), ("8 / 4 / 2", 1), ("2 + 3 * 4", 14), ("(2 + 3) * 4", 20),
    ("-2 * -3", 6), ("--2", 2), ("- (1 + 2)", -3), ("+5", 5), ("2 - -1", 3), ("sqrt(9)", 3), ("SQRT(4)", 2),
    ("fma(2, 3, 4)", 10), ("fma(2, sqrt(16), -(1))", 7), ("0x1.8p1", 3), ("0xA", 10), ("1e2", 100), (".5 + 5.", 5.5),
    ("1_000", 1000), ("e4m3:0x38 + fp16:0b0|01111|0000000000", 2), ("3 × 2 − 1 ÷ 1", 5), ("6/3", 2),
    ("\t1 +\n1\u00a0", 2),
])  # fmt: skip
def test_expressions(text: str, value: float) -> None:
    assert explain(text, "fp16").value == value


def test_operands_are_rounded_first_and_every_operation_once() -> None:
    e = explain("0.1 * 3 + 2", "fp16")
    tenth = numsim.exact(numsim.encode("0.1", "fp16"), "fp16")
    product = numsim.exact(numsim.encode(tenth * 3, "fp16"), "fp16")
    assert e.code == numsim.encode(product + 2, "fp16")
    assert [s.text for s in e.steps] == ["0.1", "3", "0.1 * 3", "2", "0.1 * 3 + 2"]
    assert e.true == (0, 23, 10) and e.relative_error == e.value / Fraction(23, 10) - 1


def test_an_fma_rounds_once() -> None:
    # (1 + 2^-10)^2 = 1 + 2^-9 + 2^-20: the last bit is lost by the product, and kept by the fma
    one = "0x1.004p0"
    assert explain(f"{one} * {one} - 0x1.008p0", "fp16").value == 0
    assert explain(f"fma({one}, {one}, -0x1.008p0)", "fp16").value == Fraction(1, 2**20)


def test_a_minus_belongs_to_the_number() -> None:
    up = {"rounding": "up"}
    assert explain("-0.1", "bf16", **up).code == numsim.encode("-0.1", "bf16", **up)
    assert explain("-(0.1)", "bf16", **up).value == -numsim.exact(numsim.encode("0.1", "bf16", **up), "bf16")


def test_a_ratio_is_one_number_and_spaces_make_it_a_division() -> None:
    assert explain("100001/3", "fp16").code == numsim.encode("100001/3", "fp16") != explain("100001 / 3", "fp16").code
    says = "is read as one number; with spaces it is a division, and gives"
    assert explain("100001/3", "fp16").notes == (f"100001/3 {says} infinity",)
    assert explain("2049/3", "fp16").notes == (f"2049/3 {says} 682.5",)
    assert explain("2049/17", "fp16").value == explain("2049 / 17", "fp16").value  # by way of 2048
    assert explain("2049/17", "fp16").notes == (f"2049/17 {says} the same here, after other roundings",)
    assert "note" not in str(explain("1/3", "fp16")) + str(explain("2049 / 3", "fp16"))
    assert explain("1/0", "fp16").last.kind == "infinity" and explain("-1/0", "e4m3").last.kind == "nan"


def test_roots_are_exact_where_they_can_be_and_told_where_not() -> None:
    assert not explain("sqrt(2.25)", "fp32").last.irrational
    e = explain("sqrt(2)", "fp32")
    assert e.last.irrational and e.code == np.sqrt(np.float32(2)).view(np.uint32)
    assert e.to_dict()["steps"][-1]["exact"] == {"about": "1.41421356237309504880168872420...", "irrational": True}
    assert explain("sqrt(2) * sqrt(2) - 2", "fp32").true is None  # not followed through an irrational value
    assert explain("sqrt(-1)", "fp16").last.kind == "nan"


def test_stochastic_rounding_uses_one_draw_for_each_rounding() -> None:
    options = {"rounding": "stochastic", "seed": 7}
    draws = [numsim.random.bits(7, i) for i in range(3)]
    e = explain("0.1 + 0.3", "bf16", **options)
    assert [s.random for s in e.steps] == draws
    a, b = numsim.encode(["0.1", "0.3"], "bf16", **options)
    assert [s.code for s in e.steps[:2]] == [a, b]
    assert explain("0.1", "bf16", rounding="stochastic", random_bits=np.uint32(0)).code == 0x3DCC
    with pytest.raises(InputError, match="seed"):
        explain("0.1", "bf16", rounding="stochastic")
    with pytest.raises(InputError, match="stochastic"):
        explain("0.1", "bf16", seed=7)


def test_flushed_inputs_are_zero_for_operations() -> None:
    least = "fp16:0x0001"
    assert explain(f"{least} * 1024", "fp16").value == Fraction(1, 2**14)
    assert explain(f"{least} + 1e-6", "fp16", subnormals="flush-inputs").value == 0
    assert explain(f"{least} + {least}", "fp16").code == 2


# --- hostile text ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", [
    "", " ", "\0", "1\0", "1e999999999", "1e-999999999", "9" * 10**6, "(" * 10**4, "(" * 1000 + "1" + ")" * 1000,
    "-" * 4000 + "1", "1" + "+1" * 1500, "__import__('os')", "os.system", "1;2", "lambda: 1", "1 if 1 else 2", "[1]",
    "f(1)",
    "a*b", "1,5", "2 ** 3", "3^2", "2^2^2", "2^7.5", "2^99999", "31 x 2", "2//3", "1 2",
    "1 +", "* 1", "(1", "1)", "()", "1,2", "sqrt", "sqrt()", "sqrt(1,2)", "fma(1,2)",
    "fma(1,2,3,4)", "0x", "0xg", "1e", "1.2.3", "0.1f", "1j", "１", "²", "½", "١", "−", "é",
    "\ud800", "😀",
    "e4m3:", "e4m3:7e", "e4m3:0x80 +", "e4m3:0x100", "nope:0x1", "e4m3:0b2", "e4m3:-1", "0x1p999999", "1/0x", "NaN(3)",
    "1e1_0", "'1'", '"', "\\", "%s", "{0}", "inf nan", "-", "+", "--", "fp16:0x1:0x2", ".", "1..2", "_1", "0b11",
])  # fmt: skip
def test_hostile_text_is_refused_in_plain_words(text: str) -> None:
    with pytest.raises((InputError, FormatError)) as error:
        explain(text, "fp16")
    message = str(error.value)
    assert len(message) < 700 and message.replace("\n", "").isascii()
    assert "Example" in message or "at most" in message


def test_powers_of_two_are_numbers() -> None:
    assert explain("2^-7", "fp16").value == Fraction(1, 128) and len(explain("2^-7", "fp16").steps) == 1
    assert explain("-2**3", "fp16").value == -8 and explain("2^+10 + 1", "fp32").value == 1025


def test_errors_mark_the_place() -> None:
    with pytest.raises(InputError) as error:
        explain("0.1 + * 3", "fp16")
    lines = str(error.value).splitlines()
    assert lines[1] == "  0.1 + * 3" and lines[2] == "        ^"
    with pytest.raises(InputError) as error:
        explain("1 + " * 100 + "x", "fp16")
    lines = str(error.value).splitlines()
    assert lines[1][lines[2].index("^")] == "x" and len(lines[1]) < 80


@pytest.mark.parametrize("text", [
    "9" * MAX_LENGTH, f"{'9' * 900}/{'7' * 900}", "1e9999", "1e-9999", "0x1p9999", "0x" + "f" * 1900,
    "1e9999*1e9999*1e-9999",
    "+".join(["1e9999", "1e-9999"] * 15), "*".join(["1e9999"] * 30), "(" * 38 + "1" + ")" * 38,
    "+".join("1" * MAX_OPERATIONS), "/".join(["3e-9999"] * 30), "sqrt(" * 38 + "2" + ")" * 38, "0/5", "-0/5", "0e9999",
    f"0.{'0' * 1900}1 * 3",
])  # fmt: skip
def test_large_and_long_numbers_are_read(text: str) -> None:
    for format in ("fp16", "e15m48"):
        e = explain(text, format)
        assert all(len(line) <= 80 for line in str(e).splitlines())
        json.dumps(e.to_dict(), allow_nan=False), e._repr_html_()


def test_fuzz() -> None:
    """Random expressions in all formats and options: no exception but NaN without a code, 80 columns, ASCII."""
    rng = random.Random(2048)
    atoms = ["0", "-0", "1", "-2", "3", "0.1", "1e-8", "65504", "448", "1e30", "inf", "-inf", "nan", "0x1.8p-3", "1e99",
             "e4m3:0x7e", "e5m2:0xfd", "5e-324", "2048"]  # fmt: skip

    def make(depth: int) -> str:
        kind = rng.randrange(8) if depth else 9
        if kind < 4:
            return f"{make(depth - 1)} {rng.choice('+-*/')} {make(depth - 1)}"
        return (
            {4: "sqrt({})", 5: "-({})", 6: "({})"}.get(kind, "{}").format(make(depth - 1))
            if kind < 7
            else rng.choice(atoms)
        )

    for _ in range(150):
        text, format, rounding = make(rng.randrange(4)), rng.choice(FORMATS), rng.choice(ROUNDINGS)
        options = {"rounding": rounding, "overflow": rng.choice(OVERFLOWS), "subnormals": rng.choice(SUBNORMALS)}
        options |= {"seed": 1} if rounding == "stochastic" else {}
        try:
            e = explain(text, format, **options)
        except InputError as error:
            assert "NaN has no code" in str(error)  # noqa: PT017
            continue
        drawn = str(e)
        assert drawn.isascii() and all(len(line) <= 80 for line in drawn.splitlines()), drawn
        assert (e.last.result == NAN) == (e.last.kind == "nan")
        json.dumps(e.to_dict(), allow_nan=False)
        assert to_rational(e.code, format) == e.last.result


# --- the record -----------------------------------------------------------------------------------------------------
def test_the_record_has_everything_exactly() -> None:
    record = json.loads(json.dumps(explain("5e-324", "fp64").to_dict()))
    decimal = record["result"]["decimal"]
    assert Fraction(decimal) == Fraction(1, 2**1074) and len(decimal) == 1076
    assert record["result"]["bits"] == "0|" + "0" * 11 + "|" + "0" * 51 + "1"
    assert Fraction(record["steps"][0]["error"]) == Fraction(1, 2**1074) - Fraction("5e-324")
    assert {e["format"] for e in record["elsewhere"]} == {f.name for f in list_formats()} - {"fp64"}
    third = explain("1/3", "fp16").to_dict()
    assert third["unrounded"] == {"fraction": "1/3", "decimal": None}
    assert explain("-0", "fp16").to_dict()["result"]["decimal"] == "-0"
    assert explain("inf", "fp16").to_dict()["result"]["special"] == "inf"


def test_explanations_are_values() -> None:
    assert explain("0.1 + 2", "fp16") == explain("0.1 + 2", "fp16") != explain("0.1 + 3", "fp16")
    assert hash(explain("0.1", "fp16")) == hash(explain("0.1", "fp16"))
    with pytest.raises(AttributeError):
        explain("1", "fp16").text = "2"  # type: ignore[misc]


@pytest.mark.parametrize("options", [{"rounding": "nearest"}, {"overflow": "wrap"}, {"subnormals": "no"}, {"nan": "x"}])
def test_wrong_options(options: dict) -> None:
    with pytest.raises(InputError, match="allowed are"):
        explain("0.1", "fp16", **options)


def test_parse_keeps_the_text() -> None:
    assert parse("  1   +  2 ").text == "1 + 2"
