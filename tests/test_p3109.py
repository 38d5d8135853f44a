"""The formats of the IEEE P3109 draft: every code of every value table, and facts worked out by hand up to 16 bits.

The tables are not part of the project: they are read in the folder ``shared`` beside the checkout, or NUMSIM_SHARED.
"""

import csv
import itertools
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import numsim
from numsim import FormatError, get_format
from numsim.rounding import OVERFLOWS, ROUNDINGS

TABLES = Path(os.environ.get("NUMSIM_SHARED", Path(__file__).resolve().parents[1] / ".." / "shared")) / "p3109-tables"


def p2(n):
    return Fraction(2) ** n


def names(most=16):
    return [
        f"binary{k}p{p}{s}{d}" for k in range(3, most + 1) for s in "su" for p in range(1, k + (s == "u")) for d in "ef"
    ]


def hexadecimal(text):
    """``-0x0.4p-8`` as an exact number."""
    sign, text = (-1, text[1:]) if text[0] == "-" else (1, text)
    digits, power = text.removeprefix("0x").split("p")
    whole, _, part = digits.partition(".")
    return sign * Fraction(int(whole + part, 16), 16 ** len(part)) * p2(int(power))


def table(name):
    path = TABLES / f"{name.capitalize()}.csv"
    if not path.is_file():
        pytest.skip(f"the value tables of P3109 are not in {TABLES}: they are not part of the project")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", [n for n in names(8) if not n.startswith("binary7")])
def test_every_code_of_the_value_tables(name):
    format, rows = get_format(name), table(name)
    assert len(rows) == format.codes
    values = numsim.decode(np.arange(format.codes, dtype=np.uint8), format)
    for code, row in enumerate(rows):
        kind, text = str(numsim.classify(code, format)), row["value"]
        assert int(row["codepoint"], 16) == code
        assert (kind == "subnormal") == (row["subnormal"] == "*")
        if text == "NaN":
            assert kind == "nan" and format.nan_code == code and np.isnan(values[code])
        elif text.endswith("Inf"):
            assert kind == "infinity" and values[code] == (-np.inf if text[0] == "-" else np.inf)
            assert numsim.encode(values[code], format) == code
        else:
            value = hexadecimal(text)
            assert numsim.exact(code, format) == value == Fraction(values[code])
            for rounding in ROUNDINGS[:-1]:  # an exact value never moves
                assert numsim.encode(value, format, rounding=rounding) == code


def test_all_tables_are_read():
    if not TABLES.is_dir():
        pytest.skip(f"the value tables of P3109 are not in {TABLES}: they are not part of the project")
    found = {path.stem.lower() for path in TABLES.glob("*.csv")}
    assert found == {n for n in names(8) if not n.startswith("binary7")}


# Worked out by hand: with M = K - 1 bits of magnitude (K without a sign) the bias is 2^(M - P), so that code 2^(M - 1)
# is 1; NaN is the code of -0, or the top one; infinity lies below it, or is the top magnitude.
# name: largest number, least number, code of the largest, of infinity, of NaN
FACTS = {
    "binary3p1uf": (p2(2), p2(-3), 6, None, 7),
    "binary4p4uf": (Fraction(14, 8), p2(-3), 14, None, 15),
    "binary7p3se": (Fraction(3, 2) * p2(7), p2(-9), 0x3E, 0x3F, 0x40),
    "binary7p2uf": (p2(31), p2(-32), 0x7E, None, 0x7F),
    "binary8p4sf": (Fraction(15, 8) * p2(7), p2(-10), 0x7F, None, 0x80),
    "binary8p3se": (Fraction(3, 2) * p2(15), p2(-17), 0x7E, 0x7F, 0x80),
    "binary8p1se": (p2(62), p2(-63), 0x7E, 0x7F, 0x80),
    "binary8p8ue": (Fraction(253, 128), p2(-7), 0xFD, 0xFE, 0xFF),
    "binary10p5ue": (Fraction(29, 16) * p2(31), p2(-35), 0x3FD, 0x3FE, 0x3FF),
    "binary12p5se": (Fraction(15, 8) * p2(63), p2(-67), 0x7FE, 0x7FF, 0x800),
    "binary16p11se": (Fraction(1023, 512) * p2(15), p2(-25), 0x7FFE, 0x7FFF, 0x8000),
    "binary16p8sf": (Fraction(255, 128) * p2(127), p2(-134), 0x7FFF, None, 0x8000),
    "binary16p1sf": (p2(16383), p2(-16383), 0x7FFF, None, 0x8000),
    "binary16p1ue": (p2(32765), p2(-32767), 0xFFFD, 0xFFFE, 0xFFFF),
    "binary16p16uf": (Fraction(65534, 32768), p2(-15), 0xFFFE, None, 0xFFFF),
}


