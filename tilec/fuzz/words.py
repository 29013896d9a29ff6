"""One function for each word of the language: it writes a statement that uses the word.

A new word of the language gets a function here, which is added to `STATEMENTS` (it may stand
anywhere) or to `OUTER` (at the top level of a block only), and a method in `meaning.Words`.
"""

from __future__ import annotations

from tilec.fuzz.expressions import (
    Scope,
    condition,
    element,
    own_element,
    position,
    tile_element,
    value,
)
from tilec.fuzz.products import pipelined_product, product
from tilec.fuzz.writer import Input, Output, Tile, Word, Writer
from tilec.ir.types import DTYPES

# --- movement -------------------------------------------------------------------------------------


def copy_in(w: Writer) -> None:
    """From a tensor to a tile: from somewhere, maybe over an edge."""
    tensors = [t for t in w.inputs if len(t.shape) == 2]
    tiles = [t for t in w.tiles if len(t.shape) == 2]
    if tensors and tiles:
        source, tile = w.one_of(tensors), w.one_of(tiles)
        w.emit(f"T.copy({source.name}[{corner(w, source)}], {tile.name}{options(w)})")


def corner(w: Writer, source: Input) -> str:
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
    return ', eviction_policy="evict_first"' if kind == 2 else ""


def copy_slices(w: Writer) -> None:
    """A part of a tensor, written as slices, to a part of a tile."""
    tensors = [t for t in w.inputs if len(t.shape) == 2]
    tiles = [t for t in w.tiles if len(t.shape) == 2]
    if not tensors or not tiles:
        return
    source, tile = w.one_of(tensors), w.one_of(tiles)
    extents = [w.between(1, e) for e in tile.shape]
    at = [w.between(0, e - n) for e, n in zip(tile.shape, extents)]
    start = [w.one_of((str(w.between(-1, 9)), "bx * 8", "by * 4 + 1")) for _ in extents]
    there = ", ".join(f"{s}:{s} + {n}" for s, n in zip(start, extents))
    here = ", ".join(f"{s}:{s + n}" for s, n in zip(at, extents))
    w.emit(f"T.copy({source.name}[{there}], {tile.name}[{here}])")


def copy_row(w: Writer) -> None:
    """A row or a plane, whose leading index drops."""
    tensors = [t for t in w.inputs if len(t.shape) > 1]
    if not tensors:
        return
    source = w.one_of(tensors)
    tiles = [t for t in w.tiles if len(t.shape) == len(source.shape) - 1]
    if tiles:
        tile = w.one_of(tiles)
        starts = [position(w, Scope((("bx", 4),)))] + [
            str(w.between(0, max(0, e - 1))) for e in source.shape[1:]
        ]
        w.emit(f"T.copy({source.name}[{', '.join(starts)}], {tile.name})")


def copy_tiles(w: Writer) -> None:
    """Between two tiles of one shape, with conversion."""
    source = w.one_of(w.tiles)
    others = [t for t in w.tiles if t.shape == source.shape and t is not source]
    tile = w.one_of(others) if others and w.chance(0.7) else fresh(w, source.shape)
    w.emit(f"T.copy({source.name}, {tile.name})")
    if tile not in w.tiles:
        w.tiles.append(tile)


def fresh(w: Writer, shape: tuple[int, ...]) -> Tile:
    """A new tile of some dtype, which nobody has filled."""
    return w.tile(shape, w.one_of(("float32", "float16", "bfloat16", "int32", "int8")))


def copy_out(w: Writer) -> None:
    """To this block's part of an output; over its edge, too."""
    output = w.one_of(w.outputs)
    tiles = [t for t in w.tiles if t.shape == output.part]
    if tiles:
        w.emit(f"T.copy({w.one_of(tiles).name}, {output.name}[{', '.join(output.at)}])")


def fill(w: Writer) -> None:
    tile = w.one_of(w.tiles)
    amount = w.between(0, 9) if DTYPES[tile.dtype].is_int else w.one_of((0.5, -1.5, 3.0))
    if w.chance(0.3):
        parts = []
        for e in tile.shape:
            low = w.between(0, e - 1)
            parts.append(f"{low}:{w.between(low + 1, e)}")
        w.emit(f"T.fill({tile.name}[{', '.join(parts)}], {amount})")
    else:
        w.emit(f"T.fill({tile.name}, {amount})")


def clear(w: Writer) -> None:
    w.emit(f"T.clear({w.one_of(w.tiles).name})")


