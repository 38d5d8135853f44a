"""numsim beside its peers, in one run: ``python -m tests.benchmarks.table`` writes ``docs/speed.md``.

Speed: medians of CPU time, all libraries of a table sampled in turn on one thread. Bits: what each library makes of a
smaller set of hard inputs (``hard`` and the like below), compared with numsim's results. Peers that are not installed
are left out. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import datetime
import os
import textwrap
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import numsim
from numsim import host, kernels
from tests.benchmarks.measure import medians, one_thread, sample
from tests.benchmarks.peers import libraries, versions

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
SLOW = {"gfloat": 1 << 16, "pychop": 1 << 17, "APyTypes": 1 << 20}  # numbers to time; for the rest, see --log2
HASH = "SHA-256, in two halves"
DTYPES = {"float32": np.float32, "float64": np.float64}


class Table(NamedTuple):
    """One table: the same work for each of some formats, by all who offer it."""

    title: str
    text: str
    cases: tuple[str, ...]
    inputs: Callable[[str, int, Any], tuple[Any, ...]]  # of a case, so many numbers to time, from a generator
    hard: Callable[[str, Any], tuple[Any, ...]]  # of a case, to compare bits
    work: str  # what ``peers.py`` calls it


# --- what goes in -----------------------------------------------------------------------------------------------------
def normal(dtype):
    return lambda case, count, rng: (rng.standard_normal(count).astype(DTYPES[dtype]),)


def hard(dtype):
    """Numbers of the format, places between two neighbours (ties among them), each and one ulp to its sides."""

    def numbers(case, rng):
        f, kind = numsim.get_format(case), DTYPES[dtype]
        code = rng.integers(0, f.max_code + 1, 1 << 14).astype(f"u{f.code_bytes}")
        code[:64] = f.max_code - np.arange(64) % 3
        code[64:128] = np.arange(64) % 3
        low = numsim.decode(code, f)
        at = np.minimum(code, f.max_code - 1)  # the grid goes on beyond the largest number
        unit = numsim.decode(at + 1, f) - numsim.decode(at, f)
        x = (low + unit * rng.choice([0, 0.25, 0.5, 0.5, 0.75], code.size)).astype(kind)
        x = np.concatenate([x, np.nextafter(x, kind(np.inf)), np.nextafter(x, kind(0))])
        special = np.array([0.0, np.inf, np.nan, 1e38, 1e-40, 4 * float(f.max), float(f.least) / 4], kind)
        x = np.concatenate([x, special])
        return (np.where(rng.integers(0, 2, x.size) == 1, x, -x),)

    return numbers


def codes(case, count, rng):
    """Codes of N(0, 1), one array for each format that the case names."""
    names = case.split(" to ")[:1] * (1 if " to " in case else 2)
    return tuple(numsim.encode(rng.standard_normal(count).astype(np.float32), name) for name in names)


def all_codes(case, rng):
    f = numsim.get_format(case.split(" to ")[0])
    return (np.arange(f.codes, dtype=f"u{f.code_bytes}"),)


def any_pairs(case, rng):
    """All pairs of 8 bits; 2^18 random ones, half of them close in size, for 16."""
    f = numsim.get_format(case)
    if f.bits <= 8:
        return tuple(x.reshape(-1) for x in np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2))
    a, b = rng.integers(0, f.codes, (2, 1 << 18)).astype(np.uint16)
    b[1 << 17 :] = (a[1 << 17 :].astype(np.int32) + rng.integers(-2000, 2000, 1 << 17)).clip(0, f.codes - 1)
    return a, b


def rows(case, count, rng):
    side = int(count**0.5)
    return (numsim.encode(rng.random((side, side)) / 16, case),)


def matrices(case, count, rng):
    return tuple(numsim.encode(rng.standard_normal((128, 128)) / 8, case) for _ in range(2))


TABLES = (
    Table("float32 to a format", "Nearest-even, codes or values out.", ("bf16", "fp16", "e4m3", "e5m2"),
          normal("float32"), hard("float32"), "round"),
    Table("float64 to a format", "The same from float64, which is rounded once by some and twice by others.",
          ("bf16", "fp16", "e4m3", "e5m2"), normal("float64"), hard("float64"), "round"),
    Table("Stochastic rounding", "float32 in. gfloat takes the random bits from its caller, here numsim's, 16 a number;"
          " APyTypes and pychop draw their own.", ("bf16", "fp16", "e5m2"), normal("float32"), hard("float32"),
          "stochastic"),
    Table("Codes to float64", "", ("bf16", "fp16", "e4m3"), codes, all_codes, "decode"),
    Table("One format to another", "Codes in, codes out.", ("bf16 to fp16", "fp16 to bf16", "bf16 to e4m3",
          "e4m3 to bf16", "e4m3 to e5m2"), codes, all_codes, "convert"),
    Table("Addition", "Codes in, codes out, nearest-even; numsim also in other modes.",
          ("bf16", "fp16", "e4m3", "e5m2"), codes, any_pairs, "add"),
    Table("Multiplication", "", ("bf16", "fp16", "e4m3", "e5m2"), codes, any_pairs, "mul"),
    Table("exp", "numsim's is correctly rounded.", ("bf16", "fp16", "e4m3"), codes, all_codes, "exp"),
    Table("Sums along rows", "In index order, a rounding after each addition, unless the name says otherwise. Billions"
          " of additions a second.", ("bf16", "fp16", "fp32"), rows, lambda case, rng: rows(case, 1 << 16, rng), "sum"),
    Table("Exact sums along rows", "One rounding at the end.", ("fp16", "fp64"), rows,
          lambda case, rng: rows(case, 1 << 16, rng), "exact_sum"),
    Table("Matrix products", "128 x 128 x 128, a rounding after each product and each sum, unless the name says"
          " otherwise. Billions of multiply-adds a second.", ("bf16", "fp16", "e4m3", "e5m2"), matrices,
          lambda case, rng: matrices(case, 0, rng), "matmul"),
)  # fmt: skip


# --- measuring --------------------------------------------------------------------------------------------------------
def offers(table, case, data):
    """By name: a job, and how its result becomes float64 values."""
    found = {}
    for library, peer in libraries().items():
        if hasattr(peer, table.work):
            for name, job, values in getattr(peer, table.work)(case, *data):
                found[f"{library} {name}".strip()] = library, job, values
    return found


def speeds(table, case, count, samples, seed):
    """Billions of results a second, and what a copy does."""
    full = table.inputs(case, count, np.random.default_rng(seed))
    jobs, counts = {}, {}
    for library in libraries():
        few = min(count, SLOW.get(library, count))
        data = full if few == count else table.inputs(case, few, np.random.default_rng(seed))
        for name, (owner, job, _) in offers(table, case, data).items():
            if owner == library:
                jobs[name], counts[name] = job, results(table, data)
    source, out = full[0], np.empty_like(full[0])
    jobs["copy"], counts["copy"] = lambda: np.copyto(out, source), source.size
    return {name: counts[name] / t / 1e9 for name, t in medians(jobs, samples, time.process_time).items()}


def results(table, data):
    return data[0].shape[0] ** 3 if table.work == "matmul" else data[0].size


def differences(table, case, seed):
    """By name: of how many results, how many differ from numsim's first, and the first that does."""
    data = table.hard(case, np.random.default_rng(seed))
    ours, found = None, {}
    for name, (_, job, values) in offers(table, case, data).items():
        got = np.asarray(values(job()), np.float64).reshape(-1) if values else None
        ours = got if ours is None else ours
        if got is None or name.startswith("numsim"):
            continue
        same = (got.view(np.uint64) == ours.view(np.uint64)) | (np.isnan(got) & np.isnan(ours))
        first = np.flatnonzero(~same)[:1]
        found[name] = same.size, int(np.count_nonzero(~same)), [example(data, i, got[i], ours[i]) for i in first]
    return found


