"""A suite's record held against numsim, as one web page: verdicts, differences, what is missing, pictures.

The page is light or dark as the reader's system is; nothing is loaded from elsewhere, and there is no script. Okabe and
Ito's blue and vermillion have a sign beside them wherever they say something.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numsim import files
from numsim._version import __version__
from numsim.errors import UnavailableError, check_choice
from numsim.machines import list_machines
from numsim.machines.recorded import Record
from numsim.show import suite_text
from numsim.show.suite_text import table_lines

if TYPE_CHECKING:
    from numsim.suites.suite import Row, Suite

__all__ = ["page", "table_lines", "write"]

MARKS = {
    "same": "✓",
    "documented": "≈",
    "bounded": "∼",
    "undecided": "?",
    "differs": "✗",
    "told": "·",
    "failed": "!",
    "skipped": "–",
}

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1b1b;--soft:#555;--paper:#fff;--card:#f5f5f3;--line:#cfcfca;--good:#0072b2;
--bad:#b84f00}
@media (prefers-color-scheme:dark){:root{--ink:#e8e8e6;--soft:#a8a8a4;--paper:#17181a;--card:#212326;--line:#43464a;
--good:#56b4e9;--bad:#f0a050}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:60rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0;overflow-wrap:anywhere}h2{font-size:1.2rem;margin:2rem 0 .5rem}
p,ul{margin:.4rem 0;overflow-wrap:anywhere}code,pre{font:.85em/1.5 ui-monospace,Menlo,Consolas,monospace;
overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--line);border-radius:.3rem;padding:.5rem .8rem;white-space:pre-wrap}
.soft{color:var(--soft)}
.verdict{background:var(--card);border:1px solid var(--line);border-left:.3rem solid var(--good);
border-radius:.3rem;padding:.7rem .9rem;font-size:1.1rem}
.verdict.differs,.verdict.failed{border-left-color:var(--bad);border-left-style:double;border-left-width:.45rem}
dl{display:grid;grid-template-columns:minmax(6rem,max-content) 1fr;gap:.15rem .8rem;margin:.5rem 0;font-size:.92rem}
dt{font-weight:600;overflow-wrap:anywhere}dd{margin:0;overflow-wrap:anywhere;min-width:0}
table{border-collapse:collapse;width:100%;font-size:.92rem}tr{border-bottom:1px solid var(--line)}
th,td{padding:.25rem .7rem .25rem 0;text-align:left;vertical-align:top}td{overflow-wrap:anywhere}
th.number,td.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
@media (min-width:38rem){td:first-child{min-width:14rem}}
@media (max-width:38rem){tr{display:grid;grid-template-columns:1fr 6rem 4rem}
th:last-child,td:last-child{grid-column:1/-1}}
.mark{display:inline-block;width:1.3em;font-weight:700;color:var(--good)}
.differs .mark,.failed .mark{color:var(--bad)}.skipped .mark,.told .mark{color:var(--soft)}
summary{cursor:pointer}details ul{padding-left:1.2rem}
figure{margin:.5rem 0 1.5rem}figure svg{display:block;width:100%;max-width:46rem;height:auto;background:#fff;
border-radius:.3rem}
figcaption{color:var(--soft);max-width:46rem}
""".strip().replace("\n", "")


def page(suite: Suite, record: Record, rows: Sequence[Row], style: str = "page") -> str:
    """One HTML file: question, machine, verdicts, differences, what is missing and why, pictures, how to do it again.

    style : "page" or "slide", of the pictures. Without matplotlib there are none, and the page says so.
    """
    check_choice("style", style, ("page", "slide"), "style='slide'")
    title = f"{suite.title}: {record.provenance.get('device') or record.machine}"
    held, notes = suite_text.evidence(record), suite.notes(record, rows)
    parts = [
        f"<h1>{escape(title)}</h1>", f"<p>{escape(suite.question)}</p>", _banner(suite, record, rows),
        f"<p>{escape(held)}</p>" * bool(held), "<h2>Verdicts</h2>",
        _table(rows), _items(map(escape, notes)) if notes else "",
        "".join(f'<p class="soft">{escape(words)}.</p>' for words in suite.words),
        _differences(rows), _missing(record, rows),
        *_pictures(suite, record, style),
        "<h2>The machine</h2>", _terms(_facts(record)), _again(suite, record),
    ]  # fmt: skip
    if suite.sources:
        parts += ["<h2>Sources</h2>", _items(escape(s) for s in suite.sources)]
    body = "\n".join(p for p in parts if p)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        f'{body}\n</main><p class="soft">numsim {__version__}</p></body></html>\n'
    )


