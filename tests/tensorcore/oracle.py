"""The outsider: tensor cores in exact fractions, written from the papers' wording, sharing no code with numsim.

Xie et al., arXiv:2511.10909v2; Khattak and Mikaitis, arXiv:2512.07004v2. A number is what its fields say; a term is an
exact fraction that is cut to a multiple of 2^(E - F); a result is searched for by its exponent. Of a model only the
stated parameters are read (``model.unit``, types, K, scales).
"""

from fractions import Fraction
from functools import cache
from math import floor, isfinite, isnan, trunc
from typing import NamedTuple

import numpy as np

# exponent bits, fraction bits, bias, which codes are no numbers
FIELDS = {
    "f64": (11, 52, 1023, "ieee"),  # IEEE 754-2019, table 3.5
    "f32": (8, 23, 127, "ieee"),
    "tf32": (8, 23, 127, "ieee"),  # an FP32 word whose low 13 bits are not looked at
    "xf32": (8, 23, 127, "ieee"),
    "f16": (5, 10, 15, "ieee"),
    "bf16": (8, 7, 127, "ieee"),
    "e5m2": (5, 2, 15, "ieee"),  # OCP OFP8 v1.0, table 1
    "e4m3": (4, 3, 7, "all ones"),
    "e3m2": (3, 2, 3, "none"),  # OCP MX v1.0, 5.3.2 and 5.3.3
    "e2m3": (2, 3, 1, "none"),
    "e2m1": (2, 1, 1, "none"),
    "fp8": (4, 3, 8, "minus zero"),  # arXiv:2206.02915, the fnuz formats
    "bf8": (5, 2, 16, "minus zero"),
}
NAN, INF = float("nan"), float("inf")


class Number(NamedTuple):
    value: Fraction | float  # a float only for infinities and NaN
    negative: bool
    exponent: int  # of the field: subnormal numbers and zero have that of the least normal number


ONE = Number(Fraction(1), False, 0)


@cache
def power(e):
    return Fraction(2) ** e


def decode(code, kind):
    exponent_bits, fraction_bits, bias, specials = FIELDS[kind]
    if kind in ("tf32", "xf32"):
        code = code >> 13 << 13
    field, fraction = code >> fraction_bits & (1 << exponent_bits) - 1, code & (1 << fraction_bits) - 1
    negative, magnitude = bool(code >> exponent_bits + fraction_bits), code & (1 << exponent_bits + fraction_bits) - 1
    exponent = max(field, 1) - bias
    if specials == "ieee" and field == (1 << exponent_bits) - 1:
        return Number(NAN if fraction else (-INF if negative else INF), negative, exponent)
    if specials == "all ones" and magnitude == (1 << exponent_bits + fraction_bits) - 1:
        return Number(NAN, negative, exponent)
    if specials == "minus zero" and negative and not magnitude:
        return Number(NAN, negative, exponent)
    value = (bool(field) + Fraction(fraction, 1 << fraction_bits)) * power(exponent)
    return Number(-value if negative else value, negative, exponent)


def decode_scale(code, kind):
    """A block scale; UE4M3 is E4M3 whose sign bit is not looked at."""
    if kind == "ue8m0":
        return Number(NAN if code == 0xFF else power(code - 127), False, code - 127)
    return decode(code & 0x7F, "e4m3")


