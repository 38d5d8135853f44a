"""What experiments on scalers share: a trace's scales are those of the machine that was asked."""

import dataclasses

import numpy as np

from numsim.experiments.experiment import Session
from numsim.experiments.scaler_runs import played
from numsim.machines import get_machine
from numsim.scaling import get_scaler, replay

SETTINGS = {"init_scale": 16.0, "growth_interval": 2}


class Doubling:
    """A machine whose scales are twice those of the emulator."""

    name, can, provenance = "doubling", get_machine("emulated").can, get_machine("emulated").provenance

    def answer(self, question):
        answer = get_machine("emulated").answer(question)
        return dataclasses.replace(answer, codes=(2 * answer.codes.view(np.float32)).view(np.uint32))


def test_both_scales_are_the_machines():
    """One machine's scales, in both series: each step was made with the scale after the step before."""
    found = [1, 0, 0, 1, 1, 1, 0]
    trace = played(Session(Doubling()), "torch", SETTINGS, found)
    assert trace["scale"].tolist() == [16, 16, 32, 16, 8, 4, 4]
    assert trace["scale used"].tolist() == [16, *trace["scale"][:-1]]
    assert trace["tracker"].tolist() == replay(get_scaler("torch", **SETTINGS), found)["tracker"].tolist()


def test_the_emulators_machine_plays_what_replay_plays():
    for name in ("torch", "jmp", "deepspeed"):
        found = [1, 0, 0, 1, 0, 0, 0, 0]
        mine = played(Session(get_machine("emulated")), name, SETTINGS, found)
        for session in (None, Session(get_machine("numpy"))):  # numpy has no scaler of torch
            assert played(session, name, SETTINGS, found).json == mine.json
        assert replay(get_scaler(name, **SETTINGS), found).json == mine.json
