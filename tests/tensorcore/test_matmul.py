"""matmul against the steps that its docs name, put together here from single outputs and other libraries' rounding.

Chains come from ``block.dot``, one output at a time; every rounding outside of the tensor cores from NumPy's float32
and float16 and from ml_dtypes. Results are compared as codes.
"""

import warnings
from dataclasses import replace
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.errors import InputError
from numsim.tensorcore import Evidence, EvidenceWarning, block, get_model, matmul, mma
from numsim.tensorcore.models import TYPES, word_format

F16 = "mma.m16n8k16.f32.f16.f16.f32"
F16_F16 = "mma.m16n8k16.f16.f16.f16.f16"
TF32 = "mma.m16n8k8.f32.tf32.tf32.f32"
FP8 = "wgmma.m64n256k32.f32.e4m3.e4m3"
MX = "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e2m3.ue8m0"
NV = "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"
WIDTHS = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "e5m2": ml_dtypes.float8_e5m2}
NAN32, NAN16 = 0x7FFFFFFF, 0x7FFF


@pytest.fixture
def rng(request):
    return np.random.default_rng(sum(map(ord, request.node.name)))


def draw(rng, type_name, shape, spread=6):
    """Finite codes of some binades around 1; TF32 with all bits of the FP32 word."""
    format = word_format(type_name)
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread, shape)
    return np.asarray(numsim.encode(values, format, overflow="saturate", nan="max"))


def words(codes):
    return np.ascontiguousarray(codes, np.uint32).view(np.float32)


def codes_of(floats, canonical=NAN32):
    floats = np.asarray(floats)
    codes = np.ascontiguousarray(floats).view(f"u{floats.dtype.itemsize}")
    return np.where(np.isnan(floats.astype(np.float32)), codes.dtype.type(canonical), codes)


def chain(a, b, c, model, sa=None, sb=None):
    """Every output by itself, by the reference: a (M, K), b (K, N), c (M, N). K is padded with zeros, scales by 1."""
    more = -a.shape[1] % model.k
    out = np.zeros(c.shape, c.dtype if model.c == model.d else np.uint32)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            scales = []
            for s in (None, None) if sa is None else (sa[i], sb[:, j]):
                one = {"ue8m0": 127, "ue4m3": 0x38}.get(model.scale)
                count = (a.shape[1] + more) // model.scale_block if s is not None else 0
                scales.append([] if s is None else [*s.tolist(), *[one] * (count - len(s))])
            x, y = a[i].tolist() + [0] * more, b[:, j].tolist() + [0] * more
            out[i, j] = block.dot(x, y, int(c[i, j]), model, *scales)
    return out


def zeros(a, b, model):
    return np.zeros((a.shape[0], b.shape[1]), numsim.codes.code_dtype(TYPES[model.d]))


# --- chains -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(1, 16, 1), (3, 32, 5), (2, 37, 3), (5, 1, 2), (1, 15, 4), (4, 48, 1)])
@pytest.mark.parametrize(("chip", "name"), [
    ("h200", F16), ("h200", F16_F16), ("a100", F16), ("v100", "mma.m8n8k4.f32.f16.f16.f32"), ("h200", TF32),
    ("h200", FP8), ("l40s", "mma.m16n8k32.f16.e4m3.e5m2.f16"), ("h200", "mma.m16n8k32.f32.e5m2.e4m3.f32"),
    ("b200", "tcgen05.m128n256k32.kind::f8f6f4.f32.e3m2.e2m1"), ("h200", "mma.m16n8k8.f64.f64.f64.f64"),
    ("mi100", "mfma.f32_16x16x16f16"), ("mi250x", "mfma.f32_16x16x8bf16"), ("mi300x", "mfma.f32_16x16x32_fp8_bf8"),
])  # fmt: skip
def test_a_chain_over_k(chip, name, shape, rng):
    m, k, n = shape
    model = get_model(chip, name)
    a, b, c = draw(rng, model.a, (m, k)), draw(rng, model.b, (k, n)), draw(rng, model.c, (m, n))
    assert np.array_equal(matmul(a, b, c, chip=chip, instruction=name), chain(a, b, c, model))
    none = matmul(a, b, chip=chip, instruction=name)
    assert np.array_equal(none, chain(a, b, zeros(a, b, model), model)) and none.shape == (m, n)
    assert none.dtype == numsim.codes.code_dtype(TYPES[model.d])


