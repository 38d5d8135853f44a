"""numsim's docstrings as reStructuredText: what the house writes in lines of text becomes fields, lists and links."""

import inspect
import os
import re
from pathlib import Path

HERE = Path(__file__).parent
FIELDS = r"Rules(?: and parameters)?|Parameters|Events|Series|Cost[^:.]{0,30}|Source"
LEAD = re.compile(rf"(?P<label>{FIELDS}): +|(?P<verb>Raises|Returns) +")
INLINE = re.compile(rf"(?<=[.;)]) (?=(?:{FIELDS}): |(?:Raises|Returns) (?:``|an? |the ))")  # ... in the midst of a line
ITEM = re.compile(r"(?:[^\s`:>(\".;*][^`:>\".;]{0,70}?|\w+\([\w, ]+\)) : ")
NEXT = re.compile(r"(?<=[.;)]) (?=[a-z_]\w*(?:, \w+)* : )")  # items that share a line
MARKUP = re.compile(r"(``.*?``)|(?<!\w)\|(?=\w)|(?<=\w)\|(?!\w)|(?<=[A-Za-z0-9])_(?=[\s,.;)])|(?<= )\*(?==)")
NDARRAY = re.compile(
    r"~?numpy\.ndarray\[tuple\[~?(?:typing\.)?Any, \.\.\.\], ~?numpy\.dtype\[[^\[\]]*(?:\[[^\[\]]*\])?\]\]"
)
DIRECTIVE = re.compile(r"^\.\. (?:auto|py:)\w+:: +((?:numsim[\w.]*\s*)+)", re.M)


def names():
    """Every name that has an entry on a page."""
    pages = (page.read_text("utf-8") for page in HERE.glob("**/*.rst"))
    return {name for page in pages for match in DIRECTIVE.finditer(page) for name in match[1].split()}


def plain(text):
    """What looks like a reference but is meant as it stands: ``|x|``, ``unscale_``, ``*=``."""
    return MARKUP.sub(lambda match: match[0] if match[1] else "\\" + match[0], text)


def items(lines):
    """``name : text`` in lines as a list; a line that starts none goes on with the one before."""
    text = " ".join("\0" + line if ITEM.match(line) else line.strip() for line in lines)
    for item in NEXT.sub("\0", text).lstrip("\0").split("\0"):
        name, colon, text = item.partition(" : ")
        yield plain(f"* **{name.strip()}**: {text.strip()}" if colon else item)


def paragraph(lines):
    """One paragraph: fields where ``Rules:`` and its kin begin sentences, a list where ``name : text`` begins it."""
    if lines[0].startswith((">>>", "=", " ", "*", "-", "..")):
        return [*lines, ""]
    if ITEM.match(lines[0]):
        return [*items(lines), ""]
    out = []
    for line in INLINE.sub("\n", "\n".join(lines)).split("\n"):
        if match := LEAD.match(line):
            out += ["", f":{match['label'] or match['verb']}: {line[match.end() :]}"]
        elif line.startswith("Options"):
            out += ["", line]
        elif out and out[-1].startswith((":", "   ")):
            out.append("   " + line)
        else:
            out.append(line)
    return [*map(plain, out), ""]


def fields(lines):
    """A whole docstring. A section is a title, a line of dashes, and items up to an empty line."""
    out, i = [], 0
    while i < len(lines):
        end = next((j for j in range(i, len(lines)) if not lines[j].strip()), len(lines))
        block, i = lines[i:end], end + 1
        if len(block) > 2 and set(block[1]) == {"-"}:
            out += [f":{block[0]}:", *("   " + item for item in items(block[2:])), ""]
        elif block:
            out += paragraph(block)
    return out


def link(text, full, own, known):
    """Link ``name`` to its entry: as written, in the room it is spoken of in, in numsim; a ``Class`` wherever it is.

    A name is no link where it means a parameter or attribute first.
    """

    def entry(match):
        name, more = match[1].removesuffix("()"), "\\ " * bool(match[2])  # ``Array``s
        for room in ("", f"{full}.", f"{full.rpartition('.')[0]}.", "numsim."):
            if room + name in known and name not in own and room + name != full:
                return f":py:obj:`{name} <{room}{name}>`{more}"
        if name[0].isupper() and len(there := [entry for entry in known if entry.endswith(f".{name}")]) == 1:
            return f":py:obj:`{name} <{there[0]}>`{more}"
        return f"``{match[1]}``{more}"

    return re.sub(r"``([A-Za-z][\w.]*(?:\(\))?)``(?=(\w)?)", entry, text)


def own_words(obj):
    """What a name in an object's docstring means first: its parameters and attributes."""
    try:
        parameters = set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        parameters = set()
    return parameters | {name for name in vars(obj) if inspect.isclass(obj)} if hasattr(obj, "__dict__") else parameters


def on_docstring(app, what, full, obj, options, lines):
    own = own_words(obj)
    lines[:] = [link(line, full, own, app.numsim_names) for line in fields(lines)]


def on_signature(app, what, full, obj, options, signature, result):
    """Without ``: Any``, which says nothing, and modules; a default that has no name is three dots."""
    signature = re.sub(r": ~?(?:typing\.)?Any\b(?! \|)( = )?", lambda match: "=" if match[1] else "", signature or "")
    signature = NDARRAY.sub("~numpy.ndarray", signature)
    signature = re.sub(r"(?<![~\w.])numsim\.", "~numsim.", signature)
    return re.sub(r"= ?(?:<[^=]*>|mappingproxy\(.*?\)\)?)(?=[,)])", "= ...", signature) or None, NDARRAY.sub(
        "~numpy.ndarray", result or ""
    ) or None


def on_member(app, what, name, obj, skip, options):
    """Fields of a named tuple that nobody described are no entries."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def on_missing(app, env, node, content):
    """A name that is no class may be a type: Sphinx 8.1, the last for Python 3.10, looks for classes only."""
    if node.get("reftype") == "class" and node["reftarget"].startswith("numsim."):
        python = env.get_domain("py")
        return python.resolve_xref(env, node["refdoc"], app.builder, "obj", node["reftarget"], node, content)


def on_include(app, path, page, content):
    """Links of an included page to files beside it, as seen from the page that includes it: docs/ mirrors the root."""
    there = (HERE / path).resolve().parent
    here = HERE / there.relative_to(HERE.parent)

    def target(match):
        text, file = match[1], match[2]
        if (here / file).exists() or not (there / file).exists():
            return match[0]
        if file.endswith(".md"):  # for those who have the repository
            return f"{text} (`{(there / file).resolve().relative_to(HERE.parent)}`)"
        return f"[{text}]({os.path.relpath(there / file, here)})"

    content[0] = re.sub(r"\[([^\[\]]+)\]\(([^):#]+)\)", target, content[0])


def setup(app):
    app.numsim_names = names()
    app.connect("autodoc-process-docstring", on_docstring)
    app.connect("autodoc-process-signature", on_signature)
    app.connect("autodoc-skip-member", on_member)
    app.connect("missing-reference", on_missing)
    app.connect("include-read", on_include)
    return {"parallel_read_safe": True}
