"""Optimizer steps beside torch's, as multiples of its time: ``python -m tests.benchmarks.bench_optimizers``.

One thread; medians of interleaved samples of the thread's CPU time. Then training steps of the network on the digits.
Nothing here asserts a time.
"""

from __future__ import annotations

import argparse

import numpy as np

from numsim.optimizers import SGD, Adam, AdamW
from numsim.optimizers.mlp import train_digits
from tests.benchmarks.measure import medians, one_thread

TORCH = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
KINDS = [(SGD, {}), (SGD, {"momentum": 0.9}), (Adam, {}), (AdamW, {})]


def beside_torch(kind, options, name, size, count):
    import torch

    torch.set_num_threads(1)
    normal = np.random.default_rng(0).standard_normal((2, size), dtype=np.float32)
    w, g = (torch.from_numpy(x).to(getattr(torch, TORCH[name])) for x in normal)
    parameter = torch.nn.Parameter(w)
    parameter.grad = g
    theirs = getattr(torch.optim, kind.__name__)([parameter], lr=1e-3, foreach=False, **options)
    ours = kind(1e-3, format=name, **options)
    state, gradient = ours.initial(w.float().numpy()), g.float().numpy()
    return medians({"torch": theirs.step, "numsim": lambda: ours.step(state, gradient)}, count).values()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=20, help="log2 of the number of weights")
    parser.add_argument("--samples", type=int, default=7)
    options = parser.parse_args()
    one_thread()
    for kind, settings in KINDS:
        for name in TORCH:
            torch_time, own = beside_torch(kind, settings, name, 1 << options.size, options.samples)
            rate = (1 << options.size) / own / 1e6
            label = f"{kind.__name__} {settings or ''}"
            print(f"{label:24} {name:5} {own / torch_time:6.1f} times torch's, {rate:6.1f} M weights a second")
    for update in ("plain", "master", "stochastic", "kahan"):
        adam = AdamW(1e-3, format="bf16", update=update)
        (spent,) = medians({"": lambda adam=adam: train_digits(adam, steps=50)}, 3).values()
        print(f"digits, bf16 {update:11} {50 / spent:6.0f} training steps a second")


if __name__ == "__main__":
    main()
