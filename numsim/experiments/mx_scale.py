"""The scale of an MX block: a power of two, rounded down, up or in between, and what that does to the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.blocks import RULES, BlockArray, BlockFormat, Codebook, get_block_format, list_block_formats
from numsim.codes import decode
from numsim.data import load_gradients
from numsim.errors import InputError, short
from numsim.experiments.block_units import error, normals, percents, quantized
from numsim.experiments.blocks import alike
from numsim.experiments.experiment import (
    Experiment,
    Result,
    Session,
    Table,
    cell,
    check_real,
    check_whole,
    listed,
    percent,
)
from numsim.formats import BF16, E8M0, FP32
from numsim.machines.question import ask
from numsim.random import check_seed

Floats = npt.NDArray[np.float32]
E4M3_BLOCKS = "mxfp8"  # the format of the question
_RULES = ("floor", "even", "rceil", "te", "ceil")  # from the smallest scales to the largest
_KNOWN = [f.name for f in list_block_formats() if f.scale == E8M0 and not isinstance(f.element, Codebook)]
_AMAXES = (256, 447, 448, 448 + 2**-15, 480, 496, 511.9, 513, 2.0**-126, 2.0**-149)
_GRID = 512  # amaxes in a binade, evenly spaced
_STEP = 2000  # of the recorded matrices
_FINE = 8192  # ... for the share of scales that BF16 changes
_THIRD = np.float32(1) / np.float32(448)  # what RCEIL multiplies an amax by
_EXAMPLE = 'numsim.experiments.run("mx-scale", amax=496)'


def run(
    session: Session,
    *,
    amax: float = 480.0,
    block_formats: Sequence[str] = ("mxfp8", "mxfp6", "mxfp4"),
    blocks: int = 2048,
    seed: int = 1,
) -> Result:
    """The largest number of a block under each scale rule, across a binade; errors of whole blocks.

    Parameters: ``amax``, the largest number of the first block; ``block_formats``, MX formats with floating-point
    elements; ``blocks`` of 32 nearly normal numbers, whose ``seed`` is given.
    """
    amax = float(np.float32(check_real("amax", amax, 2.0**-149, float(FP32.max), _EXAMPLE)))
    chosen = _check_blocks(block_formats)
    blocks = check_whole("blocks", blocks, 32, 1 << 17, _EXAMPLE)
    seed = check_seed(seed)

    single = {r: back for r in _RULES if (back := _single(session, [*_AMAXES, amax], r)) is not None}
    curves = {f: c for f in chosen if (c := _curves(session, f))}
    data = _data(blocks, seed)
    errors = {f: e for f in chosen if (e := _errors(session, f, data))}
    twice = _through_bf16(session, sorted({448.0, 448.0 + 2**-15, 449.0, 450.0, *([amax] if amax < 2**127 else [])}))
    changed = _changed_by_bf16(session)
    alone = [single[same[0]] for same in together(single)]
    tables = (
        Table(
            "One block of MXFP8 (E4M3): scale and largest number again, by its amax",
            ("amax", *(listed(list(map(str.upper, same)), "or") for same in together(single))),
            tuple(
                (_number(x), *(f"2^{b.exponents[i]}: {_number(b.back[i])}" for b in alone))
                for i, x in sorted(enumerate([*_AMAXES, amax]), key=lambda p: p[1])
                if x != amax or i == len(_AMAXES)
            ),
        ),
        Table(
            "Largest number of a block, amax = s x 2^E: where it is above the largest element",
            ("element", "ends at", "rule", "above it for s", "worst error"),
            tuple(
                (f.element.title, cell(f.element_max), ", ".join(map(str.upper, same)), _above(by[same[0]]),
                 percents(max(map(abs, by[same[0]].errors))))
                for f, by in curves.items()
                for same in together(by)
            ),
        ),
        Table(
            "RMS error of all numbers of the blocks, relative to their RMS",
            ("element", "rule", *data),
            tuple(
                (f.element.title, ", ".join(map(str.upper, same)), *map(percents, by[same[0]]))
                for f, by in errors.items()
                for same in together(by)
            ),
        ),
        Table(
            "RCEIL's quotient amax / 448 in FP32, and rounded to BF16 before it is rounded up",
            ("amax", "quotient", "scale", "in BF16", "scale then"),
            tuple((cell(x), cell(q, 10), f"2^{e}", b if b is None else cell(b, 10), t if t is None else f"2^{t}")
                  for x, q, e, b, t in twice),
        ),
    )  # fmt: skip
    return Result(
        experiment="mx-scale",
        parameters={
            "amax": amax, "block_formats": [f.name for f in chosen], "blocks": blocks, "seed": seed,
        },
        answer=str(cell(single["floor"].back[-1])) if "floor" in single else "not answered",
        tables=tuple(t for t in tables if t.rows and len(t.columns) > 1),
        findings=tuple(_findings(amax, single, curves, errors, list(data), changed)),
        series={
            "amax": amax,
            "significands": _significands().tolist(),
            "curves": {f.title: {r: c._asdict() for r, c in by.items()} for f, by in curves.items()},
            "errors": {f.title: {r: list(e) for r, e in by.items()} for f, by in errors.items()},
            "data": list(data),
            "blocks": blocks,
        },
    )  # fmt: skip


# --- whole blocks -----------------------------------------------------------------------------------------------------
def _data(blocks: int, seed: int) -> dict[str, Floats]:
    """Numbers in rows of 32. The standard deviations of the normal ones go from 1 to 2: everywhere in a binade."""
    spread = np.repeat(1 + np.arange(blocks) / blocks, 32) * normals(seed, 32 * blocks)
    real = load_gradients().matrices
    return {
        "normal": spread.astype(np.float32).reshape(-1, 32),
        "activations": real["input"][_STEP].reshape(-1, 32),
        "weights": real["weight"][_STEP].reshape(-1, 32),
        "gradients": real["grad_output"][_STEP].reshape(-1, 32),
    }


def _errors(session: Session, format: BlockFormat, data: Mapping[str, Floats]) -> dict[str, list[float]]:
    """For each rule the error of each kind of numbers."""
    errors = {}
    for r in _RULES:
        found = [error(session, rows, replace(format, rule=r)) for rows in data.values()]
        if None not in found:
            errors[r] = [e for e in found if e is not None]
    return errors


# --- the largest number -----------------------------------------------------------------------------------------------
class Backs(NamedTuple):
    """Largest numbers of blocks that come back, and the exponents of their scales."""

    exponents: list[int]
    back: list[float]


def _single(session: Session, amaxes: Sequence[float], rule: str) -> Backs | None:
    array = _alone(session, amaxes, replace(get_block_format(E4M3_BLOCKS), rule=rule))
    if array is None:
        return None
    return Backs(_exponents(array), array.values[:, 0].tolist())


def _alone(session: Session, amaxes: Any, format: BlockFormat) -> BlockArray | None:
    """Blocks with one number that is not 0."""
    rows = np.zeros((len(amaxes), 32), np.float32)
    rows[:, 0] = amaxes
    return quantized(session, rows, format)


def _exponents(array: BlockArray) -> list[int]:
    return (array.scales.codes[:, 0].astype(int) - 127).tolist()  # type: ignore[no-any-return]


class Curve(NamedTuple):
    """A rule across a binade: by how much the scale is above FLOOR's, the amax above its element; errors of amax."""

    up: list[int]
    above: list[bool]
    errors: list[float]


