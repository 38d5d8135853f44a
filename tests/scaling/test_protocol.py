"""The protocol against the real ``torch.amp.GradScaler("cpu")``: the same calls to both, everything compared."""

from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import numsim
from numsim.scaling import GradScaler, GradScalerProtocol, Parameter, ProtocolError, Stage

torch = pytest.importorskip("torch")

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}
NUMPY = {"fp32": np.float32, "fp16": np.float16, "fp64": np.float64}
VALUES = [0.0, -0.0, 1.0, -3.5, 1e-7, 6e-8, 2.0**-140, 3e38, -65504.0, 0.1, np.inf, -np.inf, np.nan]
FACTORS = [2.0, 0.5, 1.1, 1 / 3, 3.0, 2.0**120, 2.0**-120]
NEAR = [0.0, 2.0**-149, 2.0**-128, 2.0**-8, 1.0, 3.0, 65536.0, 2.0**127, float("inf"), float("nan")]


def bits(x):
    """Bits of numbers, all NaN alike."""
    x = np.asarray(x, np.float64)
    return np.where(np.isnan(x), np.nan, x).view(np.uint64).tolist()


def of_torch(t):
    return t.detach().double().numpy()


def ours(format, values):
    """A gradient: NumPy where NumPy has the format, else an Array."""
    if format in NUMPY:
        with np.errstate(over="ignore"):
            return np.array(values).astype(NUMPY[format])
    return numsim.array(values, format)


class Sgd:
    """w -= lr * g with lr a power of two, so that one rounding is all there is."""

    def __init__(self, weights, lr):
        self.param_groups, self.lr, self.steps = [{"params": weights}], lr, 0

    def step(self):
        self.steps += 1
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                grad = numsim.array(np.asarray(p.grad), p.value.format)
                p.value = p.value - numsim.mul(grad, numsim.array(self.lr, p.value.format))
        return self.steps


class FusedAdam:
    """torch's own fused kernel, given our gradients, our grad_scale and our found_inf."""

    _step_supports_amp_scaling = True

    def __init__(self, weights, twin):
        self.param_groups, self.twin, self.steps = [{"params": weights}], twin, 0

    def step(self):
        for p, t in zip(self.param_groups[0]["params"], self.twin.param_groups[0]["params"], strict=True):
            t.grad = None if p.grad is None else torch.tensor(np.asarray(p.grad))
        self.twin.grad_scale = None if self.grad_scale is None else torch.tensor(self.grad_scale, dtype=torch.float32)
        self.twin.found_inf = torch.tensor(float(self.found_inf))
        self.twin.step()
        for p, t in zip(self.param_groups[0]["params"], self.twin.param_groups[0]["params"], strict=True):
            p.value = numsim.array(of_torch(t), "fp32")
            p.grad = None if t.grad is None else t.grad.numpy()  # (the kernel divides them in place)


def both(ours, theirs):
    """What the two calls return, or raise: name and text of torch's exception."""
    results = []
    for call, error in ((ours, ProtocolError), (theirs, Exception)):
        try:
            results.append(("returned", call()))
        except error as raised:
            results.append((getattr(raised, "torch", type(raised).__name__), str(raised)))
    return results


