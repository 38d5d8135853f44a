"""The tables of chips against a table typed by hand, what the evidence says, and records of one's own."""

from dataclasses import FrozenInstanceError, replace
from fnmatch import fnmatchcase

import numpy as np
import pytest

from numsim import kernels
from numsim.errors import InputError
from numsim.tensorcore import Model, Unit, get_model, list_chips, list_models, matmul, mma
from numsim.tensorcore.chips import SOURCES
from numsim.tensorcore.models import TYPES
from tests.tensorcore.oracle import FIELDS, code, decode

RECORDS = {(chip, m.instruction): m for chip in list_chips() for m in list_models(chip)}
BEFORE_HOPPER, ADA = "a100 a30 a2 l40s rtx4090 rtx1000ada", "l40s rtx4090 rtx1000ada"
FROM_HOPPER, HOPPER, RTX = "h100 h200 b200 rtx5090 rtxpro6000", "h100 h200", "rtx5090 rtxpro6000"

# Xie et al., arXiv:2511.10909v2, tables 3 to 5; Khattak and Mikaitis, arXiv:2512.07004v2, table II; E0: mmasim 2.1.1.
# chips, instructions, how it adds: path, products per block, F, E0, output rule, blocks of one instruction.
FACTS = [
    ("v100 t4", "mma.m8n8k4.f32.*", "block", 4, 23, -131, "rz-fp32", 1),
    ("v100 t4", "mma.m8n8k4.f16.*", "block", 4, 23, -19, "rne-fp16", 1),
    ("t4", "mma.m16n8k8.f32.*", "block", 8, 24, -132, "rz-fp32", 1),
    ("t4", "mma.m16n8k8.f16.*", "block", 8, 24, -20, "rne-fp16", 1),
    (BEFORE_HOPPER, "mma.m16n8k8.f32.*f16.*f16.f32", "block", 8, 24, -132, "rz-fp32", 1),
    (BEFORE_HOPPER, "mma.m16n8k16.f32.*f16.*f16.f32", "block", 8, 24, -132, "rz-fp32", 2),
    (BEFORE_HOPPER, "mma.m16n8k8.f16.f16.f16.f16", "block", 8, 24, -20, "rne-fp16", 1),
    (BEFORE_HOPPER, "mma.m16n8k16.f16.f16.f16.f16", "block", 8, 24, -20, "rne-fp16", 2),
    (BEFORE_HOPPER, "mma.m16n8k4.f32.tf32.*", "block", 4, 24, -132, "rz-fp32", 1),
    (BEFORE_HOPPER, "mma.m16n8k8.f32.tf32.*", "block", 4, 24, -132, "rz-fp32", 2),
    (BEFORE_HOPPER, "wmma.m16n16k8.f32.tf32.tf32.f32", "block", 4, 24, -132, "rz-fp32", 2),
    (FROM_HOPPER, "wmma.m16n16k8.f32.tf32.tf32.f32", "block", 4, 25, -133, "rz-fp32", 2),
    (ADA, "mma.m16n8k16.f32.e?m?.e?m?.f32", "block", 16, 13, -132, "rz-e8m13", 1),
    (ADA, "mma.m16n8k32.f32.e?m?.e?m?.f32", "block", 16, 13, -132, "rz-e8m13", 2),
    (ADA, "mma.m16n8k16.f16.e?m?.e?m?.f16", "block", 16, 13, -20, "rne-fp16", 1),
    (ADA, "mma.m16n8k32.f16.e?m?.e?m?.f16", "block", 16, 13, -20, "rne-fp16", 2),
    (FROM_HOPPER, "mma.*.f32.*f16.*f16.f32", "block", 16, 25, -133, "rz-fp32", 1),
    (FROM_HOPPER, "mma.*.f16.f16.f16.f16", "block", 16, 25, -21, "rne-fp16", 1),
    (FROM_HOPPER, "mma.*.f32.tf32.*", "block", 8, 25, -133, "rz-fp32", 1),
    (HOPPER, "wgmma.*k16.f32.*", "block", 16, 25, -133, "rz-fp32", 1),
    (HOPPER, "wgmma.*k16.f16.*", "block", 16, 25, -21, "rne-fp16", 1),
    (HOPPER, "wgmma.*k8.f32.tf32.tf32", "block", 8, 25, -133, "rz-fp32", 1),
    (HOPPER, "wgmma.*k32.f32.*", "block", 32, 13, -133, "rz-e8m13", 1),
    (HOPPER, "wgmma.*k32.f16.*", "block", 32, 13, -21, "rne-fp16", 1),
    (HOPPER + " b200", "mma.m16n8k32.f32.e?m?.e?m?.f32", "fp8-as-fp16", 16, 25, -133, "rz-fp32", 2),
    (HOPPER + " b200", "mma.m16n8k16.f32.e?m?.e?m?.f32", "fp8-as-fp16", 16, 25, -133, "rz-fp32", 2),
    (HOPPER + " b200", "mma.m16n8k32.f16.e?m?.e?m?.f16", "fp8-as-fp16", 16, 25, -21, "rne-fp16", 2),
    (HOPPER + " b200", "mma.m16n8k16.f16.e?m?.e?m?.f16", "fp8-as-fp16", 16, 25, -21, "rne-fp16", 2),
    ("b200", "tcgen05.*k16.kind::f16.f32.*", "block", 16, 25, -133, "rz-fp32", 1),
    ("b200", "tcgen05.*k16.kind::f16.f16.*", "block", 16, 25, -21, "rne-fp16", 1),
    ("b200", "tcgen05.*k8.kind::tf32.f32.*", "block", 8, 25, -133, "rz-fp32", 1),
    ("b200", "tcgen05.*k32.kind::f8f6f4.f32.*", "block", 32, 25, -133, "rz-fp32", 1),
    ("b200", "tcgen05.*k32.kind::f8f6f4.f16.*", "block", 32, 25, -21, "rne-fp16", 1),
    ("b200", "tcgen05.*k32.kind::mxf8f6f4.block32.f32.*.ue8m0", "block", 32, 25, -133, "rz-fp32", 1),
    ("b200", "tcgen05.*k64.kind::mxf4*.f32.e2m1.e2m1.*", "groups", 64, 35, -139, "rz-fp32", 1),
    (RTX, "mma.m16n8k16.f32.e?m?.e?m?.f32", "block", 32, 25, -133, "rz-fp32", 1),
    (RTX, "mma.m16n8k16.f16.e?m?.e?m?.f16", "block", 32, 25, -21, "rne-fp16", 1),
    (RTX, "mma.m16n8k32*.f32.e?m?.e?m?.f32", "block", 32, 25, -133, "rz-fp32", 1),
    (RTX, "mma.m16n8k32*.f16.e?m?.e?m?.f16", "block", 32, 25, -21, "rne-fp16", 1),
    (RTX, "mma.m16n8k32.kind::mxf8f6f4.block32.f32.*.ue8m0", "block", 32, 25, -133, "rz-fp32", 1),
    (RTX, "mma.m16n8k64.kind::mxf4*.f32.e2m1.e2m1.f32.*", "groups", 64, 35, -139, "rz-fp32", 1),
    (BEFORE_HOPPER + " b200 " + RTX, "mma.m8n8k4.f64.f64.f64.f64", "fma", 1, 0, 0, "rne-fp64", 4),
    (HOPPER, "mma.m8n8k4.f64.f64.f64.f64", "fma", 1, 0, 0, "rne-fp64", 4),
    (HOPPER, "mma.m16n8k8.f64.f64.f64.f64", "fma", 1, 0, 0, "rne-fp64", 8),
    (HOPPER, "mma.m16n8k16.f64.f64.f64.f64", "fma", 1, 0, 0, "rne-fp64", 16),
    ("mi100", "mfma.f32_16x16x16f16", "exact", 4, 0, 0, "rne-fp32", 4),
    ("mi100", "mfma.f32_16x16x8bf16", "exact", 2, 0, 0, "rne-fp32", 4),
    ("mi250x", "mfma.f32_16x16x16f16", "pairwise", 4, 0, 0, "rne-fp32", 4),
    ("mi250x", "mfma.f32_16x16x16bf16_1k", "pairwise", 4, 0, 0, "rne-fp32", 4),
    ("mi250x", "mfma.f32_16x16x8bf16", "pairwise", 2, 0, 0, "rne-fp32", 4),
    ("mi300x", "mfma.f32_16x16x16_*f16", "cdna3", 8, 24, 0, "rne-fp32", 2),
    ("mi300x", "mfma.f32_16x16x8_xf32", "cdna3", 4, 24, 0, "rne-fp32", 2),
    ("mi300x", "mfma.f32_16x16x32_*", "cdna3-fp8", 16, 24, 0, "rne-fp32", 2),
    ("mi100 mi250x", "mfma.f32_16x16x4f32", "fma", 1, 0, 0, "rne-fp32", 4),
    ("mi300x", "mfma.f32_16x16x4_f32", "fma", 1, 0, 0, "rne-fp32", 4),
    ("mi250x", "mfma.f64_16x16x4f64", "fma", 1, 0, 0, "rne-fp64", 4),
    ("mi300x", "mfma.f64_16x16x4_f64", "fma", 1, 0, 0, "rne-fp64", 4),
]  # fmt: skip


