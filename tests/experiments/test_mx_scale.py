"""Scales by exponent arithmetic of Python integers, elements by lists of all numbers; blocks against ``quantize``."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from numsim.blocks import RULES, get_block_format, quantize
from numsim.data import load_gradients
from numsim.errors import InputError, NumsimError
from numsim.experiments import mx_scale
from numsim.experiments.block_units import normals, quantized
from numsim.experiments.experiment import Session
from numsim.experiments.mx_scale import above_range
from numsim.experiments.nf4 import CODES, HARDWARE
from numsim.formats import E8M0
from numsim.machines import get_machine
from tests.experiments.runs import lecture, run, table

# finite numbers >= 0 in the order of their codes: sign-less fields, written down without numsim
GRIDS = {
    "E4M3": [Fraction(m, 512) for m in range(8)]
    + [Fraction(8 + m, 8) * Fraction(2) ** (e - 7) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)],
    "E2M3": [Fraction(m, 8) for m in range(8)]
    + [Fraction(8 + m, 8) * Fraction(2) ** (e - 1) for e in range(1, 4) for m in range(8)],
    "E2M1": [Fraction(x) for x in ("0", "1/2", "1", "3/2", "2", "3", "4", "6")],
}
EMAX = {"E4M3": 8, "E2M3": 2, "E2M1": 2}
FRACTION_BITS = {"E4M3": 3, "E2M3": 3, "E2M1": 1}


def floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def ceil_log2(x: Fraction) -> int:
    e = floor_log2(x)
    return e if x == Fraction(2) ** e else e + 1


def exponent(amax: Fraction, rule: str, element: str) -> int:
    """Real arithmetic; for RCEIL that is FP32's answer too where amax is not within a rounding of a threshold."""
    top = GRIDS[element][-1]
    found = {
        "floor": floor_log2(amax) - EMAX[element],
        "ceil": ceil_log2(amax) - EMAX[element],
        "rceil": ceil_log2(amax / top),
        "te": ceil_log2(amax / top),
        "even": floor_log2(amax + Fraction(2) ** (floor_log2(amax) - FRACTION_BITS[element] - 1)) - EMAX[element],
    }[rule]
    return max(found, -127)


def nearest(x: Fraction, element: str) -> Fraction:
    grid = GRIDS[element]
    below = max(i for i, g in enumerate(grid) if g <= x)
    if below == len(grid) - 1:
        return grid[-1]
    down, up = x - grid[below], grid[below + 1] - x
    return grid[below + (up < down or (up == down and below % 2 == 1))]


def back(amax: float, rule: str, element: str) -> float:
    scale = Fraction(2) ** exponent(Fraction(amax), rule, element)
    return float(nearest(Fraction(amax) / scale, element) * scale)


def test_the_rules_are_all_there_are() -> None:
    assert set(mx_scale._RULES) == {name for name, rule in RULES.items() if rule.scale == E8M0}


@pytest.mark.parametrize("amax", [480.0, 496.0, 447.0, 511.5, 3.0, 1e-30])
def test_the_answer(amax: float) -> None:
    assert float(run("mx-scale", amax=amax, blocks=32).answer) == pytest.approx(
        back(float(np.float32(amax)), "floor", "E4M3"), rel=1e-8
    )
    assert lecture("mx-scale")[1].answer == "448"


def test_the_table_of_torchao() -> None:
    """Scale exponents and elements as torchao's ``to_mx`` makes them (pytorch/ao 36027d8, mx_tensor.py), by rule."""
    known = {  # amax: exponent, element
        "256": {"FLOOR": (0, 256), "RCEIL": (0, 256), "CEIL": (0, 256), "EVEN": (0, 256)},
        "447": {"FLOOR": (0, 448), "RCEIL": (0, 448), "CEIL": (1, 224), "EVEN": (0, 448)},
        "448": {"FLOOR": (0, 448), "RCEIL": (0, 448), "CEIL": (1, 224), "EVEN": (0, 448)},
        "448.000031": {"FLOOR": (0, 448), "RCEIL": (1, 224), "CEIL": (1, 224), "EVEN": (0, 448)},
        "480": {"FLOOR": (0, 448), "RCEIL": (1, 240), "CEIL": (1, 240), "EVEN": (0, 448)},
        "496": {"FLOOR": (0, 448), "RCEIL": (1, 256), "CEIL": (1, 256), "EVEN": (1, 256)},
        "511.9": {"FLOOR": (0, 448), "RCEIL": (1, 256), "CEIL": (1, 256), "EVEN": (1, 256)},
        "513": {"FLOOR": (1, 256), "RCEIL": (1, 256), "CEIL": (2, 128), "EVEN": (1, 256)},
        "2^-126": dict.fromkeys(("FLOOR", "RCEIL", "CEIL", "EVEN"), (-127, 2)),
        "2^-149": dict.fromkeys(("FLOOR", "RCEIL", "CEIL", "EVEN"), (-127, 0)),
    }
    found = table(lecture("mx-scale")[1], "One block")
    assert [row[0] for row in found.rows] == ["2^-149", "2^-126", *list(known)[:8]]
    columns = [name for title in found.columns[1:] for name in title.split(" or ")]
    cells = {row[0]: [c for c, title in zip(row[1:], found.columns[1:], strict=True) for _ in title.split(" or ")]
             for row in found.rows}  # fmt: skip
    assert sorted(columns) == ["CEIL", "EVEN", "FLOOR", "RCEIL", "TE"]
    for amax, by in known.items():
        for rule, (e, element) in by.items():
            value = element * 2.0**e
            text = "2^-126" if value == 2.0**-126 else f"{value:g}"
            assert cells[amax][columns.index(rule)] == f"2^{e}: {text}", (amax, rule)


