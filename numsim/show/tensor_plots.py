"""Pictures of tensor cores: errors of long sums, small terms that survive, chips that agree.

As in ``plots``: each function takes an experiment's result and a style, and returns (file stem, figure, alt text).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from numsim.experiments.accumulator import KINDS, PROMOTED, SHORTEST
from numsim.experiments.chips import ROUNDED
from numsim.experiments.experiment import Result, listed, percent
from numsim.experiments.units import IN_ORDER, title, too_small
from numsim.show.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    SUPERSCRIPT,
    VERMILLION,
    Look,
    Picture,
    blue_cells,
    check_style,
    end_labels,
    headline,
    look,
    new_picture,
    power,
    settings,
    ticks,
    type_size,
    width,
)
from numsim.tensorcore.names import CHIPS

Drawn = list[tuple[str, Picture, str]]
Way = dict[str, Any]  # of the accumulator's series
_TITLES = [title(chip) for chip in CHIPS]
_LOOKS = {
    "V100": Look(PURPLE, "-", "v"),
    "A100": Look(ORANGE, "-", "s"),
    "L40S": Look(GREEN, "-", "^"),
    "H100": Look(VERMILLION, "-", "o"),
    "B200": Look(BLUE, "-", "D"),
    "MI300X": Look(SKY, "-", "X"),
    IN_ORDER: Look(BLACK, "-", "P"),
}


# --- accumulator ------------------------------------------------------------------------------------------------------
def accumulator(result: Result, style: str = "page") -> Drawn:
    """Error against length, for normal numbers; the drift, for positive ones."""
    with settings(check_style(style)):
        if not _formats(result.series["errors"]["normal"]):
            return []
        return [_normal(result, style), _drift(result, style)]


def _shown(result: Result, kind: str) -> tuple[list[Way], list[Way]]:
    """The lines of a picture: all chains as they are, and for each format the worst for normal numbers promoted.

    Also the worst chain of the first format that a chip has, and the same promoted if that was answered.
    """
    shown: list[Way] = []
    told: list[Way] = []
    for f in _formats(result.series["errors"][kind]):
        plain, promoted, judged = (
            [w for w in result.series["errors"][k] if w["format"] == f and w["promoted"] == p]
            for k, p in ((kind, False), (kind, True), ("normal", False))
        )
        shown += plain
        if chains := [w for w in judged if w["chips"] != [IN_ORDER]]:
            worst = max(chains, key=lambda w: w["median"][-1])["chips"][0]
            cured = [{**w, "chips": [worst]} for w in promoted if worst in w["chips"]]
            shown += cured
            told = told or [w for w in plain if worst in w["chips"]] + cured
    return shown, told


def _name(way: Way) -> str:
    return f"{', '.join(way['chips'])}{' promoted' if way['promoted'] else ''}"


def _normal(result: Result, style: str) -> tuple[str, Picture, str]:
    ways, (chain, *promoted) = _shown(result, "normal")
    finding = (
        f"Half of the dot products of {result.series['lengths'][-1]} {chain['format']} numbers are off by more than "
        f"{_error(chain['median'][-1])} on {chain['chips'][0]}"
    ) + "".join(f", {_error(w['median'][-1])} if promoted" for w in promoted)
    figure = new_picture(style, 0.6)
    _lines(figure, result, ways, "median", "median of |error / sum|")
    headline(
        figure, finding,
        f"{KINDS['normal'].capitalize()}, {result.series['outputs']} dot products for each point, against the exact "
        f"sum. Promoted: the chain begins again from zero every {PROMOTED} terms; the pieces are added in FP32.",
    )  # fmt: skip
    alt = f"{finding}. Line charts of the median error against length; at the end {_ends(ways, 'median')}."
    return "accumulator", figure, alt


def _drift(result: Result, style: str) -> tuple[str, Picture, str]:
    ways, (chain, *promoted) = _shown(result, "positive")
    finding = (
        f"Sums of {result.series['lengths'][-1]} positive {chain['format']} products are on average "
        f"{too_small(chain['mean'][-1])} on {chain['chips'][0]}"
    ) + "".join(f"; promoted, {too_small(w['mean'][-1])}" for w in promoted)
    figure = new_picture(style, 0.6)
    _lines(figure, result, ways, "mean", "|mean of error / sum|")
    headline(
        figure, finding,
        f"{KINDS['positive'].capitalize()}, {result.series['outputs']} dot products for each point. Full marks: too "
        f"small; open marks: too large. Promoted: from zero every {PROMOTED} terms, the pieces added in FP32.",
    )  # fmt: skip
    alt = f"{finding}. Line charts of the mean error against length; at the end {_ends(ways, 'mean')}."
    return "accumulator-drift", figure, alt


def _formats(ways: Sequence[Way]) -> list[str]:
    """Those that a chip has; no more than two, for more panels would be too narrow."""
    return list(dict.fromkeys(w["format"] for w in ways if w["chips"] != [IN_ORDER]))[:2]


def _error(x: float) -> str:
    """A relative error, in percent where that is short."""
    return percent(x) if x == 0 or x >= 1e-4 else f"{x:.1e} of the sum"


def _ends(ways: Sequence[Way], measure: str) -> str:
    last = [(w, w[measure][-1]) for w in ways]
    return "; ".join(f"{w['format']} {_name(w)} {f'{x:.1e}' if x else 'exact'}" for w, x in last)


def _lines(figure: Picture, result: Result, ways: Sequence[Way], measure: str, label: str) -> None:
    """A panel for each format; sizes on a log scale, with a place for zero below; open marks for means above zero."""
    lengths, formats = result.series["lengths"], _formats(ways)
    sizes = [abs(x) for w in ways for x in w[measure] if x]
    low, high = (math.floor(math.log10(min(sizes))), math.ceil(math.log10(max(sizes)))) if sizes else (-8, 0)
    zero = 10.0 ** (low - 0.6)
    powers = range(low, high + 1)
    panels = figure.subplots(1, len(formats), sharey=True, squeeze=False)[0]
    for axes, f in zip(panels, formats, strict=True):
        labels = []
        for w in (w for w in ways if w["format"] == f):
            shape = _LOOKS.get(w["chips"][0]) or look(w["chips"][0], tuple(x["chips"][0] for x in ways))
            start = lengths.index(PROMOTED) if w["promoted"] else 0  # before, it is the chain itself
            heights = [abs(x) or zero for x in w[measure]]
            axes.plot(lengths[start:], heights[start:], color=shape.color, linestyle="--" if w["promoted"] else "-")
            for x, y, value in [*zip(lengths, heights, w[measure], strict=True)][start:]:
                face = "white" if measure == "mean" and value > 0 else shape.color
                axes.plot(x, y, color=shape.color, marker=shape.marker, markerfacecolor=face, clip_on=False, zorder=5)
            labels.append((heights[-1], _name(w), shape.color))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlim(SHORTEST, lengths[-1])
        axes.set_ylim(zero * 0.5, 10.0**high)
        ticks(axes.xaxis, lengths[::2], [str(n) for n in lengths[::2]])
        ticks(axes.yaxis, [zero, *(10.0**p for p in powers)], ["exact", *(_power_of_ten(p) for p in powers)])
        axes.axhline(10.0 ** (low - 0.3), color=GREY, linewidth=0.8, linestyle=":")
        axes.set_title(f"{f} products", fontweight="normal")
        axes.set_xlabel("K, terms of a dot product")
        end_labels(axes, labels, gap=0.075)
    panels[0].set_ylabel(label)


def _power_of_ten(exponent: int) -> str:
    return f"10{str(exponent).translate(SUPERSCRIPT)}"


# --- kept bits --------------------------------------------------------------------------------------------------------
def kept_bits(result: Result, style: str = "page") -> Drawn:
    """How many of the small terms survive, by chip and size: the 1 as c, and as a product."""
    with settings(check_style(style)):
        return [_survivors(result, style)] if len(result.series["rows"]) > 1 else []


def _survivors(result: Result, style: str) -> tuple[str, Picture, str]:
    rows, terms, powers = (result.series[key] for key in ("rows", "terms", "powers"))
    size = type_size(style)
    figure = new_picture(style, (len(rows) * 1.9 * size / 72 + 11 * size / 72) / width(style))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, place, head in zip(panels, (1, 2), ("the 1 is c", "the 1 is the first product *"), strict=True):
        cells = [[(x / terms if isinstance(x, (int, float)) else 0.0, f"{x:g}") for x in row[place]] for row in rows]
        blue_cells(axes, cells)
        ticks(axes.xaxis, range(len(powers)), [power(-p) for p in powers])
        axes.set_title(head, fontweight="normal", pad=size * 0.5)
        axes.set_xlabel("size of each term")
    ticks(panels[0].yaxis, range(len(rows)), [row[0] for row in rows])
    groups: dict[str, list[str]] = {}
    for name, counts, _ in rows:
        if name != IN_ORDER:
            seen = [power(-p) for p, x in zip(powers, counts, strict=True) if x]
            groups.setdefault(seen[-1] if seen else "nothing shown", []).append(name)
    counting = "; at ".join(f"{p} on {listed(names)}" for p, names in groups.items())
    finding = f"{terms} equal FP16 products added to c = 1 still count at {counting}"
    headline(
        figure, finding,
        f"How many of the {terms} terms the FP32 result holds. *: c is 0, and the last terms may fall into the next "
        "block; for FP32 in order the 1 is added last.",
    )  # fmt: skip
    alt = f"{finding}. Two tables of numbers from 0 to {terms}: chips down, sizes of the terms across."
    return "kept-bits", figure, alt


# --- chips ------------------------------------------------------------------------------------------------------------
def chips(result: Result, style: str = "page") -> Drawn:
    """For each format, in how many outputs two groups of chips differ."""
    with settings(check_style(style)):
        answered = {f: d for f, d in result.series.items() if any(g[0] in _TITLES for g in d["groups"])}
        return [_pairs(f, data, style, i) for i, (f, data) in enumerate(answered.items())]


def _pairs(format: str, data: dict[str, Any], style: str, number: int) -> tuple[str, Picture, str]:
    size = type_size(style)
    whole = [[name.replace(" ", "\u00a0") if name in _TITLES else name for name in g] for g in data["groups"]]
    names = ["\n".join(textwrap.wrap(", ".join(g), 24)) for g in whole]
    figure = new_picture(style, (len(names) * 3.0 * size / 72 + 13 * size / 72) / width(style))
    axes = figure.subplots()
    shares = [[n / data["outputs"] for n in row] for row in data["differ"]]
    cells = [[(0.6 * x, "same" if i == j else percent(x)) for j, x in enumerate(row)] for i, row in enumerate(shares)]
    blue_cells(axes, cells)
    ticks(axes.yaxis, range(len(names)), names)
    axes.xaxis.tick_top()
    ticks(axes.xaxis, range(len(names)), ["\n".join(textwrap.wrap(g[0], 8)) for g in whole])
    chips = [i for i, g in enumerate(data["groups"]) if g[0] in _TITLES]
    pairs = [(shares[i][j], i, j) for i in chips for j in chips if i < j]
    if pairs:
        (least, a, b), (most, c, d) = min(pairs), max(pairs)
        first = [g[0] for g in data["groups"]]
        finding = (
            f"The same {format} matrices: {first[c]} and {first[d]} differ in {percent(most)} of the results, "
            f"{first[a]} and {first[b]} in {percent(least)}; chips of one row agree to the bit"
        )
    elif len(data["groups"][chips[0]]) == 1:
        others = [j for j in range(len(names)) if j != chips[0]]  # the exact sums come last
        called = {ROUNDED: "the exact sums rounded once"}
        first = [called.get(g[0], g[0]) for g in data["groups"]]
        told = [f"{first[j]} in {percent(shares[chips[0]][j])}" for j in others]
        finding = f"{format} matrices: {first[chips[0]]} differs from {', from '.join(told)} of the results"
    else:
        finding = f"The same {format} matrices: all chips asked give the same bits"
    headline(
        figure, finding,
        f"Share of {data['outputs']} FP32 results, each a sum of {data['k']} products of normal numbers, whose bits "
        "differ.",
    )  # fmt: skip
    alt = f"{finding}. A table of percentages: groups of chips down and, named by the first of each, across."
    return "chips" if number == 0 else f"chips-{format.lower()}", figure, alt
