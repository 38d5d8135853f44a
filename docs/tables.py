"""Tables made from numsim's own data when the pages are built: ``.. numsim-table:: formats``."""

import contextlib
import io
import json
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import numsim
from numsim import blocks, experiments, machines, scaling, suites, tensorcore
from numsim.cli import COMMANDS, main
from numsim.rounding import NANS, OVERFLOWS, ROUNDINGS, SUBNORMALS


def _power(x):
    return f"2^{x.numerator.bit_length() - x.denominator.bit_length()}"  # of a power of two


def formats():
    yield "name", "bits", "exponent", "fraction", "bias", "largest", "least normal", "least", "specials", "source"
    for f in numsim.list_formats():
        fields = f.bits, f.exponent_bits, f.fraction_bits, f.bias
        limits = f"{float(f.max):.6g}", _power(f.least_normal), _power(f.least)
        yield f"``{f.name}``", *fields, *limits, f"``{f.specials}``", f.source


def options():
    yield "option", "allowed, the first by default"
    for name, words in {"rounding": ROUNDINGS, "overflow": OVERFLOWS, "subnormals": SUBNORMALS, "nan": NANS}.items():
        yield f"``{name}=``", ", ".join(f'``"{word}"``' for word in words)


def specials():
    yield "specials", "the top codes"
    for name, words in numsim.formats.SPECIALS.items():
        yield f"``{name}``", words


def codebooks():
    yield "name", "bits", "values", "ties", "source"
    for book in numsim.list_codebooks():
        values = ", ".join(f"{float(x):.4g}" for x in book.ordered)
        values = values if len(book.ordered) <= 16 else f"{book.ordered[0]} to {book.ordered[-1]}"
        yield f"``{book.name}``", book.bits, values, book.ties, book.source


def block_formats():
    yield "name", "element", "scale", "block", "rule", "bits a value", "source"
    for f in blocks.list_block_formats():
        block = "tensor" if f.block is None else "row" if f.block == (0,) else " x ".join(map(str, f.block))
        yield f"``{f.name}``", f.element.name, f.scale.name, block, f.rule, f"{f.bits_per_value:g}", f.source


def rules():
    yield "name", "scale", "what it does", "source"
    for name, rule in blocks.RULES.items():
        yield f"``{name}``", rule.scale.name, rule.what, rule.source


def chips():
    yield "chip", "instructions", "validated", "single-source", "unverified"
    for chip in tensorcore.list_chips():
        levels = [m.evidence.level for m in tensorcore.list_models(chip)]
        yield f"``{chip}``", len(levels), *(levels.count(x) for x in ("validated", "single-source", "unverified"))


def scalers():
    yield "name", "class"
    for name in scaling.list_scalers():
        yield f"``{name}``", f":py:obj:`numsim.scaling.{scaling.SYSTEMS[name].__name__}`"


def recipes():
    yield "name", "scaling", "what it is"
    for recipe in scaling.list_recipes():
        yield f"``{recipe.name}``", recipe.scaling, recipe.title


def questions():
    yield "name", "question"
    for name in experiments.list_experiments():
        yield f"``{name}``", experiments.get_experiment(name).question


def answerers():
    yield "name", "who answers"
    for machine in machines.list_machines():
        yield f"``{machine.name}``", machine.title


def suite_list():
    yield "name", "title", "question"
    for name in suites.SUITES:
        suite = suites.get_suite(name)
        yield f"``{name}``", suite.title, suite.question


def notebooks():
    yield "notebook", "what it is about"
    for path in sorted((Path(__file__).parents[1] / "tutorials").glob("*.ipynb")):
        first = "".join(json.loads(path.read_text("utf-8"))["cells"][0]["source"])
        title, _, text = first.strip().partition("\n")
        yield (
            f":download:`{title.lstrip('# ')} <../../tutorials/{path.name}>`",
            text.strip().partition("\n\n")[0].replace("`", "``"),
        )


TABLES = {
    "formats": formats, "specials": specials, "options": options,
    "codebooks": codebooks, "block formats": block_formats, "scale rules": rules, "chips": chips,
    "scalers": scalers, "recipes": recipes, "experiments": questions, "machines": answerers, "suites": suite_list,
    "notebooks": notebooks,
}  # fmt: skip


class Table(SphinxDirective):
    required_arguments, final_argument_whitespace = 1, True

    def run(self):
        rows = [[str(cell).strip() for cell in row] for row in TABLES[self.arguments[0]]()]
        text = ".. list-table::\n   :header-rows: 1\n\n"
        for row in rows:
            text += "".join(f"   {'* -' if i == 0 else '  -'} {' '.join(cell.split())}\n" for i, cell in enumerate(row))
        return [nodes.container("", *self.parse_text_to_nodes(text), classes=["table-wide"])]


class Help(SphinxDirective):
    """What ``numsim --help`` prints, and a section for each command."""

    def run(self):
        return [printed(), *map(section, COMMANDS)]


def section(command):
    name = f"numsim {command}"
    return nodes.section("", nodes.title("", name), printed(command), ids=[nodes.make_id(name)], names=[name])


def printed(*command):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return nodes.literal_block("", out.getvalue(), language="text")


def setup(app):
    app.add_directive("numsim-table", Table)
    app.add_directive("numsim-help", Help)
    return {"parallel_read_safe": True}
