"""A random program from a seed and a number: the same one in every run and on every machine. Its
grid has all spellings: in T.Kernel with one to three axes, clusters, T.Persistent,
`kernel[grid](…)` with T.program_id; some of its tensors are made by the call, and a body may read
sizes from its arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

import tilec.fuzz.atomics
import tilec.fuzz.lanes
import tilec.fuzz.products
import tilec.fuzz.reductions  # noqa: F401  (their statements enter the tables)
from tilec.fuzz.expressions import value
from tilec.fuzz.products import product_of_one
from tilec.fuzz.program import SIZES, Array, Launch, Program
from tilec.fuzz.schedules import annotate_schedule, forced, made_in_loops
from tilec.fuzz.tiles import filled, parallel_again
from tilec.fuzz.writer import DTYPES, OUTER, STATEMENTS, THREADS, Buffer, Writer


def generate(seed: int, number: int) -> Program:
    """Program `number` of `seed`."""
    w = Writer(np.random.default_rng([seed, number]))
    w.bm, w.bn = w.size(32), w.size(40)
    w.rows, w.columns = w.one_of(((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 2)))
    w.threads = w.one_of(THREADS)
    frame = grid(w)
    for _ in range(w.between(1, 3)):
        _input(w)
    if w.chance(0.5):
        w.scalar("int32", w.between(-1, 5))
    if w.chance(0.3):
        w.scalar("float32", w.one_of((0.5, -1.0, 2.0)))
    if w.chance(0.2):
        w.constant(w.between(0, 5))
    for _ in range(w.between(1, 3)):
        filled(w, _tile_shape(w), w.one_of((*DTYPES, "bool")))
    filled(w, (w.bm, w.bn), w.one_of(DTYPES))
    for _ in range(w.between(1, 5)):
        w.statement(STATEMENTS if w.chance(0.65) else OUTER)
    if w.chance(0.4) and w.pipelines:
        w.words.append(annotate_schedule.__name__)
        annotate_schedule(w)
    more = np.random.default_rng([seed, number, 1])
    forced(w, more)
    for tile in w.tiles[::-1][:3]:
        if w.chance(0.6):
            show(w, tile)
    for output in [o for o in w.outputs if o.part == (w.bm, w.bn)]:
        finish(w, output)
    several_roles(w, np.random.default_rng([seed, number, 2]))
    made_in_loops(w, more)
    return assemble(w, frame)


def several_roles(w: Writer, own: np.random.Generator) -> None:
    """Maybe statements in which one tile is read in several ways, by chances of their own."""
    others, w.rng = w.rng, own
    before = len(w.tiles)
    for _ in range(w.one_of((0, 0, 1, 2))):
        loop = w.chance(0.3)
        with w.block(f"for _ in {w.loop(2)}(2):") if loop else nullcontext():
            w.statement((parallel_again, parallel_again, product_of_one))
    for tile in w.tiles[before:]:
        show(w, tile)
    w.rng = others


def _input(w: Writer) -> None:
    dtype = w.one_of((*DTYPES, "bool", "float8_e4m3"))
    kind = w.below(8)
    if kind == 0:
        w.input((w.size(60),), dtype)
    elif kind == 1:
        w.input((w.between(1, 3), w.size(20), w.size(30)), dtype)
    elif kind == 2 and w.chance(0.3):
        w.input((w.between(1, 3), w.size(30)), w.one_of(("float16", "int8", "bfloat16", "uint8")))
    else:
        more = w.between(-3, 3), w.between(-3, 3)
        shape = (w.bm * w.rows + more[0], w.bn * w.columns + more[1])
        if w.chance(0.4):
            shape = (w.size(64), w.one_of((16, 32, 64, 8)))
        shape = (max(0, shape[0]), max(1, shape[1]))
        if w.chance(0.08):
            shape = w.one_of(((shape[0], 1), (1, shape[1]), (1, 1), (shape[0], 0), (0, 0)))
        w.input(shape, dtype, _named(w, shape))


def _named(w: Writer, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Run-time sizes for an input's extents: of its own, or those of the first output."""
    if w.chance(0.5):
        return ()
    first = w.outputs[0]
    if "(M, N)" in w.parameters[first.name] and w.chance(0.3):
        gaps = [mine - other for mine, other in zip(shape, first.shape)]
        if min(gaps) >= 0:
            return tuple(f"{s} + {gap}" if gap else s for s, gap in zip("MN", gaps))
    return () if any("(P," in text for text in w.parameters.values()) else ("P", "Q")


