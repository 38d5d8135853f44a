"""Delayed scaling against the specification's steps in MPFR, the worked example in full, and every edge by hand."""

import dataclasses
import json
import math

import gmpy2
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import numsim
from numsim import kernels
from numsim.blocks import quantize
from numsim.errors import InputError
from numsim.scaling import (
    DelayedScaling,
    DelayedState,
    check_strict,
    power_of_two_scale,
    reduce_amax,
    replay_amaxes,
)

F, INF, NAN = np.float32, math.inf, math.nan
FLT_MAX = float(np.finfo(np.float32).max)
FP32 = gmpy2.context(precision=24, emin=-148, emax=128, subnormalize=True)


# --- the specification's numbered steps, in FP32 of MPFR --------------------------------------------------------------
def mul(a, b):
    with gmpy2.context(FP32):
        return float(gmpy2.mpfr(a) * gmpy2.mpfr(b))


def div(a, b):
    with gmpy2.context(FP32):
        return float(gmpy2.mpfr(a) / gmpy2.mpfr(b))


def not_nan_max(numbers):
    best = NAN
    for x in numbers:
        best = x if math.isnan(best) or x > best else best
    return best


def fused_update(old, scale, fp8_max, margin, algo, reduced=None):
    last = old[0] if reduced is None or reduced == 0 else reduced  # step 1
    new, amax = list(old), 0.0
    if last != 0:  # step 2
        for i in range(1, len(old) - 1):
            new[i] = old[i + 1]
        new[len(old) - 1] = last
        new[0] = 0.0
        amax = not_nan_max([*old[1:], last])
    if algo == "most_recent":  # step 3
        amax = last
    scaled_max = mul(fp8_max, 2.0**-margin)  # step 4
    if math.isfinite(amax) and amax > 0:
        scale = div(scaled_max, amax)
    return new, FLT_MAX if math.isinf(scale) else scale


def unfused_update(old, scale, fp8_max, margin, algo, reduced=None):
    old = [old[0] if reduced is None else reduced, *old[1:]]
    amax = old[0]
    if algo == "max":
        amax = NAN if any(map(math.isnan, old)) else max(old)
    new = [*old[1:], old[0]]
    new[0] = 0.0
    if math.isfinite(amax) and amax > 0:
        scale = div(mul(div(1, amax), fp8_max), 2.0**margin)  # fp8_max / tensor in torch: by its reciprocal
    return new, FLT_MAX if math.isinf(scale) else scale


def bits(numbers):
    """FP32 codes, all NaN the same."""
    x = np.array(numbers, np.float32)
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32)).tolist()


amaxes = st.one_of(
    st.sampled_from([0.0, INF, 2.0**-149, 2.0**-126, 1e-36, 448 / FLT_MAX, 0.5, 1.0, 3.0, 448.0, 1e30, FLT_MAX]),
    st.floats(0, FLT_MAX, width=32),
).map(lambda x: float(F(x)))
held = st.one_of(amaxes, st.just(NAN))  # in a history or a reduction
recipes = st.builds(
    DelayedScaling,
    margin=st.one_of(st.just(0), st.integers(-3, 12), st.integers(-126, 126)),
    fp8_format=st.sampled_from(["HYBRID", "E4M3"]),
    amax_history_len=st.integers(1, 6),
    amax_compute_algo=st.sampled_from(["max", "most_recent"]),
    fused=st.booleans(),
)


@given(recipes, st.sampled_from(["forward", "backward"]), st.lists(st.tuples(st.none() | held, held), max_size=12))
@example(DelayedScaling(amax_history_len=4), "forward", [(None, x) for x in (1.0, 2.0, 4.0, 0.0, 0.5, INF, 1.0, 1.0)])
def test_updates_are_the_specifications(recipe, direction, series):
    fp8_max = 57344.0 if recipe.fp8_format == "HYBRID" and direction == "backward" else 448.0
    oracle = fused_update if recipe.fused else unfused_update
    state = recipe.initial(direction)
    history, scale = [0.0] * recipe.amax_history_len, 1.0
    for reduced, amax in series:
        state = recipe.record(state, amax)
        history[0] = not_nan_max([0.0, amax])
        state = recipe.update(state, reduced)
        history, scale = oracle(history, scale, fp8_max, recipe.margin, recipe.amax_compute_algo, reduced)
        assert bits(state.amax_history) == bits(history) and bits([state.scale]) == bits([scale])


