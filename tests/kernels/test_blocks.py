"""Block formats: reference = kernel, bit for bit: codes, scales, tensor scales, events and values.

Chunks are made so small, and the pool so eager, that arrays of some hundred numbers cross every border there is.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import numsim
from numsim import kernels
from numsim.blocks import RULES, BlockArray, BlockFormat, Codebook, get_block_format, list_block_formats, quantize
from numsim.blocks import array as room
from numsim.blocks.tiles import in_c_order
from numsim.errors import UnavailableError
from numsim.formats import E4M3, E8M0, FP32, UE4M3, Format
from numsim.kernels import _pool
from numsim.random import Stream
from numsim.rounding import ROUNDINGS
from tests.kernels.test_jit import flushing  # noqa: F401  (a fixture)

pytestmark = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))

RULES_OF = {}  # by the format of the scales
for name, rule in RULES.items():
    RULES_OF.setdefault(rule.scale, []).append(name)
CASES = [replace(f, rule=rule) for f in list_block_formats() for rule in RULES_OF[f.scale]]
SPECIAL = np.array(
    [0x7FC00000, 0x7F800001, 0xFFC12345, 0x7F800000, 0xFF800000, 0, 0x80000000, 1, 0x807FFFFF, 0x7F7FFFFF, 0x00800000],
    np.uint32,
).view(np.float32)
FEW = {"chunk": 4, "piece": 20, "scales": 3, "large": 10}  # chunks and blocks are smaller than what a thread is given


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Borders everywhere, on two threads."""
    monkeypatch.setenv("NUMSIM_THREADS", "2")
    return cut(monkeypatch, **FEW)


def cut(monkeypatch, chunk, piece, scales, large):
    from numsim.kernels import blocks as fast

    def over_chunks(count, work, large=large):
        _pool.over_chunks(count, work, chunk=max(large, 7), large=large)

    sizes = {
        "CHUNK": chunk,
        "_BLOCK": min(chunk, 1 << 11),
        "PIECE": piece,
        "ROWS": min(piece, 1 << 6),
        "_SCALES": scales,
        "LARGE": large,
        "over_chunks": over_chunks,
    }
    for name, size in sizes.items():
        monkeypatch.setattr(fast, name, size)
    return fast


def numbers(shape, seed=0):
    """A line of numbers in each of many binades, some of one size, some of zeros, and special ones at random places."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    scale = 2.0 ** np.repeat(rng.integers(-152, 125, size // 16 + 1), 16)[:size]
    x = (rng.standard_normal(size) * scale).astype(np.float32)
    x[rng.integers(0, size, size // 8)] = 0
    for start in range(0, size - 40, 128):  # lines without special numbers, too
        x[start + rng.integers(0, 40, 3)] = rng.choice(SPECIAL, 3)
    half = size // 2
    x[half : half + 32] = rng.choice(np.float32([1, 1.25, -1.75, 2.5, -3.5, 5, 6, 7]), min(32, size - half))  # ties
    return x.reshape(shape)


def ordinary(shape):
    """Blocks of ordinary sizes."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, (*shape[:-1], 1))).astype(np.float32)


def shape_of(format):
    return (128, 128) if format.block == (128, 128) else (16, 32) if format.block == (16, 16) else (3, 128)


def both(x, format, **options):
    """What reference and kernel make of x, which must be the same; events too where they are asked for."""
    found, seen = [], []
    for which in ("reference", "kernel"):
        given = {k: Stream(v.seed, v.position) if isinstance(v, Stream) else v for k, v in options.items()}
        if given.pop("events", False):
            seen.append(given.setdefault("events", numsim.Events()))
        with kernels.force(which):
            found.append(quantize(x, format, **given))
    a, b = found
    assert a.codes.dtype == b.codes.dtype and np.array_equal(a.codes, b.codes)
    assert a.scales.format == b.scales.format and np.array_equal(a.scales.codes, b.scales.codes)
    assert np.float64(a.tensor_scale).tobytes() == np.float64(b.tensor_scale).tobytes()
    assert a.how == b.how and seen[:1] == seen[1:]
    same_values(b)
    return b


def same_values(x):
    with kernels.force("reference"):
        wanted = x.values
    with kernels.force("kernel"):
        assert wanted.tobytes() == x.values.tobytes() and wanted.shape == x.values.shape


