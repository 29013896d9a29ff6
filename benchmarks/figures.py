"""A figure for each result: an SVG beside its JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.report import peers_of, shown
from benchmarks.store import RESULTS, Row
from benchmarks.svg import Svg

_COLOURS = (
    "#1f77b4", "#d95f02", "#2a9d5c", "#8e5ea2", "#666666", "#c23b6b", "#b8a000", "#17becf",
)  # fmt: skip
_LABELS, _PLOT, _LINE = 250, 470, 17  # pixels


def draw(name: str, folder: Path = RESULTS) -> Path | None:
    """Draw results `name`.json in `folder`; None if there is nothing to draw."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    rows: list[Row] = json.loads(path.read_text())["rows"]
    if not rows:
        return None
    form = ratios if "candidates" in rows[0] else stacks if "seconds" in rows[0] else bars
    picture = form(name, rows)
    target = path.with_suffix(".svg")
    target.write_text(picture.text_of())
    return target


def ratios(name: str, rows: Sequence[Row]) -> Svg:
    """tilec's ratio to each peer, a line per row: filled HOT, hollow STEADY; a whisker from the
    10th to the 90th percentile of the rounds."""
    rows = [shown(row) for row in rows]
    peers = peers_of(rows)
    found = [
        (r, p, m, row["candidates"][p][f"{m}_ratio"])
        for r, row in enumerate(rows)
        for p in peers
        for m in ("hot", "steady")
        if f"{m}_ratio" in row["candidates"].get(p, {})
    ]
    values: list[float] = [f["median"] for *_, f in found]
    low, high = min([0.9, *values]) - 0.02, max([1.1, *values]) + 0.02
    top, height = 58, _LINE * len(rows)
    svg = Svg(_LABELS + _PLOT + 20, top + height + 34)
    svg.text(10, 20, f"{name}: throughput of tilec over that of its peers", size=14, bold=True)
    for i, peer in enumerate(peers):
        svg.dot(16 + 120 * i, 38, 4, _COLOURS[i % len(_COLOURS)])
        svg.text(25 + 120 * i, 42, peer)
    svg.text(_LABELS + _PLOT, 42, "filled: HOT, hollow: STEADY", anchor="end")

    def x(value: float) -> float:
        return _LABELS + _PLOT * (value - low) / (high - low)

    _axis(svg, x, low, high, top, height)
    for r, row in enumerate(rows):
        svg.text(_LABELS - 8, top + _LINE * r + 12, row["case"], anchor="end")
    for r, peer, mode, figure in found:
        i = peers.index(peer)
        colour = _COLOURS[i % len(_COLOURS)]
        y = top + _LINE * r + 8 + (i - (len(peers) - 1) / 2) * 3
        ends = (min(max(figure[q], low), high) for q in ("p10", "p90"))
        if mode == "hot":
            svg.line(x(next(ends)), y, x(next(ends)), y, colour, 1)
        svg.dot(x(figure["median"]), y, 3.2, colour, hollow=mode == "steady")
    return svg


def bars(name: str, rows: Sequence[Row]) -> Svg:
    """A bar per row: its median, or the ratio of rows that have one."""
    named = [(_title(row), float(row["ratio" if "ratio" in row else "median"])) for row in rows]
    unit = rows[0].get("unit", "ratio of throughput" if "ratio" in rows[0] else "")
    most = max(value for _, value in named) or 1.0
    labels, top = 340, 44
    svg = Svg(labels + _PLOT, top + _LINE * len(rows) + 12)
    svg.text(10, 20, f"{name} ({unit})", size=14, bold=True)
    for r, (title, value) in enumerate(named):
        y = top + _LINE * r
        svg.text(labels - 8, y + 11, title, anchor="end")
        svg.box(labels, y + 2, (_PLOT - 70) * value / most, _LINE - 5, _COLOURS[0])
        svg.text(labels + (_PLOT - 70) * value / most + 5, y + 11, f"{value:.3g}")
    return svg


def stacks(name: str, rows: Sequence[Row]) -> Svg:
    """A bar per row: its seconds, by part (the numbers whose names end in "_s")."""
    parts = [key for key in rows[0] if key.endswith("_s")]
    most = max(row["seconds"] for row in rows) or 1.0
    labels, top = 340, 64
    svg = Svg(labels + _PLOT, top + _LINE * len(rows) + 12)
    svg.text(10, 20, f"{name} (seconds)", size=14, bold=True)
    for i, part in enumerate(parts):
        svg.box(16 + 90 * i, 34, 9, 9, _COLOURS[i % len(_COLOURS)])
        svg.text(30 + 90 * i, 42, part.removesuffix("_s"))
    for r, row in enumerate(rows):
        x, y = float(labels), top + _LINE * r
        svg.text(labels - 8, y + 11, _title(row), anchor="end")
        for i, part in enumerate(parts):
            width = (_PLOT - 70) * row[part] / most
            svg.box(x, y + 2, width, _LINE - 5, _COLOURS[i % len(_COLOURS)])
            x += width
        svg.text(x + 5, y + 11, f"{row['seconds']:.3g}")
    return svg


def _title(row: Row) -> str:
    if "what" in row:
        return str(row["what"])
    return "x".join(str(row[key]) for key in ("m", "n", "k"))


def _axis(
    svg: Svg, x: Callable[[float], float], low: float, high: float, top: int, height: int
) -> None:
    step = next(s for s in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100) if (high - low) / s <= 12)
    tick = step * -(-low // step)
    while tick <= high:
        one = abs(tick - 1) < 1e-9
        svg.line(x(tick), top, x(tick), top + height, "#333" if one else "#ddd", 1)
        svg.text(x(tick), top + height + 16, f"{tick:.2f}", anchor="middle")
        tick += step
