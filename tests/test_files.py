"""Files are written whole or not at all, and read without trust."""

import io
import os
import pickle
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from numsim import files
from numsim.errors import InputError, RecordError

ARRAYS = {
    "a": np.arange(6, dtype=np.uint16).reshape(2, 3),
    "b": np.array(7, np.uint64),
    "c": np.zeros((0, 4), np.uint8),
    "d": np.arange(5, dtype=">u4"),
}


# --- writing ----------------------------------------------------------------------------------------------------------
def left(folder):
    return sorted(p.name for p in folder.iterdir())


def test_write_and_replace(tmp_path):
    path = tmp_path / "x.json"
    assert files.write_atomic(path, "é\n") == path and path.read_bytes() == "é\n".encode()
    files.write_atomic(str(path), b"two")
    assert path.read_bytes() == b"two" and left(tmp_path) == ["x.json"]
    with pytest.raises(InputError, match="exists: --force replaces it"):
        files.write_atomic(path, b"three", replace=False)
    assert path.read_bytes() == b"two" and left(tmp_path) == ["x.json"]


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX")
def test_files_have_the_permissions_of_any_new_file(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    mode = stat.S_IMODE(files.write_atomic(tmp_path / "ours", b"").stat().st_mode)
    assert mode == stat.S_IMODE(ordinary.stat().st_mode)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), MemoryError])
def test_nothing_half_written_is_left(tmp_path, monkeypatch, error):
    files.write_atomic(tmp_path / "x", b"before")

    def fail(handle):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, InputError, MemoryError)) as caught:
        files.write_atomic(tmp_path / "x", b"after")
    assert (tmp_path / "x").read_bytes() == b"before" and left(tmp_path) == ["x"]
    if isinstance(error, OSError):
        assert "no space left on device" in str(caught.value)


@pytest.mark.parametrize("name", ["with space", "結果", "ä" * 60, "x" * 250, "a'b\"c" if os.name == "posix" else "a'b"])
def test_any_name(tmp_path, name):
    assert files.write_atomic(files.make_folder(tmp_path / "Ergebnisse – 結果") / name, b"1").read_bytes() == b"1"


def test_folders_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="there is no folder"):
        files.write_atomic(tmp_path / "no" / "x", b"")
    with pytest.raises(InputError, match="is no folder"):
        files.write_atomic(tmp_path / "file" / "x", b"")
    with pytest.raises(InputError, match="is a folder"):
        files.write_atomic(tmp_path, b"")
    with pytest.raises(InputError, match="is no folder"):
        files.make_folder(tmp_path / "file")
    with pytest.raises(InputError, match="is no folder"):
        files.make_folder(tmp_path / "file" / "deeper")
    for bad in ("", "  ", "a\0b"):
        with pytest.raises(InputError, match="is no path"):
            files.make_folder(bad)

    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # the tests may run as root, whom no folder refuses
    with pytest.raises(InputError, match=r"cannot write into .*: permission denied"):
        files.make_folder(tmp_path)
    with pytest.raises(InputError, match=r"cannot write .*: permission denied"):
        files.write_atomic(tmp_path / "x", b"")


def test_npz_is_numpys_and_deterministic(tmp_path):
    data = files.npz_bytes(ARRAYS)
    assert data == files.npz_bytes(dict(reversed(ARRAYS.items())))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {(i.date_time, i.create_system) for i in archive.infolist()} == {((1980, 1, 1, 0, 0, 0), 3)}
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        assert {k: loaded[k].tolist() for k in loaded.files} == {k: v.tolist() for k, v in ARRAYS.items()}
    again = files.parse_npz(data, "x")
    for name, array in ARRAYS.items():
        assert again[name].shape == array.shape and again[name].tolist() == array.tolist()
        assert again[name].dtype == array.dtype.newbyteorder("=")
    with pytest.raises(TypeError, match="numbers are needed"):
        files.npz_bytes({"a": np.array([None])})


# --- reading ----------------------------------------------------------------------------------------------------------
def member(name, content, **fields):
    info = zipfile.ZipInfo(name)
    info.compress_type = fields.pop("compress_type", zipfile.ZIP_DEFLATED)
    return info, content