@given(recipes, st.data())
def test_one_update_of_any_state(recipe, data):
    """Also of histories with NaN, and of scales that are infinite, zero or NaN."""
    length = recipe.amax_history_len
    history = data.draw(st.lists(held, min_size=length, max_size=length))
    scale = data.draw(st.one_of(held, st.floats(width=32)))
    reduced = data.draw(st.none() | held)
    after = recipe.update(DelayedState(scale, np.array(history)), reduced)
    oracle = fused_update if recipe.fused else unfused_update
    expected, new_scale = oracle(history, scale, 448.0, recipe.margin, recipe.amax_compute_algo, reduced)
    assert bits(after.amax_history) == bits(expected) and bits([after.scale]) == bits([new_scale])


def test_unfused_update_is_torchs():
    """The same operations in torch, on many states at once; torch multiplies by the reciprocal of a tensor."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    special = np.array([0, INF, NAN, 2.0**-149, 1e-37, FLT_MAX, 1, 2], np.float32)
    histories = np.exp(rng.normal(0, 25, (400, 5))).astype(np.float32)
    histories = np.where(rng.random(histories.shape) < 0.4, rng.choice(special, histories.shape), histories)
    for margin in (0, 3, 11):
        for algo in ("max", "most_recent"):
            recipe = DelayedScaling(margin, amax_history_len=5, amax_compute_algo=algo, fused=False)
            h, old = torch.from_numpy(histories), torch.full((len(histories),), 7.0)
            amax = h.max(dim=1).values if algo == "max" else h[:, 0]
            new = 448.0 / amax / 2**margin
            new = torch.where(torch.isfinite(amax) & (amax > 0), new, old)
            new = torch.where(torch.isinf(new), torch.tensor(FLT_MAX), new)
            rolled = torch.roll(h, -1, 1)
            rolled[:, 0] = 0
            for row, scale, after in zip(histories, new.tolist(), rolled.numpy(), strict=True):
                state = recipe.update(DelayedState(7.0, row))
                assert bits([state.scale]) == bits([scale]) and bits(state.amax_history) == bits(after)


# --- the worked example -----------------------------------------------------------------------------------------------
TABLE = [  # amax, history after, and (used, scale) under "max" and "most_recent"
    (1, [0, 0, 0, 1], (1, 448), (1, 448)),
    (2, [0, 0, 1, 2], (448, 224), (448, 224)),
    (4, [0, 1, 2, 4], (224, 112), (224, 112)),
    (0, [0, 1, 2, 4], (112, 112), (112, 112)),
    (0.5, [0, 2, 4, 0.5], (112, 112), (112, 896)),
    (INF, [0, 4, 0.5, INF], (112, 112), (896, 896)),
    (1, [0, 0.5, INF, 1], (112, 112), (896, 448)),
    (1, [0, INF, 1, 1], (112, 112), (448, 448)),
    (1, [0, 1, 1, 1], (112, 112), (448, 448)),
    (1, [0, 1, 1, 1], (112, 448), (448, 448)),
]


@pytest.mark.parametrize(("algo", "column"), [("max", 2), ("most_recent", 3)])
def test_worked_example(algo, column):
    recipe = DelayedScaling(amax_history_len=4, amax_compute_algo=algo, fp8_format="E4M3")
    state = recipe.initial()
    for row in TABLE:
        used, scale = row[column]
        assert state.scale == used
        made, state = recipe.quantize(state, [row[0], -row[0] / 2])  # the scale of before
        assert np.array_equal(made.codes, quantize([row[0], -row[0] / 2], "fp8_tensor", multiplier=float(used)).codes)
        state = recipe.update(state)
        assert state.amax_history.tolist() == row[1] and state.scale == scale
    trace = replay_amaxes(recipe, [row[0] for row in TABLE])
    assert trace["scale used"].tolist() == [row[column][0] for row in TABLE]
    assert trace["scale"].tolist() == [row[column][1] for row in TABLE]
    assert trace["amax"].tolist() == [row[0] for row in TABLE]
    assert trace["clip limit"].tolist() == [448 / row[column][0] for row in TABLE]
    assert trace.happened("skipped") == [3] and trace.happened("inf") == [5]
    assert trace.happened("frozen") == ([5, 6, 7, 8] if algo == "max" else [5])
    assert trace.happened("clipped") == ([1, 2, 5] if algo == "max" else [1, 2, 5, 6])


# --- edges ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 16, 1024])
def test_one_infinity_freezes_the_scale(length, margin, fused):
    series = [2.0] * 3 + [INF] + [1.0] * (length + 3)
    for algo, updates in (("max", length), ("most_recent", 1)):
        recipe = DelayedScaling(margin, amax_history_len=length, amax_compute_algo=algo, fused=fused)
        trace = replay_amaxes(recipe, series)
        assert trace.happened("frozen") == list(range(3, 3 + updates)) and trace.happened("inf") == [3]
        scales = (trace["scale"] * 2**margin).tolist()
        assert scales[:3] == [224.0] * 3 and scales[3 : 3 + updates] == [224.0] * updates
        assert scales[3 + updates] == 448.0  # the 2s have left with the infinity, or before it


def test_zero_amax_fused_and_unfused():
    """Fused: nothing happens, whatever the history. Unfused: the history moves on, and forgets."""
    series = [4.0, 1.0, 0.0, 0.0, 0.0]
    fused, unfused = (replay_amaxes(DelayedScaling(amax_history_len=3, fused=x), series) for x in (True, False))
    assert fused["scale"].tolist() == [112.0] * 5 and fused.happened("skipped") == [2, 3, 4]
    assert unfused["scale"].tolist() == [112.0, 112.0, 112.0, 448.0, 448.0] and not unfused.happened("skipped")
    state = DelayedState(5.0, [0, 1, 2])
    assert DelayedScaling(amax_history_len=3).update(state).amax_history.tolist() == [0, 1, 2]
    after = DelayedScaling(amax_history_len=3, fused=False).update(state)
    assert after.amax_history.tolist() == [0, 2, 0] and after.scale == 224.0
    recent = DelayedScaling(amax_history_len=3, fused=False, amax_compute_algo="most_recent")
    assert recent.update(state).scale == 5.0 and recent.update(state).amax_history.tolist() == [0, 2, 0]


def test_nan_in_the_history():
    state = DelayedState(5.0, [2.0, NAN, 4.0])
    assert DelayedScaling(amax_history_len=3).update(state).scale == 112.0
    kept = DelayedScaling(amax_history_len=3, fused=False).update(state)
    assert kept.scale == 5.0 and math.isnan(kept.amax) and kept.amax_history.tolist() == [0, 4, 2]
    recipe = DelayedScaling(amax_history_len=3, amax_compute_algo="most_recent")
    assert recipe.update(state, NAN).scale == 5.0  # a reduced NaN is not 0, and is taken


def test_margin_fused_and_unfused():
    """448 / 2^-125 is infinite; 448 x 2^-10 / 2^-125 is not. The bits of 0.4375 x 2^125: exponent 123, fraction .11."""
    fused = DelayedScaling(10).update(DelayedScaling(10).record(DelayedScaling(10).initial(), 2.0**-125))
    assert F(fused.scale).view(np.uint32) == ((123 + 127) << 23 | 0b11 << 21) and fused.scale == 0.4375 * 2.0**125
    recipe = DelayedScaling(10, fused=False)
    assert recipe.update(recipe.record(recipe.initial(), 2.0**-125)).scale == FLT_MAX
    recipe = DelayedScaling(-126, amax_history_len=1)
    assert recipe.update(DelayedState(1.0, [448.0])).scale == FLT_MAX  # 448 x 2^126 is infinite
    recipe = DelayedScaling(-126, amax_history_len=1, fused=False)
    assert recipe.update(DelayedState(1.0, [448.0])).scale == 2.0**126


def test_fused_is_rounded_once_and_unfused_twice():
    """torch's 448 / tensor is 448 times the rounded reciprocal."""
    amaxes = np.random.default_rng(0).uniform(1, 2, 2000).astype(np.float32)
    differ = 0
    for amax in amaxes:
        state = DelayedState(1.0, [amax])
        once, twice = (DelayedScaling(amax_history_len=1, fused=x).update(state).scale for x in (True, False))
        exact = gmpy2.mpq(448) / gmpy2.mpq(float(amax))
        assert abs(gmpy2.mpq(once) - exact) <= gmpy2.mpq(2) ** (int(gmpy2.floor(gmpy2.log2(exact))) - 24)
        assert abs(int(F(once).view(np.uint32)) - int(F(twice).view(np.uint32))) <= 1
        differ += once != twice
    assert 400 < differ < 700  # one in four


