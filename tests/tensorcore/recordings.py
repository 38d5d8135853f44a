"""What real chips answered: 48 sets of 5,000 recorded results, and which instruction made each.

github.com/north-numerical-computing/MATLAB-tensor-core, snapshot b12b5a7 (BSD-2-Clause), model_validation/. They are
not part of this repository: a folder ``shared`` beside the checkout holds them (or NUMSIM_SHARED names it).
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from numsim.tensorcore import get_model

SHARED = Path(os.environ.get("NUMSIM_SHARED") or Path(__file__).resolve().parents[3] / "shared")
FOLDER = SHARED / "hardware-logs" / "matlab-tensor-core"
needed = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no recordings of chips at {FOLDER}")

CHIPS = {
    "V100": "v100", "A100": "a100", "A2": "a2", "Ada": "rtx1000ada", "L40S": "l40s", "H100": "h100", "H200": "h200",
    "B200": "b200",
}  # fmt: skip
TITLES = {"Ada": "RTX 1000 Ada"}  # the others are called like their files
TYPES = {"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "E4M3": "e4m3", "E5M2": "e5m2"}
_AMPERE = {
    ("fp16", "f32"): "mma.m16n8k8.f32.f16.f16.f32", ("fp16", "f16"): "mma.m16n8k8.f16.f16.f16.f16",
    ("bf16", "f32"): "mma.m16n8k8.f32.bf16.bf16.f32", ("tf32", "f32"): "mma.m16n8k4.f32.tf32.tf32.f32",
}  # fmt: skip
_FP8_F32 = {(t, "f32"): f"mma.m16n8k32.f32.{t.lower()}.{t.lower()}.f32" for t in ("E4M3", "E5M2")}
_FP8_F16 = {(t, "f16"): f"mma.m16n8k32.f16.{t.lower()}.{t.lower()}.f16" for t in ("E4M3", "E5M2")}
_FROM_HOPPER = {
    ("fp16", "f32"): "mma.m16n8k16.f32.f16.f16.f32", ("fp16", "f16"): "mma.m16n8k16.f16.f16.f16.f16",
    ("bf16", "f32"): "mma.m16n8k16.f32.bf16.bf16.f32", ("tf32", "f32"): "mma.m16n8k8.f32.tf32.tf32.f32",
}  # fmt: skip
_WGMMA = {(t, "f32"): f"wgmma.m64n256k32.f32.{t.lower()}.{t.lower()}" for t in ("E4M3", "E5M2")}  # c = 0
INSTRUCTIONS = {
    "V100": {("fp16", "f32"): "mma.m8n8k4.f32.f16.f16.f32", ("fp16", "f16"): "mma.m8n8k4.f16.f16.f16.f16"},
    "A100": _AMPERE, "A2": _AMPERE, "Ada": _AMPERE | _FP8_F32 | _FP8_F16, "L40S": _AMPERE | _FP8_F32,
    "H100": _FROM_HOPPER | _WGMMA | _FP8_F16, "H200": _FROM_HOPPER | _WGMMA | _FP8_F16,
    "B200": _FROM_HOPPER | _FP8_F32 | _FP8_F16,
}  # fmt: skip


@dataclass(frozen=True)
class Recording:
    gpu: str  # as the files are called
    type: str
    output: str
    instruction: str

    @property
    def chip(self):
        return CHIPS[self.gpu]

    @property
    def model(self):
        return get_model(self.chip, self.instruction)

    @property
    def name(self):
        """As evidence names it."""
        return f"{TITLES.get(self.gpu, self.gpu)} {self.type} -> fp{self.output[1:]}"

    @property
    def path(self):
        return FOLDER / f"{self.gpu}__{self.type}.npz"

    def load(self, count=None):
        """Codes a, b (n, K), c (n,) and the chip's d (n,); what is not populated of K is zero."""
        with np.load(self.path) as file:
            a, b, d = (file[key][:count] for key in ("A", "B", f"D_{self.output}"))
            c = np.zeros_like(d) if self.instruction.startswith("wgmma") else file[f"C_{self.output}"][:count]
        more = ((0, 0), (0, self.model.k - a.shape[1]))
        return np.pad(a, more), np.pad(b, more), c, d


RECORDINGS = [
    Recording(gpu, kind, output, instruction)
    for gpu, made_by in INSTRUCTIONS.items()
    for (kind, output), instruction in made_by.items()
]
