"""blocks: sums again by an outsider in exact fractions, by numpy's own floats, and by hand from L and F."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from numsim import decode, encode, exact
from numsim.errors import InputError
from numsim.experiments.blocks import ONCE, ORDERS, STARTS, alike
from numsim.experiments.units import IN_ORDER, find_unit
from numsim.formats import E4M3, FP16, FP32
from numsim.tensorcore import Model, matmul
from tests.experiments.runs import lecture, run, table
from tests.tensorcore import oracle

CHIPS = {"V100": "v100", "A100": "a100", "L40S": "l40s", "H100": "h100", "B200": "b200", "MI100": "mi100",
         "MI250X": "mi250x", "MI300X": "mi300x"}  # fmt: skip


def unit(name: str, format: object = FP16) -> Model:
    model = find_unit(CHIPS[name], format)
    assert model
    return model


def by_outsider(model: Model, a: list[float], b: list[float], c: float) -> float:
    """The chain of instructions, in fractions."""
    a, b = (x + [0.0] * (-len(x) % model.k) for x in (a, b))
    codes = [[int(encode(v, model.formats[0])) for v in x] for x in (a, b)]
    d = int(encode(c, FP32))
    for i in range(0, len(a), model.k):
        d = oracle.dot(codes[0][i : i + model.k], codes[1][i : i + model.k], d, model)
    return float(decode(np.uint32(d), FP32))


def test_the_answer() -> None:
    assert lecture("blocks")[1].answer == "2^24, then 2^24 + 16"
    assert run("blocks", chips=["v100"]).answer == "2^24 both times"  # F = 23 cuts at 2


def test_what_arrives() -> None:
    """NVIDIA's by hand: a one survives while 2^(e - F) <= 1; the rest by the outsider and by numpy."""
    arrived = lecture("blocks")[1].series["arrived"]
    assert list(arrived) == [IN_ORDER, *CHIPS, ONCE]
    for name in ("V100", "A100", "L40S", "H100", "B200"):
        bits = unit(name).unit.fraction_bits
        assert arrived[name] == [16 if e <= bits else 0 for e in STARTS]
    for name in ("MI100", "MI250X", "MI300X"):
        assert arrived[name] == [by_outsider(unit(name), [1.0] * 16, [1.0] * 16, 2.0**e) - 2**e for e in STARTS]
    for i, e in enumerate(STARTS):
        total = np.float32(2**e)
        for _ in range(16):
            total += np.float32(1)
        assert arrived[IN_ORDER][i] == int(total) - 2**e
        assert arrived[ONCE][i] == int(np.float32(2**e + 16)) - 2**e


def test_cancellation() -> None:
    cancelled = lecture("blocks")[1].series["cancelled"]
    large, ones, gap = 2.0**15, [1.0] * 14, [0.0] * 16
    terms = {  # of +: large * large, of -: large * -large
        "pair first": ["+", "-", *ones, *gap],
        "pair last": [*ones, "+", "-", *gap],
        "pair around": ["+", *ones, "-", *gap],
        "block before": ["+", "-", *gap[2:], *ones],
        "block after": [*ones, 0.0, 0.0, "+", "-"],
    }
    assert tuple(terms) == ORDERS
    for order, row in terms.items():
        a = [large if t in ("+", "-") else float(t) for t in row]
        b = [large if t == "+" else -large if t == "-" else 1.0 for t in row]
        place = ORDERS.index(order)
        for name in CHIPS:
            assert cancelled[name][place] == by_outsider(unit(name), a, b, 0.0), (name, order)
        total = np.float32(0)
        for x, y in zip(a, b, strict=True):
            total += np.float32(x) * np.float32(y)
        assert cancelled[IN_ORDER][place] == total


