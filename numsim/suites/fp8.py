"""FP8 training's numbers on the machine: amaxes, scales and codes as Transformer Engine makes them, then products.

A network learns the digits in BF16 on the machine. At some of its steps one layer's input, weight and output gradient
become FP8, with three recipes; each operation is the device's own and a question of its own, and the answers are held
against numsim's recipes, which know nothing of the questions. A scale depends on amaxes alone, so that all steps are
asked at once. Then the layer's three products are computed from codes: on the chip's FP8 instructions by numsim's
kernels, and by torch._scaled_mm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import from_codes
from numsim.blocks import quantize
from numsim.blocks.formats import FP8_TENSOR, FP8_TENSOR_E5M2
from numsim.blocks.rules import current
from numsim.codes import decode
from numsim.data import MATRICES
from numsim.errors import RecordError, UnavailableError
from numsim.formats import E4M3, E5M2, FP32, Format
from numsim.gpu.instructions import chip_of
from numsim.machines.emulated import emulate
from numsim.machines.question import LIBRARY, MMA, Answer, Question, ask
from numsim.machines.recorded import Record
from numsim.machines.verdict import Verdict, compare, compare_traces
from numsim.rounding import Policy, convert, encode
from numsim.scaling import DelayedScaling
from numsim.scaling.scaler import reciprocal
from numsim.suites.loss_scaling import device_of
from numsim.suites.suite import Collector, Row, Suite, left_out
from numsim.tensorcore.models import TYPES, Model, word_format
from numsim.tensorcore.names import list_models
from numsim.traces import Event, Trace
from numsim.training.digits import train

Codes = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Ask = Callable[..., "Codes | None"]

STEPS = (1, 2, 4, 8, 16, 32, 48, 64)
RECIPES: Mapping[str, DelayedScaling | None] = {
    "delayed": DelayedScaling(amax_history_len=4),
    "unfused": DelayedScaling(amax_history_len=3, margin=1, fused=False),
    "current": None,
}
POLICIES = {"saturate": "saturates", "saturate-finite": "saturates, but for infinities", "ieee": "does not saturate"}
FORMATS = {"input": E4M3, "weight": E4M3, "grad_output": E5M2}
_BLOCKS = {E4M3.name: FP8_TENSOR, E5M2.name: FP8_TENSOR_E5M2}
PRODUCTS = {  # y = x W^T, dx = dy W, dW = dy^T x: the factors, and whether they are transposed
    "fprop": (("input", False), ("weight", True)),
    "dgrad": (("grad_output", False), ("weight", False)),
    "wgrad": (("grad_output", True), ("input", False)),
}
_AROUND = {"e4m3fn": (448, 463.99997, 464, 464.00003, 480, 1e30), "e5m2": (57344, 61439.996, 61440, 65536, 1e30)}
_ONE, _INF = 0x3F800000, 0x7F800000
_TE = "NVIDIA Transformer Engine d0067d0, common/recipe"


# --- asking -----------------------------------------------------------------------------------------------------------
def _ask(collector: Collector) -> None:
    tensors: dict[str, Codes] = {}
    with collector.part("training"):
        run = train(device_of(collector.machine), dtype="bfloat16", steps=max(STEPS), seed=collector.seed,
                    scaler=None, keep=STEPS)  # fmt: skip
        collector.traces["bf16"] = run.trace
        tensors = {name: np.stack([run.tensors[step][name] for step in STEPS]) for name in MATRICES}
    for format in (E4M3, E5M2) if tensors else ():
        with collector.part(f"policy: {format.name}"):
            collector.ask(ask("cast", ["fp32"], format, [_probe(format)]))
    made = {}
    for name, x in tensors.items():
        for recipe, (codes, scales) in _quantized(collector, name, x.reshape(len(STEPS), -1)):
            made[recipe, name] = codes[-1].reshape(x.shape[1:]), scales[-1]
    for gemm, factors in PRODUCTS.items():
        if all(("delayed", name) in made for name, _ in factors):
            _ask_product(collector, gemm, [made["delayed", name] for name, _ in factors])


def _probe(format: Format) -> Codes:
    """Ties, numbers around the largest, and what is no number."""
    sizes = [17, 18, 19, 22, *_AROUND[format.name], math.inf]
    return np.asarray(encode([*sizes, *(-x for x in sizes), math.nan], FP32))


def _quantized(collector: Collector, tensor: str, x: Codes) -> Iterator[tuple[str, tuple[Codes, Codes]]]:
    """By recipe: codes (steps, elements), and the scale that each step's numbers were multiplied by."""
    ask_ = partial(_ask_fp32, collector)
    with collector.part(f"amax: {tensor}"):
        if (amaxes := ask_("amax", x)) is None:
            return
    for recipe, settings in RECIPES.items():
        scales = codes = None
        with collector.part(f"{recipe} {tensor} scale"):
            most = float(FORMATS[tensor].max)
            scales = _current(ask_, amaxes, most) if settings is None else _delayed(ask_, amaxes, most, settings)
        if scales is not None:
            with collector.part(f"{recipe} {tensor} codes"):
                scaled = ask_("mul", x, scales[:, None])
                codes = None if scaled is None else ask_("cast", scaled, output=FORMATS[tensor])
        if scales is not None and codes is not None:
            yield recipe, (codes, scales)


