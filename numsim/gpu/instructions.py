"""Tensor-core instructions as tiles: shape, types, and the GPUs that have them.

Source of what exists where: NVIDIA, Parallel Thread Execution ISA 9.0, sections 9.7.14.4 (wmma),
9.7.14.5 (mma), 9.7.15 (wgmma), 9.7.16 (tcgen05).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from numsim.tensorcore.chips import TITLES
from numsim.tensorcore.models import Model
from numsim.tensorcore.names import list_chips, list_models

Capability = tuple[int, int]

WARP, WARPGROUP = 32, 128
SEEN: frozenset[tuple[str, str]] = frozenset()  # family and kind of those that a record in tests/records has
FP8 = ("e4m3", "e5m2")
STORED = {  # bits of an element; TF32 is an FP32 word, and where FP6 and FP4 share bytes, blackwell.py packs them
    "f64": 64, "f32": 32, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "e3m2": 8, "e2m3": 8, "e2m1": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """One instruction: its family, tile and types.

    >>> from numsim.tensorcore import get_model
    >>> i = Instruction.of(get_model("a100", "mma.m16n8k16.f32.f16.f16.f32"))
    >>> i.m, i.n, i.k, i.a, i.threads, i.registers("a")
    (16, 8, 16, 'f16', 32, 4)
    """

    family: str  # mma, wmma, wgmma or tcgen05
    m: int
    n: int
    k: int
    d: str
    a: str
    b: str
    c: str
    kind: str = ""
    scale: str = ""
    scale_block: int = 0

    @classmethod
    def of(cls, model: Model) -> Instruction:
        """The tile in which the GPU runs a record's instruction: M and N do not change the arithmetic.

        wgmma's is the narrowest, 64 x 8, whose b cannot be laid out in two ways; tcgen05's is 128 x 16.
        """
        family, shape, *rest = model.instruction.split(".")
        kind = rest[0].removeprefix("kind::") if rest[0].startswith("kind::") else ""
        m, n, k = map(int, re.findall(r"\d+", shape))
        n = {"wgmma": 8, "tcgen05": 16}.get(family, n)
        return cls(family, m, n, k, model.d, model.a, model.b, model.c, kind, model.scale, model.scale_block)

    @property
    def shape(self) -> str:
        return f"m{self.m}n{self.n}k{self.k}"

    @property
    def name(self) -> str:
        """As numsim writes it."""
        kind = [f"kind::{self.kind}"] if self.kind else []
        block = [f"block{self.scale_block}"] if self.scale else []
        types = [self.d, self.a, self.b, *[self.c] * (self.family in ("mma", "wmma"))]
        return ".".join([self.family, self.shape, *kind, *block, *types, *[self.scale] * bool(self.scale)])

    @property
    def threads(self) -> int:
        return WARPGROUP if self.family in ("wgmma", "tcgen05") else WARP

    @property
    def groups(self) -> int:
        """Tiles that one instruction computes: FP16's m8n8k4 gives one to each quarter of the warp."""
        return 4 if self.shape == "m8n8k4" and self.a == "f16" else 1

    @property
    def scales(self) -> int:
        """Block scales of a row of a or b, or 0."""
        return self.k // self.scale_block if self.scale else 0

    def tile(self, operand: str) -> tuple[int, int]:
        """Shape of a: (M, K), of b: (N, K), of c and d: (M, N); a row's block scales stand behind its elements."""
        k = self.k + self.scales
        return {"a": (self.m, k), "b": (self.n, k)}.get(operand, (self.m, self.n))

    def stored(self, operand: str) -> tuple[int, int]:
        """Shape of what is stored of the elements: where two FP4 share a byte, there are K / 2 bytes in a row."""
        rows, columns = self.tile(operand)
        return rows, columns if operand in "cd" else self.k // (2 if self.k == 64 else 1)

    def bits(self, operand: str) -> int:
        """Of an element, as it is stored. In tensor memory an FP16 has a word to itself."""
        return 32 if self.family == "tcgen05" and operand in "cd" else STORED[getattr(self, operand)]

    def scale_words(self, operand: str) -> int:
        """Words of 32 bits of the block scales: one for each thread of a warp, or 32 lanes of tensor memory by as many
        columns as it takes for one row each."""
        return WARP * -(-self.tile(operand)[0] // WARP) if self.scale and operand in "ab" else 0

    def words(self, operand: str) -> int:
        """Words of 32 bits of all tiles and, behind them, of their block scales."""
        rows, columns = self.stored(operand)
        return self.groups * rows * columns * self.bits(operand) // 32 + self.scale_words(operand)

    def registers(self, operand: str) -> int:
        """Words of elements that each thread holds."""
        return (self.words(operand) - self.scale_words(operand)) // self.threads


# --- GPUs -------------------------------------------------------------------------------------------------------------
def target(capability: Capability) -> str:
    """The architecture to compile for; from 9.0 on with the features of this one only, which wgmma is.

    >>> target((8, 9)), target((9, 0))
    ('sm_89', 'sm_90a')
    """
    return f"sm_{capability[0]}{capability[1]}" + "a" * (capability >= (9, 0))


@cache
def capability_of(chip: str) -> Capability | None:
    """The compute capability of a chip that numsim has records of; None where it is no NVIDIA GPU.

    >>> capability_of("h200"), capability_of("mi300x")
    ((9, 0), None)
    """
    found = re.search(r"sm_(\d+)(\d)", TITLES[chip])
    return (int(found[1]), int(found[2])) if found else None


def chip_of(device: str, capability: Capability) -> str:
    """numsim's name of a GPU, or of the chip of the same compute capability whose records are the surest, or "".

    >>> chip_of("NVIDIA H200", (9, 0)), chip_of("NVIDIA GeForce RTX 3090", (8, 6)), chip_of("NVIDIA GB10", (12, 1))
    ('h200', 'a2', '')
    """
    words = re.split(r"[\s_-]+", re.sub(r"nvidia|geforce|tesla", "", device.lower()).strip())
    names = ["".join(words[:n]) for n in (1, 2, 3)]  # "RTX 4090" is one name
    alike = [chip for chip in list_chips() if capability_of(chip) == capability]
    if own := [chip for chip in alike if chip in names]:
        return own[0]
    sure = {chip: sum(m.evidence.level == "validated" for m in list_models(chip)) for chip in alike}
    return max(alike, key=lambda chip: sure[chip], default="")


def never_run(i: Instruction) -> bool:
    """Whether no record of a GPU shows numsim's kernel for it at work: then only its own check, which every process
    makes first (``units.check_placement``), speaks for where it puts elements and scales.

    >>> from numsim.tensorcore import get_model
    >>> never_run(Instruction.of(get_model("h200", "wgmma.m64n256k16.f32.f16.f16")))
    True
    """
    return (i.family, i.kind) not in SEEN


def why_missing(i: Instruction, capability: Capability) -> str:
    """Why a GPU of this compute capability has no such unit, or ""."""
    if i.family == "wgmma":
        return "" if capability == (9, 0) else "wgmma exists on compute capability 9.0 only"
    if i.family == "tcgen05":
        return "" if capability[0] == 10 else "tcgen05 exists on compute capability 10.x only"
    if i.kind:
        return "" if capability[0] == 12 else "mma with kind:: exists on compute capability 12.x only"
    if i.groups == 4:
        return "" if capability[0] == 7 else "tensor cores compute m8n8k4 of FP16 on compute capability 7.x only"
    if i.d == "f64" and i.shape != "m8n8k4":
        return "" if capability >= (9, 0) else f"FP64 {i.shape} needs compute capability 9.0"
    least = (8, 9) if i.a in FP8 else (7, 5) if (i.a, i.k) == ("f16", 8) else (8, 0)
    return "" if capability >= least else f"needs compute capability {least[0]}.{least[1]}"