def _tile_shape(w: Writer) -> tuple[int, ...]:
    kind = w.below(8)
    if kind == 0:
        return (w.one_of((w.bm, w.bn, w.size(64))),)
    if kind == 1:
        return (w.between(1, 3), w.size(8), w.size(16))
    if kind < 5:
        return (w.bm, w.bn)
    return (w.size(24), w.size(32))


def show(w: Writer, tile: Buffer) -> None:
    """Copy a tile to an output of its own, where all of it is seen."""
    lead = len(tile.shape) - 1
    at = (f"(by * {w.columns} + bx) * {tile.shape[0]}", *["0"] * lead)
    shape = (w.rows * w.columns * tile.shape[0], *tile.shape[1:])
    kinds = (tile.dtype, tile.dtype, "float32")
    made = w.output(shape, w.one_of(kinds), at, tile.shape)
    w.emit(f"T.copy({tile.name}, {made.element(at)})")


def finish(w: Writer, output: Buffer) -> None:
    """Write an output whole, so that what the program did is seen."""
    tiles = [t for t in w.tiles if t.shape == output.part]
    if tiles and w.chance(0.7):
        w.emit(f"T.copy({w.one_of(tiles).name}, {output.element(output.at)})")
        return
    with w.elements(output.part) as s:
        w.emit(f"{output.own(s.names)} = {value(w, s, output.dtype, 2)}")


# --- the grid -------------------------------------------------------------------------------------


@dataclass
class Frame:
    """What stands around a block's body. `opening`: the lines before the tiles are made, `walk`:
    those between them and the body. `within`: tiles are made behind the walk. `decorated`: keywords
    of the decorator."""

    opening: list[str]
    walk: tuple[str, ...] = ()
    decorated: tuple[str, ...] = ()
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


def _kernel(w: Writer, names: str, *extents: str, walk: tuple[str, ...] = ()) -> Frame:
    inside = ", ".join((*extents, f"threads={w.threads}"))
    return Frame([f"    with T.Kernel({inside}) as {names}:"], walk)


def two_axes(w: Writer, rows: str, columns: str) -> Frame:
    return _kernel(w, "(bx, by)", columns, rows)


def one_axis(w: Writer, rows: str, columns: str) -> Frame:
    by, bx = f"block // ({columns})", f"block % ({columns})"
    walk: tuple[str, ...] = (f"        by = {by}", f"        bx = {bx}")
    if w.chance(0.5):
        walk = (f"        by, bx = {by}, {bx}",)
    return _kernel(w, "block", f"({rows}) * ({columns})", walk=walk)


def three_axes(w: Writer, rows: str, columns: str) -> Frame:
    if w.chance(0.5):
        return _kernel(w, "(bx, bz, by)", columns, "1", rows)
    return _kernel(w, "(bx, by, bz)", columns, rows, "1")


def clusters(w: Writer, rows: str, columns: str) -> Frame:
    """Where they divide the grid."""
    forms = ("2", 2, 1), ("(1, 2)", 1, 2), ("(2, 1, 1)", 2, 1), ("(2, 2)", 2, 2), ("3", 3, 1)
    dims = [shown for shown, x, y in forms if w.columns % x == 0 and w.rows % y == 0]
    given = (f"cluster_dims={w.one_of(dims)}",) if dims else ()
    return _kernel(w, "(bx, by)", columns, rows, *given)


def launched(w: Writer, rows: str, columns: str) -> Frame:
    """`kernel[grid](…)`, the axes' names given by T.Kernel."""
    w.launch = (w.columns, w.rows)
    return _kernel(w, "(bx, by)")


def program_ids(w: Writer, rows: str, columns: str) -> Frame:
    """`kernel[grid](…)`, the body asks where it is."""
    w.launch = (w.columns, w.rows)
    w.depth = 1
    word = w.one_of(("program_id", "get_block_binding"))
    lines = [f"    bx, by = T.{word}(0), T.{word}(1)"]
    if w.chance(0.2):
        lines = ["    bx, by, _ = T.get_block_bindings()"]
    if w.chance(0.4):  # the first axis alone
        w.launch = (w.columns * w.rows,)
        lines = [f"    by = T.{word}(0) // {w.columns}", f"    bx = T.{word}() % {w.columns}"]
    elif w.chance(0.5):
        w.scalars.append(("T.num_programs(1)", "int32"))
    if w.chance(0.5):
        return Frame(lines, decorated=(f"threads={w.threads}",))
    w.keywords["threads"] = w.threads
    return Frame(lines)


