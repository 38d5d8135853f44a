"""numsim check: recompute a result or a record on the emulator, read a trace or compare two; say what differs."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from numsim import files
from numsim._version import __version__
from numsim.cli import CANNOT_RUN, CHECK_FAILED, FINE, _output, add_output
from numsim.errors import InputError, NumsimError, RecordError, UnavailableError
from numsim.experiments import get_experiment, results
from numsim.machines import find_machine
from numsim.machines.emulated import has_kernel
from numsim.machines.question import LIBRARY, Question
from numsim.machines.recorded import Record, parse_record
from numsim.machines.verdict import UNDECIDED, Verdict, compare_answers, compare_traces
from numsim.show import report, suite_page, suite_text, text
from numsim.show.text import Line, Span
from numsim.suites import Row, get_suite
from numsim.suites.products import ways_to_try
from numsim.tensorcore import EvidenceWarning
from numsim.traces import Trace, load_trace, read_trace

_SHOWN = 10
_PICTURES = (".png", ".svg")
_COMPARED = ("compared: question, answer, findings, tables, series, traces, all answers' bits",
             "not compared: verdicts, guess, pictures, provenance")  # fmt: skip
_MOST_WORK = 10**11  # roundings: some minutes with kernels
_REFERENCE = 5000  # how many times as long the reference takes
_MOST_RESULTS = 2 * 10**7  # of one question: operands may broadcast to more than memory holds


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "check",
        description="Recompute a result (.json, from 'numsim run') or a record (.npz, from 'numsim record') on the "
        "emulator. Says 'equal', or what differs; exits with 1 if that is not documented. A suite's record gets a "
        "table, and a page with pictures. A trace (.json, from Trace.save) is shown, compared with another one, "
        "and drawn: a loss scale, an amax and its limit, or ranges.",
        examples=[
            "numsim check numsim-results/swamping.json",
            "numsim check casts.npz",
            "numsim check tensorcore-nvidia-h200.npz --out h200.html",
            "numsim check submission.json --json",
            "numsim check ours.json --against theirs.json          (traces)",
            "numsim check trace.json --out trace.svg",
        ],
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="results, records and traces")
    parser.add_argument("--against", metavar="FILE", help="a trace to compare traces with")
    parser.add_argument("--nan", choices=("mask", "bits"), default="mask",
                        help="NaNs of other sign or payload count as equal (mask, default) or not (bits)")  # fmt: skip
    parser.add_argument("--style", choices=("page", "slide"), default="page", help="of the pictures (default: page)")
    add_output(
        parser,
        "a folder, or a file .json or .txt, to write to as well; .png or .svg: a trace's picture; "
        ".html: a suite's page",
    )


def run(args: argparse.Namespace) -> int:
    pictured = _wants_picture(args)
    against = None if args.against is None else load_trace(args.against)
    contents = [(name, _read(name)) for name in args.files]
    for name, content in contents if pictured or against is not None else ():
        if not isinstance(content, Trace):
            why = "--out draws traces" if pictured else "--against compares traces"
            example = "--out trace.png" if pictured else "--against theirs.json"
            raise InputError(f"{files.show(name)} is no trace: {why}. Example: numsim check ours.json {example}")
    paged = _wants_page(args, [content for _, content in contents])
    if pictured:
        _draw(contents[0][1], Path(args.out), args.style)
    code, found = FINE, []
    for name, content in contents:
        if isinstance(content, Trace):
            one = _trace(content, files.show(name), against, files.show(Path(args.against or "").name), args.nan)
        elif isinstance(content, Record) and content.suite:
            one = compare_suite(content, files.show(name), args.nan)
        elif isinstance(content, Record):
            one = _record(content, files.show(name), args.nan)
        else:
            one = _result(content, files.show(name))
        found.append(one)
        code = max(code, one["code"], key=(FINE, CANNOT_RUN, CHECK_FAILED).index)
        if not args.json:
            print_one(one, args.plain)
    keep = ("file", "kind", "what", "equal", "status", "differences", "verdict", "notes", "parts")
    told = {"numsim": __version__, "checked": [{k: one[k] for k in keep if k in one} for one in found]}
    if args.out is not None and not pictured:
        lines = [line for one in found for line in _lines(one)]
        written = {"txt": text.plain(lines), "json": _output.to_json(told)}
        if paged:
            written["html"] = page(found[0], args.style)
        _output.write_out(args.out, "check", written)
    if args.json:
        _output.print_json(told)
    return code


def _read(name: str) -> Record | Trace | dict[str, Any]:
    """A record, a trace, or the entries of a result."""
    data, what = files.read_bytes(name), files.show(name)
    if data[:4] == b"PK\x03\x04" or name.lower().endswith(".npz"):
        return parse_record(data, what)
    try:
        content = files.parse_json(data, what)
    except InputError:
        if name.lower().endswith(".json"):  # damaged: where, the error says
            raise
        raise RecordError(f"{what} is no result (.json) or record (.npz) of numsim. "
                          "Example: numsim check numsim-results/swamping.json") from None  # fmt: skip
    if isinstance(content, dict) and "numsim_trace" in content:
        return read_trace(content, what)
    return results.read_result(content, what)


def print_one(one: Mapping[str, Any], plain: bool) -> None:
    """What came of one file, to stdout."""
    text.write(_lines(one), sys.stdout, colour=_output.colour(plain))


def _wants_page(args: argparse.Namespace, contents: Sequence[Any]) -> bool:
    """Whether --out takes a suite's page: a folder, or a file .html, which takes nothing else."""
    suites = [isinstance(content, Record) and bool(content.suite) for content in contents]
    if args.out is None or suites == [True]:
        return args.out is not None and Path(args.out).suffix.lower() not in (".txt", ".json")
    if Path(args.out).suffix.lower() == ".html":
        raise InputError("--out .html: a page is of one record of a suite. "
                         "Example: numsim check tensorcore-nvidia-h200.npz --out h200.html")  # fmt: skip
    return False


