"""Orders and accumulators of sums are revealed and their bits compared; what adds otherwise is found out."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from numsim.codes import decode, exact
from numsim.errors import InputError
from numsim.formats import BF16, E4M3, FP16, FP32, FP64, get_format
from numsim.machines import Answer, Can, ask, get_machine
from numsim.machines.verdict import ANY_ORDER, Verdict
from numsim.reveal import trees
from numsim.suites.library import Answers, SumTree, compare_product, compare_sum, sum_tree
from numsim.suites.statistics import cancelling_codes, exact_products, exact_sums, uniform_codes
from numsim.suites.suite import Collector
from numsim.tensorcore import matmul

FLOATS = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}


# --- a library of our own: NumPy's additions, in any order ------------------------------------------------------------
def one_after_another(x, add):
    total = x[..., 0]
    for i in range(1, x.shape[-1]):
        total = add(total, x[..., i])
    return total


def backwards(x, add):
    return one_after_another(x[..., ::-1], add)


def halves(x, add):
    n = x.shape[-1]
    return x[..., 0] if n == 1 else add(halves(x[..., : n // 2], add), halves(x[..., n // 2 :], add))


def four_lanes(x, add):
    lanes = [one_after_another(x[..., lane::4], add) for lane in range(4)]
    return add(add(lanes[0], lanes[2]), add(lanes[1], lanes[3]))


ORDERS = (one_after_another, backwards, halves, four_lanes)


class Adds:
    """A library that adds in an order and rounds each partial sum to NumPy's ``accumulator``."""

    name = "mine"

    def __init__(self, order=one_after_another, accumulator=np.float32, alone=None, add=None, flush=False):
        self.order, self.accumulator, self.alone = order, accumulator, alone or order
        self.add, self.flush = add or np.add, flush

    def can(self, question=None):
        return Can(True)

    def answer(self, q):
        f, x = q.inputs[0], q.arrays[0]
        if self.flush:
            x = np.where(x & (f.sign_mask - 1) < 1 << f.fraction_bits, 0, x).astype(x.dtype)
        kind = FLOATS.get(f.name, np.float32)
        values = (x.view(kind) if f != BF16 else (x.astype(np.uint32) << 16).view(np.float32)).astype(self.accumulator)
        with np.errstate(all="ignore"):
            if q.system == "torch.cumsum" and self.order is one_after_another:
                total = np.add.accumulate(values, axis=-1, dtype=self.accumulator)
            elif q.system == "torch.cumsum":
                total = np.stack([self.order(values[..., : n + 1], self.add) for n in range(x.shape[-1])], axis=-1)
            else:
                total = (self.order if x.ndim > 1 else self.alone)(values, self.add)
            return Answer(store(np.asarray(total, self.accumulator), f), {"machine": self.name})


def store(total, f):
    if f != BF16:
        return total.astype(FLOATS[f.name]).view(f"u{f.code_bytes}")
    words = total.astype(np.float32).view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


def numbers(format, n, rows=64, system="torch.sum", seed=3):
    f = get_format(format)
    codes = cancelling_codes(f, (rows or 1, n), seed)
    codes = codes if rows else codes[0]
    return ask("library", [f], f, [codes], system=system)


class Places:
    """Places of an array instead of its numbers."""

    def __init__(self, items):
        self.items, self.shape = items, (len(items),)

    def __getitem__(self, at):
        found = self.items[at[-1]]
        return Places(found) if isinstance(found, list) else found


def wanted(order, n):
    """The tree of an order, from itself."""
    return normal(order(Places(list(range(n))), lambda x, y: (x, y)))


def normal(tree):
    return frozenset(map(normal, tree)) if isinstance(tree, tuple) else tree


# --- orders and accumulators ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("format", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [64, 0])
def test_order_and_accumulator_are_found_and_give_the_same_bits(format, order, rows):
    machine = Adds(order)
    found = sum_tree(machine, "torch.sum", format, 21, rows=rows)
    assert normal(found.trees[0]) == wanted(order, 21)
    assert found.accumulator == FP32 and found.kept == (23, 23)
    question = numbers(format, 21, rows)
    row = compare_sum("part", question, machine.answer(question), found)
    assert row.verdict.text == "same bits" and row.verdict.compared == max(rows, 1)
    assert row.note == f"same bits: {found.words}"


