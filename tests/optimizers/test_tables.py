"""Numbers of the field, one by one: when updates are lost, what 16 bits do to Adam's constants and averages."""

import math
import re

import numpy as np
import pytest

from numsim import encode, round_to
from numsim.errors import InputError
from numsim.formats import get_format
from numsim.optimizers import (
    SGD,
    Adam,
    AdamW,
    Bytes,
    Optimizer,
    State,
    accumulate_gradients,
    carry_and_cut,
    lost_updates,
    train_digits,
)
from numsim.random import Stream, bits_from


def after(optimizer, w, g, steps=1):
    state = optimizer.initial(w)
    for _ in range(steps):
        state = optimizer.step(state, g)
    return state


# --- swamping --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "above", "below"), [("fp16", 11, 12), ("bf16", 8, 9), ("fp32", 24, 25)])
@pytest.mark.parametrize("order", ["single-tensor", "foreach", "fused"])
def test_the_first_power_of_two_that_leaves_one_as_it_is(name, above, below, order):
    powers = 2.0 ** -np.arange(1, 31)
    for sign, first in ((-1, above), (1, below)):
        weights = after(SGD(1.0, format=name, order=order), np.ones(30), sign * powers).weights
        assert (weights == 1).argmax() + 1 == first


@pytest.mark.parametrize(("name", "limit"), [("fp16", 2048), ("bf16", 256), ("fp32", 2**24)])
def test_counters_stand_still(name, limit):
    count = SGD(1.0, format=name)
    assert after(count, [limit - 1, limit], [-1.0, -1.0]).weights.tolist() == [limit, limit]


@pytest.mark.parametrize(("name", "limit"), [("fp16", 256), ("bf16", 32)])
def test_a_running_sum_of_tenths_stands_still(name, limit):
    assert accumulate_gradients(np.full(6000, 0.1), name, divide="never") == limit


# --- ways to write back ----------------------------------------------------------------------------------------------
def test_plain_bf16_stays_and_kahan_arrives():
    g = -1e-4
    assert after(SGD(1.0, format="bf16"), 1.0, g, 1000).weights == 1.0
    state = after(SGD(1.0, format="bf16", update="kahan"), 1.0, g, 1000)
    assert state.weights == np.float32(1.1015625) == round_to(1.1, "bf16")


def test_masters_keep_what_the_copy_does_not_show():
    state = after(SGD(1.0, format="bf16", gradients="fp32", update="master"), 1.0, -1e-4, 1000)
    total = np.float32(1)
    for _ in range(1000):
        total = total + np.float32(1e-4)
    assert state.slots["master"] == total and state.weights == np.float32(1.1015625)


def test_stochastic_rounding_is_right_on_average():
    sgd, stream = SGD(1.0, format="bf16", gradients="fp32", update="stochastic"), Stream(1)
    state, g = sgd.initial(np.ones(1024)), np.full(1024, -1e-4)
    for _ in range(1000):
        state = sgd.step(state, g, seed=stream)
    assert stream.position == 1024 * 1000
    mean, deviation = state.weights.mean(dtype=np.float64), state.weights.std(dtype=np.float64)
    assert (
        abs(mean - 1.1) < 4 * deviation / 32 and 0.025 < deviation < 0.031
    )  # a binomial walk: sqrt(0.1 * 2^-7) = 0.028


def test_stochastic_rounding_with_16_bits_is_carry_and_cut():
    drawn = bits_from(3, 0, 1 << 16)
    values = drawn.view(np.float32)
    values = np.where(np.isnan(values), np.float32(1), values)
    r = (bits_from(4, 0, 1 << 16) >> 16).astype(np.uint16)
    ours = round_to(values, "bf16", rounding="stochastic", random_bits=r)
    np.testing.assert_array_equal(ours.view(np.uint32), carry_and_cut(values, r).view(np.uint32))
    w = round_to(np.random.default_rng(5).normal(size=4096).astype(np.float32), "bf16")
    u = np.random.default_rng(6).normal(size=4096).astype(np.float32) / 256
    sgd = SGD(1.0, format="bf16", gradients="fp32", update="stochastic")
    np.testing.assert_array_equal(
        sgd.step(sgd.initial(w), u, random_bits=r[:4096]).weights, carry_and_cut(w - u, r[:4096])
    )


