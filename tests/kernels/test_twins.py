"""Every kernel has a reference: the twins of each room, paired in its ``TWINS``."""

import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from numsim import kernels

pytestmark = pytest.mark.skipif(kernels.why_not() is not None, reason=str(kernels.why_not()))

ROOMS = sorted(p.stem for p in Path(kernels.__file__).parent.glob("[a-z]*.py"))


def unpaired(room):
    """Public functions of a room that no reference stands for; those that answer yes or no compute nothing."""
    own = {n: f for n, f in vars(room).items() if callable(f) and not inspect.isclass(f) and not n.startswith("_")}
    own = {n: f for n, f in own.items() if f.__module__ == room.__name__}
    answers = {n for n, f in own.items() if inspect.get_annotations(f).get("return") == "bool"}
    return set(own) - answers - {kernel.__name__ for _, kernel in room.TWINS}


@pytest.mark.parametrize("name", ROOMS)
def test_kernels_are_paired(name):
    """With the function of the same name in the room of that name."""
    room = import_module(f"numsim.kernels.{name}")
    assert room.TWINS and unpaired(room) == set(), "these have no reference in TWINS"
    for reference, kernel in room.TWINS:
        assert reference.__module__.startswith("numsim." + name.partition("_")[0])
        assert kernel.__module__ == room.__name__
        assert reference.__name__ == kernel.__name__ and reference is not kernel


@pytest.mark.parametrize("compiled", [False, True])
def test_a_kernel_without_a_reference_is_found(compiled):
    from numsim.kernels._jit import jit

    def lonely(x):
        return x

    def asks(x) -> "bool":
        return True

    lonely.__module__ = asks.__module__ = "numsim.kernels.room"
    room = ModuleType("numsim.kernels.room")
    room.lonely, room.asks, room.TWINS = jit(lonely) if compiled else lonely, asks, []
    assert unpaired(room) == {"lonely"}
    room.TWINS = [(lonely, room.lonely)]
    assert unpaired(room) == set()
