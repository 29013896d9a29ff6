"""T.Parallel: loops over elements, with gathers, broadcasts and variables."""

from __future__ import annotations

import math

from tilec.fuzz.copies import filled
from tilec.fuzz.expressions import (
    Scope,
    condition,
    own_element,
    position,
    tile_element,
    value,
)
from tilec.fuzz.functions import converted, plain
from tilec.fuzz.writer import Writer, head, indices
from tilec.ir.types import DTYPES


def parallel(w: Writer) -> None:
    """Every element of a tile from an expression."""
    tile = w.one_of(w.tiles)
    names = indices(w, len(tile.shape))
    scope = Scope(tuple(zip(names, tile.shape)), tile.name, own_element(tile, names))
    width = f", coalesced_width={w.one_of((1, 2, 4))}" if w.chance(0.1) else ""
    with w.block(head(names, tile.shape, width)):
        if w.chance(0.2) and tile.counts:
            sign = w.one_of(("+=", "-=", "*="))
            w.emit(f"{scope.own} {sign} {value(w, scope, tile.dtype, 1)}")
        else:
            w.emit(f"{scope.own} = {value(w, scope, tile.dtype)}")


def parallel_part(w: Writer) -> None:
    """Some elements of a tile, in another order of the dimensions."""
    tile = w.one_of(w.tiles)
    names = indices(w, len(tile.shape))
    extents = tuple(w.between(1, e) for e in tile.shape)
    shifts = [w.between(0, e - n) for e, n in zip(tile.shape, extents)]
    own = [f"{n} + {s}" if s else n for n, s in zip(names, shifts)]
    order = list(range(len(names)))
    if w.chance(0.5):
        order.reverse()
    scope = Scope(tuple(zip(names, extents)), tile.name, own_element(tile, own))
    with w.block(head([names[d] for d in order], tuple(extents[d] for d in order))):
        w.emit(f"{scope.own} = {value(w, scope, tile.dtype)}")


def parallel_guarded(w: Writer) -> None:
    """Elements that a condition chooses."""
    tile = w.one_of(w.tiles)
    names = indices(w, len(tile.shape))
    scope = Scope(tuple(zip(names, tile.shape)), tile.name, own_element(tile, names))
    with w.block(head(names, tile.shape)):
        with w.block(f"if {condition(w, scope)}:"):
            w.emit(f"{scope.own} = {value(w, scope, tile.dtype, 2)}")
        if w.chance(0.3):
            with w.block(f"elif {condition(w, scope)}:"):
                w.emit(f"{scope.own} = {value(w, scope, tile.dtype, 1)}")
        if w.chance(0.4):
            with w.block("else:"):
                w.emit(f"{scope.own} = {value(w, scope, tile.dtype, 2)}")


def parallel_moved(w: Writer) -> None:
    """Elements of another tile, each to a place of its own."""
    source = w.one_of(w.tiles)
    if source.float8:
        return
    tile = w.tile(source.shape, w.one_of((source.dtype, "float32")))
    names = indices(w, len(source.shape))
    places = []
    for name, extent in zip(names, source.shape):
        shift = w.between(0, extent)
        turned = (f"{extent - 1} - {name}", f"({name} + {shift}) % {extent}", name)
        places.append(w.one_of(turned))
    with w.block(head(names, source.shape)):
        item = converted(w, own_element(source, names), tile.dtype)
        w.emit(f"{own_element(tile, places)} = {item}")
    w.tiles.append(tile)


def parallel_while(w: Writer) -> None:
    """Each iteration goes on for as long as its own number wants."""
    tiles = [t for t in w.tiles if math.prod(t.shape) <= 96 and not t.float8]
    shape = (w.between(2, 6), w.between(2, 8))
    tile = w.one_of(tiles) if tiles else filled(w, shape, w.one_of(("float32", "int32")))
    names = indices(w, len(tile.shape))
    scope = Scope(tuple(zip(names, tile.shape)), tile.name)
    with w.block(head(names, tile.shape)):
        w.emit(f'x = T.alloc_var("int32", {position(w, scope)})')
        w.emit(f'n = T.alloc_var("int32", init={w.between(0, 3)})')
        with w.block(f"while x > {w.between(0, 3)}:"):
            w.emit(w.one_of(("x -= 2", "x = x // 2", "x -= n + 1", "x >>= 1")))
            if w.chance(0.3):
                with w.block(f"if n == {w.between(1, 5)}:"):
                    w.emit("break")
            w.emit("n += 1")
        w.emit(f"{own_element(tile, names)} = {converted(w, 'n', tile.dtype)}")


def element_stores(w: Writer) -> None:
    """Single elements of a tile that all threads have, one after the other."""
    tiles = [t for t in w.tiles if t.space == "shared" and t.counts]
    if not tiles:
        return
    tile = w.one_of(tiles)
    sign = w.one_of(("=", "+=", "-=", "*="))
    amount = plain(w.between(0, 3), tile.dtype)
    w.emit(f"{tile_element(w, Scope(()), tile)} {sign} {amount}")


