"""Names of chips and instructions: every spelling that people paste, and what is said where there is no such thing.

Spellings are those of the PTX ISA 9.0 (mma, wgmma.mma_async, tcgen05.mma), of CUTLASS's inline PTX, and of AMD's CDNA
manuals, LLVM's assembler and HIP's builtins.
"""

import pytest

import numsim
from numsim.errors import InputError
from numsim.tensorcore import Model, Unit, get_model, list_chips, list_models
from numsim.tensorcore.names import chip_name, default_model

ALL = [(chip, m) for chip in list_chips() for m in list_models(chip)]


def test_the_chips_of_the_contract():
    names = "v100 t4 a100 a30 a2 l40s rtx4090 rtx1000ada h100 h200 b200 rtx5090 rtxpro6000 mi100 mi250x mi300x"
    assert list_chips() == tuple(names.split())


# --- instructions -----------------------------------------------------------------------------------------------------
def test_every_record_has_one_name_and_is_found_by_it():
    for chip, m in ALL:
        assert get_model(chip, m.instruction) is m
        assert get_model(chip, f"  {m.instruction.upper()}\n") is m
    for chip in list_chips():
        names = [m.instruction for m in list_models(chip)]
        assert len(set(names)) == len(names)


def full_ptx(m):
    """A canonical name as PTX writes the instruction; for block scales both orders that are in use."""
    family, shape, *rest = m.instruction.split(".")
    kind = [p for p in rest if p.startswith("kind::")]
    types = [p for p in rest if not p.startswith(("kind::", "block"))]
    scale = [f"scale_vec::{m.k // m.scale_block}X"] if m.scale else []
    block = ["block_scale"] * bool(m.scale)
    if family == "mma":
        yield ".".join(["mma.sync.aligned", shape, "row.col", *kind, *block, *scale, *types])  # the ISA's order
        yield ".".join(["mma.sync.aligned", *kind, *block, *scale, shape, "row.col", *types])  # CUTLASS's
    elif family == "wmma":
        yield ".".join(["wmma.mma.sync.aligned.row.col", shape, *types])
    elif family == "wgmma":
        yield ".".join(["wgmma.mma_async.sync.aligned", shape, *types])
    else:  # shape and types are in the instruction descriptor: written behind
        yield ".".join(["tcgen05.mma.cta_group::1", *kind, *block, *scale, shape, *types])
        if m.scale:
            yield ".".join(["tcgen05.mma.cta_group::1", *kind, *block, f"block{m.scale_block}", shape, *types])


def test_full_ptx():
    count = 0
    for chip, m in ALL:
        if not chip.startswith("mi"):
            for name in full_ptx(m):
                assert get_model(chip, name) is m, name
                count += 1
    assert count > 900