def test_an_fp16_c_of_an_fp32_sum(rng):
    name = "mma.m8n8k4.f32.f16.f16.f16"  # the first instruction takes FP16, the others the FP32 result
    model = get_model("v100", name)
    a, b, c = draw(rng, "f16", (3, 9)), draw(rng, "f16", (9, 4)), draw(rng, "f16", (3, 4))
    d = matmul(a, b, c, chip="v100", instruction=name)
    assert d.dtype == np.uint32 and np.array_equal(d, chain(a, b, c, model))


def test_a_large_product_by_its_parts(rng):
    """More columns than the kernel does side by side, more K than it decodes at a time: corners and edges agree."""
    model = get_model("h200", F16)
    a, b, c = draw(rng, "f16", (9, 1100)), draw(rng, "f16", (1100, 517)), draw(rng, "f32", (9, 517))
    d = matmul(a, b, c, chip="h200", instruction=F16)
    for i, j in ((0, 0), (8, 516), (0, 255), (4, 256), (8, 511), (3, 512)):
        one = chain(a[i : i + 1], b[:, j : j + 1], c[i : i + 1, j : j + 1], model)
        assert d[i, j] == one[0, 0]


def test_rows_and_columns_do_not_touch_each_other(rng):
    a, b = draw(rng, "f16", (6, 40)), draw(rng, "f16", (40, 7))
    d = matmul(a, b, chip="h200", instruction=F16)
    a[2, 3], b[5, 4] = 0x7E00, 0x7C00  # NaN in a row, infinity in a column
    e = matmul(a, b, chip="h200", instruction=F16)
    clean = np.ones((6, 7), bool)
    clean[2], clean[:, 4] = False, False
    assert np.array_equal(d[clean], e[clean]) and (e[2] == NAN32).all()
    assert np.isinf(words(e[:, 4]))[[0, 1, 3, 4, 5]].all()


@pytest.mark.parametrize(("ta", "tb"), [(True, False), (False, True), (True, True)])
def test_transposes(ta, tb, rng):
    a, b = draw(rng, "e4m3", (2, 5, 40)), draw(rng, "e4m3", (40, 3))
    d = matmul(a, b, chip="h200", instruction=FP8)
    turned = (a.swapaxes(1, 2) if ta else a), (b.T if tb else b)
    for x, y in (turned, map(np.ascontiguousarray, turned)):
        assert np.array_equal(matmul(x, y, chip="h200", instruction=FP8, transpose_a=ta, transpose_b=tb), d)


def test_scales_are_not_transposed(rng):
    a, b = draw(rng, "e4m3", (3, 64)), draw(rng, "e2m3", (64, 2))
    sa, sb = rng.integers(120, 134, (3, 2)).astype(np.uint8), rng.integers(120, 134, (2, 2)).astype(np.uint8)
    d = matmul(a, b, chip="b200", instruction=MX, scale_a=sa, scale_b=sb)
    turned = {"transpose_a": True, "transpose_b": True}
    assert np.array_equal(matmul(a.T, b.T, chip="b200", instruction=MX, scale_a=sa, scale_b=sb, **turned), d)


# --- batches, shapes, inputs ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("a_shape", "b_shape", "c_shape"),
    [
        ((2, 3, 17), (17, 4), (3, 4)),
        ((2, 3, 17), (2, 17, 4), (2, 1, 4)),
        ((2, 1, 3, 17), (5, 17, 4), (4,)),
        ((3, 17), (2, 17, 4), (2, 3, 1)),
        ((1, 3, 17), (2, 17, 4), ()),
        ((0, 3, 17), (17, 4), (3, 4)),
    ],
)
def test_batches(a_shape, b_shape, c_shape, rng):
    """As numpy.matmul broadcasts; C broadcasts to the result: (N,) is a bias."""
    model = get_model("a100", F16)
    a, b, c = draw(rng, "f16", a_shape), draw(rng, "f16", b_shape), draw(rng, "f32", c_shape)
    d = matmul(a, b, c, chip="a100", instruction=F16)
    shape = np.matmul(np.zeros(a_shape), np.zeros(b_shape)).shape
    assert d.shape == shape
    x, y = np.broadcast_to(a, (*shape[:-2], *a_shape[-2:])), np.broadcast_to(b, (*shape[:-2], *b_shape[-2:]))
    z = np.broadcast_to(c, shape)
    for at in np.ndindex(*shape[:-2]):
        assert np.array_equal(d[at], chain(x[at], y[at], z[at], model))


