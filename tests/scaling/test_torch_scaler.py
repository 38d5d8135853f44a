"""GradScaler and ShardedGradScaler against torch's own: every odd argument, and the update on arbitrary bits."""

import decimal
import fractions
import math
import struct

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from numsim.errors import InputError
from numsim.scaling import GradScaler, ShardedGradScaler, State, check_strict
from numsim.scaling.scaler import fp32

torch = pytest.importorskip("torch")


class Floating:
    def __float__(self):
        return 3.0


class Indexed:
    def __index__(self):
        return 2


ODD = [
    1, 2**63, 2**64 - 1, 2**70, 2**1030, True, False, -1, 0, 3.0, -2.0, 0.0, -0.0, 1.1, 1 / 3, 1.0, 0.25, 1.0000000001,
    math.inf, -math.inf, math.nan, 1e39, -1e39, 1e300, 1e-46, 2.0**128 - 2.0**104, 3.4028235677973362e38,
    np.float32(3), np.float16(0.3), np.float64(3), np.int32(3), np.int8(-1), np.bool_(True), np.longdouble(3),
    np.array(3.0), np.array(0.25), np.array([3.0]), "3", b"3", None, 1j, 3 + 0j, [3.0], Floating(), Indexed(),
    fractions.Fraction(1, 3), decimal.Decimal("0.3"), np.timedelta64(3), torch.tensor(3.0), torch.tensor(0.25),
    torch.tensor(3), torch.tensor([3.0]), 2, 2.5, 2**31 - 1, 2**31, 2**63 - 1, -(2**63), -(2**63) - 1, np.int64(2),
]  # fmt: skip


def same(a, b):
    return a == b or (a != a and b != b)


def by_torch(found, steps=2, **settings):
    """Scale and tracker after some updates, or None where torch raises."""
    try:
        scaler = torch.amp.GradScaler("cpu", **settings)
        scaler.scale(torch.tensor(1.0))
        for _ in range(steps):
            scaler._per_optimizer_states[0]["found_inf_per_device"] = {"cpu": torch.tensor(float(found))}
            scaler.update()
    except (TypeError, ValueError, RuntimeError, OverflowError, AssertionError):
        return None
    return scaler._scale.item(), scaler._growth_tracker.item()


@pytest.mark.parametrize("x", ODD, ids=lambda x: f"{type(x).__name__}:{str(x)[:20]}")
@pytest.mark.parametrize("name", ["init_scale", "growth_factor", "backoff_factor", "growth_interval"])
@pytest.mark.parametrize("found", [0, 1])
def test_accepts_and_refuses_what_torch_does(name, x, found):
    options = {"init_scale": 3.0, "growth_interval": 1} | {name: x}
    wanted = by_torch(0, 2, **options) if name != "backoff_factor" else None
    wanted = by_torch(found, 2, **options) if wanted or name == "backoff_factor" else None
    if wanted is None:
        with pytest.raises(InputError, match=name):
            GradScaler(**options)
        return
    scaler = GradScaler(**options)
    state = scaler.initial()
    for _ in range(2):
        state = scaler.update(state, found)
    assert same(state.scale, wanted[0]) and state.growth_tracker == wanted[1]
    assert type(state.scale) is float and type(state.growth_tracker) is int


def test_words_of_torch():
    with pytest.raises(InputError, match=r"The growth factor must be > 1\.0\."):
        GradScaler(growth_factor=1.0)
    with pytest.raises(InputError, match=r"The backoff factor must be < 1\.0\."):
        GradScaler(backoff_factor=1.0)


words = st.integers(0, 2**32 - 1)
FOUND = st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, -1.0, math.inf, -math.inf, math.nan])
FACTOR = st.one_of(st.floats(), st.sampled_from([2.0, 0.5, 1.1, 1 / 3, 1.0 + 2.0**-52]))


def value(word):
    return struct.unpack("<f", struct.pack("<I", word))[0]


def numbers(scale, tracker):
    """As bits, NaN all alike."""
    return "nan" if scale != scale else scale.hex(), tracker


@settings(max_examples=1500, deadline=None)
@given(words, st.integers(-(2**31), 2**31 - 1), FOUND, FACTOR, FACTOR, st.integers(-2, 2), st.booleans())
@example(0x40400000, 0, 0.0, 1.1, 0.5, 0, True)  # 3 * 1.1
def test_update_is_the_kernel_on_any_bits(word, tracker, found, growth, backoff, off, near):
    """Any scale, tracker, found_inf and factor: interval near the tracker, or far."""
    interval = tracker + 1 + off if near else 2000
    scale, growth_tracker = torch.tensor(value(word)), torch.tensor(tracker, dtype=torch.int32)
    torch._amp_update_scale_(scale, growth_tracker, torch.tensor(found), growth, backoff, interval)
    scaler = GradScaler()
    for name, x in (("growth_factor", growth), ("backoff_factor", backoff), ("growth_interval", interval)):
        object.__setattr__(scaler, name, x)  # (the kernel checks nothing)
    got = scaler.update(State(value(word), tracker), found)
    assert numbers(got.scale, got.growth_tracker) == numbers(scale.item(), growth_tracker.item())