@pytest.mark.parametrize(("direction", "fp8_max"), [("forward", 448.0), ("backward", 57344.0)])
def test_where_the_scale_overflows(direction, fp8_max):
    recipe = DelayedScaling(amax_history_len=1)
    first_finite = np.nextafter(F(fp8_max / FLT_MAX), F(INF))
    around = [F(fp8_max / FLT_MAX), np.nextafter(F(fp8_max / FLT_MAX), F(0)), first_finite, F(2.0**-149), F(2.0**-126)]
    for amax in around:
        exact = gmpy2.mpq(fp8_max) / gmpy2.mpq(float(amax))
        overflows = exact >= 2**128 - gmpy2.mpq(2) ** 103
        scale = recipe.update(recipe.record(recipe.initial(direction), amax)).scale
        assert scale == (FLT_MAX if overflows else div(fp8_max, float(amax)))
    assert recipe.update(recipe.record(recipe.initial(direction), first_finite)).scale < FLT_MAX
    state = recipe.update(recipe.record(recipe.initial(direction), 2.0**-149))
    assert state.scale == FLT_MAX and state.inv_scale == 2.0**-128  # the reciprocal is subnormal


@pytest.mark.parametrize("fused", [True, False])
def test_a_scale_that_underflows(fused):
    recipe = DelayedScaling(60, amax_history_len=1, fused=fused)
    state = recipe.update(recipe.record(recipe.initial(), 1e30))
    assert state.scale == 0.0 and state.inv_scale == INF
    assert np.isnan(recipe.quantize(state, [1.0])[0].values).all()