def test_batches_of_scales(rng):
    model = get_model("b200", MX)
    a, b = draw(rng, "e4m3", (2, 2, 40)), draw(rng, "e2m3", (40, 3))
    sa, sb = rng.integers(100, 150, (2, 2, 2)).astype(np.uint8), rng.integers(100, 150, (2, 3)).astype(np.uint8)
    d = matmul(a, b, chip="b200", instruction=MX, scale_a=sa, scale_b=sb)
    for i in range(2):
        assert np.array_equal(d[i], chain(a[i], b, zeros(a[i], b, model), model, sa[i], sb))


@pytest.mark.parametrize("shape", [(0, 16, 3), (3, 16, 0), (0, 5, 0)])
def test_empty(shape):
    m, k, n = shape
    a, b = np.zeros((m, k), np.uint16), np.zeros((k, n), np.uint16)
    for options in ({}, {"promote": 16}, {"output": "bf16", "alpha": 2.0}):
        d = matmul(a, b, chip="h200", instruction=F16, **options)
        assert d.shape == (m, n) and d.dtype == (np.uint16 if "output" in options else np.uint32)


def test_inputs_stay_as_they_are(rng):
    """Read-only, strided, byte-swapped, wide, lists: the same codes, the same result; nothing is written into them."""
    a, b, c = draw(rng, "f16", (4, 33)), draw(rng, "f16", (33, 5)), draw(rng, "f32", (4, 5))
    d = matmul(a, b, c, chip="h200", instruction=F16)
    before = [x.copy() for x in (a, b, c)]
    for x in (a, b, c):
        x.flags.writeable = False
    others = [
        (a, b, c),
        tuple(np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3] for x in (a, b, c)),
        tuple(np.asfortranarray(x) for x in (a, b, c)),
        tuple(x[::-1, ::-1].copy()[::-1, ::-1] for x in (a, b, c)),
        (a.astype(">u2"), b.astype("<u2"), c.astype(">u4")),
        tuple(x.astype(np.uint64) for x in (a, b, c)),
        tuple(x.tolist() for x in (a, b, c)),
    ]
    for x, y, z in others:
        assert np.array_equal(matmul(x, y, z, chip="h200", instruction=F16), d)
    assert all(np.array_equal(x, y) for x, y in zip((a, b, c), before, strict=True))


@pytest.mark.parametrize("options", [{}, {"promote": 16}, {"beta": 1.0}, {"output": "fp32"}, {"split_k": 2}])
def test_results_share_no_memory_with_inputs(options, rng):
    a, b, c = np.zeros((2, 32), np.uint16), np.zeros((32, 2), np.uint16), draw(rng, "f32", (2, 2))
    d = matmul(a, b, c, chip="h200", instruction=F16, **options)
    assert not any(np.shares_memory(d, x) for x in (a, b, c)) and d.flags.writeable
    before = c.copy()
    d[:] = 0
    assert np.array_equal(c, before)


@pytest.mark.parametrize("k", [31, 520])
def test_threads(k, rng, monkeypatch):
    a, b = draw(rng, "f16", (70, k)), draw(rng, "f16", (k, 300))
    a[3, 7], b[5, 260] = 0x7C00, 0xFE00
    one = matmul(a, b, chip="h200", instruction=F16, threads=1)
    assert np.array_equal(matmul(a, b, chip="h200", instruction=F16, threads=2), one)
    assert np.array_equal(matmul(a, b, chip="h200", instruction=F16), one)
    monkeypatch.setenv("NUMSIM_THREADS", "3")
    assert np.array_equal(matmul(a, b, chip="h200", instruction=F16), one)


