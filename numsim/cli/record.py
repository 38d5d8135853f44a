"""numsim record: a machine's answers to the experiments' questions, in a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from numsim import files
from numsim._version import __version__
from numsim.cli import FINE, _output, add_output
from numsim.cli.run import OUT, Progress, add_names, choose
from numsim.errors import InputError, UnavailableError
from numsim.experiments.experiment import Session
from numsim.machines import find_machine, get_machine
from numsim.machines.question import Answer, Question
from numsim.machines.recorded import read_record, write_record


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "record",
        description="Save a machine's answers to the questions of experiments (all if none is named). "
        "'numsim check FILE' recomputes them; 'numsim run --against FILE' compares with them where the machine is not.",
        examples=[
            "numsim record casts --machine ml_dtypes --out casts.npz",
            "numsim record --machine torch-cpu",
            "numsim check casts.npz",
            "numsim run casts --against casts.npz",
        ],
    )
    add_names(parser)
    parser.add_argument("--machine", metavar="NAME", required=True, help="whose: numpy, ml_dtypes, torch-cpu, ...")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    add_output(parser, f"the file, .npz (default: NAME-MACHINE.npz in {OUT})")


def run(args: argparse.Namespace) -> int:
    experiments = choose(args)
    machine = get_machine(args.machine)
    path = _path(args, machine.name)
    answers: list[tuple[Question, Answer]] = []
    skipped: dict[str, int] = {}
    for i, (e, parameters) in enumerate(experiments):
        progress = Progress(f"[{i + 1}/{len(experiments)}] {e.name}")
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
    Progress.clear()
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
    sys.stdout.write(
        f"{facts['questions']} questions, {facts['answers']} answers of {record.machine} in {facts['file']}\n"
        f"inputs {record.inputs}\n"
    )
    for reason, n in skipped.items():
        sys.stdout.write(f"not answered: {reason} ({n} question{'s' * (n != 1)})\n")
    return FINE


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
