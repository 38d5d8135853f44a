"""What the machines on this CPU share: which questions a numerics library can answer, and how it answers them.

Such a machine rounds to nearest-even, in hardware or in its own code, and has no other policies. It answers only what
the library really computes with the roundings that the question names; for everything else ``can`` says why not.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import host
from numsim.codes import code_dtype
from numsim.errors import UnavailableError, short
from numsim.formats import Format, get_format
from numsim.machines import orders
from numsim.machines.question import AMAX, LIBRARY, MMA, REPLAYS, SUMS, Answer, Can, Question


class Library:
    """A machine made of a library's arrays. Subclasses fill in the names below and four small methods."""

    name: str
    title: str
    packages: tuple[str, ...]  # whose versions go into the provenance

    # --- to be filled in -------------------------------------------------------------------------------------------
    @property
    def dtypes(self) -> Mapping[str, Any]:
        """The library's type for each format that it converts between."""
        raise NotImplementedError

    @property
    def own(self) -> tuple[str, ...]:
        """Formats of which a cast has one at least on either side: other casts are another library's."""
        return tuple(self.dtypes)

    @property
    def computes(self) -> tuple[str, ...]:
        """Formats that it adds and multiplies in."""
        return self.own

    def missing(self) -> str:
        """What is missing here, or nothing."""
        return ""

    def load(self, codes: npt.NDArray[Any], format: Format) -> Any:
        """Codes as the library's array: the same bits, a copy."""
        raise NotImplementedError

    def store(self, array: Any, format: Format) -> npt.NDArray[Any]:
        """The library's array as codes: the same bits."""
        raise NotImplementedError

    def convert(self, array: Any, format: Format) -> Any:
        raise NotImplementedError

    def converts(self, source: Format, target: Format) -> bool:
        """Whether the library has this cast, of two formats that it has."""
        return True

    def apply(self, operation: str, *arrays: Any) -> Any:
        """add, sub, mul, div or sqrt in the arrays' own format."""
        raise NotImplementedError

    def multiply(self, a: Any, b: Any) -> Any:
        """The library's own matrix product, in whatever order it adds."""
        raise NotImplementedError

    def amax(self, array: Any, format: Format) -> Any:
        """The largest magnitudes along the last axis, which is not empty; NaN where there is one."""
        raise NotImplementedError

    def running(self, array: Any) -> Any:
        """Running sums along axis 0, each rounded."""
        return self.stack(list(orders.sequential(array, self._add)))

    def stack(self, arrays: list[Any]) -> Any:
        return np.stack(arrays)

    # --- what a machine is -----------------------------------------------------------------------------------------
    def provenance(self) -> dict[str, Any]:
        return dict(host.provenance(self.name, *self.packages))

    def can(self, question: Question | None = None) -> Can:
        if missing := self.missing():
            return Can(False, missing)
        if host.flushes_subnormals():
            return Can(False, "flush-to-zero is switched on in this process (by another library)")
        if not host.rounds_to_nearest():
            return Can(False, "this process does not round to nearest (another library chose so)")
        reason = self._why_not(question) if question is not None else ""
        return Can(not reason, reason)

    def _why_not(self, q: Question) -> str:
        for option, only in (("rounding", "nearest-even"), ("overflow", "ieee"), ("subnormals", "keep")):
            if (value := getattr(q, option)) != only:
                return f"{self.name} has no {option}={value}"
        if q.operation in SUMS and q.order not in orders.ORDERS:
            return f"{self.name} has no order={short(q.order)}"
        if q.operation in REPLAYS:
            return f"{self.name} has no {q.operation} of {q.system}"
        if q.operation == LIBRARY:
            return f"{self.name} has no {q.system}"
        if q.operation == AMAX:
            return "" if q.output.name in self.own else f"{self.name} has no amax of {q.output}"
        formats = [f.name for f in (*q.inputs, q.output)]
        if q.operation == "cast":
            unknown = [f for f in formats if f not in self.dtypes]
            if unknown:
                return f"{self.name} has no {unknown[0]}"
            own = set(formats) & set(self.own) and self.converts(q.inputs[0], q.output)
            return "" if own else f"{self.name} has no cast from {formats[0]} to {formats[1]}"
        if q.operation == MMA and q.chip is not None:
            return f"{self.name} has no tensor cores"
        if unknown := [f for f in formats if f not in self.computes]:
            return f"{self.name} has no arithmetic in {unknown[0]}"
        if q.operation == MMA:
            same = len({*q.inputs, q.output}) == 1
            return "" if same else f"{self.name} multiplies numbers of one format, and gives that format"
        if q.operation == "fma":
            return f"{self.name} has no fused multiply-add"
        if wide := [f for f in q.inputs if not f.fits(q.output)]:
            return f"{self.name} would round {wide[0]} operands to {q.output} first"
        if len(q.inputs) == 2 and q.operation in SUMS:
            product = product_format(q)
            if product is None:
                return f"{self.name} rounds each product, and {q.output} does not hold them exactly"
            if product.name not in self.computes or not all(f.fits(product) for f in q.inputs):
                return f"{self.name} has no products in {product}"
            if not product.fits(q.output):
                return f"{self.name} would round {product} products to {q.output} first"
        return ""

    def answer(self, question: Question) -> Answer:
        if not (can := self.can(question)):
            raise UnavailableError(f"{self.name} cannot answer {question}: {can.reason}.")
        try:
            with np.errstate(all="ignore"):
                codes = self._answer(question)
        except UnavailableError:
            raise
        except (TypeError, NotImplementedError, RuntimeError) as error:  # an older version may lack this one
            raise self.failed(f"{self.name} failed at {question}: {' '.join(str(error).split())[:120]}") from error
        return Answer(codes, self.provenance())

    def failed(self, told: str) -> UnavailableError:
        """The error to raise where the library failed at a question."""
        return UnavailableError(told)

    def _answer(self, q: Question) -> npt.NDArray[Any]:
        if q.operation == "cast":
            return self.store(self.convert(self.load(q.arrays[0], q.inputs[0]), q.output), q.output)
        if q.operation == AMAX:
            if 0 in q.arrays[0].shape:
                return np.zeros(q.shape, code_dtype(q.output))
            return self.store(self.amax(self.load(q.arrays[0], q.output), q.output), q.output)
        if q.operation == MMA:
            a, b, c = (self.load(x, f) for x, f in zip(q.arrays, q.inputs, strict=True))
            return self.store(self.multiply(a[..., None, :], b[..., :, None])[..., 0, 0] + c, q.output)
        target = q.output if q.operation not in SUMS or len(q.inputs) == 1 else product_format(q) or q.output
        arrays = [self._widen(self.load(a, f), f, target) for a, f in zip(q.arrays, q.inputs, strict=True)]
        if q.operation not in SUMS:
            return self.store(self.apply(q.operation, *arrays), q.output)
        return self._sum(q, arrays, target)

    def _sum(self, q: Question, arrays: list[Any], product: Format) -> npt.NDArray[Any]:
        """Sums as the library's own additions, one term after another."""
        empty = np.zeros(q.shape, code_dtype(q.output))  # an empty sum is +0
        k = q.arrays[0].shape[-1]
        if not k or 0 in q.shape:
            return empty
        if q.operation == "matmul":
            a, b = arrays
            products = (self.apply("mul", a[..., :, i, None], b[..., None, i, :]) for i in range(k))
            terms = (self._widen(p, product, q.output) for p in products)
        else:
            array = self.apply("mul", *arrays) if len(arrays) == 2 else arrays[0]
            rows = self._widen(array, product, q.output).reshape(-1, array.shape[-1])
            if q.order == "sequential":
                trail = self.store(self.running(rows.T), q.output)  # (k, rows)
                return np.ascontiguousarray(trail.T if q.operation == "cumsum" else trail[-1]).reshape(q.shape)
            terms = (rows[:, i] for i in range(rows.shape[-1]))
        if q.order == "pairwise":
            return self.store(orders.pairwise(terms, self._add), q.output).reshape(q.shape)
        kahan = q.order == "kahan"
        running = orders.kahan(terms, self._add, self._sub) if kahan else orders.sequential(terms, self._add)
        if q.operation == "cumsum":
            return np.stack([self.store(x, q.output) for x in running], axis=-1).reshape(q.shape)
        return self.store(orders.last(running), q.output).reshape(q.shape)

    def _widen(self, array: Any, source: Format, target: Format) -> Any:
        return array if source == target else self.convert(array, target)

    def _add(self, x: Any, y: Any) -> Any:
        return self.apply("add", x, y)

    def _sub(self, x: Any, y: Any) -> Any:
        return self.apply("sub", x, y)


def product_format(q: Question) -> Format | None:
    """The format in which a library has to multiply: the question's, or one that holds exact products; None if none."""
    if q.product is None:
        return q.output
    if q.product != "exact":
        return get_format(q.product)
    x, y = q.inputs
    spacing = Fraction(2) ** (x.emin - x.fraction_bits + y.emin - y.fraction_bits)
    exact = (
        x.precision + y.precision <= q.output.precision
        and spacing >= Fraction(2) ** (q.output.emin - q.output.fraction_bits)
        and x.max * y.max <= q.output.max
    )
    return q.output if exact else None
