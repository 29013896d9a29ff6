"""docs/tilelang.md, from what `census.py` and `right.py` have found."""

from __future__ import annotations

import collections
import re

from sorts import COUNTED, SORTS

TARGET = "cuda:sm_90a"
FOLDERS = ("examples", "testing/python/language", "testing/python/issue", "testing/python/kernel")

# mypy: ignore-errors


def compiling(entries: list[dict[str, str]]) -> dict[str, list[str]]:
    """The names of the kernels that compile, by file; a name of several only if all of them do."""
    listed: dict[str, list[str]] = {}
    for path in sorted({e["path"] for e in entries}):
        inside = [e for e in entries if e["path"] == path]
        others = {e["kernel"] for e in inside if e["status"] != "compiles"}
        names = sorted({e["kernel"] for e in inside} - others)
        if names:
            listed[path] = names
    return listed


def without_places(said: str) -> str:
    """A message without the files and lines that stand in it."""
    said = re.sub(r"(tilec\.ir\.errors\.)?(CompileError: )?/\S+?:\d+:\d+: ", "", said)
    return re.sub(r"(?<!\w)/(?:[\w.+-]+/)+", "", said)


def feature(said: str) -> str:
    """The group of a message: its names and numbers left out, the language's words kept."""
    word = re.search(r"T\.\w+ is not supported|no attribute '\w+'|has no builtin '\w+'", said)
    if word:
        return word[0]
    said = re.sub(r"'[^']*'|\"[^\"]*\"", "…", without_places(said))
    return re.sub(r"\d+", "N", said)[:110]


def in_cell(said: str) -> str:
    return said.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


Results = dict[str, dict[str, dict[str, str]]]  # of right.py: by file and test


def by_file(entries: list[dict[str, str]], right: Results) -> list[str]:
    """A row for each file: how many of its kernels compile, why others do not, and how many of its
    tests that can run are right."""
    lines = ["## File by file", ""]
    lines.append("| file | compile | tests right | what the others say |")
    lines.append("|---|---|---|---|")
    for path in sorted({e["path"] for e in entries}):
        inside = [e for e in entries if e["path"] == path]
        others = [e for e in inside if e["status"] != "compiles"]
        reasons = (
            f"`{e['kernel']}` (line {e['line']}) {e['status']}: "
            + in_cell(without_places(e["said"])[:100])
            for e in others
        )
        counted = (r["said"] for r in right.get(path, {}).values() if r["sort"] in COUNTED)
        ran = [s for s in counted if not s.startswith(("skipped", "not reached"))]
        tests = f"{ran.count('right')} of {len(ran)}" if ran else ""
        count = f"{len(inside) - len(others)} of {len(inside)}"
        lines.append(f"| {path} | {count} | {tests} | {'; '.join(reasons)} |")
    return lines


def how_many_are_right(right: Results) -> list[str]:
    """The part of the page that counts tests by their sort, and says why some are not right."""
    kinds = ("right", "wrong", "failed", "skipped", "not reached")
    each = [(r["sort"], r["said"]) for said in right.values() for r in said.values()]
    counts = collections.Counter((sort, said.partition(":")[0]) for sort, said in each)
    able = sum(counts[sort, kind] for sort in COUNTED for kind in kinds[:3])
    fine = sum(counts[sort, "right"] for sort in COUNTED)
    lines = [
        "## How many are right",
        "",
        "`tests/tilelang/right.py` runs TileLang's own tests with their own comparisons, on the",
        "target `cpu` or on a GPU. What they check `sorts.py` beside it tells from their text:",
        "those that compare numbers, or that only run, can be asked of any implementation.",
        f"Assertions about the text of a kernel are left out. Of {able} tests",
        f"that can run {fine} are right,",
        f"{100 * fine / max(1, able):.1f} %; other numbers:",
        f"{sum(counts[s, 'wrong'] for s in COUNTED)}.",
        "",
        "| the test | right | other numbers | fails | skips itself | not reached |",
        "|---|---|---|---|---|---|",
    ]
    for sort, what in SORTS.items():
        cells = (what, *(counts[sort, kind] for kind in kinds))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    bad = ("wrong", "failed")
    groups = collections.Counter(
        feature(said.partition(": ")[2]) for sort, said in each
        if sort in COUNTED and said.startswith(bad)
    )  # fmt: skip
    lines += [
        "",
        "Of those that can run and are not right:",
        "",
        "| tests | message |",
        "|---|---|",
    ]
    return lines + [f"| {n} | {in_cell(said)} |" for said, n in groups.most_common()]


def table(entries: list[dict[str, str]], right: Results) -> str:
    """The page docs/tilelang.md."""
    ours = [e for e in entries if e["status"] != "other hardware"]
    lines = [
        "# TileLang's own programs",
        "",
        "`import tilec.tilelang as tilelang` and `import tilec.tilelang.language as T` are",
        "TileLang's spelling of tilec: `@tilelang.jit`, `tilelang.compile`, `@T.prim_func`,",
        "`@tilelang.autotune` (the configuration that is predicted to be the fastest; nothing is",
        "measured), profilers, dtypes.",
        "Files run as they are by `python -m tilec.tilelang program.py`, or once",
        "`tilec.tilelang.install()` was called. Spelling is translated, nothing is emulated: the",
        "insides of TileLang's compiler, and TVM, raise where a program uses them. Products of",
        "float32 are made in TF32, as TileLang makes them.",
        "",
        "## How many compile",
        "",
        "Made by `tests/tilelang/census.py`, which says how it counts. Each kernel of TileLang's",
        f"examples and tests is compiled for `{TARGET}` by way of `tilec.tilelang`; none is run.",
        "",
        "Some of the tests expect an error of TileLang's: those kernels count apart if they are",
        "refused here, too. So do programs with a mistake that nothing of TileLang's finds",
        "(`WRONG` in `census.py`): refused rightly.",
        "",
        "| | kernels | compile | refused as there | refused rightly | refused | not reached "
        "| other hardware |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for folder in (*FOLDERS, ""):
        inside = [e for e in entries if e["path"].startswith(folder)]
        n = collections.Counter(e["status"] for e in inside)
        counted = [n[s] for s in ("compiles", "refused as there", "refused rightly")]
        counted += [n[s] for s in ("refused", "not reached", "other hardware")]
        cells = (folder or "all", len(inside), *counted)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if right:
        lines += ["", *how_many_are_right(right)]
    for status, title in (
        ("refused", "What is missing"),
        ("not reached", "What stops the programs"),
    ):
        groups = collections.Counter(feature(e["said"]) for e in ours if e["status"] == status)
        lines += ["", f"## {title}", "", "| kernels | first message |", "|---|---|"]
        lines += [f"| {n} | {in_cell(said)} |" for said, n in groups.most_common()]
    lines += ["", *by_file(entries, right)]
    return "\n".join(lines) + "\n"
