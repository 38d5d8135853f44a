"""What block formats are given by mistake: an error of numsim's own that shows the value, the rule and a call."""

import math

import numpy as np
import pytest

from numsim.blocks import (
    double_quantize,
    four_over_six,
    hadamard,
    matmul,
    normal_floats,
    nvfp4_alpha,
    quantize,
)
from numsim.errors import InputError

HUGE = 10**400


def refused(call, start):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value).startswith(start) and "Example: " in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("x", ["", "1", b"x", True, np.bool_(True), np.array(True), None, [1.0], 1j, {}], ids=repr)
def test_alpha(x):
    refused(lambda: nvfp4_alpha(x, 1.0), "amax_a=")
    refused(lambda: nvfp4_alpha(1.0, x), "amax_b=")
    if x is not None:
        a = quantize(np.ones((16, 64)), "nvfp4")
        b = quantize(np.ones((64, 8)), "nvfp4", axis=0)
        refused(lambda: matmul(a, b, chip="b200", alpha=x), "alpha=")


def test_alpha_of_what_rounds_to_infinity():
    assert nvfp4_alpha(HUGE, 1.0) == math.inf and math.isnan(nvfp4_alpha(math.nan, 1))
    a = quantize(np.ones((16, 64)), "nvfp4")
    refused(lambda: matmul(a, quantize(np.ones((64, 8)), "nvfp4", axis=0), chip="b200", alpha=HUGE), "alpha=")
    assert nvfp4_alpha(np.array(2688.0), np.float32(2688)) == 1


@pytest.mark.parametrize("x", [(0, 0), None, 256, (448,), (448.0, 448), ("a", "b"), (True, 448), np.zeros(0)], ids=repr)
def test_scale_max(x):
    refused(lambda: nvfp4_alpha(1.0, 1.0, scale_max=x), "scale_max=")
    if not isinstance(x, int):
        refused(lambda: four_over_six(np.ones(16), scale_max=x), "scale_max=")


@pytest.mark.parametrize("bits", [0, 1, -3, 9, "4", 4.0, True, None, HUGE], ids=repr)
def test_bits_of_normal_floats(bits):
    refused(lambda: normal_floats(bits), "bits=")


@pytest.mark.parametrize("offset", [1.0, 0.5, 1 - 2.0**-26, 0, 2, math.nan, "x", None, HUGE], ids=repr)
def test_offset_of_normal_floats(offset):
    refused(lambda: normal_floats(4, offset), "offset=")


def test_the_ends_of_normal_floats():
    assert normal_floats(2).size == 4 and normal_floats(8).size == 256
    assert np.isfinite(normal_floats(4, 1 - 2.0**-24)).all() and np.isfinite(normal_floats(4, 0.5 + 2.0**-24)).all()


def test_other_options():
    refused(lambda: double_quantize(None), "None: FP32 block scales")
    refused(lambda: double_quantize(quantize(np.ones(32), "mxfp8")), "numsim.blocks.BlockArray(mxfp8")
    for x in (np.zeros(0), "x", 1, None):
        refused(lambda x=x: hadamard(np.ones(16), inverse=x), "inverse=")
    a, b = quantize(np.ones((16, 64)), "nvfp4"), quantize(np.ones((64, 8)), "nvfp4", axis=0)
    for x in (5, b"x", ["x"]):
        refused(lambda x=x: matmul(a, b, chip="b200", instruction=x), "instruction=")


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    ones = torch.ones(32)
    for fine in (torch.nn.Parameter(ones), ones.bfloat16(), ones.to(torch.float8_e4m3fn)):
        assert (quantize(fine, "mxfp8").values == 1).all()
    for wrong in (ones.to(torch.complex64), ones.to_sparse(), torch.ones(32, device="meta")):
        refused(lambda x=wrong: quantize(x, "mxfp8"), "a torch tensor of dtype ")
