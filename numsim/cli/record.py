"""numsim record: a machine's answers to the questions of experiments or of a suite, in a file."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from numsim import files, kernels
from numsim._version import __version__
from numsim.cli import CANNOT_RUN, CHECK_FAILED, FINE, _output, add_output
from numsim.cli.run import OUT, add_names, choose
from numsim.errors import InputError, UnavailableError
from numsim.experiments.experiment import Session
from numsim.machines import find_machine, get_machine
from numsim.machines.question import Answer, Question
from numsim.machines.recorded import Record, read_record, write_record
from numsim.show.suite_text import many
from numsim.suites import SUITES, Collector, Suite, get_suite
from numsim.suites.suite import file_name


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "record",
        description="Save a machine's answers to the questions of experiments (all if none is named), or of a suite: "
        "all that is asked of one GPU. 'numsim check FILE' recomputes them; 'numsim run --against FILE' compares with "
        "them where the machine is not. Exit codes: 0 recorded; 1 something is unexplained or failed; 2 wrong use; "
        "4 the machine cannot answer, or not what the suite is for (of all suites: none of them).",
        examples=[
            "numsim record casts --machine ml_dtypes --out casts.npz",
            "numsim record --machine torch-cpu",
            "numsim record --suite tensorcore --machine cuda",
            "numsim record --suite all --machine cuda --out h200/",
            "numsim check casts.npz",
            "numsim run casts --against casts.npz",
        ],
    )
    add_names(parser)
    parser.add_argument("--suite", metavar="NAME", help=f"{', '.join(SUITES)}, or all")
    parser.add_argument("--machine", metavar="NAME", required=True, help="whose: numpy, ml_dtypes, torch-cpu, ...")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    add_output(parser, f"the file, .npz (default: NAME-MACHINE.npz in {OUT}); of suites the folder (default: {OUT})")


def run(args: argparse.Namespace) -> int:
    return _experiments(args) if args.suite is None else _suites(args)


def _machine(name: str, example: str) -> Any:
    """The machine that is asked. Raises ``UnavailableError`` with a recording that works."""
    try:
        return get_machine(name)
    except UnavailableError as error:
        raise UnavailableError(f"{str(error).partition(' Example: ')[0]} Example: {example}") from None


def _experiments(args: argparse.Namespace) -> int:
    experiments = choose(args)
    machine = _machine(args.machine, "numsim record casts --machine torch-cpu")
    path = _path(args, machine.name)
    answers: list[tuple[Question, Answer]] = []
    skipped: dict[str, int] = {}
    for i, (e, parameters) in enumerate(experiments):
        progress = _output.Progress(f"[{i + 1}/{len(experiments)}] {e.name}")
        progress.say(f"asking {machine.name}")
        session = Session(machine)
        e.run(session, **parameters)
        answers += session.answers
        # later questions may hang on earlier answers: record the answers to the emulator's questions, too
        planned = Session(find_machine("emulated"))
        if machine.name != "emulated":
            e.run(planned, **parameters)
        for question, _ in planned.answers:
            if can := machine.can(question):
                answers.append((question, machine.answer(question)))
            else:
                skipped[can.reason] = skipped.get(can.reason, 0) + 1
    _output.Progress.clear()
    if not answers:
        raise UnavailableError(f"{machine.name} cannot answer any of these questions: {'; '.join(skipped)}.")
    write_record(path, answers, [e.name for e, _ in experiments], replace=args.force)
    record = read_record(path)  # what was written can be read
    facts = {
        "file": files.show(path),
        "numsim": __version__,
        "machine": record.machine,
        "experiments": list(record.experiments),
        "questions": len(record.answers),
        "answers": sum(a.codes.size for _, a in record.answers),
        "inputs": record.inputs,
        "not_answered": dict(sorted(skipped.items())),
    }
    if args.json:
        _output.print_json(facts)
        return FINE
    sys.stdout.write(f"{_counts(facts)} of {record.machine} in {facts['file']}\ninputs {record.inputs}\n")
    for reason, n in skipped.items():
        sys.stdout.write(f"not answered: {reason} ({many(n, 'question')})\n")
    return FINE


def _counts(facts: Mapping[str, Any]) -> str:
    return f"{many(facts['questions'], 'question')}, {many(facts['answers'], 'result')}"


def _path(args: argparse.Namespace, machine: str) -> Path:
    """Where the record goes; refused before any work where it cannot go there."""
    default = f"{'-'.join(args.names) or 'all'}-{machine}.npz"
    if args.out is None:
        path = files.make_folder(OUT) / default
    else:
        path = files.check_path(args.out)
        if path.is_dir() or args.out.endswith(("/", "\\")):
            path = files.make_folder(path) / default
        elif path.suffix.lower() != ".npz":
            raise InputError(f"--out {args.out!r}: a record is an .npz file. Example: --out casts.npz")
        else:
            files.make_folder(path.parent)
    if path.exists() and not args.force:
        raise InputError(f"{files.show(path)} exists: --force replaces it, or choose another --out.")
    return path


# --- suites -----------------------------------------------------------------------------------------------------------
def _suites(args: argparse.Namespace) -> int:
    """Asks need numpy, torch and cuda-bindings only; what compares and draws is loaded where numsim's kernels run."""
    suites = [get_suite(name) for name in (SUITES if args.suite.strip().lower() == "all" else [args.suite])]
    if args.names or args.format or args.chip or args.set or args.student or args.course or args.size != "lecture":
        raise InputError("--suite asks what it asks: it goes with --machine, --seed, --out, --force and --json only. "
                         "Example: numsim record --suite tensorcore --machine cuda --seed 2")  # fmt: skip
    machine = _machine(args.machine, "numsim record --suite casts --machine torch-cpu")
    paths = _suite_paths(args, suites, machine.provenance())
    told: list[dict[str, Any]] = []
    kept: list[tuple[Suite, Record]] = []
    missing: dict[str, list[str]] = {}  # why -> suites that were answered nothing
    for n, suite in enumerate(suites):
        progress = _output.Progress(f"[{n + 1}/{len(suites)}] {suite.name}")
        collector = Collector(machine, 1 if args.seed is None else args.seed, progress.say)
        stopped = _ask(suite, collector)
        _output.Progress.clear()
        if collector.answers:
            path = files.write_atomic(paths[suite.name], collector.bytes(suite.name), replace=args.force)
            kept.append((suite, read_record(path)))  # what was written can be read
            told.append(_facts(args, suite, kept[-1][1], path))
        else:
            why = "; ".join(dict.fromkeys((*collector.failed.values(), *collector.missing.values())))
            missing.setdefault(why, []).append(suite.name)
        if stopped:
            raise KeyboardInterrupt
    reasons = [f"{why} ({', '.join(names)})" if len(suites) > 1 else why for why, names in missing.items()]
    if not told:
        raise UnavailableError(f"{machine.name} answered nothing: {'; '.join(reasons)}.")
    for why in reasons:
        _output.warn(f"nothing answered: {why}")
    for facts, (suite, record) in zip(told, kept, strict=True):  # when all is recorded, whatever comes of it
        facts |= _compare(args, record, paths[suite.name])
    if args.json:
        _output.print_json({"numsim": __version__, "records": told})
    if any(facts["failed"] or facts.get("unexplained") for facts in told):
        return CHECK_FAILED
    return CANNOT_RUN if all(suite.lacks(record) for suite, record in kept) else FINE


