"""Tensor cores: reference = kernel, bit for bit, for every record of every chip.

Records that differ in their name alone are one case. Operands come in kinds that reach every rule of a unit: numbers
of one size, subnormal ones, sums that cancel, terms around the last kept bit, overflow, ties, zeros, special values.
"""

import ctypes
import platform
import sys
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from numsim import host, kernels
from numsim.codes import code_dtype
from numsim.kernels import _pool
from numsim.tensorcore import Model, Unit, get_model, list_chips, list_models, matmul, products
from numsim.tensorcore.models import IN_WORDS, TYPES
from tests.kernels.test_jit import flush

pytestmark = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))

RECORDS = [m for chip in list_chips() for m in list_models(chip)]


def arithmetic_of(m):
    return m.k, m.a, m.b, m.c, m.d, m.unit, m.scale, m.scale_block, m.nan


CASES = list({arithmetic_of(m): m for m in reversed(RECORDS)}.values())
KINDS = ("near one", "subnormal", "cancelling", "cut off", "huge", "tiny", "ties", "zeros", "gaps", "special", "any")


# --- operands ---------------------------------------------------------------------------------------------------------
def numbers(type_name, low, high, shape, rng, fraction=None):
    """Codes with exponent fields from low to high, clipped to what there is, of random sign and fraction."""
    f = TYPES[type_name]
    field = np.clip(rng.integers(low, high + 1, shape), 0, f.max_code >> f.fraction_bits)
    bits = rng.integers(0, 1 << f.fraction_bits, shape) if fraction is None else fraction
    codes = np.minimum((field << f.fraction_bits) | bits, f.max_code)
    codes = codes.astype(np.uint64) | np.where(rng.integers(0, 2, shape) == 1, np.uint64(f.sign_mask), np.uint64(0))
    if f.specials == "fnuz":
        codes = np.where(codes == f.sign_mask, 0, codes)  # there the negative zero is NaN
    return as_words(codes, type_name, rng)


def as_words(codes, type_name, rng):
    if type_name in IN_WORDS:  # the unit must not look at the low 13 bits
        return (codes.astype(np.uint32) << np.uint32(13)) | rng.integers(0, 1 << 13, codes.shape, dtype=np.uint32)
    return codes.astype(code_dtype(TYPES[type_name]))


def any_codes(type_name, shape, rng):
    f = TYPES[type_name]
    codes = rng.integers(0, f.codes, shape, dtype=np.uint64, endpoint=False)
    if f.bits <= 32 and rng.integers(0, 2):  # half of the time, the top of the format, where NaN and infinity are
        top = rng.integers(max(f.max_code - 2, 0), 1 << f.magnitude_bits, shape).astype(np.uint64)
        codes = np.where(rng.integers(0, 4, shape) == 0, top | (codes & np.uint64(f.sign_mask)), codes)
    return as_words(codes, type_name, rng)