def _ask_fp32(collector: Collector, operation: str, *arrays: Codes, output: Any = FP32) -> Codes | None:
    return collector.ask(ask(operation, [FP32] * len(arrays), output, arrays))


def _current(ask_: Ask, amaxes: Codes, most: float) -> Codes | None:
    """Each tensor's own scale."""
    made = ask_("div", _fp32(most), amaxes)
    return None if made is None else _guarded(made, amaxes, _ONE)


def _delayed(ask_: Ask, amaxes: Codes, most: float, settings: DelayedScaling) -> Codes | None:
    """The scales that the steps before have left."""
    power = 2.0**settings.margin
    if (chosen := ask_("amax", _histories(amaxes.tolist(), settings))) is None:
        return None
    if settings.fused:
        made = ask_("div", _fp32(most / power), chosen)
        chosen = np.where(amaxes == 0, 0, chosen)  # nothing was noted
    else:  # torch divides a Python number by a tensor so: by its reciprocal
        made = ask_("div", _fp32(1.0), chosen)
        made = None if made is None else ask_("mul", made, _fp32(most))
        made = None if made is None else ask_("div", made, _fp32(power))
    if made is None:
        return None
    scales = [np.uint32(_ONE)]
    for quotient, amax in zip(made, chosen, strict=True):
        scales.append(_guarded(quotient, amax, scales[-1])[()])
    return np.array(scales[:-1], np.uint32)


def _fp32(x: float) -> Codes:
    return np.asarray(encode(x, FP32))


def _guarded(quotients: Codes, amaxes: Codes, otherwise: Any) -> Codes:
    """The quotient where the amax is above 0 and finite; FP32's largest number where the quotient is infinite."""
    return np.where((amaxes > 0) & (amaxes < _INF), np.minimum(quotients, _INF - 1), otherwise).astype(np.uint32)


def _histories(amaxes: Sequence[int], settings: DelayedScaling) -> Codes:
    """The history that each update looks at: in front the step's own amax, then the oldest to the newest."""
    history, seen = [0] * settings.amax_history_len, []
    for amax in amaxes:
        seen.append([amax, *history[1:]])
        if amax or not settings.fused:
            history = [0, *history[2:], amax][: len(history)]
    return np.array(seen, np.uint32)


def _ask_product(collector: Collector, gemm: str, made: Sequence[tuple[Codes, Any]]) -> None:
    """A product of the last step's codes, unscaled by instructions, and scaled by the library."""
    formats = [FORMATS[name] for name, _ in PRODUCTS[gemm]]
    a, b = (codes.T if turned else codes for (_, turned), (codes, _) in zip(PRODUCTS[gemm], made, strict=True))
    models: list[Model] = []
    with collector.part(f"{gemm}: instructions"):
        models = _models(getattr(collector.machine, "chip", ""), formats, collector.machine.name)
    for model in models:
        with collector.part(f"{gemm}: {model.instruction}"):
            operands = [a[:, None, :], b.T[None, :, :], np.zeros((a.shape[0], b.shape[1]), np.uint32)]
            collector.ask(ask(MMA, [*formats, FP32], FP32, operands, chip=model.chip, instruction=model.instruction))
    with collector.part(f"{gemm}: torch._scaled_mm"):
        inverse = [_fp32(reciprocal(float(decode(scale, FP32)))) for _, scale in made]
        collector.ask(ask(LIBRARY, [*formats, FP32, FP32], FP32, [a, b, *inverse], system="torch._scaled_mm",
                          settings={"use_fast_accum": gemm == "fprop"}))  # fmt: skip


