"""What a tensor core did to a sum as a plain dictionary for JSON, with nothing cut: exact numbers as fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from numsim._version import __version__
from numsim.show import mma_words
from numsim.show.numbers import fraction_text, hex_code
from numsim.show.record import code_dict
from numsim.tensorcore.models import TYPES, word_format

if TYPE_CHECKING:
    from numsim.tensorcore.explain import Block, Item, MmaExplanation


def explanation_dict(e: MmaExplanation) -> dict[str, Any]:
    """Codes as hexadecimal text, numbers as fractions; null where a number is NaN or infinite."""
    model, unit = e.model, e.model.unit

    def codes(values: tuple[int, ...], type_name: str) -> list[str]:
        return [hex_code(x, word_format(type_name)) for x in values]

    return {
        "numsim": __version__,
        "expression": e.text or None,
        "chip": model.chip,
        "instruction": model.instruction,
        "evidence": model.evidence.level,
        "unit": {"path": unit.path, "length": unit.length, "fraction_bits": unit.fraction_bits, "floor": unit.floor,
                 "output": unit.output},
        "products": e.count,
        "a": codes(e.a, model.a), "b": codes(e.b, model.b), "c": codes((e.c,), model.c)[0],
        "scale_a": codes(e.scale_a, model.scale) if model.scale else None,
        "scale_b": codes(e.scale_b, model.scale) if model.scale else None,
        "finding": mma_words.finding(e),
        "result": code_dict(e.code, e.format),
        "exact": _text(e.exact),
        "lost": _text(e.lost),
        "relative_error": _text(e.relative_error),
        "nearest": None if e.nearest is None else code_dict(e.nearest, e.format),
        "blocks": [_block(x, e) for x in e.blocks],
        "notes": [mma_words.note_text(note) for note in e.notes],
    }  # fmt: skip


def _block(x: Block, e: MmaExplanation) -> dict[str, Any]:
    return {
        "k": list(x.link.where),
        "before": hex_code(x.link.c, TYPES[x.link.c_type]),
        "special": [
            {"name": cause.name, "kind": cause.special, "from": mma_words.factors(cause)} for cause in x.causes
        ],
        "common_exponent": x.sum.top if x.sum else None,
        "last_place": x.sum.unit if x.sum else None,
        "set_by": [item.name for item in x.setters],
        "terms": [_item(item) for item in x.items],
        "zero_products": x.zeros,
        "exact": _text(x.exact),
        "sum": _text(x.total),
        "lost_before_rounding": _text(x.cut),
        "lost_by_rounding": _text(x.rounded),
        "result": hex_code(x.code, e.format),
    }


def _item(x: Item) -> dict[str, Any]:
    return {
        "name": x.name,
        "value": fraction_text(x.value),
        "significand": f"{x.term.significand:b}",
        "unit": x.term.unit,
        "exponent": x.term.exponent,
        "kept": fraction_text(x.kept),
        "lost": fraction_text(x.lost),
    }


def _text(x: Fraction | None) -> str | None:
    return None if x is None else fraction_text(x)
