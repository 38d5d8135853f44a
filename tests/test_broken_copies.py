"""Would a test notice? Copies of the source with one small mistake each; tests of this suite must find every one.

Each mistake names a test, which is called while the broken copy is in place (``tests/broken.py``): an assertion has to
fail. With unbroken copies the same call has to pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import numsim
from tests import (
    test_accumulate,
    test_arithmetic,
    test_codes,
    test_decimals,
    test_elementwise,
    test_functions,
    test_own_formats,
    test_rounding,
    test_sums,
)
from tests.broken import broken


# --- tests that must find them ----------------------------------------------------------------------------------------
class Calls(NamedTuple):
    """A test, and what to call it with."""

    test: Any
    arguments: list[Any]

    def __call__(self) -> None:
        for arguments in self.arguments:
            self.test(*arguments)


def calls(test: Any, *arguments: Any) -> Calls:
    return Calls(test, list(arguments))


SLOW = "reference"  # as many numbers as the reference is asked for

KNOWN = calls(test_rounding.test_where_libraries_disagree, *[(*x, SLOW) for x in test_rounding.DISAGREEMENTS])
SMALL = calls(test_rounding.test_small_formats, ("e2m1", 64, SLOW), ("e2m1", 32, SLOW))
E5M2 = calls(test_rounding.test_small_formats, ("e5m2", 32, SLOW))
E8M0 = calls(test_rounding.test_small_formats, ("e8m0", 32, SLOW))
EVENTS = calls(test_rounding.test_events, ("e4m3fn", 64, SLOW))
NANS = calls(test_rounding.test_every_nan, ("fp16", 32, SLOW))
CHANCE = calls(test_rounding.test_stochastic_rule, ("e3m2", 64, SLOW))
CHANCE_32 = calls(test_rounding.test_stochastic_rule, ("e3m2", 32, SLOW))
OWN = calls(test_rounding.test_ones_own_formats, ((4, 0, 6, "fn", True, True), SLOW))
NUMBERS = calls(test_rounding.test_kinds_of_numbers, *[(*x, "bf16", SLOW) for x in test_rounding.EXACT])
GAP = calls(test_own_formats.test_every_mode, ((3, 2, {"subnormals": False}), "nearest-even"))
SPECIAL = calls(test_arithmetic.test_special_cases, ("e5m2", SLOW), ("e4m3fn", SLOW))
ZEROS = calls(test_arithmetic.test_signs_of_exact_zeros, ("e5m2", SLOW))
MPFR = calls(test_arithmetic.test_every_mode_against_mpfr, ("e5m2", SLOW))
FMA = calls(test_arithmetic.test_known_fma_traps, *[(*x, SLOW) for x in test_arithmetic.KNOWN])
SUM_TRAPS = calls(test_arithmetic.test_twosum_traps, ("fp32", "up", SLOW))
LONG = calls(test_arithmetic.test_long_results, *[(mode, SLOW) for mode in ("nearest-even", "down", "odd")])
ROOTS = calls(test_arithmetic.test_long_roots, ("nearest-even", SLOW), ("down", SLOW))
POLICIES = calls(test_arithmetic.test_policies_of_wide_formats, ("fp16", SLOW))
REMAINDER = calls(test_elementwise.test_remainder_by_fractions, ("e5m2", SLOW))
EXTREMES = calls(test_elementwise.test_extremes, ("e5m2", SLOW))
SCALES = calls(test_elementwise.test_scale_b_by_fractions, ("fp16", SLOW))
EXPONENTS = calls(test_elementwise.test_log_b, ("e5m2", SLOW))
TOTAL_ORDER = calls(test_elementwise.test_total_order_of_all_pairs, ("e3m2",))
COMPARED = calls(test_elementwise.test_comparisons, ("e15m48", "fp64"))
COMPARED_WIDE = calls(test_elementwise.test_comparisons, ("e8m55", "e8m55"))
SHORTEST = calls(test_decimals.test_shortest, (numsim.E5M2,))
REPR = calls(test_decimals.test_fp64_is_pythons_repr, ())


def sums(order: str) -> Calls:
    module = test_accumulate if order in test_accumulate.ORDERS else test_sums
    return calls(module.test_sums_in_every_mode, ("fp16", order, SLOW))


SUMS = {order: sums(order) for order in ("sequential", "pairwise", "kahan", *test_sums.NEW)}
SUM_POLICIES = calls(test_accumulate.test_sums_under_policies, ("e4m3fn", "sequential", SLOW))
TREES = calls(test_sums.test_any_tree, (4, SLOW))
COUNTERS = calls(test_sums.test_counters, ("double-word", None, SLOW))
TREE_COUNTERS = calls(test_sums.test_counters, ("pairwise:4", None, SLOW))
NUMPY_SUMS = calls(test_sums.test_numpys_own_sums, ("fp32", SLOW))
EXACT_SUMS = calls(test_sums.test_exact_beside_mpfr, ("fp64", SLOW))
ZERO_SUMS = calls(test_sums.test_special_values, ("exact", SLOW))
CHANCE_SUMS = calls(test_accumulate.test_counters_of_sums, ("sequential", 4, SLOW))
PRODUCTS = calls(test_sums.test_products_in_every_order, ("exact", SLOW), ("pairwise:4", SLOW))
LANES = calls(test_accumulate.test_matmul_against_fractions, (("fp16", "fp16"), None, "fp32", SLOW),
              (("fp16", "fp16"), "fp16", "fp16", SLOW), (("fp64", "fp64"), None, "fp64", SLOW))  # fmt: skip
MINUS_ZERO = calls(test_accumulate.test_sums_of_negative_zeros, ("sequential", SLOW))
PAST_MAX = calls(test_accumulate.test_sums_past_the_largest_number, ("e4m3fn", "sequential", SLOW))
FLUSHED_PRODUCTS = calls(test_accumulate.test_products_under_flushing, ("e5m2", "sequential", SLOW))
KEPT = calls(test_sums.test_what_each_order_keeps, (SLOW,))
CODES = calls(test_codes.test_exact_and_classify_every_code, ("e4m3fn",), ("e5m2",))
DECODED = calls(test_codes.test_decode_every_code, ("e4m3fn",))
ULPS = calls(test_codes.test_ulp_of_every_code, ("e4m3fn",))
NEIGHBOURS = calls(test_codes.test_neighbours_of_every_code, ("e3m2",))
PACKED = calls(test_codes.test_pack_by_hand, ())


def errors(function: str) -> Calls:
    def stated_errors_hold() -> None:
        with pytest.MonkeyPatch.context() as patch:
            test_functions.test_stated_errors_hold(function, patch)

    return calls(stated_errors_hold, ())


def wide(function: str) -> Calls:
    return calls(test_functions.test_wide_formats_one_by_one, ("tf32", 30, function))


EXP, RSQRT, COS = errors("exp"), wide("rsqrt"), wide("cos")
SIGMOID = calls(test_functions.test_all_codes_of_8_bits, ("e5m2", "sigmoid"))
FUNCTIONS = calls(test_functions.test_special_values, *[(n,) for n in test_functions.NAMES])


# --- the mistakes -----------------------------------------------------------------------------------------------------
# What is wrong, the text, what stands in its place, and who must notice.
MISTAKES = {
    "rounding.py": [
        ("ties to the odd code", "2 * remainder == d and odd", "2 * remainder == d and not odd", KNOWN),
        ("ties away", "or (2 * remainder == d and odd)", "or 2 * remainder == d", KNOWN),
        ("ties towards zero", "up = 2 * remainder >= d", "up = 2 * remainder > d", KNOWN),
        ("up is away", "up = not x.sign", "up = True", SMALL),
        ("down is towards zero", "up = bool(x.sign)", "up = False", SMALL),
        ("odd is even", "up = not odd", "up = odd", SMALL),
        ("parity of the rank", "odd = (rank - format.rank(0)) & 1", "odd = rank & 1", KNOWN),
        ("chance: > for >=", "+ random >= 1 << r", "+ random > 1 << r", CHANCE),
        ("chance: bits rounded up", "((remainder << r) // d)", "-(-(remainder << r) // d)", CHANCE),
        ("chance: towards +inf", "up = ((remainder << r) // d) + random >= 1 << r",
         "up = (((remainder << r) // d) + random >= 1 << r) != bool(x.sign)", CHANCE),
        ("subnormal spacing halved", "exponent = max(exponent, format.emin)",
         "exponent = max(exponent, format.emin - 1)", KNOWN),
        ("subnormal spacing doubled", "exponent = max(exponent, format.emin)",
         "exponent = max(exponent, format.emin + 1)", KNOWN),
        ("exponent by length alone", "exponent -= 1", "exponent -= 0", NUMBERS),
        ("carry lost at a power of two", "return rank + step * bool(up)",
         "return rank + step * bool(up and (rank + 1) % (1 << format.fraction_bits))", KNOWN),
        ("first gap too narrow", "remainder, d, rank = n, d * step, 0", "remainder, d, rank = n, d, 0", GAP),
        ("the largest number overflows", "if rank > format.max_rank:", "if rank >= format.max_rank:", KNOWN),
        ("overflow two steps late", "if rank > format.max_rank:", "if rank > format.max_rank + 1:", KNOWN),
        ("odd overflows", 'policy.rounding in ("toward-zero", "odd") or', 'policy.rounding in ("toward-zero",) or',
         E5M2),
        ("directed modes overflow inwards", '("up" if negative else "down")', '("down" if negative else "up")', E5M2),
        ("saturates where infinity is due", 'if policy.overflow != "ieee" or towards_zero:', "if True:", KNOWN),
        ("infinity where it saturates", 'policy.overflow != "ieee" or towards_zero', "towards_zero", KNOWN),
        ("infinities always kept", 'if policy.overflow == "saturate":', "if False:", KNOWN),
        ("infinities saturate, too", 'if policy.overflow == "saturate":', 'if policy.overflow != "ieee":', KNOWN),
        ("flushed before rounding", "if flush_results and rank < 1 << format.fraction_bits:",
         "if flush_results and below_normal(x, format):", KNOWN),
        ("inputs flushed after rounding", "(flush_inputs and below_normal(x, format))",
         "(flush_results and below_normal(x, format))", KNOWN),
        ("sign of zero lost", '(magnitude == 0 and format.specials == "fnuz")', "magnitude == 0", KNOWN),
        ("-0 where there is none", ' or (magnitude == 0 and format.specials == "fnuz")', "", KNOWN),
        ("negative zero is NaN", "if negative and not format.signed and x.numerator:",
         "if negative and not format.signed:", KNOWN),
        ("NaN with a payload", "        return format.nan_code\n", "        return format.nan_code + 1\n", NANS),
        ("no infinity: the largest", "if format.nan_code is None else format.nan_code\n", "\n", KNOWN),
        ("E8M0 rounds to code -1", "max(rank - format.rank(0), 0)", "abs(rank - format.rank(0))", E8M0),
        ("events: overflow of the largest", "policy.rounding, random, r) > format.max_rank",
         "policy.rounding, random, r) >= format.max_rank", EVENTS),
        ("events: zero underflows", "underflow=int(x.numerator > 0 and", "underflow=int(", EVENTS),
    ],
    "values.py": [
        ("the largest number is NaN", "or magnitude > format.top_code:", "or magnitude >= format.top_code:", MPFR),
        ("hexadecimal digits of one bit", "- 4 * len(part)", "- len(part)", NUMBERS),
        ("minus in a fraction lost", "Rational(int(x < 0), abs(x.numerator), x.denominator)",
         "Rational(0, abs(x.numerator), x.denominator)", NUMBERS),
    ],
    "codes.py": [
        ("subnormals have a hidden bit", "place = np.maximum(rank >> format.fraction_bits, 1) - 1",
         "place = np.maximum(rank >> format.fraction_bits, 0) - 1", DECODED),
        ("-0 is +0", "np.where(negative, -values, values)", "np.where(negative, 0 - values, values)", DECODED),
        ("ulp of subnormals", "exponent = max(rank >> format.fraction_bits, 1) - 1 + format.emin",
         "exponent = (rank >> format.fraction_bits) - 1 + format.emin", ULPS),
        ("one number above the largest", "| sign if magnitude < format.top_code",
         "| sign if magnitude <= format.top_code",
         NEIGHBOURS),
        ("the least normal number is subnormal", "below = (magnitude < 1 << format.fraction_bits)",
         "below = (magnitude <= 1 << format.fraction_bits)", CODES),
        ("first code in the high bits", "words << np.arange(0, group * format.bits, format.bits, dtype=np.uint64)",
         "words << np.arange(0, group * format.bits, format.bits, dtype=np.uint64)[::-1]", PACKED),
    ],
    "arithmetic.py": [
        ("x - x is +0 downwards", 'int(rounding == "down")', "0", ZEROS),
        ("-0 + -0 is +0", 'x.sign if x.sign == y.sign else int(rounding == "down")', 'int(rounding == "down")', ZEROS),
        ("inf - inf is inf", "y.denominator == 0 and x.sign != y.sign", "y.denominator == 0 and False", SPECIAL),
        ("0 * inf is inf", "Rational(sign, 1, 0) if n else NAN", "Rational(sign, 1, 0)", SPECIAL),
        ("sign of a quotient", "x.sign ^ y.sign, x.numerator * y.denominator", "x.sign, x.numerator * y.denominator",
         SPECIAL),
        ("root of -0 is NaN", "if x == NAN or (x.sign and x.numerator):", "if x == NAN or x.sign:", SPECIAL),
        ("root of 12 bits", "k = 128 + ", "k = 12 + ", ROOTS),
        ("fma rounds its product", "add(mul(x, y), z, rounding)",
         "add(to_rational(round_rational(mul(x, y), F := Format('F', 8, 23, 127), Policy()), F), z, rounding)", FMA),
        ("remainder truncates", "if 2 * rest > b or (2 * rest == b and n % 2):", "if False:", REMAINDER),
        ("remainder: odd n at a tie", "(2 * rest == b and n % 2)", "(2 * rest == b and n % 2 == 0)", REMAINDER),
        ("remainder: sign of a zero", "Rational(x.sign ^ int(rest < 0), abs(rest)", "Rational(int(rest < 0), abs(rest)",
         REMAINDER),
        ("scaled by 31 places at most", "min(n.numerator // n.denominator, 1 << 18)",
         "min(n.numerator // n.denominator, 31)", SCALES),
        ("exponents of powers of two", "if x.numerator << max(-e, 0) < x.denominator",
         "if x.numerator << max(-e, 0) <= x.denominator", EXPONENTS),
        ("zeros have no order", "or compare(x, y) or y.sign - x.sign", "or compare(x, y) or 0", EXTREMES),
        ("extremes drop NaN", "return (y if x == NAN else x) if number else NAN", "return y if x == NAN else x",
         EXTREMES),
        ("a flushed operand is +0", "return Rational(x.sign, 0, 1)", "return Rational(0, 0, 1)", POLICIES),
        ("operands flushed twice", '{"flush-inputs": "keep",', '{"flush-inputs": "flush-results",', POLICIES),
    ],
    "accumulate.py": [
        ("Kahan without compensation", "y = self.minus(x, lost, at - 3)", "y = x", SUMS["kahan"]),
        ("Kahan with the other sign", "self.minus(self.minus(t, s, at - 1), y, at)",
         "self.minus(y, self.minus(t, s, at - 1), at)", SUMS["kahan"]),
        ("Neumaier never looks at sizes", "if _size_at_least(s, x)", "if True", KEPT),
        ("Neumaier: no correction at the end", "yield self.plus(s, lost, at)[0] if _corrects(lost) else code",
         "yield code", SUMS["neumaier"]),
        ("double-word: not renormalised", "if _corrects(low):  #", "if False:  #", SUMS["double-word"]),
        ("double-word: short TwoSum", "self.plus(self.minus(s, a, at - 6), self.minus(x, b, at - 5), at - 4)",
         "(0, self.minus(x, b, at - 5))", SUMS["double-word"]),
        ("double-word: a draw used twice", "self.plus(high, low, at - 2)", "self.plus(high, low, at - 3)", COUNTERS),
        ("a block ends one early", "min(first + block, n)", "min(first + block - 1, n)", SUMS["pairwise:4"]),
        ("blocks from the last", "for first in range(block, n, block))",
         "for first in reversed(range(block, n, block)))",
         SUMS["blocked:4"]),
        ("halves of no multiple of 8", "half = n // 2 - n // 2 % 8", "half = n // 2", NUMPY_SUMS),
        ("lanes one after another", "((0, 1), (2, 3), (0, 2), (4, 5), (6, 7), (4, 6), (0, 4))",
         "((0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7))", SUMS["pairwise:numpy"]),
        ("exact: rounded on the way", "_lowest(add(s, x, self.plan.policy.rounding))", "self.plus(s, x, at)[1]",
         SUMS["exact"]),
        ("brackets of three rounded twice", "sums[i] = _lowest(add(sums[i], sums[j], self.plan.policy.rounding))",
         "sums[i] = self.plus(sums[i], sums[j], 0)[1]", TREES),
        ("draws of the first operand", "others[0] * uses + uses - 1", "i * uses + uses - 1", TREE_COUNTERS),
        ("a sum begins with +0",
         "code, s = self.round(x, self.plan.accumulator, at) if s is None else self.plus(s, x, at)",
         "code, s = self.plus(s or _ZERO, x, at)", MINUS_ZERO),
    ],
    "decimals.py": [
        ("one digit too many", "e = _floor_log10(x, unit)\n", "e = _floor_log10(x, unit) - 1\n", REPR),
        ("the further decimal", "further = 2 * rest > unit", "further = 2 * rest < unit", REPR),
        ("of two as near the odd one", "n % 2 == 1)", "n % 2 == 0)", REPR),
        ("ends count for odd codes", "return low, high, even, even", "return low, high, True, True", SHORTEST),
        ("equal gaps at a power of two", "low, high = (under + x) // 2, (x + over) // 2",
         "low, high = x - (over - x) // 2, (x + over) // 2", REPR),
        ("other layout", "if not -4 < point <= 16:", "if not -5 < point <= 16:", REPR),
    ],
    "ordering.py": [
        ("-0 and +0 in one place", "-1 - ranks, ranks", "-ranks, ranks", TOTAL_ORDER),
        ("-0 is below +0", "np.where(place < 0, place + 1, place)", "place", COMPARED_WIDE),
        ("NaN equals itself", 'np.where(unordered, name == "not_equal", result)', "result", COMPARED_WIDE),
        ("infinities without a sign", "else -math.inf if x.sign else math.inf", "else math.inf", COMPARED),
    ],
    "elementary.py": [
        ("exp: no spare bits", "inner = k + halvings + k.bit_length() + 8", "inner = k + halvings", EXP),
        ("sigmoid: the wrong side of 1/2", "_beside(Rational(0, 1, 2), not x.sign, bits)",
         "_beside(Rational(0, 1, 2), bool(x.sign), bits)", SIGMOID),
        ("rsqrt: rest lost", "2 * root + (rest != 0 or root * root != scaled)", "2 * root", RSQRT),
        ("cos: half a turn lost", "turned = (turned + quarters) & 3", "turned = (turned + quarters) & 1", COS),
        ("erf(-inf) is 1", "        return Rational(x.sign, 1, 1)\n    if x.numerator == 0:\n        return x\n"
         "    # 4. Just below 1: 1 - erf", "        return ONE\n    if x.numerator == 0:\n        return x\n"
         "    # 4. Just below 1: 1 - erf", FUNCTIONS),
    ],
    "kernels/_rounding_plan.py": [
        ("ties away", "half=(1 << shift >> 1) - 1 if shift else 0", "half=(1 << shift >> 1) if shift else 0", KNOWN),
        ("ties down", "lowest=int(shift > 0)", "lowest=0", KNOWN),
        ("subnormal spacing doubled", "top_of_small = field + shift  #", "top_of_small = field + shift + 1  #", KNOWN),
        ("the largest number overflows", "max_rank=format.max_rank,", "max_rank=format.max_rank - 1,", KNOWN),
        ("infinity as an overflow", "infinity=result(infinity),\n        minus",
         "infinity=result(over),\n        minus", KNOWN),
        ("sign of zero lost", 'signed_from=int(format.specials == "fnuz")', "signed_from=1", KNOWN),
        ("-0 where there is none", 'signed_from=int(format.specials == "fnuz")', "signed_from=0", KNOWN),
        ("results flushed with inputs", "flush_result=normal * flush_result", "flush_result=normal * flush_input",
         KNOWN),
        ("down is up", 'up_negative=all_ones * (mode == "down")', 'up_negative=all_ones * (mode == "up")', OWN),
        ("draws in the wrong place", "draw_right=max(32 - shift, 0)", "draw_right=max(31 - shift, 0)", CHANCE_32),
        ("E8M0: tie at its least number", "(top_of_small << F) + 1", "top_of_small << F", E8M0),
        ("one bit of precision: parity", "quick = False  #", "quick = quick  #", OWN),
        ("least normal number", "else 1 << (F + field - 1)", "else 1 << (F + field)", KNOWN),
    ],
    "kernels/_rounding_loops.py": [
        ("overflow not noticed", "if most > p.max or not p.plain:", "if not p.plain:", KNOWN),
        ("the largest number overflows", "special(a, word, signed, r > p.max, p)",
         "special(a, word, signed, r >= p.max, p)",
         KNOWN),
        ("codes: the largest number overflows", "            over = rank > p.max_rank",
         "            over = rank >= p.max_rank",
         KNOWN),
        ("a negative overflow is positive", "result = (p.minus_over if negative else p.over) if over",
         "result = p.over if over", E5M2),
        ("codes: inputs not flushed", "(a < p.flush_input) | (rank < p.flush_rank)", "(rank < p.flush_rank)", KNOWN),
        ("on the grid: flushed before rounding", "rank = ZERO if rank < p.flush_rank else rank\n            result",
         "rank = ZERO if exact_rank < p.flush_rank else rank\n            result", E5M2),
        ("on the grid: below the spacing", "u(max(i(-above), i(0)))), MOST)", "u(max(i(-above), i(1)))), MOST)",
         EVENTS),
        ("carry out of the draws lost", "| np.uint32(np.uint32(t | random) & np.uint32(~total))", "", CHANCE),
        ("ties away", "u(u(odd | p.away) & u(ones & ONE))", "u(ones & ONE)", OWN),
        ("odd is even", "u(p.to_odd & u(odd - ONE))", "u(p.to_odd & u(ZERO - odd))", OWN),
        ("low bits of the draws",
         "left(right(fast_random.bits(np.uint32(first + np.uint32(j)), key0, key1), blank), blank)",
         "left(fast_random.bits(np.uint32(first + np.uint32(j)), key0, key1), blank)",
         calls(test_arithmetic.test_stochastic, ("e5m2", 8, SLOW))),
        ("events: subnormals", "(rank != ZERO) & (rank < p.normal_rank)", "(rank != ZERO) & (rank <= p.normal_rank)",
         EVENTS),
    ],
    "kernels/_reading.py": [
        ("nothing flushed", "unit = 0.0 if flush or not format.subnormals", "unit = 0.0 if not format.subnormals",
         POLICIES),
        ("the largest number is NaN", "_NAN if (a > r.max", "_NAN if (a >= r.max", MPFR),
        ("-0 for NaN", "or code == r.minus_zero else", "else",
         calls(test_arithmetic.test_special_cases, ("e4m3fnuz", SLOW))),
        ("infinity is NaN", "if a == r.infinity else word", "if a > r.infinity else word", SPECIAL),
    ],
    "kernels/_arithmetic_loops.py": [
        ("rounded to even", "even = np.uint64(~bits & np.uint64(1))", "even = np.uint64(bits & np.uint64(1))",
         SUM_TRAPS),
        ("rest lost", "return as_float(np.uint64(bits + step)) if inexact else s", "return s", SUM_TRAPS),
        ("short TwoSum", "error = (a - (s - part)) + (b - part)", "error = b - part", SUM_TRAPS),
        ("x - x is +0 downwards", "return -0.0  #", "return 0.0  #", ZEROS),
        ("quotient: sign of the rest", "rest if b[i] > 0.0 else -rest", "rest", LONG),
        ("quotient: rest lost", "to_odd(q, rest if b[i] > 0.0 else -rest)", "q", LONG),
        ("root: rest lost", "to_odd(root, fma64(-root, root, a[i]))", "root", ROOTS),
        ("fma rounds its product", "add_odd(a[i] * b[i], c[i], down)",
         "add_odd(np.float64(np.float32(a[i] * b[i])), c[i], down)",
         FMA),
        ("fma not rounded to odd", "add_odd(a[i] * b[i], c[i], down)", "a[i] * b[i] + c[i]", FMA),
        ("remainder: odd n at a tie", "if x + x > y if tiny else x > half:", "if x + x >= y if tiny else x >= half:",
         REMAINDER),
        ("remainder: parity lost", "np.fmod(x, y + y)", "np.fmod(x, y)", REMAINDER),
        ("scaled by 100 places at most", "-1000.0), 1000.0)", "-10.0), 10.0)", SCALES),
        ("exponent of [1/2, 1)", "math.frexp(x)[1] - 1.0", "math.frexp(x)[1] - 0.0", EXPONENTS),
        ("zeros have no order", " or (x == y and math.copysign(1.0, x) < math.copysign(1.0, y))", "", EXTREMES),
        ("extremes drop NaN", "(y if x != x else x) if number else np.nan", "y if x != x else x", EXTREMES),
    ],
    "kernels/_exact_sum.py": [
        ("carry lost", "over = digit >> 32", "over = np.int64(0)", EXACT_SUMS),
        ("what follows lost", "sticky = sticky or digits[i] != 0", "sticky = sticky", EXACT_SUMS),
        ("third digit lost", "digits[at + 2] += (high >> 32 ^ minus) - minus", "digits[at + 2] += 0", EXACT_SUMS),
        ("one digit out of place", "at, shift = position >> 5, position & 31\n        whole",
         "at, shift = position >> 5, position & 15\n        whole",
         SUMS["exact"]),
        ("0 + -0 is -0", "every == _SIGN and some == _SIGN", "some == _SIGN", ZERO_SUMS),
        ("zeros round down to +0", "minus or (down and some != np.uint64(0))", "minus", ZERO_SUMS),
    ],
    "kernels/_accumulate_orders.py": [
        ("Kahan without compensation", "y = operand(plus(x[i], -operand(lost, g), g, at - 3, bits), g)", "y = x[i]",
         SUMS["kahan"]),
        ("Neumaier never looks at sizes", "large = abs(s) >= abs(x[i])", "large = True", KEPT),
        ("double-word: not renormalised", "if corrects(low):", "if False:", SUMS["double-word"]),
        ("pairwise: the last block twice", "space[count // 2] = space[count - 1]",
         "space[count // 2] = space[count - 2]",
         SUMS["pairwise"]),
        ("blocks from the last", "for b in range(1, count):", "for b in range(count - 1, 0, -1):", SUMS["blocked:4"]),
        ("a block ends one early", "min(begin + o.block, n)", "min(begin + o.block - 1, n)", SUMS["pairwise:4"]),
        ("halves of no multiple of 8", "half = n // 16 * 8", "half = n // 2", NUMPY_SUMS),
        ("lanes one after another", "((0, 1), (2, 3), (0, 2), (4, 5), (6, 7), (4, 6), (0, 4))",
         "((0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7))", SUMS["pairwise:numpy"]),
    ],
    "kernels/_accumulate_rows.py": [
        ("ties to odd", "dropped == half and kept & 1 == 1", "dropped == half and kept & 1 == 0", SUM_POLICIES),
        ("away: ties towards zero", "up = dropped >= half", "up = dropped > half", SUM_POLICIES),
        ("chance: > for >=", "up = fraction + random >= np.int64(1) << r", "up = fraction + random > np.int64(1) << r",
         CHANCE_SUMS),
        ("flushed before rounding", "if g.flush_results and value <", "if g.flush_results and magnitude <",
         FLUSHED_PRODUCTS),
        ("overflow before rounding", "if value > g.max:", "if magnitude > g.max:", PAST_MAX),
        ("sign of a vanished number", "    if value == 0.0:\n        return g.minus_zero if negative else 0.0",
         "    if value == 0.0:\n        return 0.0", SUM_POLICIES),
        ("a flushed operand is +0", "math.copysign(0.0, x) if g.flush_inputs", "0.0 if g.flush_inputs", SUM_POLICIES),
        ("fma in two roundings", "fma64(a[i], b[i], total) if i", "total + a[i] * b[i] if i", LANES),
        ("products not rounded", "out[i] = p if exact else", "out[i] = p if True else", PRODUCTS),
    ],
    "kernels/_accumulate_lanes.py": [
        ("the largest number overflows", "r = p.over if r > p.max else r", "r = p.over if r >= p.max else r",
         PAST_MAX),
        ("ties down", "np.uint32(shift > 0)", "np.uint32(0)", LANES),
        ("sums not rounded", "return a + b if p.native else round_lane(a + b, p)", "return a + b",
         SUMS["pairwise"]),
        ("a sum begins with +0", "p if t == 0 else row[j] + p", "row[j] + p", MINUS_ZERO),
    ],
}  # fmt: skip
BROKEN = [pytest.param(file, (old, new), check, id=f"{file.removesuffix('.py')}: {name}")
          for file, mistakes in MISTAKES.items() for name, old, new, check in mistakes]  # fmt: skip
UNBROKEN = {(file.startswith("kernels/"), str(check)): (file, check)
            for file, mistakes in MISTAKES.items() for *_, check in mistakes}  # fmt: skip


@pytest.mark.parametrize(("file", "edit", "check"), BROKEN)
def test_every_mistake_is_found(file, edit, check):
    with broken(file, edit), pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize(
    ("file", "check"), UNBROKEN.values(), ids=lambda x: getattr(getattr(x, "test", 0), "__name__", x)
)
def test_copies_without_a_mistake_pass(file, check):
    with broken(file):
        check()


@pytest.mark.parametrize("file", ["rounding.py", "kernels/rounding.py"])
@pytest.mark.parametrize("old", ["no such text", "import"])
def test_an_edit_that_does_not_fit_is_no_mistake_found(file, old):
    with pytest.raises(AssertionError, match="times, not once: state it anew"), broken(file, (old, "")):
        pass
