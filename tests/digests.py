"""One SHA-256 for each part of numsim, over results on inputs that are made of integers: the same on every machine.

``python -m tests.digests`` prints them, with ``--check`` it compares them with ``digests.txt``, with ``--write`` it
writes that file. Nothing here depends on NumPy's random streams, on text of floats or on how files are compressed, so
that any NumPy, any number of threads, kernels and reference must agree.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import numsim
from numsim import FP32, FP64, Format, blocks, kernels, optimizers, scaling, tensorcore
from numsim.functions import FUNCTIONS
from numsim.random import Stream, bits_from
from numsim.tensorcore.models import TYPES

FILE = Path(__file__).with_suffix(".txt")
NEXT_BLOCK = (1 << 32) - 20  # a position from which random bits soon change their keys
OWN = [
    *map(numsim.get_format, ("e5m7", "e8m20", "binary8p3se", "binary5p1uf")),
    Format("gap", 4, 3, 7, subnormals=False),
    Format("wide_low", 8, 2, 130),  # its least normal number is subnormal in float32
]
FORMATS = [*numsim.list_formats(), *OWN]
COMMON = [numsim.get_format(n) for n in ("fp64", "fp32", "tf32", "fp16", "bf16", "e5m2", "e4m3", "e4m3fnuz", "e2m1")]
MODES = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "odd")
STOCHASTIC = {"rounding": "stochastic"}

Lay = Callable[[Any], Any]  # how an array lies in memory: as it is, byte-swapped, with strides, ...


# --- inputs -----------------------------------------------------------------------------------------------------------
def integers(count: int, bits: int, seed: int) -> np.ndarray:
    high, low = (bits_from(seed, start, count).astype(np.uint64) for start in (0, 1 << 40))
    return (high << np.uint64(32) | low) >> np.uint64(64 - bits)


def grid(format: Format, count: int = 20, seed: int = 1) -> np.ndarray:
    """Codes in four rows: where something changes, anywhere, near 1, near the least normal number."""
    normal, top = 1 << format.fraction_bits, format.top_code
    marks = [0, 1, 2, normal - 1, normal, normal + 1, top, top - 1, format.infinity_code, format.nan_code]
    known = [m for m in marks if m is not None and 0 <= m < format.codes]
    edges = [m ^ s for s in (0, format.sign_mask) for m in known]
    one = min(max(format.bias - 4, 0) * normal, top)
    places = [(0, format.codes), (one, min(top - one + 1, 8 * normal)), (0, min(top + 1, 3 * normal))]
    draws = integers(3 * count, 64, seed).reshape(3, count).tolist()
    rows = [(edges * count)[:count]]
    rows += [[first + d % n for d in row] for row, (first, n) in zip(draws, places, strict=True)]
    sign = (integers(4 * count, 1, seed + 1) * np.uint64(format.sign_mask)).reshape(4, count)
    sign[:2] = 0
    codes = np.array(rows, np.uint64) ^ sign
    return codes.astype(f"u{format.code_bytes}")


def floats(format: Format, source: Format, seed: int = 2) -> np.ndarray:
    """Numbers of float32 or float64, from below the format's least number to beyond its largest; and the edges."""
    low = max(source.bias + format.emin - format.fraction_bits - 2, 0)
    high = max(min(source.bias + format.emax + 1, 2 * source.bias), 0)
    low = min(low, high)
    fields = np.uint64(low) + integers(88, 32, seed) % np.uint64(high - low + 1)
    some = fields << np.uint64(source.fraction_bits) | integers(88, source.fraction_bits, seed + 1)
    some |= integers(88, 1, seed + 2) * np.uint64(source.sign_mask)
    some[::6] &= np.uint64(source.codes - (1 << source.fraction_bits - 3))  # few bits: exact values, ties
    words = np.concatenate([some, grid(source, 24)[0], grid(source, 8, seed)[3]])
    return as_floats(words.reshape(5, 24), source)


def as_floats(codes: np.ndarray, source: Format) -> np.ndarray:
    return codes.astype(f"u{source.code_bytes}").view(f"f{source.code_bytes}")


# --- the parts --------------------------------------------------------------------------------------------------------
def random(lay: Lay) -> Iterator[Any]:
    for seed in (0, 7, 2**64 - 1):
        for start in (0, NEXT_BLOCK, 2**63):
            yield bits_from(seed, start, 100)


