"""Writes the table of docs/schedules.md: for every matrix product in benchmarks/results, what was
predicted for the tile and plan that was measured, beside what was measured.

    python docs/make_schedules.py

The text around the table is written by hand; the table stands between the two comments.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tilec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the benchmarks are no installed package

from benchmarks import kernels  # noqa: E402

PAGE = Path(__file__).with_name("schedules.md")
RESULTS = ROOT / "benchmarks" / "results"
TARGET = "cuda:sm_90a"
BEGIN, END = "<!-- table: docs/make_schedules.py -->", "<!-- end of table -->"
OURS = "tilec"
ALL = 10_000  # configurations: as many as there are


@dataclass(frozen=True)
class Measured:
    """One product and the time of the configuration that tilec chose for it: tile (BM, BN), the
    plan as it describes itself, seconds of one launch."""

    name: str
    shape: tuple[int, int, int]
    kind: str
    dtype: str
    tile: tuple[int, int]
    plan: str
    seconds: float


def measured(rows: Sequence[Mapping[str, Any]]) -> Iterator[Measured]:
    """The rows that are products of one shape which tilec computed with a plan of its own."""
    for row in rows:
        entry = row.get("candidates", {}).get(OURS, {})
        about = entry.get("about", {})
        divisors = re.findall(r"// (\d+)", about.get("grid", ""))
        if row.get("operator") not in ("gemm", "llm", "fp8", "int8", "tf32", "schedules"):
            continue
        if "hot" in entry and len(divisors) == 2 and about.get("plan"):
            m, n, k = row["shape"]
            bn, bm = map(int, divisors)
            yield Measured(
                row["case"],
                (m, n, k),
                row["kind"],
                row["dtype"],
                (bm, bn),
                about["plan"],
                entry["hot"]["median"] * 1e-3,
            )


def predictions(x: Measured) -> Sequence[Any]:
    """Everything that `tilec.recommend` says of the product, best first."""
    m, n, k = x.shape
    kernel = kernels.product(x.dtype, x.kind[0] == "T", x.kind[1] == "T")
    a = tilec.spec((k, m) if x.kind[0] == "T" else (m, k), x.dtype)
    b = tilec.spec((n, k) if x.kind[1] == "T" else (k, n), x.dtype)
    c = tilec.spec((m, n), kernels.DTYPES[x.dtype][1])
    found: Sequence[Any] = tilec.recommend(kernel, a, b, c, target=TARGET, topk=ALL)
    return found


def matching(x: Measured, found: Sequence[Any]) -> Any:
    """The prediction for what was measured, None if today's compiler does not consider it."""
    for r in found:
        tile = r.constants["BM"], r.constants["BN"]
        if r.estimate and tile == x.tile and r.plan and r.plan.describe() == x.plan:
            return r
    return None


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table and, below it, how far predictions are off."""
    lines = [
        "| product | tile | plan | predicted us | measured us | ratio | bound by |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for x in measured(rows):
        r = matching(x, predictions(x))
        if r is None:
            continue
        ratios.append(r.estimate.seconds / x.seconds)
        lines.append(
            f"| {x.name} | {x.tile[0]}x{x.tile[1]} | {x.plan} | {r.estimate.seconds * 1e6:.1f} | "
            f"{x.seconds * 1e6:.1f} | {ratios[-1]:.2f} | {r.estimate.limit} |"
        )
    return "\n".join([*lines, "", summary(ratios)]) + "\n"


def summary(ratios: Sequence[float]) -> str:
    """One sentence about all rows."""
    if not ratios:
        return "No measured rows yet."
    logs = [math.log(r) for r in ratios]
    mean = math.exp(sum(logs) / len(logs))
    off = math.exp(sum(abs(x - math.log(mean)) for x in logs) / len(logs)) - 1
    within = sum(abs(x - math.log(mean)) < math.log(1.15) for x in logs)
    return (
        f"{len(ratios)} products: predictions are {mean:.2f} of the measured times (geometric "
        f"mean), and off by {off:.0%} on average beside that; {within} are within 15 %."
    )


def page(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """`text` with a new table."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table(rows)}\n{END}{after}"


def stored_rows() -> list[dict[str, Any]]:
    """The rows of all results."""
    rows: list[dict[str, Any]] = []
    for path in sorted(RESULTS.glob("*.json")):
        found = json.loads(path.read_text()).get("rows", [])
        rows += [r for r in found if isinstance(r, dict) and "candidates" in r]
    return rows


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), stored_rows()))
    sys.stdout.write(f"wrote {PAGE.name}\n")
