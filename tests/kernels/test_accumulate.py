"""sums and products: reference = kernel, bit for bit, on seeded random plans; float32 lanes in particular.

A plan is formats of inputs, product and accumulator (named ones and ones that nobody has), an order, a policy, random
bits, and odd shapes. Operands are of one size, so that sums neither stall at once nor overflow, with special values,
subnormal and huge numbers among them.
"""

from dataclasses import replace

import numpy as np
import pytest

import numsim
from numsim import accumulate, kernels
from numsim.accumulate import ORDERS, RUNNING, Plan
from numsim.formats import Format
from numsim.random import Draw
from numsim.rounding import OVERFLOWS, ROUNDINGS, SUBNORMALS, Policy
from tests.kernels.test_arithmetic import OWN, random_codes, random_draw

pytestmark = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))

FORMATS = [*numsim.list_formats(), *OWN]
SIGNED = [f for f in FORMATS if f.signed and f.zero]


def mild_codes(format, shape, rng, special=8):
    """Near one in size; each with probability 1/special any code at all."""
    count = int(np.prod(shape))
    top = max((format.max_code >> format.fraction_bits) - 1, 1)
    field = np.clip(min(format.bias, top // 2) + rng.integers(-3, 3, count), 0, top)
    codes = (field << format.fraction_bits).astype(np.uint64) + rng.integers(
        0, 1 << format.fraction_bits, count
    ).astype(np.uint64)
    codes |= np.where(rng.integers(0, 3, count) == 0, np.uint64(format.sign_mask), np.uint64(0))
    if special:
        few = rng.integers(0, special, count) == 0
        codes[few] = random_codes(format, count, rng)[few]
    return codes.astype(f"u{format.code_bytes}").reshape(shape)


def low_codes(format, shape, rng):
    """Around the least normal number: what flushing, and rounding on the subnormal grid, are about."""
    count = int(np.prod(shape))
    codes = rng.integers(0, min(3 << format.fraction_bits, format.max_code + 1), count, dtype=np.uint64)
    codes |= np.where(rng.integers(0, 2, count) == 0, np.uint64(format.sign_mask), np.uint64(0))
    return codes.astype(f"u{format.code_bytes}").reshape(shape)


def run(function, *arguments, **options):
    """Codes of reference and kernel, or the errors that they raise."""
    out = []
    for which in ("reference", "kernel"):
        with kernels.force(which):
            try:
                out.append(function(*arguments, **options))
            except numsim.NumsimError as error:
                out.append(type(error))
    return out


def assert_twins(function, factors, plan, draw=None, **options):
    arguments = (factors, plan, draw) if function is accumulate.sums else (*factors, plan, draw)
    right, got = run(function, *arguments, **options)
    inputs = " ".join(map(str, plan.inputs))
    rule = f"{function.__name__} of {[x.shape for x in factors]} {inputs}, {plan.how}, {draw and draw.r}, {options}"
    if isinstance(right, type) or isinstance(got, type):
        assert right is got, f"{rule}: kernel {got}, reference {right}"
        return
    assert got.dtype == right.dtype and got.shape == right.shape, rule
    bad = np.argwhere(np.atleast_1d(got != right))
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        if function is accumulate.products:
            used = [factors[0][at[:-1]], factors[1][..., at[-1]][at[:-2]]] if got.ndim == factors[0].ndim else factors
        else:
            used = [x[at[: x.ndim - 1]] for x in factors]
        shown = "; ".join(" ".join(f"{int(c):#x}" for c in np.ravel(x)[:40]) for x in used)
        raise AssertionError(
            f"{rule}: {len(bad)} of {got.size} differ; first at {at}, terms {shown}: "
            f"kernel {int(np.atleast_1d(got)[at]):#x}, reference {int(np.atleast_1d(right)[at]):#x}"
        )


@pytest.fixture
def calls(monkeypatch):
    """How often each loop over outputs ran."""
    from numsim.kernels import accumulate as fast

    seen = {"sum_rows": 0, "sum_lanes": 0, "product_rows": 0, "product_lanes": 0}

    def spy(kernel, name):
        def call(*arguments):
            seen["product_rows" if name == "sum_rows" and arguments[2] else name] += 1  # (so many columns)
            kernel(*arguments)

        return call

    monkeypatch.setattr(fast, "SUM_ROWS", [spy(f, "sum_rows") for f in fast.SUM_ROWS])
    monkeypatch.setattr(fast, "SUM_LANES", [spy(f, "sum_lanes") for f in fast.SUM_LANES])
    monkeypatch.setattr(fast, "product_lanes", spy(fast.product_lanes, "product_lanes"))
    return seen


def random_plan(rng, inputs):
    """Half of the plans are plain: nearest-even, ieee, keep."""
    accumulator = SIGNED[rng.integers(0, len(SIGNED))] if rng.integers(0, 8) else FORMATS[rng.integers(0, len(FORMATS))]
    accumulator = inputs[0] if rng.integers(0, 3) == 0 else accumulator
    product = None
    if len(inputs) == 2 and rng.integers(0, 2):
        product = accumulator if rng.integers(0, 2) else FORMATS[rng.integers(0, len(FORMATS))]
    policy = Policy()
    if rng.integers(0, 2):
        policy = Policy(str(rng.choice(ROUNDINGS)), str(rng.choice(OVERFLOWS)), str(rng.choice(SUBNORMALS)))
    order = str(rng.choice([*ORDERS, "pairwise:3", "blocked:5", "blocked:8"]))
    return Plan(tuple(inputs), accumulator, product, order, policy)


def random_tree(rng, leaves):
    """Nested tuples of two, with the leaves in any order."""
    parts = [int(i) for i in rng.permutation(leaves)]
    while len(parts) > 1:
        i = int(rng.integers(0, len(parts) - 1))
        parts[i : i + 2] = [(parts[i], parts[i + 1])]
    return parts[0]


def random_inputs(rng, count):
    first = FORMATS[rng.integers(0, len(FORMATS))]
    return [first] * count if rng.integers(0, 2) else [FORMATS[rng.integers(0, len(FORMATS))] for _ in range(count)]


@pytest.mark.parametrize("factors", [1, 2])
def test_random_sums(factors, calls):
    """150 plans each; lengths from 0 to 33, running sums where the order has them."""
    rng = np.random.default_rng(factors)
    for _ in range(150):
        plan = random_plan(rng, random_inputs(rng, factors))
        shape = (int(rng.integers(1, 4)), int(rng.choice([0, 1, 2, 3, 5, 8, 17, 33])))
        if shape[1] > 1 and rng.integers(0, 6) == 0:
            plan = replace(plan, order=random_tree(rng, shape[1]))
        codes = [mild_codes(f, shape, rng) for f in plan.inputs]
        if rng.integers(0, 3) == 0:
            codes[0] = low_codes(plan.inputs[0], shape, rng)
        draw = random_draw(rng, shape[0] * shape[1] * plan.uses) if plan.policy.rounding == "stochastic" else None
        trail = bool(rng.integers(0, 2)) and plan.order in RUNNING
        assert_twins(accumulate.sums, codes, plan, draw, trail=trail)
    assert calls["sum_rows"] > 40 and (factors == 2 or calls["sum_lanes"] > 10), f"most went to the reference: {calls}"


def test_random_products(calls):
    """200 plans, one-sided batches among them."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        plan = random_plan(rng, random_inputs(rng, 2))
        m, k, n = (int(rng.choice(s)) for s in ([1, 2, 3], [0, 1, 2, 7, 12], [1, 2, 5]))
        left, right = [((), ()), ((2,), (2,)), ((1,), (2,)), ((), (2,)), ((2, 1), (2,))][rng.integers(0, 5)]
        codes = [mild_codes(plan.inputs[0], (*left, m, k), rng), mild_codes(plan.inputs[1], (*right, k, n), rng)]
        if rng.integers(0, 3) == 0:
            codes[0] = low_codes(plan.inputs[0], (*left, m, k), rng)
        count = int(np.prod(np.broadcast_shapes(left, right))) * m * k * n * plan.uses
        draw = random_draw(rng, count) if plan.policy.rounding == "stochastic" else None
        assert_twins(accumulate.products, codes, plan, draw)
    assert calls["product_rows"] > 50, calls  # lanes have their own tests below


FP16, BF16, FP32, TF32, E4M3, E5M2 = (numsim.get_format(n) for n in ("fp16", "bf16", "fp32", "tf32", "e4m3", "e5m2"))
E3M4, E2M1, E4M3_IEEE, E5M7 = (numsim.get_format(n) for n in ("e3m4", "e2m1", "e4m3_ieee", "e5m7"))
NO_FRACTION = Format("no_fraction", 5, 0, 15, specials="finite")
LANES = [
    # inputs, product (None: exact), accumulator: plans that float32 lanes compute
    ((FP16, FP16), FP16, FP16), ((BF16, BF16), BF16, BF16), ((TF32, TF32), TF32, TF32), ((FP32, FP32), FP32, FP32),
    ((E4M3, E4M3), E4M3, E4M3), ((E5M2, E5M2), E5M2, E5M2), ((E3M4, E3M4), E3M4, E3M4), ((E2M1, E2M1), E2M1, E2M1),
    ((E5M7, E5M7), E5M7, E5M7), ((FP16, FP16), FP16, FP32), ((BF16, BF16), BF16, FP32), ((FP16, FP16), FP32, FP32),
    ((FP16, FP16), None, FP32), ((E4M3, E5M2), None, FP32), ((E4M3, E4M3), E4M3, FP16), ((E4M3, E5M2), E5M2, FP16),
    ((BF16, E4M3), FP16, FP16), ((FP32, FP32), FP32, FP32), ((FP32, E4M3), FP32, FP32), ((E4M3_IEEE, FP16), E5M2, BF16),
    ((FP16, TF32), TF32, FP32), ((E2M1, E4M3), None, FP32),
]  # fmt: skip


def lane_operands(plan, rng, m=3, k=37, n=9):
    """Several sizes: near one, down to subnormal results, up to overflow; special values in two rows and columns."""
    left, right = plan.inputs
    for special in (0, 8):
        yield mild_codes(left, (m, k), rng, special), mild_codes(right, (k, n), rng, special)
    for base in (1, 1 << left.fraction_bits, max(left.max_code - (5 << left.fraction_bits), 1)):
        low, high = max(base - (1 << left.fraction_bits), 0), min(base + (4 << left.fraction_bits), left.max_code)
        a = rng.integers(low, high + 1, (m, k)).astype(np.uint64)
        a |= np.where(rng.integers(0, 2, a.shape) == 1, np.uint64(left.sign_mask), np.uint64(0))
        yield a.astype(f"u{left.code_bytes}"), mild_codes(right, (k, n), rng, 0)
    # a product just below, on and above ties, then a sum with numbers far apart
    a, b = mild_codes(left, (m, k), rng, 0), mild_codes(right, (k, n), rng, 0)
    a[:, ::3] = a[:, ::3] & left.sign_mask if left.specials != "fnuz" else 0
    yield a, b


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize(("inputs", "product", "accumulator"), LANES)
def test_float32_lanes(inputs, product, accumulator, overflow, calls):
    """Lanes = reference, and the lanes did run: an operand's last bit may send a plan to float64, most do not."""
    plan = Plan(inputs, accumulator, product, "sequential", Policy(overflow=overflow))
    rng = np.random.default_rng(5)
    for a, b in lane_operands(plan, rng):
        assert_twins(accumulate.products, [a, b], plan)
    assert calls["product_lanes"] >= 3, calls


@pytest.mark.parametrize(("inputs", "product", "accumulator"), LANES[:10])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 1), (2, 3, 5), (1, 5, 17), (3, 1, 31), (2, 4, 33), (1, 3, 65)])
def test_odd_lane_counts(shape, inputs, product, accumulator, calls):
    """Loops over lanes must not forget the last ones."""
    plan = Plan(inputs, accumulator, product)
    m, k, n = shape
    rng = np.random.default_rng(m * k * n)
    a, b = mild_codes(inputs[0], (m, k), rng, 0), mild_codes(inputs[1], (k, n), rng, 0)
    assert_twins(accumulate.products, [a, b], plan)
    assert calls["product_lanes"] == 1, calls


