"""What a tensor core did to a sum, in words: what text, HTML, pictures and JSON say alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from numsim.show.numbers import digits_for, power_of_two, short, signed, value_text
from numsim.tensorcore.chips import TITLES
from numsim.tensorcore.models import Model
from numsim.values import NAN, Rational, as_fraction

if TYPE_CHECKING:
    from numsim.show.mma_rows import Panel, Row
    from numsim.tensorcore.explain import Block, Cause, MmaExplanation
    from numsim.tensorcore.operands import Note

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SPECIAL = {"nan": "NaN", "inf": "infinity", "-inf": "-infinity"}


# --- numbers ----------------------------------------------------------------------------------------------------------
def amount(x: Fraction, digits: int = 0) -> str:
    """A number in few characters: a power of two as such, else its leading digits (errors: rounded to two or three)."""
    twos = power_of_two(abs(x))
    if twos is not None and not -4 <= twos <= 13:
        return f"{'-' * (x < 0)}2^{twos}"
    if digits:
        return short(x, digits, powers=None)
    return short(x) if len(short(x)) < 9 else signed(x).removeprefix("+")


def rational_text(x: Rational, digits: int = 9) -> str:
    if not x.denominator:
        return "NaN" if x == NAN else "-infinity" if x.sign else "infinity"
    return short(as_fraction(x), digits) if x.numerator else "-0" if x.sign else "0"


def plural(n: int, thing: str) -> str:
    return f"{n} {thing}{'s' * (n != 1)}"


def typeset(text: str) -> str:
    """ASCII as print has it: 2^-14 with its exponent raised, signs for times and minus, and an ellipsis."""
    text = re.sub(r"\^(-?\d+)", lambda m: m[1].translate(_RAISED), text)
    text = re.sub(r"(?<![\w)])-(?=\d|infinity)", "\N{MINUS SIGN}", text)
    return text.replace(" x ", " × ").replace("*", "·").replace("...", "…")


def expression(e: MmaExplanation) -> str:
    """The sum as typed, typeset: every hyphen in it is a minus."""
    return typeset(e.text).replace("-", "\N{MINUS SIGN}")


# --- rows and blocks --------------------------------------------------------------------------------------------------
def value_of(row: Row) -> str:
    return f"{row.times} x {row.words}" if row.times > 1 else row.words


def note(row: Row) -> str:
    """What there is to say of a row, for its right end."""
    lost = amount(abs(row.lost)) if row.lost else ""
    each = " each" if row.times > 1 else ""
    if row.kind == "sum":
        return f"rounding loses {lost}" if row.lost * (1 - 2 * row.minus) > 0 else f"rounding adds {lost}" * bool(lost)
    if row.kind == "exact":
        return f"cut in all: {lost}" if lost else ""
    if lost:
        return f"loses {lost}{each}" if "1" in row.digits[: row.kept] else f"all lost: {lost}{each}"
    if not row.setter or row.exponent is None:
        return ""
    return "sets E" + (", starts with 0" if row.digits[0] == "0" else ", begins above it" * (row.first > row.exponent))


def zeros_text(panel: Panel) -> str:
    if not panel.rows:
        return "the product is 0" if panel.zeros == 1 else f"all {panel.zeros} products are 0"
    return f"{plural(panel.zeros, 'product')} {'is' if panel.zeros == 1 else 'are'} 0"


def window_texts(top: int, edge: int) -> list[str]:
    """What stands above the window, from long to short."""
    return [f"E = {top}: kept down to 2^{edge} (F = {top - edge})", f"E = {top}, F = {top - edge}", f"E = {top}"]


def cause_text(cause: Cause) -> str:
    """ "k 1: infinity * 0 is NaN"."""
    how, special = factors(cause), _SPECIAL[cause.special]
    return f"{cause.name}: {how}" + (f" is {special}" if how != special else "")


def factors(cause: Cause) -> str:
    """ "infinity * 0"."""
    return " * ".join(rational_text(x, 6) for x in cause.factors)


def block_title(index: int, e: MmaExplanation) -> str:
    """ "block 1 of 2: k 0 to 7 and c"."""
    where = e.blocks[index].link.where
    if not where:
        return "at the end c is added and the sum rounded to nearest"
    if list(where) != list(range(where[0], where[-1] + 1)):
        what = f"k {', '.join(map(str, where[:4]))}, ..."
    else:
        what = f"k {where[0]}" if len(where) == 1 else f"k {where[0]} to {where[-1]}"
    what += " and c" if index == 0 and e.model.unit.path != "fp8-as-fp16" else ""
    blocks = _numbered(e, range(len(e.blocks)))
    number = len(_numbered(e, range(index + 1)))
    return f"block {number} of {len(blocks)}: {what}" if len(blocks) > 1 else f"one block: {what}"


def _numbered(e: MmaExplanation, indices: Sequence[int]) -> list[int]:
    """Those that take products; the others add c to them."""
    return [i for i in indices if e.blocks[i].link.where]


def omitted(e: MmaExplanation, indices: Sequence[int]) -> str:
    """Neighbouring blocks that are not shown: "blocks 5 to 14, not shown: none loses anything"."""
    numbered = _numbered(e, indices)
    number = len(_numbered(e, range(indices[0])))
    which = f"block {number + 1}" if len(numbered) == 1 else f"blocks {number + 1} to {number + len(numbered)}"
    hidden = "" if all(e.blocks[i].idle for i in indices) else ", not shown"
    return f"{which if numbered else 'adding c'}{hidden}: {_of_omitted(e, indices)}"


def omitted_in_all(e: MmaExplanation, shown: Sequence[int]) -> str:
    """ "10 blocks not drawn: none loses anything"; empty where all are shown."""
    rest = [i for i in range(len(e.blocks)) if i not in shown]
    return f"{plural(len(rest), 'block')} not drawn: {_of_omitted(e, rest)}" if rest else ""


def _of_omitted(e: MmaExplanation, indices: Sequence[int]) -> str:
    blocks = [e.blocks[i] for i in indices]
    zeros = sum(x.idle for x in blocks)
    if zeros == len(blocks):
        return "only zeros"
    special, most = max(map(loss, blocks))
    if special:
        said = "NaN or infinity stays"
    elif len(blocks) == 1:
        said = f"loses {amount(most) if most else 'nothing'}"
    else:
        said = f"none loses {f'more than {amount(most)}' if most else 'anything'}"
    return f"{said}, {zeros} {'has' if zeros == 1 else 'have'} only zeros" if zeros else said


def loss(block: Block) -> tuple[bool, Fraction]:
    """How much is lost in a block, for comparing: NaN and infinity first; losses of both signs do not cancel."""
    if block.cut is None or block.rounded is None:
        return True, Fraction(0)
    return False, max(abs(block.cut), sum((abs(x.lost) for x in block.items), Fraction(0))) + abs(block.rounded)


def setter_text(block: Block, model: Model) -> str:
    """Where the largest exponent comes from."""
    if not block.sum:
        return ""
    if not block.setters:
        return "the unit's lowest"
    names = [x.name for x in block.setters]
    many = f"{names[0]} and {len(names) - 1} more" if len(names) > 2 else " and ".join(names)
    if all(x.leading < x.term.exponent for x in block.setters):
        return f"from {many}: its first bit is 0, its exponent counts"
    if any(x.leading > x.term.exponent for x in block.setters):
        rule = "scales' exponents" if model.unit.path == "groups" else "factors' exponents"
        return f"from {many}: the {rule} added, nothing is normalised"
    return f"from {many}"


# --- the whole sum ----------------------------------------------------------------------------------------------------
def chip_name(e: MmaExplanation) -> str:
    """ "H100"."""
    return TITLES.get(e.model.chip, e.model.chip).partition(" (")[0]


def finding(e: MmaExplanation) -> str:
    """What happened, in one sentence that begins with the chip.

    >>> from numsim.tensorcore import explain_mma
    >>> finding(explain_mma([1] + [2**-7] * 31, [1] + [2**-7] * 31, chip="h100", format="e4m3"))
    'H100: 31 of 32 products are lost, 1 instead of 1.0018...'
    """
    chip, result = chip_name(e), value_text(e.code, e.format)
    for x in e.blocks:
        if x.causes:
            kinds = {cause.special for cause in x.causes}
            if "nan" not in kinds and len(kinds) > 1:
                return f"{chip}: {result}, because infinities of both signs meet"
            return f"{chip}: {result}, because {x.causes[0].name} is {factors(x.causes[0])}"
    if e.exact is None or e.value is None:
        return f"{chip}: {result}, the sum leaves the range of {e.format.title}"
    if not e.lost:
        return f"{chip}: {result} is exact{', although bits were lost on the way' if hidden(e) else ''}"
    what, right = _what_is_lost(e), e.nearest == e.code
    if right:
        result = short(e.value, 10)
        return f"{chip}: {what}; {result} is still rounded correctly" if what else (
            f"{chip}: {result} is the exact sum, correctly rounded to {e.format.title}")  # fmt: skip
    return f"{chip}: {what or f'only the rounding to {e.format.title} loses something'}, {_instead(e.value, e.exact)}"


def _what_is_lost(e: MmaExplanation) -> str:
    """Which terms lose bits; empty where only the rounding of the result does."""
    terms = [i for x in e.blocks for i in x.items]
    of = f"of {plural(e.count, 'product')}"
    if gone := sum(i.products for i in terms if i.value and not i.kept):
        return f"{gone} {of} {'is' if gone == 1 else 'are'} lost"
    cut, rounded = losses(e)
    if abs(rounded) >= abs(cut):
        return f"rounding to {e.format.title} loses most" if cut else ""
    if hurt := sum(i.products for i in terms if i.lost):
        return f"{hurt} {of} {'loses' if hurt == 1 else 'lose'} bits"
    return "c loses bits" if any(i.lost for i in terms) else "bits are lost inside the unit"


def _instead(x: Fraction, exact: Fraction) -> str:
    """A result and the exact sum with enough digits to tell them apart.

    >>> _instead(Fraction(1), Fraction(100189208984375, 10**14))
    '1 instead of 1.0018...'
    """
    apart = abs(x - exact) / max(abs(x), abs(exact))
    if apart * 10**11 < 1:
        return f"{short(x, 9)} is off by {amount(abs(x - exact))}"
    count = next(n for n in range(1, 12) if apart * 10**n >= 1) + 2
    powers = (-10, 20) if apart == 1 else None
    return f"{short(x, count, powers=powers)} instead of {short(exact, count, powers=powers)}"


def losses(e: MmaExplanation) -> tuple[Fraction, Fraction]:
    """What was lost before the roundings, and by them; blocks of NaN and infinity count as nothing."""
    return (sum((x.cut or Fraction(0) for x in e.blocks), Fraction(0)),
            sum((x.rounded or Fraction(0) for x in e.blocks), Fraction(0)))  # fmt: skip


def hidden(e: MmaExplanation) -> bool:
    """Whether something was lost on the way."""
    return any(x.cut or x.rounded for x in e.blocks)


def verdict(e: MmaExplanation) -> list[str]:
    """How far off the result is, and by what; the result of one correct rounding."""
    if e.exact is None or e.value is None or e.nearest is None:
        return []
    said = []
    if e.lost or hidden(e):
        far = "the exact sum, although bits were lost on the way"
        if e.lost:
            percent = "" if e.relative_error is None else f" ({_unsigned(e.relative_error * 100)} %)"
            far = f"{short(abs(e.lost), 12)} {'below' if e.lost > 0 else 'above'} the exact sum{percent}"
        said.append(f"{far}: {_causes(e)}")
    same = "the same" if e.nearest == e.code else value_text(e.nearest, e.format)
    said.append(f"exact sum rounded once to nearest {e.format.title}: {same}")
    return said


def _causes(e: MmaExplanation) -> str:
    """What cutting and rounding each did to the result: "aligning +2^-23, rounding -2^-24"."""
    cut, rounded = losses(e)
    how = "aligning" if any(x.sum for x in e.blocks) else "what the unit does inside"
    if not (cut and rounded):
        return f"all by {how}" if cut else "all by rounding" if rounded else "it cancels"
    return ", ".join(
        f"{name} {'-' if x > 0 else '+'}{short(abs(x), 12)}" for name, x in ((how, cut), ("rounding", rounded))
    )


def _unsigned(x: Fraction) -> str:
    return signed(abs(x)).removeprefix("+")


def legend(panels: Sequence[Panel]) -> str:
    """What squares and colours of a picture mean; empty where none are drawn."""
    if not any(p.rows for p in panels):
        return ""
    acc = " (acc: the sum so far)" if any(r.label == "acc" for p in panels for r in p.rows) else ""
    said = f"One row for each term; a square is a bit, blue products, green what they are added to{acc}."
    if any(p.top is not None for p in panels):
        said += " All are shifted to the largest exponent E (framed); what lies F bits below it is cut (hatched)."
    return said


def note_text(note: Note) -> str:
    """ "a: 0.1 is 0.1015625 in E4M3"."""
    if note.kind == "upper bits":
        return f"{note.what}: the unit reads only the upper 19 bits of these FP32 words"
    if note.kind == "ones":
        return f"{note.what}: 1 from number {note.number} on" if note.number else f"{note.what}: 1"
    exact, format = note.value, note.format
    near = exact.numerator / exact.denominator if abs(exact) < 2**1000 else 0.0
    written = repr(near).removesuffix(".0") if Fraction(near) == exact else short(exact, digits_for(format))
    more = f" ({note.number} numbers are rounded)" if note.number > 1 else ""
    return f"{note.what}: {written} is {value_text(note.code, format)} in {format.title}{more}"
