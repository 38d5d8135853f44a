"""Rounding: any real number to the code of a format, once, from the exact value.

The reference below works in Python integers and reads from top to bottom like the standard: special cases as a
numbered list, then the place on the format's grid, then the overflow policy. ``kernels/rounding.py`` holds its fast
twin; the two agree bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from numsim import kernels
from numsim.codebooks import Codebook, get_format
from numsim.codes import Codes, code_dtype, decode
from numsim.errors import InputError, RangeError, short
from numsim.events import Events
from numsim.formats import FP32, FP64, Format
from numsim.host import flushes_subnormals
from numsim.random import Draw, make_draw
from numsim.values import NAN, Rational, Values, as_fraction, as_values, to_rational

Rounding = Literal["nearest-even", "nearest-away", "toward-zero", "up", "down", "odd", "stochastic"]
Overflow = Literal["ieee", "saturate", "saturate-finite"]
Subnormals = Literal["keep", "flush-inputs", "flush-results", "flush"]
Nan = Literal["raise", "zero", "max"]

ROUNDINGS = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "odd", "stochastic")
OVERFLOWS = ("ieee", "saturate", "saturate-finite")
SUBNORMALS = ("keep", "flush-inputs", "flush-results", "flush")
NANS = ("raise", "zero", "max")


@dataclass(frozen=True)
class Policy:
    """How a real number becomes a code: the options of ``encode``, checked once."""

    rounding: str = "nearest-even"
    overflow: str = "ieee"
    subnormals: str = "keep"
    nan: str = "raise"

    def __post_init__(self) -> None:
        for option, value, allowed in (
            ("rounding", self.rounding, ROUNDINGS),
            ("overflow", self.overflow, OVERFLOWS),
            ("subnormals", self.subnormals, SUBNORMALS),
            ("nan", self.nan, NANS),
        ):
            if not isinstance(value, str) or value not in allowed:
                raise InputError(
                    f"{option}={short(value)}: allowed are {', '.join(allowed)}. Example: {option}={allowed[0]!r}"
                )

    def __str__(self) -> str:
        """What a result's ``how`` says of it."""
        words = [self.rounding]
        words += [f"overflow {self.overflow}"] * (self.overflow != "ieee")
        words += [f"subnormals {self.subnormals}"] * (self.subnormals != "keep")
        return ", ".join(words)


# --- the reference ----------------------------------------------------------------------------------------------------
def round_rational(x: Rational, format: Format | Codebook, policy: Policy, random: int = 0, r: int = 32) -> int:
    """The code of one exact number. ``random`` are the r random bits of a stochastic rounding."""
    if isinstance(format, Codebook):
        return format.round(x, policy.rounding, policy.nan, random, r)
    flush_inputs = policy.subnormals in ("flush-inputs", "flush")
    flush_results = policy.subnormals in ("flush-results", "flush")
    negative = bool(x.sign)

    # 1. NaN stays NaN.
    if x == NAN:
        return nan_result(format, policy)
    # 2. A number below zero has no code in an unsigned format.
    if negative and not format.signed and x.numerator:
        return nan_result(format, policy)
    # 3. An infinity is exact: kept, or NaN, or the largest number; saturation makes it the largest number.
    if x.denominator == 0:
        if policy.overflow == "saturate":
            return with_sign(format.max_code, negative, format)
        return overflow_result(negative, format)
    # 4. Zero, and what counts as zero on the way in.
    if x.numerator == 0 or (flush_inputs and below_normal(x, format)):
        return with_sign(0, negative, format)
    # 5. Everything else has a place on the grid.
    rank = round_to_grid(x, format, policy.rounding, random, r)
    if rank > format.max_rank:
        towards_zero = policy.rounding in ("toward-zero", "odd") or policy.rounding == ("up" if negative else "down")
        if policy.overflow != "ieee" or towards_zero:
            return with_sign(format.max_code, negative, format)
        return overflow_result(negative, format)
    if flush_results and rank < 1 << format.fraction_bits:
        rank = 0
    # E8M0 has no zero: what would be zero is its least number, code 0.
    return with_sign(max(rank - format.rank(0), 0), negative, format)