def _significands() -> npt.NDArray[np.float64]:
    """From 1 to 2, and before each the last FP32 number: the largest errors are there, just below an edge."""
    s = 1 + np.arange(_GRID) / _GRID
    return np.sort([*s, *(s[1:] - 2.0**-23), 2 - 2.0**-23])


def _curves(session: Session, format: BlockFormat) -> dict[str, Curve]:
    s = _significands()
    amaxes, curves = np.ldexp(s, format.emax), {}  # FLOOR's scale is 1
    for r in _RULES:
        if (array := _alone(session, amaxes, replace(format, rule=r))) is not None:
            up = _exponents(array)
            above = np.ldexp(amaxes, [-e for e in up]) > format.element_max
            curves[r] = Curve(up, above.tolist(), (array.values[:, 0] / amaxes - 1).tolist())
    return curves


# --- rounded twice ----------------------------------------------------------------------------------------------------
def _quotients(session: Session, amaxes: Any) -> tuple[Floats | None, Floats | None]:
    """amax x (1/448) in FP32, and rounded to BF16."""
    x = np.asarray(amaxes, np.float32)
    product = session.ask(ask("mul", [FP32, FP32], FP32, [x.view(np.uint32), np.full(x.shape, _THIRD).view(np.uint32)]))
    if product is None:
        return None, None
    narrow = session.ask(ask("cast", [FP32], BF16, [product]))
    return product.view(np.float32), None if narrow is None else np.asarray(decode(narrow, BF16), np.float32)


