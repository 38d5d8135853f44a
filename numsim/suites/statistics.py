"""How far a library's sums are from the exact ones, where nobody knows in which order it adds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import code_dtype, decode
from numsim.formats import Format
from numsim.machines.question import Answer, Question
from numsim.machines.verdict import SHOWN, Difference, Verdict, describe
from numsim.random import bits_from
from numsim.suites.suite import Row

Codes = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
UNKNOWN_ORDER = "order not established"
_WHAT = "adds in an order, or in partial sums, that no probe has shown"
_RIGHT = "Both: each error is within the bound that holds for any order"


def in_statistics(
    part: str, question: Question, answer: Answer, candidates: Mapping[str, Codes], exact: Floats, bound: Floats
) -> Row:
    """A row for answers that are compared with several ways to add.

    One that gives all bits is named. Else what differs from the nearest one is documented where the error is within
    the bound, and unexplained beyond it.

    candidates : codes by the name of the way. exact, bound : the exact results, rounded to FP64, and how far from them
        any order can get before the last rounding; NaN in ``exact`` where there is none (infinite or NaN operands).
    """
    f, codes = question.output, answer.codes
    same = {name: same_codes(codes, found, f) for name, found in candidates.items()}
    best = max(same, key=lambda name: int(same[name].sum()))
    equal, name = int(same[best].sum()), str(answer.provenance.get("machine"))
    if equal == codes.size:
        others = len(same) > 1 and all(hits.all() for hits in same.values())
        return in_bits(part, question, answer, candidates[best], "both orders tried give them" if others else best)
    with np.errstate(all="ignore"):
        values, ours = (np.asarray(decode(x, f)) for x in (codes, candidates[best]))
        ulps = _ulps(exact, f)
        known = np.isfinite(exact) & (np.abs(exact) + bound <= float(f.max))
        far = ~(np.abs(values - exact) <= bound + ulps / 2) & known  # the last rounding is half a unit
    beyond = far & ~same[best]
    differ, unexplained = codes.size - equal, int(beyond.sum())
    shown = []
    for at in map(tuple, np.argwhere(beyond)[:SHOWN].tolist()):
        here, there = (describe(int(x[at]), f) for x in (codes, candidates[best]))
        shown.append(Difference(str(question), at, (f"exactly {exact[at]:.9g}",), here, there, ""))
    documented = {UNKNOWN_ORDER: differ - unexplained} if differ > unexplained else {}
    verdict = Verdict(name, "emulated", codes.size, equal, 0, documented, unexplained, tuple(shown),
                      reasons={UNKNOWN_ORDER: (_WHAT, _RIGHT)} if documented else {})  # fmt: skip
    errors = [_rms(x[known] - exact[known], exact[known]) for x in (values, ours)]
    worst = float(np.max(np.abs(values - exact)[known] / ulps[known], initial=0))
    says = f"{unexplained} UNEXPLAINED, beyond any order's error" if unexplained else UNKNOWN_ORDER
    note = (
        f"{says}: {equal} of {codes.size} as {best}; RMS error {errors[0]:.1e} ({errors[1]:.1e}), largest "
        f"{worst:.1f} ulp"
    )
    return Row(part, verdict, note)


def in_bits(part: str, question: Question, answer: Answer, codes: Codes, way: str) -> Row:
    """A row for answers beside what numsim computes in one way; NaNs may differ in sign and payload."""
    f, same = question.output, same_codes(answer.codes, codes, question.output)
    equal, alike = int((answer.codes == codes).sum()), int(same.sum())
    shown = [
        Difference(str(question), at, (), describe(int(answer.codes[at]), f), describe(int(codes[at]), f), "")
        for at in map(tuple, np.argwhere(~same)[:SHOWN].tolist())
    ]
    verdict = Verdict(str(answer.provenance.get("machine")), "emulated", codes.size, equal, alike - equal,
                      unexplained=codes.size - alike, shown=tuple(shown))  # fmt: skip
    return Row(part, verdict, f"{verdict.text}: {way}")


def same_codes(a: Codes, b: Codes, format: Format) -> npt.NDArray[np.bool_]:
    """Where two arrays have the same codes, or both NaN."""
    nan = np.isnan(decode(a, format)) & np.isnan(decode(b, format))
    return np.asarray((a == b) | nan)


def _rms(errors: Floats, exact: Floats) -> float:
    """The root of the mean square, as a part of the exact results'."""
    total = float(np.sum(exact**2))
    return float(np.sqrt(np.sum(errors**2) / total)) if total else float(np.sqrt(np.sum(errors**2)))


