"""Writes what the README and docs/results.md say of speed, and docs/images/speed.svg, from
benchmarks/results/*.json.

    python docs/make_results.py

A test compares, so that no figure is older than the measurement.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.svg import Svg  # noqa: E402 (beside docs/)
from benchmarks.timing import geometric_mean  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
README, PAGE = ROOT / "README.md", ROOT / "docs" / "results.md"
PICTURE = ROOT / "docs" / "images" / "speed.svg"
BEGIN, END = "<!-- figures: docs/make_results.py -->\n", "<!-- end of figures -->\n"
COLUMNS = ("NVIDIA's or torch's own", "Triton", "TileLang")
_COLOURS = ("#1f77b4", "#d95f02", "#2a9d5c")

Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A result file in plain words. `peers`: names in the file, which stand for the first column;
    of several the fastest of each case counts."""

    result: str
    words: str
    peer: str
    peers: tuple[str, ...] = ("cuBLAS",)


SUBJECTS = (
    Subject("gemm", "matrix products, fp16 and bf16, sides of 1024 to 28672", "cuBLAS"),
    Subject("llm", "linear layers of language models, fp16, 16 to 4096 rows", "cuBLAS"),
    Subject("fp8", "the same in fp8, 16 to 8192 rows", "`torch._scaled_mm`"),
    Subject("int8", "products in int8", "`torch._int_mm`"),
    Subject("tf32", "products in TF32", "cuBLAS"),
    Subject(
        "fused",
        "products with bias, ReLU, GELU, residual or SwiGLU",
        "cuBLAS and torch",
        ("cuBLAS", "addmm"),
    ),
    Subject("grouped", "8 and 64 products of uneven sizes in one launch", "a CUDA graph of cuBLAS"),
    Subject("batched", "batches of equal products", "`torch.bmm`"),
    Subject("random", "products of 60 sizes drawn from 1 to 16384", "cuBLAS"),
    Subject("memory", "softmax, norms, sums, transposes, copies", "torch", ("torch",)),
    Subject(
        "attention",
        "attention forward, fp16, heads of 64 to 256, 1024 to 8192 keys",
        "cuDNN",
        ("cuDNN",),
    ),
)


def rows_of(result: str, folder: Path = RESULTS) -> list[Row]:
    rows: list[Row] = json.loads((folder / f"{result}.json").read_text())["rows"]
    return rows


def ratios(rows: Sequence[Row], peers: Sequence[str], mode: str = "hot") -> list[float]:
    """tilec's throughput over that of the fastest of `peers`, of each case that has one."""
    found = []
    for row in rows:
        entries = [row["candidates"].get(p, {}).get(f"{mode}_ratio") for p in peers]
        medians = [e["median"] for e in entries if e]
        if medians:
            found.append(min(medians))
    return found


def cells(subject: Subject) -> list[list[float]]:
    """The ratios of each column."""
    rows = rows_of(subject.result)
    return [ratios(rows, peers) for peers in (subject.peers, ("Triton",), ("TileLang",))]


def spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"**{geometric_mean(values):.2f}** ({min(values):.2f} to {max(values):.2f})"


def devices(results: Sequence[str]) -> dict[str, list[str]]:
    """Each device with those of the results that it gave, the device of most of them first."""
    found: dict[str, list[str]] = {}
    for result in results:
        names = {row["machine"]["device"] for row in rows_of(result)}
        assert len(names) == 1, f"one table, several devices: {result}: {names}"
        found.setdefault(names.pop(), []).append(result)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def machines() -> str:
    """The devices and versions of all results, in words."""
    (usual, _), *others = devices(list(_HEADINGS)).items()
    found = [row["machine"] for r in _HEADINGS for row in rows_of(r)]
    torch = sorted({m["torch"] for m in found})
    dates = sorted({m["date"] for m in found})
    more = "".join(f" (what says so: one {d})" for d, _ in others)
    return f"one {usual}{more}, torch {' and '.join(torch)}, {dates[0]} to {dates[-1]}"


def summary() -> str:
    """The README's table."""
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---|---|---|---|"]
    usual, *_ = devices(list(_HEADINGS))
    for subject in SUBJECTS:
        own, *others = cells(subject)
        device = rows_of(subject.result)[0]["machine"]["device"]
        where = "" if device == usual else f" ({device})"
        lines.append(
            f"| {subject.words}{where} | {subject.peer}: {spread(own)} | "
            f"{' | '.join(spread(o) for o in others)} |"
        )
    return "\n".join(lines) + "\n"


def readme() -> str:
    """README.md with its table made anew."""
    text = README.read_text()
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + summary() + "\n" + END + rest.split(END)[1]


def picture() -> Svg:
    """A line for each subject: a dot at the typical ratio to each peer, a bar from the slowest case
    to the fastest."""
    labels, plot, line, top = 400, 470, 34, 62
    low, high = 0.5, 8.0
    svg = Svg(labels + plot + 30, top + line * len(SUBJECTS) + 44)
    svg.text(12, 22, "How many times as fast as its peers tilec is", size=15, bold=True)
    for i, name in enumerate(COLUMNS):
        svg.dot(20 + 190 * i, 42, 4.5, _COLOURS[i])
        svg.text(30 + 190 * i, 46, name, size=12)

    def x(value: float) -> float:
        return labels + plot * math.log(value / low) / math.log(high / low)

    bottom = top + line * len(SUBJECTS)
    for tick in (0.5, 1, 2, 4, 8):
        svg.line(x(tick), top, x(tick), bottom, "#333" if tick == 1 else "#ddd")
        svg.text(x(tick), bottom + 16, f"{tick:g}", anchor="middle")
    svg.text(x(1), bottom + 32, "slower  |  faster than the peer", anchor="middle")
    for number, subject in enumerate(SUBJECTS):
        middle = top + line * number + line / 2
        svg.text(labels - 12, middle + 4, subject.words, anchor="end", size=12)
        for i, values in enumerate(cells(subject)):
            if values:
                y = middle + (i - 1) * 8
                svg.line(x(min(values)), y, x(max(values)), y, _COLOURS[i], 2)
                svg.dot(x(geometric_mean(values)), y, 4.5, _COLOURS[i])
    return svg