@pytest.mark.parametrize(("name", "format"), [("V100", FP16), ("A100", FP16), ("H100", FP16), ("L40S", E4M3)])
def test_a_fall_and_none_with_fewer(name: str, format: object) -> None:
    falls = {(f[0], f[1]): f[2:] for f in lecture("blocks")[1].series["falls"]}
    model = unit(name, format)
    count, size, before, after = falls[name, format.title]
    c = [float(np.nextafter(np.float32(1), np.float32(0))), 1.0]

    def sums(n: int, s: int) -> list[float]:
        a, b = ([2.0 ** -((s + odd) // 2)] * n for odd in (0, 1))
        return [by_outsider(model, a, b, x) for x in c]

    assert [before, after] == sums(count, size) and after < before
    fewer = [sums(count - 1, s) for s in range(size - 3, size + 4) if s < 19 or format is FP16]
    assert len(fewer) > 4 and all(low <= high for low, high in fewer)


def test_no_fall_where_sums_are_rounded() -> None:
    falls = lecture("blocks")[1].series["falls"]
    assert [(f[0], f[1]) for f in falls] == [
        ("V100", "FP16"), ("A100", "FP16"), ("L40S", "FP16"), ("H100", "FP16"), ("B200", "FP16"), ("L40S", "E4M3"),
        ("H100", "E4M3"),
    ]  # fmt: skip


def test_the_deepest_fall() -> None:
    """A full block of FP8 products: 32 of 2^-14 beside 1 - 2^-14 are all there, beside 1 all gone."""
    steps = lecture("blocks")[1].series["steps"]
    assert list(steps) == ["FP16 on H100", "E4M3 on H100"]
    fp8 = steps["E4M3 on H100"]
    assert (fp8["products"], fp8["size"], fp8["last"]) == (32, 14, 13)
    for c, d, plain in zip(fp8["c"], fp8["result"], fp8["in_order"], strict=True):
        whole = int(np.floor(c))
        assert d == (whole if c >= 0 else int(np.floor(c + 16)))
        assert plain == c + 16
    assert fp8["result"][fp8["c"].index(0.0) - 1] == 15
    fp16 = steps["FP16 on H100"]
    assert fp16["result"][fp16["c"].index(0.0) - 1 : fp16["c"].index(0.0) + 1] == [1, 0]
    assert fp16["in_order"] == sorted(fp16["in_order"])


def test_long_sums() -> None:
    series, terms = run("blocks", terms=512).series, 512
    tenth = encode(np.full((1, terms), 0.1), FP16)
    right = int(encode(terms * exact(int(tenth[0, 0]), FP16) ** 2, FP32))
    for name in CHIPS:
        model = unit(name)
        code = int(matmul(tenth, tenth.T, chip=model.chip, instruction=model.instruction)[0, 0])
        assert series["tenths"][name] == [float(decode(np.uint32(code), FP32)), code - right]
    total = np.float32(0)
    for x in [np.float32(np.float16(0.1)) ** 2] * terms:
        total += x
    assert series["tenths"][IN_ORDER][0] == total


def test_where_ones_stall_in_fp16() -> None:
    """A block of L ones stalls where L is half the distance of FP16 numbers: at L * 2048."""
    sums = lecture("blocks")[1].series["sums"]
    stalls = {name: stall for name, (_, stall) in sums.items()}
    length = {name: unit(name).unit.length for name in ("V100", "A100", "L40S", "H100", "B200")}
    assert stalls == {"FP16 in order": 2048} | {name: 2048 * n for name, n in length.items()}
    total = np.float16(0)
    for _ in range(4096):
        total += np.float16(0.1)
    assert sums["FP16 in order"][0] == total == 256


def test_chips_that_are_named() -> None:
    result = run("blocks", chips="h200", terms=64)
    assert result.parameters["chips"] == ["h200"]
    assert list(result.series["arrived"]) == [IN_ORDER, "H200", ONCE]
    assert result.answer == "2^24, then 2^24 + 16"
    assert [row[0] for row in table(result, "c grows").rows] == ["H200", "H200"]


@pytest.mark.parametrize("bad", [{"chips": []}, {"chips": ["h999"]}, {"terms": 5}, {"terms": 10**6}, {"terms": 64.0}])
def test_bad_parameters(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Example: "):
        run("blocks", **bad)


def test_alike() -> None:
    assert alike({"a": 1, "b": 2, "c": 1}) == "a and c 1; b 2"
    assert alike({"a": Fraction(1), "b": 1, "c": 1}) == "all 1"
