"""Casts: the numbers on which libraries disagree, why, and who is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.codes import decode
from numsim.errors import InputError
from numsim.experiments.experiment import Experiment, Result, Session, Table, cell, check_formats, listed
from numsim.formats import FP32, FP64, Format, get_format
from numsim.machines.question import ask
from numsim.random import bits, check_seed
from numsim.rounding import encode

Codes = npt.NDArray[Any]
_FORMATS = (
    "fp16", "bf16", "e5m2", "e4m3fn", "e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz", "e4m3_ieee", "e3m4", "e3m2", "e2m3",
    "e2m1", "e8m0",
)  # fmt: skip
_EXAMPLE = "numsim.experiments.run(\"casts\", formats=['e4m3', 'bf16'])"

# What a library may do instead of one rounding to nearest-even with IEEE overflow: a question of its own each.
RULES: dict[str, dict[str, Any]] = {
    "twice": {},  # the same question, after a cast to FP32
    "saturates": {"overflow": "saturate"},
    "ties away": {"rounding": "nearest-away"},
    "flushes": {"subnormals": "flush"},
}
MEANING = {
    "twice": "rounds twice, through FP32",
    "saturates": "overflow gives the largest number",
    "ties away": "ties go away from zero",
    "flushes": "subnormal numbers become zero",
    "no -0": "the sign of zero is lost",
}


class Row(NamedTuple):
    """A famous input: what to ask, which rule gives something else (or, given by hand, what), and who does.

    A name with * is none of numsim's machines: that was measured elsewhere, see ``sources``.
    """

    text: str
    value: float
    source: str
    target: str
    rule: str
    who: str
    other: str = ""


# From bug trackers and from casting millions of hard inputs through each library; tests check those installed.
ROWS = (
    Row("-431.99999999999994", -431.99999999999994, "fp64", "e4m3fn", "twice", "ml_dtypes, torch"),
    Row("464 + 2^-44", float.fromhex("0x1.d000000000001p+8"), "fp64", "e4m3fn", "twice", "ml_dtypes, torch"),
    Row("1 + 2^-8 + 2^-40", 1 + 2**-8 + 2**-40, "fp64", "bf16", "twice", "ml_dtypes, torch"),
    Row("2^-25 + 2^-77", 2**-25 * (1 + 2**-52), "fp64", "fp16", "twice", "torch, JAX*"),
    Row("0x1.dfffff1p+15", float.fromhex("0x1.dfffff1p+15"), "fp64", "e5m2", "twice", "ml_dtypes, torch"),
    Row("465", 465.0, "fp32", "e4m3fn", "saturates", "torch >= 2.12"),
    Row("infinity", math.inf, "fp32", "e4m3fn", "saturates", "torch >= 2.12"),
    Row("300", 300.0, "fp32", "e4m3fnuz", "saturates", "ONNX*"),
    Row("4.25", 4.25, "fp32", "e4m3fn", "ties away", "QPyTorch*"),
    Row("2^-20", 2.0**-20, "fp32", "fp16", "flushes", "JAX*"),
    Row("2^-133", 2.0**-133, "fp64", "bf16", "flushes", "JAX*"),
    Row("-2^-149", -(2.0**-149), "fp32", "fp16", "no -0", "QPyTorch*", "0"),
    Row("3", 3.0, "fp32", "e8m0", "ties away", "ml_dtypes, torch"),
    Row("1.5 x 2^127", 1.5 * 2.0**127, "fp32", "e8m0", "ties away", "ml_dtypes, torch"),
    Row("0", 0.0, "fp32", "e8m0", "policy", "ml_dtypes", "NaN"),
    Row("-1", -1.0, "fp32", "e8m0", "no sign", "torch", "1"),
    Row("1.25 x 2^-127", 1.25 * 2.0**-127, "fp32", "e8m0", "rounds up", "ml_dtypes, torch", "2^-126"),
    Row("NaN (as zero)", math.nan, "fp32", "e2m1", "policy", "ml_dtypes", "-0"),
)  # fmt: skip


def run(session: Session, *, formats: Sequence[str] = _FORMATS, every_number: bool = False, seed: int = 1) -> Result:
    """Casts from FP64 and FP32 at every boundary of each format, and at famous numbers.

    Parameters: ``formats``, targets narrower than FP32; ``every_number``, in 16-bit formats try the surroundings of
    all numbers instead of those next to powers of two and 200 others, drawn with ``seed``.
    """
    chosen = check_formats(
        "formats", formats, lambda f: f.bits <= 16 and f.fits(FP32),
        "formats of at most 16 bits within FP32 are needed", "formats=['e4m3', 'bf16']",
    )  # fmt: skip
    if not isinstance(every_number, bool):
        raise InputError(f"every_number={every_number!r}: allowed are True and False. Example: {_EXAMPLE}")
    seed = check_seed(seed)
    famous = [(row, *_famous(session, row)) for row in ROWS if get_format(row.target) in chosen]
    counts = {
        (f, source): _differences(session, f, source, boundaries(f, source, every_number, seed))
        for f in chosen
        for source in (FP64, FP32)
    }
    rules = [*RULES, "no -0"]
    tables = [
        Table(
            "Where libraries disagree: the result, and what else if ... (* not compared here)",
            ("input", "to", "result", "else", "if it", "as in"),
            tuple(
                (row.text, get_format(row.target).title, here, other, row.rule, row.who)
                for row, here, other in famous
                if here is not None
            ),
        ),
        *(
            Table(
                f"Boundary numbers in {source.title}: how many come out otherwise if a library ...",
                ("to", "inputs", *(r for r in rules if r != "twice" or source == FP64)),
                tuple(
                    (f.title, n, *(differ.get(r) for r in rules if r != "twice" or source == FP64))
                    for (f, s), (n, differ) in counts.items()
                    if s == source and differ is not None
                ),
            )
            for source in (FP64, FP32)
        ),
    ]
    answered = {key: value for key, value in counts.items() if value[1] is not None}
    return Result(
        experiment="casts",
        parameters={"formats": [f.name for f in chosen], "every_number": every_number, "seed": seed},
        answer=next((here for row, here, _ in famous if row is ROWS[0] and here is not None), "not answered"),
        tables=tuple(t for t in tables if t.rows),
        findings=tuple(_findings(famous, answered)),
        series={
            "rules": rules,
            "counts": {
                s.name: {f.title: {"inputs": n, **(d or {})} for (f, t), (n, d) in answered.items() if t == s}
                for s in (FP64, FP32)
            },
            "famous": [[row.text, row.target, here, other, row.rule] for row, here, other in famous],
        },
    )  # fmt: skip


# --- inputs ----------------------------------------------------------------------------------------------------------
def boundaries(format: Format, source: Format, every_number: bool = False, seed: int = 1) -> Codes:
    """Codes of FP32 or FP64 numbers at which rounding to a format changes, and their neighbours; both signs.

    Every number of the format (of 16-bit formats: next to each power of two, and 200 others), every midpoint, the
    grid beyond the largest number; each of these one step of the source up and down, from FP64 also one step of FP32;
    zeros, infinities, the largest and least numbers of the source, NaNs with payloads (not for formats without NaN).
    """
    ranks = _ranks(format, every_number, seed)
    points = [format.magnitude(r) for r in ranks]
    middles = [(a + format.magnitude(r + 1)) / 2 for r, a in zip(ranks, points, strict=True)]
    exact = np.array([*map(float, points), *map(float, middles)])  # FP64 holds both
    # neighbours are neighbouring codes: integers, whatever this CPU does to subnormal numbers
    near = _around(np.asarray(encode(exact, source)), source)
    if source == FP64:
        single = _around(np.asarray(encode(exact, FP32)), FP32)
        near = np.concatenate([near, np.asarray(encode(decode(single, FP32), FP64))])
    ends = [0.0, math.inf, float(source.max), float(source.least_normal), 2.0**-149]
    magnitudes = np.unique(np.concatenate([near, np.asarray(encode(ends, source)), np.ones(1, near.dtype)]))
    sign = magnitudes.dtype.type(source.sign_mask)
    top = source.infinity_code or 0
    payloads = np.array([source.nan_code, top + 1, source.sign_mask - 1], magnitudes.dtype)
    both = np.concatenate([magnitudes, payloads[: 3 if format.nan_code is not None else 0]])
    return np.concatenate([both, both | sign])


def _around(codes: Codes, format: Format) -> Codes:
    """Codes of magnitudes, and those one step below and above (not below 0 nor above infinity)."""
    top = codes.dtype.type(format.infinity_code or 0)
    return np.concatenate([codes, np.where(codes > 0, codes - 1, codes), np.where(codes < top, codes + 1, codes)])


def _ranks(format: Format, every_number: bool, seed: int) -> list[int]:
    last = format.max_rank + 2
    if format.bits <= 8 or every_number:
        return list(range(last + 1))  # from 0, which E8M0 does not have
    powers = range(0, last + 1, 1 << format.fraction_bits)
    near = {p + d for p in powers for d in (-2, -1, 0, 1)} | {0, 1, 2, 3, last - 3, last - 2, last - 1, last}
    drawn = {bits(seed, i) % last for i in range(200)}
    return sorted(r for r in near | drawn if 0 <= r <= last)


# --- what is asked ---------------------------------------------------------------------------------------------------
def _differences(session: Session, format: Format, source: Format, codes: Codes) -> tuple[int, dict[str, int] | None]:
    """How many inputs each other rule takes elsewhere (rules that the machine does not have are left out)."""
    once = session.ask(ask("cast", [source], format, [codes]))
    if once is None:
        return len(codes), None
    differ = {}
    for rule, options in RULES.items():
        question = ask("cast", [source], format, [codes], **options)
        if rule == "twice":
            if source == FP32:
                continue
            question = ask("cast", [FP32], format, [np.asarray(encode(decode(codes, FP64), FP32))])
        if (other := session.ask(question)) is not None:
            differ[rule] = int(np.count_nonzero(_same_nan(other, format) != _same_nan(once, format)))
    if format.signed and format.specials != "fnuz":
        differ["no -0"] = int(np.count_nonzero(once == format.sign_mask))
    return len(codes), differ


def _same_nan(codes: Codes, format: Format) -> Codes:
    """All NaNs as one code: their sign and payload are no matter of rounding."""
    return np.where(np.isnan(decode(codes, format)), format.nan_code or 0, codes)


def _famous(session: Session, row: Row) -> tuple[str | None, str]:
    """What the machine makes of a famous number, and what the other rule would."""
    source, target = get_format(row.source), get_format(row.target)
    nan = {} if target.nan_code is not None else {"nan": "zero"}
    codes = np.asarray(encode([row.value], source))
    here = session.ask(ask("cast", [source], target, [codes], **nan))
    if row.rule in RULES:
        if row.rule == "twice":
            codes, source = np.asarray(encode([row.value], FP32)), FP32
        other = session.ask(ask("cast", [source], target, [codes], **nan, **RULES[row.rule]))
        return _show(here, target), _show(other, target) or "-"
    return _show(here, target), row.other


def _show(codes: Codes | None, format: Format) -> str | None:
    """A number as people write it: 2^-24 rather than 5.96e-08."""
    if codes is None:
        return None
    value = float(decode(codes, format)[0])
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    fraction, exponent = math.frexp(value)
    if fraction == 0.5 and not -4 <= exponent <= 17:
        return f"2^{exponent - 1}"
    return str(cell(value)) if value or not np.signbit(value) else "-0"


# --- words -----------------------------------------------------------------------------------------------------------
def _findings(
    famous: list[tuple[Row, str | None, str]], counts: dict[tuple[Format, Format], tuple[int, dict[str, int] | None]]
) -> list[str]:
    found = []
    for row, here, other in famous:
        if row is ROWS[0] and here is not None:
            right = _show(np.atleast_1d(encode(row.value, row.target)), get_format(row.target))
            verdict = "which is right" if here == right else f"which is wrong: {right} is nearer"
            found.append(
                f"{row.text} cast to {get_format(row.target).title} gives {here}, {verdict}. "
                f"Cast to FP32 first it becomes {cell(float(np.float32(row.value)))}, a tie, and then {other}."
            )
    for source in (FP64, FP32):
        total = sum(n for (_, s), (n, _) in counts.items() if s == source)
        sums = {
            rule: sum((d or {}).get(rule, 0) for (_, s), (_, d) in counts.items() if s == source)
            for rule in [*RULES, "no -0"]
        }
        parts = [f"{n} ({MEANING[rule]})" for rule, n in sums.items() if n]
        if parts:
            found.append(f"Of {total} boundary numbers in {source.title}, these come out otherwise: {listed(parts)}.")
    twice = [f.title for (f, s), (_, d) in counts.items() if s == FP64 and d and d.get("twice")]
    if twice:
        all_of = {f for f, s in counts if s == FP64}
        where = f"all {len(twice)} formats" if len(twice) == len(all_of) > 3 else listed(twice)
        found.append(f"Rounding FP64 through FP32 goes wrong in {where}; a cast from FP32 cannot round twice.")
    if twice:
        found.append(
            "That is what would come out if every format went through FP32. The verdict on a library counts what it "
            "gave: only in formats that it casts FP64 to itself (ml_dtypes leaves FP16 to NumPy, which rounds once), "
            "with the numbers of the first table; in E8M0 several differences meet."
        )
    if found:
        found.append("The inputs are chosen to be hard: these are counts of differing numbers, not rates in real data.")
    return found


def _draw(result: Result, style: str) -> Any:
    from numsim.show import plots

    return plots.casts(result, style)


EXPERIMENT = Experiment(
    name="casts",
    question=(
        "E4M3 has -416 and -448, and -432 is halfway between them. The float64 number -431.99999999999994 is cast to "
        "E4M3. What is right?"
    ),
    choices=("-448", "-416", "-432", "NaN"),
    wrong_guess="-448",
    why_wrong=(
        "-448 is what ml_dtypes and torch say: they cast to FP32 first, where the number becomes -432 exactly, a tie, "
        "and the tie goes to the even code, -448. But the number was never a tie: -416 is nearer."
    ),
    explanation=(
        "A cast is right if it rounds once, from the exact number; through a middle format a number just beside a "
        "halfway point lands on it, and the second rounding no longer knows on which side it was. "
        "Overflow to NaN or to the largest number, and what E8M0 makes of zero and of ties, are policies: each is "
        "right if it is named (IEEE 754 sends a tie between odd significands up, P3109 to the even code, like numsim). "
        "Ties to even are no bug; -0 and subnormal numbers belong to a format, and a library that drops them is wrong."
    ),
    sources=(
        "IEEE 754-2019, sections 4.3.1 (ties), 6.3 (sign), 7.4 (overflow)",
        "OCP 8-bit Floating Point Specification (OFP8) 1.0; OCP Microscaling Formats (MX) 1.0",
        "github.com/jax-ml/ml_dtypes pull request 401 (double rounding), issues 147, 221, 260, 400",
        "github.com/pytorch/pytorch pull request 178817 (E4M3 saturates from 2.12 on)",
        "* not compared here, measured elsewhere: JAX 0.10.2, astype from float64 rounds twice and to BF16 flushes "
        "(github.com/jax-ml/jax issue 38995), reduce_precision flushes every subnormal number",
        "* likewise QPyTorch f58bba7 (ties away: github.com/Tiiiger/QPyTorch issues 23, 24; -0 becomes 0) and mptorch "
        "0.3.0 (small negative numbers become +0)",
        "* not compared here, by its own documentation: ONNX, onnx.ai/onnx/technical/float8.html (saturate)",
    ),
    defaults={"formats": _FORMATS, "every_number": False, "seed": 1},
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes", "torch-cpu"),
    full={"every_number": True},
)
