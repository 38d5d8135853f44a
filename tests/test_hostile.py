"""Bad input to the library: refused with value, rule and a call that works, before any work; nothing raw escapes."""

import io
import itertools
import json
import os
import tracemalloc
import zipfile
from fractions import Fraction

import numpy as np
import pytest

import numsim
from numsim import Format, NumsimError, array, decode, encode, experiments, from_codes, get_format, machines, round_to
from numsim.cli import main
from numsim.experiments.results import to_dict, to_text
from numsim.machines.recorded import record_bytes

FIELDS = {"name": "x", "exponent_bits": 5, "fraction_bits": 2, "bias": 15}


@pytest.mark.parametrize(
    "change",
    [
        {"signed": 5}, {"signed": -1}, {"zero": 3}, {"bias": 15.5}, {"bias": float("nan")}, {"bias": "5"},
        {"bias": None}, {"bias": 10**30}, {"name": 5}, {"name": ""}, {"specials": [5]}, {"specials": "none"},
        {"exponent_bits": "5"}, {"exponent_bits": None}, {"exponent_bits": 10**5000}, {"exponent_bits": True},
        {"exponent_bits": 0}, {"fraction_bits": 63}, {"fraction_bits": 0}, {"exponent_bits": 15, "fraction_bits": 60},
        {"specials": "fnuz", "signed": False}, {"zero": False},
    ],
)  # fmt: skip
def test_fields_that_make_no_format(change):
    with pytest.raises(NumsimError, match=r"Example: numsim\.Format"):
        Format(**{**FIELDS, **change})


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64, np.uint8])
def test_formats_of_numpys_integers_do_not_wrap(kind):
    made = Format("x", kind(5), kind(2), kind(15))
    assert made.max == numsim.E5M2.max and encode([1e300, 3.3], made).tolist() == encode([1e300, 3.3], "e5m2").tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda: encode([np.datetime64("2020")], "fp16"),
        lambda: encode([np.timedelta64(5)], "fp16"),
        lambda: encode(np.array(["2020"], "M8[D]"), "fp16"),
        lambda: encode(np.zeros(1, [("a", "f4")]), "fp16"),
        lambda: encode(np.array([1.0], object), "fp16"),
        lambda: encode(1j, "fp16"),
        lambda: encode(np.array([1j]), "fp16"),
        lambda: encode([[1.0], [1.0, 2.0]], "fp16"),
        lambda: encode(None, "fp16"),
        lambda: encode("0x1p" + "9" * 5000, "fp16"),
        lambda: encode("9" * 200_000, "fp16"),
        lambda: encode("z" * 200_000, "fp16"),
        lambda: encode(1.0, "fp16", rounding=10**5000),
        lambda: encode(1.0, "fp16", rounding=np.array(["up", "down"])),
        lambda: encode(1.0, "fp16", overflow=["ieee"]),
        lambda: encode(1.0, "fp16", events=3),
        lambda: encode(1.0, "fp16", rounding="stochastic", seed=np.timedelta64(5, "s")),
        lambda: encode(1.0, "fp16", rounding="stochastic", random_bits=[[1], [1, 2]]),
        lambda: encode(1.0, "fp16", rounding="stochastic", seed=1, sr_bits=True),
        lambda: encode(1.0, "fp16", seed=1),
        lambda: round_to(np.ones(1), "fp16", out=np.broadcast_to(0.0, (1,))),
        lambda: round_to(np.ones(2), "fp16", out=np.ones(3)),
        lambda: decode([[[1] * 2], [[1]]], "fp16"),
        lambda: decode(np.array([-1]), "fp16"),
        lambda: decode([70000], "fp16"),
        lambda: decode([10**30], "fp16"),
        lambda: from_codes([[1], [1, 2]], "fp16"),
        lambda: numsim.unpack([[1], [1, 2]], "e2m1"),
        lambda: get_format(10**5000),
        lambda: get_format(None),
        lambda: numsim.sum(array([1.0], "fp16"), order=np.array(["a", "b"])),
        lambda: numsim.sum(array([1.0], "fp16"), axis=10**5000),
        lambda: numsim.dot(array([1.0], "fp16"), array([1.0], "fp16"), product=np.array(["a", "b"])),
        lambda: numsim.matmul(array(np.ones((2, 3)), "fp16"), array(np.ones((2, 3)), "fp16")),
        lambda: numsim.random.Stream(1, np.timedelta64(1)),
        lambda: numsim.kernels.force("nonsense").__enter__(),
        lambda: numsim.trace_sum([1.0]),
    ],
)
def test_refusals(call):
    with pytest.raises(NumsimError) as error:
        call()
    assert 10 < len(str(error.value)) < 500


