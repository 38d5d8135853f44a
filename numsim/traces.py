"""What happened step by step: ``Trace``, series over steps with events."""

from __future__ import annotations

import hashlib
import json
import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from numsim.array import Array
from numsim.errors import InputError, RangeError, RecordError, short
from numsim.files import MAX_JSON, is_label, parse_json, read_bytes, show, write_atomic
from numsim.formats import get_format
from numsim.sum_trace import SumTrace, trace_sum
from numsim.values import is_whole

__all__ = ["Event", "SumTrace", "Trace", "load_trace", "number_text", "read_trace", "trace_sum"]

_LAYOUT = 1
_KEYS = {"numsim_trace", "title", "about", "steps", "series", "events"}
_WIDTH = 80
_EVENTS = 26  # columns that are kept for what happened
_NAMES = 20  # series that are named where not all are shown
_DEEP = 20  # lists and dicts in each other that ``about`` may hold: readers of JSON have limits, and not the same ones
_EXAMPLE = "Example: Trace('torch', [1, 2, 3], {'scale': [4.0, 4.0, 2.0]}, [Event(3, 'overflow')])"


@dataclass(frozen=True)
class Event:
    """Something that happened at a step: ``kind`` in one word, ``text`` for people (a line of up to 200 characters)."""

    step: int
    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if not is_whole(self.step):
            raise InputError(
                f"an event at step {short(self.step)}: an integer is needed. Example: Event(3, 'overflow')"
            )
        if not is_label(self.kind, 40) or self.kind.split() != [self.kind] or not is_label(self.text):
            raise InputError(f"an event {short(self.kind)}, {short(self.text)}: one word, and one printable line of up "
                             "to 200 characters are needed. Example: Event(3, 'overflow', 'halved')")  # fmt: skip
        object.__setattr__(self, "step", int(self.step))

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


