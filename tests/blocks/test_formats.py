"""Block formats: the table, names, and records that make no sense."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

import numsim
from numsim.blocks import MXFP8, NVFP4, RULES, BlockFormat, Codebook, get_block_format, list_block_formats
from numsim.blocks.formats import _ALIASES
from numsim.errors import FormatError, InputError
from numsim.formats import _BLOCK_FORMATS, _CODEBOOKS, UE4M3, Format, get_format

TABLE = """ mxfp8         e4m3fn  e8m0  32      8.25   8    448
            mxfp8_e5m2    e5m2    e8m0  32      8.25  15  57344
            mxfp6         e2m3    e8m0  32      6.25   2    7.5
            mxfp6_e3m2    e3m2    e8m0  32      6.25   4     28
            mxfp4         e2m1    e8m0  32      4.25   2      6
            mxint8        mxint8_element e8m0 32 8.25  0 1.984375
            nvfp4         e2m1    ue4m3 16      4.5    2      6
            nvfp4_2d      e2m1    ue4m3 16x16   4.03125 2     6
            nf4           nf4_element fp32 64   4.5    0      1
            int8          int8    fp32  0       8      6    127
            fp8_tensor    e4m3fn  fp32  None    8      8    448
            fp8_1x128     e4m3fn  fp32  128     8.25   8    448
            fp8_128x128   e4m3fn  fp32  128x128 8.001953125 8 448"""


@pytest.mark.parametrize("row", [row.split() for row in TABLE.splitlines()], ids=lambda row: row[0])
def test_the_table(row):
    name, element, scale, block, bits, emax, most = row
    format = get_block_format(name)
    sizes = None if block == "None" else tuple(map(int, block.split("x")))
    assert (format.element.name, format.scale.name, format.block) == (element, scale, sizes)
    assert (format.bits_per_value, format.emax, format.element_max) == (float(bits), int(emax), float(most))
    assert format.has_tensor_scale == name.startswith("nvfp4")


@pytest.mark.parametrize("format", list_block_formats(), ids=str)
def test_every_named_format(format):
    assert get_block_format(format.name) is format is get_block_format(format)
    assert get_block_format(format.name.upper().replace("_", "-")) is format
    assert format.title and format.source != "user-defined"
    assert RULES[format.rule].scale == format.scale and hash(format) == hash(dataclasses.replace(format, title="x"))


def test_aliases():
    assert get_block_format("mxfp8_e4m3") is MXFP8 and get_block_format(" NVFP4-1D ") is NVFP4
    assert get_block_format("mxfp4-e2m1").name == "mxfp4"


@pytest.mark.parametrize("name", ["mxfp9", "", 8, None, "x" * 500, b"mxfp8"], ids=repr)
def test_unknown_names(name):
    with pytest.raises(FormatError, match=r"unknown block format .*Example: numsim\.blocks\.quantize"):
        get_block_format(name)


def test_number_formats_know_the_names_of_block_formats():
    """``get_format`` says what a block format's numbers and scales are: it must know all of them, and no others."""
    names = {*(f.name for f in list_block_formats()), *_ALIASES}
    assert set(_BLOCK_FORMATS) == names - set(_CODEBOOKS) and names & set(_CODEBOOKS) == {"nf4", "int8", "int4"}
    for name, hint in _BLOCK_FORMATS.items():
        format = get_block_format(name)
        for x in (format.element, *([] if format.scale == numsim.FP32 else [format.scale])):
            assert ("e4m3" if x == numsim.E4M3 else x.name) in hint
        with pytest.raises(FormatError, match=f"^{name} is a block format"):
            get_format(name)


def test_number_formats_know_the_names_of_codebooks():
    assert set(_CODEBOOKS) == {"nf4", *(book.name for book in numsim.list_codebooks())}
    for name in _CODEBOOKS:  # the same as ``numsim.get_format`` says of them, and what ``numsim.encode`` takes
        assert isinstance(numsim.get_format(name), numsim.Codebook)
        with pytest.raises(FormatError, match=f"^'{name}' is a codebook"):
            get_format(name)


