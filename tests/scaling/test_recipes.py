"""Recipes: what each tensor becomes for each product, written down again; scales against torch and by hand."""

import dataclasses
import math

import numpy as np
import pytest

import numsim
from numsim import round_to
from numsim.blocks import NVFP4, get_block_format, hadamard, matmul, quantize
from numsim.errors import FormatError, InputError, UnavailableError
from numsim.random import Stream
from numsim.scaling import (
    DelayedScaling,
    Gemm,
    Operand,
    Recipe,
    default_recipe,
    get_recipe,
    list_recipes,
    quantize_operand,
)
from numsim.scaling.recipes import ACCUMULATIONS, GEMMS, SCALINGS

F, INF, NAN = np.float32, math.inf, math.nan
FLT_MAX = float(np.finfo(np.float32).max)
USES = [(gemm, operand) for gemm, operands in GEMMS.items() for operand in operands]
NAMES = [recipe.name for recipe in list_recipes()]
X = np.random.default_rng(0).normal(0, 3, (256, 384)).astype(np.float32)


def states(recipe, operand):
    return recipe.delayed.initial("backward" if operand == "grad_output" else "forward") if recipe.delayed else None


def quantized(name, operand, x, gemm=None):
    recipe = get_recipe(name)
    made = recipe.operand(operand, gemm)
    seed = 7 if made is not None and made.rounding == "stochastic" else None
    return quantize_operand(recipe, operand, x, gemm=gemm, state=states(recipe, operand), seed=seed)[0]


# --- what is done to what ---------------------------------------------------------------------------------------------
E4, E5 = ("e4m3fn", None, "current"), ("e5m2", None, "current")
LINE, SQUARE = ("e4m3fn", (128,), "current-pow2"), ("e4m3fn", (128, 128), "current-pow2")
MX = ("e4m3fn", (32,), "te")
AO, AO5 = ("e4m3fn", None, "torchao"), ("e5m2", None, "torchao")
ROW2, ROW = ("e4m3fn", (0,), "torchao-pow2"), ("e4m3fn", (0,), "torchao")
NV, NV2 = ("e2m1", (16,), "nvfp4"), ("e2m1", (16, 16), "nvfp4")
TABLE = {  # element, block and rule of: input and weight of fprop, grad_output and weight of dgrad, both of wgrad
    "te-delayed": ((E4, E4), (E5, E4), (E4, E5), "fast split split", "delayed"),
    "te-current": ((E4, E4), (E5, E4), (E4, E5), "fast split split", "current"),
    "te-blocks": ((LINE, SQUARE), (LINE, SQUARE), (LINE, LINE), "split split split", "blocks"),
    "te-mxfp8": ((MX, MX), (MX, MX), (MX, MX), "native native native", "blocks"),
    "te-nvfp4": ((NV, NV2), (NV, NV2), (NV, NV), "native native native", "blocks"),
    "torchao-tensorwise": ((AO, AO), (AO5, AO), (AO, AO5), "fast split split", "current"),
    "torchao-rowwise": ((ROW2, ROW2), (ROW2, ROW2), (ROW2, ROW2), "fast split split", "current"),
    "torchao-rowwise-gw-hp": ((ROW, ROW), (ROW, AO), (None, None), "fast split native", "current"),
    "mxfp8": ((("e4m3fn", (32,), "floor"),) * 2,) * 3 + ("open open open", "blocks"),
    "mxfp6": ((("e2m3", (32,), "floor"),) * 2,) * 3 + ("open open open", "blocks"),
    "mxfp4": ((("e2m1", (32,), "floor"),) * 2,) * 3 + ("open open open", "blocks"),
}


