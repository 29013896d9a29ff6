"""Code of single threads: their index, arrays of their own, what they exchange."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilec.fuzz.control import uniform
from tilec.fuzz.expressions import Scope, value
from tilec.fuzz.functions import converted
from tilec.fuzz.writer import Writer


def _index(w: Writer) -> str:
    """A name for the thread's index."""
    name = w.name("tx")
    words = (
        "T.get_thread_binding()",
        "T.get_thread_binding(0)",
        f'T.thread_binding(0, {w.threads}, "threadIdx.x")',
        f"T.thread_binding({w.threads}) + T.get_thread_binding(1)",
    )
    w.emit(f"{name} = {w.one_of(words)}")
    return name


def thread_code(w: Writer) -> None:
    """Every thread fills an array of its own, then some write it to this block's part of an
    output."""
    output = w.outputs[0]
    dtype = w.one_of(("float32", "int32", "float16", "int64"))
    length = min(w.bn, w.between(1, 6))
    tx, mine, r = _index(w), w.name("own"), w.name("r")
    loop = w.one_of(("range", "T.serial", "T.unroll"))
    w.emit(f"{mine} = T.alloc_local(({length},), {w.spelled(dtype)})")
    with w.block(f"for {r} in {loop}({length}):"):
        scope = Scope(((tx, w.threads), (r, length)))
        w.emit(f"{mine}[{r}] = {value(w, scope, dtype, 1)}")
    with w.block(f"for {r} in T.serial(1, {length}):"):
        made = w.one_of(("{0}[{1}] += {0}[{1} - 1]", "{0}[{1}] = T.max({0}[{1}], {0}[{1} - 1])"))
        w.emit(made.format(mine, r))
    with w.block(f"for {r} in {loop}({length}):"):
        with w.block(f"if {tx} < {w.bm}:"):
            place = f"by * {w.bm} + {tx}, bx * {w.bn} + {r}"
            w.emit(f"{output.name}[{place}] = {converted(w, f'{mine}[{r}]', output.dtype)}")


def thread_tile(w: Writer) -> None:
    """Threads fill a shared tile that loops over elements read."""
    length = w.between(1, min(w.threads, 64))
    dtype = w.one_of(("float32", "int32", "float16", "uint8"))
    tile = w.tile((length,), dtype, "shared")
    tx = _index(w)
    if length < w.threads and w.chance(0.3):
        w.emit(f"T.clear({tile.name})")
    others = w.tiles
    # another thread's elements of a fragment cannot be had where only some threads ask for them
    w.tiles = [t for t in others if t.space == "shared"]
    with w.block(f"if {tx} < {length}:"):
        w.emit(f"{tile.name}[{tx}] = {value(w, Scope(((tx, length),)), dtype, 1)}")
    w.tiles = [*others, tile]


def thread_exchange(w: Writer) -> None:
    """By turns threads write elements of their own and read those of others, through a shared tile
    or this block's part of an output, in loops of 0, 1 or 2 turns and under conditions that are the
    same for all."""
    if w.depth > 3:
        return
    n, dtype = w.threads, w.one_of(("float32", "int32", "float16", "uint8", "int64"))
    flat = w.chance(0.6)
    tile = w.tile((n,) if flat else (4, n // 4), dtype, "shared")
    output = w.outputs[0]
    tx, v = _index(w), w.name("v")
    others = (f"{n - 1} - {tx}", f"({tx} + {w.between(1, n)}) % {n}", f"{tx} ^ {w.between(1, 63)}")

    def at(thread: str) -> str:
        return f"{tile.name}[{thread if flat else f'({thread}) % 4, ({thread}) // 4'}]"

    def turn() -> None:
        """Each reads what another one has written, then writes."""
        kind, other = w.below(4), w.one_of(others)
        if kind == 0:
            w.emit(f"{at(tx)} = {at(other)}")
        elif kind == 1 and w.bm <= n:
            column = f"bx * {w.bn} + {w.below(w.bn)}"
            with w.block(f"if {tx} < {w.bm}:"):
                place = f"{output.name}[by * {w.bm} + {tx}, {column}]"
                w.emit(f"{place} = {converted(w, v, output.dtype)}")
            far = f"{output.name}[by * {w.bm} + ({tx} + 1) % {w.bm}, {column}]"
            w.emit(f"{v} = {converted(w, far, dtype)}")
        elif kind == 2 and w.chance(0.5):  # what is read depends on what was read
            found = at(f"({tx} + T.cast(T.min({v}, 60), 'int32') % 7) % {n}")
            w.emit(f"{v} = T.min({v}, {found})")
        else:
            w.emit(f"{v} = T.min({at(other)}, {v} + {w.one_of(('1', v))})")
            w.emit(f"{at(tx)} = {v}")

    shared = w.tiles
    w.tiles = [t for t in w.tiles if t.space == "shared"]  # see `thread_tile`
    w.emit(f"{at(tx)} = {value(w, Scope(((tx, n),)), dtype, 1)}")
    w.tiles = shared
    w.emit(f"{v} = {at(w.one_of(others))}")
    for _ in range(w.between(1, 2)):
        kind = w.below(5)
        if kind < 3 and w.depth <= 3:
            with _few_turns(w, kind):
                turn()
        elif kind == 3:
            with w.block(f"if {uniform(w)}:"):
                turn()
        else:
            turn()
    w.emit(f"{at(tx)} = {v}")
    w.tiles.append(tile)


@contextmanager
def _few_turns(w: Writer, kind: int) -> Iterator[None]:
    """A loop of 0, 1 or 2 turns, which the call or the program says."""
    turns = str(w.between(0, 2))
    if w.chance(0.6):
        turns, told = w.name("n"), int(turns)
        w.parameters[turns] = "T.int32"
        w.arguments[turns] = told
    name = w.name("t")
    if kind == 2:
        w.emit(f"{name} = 0")
        with w.block(f"while {name} < {turns}:"):
            yield
            w.emit(f"{name} += 1")
        return
    with w.block(f"for {name} in {w.one_of(('range', 'T.serial'))}({turns}):"):
        yield
