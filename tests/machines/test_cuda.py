"""The machine cuda, with torch on this CPU and numsim's kernels on this CPU in the GPU's place."""

import importlib.util
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest

import numsim
from numsim.cli import main
from numsim.errors import UnavailableError
from numsim.files import is_label
from numsim.gpu import driver
from numsim.gpu.driver import DeviceError
from numsim.machines import Answer, ask, find_machine, get_machine
from numsim.machines.cuda import Cuda, kernels_digest
from numsim.machines.emulated import Emulated
from numsim.machines.quirks import quirks_of
from numsim.machines.recorded import Recorded, write_record
from numsim.machines.verdict import compare
from tests.gpu.cpu import Cpu, why_not
from tests.machines import battery
from tests.machines.test_library_question import function, matrices, scaled

EMULATED = Emulated()
F16 = "mma.m16n8k16.f32.f16.f16.f32"
needs_compiler = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed: .[test,torch]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def gpu(torch, monkeypatch, folder):
    """A place for a GPU; ``gpu(chip)`` puts another one there."""

    def put(chip, **options):
        device = Cpu(chip, folder, **options)
        monkeypatch.setattr(driver, "device", lambda: device)
        monkeypatch.setattr(Cuda, "torch_device", "cpu")
        return find_machine("cuda")

    return put


def mma(chip="h200", instruction=F16, formats=("fp16", "fp16", "fp32"), k=16):
    rng = np.random.default_rng(4)
    a, b, c = (numsim.encode(rng.standard_normal(s), f) for s, f in zip(((5, k), (5, k), (5,)), formats, strict=True))
    return ask("mma", formats, formats[2], [a, b, c], chip=chip, instruction=instruction)


# --- what it answers --------------------------------------------------------------------------------------------------
@needs_compiler
@pytest.mark.parametrize("instruction", [F16, "wgmma.m64n8k16.f32.f16.f16"])
def test_single_instructions_go_to_numsims_kernels(gpu, instruction):
    machine, q = gpu("h200"), mma(instruction=instruction, k=32)
    assert machine.chip == "h200" and machine.can(q)
    verdict = compare(q, EMULATED.answer(q), machine.answer(q))
    assert verdict.text == "same bits" and verdict.compared == 5 and verdict.against == "cuda"


def test_another_chips_instructions_are_not_answered(gpu):
    machine = gpu("h200")
    assert machine.can(mma("a100")).reason == "this GPU is NVIDIA H200, whose units numsim knows as h200, not a100"
    with pytest.raises(UnavailableError, match="not a100"):
        machine.answer(mma("a100"))
    asked = mma("b200", "tcgen05.m64n8k16.kind::f16.f32.f16.f16")
    assert "not b200" in machine.can(asked).reason


@pytest.mark.parametrize("kind", ["casts", "sums", "mixed"])
def test_casts_and_sums_go_to_torch(gpu, kind):
    machine, seen = gpu("h200"), set()
    for q in getattr(battery, kind)(machine):
        if machine.can(q) and (kind != "casts" or q.inputs[0].name in ("fp64", "fp32", "e8m0")):
            verdict = compare(q, EMULATED.answer(q), machine.answer(q))
            assert verdict.ok and verdict.against == "cuda", f"{verdict.text}\n" + "\n".join(map(str, verdict.shown))
            seen |= set(verdict.quirks)
    assert seen == ({k.name for k in quirks_of("torch-cpu", ask("cast", ["fp64"], "e8m0", [np.zeros(1, np.uint64)]))}
                    | {"rounds twice"} if kind == "casts" else set()) | (seen & {"saturates"})  # fmt: skip


def test_its_quirks_are_those_of_torch():
    for target in ("fp16", "bf16", "e4m3fn", "e5m2", "e8m0", "fp32"):
        q = ask("cast", ["fp64"], target, [np.zeros(1, np.uint64)])
        assert [(k.name, k.sentence) for k in quirks_of("cuda", q)] == [
            (k.name, k.sentence) for k in quirks_of("torch-cpu", q)
        ]


def test_a_gpus_own_nan_is_no_difference():
    x = np.array([0x7F800000, 0x3F800000], np.uint32)
    q = ask("sub", ["fp32"] * 2, "fp32", [x, x])
    said = Answer(np.array([0x7FFFFFFF, 0], np.uint32), {"machine": "cuda"})
    assert compare(q, EMULATED.answer(q), said).text == "same bits but for NaN payloads"
    assert compare(q, EMULATED.answer(q), said, nan="bits").unexplained == 1


@pytest.mark.parametrize("format", ["fp32", "fp16", "bf16", "fp64"])
def test_single_operations(gpu, format):
    machine = gpu("h200")
    x, y = battery.pairs(numsim.get_format(format), 2000)
    for operation in ("add", "sub", "mul", "div"):
        q = ask(operation, [format] * 2, format, [x, y])
        assert machine.can(q) and compare(q, EMULATED.answer(q), machine.answer(q)).ok
    assert machine.can(ask("sqrt", [format], format, [x]))  # unlike torch on a CPU, where Intel's is not exact