# --- formats, rules, roundings ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("format", CASES, ids=lambda f: f"{f}-{f.rule}")
def test_every_format_with_every_rule(format):
    both(numbers(shape_of(format)), format)
    got = both(ordinary(shape_of(format)), format)
    assert len(np.unique(got.codes)) > 4 and len(np.unique(got.scales.codes)) >= min(2, got.scales.size)


@pytest.mark.parametrize("format", [f for f in list_block_formats() if isinstance(f.element, Format)], ids=str)
def test_every_rounding_with_events(format):
    x = numbers(shape_of(format), 1) if format.block != (128, 128) else numbers((128, 128), 1)[:, :]
    for rounding in ROUNDINGS:
        options = {"rounding": rounding} | ({"seed": 5} if rounding == "stochastic" else {})
        if x.size < 1000:
            both(x, format, **options)
        if x.size < 1000 or rounding in ("stochastic", "up"):
            both(x, format, events=True, **options)


def test_draws_are_numbered_by_element():
    x = numbers((4, 96), 2)
    given = np.random.default_rng(1).integers(0, 256, x.shape, dtype=np.uint8)
    plain = both(x, "nvfp4", rounding="stochastic", seed=3)
    for options in (
        {"seed": Stream(3, (1 << 32) - 95)},  # the keys change within a chunk
        {"seed": 3, "sr_bits": 5},
        {"random_bits": given},
        {"random_bits": given, "events": True},
        {"seed": Stream(3, 17), "events": True},
        {"random_bits": given, "axis": 0, "format": "nvfp4"},
    ):
        format = options.pop("format", "nvfp4")
        x_ = x if "axis" not in options else x[:, :64].reshape(64, 4).repeat(24, axis=1)
        if "axis" in options:
            options["random_bits"] = np.resize(given, x_.shape)
        got = both(x_, format, rounding="stochastic", **options)
        assert got.codes.shape != plain.codes.shape or not np.array_equal(got.codes, plain.codes)


# --- shapes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", [(1,), (2,), (3,), (5,), (16,), (19,), (20,), (21,), (100,), (0,), None], ids=str)
@pytest.mark.parametrize("element", ["e2m1", "nf4"])
def test_blocks_of_any_length_cut_anywhere(block, element):
    base = get_block_format({"e2m1": "fp8_tensor", "nf4": "nf4"}[element])
    format = replace(base, name="mine", block=block, element=base.element if element == "nf4" else numsim.E2M1)
    for lines in (1, 2, 7):
        both(numbers((lines, block[0] if block and block[0] else 61), lines), format)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("columns", [1, 3, 16, 47])
def test_tiles(rows, columns):
    format = replace(get_block_format("fp8_128x128"), name="mine", block=(rows, columns))
    both(numbers((2, 3 * rows, 2 * columns)), format)


@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_axes(axis):
    both(numbers((32, 64, 32)[:3], 3)[:, ::2], "mxfp4", axis=axis)


@pytest.mark.parametrize("size", [0, 1, 47, 48, 49, 95, 96, 97, 2047, 2048, 2049, 6500])
@pytest.mark.parametrize("large", [10, 1 << 30])  # for many threads, and all in one
def test_sizes_around_the_chunks(monkeypatch, size, large):
    cut(monkeypatch, **FEW | {"large": large})
    x = numbers((size,), 4) if size else np.zeros(0, np.float32)
    for name in ("fp8_tensor", "int8"):
        both(x, name)
    both(x, replace(get_block_format("nf4"), name="mine", block=None))


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "nf4", "fp8_tensor", "int8"])
def test_real_chunks_on_any_number_of_threads(monkeypatch, name):
    """One thread = two = three = other chunks; blocks of 32 do not know each other: a part is the reference's, too."""
    from numsim.kernels import blocks as fast

    x, format = numbers((3, 200_000), 5), get_block_format(name)
    for options in ({}, {"rounding": "stochastic", "seed": 9})[: 1 + isinstance(format.element, Format)]:
        monkeypatch.undo()
        assert fast.CHUNK == 1 << 18
        found = []
        with kernels.force("kernel"):
            for threads in ("1", "2", "3"):
                monkeypatch.setenv("NUMSIM_THREADS", threads)
                found.append(quantize(x, format, **options))
            cut(monkeypatch, chunk=30_000, piece=20_000, scales=999, large=50_000)
            found.append(quantize(x, format, **options))
        for other in found[1:]:
            assert np.array_equal(found[0].codes, other.codes) and found[0].tensor_scale == other.tensor_scale
            assert np.array_equal(found[0].scales.codes, other.scales.codes)
        if name == "mxfp8":
            part = both(x[:1, :640], format, **options)
            assert np.array_equal(part.codes, found[0].codes[:1, :640])


