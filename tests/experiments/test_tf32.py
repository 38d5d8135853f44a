"""tf32: words cut by a mask, products by ``matmul``, sums outside by numpy, errors in fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from numsim import decode, encode, exact, round_to
from numsim.errors import InputError
from numsim.experiments.tf32 import ONE_PRODUCT, WAYS, fine_normal
from numsim.experiments.units import IN_ORDER, uniform
from numsim.formats import FP32
from numsim.tensorcore import matmul
from tests.experiments.runs import lecture, run, table

K, SIZE, SEED = 64, 4, 9
TF32 = "mma.m16n8k8.f32.tf32.tf32.f32"
BF16 = "mma.m16n8k16.f32.bf16.bf16.f32"


def test_the_answer() -> None:
    assert lecture("tf32")[1].answer == "1024"
    assert run("tf32", chips=["mi300x"], size=2, k=16).answer == "1024"  # XF32
    assert "not answered" in run("tf32", chips=["v100"], size=2, k=16).answer  # has no TF32


def test_single_products() -> None:
    rows = {row[0]: row[1:] for row in table(lecture("tf32")[1], "x times 1").rows}
    for x in ("1024.5", "1024.75", "1025.5"):
        word = np.float32(x).view(np.uint32)
        cut = float((word & np.uint32(0xFFFFE000)).view(np.float32))
        away, even = (float(round_to(float(x), "tf32", rounding=r)) for r in ("nearest-away", "nearest-even"))
        assert rows[x] == (cut, cut, away, even, float(x))
    assert rows["1024.5"][2:4] == (1025, 1024)
    assert rows["NaN 0x7f800001"] == ("inf", "inf", "nan", "nan", "nan")


def fp32(draw: Callable[..., np.ndarray], n: int) -> np.ndarray:
    return draw(SEED, (SIZE, K), n * SIZE * K).astype(np.float32)


def parts(x: np.ndarray, format: str, count: int, rounding: str) -> list[np.ndarray]:
    """x as a sum of numbers of a format, as float32; the rest of one is the next one's."""
    found = []
    for _ in range(count):
        part = round_to(x, format, rounding=rounding)
        found.append(part)
        x = x - part
        assert x.dtype == np.float32
    return found


def product(left: np.ndarray, right: np.ndarray, c: np.ndarray | None, instruction: str) -> np.ndarray:
    """FP32 words, by ``matmul``."""
    format = FP32 if instruction == TF32 else "bf16"
    return matmul(encode(left, format), encode(right, format).T, c, chip="h100", instruction=instruction)


def by_matmul(a: np.ndarray, b: np.ndarray, name: str) -> np.ndarray:
    way = WAYS[name]
    instruction = TF32 if way.format.name == "tf32" else BF16
    left, right = (parts(x, way.format.name, way.parts, way.rounding) for x in (a, b))
    d = None
    for i, j in sorted(((i, j) for i in range(3) for j in range(3)), key=lambda p: -sum(p)):
        if max(i, j) < way.parts and i + j <= way.last and not (way.outside and i == j == 0):
            d = product(left[i], right[j], d, instruction)
    if not way.outside:
        return d.view(np.float32)
    total = np.zeros((SIZE, SIZE), np.float32)
    for k in range(0, K, 8):
        total += product(left[0][:, k : k + 8], right[0][:, k : k + 8], None, instruction).view(np.float32)
    return total + d.view(np.float32)


@pytest.mark.parametrize(("draw", "place"), [(uniform, 0), (fine_normal, 1)])
def test_errors_again(draw: Callable[..., np.ndarray], place: int) -> None:
    series = run("tf32", chips=["h100"], size=SIZE, k=K, seed=SEED).series
    found = {way: pair[place] for _, way, *pair in series["errors"]}
    assert list(found) == [IN_ORDER, *WAYS]
    a, b = fp32(draw, 0), fp32(draw, 1)
    exact_sums = {
        (i, j): [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[i], b[j], strict=True)]
        for i in range(SIZE) for j in range(SIZE)
    }  # fmt: skip
    in_order = np.zeros((SIZE, SIZE), np.float32)
    for k in range(K):
        in_order += a[:, None, k] * b[None, :, k]
    for way, (gain, mean) in found.items():
        d = in_order if way == IN_ORDER else by_matmul(a, b, way)
        off = {at: Fraction(float(d[at])) - sum(terms) for at, terms in exact_sums.items()}
        by_hand = sum(abs(off[at]) / sum(map(abs, terms)) for at, terms in exact_sums.items()) / len(off)
        assert mean == pytest.approx(float(by_hand * 2**24), rel=1e-6), way
        slope = sum(off[at] * sum(t) for at, t in exact_sums.items()) / sum(sum(t) ** 2 for t in exact_sums.values())
        assert gain == pytest.approx(float(slope * 2**24), rel=1e-6, abs=1e-6), way


def test_first_rounded_is_matmuls_option() -> None:
    """Rounding before the instruction is ``matmul``'s tf32=, and cutting is what it does of itself."""
    a, b = fp32(fine_normal, 0), fp32(fine_normal, 1)
    for name, tf32 in zip(ONE_PRODUCT, ("truncate", "nearest-away", "nearest-even"), strict=True):
        d = matmul(encode(a, FP32), encode(b, FP32).T, chip="h100", instruction=TF32, tf32=tf32)
        assert np.array_equal(d.view(np.float32), by_matmul(a, b, name))


def test_parts_make_up_the_number() -> None:
    """Two rounded TF32 parts leave 2^-23 of a number at most, cut ones 2^-21; three BF16 parts nothing."""
    x = fp32(fine_normal, 0)
    for rounding, left in (("nearest-even", -23), ("toward-zero", -21)):
        rest = x.astype(float) - sum(p.astype(float) for p in parts(x, "tf32", 2, rounding))
        assert 0 < np.abs(rest / x).max() <= 2.0**left
    assert np.array_equal(sum(p.astype(float) for p in parts(x, "bf16", 3, "nearest-even")), x.astype(float))


def test_findings_hold() -> None:
    series = lecture("tf32")[1].series
    for who in ("A100", "H100"):
        gain, mean = ({way: pair[0][i] for w, way, *pair in series["errors"] if w == who} for i in (0, 1))
        cut, away, even = (gain[way] for way in ONE_PRODUCT)
        assert cut < -10_000 and abs(away) < 100 and abs(even) < 100
        assert mean["3xTF32 rounded, outside"] < mean["3xTF32 cut, outside"] < mean["3xTF32 rounded"] / 4
        assert mean["BF16"] > 100 * mean["BF16x3"] > mean["BF16x6"]
    assert all(max(series["relative"][way]) < 0 for way in list(ONE_PRODUCT)[:1])
    assert exact(int(encode(1024.5, FP32)), FP32) == Fraction(2049, 2)


def test_the_nan_of_the_table_is_infinite_when_cut() -> None:
    assert decode(np.uint32(0x7F800001) & np.uint32(0xFFFFE000), FP32) == np.inf


@pytest.mark.parametrize(
    "bad", [{"chips": 3}, {"size": 1}, {"size": 2.0}, {"k": 24}, {"k": 8}, {"seed": -1}, {"chips": ["h1000"]}]
)
def test_bad_parameters(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Example: "):
        run("tf32", **bad)