class Both(RuleBasedStateMachine):
    """Three optimizers (SGD in fp32, SGD in any format, fused Adam) under numsim's scaler and under torch's."""

    @initialize(
        scale=st.sampled_from(NEAR), growth=st.sampled_from([2.0, 1.1, 3.0, 2.0**100]),
        backoff=st.sampled_from([0.5, 1 / 3, 2.0**-100, 0.0]), interval=st.sampled_from([1, 2, 3, 0]),
        format=st.sampled_from(list(DTYPES)),
    )  # fmt: skip
    def begin(self, scale, growth, backoff, interval, format):
        self.ours = GradScalerProtocol(GradScaler(scale, growth, backoff, interval))
        self.theirs = torch.amp.GradScaler("cpu", scale, growth, backoff, interval)
        self.formats = ["fp32", format, "fp32"]
        self.params, self.tensors, self.optimizers, self.twins = [], [], [], []
        for i, f in enumerate(self.formats):
            start = [[1.0, -2.0], [0.5]]
            mine = [Parameter(numsim.array(x, f)) for x in start]
            tensors = [torch.nn.Parameter(torch.tensor(x, dtype=DTYPES[f])) for x in start]
            if i < 2:
                optimizer, twin = Sgd(mine, 0.5), torch.optim.SGD(tensors, lr=0.5)
            else:
                copies = [torch.nn.Parameter(torch.tensor(x)) for x in start]
                optimizer = FusedAdam(mine, torch.optim.Adam(copies, lr=0.5, fused=True))
                twin = torch.optim.Adam(tensors, lr=0.5, fused=True)
            self.params.append(mine)
            self.tensors.append(tensors)
            self.optimizers.append(optimizer)
            self.twins.append(twin)

    @rule(i=st.integers(0, 2), j=st.integers(0, 1), value=st.sampled_from(VALUES), none=st.booleans())
    def backward(self, i, j, value, none):
        """Another gradient arrives, or none."""
        p, t = self.params[i][j], self.tensors[i][j]
        values = [value, 1.0][: p.value.size]
        t.grad = None if none else torch.tensor(values, dtype=torch.float64).to(DTYPES[self.formats[i]])
        p.grad = None if none else ours(self.formats[i], values)

    @rule(data=st.data(), kind=st.sampled_from([("fp16", 0), ("fp16", 1), ("fp32", 0), ("bf16", 1), ("fp64", 0)]))
    def scale(self, data, kind):
        format, axes = kind
        value = data.draw(st.sampled_from([1.0, 2.0**-10, -3.0, 1e-7, 0.1]))
        loss = ours(format, [value] if axes else value)
        theirs = torch.tensor([value] if axes else value, dtype=DTYPES[format])
        (_, got), (_, wanted) = both(lambda: self.ours.scale(loss), lambda: self.theirs.scale(theirs))
        got = got if isinstance(got, numsim.Array) else numsim.array(got, got.dtype)
        assert DTYPES[got.format.name] == wanted.dtype and got.shape == tuple(wanted.shape)
        assert bits(got.values) == bits(of_torch(wanted))

    @rule(i=st.integers(0, 2))
    def unscale(self, i):
        got, wanted = both(lambda: self.ours.unscale_(self.optimizers[i]), lambda: self.theirs.unscale_(self.twins[i]))
        assert got == wanted

    @rule(i=st.integers(0, 2), closure=st.sampled_from([False] * 9 + [True]))
    def step(self, i, closure):
        options = {"closure": None} if closure else {}
        got, wanted = both(
            lambda: self.ours.step(self.optimizers[i], **options), lambda: self.theirs.step(self.twins[i], **options)
        )
        assert got[0] == wanted[0] and (got[0] == "returned" or got == wanted)

    @rule()
    def update(self):
        got, wanted = both(self.ours.update, self.theirs.update)
        assert got == wanted

    @rule(x=st.sampled_from([*NEAR, -1.0, 1e39, 3, True, "2", [1.0], 2j]))
    def update_to(self, x):
        got, wanted = both(lambda: self.ours.update(x), lambda: self.theirs.update(x))
        assert got == wanted

    @rule(x=st.sampled_from([2.0, 0.1, 1e39, 3, True, [3.0], [[3.0]], [1.0, 2.0], []]))
    def update_to_tensor(self, x):
        got, wanted = both(lambda: self.ours.update(np.array(x)), lambda: self.theirs.update(torch.tensor(x)))
        assert got == wanted

    @rule()
    def state_dict_round_trip(self):
        got, wanted = self.ours.state_dict(), self.theirs.state_dict()
        assert {k: bits(v) for k, v in got.items()} == {k: bits(v) for k, v in wanted.items()}
        self.ours.load_state_dict(got)
        self.theirs.load_state_dict(wanted)

    @rule(
        key=st.sampled_from(["scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"]),
        tracker=st.sampled_from([0, 1, 2, -1, 2**31 - 1, 2**31, 1.9, -1.5]), drop=st.booleans(), data=st.data(),
    )  # fmt: skip
    def load(self, key, tracker, drop, data):
        """A state dict with another entry, or one short: torch checks nothing and takes over what comes before."""
        entry = tracker if key == "_growth_tracker" else data.draw(st.sampled_from(
            [0, 1, 2, -3] if key == "growth_interval" else [*FACTORS, 1e39] if key == "scale" else FACTORS
        ))  # fmt: skip
        changed = self.theirs.state_dict() | {key: entry}
        if drop:
            del changed[key]
        got, wanted = both(lambda: self.ours.load_state_dict(changed), lambda: self.theirs.load_state_dict(changed))
        assert got == wanted
        if self.ours.state is None and entry in (1e39, 2**31):  # nobody looks at it before the next scale()
            for scaler in (self.ours, self.theirs):
                scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0, "_growth_tracker": 0})

    @rule(x=st.sampled_from([0, 1, 2, 4, 2.0, True, None]))
    def set_interval(self, x):
        self.ours.set_growth_interval(x)
        self.theirs.set_growth_interval(x)
        if not isinstance(x, int) or isinstance(x, bool):
            self.update()
            self.ours.set_growth_interval(2)
            self.theirs.set_growth_interval(2)

    @rule(growth=st.sampled_from(FACTORS), backoff=st.sampled_from(FACTORS))
    def set_factors(self, growth, backoff):
        for scaler in (self.ours, self.theirs):
            scaler.set_growth_factor(growth)
            scaler.set_backoff_factor(backoff)

    @invariant()
    def same(self):
        assert bits(self.ours.get_scale()) == bits(self.theirs.get_scale())
        state, scale = self.ours.state, self.theirs._scale
        assert (state is None) == (scale is None)
        if state is not None:
            assert bits(state.inv_scale) == bits(scale.double().reciprocal().float().item())
            assert state.growth_tracker == self.theirs._get_growth_tracker()
        for mine, optimizer, tensors, twin in zip(self.params, self.optimizers, self.tensors, self.twins, strict=True):
            record = self.theirs._per_optimizer_states.get(id(twin))
            stage = self.ours.stage(optimizer)
            assert stage.name == (record["stage"].name if record else "READY")
            for p, t in zip(mine, tensors, strict=True):
                assert bits(p.value.values) == bits(of_torch(t))
                assert (p.grad is None) == (t.grad is None)
                if p.grad is not None:
                    assert bits(np.asarray(p.grad, np.float64)) == bits(of_torch(t.grad))
            for p, t in zip(mine, tensors, strict=True):
                counted = twin.state.get(t, {}).get("step")
                if counted is not None:
                    copy = optimizer.twin.param_groups[0]["params"][mine.index(p)]
                    assert optimizer.twin.state[copy]["step"].item() == counted.item()


