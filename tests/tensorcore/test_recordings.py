"""Every recorded result of a real chip, bit for bit: 48 sets of 5,000."""

import numpy as np
import pytest

from numsim.tensorcore import list_chips, list_models, mma
from numsim.tensorcore.block import dot
from tests.tensorcore import oracle
from tests.tensorcore.recordings import CHIPS, FOLDER, RECORDINGS, TYPES, needed

each = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda r: r.name)
ALL_MODELS = [m for chip in list_chips() for m in list_models(chip)]


@needed
@each
def test_all_results(recording):
    a, b, c, d = recording.load()
    assert len(d) == 5000
    mine = mma(a, b, c, chip=recording.chip, instruction=recording.instruction)
    assert np.flatnonzero(mine != d).tolist() == []


@needed
@each
def test_reference_and_oracle(recording):
    """The two slow ones on 200 and 50 vectors from all over the set."""
    a, b, c, d = recording.load()
    for step, slow in ((25, dot), (100, oracle.dot)):
        for i in range(7, 5000, step):
            assert slow(a[i].tolist(), b[i].tolist(), int(c[i]), recording.model) == d[i], i


@needed
def test_nothing_is_left_out():
    """Every output of every file is in the table."""
    found = set()
    for path in FOLDER.glob("*.npz"):
        with np.load(path) as file:
            found |= {(path.name, key[2:]) for key in file if key.startswith("D_")}
    assert found == {(r.path.name, r.output) for r in RECORDINGS} and len(RECORDINGS) == len(found) == 48


def test_evidence_names_recordings():
    """What a record claims exists, and is of this chip and of these types."""
    known = {r.name: r for r in RECORDINGS}
    for m in ALL_MODELS:
        assert bool(m.evidence.recordings) == (m.evidence.level == "validated"), str(m)
        for name in m.evidence.recordings:
            r = known[name]
            assert (r.chip, r.output) == (m.chip, m.d), f"{m}: {name}"
        types = {TYPES[known[name].type] for name in m.evidence.recordings}
        assert not types or {m.a, m.b} == types, str(m)
        own = any(known[name].model == m for name in m.evidence.recordings)
        assert own or m.evidence.note or not types, f"{m}: what another instruction's recording leaves open"


def test_every_recording_is_named():
    """By the record of the very instruction that it was made with."""
    for r in RECORDINGS:
        assert r.name in r.model.evidence.recordings, r.name
    assert {r.chip for r in RECORDINGS} == set(CHIPS.values())
