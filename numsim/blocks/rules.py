"""Scale rules: from the largest magnitude of a block to the scale that is stored, in the originals' order of roundings.

All arithmetic is FP32, one rounding an operation: NumPy's float32 operations are those of IEEE 754. A rule takes the
amaxes (float32, any shape) and returns the multiplier that elements are multiplied by, and the codes of the stored
scale. Sources: mixed-precision training code named in each rule; where two codes differ, they are two rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.codes import decode
from numsim.formats import E8M0, FP32, UE4M3, Format
from numsim.host import check_ieee
from numsim.rounding import encode

if TYPE_CHECKING:
    from numsim.blocks.formats import BlockFormat

Floats = npt.NDArray[np.float32]
F = np.float32
FLT_MAX = F(np.finfo(np.float32).max)
_NAN = 0xFF  # of E8M0
_LN2 = 0.6931471805599453
# Of E8M0; that of 2^127 is subnormal, which arithmetic would flush where a library has switched that on.
_RECIPROCALS = np.asarray(encode(decode([*range(254, -1, -1), _NAN], E8M0), FP32)).view(F)
UE4M3_VALUES = np.asarray(decode(np.arange(UE4M3.codes, dtype=np.uint8), UE4M3), np.float32)


class Scales(NamedTuple):
    """What a rule returns."""

    multiplier: Floats  # elements are multiplied by this, in FP32, and rounded
    codes: npt.NDArray[Any]  # of the stored scale, by which they are multiplied to come back


class Rule(NamedTuple):
    """How scales come from amaxes."""

    scales: Callable[[Floats, BlockFormat, Any], Scales]
    scale: Format  # of the codes
    nan: str  # of a NaN among the elements: "kept" makes the amax NaN, "ignored" takes the largest number
    what: str  # in a few words
    source: str
    tensor: Callable[[Any, BlockFormat], tuple[Any, Any]] | None = None  # of a second level: what the rule needs of it,
    # from the tensor's amax, and the tensor scale


# --- powers of two: MX ------------------------------------------------------------------------------------------------
def _mx(exponents: npt.NDArray[Any], amax: Floats, infinity: int = _NAN) -> Scales:
    """Scales 2^exponent within E8M0's range; NaN, zero and infinity as the byte says, whatever the exponent."""
    codes = (np.clip(exponents, -127, 127) + 127).astype(np.uint8) * (amax != 0)
    if not (finite := amax < np.inf).all():
        codes = np.where(finite, codes, np.where(np.isnan(amax), np.uint8(_NAN), np.uint8(infinity)))
    return Scales(_RECIPROCALS.take(codes), codes)


def _exponent(amax: Floats) -> npt.NDArray[np.int32]:
    """floor(log2 amax): of subnormal numbers too."""
    return np.asarray(np.frexp(amax)[1] - 1)