def _wants_picture(args: argparse.Namespace) -> bool:
    """Whether --out names a picture; what cannot be written is refused before any work."""
    if args.out is None:
        return False
    path = _output.check_out(args.out, "check", ("txt", "json", "png", "svg", "html"))
    pictured = path.suffix.lower() in _PICTURES and not path.is_dir()
    if pictured and len(args.files) > 1:
        raise InputError(f"{len(args.files)} files: a picture is of one trace. Example: numsim check trace.json "
                         "--out trace.png")  # fmt: skip
    return pictured


def _draw(trace: Any, path: Path, look: str) -> None:
    """The trace's picture in the one form that was asked for; matplotlib comes in only for that."""
    os.environ["MPLBACKEND"] = "agg"  # a backend that is not there would keep matplotlib from loading
    try:
        from numsim.show import style, trace_plots
    except ImportError as error:
        raise UnavailableError(f"matplotlib does not load here ({error}): no picture is drawn.") from None
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a sign of a title that the font lacks
        _, figure, alt = trace_plots.trace_plot(trace, look)
        facts = {"numsim": __version__, "digest": trace.digest}
        drawn = {p.suffix: p.read_bytes() for p in style.save(figure, Path(folder) / "check", alt=alt, metadata=facts)}
    _output.warn(f"wrote {files.show(files.write_atomic(path, drawn[path.suffix.lower()]))}")


def _trace(trace: Trace, what: str, against: Trace | None, other: str, nan: str) -> dict[str, Any]:
    verdict = compare_traces(trace, against, nan=nan, names=("this", other)) if against is not None else None
    return {
        "file": what,
        "kind": "trace",
        "what": f"a trace: steps {len(trace)}, series {len(trace.series)}, events {len(trace.events)}",
        "equal": None if verdict is None else verdict.ok,
        "differences": [str(d) for d in verdict.shown] if verdict else [],
        "verdict": verdict and verdict.to_dict(),
        "notes": [f"digest {trace.digest}"],
        "code": FINE if verdict is None or verdict.ok else CHECK_FAILED,
        "rows": [("trace", verdict)] if verdict else [],
        "trace": str(trace),
    }


