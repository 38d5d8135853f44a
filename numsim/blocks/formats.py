"""Block formats as data: what an element is, which elements share a scale, and how the scale comes about."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numsim.blocks.codebooks import INT4, INT8, MXINT8_ELEMENT, NF4_ELEMENT, Codebook
from numsim.blocks.rules import RULES
from numsim.errors import FormatError, InputError, short
from numsim.formats import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, FP32, UE4M3, Format
from numsim.values import is_whole

WHOLE = 0  # in a block's shape: as long as the axis


@dataclass(frozen=True)
class BlockFormat:
    """Elements that share scales: value = element x scale (x tensor scale).

    Parameters
    ----------
    name : what it is called, e.g. ``"mxfp8"``.
    element : a ``Format`` or a ``Codebook``, with no number beyond FP32's largest.
    scale : the format in which a block's scale is stored; the stored scale is what elements are multiplied by to
        give them back (``inv_scale`` elsewhere), because that is what hardware multiplies by.
    block : the shape of a block. ``(32,)``: 32 elements along one axis; ``(16, 16)``: tiles of the last two axes;
        ``(0,)``: the whole axis, one scale a row; ``None``: one scale for the whole tensor.
    rule : how a scale comes from a block's amax, a name in ``numsim.blocks.RULES``.
    title, source : for people; not part of equality.

    >>> MXFP8.bits_per_value, NVFP4.block, get_block_format("mxfp4").element.name
    (8.25, (16,), 'e2m1')
    """

    name: str
    element: Format | Codebook
    scale: Format
    block: tuple[int, ...] | None
    rule: str
    title: str = field(default="", compare=False)
    source: str = field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        example = 'Example: dataclasses.replace(numsim.blocks.get_block_format("mxfp8"), rule="rceil")'
        if not isinstance(self.element, (Format, Codebook)) or not isinstance(self.scale, Format):
            raise FormatError(f"block format {short(self.name)}: element and scale are formats. {example}")
        rule = self.rule.strip().lower().replace("_", "-") if isinstance(self.rule, str) else ""
        if rule not in RULES:
            fitting = [name for name, known in RULES.items() if known.scale == self.scale] or list(RULES)
            near = difflib.get_close_matches(rule, fitting)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise FormatError(
                f"rule={short(self.rule)}: {hint}Those for {self.scale} scales are {', '.join(fitting)}. Example: "
                f"rule={[*near, *fitting][0]!r}"
            )
        object.__setattr__(self, "rule", rule)
        if RULES[self.rule].scale != self.scale:
            needed = RULES[self.rule].scale
            raise FormatError(
                f"rule={self.rule!r} makes {needed} scales, and {short(self.name)} has {self.scale} scales. Example: "
                f'dataclasses.replace(numsim.blocks.get_block_format("mxfp8"), rule={self.rule!r}, '
                f"scale=numsim.get_format({needed.name!r}))"
            )
        largest = max(map(abs, self.element.values)) if isinstance(self.element, Codebook) else self.element.max
        if largest > FP32.max:
            raise FormatError(
                f"block format {short(self.name)}: {self.element} has numbers beyond FP32, in which elements are "
                f"scaled. {example}"
            )
        if self.element.max <= 0:
            raise FormatError(f"block format {short(self.name)}: {self.element} needs numbers on both sides of zero. "
                              f"{example}")  # fmt: skip
        if self.has_tensor_scale and UE4M3.max * self.element.max > FP32.max:
            raise FormatError(f"rule={rule!r} multiplies the largest of {self.element} by {UE4M3.max}, which is beyond "
                              f"FP32. {example}")  # fmt: skip
        block = self.block
        whole = isinstance(block, tuple) and all(isinstance(b, int) and not isinstance(b, bool) for b in block)
        if block is not None and not (whole and len(block) in (1, 2) and all(0 <= b <= 1 << 20 for b in block)):
            raise FormatError(
                f"block={short(block)}: one or two sizes, or None for the whole tensor. Example: block=(32,)"
            )

    @property
    def element_max(self) -> float:
        """The largest magnitude of an element."""
        return float(self.element.max)

    @property
    def emax(self) -> int:
        """The exponent of the largest element."""
        return math.frexp(self.element_max)[1] - 1

    @property
    def has_tensor_scale(self) -> bool:
        """Whether there is a second, FP32 scale for the whole tensor (NVFP4)."""
        return RULES[self.rule].tensor is not None

    @cached_property
    def bits_per_value(self) -> float:
        """Storage in bits, scales included where the size of a block is known; the tensor's scale is not counted."""
        size = math.prod(self.block) if self.block else 0
        return self.element.bits + (8 * self.scale.code_bytes / size if size else 0)

    def tiles(self, shape: tuple[int, ...], axis: int = -1) -> tuple[int, int]:
        """(rows, columns) of a block in an array of this shape whose last axis is the block's.

        Raises ``InputError`` where blocks do not fill the array.
        """
        if not isinstance(shape, (tuple, list)) or not all(is_whole(n) and n >= 0 for n in shape):
            raise InputError(
                f"shape {short(shape)}: a tuple of integers is needed. Example: {self.name}.tiles((2, 64))"
            )
        shape = tuple(map(int, shape))
        if self.block is None:
            return 1, max(math.prod(shape), 1)
        names = f"axis {short(axis)}" if len(self.block) == 1 else "the last two axes"
        if len(shape) < len(self.block):
            raise InputError(f"{self.name} needs {len(self.block)} axes, not shape {shape}. Example: x.reshape(1, -1)")
        sizes = shape[len(shape) - len(self.block) :]
        block = tuple(b or max(n, 1) for b, n in zip(self.block, sizes, strict=True))
        if any(n % b for b, n in zip(block, sizes, strict=True)):
            fill = ", ".join(f"(0, {-n % b})" for b, n in zip(block, sizes, strict=True))
            raise InputError(
                f"shape {shape}: blocks of {' x '.join(map(str, block))} do not fill {names} of {self.name}. "
                f"Example: numpy.pad(x, [..., {fill}])"
            )
        return block if len(block) == 2 else (1, *block)  # type: ignore[return-value]

    def __str__(self) -> str:
        return self.name