def _up(x: Floats) -> npt.NDArray[Any]:
    """Exponent of the least power of two that is not below."""
    significand, exponent = np.frexp(x)
    return np.asarray(exponent - (significand == 0.5))


def _through_bf16(session: Session, amaxes: Sequence[float]) -> list[tuple[float, float, int, Any, Any]]:
    """amax, quotient, exponent of the scale; the quotient in BF16 and the exponent that it gives."""
    quotient, narrow = _quotients(session, amaxes)
    if quotient is None:
        return []
    through = [None] * len(amaxes) if narrow is None else narrow.tolist()
    after = [None] * len(amaxes) if narrow is None else _up(narrow).tolist()
    return list(zip(amaxes, quotient.tolist(), _up(quotient).tolist(), through, after, strict=True))


def _changed_by_bf16(session: Session) -> tuple[float, list[float]] | None:
    """Of the amaxes of a binade the share whose scale BF16 changes; the first and the last FP32 number of them."""

    def other(amaxes: Any) -> Any:
        quotient, narrow = _quotients(session, amaxes)
        return None if quotient is None or narrow is None else amaxes[_up(quotient) != _up(narrow)]

    step = 256 / _FINE
    changed = other(256 + np.arange(_FINE) * step)
    if changed is None or not len(changed):
        return None
    near = np.arange(0, step, 2.0**-15)  # all FP32 numbers between two of the grid
    return len(changed) / _FINE, [x[i] for x, i in ((other(changed[0] - near), -1), (other(changed[-1] + near), -1))]


# --- words ------------------------------------------------------------------------------------------------------------
def _check_blocks(value: Any) -> list[BlockFormat]:
    example = "block_formats=['mxfp8', 'mxfp4']"
    items = (
        [value] if isinstance(value, (str, BlockFormat)) else list(value) if isinstance(value, (list, tuple)) else []
    )
    formats = list(dict.fromkeys(map(get_block_format, items)))
    refused = [f.name for f in formats if f.name not in _KNOWN or f != get_block_format(f.name)]
    if not formats or refused:
        which = f"; not {', '.join(refused)}" if refused else ""
        raise InputError(f"block_formats={short(value)}: allowed are {', '.join(_KNOWN)}{which}. Example: {example}")
    return formats


def together(found: Mapping[str, Any]) -> list[list[str]]:
    """Names with the same finding, together."""
    groups: list[list[str]] = []
    for name, what in found.items():
        same = next((g for g in groups if found[g[0]] == what), None)
        if same is None:
            groups.append([name])
        else:
            same.append(name)
    return groups


def above_range(above: Sequence[bool]) -> tuple[float, float] | None:
    """The significands of an amax above its element: after the last one that is not, up to the next that is not."""
    if not any(above):
        return None
    s = [*_significands().tolist(), 2.0]
    first, last = above.index(True), len(above) - 1 - above[::-1].index(True)
    return s[first - 1], s[last + 1]


def _above(curve: Curve) -> str:
    found = above_range(curve.above)
    return "-" if found is None else f"{found[0]:g}-{found[1]:g}"


def _lost(curve: Curve) -> float:
    """What an amax above its element loses at most."""
    return -min(e for e, c in zip(curve.errors, curve.above, strict=True) if c)


def _number(x: float) -> str:
    """Very small and large powers of two as such."""
    significand, exponent = math.frexp(x)
    return f"2^{exponent - 1}" if significand == 0.5 and not 1e-6 < x < 1e9 else str(cell(x))


def _more(shares: npt.NDArray[Any]) -> str:
    least, most = (percent(round(float(x), 3)) for x in (shares.min(), shares.max()))
    return most if least == most else f"{least} to {most}".replace(" % to", " to")


