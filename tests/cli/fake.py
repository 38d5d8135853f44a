"""Small experiments for tests of the commands.

``python -m tests.cli.fake fast,slow ARGS`` is numsim with these experiments in the place of its own.
"""

import signal
import sys
import time

import numpy as np

import numsim
from numsim import experiments
from numsim.experiments.experiment import Experiment, Result, Table
from numsim.machines import ask
from numsim.random import bits


def run(session, *, numbers=4, target="e4m3", seed=1):
    values = [-431.99999999999994, 0.1, *(bits(seed, i) / 2**32 for i in range(numbers))]
    codes = session.ask(ask("cast", ["fp64"], target, [np.asarray(numsim.encode(values, "fp64"))]))
    shown = "not answered" if codes is None else str(float(numsim.decode(codes, target)[0]))
    cast = [] if codes is None else numsim.decode(codes, target).tolist()
    rows = tuple(zip(values, cast, strict=False))
    return Result(
        experiment="fast",
        parameters={"numbers": numbers, "target": target, "seed": seed},
        answer=shown,
        tables=(Table("Casts of – numbers", ("number", "cast"), rows),),
        findings=(f"{shown} came out · first.",),
        series={"values": np.array(values), "nothing": float("nan")},
    )


def draw(result, style):
    from numsim.show import style as house

    with house.settings(style):
        figure = house.new_picture(style, 0.5)
        figure.add_subplot().plot(result.series["values"][:4])
    return [("fast-picture", figure, "four numbers")]


def draw_nothing(result, style):
    return []


def experiment(name, run=run, **changes):
    fields = {
        "name": name,
        "question": "What is the float64 number -431.99999999999994 in E4M3 – rounded once, as it should be?",
        "choices": ("-448", "-416.0"),
        "wrong_guess": "-448",
        "why_wrong": "It was never a tie.",
        "explanation": "One. Two. Three ≥ 2.",
        "sources": ("IEEE 754-2019",),
        "defaults": {"numbers": 4, "target": "e4m3", "seed": 1},
        "run": run,
        "draw": draw,
        "against": ("numpy", "ml_dtypes"),
        "full": {"numbers": 9},
    }
    return Experiment(**(fields | changes))


def run_slowly(session, **parameters):
    sys.stderr.write("waiting\n")
    sys.stderr.flush()
    time.sleep(60)


def run_without_numbers(session):
    return Result("plain", {}, "42", (), ("Nothing.",), {})


class Fast:
    EXPERIMENT = experiment("fast")


class Slow:
    EXPERIMENT = experiment("slow", run_slowly)


class Plain:
    EXPERIMENT = experiment("plain", run_without_numbers, defaults={}, full={}, draw=draw_nothing, against=())


MODULES = {"fast": "tests.cli.fake.Fast", "slow": "tests.cli.fake.Slow", "plain": "tests.cli.fake.Plain"}


def install(patch, *names, pictures=True):
    """Put these experiments in the place of numsim's."""
    if not pictures:
        patch(Fast, "EXPERIMENT", experiment("fast", draw=draw_nothing))
    patch(experiments, "_MODULES", {n: MODULES[n] for n in names or ("fast", "plain")})
    patch(experiments, "import_module", lambda path: globals()[path.rpartition(".")[2]])


if __name__ == "__main__":
    from numsim.cli import main

    # a pytest started in the background (nohup pytest &) ignores SIGINT, and its children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    install(setattr, *sys.argv[1].split(","))
    sys.exit(main(sys.argv[2:]))
