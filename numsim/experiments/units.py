"""What experiments on tensor cores share: drawn numbers, the chips to ask, and the question itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import Codes, code_dtype
from numsim.errors import InputError, short
from numsim.experiments.experiment import Session, check_formats
from numsim.formats import TF32, Format
from numsim.machines.question import ask
from numsim.random import bits_from
from numsim.rounding import encode
from numsim.tensorcore.chips import TITLES
from numsim.tensorcore.models import TYPES, Model, word_format
from numsim.tensorcore.names import chip_name, default_model

Floats = npt.NDArray[np.float64]
IN_ORDER = "FP32 in order"  # without a tensor core: one addition after another, each rounded to nearest
ONE = 0x3F800000  # the FP32 code of 1


# --- numbers ----------------------------------------------------------------------------------------------------------
def uniform(seed: int, shape: Sequence[int], start: int = 0) -> Floats:
    """Numbers from [0, 1), multiples of 2^-32."""
    return np.asarray(bits_from(seed, start, math.prod(shape)) * 2.0**-32).reshape(shape)


def normal(seed: int, shape: Sequence[int], start: int = 0) -> Floats:
    """Nearly normal numbers of mean 0 and variance 1: sums of twelve uniform ones, less 6. Exact: no logarithm.

    Each takes six draws; ``start`` counts numbers, not draws.
    """
    count = math.prod(shape)
    halves = bits_from(seed, 6 * start, 6 * count).view(np.uint16).reshape(count, 12)
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


# --- words ------------------------------------------------------------------------------------------------------------
def headline(names: Iterable[str]) -> str | None:
    """The chip that stands for all: the H100, or the first; None where no name is a chip's.

    >>> headline([IN_ORDER, "V100", "H100"]), headline([IN_ORDER, "MI300X", "A100"]), headline([IN_ORDER])
    ('H100', 'MI300X', None)
    """
    chips = [name for name in names if name in map(title, TITLES)]
    return "H100" if "H100" in chips else next(iter(chips), None)


def too_small(x: float) -> str:
    """A mean relative error as a sentence has it.

    >>> too_small(-0.127), too_small(1.5e-7), too_small(0.0)
    ('13 % too small', '1.5e-05 % too large', 'right')
    """
    return f"{100 * abs(x):.2g} % too {'small' if x < 0 else 'large'}" if x else "right"


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
