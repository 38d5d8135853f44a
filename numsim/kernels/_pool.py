"""Threads for kernels: a serial kernel runs over chunks of its outputs, so the result never depends on their number."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from numsim.host import flushes_subnormals, rounds_to_nearest

LARGE = 1 << 17  # fewer outputs than this are done before a second thread has woken up

_pool: ThreadPoolExecutor | None = None
_size = 0
_lock = threading.Lock()
_here = threading.local()


def threads() -> int:
    """How many threads kernels use: NUMSIM_THREADS, or the cores that this process may use."""
    chosen = os.environ.get("NUMSIM_THREADS", "")
    if chosen.isdecimal() and len(chosen) <= 4 and int(chosen):
        return int(chosen)
    if hasattr(os, "sched_getaffinity"):  # Linux: containers and batch systems give fewer cores than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def over_chunks(
    count: int, work: Callable[[int, int], None], *, chunk: int = 0, large: int = LARGE, number: int | None = None
) -> None:
    """Call ``work(first, end)`` for chunks that cover ``range(count)``, on all threads where ``count`` is large.

    ``chunk`` outputs go together; 0 stands for four chunks a thread, so that a thread that is held up holds up little.
    ``number`` of threads: None for ``threads()``.
    ``work`` must write only its own outputs, and release the GIL for most of its time.
    """
    number = number or threads()
    if count <= large or number == 1 or getattr(_here, "working", False):
        work(0, count)  # (a worker must not wait for workers)
        return
    chunk = chunk or max(large, -(-count // (4 * number)))

    mode = flushes_subnormals(), rounds_to_nearest()

    def one(first: int) -> int | None:
        if (
            flushes_subnormals(),
            rounds_to_nearest(),
        ) != mode:  # a thread keeps the mode of the one that made it: leave it to the caller
            return first
        _here.working = True
        try:
            work(first, min(first + chunk, count))
        finally:
            _here.working = False
        return None

    for left in _executor(number).map(one, range(0, count, chunk)):  # (an exception of a worker is raised here)
        if left is not None:
            work(left, min(left + chunk, count))


def _executor(number: int) -> ThreadPoolExecutor:
    global _pool, _size
    with _lock:
        if _pool is None or _size != number:  # the threads of an old pool end when nobody refers to it any more
            _pool, _size = ThreadPoolExecutor(number, thread_name_prefix="numsim"), number
        return _pool


def _after_fork() -> None:
    """A forked child has the pool object but none of its threads."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()
    _here.working = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