# --- loops over elements --------------------------------------------------------------------------


def parallel(w: Writer) -> None:
    """Every element of a tile from an expression."""
    tile = w.one_of(w.tiles)
    names = indices(w, len(tile.shape))
    scope = Scope(tuple(zip(names, tile.shape)), tile.name, own_element(tile, names))
    with w.block(head(names, tile.shape)):
        w.emit(f"{scope.own} = {value(w, scope, tile.dtype)}")


def indices(w: Writer, rank: int) -> list[str]:
    return [f"{letter}{w.depth if w.depth > 2 else ''}" for letter in "ijlm"[:rank]]


def head(names: list[str], extents: tuple[int, ...]) -> str:
    return f"for {', '.join(names)} in T.Parallel({', '.join(map(str, extents))}):"


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
        if w.chance(0.4):
            with w.block("else:"):
                w.emit(f"{scope.own} = {value(w, scope, tile.dtype, 2)}")


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
    name = w.tensor("I", (length,), "int32", "index", high=source.shape[0])
    i, j = names = indices(w, 2)
    with w.block(head(names, tile.shape)):
        row = f"{name}[{w.one_of(('by', 'bx'))} * {w.one_of((1, 8))} + {i}]"
        column = w.one_of((j, f"{j} + 1", f"{j} * 2"))
        entries = f"{row}, {column}" if w.chance(0.7) else f"{column}, {row}"
        w.emit(f'{tile.name}[{i}, {j}] = T.cast({source.name}[{entries}], "{tile.dtype}")')


def broadcast(w: Writer) -> None:
    """A tile combined with one of fewer dimensions."""
    tiles = [t for t in w.tiles if len(t.shape) == 2 and not is_float8(t)]
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


def is_float8(tile: Tile) -> bool:
    """Whether it is for storage and products only."""
    return "float8" in tile.dtype


def filled(w: Writer, shape: tuple[int, ...], dtype: str = "") -> Tile:
    """A new tile with numbers in it, made where the program is."""
    made = w.tile(shape, dtype or w.one_of(("float32", "float16", "int32", "bfloat16")))
    tensors = [t for t in w.inputs if len(t.shape) == 2 == len(shape)]
    if tensors and w.chance(0.5):
        source = w.one_of(tensors)
        w.emit(f"T.copy({source.name}[{corner(w, source)}], {made.name}{options(w)})")
        w.tiles.append(made)
        return made
    names = indices(w, len(shape))
    scope = Scope(tuple(zip(names, shape)), made.name)
    with w.block(head(names, shape)):
        w.emit(f"{own_element(made, names)} = {value(w, scope, made.dtype, 1)}")
    w.tiles.append(made)
    return made


def sums(w: Writer) -> None:
    """The sum, the largest or the smallest of every row or column, one after the other."""
    sources = [t for t in w.tiles if len(t.shape) == 2]
    if not sources:
        return
    source = w.one_of(sources)
    side = w.below(2)
    dtype = w.one_of(("float32", "float32", "int32", "float16", "float64"))
    shape = (source.shape[side],)
    total = w.tile(shape, dtype)
    w.emit(f"T.clear({total.name})")
    (name,) = indices(w, 1)
    with w.block(head([name], shape)):
        with w.block(f"for r in T.serial({source.shape[1 - side]}):"):
            at = f"{name}, r" if side == 0 else f"r, {name}"
            item = f'T.cast({source.name}[{at}], "{dtype}")'
            own = f"{total.name}[{name}]"
            if w.chance(0.3):
                w.emit(f"{own} = T.{w.one_of(('max', 'min'))}({own}, {item})")
            elif w.chance(0.3):
                with w.block(f"if r % {w.between(2, 3)} == 0:"):
                    w.emit(f"{own} += {item}")
            else:
                w.emit(f"{own} += {item}")
    w.tiles.append(total)


def variable(w: Writer) -> None:
    """A variable of each iteration, changed by a loop."""
    tile = w.one_of(w.tiles)
    names = indices(w, len(tile.shape))
    scope = Scope(tuple(zip(names, tile.shape)), tile.name)
    held = "float32" if DTYPES[tile.dtype].is_float else "int32"
    with w.block(head(names, tile.shape)):
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
        with w.block(f"for v in T.{w.one_of(('vectorized', 'unroll'))}({tile.shape[1]}):"):
            scope = Scope(((i, tile.shape[0]), ("v", tile.shape[1])), tile.name)
            w.emit(f"{tile.name}[{i}, v] = {value(w, scope, tile.dtype, 1)}")


