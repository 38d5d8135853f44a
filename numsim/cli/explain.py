"""numsim explain: what a format does to a number or an operation, a block format to a list of numbers, or a tensor core
to a sum of products."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numsim import files
from numsim.cli import FINE, _output, add_output, add_rounding
from numsim.errors import FormatError, InputError
from numsim.explain import Explanation, explain
from numsim.formats import get_format
from numsim.rounding import ROUNDINGS
from numsim.show import codebooks, html, text

if TYPE_CHECKING:
    from numsim.blocks import BlockFormat
    from numsim.tensorcore import MmaExplanation

_SUM = 'numsim explain "1*1 + 31 x 2^-7*2^-7" --chip h100 --format e4m3'
_LIST = 'numsim explain "[0.1, 300, 480, 1]" --format mxfp8'


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "explain",
        description="Round every operand to the format, then compute every operation exactly and round it once. With "
        "--chip: add a sum of products as one tensor core does, and show which bits are cut off. Such a sum is written "
        "with a*b for a product, 31 x a*b for 31 of the same (1024 in all at most), and at most one lone number, c.",
        examples=[
            "numsim explain 0.1 --format bf16",
            'numsim explain "2048 + 1" --format fp16',
            "numsim explain -1e-8 --format e4m3 --overflow saturate",
            'numsim explain "fma(0.1, 3, -0.3)" --format fp32 --json',
            "numsim explain 0.1 --format bf16 --rounding stochastic --seed 7",
            _LIST,
            _SUM,
            'numsim explain "1 + 8 x 2^-12*2^-12" --chip v100 --out lost.png',
        ],
    )
    parser.add_argument(
        "expression", nargs="+", metavar="EXPR",
        help="a number (0.1, 1/3, 0x1.8p-3, 2^-7, inf, e4m3:0x7e), an operation with + - * / ( ) sqrt(x) "
        "fma(a, b, c), or a list of numbers for a block format; quote it",
    )  # fmt: skip
    parser.add_argument(
        "--format", metavar="NAME",
        help="fp32 (default; --chip: fp16), bf16, ...: numsim formats",
    )  # fmt: skip
    parser.add_argument("--chip", metavar="NAME", help="v100, a100, h100, b200, mi300x, ...: see numsim chips")
    parser.add_argument("--instruction", metavar="NAME", help="with --chip: which one; numsim chips CHIP lists them")
    add_rounding(parser)
    parser.add_argument("--style", choices=("page", "slide"), help="of pictures, with --chip: page (default), slide")
    parser.add_argument("--theme", choices=("light", "dark"), help="of pictures, with --chip: light (default), dark")
    add_output(parser, "a folder, or a file .html, .json, .txt (with --chip .png, .svg), to write to as well")


def run(args: argparse.Namespace) -> int:
    if args.chip is not None:
        return _run_chip(args)
    for name in ("instruction", "style", "theme"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name} goes with --chip. Example: {_SUM}")
    if (written := " ".join(args.expression)).strip().startswith("["):
        return _run_block(args, written)
    if args.rounding == "stochastic" and args.seed is None:
        raise InputError("--rounding stochastic draws random numbers: it needs a seed. Example: --seed 7")
    if args.rounding in ROUNDINGS and args.rounding != "stochastic" and args.seed is not None:
        raise InputError(f"--rounding {args.rounding} draws no random numbers. Example: --rounding stochastic --seed 7")
    try:
        explanation = explain(
            written, args.format, rounding=args.rounding, overflow=args.overflow,
            subnormals=args.subnormals, nan=args.nan, seed=args.seed,
        )  # fmt: skip
    except InputError as error:
        raise InputError(as_flags(str(error))) from None
    if args.out is not None:
        contents = {"json": _output.to_json(explanation.to_dict()), "txt": str(explanation)}
        if isinstance(explanation, Explanation):
            contents = {"html": html.page(explanation), **contents}
        _output.write_out(args.out, "explain", contents, more=" (with --chip also .png .svg)")
    if args.json:
        _output.print_json(explanation.to_dict())
    else:
        if isinstance(explanation, Explanation):
            lines = text.explanation(explanation)
        else:
            lines = codebooks.explanation(explanation)
        text.write(lines, sys.stdout, colour=_output.colour(args.plain))
    return FINE


# --- a list of numbers in a block format -----------------------------------------------------------------------------
_DEFAULTS = {"rounding": "nearest-even", "overflow": "ieee", "subnormals": "keep", "nan": "raise", "seed": None}


def _run_block(args: argparse.Namespace, written: str) -> int:
    from numsim.blocks.explain import explain_block
    from numsim.show import blocks

    for name, default in _DEFAULTS.items():
        if getattr(args, name) != default:
            raise InputError(f"--{name} does not go with a list: elements of a block are rounded to the nearest and "
                             f"saturate. Example: {_LIST}")  # fmt: skip
    if args.format is None:
        raise InputError(f"a list of numbers needs a block format. Example: {_LIST}")
    explanation = explain_block(written, _block_format(args.format))
    if args.out is not None:
        contents = {"json": _output.to_json(explanation.to_dict()), "txt": str(explanation)}
        _output.write_out(args.out, "explain", contents)
    if args.json:
        _output.print_json(explanation.to_dict())
    else:
        text.write(blocks.explanation(explanation), sys.stdout, colour=_output.colour(args.plain))
    return FINE


def _block_format(name: str) -> BlockFormat:
    from numsim.blocks.formats import get_block_format

    try:
        return get_block_format(name)
    except FormatError as error:
        message = str(error).partition(" Example:")[0]
    with contextlib.suppress(FormatError):
        message = f"{get_format(name).title} is a number format; lists of numbers are for block formats."
    raise InputError(f"{message} Example: {_LIST}")


# --- one tensor core --------------------------------------------------------------------------------------------------
def _run_chip(args: argparse.Namespace) -> int:
    from numsim.expression import parse_products
    from numsim.show import mma_text
    from numsim.tensorcore import EvidenceWarning, explain_mma
    from numsim.values import Rational, Values

    for name, default in _DEFAULTS.items():
        if getattr(args, name) != default:
            raise InputError(f"--{name} does not go with --chip: the chip decides how it adds and rounds; numbers are "
                             f"rounded to the nearest on their way in. Example: {_SUM}")  # fmt: skip
    written = " ".join(" ".join(args.expression).split())
    if written.startswith("["):
        raise InputError(f"a list of numbers goes with a block format and without --chip. Example: {_LIST}")
    read = parse_products(written)
    if not read.pairs:
        raise InputError(f"{written}: no product a*b is in it. Example: {_SUM}")
    a, b = (Values((len(read.pairs),), None, list(numbers)) for numbers in zip(*read.pairs, strict=True))
    c = Values((), None, [read.c or Rational(0, 0, 1)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvidenceWarning)  # said below, shorter: the card has the rest
            found = explain_mma(a, b, c, chip=args.chip, instruction=args.instruction, format=args.format)
    except InputError as error:
        message = re.sub(r"numsim\.tensorcore\.explain_mma\(.*\)", lambda _: _SUM, str(error))
        raise InputError(as_flags(message)) from None
    explanation = replace(found, text=written)
    if (level := found.model.evidence.level) != "validated":
        _output.warn(f"this instruction is {level}: numsim chips {found.model.chip} names the sources")
    if args.out is not None:
        _write_chip(args, explanation)
    if args.json:
        _output.print_json(explanation.to_dict())
    else:
        text.write(mma_text.explanation(explanation), sys.stdout, colour=_output.colour(args.plain))
    return FINE


def _write_chip(args: argparse.Namespace, e: MmaExplanation) -> None:
    """Text, page and JSON, and the picture; matplotlib comes in only for that."""
    from numsim.show import mma_html

    def draw(stem: Path) -> list[Path]:
        os.environ["MPLBACKEND"] = "agg"  # a backend that is not there would keep matplotlib from loading
        from numsim.show import mma_picture, style

        figure = mma_picture.draw(e, style=args.style or "page", theme=args.theme or "light")
        return style.save(figure, stem, alt=mma_picture.alt([e]))

    path = files.check_path(args.out)
    if path.suffix.lower() in (".png", ".svg") and not path.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            drawn = {p.suffix: p.read_bytes() for p in draw(Path(folder) / "explain")}
        _output.warn(f"wrote {files.show(files.write_atomic(path, drawn[path.suffix.lower()]))}")
        return
    contents = {"html": mma_html.page(e), "json": _output.to_json(e.to_dict()), "txt": str(e)}
    if len(written := _output.write_out(args.out, "explain", contents, more=" .png .svg")) > 1:
        for picture in draw(written[0].with_suffix("")):
            _output.warn(f"wrote {files.show(picture)}")


def as_flags(message: str) -> str:
    """An error's Python words in those of the command line.

    >>> as_flags('Example: numsim.encode(x, "e2m1", nan="zero") or nan="max"')
    'Example: --nan zero or --nan max'
    >>> as_flags("Example: chip='v100', instruction='mma.m8n8k4.f32.f16.f16.f32'")
    'Example: --chip v100 --instruction mma.m8n8k4.f32.f16.f16.f32'
    """
    message = re.sub(r'numsim\.\w+\([^()]*?(\w+="\w[\w-]*")\)', r"\1", message)
    names = "rounding|overflow|subnormals|nan|seed|chip|instruction|format|output"
    message = re.sub(rf"\b({names})=(?:(['\"])(.*?)\2|([^'\"\s,:.]+))", r"--\1 \3\4", message)
    return message.replace(", --", " --")
