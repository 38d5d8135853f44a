"""Which record is meant: names of chips and instructions in every spelling, and the nearest where there is none."""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import Any, NamedTuple

from numsim.errors import InputError, short
from numsim.formats import Format
from numsim.tensorcore.chips import ROWS, TITLES, models
from numsim.tensorcore.models import TYPES, Model, word_format

CHIPS = tuple(ROWS)
_EXAMPLE = "Example: chip='h200', instruction='mma.m16n8k16.f32.f16.f16.f32'"
_SIGNATURES = (
    "mma.<shape>.<d>.<a>.<b>.<c> (wmma too), wgmma.<shape>.<d>.<a>.<b>, tcgen05.<shape>.kind::<kind>.<d>.<a>.<b>, "
    "mfma.<d>_<MxNxK><type>"
)
_FAMILIES = ("mma", "wmma", "wgmma", "tcgen05")
_IGNORED = {"sync", "aligned", "row", "col", "mma", "mma_async", "block_scale", "cta_group::1"}  # of full spellings
_USUAL_BLOCK = {"mxf8f6f4": 32, "mxf4": 32}  # of block_scale without a size (PTX ISA 9.0, mma and tcgen05.mma)
# What a driver adds to a chip's name: the maker, memory, the kind of board.
_ADDED = re.compile(
    r"nvidia|amd|geforce|instinct|tesla|generation|gpu|laptop|blackwell|workstation|server|edition|"
    r"pcie|nvl|oam|sxm\d?|hbm\d?e?|\d+gb"
)
_SHAPE = r"m\d{1,4}n\d{1,4}k\d{1,4}"
_MFMA = r"mfma[._](f32|f64)_\d{1,3}x\d{1,3}x(\d{1,3})(?:_\d{1,2}b)?_?([a-z]+\d+)(?:_(1k|fp8|bf8))?"


class Key(NamedTuple):
    """What of an instruction decides its arithmetic. Of the shape that is K alone."""

    family: str
    k: int
    kind: str
    scale_block: int
    types: tuple[str, ...]  # d, a, b, then c for mma and wmma, then the scale


def list_chips() -> tuple[str, ...]:
    """The names of all chips.

    >>> list_chips()[:4]
    ('v100', 't4', 'a100', 'a30')
    """
    return CHIPS


def list_models(chip: str) -> tuple[Model, ...]:
    """All records of a chip. Raises ``InputError`` with the nearest name.

    >>> [m.instruction for m in list_models("v100")]  # doctest: +NORMALIZE_WHITESPACE
    ['mma.m8n8k4.f32.f16.f16.f32', 'mma.m8n8k4.f32.f16.f16.f16', 'mma.m8n8k4.f16.f16.f16.f16']
    """
    return models(chip_name(chip))


def chip_name(chip: Any) -> str:
    """The chip's name as the tables have it; "RTX 4090" and a driver's "NVIDIA A100-SXM4-80GB" are understood."""
    if isinstance(chip, str):
        words = re.split(r"[\s_-]+", chip.lower())
        key = "".join(w for w in words if not _ADDED.fullmatch(w))
        if key in ROWS:
            return key
        near = difflib.get_close_matches(key, CHIPS, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(CHIPS)}."
        raise InputError(f"unknown chip {short(chip)}: {hint} {_EXAMPLE}")
    raise InputError(f"chip={short(chip)}: a name is needed, or a Model of your own. {_EXAMPLE}")


def get_model(chip: Any, instruction: Any = None) -> Model:
    """The record of an instruction on a chip.

    Parameters: ``chip``, a name, or a ``Model`` of your own (then without ``instruction``); ``instruction`` as
    ``numsim chips CHIP`` lists it or in PTX's or AMD's full spelling; M and N do not matter. (A full ``tcgen05.mma``
    names neither shape nor types: put them behind it. The MI300X has only those BF16 instructions that are called
    ``_1k`` on the MI250X; there the name goes with and without it.)
    Raises ``InputError`` with the nearest that exists: nothing is guessed.

    >>> get_model("a100", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32").instruction
    'mma.m16n8k16.f32.bf16.bf16.f32'
    """
    if isinstance(chip, Model):
        if instruction is not None and (not isinstance(instruction, str) or instruction != chip.instruction):
            raise InputError(f"instruction={short(instruction)}: the Model names its own, {chip.instruction}.")
        return chip
    name = chip_name(chip)
    if not isinstance(instruction, str):
        told = f"which one of {name}? Codes do not say what they stand for. There are: {_some(name)}"
        raise InputError(f"instruction={short(instruction)}: {told}. {_EXAMPLE}")
    key = _parse(instruction)
    if model := _find(name, key):
        return model
    raise InputError(_unknown(name, instruction, key))


