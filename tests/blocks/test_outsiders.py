"""Block formats against other people's code: torch and ml_dtypes casts, torchao and gfloat where installed.

What is known to differ stands beside the test, with who is right by which text.
"""

import importlib
import warnings

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim.blocks import get_block_format, quantize
from numsim.blocks.rules import RULES

MX = {"mxfp8": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2", "mxfp6": "float6_e2m3fn", "mxfp6_e3m2": "float6_e3m2fn",
      "mxfp4": "float4_e2m1fn"}  # fmt: skip


def outsider(name):
    """A peer, or a skip; what it says while it is loaded is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f'{name} is not installed: pip install "numsim[bench]"')


def numbers(rows=64, seed=0):
    """Rows of 32 in many binades, each with amaxes near the thresholds of one rule or another."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 32)) * 2.0 ** rng.integers(-60, 60, (rows, 1))
    top = rng.choice([1.0, 1.5, 1.75, 1.75 * (1 + 2**-22), 1.8751, 1.9375, 1.93749, 1.99], rows)
    x[:, 5] = top * 2.0 ** (np.frexp(np.abs(x).max(axis=1))[1] + rng.integers(0, 2, rows))
    return x.astype(np.float32)


@pytest.mark.parametrize("name", MX)
def test_elements_as_ml_dtypes_casts_them(name):
    """Elements are ml_dtypes' casts of x / scale, clamped first: outside the range ml_dtypes does not saturate."""
    x = numbers(seed=1)
    got = quantize(x, name)
    scaled = x.astype(float) / got.scales.values
    most = got.format.element_max
    cast = np.clip(scaled, -most, most).astype(np.dtype(getattr(ml_dtypes, MX[name])))
    np.testing.assert_array_equal(got.codes, cast.view(np.uint8))
    np.testing.assert_array_equal(got.values, cast.astype(float) * got.scales.values)


@pytest.mark.parametrize(
    "name", ["mxfp8", "mxfp8_e5m2", "fp8_tensor", "fp8_tensor_e5m2", "fp8_1x128", "torchao_rowwise"]
)
def test_elements_as_torch_casts_them(name):
    torch = pytest.importorskip("torch")
    x = numbers(seed=2).reshape(-1, 128)
    got = quantize(x, name)
    multiplier = RULES[got.format.rule].scales(amaxes(x, got.format), got.format, None).multiplier
    scaled = torch.from_numpy((x.reshape(*got.scales.shape, -1) * multiplier[..., None]).reshape(x.shape))
    most = got.format.element_max
    dtype = torch.float8_e4m3fn if most == 448 else torch.float8_e5m2
    cast = scaled.clamp(-most, most).to(dtype).view(torch.uint8).numpy()
    np.testing.assert_array_equal(got.codes, cast)


def amaxes(x, format):
    if format.block is None:
        return np.abs(x).max()
    return np.abs(x).reshape(len(x), -1, format.block[0] or x.shape[1]).max(axis=2)


def test_bytes_of_e8m0_as_torch_and_ml_dtypes_read_them():
    torch = pytest.importorskip("torch")
    codes = np.arange(256, dtype=np.uint8)
    ours = numsim.decode(codes, "e8m0")
    np.testing.assert_array_equal(ours, torch.from_numpy(codes).view(torch.float8_e8m0fnu).float().numpy())
    np.testing.assert_array_equal(ours, codes.view(ml_dtypes.float8_e8m0fnu).astype(float))


def test_torchs_own_cast_to_e8m0_is_none_of_the_rules():
    """It rounds a quotient to the nearest power of two, ties up: 1.5 becomes 2, 1.49 becomes 1 (pytorch #175409)."""
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, 1.49, 1.5, 1.99, 3.0, 0.0])
    assert x.to(torch.float8_e8m0fnu).float().tolist() == [1, 1, 2, 2, 4, 2.0**-127]
    exponents = {
        rule: quantize(np.full(32, 1.49 * 448), "mxfp8", rule=rule).scales.values[0] for rule in ("floor", "rceil")
    }
    assert exponents == {"floor": 2, "rceil": 2}


