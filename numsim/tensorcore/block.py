"""The reference: how a tensor core adds products, in plain integers, one output at a time.

Read ``block_sum`` first: it is nearly all NVIDIA instructions. Every number is a signed integer significand and an
exponent; nothing here is a float, and nothing depends on the order of the products within a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from numsim.arithmetic import add, fma
from numsim.formats import FP16, FP32
from numsim.rounding import Policy, round_rational
from numsim.tensorcore import cdna
from numsim.tensorcore.models import IN_WORDS, TYPES, Model, Unit
from numsim.values import NAN, Rational, to_rational


class Operand(NamedTuple):
    """A number as the unit decodes it: ``significand * 2^(exponent - fraction_bits)``, or a special.

    A normal number has its significand in [1, 2). A subnormal keeps the format's least exponent and a significand
    below 1: it is not normalised. Zero has significand 0.
    """

    significand: int  # signed, in units of 2^-fraction_bits
    exponent: int
    fraction_bits: int
    special: str = ""  # "nan", "inf", "-inf"


class Term(NamedTuple):
    """What is aligned: ``significand * 2^unit``. ``exponent`` says where the unit takes its leading place to be.

    source : which product of the block it is (or which group); the number after the last is c.
    """

    significand: int
    unit: int
    exponent: int
    source: int

    @property
    def value(self) -> Fraction:
        return Fraction(self.significand) * Fraction(2) ** self.unit


class Sum(NamedTuple):
    """One block, step by step.

    terms : what was aligned, c last; zeros are left out. top : the common exponent E. unit : E - F; ``aligned`` are the
    cut terms and ``total`` their exact sum, in units of 2^unit. code : of the result. special : "nan", "inf" or "-inf"
    where that was decided before any arithmetic, else "".
    """

    terms: tuple[Term, ...]
    top: int
    unit: int
    aligned: tuple[int, ...]
    total: int
    code: int
    special: str = ""


class Link(NamedTuple):
    """One link of the chain that an instruction is: what was there, which products came to it, what was made of it.

    c, c_type : the code before, and its type. where : the places of the products in K. code : the result, of type d.
    sum : the block, step by step; None on paths without one, where ``exact`` is the number that was rounded to d.
    """

    c: int
    c_type: str
    where: Sequence[int]
    code: int
    sum: Sum | None = None
    exact: Rational = NAN


# --- operands ---------------------------------------------------------------------------------------------------------
def significant(code: int, type_name: str) -> int:
    """The bits of a code that the unit looks at, as a code of ``TYPES[type_name]``."""
    if type_name in IN_WORDS:
        return code >> 13  # of an FP32 word the low 13 bits are ignored: a NaN can turn into infinity
    return code & 0x7F if type_name == "ue4m3" else code  # a scale's sign bit is ignored


def operand(code: int, type_name: str) -> Operand:
    """A code as the unit reads it."""
    code, format = significant(code, type_name), TYPES[type_name]
    x = to_rational(code, format)
    if not x.denominator:
        return Operand(0, 0, 0, "nan" if x == NAN else "-inf" if x.sign else "inf")
    rank = format.rank(code & ~format.sign_mask)
    place = max(rank >> format.fraction_bits, 1) - 1  # above the least exponent, where subnormals are
    significand = rank - (place << format.fraction_bits)
    return Operand(-significand if x.sign else significand, format.emin + place, format.fraction_bits)


def multiply(a: Operand, b: Operand) -> Operand:
    """The exact product, not normalised: 1.5 * 1.5 = 2.25 keeps exponent 0."""
    if not (a.special or b.special):
        return Operand(a.significand * b.significand, a.exponent + b.exponent, a.fraction_bits + b.fraction_bits)
    if "nan" in (a.special, b.special) or not (a.special or a.significand) or not (b.special or b.significand):
        return Operand(0, 0, 0, "nan")  # infinity times zero, too
    minus = [x.special == "-inf" or x.significand < 0 for x in (a, b)]
    return Operand(0, 0, 0, "-inf" if minus[0] != minus[1] else "inf")


def special_of(numbers: Sequence[Operand]) -> str:
    """What NaNs and infinities make of a sum: "nan", "inf", "-inf", or "" where all is finite."""
    kinds = {x.special for x in numbers if x.special}
    return "nan" if len(kinds) > 1 else kinds.pop() if kinds else ""  # infinities of both signs are NaN


# --- the algorithm ----------------------------------------------------------------------------------------------------
def block_sum(a: Sequence[Operand], b: Sequence[Operand], c: Operand, model: Model) -> Sum:
    """c + the sum of a[i] * b[i], as one block of the unit computes it."""
    # 1 special values, decided on the operands
    products = [multiply(x, y) for x, y in zip(a, b, strict=True)]
    if special := special_of([*products, c]):
        return special_sum(special, model)
    # 2 exact products; a zero contributes nothing, not even an exponent
    return add_terms([_term(x, model.unit, i) for i, x in enumerate((*products, c)) if x.significand], model)


def add_terms(terms: Sequence[Term], model: Model) -> Sum:
    """Terms aligned to the largest exponent, each cut to F bits below it; added exactly; rounded once."""
    unit = model.unit
    # 3 the common exponent
    top = max([t.exponent for t in terms] + [unit.floor])
    # 4 each term on its own becomes a multiple of 2^(top - F), towards zero: nothing of what is cut is remembered
    last = top - unit.fraction_bits
    aligned = tuple(shift(t.significand, t.unit - last, unit.align) for t in terms)
    # 5 the exact sum
    total = sum(aligned)
    # 6 one conversion
    return Sum(tuple(terms), top, last, aligned, total, output(total, last, unit.output))


def special_sum(special: str, model: Model) -> Sum:
    """A block whose result was decided before any arithmetic."""
    d = TYPES[model.d]
    code = model.nan if special == "nan" else (d.infinity_code or 0) | (d.sign_mask if special == "-inf" else 0)
    return Sum((), 0, 0, (), 0, code, special)


def _term(x: Operand, unit: Unit, source: int) -> Term:
    last = x.exponent - x.fraction_bits
    # what no known chip does: the product's own leading bit instead of the sum of the operands' exponents
    exponent = last + abs(x.significand).bit_length() - 1 if unit.normalised else x.exponent
    return Term(x.significand, last, exponent, source)


def shift(significand: int, left: int, direction: str = "toward-zero") -> int:
    """significand * 2^left as an integer; what does not fit is cut towards zero, or as ``direction`` says."""
    if left >= 0:
        return significand << left
    if direction == "down":
        return significand >> -left
    size = abs(significand)
    kept, rest, half = size >> -left, size & ((1 << -left) - 1), 1 << (-left - 1)
    if direction == "nearest-even":
        kept += rest > half or (rest == half and kept & 1 == 1)
    return -kept if significand < 0 else kept


def output(total: int, unit: int, rule: str) -> int:
    """The code of total * 2^unit by an output rule. Zero is +0, whatever the signs of the terms."""
    if total == 0:
        return 0
    minus, size = int(total < 0), abs(total)
    if rule in ("rne-fp16", "rne-fp32"):
        d = FP16 if rule == "rne-fp16" else FP32
        code = round_rational(Rational(minus, size << max(unit, 0), 1 << max(-unit, 0)), d, Policy())
        return code if code != d.sign_mask else 0  # a negative sum that vanishes is +0, too
    bits = 13 if rule == "rz-e8m13" else 23
    exponent = max(unit + size.bit_length() - 1, FP32.emin)  # of the leading bit; subnormal results share the least
    if exponent > FP32.emax:
        return minus << 31 | 0x7F800000  # infinity, although the rounding is towards zero
    kept = shift(size, unit - (exponent - bits)) << (23 - bits)
    field = exponent - FP32.emin + (kept >> 23)  # 0 for subnormal results
    return minus << 31 | field << 23 | kept & 0x7FFFFF if kept else 0


# --- whole instructions -----------------------------------------------------------------------------------------------
def dot(
    a: Sequence[int], b: Sequence[int], c: int, model: Model, scale_a: Sequence[int] = (), scale_b: Sequence[int] = ()
) -> int:
    """One output: codes a and b of any multiple of the instruction's K, code c, codes of the block scales."""
    for link in chain(a, b, c, model, scale_a, scale_b):
        c = link.code
    return c


