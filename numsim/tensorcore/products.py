"""Products on a chip's tensor cores: batches of one instruction. ``matrices.py`` makes matrix products of them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.array import Array
from numsim.codes import Codes, check_codes, code_dtype
from numsim.errors import InputError, short
from numsim.formats import E4M3, TF32, UE4M3
from numsim.tensorcore.block import dot
from numsim.tensorcore.chips import ROWS
from numsim.tensorcore.models import IN_WORDS, TYPES, Model, word_format
from numsim.tensorcore.names import default_model, get_model
from numsim.values import is_whole

_EXAMPLE = "Example: numsim.tensorcore.mma(a, b, c, chip='h200', instruction='mma.m16n8k16.f32.f16.f16.f32')"


class EvidenceWarning(UserWarning):
    """A model that no recorded results of the chip confirm is in use."""


_warned: set[tuple[str, str]] = set()


def warn_of(model: Model) -> None:
    """Say once for each record what a model rests on, unless recordings of the chip confirm it."""
    key = (model.chip, model.instruction)
    evidence = model.evidence
    if evidence.level != "validated" and key not in _warned:
        _warned.add(key)
        note = f" ({evidence.note})" if evidence.note else ""
        more = f": numsim chips {model.chip} names the sources" if model.chip in ROWS else ""
        text = f"{model} is {evidence.level}{note}{more}."
        warnings.warn(text, EvidenceWarning, stacklevel=3)


# --- twins of kernels/tensorcore.py -----------------------------------------------------------------------------------
def chains(
    a: Codes, b: Codes, c: Codes, model: Model, scale_a: Codes | None, scale_b: Codes | None, threads: int | None
) -> npt.NDArray[Any]:
    """Codes a (M, K), b (K, N), c (M, N), scales (M, K / block) and (K / block, N): codes of d (M, N)."""
    result = np.zeros(c.shape, code_dtype(TYPES[model.d]))
    left, right = _rows(a, scale_a), _rows(b.T, None if scale_b is None else scale_b.T)
    for i, (x, sx) in enumerate(left):
        for j, (y, sy) in enumerate(right):
            result[i, j] = dot(x, y, int(c[i, j]), model, sx, sy)
    return result


def dots(
    a: Codes, b: Codes, c: Codes, model: Model, scale_a: Codes | None, scale_b: Codes | None, threads: int | None
) -> npt.NDArray[Any]:
    """Codes a, b (n, K), c (n,), scales (n, K / block): codes of d (n,)."""
    result = np.zeros(len(c), code_dtype(TYPES[model.d]))
    for i, ((x, sx), (y, sy)) in enumerate(zip(_rows(a, scale_a), _rows(b, scale_b), strict=True)):
        result[i] = dot(x, y, int(c[i]), model, sx, sy)
    return result


def _rows(codes: Codes, scales: Codes | None) -> list[tuple[list[int], list[int]]]:
    if scales is None:
        return [(row, []) for row in codes.tolist()]
    return list(zip(codes.tolist(), scales.tolist(), strict=True))


def twin(name: str, work: int, model: Model) -> Any:
    """The reference or the kernel."""
    if kernels.use(4 * work):
        from numsim.kernels import tensorcore as fast

        if fast.suits(model):
            return getattr(fast, name)
    return {"chains": chains, "dots": dots}[name]


# --- one instruction --------------------------------------------------------------------------------------------------
def mma(
    a: Any, b: Any, c: Any, *, chip: Any, instruction: str | None = None, scale_a: Any = None, scale_b: Any = None,
    threads: int | None = None,
) -> Any:  # fmt: skip
    """One instruction for each dot product of a batch: d = c + sum over k of a[..., k] * b[..., k], as the chip adds.

    Rules
    -----
    NaN : from any NaN, infinity times zero, infinities of both signs; NVIDIA's code is 0x7FFFFFFF or 0x7FFF. For FP64
        and AMD, where none is documented, it is the format's, 0x7FF8000000000000 and 0x7FC00000.
    Inf : an infinite product or c.
    -0 : results of zero are +0. FP64, and FP32 on AMD's chips, follow IEEE 754, where -0 is a sum of -0 alone; MI100
        does the same, MI250X and MI300X give +0 for FP16 and BF16.
    subnormals : kept, in and out (MI250X flushes them for FP16 and BF16).
    overflow : from 2^128 on infinity, although the sum is truncated; from 65520 on for FP16.

    Parameters
    ----------
    a, b : codes (..., K) with the instruction's K; TF32 as FP32 words; FP4 and FP6 one code a byte. c : codes (...) in
        the instruction's c format. Shapes broadcast. Arrays of the right format are taken, too.
    chip, instruction : see ``numsim.tensorcore.get_model``.
    scale_a, scale_b : codes (..., K / block) of the block scales, for instructions that have them.
    threads : how many; None for all cores. The result does not depend on it.

    Returns codes (...) of d: uint16, uint32 or uint64; an Array if a and b are Arrays.
    Raises ``InputError`` for shapes, formats and codes that the instruction does not take.
    Cost: 200 million products a second, and ten times that where each a meets each b, as (M, 1, K) and (1, N, K).
    Source: see ``numsim chips CHIP``.

    >>> import numpy as np
    >>> a, b = np.full(16, 0x3C00, np.uint16), np.full(16, 0x3C00, np.uint16)  # FP16 ones
    >>> hex(mma(a, b, np.uint32(0), chip="h200", instruction="mma.m16n8k16.f32.f16.f16.f32"))  # 16.0
    '0x41800000'
    """
    model = model_of(chip, instruction, a, b)
    x, y, z = operand_codes(a, model.a, "a"), operand_codes(b, model.b, "b"), operand_codes(c, model.c, "c")
    sx, sy = scale_codes(scale_a, model, "scale_a"), scale_codes(scale_b, model, "scale_b")
    for codes, what in ((x, "a"), (y, "b")):
        if codes.ndim < 1 or codes.shape[-1] != model.k:
            raise InputError(
                f"{what} of shape {codes.shape}: {model} takes (..., {model.k}). For other K: numsim.tensorcore.matmul"
            )
    for scales, what in ((sx, "scale_a"), (sy, "scale_b")):
        if scales is not None and (scales.ndim < 1 or scales.shape[-1] != model.k // model.scale_block):
            each = f"one scale for every {model.scale_block} elements of K"
            raise InputError(
                f"{what} of shape {scales.shape}: {model} takes (..., {model.k // model.scale_block}), {each}."
            )
    check_threads(threads)
    common_shape(x, y, z, sx, sy)
    warn_of(model)
    result = chained(x, y, z, model, sx, sy, threads)
    return Array(result, TYPES[model.d], f"{model}") if isinstance(a, Array) and isinstance(b, Array) else result[()]


def chained(
    a: Codes, b: Codes, c: Codes, model: Model, scale_a: Codes | None, scale_b: Codes | None, threads: int | None = None
) -> npt.NDArray[Any]:
    """Dot products (..., K) of a K that is any multiple of the instruction's, chained; shapes broadcast."""
    shape, k = common_shape(a, b, c, scale_a, scale_b), a.shape[-1]
    if k % model.k:
        raise InputError(f"K = {k}: {model} takes multiples of {model.k}.")
    count = math.prod(shape)
    if scale_a is None and a.ndim > 2 and a.shape[-2] == 1 and b.ndim > 1 and b.size == b.shape[-2] * k:
        rows, columns = a.reshape(-1, k), b.reshape(-1, k)  # each a with each b: a matrix product
        if (len(rows), len(columns)) == (math.prod(shape[:-1]), shape[-1]):
            matrix = np.broadcast_to(c, shape).reshape(len(rows), len(columns))
            done = twin("chains", count * k, model)(rows, columns.T, matrix, model, None, None, threads)
            return done.reshape(shape)  # type: ignore[no-any-return]
    if count * k > _AT_ONCE and shape and shape[0] > 1:  # broadcast operands would grow to as many elements
        half = shape[0] // 2
        parts = [[_part(x, here, len(shape) + (x is not c)) for x in (a, b, c, scale_a, scale_b)]
                 for here in (slice(None, half), slice(half, None))]  # fmt: skip
        return np.concatenate([chained(x, y, z, model, sx, sy, threads) for x, y, z, sx, sy in parts])

    def flat(x: Codes | None) -> Codes | None:
        return None if x is None else np.broadcast_to(x, (*shape, x.shape[-1])).reshape(count, x.shape[-1])

    compute = twin("dots", count * k, model)
    start = np.broadcast_to(c, shape).reshape(count)
    result = compute(flat(a), flat(b), start, model, flat(scale_a), flat(scale_b), threads)
    return result.reshape(shape)  # type: ignore[no-any-return]