# --- torchao ----------------------------------------------------------------------------------------------------------
def torchao_mx(x, name, mode):
    torch = pytest.importorskip("torch")
    outsider("torchao")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mx = importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
        constants = importlib.import_module("torchao.prototype.mx_formats.constants")
        element = {"mxfp8": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2, "mxfp6": constants.DTYPE_FP6_E2M3,
                   "mxfp6_e3m2": constants.DTYPE_FP6_E3M2, "mxfp4": torch.float4_e2m1fn_x2}[name]  # fmt: skip
        scales, codes = mx.to_mx(torch.from_numpy(x.copy()), element, 32, mx.ScaleCalculationMode[mode.upper()])
    codes = codes.view(torch.uint8).numpy()
    if name == "mxfp4":
        codes = numsim.unpack(codes.reshape(-1), "e2m1").reshape(x.shape)
    return codes, scales.view(torch.uint8).numpy()


@pytest.mark.parametrize("rule", ["floor", "ceil", "even"])
@pytest.mark.parametrize("name", MX)
def test_mx_as_torchao(name, rule):
    x = numbers(256, seed=3)
    codes, scales = torchao_mx(x, name, rule)
    got = quantize(x, name, rule=rule)
    np.testing.assert_array_equal(got.scales.codes, scales)
    np.testing.assert_array_equal(got.codes, codes)


@pytest.mark.parametrize("name", MX)
def test_mx_rceil_as_torchao(name):
    """All but amaxes where FP32's log2 in its release 0.18.0 hides that the quotient is above a power of two."""
    x = numbers(256, seed=4)
    codes, scales = torchao_mx(x, name, "rceil")
    got = quantize(x, name, rule="rceil")
    quotient = np.abs(x).max(axis=1) / got.format.element_max
    near = np.abs(np.log2(quotient.astype(float)) % 1) < 1e-5
    assert (~near).sum() > 100
    np.testing.assert_array_equal(got.scales.codes[~near], scales[~near])
    np.testing.assert_array_equal(got.codes[~near], codes[~near])


@pytest.mark.parametrize("rule", ["torchao", "torchao-pow2"])
@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_scales_as_torchao(rule, element):
    torch = pytest.importorskip("torch")
    outsider("torchao")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        utils = importlib.import_module("torchao.float8.float8_utils")
    amax = np.concatenate(
        [np.random.default_rng(5).integers(0, 0x7F800000, 1 << 16, dtype=np.uint32).view(np.float32),
         np.array([0, np.inf, np.nan, 448, 57344, 1e-12, 1e-13], np.float32),
         np.nextafter(np.float32(448) * np.ldexp(np.float32(1), np.arange(-100, 100)), np.float32(0))]
    ).astype(np.float32)  # fmt: skip
    dtype = torch.float8_e4m3fn if element == "e4m3" else torch.float8_e5m2
    theirs = utils.amax_to_scale(torch.from_numpy(amax), dtype, rule == "torchao-pow2").numpy()
    format = get_block_format("torchao_tensorwise")
    format = type(format)("x", numsim.get_format(element), numsim.FP32, None, rule)
    np.testing.assert_array_equal(RULES[rule].scales(amax, format, None).multiplier, theirs)


# --- gfloat -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*MX, "mxint8"])
def test_mx_as_gfloat(name):
    """By the floor rule, in float64, one block at a time."""
    gfloat = outsider("gfloat")
    formats = importlib.import_module("gfloat.formats")
    info = getattr(
        formats, "format_info_" + {"mxfp8": "mxfp8_e4m3", "mxfp6": "mxfp6_e2m3", "mxfp4": "mxfp4_e2m1"}.get(name, name)
    )
    x = numbers(32, seed=6)
    got = quantize(x, name).values
    for row, ours in zip(x.astype(float), got, strict=True):
        np.testing.assert_array_equal(gfloat.quantize_block(info, row, gfloat.compute_scale_amax), ours)
