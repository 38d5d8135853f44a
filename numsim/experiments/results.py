"""Results as JSON: what ``numsim run`` writes and ``numsim check`` recomputes.

A file holds the experiment's parameters, what was found, digests of every question and answer, the verdicts and the
machine's provenance. No time, host or user is in it, so that a re-run on the same machine writes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from numsim._version import __version__
from numsim.errors import InputError, NumsimError, RecordError
from numsim.experiments import get_experiment
from numsim.experiments.experiment import Experiment, Result, Session
from numsim.files import is_label
from numsim.machines.question import Answer, Question, array_digest
from numsim.machines.verdict import Verdict, compare_traces
from numsim.traces import Trace, read_trace

_LAYOUT = 1
SIZES = ("lecture", "full")
COURSE = "numsim"
FOUND = ("answer", "findings", "tables", "series")  # what an experiment computes, in a file


# --- parameters -------------------------------------------------------------------------------------------------------
def student_seed(student: str, course: str = COURSE) -> int:
    """The seed of a student: 32 bits of SHA-256 of course and ID, spaces around and Unicode spelling aside.

    >>> student_seed("s123456") == student_seed(" s123456 "), student_seed("s123456") == student_seed("s123457")
    (True, False)
    """
    texts = [unicodedata.normalize("NFC", text).strip() for text in (course, student)]
    if not all(texts) or max(map(len, texts)) > 200 or any(not c.isprintable() for c in "".join(texts)):
        raise InputError(f"student {student[:40]!r}, course {course[:40]!r}: 1 to 200 printable characters are needed. "
                         "Example: --student s123456")  # fmt: skip
    return int.from_bytes(hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).digest()[:4], "big")


def parameters_for(experiment: Experiment, size: str = "lecture", seed: int | None = None) -> dict[str, Any]:
    """The parameters that an experiment is run with."""
    if size not in SIZES:
        raise InputError(f"size={size!r}: allowed are {', '.join(SIZES)}. Example: --size lecture")
    chosen = {**experiment.defaults, **(experiment.full if size == "full" else {})}
    if seed is not None and "seed" in chosen:
        chosen["seed"] = seed
    return chosen


# --- writing ----------------------------------------------------------------------------------------------------------
def plain(x: Any) -> Any:
    """A value as JSON has it: lists for tuples and arrays, texts for NaN and infinities.

    >>> plain({"a": (1, np.float64(0.5)), "b": float("inf")})
    {'a': [1, 0.5], 'b': 'inf'}
    """
    if isinstance(x, Mapping):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, np.ndarray):
        return plain(x.tolist())
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    if isinstance(x, np.generic):
        return plain(x.item())
    if isinstance(x, float):
        return x if math.isfinite(x) else str(x)
    if x is None or isinstance(x, (bool, int, str)):
        return x
    return str(x)


def found(result: Result) -> dict[str, Any]:
    """What an experiment found, as JSON has it."""
    tables = [{"title": t.title, "columns": t.columns, "rows": t.rows} for t in result.tables]
    return {
        "answer": result.answer,
        "findings": plain(result.findings),
        "tables": plain(tables),
        "series": plain(result.series),
        **({"traces": {name: trace.to_dict() for name, trace in result.traces.items()}} if result.traces else {}),
    }


def digests(answers: Sequence[tuple[Question, Answer]]) -> list[dict[str, str]]:
    """Every question once: in words, its digest, its answer's digest."""
    unique = {q.digest: (q, a) for q, a in answers}
    return [{"question": str(q), "digest": d, "answer": array_digest(a.codes)} for d, (q, a) in unique.items()]


def to_dict(
    experiment: Experiment,
    result: Result,
    session: Session,
    verdicts: Sequence[Verdict],
    *,
    size: str = "lecture",
    student: str | None = None,
    course: str | None = None,
    guess: str | None = None,
) -> dict[str, Any]:
    """One run of one experiment."""
    who = {} if student is None else {"student": student, "course": course or COURSE}
    return {
        "numsim_result": _LAYOUT,
        "numsim": __version__,
        "experiment": experiment.name,
        "question": experiment.question,
        **who,
        **({} if guess is None else {"guess": guess}),
        "size": size,
        "parameters": plain(result.parameters),
        "machine": session.machine.name,
        "provenance": plain(session.machine.provenance()),
        **found(result),
        "answers": digests(session.answers),
        "not_answered": dict(sorted(session.skipped.items())),
        "verdicts": [v.to_dict() for v in verdicts],
    }


def to_text(data: Mapping[str, Any]) -> str:
    """JSON text: one line for each entry of the outermost levels, so that files stay short and diffs readable."""

    def lines(x: Any, depth: int) -> str:
        if depth and isinstance(x, dict) and x:
            inner = ",\n".join(f"{json.dumps(k)}: {lines(v, depth - 1)}" for k, v in x.items())
            return "{\n" + inner + "\n}"
        if depth and isinstance(x, list) and x:
            return "[\n" + ",\n".join(lines(v, 0) for v in x) + "\n]"
        return json.dumps(x, ensure_ascii=True, allow_nan=False)

    return lines(dict(data), 2) + "\n"


