"""What a tensor core does to one sum of products, as a record of exact steps: what is kept, what is cut, and where.

All of it comes from the reference (``block.chain``). The record holds numbers; ``show/`` draws it and finds the words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from numsim.errors import InputError
from numsim.expression import MAX_PRODUCTS
from numsim.formats import FP32, Format, get_format
from numsim.rounding import Policy, round_rational
from numsim.tensorcore import block, cdna
from numsim.tensorcore.block import Link, Operand, Sum, Term
from numsim.tensorcore.models import TYPES, Model
from numsim.tensorcore.operands import EXAMPLE, Note, codes_of, model_for, scales_of
from numsim.tensorcore.products import warn_of
from numsim.values import NAN, Rational, as_fraction, to_rational


# --- the record -------------------------------------------------------------------------------------------------------
class Item(NamedTuple):
    """One term of a block: a product, a group of products, or what they are added to.

    name : "k 3", "group 2", "c", or "acc" for what the block before left. products : how many it is.
    term : significand and exponent as the unit takes them. kept : what of its value enters the sum.
    """

    name: str
    products: int
    term: Term
    kept: Fraction

    @property
    def value(self) -> Fraction:
        return self.term.value

    @property
    def lost(self) -> Fraction:
        """What was cut off when the term was aligned, with its sign."""
        return self.value - self.kept

    @property
    def leading(self) -> int:
        """The exponent of the leading 1. Below ``term.exponent`` where an operand is subnormal."""
        return self.term.unit + abs(self.term.significand).bit_length() - 1


class Cause(NamedTuple):
    """A term that is NaN or infinite: its name as in ``Item``; "nan", "inf" or "-inf"; what it is the product of."""

    name: str
    special: str
    factors: tuple[Rational, ...]


@dataclass(frozen=True)
class Block:
    """One link of the chain, explained.

    items : the terms that are not zero, c last. zeros : how many products are zero.
    causes : the terms that are NaN or infinite.
    levels : for CDNA2, all that is rounded on the way (``cdna.levels``).
    """

    model: Model
    link: Link
    items: tuple[Item, ...]
    zeros: int
    causes: tuple[Cause, ...] = ()
    levels: tuple[tuple[Rational, ...], ...] = ()

    @property
    def code(self) -> int:
        """The code of this block's result."""
        return self.link.code

    @property
    def sum(self) -> Sum | None:
        """Terms, common exponent and sum; None on paths without them, and for special results."""
        return None if self.link.sum is None or self.link.sum.special else self.link.sum

    @property
    def exact(self) -> Fraction | None:
        """The exact sum of the terms; None where NaN or infinity is among them."""
        return None if self.causes else sum((x.value for x in self.items), Fraction(0))

    @property
    def total(self) -> Fraction | None:
        """What the unit has before the last rounding; None for NaN and infinity."""
        if self.sum:
            return self.sum.total * Fraction(2) ** self.sum.unit
        return as_fraction(self.link.exact) if self.link.exact.denominator else None

    @property
    def value(self) -> Fraction | None:
        """The result; None for NaN and infinity."""
        x = to_rational(self.code, TYPES[self.model.d])
        return as_fraction(x) if x.denominator else None

    @property
    def cut(self) -> Fraction | None:
        """What was lost before the last rounding."""
        return None if self.exact is None or self.total is None else self.exact - self.total

    @property
    def rounded(self) -> Fraction | None:
        """What the last rounding lost."""
        return None if self.total is None or self.value is None else self.total - self.value

    @property
    def setters(self) -> tuple[Item, ...]:
        """The terms that have the common exponent; none where that is the unit's floor."""
        return tuple(x for x in self.items if self.sum and x.term.exponent == self.sum.top)

    @property
    def idle(self) -> bool:
        """Whether nothing came, and what was there stayed as it was: a block of padding."""
        new = [x.name for x in self.items if x.products or not self.link.where] + [x.name for x in self.causes]
        return not (set(new) - {"acc"} or self.cut or self.rounded)