# --- TF32 -------------------------------------------------------------------------------------------------------------
def test_tf32(rng):
    """The unit drops 13 bits; cvt.rna adds half a unit to the magnitude first; nearest-even ties to the even word."""
    a, b = draw(rng, "tf32", (4, 21)), draw(rng, "tf32", (21, 3))
    a[0, :6] = [0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001, 0xBF801000, 0x00000FFF]  # ties, and near them
    a[1, :2] = [0x7F7FFFFF, 0x80001000]  # rounds to infinity; a subnormal tie
    model = get_model("h200", TF32)

    def truncated(x):
        return x & np.uint32(0xFFFFE000)

    def away(x):
        return truncated(x + np.uint32(0x1000))

    def even(x):
        return truncated(x + np.uint32(0xFFF) + ((x >> np.uint32(13)) & np.uint32(1)))

    results = []
    for mode, cut in (("truncate", truncated), ("nearest-away", away), ("nearest-even", even)):
        x, y = cut(a), cut(b)
        d = matmul(a, b, chip="h200", instruction=TF32, tf32=mode)
        assert np.array_equal(d, chain(x, y, zeros(a, b, model), model)), mode
        results.append(d.tobytes())
    assert len(set(results)) == 3


def test_tf32_codes_and_words_are_the_same_numbers(rng):
    x = numsim.array(rng.standard_normal((3, 9)), "tf32")
    d = matmul(x, x.T, chip="h200")
    assert d.how.startswith(TF32)
    word = x.codes << np.uint32(13)
    assert np.array_equal(d.codes, matmul(word, word.T, chip="h200", instruction=TF32))


def test_what_truncation_does_to_nan_and_infinity():
    """A NaN whose payload is in the low bits only reads as infinity; a rounding in software keeps it NaN."""
    a, b = np.full((1, 8), 0x7F800001, np.uint32), np.full((8, 1), 0x3F800000, np.uint32)
    assert matmul(a, b, chip="h200", instruction=TF32)[0, 0] == 0x7F800000
    assert matmul(a, b, chip="h200", instruction=TF32, tf32="nearest-even")[0, 0] == NAN32


