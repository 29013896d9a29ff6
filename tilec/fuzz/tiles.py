"""Statements on tiles: T.copy in every form, T.fill, T.clear, loops over elements, reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilec.fuzz.expressions import condition, converted, plain, position, tile_element, value
from tilec.fuzz.writer import Buffer, Scope, Writer, planes, statement
from tilec.ir.types import DTYPES

# --- copies ---------------------------------------------------------------------------------------


@statement(weight=2)
def copy_in(w: Writer) -> None:
    """From a tensor to a tile: from somewhere, maybe over an edge."""
    source, tile = w.pair_of(planes(w.inputs), planes(w.tiles))
    w.emit(f"T.copy({source.name}[{corner(w, source)}], {tile.name}{options(w)})")


def corner(w: Writer, source: Buffer) -> str:
    """Where a tile may start in an input."""
    if w.chance(0.4):  # where the block is
        return f"by * {w.bm}, bx * {w.bn}"
    starts = []
    for extent in source.shape:
        names = ["bx", "by", *w.counters]
        options = [
            str(w.between(-2, max(0, extent - 1))),
            f"{w.one_of(names)} * {w.one_of((1, 4, 8, 16))}",
            f"{w.one_of(names)} * {w.one_of((8, 16))} + {w.between(-1, 8)}",
        ]
        starts.append(w.one_of(options))
    return ", ".join(starts)


def options(w: Writer) -> str:
    """Keywords of T.copy that change no number."""
    kind = w.below(12)
    if kind == 0:
        return ", disable_tma=True"
    if kind == 1:
        return f", coalesced_width={w.one_of((1, 2, 4))}"
    if kind == 3:
        return ', prefer_instruction="sync"'
    if kind == 4:
        return ', annotations={"disable_tma": True}'
    policies = ("evict_first", "evict_last", "evict_normal")
    return f', eviction_policy="{w.one_of(policies)}"' if kind == 2 else ""


@statement()
def copy_slices(w: Writer) -> None:
    """A part of a tensor, written as slices, to a part of a tile."""
    source, tile = w.pair_of(planes(w.inputs), planes(w.tiles))
    extents, here = part(w, tile.shape)
    start = [w.one_of((str(w.between(0, 9)), "bx * 8", "by * 4 + 1")) for _ in extents]
    there = ", ".join(f"{s}:{s} + {n}" for s, n in zip(start, extents))
    w.emit(f"T.copy({source.name}[{there}], {tile.name}[{here}])")


def part(w: Writer, shape: Sequence[int], extents: Sequence[int] = ()) -> tuple[list[int], str]:
    """A part of a tile, of these extents or some: its extents, and it as slices."""
    sizes = list(extents) or [w.between(1, e) for e in shape]
    at = [w.between(0, e - n) for e, n in zip(shape, sizes)]
    slices = [
        ":" if n == e and w.chance(0.3) else f"{s}:{s + n}" for s, n, e in zip(at, sizes, shape)
    ]
    return sizes, ", ".join(slices)


@statement()
def copy_row(w: Writer) -> None:
    """A row or a plane, whose leading index drops."""
    source = w.one_of([t for t in w.inputs if len(t.shape) > 1])
    tile = w.one_of(planes(w.tiles, len(source.shape) - 1))
    starts = [position(w, Scope((("bx", 4),)))]
    starts += [str(w.between(0, max(0, e - 1))) for e in source.shape[1:]]
    w.emit(f"T.copy({source.element(starts)}, {tile.name})")


@statement()
def copy_whole(w: Writer) -> None:
    """All of a tensor that is no larger than a tile may be, to one of its shape."""
    source = w.one_of([t for t in w.inputs if t.fixed and 0 < math.prod(t.shape) <= 1024])
    tile = w.tile(source.shape, w.one_of((source.dtype, "float32")))
    w.emit(f"T.copy({source.name}, {tile.name})")
    w.tiles.append(tile)


@statement()
def copy_tiles(w: Writer) -> None:
    """Between two tiles of one shape, with conversion."""
    source = w.one_of(w.tiles)
    others = [t for t in w.tiles if t.shape == source.shape and t is not source]
    dtypes = ("float32", "float16", "bfloat16", "int32", "int8", "bool")
    known = others and w.chance(0.7)
    tile = w.one_of(others) if known else w.tile(source.shape, w.one_of(dtypes))
    w.emit(f"T.copy({source.name}, {tile.name})")
    if not known:
        w.tiles.append(tile)


@statement()
def copy_part(w: Writer) -> None:
    """Between parts of two tiles."""
    source = w.one_of(w.tiles)
    tile = w.one_of([t for t in planes(w.tiles, len(source.shape)) if t is not source])
    extents = [w.between(1, min(a, b)) for a, b in zip(source.shape, tile.shape)]
    (_, there), (_, here) = part(w, source.shape, extents), part(w, tile.shape, extents)
    w.emit(f"T.copy({source.name}[{there}], {tile.name}[{here}])")


@statement()
def copy_out(w: Writer) -> None:
    """To this block's part of an output; over its edge, too."""
    output = w.one_of(w.outputs)
    tile = w.one_of([t for t in w.tiles if t.shape == output.part])
    w.emit(f"T.copy({tile.name}, {output.element(output.at)}{options(w)})")


