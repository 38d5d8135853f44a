"""Products on emulated tensor cores, beside their peers in one run: ``python -m tests.benchmarks.bench_tensorcore``.

Millions of products (multiply-adds) a second: matrix products n^3, then batches of one instruction (``mma``). One
thread by its CPU time, two threads by the clock on the wall. The peers, on one thread, are sampled in turn with it: "of
sgemm" is the share of what numpy's BLAS reaches on the same values in float32, which rounds everywhere else; "mmasim"
how many times faster numsim is than mmasim (torch), which gives the same bits. Medians; nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np

import numsim
from numsim import kernels
from numsim.codes import code_dtype
from numsim.tensorcore import EvidenceWarning, get_model, matmul, mma
from numsim.tensorcore.models import TYPES, word_format
from tests.benchmarks.measure import medians, one_thread

MATRICES = (
    ("h200", "mma.m16n8k16.f32.f16.f16.f32"), ("h200", "mma.m16n8k16.f16.f16.f16.f16"),
    ("h200", "mma.m16n8k16.f32.bf16.bf16.f32"), ("h200", "mma.m16n8k8.f32.tf32.tf32.f32"),
    ("h200", "wgmma.m64n256k32.f32.e4m3.e4m3"), ("h200", "mma.m16n8k32.f32.e4m3.e4m3.f32"),
    ("h200", "mma.m16n8k16.f64.f64.f64.f64"), ("b200", "tcgen05.m128n256k32.kind::f8f6f4.f32.e4m3.e4m3"),
    ("b200", "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0"),
    ("b200", "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"),
    ("l40s", "mma.m16n8k32.f32.e4m3.e4m3.f32"), ("a100", "mma.m16n8k16.f32.f16.f16.f32"),
    ("a100", "mma.m16n8k8.f32.tf32.tf32.f32"), ("v100", "mma.m8n8k4.f32.f16.f16.f32"),
    ("mi300x", "mfma.f32_16x16x16_f16"), ("mi300x", "mfma.f32_16x16x32_fp8_fp8"),
    ("mi250x", "mfma.f32_16x16x16f16"), ("mi100", "mfma.f32_16x16x16f16"), ("mi100", "mfma.f32_16x16x4f32"),
)  # fmt: skip
BATCHES = (
    ("h200", "mma.m16n8k16.f32.f16.f16.f32"), ("h200", "mma.m16n8k8.f32.tf32.tf32.f32"),
    ("h200", "wgmma.m64n256k32.f32.e4m3.e4m3"), ("h200", "mma.m16n8k16.f64.f64.f64.f64"),
    ("b200", "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"),
    ("v100", "mma.m8n8k4.f32.f16.f16.f32"), ("mi300x", "mfma.f32_16x16x16_f16"), ("mi100", "mfma.f32_16x16x16f16"),
)  # fmt: skip
ARCHITECTURES = {"h200": "Hopper", "a100": "Ampere", "l40s": "Ada Lovelace", "v100": "Volta"}


def operands(m, left, right, rng):
    """Numbers from N(0, 1) as codes, and scales of about one."""
    drawn = [rng.standard_normal(s).astype(np.float32) for s in (left, right)]
    a, b = (numsim.encode(x, word_format(t)) for x, t in zip(drawn, (m.a, m.b), strict=True))
    code = {"ue8m0": 127, "ue4m3": 0x38}.get(m.scale, 0)
    return a, b, code


def peer(m, n, rng):
    """mmasim's own product of the same kind and its size, or None: for records that torch tensors hold as they are."""
    try:
        import torch
        from mmasim.nv_ptx import MMA, WGMMA
    except Exception:
        return None
    types = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "e4m3": torch.float8_e4m3fn}
    family, _, rest = m.instruction.partition(".")
    try:
        op = {"mma": MMA, "wgmma": WGMMA}[family](ARCHITECTURES[m.chip], rest)
        a, b = (torch.from_numpy(rng.standard_normal((n, n)).astype(np.float32)).to(types[t]) for t in (m.a, m.b))
    except (KeyError, AssertionError):
        return None
    c = torch.zeros((n, n), dtype=torch.float16 if m.d == "f16" else torch.float32)
    return lambda: op(a, b, c)


def row(m, job, work, samples, sgemm=None, other=None, other_work=0):
    peers = {"sgemm": sgemm, "other": other}
    jobs = {"one": lambda: job(1), **{name: peer for name, peer in peers.items() if peer}}
    t = medians(jobs, samples, time.process_time) | medians({"two": lambda: job(2)}, samples, time.perf_counter)
    cells = [f"{work / t[x] / 1e6:8.0f}" for x in ("one", "two")]
    cells.append(f"{t['sgemm'] / t['one']:9.2f}" if sgemm else " " * 9)
    cells.append(f"{t['other'] / other_work / (t['one'] / work):8.0f}" if other else " " * 8)
    print(f"{m.chip:7}{m.instruction:68}", *cells, flush=True)


def matrices(n, samples, full):
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    for chip, instruction in MATRICES[:1] if full else MATRICES:
        m = get_model(chip, instruction)
        a, b, code = operands(m, (n, n), (n, n), rng)
        k = n // m.scale_block if m.scale else 0
        scales = {"scale_a": np.full((n, k), code, np.uint8), "scale_b": np.full((k, n), code, np.uint8)} if k else {}
        small = min(n, 128)  # mmasim's speed does not depend on it, its memory does
        other = None if full else peer(m, small, rng)

        def job(threads, a=a, b=b, m=m, scales=scales):
            return matmul(a, b, chip=m, threads=threads, **scales)

        row(m, job, n**3, samples, lambda: x @ y, other, small**3)


def batches(count, samples):
    rng = np.random.default_rng(2)
    for chip, instruction in BATCHES:
        m = get_model(chip, instruction)
        n = count // m.k
        a, b, code = operands(m, (n, m.k), (n, m.k), rng)
        c = np.zeros(n, code_dtype(TYPES[m.c]))
        each = np.full((n, m.k // m.scale_block), code, np.uint8) if m.scale else None
        scales = {"scale_a": each, "scale_b": each} if m.scale else {}

        def job(threads, a=a, b=b, c=c, m=m, scales=scales):
            return mma(a, b, c, chip=m, threads=threads, **scales)

        row(m, job, count, samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="4096^3 in FP16 and nothing else")
    options = parser.parse_args()
    warnings.simplefilter("ignore", EvidenceWarning)
    try:
        import mmasim  # noqa: F401
        import torch  # noqa: F401
    except ImportError:
        print("mmasim is not installed: its column stays empty")
    one_thread()
    with kernels.force("kernel"):
        head = f"{'M products a second':75} {'1 thread':>8} {'2':>8} {'of sgemm':>9} {'mmasim':>8}"
        n = 4096 if options.full else options.size
        print(f"\n{head}\n{n}^3")
        matrices(n, 1 if options.full else options.samples, options.full)
        if options.full:
            return
        print("\nmma, 2^22 products")
        batches(1 << 22, options.samples)


if __name__ == "__main__":
    main()
