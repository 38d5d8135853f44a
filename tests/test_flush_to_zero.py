"""A library that switches on flush-to-zero (FTZ and DAZ) changes no bit: numsim gives what it always gives, or says no.

Every part of ``tests/digests.py`` runs with the switch on: by kernels and reference, in the threads of the pool, in a
process that flushes before numsim is loaded. The inputs have the subnormal numbers of float32 and float64 among them.
"""

import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

import numsim
from numsim import host, kernels
from numsim.errors import UnavailableError
from numsim.kernels import _pool
from tests import digests
from tests.kernels import test_jit
from tests.test_digests import divide_all_work, needs_kernels

flushing = test_jit.flushing  # a fixture: a switch, off again at the end
REFUSED = {"block_formats", "scalers", "unscaling", "delayed_scaling", "optimizer_steps"}  # the CPU's own arithmetic


def answers(switch, names=digests.PARTS):
    """What became of each part with the switch on: "same", "differs", or why it was refused."""
    found, right = {}, digests.known()
    for name in names:
        switch(True)
        try:
            assert host.flushes_subnormals()
            found[name] = "same" if digests.digest(name) == right[name] else "differs"
        except UnavailableError as error:
            found[name] = str(error)
        finally:
            switch(False)
    return found


def check(found):
    assert {n for n, what in found.items() if what == "differs"} == set()
    refused = {n: what for n, what in found.items() if what != "same"}
    assert refused.keys() == REFUSED & found.keys()
    for why in refused.values():
        assert "flush-to-zero" in why and "Example: torch.set_flush_denormal(False)" in why


def test_the_reference(flushing):
    with kernels.force("reference"):
        check(answers(flushing))


@needs_kernels
@pytest.mark.parametrize("workers_flush", [True, False])
def test_threads(workers_flush, flushing, monkeypatch):
    """A thread keeps the mode of the one that made it: workers made before the switch, and after it."""
    monkeypatch.setenv("NUMSIM_THREADS", "3")
    asked = divide_all_work(monkeypatch)
    monkeypatch.setattr(_pool, "_pool", None)
    started = Barrier(3)
    flushing(workers_flush)
    modes = list(_pool._executor(3).map(lambda _: started.wait() >= 0 and host.flushes_subnormals(), range(3)))
    flushing(False)
    assert modes == [workers_flush] * 3
    names = ("encode", "policies", "stochastic", "round_to", "arithmetic", "sums", "matmul", "tensor_cores")
    with kernels.force("kernel"):
        check(answers(flushing, digests.PARTS if workers_flush else names))
        if workers_flush:  # and here no longer
            right = digests.known()
            assert [n for n in (*names, "block_formats", "scalers") if digests.digest(n) != right[n]] == []
    assert len(asked) > 1000


EARLY = """
import ctypes, sys
from importlib.util import find_spec
sys.path.insert(0, sys.argv[1])
exec(sys.argv[2])
flush(True)
assert float("5e-324") == 0.0, "Python itself reads it as zero"
import numsim
from tests import digests
from numsim import host
assert host.flushes_subnormals()
right, who = digests.known(), "reference" if numsim.kernels.why_not() else "kernel"
with numsim.kernels.force(who):
    early = [n for n in right if n not in {REFUSED} and digests.digest(n) != right[n]]
    flush(False)
    assert host.is_ieee()
    late = [n for n in right if digests.digest(n) != right[n]]
print(early, late)
"""


def test_a_process_that_flushes_from_its_start(flushing, tmp_path):
    """No constant is read as zero, and no table made in that mode is wrong, then or later."""
    source = "import ctypes, platform\n" + inspect.getsource(test_jit.flush)
    code = EARLY.replace("{REFUSED}", repr(REFUSED))
    root = str(Path(digests.__file__).parents[1])
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}  # so that Python reads all literals anew
    command = [sys.executable, "-c", code, root, source]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stdout) == (0, "[] []\n"), done.stdout + done.stderr


def test_it_is_noticed(flushing):
    flushing(True)
    try:
        doctor = import_module("numsim.doctor")._subnormals()
        recorded = host.provenance("emulated")["flush_to_zero"]
    finally:
        flushing(False)
    assert "FLUSHED TO ZERO" in doctor and recorded is True


def test_single_numbers_and_views(flushing):
    """What has no digest: one number at a time, and Arrays as NumPy sees them."""
    least = np.uint32([1]).view(np.float32)
    x = numsim.from_codes([1, 2, 5], "fp32")
    flushing(True)
    try:
        found = [
            numsim.encode(least[0], "fp64"),
            numsim.encode([least[0], "1e-45"], "fp32").tolist(),
            numsim.add(x[:1], least).codes.tolist(),
            np.asarray(x, np.float32).view(np.uint32).tolist(),
            np.asarray(x, ">f4").view(np.uint8).tolist(),
            numsim.to_decimal(x).tolist(),
            numsim.less(x, 3e-45).tolist(),
        ]
    finally:
        flushing(False)
    assert found[0] == 0x36A0000000000000 and found[1:4] == [[1, 1], [2], [1, 2, 5]]
    assert found[4] == [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5]
    assert found[5] == ["1e-45", "3e-45", "7e-45"] and found[6] == [True, True, False]
