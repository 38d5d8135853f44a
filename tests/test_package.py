"""The package as a house: light to import, and imports that only go down."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import numsim

HOUSE = Path(numsim.__file__).parent
FLOORS = [  # from the ground up; a room may import rooms of its own floor and of those below
    {"_version", "errors", "events", "host", "format_record", "formats", "files", "wording"},
    {"values", "random", "codebooks", "codes", "kernels", "rounding"},
    {"arithmetic", "elementary", "ordering"},
    {"accumulate", "_function_tables"},
    {"array", "interop", "decimals", "operands", "operations", "elementwise", "functions", "reductions"},
    {"array_files", "array_protocols", "numpy_functions", "sum_trace", "traces", "expression"},
    {"testing"},
    {"explain", "explain_codebook", "data"},
    {"tensorcore"},
    {"gpu"},
    {"blocks"},
    {"scaling", "optimizers"},
    {"machines", "training"},
    {"experiments", "reveal", "show"},
    {"suites"},
    {"doctor", "cli", "__main__"},
]


def floor(module):
    room = module.split(".")[1]
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def imports(path):
    """Modules of numsim that a file imports when it is loaded (not within functions, not for types only)."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "numsim":
            if node.module == "numsim":
                yield from (f"numsim.{a.name}" for a in node.names)
            else:
                yield node.module


ROOMS = sorted(p for p in HOUSE.rglob("*.py") if p != HOUSE / "__init__.py")


@pytest.mark.parametrize("path", ROOMS, ids=lambda p: str(p.relative_to(HOUSE)))
def test_imports_go_down_only(path):
    own = "numsim." + ".".join(path.relative_to(HOUSE).with_suffix("").parts)
    limit = floor(own)
    if own.startswith("numsim.kernels."):  # twins stand beside their rooms, and are loaded by them when needed
        room = own.rpartition(".")[2].lstrip("_").partition("_")[0]
        limit = max(limit, floor(f"numsim.{room}")) if any(room in rooms for rooms in FLOORS) else limit
    up = [m for m in imports(path) if floor(m) > limit]
    assert not up, f"{own} imports {up} from above"


def test_import_is_light():
    code = "import sys, numsim; print(sorted({'torch', 'numba', 'matplotlib', 'ml_dtypes', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and done.stderr == ""


ON_DEMAND = ("blocks", "data", "experiments", "machines", "optimizers", "reveal", "scaling", "tensorcore", "testing")


@pytest.mark.parametrize("room", ON_DEMAND)
def test_a_room_is_loaded_when_it_is_first_used(room):
    code = (
        f"import sys, numsim; rooms = {{f'numsim.{{r}}' for r in {ON_DEMAND}}}; print(rooms & set(sys.modules), "
        f"{room!r} in dir(numsim), numsim.{room} is sys.modules['numsim.{room}'])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "set() True True"


def test_what_is_no_room_has_no_name():
    with pytest.raises(AttributeError, match="module 'numsim' has no attribute 'scalings'"):
        numsim.scalings  # noqa: B018


def test_machines_load_no_scalers():
    code = "import sys, numsim.machines.emulated; print([m for m in sys.modules if m.startswith('numsim.scaling')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_public_names_exist_once_and_have_docstrings():
    assert len(set(numsim.__all__)) == len(numsim.__all__)
    for name in numsim.__all__:
        thing = getattr(numsim, name)
        if callable(thing):
            assert (thing.__doc__ or "").strip(), name
