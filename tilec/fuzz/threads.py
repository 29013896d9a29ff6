"""Code of single threads: their index, arrays of their own."""

from __future__ import annotations

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