Both.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBoth = Both.TestCase


# --- row by row -------------------------------------------------------------------------------------------------------
def setup(grad=None, scale=65536.0, **kwargs):
    weight = Parameter(np.float32([0.0]), None if grad is None else np.float32([grad]))
    steps = []
    optimizer = SimpleNamespace(param_groups=[{"params": [weight]}], step=lambda: steps.append(1) or "ran", steps=steps)
    scaler = GradScalerProtocol(GradScaler(scale, **kwargs))
    return scaler, optimizer, weight


def begun(*args, **kwargs):
    scaler, optimizer, weight = setup(*args, **kwargs)
    scaler.scale(np.float32(1.0))
    return scaler, optimizer, weight


@pytest.mark.parametrize("call", ["unscale_", "step", "update"])
def test_before_any_scale(call):
    scaler, optimizer, _ = setup(1.0)
    with pytest.raises(ProtocolError, match=f"^Attempted {call} but _scale is None") as caught:
        getattr(scaler, call)(*([] if call == "update" else [optimizer]))
    assert caught.value.torch == "AssertionError" and isinstance(caught.value, RuntimeError)


def test_when_every_gradient_is_none_only_a_new_scale_leads_on():
    scaler, optimizer, _ = begun()
    for call in (lambda: scaler.step(optimizer), lambda: scaler.step(optimizer), scaler.update):
        with pytest.raises(ProtocolError, match="No inf checks were recorded"):
            call()
        assert scaler.stage(optimizer) is Stage.UNSCALED
    with pytest.raises(ProtocolError, match="already been called on this optimizer"):
        scaler.unscale_(optimizer)
    scaler.update(8.0)
    assert scaler.stage(optimizer) is Stage.READY and scaler.get_scale() == 8.0