@pytest.mark.parametrize("name", FACTS)
def test_facts_worked_out_by_hand(name):
    f, (largest, least, *codes) = get_format(name), FACTS[name]
    assert (f.max, f.least, f.max_code, f.infinity_code, f.nan_code) == (largest, least, *codes)
    assert numsim.exact(f.max_code, f) == largest and numsim.exact(1, f) == least


@pytest.mark.parametrize("name", names())
def test_all_of_the_family(name):
    f = get_format(name)
    k, p = int(name[6 : name.index("p")]), int(name[name.index("p") + 1 : -2])
    assert (f.bits, f.precision, f.signed, f.infinities) == (k, p, name[-2] == "s", name[-1] == "e")
    assert numsim.encode(1, f) == 1 << (k - 1 - f.signed)
    assert get_format(name.upper()) == f and f.is_named and f.title == name.capitalize() and "P3109" in f.source
    assert numsim.encode([-0.0, float("nan")], f).tolist() == [0, f.nan_code]  # one zero and one NaN
    ends = {"e": f.infinity_code, "f": f.nan_code}[name[-1]]
    assert numsim.encode(4 * f.max, f) == numsim.encode(float("inf"), f) == ends
    assert numsim.encode(float("inf"), f, overflow="saturate") == f.max_code
    assert numsim.neighbours(f.max_code, f)[1] == f.infinity_code and numsim.neighbours(0, f)[1] == 1


def test_saturation_in_the_words_of_the_draft():
    """Signed and extended: SatFinite, SatPropagate and OvfInf are "saturate", "saturate-finite" and "ieee"."""
    values = [1e9, -1e9, float("inf"), -float("inf"), 49152 + 4096]  # the last rounds to the largest number: a tie
    got = {o: numsim.encode(values, "binary8p3se", overflow=o).tolist() for o in OVERFLOWS}
    assert got["saturate"] == [0x7E, 0xFE, 0x7E, 0xFE, 0x7E]
    assert got["saturate-finite"] == [0x7E, 0xFE, 0x7F, 0xFF, 0x7E]
    assert got["ieee"] == [0x7F, 0xFF, 0x7F, 0xFF, 0x7E]
    assert numsim.encode(values, "binary8p3se", rounding="toward-zero").tolist() == [0x7E, 0xFE, 0x7F, 0xFF, 0x7E]


def by_search(x, format, rounding, random=0):
    """The magnitude code of a number within the format, from the list of all values: no grid, no exponents."""
    codes = [c for c in range(format.sign_mask or format.codes) if c <= format.max_code]
    values = [numsim.exact(c, format) for c in codes]
    above = next(i for i, v in enumerate(values) if v >= abs(x))
    if values[above] == abs(x):
        return codes[above]
    low, high = values[above - 1], values[above]
    part = (abs(x) - low) / (high - low)
    up = {
        "nearest-even": part > Fraction(1, 2) or (part == Fraction(1, 2) and codes[above] % 2 == 0),
        "nearest-away": part >= Fraction(1, 2),
        "toward-zero": False,
        "up": x > 0,
        "down": x < 0,
        "odd": codes[above] % 2 == 1,
        "stochastic": part * 256 // 1 + random >= 256,
    }[rounding]
    return codes[above] if up else codes[above - 1]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", ["binary5p1se", "binary5p1uf", "binary4p1sf", "binary4p3ue", "binary5p5uf"])
def test_every_mode_against_a_search(name, rounding):
    """Precision 1 among them: the even code is that of an even exponent there."""
    f = get_format(name)
    values = sorted(numsim.exact(c, f) for c in range(f.max_code + 1))
    for low, high in itertools.pairwise(values):
        for part in (Fraction(1, 97), Fraction(1, 4), Fraction(1, 2), Fraction(51, 97)):
            for x in (low + part * (high - low), -(low + part * (high - low))):
                if x < 0 and not f.signed:
                    continue
                options = {"rounding": rounding}
                for random in (0, 100, 191, 192, 255) if rounding == "stochastic" else (0,):
                    if rounding == "stochastic":
                        options |= {"random_bits": np.uint8(random)}
                    magnitude = by_search(x, f, rounding, random)
                    sign = f.sign_mask if x < 0 and magnitude else 0
                    assert numsim.encode(x, f, **options) == magnitude | sign, (x, random)


@pytest.mark.parametrize(
    "name", ["binary8p8se", "binary8p0se", "binary2p1se", "binary17p3se", "binary8p9uf", "binary16p16sf"]
)
def test_what_is_no_format_of_the_draft(name):
    with pytest.raises(FormatError, match=r"K from 3 to 16 and P from 1 to K.*Example: numsim formats binary8p3se"):
        get_format(name)
    with pytest.raises(FormatError, match="unknown format"):
        get_format(name[:-1])


@pytest.mark.parametrize("name", ["binary8p3", "p3109", "binary8"])
def test_half_a_name_is_told_the_rest(name):
    with pytest.raises(numsim.FormatError, match=r"binary8p3se \(8 bits, precision 3, s or u"):
        numsim.get_format(name)