@statement()
def copy_out_part(w: Writer) -> None:
    """A part of a tile to one of this block's part of an output, from where it is also read."""
    output = w.one_of(w.outputs)
    tile = w.one_of(planes(w.tiles, len(output.part)))
    extents = [w.between(1, min(a, b)) for a, b in zip(tile.shape, output.part)]
    shifts = [w.between(0, e - n) for e, n in zip(output.part, extents)]
    there = ", ".join(f"{a} + {s}:{a} + {s + n}" for a, s, n in zip(output.at, shifts, extents))
    w.emit(f"T.copy({tile.name}[{part(w, tile.shape, extents)[1]}], {output.name}[{there}])")


@statement()
def copy_between_tensors(w: Writer) -> None:
    """From a tensor to this block's part of an output, without a tile."""
    source, output = w.one_of(planes(w.inputs)), w.outputs[0]
    there = ", ".join(f"{a}:{a} + {n}" for a, n in zip(output.at, output.part))
    w.emit(f"T.copy({source.name}[{corner(w, source)}], {output.name}[{there}])")


@statement()
def fill(w: Writer) -> None:
    tile = w.one_of(w.tiles)
    amount = str(w.between(0, 9) if DTYPES[tile.dtype].is_int else w.one_of((0.5, -1.5, 3.0)))
    if tile.counts and DTYPES[tile.dtype].is_float and w.chance(0.2):
        amount = f'-T.infinity("{tile.dtype}")'
    elif tile.dtype == "bool":
        amount = w.one_of(("True", "False", "1"))
    there = f"[{part(w, tile.shape)[1]}]" if w.chance(0.3) else ""
    w.emit(f"T.fill({tile.name}{there}, {amount})")


@statement()
def clear(w: Writer) -> None:
    w.emit(f"T.clear({w.one_of(w.tiles).name})")


def filled(w: Writer, shape: tuple[int, ...], dtype: str = "") -> Buffer:
    """A new tile with numbers in it, made where the program is."""
    made = w.tile(shape, dtype or w.one_of(("float32", "float16", "int32", "bfloat16")))
    tensors = planes(w.inputs) if len(shape) == 2 else []
    if tensors and w.chance(0.5):
        source = w.one_of(tensors)
        w.emit(f"T.copy({source.name}[{corner(w, source)}], {made.name}{options(w)})")
    else:
        with w.elements(shape, made, reads=False) as s:
            w.emit(f"{made.element(s.names)} = {value(w, s, made.dtype, 1)}")
    w.tiles.append(made)
    return made


# --- loops over elements --------------------------------------------------------------------------


@statement(weight=2)
def parallel(w: Writer) -> None:
    """Every element of a tile from an expression."""
    tile = w.one_of(w.tiles)
    width = f", coalesced_width={w.one_of((1, 2, 4))}" if w.chance(0.1) else ""
    with w.elements(tile.shape, tile, options=width) as s:
        if w.chance(0.2) and tile.counts:
            sign = w.one_of(("+=", "-=", "*="))
            w.emit(f"{s.own} {sign} {value(w, s, tile.dtype, 1)}")
        else:
            w.emit(f"{s.own} = {value(w, s, tile.dtype)}")


