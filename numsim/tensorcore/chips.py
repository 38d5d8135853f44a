"""Every chip's instructions: the tables of parameters, and the evidence for each. A new chip is a new entry here.

Parameters are those of Xie et al. and of Khattak and Mikaitis, who measured independently and agree; where a row rests
on one of them, or on neither, its evidence says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from numsim.tensorcore.models import Evidence, Model, Unit

SOURCES: dict[str, str] = {
    "xie": "Xie, Xu, Wang, Yang, Yang: Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units, "
    "arXiv:2511.10909v2 (2026)",
    "mmasim": "the authors' package mmasim 2.1.1 (PyPI, 2026)",
    "km": "Khattak, Mikaitis: Accurate Models of NVIDIA Tensor Cores, ACM TACO 23(3) (2026), arXiv:2512.07004v2",
    "km-data": "recorded results: github.com/north-numerical-computing/MATLAB-tensor-core, b12b5a7 (BSD-2-Clause)",
    "hawkeye": "Hawkeye, arXiv:2603.20421 (MLSys 2026)",
    "hpec": "github.com/faiziktk/IEEE_HPEC2025_block_FMA_tests: log of an A30",
    "fasi": "Fasi, Higham, Mikaitis, Pranesh: Numerical behavior of NVIDIA tensor cores, PeerJ CS 7:e330 (2021)",
    "fttn": "Li et al.: FTTN, CCGrid 2024, arXiv:2403.00232",
    "mmaemu": "mmaemu 0.1.0 (PyPI, 2026): FP8 products of an H100 PCIe and an RTX 4060",
    "dsv3": "DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.3.2",
    "cutlass1986": "NVIDIA/cutlass issue 1986: FP8 mma.sync on Hopper goes through FP16 (a maintainer)",
    "nvrtc": "machine code of NVRTC 13.5 for sm_90a and sm_100a, disassembled: two HMMA on unpacked FP16, then FADD or "
    "HADD2; for wmma of TF32 four HMMA of 4 products (tests/records/README.md)",
    "deepgemm176": "deepseek-ai/DeepGEMM issue 176: 25 bits for f8f6f4, 34 to 37 for mxf4 measured on a B200",
}

FP8 = ("e4m3", "e5m2")
SMALL = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")


@dataclass(frozen=True)
class Row:
    """Instructions that compute alike. Every shape and every pair of a and b is an instruction.

    shapes : for "mma m16n8k8"-like families "m16n8k8"; for mfma the whole name after the dot.
    """

    family: str
    shapes: tuple[str, ...]
    d: str
    a: tuple[str, ...]
    unit: Unit
    mixed: bool = False  # a and b may be different types of the list
    kind: str = ""
    c: str = ""  # where it is not d
    scale: str = ""
    scale_block: int = 0


def _both(family: str, shapes: str, length: int, bits: int, floors: tuple[int, int], kind: str = "") -> list[Row]:
    """FP16 and BF16 operands: FP32 results, and for FP16 also FP16 ones."""
    s = tuple(shapes.split())
    return [
        Row(family, s, "f32", ("f16",), Unit("block", length, bits, floors[0]), kind=kind),
        Row(family, s, "f16", ("f16",), Unit("block", length, bits, floors[1], "rne-fp16"), kind=kind),
        Row(family, s, "f32", ("bf16",), Unit("block", length, bits, floors[0]), kind=kind),
    ]


def _tf32(family: str, shapes: str, length: int, bits: int, floor: int, kind: str = "") -> Row:
    return Row(family, tuple(shapes.split()), "f32", ("tf32",), Unit("block", length, bits, floor), kind=kind)


def _wmma(bits: int, floor: int) -> Row:
    """The older interface to tensor cores; its TF32 shape becomes steps of m16n8k4, and so has blocks of 4."""
    return _tf32("wmma", "m16n16k8", 4, bits, floor)


def _small(
    family: str, shapes: str, types: tuple[str, ...], length: int, bits: int, floors: tuple[int, int], kind: str = ""
) -> list[Row]:
    """FP8, FP6 and FP4 operands in any pair, FP32 and FP16 results; with 13 bits the FP32 word holds no more."""
    s = tuple(shapes.split())
    wide = "rz-e8m13" if bits == 13 else "rz-fp32"
    return [
        Row(family, s, "f32", types, Unit("block", length, bits, floors[0], wide), mixed=True, kind=kind),
        Row(family, s, "f16", types, Unit("block", length, bits, floors[1], "rne-fp16"), mixed=True, kind=kind),
    ]


def _fp8_as_fp16() -> list[Row]:
    """FP8 mma.sync where there is no FP8 unit for it: the assembler takes the FP16 one, of 16 products."""
    shapes = ("m16n8k32", "m16n8k16")
    return [
        Row("mma", shapes, "f32", FP8, Unit("fp8-as-fp16", 16, 25, -133), mixed=True),
        Row("mma", shapes, "f16", FP8, Unit("fp8-as-fp16", 16, 25, -21, "rne-fp16"), mixed=True),
    ]


def _scaled(family: str, mn: str) -> list[Row]:
    """Block-scaled instructions of Blackwell: MXFP8/6/4 at K = 32, MXFP4 and NVFP4 at K = 64."""
    fp4 = Unit("groups", 64, 35, -139)
    rows = [Row(family, (f"{mn}k32",), "f32", SMALL, Unit("block", 32, 25, -133), mixed=True, kind="mxf8f6f4",
                scale="ue8m0", scale_block=32)]  # fmt: skip
    for kind, block, scale in (
        ("mxf4", 32, "ue8m0"), ("mxf4nvf4", 32, "ue8m0"), ("mxf4nvf4", 16, "ue8m0"), ("mxf4nvf4", 16, "ue4m3"),
    ):  # fmt: skip
        rows.append(Row(family, (f"{mn}k64",), "f32", ("e2m1",), fp4, kind=kind, scale=scale, scale_block=block))
    return rows


def _fp64(shapes: str) -> Row:
    return Row("mma", tuple(shapes.split()), "f64", ("f64",), Unit("fma", 1, output="rne-fp64"))


def _volta_m8n8k4(floor: int = -131, floor16: int = -19) -> list[Row]:
    unit = Unit("block", 4, 23, floor)
    return [
        Row("mma", ("m8n8k4",), "f32", ("f16",), unit),
        Row("mma", ("m8n8k4",), "f32", ("f16",), unit, c="f16"),
        Row("mma", ("m8n8k4",), "f16", ("f16",), Unit("block", 4, 23, floor16, "rne-fp16")),
    ]


_F16_K8 = "m16n8k16 m16n8k8"
_VOLTA = _volta_m8n8k4()
_TURING = _both("mma", "m16n8k8", 8, 24, (-132, -20))[:2] + _volta_m8n8k4()
_AMPERE = [
    *_both("mma", _F16_K8, 8, 24, (-132, -20)),
    _tf32("mma", "m16n8k8 m16n8k4", 4, 24, -132),
    _fp64("m8n8k4"),
    _wmma(24, -132),
]
_ADA = [*_AMPERE, *_small("mma", "m16n8k32 m16n8k16", FP8, 16, 13, (-132, -20))]
_HOPPER = [
    *_both("mma", _F16_K8, 16, 25, (-133, -21)),
    _tf32("mma", "m16n8k8 m16n8k4", 8, 25, -133),
    *_small("wgmma", "m64n256k32", FP8, 32, 13, (-133, -21)),
    *_both("wgmma", "m64n256k16", 16, 25, (-133, -21)),
    _tf32("wgmma", "m64n256k8", 8, 25, -133),
    *_fp8_as_fp16(),
    _fp64("m16n8k16 m16n8k8 m8n8k4"),
    _wmma(25, -133),
]
_BLACKWELL = [
    *_both("mma", _F16_K8, 16, 25, (-133, -21)),
    _tf32("mma", "m16n8k8 m16n8k4", 8, 25, -133),
    *_small("tcgen05", "m128n256k32", SMALL, 32, 25, (-133, -21), kind="f8f6f4"),
    *_scaled("tcgen05", "m128n256"),
    *_both("tcgen05", "m128n256k16", 16, 25, (-133, -21), kind="f16"),
    _tf32("tcgen05", "m128n256k8", 8, 25, -133, kind="tf32"),
    *_fp8_as_fp16(),
    _fp64("m8n8k4"),
    _wmma(25, -133),
]
_RTX_BLACKWELL = [
    *_both("mma", _F16_K8, 16, 25, (-133, -21)),
    _tf32("mma", "m16n8k8 m16n8k4", 8, 25, -133),
    *_small("mma", "m16n8k32 m16n8k16", FP8, 32, 25, (-133, -21)),
    *_small("mma", "m16n8k32", SMALL, 32, 25, (-133, -21), kind="f8f6f4"),
    *_scaled("mma", "m16n8"),
    _fp64("m8n8k4"),
    _wmma(25, -133),
]


def _mfma(names: str, d: str, a: tuple[str, ...], unit: Unit, mixed: bool = False) -> Row:
    return Row("mfma", tuple(names.split()), d, a, unit, mixed)


_FMA32, _FMA64 = Unit("fma", 1, output="rne-fp32"), Unit("fma", 1, output="rne-fp64")
_CDNA1 = [
    _mfma("f32_16x16x16f16 f32_32x32x8f16 f32_16x16x4f16", "f32", ("f16",), Unit("exact", 4, output="rne-fp32")),
    _mfma("f32_16x16x8bf16 f32_32x32x4bf16 f32_16x16x2bf16", "f32", ("bf16",), Unit("exact", 2, output="rne-fp32")),
    _mfma("f32_16x16x4f32 f32_32x32x2f32 f32_16x16x1f32", "f32", ("f32",), _FMA32),
]
_CDNA2 = [
    _mfma("f32_16x16x16f16 f32_32x32x8f16 f32_16x16x4f16", "f32", ("f16",), Unit("pairwise", 4, output="rne-fp32")),
    _mfma("f32_16x16x16bf16_1k f32_32x32x8bf16_1k f32_16x16x4bf16_1k", "f32", ("bf16",),
          Unit("pairwise", 4, output="rne-fp32")),
    _mfma("f32_16x16x8bf16 f32_32x32x4bf16 f32_16x16x2bf16", "f32", ("bf16",), Unit("pairwise", 2, output="rne-fp32")),
    _mfma("f32_16x16x4f32 f32_32x32x2f32 f32_16x16x1f32", "f32", ("f32",), _FMA32),
    _mfma("f64_16x16x4f64", "f64", ("f64",), _FMA64),
]  # fmt: skip
_CDNA3 = [
    _mfma("f32_16x16x16_f16 f32_32x32x8_f16 f32_16x16x4_4b_f16", "f32", ("f16",),
          Unit("cdna3", 8, 24, output="rne-fp32")),
    _mfma("f32_16x16x16_bf16 f32_32x32x8_bf16 f32_16x16x4_4b_bf16", "f32", ("bf16",),
          Unit("cdna3", 8, 24, output="rne-fp32")),
    _mfma("f32_16x16x8_xf32 f32_32x32x4_xf32", "f32", ("xf32",), Unit("cdna3", 4, 24, output="rne-fp32")),
    _mfma("f32_16x16x32 f32_32x32x16", "f32", ("fp8", "bf8"), Unit("cdna3-fp8", 16, 24, output="rne-fp32"), True),
    _mfma("f32_16x16x4_f32 f32_32x32x2_f32 f32_16x16x1_4b_f32", "f32", ("f32",), _FMA32),
    _mfma("f64_16x16x4_f64", "f64", ("f64",), _FMA64),
]  # fmt: skip

TITLES: dict[str, str] = {
    "v100": "V100 (Volta, sm_70)", "t4": "T4 (Turing, sm_75)", "a100": "A100 (Ampere, sm_80)",
    "a30": "A30 (Ampere, sm_80)", "a2": "A2 (Ampere, sm_86)", "l40s": "L40S (Ada, sm_89)",
    "rtx4090": "RTX 4090 (Ada, sm_89)", "rtx1000ada": "RTX 1000 Ada (Ada, sm_89)", "h100": "H100 (Hopper, sm_90)",
    "h200": "H200 (Hopper, sm_90)", "b200": "B200 (Blackwell, sm_100)", "rtx5090": "RTX 5090 (Blackwell, sm_120)",
    "rtxpro6000": "RTX PRO 6000 (Blackwell, sm_120)", "mi100": "MI100 (CDNA1)", "mi250x": "MI250X (CDNA2)",
    "mi300x": "MI300X (CDNA3)",
}  # fmt: skip
ROWS: dict[str, list[Row]] = {
    "v100": _VOLTA, "t4": _TURING, "a100": _AMPERE, "a30": _AMPERE, "a2": _AMPERE, "l40s": _ADA, "rtx4090": _ADA,
    "rtx1000ada": _ADA, "h100": _HOPPER, "h200": _HOPPER, "b200": _BLACKWELL, "rtx5090": _RTX_BLACKWELL,
    "rtxpro6000": _RTX_BLACKWELL, "mi100": _CDNA1, "mi250x": _CDNA2, "mi300x": _CDNA3,
}  # fmt: skip


# --- evidence ---------------------------------------------------------------------------------------------------------
def _recorded(what: str, *sources: str, note: str = "") -> Evidence:
    return Evidence("validated", tuple(what.split("; ")), ("km-data", *sources), note)


def _stated(*sources: str, note: str = "") -> Evidence:
    return Evidence("single-source", (), sources, note)


def _inferred(note: str, *sources: str) -> Evidence:
    return Evidence("unverified", (), sources, note)


_CHAIN = "recorded at K = 8; that two such blocks are chained rests on the papers"
_CHAIN4 = "recorded at K = 4; that two such blocks are chained rests on the papers"
_F16_OUT = "the recordings fix L; F and E0 hardly show in FP16 results and rest on the papers"
_TF32_8 = "the recordings use 4 of 8 products: L = 8 rests on the papers"
_MIXED = "of pairs of two FP8 types no results are public"
_DMMA = "sequential FMA is what the papers state; no recordings"


def _ampere_evidence(gpu: str, *papers: str) -> list[tuple[str, Evidence]]:
    return [
        ("mma.m16n8k8.f32.f16.*", _recorded(f"{gpu} fp16 -> fp32", *papers)),
        ("mma.*.f32.f16.*", _recorded(f"{gpu} fp16 -> fp32", *papers, note=_CHAIN)),
        ("mma.m16n8k8.f16.f16.*", _recorded(f"{gpu} fp16 -> fp16", *papers, note=_F16_OUT)),
        ("mma.*.f16.f16.*", _recorded(f"{gpu} fp16 -> fp16", *papers, note=f"{_F16_OUT}; {_CHAIN}")),
        ("mma.m16n8k8.f32.bf16.*", _recorded(f"{gpu} bf16 -> fp32", *papers)),
        ("mma.*.f32.bf16.*", _recorded(f"{gpu} bf16 -> fp32", *papers, note=_CHAIN)),
        ("mma.m16n8k4.*.tf32.*", _recorded(f"{gpu} tf32 -> fp32", *papers)),
        ("mma.*.tf32.*", _recorded(f"{gpu} tf32 -> fp32", *papers, note=_CHAIN4)),
    ]


def _hopper_evidence(gpu: str, *papers: str) -> list[tuple[str, Evidence]]:
    by_hand = "fp32 results are known from 30 hand probes only; recorded fp16 results and the machine code say the rest"
    return [
        ("mma.m16n8k16.f32.f16.*", _recorded(f"{gpu} fp16 -> fp32", *papers)),
        ("mma.m16n8k16.f32.bf16.*", _recorded(f"{gpu} bf16 -> fp32", *papers)),
        ("mma.m16n8k16.f16.f16.*", _recorded(f"{gpu} fp16 -> fp16", *papers, note=_F16_OUT)),
        ("mma.m16n8k8.f32.tf32.*", _recorded(f"{gpu} tf32 -> fp32", *papers, note=_TF32_8)),
        ("mma.m16n8k32.f16.e4m3.*", _recorded(f"{gpu} E4M3 -> fp16", "km", "cutlass1986", "nvrtc")),
        ("mma.m16n8k32.f16.e5m2.*", _recorded(f"{gpu} E5M2 -> fp16", "km", "cutlass1986", "nvrtc")),
        ("mma.m16n8k32.f32.e?m?.*", _stated("km", "cutlass1986", "nvrtc", note=by_hand)),
        ("wgmma.*.f32.e4m3.*", _recorded(f"{gpu} E4M3 -> fp32", *papers, "dsv3", note="only c = 0 is recorded")),
        ("wgmma.*.f32.e5m2.*", _recorded(f"{gpu} E5M2 -> fp32", *papers, "dsv3", note="only c = 0 is recorded")),
    ]


def _mixed(prefix: str, evidence: Evidence) -> list[tuple[str, Evidence]]:
    """Pairs of two FP8 types."""
    return [(f"{prefix}.{x}.{y}*", evidence) for x, y in (FP8, FP8[::-1])]


_MIXED_HMMA = _mixed("mma.m16n8k32.*", _inferred(f"{_MIXED}; the machine code converts each operand alone", "nvrtc"))


def _ada_fp8(gpu: str, outputs: str, *papers: str) -> list[tuple[str, Evidence]]:
    """FP8, recorded at K = 32 for some of the outputs."""
    chain = "recorded at K = 32, two such blocks"
    found = _mixed("mma.*", _inferred(f"{_MIXED}; taken from the RTX 4090", "xie", "mmasim"))
    for d, shown in (("f32", "fp32"), ("f16", "fp16")):
        for x in FP8:
            if d in outputs:
                recording = f"{gpu} {x.upper()} -> {shown}"
                found.append((f"mma.m16n8k32.{d}.{x}.{x}.*", _recorded(recording, *papers)))
                found.append((f"mma.m16n8k16.{d}.{x}.{x}.*", _recorded(recording, *papers, note=chain)))
    return [*found, ("mma.*.e?m?.*", _stated(*papers, note="fp16 results are recorded of an RTX 1000 Ada"))]


_ANY_FP8_K16 = (
    "mma.m16n8k16.*.e?m?.*",
    _inferred("no results are known; the machine code is that of K = 32 with two HMMA of 8 products", "nvrtc"),
)
_ANY_WMMA = (
    "wmma.*",
    _stated("km", "nvrtc", note="the assembler makes m16n8k4 steps of it; no results are public"),
)
EVIDENCE: dict[str, list[tuple[str, Evidence]]] = {
    "v100": [
        ("mma.*.f32.f16.f16.f16", _inferred("how an FP16 c is decoded for an FP32 sum differs between two versions of "
                                            "one source; the later one is followed", "mmasim")),
        ("mma.*.f32.*", _recorded("V100 fp16 -> fp32", "xie", "km", "fasi")),
        ("mma.*.f16.*", _recorded("V100 fp16 -> fp16", "xie", "km", "fasi", note=_F16_OUT)),
    ],
    "t4": [
        ("mma.m8n8k4.f32.f16.f16.f16", _inferred("two versions of one source disagree: F = 23 or 24, and how an FP16 c "
                                                 "is decoded for an FP32 sum", "mmasim")),
        ("mma.m8n8k4.*", _inferred("two versions of one source disagree: F = 23 or 24", "mmasim")),
        ("*", _stated("xie", "fasi")),
    ],
    "a100": [*_ampere_evidence("A100", "xie", "km", "hawkeye"), ("*.f64.*", _stated("xie", note=_DMMA))],
    "a30": [("*.f64.*", _inferred("taken from the A100, the same die")), ("*", _stated("km", "hpec"))],
    "a2": [*_ampere_evidence("A2", "km"), ("*", _inferred("taken from the A100"))],
    "l40s": [
        *_ada_fp8("L40S", "f32", "km", "hawkeye"), *_ampere_evidence("L40S", "km", "hawkeye"),
        ("*", _inferred("taken from the RTX 4090", "xie", "mmasim")),
    ],
    "rtx4090": [("*", _stated("xie", note="an RTX 1000 Ada and an L40S are recorded and compute alike"))],
    "rtx1000ada": [
        *_ada_fp8("RTX 1000 Ada", "f32 f16", "km"), *_ampere_evidence("RTX 1000 Ada", "km"),
        ("*", _inferred("taken from the RTX 4090", "xie", "mmasim")),
    ],
    "h100": [
        _ANY_FP8_K16, *_MIXED_HMMA, *_mixed("wgmma.*.f32", _stated("xie", "mmasim", note=_MIXED)),
        *_hopper_evidence("H100", "xie", "km", "hawkeye"), ("*", _stated("xie", "mmasim")),
    ],
    "h200": [
        _ANY_FP8_K16, *_MIXED_HMMA, *_mixed("wgmma.*.f32", _inferred(f"{_MIXED}; measured on an H100", "xie")),
        *_hopper_evidence("H200", "km"), ("*", _inferred("measured on an H100, the same die", "xie", "mmasim")),
    ],
    "b200": [
        _ANY_FP8_K16,
        ("mma.m16n8k16.f32.f16.*", _recorded("B200 fp16 -> fp32", "xie", "km")),
        ("mma.m16n8k16.f32.bf16.*", _recorded("B200 bf16 -> fp32", "xie", "km")),
        ("mma.m16n8k16.f16.f16.*", _recorded("B200 fp16 -> fp16", "xie", "km", note=_F16_OUT)),
        ("mma.m16n8k8.f32.tf32.*", _recorded("B200 tf32 -> fp32", "xie", "km", note=_TF32_8)),
        *_MIXED_HMMA,
        ("mma.m16n8k32.f32.e4m3.*", _recorded("B200 E4M3 -> fp32", "km", "nvrtc")),
        ("mma.m16n8k32.f32.e5m2.*", _recorded("B200 E5M2 -> fp32", "km", "nvrtc")),
        ("mma.m16n8k32.f16.e4m3.*", _recorded("B200 E4M3 -> fp16", "km", "nvrtc")),
        ("mma.m16n8k32.f16.e5m2.*", _recorded("B200 E5M2 -> fp16", "km", "nvrtc")),
        ("tcgen05.*.kind::mxf4*", _stated("xie", "mmasim", "deepgemm176")),
        ("tcgen05.*.kind::f8f6f4.*", _stated("xie", "mmasim", "deepgemm176")),
        ("*", _stated("xie", "mmasim")),
    ],
    "rtx5090": [("*", _inferred("taken from the RTX PRO 6000, the same generation", "xie", "mmasim"))],
    "rtxpro6000": [("*", _stated("xie", "mmasim"))],
    "mi100": [("*", _stated("xie", "mmasim", "km", "fttn"))],
    "mi250x": [("*", _stated("xie", "mmasim", "km", "fttn"))],
    "mi300x": [("*", _stated("xie", "mmasim", "km", note="results for NaN and infinite c are not documented"))],
}  # fmt: skip


# --- records ----------------------------------------------------------------------------------------------------------
def _instructions(row: Row) -> Iterator[tuple[str, int, str, str]]:
    """(name, K, a, b) for every shape and pair of types."""
    pairs = [(a, b) for a in row.a for b in (row.a if row.mixed else (a,))]
    for shape in row.shapes:
        for a, b in pairs:
            if row.family == "mfma":
                name = f"mfma.{shape}_{a}_{b}" if row.mixed else f"mfma.{shape}"
                k = int(shape.split("x")[2].split("_")[0].split("f")[0].split("b")[0])
            else:
                parts = [row.family, shape, *([f"kind::{row.kind}"] if row.kind else [])]
                k = int(shape.rpartition("k")[2])
                parts[-1] += f".block{row.scale_block}" if row.scale else ""
                c = [row.c or row.d] * (row.family in ("mma", "wmma"))
                types = [row.d, a, b, *c, *[row.scale] * bool(row.scale)]
                name = ".".join(parts + types)
            yield name, k, a, b


@cache
def models(chip: str) -> tuple[Model, ...]:
    """All records of a chip; of those that take the same operands, the one to take by default stands first."""
    found = []
    for row in ROWS[chip]:
        for name, k, a, b in _instructions(row):
            evidence = next(e for pattern, e in [_ANY_WMMA, *EVIDENCE[chip]] if fnmatchcase(name, pattern))
            types = (a, b, row.c or row.d, row.d)
            found.append(Model(chip, name, k, *types, row.unit, row.scale, row.scale_block, evidence))
    return tuple(found)
