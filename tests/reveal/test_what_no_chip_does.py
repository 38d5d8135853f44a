"""Records with one thing changed: the probe of that thing shows it, and no record of a chip fits."""

from dataclasses import replace
from functools import cache

import pytest

from numsim.reveal import reveal
from numsim.tensorcore import get_model

MODELS = {
    "f16": ("h200", "mma.m16n8k16.f32.f16.f16.f32"),
    "bf16": ("a100", "mma.m16n8k16.f32.bf16.bf16.f32"),
    "f16 out": ("a100", "mma.m16n8k16.f16.f16.f16.f16"),
    "volta": ("v100", "mma.m8n8k4.f32.f16.f16.f32"),
    "tf32": ("h200", "mma.m16n8k8.f32.tf32.tf32.f32"),
    "fp8": ("h200", "wgmma.m64n256k32.f32.e4m3.e4m3"),
    "fp8, f16 out": ("l40s", "mma.m16n8k32.f16.e4m3.e4m3.f16"),
    "fp8 as f16": ("h200", "mma.m16n8k32.f32.e4m3.e4m3.f32"),
    "fp6": ("b200", "tcgen05.m128n256k32.kind::f8f6f4.f32.e3m2.e2m1"),
    "fp4, f16 out": ("b200", "tcgen05.m128n256k32.kind::f8f6f4.f16.e2m1.e2m1"),
    "mxfp6": ("b200", "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e2m3.e3m2.ue8m0"),
    "mxfp4": ("b200", "tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0"),
    "nvfp4": ("b200", "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"),
}
# What these operands cannot show, and why.
HIDDEN = {
    ("floor", "f16"): "products are never that tiny", ("floor", "volta"): "the same", ("floor", "fp8"): "the same",
    ("floor", "fp8, f16 out"): "the same", ("floor", "fp8 as f16"): "the same", ("floor", "fp6"): "the same",
    ("floor", "fp4, f16 out"): "the same", ("floor", "nvfp4"): "the scales are never that small",
    ("cut of products", "fp4, f16 out"): "an FP16 c is never so large that it cuts one",
    ("cut of c", "fp8 as f16"): "c comes last",
}  # fmt: skip


@cache
def found(name, **changes):
    model = get_model(*MODELS[name])
    return reveal("emulated", chip=replace(model, unit=replace(model.unit, **changes)))


def unit(name):
    return get_model(*MODELS[name]).unit


def differs(name, property, value, **changes):
    """The finding changes to a value, and none fits; or neither shows, where that is so."""
    r = found(name, **changes)
    before = found(name)[property].value
    if (property, name) in HIDDEN:
        assert r[property].value == before or r[property].value in (None, "other")
    else:
        assert r[property].value == value != before
        assert not r.fits or property == "block"  # another chip has such blocks


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("more", [-1, 1])
def test_fraction_bits(name, more):
    bits = unit(name).fraction_bits + more
    differs(name, "fraction bits", bits, fraction_bits=bits)


@pytest.mark.parametrize("name", [n for n in MODELS if unit(n).path != "groups"])  # those are one block
def test_block(name):
    half = unit(name).length // 2
    differs(name, "block", half, length=half)


SLOW = ("mxfp4", "nvfp4")  # such changes have no kernel: K = 64 takes many seconds
DIRECTIONS = [(n, "down") for n in MODELS if n not in SLOW] + [(n, "nearest-even") for n in ("f16", "volta", "fp8")]


@pytest.mark.parametrize(("name", "align"), DIRECTIONS)
def test_direction(name, align):
    differs(name, "cut of products", align, align=align)
    differs(name, "cut of c", align, align=align)
    assert not found(name, align=align).fits


@pytest.mark.parametrize("name", [n for n in MODELS if n not in SLOW])
def test_normalised(name):
    differs(name, "normalised", "yes", normalised=True)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("more", [-1, 1])
def test_floor(name, more):
    floor = unit(name).floor + more
    differs(name, "floor", floor, floor=floor)
    assert bool(found(name, floor=floor).fits) == (("floor", name) in HIDDEN)


@pytest.mark.parametrize("name", [n for n in MODELS if not n.endswith("f16 out")])
def test_output(name):
    other = "rz-fp32" if unit(name).output == "rz-e8m13" else "rz-e8m13"
    if name == "fp8 as f16":  # c is added last, in FP32
        differs(name, "between blocks", 13, output=other)
    else:  # 13 bits kept are all in an FP32 result
        differs(name, "output", "exact" if name == "fp8" else "toward-zero, 13 bits", output=other)


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", "volta", "mxfp6"])
def test_output_to_nearest(name):
    differs(name, "output", "nearest-even, 23 bits", output="rne-fp32")


@pytest.mark.parametrize("name", ["f16", "fp8", "tf32"])
def test_half_a_block_is_another_chips(name):
    near = {m.chip for m in found(name, length=unit(name).length // 2).models}
    assert near == {"f16": {"h100", "h200", "b200", "rtx5090", "rtxpro6000"}, "fp8": {"l40s", "rtx4090", "rtx1000ada"},
                    "tf32": {"h100", "h200", "b200", "rtx5090", "rtxpro6000"}}[name]  # fmt: skip


def test_the_nearest_is_told():
    r = found("f16", fraction_bits=24)
    assert not r.fits and r.nearest[0].total > 0
    text = " ".join(str(r).split())
    assert "no record of a chip gives these answers" in text
    assert f"{r.nearest[0]} differ in {r.nearest[0].total} of {r.asked} answers: " in text
    assert "small products beside large ones (" in text and 10 * r.nearest[0].total <= r.asked