def test_a_refused_call_leaves_out_and_events_alone():
    out, seen = np.full(2, 7.0), numsim.Events()
    with pytest.raises(NumsimError):
        round_to(np.array([1.0, np.nan]), "e2m1", out=out, events=seen)
    assert out.tolist() == [7.0, 7.0] and seen == numsim.Events()


def test_arrays_while_subnormals_are_flushed():
    """Codes are the truth: what looks at them is right, comparisons too."""
    torch = pytest.importorskip("torch", reason="needs torch to switch flush-to-zero on: pip install torch")
    x = from_codes([1, 3], "fp64")
    if not torch.set_flush_denormal(True):
        pytest.skip("torch cannot flush subnormals here")
    try:
        shown, truth = repr(x), bool(from_codes(1, "fp64"))
        trace = numsim.trace_sum(from_codes([0x3FF0000000000000, 1, 1], "fp64"))
        same = [(x == other).tolist() for other in (from_codes([2, 3], "fp64"), 0.0, from_codes([1, 3], "fp32"))]
    finally:
        torch.set_flush_denormal(False)
    assert shown == "numsim.from_codes([1, 3], 'fp64')" and truth and trace.lost == 2
    assert same == [[False, True], [False, False], [False, False]]


UNSIGNED = [  # codes beyond int64's
    Format("a", 11, 53, 1023, signed=False), Format("b", 11, 53, 1023, signed=False, specials="fn", infinities=True),
    Format("c", 2, 62, 1, signed=False, specials="finite"),
    Format("d", 4, 60, 7, signed=False, specials="fn", zero=False),
    Format("e", 11, 53, 1030, signed=False, specials="finite", subnormals=False),
]  # fmt: skip


def read(code, f):
    """Class and value of a code without a sign, by the definition; ``value`` None for what is no number."""
    field, part = code >> f.fraction_bits, Fraction(code % (1 << f.fraction_bits), 1 << f.fraction_bits)
    last = (1 << f.magnitude_bits) - 1
    if f.specials == "ieee" and field == (1 << f.exponent_bits) - 1:
        return ("nan" if part else "infinity"), None
    if f.specials == "fn" and code >= last - f.infinities:
        return ("nan" if code == last else "infinity"), None
    if field or not f.zero:
        return "normal", (1 + part) * Fraction(2) ** (field - f.bias)
    if not part or not f.subnormals:
        return "zero", Fraction(0)
    return "subnormal", part * Fraction(2) ** (1 - f.bias)


@pytest.mark.parametrize("format", UNSIGNED, ids=str)
def test_codes_of_64_bits_without_a_sign(format):
    f, top = format.fraction_bits, format.top_code
    codes = {0, 1, (1 << f) - 1, 1 << f, (1 << f) + 1, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, top - 1, top}
    codes = sorted(codes | {c for c in (top + 1, top + 2, (1 << 64) - 1) if c < 1 << 64})
    kinds = numsim.classify(np.array(codes, np.uint64), format).tolist()
    values = [read(c, format) for c in codes]
    assert kinds == [kind for kind, _ in values] == [str(numsim.classify(c, format)) for c in codes]
    for code, (_, value) in zip(codes, values, strict=True):
        if value is None:
            with pytest.raises(numsim.RangeError):
                numsim.exact(code, format)
            continue
        assert numsim.exact(code, format) == value and numsim.exact(int(encode(value, format)), format) == value
    numbers = [(c, v) for c, (_, v) in zip(codes, values, strict=True) if v is not None]
    x = from_codes(np.array([c for c, _ in numbers], np.uint64), format)
    for (code, value), (above, larger) in itertools.pairwise(numbers):
        if above == code + 1 and value and larger:
            assert numsim.neighbours(code, format)[1] == above and numsim.ulp(code, format) == larger - value
    assert numsim.less(x[:-1], x[1:]).tolist() == [a < b for (_, a), (_, b) in itertools.pairwise(numbers)]
    assert np.argsort(x[::-1]).tolist()[0] == len(numbers) - 1 - (format.gap and 2)