@pytest.mark.parametrize(
    ("chip", "written", "canonical"),
    [
        ("h200", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "mma.m16n8k16.f32.f16.f16.f32"),
        ("v100", "mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f16", "mma.m8n8k4.f32.f16.f16.f16"),
        ("h200", "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", "wgmma.m64n256k32.f32.e4m3.e4m3"),
        ("h200", "wgmma.m64n8k16.f32.bf16.bf16", "wgmma.m64n256k16.f32.bf16.bf16"),
        ("rtx5090",
         "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3",
         "mma.m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3"),
        ("rtx5090",
         "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0",
         "mma.m16n8k64.kind::mxf4nvf4.block32.f32.e2m1.e2m1.f32.ue8m0"),
        # scale_vec may be left out where there is only one: 1X for mxf8f6f4, 2X for mxf4
        ("rtx5090", "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e3m2.f32.ue8m0",
         "mma.m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e3m2.f32.ue8m0"),
        ("b200", "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.m128n64k64.f32.e2m1.e2m1.ue8m0",
         "tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0"),
        ("b200", "tcgen05.mma.cta_group::1.kind::f8f6f4.m64n32k32.f16.e2m1.e5m2",
         "tcgen05.m128n256k32.kind::f8f6f4.f16.e2m1.e5m2"),
        # any M and N, and any order of what is not a type
        ("a100", "mma.m1n2k16.f32.bf16.bf16.f32", "mma.m16n8k16.f32.bf16.bf16.f32"),
        ("b200", "tcgen05.kind::tf32.m128n256k8.f32.tf32.tf32", "tcgen05.m128n256k8.kind::tf32.f32.tf32.tf32"),
        # AMD: manuals and assembler, HIP's builtins; blocks do not matter
        ("mi300x", "v_mfma_f32_16x16x16_f16", "mfma.f32_16x16x16_f16"),
        ("mi300x", "V_MFMA_F32_32X32X8_F16", "mfma.f32_32x32x8_f16"),
        ("mi300x", "mfma.f32_16x16x16f16", "mfma.f32_16x16x16_f16"),
        ("mi300x", "mfma_f32_16x16x16f16", "mfma.f32_16x16x16_f16"),
        ("mi250x", "v_mfma_f32_16x16x16f16", "mfma.f32_16x16x16f16"),
        ("mi250x", "v_mfma_f32_16x16x16_f16", "mfma.f32_16x16x16f16"),
        ("mi100", "v_mfma_f32_4x4x4f16", "mfma.f32_16x16x4f16"),
        ("mi300x", "v_mfma_f32_4x4x4_16b_f16", "mfma.f32_16x16x4_4b_f16"),
        ("mi300x", "v_mfma_f32_32x32x1_2b_f32", "mfma.f32_16x16x1_4b_f32"),
        ("mi300x", "v_mfma_f32_32x32x16_bf8_fp8", "mfma.f32_32x32x16_bf8_fp8"),
        ("mi250x", "mfma.f64_16x16x4f64", "mfma.f64_16x16x4f64"),
        ("mi300x", "mfma.f64_16x16x4f64", "mfma.f64_16x16x4_f64"),
    ],
)  # fmt: skip
def test_spellings(chip, written, canonical):
    assert get_model(chip, written).instruction == canonical


def test_1k():
    """On the MI250X BF16 comes in two widths; the MI300X has the wide one only, under both names."""
    assert get_model("mi250x", "v_mfma_f32_32x32x8bf16_1k").unit.length == 4
    assert get_model("mi250x", "v_mfma_f32_32x32x4bf16").unit.length == 2
    assert get_model("mi250x", "mfma.f32_16x16x8bf16").unit.length == 2  # K = 8, as 32x32x8bf16_1k
    for name in ("mfma.f32_16x16x16_bf16", "v_mfma_f32_16x16x16_bf16_1k", "mfma.f32_16x16x16bf16_1k"):
        assert get_model("mi300x", name).instruction == "mfma.f32_16x16x16_bf16"
    with pytest.raises(InputError, match=r"nearest: .*bf16_1k"):
        get_model("mi250x", "mfma.f32_16x16x16bf16")
    with pytest.raises(InputError, match="It exists on mi250x, mi300x"):
        get_model("mi100", "mfma.f32_16x16x16bf16_1k")
    with pytest.raises(InputError, match="not understood"):
        get_model("mi300x", "mfma.f32_16x16x16f16_1k")  # only BF16 has it


