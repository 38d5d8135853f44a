"""The suite fp8: devices that compute as numsim's recipes say, and devices that do it otherwise and are found out."""

import dataclasses
from types import MappingProxyType

import numpy as np
import pytest

from numsim import kernels
from numsim.codes import decode
from numsim.errors import InputError, RecordError
from numsim.formats import E4M3, E5M2, FP32
from numsim.gpu import units
from numsim.machines import find_machine
from numsim.machines.question import Answer, Can, ask
from numsim.machines.recorded import parse_record
from numsim.machines.torch_cpu import TorchCpu
from numsim.rounding import Policy, convert
from numsim.suites import fp8, get_suite
from numsim.suites.suite import collect
from tests.gpu import cpu

pytest.importorskip("torch")
SUITE = get_suite("fp8")
RECIPES, TENSORS = ("delayed", "unfused", "current"), ("input", "weight", "grad_output")


class Device(TorchCpu):
    """torch-cpu, whose casts to FP8 have a policy of their own, whatever torch's version does."""

    policies = MappingProxyType({"e4m3fn": Policy(overflow="saturate"), "e5m2": Policy(overflow="saturate")})

    def _answer(self, q):
        if q.operation == "cast":
            return convert(q.arrays[0], FP32, q.output, self.policies[q.output.name])
        return super()._answer(q)


def recorded(machine):
    return parse_record(collect(SUITE, machine), "a record")


def rows(record):
    return {row.part: row for row in SUITE.compare(record)}


def differing(record):
    return {part for part, row in rows(record).items() if row.verdict.unexplained}


@pytest.fixture(scope="module", autouse=True)
def one_training():
    """All devices of this file train the same network: once is enough."""
    patch, known, real = pytest.MonkeyPatch(), {}, fp8.train

    def train(device, **options):
        key = device, repr(options)
        if key not in known:
            known[key] = real(device, **options)
        return known[key]

    patch.setattr(fp8, "train", train)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def record():
    return recorded(find_machine("torch-cpu"))


def test_amaxes_scales_and_codes_are_the_recipes_bit_by_bit(record):
    found = rows(record)
    parts = [f"amax: {t}" for t in TENSORS]
    parts += [f"{r} {t} {what}" for r in RECIPES for t in TENSORS for what in ("scale", "codes")]
    for part in [*parts, "policy: e4m3fn", "policy: e5m2"]:
        verdict = found[part].verdict
        assert verdict.compared and verdict.compared == verdict.equal + verdict.nan, part
    for part in ("fprop: instructions", "dgrad: instructions", "wgrad: instructions"):
        assert found[part].verdict.text == "skipped: torch-cpu has no FP8 tensor cores"
    assert record.traces["bf16"].about["seed"] == 1 and not record.failed
    assert len(collect(SUITE, find_machine("torch-cpu"))) < 2 << 20


def test_the_data_make_scales_that_move_and_casts_that_saturate(record):
    traces, codes = fp8._series(record)
    assert set(traces) == set(codes) == {f"{r} {t}" for r in RECIPES for t in TENSORS}
    for name, trace in traces.items():
        assert name.startswith("current") or len(set(trace["clip limit"].tolist())) > 3
    assert sum(len(traces[f"delayed {t}"].happened("clipped")) for t in TENSORS) > 6
    assert not any(len(traces[f"unfused {t}"].happened("clipped")) for t in TENSORS)
    assert (codes["delayed weight"] == E4M3.max_code).sum() > (codes["current weight"] == E4M3.max_code).sum() > 0


def test_a_device_that_saturates_is_transformer_engines():
    found = rows(recorded(Device()))
    assert found["policy: e4m3fn"].note == found["policy: e5m2"].note == "same bits: saturates"
    assert all(not row.note for part, row in found.items() if part.endswith(" codes"))
    assert not [part for part, row in found.items() if row.verdict.unexplained]


def test_a_device_that_does_not_saturate_is_found_out_and_told():
    class Overflowing(Device):
        policies = MappingProxyType({"e4m3fn": Policy(overflow="ieee"), "e5m2": Policy(overflow="saturate-finite")})

    found = rows(recorded(Overflowing()))
    assert found["policy: e4m3fn"].note == "same bits: does not saturate"
    assert found["policy: e5m2"].note == "same bits: saturates, but for infinities"
    assert "TE saturates" in found["delayed weight codes"].note and not found["current weight codes"].note
    assert not any(row.verdict.differ for part, row in found.items() if "_scaled_mm" not in part)


