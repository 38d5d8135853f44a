"""Arrays in files: ``save`` and ``load``. Codes as .npz, and beside them in JSON what they mean; nothing is pickled.

A file ``x.npz`` holds one member for each Array (its codes, which ``numpy.load`` reads too) and ``numsim_arrays``: the
bytes of a JSON text with name, format, ``how`` and digest of each Array. Formats stand there by name, and by their
fields where a name alone does not say which. Codes are little-endian on every machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from numsim._version import __version__
from numsim.array import Array
from numsim.codes import code_dtype
from numsim.errors import InputError, NumsimError, RecordError, short
from numsim.files import (
    MAX_CONTENT,
    MAX_FILE,
    MAX_JSON,
    MAX_MEMBERS,
    check_path,
    is_label,
    npz_bytes,
    parse_json,
    parse_npz,
    read_bytes,
    show,
    write_atomic,
)
from numsim.formats import Format, get_format

_LAYOUT = 1
_RECORD = "numsim_arrays"
_ENTRY = {"name", "format", "how", "shape", "digest"}
_HOW = 1000  # characters; the order of a sum can be a tree of thousands of places
_EXAMPLE = "Example: numsim.save('x.npz', x=numsim.array([0.1, 0.2], 'bf16'))"


def save(path: Path | str, /, *unnamed: Any, **arrays: Array) -> Path:
    """Write Arrays into one file, under the names of the keywords; ``load`` reads them.

    Rules: codes are kept bit by bit, NaN payloads and -0 as well, with shape, format and ``how`` (its first thousand
    characters). A file of that name is replaced; it is written whole or not at all.
    Parameters: ``path`` is taken as it is, no suffix is added; names have up to 60 letters, digits and . _ - (others
    than Python's by ``save(path, **{"layer.0": x})``).
    Raises ``InputError`` for what is no Array, for other names, for a path that cannot be written, and for more than
    512 MiB of codes, or 256 MiB when packed, which would not be read again.
    Cost: that of packing, some 20 MB a second.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(f"{folder}/x.npz", x=Array(np.array([0x3C00, 0x8000], np.uint16), "fp16"))
    ...     load(path)
    {'x': numsim.array([1.0, -0.0], 'fp16')}
    """
    check_path(path)
    if unnamed:
        raise InputError(f"{short(unnamed[0])} has no name. {_EXAMPLE}")
    for name, x in arrays.items():
        if not isinstance(x, Array):
            raise InputError(f"{name}={short(x)} ({type(x).__name__}) is no Array. {_EXAMPLE}")
        if not re.fullmatch(r"[\w.-]{1,60}", name, re.ASCII) or name == _RECORD:
            raise InputError(f"name {short(name)}: up to 60 ASCII letters, digits and . _ - are needed. {_EXAMPLE}")
        if x.ndim > 32:
            raise InputError(f"{name} has {x.ndim} dimensions: at most 32 are read again. Example: x.reshape(-1)")
    if not arrays:
        raise InputError(f"no Array is given. {_EXAMPLE}")
    entries = []
    for name, x in arrays.items():
        format = x.format.name if x.format.is_named else _fields(x.format)
        _read_format(format)  # what is written can be read
        how = "".join(c if c.isprintable() else " " for c in str(x.how))[:_HOW]
        entry = {"name": name, "format": format, "how": how, "shape": list(x.shape)}
        entries.append({**entry, "digest": _digest(entry, x)})
    record = {_RECORD: _LAYOUT, "numsim": __version__, "arrays": entries}
    text = json.dumps(record, ensure_ascii=True, sort_keys=True).encode()
    members = {**{name: x.codes for name, x in arrays.items()}, _RECORD: np.frombuffer(text, np.uint8)}
    total = sum(codes.nbytes + 1024 for codes in members.values())
    fits = total <= MAX_CONTENT and len(text) <= MAX_JSON and len(members) <= MAX_MEMBERS
    if not fits or len(data := npz_bytes(members)) > MAX_FILE:
        raise InputError(
            f"{show(path)} would hold {len(arrays)} Arrays, {total >> 20} MiB: at most {MAX_CONTENT >> 20} MiB are "
            f"read again, {MAX_FILE >> 20} when packed, and some 50,000 Arrays. Example: one file for each Array"
        )
    return write_atomic(path, data)


def load(path: Path | str) -> dict[str, Array]:
    """The Arrays of a file that ``save`` wrote, by name, in the order in which they were given.

    Rules: everything in the file is checked before anything is returned: sizes (before memory is taken), formats, codes
    and digests. Nothing in a file is ever executed. The Arrays can be written to.
    Raises ``InputError`` where there is no such file, ``RecordError`` for one that is damaged, hostile or another's
    (such as what ``numpy.savez`` writes).
    """
    check_path(path)
    what = show(path)
    members = parse_npz(read_bytes(path), what)
    text = members.pop(_RECORD, None)
    if text is None or text.dtype != np.uint8 or text.ndim != 1:
        raise RecordError(f"{what} holds no numsim Arrays: it has no member {_RECORD}.npy. {_EXAMPLE}")
    record = parse_json(text.tobytes(), what)
    if not isinstance(record, dict) or type(record.get(_RECORD)) is not int or record[_RECORD] != _LAYOUT:
        raise RecordError(f"{what} has another layout; numsim {__version__} reads layout {_LAYOUT}.")
    entries = record.get("arrays")
    if set(record) != {_RECORD, "numsim", "arrays"} or not is_label(record["numsim"], 40) or type(entries) is not list:
        raise RecordError(f"{what} is damaged: it has not the entries of layout {_LAYOUT}.")
    arrays = {}
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or set(entry) != _ENTRY or not isinstance(name, str) or name not in members:
            raise RecordError(f"{what} is damaged: entry {short(entry)} describes no Array in it.")
        arrays[name] = _array(entry, members.pop(name), f"{what}: {name}")
    if members:
        raise RecordError(f"{what}: member {short(min(members))} is not described.")
    return arrays


def _array(entry: dict[str, Any], codes: Any, what: str) -> Array:
    if not is_label(entry["how"], _HOW):
        raise RecordError(f"{what} is damaged: it does not say in a line how it was made.")
    try:
        format = _read_format(entry["format"])
        if codes.dtype != code_dtype(format):
            raise InputError(f"codes of {format} are {code_dtype(format)}, not {codes.dtype}")
        x = Array(codes.copy(), format, entry["how"])  # what was read is read-only
    except (NumsimError, TypeError) as error:
        raise RecordError(f"{what} is damaged: {' '.join(str(error).split())[:200]}") from None
    if entry["digest"] != _digest({key: entry[key] for key in _ENTRY - {"digest"}}, x) or entry["shape"] != list(
        x.shape
    ):
        raise RecordError(f"{what} has not the digest that it states: it was changed.")
    return x


def _fields(format: Format) -> dict[str, Any]:
    return {field.name: getattr(format, field.name) for field in dataclasses.fields(format)}


def _read_format(given: Any) -> Format:
    if isinstance(given, str):
        format = get_format(given)
        if format.name != given:
            raise InputError(f"format {short(given)} is called {format.name}")
        return format
    names = {field.name for field in dataclasses.fields(Format)}
    if (
        not isinstance(given, dict)
        or set(given) != names
        or not all(is_label(given[n]) for n in ("name", "title", "source"))
    ):
        raise InputError(f"format {short(given)}: its name or its fields {', '.join(sorted(names))} are needed")
    return Format(**given)


def _digest(entry: dict[str, Any], x: Array) -> str:
    """SHA-256 of what is said of an Array, and of its codes, little-endian in C order."""
    said = json.dumps(entry, ensure_ascii=True, sort_keys=True).encode()
    codes = np.ascontiguousarray(x.codes, x.codes.dtype.newbyteorder("<"))
    return hashlib.sha256(said + b"\n" + codes.tobytes()).hexdigest()
