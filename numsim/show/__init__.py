"""Pictures and words: exact numbers as text, the sentences of an explanation, and its record for JSON.

Every shortened number ends in "..." and is cut, never rounded. Errors (in ulp and per cent) are rounded to two or
three digits, and positive where the result lies too far from zero; ``explanation_dict`` has them exactly. All words
are ASCII, so that every terminal can print them.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from numsim._version import __version__
from numsim.codes import classify, neighbours
from numsim.formats import Format
from numsim.values import NAN, Rational, as_fraction, to_rational

if TYPE_CHECKING:
    from numsim.explain import Explanation, Step


# --- exact numbers as text -------------------------------------------------------------------------------------------
def digits(n: int) -> str:
    """An integer in decimal, however long (``str`` refuses beyond 4300 digits)."""
    return format(Decimal(n), "f")


def exact_decimal(x: Fraction) -> str | None:
    """All decimal digits of a fraction; None where they never end.

    >>> exact_decimal(Fraction(205, 2048)), exact_decimal(Fraction(1, 3))
    ('0.10009765625', None)
    """
    twos = (x.denominator & -x.denominator).bit_length() - 1
    rest = x.denominator >> twos
    fives = round((rest.bit_length() - 1) / math.log2(5))  # the only candidates: 5^k has about 2.32 k bits
    fives = next((k for k in (fives, fives + 1) if 5**k == rest), -1)
    if fives < 0:
        return None
    places = max(twos, fives)
    text = digits(abs(x.numerator) * (10**places // x.denominator)).rjust(places + 1, "0")
    return ("-" if x < 0 else "") + (f"{text[:-places]}.{text[-places:]}" if places else text)


def _leading(x: Fraction, count: int) -> tuple[int, int, bool]:
    """The first ``count`` decimal digits of x > 0, cut; the power of ten of the first; whether that is all of x."""
    # log10 from the bit lengths, at most one off; then exact
    power = int((x.numerator.bit_length() - x.denominator.bit_length()) * 0.30102999566398120) - 1
    while Fraction(10) ** (power + 1) <= x:
        power += 1
    while Fraction(10) ** power > x:
        power -= 1
    scaled = x * Fraction(10) ** (count - 1 - power)
    return scaled.numerator // scaled.denominator, power, scaled.denominator == 1


def _place_point(text: str, power: int, mark: str = "") -> str:
    """Digits whose first has the weight 10^power, in plain or scientific notation."""
    if -5 <= power < 0:
        return f"0.{'0' * (-power - 1)}{text}{mark}"
    if 0 <= power < len(text):
        return f"{text[: power + 1]}.{text[power + 1 :]}{mark}" if power + 1 < len(text) else text + mark
    if 0 <= power < 16 and not mark:
        return text.ljust(power + 1, "0")
    return f"{text[0]}{'.' * (len(text) > 1)}{text[1:]}{mark}e{power}"


def short(x: Fraction, count: int = 17, *, powers: tuple[int, int] | None = (-10, 20)) -> str:
    """A number in few characters: exact, or its first ``count`` digits and "...".

    powers : a power of two outside of this range of exponents is shown as 2^k; None: never.

    >>> short(Fraction(205, 2048)), short(Fraction(1, 3)), short(Fraction(1, 2**24)), short(Fraction(-65504))
    ('0.10009765625', '0.33333333333333333...', '2^-24', '-65504')
    """
    if x == 0:
        return "0"
    sign, x = "-" if x < 0 else "", abs(x)
    if powers and (k := power_of_two(x)) is not None and not powers[0] <= k <= powers[1]:
        return f"{sign}2^{k}"
    leading, power, complete = _leading(x, count)
    if not complete and 15 <= count < 21:  # a few digits more are better than a mark
        more, _, complete = _leading(x, 21)
        leading = more if complete else leading
    text = digits(leading)
    return sign + (_place_point(text.rstrip("0"), power) if complete else _place_point(text, power, "..."))


def power_of_two(x: Fraction) -> int | None:
    """k where x = 2^k."""
    n, d = x.numerator, x.denominator
    return n.bit_length() - d.bit_length() if n > 0 and n & (n - 1) == 0 and d & (d - 1) == 0 else None


def fraction_text(x: Fraction) -> str:
    """All of a fraction: "205/2048"."""
    return digits(x.numerator) + (f"/{digits(x.denominator)}" if x.denominator != 1 else "")


def short_fraction(x: Fraction) -> str:
    """A dyadic fraction as n/d, n/2^k or n * 2^k, whichever is short."""
    d = x.denominator
    if d.bit_length() <= 21:
        twos = (x.numerator & -x.numerator).bit_length() - 1
        return f"{digits(x.numerator >> twos)} * 2^{twos}" if d == 1 and twos > 40 else fraction_text(x)
    return f"{digits(x.numerator)}/2^{d.bit_length() - 1}"


def signed(x: Fraction) -> str:
    """An error with its sign, rounded to two digits (three from 1 on).

    >>> [signed(Fraction(n, 10**6)) for n in (200000, -24414, 1562500, 0)]
    ['+0.20', '-0.024', '+1.56', '0']
    """
    if x == 0:
        return "0"
    count = 3 if abs(x) >= 1 else 2
    more, power, complete = _leading(abs(x), count + 1)
    rounded = (more + 5) // 10 if more % 10 != 5 or not complete else (more // 10) + (more // 10) % 2
    if rounded == 10**count:
        rounded, power = rounded // 10, power + 1
    text = digits(rounded)
    if -8 < power < 0:
        shown = f"0.{'0' * (-power - 1)}{text}"
    else:
        shown = _place_point(text, power) if 0 <= power < 6 else f"{text[0]}.{text[1:]}e{power}"
    return ("-" if x < 0 else "+") + shown


def digits_for(format: Format) -> int:
    """How many digits tell the numbers of a format apart, with a few to spare."""
    return max(17, format.precision * 3 // 10 + 4)


def value_text(code: int, format: Format, count: int = 0) -> str:
    """The value of a code in few characters."""
    x = to_rational(code, format)
    if x == NAN:
        return "NaN"
    if not x.denominator or not x.numerator:
        return ("-" if x.sign else "") + ("0" if x.denominator else "infinity")
    return short(as_fraction(x), count or digits_for(format))


def hex_code(code: int, format: Format) -> str:
    return f"{code:#0{2 + -(-format.bits // 4)}x}"


def bit_fields(code: int, format: Format) -> list[tuple[str, str]]:
    """The code as ("sign" | "exponent" | "fraction", bits); fields of no width are left out."""
    bits = f"{code:0{format.bits}b}"
    e = format.signed + format.exponent_bits
    fields = [("sign", bits[: format.signed]), ("exponent", bits[format.signed : e]), ("fraction", bits[e:])]
    return [f for f in fields if f[1]]


def both_neighbours(code: int, format: Format) -> tuple[int | None, int | None]:
    """``neighbours``, and none for NaN."""
    return (None, None) if to_rational(code, format) == NAN else neighbours(code, format)


# --- the words of an explanation -------------------------------------------------------------------------------------
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
            return f"a number divided by zero: {got}"
        if result.denominator == 0 and result != NAN:
            return "an infinity stays one" if operands else "infinity is exact"
        return f"{'saturate' if step.policy.overflow == 'saturate' else f'{name} has no infinity'}: {got}"
    if x.numerator == 0:
        if not format.zero:
            return f"{name} has no zero: {got}"
        return f"{name} has no -0: +0" if x.sign and not result.sign else "zero is exact"
    if place is None:
        return f"below the least normal number: {step.policy.subnormals} makes it {got}"
    return "it fits, nothing to round" if place.moved == "exact" else _direction(step)


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
    exact = short(as_fraction(x), count)
    below, above = (short(-y if x.sign else y, count) for y in (place.lower, place.upper))
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
            told.append(f"The tie goes to {value_text(step.code, format)}, {rule}.")
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
        return f"So {verb} {short(as_fraction(b))} changes nothing: it is lost."
    minus_b = Rational(b.sign ^ (step.operation == "sub"), b.numerator, b.denominator)
    if step.result == minus_b and a.numerator:
        return f"So {short(as_fraction(a))} is lost beside {short(as_fraction(b))}."
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


# --- the record, for JSON --------------------------------------------------------------------------------------------
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