def test_a_cast_that_follows_no_policy_is_unexplained():
    class Truncating(Device):
        policies = Device.policies | {"e4m3fn": Policy(rounding="toward-zero", overflow="saturate")}

    found = differing(recorded(Truncating()))
    assert "policy: e4m3fn" in found and "policy: e5m2" not in found
    assert {f"{r} {t} codes" for r in RECIPES for t in ("input", "weight")} < found
    assert not any("grad_output" in part or part.endswith("scale") for part in found)


def test_a_quotient_by_the_reciprocal_is_found():
    class Reciprocal(Device):
        def apply(self, operation, *arrays):
            if operation == "div":
                return arrays[0] * arrays[1].reciprocal()
            return super().apply(operation, *arrays)

    found = differing(recorded(Reciprocal()))
    assert any(part.startswith("delayed") and part.endswith("scale") for part in found)
    assert not any(part.startswith("unfused") for part in found)  # that is how torch divides a number by a tensor


def test_an_amax_that_misses_a_number_is_found():
    class Blind(Device):
        def amax(self, array, format):
            return super().amax(array[..., : max(array.shape[-1] // 8, 1)], format)

    found = differing(recorded(Blind()))
    assert {"amax: weight", "delayed weight scale", "current weight scale", "delayed weight codes"} <= found


def test_a_history_that_forgets_too_soon_is_found(monkeypatch):
    """Not the device's fault, but the questions': the scales that each step used are held against the recipe."""
    real = fp8._histories

    def short(amaxes, settings):
        return real(amaxes, dataclasses.replace(settings, amax_history_len=1))

    monkeypatch.setattr(fp8, "_histories", short)
    found = differing(recorded(Device()))
    assert found and all(part.startswith(("delayed", "unfused")) for part in found)


@pytest.mark.parametrize("part", ["amax: input", "delayed input scale", "unfused weight scale", "current input codes"])
def test_a_tampered_answer_is_found(record, part):
    n = record.parts.index(part)
    question, answer = record.answers[n]
    codes = np.array(answer.codes)
    codes.flat[-1] += 1
    answers = list(record.answers)
    answers[n] = question, Answer(codes, answer.provenance)
    assert differing(dataclasses.replace(record, answers=tuple(answers))) == {part}


def test_histories_are_transformer_engines():
    """The table of its recipe: L = 4, amaxes 1, 2, 4, 0, 0.5, inf, 1; what update looks at, and which it skips."""
    from numsim.scaling import DelayedScaling

    recipe = DelayedScaling(amax_history_len=4)
    amaxes = np.array([1, 2, 4, 0, 0.5, np.inf, 1], np.float32)
    seen = fp8._histories(amaxes.view(np.uint32).tolist(), recipe).view(np.float32)
    assert seen[:, 0].tolist() == amaxes.tolist()
    assert seen[3, 1:].tolist() == seen[4, 1:].tolist() == [1, 2, 4] and seen[6, 1:].tolist() == [4, 0.5, np.inf]
    unfused = DelayedScaling(amax_history_len=4, fused=False)
    assert fp8._histories(amaxes.view(np.uint32).tolist(), unfused).view(np.float32)[4].tolist() == [0.5, 2, 4, 0]


def test_guards_are_transformer_engines():
    inf, one, largest = 0x7F800000, 0x3F800000, 0x7F7FFFFF
    quotients, amaxes = np.array([5, inf, 5, inf, 5], np.uint32), np.array([7, 7, 0, inf, 0x7FC00000], np.uint32)
    assert fp8._guarded(quotients, amaxes, one).tolist() == [5, largest, one, one, one]


# --- products ---------------------------------------------------------------------------------------------------------
class WithCores(Device):
    """A device with the FP8 tensor cores of a chip: numsim's own kernels on a GPU made of this CPU."""

    chip = "l40s"

    def __init__(self, folder, change=lambda model: model):
        self.gpu = cpu.Cpu(self.chip, folder, change)

    def can(self, question=None):
        if question is not None and question.operation == "mma":
            return Can(question.chip == self.chip)
        return super().can(question)

    def _answer(self, q):
        return units.multiply(self.gpu, q.model, *q.arrays) if q.operation == "mma" else super()._answer(q)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.skipif(bool(cpu.why_not()), reason=cpu.why_not())
@pytest.mark.skipif(bool(kernels.why_not()), reason="the model of a chip needs its kernel here")
def test_products_are_chains_of_the_chips_instructions(folder, monkeypatch):
    real = fp8._models
    assert {m.k for m in real("l40s", [E4M3, E4M3], "")} == {16, 32}  # of each length one, here the longer
    monkeypatch.setattr(fp8, "_models", lambda *arguments: [m for m in real(*arguments) if m.k == 32])
    monkeypatch.setattr(fp8, "RECIPES", {"delayed": fp8.RECIPES["delayed"]})
    record = recorded(WithCores(folder))
    found = {part: row for part, row in rows(record).items() if ": mma." in part}
    assert sorted(part.split("k32.f32.")[1] for part in found) == ["e4m3.e4m3.f32", "e5m2.e4m3.f32", "e5m2.e4m3.f32"]
    for row in found.values():
        assert row.verdict.compared in (32 * 32, 32 * 64) and row.verdict.equal == row.verdict.compared
    q, answer = next(pair for pair in record.answers if pair[0].operation == "mma")
    inputs = [np.asarray(decode(x, f)) for x, f in zip(q.arrays[:2], q.inputs[:2], strict=True)]
    exact = np.einsum("mik,ink->mn", *inputs)
    values = decode(answer.codes, FP32)
    assert 0 < np.abs(values - exact).max() <= 2.0**-8 * np.abs(exact).max()  # it is a product, and a rough one


@pytest.mark.skipif(bool(cpu.why_not()), reason=cpu.why_not())
def test_another_chips_products_are_found(folder, monkeypatch):
    monkeypatch.setattr(fp8, "RECIPES", {"delayed": fp8.RECIPES["delayed"]})
    monkeypatch.setattr(fp8, "PRODUCTS", {"fprop": fp8.PRODUCTS["fprop"]})

    def wider(model):
        return dataclasses.replace(model, unit=dataclasses.replace(model.unit, fraction_bits=25))

    found = differing(recorded(WithCores(folder, wider)))
    assert found and all(part.startswith("fprop: mma.") for part in found)


def test_products_use_what_the_recipe_made(record):
    """The library's question holds the last step's codes, and the reciprocals of their scales."""
    codes = fp8._series(record)[1]
    part = "wgrad: torch._scaled_mm"
    if part not in record.parts:
        pytest.skip("this torch has no _scaled_mm on a CPU")
    q, _ = record.answers[record.parts.index(part)]
    assert q.inputs == (E5M2, E4M3, FP32, FP32)
    assert np.array_equal(q.arrays[0].T, codes["delayed grad_output"][-1].reshape(32, 32))
    assert np.array_equal(q.arrays[1], codes["delayed input"][-1].reshape(32, 64))
    used = {}
    for part, (question, _) in zip(record.parts, record.answers, strict=True):
        if part.startswith("delayed") and part.endswith("codes") and question.operation == "mul":
            used[part.split()[1]] = float(decode(question.arrays[1], FP32)[-1, 0])
    for scale, tensor in ((q.arrays[2], "grad_output"), (q.arrays[3], "input")):
        assert decode(scale, FP32) == np.float32(1 / used[tensor])


# --- pictures, and what is no record ----------------------------------------------------------------------------------
def test_pictures_say_what_they_show(record):
    drawn = SUITE.draw(record, "page")
    assert [stem for stem, _, _ in drawn] == ["fp8-scales", "fp8-codes"]
    clipped = len(fp8._series(record)[0]["delayed weight"].happened("clipped"))
    assert f"delayed weight {clipped}" in drawn[0][2] and "current weight" in drawn[1][2]
    empty = dataclasses.replace(record, answers=record.answers[:2], parts=record.parts[:2])
    assert SUITE.draw(empty, "page") == []


def test_a_record_of_something_else_is_refused(record):
    n = record.parts.index("amax: input")
    question = ask("amax", ["fp16"], "fp16", [np.zeros((8, 4), np.uint16)])
    answers = list(record.answers)
    answers[n] = question, Answer(np.zeros(8, np.uint16), answers[n][1].provenance)
    with pytest.raises(RecordError, match="none of this suite"):
        SUITE.compare(dataclasses.replace(record, answers=tuple(answers)))


def test_a_machine_that_does_not_train_is_told():
    with pytest.raises(InputError, match="nothing to record"):
        collect(SUITE, find_machine("emulated"))
