"""The question scaler: a loss scaler replayed, by the emulator and by torch's own class."""

import dataclasses
import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from numsim import files, kernels
from numsim.cli import main
from numsim.errors import InputError, RecordError, UnavailableError
from numsim.machines import ask, get_machine
from numsim.machines.emulated import Emulated, emulate, has_kernel
from numsim.machines.question import check_settings
from numsim.machines.recorded import Recorded, _origin, parse_record, record_bytes
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
        ({"system": None}, "system=None: a scaler's name"),
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
        ({"settings": {"init_scale": None}}, "finite number"),
        ({"settings": {"growth_interval": 10**24}}, "finite number"),  # a file holds no larger integers
        ({"settings": {"growth_interval": 10**5000}}, "finite number"),
        ({"settings": {"growth_interval": 10**23}}, "64 bits"),
        ({"settings": {"x" * 41: 1}}, "a name and a"),
        ({"settings": {f"x{i}": i for i in range(10_000)}}, "has no setting"),
        ({"settings": np.zeros((3, 2))}, "a name and a"),
        ({"system": ["torch"]}, "a scaler's name"),
        ({"system": "x" * 10**7}, "a scaler's name"),  # not searched for what is near it
        ({"operation": "x" * 10**7}, "known are cast"),
        ({"x" * 100: 1, "y" * 100: 2}, "unknown options"),
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
    given = {"b": True, "a": 1, "c": 1.0, "e": "fused"}
    assert [type(v) for _, v in check_settings(given)] == [int, bool, float, str]


def test_no_settings_are_one_question_with_none():
    """A digest names a question for ever: there is one way to say nothing."""
    cast = [ask("cast", ["fp32"], "fp16", [found_inf()], settings=s) for s in ((), [], {})]
    assert len({q.digest for q in (ask("cast", ["fp32"], "fp16", [found_inf()]), *cast)}) == 1
    for strange in (0, False, None, np.zeros((2, 2))):
        with pytest.raises(InputError, match="a name and a"):
            ask("cast", ["fp32"], "fp16", [found_inf()], settings=strange)


def test_a_seed_is_an_integer_that_json_has():
    options = {"rounding": "stochastic"}
    a, b = (ask("cast", ["fp32"], "fp16", [found_inf()], seed=seed, **options) for seed in (7, np.int8(7)))
    assert a.digest == b.digest


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


@pytest.mark.skipif(bool(kernels.why_not()), reason="no kernels here")
def test_what_the_kernel_leaves_to_the_reference_counts_as_such():
    """numsim check refuses what would take hours."""
    assert has_kernel(scaler()) and has_kernel(scaler(system="fairseq", tolerance=0.0))
    assert not has_kernel(scaler(system="fairseq", tolerance=0.5))
    below = np.array([0.0, -1.0], np.float32).view(np.uint32)
    assert has_kernel(scaler(system="apex-hysteresis")) and not has_kernel(scaler(below, "apex-hysteresis"))


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
        ('["growth_interval",4]', '["growth_interval",4.0]'),
        ('["growth_interval",4]', '["growth_interval",-1e400]'),
        ('["growth_interval",4]', '["growth_interval",NaN]'),
        ('["growth_interval",4]', f'["growth_interval",1{"0" * 30}]'),
        ('["growth_interval",4]', f'["{"x" * 10**6}",4]'),
        ('["growth_interval",4]', '["\\u001b[2J",4]'),
        ('["growth_interval",4]', f'["growth_interval",{"[" * 900}{"]" * 900}]'),
        ('["growth_interval",4]', '["growth_interval",4],["growth_interval",4]'),
        ('["growth_interval",4]', '["growth_interval",4],["init_scale",null]'),
        ('"settings":[["growth_interval",4],["init_scale",16.0]]', '"settings":{"growth_interval":4}'),
        ('"settings":[["growth_interval",4],["init_scale",16.0]]', f'"settings":[{",".join(["[[],1]"] * 10**4)}]'),
        ('"system":"torch"', '"system":"Torch"'),
        ('"system":"torch"', '"system":"\\u001b[2J"'),
        ('"system":"torch"', f'"system":"{"x" * 10**7}"'),
        ('"system":"torch"', '"system":null'),
        ('"operation":"scaler"', '"operation":["scaler"]'),
        ('"inputs":["fp32"]', f'"inputs":"{"x" * 10**7}"'),
        ('"numsim_record":2', f'"numsim_record":"{"x" * 10**6}"'),
        ('"numsim_record":2', '"numsim_record":true'),
        ('"shape":[12]', '"shape":[[12]]'),
        ('"system":"torch"', '"system":["torch"]'),
        ('"system":"torch"', '"system":"flax"'),
    ],
)
def test_hostile_recordings(old, new):
    arrays = files.parse_npz(recording(), "r.npz")
    text = arrays["record"].tobytes().decode()
    assert old in text
    arrays["record"] = np.frombuffer(text.replace(old, new).encode(), np.uint8)
    with pytest.raises(RecordError) as error:
        parse_record(files.npz_bytes(arrays), "r.npz")
    assert len(str(error.value)) < 400 and str(error.value).isprintable()