def encode(lay: Lay) -> Iterator[Any]:
    for format in FORMATS:
        for source in (FP32, FP64):
            x = lay(floats(format, source))
            for mode in MODES:
                yield numsim.encode(x, format, rounding=mode, nan="zero")
    for book in numsim.list_codebooks():
        for source in (FP32, FP64):
            for mode in ("nearest-even", "up"):
                yield numsim.encode(lay(floats(numsim.BF16, source)), book, rounding=mode, nan="zero")


def policies(lay: Lay) -> Iterator[Any]:
    for name in ("fp32", "bf16", "fp16", "e4m3", "e4m3fnuz", "e2m1", "e8m0"):
        x = lay(floats(numsim.get_format(name), FP64))
        for overflow in ("saturate", "saturate-finite"):
            for subnormals in ("flush-inputs", "flush-results"):
                for mode in ("nearest-even", "up"):
                    seen = numsim.Events()
                    options = {"rounding": mode, "overflow": overflow, "subnormals": subnormals, "nan": "max"}
                    yield numsim.encode(x, name, events=seen, **options)
                    yield [*vars(seen).values()]


def exact_numbers(lay: Lay) -> Iterator[Any]:
    """Strings, fractions and integers of any length."""
    numbers = ["0.1", "1e-50", "-1e400", "16777217", "nan", "-0", Fraction(1, 3), Fraction(-7, 2**160), 10**40, 2**63]
    for format in FORMATS:
        for mode in ("nearest-even", "down"):
            yield numsim.encode(numbers, format, rounding=mode, nan="zero")
    whole = integers(20, 64, 3)
    yield numsim.encode(lay(whole), "fp64"), numsim.encode(lay(whole.view(np.int64)), "fp32")
    yield numsim.encode(as_floats(grid(FP64)[3], FP64).tolist(), "fp64")  # Python's


def other_arrays(lay: Lay) -> Iterator[Any]:
    """Arrays and single numbers of NumPy's and ml_dtypes' types, and Arrays as float32."""
    types = ["bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e8m0fnu", "float4_e2m1fn"]
    for dtype in map(np.dtype, [np.float16, np.float32, np.float64, *(getattr(ml_dtypes, name) for name in types)]):
        format = numsim.get_format(dtype)
        codes = grid(format, seed=43)
        for target in ("fp64", "fp32", "bf16"):
            yield numsim.encode(lay(codes.view(dtype)), target)
        yield numsim.encode(list(codes[3].view(dtype)), "fp32")
        yield numsim.from_numpy(codes.view(dtype)), np.asarray(numsim.from_codes(lay(codes[2:]), format), np.float32)


def stochastic(lay: Lay) -> Iterator[Any]:
    for format in FORMATS:
        x = lay(floats(format, FP64))
        yield numsim.encode(x, format, **STOCHASTIC, seed=Stream(3, NEXT_BLOCK), nan="zero")
        yield numsim.encode(x, format, **STOCHASTIC, seed=2**64 - 1, sr_bits=8, nan="zero")
        given = integers(120, 16, 4).astype(np.uint16).reshape(5, 24)
        yield numsim.encode(lay(floats(format, FP32)), format, **STOCHASTIC, random_bits=lay(given), nan="zero")


def round_to(lay: Lay) -> Iterator[Any]:
    for format in FORMATS:
        for source in (FP32, FP64):
            if format.fits(source):
                x = lay(floats(format, source))
                yield numsim.round_to(x, format, nan="zero"), numsim.round_to(x, format, rounding="odd", nan="zero")


def decode(lay: Lay) -> Iterator[Any]:
    """And what else is read from codes."""
    for format in FORMATS:
        codes = np.arange(format.codes, dtype=np.uint8) if format.bits <= 8 else grid(format, 40)
        if format.fits(FP64):
            yield numsim.decode(lay(codes), format)
        yield numsim.classify(lay(codes), format)
        row = grid(format)[2].tolist()
        finite = [c for c in row if numsim.classify([c], format)[0] in ("zero", "subnormal", "normal")]
        yield [(str(numsim.exact(c, format)), str(numsim.ulp(c, format)), numsim.neighbours(c, format)) for c in finite]
        if 2 <= format.bits <= 7:
            yield numsim.pack(lay(codes), format), numsim.unpack(lay(numsim.pack(codes, format)), format)


def convert(lay: Lay) -> Iterator[Any]:
    for source in COMMON:
        x = numsim.from_codes(lay(grid(source)), source)
        for target in FORMATS:
            if target.nan_code is not None:
                yield x.astype(target)