def test_the_table_has_all():
    assert list(TABLE) == NAMES and all(recipe.source and recipe.title for recipe in list_recipes())
    assert GEMMS == {
        "fprop": ("input", "weight"),
        "dgrad": ("grad_output", "weight"),
        "wgrad": ("input", "grad_output"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_recipe(name):
    recipe, (*gemms, accumulation, scaling) = get_recipe(name), TABLE[name]
    assert recipe.scaling == scaling in SCALINGS
    assert [recipe.gemm(g).accumulation for g in GEMMS] == accumulation.split()
    assert all(word in ACCUMULATIONS for word in accumulation.split())
    for gemm, expected in zip(GEMMS, gemms, strict=True):
        for tensor, what in zip(GEMMS[gemm], expected, strict=True):
            operand = recipe.operand(tensor, gemm)
            if what is None:
                assert operand is None
                continue
            f = operand.format
            assert (f.element.name, f.block, f.rule) == what
            random = name == "te-nvfp4" and tensor == "grad_output"
            assert (operand.rounding, operand.sr_bits) == (("stochastic", 8) if random else ("nearest-even", None))
            assert operand.transform == ("hadamard" if name == "te-nvfp4" and gemm == "wgrad" else "")


@pytest.mark.parametrize(("gemm", "operand"), USES)
@pytest.mark.parametrize("name", NAMES)
def test_scales_lie_along_the_summed_axis(name, gemm, operand):
    """Along what is summed a scale covers its block; across it every row has its own, but for tiles and whole tensors.

    Changing one number changes codes only in its own block.
    """
    made = quantized(name, operand, X, gemm)
    if made.format == numsim.BF16:
        assert np.array_equal(made.codes, numsim.encode(X, "bf16"))
        return
    assert made.shape == X.shape
    axis = {"fprop": 1, "dgrad": 0 if operand == "weight" else 1, "wgrad": 0}[gemm]
    block = made.format.block
    grid = [256, 384]
    if block is None:
        assert made.scales.shape == ()
        return
    if len(block) == 2:
        assert made.scales.shape == (256 // block[0], 384 // block[1])
        return
    grid[axis] = grid[axis] // block[0] if block[0] else 1
    assert made.scales.shape == tuple(grid)
    if made.format.has_tensor_scale:
        return
    one = X.copy()
    one[3, 5] *= 64
    where = np.nonzero(quantized(name, operand, one, gemm).codes != made.codes)
    size = block[0] or X.shape[axis]
    assert np.unique(where[1 - axis]).tolist() == [(3, 5)[1 - axis]] and where[axis].max() < size


def test_the_two_copies_are_different_numbers():
    x = np.ldexp(X, np.arange(384) % 7)
    for name in ("te-blocks", "te-mxfp8", "te-nvfp4", "torchao-rowwise", "mxfp4"):
        fprop, wgrad = (quantized(name, "input", x, gemm).values for gemm in ("fprop", "wgrad"))
        assert not np.array_equal(fprop, wgrad)
    for name in ("te-blocks", "te-nvfp4"):  # tiles make a weight and its transpose the same numbers
        fprop, dgrad = (quantized(name, "weight", x, gemm).values for gemm in ("fprop", "dgrad"))
        assert np.array_equal(fprop, dgrad)
    for name in ("te-current", "torchao-tensorwise"):
        fprop, wgrad = (quantized(name, "input", x, gemm).values for gemm in ("fprop", "wgrad"))
        assert np.array_equal(fprop, wgrad)


# --- scales -----------------------------------------------------------------------------------------------------------
ULP_BELOW = float(np.nextafter(F(448), F(0)))


@pytest.mark.parametrize(
    ("amax", "te", "torchao"),
    [
        (0.0, 1.0, float(F(4.48e14))),
        (INF, 1.0, 0.0),
        (NAN, 1.0, NAN),
        (1.0, 448.0, 448.0),
        (448.0, 1.0, 1.0),
        (3.0, float(F(448) / F(3)), float(F(448 / 3))),
        (2.0**-149, FLT_MAX, float(F(4.48e14))),
    ],
)
def test_transformer_engine_and_torchao_differ(amax, te, torchao):
    """The table of both libraries' scales; stored is the reciprocal."""
    with np.errstate(divide="ignore"):
        for name, scale in (("te-current", te), ("torchao-tensorwise", torchao)):
            stored = quantized(name, "input", [amax] * 4).scales.values
            assert np.array_equal(stored, F(1) / F(scale), equal_nan=True)
    if amax == INF:  # inf x 0 is NaN in torchao; Transformer Engine saturates
        assert quantized("te-current", "input", [INF, 1.0]).values.tolist() == [448.0, 1.0]
        assert quantized("torchao-tensorwise", "input", [INF, 1.0]).codes.tolist() == [0x7F, 0]


@pytest.mark.parametrize(
    ("amax", "te", "torchao"),
    [
        (0.0, 1.0, 2.0**48),
        (ULP_BELOW, 1.0, 1.0),
        (448.0, 1.0, 1.0),
        (449.0, 0.5, 0.5),
        (1.0, 256.0, 256.0),
        (7.0 * 2**-10 * (1 + 2.0**-23), 2.0**15, 2.0**16),  # the scale is just below 2^16: log2 rounds up to 16
    ],
)
def test_powers_of_two(amax, te, torchao):
    x = np.zeros((128, 128), np.float32)
    x[0, 0] = amax
    for name, operand, scale in (("te-blocks", "input", te), ("te-blocks", "weight", te),
                                 ("torchao-rowwise", "input", torchao)):  # fmt: skip
        assert quantized(name, operand, x).scales.values[0, 0] == 1 / scale


@pytest.mark.parametrize("gemm", ["fprop", "wgrad"])
@pytest.mark.parametrize("name", ["torchao-tensorwise", "torchao-rowwise"])
def test_torchao_in_torch(name, gemm):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(np.ldexp(X, np.arange(384) % 40 - 20))
    axis = {"torchao-tensorwise": None, "torchao-rowwise": {"fprop": 1, "wgrad": 0}[gemm]}[name]
    amax = x.abs().amax() if axis is None else x.abs().amax(dim=axis, keepdim=True)
    scale = (448.0 / amax.double().clamp(min=1e-12)).float()
    if name == "torchao-rowwise":
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    codes = (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    made = quantized(name, "input", x.numpy(), gemm)
    assert np.array_equal(made.codes, codes.numpy())
    assert np.array_equal(made.scales.values.reshape(scale.shape), scale.reciprocal().numpy())


def test_gradients_in_e5m2():
    for name in ("te-current", "torchao-tensorwise"):
        made = quantized(name, "grad_output", [1.0, -2.0, 0.3])
        assert made.format.element == numsim.E5M2 and float(made.scales.values) == F(1) / F(57344 / 2)
    made, state = quantize_operand("te-delayed", "grad_output", [1e6], state=DelayedScaling().initial("backward"))
    assert made.values.tolist() == [57344.0] and state.amax_history[0] == 1e6


def test_delayed_scaling_keeps_its_state():
    settings = DelayedScaling(amax_history_len=2, fp8_format="E4M3")
    state = settings.update(settings.record(settings.initial("backward"), 4.0))
    made, state = quantize_operand(settings, "grad_output", [4.0, 8.0], gemm="wgrad", state=state)
    assert made.codes.tolist() == [0x7E, 0x7E] and state.amax_history.tolist() == [8.0, 4.0]
    assert quantize_operand("te-current", "input", [1.0])[1] is None


def test_nvfp4_gradients():
    """Stochastic, reproducible, unbiased to a few standard errors; both factors of wgrad are transformed alike."""
    x = np.full((64, 512), 0.3, np.float32)
    x[:, ::16] = 6.0
    first, again = (quantize_operand("te-nvfp4", "grad_output", x, seed=3)[0] for _ in range(2))
    other = quantize_operand("te-nvfp4", "grad_output", x, seed=4)[0]
    assert np.array_equal(first.codes, again.codes) and not np.array_equal(first.codes, other.codes)
    rest = first.elements[x == F(0.3)]  # 0.3 is 153.6/256 of a step, and 8 bits make 153 of it
    assert set(rest.tolist()) == {0.0, 0.5} and abs(rest.mean() - 153 / 256 * 0.5) < 0.01
    stream = Stream(3)
    quantize_operand("te-nvfp4", "grad_output", x, seed=stream)
    assert stream.position == x.size
    matrix = np.array([[1 - 2 * ((i & j).bit_count() % 2) for j in range(16)] for i in range(16)]) / 4
    signs = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1])
    spread = np.zeros((16, 16), np.float32)
    spread[3, :] = 4.0  # one token of 16: all 16 get a share of it
    made = quantize_operand("te-nvfp4", "input", spread, gemm="wgrad")[0]
    assert np.array_equal(made.elements, 6 * (matrix @ np.diag(signs) @ spread))


def test_operands_do_what_they_say():
    x = np.random.default_rng(4).normal(size=(32, 16)).astype(np.float32)
    plain, turned = Operand("nvfp4"), Operand("nvfp4", transform="hadamard")
    assert plain == Operand(NVFP4) and plain.format is NVFP4 and hash(plain) == hash(Operand("NVFP4"))
    assert (plain.quantize(x, axis=0).codes == quantize(x, "nvfp4", axis=0).codes).all()
    by_hand = quantize(round_to(hadamard(x, axis=0), "bf16"), "nvfp4", axis=0)
    found = turned.quantize(x, axis=0)
    assert (found.codes == by_hand.codes).all() and (found.scales.codes == by_hand.scales.codes).all()
    assert found.tensor_scale == by_hand.tensor_scale != quantize(hadamard(x, axis=0), "nvfp4", axis=0).tensor_scale
    gradient = get_recipe("te-nvfp4").dgrad.a
    drawn = gradient.quantize(x, seed=7)
    again = quantize(x, "nvfp4", rounding="stochastic", seed=7, sr_bits=8)
    assert (drawn.codes == again.codes).all() and (drawn.codes != gradient.quantize(x, seed=8).codes).any()
    assert Operand("nvfp4_2d").quantize(x, axis=0).scales.shape == (2, 1)
    for bad in ({"format": "nvfp5"}, {"format": "nvfp4", "transform": "fourier"}):
        with pytest.raises((InputError, FormatError)):
            Operand(**bad)
    with pytest.raises(InputError, match="seed"):
        gradient.quantize(x)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.format = "mxfp8"


def test_an_outlier_is_spread_and_the_product_stays():
    """One number of 100 makes its 15 neighbours zero; transformed, most of them are still there."""
    x = np.ones((16, 4), np.float32)
    x[3] = 100.0
    y = np.ones((16, 4), np.float32)
    a, b = (dataclasses.replace(f, rounding="nearest-even", sr_bits=None) for f in
            (get_recipe("te-nvfp4").wgrad.a, get_recipe("te-nvfp4").wgrad.b))  # fmt: skip
    turned = matmul(a.quantize(x.T), b.quantize(y, axis=0)).values[0, 0]
    plain = matmul(quantize(x.T, "nvfp4"), quantize(y, "nvfp4", axis=0)).values[0, 0]
    assert plain == 100 and abs(turned - 115) < 10


# --- hardware ---------------------------------------------------------------------------------------------------------
def test_default_recipes():
    found = {c: default_recipe(c).name for c in ((8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1), (13, 0))}
    assert set(list(found.values())[:2]) == {"te-delayed"}
    assert set(list(found.values())[2:5]) == {"te-mxfp8"} and set(list(found.values())[5:]) == {"te-current"}
    for old in ((7, 0), (8, 0), (8, 6)):
        with pytest.raises(UnavailableError, match=r"8\.9 or higher"):
            default_recipe(old)


def test_what_runs_where():
    where = {
        name: [c for c in ((8, 0), (8, 9), (9, 0), (10, 0), (12, 0)) if get_recipe(name).runs_on(c)] for name in NAMES
    }
    fp8 = [(8, 9), (9, 0), (10, 0), (12, 0)]
    assert where["te-delayed"] == where["te-current"] == where["torchao-tensorwise"] == where["torchao-rowwise"] == fp8
    assert where["te-blocks"] == fp8[1:] and where["te-mxfp8"] == [(10, 0)] and where["te-nvfp4"] == fp8[2:]
    assert where["mxfp6"] == [(8, 0), *fp8]  # a format alone asks for no chip


# --- names, and what is refused ---------------------------------------------------------------------------------------
def test_names():
    assert get_recipe(" TE_MXFP8 ") is get_recipe("te-mxfp8") and get_recipe("te-mxfp8").name == "te-mxfp8"
    own = dataclasses.replace(get_recipe("mxfp8"), name="own")
    assert get_recipe(own) is own
    assert get_recipe(DelayedScaling()) == get_recipe("te-delayed")
    assert get_recipe(DelayedScaling(fp8_format="E4M3")).operand("grad_output").format.element == numsim.E4M3
    assert len({hash(recipe) for recipe in list_recipes()}) == len(NAMES)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: get_recipe("te-curent"), "did you mean te-current"),
        (lambda: get_recipe("xyz"), "known are te-delayed"),
        (lambda: get_recipe(None), "unknown recipe None"),
        (lambda: quantize_operand("te-current", "bias", X), "allowed are input, weight, grad_output"),
        (lambda: quantize_operand("te-current", "weight", X, gemm="wgrad"), "weight goes into fprop and dgrad"),
        (lambda: quantize_operand("te-current", "weight", X, gemm="forward"), "allowed are fprop, dgrad, wgrad"),
        (lambda: quantize_operand("te-delayed", "weight", X), "state=None: delayed scaling needs a state"),
        (lambda: quantize_operand("te-delayed", "grad_output", X, state=DelayedScaling().initial()), "'backward'"),
        (lambda: quantize_operand("te-mxfp8", "input", X[:, :40]), "do not fill axis -1"),
        (lambda: quantize_operand("te-mxfp8", "input", X[:40], gemm="wgrad"), "do not fill axis -2"),
        (lambda: quantize_operand("te-blocks", "weight", X[:100]), "128 x 128 do not fill"),
        (lambda: quantize_operand("te-nvfp4", "input", X[:40], gemm="wgrad"), "16"),
        (lambda: quantize_operand("te-mxfp8", "input", X[0]), "needs two axes"),
        (lambda: quantize_operand("torchao-rowwise", "input", X[None]), "x.reshape(-1, x.shape[-1])"),
        (lambda: quantize_operand("te-nvfp4", "grad_output", X), "seed="),
        (lambda: quantize_operand("te-nvfp4", "input", X, seed=1), "rounds input for fprop to nearest"),
        (lambda: quantize_operand("torchao-rowwise-gw-hp", "input", X, gemm="wgrad", seed=1), "leave seed out"),
        (lambda: quantize_operand("te-delayed", "input", X, state=DelayedScaling().initial(), seed=1), "to nearest"),
        (lambda: quantize_operand("te-current", "input", X, state=DelayedScaling().initial()), "which keeps none"),
        (lambda: Operand("nvfp4").quantize(X, seed=1), "uses no random bits"),
        (lambda: Operand("nvfp4", rounding="random"), "rounding='random'"),
        (lambda: Operand("nf4", rounding="up"), "rounds to the nearest of its values"),
        (lambda: Operand("nvfp4", sr_bits=8), "of stochastic rounding alone"),
        (lambda: Operand("nvfp4", rounding="stochastic", sr_bits=33), "1 to 32"),
        (lambda: quantize_operand("mxfp8", "input", [["a"]]), "a"),
        (lambda: default_recipe("9.0"), "two whole numbers"),
        (lambda: default_recipe((9, -1)), "two whole numbers"),
        (lambda: get_recipe("te-mxfp8").runs_on((9.0, 0)), "two whole numbers"),
        (lambda: get_recipe("te-mxfp8").gemm("forward"), "allowed are fprop, dgrad, wgrad"),
        (lambda: Gemm(Operand("fp8_128x128"), Operand("fp8_128x128"), "split"), "two-dimensional blocks is refused"),
        (lambda: Gemm(True, Operand("mxfp8"), "fast"), "True: a factor is an Operand, or None. Example"),
        (lambda: Gemm("nvfp4", Operand("nvfp4"), "native"), "'nvfp4': a factor is an Operand"),
        (lambda: Recipe("x", "x", "blocks", None, None, None), "fprop=None: a Gemm is needed. Example"),
        (lambda: dataclasses.replace(get_recipe("mxfp8"), name=3), "name=3: a text"),
        (lambda: Gemm(Operand("mxfp8"), None, "split"), "one quantised factor"),
        (lambda: Gemm(Operand("mxfp8"), Operand("mxfp8"), "slow"), "allowed are fast, split, native, open"),
        (lambda: dataclasses.replace(get_recipe("mxfp8"), scaling="delayed"), "has settings"),
        (lambda: dataclasses.replace(get_recipe("te-delayed"), delayed=None), "has settings"),
        (lambda: dataclasses.replace(get_recipe("mxfp8"), scaling="static"), "allowed are delayed, current, blocks"),
    ],
)
def test_what_is_refused(call, text):
    with pytest.raises(InputError) as error:
        call()
    assert text in str(error.value)


def test_changed_formats_have_names_of_their_own():
    """A block format that is not in the table does not borrow a name from it."""
    for recipe in list_recipes():
        for gemm, tensor in USES:
            if (operand := recipe.operand(tensor, gemm)) is not None and operand.format.name.startswith("torchao"):
                f = operand.format
                named = get_block_format("torchao_rowwise" if f.block else "torchao_tensorwise")
                assert (f == named) == (f.name == named.name)