# --- the tables ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fact", FACTS, ids=lambda f: f"{f[0].split()[0]} {f[1]}")
def test_parameters(fact):
    chips, pattern, *expected = fact
    for chip in chips.split():
        found = [m for m in list_models(chip) if fnmatchcase(m.instruction, pattern)]
        assert found, chip
        for m in found:
            u = m.unit
            assert [u.path, u.length, u.fraction_bits, u.floor, u.output, m.blocks] == expected, str(m)
            assert (u.align, u.normalised) == ("toward-zero", False)


def test_every_record_of_nvidia_is_a_fact():
    """Each in exactly one row; of AMD's the shapes that only differ in M and N are left out."""
    for chip, instruction in RECORDS:
        rows = [f for f in FACTS if chip in f[0].split() and fnmatchcase(instruction, f[1])]
        assert len(rows) == 1 or (chip.startswith("mi") and not rows), (chip, instruction, rows)


def test_amd_shapes_compute_alike():
    """All MFMA shapes of one chip and one operand type have one unit, but for MI250X's older BF16."""
    for chip in ("mi100", "mi250x", "mi300x"):
        units = {}
        for m in list_models(chip):
            units.setdefault((m.a, m.b, m.instruction.endswith("_1k")), set()).add(m.unit)
        assert all(len(found) == 1 for found in units.values()), chip


