"""Real torch optimizers on the CPU as oracle: weights and states bit for bit, step after step."""

import os
import subprocess
import sys
import zlib

import numpy as np
import pytest

from numsim.errors import UnavailableError
from numsim.formats import FP32
from numsim.optimizers import SGD, Adam, AdamW
from numsim.optimizers.tensors import Tensors, fit

torch = pytest.importorskip("torch")

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
VECTORS = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")  # compiled with fused multiply-adds
NAMES = {"momentum": "momentum_buffer", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
SETTINGS = [
    (SGD, {}),
    (SGD, {"weight_decay": 0.1}),
    (SGD, {"momentum": 0.9}),
    (SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (Adam, {}),
    (Adam, {"weight_decay": 0.1, "eps": 1e-3, "betas": (0.8, 0.95)}),
    (Adam, {"betas": (0.4, 0.5)}),  # torch forms the average the other way round from a weight of 0.5 on
    (AdamW, {}),
    (AdamW, {"weight_decay": 0.5, "eps": 1e-6}),
]
IDS = [f"{kind.__name__}-{'-'.join(map(str, options)) or 'defaults'}" for kind, options in SETTINGS]


@pytest.fixture
def torch_sqrt(monkeypatch):
    """FP32 tensors: torch's own square root, which a vector library rounds now and then to the other neighbour."""
    monkeypatch.setattr(Tensors, "sqrt", their_sqrt)


def their_sqrt(self, x, format):
    root = np.sqrt(x) if format != FP32 else torch.from_numpy(np.array(x)).sqrt().numpy()
    return fit(root, format)


def steps(kind, options, name, n, count=20, seed=0, lr=1e-2, scale=1.0):
    """Weights and gradients of all magnitudes that matter, as values of the format."""
    generator = torch.Generator().manual_seed(seed + zlib.crc32(f"{kind.__name__}{name}".encode()))
    draw = lambda: torch.randn(n, generator=generator) * torch.exp2(-8 * torch.rand(n, generator=generator))  # noqa: E731
    return draw().to(FORMATS[name]), [(scale * draw()).to(FORMATS[name]) for _ in range(count)]


def disagreements(kind, options, name, w, gradients, order="single-tensor", torch_options=None, lr=1e-2):
    """How many numbers differ in bits (NaN counts as one number), over all steps."""
    parameter = torch.nn.Parameter(w.clone())
    theirs = getattr(torch.optim, kind.__name__)([parameter], lr=lr, **options, **(torch_options or {"foreach": False}))
    ours = kind(lr, format=name, order=order, fma=VECTORS, **options)
    state = ours.initial(w.float().numpy())
    differ = 0
    for g in gradients:
        parameter.grad = g.clone()
        theirs.step()
        state = ours.step(state, g.float().numpy())
        pairs = [(parameter.detach(), state.weights)]
        pairs += [(theirs.state[parameter][NAMES[x]], state.slots[x]) for x in ours.tensors]
        differ += sum(int(np.count_nonzero(unequal(a.float().numpy(), b))) for a, b in pairs)
    return differ


def unequal(a, b):
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return (a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("kind", "options"), SETTINGS, ids=IDS)
@pytest.mark.parametrize("n", [256, 4096])
def test_single_tensor(kind, options, name, n, torch_sqrt):
    count = 50 if n < 300 else 6
    assert disagreements(kind, options, name, *steps(kind, options, name, n, count)) == 0


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("kind", "options"), SETTINGS, ids=IDS)
def test_foreach(kind, options, name, torch_sqrt):
    w, gradients = steps(kind, options, name, 256, seed=1)
    assert disagreements(kind, options, name, w, gradients, "foreach", {"foreach": True}) == 0


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("kind", "options"), SETTINGS[5:], ids=IDS[5:])
@pytest.mark.parametrize("n", [256, 4096])
def test_fused_adam(kind, options, name, n):
    w, gradients = steps(kind, options, name, n, 50 if n < 300 else 6, seed=2)
    assert disagreements(kind, options, name, w, gradients, "fused", {"fused": True}) == 0


@pytest.mark.parametrize(("kind", "options"), SETTINGS[:5], ids=IDS[:5])
def test_fused_sgd_in_fp32(kind, options):
    w, gradients = steps(kind, options, "fp32", 4096, seed=3)
    assert disagreements(kind, options, "fp32", w, gradients, "fused", {"fused": True}) == 0


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize(("kind", "options"), SETTINGS[:5], ids=IDS[:5])
def test_fused_sgd_in_16_bits_moves_only_what_follows_the_last_vector(kind, options, name):
    """A defect of torch 2.13's CPU kernel: whole vectors of weights are never stored. The rest is as modelled here."""
    assert disagreements(kind, options, name, *steps(kind, options, name, 7, seed=4), "fused", {"fused": True}) == 0
    w, gradients = steps(kind, options, name, 64, count=1, seed=4)
    parameter = torch.nn.Parameter(w.clone())
    parameter.grad = gradients[0].clone()
    torch.optim.SGD([parameter], lr=1e-2, fused=True, **options).step()
    if not torch.equal(parameter, w):
        pytest.skip(f"torch {torch.__version__} stores them: compare them with order='fused' now")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("kind", "options"), SETTINGS[7:], ids=IDS[7:])
