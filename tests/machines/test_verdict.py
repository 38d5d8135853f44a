"""Differences are found, counted, classed and shown; only predicted bits count as documented."""

import json

import numpy as np
import pytest

import numsim
from numsim.errors import InputError, UnavailableError
from numsim.machines import Answer, Can, ask, get_machine
from numsim.machines.emulated import Emulated, emulate
from numsim.machines.orders import kahan, last, pairwise, sequential
from numsim.machines.quirks import QUIRKS, predict, quirks_of
from numsim.machines.verdict import SHOWN, compare, compare_answers, describe
from tests.machines import battery

EMULATED = Emulated()


def answer(codes, machine="numpy"):
    return Answer(codes, {"machine": machine})


def cast(values, target, source="fp64", **options):
    return ask("cast", [source], target, [np.asarray(numsim.encode(values, source))], **options)


def test_equal():
    q = cast([0.1, 1.0, -0.0], "fp16")
    v = compare(q, EMULATED.answer(q), get_machine("numpy").answer(q))
    assert (v.compared, v.equal, v.differ, v.unexplained, v.nan, v.text, v.ok) == (3, 3, 0, 0, 0, "same bits", True)
    assert (v.machine, v.against) == ("emulated", "numpy")


@pytest.mark.parametrize("place", [0, 2, 5])
@pytest.mark.parametrize("machine", ["numpy", "ml_dtypes", "torch-cpu", "cuda", "something else"])
def test_one_wrong_bit_is_unexplained(place, machine):
    q = cast([0.1, 1.0, 2.0, 1e9, 1e-9, 448.0], "e4m3")
    right = emulate(q)
    wrong = right.copy()
    wrong[place] ^= 1
    if wrong[place] == 0x7E and machine in ("torch-cpu", "cuda"):  # 1e9 to 448: that would be torch's saturation
        wrong[place] ^= 4
    v = compare(q, EMULATED.answer(q), answer(wrong, machine))
    assert (v.unexplained, v.differ, v.equal, v.ok, v.text) == (1, 1, 5, False, "1 UNEXPLAINED")
    assert v.shown[0].index == (place,) and v.shown[0].reason == ""


def test_a_difference_is_shown_in_hex_and_value():
    q = cast([1.0, -2.5], "e4m3")
    wrong = emulate(q)
    wrong[1] = 0x7F
    shown = compare(q, EMULATED.answer(q), answer(wrong)).shown[0]
    assert str(shown) == "cast fp64[2] -> e4m3fn of 0xc004000000000000 = -2.5: 0xc2 = -2.5 against 0x7f = nan"


def test_the_sign_of_zero_is_a_difference():
    q = cast([0.0, -0.0], "fp16")
    v = compare(q, EMULATED.answer(q), answer(np.zeros(2, np.uint16)))
    assert (v.unexplained, v.nan) == (1, 0)
    assert str(v.shown[0]).endswith("0x8000 = -0 against 0x0000 = 0")


def test_nans_are_a_class_of_their_own():
    q = cast([float("nan"), 1.0], "fp16")
    other = np.array([0xFE01, 0x3C00], np.uint16)
    v = compare(q, EMULATED.answer(q), answer(other))
    assert (v.equal, v.nan, v.differ, v.ok, v.text) == (1, 1, 0, True, "same bits but for NaN payloads")
    v = compare(q, EMULATED.answer(q), answer(other), nan="bits")
    assert (v.nan, v.unexplained, v.ok) == (0, 1, False)
    number = compare(q, EMULATED.answer(q), answer(np.array([0x7C00, 0x3C00], np.uint16)))  # NaN against infinity
    assert number.unexplained == 1
    with pytest.raises(InputError, match="nan='quiet'"):
        compare(q, EMULATED.answer(q), answer(other), nan="quiet")