def test_scale_bits_by_hand():
    """448 / 3 = 149.333...: 1.0010101 0101... x 2^7; 57344 / 5 = 11468.8; both to nearest."""
    recipe = DelayedScaling()
    assert F(recipe.update(recipe.record(recipe.initial(), 3.0)).scale).view(np.uint32) == 0x43155555
    assert F(recipe.update(recipe.record(recipe.initial("backward"), 5.0)).scale).view(np.uint32) == 0x46333333


def test_first_step_has_the_scale_one():
    recipe = DelayedScaling()
    x = [2.0**-10, float(np.nextafter(F(2.0**-10), F(1))), 448.0, 449.0, 1e30, INF, -INF, NAN, 0.0, -0.0]
    made, state = recipe.quantize(recipe.initial(), x)
    assert made.codes.tolist() == [0x00, 0x01, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x00, 0x80]
    assert state.amax_history[0] == INF and state.scale == 1.0
    backward, _ = recipe.quantize(recipe.initial("backward"), [57344.0, 61440.0, INF, -INF, 2.0**-17])
    assert backward.codes.tolist() == [0x7B, 0x7B, 0x7B, 0xFB, 0x00] and backward.format.element == numsim.E5M2
    only = DelayedScaling(fp8_format="E4M3")
    assert only.quantize(only.initial("backward"), [1e6])[0].values.tolist() == [448.0]


@pytest.mark.parametrize(
    ("direction", "dtype", "largest"),
    [("forward", ml_dtypes.float8_e4m3fn, 448), ("backward", ml_dtypes.float8_e5m2, 57344)],
)
def test_quantise_against_ml_dtypes(direction, dtype, largest):
    x = np.random.default_rng(1).normal(0, 30, 5000).astype(np.float32)
    recipe = DelayedScaling(amax_history_len=2)
    made, state = recipe.quantize(DelayedState(37.3, [0, 0], direction), x)
    expected = np.clip(x * F(37.3), -largest, largest).astype(dtype)
    assert np.array_equal(made.codes, expected.view(np.uint8))
    inverse = div(1.0, float(F(37.3)))
    assert float(made.scales.values) == inverse == state.inv_scale
    assert state.amax_history.tolist() == [np.abs(x).max(), 0] and state.scale == float(F(37.3))