def test_edges_of_carry_and_cut():
    words = np.array([0x7F7FFFFF, 0xFF7F8000, 0x7FFFFFFF, 0x7F800001, 0x7F800000, 0x80000002], np.uint32)
    got = carry_and_cut(words.view(np.float32), 0xFFFE).view(np.uint32)
    # the largest becomes infinity; a NaN becomes -0; another infinity; infinity stays; subnormals round like all others
    assert [hex(x) for x in got] == ["0x7f800000", "0xff800000", "0x80000000", "0x7f800000", "0x7f800000", "0x80010000"]
    ours = encode(words.view(np.float32), "bf16", rounding="stochastic", random_bits=np.uint16(0xFFFE))
    assert carry_and_cut(words[2:3].view(np.float32), 0xFFFF).view(np.uint32) == 0x80000000
    assert [hex(x) for x in ours] == ["0x7f80", "0xff80", "0x7fc0", "0x7fc0", "0x7f80", "0x8001"]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (Adam(), (4, 4, 8)),
        (Adam(format="bf16", update="master"), (2, 2, 12)),
        (Adam(format="bf16", gradients="fp32", update="master"), (2, 4, 12)),
        (Adam(format="bf16"), (2, 2, 4)),
        (Adam(format="bf16", update="stochastic", states="fp32"), (2, 2, 8)),
        (Adam(format="bf16", update="kahan"), (2, 2, 6)),
        (SGD(format="fp16"), (2, 2, 0)),
        (SGD(momentum=0.9, format="fp16", update="master"), (2, 2, 8)),
        (SGD(momentum=0.9, format="e4m3", states="e5m2", update="kahan"), (1, 1, 2)),
    ],
    ids=str,
)
def test_bytes_per_parameter(optimizer, expected):
    assert optimizer.bytes == Bytes(*expected) and optimizer.bytes.total == sum(expected)


def test_weight_decay_in_bf16_does_nothing():
    for order in ("single-tensor", "foreach", "fused"):
        assert after(AdamW(1e-2, weight_decay=0.1, format="bf16", order=order), 1.0, 0.0, 100).weights == 1.0
    assert after(AdamW(1e-2, weight_decay=0.1, format="bf16", update="master"), 1.0, 0.0, 100).weights < 0.91
    # 1 - 2^-9 is a tie that goes to 1; just above it the next number below is reached
    assert after(AdamW(1.0, weight_decay=2**-9, format="bf16"), 1.0, 0.0).weights == 1.0
    assert after(AdamW(1.0, weight_decay=2**-9 * 1.001, format="bf16"), 1.0, 0.0).weights == 1 - 2**-8


# --- Adam's constants ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("number", "fp16", "bf16"),
    [
        (1e-8, 0.0, 1.0011717677116394e-08),
        (1e-7, 2 * 2.0**-24, 1.0011717677116394e-07),
        (0.9, 0.89990234375, 0.8984375),
        (0.95, 0.9501953125, 0.94921875),
        (0.999, 0.9990234375, 1.0),
        (0.001, 0.0010004043579101562, 0.00099945068359375),
    ],
)
def test_constants(number, fp16, bf16):
    assert (round_to(number, "fp16"), round_to(number, "bf16")) == (fp16, bf16)


def test_when_squares_and_second_moments_become_zero():
    g = np.arange(1, 0x2400, dtype=np.uint16).view(np.float16).astype(np.float32)  # FP16's numbers up to 2^-6
    squares = round_to(g * g, "fp16")
    assert g[squares == 0].max() <= 2**-12.5 < g[squares > 0].min()
    v = after(Adam(format="fp16"), np.ones_like(g), g).slots["exp_avg_sq"]
    assert 5.458e-3 < g[v == 0].max() < 5.46e-3 < g[v > 0].min()
    tiny = 2.0 ** -np.arange(50.0, 80.0, 0.25)
    v = after(Adam(format="bf16"), np.ones_like(tiny), tiny).slots["exp_avg_sq"]
    assert 1e-19 < round_to(tiny, "bf16")[v == 0].max() < 3e-19


