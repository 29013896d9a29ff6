"""Results as JSON files that a later run goes on with, and the peers' tuned configurations.

A row carries a signature: for each candidate what its code depends on (the hash of the code that
tilec emits, a peer's version and configuration), and the device. It is measured again when one of
these is another one, when more effort is asked for than it had, or when `METHOD` is newer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

METHOD = 1  # of measuring; counted up when old rows are not comparable with new ones
EFFORTS = ("quick", "full")
RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]

OURS = "tilec"  # the candidate that the others are compared with
BEST = "best"  # as a row's baseline: the fastest of the others


class ResultFile:
    """The rows of one benchmark in `folder`, by key; a missing file is read from the repository's
    own results, so that a run elsewhere goes on with them."""

    def __init__(self, name: str, folder: Path = RESULTS) -> None:
        self.name, self.path = name, folder / f"{name}.json"
        seed = self.path if self.path.exists() else RESULTS / f"{name}.json"
        found = json.loads(seed.read_text())["rows"] if seed.exists() else []
        self.rows: dict[str, Row] = {r["key"]: r for r in found if r.get("method") == METHOD}

    def put(self, row: Row) -> None:
        """Add or replace a row, and write the file: a run that is cut short loses nothing."""
        self.rows[row["key"]] = row
        self.save()

    def keep(self, keys: Iterable[str]) -> None:
        """Write the rows with these keys, in this order: others are of cases that are no more."""
        self.rows = {key: self.rows[key] for key in keys if key in self.rows}
        self.save()

    def save(self) -> None:
        _write(self.path, {"benchmark": self.name, "rows": list(self.rows.values())}, "rows")


def is_current(
    row: Row | None, signature: Mapping[str, str], device: str, effort: str, modes: Iterable[str]
) -> bool:
    """Whether a stored row says what measuring it again would: same device, every candidate of
    `signature` measured as it is now, with at least this effort and these modes."""
    if row is None or row["method"] != METHOD or row["machine"].get("device") != device:
        return False
    if EFFORTS.index(row["effort"]) < EFFORTS.index(effort) or not set(modes) <= set(row["modes"]):
        return False
    return all(row["signature"].get(name) == text for name, text in signature.items())


class PeerStore:
    """The best configuration of each peer for each case, found once: `peers.json`."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.path = folder / "peers.json"
        seed = self.path if self.path.exists() else RESULTS / "peers.json"
        self._found: dict[str, Row] = json.loads(seed.read_text())["rows"] if seed.exists() else {}

    def entry(self, key: str, device: str) -> Row:
        """What was found under `key` for this device: "config" or "failed"; empty if nothing."""
        return self._found.get(f"{key} on {device}", {})

    def put(self, key: str, device: str, entry: Row) -> None:
        self._found[f"{key} on {device}"] = entry
        _write(self.path, {"benchmark": "peers", "rows": dict(sorted(self._found.items()))}, "rows")


def _write(path: Path, whole: Mapping[str, Any], key: str) -> None:
    """JSON with one line per row, so that a changed row is a changed line."""
    rows = whole[key]
    head = {k: v for k, v in whole.items() if k != key}
    lines = (
        [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()]
        if isinstance(rows, dict)
        else [json.dumps(r) for r in rows]
    )
    opening, closing = "{}" if isinstance(rows, dict) else "[]"
    start = json.dumps(head)[1:-1]
    body = ",\n".join(lines)
    text = f"{{{start}, {json.dumps(key)}: {opening}\n{body}\n{closing}}}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text)
    scratch.replace(path)
