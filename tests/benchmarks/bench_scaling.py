"""Updates of a loss scale a second, beside torch's own: ``python -m tests.benchmarks.bench_scaling``.

One long string of overflows (one step in 200), one thread. "batch" is ``replay_scales`` on the kernel, "reference" one
``update`` after the other, "trace" ``replay`` with its events; "torch" calls ``_amp_update_scale_`` for each step, as
training does. Medians of five; nothing here asserts a time.
"""

from __future__ import annotations

import time

import numpy as np

from numsim import kernels
from numsim.scaling import get_scaler, list_scalers, playback, replay, replay_scales
from tests.benchmarks.measure import one_thread, rates


def rate(call, steps, samples=5):
    """Millions of steps a second."""
    return rates({"": call}, steps, samples, time.perf_counter)[""] * 1e3


def torch_updates(found):
    import torch

    torch.set_num_threads(1)
    flags = [torch.tensor(float(f)) for f in found]

    def run():
        scale, tracker = torch.tensor(65536.0), torch.tensor(0, dtype=torch.int32)
        for flag in flags:
            torch._amp_update_scale_(scale, tracker, flag, 2.0, 0.5, 2000)

    return run


def main():
    one_thread()
    found = np.random.default_rng(4).random((100, 10_000)) < 1 / 200
    short = found[:1]
    print(f"{'scaler':20} {'batch':>9} {'reference':>9} {'trace':>9}    million updates a second")
    for name in list_scalers():
        scaler = get_scaler(name)
        if name == "openseq2seq-logmax":
            few = np.full((1, 10_000), 0.01)
            print(f"{name:20} {'-':>9} {rate(lambda s=scaler, f=few: playback.scales(s, f), few.size):9.3f}")
            continue
        with kernels.force("kernel"):
            batch = rate(lambda s=scaler: replay_scales(s, found), found.size)
        reference = rate(lambda s=scaler: playback.scales(s, short), short.size)
        trace = rate(lambda s=scaler: replay(s, short[0]), short.size)
        print(f"{name:20} {batch:9.1f} {reference:9.3f} {trace:9.3f}")
    try:
        print(f"{'torch itself':20} {rate(torch_updates(short[0]), short.size):9.3f}")
    except ImportError:
        print("torch itself         not installed")


if __name__ == "__main__":
    main()