@pytest.mark.parametrize("rule", ["floor", "ceil", "rceil", "even", "te"])
@pytest.mark.parametrize("name", ["MXFP8 (E4M3)", "MXFP6 (E2M3)", "MXFP4 (E2M1)"])
def test_a_binade(name: str, rule: str) -> None:
    series, element = lecture("mx-scale")[1].series, name[-5:-1]
    curve = series["curves"][name][rule]
    assert len(series["significands"]) == 1024
    for s, up, above, error in zip(series["significands"], curve["up"], curve["above"], curve["errors"], strict=True):
        amax = Fraction(s) * 2 ** EMAX[element]
        e = exponent(amax, rule, element)
        assert up == e and above == (amax / Fraction(2) ** e > GRIDS[element][-1])
        assert error == back(float(amax), rule, element) / float(amax) - 1


def test_where_the_largest_number_is_above_its_element() -> None:
    curves = lecture("mx-scale")[1].series["curves"]
    ranges = {(t[-5:-1], r): above_range(c["above"]) for t, by in curves.items() for r, c in by.items()}
    assert {key: ends for key, ends in ranges.items() if ends} == {
        ("E4M3", "floor"): (1.75, 2.0),
        ("E4M3", "even"): (1.75, 1.9375),
        ("E2M3", "floor"): (1.875, 2.0),
        ("E2M3", "even"): (1.875, 1.9375),
        ("E2M1", "floor"): (1.5, 2.0),
        ("E2M1", "even"): (1.5, 1.75),
    }
    worst = {t[-5:-1]: min(by["floor"]["errors"]) for t, by in curves.items()}
    assert {e: round(x, 6) for e, x in worst.items()} == {"E4M3": -0.125, "E2M3": -0.0625, "E2M1": -0.25}
    # suprema, of which the last FP32 number before the edge falls short by one part in 2^23: (edge - top) / edge
    for element, top, edge in (("E4M3", 1.75, 1.9375), ("E2M3", 1.875, 1.9375), ("E2M1", 1.5, 1.75)):
        (even,) = [by["even"] for t, by in curves.items() if element in t]
        assert min(e for e, a in zip(even["errors"], even["above"], strict=True) if a) == top / (edge - 2**-23) - 1
    assert all(x in lecture("mx-scale")[1].findings[1] for x in ("9.68 %", "3.23 %", "14.3 %"))
    for by in curves.values():  # the same saw under either scale
        assert by["rceil"]["errors"] == by["ceil"]["errors"] == by["te"]["errors"]


@pytest.mark.parametrize("name", ["mxfp8", "mxfp6", "mxfp4"])
def test_errors_of_blocks_by_quantize(name: str) -> None:
    series, format = lecture("mx-scale")[1].series, get_block_format(name)
    matrices = load_gradients().matrices
    for i, kind in ((1, "input"), (2, "weight"), (3, "grad_output")):
        x = matrices[kind][2000]
        for rule, errors in series["errors"][format.title].items():
            wrong = quantize(x, format, rule=rule).values - x
            assert errors[i] == pytest.approx(np.sqrt(np.sum(wrong**2) / np.sum(x.astype(float) ** 2)), rel=1e-12)


def test_what_is_said_of_the_errors() -> None:
    """RCEIL leads in E4M3, EVEN in E2M3 and E2M1, for all four kinds of numbers; CEIL costs E4M3 next to nothing."""
    errors = {t[-5:-1]: by for t, by in lecture("mx-scale")[1].series["errors"].items()}
    assert list(lecture("mx-scale")[1].series["data"]) == ["normal", "activations", "weights", "gradients"]
    for i in range(4):
        best = {e: min(by, key=lambda r, by=by: by[r][i]) for e, by in errors.items()}
        assert best == {"E4M3": "rceil", "E2M3": "even", "E2M1": "even"}
        assert errors["E4M3"]["ceil"][i] < 1.001 * errors["E4M3"]["rceil"][i]
        assert errors["E2M1"]["ceil"][i] > 1.1 * errors["E2M1"]["rceil"][i]
        # a rule matters less than a fraction bit: two fewer cost more than the worst rule does
        assert min(e[i] for e in errors["E2M1"].values()) > 2 * max(e[i] for e in errors["E2M3"].values())
    wider = run("mx-scale", block_formats=["mxfp8", "mxfp8_e5m2", "mxfp6_e3m2"], blocks=64).series["errors"]
    for i in range(4):  # one fraction bit fewer: twice the error, more or less
        assert 1.7 < wider["MXFP8 (E5M2)"]["rceil"][i] / wider["MXFP8 (E4M3)"]["rceil"][i] < 2.3