def test_fp16_adam_fails_where_the_fused_one_does_not():
    kinds = [Adam(1e-3, format="fp16", order=order) for order in ("single-tensor", "foreach", "fused")]
    weights = [after(adam, [1.0, 1.0], [0.0, 1e-4]).weights.tolist() for adam in kinds]
    assert all(math.isnan(zero) and small == -math.inf for zero, small in weights[:2])
    assert weights[2] == [1.0, 0.9990234375]
    assert np.isfinite(after(Adam(1e-3, format="fp16", eps=1e-7), [1.0, 1.0], [0.0, 1e-4]).weights).all()
    assert np.isfinite(after(Adam(1e-3, format="fp16", update="master"), [1.0, 1.0], [0.0, 1e-4]).weights).all()


@pytest.mark.parametrize(("order", "level"), [("single-tensor", 0.5), ("foreach", 0.5), ("fused", 0.25)])
def test_bf16_second_moment_stalls_and_never_decays(order, level):
    adam = Adam(1e-3, format="bf16", order=order)
    state, before = adam.initial(1.0), -1.0
    while before != (v := float(state.slots["exp_avg_sq"])):  # what no longer moves never will: v depends on v and g
        state, before = adam.step(state, 1.0), v
    assert v == level and 100 < state.step < 5000 and state.weights == 1.0
    assert adam.step(state, 0.0).slots["exp_avg_sq"] == level
    wide = Adam(1e-3, format="bf16", order=order, states="fp32")
    assert 0.1 < float(after(wide, 1.0, 1.0, 200).slots["exp_avg_sq"]) < 0.2  # true: 1 - 0.999^200 = 0.181


def test_fp16_second_moment_decays():
    adam = Adam(1e-3, format="fp16")
    state = after(adam, 1.0, 1.0, 50)
    assert adam.step(state, 0.0).slots["exp_avg_sq"] < state.slots["exp_avg_sq"]


# --- lost updates ----------------------------------------------------------------------------------------------------
def test_lost_updates():
    w, g = [1.0, 1.0, 1.0, 1.0], [2**-7, 2**-9, 0.0, float("nan")]
    for update, lost in (("plain", [False, True, False, False]), ("master", [False] * 4), ("kahan", [False] * 4)):
        sgd = SGD(1.0, format="bf16", update=update)
        first = sgd.initial(w)
        then = sgd.step(first, g)
        assert lost_updates(first, then).tolist() == lost, update
        assert then.update[:3].tolist() == [-(2**-7), -(2**-9), 0.0]
    with pytest.raises(InputError, match="no update"):
        lost_updates(first, first)


def test_states_are_not_changed_and_not_to_be_changed():
    w, g = np.ones(3, np.float32), np.ones(3, np.float32)
    adam = Adam(0.1)
    first = adam.initial(w)
    second = adam.step(first, g)
    assert first.step == 0 and (first.weights == 1).all() and (w == 1).all() and w.flags.writeable
    assert adam.step(first, g).weights.tobytes() == second.weights.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        second.weights[0] = 0
    with pytest.raises(TypeError):
        second.slots["exp_avg"] = w


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
@pytest.mark.parametrize("name", ["bf16", "fp32", "e4m3", "tf32"])
def test_any_shape_and_format(shape, name):
    for kind in (SGD(0.1, momentum=0.9, format=name), AdamW(0.1, format=name), Adam(0.1, format=name, update="master")):
        state = after(kind, np.ones(shape), np.full(shape, 0.5), 2)
        assert state.weights.shape == shape and state.weights.dtype == np.float32
        assert np.array_equal(round_to(state.weights, name), state.weights, equal_nan=True)  # E4M3: v is 0, NaN