@statement()
def parallel_part(w: Writer) -> None:
    """Some elements of a tile, in another order of the dimensions."""
    tile = w.one_of(w.tiles)
    names = w.indices(len(tile.shape))
    extents = tuple(w.between(1, e) for e in tile.shape)
    shifts = [w.between(0, e - n) for e, n in zip(tile.shape, extents)]
    own = tile.element([f"{n} + {s}" if s else n for n, s in zip(names, shifts)])
    step = -1 if w.chance(0.5) else 1
    with w.elements(extents[::step], names=names[::step]):
        scope = Scope(tuple(zip(names, extents)), tile.name, own)
        w.emit(f"{own} = {value(w, scope, tile.dtype)}")


@statement()
def parallel_guarded(w: Writer) -> None:
    """Elements that a condition chooses."""
    tile = w.one_of(w.tiles)
    with w.elements(tile.shape, tile) as s:
        with w.block(f"if {condition(w, s)}:"):
            w.emit(f"{s.own} = {value(w, s, tile.dtype, 2)}")
        if w.chance(0.3):
            with w.block(f"elif {condition(w, s)}:"):
                w.emit(f"{s.own} = {value(w, s, tile.dtype, 1)}")
        if w.chance(0.4):
            with w.block("else:"):
                w.emit(f"{s.own} = {value(w, s, tile.dtype, 2)}")


@statement()
def parallel_moved(w: Writer) -> None:
    """Elements of another tile, each to a place of its own."""
    source = w.one_of(w.tiles)
    if "float8" in source.dtype:
        return
    tile = w.tile(source.shape, w.one_of((source.dtype, "float32")))
    places = []
    for name, extent in zip(w.indices(len(source.shape)), source.shape):
        shift = w.between(0, extent)
        turned = (f"{extent - 1} - {name}", f"({name} + {shift}) % {extent}", name)
        places.append(w.one_of(turned))
    with w.elements(source.shape) as s:
        item = converted(w, source.element(s.names), tile.dtype)
        w.emit(f"{tile.element(places)} = {item}")
    w.tiles.append(tile)


@statement(weight=0)
def parallel_again(w: Writer) -> None:
    """Elements that are read from several places of one tile."""
    sources = [t for t in w.tiles if t.counts and t.space == "fragment"]
    side = w.one_of((8, 16, 32))
    source = w.one_of(sources) if sources and w.chance(0.5) else filled(w, (side, side))
    if w.chance(0.2) and len(source.shape) == 2:  # what others read none of them writes
        with w.elements(source.shape, source) as s:
            with w.block(f"if {s.names[0]} < {s.names[1]}:"):
                turned = source.element([f"{n} % {e}" for n, e in zip(s.names[::-1], source.shape)])
                w.emit(f"{s.own} = {s.own} - {turned}")
        return
    shape = tuple(w.one_of(source.shape) for _ in range(w.between(1, 2 + (side == 8))))
    tile = w.tile(shape, w.one_of((source.dtype, "float32")))
    with w.elements(shape) as s:
        reads = [source.element([_anywhere(w, s, e) for e in source.shape]) for _ in range(3)]
        items = (converted(w, x, tile.dtype) for x in reads[w.below(2) :])
        w.emit(f"{tile.element(s.names)} = " + f" {w.one_of('+-')} ".join(items))
    w.tiles.append(tile)


def _anywhere(w: Writer, s: Scope, extent: int) -> str:
    """An index within its bounds, mostly one of the loop's or that turned over or shifted."""
    name, mine = w.one_of(s.index)
    if mine > extent:
        return f"{name} % {extent}"
    forms = (name, name, name, f"{extent - 1} - {name}", f"({name} + {w.below(extent)}) % {extent}")
    return w.one_of((*forms, f"{name} // 2", str(w.below(extent))))


@statement()
def parallel_out(w: Writer) -> None:
    """This block's part of an output, element by element, maybe turned over."""
    output = w.one_of(w.outputs)
    turned = w.chance(0.3)
    with w.elements(output.part) as s:
        names = s.names
        if turned:
            names = [f"{e - 1} - {n}" for e, n in zip(output.part, names)]
        w.emit(f"{output.own(names)} = {value(w, s, output.dtype)}")


