"""numsim doctor: never fails, names no user, no home and no computer."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path

import pytest

from numsim import doctor, kernels
from numsim.cli import main


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and all(len(line) <= 80 for line in out.splitlines())
    for word in (
        "versions",
        "numpy",
        "ml_dtypes",
        "cpu",
        "subnormals",
        "kernels",
        "cache",
        "machines",
        "emulated",
        "cuda",
    ):
        assert word in out
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["versions", "computer", "terminal", "kernels", "machines"]
    assert all(isinstance(fact, str) for facts in report.values() for fact in facts.values())
    assert report["machines"]["emulated"].startswith("yes")


def test_no_user_home_or_computer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home" / "grace-hopper"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("LOGNAME", "grace-hopper")
    monkeypatch.setenv("NUMSIM_CACHE_DIR", str(home / "cache"))
    monkeypatch.setattr(platform, "node", lambda: "graces-laptop")
    assert getpass.getuser() == "grace-hopper"
    text = json.dumps(doctor.report())
    assert "hopper" not in text and "laptop" not in text
    assert doctor.scrub(f"{home}/x and /tmp/grace-hopper/y on graces-laptop") == "~/x and /tmp/<user>/y on <computer>"
    assert doctor.scrub(f"{home}2") != "~2"


def test_caches_of_other_versions_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    from numsim.kernels import _jit

    monkeypatch.setattr(_jit, "cache_folder", lambda: tmp_path / "kernels-0")
    assert doctor.report()["kernels"]["old caches"] == "none"
    for name in ("kernels-1", "kernels-2", "mine"):
        (tmp_path / name).mkdir()
    said = doctor.report()["kernels"]["old caches"]
    assert said.startswith("2 folders in ") and said.endswith("may be deleted")


def test_names_that_are_also_words_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "numpy")
    assert doctor.scrub("numpy") == "numpy"


def test_whatever_fails_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("boom")

    with monkeypatch.context() as broken:
        broken.setattr("numsim.host.version", fail)
        broken.setattr(kernels, "why_not", fail)
        broken.setattr(getpass, "getuser", fail)
        broken.setattr(platform, "node", fail)
        broken.setattr("numsim.host.cpu_model", fail)
        broken.setattr("numsim.machines.list_machines", fail)
        assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.count("unknown (RuntimeError)") >= 8 and "RuntimeError: boom" in out


def test_a_machine_that_fails_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = title = "broken"

        def can(self) -> None:
            raise OSError("no device")

    from numsim.machines import list_machines

    monkeypatch.setattr("numsim.machines.list_machines", lambda: (Broken(), *list_machines()[:1]))
    machines = doctor.report()["machines"]
    assert machines["broken"] == "unknown (OSError)" and machines["emulated"].startswith("yes")


def test_subnormals_are_kept_here() -> None:
    assert doctor.report()["computer"]["subnormals"] == "kept (no flush-to-zero)"


def test_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--out", str(tmp_path / "d.txt")]) == 0
    assert (tmp_path / "d.txt").read_text(encoding="utf-8").startswith("versions\n")