def arithmetic(lay: Lay) -> Iterator[Any]:
    for format in FORMATS:
        x, y, z = (numsim.from_codes(lay(grid(format, seed=s)), format) for s in (5, 7, 9))
        y = y[:, ::-1]
        for mode in MODES if format in COMMON else MODES[:1]:
            options = {"rounding": mode, "nan": "zero"}
            for operation in (numsim.add, numsim.sub, numsim.mul, numsim.div):
                yield operation(x, y, **options)
            yield numsim.sqrt(x, **options), numsim.fma(x, y, z, **options)
        yield numsim.mul(x, y, **STOCHASTIC, seed=Stream(5, NEXT_BLOCK), nan="zero")
        yield numsim.add(x, y, format="fp32"), numsim.mul(x, y, format="bf16", subnormals="flush")


def elementwise(lay: Lay) -> Iterator[Any]:
    names = "minimum maximum minimum_number maximum_number minimum_magnitude maximum_magnitude_number"
    orders = "equal not_equal less less_equal greater greater_equal unordered total_order"
    for format in FORMATS:
        x, y = (numsim.from_codes(lay(grid(format, seed=s)), format) for s in (11, 13))
        y = y[:, ::-1]
        for name in f"{names} {orders}".split():
            yield getattr(numsim, name)(x, y)
        yield numsim.next_up(x), numsim.next_down(x), numsim.abs(x), numsim.remainder(x, y, nan="zero")
        if format.signed:
            yield numsim.copysign(x, y), -x
        yield numsim.scale_b(x, lay(np.arange(-10, 10))), numsim.log_b(x, nan="zero")
        for mode in ("nearest-even", "up"):
            yield numsim.round_to_integral(x, rounding=mode)
            yield numsim.to_int(x, "int32", rounding=mode, out_of_range="saturate")
        yield numsim.less(x, 0.3), [x.codes.shape]


def functions(lay: Lay) -> Iterator[Any]:
    """Tables of 8-bit formats; a few numbers of wider ones, which have no table yet."""
    for name in FUNCTIONS:
        function = getattr(numsim, name)
        for small in ("e4m3", "e5m2"):
            x = numsim.from_codes(lay(np.arange(256, dtype=np.uint8)), small)
            yield function(x), function(x, rounding="up"), function(x, format="fp16", **STOCHASTIC, seed=3)
        with kernels.force("reference"):
            for wide in ("fp16", "fp32"):
                yield function(numsim.from_codes(lay(grid(numsim.get_format(wide))[2:, :3]), wide))


def sums(lay: Lay) -> Iterator[Any]:
    tree = ((0, 5), (3, (1, 2, 4)), 6)
    orders = ("sequential", "kahan", "neumaier", "double-word", "exact", "pairwise", "pairwise:4", "blocked:4")
    for format in COMMON:
        x = numsim.from_codes(lay(grid(format, seed=15)), format)
        for order in (*orders, "pairwise:numpy", tree):
            part = x[:, :7] if order is tree else x
            yield numsim.sum(part, axis=1, order=order), numsim.sum(part, axis=1, order=order, rounding="up")
            yield numsim.sum(part, axis=1, order=order, accumulator="bf16")
            yield numsim.sum(part, axis=1, order=order, **STOCHASTIC, seed=Stream(7, NEXT_BLOCK))
            yield numsim.mean(part, axis=1, order=order), numsim.sum(part, axis=0, accumulator="fp32")
            yield numsim.dot(part, part[::-1], order=order, product="exact", accumulator="fp32")
        for order in orders[:5]:
            yield numsim.cumsum(x, axis=1, order=order)
        yield numsim.norm(x, axis=1), numsim.norm(x, axis=1, accumulator="fp32", **STOCHASTIC, seed=9)
        if format.fits(FP32):
            yield numsim.norm(x, axis=1, scaled=True)


def matmul(lay: Lay) -> Iterator[Any]:
    for format in COMMON:
        a = numsim.from_codes(lay(grid(format, 12, seed=17)), format)
        b = numsim.from_codes(lay(grid(format, 12, seed=19)[1:]), format).T
        yield a @ b, numsim.matmul(a, b, accumulator="fp32"), numsim.matmul(a, b, subnormals="flush")
        yield numsim.matmul(a, b, product="exact", rounding="toward-zero"), numsim.matmul(a, b, order="pairwise")
        yield numsim.matmul(a, b, **STOCHASTIC, seed=Stream(11, NEXT_BLOCK))
        yield (
            numsim.matmul(a, b, product="exact", order="exact", accumulator="fp64"),
            numsim.matmul(a, b, order="kahan"),
        )


