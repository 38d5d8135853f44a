"""How far a library's sums are from the exact ones, where nobody knows in which order it adds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import code_dtype, decode
from numsim.formats import Format
from numsim.machines.question import Answer, Question
from numsim.machines.verdict import ANY_ORDER, SHOWN, UNDECIDED, Difference, Verdict, describe
from numsim.random import bits_from
from numsim.rounding import encode
from numsim.suites.suite import Row

Codes = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
_FACTOR = 2  # of the errors of the worst way that is known: all together, those of another are no larger
_WHAT = "adds in an order that no probe has shown; every error is within the bound that holds for any order"
_RIGHT = "Nobody is wrong"
SIGMAS = 6.0  # independent roundings are beyond in 2 exp(-6^2 / 2) of all cases at most: 3 of 10^8


# --- what any order can lose ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reach:
    """How far from the exact sums any order can get, before the last rounding.

    exact : the sums, rounded to FP64; NaN where there is none (infinite or NaN operands). sizes : sums of magnitudes.
    worst : the bound. spread : how large errors are at most (root mean square) if all roundings are to nearest and have
        nothing to do with each other; None where numbers are cut, or rounded to another width on the way. usual : of
        ways that were tried, the largest root mean square of errors over sizes; None where there is none.

    Source: n roundings of u each lose n u times the sum of magnitudes at most (C.-P. Jeannerod, S. Rump, SIAM J. Matrix
    Anal. Appl. 34 (2013) 338), and of random numbers some sqrt(n) u (N. Higham, T. Mary, SIAM J. Sci. Comput. 41 (2019)
    A2815).
    """

    exact: Floats
    sizes: Floats
    worst: Floats
    spread: Floats | None = None
    usual: float | None = None

    @property
    def bound(self) -> Floats:
        return self.worst if self.spread is None else np.minimum(self.worst, SIGMAS * self.spread)

    @property
    def undecided(self) -> npt.NDArray[np.bool_]:
        """Where the bound excludes neither zero nor the other sign."""
        return np.asarray((self.bound > 0) & (self.bound >= np.abs(self.exact)))

    @property
    def ends(self) -> Reach:
        """Of running sums, the last: the others share their errors."""
        spread = None if self.spread is None else self.spread[..., -1]
        return Reach(self.exact[..., -1], self.sizes[..., -1], self.worst[..., -1], spread)

    def contains(self, values: Floats, format: Format) -> npt.NDArray[np.bool_]:
        """Whether results lie between both ends, rounded: rounding keeps order, so that nothing else can come out."""
        known = np.isfinite(self.exact)
        ends = [np.nextafter(self.exact + sign * self.bound, sign * np.inf) for sign in (-1, 1)]
        least, most = (_rounded(np.where(known, end, 0), format) for end in ends)
        return np.asarray(known & (least <= values) & (values <= most))

    def systematic(self, values: Floats, format: Format) -> str:
        """What all errors together show that one alone does not; "" where they are those of roundings to nearest.

        Their signs are as good as tossed: by Hoeffding's inequality their sum is seldom beyond ``SIGMAS`` times the
        root of their squares' sum. How large their mean square gets: D. Hsu, S. Kakade, T. Zhang, Electron. Commun.
        Probab. 17 (2012), no. 52.
        """
        if self.usual is not None and (own := self.relative(values)) > _FACTOR * self.usual:
            return f"errors are {own / self.usual:.2g} times as large as those of the worst way that is known"
        if self.spread is None:
            return ""
        errors = values - self.exact
        use = np.isfinite(errors) & (self.spread > 0)
        last = _ulps(self.exact, format) / 2
        parts = (errors / (self.spread + last))[use]
        if abs(parts.sum()) > SIGMAS * math.sqrt(float(np.sum(parts**2))):
            return f"errors lean to one side, {np.mean(parts > 0):.0%} are positive"
        beyond = (np.maximum(np.abs(errors) - last, 0)[use] / self.spread[use]) ** 2
        t = SIGMAS**2 / 2 / max(beyond.size, 1)
        if beyond.sum() > beyond.size * (1 + 2 * math.sqrt(t) + 2 * t):
            return "errors are larger, all together, than roundings to nearest make them"
        return ""

    def relative(self, values: Floats) -> float:
        """The root mean square of errors over sizes, where both are numbers; else 0."""
        errors = (values - self.exact)[self.sizes > 0] / self.sizes[self.sizes > 0]
        errors = errors[np.isfinite(errors)]
        return float(np.sqrt(np.mean(errors**2))) if errors.size else 0.0


@dataclass(frozen=True)
class SumVerdict(Verdict):
    """A verdict that keeps ``ANY_ORDER`` apart from what a known cause explains.

    >>> SumVerdict("cuda", "emulated", compared=9, equal=7, documented={ANY_ORDER: 2}).text
    '2 within the bound of any order'
    """

    @property
    def text(self) -> str:
        causes = {name: n for name, n in self.documented.items() if name != ANY_ORDER}
        known = Verdict(**{**vars(self), "documented": causes}).text
        if not (within := self.documented.get(ANY_ORDER, 0)):
            return known
        said = f"{within} {ANY_ORDER}"
        return f"{known}, {said}" if causes or self.unexplained else said

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = super().to_dict()
        found[ANY_ORDER.replace(" ", "_")] = found["documented"].pop(ANY_ORDER, 0)
        return found

    def __add__(self, other: Verdict) -> SumVerdict:
        return SumVerdict(**vars(super().__add__(other)))

    def __radd__(self, other: Verdict) -> SumVerdict:
        return SumVerdict(**vars(Verdict.__add__(other, self)))


# --- rows -------------------------------------------------------------------------------------------------------------
def in_statistics(part: str, question: Question, answer: Answer, candidates: Mapping[str, Codes], reach: Reach) -> Row:
    """A row for answers that are compared with several ways to add.

    Those that give all bits are named. Else what differs from the nearest one is within the bound of any order, or
    unexplained: where it is beyond, where operands are infinite or NaN, and everywhere if all errors together cannot be
    those of known ways, or of roundings to nearest. Where the bound is as large as the sum nothing is decided: that is
    not compared, and said.

    candidates : codes by the name of the way.
    """
    f, codes, running = question.output, answer.codes, question.system == "torch.cumsum"
    same = {name: same_codes(codes, found, f) for name, found in candidates.items()}
    best = max(same, key=lambda name: int(same[name].sum()))
    if same[best].all():
        return in_bits(part, question, answer, candidates[best], told_ways([n for n in same if same[n].all()]))
    with np.errstate(all="ignore"):
        values, ours = (np.asarray(decode(x, f)) for x in (codes, candidates[best]))
        beyond, why = ~same[best] & ~reach.contains(values, f), ""
        if not beyond.any():
            why = reach.ends.systematic(values[..., -1], f) if running else reach.systematic(values, f)
            beyond = ~same[best] & bool(why)
        undecided = int(np.count_nonzero(~same[best] & ~beyond & reach.undecided))
    equal, unexplained, compared = int(same[best].sum()), int(beyond.sum()), codes.size - undecided
    within = compared - equal - unexplained
    shown = []
    for at in map(tuple, np.argwhere(beyond)[:SHOWN].tolist()):
        here, there = (describe(int(x[at]), f) for x in (codes, candidates[best]))
        shown.append(Difference(str(question), at, (f"exactly {reach.exact[at]:.9g}",), here, there, ""))
    machine, documented = str(answer.provenance.get("machine")), {ANY_ORDER: within} if within else {}
    verdict = SumVerdict(machine, "emulated", compared, equal, 0, documented, unexplained, tuple(shown),
                         skipped={UNDECIDED: undecided} if undecided else {},
                         reasons={ANY_ORDER: (_WHAT, _RIGHT)} if within else {})  # fmt: skip
    says = f"{unexplained} UNEXPLAINED, {why or 'beyond the bound of any order'}" if unexplained else ANY_ORDER
    if not compared:
        says = UNDECIDED
    return Row(part, verdict, f"{says}: {equal} of {codes.size} as {best}; {_errors(values, ours, reach, f)}")


def _errors(values: Floats, ours: Floats, reach: Reach, format: Format) -> str:
    """How large errors are, in words."""
    known = np.isfinite(values) & np.isfinite(ours) & np.isfinite(reach.exact)
    exact = reach.exact[known]
    if not exact.any():
        return "no errors are measured"
    own, others = (float(np.sqrt(np.sum((x[known] - exact) ** 2) / np.sum(exact**2))) for x in (values, ours))
    if values.size == 1:
        return f"relative error {own:.1e}, that way {others:.1e}"
    most = np.max(np.abs(values[known] - exact) / _ulps(reach.sizes[known], format))
    return (
        f"errors are {own:.1e} of the results (root mean squares), that way {others:.1e}; the largest is {most:.2g} "
        "ulp of the sum of magnitudes"
    )


def told_ways(names: Sequence[str]) -> str:
    """Ways that give the same bits: one is named, of several it is said that they are several."""
    if len(names) == 1:
        return names[0]
    if len(names) <= 3:
        return f"these {len(names)} ways cannot be told apart: {'; '.join(names)}"
    return f"{len(names)} ways fit, the first: {names[0]}"


def _rounded(x: Floats, format: Format) -> Floats:
    overflow: Any = "saturate" if format.bits == 8 else "ieee"
    return np.asarray(decode(encode(x, format, overflow=overflow), format))


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
