"""numsim machines: who can answer here, and what is known about them."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from numsim import host
from numsim.cli import FINE, _output, add_output
from numsim.errors import UnavailableError
from numsim.experiments.experiment import Table
from numsim.experiments.results import plain
from numsim.formats import get_format
from numsim.gpu import driver
from numsim.gpu.compiler import INSTALL, compiler
from numsim.machines import find_machine, list_machines
from numsim.machines.cuda import Cuda
from numsim.machines.policies import CastPolicy, cast_policy, probe
from numsim.machines.quirks import QUIRKS
from numsim.machines.recorded import Recorded
from numsim.show import report, text
from numsim.show.text import Line, Span

_WIDE = ("fp64", "fp32", "fp16", "bf16")
_NARROW = ("e5m2", "e4m3fn", "e5m2fnuz", "e4m3fnuz", "e8m0")


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
    data = [facts(machine, probed=bool(args.names)) for machine in machines]
    lines: list[Line] = []
    if args.names:
        for one in data:
            lines += [*([[]] if lines else []), *card(one)]
    else:
        rows = tuple((d["name"], d["title"], _here(d)) for d in data)
        lines += report.table_lines(Table("", ("machine", "what it is", "answers here"), rows))
        lines += [[], [Span("All about one: numsim machines ml_dtypes", "faint")]]
    if args.out is not None:
        _output.write_out(args.out, "machines", {"txt": text.plain(lines), "json": _output.to_json(data)})
    if args.json:
        _output.print_json(data)
    else:
        text.write(lines, sys.stdout, colour=_output.colour(args.plain))
    return FINE


def _here(one: dict[str, Any]) -> str:
    return (f"yes, {one['lacks']}" if one["lacks"] else "yes") if one["here"] else f"no: {one['why_not']}"


def facts(machine: Any, *, probed: bool = False) -> dict[str, Any]:
    """All about a machine, for JSON; with the policies of its casts, which it has to be asked for."""
    can = machine.can()
    names = machine.record.machine if isinstance(machine, Recorded) and machine.record else machine.name
    record = machine.record if isinstance(machine, Recorded) else None
    return {
        "name": machine.name,
        "title": machine.title,
        "here": can.yes,
        "why_not": None if can else can.reason,
        "lacks": can.reason or None if can else None,
        "provenance": plain(machine.provenance()) if can else None,
        "casts": list(machine.dtypes) if can and hasattr(machine, "dtypes") else None,
        "policies": policies(machine) if can and probed else None,
        "software": software(machine) if isinstance(machine, Cuda) and probed else None,
        "computes": list(machine.computes) if can and hasattr(machine, "computes") else None,
        "record": record and {
            "suite": record.suite or None, "questions": len(record.answers), "experiments": list(record.experiments),
            "skipped": dict(record.skipped), "failed": dict(record.failed), "inputs": record.inputs,
        },
        "differs": [{"name": k.name, "what": k.sentence, "right": k.right} for k in QUIRKS if k.machine == names],
    }  # fmt: skip


def software(machine: Cuda) -> dict[str, str]:
    """What a GPU needs: what is there, and what is missing, of the half that runs numsim's kernels and of torch's."""
    found = {
        "driver": "found" if driver.driver_found() else "missing: NVIDIA's driver is not installed",
        "cuda-bindings": host.version("cuda-bindings") or f"missing: {INSTALL}",
    }
    try:
        found["NVRTC"] = ".".join(map(str, compiler().version))
    except UnavailableError as error:
        found["NVRTC"] = f"missing: {error}"
    if why := machine.missing():
        found["torch"] = f"missing: {why}"
    else:
        built = machine.torch.version.cuda
        found["torch"] = f"{machine.torch.__version__}, " + (f"for CUDA {built}" if built else "built without CUDA")
    return found


def policies(machine: Any) -> list[dict[str, Any]]:
    """How a machine casts from the wide formats, as far as it does."""
    formats = getattr(machine, "dtypes", _WIDE + _NARROW if isinstance(machine, Recorded) else ())
    asked = [(s, t) for s in _WIDE for t in formats if s in formats and s != t and machine.can(probe(s, t))]
    narrowing = [(s, t) for s, t in asked if not get_format(s).fits(get_format(t))]
    found = {cast: cast_policy(machine, *cast) for cast in narrowing}
    return [{"source": s, "target": t, "policy": p and p._asdict()} for (s, t), p in found.items()]


def _grouped(casts: list[dict[str, Any]]) -> list[str]:
    """A line for each source: "fp32 -> fp16 bf16: nearest-even, ieee; e4m3fn: nearest-even, saturate"."""
    lines: dict[str, dict[str, list[str]]] = {}
    for cast in casts:
        policy = str(CastPolicy(**cast["policy"])) if cast["policy"] else "rules of its own"
        lines.setdefault(cast["source"], {}).setdefault(policy, []).append(cast["target"])
    return [
        f"{source} -> " + "; ".join(f"{' '.join(targets)}: {policy}" for policy, targets in groups.items())
        for source, groups in lines.items()
    ]


def card(one: dict[str, Any]) -> list[Line]:
    """All about a machine, for people."""
    indent = max(17, *(len(key) + 4 for key in one["provenance"] or {}), 0)
    lines: list[Line] = [[Span(one["name"], "strong"), Span(f"  {one['title']}")]]
    if not one["here"]:
        lines += report.wrapped(one["why_not"], "  no", indent=indent)
    if one["lacks"]:
        lines += report.wrapped(one["lacks"], "  here", indent=indent)
    for key, value in (one["software"] or {}).items():
        lines += report.wrapped(value, f"  {key}", indent=indent)
    for key, value in (one["provenance"] or {}).items():
        lines += report.wrapped(str(value), f"  {key}", indent=indent)
    for key in ("casts", "computes"):
        if one[key]:
            lines += report.wrapped(" ".join(one[key]), f"  {key}", indent=indent)
    for i, cast in enumerate(_grouped(one["policies"] or [])):
        lines += report.wrapped(cast, "" if i else "  policies", indent=indent)
    for key, value in (one["record"] or {}).items():
        if value:
            told = "; ".join(f"{part}: {why}" for part, why in value.items()) if isinstance(value, dict) else value
            told = ", ".join(value) if isinstance(value, list) else str(told)
            lines += report.wrapped(told, f"  {key}", indent=indent)
    for known in one["differs"]:
        sentence = f"{known['name']}: {known['what']}. {known['right']}."
        lines += report.wrapped(sentence, "  differs" if known is one["differs"][0] else "", indent=indent)
    return lines
