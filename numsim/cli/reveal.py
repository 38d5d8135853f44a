"""numsim reveal: find out by probes how a machine multiplies and adds."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from numsim import files
from numsim.cli import FINE, _output, add_output
from numsim.cli.explain import as_flags
from numsim.errors import InputError
from numsim.machines import get_machine
from numsim.machines.recorded import Recorded, write_record
from numsim.reveal import eliminate, reveal
from numsim.show import reveal as show
from numsim.show import text


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "reveal",
        description="Find out how a machine computes a sum of products: crafted operands show which products are added "
        "at once, with how many bits, cut and rounded how; then which chips' records give the same answers, bit for "
        "bit. A recording of other sums of products is compared with every record.",
        examples=[
            "numsim reveal --chip h200",
            "numsim reveal --chip h200 --instruction wgmma.m64n256k32.f32.e4m3.e4m3",
            "numsim reveal --chip a100 --format bf16 --seen",
            "numsim reveal --machine numpy --format fp32",
            "numsim reveal --machine torch-cpu --format bf16",
            "numsim reveal --machine numpy --format fp32 --out probes.npz",
            "numsim reveal --machine probes.npz",
        ],
    )
    parser.add_argument("--machine", metavar="NAME", default="emulated",
                        help="who is asked (default: emulated), or a recording's file")  # fmt: skip
    parser.add_argument("--chip", metavar="NAME", help="whose unit: see numsim chips")
    parser.add_argument("--instruction", metavar="NAME", help="which one: see numsim chips CHIP")
    parser.add_argument("--format", metavar="NAME", help="of the operands, in place of an instruction (default: fp16)")
    parser.add_argument("--output", metavar="NAME", help="format of the result (default: the widest there is)")
    parser.add_argument("--seen", action="store_true",
                        help="also tell how each finding was seen; of a suite: all that was compared")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace a recording that exists")
    add_output(parser, "a folder, or a file: .json or .txt for the findings, .npz for a recording of the probes")


def run(args: argparse.Namespace) -> int:
    if args.machine == "emulated" and args.chip is None:
        raise InputError("the emulator multiplies like a chip: which one? Example: numsim reveal --chip h200")
    _check_out(args)
    machine = get_machine(args.machine)
    if isinstance(machine, Recorded) and not _holds_probes(machine, args):
        return _eliminate(machine, args)
    try:
        found = reveal(machine, args.format, args.output, args.chip, args.instruction)
    except InputError as error:
        message = re.sub(r"numsim\.reveal\.reveal\(.*\)", "numsim reveal --chip h200 --format fp16", str(error))
        raise InputError(as_flags(message)) from None
    if args.out is not None and args.out.lower().endswith(".npz"):
        path = write_record(files.check_path(args.out), found.answers, ["reveal"], replace=args.force)
        _output.warn(f"wrote {files.show(path)}")
    elif args.out is not None:
        _output.write_out(args.out, "reveal", _contents(found.to_dict(), show.lines(found, seen=True)))
    if args.json:
        _output.print_json(found.to_dict())
    else:
        lines = [*show.question_lines(), [], *show.lines(found, seen=args.seen)]
        text.write(lines, sys.stdout, colour=_output.colour(args.plain))
    return FINE


def _check_out(args: argparse.Namespace) -> None:
    """What cannot be written is refused before seconds of work."""
    if args.out is not None:
        path = files.check_path(args.out)
        recording = path.suffix.lower() == ".npz"
        if recording and path.exists() and not args.force:
            raise InputError(f"{files.show(path)} exists: --force replaces it, or choose another name.")
        if not recording:
            _output.check_out(args.out, "reveal", ("txt", "json"), more=" .npz")


def _holds_probes(machine: Recorded, args: argparse.Namespace) -> bool:
    """Whether a recording is one of probes, or the user names some that it should hold."""
    named = (args.chip, args.instruction, args.format, args.output) != (None,) * 4
    return named or (machine.record is not None and "reveal" in machine.record.experiments)


def _eliminate(machine: Recorded, args: argparse.Namespace) -> int:
    assert machine.record is not None  # get_machine needs a file
    if args.out is not None and args.out.lower().endswith(".npz"):
        raise InputError(f"--out {args.out!r}: nothing is asked that could be recorded. Example: --out left.json")
    found = eliminate(machine.record)
    data = {"machine": machine.record.machine, "eliminated": [e.to_dict() for e in found]}
    brief = bool(machine.record.suite) and not args.seen
    lines = show.summary_lines(found) if brief else show.elimination_lines(found)
    if args.out is not None:
        _output.write_out(args.out, "reveal", _contents(data, lines))
    if args.json:
        _output.print_json(data)
    else:
        text.write([*show.question_lines(), [], *lines], sys.stdout, colour=_output.colour(args.plain))
    return FINE


def _contents(data: Any, lines: list[text.Line]) -> dict[str, str]:
    return {"txt": text.plain(lines), "json": _output.to_json(data)}