# --- the table --------------------------------------------------------------------------------------------------------
_MX = "OCP Microscaling Formats (MX) 1.0, 2023"
_TE = "NVIDIA Transformer Engine d0067d0"
_TE_CURRENT, _TE_BLOCKS = f"{_TE}, Float8CurrentScaling", f"{_TE}, Float8BlockScaling; DeepSeek-V3"
_AO = "pytorch/ao 36027d8"
_BNB = "bitsandbytes 95f9af3"

# fmt: off
MXFP8 = BlockFormat("mxfp8", E4M3, E8M0, (32,), "floor", "MXFP8 (E4M3)", _MX)
MXFP8_E5M2 = BlockFormat("mxfp8_e5m2", E5M2, E8M0, (32,), "floor", "MXFP8 (E5M2)", _MX)
MXFP6 = BlockFormat("mxfp6", E2M3, E8M0, (32,), "floor", "MXFP6 (E2M3)", _MX)
MXFP6_E3M2 = BlockFormat("mxfp6_e3m2", E3M2, E8M0, (32,), "floor", "MXFP6 (E3M2)", _MX)
MXFP4 = BlockFormat("mxfp4", E2M1, E8M0, (32,), "floor", "MXFP4 (E2M1)", _MX)
MXINT8 = BlockFormat("mxint8", MXINT8_ELEMENT, E8M0, (32,), "floor", "MXINT8", _MX)
NVFP4 = BlockFormat("nvfp4", E2M1, UE4M3, (16,), "nvfp4", "NVFP4", f"{_TE}, core_nvfp4.cuh")
NVFP4_2D = BlockFormat(
    "nvfp4_2d", E2M1, UE4M3, (16, 16), "nvfp4", "NVFP4, 16 x 16 (weights)", f"{_TE}"
)
NF4 = BlockFormat("nf4", NF4_ELEMENT, FP32, (64,), "absmax", "NF4", _BNB)
INT8_ROWS = BlockFormat(
    "int8",
    INT8,
    FP32,
    (WHOLE,),
    "absmax-127",
    "INT8, a scale a row",
    f"{_BNB}, arXiv:2208.07339",
)
INT4_GROUPS = BlockFormat(
    "int4", INT4, FP32, (32,), "absmax", "INT4, groups of 32", "groups as GPTQ and AWQ store"
)
FP8_TENSOR = BlockFormat(
    "fp8_tensor", E4M3, FP32, None, "current", "FP8 (E4M3), a scale a tensor", _TE_CURRENT
)
FP8_TENSOR_E5M2 = BlockFormat(
    "fp8_tensor_e5m2", E5M2, FP32, None, "current", "FP8 (E5M2), a scale a tensor", _TE_CURRENT
)
FP8_1X128 = BlockFormat(
    "fp8_1x128", E4M3, FP32, (128,), "current-pow2", "FP8 (E4M3), 1 x 128", _TE_BLOCKS
)
FP8_128X128 = BlockFormat(
    "fp8_128x128",
    E4M3,
    FP32,
    (128, 128),
    "current-pow2",
    "FP8 (E4M3), 128 x 128",
    _TE_BLOCKS,
)
TORCHAO_TENSORWISE = BlockFormat("torchao_tensorwise", E4M3, FP32, None, "torchao", "torchao float8, tensorwise", _AO)
TORCHAO_ROWWISE = BlockFormat("torchao_rowwise", E4M3, FP32, (WHOLE,), "torchao-pow2", "torchao float8, rowwise", _AO)
# fmt: on

_TABLE = (
    MXFP8, MXFP8_E5M2, MXFP6, MXFP6_E3M2, MXFP4, MXINT8, NVFP4, NVFP4_2D, NF4, INT8_ROWS, INT4_GROUPS, FP8_TENSOR,
    FP8_TENSOR_E5M2, FP8_1X128, FP8_128X128, TORCHAO_TENSORWISE, TORCHAO_ROWWISE,
)  # fmt: skip
_BY_NAME = {f.name: f for f in _TABLE}
_ALIASES = {"mxfp8_e4m3": "mxfp8", "mxfp6_e2m3": "mxfp6", "mxfp4_e2m1": "mxfp4", "nvfp4_1d": "nvfp4"}


def list_block_formats() -> tuple[BlockFormat, ...]:
    """All named block formats.

    >>> [f.name for f in list_block_formats()][:5]
    ['mxfp8', 'mxfp8_e5m2', 'mxfp6', 'mxfp6_e3m2', 'mxfp4']
    """
    return _TABLE


def get_block_format(x: Any) -> BlockFormat:
    """The block format of a name, with "-" or "_", in any case. Raises ``FormatError`` with the nearest names.

    >>> get_block_format("MXFP8-E5M2").element.name
    'e5m2'
    """
    if isinstance(x, BlockFormat):
        return x
    name = x.strip().lower().replace("-", "_") if isinstance(x, str) else short(x)
    name = _ALIASES.get(name, name)
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = " or ".join(difflib.get_close_matches(name, [*_BY_NAME, *_ALIASES], n=3, cutoff=0.5))
    hint = f"did you mean {near}?" if near else f"known are {', '.join(_BY_NAME)}."
    raise FormatError(f'unknown block format {short(x)}: {hint} Example: numsim.blocks.quantize(x, "mxfp8")')
