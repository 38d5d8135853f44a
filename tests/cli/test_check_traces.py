"""numsim check on traces: alone, against another one, and within results."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from numsim import Event, Trace, array, from_codes, show
from numsim.cli import main
from numsim.data import gradient_ranges, load_gradients
from numsim.machines import Answer, ask
from numsim.machines.recorded import record_bytes
from numsim.scaling import DelayedScaling, GradScaler, replay, replay_amaxes
from tests.cli import fake

RESULT = Path("numsim-results/fast.json")


def a_trace(scales=(4.0, 4.0, 2.0), events=(3,), title="a scaler – torch", **about):
    happened = [Event(step, "overflow", "halved") for step in events]
    return Trace(title, [1, 2, 3], {"scale": array(scales, "fp32"), "amax": [0.1, 0.2, np.inf]}, happened, about)


def run(session, **parameters):
    return dataclasses.replace(fake.run(session, **parameters), traces={"torch": a_trace(), "jmp": a_trace()})


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake.install(monkeypatch.setattr, "fast")
    monkeypatch.setattr(fake.Fast, "EXPERIMENT", fake.experiment("fast", run, draw=fake.draw_nothing, against=()))


def call(capsys, *args):
    code = main(list(args))
    out = capsys.readouterr()
    return code, out.out, out.err


# --- files ------------------------------------------------------------------------------------------------------------
def test_a_trace_is_shown(capsys):
    a_trace().save("t.json")
    code, out, err = call(capsys, "check", "t.json")
    assert code == 0 and err == "" and out.splitlines()[0] == "t.json: undamaged"
    assert str(Trace(**{**vars(a_trace()), "series": dict(sorted(a_trace().series.items()))})) in out
    assert a_trace().digest in out and max(map(len, out.splitlines())) <= 80
    code, out, _ = call(capsys, "check", "t.json", "--json")
    told = json.loads(out)["checked"][0]
    assert (code, told["kind"], told["equal"], told["verdict"]) == (0, "trace", None, None)


def test_equal_traces(capsys):
    a_trace().save("a.json")
    a_trace(title="another", about=1).save("b.json")
    code, out, _ = call(capsys, "check", "a.json", "b.json", "--against", "a.json")
    assert code == 0 and out.count(": equal") == 2 and out.count("same bits") == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scales": (4.0, 4.0, 1.0)}, "scale of step 3: 0x40000000 = 2 against 0x3f800000 = 1"),
        ({"events": ()}, "event overflow of step 3: yes against no"),
    ],
)
def test_what_differs_is_told(capsys, change, words):
    a_trace().save("a.json")
    a_trace(**change).save("b.json")
    code, out, _ = call(capsys, "check", "a.json", "--against", "b.json", "--out", "report.json")
    assert code == 1 and "a.json: DIFFERS" in out and "1 UNEXPLAINED" in out and words in " ".join(out.split())
    told = json.loads(Path("report.json").read_text())["checked"][0]
    assert told["equal"] is False and told["differences"] == [words]
    assert call(capsys, "check", "b.json", "a.json", "--against", "a.json")[0] == 1


def test_nans_of_other_payload(capsys):
    for name, code in (("a", 0x7E00), ("b", 0xFE01)):
        Trace("x", [1], {"x": from_codes([code], "fp16")}).save(f"{name}.json")
    assert call(capsys, "check", "a.json", "--against", "b.json")[0] == 0
    assert call(capsys, "check", "a.json", "--against", "b.json", "--nan", "bits")[0] == 1


def test_an_empty_trace_is_compared_too(capsys):
    Trace("nothing", [], {}).save("a.json")
    a_trace().save("b.json")
    assert call(capsys, "check", "a.json", "--against", "a.json")[0] == 0
    code, _, err = call(capsys, "check", "b.json", "--against", "a.json")
    assert code == 2 and "cannot be compared: step 1 is only in the first" in err


@pytest.mark.parametrize("other", ["r.npz", "result.json", "nowhere.json"])
def test_only_traces_are_compared_with_traces(capsys, other):
    a_trace().save("a.json")
    q = ask("cast", ["fp16"], "bf16", [np.array([1], np.uint16)])
    Path("r.npz").write_bytes(record_bytes([(q, Answer(np.array([1], np.uint16), {"machine": "x"}))]))
    Path("result.json").write_text('{"numsim_result": 1}')
    for args in (["a.json", "--against", other], ["a.json", other, "--against", "a.json"]):
        code, out, err = call(capsys, "check", *args)
        assert code == 2 and out == "" and err.count("\n") == 1 and other in err


@pytest.mark.parametrize(
    "text", ['{"numsim_trace": 1}', '{"numsim_trace": 2, "title": "x"}', '["numsim_trace"]', '{"numsim_trace"',
             '{"numsim_trace": NaN}'],
)  # fmt: skip
def test_damaged_traces(capsys, text):
    Path("t.json").write_text(text)
    code, out, err = call(capsys, "check", "t.json")
    assert code == 2 and out == "" and err.startswith("numsim: t.json ") and err.count("\n") == 1


@pytest.mark.parametrize("word", ["numsim_result", "numsim_trace"])
def test_a_trace_may_speak_of_results(capsys, word):
    a_trace(**{word: 1}).save("t.json")
    code, out, _ = call(capsys, "check", "t.json", "--against", "t.json")
    assert code == 0 and out.splitlines()[0] == "t.json: equal"


def test_thousands_of_series_are_told_in_a_few_lines(capsys):
    Trace("x", [1], {f"s{i}": [1.0] for i in range(5000)}).save("t.json")
    for args in ((), ("--against", "t.json"), ("--out", "report.txt")):
        code, out, _ = call(capsys, "check", "t.json", *args)
        assert code == 0 and "not shown: " in out and " more" in out and len(out) < 1500
    assert len(Path("report.txt").read_text()) < 1500


@pytest.mark.parametrize("layout", ["true", "1.0", "[1]", '"1"'])
def test_layouts_are_integers(capsys, layout):
    a_trace().save("t.json")
    text = Path("t.json").read_text()
    Path("t.json").write_text(text.replace('"numsim_trace":1', f'"numsim_trace":{layout}'))
    code, out, err = call(capsys, "check", "t.json")
    assert (code, out) == (2, "") and "is no trace of numsim (layout 1)" in err


# --- pictures ---------------------------------------------------------------------------------------------------------
PICTURES = {
    "loss scale": (replay(GradScaler(), "IC"), "1 overflows, 1 searching"),
    "amax": (replay_amaxes(DelayedScaling(), [1.0, 2.0]), "values clip in 1 of 2 steps"),
    "ranges": (gradient_ranges(load_gradients()), "The widest range from 5 % to the amax"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_trace_is_drawn(capsys, name):
    trace, words = PICTURES[name]
    trace.save("t.json")
    code, out, err = call(capsys, "check", "t.json", "--out", "t.svg")
    assert code == 0 and out.splitlines()[0] == "t.json: undamaged" and err == "numsim: wrote t.svg\n"
    assert words in Path("t.svg").read_text("utf-8") and trace.digest in Path("t.svg").read_text("utf-8")
    assert sorted(p.name for p in Path().iterdir()) == ["t.json", "t.svg"]


def test_a_picture_in_the_form_and_style_that_were_asked_for(capsys):
    a_trace(title="学生 $x$").save("t.json")  # which the font lacks
    sizes = []
    for look in ("page", "slide"):
        code, out, err = call(capsys, "check", "t.json", "--against", "t.json", "--style", look, "--out", "T.PNG")
        assert code == 0 and "t.json: equal" in out and err == "numsim: wrote T.PNG\n"
        data = Path("T.PNG").read_bytes()
        sizes.append(int.from_bytes(data[16:20], "big"))
    assert data[:4] == b"\x89PNG" and sizes == [1440, 2400]


def test_a_picture_and_json(capsys):
    a_trace().save("t.json")
    code, out, _ = call(capsys, "check", "t.json", "--json", "--out", "t.png")
    assert code == 0 and json.loads(out)["checked"][0]["kind"] == "trace" and Path("t.png").is_file()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["result.json", "--out", "x.png"], "result.json is no trace: --out draws traces"),
        (["r.npz", "--out", "x.svg"], "r.npz is no trace"),
        (["t.json", "t.json", "--out", "x.png"], "2 files: a picture is of one trace"),
        (["loss.json", "--out", "x.png"], "no picture fits its series"),
        (["empty.json", "--out", "x.png"], "has no steps"),
        (["t.json", "--out", "x.pdf"], "not .pdf"),
        (["t.json", "--out", "nowhere/x.png"], "there is no folder nowhere"),
    ],
)
def test_what_is_not_drawn(capsys, args, words):
    a_trace().save("t.json")
    Trace("x", [1], {"loss": [1.0]}).save("loss.json")
    Trace("x", [], {"scale": []}).save("empty.json")
    make(capsys)
    RESULT.rename("result.json")
    q = ask("cast", ["fp16"], "bf16", [np.array([1], np.uint16)])
    Path("r.npz").write_bytes(record_bytes([(q, Answer(np.array([1], np.uint16), {"machine": "x"}))]))
    code, out, err = call(capsys, "check", *args)
    assert (code, out) == (2, "") and words in err and err.count("\n") == 1
    assert not list(Path().glob("x.*"))


def test_without_matplotlib(capsys, monkeypatch):
    a_trace().save("t.json")
    monkeypatch.delattr(show, "trace_plots", raising=False)
    monkeypatch.setitem(sys.modules, "numsim.show.trace_plots", None)
    code, out, err = call(capsys, "check", "t.json", "--out", "x.png")
    assert (code, out) == (4, "") and "matplotlib does not load here" in err
    assert call(capsys, "check", "t.json")[0] == 0


# --- within results ---------------------------------------------------------------------------------------------------
def make(capsys):
    assert call(capsys, "run", "fast", "--json")[0] == 0
    return json.loads(RESULT.read_text())


def test_a_results_traces_are_recomputed(capsys):
    assert make(capsys)["traces"] == {name: a_trace().to_dict() for name in ("torch", "jmp")}
    code, out, _ = call(capsys, "check", str(RESULT))
    assert code == 0 and "fast.json: equal" in out and "traces" in out


def test_results_without_traces_have_no_entry_for_them(capsys, monkeypatch):
    monkeypatch.setattr(fake.Fast, "EXPERIMENT", fake.experiment("fast", draw=fake.draw_nothing, against=()))
    assert "traces" not in make(capsys) and call(capsys, "check", str(RESULT))[0] == 0


CHANGES = {
    "a code": (lambda t: t["torch"]["series"]["scale"]["codes"].__setitem__(0, 1082130433), 'trace "torch", file'),
    "a float, in its last bit": (
        lambda t: t["jmp"]["series"]["amax"]["values"].__setitem__(0, 0.10000000000000002), "amax of step 1",
    ),
    "an event": (lambda t: t["torch"]["events"].clear(), "event overflow of step 3: no against yes"),
    "an event's text": (lambda t: t["torch"]["events"].__setitem__(0, [3, "overflow", ""]), 'events 1 3:'),
    "the title": (lambda t: t["torch"].update(title="x"), 'trace "torch" title: "x" in the file'),
    "the settings": (lambda t: t["torch"].update(about={"a": 1}), 'trace "torch" about'),
    "one less": (lambda t: t.pop("torch"), 'trace "torch" is not in the file'),
    "one more": (lambda t: t.update(more=t["torch"]), 'trace "more" is only in the file'),
    "all gone": (lambda t: t.clear(), 'trace "jmp" is not in the file'),
    "damage": (lambda t: t["torch"].pop("events"), 'trace "torch": the file\'s is a damaged trace'),
    "no trace": (lambda t: t.update(torch=[1]), 'trace "torch": the file\'s is no trace'),
    "steps": (lambda t: t["torch"].update(steps=[1, 2, 4], events=[]), "cannot be compared: step 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_trace_is_found(capsys, name):
    data = make(capsys)
    change, words = CHANGES[name]
    change(data["traces"])
    RESULT.write_text(json.dumps(data))
    code, out, _ = call(capsys, "check", str(RESULT))
    assert code == 1 and "fast.json: DIFFERS" in out and words in " ".join(out.split())


def test_traces_of_the_wrong_kind(capsys):
    data = make(capsys) | {"traces": [1]}
    RESULT.write_text(json.dumps(data))
    code, _, err = call(capsys, "check", str(RESULT))
    assert code == 2 and "entry traces is of the wrong kind" in err