# --- elements ---------------------------------------------------------------------------------------------------------
ELEMENTS = [numsim.get_format(n) for n in ("fp16", "bf16", "tf32", "fp32", "e8m0", "ue4m3", "e4m3fnuz", "e3m4")]
ELEMENTS += [
    Format("wide_low", 8, 2, 130),  # least normal number subnormal in float32
    Format("longer", 5, 30, 15),  # nor this one's last bits
    Format("no_fraction", 4, 0, 7, specials="finite"),
]


def integers(bits, low, high, step=Fraction(1)):
    codes = range(1 << bits)
    values = tuple((c - (1 << bits) * (c >= 1 << (bits - 1))) * step for c in codes)
    return Codebook("mine", values, unused=tuple(c for c in codes if not low * step <= values[c] <= high * step))


BACKWARDS = Codebook("backwards", tuple(Fraction(7 - 2 * i) for i in range(8)), ties="lower")
CODEBOOKS = [
    BACKWARDS,
    integers(8, -128, 127),  # all codes
    integers(8, -127, 127, Fraction(8)),
    integers(3, -2, 3),  # not the same on both sides
    integers(4, -7, 7, Fraction(3, 32)),  # no power of two
    integers(4, -7, 7, Fraction(3)),  # nor this
    integers(2, -1, 1),
    replace(integers(4, -7, 7), ties="lower"),
    replace(integers(3, -3, 3), bounds=tuple(Fraction(2 * k + 1, 4) for k in range(-3, 3))),
    Codebook("two", (Fraction(-1), Fraction(1))),
    Codebook("uneven", tuple(map(Fraction, (0, 1, -1, 7, 3, -2, 100, -5)))),
    Codebook("far", tuple(Fraction(10.0**k) * s for k in (-99, -60, -44, -40, -10, 0, 37, 38) for s in (1, -1))),
    Codebook("given", tuple(map(Fraction, (-1, 0, 1, 2))), bounds=tuple(map(Fraction, ("-0.1", "0.5", "0.5")))),
]


@pytest.mark.parametrize("element", ELEMENTS + CODEBOOKS, ids=str)
def test_elements_of_ones_own(element):
    rng = np.random.default_rng(6)
    x = np.concatenate([numbers((500,), 6), rng.integers(-260, 260, 524).astype(np.float32) / 4])
    x = x.reshape(32, 32)
    format = BlockFormat("mine", element, FP32, (8,), "absmax")
    both(x, format)
    both(x, replace(format, block=None), multiplier=np.float32(1))
    if isinstance(element, Format):
        both(x, replace(format, block=None), multiplier=np.float32(1), rounding="stochastic", seed=1)


def test_codebooks_take_the_shortest_way():
    """(Counting every bound gives the same codes, some or many times slower.)"""
    from numsim.kernels import _blocks_codebooks as fast

    ways = [fast.nearest(e)[0] for e in (numsim.blocks.INT8, numsim.blocks.NF4_ELEMENT, BACKWARDS)]
    assert ways == [fast.nearest_integers, fast.count_in_fours, fast.count_bounds]


# --- kinds of input ---------------------------------------------------------------------------------------------------
def test_arrays_as_they_come():
    x = numbers((6, 64), 7)
    wanted = both(x, "mxfp8")
    unaligned = np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    frozen = x.copy()
    frozen.flags.writeable = False
    big = np.zeros((6, 128), np.float32)
    big[:, ::2] = x
    before = x.tobytes()
    for other in (unaligned, frozen, big[:, ::2], np.asfortranarray(x), x.astype(">f4"), x[::-1].copy()[::-1]):
        assert np.array_equal(both(other, "mxfp8").codes, wanted.codes)
    assert np.array_equal(both(x.astype(np.float64), "mxfp8").codes, wanted.codes) and x.tobytes() == before


