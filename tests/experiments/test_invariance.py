"""invariance: every choice again by ``matmul`` and its options, the sums in order by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numsim import encode, get_format
from numsim.errors import InputError
from numsim.experiments.invariance import CHOICES, OUTPUTS, SIZE
from numsim.experiments.units import IN_ORDER, find_unit, normal
from numsim.tensorcore import get_model, matmul
from tests.experiments.runs import lecture, run, table

K = 256
NEVER = ("run again", "batch of 1 instead of 16", "rows in other places", "tiles of 8 x 4", "64 zeros after K",
         "k turned round in each block")  # fmt: skip


def changes(result: Any) -> dict[tuple[str, str], dict[str, list[float] | None]]:
    return {(who, format): found for who, format, found in result.series["changes"]}


def test_the_answer() -> None:
    assert lecture("invariance")[1].answer == "split-K only"
    found = changes(lecture("invariance")[1])
    assert list(found) == [
        (IN_ORDER, "FP16"), (IN_ORDER, "BF16"), ("A100", "FP16"), ("H100", "FP16"), ("A100", "BF16"), ("H100", "BF16"),
    ]  # fmt: skip
    for key, of in found.items():
        assert list(of) == list(CHOICES)
        # a unit has no order inside a block; a sum in order has nothing else
        assert [of[choice][0] for choice in NEVER[:-1]] == [0] * 5
        assert (of[NEVER[-1]][0] > 200) == (key[0] == IN_ORDER)
        assert all(x[0] > 200 for choice, x in of.items() if choice.startswith("split-K") or choice == "K backwards")
        assert of["split-K 8, BF16 partials"][1] > 1000 * of["split-K 8"][1]


def test_instructions() -> None:
    """On an A100 m16n8k16 is two blocks of 8; on an H100 one of 16, and m16n8k8 one of 8. wgmma adds as mma does."""
    found = changes(lecture("invariance")[1])
    for format in ("FP16", "BF16"):
        assert found["A100", format]["instruction of other K"] == [0, 0]
        assert found["H100", format]["instruction of other K"][0] > 200
        assert found["H100", format]["wgmma or tcgen05, not mma"] == [0, 0]
        assert found["A100", format]["wgmma or tcgen05, not mma"] is None
        assert found["A100", format]["8 zeros before K, 56 after"] == [0, 0]
        assert found["H100", format]["8 zeros before K, 56 after"][0] > 200


def change(plain: np.ndarray, other: np.ndarray) -> list[float]:
    x, y = (z.view(np.float32).astype(float) for z in (plain, other))
    ulp = float(np.spacing(np.float32(np.abs(x).max())))
    return [int((plain != other).sum()), float(np.abs(x - y).max() / ulp)]


@pytest.mark.parametrize(("chip", "format"), [("h100", "fp16"), ("a100", "bf16"), ("h200", "e4m3"), ("v100", "fp16")])
def test_again_by_matmul(chip: str, format: str) -> None:
    f = get_format(format)
    model = find_unit(chip, f)
    assert model
    result = run("invariance", chips=[chip], formats=[format], k=K, seed=4)
    (found,) = (of for (who, _), of in changes(result).items() if who != IN_ORDER)
    a, b = (encode(normal(4, (SIZE, K), n * SIZE * K), f) for n in (0, 1))
    block, order = model.unit.length, np.arange(K)
    swapped = order.copy()
    swapped[[block - 1, block]] = [block, block - 1]

    def product(a: np.ndarray = a, b: np.ndarray = b, instruction: str = model.instruction, **options: Any) -> Any:
        return matmul(a, b.T, chip=chip, instruction=instruction, **options)

    def padded(before: int) -> Any:
        return product(*(np.pad(x, [(0, 0), (before, 64 - before)]) for x in (a, b)))

    plain = product()
    again = {
        "rows in other places": product(a[::-1])[::-1],
        "64 zeros after K": padded(0),
        "8 zeros before K, 56 after": padded(8),
        "k turned round in each block": product(
            *(x.reshape(SIZE, -1, block)[..., ::-1].reshape(SIZE, K) for x in (a, b))
        ),
        "two k swapped across blocks": product(a[:, swapped], b[:, swapped]),
        "K backwards": product(a[:, ::-1], b[:, ::-1]),
        "split-K 2": product(split_k=2),
        "split-K 4": product(split_k=4),
        "split-K 8": product(split_k=8),
        "split-K 8, in pairs": product(split_k=8, combine="pairwise"),
        "split-K 8, BF16 partials": product(split_k=8, partials="bf16"),
    }
    for choice, other in again.items():
        assert found[choice] == change(plain, other), choice
    for choice in NEVER:
        assert found[choice] == [0, 0]
    if chip == "h100":
        half, hopper = "mma.m16n8k8.f32.f16.f16.f32", "wgmma.m64n256k16.f32.f16.f16"
        assert get_model(chip, half).k == 8
        assert found["instruction of other K"] == change(plain, product(instruction=half))
        assert found["wgmma or tcgen05, not mma"] == change(plain, product(instruction=hopper)) == [0, 0]


def test_in_order_by_numpy() -> None:
    a, b = (normal(4, (SIZE, K), n * SIZE * K).astype(np.float16).astype(np.float32) for n in (0, 1))

    def walk(order: Any) -> np.ndarray:
        d = np.zeros((SIZE, SIZE), np.float32)
        for k in order:
            d += a[:, None, k] * b[None, :, k]
        return d

    def bits(x: np.ndarray) -> np.ndarray:
        return x.view(np.uint32)

    found = changes(run("invariance", chips=["h100"], formats=["fp16"], k=K, seed=4))[IN_ORDER, "FP16"]
    plain, half = walk(range(K)), K // 2
    assert found["K backwards"] == change(bits(plain), bits(walk(range(K)[::-1])))
    assert found["split-K 2"] == change(bits(plain), bits(walk(range(half)) + walk(range(half, K))))
    inside = [k - k % 16 + 15 - k % 16 for k in range(K)]
    assert found["k turned round in each block"] == change(bits(plain), bits(walk(inside)))


def test_tf32_comes_in_words() -> None:
    found = changes(run("invariance", chips=["a100"], formats=["tf32"], k=K))
    assert set(found) == {(IN_ORDER, "TF32"), ("A100", "TF32")}
    assert all(of["batch of 1 instead of 16"] == [0, 0] and of["split-K 4"][0] for of in found.values())


def test_tables() -> None:
    result = lecture("invariance")[1]
    rows = {row[0]: row[1:] for row in table(result, "FP16: outputs").rows}
    assert rows["run again"] == ("same", "same", "same")
    assert rows["wgmma or tcgen05, not mma"] == (None, None, "same")
    outputs, ulps = changes(result)["H100", "FP16"]["split-K 8"]
    assert rows["split-K 8"][2] == f"{outputs} ({ulps:.0f})" and outputs <= OUTPUTS


@pytest.mark.parametrize(
    "bad", [{"chips": ()}, {"formats": ["fp64"]}, {"formats": 3}, {"k": 128}, {"k": 300}, {"seed": "x"}]
)
def test_bad_parameters(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Example: "):
        run("invariance", **bad)
