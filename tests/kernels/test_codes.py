"""Many codes as numbers: the bits of the reference, whose values the tests of ``codes`` hold against fractions."""

import numpy as np
import pytest

import numsim
from numsim import kernels
from numsim.codes import code_dtype
from numsim.formats import Format

pytestmark = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))

OWN = [
    Format("unsigned", 5, 6, 20, signed=False),
    Format("without-subnormals", 4, 3, 7, subnormals=False),
    Format("one-zero", 4, 3, 7, specials="fnuz", subnormals=False),  # whose other codes below the normal numbers are +0
    Format("fixed-point", 0, 7, 3, specials="finite"),
    Format("fixed-point32", 0, 32, 3, signed=False, specials="finite"),  # whose units fill 32 bits: to the reference
    Format("nothing-but-zero", 0, 1, -1100, specials="fn"),
    Format("near-the-ends", 11, 20, 1023),  # which the kernel leaves to the reference
]
FORMATS = [*numsim.list_formats(), *(numsim.get_format(n) for n in ("binary8p3se", "binary11p1uf", "e5m26")), *OWN]


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_decode(format):
    if format.bits <= 16:
        codes = np.arange(format.codes, dtype=code_dtype(format))
    else:
        edges = [c + d for c in (0, format.sign_mask, format.max_code, format.codes) for d in range(-40, 40)]
        some = np.random.default_rng(1).integers(0, format.codes, 2000, dtype=np.uint64, endpoint=False)
        codes = np.array([*(c for c in edges if 0 <= c < format.codes), *some.tolist()], code_dtype(format))
    codes = np.stack([codes, codes])[:, ::-1]
    with kernels.force("reference"):
        expected = numsim.decode(codes, format)
    with kernels.force("kernel"):
        found = numsim.decode(codes, format)
    assert found.shape == codes.shape and np.array_equal(found.view(np.uint64), expected.view(np.uint64))
