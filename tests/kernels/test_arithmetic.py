"""compute: reference = kernel, bit for bit and event for event, on seeded random plans.

A plan is an operation, formats for the operands and the result (named ones and ones that nobody has), a policy and,
for stochastic rounding, random bits. Operands are random codes, a fifth of them at the edges of their format.
"""

import numpy as np
import pytest

import numsim
from numsim import arithmetic, kernels
from numsim.errors import InputError
from numsim.formats import Format
from numsim.random import Draw
from numsim.rounding import NANS, OVERFLOWS, ROUNDINGS, SUBNORMALS, Policy

pytestmark = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))

NAMED = [f for f in numsim.list_formats() if f.name != "fp64"]
OWN = [
    Format("e6m9", 6, 9, 31),
    Format("low", 5, 4, 140),  # below float32's normal numbers
    Format("high", 4, 3, -90, specials="fn"),
    Format("m25", 8, 25, 127),  # 26 bits, the most that float64 carries
    Format("m26", 8, 26, 127),  # one more: the reference computes
    Format("m45", 8, 45, 127),  # a result of 46 bits: only the side of the residue tells ties and numbers from others
    Format("e11m12", 11, 12, 1023),  # products that no float64 holds
    Format("unsigned", 4, 3, 7, signed=False, specials="finite"),
    Format("fnuz", 5, 6, 16, specials="fnuz"),
    Format("no_fraction", 4, 0, 7, specials="fn"),
    numsim.get_format("binary8p3se"),
    numsim.get_format("binary8p4ue"),
    Format("fixed", 0, 7, 1, specials="finite"),
    Format("no_nan", 4, 3, 7, specials="finite", infinities=True),
    Format("no_subnormals", 4, 3, 7, subnormals=False),
    numsim.FP64,
]
FORMATS = NAMED * 2 + OWN


