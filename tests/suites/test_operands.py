"""The sets of operands: the same for the same seed, codes of their formats, and what their names say."""

import hashlib
import zlib
from fractions import Fraction

import numpy as np
import pytest

from numsim.codes import check_codes, exact
from numsim.gpu.instructions import Instruction
from numsim.suites import operands
from numsim.suites.operands import TYPES, Draw, Sets, matrices
from numsim.tensorcore import get_model, list_models
from numsim.tensorcore.models import TYPES as FORMATS
from numsim.tensorcore.models import word_format

F16, BF16 = "mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k16.f32.bf16.bf16.f32"
TF32, F64 = "mma.m16n8k8.f32.tf32.tf32.f32", "mma.m8n8k4.f64.f64.f64.f64"
NVFP4 = "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"


def instruction(name, chip="h200"):
    return Instruction.of(get_model(chip, name))


def sets(name, chip="h200", seed=1, **more):
    return dict(Sets(instruction(name, chip), seed, **more))


def test_the_same_for_the_same_seed():
    first, again, other = (list(sets(F16, seed=seed).values()) for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for a, b in zip(first, again, strict=True) for x, y in zip(a, b, strict=True))
    assert not any(np.array_equal(x, y) for a, b in zip(first[:3], other[:3], strict=True)
                   for x, y in zip(a, b, strict=True))  # fmt: skip
    # the stream is PCG64's own, which no version of NumPy changes
    assert hashlib.sha256(b"".join(x.tobytes() for a in first for x in a)).hexdigest()[:16] == "94756ea22008e3aa"


@pytest.mark.parametrize("chip", ["v100", "t4", "a100", "l40s", "h200", "b200", "rtx5090"])
def test_codes_of_every_instruction(chip):
    """In numsim's shapes, of the formats that its record names; every set that the formats can express is there."""
    for model in list_models(chip):
        i = Instruction.of(model)
        found = dict(Sets(i, 3, outputs=16))
        assert {"bits", "finite", "near", "ladder", "special", "zeros", "overflow"} <= set(found), model
        assert ("scales" in found) == ("scale special" in found) == bool(model.scale)
        assert ("K x 4" in found) == (model.c == model.d)
        for name, (a, b, c, *scales) in found.items():
            k = i.k * int(name[4:] if name.startswith("K x") else 1)
            assert a.shape[2] == b.shape[2] == k and c.shape == (len(a), a.shape[1], b.shape[1]), (model, name)
            assert len(scales) == 2 * bool(model.scale)
            for x, t in zip((a, b, c, *scales), (model.a, model.b, model.c, model.scale, model.scale), strict=False):
                check_codes(x, word_format(t))
                assert x.itemsize == word_format(t).code_bytes
            for x, y in zip(scales, (a, b), strict=False):
                assert x.shape == (*y.shape[:2], k // model.scale_block)


def test_sets_hold_what_their_names_say():
    f16, bf16 = sets(F16), sets(BF16)
    a = f16["special"][0]
    assert {0x7C00, 0xFC00, 0x0000, 0x8000, 0x7BFF, 0x0001} <= set(a.ravel().tolist())
    assert len({int(x) for x in a.ravel() if x & 0x7FFF > 0x7C00}) > 5  # NaN payloads
    assert not any((x & 0x7C00 == 0x7C00).any() for x in f16["finite"][:2])
    assert (f16["subnormal"][0] & 0x7C00 == 0).any() and (f16["subnormal"][2] & 0x7F800000 == 0).any()
    assert {0x0000, 0x8000} <= set(f16["zeros"][1].ravel().tolist())
    assert "floor" in bf16 and "floor" not in f16  # FP16 products are never that small
    assert len(set((sets(TF32)["near"][0] & 0x1FFF).ravel().tolist())) > 100  # bits that the unit ignores are there
    assert (f16["overflow"][2] & 0x7FFFFFFF == 0x7F7FFFFF).any()


def test_fp64_has_all_its_bits():
    found = sets(F64)
    for name in ("bits", "near"):
        a = found[name][0].ravel()
        assert np.bitwise_or.reduce(a & np.uint64((1 << 52) - 1)) == (1 << 52) - 1 and (a >> np.uint64(63)).any()
    values = found["finite"][0].view(np.float64)
    assert np.isfinite(values).all() and np.isnan(found["special"][0].view(np.float64)).any()
    assert (np.abs(found["subnormal"][0].view(np.float64)) < 2.0**-1022).any()


def test_block_scales():
    mx = "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e5m2.ue8m0"
    for instruction_name, nan, usual in ((NVFP4, 0x7F, range(0x30, 0x48)), (mx, 0xFF, range(126, 129))):
        found = sets(instruction_name, "b200")
        named = ("near", "scales", "scale special")
        near, wide, ends = ({int(code) for x in found[name][3:] for code in x.ravel()} for name in named)
        assert near <= set(usual) and len(near) > 2
        assert len(wide) > 3 * len(usual) // 2 and nan not in wide and {0, 1, nan - 1, nan} <= ends


@pytest.mark.parametrize("name", TYPES)
def test_powers_and_ends_are_codes(name):
    t, format, stored = TYPES[name], FORMATS[name], word_format(name)
    for e in range(max(t.least, -160), min(t.emax, 20) + 1):
        assert exact(int(operands.powers(e, t)), stored) == Fraction(2) ** e
    assert operands.powers(t.least - 1, t) == 0 == operands.powers(t.emax + 1, t)
    assert exact(t.largest >> t.ignored, format) == format.max
    assert exact(int(operands.powers(t.least, t)) >> t.ignored, format) == Fraction(2) ** (
        format.emin - format.fraction_bits
    )
    count = min(t.fraction_bits + 1, 3)
    assert exact(int(operands.ones(count, 0, t)), stored) == sum(Fraction(2) ** -n for n in range(count))


def test_whole_numbers_are_drawn_evenly():
    drawn = Draw(1).integers(-2, 2, (10_000,))
    assert np.bincount(drawn + 2).min() > 1800 and set(drawn.tolist()) == {-2, -1, 0, 1, 2}


def test_matrices_are_small_in_a_record():
    a, b, c = matrices(instruction(F16), 1)
    assert (a.shape, b.shape, c.shape) == ((256, 1, 1024), (1, 128, 1024), (128,))
    assert np.array_equal(a[1, 0, :-3], a[0, 0, 3:]) and np.array_equal(b[0, 1, :-5], b[0, 0, 5:])
    assert len(zlib.compress(a.tobytes())) < a.nbytes / 50
    assert len({row.tobytes() for row in a[:, 0]}) == 256