def test_amaxes_are_noted():
    recipe = DelayedScaling(amax_history_len=3)
    state = recipe.initial()
    for amax, noted in ((2.0, 2.0), (1, 2.0), (NAN, 2.0), (np.float64(5), 5.0), (np.int8(3), 5.0), (1e39, INF)):
        state = recipe.record(state, amax)
        assert state.amax_history.tolist() == [noted, 0, 0]
    for x, noted in (([1.0, NAN, -3.0], 3.0), ([NAN, NAN], 0.0), ([], 0.0), ([-INF], INF), (np.float16(-7), 7.0)):
        assert recipe.quantize(recipe.initial(), x)[1].amax_history[0] == noted


def test_states_do_not_change():
    recipe = DelayedScaling(amax_history_len=2)
    given = np.array([1.0, 2.0], np.float32)
    state = DelayedState(1.0, given)
    given[:] = 9
    recipe.update(recipe.record(state, 8.0))
    assert state.amax_history.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        state.amax_history[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.scale = 2.0


def test_recomputation_and_micro_batches():
    """The second forward pass starts from the first one's state; weights that are not quantised again note nothing."""
    recipe = DelayedScaling(amax_history_len=2)
    before = recipe.update(recipe.record(recipe.initial(), 2.0))
    first, after = recipe.quantize(before, [1.0, 3.0])
    assert recipe.update(after).scale != before.scale
    assert np.array_equal(recipe.quantize(before, [1.0, 3.0])[0].codes, first.codes)
    assert not np.array_equal(recipe.quantize(recipe.update(after), [1.0, 3.0])[0].codes, first.codes)
    weights = recipe.update(recipe.quantize(recipe.initial(), [0.5])[1])
    later = recipe.update(recipe.update(weights))
    assert later.scale == weights.scale == 896.0 and later.amax_history.tolist() == weights.amax_history.tolist()


# --- ranks ------------------------------------------------------------------------------------------------------------
def test_ranks():
    recipe = DelayedScaling(amax_history_len=3)
    ranks = [recipe.record(recipe.initial(), amax) for amax in (1.0, 4.0, 0.0)]
    assert reduce_amax(ranks) == 4.0 and reduce_amax([]) == 0.0
    assert reduce_amax([recipe.initial(), DelayedState(1.0, [NAN, 0, 0]), ranks[0]]) == 1.0
    together = recipe.update_ranks(ranks)  # also on the rank that has seen nothing
    assert [s.scale for s in together] == [112.0] * 3
    assert all(s.amax_history.tolist() == [0, 0, 4] for s in together)
    alone = dataclasses.replace(recipe, reduce_amax=False).update_ranks(ranks)
    assert [s.scale for s in alone] == [448.0, 112.0, 1.0] and alone[2].amax_history.tolist() == [0, 0, 0]
    assert recipe.update_ranks(ranks[:1])[0].scale == 448.0
    assert recipe.update(ranks[0], 0.0).scale == 448.0  # a reduced 0 is the kernel's word for nothing
    unfused = dataclasses.replace(recipe, fused=False)
    assert [s.scale for s in unfused.update_ranks(ranks)] == [112.0] * 3


# --- functions --------------------------------------------------------------------------------------------------------
def test_functions_of_the_history():
    seen = []

    def second_largest(history):
        seen.append(history.tolist())
        history[:] = 7  # a copy
        return sorted(seen[-1])[-2]

    recipe = DelayedScaling(amax_history_len=4, amax_compute_algo=second_largest)
    assert not recipe.is_fused and DelayedScaling().is_fused
    trace = replay_amaxes(recipe, [8, 2, 1, 0])
    assert seen == [[8, 0, 0, 0], [2, 0, 0, 8], [1, 0, 8, 2], [0, 8, 2, 1]]
    assert trace["scale"].tolist() == [1.0, 224.0, 224.0, 224.0] and not trace.happened("skipped")
    assert "second largest" in trace.title and trace.about["amax_compute_algo"] == "second_largest"


def test_functions_of_the_scale():
    seen = []

    def doubled(amax, scale, fp8_max, recipe):
        seen.append((float(amax), float(scale), fp8_max, recipe.margin))
        return INF if scale > 2 else 2 * scale

    recipe = DelayedScaling(3, amax_history_len=2, scaling_factor_compute_algo=doubled)
    assert replay_amaxes(recipe, [5, 6, 1])["scale"].tolist() == [2.0, 4.0, INF]  # taken as it is
    assert seen == [(5, 1, 448, 3), (6, 2, 448, 3), (6, 4, 448, 3)]


@pytest.mark.parametrize("bad", ["text", None, [1.0, 2.0], object()])
def test_functions_that_return_no_number(bad):
    with pytest.raises(InputError, match="amax_compute_algo returned"):
        DelayedScaling(amax_compute_algo=lambda history: bad).update(DelayedScaling().initial())
    with pytest.raises(InputError, match="scaling_factor_compute_algo returned"):
        DelayedScaling(scaling_factor_compute_algo=lambda *a: bad).update(DelayedScaling().initial())


def test_powers_of_two_of_the_first_versions():
    for amax, scale in ((1.0, 256.0), (3.0, 128.0), (448.0, 1.0), (449.0, 0.5), (1e6, 2.0**-12), (2.0**-120, 2.0**128)):
        made = power_of_two_scale(F(amax), F(5), 448.0, DelayedScaling())
        assert float(made) == (scale if scale < 2.0**128 else INF)
    assert power_of_two_scale(F(3), F(5), 448.0, DelayedScaling(9)) == 0.25
    kept = [float(power_of_two_scale(F(amax), F(5), 448.0, DelayedScaling())) for amax in (0.0, NAN, INF, 2.0**-149)]
    assert kept[:2] == [5.0, 5.0] and kept[3] == INF
    assert kept[2] == div(1.0, 5.0)  # the original's slip: an infinite amax turns the scale over
    recipe = DelayedScaling(amax_history_len=2, scaling_factor_compute_algo=power_of_two_scale)
    trace = replay_amaxes(recipe, [3.0, INF, 1.0, 1.0])  # and back again, while it is in the history
    assert trace["scale"].tolist() == [128.0, 2.0**-7, 128.0, 256.0] and not trace.happened("frozen")


def test_powers_of_two_are_torchs():
    """log2 in FP32 decides: just below a power of two it says the whole number."""
    torch = pytest.importorskip("torch")
    near = np.ldexp(448.0, np.arange(-118, 120)).astype(np.float32).view(np.uint32)[:, None]
    amaxes = (near + np.arange(-30, 31).astype(np.uint32)).view(np.float32).reshape(-1)
    amaxes = np.concatenate([amaxes, np.exp(np.random.default_rng(0).normal(0, 20, 2000)).astype(np.float32)])
    amaxes = amaxes[np.isfinite(amaxes) & (amaxes > 0)]
    for margin in (0, 4):
        exponent = torch.floor(torch.log2(448.0 / torch.from_numpy(amaxes))) - margin
        size = torch.exp2(exponent.abs())
        expected = torch.where(exponent < 0, 1 / size, size).numpy()
        made = [power_of_two_scale(a, F(1), 448.0, DelayedScaling(margin)) for a in amaxes]
        assert np.array_equal(np.array(made, np.float32), expected)
    quotient = (448.0 / torch.from_numpy(amaxes)).numpy()
    assert (np.log2(quotient.astype(np.float64)) < torch.floor(torch.log2(torch.from_numpy(quotient))).numpy()).any()


# --- replay -----------------------------------------------------------------------------------------------------------
@given(recipes, st.sampled_from(["forward", "backward"]), st.lists(held, max_size=12))
def test_replay_is_the_state_machine(recipe, direction, series):
    trace = replay_amaxes(recipe, series, direction=direction)
    state = recipe.initial(direction)
    for step, amax in enumerate(series):
        before, state = state, recipe.update(recipe.record(state, amax))
        assert bits(trace["scale used"][step]) == bits(before.scale)
        assert bits(trace["scale"][step]) == bits(state.scale)
        assert bits(trace["amax"][step]) == bits(not_nan_max([0.0, amax]))
        frozen = not math.isfinite(state.amax) and state.scale == before.scale
        assert (step in trace.happened("frozen")) == frozen
        assert (step in trace.happened("inf")) == math.isinf(amax)
        assert (step in trace.happened("skipped")) == (recipe.fused and not amax > 0)
        seen = numsim.Events()
        made = F(min(amax, FLT_MAX)) if amax > 0 else F(0)
        quantize([made], recipe.format(direction), multiplier=before.scale, events=seen)
        with np.errstate(over="ignore"):
            infinite = amax == INF and before.scale > 0
            product_overflows = bool(np.isinf(made * F(before.scale)))
        assert (step in trace.happened("clipped")) == bool(seen.overflow or product_overflows or infinite)
    assert len(trace) == len(series) and json.loads(trace.json)["about"]["amax_history_len"] == recipe.amax_history_len


@pytest.mark.parametrize(("direction", "ties"), [("forward", 464.0), ("backward", 61440.0)])
def test_tensors_and_their_clipped_share(direction, ties):
    recipe = DelayedScaling(amax_history_len=2)
    x = np.array([[ties, -np.nextafter(F(ties), F(INF)), 1.0, NAN]], np.float32)
    trace = replay_amaxes(recipe, tensors=[x, x * F(2), [], [INF, 1.0]], direction=direction)
    largest = recipe.format(direction).element_max
    seen = numsim.Events()
    quantize(x, recipe.format(direction), multiplier=1.0, events=seen)
    share = {"forward": 0.25, "backward": 0.5}[direction]  # the tie goes to 448, but away from 57344
    assert trace["share clipped"].tolist() == [share, 0.5, 0.0, 0.5] and seen.overflow / x.size == share
    top = float(np.nextafter(F(ties), F(INF)))
    assert trace["amax"].tolist() == [top, 2 * top, 0.0, INF]
    assert trace["scale"].tolist() == [div(largest, top), div(largest, 2 * top)] + [div(largest, 2 * top)] * 2
    assert trace.happened("clipped") == [0, 1, 3] and trace.happened("skipped") == [2]


def test_a_steady_amax_is_not_clipped():
    """amax x (448 / amax) may come out an ulp above 448; that is no clipping."""
    rng = np.random.default_rng(3)
    for amax in rng.uniform(0.1, 100, 40).astype(np.float32):
        assert replay_amaxes(DelayedScaling(amax_history_len=4), [amax] * 5).happened("clipped")[1:] == []
    x = rng.uniform(0.1, 100, 4000).astype(np.float32)
    assert (x * (F(448) / x) > 448).any()


def test_replay_of_a_long_series():
    """A window of the last 1024 amaxes that are not 0, by another way: all windows at once."""
    x = np.exp(np.random.default_rng(0).normal(size=20000)).astype(np.float32)
    x[::7] = 0
    trace = replay_amaxes(DelayedScaling(), x)
    counted = x[x > 0]
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([np.zeros(1023, np.float32), counted]), 1024)
    assert np.array_equal(trace["scale"][x > 0], F(448) / windows.max(axis=1))
    assert trace["scale"][7] == trace["scale"][6] and len(trace.happened("skipped")) == np.count_nonzero(x == 0)


