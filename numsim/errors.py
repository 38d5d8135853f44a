"""The errors of numsim: one small family.

Every message shows what was passed, what is allowed, and a call that works. Each class also inherits the built-in
error that a caller would expect, so ``except ValueError`` keeps working.
"""


def short(x: object) -> str:
    """A value as an error message shows it: its repr, cut where it is long."""
    try:
        text = repr(x)
    except Exception:
        text = f"<{type(x).__name__}>"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


class NumsimError(Exception):
    """Base of everything that numsim raises on purpose."""


class FormatError(NumsimError, ValueError):
    """An unknown or impossible number format."""


class InputError(NumsimError, ValueError):
    """A value, code, shape, option or file that breaks a stated rule."""


class RangeError(NumsimError, OverflowError):
    """A result that the asked-for type cannot hold."""


class RecordError(InputError):
    """A file that is damaged, hostile or not a numsim record."""


class UnavailableError(NumsimError, RuntimeError):
    """Something that cannot run here; the message says what is missing."""