def test_fused_with_every_gradient_none_steps():
    """torch sums an empty list: found_inf is the integer 0, and the step runs."""
    scaler, optimizer, _ = begun()
    optimizer._step_supports_amp_scaling = True
    optimizer.step = lambda: (optimizer.grad_scale, optimizer.found_inf)
    assert scaler.step(optimizer) == (65536.0, 0) and scaler.stage(optimizer) is Stage.STEPPED
    assert not hasattr(optimizer, "grad_scale")


def test_fused_from_unscaled_and_with_a_scale_of_its_own():
    scaler, optimizer, weight = begun(np.inf)
    optimizer._step_supports_amp_scaling, optimizer.grad_scale = True, 3.0
    optimizer.step = lambda: (optimizer.grad_scale, optimizer.found_inf)
    assert scaler.step(optimizer) == (3 * 65536.0, 1.0) and weight.grad[0] == np.inf
    scaler.update()
    scaler.unscale_(optimizer)
    assert scaler.step(optimizer) == (None, 1.0)


def test_fused_the_old_way():
    scaler, optimizer, _ = begun(1.0)
    optimizer._step_supports_amp_scaling = True
    optimizer.step = lambda grad_scaler=None: grad_scaler
    with pytest.warns(FutureWarning, match="grad_scaler"):
        assert scaler.step(optimizer) is scaler


def test_each_optimizer_skips_on_its_own_flag_and_one_flag_backs_off():
    scaler, good, _ = begun(1.0)
    bad = SimpleNamespace(param_groups=[{"params": [Parameter(None, np.float32([np.nan]))]}], step=lambda: "ran")
    assert scaler.step(good) == "ran" and scaler.step(bad) is None
    scaler.update()
    assert scaler.get_scale() == 32768.0


def test_one_that_is_only_unscaled_counts():
    scaler, optimizer, _ = begun(np.inf)
    scaler.unscale_(optimizer)
    scaler.update()
    assert scaler.get_scale() == 32768.0 and optimizer.steps == []


def test_not_finite_after_unscale_is_not_seen_and_clipping_does_not_undo_a_flag():
    scaler, optimizer, weight = begun(1.0)
    scaler.unscale_(optimizer)
    weight.grad[0] = np.inf
    assert scaler.step(optimizer) == "ran"
    scaler, optimizer, weight = begun(np.inf)
    scaler.unscale_(optimizer)
    weight.grad[0] = 1.0
    assert scaler.step(optimizer) is None


@pytest.mark.parametrize(
    ("scale", "grad", "unscaled"),
    [(2.0**-128, -1.0, -np.inf), (2.0**-8, 3e38, np.inf), (0.0, 0.0, np.nan), (2.0**-127, 1.0, 2.0**127)],
)
def test_unscaling_overflows_and_the_step_runs(scale, grad, unscaled):
    scaler, optimizer, weight = begun(grad, scale)
    assert scaler.step(optimizer) == "ran"
    assert np.array_equal(weight.grad, np.float32([unscaled]), equal_nan=True)
    scaler.update()
    assert scaler.state.growth_tracker == 1 and scaler.get_scale() == scale


