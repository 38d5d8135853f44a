"""Arrays in files: every bit comes back, and nothing in a file is trusted."""

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numsim
from numsim import Array, Format, array, array_files, files, from_codes, load, save
from numsim.errors import InputError, RecordError

MINE = Format("fp16", 5, 10, 16)  # not the FP16 that has the name
MINE8 = Format("mine", 4, 3, 9)
OWN = [
    MINE, Format("mine", 4, 3, bias=7, specials="fn", infinities=True, subnormals=False),
    Format("fixed", 0, 5, 0, specials="finite"), Format("powers", 5, 0, 9, signed=False, specials="fn", zero=False),
    Format("wide", 2, 61, 1, specials="fnuz", title="a title", source="a source"),
]  # fmt: skip
NAMED = [*numsim.list_formats(), *map(numsim.get_format, ("e6m9", "e12m40", "binary8p3se", "binary6p2uf"))]


def same(a, b):
    assert list(a) == list(b)
    for x, y in zip(a.values(), b.values(), strict=True):
        assert isinstance(x, Array) and x.format == y.format and x.format.title == y.format.title
        assert x.codes.dtype == y.codes.dtype and x.shape == y.shape and np.array_equal(x.codes, y.codes)
        assert x.how == y.how and x.codes.flags.writeable


def some(format, shape=(2, 3)):
    words = np.random.default_rng(len(str(format))).integers(0, 2**64, shape, np.uint64)
    return from_codes(words & np.uint64(format.codes - 1), format)


@pytest.mark.parametrize("format", [*NAMED, *OWN], ids=str)
def test_every_format(format, tmp_path):
    arrays = {"matrix": some(format), "single": some(format, ()), "none": some(format, (0, 4)), "row": some(format, 3)}
    assert save(tmp_path / "x.npz", **arrays) == tmp_path / "x.npz"
    same(load(str(tmp_path / "x.npz")), arrays)


def test_every_code(tmp_path):
    """NaN payloads, both zeros, infinities: the codes as they are."""
    arrays = {f.name: from_codes(np.arange(f.codes, dtype=f"u{f.code_bytes}"), f) for f in NAMED if f.bits <= 16}
    save(tmp_path / "x", **arrays)
    same(load(tmp_path / "x"), arrays)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9_.-]{1,60}", fullmatch=True),
        st.tuples(st.sampled_from([*NAMED, *OWN]), st.lists(st.integers(0, 4), max_size=4).map(tuple), st.text()),
        min_size=1,
        max_size=4,
    ),
)
def test_anything(tmp_path_factory, given):
    folder = tmp_path_factory.mktemp("any")
    arrays = {name: Array(some(f, shape).codes, f, how) for name, (f, shape, how) in given.items()}
    again = load(save(folder / "x.npz", **arrays))
    for x in arrays.values():
        x.how = "".join(c if c.isprintable() else " " for c in x.how)
    same(again, arrays)


def test_numpy_reads_the_codes(tmp_path):
    x = array([0.1, -0.0, np.nan], "bf16")
    save(tmp_path / "x.npz", x=x)
    with np.load(tmp_path / "x.npz") as archive:
        assert np.array_equal(archive["x"], x.codes) and archive["x"].dtype == np.uint16
        record = json.loads(archive["numsim_arrays"].tobytes())
    assert (
        record["arrays"][0]["format"] == "bf16" and record["arrays"][0]["how"] == "rounded once to bf16, nearest-even"
    )
    said = {k: v for k, v in record["arrays"][0].items() if k != "digest"}
    content = json.dumps(said, sort_keys=True).encode() + b"\n" + x.codes.astype("<u2").tobytes()
    assert record["arrays"][0]["digest"] == hashlib.sha256(content).hexdigest()


def test_views_and_orders(tmp_path):
    x = from_codes(np.arange(24, dtype=np.uint32).reshape(2, 3, 4), "fp32")
    arrays = {"t": x.T, "strided": x[:, ::-2, 1:], "fixed": np.broadcast_to(x[0, 0], (2, 4))}
    same(load(save(tmp_path / "x", **arrays)), arrays)