def test_amax_scaler_and_its_own_product(gpu):
    machine, cpu = gpu("h200"), get_machine("torch-cpu")
    found_inf = np.where(np.arange(9) == 5, 0x3F800000, 0).astype(np.uint32)
    x = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for q in (
        ask("scaler", ["fp32"], "fp32", [found_inf], system="torch", settings={"growth_interval": 2}),
        ask("amax", ["e4m3fn"], "e4m3fn", [x]),
        ask("mma", ["fp16"] * 3, "fp16", [x.astype(np.uint16) << 8, x.astype(np.uint16), x[:, 0].astype(np.uint16)]),
    ):
        assert np.array_equal(machine.answer(q).codes, cpu.answer(q).codes)
        if q.operation != "mma":
            assert compare(q, EMULATED.answer(q), machine.answer(q)).ok


# --- the library's own functions and their flags ----------------------------------------------------------------------
FLAGS = {"allow_tf32": "fp32", "allow_fp16_reduced_precision_reduction": "fp16",
         "allow_bf16_reduced_precision_reduction": "bf16", "allow_fp16_accumulation": "fp16"}  # fmt: skip


def product(format="fp32", **settings):
    x = numsim.encode(np.eye(3), format)
    return function("torch.matmul", x, x, inputs=[format] * 2, output=format, **settings)


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_are_set_for_the_call_and_put_back(gpu, torch, monkeypatch, flag):
    machine, matmul, real, seen = gpu("h200"), torch.backends.cuda.matmul, torch.matmul, []
    if not hasattr(matmul, flag):
        assert machine.can(product(FLAGS[flag], **{flag: True})).reason.endswith(f"has no {flag}")
        pytest.skip(f"this torch has no {flag}")
    before = {name: getattr(matmul, name) for name in FLAGS if hasattr(matmul, name)}

    def watched(a, b):
        seen.append({name: getattr(matmul, name) for name in before})
        return real(a, b)

    monkeypatch.setattr(torch, "matmul", watched)
    for value in (True, False):
        machine.answer(product(FLAGS[flag], **{flag: value}))
        assert {name: getattr(matmul, name) for name in before} == before
    usual = {name: "reduced" in name for name in before}
    assert seen == [{**usual, flag: True}, {**usual, flag: False}]

    def fail(a, b):
        raise RuntimeError("CUDA out of memory. Tried to allocate 9.00 GiB")

    monkeypatch.setattr(torch, "matmul", fail)
    with pytest.raises(UnavailableError, match=r"cuda failed at library .*: CUDA out of memory\. Tried"):
        machine.answer(product(FLAGS[flag], **{flag: not usual[flag]}))
    assert {name: getattr(matmul, name) for name in before} == before


def test_what_a_user_chose_is_put_back(gpu, torch):
    """Also where torch's older and newer switches do not say the same, and torch refuses to tell the older one."""
    machine, matmul = gpu("h200"), torch.backends.cuda.matmul
    before = matmul.allow_tf32
    try:
        for chosen in (True, False):
            matmul.allow_tf32 = chosen
            assert machine.provenance()["tf32"] is chosen
            machine.answer(product(allow_tf32=not chosen))
            assert matmul.allow_tf32 is chosen
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "tf32"
            machine.answer(product())
            assert matmul.fp32_precision == "tf32" and machine.provenance()["tf32"] is True
            matmul.fp32_precision = "ieee"
            assert matmul.allow_tf32 is False
        if hasattr(matmul, "allow_fp16_reduced_precision_reduction_split_k"):
            matmul.allow_fp16_reduced_precision_reduction = (False, False)
            machine.answer(product("fp16"))
            assert not matmul.allow_fp16_reduced_precision_reduction
            assert not matmul.allow_fp16_reduced_precision_reduction_split_k
    finally:
        matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction = before, True


def test_older_and_newer_torch_in_one_manner(gpu, torch, monkeypatch):
    """torch 2.9 warns at the older switch of TF32; it is set all the same, and says nothing."""

    class Warning29:
        allow_fp16_reduced_precision_reduction = allow_bf16_reduced_precision_reduction = True

        @property
        def allow_tf32(self):
            return False

        @allow_tf32.setter
        def allow_tf32(self, value):
            warnings.warn("Please use the new API settings to control TF32 behavior", UserWarning, stacklevel=1)
            seen.append(value)

    seen = []
    monkeypatch.setattr(torch.backends.cuda, "matmul", Warning29())
    assert gpu("h200").answer(product(allow_tf32=True)).codes[0, 0] == 0x3F800000 and seen == [True, False]


