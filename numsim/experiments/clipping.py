"""Clipping: before or after the loss scale is taken off, and in formats whose norm overflows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import Codes, decode
from numsim.experiments.block_units import fp32, power
from numsim.experiments.experiment import (
    Experiment,
    Result,
    Session,
    Table,
    cell,
    check_formats,
    check_real,
    check_whole,
    listed,
)
from numsim.experiments.units import normal
from numsim.formats import FP32, Format
from numsim.machines.question import ask
from numsim.optimizers import clip_grad_norm, unscale_and_clip
from numsim.optimizers.gradients import LANES
from numsim.random import check_seed
from numsim.rounding import encode
from numsim.scaling import GradScaler
from numsim.scaling.protocol import GradScalerProtocol, Parameter

Floats = npt.NDArray[np.float64]
_COUNT = 4096  # gradients whose length is looked at
_SCALES = 25  # loss scales 2^0 to 2^24
_NORMS = tuple(2.0**k for k in range(8, 21))
_EPS = 1e-6  # clip_grad_norm_ adds it to the norm
_EXAMPLE = 'numsim.experiments.run("clipping", norm=4.0, max_norm=1.0)'


def run(
    session: Session,
    *,
    norm: float = 4.0,
    max_norm: float = 1.0,
    scale: int = 16,
    formats: Sequence[str] = ("fp16", "bf16", "fp32"),
    count: int = 100_000,
    size: float = 1000.0,
    seed: int = 1,
) -> Result:
    """Gradients clipped as torch does it, scaled and unscaled; then norms of other formats, and numbers without one.

    Parameters: ``norm`` that FP32 gradients have and ``max_norm`` that they are clipped to, at a loss scale of
    2^scale; ``formats`` in which ``count`` gradients of the same ``size`` are clipped too; ``seed`` of the first.
    """
    norm = check_real("norm", norm, 1e-3, 1e3, _EXAMPLE)
    max_norm = check_real("max_norm", max_norm, 1e-3, 1e3, _EXAMPLE)
    scale = check_whole("scale", scale, 1, _SCALES - 1, _EXAMPLE)
    chosen = check_formats(
        "formats", formats, lambda f: f.fits(FP32) and f.signed and f.infinity_code is not None and f.max > 1e3,
        "signed formats with infinity that hold 1000 and that FP32 holds are needed", "formats=['fp16']",
    )  # fmt: skip
    count = check_whole("count", count, 8, 10**6, _EXAMPLE)
    size = check_real("size", size, 1e-3, 1e3, _EXAMPLE)
    seed = check_seed(seed)

    gradients = _of_norm(norm, seed)
    order = _order(session, gradients, max_norm)
    whole = count - count % LANES
    cases = {
        "3, 4": [3.0, 4.0], "0.3, 0.4": [0.3, 0.4], "3, inf": [3.0, np.inf], "3, NaN": [3.0, np.nan],
        f"{whole} times {size:g}": np.full(whole, size),
    }  # fmt: skip
    clipped = {
        (name, f): c for name, x in cases.items() for f in chosen if (c := clip(session, f, x, max_norm)) is not None
    }
    lengths = {f: x for f in chosen if (x := _lengths(session, f, max_norm)) is not None}
    true = math.sqrt(whole) * size
    noticed = _noticed(max_norm, chosen[0], cases[f"{whole} times {size:g}"]) if clipped else ()
    tables = (
        Table(
            f"Length of the update: gradients of norm {norm:g}, clipped to {max_norm:g}",
            ("loss scale", "intended", "unscaled, clipped", "clipped, unscaled", "of the intended"),
            tuple(
                (f"2^{k}", cell(order.intended, 5), cell(order.after[k], 5), cell(order.before[k], 5),
                 power(order.before[k] / order.intended))
                for k in sorted({0, 4, 8, 16, 24, scale})
            ) if order else (),
        ),
        Table(
            f"Gradients clipped to {max_norm:g} in each format",
            ("gradients", "in", "norm", "coefficient", "first becomes", "last becomes"),
            tuple(
                (name, f.title, cell(c.norm, 6), cell(c.coefficient, 6), cell(c.first, 6), cell(c.last, 6))
                for (name, f), c in clipped.items()
            ),
        ),
        Table("Does torch's GradScaler notice?", ("gradients", "calls", "step"), noticed),
    )  # fmt: skip
    return Result(
        experiment="clipping",
        parameters={
            "norm": norm, "max_norm": max_norm, "scale": scale, "formats": [f.name for f in chosen], "count": count,
            "size": size, "seed": seed,
        },
        answer=power(order.before[scale] / order.intended) if order else "not answered by this machine",
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(order, scale, clipped, lengths, max_norm, noticed, gradients, true)),
        series={
            "norm": norm,
            "max_norm": max_norm,
            "intended": order.intended if order else None,
            "after": order.after if order else [],
            "before": order.before if order else [],
            "norms": list(_NORMS),
            "lengths": {f.title: x for f, x in lengths.items()},
        },
    )  # fmt: skip


# --- what is asked ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Clip:
    """What clipping makes of one list of gradients."""

    norm: float
    coefficient: float
    first: float
    last: float
    length: float  # the norm of the clipped gradients, exactly


def clip(session: Session, format: Format, gradients: Any, max_norm: float) -> Clip | None:
    """torch's clip_grad_norm_ of one tensor, from the machine's sums, products and casts; short ones end with zeros.

    coefficient = min(max_norm / (norm + 1e-6), 1), each step computed in FP32 and rounded to the format. The root is
    IEEE 754's: libraries of vectors have others.
    """
    machine = _Machine(session, format)
    x = np.asarray(gradients, np.float64)
    codes = np.asarray(encode(np.pad(x, (0, -len(x) % LANES)), format))
    lanes = np.ascontiguousarray(codes.reshape(-1, LANES).T)
    parts = machine.ask("dot", [format, format], lanes, lanes)
    squares = machine.ask("sum", [FP32], parts)
    norm = machine.fit(None if squares is None else fp32(np.sqrt(decode(squares, FP32))))
    bottom = machine.fit(machine.ask("add", [FP32, FP32], norm, fp32(decode(encode(_EPS, format), format))))
    inverse = machine.fit(machine.ask("div", [FP32, FP32], fp32(1.0), bottom))
    factor = machine.fit(machine.ask("mul", [FP32, FP32], inverse, fp32(max_norm)))
    coefficient = None if factor is None else np.minimum(decode(factor, FP32), 1.0)  # NaN stays
    wide = fp32(decode(codes, format))
    after = machine.fit(machine.ask("mul", [FP32, FP32], wide, None if coefficient is None else fp32(coefficient)))
    if after is None or norm is None or coefficient is None:
        return None
    values = decode(after, FP32)[: len(x)]
    return Clip(decode(norm, FP32).item(), coefficient.item(), values[0].item(), values[-1].item(), _length(values))


def _length(values: Floats) -> float:
    """The norm, from an exact sum of exact squares of FP32 numbers."""
    return math.sqrt(math.fsum((values * values).tolist()))


class _Machine:
    """Computes in FP32 and rounds to a format, for as long as everything is answered."""

    def __init__(self, session: Session, format: Format) -> None:
        self.session, self.format = session, format

    def ask(self, operation: str, inputs: Sequence[Format], *codes: Codes | None) -> Codes | None:
        arrays = [x for x in codes if x is not None]
        if len(arrays) < len(codes):
            return None
        return self.session.ask(ask(operation, inputs, FP32, arrays))

    def fit(self, codes: Codes | None) -> Codes | None:
        """FP32 codes rounded to the format, as FP32 codes again."""
        if codes is None or self.format == FP32:
            return codes
        rounded = self.session.ask(ask("cast", [FP32], self.format, [codes]))
        return None if rounded is None else fp32(decode(rounded, self.format))


@dataclass(frozen=True)
class _Order:
    """Lengths of updates, by loss scale."""

    intended: float
    after: list[float]  # unscaled, then clipped
    before: list[float]  # clipped, then unscaled


def _order(session: Session, gradients: Floats, max_norm: float) -> _Order | None:
    after = clip(session, FP32, gradients, max_norm)
    scaled = [clip(session, FP32, np.ldexp(gradients, k), max_norm) for k in range(_SCALES)]
    before = [float(np.ldexp(c.length, -k)) for k, c in enumerate(scaled) if c is not None]
    if after is None or len(before) < _SCALES:
        return None
    # powers of two scale exactly: unscaled gradients are the same at every scale
    return _Order(min(_length(gradients), max_norm), [after.length] * _SCALES, before)


def _lengths(session: Session, format: Format, max_norm: float) -> list[float] | None:
    """The length after clipping of equal gradients whose norm is each of ``_NORMS``."""
    clips = [clip(session, format, np.full(_COUNT, x / np.sqrt(_COUNT)), max_norm) for x in _NORMS]
    lengths = [c.length for c in clips if c is not None]
    return lengths if len(lengths) == len(clips) else None


def _of_norm(norm: float, seed: int) -> Floats:
    """FP32 numbers, nearly normal, brought to a norm."""
    drawn = normal(seed, (_COUNT,))
    return np.asarray(decode(fp32(drawn * (norm / _length(drawn))), FP32))


# --- what is computed: no machine has a scaler's protocol ------------------------------------------------------------
def _noticed(max_norm: float, format: Format, many: Any) -> tuple[tuple[str, str, str], ...]:
    """Whether the optimizer's step runs, for gradients that are not finite and for a norm that is not."""
    rows = []
    for name, gradients, clip_in in (
        ("one infinity", [3.0, np.inf], FP32),
        ("one NaN", [3.0, np.nan], FP32),
        (f"finite, norm in {format.title}", many, format),
    ):
        for calls in ("unscale_, clip, step", "clip, unscale_, step"):
            weight = Parameter(np.float32(0), np.asarray(gradients, np.float32))
            optimizer = SimpleNamespace(param_groups=[{"params": [weight]}], step=lambda: "made")
            scaler = GradScalerProtocol(GradScaler(init_scale=1.0))
            scaler.scale(np.float32(1))
            for call in calls.split(", "):
                if call == "unscale_":
                    scaler.unscale_(optimizer)
                elif call == "clip":
                    weight.grad = clip_grad_norm([weight.grad], max_norm, clip_in).gradients[0]
            made = scaler.step(optimizer) == "made"
            zero = " with a gradient of 0" if not weight.grad.any() else ""
            rows.append((name, calls, f"made{zero}" if made else "skipped"))
    return tuple(rows)


