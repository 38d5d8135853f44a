"""numpy, ml_dtypes and torch against the emulator: same bits, or a named reason that predicts the bits."""

import importlib.util
import math
import re
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest

import numsim
from numsim import host
from numsim.errors import InputError, UnavailableError
from numsim.gpu import driver
from numsim.machines import ask, find_machine, get_machine, list_machines
from numsim.machines.emulated import Emulated
from numsim.machines.library import product_format
from numsim.machines.quirks import QUIRKS, predict, quirks_of
from numsim.machines.verdict import compare
from tests.machines import battery

TORCH = pytest.param(
    "torch-cpu",
    marks=pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: .[test,torch]"),
)
LIBRARIES = ["numpy", "ml_dtypes", TORCH]
EMULATED = Emulated()


def recent(name):
    """Whether the library is one whose every quirk was seen; older ones have fewer."""
    least = {"numpy": (1, 26), "ml_dtypes": (0, 5, 4), "torch-cpu": (2, 12)}[name]
    found = host.version({"torch-cpu": "torch"}.get(name, name))
    return tuple(int(part) for part in re.findall(r"\d+", found)[:3]) >= least


def fits_everywhere(q, machine):
    def canonical(codes):
        return np.where(np.asarray(numsim.classify(codes, q.output)) == "nan", q.output.nan_code or 0, codes)

    codes, quirks = canonical(machine.answer(q).codes), quirks_of(machine.name, q)
    sets = (s for n in range(len(quirks), 0, -1) for s in combinations(quirks, n))
    return any(np.array_equal(canonical(predict(q, s)), codes) for s in sets)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("kind", ["casts", "operations", "sums", "mixed"])
def test_no_difference_is_unexplained(name, kind):
    machine = get_machine(name)
    questions = [q for q in getattr(battery, kind)(machine) if machine.can(q)]
    assert questions
    reasons = set()
    for q in questions:
        verdict = compare(q, EMULATED.answer(q), machine.answer(q))
        assert verdict.ok, f"{name}: {verdict.text}\n" + "\n".join(map(str, verdict.shown))
        assert verdict.compared == verdict.equal + verdict.nan + verdict.differ
        reasons |= set(verdict.documented)
        if verdict.differ:  # the model is right everywhere, not only where there is a difference
            assert fits_everywhere(q, machine), str(q)
    if name == "numpy":
        assert not reasons
    if name != "numpy" and kind == "casts":  # each quirk was seen, alone or with others
        seen = {part for reason in reasons for part in reason.split(" + ")}
        wanted = {k.name for k in QUIRKS if k.machine == name and k.name not in ("NaN becomes -0", "NaN becomes +0")}
        assert seen == wanted if recent(name) else seen <= wanted


# Rows of the table of disagreements that peers were found to have, as (machine, source, target, code in, code out).
ROWS = [
    ("ml_dtypes", "fp64", "e4m3fn", 0xC07AFFFFFFFFFFFF, 0xFE),  # -431.99999999999994: -448, not -416
    ("ml_dtypes", "fp64", "bf16", 0x3FF0100000001000, 0x3F80),  # 1 + 2^-8 + 2^-40: 1.0, not 1.0078125
    ("numpy", "fp64", "fp16", 0x3E60000000000001, 0x0001),  # just above 2^-25: 2^-24, rounded once
    ("ml_dtypes", "fp64", "e4m3fn", 0x407D000000000001, 0x7E),  # just above 464: 448, not NaN
    ("ml_dtypes", "fp64", "e5m2", 0x40EDFFFFFF100000, 0x7C),  # just below the tie of 57,344: infinity
    ("ml_dtypes", "fp32", "e8m0", 0x00000000, 0xFF),  # 0
    ("ml_dtypes", "fp32", "e8m0", 0xBF800000, 0xFF),  # -1
    ("ml_dtypes", "fp32", "e8m0", 0x7F400000, 0xFF),  # 1.5 x 2^127
    ("ml_dtypes", "fp32", "e2m1", 0x7FC00000, 0x08),  # NaN: -0
    ("ml_dtypes", "fp32", "e2m1", 0xFFC00000, 0x00),  # -NaN: +0
    pytest.param("torch-cpu", "fp64", "fp16", 0x3E60000000000001, 0x0000, marks=TORCH.marks),
    pytest.param("torch-cpu", "fp32", "e4m3fnuz", 0x43960000, 0x80, marks=TORCH.marks),  # 300: NaN, no saturation
    pytest.param("torch-cpu", "fp32", "e8m0", 0xBF800000, 0x7F, marks=TORCH.marks),  # -1: +1
    pytest.param("torch-cpu", "fp32", "e8m0", 0x00000000, 0x00, marks=TORCH.marks),
]


