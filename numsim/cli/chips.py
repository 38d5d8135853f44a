"""numsim chips: the tensor cores that numsim models."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from numsim.cli import FINE, _output, add_output
from numsim.errors import InputError, short
from numsim.show import chips_record, chips_text, text
from numsim.tensorcore.names import chip_name, get_model, list_chips

EXAMPLE = "Example: numsim chips h200 mma.m16n8k16.f32.f16.f16.f32"


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "chips",
        description="The tensor cores that numsim models: a table of chips; a chip's instructions, how each one "
        "computes, and how we know; or all about one instruction.",
        examples=[
            "numsim chips",
            "numsim chips h200",
            "numsim chips h200 mma.m16n8k16.f32.f16.f16.f32",
            "numsim chips b200 --html --out b200.html",
            "numsim chips a100 --json",
        ],
    )
    parser.add_argument("chip", nargs="?", metavar="CHIP", help=", ".join(list_chips()))
    parser.add_argument("name", nargs="?", metavar="INSTRUCTION", help="as the chip's card or PTX spells it")
    parser.add_argument("--instruction", metavar="NAME", help="INSTRUCTION as a flag, as in other commands")
    parser.add_argument("--html", action="store_true", help="write a web page (into numsim-results, or to --out)")
    add_output(parser, "a folder, or a file .html, .json or .txt, to write to as well")


def run(args: argparse.Namespace) -> int:
    chip, instruction = _chosen(args)
    data: Any
    if instruction is not None:
        model = _model(chip, instruction)
        lines, data = chips_text.sheet(model), chips_record.model_dict(model)
        name = f"chips-{model.chip}-{_file(model.instruction)}"
    elif chip is not None:
        lines, data, name = chips_text.card(chip), chips_record.chip_dict(chip), f"chips-{chip}"
    else:
        lines, data, name = chips_text.table(), [chips_record.overview(c) for c in list_chips()], "chips"
    if args.html or args.out is not None:
        from numsim.show import chips_page

        page = chips_page.page(chip, model if instruction is not None else None)
        contents = {"html": page, "txt": text.plain(lines), "json": _output.to_json(data)}
        out = "numsim-results" if args.out is None else args.out
        if args.html:
            if Path(out).suffix.lower() in (".txt", ".json"):
                raise InputError(f"--out {short(out)}: --html writes a page. Example: --out {name}.html")
            contents = {"html": page}
        _output.write_out(out, name, contents)
    if args.json:
        _output.print_json(data)
    elif not args.html:
        text.write(lines, sys.stdout, colour=_output.colour(args.plain))
    return FINE


def _chosen(args: argparse.Namespace) -> tuple[str | None, str | None]:
    if args.name is not None and args.instruction is not None:
        raise InputError(
            f"two instructions, {short(args.name)} and {short(args.instruction)}: one at a time. {EXAMPLE}"
        )
    instruction = args.instruction if args.name is None else args.name
    if args.chip is None:
        if instruction is not None:
            raise InputError(f"--instruction {short(instruction)}: on which chip? {EXAMPLE}")
        return None, None
    try:
        return chip_name(args.chip), instruction
    except InputError as error:
        raise InputError(_as_typed(error)) from None


def _model(chip: str | None, instruction: str) -> Any:
    try:
        return get_model(chip, instruction)
    except InputError as error:
        raise InputError(_as_typed(error)) from None


def _as_typed(error: InputError) -> str:
    """An error's Python example as a command."""
    return f"{str(error).partition(' Example:')[0]} {EXAMPLE}"


def _file(instruction: str) -> str:
    return instruction.replace("::", "-").replace(".", "-")