def test_sums_that_lanes_would_round_twice(calls):
    """12 bits are one too many, and so are terms longer than the accumulator."""
    e8m11 = Format("e8m11", 8, 11, 127)
    x = numsim.encode([1 + 2.0**-11, 4095 * 2.0**-24], e8m11)  # just below a tie; float32 makes a tie of it
    assert_twins(accumulate.sums, [x[None]], Plan((e8m11,), e8m11))
    x = numsim.encode([1.0, 2.0**-8 + 2.0**-30], "fp32")  # just above a tie
    for order in ("sequential", "pairwise"):
        assert_twins(accumulate.sums, [x[None]], Plan((FP32,), BF16, None, order))
    assert calls["sum_lanes"] == 0 and calls["sum_rows"] == 3, calls


E8M15 = Format("e8m15", 8, 15, 127)
NOT_LANES = [
    Plan((FP16, FP16), E8M15, E8M15),  # a sum of two times 16 bits rounds twice
    Plan((FP16, FP16), FP16),  # an exact product into less than FP32
    Plan((BF16, BF16), FP16, FP32),  # a sum of 24 and 11 bits
    Plan((FP32, FP32), FP32),  # an exact product of 48 bits
    Plan((FP16, FP16), FP16, BF16),  # products reach beyond the accumulator
    Plan((FP16, FP16), FP16, FP16, "kahan"),
    Plan((FP16, FP16), FP16, FP16, "pairwise"),
    Plan((FP16, FP16), FP16, FP16, policy=Policy("up")),
    Plan((FP16, FP16), FP16, FP16, policy=Policy(overflow="saturate-finite")),
    Plan((FP16, FP16), FP16, FP16, policy=Policy(subnormals="flush")),
    Plan((numsim.E4M3FNUZ,) * 2, numsim.E4M3FNUZ, numsim.E4M3FNUZ),
]


