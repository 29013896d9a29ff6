"""The score's fitted numbers: a table says what each is, and there are no more of them."""

from __future__ import annotations

import ast
import importlib
import math
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HOME = {
    "cost": "tilec.tune.cost",
    "rank": "tilec.tune.rank",
    "balance": "tilec.tune.balance",
    "work": "tilec.tune.work",
    "transfers": "tilec.tune.transfers",
    "arrange": "tilec.passes.arrange",
    "orders": "tilec.passes.utils.orders",
}
# What is no guess about time: limits of the search, of registers and of what is looked at; what is
# supposed of sizes that are not known; facts of the machine and of layouts.
OTHERS = {
    "cost": {"CHUNK_COLUMNS", "CACHE", "STORES", "NEARLY"},
    "rank": {"EPILOGUE", "CLUSTERED", "DIRECT_STORES", "QUAD_COLUMNS", "TRIED_PARTS"}
    | {"MOST_ELEMENTS", "ROOMY"},
    "balance": {"LARGEST"},
    "transfers": set(),
    "work": {"UNKNOWN_TRIPS", "UNKNOWN_LENGTH", "SECTOR", "_SAMPLES", "_PLAIN_UNARY"},
    # (Of what chooses an order, but for what the score reads.)
    "arrange": {"KEPT", "GAIN", "LONG", "OTHER", "SMALL", "HALF_RATE", "SPECIAL"},
    "orders": {"MOST_NODES", "DEPENDENT"},
}
MOST = 65  # fitted numbers. The aim is 12: lower this as they go, never raise it


def constants(module: str) -> dict[str, Any]:
    """What a module names in capitals at its top, and the values."""
    made = importlib.import_module(HOME[module])
    assert made.__file__
    names = []
    for s in ast.parse(Path(made.__file__).read_text()).body:
        if isinstance(s, ast.Assign | ast.AnnAssign):
            targets = s.targets if isinstance(s, ast.Assign) else [s.target]
            names += [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    return {n: getattr(made, n) for n in names if n.isupper()}


def fitted() -> dict[str, Any]:
    return {f"{m}.{n}": v for m in HOME for n, v in constants(m).items() if n not in OTHERS[m]}


def numbers(value: Any) -> list[float]:
    """The numbers in a value, but for the sizes that a table of them is looked up by."""
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, tuple):
        pairs = all(isinstance(v, tuple) for v in value)
        return [n for v in value for n in numbers(v[1] if pairs else v)]
    return [value]


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{k}: {shown(v)}" for k, v in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(shown, value))
    return "more" if value == math.inf else f"{value:g}"


def test_the_table_says_what_each_is() -> None:
    lines = (ROOT / "docs" / "schedules.md").read_text().splitlines()
    rows = [[c.strip() for c in x.split("|")] for x in lines if x.startswith("| `")]
    told = {r[1].strip("`"): r[2] for r in rows if r[1].strip("`").partition(".")[0] in HOME}
    assert told == {name: shown(v) for name, v in fitted().items()}


def test_there_are_no_more_of_them() -> None:
    found = [n for v in fitted().values() for n in numbers(v)]
    assert len(found) <= MOST, f"{len(found)} fitted numbers"


def test_a_new_one_would_be_counted() -> None:
    assert numbers({"wgmma": (60, 16), "mma": 3}) == [60, 16, 3]
    assert numbers(((2, 1.0), (math.inf, 0.85))) == [1.0, 0.85]
