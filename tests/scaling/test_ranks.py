"""found_inf over ranks: who has to communicate it, and what becomes of scales where nobody does."""

import math

import numpy as np
import pytest

import numsim
from numsim.errors import InputError
from numsim.scaling import get_scaler, reduce_found_inf, unscale

SYSTEMS = {"fsdp": "sharded", "megatron": "megatron", "deepspeed": "deepspeed"}


def test_sums_and_maxima():
    assert reduce_found_inf([0, 1, 1], "ddp") == (0.0, 1.0, 1.0)
    assert reduce_found_inf([0, 1, 1], "fsdp") == (2.0, 2.0, 2.0)
    assert reduce_found_inf(iter([0, 1, True]), "megatron") == reduce_found_inf([0, 1, 1], "deepspeed") == (1.0,) * 3
    assert reduce_found_inf([np.float32(0.0)], "fsdp") == (0.0,)
    for system in SYSTEMS:
        assert all(map(math.isnan, reduce_found_inf([0, math.nan, 1], system)))


def steps(seed=3):
    """FP16 gradients (steps, ranks, elements), with an infinity on one rank now and then."""
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((40, 4, 6))
    gradients[rng.random(gradients.shape) < 0.01] = math.inf
    return numsim.array(gradients, "fp16")


def test_with_all_reduced_gradients_nothing_needs_to_be_said():
    """An infinity goes through the sum, and so does -inf + inf, as NaN: all ranks find the same."""
    scaler, gradients = get_scaler("torch", init_scale=2.0**20, growth_interval=3), steps()
    states, overflows = [scaler.initial()] * 4, 0
    for step in gradients:
        total = numsim.sum(step, axis=0)
        found = [unscale(scaler, state, total)[1] for state in states]
        assert len(set(found)) == 1 and found[0] == (not np.isfinite(step.values).all())
        overflows += found[0]
        states = [scaler.update(s, f) for s, f in zip(states, reduce_found_inf(found, "ddp"), strict=True)]
        assert len(set(states)) == 1
    assert 0 < overflows < 40
    total = numsim.sum(numsim.array([[math.inf], [-math.inf]], "fp16"), axis=0)
    assert unscale(scaler, states[0], total)[1]


@pytest.mark.parametrize("system", SYSTEMS)
def test_shards_part_without_it(system):
    settings = {"init_scale": 2.0**20, "growth_interval": 3}
    scaler, gradients = get_scaler(SYSTEMS[system], **settings), steps()
    together, apart = [scaler.initial()] * 4, [scaler.initial()] * 4
    for step in gradients:
        found = [unscale(scaler, state, shard)[1] for state, shard in zip(apart, step, strict=True)]
        apart = [scaler.update(s, f) for s, f in zip(apart, found, strict=True)]
        together = [scaler.update(s, f) for s, f in zip(together, reduce_found_inf(found, system), strict=True)]
        assert len(set(together)) == 1
    assert len({state.scale for state in apart}) > 1


def test_what_is_refused():
    for found, system, words in (
        ([0, 1], "torch", "allowed are ddp, fsdp, megatron, deepspeed"),
        ([], "fsdp", "a number for each rank"),
        (1, "fsdp", "a number for each rank"),
        (["I"], "fsdp", "found_inf='I': a number"),
    ):
        with pytest.raises(InputError, match=words):
            reduce_found_inf(found, system)
