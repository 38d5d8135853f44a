"""Which record is meant: names of chips and instructions in every spelling, and the nearest where there is none."""

from __future__ import annotations

import difflib
import re
from typing import Any, NamedTuple

from numsim.errors import InputError, short
from numsim.formats import Format
from numsim.tensorcore.chips import ROWS, TITLES, models
from numsim.tensorcore.models import TYPES, Model, word_format

CHIPS = tuple(ROWS)
_EXAMPLE = "Example: chip='h200', instruction='mma.m16n8k16.f32.f16.f16.f32'"
_SIGNATURES = (
    "mma.<shape>.<d>.<a>.<b>.<c>, wgmma.<shape>.<d>.<a>.<b>, tcgen05.<shape>.kind::<kind>.<d>.<a>.<b>, "
    "mfma.<d>_<MxNxK><type>"
)
_IGNORED = {"sync", "aligned", "row", "col", "mma", "mma_async", "block_scale", "cta_group::1"}  # of full spellings


class Key(NamedTuple):
    """What of an instruction decides its arithmetic. Of the shape that is K alone."""

    family: str
    k: int
    kind: str
    scale_block: int
    types: tuple[str, ...]  # d, a, b, then c for mma, then the scale


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
    """The chip's name as the tables have it; "NVIDIA H200" and "RTX 4090" are understood."""
    if isinstance(chip, str):
        key = re.sub(r"nvidia|amd|geforce|instinct|tesla|generation|[\s_-]", "", chip.lower())
        if key in ROWS:
            return key
        near = difflib.get_close_matches(key, CHIPS, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(CHIPS)}."
        raise InputError(f"unknown chip {short(chip)}: {hint} {_EXAMPLE}")
    raise InputError(f"chip={short(chip)}: a name is needed, or a Model of your own. {_EXAMPLE}")


def get_model(chip: Any, instruction: Any = None) -> Model:
    """The record of an instruction on a chip.

    Parameters: ``chip``, a name, or a ``Model`` of your own (then without ``instruction``); ``instruction`` as
    ``numsim chips CHIP`` lists it or in PTX's or AMD's full spelling; M and N do not matter.
    Raises ``InputError`` with the nearest that exists: nothing is guessed.

    >>> get_model("a100", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32").instruction
    'mma.m16n8k16.f32.bf16.bf16.f32'
    """
    if isinstance(chip, Model):
        if instruction is not None and instruction != chip.instruction:
            raise InputError(f"instruction={short(instruction)}: the Model names its own, {chip.instruction}.")
        return chip
    name = chip_name(chip)
    if not isinstance(instruction, str):
        raise InputError(f"instruction={short(instruction)}: which one of {name}? Known are: {_some(name)}. {_EXAMPLE}")
    key = _parse(instruction)
    for model in models(name):
        if _key(model) == key:
            return model
    raise InputError(_unknown(name, instruction, key))


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
        pairs = sorted({m.a if m.a == m.b else f"{m.a} x {m.b}" for m in models(name)})
        pairs = pairs if len(pairs) <= 12 else [*pairs[:12], "..."]
        result = f" with {d} results" if d else ""
        raise InputError(f"{TITLES[name]} has no instruction for {a} x {b}{result}: it takes {', '.join(pairs)}. "
                         f"numsim chips {name} lists all.")  # fmt: skip
    return found[0]


def _key(model: Model) -> Key:
    return _parse(model.instruction)


def _parse(text: str) -> Key:
    """A name in any of its spellings."""
    name = text.strip().lower().removeprefix("v_")
    if match := re.fullmatch(r"mfma[._](f32|f64)_\d+x\d+x(\d+)(?:_\d+b)?_?([a-z]+\d+)(?:_(1k|fp8|bf8))?", name):
        d, k, a, more = match.groups()
        b = more if more in ("fp8", "bf8") else a
        return Key("mfma", int(k), "1k" if more == "1k" else "", 0, (d, a, b))
    family, *tokens = name.split(".")
    shape = next((t for t in tokens if re.fullmatch(r"m\d+n\d+k\d+", t)), "")
    kind = next((t.removeprefix("kind::") for t in tokens if t.startswith("kind::")), "")
    block = next((t for t in tokens if re.fullmatch(r"block\d+|scale_vec::\dx", t)), "")
    types = tuple(t for t in tokens if t in TYPES)
    known = {shape, block, f"kind::{kind}", *types} | _IGNORED
    if family not in ("mma", "wgmma", "tcgen05") or not shape or any(t not in known for t in tokens):
        raise InputError(f"instruction {short(text)}: the spelling is {_SIGNATURES}. {_EXAMPLE}")
    k = int(shape.rpartition("k")[2])
    if block.startswith("scale_vec"):  # so many scales for the K of one instruction
        block = f"block{k // int(block[-2])}"
    return Key(family, k, kind, int(block[5:] or 0), types)


def _unknown(chip: str, text: str, key: Key) -> str:
    names = [m.instruction for m in models(chip)]
    near = difflib.get_close_matches(text.lower(), names, n=2, cutoff=0.3) or names[:2]
    others = [c for c in CHIPS if c != chip and any(_key(m) == key for m in models(c))]
    elsewhere = f" It exists on {', '.join(others)}." if others else ""
    return f"{chip} has no {short(text)}; the nearest: {' or '.join(near)}.{elsewhere} numsim chips {chip} lists all."


def _some(chip: str) -> str:
    names = [m.instruction for m in models(chip)]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