@pytest.mark.parametrize("n", [1, 3, 7, 71])
def test_adam_of_any_length(kind, options, name, n, torch_sqrt):
    """Without L2 decay (see the next test) no element knows its place."""
    assert disagreements(kind, options, name, *steps(kind, options, name, n, seed=5)) == 0


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize(("kind", "options"), SETTINGS[:5], ids=IDS[:5])
def test_after_the_last_vectors_products_are_rounded_too(kind, options, name):
    w, gradients = steps(kind, options, name, 7, seed=6)
    parameter = torch.nn.Parameter(w.clone())
    theirs = torch.optim.SGD([parameter], lr=1e-2, foreach=False, **options)
    ours = SGD(1e-2, format=name, fma=False, **options)
    state = ours.initial(w.float().numpy())
    for g in gradients:
        parameter.grad = g.clone()
        theirs.step()
        state = ours.step(state, g.float().numpy())
        assert not unequal(parameter.detach().float().numpy(), state.weights).any()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("order", ["single-tensor", "fused"])
def test_numbers_at_the_ends(name, order, request):
    """Zeros of both signs, subnormals, infinities, NaN and numbers whose squares overflow or vanish."""
    top = {"fp32": 3e38, "bf16": 3e38, "fp16": 65504.0}[name]
    inf, nan = float("inf"), float("nan")
    few = [0.0, -0.0, 1e-45, -1e-40, 6e-8, 1e-5, 1.0, -1e-4, 1e-20, top, -top, inf, -inf, nan, 0.5, -2.0]
    few = torch.tensor(few).to(FORMATS[name])
    w, g = few.repeat_interleave(16), few.repeat(16)
    options = {"fused": True} if order == "fused" else {"foreach": False}
    if order != "fused":
        request.getfixturevalue("torch_sqrt")
    for kind in (Adam, AdamW):
        assert disagreements(kind, {}, name, w, [g, -g, g, 0 * g], order, options) == 0
    if order != "fused":
        assert disagreements(SGD, {"momentum": 0.9}, name, w, [g, -g, g], lr=0.1) == 0


def test_masters_are_an_fp32_optimizer_and_a_copy(torch_sqrt):
    w, gradients = steps(AdamW, {}, "bf16", 256, seed=8)
    master = torch.nn.Parameter(w.float())
    theirs = torch.optim.AdamW([master], lr=1e-2, foreach=False)
    ours = AdamW(1e-2, format="bf16", update="master", fma=VECTORS)
    state = ours.initial(w.float().numpy())
    for g in gradients:
        master.grad = g.float()
        theirs.step()
        state = ours.step(state, g.float().numpy())
        assert not unequal(master.detach().numpy(), state.slots["master"]).any()
        assert not unequal(master.detach().bfloat16().float().numpy(), state.weights).any()


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_kahan_in_torch(name):
    """The order of torchdistX and optimi: the step goes into c, c into w, and what w did not take back into c."""
    w, gradients = steps(Adam, {}, name, 256, seed=9)
    w, c = w.clone(), torch.zeros_like(w)
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    ours = Adam(1e-3, eps=1e-4, format=name, update="kahan", fma=VECTORS)
    state = ours.initial(w.float().numpy())
    for t, g in enumerate(gradients, 1):
        m.lerp_(g, 1 - 0.9)
        v.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
        bottom = (v.sqrt() / (1 - 0.999**t) ** 0.5).add_(1e-4)
        c.addcdiv_(m, bottom, value=-(1e-3 / (1 - 0.9**t)))
        before = w.clone()
        w.add_(c)
        c.add_(before.sub_(w))
        state = ours.step(state, g.float().numpy())
        assert not unequal(w.float().numpy(), state.weights).any()
        assert not unequal(c.float().numpy(), state.slots["compensation"]).any()


def test_a_cpu_that_flushes_subnormal_numbers_is_refused():
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormal numbers")
    try:
        with pytest.raises(UnavailableError, match="flush-to-zero"):
            SGD(0.1).initial(1.0)
    finally:
        torch.set_flush_denormal(False)
    assert SGD(0.1).initial(1.0).weights == 1


def test_ieee_square_roots_and_those_of_torch():
    """The one operation in which FP32 tensors of torch are not IEEE 754's: never off by more than a unit."""
    x = np.arange(1, 1 << 24, 97, dtype=np.float32)
    off = torch.from_numpy(x).sqrt().numpy().view(np.int32) - np.sqrt(x).view(np.int32)
    assert np.abs(off).max() <= 1
    z = torch.from_numpy(x).to(torch.bfloat16)
    assert torch.equal(
        z.sqrt(), torch.from_numpy(fit(np.sqrt(z.float().numpy()), Adam(format="bf16").format)).bfloat16()
    )


SCALAR = """
import sys; sys.path.insert(0, {root!r})
from tests.optimizers import test_torch as t
assert not t.VECTORS, "this torch has no scalar kernels"
t.Tensors.sqrt = t.their_sqrt
for kind, options in t.SETTINGS:
    for name in t.FORMATS:
        w, gradients = t.steps(kind, options, name, 71, count=2)
        assert t.disagreements(kind, options, name, w, gradients) == 0, (kind, options, name)
"""


def test_torch_without_vectors():
    """ATEN_CPU_CAPABILITY=default: nothing fused, and 16-bit products of add_(alpha=...) rounded."""
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(
        [sys.executable, "-c", SCALAR.format(root=root)], env=environment, capture_output=True, text=True, cwd=root
    )
    if "no scalar kernels" in done.stderr:
        pytest.skip("this torch has no scalar kernels")
    assert done.returncode == 0, done.stderr[-2000:]