def chain(
    a: Sequence[int], b: Sequence[int], c: int, model: Model, scale_a: Sequence[int] = (), scale_b: Sequence[int] = ()
) -> Iterator[Link]:
    """``dot``, link by link: c goes into the first instruction, its result into the next one; K in index order."""
    per = model.k // model.scale_block if model.scale else 0
    c_type = model.c
    for n, k in enumerate(range(0, len(a), model.k)):
        here, scales = slice(k, k + model.k), slice(n * per, (n + 1) * per)
        for link in instruction(a[here], b[here], c, c_type, model, scale_a[scales], scale_b[scales]):
            yield link._replace(where=[k + i for i in link.where])
            c = link.code
        c_type = model.d


def instruction(
    a: Sequence[int], b: Sequence[int], c: int, c_type: str, model: Model,
    scale_a: Sequence[int] = (), scale_b: Sequence[int] = (),
) -> Iterator[Link]:  # fmt: skip
    """One instruction, for one output: its path."""
    yield from _PATHS[model.unit.path](a, b, c, c_type, model, scale_a, scale_b)


def _blocks(
    a: Sequence[int], b: Sequence[int], c: int, c_type: str, model: Model, scale_a: Sequence[int],
    scale_b: Sequence[int],
) -> Iterator[Link]:  # fmt: skip
    xs, ys = _operands(a, model.a, scale_a, model), _operands(b, model.b, scale_b, model)
    for where in pieces(range(len(a)), model.unit.length):
        total = block_sum([xs[k] for k in where], [ys[k] for k in where], operand(c, c_type), model)
        yield Link(c, c_type, where, total.code, total)
        c, c_type = total.code, model.d


