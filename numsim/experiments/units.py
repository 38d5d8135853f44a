"""What experiments on tensor cores share: drawn numbers, the chips to ask, and the question itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import Codes, code_dtype
from numsim.errors import InputError, short
from numsim.experiments.experiment import Session, check_formats
from numsim.formats import TF32, Format
from numsim.machines.question import ask
from numsim.random import keys
from numsim.rounding import encode
from numsim.tensorcore.chips import TITLES
from numsim.tensorcore.models import TYPES, Model, word_format
from numsim.tensorcore.names import chip_name, default_model

Floats = npt.NDArray[np.float64]
IN_ORDER = "FP32 in order"  # without a tensor core: one addition after another, each rounded to nearest


# --- numbers ----------------------------------------------------------------------------------------------------------
def draws(seed: int, count: int, start: int = 0) -> npt.NDArray[np.uint32]:
    """``numsim.random.bits(seed, i)`` for i from ``start`` on, below 2^32.

    >>> [hex(x) for x in draws(7, 3)]
    ['0xc63b7155', '0x48cf60bc', '0x243d815d']
    """
    key0, key1 = map(np.uint32, keys(seed))
    x = np.arange(start, start + count, dtype=np.uint32) ^ key0
    return np.asarray(_mixed(_mixed(x) ^ key1))


def _mixed(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return np.asarray(x ^ (x >> np.uint32(16)))


def uniform(seed: int, shape: Sequence[int], start: int = 0) -> Floats:
    """Numbers from [0, 1), multiples of 2^-32."""
    return np.asarray(draws(seed, math.prod(shape), start) * 2.0**-32).reshape(shape)


def normal(seed: int, shape: Sequence[int], start: int = 0) -> Floats:
    """Nearly normal numbers of mean 0 and variance 1: sums of twelve uniform ones, less 6. Exact: no logarithm.

    Each takes six draws; ``start`` counts numbers, not draws.
    """
    count = math.prod(shape)
    halves = draws(seed, 6 * count, 6 * start).view(np.uint16).reshape(count, 12)
    total = halves.sum(axis=1, dtype=np.int64)
    return np.asarray(total * 2.0**-16 - (6 - 6 * 2.0**-16)).reshape(shape)


# --- chips ------------------------------------------------------------------------------------------------------------
def check_chips(value: Any, example: str) -> list[str]:
    """A parameter that names one or more chips."""
    items = [value] if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else []
    if not items:
        raise InputError(f"chips={short(value)}: names of chips are needed, see numsim chips. Example: {example}")
    return list(dict.fromkeys(chip_name(item) for item in items))


def check_multiplied(value: Any, example: str) -> list[Format]:
    """A parameter that names formats of which some tensor core has products and FP32 sums."""
    rule = "formats that tensor cores multiply, of at most 19 bits, are needed"
    known = [f for f in TYPES.values() if f.signed and f.bits <= TF32.bits]
    return check_formats("formats", value, lambda f: f in known, rule, example)


def title(chip: str) -> str:
    """A chip as its maker writes it.

    >>> title("rtx4090"), title("mi300x")
    ('RTX 4090', 'MI300X')
    """
    return TITLES[chip].partition(" (")[0]


def find_unit(chip: str, format: Format, d: str = "f32") -> Model | None:
    """The instruction that a chip multiplies two numbers of a format with; None where it has none."""
    try:
        return default_model(chip, format, format, d)
    except InputError:
        return None


# --- questions --------------------------------------------------------------------------------------------------------
def operands(values: Any, format: Format) -> Codes:
    """Numbers rounded to a format, as codes that instructions take: TF32 in FP32 words."""
    codes = np.asarray(encode(values, format))
    return codes << np.uint32(13) if format == TF32 else codes


def ask_unit(session: Session, model: Model, a: Codes, b: Codes, c: Codes | None = None) -> Codes | None:
    """d = c + the sum over k of a[..., k] * b[..., k], chained over K; without c from +0. None if not answered."""
    formats = [word_format(t) for t in (model.a, model.b, model.c)]
    zero = np.zeros((), code_dtype(formats[2])) if c is None else c
    question = ask("mma", formats, TYPES[model.d], [a, b, zero], chip=model.chip, instruction=model.instruction)
    return session.ask(question)
