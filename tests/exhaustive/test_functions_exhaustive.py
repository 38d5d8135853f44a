"""Elementary functions: every code of the formats of up to 16 bits, every mode and policy. Minutes: -m exhaustive."""

import numpy as np
import pytest

import numsim
from numsim.functions import FUNCTIONS
from numsim.random import Stream
from tests import test_functions as normal

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("function", normal.NAMES)
@pytest.mark.parametrize("name", normal.SPECS)
def test_every_policy(name, function):
    normal.check(function, name, normal.POLICIES)


@pytest.mark.parametrize("function", normal.NAMES)
@pytest.mark.parametrize("target", ["fp16", "bf16", "e4m3fn", "e5m2fnuz", "e3m2", "e8m0", "fp32"])
@pytest.mark.parametrize("source", ["fp16", "bf16", "e5m2"])
def test_every_code_into_another_format(source, target, function):
    normal.check(function, source, normal.SOME, target)


@pytest.mark.parametrize("function", [n for n in normal.NAMES if n != "sigmoid"])
@pytest.mark.parametrize("name", ["fp16", "bf16", "e5m2", "e3m4", "e4m3_ieee", "e6m9", "e2m10", "e10m5"])
def test_every_code_by_mpfr_alone(name, function):
    format = numsim.get_format(name)
    normal.check_mpfr(function, format, np.arange(format.codes).astype(f"u{format.code_bytes}"))


@pytest.mark.parametrize("function", normal.NAMES)
@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e8m0"])
def test_every_code_by_the_reference(name, function):
    """What a table says, number by number; stochastic too, with all 32 bits."""
    x = normal.all_codes(name)
    for options in ({}, {"rounding": "up", "subnormals": "flush"}, {"rounding": "stochastic", "seed": Stream(8)}):
        seed = options.get("seed")
        with numsim.kernels.force("reference"):
            slow = FUNCTIONS[function](x, **options)
        if seed:
            options["seed"] = Stream(8)
        with numsim.kernels.force("kernel"):
            fast = FUNCTIONS[function](x, **options)
        normal.assert_codes(fast.codes, slow.codes, f"{function} {name} {options}")
