"""Products of block-scaled arrays by the definition: exact dot products of blocks, rounded where they are added.

Two ways give the same bits: fractions, which always serve, and float64, where it provably loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from numsim.arithmetic import add, mul
from numsim.array import Array
from numsim.blocks.codebooks import Codebook
from numsim.codes import code_dtype
from numsim.errors import check_choice
from numsim.formats import FP32, Format, get_format
from numsim.rounding import Policy, encode, round_rational, round_to
from numsim.values import Rational, rational, to_rational

Doubles = npt.NDArray[np.float64]
T = TypeVar("T")
_POLICY = Policy(nan="max")


class Rows(NamedTuple):
    """One factor, with K last."""

    elements: Doubles  # (rows, K)
    scales: Doubles  # (rows, K / step)
    step: int  # so many numbers along K share a scale
    tensor: float
    element: Format | Codebook


class _Blocks(NamedTuple):
    """All pairs of blocks: sum of products x scale x scale x 2^-point, and what is to become of them."""

    sums: list[npt.NDArray[Any]]  # (M, N) each, whole numbers
    scales: list[tuple[Doubles, Doubles]]  # (M,) and (N,); what is not finite as 0
    bits: int  # that a sum has at most
    point: int
    special: Doubles | None
    tensors: tuple[float, float]


def defined(a: Rows, b: Rows, accumulator: Any, order: str, output: Any) -> Array:
    """Rows of a with rows of b; see ``numsim.blocks.matmul``."""
    check_choice("order", order, ("sequential", "pairwise"), 'order="pairwise"')
    exactly = isinstance(accumulator, str) and accumulator == "exact"
    inside = None if exactly else get_format(accumulator)
    target = get_format(output) if output is not None else inside or FP32
    step = math.gcd(a.step, b.step)
    blocks, shape = _blocks(a, b, step), (len(a.elements), len(b.elements))
    if inside is not None and _fits_float64(blocks, inside, target):
        codes = _by_float64(blocks, shape, inside, order, target)
    else:
        codes = _by_fractions(blocks, shape, inside, order, target)
    between = "blocks added exactly" if inside is None else f"{order} sum of blocks in {inside}"
    return Array(codes, target, f"exact dot products of blocks of {step}, {between}, rounded once to {target}")


def _blocks(a: Rows, b: Rows, step: int) -> _Blocks:
    (left, down), (right, down_b) = _whole_numbers(a), _whole_numbers(b)
    bits = (int(np.abs(left).max(initial=0)) * int(np.abs(right).max(initial=0)) * step).bit_length()
    starts = range(0, left.shape[1], step) if step else range(0)
    if bits <= 53:  # exact in float64, in any order
        left, right = left.astype(np.float64), right.astype(np.float64)
        sums = [np.einsum("ik,jk->ij", left[:, i : i + step], right[:, i : i + step]) for i in starts]
    else:
        left, right = left.astype(object), right.astype(object)
        sums = [left[:, i : i + step] @ right[:, i : i + step].T for i in starts]
    scales = [tuple(np.where(np.isfinite(x.scales), x.scales, 0)[:, i // x.step] for x in (a, b)) for i in starts]
    return _Blocks(sums, scales, bits, down + down_b, _specials(a, b), (a.tensor, b.tensor))  # type: ignore[arg-type]


def _whole_numbers(x: Rows) -> tuple[npt.NDArray[Any], int]:
    """Elements times 2^p as whole numbers, as small as they can be, and p; what is not finite as 0."""
    element = x.element
    if isinstance(element, Codebook):
        point = max(v.denominator for v in element.values).bit_length() - 1
        largest = max(map(abs, element.values))
    else:
        point, largest = element.fraction_bits - element.emin, Fraction(element.max)
    finite = np.where(np.isfinite(x.elements), x.elements, 0)
    if largest * Fraction(2) ** point < 2**53:
        whole = np.ldexp(finite, point).astype(np.int64)
    else:
        whole = np.asarray(np.frompyfunc(lambda v: int(Fraction(v) * Fraction(2) ** point), 1, 1)(finite), object)
    zeros = max(_trailing_zeros(int(np.bitwise_or.reduce(whole, axis=None, initial=0))), 0)
    return whole >> zeros, point - zeros


def _trailing_zeros(n: int) -> int:
    """Of a whole number in binary; -1 for 0."""
    return (n & -n).bit_length() - 1


def _specials(a: Rows, b: Rows) -> Doubles | None:
    """Where infinities and NaN decide, the result: float64's sums know them, in any order. None: there are none."""
    if all(np.isfinite(x.elements).all() and np.isfinite(x.scales).all() for x in (a, b)):
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        x, y = (r.elements * r.scales.repeat(r.step, axis=1) for r in (a, b))
        return np.asarray(np.einsum("ik,jk->ij", x, y))


def _add_up(terms: list[T], rounded: Callable[[T], T], plus: Callable[[T, T], T], order: str) -> T:
    """Terms in an order, each sum rounded; of a single one what rounding makes of it."""
    if order == "sequential" or len(terms) == 1:
        return reduce(plus, terms[1:], rounded(terms[0]))
    while len(terms) > 1:
        terms = [plus(*terms[i : i + 2]) if i + 1 < len(terms) else terms[i] for i in range(0, len(terms), 2)]
    return terms[0]