def operands(kind, m, shape, rng):
    """a and b (..., K) of one kind."""
    one = [TYPES[t].bias for t in (m.a, m.b)]
    top = [TYPES[t].max_code >> TYPES[t].fraction_bits for t in (m.a, m.b)]
    if kind == "near one":
        return [numbers(t, e - 3, e + 3, shape, rng) for t, e in zip((m.a, m.b), one, strict=True)]
    if kind == "subnormal":  # one factor; the other is large enough to keep the product in sight
        return numbers(m.a, 0, 1, shape, rng), numbers(m.b, one[1], top[1], shape, rng)
    if kind == "cancelling":  # x y - x y + a little
        a, b = operands("near one", m, shape, rng)
        half = shape[-1] // 2
        sign = a.dtype.type(1 << (8 * a.itemsize - 1) if m.a in IN_WORDS else TYPES[m.a].sign_mask)
        a[..., half : 2 * half], b[..., half : 2 * half] = a[..., :half] ^ sign, b[..., :half]
        little = rng.integers(0, 4, shape) == 0
        return np.where(little, operands("cut off", m, shape, rng)[0], a), b
    if kind == "cut off":  # products from the largest down to a little below its last kept bit
        span = max(m.unit.fraction_bits, 24) + 3
        return [numbers(t, e - span // 2, e + 1, shape, rng) for t, e in zip((m.a, m.b), one, strict=True)]
    if kind == "huge":
        return [numbers(t, e - 2, e, shape, rng) for t, e in zip((m.a, m.b), top, strict=True)]
    if kind == "tiny":  # around and below the least results
        least = TYPES[m.d].emin - TYPES[m.d].fraction_bits
        e = [least // 2 + e for e in one]
        return [numbers(t, x - 4, x + 4, shape, rng) for t, x in zip((m.a, m.b), e, strict=True)]
    if kind == "ties":  # powers of two: sums end in few bits
        span = (TYPES[m.d].fraction_bits + 3) // 2
        return [numbers(t, e - span, e, shape, rng, fraction=0) for t, e in zip((m.a, m.b), one, strict=True)]
    if kind == "zeros":
        a, b = operands("near one", m, shape, rng)
        zero = [numbers(t, 0, 0, shape, rng, fraction=0) for t in (m.a, m.b)]
        few = rng.integers(0, 5, shape)
        return np.where(few > 0, zero[0], a), np.where(few > 1, zero[1], b)
    if kind == "gaps":  # of all sizes, and either those with even or those with odd index
        a, b = (numbers(t, 0, x, shape, rng) for t, x in zip((m.a, m.b), top, strict=True))
        gap = np.arange(shape[-1]) % 2 == rng.integers(0, 2, (*shape[:-1], 1))
        return np.where(gap, numbers(m.a, 0, 0, shape, rng, fraction=0), a), b
    a, b = operands("near one", m, shape, rng) if kind == "special" else (any_codes(t, shape, rng) for t in (m.a, m.b))
    if kind == "special":
        few = [rng.integers(0, 3 * shape[-1], shape) == 0 for _ in range(3)]
        a, b = np.where(few[0], any_codes(m.a, shape, rng), a), np.where(few[1], any_codes(m.b, shape, rng), b)
        b = np.where(few[2], numbers(m.b, 0, 0, shape, rng, fraction=0), b)
    return a, b


def starts(m, shape, rng):
    """c: zeros of both signs, numbers of several sizes, any bits."""
    f = TYPES[m.c]
    top = f.max_code >> f.fraction_bits
    kinds = [
        np.zeros(shape, code_dtype(f)), numbers(m.c, 0, 0, shape, rng, fraction=0), numbers(m.c, 0, 1, shape, rng),
        numbers(m.c, f.bias - 3, f.bias + 3, shape, rng), numbers(m.c, f.bias - 30, f.bias + 4, shape, rng),
        numbers(m.c, top - 1, top, shape, rng), any_codes(m.c, shape, rng),
        numbers(m.c, 1, f.bias, shape, rng, fraction=0),
    ]  # fmt: skip
    return np.choose(rng.integers(0, len(kinds), shape), kinds)


def scales(m, shape, rng):
    """Mostly near one, some at the ends of the format, NaN among them; also none for instructions without."""
    if not m.scale:
        return None
    mild = rng.integers(120, 135, shape) if m.scale == "ue8m0" else rng.integers(0x20, 0x50, shape)
    ends = np.where(rng.integers(0, 2, shape) == 0, rng.integers(0, 256, shape), rng.choice([0, 1, 0x7E, 0x80], shape))
    return np.where(rng.integers(0, 6, shape) == 0, ends, mild).astype(np.uint8)


def count_of(m, instructions):
    return instructions * m.k, instructions * m.k // m.scale_block if m.scale else 0


# --- comparison -------------------------------------------------------------------------------------------------------
def assert_twins(name, m, a, b, c, sa=None, sb=None, threads=None, reference=None):
    from numsim.kernels import tensorcore as fast

    assert fast.suits(m), f"{m} has no kernel"
    right = getattr(products, name)(a, b, c, m, sa, sb, None) if reference is None else reference
    kept = [None if x is None else x.copy() for x in (a, b, c, sa, sb)]
    got = getattr(fast, name)(a, b, c, m, sa, sb, threads)
    assert all(x is None or np.array_equal(x, y) for x, y in zip((a, b, c, sa, sb), kept, strict=True)), (
        "inputs changed"
    )
    assert got.dtype == right.dtype and got.shape == right.shape
    bad = np.argwhere(got != right)
    if len(bad):
        at = tuple(bad[0])
        x, y = (a[at[0]], b[at[0]]) if name == "dots" else (a[at[0]], b[:, at[1]])
        used = [" ".join(f"{int(v):#x}" for v in z) for z in (x, y)]
        raise AssertionError(
            f"{name} of {m}: {len(bad)} of {got.size} differ; first at {at}: a {used[0]}, b {used[1]}, "
            f"c {int(c[at]):#x}, kernel {int(got[at]):#x}, reference {int(right[at]):#x}"
        )
    return right


@pytest.mark.parametrize("m", CASES, ids=lambda m: f"{m.chip} {m.instruction}")
def test_dots(m):
    """Dot products of every kind, of one instruction and of three."""
    rng = np.random.default_rng(CASES.index(m))
    for instructions, n in ((1, 12), (3, 4)):
        k, per = count_of(m, instructions)
        drawn = [operands(kind, m, (n, k), rng) for kind in KINDS]
        a, b = (np.concatenate(x) for x in zip(*drawn, strict=True))
        c = starts(m, len(a), rng)
        assert_twins("dots", m, a, b, c, *(scales(m, (len(a), per), rng) for _ in range(2)))


@pytest.mark.parametrize("m", CASES, ids=lambda m: f"{m.chip} {m.instruction}")
def test_matrices(m):
    """Two rows and two columns of every kind: kinds meet, and special values stay in their rows and columns."""
    rng = np.random.default_rng(CASES.index(m) + 1000)
    k, per = count_of(m, 2 if m.k <= 32 else 1)
    drawn = [operands(kind, m, (1, k), rng) for kind in KINDS]
    a, b = (np.concatenate(x) for x in zip(*drawn, strict=True))
    c = starts(m, (len(a), len(b)), rng)
    sa, sb = scales(m, (len(a), per), rng), scales(m, (per, len(b)), rng)
    assert_twins("chains", m, a, np.ascontiguousarray(b.T), c, sa, sb)


def test_every_record_is_a_case():
    """And no record goes to the reference."""
    from numsim.kernels import tensorcore as fast

    assert {arithmetic_of(m) for m in RECORDS} == {arithmetic_of(m) for m in CASES} and len(RECORDS) >= 546
    assert all(map(fast.suits, RECORDS))


# --- shapes and threads -----------------------------------------------------------------------------------------------
PATHS = list({(m.unit.path, m.d): m for m in CASES}.values())  # one record of every path and result


def drawn_matrices(m, rows, columns, instructions, rng):
    k, per = count_of(m, instructions)
    kinds = [KINDS[i] for i in rng.permutation(len(KINDS))]
    left = [operands(kinds[i % len(kinds)], m, (1, k), rng)[0] for i in range(max(rows, 1))]
    right = [operands(kinds[i % len(kinds)], m, (1, k), rng)[1] for i in range(max(columns, 1))]
    a, b = np.concatenate(left)[:rows], np.ascontiguousarray(np.concatenate(right)[:columns].T)
    return a, b, starts(m, (rows, columns), rng), scales(m, (rows, per), rng), scales(m, (per, columns), rng)


@pytest.mark.parametrize("m", PATHS, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 13), (13, 1), (2, 11), (11, 2), (9, 10), (0, 3), (3, 0)])
def test_shapes(m, rows, columns, monkeypatch):
    """Tiles of 5 outputs, panels of one instruction, tasks of few rows: every edge, with any number of threads."""
    from numsim.kernels import tensorcore as fast

    for name, value in (("TILE", 5), ("PANEL", 1), ("_GRAIN", 10 * m.k), ("_SOME", m.k), ("_ALONE", 1)):
        monkeypatch.setattr(fast, name, value)
    rng = np.random.default_rng(rows * 100 + columns)
    drawn = drawn_matrices(m, rows, columns, 3 if m.k <= 16 else 2, rng)
    right = assert_twins("chains", m, *drawn, threads=1)
    for threads in (2, 3):
        assert_twins("chains", m, *drawn, threads=threads, reference=right)
    a, b, c, sa, sb = drawn
    if rows == columns:
        c, sb = np.ascontiguousarray(np.diagonal(c)), None if sb is None else sb.T
        for threads in (1, 2):
            assert_twins("dots", m, a, np.ascontiguousarray(b.T), c, sa, sb, threads=threads)


@pytest.mark.parametrize("m", PATHS, ids=str)
def test_real_tiles_and_panels(m):
    """More columns than a tile, more rows than are in work at a time, K of two panels."""
    from numsim.kernels import tensorcore as fast

    rng = np.random.default_rng(7)
    most = -(-(fast.PANEL + 1) // m.k)
    for rows, columns, instructions in ((1, fast.TILE + 3, 1), (fast.TILE + 3, 1, 1), (20, 3, 1), (1, 2, most)):
        assert_twins("chains", m, *drawn_matrices(m, rows, columns, instructions, rng), threads=2)
    k, per = count_of(m, most)
    a, b = operands("near one", m, (2, k), rng)
    assert_twins("dots", m, a, b, starts(m, 2, rng), *(scales(m, (2, per), rng) for _ in range(2)))


@pytest.mark.parametrize("m", PATHS, ids=str)
def test_views(m):
    """Read-only, transposed, reversed and broadcast codes: what a caller may pass."""
    rng = np.random.default_rng(8)
    a, b, c, sa, sb = drawn_matrices(m, 6, 7, 1, rng)
    a, c = np.asfortranarray(a)[::-1], np.broadcast_to(c[:1], c.shape)
    a.flags.writeable = False
    assert_twins("chains", m, a, b, c, sa, sb)
    assert_twins("dots", m, a, np.broadcast_to(b[:, 0], a.shape), c[:6, 0], sa, None if sb is None else sb.T[:6])


@pytest.mark.parametrize("m", PATHS, ids=str)
def test_nan_and_infinity_stay_in_their_row_and_column(m):
    """Against the product without them: the others keep their bits."""
    from numsim.kernels import tensorcore as fast

    rng = np.random.default_rng(9)
    k, per = count_of(m, 2)
    a, b = operands("near one", m, (9, k), rng)
    b = np.ascontiguousarray(b.T)
    c, ones = np.zeros((9, 9), code_dtype(TYPES[m.c])), [None if not m.scale else np.full(s, 0x38, np.uint8)
                                                        for s in ((9, per), (per, 9))]  # fmt: skip
    plain = fast.chains(a, b, c, m, *ones, None)
    if m.scale:
        ones[0][4], ones[1][:, 6] = 0xFF, 0xFF
    else:
        nan = as_words(np.array([TYPES[t].nan_code for t in (m.a, m.b)], np.uint64), "f64", rng)
        shift = 13 if m.a in IN_WORDS else 0
        a[4, 1], b[3, 6] = nan[0] << np.uint64(shift), nan[1] << np.uint64(shift)
    got = fast.chains(a, b, c, m, *ones, None)
    assert (got[4] == m.nan).all() and (got[:, 6] == m.nan).all() and not (plain == m.nan).any()
    rest = np.ix_([i for i in range(9) if i != 4], [j for j in range(9) if j != 6])
    assert np.array_equal(got[rest], plain[rest])


# --- units that nobody built ------------------------------------------------------------------------------------------
def own_record(rng):
    """Lengths, widths, floors, outputs and types that no chip has, up to the limits of ``suits``."""
    a, b = (str(t) for t in rng.choice(["f16", "bf16", "tf32", "e4m3", "e5m2", "e3m2", "e2m1"], 2))
    path = str(rng.choice(["block", "block", "fp8-as-fp16", "cdna3", "cdna3-fp8", "exact", "pairwise", "fma"]))
    length, k = int(rng.choice([1, 2, 3, 5, 8, 24])), int(rng.choice([4, 8, 24]))
    output = "rne-fp32"
    if path in ("block", "fp8-as-fp16"):
        output = str(rng.choice(["rz-fp32", "rz-e8m13", "rne-fp32", "rne-fp16"]))
    elif path == "fma":
        a, length, output = str(rng.choice([a, "f32"])), 1, str(rng.choice(["rne-fp32", "rne-fp64"]))
    elif path in ("exact", "pairwise"):
        length = int(rng.choice([2, 4]))
    if path == "fp8-as-fp16":
        length = int(rng.choice([1, 2, k // 2, k]))
        a, b = (str(t) for t in rng.choice(["e4m3", "e5m2"], 2))
    bits, floor = int(rng.integers(0, 41)), int(rng.choice([-800, -300, -133, -21, 0, 100]))
    d = {"rne-fp16": "f16", "rne-fp64": "f64"}.get(output, "f32")
    return Model("own", "own", k, a, b, d, d, Unit(path, length, bits, floor, output))


def test_units_of_ones_own():
    rng = np.random.default_rng(10)
    for _ in range(150):
        m = own_record(rng)
        a, b = (np.concatenate(x) for x in zip(*(operands(kind, m, (2, 2 * m.k), rng) for kind in KINDS), strict=True))
        assert_twins("dots", m, a, b, starts(m, len(a), rng))
        assert_twins("chains", m, a[:12:3], b[1::7].T, starts(m, (4, 3), rng))


def test_longest_block():
    """1024 largest products with F = 40: the sum in float64 is still exact."""
    m = Model("own", "own", 1024, "f16", "f16", "f32", "f32", Unit("block", 1024, 40, -133))
    rng = np.random.default_rng(11)
    a = (0x3FFF - rng.integers(0, 2, (3, 1024))).astype(np.uint16)
    c = rng.integers(0x3F800000, 0x41000000, 3).astype(np.uint32)
    assert_twins("dots", m, a, a[:, ::-1].copy(), c)


@pytest.mark.parametrize("m", [m for m in PATHS if m.chip == "mi300x" and m.unit.path != "fma"], ids=str)
def test_far_apart_on_cdna3(m):
    """One product against zeros and a c of every kind, infinity among them, whose exponent is far off."""
    f, count = TYPES[m.a], 700
    rng = np.random.default_rng(16)
    field = rng.integers(1, 2 * f.bias, count)
    other = np.clip(2 * f.bias - field + rng.integers(-12, 13, count), 1, 2 * f.bias)  # products of 2^-12 to 2^13
    a, b = (np.zeros((count, m.k), np.int64) for _ in range(2))
    at = np.arange(count), rng.integers(0, m.k, count)
    a[at], b[at] = field << f.fraction_bits, other << f.fraction_bits
    a, b = (as_words(codes, m.a, rng) for codes in (a, b))
    c = np.tile(np.array([0x7F800000, 0xFF800000, 0, 0x80000000, 0x7FC00000, 0x3F800001, 1], np.uint32), count // 7)
    assert_twins("dots", m, a, b, c)


@pytest.mark.parametrize("m", [m for m in CASES if "bf16" in m.a], ids=str)
def test_exactly_beyond_the_largest_number(m):
    """2^128 on the dot, one unit below, and half a unit below, of either sign; then a little comes back."""
    a = np.zeros((6, 2 * m.k), np.uint16)
    a[:, 0], a[3:, 0], a[:, m.k], a[3:, m.k] = 0x5F80, 0xDF80, 0xDF80, 0x5F80  # 2^64
    b = np.zeros_like(a)
    b[:, 0], b[:, m.k] = 0x5F80, 0x5680
    c = np.array([0, 0xF3800000, 0xF3000000, 0, 0x73800000, 0x73000000], np.uint32)  # of magnitudes 2^104 and 2^103
    right = assert_twins("dots", m, a, b, c)
    assert right[0] == 0x7F800000 and right[3] == 0xFF800000


def test_what_kernels_leave_to_the_reference():
    from numsim.kernels import tensorcore as fast

    h200, mi250x = get_model("h200", "mma.m16n8k16.f32.f16.f16.f32"), get_model("mi250x", "mfma.f32_16x16x16f16")
    changes = [{"align": "down"}, {"normalised": True}, {"fraction_bits": 41}, {"floor": -801}]
    others = [replace(h200, unit=replace(h200.unit, **change)) for change in changes]
    fp8 = get_model("h200", "mma.m16n8k32.f32.e4m3.e4m3.f32")
    others += [replace(h200, c="f16", k=32), replace(h200, a="f32")]
    others += [replace(x, unit=replace(x.unit, length=length)) for x, length in ((fp8, 3), (mi250x, 8))]
    a = np.full((1, 16), 0x3C01, np.uint16)
    for m in others:
        assert not fast.suits(m)
    with kernels.force("kernel"):
        for m in others[:4]:
            assert products.twin("dots", 10**9, m) is products.dots
            assert products.twin("dots", 10**9, m)(a, a, np.zeros(1, np.uint32), m, None, None, None).shape == (1,)


# --- the CPU's modes --------------------------------------------------------------------------------------------------
@pytest.fixture
def flushing():
    try:
        flush(False)
    except (KeyError, OSError, AttributeError):
        pytest.skip("flush-to-zero is switched through glibc on x86-64 and ARM only")
    yield flush
    flush(False)


def subnormal_results(m, rng):
    """Products and c that are tiny, subnormal or both."""
    k, per = count_of(m, 2)
    drawn = [operands(kind, m, (6, k), rng) for kind in ("tiny", "subnormal", "any", "zeros")]
    a, b = (np.concatenate(x) for x in zip(*drawn, strict=True))
    c = np.where(rng.integers(0, 2, len(a)) == 0, numbers(m.c, 0, 2, len(a), rng), starts(m, len(a), rng))
    return a, b, c, *(scales(m, (len(a), per), rng) for _ in range(2))


@pytest.mark.parametrize("m", [m for m in PATHS if m.d != "f64"], ids=str)
def test_a_cpu_that_flushes_subnormals(m, flushing):
    from numsim.kernels import tensorcore as fast

    drawn = subnormal_results(m, np.random.default_rng(12))
    right = products.dots(*drawn[:3], m, *drawn[3:], None)
    a, b, c, sa, sb = drawn
    b, sb = b[:1], None if sb is None else sb[:1]
    right_row = products.chains(b, a.T, c[None], m, sb, None if sa is None else sa.T, None)
    flushing(True)
    assert host.flushes_subnormals()
    try:
        got = fast.dots(*drawn[:3], m, *drawn[3:], None)
        row = fast.chains(b, a.T, c[None], m, sb, None if sa is None else sa.T, None)
    finally:
        flushing(False)
    assert np.array_equal(got, right) and np.array_equal(row, right_row)


def test_fp64_while_subnormals_are_flushed(flushing):
    """That is the hardware's own arithmetic: the reference takes over."""
    m = get_model("h200", "mma.m16n8k8.f64.f64.f64.f64")
    a = np.full((3, 8), 0x1FF8000000000001, np.uint64)  # about 2^-512: products are subnormal
    c = np.array([1, 0, 0x8000000000000003], np.uint64)
    right = products.dots(a, a, c, m, None, None, None)
    flushing(True)
    try:
        with kernels.force("kernel"):
            got = products.twin("dots", 24, m)(a, a, c, m, None, None, None)
    finally:
        flushing(False)
    assert np.array_equal(got, right) and right[1] != 0


@pytest.mark.parametrize("m", PATHS, ids=str)
def test_threads_that_flush(m, flushing, monkeypatch):
    """Threads made while subnormals were flushed keep doing so; their work comes back to the caller."""
    from numsim.kernels import tensorcore as fast

    for name, value in (("_SOME", 1), ("_ALONE", 1)):
        monkeypatch.setattr(fast, name, value)
    monkeypatch.setattr(_pool, "_pool", None)
    drawn = [np.concatenate([x] * 6) if x is not None else x for x in subnormal_results(m, np.random.default_rng(13))]
    right = fast.dots(*drawn[:3], m, *drawn[3:], 1)
    flushing(True)
    _pool.over_chunks(9, lambda first, end: None, chunk=1, large=1, number=3)
    flushing(False)
    try:
        assert np.array_equal(fast.dots(*drawn[:3], m, *drawn[3:], 3), right)
    finally:
        monkeypatch.setattr(_pool, "_pool", None)


@pytest.mark.skipif(not sys.platform.startswith("linux") or platform.machine() != "x86_64", reason="glibc on x86-64")
def test_a_cpu_that_does_not_round_to_nearest():
    libm = ctypes.CDLL("libm.so.6")
    m = get_model("h200", "mma.m16n8k16.f16.f16.f16.f16")
    a, b = operands("tiny", m, (8, 16), np.random.default_rng(14))
    wanted = matmul(a, b.T, chip=m)
    assert libm.fesetround(0x800) == 0
    try:
        with kernels.force("kernel"):
            got = matmul(a, b.T, chip=m)
    finally:
        libm.fesetround(0)
    assert np.array_equal(got, wanted)


# --- nothing is left untested -----------------------------------------------------------------------------------------
def test_twins_have_their_names():
    from numsim.kernels import tensorcore as fast

    assert [reference.__name__ for reference, _ in fast.TWINS] == ["chains", "dots"]
    for reference, kernel in fast.TWINS:
        assert reference.__module__ == "numsim.tensorcore.products" and reference.__name__ == kernel.__name__


def test_every_loop_is_reached():
    """Of the loops over outputs each path has its own: all of them compiled in the tests above, or here."""
    from numba.core.dispatcher import Dispatcher

    from numsim.kernels import tensorcore as fast

    rng = np.random.default_rng(15)
    for m in PATHS:
        assert_twins("chains", m, *drawn_matrices(m, 2, 2, 1, rng))
    assert {"block", "groups", "fp8-as-fp16", "fma", "exact", "pairwise", "cdna3", "cdna3-fp8"} == {
        m.unit.path for m in PATHS
    }
    for name in ("_tensorcore_lanes", "_tensorcore_ieee"):
        room = import_module(f"numsim.kernels.{name}")
        own = [f for f in vars(room).values() if isinstance(f, Dispatcher) and f.__module__ == room.__name__]
        outer = [f for f in own if f.py_func.__name__.startswith(("chain", "dot"))]
        assert own and outer and all(f.signatures for f in outer) and fast.TWINS