@pytest.mark.parametrize(("format", "accumulator", "kept"), [
    ("fp16", np.float16, 10), ("fp32", np.float64, 52), ("bf16", np.float64, 52), ("fp32", np.float32, 23),
])  # fmt: skip
def test_the_accumulators_width_is_found(format, accumulator, kept):
    found = sum_tree(Adds(halves, accumulator), "torch.sum", format, 40)
    assert found.kept == (kept, kept) and normal(found.trees[0]) == wanted(halves, 40)


def test_many_numbers_are_probed_in_parts_that_the_format_counts():
    found = sum_tree(Adds(four_lanes), "torch.sum", "bf16", 600)  # BF16 counts to 256
    assert normal(found.trees[0]) == wanted(four_lanes, 600)
    assert found.words == "4 lanes of 150 (one after another), then a tree of 4; FP32"


def test_a_long_chain_is_no_recursion():
    found = sum_tree(Adds(), "torch.sum", "fp16", 1500)
    assert found.sequential and found.words == "one after another; FP32"


def test_where_subnormals_are_flushed_normal_numbers_probe_and_the_bits_differ():
    machine = Adds(four_lanes, flush=True)
    found = sum_tree(machine, "torch.sum", "fp16", 24)
    assert normal(found.trees[0]) == wanted(four_lanes, 24)
    tiny = ask(
        "library", [FP16], FP16, [np.arange(64 * 24, dtype=np.uint16).reshape(64, 24) % 1024], system="torch.sum"
    )
    assert compare_sum("part", tiny, machine.answer(tiny), found).verdict.unexplained > 60


@pytest.mark.parametrize("format", ["fp16", "bf16", "fp32"])
def test_another_order_is_found_out(format):
    found = sum_tree(Adds(halves), "torch.sum", format, 100)
    question = numbers(format, 100)
    row = compare_sum("part", question, Adds(four_lanes).answer(question), found)
    assert row.verdict.unexplained > 10 and "UNEXPLAINED" in row.note


def test_an_fp16_accumulator_is_found_out():
    assert sum_tree(Adds(halves, np.float16), "torch.sum", "fp16", 64).accumulator == FP16
    found, question = sum_tree(Adds(halves), "torch.sum", "fp16", 64), numbers("fp16", 64)
    row = compare_sum("part", question, Adds(halves, np.float16).answer(question), found)
    assert row.verdict.unexplained > 10


def test_a_vector_alone_may_be_added_in_another_order_than_rows():
    machine = Adds(four_lanes, alone=halves)
    rows, alone = (sum_tree(machine, "torch.sum", "fp16", 33, rows=n) for n in (64, 0))
    assert normal(rows.trees[0]) == wanted(four_lanes, 33) and normal(alone.trees[0]) == wanted(halves, 33)
    question = numbers("fp16", 33, rows=0)
    assert compare_sum("p", question, machine.answer(question), alone).note == f"same bits: {alone.words}"
    assert rows.words not in compare_sum("p", question, machine.answer(question), rows).note  # it is not that of rows


def test_an_accumulator_that_narrows_on_the_way_has_two_widths():
    machine = Adds(lambda x, add: narrowing(x))
    found = sum_tree(machine, "torch.sum", "fp16", 32)
    assert found.kept == (23, 10) and found.accumulator is None and "24 then 11 bits" in found.words
    question = numbers("fp16", 32)
    row = compare_sum("part", question, machine.answer(question), found)
    assert row.note.startswith((ANY_ORDER, "1", "2", "3", "4", "5", "6"))  # no bits are claimed


def narrowing(x):
    """Blocks of 8 in FP32, which are added up in FP16."""
    blocks = [one_after_another(x[..., at : at + 8], np.add) for at in range(0, x.shape[-1], 8)]
    total = blocks[0].astype(np.float16)
    for block in blocks[1:]:
        total = total + block.astype(np.float16)
    return total.astype(np.float32)


def test_nothing_is_swallowed_by_an_exact_sum():
    class Exact(Adds):
        def answer(self, q):
            values = q.arrays[0].view(np.float16).astype(np.float64)
            total = np.array([math.fsum(row) for row in values.tolist()], np.float16)
            return Answer(total.view(np.uint16), {"machine": "mine"})

    found = sum_tree(Exact(), "torch.sum", "fp16", 20)
    assert found.trees == () and found.words.startswith("no order shows")
    question = numbers("fp16", 20)
    assert compare_sum("part", question, Exact().answer(question), found).verdict.ok