def forged(options, codes, output="fp32"):
    """A record whose digests are right, whatever it asks; the answers are zeros."""
    answer = np.zeros(codes.shape, f"uint{output[2:]}")
    inside, out = (hashlib.sha256(x.tobytes()).hexdigest() for x in (codes, answer))
    question = {
        "operation": "scaler",
        "inputs": ["fp32"],
        "output": output,
        "options": options,
        "arrays": [{"dtype": codes.dtype.name, "sha256": inside, "shape": list(codes.shape)}],
    }
    digest = hashlib.sha256(json.dumps(question, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    data = json.loads(files.parse_npz(recording(), "r.npz")["record"].tobytes()) | {
        "inputs": hashlib.sha256(digest.encode()).hexdigest(),
        "questions": [{"question": question, "digest": digest, "answer": out, "part": ""}],
    }
    data["origin"] = _origin(data)
    record = np.frombuffer(json.dumps(data).encode(), np.uint8)
    return files.npz_bytes({"record": record, "q00000.a0": codes, "q00000.answer": answer})


STRANGE = [None, -1, 10**23, 1e308, 5e-324, -0.0, 1.5, True, "", "x", "[2J", [], [1], {}, {"a": 1}, [[1], [1, 2]]]


@pytest.mark.parametrize("system", SYSTEMS)
def test_forged_settings(system, tmp_path, monkeypatch, capsys):
    """Each setting of each system, of each kind: refused, or computed; never a traceback."""
    monkeypatch.chdir(tmp_path)
    keeps, codes = get_scaler(system).keeps, []
    for field, value in itertools.product(dataclasses.fields(get_scaler(system)), STRANGE):
        options = {"settings": [[field.name, value]], "system": system}
        Path("r.npz").write_bytes(forged(options, np.array([0, 1, 0x7FC00000, 0xBF800000], np.uint32), keeps))
        codes.append(main(["check", "r.npz"]))
        out, err = capsys.readouterr()
        assert (codes[-1], err == "") in ((0, True), (1, True), (2, False)), (field.name, value)
        assert (out + err).isascii() and "" not in out + err and len(err) < 500
    assert {1, 2} <= set(codes)  # some are computed, some are refused


@pytest.mark.parametrize(
    "codes",
    [np.zeros((), np.uint32), *(found_inf().astype(t) for t in (np.uint8, np.uint16, np.uint64)),
     found_inf().astype(np.uint64) << 32],
    ids=str,
)  # fmt: skip
def test_forged_shapes_and_dtypes(codes):
    good = {"system": "torch"}
    assert parse_record(forged(good, found_inf()), "r.npz").answers[0][0].digest == scaler().digest
    with pytest.raises(RecordError):
        parse_record(forged(good, codes), "r.npz")


def test_a_record_that_would_take_hours_is_not_recomputed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("numsim.cli.check._MOST_WORK", 10**5)
    for system, options, code in (("torch", {}, 1), ("fairseq", {"settings": [["tolerance", 0.5]]}, 2)):
        keeps = get_scaler(system).keeps
        Path("r.npz").write_bytes(forged(options | {"system": system}, np.zeros(10**4, np.uint32), keeps))
        assert main(["check", "r.npz"]) == (2 if kernels.why_not() else code)
    assert "more than can be recomputed" in capsys.readouterr().err


def test_the_reference_is_the_two_calls():
    """What the question means, written out."""
    machine, state, scales = GradScaler(growth_interval=4), GradScaler(growth_interval=4).initial(), []
    for c in EVENTS:
        state = machine.update(state, c == "I")
        scales.append(state.scale)
    q = scaler(growth_interval=4)
    assert values(q, emulate(q)).tolist() == scales
