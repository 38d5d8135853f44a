"""Hypothesis, or a sentence that says what there is without it."""

from numsim.errors import UnavailableError

try:
    import hypothesis.extra.numpy as numpy_strategies
    import hypothesis.strategies as st
except ImportError:
    raise UnavailableError(
        "the strategies of numsim.testing need Hypothesis, which is not installed. Example: pip install hypothesis; "
        "without it there are numsim.testing.boundary_codes('e4m3') and sample_codes('e4m3', 1000, seed=7)"
    ) from None

__all__ = ["numpy_strategies", "st"]
