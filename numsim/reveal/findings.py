"""Findings: a unit's properties in words, each with how it was seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from numsim.reveal import trees
from numsim.reveal.probes import SIGNS, large_terms
from numsim.reveal.reading import Reading, Value, lowest_kept, power
from numsim.tensorcore.models import TYPES


@dataclass(frozen=True)
class Finding:
    """One property of a unit.

    name : which. value : a number or a word, None where it is not observable. words : for people, or why not. seen :
    inputs and outputs in short.
    """

    name: str
    value: int | str | None
    words: str
    seen: str = ""


def findings(reading: Reading) -> list[Finding]:
    """All findings, in the order in which people read them."""
    r = reading
    parts = (_order, _precision, _c, _products, _subnormals, _floor,
             _output, _overflow, _zeros, _specials, _words, _scales)  # fmt: skip
    return [f for part in parts for f in part(r)]


def _hidden(name: str, why: str) -> Finding:
    return Finding(name, None, f"not observable: {why}")


def _order(r: Reading) -> Iterator[Finding]:
    k = r.interface.k
    if r.tree is None:
        yield _hidden("block", "these operands show no order")
        return
    text = trees.show(r.tree)
    seen = f"2^{r.interface.top}, -2^{r.interface.top} and 2^{r.interface.lows[-1]} at all pairs of places"
    if r.tree is not r.tree_by_masks:
        seen = "2 and 1 beside 2^n - 1 at all pairs of places"
    if (n := r.length) is None:
        lanes = trees.lanes_of(r.tree)
        shape = f"{lanes} lanes, k mod {lanes}, whose sums are added in the end" if lanes > 1 else "a tree of additions"
        yield Finding("block", "tree", f"no blocks: {shape}", seen)
    elif n == 1:
        yield Finding("block", 1, "every product is added on its own, one after another", seen)
    else:
        yield Finding("block", n, f"{n} products are added at once", seen)
    if n is not None and n > 1:
        blocks = k // n
        order = ", then ".join(trees.places([x for x in g if x != "c"]) for g in r.chain or [] if g != ["c"])
        what = "one block" if blocks == 1 else f"{blocks} blocks, one after another: k = {order}"
        yield Finding("order", text, what, seen)
    else:
        legend = " (X[+s] is X plus the same of places s further on)" if "[+" in text else ""
        yield Finding("order", text, f"the order of additions: {text}{legend}", seen)
    if (r.group or 1) > 1 and r.at_once("c", 0, 1):
        words = f"{r.group} products are added exactly before their sum is cut"
        yield Finding("groups", r.group, words, "half of what counts alone, at two places, counts")


def _precision(r: Reading) -> Iterator[Finding]:
    ix, bits = r.interface, r.fraction_bits
    top = large_terms(ix)["big"].exponent
    if bits is None:
        yield _hidden("fraction bits", f"nothing is lost beside 2^{top} (an exact sum, or too few exponents)")
    else:
        what = "the largest term" if (r.length or 0) > 1 else "a partial sum"
        seen = f"2^{top} - 2^{top} + v: v = 2^{top - bits} comes out, half of it does not"
        yield Finding("fraction bits", bits, f"{bits} bits below the leading bit of {what} are kept", seen)
    if (between := r.bits_between_blocks) is not None:
        seen = f"2^{top} at k = 0, -2^{top} at k = {ix.k - 1}, v at all others: v = 2^{top - between} still counts"
        yield Finding("between blocks", between, f"a block's sum keeps {between} bits when the next one starts", seen)
    for name, direction in (("cut of products", r.product_direction), ("cut of c", r.c_direction)):
        if direction is None:
            yield _hidden(name, "it is not cut in one sum with others, as far as these operands show")
        else:
            seen = f"2^{top} - 2^{top} + v, v of both signs"
            yield Finding(name, direction, f"what does not fit is cut: {direction}", seen)
    if r.apart and r.product_direction is not None:
        shown = trees.places([k for k in r.apart if k != "c"])
        text = ", ".join([*([f"k = {shown}"] if shown else []), *(["c"] if "c" in r.apart else [])])
        words = f"beside large terms at k = 0 and 2, a tiny negative number takes a whole unit along at {text}"
        yield Finding("summed apart", text, words, f"2^{ix.top} - 2^{ix.top} - 2^{ix.lows[0]}")


def _c(r: Reading) -> Iterator[Finding]:
    name = "c"
    if r.tree is None:
        yield _hidden(name, "these operands show no order")
    elif r.at_once("c", 0) and (r.length or 0) > 1:
        n = r.half_beside_c
        moved = {v: n is not None and r.value("large c", (v, n)) != power(n) for v in SIGNS}
        late = moved[-1] and (moved[1] or r.product_direction == "toward-zero")
        seen = f"c = 2^{n} and products of -1" if n else ""
        if late:
            words = "c meets the finished sum of each block's products, which it does not cut one by one"
            yield Finding(name, "after each block's products", words, seen)
        else:
            yield Finding(name, "early", "c is aligned and added with the first block's products", seen)
    elif (spine := trees.spine(r.tree))[0] == "c" or (r.chain and "c" in r.chain[0]):
        yield Finding(name, "first", "c is where the sum starts", "masks with M or -M as c")
    elif spine[-1] == "c" or (r.chain and r.chain[-1] == ["c"]):
        yield Finding(name, "last", "c is added to the finished sum", "masks with M or -M as c")
    else:
        yield Finding(name, "between", "c is added among the products", "masks with M or -M as c")


def _cut_pair(r: Reading, name: str) -> tuple[int, int] | None:
    """Where c, or else products, are cut beside a named term and beside the power of two."""
    for cut in (r.cut_of_c, r.cut_of_products):
        if (plain := cut()) is not None and (other := cut(name)) is not None:
            return other, plain
    return None


def _products(r: Reading) -> Iterator[Finding]:
    pair = _cut_pair(r, "2.25") if (r.length or 0) > 1 else None
    if pair is None:
        yield _hidden("normalised", "no product sets the exponent of an alignment that shows")
    else:
        up = pair[0] - pair[1]
        words = "1.5 * 1.5 = 2.25 has the exponent of 1 * 1" if not up else "1.5 * 1.5 = 2.25 has the exponent of 2"
        seen = f"beside 2.25 * 2^n the least v is {2**up if up >= 0 else power(up)} times that beside 2^n"
        yield Finding("normalised", "yes" if up else "no", words, seen)
    if r.interface.scale and (cut := r.cut_of_c("unscaled")) is not None and r.fraction_bits is not None:
        e = cut + r.fraction_bits
        source = "the scales alone" if e == 0 else "operands and scales" if e == 2 else f"something else ({e})"
        words = f"a term's exponent is that of {source}"
        yield Finding("exponents", source, words, f"beside 2 * 2 under scales of 1, 2^{cut} is the least c that counts")


def _subnormals(r: Reading) -> Iterator[Finding]:
    ix = r.interface
    terms = large_terms(ix)
    for name in ("a", "b"):
        x = r.value("subnormals", name)
        if x is None:
            yield _hidden(f"subnormal {name}", "its product is no result")
            continue
        kept = x != 0
        words = "subnormal operands count" if kept else "subnormal operands are flushed to zero"
        value = "kept" if kept else "flushed"
        aligned = kept and (r.length or 0) > 1 and r.cut_of_c("unscaled") != -(r.fraction_bits or 0)
        pair = _cut_pair(r, f"subnormal {name}") if aligned else None
        if pair is not None and r.fraction_bits is not None:
            e = pair[0] + (terms["big"].exponent - pair[1]) - terms[f"subnormal {name}"].exponent
            fraction = TYPES[getattr(ix, name)].fraction_bits
            how = {fraction: "not normalised", 0: "normalised"}.get(e, f"exponent {e} above their own")
            value, words = f"kept, {how}", f"{words}; in the alignment they are {how}"
        yield Finding(f"subnormal {name}", value, words, f"the least {getattr(ix, name)} times 2^n gives {_show(x)}")
    for name in ("c", "d"):
        x = r.value("subnormals", "c, largest" if name == "c" else "d")
        if x is None:
            yield _hidden(f"subnormal {name}", "no normal products and c differ by so little")
            continue
        what = "a subnormal c" if name == "c" else "a subnormal result"
        value, words = ("kept", f"{what} is kept") if x != 0 else ("flushed", f"{what} is flushed to zero")
        seen = "the largest one" if name == "c" else "a difference"
        yield Finding(f"subnormal {name}", value, words, f"{seen} gives {_show(x)}")


def _floor(r: Reading) -> Iterator[Finding]:
    found = r.tiny_cut
    if found is None:
        why = "no products are tiny enough to show it" if r.answers.get("tiny") else "products are never that tiny"
        yield _hidden("floor", why)
        return
    first, cut = found
    seen = f"beside 2^{first}, v = 2^{cut} still counts"
    bits = r.fraction_bits
    if bits is None or (r.length or 0) < 2 or not r.at_once("c", 0) or cut + bits <= first:
        yield Finding("floor", "none seen", f"no floor: what is below 2^{cut} is lost all the same", seen)
    else:
        words = f"terms are never aligned below 2^{cut + bits}: what is under 2^{cut} is lost"
        yield Finding("floor", cut + bits, words, seen)


def _output(r: Reading) -> Iterator[Finding]:
    p, rule = r.output_bits, r.output_direction
    if p is None:
        yield _hidden("output", "no sum has more bits than the result")
    elif r.output_is_exact:
        yield Finding("output", "exact", "the result holds all bits that the alignment keeps", "4 + 2^-q near 4")
    else:
        yield Finding("output", f"{rule}, {p} bits", f"the sum is rounded {rule} to {p} fraction bits",
                      "4 + t/4 units of a result near 4, both signs")  # fmt: skip
    rungs = [(e, r.value("twice", e) == 4 + power(-8)) for e in r.answers.get("twice", {})]
    last, _ = lowest_kept(rungs)
    if rungs and last is not None:
        kept = 22 if r.fraction_bits is None else r.fraction_bits
        once = last <= max(-kept, rungs[-1][0])
        words = "all bits that the alignment keeps count" if once else f"bits below 2^{last} near 4 are lost before"
        yield Finding("rounded once", "yes" if once else "no", words, f"4 + 2^-9 + 2^{last} rounds up")


def _overflow(r: Reading) -> Iterator[Finding]:
    unit, half = (r.value("overflow", (name, 1)) for name in ("unit", "half"))
    if unit is None:
        yield _hidden("overflow", "products are too small beside the largest result")
    else:
        largest = TYPES[r.interface.d].max
        value = "inf" if unit == "inf" else "largest" if unit == largest else _show(unit)
        told = {"inf": "beyond the largest number comes infinity", "largest": "the largest number stays"}
        yield Finding("overflow", value, told.get(value, "something else"),
                      f"largest + 1/2 unit: {_show(half)}, + 1 unit: {_show(unit)}")  # fmt: skip
    if (huge := r.value("overflow", "huge, cancelled")) is not None:
        words = "huge products cancel" if huge == 0 else "a product beyond the result's numbers is infinite already"
        seen = f"x - x gives {_show(huge)}, x alone {_show(r.value('overflow', 'huge'))}"
        yield Finding("huge products", "kept" if huge == 0 else "infinite", words, seen)


def _zeros(r: Reading) -> Iterator[Finding]:
    rows = r.answers.get("zeros", {})
    minus = [name for name, code in rows.items() if code]
    lost = next((r.code("small c", ("big", -1, e)) for n, v, e in r.answers.get("small c", {})
                 if (n, v) == ("big", -1) and r.value("small c", ("big", -1, e)) == 0), None)  # fmt: skip
    minus += ["a negative c that is cut away"] * bool(lost)
    words = f"-0 comes from: {'; '.join(minus)}" if minus else "zero results are +0, from -0 too"
    value = "+0" if not minus else "IEEE" if set(minus) == {"all -0"} else "other"
    yield Finding("zeros", value, words, ", ".join(f"{n}: {'-0' if c else '+0'}" for n, c in rows.items()))


def _specials(r: Reading) -> Iterator[Finding]:
    rows = r.answers.get("specials", {})
    values = {name: r.value("specials", name) for name in rows}
    codes = sorted({rows[name] for name, x in values.items() if x == "nan"})
    if codes:
        shown = ", ".join(f"{c:#x}" for c in codes)
        words = f"every NaN is {shown}"
        if len(codes) > 1:
            words = f"NaNs are {shown}: sign or payload come from the operand"
        yield Finding("NaN", shown, words, "; ".join(n for n, x in values.items() if x == "nan"))
    expected = {"inf c": "inf", "-inf c": "-inf", "inf * 1": "inf", "-inf * 1": "-inf", "inf * 0": "nan",
                "inf * 1 - inf * 1": "nan", "inf * 1 + c of -inf": "nan"}  # fmt: skip
    asked = {name: want for name, want in expected.items() if name in values}
    odd = [f"{name} gives {_show(values[name])}" for name, want in asked.items() if values[name] != want]
    if asked:
        words = "as in IEEE 754" if not odd else "; ".join(odd)
        yield Finding("infinities", "IEEE" if not odd else "other", words, "; ".join(asked))


def _words(r: Reading) -> Iterator[Finding]:
    rows = r.answers.get("bits read", {})
    if not rows:
        return
    kept = [n for n in rows if isinstance(n, int) and r.value("bits read", n) == 1 + power(-n)]
    bits, rest = max(kept, default=0), r.value("bits read", "3/4")
    how = "all of the word" if bits == 23 else "the rest is ignored" if rest == 1 else "the rest is rounded"
    last = min(bits + 1, 23)
    yield Finding("bits read", bits, f"{bits} fraction bits of an FP32 word are read: {how}",
                  f"(1 + 2^-{last}) * 1 gives {_show(r.value('bits read', last))}")  # fmt: skip


def _scales(r: Reading) -> Iterator[Finding]:
    ix, rows = r.interface, r.answers.get("scales", {})
    if not rows:
        return
    moved = {r.value("scales", key) for key in rows if isinstance(key, tuple)}
    if moved == {Fraction(ix.k + ix.scale_block)}:
        words = f"each scale multiplies the {ix.scale_block} products of its block"
        yield Finding("scales", ix.scale_block, words, f"{ix.k} ones, one scale 2: {ix.k + ix.scale_block}")
    else:
        yield Finding("scales", "other", f"one scale of 2 gives {', '.join(sorted(map(_show, moved)))}", f"{ix.k} ones")
    texts = [f"{name}: {_show(r.value('scales', name))}" for name in ("NaN", "NaN, no products", "code 0", "code 1")]
    yield Finding("odd scales", "; ".join(texts), "; ".join(texts), f"{ix.k} ones")


def _show(x: Value | None) -> str:
    """A value in few signs.

    >>> _show(Fraction(1, 2**149)), _show(Fraction(3)), _show("nan")
    ('2^-149', '3', 'nan')
    """
    if x is None or isinstance(x, str):
        return str(x)
    n, d = abs(x.numerator), x.denominator
    sign = "-" * (x < 0)
    if n and n & (n - 1) == 0 and (n > 64 or d > 1):
        return f"{sign}2^{n.bit_length() - d.bit_length()}"
    return str(x) if n < 10**6 and d < 10**6 else f"{float(x):.9g}"
