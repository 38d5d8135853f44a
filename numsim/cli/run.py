"""numsim run: experiments with their question, result, pictures, and verdicts against other machines."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from numsim import files
from numsim._version import __version__
from numsim.cli import CHECK_FAILED, FINE, _output, add_output
from numsim.errors import InputError
from numsim.experiments import get_experiment, list_experiments, results
from numsim.experiments.experiment import Experiment, Result, Session
from numsim.machines import find_machine, get_machine
from numsim.machines.recorded import Recorded
from numsim.machines.verdict import Verdict, compare_answers
from numsim.random import check_seed
from numsim.show import report, text
from numsim.show.text import Line, Span
from numsim.tensorcore.names import CHIPS

OUT = "numsim-results"
_FLAGS = {"formats": "--format", "chips": "--chip", "seed": "--seed"}  # parameters with an option of their own


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        description="Run experiments: the question, the answer, pictures, and a verdict bit by bit against other "
        "machines. Without names all are run, with one line each; with names all is told.",
        examples=[
            "numsim run",
            "numsim run swamping",
            "numsim run casts --machine numpy --against ml_dtypes",
            "numsim run underflow --ask",
            "numsim run kept-bits --chip v100,a100,h100",
            "numsim run master-weights --student s123456",
            "numsim run --against h100.npz          (a recording: numsim record)",
        ],
    )
    add_names(parser)
    parser.add_argument("--machine", metavar="NAME", default="emulated", help="who answers (default: emulated)")
    parser.add_argument("--against", metavar="NAME", action="append",
                        help="compare with this machine or recording (default: what an experiment names)")  # fmt: skip
    parser.add_argument("--nan", choices=("mask", "bits"), default="mask",
                        help="NaNs of other sign or payload count as equal (mask, default) or not (bits)")  # fmt: skip
    parser.add_argument("--style", choices=("page", "slide"), default="page", help="of the pictures (default: page)")
    parser.add_argument("--ask", action="store_true", help="wait for your guess before the answer")
    parser.add_argument("--force", action="store_true", help="replace files that are no results of numsim")
    add_output(parser, f"folder for results and pictures (default: {OUT})")


def add_names(parser: argparse.ArgumentParser) -> None:
    """The arguments that choose experiments and their parameters."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="numsim experiments lists them")
    parser.add_argument("--size", choices=results.SIZES, default="lecture", help="lecture (default) or full")
    parser.add_argument("--format", metavar="NAMES", help="the formats to run them with, as in --format fp16,bf16")
    parser.add_argument("--chip", metavar="NAMES", help="the chips to model, as in --chip a100,h100")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[],
                        help="another parameter, see numsim experiments NAME")  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=_seed, help="for experiments that draw random numbers")
    parser.add_argument("--student", metavar="ID", help="derive the seed from a student's ID")
    parser.add_argument("--course", metavar="NAME", help=f"goes into a student's seed (default: {results.COURSE})")