@pytest.mark.parametrize("plan", NOT_LANES, ids=lambda p: p.how)
def test_what_lanes_would_get_wrong(plan, calls):
    rng = np.random.default_rng(6)
    for a, b in lane_operands(plan, rng):
        assert_twins(accumulate.products, [a, b], plan)
    assert calls["product_lanes"] == 0 and calls["product_rows"] > 0, calls


def test_tiny_operands_leave_the_lanes(calls):
    """BF16 2^-100 times 2^-100 is no float32 at all, but a BF16 product rounded up or a sum's sticky bit elsewhere."""
    plan = Plan((BF16, BF16), BF16, BF16)
    rng = np.random.default_rng(7)
    a = ((27 << 7) + rng.integers(0, 128, (2, 30))).astype(np.uint16)  # about 2^-100
    for b in (a.T, ((80 << 7) + rng.integers(0, 128, (30, 5))).astype(np.uint16)):
        assert_twins(accumulate.products, [a, b], plan)
    assert calls == {"sum_rows": 0, "sum_lanes": 0, "product_rows": 2, "product_lanes": 0}
    b = ((127 << 7) + rng.integers(0, 128, (30, 5))).astype(np.uint16)  # about one
    assert_twins(accumulate.products, [a, b], plan)
    assert calls["product_lanes"] == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("product", [E4M3, None], ids=str)
