"""The emulator on a GPU beside the CPU's kernels, in one run: ``python -m tests.benchmarks.bench_gpu_emulator``.

Whole matrix products n^3 of codes, millions of products (multiply-adds) a second. The GPU's column counts all that
``matmul(device="cuda")`` does: decoding, copies, and every kernel twice, as the driver compares two runs. The CPU takes
a smaller n, on all cores; the results of that size must be the same bits. Medians; nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np

from numsim.errors import UnavailableError
from numsim.gpu import driver
from numsim.tensorcore import EvidenceWarning, get_model, matmul
from tests.benchmarks.bench_tensorcore import operands
from tests.benchmarks.measure import rates

MODELS = (
    ("h200", "mma.m16n8k16.f32.f16.f16.f32"), ("h200", "mma.m16n8k16.f16.f16.f16.f16"),
    ("h200", "mma.m16n8k8.f32.tf32.tf32.f32"), ("h200", "wgmma.m64n256k32.f32.e4m3.e4m3"),
    ("h200", "mma.m16n8k32.f32.e4m3.e4m3.f32"), ("h200", "mma.m16n8k16.f64.f64.f64.f64"),
    ("b200", "tcgen05.m128n256k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0"),
    ("b200", "tcgen05.m128n256k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"),
    ("a100", "mma.m16n8k16.f32.f16.f16.f32"), ("v100", "mma.m8n8k4.f32.f16.f16.f32"),
)  # fmt: skip


def job(m, n):
    """A product of n^3, on a device."""
    a, b, code = operands(m, (n, n), (n, n), np.random.default_rng(1))
    k = n // m.scale_block if m.scale else 0
    scales = {"scale_a": np.full((n, k), code, np.uint8), "scale_b": np.full((k, n), code, np.uint8)} if k else {}
    return lambda device: matmul(a, b, chip=m, device=device, **scales)


def speed(compute, device, n, samples):
    """Products a second."""
    return rates({"": lambda: compute(device)}, n**3, samples, time.perf_counter)[""] * 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--size", type=int, default=4096, help="n on the GPU")
    parser.add_argument("--small", type=int, default=512, help="n on the CPU")
    parser.add_argument("--samples", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", EvidenceWarning)
    try:
        name = driver.device().name
    except UnavailableError as error:
        print(f"skipped: {error}")
        return
    print(f"{f'M products a second, GPU: {name}':75} {'GPU':>8} {'CPU':>8} bits")
    for chip, instruction in MODELS:
        m = get_model(chip, instruction)
        small = job(m, options.small)
        same = "same" if np.array_equal(small("cuda"), small(None)) else "DIFFERENT"
        gpu = speed(job(m, options.size), "cuda", options.size, options.samples)
        cpu = speed(small, None, options.small, options.samples)
        print(f"{chip:7}{instruction:68} {gpu / 1e6:8.0f} {cpu / 1e6:8.0f} {same}", flush=True)


if __name__ == "__main__":
    main()