def test_titles_and_settings():
    trace = replay_amaxes(DelayedScaling(2, amax_history_len=8, fused=False), [1.0], direction="backward")
    assert trace.title == "delayed scaling, E5M2, max of 8, unfused"
    assert dict(trace.about) == {
        "recipe": "delayed scaling", "direction": "backward", "margin": 2, "fp8_format": "HYBRID",
        "amax_history_len": 8, "amax_compute_algo": "max", "scaling_factor_compute_algo": None, "fused": False,
    }  # fmt: skip
    power = replay_amaxes(DelayedScaling(scaling_factor_compute_algo=power_of_two_scale), [3.0])
    assert power.about["scaling_factor_compute_algo"] == "power_of_two_scale" and power["scale"].tolist() == [128.0]
    assert all(len(line) <= 80 for line in str(trace).splitlines())


# --- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"margin": 0.5}, "margin=0.5: a whole number"),
        ({"margin": True}, "margin=True"),
        ({"margin": 127}, "from -126 to 126"),
        ({"amax_history_len": 0}, "amax_history_len=0: a whole number from 1"),
        ({"amax_history_len": -1}, "amax_history_len=-1"),
        ({"amax_history_len": 4.0}, "amax_history_len=4.0"),
        ({"amax_compute_algo": "mean"}, "allowed are max, most_recent"),
        ({"amax_compute_algo": None}, "allowed are max, most_recent"),
        ({"scaling_factor_compute_algo": "pow2"}, "None or a function"),
        ({"fp8_format": "E5M2"}, "E5M2 alone is refused"),
        ({"fp8_format": "e4m3"}, "allowed are HYBRID, E4M3"),
        ({"fp8_format": ["E4M3"]}, "allowed are HYBRID, E4M3"),
        ({"reduce_amax": 1}, "reduce_amax=1: True or False"),
        ({"fused": "yes"}, "fused='yes'"),
    ],
)
def test_settings_that_are_refused(settings, text):
    with pytest.raises(InputError) as error:
        DelayedScaling(**settings)
    assert text in str(error.value) and "Example: " in str(error.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda r: r.initial("sideways"), "allowed are forward, backward"),
        (lambda r: r.format(None), "allowed are forward, backward"),
        (lambda r: r.record(r.initial(), -1.0), "not negative"),
        (lambda r: r.record(r.initial(), "3"), "a number is needed"),
        (lambda r: r.record(r.initial(), True), "not negative"),
        (lambda r: r.record(r.initial(), [1.0]), "a number is needed"),
        (lambda r: r.update(r.initial(), -2), "reduced=-2"),
        (lambda r: DelayedState(1.0, []), "at least one number"),
        (lambda r: DelayedState(1.0, [[1.0]]), "one axis"),
        (lambda r: replay_amaxes(r), "either amaxes or tensors"),
        (lambda r: replay_amaxes(r, [1.0], tensors=[[1.0]]), "either amaxes or tensors"),
        (lambda r: replay_amaxes("delayed", [1.0]), "a DelayedScaling"),
        (lambda r: replay_amaxes(r, [1.0, -1.0]), "not negative"),
        (lambda r: replay_amaxes(r, [[1.0]]), "one axis"),
        (lambda r: replay_amaxes(r, [[1.0], [1.0, 2.0]]), "one axis"),
        (lambda r: replay_amaxes(r, ["1"]), "numbers"),
        (lambda r: replay_amaxes(r, 1.0), "one axis"),
        (lambda r: replay_amaxes(r, tensors=[["x"]]), "x"),
    ],
)
def test_calls_that_are_refused(call, text):
    with pytest.raises(InputError) as error:
        call(DelayedScaling(amax_history_len=4))
    assert text in str(error.value)


