"""Matrix products on a chip's tensor cores.

What ``matmul`` does, in this order; every step can be left out:

1. K is padded with zeros to whole instructions. TF32 operands are truncated by the unit, or rounded first (``tf32``).
2. K is cut into ``split_k`` contiguous parts of whole instructions, as equal as can be. Each is a chain: zero (the
   first part: C) -> instruction -> instruction -> ..., K in index order. With ``promote=n`` the chain starts again from
   zero every n elements of its part, and the results of these pieces are added, one after the other, to an FP32 sum
   that starts at zero (the first part: C).
3. The parts' results are rounded to ``partials`` and added up in FP32, one after the other or in pairs (of neighbours;
   the last one waits where their number is odd).
4. The epilogue: alpha times the result plus beta times C, then one rounding to ``output``.

Apart from the instructions' own arithmetic, every operation is rounded to the nearest FP32 number, ties to even, with
subnormal numbers kept; alpha * result + (beta * C) is fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from numsim.arithmetic import compute
from numsim.array import Array
from numsim.codes import Codes, code_dtype
from numsim.errors import InputError, check_choice, short
from numsim.formats import FP32, TF32, Format, get_format
from numsim.rounding import Overflow, Policy, Rounding, convert, encode
from numsim.tensorcore.models import IN_WORDS, TYPES, Model
from numsim.tensorcore.products import check_threads, model_of, operand_codes, scale_codes, twin, warn_of
from numsim.values import is_whole

Tf32 = Literal["truncate", "nearest-away", "nearest-even"]
Words = npt.NDArray[Any]


def matmul(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    chip: Any,
    instruction: str | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    scale_a: Any = None,
    scale_b: Any = None,
    tf32: Tf32 = "truncate",
    promote: int | None = None,
    split_k: int = 1,
    partials: Any = "fp32",
    combine: Literal["serial", "pairwise"] = "serial",
    alpha: float | None = None,
    beta: float | None = None,
    output: Any = None,
    overflow: Overflow = "ieee",
    threads: int | None = None,
    device: Literal["cuda"] | None = None,
) -> Any:
    """A @ B + C as a kernel on the chip computes it that walks K upwards, one instruction after another.

    Rules
    -----
    NaN : as for ``mma``, and so in ``output`` (0x7FFF in BF16, too); the largest number where ``output`` has no NaN.
    Inf, -0, subnormals : in the chains as for ``mma``; in steps 3 and 4 as IEEE 754 has them.
    overflow : in the chains as for ``mma``; of the last rounding as ``overflow`` says, see ``numsim.encode``.

    Parameters
    ----------
    A, B : codes (..., M, K) and (..., K, N), or Arrays; with ``transpose_a`` (..., K, M), ``transpose_b`` (..., N, K).
    C : codes (..., M, N), or of a shape that broadcasts to it such as (N,), in the instruction's c format: where the
        chain starts, so that ``alpha`` scales it, too. None is +0. With ``beta`` it is FP32 and enters in the epilogue.
    chip, instruction : see ``numsim.tensorcore.get_model``; for Arrays the instruction can be left out.
    scale_a, scale_b : codes (..., M, ceil(K / block)) and (..., ceil(K / block), N) of the block scales, also where A
        and B are passed transposed.
    tf32 : what happens to FP32 words before a TF32 instruction: "truncate" (the unit itself), "nearest-away"
        (cvt.rna.tf32) or "nearest-even".
    promote : restart the chain every so many elements of K and add its results up in FP32 (DeepSeek-V3: 128).
    split_k, partials, combine : parts of K; where there are several, the format of their results, and the order in
        which those are added.
    alpha, beta : numbers of the epilogue, rounded to FP32: fma(alpha, result, beta * C); None: 1, and no C. With a
        beta of 0, C is not read, as in BLAS: no NaN comes from it.
    output, overflow : format of the result, and what becomes of numbers beyond it; None: d's format.
    threads : how many; None for all cores. The result does not depend on it.
    device : "cuda" computes the chains on this machine's NVIDIA GPU, of whatever generation: the same bits.

    Returns codes (..., M, N), or an Array if A and B are Arrays; ``how`` names all that was done.
    Raises ``InputError`` for shapes, formats and options that do not go together, ``UnavailableError`` where a GPU is
    asked for and there is none.
    Cost: on one core 0.6 to 6 billion products a second (numsim/kernels/README.md); memory for the result and
    512 columns of K, and a copy of A and B where K is no multiple of the instruction's.
    Source: see ``numsim chips CHIP``; section 3.3.2 of the DeepSeek-V3 report (promotion).

    >>> import numsim
    >>> x = numsim.array([[1.0] + [2.0**-7] * 31], "e4m3")
    >>> matmul(x, x.T, chip="h200"), matmul(x, x.T, chip="b200")  # 1 + 31 * 2^-14: 13 bits against 25
    (numsim.array([[1.0]], 'fp32'), numsim.array([[1.00189208984375]], 'fp32'))
    """
    model = model_of(chip, instruction, A, B)
    a, b = _matrix(A, model.a, "A", transpose_a), _matrix(B, model.b, "B", transpose_b)
    scales = scale_codes(scale_a, model, "scale_a"), scale_codes(scale_b, model, "scale_b")
    shape, k = _result_shape(a, b), a.shape[-1]
    _check_options(model, k, tf32, promote, split_k, combine, alpha, beta, C, threads, device)
    _check_scales(a, b, *scales, shape, model)
    target, between = TYPES[model.d] if output is None else get_format(output), get_format(partials)
    if between.nan_code is None:
        raise InputError(f"partials={short(partials)}: {between.title} has no NaN to pass on. Example: partials='bf16'")
    last, factors = Policy(overflow=overflow, nan="max"), (_factor(alpha, "alpha"), _factor(beta, "beta"))
    c = None if C is None else _start(C, "f32" if beta is not None else model.c, shape)
    warn_of(model)

    if tf32 != "truncate":
        a, b = _rounded_to_tf32(a, tf32), _rounded_to_tf32(b, tf32)
    a, b, scale_a, scale_b = _padded(a, b, *scales, model)
    product = twin("chains", math.prod(shape) * a.shape[-1], model) if device is None else _on_gpu(model)

    def chain(first: int, end: int, start: Words) -> Words:
        """The product over a range of K, one matrix of the batch after another."""
        here, there = slice(first, end), slice(*(x // (model.scale_block or 1) for x in (first, end)))
        scales = (None, None) if scale_a is None else (scale_a[..., there], scale_b[..., there, :])
        parts = [a[..., here], b[..., here, :], start, *scales]
        return _batched(product, parts, model, threads)

    start = np.zeros(shape, code_dtype(TYPES[model.c])) if c is None or beta is not None else c
    result, format = _parts(chain, a.shape[-1], start, model, promote, split_k, between, combine)
    if factors != (None, None) or format != target or overflow != "ieee":
        result = _epilogue(result, c, format, *factors, target, last)
    if not is_nan_free(result, target):
        result = with_nan_of(model, result, target)
    if not (isinstance(A, Array) and isinstance(B, Array)):
        return result
    options = {"tf32": tf32, "promote": promote, "split_k": split_k, "alpha": alpha, "beta": beta, "output": output,
               "overflow": overflow}  # fmt: skip
    usual = {"tf32": "truncate", "split_k": 1, "overflow": "ieee"}
    how = [str(model), *(f"{n}={v}" for n, v in options.items() if v != usual.get(n))]
    how += [f"partials={between}, combine={combine}"] if split_k > 1 else []
    return Array(result, target, ", ".join(how))


def _parts(
    chain: Any, k: int, start: Words, model: Model, promote: int | None, split_k: int, partials: Format,
    combine: str,
) -> tuple[Words, Format]:  # fmt: skip
    """Steps 2 and 3: the chains, and the sums of their results; in which format those are."""
    d = TYPES[model.d]
    tiles = k // model.k
    bounds = [tiles * i // split_k * model.k for i in range(split_k + 1)]
    own = d if promote is None else FP32

    def part(first: int, end: int) -> Words:
        c = start if first == 0 else np.zeros_like(start)
        if promote is None:
            return chain(first, end, c)  # type: ignore[no-any-return]
        total = convert(c, TYPES[model.c], FP32, Policy())
        for at in range(first, end, promote):
            piece = chain(at, min(at + promote, end), np.zeros_like(c))
            total = _plus(total, convert(piece, d, FP32, Policy()))
        return total

    if split_k == 1:
        return part(0, k), own
    sums: list[tuple[int, Words]] = []  # how many times added, and the sum: as few are kept as the order allows
    for first, end in pairwise(bounds):
        times, total = 0, convert(convert(part(first, end), own, partials, Policy()), partials, FP32, Policy())
        while sums and (combine == "serial" or sums[-1][0] == times):
            times, total = times + 1, _plus(sums.pop()[1], total)
        sums.append((times, total))
    total = sums.pop()[1]
    while sums:
        total = _plus(sums.pop()[1], total)
    return total, FP32


def _plus(x: Words, y: Words) -> Words:
    return compute("add", [x, y], [FP32, FP32], FP32, Policy())


def _epilogue(
    y: Words, c: Words | None, format: Format, alpha: Words | None, beta: Words | None, target: Format, last: Policy
) -> Words:
    """Step 4; alpha and beta are FP32 codes, c counts with beta only."""
    if alpha is not None or beta is not None:
        y, format, plus = convert(y, format, FP32, Policy()), FP32, np.zeros((), np.uint32)
        if beta is not None and c is not None and int(beta) & 0x7FFFFFFF:  # times 0, C is not read, as in BLAS
            plus = compute("mul", [beta, c], [FP32, FP32], FP32, Policy())
        factor = np.asarray(encode(1, FP32)) if alpha is None else alpha
        y = compute("fma", [factor, y, plus], [FP32, FP32, FP32], FP32, Policy())
    return convert(y, format, target, last)


def _on_gpu(model: Model) -> Callable[..., Words]:
    from numsim.gpu.emulator import chains  # stands above this room: loaded when it is asked for

    return chains(model)


def _batched(product: Callable[..., Words], parts: list[Any], model: Model, threads: int | None) -> Words:
    """a, b, c and their scales, matrix by matrix."""
    shape = parts[2].shape
    batch, out = shape[:-2], np.zeros(shape, code_dtype(TYPES[model.d]))
    wide = [None if x is None else np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in parts]
    for at in np.ndindex(*batch):
        x, y, z, sx, sy = (None if w is None else w[at] for w in wide)
        out[at] = product(x, y, z, model, sx, sy, threads)
    return out


def is_nan_free(codes: Words, format: Format) -> bool:
    """Whether no code is NaN."""
    return not _nans(codes, format).any()


def with_nan_of(model: Model, codes: Words, format: Format) -> Words:
    """The chip's NaN in place of the canonical one: FP32 additions and conversions give it, too."""
    return np.where(_nans(codes, format), codes.dtype.type(model.nan_of(format)), codes)