def page() -> str:
    """docs/results.md."""
    intro = _INTRODUCTION.format(machines=machines(), summary=summary())
    return "\n".join([intro, *_cases(), *_launches(), *_compile_times(), *_cpu(), *_elsewhere()])


_INTRODUCTION = """# Measured

Written by `docs/make_results.py` from `benchmarks/results/*.json`; a test keeps it true.

Measured on {machines}. Tile sizes and schedules are left to tilec; Triton and TileLang have their
best configuration from a list. Each figure is a ratio of throughput in one process: above 1 tilec
is faster. The first number is the geometric mean over the cases, those in brackets are the slowest
and the fastest case. Every result is compared with float64 on sampled rows before it is timed.

![How many times as fast as its peers tilec is](images/speed.svg)

{summary}
Two ways of timing: *mixed*, all candidates in one shuffled stream of calls (the table and the
picture above), and *alone*, one candidate for at least 0.3 s, until the chip has reached its power
limit. N and T are the layouts of A and B: NT is `A @ B.T`.

On your own GPU: `python -m benchmarks gemm --quick`; `python -m benchmarks --list` names the
operators, `--budget SECONDS` stops in time, `--only SUBSTRING` picks cases, `--show` prints and
draws what is stored. Triton and TileLang are measured where they are installed. A row is measured
again only if the code that tilec emits for it, a peer or the device has changed. `--stale` names
rows whose code has, without a GPU.
"""


_HEADINGS = {
    **{s.result: s.words[0].upper() + s.words[1:] for s in SUBJECTS},
    "fp8": "Linear layers of language models, fp8",
    "uncommon": "Uncommon sizes: odd rows, few blocks, long sums",
    "w4a16": "One row times weights of four bits",
    "backward": "Gradients of attention",
    "decoding": "Attention of one query: flash decoding",
    "mla": "Multi-head latent attention, decoding",
    "sinks": "Attention with sinks, heads of 64",
    "sparse_attention": "Attention to chosen blocks",
}


def _cases() -> Iterator[str]:
    usual, *_ = devices(list(_HEADINGS))
    for result, heading in _HEADINGS.items():
        rows = rows_of(result)
        yield f"## {heading}"
        yield ""
        if (device := rows[0]["machine"]["device"]) != usual:
            yield f"On one {device}."
            yield ""
        yield from _table(rows)


def _elsewhere() -> Iterator[str]:
    """What another device gave, each in a folder of its own."""
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        results = [r for r in _HEADINGS if (folder / f"{r}.json").exists()]
        found = [row for r in results for row in rows_of(r, folder)]
        (device,) = {row["machine"]["device"] for row in found}
        commits = ", ".join(sorted({row["commit"] for row in found}))
        yield f"## On one {device}"
        yield ""
        yield f"From `benchmarks/results/{folder.name}`, by {commits}."
        yield ""
        for result in results:
            yield f"### {_HEADINGS[result]}, {device}"
            yield ""
            yield from _table(rows_of(result, folder))


def _table(rows: Sequence[Row]) -> Iterator[str]:
    """The ratios of each case."""
    names = list(dict.fromkeys(n for row in rows for n in row["candidates"] if n != "tilec"))
    modes = [m for m in ("hot", "steady") if any(m in row["modes"] for row in rows)]
    columns = [(n, m) for n in names for m in modes if ratios(rows, (n,), m)]
    words = {"hot": "mixed", "steady": "alone"}
    yield f"| case | {' | '.join(f'{n}, {words[m]}' for n, m in columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for row in rows:
        made = [ratios([row], (n,), m) for n, m in columns]
        yield f"| {row['case']} | {' | '.join(f'{v[0]:.2f}' if v else '' for v in made)} |"
    means = [f"{geometric_mean(ratios(rows, (n,), m)):.2f}" for n, m in columns]
    yield f"| **geometric mean** | {' | '.join(means)} |"
    yield ""


def _launches() -> Iterator[str]:
    yield "## A launch"
    yield ""
    yield "CPU time of a call, median of many, in microseconds."
    yield ""
    yield "| | us |"
    yield "|---|---|"
    for row in rows_of("launch"):
        yield f"| {row['what']} | {row['median']:.1f} |"
    yield ""


def _compile_times() -> Iterator[str]:
    yield "## Compiling"
    yield ""
    yield "| | on | median |"
    yield "|---|---|---|"
    for row in rows_of("compile"):
        yield f"| {row['what']} | {row['device']} | {row['median']:.0f} {row['unit']} |"
    yield ""


def _cpu() -> Iterator[str]:
    yield "## The CPU target"
    yield ""
    yield "Products in float32, GFLOP/s, beside NumPy's BLAS on the same threads."
    yield ""
    yield "| M x N x K | threads | tilec | NumPy |"
    yield "|---|---|---|---|"
    for row in rows_of("cpu"):
        size = f"{row['m']}x{row['n']}x{row['k']}"
        yield f"| {size} | {row['threads']} | {row['tilec']:.0f} | {row['numpy']:.0f} |"
    yield ""


def main() -> None:
    PAGE.write_text(page())
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture().text_of())
    README.write_text(readme())


if __name__ == "__main__":
    main()
