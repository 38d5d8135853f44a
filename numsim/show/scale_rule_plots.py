"""Pictures of block scales: what each MX rule does to the largest number, and where the numbers of NF4 lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numsim.experiments.experiment import Result, listed
from numsim.experiments.mx_scale import together
from numsim.experiments.nf4 import BITS, DOUBLE, ranked
from numsim.show.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILLION,
    Look,
    Picture,
    check_style,
    headline,
    ink,
    new_picture,
    settings,
    ticks,
    type_size,
)

Drawn = list[tuple[str, Picture, str]]
_RULE_LOOKS = (Look(VERMILLION, "-", "o"), Look(BLUE, "--", "s"), Look(GREEN, "-.", "^"), Look(PURPLE, ":", "D"))
_CODE_LOOKS = {
    "NF4": Look(BLUE, "-", "o"),
    DOUBLE: Look(SKY, "--", "D"),
    "E2M1": Look(VERMILLION, "-.", "s"),
    "INT4": Look(GREEN, ":", "^"),
}
_OTHERS = ((PURPLE, "P"), (ORANGE, "X"))


# --- mx-scale ---------------------------------------------------------------------------------------------------------
def mx_scale(result: Result, style: str = "page") -> Drawn:
    """The largest number across a binade under each rule; errors of whole blocks above those of the best rule."""
    with settings(check_style(style)):
        drawn = [_binade(result, style)] if result.series["curves"] else []
        return drawn + ([_above_the_best(result, style)] if result.series["errors"] else [])


def _minus(text: str) -> str:
    return text.replace("-", "\u2212")


def _upper(rules: Sequence[str]) -> str:
    return ", ".join(map(str.upper, rules))


def _binade(result: Result, style: str) -> tuple[str, Picture, str]:
    curves, s = result.series["curves"], np.array(result.series["significands"])
    titles = list(dict.fromkeys([next(iter(curves)), list(curves)[-1]]))  # the widest and the narrowest, by default
    rules = [r for r in curves[titles[0]] if all(r in curves[t] for t in titles)]
    groups = together({r: [curves[t][r] for t in titles] for r in rules})
    figure = new_picture(style, 0.2 + 0.19 * len(groups))
    grid = figure.subplots(len(groups), len(titles), sharex=True, sharey="col", squeeze=False)
    for column, title in enumerate(titles):
        for row, group in enumerate(groups):
            axes, curve = grid[row][column], curves[title][group[0]]
            errors, up, above = 100 * np.array(curve["errors"]), np.array(curve["up"]), np.array(curve["above"])
            axes.axhline(0, color=PALE, linewidth=1, zorder=0)
            for here, color, line, wide in (
                ((up == 0) & ~above, BLUE, "-", 0.19),
                ((up > 0) & ~above, ORANGE, (0, (3, 1)), 0.19),
                (above, VERMILLION, "-", 0.4),
            ):
                axes.plot(s, np.where(here, errors, np.nan), color=color, linestyle=line,
                          linewidth=wide * type_size(style))  # fmt: skip
            if above.any():
                said, color = _minus(f"thick: cut off, {errors[above].min():.3g} %"), VERMILLION
            else:
                said, color = ("dashed: twice FLOOR's scale", ORANGE) if (up > 0).any() else ("", BLUE)
            axes.text(0.99, 0.99, said, transform=axes.transAxes, ha="right", va="top", color=ink(color))
            if column == 0:
                axes.set_ylabel("\n".join(map(str.upper, group)), rotation=0, ha="right", va="center",
                                fontweight="bold")  # fmt: skip
            if row == 0:
                axes.set_title(title, fontweight="normal")
            axes.set_xlim(1, 2)
        bound = max(abs(100 * e) for r in rules for e in curves[title][r]["errors"])
        grid[0][column].set_ylim(-1.1 * bound, 1.4 * bound)  # room for words
        step = next(x for x in (1, 2, 5, 10, 20, 50, 100) if bound / x < 2)
        places = [i * step for i in range(-int(bound / step), int(bound / step) + 1)]
        ticks(grid[0][column].yaxis, places, [_minus(f"{p:+d} %") if p else "0" for p in places])
        ticks(grid[-1][column].xaxis, [1, 1.25, 1.5, 1.75, 2], ["1", "1.25", "1.5", "1.75", "2"])
        grid[-1][column].set_xlabel("amax / 2$^{E}$")
    floor = {t: -100 * min(curves[t]["floor"]["errors"]) for t in titles if "floor" in curves[t]}
    never = _upper([r for r in rules if not any(any(curves[t][r]["above"]) for t in titles)])
    finding = "The largest number of a block under each scale rule"
    if floor:
        lost = listed([f"{x:.3g} % in {t}" for t, x in floor.items()])
        finding = f"FLOOR takes up to {lost} off the largest number of a block"
        finding += f"; {never} keep it within the elements" if never else ""
    below = (
        "Error of the largest number of a block across one binade; cut off: above the largest element. The saw is "
        "the rounding of the element, the same under either scale: twice the scale costs the largest number nothing."
    )
    headline(figure, finding, below)
    return "mx-scale", figure, f"{finding}. Line charts of the error of amax over a binade, a row for each rule."


def _above_the_best(result: Result, style: str) -> tuple[str, Picture, str]:
    errors, data = result.series["errors"], result.series["data"]
    errors = dict(list(errors.items())[: 3 if style == "slide" else None])  # more rows would be too narrow
    rules = [r for r in next(iter(errors.values())) if all(r in by for by in errors.values())]
    groups = together({r: [by[r] for by in errors.values()] for r in rules})
    figure = new_picture(style, 0.22 + 0.045 * len(errors) * (len(data) + 1))
    axes = figure.subplots()
    y, places, labels, most = 0.0, [], [], 0.0
    for title, by in errors.items():
        axes.text(-0.01, y, title, transform=axes.get_yaxis_transform(), ha="right", va="center", fontweight="bold")
        for i, kind in enumerate(data):
            y += 1
            least = min(by[r][i] for r in rules)
            above = {g[0]: 100 * (by[g[0]][i] / least - 1) for g in groups}
            most = max(most, *above.values())
            axes.axhline(y, color=PALE, linewidth=0.8, zorder=0)
            for shape, x in zip(_RULE_LOOKS, above.values(), strict=False):
                axes.plot(x, y, color=shape.color, marker=shape.marker, linestyle="none", clip_on=False, zorder=3,
                          markerfacecolor="none", markeredgewidth=type_size(style) * 0.16)  # fmt: skip
            axes.text(1.01, y, f"{100 * least:.3g} %", transform=axes.get_yaxis_transform(), va="center", color=GREY)
            places.append(y)
            labels.append(kind)
        y += 1
    axes.text(1.01, 0, "least", transform=axes.get_yaxis_transform(), va="center", color=GREY)
    for shape, g in zip(_RULE_LOOKS, groups, strict=False):
        axes.plot([], [], color=shape.color, marker=shape.marker, linestyle="none", label=_upper(g),
                  markerfacecolor="none", markeredgewidth=type_size(style) * 0.16)  # fmt: skip
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=len(groups), frameon=False)
    axes.set_ylim(y - 0.4, -0.6)
    axes.set_xlim(-0.02 * most, 1.03 * most)
    ticks(axes.yaxis, places, labels)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    step = next((x for x in (1, 2, 5, 10, 20, 50) if most / x < 6), 100)
    ticks(axes.xaxis, marks := range(0, int(most) + 1, step), [f"+{m} %" if m else "best" for m in marks])
    axes.set_xlabel("RMS error above that of the best rule")
    won: dict[str, tuple[str, ...]] = {}
    for title, by in errors.items():
        total = {r: max(by[r][i] / min(by[q][i] for q in rules) for i in range(len(data))) for r in rules}
        won[title] = tuple(r for r in rules if total[r] < 1.001 * min(total.values()))
    finding = "The scale rule with the least error: " + "; ".join(
        f"{_upper(rules)} in {listed(list(same))}" for rules, same in _by_value(won).items()
    )
    below = (
        f"RMS error of all numbers. Normal: {result.series['blocks']} blocks of 32, standard deviations from 1 to 2; "
        "the others are matrices of a small network in training (step 2000). At the right: the least of the errors."
    )
    headline(figure, finding, below)
    return "mx-scale-errors", figure, f"{finding}. A dot chart of errors above the best rule, by element and numbers."


def _by_value(won: dict[str, tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    return {rules: [title for title, r in won.items() if r == rules] for rules in won.values()}


# --- nf4 --------------------------------------------------------------------------------------------------------------
def nf4(result: Result, style: str = "page") -> Drawn:
    """The numbers of each code under the weights; error against bits a weight."""
    with settings(check_style(style)):
        if not result.series["levels"]:
            return []
        return [_levels(result, style), _bits(result, style)]


def _levels(result: Result, style: str) -> tuple[str, Picture, str]:
    series, edges = result.series, np.array(result.series["edges"])
    figure = new_picture(style, 0.56)
    figure.set_layout_engine("constrained", w_pad=0.1)
    panels = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=[2, 1.3])
    names = {"normal": "normal weights", "untrained": "untrained weights of a layer"}
    for (top, low), (kind, density) in zip(panels.T, series["density"].items(), strict=True):
        top.stairs(density, edges, fill=True, color=PALE)
        top.set_title(names[kind], fontweight="normal")
        top.spines["left"].set_visible(False)
        errors = series["errors"][kind]
        for y, (name, levels) in enumerate(series["levels"].items()):
            shape = _CODE_LOOKS[name]
            low.plot(levels, [y] * len(levels), color=shape.color, marker=shape.marker, linestyle="-",
                     markersize=0.5 * type_size(style), linewidth=0.8)  # fmt: skip
            best = errors[name] == min(errors.values())
            low.text(1.12, y, f"{100 * errors[name]:.3g} %", va="center", color=ink(shape.color),
                     fontweight="bold" if best else "normal")  # fmt: skip
        low.set_xlim(-1.06, 1.06)
        low.set_ylim(len(series["levels"]) - 0.5, -0.5)
        low.spines["left"].set_visible(False)
        low.tick_params(axis="y", length=0)
        low.set_xlabel("weight / absmax of its block")
        ticks(low.xaxis, [-1, -0.5, 0, 0.5, 1], ["\u22121", "\u22120.5", "0", "0.5", "1"])
    ticks(panels[0][0].yaxis, [], [])
    panels[0][0].set_ylim(0, None)
    ticks(panels[1][0].yaxis, range(len(series["levels"])), list(series["levels"]))
    for label, name in zip(panels[1][0].get_yticklabels(), series["levels"], strict=True):
        label.set_color(ink(_CODE_LOOKS[name].color))
    panels[1][1].tick_params(axis="y", labelleft=False)
    best = {kind: min(series["errors"][kind], key=series["errors"][kind].__getitem__) for kind in names}
    finding = f"On normal weights {best['normal']} has the least error, on untrained ones {best['untrained']}"
    if best["normal"] == best["untrained"]:
        finding = f"{best['normal']} has the least error on normal and on untrained weights"
    below = (
        f"Grey: how weights lie between the largest ones of their block of {series['block']} (these are left out). "
        "Below: the numbers of each code. Right: RMS error relative to the weights."
    )
    headline(figure, finding, below)
    told = "; ".join(f"{names[kind]}: {ranked(series['errors'][kind])}" for kind in names)
    return "nf4", figure, f"{finding}. Densities over number lines; errors of {told}."


def _bits(result: Result, style: str) -> tuple[str, Picture, str]:
    series = result.series
    figure = new_picture(style, 0.6)
    figure.set_layout_engine("constrained", w_pad=0.1)
    panels = figure.subplots(1, len(series["swept"]), sharex=True, sharey=True)
    for axes, (kind, found) in zip(panels, series["swept"].items(), strict=True):
        for name, points in found.items():
            shape = _CODE_LOOKS[name]
            bits, _, errors = np.array(points).T  # bits over 4 are those of the scales
            axes.plot(bits - 4, 100 * errors, color=shape.color, linestyle=shape.linestyle, marker=shape.marker,
                      label=name, markersize=0.5 * type_size(style))  # fmt: skip
        for (color, marker), (name, _, bits, e) in zip(_OTHERS, _marks(series["used"][kind]), strict=False):
            axes.plot(bits - 4, 100 * e, color=color, marker=marker, linestyle="none", label=name,
                      markersize=1.1 * type_size(style), markeredgecolor=BLACK, zorder=4)  # fmt: skip
        axes.set_title(f"{kind} weights", fontweight="normal")
        axes.set_xlabel("bits a weight: 4 + those for scales (log)")
        axes.set_xscale("log", base=2)
        places = [2.0**k for k in range(-8, 2)]
        ticks(axes.xaxis, places[1::2], [f"{4 + p:.4g}" for p in places[1::2]])
    panels[0].set_ylabel("RMS error relative to the weights")
    low, high = panels[0].get_ylim()
    places = [p for p in range(0, 101, 5) if low <= p <= high]
    ticks(panels[0].yaxis, places, [f"{p} %" for p in places])
    panels[-1].legend(frameon=False, loc="upper right")
    points = {
        name: [e for bits, _, e in found if bits < BITS + 0.05] for name, found in series["swept"]["normal"].items()
    }
    least = {name: min(errors) for name, errors in points.items() if errors}
    best = min(least, key=least.__getitem__)
    finding = f"At {BITS:g} bits a weight normal weights come back best in {best} ({100 * least[best]:.3g} %)"
    below = (
        "Lines: blocks from 16 (right) to 4096 (left) weights with a scale each, in FP32, or for double quantisation "
        "in 8 bits. Large marks: MXFP4 with blocks of 32, NVFP4 with blocks of 16."
    )
    headline(figure, finding, below)
    return "nf4-bits", figure, f"{finding}. Line charts of error against bits, for normal and trained weights."


def _marks(used: list[list[Any]]) -> list[list[Any]]:
    """Formats that have one block size only."""
    return [row for row in used if row[0] not in _CODE_LOOKS]
