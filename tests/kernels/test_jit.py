"""How kernels are compiled, kept and run: the cache on disk, broken surroundings, flush-to-zero, threads, forks."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import numsim
from numsim import host, kernels
from numsim.kernels import _pool

HERE = Path(numsim.__file__).parent
needs_kernels = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))

ROUND = """
import sys
import numpy as np
import numsim
assert numsim.__file__.startswith(sys.argv[1]), numsim.__file__
x = np.linspace(-3, 3, 1000, dtype=np.float32)
with numsim.kernels.force("kernel"):
    got = numsim.round_to(x, "e4m3")
with numsim.kernels.force("reference"):
    assert (got == numsim.round_to(x, "e4m3")).all()
"""
WITHOUT = """
import numpy as np
import numsim
assert not numsim.kernels.use(10**9) and not numsim.kernels.use(10**9)
assert numsim.encode(np.float32([0.1, 464, 1e9]), "e4m3").tolist() == [29, 126, 127]
try:
    with numsim.kernels.force("kernel"):
        raise SystemExit("not reached")
except numsim.errors.UnavailableError:
    pass
"""


def run(code, *arguments, install=HERE.parent, **environment):
    """A fresh process with numsim from ``install``; returns what it wrote to stderr."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMSIM_", "NUMBA_"))}
    paths = [environment.pop("PYTHONPATH", None), str(install)]
    kept |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    options = {"env": kept | environment, "cwd": install, "capture_output": True, "encoding": "utf-8", "timeout": 120}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr
    return done.stderr


# --- the cache --------------------------------------------------------------------------------------------------------
@needs_kernels
def test_read_only_install_in_a_path_with_spaces_and_japanese(tmp_path):
    """Compiles once, says so once; the second process reads the cache; nothing is written into the install."""
    install, cache = tmp_path / "with space 日本語" / "site", tmp_path / "キャッシュ cache"
    shutil.copytree(HERE, install / "numsim", ignore=shutil.ignore_patterns("__pycache__"))
    folders = [install, *(p for p in install.rglob("*") if p.is_dir())]
    before = sorted(install.rglob("*"))
    for folder in folders:
        folder.chmod(0o555)
    try:
        first = run(ROUND, str(install), install=install, NUMSIM_CACHE_DIR=str(cache))
        second = run(ROUND, str(install), install=install, NUMSIM_CACHE_DIR=str(cache))
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert first == "numsim: compiling kernels, once after installation: about 3 s\n"
    assert second == ""
    assert sorted(install.rglob("*")) == before
    (kept,) = cache.iterdir()
    assert not [f for f in kept.iterdir() if f.name.startswith("writing")]

    # A damaged file is compiled anew.
    for file in kept.iterdir():
        file.write_bytes(file.read_bytes()[:-100])
    assert "compiling" in run(ROUND, str(install), install=install, NUMSIM_CACHE_DIR=str(cache))
    assert run(ROUND, str(install), install=install, NUMSIM_CACHE_DIR=str(cache)) == ""


@needs_kernels
def test_no_folder_to_write(tmp_path):
    """Below a file no folder can be made, not even by root."""
    (tmp_path / "file").write_text("in the way")
    said = run(ROUND, str(HERE.parent), NUMSIM_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert said.count("\n") == 1 and "in every process" in said


@needs_kernels
def test_processes_that_compile_at_the_same_time(tmp_path):
    errors = []

    def one():
        try:
            run(ROUND, str(HERE.parent), NUMSIM_CACHE_DIR=str(tmp_path))
        except BaseException as error:
            errors.append(error)

    together = [threading.Thread(target=one) for _ in range(2)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    assert errors == []
    assert run(ROUND, str(HERE.parent), NUMSIM_CACHE_DIR=str(tmp_path)) == ""


@needs_kernels
def test_where_the_cache_is(monkeypatch, tmp_path):
    from numsim import files

    monkeypatch.delenv("NUMSIM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    found = {}
    for system in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sys, "platform", system)
        found[system] = files.cache_home().relative_to(tmp_path).as_posix()
    assert found == {"linux": "xdg/numsim", "darwin": "Library/Caches/numsim", "win32": "local/numsim"}


@needs_kernels
def test_numba_is_left_as_it_was():
    code = """
import numba
before = {k: repr(getattr(numba.config, k)) for k in dir(numba.config) if k.isupper()}
import numsim, numpy as np
with numsim.kernels.force("kernel"):
    numsim.encode(np.ones(10), "fp16")
assert before == {k: repr(getattr(numba.config, k)) for k in dir(numba.config) if k.isupper()}
"""
    run(code)


# --- without kernels --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("environment", "numba", "reason"),
    [
        ({"NUMSIM_NO_KERNELS": "1"}, None, "NUMSIM_NO_KERNELS is set"),
        ({"NUMBA_DISABLE_JIT": "1"}, None, "NUMBA_DISABLE_JIT is set"),
        ({}, "raise ImportError('Numba needs NumPy 2.0 or less')", "(ImportError: Numba needs NumPy 2.0 or less)"),
        ({}, "raise RuntimeError", "(RuntimeError: )"),
        ({}, "", "numba does not work here"),
    ],
)
def test_without_kernels_one_line_says_why(tmp_path, environment, numba, reason):
    if numba is not None:
        (tmp_path / "numba").mkdir()
        (tmp_path / "numba" / "__init__.py").write_text(numba)
        environment = {"PYTHONPATH": str(tmp_path)}
    elif kernels.why_not():
        pytest.skip(str(kernels.why_not()))
    said = run(WITHOUT, **environment)
    assert said.count("\n") == 1 and reason in said and "runs on the reference" in said


def test_importing_numsim_loads_no_numba():
    run("import sys, numsim; assert 'numba' not in sys.modules and 'llvmlite' not in sys.modules")


# --- flush-to-zero ----------------------------------------------------------------------------------------------------
def flush(on):
    """Switch flush-to-zero of this thread through the C library's floating-point environment."""
    place, bits = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}[platform.machine()]
    library = ctypes.CDLL("libm.so.6")
    environment = (ctypes.c_uint8 * 64)()
    assert library.fegetenv(environment) == 0
    word = int.from_bytes(bytes(environment[place : place + 4]), "little")
    word = word | bits if on else word & ~bits
    environment[place : place + 4] = list(word.to_bytes(4, "little"))
    assert library.fesetenv(environment) == 0