def _at_once(gradients: Floats, scale: float, max_norm: float) -> int:
    """How many gradients have other bits where DeepSpeed unscales and clips with one multiplication."""
    x = gradients.astype(np.float32)
    apart, at_once = clip_grad_norm([x], max_norm), unscale_and_clip([x * np.float32(scale)], scale, max_norm)
    return int(np.count_nonzero(apart.gradients[0] != at_once.gradients[0]))


# --- words -----------------------------------------------------------------------------------------------------------
def _findings(
    order: _Order | None,
    scale: int,
    clipped: Mapping[tuple[str, Format], Clip],
    lengths: Mapping[Format, Sequence[float]],
    max_norm: float,
    noticed: Sequence[tuple[str, str, str]],
    gradients: Floats,
    true: float,
) -> list[str]:
    found = []
    if order:
        before, after = order.before[scale], order.after[scale]
        part = power(before / order.intended)
        found.append(
            f"Clipped before the scale of 2^{scale} is taken off, the update has the length {cell(before, 4)}, "
            f"{'all' if part == '1' else part} of the intended {cell(order.intended, 4)}; clipped after, "
            f"{cell(after, 6)}."
        )
        harmless = sum(x >= 0.999 * order.intended for x in order.before)
        found.append(
            f"Up to a loss scale of 2^{harmless - 1} the order does not matter here."
            if harmless > 1 else "Only without a scale does the order not matter here."
        )  # fmt: skip
        other = _at_once(gradients, 2.0**scale, max_norm)
        found.append(
            "DeepSpeed unscales and clips with one multiplication in place of two: "
            + (f"{other} of {len(gradients)} FP32 gradients get other bits." if other else "here to the same bits.")
        )
    special = {name: [c for (n, _), c in clipped.items() if n == name] for name in ("3, inf", "3, NaN")}
    if clipped:
        inf, nan = special["3, inf"][0], special["3, NaN"][0]
        found.append(
            f"One infinity makes the coefficient {cell(inf.coefficient)}: finite gradients become {cell(inf.first)}, "
            f"the infinite one {cell(inf.last)}. One NaN makes all gradients {cell(nan.first)}."
        )
    many = {f: c for (name, f), c in clipped.items() if " times " in name}
    silent = [f for f, c in many.items() if c.length == 0]
    if many:
        name = next(name for name, _ in clipped if " times " in name)
        norms = [f"{c.norm:g} in {f.title}" for f, c in many.items()]
        found.append(
            f"{name} has a norm of {true:g}, which is {listed(norms)}."
            + (f" So {listed([f.title for f in silent])} makes every gradient 0, and none of them was infinite."
               if silent else " No gradient becomes 0.")
        )  # fmt: skip
    gone = [(f, n) for f, x in lengths.items() for n, y in zip(_NORMS, x, strict=True) if y == 0]
    if lengths:
        fine = [f.title for f in lengths if f not in [g for g, _ in gone]]
        first = {f.title: min(n for g, n in gone if g == f) for f in lengths if f.title not in fine}
        said = [f"{name} gives 0 from 2^{int(math.log2(n))} on" for name, n in first.items()]
        said += [f"{listed(fine)} give{'s' * (len(fine) == 1)} an update at every norm tried"] if fine else []
        found.append(f"For norms from 2^8 to 2^20, powers of two: {listed(said)}.")
    if noticed:
        skipped, made = ([row for row in noticed if row[2].startswith(word)] for word in ("skipped", "made"))
        found.append(
            f"torch's scaler skips the step in {len(skipped)} of these {len(noticed)} cases; "
            + (f"a step that is {made[0][2]} runs unnoticed." if made[0][2] != "made" else "the others are harmless.")
        )  # fmt: skip
    return found