def test_payloads_do_not_hide_a_reason():
    """A NaN of another payload beside a documented difference: the model still fits."""
    q = cast([float("nan"), -431.99999999999994], "e4m3")
    v = compare(q, EMULATED.answer(q), answer(np.array([0xFF, 0xFE], np.uint8), "ml_dtypes"))
    assert (v.nan, dict(v.documented), v.ok) == (1, {"rounds twice": 1}, True)
    v = compare(q, EMULATED.answer(q), answer(np.array([0xFF, 0xFE], np.uint8), "ml_dtypes"), nan="bits")
    assert (v.nan, dict(v.documented), v.unexplained) == (0, {"rounds twice": 1}, 1)
    assert "0x7f = nan against 0xff = nan" in str(v.shown[0])


def test_documented_means_predicted():
    q = cast([-431.99999999999994, 1 + 2.0**-4 + 2.0**-40, 0.1], "e4m3")
    library = get_machine("ml_dtypes").answer(q)
    v = compare(q, EMULATED.answer(q), library)
    assert (dict(v.documented), v.unexplained, v.text) == ({"rounds twice": 2}, 0, "as documented: rounds twice")
    assert v.reasons["rounds twice"][1].startswith("numsim is right")
    wrong = library.codes.copy()
    wrong[0] ^= 4  # neither right nor what two roundings give
    v = compare(q, EMULATED.answer(q), answer(wrong, "ml_dtypes"))
    assert (dict(v.documented), v.unexplained) == ({"rounds twice": 1}, 1)
    assert v.shown[0].reason == "" and v.shown[1].reason == "rounds twice"  # what is unexplained comes first
    assert v.text == "1 UNEXPLAINED, 1 as documented"
    v = compare(q, EMULATED.answer(q), answer(library.codes, "numpy"))  # numpy has no such excuse
    assert v.unexplained == 2


def test_one_model_has_to_fit_the_whole_answer():
    """A machine that rounds once here and twice there is not "as documented" in what fits neither."""
    q = cast([0.0, 3.0, 5.0, 0.5], "e8m0")
    ties_up, zero_nan = np.array([0, 0x81, 0x81, 0x7E], np.uint8), np.array([0xFF, 0x80, 0x81, 0x7E], np.uint8)
    assert compare(q, EMULATED.answer(q), answer(ties_up, "ml_dtypes")).text == "as documented: ties go up"
    assert compare(q, EMULATED.answer(q), answer(zero_nan, "ml_dtypes")).text == "as documented: zero becomes NaN"
    both = compare(q, EMULATED.answer(q), answer(np.array([0xFF, 0x81, 0x81, 0x7E], np.uint8), "ml_dtypes"))
    assert dict(both.documented) == {"ties go up": 1, "zero becomes NaN": 1} and both.ok


def test_now_this_and_now_that_is_unexplained():
    q = cast([-431.99999999999994, 1 + 2.0**-4 + 2.0**-40], "e4m3")
    right, twice = EMULATED.answer(q).codes, get_machine("ml_dtypes").answer(q).codes
    v = compare(q, EMULATED.answer(q), answer(np.array([right[0], twice[1]]), "ml_dtypes"))
    assert (v.equal, v.unexplained) == (1, 1)
    below, above = 3 * (1 - 2.0**-40), 3 * (1 + 2.0**-40)  # in E8M0 beside a tie, which FP32 makes of both
    q = cast([below, below, 3.0, above], "e8m0")
    v = compare(q, EMULATED.answer(q), answer(np.array([0x81, 0x81, 0x81, 0x80], np.uint8), "ml_dtypes"))
    assert v.unexplained == 1 and v.shown[0].index == (3,)  # two roundings alone would give 0x80, but ties go up here


