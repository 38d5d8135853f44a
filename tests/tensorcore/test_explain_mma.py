"""explain_mma: its code is that of mma, its books balance, and the examples are those worked out by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import numsim
from numsim.codes import code_dtype
from numsim.errors import FormatError, InputError
from numsim.random import bits
from numsim.show import mma_words
from numsim.tensorcore import explain_mma, get_model, list_chips, list_models, mma
from numsim.tensorcore.models import TYPES, word_format
from numsim.tensorcore.operands import Note

NVFP4 = "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"
PATHS = {m.unit.path: m for chip in list_chips() for m in list_models(chip)}  # one of each
MODELS = [*PATHS.values(), *(get_model(*names) for names in (
    ("v100", "mma.m8n8k4.f16.f16.f16.f16"), ("v100", "mma.m8n8k4.f32.f16.f16.f16"),
    ("a100", "mma.m16n8k16.f32.f16.f16.f32"), ("h200", "mma.m16n8k8.f32.tf32.tf32.f32"),
    ("l40s", "mma.m16n8k32.f32.e4m3.e5m2.f32"), ("h100", "wgmma.m64n256k32.f32.e4m3.e4m3"),
    ("b200", "tcgen05.m128n256k32.kind::f8f6f4.f32.e4m3.e4m3"), ("b200", NVFP4),
))]  # fmt: skip


def drawn(model, seed, rows, k, gentle):
    """Codes for (rows, k) operands; gentle ones are neither infinite nor NaN, and near one another."""

    def codes(format, shape, stream):
        count = int(np.prod(shape))
        words = np.array([bits(seed, stream * 10**6 + i) for i in range(count)], np.uint64)
        fraction = words & np.uint64((1 << format.fraction_bits) - 1)
        if gentle and format.exponent_bits > 2 and format.fraction_bits:
            spread = np.uint64(min(12, format.bias))
            fields = np.uint64(format.bias) - spread // np.uint64(2) + (words >> np.uint64(8)) % spread
            sign = (words >> np.uint64(40) & np.uint64(1)) * np.uint64(format.sign_mask)
            return (
                (fraction | fields << np.uint64(format.fraction_bits) | sign).astype(code_dtype(format)).reshape(shape)
            )
        return (
            (words % np.uint64(format.codes) if format.bits < 64 else words).astype(code_dtype(format)).reshape(shape)
        )

    a, b = codes(word_format(model.a), (rows, k), 1), codes(word_format(model.b), (rows, k), 2)
    c = codes(TYPES[model.c], (rows,), 3)
    scales = [None, None]
    if model.scale:
        scales = [
            np.uint8(120) + codes(TYPES[model.scale], (rows, k // model.scale_block), s) % np.uint8(7) for s in (4, 5)
        ]
    return a, b, c, *scales


@pytest.mark.parametrize("gentle", [True, False], ids=["gentle", "any"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_code_is_that_of_mma_and_the_books_balance(model, gentle):
    a, b, c, sa, sb = drawn(model, 5, 6, model.k, gentle)
    expected = mma(a, b, c, chip=model, scale_a=sa, scale_b=sb)
    for i in range(len(a)):
        e = explain_mma(a[i], b[i], c[i], chip=model, scale_a=None if sa is None else sa[i],
                        scale_b=None if sb is None else sb[i])  # fmt: skip
        assert e.code == int(expected[i])
        if e.exact is None or any(x.cut is None or x.rounded is None for x in e.blocks):
            assert e.value is None or not gentle
            continue
        assert e.lost == sum((x.cut + x.rounded for x in e.blocks), Fraction(0))
        for block in e.blocks:
            assert block.exact - block.cut - block.rounded == block.value
            if block.sum:
                unit = Fraction(2) ** block.sum.unit
                assert block.sum.top - block.sum.unit == model.unit.fraction_bits
                assert block.cut == sum((x.lost for x in block.items), Fraction(0))
                assert block.sum.top == max([x.term.exponent for x in block.items] + [model.unit.floor])
                for item in block.items:
                    assert abs(item.lost) < unit and item.kept % unit == 0 and item.kept * item.lost >= 0


def test_the_exact_sum_comes_from_the_operands():
    a, b = [1.5, -0.375, 2**-24], [0.1, 3.0, 2**-24]
    e = explain_mma(a, b, 7, chip="a100")
    stored = np.asarray(numsim.decode(numsim.encode(b, "fp16"), "fp16")).tolist()
    assert e.exact == 7 + sum(Fraction(x) * Fraction(y) for x, y in zip(a, stored, strict=True))


# --- by hand ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("chip", "value", "blocks", "kept"), [
    ("v100", 1, 2, False), ("a100", 1 + Fraction(1, 2**21), 2, True), ("h100", 1 + Fraction(1, 2**21), 1, True),
])  # fmt: skip
def test_eight_small_products_beside_one(chip, value, blocks, kept):
    # 2^-24 lies one place below V100's 23 bits, and within the 24 and 25 of A100 and H100
    e = explain_mma([2**-12] * 8, [2**-12] * 8, 1, chip=chip)
    first = e.blocks[0]
    assert (e.value, len(e.blocks), e.exact) == (value, blocks, 1 + Fraction(1, 2**21))
    assert first.sum.top == 0 and [x.name for x in first.setters] == ["c"]
    assert all((x.kept == x.value) == kept for x in first.items[:-1])
    assert e.lost == e.exact - value and e.format.name == "fp32"
    assert numsim.exact(e.nearest, "fp32") == e.exact


def test_thirteen_bits_against_twenty_five():
    x = [1] + [2**-7] * 31
    hopper, blackwell = (explain_mma(x, x, chip=chip, format="e4m3") for chip in ("h100", "b200"))
    assert hopper.value == 1 and blackwell.value == hopper.exact == 1 + Fraction(31, 2**14)
    assert [x.lost for x in hopper.blocks[0].items] == [0] + [Fraction(1, 2**14)] * 31
    assert hopper.relative_error == -hopper.lost / hopper.exact == Fraction(-31, 2**14 + 31)
    assert blackwell.lost == 0 and blackwell.nearest == blackwell.code


def test_the_exponent_is_believed_not_the_leading_bit():
    # 2^-24 is FP16's least number: exponent -14. Its product with 2^10 stands at exponent -4, ten zeros first
    e = explain_mma([2**-24, 2**-11], [2**10, 1.0009765625 * 2**-14], chip="h100")
    first, second = e.blocks[0].items
    assert (first.term.exponent, first.leading, first.value) == (-4, -14, Fraction(1, 2**14))
    assert e.blocks[0].setters == (first,) and second.lost == Fraction(1, 2**35)
    assert explain_mma([2**-14, 2**-11], [1, 1.0009765625 * 2**-14], chip="h100").lost == 0  # the same, as a normal


def test_a_product_of_two_and_more_stays_where_its_exponents_are():
    e = explain_mma([1.5, 2**-12], [1.5, 2**-12], chip="v100")
    assert e.blocks[0].sum.top == 0 and e.blocks[0].items[0].leading == 1
    assert e.blocks[0].items[1].kept == 0


def test_groups_are_scaled_sums():
    a, b = [6, -4] * 8 + [1] * 48, [1] * 64
    e = explain_mma(a, b, 0.5, chip="b200", instruction=NVFP4, scale_a=[2, 1, 1, 0.5], scale_b=[4, 1, 1, 1])
    assert [(x.name, x.products, x.value, x.term.exponent) for x in e.blocks[0].items] == [
        ("group 0", 16, 128, 3), ("group 1", 16, 16, 0), ("group 2", 16, 16, 0), ("group 3", 16, 8, -1),
        ("c", 0, 0.5, -1),
    ]  # fmt: skip
    assert e.value == e.exact == Fraction(337, 2)


def test_fp8_by_way_of_fp16_adds_c_last():
    e = explain_mma([1, 2, 4, 8], [1] * 4, 0.5, chip="h100", instruction="mma.m16n8k32.f32.e4m3.e4m3.f32")
    assert [x.value for x in e.blocks] == [3, 15, Fraction(31, 2)]
    assert [[i.name for i in x.items] for x in e.blocks] == [["k 0", "k 1"], ["k 2", "k 3", "acc"], ["acc", "c"]]


def test_cdna2_rounds_every_product_and_sum():
    one = 1 + 2**-10
    e = explain_mma([one, 1, 1, 1], [one, 2**-12, 2**-13, 0], 2**-126, chip="mi250x")
    assert [len(level) for level in e.blocks[0].levels] == [4, 2, 1, 1]
    flushed = explain_mma([2**-15, 1], [1, 1], 0, chip="mi250x").blocks[0].items[0]
    assert flushed.kept == 0 and flushed.lost == Fraction(1, 2**15)  # a subnormal operand counts as zero


def test_more_products_than_an_instruction_has():
    e = explain_mma([1] * 9, [1] * 9, 0, chip="v100")
    assert len(e.blocks) == 3 and len(e.a) == 12 and e.count == 9 and e.value == 9
    assert e.blocks[2].link.where == [8, 9, 10, 11] and e.blocks[2].zeros == 3


# --- numbers and codes ------------------------------------------------------------------------------------------------
UPPER = "a: the unit reads only the upper 19 bits of these FP32 words"


def said(e):
    return [mma_words.note_text(note) for note in e.notes]


def test_numbers_are_rounded_and_said_so():
    e = explain_mma([0.1, 0.1, 1], [500, 1, 2], 0.25, chip="h100", format="e4m3")
    assert said(e) == ["a: 0.1 is 0.1015625 in E4M3", "b: 500 is NaN in E4M3"]
    assert e.notes[0] == Note("a", "rounded", 1, Fraction(0.1), 0x1D, numsim.get_format("e4m3"))
    assert str(e).startswith("H100: NaN, because k 0 is ")
    assert explain_mma([1, 2], [3, 4], chip="h100").notes == ()


def test_codes_and_arrays_are_taken_as_they_are():
    x = numsim.array([0.1, 3], "bf16")
    by_array = explain_mma(x, x, numsim.array(0.5, "fp32"), chip="a100")
    by_code = explain_mma(x.codes, x.codes, np.uint32(0x3F000000), chip="a100", format="bf16")
    assert by_array == by_code and by_array.model.a == "bf16" and by_array.notes == ()
    words = explain_mma([1024.5], [1], chip="a100", format="fp32")
    assert words.model.a == "tf32" and words.value == words.exact == 1024 and said(words) == [UPPER]
    assert said(explain_mma([1024.5], [1], chip="a100", format="tf32")) == ["a: 1024.5 is 1024 in TF32"]


def test_missing_scales_are_one():
    e = explain_mma([3], [2], chip="b200", instruction=NVFP4, scale_a=[2])
    assert e.value == 12 and said(e) == ["scale_a: 1 from number 1 on", "scale_b: 1"]


@pytest.mark.parametrize(("arguments", "words"), [
    (([1, 2], [1]), "2 numbers a and 1 numbers b"), (([], []), "0 numbers a"), (([[1]], [[1]]), "one sum"),
    (([1] * 1025, [1] * 1025), "up to 1024"), (([1], [1], [1, 2]), "c has 2 numbers"),
    (([1], ["x"]), "is no number"), ((np.zeros((2, 2), np.uint16), [1]), "one result"),
])  # fmt: skip
def test_wrong_shapes(arguments, words):
    with pytest.raises(InputError, match=words):
        explain_mma(*arguments, chip="h100")


@pytest.mark.parametrize(("options", "words"), [
    ({"chip": "h10"}, "did you mean h100"), ({"chip": "h100", "format": "e2m1"}, "has no instruction"),
    ({"chip": "h100", "instruction": "mma.m16n8k16.f32.f16.f16.f32", "format": "bf16"}, "takes f16"),
    ({"chip": "h100", "scale_a": [1]}, "takes no block scales"), ({"chip": "h100", "format": "zzz"}, "unknown format"),
    ({"chip": "b200", "instruction": NVFP4, "scale_a": [1] * 5}, "4 are needed"),
])  # fmt: skip
def test_wrong_options(options, words):
    with pytest.raises((InputError, FormatError), match=words):
        explain_mma([1], [1], **options)


def test_nan_where_there_is_none():
    with pytest.raises(InputError, match="NaN has no code in e2m1"):
        explain_mma([float("nan")], [1], chip="b200", format="e2m1")


# --- words ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_text_fits_a_terminal(model):
    a, b, c, sa, sb = drawn(model, 9, 1, 2 * model.k, True)
    sa, sb = (None if s is None else s[0] for s in (sa, sb))
    e = explain_mma(a[0], b[0], c[0], chip=model, scale_a=sa, scale_b=sb)
    lines = str(e).splitlines()
    assert max(map(len, lines)) <= 80 and str(e).isascii()
    record = json.loads(json.dumps(e.to_dict(), allow_nan=False))
    assert record["result"]["code"] == e.code and len(record["blocks"]) == len(e.blocks)
    assert [t["name"] for x in record["blocks"] for t in x["terms"]] == [i.name for x in e.blocks for i in x.items]


def test_the_bits_stand_in_their_places():
    x = [1] + [2**-7] * 31
    lines = str(explain_mma(x, x, chip="h100", format="e4m3")).splitlines()
    assert lines[0] == "H100: 31 of 32 products are lost, 1 instead of 1.0018..."
    cut = next(line for line in lines if line.startswith("  k 1-31"))
    assert cut.split()[2:5] == ["31", "x", "2^-14"] and cut.endswith("+............00|1 all lost: 2^-14 each")
    exact = next(line for line in lines if line.startswith("  exact "))
    assert exact.index("|") == cut.index("|") and "+10000000001111|1 " in exact
    first, line = (next(x for x in lines if words in x) for words in ("2^0  ", "--+"))
    assert first.index("2^0") == exact.index("+") + 1 == line.index("-") and line.index("+") == exact.index("|")
    assert first.endswith("2^-13") and len(first) == exact.index("|")
    assert "largest exponent E = 0, from k 0; 13 bits below it are kept" in lines[4]
    assert "  key: . before a term's first bit; | right of it bits are cut off" in lines


@pytest.mark.parametrize(("a", "b", "c", "chip", "words"), [
    ([1], [2], 3, "h100", "H100: 5 is exact"),
    ([float("inf"), float("inf")], [1, -1], 0, "h100", "H100: NaN, because infinities of both signs meet"),
    ([float("inf")], [0], 0, "h100", "H100: NaN, because k 0 is infinity * 0"),
    ([1], [1], float("-inf"), "h100", "H100: -infinity, because c is -infinity"),
    ([65504] * 4, [65504] * 4, 3.4e38, "v100", "V100: 4 of 4 products are lost; "
     "3.399999952...e38 is still rounded correctly"),
    ([1], [2**-14], 2**11, "h100", "H100: 2048 is the exact sum, correctly rounded to FP32"),
    ([1, -1, 2**-13], [1, 1, 2**-13], 0, "h100", "H100: 1 of 3 products is lost, 0 instead of 2^-26"),
    ([1], [1], 2**-24, "h100", "H100: 1 is the exact sum, correctly rounded to FP32"),
    ([0], [0], 0, "h100", "H100: 0 is exact"),
    ([0], [0], np.uint32(0x7FFF), "h100", "H100: 4.5916346780531280...e-41 is exact"),
])  # fmt: skip
def test_the_finding(a, b, c, chip, words):
    found = str(explain_mma(a, b, c, chip=chip)).splitlines()[0]
    assert found == words


@pytest.mark.parametrize(("a", "b", "c", "chip", "words"), [
    ([1, *[-(2**-12)] * 3], [1, *[2**-13] * 3], 2, "h100",
     "H100: 3 of 4 products are lost; 3 is still rounded correctly"),
    ([1], [1], 3 * 2**-24, "h100", "H100: only the rounding to FP32 loses something, 1.000000119..."),
    ([1], [1], 2**-24, "mi100", "MI100: 1 is the exact sum, correctly rounded to FP32"),
])  # fmt: skip
def test_a_chip_that_is_right_is_not_blamed(a, b, c, chip, words):
    e = explain_mma(a, b, c, chip=chip)
    assert str(e).startswith(words) and e.lost
    assert (e.nearest == e.code) == ("correctly" in words)
    assert ("FP32: the same" in str(e)) == (e.nearest == e.code)


def test_above_and_below_whatever_the_sign():
    x = [1] + [2**-7] * 31
    for sign, words in ((1, "below"), (-1, "above")):
        e = explain_mma(x, [sign * y for y in x], chip="h100", format="e4m3")
        assert f"  0.00189208984375 {words} the exact sum (0.19 %): all by aligning" in str(e)
    both = explain_mma([1, *[-(2**-12)] * 3, -0.1], [1, *[2**-13] * 3, 0.3], 2, chip="h100")
    assert both.lost == -Fraction(1, 2**24)
    assert "2^-24 above the exact sum (0.0000020 %): aligning +2^-23, rounding -2^-24" in str(both).replace("\n ", "")


def test_a_product_of_two_and_more_is_explained():
    told = " ".join(str(explain_mma([1000], [1000], chip="v100")).split())
    assert "largest exponent E = 18, from k 0: the factors' exponents added, nothing is normalised" in told
    assert "sets E, begins above it" in told and "2^19" in told
    told = str(explain_mma([0], [5], chip="v100"))
    assert "all 4 products are 0" in told and "largest exponent" not in told and "|" not in told


@pytest.mark.parametrize("chip", ["mi100", "mi250x", "mi300x"])
def test_bits_of_units_without_a_common_exponent(chip):
    lines = str(explain_mma([1, 2**-11], [1, 1 + 2**-10], 0.5, chip=chip)).splitlines()
    assert next(x for x in lines if x.startswith("  k 1")).endswith("+...........10000000001  |")  # 2^-11 to 2^-21
    assert any("| the result's last place (FP32)" in x for x in lines)
    assert not any(re.search(r"\b[LF]\b", x) for x in lines) and f"{LEVEL[chip]}: " in lines[-1] + lines[-2]


LEVEL = {chip: list_models(chip)[0].evidence.level for chip in ("mi100", "mi250x", "mi300x")}


def test_long_sums_are_short():
    e = explain_mma([0.1] * 1024, [0.3] * 1024, chip="v100")
    assert len(e.blocks) == 256 and len(str(e).splitlines()) < 70
    assert str(e).count("not shown: none loses more than") == 3 and str(e).count(" of 256: ") == 4


def test_nothing_heavy_is_loaded():
    code = ("import sys, warnings; from numsim.tensorcore import explain_mma; str(explain_mma([1], [1], chip='h100')); "
            "print({'matplotlib', 'numba'} & set(sys.modules))")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