def test_counters(product, order):
    """Each sum begins where the one before it ended; the running sums show every draw."""
    plan = Plan((E4M3, E4M3), BF16, product, order, Policy("stochastic"))
    rng = np.random.default_rng(10)
    rows = [mild_codes(E4M3, (5, 13), rng, 0) for _ in range(2)]
    for position in (0, 2**32 - 70):
        assert_twins(accumulate.sums, rows, plan, Draw(32, seed=5, position=position), trail=order in RUNNING)
        one = Plan((E4M3,), BF16, None, order, Policy("stochastic"))
        assert_twins(accumulate.sums, rows[:1], one, Draw(8, seed=5, position=position), trail=order in RUNNING)
        batch = [mild_codes(E4M3, s, rng, 0) for s in ((3, 2, 13), (3, 13, 4))]
        assert_twins(accumulate.products, batch, plan, Draw(32, seed=5, position=position))


@pytest.mark.parametrize("nan", ["raise", "zero", "max"])
@pytest.mark.parametrize("order", ORDERS)
def test_accumulators_without_nan(order, nan):
    """NaN, and what becomes NaN on the way (448 + 448 in E4M3), where the accumulator has no code for it."""
    policy = Policy(nan=nan)
    codes = np.array([[0x38, 0x7F, 0x30, 0x30], [0x38, 0x31, 0x7E, 0x7E]], np.uint8)
    for plan in (Plan((E4M3,), E2M1, None, order, policy), Plan((E4M3, E4M3), E2M1, E4M3, order, policy)):
        assert_twins(accumulate.sums, [codes] * len(plan.inputs), plan)


