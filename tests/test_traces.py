"""Series over steps: kept bit by bit, hostile ones refused."""

import copy
import hashlib
import json
import pickle

import numpy as np
import pytest

import numsim
from numsim import Event, InputError, Trace, array, load_trace
from numsim.errors import RecordError
from numsim.files import parse_json
from numsim.traces import read_trace

# --- Trace: series over steps -----------------------------------------------------------------------------------------
SCALES = [4.0, 4.0, 2.0]


def a_trace(**changes):
    fields = {
        "title": "a scaler",
        "steps": [1, 2, 3],
        "series": {"scale": array(SCALES, "fp32"), "amax": [0.5, float("inf"), float("nan")]},
        "events": [Event(3, "overflow", "halved"), Event(2, "growth")],
        "about": {"growth_interval": 2, "order": ("a", None)},
    }
    return Trace(**{**fields, **changes})


def test_a_trace_is_a_copy_that_nobody_changes():
    steps, amax, scale, about = np.array([1, 2, 3]), np.array(SCALES), array(SCALES, "fp32"), {"list": [1]}
    trace = a_trace(steps=steps, series={"scale": scale, "amax": amax}, about=about)
    steps[0], amax[0], scale.codes[0] = 0, 9.0, 0  # they can still be written to
    about["list"].append(2)
    assert trace.steps.tolist() == [1, 2, 3] and trace["amax"].tolist() == trace["scale"].tolist() == SCALES
    assert trace.about == {"list": [1]}
    for numbers in (trace.steps, trace["amax"], trace.series["scale"].codes):
        with pytest.raises(ValueError, match="read-only"):
            numbers[0] = 0
    with pytest.raises(AttributeError):
        trace.title = "x"
    with pytest.raises(TypeError):
        trace.series["more"] = []


def test_events_stand_in_the_order_of_their_steps():
    trace = a_trace(events=[Event(np.int32(3), "b"), Event(1, "a"), Event(3, "a")])
    assert [(e.step, e.kind) for e in trace.events] == [(1, "a"), (3, "b"), (3, "a")]
    assert trace.happened("a") == [1, 3] and trace.happened("c") == []
    assert type(trace.events[1].step) is int


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda trace: pickle.loads(pickle.dumps(trace))])
def test_copies_are_as_good(again):
    trace = again(a_trace())
    assert trace.json == a_trace().json and trace.series["scale"].format == numsim.FP32
    for numbers in (trace.steps, trace["amax"], trace.series["scale"].codes):
        assert not numbers.flags.writeable


VALUES = [0.0, -0.0, 5e-324, -1.7976931348623157e308, float("inf"), float("-inf"), float("nan"), 0.1, 2.0**53]


def test_a_file_keeps_every_bit(tmp_path):
    codes = numsim.from_codes([0x7FC00001, 0xFFC00000, 0x80000000, 1, 0x7F800000, 0, 0, 0, 0], "fp32")
    wide = numsim.from_codes(np.array([2**64 - 1, 2**63, *range(7)], np.uint64), "fp64")
    series = {"values": VALUES, "codes": codes, "wide": wide, "größe": np.float32(VALUES[:3] * 3)}
    trace = Trace("all – of it", range(-4, 5), series, [Event(0, "x", "ü")], {"a": [1, None, "ü", 0.1]})
    again = load_trace(trace.save(tmp_path / "t.json"))
    assert again.json == trace.json and again.digest == trace.digest
    assert again["values"].view(np.uint64).tolist() == np.array(VALUES).view(np.uint64).tolist()
    for name in ("codes", "wide"):
        assert again.series[name].codes.tolist() == trace.series[name].codes.tolist()
        assert again.series[name].format == trace.series[name].format
    assert again.steps.tolist() == list(range(-4, 5)) and again.events == trace.events and again.about == trace.about
    assert (tmp_path / "t.json").read_bytes().isascii()