_AT_ONCE = 1 << 26  # products


def _part(x: Codes | None, here: slice, axes: int) -> Any:
    """A part of the first axis, of those that have it."""
    return x if x is None or x.ndim < axes or x.shape[0] == 1 else x[here]


def common_shape(a: Codes, b: Codes, c: Codes, scale_a: Codes | None, scale_b: Codes | None) -> tuple[int, ...]:
    """The shape of the results."""
    try:
        return np.broadcast_shapes(c.shape, *(x.shape[:-1] for x in (a, b, scale_a, scale_b) if x is not None))
    except ValueError:
        shapes = ", ".join(str(x.shape) for x in (a, b, c, scale_a, scale_b) if x is not None)
        what = "a, b, c" if scale_a is None else "a, b, c and the scales"
        rule = "what stands before K must broadcast"
        raise InputError(f"{what} of shapes {shapes}: {rule}. {_EXAMPLE}") from None


# --- operands ---------------------------------------------------------------------------------------------------------
def model_of(chip: Any, instruction: str | None, a: Any, b: Any) -> Model:
    if instruction is None and not isinstance(chip, Model) and isinstance(a, Array) and isinstance(b, Array):
        return default_model(chip, a.format, b.format)
    return get_model(chip, instruction)


def operand_codes(x: Any, type_name: str, what: str) -> Codes:
    """Codes as the instruction takes them, from codes or from an Array of the right format."""
    format = word_format(type_name)
    if isinstance(x, Array):
        if x.format == TF32 and type_name in IN_WORDS:
            return np.asarray(x.codes << np.uint32(13), np.uint32)
        if x.format != format:
            raise InputError(f"{what} is {x.format.title}, the instruction takes {type_name} ({format.title}) there. "
                             f"Example: {what}.astype('{format}')")  # fmt: skip
        return x.codes
    try:
        return check_codes(x, format)
    except InputError as error:
        raise InputError(f"{what} ({type_name}): {error}") from None


def scale_codes(x: Any, model: Model, what: str) -> Codes | None:
    if (x is None) != (not model.scale):
        if x is None:
            raise InputError(f"{what} is missing: {model} takes a {model.scale} scale for every {model.scale_block} "
                             f"elements of K. Example: {what}=np.full((..., {model.k // model.scale_block}), "
                             f"{'127' if model.scale == 'ue8m0' else '0x38'}, np.uint8) is 1.0")  # fmt: skip
        raise InputError(f"{what}: {model} takes no block scales. Example: chip='b200' has instructions that do.")
    if x is None:
        return None
    if TYPES[model.scale] == UE4M3 and not isinstance(x, Array):
        try:
            x = check_codes(x, E4M3) & np.uint8(0x7F)  # the sign bit is ignored
        except InputError as error:
            raise InputError(f"{what} (ue4m3): {error}") from None
    return operand_codes(x, model.scale, what)


def check_threads(threads: Any) -> None:
    if threads is not None and (not is_whole(threads) or not 1 <= threads <= 1024):
        raise InputError(f"threads={short(threads)}: 1 to 1024, or None for all cores. Example: threads=2")