@pytest.mark.parametrize("order", ["sequential", "kahan", "double-word"])
def test_infinities_without_nan(order):
    """Infinities of both signs, given or from an overflow on the way, where no format has a NaN for their sum."""
    format = Format("no_nan", 4, 3, 7, specials="finite", infinities=True)
    codes = np.array([[0x7F, 0xFF, 0x38], [0x7E, 0x7E, 0xFF], [0x38, 0x30, 0xB8]], np.uint8)
    for row in codes:
        assert_twins(accumulate.sums, [row[None]], Plan((format,), format, None, order))
        assert_twins(accumulate.sums, [row[None]] * 2, Plan((format, format), format, format, order))


@pytest.mark.parametrize("nan", ["zero", "max"])
def test_products_that_become_nan(nan):
    """28 times 28 is past the top of E4M3: a NaN product of finite formats, and E2M1 has no code for it."""
    codes = np.array([[0x1F, 0x04, 0x1F], [0x04, 0x1F, 0x08]], np.uint8)
    e3m2 = numsim.E3M2
    assert_twins(accumulate.sums, [codes] * 2, Plan((e3m2, e3m2), E2M1, E4M3, policy=Policy(nan=nan)))


def test_every_kernel_has_a_twin():
    """A loop that no plan uses would be tested by nobody."""
    from numba.core.dispatcher import Dispatcher

    from numsim.kernels import _accumulate_lanes, _accumulate_rows
    from numsim.kernels import accumulate as fast

    inside = {"round_scalar", "draw_at", "operand", "start", "plus", "exactly", "multiply", "fused"}
    inside |= {"round_lane", "start_lane", "plus_lane", "as_it_is"}
    own = set()
    for room in (fast, _accumulate_lanes, _accumulate_rows):
        own |= {n for n, f in vars(room).items() if isinstance(f, Dispatcher) and f.__module__ == room.__name__}
    assert own == {"product_lanes"} | inside
    names = ["sequential", "kahan", "neumaier", "double_word", "tree"]
    assert [f.__name__ for f in fast.SUM_LANES] == [f"sum_lanes_{n}" for n in names]
    assert [f.__name__ for f in fast.SUM_ROWS] == [f"sum_rows_{n}" for n in [*names, "exactly"]]
    assert {"sums", "products"} <= {n for n in vars(fast) if callable(getattr(accumulate, n, None))}


def test_empty_arrays(calls):
    for shapes in (((0, 3, 4), (0, 4, 2)), ((3, 0), (0, 2)), ((0, 3), (3, 2)), ((3, 2), (2, 0))):
        for plan in (Plan((FP16, FP16), FP16, FP16), Plan((FP16, FP16), FP32, None, "kahan")):
            assert_twins(accumulate.products, [np.ones(s, np.uint16) for s in shapes], plan)
    for shape in ((0,), (0, 3), (3, 0), (0, 0)):
        for order in ORDERS:
            assert_twins(accumulate.sums, [np.ones(shape, np.uint16)], Plan((BF16,), BF16, None, order))


# -- a CPU that flushes subnormal numbers, and bugs that wait for a repair --------------------------------------------