@dataclass(frozen=True)
class MmaExplanation:
    """What ``explain_mma`` found: ``str()`` draws it in 80 columns, notebooks show it as HTML, ``draw()`` as a picture.

    a, b, c, scale_a, scale_b : codes as the instruction takes them, zeros filled in. count : the products given.
    blocks : the chain, in order. exact : c and all products added with nothing lost; None where NaN or infinity is
    among them. notes : what became of the numbers before the unit saw them. text : the expression, where one was typed.
    """

    model: Model
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: int
    scale_a: tuple[int, ...]
    scale_b: tuple[int, ...]
    count: int
    blocks: tuple[Block, ...]
    exact: Fraction | None
    notes: tuple[Note, ...] = ()
    text: str = ""

    @property
    def format(self) -> Format:
        """The format of the result."""
        return TYPES[self.model.d]

    @property
    def code(self) -> int:
        """The code of the result."""
        return self.blocks[-1].code

    @property
    def value(self) -> Fraction | None:
        """The result; None for NaN and infinity."""
        return self.blocks[-1].value

    @property
    def nearest(self) -> int | None:
        """The code of ``exact`` correctly rounded to the result's format."""
        if self.exact is None:
            return None
        return round_rational(Rational(int(self.exact < 0), abs(self.exact.numerator), self.exact.denominator),
                              self.format, Policy())  # fmt: skip

    @property
    def lost(self) -> Fraction | None:
        """exact - value: what the blocks cut and what their roundings lost, together."""
        return None if self.exact is None or self.value is None else self.exact - self.value

    @property
    def relative_error(self) -> Fraction | None:
        """(value - exact) / exact; None where that is no number."""
        return -self.lost / self.exact if self.exact and self.lost is not None else None

    def __str__(self) -> str:
        from numsim.show import mma_text, text  # drawing is floors above; only a call for a picture goes there

        return text.plain(mma_text.explanation(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        from numsim.show import mma_html

        return mma_html.explanation(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, exact numbers as strings, for JSON."""
        from numsim.show import mma_record

        return mma_record.explanation_dict(self)

    def draw(self, style: Literal["page", "slide"] = "page", theme: Literal["light", "dark"] = "light") -> Any:
        """The picture of what is kept and what is cut, as a matplotlib figure."""
        from numsim.show import mma_picture

        return mma_picture.draw(self, style=style, theme=theme)


# --- the front door ---------------------------------------------------------------------------------------------------
def explain_mma(
    a: Any, b: Any, c: Any = 0, *, chip: Any, instruction: str | None = None, format: Any = None, scale_a: Any = None,
    scale_b: Any = None,
) -> MmaExplanation:  # fmt: skip
    """Explain how a chip's tensor core adds c and the products a[k] * b[k]: which bits are kept, and which are cut.

    The code of the result is that of ``mma``.

    Rules
    -----
    NaN, Inf, -0, subnormals, overflow : as in ``mma``; the record names the terms that make a result NaN or infinite.

    Parameters
    ----------
    a, b : up to 1024 numbers each, as for ``numsim.encode``, rounded to the instruction's formats (a note says so where
        that changes them); or codes: Arrays, or NumPy arrays of unsigned integers. Zeros fill the last instruction;
        more than the instruction's K are a chain of instructions.
    c : one number or code, in the instruction's c format.
    chip, instruction : see ``numsim.tensorcore.get_model``; without ``instruction`` the chip's first one for operands
        of ``format`` (None: that of Arrays, else FP16).
    scale_a, scale_b : numbers or codes of the block scales, for instructions that have them; what is missing is 1.

    Raises ``InputError`` for shapes, formats and numbers that do not fit.
    Cost: some 30 to 60 microseconds a product. Source: see ``numsim chips CHIP``.

    >>> e = explain_mma([1] + [2**-7] * 31, [1] + [2**-7] * 31, chip="h100", format="e4m3")
    >>> float(e.value), float(e.exact), e.blocks[0].sum.top, e.blocks[0].setters[0].name
    (1.0, 1.00189208984375, 0, 'k 0')
    >>> e.blocks[0].items[1].lost  # of each of the 31: all
    Fraction(1, 16384)
    """
    model = model_for(chip, instruction, format, a, b)
    notes: list[Note] = []
    as_format = None if format is None else get_format(format)
    xs, ys = codes_of(a, model.a, "a", notes, as_format), codes_of(b, model.b, "b", notes, as_format)
    if len(xs) != len(ys) or not 1 <= len(xs) <= MAX_PRODUCTS:
        raise InputError(f"{len(xs)} numbers a and {len(ys)} numbers b: as many of each are needed, 1 to "
                         f"{MAX_PRODUCTS}. {EXAMPLE}")  # fmt: skip
    start = codes_of(c, model.c, "c", notes, None)
    if len(start) != 1:
        raise InputError(f"c has {len(start)} numbers: one result is explained at a time. {EXAMPLE}")
    count = len(xs)
    filled = -count % model.k
    scales = [scales_of(s, model, count + filled, w, notes) for s, w in ((scale_a, "scale_a"), (scale_b, "scale_b"))]
    warn_of(model)
    x, y = (tuple(codes) + (0,) * filled for codes in (xs, ys))
    blocks = tuple(_blocks(model, x, y, start[0], scales[0], scales[1]))
    exact = _exact(model, x, y, start[0], scales[0], scales[1])
    return MmaExplanation(model, x, y, start[0], scales[0], scales[1], count, blocks, exact, tuple(notes))


def _blocks(
    model: Model, a: Sequence[int], b: Sequence[int], c: int, scale_a: Sequence[int], scale_b: Sequence[int]
) -> Iterator[Block]:
    begun = c  # what an instruction began with: FP8 by way of FP16 adds it last
    name = "acc" if model.unit.path == "fp8-as-fp16" else "c"
    for link in block.chain(a, b, c, model, scale_a, scale_b):
        if link.where:
            yield _block(model, link, a, b, [(name, link.c, link.c_type)])
        else:
            yield _block(model, link, a, b, [("acc", link.c, link.c_type), ("c", begun, model.c)])
            begun = link.code
        name = "acc"


def _block(model: Model, link: Link, a: Sequence[int], b: Sequence[int], others: list[tuple[str, int, str]]) -> Block:
    """A link's terms, named; ``others`` are those that are no products."""
    products = [block.multiply(block.operand(a[k], model.a), block.operand(b[k], model.b)) for k in link.where]
    added = [block.operand(code, type_name) for _, code, type_name in others]
    names = [*(f"k {k}" for k in link.where), *(name for name, _, _ in others)]
    causes = [
        Cause(name, x.special, (_number(a[k], model.a), _number(b[k], model.b)))
        for name, k, x in zip(names, link.where, products, strict=False)
        if x.special
    ]
    causes += [Cause(name, x.special, (_number(code, t),))
               for (name, code, t), x in zip(others, added, strict=True) if x.special]  # fmt: skip
    if link.sum and link.sum.special and not causes:
        causes = [Cause("a scale", "nan", (NAN,))]
    levels: tuple[tuple[Rational, ...], ...] = ()
    sizes = [1] * len(products) + [0] * len(others)
    if link.sum:
        terms, kept = link.sum.terms, [Fraction(t) * Fraction(2) ** link.sum.unit for t in link.sum.aligned]
        if model.unit.path == "groups":
            names = [*(f"group {g}" for g in range(len(products) // 16)), *names[len(products) :]]
            sizes = [16] * (len(products) // 16) + [0] * len(others)
    else:
        terms = tuple(_term(x, i) for i, x in enumerate((*products, *added)) if x.significand)
        kept = [t.value for t in terms]
        if model.unit.path == "pairwise" and not causes:
            xs, ys = ([_number(x[k], t) for k in link.where] for x, t in ((a, model.a), (b, model.b)))
            levels = tuple(map(tuple, cdna.levels(xs, ys, to_rational(link.c, FP32), model)))
            kept = [_kept(t, levels[0]) for t in terms]
    items = tuple(Item(names[t.source], sizes[t.source], t, x) for t, x in zip(terms, kept, strict=True))
    zeros = sum(not (x.significand or x.special) for x in products)
    return Block(model, link, items, zeros, tuple(causes), levels)


def _term(x: Operand, source: int) -> Term:
    return Term(x.significand, x.exponent - x.fraction_bits, x.exponent, source)


def _kept(term: Term, products: Sequence[Rational]) -> Fraction:
    """What CDNA2 adds: rounded products; a subnormal c counts as zero."""
    if term.source == len(products):
        return term.value if abs(term.value) >= FP32.least_normal else Fraction(0)
    x = products[term.source]
    return as_fraction(x) if x.denominator else term.value


def _number(code: int, type_name: str) -> Rational:
    """An operand as the unit reads it."""
    return to_rational(block.significant(code, type_name), TYPES[type_name])


def _exact(
    model: Model, a: Sequence[int], b: Sequence[int], c: int, scale_a: Sequence[int], scale_b: Sequence[int]
) -> Fraction | None:
    def numbers(codes: Sequence[int], type_name: str) -> list[Rational]:
        return [_number(x, type_name) for x in codes]

    parts = [numbers(a, model.a), numbers(b, model.b), numbers([c], model.c)]
    scales = [numbers(s, model.scale) for s in (scale_a, scale_b) if model.scale]
    if any(not x.denominator for part in (*parts, *scales) for x in part):
        return None
    total = as_fraction(parts[2][0])
    for k, (x, y) in enumerate(zip(parts[0], parts[1], strict=True)):
        product = as_fraction(x) * as_fraction(y)
        for s in scales:
            product *= as_fraction(s[k // model.scale_block])
        total += product
    return total
