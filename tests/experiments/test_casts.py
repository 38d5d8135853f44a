"""The famous rows against the libraries themselves, and the boundary inputs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from numsim.codes import classify, decode
from numsim.experiments.casts import EXPERIMENT, ROWS, boundaries
from numsim.formats import BF16, E2M1, E4M3, E8M0, FP16, FP32, FP64, get_format
from numsim.machines import find_machine
from tests.experiments.runs import lecture, run, table

RIGHT = {  # section 5.2 of the survey of libraries, and the contract where policies differ
    "-431.99999999999994": ("-416", "-448"),
    "464 + 2^-44": ("NaN", "448"),
    "1 + 2^-8 + 2^-40": ("1.0078125", "1"),
    "2^-25 + 2^-77": ("2^-24", "0"),
    "0x1.dfffff1p+15": ("57344", "inf"),
    "465": ("NaN", "448"),
    "infinity": ("NaN", "448"),
    "300": ("NaN", "240"),
    "4.25": ("4", "4.5"),
    "2^-20": ("2^-20", "0"),
    "2^-133": ("2^-133", "0"),
    "-2^-149": ("-0", "0"),
    "3": ("2", "4"),
    "1.5 x 2^127": ("2^127", "NaN"),
    "0": ("2^-127", "NaN"),
    "-1": ("NaN", "1"),
    "1.25 x 2^-127": ("2^-127", "2^-126"),
    "NaN (as zero)": ("0", "-0"),
}


def test_famous_rows() -> None:
    rows = table(lecture("casts")[1], "libraries disagree").rows
    assert {row[0]: (row[2], row[3]) for row in rows} == RIGHT
    assert [row.text for row in ROWS] == list(RIGHT)
    assert lecture("casts")[1].answer == "-416"


def test_the_first_row_by_hand() -> None:
    x = Fraction(-431.99999999999994)
    assert abs(x + 416) < abs(x + 448)
    assert np.float32(-431.99999999999994) == -432


@pytest.mark.parametrize("machine", ["ml_dtypes", "torch-cpu"])
def test_who_does_it(machine: str) -> None:
    """Each library named in a row gives what the row says, if it is here; and no other."""
    if not (can := find_machine(machine).can()):
        pytest.skip(can.reason)
    name = machine.removesuffix("-cpu")
    if name == "torch":
        torch = pytest.importorskip("torch")
        if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 12):
            pytest.skip("torch saturates from 2.12 on")
    rows = {row[0]: row for row in table(lecture("casts", machine)[1], "libraries disagree").rows}
    checked = 0
    for row in ROWS:
        if row.text in rows:
            right, other = RIGHT[row.text]
            assert rows[row.text][2] == (other if name in row.who else right), row.text
            checked += 1
    assert checked >= 10


def test_names_not_compared_here_have_a_source() -> None:
    sources = " ".join(s for s in EXPERIMENT.sources if s.startswith("* "))
    for row in ROWS:
        for who in row.who.split(", "):
            compared = who.split()[0] in ("ml_dtypes", "torch")
            assert compared != who.endswith("*") and (compared or who.rstrip("*") in sources), who


def test_what_ml_dtypes_rounds_twice() -> None:
    """The map less FP16, which is NumPy's there, and the famous numbers; in E8M0 other quirks meet."""
    pytest.importorskip("ml_dtypes")
    session, ours = lecture("casts")
    counts = ours.series["counts"]["fp64"]
    theirs = find_machine("ml_dtypes")
    differ: dict[str, int] = {}
    for question, answer in {q.digest: (q, a) for q, a in session.answers}.values():
        if question.inputs[0] == FP64 and theirs.can(question):
            one, other = (decode(codes, question.output) for codes in (answer.codes, theirs.answer(question).codes))
            wrong = int(np.count_nonzero((one != other) & ~(np.isnan(one) & np.isnan(other))))
            differ[question.output.title] = differ.get(question.output.title, 0) + wrong
    famous = {"E4M3": 2, "BF16": 1, "E5M2": 1}
    assert set(differ) == set(counts) - {"FP16"}
    for title in set(differ) - {"E8M0"}:
        assert differ[title] == counts[title]["twice"] + famous.get(title, 0), title


def test_numpy_rounds_once() -> None:
    _, result = lecture("casts", "numpy")
    (row,) = [r for r in table(result, "libraries disagree").rows if r[0] == "2^-25 + 2^-77"]
    assert row[2] == "2^-24"
    counts = result.series["counts"]["fp64"]["FP16"]
    assert counts["twice"] == lecture("casts")[1].series["counts"]["fp64"]["FP16"]["twice"] > 0


def test_counts_predict_what_ml_dtypes_does() -> None:
    """Rounding E5M2 through FP32: as many numbers come out otherwise as ml_dtypes really gives otherwise."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for format, dtype in ((get_format("e5m2"), ml_dtypes.float8_e5m2), (BF16, ml_dtypes.bfloat16)):
        codes = boundaries(format, FP64)
        with np.errstate(all="ignore"):
            theirs = codes.view(np.float64).astype(dtype).astype(np.float64)
        ours = decode(run("casts", formats=[format.name]) and _cast(codes, format), format)
        differ = (theirs != ours) & ~(np.isnan(theirs) & np.isnan(ours))
        assert int(differ.sum()) == lecture("casts")[1].series["counts"]["fp64"][format.title]["twice"]


def _cast(codes: np.ndarray, format: object) -> np.ndarray:
    from numsim.machines.emulated import emulate
    from numsim.machines.question import ask

    return emulate(ask("cast", ["fp64"], format, [codes]))


@pytest.mark.parametrize("source", [FP32, FP64])
@pytest.mark.parametrize("format", [E4M3, E2M1, E8M0, FP16, BF16, get_format("e4m3fnuz")])
def test_boundaries(format: object, source: object) -> None:
    codes = boundaries(format, source)
    assert len(np.unique(codes)) == len(codes) < 30_000
    values = decode(codes, source)
    finite = {Fraction(v) for v in values[np.isfinite(values)].tolist()}
    top = format.max
    overflow = (top + format.magnitude(format.max_rank + 1)) / 2  # the grid goes on
    if overflow < FP32.max:
        assert {top, overflow} <= finite
    assert {format.least, format.least / 2, -format.least_normal} <= finite
    classes = set(np.asarray(classify(codes, source)).tolist())
    assert {"zero", "infinity", "normal"} <= classes and ("nan" in classes) == (format.nan_code is not None)
    assert source.sign_mask in codes.tolist()  # -0
    # of everything also the neighbours: most values come in threes (from FP64 in fives, two of them further off)
    magnitudes = np.sort(codes[codes < source.sign_mask]).astype(np.int64)
    assert np.mean(np.diff(magnitudes) == 1) > 0.3


def test_every_number_of_a_16_bit_format() -> None:
    few, many = boundaries(FP16, FP32), boundaries(FP16, FP32, every_number=True)
    assert set(few.tolist()) <= set(many.tolist())
    assert len(many) > 2 * 6 * FP16.max_code
    other = boundaries(FP16, FP32, seed=2)
    assert set(other.tolist()) != set(few.tolist())


def test_one_format_only() -> None:
    result = run("casts", formats=["e5m2"])
    assert list(result.series["counts"]["fp64"]) == ["E5M2"]
    assert result.answer == "not answered"