@pytest.fixture
def flushing():
    try:
        flush(False)
    except (KeyError, OSError, AttributeError):
        pytest.skip("flush-to-zero is switched through glibc on x86-64 and ARM only")
    yield flush
    flush(False)


@needs_kernels
@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32", "fp32", "e8m0", "e8m20", "fp64", "e5m2"])
def test_a_cpu_that_flushes_subnormals(flushing, name):

    rng = np.random.default_rng(4)
    words = rng.integers(0, 1 << 26, 700, dtype=np.uint32) | rng.integers(0, 2, 700, dtype=np.uint32) << np.uint32(31)
    single = np.concatenate([words.view(np.float32), np.float32([0.1, -3, np.inf, np.nan, 0.0])])
    double = (words.astype(np.uint64) << np.uint64(32)).view(np.float64)
    given = rng.integers(0, 1 << 32, single.size, dtype=np.uint32)
    modes = [{}, {"rounding": "up"}, {"rounding": "stochastic", "random_bits": given}, {"events": numsim.Events()}]
    for x in (single, double):
        for mode in modes:
            options = {k: v[: x.size] if k == "random_bits" else v for k, v in mode.items()}
            out = [np.empty_like(x) for _ in range(2)]
            codes = []
            fits = kernels.fits_source(x.dtype, numsim.get_format(name))
            for which, on in (("reference", False), ("kernel", True)):
                with kernels.force(which):
                    flushing(on)
                    assert host.flushes_subnormals() == on
                    codes.append(numsim.encode(x, name, **options))
                    if fits:
                        numsim.round_to(x, name, out=out[on], **options)
                    flushing(False)
            assert (codes[0] == codes[1]).all()
            if fits:
                assert (out[0].view(np.uint8) == out[1].view(np.uint8)).all()


# --- threads ----------------------------------------------------------------------------------------------------------
def test_chunks_cover_the_range_once(monkeypatch):
    monkeypatch.setenv("NUMSIM_THREADS", "3")
    assert _pool.threads() == 3
    for count in (0, 1, 9, 10, 11, 95, 100):
        hits = np.zeros(count, int)

        def work(first, end, hits=hits):
            hits[first:end] += 1

        _pool.over_chunks(count, work, chunk=10, large=10)
        assert (hits == 1).all()


def test_threads_by_environment(monkeypatch):
    for wrong in ("", "0", "-1", "two"):
        monkeypatch.setenv("NUMSIM_THREADS", wrong)
        assert 1 <= _pool.threads() <= (os.cpu_count() or 1)


def test_errors_in_a_thread_arrive_and_nested_work_does_not_wait(monkeypatch):
    monkeypatch.setenv("NUMSIM_THREADS", "2")

    def fail(first, end):
        raise ValueError(first)

    with pytest.raises(ValueError, match="0"):
        _pool.over_chunks(100, fail, chunk=10, large=10)

    done = []

    def outer(first, end):
        _pool.over_chunks(100, lambda i, j: done.append((i, j)), chunk=10, large=10)

    _pool.over_chunks(40, outer, chunk=10, large=10)
    assert done == [(0, 100)] * 4


@needs_kernels
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_after_use():
    code = """
import os, warnings
import numpy as np
import numsim
x = np.random.default_rng(0).standard_normal(400_000).astype(np.float32)
with numsim.kernels.force("kernel"):
    before = numsim.encode(x, "e5m2")
    warnings.simplefilter("ignore")  # Python 3.12 warns of forks in processes with threads
    child = os.fork()
    same = (numsim.encode(x, "e5m2") == before).all()
    if not child:
        os._exit(0 if same else 1)
assert same and os.waitpid(child, 0)[1] == 0
"""
    run(code, NUMSIM_THREADS="2", NUMSIM_CACHE_DIR=os.environ.get("NUMSIM_CACHE_DIR", ""))


@needs_kernels
@pytest.mark.skipif(not sys.platform.startswith("linux") or platform.machine() != "x86_64", reason="glibc on x86-64")
@pytest.mark.parametrize("direction", [0x400, 0x800, 0xC00], ids=["down", "up", "toward zero"])
def test_a_cpu_that_does_not_round_to_nearest(direction):
    """C code can leave another rounding direction behind; kernels must not lean on the hardware then."""
    libm = ctypes.CDLL("libm.so.6")
    x = np.random.default_rng(4).normal(size=3000).astype(np.float32)
    x[:40] = [0.0, -0.0, 1e-42, -1e-42] * 10  # rounding down, x - x is -0
    a = numsim.array(x[:2500].reshape(50, 50), "fp16")
    wanted, products = numsim.encode(x, "e4m3"), numsim.matmul(a, a)
    assert libm.fesetround(direction) == 0
    try:
        assert not host.rounds_to_nearest()
        with kernels.force("kernel"):
            got, got_products = numsim.encode(x, "e4m3"), numsim.matmul(a, a)
    finally:
        libm.fesetround(0)
    assert np.array_equal(got, wanted) and np.array_equal(got_products.codes, products.codes)
