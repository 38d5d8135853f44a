"""An outsider: mmasim, by the first author of the paper that most records rest on (arXiv:2511.10909), bit for bit.

Every record whose instruction mmasim has, on numbers of one size and of all kinds, special values and random bits. It
is no dependency: the tests run where mmasim 2.1.1 and torch are importable, and are skipped elsewhere.
"""

import numpy as np
import pytest

from numsim import kernels
from numsim.formats import BF16, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0, FP16, FP32, FP64, UE4M3
from numsim.tensorcore import list_chips, list_models, products
from numsim.tensorcore.models import word_format
from tests.kernels.test_tensorcore import CASES, KINDS, operands, scales, starts

torch = pytest.importorskip("torch", reason="mmasim needs torch")
try:
    from mmasim.amd import MFMA
    from mmasim.nv_ptx import MMA, WGMMA, MMABlockScale, TCGen05MMA, TCGen05MMABlockScale
except Exception as why:  # not installed, or its C++ does not compile here
    pytest.skip(f"mmasim cannot be imported ({type(why).__name__})", allow_module_level=True)

ARCHITECTURES = {
    "v100": "Volta", "t4": "Turing", "a100": "Ampere", "a30": "Ampere", "a2": "Ampere", "l40s": "Ada Lovelace",
    "rtx4090": "Ada Lovelace", "rtx1000ada": "Ada Lovelace", "h100": "Hopper", "h200": "Hopper", "b200": "Blackwell",
    "rtx5090": "RTX Blackwell", "rtxpro6000": "RTX Blackwell", "mi100": "CDNA1", "mi250x": "CDNA2", "mi300x": "CDNA3",
}  # fmt: skip
CLASSES = {
    "mma": (MMA, MMABlockScale), "wgmma": (WGMMA,), "tcgen05": (TCGen05MMA, TCGen05MMABlockScale), "mfma": (MFMA,)
}  # fmt: skip
TORCH = {
    FP16: torch.float16, BF16: torch.bfloat16, FP32: torch.float32, FP64: torch.float64, E4M3: torch.float8_e4m3fn,
    E5M2: torch.float8_e5m2, E4M3FNUZ: torch.float8_e4m3fnuz, E5M2FNUZ: torch.float8_e5m2fnuz,
    E8M0: torch.float8_e8m0fnu, UE4M3: torch.float8_e4m3fn,
}  # fmt: skip


def theirs(m):
    """Their object for a record, or None where they have no such instruction."""
    family, _, rest = m.instruction.partition(".")
    for each in CLASSES[family]:
        try:
            return each(ARCHITECTURES[m.chip], rest)
        except AssertionError:
            pass
    return None


def tensor(codes, type_name, packed=False):
    """Codes as they take them: FP6 in the low bits of a byte, FP4 two bits higher, or two in a byte, high one first."""
    if type_name == "e2m1":
        return torch.from_numpy(codes[..., ::2] << 4 | codes[..., 1::2] if packed else codes << 2)
    if type_name in ("e3m2", "e2m3"):
        return torch.from_numpy(codes)
    signed = np.ascontiguousarray(codes).view(f"i{codes.itemsize}")
    return torch.from_numpy(signed).view(TORCH[word_format(type_name)])


def their_answer(op, m, a, b, c, sa, sb):
    x, y = tensor(a, m.a, m.k == 64), tensor(b, m.b, m.k == 64)
    more = [tensor(s, m.scale) for s in (sa, sb) if s is not None]
    d = op.dpa(x, y, tensor(c, m.c).clone(), *more)
    return d.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[d.element_size()]).numpy()


def is_nan(codes):
    return np.isnan(codes.view(f"f{codes.itemsize}"))


def disputed(m, a, b, c):
    """Where mmasim departs from the records knowingly, and is not followed.

    CDNA3's FP8 unit drops a c far below the sum, and mmasim drops NaN and infinities with it, those of the block before
    among them. CDNA1: where c and all products are -0, its sum is +0, IEEE 754's is -0. No results of either chip are
    public.
    """
    if m.unit.path == "cdna3-fp8":
        return ((c & np.uint32(0x7F800000)) == 0x7F800000) | ((a == 0x80) | (b == 0x80)).any(axis=1)
    if m.unit.path == "exact":
        zero = ((a & 0x7FFF) == 0) | ((b & 0x7FFF) == 0)
        return (c == 0x80000000) & (zero & ((a ^ b) >= 0x8000)).all(axis=1)
    return np.zeros(len(c), bool)


def compare(m, op, n, rng):
    """One instruction, n outputs of every kind."""
    drawn = [operands(kind, m, (n, m.k), rng) for kind in KINDS]
    a, b = (np.concatenate(x) for x in zip(*drawn, strict=True))
    c = starts(m, len(a), rng)
    sa, sb = (scales(m, (len(a), m.k // m.scale_block if m.scale else 0), rng) for _ in range(2))
    with kernels.force("kernel" if kernels.why_not() is None else "reference"):
        ours = products.twin("dots", a.size, m)(a, b, c, m, sa, sb, None)
    right = their_answer(op, m, a, b, c, sa, sb).view(ours.dtype)
    if m.d == "f64" or m.chip.startswith("mi"):  # whose NaN no source describes
        ours[is_nan(ours)] = right[is_nan(right)] = m.nan
    bad = np.flatnonzero((ours != right) & ~disputed(m, a, b, c))
    if len(bad):
        i = bad[0]
        used = "; ".join(" ".join(f"{int(v):#x}" for v in x[i]) for x in (a, b, sa, sb) if x is not None)
        raise AssertionError(
            f"{m}: {len(bad)} of {len(a)} differ, first {KINDS[i // n]}: a, b {used}; c {int(c[i]):#x}: "
            f"numsim {int(ours[i]):#x}, mmasim {int(right[i]):#x}"
        )


@pytest.mark.parametrize("m", [m for m in CASES if theirs(m)], ids=lambda m: f"{m.chip} {m.instruction}")
def test_every_arithmetic(m):
    """Records that compute alike are one case here: many numbers."""
    compare(m, theirs(m), 60, np.random.default_rng(CASES.index(m)))


@pytest.mark.parametrize("chip", list_chips())
def test_every_instruction(chip):
    """Few numbers; and which instructions mmasim does not have."""
    rng = np.random.default_rng(1)
    missing = set()
    for m in list_models(chip):
        if (op := theirs(m)) is None:
            missing.add(m.unit.path)
        else:
            compare(m, op, 2, rng)
    assert missing <= {"fp8-as-fp16"}  # which no chip has as a unit


def test_a_matrix():
    """Through their own way of making a matrix product of one instruction."""
    m, op = next((m, theirs(m)) for m in list_models("h200") if m.instruction.startswith("wgmma.m64n256k16.f32.f16"))
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((64, 16)).astype(np.float16), rng.standard_normal((16, 256)).astype(np.float16)
    c = rng.standard_normal((64, 256)).astype(np.float32)
    right = op(*(torch.from_numpy(x) for x in (a, b, c))).numpy().view(np.uint32)
    got = products.twin("chains", 64 * 256 * 16, m)(
        a.view(np.uint16), b.view(np.uint16), c.view(np.uint32), m, None, None, None
    )
    assert np.array_equal(got, right)
