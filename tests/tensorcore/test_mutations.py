"""If a unit were a little different, would anything here notice? Every parameter is changed; what notices is stated.

Three kinds of evidence: crafted and seeded vectors whose results the outsider gives (``oracle.py``, public), hand-made
probes of real chips from two papers (public), and the first 2,000 results of recordings (where they are at hand).
"""

from dataclasses import replace
from functools import cache

import pytest

from numsim.tensorcore import get_model
from numsim.tensorcore.block import dot
from tests.tensorcore import oracle
from tests.tensorcore.oracle import code, decode, power
from tests.tensorcore.recordings import RECORDINGS, needed
from tests.tensorcore.test_oracle import kernel_dots
from tests.tensorcore.test_paper_probes import PROBES


def run(model, inputs):
    """Results by the kernel, or by the reference where there is none."""
    fast = kernel_dots(model, inputs)
    return [dot(a, b, c, model, sa, sb) for a, b, c, sa, sb in inputs] if fast is None else fast


# --- what is changed -------------------------------------------------------------------------------------------------
def unit(**changes):
    """Other parameters of the unit; a function is applied to what was there."""

    def mutated(model, inputs):
        new = {key: x(getattr(model.unit, key)) if callable(x) else x for key, x in changes.items()}
        return run(replace(model, unit=replace(model.unit, **new)), inputs)

    return mutated


def more(n):
    return lambda x: x + n


def double(model, inputs):
    return run(replace(model, k=2 * model.k, unit=replace(model.unit, length=2 * model.unit.length)), inputs)


def c_late(model, inputs):
    """The products from zero; c is added to their sum, to nearest."""
    sums = run(model, [(a, b, 0, sa, sb) for a, b, _, sa, sb in inputs])
    cs = [decode(x[2], model.c) for x in inputs]
    return [oracle.nearest([decode(s, model.d), c], model, model.d) for s, c in zip(sums, cs, strict=True)]


def through_fp32(model, inputs):
    """FP16 results are cut to FP32 first."""
    length = min(model.unit.length, model.k)
    wide = replace(model, k=length, d="f32", unit=replace(model.unit, output="rz-fp32"))
    cs = [x[2] for x in inputs]
    for first in range(0, len(inputs[0][0]), length):
        here = slice(first, first + length)
        sums = run(wide, [(x[0][here], x[1][here], c, [], []) for x, c in zip(inputs, cs, strict=True)])
        cs = [oracle.nearest([decode(s, "f32")], model, "f16") for s in sums]
        cs = [c if c & 0x7FFF else 0 for c in cs]
    return cs


def reordered(inputs, where):
    return [([a[k] for k in where], [b[k] for k in where], c, sa, sb) for a, b, c, sa, sb in inputs]


def blocks_reversed(model, inputs):
    """Blocks, and instructions, from the last to the first."""
    size, length = len(inputs[0][0]), min(model.unit.length, model.k)
    where = [k for first in range(size - length, -1, -length) for k in range(first, first + length)]
    return run(model, [(a, b, c, sa[::-1], sb[::-1]) for a, b, c, sa, sb in reordered(inputs, where)])


