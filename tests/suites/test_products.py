"""Products of a library that are wrong in ways a bound alone lets pass are found out."""

from __future__ import annotations

import numpy as np
import pytest

from numsim.codes import decode
from numsim.formats import BF16, FP16, FP64
from numsim.machines.question import Answer, ask
from numsim.rounding import encode
from numsim.suites.library import compare_product
from numsim.suites.statistics import uniform_codes
from numsim.tensorcore import matmul


def asked(format, output, k, m=64, n=48, largest=1.0):
    a, b = uniform_codes(format, (m, k), 1), uniform_codes(format, (k, n), 2)
    if largest != 1:
        a = np.asarray(encode(decode(a, format) * largest, format))
    return ask("library", [format, format], output, [a, b], system="torch.matmul")


def exactly(q):
    return decode(q.arrays[0], q.inputs[0]) @ decode(q.arrays[1], q.inputs[1])


def judged(q, codes, chip=None):
    return compare_product("part", q, Answer(codes, {"machine": "cuda"}), chip=chip)


def test_every_result_of_an_fp64_product_is_looked_at():
    q = asked(FP64, FP64, 100)
    codes = exactly(q).view(np.uint64)
    good = judged(q, codes)
    assert good.verdict.ok and good.verdict.compared == 64 * 48
    codes[40:, 40:] = 0
    assert judged(q, codes).verdict.unexplained == 24 * 8


def test_a_product_without_its_last_term_is_found_within_a_wide_bound():
    q = asked(BF16, BF16, 1024)
    a, b = q.arrays
    options = {"chip": "h200", "instruction": "mma.m16n8k16.f32.bf16.bf16.f32", "output": "bf16"}
    assert judged(q, matmul(a, b, split_k=11, **options), "h200").verdict.ok
    row = judged(q, matmul(a[:, :-1], b[:-1], **options), "h200")
    assert row.verdict.unexplained > 2000 and "those of the worst way that is known" in row.note


def test_above_the_largest_number_only_infinity_is_right():
    q = asked(FP16, FP16, 256, largest=30000.0)
    exact = exactly(q)
    with np.errstate(over="ignore"):
        codes = exact.astype(np.float16).view(np.uint16)
    assert (codes & 0x7FFF == 0x7C00).sum() > 100
    assert judged(q, codes).verdict.ok
    finite = np.where(codes & 0x7FFF == 0x7C00, codes - 1, codes).astype(np.uint16)
    assert judged(q, finite).verdict.unexplained == (codes != finite).sum()


@pytest.mark.parametrize("chip", [None, "h200"])
def test_rows_of_zeros_do_not_hide_the_others(chip):
    q = asked(BF16, BF16, 64)
    a = q.arrays[0].copy()
    a[:32] = 0
    q = ask("library", [BF16, BF16], BF16, [a, q.arrays[1]], system="torch.matmul")
    codes = np.asarray(encode(exactly(q), BF16)).astype(np.uint16)
    assert judged(q, codes, chip).verdict.ok
    codes[32:] ^= 1
    assert judged(q, codes, chip).verdict.unexplained > 1000