def _seed(text: str) -> int:
    try:
        return check_seed(int(text, 0) if text.isascii() and len(text) <= 24 else text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no integer from 0 to 2^64 - 1") from None


def choose(args: argparse.Namespace) -> list[tuple[Experiment, dict[str, Any]]]:
    """The experiments that are named, or all, each with its parameters."""
    if args.course is not None and args.student is None:
        raise InputError("--course goes with --student. Example: --course numerics-2026 --student s123456")
    seed: int | None = args.seed
    if args.student is not None:
        if seed is not None:
            raise InputError("--seed and --student: a student's seed comes from the ID. Example: --student s123456")
        seed = results.student_seed(args.student, args.course or results.COURSE)
    experiments = {e.name: e for e in map(get_experiment, args.names or list_experiments())}
    for e in experiments.values():
        if args.names and seed is not None and "seed" not in e.defaults:
            _output.warn(f"{e.name} draws no random numbers: a seed changes nothing")
    given = dict(_setting(text) for text in args.set)
    for parameter, names in (("formats", args.format), ("chips", args.chip)):
        if names is not None:
            given[parameter] = names.split(",")
    for name in given:
        if not any(name in e.defaults for e in experiments.values()):
            raise InputError(_unknown(name, list(experiments.values())))
    chosen = [
        (e, results.parameters_for(e, args.size, seed) | {k: v for k, v in given.items() if k in e.defaults})
        for e in experiments.values()
    ]
    for e, parameters in chosen if given else []:
        _check(e, parameters)
    return chosen


def _unknown(name: str, experiments: Sequence[Experiment]) -> str:
    """A parameter that none of them has: what they have, and the nearest of these as an example."""
    known = "; ".join(f"{e.name} has {', '.join(e.defaults)}" for e in experiments)
    typed = f" ({_FLAGS[name]})" if name in _FLAGS else ""
    have = {k: e for e in reversed(experiments) for k in e.defaults}
    near = next(iter(difflib.get_close_matches(name, have, n=1) or have))
    e = have[near]
    example = as_typed(f'numsim.experiments.run("{e.name}", {near}={results.plain(e.defaults[near])!r})', have)
    return f"no experiment here has a parameter {name[:40]!r}{typed}: {known}. Example: {example}"


class _QuestionError(Exception):
    """Raised in place of the first question: parameters have been checked by then."""


class _Nobody:
    """In place of a machine."""

    def can(self, question: Any) -> Any:
        raise _QuestionError


def _check(e: Experiment, parameters: dict[str, Any]) -> None:
    """Refuse wrong parameters before anything is printed or computed: run up to the first question."""
    try:
        e.run(Session(_Nobody()), **parameters)
    except _QuestionError:
        pass
    except InputError as error:
        raise InputError(as_typed(str(error), e.defaults)) from None


def as_typed(message: str, parameters: Iterable[str]) -> str:
    """An error's Python words in those of the command line.

    >>> as_typed('terms=0: too few. Example: numsim.experiments.run("swamping", terms=4096)', ["terms"])
    '--set terms=0: too few. Example: numsim run swamping --set terms=4096'
    >>> as_typed("Example: formats=['e4m3', 'bf16']", ["formats"])
    'Example: --format e4m3,bf16'
    """

    def flag(found: re.Match[str]) -> str:
        name, value = found.groups()
        words = re.findall(r"[^\s,'\"\[\]()]+", value)
        listed = ",".join(words)
        if value[0] in "[(" and not re.search("['\"]", value):
            return f'--set "{name}=[{listed}]"'  # numbers, as JSON
        return f"{_FLAGS[name]} {listed}" if name in _FLAGS else f"--set {name}={listed}"

    message = re.sub(r'numsim\.experiments\.run\("([\w-]+)", (.*)\)', r"numsim run \1 \2", message)
    message = re.sub(r"\bchip='(\w+)', instruction='.*?'", r"--chip \1", message)  # an experiment chooses that itself
    value = r"""(\[.*?\]|\(.*?\)|'.*?'|".*?"|[^\s,:]+)"""
    return re.sub(rf"\b({'|'.join(parameters)})={value}", flag, message).replace(", --", " --")


def _setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE; a value is JSON, or else a text, or several texts with commas between."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text[:60]!r}: a name and a value are needed. Example: --set terms=4096")
    try:
        return name.strip(), files.parse_json(value.encode(), "--set")
    except InputError:
        return name.strip(), value.split(",") if "," in value else value


def run(args: argparse.Namespace) -> int:
    chosen = choose(args)
    experiments = [e for e, _ in chosen]
    machine = get_machine(args.machine)
    against = None if args.against is None else [get_machine(name) for name in dict.fromkeys(args.against)]
    folder = files.make_folder(args.out if args.out is not None else OUT)
    ask = args.ask and sys.stdin is not None and sys.stdin.isatty() and not args.json
    if args.ask and not ask:
        _output.warn("--ask needs a terminal to read from: no guess is asked for")
    runs = [Run(e, args, folder, machine, len(experiments), i) for i, e in enumerate(experiments)]
    finished: list[str] = []
    try:
        for one, (_, parameters) in zip(runs, chosen, strict=True):
            one.do(against, parameters, ask)
            finished.append(one.experiment.name)
    except KeyboardInterrupt:
        _output.Progress.clear()
        whole = f"finished and saved: {', '.join(finished)}" if finished else "nothing was finished"
        _output.warn(f"interrupted in {experiments[len(finished)].name}; {whole}")
        raise
    if len(experiments) > 1:
        _print(args, _verdicts(runs))
    for name, other in zip(dict.fromkeys(args.against or ()), against or (), strict=True):
        _check_suite(name, other, runs)
    _print(args, [*_skipped(runs), *_evidence(runs), *_where(runs, folder)])
    if args.json:
        _output.print_json({"numsim": __version__, "results": [r.data for r in runs]})
    return FINE if all(v.ok for r in runs for v in r.verdicts) else CHECK_FAILED


