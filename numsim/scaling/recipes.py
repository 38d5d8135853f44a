"""Recipes as data: what each factor of a linear layer's three matrix products becomes in FP8, FP6 or FP4.

The layer is PyTorch's: input (tokens, in), weight (out, in), grad_output (tokens, out). A tensor goes into two products
that sum along different axes, so that most recipes make two copies of it, and the copies are different numbers.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from numsim.array import Array, array
from numsim.blocks import BlockArray, BlockFormat, Codebook, get_block_format, hadamard, quantize
from numsim.blocks.tiles import as_fp32
from numsim.errors import InputError, UnavailableError, check_choice, short
from numsim.formats import BF16, E5M2, FP32
from numsim.rounding import ROUNDINGS, Rounding
from numsim.scaling.delayed import DelayedScaling, DelayedState
from numsim.values import is_whole

GEMMS: dict[str, tuple[str, str]] = {  # y = x W^T, dx = dy W, dW = dy^T x
    "fprop": ("input", "weight"), "dgrad": ("grad_output", "weight"), "wgrad": ("input", "grad_output"),
}  # fmt: skip
"""The three products of a linear layer, and the tensors that each multiplies."""

OPERANDS = tuple(dict.fromkeys(tensor for pair in GEMMS.values() for tensor in pair))
_SUMMED = {  # the axis of the tensor that the product sums along
    ("fprop", "input"): -1, ("fprop", "weight"): -1, ("dgrad", "grad_output"): -1,
    ("dgrad", "weight"): -2, ("wgrad", "input"): -2, ("wgrad", "grad_output"): -2,
}  # fmt: skip
ACCUMULATIONS: dict[str, str] = {
    "fast": "partial sums stay in the tensor core, which on Ada and Hopper keeps fewer bits than FP32",
    "split": "partial sums are added up in FP32 at short intervals",
    "native": "as the instruction does it: there is no switch",
    "open": "the specification leaves it open",
}
SCALINGS: dict[str, str] = {
    "delayed": "a scale a tensor, from the amaxes of earlier steps",
    "current": "scales from the tensor's own amax, or those of its rows",
    "blocks": "a scale for each small block, from its own amax",
}


@dataclass(frozen=True)
class Operand:
    """What becomes of one factor of a matrix product on its way in.

    format : a ``BlockFormat``, or its name, of which it is looked up. rounding : of the elements; "stochastic" takes
    ``sr_bits`` random bits each. transform : "" or "hadamard", before the amax.

    >>> x = [[0.1, 6.0] * 4 + [0.1] * 8]
    >>> Operand("nvfp4", rounding="stochastic", sr_bits=8).quantize(x, seed=7).elements.tolist()
    [[0.0, 6.0, 0.0, 6.0, 0.5, 6.0, 0.0, 6.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    """

    format: Any
    rounding: Rounding = "nearest-even"
    transform: Literal["", "hadamard"] = ""
    sr_bits: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", get_block_format(self.format))
        check_choice("rounding", self.rounding, ROUNDINGS, 'rounding="stochastic"')
        check_choice("transform", self.transform, ("", "hadamard"), 'transform="hadamard"')
        if isinstance(self.format.element, Codebook) and self.rounding != "nearest-even":
            raise InputError(f"rounding={self.rounding!r}: {self.format} rounds to the nearest of its values. "
                             f"Example: Operand({self.format.name!r})")  # fmt: skip
        if self.sr_bits is not None and not (
            self.rounding == "stochastic" and is_whole(self.sr_bits) and 1 <= self.sr_bits <= 32
        ):
            raise InputError(f"sr_bits={short(self.sr_bits)} with rounding={self.rounding!r}: 1 to 32, of stochastic "
                             'rounding alone. Example: Operand("nvfp4", rounding="stochastic", sr_bits=8)')  # fmt: skip

    def quantize(self, values: Any, *, axis: int = -1, seed: Any = None) -> BlockArray:
        """The factor as the product reads it; ``axis`` is the one that is summed over, ``seed`` is for SR alone.

        Transformed numbers are rounded to BF16. Raises ``InputError`` as ``quantize`` and ``hadamard`` do.
        """
        x = hadamard(values, axis=axis, output="bf16") if self.transform else values
        lies = self.format.block is not None and len(self.format.block) == 1
        return quantize(
            x, self.format, axis=axis if lies else -1, rounding=self.rounding, seed=seed, sr_bits=self.sr_bits
        )


@dataclass(frozen=True)
class Gemm:
    """One product: its two factors in the order of ``GEMMS`` (None: kept in high precision), and how it adds."""

    a: Operand | None
    b: Operand | None
    accumulation: str

    def __post_init__(self) -> None:
        check_choice("accumulation", self.accumulation, ACCUMULATIONS, "accumulation='split'")
        for factor in (self.a, self.b):
            if not isinstance(factor, (Operand, type(None))):
                raise InputError(f"{short(factor)}: a factor is an Operand, or None. "
                                 'Example: Gemm(Operand("mxfp8"), Operand("mxfp8"), "native")')  # fmt: skip
        if (self.a is None) != (self.b is None):
            raise InputError("a product of one quantised factor and one in high precision: no library has a kernel for "
                             "it. Example: Gemm(None, None, 'native')")  # fmt: skip
        formats = [x.format for x in (self.a, self.b) if x is not None]
        if formats and all(f.scale == FP32 and f.block is not None and len(f.block) == 2 for f in formats):
            raise InputError(f"{formats[0]} times {formats[1]}: a product of two factors in two-dimensional blocks is "
                             "refused, as in Transformer Engine. Example: fp8_1x128 times fp8_128x128")  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """How a library quantises a linear layer in training.

    name, title : what it is called.
    scaling : "delayed", "current" or "blocks" (``SCALINGS``).
    fprop, dgrad, wgrad : the three products.
    delayed : the settings of delayed scaling, where it is that.
    least, below : the CUDA compute capabilities on which the library runs it, from ``least`` on and below ``below``;
        None where there is no such limit, or no library.
    note, source : for people; not part of equality.

    >>> recipe = get_recipe("te-nvfp4")
    >>> x = recipe.operand("grad_output", "wgrad")
    >>> x.format.name, x.rounding, x.transform, recipe.fprop.accumulation
    ('nvfp4', 'stochastic', 'hadamard', 'native')
    """

    name: str
    title: str
    scaling: Literal["delayed", "current", "blocks"]
    fprop: Gemm
    dgrad: Gemm
    wgrad: Gemm
    delayed: DelayedScaling | None = None
    least: tuple[int, int] | None = None
    below: tuple[int, int] | None = None
    note: str = field(default="", compare=False)
    source: str = field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        for name in GEMMS:
            if not isinstance(getattr(self, name), Gemm):
                raise InputError(f"{name}={short(getattr(self, name))}: a Gemm is needed. Example: "
                                 f"{name}=Gemm(Operand(\"mxfp8\"), Operand(\"mxfp8\"), \"native\")")  # fmt: skip
        if not isinstance(self.name, str):
            raise InputError(f"name={short(self.name)}: a text is needed. Example: name='mine'")
        check_choice("scaling", self.scaling, SCALINGS, "scaling='current'")
        if (self.scaling == "delayed") != isinstance(self.delayed, DelayedScaling):
            raise InputError(f"scaling={self.scaling!r}, delayed={short(self.delayed)}: delayed scaling, and "
                             "only that, has settings. Example: get_recipe(DelayedScaling(margin=1))")  # fmt: skip

    def gemm(self, name: str) -> Gemm:
        """A product by its name."""
        check_choice("gemm", name, GEMMS, "gemm='wgrad'")
        found: Gemm = getattr(self, name)
        return found

    def operand(self, operand: str, gemm: str | None = None) -> Operand | None:
        """What a tensor becomes for a product, at first for the first that reads it; None: high precision."""
        gemm = _gemm_of(operand, gemm)
        found = self.gemm(gemm)
        return (found.a, found.b)[GEMMS[gemm].index(operand)]

    def runs_on(self, capability: Any) -> bool:
        """Whether a GPU of this compute capability runs it, e.g. (9, 0).

        >>> get_recipe("te-mxfp8").runs_on((9, 0)), get_recipe("te-mxfp8").runs_on((10, 0))
        (False, True)
        """
        capability = _capability(capability)
        return (self.least or (0, 0)) <= capability and (self.below is None or capability < self.below)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("", "factor", "format", "rule", "rounding", "transform", "sums")]
        for name, tensors in GEMMS.items():
            gemm = self.gemm(name)
            for head, tensor, x, sums in zip(
                (name, ""), tensors, (gemm.a, gemm.b), (gemm.accumulation, ""), strict=True
            ):
                rows.append((head, tensor, *self._words(x), sums))
        columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
        widths = [max(map(len, column)) for column in columns]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*columns, strict=True)]
        return "\n".join([f"{self.name}, a recipe", self.title, *lines])

    def _words(self, x: Operand | None) -> tuple[str, ...]:
        if x is None:
            return "high precision", "", "", ""
        format = x.format
        rule = "delayed" if self.delayed is not None else format.rule
        return format.name, rule, x.rounding + f", {x.sr_bits} bits" * bool(x.sr_bits), x.transform


def quantize_operand(
    recipe: Any, operand: str, x: Any, *, gemm: str | None = None, state: DelayedState | None = None, seed: Any = None
) -> tuple[BlockArray | Array, DelayedState | None]:
    """A tensor as a recipe feeds it to a product, in the tensor's own layout, and the new state of delayed scaling.

    Rules: NaN, Inf, -0, subnormals and overflow as ``numsim.blocks.quantize`` has them for the format; as
    ``DelayedScaling`` for that. What stays in high precision comes back as a BF16 ``Array``.

    Parameters
    ----------
    recipe : a ``Recipe``, its name, or a ``DelayedScaling``.
    operand : "input", "weight" or "grad_output".
    x : numbers; two axes where scales are not for whole tensors.
    gemm : "fprop", "dgrad" or "wgrad"; at first the first that reads the tensor.
    state : for delayed scaling alone, ``DelayedScaling.initial()``, of "backward" for grad_output.
    seed : for stochastic rounding alone; two copies of a tensor want two seeds, or one ``numsim.random.Stream``.

    Raises ``InputError`` for unknown names, shapes that blocks do not fill, and a state or seed that is missing or that
    nothing would use.
    Cost: that of ``numsim.blocks.quantize``.

    >>> w, _ = quantize_operand("te-mxfp8", "weight", [[1.0] * 64] * 64, gemm="dgrad")
    >>> w.format.name, w.axis, w.scales.shape
    ('mxfp8', -2, (2, 64))
    >>> x, state = quantize_operand("te-delayed", "input", [3.0, 500.0], state=DelayedScaling().initial())
    >>> x.values.tolist(), state.amax_history[0].item()
    ([3.0, 448.0], 500.0)
    """
    taken, gemm = get_recipe(recipe), _gemm_of(operand, gemm)
    made = taken.operand(operand, gemm)
    if taken.delayed is None and state is not None:
        raise InputError(f"state={short(state)}: {taken.name} has {taken.scaling} scaling, which keeps none. "
                         "Example: leave state out")  # fmt: skip
    if seed is not None and (made is None or made.rounding != "stochastic"):
        raise InputError(
            f"seed={short(seed)}: {taken.name} rounds {operand} for {gemm} to nearest. Example: leave seed out"
        )
    if made is None:
        return array(x, BF16), None
    if taken.delayed is not None:
        direction = "backward" if operand == "grad_output" else "forward"
        if not isinstance(state, DelayedState) or state.direction != direction:
            raise InputError(f"state={short(state)}: delayed scaling needs a state of direction {direction!r} for "
                             f"{operand}. Example: state=DelayedScaling().initial({direction!r})")  # fmt: skip
        return taken.delayed.quantize(state, x)
    x = as_fp32(x)
    if made.format.block is not None and x.ndim != 2:
        raise InputError(f"{operand} of shape {x.shape}: {taken.name} needs two axes, tokens or outputs by features. "
                         "Example: x.reshape(-1, x.shape[-1])")  # fmt: skip
    return made.quantize(x, axis=_SUMMED[gemm, operand], seed=seed), None


def default_recipe(capability: Any) -> Recipe:
    """What Transformer Engine takes where nobody names a recipe, by compute capability.

    Raises ``UnavailableError`` below 8.9, which has no FP8. Source: Transformer Engine d0067d0,
    pytorch/quantization.py, get_default_fp8_recipe.

    >>> [default_recipe(c).name for c in ((8, 9), (9, 0), (10, 0), (12, 0))]
    ['te-delayed', 'te-delayed', 'te-mxfp8', 'te-current']
    """
    capability = _capability(capability)
    if get_recipe("te-mxfp8").runs_on(capability):
        return get_recipe("te-mxfp8")
    if capability >= (12, 0):
        return get_recipe("te-current")
    if capability >= (8, 9):
        return get_recipe("te-delayed")
    raise UnavailableError(f"compute capability {capability[0]}.{capability[1]} has no FP8: 8.9 or higher is needed. "
                           "Example: default_recipe((9, 0))")  # fmt: skip


# --- the table --------------------------------------------------------------------------------------------------------
def _gemms(
    input: BlockFormat, weight: BlockFormat, grad_output: BlockFormat, *accumulation: str
) -> tuple[Gemm, Gemm, Gemm]:
    """The same operands for all products; fast sums forward, split ones backward, unless they are given."""
    x, w, dy = Operand(input), Operand(weight), Operand(grad_output)
    fprop, dgrad, wgrad = accumulation or ("fast", "split", "split")
    return Gemm(x, w, fprop), Gemm(dy, w, dgrad), Gemm(x, dy, wgrad)


def _mx(name: str, title: str) -> Recipe:
    mx = get_block_format(name)
    gemms = _gemms(mx, mx, mx, "open", "open", "open")
    return Recipe(name, title, "blocks", *gemms, note="the format alone, no library's recipe", source=mx.source)


def _delayed(settings: DelayedScaling) -> Recipe:
    forward, backward = settings.format("forward"), settings.format("backward")
    return Recipe(
        "te-delayed", "Transformer Engine, delayed scaling", "delayed", *_gemms(forward, forward, backward),
        delayed=settings, least=(8, 9), source=f"{_TE}, DelayedScaling",
    )  # fmt: skip


_TE = "NVIDIA Transformer Engine d0067d0, common/recipe"
_AO = "pytorch/ao 36027d8, float8/config.py"
_NATIVE = ("native", "native", "native")
_E4M3, _E5M2 = get_block_format("fp8_tensor"), get_block_format("fp8_tensor_e5m2")
_LINES, _SQUARES = get_block_format("fp8_1x128"), get_block_format("fp8_128x128")
_MXFP8 = replace(get_block_format("mxfp8"), rule="te")
# Weights in tiles are the same numbers from both sides, and are not transformed: nor is then what they meet in fprop
# and dgrad. Transformer Engine's software for stochastic rounding, floor(fma(r / 256, step, |x|)) on the grid of E2M1,
# differs from 8 random bits where the FP32 fma itself rounds up to the next number: for scaled |x| < 1/2, when
# |x| + r / 512 lies within 2^-26 below 1/2.
_NVFP4, _NVFP4_WEIGHT = Operand("nvfp4"), Operand("nvfp4_2d")
_NVFP4_GRADIENT = replace(_NVFP4, rounding="stochastic", sr_bits=8)
_AO_TENSOR, _AO_ROWS = get_block_format("torchao_tensorwise"), get_block_format("torchao_rowwise")
_AO_TENSOR_E5M2 = replace(_AO_TENSOR, name="torchao_tensorwise_e5m2", element=E5M2)
_AO_ROWS_FP32 = replace(_AO_ROWS, name="torchao_rowwise_fp32", rule="torchao")  # scales need not be powers of two

_TABLE = (
    _delayed(DelayedScaling()),
    Recipe(
        "te-current", "Transformer Engine, current scaling", "current", *_gemms(_E4M3, _E4M3, _E5M2), least=(8, 9),
        source=f"{_TE}, Float8CurrentScaling",
    ),
    Recipe(
        "te-blocks", "Transformer Engine, FP8 in blocks (DeepSeek-V3)", "blocks",
        *_gemms(_LINES, _SQUARES, _LINES, "split", "split", "split"), least=(9, 0),
        note="needs CUDA 12.9; from 10.0 on emulated through MXFP8", source=f"{_TE}, Float8BlockScaling",
    ),
    Recipe(
        "te-mxfp8", "Transformer Engine, MXFP8", "blocks", *_gemms(_MXFP8, _MXFP8, _MXFP8, *_NATIVE),
        least=(10, 0), below=(12, 0), source=f"{_TE}, MXFP8BlockScaling",
    ),
    Recipe(
        "te-nvfp4", "Transformer Engine, NVFP4", "blocks",
        Gemm(_NVFP4, _NVFP4_WEIGHT, "native"), Gemm(_NVFP4_GRADIENT, _NVFP4_WEIGHT, "native"),
        Gemm(replace(_NVFP4, transform="hadamard"), replace(_NVFP4_GRADIENT, transform="hadamard"), "native"),
        least=(10, 0),
        note="the transform is for BF16 tensors", source=f"{_TE}, NVFP4BlockScaling; arXiv:2509.25149",
    ),
    Recipe(
        "torchao-tensorwise", "torchao float8, tensorwise", "current",
        *_gemms(_AO_TENSOR, _AO_TENSOR, _AO_TENSOR_E5M2), least=(8, 9), source=f"{_AO}, TENSORWISE",
    ),
    Recipe(
        "torchao-rowwise", "torchao float8, rowwise", "current", *_gemms(_AO_ROWS, _AO_ROWS, _AO_ROWS),
        least=(8, 9), source=f"{_AO}, ROWWISE",
    ),
    Recipe(
        "torchao-rowwise-gw-hp", "torchao float8, rowwise, weight gradients in high precision", "current",
        Gemm(Operand(_AO_ROWS_FP32), Operand(_AO_ROWS_FP32), "fast"),
        Gemm(Operand(_AO_ROWS_FP32), Operand(_AO_TENSOR), "split"),
        Gemm(None, None, "native"), least=(8, 9), source=f"{_AO}, ROWWISE_WITH_GW_HP",
    ),
    _mx("mxfp8", "OCP MXFP8 (E4M3)"),
    _mx("mxfp6", "OCP MXFP6 (E2M3)"),
    _mx("mxfp4", "OCP MXFP4 (E2M1)"),
)  # fmt: skip
_BY_NAME = {recipe.name: recipe for recipe in _TABLE}


def list_recipes() -> tuple[Recipe, ...]:
    """All named recipes.

    >>> [recipe.name for recipe in list_recipes()][:5]
    ['te-delayed', 'te-current', 'te-blocks', 'te-mxfp8', 'te-nvfp4']
    """
    return _TABLE


def get_recipe(x: Any) -> Recipe:
    """The recipe of a name, with "-" or "_", in any case, or of settings of delayed scaling.

    Raises ``InputError`` with the nearest names.

    >>> get_recipe("TE_current").wgrad.accumulation, get_recipe(DelayedScaling(fp8_format="E4M3")).scaling
    ('split', 'delayed')
    """
    if isinstance(x, Recipe):
        return x
    if isinstance(x, DelayedScaling):
        return _delayed(x)
    name = x.strip().lower().replace("_", "-") if isinstance(x, str) else short(x)
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = " or ".join(difflib.get_close_matches(name, _BY_NAME, n=3, cutoff=0.5))
    hint = f"did you mean {near}?" if near else f"known are {', '.join(_BY_NAME)}."
    raise InputError(f'unknown recipe {short(x)}: {hint} Example: numsim.scaling.get_recipe("te-current")')


# --- parts ------------------------------------------------------------------------------------------------------------
def _gemm_of(operand: Any, gemm: Any) -> str:
    """The product that is meant; refuses one that does not read the tensor."""
    check_choice("operand", operand, OPERANDS, "operand='weight'")
    readers = [name for name, tensors in GEMMS.items() if operand in tensors]
    if gemm is None:
        return readers[0]
    check_choice("gemm", gemm, GEMMS, "gemm='wgrad'")
    if gemm not in readers:
        raise InputError(f"gemm={gemm!r}: {operand} goes into {' and '.join(readers)}. Example: gemm={readers[0]!r}")
    return str(gemm)


def _capability(x: Any) -> tuple[int, int]:
    if not isinstance(x, (tuple, list)) or len(x) != 2 or not all(is_whole(n) and n >= 0 for n in x):
        raise InputError(f"capability={short(x)}: two whole numbers are needed, major and minor. Example: (9, 0)")
    return int(x[0]), int(x[1])