@pytest.mark.parametrize(("name", "source", "target", "code", "result"), ROWS)
def test_what_a_library_says(name, source, target, code, result):
    q = ask("cast", [source], target, [np.array([code], f"u{numsim.get_format(source).code_bytes}")], nan="zero")
    found = int(get_machine(name).answer(q).codes[0])
    assert hex(found) == hex(result) or (not recent(name) and hex(found) == hex(int(EMULATED.answer(q).codes[0])))


@pytest.mark.parametrize("name", LIBRARIES)
def test_bits_pass_unharmed(name):
    machine = get_machine(name)
    for format in map(numsim.get_format, machine.dtypes):
        codes = battery.all_codes(format) if format.bits <= 16 else battery.boundary_codes(format, format)
        before = codes.copy()
        assert np.array_equal(machine.store(machine.load(codes, format), format), codes)  # signalling NaNs and -0 too
        assert np.array_equal(codes, before)


@pytest.mark.parametrize("name", LIBRARIES)
def test_accumulate_rounds_every_partial_sum(name):
    machine = get_machine(name)
    for format in machine.computes:
        ones = numsim.encode(np.ones((2, 300)), format)
        q = ask("cumsum", [format], format, [ones])
        assert compare(q, EMULATED.answer(q), machine.answer(q)).ok, format
    if name == "ml_dtypes":  # the sum of 1,024 ones in BF16 is 256
        q = ask("sum", ["bf16"], "bf16", [numsim.encode(np.ones(1024), "bf16")])
        assert numsim.decode(machine.answer(q).codes, "bf16") == 256


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (1,), (2, 3, 1)])
def test_empty_and_tiny_sums(name, shape):
    machine = get_machine(name)
    codes = np.full(shape, 0x3C00, np.uint16)
    for q in (
        *(ask("sum", ["fp16"], "fp16", [codes], order=o) for o in ("sequential", "pairwise", "kahan")),
        *(ask("cumsum", ["fp16"], "fp16", [codes], order=o) for o in ("sequential", "kahan")),
        ask("dot", ["fp16"] * 2, "fp32", [codes] * 2, product="exact"),
        ask(
            "matmul",
            ["fp16"] * 2,
            "fp16",
            [codes[None] if codes.ndim == 1 else codes, np.zeros((shape[-1], 2), np.uint16)],
        ),
        ask("add", ["fp16"] * 2, "fp16", [codes, codes[..., :1]]),
        ask("cast", ["fp16"], "fp32", [codes]),
    ):
        if machine.can(q):
            verdict = compare(q, EMULATED.answer(q), machine.answer(q))  # checks shape and dtype
            assert verdict.equal == verdict.compared == math.prod(q.shape), str(q)
        else:
            assert name == "ml_dtypes"


def no(name, *args, **options):
    can = get_machine(name).can(ask(*args, **options))
    assert not can
    return can.reason


def test_can_says_why_not():
    x, y = np.zeros(2, np.uint16), np.zeros(2, np.uint32)
    assert no("numpy", "cast", ["fp32"], "fp16", [y], rounding="up") == "numpy has no rounding=up"
    assert no("numpy", "cast", ["fp32"], "fp16", [y], overflow="saturate") == "numpy has no overflow=saturate"
    assert no("numpy", "cast", ["fp32"], "fp16", [y], subnormals="flush") == "numpy has no subnormals=flush"
    assert no("numpy", "cast", ["fp32"], "tf32", [y]) == "numpy has no tf32"
    assert no("numpy", "add", ["bf16"] * 2, "bf16", [x, x]) == "numpy has no arithmetic in bf16"
    assert no("numpy", "fma", ["fp16"] * 3, "fp16", [x, x, x]) == "numpy has no fused multiply-add"
    assert no("numpy", "add", ["fp32"] * 2, "fp16", [y, y]) == "numpy would round fp32 operands to fp16 first"
    assert "rounds each product" in no("numpy", "dot", ["fp16"] * 2, "fp16", [x, x], product="exact")
    assert "products to fp16 first" in no("numpy", "dot", ["fp16"] * 2, "fp16", [x, x], product="fp32")
    assert no("ml_dtypes", "cast", ["fp32"], "fp16", [y]) == "ml_dtypes has no cast from fp32 to fp16"
    assert no("ml_dtypes", "cast", ["e5m2"], "e8m0", [np.zeros(1, np.uint8)]).startswith("ml_dtypes has no cast")
    with pytest.raises(UnavailableError, match="no fused multiply-add"):
        get_machine("numpy").answer(ask("fma", ["fp16"] * 3, "fp16", [x, x, x]))