def _print(args: argparse.Namespace, lines: Sequence[Line]) -> None:
    _output.Progress.clear()
    if lines and not args.json:
        text.write(list(lines), sys.stdout, colour=_output.colour(args.plain))
        sys.stdout.flush()


def _verdicts(runs: Sequence[Run]) -> list[Line]:
    rows = [(r.experiment.name, v) for r in runs for v in r.verdicts]
    return [*report.verdict_table(rows), *report.verdict_notes(rows, full=bool(runs[0].args.names))] if rows else []


def _skipped(runs: Sequence[Run]) -> list[Line]:
    """One line for each thing that could not run, and why; what other machines could not do is in the table."""
    lines: list[Line] = []
    for r in runs:
        name = r.session.machine.name
        if r.session.skipped:
            reasons = report.skipped(Verdict(name, name, skipped=r.session.skipped))
            lines += report.wrapped(f"{r.experiment.name}: {reasons}", "skipped")
    for reason in dict.fromkeys(r.no_pictures for r in runs if r.no_pictures):
        lines += report.wrapped(f"pictures: {reason}", "skipped")
    return lines


def _evidence(runs: Sequence[Run]) -> list[Line]:
    """One line on the models of chips that no recorded results confirm."""
    chips: dict[str, set[str]] = {}
    for r in runs:
        if r.session.machine.name == "emulated":
            for model in {q.model for q, _ in r.session.answers if q.model}:
                chips.setdefault(model.evidence.level, set()).add(model.chip)
    parts = [
        f"{', '.join(sorted(chips[level], key=CHIPS.index))} ({level})"
        for level in ("single-source", "unverified") if level in chips
    ]  # fmt: skip
    told = f"no recorded results confirm what was used of {'; '.join(parts)}: numsim chips NAME says why"
    return report.wrapped(told, "models") if parts else []


def _where(runs: Sequence[Run], folder: Path) -> list[Line]:
    pictures = [p for r in runs for p in r.pictures]
    shown = files.show(folder)
    told = f"{len(runs)} result{'s' * (len(runs) != 1)} (JSON)"
    if pictures:
        told = f"{len(pictures)} picture{'s' * (len(pictures) != 1)} (PNG and SVG) and {told}"
    lines = [[], [Span(f"{told} in {shown}")]]
    if len(runs) == 1:
        lines += [[Span(f"  {p['file']}.png", "faint")] for p in pictures]
    elif not runs[0].args.names:
        first = next((r for r in runs if r.pictures), runs[0])
        look = f"look at {files.show(folder / first.pictures[0]['file'])}.png; " if first.pictures else ""
        lines += report.wrapped(f"{look}numsim run {first.experiment.name} tells why", "next", indent=6)
    return lines


def _check_suite(name: str, machine: Any, runs: Sequence[Run]) -> None:
    """A suite's record that holds none of the questions is compared by another command."""
    suite = machine.record.suite if isinstance(machine, Recorded) and machine.record else ""
    if suite and not any(machine.can(question) for r in runs for question, _ in r.session.answers):
        file = name.removeprefix("recorded:")
        raise InputError(f"--against {file}: a record of the suite {suite}, which holds none of these questions. "
                         f"Example: numsim check {file}")  # fmt: skip