# --- control around tiles -------------------------------------------------------------------------


def conditional(w: Writer) -> None:
    """What only some blocks, or some iterations, do."""
    if w.depth > 4:
        return
    with w.block(f"if {uniform(w)}:"):
        inner(w)
    if w.chance(0.5):
        with w.block("else:"):
            inner(w)


def uniform(w: Writer) -> str:
    """A condition that is the same for all threads of a block."""
    names = ["bx", "by", *w.counters]
    if w.scalars and w.chance(0.3):
        name, _ = w.one_of(w.scalars)
        return f"{name} {w.one_of(('<', '>='))} {w.between(0, 3)}"
    name = w.one_of(names)
    return w.one_of((f"{name} % 2 == {w.below(2)}", f"{name} < {w.between(0, 3)}"))


def inner(w: Writer) -> None:
    """One or two statements; tiles made in them are forgotten after them."""
    kept = len(w.tiles)
    for _ in range(w.between(1, 2)):
        word = w.one_of(STATEMENTS)
        w.words.append(word.__name__)
        word(w)
    del w.tiles[kept:]


def serial(w: Writer) -> None:
    if w.depth > 3:
        return
    name = w.name("t")
    loops = ("range", "T.serial", "T.unroll")
    bounds = w.one_of((str(w.between(0, 3)), f"{w.between(0, 1)}, {w.between(1, 3)}", "by + 1"))
    loop = w.one_of(loops if "by" not in bounds else loops[:2])
    with w.block(f"for {name} in {loop}({bounds}):"):
        w.counters.append(name)
        inner(w)
        if w.chance(0.15) and loop != "T.unroll":
            with w.block(f"if {name} == {w.below(2)}:"):
                w.emit(w.one_of(("break", "continue")))
            inner(w)


def while_loop(w: Writer) -> None:
    if w.depth > 3:
        return
    name = w.name("x")
    w.emit(f'{name} = T.alloc_var("int32")')
    w.emit(f"{name} = {w.one_of(('0', '1', 'bx'))}")
    with w.block(f"while {name} < {w.between(1, 3)}:"):
        w.counters.append(name)
        inner(w)
        w.emit(f"{name} += 1")