# --- block scales -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("k", [1, 16, 32, 40, 64, 70])
@pytest.mark.parametrize("name", [MX, NV])
def test_block_scales(name, k, rng):
    """A last block that is not full has a scale; those of the padding are 1."""
    model = get_model("b200", name)
    a, b, c = draw(rng, model.a, (3, k)), draw(rng, model.b, (k, 2)), draw(rng, "f32", (3, 2))
    per = -(-k // model.scale_block)
    low, high = (110, 140) if model.scale == "ue8m0" else (0, 127)
    sa, sb = (rng.integers(low, high, s).astype(np.uint8) for s in ((3, per), (per, 2)))
    d = matmul(a, b, c, chip="b200", instruction=name, scale_a=sa, scale_b=sb)
    assert np.array_equal(d, chain(a, b, c, model, sa, sb))


def test_a_scale_that_is_nan(rng):
    a, b = draw(rng, "e4m3", (2, 64)), draw(rng, "e2m3", (64, 2))
    sa, sb = np.full((2, 2), 127, np.uint8), np.full((2, 2), 127, np.uint8)
    sa[1, 1] = 0xFF
    d = matmul(a, b, chip="b200", instruction=MX, scale_a=sa, scale_b=sb)
    assert (d[1] == NAN32).all() and np.isfinite(words(d[0])).all()


# --- promotion --------------------------------------------------------------------------------------------------------
def promoted(a, b, c, model, n, start=0, end=None):
    """The chain from zero for every n elements of K, added up in NumPy's float32."""
    total = words(c).copy() if model.d == "f32" else c.view(np.float16).astype(np.float32)
    end = a.shape[1] if end is None else end
    for k in range(start, end, n):
        piece = slice(k, min(k + n, end))
        codes = chain(a[:, piece], b[piece], zeros(a, b, model), model)
        total = total + (words(codes) if model.d == "f32" else codes.view(np.float16).astype(np.float32))
    return total


@pytest.mark.parametrize("k", [32, 64, 96, 200])
@pytest.mark.parametrize("n", [32, 64, 128, 4096])
def test_promotion(n, k, rng):
    model = get_model("h200", FP8)
    a, b, c = draw(rng, "e4m3", (3, k)), draw(rng, "e4m3", (k, 4)), draw(rng, "f32", (3, 4))
    none = promoted(a, b, zeros(a, b, model), model, n)
    assert np.array_equal(matmul(a, b, chip="h200", instruction=FP8, promote=n), codes_of(none))
    given = promoted(a, b, c, model, n)
    assert np.array_equal(matmul(a, b, c, chip="h200", instruction=FP8, promote=n), codes_of(given))


def test_promotion_of_fp16_results(rng):
    model = get_model("h200", F16_F16)
    a, b, c = draw(rng, "f16", (3, 70), 2), draw(rng, "f16", (70, 4), 2), draw(rng, "f16", (3, 4))
    d = matmul(a, b, c, chip="h200", instruction=F16_F16, promote=32)
    assert np.array_equal(d, codes_of(promoted(a, b, c, model, 32).astype(np.float16), NAN16))


def test_promotion_repairs_what_13_bits_lose():
    """DeepSeek-V3, section 3.3.2: with K = 4096 sums of FP8 products lose bits; restarted every 128, they do not."""
    x = numsim.array(np.full((1, 4096), 1.125), "e4m3")
    values = [float(numsim.decode(matmul(x, x.T, chip="h200", promote=p).codes, "fp32")[0, 0]) for p in (None, 128)]
    assert values[1] == 4096 * 1.125**2 and values[0] < values[1]


# --- split-K ----------------------------------------------------------------------------------------------------------
def summed(parts, combine):
    parts = list(parts)
    while len(parts) > 1:
        if combine == "serial":
            parts = [parts[0] + parts[1], *parts[2:]]
        else:
            parts = [sum(parts[i : i + 2][1:], parts[i]) for i in range(0, len(parts), 2)]
    return parts[0]


@pytest.mark.parametrize("combine", ["serial", "pairwise"])
@pytest.mark.parametrize("partials", list(WIDTHS))
@pytest.mark.parametrize("split", [2, 3, 5, 7])
def test_split_k(split, partials, combine, rng):
    """7 instructions: parts of 1 to 4 of them; C starts the first part."""
    model = get_model("a100", F16)
    a, b, c = draw(rng, "f16", (2, 100)), draw(rng, "f16", (100, 3)), draw(rng, "f32", (2, 3))
    edges = [7 * i // split * 16 for i in range(split + 1)]
    parts = []
    for i, (first, end) in enumerate(pairwise(edges)):
        codes = chain(a[:, first:end], b[first:end], c if i == 0 else np.zeros_like(c), model)
        with np.errstate(all="ignore"):
            parts.append(words(codes).astype(WIDTHS[partials]).astype(np.float32))
    d = matmul(a, b, c, chip="a100", instruction=F16, split_k=split, partials=partials, combine=combine)
    assert np.array_equal(d, codes_of(summed(parts, combine)))


def test_combine_and_partials_matter(rng):
    a, b = draw(rng, "f16", (6, 160)), draw(rng, "f16", (160, 6))
    results = {
        matmul(a, b, chip="a100", instruction=F16, split_k=s, partials=p, combine=c).tobytes()
        for s, p, c in ((1, "bf16", "serial"), (5, "fp32", "serial"), (5, "fp32", "pairwise"), (5, "bf16", "serial"),
                        (5, "fp16", "serial"))
    }  # fmt: skip
    assert len(results) == 5


def test_split_k_with_promotion(rng):
    """Each part counts its promotions from its own beginning."""
    model = get_model("h200", FP8)
    a, b, c = draw(rng, "e4m3", (2, 320)), draw(rng, "e4m3", (320, 3)), draw(rng, "f32", (2, 3))
    edges = [0, 96, 192, 320]  # 10 instructions in 3 parts
    parts = [
        promoted(a, b, c if i == 0 else np.zeros_like(c), model, 64, edges[i], edges[i + 1])
        .astype(ml_dtypes.bfloat16).astype(np.float32)
        for i in range(3)
    ]  # fmt: skip
    d = matmul(a, b, c, chip="h200", instruction=FP8, promote=64, split_k=3, partials="bf16")
    assert np.array_equal(d, codes_of(summed(parts, "serial")))


def test_split_k_of_fp16_results_is_rounded_once(rng):
    model = get_model("h200", F16_F16)
    a, b, c = draw(rng, "f16", (3, 64), 2), draw(rng, "f16", (64, 4), 2), draw(rng, "f16", (3, 4))
    halves = [chain(a[:, :32], b[:32], c, model), chain(a[:, 32:], b[32:], np.zeros_like(c), model)]
    total = halves[0].view(np.float16).astype(np.float32) + halves[1].view(np.float16).astype(np.float32)
    d = matmul(a, b, c, chip="h200", instruction=F16_F16, split_k=2)
    assert np.array_equal(d, codes_of(total.astype(np.float16), NAN16))
    scaled = (total.astype(np.float64) * 3).astype(np.float32).astype(np.float16)  # the product is exact in float64
    assert np.array_equal(
        matmul(a, b, c, chip="h200", instruction=F16_F16, split_k=2, alpha=3), codes_of(scaled, NAN16)
    )


# --- epilogue ---------------------------------------------------------------------------------------------------------
def fma(alpha, y, plus):
    """alpha * y + plus rounded once: the product is exact in float64, the sum in long double."""
    exact = np.float64(np.float32(alpha)) * y.astype(np.float64)
    total = exact.astype(np.longdouble) + plus.astype(np.longdouble)
    return total.astype(np.float32)


@pytest.mark.parametrize("alpha", [None, 1, 0.1, -3.0, 0, 2.0**-140, 1e30])
@pytest.mark.parametrize("beta", [None, 1.0, 0.3, -0.0])
def test_alpha_and_beta(alpha, beta, rng):
    assert np.finfo(np.longdouble).nmant >= 63, "an oracle for the fused sum is needed"
    model = get_model("h200", F16)
    a, b, c = draw(rng, "f16", (3, 20), 1), draw(rng, "f16", (20, 4), 1), draw(rng, "f32", (3, 4), 1)
    options = {k: v for k, v in (("alpha", alpha), ("beta", beta)) if v is not None}
    d = matmul(a, b, c, chip="h200", instruction=F16, **options)
    start = c if beta is None else np.zeros_like(c)
    y = words(chain(a, b, start, model))
    if options:
        plus = np.float32(beta) * words(c) if beta else np.zeros(c.shape, np.float32)
        with np.errstate(all="ignore"):
            y = fma(1 if alpha is None else alpha, y, plus)
    assert np.array_equal(d, codes_of(y))


def test_alpha_scales_c_too_unless_beta_does(rng):
    a, b = np.zeros((1, 16), np.uint16), np.zeros((16, 1), np.uint16)
    c = np.array([[0x40400000]], np.uint32)  # 3
    results = [matmul(a, b, c, chip="h200", instruction=F16, **o) for o in (
        {}, {"alpha": 2}, {"alpha": 2, "beta": 1}, {"beta": 5})]  # fmt: skip
    assert [float(words(r)[0, 0]) for r in results] == [3, 6, 3, 15]


@pytest.mark.parametrize("output", ["fp32", "fp16", "bf16", "e5m2", "e4m3"])
@pytest.mark.parametrize("overflow", ["ieee", "saturate", "saturate-finite"])
def test_output(output, overflow, rng):
    model = get_model("h200", F16)
    a, b = draw(rng, "f16", (4, 20)), draw(rng, "f16", (20, 5))
    a[0, 0], b[0, 0], a[1] = 0x7BFF, 0x7BFF, a[1] & 0x3FF  # beyond FP16 and FP8; subnormal numbers
    a[2, 2], a[3, 1] = 0x7C00, 0x7E00
    y = words(chain(a, b, zeros(a, b, model), model))
    dtype = {**WIDTHS, "e4m3": ml_dtypes.float8_e4m3fn}[output]
    with np.errstate(all="ignore"):
        expected = y.astype(dtype)
    top = float(numsim.get_format(output).max)
    beyond = ~np.isnan(y) & ~np.isfinite(expected.astype(np.float32))
    beyond &= np.isfinite(y) if overflow == "saturate-finite" else True
    if overflow != "ieee":
        expected = np.where(beyond, np.copysign(top, y).astype(dtype), expected)
    nan = {"fp32": NAN32, "fp16": NAN16, "bf16": 0x7FFF, "e5m2": 0x7F, "e4m3": 0x7F}[output]
    d = matmul(a, b, chip="h200", instruction=F16, output=output, overflow=overflow)
    assert np.array_equal(d, codes_of(expected, nan)) and beyond[2].any() == (overflow != "saturate-finite")


@pytest.mark.parametrize("name", [F16, F16_F16])
def test_overflow_without_output(name):
    """It counts for d's own format, too: the tensor core's infinity becomes the largest number."""
    a, b = np.array([[0x7C00] + [0] * 15, [0xFC00] + [0] * 15], np.uint16), np.full((16, 1), 0x3C00, np.uint16)
    top, sign = (0x7F7FFFFF, 1 << 31) if name == F16 else (0x7BFF, 1 << 15)
    assert matmul(a, b, chip="h200", instruction=name, overflow="saturate").ravel().tolist() == [top, top | sign]


def test_output_without_nan():
    """Into a format without NaN the largest number goes, as documented."""
    a, b = np.full((1, 16), 0x7E00, np.uint16), np.full((16, 1), 0x3C00, np.uint16)
    assert matmul(a, b, chip="h200", instruction=F16, output="e2m1")[0, 0] == 7


def test_output_is_a_second_rounding():
    """FP32, then BF16: what is just above a tie in the exact sum is a tie in FP32, and goes to even."""
    a = np.array([[0x3C00, 0x1C00, 0x0001, *[0] * 13]], np.uint16)  # 1 + 2^-8 + 2^-24
    b = np.array([0x3C00, 0x3C00, 0x0001, *[0] * 13], np.uint16)[:, None]  # the last product is 2^-48
    assert matmul(a, b, chip="h200", instruction=F16, output="bf16")[0, 0] == 0x3F80


def test_fp64_has_one_rounding_only(rng):
    name = "mma.m8n8k4.f64.f64.f64.f64"
    a, b = draw(rng, "f64", (2, 10)), draw(rng, "f64", (10, 3))
    model = get_model("a100", name)
    y = chain(a, b, np.zeros((2, 3), np.uint64), model).view(np.float64)
    assert np.array_equal(
        matmul(a, b, chip="a100", instruction=name, output="fp16"), codes_of(y.astype(np.float16), NAN16)
    )


@pytest.mark.parametrize("options", [
    {}, {"promote": 16}, {"split_k": 2}, {"split_k": 2, "partials": "bf16"}, {"alpha": 2.0}, {"output": "fp32"},
    {"beta": 0.5}, {"promote": 16, "split_k": 2, "combine": "pairwise", "alpha": 1.0},
])  # fmt: skip
def test_nan_has_the_chips_code_after_every_step(options):
    """0x7FFFFFFF, not FP32's 0x7FC00000; FP16's is 0x7FFF. Infinity minus infinity between parts is NaN, too."""
    a, b = np.full((2, 32), 0x3C00, np.uint16), np.full((32, 1), 0x3C00, np.uint16)
    a[0, 3] = 0xFE01
    a[1, 3], a[1, 30] = 0x7C00, 0xFC00
    c = np.zeros((2, 1), np.uint32)
    d = matmul(a, b, c, chip="h200", instruction=F16, **options)
    assert d.ravel().tolist() == [NAN32, NAN32]
    half = {k: v for k, v in options.items() if k not in ("beta", "output")}
    e = matmul(a, b, chip="h200", instruction=F16_F16, **half)
    assert e.ravel().tolist() == [NAN16, NAN16]


# --- Arrays -----------------------------------------------------------------------------------------------------------
def test_arrays(rng):
    x = numsim.array(rng.standard_normal((3, 40)), "e4m3")
    y = numsim.array(rng.standard_normal((40, 2)), "e4m3")
    z = numsim.array(rng.standard_normal((3, 2)), "fp32")
    d = matmul(x, y, z, chip="h200")
    assert isinstance(d, numsim.Array) and d.format == numsim.FP32 and d.how == f"{FP8} on h200"
    assert np.array_equal(d.codes, matmul(x.codes, y.codes, z.codes, chip="h200", instruction=FP8))
    many = matmul(x, y, z, chip="h200", promote=32, split_k=2, partials="bf16", combine="pairwise", alpha=0.5, beta=2.0,
                  output="fp16", overflow="saturate")  # fmt: skip
    assert many.format == numsim.FP16
    for told in (
        "promote=32",
        "split_k=2",
        "alpha=0.5",
        "beta=2.0",
        "output=fp16",
        "overflow=saturate",
        "partials=bf16, combine=pairwise",
    ):
        assert told in many.how
    codes = matmul(x, y.codes, chip="h200", instruction=FP8)  # one of them as codes: codes come back
    assert isinstance(codes, np.ndarray)
    with pytest.raises(InputError, match="which one of h200"):
        matmul(x, y.codes, chip="h200")


def test_evidence_is_said_once(rng, monkeypatch):
    from numsim.tensorcore import products

    monkeypatch.setattr(products, "_warned", set())
    x = numsim.array(rng.standard_normal((2, 16)), "fp16")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        matmul(x, x.T, chip="rtx4090")
        matmul(x, x.T, chip="rtx4090")
        matmul(x, x.T, chip="h200")  # validated
    assert [w.category for w in caught] == [EvidenceWarning]
    assert "numsim chips rtx4090" in str(caught[0].message) and caught[0].filename.endswith("test_matmul.py")


# --- what may hold codes and options ----------------------------------------------------------------------------------
def test_scales_with_a_sign_bit_and_in_lists():
    """A UE4M3 scale's sign bit is ignored, whatever holds the code."""
    a, one = np.full(64, 2, np.uint8), np.full(4, 0x38, np.uint8)  # ones

    def product(scales):
        return int(mma(a, a, np.uint32(0), chip="b200", instruction=NV, scale_a=scales, scale_b=one))

    for scales in (one, [0x38] * 4, [0xB8] * 4, np.full(4, 0xB8, np.uint16), np.full(4, 0xB8, ">u4")):
        assert product(scales) == 0x42800000


def test_options_that_numpy_made(rng):
    a, b = draw(rng, "f16", (4, 64)), draw(rng, "f16", (64, 3))
    d = matmul(a, b, chip="h200", instruction=F16, promote=np.int64(16), split_k=np.int32(2), threads=np.uint8(1))
    assert d.tolist() == matmul(a, b, chip="h200", instruction=F16, promote=16, split_k=2, threads=1).tolist()


def test_a_warning_names_only_chips_that_are_listed():
    own = replace(get_model("h200", F16), chip="mine", evidence=Evidence("unverified"))
    with pytest.warns(EvidenceWarning) as caught:
        mma(np.zeros(16, np.uint16), np.zeros(16, np.uint16), np.uint32(0), chip=own)
    assert "numsim chips" not in str(caught[0].message)


def test_split_k_keeps_few_partial_results(rng):
    """Pairwise sums of any number of parts: the tree of neighbours, level by level."""
    a, b = draw(rng, "f16", (2, 16 * 23)), draw(rng, "f16", (16 * 23, 3))
    for parts in range(2, 24):
        bounds = [23 * i // parts * 16 for i in range(parts + 1)]
        level = [words(matmul(a[:, x:y], b[x:y], chip="h200", instruction=F16)) for x, y in pairwise(bounds)]
        while len(level) > 1:
            pairs = [x + y for x, y in zip(level[::2], level[1::2], strict=False)]
            level = pairs + level[2 * len(pairs) :]
        d = matmul(a, b, chip="h200", instruction=F16, split_k=parts, combine="pairwise")
        assert np.array_equal(words(d), level[0]), parts


def test_beta_of_zero_does_not_read_c(rng):
    a, b = draw(rng, "f16", (3, 32)), draw(rng, "f16", (32, 4))
    plain = matmul(a, b, chip="h200", instruction=F16)
    for beta in (0.0, -0.0):
        got = matmul(a, b, np.full((3, 4), 0x7FC00000, np.uint32), chip="h200", instruction=F16, beta=beta)
        assert got.tolist() == plain.tolist()


@pytest.mark.parametrize("factor", [1e60, float("inf"), float("nan")])
def test_factors_are_finite(factor, rng):
    with pytest.raises(InputError, match=r"alpha=.*finite"):
        matmul(draw(rng, "f16", (3, 32)), draw(rng, "f16", (32, 4)), chip="h200", instruction=F16, alpha=factor)