def test_what_cannot_be_answered_has_no_tree():
    class Silent(Adds):
        def can(self, question=None):
            return Can(False, "no")

    assert sum_tree(Silent(), "torch.sum", "fp16", 20).words == "not answered"


def test_a_tree_that_takes_too_many_probes_is_given_up():
    found = sum_tree(Adds(backwards), "torch.sum", "fp32", 400)
    assert found.trees == () and found.why == "too many probes are needed"


def test_running_sums_have_a_tree_each():
    machine = Adds(halves)
    found = sum_tree(machine, "torch.cumsum", "fp16", 12)
    assert [normal(t) for t in found.trees] == [normal(wanted(halves, n)) for n in range(1, 13)]
    assert not found.sequential
    question = numbers("fp16", 12, system="torch.cumsum")
    row = compare_sum("part", question, machine.answer(question), found)
    assert row.verdict.text == "same bits" and row.verdict.compared == 64 * 12
    longer = numbers("fp16", 300, system="torch.cumsum")  # another length, another order
    row = compare_sum("part", longer, machine.answer(longer), found)
    assert row.verdict.ok and row.note.startswith(ANY_ORDER) and row.verdict.documented[ANY_ORDER] > 0


def test_running_sums_one_after_another_are_known_at_any_length():
    machine = Adds(accumulator=np.float64)
    found = sum_tree(machine, "torch.cumsum", "fp32", 12)
    question = numbers("fp32", 300, system="torch.cumsum")
    assert found.words == "one after another; FP64"
    assert compare_sum("part", question, machine.answer(question), found).verdict.text == "same bits"
    narrower = compare_sum("part", question, Adds().answer(question), found)
    assert narrower.verdict.unexplained > 1000


def test_recorded_answers_give_the_same_tree_and_leave_what_was_no_probe():
    collector = Collector(Adds(four_lanes))
    with collector.part("sum"):
        found = sum_tree(collector, "torch.sum", "bf16", 30)
        collector.ask(numbers("bf16", 30))
    again = Answers(collector.answers)
    assert sum_tree(again, "torch.sum", "bf16", 30) == found
    assert [q.digest for q, _ in again.rest.values()] == [numbers("bf16", 30).digest]


@pytest.mark.parametrize(("system", "length"), [("torch.matmul", 20), ("torch.sum", 1), ("torch.sum", 1e3), (None, 20)])
def test_what_is_no_sum_is_refused(system, length):
    with pytest.raises(InputError):
        sum_tree(Adds(), system, "fp16", length)


# --- statistics -------------------------------------------------------------------------------------------------------
def test_an_unknown_order_is_documented_within_the_bound_and_unexplained_beyond():
    known = SumTree("torch.sum", FP16, 33, 0, ((0, 1),), (23, 23))  # FP32, of another length
    positive = uniform_codes(FP16, (64, 4096), 3) & np.uint16(0x7FFF)
    question = ask("library", [FP16], FP16, [positive], system="torch.sum")
    good = compare_sum("part", question, Adds(halves).answer(question), known)
    assert good.verdict.ok
    stalls = compare_sum("part", question, Adds(accumulator=np.float16).answer(question), known)
    assert stalls.verdict.unexplained > 32 and "beyond the bound of any order" in stalls.note
    assert "exactly" in str(stalls.verdict.shown[0])


def up(x, y):
    """A sum of FP32 numbers that is never below the exact one."""
    exact = x.astype(np.float64) + y
    total = exact.astype(np.float32)
    return np.where(total < exact, np.nextafter(total, np.float32(np.inf)), total)


def dropped(x, add):
    return halves(np.delete(x, 77, axis=-1), add)


def twice(x, add):
    return halves(np.concatenate([x, x[..., 77:78]], axis=-1), add)


MANY = 4096  # numbers
LONG = SumTree("torch.sum", FP32, 33, 0, ((0, 1),), (23, 23))  # FP32, of another length


def judged(format, machine, seed=3, change=lambda codes: codes):
    """A library's sums of many positive numbers in an order that nobody knows."""
    f = get_format(format)
    positive = uniform_codes(f, (64, MANY), seed)
    positive &= positive.dtype.type(f.sign_mask - 1)
    question = ask("library", [f], f, [positive], system="torch.sum")
    answer = machine.answer(question)
    return compare_sum("part", question, Answer(change(answer.codes), answer.provenance), LONG)


