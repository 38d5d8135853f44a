"""Pictures of traces: what they say, what they refuse, and that no text stands on another."""

import dataclasses
import re

import numpy as np
import pytest

from numsim import Event, InputError, Trace
from numsim.data import KINDS, gradient_ranges, load_gradients
from numsim.scaling import DelayedScaling, get_scaler, replay, replay_amaxes
from numsim.scaling.scaler import State
from tests.show.test_plots import check_texts

plots = pytest.importorskip("numsim.show.trace_plots")


def scaler(scales, overflows=(), first=None):
    """A trace of scales after each step; ``first`` is what the first one was made with."""
    series = {"scale": scales} if first is None else {"scale used": [first, *scales[:-1]], "scale": scales}
    return Trace("torch", range(len(scales)), series, [Event(i, "overflow") for i in overflows])


PROBING = scaler([8.0, 8, 16, 8, 8, 16, 16, 8, 4, 4, 8], [3, 7, 8], 8.0)
COLLAPSE = scaler([2.0 ** max(15 - i, -150) if i < 160 else 0.0 for i in range(200)], range(200), 65536.0)


# --- which overflow is which ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("scales", "overflows", "kinds"),
    [
        ([32, 16, 16], [0, 1], {0: "search", 1: "search"}),  # nothing has grown yet
        ([16, 32, 16, 16], [2], {2: "probe"}),
        ([16, 32, 16, 8], [2, 3], {2: "probe", 3: "fall"}),  # 16 had stood
        ([16, 32, 32, 16], [2, 3], {2: "probe", 3: "probe"}),  # hysteresis: the first is tolerated
        ([16, 32, 16, 8, 16, 8], [2, 3, 5], {2: "probe", 3: "fall", 5: "probe"}),  # what stood last counts
        ([4, 2, 1, 0.5], [1, 2, 3], {1: "search", 2: "search", 3: "fall"}),  # at 1 it is the gradients themselves
        ([16, 16, 16], [], {}),
        ([16, np.inf, np.inf], [2], {2: "probe"}),
        ([0.0, 0.0], [1], {1: "fall"}),
    ],
)
def test_kinds_of_overflows(scales, overflows, kinds):
    for first in (None, float(scales[0])):  # written down or not
        assert plots.overflow_kinds(scaler(np.array(scales, float), overflows, first)) == kinds


def test_the_first_scale_is_the_one_that_was_used():
    assert plots.overflow_kinds(scaler([1.0, 0.5], [0, 1], 2.0)) == {0: "search", 1: "fall"}
    assert plots.overflow_kinds(scaler([1.0, 0.5], [0, 1], 1.0)) == {0: "fall", 1: "fall"}


@pytest.mark.parametrize(
    ("name", "settings", "state", "first"),
    [
        ("apex", {"init_scale": 2.0**30}, None, 24),  # its cap
        ("openseq2seq-logmax", {}, None, 0),
        ("torch", {}, State(256.0, 1999), 8),  # grows at the first step
    ],
)
def test_what_replay_used_first_is_drawn(name, settings, state, first):
    steps = [1.0, 0.5, 2.0] if "logmax" in name else "CIC"
    trace = replay(get_scaler(name, **settings), steps, state)
    _, figure, _ = plots.scale_plot({name: trace})
    line = figure.axes[1].get_lines()[0]
    assert [line.get_xdata()[0], line.get_ydata()[0]] == [1, first]
    marks = [y for line in figure.axes[1].get_lines()[1:] if line.get_marker() in "sxX" for y in line.get_ydata()]
    assert marks == [np.log2(trace["scale used"][step - 1]) for step in trace.happened("overflow")]


# --- pictures ---------------------------------------------------------------------------------------------------------
def amaxes(n=50, clipped=(20,), **changes):
    amax = np.where(np.arange(n) == 20, 900.0, 3.0 + np.arange(n) % 3)
    return Trace("delayed", range(n), {"amax": amax, "clip limit": np.full(n, 8.0), **changes},
                 [Event(i, "clipped") for i in clipped])  # fmt: skip


def ranges(n, layers=("",), top=1.0):
    sizes = {"p5": 2.0**-30, "median": 2.0**-20, "p95": 2.0**-9, "amax": top}
    return Trace("x", range(n), {f"{layer} {k}".strip(): np.full(n, x) for layer in layers for k, x in sizes.items()})