@cache
def _by_key(chip: str) -> dict[Key, Model]:
    return {_parse(m.instruction): m for m in models(chip)}


def _find(chip: str, key: Key) -> Model | None:
    if chip == "mi300x" and key.kind == "1k":  # LLVM's assembler takes both spellings there, too (gfx940, mai-gfx940.s)
        key = key._replace(kind="")
    return _by_key(chip).get(key)


def default_model(chip: Any, a: Format, b: Format, d: str | None = None) -> Model:
    """The instruction that takes operands of these formats; without ``d`` the one with the widest result.

    FP32 numbers go to TF32 instructions where the chip has none for FP32. Raises ``InputError`` with what the chip has.
    """
    name = chip_name(chip)
    found = [
        m for m in models(name)
        if not m.scale and d in (None, m.d) and (m.formats[0], m.formats[1]) == (a, b)
    ] or [
        m for m in models(name)
        if not m.scale and d in (None, m.d) and (word_format(m.a), word_format(m.b)) == (a, b)
    ]  # fmt: skip
    if not found:
        taken = [m.formats for m in models(name) if not m.scale]
        pairs = sorted({x.name if x == y else f"{x} x {y}" for x, y, *_ in taken})
        pairs = pairs if len(pairs) <= 12 else [*pairs[:12], "..."]
        result = f" with {d} results" if d else ""
        raise InputError(f"{TITLES[name]} has no instruction for {a} x {b}{result}: it takes {', '.join(pairs)}. "
                         f"numsim chips {name} lists all.")  # fmt: skip
    return found[0]


def _parse(text: str) -> Key:
    """A name in any of its spellings."""
    name = text.strip().lower().removeprefix("v_")
    if match := re.fullmatch(_MFMA, name, re.ASCII):
        d, k, a, more = match.groups()
        one_k = more == "1k" and a == "bf16"
        if more is None or one_k or {a, more} <= {"fp8", "bf8"}:
            return Key("mfma", int(k), "1k" if one_k else "", 0, (d, a, a if more is None or one_k else more))
    family, *tokens = name.split(".")
    shape = next((t for t in tokens if re.fullmatch(_SHAPE, t, re.ASCII)), "")
    kind = next((t.removeprefix("kind::") for t in tokens if t.startswith("kind::")), "")
    block = next((t for t in tokens if re.fullmatch(r"block(16|32)|scale_vec::[124]x", t)), "")
    types = tuple(t for t in tokens if t in TYPES)
    known = {shape, block, f"kind::{kind}", *types} | _IGNORED
    strange = [t for t in tokens if t not in known]
    if family not in _FAMILIES or not shape or strange:
        what = "not understood"
        if family in _FAMILIES:
            what = f"{short(strange[0])} is unknown or not modelled" if strange else "no shape in it, such as m16n8k16"
        raise InputError(f"instruction {short(text)}: {what}. The spelling is {_SIGNATURES}. {_EXAMPLE}")
    k = int(shape.rpartition("k")[2])
    size = _USUAL_BLOCK.get(kind, 0) if "block_scale" in tokens else 0
    if block.startswith("scale_vec"):  # so many scales for the K of one instruction
        size = k // int(block[-2])
    elif block:
        size = int(block[5:])
    return Key(family, k, kind, size, types)


def _unknown(chip: str, text: str, key: Key) -> str:
    names = [m.instruction for m in models(chip)]
    near = difflib.get_close_matches(text.lower(), names, n=2, cutoff=0.3) or names[:2]
    others = [c for c in CHIPS if c != chip and _find(c, key)]
    elsewhere = f" It exists on {', '.join(others)}." if others else ""
    return f"{chip} has no {short(text)}; the nearest: {' or '.join(near)}.{elsewhere} numsim chips {chip} lists all."


def _some(chip: str) -> str:
    """The instruction that each type of operands has by default."""
    first: dict[str, str] = {}
    for m in models(chip):
        if m.a == m.b:
            first.setdefault(m.a, m.instruction)
    rest = len(models(chip)) - len(first)
    return ", ".join(first.values()) + (f" and {rest} more" if rest else "")
