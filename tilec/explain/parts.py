"""The sections of the page that need no script: what is drawn and tabled of the facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from tilec.explain.facts import Facts
from tilec.explain.schedule import Bar, Loop, Role, Statement
from tilec.sim.counts import Counts, LineCount
from tilec.support.rich import escape, time_text
from tilec.tune.table import HEAD, cells

COLOURS = 8  # of statements
LEFT, WIDTH, TOP = 150, 1180, 26  # pixels of a timeline: labels, all, axis
HEIGHT = {"ring": 13, "tensor": 28, "group": 24}
NARROWEST = 16  # pixels of a bar with words in it
LONGEST = 64  # characters of a line in a table


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table of cells that are HTML already."""
    sides = set(right)

    def row(cells: Sequence[str], tag: str) -> str:
        made = (
            f'<{tag} class="num">{c}</{tag}>' if i in sides else f"<{tag}>{c}</{tag}>"
            for i, c in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(row(r, "td") for r in rows)
    top = f"<thead>{row([escape(h) for h in head], 'th')}</thead>" if head else ""
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody></table></div>'


def line_link(line: int) -> str:
    """A button that selects a line of the source."""
    return f'<button class="line" data-line="{line}">line {line}</button>'


def bar(part: float, whole: float, label: str, kind: str = "") -> str:
    """A horizontal bar: so much of a whole, with words beside it."""
    share = 0.0 if whole <= 0 else min(100.0, 100 * part / whole)
    return (
        f'<div class="bar"><span class="fill {kind}" style="width:{share:.2f}%"></span></div>'
        f'<div class="bar-label">{escape(label)}</div>'
    )


# --- the head -------------------------------------------------------------------------------------


def cards(facts: Facts) -> str:
    """The figures that one looks at first."""
    r, t, chosen = facts.compiled.resources, facts.target, facts.chosen
    made: list[tuple[str, str, str, bool]] = []
    if chosen is not None and chosen.estimate is not None and t.kind != "cpu":
        e = chosen.estimate
        made.append(("predicted", time_text(e.seconds), f"bound by {e.limit}", False))
    if r.registers is not None:
        most = f"of {t.max_registers_per_thread} of a thread"
        made.append(("registers", str(r.registers), most, False))
        spilled = r.spilled_bytes or 0
        words = "memory traffic of every thread" if spilled else "all in registers"
        made.append(("spilled", f"{spilled:,} B", words, spilled > 0))
    if t.kind != "cpu":
        share = f"{r.shared_bytes / t.shared_bytes:.0%} of {t.shared_bytes:,} B"
        made.append(("shared memory", f"{r.shared_bytes:,} B", share, False))
    if r.blocks_per_sm is not None and t.residency is not None:
        part = r.blocks_per_sm * r.threads / t.residency.threads
        words = f"of {r.threads} threads: {part:.0%} of the threads it has room for"
        plural = "s" if r.blocks_per_sm != 1 else ""
        made.append(("a multiprocessor", f"{r.blocks_per_sm} block{plural}", words, False))
    if facts.report is not None:
        conflicts = sum(c.conflicts for c in facts.report.counts.lines)
        waves = sum(c.wavefronts for c in facts.report.counts.lines)
        plural = "s" if facts.report.blocks != 1 else ""
        words = f"of {waves:,} wavefronts, {facts.report.blocks} block{plural} simulated"
        made.append(("bank conflicts", f"{conflicts:,}", words, conflicts > waves / 10))
        faults = len(facts.report.findings)
        if faults:
            made.append(("faults", str(faults), "found by the simulator: see memory", True))
    return "".join(
        f'<div class="card{" bad" if bad else ""}"><h3>{escape(title)}</h3>'
        f"<p>{escape(value)}</p><small>{escape(words)}</small></div>"
        for title, value, words, bad in made
    )


# --- schedule -------------------------------------------------------------------------------------


def schedule(facts: Facts) -> str:
    """Roles, the loops over time, and the rest of a block."""
    if not facts.roles:
        return "<p>Code for the CPU has no schedule: its blocks are iterations of threads.</p>"
    parts = [roles(facts.roles, facts.target.warp_size)]
    parts += [loop(one, n) for n, one in enumerate(facts.loops)]
    if not facts.loops:
        parts.append("<p>No loop brings tiles ahead: a block does this, in order.</p>")
    if facts.outside:
        title = "Outside of these loops" if facts.loops else "Statements"
        rows = [(line_link(s.line), escape(s.text), clocks(s)) for s in facts.outside]
        parts.append(f"<h3>{title}</h3>")
        parts.append(table(("line", "statement", "clocks of a block"), rows, right=(2,)))
    return "".join(parts)


def roles(found: Sequence[Role], warp: int) -> str:
    """The warps of a block, and who does what."""
    boxes = []
    first = 0
    for k, role in enumerate(found):
        last = first + role.warps - 1
        name = f"warps {first} to {last}" if role.warps > 1 else f"warp {first}"
        more = f", {role.registers} registers of each thread" if role.registers else ""
        cells = '<i class="warp"></i>' * role.warps
        boxes.append(
            f'<div class="role r{k % 3}"><div class="warps">{cells}</div>'
            f"<strong>{escape(role.name)}</strong> <span>{name}{more}</span></div>"
        )
        first += role.warps
    threads = first * warp
    return f'<h3>A block of {threads} threads</h3><div class="roles">{"".join(boxes)}</div>'


def loop(one: Loop, number: int) -> str:
    """A loop: its timeline, what it keeps busy, its statements."""
    head = f"<h3>Loop at {line_link(one.line)} <code>{escape(one.text)}</code></h3>"
    second = dict(one.lanes).get("group 1", "")
    about = (
        "<p>A model: who waits for whom in the first iterations, in the clocks that predictions "
        "count with, not a measurement. A slot of a ring is first <em>filled</em> (asked for, on "
        "its way: hatched), then <em>full</em> until its readers are done. Numbers are iterations"
        f"{f', w1 is of {second}' if second else ''}; a thin line waits.</p>"
    )
    return head + about + timeline(one, number) + bounds(one) + statements(one)


def timeline(one: Loop, number: int) -> str:
    """The bars as SVG; the arrow keys go from one to the next."""
    top, at = TOP, {}
    labels = []
    for lane, name in one.lanes:
        height = HEIGHT[lane.split(" ")[0]]
        at[lane] = top, height
        size = ' class="small"' if height < 20 else ""
        labels.append(
            f'<text x="{LEFT - 10}" y="{top + height / 2 + 4:.0f}" text-anchor="end"{size}>'
            f"{escape(name)}</text>"
            f'<line class="lane" x1="{LEFT}" x2="{WIDTH}" y1="{top + height + 1}" '
            f'y2="{top + height + 1}"/>'
        )
        top += height + (3 if height < 20 else 7)
    scale = (WIDTH - LEFT - 10) / max(one.span, 1.0)
    bars = sorted(one.bars, key=lambda b: (b.kind == "wait", b.start))
    drawn = "".join(_bar(b, one, at[b.lane], scale) for b in bars if b.lane in at)
    hatch = (
        f'<defs><pattern id="hatch{number}" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" class="hatch"/></pattern>'
        "</defs>"
    )
    words = f"Timeline of the loop at line {one.line}: arrow keys go from bar to bar"
    return (
        f'<div class="scroll"><svg class="timeline" style="--hatch:url(#hatch{number})" '
        f'viewBox="0 0 {WIDTH} {top + 4}" role="group" tabindex="0" '
        f'aria-label="{escape(words)}">{hatch}{_axis(one.span, scale, top)}{"".join(labels)}{drawn}'
        f'</svg></div><p class="told" aria-live="polite">&nbsp;</p>'
    )


def _axis(span: float, scale: float, bottom: int) -> str:
    """Ticks at round numbers of clocks."""
    step = 10.0
    while span / step > 10:
        step *= 2.5 if f"{step:g}"[0] == "2" else 2
    made, n = [], 0.0
    while n <= span:
        x = LEFT + n * scale
        made.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}"/>'
            f'<text class="small" x="{x:.1f}" y="{TOP - 10}" text-anchor="middle">{n:,.0f}</text>'
        )
        n += step
    return "".join(made) + f'<text class="small" x="8" y="{TOP - 10}">clocks</text>'