# --- reading ----------------------------------------------------------------------------------------------------------
_TYPES: dict[str, type | tuple[type, ...]] = {
    "numsim_result": int, "numsim": str, "experiment": str, "parameters": dict, "machine": str, "provenance": dict,
    "answer": str, "findings": list, "tables": list, "series": dict, "answers": list,
}  # fmt: skip


def read_result(result: Any, what: str) -> dict[str, Any]:
    """What was parsed from a result file, checked. Raises ``RecordError``."""
    example = "Example: numsim check numsim-results/swamping.json"
    if not isinstance(result, dict) or "numsim_result" not in result:
        raise RecordError(f"{what} is no numsim result: it has no entry numsim_result. {example}")
    if type(result["numsim_result"]) is not int or result["numsim_result"] != _LAYOUT:  # True is 1
        raise RecordError(
            f"{what} has layout {_short(result['numsim_result'])}; numsim {__version__} reads layout {_LAYOUT}."
        )
    for key, kind in _TYPES.items():
        if not isinstance(result.get(key), kind):
            raise RecordError(f"{what} is damaged: its entry {key} is missing or of the wrong kind. {example}")
    if not isinstance(result.get("traces", {}), dict):
        raise RecordError(f"{what} is damaged: its entry traces is of the wrong kind. {example}")
    for key in ("numsim", "experiment", "machine", "student", "course"):
        if not is_label(result.get(key, "")):
            raise RecordError(f"{what} is damaged: its entry {key} is no short text. {example}")
    return result


def recompute(data: Mapping[str, Any], machine: Any, what: str) -> tuple[Session, Result]:
    """Run the experiment of a result file again. Raises ``RecordError`` where its parameters are none."""
    try:
        experiment = get_experiment(data["experiment"])
        if wrong := sorted(set(data["parameters"]) ^ set(experiment.defaults)):
            problem = "is missing" if wrong[0] in experiment.defaults else "is none of its"
            raise InputError(f"{experiment.name}: parameter {wrong[0][:40]!r} {problem}")
        session = Session(machine)
        return session, experiment.run(session, **data["parameters"])
    except RecordError:
        raise
    except (NumsimError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:  # hostile parameters
        raise RecordError(f"{what} cannot be recomputed: {' '.join(str(error).split())[:300]}") from None


def differences(data: Mapping[str, Any], session: Session, result: Result) -> Iterator[str]:
    """What a result file says otherwise than a new computation, in words."""
    now: dict[str, Any] = found(result) | {"answers": digests(session.answers)}
    now.pop("traces", None)
    then = {key: data[key] for key in now}
    yield from _differ(then, now, "")
    yield from _traces_differ(data.get("traces", {}), result.traces)
    if (student := data.get("student")) is not None:
        try:
            seed = student_seed(str(student), str(data.get("course", COURSE)))
        except InputError as error:
            yield str(error)
        else:
            if (given := data["parameters"].get("seed", seed)) != seed:
                yield f"seed: {given} in the file, {seed} is that of student {student}"


def _differ(then: Any, now: Any, where: str) -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict) and set(then) == set(now):
        for key in now:
            yield from _differ(then[key], now[key], f"{where}{' ' if where else ''}{key}")
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for i, (x, y) in enumerate(zip(then, now, strict=True), start=1):
            yield from _differ(x, y, f"{where} {i}")
    elif not _same(then, now):
        yield f"{where}: {_short(then)} in the file, {_short(now)} recomputed"


def _traces_differ(then: Mapping[str, Any], now: Mapping[str, Trace]) -> Iterator[str]:
    """Traces are no statistics: their numbers are compared by their bits."""
    for name in sorted(set(then) ^ set(now)):
        yield f"trace {_short(name)} is {'only' if name in then else 'not'} in the file"
    for name in sorted(set(then) & set(now)):
        try:
            old = read_trace(then[name], "the file's")
            verdict = compare_traces(old, now[name], names=("the file's", "the recomputed one"))
        except InputError as error:
            yield f"trace {_short(name)}: {error}"
            continue
        yield from (f"trace {_short(name)}, file against recomputed: {d}" for d in verdict.shown)
        texts = [{k: v for k, v in t.to_dict().items() if k != "series"} for t in (old, now[name])]
        yield from _differ(texts[0], texts[1], f"trace {_short(name)}") if verdict.ok else ()


def _same(x: Any, y: Any) -> bool:
    """Equal; statistics to nine digits, for their summation may differ with numpy's version (codes never do)."""
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (x, y))
    if numbers and (isinstance(x, float) or isinstance(y, float)):
        return math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12)
    return type(x) is type(y) and bool(x == y)


def _short(x: Any) -> str:
    try:
        text = json.dumps(x)
    except RecursionError:
        text = "something very deep"
    return text if len(text) <= 60 else f"{text[:57]}..."
