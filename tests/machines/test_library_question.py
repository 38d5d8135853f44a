"""amax, and a library's own sums and products: what may be asked, what comes back, and what is refused."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

import numsim
from numsim import files
from numsim.codes import classify, code_dtype
from numsim.errors import InputError, RecordError, UnavailableError
from numsim.machines import Answer, ask, find_machine, get_machine
from numsim.machines.emulated import Emulated, emulate, has_kernel
from numsim.machines.question import FUNCTIONS, Question
from numsim.machines.recorded import Recorded, parse_record, record_bytes, write_record
from numsim.machines.verdict import compare, compare_answers
from tests.machines import battery

FP8 = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz", "e3m4", "e4m3_ieee")
FORMATS = ("fp64", "fp32", "fp16", "bf16", "e8m0", "ue4m3", "e3m2", "e2m3", "e2m1", "tf32", *FP8)
ONE = np.array(0x3F800000, np.uint32)  # 1 in fp32


def matrices(m=32, k=64, n=16, seed=3, formats=("e4m3fn", "e4m3fn")):
    rng = np.random.default_rng(seed)
    return [numsim.encode(rng.standard_normal(s), f) for s, f in zip(((m, k), (k, n)), formats, strict=True)]


def function(system, *arrays, inputs=("fp16",), output="fp16", **settings):
    return ask("library", inputs, output, arrays, system=system, settings=settings)


def scaled(a, b, x=ONE, y=ONE, inputs=("e4m3fn", "e4m3fn"), output="fp32", **settings):
    return function("torch._scaled_mm", a, b, x, y, inputs=[*inputs, "fp32", "fp32"], output=output, **settings)


# --- amax -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FORMATS)
def test_amax_is_the_largest_magnitude(name):
    """Against Python's own comparison of exact numbers."""
    format = numsim.get_format(name)
    codes = battery.all_codes(format) if format.bits <= 8 else battery.pairs(format, 400)[0]
    nan = np.asarray(classify(codes, format)) == "nan"
    infinite = np.asarray(classify(codes, format)) == "infinity"
    rows = np.random.default_rng(5).permutation(codes[~nan & ~infinite])[: len(codes) // 8 * 4].reshape(-1, 4)
    found = emulate(ask("amax", [name], name, [rows]))
    assert found.shape == rows.shape[:1] and found.dtype == code_dtype(format)
    for row, code in zip(rows.tolist(), found.tolist(), strict=True):
        assert numsim.exact(code, format) == max(abs(numsim.exact(c, format)) for c in row)
    for bad in codes[nan][:3].tolist():  # NaN wins, wherever it is
        row = rows[0].tolist()
        for place in range(4):
            worse = [*row[:place], bad, *row[place:]]
            assert emulate(ask("amax", [name], name, [np.array([worse], code_dtype(format))])).tolist() == [
                format.nan_code
            ]
    for code in codes[infinite].tolist():
        worse = np.array([[0, code, 1]], code_dtype(format))
        assert emulate(ask("amax", [name], name, [worse])).tolist() == [format.infinity_code]


@pytest.mark.parametrize("machine", ["numpy", "ml_dtypes", "torch-cpu"])
def test_libraries_find_the_same_amax(machine):
    if machine == "torch-cpu":
        pytest.importorskip("torch", reason="torch is not installed: .[test,torch]")
    machine, asked = get_machine(machine), set()
    for name in FORMATS:
        format = numsim.get_format(name)
        codes = battery.all_codes(format) if format.bits <= 8 else battery.pairs(format, 1024)[0]
        rows = np.concatenate([codes, codes[: -len(codes) % 8]]).reshape(-1, 8)
        for q in (ask("amax", [name], name, [x]) for x in (rows, rows[:0], rows[:, :0], rows[0], rows[:, None, :3])):
            if machine.can(q):
                asked.add(name)
                assert compare(q, emulated(q), machine.answer(q)).text[:9] == (
                    "same bits" if q.shape != (0,) else "skipped: "
                )
            else:
                assert machine.can(q).reason == f"{machine.name} has no amax of {name}"
    wanted = {"numpy": {"fp64", "fp32", "fp16"}, "ml_dtypes": {"bf16", "e8m0", "e3m2", "e2m3", "e2m1", *FP8},
              "torch-cpu": {"fp64", "fp32", "fp16", "bf16", "e8m0", *FP8[:4]}}  # fmt: skip
    assert asked <= wanted[machine.name] and len(asked) >= 3


def emulated(q):
    return Emulated().answer(q)


def test_amax_of_nothing_and_of_zeros():
    for shape, wanted in (((0,), ()), ((3, 0), (3,)), ((0, 4), (0,))):
        found = emulate(ask("amax", ["fp16"], "fp16", [np.zeros(shape, np.uint16)]))
        assert found.shape == wanted and not found.any()
    assert emulate(ask("amax", ["fp16"], "fp16", [np.array([0x8000, 0x8000], np.uint16)])) == 0  # +0 of two -0
    assert emulate(ask("amax", ["e8m0"], "e8m0", [np.zeros((2, 0), np.uint8)])).tolist() == [0, 0]  # its least number
    assert emulate(ask("amax", ["e4m3fnuz"], "e4m3fnuz", [np.array([0x81, 0x80], np.uint8)])) == 0x80  # 0x80 is its NaN


def test_what_amax_refuses():
    x = np.zeros((2, 3), np.uint16)
    with pytest.raises(InputError, match=r"amax of fp16 numbers is one of them, not fp32\. Example: ask\('amax'"):
        ask("amax", ["fp16"], "fp32", [x])
    with pytest.raises(InputError, match="amax rounds nothing: it takes no rounding"):
        ask("amax", ["fp16"], "fp16", [x], rounding="up")
    with pytest.raises(InputError, match="amax: arrays of shapes"):
        ask("amax", ["fp16"], "fp16", [x[0, 0]])
    with pytest.raises(InputError, match="system and settings belong to"):
        ask("amax", ["fp16"], "fp16", [x], system="torch.sum")
    assert has_kernel(ask("amax", ["fp16"], "fp16", [x]))


# --- library functions ------------------------------------------------------------------------------------------------
X = np.zeros((2, 3), np.uint16)


@pytest.mark.parametrize(("q", "shape"), [
    (lambda: function("torch.sum", X), (2,)),
    (lambda: function("torch.cumsum", X), (2, 3)),
    (lambda: function("torch.sum", X[0]), ()),
    (lambda: function("torch.matmul", X, X.T, inputs=["fp16"] * 2), (2, 2)),
    (lambda: function("torch.matmul", np.zeros((5, 1, 2, 3), np.uint16), np.zeros((7, 3, 4), np.uint16),
                      inputs=["fp16"] * 2), (5, 7, 2, 4)),
    (lambda: scaled(*matrices(3, 5, 7)), (3, 7)),
    (lambda: scaled(*matrices(3, 5, 7), np.zeros((3, 1), np.uint32), np.zeros((1, 7), np.uint32)), (3, 7)),
])  # fmt: skip
def test_shapes(q, shape):
    assert q().shape == shape and q().record["options"]["system"] == q().system


A, B = matrices(3, 5, 7)


@pytest.mark.parametrize(("ask_it", "words"), [
    (lambda: ask("library", ["fp16"], "fp16", [X]), r"system=None: allowed are torch\.sum, .* Example: ask\('library'"),
    (lambda: function("torch.exp", X), r"system='torch\.exp': allowed are"),
    (lambda: function("torch.sum", X, X, inputs=["fp16"] * 2), "library takes 1 arrays"),
    (lambda: function("torch.sum", X[0, 0]), r"torch\.sum: arrays of shapes \(\) do not go together"),
    (lambda: function("torch.matmul", X, X, inputs=["fp16"] * 2), r"torch\.matmul: arrays of shapes"),
    (lambda: function("torch.sum", X, allow_tf32=True), r"setting allow_tf32=True: torch\.sum has no settings\."),
    (lambda: function("torch.matmul", X, X.T, inputs=["fp16"] * 2, tf32=True),
     r"torch\.matmul has the flags allow_tf32, .* Example: settings={'allow_.*': True}"),
    (lambda: function("torch.matmul", X, X.T, inputs=["fp16"] * 2, allow_tf32=1), "allow_tf32=1: .*True or False"),
    (lambda: scaled(A, B, use_fast_accum="yes"), "use_fast_accum='yes': .*True or False"),
    (lambda: scaled(A, B, output="fp17"), "unknown format"),
    (lambda: scaled(A[0], B), r"torch\._scaled_mm: arrays of shapes .* a \(M, K\), b \(K, N\) and scales \(\) and"),
    (lambda: scaled(A, B.T), "do not go together"),
    (lambda: scaled(A, B, np.zeros((3, 1), np.uint32)), r"or \(M, 1\) and \(1, N\), are needed"),
    (lambda: scaled(A, B, np.zeros((3, 2), np.uint32), np.zeros((1, 7), np.uint32)), "do not go together"),
    (lambda: scaled(A, B, *[np.zeros((1, 1), np.uint32)] * 2), "do not go together"),
    (lambda: ask("library", ["e4m3"] * 2 + ["fp16"] * 2, "fp32", [A, B, X[0, 0], X[0, 0]], system="torch._scaled_mm"),
     r"the scales are fp32 numbers, not fp16\. Example: inputs"),
    (lambda: ask("library", ["fp16"], "fp16", [X], system="torch.sum", order="pairwise"), "it takes no order, only"),
    (lambda: ask("library", ["fp16"], "fp16", [X], system="torch.sum", rounding="up"), "it takes no rounding"),
    (lambda: ask("sum", ["fp16"], "fp16", [X], settings={"allow_tf32": True}), "system and settings belong to"),
    (lambda: ask("library", ["fp16"], "fp16", [X], system=["torch.sum"]), "system="),
])  # fmt: skip
def test_what_is_refused(ask_it, words):
    with pytest.raises(numsim.errors.NumsimError, match=words):
        ask_it()


def test_digests_name_the_flags_that_are_not_usual():
    asked = [function("torch.matmul", X, X.T, inputs=["fp16"] * 2)]
    for name, usual in FUNCTIONS["torch.matmul"][1].items():
        same = function("torch.matmul", X, X.T, inputs=["fp16"] * 2, **{name: usual})
        assert same.digest == asked[0].digest and not same.settings
        asked.append(function("torch.matmul", X, X.T, inputs=["fp16"] * 2, **{name: not usual}))
        assert asked[-1].settings == ((name, not usual),)
    asked += [function("torch.sum", X), function("torch.cumsum", X), scaled(A, B), scaled(A, B, use_fast_accum=True)]
    assert len({q.digest for q in asked}) == len(asked)
    for q in asked:
        again = Question(q.operation, q.inputs, q.output, q.arrays, q.record["options"])
        assert again.digest == q.digest and str(again) == str(q)


def test_nobody_emulates_what_states_no_order():
    q = function("torch.sum", X)
    assert Emulated().can(q).reason == "torch.sum states no order in which it adds"
    for machine in ("numpy", "ml_dtypes"):
        assert find_machine(machine).can(q).reason == f"{machine} has no torch.sum"
    with pytest.raises(UnavailableError, match=r"numpy has no torch\.sum"):
        get_machine("numpy").answer(q)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed: .[test,torch]")


def test_torch_says_what_torch_says(torch):
    machine, rng = get_machine("torch-cpu"), np.random.default_rng(8)
    for name, width in (("fp16", "float16"), ("bf16", "bfloat16"), ("fp32", "float32"), ("fp64", "float64")):
        dtype, signed = getattr(torch, width), getattr(torch, f"int{numsim.get_format(name).bits}")
        x, y = (numsim.encode(rng.standard_normal((5, 70)), name) for _ in range(2))
        x[0, 3], x[1, 4] = numsim.get_format(name).nan_code, numsim.get_format(name).sign_mask
        a, b = (torch.from_numpy(v.astype(v.dtype)).view(signed).view(dtype) for v in (x, y))
        for q, wanted in (
            (function("torch.sum", x, inputs=[name], output=name), a.sum(-1)),
            (function("torch.cumsum", x, inputs=[name], output=name), a.cumsum(-1)),
            (function("torch.sum", x, inputs=[name], output="fp64"), a.sum(-1, dtype=torch.float64)),
            (function("torch.matmul", x, y.T, inputs=[name] * 2, output=name), a @ b.T.contiguous()),
            (function("torch.sum", x[:, :0], inputs=[name], output=name), a[:, :0].sum(-1)),
        ):
            codes = machine.answer(q).codes
            compare(q, machine.answer(q), machine.answer(q))  # checks shape and dtype
            bits = wanted.contiguous().view(getattr(torch, f"int{q.output.bits}")).numpy()
            nan = np.asarray(classify(codes, q.output)) == "nan"
            assert np.array_equal(nan, wanted.isnan().numpy()) and np.array_equal(
                codes[~nan], bits.view(codes.dtype)[~nan]
            )


@pytest.mark.parametrize("formats", list(itertools.product(("e4m3fn", "e5m2"), repeat=2)), ids="-".join)
def test_scaled_products(torch, formats):
    machine = get_machine("torch-cpu")
    a, b = matrices(16, 32, 16, formats=formats)
    x, y = numsim.decode(a, formats[0]), numsim.decode(b, formats[1])
    scales = 2.0 ** np.arange(16)
    rows, columns, two, half = (numsim.encode(v, "fp32") for v in (scales[:, None], scales[None], 2.0, 0.5))
    for inv_scales, factor, output in (
        ((two, half), 1.0, "fp32"), ((two, two), 4.0, "bf16"), ((rows, columns), np.outer(scales, scales), "bf16"),
    ):  # fmt: skip
        q = scaled(a, b, *inv_scales, inputs=formats, output=output)
        assert machine.can(q)
        found = numsim.decode(machine.answer(q).codes, output)
        # whatever the order: a bound, to see that each operand and scale is where it belongs
        assert (abs(found - x @ y * factor) <= abs(x) @ abs(y) * factor * 2.0**-8).all()


def test_torch_refuses_what_it_cannot(torch):
    machine = get_machine("torch-cpu")
    product = function("torch.matmul", X, X.T, inputs=["fp16"] * 2, allow_tf32=True)
    for q, reason in (
        (product, "allow_tf32 changes nothing on a CPU"),
        (scaled(A, B, use_fast_accum=True), "use_fast_accum changes nothing on a CPU"),
        (function("torch.sum", A, inputs=["e4m3fn"], output="fp32"), "torch.sum takes no e4m3fn"),
        (function("torch.sum", X, output="e5m2"), "torch.sum gives no e5m2"),
        (function("torch.matmul", X, X.T, inputs=["fp16", "bf16"]), "torch.matmul multiplies numbers of one format"),
        (
            function("torch.matmul", X, X.T, inputs=["fp16"] * 2, output="fp32"),
            "torch.matmul multiplies numbers of one",
        ),
        (scaled(X, X.T, inputs=["fp16"] * 2), "torch._scaled_mm takes no fp16"),
        (scaled(A, B, output="tf32"), "torch._scaled_mm gives no tf32"),
    ):
        assert machine.can(q).reason.startswith(reason)
        with pytest.raises(UnavailableError, match="torch-cpu cannot answer"):
            machine.answer(q)


def test_a_function_that_this_torch_lacks(torch, monkeypatch):
    monkeypatch.delattr(torch, "_scaled_mm")
    assert get_machine("torch-cpu").can(scaled(A, B)).reason == f"torch {torch.__version__} has no torch._scaled_mm"


def test_a_library_that_fails_says_so_in_one_line(torch, monkeypatch):
    def fail(*args, **options):
        raise NotImplementedError("not\nthere\t" + "x" * 999)

    monkeypatch.setattr(torch, "cumsum", fail)
    with pytest.raises(UnavailableError, match=r"torch-cpu failed at library.*: not there x") as error:
        get_machine("torch-cpu").answer(function("torch.cumsum", X))
    assert len(str(error.value)) < 300 and str(error.value).isprintable()


def test_recorded_and_answered_again(torch, tmp_path):
    machine = get_machine("torch-cpu")
    asked = [
        function("torch.sum", np.full((2, 40), 0x3C00, np.uint16)),
        function("torch.matmul", X, X.T, inputs=["fp16"] * 2),
        ask("amax", ["bf16"], "bf16", [np.array([[0xBF80, 0x3F00], [0x7FC0, 0]], np.uint16)]),
        scaled(*matrices(16, 16, 16)),
    ]
    answers = [(q, machine.answer(q)) for q in asked]
    replayed = Recorded(write_record(tmp_path / "r.npz", answers))
    for q, a in answers:
        assert np.array_equal(replayed.answer(q).codes, a.codes)
    verdict = compare_answers(answers, Emulated())
    assert (
        verdict.ok
        and verdict.compared == 2
        and verdict.skipped
        == {f"{s} states no order in which it adds": 1 for s in ("torch.sum", "torch.matmul", "torch._scaled_mm")}
    )
    data = record_bytes(answers)
    assert record_bytes(parse_record(data, "x").answers) == data


@pytest.mark.parametrize(("old", "new"), [
    ('["allow_tf32",true]', '["allow_tf32",false]'),
    ('["allow_tf32",true]', '["allow_tf32",1]'),
    ('["allow_tf32",true]', '["use_fast_accum",true]'),
    ('["allow_tf32",true]', '["allow_tf32",true],["allow_tf32",true]'),
    ('["allow_tf32",true]', '["allow_fp16_accumulation",false],["allow_tf32",true]'),
    ('"torch.matmul"', '"torch.exp"'),
    ('"torch.matmul"', '"os.system"'),
    ('"torch.matmul"', '["torch.matmul"]'),
    ('"torch.matmul"', "null"),
    ('"torch.matmul"', '"torch._scaled_mm"'),
])  # fmt: skip
def test_hostile_recordings(old, new):
    q = function("torch.matmul", X, X.T, inputs=["fp16"] * 2, allow_tf32=True)
    arrays = files.parse_npz(record_bytes([(q, Answer(np.zeros((2, 2), np.uint16), {"machine": "cuda"}))]), "x")
    text = arrays["record"].tobytes().decode()
    assert old in text
    arrays["record"] = np.frombuffer(text.replace(old, new).encode(), np.uint8)
    with pytest.raises(RecordError) as error:
        parse_record(files.npz_bytes(arrays), "r.npz")
    assert len(str(error.value)) < 400 and str(error.value).isprintable()


def test_nothing_loads_torch_to_ask(tmp_path):
    code = (
        "import sys, numpy as np; from numsim.machines import ask; x = np.zeros(3, np.uint16);"
        "ask('library', ['fp16'], 'fp16', [x], system='torch.sum'); ask('amax', ['fp16'], 'fp16', [x]);"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
