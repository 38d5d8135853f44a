"""The models of tensor cores as web pages: one file each, light or dark, no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from numsim._version import __version__
from numsim.show import chips
from numsim.show.chips import Group
from numsim.tensorcore.chips import SOURCES, TITLES
from numsim.tensorcore.models import OUTPUTS, TYPES, Model
from numsim.tensorcore.names import list_models

# Okabe and Ito's blue and vermillion, each with enough contrast on its ground; cut bits are dashed, too.
_STYLE = """
:root{color-scheme:light dark;--ink:#1b1b1b;--soft:#555;--paper:#fff;--card:#f5f5f3;--line:#cfcfca;--kept:#0072b2;
--cut:#b84f00}
@media (prefers-color-scheme:dark){:root{--ink:#e8e8e6;--soft:#a8a8a4;--paper:#17181a;--card:#212326;--line:#43464a;
--kept:#56b4e9;--cut:#f0a050}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:70rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0;overflow-wrap:anywhere}h2{font-size:1.2rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:0 0 .3rem}
p{margin:.4rem 0}code{font:.85em ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.soft{color:var(--soft)}.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(19rem,100%),1fr));gap:.8rem}
.card{background:var(--card);border:1px solid var(--line);border-left:.3rem solid var(--soft);border-radius:.3rem;
padding:.7rem .9rem;font-size:.92rem}
.validated{border-left-color:var(--kept)}.single-source{border-left-style:dashed}.unverified{border-left-style:dotted}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem .8rem;margin:.5rem 0}dt{font-weight:600}
dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.25rem .7rem;text-align:right;
border-bottom:1px solid var(--line);white-space:nowrap}
th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}
figure{margin:.5rem 0 1.5rem}figcaption{max-width:44rem}
svg{display:block;width:100%;max-width:36rem;height:auto;margin:.5rem 0}svg text{fill:var(--ink);font-size:14px}
.kept{fill:var(--kept)}.lost{fill:none;stroke:var(--cut);stroke-dasharray:3 2}.edge{stroke:var(--cut);stroke-width:1.5}
.top{stroke:var(--soft);stroke-dasharray:2 3}
""".strip().replace("\n", "")


def page(chip: str | None = None, model: Model | None = None) -> str:
    """A page on all chips, on one, or on one instruction of one."""
    if model is not None:
        title, body = f"{model.instruction} on the {TITLES[model.chip]}", _instruction(model)
    elif chip is not None:
        title, body = f"{TITLES[chip]}: its tensor cores", _chip(chip)
    else:
        title, body = "Tensor cores that numsim models", _table()
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>\n<h1>{escape(title)}</h1>\n"
        f'{body}\n</main><p class="soft">numsim {__version__}</p></body></html>\n'
    )


# --- the three pages --------------------------------------------------------------------------------------------------
def _table() -> str:
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in chips.COLUMNS)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in chips.rows())
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>\n'
        f"{_paragraphs(chips.findings())}\n{_terms(chips.TABLE_LEGEND)}"
    )


def _chip(chip: str) -> str:
    models = list_models(chip)
    kinds: dict[str | int, Model] = {}  # drawn ones that cut as many bits look alike
    for m in models:
        if m.unit.path != "fma":
            kinds.setdefault(m.unit.fraction_bits if m.unit.path in _DRAWN else m.unit.path, m)
    blocks = [f"<p>{_code(m.instruction)}</p>{scheme(m) or _steps(m)}" for m in kinds.values()]
    parts = [f"<p>{escape(chips.summary(models))}.</p>", "<h2>One block</h2>", *blocks]
    cards = "\n".join(map(_card, chips.groups(chip)))
    parts += [f'<h2>Instructions</h2>\n<div class="cards">\n{cards}\n</div>', _paragraphs([chips.names(chip)]),
              "<h2>Words</h2>", _terms(chips.legend(models)), _sources(models)]  # fmt: skip
    recorded = any(m.evidence.recordings for m in models)
    return "\n".join([*parts, _paragraphs([*[chips.RECORDINGS] * recorded, chips.not_modelled(chip)])])


def _instruction(m: Model) -> str:
    how = [f"{m.evidence.level}: {chips.LEVELS[m.evidence.level]}."]
    how += [f"Recorded: {', '.join(m.evidence.recordings)}."] * bool(m.evidence.recordings)
    how += [f"Note: {m.evidence.note}."] * bool(m.evidence.note)
    others = chips.alike(m)
    return "\n".join([
        _terms(chips.facts(m)), "<h2>How it adds</h2>", scheme(m), _steps(m), "<h2>How we know</h2>",
        _paragraphs(how), _sources([m]), _paragraphs([f"Computed alike on {', '.join(others)}."] * bool(others)),
    ])  # fmt: skip


# --- parts ------------------------------------------------------------------------------------------------------------
def _card(group: Group) -> str:
    m, level = group.first, group.first.evidence.level
    unit = ", ".join([" ".join(p) for p in group.parameters] + [f"path {m.unit.path}"])
    facts = [("chain", group.chains), ("unit", unit), ("output", OUTPUTS[m.unit.output]), ("evidence", level)]
    facts += [("recorded", ", ".join(group.recordings))] * bool(group.recordings)
    facts += [("note", m.evidence.note)] * bool(m.evidence.note)
    facts += [("sources", ", ".join(group.sources))] * bool(group.sources)
    names = "".join(f"<p>{_code(name)}</p>" for name in group.names)
    title = escape(f"{group.operands} → {group.result}")
    return f'<section class="card {level}"><h3>{title}</h3>{names}{_terms(facts)}</section>'


def _steps(m: Model) -> str:
    return "<ol>" + "".join(f"<li>{escape(step)}</li>" for step in chips.steps(m)) + "</ol>"


def _terms(pairs: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs) + "</dl>"


def _paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"<p>{escape(t)}</p>" for t in texts)


def _code(text: str) -> str:
    return f"<code>{escape(text).replace('.', '.<wbr>')}</code>"


def _sources(models: Sequence[Model]) -> str:
    used = {s for m in models for s in m.evidence.sources}
    return "<h2>Sources</h2>" + _terms((k, t) for k, t in SOURCES.items() if k in used) if used else ""


# --- the scheme of a block --------------------------------------------------------------------------------------------
_DRAWN = ("block", "groups", "fp8-as-fp16")
_WIDTH, _LEFT, _ROW = 480, 105, 30
_OUT = {"rz-fp32": 24, "rz-e8m13": 14, "rne-fp16": 11}  # significand bits that are left


def scheme(m: Model) -> str:
    """Terms of a block, aligned to 2^E, cut F bits below it, added and rounded, as bars of as many bits as they have.

    The shifts are an example; widths and F are the record's. Empty for units that do not align to a largest exponent.
    """
    if m.unit.path not in _DRAWN:
        return ""
    f = m.unit.fraction_bits
    if m.unit.path == "groups":  # 16 products of up to 36 in quarters, times significands of 4 bits each
        names, fine = ["group 1", "group 2", f"group {m.k // 16}"], m.scale == "ue4m3"
        bits, lead = 12 + 8 * fine, 9 + 2 * fine
    else:
        names = ["a0 · b0", "a1 · b1", f"a{min(m.k, m.unit.length) - 1} · b{min(m.k, m.unit.length) - 1}"]
        bits = 22 if m.unit.path == "fp8-as-fp16" else TYPES[m.a].precision + TYPES[m.b].precision
        lead = 1  # a product can be 2 and more
    terms = [
        (name, shift - lead, bits) for name, shift in zip(names, (0, f // 3, f + lead - 2 * bits // 3), strict=True)
    ]
    terms.append(("c", 2, TYPES[m.c].precision))
    behind = max(at + wide - f for _, at, wide in terms)  # the cut
    bit = (_WIDTH - _LEFT) / (lead + 2 + f + max(behind + 1, 8))  # 8: room for the label
    top = _LEFT + (lead + 2) * bit
    edge, bottom = top + f * bit, 40 + 4 * _ROW
    parts = [_bar(name, n, top + at * bit, wide * bit, edge) for n, (name, at, wide) in enumerate(terms)]
    for kind, x, label in (("top", top, "2^E"), ("edge", edge, f"2^(E-{f}): cut")):
        parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="24" y2="{bottom + 50}"/>')
        parts.append(f'<text x="{x:.1f}" y="16" text-anchor="middle">{label}</text>')
    start = top - (lead + 1.5) * bit
    end = min(start + _OUT[m.unit.output] * bit, edge)
    parts += [_text("exact sum", bottom + 15), _rect("kept", start, edge - start, bottom + 2)]
    parts += [_text("d", bottom + 45), _rect("kept", start, end - start, bottom + 32)]
    parts += [_rect("lost", end, edge - end, bottom + 32)] * (end < edge)
    terms_of = "group sums" if lead > 1 else "products"
    what = (
        f"One block: {terms_of} of up to {bits} bits and c are aligned to the largest exponent E and cut {f} bits "
        f"below it; their exact sum is {OUTPUTS[m.unit.output]}."
    )
    svg = f'<svg viewBox="0 0 {_WIDTH} {bottom + 54}" role="img" aria-label="{escape(what)}">{"".join(parts)}</svg>'
    return f'<figure>{svg}<figcaption class="soft">{escape(what)} Dashed: bits that are lost.</figcaption></figure>'


def _bar(name: str, row: int, x: float, width: float, edge: float) -> str:
    """A term: what is kept, and what lies behind the cut."""
    y, end = 30 + row * _ROW, x + width
    parts = [_text(name, y + 13), _rect("kept", x, min(end, edge) - x, y)]
    if end > edge:
        parts.append(_rect("lost", edge, end - edge, y))
    return "".join(parts)


def _text(text: str, y: float) -> str:
    return f'<text x="0" y="{y:.0f}">{escape(text)}</text>'


def _rect(kind: str, x: float, width: float, y: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="16" rx="2"/>'