PICTURES = {
    "one": lambda style: plots.scale_plot({"torch": PROBING}, style),
    "collapse": lambda style: plots.scale_plot({"torch": COLLAPSE}, style),
    "three": lambda style: plots.scale_plot(dict.fromkeys("abc", PROBING), style, below="W = 2, the same overflows."),
    "fourteen": lambda style: plots.scale_plot({f"system {i}": (PROBING, COLLAPSE)[i % 2] for i in range(14)}, style),
    "constant": lambda style: plots.scale_plot({"static": scaler([4.0] * 9)}, style),
    "nothing finite": lambda style: plots.scale_plot({"x": scaler([np.inf, np.nan, 0.0])}, style),
    "one step": lambda style: plots.scale_plot({"x": scaler([4.0], [0])}, style),
    "amax": lambda style: plots.amax_plot(amaxes(), style),
    "amax, infinite": lambda style: plots.amax_plot(amaxes(4, [1], amax=[1.0, np.inf, 0.0, np.nan]), style),
    "amax, nowhere": lambda style: plots.amax_plot(amaxes(2, [0], amax=[np.nan, 0.0], **{"clip limit": [0, 0]}), style),
    "long": lambda style: plots.amax_plot(amaxes(1000), style),
    "one layer": lambda style: plots.ranges_plot(ranges(5), style),
    "many layers": lambda style: plots.ranges_plot(
        ranges(40, [f"layer {i}" for i in range(9)]), style, formats=("fp16", "e5m2"), below="Gradients."
    ),
    "real gradients": lambda style: plots.ranges_plot(gradient_ranges(load_gradients(), "weight-gradient"), style),
}  # fmt: skip


@pytest.mark.parametrize("style", ["page", "slide"])
@pytest.mark.parametrize("name", PICTURES)
def test_titles_and_texts(name, style):
    stem, figure, alt = PICTURES[name](style)
    title = " ".join(figure.get_suptitle().split()).replace("\u00a0", " ")
    assert alt.replace("\u00a0", " ").startswith(title) and len(alt) > len(title) + 20 and alt.endswith(".")
    check_texts(figure, stem)


def drawn(axes, label):
    """The marks of the legend's entry ``label``, as (x, y)."""
    return next(list(zip(*line.get_data(), strict=True)) for line in axes.get_lines() if line.get_label() == label)


