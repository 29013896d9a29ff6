"""The page: facts as one HTML file that needs no network, reads in light and dark and goes by
keys."""

from __future__ import annotations

import importlib.resources
import json
import re
from typing import Any

from tilec import __version__
from tilec.explain import parts
from tilec.explain.facts import Facts
from tilec.sim.counts import LineCount
from tilec.support.rich import escape

_TOKEN = re.compile(
    r"(?P<c>#.*$)|(?P<s>\"[^\"]*\"|'[^']*')|(?P<d>\b\d[\w.]*)|"
    r"(?P<k>\b(?:def|with|as|for|in|if|elif|else|return|while|and|or|not|import|from|lambda|None|"
    r"True|False|pass|break|continue|assert|del|range)\b|^\s*@[\w.]+)"
)
FIRST = "tile"  # the stage that is shown first

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>{style}</style>
</head>
"""

_BODY = """<body>
<header>
<h1>{kernel}<span class="target">{target}</span></h1>
<p class="under">{under}</p>
<div class="cards">{cards}</div>
</header>
<nav aria-label="sections"><div>
<a href="#source-stages">Source and stages</a><a href="#schedule">Schedule</a>
<a href="#layouts">Layouts</a><a href="#resources">Resources</a><a href="#memory">Memory by line</a>
<a href="#configurations">Configurations</a><span class="space"></span>
<button id="theme" type="button">light or dark</button>
</div></nav>
<main>
<section id="source-stages"><h2>Source and stages</h2>
<noscript><p>Stages and layouts are drawn by a script, which is turned off here.</p></noscript>
<div class="panes">
<div class="pane"><div class="top"><strong>{file}</strong>
<span class="what">a dot: bank conflicts, or more sectors than the bytes need</span></div>
<div class="rows" id="source" role="listbox" tabindex="0" aria-label="source">{source}</div></div>
<div class="pane"><div class="top">
<button id="before" type="button" aria-label="stage before">&#9664;</button>
<select id="stages" aria-label="stage"></select>
<button id="after" type="button" aria-label="stage behind">&#9654;</button>
<span class="what" id="about"></span></div>
<div class="rows" id="stage" tabindex="0" role="group" aria-label="stage"></div></div>
</div>
<p class="told" id="status" aria-live="polite"></p>
<p class="keys"><kbd>&uarr;</kbd> <kbd>&darr;</kbd> in a pane: lines &nbsp;
<kbd>[</kbd> <kbd>]</kbd> stages &nbsp;
<kbd>n</kbd> <kbd>p</kbd> what became of the line, one after the other &nbsp;
<kbd>t</kbd> light or dark</p>
</section>
<section id="schedule"><h2>Schedule</h2>{schedule}</section>
<section id="layouts"><h2>Layouts</h2>{layouts}</section>
<section id="resources"><h2>Resources</h2>{resources}</section>
<section id="memory"><h2>Memory by line</h2>{memory}</section>
<section id="configurations"><h2>Configurations</h2>{configurations}</section>
</main>
<footer>Made by tilec {version}.</footer>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""

_LAYOUTS = """<p>Where each element of a tile lives: which thread holds it, in which of its elements
(T3:1 is element 1 of thread 3), or in which bank of shared memory. Click, or go with the arrow
keys.</p><div class="tabs" id="buffers" role="tablist" aria-label="buffers"></div>
<div class="facts" id="layout-facts"></div>
<div class="layout"><div><canvas id="tile" tabindex="0" role="img"
 aria-label="the tile, coloured; arrow keys move"></canvas>
<p><label>coloured <select id="way"></select></label></p></div>
<div><table class="zoom" id="zoom" aria-label="eight rows of sixteen elements"></table>
<p class="told" id="spot" aria-live="polite"></p></div></div>"""


