"""What may be changed in a program that is written: its schedule, fixed, how often its loops run,
said by the call, and where its tiles are made. The choices have random numbers of their own."""

from __future__ import annotations

import re

import numpy as np

from tilec.fuzz.writer import Writer

_COUNTED = re.compile(r"^(\s*for \w+ in (?:range|T\.serial|T\.Pipelined)\()(\d+)(?=\)|, \w+=)")


_MADE = re.compile(r"(\w+) = T\.alloc_(?:shared|fragment)\(")
_LOOP = re.compile(r"\s*(?:while |for .* in (?!T\.Parallel|T\.vectorized))")


def made_in_loops(w: Writer, rng: np.random.Generator) -> None:
    """A tile that one loop uses, and fills before all else, is made in that loop."""
    for line in w.head.copy():
        name = found[1] if (found := _MADE.match(line)) else ""
        word = re.compile(rf"\b{name}\b")
        uses = [k for k, text in enumerate(w.lines) if word.search(text)]
        if not name or not uses or sum(bool(word.search(text)) for text in w.head) > 1:
            continue
        fills = rf"T\.(copy\(.*, {name}[,)]|(clear|fill)\({name}\b)"
        loop = _innermost(w.lines, uses)
        if loop is None or not re.match(fills, w.lines[uses[0]].strip()) or rng.random() < 0.4:
            continue
        w.head.remove(line)
        w.lines.insert(loop + 1, " " * (_indent(w.lines[loop]) + 4) + line)
        w.words.append("made_in_loop")


def _innermost(lines: list[str], uses: list[int]) -> int | None:
    """The line of the innermost loop, none over elements, that all these lines stand in."""
    for k in range(uses[0] - 1, -1, -1):
        inside = all(_indent(text) > _indent(lines[k]) for text in lines[k + 1 : uses[-1] + 1])
        if inside and _LOOP.match(lines[k]):
            return k
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def forced(w: Writer, rng: np.random.Generator) -> None:
    """Leaves programs as they are whose schedule is fixed already."""
    if any("use_swizzle" in line or "annotate_schedule" in line for line in w.head):
        return
    if rng.random() < 0.4:
        _trips(w, rng)
    if any("T.Pipelined" in line for line in w.lines) and rng.random() < 0.4:
        _schedule(w, rng)


def _trips(w: Writer, rng: np.random.Generator) -> None:
    """A loop of a known number of iterations has 0, 1 or 2, which only the call knows."""
    for at, line in enumerate(w.lines):
        found = _COUNTED.match(line)
        if found and rng.random() < 0.7:
            name = w.name("n")
            w.parameters[name] = "T.int32"
            w.arguments[name] = int(rng.integers(min(2, int(found[2])) + 1))
            w.lines[at] = f"{found[1]}{name}{line[found.end() :]}"
            w.words.append("trips")


def _schedule(w: Writer, rng: np.random.Generator) -> None:
    """Producer warps, and all that may be chosen with them."""
    choices = [
        "persistent=True",
        f"stages={rng.integers(2, 6)}",
        f'store="{rng.choice(("tma", "direct"))}"',
        f"panel={rng.integers(1, 5)}",
    ]
    if w.products:
        if w.threads == 128:
            choices.append('consumers="pingpong"')
        if not w.columns % 2:
            choices += ["cluster=2"] * 2
        if not w.rows % 2:
            choices += ["cluster=(1, 2)"] * 2
    count = int(rng.integers(4))
    picked = {text.split("=")[0]: text for text in rng.permutation(choices)[:count]}
    w.head.append(f"T.annotate_schedule({', '.join(['specialise=True', *picked.values()])})")
    w.words.append("forced_schedule")
