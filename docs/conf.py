"""Settings of Sphinx. ``sphinx-build -W docs docs/_build`` makes the pages from the docstrings and the data."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # docstrings.py, tables.py

project = "numsim"
release = version = metadata.version("numsim")
extensions = ["sphinx.ext.autodoc", "myst_parser", "docstrings", "tables"]
exclude_patterns = ["_build"]

smartquotes = False

html_theme = "furo"
html_title = f"numsim {release}"
html_static_path = ["_static"]
html_css_files = ["numsim.css"]
html_copy_source = False
html_show_copyright = False
pygments_style, pygments_dark_style = "friendly", "github-dark"
templates_path: list[str] = []

myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True  # as written, not the repr of a value
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    **{name: f"numsim.rounding.{name}" for name in ("Rounding", "Overflow", "Subnormals", "Nan")},
    "Order": "numsim.accumulate.Order",
}
python_display_short_literal_types = True
maximum_signature_line_length = 88  # longer ones: a parameter a line
toc_object_entries_show_parents = "hide"

# Every name of numsim's in a signature or a text is on some page, but for what results are made of inside.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(typing|collections|numpy|np|npt|pathlib|fractions|st|hypothesis)\..*"),
    ("py:class", "Tensor"),
    ("py:class", r"numsim\.(values\.Rational|explain\.(Elsewhere|Place)|accumulate\.Plan|random\.Draw)"),
    ("py:class", r"numsim\.(sum_trace\.Addition|blocks\.explain\.(ScaleStep|Block)|tensorcore\.operands\.Note)"),
    ("py:class", r"numsim\.tensorcore\.(block\.(Link|Sum)|explain\.\w+)"),
]
