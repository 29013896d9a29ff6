"""Sums and other reductions of a tile's rows or columns, one element after the other."""

from __future__ import annotations

from tilec.fuzz.copies import filled
from tilec.fuzz.expressions import own_element
from tilec.fuzz.functions import converted
from tilec.fuzz.writer import Tile, Writer, head, indices


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
            item = converted(w, f"{source.name}[{at}]", dtype)
            own = f"{total.name}[{name}]"
            if w.chance(0.3):
                w.emit(f"{own} = T.{w.one_of(('max', 'min'))}({own}, {item})")
            elif w.chance(0.3):
                with w.block(f"if r % {w.between(2, 3)} == 0:"):
                    w.emit(f"{own} += {item}")
            else:
                w.emit(f"{own} += {item}")
    w.tiles.append(total)


def reduced(w: Writer) -> None:
    """One number of every row, held in a variable: a largest, a product, a count."""
    sources = [t for t in w.tiles if len(t.shape) == 2]
    if not sources:
        return
    source = w.one_of(sources)
    rows, columns = source.shape
    made = w.tile((rows,), w.one_of(("float32", "int32", "float64", "uint16")))
    kind = "int32" if "int" in made.dtype else "float32"
    (i,) = indices(w, 1)
    with w.block(head([i], (rows,))):
        w.emit(f'x = T.alloc_var("{kind}", T.cast(0, "{kind}"))')
        with w.block(f"for r in {w.loop(columns)}({columns}):"):
            item = converted(w, f"{source.name}[{i}, r]", kind)
            changes = (
                f"x = T.max(x, {item})",
                f"x = x + T.abs({item})",
                f"x = T.if_then_else({item} > x, {item}, x)",
                f'x += T.min(T.max({item}, T.cast(-2, "{kind}")), T.cast(2, "{kind}"))',
            )
            w.emit(w.one_of(changes))
        w.emit(f"{made.name}[{i}] = {converted(w, 'x', made.dtype)}")
    w.tiles.append(made)


def softmax(w: Writer) -> None:
    """Rows divided by the sum of their exponentials, in three loops over two tiles."""
    shape = (w.size(20), w.size(16))
    sources = [t for t in w.tiles if len(t.shape) == 2 and _floating(t)]
    sources = [t for t in sources if t.shape[1] <= 24]
    source = w.one_of(sources) if sources and w.chance(0.7) else filled(w, shape, "float32")
    rows, columns = source.shape
    most, total = (w.tile((rows,), "float32") for _ in "mt")
    (i,) = indices(w, 1)
    item = f'T.max(T.min(T.cast({source.name}[{i}, r], "float32"), 9.0), -9.0)'
    w.emit(f"T.fill({most.name}, {w.one_of(('-9.0', 'T.min_value(T.float32)'))})")
    w.emit(f"T.clear({total.name})")
    with w.block(head([i], (rows,))):
        with w.block(f"for r in T.serial({columns}):"):
            w.emit(f"{most.name}[{i}] = T.max({most.name}[{i}], {item})")
        with w.block(f"for r in T.serial({columns}):"):
            w.emit(f"{total.name}[{i}] += T.exp({item} - {most.name}[{i}])")
    names = indices(w, 2)
    with w.block(head(names, source.shape)):
        element = own_element(source, names)
        close = f'T.max(T.min(T.cast({element}, "float32"), 9.0), -9.0)'
        share = f"T.exp({close} - {most.name}[{names[0]}]) / {total.name}[{names[0]}]"
        w.emit(f"{element} = {converted(w, share, source.dtype)}")
    w.tiles += [most, total]


def prefix(w: Writer) -> None:
    """Running sums along one side: every element needs the one before it."""
    sources = [t for t in w.tiles if len(t.shape) == 2]
    if not sources:
        return
    source = w.one_of(sources)
    side = w.below(2)
    kind = w.one_of(("int32", "float32"))
    made = w.tile(source.shape, kind, "shared")
    w.emit(f"T.copy({source.name}, {made.name})")
    (i,) = indices(w, 1)
    with w.block(head([i], (source.shape[side],))):
        step = w.one_of((1, 1, 2))
        with w.block(f"for r in T.serial({step}, {source.shape[1 - side]}):"):
            now, last = (f"{i}, {r}" if side == 0 else f"{r}, {i}" for r in ("r", f"r - {step}"))
            w.emit(f"{made.name}[{now}] += {made.name}[{last}]")
    w.tiles.append(made)


def _floating(tile: Tile) -> bool:
    return tile.dtype in ("float16", "bfloat16", "float32")