def pipelined(w: Writer) -> None:
    """Tiles of an input, one after the other, added up."""
    tensors = [t for t in w.inputs if len(t.shape) == 2]
    tiles = [t for t in w.tiles if len(t.shape) == 2 and not is_float8(t)]
    if not tensors or not tiles or w.depth > 3:
        return
    source, total = w.one_of(tensors), w.one_of(tiles)
    stage = w.tile(
        total.shape,
        w.one_of((source.dtype, total.dtype)),
        w.one_of(("shared",) * 3 + ("fragment",)),
    )
    name, across = w.name("k"), w.below(2)
    steps = -(-source.shape[across] // stage.shape[across])
    stages = f", num_stages={w.between(0, 5)}" if w.chance(0.85) else ""
    bound = w.one_of((str(min(steps, 5)), str(w.between(0, 4)), "bx + 1"))
    i, j = names = indices(w, 2)
    with w.block(f"for {name} in T.Pipelined({bound}{stages}):"):
        w.counters.append(name)
        start = [f"{w.one_of(('bx', 'by'))} * {stage.shape[1 - across]}"] * 2
        start[across] = f"{name} * {stage.shape[across]}"
        w.emit(f"T.copy({source.name}[{', '.join(start)}], {stage.name})")
        if w.chance(0.2):
            inner(w)
        with w.block(head(names, total.shape)):
            own = own_element(total, names)
            shift = f"({j} + {w.between(0, 2)}) % {total.shape[1]}" if w.chance(0.4) else j
            item = f'T.cast({stage.name}[{i}, {shift}], "{total.dtype}")'
            w.emit(f"{own} = {own} + {item}")


# --- what stands at the top level only ------------------------------------------------------------


def annotate_layout(w: Writer) -> None:
    """A layout for a shared tile that has none yet."""
    text = "\n".join(w.head)
    tiles = [t for t in w.tiles if t.space == "shared" and f"{{{t.name}:" not in text]
    tiles = [t for t in tiles if len(t.shape) == 2]
    if not tiles:
        return
    tile = w.one_of(tiles)
    m, n = tile.shape
    pad = w.between(1, 8)
    layout = w.one_of(
        (
            f"make_swizzled_layout({tile.name})",
            f"make_mma_swizzle_layout({tile.name})",
            f"T.Layout(({m}, {n}), lambda i, j: j * {m} + i)",
            f"T.Layout(({m}, {n}), lambda i, j: i * {n + pad} + j)",
        )
    )
    w.head.append(f"T.annotate_layout({{{tile.name}: {layout}}})")


def annotate_safe_value(w: Writer) -> None:
    text = "\n".join(w.head)
    tensors = [t for t in w.inputs if f"{{{t.name}:" not in text]
    if tensors:
        tensor = w.one_of(tensors)
        amount = w.between(0, 5) if DTYPES[tensor.dtype].is_int else w.one_of((1.5, -2.0, 4.0))
        w.head.append(f"T.annotate_safe_value({{{tensor.name}: {amount}}})")


def use_swizzle(w: Writer) -> None:
    if not any("use_swizzle" in line or "annotate_schedule" in line for line in w.head):
        order = w.one_of(("row", "column"))
        w.head.append(f'T.use_swizzle({w.between(1, 4)}, order="{order}")')


def annotate_schedule(w: Writer) -> None:
    if any("use_swizzle" in line or "annotate_schedule" in line for line in w.head):
        return
    pipelines = any("T.Pipelined" in line for line in w.lines)
    walks = pipelines and w.depth == 2  # what a persistent schedule takes
    teams = walks and w.products and w.threads == 128
    choices = (
        f"persistent={walks and w.chance(0.7)}",
        f"specialise={pipelines and w.chance(0.5)}",
        f'consumers="{"pingpong" if teams and w.chance(0.5) else "cooperative"}"',
        f"panel={w.between(1, 4)}",
        f'store="{w.one_of(("tma", "direct"))}"',
        f"stages={w.between(1, 4)}",
    )
    count = w.between(1, 2)
    picked = sorted({w.below(len(choices)) for _ in range(count)})
    w.head.append(f"T.annotate_schedule({', '.join(choices[p] for p in picked)})")


def block_scalar(w: Writer) -> None:
    """A number that all threads read, and use from then on."""
    if not w.inputs:
        return
    tensor = w.one_of(w.inputs)
    if DTYPES[tensor.dtype].bits == 8 and DTYPES[tensor.dtype].is_float:
        return
    name = w.name("s")
    tiles = [t for t in w.tiles if t.space == "shared"]
    scope = Scope((("bx", 4), ("by", 4)))
    if tiles and w.chance(0.4):
        tile = w.one_of(tiles)
        w.emit(f"{name} = {tile_element(w, Scope(()), tile)}")
        w.scalars.append((name, tile.dtype))
    else:
        w.emit(f"{name} = {element(w, scope, tensor)}")
        w.scalars.append((name, tensor.dtype))


STATEMENTS: tuple[Word, ...] = (
    copy_in, copy_in, copy_slices, copy_row, copy_tiles, copy_out, fill, clear, parallel, parallel,
    parallel_part, parallel_guarded, parallel_out, gather, broadcast, sums, variable, vectorized,
    conditional, serial, while_loop, pipelined, product, block_scalar,
)  # fmt: skip
OUTER: tuple[Word, ...] = (
    annotate_layout, annotate_safe_value, use_swizzle, annotate_schedule, pipelined_product,
    pipelined_product, pipelined,
)  # fmt: skip


def show(w: Writer, tile: Tile) -> None:
    """Copy a tile to an output of its own, where all of it is seen."""
    lead = len(tile.shape) - 1
    at = (f"(by * {w.columns} + bx) * {tile.shape[0]}", *["0"] * lead)
    shape = (w.rows * w.columns * tile.shape[0], *tile.shape[1:])
    kinds = (tile.dtype, tile.dtype, "float32")
    made = w.output(shape, w.one_of(kinds), at, tile.shape)
    w.emit(f"T.copy({tile.name}, {made.name}[{', '.join(at)}])")


def finish(w: Writer, output: Output) -> None:
    """Write an output whole, so that what the program did is seen."""
    tiles = [t for t in w.tiles if t.shape == output.part]
    if tiles and w.chance(0.7):
        w.emit(f"T.copy({w.one_of(tiles).name}, {output.name}[{', '.join(output.at)}])")
        return
    names = indices(w, len(output.part))
    scope = Scope(tuple(zip(names, output.part)))
    own = [f"{a} + {n}" for a, n in zip(output.at, names)]
    with w.block(head(names, output.part)):
        w.emit(f"{output.name}[{', '.join(own)}] = {value(w, scope, output.dtype, 2)}")
