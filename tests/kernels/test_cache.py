"""The cache of compiled kernels: what was compiled from other sources is never served."""

import shutil

import pytest

pytest.importorskip("numba")

from numsim.kernels import _jit
from tests.kernels.test_jit import HERE, run

TIES = """
import sys
import numpy as np
import numsim
assert numsim.__file__.startswith(sys.argv[1]), numsim.__file__
with numsim.kernels.force("kernel"):
    got = numsim.encode(np.float32([1.0625, 1.1875, 0.1]), "e4m3").tolist()
assert (got == [56, 58, 29]) == (sys.argv[2] == "right"), got
"""


def test_an_edited_helper_in_another_file_is_compiled_anew(tmp_path):
    """numba looks only at the file of the kernel itself; this edit is in a function that its loops call."""
    install, cache = tmp_path / "site", tmp_path / "cache"
    shutil.copytree(HERE, install / "numsim", ignore=shutil.ignore_patterns("__pycache__"))
    helper = install / "numsim" / "kernels" / "_jit.py"
    shift, text = "builder.ashr if a.signed else builder.lshr)", helper.read_text("utf-8")
    assert text.count(shift) == 1
    options = {"install": install, "NUMSIM_CACHE_DIR": str(cache)}
    assert "compiling" in run(TIES, str(install), "right", **options)
    assert run(TIES, str(install), "right", **options) == ""
    helper.write_text(text.replace(shift, "builder.shl)"), "utf-8")
    assert "compiling" in run(TIES, str(install), "wrong", **options)
    assert len(list(cache.iterdir())) == 2


def test_an_edit_after_the_import_does_not_rename_what_was_compiled(monkeypatch, tmp_path):
    before = _jit.cache_folder.__wrapped__()
    monkeypatch.setattr(_jit, "__file__", str(tmp_path / "_jit.py"))  # as if the sources had changed under it
    assert before is not None and _jit.cache_folder.__wrapped__() == before


def test_other_sources_have_another_folder(monkeypatch):
    before = _jit.cache_folder.__wrapped__()
    monkeypatch.setattr(_jit, "_SOURCES", _jit._SOURCES + b"edited")
    assert _jit.cache_folder.__wrapped__() != before