def test_a_flag_that_this_torch_lacks(gpu, torch, monkeypatch):
    class Older:
        allow_tf32 = False
        allow_fp16_reduced_precision_reduction = allow_bf16_reduced_precision_reduction = True

    monkeypatch.setattr(torch.backends.cuda, "matmul", Older())
    machine = gpu("h200")
    q = product("fp16", allow_fp16_accumulation=True)
    assert machine.can(q).reason == f"torch {torch.__version__} has no allow_fp16_accumulation"
    assert machine.can(product("fp16")) and machine.answer(product("fp16")).codes[0, 0] == 0x3C00
    assert machine.provenance()["fp16_accumulation"] is False


def test_scaled_products(gpu, torch, monkeypatch):
    machine, real, seen = gpu("h200"), torch._scaled_mm, []

    def watched(a, b, *scales, **options):
        seen.append((a.is_contiguous(), b.t().is_contiguous(), options.pop("use_fast_accum")))
        return real(a, b, *scales, **options)

    monkeypatch.setattr(torch, "_scaled_mm", watched)
    for fast in (False, True):
        assert machine.answer(scaled(*matrices(), use_fast_accum=fast)).codes.shape == (32, 16)
    assert seen == [(True, True, False), (True, True, True)]
    a, b = matrices()
    for q, words in (
        (scaled(a[:, :40], b[:40]), "needs K and N that are multiples of 16, not 40 and 16"),
        (scaled(a, b[:, :8]), "not 64 and 8"),
        (scaled(a[:0], b), "multiples of 16"),
        (scaled(a, b, inputs=["e5m2"] * 2), "multiplies no two e5m2 matrices"),
    ):
        assert words in machine.can(q).reason
    assert machine.can(scaled(a, b, inputs=["e5m2", "e4m3fn"])) and machine.can(scaled(a[:5], b))
    older = gpu("a100")
    assert older.can(scaled(a, b)).reason == "torch._scaled_mm needs compute capability 8.9, and this GPU has 8.0"


# --- what is missing --------------------------------------------------------------------------------------------------
def lacking(monkeypatch, words="no NVIDIA driver found"):
    def device():
        raise UnavailableError(words)

    monkeypatch.setattr(driver, "device", device)


def hide_torch(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))


def test_no_gpu():
    if driver.driver_found():
        pytest.skip("there is a driver here")
    machine = find_machine("cuda")
    assert machine.can().reason == "no NVIDIA GPU found"
    for q in (mma(), product(), ask("cast", ["fp32"], "fp16", [np.zeros(1, np.uint32)])):
        assert machine.can(q).reason == "no NVIDIA GPU found"
        with pytest.raises(UnavailableError, match="no NVIDIA GPU found"):
            machine.answer(q)


def test_torch_without_cuda_and_no_bindings(torch, monkeypatch):
    if torch.version.cuda:
        pytest.skip("this torch is built with CUDA")
    monkeypatch.setattr(driver, "driver_found", lambda: True)
    lacking(monkeypatch, "cuda-bindings does not load (No module named 'cuda'): python -m pip install \"numsim[cuda]\"")
    told = find_machine("cuda").can().reason
    assert told.startswith(
        f"torch {torch.__version__} is built without CUDA: install one with CUDA: https://pytorch.org"
    )
    assert told.endswith(
        "; cuda-bindings does not load (No module named 'cuda'): python -m pip install \"numsim[cuda]\""
    )


def test_torch_is_not_installed(monkeypatch):
    monkeypatch.setattr(driver, "driver_found", lambda: True)
    lacking(monkeypatch)
    hide_torch(monkeypatch)
    machine = find_machine("cuda")
    assert machine.can().reason == "torch is not installed (pip install torch); no NVIDIA driver found"
    assert machine.can(product()).reason == "torch is not installed (pip install torch)"
    assert machine.can(mma()).reason == "no NVIDIA driver found"


@pytest.mark.parametrize("warns", [False, True])
def test_torch_that_cannot_use_the_gpu(torch, monkeypatch, warns):
    def zeros(*args, **options):
        if warns:
            warnings.warn(
                "CUDA initialization: The NVIDIA driver on your system is too old (found 11040).\nMore", stacklevel=1
            )
        raise RuntimeError("No CUDA GPUs are available\nmore")

    monkeypatch.setattr(driver, "driver_found", lambda: True)
    lacking(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch, "zeros", zeros)
    why = (
        "CUDA initialization: The NVIDIA driver on your system is too old (found 11040)."
        if warns
        else "No CUDA GPUs are"
    )
    told = find_machine("cuda").can().reason
    assert (
        told.startswith(f"torch {torch.__version__} for CUDA 12.8 cannot use the GPU ({why}")
        and "more" not in told.lower()
    )


