"""What is handed to one instruction, as codes that it takes: numbers are rounded to its formats, codes stay."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from numsim.array import Array
from numsim.errors import InputError, short
from numsim.expression import MAX_PRODUCTS  # more nobody reads; matmul computes them
from numsim.formats import FP16, FP32, Format, get_format
from numsim.rounding import Policy, round_rational
from numsim.tensorcore.models import IN_WORDS, TYPES, Model, word_format
from numsim.tensorcore.names import default_model, get_model
from numsim.tensorcore.products import operand_codes
from numsim.values import NAN, Rational, Values, as_fraction, as_values, to_rational

EXAMPLE = "Example: numsim.tensorcore.explain_mma([1, 2**-7], [1, 2**-7], chip='h100', format='e4m3')"
_ONE = Rational(0, 1, 1)


class Note(NamedTuple):
    """What became of operands before the unit saw them.

    what : "a", "b", "c", "scale_a" or "scale_b".
    kind : "rounded" (``number`` different ones; the first, ``value``, became ``code`` of ``format``), "upper bits"
        (of FP32 words the unit reads only those), or "ones" (scales that are missing, from number ``number`` on).
    """

    what: str
    kind: Literal["rounded", "upper bits", "ones"]
    number: int = 0
    value: Fraction = Fraction(0)
    code: int = 0
    format: Format = FP32


def model_for(chip: Any, instruction: str | None, format: Any, a: Any, b: Any) -> Model:
    """The instruction that is meant. Raises ``InputError`` where the chip has none, or ``format`` is not its own."""
    if instruction is None and not isinstance(chip, Model):
        formats = [x.format if isinstance(x, Array) else get_format(FP16 if format is None else format) for x in (a, b)]
        return default_model(chip, formats[0], formats[1])
    model = get_model(chip, instruction)
    for type_name in (model.a, model.b):
        if format is not None and get_format(format) not in (TYPES[type_name], word_format(type_name)):
            raise InputError(f"format={short(str(format))}: {model} takes {type_name} ({TYPES[type_name].title}). "
                             f"Example: format='{TYPES[type_name]}', or no format")  # fmt: skip
    return model


def codes_of(x: Any, type_name: str, what: str, notes: list[Note], format: Format | None) -> list[int]:
    """Codes as the instruction takes them; numbers are rounded to its format first. ``notes`` gets what changed."""
    if isinstance(x, Array) or (isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind == "u"):
        codes = operand_codes(x, type_name, what)
        if codes.ndim > 1:
            raise InputError(f"{what} of shape {codes.shape}: one result is explained at a time. {EXAMPLE}")
        codes_read = [int(code) for code in codes.ravel()]
    else:
        values = x if isinstance(x, Values) else as_values(x)
        if len(values.shape) > 1 or values.size > MAX_PRODUCTS:
            raise InputError(f"{what} of shape {values.shape}: one sum of up to {MAX_PRODUCTS} products is explained at"
                             f" a time. {EXAMPLE}")  # fmt: skip
        words = type_name in IN_WORDS and format == FP32
        codes_read = _rounded(list(values), FP32 if words else TYPES[type_name], what, notes)
        if type_name in IN_WORDS and not words:
            codes_read = [code << 13 for code in codes_read]
    if type_name in IN_WORDS and any(code & 0x1FFF for code in codes_read):
        notes.append(Note(what, "upper bits"))
    return codes_read


def _rounded(values: list[Rational], format: Format, what: str, notes: list[Note]) -> list[int]:
    if format.nan_code is None and NAN in values:
        raise InputError(f"{what}: NaN has no code in {format}. {EXAMPLE}")
    codes = [round_rational(x, format, Policy()) for x in values]
    changed = dict.fromkeys(
        (x, code) for x, code in zip(values, codes, strict=True)
        if x.denominator and (not (y := to_rational(code, format)).denominator or as_fraction(x) != as_fraction(y))
    )  # fmt: skip
    if changed:
        x, code = next(iter(changed))
        notes.append(Note(what, "rounded", len(changed), as_fraction(x), code, format))
    return codes


def scales_of(x: Any, model: Model, k: int, what: str, notes: list[Note]) -> tuple[int, ...]:
    """Codes of the block scales for K products; those that are missing are 1."""
    if not model.scale:
        if x is not None:
            raise InputError(f"{what}: {model} takes no block scales. numsim chips {model.chip} lists those that do.")
        return ()
    needed, format = k // model.scale_block, TYPES[model.scale]
    found = [] if x is None else codes_of(x, model.scale, what, notes, None)
    if len(found) > needed:
        raise InputError(f"{what} has {len(found)} numbers: {needed} are needed, one for {model.scale_block} products.")
    if len(found) < needed:
        notes.append(Note(what, "ones", len(found)))
    return (*found, *[round_rational(_ONE, format, Policy())] * (needed - len(found)))
