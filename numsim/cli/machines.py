"""numsim machines: who can answer here, and what is known about them."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from numsim.cli import FINE, _output, add_output
from numsim.experiments.experiment import Table
from numsim.experiments.results import plain
from numsim.machines import find_machine, list_machines
from numsim.machines.quirks import QUIRKS
from numsim.machines.recorded import Recorded
from numsim.show import report, text
from numsim.show.text import Line, Span


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "machines",
        description="Who can answer here: the emulator, this CPU through several libraries, recordings. With a "
        "name, all about it: versions, formats, and where it is known to differ.",
        examples=[
            "numsim machines",
            "numsim machines ml_dtypes",
            "numsim machines casts.npz",
            "numsim machines --json",
        ],
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a machine, or a recording's file")
    add_output(parser, "a folder, or a file .json or .txt, to write to as well")


def run(args: argparse.Namespace) -> int:
    machines = [find_machine(name) for name in args.names] or list(list_machines())
    data = [facts(machine) for machine in machines]
    lines: list[Line] = []
    if args.names:
        for one in data:
            lines += [*([[]] if lines else []), *card(one)]
    else:
        rows = tuple((d["name"], d["title"], "yes" if d["here"] else f"no: {d['why_not']}") for d in data)
        lines += report.table_lines(Table("", ("machine", "what it is", "answers here"), rows))
        lines += [[], [Span("All about one: numsim machines ml_dtypes", "faint")]]
    if args.out is not None:
        _output.write_out(args.out, "machines", {"txt": text.plain(lines), "json": _output.to_json(data)})
    if args.json:
        _output.print_json(data)
    else:
        text.write(lines, sys.stdout, colour=_output.colour(args.plain))
    return FINE


def facts(machine: Any) -> dict[str, Any]:
    """All about a machine, for JSON."""
    can = machine.can()
    names = machine.record.machine if isinstance(machine, Recorded) and machine.record else machine.name
    record = machine.record if isinstance(machine, Recorded) else None
    return {
        "name": machine.name,
        "title": machine.title,
        "here": can.yes,
        "why_not": can.reason or None,
        "provenance": plain(machine.provenance()) if can else None,
        "casts": list(machine.dtypes) if can and hasattr(machine, "dtypes") else None,
        "computes": list(machine.computes) if can and hasattr(machine, "computes") else None,
        "record": record and {
            "questions": len(record.answers), "experiments": list(record.experiments), "inputs": record.inputs,
        },
        "differs": [{"name": k.name, "what": k.sentence, "right": k.right} for k in QUIRKS if k.machine == names],
    }  # fmt: skip


def card(one: dict[str, Any]) -> list[Line]:
    """All about a machine, for people."""
    lines: list[Line] = [[Span(one["name"], "strong"), Span(f"  {one['title']}")]]
    if not one["here"]:
        lines += report.wrapped(one["why_not"], "  no", indent=17)
    for key, value in (one["provenance"] or {}).items():
        lines += report.wrapped(str(value), f"  {key}", indent=17)
    for key in ("casts", "computes"):
        if one[key]:
            lines += report.wrapped(" ".join(one[key]), f"  {key}", indent=17)
    for key, value in (one["record"] or {}).items():
        lines += report.wrapped(", ".join(value) if isinstance(value, list) else str(value), f"  {key}", indent=17)
    for known in one["differs"]:
        sentence = f"{known['name']}: {known['what']}. {known['right']}."
        lines += report.wrapped(sentence, "  differs" if known is one["differs"][0] else "", indent=17)
    return lines
