"""Swamping on tensor cores: what a block of products saves and loses against additions one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from numsim.codes import Codes, decode, exact
from numsim.experiments.experiment import Experiment, Result, Session, Table, cell, check_whole, listed
from numsim.experiments.units import IN_ORDER, ONE, Floats, ask_unit, check_chips, find_unit, headline, operands, title
from numsim.formats import E4M3, FP16, FP32
from numsim.machines.question import ask
from numsim.rounding import encode
from numsim.tensorcore.models import Model

_EXAMPLE = 'numsim.experiments.run("blocks", chips=["a100", "h100"])'
ONCE = "exact sum"
ONES = 16
STARTS = range(22, 30)  # powers of two that the ones are added to
ORDERS = ("pair first", "pair last", "pair around", "block before", "block after")
_LARGE, _FEW = 2.0**15, 14  # 2^30 - 2^30 and as many ones
_STALL = 1 << 16  # ones: more than any FP16 sum of them reaches


def run(
    session: Session,
    *,
    chips: Sequence[str] = ("v100", "a100", "l40s", "h100", "b200", "mi100", "mi250x", "mi300x"),
    terms: int = 4096,
) -> Result:
    """The same products added one after another in FP32, and by the units of several chips.

    Parameters: ``chips`` to compare; ``terms``, how many tenths are added.
    """
    chosen = check_chips(chips, _EXAMPLE)
    terms = check_whole("terms", terms, 64, 100_000, _EXAMPLE)
    units = {title(chip): m for chip in chosen if (m := find_unit(chip, FP16))}
    halves = {title(chip): m for chip in chosen if (m := find_unit(chip, FP16, "f16"))}
    small = {title(chip): m for chip in chosen if (m := find_unit(chip, E4M3))}

    arrived = _arrived(session, units)
    cancelled = _cancelled(session, units)
    falls = [f for m in (*units.values(), *small.values()) if (f := _fewest(session, m))]
    steps = {
        f"{m.formats[0].title} on {title(m.chip)}": s
        for m in (_longest(units.values(), falls), _longest(small.values(), falls))
        if m and (s := _around_one(session, m))
    }
    tenths = _tenths(session, units, terms)
    sums = _half_sums(session, halves, terms)
    tables = [
        Table(
            f"Of {ONES} ones (products 1 x 1), so many arrive when the accumulator holds ...",
            ("adds", "block", "bits F", *(f"2^{e}" for e in STARTS)),
            tuple((who, *_about(units.get(who)), *row) for who, row in arrived.items()),
        ),
        Table(
            f"2^30 - 2^30 and {_FEW} ones: 32 products in other orders, blocks of up to 16",
            ("adds", *ORDERS),
            tuple((who, *row) for who, row in cancelled.items()),
        ),
        Table(
            "c grows from 1 - 2^-24 to 1 and the result falls: the fewest products for it",
            ("chip", "operands", "products", "result before", "after"),
            tuple((f.chip, f.operands, f"{f.products} of 2^-{f.size}", f.before, f.after) for f in falls),
        ),
        Table(
            f"0.1 x 0.1 (FP16), {terms} times, FP32 result; and FP16 results",
            ("adds", "FP32 result", "off by ulps", "0.1 x 1, FP16", "ones stall at"),
            tuple(
                (who, *tenths.get(who, (None, None)), *sums.get(who, (None, None)))
                for who in dict.fromkeys([*tenths, *sums])
            ),
        ),
    ]
    return Result(
        experiment="blocks",
        parameters={"chips": chosen, "terms": terms},
        answer=_answer(arrived),
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(units, arrived, cancelled, falls, steps, tenths, sums, terms)),
        series={
            "starts": list(STARTS),
            "arrived": {who: list(row) for who, row in arrived.items()},
            "cancelled": {who: list(row) for who, row in cancelled.items()},
            "falls": [list(f) for f in falls],
            "steps": {name: s._asdict() for name, s in steps.items()},
            "tenths": {who: list(row) for who, row in tenths.items()},
            "sums": {who: list(row) for who, row in sums.items()},
        },
    )


# --- questions --------------------------------------------------------------------------------------------------------
def _in_order(session: Session, a: Any, b: Any) -> Floats | None:
    """Products of FP16 numbers, which FP32 holds exactly, added one after another in FP32."""
    codes = [np.asarray(encode(x, FP16)) for x in np.broadcast_arrays(a, b)]
    answer = session.ask(ask("dot", [FP16, FP16], FP32, codes, product="exact"))
    return None if answer is None else decode(answer, FP32)


def _by_unit(session: Session, model: Model, a: Any, b: Any, c: Codes | None = None) -> Floats | None:
    """Numbers multiplied and added by a unit; K is filled up with zeros."""
    left, right = (_padded(operands(x, model.formats[0]), model.k) for x in np.broadcast_arrays(a, b))
    answer = ask_unit(session, model, left, right, c)
    return None if answer is None else decode(answer, model.formats[3])


def _padded(codes: Codes, k: int) -> Codes:
    more = -codes.shape[-1] % k
    return np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, more)])


# --- what a block saves -----------------------------------------------------------------------------------------------
def _arrived(session: Session, units: Mapping[str, Model]) -> dict[str, list[int]]:
    """What of sixteen ones is in the sum with 2^e, for each e."""
    starts = 2.0 ** np.array(STARTS)
    a, b = np.ones((len(starts), 1 + ONES)), np.ones((len(starts), 1 + ONES))
    a[:, 0], b[:, 0] = ([2.0 ** ((e + odd) // 2) for e in STARTS] for odd in (0, 1))
    once = decode(encode([Fraction(2**e + ONES) for e in STARTS], FP32), FP32)
    found = {IN_ORDER: _in_order(session, a, b)}
    c = np.asarray(encode(starts, FP32))
    found |= {who: _by_unit(session, m, a[:, 1:], b[:, 1:], c) for who, m in units.items()}
    rows = {who: (x - starts).astype(int).tolist() for who, x in found.items() if x is not None}
    return rows | {ONCE: (once - starts).astype(int).tolist()} if rows else {}


# --- what it loses ----------------------------------------------------------------------------------------------------
def _cancelled(session: Session, units: Mapping[str, Model]) -> dict[str, list[int]]:
    """Two large products that cancel, and ones: in each order of ``ORDERS``."""
    ones, gap = [1.0] * _FEW, [0.0] * 16
    few = gap[: 16 - _FEW]
    rows = []
    for first, second in ((_LARGE, _LARGE), (_LARGE, -_LARGE)):
        pair = [first, second]
        rows.append([
            [*pair, *ones, *gap], [*ones, *pair, *gap], [first, *ones, second, *gap],
            [*pair, *gap[2:], *ones, *few], [*ones, *few, *pair, *gap[2:]],
        ])  # fmt: skip
    a, b = np.array(rows)
    found = {IN_ORDER: _in_order(session, a, b)}
    found |= {who: _by_unit(session, m, a, b) for who, m in units.items()}
    return {who: x.astype(int).tolist() for who, x in found.items() if x is not None}


class Fall(NamedTuple):
    """A result that falls though an operand grows: c from 1 - 2^-24 to 1, beside so many ``products`` of 2^-size."""

    chip: str
    operands: str
    products: int
    size: int
    before: float
    after: float


def _fewest(session: Session, model: Model) -> Fall | None:
    """The fewest equal products with which the result falls; of those the deepest fall."""
    format = model.formats[0]
    sizes = [s for s in range(8, 34) if Fraction(2) ** -((s + 1) // 2) >= format.least]
    cases = [(n, s) for n in range(1, model.k + 1) for s in sizes]
    c = np.array([ONE - 1, ONE], np.uint32)[:, None]
    answer = _by_unit(session, model, *_equal([n for n, _ in cases], [s for _, s in cases], model.k), c)
    if answer is None:
        return None
    before, after = answer
    falls = [(n, a - b, s, b, a) for (n, s), b, a in zip(cases, before.tolist(), after.tolist(), strict=True) if a < b]
    if not falls:
        return None
    n, _, size, b, a = min(falls)
    return Fall(title(model.chip), format.title, n, size, b, a)


def _equal(counts: Sequence[int], sizes: Sequence[int], k: int) -> tuple[Floats, Floats]:
    """Rows of k products, of which the first are 2^-size and the others 0."""
    here = np.arange(k) < np.array(counts)[:, None]
    size = np.array(sizes)[:, None]
    return np.where(here, 2.0 ** -(size // 2), 0.0), np.where(here, 2.0 ** -((size + 1) // 2), 0.0)


class Steps(NamedTuple):
    """Results around c = 1 beside a full block of products 2^-size, all in units of 2^-last (the last bit kept)."""

    products: int
    size: int
    last: int
    c: list[float]
    result: list[float]
    in_order: list[float] | None


def _around_one(session: Session, model: Model) -> Steps | None:
    unit = model.unit
    last, size = (13 if unit.output == "rz-e8m13" else FP32.fraction_bits), unit.fraction_bits + 1
    near = 1 + np.arange(-10, 7) * 2.0 ** -(last + 1)  # steps of half the last bit
    c = np.asarray(encode(near, FP32))
    c, a_and_b = c[decode(c, FP32) == near], _equal([unit.length], [size], model.k)
    result = _by_unit(session, model, *a_and_b, c)
    if result is None:
        return None
    term = np.asarray(encode(2.0**-size, FP32))
    rows = np.concatenate([c[:, None], np.tile(term, (len(c), unit.length))], axis=1)
    plain = session.ask(ask("sum", [FP32], FP32, [rows]))

    def bits(values: Floats) -> list[float]:
        return (2.0**last * (values - 1)).tolist()  # type: ignore[no-any-return]

    in_order = None if plain is None else bits(decode(plain, FP32))
    return Steps(unit.length, size, last, bits(decode(c, FP32)), bits(result), in_order)


def _longest(models: Iterable[Model], falls: Sequence[Fall]) -> Model | None:
    """Of the units whose results fall that with the longest block."""
    falling = [m for m in models if any((f.chip, f.operands) == (title(m.chip), m.formats[0].title) for f in falls)]
    return max(falling, key=lambda m: m.unit.length, default=None)


# --- long sums --------------------------------------------------------------------------------------------------------
def _tenths(session: Session, units: Mapping[str, Model], terms: int) -> dict[str, tuple[float, int]]:
    """0.1 x 0.1 again and again, FP32 result: the sum, and how many FP32 numbers it is from the exact one."""
    tenth = np.full(terms, 0.1)
    found = {IN_ORDER: _in_order(session, tenth, tenth)}
    found |= {who: _by_unit(session, m, tenth, tenth) for who, m in units.items()}
    right = int(encode(terms * exact(int(encode(0.1, FP16)), FP16) ** 2, FP32))
    return {who: (float(x), int(encode(x, FP32)) - right) for who, x in found.items() if x is not None}


def _half_sums(session: Session, units: Mapping[str, Model], terms: int) -> dict[str, tuple[float, Any]]:
    """FP16 results: the sum of tenths, and where ones stall."""
    tenth, one = np.full(terms, 0.1), np.ones(_STALL)
    found = {"FP16 in order": tuple(_half_in_order(session, x) for x in (tenth, one))}
    found |= {who: tuple(_by_unit(session, m, x, np.ones(1)) for x in (tenth, one)) for who, m in units.items()}
    return {
        who: (float(tenths), cell(float(ones)) if ones < _STALL else None)
        for who, (tenths, ones) in found.items()
        if tenths is not None and ones is not None
    }


def _half_in_order(session: Session, terms: Floats) -> Floats | None:
    answer = session.ask(ask("sum", [FP16], FP16, [np.asarray(encode(terms, FP16))]))
    return None if answer is None else decode(answer, FP16)


# --- words ------------------------------------------------------------------------------------------------------------
def _about(model: Model | None) -> tuple[int | None, int | None]:
    """Products a block and bits kept; None where there are none."""
    return (model.unit.length, model.unit.fraction_bits or None) if model else (None, None)


def _sum(extra: int) -> str:
    return f"2^24 + {extra}" if extra else "2^24"


def _answer(arrived: Mapping[str, list[int]]) -> str:
    who, at = headline(arrived), STARTS.index(24)
    if who is None or IN_ORDER not in arrived:
        return "not answered"
    plain, block = _sum(arrived[IN_ORDER][at]), _sum(arrived[who][at])
    return f"{plain} both times" if plain == block else f"{plain}, then {block}"


def lost_from(row: Sequence[int]) -> int | None:
    """The first power of two to which fewer than all ones arrive."""
    return next((e for e, n in zip(STARTS, row, strict=True) if n < ONES), None)


def saved(arrived: Mapping[str, list[int]]) -> str:
    """The finding of the first table and picture."""
    by_limit: dict[int | None, list[str]] = {}
    for who, row in arrived.items():
        if who != ONCE:
            by_limit.setdefault(lost_from(row), []).append(who)
    parts = [f"{listed(who)} from 2^{e} on" for e, who in sorted(by_limit.items(), key=lambda x: x[0] or 99) if e]
    return f"Ones that are added to a large sum are lost: {', '.join(parts)}"


def alike(found: Mapping[str, Any]) -> str:
    """Who found what, those with the same together.

    >>> alike({"V100": 12, "A100": 8, "L40S": 8})
    'V100 12; A100 and L40S 8'
    """
    together: dict[str, list[str]] = {}
    for who, what in found.items():
        together.setdefault(str(what), []).append(who)
    if len(together) == 1 and len(found) > 2:
        return f"all {next(iter(together))}"
    return "; ".join(f"{listed(who)} {what}" for what, who in together.items())


def falling(steps: Steps, who: str) -> str:
    """The fall at c = 1 in words, as pictures and findings say it."""
    at = steps.c.index(0.0)
    before, after = (1 + steps.result[i] * 2.0**-steps.last for i in (at - 1, at))
    return f"{who}: c grows to 1, and the sum falls from {before:.8g} to {after:.8g}"


def _findings(
    units: Mapping[str, Model],
    arrived: Mapping[str, list[int]],
    cancelled: Mapping[str, list[int]],
    falls: Sequence[Fall],
    steps: Mapping[str, Steps],
    tenths: Mapping[str, tuple[float, int]],
    sums: Mapping[str, tuple[float, Any]],
    terms: int,
) -> Iterable[str]:
    if arrived:
        ideal = lost_from(arrived[ONCE])
        yield f"{saved(arrived)}. The exact sum rounded once would lose none before 2^{ideal}."
    chips = {who: row for who, row in cancelled.items() if who != IN_ORDER}
    if chips:
        left, apart = ({who: row[ORDERS.index(order)] for who, row in chips.items()} for order in ORDERS[::3])
        yield (
            f"2^30 - 2^30 and {_FEW} ones are {_FEW}, but ones in the pair's block are lost although the pair "
            f"cancels. What is left, with the ones of later blocks: {alike(left)}. With the pair 16 products earlier: "
            f"{alike(apart)}."
        )
    whole = {who: "/".join(map(str, row[:3])) for who, row in chips.items() if units[who].unit.length == 16}
    if whole and IN_ORDER in cancelled:
        yield (
            "Inside a block the order does not matter, to a sum in order it does: the pair before, after and around "
            f"the ones gives {alike(whole)}, in order {'/'.join(map(str, cancelled[IN_ORDER][:3]))}."
        )
    if falls:
        few = alike({f"{f.chip} {f.operands}": f"with {f.products} of 2^-{f.size}" for f in falls})
        calm = [who for who in units if who not in {f.chip for f in falls}]
        none = f"; none found on {listed(calm)}" if calm else ""
        yield (
            "c grows from 1 - 2^-24 to 1 and the result falls, for the larger c cuts the products one bit higher. "
            f"Fewest equal products: {few}{none}. A sum in order cannot fall, for rounding is monotonic."
        )
    for name, s in steps.items():
        yield f"{falling(s, f'{name}, with {s.products} products of 2^-{s.size}')}."
    if sums:
        stalls, totals = (
            alike({w: at or "nowhere" for w, (_, at) in sums.items()}),
            alike({w: f"{t:g}" for w, (t, _) in sums.items()}),
        )
        yield f"With FP16 results, ones stall at: {stalls}. {terms} times 0.1 is: {totals}."
    if tenths:
        off = alike({who: f"{ulps:+d}" for who, (_, ulps) in tenths.items()})
        yield f"0.1 x 0.1 {terms} times with FP32 results, in ulps from the exact sum: {off}."


def _draw(result: Result, style: str) -> Any:
    from numsim.show import block_plots

    return block_plots.blocks(result, style)


EXPERIMENT = Experiment(
    name="blocks",
    question=(
        "An accumulator in FP32 holds 2^24, and sixteen products 1 x 1 are added: one after another, then in one block "
        "of an H100's tensor core. What are the two sums?"
    ),
    choices=(
        "2^24 both times", "2^24, then 2^24 + 16", "2^24 + 16 both times", "2^24 + 16, then 2^24",
    ),
    wrong_guess="2^24 both times",
    why_wrong=(
        "One after another each 1 is half the distance to the next FP32 number, a tie, and the tie goes back to "
        "2^24. The block adds all sixteen exactly, with two bits more than FP32 has, and only then makes the sum an "
        "FP32 number."
    ),
    explanation=(
        "A tensor core lines up all products of a block with the largest, c included, cuts each F bits below it, adds "
        "exactly, and converts once: small terms help each other, and fewer roundings than in a sum in order remain. "
        "But what lies below the cut is gone, even if the large terms cancel or one unit more in c moves the cut, so a "
        "block can be worse than a sum in order and need not even be monotonic. "
        "How much depends on the chip, through the products in a block, F, and how the result is rounded."
    ),
    sources=(
        "Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ CS 7:e330 (2021): the cut, "
        "sums that are not monotonic",
        "Xie et al., Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units, arXiv:2511.10909v2 (2026)",
        "Blanchard, Higham, Lopez, Mary, Pranesh, Mixed Precision Block Fused Multiply-Add, SISC 42(3) (2020)",
        "Khattak, Mikaitis, Accurate Models of NVIDIA Tensor Cores, arXiv:2512.07004v2 (2026)",
    ),
    defaults={"chips": ("v100", "a100", "l40s", "h100", "b200", "mi100", "mi250x", "mi300x"), "terms": 4096},
    run=run,
    draw=_draw,
    against=("numpy",),
    full={"terms": 65_536},
)  # fmt: skip
