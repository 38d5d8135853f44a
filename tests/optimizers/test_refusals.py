"""What optimizers are given by mistake, or by an attacker: an error of numsim's own that says what is needed."""

import numpy as np
import pytest

from numsim.errors import InputError
from numsim.optimizers import (
    SGD,
    Adam,
    State,
    accumulate_gradients,
    carry_and_cut,
    clip_grad_norm,
    gradient_norm,
    lost_updates,
    train_digits,
    unscale_and_clip,
)

EMPTY, HUGE, ONE = np.zeros(0), 10**400, SGD(0.1).initial([1.0])
MASTER = SGD(0.1, update="master")
CALLS = {
    "lr": lambda: SGD(HUGE),
    "dampening": lambda: SGD(dampening=-HUGE),
    "eps": lambda: Adam(eps=HUGE),
    "update": lambda: SGD(update=EMPTY),
    "order": lambda: SGD(order=EMPTY),
    "fma": lambda: SGD(fma=EMPTY),
    "nesterov": lambda: SGD(momentum=0.5, nesterov=EMPTY),
    "nesterov as a number": lambda: SGD(momentum=0.5, nesterov=1),
    "state of another": lambda: Adam().step(ONE, [1.0]),
    "no state": lambda: Adam().step(None, [1.0]),
    "no masters": lambda: MASTER.step(ONE, [1.0]),
    "no compensation": lambda: SGD(update="kahan").step(ONE, [1.0]),
    "no momentum": lambda: SGD(0.1, momentum=0.9).step(State(3, [1.0]), [1.0]),
    "too many slots": lambda: SGD(0.1).step(Adam().initial([1.0]), [1.0]),
    "slots of another shape": lambda: State(0, [1.0], {"momentum": [1.0, 2.0]}),
    "update of another shape": lambda: State(0, [1.0], {}, [1.0, 2.0]),
    "slots": lambda: State(0, [1.0], 5),
    "slots of None": lambda: State(0, [1.0], {"momentum": None}),
    "weights": lambda: State(0, None),
    "complex weights": lambda: State(0, [1j]),
    "count": lambda: State("a", [1.0]),
    "count as truth": lambda: State(True, [1.0]),
    "huge count": lambda: State(HUGE, [1.0]),
    "lost": lambda: lost_updates(None, None),
    "lost of others": lambda: lost_updates(ONE, MASTER.step(MASTER.initial([1.0]), [1.0])),
    "lost of other shapes": lambda: lost_updates(ONE, SGD(0.1).step(SGD(0.1).initial([1.0, 2.0]), [1.0, 1.0])),
    "cut": lambda: carry_and_cut("", 3),
    "cut with ragged bits": lambda: carry_and_cut([1.0], [[1], [1, 2]]),
    "cut with too many bits": lambda: carry_and_cut([1.0, 2.0], [1, 2, 3]),
    "norm": lambda: gradient_norm(None),
    "norm of a text": lambda: gradient_norm("34"),
    "norm of bytes": lambda: gradient_norm(b"34"),
    "norm by names": lambda: gradient_norm({"3": [4.0]}),
    "norm, fma": lambda: gradient_norm([[1.0]], fma=EMPTY),
    "norm, fma as a text": lambda: gradient_norm([[1.0]], fma="yes"),
    "clip": lambda: clip_grad_norm(5, 1.0),
    "clip at a huge norm": lambda: clip_grad_norm([[1.0]], 2**2000),
    "unscale": lambda: unscale_and_clip(None, 1.0, 1.0),
    "unscale by zero": lambda: unscale_and_clip([[1.0]], 0.0, 1.0),
    "unscale by a huge scale": lambda: unscale_and_clip([[1.0]], 2**2000, 1.0),
    "unscale at a huge norm": lambda: unscale_and_clip([[1.0]], 1.0, 2**2000),
    "accumulate": lambda: accumulate_gradients(None, "fp16"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    with pytest.raises(InputError) as error:
        CALLS[name]()
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "options",
    [
        {"hidden": 3}, {"hidden": None}, {"hidden": "ab"}, {"hidden": (10**9,)}, {"hidden": iter(int, 1)},
        {"hidden": (True,)}, {"steps": 10**10}, {"batch": 10**9}, {"every": 10**9},
    ],
)  # fmt: skip
def test_limits_of_the_network(options):
    with pytest.raises(InputError, match=next(iter(options))):
        train_digits(SGD(0.1), **options)
    with pytest.raises(InputError, match="at most 8 layers"):
        train_digits(SGD(0.1), hidden=(1,) * 10)


def test_hidden_layers_from_a_generator():
    runs = [train_digits(SGD(0.1), steps=1, every=1, batch=8, hidden=x) for x in ((4, 3), (i for i in (4, 3)))]
    assert runs[0].digest == runs[1].digest and runs[0].about["hidden"] == [4, 3]


def test_gradients_from_a_generator():
    """... are read once: all of them are clipped."""
    gradients = [[3.0, 4.0], [12.0]]
    for call in (lambda g: clip_grad_norm(g, 1.0), lambda g: unscale_and_clip(g, 1.0, 1.0)):
        got, wanted = call(iter(gradients)), call(gradients)
        assert [g.tolist() for g in got.gradients] == [g.tolist() for g in wanted.gradients] and len(got.gradients) == 2
    assert gradient_norm(iter(gradients)) == 13.0


def test_any_number_makes_a_state():
    for weights in (True, np.float32(1), 1, "1", np.array(1.0)):
        state = State(0, weights)
        assert state.weights.dtype == np.float32 and state.weights == 1.0 and state.weights.shape == ()
    assert State(0, [1e308]).weights == np.inf  # rounded, without a warning
    assert State(0, [1.0], {"weights": [2.0]}).weights == 1.0
    assert carry_and_cut(1e308, 3) == np.inf


def test_torch_tensors():
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    for dtype in (torch.bfloat16, torch.float32):
        weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=dtype))
        assert SGD(0.1).initial(weight).weights.tolist() == State(0, weight).weights.tolist() == [1.0, -2.0]
        assert clip_grad_norm([weight], 10.0).gradients[0].tolist() == [1.0, -2.0]
        assert carry_and_cut(weight, torch.tensor([0, 0xFFFF])).tolist() == [1.0, -2.0]
        assert SGD(0.5).step(SGD(0.5).initial(weight), weight).weights.tolist() == [0.5, -1.0]
        assert weight.detach().tolist() == [1.0, -2.0]
    for bad in (torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.ones(2, dtype=torch.complex64)):
        for call in (SGD(0.1).initial, lambda x: State(0, x), lambda x: clip_grad_norm([x], 1.0),
                     lambda x: unscale_and_clip([x], 1.0, 1.0), lambda x: carry_and_cut(x, 3)):  # fmt: skip
            with pytest.raises(InputError):
                call(bad)
