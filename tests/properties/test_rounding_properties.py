"""What rounding must satisfy whatever the format: Hypothesis looks for counterexamples. No oracle, only mathematics."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import numsim

COMMON = settings(deadline=None, derandomize=True, max_examples=120, print_blob=False, database=None)
# To report a failure Hypothesis imports libcst where it is installed, and that warns; the failure would be lost.
pytestmark = pytest.mark.filterwarnings("ignore:mypy_extensions.TypedDict:DeprecationWarning")

NAMED = [f for f in numsim.list_formats() if f.bits < 64]
SIGNED = [f for f in NAMED if f.signed]
DIRECTED = ("toward-zero", "up", "down")
NEAREST = ("nearest-even", "nearest-away")
MODES = (*NEAREST, *DIRECTED, "odd")
SYMMETRIC = (*NEAREST, "toward-zero", "odd")


@st.composite
def own_formats(draw):
    """Any format that numsim.Format takes, small enough to be quick."""
    specials = draw(st.sampled_from(["ieee", "fn", "fnuz", "finite"]))
    exponent = draw(st.integers(2, 9))
    fraction = draw(st.integers(1, 12))
    bias = (1 << (exponent - 1)) - 1 + draw(st.integers(-3, 3))
    signed = specials == "fnuz" or draw(st.booleans())
    return numsim.Format("own", exponent, fraction, bias, signed=signed, specials=specials)


formats = st.one_of(st.sampled_from(NAMED), own_formats())
signed_formats = st.one_of(st.sampled_from(SIGNED), own_formats().filter(lambda f: f.signed))


@st.composite
def near(draw, format):
    """A number of interest to a format: a grid point or midpoint, on it or a little beside it; or any float."""
    if draw(st.integers(0, 3)) == 0:
        value = Fraction(draw(st.floats(allow_nan=False, allow_infinity=False)))
    else:
        rank = draw(st.one_of(st.integers(0, format.max_rank + 2), st.sampled_from(_edges(format))))
        value = format.magnitude(max(rank, 0))
        spacing = format.magnitude(max(rank, 0) + 1) - value
        value += spacing * Fraction(draw(st.integers(-4, 4)), 4)
        value += draw(st.sampled_from([0, 0, 1, -1])) * spacing * Fraction(1, 2 ** draw(st.integers(3, 60)))
    return abs(value) if not format.signed else value * draw(st.sampled_from([1, -1]))


def _edges(format):
    normal = 1 << format.fraction_bits
    return [0, 1, 2, normal - 1, normal, normal + 1, format.max_rank - 1, format.max_rank, format.max_rank + 1]


def number(code, format):
    """A code as a Fraction, infinities as numbers beyond all others; None for NaN."""
    kind = numsim.classify(code, format)
    if kind == "nan":
        return None
    sign = -1 if format.signed and int(code) & format.sign_mask else 1
    return sign * 4 * format.max if kind == "infinity" else numsim.exact(code, format)


@COMMON
@given(st.data())
def test_one_number_and_many(data):
    """The same code whether the number comes alone, in a list, as float64 or as a Fraction."""
    format = data.draw(formats)
    xs = data.draw(st.lists(near(format), max_size=8))
    xs = [x for x in xs if abs(x) < 2**1000]
    mode = data.draw(st.sampled_from(MODES))
    options = {"rounding": mode, "overflow": "saturate"}
    alone = [int(numsim.encode(x, format, **options)) for x in xs]
    assert numsim.encode(xs, format, **options).tolist() == alone
    floats = [x for x in xs if Fraction(float(x)) == x]
    as_floats = np.array([float(x) for x in floats], np.float64)
    assert numsim.encode(as_floats, format, **options).tolist() == [
        c for c, x in zip(alone, xs, strict=True) if Fraction(float(x)) == x and (x or c in (0, format.rank(0)))
    ]


@COMMON
@given(st.data())
def test_monotone(data):
    format, mode = data.draw(formats), data.draw(st.sampled_from(MODES))
    overflow = data.draw(st.sampled_from(["saturate", "saturate-finite"] if format.infinity_code is None else ["ieee"]))
    subnormals = data.draw(st.sampled_from(["keep", "flush-inputs", "flush-results", "flush"]))
    a, b = sorted([data.draw(near(format)), data.draw(near(format))])
    options = {"rounding": mode, "overflow": overflow, "subnormals": subnormals}
    assert number(numsim.encode(a, format, **options), format) <= number(numsim.encode(b, format, **options), format)


@COMMON
@given(st.data())
def test_numbers_of_the_format_stay(data):
    """decode and encode are inverse, in every mode and under every policy that does not flush."""
    format = data.draw(formats)
    code = data.draw(st.integers(0, format.codes - 1))
    assume(numsim.classify(code, format) not in ("nan", "infinity"))
    mode = data.draw(st.sampled_from([*MODES, "stochastic"]))
    options = {"rounding": mode, "overflow": data.draw(st.sampled_from(["ieee", "saturate", "saturate-finite"]))}
    if mode == "stochastic":
        options["random_bits"] = data.draw(st.integers(0, 2**32 - 1))
    exact = numsim.exact(code, format)
    for given_value in (exact, numsim.decode(code, format), str(exact)):
        again = int(numsim.encode(given_value, format, **options))
        # a Fraction knows no -0, and an unsigned format has none
        assert again == code or (exact == 0 and again & ~format.sign_mask == 0 and code & ~format.sign_mask == 0)
    assert int(numsim.encode(numsim.decode(code, format), format, **options)) == code
    seen = numsim.Events()
    numsim.encode(exact, format, events=seen, **options)
    assert (seen.inexact, seen.overflow, seen.underflow, seen.nan) == (0, 0, 0, 0)


@COMMON
@given(st.data())
def test_idempotent(data):
    """Rounding what is rounded changes nothing, in any pair of modes."""
    format = data.draw(formats)
    x = data.draw(near(format))
    policy = {
        "overflow": data.draw(st.sampled_from(["ieee", "saturate", "saturate-finite"])),
        "subnormals": data.draw(st.sampled_from(["keep", "flush-inputs", "flush-results", "flush"])),
    }
    once = numsim.encode(x, format, rounding=data.draw(st.sampled_from(MODES)), **policy)
    assume(numsim.classify(once, format) not in ("nan", "infinity"))
    twice = numsim.encode(numsim.decode(once, format), format, rounding=data.draw(st.sampled_from(MODES)), **policy)
    assert int(once) == int(twice)


@COMMON
@given(st.data())
def test_sign_symmetry(data):
    format = data.draw(signed_formats)
    x = data.draw(near(format))
    assume(x)
    options = {
        "overflow": data.draw(st.sampled_from(["ieee", "saturate"])),
        "subnormals": data.draw(st.sampled_from(["keep", "flush-inputs", "flush-results", "flush"])),
    }
    mode = data.draw(st.sampled_from(SYMMETRIC))
    pairs = [(mode, mode), ("up", "down"), ("down", "up")]
    for here, there in pairs:
        plus = numsim.encode(x, format, rounding=here, **options)
        minus = numsim.encode(-x, format, rounding=there, **options)
        if numsim.classify(plus, format) == "nan":
            assert int(plus) == int(minus) == format.nan_code
        elif format.specials == "fnuz" and int(plus) == 0:
            assert int(minus) == 0
        else:
            assert int(plus) ^ int(minus) == format.sign_mask
    random = data.draw(st.integers(0, 2**32 - 1))
    up, down = (numsim.encode(s * x, format, rounding="stochastic", random_bits=random, **options) for s in (1, -1))
    if numsim.classify(up, format) != "nan" and int(up) & ~format.sign_mask:
        assert int(up) ^ int(down) == format.sign_mask


@COMMON
@given(st.data())
def test_up_and_down_bracket(data):
    """down <= x <= up, neighbours of each other, and every mode gives one of the two."""
    format = data.draw(formats)
    x = data.draw(near(format))
    assume(abs(x) <= format.max and (format.zero or x >= format.least))
    down = numsim.encode(x, format, rounding="down")
    up = numsim.encode(x, format, rounding="up")
    below, above = numsim.exact(down, format), numsim.exact(up, format)
    assert below <= x <= above
    assert (below == above) == (below == x)
    if below != above:
        start = int(down) if below else 0
        assert numsim.exact(numsim.neighbours(start, format)[1], format) == above
    for mode in MODES:
        assert numsim.exact(numsim.encode(x, format, rounding=mode), format) in (below, above)
    toward = numsim.exact(numsim.encode(x, format, rounding="toward-zero"), format)
    assert toward == (below if x >= 0 else above)
    for random in (0, 1, 2**31, 2**32 - 1):
        got = numsim.encode(x, format, rounding="stochastic", random_bits=random)
        assert numsim.exact(got, format) in (below, above)


@COMMON
@given(st.data())
def test_nearest_is_nearest(data):
    format = data.draw(formats)
    x = data.draw(near(format))
    assume(abs(x) <= format.max and (format.zero or x >= format.least))
    below = numsim.exact(numsim.encode(x, format, rounding="down"), format)
    above = numsim.exact(numsim.encode(x, format, rounding="up"), format)
    even = numsim.encode(x, format)
    away = numsim.encode(x, format, rounding="nearest-away")
    for code in (even, away):
        assert abs(numsim.exact(code, format) - x) == min(x - below, above - x)
    if above - x == x - below and above != below:
        assert int(even) % 2 == 0 and abs(numsim.exact(away, format)) == max(abs(below), abs(above))
    else:
        assert int(even) == int(away)


@COMMON
@given(st.data())
def test_odd_is_odd_when_inexact(data):
    """Within range an inexact result has an odd code, so that a second rounding cannot be fooled."""
    format = data.draw(formats)
    x = data.draw(near(format))
    assume(abs(x) < format.max and (format.zero or x >= format.least))
    code = numsim.encode(x, format, rounding="odd")
    assert numsim.exact(code, format) == x or int(code) % 2 == 1


@COMMON
@given(st.data())
def test_round_to_odd_makes_a_second_rounding_harmless(data):
    """Two more bits and round-to-odd first give the same code as one rounding (Boldo and Melquiond 2008)."""
    format = data.draw(st.sampled_from([f for f in SIGNED if f.specials == "ieee" and f.bits <= 19]))
    finer = numsim.Format("finer", format.exponent_bits, format.fraction_bits + 2, format.bias)
    x = data.draw(near(format))
    assume(abs(x) <= format.max)
    middle = numsim.exact(numsim.encode(x, finer, rounding="odd"), finer)
    for mode in NEAREST:
        direct = numsim.encode(x, format, rounding=mode)
        twice = numsim.encode(middle, format, rounding=mode)
        assert int(direct) & ~format.sign_mask == int(twice) & ~format.sign_mask


@COMMON
@given(st.data())
def test_saturation_bounds(data):
    """Saturation makes numbers of all numbers and infinities; without overflow the policy changes nothing."""
    format = data.draw(formats)
    mode = data.draw(st.sampled_from(MODES))
    x = data.draw(st.one_of(near(format), st.sampled_from([1, 2]).map(lambda k: k * format.max * 2)))
    code = numsim.encode(x, format, rounding=mode, overflow="saturate")
    assert abs(numsim.exact(code, format)) <= format.max
    assert int(code) == int(numsim.encode(x, format, rounding=mode, overflow="saturate-finite"))
    if abs(x) >= format.max and (format.signed or x > 0):
        assert int(code) & ~format.sign_mask == format.max_code
    seen = numsim.Events()
    plain = numsim.encode(x, format, rounding=mode, events=seen)
    if not seen.overflow:
        assert int(plain) == int(code)
    else:
        assert abs(x) > format.max
    infinity = numsim.encode(float("inf"), format, rounding=mode, overflow="saturate")
    assert int(infinity) == format.max_code


@COMMON
@given(st.data())
def test_scaling_by_powers_of_two(data):
    """Away from the edges the grid looks the same in every binade."""
    format = data.draw(formats.filter(lambda f: f.exponent_bits >= 3))
    mode = data.draw(st.sampled_from(MODES))
    significand = Fraction(data.draw(st.integers(2**40, 2**41 - 1)), 2**40)
    low, high = format.emin, format.emax - 1
    e1, e2 = data.draw(st.integers(low, high)), data.draw(st.integers(low, high))
    sign = data.draw(st.sampled_from([1, -1])) if format.signed else 1
    if format.fraction_bits == 0 and (e1 - e2) % 2:  # there the parity of a code is that of its exponent
        assume(mode not in ("nearest-even", "odd"))
    one, two = (
        numsim.exact(numsim.encode(sign * significand * Fraction(2) ** e, format, rounding=mode), format)
        for e in (e1, e2)
    )
    assert one / Fraction(2) ** e1 == two / Fraction(2) ** e2


@COMMON
@given(st.data())
def test_flushing(data):
    """flush-results leaves no subnormal, flush-inputs none of subnormal inputs, and what is normal stays as it was."""
    format, mode = data.draw(formats), data.draw(st.sampled_from(MODES))
    x = data.draw(near(format))
    keep = numsim.encode(x, format, rounding=mode, overflow="saturate")
    results = numsim.encode(x, format, rounding=mode, overflow="saturate", subnormals="flush-results")
    inputs_ = numsim.encode(x, format, rounding=mode, overflow="saturate", subnormals="flush-inputs")
    both = numsim.encode(x, format, rounding=mode, overflow="saturate", subnormals="flush")
    if numsim.classify(keep, format) == "subnormal":
        assert numsim.exact(results, format) == 0
        assert int(results) == (int(keep) & format.sign_mask if format.specials != "fnuz" else 0)
    else:
        assert int(results) == int(keep)
    if abs(x) < format.least_normal and format.zero:
        assert numsim.exact(inputs_, format) == 0
    else:
        assert int(inputs_) == int(keep)
    assert int(both) == (int(inputs_) if abs(x) < format.least_normal else int(results))


@COMMON
@given(st.data())
def test_events_tell_what_happened(data):
    format, mode = data.draw(formats), data.draw(st.sampled_from(MODES))
    x = data.draw(near(format))
    seen = numsim.Events()
    code = numsim.encode(x, format, rounding=mode, overflow="saturate", events=seen)
    value = numsim.exact(code, format)
    assert seen.total == 1 and seen.nan == 0
    assert seen.inexact == (value != x)
    assert seen.underflow == (x != 0 and value == 0)
    assert seen.subnormal == (numsim.classify(code, format) == "subnormal")
    if abs(x) <= format.max:
        assert seen.overflow == 0
    step = numsim.ulp(format.max_code, format)
    if abs(x) >= format.max + step:
        assert seen.overflow == 1


@COMMON
@given(st.data())
def test_round_to_is_decode_of_encode(data):
    format = data.draw(st.one_of(st.sampled_from([f for f in NAMED if f.bits <= 32]), own_formats()))
    options = {
        "rounding": data.draw(st.sampled_from(MODES)),
        "overflow": data.draw(st.sampled_from(["ieee", "saturate", "saturate-finite"])),
        "subnormals": data.draw(st.sampled_from(["keep", "flush-inputs", "flush-results", "flush"])),
        "nan": "zero",
    }
    width = data.draw(st.sampled_from([32, 64]))
    assume(width == 64 or format.exponent_bits <= 7)
    xs = np.array(data.draw(st.lists(st.floats(width=width), max_size=9)), f"f{width // 8}")
    got = numsim.round_to(xs, format, **options)
    right = numsim.decode(numsim.encode(xs, format, **options), format).astype(xs.dtype)
    assert got.dtype == xs.dtype and np.array_equal(got.view(f"u{width // 8}"), right.view(f"u{width // 8}"))


@COMMON
@given(st.data())
def test_neighbours_are_inverse(data):
    format = data.draw(formats)
    code = data.draw(st.integers(0, format.codes - 1))
    assume(numsim.classify(code, format) != "nan")
    below, above = numsim.neighbours(code, format)
    here = number(code, format)
    if above is not None:
        assert number(above, format) > here
        assert number(numsim.neighbours(above, format)[0], format) == here
    if below is not None:
        assert number(below, format) < here
        assert number(numsim.neighbours(below, format)[1], format) == here


@COMMON
@given(st.data())
def test_pack_and_unpack_are_inverse(data):
    name, group = data.draw(st.sampled_from([("e2m1", 2), ("e3m2", 4), ("e2m3", 4)]))
    top = numsim.get_format(name).codes - 1
    groups = data.draw(st.lists(st.lists(st.integers(0, top), min_size=group, max_size=group), min_size=1, max_size=5))
    codes = np.array(groups, np.uint8).ravel()
    assert np.array_equal(numsim.unpack(numsim.pack(codes, name), name), codes)


@pytest.mark.parametrize("implementation", ["reference", "kernel"])
def test_both_implementations_satisfy_the_brackets(implementation):
    """The properties above run on what numsim chooses (one number: the reference); here arrays through each."""
    try:
        context = numsim.kernels.force(implementation)
        context.__enter__()
    except numsim.errors.UnavailableError as error:
        pytest.skip(str(error))
    try:
        x = np.random.default_rng(12).normal(size=400) * np.exp2(np.random.default_rng(13).integers(-30, 10, 400))
        for format in NAMED:
            values = np.abs(x) if not format.signed else x
            values = np.clip(values, float(format.least) if not format.zero else None, None)
            values = np.clip(values, -float(format.max), float(format.max))
            down, up = (numsim.round_to(values, format, rounding=m) for m in ("down", "up"))
            assert np.all(down <= values) and np.all(values <= up)
            for mode in MODES:
                got = numsim.round_to(values, format, rounding=mode)
                assert np.all((got == down) | (got == up))
    finally:
        context.__exit__(None, None, None)
