"""What the benchmarks share: samples taken in turn, so that whatever else the machine does hits all jobs alike."""

from __future__ import annotations

import os
import statistics
import sys
import time


def one_thread():
    """numsim, NumPy's BLAS and torch (where it has been imported) on one thread, in this process."""
    os.environ["NUMSIM_THREADS"] = "1"
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    try:
        import threadpoolctl
    except ImportError:
        print("threadpoolctl is not installed: NumPy's matrix products take as many threads as they like")
    else:
        threadpoolctl.threadpool_limits(1)


def sample(jobs, samples, *clocks):
    """Seconds of each job by each clock, sampled in turn; the first round compiles, and meets cold pages."""
    times = {name: [] for name in jobs}
    for round_ in range(samples + 1):
        for name, job in jobs.items():
            start = [clock() for clock in clocks]
            job()
            if round_:
                times[name].append([clock() - begun for clock, begun in zip(clocks, start, strict=True)])
    return times


def medians(jobs, samples, clock=time.thread_time):
    """Median seconds of each job, by default of this thread's CPU time."""
    return {name: statistics.median(t for (t,) in taken) for name, taken in sample(jobs, samples, clock).items()}


def rates(jobs, count, samples, clock=time.thread_time):
    """Billions of ``count`` things a second."""
    return {name: count / seconds / 1e9 for name, seconds in medians(jobs, samples, clock).items()}
