"""Where other libraries knowingly choose otherwise, as data: each quirk predicts the machine's bits.

A difference counts as documented only if a quirk, or several together, give exactly the bits that the machine gave.
The prediction is the emulator again, with what the quirk changes: a format that everything is rounded to first, another
rounding or overflow policy in the last step, or codes put in by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import code_dtype, decode
from numsim.formats import FP32, Format
from numsim.machines import orders
from numsim.machines.emulated import emulate
from numsim.machines.library import product_format
from numsim.machines.question import ELEMENTWISE, SUMS, Question, ask

Codes = npt.NDArray[Any]
# The last step is a cast; source codes and format -> other source codes, and with the result -> other results.
Before = Callable[[Codes, Format], Codes]
Patch = Callable[[Codes, Format, Codes, Format], Codes]


@dataclass(frozen=True)
class Quirk:
    """One known difference of one machine."""

    machine: str
    name: str  # as the table of verdicts prints it
    sentence: str
    right: str  # who is right, and why: a sentence without its full stop
    applies: Callable[[Question], bool]
    via: Format | None = None  # rounded to first
    rounding: str = ""  # of the last step, instead of the question's
    overflow: str = ""
    before: Before | None = None
    patch: Patch | None = None


def quirks_of(machine: str, question: Question) -> tuple[Quirk, ...]:
    """The quirks of a machine that can show in a question."""
    if question.operation not in ELEMENTWISE and question.operation not in SUMS:
        return ()
    return tuple(q for q in QUIRKS if q.machine == machine and q.applies(question))


def predict(question: Question, quirks: Sequence[Quirk]) -> Codes:
    """The codes of a machine that differs from numsim in these quirks and in nothing else."""
    if question.operation in ELEMENTWISE:
        return _element(question, quirks)
    return _sum(question, quirks)


def _element(q: Question, quirks: Sequence[Quirk]) -> Codes:
    via = next((k.via for k in quirks if k.via), None)
    if via is None and q.operation != "cast" and quirks:
        via = FP32  # a library's last step is a cast from what it computes in
    codes, source = q.arrays[0], q.inputs[0]
    if via is not None:
        codes = emulate(ask(q.operation, q.inputs, via, q.arrays))
        if q.operation == "cast" and source.signed:  # the emulator's NaN is positive, a library's keeps its sign
            negative = np.isnan(decode(q.arrays[0], source)) & ((q.arrays[0] & source.sign_mask) != 0)
            codes = np.where(negative, codes | via.sign_mask, codes).astype(codes.dtype)
        source = via
    elif q.operation != "cast":
        return emulate(q)
    options = dict(q.options)
    for k in quirks:
        codes = k.before(codes, source) if k.before else codes
        options |= {"rounding": k.rounding} if k.rounding else {}
        options |= {"overflow": k.overflow} if k.overflow else {}
    result = emulate(ask("cast", [source], q.output, [codes], **options))
    for k in quirks:
        if k.patch:
            result = k.patch(codes, source, result, q.output).astype(result.dtype)
    return result


def _sum(q: Question, quirks: Sequence[Quirk]) -> Codes:
    """The same sum, one quirky operation after another."""

    def apply(operation: str, formats: Sequence[Format], output: Format, *arrays: Codes) -> Codes:
        return _element(ask(operation, formats, output, arrays, nan=q.nan), quirks)

    def add(x: Codes, y: Codes) -> Codes:
        return apply("add", [q.output] * 2, q.output, x, y)

    def sub(x: Codes, y: Codes) -> Codes:
        return apply("sub", [q.output] * 2, q.output, x, y)

    def term(*arrays: Codes) -> Codes:
        codes, format = arrays[0], q.inputs[0]
        if len(arrays) == 2:
            format = product_format(q) or q.output
            codes = apply("mul", q.inputs, format, *arrays)
        return codes if format == q.output else emulate(ask("cast", [format], q.output, [codes]))

    if q.operation == "matmul":
        a, b = q.arrays
        terms = [term(a[..., :, i, None], b[..., None, i, :]) for i in range(a.shape[-1])]
    else:
        arrays = np.broadcast_arrays(*q.arrays)
        terms = [term(*(a[..., i] for a in arrays)) for i in range(arrays[0].shape[-1])]
    if not terms:
        return np.zeros(q.shape, code_dtype(q.output))
    if q.order == "pairwise":
        return np.asarray(orders.pairwise(terms, add))
    running = orders.kahan(terms, add, sub) if q.order == "kahan" else orders.sequential(terms, add)
    return np.stack(list(running), axis=-1) if q.operation == "cumsum" else np.asarray(orders.last(running))


# --- the quirks -------------------------------------------------------------------------------------------------------
def _twice(*outputs: str) -> Callable[[Question], bool]:
    """Casts from float64 to these formats."""
    return lambda q: q.operation == "cast" and q.inputs[0].name == "fp64" and q.output.name in outputs


def _to(*outputs: str) -> Callable[[Question], bool]:
    return lambda q: q.operation == "cast" and q.output.name in outputs


def _steps(*outputs: str) -> Callable[[Question], bool]:
    """Casts to these formats, and everything that computes in them."""
    return lambda q: q.output.name in outputs


def _negative(codes: Codes, format: Format) -> Codes:
    return np.asarray((codes & format.sign_mask) != 0)


def _nan_to_opposite_zero(codes: Codes, source: Format, result: Codes, output: Format) -> Codes:
    nan = np.isnan(decode(codes, source))
    return np.where(nan, np.where(_negative(codes, source), 0, output.sign_mask), result)


def _nan_to_negative_zero(codes: Codes, source: Format, result: Codes, output: Format) -> Codes:
    return np.where(np.isnan(decode(codes, source)), output.sign_mask, result)


def _nan_to_zero(codes: Codes, source: Format, result: Codes, output: Format) -> Codes:
    return np.where(np.isnan(decode(codes, source)), 0, result)


def _zero_to_nan(codes: Codes, source: Format, result: Codes, output: Format) -> Codes:
    return np.where(decode(codes, source) == 0, output.nan_code or 0, result)


def _drop_sign(codes: Codes, source: Format) -> Codes:
    keep = np.isnan(decode(codes, source)) | ~_negative(codes, source)
    return np.where(keep, codes, codes ^ source.sign_mask).astype(codes.dtype)


def _above_least_goes_up(codes: Codes, source: Format, result: Codes, output: Format) -> Codes:
    values = decode(codes, source)
    return np.where((values > 2.0**-127) & (values < 2.0**-126), 1, result)


_ONCE = "numsim is right: IEEE 754 rounds once, from the exact value"
_TWICE = "rounds to float32 first: next to a tie the second rounding can go the wrong way"
_CHOICE = "A choice: "
_NO_NAN = _CHOICE + "the format has no NaN; numsim raises, or does what nan= says"
_NO_ZERO = _CHOICE + "the format has no zero; numsim takes its least number, 2^-127, and counts it"
_LEAST = "takes everything between 2^-127 and 2^-126 to 2^-126, however near to 2^-127"
_NEARER = "numsim is right: up to 1.5 x 2^-127, 2^-127 is the nearer one"
_TIES = _CHOICE + "IEEE 754-2019, 4.3.1, has the larger of two odd significands; P3109 and numsim the even code"
_SMALL = ("e5m2", "e4m3fn", "e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz", "e3m4", "e4m3_ieee", "e3m2", "e2m3", "e2m1", "e8m0")
_FINITE = ("e3m2", "e2m3", "e2m1")

_ML_DTYPES = (
    Quirk("ml_dtypes", "rounds twice", _TWICE, _ONCE, _twice("bf16", *_SMALL), via=FP32),
    Quirk(
        "ml_dtypes",
        "NaN becomes zero",
        "turns NaN into a zero with the opposite of the NaN's sign",
        _NO_NAN,
        _to(*_FINITE),
        patch=_nan_to_opposite_zero,
    ),
    # An operation's own NaN is negative on x86 and positive on ARM, so the zero's sign tells the CPU.
    Quirk(
        "ml_dtypes",
        "NaN becomes -0",
        "turns a NaN result into -0 (where the CPU's NaN is positive)",
        _NO_NAN,
        lambda q: q.operation != "cast" and q.output.name in _FINITE,
        patch=_nan_to_negative_zero,
    ),
    Quirk(
        "ml_dtypes",
        "NaN becomes +0",
        "turns a NaN result into +0 (where the CPU's NaN is negative)",
        _NO_NAN,
        lambda q: q.operation != "cast" and q.output.name in _FINITE and q.nan == "max",
        patch=_nan_to_zero,
    ),
    Quirk("ml_dtypes", "zero becomes NaN", "turns zero into NaN", _NO_ZERO, _steps("e8m0"), patch=_zero_to_nan),
    Quirk(
        "ml_dtypes",
        "ties go up",
        "takes a tie between two powers of two to the larger one",
        _TIES,
        _steps("e8m0"),
        rounding="nearest-away",
    ),
    Quirk(
        "ml_dtypes",
        "rounds up below 2^-126",
        _LEAST,
        _NEARER,
        _to("e8m0"),
        patch=_above_least_goes_up,
    ),
)
# torch's conversions are the same code on both devices (c10, torch/headeronly/util); from CUDA 13.2 on a GPU's FP32 to
# FP8 are NVIDIA's own (aten/src/ATen/native/cuda/Copy.cu), with saturation for E4M3.
_TORCH = tuple(
    quirk
    for machine in ("torch-cpu", "cuda")
    for quirk in (
        Quirk(machine, "rounds twice", _TWICE, _ONCE, _twice("fp16", "bf16", *_SMALL), via=FP32),
        Quirk(
            machine,
            "saturates",
            "gives 448, not NaN, for what is beyond, infinity too (torch 2.12 and later)",
            _CHOICE + 'OFP8 1.0 defines both; numsim does the same with overflow="saturate"',
            _to("e4m3fn"),
            overflow="saturate",
        ),
        Quirk(
            machine,
            "ties go up",
            "takes a tie between two powers of two to the larger one",
            _TIES,
            _to("e8m0"),
            rounding="nearest-away",
        ),
        Quirk(
            machine,
            "rounds up below 2^-126",
            _LEAST,
            _NEARER,
            _to("e8m0"),
            patch=_above_least_goes_up,
        ),
        Quirk(
            machine,
            "drops the sign",
            "ignores the sign of a number below zero",
            "numsim is right with NaN: E8M0 has no number below zero",
            _to("e8m0"),
            before=_drop_sign,
        ),
    )
)
QUIRKS = (*_ML_DTYPES, *_TORCH)
