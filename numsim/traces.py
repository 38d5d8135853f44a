"""What happened step by step: ``Trace``, series with events; ``SumTrace``, a sum and where it stopped counting."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.array import Array
from numsim.codes import classify, exact, ulp
from numsim.errors import InputError, RecordError, short
from numsim.files import parse_json, read_bytes, show, write_atomic
from numsim.formats import get_format
from numsim.operations import cumsum

_LAYOUT = 1
_EXAMPLE = "Example: Trace('torch', [1, 2, 3], {'scale': [4.0, 4.0, 2.0]}, [Event(3, 'overflow')])"


# --- series over steps ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Event:
    """Something that happened at a step: ``kind`` in one word, ``text`` for people."""

    step: int
    kind: str
    text: str = ""


@dataclass(frozen=True, eq=False)
class Trace:
    """Named series over steps, and what happened on the way: a loss scale, amaxes, ranges of gradients.

    Parameters
    ----------
    title : what was traced.
    steps : integers, increasing; all series have a number for each.
    series : for each name an ``Array`` (codes with their format: compared bit by bit) or floats (float64).
    events : in any order; kept in the order of their steps.
    about : settings and whatever else a reader needs to repeat it; plain values that JSON has.

    Raises ``InputError`` where lengths differ or a step is none.

    >>> trace = Trace("a scaler", [1, 2, 3], {"scale": [4.0, 4.0, 2.0]}, [Event(3, "overflow", "halved")])
    >>> print(trace)
    a scaler: 3 steps
      step  scale  event
         1      4
         3      2  overflow: halved
    """

    title: str
    steps: npt.NDArray[np.int64]
    series: Mapping[str, Array | npt.NDArray[np.float64]]
    events: tuple[Event, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = np.asarray(self.steps)
        if steps.ndim != 1 or (steps.size and steps.dtype.kind not in "ui") or (np.diff(steps) <= 0).any():
            raise InputError(f"steps={short(self.steps)}: increasing integers are needed. {_EXAMPLE}")
        series: dict[str, Array | npt.NDArray[np.float64]] = {}
        for name, numbers in self.series.items():
            kept = numbers if isinstance(numbers, Array) else np.array(numbers, np.float64)
            if kept.shape != steps.shape:
                raise InputError(f"series {name!r} of shape {kept.shape}: one number for each of the {steps.size} "
                                 f"steps is needed. {_EXAMPLE}")  # fmt: skip
            (kept.codes if isinstance(kept, Array) else kept).flags.writeable = False
            series[str(name)] = kept
        if strange := [e for e in self.events if not isinstance(e, Event) or e.step not in steps]:
            raise InputError(f"event {short(strange[0])}: an Event at one of the steps is needed. {_EXAMPLE}")
        object.__setattr__(self, "steps", steps.astype(np.int64))
        object.__setattr__(self, "series", MappingProxyType(series))
        object.__setattr__(self, "events", tuple(sorted(self.events, key=lambda e: e.step)))
        object.__setattr__(self, "about", MappingProxyType(dict(self.about)))

    def __len__(self) -> int:
        return int(self.steps.size)

    def __getitem__(self, name: str) -> npt.NDArray[np.float64]:
        """The values of a series, as float64."""
        if name not in self.series:
            raise InputError(f"series {short(name)}: this trace has {', '.join(self.series)}.")
        numbers = self.series[name]
        return np.asarray(numbers.values if isinstance(numbers, Array) else numbers)

    def happened(self, kind: str) -> list[int]:
        """The steps of all events of one kind."""
        return [e.step for e in self.events if e.kind == kind]

    # --- for people
    def __str__(self) -> str:
        """The first step, the last, and those with events; where there are many, the first ten and the last ten."""
        at = sorted({e.step for e in self.events} | {int(s) for s in self.steps[[0, -1] if len(self) else []]})
        shown = at if len(at) <= 21 else [*at[:10], *at[-10:]]
        texts = {step: "; ".join(_text_of(e) for e in self.events if e.step == step) for step in shown}
        places = np.searchsorted(self.steps, shown)
        columns = [["step", *map(str, shown)]]
        columns += [[name, *(f"{x:.6g}" for x in self[name][places])] for name in self.series]
        wide = [max(map(len, column)) for column in columns]
        rows = [
            "  " + "  ".join(text.rjust(w) for text, w in zip(row, wide, strict=True))
            for row in zip(*columns, strict=True)
        ]
        ends = ["event" if self.events else "", *texts.values()]
        lines = [f"{row}  {end}".rstrip() for row, end in zip(rows, ends, strict=True)]
        if len(at) > len(shown):
            lines.insert(11, f"  ... {len(at) - len(shown)} more steps with events")
        return "\n".join([f"{self.title}: {len(self)} steps", *lines])

    # --- files
    def to_dict(self) -> dict[str, Any]:
        """For JSON; codes as integers, floats that JSON has not as texts."""
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
        """Write the trace as JSON; ``load_trace`` reads it."""
        return write_atomic(path, self.json + "\n")


def load_trace(path: Path | str) -> Trace:
    """A trace that ``save`` wrote. Raises ``RecordError`` for what is none."""
    return read_trace(parse_json(read_bytes(path), show(path)), show(path))


def read_trace(record: Any, what: str) -> Trace:
    """A trace from what ``Trace.to_dict`` made; ``what`` names the file in errors."""
    if not isinstance(record, dict) or record.get("numsim_trace") != _LAYOUT:
        raise RecordError(f"{what} is no trace of numsim (layout {_LAYOUT}).")
    try:
        return Trace(
            str(record["title"]),
            np.array(record["steps"], np.int64),
            {name: _series(x) for name, x in record["series"].items()},
            tuple(Event(*event) for event in record["events"]),
            record["about"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordError(f"{what} is a damaged trace: {error}") from None


def _series(x: Mapping[str, Any]) -> Array | npt.NDArray[np.float64]:
    if "format" in x:
        return Array(np.array(x["codes"], np.uint64), get_format(x["format"]), "read from a file")
    return np.array([float(v) for v in x["values"]], np.float64)


def _text_of(event: Event) -> str:
    return f"{event.kind}: {event.text}" if event.text else event.kind


# --- sums -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class SumTrace:
    """A running sum: ``partial[i]`` is the accumulator after term i.

    counted : bool for each term, whether it changed the accumulator (zeros too: they have nothing to lose).
    """

    terms: Array
    partial: Array
    counted: npt.NDArray[np.bool_]

    @property
    def stalls_at(self) -> int | None:
        """The first term from which on no addition counts, or None if the last one does."""
        if not self.counted.size or self.counted[-1]:
            return None
        return int(self.counted.size - np.argmax(self.counted[::-1])) if self.counted.any() else 0

    @property
    def lost(self) -> int:
        """How many terms changed nothing."""
        return int(np.count_nonzero(~self.counted))

    def exact(self) -> Fraction:
        """The exact sum of the terms."""
        return sum((exact(c, self.terms.format) for c in self.terms.codes), Fraction(0))

    def __str__(self) -> str:
        n = len(self.terms)
        lines = [f"{n} terms, {self.partial.how}"]
        if not n or not np.isfinite(self.partial.values[-1]):
            return "\n".join([*lines, f"result {self.partial.values[-1] if n else 0.0}"])
        if not np.isfinite(self.terms.values).all():
            return "\n".join([*lines, f"result {self.partial.values[-1]}; not all terms are finite"])
        result, true = self.partial[-1].fraction(), self.exact()
        error = f" ({float((result - true) / true):+.2%})" if true else ""
        lines.append(f"result {_text(result)}, exact sum {_text(true)}{error}")
        if (at := self.stalls_at) is not None:
            code = self.partial.codes[-1]
            lines.append(f"from term {at} on no addition counts: {n - at} terms are lost")
            lines.append(
                f"there the accumulator is {_text(result)}, its spacing {_text(ulp(code, self.partial.format))}, "
                f"and the terms are at most {_text(Fraction(float(np.abs(self.terms.values[at:]).max())))}"
            )
        elif self.lost:
            lines.append(f"{self.lost} additions changed nothing")
        else:
            lines.append("every addition of a number but zero changed the accumulator")
        return "\n".join(lines)


def _text(x: Fraction) -> str:
    """Shortest float64 form; sums of numbers near float64's largest may lie beyond."""
    try:
        return repr(float(x))
    except OverflowError:
        return "beyond float64"


def trace_sum(x: Any, **options: Any) -> SumTrace:
    """Sum a 1-D Array in index order and keep every step; options as for ``numsim.cumsum``.

    >>> from numsim.array import array
    >>> print(trace_sum(array(np.full(1000, 0.1), "bf16")))
    1000 terms, sequential sum in bf16, nearest-even
    result 32.0, exact sum 100.09765625 (-68.03%)
    from term 276 on no addition counts: 724 terms are lost
    there the accumulator is 32.0, its spacing 0.25, and the terms are at most 0.10009765625
    """
    if not isinstance(x, Array) or x.ndim != 1:
        raise InputError("trace_sum takes a 1-D Array. Example: numsim.trace_sum(numsim.array([0.1, 0.2], 'bf16'))")
    if options.get("order", "sequential") != "sequential":
        raise InputError("trace_sum follows a sequential sum: other orders keep what an addition loses.")
    partial = cumsum(x, **options)
    before = np.concatenate([partial.codes[:1], partial.codes[:-1]])
    counted = (partial.codes != before) | (classify(x.codes, x.format) == "zero")
    counted[:1] = True  # the sum starts from it
    return SumTrace(x, partial, counted)
