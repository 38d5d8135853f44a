"""numsim explain: what a format does to a number or an operation."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from numsim.cli import FINE, _output, add_output, add_rounding
from numsim.errors import InputError
from numsim.explain import explain
from numsim.rounding import ROUNDINGS
from numsim.show import html, text


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "explain",
        description="Round every operand to the format, then compute every operation exactly and round it once.",
        examples=[
            "numsim explain 0.1 --format bf16",
            'numsim explain "2048 + 1" --format fp16',
            "numsim explain -1e-8 --format e4m3 --overflow saturate",
            'numsim explain "fma(0.1, 3, -0.3)" --format fp32 --json',
            "numsim explain 0.1 --format bf16 --rounding stochastic --seed 7",
            "numsim explain e4m3:0x7e",
        ],
    )
    parser.add_argument(
        "expression", nargs="+", metavar="EXPR",
        help="a number (0.1, 1/3, 0x1.8p-3, inf, e4m3:0x7e) or an operation with + - * / ( ) sqrt(x) fma(a, b, c); "
        "quote it",
    )  # fmt: skip
    parser.add_argument("--format", metavar="NAME", help="fp32 (default), fp16, bf16, e4m3, ...: see numsim formats")
    add_rounding(parser)
    add_output(parser, "a folder, or a file .html, .json or .txt, to write to as well")


def run(args: argparse.Namespace) -> int:
    if args.rounding == "stochastic" and args.seed is None:
        raise InputError("--rounding stochastic draws random numbers: it needs a seed. Example: --seed 7")
    if args.rounding in ROUNDINGS and args.rounding != "stochastic" and args.seed is not None:
        raise InputError(f"--rounding {args.rounding} draws no random numbers. Example: --rounding stochastic --seed 7")
    try:
        explanation = explain(
            " ".join(args.expression), args.format, rounding=args.rounding, overflow=args.overflow,
            subnormals=args.subnormals, nan=args.nan, seed=args.seed,
        )  # fmt: skip
    except InputError as error:
        raise InputError(as_flags(str(error))) from None
    if args.out is not None:
        contents = {
            "txt": str(explanation), "html": html.page(explanation), "json": _output.to_json(explanation.to_dict())
        }  # fmt: skip
        _output.write_out(args.out, "explain", contents)
    if args.json:
        _output.print_json(explanation.to_dict())
    else:
        text.write(text.explanation(explanation), sys.stdout, colour=_output.colour(args.plain))
    return FINE


def as_flags(message: str) -> str:
    """An error's Python words in those of the command line.

    >>> as_flags('Example: numsim.encode(x, "e2m1", nan="zero") or nan="max"')
    'Example: --nan zero or --nan max'
    """
    message = re.sub(r'numsim\.\w+\([^()]*?(\w+="\w[\w-]*")\)', r"\1", message)
    return re.sub(r"\b(rounding|overflow|subnormals|nan|seed)=(['\"]?)([^'\"\s,:.]+)\2", r"--\1 \3", message)