@dataclass(frozen=True, eq=False)
class Trace:
    """Named series over steps, and what happened on the way: a loss scale, amaxes, ranges of gradients.

    Rules: floats are kept bit by bit but for NaN, which is one NaN; codes keep a NaN's sign and payload. Infinities, -0
    and subnormals are kept. Arrays of integers are refused where one is beyond 2^53, for float64 would round it.

    Parameters
    ----------
    title : what was traced, a line of up to 200 characters.
    steps : integers, increasing; all series have a number for each.
    series : for each name (up to 60 characters) an ``Array`` (codes with their format: compared bit by bit) or floats.
    events : in any order; kept in the order of their steps.
    about : settings and whatever else a reader needs to repeat it; plain values that JSON has, at most 20 lists and
        dicts in each other, integers of up to 25 characters.

    Raises ``InputError`` where lengths differ, a step is none, or a text is not printable.

    >>> trace = Trace("a scaler", [1, 2, 3], {"scale": [4.0, 4.0, 2.0]}, [Event(3, "overflow", "halved")])
    >>> print(trace)
    a scaler: 3 steps
      step  scale  event
         1      4
         3      2  overflow: halved
    >>> trace["scale"].tolist(), trace.happened("overflow")
    ([4.0, 4.0, 2.0], [3])
    """

    title: str
    steps: npt.NDArray[np.int64]
    series: Mapping[str, Array | npt.NDArray[np.float64]]
    events: tuple[Event, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_label(self.title) or not self.title.strip():
            raise InputError(
                f"title {short(self.title)}: a printable line of up to 200 characters is needed. {_EXAMPLE}"
            )
        if not isinstance(self.series, Mapping):
            raise InputError(f"series {short(self.series)}: a dict of names and numbers is needed. {_EXAMPLE}")
        steps = _steps(self.steps)
        series = {name: _series(name, numbers, steps.size) for name, numbers in self.series.items()}
        try:
            events = tuple(self.events)
        except TypeError:
            raise InputError(f"events {short(self.events)}: a list of Events is needed. {_EXAMPLE}") from None
        at = set(steps.tolist())
        for e in events:
            if not isinstance(e, Event) or e.step not in at:
                raise InputError(f"event {short(e)}: an Event at one of the steps is needed. {_EXAMPLE}")
        try:  # a copy, as it will be read again
            about = parse_json(json.dumps(dict(self.about), allow_nan=False).encode(), "about")
            plain = _is_flat(about)
        except (TypeError, ValueError, RecursionError):
            plain = False
        if not plain:
            raise InputError(
                f"about {short(self.about)}: a dict of plain values that JSON has is needed, without NaN "
                f"and infinities, at most {_DEEP} in each other. Example: about={{'growth_interval': 2000}}"
            )
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "series", MappingProxyType(series))
        object.__setattr__(self, "events", tuple(sorted(events, key=lambda e: e.step)))
        object.__setattr__(self, "about", MappingProxyType(about))

    def __reduce__(self) -> Any:
        """For pickle and deep copies, which know no read-only dicts."""
        return type(self), (self.title, self.steps, dict(self.series), self.events, dict(self.about))

    def __len__(self) -> int:
        return int(self.steps.size)

    def __getitem__(self, name: str) -> npt.NDArray[np.float64]:
        """The values of a series, as float64."""
        if not isinstance(name, str) or name not in self.series:
            raise InputError(f"series {short(name)}: this trace has {_named(self.series) or 'none'}.")
        numbers = self.series[name]
        return np.asarray(numbers.values if isinstance(numbers, Array) else numbers)

    def happened(self, kind: str) -> list[int]:
        """The steps of all events of one kind."""
        if not isinstance(kind, str):
            raise InputError(f"kind={short(kind)}: a word is needed. Example: trace.happened('overflow')")
        return [e.step for e in self.events if e.kind == kind]

    # --- for people
    def __str__(self) -> str:
        """The first step, the last, and those with events; where there are many, the first ten and the last ten.

        In 80 columns: series that find no room are named below, the first twenty of them.
        """
        at = sorted({e.step for e in self.events} | {int(s) for s in self.steps[[0, -1] if len(self) else []]})
        shown = at if len(at) <= 21 else [*at[:10], *at[-10:]]
        places = np.searchsorted(self.steps, shown)
        columns = [["step", *map(str, shown)]]
        room, left = _WIDTH - 2 - len(max(columns[0], key=len)) - _EVENTS * bool(self.events), list[str]()
        for name, numbers in self.series.items():
            if not left:
                column = [name if len(name) <= 20 else f"{name[:17]}...", *_cells(numbers, places)]
                if (room := room - 2 - max(map(len, column))) >= 0:
                    columns.append(column)
                    continue
            left.append(name)
        wide = [max(map(len, column)) for column in columns]
        rows = [
            "  " + "  ".join(x.rjust(w) for x, w in zip(row, wide, strict=True)) for row in zip(*columns, strict=True)
        ]
        if self.events:
            happened: dict[int, list[str]] = {step: [] for step in shown}
            for e in self.events:
                if e.step in happened:
                    happened[e.step].append(str(e))
            ends, free = ["event", *map("; ".join, happened.values())], _WIDTH - len(rows[0]) - 2
            cut = [end if len(end) <= free else f"{end[: free - 3]}..." for end in ends]
            rows = [f"{row}  {end}".rstrip() for row, end in zip(rows, cut, strict=True)]
        if len(at) > len(shown):
            rows.insert(11, f"  ... {len(at) - len(shown)} more steps with events")
        head = textwrap.wrap(f"{self.title}: {len(self)} steps", _WIDTH, subsequent_indent="  ")
        more = f"not shown: {_named(left)}" if left else ""
        return "\n".join([*head, *rows, *textwrap.wrap(more, _WIDTH, initial_indent="  ", subsequent_indent="  ")])

    def draw(self, style: Literal["page", "slide"] = "page") -> Any:
        """The picture that fits the series, as a matplotlib figure: a loss scale, an amax and its limit, or ranges.

        Raises ``InputError`` where none does. ``numsim check FILE --out trace.png`` draws a saved one;
        ``numsim.show.trace_plots`` has the pictures with their options.
        """
        from numsim.show import trace_plots  # drawing is floors above; only a call for a picture goes there

        return trace_plots.trace_plot(self, style)[1]

    # --- files
    def to_dict(self) -> dict[str, Any]:
        """For JSON; codes as integers, floats that JSON has not as texts.

        Raises ``InputError`` where a series has a format of one's own: a file knows formats by name.
        """
        for x in self.series.values():
            if isinstance(x, Array) and not x.format.is_named:
                raise InputError(f"format {x.format.name!r} is your own: a trace in a file knows formats by name.")
        return {
            "numsim_trace": _LAYOUT,
            "title": self.title,
            "about": dict(self.about),
            "steps": self.steps.tolist(),
            "series": {
                name: {"format": x.format.name, "codes": x.codes.tolist()}
                if isinstance(x, Array)
                else {"values": [v if math.isfinite(v) else str(v) for v in x.tolist()]}
                for name, x in self.series.items()
            },
            "events": [[e.step, e.kind, e.text] for e in self.events],
        }

    @property
    def json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, ASCII."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def digest(self) -> str:
        """SHA-256 of ``json``: equal digests, equal traces."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    def save(self, path: Path | str) -> Path:
        """Write the trace as JSON; ``load_trace`` reads it. Raises ``InputError`` where it is too long for that."""
        text = self.json + "\n"
        if len(text) > MAX_JSON:
            raise InputError(f"{show(path)} would have {len(text) >> 20} MiB; at most {MAX_JSON >> 20} are read again. "
                             "Keep fewer steps, such as every tenth.")  # fmt: skip
        return write_atomic(path, text)


def load_trace(path: Path | str) -> Trace:
    """A trace that ``save`` wrote. Raises ``RecordError`` for what is none."""
    return read_trace(parse_json(read_bytes(path), show(path)), show(path))


def read_trace(record: Any, what: str) -> Trace:
    """A trace from what ``Trace.to_dict`` made; ``what`` names the file in errors."""
    layout = record.get("numsim_trace") if isinstance(record, dict) else None
    if type(layout) is not int or layout != _LAYOUT:  # (True and 1.0 are equal to 1)
        raise RecordError(f"{what} is no trace of numsim (layout {_LAYOUT}).")
    if odd := sorted(map(str, _KEYS ^ set(record))):
        raise RecordError(f"{what} is a damaged trace: entry {short(odd[0])} is missing, or is none of a trace.")
    try:
        series = {name: _read_series(x) for name, x in record["series"].items()}
        events = tuple(Event(step, kind, text) for step, kind, text in record["events"])
        return Trace(record["title"], np.array(_integers(record["steps"]), np.int64), series, events, record["about"])
    except (TypeError, ValueError, AttributeError, OverflowError) as error:  # an InputError is a ValueError
        raise RecordError(f"{what} is a damaged trace: {error}") from None


def _read_series(x: Any) -> Array | npt.NDArray[np.float64]:
    if set(x) == {"format", "codes"}:
        codes = _integers(x["codes"])
        if codes and min(codes) < 0:  # (of which NumPy 1 would make large ones)
            raise ValueError(f"{short(min(codes))} is no code")
        return Array(np.array(codes, np.uint64), get_format(x["format"]), "read from a file")
    if set(x) != {"values"}:
        raise ValueError("a series has a format and codes, or values")
    texts = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    if strange := [v for v in x["values"] if type(v) not in (int, float) and not (type(v) is str and v in texts)]:
        raise ValueError(f"{short(strange[0])} is no value")
    return np.array([texts[v] if type(v) is str else v for v in x["values"]], np.float64)


def _integers(x: Any) -> list[int]:
    if type(x) is not list or any(type(n) is not int for n in x):
        raise ValueError(f"{short(x)}: a list of integers is needed")
    return x


# --- parts of a trace
_NO_ARRAY = (TypeError, ValueError, OverflowError, RuntimeError)  # (RuntimeError: a torch tensor with a gradient)


def _is_flat(x: Any, deep: int = _DEEP) -> bool:
    """Whether at most ``deep`` lists and dicts stand in each other."""
    if not isinstance(x, (list, dict)):
        return True
    return deep > 0 and all(_is_flat(y, deep - 1) for y in (x.values() if isinstance(x, dict) else x))


def _named(names: Iterable[str]) -> str:
    """Names in one line; of many the first ones."""
    names = list(names)
    more = len(names) - _NAMES
    return f"{', '.join(names[:_NAMES])} and {more} more" if more > 0 else ", ".join(names)


def _steps(x: Any) -> npt.NDArray[np.int64]:
    try:
        steps = np.asarray(x)
    except _NO_ARRAY:
        steps = np.zeros(())
    if steps.shape == (0,):
        steps = np.zeros(0, np.int64)
    if (
        steps.ndim != 1
        or (steps.size and (steps.dtype.kind not in "ui" or int(steps.max()) >= 2**63))
        or (steps[1:] <= steps[:-1]).any()
    ):
        raise InputError(f"steps={short(x)}: increasing integers below 2^63 are needed. {_EXAMPLE}")
    kept = steps.astype(np.int64)
    kept.flags.writeable = False
    return kept


def _series(name: Any, numbers: Any, steps: int) -> Array | npt.NDArray[np.float64]:
    """A copy that nobody changes."""
    if not is_label(name, 60) or not name.strip():
        raise InputError(f"series {short(name)}: a printable name of up to 60 characters is needed. {_EXAMPLE}")
    if isinstance(numbers, Array):
        kept: Any = Array(np.array(numbers.codes), numbers.format, numbers.how)
        kept.codes.flags.writeable = False
    else:
        try:
            given = np.asarray(numbers)
        except _NO_ARRAY:
            given = np.array(None)
        if given.size and (
            given.dtype.kind not in "buif"
            or given.dtype.itemsize > 8
            or (given.dtype.kind in "ui" and max(int(given.max()), -int(given.min())) > 2**53)
        ):
            raise InputError(f"series {name!r}, {short(numbers)}: an Array or numbers that float64 has are needed. "
                             f"{_EXAMPLE}")  # fmt: skip
        kept = given.astype(np.float64) if given.size else np.zeros(given.shape)
        kept[np.isnan(kept)] = np.nan
        kept.flags.writeable = False
    if kept.shape != (steps,):
        raise InputError(f"series {name!r} of shape {kept.shape}: one number for each of the {steps} steps is needed. "
                         f"{_EXAMPLE}")  # fmt: skip
    return kept  # type: ignore[no-any-return]


def _cells(numbers: Array | npt.NDArray[np.float64], places: Any) -> list[str]:
    """Numbers as a table shows them: six digits; large and small powers of two as such."""
    if isinstance(numbers, Array):
        try:
            values = numbers[places].values.tolist()
        except RangeError:  # beyond float64
            return [f"{code:#x}" for code in numbers[places].codes.tolist()]
    else:
        values = numbers[places].tolist()
    return [number_text(x) for x in values]


def number_text(x: float) -> str:
    """A number in at most six digits; powers of two far from 1 as such.

    >>> number_text(65536.0), number_text(-(2.0**17)), number_text(2.0**-128), number_text(0.1), number_text(math.nan)
    ('65536', '-2^17', '2^-128', '0.1', 'nan')
    """
    part, exponent = math.frexp(x)
    if abs(part) == 0.5 and not -10 < exponent < 18:
        return f"{'-' * (x < 0)}2^{exponent - 1}"
    return f"{x:.6g}"
