"""NumPy's functions on Arrays, by its protocols (NEP 13: ``__array_ufunc__``; NEP 18: ``__array_function__``).

Four kinds: those that round once (the operations of numsim, and what ``numpy_functions.py`` makes of them), those that
choose or compare (exact), those that only move elements (NumPy's own, run on the codes), and all others: refused, for
they would decode to float64 and round out of sight. Plain numbers beside an Array are rounded to its format first,
nearest-even, and ``how`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Number
from typing import Any, NoReturn

import numpy as np

from numsim import elementwise, functions, numpy_functions, operations, ordering, reductions
from numsim.array import Array, array
from numsim.errors import InputError, UndefinedError
from numsim.formats import Format
from numsim.values import as_values

_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@"}
_INSTEAD = {  # calls that work, for what is refused
    "power": "x * x", "float_power": "x * x", "prod": "x[0] * x[1]", "var": "numsim.mean(x)",
    "std": "numsim.mean(x)", "average": "numsim.mean(x)", "einsum": "x @ y", "tensordot": "x @ y", "inner": "x @ y",
    "vdot": "x @ y", "outer": "x[:, None] * y", "diff": "x[1:] - x[:-1]", "ptp": "np.max(x) - np.min(x)",
    "allclose": "numsim.testing.assert_bits_equal(x, y)", "isclose": "numsim.testing.assert_bits_equal(x, y)",
    "floor_divide": "np.floor(numsim.div(x, y, rounding='down'))", "modf": "x - np.trunc(x)",
    "divmod": "x % y", "hypot": "numsim.norm(np.stack([x, y]), axis=0)", "matvec": "x @ y", "vecmat": "x @ y",
    "vecdot": "numsim.dot(x, y)", "heaviside": "np.where(x > 0, 1, x)", "conjugate": "x.copy()",
    "cumulative_sum": "np.cumsum(x)", "trace": "np.sum(np.diag(x))", "ediff1d": "x[1:] - x[:-1]",
    "nansum": "np.sum(np.where(np.isnan(x), 0, x))", "nanmean": "np.mean(x[~np.isnan(x)])",
    "nanmax": "np.max(np.where(np.isnan(x), -np.inf, x))", "nanmin": "np.min(np.where(np.isnan(x), np.inf, x))",
    "nan_to_num": "np.where(np.isnan(x), 0, x)", "isneginf": "np.isinf(x) & (x < 0)", "isposinf": "x == np.inf",
    "isin": "np.any(x[..., None] == y, axis=-1)", "union1d": "np.unique(np.concatenate([x, y]))",
    "unique_values": "np.unique(x)", "partition": "np.sort(x)",
    "median": "np.mean(np.sort(x)[[(len(x) - 1) // 2, len(x) // 2]])",
    "argpartition": "np.argsort(x)", "lexsort": "np.argsort(x)", "select": "np.where(x > 0, x, y)",
    "astype": "x.astype('fp32')", "save": "numsim.save(path, x=x)", "savez": "numsim.save(path, x=x)",
    "savez_compressed": "numsim.save(path, x=x)", "empty_like": "np.zeros_like(x)",
}  # fmt: skip


def refuse(name: str) -> NoReturn:
    instead = f"Instead: {_INSTEAD[name.rpartition('.')[2]]}. " if name.rpartition(".")[2] in _INSTEAD else ""
    raise UndefinedError(
        f"np.{name} is not defined on numsim Arrays: rounding would be hidden. {instead}Defined are + - * / @, "
        "comparisons, np.sqrt, np.exp, np.sum, np.max, np.sort and all that moves elements; the functions of numsim "
        "take every option. For float64 values: x.values"
    )


# --- operands ---------------------------------------------------------------------------------------------------------
def _held(x: Any) -> Iterator[Array]:
    """The Arrays in an argument, nested lists and all."""
    if isinstance(x, Array):
        yield x
    elif isinstance(x, (list, tuple)):
        for item in x:
            yield from _held(item)


def _holds(x: Any) -> bool:
    return next(_held(x), None) is not None  # (not any(): an Array has its own truth)


def _format(name: str, arrays: Iterable[Array], example: str) -> Format:
    """The one format of all Arrays."""
    formats = dict.fromkeys(x.format for x in arrays)
    if len(formats) > 1:
        names = " and ".join(sorted(f.name for f in formats))
        raise InputError(f"{name}: operands have formats {names}; which one should the result have? Example: {example}")
    return next(iter(formats))


def _noted(how: str, inputs: Iterable[Any], format: Format) -> str:
    plain = any(not isinstance(x, Array) for x in inputs)
    return f"{how}; plain numbers rounded to {format} first" if plain else how


# --- ufuncs -----------------------------------------------------------------------------------------------------------
def ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What ``np.add(x, y)``, ``x + y``, ``x += y``, ``np.add.reduce(x)`` do."""
    name, outs = ufunc.__name__, options.pop("out", (None,))
    if len(outs) > 1:
        raise UndefinedError(f"np.{name} takes no out= on Arrays. Example: y = np.{name}(x)")
    (out,) = outs
    if method in ("reduce", "accumulate"):
        reduction = {"reduce": _REDUCE, "accumulate": {"add": "cumsum"}}[method].get(name)
        if reduction is None or not isinstance(inputs[0], Array):
            refuse(f"{name}.{method}")
        return getattr(inputs[0], reduction)(**{"axis": 0, **({} if out is None else {"out": out}), **options})
    if method != "__call__":
        refuse(f"{name}.{method}")
    if not any(isinstance(x, Array) for x in inputs):
        raise UndefinedError(f"np.{name}: no operand is an Array, only out= is. Example: x[...] = np.{name}(...)")
    if options.pop("where", True) is not True:
        raise UndefinedError(f"np.{name} takes no where= on Arrays. Example: np.where(mask, np.{name}(...), x)")
    if options:
        raise UndefinedError(
            f"np.{name} takes no {next(iter(options))}= on Arrays. Example: numsim.add(x, y, format='fp32')"
        )
    return _store(_call(name, inputs), out, name)