def test_the_digest_of_a_trace_is_for_ever():
    text = (
        '{"about":{"growth_interval":2,"order":["a",null]},"events":[[2,"growth",""],[3,"overflow","halved"]],'
        '"numsim_trace":1,"series":{"amax":{"values":[0.5,"inf","nan"]},'
        '"scale":{"codes":[1082130432,1082130432,1073741824],"format":"fp32"}},"steps":[1,2,3],"title":"a scaler"}'
    )
    assert a_trace().json == text and a_trace().digest == hashlib.sha256(text.encode()).hexdigest()


def test_every_nan_among_floats_is_one():
    nans = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    trace = Trace("x", [1, 2], {"a": nans})
    assert trace["a"].view(np.uint64).tolist() == [0x7FF8000000000000] * 2


def nested(deep):
    x = 1
    for _ in range(deep):
        x = [x]
    return x


class Unreadable:
    """As a torch tensor with a gradient is for NumPy."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"title": ""}, "title"),
        ({"title": "two\nlines"}, "title"),
        ({"title": "\x1b[2J"}, "title"),
        ({"title": "x" * 201}, "title"),
        ({"title": 5}, "title 5"),
        ({"steps": [1, 1, 2]}, "increasing"),
        ({"steps": [3, 2, 1]}, "increasing"),
        ({"steps": np.array([3, 2, 1], np.uint64)}, "increasing"),  # whose differences wrap
        ({"steps": np.array([1, 2, 2**63], np.uint64)}, "below 2"),
        ({"steps": [1, 2, 10**30]}, "increasing"),
        ({"steps": [1.0, 2.0, 3.0]}, "increasing"),
        ({"steps": [[1, 2, 3]]}, "increasing"),
        ({"steps": [[1], [2, 3]]}, "increasing"),
        ({"steps": "123"}, "increasing"),
        ({"steps": None}, "increasing"),
        ({"steps": 3}, "increasing"),
        ({"steps": [False, True]}, "increasing"),
        ({"series": [("scale", SCALES)]}, "a dict"),
        ({"series": {"": SCALES}}, "name"),
        ({"series": {"a\nb": SCALES}}, "name"),
        ({"series": {"a" * 61: SCALES}}, "name"),
        ({"series": {1: SCALES, "1": SCALES}}, "series 1"),
        ({"series": {"scale": SCALES[:2]}}, r"shape \(2,\)"),
        ({"series": {"scale": array([SCALES], "fp32")}}, r"shape \(1, 3\)"),
        ({"series": {"scale": 2.0}}, r"shape \(\)"),
        ({"series": {"scale": ["1", "2", "3"]}}, "numbers that float64 has"),
        ({"series": {"scale": [1, 2, None]}}, "numbers that float64 has"),
        ({"series": {"scale": [1j, 2, 3]}}, "numbers that float64 has"),
        ({"series": {"scale": [1, 2, 2**53 + 1]}}, "numbers that float64 has"),
        ({"series": {"scale": [1, 2, -(2**53) - 1]}}, "numbers that float64 has"),
        ({"series": {"scale": [1, 2, 10**5000]}}, "numbers that float64 has"),
        ({"series": {"scale": np.array(SCALES, np.longdouble)}}, "numbers that float64 has"),
        ({"series": {"scale": [[1], [1, 2]]}}, "numbers that float64 has"),
        ({"events": [Event(4, "overflow")]}, "at one of the steps"),
        ({"events": [(3, "overflow")]}, "an Event"),
        ({"events": ["overflow"]}, "an Event"),
        ({"events": Event(3, "overflow")}, "a list of Events"),
        ({"events": None}, "a list of Events"),
        ({"events": 3}, "a list of Events"),
        ({"about": {"x": float("nan")}}, "plain values"),
        ({"about": {"x": np.float32(1)}}, "plain values"),
        ({"about": {"x": {1, 2}}}, "plain values"),
        ({"about": [1, 2]}, "plain values"),
        ({"about": {"x": nested(20)}}, "at most 20 in each other"),
        ({"about": {"x": nested(990)}}, "at most 20 in each other"),  # written, and not read again
        ({"about": {"x": 10**25}}, "plain values"),  # the same
        ({"about": {"1": 1, 1: 2}}, "plain values"),  # one of them would be lost
        ({"steps": Unreadable()}, "increasing"),
        ({"series": {"scale": Unreadable()}}, "numbers that float64 has"),
        ({"series": {"scale": np.zeros(3, [("a", "i4")])}}, "numbers that float64 has"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(change, words):
    with pytest.raises(InputError, match=words) as error:
        a_trace(**change)
    assert "Example:" in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    "event",
    [(1.0, "x"), (True, "x"), ("1", "x"), (None, "x"), (1, ""), (1, "two words"), (1, 5), (1, "x" * 41), (1, "\x1b"),
     (1, " x"), (1, "x", "a\nb"), (1, "x", "y" * 201), (1, "x", None)],
)  # fmt: skip
def test_what_is_no_event_is_refused(event):
    with pytest.raises(InputError, match=r"Example: Event\(3, 'overflow'"):
        Event(*event)


KINDS = [
    None, True, 0, -1, 2**64, 10**30, 10**5000, 1.5, float("nan"), 1j, "", "x", "\x1b[2J", "\ud800", "x" * 10**5,
    b"x", [], [1], [[1], [1, 2]], (), {}, {"a": 1}, {1: 2}, {1}, range(3), np.int8(3), np.uint64(2**63),
    np.float32(1), np.bool_(True), np.array(1), np.zeros((2, 2)), np.zeros(0, "U1"), np.zeros(0, complex),
    np.zeros(0, [("a", "i4")]), np.array([1, 2, 3], object), np.datetime64("2020"), object(), Unreadable(), int,
    nested(50), nested(5000), array(SCALES, "fp32"), [Event(1, "x")], ...,
]  # fmt: skip


def taken_or_refused(make, *args, **fields):
    try:
        return make(*args, **fields)
    except InputError as error:
        message = str(error)
    assert len(message) < 400 and message.isprintable()
    return None


@pytest.mark.parametrize("place", ["title", "steps", "series", "a series", "events", "an event", "about", "a setting"])
def test_whatever_is_taken_can_be_read_again(place):
    """Every kind of thing in every place: refused with a message, or kept, shown and read."""
    taken = 0
    for x in KINDS:
        change = {
            "a series": {"series": {"a": x}}, "an event": {"events": [x]}, "a setting": {"about": {"a": x}}
        }.get(place, {place: x})  # fmt: skip
        trace = taken_or_refused(Trace, **{"title": "x", "steps": [1, 2, 3], "series": {}, **change})
        if trace is not None:
            again = read_trace(parse_json(trace.json.encode(), "t.json"), "t.json")
            assert again.json == trace.json and str(again) == str(trace)
            taken += 1
    assert (0 if place == "an event" else 1) <= taken < len(KINDS)


def test_events_of_every_kind():
    for x in KINDS:
        for event in ((x, "x"), (1, x), (1, "x", x)):
            e = taken_or_refused(Event, *event)
            assert e is None or (type(e.step) is int and e.kind == e.kind.strip() != "" and str(e).isprintable())


def test_events_may_come_one_by_one():
    assert a_trace(events=(Event(i, "x") for i in (3, 1))).happened("x") == [1, 3]


def test_about_may_be_nested_a_little(tmp_path):
    trace = a_trace(about={"x": nested(19), "y": 10**24})
    assert load_trace(trace.save(tmp_path / "t.json")).about == {"x": nested(19), "y": 10**24}


def test_unknown_series():
    for name in ([], {}, np.zeros(3), None):
        with pytest.raises(InputError, match="this trace has scale, amax"):
            a_trace()[name]
    many = Trace("x", [1], {f"s{i}": [1.0] for i in range(1000)})
    with pytest.raises(InputError, match=r"series 'x': this trace has s0, s1, .*, s19 and 980 more\.$"):
        many["x"]
    with pytest.raises(InputError, match="series 'loss': this trace has scale, amax"):
        a_trace()["loss"]
    with pytest.raises(InputError, match="has none"):
        Trace("x", [], {})["loss"]


def test_a_format_of_ones_own_goes_into_no_file(tmp_path):
    trace = Trace("x", [1], {"a": array([1.0], numsim.Format("fp16", 5, 10, bias=16))})
    with pytest.raises(InputError, match="'fp16' is your own"):
        trace.save(tmp_path / "t.json")
    assert not list(tmp_path.iterdir())


def test_a_trace_that_could_not_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("numsim.traces.MAX_JSON", 200)
    with pytest.raises(InputError, match="Keep fewer steps"):
        a_trace().save(tmp_path / "t.json")
    assert not list(tmp_path.iterdir())


DAMAGE = {
    "a list": lambda d: [d],
    "no layout": lambda d: d.pop("numsim_trace") and d,
    "layout": lambda d: d | {"numsim_trace": 2},
    "a true layout": lambda d: d | {"numsim_trace": True},
    "a real layout": lambda d: d | {"numsim_trace": 1.0},
    "layouts": lambda d: d | {"numsim_trace": [1]},
    "more": lambda d: d | {"more": 1},
    "less": lambda d: {k: v for k, v in d.items() if k != "about"},
    "title": lambda d: d | {"title": ["x"]},
    "escape": lambda d: d | {"title": "\x1b[2J"},
    "steps": lambda d: d | {"steps": [1, 2, 3.5]},
    "true steps": lambda d: d | {"steps": [True, 2, 3]},
    "huge steps": lambda d: d | {"steps": [1, 2, 2**64]},
    "text for steps": lambda d: d | {"steps": "123"},
    "falling steps": lambda d: d | {"steps": [3, 2, 1]},
    "series": lambda d: d | {"series": [1]},
    "no series": lambda d: d | {"series": {"x": None}},
    "empty series": lambda d: d | {"series": {"x": {}}},
    "both": lambda d: d | {"series": {"x": {"format": "fp32", "codes": [1, 2, 3], "values": [1, 2, 3]}}},
    "format": lambda d: d | {"series": {"x": {"format": "fp17", "codes": [1, 2, 3]}}},
    "format's type": lambda d: d | {"series": {"x": {"format": 7, "codes": [1, 2, 3]}}},
    "code": lambda d: d | {"series": {"x": {"format": "fp16", "codes": [1, 2, 65536]}}},
    "negative code": lambda d: d | {"series": {"x": {"format": "fp16", "codes": [1, 2, -1]}}},
    "broken code": lambda d: d | {"series": {"x": {"format": "fp16", "codes": [1, 2, 3.5]}}},
    "huge code": lambda d: d | {"series": {"x": {"format": "fp64", "codes": [1, 2, 2**64]}}},
    "text code": lambda d: d | {"series": {"x": {"format": "fp16", "codes": ["1", "2", "3"]}}},
    "nested codes": lambda d: d | {"series": {"x": {"format": "fp16", "codes": [[1, 2, 3]]}}},
    "few": lambda d: d | {"series": {"x": {"values": [1.0, 2.0]}}},
    "text": lambda d: d | {"series": {"x": {"values": [1.0, 2.0, "1_000"]}}},
    "infinity": lambda d: d | {"series": {"x": {"values": [1.0, 2.0, "infinity"]}}},
    "true": lambda d: d | {"series": {"x": {"values": [1.0, 2.0, True]}}},
    "null": lambda d: d | {"series": {"x": {"values": [1.0, 2.0, None]}}},
    "a list of values": lambda d: d | {"series": {"x": {"values": [1.0, 2.0, [3.0]]}}},
    "no list of values": lambda d: d | {"series": {"x": {"values": 3}}},
    "huge integer": lambda d: d | {"series": {"x": {"values": [1.0, 2.0, 10**400]}}},
    "events": lambda d: d | {"events": {"1": "x"}},
    "event": lambda d: d | {"events": [[3, "overflow"]]},
    "event's text": lambda d: d | {"events": ["3xy"]},
    "event's step": lambda d: d | {"events": [[9, "overflow", ""]]},
    "event's kind": lambda d: d | {"events": [[3, {}, ""]]},
    "event's escape": lambda d: d | {"events": [[3, "overflow", "\x1b[2J"]]},
    "about": lambda d: d | {"about": [1]},
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_refused(name):
    record = json.loads(a_trace().json)
    assert read_trace(json.loads(json.dumps(record)), "t.json").json == a_trace().json
    with pytest.raises(RecordError, match=r"^t\.json is ") as error:
        read_trace(DAMAGE[name](record), "t.json")
    assert len(str(error.value)) < 400 and "\x1b" not in str(error.value)


def test_about_may_not_be_a_pit():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecordError, match="plain values"):
        read_trace(json.loads(a_trace().json) | {"about": {"x": deep}}, "t.json")


@pytest.mark.parametrize("data", [b"", b"[", b"{}", b'{"numsim_trace":1,"numsim_trace":1}', b"\xff", b"NaN"])
def test_what_is_no_json_is_refused(tmp_path, data):
    (tmp_path / "t.json").write_bytes(data)
    with pytest.raises(RecordError):
        load_trace(tmp_path / "t.json")


# --- traces for people
def printed(trace):
    lines = str(trace).splitlines()
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines), lines
    return lines


def test_an_empty_trace():
    assert printed(Trace("nothing", [], {"scale": []})) == ["nothing: 0 steps", "  step  scale"]


def test_many_events_leave_twenty():
    lines = printed(Trace("x", range(1000), {"a": np.arange(1000.0)}, [Event(i, "e") for i in range(0, 1000, 2)]))
    assert len(lines) == 2 + 20 + 1 and lines[12] == "  ... 481 more steps with events"
    assert lines[11].split() == ["18", "18", "e"] and lines[13].split()[0] == "982" and lines[-1].split()[0] == "999"


def test_many_series_and_long_texts():
    names = [f"series number {i} of a good many" for i in range(12)]
    trace = Trace("word " * 39, [1, 2**62], {n: [2.0**-149, -1.23456789e-300] for n in names}, [
        Event(1, "overflow", "why " * 50), Event(1, "growth"), Event(2**62, "o" * 40, "x" * 200)])  # fmt: skip
    lines = printed(trace)
    told = " ".join(" ".join(lines).split())
    assert "2^-149" in told and "-1.23457e-300" in told and "not shown: series number" in told and "..." in told
    assert told.endswith(names[-1]) and "4611686018427387904" in told
    no_spaces = Trace("x" * 200, [1], {"y" * 60: [1.0]})
    assert len(printed(no_spaces)) == 5


def test_thousands_of_series():
    trace = Trace("x", [1], {f"s{i}": [1.0] for i in range(50_000)})
    lines = printed(trace)
    shown = lines[1].split()[1:]
    assert shown[0] == "s0" and len(lines) <= 6
    told = " ".join(" ".join(lines[3:]).split())
    assert told.startswith(f"not shown: s{len(shown)}, ") and told.endswith(f"and {50_000 - len(shown) - 20} more")


def test_series_are_looked_at_until_one_finds_no_room(monkeypatch):
    looked = []
    monkeypatch.setattr("numsim.traces._cells", lambda numbers, places: looked.append(1) or ["1"])
    str(Trace("x", [1], {f"s{i}": [1.0] for i in range(1000)}))
    assert 10 < len(looked) < 40


def test_several_events_of_a_step_stand_in_its_row():
    lines = printed(a_trace(events=[Event(2, "overflow", "halved"), Event(2, "skipped")]))
    assert lines[3] == "     2      4   inf  overflow: halved; skipped"
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "3"]


def test_numbers_beyond_float64_are_shown_as_codes():
    wide = numsim.Format("wide", 15, 40, bias=16383)
    assert printed(Trace("x", [1], {"a": numsim.from_codes([0x7FFE << 40], wide)}))[-1].split() == [
        "1",
        "0x7ffe0000000000",
    ]