@pytest.mark.parametrize(
    ("chip", "written", "words"),
    [
        # a near name, and where the thing exists
        ("h200", "mma.m16n8k16.f32.f16.f16.f61", "'f61' is unknown or not modelled"),
        ("h200", "mma.m16n8k16.f32.f16.bf16.f32", "; the nearest: mma.m16n8k16.f32.bf16.bf16.f32 or"),
        ("h200", "wgmma.m64n8k32.f32.e4m3.e4m3.f32", "or wgmma.m64n256k32.f32.e4m3.e4m3."),
        ("a100", "mma.m16n8k32.f32.e4m3.e4m3.f32", "It exists on l40s, rtx4090, rtx1000ada, h100, h200, b200, rtx5090"),
        ("v100", "mma.m16n8k8.f32.tf32.tf32.f32", "It exists on a100"),
        ("b200", "wgmma.m64n256k16.f32.f16.f16", "It exists on h100, h200. numsim chips b200 lists all."),
        ("rtx5090", "tcgen05.m128n256k32.kind::f8f6f4.f32.e4m3.e4m3", "It exists on b200"),
        ("rtx5090", "mma.m16n8k64.kind::mxf4nvf4.f32.e2m1.e2m1.f32.ue4m3", "rtx5090 has no"),  # which block?
        ("rtx5090", "mma.m16n8k64.kind::mxf4.block16.f32.e2m1.e2m1.f32.ue8m0", "the nearest: mma.m16n8k64.kind::mxf4"),
        ("h200", "mfma.f32_16x16x16_f16", "It exists on mi100, mi250x, mi300x"),
        ("mi300x", "mfma.f32_16x16x128_fp8_fp8", "the nearest: mfma.f32_16x16x32_fp8_fp8"),
        # what is not modelled is named, never silently dropped
        ("h200", "mma.sync.aligned.m16n8k16.row.col.satfinite.s32.s8.s8.s32", "'satfinite' is unknown or not modelled"),
        ("h200", "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "'sp' is unknown or not modelled"),
        ("h200", "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "'sp::ordered_metadata'"),
        ("b200", "tcgen05.mma.cta_group::2.kind::f16.m128n64k16.f32.f16.f16", "'cta_group::2' is unknown or not"),
        ("b200", "tcgen05.mma.ws.cta_group::1.kind::f16.m128n64k16.f32.f16.f16", "'ws' is unknown or not modelled"),
        ("b200", "tcgen05.mma.cta_group::1.kind::f16", "no shape in it, such as m16n8k16"),
        ("h200", "mma.m16n8k16.m16n8k8.f32.f16.f16.f32", "'m16n8k8' is unknown"),
        ("h200", "mma.m16n8k32.kind::f16.kind::f8f6f4.f32.e4m3.e4m3.f32", "'kind::f8f6f4' is unknown"),
        # nonsense
        ("h200", "", "not understood"),
        ("h200", "hmma.16816.f32", "not understood"),
        ("h200", "m16n8k16", "not understood"),
        ("h200", "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", "the nearest: wmma.m16n16k8.f32.tf32"),
        ("h200", "mma", "no shape in it"),
        ("h200", "mma.m16n8k16", "h200 has no"),
        ("b200", "mma.m1n1k" + "9" * 5000 + ".f32", "(5013 characters)"),
        ("b200", "mma.m16n8k64.kind::mxf4.scale_vec::0X.f32.e2m1.e2m1.f32.ue8m0", "'scale_vec::0x' is unknown"),
        ("b200", "mma.m16n8k64.block" + "9" * 5000, "is unknown or not modelled"),
        ("h200", "mma.m16n8k\u0661\u0666.f32.f16.f16.f32", "is unknown"),  # Arabic digits
        ("h200", None, "There are: mma.m16n8k16.f32.f16.f16.f32, mma.m16n8k16.f32.bf16"),
        ("h200", 16, "which one of h200?"),
        ("h200", ["mma"], "which one of h200?"),
        ("h200", b"mma.m16n8k16.f32.f16.f16.f32", "which one of h200?"),
    ],
)  # fmt: skip
def test_unknown_instructions(chip, written, words):
    with pytest.raises(InputError) as caught:
        get_model(chip, written)
    message = str(caught.value)
    assert words in message and len(message) < 900
    assert "Example: chip=" in message or f"numsim chips {chip} lists all." in message


# --- chips ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("written", "chip"),
    [
        ("H200", "h200"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA A30", "a30"),
        ("NVIDIA A2", "a2"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA L40S", "l40s"),
        ("RTX 4090", "rtx4090"),
        ("rtx_4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("NVIDIA RTX 1000 Ada Generation Laptop GPU", "rtx1000ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000"),
        ("NVIDIA B200", "b200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        (" mi250x\n", "mi250x"),
    ],
)
def test_chips(written, chip):
    assert chip_name(written) == chip
    assert list_models(written) == list_models(chip)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("h300", "did you mean h200 or h100?"),
        ("NVIDIA GH200 480GB", "did you mean h200 or h100?"),
        ("NVIDIA L40", "did you mean l40s"),  # another die: not taken for it
        ("NVIDIA A10", "did you mean a100"),
        ("NVIDIA GeForce RTX 4080", "did you mean rtx4090"),
        ("AMD Instinct MI300A", "did you mean mi300x"),
        ("cpu", "known are v100, t4"),
        ("", "known are v100, t4"),
        ("nvidia", "known are v100, t4"),
        ("\0", "known are v100, t4"),
        ("x" * 100_000, "(100000 characters)"),
        (None, "chip=None: a name is needed, or a Model of your own."),
        (9, "chip=9: a name is needed"),
        (True, "chip=True: a name is needed"),
        (["h200"], "a name is needed"),
        (b"h200", "a name is needed"),
        (object(), "a name is needed"),
    ],
)
def test_unknown_chips(written, words):
    for call in (list_models, lambda chip: get_model(chip, "mma.m16n8k16.f32.f16.f16.f32")):
        with pytest.raises(InputError) as caught:
            call(written)
        message = str(caught.value)
        assert words in message and "Example: chip='h200'" in message and len(message) < 500


# --- models of one's own, and formats alone ---------------------------------------------------------------------------
def test_a_model_of_your_own():
    mine = Model("mine", "mma.m16n8k16.f32.f16.f16.f32", 16, "f16", "f16", "f32", "f32", Unit("block", 16, 30, -133))
    assert get_model(mine) is mine and get_model(mine, mine.instruction) is mine
    with pytest.raises(InputError, match="the Model names its own"):
        get_model(mine, "mma.m16n8k8.f32.f16.f16.f32")


@pytest.mark.parametrize(
    ("chip", "a", "b", "d", "instruction"),
    [
        ("h200", "fp16", "fp16", None, "mma.m16n8k16.f32.f16.f16.f32"),
        ("h200", "fp16", "fp16", "f16", "mma.m16n8k16.f16.f16.f16.f16"),
        ("h200", "e4m3", "e5m2", None, "wgmma.m64n256k32.f32.e4m3.e5m2"),  # the FP8 unit, not its stand-in
        ("b200", "e4m3", "e2m1", None, "tcgen05.m128n256k32.kind::f8f6f4.f32.e4m3.e2m1"),
        ("l40s", "e4m3", "e4m3", None, "mma.m16n8k32.f32.e4m3.e4m3.f32"),
        ("v100", "fp16", "fp16", None, "mma.m8n8k4.f32.f16.f16.f32"),
        ("a100", "tf32", "tf32", None, "mma.m16n8k8.f32.tf32.tf32.f32"),
        ("a100", "fp32", "fp32", None, "mma.m16n8k8.f32.tf32.tf32.f32"),  # what a library does where TF32 is allowed
        ("mi100", "fp32", "fp32", None, "mfma.f32_16x16x4f32"),  # AMD multiplies FP32
        ("mi300x", "tf32", "tf32", None, "mfma.f32_16x16x8_xf32"),
        ("mi300x", "e4m3fnuz", "e5m2fnuz", None, "mfma.f32_16x16x32_fp8_bf8"),
        ("h200", "fp64", "fp64", None, "mma.m16n8k16.f64.f64.f64.f64"),
    ],
)
def test_the_instruction_that_formats_name(chip, a, b, d, instruction):
    assert default_model(chip, numsim.get_format(a), numsim.get_format(b), d).instruction == instruction


@pytest.mark.parametrize(
    ("chip", "a", "b", "d", "words"),
    [
        ("a100", "e4m3", "e4m3", None, "A100 (Ampere, sm_80) has no instruction for e4m3fn x e4m3fn"),
        ("h200", "fp16", "bf16", None, "it takes bf16, e4m3fn, e4m3fn x e5m2"),
        ("mi300x", "e4m3", "e4m3", None, "it takes bf16, e4m3fnuz"),  # its FP8 is another format
        ("h200", "bf16", "bf16", "f16", "with f16 results"),
        ("h200", "fp32", "fp16", None, "has no instruction for fp32 x fp16"),
        ("v100", "fp32", "fp32", None, "numsim chips v100 lists all."),
    ],
)
def test_formats_that_a_chip_lacks(chip, a, b, d, words):
    with pytest.raises(InputError) as caught:
        default_model(chip, numsim.get_format(a), numsim.get_format(b), d)
    assert words in str(caught.value) and f"numsim chips {chip} lists all." in str(caught.value)
