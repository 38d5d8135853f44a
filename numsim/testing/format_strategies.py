"""Hypothesis strategies for formats of every kind, and for the options of rounding."""

from __future__ import annotations

from typing import Any

from numsim import formats as ground
from numsim.codebooks import Codebook, get_format
from numsim.errors import FormatError, InputError, short, truth
from numsim.formats import Format, list_formats
from numsim.rounding import OVERFLOWS, ROUNDINGS, SUBNORMALS
from numsim.testing._hypothesis import st
from numsim.values import is_whole

_BIASES = (0, 1, -1, 3, -3, 40, -40, 1 << 10, -1 << 10, 60_000, -60_000)  # beside that of the IEEE style


def formats(
    *,
    max_bits: int = 64,
    signed: bool | None = None,
    within: Any = None,
    named: bool = True,
    p3109: bool = True,
    user_defined: bool = True,
) -> st.SearchStrategy[Format]:
    """Formats of every kind: named ones, ``eXmY`` of the IEEE style, those of the IEEE P3109 draft, user-defined ones.

    User-defined ones have 0 to 11 exponent and 0 to 52 fraction bits, biases near and far from the usual one, and
    differ in sign, NaN, infinities, subnormal numbers, and in whether there is a zero.

    Parameters
    ----------
    max_bits : 3 to 64.
    signed : whether they have a sign; None: some do.
    within : a format that holds all their values, e.g. "fp64", so that ``numsim.decode`` takes every code; None: any.
    named, p3109, user_defined : which kinds are drawn.

    Shrinks to named formats, FP16 first, then to ones of few bits. Raises ``InputError`` where no format is left.

    >>> from hypothesis import find, settings
    >>> fixed = settings(derandomize=True, database=None)
    >>> find(formats(), lambda f: f.infinity_code is None, settings=fixed).name
    'e4m3fn'
    >>> find(formats(signed=False, named=False), lambda f: f.infinity_code, settings=fixed).name
    'binary3p1ue'
    """
    if not is_whole(max_bits) or not 3 <= max_bits <= 64:
        raise InputError(
            f"max_bits={short(max_bits)}: formats of 3 to 64 bits are drawn. Example: formats(max_bits=16)"
        )
    named, p3109, user_defined = truth("named", named), truth("p3109", p3109), truth("user_defined", user_defined)
    if not (signed is None or isinstance(signed, bool)):
        raise InputError(f"signed={short(signed)}: allowed are None, True and False. Example: formats(signed=True)")
    wide = None if within is None else get_format(within)
    if isinstance(wide, Codebook):
        raise InputError(f"within={short(within)}: a codebook holds no format. Example: formats(within='fp64')")
    common = (ground.FP16, ground.BF16, ground.E4M3, ground.E5M2, ground.E2M1, ground.UE4M3)
    table = [f for f in dict.fromkeys((*common, *list_formats())) if f.bits <= max_bits and signed in (None, f.signed)]
    branches: list[st.SearchStrategy[Format]] = []
    if named and table:
        branches.append(st.sampled_from(table))
    if named and signed is not False and max_bits > 3:
        branches.append(_ieee(max_bits))
    if p3109:
        branches.append(_p3109(min(max_bits, 16), signed))
    if user_defined:
        branches.append(_user_defined(max_bits, signed))
    if not branches:
        raise InputError("these options leave no format. Example: formats(named=False, p3109=False)")
    drawn = st.one_of(branches)
    return drawn if wide is None else drawn.filter(lambda f: f.fits(wide))


@st.composite
def _ieee(draw: st.DrawFn, max_bits: int) -> Format:
    exponent = draw(st.integers(2, min(11, max_bits - 2)))
    return ground.get_format(f"e{exponent}m{draw(st.integers(1, min(52, max_bits - 1 - exponent)))}")


@st.composite
def _p3109(draw: st.DrawFn, max_bits: int, signed: bool | None) -> Format:
    bits, sign = draw(st.integers(3, max_bits)), _whether(draw, signed)
    precision, kind = draw(st.integers(1, bits - sign)), draw(st.sampled_from("ef"))
    return ground.get_format(f"binary{bits}p{precision}{'s' if sign else 'u'}{kind}")


@st.composite
def _user_defined(draw: st.DrawFn, max_bits: int, signed: bool | None) -> Format:
    sign = _whether(draw, signed)
    exponent = draw(st.integers(0, min(11, max_bits - 1 - sign)))
    fraction = draw(st.integers(2 if not exponent else 0, min(52, max_bits - sign - exponent)))
    specials = [kind for kind in ground.SPECIALS if kind != "ieee" or (exponent >= 2 and fraction)]
    special: Any = draw(st.sampled_from([kind for kind in specials if kind != "fnuz" or sign]))
    zero = sign or not draw(st.booleans())
    bias = (1 << exponent >> 1) - 1 + draw(st.sampled_from(_BIASES))
    subnormals, infinities = not draw(st.booleans()), special == "ieee" or draw(st.booleans())

    def made(subnormals: bool, infinities: bool) -> Format:
        return Format(
            f"mine_e{exponent}m{fraction}", exponent, fraction, bias, signed=sign, specials=special, zero=zero,
            infinities=infinities, subnormals=subnormals,
        )  # fmt: skip

    try:
        return made(subnormals, infinities)
    except FormatError:  # no number but zero is left
        return made(True, special == "ieee")


def _whether(draw: st.DrawFn, signed: bool | None) -> bool:
    return not draw(st.booleans()) if signed is None else signed


def policies(*, stochastic: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Options of ``numsim.encode``: rounding, overflow and subnormals, and ``nan="zero"``, which refuses no number.

    ``stochastic=True`` has stochastic rounding among the modes, with a seed. Shrinks to the defaults.

    >>> from hypothesis import find, settings
    >>> fixed = settings(derandomize=True, database=None)
    >>> find(policies(), lambda options: options["overflow"] != "ieee", settings=fixed)
    {'rounding': 'nearest-even', 'overflow': 'saturate', 'subnormals': 'keep', 'nan': 'zero'}
    """
    modes = st.sampled_from([mode for mode in ROUNDINGS if mode != "stochastic"])
    rest = {"overflow": st.sampled_from(OVERFLOWS), "subnormals": st.sampled_from(SUBNORMALS), "nan": st.just("zero")}
    plain = st.fixed_dictionaries({"rounding": modes, **rest})
    if not truth("stochastic", stochastic):
        return plain
    drawn = {"rounding": st.just("stochastic"), "seed": st.integers(0, 2**64 - 1)}
    return plain | st.fixed_dictionaries({**drawn, **rest})