def compare_suite(record: Record, what: str, nan: str) -> dict[str, Any]:
    """A suite's record: a verdict for each part."""
    _check_work(record, what)
    suite = get_suite(record.suite)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvidenceWarning)  # the notes tell
            rows = suite.compare(record)
        _check_all_looked_at(record, rows)
        said, notes = suite_text.headline(suite, record, rows), suite.notes(record, rows)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # a record may be well formed and hold anything
        raise RecordError(f"{what} does not fit the suite {suite.name}: {error}") from None
    total = Verdict(record.machine, "emulated")
    for row in rows:
        total += row.verdict
    failed = bool(record.failed or total.unexplained or (nan == "bits" and total.nan))
    return {
        "file": what,
        "kind": "suite",
        "what": f"suite {suite.name}: {said}",
        "equal": _status(record, total) == "equal",
        "status": _status(record, total),
        "differences": [str(d) for row in rows for d in row.verdict.shown],
        "verdict": total.to_dict(),
        "parts": [{"part": row.part, "note": row.note, **row.verdict.to_dict()} for row in rows],
        "notes": [*_of_version(record), *notes],
        "code": CHECK_FAILED if failed else FINE,
        "suite": suite,
        "record": record,
        "rows": rows,
    }


def _status(record: Record, total: Verdict) -> str:
    """What a suite's record comes to, in a word; the worst of all parts."""
    if total.unexplained:
        return "unexplained"
    if record.failed:
        return "failed"
    if total.documented:
        return "documented"
    return "not decided" if UNDECIDED in total.skipped else "equal" if total.compared else "nothing compared"


def _check_all_looked_at(record: Record, rows: Sequence[Row]) -> None:
    """Refuse a record with answers that no row is about: they would be vouched for, and nobody looked at them."""
    for part in dict.fromkeys(record.parts):
        answers = [pair for pair, of in zip(record.answers, record.parts, strict=True) if of == part]
        given = sum({(q.digest, a.codes.tobytes()): a.codes.size for q, a in answers}.values())
        about = [row.verdict for row in rows if row.part == part]
        compared = sum(verdict.compared for verdict in about)
        if compared < given and not any(verdict.skipped for verdict in about):
            raise RecordError(f"{compared:,} of {given:,} results of {part} are compared, the others are none of its.")


def page(one: Mapping[str, Any], style: str) -> str:
    """The page of a suite's record."""
    return suite_page.page(one["suite"], one["record"], one["rows"], style)


def _record(record: Record, what: str, nan: str) -> dict[str, Any]:
    _check_work(record, what)
    verdict = compare_answers(record.answers, find_machine("emulated"), name=record.machine, nan=nan)
    failed = verdict.unexplained or verdict.skipped
    return {
        "file": what,
        "kind": "record",
        "what": f"{suite_text.many(len(record.answers), 'question')}, {verdict.compared:,} results of {record.machine}",
        "equal": not verdict.differ and not verdict.skipped,
        "differences": [str(d) for d in verdict.shown],
        "verdict": verdict.to_dict(),
        "notes": _of_version(record),
        "code": CHECK_FAILED if failed else FINE,
        "rows": [("record", verdict)],
    }


def _of_version(record: Record) -> list[str]:
    return [f"recorded with numsim {record.numsim}; this is {__version__}"] if record.numsim != __version__ else []


def _check_work(record: Record, what: str) -> None:
    """Refuse what cannot be recomputed in some minutes."""
    for q, _ in record.answers:
        if math.prod(q.shape) > _MOST_RESULTS:
            raise RecordError(f"{what}: {q} has more than {_MOST_RESULTS:.0e} results: so many are not recomputed.")
    total = sum(work(q) * (1 if has_kernel(q) else _REFERENCE) for q, _ in record.answers)
    if total > _MOST_WORK:
        raise RecordError(
            f"{what} asks for more than can be recomputed in some minutes: at most {_MOST_WORK:.0e} roundings where "
            f"numsim has a kernel, and {_MOST_WORK // _REFERENCE:.0e} where not."
        )


