"""Questions that catch differences between libraries: all codes, boundaries, operations and orders."""

import numpy as np

import numsim
from numsim.codes import code_dtype
from numsim.machines import ask
from tests import inputs


def all_codes(format):
    return np.arange(format.codes, dtype=code_dtype(format))


def boundary_codes(source, target):
    """Codes of fp32 or fp64 at and next to the target's values, midpoints and overflow, and special ones."""
    dtype = code_dtype(source)
    with np.errstate(all="ignore"):
        values = np.array([1.0])
        if target.bits <= 16:
            values = numsim.decode(all_codes(target), target)
            values = np.unique(values[np.isfinite(values)])
        if target.bits == 16:  # ends, middle and a sample
            middle = len(values) // 2
            parts = values[::97], values[:200], values[middle - 200 : middle + 200], values[-200:]
            values = np.unique(np.concatenate(parts))
        top = float(target.max) * np.array([1 + 2.0**-k for k in range(1, 14)])
        points = np.concatenate([(values[1:] + values[:-1]) / 2, values, top])
        exact = points.astype(f"f{source.code_bytes}").view(dtype)
        near = [exact + dtype.type(k) for k in (0, 1, 2)] + [exact - dtype.type(k) for k in (1, 2)]
        if source.bits == 64:  # what a first rounding to float32 takes onto the tie
            near += [(points * (1 + s * 2.0**-k)).view(dtype) for k in (25, 26, 30, 40, 50) for s in (1, -1)]
    special = [inputs.special(source.bits), inputs.nans(source.bits), inputs.random_patterns(source.bits, 2000, 3)]
    return np.unique(np.concatenate([*near, *special]).astype(dtype))


def casts(machine):
    """Every cast that a machine has."""
    formats = [numsim.get_format(f) for f in machine.dtypes]
    for source in formats:
        for target in formats:
            codes = all_codes(source) if source.bits <= 16 else boundary_codes(source, target)
            for nan in ("zero", "max") if target.nan_code is None else ("zero",):
                question = ask("cast", [source], target, [codes], nan=nan)
                if machine.can(question):
                    yield question


def pairs(format, count=6000, seed=5):
    """All pairs of an 8-bit format; seeded ones of a wider format, half of them close to each other."""
    dtype = code_dtype(format)
    if format.bits <= 8:
        x, y = np.meshgrid(all_codes(format), all_codes(format))
        return x.ravel(), y.ravel()
    rng = np.random.default_rng(seed)
    x = rng.integers(0, format.codes - 1, count, dtype=dtype, endpoint=True)
    y = rng.integers(0, format.codes - 1, count, dtype=dtype, endpoint=True)
    y[count // 2 :] = x[count // 2 :] ^ rng.integers(0, 2 << format.fraction_bits, count - count // 2).astype(dtype)
    return x, y


def operations(machine):
    """add, sub, mul, div, sqrt in every format that a machine computes in."""
    for name in machine.computes:
        format = numsim.get_format(name)
        x, y = pairs(format)
        for operation in ("add", "sub", "mul", "div", "sqrt"):
            arrays = [x, y] if operation != "sqrt" else [all_codes(format) if format.bits <= 16 else x]
            for nan in ("zero", "max") if format.nan_code is None else ("zero",):
                question = ask(operation, [format] * len(arrays), format, arrays, nan=nan)
                if machine.can(question):
                    yield question


def sums(machine):
    """sum, cumsum, dot and matmul in every order: ordinary numbers and a row of random codes, NaN and all."""
    rng = np.random.default_rng(6)
    for name in machine.computes:
        format = numsim.get_format(name)
        x, y = (numsim.encode(rng.standard_normal((4, 29)), format, nan="max") for _ in range(2))
        x[0] = rng.integers(0, format.codes - 1, 29, dtype=code_dtype(format), endpoint=True)
        for operation in ("sum", "cumsum", "dot", "matmul"):
            arrays = [x] if operation in ("sum", "cumsum") else [x, y if operation == "dot" else y.T]
            for order in ("sequential", "pairwise", "kahan"):
                if (operation, order) != ("cumsum", "pairwise"):
                    question = ask(operation, [format] * len(arrays), format, arrays, order=order, nan="zero")
                    if machine.can(question):
                        yield question


def mixed(machine):
    """Operands narrower than the result, products with a format of their own, exact products."""
    rng = np.random.default_rng(7)
    computes = [numsim.get_format(f) for f in machine.computes]
    for source in computes:
        for target in computes:
            if source == target or not source.fits(target):
                continue
            a, b = (numsim.encode(rng.standard_normal((3, 17)), source, nan="max") for _ in range(2))
            yield from (ask(o, [source] * 2, target, [a, b]) for o in ("add", "mul"))
            for product in (None, source, "exact"):
                for operation, arrays in (("dot", [a, b]), ("matmul", [a, b.T])):
                    yield ask(operation, [source] * 2, target, arrays, product=product)