def random_codes(format, count, rng):
    """Any codes; a fifth near zero, the least normal number, one, the top and the special values."""
    out = rng.integers(0, format.codes, count, dtype=np.uint64)
    edges = [0, 1 << format.fraction_bits, format.bias << format.fraction_bits, format.max_code, format.max_code + 1]
    near = rng.choice(edges, count // 5) + rng.integers(-2, 3, count // 5)
    out[: near.size] = np.clip(near, 0, (1 << format.magnitude_bits) - 1).astype(np.uint64)
    out[: near.size] |= np.where(rng.integers(0, 2, near.size) == 1, np.uint64(format.sign_mask), np.uint64(0))
    return rng.permutation(out).astype(f"u{format.code_bytes}")


def close_codes(codes, format, rng):
    """Codes whose values lie near those of ``codes``, so that sums cancel."""
    magnitude = codes.astype(np.int64) & ((1 << format.magnitude_bits) - 1)
    near = np.clip(magnitude + rng.integers(-20, 21, codes.size), 0, (1 << format.magnitude_bits) - 1)
    sign = np.where(rng.integers(0, 2, codes.size) == 1, format.sign_mask, 0)
    return (near.astype(np.uint64) | sign.astype(np.uint64)).astype(codes.dtype)


def random_draw(rng, count):
    """Seeded near a change of keys, or given bits, of 1 to 32 bits."""
    r = int(rng.choice([1, 3, 8, 16, 31, 32]))
    if rng.integers(0, 2):
        return Draw(r, seed=int(rng.integers(0, 2**63)), position=2**32 - int(rng.integers(0, 2 * count + 1)))
    return Draw(r, given=rng.integers(0, 1 << r, count, dtype=np.uint64).astype(np.uint32))


def random_policy(rng, result):
    plain = rng.integers(0, 2)
    return Policy(
        str(rng.choice(ROUNDINGS)),
        "ieee" if plain else str(rng.choice(OVERFLOWS)),
        "keep" if plain else str(rng.choice(SUBNORMALS)),
        "raise" if result.nan_code is not None else str(rng.choice(NANS[1:])),
    )


def both(*arguments, **options):
    """Codes and events of reference and kernel."""
    out = []
    for which in ("reference", "kernel"):
        events = numsim.Events()
        with kernels.force(which):
            out.append((arithmetic.compute(*arguments, **options, events=events), events))
            again = arithmetic.compute(*arguments, **options)  # without counting it may be another kernel
            assert np.array_equal(again, out[-1][0]), f"{which}: other codes without events= {arguments[0]}, {options}"
    return out


def assert_twins(operation, operands, formats, result, policy, draw=None, count_events=True):
    (right, counted), (got, also) = both(operation, operands, formats, result, policy, draw)
    names = ", ".join(f.name for f in formats)
    rule = f"{operation} of {names} to {result}, {policy}, r={draw.r if draw else None}"
    bad = np.flatnonzero(right != got)
    if bad.size:
        first = ", ".join(f"{int(x[bad[0]]):#x}" for x in operands)
        raise AssertionError(
            f"{rule}: {bad.size} of {got.size} differ; first: operands {first}: kernel {int(got[bad[0]]):#x}, "
            f"reference {int(right[bad[0]]):#x}"
        )
    assert not count_events or counted == also, f"{rule}: kernel counts {also}, reference {counted}"


@pytest.fixture
def calls(monkeypatch):
    """How often each kernel ran."""
    from numsim.kernels import arithmetic as fast

    seen = dict.fromkeys(fast.KERNELS, 0)

    def spy(name, kernel):
        def run(*arguments):
            seen[name] += 1
            kernel(*arguments)

        return run

    for name, kernel in list(fast.KERNELS.items()):
        monkeypatch.setitem(fast.KERNELS, name, spy(name, kernel))
    return seen


def test_every_kernel_has_a_twin():
    """A kernel that no operation uses would be tested by nobody."""
    from numba.core.dispatcher import Dispatcher

    from numsim.kernels import _arithmetic_loops as loops

    compiled = {n for n, f in vars(loops).items() if isinstance(f, Dispatcher) and f.__module__ == loops.__name__}
    helpers = {"to_odd", "add_odd", "fused"}  # every sum and quotient goes through them, or many numbers do
    assert set(loops.KERNELS) == set(arithmetic.OPERATIONS)
    named = set(loops.KERNELS) - set(loops.EXTREMES)  # those are made by one function, with three choices
    assert compiled == helpers | named, compiled ^ (helpers | named)
    for name in named:
        assert loops.KERNELS[name] is getattr(loops, name)
    assert set(loops.FUSED) < set(loops.KERNELS)


@pytest.mark.parametrize("operation", arithmetic.OPERATIONS)
def test_random_plans(operation, calls):
    """120 plans of 40 numbers; the result has the first operand's format half of the time."""
    rng = np.random.default_rng(list(arithmetic.OPERATIONS).index(operation))
    arity = arithmetic.ARITY.get(operation, 2)
    for _ in range(120):
        same = rng.integers(0, 2)
        formats = [FORMATS[i] for i in rng.integers(0, len(FORMATS), arity)]
        formats = formats[:1] * arity if same else formats
        result = formats[0] if rng.integers(0, 2) else FORMATS[rng.integers(0, len(FORMATS))]
        policy = random_policy(rng, result)
        operands = [random_codes(f, 40, rng) for f in formats]
        if same and arity > 1 and rng.integers(0, 2):
            operands[-1] = close_codes(operands[0], formats[0], rng)
        draw = random_draw(rng, 40) if policy.rounding == "stochastic" else None
        native = result == numsim.FP64 and policy == Policy()  # counts nothing yet: see below
        assert_twins(operation, operands, formats, result, policy, draw, count_events=not native)
    assert calls[operation] > 40, f"the kernel ran {calls[operation]} times: most plans went to the reference"


@pytest.mark.parametrize("operation", arithmetic.OPERATIONS)
@pytest.mark.parametrize("format", [numsim.E2M1, numsim.E4M3, numsim.E5M2FNUZ, numsim.UE4M3], ids=str)
def test_all_pairs_of_one_format(operation, format):
    """Every pair for 4 bits, 600 seeded ones for 8 (tests/test_arithmetic.py has the kernel's other 65,000)."""
    arity = arithmetic.ARITY.get(operation, 2)
    codes = np.arange(format.codes, dtype=np.uint8)
    operands = [x.reshape(-1) for x in np.meshgrid(*[codes] * min(arity, 2))]
    rng = np.random.default_rng(1)
    if operands[0].size > 600:
        operands = [rng.choice(x, 600) for x in operands]
    operands += [rng.permutation(operands[0])] * (arity - len(operands))
    nan = "zero" if format.nan_code is None else "raise"
    for rounding in ROUNDINGS[:-1]:
        assert_twins(operation, operands, [format] * arity, format, Policy(rounding, nan=nan))


@pytest.mark.parametrize("operation", arithmetic.OPERATIONS)
def test_long_results(operation, calls):
    """FP32 operands, 46 bits in the result: one quotient in a hundred is, as a float64, a tie or a number."""
    rng = np.random.default_rng(6)
    operands = [random_codes(numsim.FP32, 800, rng) for _ in range(arithmetic.ARITY.get(operation, 2))]
    for x in operands:  # sizes that neither vanish nor overflow
        x[:700] = (x[:700] & np.uint32(0x87FFFFFF)) | np.uint32(0x38000000)
    for rounding in ROUNDINGS[:-1]:
        assert_twins(operation, operands, [numsim.FP32] * len(operands), OWN[5], Policy(rounding))
    assert calls[operation] == 12


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 100])
def test_odd_lengths(length, calls):
    rng = np.random.default_rng(length)
    for operation in arithmetic.OPERATIONS:
        arity = arithmetic.ARITY.get(operation, 2)
        operands = [random_codes(numsim.BF16, length, rng) for _ in range(arity)]
        assert_twins(operation, operands, [numsim.BF16] * arity, numsim.BF16, Policy())
        assert calls[operation] == 2 * (length > 0)