def _findings(
    amax: float,
    single: Mapping[str, Backs],
    curves: Mapping[BlockFormat, Mapping[str, Curve]],
    errors: Mapping[BlockFormat, Mapping[str, Sequence[float]]],
    data: Sequence[str],
    changed: tuple[float, list[float]] | None,
) -> Iterable[str]:
    if single:
        backs = alike({r.upper(): cell(b.back[-1]) for r, b in single.items()})
        yield f"In MXFP8 (E4M3) a largest number of {cell(amax)} comes back as: {backs}."
    told = []
    for r in _RULES:
        above = {f.title: c for f, by in curves.items() if r in by and any((c := by[r]).above)}
        if above:
            each = [f"{title} {_above(c)} (off by up to {percents(_lost(c))})" for title, c in above.items()]
            told.append(f"by {r.upper()} in {', '.join(each)}")
    if told:
        yield (
            f"A largest number s x 2^E is scaled to above the largest element for s in: {'; '.join(told)}. Up to "
            "half a step above it costs no more than any rounding does; delayed-scaling and recipes call clipped what "
            "is beyond that."
        )
    safe = {f: [r for r, c in by.items() if not any(c.above)] for f, by in curves.items()}
    told = [
        f"{f.title} {alike({r.upper(): percents(max(map(abs, curves[f][r].errors))) for r in rules})}"
        for f, rules in safe.items()
        if rules
    ]
    if told:
        yield f"Where nothing is above it, the largest number is off by its rounding, at most: {', '.join(told)}."
    for f, errs in errors.items():
        least = np.min(list(errs.values()), axis=0)
        more = alike({r.upper(): _more(np.asarray(e) / least - 1) for r, e in errs.items()})
        yield f"{f.title}: the error of {listed(data)} lies above that of the best rule for each by: {more}."
    if changed is not None:
        share, (first, last) = changed
        yield (
            f"Rounded to BF16 before it is rounded up, RCEIL's quotient gives another scale for {percent(share)} of "
            f"the amaxes of a binade: from {cell(first)} to {cell(last)} half the right one, for BF16 has made a power "
            "of two of what lies just above it."
        )
    infinite = np.array([np.inf], np.float32)
    bytes_ = alike({r.upper(): f"{RULES[r].scales(infinite, get_block_format(E4M3_BLOCKS), None).codes[0]:#x}"
                    for r in _RULES})  # fmt: skip
    yield f"An infinite amax gives the scale byte: {bytes_} (0xff is NaN, 0xfe is 2^127)."


def _draw(result: Result, style: str) -> Any:
    from numsim.show import scale_rule_plots

    return scale_rule_plots.mx_scale(result, style)


EXPERIMENT = Experiment(
    name="mx-scale",
    question=(
        "The largest number of a block is 480. The block goes into MXFP8 with E4M3 elements, which end at 448, and its "
        "scale is made by the rule of the OCP standard (FLOOR). What does 480 come back as?"
    ),
    choices=("480", "448", "512", "NaN"),
    wrong_guess="480",
    why_wrong=(
        "A scale of 2 would do it: 480 / 2 = 240 is an E4M3 number. FLOOR takes the exponent of amax (the largest "
        "magnitude of the block), 8, less that of the largest element, 448 = 1.75 x 2^8, also 8: the scale is 1, as if "
        "elements went up to the next power of two, and 480 becomes the largest. Other rules: CEIL rounds amax up to a "
        "power of two before; EVEN rounds it to the element's precision first; RCEIL takes the least power of two with "
        "which amax is not above the largest element; TE, Transformer Engine's, does the same."
    ),
    explanation=(
        "A scale that is a power of two cannot put every amax on the largest element: FLOOR cuts the amaxes above it, "
        "CEIL and RCEIL move up a power of two, and EVEN, which rounds amax to the element's precision first, cuts "
        "less than FLOOR. "
        "Twice the scale costs the large numbers nothing, for the spacing of floating-point numbers grows with them, "
        "but one binade (from a power of two to the next) of small numbers goes under the least element; so next to "
        "nothing is lost where elements have many binades (E4M3), and much where they have few (E2M1). "
        "No rule is the best everywhere, and which one is taken matters less than a fraction bit more or less, which "
        "halves or doubles the error."
    ),
    sources=(
        "OCP Microscaling Formats (MX) Specification 1.0 (2023), section 6.3: FLOOR",
        "pytorch/ao 36027d8, mx_tensor.py: FLOOR, CEIL, RCEIL, EVEN; pull request 4725: rounded twice through BF16",
        "NVIDIA Transformer Engine d0067d0: TE's rule, as RCEIL but for infinities",
        "data: numsim/data/README.md (E. Alpaydin, C. Kaynak, UCI digits, doi.org/10.24432/C50P49, CC BY 4.0)",
    ),
    defaults={
        "amax": 480.0, "block_formats": ("mxfp8", "mxfp6", "mxfp4"), "blocks": 2048, "seed": 1,
    },
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes", "torch-cpu"),
    full={"blocks": 32_768},
)  # fmt: skip