def write(path: Path | str, suite: Suite, record: Record, rows: Sequence[Row], style: str = "page") -> Path:
    """Write the page, whole or not at all.

    Raises ``InputError`` where that cannot be.
    """
    return files.write_atomic(path, page(suite, record, rows, style))


def _banner(suite: Suite, record: Record, rows: Sequence[Row]) -> str:
    kinds = {suite_text.outcome(row) for row in rows}
    worst = next(
        (k for k in ("differs", "failed", "undecided", "documented", "bounded", "same", "told") if k in kinds),
        "skipped",
    )
    if suite.lacks(record) and worst == "same":
        worst = "skipped"
    return f'<p class="verdict {worst}">{_mark(worst)}{escape(suite_text.headline(suite, record, rows))}</p>'


def _mark(kind: str) -> str:
    return f'<span class="mark" title="{escape(suite_text.WORDS[kind])}">{MARKS[kind]}</span>'


def _table(rows: Sequence[Row]) -> str:
    lines = []
    for group in suite_text.groups(rows):
        if group.outcome in suite_text.UNASKED:
            continue
        v = group.verdict
        counts = (f"{v.compared:,}", f"{v.differ:,}") if v.compared else ("–", "–")
        lines.append(
            f'<tr class="{group.outcome}"><td>{_names([row.part for row in group.rows], escape(group.name))}</td>'
            + "".join(f'<td class="number">{n}</td>' for n in counts)
            + f"<td>{_mark(group.outcome)}{escape(group.says)}</td></tr>"
        )
    heads = '<th scope="col">part</th><th scope="col" class="number">compared</th>'
    heads += '<th scope="col" class="number">differ</th><th scope="col">verdict</th>'
    kinds = {suite_text.outcome(row) for row in rows}.difference(suite_text.UNASKED)
    key = "; ".join(f"{MARKS[k]} {words}" for k, words in suite_text.WORDS.items() if k in kinds)
    body = "\n".join(lines)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table>\n" + (
        f'<p class="soft">{escape(key)}.</p>' if key else ""
    )


def _differences(rows: Sequence[Row]) -> str:
    """The first differences of each part that has some, and what the documented ones are."""
    found = []
    for name, (what, right) in suite_text.meanings(rows).items():
        counts = sum(n for row in rows for r, n in row.verdict.documented.items() if name in r.split(" + "))
        found.append(f"<p><strong>{escape(name)}</strong> ({counts:,}): {escape(what)}. {escape(right)}.</p>")
    for row in rows:
        if row.verdict.shown:
            many = suite_text.many(row.verdict.differ, "difference")
            first = f", the first {len(row.verdict.shown)}" * (len(row.verdict.shown) < row.verdict.differ)
            head = f"{_mark(suite_text.outcome(row))}{_code(row.part)}: {many}{first}"
            open_ = " open" * bool(row.verdict.unexplained)
            listed = "".join(
                f"<p>{_code(asked)}</p>{_items(f'<code>{escape(text)}</code>' for text in texts)}"
                for asked, texts in suite_text.by_question(
                    row.verdict.shown, row.verdict.machine, row.verdict.against
                ).items()
            )
            found.append(
                f'<details class="{suite_text.outcome(row)}"{open_}><summary>{head}</summary>{listed}</details>'
            )
    return "\n".join(["<h2>What differs</h2>", *found]) if found else ""


