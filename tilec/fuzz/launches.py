"""The grid of a program in all its spellings: in T.Kernel with one to three axes, clusters,
T.Persistent, `kernel[grid](…)` with T.program_id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilec.fuzz.writer import DTYPES, Writer


@dataclass
class Frame:
    """What stands around a block's body. `opening`: the lines before the tiles are made, `walk`:
    those between them and the body. `level`: of the lines that make tiles. `within`: tiles are made
    behind the walk. `decorated`: a keyword of the decorator, "" for none."""

    opening: list[str]
    walk: list[str]
    level: int = 2
    decorated: str = ""
    within: bool = False


def grid(w: Writer) -> Frame:
    """The lines up to the block's body, and the first outputs: one element for each of the grid's,
    less some at its edges."""
    missing = (w.below(w.bm) if w.chance(0.6) else 0, w.below(w.bn) if w.chance(0.6) else 0)
    shape = (w.bm * w.rows - missing[0], w.bn * w.columns - missing[1])
    if w.chance(0.08):
        w.words.append("few_elements")
        shape = w.one_of(((0, shape[1]), (1, shape[1]), (shape[0], 1), (1, 1), (shape[0], 0)))
    named = w.chance(0.6)
    at = (f"by * {w.bm}", f"bx * {w.bn}")
    sizes = ("M", "N") if named else ()
    w.output(shape, w.one_of(DTYPES), at, (w.bm, w.bn), sizes)
    if w.chance(0.3):
        w.output(shape, w.one_of(DTYPES), at, (w.bm, w.bn), sizes)
    rows, columns = str(w.rows), str(w.columns)
    if named:
        rows, columns = f"T.ceildiv(M, {w.bm})", f"T.cdiv(N, {w.bn})"
    form = w.one_of(FORMS)
    if not named and all(shape):  # what is known to be empty has no grid of its own
        form = w.one_of((*FORMS, three_axes, clusters))
    w.words.append(form.__name__)
    return form(w, rows, columns)


def two_axes(w: Writer, rows: str, columns: str) -> Frame:
    return _kernel(f"{columns}, {rows}", w, "(bx, by)")


def _kernel(extents: str, w: Writer, names: str, *walk: str) -> Frame:
    inside = f"{extents}, " if extents else ""
    return Frame([f"    with T.Kernel({inside}threads={w.threads}) as {names}:"], list(walk))


def one_axis(w: Writer, rows: str, columns: str) -> Frame:
    by, bx = f"block // ({columns})", f"block % ({columns})"
    if w.chance(0.5):
        return _kernel(f"({rows}) * ({columns})", w, "block", f"        by, bx = {by}, {bx}")
    return _kernel(
        f"({rows}) * ({columns})", w, "block", f"        by = {by}", f"        bx = {bx}"
    )


def three_axes(w: Writer, rows: str, columns: str) -> Frame:
    if w.chance(0.5):
        return _kernel(f"{columns}, 1, {rows}", w, "(bx, bz, by)")
    return _kernel(f"{columns}, {rows}, 1", w, "(bx, by, bz)")


def clusters(w: Writer, rows: str, columns: str) -> Frame:
    """Where they divide the grid."""
    dims = [
        shown
        for shown, (x, y) in {
            "2": (2, 1), "(1, 2)": (1, 2), "(2, 1, 1)": (2, 1), "(2, 2)": (2, 2), "3": (3, 1),
        }.items()
        if w.columns % x == 0 and w.rows % y == 0
    ]  # fmt: skip
    if not dims:
        return two_axes(w, rows, columns)
    return _kernel(f"{columns}, {rows}, cluster_dims={w.one_of(dims)}", w, "(bx, by)")


def launched(w: Writer, rows: str, columns: str) -> Frame:
    """`kernel[grid](…)`, the axes' names given by T.Kernel."""
    w.launch = (w.columns, w.rows)
    return _kernel("", w, "(bx, by)")


def program_ids(w: Writer, rows: str, columns: str) -> Frame:
    """`kernel[grid](…)`, the body asks where it is."""
    w.launch = (w.columns, w.rows)
    w.depth = 1
    word = w.one_of(("program_id", "get_block_binding"))
    lines = [f"    bx, by = T.{word}(0), T.{word}(1)"]
    if w.chance(0.4):  # the first axis alone
        w.launch = (w.columns * w.rows,)
        lines = [f"    by = T.{word}(0) // {w.columns}", f"    bx = T.{word}() % {w.columns}"]
    elif w.chance(0.5):
        w.scalars.append(("T.num_programs(1)", "int32"))
    if w.chance(0.5):
        return Frame(lines, [], 1, f"threads={w.threads}")
    w.keywords["threads"] = w.threads
    return Frame(lines, [], 1)


def persistent(w: Writer, rows: str, columns: str) -> Frame:
    """Blocks that walk over the grid."""
    w.depth = 3
    blocks = w.between(1, 5)
    domain, names = f"[{rows}, {columns}]", "by, bx"
    walk = []
    if w.chance(0.3):
        domain, names = f"[({rows}) * ({columns})]", "tile"
        walk = [f"            by, bx = tile // ({columns}), tile % ({columns})"]
    elif w.chance(0.3):
        domain, names = f"[{rows}, {columns}, 1]", "by, bx, bz"
    given = f", {blocks}, block, {w.between(1, 3)}"
    given = w.one_of((given, given, f", index=block, group_size={w.between(1, 9)}", ""))
    made = _kernel(str(blocks), w, "block")
    made.walk = [f"        for {names} in T.Persistent({domain}{given}):", *walk]
    made.within = w.chance(0.4)
    return made


Form = Callable[[Writer, str, str], Frame]
FORMS: tuple[Form, ...] = (
    two_axes, two_axes, two_axes, two_axes, two_axes, two_axes, one_axis, launched, program_ids,
    persistent,
)  # fmt: skip
