"""What a codebook does to one number, as a record: its neighbours in the list, the limit between them, and the choice.

``show/codebooks.py`` draws it; nothing here is a float.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from numsim.codebooks import Codebook
from numsim.errors import InputError
from numsim.rounding import Policy, draw_for, round_rational
from numsim.values import Rational, as_fraction


@dataclass(frozen=True)
class CodebookExplanation:
    """What ``explain`` found: ``str()`` draws it in 80 columns, notebooks show it, ``to_dict()`` is for JSON.

    between : the codes of the numbers below and above; None for NaN, for a number of the list, and beyond its ends.
    random, random_bits : the draw of a stochastic rounding, and its width.
    """

    text: str
    format: Codebook
    policy: Policy
    exact: Rational
    code: int
    between: tuple[int, int] | None
    random: int = 0
    random_bits: int = 32

    @property
    def value(self) -> Fraction:
        """The number of the list that was taken."""
        return Fraction(self.format.values[self.code])

    @property
    def limit(self) -> Fraction | None:
        """Where nearest rounding decides between the two neighbours."""
        if self.between is None:
            return None
        return self.format.thresholds[list(self.format.order).index(self.between[0])]

    @property
    def error(self) -> Fraction | None:
        """Value minus exact; None where that is no number."""
        return self.value - as_fraction(self.exact) if self.exact.denominator else None

    @property
    def relative_error(self) -> Fraction | None:
        """Error / exact; None where that is no number."""
        error = self.error
        return None if error is None or not self.exact.numerator else error / as_fraction(self.exact)

    def __str__(self) -> str:
        from numsim.show import codebooks, text  # drawing is a floor above; only a call for a picture goes there

        return text.plain(codebooks.explanation(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        from numsim.show import codebooks

        return codebooks.html(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, exact numbers as strings, for JSON."""
        from numsim.show import codebooks

        return codebooks.explanation_dict(self)


def explain_codebook(
    text: str, x: Rational, format: Codebook, policy: Policy, seed: Any, random_bits: Any, sr_bits: int | None
) -> CodebookExplanation:
    """The record of one number; options as for ``numsim.encode``."""
    draw = draw_for(policy, 1, (1,), seed, random_bits, sr_bits)
    random, r = (draw(0), draw.r) if draw else (0, 32)
    code = round_rational(x, format, policy, random, r)
    ordered, between = format.ordered, None
    if x.denominator and ordered[0] < (number := as_fraction(x)) < ordered[-1] and number not in ordered:
        above = next(i for i, v in enumerate(ordered) if v > number)
        between = (int(format.order[above - 1]), int(format.order[above]))
    return CodebookExplanation(text, format, policy, x, code, between, random, r)


def refuse_operation(text: str, format: Codebook) -> InputError:
    return InputError(
        f"{text}: arithmetic is not defined on {format}, which is a list of numbers: one number is looked up. "
        f"Example: numsim.explain(0.3, {format.name!r})"
    )
