"""numsim reveal: findings, fits, recordings, and what goes wrong."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from numsim.cli import main
from numsim.gpu import driver
from numsim.machines import ask, find_machine
from numsim.machines.question import Answer
from numsim.machines.recorded import write_record
from numsim.suites.tensorcore import questions
from numsim.tensorcore import get_model

WGMMA = "wgmma.m64n256k32.f32.e4m3.e4m3"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(capsys, *args):
    code = main(["reveal", *args])
    out = capsys.readouterr()
    return code, out.out, out.err


def flat(text):
    return " ".join(text.split())


def test_a_chip(capsys):
    code, out, err = call(capsys, "--chip", "H200", "--instruction", WGMMA)
    assert code == 0 and err == "" and out.isascii() and all(len(line) <= 80 for line in out.splitlines())
    assert out.index("question") < out.index("unit") < out.index("fraction bits") < out.index("fits")
    text = flat(out)
    assert "block 32 products are added at once" in text and "fraction bits 13 bits below" in text
    assert f"fits {WGMMA}: validated on h100, h200 one unit" in text and "cannot be told apart" in text
    assert "does not)" not in text
    seen = flat(call(capsys, "--chip", "h200", "--instruction", WGMMA, "--seen", "--plain")[1])
    assert "(2^16 - 2^16 + v: v = 2^3 comes out, half of it does not)" in seen


def test_by_format(capsys):
    code, out, _ = call(capsys, "--chip", "a100", "--format", "fp16", "--output", "fp16", "--json")
    data = json.loads(out)
    assert code == 0 and data["machine"] == "emulated, mma.m16n8k16.f16.f16.f16.f16 on a100"
    values = {f["name"]: f["value"] for f in data["findings"]}
    assert values["floor"] == -20 and values["output"] == "nearest-even, 10 bits" and values["fraction bits"] == 24
    record = {"chip": "t4", "instruction": "mma.m16n8k8.f16.f16.f16.f16", "evidence": "single-source"}
    assert record in data["fits"][0]["models"]


def test_how_sure_the_records_are(capsys):
    text = flat(call(capsys, "--chip", "v100")[1])
    assert "fits mma.m8n8k4.f32.f16.f16.f32: validated on v100; unverified on t4 one unit" in text
    assert "chips of several generations: Volta (v100), Turing (t4)" in text
    assert "t4 unverified: two versions of one source disagree: F = 23 or 24" in text
    text = flat(call(capsys, "--chip", "mi100", "--instruction", "mfma.f32_16x16x8bf16")[1])
    assert "single-source on mi100" in text and "generations" not in text and "unverified" not in text


def test_a_library_fits_no_chip(capsys):
    code, out, _ = call(capsys, "--machine", "numpy", "--format", "fp32")
    assert code == 0 and "no record of a chip gives these answers nor comes near: at least " in flat(out)
    assert "\nnearest" not in out and json.loads(call(capsys, "--machine", "numpy", "--json")[1])["nearest"]
    assert all(len(line) <= 80 for line in out.splitlines())


def test_files(capsys):
    assert call(capsys, "--chip", "v100", "--out", "v.npz")[0] == 0
    code, _, err = call(capsys, "--chip", "v100", "--out", "v.npz")
    assert code == 2 and "--force replaces it" in err
    assert call(capsys, "--chip", "v100", "--out", "v.npz", "--force")[0] == 0
    first = call(capsys, "--machine", "v.npz", "--json")[1]
    again = json.loads(first)
    assert again["machine"].startswith("recorded, mma.m8n8k4") and again["fits"][0]["models"][0]["chip"] == "v100"
    assert call(capsys, "--chip", "v100", "--out", "v.json")[0] == 0
    assert json.loads(Path("v.json").read_text())["findings"] == again["findings"]
    assert call(capsys, "--chip", "v100", "--out", "folder")[0] == 0
    assert sorted(p.name for p in Path("folder").iterdir()) == ["reveal.json", "reveal.txt"]


def test_a_recording_of_other_sums(capsys):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((200, 16)).astype(np.float16).view(np.uint16) for _ in range(2))
    unit = {"chip": "a100", "instruction": "mma.m16n8k16.f32.f16.f16.f32"}
    q = ask("mma", ["fp16", "fp16", "fp32"], "fp32", [a, b, np.zeros(200, np.uint32)], **unit)
    write_record("sums.npz", [(q, find_machine("emulated").answer(q))])
    code, out, _ = call(capsys, "--machine", "sums.npz")
    assert code == 0 and "all 200 answers are those of" in flat(out) and "mma.m16n8k8.f32.f16.f16.f32" in out
    data = json.loads(call(capsys, "--machine", "sums.npz", "--json")[1])
    assert call(capsys, "--machine", "sums.npz", "--out", "left.npz")[0] == 2 and not Path("left.npz").exists()
    records = data["eliminated"][0]["records"]
    assert {m["chip"] for r in records if not r["differs"] for m in r["models"]} >= {"a100", "t4"}
    assert any(r["differs"] for r in records if r["models"][0]["chip"] == "h100")


def test_a_suite_s_record_in_a_line_for_each_instruction(capsys):
    names = ["mma.m8n8k4.f32.f16.f16.f32", "mma.m16n8k8.f32.f16.f16.f32"]
    answers = []
    for name in names:
        model = get_model("t4", name)
        for set_name, q in questions(model, 1):
            if set_name in ("near", "K x 2"):
                answers.append((q, find_machine("emulated").answer(q)))
    wrong = [(q, Answer(a.codes ^ (q.instruction == names[1]), a.provenance)) for q, a in answers]
    write_record("suite.npz", wrong, suite="tensorcore", parts=[q.instruction for q, _ in wrong])
    code, out, _ = call(capsys, "--machine", "suite.npz")
    lines = out.splitlines()
    assert code == 0 and max(map(len, lines)) <= 80 and len(lines) < 20
    assert re.search(rf"^{names[0]} +[\d,]+  yes   v100, t4$", out, re.M)
    assert re.search(rf"^{names[1]} +[\d,]+  no    ", out, re.M) and "the nearest" in out
    assert "All records that were compared: --seen" in out
    full = call(capsys, "--machine", "suite.npz", "--seen")[1]
    assert len(full.splitlines()) > 2 * len(lines) and "answers are those of" in flat(full)


def test_wrong_use(capsys, monkeypatch):
    monkeypatch.setattr(driver, "missing", lambda: "no NVIDIA GPU found")
    for args, code, text in (
        ((), 2, "which one? Example: numsim reveal --chip h200"),
        (("--chip", "h300"), 2, "did you mean h200"),
        (("--chip", "x"), 2, "Example: --chip h200 --instruction mma.m16n8k16.f32.f16.f16.f32"),
        (("--machine", "numpy", "--instruction", "x"), 2, "--instruction x: of which chip? Example: numsim reveal --c"),
        (("--chip", "h200", "--instruction", "mma.m16n8k99.f32.f16.f16.f32"), 2, "nearest"),
        (("--chip", "h200", "--instruction", WGMMA, "--format", "fp16"), 2, "names its formats"),
        (("--chip", "v100", "--format", "fp8"), 2, "unknown format"),
        (("--machine", "nump"), 2, "did you mean numpy"),
        (("--machine", "none.npz"), 2, "none.npz"),
        (("--machine", "cuda", "--chip", "h200"), 4, "no NVIDIA GPU found"),
        (("--machine", "numpy", "--chip", "h200"), 4, "numpy"),
        (("--machine", "numpy", "--format", "bf16"), 4, "no arithmetic in bf16"),
    ):
        got, out, err = call(capsys, *args)
        assert (got, out) == (code, "") and text in err and "Traceback" not in err
    q = ask("cast", ["fp32"], "fp16", [np.zeros(1, np.uint32)])
    write_record("cast.npz", [(q, find_machine("emulated").answer(q))])
    code, _, err = call(capsys, "--machine", "cast.npz")
    assert code == 4 and "no answers of a matrix unit" in err
