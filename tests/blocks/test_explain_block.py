"""What explain_block tells against the specification's numbers, against quantize, and against the rules themselves."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import numsim
from numsim.blocks import RULES, BlockFormat, Codebook, get_block_format, list_block_formats, quantize
from numsim.blocks.explain import FAMILIES, explain_block
from numsim.errors import FormatError, InputError
from numsim.random import bits

FORMATS = list_block_formats()
ROWS = [f for f in FORMATS if f.block is not None and len(f.block) == 1]
UE4M3 = numsim.get_format("ue4m3")
FLT_MAX = float(np.finfo(np.float32).max)
JUST_ABOVE_448 = float(np.nextafter(np.float32(448), np.float32(449)))

# amax: exponent of the scale and the quantised amax under floor, rceil, ceil, even; torchao 36027d8, run for E4M3
TABLE = {
    256: ((0, 256), (0, 256), (0, 256), (0, 256)), 447: ((0, 448), (0, 448), (1, 448), (0, 448)),
    448: ((0, 448), (0, 448), (1, 448), (0, 448)), JUST_ABOVE_448: ((0, 448), (1, 448), (1, 448), (0, 448)),
    480: ((0, 448), (1, 480), (1, 480), (0, 448)), 496: ((0, 448), (1, 512), (1, 512), (1, 512)),
    511.9: ((0, 448), (1, 512), (1, 512), (1, 512)), 513: ((1, 512), (1, 512), (2, 512), (1, 512)),
    2.0**-126: ((-127, 2.0**-126),) * 4, 2.0**-149: ((-127, 0),) * 4,
}  # fmt: skip


def random_numbers(count: int, seed: int, exponents: tuple[int, int] = (-140, 120)) -> list[float]:
    """FP32 numbers of all sizes, normal and subnormal, of both signs."""
    low, high = exponents
    drawn = [(bits(seed, 2 * i), bits(seed, 2 * i + 1)) for i in range(count)]
    return [float(np.float32(math.ldexp((-1) ** (r & 1) * (1 + (r >> 9) / 2**23), low + e % (high - low))))
            for r, e in drawn]  # fmt: skip


@pytest.mark.parametrize("amax", TABLE)
def test_the_rules_of_mx_on_one_outlier(amax: float) -> None:
    [block] = explain_block([amax, 0], "mxfp8").blocks
    found = {b.rule: (b.scale_code - 127, b.elements[0].value) for b in block.others}
    assert [found[rule] for rule in ("floor", "rceil", "ceil", "even")] == list(TABLE[amax])
    assert found["te"] == found["rceil"] and found["floor"] == (block.scale_code - 127, block.elements[0].value)


def test_two_levels_of_scales() -> None:
    rest = [0] * 15
    e = explain_block([100, *rest, 1, *rest, 1e-4], "nvfp4")
    assert [b.scale for b in e.blocks] == [448, 4.5, 0] and e.fill == 15
    assert [s.value for s in e.tensor] == [100, float(np.float32(2688) / np.float32(100)), e.tensor_scale]
    assert e.blocks[2].elements[0].fate == "zero" and e.blocks[2].elements[0].element == 6


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_codes_scales_and_values_are_those_of_quantize(format: BlockFormat) -> None:
    special = [0, -0.0, math.inf, -math.inf, math.nan, FLT_MAX, -(2.0**-149), 448, 6, 1]
    one_nan = [*random_numbers(40, 3), math.nan]
    for numbers in (random_numbers(128, 1), random_numbers(100, 2, (-8, 3)), special, one_nan):
        e = explain_block(numbers, format)
        rows, columns = (1, *(format.block or (0,)))[-2:]
        whole = np.zeros((rows or 1, -(-len(numbers) // (columns or len(numbers))) * (columns or len(numbers))))
        whole[0, : len(numbers)] = numbers
        x = quantize(whole, format)
        assert [a.code for a in e.elements] == x.codes[0, : len(numbers)].tolist()
        assert [b.scale_code for b in e.blocks] == x.scales.codes.reshape(-1).tolist()
        np.testing.assert_array_equal([a.value for a in e.elements], x.values[0, : len(numbers)])
        assert e.tensor_scale == x.tensor_scale or math.isnan(e.tensor_scale)
        assert e.fill == whole.size - len(numbers) and e.inexact == 0
        family = list(next((f for f in FAMILIES if format.rule in f), ()))
        if format.name in ("nf4", "int4"):
            family.remove("absmax-127")  # which is for elements up to 127
        assert [b.rule for b in e.blocks[0].others] == family
        for block in e.blocks:
            same = [repr(other) for other in block.others if other.rule == format.rule]
            assert same == [repr(replace(block, others=()))] * bool(block.others)


@pytest.mark.parametrize("format", ROWS, ids=str)
def test_the_last_step_is_the_scale(format: BlockFormat) -> None:
    """The steps are computed apart from the rules: they have to arrive at the same codes."""
    ends = [2.0**-149, 2.0**-126, 1, 6, 7, 448, JUST_ABOVE_448, 480, 496, 2.0**127, FLT_MAX]
    for amax in [*ends, *(abs(x) for x in random_numbers(60, 4))]:
        [block] = explain_block([amax], format).blocks
        for b in block.others or [block]:
            last = b.steps[-1].value
            if format.scale.name == "e8m0":
                assert b.scale_code == min(max(last, -127), 127) + 127
                assert b.multiplier == 2.0 ** (127 - b.scale_code)
            elif format.scale == UE4M3:
                assert b.scale_code == numsim.encode(last, UE4M3, overflow="saturate")
            else:
                infinite = FLT_MAX if b.rule == "current" else math.inf  # what Transformer Engine puts there
                assert b.multiplier == (infinite if math.isinf(last) else last)


def test_every_rule_is_told() -> None:
    told = {b.rule for f in ROWS for b in explain_block([1], f).blocks[0].others or explain_block([1], f).blocks}
    assert told == set(RULES)


@pytest.mark.parametrize("format", [f for f in ROWS if not isinstance(f.element, Codebook)], ids=str)
def test_saturated_is_what_events_count_as_overflow(format: BlockFormat) -> None:
    for rule in next((f for f in FAMILIES if format.rule in f), (format.rule,)):
        line = replace(format, rule=rule, block=(16,))
        for seed in range(4):
            numbers = random_numbers(16, seed, (-2, 2))
            seen = numsim.Events()
            quantize(numbers, line, events=seen)
            assert seen.overflow == sum(e.saturated for e in explain_block(numbers, line).elements)


def test_a_codebook_saturates_half_a_step_beyond_its_end() -> None:
    near = explain_block([Fraction(509, 256), Fraction(510, 256), -1.5], "mxint8").elements  # 127.25, 127.5 / 64
    assert [e.element for e in near] == [127 / 64, 127 / 64, -1.5]
    assert [e.fate for e in near] == ["rounded", "saturated", "exact"]


@pytest.mark.parametrize(("number", "name", "saturated"), [
    (464, "mxfp8", False), (464.5, "mxfp8", True), (6.5, "mxfp4", False), (7, "mxfp4", True), (-7, "mxfp4", True),
])  # fmt: skip
def test_ties_at_the_end_go_to_the_even_code(number: float, name: str, saturated: bool) -> None:
    """448 is even and keeps its tie; 6 is odd, and the tie goes to 8, which E2M1 lacks."""
    assert explain_block([number], name).elements[0].fate == ("saturated" if saturated else "rounded")


def test_fates_and_errors() -> None:
    e = explain_block(["0.1", 300, 480, 1, "2^-20", "-0"], "mxfp8")
    assert [x.fate for x in e.elements] == ["rounded", "rounded", "saturated", "exact", "zero", "exact"]
    assert [x.error for x in e.elements][1:] == [-12, -32, 0, Fraction(-1, 2**20), 0]
    tenth = Fraction(float(np.float32(0.1)))
    sizes = tenth + 781 + Fraction(1, 2**20)
    assert e.blocks[0].error == (Fraction(0.1015625) - tenth + 44 + Fraction(1, 2**20)) / sizes
    assert e.inexact == 1 and e.blocks[0].largest.text == "480"
    lost = explain_block(["nan", "inf", "1"], "nvfp4")
    assert [x.fate for x in lost.elements] == ["nan lost", "exact", "nan"] and lost.blocks[0].error is None
    assert [x.fate for x in explain_block([math.inf, 300], "nvfp4").elements] == ["exact", "infinite"]
    assert {x.fate for x in explain_block([math.inf, 1], "mxfp8").elements} == {"nan"}
    assert explain_block(["0", "-0"], "mxfp4").blocks[0].error == 0
    assert explain_block(["nan"] * 3, "nf4").blocks[0].largest.text == "nan"


def test_what_may_stand_for_the_numbers() -> None:
    expected = explain_block([0.5, 3, -1], "mxfp4").elements
    for numbers in ("[0.5, 3, -1]", " [ 1/2 ,3, -2^0, ]\n", "[0x1p-1, e4m3:0x44, -1]", np.float32([0.5, 3, -1]),
                    (Fraction(1, 2), "3", np.int8(-1)), np.array([[0.5], [3], [-1]])):  # fmt: skip
        found = explain_block(numbers, get_block_format("mxfp4")).elements
        assert [x._replace(text="") for x in found] == [x._replace(text="") for x in expected]
    assert (
        explain_block([1e39, "1/3"], "mxfp8").inexact == 2 and explain_block([1e39], "mxfp8").blocks[0].amax == math.inf
    )


@pytest.mark.parametrize("numbers", [
    "[", "[1", "1, 2", "[]", "[1,,2]", "[1 + 2]", "[sqrt(2)]", "[one]", "[[1]]", [], [1] * 129, [[1]], ["x"], [None],
    None, 3, {1: 2}, [1j], "[" + "1," * 200 + "]", np.zeros(0),
])  # fmt: skip
def test_no_list_of_numbers(numbers: object) -> None:
    with pytest.raises(InputError):
        explain_block(numbers, "mxfp8")


@pytest.mark.parametrize("numbers", ["[0x]", "[1e99999999]", "[1, 2 3]", "[a]", "[" + "1" * 3000 + "]"])
def test_errors_speak_of_lists(numbers: str) -> None:
    with pytest.raises(InputError, match=r"^(cannot read )?a number of the list") as error:
        explain_block(numbers, "mxfp8")
    assert str(error.value).endswith('\nExample: numsim explain "[0.1, 300, 480, 1]" --format mxfp8')
    assert "expression" not in str(error.value) and "sqrt" not in str(error.value)


def test_errors_count_from_the_number() -> None:
    """What becomes zero has lost all of itself, what grows has a plus, whatever the signs."""
    said = str(explain_block([448, -(2.0**-20), 2.0**-20, 17, -17, 19, -19], "mxfp8"))
    errors = {line.split()[0]: line.split()[5] for line in said.splitlines() if " 0x" in line and "scale" not in line}
    assert errors["-2^-20"] == errors["2^-20"] == "-100"
    assert errors["17"] == errors["-17"] == "-5.88" and errors["19"] == errors["-19"] == "+5.26"
    assert said.endswith("error: (value - number) / number; of rules: sum of |error| / sum of |number|")
    assert str(explain_block([1, 3], "nf4")).endswith("\nerror: (value - number) / number")


def test_numbers_without_a_zero() -> None:
    without = BlockFormat("z", Codebook("z", (-3, -1, 1, 3)), numsim.FP32, (4,), "absmax")
    e = explain_block([0, 3, 1], without)
    assert [x.value for x in e.elements] == [1, 3, 1] and "0           0   0x2        1      1      -" in str(e)


@pytest.mark.parametrize(("numbers", "name", "said"), [
    ([1e300, 1], "fp8_tensor", "amax inf is a case of its own: nothing is scaled, infinity saturates"),
    ([0], "fp8_tensor", "amax 0 is a case of its own: nothing is scaled)"),
    ([math.inf], "mxfp8", "amax inf is a case of its own: the whole block becomes NaN"),
    ([math.nan], "mxfp8", "amax NaN is a case of its own: the whole block becomes NaN"),
    ([0], "mxfp8", "amax 0 is a case of its own: the rule has a fixed scale for it"),
])  # fmt: skip
def test_special_amaxes_say_what_the_rule_does(numbers: list[float], name: str, said: str) -> None:
    assert f"\n  ({said}" in str(explain_block(numbers, name))


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_no_line_is_longer_than_80(format: BlockFormat) -> None:
    long = ["0.7257776152480657", "-0.42470000000000006", "1.2345678901234567e-300", "-" + "9" * 60, "inf", "nan"]
    for n in range(1, len(long) + 1):
        for numbers in (long[:n], long[-n:], long[n - 1 : n]):
            assert max(map(len, str(explain_block(numbers, format)).splitlines())) <= 80


def test_no_block_format() -> None:
    for name in ("bf16", "mxfp5", "", None, 3):
        with pytest.raises(FormatError):
            explain_block([1], name)


def test_text_and_json_hold_the_record() -> None:
    e = explain_block([0.02, -300, 480], "mxfp8")
    said = str(e)
    for part in ("3 numbers in MXFP8 (E4M3): 2 rounded, 1 saturated", "29 zeros", "= code 0x7f", "floor *", "ceil"):
        assert part in said
    block = e.to_dict()["blocks"][0]
    for told, x in itertools.zip_longest(block["elements"], e.elements):
        assert [Fraction(told[key]) for key in ("number", "multiplied", "element", "value", "error")] == [
            Fraction(x.number), Fraction(x.scaled), Fraction(x.element), Fraction(x.value), x.error]  # fmt: skip
        assert told["code"] == x.code == int(told["hex"], 16) and told["fate"] == x.fate