@pytest.fixture
def flush():
    """Switch flush-to-zero on for this thread, as any library can."""
    torch = pytest.importorskip("torch", reason="needs torch to switch flush-to-zero on: pip install torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no flush-to-zero mode")
    yield torch.set_flush_denormal
    torch.set_flush_denormal(False)


def subnormal_plans():
    """Products and sums that are subnormal in float32."""
    rng = np.random.default_rng(8)
    for format in (BF16, FP32, TF32):
        a = rng.integers(1, 3 << format.fraction_bits, (40, 20)).astype(f"u{format.code_bytes}")
        one = np.full((20, 40), format.bias << format.fraction_bits, a.dtype)
        yield [a, one], Plan((format, format), format, format)


def test_lanes_look_for_flush_to_zero(flush, calls):
    for operands, plan in subnormal_plans():
        assert_twins(accumulate.products, operands, plan)
    assert calls["product_lanes"] == 0


def test_workers_that_flush(flush, monkeypatch):
    """The pool's threads were made while flush-to-zero was on; now it is off again here, but not there."""
    from numsim.kernels import _pool
    from numsim.kernels import accumulate as fast

    monkeypatch.setenv("NUMSIM_THREADS", "3")
    monkeypatch.setattr(fast, "_GRAIN", 8000)
    monkeypatch.setattr(_pool, "_pool", None)
    _pool.over_chunks(3, lambda first, end: None, chunk=1, large=1)
    flush(False)
    try:
        for operands, plan in subnormal_plans():
            assert_twins(accumulate.products, operands, plan)
    finally:
        monkeypatch.setattr(_pool, "_pool", None)


def test_fp64_sums_while_subnormals_are_flushed(flush):
    codes = np.array([[1, 5, 0x0008000000000000]], np.uint64)
    assert_twins(accumulate.sums, [codes], Plan((numsim.FP64,), numsim.FP64))


def test_exact_sums_while_subnormals_are_flushed(flush):
    codes = np.array([[1, 5, 7], [0x8000000000000001, 0, 0]], np.uint64)
    for rounding in ("up", "down", "nearest-even"):
        assert_twins(accumulate.sums, [codes], Plan((numsim.FP64,), FP32, None, "exact", Policy(rounding)))
    assert_twins(accumulate.sums, [np.array([[1, 2, 0x80000004]], np.uint32)], Plan((FP32,), FP32, None, "exact"))


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
def test_exact_products_beyond_float32(overflow):
    """2^127 2^127 added to -inf, or to -max: the sum is rounded, not the product."""
    big, one, inf = 0x7F00, 0x3F80, 0xFF80
    first = inf if overflow == "ieee" else 0xFF7F
    a, b = np.array([[first, big]], np.uint16), np.array([[one], [big]], np.uint16)
    assert_twins(accumulate.products, [a, b], Plan((BF16, BF16), FP32, None, policy=Policy(overflow=overflow)))


@pytest.mark.parametrize("bias", [7, 8])
def test_formats_without_fraction(bias):
    """All significands are 1, so a tie goes to the even exponent field."""
    format = Format("no_fraction", 4, 0, bias, specials="finite")
    codes = np.arange(32, dtype=np.uint8)
    a, b = (x.reshape(-1) for x in np.meshgrid(codes, codes))
    assert_twins(accumulate.sums, [np.stack([a, b], 1)], Plan((format,), format))
    assert_twins(
        accumulate.products, [np.stack([a, b], 1), np.full((2, 1), bias, np.uint8)], Plan((format,) * 2, format, format)
    )


def test_formats_below_float32s_normal_numbers():
    """A least normal number of 2^-129: the lanes' integer addition works in units that are too small there."""
    low = Format("low", 4, 3, 130, specials="fn")
    rng = np.random.default_rng(9)
    a = rng.integers(0, 0x40, (8, 5)).astype(np.uint8)
    b = rng.choice([0x3C00, 0x3800, 0x3400, 0x3E00], (5, 8)).astype(np.uint16)
    assert_twins(accumulate.products, [a, b], Plan((low, FP16), low, low))
