"""The question scaler: a loss scaler replayed, by the emulator and by torch's own class."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from numsim.cli import main
from numsim.errors import InputError, RecordError, UnavailableError
from numsim.machines import ask, get_machine
from numsim.machines.emulated import Emulated, emulate, has_kernel
from numsim.machines.question import check_settings
from numsim.machines.recorded import Recorded, parse_record, record_bytes
from numsim.machines.verdict import compare, compare_answers
from numsim.scaling import GradScaler, get_scaler, list_scalers

EVENTS = "ICICIICCCCCI"  # I: an overflow


def need_torch():
    pytest.importorskip("torch", reason="torch is not installed: .[test,torch]")


SYSTEMS = [name for name in list_scalers() if get_scaler(name).takes == "found_inf"]


def found_inf(text=EVENTS):
    return np.array([c == "I" for c in text], np.float32).view(np.uint32)


def scaler(codes=None, system="torch", output=None, **settings):
    output = output or (get_scaler(system).keeps if system in SYSTEMS else "fp32")
    return ask("scaler", ["fp32"], output, [found_inf() if codes is None else codes], system=system, settings=settings)


def values(q, codes):
    return codes.view(np.float32 if q.output.name == "fp32" else np.float64)


# --- questions --------------------------------------------------------------------------------------------------------
def test_the_digest_is_for_ever():
    q = scaler(init_scale=16.0, growth_interval=4)
    inside = hashlib.sha256(found_inf().tobytes()).hexdigest()
    text = (
        f'{{"arrays":[{{"dtype":"uint32","sha256":"{inside}","shape":[12]}}],"inputs":["fp32"],"operation":"scaler",'
        '"options":{"settings":[["growth_interval",4],["init_scale",16.0]],"system":"torch"},"output":"fp32"}'
    )
    assert q.json == text and q.digest == hashlib.sha256(text.encode()).hexdigest()
    assert json.loads(q.json) == q.record
    assert str(q) == "scaler fp32[12] -> fp32 growth_interval=4 init_scale=16.0 system=torch"


def test_one_question_in_several_spellings():
    spellings = (
        {"growth_interval": 4, "init_scale": 16.0},
        {"init_scale": 16.0, "growth_interval": 4},
        (("init_scale", 16.0), ("growth_interval", 4)),
        [["growth_interval", 4], ["init_scale", 16.0]],  # as JSON has it
    )
    asked = [ask("scaler", ["fp32"], "fp32", [found_inf()], system="torch", settings=s) for s in spellings]
    assert len({q.digest for q in asked}) == 1
    assert asked[0].settings == (("growth_interval", 4), ("init_scale", 16.0))
    others = [
        scaler(),
        scaler(init_scale=16.0),
        scaler(init_scale=16),
        scaler(system="sharded"),
        scaler(found_inf("I")),
    ]
    assert len({q.digest for q in (asked[0], *others)}) == 6
    assert scaler().record["options"] == {"system": "torch"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"system": None}, "None: allowed are torch"),
        ({"system": "tensorflow"}, "'tensorflow': allowed are torch"),
        ({"system": "openseq2seq-logmax"}, "no bits to compare"),
        ({"settings": {"hysteresis": 2}}, "torch has no setting 'hysteresis'"),
        ({"settings": {"growth_factor": 1.0}}, "growth_factor=1.0"),
        ({"settings": {"growth_interval": 2.5}}, "growth_interval=2.5"),
        ({"settings": {"init_scale": float("inf")}}, "finite number"),
        ({"settings": {"init_scale": [1.0]}}, "finite number"),
        ({"settings": {"init_scale": "x" * 99}}, "finite number"),
        ({"settings": {"init scale": 1.0}}, "a name and a"),
        ({"settings": [("init_scale", 1.0), ("init_scale", 2.0)]}, "comes twice"),
        ({"settings": [("init_scale",)]}, "a name and a"),
        ({"settings": 5}, "a name and a"),
        ({"settings": None}, "a name and a"),
        ({"settings": "ab"}, "a name and a"),
        ({"output": "fp64"}, "gives fp32"),
        ({"output": "fp16"}, "gives fp32"),
        ({"inputs": ["fp16"], "arrays": [np.zeros(3, np.uint16)]}, "takes found_inf in fp32"),
        ({"system": "deepspeed", "output": "fp32"}, "gives fp64"),
        ({"rounding": "up"}, "takes no rounding"),
        ({"seed": 1}, "takes no seed"),
        ({"chip": "h100"}, "belong to mma"),
        ({"arrays": [np.uint32(0)]}, "do not go together"),
    ],
)
def test_nonsense_is_refused(change, words):
    fields = {"operation": "scaler", "inputs": ["fp32"], "output": "fp32", "arrays": [found_inf()], "system": "torch"}
    with pytest.raises(InputError, match=words) as error:
        ask(**{**fields, **change})
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("operation", ["cast", "sum", "mma"])
def test_other_operations_have_no_system(operation):
    count = 3 if operation == "mma" else 1
    for option in ({"system": "torch"}, {"settings": {"lr": 1.0}}):
        with pytest.raises(InputError, match=r"system and settings belong to|takes no s"):
            ask(operation, ["fp32"] * count, "fp32", [found_inf()] * count, **option)


def test_settings_keep_their_types():
    given = {"b": True, "a": 1, "c": 1.0, "d": None, "e": "fused"}
    assert [type(v) for _, v in check_settings(given)] == [int, bool, float, type(None), str]


# --- answers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("system", "settings", "scales"),
    [  # the table of the reference, section 2.6
        ("torch", {}, [8, 8, 4, 4, 2, 1, 1, 1, 1, 2, 2, 1]),
        ("megatron", {"hysteresis": 2}, [16, 16, 8, 8, 4, 2, 2, 2, 2, 4, 4, 4]),
        ("deepspeed", {"hysteresis": 2}, [16, 16, 8, 8, 4, 2, 2, 2, 2, 2, 4, 4]),
        ("apex-hysteresis", {"hysteresis": 2}, [16, 16, 16, 16, 16, 8, 8, 8, 8, 16, 16, 16]),
    ],
)
def test_the_table_of_four(system, settings, scales):
    q = scaler(system=system, init_scale=16.0, growth_interval=4, **settings)
    assert values(q, emulate(q)).tolist() == scales


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_answers_step_by_step(system):
    text = np.random.default_rng(5).choice([0.0, 0.0, 0.0, 1.0, np.nan], (3, 4, 30)).astype(np.float32)
    settings = {} if system in ("static", "deepspeed") else {"growth_interval": 3}
    q = scaler(text.view(np.uint32), system, **settings)
    codes = emulate(q)
    assert codes.shape == q.shape == (3, 4, 30) and codes.dtype.name == f"uint{q.output.bits}"
    state, machine = q.scaler.initial(), q.scaler
    for found, scale in zip(text[1, 2].tolist(), values(q, codes)[1, 2].tolist(), strict=True):
        state = machine.update(state, found)
        assert scale == state.scale


def test_no_steps_no_rows():
    for shape in ((3, 0), (0, 3), (0,)):
        q = scaler(np.zeros(shape, np.uint32))
        assert Emulated().answer(q).codes.shape == shape
        assert has_kernel(q) in (True, False)


# --- torch ------------------------------------------------------------------------------------------------------------
TRAPS = [
    {},
    {"init_scale": 16.0, "growth_interval": 2},
    {"init_scale": 3.0, "growth_factor": 1.1, "growth_interval": 1},  # rounded once from the double product
    {"backoff_factor": 0.3, "growth_factor": 1.7, "growth_interval": 2},
    {"backoff_factor": 0.0, "growth_interval": 1},
    {"backoff_factor": -2.0, "growth_interval": 1},
    {"growth_interval": 0},
    {"growth_interval": -1},
    {"init_scale": 0.0, "growth_interval": 1},
    {"init_scale": 2.0**-140, "growth_interval": 2},  # subnormal
    {"init_scale": 2.0**127, "growth_interval": 1},  # a growth that is not finite is dropped
    {"init_scale": 1, "growth_interval": 1},
]


@pytest.mark.parametrize("settings", TRAPS, ids=str)
def test_torch_gives_the_same_bits(settings):
    need_torch()
    numbers = np.random.default_rng(7).choice([0.0, 0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 0.5, -1.0, 1e-40], (2, 60))
    q = scaler(numbers.astype(np.float32).view(np.uint32), **settings)
    v = compare(q, Emulated().answer(q), get_machine("torch-cpu").answer(q))
    assert (v.compared, v.equal, v.text) == (120, 120, "same bits")


def test_torch_collapses_as_the_emulator_does():
    need_torch()
    q = scaler(found_inf("I" * 170 + "C" * 10), growth_interval=2)
    answer = get_machine("torch-cpu").answer(q)
    assert compare(q, Emulated().answer(q), answer).equal == 180
    assert values(q, answer.codes)[[143, 164, 165, 179]].tolist() == [2.0**-128, 2.0**-149, 0.0, 0.0]


def test_a_wrong_scale_is_found():
    q = scaler(growth_interval=4)
    wrong = emulate(q).copy()
    wrong[5] ^= 1
    v = compare(q, Emulated().answer(q), type(Emulated().answer(q))(wrong, {"machine": "torch-cpu"}))
    assert (v.unexplained, v.shown[0].index) == (1, (5,)) and "at [5]" in str(v.shown[0])


def test_who_says_no_and_why():
    assert get_machine("numpy").can(scaler()).reason == "numpy has no scaler of torch"
    assert get_machine("ml_dtypes").can(scaler()).reason == "ml_dtypes has no scaler of torch"
    need_torch()
    torch_cpu = get_machine("torch-cpu")
    assert torch_cpu.can(scaler(system="flax")).reason == "torch-cpu has no scaler of flax"
    long = scaler(np.zeros((3, 10_000), np.uint32))
    assert torch_cpu.can(long).reason == "torch-cpu replays at most 20000 steps, not 30000"
    with pytest.raises(UnavailableError, match="at most 20000"):
        torch_cpu.answer(long)
    verdict = compare_answers([(long, Emulated().answer(long))], torch_cpu)
    assert verdict.ok and verdict.skipped == {torch_cpu.can(long).reason: 1}


# --- recordings -------------------------------------------------------------------------------------------------------
def recording(machine="emulated"):
    asked = [scaler(init_scale=16.0, growth_interval=4), scaler(), scaler(system="deepspeed", growth_interval=3)]
    name = get_machine(machine)
    return record_bytes([(q, name.answer(q)) for q in asked if name.can(q)])


@pytest.mark.parametrize("machine", ["emulated", "torch-cpu"])
def test_recordings(machine, tmp_path, monkeypatch, capsys):
    if machine == "torch-cpu":
        need_torch()
    monkeypatch.chdir(tmp_path)
    data = recording(machine)
    again = parse_record(data, "r.npz")
    assert record_bytes(again.answers) == data and len(again.answers) == (3 if machine == "emulated" else 2)
    Path("r.npz").write_bytes(data)
    q = scaler(init_scale=16.0, growth_interval=4)
    assert Recorded("r.npz").answer(q).codes.tolist() == emulate(q).tolist()
    assert main(["check", "r.npz"]) == 0
    assert "r.npz: equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('["growth_interval",4]', '["growth_interval",5]'),
        ('["growth_interval",4]', '["name",4]'),
        ('["growth_interval",4]', '["self",4]'),
        ('["growth_interval",4]', '["growth_interval",[]]'),
        ('["growth_interval",4]', '["growth_interval"]'),
        ('"system":"torch"', '"system":["torch"]'),
        ('"system":"torch"', '"system":"flax"'),
    ],
)
def test_hostile_recordings(old, new):
    from numsim import files

    arrays = files.parse_npz(recording(), "r.npz")
    text = arrays["record"].tobytes().decode()
    assert old in text
    arrays["record"] = np.frombuffer(text.replace(old, new).encode(), np.uint8)
    with pytest.raises(RecordError):
        parse_record(files.npz_bytes(arrays), "r.npz")


def test_the_reference_is_the_two_calls():
    """What the question means, written out."""
    machine, state, scales = GradScaler(growth_interval=4), GradScaler(growth_interval=4).initial(), []
    for c in EVENTS:
        state = machine.update(state, c == "I")
        scales.append(state.scale)
    q = scaler(growth_interval=4)
    assert values(q, emulate(q)).tolist() == scales
