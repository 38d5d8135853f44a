"""kept-bits: the counts follow from F by hand; FP32 from numpy; a recording answers like the emulator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from numsim.cli import main
from numsim.errors import InputError
from numsim.tensorcore import get_model
from tests.experiments.runs import lecture, run, table

POWERS = range(22, 28)


def counts(terms: int = 8, **parameters: object) -> dict[str, tuple[list[float], list[float]]]:
    result = run("kept-bits", terms=terms, **parameters)
    return {name: (first, other) for name, first, other in result.series["rows"]}


def test_the_answer() -> None:
    assert lecture("kept-bits")[1].answer == "1, 1, 1 + 4 x 2^-23"


@pytest.mark.parametrize("chip", ["v100", "t4", "a100", "a2", "rtx4090", "h100", "h200", "b200", "rtxpro6000"])
@pytest.mark.parametrize("terms", [2, 4, 8])
def test_next_to_c_the_kept_bits_decide(chip: str, terms: int) -> None:
    """A term of 2^-p survives if F >= p; the sum then loses what is below 2^-23."""
    instruction = "mma.m8n8k4.f32.f16.f16.f32" if chip == "v100" else "mma.m16n8k8.f32.f16.f16.f32"
    kept = get_model(chip, instruction).unit.fraction_bits
    ((_, (first, _)),) = [row for row in counts(terms, chips=[chip]).items() if row[0] != "FP32 in order"]
    # V100: four terms a block, each block cut; the others take all terms in one
    expected = [terms * 2.0**-p // 2.0**-23 * 2.0 ** (p - 23) if p <= kept else 0 for p in POWERS]
    assert first == expected


def test_fp32_in_order() -> None:
    first, other = counts(chips=["a100"])["FP32 in order"]
    for p, a, b in zip(POWERS, first, other, strict=True):
        small, one, last = np.float32(2.0**-p), np.float32(1), np.float32(0)
        for _ in range(8):
            one, last = one + small, last + small
        assert a == (float(one) - 1) * 2.0**p
        assert b == (float(last + np.float32(1)) - 1) * 2.0**p


def test_the_one_as_a_product_moves_the_blocks() -> None:
    """A100 at 2^-24: 1 and seven terms in the first block, cut to 1 + 3 x 2^-23; the eighth is cut after the second."""
    by_chip = counts(chips=["a100", "h100"])
    assert by_chip["A100"][1][2] == 6 and by_chip["A100"][0][2] == 8
    assert by_chip["H100"][1] == by_chip["H100"][0]  # all nine fit into one block of 16


def test_the_smallest_that_counts() -> None:
    limits = lecture("kept-bits")[1].series["limits"]
    assert limits["H100"] == {"FP16": "2^-25", "BF16": "2^-25", "TF32": "2^-25", "E5M2": "2^-13", "E4M3": "2^-13"}
    assert limits["B200"]["E5M2"] == "2^-25"
    assert limits["B200"]["E4M3"] == "<=2^-18"  # E4M3's least number is 2^-9: smaller products cannot be made
    assert limits["V100"] == {"FP16": "2^-23", "BF16": None, "TF32": None, "E5M2": None, "E4M3": None}


def test_small_formats_have_few_powers() -> None:
    result = run("kept-bits", chips=["rtx5090"], formats=["e2m1", "e2m3"])
    assert result.series["limits"] == {"RTX 5090": {"E2M1": "<=2^-2", "E2M3": "<=2^-6"}}


def test_evidence_is_named() -> None:
    rows = table(lecture("kept-bits")[1], "Started from c = 1").rows
    assert {r[0]: r[-1] for r in rows if r[0] in ("A100", "T4")} == {"A100": "validated", "T4": "single-source"}


@pytest.mark.parametrize(
    "bad", [{"terms": 1}, {"terms": 8.0}, {"chips": []}, {"chips": "h300"}, {"formats": "fp32"}, {"formats": "e8m0"}]
)
def test_bad_parameters(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Example: "):
        run("kept-bits", **bad)


def test_a_recording_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a machine would record is found again, question by question."""
    file, chips = str(tmp_path / "kept.npz"), ["--chip", "a100,h100"]
    assert main(["record", "kept-bits", *chips, "--machine", "emulated", "--out", file]) == 0
    capsys.readouterr()
    assert main(["run", "kept-bits", *chips, "--against", file, "--json", "--out", str(tmp_path)]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    (verdict,) = result["verdicts"]
    assert verdict["verdict"] == "same bits" and verdict["compared"] > 200 and not verdict["skipped"]