def _ulps(x: Floats, format: Format) -> Floats:
    """The unit in the last place of a result near x."""
    _, exponents = np.frexp(np.where(np.isfinite(x), x, 0))
    exponents = np.where(x == 0, format.emin, np.maximum(exponents - 1, format.emin))
    return np.asarray(np.ldexp(1.0, exponents - format.fraction_bits))


# --- exactly ----------------------------------------------------------------------------------------------------------
def exact_sums(values: Floats, running: bool = False) -> Floats:
    """Sums along the last axis, or running sums: exact, then rounded to FP64. NaN where a number is not finite.

    >>> exact_sums(np.array([[1e300, 1.0, -1e300]])).tolist()
    [1.0]
    """
    whole, e = _integers(values)
    total = np.cumsum(whole, axis=-1) if running else whole.sum(axis=-1)
    infinite = ~np.isfinite(values)
    bad = np.logical_or.accumulate(infinite, axis=-1) if running else infinite.any(axis=-1)
    return np.where(bad, np.nan, _floats(total, e))


def exact_products(a: Floats, b: Floats) -> Floats:
    """The matrix product (M, K) x (K, N): exact, then rounded to FP64. NaN where an operand is not finite."""
    (x, e), (y, g) = _integers(a), _integers(b)
    finite = np.isfinite(a).all(axis=-1, keepdims=True) & np.isfinite(b).all(axis=0, keepdims=True)
    return np.where(~finite, np.nan, _floats(np.asarray(x.dot(y)), e + g))


def _integers(values: Floats) -> tuple[npt.NDArray[Any], int]:
    """Python's integers n and an exponent e: the values are n * 2^e."""
    parts, exponents = np.frexp(np.where(np.isfinite(values), values, 0))
    least = int(exponents.min(initial=0, where=parts != 0)) - 53
    whole = np.ldexp(parts, 53).astype(np.int64).astype(object)
    shifted: npt.NDArray[Any] = whole << np.maximum(exponents - 53 - least, 0).astype(object)
    return shifted, least


def _floats(whole: npt.NDArray[Any], e: int) -> Floats:
    """n * 2^e, rounded once: Python divides integers so."""
    flat = [n << e if e >= 0 else n / (1 << -e) for n in np.ravel(whole)]
    return np.array(flat, np.float64).reshape(np.shape(whole))


def uniform_codes(format: Format, shape: tuple[int, ...], seed: int) -> Codes:
    """Random numbers between -1 and 1 that use all of the format's bits; nothing is rounded.

    >>> from numsim.formats import FP16
    >>> decode(uniform_codes(FP16, (3,), 1), FP16).tolist()
    [-0.311767578125, 0.63623046875, 0.0867919921875]
    """
    words = random_words(math.prod(shape), seed)
    fields = words >> np.uint64(1) & np.uint64(0x7FF)
    below = sum(((fields & np.uint64((1 << k) - 1)) == 0).astype(np.uint64) for k in range(1, 12))  # half of them 0
    codes = (np.uint64(format.bias - 1) - np.minimum(below, np.uint64(format.bias - 2))) << np.uint64(
        format.fraction_bits
    )
    codes |= words >> np.uint64(64 - format.fraction_bits) | (words & np.uint64(1)) * np.uint64(format.sign_mask)
    return np.asarray(codes.astype(code_dtype(format)).reshape(shape))


def cancelling_codes(format: Format, shape: tuple[int, int], seed: int) -> Codes:
    """Random numbers of which the large ones cancel: what is left of the small ones tells in which order they came.

    A third is large, a third the same numbers with the other sign, the rest below 1/8; mixed in every row alike.
    """
    codes, third = uniform_codes(format, shape, seed), shape[1] // 3
    up, down = (codes.dtype.type(n << format.fraction_bits) for n in (min(format.emax - 3, 20), 3))
    codes[:, 2 * third :] -= down  # in the exponent's field
    codes[:, :third] += up
    codes[:, third : 2 * third] = codes[:, :third][:, ::-1] ^ codes.dtype.type(format.sign_mask)
    return np.asarray(codes[:, np.argsort(random_words(shape[1], seed), kind="stable")])


def random_words(count: int, seed: int) -> npt.NDArray[np.uint64]:
    """Random words of 64 bits, the same for the same seed."""
    low, high = bits_from(seed, 0, 2 * count).astype(np.uint64).reshape(2, count)
    return np.asarray(low | high << np.uint64(32))