def _bar(b: Bar, one: Loop, place: tuple[int, int], scale: float) -> str:
    top, height = place
    s = one.statements[b.statement]
    x, width = LEFT + b.start * scale, max((b.end - b.start) * scale, 1.0)
    who = f"{dict(one.lanes)[f'group {b.group}']}, " if b.group >= 0 else ""
    turn = f"iteration {b.iteration}" if b.iteration >= 0 else "behind the loop"
    what = {"fill": "filled", "full": "full", "wait": "waits before"}.get(b.kind, "")
    told = f"{who}{turn}: {what} {s.text}" if b.kind != "wait" else f"{who}{turn}: waits"
    told += f", line {s.line}; clocks {b.start:,.0f} to {b.end:,.0f} ({b.end - b.start:,.0f})"
    colour = f"c{b.statement % COLOURS}" if b.kind != "wait" else ""
    group = f" g{b.group % 2}" if b.group >= 0 else ""
    line = f' data-line="{s.line}"' if b.kind != "wait" else ""
    y = float(top)
    if b.kind == "wait":
        y, height = top + height / 2 - 1, 2
    place_of = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="2"'
    made = f'<g class="b {b.kind} {colour}{group}"{line} data-told="{escape(told)}">'
    made += f"<rect {place_of}/>"
    if b.kind == "fill":
        made += f'<rect class="over" {place_of}/>'
    if width >= NARROWEST and height >= 20:
        words = f"{b.iteration}"
        who = f" w{b.group}" if b.lane == "tensor" and one.workers > 1 else ""
        for more in (who, f" {s.text}"):
            words += more if width >= 7 * len(words + more) + 6 else ""
        made += (
            f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" text-anchor="middle">'
            f"{escape(words)}</text>"
        )
    return f"{made}<title>{escape(told)}</title></g>"


