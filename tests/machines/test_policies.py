"""A machine's casts are asked which policy they follow; the emulator, told one, is found to follow that one."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import numsim
from numsim.cli.machines import _grouped, facts
from numsim.codes import classify
from numsim.errors import UnavailableError
from numsim.machines import Answer, ask, find_machine, get_machine
from numsim.machines.emulated import emulate
from numsim.machines.policies import CastPolicy, _policies, cast_policy, probe
from numsim.machines.recorded import Recorded, write_record
from tests.machines import battery

PLAIN = CastPolicy("nearest-even", "ieee", "keep", "")


class Obedient:
    """The emulator with a policy of its own, written out: casts as if it had been asked for that."""

    name = "obedient"

    def __init__(self, policy, spoil=lambda codes: codes):
        self.policy, self.spoil = policy, spoil

    def can(self, question):
        return SimpleNamespace(reason="") if question else None

    def answer(self, question):
        q, p = question, self.policy
        steps = [(p.via, {"rounding": p.rounding})] if p.via else []
        steps += [(q.output, {"rounding": p.rounding, "overflow": p.overflow, "subnormals": p.subnormals})]
        codes, format = q.arrays[0], q.inputs[0]
        for target, options in steps:
            codes, format = emulate(ask("cast", [format], target, [codes], **options)), target
        return Answer(self.spoil(codes), {"machine": self.name})


CASTS = [("fp32", "fp16"), ("fp64", "bf16"), ("fp32", "e4m3fn"), ("fp16", "e5m2"), ("fp64", "e2m1"),
         ("bf16", "e4m3fnuz"), ("fp32", "e8m0"), ("e4m3fn", "fp16"), ("e5m2", "e4m3fn")]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), CASTS)
def test_each_policy_is_found(source, target):
    """What is found gives the same bits on other numbers, too, and is never less simple than what was told."""
    policies = list(_policies())
    format, y = numsim.get_format(source), numsim.get_format(target)
    codes = battery.all_codes(format) if format.bits <= 16 else battery.boundary_codes(format, y)
    if y.nan_code is None:
        codes = codes[np.asarray(classify(codes, format)) != "nan"]
    q = ask("cast", [source], target, [codes])
    chosen = [policies[i] for i in np.random.default_rng(11).choice(len(policies), 12, replace=False)] + [PLAIN]
    for told in chosen:
        found = cast_policy(Obedient(told), source, target)
        assert found is not None and policies.index(found) <= policies.index(told)
        if found != told:
            a, b = (Obedient(p).answer(q).codes for p in (told, found))
            nan = [np.asarray(classify(x, y)) == "nan" for x in (a, b)]
            assert np.array_equal(*nan) and np.array_equal(a[~nan[0]], b[~nan[0]]), (told, found)
    assert cast_policy(Obedient(PLAIN), source, target) == PLAIN


def test_what_can_be_told_apart_is():
    """fp64 to bf16 has everything: ties, both ends, subnormals, infinity, and fp32 between."""
    for rounding, overflow, via in itertools.product(
        ("nearest-even", "nearest-away", "toward-zero", "odd"), ("ieee", "saturate"), ("", "fp32")
    ):
        told = CastPolicy(rounding, overflow, "keep", via)
        found = cast_policy(Obedient(told), "fp64", "bf16")
        if rounding in ("toward-zero", "odd") and overflow == "ieee":
            assert found.rounding == rounding  # these never overflow; rounding so twice is rounding so once
        else:
            assert (found.rounding, found.overflow) == (rounding, overflow)
            assert found.via == (via if rounding.startswith("nearest") else found.via)
    for subnormals in ("keep", "flush-inputs", "flush-results", "flush"):
        found = cast_policy(Obedient(CastPolicy("nearest-even", "ieee", subnormals, "")), "fp32", "bf16")
        # all of BF16's subnormals are FP32's, so flushing the one flushes the other
        assert found.subnormals == subnormals or {found.subnormals, subnormals} <= {"flush-inputs", "flush"}
    for overflow in ("ieee", "saturate", "saturate-finite"):
        assert (
            cast_policy(Obedient(CastPolicy("nearest-even", overflow, "keep", "")), "fp32", "e5m2").overflow == overflow
        )


@pytest.mark.parametrize("place", [0, 7, 100, -1])
def test_one_wrong_bit_is_no_policy(place):
    def spoil(codes):
        if np.asarray(classify(codes[place], "fp16")) == "nan":
            codes[place] = 0
        else:
            codes[place] ^= 1
        return codes

    size = probe("fp32", "fp16").arrays[0].size
    assert size > 200 and cast_policy(Obedient(PLAIN, spoil), "fp32", "fp16") is None


def test_the_sign_of_nan_does_not_count():
    def negative(codes):
        return np.where(np.asarray(classify(codes, "fp16")) == "nan", 0xFFFF, codes).astype(codes.dtype)

    assert cast_policy(Obedient(PLAIN, negative), "fp32", "fp16") == PLAIN


def test_the_question():
    for source, target in CASTS:
        x, y = numsim.get_format(source), numsim.get_format(target)
        codes = probe(source, target).arrays[0]
        assert len(np.unique(codes)) == len(codes) == (len(codes) if x.bits > 8 else x.codes)
        assert probe(source, target) is probe(source, target)
        kinds = set(np.asarray(classify(codes, x)).ravel().tolist())
        assert {"normal", "subnormal", "zero"} <= kinds and ("nan" in kinds) == (y.nan_code is not None)
        values = {numsim.exact(int(c), x) for c in codes if np.asarray(classify(c, x)) not in ("nan", "infinity")}
        assert y.max > x.max or (y.max in values and max(values) > y.max)
        assert 2 * y.max > x.max or 2 * y.max in values or x.bits <= 8
        assert x.infinity_code is None or x.infinity_code in codes
        assert not x.signed or (x.sign_mask in codes and min(values) < 0)


def test_libraries():
    assert cast_policy(get_machine("numpy"), "fp64", "fp16") == PLAIN
    bf16 = cast_policy(get_machine("ml_dtypes"), "fp64", "bf16")
    assert bf16 == PLAIN._replace(via="fp32") and str(bf16) == "nearest-even, ieee, via fp32"
    assert cast_policy(get_machine("ml_dtypes"), "fp32", "e4m3fn") == PLAIN
    assert cast_policy(get_machine("ml_dtypes"), "fp32", "e2m1") == PLAIN
    assert cast_policy(get_machine("ml_dtypes"), "fp32", "e8m0") is None  # zero becomes NaN, ties go up
    assert cast_policy(get_machine("emulated"), "fp32", "fp16") == PLAIN


def test_torch():
    pytest.importorskip("torch", reason="torch is not installed: .[test,torch]")
    machine = get_machine("torch-cpu")
    assert cast_policy(machine, "fp32", "bf16") == cast_policy(machine, "fp32", "e5m2") == PLAIN
    assert cast_policy(machine, "fp64", "fp16") == PLAIN._replace(via="fp32")
    beyond = int(machine.answer(ask("cast", ["fp32"], "e4m3fn", [np.array([0x47000000], np.uint32)])).codes[0])
    wanted = PLAIN._replace(overflow="saturate" if beyond == 0x7E else "ieee")  # torch 2.12 and later; before
    assert cast_policy(machine, "fp32", "e4m3fn") == wanted


def test_a_recording_is_asked_like_its_machine(tmp_path):
    q, machine = probe("fp64", "bf16"), get_machine("ml_dtypes")
    recorded = Recorded(write_record(tmp_path / "r.npz", [(q, machine.answer(q))]))
    assert str(cast_policy(recorded, "fp64", "bf16")) == "nearest-even, ieee, via fp32"
    with pytest.raises(UnavailableError, match="recorded does not cast from fp32 to bf16: the record does not hold"):
        cast_policy(recorded, "fp32", "bf16")
    assert facts(recorded, probed=True)["policies"] == [
        {"source": "fp64", "target": "bf16",
         "policy": {"rounding": "nearest-even", "overflow": "ieee", "subnormals": "keep", "via": "fp32"}}
    ]  # fmt: skip


def test_who_does_not_cast_says_so():
    with pytest.raises(UnavailableError, match=r"numpy does not cast from fp32 to bf16: numpy has no bf16\. Example"):
        cast_policy(get_machine("numpy"), "fp32", "bf16")


def test_a_few_lines_for_people():
    casts = facts(find_machine("numpy"), probed=True)["policies"]
    assert _grouped(casts) == ["fp64 -> fp32 fp16: nearest-even, ieee", "fp32 -> fp16: nearest-even, ieee"]
    casts.append({"source": "fp32", "target": "e8m0", "policy": None})
    assert _grouped(casts)[1] == "fp32 -> fp16: nearest-even, ieee; e8m0: rules of its own"
    assert facts(find_machine("numpy"))["policies"] is None and str(PLAIN._replace(subnormals="flush")) == (
        "nearest-even, ieee, flush"
    )