def round_to_grid(x: Rational, format: Format, rounding: str, random: int = 0, r: int = 32) -> int:
    """The rank of a finite positive magnitude, on the grid continued without end above the largest number.

    Ranks count the numbers from zero up: between two powers of two there are 2^F of them, evenly spaced, and below
    the least normal number the spacing stays. One more than the last rank before a power of two *is* that power of
    two, so a carry needs no care, be it from subnormal to normal or into a new exponent. Where there are no subnormal
    numbers, zero and the least normal number are neighbours, and zero is the even one.
    """
    n, d = x.numerator, x.denominator
    exponent = n.bit_length() - d.bit_length()
    if (n < d << exponent) if exponent >= 0 else (n << -exponent < d):
        exponent -= 1  # now 2^exponent <= n/d < 2^(exponent + 1)
    exponent = max(exponent, format.emin)
    shift = exponent - format.fraction_bits  # the spacing here is 2^shift
    if shift >= 0:
        d <<= shift
    else:
        n <<= -shift
    significand, remainder = divmod(n, d)
    rank, step = significand + ((exponent - format.emin) << format.fraction_bits), 1
    if format.gap and rank < 1 << format.fraction_bits:
        step = 1 << format.fraction_bits
        remainder, d, rank = n, d * step, 0
    if remainder == 0:
        return rank

    odd = (rank - format.rank(0)) & 1  # parity of the code
    match rounding:
        case "nearest-even":
            up = 2 * remainder > d or (2 * remainder == d and odd)
        case "nearest-away":
            up = 2 * remainder >= d
        case "toward-zero":
            up = False
        case "up":
            up = not x.sign
        case "down":
            up = bool(x.sign)
        case "odd":
            up = not odd
        case _:  # stochastic: up with probability remainder / d, resolved to r bits
            up = ((remainder << r) // d) + random >= 1 << r
    return rank + step * bool(up)


def nan_result(format: Format, policy: Policy) -> int:
    """NaN is canonical; a format without NaN does what ``nan=`` says."""
    if format.nan_code is not None:
        return format.nan_code
    if policy.nan == "raise":
        raise InputError(
            f"NaN has no code in {format} (nor has a negative number in an unsigned format). "
            f'Example: numsim.encode(x, "{format}", nan="zero") or nan="max"'
        )
    return format.max_code if policy.nan == "max" else 0


def overflow_result(negative: bool, format: Format) -> int:
    """Infinity; NaN in a format without it; the largest number in a format without either."""
    if format.infinity_code is not None:
        return with_sign(format.infinity_code, negative, format)
    return with_sign(format.max_code, negative, format) if format.nan_code is None else format.nan_code


def with_sign(magnitude: int, negative: bool, format: Format) -> int:
    """A magnitude code with its sign; -0 becomes +0 where it does not exist."""
    if not negative or (magnitude == 0 and format.specials == "fnuz"):
        return magnitude
    return magnitude | format.sign_mask


def below_normal(x: Rational, format: Format) -> bool:
    """Whether a magnitude is below the least normal number."""
    least = format.least_normal
    return x.numerator * least.denominator < least.numerator * x.denominator


def count_events(
    x: Rational, code: int, format: Format | Codebook, policy: Policy, random: int = 0, r: int = 32
) -> Events:
    """What one rounding did."""
    result = to_rational(code, format)
    if isinstance(format, Codebook) and x.denominator:
        exact = as_fraction(x)
        return Events(
            total=1,
            overflow=int(not format.ordered[0] <= exact <= format.ordered[-1]),
            underflow=int(exact != 0 and result.numerator == 0),
            inexact=int(exact != as_fraction(result)),
        )
    if x.denominator == 0 or isinstance(format, Codebook):
        return Events(total=1, nan=int(x != NAN and result == NAN))
    flushed = policy.subnormals in ("flush-inputs", "flush") and below_normal(x, format)
    return Events(
        total=1,
        overflow=int(
            x.numerator > 0
            and (format.signed or not x.sign)
            and not flushed
            and round_to_grid(x, format, policy.rounding, random, r) > format.max_rank
        ),
        underflow=int(x.numerator > 0 and result.numerator == 0 and result.denominator > 0),
        subnormal=int(result.denominator > 0 and 0 < result.numerator and below_normal(result, format)),
        inexact=int(result.denominator == 0 or as_fraction(x) != as_fraction(result)),
        nan=int(result == NAN),
    )


def encode_values(
    values: Values, format: Format | Codebook, policy: Policy, draw: Draw | None, events: Events | None
) -> npt.NDArray[Any]:
    """The reference over many numbers, in C order: codes, flat."""
    codes = np.empty(values.size, code_dtype(format))
    seen = Events()
    for i, x in enumerate(values):
        random, r = (draw(i), draw.r) if draw else (0, 32)
        codes[i] = code = round_rational(x, format, policy, random, r)
        if events is not None:
            seen.add(count_events(x, code, format, policy, random, r))
    if events is not None:  # only now: a NaN that is refused leaves them as they were
        events.add(seen)
    return codes


def convert(
    codes: Codes,
    source: Format | Codebook,
    format: Format | Codebook,
    policy: Policy,
    draw: Draw | None = None,
    events: Events | None = None,
) -> npt.NDArray[Any]:
    """Codes of one format rounded to another; returns codes in the same shape."""
    if source.fits(FP64):
        exact = Values(codes.shape, np.asarray(decode(codes, source)), None)
    else:
        exact = Values(codes.shape, None, [to_rational(c, source) for c in codes.ravel().tolist()])
    return _encode(exact, format, policy, draw, events)


def _encode(
    exact: Values, format: Format | Codebook, policy: Policy, draw: Draw | None, events: Events | None
) -> npt.NDArray[Any]:
    """Kernel or reference, with the same bits."""
    floats = exact.floats
    if isinstance(format, Codebook):
        quick = policy.rounding == "nearest-even" and events is None and not flushes_subnormals()
        if floats is not None and quick:
            return format.nearest(floats.reshape(exact.shape), policy.nan)
    elif floats is not None and kernels.suit(floats.dtype, format) and kernels.use(exact.size):
        from numsim.kernels import rounding as fast

        return fast.encode(floats.reshape(-1), format, policy, draw, events).reshape(exact.shape)
    return encode_values(exact, format, policy, draw, events).reshape(exact.shape)


# --- the front door ---------------------------------------------------------------------------------------------------
def encode(
    values: Any,
    format: Any,
    *,
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    nan: Nan = "raise",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
    events: Events | None = None,
) -> Any:
    """Round numbers to a format, once, from their exact values; returns codes.

    Rules
    -----
    NaN : the canonical NaN, sign and payload dropped; a format without NaN does what ``nan`` says: "raise", "zero",
        "max".
    Inf : kept; NaN where the format has no infinity; the largest number where it has neither; the largest number
        under "saturate".
    -0 : kept; +0 where the format has no -0.
    subnormals : "keep", "flush-inputs" (what is below the least normal number counts as a zero of its sign),
        "flush-results" (after rounding), "flush" (both).
    overflow : "ieee" (infinity or the largest number, as the mode says), "saturate", "saturate-finite" (infinities as
        under "ieee"). The grid is continued past the largest number to decide: E4M3 takes 464 to 448, a tie.
    unsigned formats : numbers below zero give NaN.
    E8M0 : has no zero; zero and what is below its least number give 2^-127.
    no subnormals : where a format has none, zero and the least normal number are neighbours; a tie gives zero.
    codebooks : the nearest number, ties by the codebook's own rule; the ends for what lies beyond; ``nan`` as above.
        Other modes: "up", "down", "toward-zero", "stochastic".

    Parameters
    ----------
    values : Python numbers, ``Fraction``, decimal strings, nested lists, numpy and ml_dtypes arrays of any shape.
    rounding : "nearest-even", "nearest-away", "toward-zero", "up", "down", "odd" (an inexact result takes the
        neighbour with the odd code), "stochastic".
    seed : for "stochastic": an integer, or a ``numsim.random.Stream`` that the call advances. Element i in C order
        uses counter position + i.
    random_bits : for "stochastic": one's own bits, unsigned integers below 2^r that broadcast to ``values``;
        r is 8 or 16 for uint8 and uint16 arrays and 32 otherwise, or ``sr_bits``. A value rounds up iff
        floor(2^r * fraction) + random >= 2^r; exact values never move.
    events : a ``numsim.Events`` that the call adds to.

    Returns unsigned integers of the smallest dtype, in the shape of ``values`` (a numpy scalar for a scalar).
    Raises ``InputError`` for what is no number and for impossible options, ``FormatError`` for an unknown format.
    Cost: about the time of copying the array; Python integers, ``Fraction`` and strings take microseconds each.
    Source: IEEE 754-2019, sections 4.3 and 7.4; OCP OFP8 1.0.

    >>> hex(encode(0.1, "bf16")), hex(encode("0.1", "bf16", rounding="down"))
    ('0x3dcd', '0x3dcc')
    >>> encode([464, 465, float("inf")], "e4m3"), encode([465, float("inf")], "e4m3", overflow="saturate")
    (array([126, 127, 127], dtype=uint8), array([126, 126], dtype=uint8))
    """
    format, policy = get_format(format), Policy(rounding, overflow, subnormals, nan)
    exact = as_values(values)
    check_events(events)
    draw = draw_for(policy, exact.size, exact.shape, seed, random_bits, sr_bits)
    return _encode(exact, format, policy, draw, events)[()]


def round_to(
    values: Any,
    format: Any,
    *,
    rounding: Rounding = "nearest-even",
    overflow: Overflow = "ieee",
    subnormals: Subnormals = "keep",
    nan: Nan = "raise",
    seed: Any = None,
    random_bits: Any = None,
    sr_bits: int | None = None,
    events: Events | None = None,
    out: npt.NDArray[Any] | None = None,
) -> Any:
    """Round numbers to a format and return them as floats: ``decode(encode(...))`` in one pass.

    Takes what ``encode`` takes. Returns float32 for a float32 array, else float64; ``out`` receives the result (same
    shape and dtype; it may be the input array itself). Raises ``RangeError`` if the format has values that the result
    dtype does not hold.

    >>> round_to([0.1, 2049.0, 1e9], "fp16")
    array([9.99755859e-02, 2.04800000e+03,            inf])
    """
    format, policy = get_format(format), Policy(rounding, overflow, subnormals, nan)
    exact = as_values(values)
    given = getattr(values, "dtype", None)
    single = isinstance(given, np.dtype) and given.kind == "f" and given.itemsize == 4
    dtype = np.dtype(np.float32 if single else np.float64)
    if not format.fits(FP32 if single else FP64):
        raise RangeError(
            f"{format} has values that no {dtype} holds. "
            f"Example: numsim.{'round_to(x.astype(numpy.float64)' if single else 'encode(x'}, '{format}')"
        )
    check_events(events)
    if out is not None and not getattr(getattr(out, "flags", None), "writeable", True):
        raise InputError("out is read-only. Example: out=numpy.empty(x.shape, x.dtype)")
    if out is not None and not (isinstance(out, np.ndarray) and out.shape == exact.shape and out.dtype == dtype):
        got = f"shape {out.shape}, dtype {out.dtype}" if isinstance(out, np.ndarray) else type(out).__name__
        raise InputError(f"out is {got}: needed is an array of shape {exact.shape}, dtype {dtype}.")
    draw = draw_for(policy, exact.size, exact.shape, seed, random_bits, sr_bits)
    direct = out is not None and out.flags.c_contiguous and out.flags.writeable
    flat = out.reshape(-1) if direct and out is not None else np.empty(math.prod(exact.shape), dtype)
    if isinstance(format, Codebook):
        flat[:] = format.decode(_encode(exact, format, policy, draw, events)).reshape(-1)
    elif exact.floats is not None and kernels.suit(exact.floats.dtype, format) and kernels.use(exact.size):
        from numsim.kernels import rounding as fast

        fast.round_to(exact.floats.reshape(-1), format, policy, draw, events, flat)
    else:
        codes = encode_values(exact, format, policy, draw, events)
        wide = FP32 if single else FP64  # by its bits: a conversion between floats may flush subnormal numbers
        words = (round_rational(to_rational(c, format), wide, Policy()) for c in codes.tolist())
        flat.view(f"u{dtype.itemsize}")[:] = np.fromiter(words, f"u{dtype.itemsize}", codes.size)
    if out is None:
        return flat.reshape(exact.shape)[()]
    if not direct:
        out[...] = flat.reshape(exact.shape)
    return out


def check_events(events: Any) -> None:
    if events is not None and not isinstance(events, Events):
        raise InputError(f"events={short(events)}: an accumulator is needed. Example: events=numsim.Events()")


def draw_for(
    policy: Policy, count: int, shape: tuple[int, ...], seed: Any, random_bits: Any, sr_bits: int | None
) -> Draw | None:
    """The random draws of a call, or None where the mode uses none; refuses bits that nothing would use."""
    if policy.rounding == "stochastic":
        return make_draw(count, seed, random_bits, sr_bits, shape)
    if seed is not None or random_bits is not None or sr_bits is not None:
        raise InputError(
            f"rounding={policy.rounding!r} uses no random bits: seed=, random_bits= and sr_bits= are for "
            'rounding="stochastic".'
        )
    return None