def test_a_lowered_interval_is_never_met():
    scaler, optimizer, _ = begun(1.0, growth_interval=10)
    for _ in range(5):
        scaler.step(optimizer)
        scaler.update()
    scaler.set_growth_interval(5)
    for _ in range(20):
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 65536.0 and scaler.state.growth_tracker == 25


def test_not_enabled():
    scaler = GradScalerProtocol(enabled=False)
    optimizer = SimpleNamespace(step=lambda x: x)
    assert scaler.scale("anything") == "anything" and scaler.step(optimizer, 3) == 3
    assert scaler.unscale_(optimizer) is None and scaler.update("x") is None and scaler.load_state_dict({}) is None
    assert scaler.state_dict() == {} and scaler.get_scale() == 1.0 and not scaler.is_enabled()


def test_outputs_in_lists_and_what_is_no_output():
    scaler = GradScalerProtocol(GradScaler(4.0))
    assert scaler.scale([]) == [] and scaler.state is None
    a, (b,) = scaler.scale([np.float32(1.0), (numsim.array([2.0], "bf16"),)])
    assert (a, a.dtype, b.format.name, b.values.tolist()) == (4.0, np.float32, "bf16", [8.0])
    assert list(scaler.scale(np.float32([1.0]) for _ in range(2))) == [np.float32([4.0])] * 2
    for wrong in (1.0, None, [1.0]):
        with pytest.raises(ProtocolError, match="outputs must be a Tensor or an iterable of Tensors"):
            scaler.scale(wrong)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "bool", "uint8"])
@pytest.mark.parametrize("shape", [(), (1,), (2,), (0,), (2, 1)])
def test_types_of_scaled_losses(dtype, shape):
    import ml_dtypes

    wanted = torch.amp.GradScaler("cpu", 3.1).scale(torch.full(shape, 1, dtype=getattr(torch, dtype)))
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    got = np.asarray(GradScalerProtocol(GradScaler(3.1)).scale(np.full(shape, 1, numpy_dtype)))
    assert str(wanted.dtype) == f"torch.{got.dtype}" and got.shape == shape
    assert bits(got.astype(np.float64)) == bits(of_torch(wanted))


def test_sequence_of_scale_losses_in_fp16():
    scaler = GradScalerProtocol()
    assert scaler.scale(np.float16([1.0, 2.0**-10])).tolist() == [np.inf, 64.0]
    assert scaler.scale(np.array(1.0, np.float16)).tolist() == 65536.0


def test_only_the_scaler_of_torch():
    with pytest.raises(numsim.errors.InputError, match="protocol"):
        GradScalerProtocol(8.0)


def test_a_tracker_that_fails_after_the_scale():
    """torch makes the scale first; it stays, and losses are scaled with it, though nothing can be updated."""
    ours, theirs = GradScalerProtocol(GradScaler(8.0)), torch.amp.GradScaler("cpu", 8.0)
    for scaler in (ours, theirs):
        scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": 2**31})
    loss, tensor = np.float32(0.5), torch.tensor(0.5)
    got, wanted = both(lambda: ours.scale(loss), lambda: theirs.scale(tensor))
    assert got == wanted and got[0] == "RuntimeError"
    assert ours.scale(loss).item() == theirs.scale(tensor).item() == 4.0
    for tracker in (2**31, 3):  # a tracker that is loaded later does not help
        assert (
            ours.state_dict() == theirs.state_dict() and ours.get_scale() == theirs.get_scale() and ours.state is None
        )
        for new_scale in (None, 4.0):
            got, wanted = both(lambda x=new_scale: ours.update(x), lambda x=new_scale: theirs.update(x))
            assert got == wanted and "_growth_tracker is None" in got[1]
        for scaler in (ours, theirs):
            scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0, "_growth_tracker": tracker})