def _call(name: str, inputs: tuple[Any, ...]) -> Any:
    if name in ordering.COMPARISONS:
        return _compare(name, *inputs)[()]
    if name in _TRUTHS:
        return _TRUTHS[name](*inputs)[()]
    if own := _NUMPYS.get(name):
        _format(f"np.{name}", _held(inputs), f"np.{name}(x.astype(y.format), y)")
        return own(*inputs)
    operation = functions.FUNCTIONS.get(name) or _OPERATIONS.get(name)
    if operation is None:
        refuse(name)
    if name in ("copysign", "ldexp"):  # a sign of any format, a power that is no operand
        return operation(*inputs)
    sign, wider = _SIGNS.get(name), "accumulator" if name == "matmul" else "format"
    other = f"x.astype(y.format) {sign} y" if sign else f"np.{name}(x.astype(y.format), y)"
    called = operation.__name__
    format = _format(called, _held(inputs), f"numsim.{called}(x, y, {wider}='fp32'), or {other}")
    result = operation(*inputs)
    return Array(result.codes, result.format, _noted(result.how, inputs, format))


def _store(result: Any, out: Any, name: str) -> Any:
    """The result, or ``out`` with the result in it."""
    if out is None:
        return result
    if isinstance(result, Array) != isinstance(out, Array) or (isinstance(out, Array) and out.format != result.format):
        kind = f"an Array of {result.format}" if isinstance(result, Array) else "an array of bool"
        raise UndefinedError(f"np.{name}: out= must be {kind}. Example: y = np.{name}(...)")
    if out.shape != result.shape:
        raise InputError(f"np.{name}: out= has shape {out.shape}, the result {result.shape}. Example: x = x + y")
    if isinstance(out, Array):
        out[...] = result
        out.how = result.how
    else:
        np.copyto(out, result)
    return out


def _compare(name: str, x: Any, y: Any) -> Any:
    def side(operand: Any) -> ordering.Side:
        return (operand.codes, operand.format) if isinstance(operand, Array) else as_values(operand)

    try:
        sides = side(x), side(y)
    except InputError:
        other = y if isinstance(x, Array) else x
        if name not in ("equal", "not_equal") or isinstance(other, (Number, np.ndarray, np.generic, list, tuple)):
            raise
        return np.full(next(_held([x, y])).shape, name == "not_equal")  # nothing but a number equals a number
    return ordering.compare(name, *sides)


def _truth(x: Any) -> Any:
    return ordering.is_true(x.codes, x.format) if isinstance(x, Array) else np.asarray(x, bool)


