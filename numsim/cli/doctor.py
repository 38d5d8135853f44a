"""numsim doctor: what works here and why not, to paste into a forum."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import Any

from numsim.cli import FINE, _output, add_output
from numsim.doctor import report
from numsim.show import text
from numsim.show.text import Line, Span


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        description="What works here and why not, to paste into a forum: no user names and no home folders in it.",
        examples=["numsim doctor", "numsim doctor --json", "numsim doctor --out doctor.txt"],
    )
    add_output(parser, "a folder, or a file .json or .txt, to write to as well")


def run(args: argparse.Namespace) -> int:
    data = report()
    lines: list[Line] = []
    for section, facts in data.items():
        lines.append([Span(section, "strong")])
        for name, fact in facts.items():
            parts = textwrap.wrap(fact, text.WIDTH - 16, break_on_hyphens=False) or [""]
            lines += [[Span(f"  {name if i == 0 else '':<14}{part}")] for i, part in enumerate(parts)]
    if args.out is not None:
        _output.write_out(args.out, "doctor", {"txt": text.plain(lines), "json": _output.to_json(data)})
    if args.json:
        _output.print_json(data)
    else:
        text.write(lines, sys.stdout, colour=_output.colour(args.plain))
    return FINE