def _draw(result: Result, style: str) -> Any:
    from numsim.show import update_plots

    return update_plots.clipping(result, style)


EXPERIMENT = Experiment(
    name="clipping",
    question=(
        "Gradients have the norm 4 and are to be clipped to 1. The loss was scaled by 2^16, and the clipping comes "
        "before the scale is taken off. How long is the update, as a part of the intended one?"
    ),
    choices=("1", "1/4", "2^-16", "2^16"),
    wrong_guess="1",
    why_wrong=(
        "A loss scale cancels, but only in what is linear. Clipping compares the norm with a fixed number: scaled "
        "gradients have a norm of 2^18, are cut to 1, and then lose the scale that is no longer in them."
    ),
    explanation=(
        "Clipping has to see the gradients as they are: first take the scale off, then clip, then step. "
        "It multiplies always, by a coefficient that a norm of infinity makes 0 and a NaN makes NaN; the norm is "
        "rounded to the gradients' format, and in FP16 it is infinite from 65520 on, with no gradient near that. "
        "A scaler looks for infinities among the gradients and not at the norm, so that gradients which an FP16 norm "
        "made zero pass for clean; a norm in FP32, or BF16 with its range, has no such trouble."
    ),
    sources=(
        "pytorch 2.13 torch/nn/utils/clip_grad.py, torch/amp/grad_scaler.py (as in numsim.optimizers, numsim.scaling)",
        "DeepSpeed, runtime/zero/stage_1_and_2.py, unscale_and_clip_grads",
        "R. Pascanu et al., On the Difficulty of Training Recurrent Neural Networks, ICML 2013 (clipping by norm)",
        "nanoGPT issues 167 and 84: FP16 training that ends in NaN, and the order of unscaling and clipping",
    ),
    defaults={
        "norm": 4.0, "max_norm": 1.0, "scale": 16, "formats": ("fp16", "bf16", "fp32"), "count": 100_000,
        "size": 1000.0, "seed": 1,
    },
    run=run,
    draw=_draw,
    against=("numpy", "torch-cpu"),
    full={"count": 1_000_000},
)  # fmt: skip