def _models(chip: str, formats: Sequence[Any], machine: str) -> list[Model]:
    """The chip's instructions for such operands that add in FP32."""
    found = [
        m for m in (list_models(chip) if chip else ())
        if [word_format(m.a), word_format(m.b)] == formats and TYPES[m.d] == word_format(m.c) == FP32 and not m.scale
    ]  # fmt: skip
    if not found:
        raise UnavailableError(f"{chip or machine} has no FP8 tensor cores")
    return found


# --- comparing --------------------------------------------------------------------------------------------------------
def _compare(record: Record) -> list[Row]:
    parts = record.by_part
    policies, rows = _policies(record.machine, parts)
    for tensor in MATRICES:
        if (amax := parts.pop(f"amax: {tensor}", None)) is None:
            continue
        rows.append(_row(record.machine, f"amax: {tensor}", amax, [emulate(amax[0][0])]))
        if (x := amax[0][0].arrays[0]).ndim != 2 or amax[0][0].inputs[0] != FP32:
            raise RecordError(f"the record is none of this suite: amax: {tensor} is asked of {amax[0][0]}.")
        for recipe in RECIPES:
            rows += _recipe_rows(record.machine, recipe, tensor, x.view(np.float32), parts, policies)
    for part, found in parts.items():
        rows += [_product(part, q, a, record) for q, a in found]
    return [*rows, *left_out(record)]


def _row(
    machine: str, part: str, found: Sequence[tuple[Question, Answer]], expected: Sequence[Codes], note: str = ""
) -> Row:
    """Answers beside what numsim's recipe makes, bit by bit; the note stands where all are the same."""
    total = Verdict(machine, "emulated")
    for (q, a), codes in zip(found, expected, strict=True):
        total += compare(q, a, Answer(codes, {"machine": "emulated"}), names=(machine, "emulated"))
    return Row(part, total, "" if total.differ else note)


def _policies(machine: str, parts: dict[str, Any]) -> tuple[dict[str, str], list[Row]]:
    """What the device's casts do with numbers beyond the largest: tried out, not looked up; and a row for each."""
    policies, rows = {}, []
    for format in (E4M3, E5M2):
        policies[format.name] = "ieee"
        for q, a in parts.pop(part := f"policy: {format.name}", ()):
            for policy, words in POLICIES.items():
                expected = convert(q.arrays[0], FP32, format, Policy(overflow=policy))
                if not (row := _row(machine, part, [(q, a)], [expected], f"same bits: {words}")).verdict.differ:
                    policies[format.name] = policy
                    break
            rows.append(row)
    return policies, rows


def _recipe_rows(
    machine: str, recipe: str, tensor: str, x: Floats, parts: dict[str, Any], policies: Mapping[str, str]
) -> Iterator[Row]:
    """Each operation; the scale that each step used; and the codes, but for those that the device lets overflow."""
    scales, made = (parts.pop(f"{recipe} {tensor} {what}", []) for what in ("scale", "codes"))
    asked = {q.operation: (q, a) for q, a in made}
    row = _row(machine, f"{recipe} {tensor} scale", scales, [emulate(q) for q, _ in scales])
    if "mul" not in asked:
        yield from [row] * bool(scales)
        return
    used, codes = _replayed(recipe, tensor, x)
    ours, theirs = (_used(scale.ravel()) for scale in (used, asked["mul"][0].arrays[1]))
    yield Row(row.part, row.verdict + compare_traces(theirs, ours, names=(machine, "emulated")))
    scaled, note = emulate(ask("mul", ["fp32", "fp32"], "fp32", [x.view(np.uint32), used[:, None]])), ""
    expected = {"mul": scaled}
    if "cast" in asked:
        format = FORMATS[tensor]
        plain, full = (
            convert(scaled, FP32, format, Policy(overflow=how)) for how in (policies[format.name], "saturate")
        )
        expected["cast"] = np.where(plain != full, plain, codes)
        note = f"same bits; TE saturates {beyond} of them" if (beyond := np.count_nonzero(plain != full)) else ""
    chosen = [asked[operation] for operation in expected]
    yield _row(machine, f"{recipe} {tensor} codes", chosen, list(expected.values()), note)