def test_names_say_what_the_records_are():
    """K and types as the name has them; c is d unless mma says otherwise; every name is that of its record."""
    for (chip, instruction), m in RECORDS.items():
        assert m == get_model(chip, instruction) and str(m) == f"{instruction} on {chip}"
        assert m.k % m.blocks == 0 or m.k < m.unit.length
        if chip.startswith("mi"):
            assert f"x{m.k}" in instruction and m.c == m.d and instruction.startswith(f"mfma.{m.d}_")
            continue
        family, shape, *rest = instruction.split(".")
        types = [t for t in rest if t in TYPES]
        scale = [m.scale] if m.scale else []
        assert shape.endswith(f"k{m.k}")
        assert types == [m.d, m.a, m.b, *([m.c] if family in ("mma", "wmma") else []), *scale]
        assert f"block{m.scale_block}" in rest if m.scale else m.scale_block == 0


def test_nan_codes():
    expected = {"f16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}
    for m in RECORDS.values():
        quiet = {"f32": 0x7FC00000, "f64": expected["f64"]}
        assert m.nan == (quiet if m.chip.startswith("mi") else expected)[m.d], str(m)


# --- evidence --------------------------------------------------------------------------------------------------------
LEVELS = {
    "validated": (
        "v100 mma.m8n8k4.f32.f16.f16.f32", "v100 mma.m8n8k4.f16.f16.f16.f16", "a100 mma.m16n8k8.f32.f16.f16.f32",
        "a100 mma.m16n8k16.f32.bf16.bf16.f32", "a2 mma.m16n8k4.f32.tf32.tf32.f32",
        "l40s mma.m16n8k32.f32.e4m3.e4m3.f32", "rtx1000ada mma.m16n8k32.f16.e5m2.e5m2.f16",
        "h100 mma.m16n8k16.f32.f16.f16.f32", "h200 wgmma.m64n256k32.f32.e5m2.e5m2",
        "h200 mma.m16n8k32.f16.e4m3.e4m3.f16", "b200 mma.m16n8k32.f32.e4m3.e4m3.f32",
    ),
    "single-source": (
        "t4 mma.m16n8k8.f32.f16.f16.f32", "a30 mma.m16n8k16.f32.f16.f16.f32", "rtx4090 mma.m16n8k16.f32.f16.f16.f32",
        "l40s mma.m16n8k32.f16.e4m3.e4m3.f16", "h100 wgmma.m64n256k32.f16.e4m3.e4m3",
        "h200 mma.m16n8k32.f32.e4m3.e4m3.f32", "b200 tcgen05.m128n256k32.kind::f8f6f4.f32.e4m3.e4m3",
        "b200 tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3",
        "rtxpro6000 mma.m16n8k16.f32.f16.f16.f32", "mi100 mfma.f32_16x16x16f16", "mi250x mfma.f32_16x16x16f16",
        "mi300x mfma.f32_16x16x32_fp8_fp8", "a100 mma.m8n8k4.f64.f64.f64.f64",
    ),
    "unverified": (
        "t4 mma.m8n8k4.f32.f16.f16.f32", "v100 mma.m8n8k4.f32.f16.f16.f16", "h200 mma.m16n8k16.f32.e4m3.e4m3.f32",
        "rtx5090 mma.m16n8k16.f32.f16.f16.f32", "h200 wgmma.m64n256k32.f16.e4m3.e4m3",
        "h200 wgmma.m64n256k32.f32.e4m3.e5m2", "b200 mma.m16n8k32.f16.e5m2.e4m3.f16", "l40s mma.m8n8k4.f64.f64.f64.f64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
def test_how_sure_we_are(level):
    for name in LEVELS[level]:
        assert get_model(*name.split()).evidence.level == level, name


def test_evidence_has_sources():
    for m in RECORDS.values():
        e = m.evidence
        assert set(e.sources) <= set(SOURCES), str(m)
        assert e.sources or (e.level == "unverified" and e.note), str(m)
        assert "km-data" in e.sources or not e.recordings, str(m)


# --- records of one's own --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        {"path": "blocks"}, {"path": None}, {"length": 0}, {"length": 2000}, {"length": 4.0}, {"length": True},
        {"fraction_bits": -1}, {"fraction_bits": 61}, {"fraction_bits": "25"}, {"floor": -2001}, {"floor": None},
        {"output": "rne"}, {"output": "rne-fp64"}, {"path": "fma"}, {"path": "fma", "output": "rne-fp16"},
        {"path": "cdna3"}, {"path": "pairwise", "output": "rne-fp64"}, {"align": "up"}, {"output": ["rz-fp32"]},
        {"path": "cdna3", "output": "rne-fp32", "align": "down"}, {"path": "groups", "normalised": True},
        {"path": "exact", "output": "rne-fp32", "normalised": True}, {"normalised": 1},
        {"path": "fma", "output": "rne-fp32", "length": 2},
    ],
    ids=str,
)  # fmt: skip
def test_units_that_are_none(change):
    with pytest.raises(InputError, match="Example: Unit"):
        Unit(**{"path": "block", "length": 16, "fraction_bits": 25, "floor": -133} | change)


def test_result_and_output_rule_go_together():
    m = get_model("h200", "mma.m16n8k16.f32.f16.f16.f32")
    for d, output in (("f16", "rz-fp32"), ("f32", "rne-fp16"), ("f64", "rz-fp32")):
        with pytest.raises(InputError, match="output rule"):
            replace(m, d=d, unit=replace(m.unit, output=output))


def test_frozen_and_equal_by_what_is_computed():
    m = get_model("h200", "mma.m16n8k16.f32.f16.f16.f32")
    for record, name in ((m, "k"), (m.unit, "length"), (m.evidence, "level")):
        with pytest.raises(FrozenInstanceError):
            setattr(record, name, 1)
    other = replace(m, evidence=get_model("t4", "mma.m16n8k8.f32.f16.f16.f32").evidence)
    assert other == m and hash(other) == hash(m)
    assert replace(m, unit=replace(m.unit, fraction_bits=24)) != m


@pytest.mark.parametrize(("bits", "total"), [(25, 1 + 15 * 2**-24), (23, 1), (24, 1 + 15 * 2**-24)])
def test_a_model_of_ones_own(bits, total):
    """An H200 with other widths: 1 + 15 * 2^-24, cut at 2^-F; FP32 keeps 2^-23."""
    m = get_model("h200", "mma.m16n8k16.f32.f16.f16.f32")
    mine = replace(m, chip="mine", unit=replace(m.unit, fraction_bits=bits))
    a = np.array([code(1, "f16")] + [code(2**-12, "f16")] * 15, np.uint16)
    result = mma(a, a, np.uint32(0), chip=mine)
    kept = decode(int(result), "f32").value
    assert kept == total - total % 2**-23 and result.dtype == np.uint32
    square = matmul(np.tile(a, (3, 1)), np.tile(a[:, None], (1, 2)), chip=mine)
    assert square.shape == (3, 2) and (square == result).all()


def test_a_chip_that_nobody_built():
    """FP8 in blocks of 8 with 3 bits more than Hopper: a Model needs no entry in any table."""
    mine = Model("mine", "mine", 16, "e4m3", "e4m3", "f32", "f32", Unit("block", 8, 16, -133))
    ones = np.full(16, code(1, "e4m3"), np.uint8)
    assert decode(int(mma(ones, ones, np.uint32(0), chip=mine)), "f32").value == 16
    assert mine.blocks == 2 and mine.evidence.level == "unverified"


def test_types_have_the_fields_of_the_standards():
    """The formats of operands against the oracle's own table."""
    for name, (exponent_bits, width, bias, _) in FIELDS.items():
        f, word = TYPES[name], 13 if name in ("tf32", "xf32") else 0
        assert (f.exponent_bits, f.fraction_bits + word, f.bias) == (exponent_bits, width, bias), name


@pytest.mark.parametrize(
    ("chip", "instruction", "change"),
    [
        ("h200", "mma.m16n8k16.f32.f16.f16.f32", {"k": 0}), ("h200", "mma.m16n8k16.f32.f16.f16.f32", {"k": 16.0}),
        ("h200", "mma.m16n8k16.f32.f16.f16.f32", {"a": "zz"}), ("h200", "mma.m16n8k16.f32.f16.f16.f32", {"b": None}),
        ("h200", "mma.m16n8k16.f32.f16.f16.f32", {"c": "bf16"}), ("h200", "mma.m16n8k16.f16.f16.f16.f16", {"c": "f32"}),
        ("h200", "mma.m16n8k16.f32.f16.f16.f32", {"scale": "foo"}),
        ("h200", "mma.m16n8k16.f32.f16.f16.f32", {"scale": "ue4m3", "scale_block": 16}),
        ("h200", "mma.m16n8k16.f32.f16.f16.f32", {"scale": "ue8m0"}),
        ("h200", "mma.m16n8k16.f32.f16.f16.f32", {"scale": "ue8m0", "scale_block": 5}),
        ("h200", "mma.m16n8k16.f32.f16.f16.f32", {"scale_block": 16}),
        ("h200", "mma.m16n8k32.f32.e4m3.e4m3.f32", {"c": "f16"}), ("h200", "mma.m16n8k32.f32.e4m3.e4m3.f32", {"k": 6}),
        ("h200", "mma.m16n8k32.f32.e4m3.e4m3.f32", {"a": "bf16"}),
        ("h200", "mma.m16n8k32.f32.e4m3.e4m3.f32", {"scale": "ue8m0", "scale_block": 32}),
        ("b200", "tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0", {"scale_block": 8}),
        ("b200", "tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0", {"scale": "", "scale_block": 0}),
        ("b200", "tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0", {"a": "e4m3"}),
        ("b200", "tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0", {"k": 72}),
        ("b200", "tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0", {"k": 128}),
        ("mi300x", "mfma.f32_16x16x16_f16", {"c": "f16"}), ("mi100", "mfma.f32_16x16x16f16", {"c": "f16"}),
        ("mi100", "mfma.f32_16x16x16f16", {"scale": "ue8m0", "scale_block": 16}),
        ("mi250x", "mfma.f32_16x16x16f16", {"k": 6}),
        ("mi250x", "mfma.f32_16x16x16f16", {"unit": Unit("pairwise", 3, output="rne-fp32")}),
        ("a100", "mma.m8n8k4.f64.f64.f64.f64", {"d": "f32"}), ("a100", "mma.m8n8k4.f64.f64.f64.f64", {"c": "f16"}),
    ],
    ids=str,
)  # fmt: skip
def test_records_that_are_none(chip, instruction, change):
    """What would be computed in some way that nobody meant."""
    with pytest.raises(InputError, match="Example: "):
        replace(get_model(chip, instruction), **change)


def test_zeros_within_an_instruction_of_cdna2_keep_their_sign():
    """A block sum flushed to -0 meets products that underflow to -0; c of the next instruction loses its sign."""
    m = get_model("mi250x", "mfma.f32_16x16x8bf16")
    a = np.array([[0xBF81] + [0x8080] * 7], np.uint16)  # -1.0078125, then -2^-126
    b = np.full((1, 8), 0x0080, np.uint16)  # 2^-126
    for engine in ("reference", "kernel")[: 1 + (kernels.why_not() is None)]:
        with kernels.force(engine):
            assert mma(a, b, np.uint32(0x00800000), chip=m).tolist() == [0x80000000]
            assert mma(a[:, 1:2].repeat(8, axis=1), b, np.uint32(0x80000000), chip=m).tolist() == [0]
