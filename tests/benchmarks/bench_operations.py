"""Elementwise operations and conversions on codes, one thread: ``python -m tests.benchmarks.bench_operations``.

Numbers are billions of results a second: medians of interleaved samples of the thread's CPU time, so that what else the
machine does hits all of them alike. ``copyto`` copies codes of the format to codes of the result's size: what memory
allows. Peers compute the same bits, but for ml_dtypes' NaN. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse

import ml_dtypes
import numpy as np

import numsim
from numsim import arithmetic, kernels
from numsim.rounding import Policy
from tests.benchmarks.measure import one_thread, rates

PEERS = {"e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "bf16": ml_dtypes.bfloat16,
         "fp16": np.float16, "fp32": np.float32}  # fmt: skip
UFUNCS = {"add": np.add, "mul": np.multiply, "div": np.divide}


def operations(name, count, rng):
    x, y = (numsim.array(rng.standard_normal(count).astype(np.float32), name) for _ in range(2))
    jobs = {op: lambda op=op: getattr(numsim, op)(x, y) for op in (*UFUNCS, "remainder", "minimum")}
    jobs["add, up"] = lambda: numsim.add(x, y, rounding="up")
    floats = [a.codes.view(PEERS[name]) for a in (x, y)]
    for op, ufunc in UFUNCS.items():
        jobs[f"peer {op}"] = lambda ufunc=ufunc: ufunc(*floats)
    out = np.zeros_like(x.codes)
    jobs["copyto"] = lambda: np.copyto(out, x.codes)
    return jobs


def conversions(source, target, count, rng):
    start, end = numsim.get_format(source), numsim.get_format(target)
    codes = numsim.array(rng.standard_normal(count).astype(np.float32), source).codes
    out = np.zeros(count, f"u{end.code_bytes}")
    floats = codes.view(PEERS[source])
    return {
        "numsim": lambda: arithmetic.convert(codes, start, end, Policy()),
        "peer": lambda: floats.astype(PEERS[target]),
        "copyto": lambda: np.copyto(out, codes, casting="unsafe"),  # the same bytes in, the same out
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log2", type=int, default=22, help="log2 of how many numbers (default 22)")
    parser.add_argument("--samples", type=int, default=7)
    options = parser.parse_args()
    one_thread()
    count, rng = 1 << options.log2, np.random.default_rng(0)
    write = print
    with kernels.force("kernel"), np.errstate(all="ignore"):
        for name in PEERS:
            row = rates(operations(name, count, rng), count, options.samples)
            write(f"{name:7}", "  ".join(f"{job} {rate:.3f}" for job, rate in row.items()))
        for source in PEERS:
            for target in PEERS:
                row = rates(conversions(source, target, count, rng), count, options.samples)
                write(f"{source:>7} to {target:7}", "  ".join(f"{job} {rate:.3f}" for job, rate in row.items()))


if __name__ == "__main__":
    main()
