"""Pictures of sums in blocks, of TF32, and of what changes a product's bits; see ``plots`` for how they are made."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from numsim.experiments.blocks import IN_ORDER, ONES, Steps, falling, saved
from numsim.experiments.experiment import Result
from numsim.show.style import (
    BLACK,
    BLUE,
    GREY,
    VERMILLION,
    Picture,
    check_style,
    headline,
    new_picture,
    power,
    settings,
    ticks,
    type_size,
    width,
)

Drawn = list[tuple[str, Picture, str]]


# --- blocks -----------------------------------------------------------------------------------------------------------
def blocks(result: Result, style: str = "page") -> Drawn:
    """How many of sixteen ones arrive in a large sum; a sum that falls though a term grows."""
    with settings(check_style(style)):
        drawn = [_arrive(result, style)] if result.series["arrived"] else []
        return drawn + ([_falls(result, style)] if result.series["steps"] else [])


def _arrive(result: Result, style: str) -> tuple[str, Picture, str]:
    starts, arrived = result.series["starts"], result.series["arrived"]
    size = type_size(style)
    figure = new_picture(style, (len(arrived) * 1.75 * size + 11 * size) / 72 / width(style))
    axes = figure.subplots()
    for y, row in enumerate(arrived.values()):
        for x, n in enumerate(row):
            whole = n == ONES
            axes.add_patch(
                Rectangle(
                    (x - 0.5, y - 0.5), 1, 1, facecolor=BLUE if whole else "white", linewidth=1.5,
                    edgecolor="white" if whole else "#D0D0D0", zorder=2 if whole else 1,
                )
            )  # fmt: skip
            axes.text(x, y, str(n), ha="center", va="center", color="white" if whole else GREY, zorder=3)
    axes.axhline(len(arrived) - 1.5, color=BLACK, linewidth=1, zorder=4)
    axes.set_xlim(-0.5, len(starts) - 0.5)
    axes.set_ylim(len(arrived) - 0.5, -0.5)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(f"the sum before {ONES} ones are added to it", loc="left")
    ticks(axes.xaxis, range(len(starts)), [power(e) for e in starts])
    ticks(axes.yaxis, range(len(arrived)), list(arrived))
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    finding = saved(arrived)
    below = f"How many of the {ONES} ones (FP16 products 1 x 1) are in the FP32 result. Last row: rounded once."
    headline(figure, finding, below)
    across = f"the sum from 2^{starts[0]} to 2^{starts[-1]} across"
    return "blocks", figure, f"{finding}. A table of how many ones arrive: who adds down, {across}."


def _falls(result: Result, style: str) -> tuple[str, Picture, str]:
    steps = {name: Steps(**s) for name, s in result.series["steps"].items()}
    figure = new_picture(style, 0.56)
    grid = figure.subplots(1, len(steps), squeeze=False)[0]
    for axes, (name, s) in zip(grid, steps.items(), strict=True):
        _panel(axes, name, s)
    grid[-1].legend(frameon=False, loc=(0.02, 0.2) if len(grid) > 1 else "upper left")
    name, s = max(steps.items(), key=lambda item: item[1].result[item[1].c.index(0.0) - 1])
    finding = falling(s, name)
    below = (
        "c + a full block of equal products. Both axes: distance from 1, in units of the last bit that the result "
        "keeps. Dashed: the exact sum. As c reaches 1, the cut moves up one bit and the products fall below it."
    )
    headline(figure, finding, below)
    kept = {IN_ORDER} if any(s.in_order for s in steps.values()) else set()
    more = f" {', '.join(kept)} never falls." if kept else ""
    return "blocks-not-monotonic", figure, f"{finding}. Step charts of the sum as c grows past 1.{more}"


def _panel(axes: Axes, name: str, s: Steps) -> None:
    gain = s.products * 2.0 ** (s.last - s.size)
    ends = [s.c[0], s.c[-1]]
    axes.plot(ends, [c + gain for c in ends], color=GREY, linestyle="--", label="exact", zorder=1)
    if s.in_order:
        axes.plot(
            s.c, s.in_order, color=VERMILLION, linestyle="none", marker="D", markerfacecolor="none", label=IN_ORDER,
            zorder=3,
        )  # fmt: skip
    axes.plot(s.c, s.result, color=BLUE, linestyle="none", marker="o", markersize=4, label="one block", zorder=4)
    at = s.c.index(0.0)
    axes.annotate(
        "", (0, s.result[at]), (0, s.result[at - 1]),
        arrowprops={"arrowstyle": "-|>", "color": BLACK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 4},
    )  # fmt: skip
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"{name}: {s.products} products {power(-s.size)}", fontweight="normal")
    axes.set_xlabel(f"(c - 1) / {power(-s.last)}")
    axes.set_ylabel(f"(sum - 1) / {power(-s.last)}")