def page(facts: Facts) -> str:
    """The whole file."""
    plan = facts.compiled.plan
    under = [f"plan {plan.describe()}"] if plan is not None else []
    under += [facts.shapes] if facts.shapes else []
    chosen = (f"{name}={value}" for name, value in facts.constants.items())
    under += [", ".join(chosen)] if facts.constants else []
    layouts = _LAYOUTS if facts.layouts else "<p>No tile has a layout on this target.</p>"
    title = f"{facts.kernel} for {facts.target.name}"
    return _HEAD.format(title=escape(title), style=_file("style.css")) + _BODY.format(
        kernel=escape(facts.kernel),
        target=escape(facts.target.name),
        under=escape("; ".join(under)),
        cards=parts.cards(facts),
        file=escape(facts.source.file),
        source=_source(facts),
        schedule=parts.schedule(facts),
        layouts=layouts,
        resources=parts.resources(facts),
        memory=parts.memory(facts),
        configurations=parts.configurations(facts),
        version=escape(__version__),
        data=as_script(_data(facts)),
        script=_file("script.js"),
    )


def _file(name: str) -> str:
    """A file of this package."""
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _data(facts: Facts) -> dict[str, Any]:
    """What the script draws from."""
    return {
        "stages": [
            {"name": s.name, "about": s.about, "lines": s.lines, "places": s.places}
            for s in facts.stages
        ],
        "layouts": facts.layouts,
        "first": FIRST,
        "line": _first_line(facts),
    }


def _first_line(facts: Facts) -> int:
    """The line that is selected first: that whose bank conflicts are many, else of a product, else
    that with most of the last stage."""
    counts = facts.report.counts.lines if facts.report is not None else []
    worst = max(counts, key=lambda c: c.conflicts, default=None)
    if worst is not None and worst.conflicts > worst.ideal_wavefronts:
        return worst.loc.line
    for one in facts.loops:
        for statement in one.statements:
            if statement.role == "product":
                return statement.line
    last = facts.stages[-1].places if facts.stages else ()
    inner = set(facts.source.lines) - {facts.source.head}
    places = [p for p in last if p in inner]
    return max(set(places), key=places.count) if places else min(facts.source.lines, default=0)


def as_script(content: Any) -> str:
    """JSON that may stand inside of a script element, whatever its texts hold."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _source(facts: Facts) -> str:
    """The lines of the function, with a dot where memory costs more than it need."""
    counts: dict[int, LineCount] = {}
    if facts.report is not None:
        counts = {c.loc.line: c for c in facts.report.counts.lines}
    rows = []
    for number, text in facts.source.lines.items():
        rows.append(
            f'<div class="row" role="option" id="L{number}" data-line="{number}">'
            f'<span class="n">{number}</span><span class="m">{_dot(counts.get(number))}</span>'
            f"<span>{highlighted(text)}</span></div>"
        )
    return "".join(rows) or "<p>The source cannot be read.</p>"


def _dot(count: LineCount | None) -> str:
    if count is None:
        return ""
    told = []
    if count.conflicts > 0:
        told.append(f"{count.conflicts:,} of {count.wavefronts:,} wavefronts are bank conflicts")
    if count.sectors > count.ideal_sectors:
        told.append(f"{count.sectors:,} sectors where {count.ideal_sectors:,} hold the bytes")
    if not told:
        return ""
    part = max(
        count.conflicts / max(count.wavefronts, 1),
        1 - count.ideal_sectors / max(count.sectors, 1) if count.sectors else 0.0,
    )
    words = escape("; ".join(told))
    return f'<i class="dot" style="--heat:{max(part, 0.15):.2f}" title="{words}"></i>'


def highlighted(text: str) -> str:
    """A line of Python as HTML; what stands in several lines (strings) is not followed."""
    made, at = [], 0
    for m in _TOKEN.finditer(text):
        made.append(escape(text[at : m.start()]))
        made.append(f'<span class="{m.lastgroup}">{escape(m[0])}</span>')
        at = m.end()
    return "".join(made) + escape(text[at:])
