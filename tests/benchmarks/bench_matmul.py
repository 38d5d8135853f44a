"""Sums and products beside their peers, in one run: ``python -m tests.benchmarks.bench_matmul``.

A 256^3 matrix product with a rounding after each product and each sum, in millions of multiply-adds a second, on one
thread and on two; then sums along rows and elementwise operations. Codes in, codes out. Peers do the rank-1 loop
C += a_k b_k in their own typed arrays, which rounds at the same places; they and numsim are sampled in turn, so that
whatever else the machine does hits all of them alike. Each cell: the median, and how many times the first row's speed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time

import ml_dtypes
import numpy as np

import numsim
from numsim import kernels
from tests.benchmarks.measure import medians

ML_DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "fp16": "float16", "fp32": "float32"}
TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def torch_or_none(threads):
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    return torch


def typed(name, x):
    """numpy's or ml_dtypes' array with numsim's codes."""
    return x.codes.view(getattr(ml_dtypes, ML_DTYPES[name], ML_DTYPES[name]))


def rank_one(a, b):
    """Row times column of each k, added up: two roundings a term."""
    out = a[:, :1] * b[:1, :]
    for k in range(1, a.shape[1]):
        out = out + a[:, k : k + 1] * b[k : k + 1, :]
    return out


def rank_one_in_place(torch, a, b):
    """The same without new arrays, as a torch user would write it for speed."""
    out = a[:, :1] * b[:1, :]
    product = torch.empty_like(out)
    for k in range(1, a.shape[1]):
        torch.mul(a[:, k : k + 1], b[k : k + 1, :], out=product)
        out += product
    return out


def products(name, n, threads):
    """Jobs for one format: all rounded to it, by row of the table."""
    rng = np.random.default_rng(1)
    a, b = (numsim.array(rng.standard_normal((n, n)).astype(np.float32) / 8, name) for _ in range(2))
    rows = {"numsim a @ b": lambda: a @ b}
    if name != "fp32":
        rows["numsim exact products, FP32"] = lambda: numsim.matmul(a, b, product="exact", accumulator="fp32")
    rows["numsim exact products (fused)"] = lambda: numsim.matmul(a, b, product="exact")
    rows["numsim up"] = lambda: numsim.matmul(a, b, rounding="up")
    if name != "fp32":  # 32 random bits beyond 24 do not fit float64: the reference computes FP32
        rows["numsim stochastic"] = lambda: numsim.matmul(a, b, rounding="stochastic", seed=1)
    rows["numsim Kahan"] = lambda: numsim.matmul(a, b, order="kahan")
    if threads == 1:
        x, y = typed(name, a), typed(name, b)
        rows[f"{'numpy' if name in ('fp16', 'fp32') else 'ml_dtypes'} rank-1 loop"] = lambda: rank_one(x, y)
    if name in TORCH and (torch := torch_or_none(threads)):
        u, v = (torch.from_numpy(m.values).to(getattr(torch, TORCH[name])) for m in (a, b))
        rows["torch rank-1 loop, in place"] = lambda: rank_one_in_place(torch, u, v)
    return rows, n**3


def sums(name, n, threads):
    """Sums along the rows of n x n^2 / 16: a loop over columns is what NumPy offers."""
    rng = np.random.default_rng(2)
    x = numsim.array(rng.standard_normal((n, n * n // 16)).astype(np.float32), name)
    rows = {
        "numsim sum": lambda: numsim.sum(x, axis=1),
        "numsim sum in FP32": lambda: numsim.sum(x, axis=1, accumulator="fp32"),
        "numsim pairwise": lambda: numsim.sum(x, axis=1, order="pairwise"),
        "numsim Kahan": lambda: numsim.sum(x, axis=1, order="kahan"),
    }
    if name != "fp32":
        rows["numsim stochastic"] = lambda: numsim.sum(x, axis=1, rounding="stochastic", seed=1)
    if threads == 1:
        y = typed(name, x)
        rows["np.add.accumulate"] = lambda: np.add.accumulate(y, axis=1)
    return rows, x.size


def elementwise(name, n, threads):
    """n^2 16 pairs, close enough in size to round and far enough from the limits."""
    rng = np.random.default_rng(3)
    x, y = (numsim.array(rng.standard_normal(16 * n * n).astype(np.float32), name) for _ in range(2))
    rows = {
        "numsim add": lambda: x + y,
        "numsim mul": lambda: x * y,
        "numsim div": lambda: x / y,
        "numsim sqrt": lambda: numsim.sqrt(x),
        "numsim fma": lambda: numsim.fma(x, y, x),
    }
    if threads == 1:
        u, v = typed(name, x), typed(name, y)
        peer = "numpy" if name in ("fp16", "fp32") else "ml_dtypes"
        rows |= {f"{peer} add": lambda: u + v, f"{peer} mul": lambda: u * v, f"{peer} div": lambda: u / v}
    return rows, x.size


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--formats", nargs="*", default=["fp16", "bf16", "e4m3", "fp32"])
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--parts", nargs="*", default=["products", "sums", "elementwise"])
    options = parser.parse_args()
    units = {"products": "M multiply-adds/s", "sums": "M additions/s", "elementwise": "M operations/s"}
    with kernels.force("kernel"), np.errstate(all="ignore"), contextlib.suppress(KeyboardInterrupt):
        for part in options.parts:
            for name in options.formats:
                table = {}
                for threads in (1, 2):
                    os.environ["NUMSIM_THREADS"] = str(threads)
                    rows, work = globals()[part](name, options.size, threads)
                    seconds = medians(rows, options.samples, time.perf_counter)
                    first = next(iter(seconds.values()))
                    for row, t in seconds.items():
                        table.setdefault(row, {})[threads] = f"{work / t / 1e6:9.1f} (x {first / t:5.2f})"
                width = max(map(len, table))
                title = f"{part} {name}, {units[part]}"
                print(f"\n{title:{max(width, len(title))}}   one thread          two threads")
                for row, cells in table.items():
                    print(f"{row:{max(width, len(title))}}   " + "   ".join(cells.get(t, "-") for t in (1, 2)))


if __name__ == "__main__":
    main()