def block_formats(lay: Lay) -> Iterator[Any]:
    x = as_floats(
        np.resize(np.concatenate([grid(FP32, 64, seed=21)[2:], grid(FP32, 64, seed=23)[1:3]]), (128, 128)), FP32
    )
    for format in blocks.list_block_formats():
        part = lay(x if format.name == "fp8_128x128" else x[:16])
        made = blocks.quantize(part, format)
        yield made.codes, made.scales, np.float64(made.tensor_scale), made.values
        if format.name not in ("nf4", "int8", "int4", "mxint8", "fp8_128x128"):
            yield blocks.quantize(lay(x[:16]), format, **STOCHASTIC, seed=Stream(13, NEXT_BLOCK)).codes
    for name in ("mxfp8", "mxfp4", "nvfp4"):
        a, b = blocks.quantize(lay(x[:2]), name), blocks.quantize(lay(x[2:4]).T, name, axis=0)
        yield blocks.matmul(a, b), blocks.matmul(a, b, accumulator="exact")
    yield blocks.hadamard(lay(x[:2, :16]), signs=5)


def tensor_cores(lay: Lay) -> Iterator[Any]:
    chosen = {
        "v100": "mma.m8n8k4.f32.f16.f16.f32",
        "a100": "mma.m16n8k8.f32.tf32.tf32.f32 mma.m8n8k4.f64.f64.f64.f64",
        "h200": "mma.m16n8k16.f16.f16.f16.f16 mma.m16n8k16.f32.bf16.bf16.f32 wgmma.m64n256k32.f32.e4m3.e5m2",
        "l40s": "mma.m16n8k32.f32.e4m3.e4m3.f32",
        "b200": "mma.m16n8k16.f32.f16.f16.f32 tcgen05.m128n256k32.kind::f8f6f4.f32.e2m3.e4m3",
        "mi250x": "mfma.f32_16x16x16f16 mfma.f32_16x16x4f32",
        "mi300x": "mfma.f32_16x16x16_f16 mfma.f32_16x16x32_fp8_bf8",
    }
    for chip, instructions in chosen.items():
        for instruction in instructions.split():
            model = tensorcore.get_model(chip, instruction)
            a, b, c = (TYPES[t] if t not in ("tf32", "xf32") else FP32 for t in (model.a, model.b, model.c))
            x, y = grid(a, 36, seed=25), grid(b, 36, seed=27)[1:]
            options = {"chip": chip, "instruction": instruction}
            yield tensorcore.matmul(lay(x), lay(y.T), **options)
            yield tensorcore.matmul(lay(x[2:]), lay(y.T), lay(grid(c, 3)[2:]), **options)  # finite sums
            if model.d == "f32":
                yield tensorcore.matmul(lay(x[2:]), lay(y.T), split_k=2, alpha=0.3, output="bf16", **options)


def scalers(lay: Lay) -> Iterator[Any]:
    found = integers(3 * 40, 2, 29).reshape(3, 40)
    for name in scaling.list_scalers():
        scaler = scaling.get_scaler(name)
        steps = (found == 0).astype(np.float64) if scaler.takes != "amax" else found.astype(np.float64) * 1000.0
        yield scaling.replay_scales(scaler, lay(steps))


def unscaling(lay: Lay) -> Iterator[Any]:
    for name in scaling.list_scalers():
        scaler = scaling.get_scaler(name)
        grads = numsim.from_codes(lay(grid(numsim.FP16, seed=31)), "fp16")
        for x in (grads, grads[2:]):
            unscaled, overflow = scaling.unscale(scaler, scaler.initial(), x)
            yield unscaled, [overflow]


def delayed_scaling(lay: Lay) -> Iterator[Any]:
    for algorithm in ("max", "most_recent"):
        for fused in (True, False):
            recipe = scaling.DelayedScaling(amax_history_len=4, amax_compute_algo=algorithm, fused=fused, margin=1)
            state = recipe.initial("backward")
            for step in range(6):
                made, state = recipe.quantize(state, lay(as_floats(grid(FP32, seed=33 + step)[2:], FP32)))
                state = recipe.update(state)
                yield made.codes, np.float64(state.scale), state.amax_history