@statement()
def parallel_while(w: Writer) -> None:
    """Each iteration goes on for as long as its own number wants."""
    tiles = [t for t in w.tiles if math.prod(t.shape) <= 96 and "float8" not in t.dtype]
    shape = (w.between(2, 6), w.between(2, 8))
    tile = w.one_of(tiles) if tiles else filled(w, shape, w.one_of(("float32", "int32")))
    with w.elements(tile.shape, tile) as s:
        w.emit(f'x = T.alloc_var("int32", {position(w, s)})')
        w.emit(f'n = T.alloc_var("int32", init={w.between(0, 3)})')
        with w.block(f"while x > {w.between(0, 3)}:"):
            w.emit(w.one_of(("x -= 2", "x = x // 2", "x -= n + 1", "x >>= 1")))
            if w.chance(0.3):
                with w.block(f"if n == {w.between(1, 5)}:"):
                    w.emit("break")
            w.emit("n += 1")
        w.emit(f"{s.own} = {converted(w, 'n', tile.dtype)}")


@statement()
def gather(w: Writer) -> None:
    """Rows that a tensor of indices chooses; some of them do not exist."""
    source, tile = w.pair_of(planes(w.inputs), planes(w.tiles))
    length = max(1, w.size(40))
    kind = w.one_of(("int32", "int32", "int64", "int16"))
    name = w.tensor("I", (length,), kind, "index", high=source.shape[0])
    with w.elements(tile.shape, tile) as s:
        i, j = s.names
        row = f"{name}[{w.one_of(('by', 'bx'))} * {w.one_of((1, 8))} + {i}]"
        column = w.one_of((j, f"{j} + 1", f"{j} * 2"))
        entries = (row, column) if w.chance(0.7) else (column, row)
        w.emit(f"{s.own} = {converted(w, source.element(entries), tile.dtype)}")


@statement()
def broadcast(w: Writer) -> None:
    """A tile combined with one of fewer dimensions."""
    tile = w.one_of([t for t in planes(w.tiles) if t.counts])
    side = w.below(2)
    lines = [t for t in w.tiles if t.shape == (tile.shape[side],)]
    line = w.one_of(lines) if lines else filled(w, (tile.shape[side],))
    with w.elements(tile.shape, tile) as s:
        other = f'T.cast({line.name}[{s.names[side]}], "{tile.dtype}")'
        low, high = ("-8.0", "8.0") if DTYPES[tile.dtype].is_float else ("0", "8")
        w.emit(f"{s.own} = T.max(T.min({s.own} {w.one_of('+*')} {other}, {high}), {low})")


@statement()
def element_stores(w: Writer) -> None:
    """Single elements of a tile that all threads have, one after the other."""
    tile = w.one_of([t for t in w.tiles if t.space == "shared" and t.counts])
    sign = w.one_of(("=", "+=", "-=", "*="))
    amount = plain(w.between(0, 3), tile.dtype)
    w.emit(f"{tile_element(w, Scope(), tile)} {sign} {amount}")


@statement()
def variable(w: Writer) -> None:
    """A variable of each iteration, changed by a loop."""
    tile = w.one_of(w.tiles)
    held = "float32" if DTYPES[tile.dtype].is_float else "int32"
    with w.elements(tile.shape, tile, reads=False) as s:
        if w.chance(0.4):
            w.emit(f'x = T.alloc_var("{held}", {value(w, s, held, 1)})')
        else:
            w.emit(f'x = T.alloc_var("{held}")')
            w.emit(f"x = {value(w, s, held, 1)}")
        with w.block(f"for r in {w.one_of(('range', 'T.serial', 'T.unroll'))}({w.between(1, 4)}):"):
            w.emit(f"x = T.min(x + {value(w, s, held, 1)}, {w.between(4, 20)})")
        w.emit(f'{tile.element(s.names)} = T.cast(x, "{tile.dtype}")')


@statement()
def vectorized(w: Writer) -> None:
    """A loop whose iterations should become one instruction, in one over elements."""
    tile = w.one_of(planes(w.tiles))
    with w.elements(tile.shape[:1]) as s:
        bounds = w.one_of((str(tile.shape[1]), f"0, {tile.shape[1]}"))
        with w.block(f"for v in T.{w.one_of(('vectorized', 'unroll'))}({bounds}):"):
            scope = Scope((*s.index, ("v", tile.shape[1])), tile.name)
            w.emit(f"{tile.element(scope.names)} = {value(w, scope, tile.dtype, 1)}")


@statement()
def tile_macro(w: Writer) -> None:
    """A function of a tile that is inlined."""
    tiles = [t for t in planes(w.tiles) if t.counts]
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