@pytest.mark.parametrize("format", [*CODES.values(), *HARDWARE.values(), get_block_format("mxfp8")], ids=str)
def test_elements_by_a_machine_are_those_of_quantize(format: object) -> None:
    x = (normals(5, 4096) * np.float32(1e-3)).reshape(-1, format.block[0])  # type: ignore[attr-defined]
    x[3] = 0
    for f in {format, replace(format, rule="rceil")} if format.scale == E8M0 else {format}:  # type: ignore[attr-defined,type-var]
        array = quantized(Session(get_machine("emulated")), x, f)
        wanted = quantize(x, f)
        assert array is not None and array.tensor_scale == wanted.tensor_scale
        assert np.array_equal(array.codes, wanted.codes) and np.array_equal(array.scales.codes, wanted.scales.codes)


def test_rounded_twice_through_bf16() -> None:
    """Whether an amax just above 448 has the scale 2, by fractions: FP32's quotient, and BF16's of 8 bits."""
    rows = {row[0]: row[1:] for row in table(lecture("mx-scale")[1], "RCEIL's quotient").rows}
    assert {x: (row[1], row[3]) for x, row in rows.items()} == {
        448: ("2^0", "2^0"), 448.000031: ("2^1", "2^0"), 449: ("2^1", "2^0"), 450: ("2^1", "2^1"),
        480: ("2^1", "2^1"),
    }  # fmt: skip
    amaxes = [Fraction(256) + Fraction(i, 32) for i in range(8192)]
    changed = [x for x in amaxes if 1 < x / 448 <= 1 + Fraction(1, 256)]  # BF16's tie at 1 + 2^-8 goes down to 1
    (sentence,) = [f for f in lecture("mx-scale")[1].findings if "BF16" in f]
    assert f"{100 * len(changed) / 8192:.2g} %" in sentence
    # the first FP32 number above 448, and the tie: 448 (1 + 2^-8)
    assert f"from 448.000031 to {float(448 * (1 + Fraction(1, 256))):g} half" in sentence


def test_infinity() -> None:
    (sentence,) = [f for f in lecture("mx-scale")[1].findings if "infinite" in f]
    assert "FLOOR, EVEN, RCEIL and CEIL 0xff; TE 0xfe" in sentence


def test_other_parameters_give_other_sentences() -> None:
    small = run("mx-scale", amax=496, block_formats="mxfp4", blocks=32)
    assert small.findings[0] == (
        "In MXFP8 (E4M3) a largest number of 496 comes back as: FLOOR 448; EVEN, RCEIL, TE and CEIL 512."
    )
    assert not any("MXFP6" in f for f in small.findings) and list(small.series["curves"]) == ["MXFP4 (E2M1)"]
    assert run("mx-scale", blocks=32, seed=2).series["errors"] != run("mx-scale", blocks=32).series["errors"]


def test_a_mutant_changes_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOOR with emax one less, as with E4M3 that ended at 240."""
    floor = RULES["floor"]

    def mutant(amax, format, tensor=None):  # type: ignore[no-untyped-def]
        return floor.scales(amax * np.float32(2), format, tensor)

    monkeypatch.setitem(RULES, "floor", floor._replace(scales=mutant))
    assert run("mx-scale", blocks=32).answer == "480"


@pytest.mark.parametrize(
    "bad",
    [
        {"amax": 0}, {"amax": -1.0}, {"amax": float("nan")}, {"amax": float("inf")}, {"amax": "480"},
        {"amax": 1e39}, {"block_formats": []}, {"block_formats": "nf4"}, {"block_formats": ["mxint8"]},
        {"block_formats": 8}, {"block_formats": "mxfp5"}, {"blocks": 31}, {"blocks": 1e3}, {"seed": -1},
    ],
)  # fmt: skip
def test_refused(bad: dict[str, object]) -> None:
    with pytest.raises(NumsimError, match="Example: "):
        run("mx-scale", Nobody(), **bad)


def test_refused_says_what_is_allowed() -> None:
    with pytest.raises(InputError, match=r"block_formats='nf4': allowed are mxfp8, .*mxfp4; not nf4"):
        run("mx-scale", block_formats="nf4")


class Nobody:
    """A machine that is not to be asked."""

    name = "nobody"

    def can(self, question: object = None) -> None:
        raise AssertionError("asked before the parameters were checked")