def _missing(record: Record, rows: Sequence[Row]) -> str:
    """What failed and what was not asked, by reason."""
    found = []
    for kind, head in (("failed", "What failed"), ("skipped", "What was skipped, and why")):
        told = []
        for why, parts in suite_text.reasons(rows, kind).items():
            told.append(f"{escape(why)}: {_names(parts, escape(suite_text.told_parts(parts)))}")
        for why, parts in suite_text.in_part(record, rows).items() if kind == "skipped" else ():
            told.append(f"{escape(why)}, in part: {_names(parts, escape(suite_text.told_parts(parts)))}")
        if told:
            found += [f'<h2>{head}</h2><div class="{kind}">{_items(_mark(kind) + text for text in told)}</div>']
    return "\n".join(found)


def _facts(record: Record) -> list[tuple[str, str]]:
    """Everything that the record says of where it comes from."""
    switches = {True: "yes", False: "no"}
    facts = [
        (name.replace("_", " "), switches[value] if isinstance(value, bool) else str(value))
        for name, value in record.provenance.items()
    ]
    return [*facts, ("recorded with", f"numsim {record.numsim}"), ("questions", f"{len(record.answers):,}"),
            ("digest of inputs", record.inputs)]  # fmt: skip


def _again(suite: Suite, record: Record) -> str:
    machine = record.machine if record.machine in [m.name for m in list_machines()] else "cuda"
    return (
        "<h2>Check it yourself</h2>\n<p>Anywhere, without a GPU, from the record:</p>\n"
        "<pre>numsim check FILE.npz</pre>\n<p>On a machine of your own:</p>\n"
        f"<pre>numsim record --suite {escape(suite.name)} --machine {machine}</pre>\n"
        "<h2>Send it</h2>\n<p>A record of a chip that numsim has none of is evidence, and one that differs is news: "
        "open an issue on numsim's repository, attach the .npz file, and paste what <code>numsim doctor</code> prints. "
        "The record holds what stands under “The machine”, the questions and the results; no user name, no path.</p>"
    )


# --- parts ------------------------------------------------------------------------------------------------------------
def _terms(pairs: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs) + "</dl>"


def _items(texts: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{text}</li>" for text in texts) + "</ul>"


def _names(parts: Sequence[str], head: str) -> str:
    """Parts by name; many of them folded below a head (HTML)."""
    if len(parts) <= 2:
        return ", ".join(map(_code, parts))
    return f"<details><summary>{head}</summary>{_items(map(_code, parts))}</details>"


def _code(text: str) -> str:
    return f"<code>{escape(text).replace('.', '.<wbr>')}</code>"


def _pictures(suite: Suite, record: Record, style: str) -> list[str]:
    """The suite's figures as inline SVG, each with its text alternative below it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a sign that the font lacks
            drawn = [
                (_svg(figure, n, alt), _caption(figure, alt))
                for n, (_, figure, alt) in enumerate(suite.draw(record, style))
            ]
    except (
        ImportError,
        UnavailableError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
    ) as error:
        # a record may be well formed and say nonsense
        what = "matplotlib does not load here" if isinstance(error, ImportError) else "they cannot be drawn"
        return ["<h2>Pictures</h2>", f"<p>No picture: {what} ({escape(str(error)[:200])}).</p>"]
    shown = [
        f"<figure>{svg}{f'<figcaption>{escape(caption)}</figcaption>' * bool(caption)}</figure>"
        for svg, caption in drawn
    ]
    return ["<h2>Pictures</h2>", *shown] if shown else []


def _caption(figure: Any, alt: str) -> str:
    """The alternative text but for what stands over the picture."""
    title = " ".join(figure.get_suptitle().split())
    rest = " ".join(alt.split()).removeprefix(title).lstrip(".:; ") if title else alt
    return rest[:1].upper() + rest[1:]


def _svg(figure: Any, number: int, alt: str) -> str:
    """A figure as an element of a page: names of its own, no namespaces, no metadata."""
    from numsim.show.style import settings

    buffer = io.StringIO()
    with settings(getattr(figure, "look", "page")):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1picture{number}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1).rstrip()
