"""What chips answered to hand-made inputs, as two papers print it: silicon that a clone without recordings checks."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from numsim.tensorcore import get_model
from numsim.tensorcore.block import dot
from tests.tensorcore import oracle
from tests.tensorcore.recordings import SHARED
from tests.tensorcore.test_oracle import kernel_dots

KM = "Khattak & Mikaitis arXiv:2512.07004v2 sec. IV"
XIE = "Xie et al. arXiv:2511.10909v2 Table 8 (Eq. 10)"
JSON = SHARED / "hardware-logs" / "paper-probes.json"


@dataclass(frozen=True)
class Probe:
    source: str
    gpu: str  # in the papers' words
    where: tuple[tuple[str, str], ...]  # chips and instructions
    a: tuple[float, ...]  # from k = 0 on; zeros follow
    b: tuple[float, ...]
    c: float
    d: float

    @property
    def models(self):
        return [get_model(chip, instruction) for chip, instruction in self.where]

    def codes(self, model):
        """a, b, c and d as codes of an instruction."""
        a, b = ([oracle.code(x, kind) for x in xs] for xs, kind in ((self.a, model.a), (self.b, model.b)))
        pad = [0] * (model.k - len(a))
        return a + pad, b + pad, oracle.code(self.c, model.c), oracle.code(self.d, model.d)


F16_K4, F16_K8 = "mma.m8n8k4.f32.f16.f16.f32", "mma.m16n8k8.f32.f16.f16.f32"
F16_K16, E5M2 = "mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k32.f32.e5m2.e5m2.f32"

# Products are not normalised and c is aligned with them: 2^-23 and less next to 2.25, made in three ways.
ALIGNMENT = [
    Probe(KM, gpu, ((chip, instruction),), a, b, c, d)
    for gpu, chip, instruction, a, b, c, d in (
        ("V100", "v100", F16_K4, (1.5, 2**-13, 2**-13), (1.5, 2**-10, 2**-10), 0.0, 2.25 + 2**-22),
        ("V100", "v100", F16_K4, (1.0, 2**-13, 2**-13), (2.25, 2**-10, 2**-10), 0.0, 2.25),
        ("V100", "v100", F16_K4, (0.0, 2**-13, 2**-13), (0.0, 2**-10, 2**-10), 2.25, 2.25),
        ("A100", "a100", F16_K8, (1.5, 2**-11, 2**-12, 2**-12), (1.5, 2**-12, 2**-12, 2**-12), 0.0, 2.25 + 2**-22),
        ("H100", "h100", F16_K16, (1.5, 7 * 2**-13, 2**-13), (1.5, 2**-12, 2**-12), 0.0, 2.25 + 2**-22),
        ("L40S", "l40s", E5M2, (1.0, 2**-6, 2**-6), (1.0, 2**-7, 2**-7), 0.0, 1 + 2**-12),
        ("L40S", "l40s", E5M2, (2**-7, 2**-7), (2**-7, 2**-7), 1.0, 1.0),
    )
]

# One sum on every architecture: 2^23 - 2^23 - 0.5 - 0.25 - 0.125, exactly -0.875.
EQUATION_10 = [
    Probe(XIE, gpu, where, (-8192.0, -0.5, -0.25, -0.125), (1024.0, 1.0, 1.0, 1.0), 8388608.0, d)
    for gpu, where, d in (
        ("V100 (Volta)", (("v100", F16_K4),), 0.0),
        ("T4 (Turing) m16n8k8", (("t4", F16_K8),), -0.5),
        ("A100 (Ampere)", (("a100", F16_K16),), -0.5),
        ("RTX 4090 (Ada)", (("rtx4090", F16_K16),), -0.5),
        ("H100 (Hopper)", (("h100", F16_K16),), -0.75),
        ("B200 (Blackwell)", (("b200", F16_K16),), -0.75),
        ("RTX PRO 6000 (RTX Blackwell)", (("rtxpro6000", F16_K16),), -0.75),
        ("RTX 4090 (Ada) QMMA", (("rtx4090", E5M2),), 0.0),
        ("H100 (Hopper) QGMMA (wgmma)", (("h100", "wgmma.m64n256k32.f32.e5m2.e5m2"),), 0.0),
        ("B200 tcgen05 / RTX Blackwell QMMA",
         (("b200", "tcgen05.m128n256k32.kind::f8f6f4.f32.e5m2.e5m2"), ("rtxpro6000", E5M2)), -0.75),
        ("MI100 (CDNA1)", (("mi100", "mfma.f32_16x16x16f16"),), -0.875),
        ("MI250X (CDNA2) fp16", (("mi250x", "mfma.f32_16x16x16f16"),), 0.0),
        ("MI300X (CDNA3) fp16", (("mi300x", "mfma.f32_16x16x16_f16"),), -0.5),
        ("MI250X (CDNA2) bf16 without _1k", (("mi250x", "mfma.f32_16x16x8bf16"),), -0.375),
        ("MI300X (CDNA3) bf8", (("mi300x", "mfma.f32_16x16x32_bf8_bf8"),), -1.0),
    )
]  # fmt: skip

# FP8 mma.sync where there is no unit for it: which products share a block? 1, and 2^-24 at k = 1 and at one other k:
# the two add up to 2^-23 ("+") where all three meet in the first block, and are cut one by one elsewhere.
SEEN = "..++..++..++..++..++..++..++.."  # for k = 2 to 31
INTERLEAVE = [
    Probe(KM, "H100/H200/B200", tuple((chip, E5M2) for chip in ("h100", "h200", "b200")), small, small, 0.0, d)
    for small, d in (
        ((1.0, 2**-12, *(0.0,) * (k - 2), 2**-12), 1 + 2**-23 if seen == "+" else 1.0)
        for k, seen in enumerate(SEEN, start=2)
    )
]
PROBES = ALIGNMENT + EQUATION_10 + INTERLEAVE
CASES = [pytest.param(p, m, id=f"{i}-{m}") for i, p in enumerate(PROBES) for m in p.models]


@pytest.mark.parametrize(("probe", "model"), CASES)
def test_what_the_chip_answered(probe, model):
    a, b, c, d = probe.codes(model)
    assert dot(a, b, c, model) == d
    assert oracle.dot(a, b, c, model) == d
    fast = kernel_dots(model, [(a, b, c, [], [])])
    assert fast is None or fast == [d]


@pytest.mark.skipif(not JSON.is_file(), reason=f"no {JSON}")
def test_table_is_what_was_collected():
    """The 52 probes as they were taken down from the papers, independently of this file."""
    kinds = {"fp16": "f16", "bf16": "bf16", "e5m2": "e5m2", "e5m2fnuz": "bf8"}

    def row(source, gpu, kind, a, b, c, d):
        pad = (0.0,) * (32 - len(a))
        d = float(np.float32(d))  # printed in decimal
        return source, gpu, kind, (*map(float, a), *pad), (*map(float, b), *pad), float(c), d

    found = json.loads(JSON.read_text(encoding="utf-8"))["probes"]
    theirs = sorted(
        row(p["source"].split(" (stated")[0], p["gpu"], kinds[p["input"].split()[0]], p["a"], p["b"], p["c"], p["d"])
        for p in found
    )
    assert sorted(row(p.source, p.gpu, p.models[0].a, p.a, p.b, p.c, p.d) for p in PROBES) == theirs
    assert len(theirs) == 52 and {p["output"] for p in found} == {"fp32"}