def _nans(codes: Words, format: Format) -> npt.NDArray[np.bool_]:
    magnitude = codes & codes.dtype.type(format.codes - 1 - format.sign_mask)
    if format.specials == "fnuz":
        return np.asarray(codes == format.nan_code)
    return np.asarray(magnitude > format.max_code + (format.specials == "ieee"))


# --- operands and options ---------------------------------------------------------------------------------------------
def _matrix(x: Any, type_name: str, what: str, transpose: bool) -> Codes:
    codes = operand_codes(x, type_name, what)
    if not isinstance(transpose, (bool, np.bool_)):
        raise InputError(f"transpose_{what.lower()}={short(transpose)}: True or False is needed.")
    if codes.ndim < 2:
        raise InputError(f"{what} of shape {codes.shape}: a matrix is needed, {what}[None, :] makes a row of a vector.")
    return np.swapaxes(codes, -1, -2) if transpose else codes


def _start(c: Any, type_name: str, shape: tuple[int, ...]) -> Codes:
    codes = operand_codes(c, type_name, "C")
    if not _reaches(codes.shape, shape):
        raise InputError(f"C of shape {codes.shape}: the product has shape {shape}.")
    return np.broadcast_to(codes, shape)


def _padded(
    a: Codes, b: Codes, sa: Codes | None, sb: Codes | None, model: Model
) -> tuple[Codes, Codes, Codes | None, Codes | None]:
    """Operands and scales up to whole instructions: zeros, scaled by 1."""
    more = -a.shape[-1] % model.k
    if sa is not None and sb is not None:
        one, blocks = (
            (127 if model.scale == "ue8m0" else 0x38),
            (a.shape[-1] + more) // model.scale_block - sa.shape[-1],
        )
        sa, sb = _longer(sa, blocks, -1, one), _longer(sb, blocks, -2, one)
    return _longer(a, more, -1, 0), _longer(b, more, -2, 0), sa, sb


