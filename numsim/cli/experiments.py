"""numsim experiments: the questions that can be asked."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from numsim.cli import FINE, _output, add_output
from numsim.experiments import get_experiment, list_experiments
from numsim.experiments.experiment import Experiment
from numsim.experiments.results import plain
from numsim.show import report, text
from numsim.show.text import Line, Span


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "experiments",
        description="The experiments and the questions that they ask; with a name its choices, parameters and "
        "sources, but not the answer: 'numsim run NAME' has that.",
        examples=[
            "numsim experiments",
            "numsim experiments swamping",
            "numsim run swamping",
            "numsim experiments --json",
        ],
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(list_experiments()))
    add_output(parser, "a folder, or a file .json or .txt, to write to as well")


def run(args: argparse.Namespace) -> int:
    experiments = [get_experiment(name) for name in args.names or list_experiments()]
    lines: list[Line] = []
    for e in experiments:
        lines += [*([[]] if lines else []), *(card(e) if args.names else report.wrapped(e.question, e.name, indent=16))]
    if not args.names:
        lines += [[], [Span("Ask one: numsim run swamping", "faint")]]
    data = [facts(e) for e in experiments]
    if args.out is not None:
        _output.write_out(args.out, "experiments", {"txt": text.plain(lines), "json": _output.to_json(data)})
    if args.json:
        _output.print_json(data)
    else:
        text.write(lines, sys.stdout, colour=_output.colour(args.plain))
    return FINE


def facts(e: Experiment) -> dict[str, Any]:
    """All about an experiment but its answer, for JSON."""
    return {
        "name": e.name,
        "question": e.question,
        "choices": list(e.choices),
        "defaults": plain(e.defaults),
        "full": plain(e.full),
        "against": list(e.against),
        "sources": list(e.sources),
    }


def card(e: Experiment) -> list[Line]:
    """All about an experiment but its answer, for people."""
    lines = report.question_lines(e)
    for name, value in e.defaults.items():
        full = e.full.get(name, value)
        shown = report.settings({name: value})
        shown += f"; {report.setting(full)} with --size full" if full != value else ""
        lines += report.wrapped(shown, "with" if name == next(iter(e.defaults)) else "")
    lines += report.wrapped(", ".join(e.against), "against")
    for i, source in enumerate(e.sources):
        lines += report.wrapped(source, "" if i else "sources", "faint")
    return lines