def tile_macro(w: Writer) -> None:
    """A function of a tile that is inlined."""
    tiles = [t for t in w.tiles if len(t.shape) == 2 and t.counts]
    if not tiles:
        return
    name = w.name("change")
    made = w.one_of(("tile[i, j] * 2 - amount", "T.max(tile[i, j], amount)", "amount"))
    w.macros[name] = (
        f"@T.macro\ndef {name}(tile, amount):\n"
        "    for i, j in T.Parallel(tile.shape[0], tile.shape[1]):\n"
        f"        tile[i, j] = {made}\n\n\n"
    )
    w.emit(f"{name}({w.one_of(tiles).name}, {w.between(0, 3)})")


def parallel_out(w: Writer) -> None:
    """This block's part of an output, element by element, maybe turned over."""
    output = w.one_of(w.outputs)
    names = indices(w, len(output.part))
    extents = output.part
    own = [f"{a} + {n}" for a, n in zip(output.at, names)]
    if w.chance(0.3):
        own = [f"{a} + {e - 1} - {n}" for a, e, n in zip(output.at, extents, names)]
    scope = Scope(tuple(zip(names, extents)))
    with w.block(head(names, extents)):
        w.emit(f"{output.name}[{', '.join(own)}] = {value(w, scope, output.dtype)}")


def gather(w: Writer) -> None:
    """Rows that a tensor of indices chooses; some of them do not exist."""
    tensors = [t for t in w.inputs if len(t.shape) == 2]
    tiles = [t for t in w.tiles if len(t.shape) == 2]
    if not tensors or not tiles:
        return
    source, tile = w.one_of(tensors), w.one_of(tiles)
    length = max(1, w.size(40))
    kind = w.one_of(("int32", "int32", "int64", "int16"))
    name = w.tensor("I", (length,), kind, "index", high=source.shape[0])
    i, j = names = indices(w, 2)
    with w.block(head(names, tile.shape)):
        row = f"{name}[{w.one_of(('by', 'bx'))} * {w.one_of((1, 8))} + {i}]"
        column = w.one_of((j, f"{j} + 1", f"{j} * 2"))
        entries = f"{row}, {column}" if w.chance(0.7) else f"{column}, {row}"
        item = converted(w, f"{source.name}[{entries}]", tile.dtype)
        w.emit(f"{tile.name}[{i}, {j}] = {item}")


def broadcast(w: Writer) -> None:
    """A tile combined with one of fewer dimensions."""
    tiles = [t for t in w.tiles if len(t.shape) == 2 and t.counts]
    if not tiles:
        return
    tile = w.one_of(tiles)
    side = w.below(2)
    lines = [t for t in w.tiles if t.shape == (tile.shape[side],)]
    line = w.one_of(lines) if lines else filled(w, (tile.shape[side],))
    names = indices(w, 2)
    scope = Scope(tuple(zip(names, tile.shape)), tile.name, own_element(tile, names))
    with w.block(head(names, tile.shape)):
        other = f'T.cast({line.name}[{names[side]}], "{tile.dtype}")'
        low, high = ("-8.0", "8.0") if DTYPES[tile.dtype].is_float else ("0", "8")
        made = f"T.max(T.min({scope.own} {w.one_of('+*')} {other}, {high}), {low})"
        w.emit(f"{scope.own} = {made}")


def variable(w: Writer) -> None:
    """A variable of each iteration, changed by a loop."""
    tile = w.one_of(w.tiles)
    names = indices(w, len(tile.shape))
    scope = Scope(tuple(zip(names, tile.shape)), tile.name)
    held = "float32" if DTYPES[tile.dtype].is_float else "int32"
    with w.block(head(names, tile.shape)):
        if w.chance(0.4):
            w.emit(f'x = T.alloc_var("{held}", {value(w, scope, held, 1)})')
        else:
            w.emit(f'x = T.alloc_var("{held}")')
            w.emit(f"x = {value(w, scope, held, 1)}")
        with w.block(f"for r in {w.one_of(('range', 'T.serial', 'T.unroll'))}({w.between(1, 4)}):"):
            w.emit(f"x = T.min(x + {value(w, scope, held, 1)}, {w.between(4, 20)})")
        w.emit(f'{own_element(tile, names)} = T.cast(x, "{tile.dtype}")')


def vectorized(w: Writer) -> None:
    """A loop whose iterations should become one instruction, in one over elements."""
    tiles = [t for t in w.tiles if len(t.shape) == 2]
    if not tiles:
        return
    tile = w.one_of(tiles)
    (i,) = indices(w, 1)
    with w.block(head([i], tile.shape[:1])):
        bounds = w.one_of((str(tile.shape[1]), f"0, {tile.shape[1]}"))
        with w.block(f"for v in T.{w.one_of(('vectorized', 'unroll'))}({bounds}):"):
            scope = Scope(((i, tile.shape[0]), ("v", tile.shape[1])), tile.name)
            w.emit(f"{tile.name}[{i}, v] = {value(w, scope, tile.dtype, 1)}")
