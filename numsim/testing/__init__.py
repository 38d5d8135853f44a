"""Tools for testing one's own number formats, casts and kernels against numsim, bit by bit.

* compare: ``assert_bits_equal`` (``bits_equal``, ``compare_bits``) says what differs, and in which way.
* sweep: ``all_codes``, ``all_pairs``, ``boundary_codes``, ``boundary_values``, ``sample_codes`` are arrays to run over.
* search: ``codes``, ``values``, ``arrays``, ``formats``, ``operand_pairs``, ``hard_cases``, ``policies`` are strategies
  for Hypothesis, which is imported when one of them is first used, and shrinks what fails to readable numbers.

A codebook (NF4, INT8, one's own) stands wherever a format does, but for ``arrays`` and ``operand_pairs``: it has no
Arrays and no arithmetic.

A cast that rounds twice, found by a sweep over the numbers at which rounding to BF16 changes its mind:

>>> import ml_dtypes, numpy, numsim
>>> from numsim.testing import assert_bits_equal, boundary_values
>>> x = boundary_values("bf16", "fp64")
>>> x = x[(1 <= x) & (x < 1 + 2**-7)]
>>> assert_bits_equal(x.astype(ml_dtypes.bfloat16), numsim.array(x, "bf16"), max_shown=2)
Traceback (most recent call last):
AssertionError: actual and expected differ in 2 of 8 numbers of bf16
  value                           2   1 ulp: 2
  index  actual      expected            ulps
  [5]    0x3f80 = 1  0x3f81 = 1.0078125  1
  [6]    0x3f80 = 1  0x3f81 = 1.0078125  1
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from numsim.testing.compare import Comparison, Difference, assert_bits_equal, bits_equal, compare_bits
from numsim.testing.sweeps import all_codes, all_pairs, boundary_codes, boundary_values, sample_codes

_STRATEGIES = {
    **dict.fromkeys(("arrays", "codes", "hard_cases", "operand_pairs", "values"), "strategies"),
    **dict.fromkeys(("formats", "policies"), "format_strategies"),
}

if TYPE_CHECKING:
    from numsim.testing.format_strategies import formats, policies
    from numsim.testing.strategies import arrays, codes, hard_cases, operand_pairs, values
else:

    def __getattr__(name):
        """Hypothesis is imported when a strategy is first asked for."""
        if name in _STRATEGIES:
            return getattr(import_module(f"numsim.testing.{_STRATEGIES[name]}"), name)
        raise AttributeError(f"module 'numsim.testing' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_STRATEGIES})


__all__ = [
    "Comparison",
    "Difference",
    "all_codes",
    "all_pairs",
    "arrays",
    "assert_bits_equal",
    "bits_equal",
    "boundary_codes",
    "boundary_values",
    "codes",
    "compare_bits",
    "formats",
    "hard_cases",
    "operand_pairs",
    "policies",
    "sample_codes",
    "values",
]