def test_what_one_side_explains_does_not_excuse_the_other():
    q = cast([-431.99999999999994, 1 + 2.0**-4 + 2.0**-40, 5.0], "e4m3")
    right, twice = EMULATED.answer(q).codes, get_machine("ml_dtypes").answer(q).codes
    wrong = right.copy()
    wrong[0] ^= 4
    v = compare(q, answer(wrong, "emulated"), answer(twice, "ml_dtypes"))
    assert (dict(v.documented), v.unexplained) == ({"rounds twice": 1}, 1) and v.shown[0].index == (0,)
    both = np.array([right[0], twice[1], right[2]])  # agrees with numsim where the other machine rounds twice
    v = compare(q, answer(twice, "torch-cpu"), answer(both, "ml_dtypes"))
    assert (v.equal, dict(v.documented)) == (2, {"rounds twice": 1})


def test_quirks_combine():
    q = cast([2.0**-200, 3 * (1 + 2.0**-40)], "e8m0")  # through FP32: 0, and a tie
    v = compare(q, EMULATED.answer(q), get_machine("ml_dtypes").answer(q))
    assert dict(v.documented) == {"rounds twice + zero becomes NaN": 1} and v.equal == 1
    assert v.quirks == ["rounds twice", "zero becomes NaN"]
    q = cast([3 * (1 - 2.0**-40)], "e8m0")  # below the tie; through FP32 the tie, which goes up
    v = compare(q, EMULATED.answer(q), get_machine("ml_dtypes").answer(q))
    assert dict(v.documented) == {"rounds twice + ties go up": 1}


def test_two_libraries_against_each_other():
    """Each is explained by its own quirks."""
    torch = pytest.importorskip("torch", reason="torch is not installed: .[test,torch]")
    assert torch
    q = cast([1e9, -431.99999999999994, 0.1], "e4m3")
    v = compare(q, get_machine("torch-cpu").answer(q), get_machine("ml_dtypes").answer(q))
    assert dict(v.documented) == {"saturates": 1} and v.equal == 2
    q = cast([-3.0, 0.0], "e8m0")
    v = compare(q, get_machine("torch-cpu").answer(q), get_machine("ml_dtypes").answer(q))
    assert dict(v.documented) == {"ties go up + drops the sign": 1, "zero becomes NaN": 1}


def test_sums_are_predicted_step_by_step():
    q = ask("cumsum", ["e8m0"], "e8m0", [np.full((2, 6), 127, np.uint8)])  # ones
    v = compare(q, EMULATED.answer(q), get_machine("ml_dtypes").answer(q))
    assert v.ok and "ties go up" in v.quirks
    wrong = get_machine("ml_dtypes").answer(q).codes.copy()
    wrong[1, -1] += 1
    assert compare(q, EMULATED.answer(q), answer(wrong, "ml_dtypes")).unexplained >= 1


def test_only_so_many_differences_are_shown():
    q = cast(np.arange(1.0, 40.0), "fp16")
    v = compare(q, EMULATED.answer(q), answer(emulate(q) ^ np.uint16(1)))
    assert v.unexplained == 39 and len(v.shown) == SHOWN
    assert [d.index for d in v.shown] == [(i,) for i in range(SHOWN)]
    assert len((v + v).shown) == SHOWN and (v + v).unexplained == 78


def test_sums_of_verdicts():
    q, p = cast([1.0, 2.0], "e4m3"), cast([-431.99999999999994], "e4m3")
    machine = get_machine("ml_dtypes")
    v = compare(q, EMULATED.answer(q), machine.answer(q)) + compare(p, EMULATED.answer(p), machine.answer(p))
    assert (v.compared, v.equal, dict(v.documented)) == (3, 2, {"rounds twice": 1})
    data = json.loads(json.dumps(v.to_dict(), allow_nan=False))
    assert data["verdict"] == "as documented: rounds twice" and data["differences"][0]["ours"] == "0xfd = -416"
    assert data["reasons"]["rounds twice"]["right"].startswith("numsim is right")


