"""The sentences of an explanation, in ASCII, so that every terminal can print them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from numsim.formats import Format
from numsim.show.numbers import digits_for, hex_code, short, short_fraction, value_text
from numsim.values import NAN, Rational, as_fraction, to_rational

if TYPE_CHECKING:
    from numsim.explain import Explanation, Place, Step


def special_word(code: int, format: Format) -> str:
    """A result as a word where it has one."""
    x = to_rational(code, format)
    if not x.denominator or not x.numerator:
        return value_text(code, format)
    if code & ~format.sign_mask == format.max_code:
        return "the largest number" if not x.sign else "the most negative number"
    return "the least number" if as_fraction(x) == format.least else value_text(code, format)


def reason(step: Step) -> str:
    """Which way one rounding went, and why, in a few words; the cases follow ``rounding.round_rational``."""
    x, format, name, place = step.exact, step.format, step.format.title, step.place
    result, got = step.result, special_word(step.code, step.format)
    if step.operation == "code":
        return "the code is taken as it is"
    if step.operation == "neg":
        if x == NAN or x.sign == result.sign:
            return "a change of sign is exact"
        return f"{name} has no -0: +0" if not x.numerator else f"{name} has no sign: below zero becomes {got}"
    if x == NAN:
        why = _invalid(step)
        if result != NAN:
            return f"{why}, and {name} has no NaN: {got}" if why else f"{name} has no NaN: {got}"
        return f"{why}: NaN" if why else "NaN stays NaN"
    if x.sign and x.numerator and not format.signed:
        return f"{name} has no sign: below zero becomes {got}"
    if not x.denominator:
        operands = [to_rational(c, format) for c in step.operands]
        if step.operation == "div" and operands[0].denominator:
            if not result.denominator and result != NAN:
                return f"a number divided by zero: {got}"
            saturates = step.policy.overflow == "saturate"
            return (
                f"a number divided by zero is infinite; {'saturate' if saturates else f'{name} has no infinity'}: {got}"
            )
        if result.denominator == 0 and result != NAN:
            return "an infinity stays one" if operands else "infinity is exact"
        return f"{'saturate' if step.policy.overflow == 'saturate' else f'{name} has no infinity'}: {got}"
    if x.numerator == 0:
        if not format.zero:
            return f"{name} has no zero: {got}"
        return f"{name} has no -0: +0" if x.sign and not result.sign else "zero is exact"
    if place is None:
        return f"below the least normal number: {step.policy.subnormals} makes it {got}"
    if place.lower > format.max:
        return f"overflow, {_lacks(place, format)}"
    return "it fits, nothing to round" if place.moved == "exact" else _direction(step)


def _lacks(place: Place, format: Format) -> str:
    """Why there is no code for a magnitude beyond the largest number."""
    top_is_nan = format.specials == "fn" and not format.infinities
    if place.moved == "exact" and top_is_nan and place.lower == format.magnitude(format.max_rank + 1):
        return f"{format.title} keeps this pattern for NaN"
    if place.lower >= 2 * Fraction(2) ** _exponent(format.max):
        return f"{format.title} has no exponent 2^{_exponent(place.lower)}"
    return f"{format.title} has no number here"


def _exponent(x: Fraction) -> int:
    """k where 2^k <= x < 2^(k + 1)."""
    k = x.numerator.bit_length() - x.denominator.bit_length()
    return k if Fraction(2) ** k <= x else k - 1


def _spelled(x: Fraction, count: int = 17) -> str:
    """A number as the headline has it: 16777216 and not 2^24; 2^-24 stays."""
    return short(x, count, powers=(-10, 56))


def _invalid(step: Step) -> str:
    """Why an operation without NaN operands gives NaN; "" where an operand is NaN."""
    operands = [value_text(c, step.format) for c in step.operands]
    if not operands or "NaN" in operands:
        return ""
    if step.operation == "sqrt":
        return "no root of a number below zero"
    if step.operation == "fma":
        return f"{operands[0]} * {operands[1]} + {operands[2]} has no value"
    sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[step.operation]
    return f"{operands[0]} {sign} {operands[1]} has no value"


def _direction(step: Step) -> str:
    place, x = step.place, step.exact
    assert place is not None
    up, down = ("round up", "round down") if not x.sign else ("away from zero", "towards zero")
    went = up if place.moved == "up" else down
    half = "a tie" if place.tie else "above half" if place.guard else "below half"
    match step.policy.rounding:
        case "nearest-even":
            return f"{half}, {went.removeprefix('round ')} to even" if place.tie else f"{half}, {went}"
        case "nearest-away":
            return f"{half}, {went}"
        case "toward-zero":
            return "toward-zero cuts the rest off"
        case "odd":
            return f"inexact: {went} to the odd code"
        case "stochastic":
            return f"{went}, by chance"
        case direction:
            return f"{direction} means towards {'+' if direction == 'up' else '-'}infinity: {went}"


def event(step: Step) -> str:
    """What happened besides rounding: "overflow", "underflow" (to zero), or ""."""
    place, result = step.place, step.result
    if place and (place.upper if place.moved == "up" else place.lower) > step.format.max:
        return "overflow"
    lost = step.exact.numerator > 0 and step.exact.denominator > 0 and result.numerator == 0 and result.denominator > 0
    return "underflow" if lost and step.operation != "neg" else ""


def story(step: Step) -> list[str]:
    """Sentences on what is worth knowing: ties, chance, overflow, underflow, subnormal results, lost operands."""
    place, x, format, result = step.place, step.exact, step.format, step.result
    if place is None:
        return []
    count = digits_for(format)
    exact = _spelled(as_fraction(x), count)
    below, above = (_spelled(-y if x.sign else y, count) for y in (place.lower, place.upper))
    got, told = special_word(step.code, format), []
    over = event(step) == "overflow"
    if place.tie and step.policy.rounding.startswith("nearest"):
        next_up = above + " (which would come next)" * (place.lower == format.max)
        told.append(f"{exact} lies halfway between {below} and {next_up}: a tie.")
        if over:
            told.append(f"The tie goes to {above}{', the even one' * (step.policy.rounding == 'nearest-even')}.")
        else:
            even = "the even one: its last bit is 0" if format.fraction_bits else "the even code"
            rule = even if step.policy.rounding == "nearest-even" else "away from zero"
            told.append(f"The tie goes to {above if place.moved == 'up' else below}, {rule}.")
    if step.policy.rounding == "stochastic" and place.part:
        chances, total = (place.part.numerator << step.random_bits) // place.part.denominator, 1 << step.random_bits
        told.append(f"{exact} lies between {below} and {above}; {chances:,} of {total:,} draws round "
                    f"away from zero. This draw, {step.random:,}, {'is one' if place.moved == 'up' else 'is none'} of "
                    f"them.")  # fmt: skip
    if over:
        largest = (
            f"the most negative number, -{short(format.max)}" if x.sign else f"the largest number, {short(format.max)}"
        )
        beyond = f"{exact} is beyond" if place.lower > format.max else f"rounding takes {exact} past"
        told.append(f"Overflow: {beyond} {largest}; the result is {got}.")
    elif not format.zero and as_fraction(x) < format.least:
        told.append(f"{format.title} has no zero and no subnormals: what is too small becomes {short(format.least)}.")
    elif event(step) == "underflow":
        told.append(f"Underflow: {exact} is not zero and becomes zero; the least number above zero is "
                    f"{short(format.least)}.")  # fmt: skip
    elif place.part and step.kind == "subnormal":
        bits = (abs(as_fraction(result)) / format.least).numerator.bit_length()
        told.append(f"Subnormal: below {short(format.least_normal)} the spacing stays {short(place.spacing)}, so that "
                    f"{bits} of {format.precision} significand bits {'is' if bits == 1 else 'are'} left.")  # fmt: skip
    lost = _lost(step)
    return told if lost is None else [*told, lost]


def _lost(step: Step) -> str | None:
    """Whether an addition or subtraction gave back one operand although the other is not zero."""
    if step.operation not in ("add", "sub") or step.place is None or not step.place.part:
        return None
    a, b = (to_rational(c, step.format) for c in step.operands)
    verb = "adding" if step.operation == "add" else "subtracting"
    if step.result == a and b.numerator:
        return f"So {verb} {_spelled(as_fraction(b))} changes nothing: it is lost."
    minus_b = Rational(b.sign ^ (step.operation == "sub"), b.numerator, b.denominator)
    if step.result == minus_b and a.numerator:
        return f"So {_spelled(as_fraction(a))} is lost beside {_spelled(as_fraction(b))}."
    return None


def headline(e: Explanation) -> str:
    """The result in one line: "2048 + 1 in FP16 is 2048, not 2049"."""
    end = _result_words(e)
    room = 78 - len(f" in {e.format.title} is ") - len(end)
    return f"{_cut(e.text, max(room, 12))} in {e.format.title} is {end}"


def _result_words(e: Explanation) -> str:
    value = e.value
    true = None if e.true is None or not e.true.denominator or e.true_irrational else as_fraction(e.true)
    if not value:  # NaN, infinity, zero
        return value_text(e.code, e.format) + " exactly" * (value == true == 0)
    shown = short(value, digits_for(e.format), powers=None)
    if len(e.steps) > 1 and true is not None and true != value and len(short(true)) <= 20 and "..." not in short(true):
        return f"{shown}, not {short(true)}"
    fraction = short_fraction(value)
    longer = f"{shown} = {fraction} exactly"
    room = 78 - len(e.format.title) - min(len(e.text), 30)
    return (
        longer
        if fraction != shown and len(longer) <= room - 8
        else shown + " exactly" * (true == value and "..." not in shown)
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def sentence(e: Explanation) -> str:
    """The explanation read aloud."""
    return f"{headline(e)}; code {hex_code(e.code, e.format)}, {e.last.kind}; {reason(e.last)}."