# --- by fractions -----------------------------------------------------------------------------------------------------
def _by_fractions(
    blocks: _Blocks, shape: tuple[int, int], inside: Format | None, order: str, target: Format
) -> npt.NDArray[Any]:
    scales = [(_halves(x), _halves(y)) for x, y in blocks.scales]
    tensor = mul(rational(blocks.tensors[0]), rational(blocks.tensors[1]))
    codes = np.zeros(shape, code_dtype(target))
    for i, j in np.ndindex(shape):
        if blocks.special is not None and not np.isfinite(blocks.special[i, j]):
            total = rational(blocks.special[i, j])
        else:
            pairs = zip(blocks.sums, scales, strict=True)
            terms = [_term(int(s[i, j]), x[i], y[j], blocks.point) for s, (x, y) in pairs]
            total = _exact_sum(terms) if inside is None else _rounded_sum(terms, inside, order)
        codes[i, j] = round_rational(mul(total, tensor), target, _POLICY)
    return codes


def _halves(scales: Doubles) -> list[tuple[int, int]]:
    """Each scale as whole number x 2^exponent."""
    significands, exponents = np.frexp(scales)
    return list(zip(np.ldexp(significands, 53).astype(np.int64).tolist(), (exponents - 53).tolist(), strict=True))


def _term(total: int, x: tuple[int, int], y: tuple[int, int], point: int) -> Rational:
    """A pair of blocks: sum x scale x scale."""
    n, exponent = total * x[0] * y[0], x[1] + y[1] - point
    return Rational(int(n < 0), abs(n) << max(exponent, 0), 1 << max(-exponent, 0))


def _exact_sum(terms: list[Rational]) -> Rational:
    total = sum((Fraction(-t.numerator if t.sign else t.numerator, t.denominator) for t in terms), Fraction(0))
    return Rational(int(total < 0), abs(total.numerator), total.denominator)


def _rounded_sum(terms: list[Rational], format: Format, order: str) -> Rational:
    def rounded(x: Rational) -> Rational:
        return to_rational(round_rational(x, format, _POLICY), format)

    return _add_up(terms or [Rational(0, 0, 1)], rounded, lambda x, y: rounded(add(x, y)), order)


# --- by float64 -------------------------------------------------------------------------------------------------------
def _fits_float64(blocks: _Blocks, inside: Format, target: Format) -> bool:
    """Whether all terms are float64 numbers, far from its ends, and two bits more than any result has are left."""
    bits = [max(map(_significant_bits, factors), default=1) for factors in zip(*blocks.scales, strict=True)]
    one = blocks.tensors == (1.0, 1.0)
    single = all(math.isfinite(t) and float(np.float32(t)) == t for t in blocks.tensors)
    near = -300 <= inside.emin - inside.fraction_bits and inside.max < 1 << 300 and abs(blocks.point) <= 300
    return (
        blocks.bits + sum(bits) <= 53
        and near
        and inside.fraction_bits <= 28
        and (one or (single and target.fraction_bits <= 50))
    )


def _significant_bits(scales: Doubles) -> int:
    """How many bits the significands of FP32 numbers need at most."""
    whole = int(np.bitwise_or.reduce(np.ldexp(np.frexp(np.abs(scales))[0], 24).astype(np.int64), initial=0))
    return whole.bit_length() - _trailing_zeros(whole)


def _by_float64(
    blocks: _Blocks, shape: tuple[int, int], inside: Format, order: str, target: Format
) -> npt.NDArray[Any]:
    def rounded(x: Doubles) -> Doubles:
        return np.asarray(round_to(x, inside, nan="max"))

    terms = [  # + 0: no term is -0
        np.ldexp(s * x[:, None] * y, -blocks.point) + 0.0 for s, (x, y) in zip(blocks.sums, blocks.scales, strict=True)
    ]
    total = _add_up(terms or [np.zeros(shape)], rounded, lambda x, y: rounded(_sum_to_odd(x, y)), order)
    if blocks.special is not None:
        total = np.where(np.isfinite(blocks.special), total, blocks.special)
    if blocks.tensors != (1.0, 1.0):
        tensor = blocks.tensors[0] * blocks.tensors[1]  # exact: at most 48 bits, of which ``high`` has 24
        significand, exponent = math.frexp(tensor)
        high = math.ldexp(math.floor(math.ldexp(significand, 24)), exponent - 24)
        finite = np.isfinite(total)
        with np.errstate(invalid="ignore"):
            total = np.where(finite, _sum_to_odd(total * high, total * (tensor - high)), total * tensor)
    return np.asarray(encode(total, target, nan="max"))


def _sum_to_odd(x: Doubles, y: Doubles) -> Doubles:
    """x + y rounded to odd: of an inexact sum's two neighbours the one whose last bit is 1.

    To round that again, to at least two bits less, is to round x + y once (Boldo and Melquiond, "Emulation of a FMA and
    correctly rounded sums", IEEE Transactions on Computers 57, 2008). TwoSum (Knuth) says what the addition lost.
    """
    with np.errstate(invalid="ignore"):
        total = x + y
        of_y = total - x
        lost = (x - (total - of_y)) + (y - of_y)
        even = total.view(np.int64) & 1 == 0
        return np.where((lost != 0) & even & np.isfinite(total), np.nextafter(total, np.copysign(np.inf, lost)), total)
