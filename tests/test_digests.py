"""The same digests (``tests/digests.py``) however the work is done: kernels or reference, any number of threads, arrays
in any byte order and layout. ``.ci/run`` compares them under the oldest NumPy that is supported, too."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from numsim import kernels
from numsim.kernels import _pool
from tests import digests

needs_kernels = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))


def byte_swapped(x):
    return x.astype(x.dtype.newbyteorder())


def strided(x):
    return np.repeat(x, 2, axis=-1)[..., ::2]


def backwards(x):
    return x[::-1].copy()[::-1]


def in_columns(x):
    return np.asfortranarray(x)


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def unaligned(x):
    whole = np.empty(x.nbytes + 1, np.uint8)
    out = whole[1:].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


LAYOUTS = (byte_swapped, strided, backwards, in_columns, read_only, unaligned)


def differ(lay=lambda x: x):
    right = digests.known()
    assert right.keys() == digests.PARTS.keys()
    return [name for name in right if digests.digest(name, lay) != right[name]]


def divide_all_work(monkeypatch):
    """Pieces as small as they come, so that every kernel's work is divided; returns the pools that were asked for."""
    monkeypatch.setitem(_pool.over_chunks.__kwdefaults__, "large", 1)
    smallest = {
        "_pool": {"LARGE": 1},
        "accumulate": {"_GRAIN": 1},
        "tensorcore": {"_GRAIN": 1, "_ALONE": 0},
        "blocks": {"LARGE": 1, "_SCALES": 4},
        "blocks_hadamard": {"LARGE": 1},
        "blocks_nvfp4": {"LARGE": 1},
    }
    for module, sizes in smallest.items():
        for name, size in sizes.items():
            monkeypatch.setattr(import_module(f"numsim.kernels.{module}"), name, size)
    asked, make = [], _pool._executor
    monkeypatch.setattr(_pool, "_executor", lambda number: asked.append(number) or make(number))
    return asked


def test_a_bit_changes_a_digest():
    """Type, shape and every bit count."""
    x = np.arange(6, dtype=np.uint16).reshape(2, 3)
    others = [x.reshape(3, 2), x.astype(np.uint32), x ^ np.uint16(x == 5), x.view(np.float16), [x], (x, x)]
    found = [b"".join(digests.pieces(y)) for y in (x, *(y for y in others if not isinstance(y, list)))]
    assert len(set(found)) == len(found)
    assert b"".join(digests.pieces(byte_swapped(x))) == found[0] == b"".join(digests.pieces(np.asfortranarray(x)))


@pytest.mark.parametrize("lay", LAYOUTS)
def test_any_layout(lay):
    with kernels.force("reference" if kernels.why_not() else "kernel"):
        assert differ(lay) == []


@needs_kernels
def test_any_number_of_threads(monkeypatch):
    asked = divide_all_work(monkeypatch)
    divided = set()
    for number in (1, 3):
        monkeypatch.setenv("NUMSIM_THREADS", str(number))
        with kernels.force("kernel"):
            for name, right in digests.known().items():
                asked.clear()
                assert digests.digest(name) == right, f"{name} on {number} threads"
                assert set(asked) <= {number} - {1}
                divided |= {name} if asked else set()
    by_reference = {"random", "decimals", "files"}
    assert divided == digests.PARTS.keys() - by_reference


def run(**environment):
    command = [sys.executable, "-W", "error", "-m", "tests.digests", "--check"]
    options = {"cwd": Path(digests.__file__).parents[1], "capture_output": True, "encoding": "utf-8"}
    return subprocess.run(command, env={**os.environ, **environment}, **options)


def test_the_reference_in_a_process_of_its_own():
    done = run(NUMSIM_NO_KERNELS="1", NUMSIM_THREADS="3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "by the reference (NUMSIM_NO_KERNELS is set)" in done.stdout and "all as recorded" in done.stdout


def test_a_difference_is_told(monkeypatch, capsys):
    wrong = {**digests.known(), "sums": "0" * 64}
    monkeypatch.setattr(digests, "known", lambda: wrong)
    monkeypatch.setattr(digests, "PARTS", {n: digests.PARTS[n] for n in ("sums", "random")})
    wrong_names = [n for n in wrong if n != "random"]
    assert digests.main(["--check"]) == 1
    assert f"these differ: {', '.join(wrong_names)}\n" in capsys.readouterr().out