# --- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SGD(-1.0), "lr=-1.0"),
        (lambda: SGD(float("nan")), "lr=nan"),
        (lambda: SGD("0.1"), "lr='0.1'"),
        (lambda: SGD(0.1, momentum=-0.1), "momentum=-0.1"),
        (lambda: SGD(0.1, nesterov=True), "nesterov with momentum=0.0"),
        (lambda: SGD(0.1, nesterov=True, momentum=0.9, dampening=0.1), "dampening=0.1"),
        (lambda: Adam(0.1, betas=(0.9, 1.0)), r"betas\[1\]=1.0: a number from 0 to below 1"),
        (lambda: Adam(0.1, betas=0.9), "betas=0.9"),
        (lambda: Adam(0.1, eps=-1e-8), "eps=-1e-08"),
        (lambda: AdamW(0.1, weight_decay=-1), "weight_decay=-1"),
        (lambda: SGD(0.1, update="rounded"), "update='rounded': allowed are plain, master, stochastic, kahan"),
        (lambda: SGD(0.1, order="cuda"), "order='cuda'"),
        (lambda: SGD(0.1, format="fp64"), "format=fp64"),
        (lambda: SGD(0.1, states="e8m0"), "states=e8m0"),
        (lambda: SGD(0.1, gradients="fp64"), "gradients=fp64"),
        (lambda: SGD(0.1, fma=1), "fma=1"),
        (lambda: SGD(0.1, update="kahan", order="fused"), "kahan"),
        (lambda: after(SGD(0.1), [1.0], [1.0, 2.0]), r"shape \(2,\)"),
        (lambda: after(SGD(0.1, update="stochastic", format="bf16"), 1.0, 1.0), "needs seed="),
        (lambda: SGD(0.1).step(SGD(0.1).initial(1.0), 1.0, seed=1), "draws no random bits"),
        (lambda: carry_and_cut(1.0, 1 << 16), "random_bits=65536"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert len(str(error.value)) < 300 and not re.search(r"numpy|ndarray", str(error.value))


def test_torch_is_not_needed_and_formats_are_records():
    assert SGD(0.1, format="bf16").format == get_format("bf16") == Adam(format="bf16").states


def test_gradients_are_rounded_to_their_own_format():
    for options, moved in (({}, 1.0), ({"gradients": "fp32"}, 0.9990234375), ({"update": "master"}, 1.0)):
        assert after(SGD(5e4, format="fp16", **options), 1.0, 2e-8).weights == np.float32(moved)


# --- states and settings ---------------------------------------------------------------------------------------------
def test_states_are_copies():
    """Arrays of the caller's are not frozen, and states do not change with them."""
    weights, momentum, gradient = np.ones(3, np.float32), np.zeros(3, np.float32), np.float32([1, 2, 3])
    sgd = SGD(0.1, momentum=0.9)
    state = State(0, weights, {"momentum": momentum})
    after_one = sgd.step(state, gradient)  # the first step copies the gradient
    weights[:], momentum[:], gradient[:] = 7, 7, 7
    assert state.weights.tolist() == [1, 1, 1] and state.slots["momentum"].tolist() == [0, 0, 0]
    assert after_one.slots["momentum"].tolist() == [1, 2, 3]
    for frozen in (state.weights, after_one.slots["momentum"], after_one.update):
        with pytest.raises(ValueError, match="read-only"):
            frozen[0] = 1


def test_numpys_numbers_are_settings():
    lr, betas = np.float32(0.1), (np.float64(0.8), np.float32(0.5))
    adam = Adam(lr, betas=betas, eps=np.float64(1e-6), weight_decay=np.int64(0))
    assert adam == Adam(float(lr), betas=(0.8, 0.5), eps=1e-6, weight_decay=0) and "np." not in repr(adam)
    assert SGD(lr, momentum=np.float32(0.5)) == SGD(float(lr), momentum=0.5)
    for wrong in (np.bool_(True), np.float32(np.nan), np.array([0.1]), "0.1"):
        with pytest.raises(InputError, match="lr="):
            SGD(wrong)


def test_the_base_is_no_optimizer():
    with pytest.raises(TypeError, match="abstract"):
        Optimizer(0.1)
    for wrong in (5, None, SGD):
        with pytest.raises(InputError, match="an optimizer is needed"):
            train_digits(wrong)
