"""The random Hadamard transform: the matrix, its inverse, what rounding does, special values."""

from fractions import Fraction

import numpy as np
import pytest

from numsim import random
from numsim.blocks import hadamard, hadamard_matrix, random_signs
from numsim.blocks.hadamard import TE_SIGNS
from numsim.errors import InputError

# of Transformer Engine's nvfp4_tensor.py (facts: the signs that it uses always)
SIGNS = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]


def sylvester(n):
    """By the recursion [[H, H], [H, -H]]: the code under test uses butterflies."""
    h = np.ones((1, 1), np.int64)
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h


def test_the_matrix_is_transformer_engines():
    assert (hadamard_matrix() * 4 == np.diag(SIGNS) @ sylvester(16)).all()
    assert sum(1 << i for i, s in enumerate(SIGNS) if s < 0) == TE_SIGNS == 0xD7E8


@pytest.mark.parametrize("signs", [0, TE_SIGNS, 0xFFFF, 1, random_signs(3)])
def test_it_is_exactly_orthogonal(signs):
    m = hadamard_matrix(signs)
    exact = [[sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)) for b in m] for a in m]
    assert exact == np.eye(16, dtype=int).tolist()


def test_without_roundings_it_is_the_product_with_the_matrix_and_comes_back():
    x = np.random.default_rng(1).integers(-500, 500, (5, 48)).astype(np.float32)
    there = hadamard(x)
    wanted = (x.reshape(-1, 16).astype(int) @ (np.diag(SIGNS) @ sylvester(16))).reshape(x.shape)
    assert there.dtype == np.float32 and (there * 4 == wanted).all()
    assert (hadamard(there, inverse=True) == x).all()
    assert (hadamard(x.T, axis=0) == there.T).all() and (hadamard(x.T, axis=-2) == there.T).all()


def test_a_product_of_two_transformed_factors_is_the_same():
    rng = np.random.default_rng(2)
    x, y = (rng.integers(-8, 8, (4, 32)).astype(np.float32) for _ in range(2))
    assert (hadamard(x).astype(np.float64) @ hadamard(y).T.astype(np.float64) == x @ y.T).all()
    assert (hadamard(x).astype(np.float64) @ hadamard(y, signs=0).T != x @ y.T).any()


def test_the_order_of_the_sums():
    """1 apart, then 2, 4, 8: of (big, small, -big, 0 ...) / 4 the small one is gone after the first round."""
    x = np.zeros(16, np.float32)
    x[[0, 1, 2]] = 2.0**30, 1.0, -(2.0**30)
    assert hadamard(x, signs=0)[0] == 0
    x[[0, 1, 2]] = 2.0**30, -(2.0**30), 1.0
    assert hadamard(x, signs=0)[0] == 0.25


def test_bf16_output_is_one_rounding_more():
    x = np.zeros(16, np.float32)
    x[0], x[1] = 4.0, 2.0**-6  # 1 +- 2^-8: a tie, then 1 - 2^-8 is a BF16 number
    assert hadamard(x, signs=0, output="bf16")[:2].tolist() == [1.0, 1 - 2.0**-8]
    assert hadamard(x, signs=0)[:2].tolist() == [1 + 2.0**-8, 1 - 2.0**-8]


def test_special_values():
    x = np.zeros((4, 32), np.float32)
    x[0, 3], x[1, 3], x[2, 3], x[2, 5] = np.nan, np.inf, np.inf, np.inf
    x[3, :16] = 1.0
    y = hadamard(x, signs=0)
    assert np.isnan(y[0, :16]).all() and (y[0, 16:] == 0).all()
    assert np.isinf(y[1, :16]).all() and y[1, 0] == np.inf and y[1, 1] == -np.inf
    assert np.isnan(y[2, :16]).any() and np.isinf(y[2, :16]).any() and not np.isfinite(y[2, :16]).any()
    assert y[3, 0] == 4 and not np.signbit(y[3]).any()
    assert np.isnan(hadamard(x, output="bf16")[0, :16]).all()
    top = np.full(16, np.finfo(np.float32).max, np.float32)
    assert hadamard(top, signs=0)[0] == np.inf
    top[1:] = 0
    assert (np.abs(hadamard(top)) == top[0] / 4).all()  # nothing overflows on the way


def test_signs_come_from_the_seed():
    assert random_signs(7) == random.bits(7, 0) >> 16
    assert len({random_signs(s) for s in range(50)}) > 45


def test_inputs_stay_and_wrong_ones_are_refused():
    x = np.ones((2, 16), np.float32)
    hadamard(x)
    assert (x == 1).all()
    assert hadamard(np.zeros((0, 16))).shape == (0, 16)
    for bad in ({"axis": 0}, {"axis": 2}, {"axis": True}, {"signs": -1}, {"signs": 1 << 16}, {"signs": 1.5}):
        with pytest.raises(InputError):
            hadamard(x, **bad)
    with pytest.raises(InputError):
        hadamard(np.ones(15))
    with pytest.raises(InputError):
        hadamard(1.0)
