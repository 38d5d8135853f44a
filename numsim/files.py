"""Files: written whole or not at all, and read without trust.

Writing goes to a temporary name in the same folder, then renames: a reader, a full disk and Ctrl-C never see half a
file. ``.npz`` files hold unsigned integers only, and are read member by member with every size checked before memory
is taken; nothing is ever unpickled.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import secrets
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.errors import InputError, RecordError, short

MAX_FILE = 1 << 28  # bytes on disk
MAX_CONTENT = 1 << 29  # bytes when unpacked, all members together
MAX_MEMBERS = 50_000
MAX_JSON = 1 << 24  # a list of empty lists takes 30 times as much memory
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip archive can state
_HEADER = re.compile(
    rb"\{'descr': '[<|](u[1248])', 'fortran_order': False, 'shape': \(((?:\d{1,10}, ?){0,31}\d{0,10})\), \} *\n"
)
_MAGIC = b"\x93NUMPY\x01\x00"


# --- writing ----------------------------------------------------------------------------------------------------------
def write_atomic(path: Path | str, data: bytes | str, *, replace: bool = True) -> Path:
    """Write a whole file; text as UTF-8.

    replace : whether a file of that name may be replaced.

    Raises ``InputError`` where the folder is missing or cannot be written, or the file exists and must stay.
    """
    path = check_path(path)
    if path.is_dir():
        raise InputError(
            f"{show(path)} is a folder: a file of that name cannot be written. Remove it, or choose another name."
        )
    if not replace and path.exists():
        raise InputError(f"{show(path)} exists: --force replaces it, or choose another name.")
    content = data.encode("utf-8") if isinstance(data, str) else data
    temporary = path.with_name(f".numsim-{secrets.token_hex(8)}.tmp")  # not from path.name: it may be long already
    try:
        # not mkstemp: the file gets the permissions that any new file gets
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            f"cannot write {show(path)}: {_why(error, path.parent)}. Try another place: --out {_elsewhere(path)}"
        ) from None
    return path


def cache_home() -> Path:
    """The folder where numsim may keep things: NUMSIM_CACHE_DIR, or where this system keeps caches."""
    if chosen := os.environ.get("NUMSIM_CACHE_DIR"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "numsim"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "numsim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numsim"


def make_folder(path: Path | str) -> Path:
    """The folder, made if need be. Raises ``InputError`` where nothing can be written into it."""
    path = check_path(path)
    probe = path / f".numsim-{secrets.token_hex(8)}.tmp"
    try:
        path.mkdir(parents=True, exist_ok=True)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"cannot write into {show(path)}: {_why(error, path)}. Try another place: --out {_elsewhere(path)}"
        ) from None
    return path


def check_path(path: Path | str) -> Path:
    """A path; refuses what is no text or ``Path``, and names that no file can have."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    try:
        usable = isinstance(text, str) and bool(text.strip()) and "\0" not in text and len(os.fsencode(text)) < 4096
        usable = usable and all(len(os.fsencode(part)) < 256 for part in Path(str(text)).parts)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise InputError(f"{short(path)} is no path. Example: --out numsim-results, or a path such as 'x.npz'")
    return Path(str(text))


def show(path: Path | str) -> str:
    """A path as it is typed; undecodable bytes, line breaks and escape sequences made visible."""
    text = os.fspath(path).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _elsewhere(failed: Path) -> str:
    """A folder to try in place of the one that has just failed; with a slash, so that every command takes a folder."""
    home = Path(os.path.expanduser("~"))
    usable = os.access(home, os.W_OK) and failed.absolute() != home / "numsim-results"
    return "~/numsim-results/" if usable else f"{Path(tempfile.gettempdir()) / 'numsim-results'}{os.sep}"