def persistent(w: Writer, rows: str, columns: str) -> Frame:
    """Blocks that walk over the grid."""
    w.depth = 3
    blocks = w.between(1, 5)
    domain, names = f"[{rows}, {columns}]", "by, bx"
    inner: tuple[str, ...] = ()
    if w.chance(0.3):
        domain, names = f"[({rows}) * ({columns})]", "tile"
        inner = (f"            by, bx = tile // ({columns}), tile % ({columns})",)
    elif w.chance(0.3):
        domain, names = f"[{rows}, {columns}, 1]", "by, bx, bz"
    given = f", {blocks}, block, {w.between(1, 3)}"
    given = w.one_of((given, given, f", index=block, group_size={w.between(1, 9)}", ""))
    walk = (f"        for {names} in T.Persistent({domain}{given}):", *inner)
    made = _kernel(w, "block", str(blocks), walk=walk)
    made.within = w.chance(0.4)
    return made


Form = Callable[[Writer, str, str], Frame]
FORMS: tuple[Form, ...] = (
    two_axes, two_axes, two_axes, two_axes, two_axes, two_axes, one_axis, launched, program_ids,
    persistent,
)  # fmt: skip


# --- the text ------------------------------------------------------------------------------------


def assemble(w: Writer, frame: Frame) -> Program:
    """The program that `w` has written into `frame`."""
    parameters = dict(w.parameters)
    decorator = [*frame.decorated]
    before: list[str] = []
    after: list[str] = []
    kind = w.below(10)
    made = _made_by_the_call(w, parameters) if kind < 3 else []
    if kind == 0 and made:
        w.words.append("out")
        decorator.append(f"out=[{', '.join(map(repr, made))}]")
    elif kind in (1, 2):
        # the arguments of T.Tensor are those of T.empty
        shapes = [parameters.pop(name).partition("(")[2][:-1] for name in made]
        if made:
            w.words.append("empty")
            after = [f"    return {', '.join(made)}"]
        if _bound(parameters):
            w.words.append("const")
            before = _read_in_the_body(parameters)
        before += [f"    {name} = T.empty({shape})" for name, shape in zip(made, shapes)]
    shown = [f"{n}: {t}" if t else n for n, t in parameters.items()]
    text = [
        f"@tilec.kernel({', '.join(decorator)})" if decorator else "@tilec.kernel",
        f"def kernel({', '.join((*shown, *w.constants))}):",
        *before,
        *frame.opening,
        *_opened(w, frame),
        *w.lines,
        *after,
    ]
    source = "".join(w.macros.values()) + "\n".join(text) + "\n"
    return Program(source, w.arguments, tuple(w.words), Launch(w.launch, w.keywords))


def _opened(w: Writer, frame: Frame) -> list[str]:
    """The lines that make tiles and say how, and those of a loop over the grid around the body."""
    tiles = [text for text in w.head if "T.alloc_" in text or "annotate_layout" in text]
    within = tiles if frame.within else []
    level = min(w.depth, 2)  # before a walk over the grid
    lines = ["    " * level + text for text in w.head if text not in within]
    return [*lines, *frame.walk, *("    " * w.depth + text for text in within)]


def _sizes(annotations: Iterable[str]) -> list[str]:
    """The run-time sizes that annotations name."""
    text = " ".join(annotations)
    return [s for s in SIZES if re.search(rf"\b{s}\b", text)]


def _bound(parameters: dict[str, str]) -> list[str]:
    """The sizes that an extent or a stride is by itself, so that an array gives them."""
    text = " ".join(parameters.values())
    return [s for s in SIZES if re.search(rf"(?<=[( ]){s}(?=[,)])", text)]


def _made_by_the_call(w: Writer, parameters: dict[str, str]) -> list[str]:
    """Outputs that the call makes, whose sizes other tensors give. They are no arguments then."""
    found: list[str] = []
    for output in w.outputs:
        rest = {n: t for n, t in parameters.items() if n != output.name and n not in found}
        tensors = any(isinstance(w.arguments[n], Array) for n in rest)
        bound = set(_sizes(parameters.values())) <= set(_bound(rest))
        if tensors and bound and "Strided" not in parameters[output.name] and w.chance(0.6):
            found.append(output.name)
            del w.arguments[output.name]
    return found


def _read_in_the_body(parameters: dict[str, str]) -> list[str]:
    """Sizes as compile-time ints, and the tensors that give them, annotated in the body."""
    names = ", ".join(_bound(parameters))
    lines = [f'    {names} = T.const("{names}")']
    for name, text in parameters.items():
        if _sizes([text]):
            lines.append(f"    {name}: {text}")
            parameters[name] = ""
    return lines