def test_torch_says_why_its_square_root_is_left_out():
    torch = pytest.importorskip("torch", reason="torch is not installed: .[test,torch]")
    can = get_machine("torch-cpu").can(ask("sqrt", ["fp32"], "fp32", [np.zeros(2, np.uint32)]))
    assert can.yes is not torch.backends.mkl.is_available() and (can or "up to 1 ulp off" in can.reason)


def test_torch_keeps_its_threads_and_warns_of_nothing():
    torch = pytest.importorskip("torch", reason="torch is not installed: .[test,torch]")
    before = torch.get_num_threads(), torch.is_grad_enabled()
    get_machine("torch-cpu").answer(ask("cast", ["fp32"], "bf16", [np.zeros(2, np.uint32)]))
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == before


def test_flush_to_zero_is_seen():
    torch = pytest.importorskip("torch", reason="torch is not installed: .[test,torch]")
    assert not host.flushes_subnormals()
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        seen = (
            host.flushes_subnormals(),
            find_machine("numpy").can().reason,
            find_machine("numpy").provenance()["flush_to_zero"],
        )
    finally:
        torch.set_flush_denormal(False)
    assert seen == (True, "flush-to-zero is switched on in this process (by another library)", True)
    assert find_machine("numpy").can()


@pytest.mark.parametrize(
    ("x", "y", "out", "result"),
    [
        ("fp16", "fp16", "fp32", "fp32"),  # 22 bits, least product 2^-48, largest 2^32
        ("bf16", "bf16", "fp32", None),  # 2^-266 is no FP32 number
        ("bf16", "bf16", "fp64", "fp64"),
        ("fp32", "fp32", "fp64", "fp64"),
        ("e4m3fn", "e5m2", "fp32", "fp32"),
        ("e4m3fn", "e4m3fn", "fp16", None),  # 448 x 448 overflows
        ("fp64", "fp64", "fp64", None),
        ("e4m3b11fnuz", "e4m3b11fnuz", "fp16", None),  # 2^-26 is no FP16 number
    ],
)
def test_exact_products(x, y, out, result):
    zero = [np.zeros(1, f"u{numsim.get_format(f).code_bytes}") for f in (x, y)]
    found = product_format(ask("dot", [x, y], out, zero, product="exact"))
    assert (found.name if found else None) == result


def test_provenance_names_the_machine_and_nobody():
    for name in ("numpy", "ml_dtypes"):
        found = get_machine(name).provenance()
        assert (
            found["machine"] == name
            and found["numpy"] == np.__version__
            and found["cpu"]
            and not found["flush_to_zero"]
        )
        assert all(isinstance(v, (str, bool)) for v in found.values())
        assert "/" not in "".join(str(v) for k, v in found.items() if k != "cpu") and "\\" not in str(found)


def test_names():
    names = ["emulated", "numpy", "ml_dtypes", "torch-cpu", "cuda", "emulated-cuda", "recorded"]
    assert [m.name for m in list_machines()] == names
    for wrong, hint in (("torch", "torch-cpu"), ("numpi", "numpy"), ("gpu", "cuda"), ("ml-dtypes", "ml_dtypes")):
        with pytest.raises(InputError, match=f"did you mean {hint}"):
            find_machine(wrong)
    with pytest.raises(InputError, match=r"known are emulated, numpy"):
        find_machine("quantum")
    with pytest.raises(InputError, match="unknown machine ''"):
        find_machine("")


def test_cuda_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(driver, "driver_found", lambda: False)
    with pytest.raises(UnavailableError, match="no NVIDIA GPU found"):
        get_machine("cuda")


def test_a_machine_without_its_library_says_so(monkeypatch):
    from numsim.machines import torch_library

    monkeypatch.setattr(host, "version", lambda package: None)
    with pytest.raises(UnavailableError, match=r"ml_dtypes is not installed \(pip install ml_dtypes\)"):
        get_machine("ml_dtypes")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(torch_library.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"torch is not installed \(pip install torch\)"):
        get_machine("torch-cpu")


def test_looking_at_machines_loads_no_torch():
    code = (
        "import sys, numsim.machines as m; m.list_machines(); m.get_machine('numpy'); m.find_machine('cuda').can();"
        "print(sorted({'torch', 'numba', 'matplotlib', 'ml_dtypes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