def _why(error: OSError, folder: Path) -> str:
    if isinstance(error, FileNotFoundError) and not folder.exists():
        return f"there is no folder {show(folder)}"
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return f"{show(folder)} is no folder"
    return (error.strerror or type(error).__name__).lower()


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """An .npz file (as ``numpy.load`` reads it) of numeric arrays; its bytes depend on the arrays alone.

    (Given the same zlib. Another one may compress differently, with the same content.)

    >>> len(npz_bytes({"a": np.arange(4, dtype=np.uint8)})) > 0
    True
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name])
            if array.dtype.kind not in "uif":
                raise TypeError(f"{name} has dtype {array.dtype}: numbers are needed")
            array = array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(np.shape(arrays[name]))
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # "Unix" on every system
            info.external_attr = 0o644 << 16
            writer.writestr(info, member.getvalue(), compresslevel=9)
    return archive.getvalue()


# --- reading ----------------------------------------------------------------------------------------------------------
def read_bytes(path: Path | str, limit: int = MAX_FILE) -> bytes:
    """A file of at most ``limit`` bytes. Raises ``InputError`` if it cannot be read, ``RecordError`` if too large."""
    path = check_path(path)
    try:
        if path.is_dir():
            raise InputError(f"{show(path)} is a folder: a file is needed. Example: numsim check result.json")
        if not path.is_file() and path.exists():
            raise InputError(f"{show(path)} is no ordinary file.")  # a pipe may never end
        parts, room = list[bytes](), limit + 1
        with open(path, "rb") as file:
            while part := file.read(min(room, 1 << 20)):  # read(limit) would take all that memory for any file
                parts.append(part)
                room -= len(part)
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else (error.strerror or "").lower()
        raise InputError(
            f"cannot read {show(path)}: {reason}. Example: numsim check numsim-results/swamping.json"
        ) from None
    if not room:
        raise RecordError(f"{show(path)} has more than {limit >> 20} MiB: no file of numsim's is so large.")
    return b"".join(parts)


def parse_json(data: bytes, what: str) -> Any:
    """JSON as numsim writes it: no NaN, no repeated keys. Raises ``RecordError``."""
    if len(data) > MAX_JSON:
        raise RecordError(f"{what}: {len(data) >> 20} MiB of JSON; at most {MAX_JSON >> 20} are read.")

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key comes twice")
        return found

    def number(text: str) -> int:
        if len(text) > 25:
            raise ValueError("an integer has more than 25 digits")
        return int(text)

    def real(text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise ValueError("a number is beyond float64")
        return value

    hooks: dict[str, Any] = {"parse_constant": refuse, "object_pairs_hook": unique, "parse_int": number}
    try:
        return json.loads(data.decode("utf-8"), **hooks, parse_float=real)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise RecordError(f"{what} is damaged: {_first_line(error)}.") from None


def parse_npz(data: bytes, what: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file as ``npz_bytes`` writes it. Raises ``RecordError`` for everything else.

    Nothing is unpickled, and no more memory is taken than the limits above allow, whatever the file claims.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            _check_members(infos, what)
            return {info.filename.removesuffix(".npy"): _array(archive, info, what) for info in infos}
    except RecordError:
        raise
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError,
            RuntimeError, struct.error, OverflowError, MemoryError, IndexError) as error:  # fmt: skip
        raise RecordError(f"{what} is damaged, or no .npz file ({_first_line(error)}).") from None


def _check_members(infos: list[zipfile.ZipInfo], what: str) -> None:
    names = [info.filename for info in infos]
    if len(infos) > MAX_MEMBERS or len(set(names)) != len(names):
        raise RecordError(f"{what}: {len(infos)} members, {len(set(names))} names; at most {MAX_MEMBERS}, each once.")
    for info in infos:
        if not re.fullmatch(r"[\w.-]{1,60}\.npy", info.filename, re.ASCII):
            raise RecordError(f"{what}: member {info.filename[:60]!r} is none of numsim's.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise RecordError(
                f"{what}: member {info.filename} is encrypted, or packed in a way that numsim never uses."
            )
    if (total := sum(info.file_size for info in infos)) > MAX_CONTENT:
        raise RecordError(f"{what} would unpack to {total >> 20} MiB; at most {MAX_CONTENT >> 20} are read.")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, what: str) -> npt.NDArray[Any]:
    with archive.open(info) as member:
        data = member.read(info.file_size + 1)  # never more than it claimed
    where = f"{what}: member {info.filename}"
    if len(data) != info.file_size or len(data) < 10 or data[:8] != _MAGIC:
        raise RecordError(f"{where} is no array of numpy's format 1.0.")
    start = 10 + int.from_bytes(data[8:10], "little")
    if not (header := _HEADER.fullmatch(data[10:start])):
        raise RecordError(f"{where} holds no unsigned integers (numsim writes nothing else, and unpickles nothing).")
    dtype = np.dtype("<" + header[1].decode())
    shape = tuple(int(n) for n in header[2].decode().split(",") if n.strip())
    if math.prod(shape) * dtype.itemsize != len(data) - start:
        raise RecordError(f"{where} claims shape {shape}, dtype {dtype}, and has {len(data) - start} bytes.")
    array = np.frombuffer(data, dtype, offset=start).reshape(shape)
    return array if sys.byteorder == "little" else array.astype(dtype.newbyteorder("="))


def is_label(x: Any, length: int = 200) -> bool:
    """Whether something read from a file is a short text that a terminal shows as it is.

    >>> is_label("AMD EPYC"), is_label("\x1b[2J"), is_label(7)
    (True, False, False)
    """
    return isinstance(x, str) and len(x) <= length and x.isprintable()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