# --- reductions, one element after the other ------------------------------------------------------


@statement()
def sums(w: Writer) -> None:
    """The sum, the largest or the smallest of every row or column."""
    source = w.one_of(planes(w.tiles))
    side = w.below(2)
    dtype = w.one_of(("float32", "float32", "int32", "float16", "float64"))
    total = w.tile((source.shape[side],), dtype)
    w.emit(f"T.clear({total.name})")
    with w.elements(total.shape, total) as s:
        with w.block(f"for r in T.serial({source.shape[1 - side]}):"):
            at = (*s.names, "r") if side == 0 else ("r", *s.names)
            item = converted(w, source.element(at), dtype)
            if w.chance(0.3):
                w.emit(f"{s.own} = T.{w.one_of(('max', 'min'))}({s.own}, {item})")
            elif w.chance(0.3):
                with w.block(f"if r % {w.between(2, 3)} == 0:"):
                    w.emit(f"{s.own} += {item}")
            else:
                w.emit(f"{s.own} += {item}")
    w.tiles.append(total)


@statement()
def reduced(w: Writer) -> None:
    """One number of every row, held in a variable: a largest, a product, a count."""
    source = w.one_of(planes(w.tiles))
    rows, columns = source.shape
    made = w.tile((rows,), w.one_of(("float32", "int32", "float64", "uint16")))
    kind = "int32" if "int" in made.dtype else "float32"
    with w.elements(made.shape, made) as s:
        w.emit(f'x = T.alloc_var("{kind}", T.cast(0, "{kind}"))')
        with w.block(f"for r in {w.loop(columns)}({columns}):"):
            item = converted(w, source.element((*s.names, "r")), kind)
            changes = (
                f"x = T.max(x, {item})",
                f"x = x + T.abs({item})",
                f"x = T.if_then_else({item} > x, {item}, x)",
                f'x += T.min(T.max({item}, T.cast(-2, "{kind}")), T.cast(2, "{kind}"))',
            )
            w.emit(w.one_of(changes))
        w.emit(f"{s.own} = {converted(w, 'x', made.dtype)}")
    w.tiles.append(made)


@statement()
def softmax(w: Writer) -> None:
    """Rows divided by the sum of their exponentials, in three loops over two tiles."""
    shape = (w.size(20), w.size(16))
    floats = ("float16", "bfloat16", "float32")
    sources = [t for t in planes(w.tiles) if t.dtype in floats and t.shape[1] <= 24]
    source = w.one_of(sources) if sources and w.chance(0.7) else filled(w, shape, "float32")
    rows, columns = source.shape
    most, total = (w.tile((rows,), "float32") for _ in "mt")

    def near(element: str) -> str:
        return f'T.max(T.min(T.cast({element}, "float32"), 9.0), -9.0)'

    w.emit(f"T.fill({most.name}, {w.one_of(('-9.0', 'T.min_value(T.float32)'))})")
    w.emit(f"T.clear({total.name})")
    with w.elements((rows,)) as s:
        high, item = most.element(s.names), near(source.element((*s.names, "r")))
        with w.block(f"for r in T.serial({columns}):"):
            w.emit(f"{high} = T.max({high}, {item})")
        with w.block(f"for r in T.serial({columns}):"):
            w.emit(f"{total.element(s.names)} += T.exp({item} - {high})")
    with w.elements(source.shape, source) as s:
        high, whole = (t.element(s.names[:1]) for t in (most, total))
        share = f"T.exp({near(s.own)} - {high}) / {whole}"
        w.emit(f"{s.own} = {converted(w, share, source.dtype)}")
    w.tiles += [most, total]


@statement()
def prefix(w: Writer) -> None:
    """Running sums along one side: every element needs the one before it."""
    source = w.one_of(planes(w.tiles))
    side = w.below(2)
    made = w.tile(source.shape, w.one_of(("int32", "float32")), "shared")
    w.emit(f"T.copy({source.name}, {made.name})")
    with w.elements((source.shape[side],)) as s:
        (i,) = s.names
        step = w.one_of((1, 1, 2))
        with w.block(f"for r in T.serial({step}, {source.shape[1 - side]}):"):
            at = [(i, r) if side == 0 else (r, i) for r in ("r", f"r - {step}")]
            w.emit(f"{made.element(at[0])} += {made.element(at[1])}")
    w.tiles.append(made)