def paired(in_first):
    """FP8 through FP16 with other products in the first block: the unit takes k mod 4 = 0, 1."""

    def mutated(model, inputs):
        where = []
        for first in range(0, len(inputs[0][0]), model.k):
            groups = [[k for k in range(model.k) if in_first(k, model.k) == yes] for yes in (True, False)]
            where += [first + groups[k % 4 // 2].pop(0) for k in range(model.k)]
        return run(model, reordered(inputs, where))

    return mutated


def c_early(model, inputs):
    """FP8 through FP16 with c in the first block."""
    pairs = [k for pair in ((0, 1), (2, 3)) for k in range(model.k) if k % 4 in pair]
    where = [first + k for first in range(0, len(inputs[0][0]), model.k) for k in pairs]
    return run(replace(model, unit=replace(model.unit, path="block")), reordered(inputs, where))


CUT = {
    "F + 1": unit(fraction_bits=more(1)), "F - 1": unit(fraction_bits=more(-1)), "cut down": unit(align="down"),
    "cut to nearest": unit(align="nearest-even"), "floor + 1": unit(floor=more(1)), "floor - 1": unit(floor=more(-1)),
}  # fmt: skip
HALF = {"half block": unit(length=lambda x: x // 2)}
NORMALISED = {"normalised": unit(normalised=True)}
CHAIN = {"double block": double, "c late": c_late, "blocks reversed": blocks_reversed}
PAIRS = {
    "halves": paired(lambda k, size: 2 * k < size), "even and odd": paired(lambda k, size: k % 2 == 0),
    "k mod 8 < 4": paired(lambda k, size: k % 8 < 4), "pairs reversed": paired(lambda k, size: k % 4 in (2, 3)),
    "c early": c_early,
}  # fmt: skip


def outputs(model):
    """The other output rules of the same result type."""
    if model.d == "f16":
        return {} if model.unit.path == "fp8-as-fp16" else {"through FP32": through_fp32}
    return {x: unit(output=x) for x in ("rz-fp32", "rz-e8m13", "rne-fp32") if x != model.unit.output}


def mutations(model):
    path = model.unit.path
    if path == "block":
        return CUT | HALF | NORMALISED | CHAIN | outputs(model)
    if path == "fp8-as-fp16":
        return CUT | HALF | NORMALISED | PAIRS | outputs(model)
    if path == "groups":
        alone = {"no groups": unit(path="block")} if model.scale == "ue8m0" else {}
        return CUT | CHAIN | alone | outputs(model)
    amd = {x: unit(path=x) for x in ("exact", "pairwise", "cdna3", "cdna3-fp8") if x != path}
    if path.startswith("cdna3"):
        amd |= {key: CUT[key] for key in ("F + 1", "F - 1")}
    return amd | HALF | CHAIN


def hidden(model):
    """What no input can show: the floor, where the least product is far above it; FP32 where it holds every sum."""
    tiny = model.a in ("bf16", "tf32") or (model.a, model.d) == ("f16", "f16") or model.scale == "ue8m0"
    nothing = set() if tiny else {"floor + 1", "floor - 1"}
    nothing |= {"through FP32"} if model.unit.fraction_bits == 13 else set()
    return nothing & set(mutations(model))


# --- crafted vectors: everywhere -------------------------------------------------------------------------------------
def at_the_floor(model):
    """2^-149 less a little (FP16: a tie and a little), which is the last bit that is kept, or the first that is not."""
    result, size = [], 2 * model.k
    for last in (model.unit.floor - model.unit.fraction_bits, model.unit.floor - model.unit.fraction_bits - 1):
        a, b, sa, sb, second = [0] * size, [0] * size, [], [], model.scale_block % model.k or 1
        if model.scale:  # 2^-75 * 2^-74 for the first products, and for the second, if they have their own ...
            sa, sb = [52] * (size // model.scale_block), [53] * (size // model.scale_block)
            small = (0.5, -0.5) if second > 1 else (power(-4), -power(last + 149 + 4))
            if second > 1:  # ... -2^-2 times their scales
                sb[1] = last + 2 + 75 + 127
            pairs = ((1, 1), small)
        elif model.d == "f16":
            pairs = (power(-12), power(-13)), (power(-23), power(last + 23))
        else:
            pairs = (power(-75), power(-74)), (power(-79), -power(last + 79))
        for k, (x, y) in zip((0, second), pairs, strict=True):
            a[k], b[k] = code(x, model.a), code(y, model.b)
        result.append((a, b, 0, sa, sb))
    return result


def beside_a_tie(model):
    """512 + 1/4, a tie of FP16, and the last bit that is kept, which FP32 does not hold."""
    pairs = (16, 16), (16, 16), (0.5, 0.5), (power(12 - model.unit.fraction_bits), power(-4))
    pad = [0] * (2 * model.k - 4)
    a, b = ([code(pair[i], kind) for pair in pairs] for i, kind in ((0, model.a), (1, model.b)))
    return [(a + pad, b + pad, 0, [], [])]


FAMILIES = [
    get_model(*name.split())
    for name in (
        "v100 mma.m8n8k4.f32.f16.f16.f32", "v100 mma.m8n8k4.f16.f16.f16.f16", "t4 mma.m16n8k8.f32.f16.f16.f32",
        "a100 mma.m16n8k16.f32.f16.f16.f32", "a100 mma.m16n8k16.f16.f16.f16.f16", "a100 mma.m16n8k8.f32.bf16.bf16.f32",
        "a100 mma.m16n8k8.f32.tf32.tf32.f32", "l40s mma.m16n8k32.f32.e4m3.e4m3.f32",
        "rtx1000ada mma.m16n8k32.f16.e5m2.e5m2.f16", "h200 mma.m16n8k16.f32.f16.f16.f32",
        "h200 mma.m16n8k16.f16.f16.f16.f16", "h200 mma.m16n8k16.f32.bf16.bf16.f32",
        "h200 mma.m16n8k8.f32.tf32.tf32.f32", "h200 wgmma.m64n256k32.f32.e4m3.e4m3",
        "h200 wgmma.m64n256k32.f16.e5m2.e5m2", "h200 mma.m16n8k32.f32.e4m3.e4m3.f32",
        "h200 mma.m16n8k32.f16.e5m2.e5m2.f16", "b200 tcgen05.m128n256k32.kind::f8f6f4.f32.e4m3.e2m1",
        "b200 tcgen05.m128n256k32.kind::f8f6f4.f16.e5m2.e3m2",
        "b200 tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0",
        "b200 tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0",
        "rtxpro6000 mma.m16n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.f32.ue4m3",
        "mi100 mfma.f32_16x16x16f16", "mi100 mfma.f32_16x16x8bf16", "mi250x mfma.f32_16x16x16f16",
        "mi300x mfma.f32_16x16x16_f16", "mi300x mfma.f32_16x16x32_fp8_fp8",
    )
]  # fmt: skip


@cache
def crafted(model):
    """Vectors for two instructions in a chain, and what the outsider makes of them."""
    inputs = oracle.vectors(model, 90, 5, instructions=2)
    if "floor + 1" in mutations(model) and "floor + 1" not in hidden(model):
        inputs += at_the_floor(model)
    if "through FP32" in mutations(model) and "through FP32" not in hidden(model):
        inputs += beside_a_tie(model)
    return inputs, [oracle.dot(a, b, c, model, sa, sb) for a, b, c, sa, sb in inputs]


@pytest.mark.parametrize("model", FAMILIES, ids=str)
def test_crafted_vectors_notice_everything(model):
    inputs, expected = crafted(model)
    assert run(model, inputs) == expected
    noticed = {name for name, mutated in mutations(model).items() if mutated(model, inputs) != expected}
    assert noticed == set(mutations(model)) - hidden(model)


# --- hand-made probes of papers: everywhere --------------------------------------------------------------------------
# How many of the 113 answers (a probe on a chip) another unit would not have given.
PAPERS = {
    "F + 1": 13, "F - 1": 13, "half block": 28, "double block": 1, "cut down": 11, "cut to nearest": 0,
    "normalised": 3, "floor + 1": 0, "floor - 1": 0, "rz-e8m13": 45, "rz-fp32": 0, "rne-fp32": 0, "c late": 13,
    "c early": 0, "blocks reversed": 1, "halves": 48, "even and odd": 45, "k mod 8 < 4": 48, "pairs reversed": 48,
    "exact": 4, "pairwise": 3, "cdna3": 3, "cdna3-fp8": 4,
}  # fmt: skip


def test_what_the_papers_notice():
    noticed = dict.fromkeys(PAPERS, 0)
    for probe in PROBES:
        for model in probe.models:
            a, b, c, d = probe.codes(model)
            zeros = [0] * model.k
            for name, mutated in mutations(model).items():
                longer = zeros if name == "double block" else []
                noticed[name] += mutated(model, [(a + longer, b + longer, c, [], [])]) != [d]
    assert noticed == PAPERS
    assert sum(len(probe.models) for probe in PROBES) == 113


# --- recordings: where they are --------------------------------------------------------------------------------------
# Of the first 2,000 results of a recording, how many another unit would not have given. What a column does not show
# (the floor, L = 8 of TF32 on Hopper, all but L of FP16 results) rests on the papers, and so the evidence says.
COLUMNS = (
    "F + 1", "F - 1", "half block", "cut down", "cut to nearest", "normalised", "rne-fp32", "c late", "blocks reversed",
    "floor + 1",
)  # fmt: skip
RECORDED = {
    "V100 fp16 -> fp32": (483, 946, 327, 336, 559, 337, 253, 667, 0, 0),
    "A100 fp16 -> fp32": (300, 646, 491, 340, 398, 253, 500, 662, 0, 0),
    "A100 bf16 -> fp32": (163, 414, 298, 11, 173, 138, 504, 617, 0, 0),
    "A100 tf32 -> fp32": (179, 469, 345, 147, 220, 173, 464, 583, 0, 0),
    "RTX 1000 Ada E4M3 -> fp32": (618, 1077, 411, 541, 772, 220, 435, 2000, 658, 0),
    "H100 fp16 -> fp32": (211, 484, 637, 316, 288, 159, 710, 603, 0, 0),
    "H100 tf32 -> fp32": (58, 198, 0, 50, 72, 51, 554, 560, 0, 0),
    "H100 E4M3 -> fp32": (356, 780, 331, 408, 368, 189, 586, 0, 0, 0),
    "B200 bf16 -> fp32": (79, 195, 369, 9, 67, 50, 631, 647, 0, 0),
}
COLUMNS_FP16 = (
    "F + 1", "F - 1", "half block", "cut down", "cut to nearest", "normalised", "c late", "through FP32",
)  # fmt: skip
RECORDED_FP16 = {
    "V100 fp16 -> fp16": (0, 0, 528, 0, 0, 0, 618, 0),
    "A100 fp16 -> fp16": (0, 1, 514, 1, 0, 0, 633, 0),
    "RTX 1000 Ada E4M3 -> fp16": (106, 289, 631, 122, 123, 35, 754, 0),
    "H100 fp16 -> fp16": (1, 0, 544, 1, 1, 0, 539, 0),
    "B200 fp16 -> fp16": (0, 1, 539, 0, 0, 1, 562, 1),
}
COLUMNS_PAIRS = ("half block", "halves", "even and odd", "k mod 8 < 4", "pairs reversed", "c early")
RECORDED_PAIRS = {
    "H100 E4M3 -> fp16": (535, 607, 624, 603, 581, 768),
    "H100 E5M2 -> fp16": (341, 474, 469, 461, 499, 715),
    "B200 E4M3 -> fp32": (0, 0, 0, 0, 0, 886),
    "B200 E4M3 -> fp16": (544, 596, 635, 597, 593, 763),
}
TABLES = ((COLUMNS, RECORDED), (COLUMNS_FP16, RECORDED_FP16), (COLUMNS_PAIRS, RECORDED_PAIRS))


@needed
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        pytest.param(name, dict(zip(columns, row, strict=True)), id=name)
        for columns, rows in TABLES
        for name, row in rows.items()
    ],
)
def test_what_recordings_notice(name, counts):
    recording = next(r for r in RECORDINGS if r.name == name)
    *operands, d = (x.tolist() for x in recording.load(2000))
    inputs = [(a, b, c, [], []) for a, b, c in zip(*operands, strict=True)]
    noticed = {}
    for mutation in counts:
        results = mutations(recording.model)[mutation](recording.model, inputs)
        noticed[mutation] = sum(x != y for x, y in zip(results, d, strict=True))
    assert noticed == counts