def _longer(x: Codes, count: int, axis: int, value: int) -> Codes:
    if not count:
        return x
    shape = list(x.shape)
    shape[axis] = count
    return np.concatenate([x, np.full(shape, value, x.dtype)], axis=axis)


def _rounded_to_tf32(words: Codes, rounding: Rounding) -> Codes:
    """FP32 words rounded to TF32 before the unit sees them."""
    return np.asarray(convert(words, FP32, TF32, Policy(rounding=rounding)) << np.uint32(13), np.uint32)


def _result_shape(a: Codes, b: Codes) -> tuple[int, ...]:
    if a.shape[-1] != b.shape[-2]:
        raise InputError(f"A of shape {a.shape} and B of shape {b.shape}: (..., M, K) and (..., K, N) are needed. "
                         "If B is stored as (N, K): transpose_b=True")  # fmt: skip
    try:
        return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    except ValueError:
        raise InputError(f"A of shape {a.shape} and B of shape {b.shape}: the batches do not go together.") from None


def _check_scales(a: Codes, b: Codes, sa: Codes | None, sb: Codes | None, shape: tuple[int, ...], model: Model) -> None:
    if sa is None or sb is None:
        return
    k = -(-a.shape[-1] // model.scale_block)
    if sa.shape[-2:] != (a.shape[-2], k) or sb.shape[-2:] != (k, b.shape[-1]):
        raise InputError(
            f"scale_a of shape {sa.shape} and scale_b of shape {sb.shape}: ({a.shape[-2]}, {k}) and ({k}, "
            f"{b.shape[-1]}) are needed, one scale for every {model.scale_block} elements of K."
        )
    for scales, what in ((sa, "scale_a"), (sb, "scale_b")):
        if not _reaches(scales.shape[:-2], shape[:-2]):
            raise InputError(f"{what} of shape {scales.shape}: its batches do not go together with those of the "
                             f"product, {shape}.")  # fmt: skip


def _reaches(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _factor(x: Any, name: str) -> Words | None:
    """alpha or beta as an FP32 code."""
    if x is None:
        return None
    try:
        code = np.asarray(encode(x, FP32))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if code.ndim or isinstance(x, (bool, str)):
        raise InputError(f"{name}={short(x)}: one number is needed. Example: {name}=0.5")
    if int(code) & 0x7F800000 == 0x7F800000:
        raise InputError(f"{name}={short(x)}: a finite FP32 number is needed. Example: {name}=0.5")
    return code


def _check_options(
    model: Model, k: int, tf32: Any, promote: Any, split_k: Any, combine: Any, alpha: Any, beta: Any, c: Any,
    threads: Any, device: Any,
) -> None:  # fmt: skip
    if k == 0:
        raise InputError(f"K is 0: there is nothing to multiply. {model} takes any K from 1 on.")
    check_choice("tf32", tf32, ("truncate", "nearest-away", "nearest-even"))
    if tf32 != "truncate" and model.a not in IN_WORDS:
        raise InputError(f"tf32={short(tf32)}: {model} takes no TF32 operands.")
    if promote is not None and (not is_whole(promote) or promote < 1 or promote % model.k):
        raise InputError(f"promote={short(promote)}: a multiple of the instruction's K = {model.k} is needed. "
                         f"Example: promote={max(128, model.k)}")  # fmt: skip
    tiles = -(-k // model.k)
    if not is_whole(split_k) or not 1 <= split_k <= tiles:
        raise InputError(f"split_k={short(split_k)}: 1 to {tiles} parts, for K = {k} is {tiles} instructions long.")
    check_choice("combine", combine, ("serial", "pairwise"))
    if (split_k > 1 or promote is not None or alpha is not None or beta is not None) and model.d == "f64":
        raise InputError("split_k, promote, alpha and beta compute in FP32: not with FP64 results.")
    if beta is not None and c is None:
        raise InputError("beta scales C, and C is missing. Example: matmul(A, B, C, chip='h200', beta=1.0)")
    check_threads(threads)
    if device is not None:
        check_choice("device", device, ("cuda",), "matmul(A, B, chip='h200', device='cuda'); None is this CPU")