@pytest.mark.parametrize("format", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_within_the_bound_of_any(format, order):
    for seed in (3, 4):
        assert judged(format, Adds(order), seed).verdict.ok


@pytest.mark.parametrize("format", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("machine", [
    Adds(dropped), Adds(twice), Adds(one_after_another, np.float16), Adds(one_after_another, add=up),
], ids=["dropped", "twice", "fp16", "up"])  # fmt: skip
def test_sums_that_are_wrong_are_beyond_the_bound_of_any_order(format, machine):
    row = judged(format, machine)
    if format != "fp32" and machine.add is up:  # lost in the last rounding
        assert row.verdict.ok
    else:
        assert row.verdict.unexplained and "UNEXPLAINED" in row.note


@pytest.mark.parametrize(("format", "bit"), [("fp16", 0), ("bf16", 0), ("fp32", 9)])
def test_one_bit_of_one_result_is_found(format, bit):
    def flip(codes):
        codes[5] ^= codes.dtype.type(1 << bit)
        return codes

    row = judged(format, Adds(four_lanes), change=flip)
    assert row.verdict.unexplained == 1 and row.verdict.shown[0].index == (5,)


@pytest.mark.parametrize("format", ["fp16", "bf16"])
def test_a_last_rounding_that_is_always_up_is_found(format):
    def above(codes, values):
        low = decode(codes, get_format(format)) < values
        return codes + low.astype(codes.dtype)

    class Up(Adds):
        def answer(self, q):
            exact = exact_sums(decode(q.arrays[0], q.inputs[0]))
            return Answer(above(store(exact.astype(np.float32), q.output), exact), {"machine": "mine"})

    assert judged(format, Up()).verdict.unexplained > 16


def test_errors_of_one_sign_are_found_though_each_is_within_the_bound():
    row = judged("fp32", Adds(halves, add=up))
    assert row.verdict.unexplained > 32 and "errors lean to one side, 100% are positive" in row.note


def test_errors_that_are_too_large_all_together_are_found():
    def worse(codes):
        codes[::2] += np.uint32(150)
        codes[1::2] -= np.uint32(150)
        return codes

    row = judged("fp32", Adds(halves), change=worse)
    assert row.verdict.unexplained == 64 and "larger, all together" in row.note


def test_parts_of_threads_are_found_where_they_are_stored_in_the_format():
    def parts(x, add):
        stored = [store(halves(part, add), BF16).astype(np.uint32) << 16 for part in np.split(x, 2, axis=-1)]
        return add(*(part.view(np.float32) for part in stored))

    x = uniform_codes(BF16, (6, 65536), 5) & np.uint16(0x7FFF)
    x[:, :32768] -= np.uint16(3 << 7)  # an eighth
    question = ask("library", [BF16], BF16, [x], system="torch.sum")
    codes = Adds(parts).answer(question).codes
    two, none = (Answer(codes, {"machine": "torch-cpu", **threads}) for threads in ({"threads": 4}, {}))
    note = compare_sum("part", question, two, LONG).note
    assert note == "same bits: 2 equal parts, partial sums stored in BF16, then one after another"
    assert compare_sum("part", question, none, LONG).verdict.unexplained


def test_what_is_within_the_bound_is_no_documented_difference_in_any_words():
    row = judged("fp32", Adds(four_lanes))
    count = row.verdict.documented[ANY_ORDER]
    for verdict in (row.verdict, Verdict("", "") + row.verdict, row.verdict + Verdict("", "")):
        assert verdict.text == f"{count} within the bound of any order" and verdict.ok
        told = verdict.to_dict()
        assert told["within_the_bound_of_any_order"] == count and not told["documented"] and told["differ"] == count
        assert "documented" not in f"{told['verdict']} {told['reasons']}"
    both = row.verdict + Verdict("", "", compared=3, documented={"rounds twice": 2}, unexplained=1)
    assert both.text == f"1 UNEXPLAINED, 2 as documented, {count} within the bound of any order"
    assert "documented" not in row.note and row.note.startswith(ANY_ORDER)


def test_infinite_operands_leave_nothing_to_the_order():
    x = uniform_codes(FP16, (4, 200), 1)
    x[1, 3] = 0x7C00
    question = ask("library", [FP16], FP16, [x], system="torch.sum")
    answer = Adds().answer(question)
    assert compare_sum("part", question, answer, LONG).verdict.ok
    wrong = Answer(np.where(answer.codes == 0x7C00, 0x7BFF, answer.codes).astype(np.uint16), answer.provenance)
    assert compare_sum("part", question, wrong, LONG).verdict.unexplained == 1


def test_numbers_that_tell_no_orders_apart_name_none():
    ones = ask("library", [FP16], FP16, [np.full((2, 64), 0x3C00, np.uint16)], system="torch.sum")
    known = SumTree("torch.sum", FP16, 33, 64, (), ())
    assert compare_sum("part", ones, Adds().answer(ones), known).note == (
        "same bits: 4 ways fit, the first: one after another in FP32"
    )


@pytest.mark.parametrize("format", [FP16, BF16, FP32, E4M3])
def test_sums_and_products_are_exact(format):
    a, b = uniform_codes(format, (3, 20), 1), uniform_codes(format, (20, 4), 2)
    x, y = decode(a, format), decode(b, format)
    p, q = ([[exact(int(c), format) for c in row] for row in m] for m in (a, b))
    assert exact_sums(x).tolist() == [float(sum(row)) for row in p]
    assert exact_sums(x, running=True)[1].tolist() == [float(sum(p[1][: n + 1])) for n in range(20)]

    def dot(row, column):
        return float(sum((u * v for u, v in zip(row, column, strict=True)), Fraction(0)))

    assert exact_products(x, y).tolist() == [[dot(row, column) for column in zip(*q, strict=True)] for row in p]


def test_random_numbers_lie_between_minus_one_and_one():
    for format in (FP64, FP32, FP16, BF16, E4M3):
        x = decode(uniform_codes(format, (4000,), 7), format)
        assert np.abs(x).max() < 1 and 0.46 < np.abs(x).mean() < 0.52 and abs(x.mean()) < 0.05


# --- products ---------------------------------------------------------------------------------------------------------
def product(format, output, codes, m=24, n=24, k=512, system="torch.matmul", more=(), settings=None):
    f = get_format(format)
    a, b = uniform_codes(f, (m, k), 1), uniform_codes(f, (k, n), 2)
    inputs = [f, f, *[FP32] * len(more)]
    question = ask("library", inputs, output, [a, b, *more], system=system, settings=settings or {})
    return question, Answer(codes(a, b), {"machine": "cuda"})


@pytest.mark.parametrize(("format", "output", "chip", "instruction", "options", "settings", "name"), [
    ("bf16", "fp32", "h200", "wgmma.m64n256k16.f32.bf16.bf16", {}, {}, ""),
    ("bf16", "fp32", "a100", "mma.m16n8k16.f32.bf16.bf16.f32", {"split_k": 3}, {}, ", split_k=3"),
    ("bf16", "fp32", "a100", "mma.m16n8k8.f32.bf16.bf16.f32", {"split_k": 4, "combine": "pairwise"}, {},
     ", split_k=4, combine=pairwise"),
    ("fp16", "fp16", "a100", "mma.m16n8k16.f16.f16.f16.f16", {}, {}, ""),
    ("fp32", "fp32", "h200", "wgmma.m64n256k8.f32.tf32.tf32", {"tf32": "nearest-away"}, {"allow_tf32": True},
     ", tf32=nearest-away"),
])  # fmt: skip
def test_a_chain_that_alone_gives_all_bits_is_named(format, output, chip, instruction, options, settings, name):
    def codes(a, b):
        return matmul(a, b, chip=chip, instruction=instruction, output=output, **options)

    row = compare_product("part", *product(format, output, codes, settings=settings), chip=chip)
    assert row.verdict.text == "same bits" and row.verdict.compared == 24 * 24
    assert row.note.endswith(name) and instruction.split(".")[2:4] == row.note.split(": ")[1].split(".")[2:4]


def test_other_products_are_compared_by_their_errors():
    def eleven_parts(a, b):
        return matmul(a, b, chip="h200", instruction="mma.m16n8k16.f32.bf16.bf16.f32", output="fp32", split_k=11)

    question, answer = product("bf16", "fp32", eleven_parts)
    row = compare_product("part", question, answer, chip="h200")
    assert row.verdict.ok and row.note.startswith(ANY_ORDER) and row.verdict.compared == 24 * 24
    wrong = Answer(answer.codes ^ np.uint32(1 << 15), answer.provenance)
    row = compare_product("part", question, wrong, chip="h200")
    assert row.verdict.unexplained > 300 and "beyond the bound of any order" in row.note


def test_scaled_products_with_and_without_promotion():
    sa, sb = np.float32(0.3), np.float32(1.7)

    def codes(a, b, **options):
        instruction = "wgmma.m64n256k32.f32.e4m3.e4m3"
        sums = matmul(a, b, chip="h200", instruction=instruction, output="fp32", **options).view(np.float32)
        return store(sums * (sa * sb), BF16)

    scales = [np.asarray(s).view(np.uint32) for s in (sa, sb)]
    for options, settings in (({"promote": 128}, {}), ({}, {"use_fast_accum": True})):
        wanted = partial(codes, **options)
        asked = product("e4m3", "bf16", wanted, system="torch._scaled_mm", more=scales, settings=settings, k=256)
        row = compare_product("part", *asked, chip="h200")
        assert row.verdict.text == "same bits", row.note
        assert ("promote=128" in row.note) == bool(options) and "scaled in any order" in row.note


def test_scales_of_rows_and_columns():
    sa, sb = (np.linspace(low, 2.5, 24, dtype=np.float32) for low in (0.1, 0.7))

    def codes(a, b):
        sums = matmul(a, b, chip="h200", instruction="wgmma.m64n256k32.f32.e4m3.e4m3", output="fp32", promote=128)
        return sums.view(np.float32) * sb * sa[:, None]

    more = [sa[:, None].view(np.uint32), sb[None].view(np.uint32)]
    asked = product(
        "e4m3", "fp32", lambda a, b: codes(a, b).view(np.uint32), k=256, system="torch._scaled_mm", more=more
    )
    row = compare_product("part", *asked, chip="h200")
    assert row.verdict.text == "same bits" and row.note.count("scaled by b's scales, then a's") == 3
    assert "promote=128" in row.note and "split_k=2" in row.note  # of K = 256: the same


def test_what_is_no_product_of_two_matrices_is_refused():
    with pytest.raises(InputError, match="no matrix product"):
        compare_product("part", numbers("fp16", 8), Answer(np.zeros(64, np.uint16), {}))
    x = np.zeros((2, 8, 8), np.uint16)
    question = ask("library", [FP16, FP16], FP16, [x, x], system="torch.matmul")
    with pytest.raises(InputError, match="two matrices"):
        compare_product("part", question, Answer(x, {"machine": "cuda"}))


def blas(a, b):
    return (as_fp32(a) @ as_fp32(b)).view(np.uint32)


def as_fp32(codes):
    return (codes.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("chip", [None, "h200"])
def test_a_term_too_few_or_too_many_of_a_product_is_found(chip):
    question, answer = product("bf16", "fp32", blas)
    assert compare_product("part", question, answer, chip=chip).verdict.ok
    a, b = question.arrays
    less, more = a.copy(), np.concatenate([a, a[:, 9:10]], axis=1)
    less[:, 9] = 0
    for codes in (blas(less, b), blas(more, np.concatenate([b, b[9:10]]))):
        row = compare_product("part", question, Answer(codes, {"machine": "cuda"}), chip=chip)
        assert row.verdict.unexplained > 300


def test_one_wrong_result_of_a_product_is_found_wherever_it_is():
    question, answer = product("bf16", "bf16", lambda a, b: store(blas(a, b).view(np.float32), BF16), m=40, n=70)
    assert compare_product("part", question, answer).verdict.ok
    answer.codes[39, 69] ^= 1
    row = compare_product("part", question, answer)
    assert row.verdict.unexplained == 1 and row.verdict.shown[0].index == (39, 69)
    assert row.verdict.compared + sum(row.verdict.skipped.values()) == 40 * 70


# --- torch on this CPU ------------------------------------------------------------------------------------------------
def test_torchs_sums_have_an_order_that_gives_their_bits():
    pytest.importorskip("torch")
    machine = get_machine("torch-cpu")
    for format in ("fp16", "fp32"):
        for rows in (64, 0):
            found = sum_tree(machine, "torch.sum", format, 40, rows=rows)
            question = numbers(format, 40, rows)
            assert found.accumulator == FP32 and sorted(trees.leaves_of(found.trees[0])) == list(range(40))
            assert compare_sum("part", question, machine.answer(question), found).verdict.text == "same bits"


@pytest.mark.parametrize("format", ["fp16", "bf16", "fp32", "fp64"])
def test_torchs_products_are_within_the_bound(format):
    pytest.importorskip("torch")
    machine = get_machine("torch-cpu")
    question, _ = product(format, format, lambda a, b: a, k=300)
    row = compare_product("part", question, machine.answer(question))
    assert row.verdict.ok and (row.note.startswith((ANY_ORDER, "same bits: ")))