def test_empty_series():
    assert len(replay_amaxes(DelayedScaling(), [])) == 0 == len(replay_amaxes(DelayedScaling(), tensors=[]))


def test_strict_checks_know_it():
    check_strict(DelayedScaling())
    with pytest.raises(InputError, match="amax_history_len"):
        check_strict({"amax_history_len": 0})


@pytest.mark.parametrize("which", ["kernel", "reference"])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 2, 1)])
def test_a_signalling_nan_hides_no_number(which, shape):
    if which == "kernel" and kernels.why_not() is not None:
        pytest.skip(str(kernels.why_not()))
    words = np.uint32([0x7F800001, 0x40400000, 0xFF800001, 0xC0800000, 0x7FC00000, 0x3F800000])  # NaN 3 NaN -4 NaN 1
    for order in (words, words[::-1], np.roll(words, 1)):
        x, recipe = order.view(np.float32).reshape(shape), DelayedScaling(amax_history_len=2)
        with kernels.force(which):
            assert recipe.quantize(recipe.initial(), x)[1].amax_history[0] == 4
            assert replay_amaxes(recipe, tensors=[x, x.T])["amax"].tolist() == [4, 4]
    with kernels.force(which):
        assert replay_amaxes(recipe, tensors=[np.zeros((0, 3))])["amax"].tolist() == [0]