def work(q: Question) -> int:
    """About how many roundings a question takes."""
    if q.operation == "matmul" or (q.operation == LIBRARY and len(q.arrays) > 1):
        return math.prod(q.shape) * int(q.arrays[0].shape[-1]) * (ways_to_try(q) if q.operation == LIBRARY else 1)
    return max(math.prod(q.shape), *(a.size for a in q.arrays))


def _result(result: dict[str, Any], what: str) -> dict[str, Any]:
    emulated = find_machine("emulated")
    session, again = results.recompute(result, emulated, what)
    differ = list(results.differences(result, session, again))
    differ += _question(result)
    notes = [f"written by numsim {result['numsim']}; this is {__version__}"] if result["numsim"] != __version__ else []
    notes += _COMPARED
    one: dict[str, Any] = {
        "file": what,
        "kind": "result",
        "what": f"{result['experiment']} on {result['machine']}{_student(result)}",
        "equal": not differ,
        "differences": differ,
        "verdict": None,
        "notes": notes,
        "code": CHECK_FAILED if differ else FINE,
        "rows": [],
    }
    if differ and result["machine"] != emulated.name:
        _on_its_machine(result, what, one)
    return one


def _question(result: Mapping[str, Any]) -> list[str]:
    question = get_experiment(result["experiment"]).question
    if (given := result.get("question")) == question:
        return []
    return [f"question: {json.dumps(given)[:80]} in the file, {json.dumps(question)[:80]} is {result['experiment']}'s"]


def _on_its_machine(result: Mapping[str, Any], what: str, one: dict[str, Any]) -> None:
    """A result of another machine may differ from the emulator's in the documented ways: ask that machine again."""
    name = result["machine"]
    try:
        machine = find_machine(name)
        can = machine.can()
        missing = "" if can else can.reason
    except NumsimError:
        missing = "no machine of that name is known"
    if name == "recorded":
        missing = "the recording is not part of a result. Check the recording itself: numsim check FILE.npz"
    if missing:
        one["notes"] = [note for note in one["notes"] if note not in _COMPARED]
        one["notes"].append(f"it differs from the emulator, and {name[:40]} cannot be asked here: {missing}")
        one["code"] = CANNOT_RUN
        return
    session, again = results.recompute(result, machine, what)
    one["differences"] = [*results.differences(result, session, again), *_question(result)]
    verdict = compare_answers(session.answers, find_machine("emulated"), name=name)
    one["verdict"], one["rows"] = verdict.to_dict(), [(result["experiment"], verdict)]
    if not one["differences"]:
        one["notes"].append(f"{name} gives the same here; against the emulator:")
        one["equal"] = not verdict.differ
    one["code"] = CHECK_FAILED if one["differences"] or verdict.unexplained else FINE


def _student(result: Mapping[str, Any]) -> str:
    if "student" not in result:
        return ""
    course = str(result.get("course", results.COURSE))[:80]
    return f", student {str(result['student'])[:80]} of {course}"


def _lines(one: Mapping[str, Any]) -> list[Line]:
    verdict: Sequence[tuple[str, Verdict]] = one["rows"]
    says = "equal" if one["equal"] else "as documented" if one["code"] == FINE else "DIFFERS"
    if one["code"] == CANNOT_RUN:  # how it differs from the emulator says nothing then
        says = "cannot be checked here"
    if one["equal"] is None:
        says = "undamaged"
    lines: list[Line] = [[Span(f"{one['file']}: {says}", "strong")]]
    if one["kind"] == "suite":
        return [*lines, *suite_text.table_lines(one["suite"], one["record"], one["rows"])]
    lines += report.wrapped(one["what"], indent=2)
    for note in one["notes"]:
        lines += report.wrapped(note, indent=2)
    lines += [[Span(line)] for line in one.get("trace", "").splitlines()]
    if one["kind"] == "result" and one["code"] != CANNOT_RUN:
        for difference in islice(one["differences"], _SHOWN):
            lines += report.wrapped(difference, indent=2)
        if (more := len(one["differences"]) - _SHOWN) > 0:
            lines += report.wrapped(f"and {more} more", indent=2)
    if verdict:
        lines += [[], *report.verdict_table(verdict), *report.verdict_notes(verdict, full=True)]
    return lines
