"""Codes and explanations as plain dictionaries for JSON, with nothing cut."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from numsim._version import __version__
from numsim.codes import classify
from numsim.formats import Format
from numsim.show.numbers import (
    bit_fields,
    both_neighbours,
    exact_decimal,
    fraction_text,
    hex_code,
    short,
    signed,
)
from numsim.show.words import event, reason, story
from numsim.values import NAN, Rational, as_fraction, to_rational

if TYPE_CHECKING:
    from numsim.explain import Explanation, Step


def _number(x: Rational, irrational: bool = False) -> dict[str, Any]:
    """A number with nothing cut; "decimal" is null where the digits never end."""
    if not x.denominator:
        return {"special": "nan" if x == NAN else "-inf" if x.sign else "inf"}
    value = as_fraction(x)
    if irrational:
        return {"about": short(value, 30), "irrational": True}
    minus_zero = "-" if x.sign and not x.numerator else ""
    decimal = exact_decimal(value)
    return {"fraction": minus_zero + fraction_text(value), "decimal": decimal and minus_zero + decimal}


def code_dict(code: int, format: Format) -> dict[str, Any]:
    """A code and all that it stands for."""
    return {
        "format": format.name,
        "code": code,
        "hex": hex_code(code, format),
        "bits": "|".join(bits for _, bits in bit_fields(code, format)),
        "class": str(classify(code, format)),
        **_number(to_rational(code, format)),
    }


def _step_dict(step: Step) -> dict[str, Any]:
    place = step.place
    exact = None if place is None else {
        "kept": place.kept, "rest": place.rest, "exponent": place.exponent, "guard": place.guard,
        "sticky": place.sticky, "tie": place.tie, "moved": place.moved, "part": fraction_text(place.part),
        "lower": fraction_text(place.lower), "upper": fraction_text(place.upper),
    }  # fmt: skip
    return {
        "text": step.text,
        "operation": step.operation or "operand",
        "operands": [hex_code(c, step.format) for c in step.operands],
        "exact": _number(step.exact, step.irrational),
        "rounding": exact,
        "draw": step.random if step.policy.rounding == "stochastic" else None,
        "result": code_dict(step.code, step.format),
        "error": _error(step.error, step),
        "error_ulp": _error(step.error_ulp, step),
        "ulp": None if step.spacing is None else fraction_text(step.spacing),
        "event": event(step) or None,
        "reason": reason(step),
        "story": story(step),
    }


def _error(x: Fraction | None, step: Step) -> str | None:
    return None if x is None else f"about {signed(x)}" if step.irrational else fraction_text(x)


def explanation_dict(e: Explanation) -> dict[str, Any]:
    """An explanation with nothing cut or rounded, as strings and integers."""
    return {
        "numsim": __version__,
        "expression": e.text,
        "format": e.format.name,
        "rounding": e.policy.rounding,
        "overflow": e.policy.overflow,
        "subnormals": e.policy.subnormals,
        "seed": e.seed,
        "result": code_dict(e.code, e.format),
        "neighbours": [c if c is None else code_dict(c, e.format) for c in both_neighbours(e.code, e.format)],
        "unrounded": None if e.true is None else _number(e.true, e.true_irrational),
        "relative_error": _relative(e.relative_error, e),
        "steps": [_step_dict(step) for step in e.steps],
        "elsewhere": [
            {
                **({"format": o.format.name, "code": None} if o.code is None else code_dict(o.code, o.format)),
                "relative_error": _relative(o.relative_error, e),
            }
            for o in e.elsewhere
        ],
        "notes": list(e.notes),
    }  # fmt: skip


def _relative(x: Fraction | None, e: Explanation) -> str | None:
    return None if x is None else f"about {signed(x)}" if e.true_irrational else fraction_text(x)