def archive(*members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as writer:
        for info, content in members:
            writer.writestr(info, content)
    return buffer.getvalue()


def npy(array, **options):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def header(text, body=b"", magic=b"\x93NUMPY\x01\x00"):
    return magic + struct.pack("<H", len(text)) + text + body


class Boom:
    def __reduce__(self):
        return os.abort, ()


GOOD = npy(np.arange(4, dtype=np.uint16))
SHAPE = b"{'descr': '<u2', 'fortran_order': False, 'shape': (%s), }\n"
HOSTILE = {
    "empty": b"",
    "no zip": b"hello, I am a text",
    "only a signature": b"PK\x03\x04" + bytes(50),
    "truncated": files.npz_bytes(ARRAYS)[:-30],
    "beginning cut": files.npz_bytes(ARRAYS)[40:],
    "pickled member": archive(member("a.npy", npy(np.array([Boom()], dtype=object), allow_pickle=True))),
    "a pickle": pickle.dumps(Boom()),
    "a pickle as member": archive(member("a.npy", pickle.dumps(Boom()))),
    "floats": archive(member("a.npy", npy(np.zeros(3)))),
    "signed": archive(member("a.npy", npy(np.zeros(3, np.int32)))),
    "big-endian": archive(member("a.npy", npy(np.zeros(3, ">u4")))),
    "structured": archive(member("a.npy", npy(np.zeros(3, [("x", "u1")])))),
    "fortran order": archive(member("a.npy", npy(np.asfortranarray(np.zeros((2, 3), np.uint8))))),
    "format 2.0": archive(member("a.npy", npy(np.zeros(3, np.uint8), version=(2, 0)))),
    "absurd shape": archive(member("a.npy", header(SHAPE % b"9999999999, 9999999999", bytes(8)))),
    "shape larger than data": archive(member("a.npy", header(SHAPE % b"5,", bytes(8)))),
    "shape smaller than data": archive(member("a.npy", header(SHAPE % b"3,", bytes(8)))),
    "negative shape": archive(member("a.npy", header(SHAPE % b"-4,", bytes(8)))),
    "overflowing shape": archive(member("a.npy", header(SHAPE % b"4294967296, 4294967296, 0"))),
    "too many dimensions": archive(member("a.npy", header(SHAPE % (b"1, " * 40), bytes(2)))),
    "code in the header": archive(member("a.npy", header(b"__import__('os').abort()\n"))),
    "header longer than member": archive(member("a.npy", GOOD[:8] + b"\xff\xff" + GOOD[10:])),
    "member of two bytes": archive(member("a.npy", b"\x93N")),
    "no .npy": archive(member("a.txt", GOOD)),
    "path in a name": archive(member("../a.npy", GOOD)),
    "absolute name": archive(member("/tmp/a.npy", GOOD)),
    "a folder": archive(member("a.npy/", b"")),
    "bzip2": archive(member("a.npy", GOOD, compress_type=zipfile.ZIP_BZIP2)),
    "lzma": archive(member("a.npy", GOOD, compress_type=zipfile.ZIP_LZMA)),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives(name):
    with pytest.raises(RecordError):
        files.parse_npz(HOSTILE[name], name)


def test_a_name_that_comes_twice():
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = archive(member("a.npy", GOOD), member("a.npy", GOOD))
    with pytest.raises(RecordError, match="each once"):
        files.parse_npz(data, "x")


def test_too_many_members(monkeypatch):
    monkeypatch.setattr(files, "MAX_MEMBERS", 3)
    with pytest.raises(RecordError, match="at most 3"):
        files.parse_npz(archive(*(member(f"a{i}.npy", GOOD) for i in range(4))), "x")


def test_a_bomb_takes_no_memory():
    bomb = archive(member("a.npy", header(SHAPE % b"8388608,", bytes(1 << 24))))
    assert len(bomb) < 40_000
    limit, files.MAX_CONTENT = files.MAX_CONTENT, 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match="would unpack to 16 MiB"):
            files.parse_npz(bomb, "bomb")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
        files.MAX_CONTENT = limit


def test_a_bomb_that_lies_about_its_size():
    """The directory claims 100 bytes; the member holds 16 MiB of zeros."""
    data = bytearray(archive(member("a.npy", header(SHAPE % b"8388608,", bytes(1 << 24)))))
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = data.find(signature) + offset
        data[place : place + 4] = struct.pack("<I", 100)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError):
            files.parse_npz(bytes(data), "liar")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_encrypted_members():
    data = bytearray(archive(member("a.npy", GOOD)))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.find(signature) + offset] |= 1
    with pytest.raises(RecordError, match="encrypted"):
        files.parse_npz(bytes(data), "x")


def test_random_damage_is_noticed_or_harmless():
    good = files.npz_bytes(ARRAYS)
    reference = {k: (v.shape, v.tolist()) for k, v in files.parse_npz(good, "x").items()}
    rng = np.random.default_rng(8)
    refused = 0
    for _ in range(600):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        try:
            found = files.parse_npz(bytes(data), "x")
        except RecordError:
            refused += 1
        else:  # dates, attributes, names and the number of members may change; contents are under a CRC
            assert all((v.shape, v.tolist()) in reference.values() for v in found.values())
    assert refused > 300


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b"\xff\xfe",
        b'{"a": ' + b"9" * 5000 + b"}",
        b"nope",
    ],
)
def test_damaged_json(text):
    with pytest.raises(RecordError, match="x is damaged"):
        files.parse_json(text, "x")


def test_paths_are_shown_as_they_are_typed():
    assert files.show("結果 ä/x y.json") == "結果 ä/x y.json"
    assert files.show("a\x1b[2J\nb\udcff") == "a\\x1b[2J\\nb\\udcff"


def test_large_json(monkeypatch):
    monkeypatch.setattr(files, "MAX_JSON", 10)
    with pytest.raises(RecordError, match="of JSON"):
        files.parse_json(b'"' + bytes(20) + b'"', "x")


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        files.read_bytes(tmp_path / "no.json")
    with pytest.raises(InputError, match="is a folder"):
        files.read_bytes(tmp_path)
    (tmp_path / "large").write_bytes(bytes(100))
    with pytest.raises(RecordError, match="has more than"):
        files.read_bytes(tmp_path / "large", 99)
    assert len(files.read_bytes(tmp_path / "large", 100)) == 100
    for bad in ("", "a\0b", None, 3, b"x", ["x"], "\ud800", "x" * 256, "x/" * 3000):
        with pytest.raises(InputError, match=r"is no path.*Example") as error:
            files.read_bytes(bad)
        assert len(str(error.value)) < 300


def test_reading_takes_the_memory_of_the_file(tmp_path):
    (tmp_path / "small").write_bytes(bytes(10))
    tracemalloc.start()
    assert files.read_bytes(tmp_path / "small") == bytes(10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no ordinary file"):
        files.read_bytes(tmp_path / "pipe")


def test_files_load_nothing_heavy():
    code = "import sys, numsim.files; print(sorted({'torch', 'numba', 'matplotlib', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout.strip() == "[]"