def example(data, i, got, ours):
    if data[0].size <= i or data[0].ndim > 1:
        return f"{got:.8g}, numsim {ours:.8g}"
    words = ", ".join(x[i].item().hex() if x.dtype.kind == "f" else f"{int(x[i]):#06x}" for x in data)
    return f"{words} gives {got:.8g}, numsim {ours:.8g}"


# --- the page ---------------------------------------------------------------------------------------------------------
def wrapped(text, indent=""):
    return textwrap.wrap(text, 80, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def short(x, digits=2):
    """Some digits and no exponent: 0.0078, 1.2, 110, 2000."""
    return f"{float(f'{x:.{digits}g}'):.12g}"


def lines(table, count, samples, faster):
    """The table and what is to be said of differences; who is faster is added to a list."""
    yield from (f"## {table.title}", "")
    if table.text:
        yield from (*wrapped(table.text), "")
    yield "| format | who | G/s | of numsim | copies | other bits |"
    yield "|---|---|---|---|---|---|"
    notes = {}
    for number, case in enumerate(table.cases):
        rate = speeds(table, case, count, samples, number)
        different = differences(table, case, number)
        copy, ours = rate.pop("copy"), next(iter(rate.values()))
        for name, r in rate.items():
            total, bad, examples = different.get(name, (0, 0, []))
            bits = "" if name.startswith("numsim") else "?" if not total else f"{bad} of {total}" if bad else "none"
            copies = "" if table.work == "matmul" else short(copy / r)
            yield f"| {case} | {name} | {short(r, 3)} | {short(r / ours)} | {copies} | {bits} |"
            if examples:
                notes.setdefault(name, []).append(f"{case}: {examples[0]}")
            if r > 1.1 * ours and not name.startswith("numsim"):
                but = f", {bad} of {total} differ" if bad else ""
                faster.append(f"{table.title}, {case}: {name}, {r / ours:.1f} times{but}")
        if table.work != "matmul":
            yield f"| {case} | (copy) | {short(copy, 3)} | {short(copy / ours)} | 1 | |"
    yield ""
    for name, seen in notes.items():
        reasons = getattr(libraries()[name.split()[0]], "REASONS", {})
        yield from wrapped(f"* {name}: {reasons.get(table.work, 'no reason is known')}. {'; '.join(seen)}.", "  ")
    if notes:
        yield ""


def threads(count, samples):
    """numsim's own work on one thread and on two, by the clock on the wall."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal(count).astype(np.float32)
    a, b = (numsim.array(v, "bf16") for v in (x, x[::-1].copy()))
    many = numsim.array(rng.random((1024, count >> 10)), "fp64")
    m = numsim.array(rng.standard_normal((256, 256)) / 16, "fp16")
    block = bytes(1 << 24)
    jobs = {
        "float32 to bf16 (memory)": lambda: numsim.encode(x, "bf16"),
        "stochastic, float32 to fp16": lambda: numsim.encode(x, "fp16", rounding="stochastic", seed=1),
        "bf16 addition": lambda: numsim.add(a, b),
        "bf16 addition, rounding up": lambda: numsim.add(a, b, rounding="up"),
        "exact sums, 1024 rows": lambda: numsim.sum(many, axis=1, order="exact"),
        "matrix product fp16, 256^3": lambda: m @ m,
    }
    best = {}
    with ThreadPoolExecutor(2) as pool:
        for n in (1, 2):
            os.environ["NUMSIM_THREADS"] = str(n)
            halves = [block[i::n] for i in range(n)]
            jobs[HASH] = lambda halves=halves: list(pool.map(lambda half: sha256(half).digest(), halves))
            taken = sample(jobs, samples, time.perf_counter)
            best[n] = {name: min(t for (t,) in times) for name, times in taken.items()}
    yield from ("## Two threads", "")
    yield from wrapped(
        "The shortest of some samples by the clock on the wall. The last row leaves numsim and memory out: what the "
        "machine had left for a second thread."
    )
    yield from ("", "| work | ms, one thread | ms, two | times |", "|---|---|---|---|")
    for name, one in best[1].items():
        yield f"| {name} | {one * 1e3:.1f} | {best[2][name] * 1e3:.1f} | {one / best[2][name]:.2f} |"
    yield ""


def page(count, samples):
    yield from ("# Speed", "")
    yield from wrapped("Written by one command, in one run: `python -m tests.benchmarks.table`; other machines differ. "
                       'What is not installed is left out: `pip install -e ".[bench,torch]"`.')  # fmt: skip
    yield ""
    yield from wrapped(
        f"{datetime.date.today()}, {host.cpu_model()}, one thread; {os.cpu_count()} cores, with "
        f"{os.getloadavg()[0]:.1f} programs at work when it began. {', '.join(versions())}."
    )
    yield ""
    for text in (
        "* **G/s**: billions of results a second of CPU time: medians, sampled in turn. Results are new arrays, but "
        "for `out=`. Inputs are N(0, 1) unless a table says otherwise.",
        "* **of numsim**: how many times the speed of the first row for the format.",
        "* **copies**: the time in copies, by NumPy, of the first operand into memory at hand. "
        f"{count} numbers; the slowest libraries get fewer.",
        "* **other bits**: results that differ from numsim's on hard inputs: ties and one ulp beside them, the least "
        'and the largest numbers, zeros, infinities, NaN; or all codes, or all pairs of 8 bits. NaNs are alike. "?": '
        "random numbers of their own.",
    ):
        yield from wrapped(text, "  ")
    yield ""
    faster = []
    for table in TABLES:
        yield from lines(table, count, samples, faster)
    yield from threads(count, samples)
    yield from ("## Who is faster than numsim", "")
    for line in faster:
        yield from wrapped(f"* {line}", "  ")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log2", type=int, default=22, help="log2 of how many numbers to time (default 22)")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    if find_spec("torch"):
        import torch  # noqa: F401
    one_thread()
    warnings.simplefilter("ignore")
    with kernels.force("kernel"), np.errstate(all="ignore"):
        text = []
        for line in page(1 << options.log2, options.samples):
            print(line, flush=True)
            text.append(line)
    options.out.write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