def test_a_near_name_is_suggested():
    with pytest.raises(FormatError, match="did you mean mxfp8"):
        get_block_format("mxpf8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"element": "e4m3"}, "element and scale are formats"),
        ({"scale": "e8m0"}, "element and scale are formats"),
        ({"rule": "flor"}, "rule='flor': did you mean floor\\? Those for e8m0 scales are floor, ceil, .*rule='floor'$"),
        ({"rule": "rcell"}, "did you mean rceil or ceil\\?.*, te. Example: rule='rceil'$"),
        ({"rule": None}, "rule=None: Those for e8m0 scales are floor, ceil, rceil, even, te. Example"),
        ({"element": numsim.BF16, "scale": UE4M3, "rule": "nvfp4"}, "largest of bf16 by 448, which is beyond FP32"),
        ({"element": Format("all_zero", 1, 0, 0, specials="fn")}, "all_zero needs numbers on both sides of zero"),
        ({"element": Codebook("half", (0, 1))}, "half needs numbers on both sides of zero"),
        ({"rule": "current"}, "rule='current' makes fp32 scales, and 'mxfp8' has e8m0 scales"),
        ({"scale": numsim.FP32}, "rule='floor' makes e8m0 scales, and 'mxfp8' has fp32 scales"),
        ({"block": 32}, "block=32: one or two sizes"),
        ({"block": (-1,)}, "one or two sizes"),
        ({"block": (2, 2, 2)}, "one or two sizes"),
        ({"block": ()}, "one or two sizes"),
        ({"block": (True,)}, "one or two sizes"),
        ({"block": (1 << 21,)}, "one or two sizes"),
        ({"element": numsim.FP64}, "'mxfp8': fp64 has numbers beyond FP32, in which elements are scaled"),
        ({"element": Format("wide", 10, 2, 100)}, "wide has numbers beyond FP32"),
        ({"element": Codebook("far", (Fraction(0), -(Fraction(2) ** 200)))}, "far has numbers beyond FP32"),
    ],
)
def test_records_that_make_no_sense(change, message):
    with pytest.raises(FormatError, match=message):
        dataclasses.replace(MXFP8, **change)


def test_rules_in_other_letters():
    assert dataclasses.replace(MXFP8, rule=" RCEIL") == dataclasses.replace(MXFP8, rule="rceil")
    assert numsim.blocks.quantize([1.0], "fp8_tensor", rule="TORCHAO_pow2").how == "rule torchao-pow2, nearest-even"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("element", ["fp32", "bf16", "fp16", "tf32", "e8m22", "e2m20", "e8m1"])
def test_wide_elements_work_with_every_rule_or_are_refused(element, rule):
    scale = RULES[rule].scale
    x = np.array([1e-45, 1, 3e38, 0] * 4 + [1e-13] * 16 + [0] * 16 + [1] * 16, np.float32)
    try:
        format = BlockFormat("own", numsim.get_format(element), scale, (16,), rule)
    except FormatError:
        assert scale == UE4M3 and numsim.get_format(element).max * 448 > numsim.FP32.max
        return
    ones = numsim.blocks.quantize(x, format).values[-16:]
    # under a tensor's scale small blocks become zero; the log2 of FLT_MAX rounds to 128
    assert abs(ones - 1).max() < 0.25 or scale == UE4M3 or (rule == "torchao-pow2" and element in ("fp32", "e8m22"))


def test_the_example_of_an_error_works():
    """What the message for a rule without its scale format offers."""
    made = dataclasses.replace(get_block_format("mxfp8"), rule="current", scale=numsim.get_format("fp32"))
    assert numsim.blocks.quantize([1.0] * 32, made).scales.format == numsim.FP32


def test_tiles():
    assert get_block_format("nvfp4_2d").tiles((32, 48)) == (16, 16)
    assert get_block_format("int8").tiles((3, 7)) == (1, 7) and get_block_format("fp8_tensor").tiles((3, 7)) == (1, 21)
    whole = BlockFormat("columns", numsim.E4M3, numsim.FP32, (0, 4), "current")
    assert whole.tiles((6, 8)) == (6, 4)
    with pytest.raises(InputError, match="blocks of 6 x 4 do not fill"):
        whole.tiles((6, 9))
