"""Which of TileLang's own tests give right results, on the CPU or on a GPU.

    TILELANG_SOURCE=checkout python tests/tilelang/right.py [--gpu] [--examples] [--jobs 1]
        [--budget seconds] [--each seconds] [--out right.json] [file …]

Every test of `testing/python/{language,issue,kernel}` (with --examples, those of `examples`) runs
with its own numbers and comparisons. On the CPU its kernels are compiled for that target, and torch
is told that there is a GPU, so that nothing is skipped for want of one; with --gpu all is real.
Assertions about texts are left out: they look for CUDA in what was compiled. `sorts.py` says which
tests compare numbers; they, and those that only run, are what is counted.

Parts of files run in processes of their own (`shards.py`): a test that hangs, or that takes its
process with it, costs itself. Nothing is begun after `--budget`; what was not reached says so.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from page import FOLDERS
from shards import Shard, run_shard
from sorts import COUNTED, SORTS, cases_of, functions_of, sort_of

# mypy: ignore-errors

TESTS_A_SHARD = 10


def shards_of(files: list[Path], source: Path) -> list[Shard]:
    """The parts of files, those first whose tests compare numbers, the longest before others."""
    listed = []
    for path in files:
        short = str(path.relative_to(source))
        names = [n for n in functions_of(path)[1] if n.lower().startswith("test")]
        sorts = collections.Counter(sort_of(path, n, short) for n in names)
        informs = sum(sorts[s] for s in COUNTED) / max(1, len(names))
        count = cases_of(path)
        parts = max(1, round(count / TESTS_A_SHARD))
        listed += [((-round(2 * informs), -count / parts), Shard(path, n, parts))
                   for n in range(parts)]  # fmt: skip
    return [shard for _, shard in sorted(listed, key=lambda x: x[0])]


def told(found: dict[str, dict[str, str]], source: Path) -> dict[str, dict[str, dict[str, str]]]:
    """The results with the sort of each test."""
    return {
        short: {n: {"sort": sort_of(source / short, n, short), "said": s} for n, s in said.items()}
        for short, said in found.items()
    }


def summary(results: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    """A line for each sort: how many tests of it are right, wrong, fail, skip themselves."""
    counts = collections.defaultdict(collections.Counter)
    for said in results.values():
        for r in said.values():
            counts[r["sort"]][r["said"].partition(":")[0]] += 1
    kinds = ("right", "wrong", "failed", "skipped", "not reached")
    lines = [f"{'':12}{''.join(f'{k:>13}' for k in kinds)}"]
    for sort in SORTS:
        lines.append(f"{sort:12}{''.join(f'{counts[sort][k]:13}' for k in kinds)}")
    ran = {k: sum(counts[s][k] for s in COUNTED) for k in kinds}
    able = ran["right"] + ran["wrong"] + ran["failed"]
    share = 100 * ran["right"] / able if able else 0.0
    lines.append(f"of those that can run: {ran['right']} of {able} right, {share:.1f} %")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--examples", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--each", type=float, default=60.0, help="seconds of a test")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    source = Path(os.environ["TILELANG_SOURCE"]).resolve()
    os.environ["TILEC_TARGET"] = "cuda:sm_90a"  # nobody asks the driver before a process is forked
    files = [f.resolve() for f in given.files]
    folders = FOLDERS[:1] if given.examples else FOLDERS[1:]
    for folder in () if files else folders:
        files += sorted((source / folder).rglob("test_*.py"))
    for module in ("torch._dynamo", "pytest", "tilec.tilelang.testing", "tilec.jit.build"):
        __import__(module)
    end = time.monotonic() + given.budget
    shards = shards_of(files, source)

    def run(shard: Shard) -> dict[str, str]:
        return run_shard(shard, source, given.gpu, given.each, end)

    found: dict[str, dict[str, str]] = {str(f.relative_to(source)): {} for f in sorted(files)}
    with ThreadPoolExecutor(given.jobs) as pool:
        for shard, said in zip(shards, pool.map(run, shards), strict=True):
            found[str(shard.path.relative_to(source))] |= said
    results = told(found, source)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")
    for path, said in results.items():
        for name, r in said.items():
            if r["said"].startswith(("wrong", "failed")) and r["sort"] in COUNTED:
                print(Path(path).name, name, r["sort"], r["said"][:200])
    print("\n".join(summary(results)))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # not for the threads of processes that never end