def bounds(one: Loop) -> str:
    """How long an iteration keeps each unit busy; of an arranged loop, a warpgroup's stream."""
    longest = max([*one.bounds.values(), 1.0])
    a = one.arranged
    if a is not None:
        longest = max(longest, a.in_order)
    most = max(one.bounds, key=lambda u: one.bounds[u], default="")
    rows = [
        (escape(unit), bar(n, longest, f"{n:,.0f}", "most" if unit == most else ""))
        for unit, n in one.bounds.items()
    ]
    told = "How long an iteration of the whole block keeps each unit busy, in clocks."
    if a is not None:
        bound = "stream" if a.stream >= max(n for _, n in a.units) else most
        words = f"{a.stream:,} (in the order of the source {a.in_order:,})"
        rows.append(("one warpgroup's stream", bar(a.stream, longest, words)))
        told += (
            f" Iterations overlap, bound by <strong>{escape(bound)}</strong>; fragments take "
            f"{a.registers} registers of a thread."
        )
        told += " Warpgroups take turns at the tensor cores." if a.turns else ""
    return f"<h4>Bounds</h4><p>{told}</p>{_pairs(rows)}"


def _pairs(rows: Iterable[tuple[str, str]]) -> str:
    pairs = "".join(f"<div>{left}</div>{right}" for left, right in rows)
    return f'<div class="bounds">{pairs}</div>'


def statements(one: Loop) -> str:
    """The statements in the order in which an iteration does them."""
    rows = []
    for n in one.order:
        s = one.statements[n]
        notes = []
        if s.role == "ring":
            depth = f"{s.stages} slots" if s.stages > 1 else "1 slot"
            notes.append(f"{depth}, brought by {s.engine or 'threads'}")
        if s.stage:
            notes.append("of the iteration before")
        if s.flying >= 0:
            notes.append(f"at most {s.flying} products in flight before it")
        swatch = f'<i class="swatch c{n % COLOURS}"></i>'
        rows.append(
            (swatch + line_link(s.line), escape(s.text), clocks(s), escape("; ".join(notes)))
        )
    head = ("line", "statement", "clocks of 128 threads' part", "")
    return "<h4>Order of an iteration</h4>" + table(head, rows, right=(2,))


def clocks(s: Statement) -> str:
    """Units and their clocks, those that count."""
    said = [f"{unit} {n:,.0f}" for unit, n in s.clocks if n >= 1]
    return escape(", ".join(said) or "–")


# --- resources ------------------------------------------------------------------------------------


def resources(facts: Facts) -> str:
    """Registers, shared memory by buffer, what limits occupancy."""
    r, t = facts.compiled.resources, facts.target
    if t.kind == "cpu":
        return f"<p>{r.threads} thread of a block; tiles lie on its stack.</p>"
    parts = []
    if r.registers is not None:
        most = t.max_registers_per_thread
        words = f"{r.registers} of {most}"
        spilled = f"{r.spilled_bytes or 0:,} bytes of each thread"
        rows = [("registers of a thread", bar(r.registers, most, words))]
        kind = "bad" if r.spilled_bytes else ""
        rows.append(("spilled", bar(r.spilled_bytes or 0, 1024, spilled, kind)))
        parts.append(_pairs(rows))
    else:
        parts.append("<p>No assembler was found: registers and spills are not known.</p>")
    parts.append(_shared(r.buffers, r.shared_bytes, t.shared_bytes))
    if facts.limits:
        least = min(facts.limits.values())
        whole = max(facts.limits.values())
        rows = [
            (
                escape(name),
                bar(n, whole, f"{n} block{'s' if n != 1 else ''}", "most" if n == least else ""),
            )
            for name, n in facts.limits.items()
        ]
        parts.append("<h3>Blocks that a multiprocessor has room for, by resource</h3>")
        parts.append(_pairs(rows))
    return "".join(parts)