@pytest.mark.parametrize(
    "codes",
    [
        np.zeros(3, np.uint8),
        np.zeros((2, 1), np.uint8),
        np.zeros(2, np.uint16),
        np.zeros(2, np.int8),
        np.zeros(2),
        np.array([1, 16], np.uint8),
        None,
    ],
)
def test_an_answer_that_is_none(codes):
    q = cast([1.0, 2.0], "e2m1")
    with pytest.raises(InputError, match="numpy answered"):
        compare(q, EMULATED.answer(q), answer(codes))


def test_what_the_emulator_refuses_explains_nothing():
    q = cast([1.0, float("nan")], "e2m1")  # nan="raise"
    with pytest.raises(InputError):
        emulate(q)
    v = compare(q, answer(np.array([2, 0], np.uint8), "ml_dtypes"), answer(np.array([2, 8], np.uint8), "ml_dtypes"))
    assert v.unexplained == 1


class Odd:
    """A machine that can, cannot, and fails."""

    name = "odd"

    def can(self, question=None):
        return Can(False, "no casts to fp16") if question and question.output.name == "fp16" else Can(True)

    def provenance(self):
        return {"machine": "odd"}

    def answer(self, question):
        if question.output.name == "e5m2":
            raise UnavailableError("odd failed: out of coffee")
        return answer(emulate(question), "odd")


def test_every_question_once_and_skips_counted():
    questions = [cast([1.0, 2.0], f) for f in ("fp16", "e4m3", "e4m3", "e5m2", "bf16")]
    v = compare_answers([(q, EMULATED.answer(q)) for q in questions], Odd(), name="emulated")
    assert (v.compared, v.equal) == (4, 4)  # e4m3 and bf16, each once
    assert dict(v.skipped) == {"no casts to fp16": 1, "odd failed: out of coffee": 1}
    assert compare_answers([], Odd()).text == "skipped: nothing to compare"
    none = compare_answers([(q, EMULATED.answer(q)) for q in questions[:1]], Odd())
    assert none.text == "skipped: no casts to fp16" and none.ok


def test_predictions_without_quirks_are_the_emulators():
    for q in battery.operations(get_machine("ml_dtypes")):
        assert np.array_equal(predict(q, ()), emulate(q))
    for q in battery.sums(get_machine("numpy")):
        assert np.array_equal(predict(q, ()), emulate(q)), str(q)


def test_quirks_are_data():
    assert len({(k.machine, k.name) for k in QUIRKS}) == len(QUIRKS)
    for k in QUIRKS:
        assert k.machine in ("ml_dtypes", "torch-cpu", "cuda")
        assert k.sentence[0].islower() and not k.sentence.endswith(".")
        assert k.right.startswith(("numsim is right", "A choice: ")) and not k.right.endswith(".")
        assert " + " not in k.name and "," not in k.name
    assert not quirks_of("numpy", cast([1.0], "fp16")) and not quirks_of("emulated", cast([1.0], "e4m3"))


def test_orders():
    assert list(sequential([], int.__add__)) == [] and last(iter([])) is None
    assert list(kahan([1.0, 2.0, 3.0], float.__add__, float.__sub__)) == [1.0, 3.0, 6.0]
    assert pairwise([7], int.__add__) == 7
    assert pairwise(range(10), int.__add__) == 45


@pytest.mark.parametrize(
    ("code", "format", "text"),
    [
        (0x3C00, "fp16", "0x3c00 = 1"),
        (0x7C00, "fp16", "0x7c00 = inf"),
        (0x2E66, "fp16", "0x2e66 = 0.0999755859375"),
        (0xF, "e2m1", "0xf = -6"),
        (0x7F, "e4m3", "0x7f = nan"),
        (1, "e8m0", "0x01 = 1.1754943508222875e-38"),
    ],
)
def test_describe(code, format, text):
    assert describe(code, numsim.get_format(format)) == text


def test_describe_what_no_float64_holds():
    wide = numsim.get_format("e15m2")
    assert describe(0x0FFFC, wide) == "0x0fffc = 1" and describe(0x1FFFC, wide).endswith("nan or infinity")