def leading(x):
    """The exponent of the leading bit of a fraction above zero."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if x >= power(e) else e - 1


def encode(value, kind, fraction_bits, pick):
    """The code of a fraction with so many fraction bits; ``pick`` makes a whole number of its magnitude."""
    exponent_bits, width, bias, _ = FIELDS[kind]
    least, sign = 1 - bias, (value < 0) << exponent_bits + width
    size = abs(value)
    if size:
        unit = power(max(leading(size), least) - fraction_bits)
        size = pick(size / unit) * unit
    if size >= power(bias + 1):
        return sign | ((1 << exponent_bits) - 1) << width
    if size < power(least):
        return sign | int(size / power(least - width))
    e = leading(size)
    return sign | (e + bias) << width | int((size / power(e) - 1) * (1 << width))


def infinity(negative, kind):
    exponent_bits, width, _, _ = FIELDS[kind]
    return negative << exponent_bits + width | ((1 << exponent_bits) - 1) << width


# --- NaN and infinities ----------------------------------------------------------------------------------------------
def beyond(products, others=()):
    """What NaN and infinities make of a sum, as floats have it; 0.0 where there are none."""

    def rough(x):
        return x if isinstance(x, float) else float((x > 0) - (x < 0))

    terms = [rough(x.value) * rough(y.value) for x, y in products] + [rough(x.value) for x in others]
    return sum(t for t in terms if not isfinite(t))


def nan_code(model, kind):
    """NVIDIA: all bits but the sign. FP64 and AMD are not documented; numsim answers the quiet NaN."""
    if model.instruction.startswith("mfma") or kind == "f64":
        return {"f32": 0x7FC00000, "f64": 0x7FF8000000000000}[kind]
    return {"f32": 0x7FFFFFFF, "f16": 0x7FFF}[kind]


def special_code(special, model, kind):
    return nan_code(model, kind) if isnan(special) else infinity(special < 0, kind)


# --- NVIDIA: cut, add, round once ------------------------------------------------------------------------------------
def converted(total, output):
    """The one conversion at the end; a zero has no sign."""
    kind, bits, pick = {
        "rz-fp32": ("f32", 23, trunc), "rz-e8m13": ("f32", 13, trunc), "rne-fp16": ("f16", 10, round),
    }[output]  # fmt: skip
    code = encode(total, kind, bits, pick)
    return code if code & (0x7FFF if kind == "f16" else 0x7FFFFFFF) else 0


def cut_sum(terms, bits, floor_exponent):
    """(value, exponent) pairs, each cut towards zero to a multiple of 2^(E - bits)."""
    e = max([floor_exponent, *(e for value, e in terms if value)])
    return sum(trunc(value / power(e - bits)) for value, _ in terms) * power(e - bits)


def block(model, a, b, c, scales=(ONE, ONE)):
    """a, b, scales, c are numbers."""
    special = beyond(zip(a, b, strict=True), [c, *scales])
    if special:
        return special_code(special, model, model.d)
    by, shift = scales[0].value * scales[1].value, scales[0].exponent + scales[1].exponent
    terms = [(x.value * y.value * by, x.exponent + y.exponent + shift) for x, y in zip(a, b, strict=True)]
    total = cut_sum([*terms, (c.value, c.exponent)], model.unit.fraction_bits, model.unit.floor)
    return converted(total, model.unit.output)


def groups(model, a, b, c, scales_a, scales_b):
    """16 products are added exactly; the scaled sums and c are cut. A zero among scales drops its group."""
    special = beyond((), [*scales_a, *scales_b, c])
    if special:
        return special_code(special, model, model.d)
    terms = [(c.value, c.exponent)]
    floor_exponent = model.unit.floor
    for first in range(0, len(a), 16):
        products = [x.value * y.value for x, y in zip(a[first : first + 16], b[first : first + 16], strict=True)]
        sa, sb = (s[first // model.scale_block] for s in (scales_a, scales_b))
        if any(products) and sa.value and sb.value:
            # groups that cancel to zero keep their exponent in the maximum
            floor_exponent = max(floor_exponent, sa.exponent + sb.exponent)
            terms.append((sum(products) * sa.value * sb.value, sa.exponent + sb.exponent))
    return converted(cut_sum(terms, model.unit.fraction_bits, floor_exponent), model.unit.output)


def fp8_as_fp16(model, a, b, c):
    """FP8 becomes FP16 exactly (its subnormal numbers become normal ones); two blocks from zero; c comes last."""

    def half(x):
        if isinstance(x.value, float):
            return x
        return decode(encode(x.value, "f16", 10, trunc), "f16")

    total = Number(Fraction(0), False, 0)
    for places in ((0, 1), (2, 3)):
        chosen = [k for k in range(len(a)) if k % 4 in places]
        for first in range(0, len(chosen), 16):
            part = chosen[first : first + 16]
            code = block(model, [half(a[k]) for k in part], [half(b[k]) for k in part], total)
            total = decode(code, model.d)
    return nearest([total, c], model, model.d)


# --- operations that are rounded to nearest --------------------------------------------------------------------------
def nearest(terms, model, kind):
    """The exact sum of numbers, rounded once; -0 only where every term is -0 or a negative sum vanishes."""
    special = beyond((), terms)
    if special:
        return special_code(special, model, kind)
    total = sum(t.value for t in terms)
    if not total:
        return all(t.negative for t in terms) << sum(FIELDS[kind][:2])
    return encode(total, kind, FIELDS[kind][1], round)


def product(x, y):
    """An exact product with its sign."""
    special = beyond([(x, y)])
    negative = x.negative != y.negative
    return Number(special or x.value * y.value, negative, x.exponent + y.exponent)


def fma(model, a, b, c):
    for x, y in zip(a, b, strict=True):
        c = decode(nearest([product(x, y), c], model, model.d), model.d)
    return nearest([c], model, model.d)


# --- AMD -------------------------------------------------------------------------------------------------------------
def exact(model, a, b, c):
    return nearest([*map(product, a, b), c], model, "f32")


def pairwise(model, a, b, c, begins):
    """CDNA2: subnormal operands are +0; products and sums are FP32 numbers, those below 2^-126 a signed zero.

    An operand of -0 is +0, too: that is mmasim 2.1.1's reading; the paper has no word on it.
    """

    def flushed(x, kind):
        least = power(1 - FIELDS[kind][2])
        small = not isinstance(x.value, float) and abs(x.value) < least
        return Number(Fraction(0), False, x.exponent) if small else x

    def rounded(*terms):
        code = nearest(terms, model, "f32")
        return decode(code if code & 0x7F800000 else code & 0x80000000, "f32")

    a, b = [flushed(x, model.a) for x in a], [flushed(x, model.b) for x in b]
    c = flushed(c, model.c) if begins else c  # an operand of the instruction, not a sum within it
    sums = [rounded(product(x, y)) for x, y in zip(a, b, strict=True)]
    while len(sums) > 1:
        sums = [rounded(x, y) for x, y in zip(sums[::2], sums[1::2], strict=True)]
    return nearest([rounded(c, sums[0])], model, "f32")


def down(value, exponent, bits):
    """A multiple of 2^(exponent - bits), rounded down."""
    return floor(value / power(exponent - bits)) * power(exponent - bits)


def cdna3(model, a, b, c):
    """Products are cut to F bits without c; then their sum and c are aligned with rounding down."""
    bits = model.unit.fraction_bits
    products = list(map(product, a, b))
    special = beyond((), [*products, c])
    for p in products:  # a product of 2^128 and more is an infinity
        if not isinstance(p.value, float) and abs(p.value) >= power(128):
            special += -INF if p.negative else INF
    if special:
        return special_code(special, model, "f32")
    parts = [products[::2], products[1::2]] if model.unit.path == "cdna3-fp8" else [products]
    sums = []
    for part in parts:
        present = [(p.value, p.exponent) for p in part if p.value]
        if present:
            sums.append((cut_sum(present, bits, -10000), max(e for _, e in present)))
    at = max((e for _, e in sums), default=-10000)
    total = sum(down(value, at, bits) for value, _ in sums) if len(parts) > 1 else sum(value for value, _ in sums)
    e = max(at, c.exponent)
    from_c = down(c.value, e, bits)
    if len(parts) > 1 and c.exponent < e - 25:
        from_c = Fraction(0)
    total = down(total, e, 32) + from_c
    if total:
        total = down(total, max(leading(abs(total)), -126), 31)  # as mmasim 2.1.1 does; the paper leaves it open
    return encode(total, "f32", 23, round)


# --- whole instructions ----------------------------------------------------------------------------------------------
def dot(a, b, c, model, scale_a=(), scale_b=()):
    """The code of c + sum of a * b for codes of a and b of any multiple of the instruction's K."""
    unit = model.unit
    one = {"block": block, "fma": fma, "exact": exact, "cdna3": cdna3, "cdna3-fp8": cdna3}
    whole = {"fp8-as-fp16": model.k, "groups": model.k}
    length = min(model.k, whole.get(unit.path, unit.length))
    kind = model.c
    for first in range(0, len(a), length):
        part = slice(first, first + length)
        x, y = [decode(code, model.a) for code in a[part]], [decode(code, model.b) for code in b[part]]
        z = decode(c, kind)
        if model.scale:
            here = slice(first // model.scale_block, (first + length) // model.scale_block)
            sa, sb = ([decode_scale(s, model.scale) for s in scales[here]] for scales in (scale_a, scale_b))
        if unit.path == "groups":
            c = groups(model, x, y, z, sa, sb)
        elif unit.path == "fp8-as-fp16":
            c = fp8_as_fp16(model, x, y, z)
        elif model.scale:
            c = block(model, x, y, z, (sa[0], sb[0]))
        elif unit.path == "pairwise":
            c = pairwise(model, x, y, z, first % model.k == 0)
        else:
            c = one[unit.path](model, x, y, z)
        kind = model.d
    return c


# --- inputs that bring the rules out ---------------------------------------------------------------------------------
REGIMES = ("any code", "near", "cancelling", "wide", "least", "largest", "beyond", "far c", "left over")


def code(value, kind):
    """The code of a number that the type has."""
    result = encode(Fraction(value), kind, FIELDS[kind][1], trunc)
    assert decode(result, kind).value == value, f"{value} is no {kind}"
    return result


def vectors(model, count, seed, instructions=1):
    """Seeded codes, lists of (a, b, c, scale_a, scale_b), taking turns through the regimes."""
    rng = np.random.default_rng(seed)
    k, found = model.k * instructions, []
    for n in range(count):
        regime = REGIMES[n % len(REGIMES)]
        a, b, c = (_codes(rng, kind, size, regime) for kind, size in ((model.a, k), (model.b, k), (model.c, 1)))
        if regime == "cancelling":  # the second half takes most of the first away
            flip = 1 << sum(FIELDS[model.a][:2])
            half = -(-k // 2)
            a[half:], b[half:] = [x ^ flip for x in a[: k - half]], b[: k - half]
            a[-1] = int(rng.integers(0, flip))
            if FIELDS[model.a][3] == "minus zero":  # whose code is NaN
                a = [0 if x == flip else x for x in a]
        if regime == "far c":  # products that c nearly hides
            c = _codes(rng, model.c, 1, "near", int(rng.integers(-4, model.unit.fraction_bits + 4)))
        scales = [_scales(rng, model, k, regime) for _ in "ab"] if model.scale else [[], []]
        if regime == "left over":
            for first in range(0, k, model.k):
                _left_over(rng, model, a, b, scales, first)
        found.append((a, b, c[0] if n % 2 else 0, *scales))
    return found


def _left_over(rng, model, a, b, scales, first):
    """Two terms take each other away, and the others are near the last bit that is kept: all of it can be seen."""
    bits, flip = model.unit.fraction_bits, 1 << sum(FIELDS[model.a][:2])
    if model.unit.path == "groups":
        at, here = first // model.scale_block, 32 // model.scale_block
        a[first + 16 : first + 32] = [x ^ flip for x in a[first : first + 16]]
        b[first + 16 : first + 32] = b[first : first + 16]
        high, low = (140, 140 - bits // 2) if model.scale == "ue8m0" else (0x7C, 3)
        for s in scales:
            s[at : at + 2 * here] = [high] * here + [low + int(x) for x in rng.integers(-2, 3, here)]
        return
    top = bits - 12  # of the two; the others are around 2^-12
    for k in range(first, first + model.k):
        a[k], b[k] = _of_exponent(rng, model, -12 + int(rng.integers(-4, 4)))
    other = first + int(rng.choice([1, 2, 4]))
    a[first], b[first] = _of_exponent(rng, model, top)
    if other < len(a):
        a[other], b[other] = a[first] ^ flip, b[first]


def _of_exponent(rng, model, e):
    """Two operands whose exponents add up to e, or as near to it as the types allow."""

    def clipped(e, kind):
        exponent_bits, _, bias, specials = FIELDS[kind]
        return max(1 - bias, min(e, (1 << exponent_bits) - 1 - bias - (specials in ("ieee", "all ones"))))

    of_b = clipped(e - clipped(e // 2, model.a), model.b)
    result = []
    for kind, part in ((model.a, clipped(e - of_b, model.a)), (model.b, of_b)):
        exponent_bits, width, bias, _ = FIELDS[kind]
        sign, fraction = int(rng.integers(0, 2)), int(rng.integers(0, 1 << width))
        result.append(sign << exponent_bits + width | (part + bias) << width | fraction)
    return result


def _codes(rng, kind, size, regime, up=0):
    exponent_bits, width, bias, specials = FIELDS[kind]
    top = (1 << exponent_bits) - 1 - (specials == "ieee")
    if regime == "any code":
        return [int(x) for x in rng.integers(0, 1 << 1 + exponent_bits + width, size, dtype=np.uint64)]
    low, high = {"wide": (0, top), "least": (0, 2), "largest": (top - 1, top)}.get(regime, (bias - 2, bias + 2))
    low, high = max(0, min(top, low + up)), max(0, min(top, high + up))
    field, fraction = rng.integers(low, high + 1, size), rng.integers(0, 1 << width, size)
    codes = [int(x) << width | int(y) for x, y in zip(field, fraction, strict=True)]
    codes = [x if rng.random() < 0.9 else 0 for x in codes]
    codes = [x | int(rng.integers(0, 2)) << exponent_bits + width if x else x for x in codes]
    if regime == "beyond" and rng.random() < 0.6:  # one NaN or infinity, or a zero that meets it
        i, all_ones = int(rng.integers(0, size)), (1 << exponent_bits) - 1 << width
        codes[i] = all_ones | int(rng.integers(0, 2)) << exponent_bits + width
        codes[i] |= int(rng.integers(0, 1 << width)) if rng.random() < 0.3 else 0
    return codes


def _scales(rng, model, k, regime):
    size, top = k // model.scale_block, 256 if regime == "any code" else 255 if model.scale == "ue8m0" else 127
    low, high = (0, top) if regime in ("any code", "wide") else (0, 60) if regime == "least" else (120, 134)
    return [int(x) % top for x in rng.integers(low, high, size)]