_REDUCE = {"add": "sum", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any"}
_OPERATIONS: dict[str, Callable[..., Array]] = {  # besides the elementary functions, which have a list of their own
    "add": operations.add, "subtract": operations.sub, "multiply": operations.mul, "divide": operations.div,
    "sqrt": operations.sqrt, "negative": operations.negative, "matmul": reductions.matmul,
    "maximum": elementwise.maximum, "minimum": elementwise.minimum,
    "fmax": elementwise.maximum_number, "fmin": elementwise.minimum_number,
    "absolute": elementwise.abs, "fabs": elementwise.abs, "positive": Array.copy,
    "copysign": elementwise.copysign, "ldexp": elementwise.scale_b,
    "rint": elementwise.round_to_integral,
    "trunc": lambda x: elementwise.round_to_integral(x, rounding="toward-zero"),
    "floor": lambda x: elementwise.round_to_integral(x, rounding="down"),
    "ceil": lambda x: elementwise.round_to_integral(x, rounding="up"),
    "square": lambda x: operations.mul(x, x),
    "reciprocal": lambda x: operations.div(1, x),
}  # fmt: skip
_NUMPYS: dict[str, Callable[..., Any]] = {  # with rules of NumPy's own
    "sign": numpy_functions.sign, "nextafter": numpy_functions.nextafter, "spacing": numpy_functions.spacing,
    "frexp": numpy_functions.frexp, "fmod": numpy_functions.fmod, "remainder": numpy_functions.remainder,
}  # fmt: skip
_TRUTHS: dict[str, Callable[..., Any]] = {
    "isnan": lambda x: ordering.is_nan(x.codes, x.format),
    "isinf": lambda x: ordering.is_infinite(x.codes, x.format),
    "isfinite": lambda x: ~(ordering.is_nan(x.codes, x.format) | ordering.is_infinite(x.codes, x.format)),
    "signbit": lambda x: ordering.is_negative(x.codes, x.format),
    "logical_not": lambda x: ~_truth(x),
    "logical_and": lambda x, y: _truth(x) & _truth(y),
    "logical_or": lambda x, y: _truth(x) | _truth(y),
    "logical_xor": lambda x, y: _truth(x) ^ _truth(y),
}


# --- functions --------------------------------------------------------------------------------------------------------
_MOVES = {
    "append", "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "block", "broadcast_arrays", "broadcast_to",
    "column_stack", "compress", "concatenate", "copy", "delete", "diag", "diagflat", "diagonal", "dsplit", "dstack",
    "expand_dims", "extract", "flip", "fliplr", "flipud", "full_like", "hsplit", "hstack", "insert",
    "matrix_transpose", "meshgrid", "moveaxis", "pad", "ravel", "repeat", "reshape", "resize", "roll", "rollaxis",
    "rot90", "split", "squeeze", "stack", "swapaxes", "take", "take_along_axis", "tile", "transpose", "tril", "triu",
    "unstack", "vsplit", "vstack", "where", "zeros_like",
}  # fmt: skip
_WRITES = {"copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"}
_ALL = tuple(range(64))
_ELEMENTS = {  # which arguments hold elements; of all others it is the first
    "append": (0, 1), "full_like": (0, 1), "insert": (0, 2), "where": (1, 2), "compress": (1,), "extract": (1,),
    "atleast_1d": _ALL, "atleast_2d": _ALL, "atleast_3d": _ALL, "broadcast_arrays": _ALL, "meshgrid": _ALL,
    "copyto": (0, 1), "fill_diagonal": (0, 1), "place": (0, 2), "put": (0, 2), "put_along_axis": (0, 2),
    "putmask": (0, 2),
}  # fmt: skip
_BY_KEYWORD = {
    "a", "A", "ary", "arr", "array", "arrays", "m", "v", "tup", "x", "values", "val", "vals", "fill_value", "src",
    "constant_values",
}  # fmt: skip
_METHODS = {"all", "any", "amax", "amin", "argmax", "argmin", "argsort", "cumsum", "max", "mean", "min", "sum"}


def function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``np.concatenate([x, y])``, ``np.sum(x)`` and so on do."""
    name = function.__name__
    if function is np.linalg.norm and args and isinstance(args[0], Array):
        return numpy_functions.norm(*args, **kwargs)
    if function is not getattr(np, name, None):
        refuse(f"{function.__module__.removeprefix('numpy.')}.{name}")
    if name in _MOVES or name in _WRITES:
        return _move(function, name, args, kwargs)
    if name in ("shape", "ndim", "size"):
        return getattr(function, "__wrapped__", function)(*args, **kwargs)
    if args and isinstance(args[0], Array):
        if name in _METHODS:
            return getattr(args[0], {"amax": "max", "amin": "min"}.get(name, name))(*args[1:], **kwargs)
        if name in _OTHERS:
            return _OTHERS[name](*args, **kwargs)
    elif args and name in ("dot", "array_equal"):
        return _OTHERS[name](*args, **kwargs)
    refuse(name)


def _move(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """NumPy's function, run on the codes."""
    places = _ELEMENTS.get(name, (0,))
    elements = [x for i, x in enumerate(args) if i in places] + [x for k, x in kwargs.items() if k in _BY_KEYWORD]
    others = [x for i, x in enumerate(args) if i not in places]
    others += [x for k, x in kwargs.items() if k not in _BY_KEYWORD and k != "out"]
    out = kwargs.get("out")
    if _holds(others):
        raise UndefinedError(f"np.{name}: an Array is no index, shape or mask. Example: np.where(x > 0, x, 0)")
    if kwargs.get("dtype") is not None or "casting" in kwargs:
        raise UndefinedError(f"np.{name} takes no dtype= and casting= on Arrays. Example: x.astype('fp32')")
    if not all(isinstance(x, Array) for x in [*([] if out is None else [out]), *(args[:1] if name in _WRITES else [])]):
        raise UndefinedError(f"np.{name}: what is written to must be an Array. Example: y = x.copy()")
    if name == "pad" and (_mode(args, kwargs) not in ("constant", "edge", "reflect", "symmetric", "wrap")
                          or "reflect_type" in kwargs):  # fmt: skip
        refuse("pad")  # with other modes it computes
    arrays = list(_held([*elements, out]))
    format = _format(f"np.{name}", arrays, f"np.{name}(...) of x.astype(y.format) and y")
    plain: list[Any] = []

    def codes(x: Any) -> Any:
        if isinstance(x, Array):
            return x.codes
        if isinstance(x, (list, tuple)) and _holds(x):
            return [codes(item) for item in x]
        plain.append(x)
        return array(x, format).codes

    moved = function(
        *(codes(x) if i in places else x for i, x in enumerate(args)),
        **{k: codes(x) if k in _BY_KEYWORD or (k == "out" and x is not None) else x for k, x in kwargs.items()},
    )
    if name in _WRITES:
        args[0]._assigned()
        return None
    if out is not None:
        return out
    hows = dict.fromkeys(x.how for x in arrays)
    how = _noted(hows.popitem()[0] if len(hows) == 1 else f"np.{name}", plain, format)
    if isinstance(moved, (list, tuple)):
        return type(moved)(arrays[0]._like(part, how) for part in moved)
    return arrays[0]._like(moved, how)


def _mode(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[2] if len(args) > 2 else kwargs.get("mode", "constant")


# --- functions with rules of their own --------------------------------------------------------------------------------
def _dot(x: Any, y: Any, out: Any = None) -> Any:
    ranks = [a.ndim if isinstance(a, Array) else len(as_values(a).shape) for a in (x, y)]
    if 0 in ranks:
        return _store(x * y, out, "dot")
    if max(ranks) > 2:
        raise UndefinedError("np.dot of more than two dimensions is not defined on Arrays. Example: x @ y")
    return _store(x @ y, out, "dot")


def _array_equal(x: Any, y: Any, equal_nan: bool = False) -> bool:
    shapes = [a.shape if isinstance(a, Array) else as_values(a).shape for a in (x, y)]
    if shapes[0] != shapes[1]:
        return False
    same = _compare("equal", x, y)
    if equal_nan:
        nan = [np.isnan(a) if isinstance(a, Array) else np.isnan(array(a, "fp64")) for a in (x, y)]
        same = same | (nan[0] & nan[1])
    return bool(np.all(same))


def _sort(x: Any, axis: int | None = -1, **options: Any) -> Any:
    return np.take_along_axis(x, x.argsort(axis, **options), axis)


def _unique(x: Array, **options: Any) -> Any:
    """By value: all NaN are one, the first; -0 and +0 are two."""
    if options.pop("axis", None) is not None or options.pop("equal_nan", True) is not True:
        raise UndefinedError("np.unique takes no axis= and no equal_nan=False on Arrays. Example: np.unique(x)")
    asked = options.pop("return_index", False)
    codes = x.codes.reshape(-1)
    _, first, *rest = np.unique(ordering.dense_ranks(codes, x.format), return_index=True, **options)
    found = x._like(codes[first])
    if not asked and not rest:
        return found
    return (found, *([first] if asked else []), *rest)


def _on_truth(name: str) -> Callable[..., Any]:
    return lambda x, *args, **kwargs: getattr(np, name)(_truth(x), *args, **kwargs)


_OTHERS: dict[str, Callable[..., Any]] = {
    "dot": _dot, "array_equal": _array_equal, "sort": _sort, "unique": _unique,
    "ones_like": lambda x, *args, **kwargs: np.full_like(x, 1, *args, **kwargs),
    "clip": numpy_functions.clip, "round": numpy_functions.round, "around": numpy_functions.round,
    "fix": lambda x: np.trunc(x),
    "array2string": lambda x, *args, **kwargs: np.array2string(x.values, *args, **kwargs),
    "array_repr": lambda x: repr(x), "array_str": lambda x: str(x),
    "isrealobj": lambda x: True, "iscomplexobj": lambda x: False,
    **{name: _on_truth(name) for name in ("argwhere", "count_nonzero", "flatnonzero", "nonzero")},
}  # fmt: skip