# Many codes: tables for pairs of up to 8 bits, fused loops for up to 16, blocks for the rest. All of them against the
# kernels on few codes, which the tests above compare with the reference.
MANY = 40_001


@pytest.mark.parametrize("operation", arithmetic.OPERATIONS)
def test_many_codes(operation):
    rng = np.random.default_rng(7)
    arity = arithmetic.ARITY.get(operation, 2)
    cases = [
        ([numsim.E4M3] * arity, numsim.E4M3, Policy("up")),
        ([numsim.E2M1, numsim.E5M2, numsim.E4M3][:arity], numsim.FP32, Policy(subnormals="flush")),
        ([numsim.FP16] * arity, numsim.FP16, Policy()),
        ([numsim.BF16] * arity, numsim.BF16, Policy(overflow="saturate-finite", subnormals="flush-results")),
        ([numsim.BF16, numsim.E4M3, numsim.FP16][:arity], numsim.FP64, Policy()),
        ([numsim.FP16] * arity, numsim.E3M2, Policy("odd", nan="max")),
        ([numsim.BF16] * arity, numsim.BF16, Policy("down")),
        ([numsim.FP32] * arity, numsim.FP32, Policy("nearest-away")),
        ([numsim.E3M2] * arity, numsim.E3M2, Policy(nan="zero")),
    ]
    for formats, result, policy in cases:
        operands = [random_codes(f, MANY, rng) for f in formats]
        operands[-1][:999] = operands[0][:999] ^ formats[0].sign_mask if formats[0] == formats[-1] else 0  # x - x
        with kernels.force("kernel"):
            got = arithmetic.compute(operation, operands, formats, result, policy)
            right = [arithmetic.compute(operation, [x[i : i + 5000] for x in operands], formats, result, policy)
                     for i in range(0, MANY, 5000)]  # fmt: skip
        bad = np.flatnonzero(got != np.concatenate(right))
        assert not bad.size, (operation, str(result), str(policy), [hex(x[bad[0]]) for x in operands], got[bad[0]])