@settings(max_examples=500, deadline=None)
@given(words, st.integers(0, 2**31 - 2), FOUND, FACTOR, FACTOR, st.integers(-1, 1))
@example(0x40400000, 0, 0.0, 1.1, 0.5, 0)
@example(0x7F000000, 0, 0.0, 4.0, 0.5, 0)  # no cap
@example(0x40400000, 0, math.nan, 2.0, 0.5, 1)  # NaN is clean
def test_sharded_update_is_torchs(word, tracker, found, growth, backoff, off):
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler as Sharded

    theirs = Sharded("cpu", process_group=None)
    theirs.scale(torch.tensor(1.0))
    theirs._scale.fill_(value(word))
    theirs._growth_tracker.fill_(tracker)
    ours = ShardedGradScaler()
    for name, x in (("growth_factor", growth), ("backoff_factor", backoff), ("growth_interval", tracker + 1 + off)):
        setattr(theirs, f"_{name}", x)
        object.__setattr__(ours, name, x)
    theirs._per_optimizer_states[0]["found_inf_per_device"] = {"cpu": torch.tensor(found)}
    theirs.update()
    got = ours.update(State(value(word), tracker), found)
    assert numbers(got.scale, got.growth_tracker) == numbers(theirs._scale.item(), theirs._growth_tracker.item())


@settings(max_examples=1000, deadline=None)
@given(words)
def test_inv_scale_is_the_double_reciprocal(word):
    wanted = torch.tensor(value(word)).double().reciprocal().float().item()
    assert numbers(State(value(word)).inv_scale, 0) == numbers(wanted, 0)


@settings(max_examples=2000, deadline=None)
@given(st.one_of(st.floats(), st.floats(-1e39, 1e39), st.floats(-1e-37, 1e-37)))
@example(2.0**-150)
@example(math.nextafter(2.0**-150, 1))
@example(2.0**128 - 2.0**103)
@example(-1.7976930812868855e308)
def test_fp32_rounds_as_the_hardware_does(x):
    with np.errstate(all="ignore"):
        wanted = float(np.float32(x))
    assert numbers(fp32(x), 0) == numbers(wanted, 0)


def test_section_10():
    scaler = GradScaler(3.0, 1.1, growth_interval=1)
    assert scaler.update(scaler.initial(), 0).scale == 3.299999952316284
    assert ShardedGradScaler(3.0, 1.1, growth_interval=1).update(scaler.initial(), 0).scale == 3.3000001907348633
    scaler = GradScaler()
    states = [scaler.initial()]
    while states[-1].scale:
        states.append(scaler.update(states[-1], 1))
    assert len(states) - 1 == 166 and states[165].scale == 2.0**-149
    assert [s.inv_scale == math.inf for s in states] == [s.scale <= 2.0**-128 for s in states]
    assert states[144].scale == 2.0**-128


@pytest.mark.parametrize("found", [1, 2, 0.5, -1, math.inf, math.nan, True, np.float32(1), np.bool_(True)])
def test_whatever_is_not_zero_is_an_overflow(found):
    scaler = GradScaler(8.0)
    assert scaler.update(State(8.0, 5), found) == State(4.0, 0)
    assert scaler.update(State(8.0, 5), 0 * 1.0) == State(8.0, 6)


@pytest.mark.parametrize("found", ["I", None, [1], np.array([1.0]), 1j])
def test_found_inf_is_a_number(found):
    with pytest.raises(InputError, match="found_inf"):
        GradScaler().update(GradScaler().initial(), found)


def test_grows_at_the_interval_and_not_before():
    scaler = GradScaler(4.0, growth_interval=3)
    state, seen = scaler.initial(), []
    for _ in range(6):
        state = scaler.update(state, 0)
        seen.append((state.scale, state.growth_tracker))
    assert seen == [(4.0, 1), (4.0, 2), (8.0, 0), (8.0, 1), (8.0, 2), (16.0, 0)]
    assert scaler.update(State(4.0, 2), 1) == State(2.0, 0)  # an overflow on the growth step
    assert scaler.update(State(2.0**127, 2), 0) == State(2.0**127, 0)  # not finite: dropped, the count begins again
    assert scaler.update(State(math.inf, 0), 1).scale == math.inf  # and infinity stays
    assert GradScaler(growth_interval=0).first_growth is None and GradScaler(growth_interval=7).first_growth == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"growth_interval": 0}, {"growth_interval": -1}, {"backoff_factor": 0.0}, {"backoff_factor": -0.5},
        {"init_scale": 0.0}, {"init_scale": -1.0}, {"init_scale": math.inf}, {"init_scale": math.nan},
        {"growth_factor": math.inf}, {"growth_factor": math.nan}, {"backoff_factor": math.nan},
    ],
)  # fmt: skip
def test_strict(wrong):
    check_strict(GradScaler())
    check_strict({"history": 1, "hysteresis": 2, "init_scale": 8.0, "min_scale": 8.0})
    (name,) = wrong
    with pytest.raises(InputError, match=name):
        check_strict(GradScaler(**wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"history": 0}, {"hysteresis": 0}, {"amax_history_len": 0}, {"growth_factor": 1.0}, {"backoff_factor": 1.0},
        {"growth_interval": 2.0}, {"growth_interval": True}, {"init_scale": "8"}, {"init_scale": 1.0, "min_scale": 2.0},
        {"init_scale": 4.0, "max_scale": 2.0},
    ],
)  # fmt: skip
def test_strict_on_bare_settings(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        check_strict(wrong)