class Run:
    """One experiment being run: result, verdicts, pictures."""

    def __init__(
        self, e: Experiment, args: argparse.Namespace, folder: Path, machine: Any, of: int, number: int
    ) -> None:
        self.experiment, self.args, self.folder = e, args, folder
        self.session, self.alone = Session(machine), of == 1
        self.progress = _output.Progress(f"[{number + 1}/{of}] {e.name}")
        suffix = "" if machine.name == "emulated" else f"-{machine.name}"
        self.stem = f"{e.name}{suffix}"
        self.suffix = suffix + ("-slide" if args.style == "slide" else "")
        self.verdicts: list[Verdict] = []
        self.pictures: list[dict[str, str]] = []
        self.no_pictures = ""
        self.path = folder / f"{self.stem}.json"
        if not args.force and self.path.exists() and b'"numsim_result"' not in files.read_bytes(self.path)[:100]:
            shown = files.show(self.path)
            raise InputError(f"{shown} is no result of numsim: --force replaces it, or choose another --out.")
        self.data: dict[str, Any] = {}

    def do(self, against: Sequence[Any] | None, parameters: dict[str, Any], ask: bool) -> None:
        e, args = self.experiment, self.args
        # with other parameters than the question's, the answer says whether it stands
        result = self.find(parameters) if e.changed(parameters) else None
        _print(args, report.question_lines(e, choices=bool(args.names) or ask, result=result))
        asked_at = {} if result is None else e.asked_at(result)
        if ask and asked_at:
            _output.warn(f"{e.name}: the choices are for {report.settings(asked_at)}: no guess is asked for")
        guess = _guess(e) if ask and not asked_at else None
        result = result or self.find(parameters)
        self.show(result, guess)
        for machine in self.others() if against is None else against:
            self.progress.say(f"comparing with {machine.name}")
            self.verdicts.append(
                compare_answers(self.session.answers, machine, name=self.session.machine.name, nan=args.nan)
            )
        if self.alone:  # the verdict before the pictures, which take longer
            _print(args, _verdicts([self]))
        self.draw(result)
        self.data = results.to_dict(
            e,
            result,
            self.session,
            self.verdicts,
            size=args.size,
            student=args.student,
            course=args.course,
            guess=guess,
        ) | {"pictures": self.pictures}
        if asked_at:  # the question is the experiment's own, whatever the parameters
            self.data["asked_at"] = results.plain(asked_at)
        files.write_atomic(self.path, results.to_text(self.data))

    def find(self, parameters: dict[str, Any]) -> Result:
        self.progress.say(f"asking {self.session.machine.name}")
        return self.experiment.run(self.session, **parameters)

    def others(self) -> list[Any]:
        """The machines to compare with if none is named."""
        if self.session.machine.name != "emulated":
            return [find_machine("emulated")]
        return [find_machine(name) for name in self.experiment.against]

    def show(self, result: Result, guess: str | None) -> None:
        e = self.experiment
        lines: list[Line] = []
        if guess is not None:
            right = guess.casefold() == result.answer.casefold()
            lines = report.wrapped(f"{guess}: {'right' if right else 'not so'}", "you said")
        lines += report.result_lines(e, result) if self.args.names else report.brief_lines(e, result)
        _print(self.args, [*lines, []])

    def draw(self, result: Result) -> None:
        """Pictures, last of all: matplotlib takes half a second to load."""
        self.progress.say("drawing")
        os.environ["MPLBACKEND"] = "agg"  # a backend that is not there would keep matplotlib from loading
        facts = {
            k: ", ".join(map(str, v)) if isinstance(v, (list, tuple)) else str(v) for k, v in result.parameters.items()
        }
        try:
            from numsim.show import style

            for stem, figure, alt in self.experiment.draw(result, self.args.style):
                name = f"{stem}{self.suffix}"
                style.save(figure, self.folder / name, alt=alt, metadata={"numsim": __version__, **facts})
                self.pictures.append({"file": name, "alt": alt})
        except ImportError as error:
            self.no_pictures = f"matplotlib does not load here ({error})"
        except InputError as error:  # the result is saved all the same
            self.no_pictures = str(error)
        self.progress.clear()


def _guess(e: Experiment) -> str | None:
    """What the reader guesses: one of the choices, by its letter or in its own words; None for no guess."""
    choices = dict(zip(report.LETTERS, e.choices, strict=False))
    meant = choices | {_bare(choice): choice for choice in e.choices}
    last = report.LETTERS[len(choices) - 1]
    while True:
        try:
            typed = input("  your guess: ").strip()
        except EOFError:
            sys.stdout.write("\n")
            return None
        if not typed or not choices:
            return typed[:200] or None
        if (guess := meant.get(_bare(typed))) is not None:
            return guess
        sys.stdout.write(f"  please a to {last}, or Enter for no guess\n")


def _bare(text: str) -> str:
    """A choice as people type it: b, B), 44 or 44%."""
    return text.casefold().replace(" ", "").rstrip(")].%")