def test_many_codes_in_many_threads(monkeypatch):
    """Draws and events do not depend on blocks and threads."""
    rng = np.random.default_rng(8)
    first = random_codes(numsim.BF16, 300_001, rng)
    operands = [first, close_codes(first, numsim.BF16, rng)]  # sums that are often ties: every draw counts
    arguments = ["add", operands, [numsim.BF16] * 2, numsim.BF16, Policy("stochastic")]
    given = rng.integers(0, 256, 300_001, dtype=np.uint64).astype(np.uint32)
    for draw in (Draw(32, seed=5, position=2**32 - 100_000), Draw(8, given=given)):
        seen = []
        for threads in ("1", "3"):
            monkeypatch.setenv("NUMSIM_THREADS", threads)
            events = numsim.Events()
            with kernels.force("kernel"):
                seen.append((arithmetic.compute(*arguments, draw=draw, events=events), events))
                again = arithmetic.compute(*arguments, draw=draw)  # in one pass: nothing is counted
                assert np.array_equal(again, seen[-1][0])
        assert np.array_equal(seen[0][0], seen[1][0]) and seen[0][1] == seen[1][1]
        few = [x[150_000:150_040] for x in operands]  # the reference, from the middle
        later = Draw(draw.r, draw.seed, draw.position + 150_000, None if draw.given is None else given[150_000:])
        with kernels.force("reference"):
            right = arithmetic.compute("add", few, *arguments[2:], draw=later)
        assert np.array_equal(seen[0][0][150_000:150_040], right)


def test_codes_out_of_range_read_nothing_beside_a_table():
    from numsim.kernels import _code_tables

    x = np.full(20_000, 0xFF, np.uint8)
    with kernels.force("kernel"), pytest.raises(InputError, match="0xff is out of range: e2m1 has codes 0 to 0xf"):
        arithmetic.compute("add", [x, x], [numsim.E2M1] * 2, numsim.E2M1, Policy(nan="zero"))
    table = _code_tables.make((numsim.E2M1,), lambda codes: codes + 1)
    assert table.size == 256 and table[15:17].tolist() == [16, 0]  # a place for every byte, should they come that far


@pytest.mark.parametrize("format", [f for f in FORMATS[len(NAMED) :] if f.bits <= 32], ids=str)
def test_values_of_codes(format):
    """By their bits, as ``decode`` has them; with subnormal numbers, and with zeros of their signs in their place."""
    from numsim.kernels._reading import operand_values

    rng = np.random.default_rng(5)
    codes = random_codes(format, 1000, rng)
    if format.bits <= 16:
        codes = np.concatenate([codes, np.arange(format.codes, dtype=codes.dtype)])
    values = np.asarray(numsim.decode(codes, format))
    assert np.array_equal(_canonical(operand_values(codes, format, Policy())), _canonical(values))
    small = np.abs(values) < float(format.least_normal)
    flushed = np.where(small, np.copysign(0.0, values), values)
    got = operand_values(codes, format, Policy(subnormals="flush"))
    assert np.array_equal(_canonical(got), _canonical(flushed))


def _canonical(values):
    """Their words; NaN has no sign."""
    return np.where(np.isnan(values), np.nan, values).view(np.uint64)


CONVERSIONS = [numsim.FP64, numsim.FP32, numsim.FP16, numsim.BF16, numsim.E4M3, numsim.E2M1, numsim.E8M0,
               numsim.get_format("binary8p3se"), OWN[0]]  # fmt: skip


@pytest.mark.parametrize("source", CONVERSIONS, ids=str)
def test_conversions(source):
    """From every format to every format: tables and the hardware's words against the reference on few codes."""
    rng = np.random.default_rng(9)
    codes = random_codes(source, 17_000, rng)
    for target in [*CONVERSIONS, numsim.TF32]:
        for rounding, subnormals in (("nearest-even", "keep"), ("down", "flush"), ("stochastic", "keep")):
            policy = Policy(rounding, "ieee", subnormals, "zero")
            draw = Draw(16, seed=3) if rounding == "stochastic" else None
            seen = numsim.Events()
            with kernels.force("kernel"):
                got = arithmetic.convert(codes, source, target, policy, draw)
                counted = arithmetic.convert(codes, source, target, policy, draw, seen)
            with kernels.force("reference"):
                few = arithmetic.convert(codes[:400], source, target, policy, draw)
            assert np.array_equal(got[:400], few), (str(target), rounding)
            assert np.array_equal(got, counted) and seen.total == 17_000