def test_the_same_arrays_are_the_same_bytes(tmp_path):
    x = some(numsim.FP16)
    save(tmp_path / "a", x=x, y=x)
    save(tmp_path / "b", x=x.copy(), y=x)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    save(tmp_path / "x", x=array(1.0, "fp16"))
    save(tmp_path / "x", x=array(2.0, "fp16"))
    assert float(load(tmp_path / "x")["x"]) == 2.0

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match="no space left on device"):
        save(tmp_path / "x", x=array(3.0, "fp16"))
    assert float(load(tmp_path / "x")["x"]) == 2.0 and len(list(tmp_path.iterdir())) == 1


def test_big(tmp_path):
    x = from_codes(np.zeros(1 << 24, np.uint16), "fp16")
    same(load(save(tmp_path / "x", x=x)), {"x": x})


def test_too_big_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    x = from_codes(np.arange(3000, dtype=np.uint16) * 21, "fp16")
    monkeypatch.setattr(array_files, "MAX_CONTENT", 8000)
    with pytest.raises(InputError, match=r"would hold 1 Arrays, 0 MiB: at most 0 MiB .* Example"):
        save(tmp_path / "x", x=x)
    monkeypatch.setattr(array_files, "MAX_CONTENT", 1 << 20)
    monkeypatch.setattr(array_files, "MAX_FILE", 2000)
    with pytest.raises(InputError, match="would hold"):
        save(tmp_path / "x", x=x)
    if int(np.__version__.split(".")[0]) >= 2:  # NumPy 1.26 has no more than 32 itself
        with pytest.raises(InputError, match="at most 32 are read again"):
            save(tmp_path / "x", x=array(1.0, "fp16").reshape((1,) * 33))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arrays",
    [{"x": np.zeros(3)}, {"x": [1.0]}, {"x": None}, {"x": 1.0}, {}, {"numsim_arrays": array(1.0, "fp16")},
     {"a b": array(1.0, "fp16")}, {"": array(1.0, "fp16")}, {"../x": array(1.0, "fp16")},
     {"ä": array(1.0, "fp16")}, {"x" * 61: array(1.0, "fp16")}, {"a/b": array(1.0, "fp16")},
     {"x": array(1.0, Format("two\nlines", 4, 2, 9))}, {"x": array(1.0, Format("x" * 300, 4, 2, 9))},
     {"x": array(1.0, Format("\ud800", 4, 2, 9))}, {"x": array(1.0, Format("x", 4, 2, 9, source="\x1b[2J"))}],
    ids=repr,
)  # fmt: skip
def test_what_is_not_saved(arrays, tmp_path):
    with pytest.raises(InputError, match=r"Example: numsim\.save|are needed"):
        save(tmp_path / "x", **arrays)
    assert not list(tmp_path.iterdir())


def test_an_array_without_a_name(tmp_path):
    with pytest.raises(InputError, match=r"has no name\. Example: numsim\.save\('x\.npz', x="):
        save(tmp_path / "x.npz", array(1.0, "fp16"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [5, None, b"x", "", " ", "a\0b", ["x"], object()])
def test_no_path(path):
    for call in (lambda: save(path, x=array(1.0, "fp16")), lambda: load(path)):
        with pytest.raises(InputError, match="Example"):
            call()


def test_folders_and_missing_files(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError):
            load(path)
    with pytest.raises(InputError, match="there is no folder"):
        save(tmp_path / "none" / "x", x=array(1.0, "fp16"))
    if os.name == "posix":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="no ordinary file"):
            load(tmp_path / "pipe")


# -- damaged and hostile files -----------------------------------------------------------------------------------------


def sound():
    """The members of a file that is as it should be, and its record."""
    data = {"x": np.arange(6, dtype=np.uint16).reshape(2, 3), "y": np.array(5, np.uint8)}
    arrays = {"x": from_codes(data["x"], "fp16"), "y": from_codes(data["y"], MINE8)}
    entries = []
    for name, x in arrays.items():
        format = x.format.name if x.format.is_named else {f.name: getattr(x.format, f.name) for f in fields(x.format)}
        entry = {"name": name, "format": format, "how": "codes given", "shape": list(x.shape)}
        entries.append({**entry, "digest": digest(entry, x.codes)})
    return data, {"numsim_arrays": 1, "numsim": "0.1.0", "arrays": entries}


