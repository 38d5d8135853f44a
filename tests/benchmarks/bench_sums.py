"""Sums beside their peers, in one run: ``python -m tests.benchmarks.bench_sums``.

One sum of 2^22 terms on one thread, codes in, code out, in millions of terms a second: every order of numsim in its
format, ``np.sum`` in the same type (NumPy adds float16 in float32 registers), and ``math.fsum`` of the terms as a list,
which is what exact sums are otherwise computed with. All are sampled in turn; each cell is the median, and how many
times ``np.sum``'s speed. The last column is the error in units of the exact sum's last place, of the same terms.
"""

from __future__ import annotations

import argparse
import math
import time

import ml_dtypes
import numpy as np

import numsim
from numsim import kernels
from numsim.accumulate import ORDERS
from tests.benchmarks.bench_matmul import ML_DTYPES
from tests.benchmarks.measure import medians, one_thread


def jobs(name, n):
    """Rows of the table, each with a job that gives the sum as a float."""
    rng = np.random.default_rng(1)
    x = numsim.array(rng.random(n) / 64, name)
    typed = x.values if name == "fp64" else x.codes.view(getattr(ml_dtypes, ML_DTYPES[name], ML_DTYPES[name]))
    terms = x.values.tolist()
    rows = {"np.sum": lambda: float(np.sum(typed)), "math.fsum of a list": lambda: math.fsum(terms)}
    for order in ("exact", *(o for o in ORDERS if o != "exact")):
        rows[f"numsim {order}"] = lambda order=order: float(numsim.sum(x, order=order))
    rows["numsim stochastic"] = lambda: float(numsim.sum(x, rounding="stochastic", seed=1))
    if name == "fp64":  # 32 random bits beyond 53 fit no float64: the reference computes, a thousand times slower
        del rows["numsim stochastic"]
    return rows, float(numsim.ulp(numsim.sum(x, order="exact").codes, name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--formats", nargs="*", default=["fp32", "fp16", "bf16", "fp64"])
    parser.add_argument("--terms", type=int, default=1 << 22)
    parser.add_argument("--samples", type=int, default=5)
    options = parser.parse_args()
    one_thread()
    with kernels.force("kernel"):
        for name in options.formats:
            rows, unit = jobs(name, options.terms)
            if name == "fp32":
                del rows["numsim stochastic"]  # as for fp64
            seconds, right = medians(rows, options.samples, time.perf_counter), rows["math.fsum of a list"]()
            print(f"\n{f'one sum of {options.terms} terms in {name}':40}  M terms/s   times np.sum   error in ulp")
            for row, t in seconds.items():
                speed, times = options.terms / t / 1e6, seconds["np.sum"] / t
                print(f"{row:40}  {speed:9.1f}   {times:12.2f}   {(rows[row]() - right) / unit:12.1f}")


if __name__ == "__main__":
    main()