def test_bindings_that_fail_are_no_traceback(torch, monkeypatch):
    def device():
        raise AttributeError("module 'cuda.bindings.driver' has no attribute 'cuX'\nmore")

    monkeypatch.setattr(driver, "device", device)
    monkeypatch.setattr(Cuda, "torch_device", "cpu")
    can = find_machine("cuda").can()
    why = "AttributeError: module 'cuda.bindings.driver' has no attribute 'cuX'"
    assert can and can.reason == f"but no single instructions: cuda-bindings cannot use the GPU ({why})"


def test_half_a_machine_says_what_the_other_half_lacks(gpu, monkeypatch, capsys):
    machine = gpu("h200")
    assert machine.can() == (True, "")
    with monkeypatch.context() as without:
        hide_torch(without)
        can = find_machine("cuda").can()
        assert can and can.reason == ("but no casts, sums and library products: torch is not installed (pip install "
                                      "torch)")  # fmt: skip
        assert find_machine("cuda").can(mma())
        assert find_machine("cuda").provenance()["torch"] == "not installed"
        assert main(["machines", "cuda"]) == 0 and "this CPU" not in capsys.readouterr().out
        assert main(["machines"]) == 0
        line = " ".join(capsys.readouterr().out.split())
        assert "an NVIDIA GPU yes, but no casts, sums and library products: torch is not" in line
        assert main(["doctor", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["machines"]["cuda"]
        assert told == f"yes: an NVIDIA GPU, {can.reason}"
    lacking(monkeypatch)
    assert find_machine("cuda").can() == (True, "but no single instructions: no NVIDIA driver found")


def test_a_gpu_that_numsim_has_no_record_of(gpu):
    machine = gpu("h200")
    driver.device().capability = (12, 1)
    why = "numsim has no record of a GPU of compute capability 12.1"
    assert machine.can() == (True, f"but no single instructions: {why}") and machine.can(mma()).reason == why


@needs_compiler
def test_results_that_cannot_be_trusted(gpu):
    machine = gpu("h200", spoil=lambda d, poison: d ^ 1)
    with pytest.raises(DeviceError, match="elements are misplaced"):
        machine.answer(mma())


@pytest.mark.parametrize(("said", "kind"), [
    ("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of", UnavailableError),
    ("CUDA error: out of memory", UnavailableError),
    ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul(...)`", UnavailableError),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", UnavailableError),
    ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be", DeviceError),
    ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling", DeviceError),
    ("CUDA error: unspecified launch failure", DeviceError),
])  # fmt: skip
def test_errors_of_the_gpu(gpu, torch, monkeypatch, said, kind):
    def fail(*args):
        raise RuntimeError(said)

    machine = gpu("h200")
    monkeypatch.setattr(torch, "add", fail)
    with pytest.raises(UnavailableError, match="cuda failed at add") as error:
        machine.answer(ask("add", ["fp32"] * 2, "fp32", [np.zeros(3, np.uint32)] * 2))
    assert type(error.value) is kind and str(error.value).isprintable()
    assert str(error.value).endswith("the GPU no more") is (kind is DeviceError)


# --- provenance -------------------------------------------------------------------------------------------------------
@needs_compiler
def test_recorded_and_replayed(gpu, torch, tmp_path):
    machine = gpu("h200")
    asked = [mma(), ask("cast", ["fp32"], "fp16", [np.array([0x3DCCCCCD], np.uint32)]), product(allow_tf32=True)]
    answers = [(q, machine.answer(q)) for q in asked]
    recorded = Recorded(write_record(tmp_path / "r.npz", answers, suite="tensorcore"))
    for q, a in answers:
        assert np.array_equal(recorded.answer(q).codes, a.codes)
    found = recorded.provenance()
    assert found == machine.provenance()
    assert (found["machine"], found["device"], found["compute_capability"]) == ("cuda", "NVIDIA H200", "9.0")
    assert {"torch", "cuda_of_torch", "numpy", "python", "kernels", "tf32", "fp16_reduced_precision",
            "bf16_reduced_precision", "fp16_accumulation", "deterministic"} <= set(found)  # fmt: skip
    assert found["torch"] == torch.__version__ and found["kernels"] == kernels_digest()
    for name, value in found.items():
        assert is_label(name, 40) and (isinstance(value, (int, float)) or is_label(value))


def test_cublas_own_switch_is_told(gpu, monkeypatch):
    machine = gpu("h200")
    assert "nvidia_tf32_override" not in machine.provenance()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert machine.provenance()["nvidia_tf32_override"] == "1"


def test_nothing_heavy_is_loaded_to_look():
    code = (
        "import sys; from numsim.machines import find_machine; find_machine('cuda').title; find_machine('cuda').can();"
        "print(sorted({'torch', 'numba', 'cuda', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert driver.driver_found() or done.stdout.strip() == "[]"
