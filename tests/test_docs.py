"""The pages of the API: every public name on one of them, each with a docstring, functions with examples."""

import doctest
import inspect
import re
from collections import Counter
from functools import cached_property
from importlib import import_module
from pathlib import Path

import pytest

import numsim

DOCS = Path(__file__).parents[1] / "docs"
ROOMS = ["numsim", "numsim.suites", *(f"numsim.{n}" for n in numsim.__all__ if inspect.ismodule(getattr(numsim, n)))]
ENTRY = re.compile(r"^\.\. ((?:auto|py:)\w+):: +((?:numsim[\w.]*\s*)+)", re.MULTILINE)


def entries():
    """Every (directive, name) in the sources of the pages."""
    for page in sorted(DOCS.glob("**/*.rst")):
        for directive, names in ENTRY.findall(page.read_text("utf-8")):
            yield from ((directive, name) for name in names.split())


def find(name):
    room, _, own = name.rpartition(".")
    return getattr(import_module(room), own)


def public():
    """Every public name; what a room has from another one has the other's, and rooms are looked at apart."""
    seen = {}
    for room in ROOMS:
        for own in getattr(import_module(room), "__all__", ()):
            thing = getattr(import_module(room), own)
            if not inspect.ismodule(thing) and own != "__version__":
                seen.setdefault(id(thing), f"{room}.{own}")
    return sorted(seen.values())


PUBLIC = public()
FUNCTIONS = [name for name in PUBLIC if inspect.isfunction(find(name))]
CLASSES = [name for name in PUBLIC if inspect.isclass(find(name))]


def first_sentence(thing):
    text = inspect.getdoc(thing) or ""
    return re.match(r"[^.]*\S.*?[.:;]($|\s)", " ".join(text.split("\n\n")[0].split()))


def test_every_public_name_has_one_entry():
    count = Counter(name for _, name in entries())
    assert {name for name, n in count.items() if n > 1} == set()
    assert set(PUBLIC) - set(count) == set(), "add it to a page in docs/api"
    assert set(ROOMS) - set(count) == {"numsim"}, "a room has a page that begins with its docstring"


@pytest.mark.parametrize(("directive", "name"), list(entries()))
def test_every_entry_is_something_that_there_is_and_says_what(directive, name):
    thing = import_module(name) if directive == "automodule" else find(name)
    if directive in ("autofunction", "autoclass", "autoexception", "automodule"):
        assert first_sentence(thing), f"{name}: {inspect.getdoc(thing)!r}"


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_says_what_it_does(name):
    own = {k: v for k, v in vars(find(name)).items() if not k.startswith("_")}
    methods = {
        k: getattr(v, "__func__", v)  # of a class method or static method
        for k, v in own.items()
        if isinstance(v, (property, cached_property, classmethod, staticmethod))
        or (inspect.isfunction(v) and v.__name__ != "<lambda>")  # that is the default of a field
    }
    assert [k for k, v in methods.items() if not first_sentence(v)] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example_or_names_its_kin_that_has(name):
    """The rule: an example, or a public function in double backticks that has one."""
    text, room = inspect.getdoc(find(name)), name.rpartition(".")[0]
    kin = [f"{r}.{other}" for other in re.findall(r"``([a-z]\w*)``", text) for r in (room, "numsim")]
    assert ">>>" in text or any(">>>" in inspect.getdoc(find(k)) for k in kin if k in FUNCTIONS)


def test_the_examples_of_the_front_page():
    text = (DOCS / "index.md").read_text("utf-8").replace("[...]", "...")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(text.replace("```", ""), {}, "index.md", None, None)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=flags).run(test).failed == 0
