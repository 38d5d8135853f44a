"""``Array``: codes and their format, with NumPy manners. ``operations.py`` has the functions that compute with it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.codes import Codes, check_codes, classify, decode, exact
from numsim.errors import InputError, UnavailableError
from numsim.events import Events
from numsim.formats import FP64, Format, get_format
from numsim.host import flushes_subnormals
from numsim.rounding import Nan, Overflow, Policy, Rounding, Subnormals, convert, draw_for, encode


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """Numbers of one format: ``codes`` (unsigned integers) and ``format``.

    Operators round each result once, nearest-even, overflow "ieee"; the functions of this module take every option.
    Both operands must have the same format; a plain number is first rounded to it. ``how`` names what made the array.

    >>> x = array([0.1, 2.0], "bf16")
    >>> x + 1
    numsim.array([1.1015625, 3.0], 'bf16')
    >>> array([2048.0], "fp16") + 1
    numsim.array([2048.0], 'fp16')
    """

    __slots__ = ("codes", "format", "how")

    codes: Codes
    format: Format
    how: str

    def __init__(self, codes: Codes, format: Format, how: str = "codes given") -> None:
        self.format = get_format(format)
        self.codes, self.how = check_codes(codes, self.format), how

    # --- looking at it
    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    @property
    def ndim(self) -> int:
        return self.codes.ndim

    @property
    def size(self) -> int:
        return self.codes.size

    @property
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        return Array(self.codes.T, self.format, self.how)

    @property
    def values(self) -> Any:
        """The values as float64 (raises for formats that float64 does not hold)."""
        return decode(self.codes, self.format)

    def reshape(self, *shape: Any) -> Array:
        return Array(self.codes.reshape(*shape), self.format, self.how)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Any) -> Array:
        return Array(np.asarray(self.codes[index]), self.format, self.how)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("an Array's values are decoded from its codes, which is always a copy")
        return np.asarray(self.values, dtype=dtype)

    def __bool__(self) -> bool:
        return bool(np.asarray(classify(self.codes, self.format) != "zero"))  # as in NumPy: refused for several numbers

    def __contains__(self, value: Any) -> bool:
        return bool(np.any(self == value))

    def __float__(self) -> float:
        return float(self.values)

    def __int__(self) -> int:
        return int(self.fraction())

    def fraction(self) -> Fraction:
        """The exact value of a single number."""
        return exact(self.codes, self.format)

    def astype(
        self,
        format: Any,
        *,
        rounding: Rounding = "nearest-even",
        overflow: Overflow = "ieee",
        subnormals: Subnormals = "keep",
        nan: Nan = "raise",
        seed: Any = None,
        random_bits: Any = None,
        sr_bits: int | None = None,
        events: Events | None = None,
    ) -> Array:
        """The numbers rounded once to another format; options as for ``encode``."""
        format, policy = get_format(format), Policy(rounding, overflow, subnormals, nan)
        draw = draw_for(policy, self.size, self.shape, seed, random_bits, sr_bits)
        codes = convert(self.codes, self.format, format, policy, draw, events)
        return Array(codes, format, f"{self.format} rounded once to {format}, {policy}")

    def __repr__(self) -> str:
        """What makes this array again (up to 100 numbers are shown; more are cut)."""
        name = f"'{self.format}'" if self.format.is_named else repr(self.format)
        kinds = np.asarray(classify(self.codes, self.format))
        payloads = np.any(self.codes[kinds == "nan"] != self.format.nan_code)
        flushed = flushes_subnormals() and np.any(kinds == "subnormal")
        if payloads or flushed or not self.format.fits(FP64):  # the values would not say it all
            return f"numsim.from_codes({self.codes.tolist()}, {name})"
        # float64's shortest form names every value of up to 53 bits
        text = np.array2string(
            np.asarray(self.values), separator=", ", threshold=100, formatter={"float_kind": lambda x: repr(float(x))}
        )
        shape = "" if self.size or self.ndim == 1 else f".reshape({self.shape})"
        return f"numsim.array({text if self.size else '[]'}, {name}){shape}".replace("\n", "\n      ")

    def _repr_html_(self) -> str | None:
        """A single number explains itself in a notebook; arrays print as text."""
        if self.ndim:
            return None
        from numsim.explain import explain

        return explain(self)._repr_html_()

    # --- arithmetic
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        from numsim.operations import UFUNCS

        name = ufunc.__name__
        if method == "__call__" and not options:
            if name in UFUNCS:
                return UFUNCS[name](*inputs)
            if name in _COMPARISONS:  # of the values, as float64 compares
                if flushes_subnormals():
                    raise UnavailableError("this CPU flushes subnormal numbers: values cannot be compared. Use x.codes")
                return ufunc(*(x.values if isinstance(x, Array) else x for x in inputs))
        if method == "__call__" and name in UFUNCS:
            sign = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@"}.get(name)
            instead = f"x = x {sign} y" if sign else f"numsim.{name}(x)"
            raise TypeError(
                f"Arrays are never changed in place: np.{name} takes no out= and no where=. Write {instead}"
            )
        raise TypeError(f"np.{name}{'' if method == '__call__' else '.' + method} {_REFUSED}")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's other functions would decode to float64 and round out of sight."""
        if function in (np.sum, np.cumsum, np.shape, np.ndim, np.size, np.array2string, np.array_repr, np.array_str):
            return function.__wrapped__(*args, **kwargs)
        if function is np.dot:
            return args[0] @ args[1]
        raise TypeError(f"np.{function.__name__} {_REFUSED}")

    def sum(self, axis: Any = None, dtype: Any = None, out: None = None, **options: Any) -> Array:
        """``numsim.sum`` with NumPy's signature, so that ``np.sum`` works: sequential, in the array's own format."""
        from numsim import operations

        if dtype is not None or out is not None:
            raise InputError("dtype= and out= are not for Arrays. Example: numsim.sum(x, accumulator='fp32')")
        return operations.sum(self, axis=axis, **options)

    def cumsum(self, axis: Any = None, dtype: Any = None, out: None = None, **options: Any) -> Array:
        """``numsim.cumsum`` with NumPy's signature."""
        from numsim import operations

        if dtype is not None or out is not None:
            raise InputError("dtype= and out= are not for Arrays. Example: numsim.cumsum(x, accumulator='fp32')")
        return operations.cumsum(self, axis=axis, **options)

    def dot(self, other: Any, out: None = None) -> Array:
        return self @ other  # type: ignore[no-any-return]


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_REFUSED = (
    "is not defined on numsim Arrays: rounding would be hidden. Defined are + - * / @, comparisons, np.sqrt, np.sum, "
    "np.cumsum; the functions of numsim take every option. For float64 values: x.values"
)


def array(values: Any, format: Any, **options: Any) -> Array:
    """Numbers rounded to a format. Options as for ``encode``; ``numsim.array(x.values, ...)`` for an Array.

    >>> array([0.1, 1e9, -0.0], "fp16")
    numsim.array([0.0999755859375, inf, -0.0], 'fp16')
    """
    format = get_format(format)
    codes = np.asarray(encode(values, format, **options))
    policy = Policy(**{k: v for k, v in options.items() if k in ("rounding", "overflow", "subnormals", "nan")})
    return Array(codes, format, f"rounded once to {format}, {policy}")


def from_codes(codes: Any, format: Any) -> Array:
    """Codes taken as they are.

    >>> from_codes([0x7E, 0x01], "e4m3")
    numsim.array([448.0, 0.001953125], 'e4m3fn')
    """
    format = get_format(format)
    try:
        return Array(
            np.array(codes) if isinstance(codes, (np.ndarray, np.generic)) else check_codes(codes, format), format
        )
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            "nested lists of unequal lengths are no array. Example: numsim.from_codes([1, 2], 'fp16')"
        ) from None
