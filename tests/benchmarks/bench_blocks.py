"""Block formats beside copying the same array: ``python -m tests.benchmarks.bench_blocks``.

Both on as many threads as numsim uses. Interleaved samples, and the shortest of each: other programs only add to them,
much to wall time and little to CPU time. A copy is NumPy's, of all numbers in as many parts as there are threads.
``--rules`` shows every rule whose scales a format can hold. ``--peers``, where installed: gfloat (rounding alone),
torchao, and torch's cast to the type of the elements, which has no scales. Then every operand of every recipe, and four
over six. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec

import numpy as np

from numsim import kernels
from numsim.blocks import RULES, BlockFormat, four_over_six, get_block_format, list_block_formats, quantize
from numsim.formats import Format
from numsim.kernels import _pool
from numsim.scaling import get_recipe, list_recipes, quantize_operand
from numsim.scaling.recipes import GEMMS
from tests.benchmarks.measure import sample

TORCH = {"e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2"}
TORCHAO = {"e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m1": "float4_e2m1fn_x2"}


def jobs(format: BlockFormat, x, every_rule, with_peers):
    """What to time, by row."""
    rules = [name for name, rule in RULES.items() if rule.scale == format.scale] if every_rule else [format.rule]
    rows = {f"{rule:13}nearest-even": partial(quantize, x, format, rule=rule) for rule in rules}
    if isinstance(format.element, Format):
        rows[f"{format.rule:13}stochastic"] = partial(quantize, x, format, rounding="stochastic", seed=1)
    if format.block is not None and len(format.block) == 1:
        rows[f"{format.rule:13}axis 0"] = partial(quantize, x, format, axis=0)
    quantized = quantize(x, format)
    rows["values"] = lambda: quantized.values
    return rows | (dict(peers(format, x)) if with_peers else {})


def operands(recipe, x):
    """Each tensor for each product that reads it, by row."""
    for gemm, tensors in GEMMS.items():
        for tensor in tensors:
            made = recipe.operand(tensor, gemm)
            if made is None:
                continue
            options = {"gemm": gemm}
            if made.rounding == "stochastic":
                options["seed"] = 1
            if recipe.delayed:
                options["state"] = recipe.delayed.initial("backward" if tensor == "grad_output" else "forward")
            yield f"{gemm:13}{tensor}", partial(quantize_operand, recipe, tensor, x, **options)


def peers(format: BlockFormat, x):
    """What others do with the same numbers."""
    element = getattr(format.element, "name", "")
    if find_spec("torch"):
        import torch

        torch.set_num_threads(_pool.threads())
        tensor = torch.from_numpy(x)
        if element in TORCH:
            dtype = getattr(torch, TORCH[element])
            yield "torch: cast, no scales", lambda: tensor.to(dtype)
        if find_spec("torchao") and format.name in ("mxfp8", "mxfp8_e5m2", "mxfp4"):
            from torchao.prototype.mx_formats.mx_tensor import to_mx

            dtype = getattr(torch, TORCHAO[element])
            yield "torchao: to_mx", lambda: to_mx(tensor, dtype, 32)
    if find_spec("gfloat") and format.name.startswith("mx") and isinstance(format.element, Format):
        import gfloat
        from gfloat import formats as theirs

        info = getattr(theirs, f"format_info_ocp_{element.removesuffix('fn')}")
        yield "gfloat: rounding alone", lambda: gfloat.round_ndarray(info, x, sat=True)


def shortest(jobs, samples):
    """The shortest wall and CPU times of each job."""
    times = sample(dict(enumerate(jobs)), samples, time.perf_counter, time.process_time)
    return [tuple(map(min, zip(*taken, strict=True))) for taken in times.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="*", default=[f.name for f in list_block_formats()])
    parser.add_argument("--recipes", nargs="*", default=[r.name for r in list_recipes()])
    parser.add_argument("--size", type=int, default=24, help="log2 of the number of values")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--rules", action="store_true", help="every rule")
    parser.add_argument("--peers", action="store_true", help="gfloat, torchao and torch, where installed")
    options = parser.parse_args()
    x = np.random.default_rng(0).standard_normal((1 << options.size - options.size // 2, 1 << options.size // 2))
    x, threads = x.astype(np.float32), _pool.threads()
    out = np.empty_like(x)
    parts = list(zip(np.array_split(out, threads), np.array_split(x, threads), strict=True))
    pool = ThreadPoolExecutor(threads)

    def copy():
        list(pool.map(lambda part: np.copyto(*part), parts))

    def show(name, rows):
        (wall, cpu), *found = shortest([copy, *rows.values()], options.samples)
        for row, (seconds, busy) in zip(rows, found, strict=True):
            ns = seconds / x.size * 1e9
            print(f"{name:21} {row:26} {ns:8.2f} {seconds / wall:6.2f} {busy / cpu:11.2f}", flush=True)

    print(f"{threads} threads, 2^{options.size} float32 values {x.shape}")
    print(f"{'format or recipe':21} {'':26} {'ns/value':>8} {'copies':>6} {'of CPU time':>11}")
    for name in options.formats:
        show(name, jobs(get_block_format(name), x, options.rules, options.peers))
    for name in options.recipes:
        show(name, dict(operands(get_recipe(name), x)))
    show("four over six", {error: partial(four_over_six, x, error=error) for error in ("mae", "mse")})


if __name__ == "__main__":
    with kernels.force("kernel"):
        main()
