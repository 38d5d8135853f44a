"""How the scale is taken off again: torch's kernel as the oracle, and the other systems' own ways by hand."""

import math

import numpy as np
import pytest

import numsim
from numsim.errors import InputError
from numsim.scaling import ScalerError, State, get_scaler, unscale

INF = math.inf
SCALES = [3.1, 65536.0, 1.0, 2.0**-8, 2.0**-128, 2.0**-140, 0.0, -0.0, INF, math.nan, -2.0]


def bits(x):
    x = np.asarray(x, np.float64)
    return np.where(np.isnan(x), np.nan, x).view(np.uint64).tolist()


@pytest.mark.parametrize("name", ["torch", "sharded"])
@pytest.mark.parametrize("format", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("scale", SCALES)
def test_torch_kernel(name, format, scale):
    torch = pytest.importorskip("torch")
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}[format]
    rng = np.random.default_rng(4)
    finite = np.concatenate([rng.standard_normal(200) * 2.0 ** rng.integers(-24, 15, 200), [0.0, -0.0, 6e-8, 65504.0]])
    for extra in ([], [INF], [math.nan], [3e38]):
        grads = torch.tensor([*finite, *extra], dtype=torch.float64).to(dtype)
        x = numsim.array(grads.double().numpy(), format)
        found = torch.zeros(1)
        scale32 = torch.tensor(scale, dtype=torch.float32)
        torch._amp_foreach_non_finite_check_and_unscale_([grads], found, scale32.double().reciprocal().float())
        values, got = unscale(get_scaler(name), State(scale32.item()), x)
        assert values.format.name == format and bits(values.values) == bits(grads.double().numpy())
        assert got == bool(found.item())


def found(name, grads, scale=1.0):
    return unscale(get_scaler(name), State(scale), grads, "fp32")[1]


def test_where_each_system_looks():
    everyone = ["torch", "megatron", "static", "deepspeed", "keras", "jmp", "flax", "openseq2seq"]
    for name in [*everyone, "apex", "apex-fp16", "fairseq"]:
        assert not found(name, [1.0, -2.0]) and found(name, [1.0, INF]) and found(name, [math.nan])
    overflows = ["jmp", "flax", "openseq2seq", "openseq2seq-logmax", "fairseq"]  # 3e38 times 2^8 is infinite
    assert [n for n in [*everyone, "openseq2seq-logmax", "fairseq"] if found(n, [3e38], 2.0**-8)] == overflows
    sums = [3e38, 3e38]  # each is finite, their sum is not
    assert [n for n in [*everyone, "apex", "apex-fp16"] if found(n, sums)] == ["apex", "apex-fp16"]
    assert found("apex", [INF, -INF]) and not found("apex", [3e38, -3e38])
    assert found("fairseq", [2.0**64]) and not found("fairseq", [2.0**63])  # its square is infinite


def test_dividing_is_not_multiplying():
    """7 / 3 and 7 * fp32(1 / 3) differ in the last bit."""
    state = State(3.0)
    values = {n: float(unscale(get_scaler(n), state, [7.0], "fp32")[0].values[0]) for n in ("torch", "flax", "keras")}
    with np.errstate(all="raise"):
        divided, multiplied = np.float32(7) / np.float32(3), np.float32(7) * np.float32(1 / 3)
    assert values == {"torch": multiplied, "flax": divided, "keras": divided} and divided != multiplied


def test_formats_of_the_result():
    grads = numsim.array([1.0, 0.1], "fp16")
    for name, format in (("torch", "fp16"), ("megatron", "fp32"), ("flax", "fp32"), ("apex", "fp32")):
        values, _ = unscale(get_scaler(name), State(2.0), grads)
        assert values.format.name == format and values.values.tolist() == [0.5, 0.04998779296875]
    assert unscale(get_scaler("torch"), State(2.0), np.float64([1.0]))[0].format.name == "fp64"
    assert unscale(get_scaler("flax"), State(2.0), np.float64([1.0]))[0].format.name == "fp32"


def test_a_python_scale_of_zero_divides_by_it():
    for name in ("apex", "fairseq"):
        with pytest.raises(ScalerError, match="float division by zero") as caught:
            unscale(get_scaler(name), State(0.0), [1.0], "fp32")
        assert caught.value.original == "ZeroDivisionError"
    values, seen = unscale(get_scaler("torch"), State(0.0), [0.0], "fp32")
    assert np.isnan(values.values).all() and not seen
    values, seen = unscale(get_scaler("keras"), State(0.0), [0.0], "fp32")
    assert np.isnan(values.values).all() and not seen


def test_what_is_refused():
    for scaler, state in (
        (5, State(1.0)),
        ("torch", State(1.0)),
        (get_scaler("torch"), 5),
        (get_scaler("torch"), None),
    ):
        with pytest.raises(InputError, match="a scaler and a state are needed"):
            unscale(scaler, state, [1.0], "fp32")
