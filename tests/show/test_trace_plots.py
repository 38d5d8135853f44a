"""Pictures of traces: what they say, what they refuse, and that no text stands on another."""

import re

import numpy as np
import pytest

from numsim import Event, Trace
from tests.show.test_plots import check_texts

plots = pytest.importorskip("numsim.show.trace_plots")


def scaler(scales, overflows=(), title="torch", **about):
    return Trace(title, range(len(scales)), {"scale": scales}, [Event(i, "overflow") for i in overflows], about)


PROBING = scaler([8.0, 8, 16, 8, 8, 16, 16, 8, 4, 4, 8], [3, 7, 8], init_scale=8.0)
COLLAPSE = scaler([2.0 ** max(15 - i, -150) if i < 160 else 0.0 for i in range(200)], range(200), init_scale=65536.0)


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
    assert plots.overflow_kinds(scaler(np.array(scales, float), overflows)) == kinds


def test_the_first_scale_is_that_of_the_settings():
    assert plots.overflow_kinds(scaler([1.0, 0.5], [0, 1], init_scale=2.0)) == {0: "search", 1: "fall"}
    assert plots.overflow_kinds(scaler([1.0, 0.5], [0, 1], init_scale="2")) == {0: "fall", 1: "fall"}


# --- pictures ---------------------------------------------------------------------------------------------------------
def amaxes(n=50, **changes):
    amax = np.where(np.arange(n) == 20, 900.0, 3.0 + np.arange(n) % 3)
    return Trace("delayed", range(n), {"amax": amax, "scale": np.full(n, 448 / 8), **changes})


def ranges(n, top=1.0):
    return Trace("x", range(n), {"p5": np.full(n, 2.0**-30), "median": np.full(n, 2.0**-20),
                                 "p95": np.full(n, 2.0**-9), "amax": np.full(n, top)})  # fmt: skip


PICTURES = {
    "one": lambda style: plots.scale_plot({"torch": PROBING}, style),
    "collapse": lambda style: plots.scale_plot({"torch": COLLAPSE}, style),
    "three": lambda style: plots.scale_plot(dict.fromkeys("abc", PROBING), style, below="W = 2, the same overflows."),
    "fourteen": lambda style: plots.scale_plot({f"system {i}": (PROBING, COLLAPSE)[i % 2] for i in range(14)}, style),
    "constant": lambda style: plots.scale_plot({"static": scaler([4.0] * 9)}, style),
    "nothing finite": lambda style: plots.scale_plot({"x": scaler([np.inf, np.nan, 0.0])}, style),
    "one step": lambda style: plots.scale_plot({"x": scaler([4.0], [0])}, style),
    "amax": lambda style: plots.amax_plot(amaxes(), style),
    "amax, infinite": lambda style: plots.amax_plot(amaxes(4, amax=[1.0, np.inf, 0.0, np.nan]), style, format="e5m2"),
    "long": lambda style: plots.amax_plot(amaxes(1000), style),
    "ranges": lambda style: plots.ranges_plot({"conv": ranges(5), "head": ranges(5, 64.0)}, style),
    "many layers": lambda style: plots.ranges_plot(
        {f"layer {i}": ranges(40) for i in range(9)}, style, formats=("fp16", "e5m2"), below="Gradients."
    ),
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
    assert marks["^"] == [(2, 4.0), (5, 4.0), (10, 3.0)]
    assert "torch: 3 overflows, 2 probing and 1 falling" in alt
    legend = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert legend == ["probing overflow", "falling overflow", "growth", "skipped"]


def test_the_end_of_a_scale_is_named():
    _, figure, _ = plots.scale_plot({"torch": COLLAPSE})
    assert "0 at step 160" in [t.get_text() for t in figure.axes[1].texts]


def test_clipped_steps():
    _, figure, alt = plots.amax_plot(amaxes())
    assert drawn(figure.axes[1], "above the limit: clipped") == [(20, np.log2(900.0))] and "in 1 of 50 steps" in alt
    assert {float(y) for _, y in drawn(figure.axes[1], "limit: E4M3's 448 / scale")} == {3.0}
    _, _, alt = plots.amax_plot(amaxes(amax=np.full(50, 8.0)))  # exactly the limit: fits
    assert "in 0 of 50 steps" in alt


def test_lines_of_formats():
    _, figure, _ = plots.ranges_plot({"a": ranges(3)}, formats=("fp16", "e4m3"))
    across = [float(line.get_ydata()[0]) for line in figure.axes[1].get_lines() if len(line.get_xdata()) == 2]
    assert across == [np.log2(65504), -24.0, np.log2(448), -9.0]
    legend = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert legend == ["5 to 95 %", "median", "amax", "FP16: largest, least", "E4M3: largest, least"]


def test_findings_are_what_was_given():
    _, figure, alt = plots.scale_plot({"a": PROBING}, stem="s", finding="It probes", below="Below.")
    assert figure.get_suptitle() == "It probes" and alt.startswith("It probes. ")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plots.scale_plot({}), "one at least"),
        (lambda: plots.scale_plot({"a": ranges(3)}), "has no series 'scale'"),
        (lambda: plots.scale_plot({"a": scaler([])}), "has no steps"),
        (lambda: plots.scale_plot({"a": PROBING}, "poster"), "style='poster'"),
        (lambda: plots.amax_plot(PROBING), "has no series 'amax'"),
        (lambda: plots.amax_plot(amaxes(), format="fp17"), "unknown format"),
        (lambda: plots.ranges_plot({"a": PROBING}), "has no series 'p5'"),
        (lambda: plots.ranges_plot({"a": ranges(3)}, formats=["fp17"]), "unknown format"),
        (lambda: plots.ranges_plot({"a": ranges(3)}, formats=["fp16"] * 5), "at most 4"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