def _used(scales: Codes) -> Trace:
    return Trace("scales", np.arange(scales.size), {"scale used": from_codes(scales, FP32)})


def _replayed(recipe: str, tensor: str, x: Floats) -> tuple[Codes, Codes]:
    """A tensor's way through numsim's recipe: the scale that each step uses, as FP32 codes, and its codes."""
    format, settings, scales, codes = _BLOCKS[FORMATS[tensor].name], RECIPES[recipe], [], []
    if settings is None:
        for numbers in x:
            amax = np.abs(numbers).max(initial=np.float32(0)).reshape(1, 1)
            scales.append(float(current(amax, format).multiplier[0, 0]))
            codes.append(quantize(numbers, format).codes)
    else:
        state = settings.initial("backward" if tensor == "grad_output" else "forward")
        for numbers in x:
            scales.append(state.scale)
            made, state = settings.quantize(state, numbers)
            codes.append(made.codes)
            state = settings.update(state)
    return np.asarray(encode(scales, FP32)), np.array(codes)


def _product(part: str, q: Question, a: Answer, record: Record) -> Row:
    if q.operation != LIBRARY:
        return _row(record.machine, part, [(q, a)], [emulate(q)])
    from numsim.suites.library import compare_product

    return compare_product(part, q, a, chip=_chip(record))


def _chip(record: Record) -> str | None:
    """numsim's name of the GPU that was recorded."""
    found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", str(record.provenance.get("compute_capability")))
    return chip_of(str(record.provenance.get("device")), (int(found[1]), int(found[2]))) or None if found else None


# --- pictures ---------------------------------------------------------------------------------------------------------
def _draw(record: Record, style: str) -> Any:
    from numsim.show import suite_training_plots

    return suite_training_plots.fp8(*_series(record), FORMATS, style)


def _series(record: Record) -> tuple[dict[str, Trace], dict[str, Codes]]:
    """By recipe and tensor: amaxes with the limit that the scale in use leaves, and the codes of all steps."""
    traces, codes, amaxes = {}, {}, {}
    for part, (q, a) in zip(record.parts, record.answers, strict=True):
        head, _, what = part.rpartition(" ")
        if head == "amax:":
            amaxes[what] = np.asarray(decode(a.codes, FP32))
        elif what == "codes" and q.operation == "mul":
            recipe, tensor = head.split()
            settings = RECIPES[recipe]
            title = f"{head}, margin {settings.margin}" if settings else head
            limits, amax = float(FORMATS[tensor].max) / decode(q.arrays[1].ravel(), FP32), amaxes[tensor]
            clipped = tuple(Event(int(i), "clipped") for i in np.flatnonzero(amax > limits))
            traces[head] = Trace(title, np.arange(amax.size), {"amax": amax, "clip limit": limits}, clipped)
        elif what == "codes":
            codes[head] = a.codes
    return traces, codes


SUITE = Suite(
    name="fp8",
    title="FP8 training's numbers on a real device",
    question=(
        "A layer's input, weight and output gradient become FP8 with delayed and with current scaling, an operation of "
        "the device at a time: are amaxes, scales and codes those of numsim's recipes, bit by bit? And are the layer's "
        "three products what the chip's model makes of the same codes?"
    ),
    ask=_ask,
    compare=_compare,
    draw=_draw,
    sources=(
        f"{_TE}/delayed_scaling.cu and recipe_common.cuh; pytorch/quantization.py",
        "P. Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433",
    ),
)