def test_broadcast_operands():
    """0-d, strided and read-only operands; the result has the common shape."""
    x = random_codes(numsim.FP16, 12, np.random.default_rng(2)).reshape(3, 4)
    x.flags.writeable = False
    for left, right in (
        (x, x[0]),
        (x[:, ::-1], x[1:2, ::2].repeat(2, 1)),
        (x.T, x[:, 0]),
        (x, x[0, 0]),
        (x[::2], x[1]),
    ):
        results = []
        for which in ("reference", "kernel"):
            with kernels.force(which):
                results.append(arithmetic.compute("add", [left, right], [numsim.FP16] * 2, numsim.FP16, Policy()))
        assert results[0].shape == np.broadcast_shapes(np.shape(left), np.shape(right))
        assert np.array_equal(*results)


def test_who_computes():
    """26 bits is the most that a float64 product holds exactly; a stochastic result needs its random bits more."""
    from numsim.kernels.arithmetic import suits

    fp16, fp32, fp64, plain = numsim.FP16, numsim.FP32, numsim.FP64, Policy()
    up, chance = Policy("up"), Policy("stochastic")
    m25, m26 = OWN[3], OWN[4]
    for expected, formats, result, policy, draw in (
        (True, [fp16] * 2, fp16, plain, None),
        (True, [fp32] * 2, fp32, up, None),
        (True, [fp32] * 2, fp64, plain, None),
        (True, [fp64] * 2, fp64, plain, None),
        (False, [fp64] * 2, fp64, up, None),
        (False, [fp64] * 2, fp32, plain, None),
        (True, [m25] * 2, m25, plain, None),
        (False, [m26] * 2, m26, plain, None),
        (True, [fp16] * 2, fp16, chance, Draw(32)),
        (False, [fp32] * 2, fp32, chance, Draw(32)),
        (True, [fp32] * 2, fp32, chance, Draw(28)),
    ):
        assert suits("add", formats, result, policy, draw) == expected, (formats, result, policy, draw)


def test_events_of_fp64():
    rng = np.random.default_rng(3)
    operands = [random_codes(numsim.FP64, 40, rng) for _ in range(2)]
    assert_twins("add", operands, [numsim.FP64] * 2, numsim.FP64, Policy())


def test_a_cpu_that_flushes_subnormals():
    """Any library can switch that on; torch can, so torch does it here."""
    torch = pytest.importorskip("torch", reason="needs torch to switch flush-to-zero on: pip install torch")
    operands = [np.array([1, 5, 0x0010000000000000], np.uint64), np.array([2, 7, 0x8008000000000000], np.uint64)]
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no flush-to-zero mode")
    try:
        for operation in ("add", "sub"):
            assert_twins(operation, operands, [numsim.FP64] * 2, numsim.FP64, Policy(), count_events=False)
    finally:
        torch.set_flush_denormal(False)


def test_flushing_does_not_reach_narrower_formats():
    """What the kernels carry in float64 is never subnormal there, so flush-to-zero cannot touch it."""
    torch = pytest.importorskip("torch", reason="needs torch to switch flush-to-zero on: pip install torch")
    rng = np.random.default_rng(4)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no flush-to-zero mode")
    try:
        for format in (numsim.FP32, numsim.BF16, numsim.FP16, OWN[1]):
            for operation in arithmetic.OPERATIONS:
                arity = arithmetic.ARITY.get(operation, 2)
                operands = [rng.integers(0, 4 << format.fraction_bits, 40).astype(f"u{format.code_bytes}")] * arity
                assert_twins(operation, operands, [format] * arity, format, Policy("up"))
    finally:
        torch.set_flush_denormal(False)