FLUSHED = [  # whose least numbers are subnormal ones of float64
    numsim.FP64, numsim.get_format("e11m10"), Format("f", 5, 20, 1040), Format("g", 5, 3, 1050, specials="fnuz"),
    Format("h", 3, 1, 1074, signed=False, specials="finite"), Format("i", 8, 30, 1040, specials="fn", subnormals=False),
    Format("j", 12, 8, 2000), Format("k", 5, 8, 1079, specials="finite"),
]  # fmt: skip


@pytest.mark.parametrize("format", FLUSHED, ids=str)
def test_decode_while_subnormals_are_flushed(format):
    """The bits of each float64 are made of integers, so a CPU that flushes subnormal numbers changes none."""
    torch = pytest.importorskip("torch", reason="needs torch to switch flush-to-zero on: pip install torch")
    fields = [
        format.bias - 1074 + n for n in range(-2, 60, 7) if 0 < format.bias - 1074 + n < 1 << format.exponent_bits
    ]
    places = [0, 1, 2, 3, *(1 << s for s in range(2, format.magnitude_bits)), format.max_code - 1, format.max_code]
    places += [(n << format.fraction_bits) | low for n in fields for low in (0, 1 << format.fraction_bits >> 1)]
    codes, expected = [], []
    for code in (sign | c for c in places for sign in sorted({0, format.sign_mask})):
        kind = str(numsim.classify(code, format))
        if kind not in ("nan", "infinity"):
            value = numsim.exact(code, format)
            units = abs(value) * (1 << 1074)
            if (abs(value) < 2 and units.denominator > 1) or abs(value) >= 2**1023:
                continue  # no float64
            codes.append(code)
            magnitude, place = int(units), 0
            while magnitude >> 53:
                magnitude, place = magnitude // 2, place + 1
            expected.append((magnitude + (place << 52)) | (bool(code & format.sign_mask) << 63))
    if not torch.set_flush_denormal(True):
        pytest.skip("torch cannot flush subnormals here")
    try:
        numsim.codes._table.cache_clear()
        found = np.asarray(decode(np.array(codes, f"u{format.code_bytes}"), format)).view(np.uint64).tolist()
    finally:
        torch.set_flush_denormal(False)
        numsim.codes._table.cache_clear()
    assert found == expected and any(0 < word % (1 << 63) < 1 << 52 for word in found)


def test_absurd_thread_counts(monkeypatch):
    from numsim.kernels._pool import threads

    for chosen in ("9" * 5000, "0", "-1", "many", ""):
        monkeypatch.setenv("NUMSIM_THREADS", chosen)
        assert 1 <= threads() < 10_000


# --- files: whatever they hold, every loader reads them or refuses them, in little memory -----------------------------
def loaded(path):
    numsim.load(path)


def traced(path):
    numsim.load_trace(path)


def recorded(path):
    machines.get_machine(f"recorded:{path}")


def checked(path):
    if main(["check", str(path)]) in (2, 4):
        raise numsim.RecordError("refused")


def sound_files(folder):
    """A file of each kind as it should be, and who reads it."""
    numsim.save(folder / "arrays.npz", x=array([0.1, 0.2], "bf16"))
    trace = numsim.Trace("t", [1, 2], {"scale": [4.0, 2.0]}, [numsim.Event(2, "overflow")])
    trace.save(folder / "trace.json")
    asked = machines.ask("cast", ["fp32"], "bf16", [np.arange(9, dtype=np.uint32)])
    (folder / "record.npz").write_bytes(record_bytes([(asked, machines.get_machine("emulated").answer(asked))]))
    return {"arrays.npz": loaded, "trace.json": traced, "record.npz": recorded}


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as writer:
        for name, content in members.items():
            writer.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def pickled():
    buffer = io.BytesIO()
    np.savez(buffer, record=np.array([print], object), numsim_arrays=np.array([print], object))
    return buffer.getvalue()


def header(shape):
    text = f"{{'descr': '<u8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


