"""``Array``: codes and their format, with NumPy manners.

``operations.py``, ``elementwise.py``, ``functions.py`` and ``reductions.py`` compute with it;
``array_protocols.py`` has what NumPy's functions do with it.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim import ordering
from numsim.arithmetic import convert
from numsim.codes import Codes, check_codes, classify, decode, exact
from numsim.errors import InputError, UndefinedError, short, truth
from numsim.events import Events
from numsim.formats import FP32, FP64, Format, get_format
from numsim.host import flushes_subnormals
from numsim.rounding import Nan, Overflow, Policy, Rounding, Subnormals, check_events, draw_for, encode


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """Numbers of one format: ``codes`` (unsigned integers) and ``format``; ``how`` names what made them.

    It behaves as a NumPy array does, with nothing rounded out of sight. Operators and ufuncs round each result once,
    nearest-even, overflow "ieee"; the functions of numsim take every option. Operands have one format; plain numbers
    (floats, lists, NumPy's arrays) beside them are rounded to it first. What only moves, chooses or compares elements
    is exact: indexing (views where NumPy gives views), ``np.concatenate``, ``np.where``, ``np.sort``, ``np.maximum``,
    ``==``. Everything else is refused with a call that works.

    Rules
    -----
    NaN : unequal to everything; the maximum and minimum of what holds one; last when sorted; true.
    -0 : equal to +0, and below it in ``np.sort``, ``np.max``, ``np.maximum`` and ``np.unique``.
    assignment : ``x[i] = 0.1`` and ``x += 1`` round once; what reads the same codes sees it. A read-only view refuses.
    text : ``repr`` makes the same codes again when it is evaluated (with ``nan`` and ``inf`` from NumPy), unless it was
        shortened: of more than 100 numbers "..." stands for most.
    copies : ``copy`` and ``pickle`` copy codes, format and ``how``; what is unpickled is checked as in the constructor.

    Raises ``UndefinedError`` (an ``InputError`` and a ``TypeError``) for what is not defined. Indices, shapes and axes
    of what only moves elements, and of ``argsort``, ``any`` and ``all``, are NumPy's matter, and so are its errors for
    those that do not fit or are none: ``IndexError``, ``ValueError``, ``TypeError``. Not hashable.

    >>> x = array([0.1, 2.0], "bf16")
    >>> x + 1
    numsim.array([1.1015625, 3.0], 'bf16')
    >>> x[0] = 0.3
    >>> np.concatenate([x[::-1], np.maximum(x, 1)])
    numsim.array([2.0, 0.30078125, 1.0, 2.0], 'bf16')
    >>> array([2048.0], "fp16") + 1
    numsim.array([2048.0], 'fp16')
    """

    __slots__ = ("codes", "format", "how")

    codes: Codes
    format: Format
    how: str

    def __init__(self, codes: Codes, format: Format, how: str = "codes given") -> None:
        self.format = get_format(format)
        self.codes, self.how = check_codes(codes, self.format), how if isinstance(how, str) else short(how)

    def _like(self, codes: Any, how: str | None = None) -> Array:
        """Codes that came from this array's: nothing is checked again."""
        new = object.__new__(Array)
        new.codes, new.format, new.how = np.asarray(codes), self.format, self.how if how is None else how
        return new

    # --- looking at it
    @property
    def shape(self) -> tuple[int, ...]:
        """How many numbers there are along each axis."""
        return self.codes.shape

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return self.codes.ndim

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self.codes.size

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, each in a whole unsigned integer."""
        return self.codes.nbytes

    @property
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        """A view with the axes in reverse order."""
        return self._like(self.codes.T)

    @property
    def values(self) -> Any:
        """The values as float64 (raises for formats that float64 does not hold)."""
        return decode(self.codes, self.format)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Any) -> Array:
        return self._like(self.codes[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, Array) and value.format != self.format:
            raise InputError(
                f"numbers of {value.format} into an Array of {self.format}: they would be rounded. "
                "Example: x[i] = y.astype(x.format)"
            )
        codes = value.codes if isinstance(value, Array) else array(value, self.format).codes
        if not self.codes.flags.writeable:
            raise InputError("this Array is a read-only view. Example: x = x.copy()")
        self.codes[index] = codes
        self._assigned()

    def _assigned(self) -> None:
        self.how = self.how.removesuffix(_ASSIGNED) + _ASSIGNED

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool(np.any(self == value))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("an Array's values are decoded from its codes, which is always a copy")
        if flushes_subnormals() and dtype is not None and np.dtype(dtype).name == "float32":  # a conversion would flush
            return self.astype(FP32).codes.view(np.float32).astype(dtype)
        return np.asarray(self.values, dtype=dtype)

    # --- one number
    def _single(self, what: str) -> Codes:
        if self.size != 1:
            raise UndefinedError(f"{what} needs one number; several are ambiguous: this Array has shape {self.shape}. "
                                 f"Example: {what.replace('()', '(x[0])')}, x.values or np.any(x)")  # fmt: skip
        return self.codes.reshape(())

    def __bool__(self) -> bool:
        return bool(ordering.is_true(self._single("bool()"), self.format))

    def __float__(self) -> float:
        return float(decode(self._single("float()"), self.format))

    def __int__(self) -> int:
        return int(exact(self._single("int()"), self.format))

    def fraction(self) -> Fraction:
        """The exact value of a single number."""
        return exact(self.codes, self.format)

    def item(self) -> float:
        """The single number as a Python float."""
        return float(self)

    def tolist(self) -> Any:
        """The values as Python floats, in nested lists."""
        return self.values.tolist()

    # --- other shapes: views where NumPy gives views
    def reshape(self, *shape: Any, **options: Any) -> Array:
        """As NumPy's: a view in another shape where that can be, else a copy."""
        return self._like(self.codes.reshape(*shape, **options))

    def transpose(self, *axes: Any) -> Array:
        """As NumPy's: a view with the axes in another order."""
        return self._like(self.codes.transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """As NumPy's: a view with two axes exchanged."""
        return self._like(self.codes.swapaxes(axis1, axis2))

    def squeeze(self, axis: Any = None) -> Array:
        """As NumPy's: a view without axes of length 1."""
        return self._like(self.codes.squeeze(axis))

    def ravel(self) -> Array:
        """As NumPy's: along one axis, a view where that can be, else a copy."""
        return self._like(self.codes.ravel())

    def flatten(self) -> Array:
        """As NumPy's: a copy along one axis."""
        return self._like(self.codes.flatten())

    def take(self, indices: Any, axis: int | None = None) -> Array:
        """As NumPy's: the numbers at some places, a copy."""
        return self._like(self.codes.take(indices, axis))

    def repeat(self, repeats: Any, axis: int | None = None) -> Array:
        """As NumPy's: each number several times, a copy."""
        return self._like(self.codes.repeat(repeats, axis))

    def copy(self) -> Array:
        """The same codes in memory of their own."""
        return self._like(self.codes.copy())

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Array:
        return self.copy()

    def __reduce__(self) -> Any:
        """For pickle: through the constructor, which checks."""
        return Array, (self.codes, self.format.name if self.format.is_named else self.format, self.how)

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
        check_events(events)
        draw = draw_for(policy, self.size, self.shape, seed, random_bits, sr_bits)
        codes = convert(self.codes, self.format, format, policy, draw, events)
        return Array(codes, format, f"{self.format} rounded once to {format}, {policy}")

    # --- for other libraries
    def to_numpy(self) -> npt.NDArray[Any]:
        """The codes as the NumPy or ml_dtypes dtype of the same bits, without a copy; see ``numsim.interop``.

        >>> array([0.5, 3.0], "fp16").to_numpy()
        array([0.5, 3. ], dtype=float16)
        """
        from numsim.interop import to_numpy

        return to_numpy(self)

    def to_torch(self) -> Any:
        """The codes as the torch dtype of the same bits, without a copy where it can be; see ``numsim.interop``."""
        from numsim.interop import to_torch

        return to_torch(self)

    def __dlpack__(self, **options: Any) -> Any:
        """The codes, as unsigned integers, for other libraries' ``from_dlpack``; a copy where a protocol of before 1.0
        could not say that they are read-only."""
        try:
            return self.codes.__dlpack__(**options)
        except BufferError:
            if options.get("copy") is False:
                raise
            return self.codes.copy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.codes.__dlpack_device__()

    # --- as text
    def __repr__(self) -> str:
        """What makes this array again (up to 100 numbers are shown; more are cut)."""
        name = f"'{self.format}'" if self.format.is_named else f"numsim.{self.format!r}"
        kinds = np.asarray(classify(self.codes, self.format))
        payloads = np.any(self.codes[kinds == "nan"] != self.format.nan_code)
        flushed = flushes_subnormals() and np.any(kinds == "subnormal")
        if payloads or flushed or not self.format.fits(FP64):  # the values would not say it all
            made, text = "from_codes", self._text(self.codes, str)
        else:  # float64's shortest form names every value of up to 53 bits
            made, text = "array", self._text(self.values, lambda x: repr(float(x)))
        shape = "" if self.size or self.ndim == 1 else f".reshape({self.shape})"
        return f"numsim.{made}({text}, {name}){shape}".replace("\n", "\n      ")

    def __format__(self, spec: str) -> str:
        """Of one number as of a float; of several each, in brackets."""
        if not spec or not self.ndim:
            return format(float(self), spec) if spec else str(self)
        return self._text(self.values, lambda x: format(float(x), spec))

    def _text(self, numbers: Any, one: Any) -> str:
        if not self.size:
            return "[]"
        return np.array2string(
            np.asarray(numbers), separator=", ", threshold=100, formatter={"float_kind": one, "int_kind": one}
        )

    def _repr_html_(self) -> str:
        """For notebooks: a single number explains itself; of several a table of values and codes."""
        if self.ndim:
            from numsim.show.array_html import table

            return table(self)
        from numsim.explain import explain

        return explain(self)._repr_html_()

    # --- NumPy's protocols
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        from numsim import array_protocols

        return array_protocols.ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from numsim import array_protocols

        return array_protocols.function(function, args, kwargs)

    # --- along axes
    def _merged(self, axis: Any) -> tuple[Array, tuple[int, ...]]:
        """The axes that a reduction runs over as one, the last, in C order; and the shape that ``keepdims`` keeps."""
        try:
            given = range(self.ndim) if axis is None else np.atleast_1d(axis).tolist()
            axes = [range(self.ndim)[operator.index(a)] for a in given]
            if len(set(axes)) != len(axes):
                raise IndexError
        except Exception:  # of NumPy, or of another library's object
            raise InputError(
                f"axis={short(axis)} of an Array of shape {self.shape}: allowed are None, integers from {-self.ndim} "
                f"to {self.ndim - 1}, and a tuple of different ones."
            ) from None
        rest = [i for i in range(self.ndim) if i not in axes]
        kept = tuple(1 if i in axes else n for i, n in enumerate(self.shape))
        last = math.prod(self.shape[i] for i in axes)
        codes = self.codes.transpose(*rest, *sorted(axes)).reshape(*(self.shape[i] for i in rest), last)
        return self._like(codes), kept

    def _summed(self, name: str, axis: Any, dtype: Any, out: Any, keepdims: bool, options: dict[str, Any]) -> Array:
        from numsim import reductions

        if dtype is not None or out is not None:
            raise InputError(f"dtype= and out= are not for Arrays. Example: numsim.{name}(x, accumulator='fp32')")
        terms, kept = self._merged(axis)
        result: Array = getattr(reductions, name)(terms, axis=-1, **options)
        return result.reshape(kept) if truth("keepdims", keepdims) else result

    def sum(
        self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, **options: Any
    ) -> Array:
        """``numsim.sum`` with NumPy's signature, so that ``np.sum`` works: sequential, in the array's own format."""
        return self._summed("sum", axis, dtype, out, keepdims, options)

    def mean(
        self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, **options: Any
    ) -> Array:
        """``numsim.mean`` with NumPy's signature."""
        return self._summed("mean", axis, dtype, out, keepdims, options)

    def cumsum(self, axis: Any = None, dtype: Any = None, out: None = None, **options: Any) -> Array:
        """``numsim.cumsum`` with NumPy's signature."""
        from numsim import reductions

        if dtype is not None or out is not None:
            raise InputError("dtype= and out= are not for Arrays. Example: numsim.cumsum(x, accumulator='fp32')")
        return reductions.cumsum(self, axis=axis, **options)

    def dot(self, other: Any, out: Any = None) -> Array:
        """``numsim.dot`` or ``numsim.matmul`` with NumPy's signature, in the array's own format."""
        return np.dot(self, other, out)  # type: ignore[no-any-return]

    def _extreme(self, axis: Any, largest: bool) -> tuple[Array, npt.NDArray[np.intp], tuple[int, ...]]:
        numbers, kept = self._merged(axis)
        if not numbers.shape[-1]:
            raise InputError(f"an Array of shape {self.shape} has no largest and no least number along axis {axis}. "
                             "Example: np.max(x) if x.size else 0")  # fmt: skip
        return numbers, ordering.argmax(numbers.codes, self.format, largest), kept

    def _picked(self, axis: Any, largest: bool, keepdims: bool) -> Array:
        numbers, place, kept = self._extreme(axis, largest)
        codes = np.take_along_axis(numbers.codes, place[..., None], -1)[..., 0]
        return self._like(codes.reshape(kept) if truth("keepdims", keepdims) else codes)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """The largest number; the first NaN where there is one."""
        return self._picked(axis, True, keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """The least number; the first NaN where there is one."""
        return self._picked(axis, False, keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Any:
        """The place of what ``max`` gives."""
        _, place, kept = self._extreme(axis, True)
        return place.reshape(kept) if truth("keepdims", keepdims) else place[()]

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Any:
        """The place of what ``min`` gives."""
        _, place, kept = self._extreme(axis, False)
        return place.reshape(kept) if truth("keepdims", keepdims) else place[()]

    def argsort(self, axis: int | None = -1, *, kind: Any = None, stable: Any = None) -> npt.NDArray[np.intp]:
        """Places in increasing order, equals as they stood, whatever ``kind`` says."""
        codes = self.codes.reshape(-1) if axis is None else np.moveaxis(self.codes, axis, -1)
        order = ordering.argsort(codes, self.format)
        return order if axis is None else np.moveaxis(order, -1, axis)

    def any(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Whether any number is not zero."""
        return ordering.is_true(self.codes, self.format).any(axis, keepdims=keepdims)

    def all(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Whether no number is zero."""
        return ordering.is_true(self.codes, self.format).all(axis, keepdims=keepdims)


_ASSIGNED = ", then elements assigned"


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
