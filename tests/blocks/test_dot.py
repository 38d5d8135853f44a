"""Products of block formats: exact fractions of the values, sums by hand, and the chips' instructions."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from numsim import array, decode, encode, from_codes, round_to, tensorcore
from numsim.blocks import (
    BlockArray,
    dot,
    get_block_format,
    list_block_formats,
    matmul,
    nvfp4_alpha,
    quantize,
)
from numsim.errors import InputError
from numsim.formats import BF16, FP16, FP32

F = np.float32
K = 256


def data(shape, seed):
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return x * np.exp2(np.random.default_rng(seed + 1).integers(-6, 6, shape)).astype(np.float32)


def exact(a, b):
    """The sum of products of values, each value exactly element x scale x tensor scale."""

    def parts(x, axis):
        ones = BlockArray(x.codes, x.scales, x.format, x.axis)  # float64 holds element x scale of all formats exactly
        values = np.asarray(ones.values)
        return np.moveaxis(values, axis, -1), Fraction(x.tensor_scale)

    (x, s), (y, t) = parts(a, 1), parts(b, 0)
    return [
        [sum(Fraction(float(p)) * Fraction(float(q)) for p, q in zip(r, c, strict=True)) * s * t for c in y] for r in x
    ]


def rounded(fractions, format):
    return [[int(encode(v, format)) for v in row] for row in fractions]


def axis_for(format, axis):
    return axis if format.block is not None and len(format.block) == 1 else -1


@pytest.mark.parametrize("format", list_block_formats(), ids=str)
def test_exact_is_the_fraction_rounded_once(format):
    m, n = (3, 2) if format.block is None or len(format.block) == 1 else (128, 128)
    a = quantize(data((m, K), 1), format, axis=axis_for(format, 1))
    b = quantize(data((K, n), 3), format, axis=axis_for(format, 0))
    if m > 3:  # tiles: look at a corner of the result
        a, b = corner(a, 0), corner(b, 1)
    found = matmul(a, b, accumulator="exact")
    wanted = exact(a, b)
    assert found.codes.tolist() == rounded(wanted, "fp32")
    assert matmul(a, b, accumulator="exact", output="bf16").codes.tolist() == rounded(wanted, "bf16")


def corner(x, axis):
    """Two rows or columns of a tiled array, as a format whose tiles are two high."""
    block = tuple(2 if i == axis else n for i, n in enumerate(x.format.block))
    here = (slice(2), slice(None)) if axis == 0 else (slice(None), slice(2))
    small = (slice(1), slice(None)) if axis == 0 else (slice(None), slice(1))
    return replace(x, codes=x.codes[here], scales=x.scales[small], format=replace(x.format, block=block))


PAIRS = [("mxfp8", "mxfp4"), ("mxfp8_e5m2", "mxint8"), ("nvfp4", "mxfp6"), ("nf4", "nf4"), ("nf4", "fp8_1x128"),
         ("fp8_tensor_e5m2", "fp8_1x128"), ("int8", "int4")]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("order", ["sequential", "pairwise"])
@pytest.mark.parametrize("accumulator", ["fp32", "fp16", "bf16"])
def test_blocks_are_added_one_by_one(left, right, order, accumulator):
    """Every common stretch of blocks exactly, then rounded sums; all by fractions."""
    a = quantize(data((2, K), 5) / 8, left, axis=axis_for(get_block_format(left), 1))
    b = quantize(data((K, 2), 7) / 8, right, axis=axis_for(get_block_format(right), 0))
    sizes = {"mxfp8": 32, "mxfp8_e5m2": 32, "mxint8": 32, "mxfp4": 32, "mxfp6": 32, "nvfp4": 16, "nf4": 64, "int4": 32}
    step = min(sizes.get(left, 128), sizes.get(right, 128), 128 if "1x128" in left + right else K)
    one = replace(a, tensor_scale=1.0)
    found = matmul(a, b, accumulator=accumulator, order=order)
    for i, j in np.ndindex(2, 2):
        x, y = one.values[i], b.values[:, j]
        products = [Fraction(float(p)) * Fraction(float(q)) for p, q in zip(x, y, strict=True)]
        terms = [sum(products[s : s + step]) for s in range(0, K, step)]
        total = fold(terms, accumulator, order)
        assert found.codes[i, j] == encode(total * Fraction(a.tensor_scale), accumulator)
    assert found.how.startswith(f"exact dot products of blocks of {step}, {order} sum of blocks in {accumulator}")


def fold(terms, format, order):
    def rounded(x):
        return Fraction(float(decode(encode(x, format), format)))

    if order == "sequential":
        total = rounded(terms[0])
        for t in terms[1:]:
            total = rounded(total + t)
        return total
    while len(terms) > 1:
        pairs = [rounded(x + y) for x, y in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs) :]
    return rounded(terms[0]) if len(terms) == 1 else terms[0]


def test_a_dot_product_by_hand():
    # 32 x 448 x 448 x 2^0 in the first block, 32 x 2^-9 x 2^-9 in the second
    a = BlockArray(
        np.array([0x7E] * 32 + [1] * 32, np.uint8), from_codes([127, 127], "e8m0"), get_block_format("mxfp8")
    )
    assert dot(a, a, accumulator="exact", output="fp64").values == 32 * 448**2 + 32 * 2.0**-18
    assert dot(a, a).values == 32 * 448**2
    small = replace(a, scales=from_codes([0, 254], "e8m0"))
    assert dot(small, small, accumulator="exact", output="fp64").values == 32 * 448**2 * 2.0**-254 + 32 * 2.0**236
    assert dot(small, small).values == np.inf
    assert dot(a, small, accumulator="exact", output="fp64").values == 32 * 448**2 * 2.0**-127 + 32 * 2.0**109


@pytest.mark.parametrize("element", [FP16, BF16], ids=str)
def test_wide_elements(element):
    """Elements whose products, or which themselves, are no 64-bit integers."""
    format = replace(get_block_format("mxfp8"), element=element)
    codes = encode(data((2, 64), 45) * F(2.0**10), element)
    x = BlockArray(codes, from_codes([[127, 130], [120, 0]], "e8m0"), format)
    y = BlockArray(np.ascontiguousarray(codes.T), from_codes([[127, 130], [120, 0]], "e8m0"), format, axis=0)
    assert matmul(x, y, accumulator="exact").codes.tolist() == rounded(exact(x, y), "fp32")


def test_dot_is_a_row_of_matmul():
    x, y = data(K, 9), data(K, 11)
    for name in ("mxfp8", "nvfp4", "nf4", "int8", "fp8_tensor"):
        a, b = quantize(x, name), quantize(y, name)
        format = get_block_format(name)
        row = quantize(x[None], name, axis=axis_for(format, 1))
        column = quantize(y[:, None], name, axis=axis_for(format, 0))
        assert dot(a, b).codes == matmul(row, column).codes[0, 0] and dot(a, b).shape == ()


# --- edges ------------------------------------------------------------------------------------------------------------
def test_nan_scales_and_elements():
    a, b = quantize(np.ones((2, 64)), "mxfp8"), quantize(np.ones((64, 2)), "mxfp8", axis=0)
    nan = replace(a, scales=from_codes([[0xFF, 119], [119, 119]], "e8m0"))
    assert np.isnan(matmul(nan, b).values).tolist() == [[True, True], [False, False]]
    assert np.isnan(matmul(nan, b, accumulator="exact").values).tolist() == [[True, True], [False, False]]
    codes = a.codes.copy()
    codes[1, 63] = 0x7F
    found = matmul(replace(a, codes=codes), b)
    assert found.values[0].tolist() == [64, 64] and np.isnan(found.values[1]).all()
    assert found.codes[1, 0] == 0x7FC00000
    assert matmul(nan, b, output="e2m1").values[0, 0] == 6  # no NaN there: the largest


def test_infinite_elements():
    ones = quantize(np.ones((1, 64)), "mxfp8_e5m2")
    b = quantize(np.ones((64, 1)), "mxfp8_e5m2", axis=0)

    def with_codes(x, *changes):
        codes = x.codes.copy()
        for at, code in changes:
            codes.flat[at] = code
        return replace(x, codes=codes)

    assert matmul(with_codes(ones, (3, 0x7C)), b).values == np.inf
    assert matmul(with_codes(ones, (3, 0xFC)), b).values == -np.inf
    assert np.isnan(matmul(with_codes(ones, (3, 0x7C), (40, 0xFC)), b).values)
    assert np.isnan(matmul(with_codes(ones, (3, 0x7C)), with_codes(b, (3, 0))).values)
    turned = quantize(np.ones((64, 1)), "fp8_tensor", multiplier=-1.0)  # elements of -1, and -1 to come back
    assert matmul(with_codes(ones, (3, 0x7C)), turned).values == np.inf


def test_zero_blocks_and_signs_of_zero():
    a = quantize(np.zeros((1, 64)), "int4")  # absmax stores a scale of 0
    b = quantize(np.ones((64, 1)), "int4", axis=0)
    assert matmul(a, b).codes == 0
    x, y = quantize([[1.0, -1.0] * 16], "mxfp8"), quantize(np.full((32, 1), -1.0), "mxfp8", axis=0)
    assert matmul(x, y).codes == 0
    tiny = quantize(np.full((1, 32), 2.0**-130), "mxfp8")
    assert matmul(tiny, replace(y, scales=from_codes([[0]], "e8m0"))).codes == 0x80000000  # underflow, below 0
    mx = quantize(np.zeros((1, 32)), "mxfp8")
    assert mx.scales.codes == 0 and matmul(mx, y).codes == 0


def test_infinite_amax():
    x = np.ones((1, 32))
    x[0, 3] = np.inf
    y = quantize(np.ones((32, 1)), "mxfp8", axis=0)
    assert np.isnan(matmul(quantize(x, "mxfp8"), y).values)
    te = quantize(x, replace(get_block_format("mxfp8"), rule="te"))
    assert te.scales.codes == 254 and matmul(te, y, accumulator="exact", output="fp64").values == 448 * 2.0**127


def test_empty():
    a, b = quantize(np.zeros((3, 0)), "mxfp8"), quantize(np.zeros((0, 2)), "mxfp8", axis=0)
    assert matmul(a, b).codes.tolist() == [[0, 0]] * 3
    assert matmul(quantize(np.zeros((0, 32)), "mxfp8"), quantize(np.ones((32, 2)), "mxfp8", axis=0)).shape == (0, 2)


def test_wrong_use_is_refused_before_any_work():
    a, b = quantize(np.ones((2, 64)), "mxfp8"), quantize(np.ones((64, 2)), "mxfp8", axis=0)
    for call, what in (
        (lambda: matmul(a, a), "shapes"),
        (lambda: matmul(a, np.ones((64, 2))), "block format"),
        (lambda: matmul(a, quantize(np.ones((64, 32)), "mxfp8")), "lie along axis 1"),
        (lambda: matmul(quantize(np.ones((32, 64)), "mxfp8", axis=0), b), "lie along axis 0"),
        (lambda: matmul(a, b, order="kahan"), "order"),
        (lambda: matmul(a, b, accumulator="fp33"), "fp33"),
        (lambda: matmul(a, b, alpha=2.0), "chip"),
        (lambda: matmul(a, b, chip="b200", accumulator="bf16"), "of the chip"),
        (lambda: dot(a, b), "vectors"),
        (lambda: dot(quantize(np.ones(32), "mxfp8"), quantize(np.ones(64), "mxfp8")), "same length"),
    ):
        with pytest.raises(ValueError, match=what):
            call()


# --- chips ------------------------------------------------------------------------------------------------------------
SCALED = [
    ("mxfp8", "mxfp8", "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0"),
    ("mxfp8", "mxfp8_e5m2", "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e5m2.ue8m0"),
    ("mxfp6", "mxfp4", "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e2m3.e2m1.ue8m0"),
    ("mxfp4", "mxfp4", "tcgen05.m128n256k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0"),
    ("nvfp4", "nvfp4", "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"),
]


@pytest.mark.parametrize(("left", "right", "instruction"), SCALED)
def test_block_scaled_instructions(left, right, instruction):
    a, b = quantize(data((4, K), 13), left), quantize(data((K, 3), 15), right, axis=0)
    found = matmul(a, b, chip="b200")
    assert found.how.startswith(instruction)
    alpha = None if left != "nvfp4" else float(F(a.tensor_scale) * F(b.tensor_scale))
    wanted = tensorcore.matmul(a.codes, b.codes, chip="b200", instruction=instruction, scale_a=a.scales.codes,
                               scale_b=b.scales.codes, alpha=alpha)  # fmt: skip
    assert (found.codes == wanted).all()
    assert (matmul(a, b, chip="b200", instruction=instruction, threads=1).codes == wanted).all()
    half = matmul(a, b, chip="b200", output="fp16")
    assert (half.codes == round_codes(found, FP16)).all()


def round_codes(x, format):
    return encode(x.values, format)


def test_where_nothing_is_cut_chip_and_definition_agree():
    x = np.random.default_rng(1).integers(-6, 7, (4, 128)).astype(np.float32)
    y = np.random.default_rng(2).integers(-6, 7, (128, 5)).astype(np.float32)
    x[:, ::16], y[::16] = 6, 6
    for name in ("mxfp8", "mxfp4", "nvfp4", "mxfp6_e3m2"):
        for chip in ("b200", "rtx5090"):
            a, b = quantize(x, name), quantize(y, name, axis=0)
            one = 1.0 if name == "nvfp4" else None
            a, b = replace(a, tensor_scale=1.0), replace(b, tensor_scale=1.0)
            assert (matmul(a, b, chip=chip, alpha=one).codes == matmul(a, b, accumulator="exact").codes).all()


def test_the_chip_cuts_and_the_definition_does_not():
    # 2^16 + 31 x 2^-10: the chip cuts each product to 25 bits below the largest
    x = np.full((1, 32), 2.0**-5)
    x[0, 0] = 2.0**8
    a, b = quantize(x, "mxfp8"), quantize(x.T, "mxfp8", axis=0)
    assert matmul(a, b, chip="b200", output="fp64").values == 2**16
    assert matmul(a, b, accumulator="exact", output="fp64").values == 2**16 + 31 * 2.0**-10


def test_nvfp4_tiles_and_alpha():
    x, w = data((4, 64), 17), data((64, 32), 19)
    a, b = quantize(x, "nvfp4"), quantize(w, "nvfp4_2d")
    found = matmul(a, b, chip="b200", alpha=nvfp4_alpha(np.abs(x).max(), np.abs(w).max()))
    scale_b = np.repeat(b.scales.codes, 16, axis=1)
    wanted = tensorcore.matmul(
        a.codes, b.codes, chip="b200", instruction=SCALED[-1][2], scale_a=a.scales.codes, scale_b=scale_b,
        alpha=nvfp4_alpha(np.abs(x).max(), np.abs(w).max()),
    )  # fmt: skip
    assert (found.codes == wanted).all() and "times" in found.how


def test_longer_blocks_repeat_their_scale():
    long = replace(get_block_format("mxfp8"), block=(64,))
    x, y = data((2, 128), 21), data((128, 2), 23)
    a, b = quantize(x, long), quantize(y, long, axis=0)
    short_a = replace(a, format=get_block_format("mxfp8"), scales=from_codes(a.scales.codes.repeat(2, axis=1), "e8m0"))
    short_b = replace(b, format=get_block_format("mxfp8"), scales=from_codes(b.scales.codes.repeat(2, axis=0), "e8m0"))
    assert (matmul(a, b, chip="b200").codes == matmul(short_a, short_b, chip="b200").codes).all()


def test_nan_and_zero_scales_on_the_chip():
    a, b = quantize(np.ones((2, 64)), "mxfp8"), quantize(np.ones((64, 1)), "mxfp8", axis=0)
    nan = replace(a, scales=from_codes([[0xFF, 119], [119, 119]], "e8m0"))
    assert matmul(nan, b, chip="b200").codes.tolist() == [[0x7FFFFFFF], [0x42800000]]
    z = quantize(np.repeat([100.0, 1e-4], 32)[None], "nvfp4")
    assert z.scales.codes[0, 2] == 0
    ones = quantize(np.ones((64, 1)), "nvfp4", axis=0)
    alpha = F(z.tensor_scale) * F(ones.tensor_scale)
    assert matmul(z, ones, chip="b200").values == F(alpha * F(32 * 2688 * 2688))


def test_deepseeks_promotion_by_scalars():
    x, w = data((2, 384), 25), data((384, 128), 27)
    x[:, 128:256] *= 21
    w[256:] /= 39
    a, b = (
        quantize(v, replace(get_block_format(n), rule="current")) for v, n in ((x, "fp8_1x128"), (w, "fp8_128x128"))
    )
    found = matmul(a, b, chip="h100")
    for i, j in np.ndindex(2, 3):
        total = Fraction(0)
        for s in range(3):
            here = slice(128 * s, 128 * s + 128)
            piece = tensorcore.matmul(a.codes[i : i + 1, here], b.codes[here, j : j + 1], chip="h100",
                                      instruction="wgmma.m64n256k32.f32.e4m3.e4m3")  # fmt: skip
            factor = F(a.scales.values[i, s]) * F(b.scales.values[s, 0])
            part = Fraction(float(decode(piece, "fp32")[0, 0])) * Fraction(float(factor))
            total = Fraction(float(round_to(total + part, "fp32")))
        assert found.values[i, j] == total
    assert "wgmma.m64n256k32.f32.e4m3.e4m3 on h100, chains of 128" in found.how


def test_promotion_with_scales_of_one_is_promote():
    one = np.float32(1.0)
    a = quantize(data((3, 256), 29), "fp8_1x128", multiplier=one)
    b = quantize(data((256, 4), 31), "fp8_1x128", multiplier=one, axis=0)
    wanted = tensorcore.matmul(a.codes, b.codes, chip="h100", instruction="wgmma.m64n256k32.f32.e4m3.e4m3", promote=128)
    assert (matmul(a, b, chip="h100").codes == wanted).all()


def test_per_tensor_and_per_row_scales_come_last():
    x, y = data((3, 256), 33), data((256, 4), 35)
    a, b = quantize(x, "fp8_tensor"), quantize(y, "fp8_tensor_e5m2")
    scale = float(F(a.scales.values) * F(b.scales.values))
    wanted = tensorcore.matmul(a.codes, b.codes, chip="h100", instruction="wgmma.m64n256k32.f32.e4m3.e5m2", alpha=scale)
    assert (matmul(a, b, chip="h100").codes == wanted).all()
    a, b = quantize(x, "torchao_rowwise"), quantize(y, "torchao_rowwise", axis=0)
    plain = tensorcore.matmul(
        a.codes, b.codes, chip="b200", instruction="tcgen05.m128n256k32.kind::f8f6f4.f32.e4m3.e4m3"
    )
    values = decode(plain, "fp32") * a.scales.values * b.scales.values  # powers of two: exact
    assert (matmul(a, b, chip="b200").values == values).all()
    assert (matmul(a, b, chip="b200", alpha=0.5, output="bf16").codes == encode(values * 0.5, "bf16")).all()
    ones = quantize(np.ones((2, 40)), "fp8_tensor"), quantize(np.ones((40, 2)), "fp8_tensor")
    back = F(1) / F(448)  # rounded, and so is its square: 40.000004
    assert matmul(*ones, chip="h100").values[0, 0] == F(F(back * back) * F(40 * 448**2)) != 40


def test_nan_on_the_fp8_path_is_the_chips():
    a = quantize(np.ones((1, 256)), "fp8_1x128")
    codes = a.codes.copy()
    codes[0, 200] = 0x7F
    b = quantize(np.ones((256, 1)), "fp8_1x128", axis=0)
    assert matmul(replace(a, codes=codes), b, chip="h100").codes == 0x7FFFFFFF
    assert matmul(replace(a, codes=codes), b, chip="h100", output="bf16").codes == 0x7FFF
    assert matmul(replace(a, scales=array([[np.nan, 1.0]], "fp32")), b, chip="h100").codes == 0x7FFFFFFF


def test_what_a_chip_has_not():
    mx, mx_b = quantize(np.ones((1, 64)), "mxfp8"), quantize(np.ones((64, 1)), "mxfp8", axis=0)
    with pytest.raises(InputError, match=r"H100.*mxfp8 x mxfp8.*b200, rtx5090, rtxpro6000"):
        matmul(mx, mx_b, chip="h100")
    with pytest.raises(InputError, match="unknown chip"):
        matmul(mx, mx_b, chip="h1000")
    nf4, nf4_b = quantize(np.ones((1, 64)), "nf4"), quantize(np.ones((64, 1)), "nf4", axis=0)
    with pytest.raises(InputError, match="no chip has one"):
        matmul(nf4, nf4_b, chip="b200")
    with pytest.raises(InputError, match=r"A100.*it exists on.*h100"):
        matmul(quantize(np.ones((1, 64)), "fp8_tensor"), quantize(np.ones((64, 1)), "fp8_tensor"), chip="a100")
    with pytest.raises(InputError, match="does not take"):
        matmul(mx, mx_b, chip="b200", instruction=SCALED[-1][2])
    with pytest.raises(InputError, match="does not take"):
        matmul(mx, mx_b, chip="h100", instruction="wgmma.m64n256k32.f32.e4m3.e4m3")
    with pytest.raises(InputError, match="no chip has one"):  # one scale in E8M0, one in FP32
        matmul(mx, quantize(np.ones((64, 1)), "fp8_tensor"), chip="b200")


def test_a_model_of_ones_own():
    model = tensorcore.get_model("b200", SCALED[0][2])
    a, b = quantize(data((2, 64), 37), "mxfp8"), quantize(data((64, 2), 39), "mxfp8", axis=0)
    assert (matmul(a, b, chip=model).codes == matmul(a, b, chip="b200").codes).all()
    wide = replace(model, chip="mine", unit=replace(model.unit, fraction_bits=5))
    assert (matmul(a, b, chip=wide).codes != matmul(a, b, chip="b200").codes).any()


def test_inputs_stay_as_they_are():
    a, b = quantize(data((2, 64), 41), "nvfp4"), quantize(data((64, 2), 43), "nvfp4", axis=0)
    before = a.codes.copy(), a.scales.codes.copy(), b.codes.copy()
    matmul(a, b), matmul(a, b, chip="b200")
    assert (a.codes == before[0]).all() and (a.scales.codes == before[1]).all() and (b.codes == before[2]).all()
    assert matmul(a, b).format == FP32
