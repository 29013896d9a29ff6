"""Tables of ratios, from rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.store import BEST, OURS, Row
from benchmarks.timing import geometric_mean


def shown(row: Row) -> Row:
    """The row as tables and figures have it: where the baseline is the best of all others, these
    are one candidate, BEST, with the "config" of the best HOT."""
    others = {n: c for n, c in row["candidates"].items() if n != OURS and "hot_ratio" in c}
    if row["baseline"] != BEST or not others:
        return row
    made: Row = {}
    for mode in row["modes"]:
        # the least ratio to tilec is the fastest
        name = min(others, key=lambda n: others[n][f"{mode}_ratio"]["median"])
        made[f"{mode}_ratio"] = others[name][f"{mode}_ratio"]
        made.setdefault("config", name)
        made.setdefault("error", others[name]["error"])
    kept = {n: c for n, c in row["candidates"].items() if n == OURS}
    return {**row, "candidates": {**kept, BEST: made}}


def table(rows: Sequence[Row], modes: Sequence[str] = ("hot", "steady")) -> str:
    """One line per row: tilec's rate, then its ratio to each peer (more than 1: tilec is faster)
    with half the distance between the 10th and 90th percentile of the rounds; below, for each
    column the geometric mean and the least."""
    rows = [shown(row) for row in rows]
    peers = peers_of(rows)
    columns = [(peer, mode) for peer in peers for mode in modes]
    head = ["", *(f"tilec {mode} T/s" for mode in modes)]
    head += [f"/{peer} {mode}" for peer, mode in columns]
    head += ["error", *(f"{peer}'s" for peer in peers[:1])]
    body = [_line(row, modes, columns, peers) for row in rows]
    foot = []
    for label, summary in (("geometric mean", geometric_mean), ("least", min)):
        found = [[f"{summary(v):.3f}" if (v := ratios(rows, *c)) else ""] for c in columns]
        blank = [""] * len(modes)
        foot.append([label, *blank, *(cell for cells in found for cell in cells), "", ""])
    counts = [str(len(ratios(rows, *c))) for c in columns]
    foot.append(["rows", *([""] * len(modes)), *counts, "", ""])
    return _aligned([head, *body, *foot])


def _line(
    row: Row, modes: Sequence[str], columns: Iterable[tuple[str, str]], peers: Sequence[str]
) -> list[str]:
    mine = row["candidates"].get(OURS, {})
    line = [row["case"]]
    for mode in modes:
        speed = mine.get(f"{mode}_tera")
        line.append(
            f"{speed:.{0 if speed >= 100 else 2}f}"
            if speed
            else "failed"
            if "failed" in mine
            else ""
        )
    for peer, mode in columns:
        theirs = row["candidates"].get(peer)
        found = (theirs or {}).get(f"{mode}_ratio")
        if found:
            line.append(f"{found['median']:.3f} ±{(found['p90'] - found['p10']) / 2:.3f}")
        else:
            line.append("failed" if theirs and "failed" in theirs else "")
    line.append(_error(mine))
    line += [_error(row["candidates"].get(peer, {})) for peer in peers[:1]]
    if BEST in peers:
        line.append(row["candidates"].get(BEST, {}).get("config", ""))
    return line


def _error(entry: Row) -> str:
    return f"{entry['error']:.2e}" if "error" in entry else ""


def peers_of(rows: Sequence[Row]) -> list[str]:
    """The candidates other than tilec, in the order of their first appearance."""
    return list(dict.fromkeys(n for row in rows for n in row["candidates"] if n != OURS))


def ratios(rows: Sequence[Row], peer: str, mode: str) -> list[float]:
    """tilec's ratio to `peer` in each row that has one."""
    entries = (row["candidates"].get(peer, {}) for row in rows)
    return [e[f"{mode}_ratio"]["median"] for e in entries if f"{mode}_ratio" in e]


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    width = max(len(line) for line in lines)
    full = [[*line, *[""] * (width - len(line))] for line in lines]
    widths = [max(len(line[i]) for line in full) for i in range(width)]
    text = []
    for line in full:
        first = line[0].ljust(widths[0])
        text.append("  ".join([first, *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))]))
    return "\n".join(t.rstrip() for t in text)
