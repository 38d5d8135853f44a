"""Everything that is public, each with arguments of a call that works: for tests that go through it all."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import numsim
from numsim import blocks, data, experiments, machines, optimizers, reveal, scaling, tensorcore, testing
from numsim.machines.recorded import Record
from numsim.values import Rational

ROOMS = ("", "blocks", "data", "experiments", "formats", "kernels", "machines", "optimizers", "random", "reveal",
         "scaling", "tensorcore", "testing")  # fmt: skip
X = numsim.array([1.5, -2.0, 0.25], "fp16")
ROUND = {"format": None, "rounding": "nearest-even", "overflow": "ieee", "subnormals": "keep", "seed": None,
         "random_bits": None, "sr_bits": None}  # fmt: skip
MISSING = object()


class Optimizer:
    def __init__(self):
        self.param_groups = [{"params": [scaling.Parameter(np.float32([1.0]), np.float32([0.5]))]}]

    def step(self, *args):
        return "stepped"


@cache
def recording():
    return data.load_gradients()


@cache
def swamping():
    return experiments.run("swamping", terms=4096)


def answers():
    """A record of one answer of a tensor core."""
    codes = [np.full((1, 4), 0x3C00, np.uint16)] * 2
    asked = machines.ask("mma", ["fp16", "fp16", "fp32"], "fp32", [*codes, np.zeros(1, np.uint32)], chip="v100",
                         instruction="mma.m8n8k4.f32.f16.f16.f32")  # fmt: skip
    return Record("", {"machine": "x"}, ((asked, machines.get_machine("emulated").answer(asked)),))


def protocol():
    made = scaling.GradScalerProtocol()
    made.scale(np.float32(1.0))
    return made


def unit(a, b, c):
    return np.zeros(c.shape, np.uint32)


def block():
    return blocks.quantize([1.0, -2.0] * 16, "mxfp8")


def question():
    return machines.ask("cast", ["fp32"], "bf16", [np.array([0x3DCCCCCD], np.uint32)])


def sgd():
    return optimizers.SGD(0.1)


# What a parameter of this name takes; ``function.parameter`` or ``Class.method.parameter`` where it is another thing.
VALID = {
    "x": X,
    "y": X,
    "z": X,
    "values": [1.5, -2.0],
    "format": "fp16",
    "Model.nan_of.format": numsim.FP16,
    "codes": [1, 2],
    "code": 1,
    "path": "x.npz",
    "n": 2,
    "packed": np.uint8([1, 2]),
    "name": "fp16",
    "numbers": [1.0, 2.0],
    "a": block,
    "b": block,
    "axis": None,
    "arrays": [np.array([1], np.uint32)],
    "operation": "cast",
    "inputs": ["fp32"],
    "output": "bf16",
    "seed": 7,
    "actual": X,
    "expected": X,
    "target": "fp16",
    "chip": "v100",
    "machine": "emulated",
    "recipe": "te-delayed",
    "found_inf": 0.0,
    "amax": 1.0,
    "gradients": [[1.0, 2.0]],
    "max_norm": 1.0,
    "optimizer": Optimizer,
    "scale": 2.0,
    "unit": lambda: unit,
    "k": 8,
    "a_type": "f16",
    "b_type": "f16",
    "d_type": "f32",
    "operand": "input",
    "capability": (9, 0),
    "which": "reference",
    "other": numsim.FP32,
    "repeats": 2,
    "shape": (3,),
    "axis1": 0,
    "axis2": -1,
    "indices": [0],
    "axes": (1, 0),
    "rank": 3,
    "magnitude_code": 3,
    "kind": "overflow",
    "rounding": "up",
    "amax_a": 1.0,
    "amax_b": 2.0,
    "exponent": -3,
    "recording": recording,
    "result": swamping,
    "parameters": {"terms": 64},
    "question": question,
    "weights": [1.0, 2.0],
    "gradient": [0.5, 0.5],
    "random_bits": 3,
    "state_dict": lambda: protocol().state_dict(),
    "outputs": np.float32(2.0),
    "new_factor": 2.0,
    "new_interval": 5,
    "states": lambda: [numsim.scaling.DelayedScaling().initial()],
    "scaler": scaling.GradScaler,
    "grads": [1.0],
    "found_infs": [0.0, 1.0],
    "system": "torch",
    "settings": {"init_scale": 4.0},
    "state": None,
    "A": np.uint16([[0x3C00] * 4]),
    "B": np.uint16([[0x3C00]] * 4),
    "c": np.uint32([0]),
    "fp8_max": 448.0,
    "counter": 3,
    "start": 0,
    "count": 3,
    "before": lambda: sgd().initial([1.0]),
    "after": lambda: sgd().step(sgd().initial([1.0]), [0.5]),
    "array.values": [1.0],
    "Array.dot.other": X,
    "Events.add.other": numsim.Events(),
    "Codebook.nearest.x": np.float64([0.5]),
    "Codebook.round.x": Rational(0, 1, 2),
    "Format.holds.x": Fraction(1, 2),
    "pack.format": "e2m1",
    "unpack.format": "e2m1",
    "from_numpy.x": np.float16([1.0]),
    "from_dlpack.x": np.float16([1.0]),
    "from_torch.x": lambda: pytest.importorskip("torch").ones(3),
    "get_format.x": "fp16",
    "double_quantize.x": lambda: blocks.quantize(np.ones(512), "nf4"),
    "get_block_format.x": "mxfp8",
    "DelayedScaling.quantize.x": [1.0],
    "carry_and_cut.values": X.astype("fp32"),
    "matmul.x": X,
    "explain_block.format": "mxfp8",
    "quantize.format": "mxfp8",
    "explain_mma.a": [1.0] * 4,
    "explain_mma.b": [1.0] * 4,
    "mma.a": np.uint16([0x3C00] * 4),
    "mma.b": np.uint16([0x3C00] * 4),
    "get_experiment.name": "swamping",
    "run.name": "swamping",
    "get_machine.name": "numpy",
    "Recipe.gemm.name": "fprop",
    "get_scaler.name": "torch",
    "unscale.state": scaling.State(4.0),
    "power_of_two_scale.amax": np.float32(1),
    "power_of_two_scale.scale": np.float32(1),
    "power_of_two_scale.recipe": scaling.DelayedScaling,
    "replay_amaxes.recipe": scaling.DelayedScaling,
    "replay_amaxes.amaxes": [1.0, 2.0],
    "get_recipe.x": "te-delayed",
    "sample_codes.n": 3,
    "hadamard.values": np.ones(16),
    "Array.reshape.shape": (3, 1),
    "BlockFormat.tiles.shape": (32,),
    "train_digits.optimizer": sgd,
    "train_digits.steps": 2,
    "list_models.chip": "v100",
    "eliminate.record": answers,
}
# Objects of the classes: methods are called on them, and a class of plain fields with those of its object.
OBJECTS = {
    "Array": lambda: numsim.array([[1.5], [-2.0], [0.25]], "fp16"),
    "Codebook": lambda: numsim.get_format("nf4"),
    "Event": lambda: numsim.Event(3, "overflow"),
    "Events": numsim.Events,
    "Explanation": lambda: numsim.explain(0.1, "fp16"),
    "Format": lambda: numsim.Format("mine", 4, 3, 7),
    "SumTrace": lambda: numsim.trace_sum(X),
    "Trace": lambda: numsim.Trace("t", [1, 2], {"scale": [4.0, 2.0]}, [numsim.Event(2, "overflow")]),
    "BlockArray": block,
    "BlockFormat": lambda: blocks.get_block_format("mxfp8"),
    "DoubleQuantized": lambda: blocks.double_quantize(blocks.quantize(np.ones(512), "nf4")),
    "GradientRecording": recording,
    "Recorded": lambda: recording().tensors[0],
    "Experiment": lambda: experiments.get_experiment("swamping"),
    "Result": swamping,
    "Session": lambda: experiments.Session(machines.get_machine("emulated")),
    "Answer": lambda: machines.get_machine("emulated").answer(question()),
    "Can": lambda: machines.Can(True),
    "Question": question,
    "Bytes": lambda: optimizers.Bytes(2, 2, 4),
    "Clipped": lambda: optimizers.clip_grad_norm([[1.0]], 1.0),
    "State": lambda: scaling.State(4.0),
    "Elimination": lambda: reveal.Elimination("x", 1, ()),
    "Finding": lambda: reveal.Finding("a", 1, "b"),
    "Fit": lambda: reveal.Fit((), 1),
    "Revelation": lambda: reveal.Revelation("a", "b", 1, (), (), ()),
    "DelayedState": lambda: scaling.DelayedScaling().initial(),
    "Gemm": lambda: scaling.get_recipe("te-delayed").fprop,
    "GradScalerProtocol": protocol,
    "Operand": lambda: scaling.Operand("mxfp8"),
    "Parameter": lambda: scaling.Parameter(1.0),
    "Recipe": lambda: scaling.get_recipe("te-delayed"),
    "Evidence": lambda: tensorcore.Evidence("unverified"),
    "MmaExplanation": lambda: tensorcore.explain_mma([1.0] * 4, [2.0] * 4, chip="v100"),
    "Model": lambda: tensorcore.get_model("v100", "mma.m8n8k4.f32.f16.f16.f32"),
    "Unit": tensorcore.Unit,
    "Comparison": lambda: testing.compare_bits(X, X),
    "Difference": lambda: testing.Difference((0,), "value", "a", "b", 1),
    "Stream": lambda: numsim.random.Stream(7),
    "optimizers.State": lambda: sgd().initial([1.0, 2.0]),
    "Optimizer": sgd,
}
# Called by the names of their parameters all the same.
BY_NAME = {"Array", "Session", "GradScalerProtocol", "Stream"}
# Keywords that ``**options`` stands for; of all others those of ``numsim.add``.
OPTIONS: dict[str, dict[str, Any]] = {
    "cumsum": {"rounding": "up"}, "sum": {"rounding": "up"}, "mean": {"rounding": "up"}, "ask": {},
    "run": {"terms": 64}, "get_scaler": {"init_scale": 4.0}, "step": {}, "reshape": {}, "save": {"x": X},
}  # fmt: skip
# What is public and not called here, with reasons.
INNER = "takes what its callers have checked, once for each number or step"
NOT_FUZZED = {
    "formats.Specials": "a type",
    "scaling.Stage": "an enumeration",
    "scaling.Scaler": "abstract",
    "optimizers.Optimizer": "abstract",
    "kernels.use": INNER,
    "kernels.suit": INNER,
    "kernels.fits_source": INNER,
    "random.keys": INNER,
    "random.Draw": INNER,
    "random.make_draw": INNER,
    "scaling.power_of_two_scale": INNER,
    "Format.rank": INNER,
    "Format.ratio": INNER,
    "Codebook.round": INNER,
    "Codebook.nearest": INNER,
    **{f"scaler.{name}": INNER for name in ("backs_off", "clean", "grows", "is_overflow", "overflow")},
}


@dataclass(frozen=True)
class Entry:
    """A function, constructor or method. ``make()`` gives what to call, and arguments that work, by parameter."""

    name: str
    signature: inspect.Signature
    make: Callable[[], tuple[Callable[..., Any], dict[str, Any]]]

    def run(self, changed: dict[str, Any]) -> Any:
        """Call it with some arguments changed: by position where that is the only way, else by name."""
        function, given = self.make()
        given, args = {**given, **changed}, []
        kinds = [p.kind for p in self.signature.parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.POSITIONAL_ONLY in kinds:
            for p in self.signature.parameters.values():
                if p.name in given and p.kind is not p.KEYWORD_ONLY:
                    x = given.pop(p.name)
                    args += x if p.kind is p.VAR_POSITIONAL and isinstance(x, tuple) else [x]
        return function(*args, **given)


def entries() -> Iterator[Entry]:
    """All of them; fails where there is something new that no call is known for."""
    methods = set()
    for room, name, x in _public():
        label = f"{room}.{name}".lstrip(".")
        yield Entry(label, inspect.signature(x), partial(_plain, room, name, x))
        for attribute in dir(x) if isinstance(x, type) else ():
            f = inspect.getattr_static(x, attribute)
            kind = "scaler" if issubclass(x, scaling.Scaler) else name
            if (
                attribute.startswith("_")
                or not inspect.isfunction(f)
                or f in methods
                or f"{kind}.{attribute}" in NOT_FUZZED
            ):
                continue
            methods.add(f)
            signature = inspect.signature(f)
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
            yield Entry(f"{label}.{attribute}", signature, partial(_method, room, name, x, f, signature))


def _public() -> Iterator[tuple[str, str, Any]]:
    """Room, name and object of every public callable, each once."""
    seen = set()
    for room in ROOMS:
        module = importlib.import_module(f"numsim.{room}".rstrip("."))
        here = [n for n, x in vars(module).items() if getattr(x, "__module__", "").startswith(module.__name__)]
        for name in getattr(module, "__all__", [n for n in here if not n.startswith("_")]):
            x = getattr(module, name)
            error = isinstance(x, type) and issubclass(x, BaseException)
            if callable(x) and not error and id(x) not in seen and f"{room}.{name}".lstrip(".") not in NOT_FUZZED:
                seen.add(id(x))
                yield room, name, x


def _plain(room: str, name: str, x: Any) -> tuple[Any, dict[str, Any]]:
    signature = inspect.signature(x)
    if not isinstance(x, type) or name in BY_NAME:
        return x, _given(name, signature)
    one = _object(room, name, x)
    return x, {p: getattr(one, p) for p in signature.parameters}


def _method(room: str, name: str, x: Any, f: Any, signature: inspect.Signature) -> tuple[Any, dict[str, Any]]:
    one = _object(room, name, x)
    given = _given(f.__qualname__, signature)
    if "state" in given:
        given["state"] = one.initial([1.0, 2.0]) if isinstance(one, optimizers.Optimizer) else one.initial()
    return getattr(one, f.__name__), given


def _object(room: str, name: str, x: Any) -> Any:
    make = OBJECTS.get(f"{room}.{name}", OBJECTS.get(name, x))
    if make is x and any(p.default is p.empty for p in inspect.signature(x).parameters.values()):
        raise AssertionError(f"{room}.{name}: how is one made? Add it to OBJECTS")
    return make()


def _given(name: str, signature: inspect.Signature) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for p in signature.parameters.values():
        if p.kind is p.VAR_KEYWORD:
            given.update(OPTIONS.get(name.rpartition(".")[2], ROUND))
            continue
        special = VALID.get(f"{name}.{p.name}", MISSING)
        x = VALID.get(p.name, MISSING) if special is MISSING and p.default is p.empty else special
        if p.kind is p.VAR_POSITIONAL and x is MISSING:
            x = ()
        if x is MISSING and p.default is p.empty:
            raise AssertionError(f"{name}: what does {p.name} take? Add it to VALID")
        given[p.name] = p.default if x is MISSING else x() if callable(x) else x
    return given
