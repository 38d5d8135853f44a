"""The cache of compiled kernels."""

import pytest

pytest.importorskip("numba")

from numsim.kernels import _jit


def test_an_edit_after_the_import_does_not_rename_what_was_compiled(monkeypatch, tmp_path):
    before = _jit.cache_folder.__wrapped__()
    monkeypatch.setattr(_jit, "__file__", str(tmp_path / "_jit.py"))  # as if the sources had changed under it
    assert before is not None and _jit.cache_folder.__wrapped__() == before


def test_other_sources_have_another_folder(monkeypatch):
    before = _jit.cache_folder.__wrapped__()
    monkeypatch.setattr(_jit, "_SOURCES", _jit._SOURCES + b"edited")
    assert _jit.cache_folder.__wrapped__() != before