def optimizer_steps(lay: Lay) -> Iterator[Any]:
    weights, gradients = (as_floats(grid(FP32, seed=s)[2:], FP32) for s in (35, 37))
    for kind in (optimizers.SGD, optimizers.AdamW):
        for update in ("plain", "master", "kahan", "stochastic"):
            optimizer = kind(0.01, format="bf16", update=update)
            state = optimizer.initial(lay(weights))
            for step in range(3):
                state = optimizer.step(state, lay(gradients), **({"seed": step} if update == "stochastic" else {}))
            yield state.weights, *(state.slots[name] for name in sorted(state.slots))


def decimals(lay: Lay) -> Iterator[Any]:
    for format in FORMATS:
        x = numsim.from_codes(lay(grid(format, 8, seed=39)), format)
        yield numsim.to_decimal(x), numsim.to_decimal(x, rounding="up"), numsim.to_decimal(x[0], exact=True)


def files(lay: Lay) -> Iterator[Any]:
    """The members of a file before they are compressed, without the version of numsim."""
    with tempfile.TemporaryDirectory() as folder:
        formats = {f"x{i}": f for i, f in enumerate(FORMATS)}
        arrays = {n: numsim.from_codes(lay(grid(f, seed=41)), f) for n, f in formats.items()}
        path = numsim.save(f"{folder}/x.npz", **arrays)
        yield from numsim.load(path).values()
        with zipfile.ZipFile(path) as file:
            for name in sorted(file.namelist()):
                yield name if name.startswith("numsim_arrays") else file.read(name).hex()
        with np.load(path) as members:
            record = json.loads(members["numsim_arrays"].tobytes())
        yield json.dumps({**record, "numsim": ""}, sort_keys=True)


PARTS: dict[str, Callable[[Lay], Iterator[Any]]] = {
    part.__name__: part
    for part in (
        random, encode, policies, exact_numbers, other_arrays, stochastic, round_to, decode, convert,
        arithmetic, elementwise, functions, sums, matmul, block_formats, tensor_cores,
        scalers, unscaling, delayed_scaling, optimizer_steps, decimals, files,
    )
}  # fmt: skip


# --- digests ----------------------------------------------------------------------------------------------------------
def pieces(result: Any) -> Iterator[bytes]:
    """A result as bytes: type, shape and contents, little-endian."""
    if isinstance(result, tuple):
        for r in result:
            yield from pieces(r)
    elif isinstance(result, numsim.Array):
        yield result.format.name.encode()
        yield from pieces(result.codes)
    elif isinstance(result, (np.ndarray, np.generic)) and result.dtype.kind in "uifb":
        array = np.asarray(result)
        yield f"{array.dtype.kind}{array.itemsize}{array.shape}".encode()
        yield array.astype(array.dtype.newbyteorder("<")).tobytes()
    else:
        yield json.dumps(result.tolist() if isinstance(result, np.ndarray) else result).encode()


def digest(name: str, lay: Lay = lambda x: x) -> str:
    whole = hashlib.sha256()
    for result in PARTS[name](lay):
        for piece in pieces(result):
            whole.update(hashlib.sha256(piece).digest())
    return whole.hexdigest()


def known() -> dict[str, str]:
    """The digests that hold."""
    return dict(line.split() for line in FILE.read_text(encoding="utf-8").splitlines())


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.digests", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with digests.txt; exit code 1 if one differs")
    parser.add_argument("--write", action="store_true", help="write digests.txt")
    options = parser.parse_args(arguments)
    who = "reference" if (why := kernels.why_not()) else "kernel"
    with kernels.force(who), warnings.catch_warnings():
        warnings.simplefilter("ignore", tensorcore.EvidenceWarning)
        found = {name: digest(name) for name in PARTS}
    lines = [f"{name:<16} {value}" for name, value in found.items()]
    if options.write:
        FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if not options.check:
        print("\n".join(lines))  # noqa: T201
        return 0
    right = known()
    differ = [name for name in {**right, **found} if right.get(name) != found.get(name)]
    by = "kernels" if why is None else f"the reference ({why})"
    verdict = f"these differ: {', '.join(differ)}" if differ else "all as recorded"
    print(f"{len(found)} digests by {by}, numpy {np.__version__}, Python {sys.version.split()[0]}: {verdict}")  # noqa: T201
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