def pieces(places: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """Places in runs of a block's length; the last run may be shorter."""
    return (places[k : k + length] for k in range(0, len(places), length))


def _operands(codes: Sequence[int], type_name: str, scales: Sequence[int], model: Model) -> list[Operand]:
    """Operands with their block's E8M0 scale, a power of two: it moves the exponent; a NaN scale makes them NaN."""
    xs = [operand(x, type_name) for x in codes]
    for k in range(len(xs) if scales else 0):
        s = operand(scales[k // model.scale_block], model.scale)
        xs[k] = s if s.special else xs[k]._replace(exponent=xs[k].exponent + s.exponent)
    return xs


def _groups(
    a: Sequence[int], b: Sequence[int], c: int, c_type: str, model: Model, scale_a: Sequence[int],
    scale_b: Sequence[int],
) -> Iterator[Link]:  # fmt: skip
    """FP4 with block scales: 16 products at a time are added exactly, and the scaled sum of a group is one term.

    Its exponent is that of the scales alone. A group of zero products, or with a zero scale, is no term; one whose
    products merely cancel still takes part in the common exponent.
    """
    z, scales = operand(c, c_type), [operand(s, model.scale) for s in (*scale_a, *scale_b)]
    if special := "nan" if special_of(scales) else z.special:  # E2M1 itself has neither NaN nor infinity
        total = special_sum(special, model)
        yield Link(c, c_type, range(len(a)), total.code, total)
        return
    terms = []
    for n, group in enumerate(pieces(range(len(a)), 16)):
        products = [multiply(operand(a[k], model.a), operand(b[k], model.b)) for k in group]
        at = group[0] // model.scale_block
        scale = multiply(scales[at], scales[len(scale_a) + at])
        if scale.significand and any(p.significand for p in products):
            quarters = sum(p.significand << p.exponent for p in products)  # E2M1's products are multiples of 1/4
            last = scale.exponent - scale.fraction_bits - 2
            terms.append(Term(quarters * scale.significand, last, scale.exponent, n))
    terms += [_term(z, model.unit, len(a) // 16)] if z.significand else []
    total = add_terms(terms, model)
    yield Link(c, c_type, range(len(a)), total.code, total)


def _fp8_as_fp16(
    a: Sequence[int], b: Sequence[int], c: int, c_type: str, model: Model, *_: Sequence[int]
) -> Iterator[Link]:
    """FP8 mma.sync on a chip without that unit: the assembler converts to FP16 and takes the FP16 unit twice.

    From zero, the products with k mod 4 in {0, 1} come first, then those in {2, 3}; c is added last, to nearest.
    """
    xs, ys = [as_fp16(operand(x, model.a)) for x in a], [as_fp16(operand(y, model.b)) for y in b]
    code, d = 0, TYPES[model.d]
    for pair in ((0, 1), (2, 3)):
        for where in pieces([k for k in range(len(a)) if k % 4 in pair], model.unit.length):
            total = block_sum([xs[k] for k in where], [ys[k] for k in where], operand(code, model.d), model)
            yield Link(code, model.d, where, total.code, total)
            code = total.code
    exact = add(to_rational(code, d), to_rational(c, TYPES[c_type]))
    yield Link(code, model.d, (), finish(exact, model), None, exact)


def as_fp16(x: Operand) -> Operand:
    """The same number as FP16 holds it: subnormal E4M3 numbers become normal."""
    if x.special or not x.significand:
        return x
    last = x.exponent - x.fraction_bits
    exponent = max(last + abs(x.significand).bit_length() - 1, FP16.emin)
    return Operand(x.significand << (last - (exponent - 10)), exponent, 10)


def _to_nearest(
    a: Sequence[int], b: Sequence[int], c: int, c_type: str, model: Model, *_: Sequence[int]
) -> Iterator[Link]:
    """Units whose every block is an exact number, rounded to nearest: FMA, and AMD's."""
    xs, ys = ([to_rational(significant(x, t), TYPES[t]) for x in codes] for codes, t in ((a, model.a), (b, model.b)))
    path, z = model.unit.path, to_rational(c, TYPES[c_type])
    if path == "pairwise":
        z = cdna.flushed(z, TYPES[c_type])
    for where in pieces(range(len(a)), model.unit.length):
        x, y = [xs[k] for k in where], [ys[k] for k in where]
        exact = fma(x[0], y[0], z) if path == "fma" else cdna.PATHS[path](x, y, z, model)
        yield Link(c, c_type, where, finish(exact, model), None, exact)
        c, c_type = finish(exact, model), model.d
        z = to_rational(c, TYPES[c_type])


def finish(x: Rational, model: Model) -> int:
    """An exact result rounded to d, nearest even."""
    return model.nan if x == NAN else round_rational(x, TYPES[model.d], Policy())


_PATHS: dict[str, Callable[..., Iterator[Link]]] = {
    "block": _blocks, "groups": _groups, "fp8-as-fp16": _fp8_as_fp16, "fma": _to_nearest,
    **dict.fromkeys(cdna.PATHS, _to_nearest),
}  # fmt: skip