def floor(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """2^(floor(log2 amax) - emax): the largest element may saturate.

    Of a NaN or an infinity the scale is NaN, as in torchao 050515e; its release 0.18.0 gives infinity a number.
    """
    return _mx(_exponent(amax) - format.emax, amax)


def ceil(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """2^(ceil(log2 amax) - emax): nothing saturates, and amaxes just above a power of two lose a binade."""
    significand, exponent = np.frexp(amax)
    return _mx(exponent - (significand == 0.5) - format.emax, amax)


def rceil(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """The least 2^e that is at least amax / max, the quotient as an FP32 product with the reciprocal of max.

    (torchao 0.18.0 divides, and takes ceil(log2) in FP32, which misses quotients just above a power of two.)
    """
    return _mx(_rounded_up(amax, format), amax)


def even(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """As floor, after amax is rounded to the element's fraction bits: half an ulp is added to its bits.

    An amax that so becomes 2^128 has a scale like any other (torchao 050515e takes it for infinity: NaN).
    """
    rounded = np.abs(amax).view(np.uint32) + np.uint32(half_ulp(format))
    return _mx((rounded >> np.uint32(23)).astype(np.int32) - 127 - format.emax, amax)


def half_ulp(format: BlockFormat) -> int:
    """Of an element, in the bits of an FP32 number; 0 for elements as fine as FP32 itself."""
    fraction = getattr(format.element, "fraction_bits", format.element.bits - 2)
    return 1 << (22 - fraction) if fraction < 23 else 0


def transformer_engine(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """As rceil, but an infinite amax gives 2^127 (byte 254) instead of NaN."""
    return _mx(_rounded_up(amax, format), amax, infinity=0xFE)


def _rounded_up(amax: Floats, format: BlockFormat) -> npt.NDArray[np.int32]:
    with np.errstate(all="ignore"):
        quotient = amax * (F(1) / F(format.element_max))
    significand, exponent = np.frexp(quotient)
    # 0.5 x 2^e is itself a power of two; a quotient that underflowed is below all of them
    return np.where(quotient == 0, -127, exponent - (significand == 0.5)).astype(np.int32)


# --- FP32 scales ------------------------------------------------------------------------------------------------------
def current(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """max / amax in FP32; 1 where amax is 0, infinite or NaN; FLT_MAX where the quotient overflows."""
    return _stored(_current(amax, format))


def current_pow2(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """As current, then rounded down to a power of two by clearing the fraction bits."""
    return _stored((_current(amax, format).view(np.uint32) & np.uint32(0xFF800000)).view(np.float32))


def _current(amax: Floats, format: BlockFormat) -> Floats:
    with np.errstate(all="ignore"):
        scale = F(format.element_max) / amax
    scale = np.where(np.isinf(scale), FLT_MAX, scale)
    return np.asarray(np.where(np.isfinite(amax) & (amax > 0), scale, F(1)), np.float32)


def torchao(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """max / amax in FP64, amax at least 1e-12, rounded once to FP32: infinite amax gives 0, NaN gives NaN."""
    return _stored(_torchao(amax, format))


def torchao_pow2(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """As torchao, then 2^floor(log2 scale) with log2 rounded to FP32: just below a power of two that rounds up."""
    scale = _torchao(amax, format)
    ordinary = np.isfinite(scale) & (scale > 0)
    significand, exponent = np.frexp(np.where(ordinary, scale, F(1)))
    up = significand >= _log2_rounds_up(exponent)
    with np.errstate(over="ignore"):  # 2^128 is infinity
        power = np.ldexp(F(1), exponent - 1 + up).astype(np.float32)
    return _stored(np.where(ordinary, power, scale).astype(np.float32))


def _torchao(amax: Floats, format: BlockFormat) -> Floats:
    with np.errstate(all="ignore"):
        return np.asarray(format.element_max / np.maximum(amax.astype(np.float64), 1e-12), np.float32)


def _log2_rounds_up(exponent: npt.NDArray[np.int32]) -> Floats:
    """From which significand in [0.5, 1) on log2 of significand x 2^exponent, in FP32, is the whole number exponent.

    log2(1 - n 2^-24) = -n (2^-24 / ln 2) nearly, and FP32's spacing just below ``exponent`` decides how much of that
    rounds away: half of it, 2^(floor(log2 |exponent|) - 24), or of half that below a positive power of two.
    """
    size = np.abs(exponent)
    top = np.frexp(np.maximum(size, 1).astype(np.float64))[1] - 1  # 2^top <= |exponent|
    below = top - ((exponent > 0) & (size == 1 << top))  # where the spacing changes at the exponent itself
    n = np.floor(np.ldexp(_LN2, below))  # of all that occur none is near a whole number: 0.35, 0.69, 1.39, ... 88.7
    return np.asarray(np.where(exponent == 0, F(1), 1 - n * 2.0**-24), np.float32)


def _stored(scale: Floats) -> Scales:
    """An FP32 multiplier, and its FP32 reciprocal as what is stored."""
    with np.errstate(all="ignore"):
        inverse = (F(1) / scale).astype(np.float32)
    return Scales(scale, np.asarray(encode(inverse, FP32)))


# --- absmax: integers, NF4 --------------------------------------------------------------------------------------------
def absmax(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """max / amax as a product with the FP32 reciprocal of amax; amax / max is stored.

    A block of zeros stores 0 and has the codes of zero (bitsandbytes forms 0 x infinity there, NaN, and then code 0:
    the value is zero all the same). Where the reciprocal overflows, numbers become the largest and zeros stay.
    """
    most = F(format.element_max)
    with np.errstate(all="ignore"):
        multiplier = np.where(amax == 0, F(0), (F(1) / amax) * most).astype(np.float32)
        stored = amax if most == 1 else (amax / most).astype(np.float32)
    return Scales(multiplier, np.asarray(encode(stored, FP32)))


def absmax_127(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """max / amax in FP32; amax x (1 / max) in FP32 is stored. A block of zeros stores 0 and has the codes of zero.

    (On a GPU the originals' quotient is a fast division, which may differ in its last bit.)
    """
    most = F(format.element_max)
    with np.errstate(all="ignore"):
        multiplier = np.where(amax == 0, F(0), most / amax).astype(np.float32)
        stored = (amax * (F(1) / most)).astype(np.float32)
    return Scales(multiplier, np.asarray(encode(stored, FP32)))


# --- NVFP4: two levels ------------------------------------------------------------------------------------------------
def two_level(amax: Any, format: BlockFormat) -> tuple[Any, Any]:
    """NVFP4's second level: the multiplier of a whole tensor, 2688 / amax, and the tensor scale, amax / 2688.

    An amax of 0 or infinity gives the multiplier 1. Below 7.9e-36 the multiplier stops at FLT_MAX and no longer belongs
    to the way back, which still is amax / 2688, as in the original.
    """
    amax = F(amax)
    most = F(float(UE4M3.max) * format.element_max)
    with np.errstate(all="ignore"):
        if amax == 0:
            return F(1), F(1)
        multiplier = min(most / amax, FLT_MAX)
        return multiplier if multiplier > 0 else F(1), F(amax * (F(1) / most))


def nvfp4(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """E4M3 scales: amax x (the tensor's multiplier / 6), to nearest, saturated; small blocks have a scale of 0."""
    with np.errstate(all="ignore"):
        wanted = (amax * (F(tensor) * (F(1) / F(format.element_max)))).astype(np.float32)
        codes = np.asarray(encode(wanted, UE4M3, overflow="saturate"))
        stored = UE4M3_VALUES[codes]
        multiplier = np.minimum(F(1) / (stored * (F(1) / F(tensor))), FLT_MAX).astype(np.float32)
    return Scales(multiplier, codes)


def torchao_two_level(amax: Any, format: BlockFormat) -> tuple[Any, Any]:
    """torchao's second level, amax / 2688 both ways; of a tensor of zeros it is 0."""
    whole = F(amax) / F(float(UE4M3.max) * format.element_max)
    return whole, whole


def torchao_nvfp4(amax: Floats, format: BlockFormat, tensor: Any = None) -> Scales:
    """E4M3 scales of (amax / 6) / tensor scale, at least 2^-6: small blocks keep something. 0 / 0 gives NaN scales."""
    with np.errstate(all="ignore"):
        wanted = np.clip(amax / F(format.element_max) / F(tensor), F(2.0**-6), F(448)).astype(np.float32)
        codes = np.asarray(encode(wanted, UE4M3))
        stored = UE4M3_VALUES[codes]
        return Scales(((F(1) / F(tensor)) / stored).astype(np.float32), codes)


_AO = "pytorch/ao 36027d8, mx_tensor.py"
_TE = "NVIDIA Transformer Engine d0067d0"
RULES: dict[str, Rule] = {
    "floor": Rule(floor, E8M0, "kept", "round the scale down (OCP)", f"OCP MX 1.0, section 6.3; {_AO}"),
    "ceil": Rule(ceil, E8M0, "kept", "round the scale up", _AO),
    "rceil": Rule(rceil, E8M0, "kept", "round amax / max up (cuBLAS)", _AO),
    "even": Rule(even, E8M0, "kept", "round amax to the element's precision first", _AO),
    "te": Rule(transformer_engine, E8M0, "ignored", "as rceil; infinity saturates", f"{_TE}, MXFP8"),
    "current": Rule(current, FP32, "ignored", "max / amax in FP32", f"{_TE}, recipe_common.cuh"),
    "current-pow2": Rule(
        current_pow2, FP32, "ignored", "max / amax, down to a power of two", f"{_TE}, recipe_common.cuh"
    ),
    "torchao": Rule(torchao, FP32, "kept", "max / amax in FP64", "pytorch/ao 36027d8, float8_utils.py"),
    "torchao-pow2": Rule(
        torchao_pow2, FP32, "kept", "max / amax, 2^floor(log2)", "pytorch/ao 36027d8, float8_utils.py"
    ),
    "absmax": Rule(
        absmax, FP32, "ignored", "amax becomes the largest element", "bitsandbytes 95f9af3, csrc/kernels.cu"
    ),
    "absmax-127": Rule(absmax_127, FP32, "ignored", "127 / amax", "bitsandbytes 95f9af3, LLM.int8"),
    "nvfp4": Rule(nvfp4, UE4M3, "ignored", "E4M3 scales under an FP32 scale", f"{_TE}, core_nvfp4.cuh", two_level),
    "torchao-nvfp4": Rule(
        torchao_nvfp4,
        UE4M3,
        "kept",
        "as nvfp4, scales of at least 2^-6",
        "pytorch/ao 36027d8, prototype/mx_formats/nvfp4_tensor.py",
        torchao_two_level,
    ),
}


def tensor_level(amax: Floats, format: BlockFormat) -> tuple[Any, Any]:
    """What a rule needs of the whole tensor, and the tensor scale; (1, 1) for rules of one level."""
    tensor = RULES[format.rule].tensor
    return tensor(amax.max(initial=F(0)), format) if tensor else (F(1), F(1))


def make_scales(amax: Floats, format: BlockFormat) -> tuple[Scales, float]:
    """The scales of blocks from their amaxes by the format's rule, and the tensor scale."""
    check_ieee()
    level, back = tensor_level(amax, format)
    return RULES[format.rule].scales(amax, format, level), float(back)