CONTENTS = {
    "empty": b"",
    "one byte": b"\0",
    "text": b"hello",
    "no UTF-8": b"\xff\xfe\x00",
    "magic only": b"PK\x03\x04",
    "null": b"null",
    "a list": b"[1]",
    "NaN": b'{"numsim_trace": NaN}',
    "infinity": b'{"numsim_trace": 1e999}',
    "a key twice": b'{"a": 1, "a": 2}',
    "deep": b"[" * 200_000,
    "deep in a key": b'{"numsim_trace":' * 50_000,
    "digits": b'{"numsim_trace": ' + b"9" * 100_000 + b"}",
    "surrogate": b'{"numsim_trace": "\\ud800"}',
    "layout true": b'{"numsim_trace": true}',
    "zeros": bytes(1 << 20),
    "pickled": pickled(),
    "bomb": zipped(record=bytes(1 << 26), numsim_arrays=bytes(1 << 26)),
    "huge shape": zipped(record=header("(9999999999, 9999999999)"), numsim_arrays=header("(9999999999,)")),
    "many axes": zipped(record=header(f"({'0, ' * 40})"), numsim_arrays=header(f"({'0, ' * 40})")),
    "a path": zipped(**{"../../evil": header("(0,)")}),
    "a bare header": zipped(record=header("(0,)"), numsim_arrays=header("(0,)")),
}


@pytest.mark.parametrize("what", CONTENTS)
def test_hostile_contents_for_every_loader(what, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(numsim.files, "MAX_CONTENT", 1 << 25)  # so that the bomb may be small
    for suffix, read in itertools.product((".npz", ".json"), (loaded, traced, recorded, checked)):
        (tmp_path / f"x{suffix}").write_bytes(CONTENTS[what])
        tracemalloc.start()
        with pytest.raises(NumsimError):
            read(tmp_path / f"x{suffix}")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16e6, (read.__name__, peak)
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("name", ["arrays.npz", "trace.json", "record.npz"])
def test_flipped_bits_and_cut_ends(name, tmp_path, capsys):
    read = sound_files(tmp_path)[name]
    content = (tmp_path / name).read_bytes()
    read(tmp_path / name)
    rng = np.random.default_rng(len(content))
    cases = [content[:n] for n in range(0, len(content), -(-len(content) // 40))]
    for place, bit in zip(rng.integers(0, len(content), 160).tolist(), itertools.cycle(range(8)), strict=False):
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        cases.append(bytes(changed))
    refused = 0
    for case in cases:
        (tmp_path / name).write_bytes(case)
        for who in (read, checked):
            try:
                who(tmp_path / name)
            except NumsimError:
                refused += 1
    assert refused > len(cases) // 2 and "Traceback" not in "".join(capsys.readouterr())


def test_changed_results(tmp_path, capsys):
    """Every entry of a result replaced by some JSON value: the check says so, or refuses it."""
    session = experiments.Session(machines.get_machine("emulated"))
    swamping = experiments.get_experiment("swamping")
    found = swamping.run(session, **{**swamping.defaults, "terms": 64})
    result = json.loads(to_text(to_dict(swamping, found, session, [])))
    odd = itertools.cycle((None, -1, [[]], "\u202e", {"a": [None]}, 10**24, True))
    for key, value in zip(result, odd, strict=False):
        (tmp_path / "x.json").write_text(json.dumps({**result, key: value}))
        assert main(["check", str(tmp_path / "x.json")]) in (0, 1, 2, 4), (key, value)
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.skipif(os.name != "posix", reason="links and rights of POSIX")
def test_what_is_no_ordinary_file(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, target in (("loop", "loop"), ("dangling", "none"), ("to a folder", "folder"), ("to a pipe", "pipe")):
        (tmp_path / name).symlink_to(tmp_path / target)
    for name in ("folder", "pipe", "loop", "dangling", "to a folder", "to a pipe", "none", "folder/none", "pipe/none"):
        for read in (loaded, traced, recorded, checked):
            with pytest.raises(NumsimError):
                read(tmp_path / name)
    sound = sound_files(tmp_path)
    for name, read in sound.items():
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / name)
        read(tmp_path / "link")  # a link to a sound file is one

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # the tests may run as root, whom no file refuses
    for name, read in sound.items():
        with pytest.raises(NumsimError, match="permission denied"):
            read(tmp_path / name)