@pytest.mark.parametrize("shape", [(300, 260), (1 << 16, 1), (1, 1 << 17), (64, 1024), (65, 1025)])
def test_large_matrices_that_lie_otherwise(shape):
    x = np.random.default_rng(0).standard_normal(shape[::-1]).astype(np.float32)
    for other in (x.T, np.repeat(x, 2, axis=0)[::2].T, x[::-1].T):
        copied = in_c_order(other)
        assert copied.flags.c_contiguous and np.array_equal(copied, other)
    assert in_c_order(x) is x


def test_given_multipliers():
    x = numbers((4, 64), 8)
    for scale in (448.0, 0.0, np.inf, np.nan, 1e-44):
        both(x, "fp8_tensor", multiplier=scale)
    both(x, "torchao_rowwise", multiplier=np.float32([[1], [2], [3], [4]]))


def test_codes_of_ones_own_have_values():
    """Every code of a few formats under every E8M0 scale, NaN among them."""
    for name in ("mxfp8", "mxfp4", "mxint8"):
        format = get_block_format(name)
        codes = np.resize(np.arange(format.element.codes, dtype=np.uint8), (256, 256))
        scales = numsim.from_codes(np.arange(256, dtype=np.uint8)[:, None].repeat(8, axis=1), E8M0)
        same_values(BlockArray(codes, scales, format))
    wide = BlockFormat("mine", FP32, FP32, None, "absmax")  # too many codes for a table
    same_values(BlockArray(SPECIAL.view(np.uint32)[None].repeat(30, axis=0), numsim.array(3.0, "fp32"), wide))


@pytest.mark.parametrize("nan", ["kept", "ignored"])
def test_amaxes(nan):
    from numsim.kernels import blocks as fast

    for rows, columns in ((1, 1), (1, 45), (2, 3), (6, 90), (3, 30)):
        x = numbers((6, 90), columns)
        a, b = room.amaxes(x, rows, columns, nan), fast.amaxes(x, rows, columns, nan)
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.array_equal(a, b, equal_nan=True) and set(b[np.isnan(b)].view(np.uint32)) <= {0x7FC00000}
    assert fast.amaxes(np.full((1, 50), np.nan, np.float32), 1, 50, nan)[0, 0] == 0 or nan == "kept"


@pytest.mark.parametrize("which", ["reference", "kernel"])
def test_a_signalling_nan_hides_no_number(which):
    """C's fmax, and NumPy's, make NaN of 3 and a signalling NaN, after which the 3 is forgotten."""
    with kernels.force(which):
        for place in range(40):
            x = np.arange(40, 0, -1).astype(np.float32)
            x[place] = SPECIAL[1]
            assert quantize(x, "fp8_tensor").scales.values == np.float32(1) / (np.float32(448) / x[~np.isnan(x)].max())


# --- the frame --------------------------------------------------------------------------------------------------------
def test_twins_have_their_names(small):
    own = {
        n for n, f in vars(small).items() if not n.startswith("_") and getattr(f, "__module__", "") == small.__name__
    }
    assert own == {twin.__name__ for _, twin in small.TWINS} == {"amaxes", "quantize_matrix", "decode_matrix"}
    for reference, twin in small.TWINS:
        assert reference is getattr(room, twin.__name__) and reference is not twin


def test_a_cpu_that_flushes_subnormals_is_refused(flushing):  # noqa: F811
    x = numbers((4, 64), 9)
    both(x, "mxfp8")  # (now the pool's threads are there, and do not flush)
    flushing(True)
    try:
        with kernels.force("kernel"), pytest.raises(UnavailableError, match="flush"):
            quantize(x, "mxfp8")
    finally:
        flushing(False)


def test_small_work_stays_on_the_reference(monkeypatch):
    asked = []
    monkeypatch.setattr(kernels, "use", lambda work: bool(asked.append(work)))
    quantize(np.ones(64, np.float32), "mxfp8")
    assert asked[0] == 64
    assert {E4M3, UE4M3} <= {f.element for f in list_block_formats()} | {f.scale for f in list_block_formats()}