def digest(entry, codes):
    said = json.dumps({k: v for k, v in entry.items() if k != "digest"}, sort_keys=True).encode()
    return hashlib.sha256(said + b"\n" + np.ascontiguousarray(codes).tobytes()).hexdigest()


def write(path, data, record, raw=None):
    text = json.dumps(record).encode() if raw is None else raw
    path.write_bytes(files.npz_bytes({**data, "numsim_arrays": np.frombuffer(text, np.uint8)}))
    return path


def test_the_sound_file_is_read(tmp_path):
    arrays = load(write(tmp_path / "x", *sound()))
    assert arrays["x"].codes.tolist() == [[0, 1, 2], [3, 4, 5]] and arrays["y"].format == MINE8


DAMAGE = {
    "a code": lambda d, r: d["x"].__setitem__((0, 0), 7),
    "the shape": lambda d, r: d.__setitem__("x", d["x"].reshape(3, 2)),
    "the format": lambda d, r: r["arrays"][0].__setitem__("format", "bf16"),
    "how": lambda d, r: r["arrays"][0].__setitem__("how", "exact"),
    "the digest": lambda d, r: r["arrays"][0].__setitem__("digest", "0" * 64),
    "no digest": lambda d, r: r["arrays"][0].pop("digest"),
    "digest of another type": lambda d, r: r["arrays"][0].__setitem__("digest", 5),
    "a member more": lambda d, r: d.__setitem__("z", d["x"]),
    "a member less": lambda d, r: d.pop("x"),
    "an entry less": lambda d, r: r["arrays"].pop(),
    "an entry twice": lambda d, r: r["arrays"].append(r["arrays"][0]),
    "names exchanged": lambda d, r: [e.__setitem__("name", n) for e, n in zip(r["arrays"], "yx", strict=True)],
    "name of another type": lambda d, r: r["arrays"][0].__setitem__("name", ["x"]),
    "another layout": lambda d, r: r.__setitem__("numsim_arrays", 2),
    "layout true": lambda d, r: r.__setitem__("numsim_arrays", True),
    "layout missing": lambda d, r: r.pop("numsim_arrays"),
    "an entry of the record": lambda d, r: r.__setitem__("more", 1),
    "version": lambda d, r: r.__setitem__("numsim", "\x1b[2J"),
    "arrays a dict": lambda d, r: r.__setitem__("arrays", {}),
    "entry a list": lambda d, r: r.__setitem__("arrays", [[1, 2]]),
    "entry null": lambda d, r: r.__setitem__("arrays", [None, None]),
}
HOSTILE = {  # with digests that fit
    "wide codes": lambda d, r: (d.__setitem__("y", np.array(5, np.uint16)), 1),
    "codes out of range": lambda d, r: (r["arrays"][1].__setitem__("format", "e2m1"),
                                        d.__setitem__("y", np.array(16, np.uint8)), 1),
    "unknown format": lambda d, r: (r["arrays"][0].__setitem__("format", "fp17"), 0),
    "an alias": lambda d, r: (r["arrays"][0].__setitem__("format", "float16"), 0),
    "a codebook": lambda d, r: (r["arrays"][1].__setitem__("format", "nf4_element"), 1),
    "a format of lists": lambda d, r: (r["arrays"][0].__setitem__("format", ["fp16"]), 0),
    "format null": lambda d, r: (r["arrays"][0].__setitem__("format", None), 0),
    "a field more": lambda d, r: (r["arrays"][1]["format"].__setitem__("x", 1), 1),
    "a field less": lambda d, r: (r["arrays"][1]["format"].pop("bias"), 1),
    "huge fields": lambda d, r: (r["arrays"][1]["format"].__setitem__("exponent_bits", 10**20), 1),
    "fields of text": lambda d, r: (r["arrays"][1]["format"].__setitem__("bias", "9"), 1),
    "specials": lambda d, r: (r["arrays"][1]["format"].__setitem__("specials", {"a": 1}), 1),
    "escape sequences": lambda d, r: (r["arrays"][1]["format"].__setitem__("title", "\x1b[2J"), 1),
    "how a number": lambda d, r: (r["arrays"][0].__setitem__("how", 5), 0),
    "how of two lines": lambda d, r: (r["arrays"][0].__setitem__("how", "a\nb"), 0),
    "how without end": lambda d, r: (r["arrays"][0].__setitem__("how", "a" * 2000), 0),
    "shape of another type": lambda d, r: (r["arrays"][0].__setitem__("shape", "2, 3"), 0),
    "another shape": lambda d, r: (r["arrays"][0].__setitem__("shape", [3, 2]), 0),
}  # fmt: skip