def _ask(suite: Suite, collector: Collector) -> bool:
    """Ask everything; whether Ctrl-C or an end from outside (SIGTERM) came between. What was answered is kept."""

    def stop(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop) if threading.current_thread() is threading.main_thread() else None
    try:
        suite.ask(collector)
    except KeyboardInterrupt:
        collector.missing["the rest"] = "recording was stopped"
        return True
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return False


def _suite_paths(args: argparse.Namespace, suites: list[Suite], provenance: Mapping[str, Any]) -> dict[str, Path]:
    """Where the records go; refused before any work where they cannot go there."""
    if args.out is not None and args.out.lower().endswith((".npz", ".html")):
        raise InputError(f"--out {args.out!r}: records of suites go to a folder, each with its page. "
                         f"Example: --out {OUT}")  # fmt: skip
    folder = files.make_folder(args.out if args.out is not None else OUT)
    paths = {suite.name: folder / file_name(suite.name, provenance) for suite in suites}
    for path in paths.values():
        if path.exists() and not args.force:
            raise InputError(f"{files.show(path)} exists: --force replaces it, or choose another --out.")
    return paths


def _facts(args: argparse.Namespace, suite: Suite, record: Record, path: Path) -> dict[str, Any]:
    """What was recorded: printed, and for JSON."""
    facts: dict[str, Any] = {
        "file": files.show(path), "suite": suite.name, "machine": record.machine,
        "device": record.provenance.get("device"), "questions": len(record.answers),
        "answers": sum(a.codes.size for _, a in record.answers), "bytes": path.stat().st_size,
        "inputs": record.inputs, "skipped": dict(record.skipped), "failed": dict(record.failed),
        "lacks": suite.lacks(record) or None,
    }  # fmt: skip
    if not args.json:
        whose = facts["device"] or record.machine
        sys.stdout.write(f"{facts['file']}: {facts['bytes'] / 1e6:.1f} MB\n"
                         f"{_counts(facts)} of {whose}\n")  # fmt: skip
        sys.stdout.flush()
    return facts


def _compare(args: argparse.Namespace, record: Record, path: Path) -> dict[str, Any]:
    """The verdicts and the page beside the record, where numsim's kernels run; else how to get them."""
    if why := kernels.why_not():
        if not args.json:
            sys.stdout.write("".join(f"{line}\n" for line in _uncompared(record, files.show(path), why)))
        return {}
    from numsim.cli import check  # loads all that compares

    one = check.compare_suite(record, files.show(path), "mask")
    if not args.json:
        check.print_one(one, args.plain)
    page = path.with_suffix(".html")
    if page.exists() and not args.force:
        _output.warn(f"{files.show(page)} exists and is kept: --force replaces it")
    else:
        files.write_atomic(page, check.page(one, "page"))
        _output.warn(f"wrote {files.show(page)}")
    return {"page": files.show(page), "status": one["status"], "unexplained": one["verdict"]["unexplained"],
            "parts": one["parts"]}  # fmt: skip


def _uncompared(record: Record, file: str, why: str) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for part, reason in record.skipped.items():
        reasons.setdefault(reason, []).append(part)
    for reason, parts in reasons.items():
        yield f"skipped: {reason} ({many(len(parts), 'part')})"
    for part, reason in record.failed.items():
        yield f"FAILED {part}: {reason}"
    yield f"not compared here: {why}"
    yield f"compare it anywhere: numsim check {file}"