def _shared(buffers: Mapping[str, int], used: int, limit: int) -> str:
    """Shared memory as one strip, buffer by buffer."""
    strips, rows = [], []
    for n, (name, size) in enumerate(sorted(buffers.items(), key=lambda x: -x[1])):
        colour = f"c{n % COLOURS}"
        told = f"{name}: {size:,} bytes"
        share = 100 * size / limit
        strips.append(
            f'<span class="{colour}" style="width:{share:.3f}%" title="{escape(told)}"></span>'
        )
        rows.append((f'<i class="swatch {colour}"></i>{escape(name)}', f"{size:,}"))
    sums = f"{used:,} of {limit:,} bytes"
    if sum(buffers.values()) > used:
        sums += "; buffers that are not needed at the same time share a place"
    return (
        f"<h3>Shared memory: {sums}</h3>"
        f'<div class="strip" role="img" aria-label="{escape(sums)}">{"".join(strips)}</div>'
        + (table(("buffer", "bytes"), rows, right=(1,)) if rows else "")
    )


# --- memory ---------------------------------------------------------------------------------------

_COUNTED = ("line", "source", "shared wavefronts", "conflicts", "global sectors", "excess",
            "bytes shared", "bytes global", "matrix flops", "special", "shuffles")  # fmt: skip


def memory(facts: Facts) -> str:
    """What each line costs, as the simulator has counted it."""
    report = facts.report
    if report is None:
        return f"<p>Nothing was counted: {escape(facts.uncounted)}.</p>"
    rows = list[tuple[str, ...]]()
    for c in report.counts.lines:
        text = (c.loc.source_line() or report.sources.get((c.loc.file, c.loc.line), "")).strip()
        short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
        code = f'<code title="{escape(text)}">{escape(short)}</code>'
        rows.append((line_link(c.loc.line), code, *_counts(c)))
    used = [n for n, column in enumerate(zip(*rows)) if n < 2 or any(column)]
    rows = [tuple(row[n] for n in used) for row in rows]
    told = (
        f"{report.blocks} of {report.launched} blocks, run thread by thread. A wavefront is an "
        "access of shared memory for up to 32 banks, a sector 32 bytes of global memory; what the "
        "same bytes would need side by side is the ideal."
    )
    found = ""
    if report.findings:
        alone = dataclasses.replace(report, counts=Counts())  # they are a table below
        found = f'<pre class="findings">{escape(alone)}</pre>'
    return f"<p>{told}</p>{found}{table([_COUNTED[n] for n in used], rows, right=range(2, 11))}"


def _counts(c: LineCount) -> tuple[str, ...]:
    excess = c.sectors - c.ideal_sectors
    ways = f" <small>{c.ways} ways</small>" if c.ways > 1 else ""
    shared = (c.shared_read + c.engine_shared_read, c.shared_written + c.engine_shared_written)
    outer = (c.global_read + c.engine_global_read, c.global_written + c.engine_global_written)
    flops = ", ".join(f"{n:,} {kind}" for kind, n in sorted(c.flops.items()))
    return (
        _number(c.wavefronts),
        _hot(c.conflicts, c.wavefronts) + (ways if c.conflicts else ""),
        _number(c.sectors),
        _hot(excess, c.sectors),
        _both(*shared),
        _both(*outer),
        escape(flops),
        _number(c.special),
        _number(c.shuffles),
    )


def _number(n: int) -> str:
    return f"{n:,}" if n else ""


def _both(read: int, written: int) -> str:
    return f"{read:,} / {written:,}" if read or written else ""


def _hot(n: int, of: int) -> str:
    """A cost that could be less, the warmer the larger its part."""
    if n <= 0:
        return ""
    return f'<span class="hot" style="--heat:{min(1.0, n / max(of, 1)):.2f}">{n:,}</span>'


# --- configurations -------------------------------------------------------------------------------


def configurations(facts: Facts) -> str:
    """What the plan was chosen from."""
    good = [r for r in facts.recommended if r.estimate is not None]
    bad = [r for r in facts.recommended if r.estimate is None]
    if not good and not bad:
        return "<p>Nothing was left open.</p>"
    chosen = facts.chosen
    rows = []
    for r in good:
        row = [escape(cell) for cell in cells(r)]
        if r is chosen:
            row[1] = f'<strong>{row[1]}</strong> <span class="tag">kept</span>'
        rows.append(row)
    made = table(HEAD, rows, right=(0, 3, 4, 5, 6, 7, 8, 9)) if rows else ""
    if bad:
        refused = [(escape(r.configuration), escape(r.reason)) for r in bad]
        made += f"<h3>Cannot run</h3>{table(('configuration', 'reason'), refused)}"
    return f"<p>Predicted, best first; nothing is measured here.</p>{made}"
