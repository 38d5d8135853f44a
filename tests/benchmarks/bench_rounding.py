"""Rounding beside its peers, as multiples of copying the same array: ``python -m tests.benchmarks.bench_rounding``.

One thread; medians of interleaved samples of the thread's CPU time, so that what else the machine does hits all of them
alike. Each cell: N(0,1) data / data with standard deviation 2^emin (two thirds of it subnormal in the format). Before
that, what the first call of a fresh process costs. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np

import numsim
from numsim import kernels
from tests.benchmarks.measure import medians, one_thread

FORMATS = ("bf16", "fp16", "e4m3", "e5m2", "e5m7", "e3m4", "e2m1", "e8m0", "ue4m3")
ML_DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e3m4": "float8_e3m4",
             "e2m1": "float4_e2m1fn", "e8m0": "float8_e8m0fnu"}  # fmt: skip
TORCH = {"bf16": "bfloat16", "fp16": "float16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}

FIRST = """
import time
import numpy as np, numsim
x = np.ones(100_000, np.float32)
loaded = time.process_time()
numsim.round_to(x, "e4m3")
print(time.process_time() - loaded, time.process_time())
"""


def jobs(name, x, out):
    """What to time, by row."""
    stochastic = {"rounding": "stochastic", "seed": 1}
    own = x.copy()
    rows = {
        "numsim round_to out=": lambda: numsim.round_to(x, name, out=out),
        "numsim round_to out=x": lambda: numsim.round_to(own, name, out=own),
        "numsim encode": lambda: numsim.encode(x, name),
        "numsim stochastic out=": lambda: numsim.round_to(x, name, out=out, **stochastic),
        "numsim stochastic codes": lambda: numsim.encode(x, name, **stochastic),
        "numsim toward-zero out=": lambda: numsim.round_to(x, name, rounding="toward-zero", out=out),
        "numsim round_to": lambda: numsim.round_to(x, name),
        "numsim events out=": lambda: numsim.round_to(x, name, out=out, events=numsim.Events()),
    }
    if name in ML_DTYPES:
        import ml_dtypes

        dtype = getattr(ml_dtypes, ML_DTYPES[name])
        rows["ml_dtypes codes"] = lambda: x.astype(dtype)
    if name == "fp16":
        rows["numpy codes"] = lambda: x.astype(np.float16)
    if name in TORCH and (torch := sys.modules.get("torch")):
        tensor = torch.from_numpy(x)
        rows["torch codes"] = lambda: tensor.to(getattr(torch, TORCH[name]))
    return rows


def ratios(name, x, samples):
    """Median time of each job over the median time of the copy, sampled in turn."""
    out = np.empty_like(x)
    rows = {"copy": lambda: np.copyto(out, x), **jobs(name, x, out)}
    times = medians(rows, samples)
    copy = times["copy"]
    return {row: t / copy for row, t in times.items() if row != "copy"}, x.size / copy


def fresh_process(folder):
    run = [sys.executable, "-c", FIRST]
    done = subprocess.run(
        run, env={**os.environ, "NUMSIM_CACHE_DIR": folder}, capture_output=True, text=True, check=True
    )
    return "{:.2f} s of CPU time the call, {:.2f} s the whole process".format(*map(float, done.stdout.split()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument("--size", type=int, default=24, help="log2 of the number of values")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--torch", action="store_true", help="beside torch too (imported only then)")
    options = parser.parse_args()
    if options.torch:
        import torch  # noqa: F401
    one_thread()
    normal = np.random.default_rng(0).standard_normal(1 << options.size, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        print(f"first call, nothing compiled: {fresh_process(folder)}")
        print(f"first call, all compiled:     {fresh_process(folder)}")
    table = {}
    with kernels.force("kernel"):
        for name in options.formats:
            emin = numsim.get_format(name).emin
            x = np.abs(normal) if name in ("e8m0", "ue4m3") else normal
            (first, rate), (second, _) = ratios(name, x, options.samples), ratios(
                name, x * np.float32(2.0**emin), options.samples)  # fmt: skip
            print(f"{name}: np.copyto moves {rate / 1e9:.2f} G values a second")
            for row in first:
                table.setdefault(row, {})[name] = f"{first[row]:.2f} / {second[row]:.2f}"
    width = max(map(len, table))
    print(f"{'':{width}}" + "".join(f"{name:>15}" for name in options.formats))
    for row, cells in table.items():
        print(f"{row:{width}}" + "".join(f"{cells.get(name, '-'):>15}" for name in options.formats))


if __name__ == "__main__":
    main()
