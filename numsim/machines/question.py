"""What passes between an experiment and a machine: a question goes in, an answer comes out.

A question is a frozen record: an operation, formats, options and arrays of codes. Its digest names it for ever, so a
recording can be looked up and "the same question" means the same bits in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numsim.accumulate import check_length, check_order, check_running
from numsim.codes import check_codes
from numsim.errors import InputError, check_choice, short
from numsim.files import is_label
from numsim.formats import Format, get_format
from numsim.random import check_seed
from numsim.rounding import Policy
from numsim.tensorcore.models import TYPES, Model, word_format
from numsim.tensorcore.names import get_model

ELEMENTWISE = {"cast": 1, "add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}
SUMS = {"sum": 1, "cumsum": 1, "dot": 2, "matmul": 2}
REPLAYS = {"scaler": 1}  # a state machine of training, step by step along the last axis
AMAX = "amax"  # the largest magnitude along the last axis; NaN where there is one
LIBRARY = "library"  # a library's own function, named by ``system``: in an order and with an accumulator of its own
_MATMUL = {
    "allow_tf32": False,
    "allow_fp16_reduced_precision_reduction": True,
    "allow_bf16_reduced_precision_reduction": True,
    "allow_fp16_accumulation": False,
}
# A library's function: how many arrays it takes, and the flags that change its bits, with what torch begins with.
FUNCTIONS: dict[str, tuple[int, dict[str, bool]]] = {
    "torch.sum": (1, {}),
    "torch.cumsum": (1, {}),
    "torch.matmul": (2, _MATMUL),
    "torch._scaled_mm": (4, {"use_fast_accum": False}),
}
MMA = "mma"  # d = c + sum of a[k] * b[k], by the unit that the machine has for it, or by a chip's model
_DEFAULTS: dict[str, Any] = {
    "rounding": "nearest-even",
    "overflow": "ieee",
    "subnormals": "keep",
    "nan": "raise",
    "order": "sequential",  # sums only
    "product": None,  # dot and matmul: a format name, or "exact"
    "chip": None,  # mma only: whose unit; None stands for the machine's own way of multiplying
    "instruction": None,  # mma only: K is any multiple of its K, chained in index order
    "system": None,  # replays: whose state machine; library: which function
    "settings": (),  # of the system: sorted pairs of a name and a number; what is left out is its default
    "seed": None,  # stochastic only
    "sr_bits": None,
}
_OF_MMA = ("chip", "instruction")
_OF_SYSTEMS = ("system", "settings")
_ASK = "Example: numsim.machines.ask('cast', ['fp32'], 'bf16', [codes])"
_EXAMPLE = "Example: chip='h200', instruction='mma.m16n8k16.f32.f16.f16.f32'"


def array_digest(codes: npt.NDArray[Any]) -> str:
    """SHA-256 of the codes' little-endian bytes in C order."""
    codes = np.asarray(codes)
    return hashlib.sha256(np.ascontiguousarray(codes, codes.dtype.newbyteorder("<")).tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class Question:
    """One thing to compute.

    operation : "cast", "add", "sub", "mul", "div", "sqrt", "fma" (elementwise), "sum", "cumsum", "dot" (along the last
        axis), "matmul", "mma" (dot products of a, b and c on a matrix unit), "amax", "scaler" (a loss scaler replayed),
        "library" (a function of a library, with its flags as settings: see ``FUNCTIONS``).
    inputs : a format for each array.
    output : the format of the result; for sums that of the accumulator.
    arrays : codes, one array for each input; for mma a (..., K), b (..., K), c (...), and scales (..., K / block); for
        scaler found_inf (..., steps), answered with the scale after each step; for torch._scaled_mm a (M, K), b (K, N)
        and in fp32 what undoes their scales: () for the whole matrix, or (M, 1) and (1, N).
    options : rounding, overflow, subnormals, nan, order, product, chip, instruction, system, settings, seed, sr_bits;
        what is left out has its default.

    >>> q = ask("cast", ["fp32"], "bf16", [np.array([0x3DCCCCCD], np.uint32)])
    >>> q.rounding, q.digest[:12]
    ('nearest-even', 'f85e3ebec11c')
    >>> overflows = np.array([0, 0x3F800000, 0], np.uint32)
    >>> print(ask("scaler", ["fp32"], "fp32", [overflows], system="torch", settings={"growth_interval": 4}))
    scaler fp32[3] -> fp32 growth_interval=4 system=torch
    """

    operation: str
    inputs: tuple[Format, ...]
    output: Format
    arrays: tuple[npt.NDArray[Any], ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.operation, str):
            raise InputError(f"operation {short(self.operation)}: a word is needed. {_ASK}")
        formats = isinstance(self.inputs, (list, tuple)) and all(isinstance(f, Format) for f in self.inputs)
        if not formats or not isinstance(self.output, Format) or not isinstance(self.arrays, (list, tuple)):
            raise InputError(f"inputs={short(self.inputs)}, output={short(self.output)}: Formats, and a list of "
                             f"arrays, are needed. {_ASK}")  # fmt: skip
        if not isinstance(self.options, Mapping):
            raise InputError(f"options={short(self.options)}: a dict is needed. {_ASK}")
        counts = ELEMENTWISE | SUMS | REPLAYS | {MMA: 3 + 2 * (len(self.inputs) > 3), AMAX: 1}
        counts[LIBRARY] = self._check_function() if self.operation == LIBRARY else 0
        if not isinstance(self.operation, str) or self.operation not in counts:
            raise InputError(f"operation {short(self.operation)}: known are {', '.join(counts)}.")
        count = counts[self.operation]
        if not len(self.inputs) == len(self.arrays) == count:
            raise InputError(f"{self.operation} takes {count} arrays, each with a format.")
        if unknown := set(self.options) - set(_DEFAULTS):
            raise InputError(f"unknown options {short(sorted(unknown))}: known are {', '.join(_DEFAULTS)}.")
        settings = check_settings(self.settings)
        seed = None if self.seed is None else check_seed(self.seed)
        order = check_order(self.order)
        object.__setattr__(self, "options", {**self.options, "settings": settings, "seed": seed, "order": order})
        _ = self.policy  # refuses unknown modes
        if self.operation == "cumsum":
            check_running(self.order)
        if self.product is not None and not (isinstance(self.product, str) and self.product == "exact"):
            get_format(self.product)
        if self.sr_bits is not None and (type(self.sr_bits) is not int or not 1 <= self.sr_bits <= 32):
            raise InputError(f"sr_bits={short(self.sr_bits)}: the number of random bits is 1 to 32. Example: sr_bits=8")
        arrays = tuple(check_codes(a, f) for a, f in zip(self.arrays, self.inputs, strict=True))
        if self.operation == MMA:
            self._check_mma()
        elif self.chip is not None or self.instruction is not None:
            raise InputError(f"chip and instruction belong to {MMA}, not to {self.operation}.")
        if self.operation in REPLAYS:
            self._check_replay()
        elif self.operation == LIBRARY:
            self._check_options(_OF_SYSTEMS, "computes as the library does")
            if scales := [f.name for f in self.inputs[2:] if f.name != "fp32"]:
                raise InputError(f"{self.system}: the scales are fp32 numbers, not {scales[0]}. "
                                 "Example: inputs ['e4m3', 'e4m3', 'fp32', 'fp32']")  # fmt: skip
        elif self.system is not None or self.settings:
            raise InputError(f"system and settings belong to {', '.join(REPLAYS)} and {LIBRARY}, not to "
                             f"{self.operation}.")  # fmt: skip
        if self.operation == AMAX:
            self._check_options((), "rounds nothing")
            if self.inputs[0] != self.output:
                raise InputError(f"amax of {self.inputs[0]} numbers is one of them, not {self.output}. "
                                 "Example: ask('amax', ['fp32'], 'fp32', [x])")  # fmt: skip
        for a in arrays:
            a.flags.writeable = False
        object.__setattr__(self, "arrays", arrays)
        _ = self.shape  # refuses arrays that do not go together
        if self.operation in SUMS:
            check_length(self.order, max(a.shape[-1] for a in arrays[: 1 if self.operation == "matmul" else 2]))
        chosen = {k: v for k, v in self.options.items() if v != _DEFAULTS[k]}
        object.__setattr__(self, "options", MappingProxyType(dict(sorted(chosen.items()))))

    def _check_function(self) -> int:
        """A function that is known, with flags of its own: how many arrays it takes. Defaults are left out."""
        example = "ask('library', ['fp16'], 'fp16', [x], system='torch.sum')"
        check_choice("system", self.system, FUNCTIONS, example)
        count, flags = FUNCTIONS[self.system]
        settings = check_settings(self.settings)
        for name, value in settings:
            if name not in flags or not isinstance(value, bool):
                known = f"has the flags {', '.join(flags)}: True or False" if flags else "has no settings"
                example = f" Example: settings={{'{min(flags)}': True}}" if flags else ""
                raise InputError(f"setting {name}={short(value)}: {self.system} {known}.{example}")
        changed = tuple((name, value) for name, value in settings if value != flags[name])
        object.__setattr__(self, "options", {**self.options, "settings": changed})
        return count

    def _check_options(self, own: Sequence[str], why: str) -> None:
        """No options but an operation's own."""
        if other := sorted(k for k, v in self.options.items() if k not in own and v != _DEFAULTS[k]):
            only = f", only {' and '.join(own)}" if own else ""
            raise InputError(f"{self.operation} {why}: it takes no {other[0]}{only}.")

    def _check_mma(self) -> None:
        """The instruction by its own name; formats that it has; no other options."""
        self._check_options(_OF_MMA, "multiplies as the unit does")
        if self.chip is None and self.instruction is None:
            if len(self.inputs) > 3:
                raise InputError(f"block scales belong to an instruction of a chip. {_EXAMPLE}")
            return
        if isinstance(self.chip, Model):
            raise InputError(f"chip={self.chip}: a question knows chips by name. {_EXAMPLE}")
        model = get_model(self.chip, self.instruction)
        operands = [word_format(t) for t in (model.a, model.b, model.c, *[model.scale] * 2 * bool(model.scale))]
        if [*self.inputs, self.output] != [*operands, TYPES[model.d]]:
            wanted, given = (" ".join(f.name for f in formats) for formats in (operands, self.inputs))
            d = TYPES[model.d].name
            example = f"Example: ask('{MMA}', '{wanted}'.split(), '{d}', ...)"
            raise InputError(f"{model} takes {wanted} and gives {d}; here {given} and {self.output}. {example}")
        object.__setattr__(self, "options", {**self.options, "chip": model.chip, "instruction": model.instruction})

    def _check_replay(self) -> None:
        """A system that exists, with settings that it takes; no other options."""
        self._check_options(_OF_SYSTEMS, "computes as its system does")
        from numsim.scaling.systems import system_name

        if not is_label(self.system, 40):
            raise InputError(f"system={short(self.system)}: a scaler's name is needed. Example: system='torch'")
        object.__setattr__(self, "options", {**self.options, "system": system_name(self.system)})
        if self.scaler.takes != "found_inf":
            raise InputError(f"{self.system} takes amaxes, and its logarithms are no bits to compare.")
        if self.inputs[0].name != "fp32" or self.output.name != self.scaler.keeps:
            gives = self.scaler.keeps
            raise InputError(
                f"the scaler {self.system} takes found_inf in fp32 and gives {gives}, not "
                f"{self.inputs[0]} and {self.output}. Example: ask('scaler', ['fp32'], '{gives}', ...)"
            )

    @cached_property
    def scaler(self) -> Any:
        """The state machine to replay, for scaler."""
        from numsim.scaling import get_scaler  # loaded for replays only

        return get_scaler(self.system, **dict(self.settings))

    @cached_property
    def model(self) -> Model | None:
        """Which unit of which chip, for mma."""
        return get_model(self.chip, self.instruction) if self.chip else None

    def __getattr__(self, name: str) -> Any:
        if name in _DEFAULTS:
            return self.options.get(name, _DEFAULTS[name])
        raise AttributeError(name)

    @property
    def policy(self) -> Policy:
        """How results are rounded."""
        return Policy(self.rounding, self.overflow, self.subnormals, self.nan)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the answer."""
        shapes = [a.shape for a in self.arrays]
        operation = self.operation if self.operation != LIBRARY else self.system.rpartition(".")[2].lstrip("_")
        if operation == "scaled_mm":
            return self._scaled_shape(*shapes)
        along = operation in SUMS or operation in REPLAYS or operation == AMAX
        least = 2 if operation == "matmul" else 1 if along else 0
        try:
            if min(map(len, shapes)) < least:
                raise ValueError
            if operation == "matmul":
                (*left, m, k), (*right, k2, n) = shapes
                if k != k2:
                    raise ValueError
                return (*np.broadcast_shapes(tuple(left), tuple(right)), m, n)
            if operation == MMA:
                return self._mma_shape(shapes)
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise self._shapes_refused() from None
        return shape[:-1] if operation in ("sum", "dot", AMAX) else shape

    def _shapes_refused(self) -> InputError:
        text = " and ".join(str(a.shape) for a in self.arrays)
        return InputError(f"{self.system or self.operation}: arrays of shapes {text} do not go together{self._rule()}.")

    def _rule(self) -> str:
        if self.operation == LIBRARY and len(self.arrays) == 4:
            return ": a (M, K), b (K, N) and scales () and (), or (M, 1) and (1, N), are needed"
        if self.operation != MMA:
            return ""
        k = f"K a multiple of {self.model.k}" if self.model else "K from 1 on"
        scales = f", scales (..., K / {self.model.scale_block})" if self.model and self.model.scale else ""
        return f": a (..., K), b (..., K), c (...){scales} are needed, {k}"

    def _scaled_shape(self, a: tuple[int, ...], b: tuple[int, ...], *scales: tuple[int, ...]) -> tuple[int, ...]:
        if len(a) != 2 or len(b) != 2 or a[1] != b[0] or scales not in (((), ()), ((a[0], 1), (1, b[1]))):
            raise self._shapes_refused()
        return a[0], b[1]

    def _mma_shape(self, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
        a, b, c, *scales = shapes
        k, model = (a[-1] if a else 0), self.model
        if not a or not b or b[-1] != k or k == 0 or (model and k % model.k):
            raise ValueError
        if model and any(not s or s[-1] * model.scale_block != k for s in scales):
            raise ValueError
        return np.broadcast_shapes(a[:-1], b[:-1], c, *(s[:-1] for s in scales))

    @cached_property
    def record(self) -> dict[str, Any]:
        """The question without its arrays, which are named by shape and SHA-256 of their little-endian bytes."""
        return {
            "operation": self.operation,
            "inputs": [f.name for f in self.inputs],
            "output": self.output.name,
            "options": {k: list(map(list, v)) if k == "settings" else v for k, v in self.options.items()},
            "arrays": [
                {
                    "shape": list(a.shape),
                    "dtype": a.dtype.name,
                    "sha256": array_digest(a),
                }
                for a in self.arrays
            ],
        }

    @cached_property
    def json(self) -> str:
        """Canonical JSON of ``record``: sorted keys, no spaces, ASCII."""
        return json.dumps(self.record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @cached_property
    def digest(self) -> str:
        """A SHA-256 of all that is asked: the same question has the same digest everywhere."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    def __str__(self) -> str:
        shapes = " ".join(f"{f}{list(a.shape)}" for f, a in zip(self.inputs, self.arrays, strict=True))
        options = "".join(
            f" {name}={v}" for k, v in self.options.items() for name, v in (v if k == "settings" else [(k, v)])
        )
        return f"{self.operation} {shapes} -> {self.output}{options}"


def ask(operation: str, inputs: Sequence[Any], output: Any, arrays: Sequence[Any], **options: Any) -> Question:
    """A ``Question`` from names and arrays of codes: what experiments write.

    Options are those of the operation, such as ``rounding``. Raises ``InputError`` for what no machine could answer.

    >>> from numsim.machines import get_machine
    >>> question = ask("add", ["fp16", "fp16"], "fp16", [np.uint16([0x6800]), np.uint16([0x3C00])])  # 2048 + 1
    >>> [hex(code) for code in get_machine("emulated").answer(question).codes]
    ['0x6800']
    """
    product = options.get("product")
    if product is not None and not (isinstance(product, str) and product == "exact"):
        options["product"] = get_format(product).name
    if not isinstance(operation, str) or not all(isinstance(x, (list, tuple)) for x in (inputs, arrays)):
        example = 'Example: ask("add", ["fp16", "fp16"], "fp16", [x, y])'
        raise InputError(
            f"operation {short(operation)}, inputs {short(inputs)}: a word and two lists are needed. {example}"
        )
    # copies: a question is frozen, its arrays must not change behind its back
    try:
        arrays = tuple(np.array(np.asarray(a)) for a in arrays)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # (RuntimeError: a torch tensor with a gradient)
        raise InputError(
            f"{operation}: regular arrays of codes are needed. Example: [numsim.array([1.0, 2.0], 'fp16').codes]"
        ) from None
    return Question(operation, tuple(get_format(f) for f in inputs), get_format(output), arrays, options)


def check_settings(settings: Any) -> tuple[tuple[str, Any], ...]:
    """Settings in the order of their names: pairs, or a dict, of names and finite numbers, truths or words.

    Integers are those below 10^24, which a recording can hold.

    >>> check_settings({"init_scale": 16.0, "growth_interval": 4})
    (('growth_interval', 4), ('init_scale', 16.0))
    """
    try:
        pairs = [(name, value) for name, value in (settings.items() if isinstance(settings, Mapping) else settings)]
    except (TypeError, ValueError):
        pairs = [(None, settings)]
    for name, value in pairs:
        finite = abs(value) < 10**24 if isinstance(value, int) else isinstance(value, float) and isfinite(value)
        if not is_label(name, 40) or not name.isidentifier() or not (finite or is_label(value, 40)):
            raise InputError(f"setting {short(name)}: {short(value)}: a name and a finite number or word are needed. "
                             "Example: settings={'growth_interval': 4}")  # fmt: skip
    if len(dict(pairs)) < len(pairs):
        raise InputError(f"settings {short(settings)}: a name comes twice. Example: settings={{'growth_interval': 4}}")
    return tuple(sorted(pairs))


class Can(NamedTuple):
    """Whether a machine can answer, and if not, why. True or False in an ``if``."""

    yes: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.yes


@dataclass(frozen=True, eq=False)
class Answer:
    """Codes in the question's output format, and where they come from."""

    codes: npt.NDArray[Any]
    provenance: Mapping[str, Any]