@pytest.mark.parametrize("what", [*DAMAGE, *HOSTILE])
def test_damage(what, tmp_path):
    data, record = sound()
    if what in DAMAGE:
        DAMAGE[what](data, record)
    else:
        entry = record["arrays"][HOSTILE[what](data, record)[-1]]
        entry["digest"] = digest(entry, data[entry["name"]])
    with pytest.raises(RecordError) as error:
        load(write(tmp_path / "x", data, record))
    assert str(tmp_path / "x") in str(error.value) and str(error.value).isprintable()


def test_codes_have_the_dtype_of_their_format(tmp_path):
    data, record = sound()
    data["y"] = np.array(5, np.uint16)  # with the digest of the uint8 that it could be
    with pytest.raises(RecordError, match="codes of mine are uint8, not uint16"):
        load(write(tmp_path / "x", data, record))


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[1]", b"5", b"null", b'"x"', b"\xff", b'{"numsim_arrays": NaN}', b"[" * 100_000,
     b'{"numsim_arrays": 1, "numsim_arrays": 1}', b'{"numsim_arrays": 1' + b"0" * 5000 + b"}", b"1e999"],
    ids=lambda raw: repr(raw[:20]),
)  # fmt: skip
def test_damaged_json(raw, tmp_path):
    with pytest.raises(RecordError):
        load(write(tmp_path / "x", *sound(), raw=raw))


def test_every_byte_matters(tmp_path):
    """A file with one byte changed, or cut: read as it was, or refused; never other numbers."""
    path = write(tmp_path / "x", *sound())
    content, right = path.read_bytes(), load(path)
    rng = np.random.default_rng(3)
    cases = [content[:n] for n in range(0, len(content), 37)]
    for place in rng.integers(0, len(content), 400).tolist():
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        cases.append(bytes(changed))
    refused = 0
    for case in cases:
        path.write_bytes(case)
        try:
            same(load(path), right)
        except RecordError:
            refused += 1
    assert refused > len(cases) // 2


def other_files():
    archive = io.BytesIO()
    np.savez(archive, x=np.arange(3.0))
    yield "of numpy", archive.getvalue()
    archive = io.BytesIO()
    np.savez(archive, x=np.array([print], object))
    yield "pickled", archive.getvalue()
    yield "no archive", b"PK\3\4" + b"0" * 100
    yield "empty", b""
    yield "text", b"hello"
    yield "a record of numsim", files.npz_bytes({"record": np.zeros(3, np.uint8)})
    yield "not bytes", files.npz_bytes({"numsim_arrays": np.zeros(3, np.uint16)})
    header = b"{'descr': '<u8', 'fortran_order': False, 'shape': (9999999999,), }"
    huge = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("numsim_arrays.npy", huge)
    yield "huge shape", archive.getvalue()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr("numsim_arrays.npy", b"\0" * (1 << 25))
    yield "a bomb", archive.getvalue()


def test_other_files(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_CONTENT", 1 << 24)
    for what, content in other_files():
        (tmp_path / "x").write_bytes(content)
        tracemalloc.start()
        with pytest.raises(RecordError):
            load(tmp_path / "x")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4e6, what


def test_a_file_too_large_is_not_read(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        file.truncate(files.MAX_FILE + 1)
    with pytest.raises(RecordError, match="more than 256 MiB"):
        load(tmp_path / "x")


def test_nothing_is_imported_by_a_file(tmp_path):
    """Reading needs neither pickle nor numba nor torch."""
    save(tmp_path / "x", x=array([1.0], "fp16"))
    code = "import sys, numsim; print(numsim.load(sys.argv[1]), {'torch', 'numba', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x")], capture_output=True, text=True, check=True)
    assert done.stdout == "{'x': numsim.array([1.0], 'fp16')} set()\n"