def test_marks_stand_at_the_scale_that_was_too_large():
    _, figure, alt = plots.scale_plot({"torch": PROBING})
    marks = {
        line.get_marker(): [(int(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]
        for line in figure.axes[1].get_lines()
        if line.get_marker() != "None"
    }
    assert marks["x"] == [(3, 4.0), (7, 4.0)] and marks["X"] == [(8, 3.0)] and [x for x, _ in marks["|"]] == [3, 7, 8]
    assert marks["^"] == [(5, 4.0), (10, 3.0)]  # at step 3 it overflows at once: the mark of the probe stands there
    assert "torch: 3 overflows, 2 probing and 1 falling" in alt
    legend = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert legend == ["probing overflow", "falling overflow", "growth kept", "skipped"]


def test_names_are_no_formulas():
    _, figure, _ = plots.scale_plot({r"$\foo$": PROBING, "b$": PROBING}, finding=r"$\foo$")
    check_texts(figure, "scale")
    _, figure, _ = plots.ranges_plot(ranges(3, [r"$\foo$"]))
    check_texts(figure, "ranges")


def test_the_end_of_a_scale_is_named():
    _, figure, _ = plots.scale_plot({"torch": COLLAPSE})
    assert "0 at step 160" in [t.get_text() for t in figure.axes[1].texts]


def test_clipped_steps():
    """At the limit, and up to half a step above it, numbers are rounded to it: the events say what is clipped."""
    trace = replay_amaxes(DelayedScaling(amax_history_len=4), [1, 1, 460 / 448, 1, 4, np.inf, 1])
    _, figure, alt = plots.amax_plot(trace)
    steps = trace.happened("clipped")
    assert steps == [4, 5] and "clip in 2 of 7 steps" in alt
    axes = figure.axes[1]
    assert drawn(axes, "clipped") == [(4, 2.0), (5, np.log2(448.0))]  # the infinite one stands at the top
    assert drawn(axes, "limit") == list(zip(range(7), np.log2(448 / trace["scale used"]), strict=True))
    assert [y for _, y in drawn(axes, "amax")][:5] == np.log2(trace["amax"])[:5].tolist()
    assert "inf at step 5" in [t.get_text() for t in axes.texts]


def test_a_layer_for_each_four_series():
    trace = ranges(3, ["conv 1", "head"])
    for more in ("head lr", "amax", "p5", "loss p95"):  # no layer's, or not all four
        trace = Trace("x", trace.steps, {**trace.series, more: [1.0] * 3})
    _, figure, _ = plots.ranges_plot(trace, formats=("fp16", "e4m3"))
    assert [axes.get_title(loc="left") for axes in figure.axes[1:]] == ["conv 1", "head"]
    across = [float(line.get_ydata()[0]) for line in figure.axes[1].get_lines() if len(line.get_xdata()) == 2]
    assert across == [np.log2(65504), -24.0, np.log2(448), -9.0]
    legend = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert legend == ["5 to 95 %", "median", "amax", "FP16: largest, least", "E4M3: largest, least"]
    assert plots.ranges_plot(ranges(3))[1].axes[1].get_title(loc="left") == "x"


# --- ranges of real gradients -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_ranges_are_those_of_all_values(kind):
    """The values' binades written out, and NumPy's own quantiles of them."""
    recording = load_gradients()
    trace = gradient_ranges(recording, kind)
    rows = list(recording.select(kind))
    assert len(trace) * len(trace.series) == 4 * len(rows) > 0
    for row in rows:
        every = np.repeat(row.binades, row.positive + row.negative)
        wanted = np.quantile(every, [0.05, 0.5, 0.95, 1.0], method="inverted_cdf")
        at = trace.steps.tolist().index(row.step)
        assert [trace[f"{row.layer} {name}"][at] for name in plots.RANGES] == np.ldexp(1.0, wanted).tolist()


def test_amaxes_of_weights_are_the_recorded_ones():
    """Two parts of the recording that were kept apart: counts by binade, and amaxes at each update."""
    recording = load_gradients()
    trace, amaxes = gradient_ranges(recording, "weight"), recording.amaxes["weight"]
    for step, amax in zip(trace.steps[:-1], trace["linear1 amax"], strict=False):
        assert amax <= amaxes[step] < 2 * amax


def test_a_layer_of_zeros_has_no_range():
    recording = load_gradients()
    row = dataclasses.replace(recording.tensors[0], zeros=recording.tensors[0].total)
    trace = gradient_ranges(dataclasses.replace(recording, tensors=(row,)), row.kind)
    assert np.isnan([trace[f"{row.layer} {name}"][0] for name in plots.RANGES]).all()
    with pytest.raises(InputError, match=r"kind='gradient': allowed are .*Example"):
        gradient_ranges(recording, "gradient")


# --- which picture ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("trace", "stem"),
    [
        (PROBING, "scale"),
        (replay(get_scaler("deepspeed"), "ICIC"), "scale"),
        (amaxes(), "amax"),
        (replay_amaxes(DelayedScaling(), [1.0, 2.0]), "amax"),  # which has a scale, too
        (ranges(3, ["a", "b"]), "ranges"),
    ],
)
def test_the_picture_that_fits(trace, stem):
    assert plots.trace_plot(trace)[0] == stem
    figure = trace.draw("slide")
    assert figure.look == "slide" and figure.get_suptitle()


@pytest.mark.parametrize("series", [{}, {"loss": [1.0]}, {"amax": [1.0]}, {"p5": [1.0], "amax": [1.0]}])
def test_a_trace_without_a_picture(series):
    with pytest.raises(InputError, match=r"no picture fits its series \[.*Needed are scale, .*Example: Trace\("):
        Trace("x", [1], series).draw()


def test_findings_are_what_was_given():
    _, figure, alt = plots.scale_plot({"a": PROBING}, stem="s", finding="It probes", below="Below.")
    assert figure.get_suptitle() == "It probes" and alt.startswith("It probes. ")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plots.scale_plot({}), "one at least"),
        (lambda: plots.scale_plot({"a": ranges(3)}), "has no series 'scale'"),
        (lambda: scaler([]).draw(), "has no steps"),
        (lambda: ranges(0).draw(), "has no steps"),
        (lambda: plots.scale_plot({"a": scaler([])}), "has no steps"),
        (lambda: plots.scale_plot({"a": PROBING}, "poster"), "style='poster'"),
        (lambda: plots.amax_plot(PROBING), "has no series 'amax'"),
        (lambda: plots.amax_plot(amaxes(), "poster"), "style='poster'"),
        (lambda: plots.ranges_plot(PROBING), "has no series 'p5'"),
        (lambda: plots.ranges_plot(ranges(3), formats=["fp17"]), "unknown format"),
        (lambda: plots.ranges_plot(ranges(3), formats=["fp16"] * 5), "at most 4"),
        (lambda: plots.ranges_plot(ranges(3, map(str, range(100)))), "at most 99"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_kinds_are_told_apart_without_colour_and_the_grey_line_is_named():
    marks = [plots._MARKS[kind][1] for kind in ("search", "probe", "fall", "growth", "skipped")]
    assert len({mark["marker"] for mark in marks}) == len(marks)
    _, figure, _ = plots.scale_plot({"torch": PROBING, "b$": PROBING}, below="W = 2.")
    _, alone, _ = plots.scale_plot({"torch": PROBING}, below="W = 2.")
    notes = [" ".join(t.get_text() for t in f.texts) for f in (figure, alone)]
    assert "W = 2. Grey: torch." in notes[0] and "Grey" not in notes[1]
