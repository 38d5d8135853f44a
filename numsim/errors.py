"""The errors of numsim: one small family.

Every message shows what was passed, what is allowed, and a call that works. Each class also inherits the built-in
error that a caller would expect, so ``except ValueError`` keeps working.
"""

from collections.abc import Iterable


def short(x: object) -> str:
    """A value as an error message shows it: its repr on one line, cut where it is long."""
    if isinstance(x, (str, bytes)) and len(x) > 80:
        return f"{x[:60]!r}... ({len(x)} characters)"
    try:
        text = " ".join(repr(x).split())
    except Exception:  # an integer of thousands of digits, or somebody's broken repr
        text = f"<{type(x).__name__}>"
    return text if len(text) <= 100 else f"{text[:80]}..."


def truth(name: str, flag: object) -> bool:
    """A flag as a bool. Raises ``InputError`` for what is neither, as an array of several numbers."""
    try:
        return bool(flag)
    except Exception:  # each library has its own
        raise InputError(f"{name}={short(flag)}: a flag is needed. Example: {name}=True") from None


class NumsimError(Exception):
    """Base of everything that numsim raises on purpose."""


class FormatError(NumsimError, ValueError):
    """An unknown or impossible number format."""


class InputError(NumsimError, ValueError):
    """A value, code, shape, option or file that breaks a stated rule."""


class UndefinedError(InputError, TypeError):
    """Something that NumPy's arrays can do and numsim's Arrays cannot; the message has a call that works."""


class RangeError(NumsimError, OverflowError):
    """A result that the asked-for type cannot hold."""


class RecordError(InputError):
    """A file that is damaged, hostile or not a numsim record."""


class UnavailableError(NumsimError, RuntimeError):
    """Something that cannot run here; the message says what is missing."""


def check_choice(name: str, value: object, allowed: Iterable[str], example: str = "") -> None:
    """Refuse an option that is not one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:  # (an array, compared with a word, has no truth)
        hint = f" Example: {example}" if example else ""
        raise InputError(f"{name}={short(value)}: allowed are {', '.join(allowed)}.{hint}")
