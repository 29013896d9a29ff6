"""Branches and loops around whole tiles."""

from __future__ import annotations

from tilec.fuzz.expressions import Scope, element, tile_element
from tilec.fuzz.writer import Writer
from tilec.ir.types import DTYPES


def conditional(w: Writer) -> None:
    """What only some blocks, or some iterations, do."""
    if w.depth > 4:
        return
    with w.block(f"if {uniform(w)}:"):
        inner(w)
    if w.chance(0.2):
        with w.block(f"elif {uniform(w)}:"):
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
    name, other = w.one_of(names), w.one_of(names)
    parts = (
        f"{name} % 2 == {w.below(2)}",
        f"{name} < {w.between(0, 3)}",
        f"{w.below(2)} <= {name} < {w.between(1, 3)}",
        f"{name} == {w.below(2)} or {other} != 1",
        f"not ({name} > 0 and {other} > {w.below(2)})",
        f"({name} if {other} == 0 else 1) > 0",
    )
    return w.one_of(parts[: w.one_of((2, 2, 6))])


def inner(w: Writer) -> None:
    """One or two statements; tiles made in them are forgotten after them."""
    kept = len(w.tiles)
    for _ in range(w.between(1, 2)):
        word = w.one_of(w.statements)
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


def stepping(w: Writer) -> None:
    """A loop with a step, up or down."""
    if w.depth > 3:
        return
    name = w.name("t")
    bounds = w.one_of(
        (
            f"0, {w.between(1, 5)}, {w.between(2, 3)}",
            f"{w.between(1, 3)}, -1, -{w.between(1, 2)}",
            f"by, {w.between(1, 4)}, 2",
        )
    )
    loops = ("range", "T.serial", "T.unroll") if "by" not in bounds else ("range", "T.serial")
    with w.block(f"for {name} in {w.one_of(loops)}({bounds}):"):
        w.counters.append(name)
        inner(w)


def unrolled_by_python(w: Writer) -> None:
    """A loop over what is listed: its names are known when the kernel is compiled."""
    if w.depth > 3:
        return
    name = w.name("c")
    items = [w.between(0, 3) for _ in range(w.between(1, 3))]
    if w.chance(0.5):
        line = f"for {name} in {items}:"
    else:
        second = w.name("c")
        line = f"for {name}, {second} in {tuple((i, w.below(4)) for i in items)}:"
    with w.block(line):
        w.counters.append(name)
        inner(w)


def printed(w: Writer) -> None:
    """What is printed is not looked at: that nothing else changes is."""
    tiles = [t for t in w.tiles if t.shape in ((1,), (2,), (1, 1), (1, 2))]
    if tiles and w.chance(0.5):
        w.emit(f"T.print({w.one_of(tiles).name}, msg='tile')")
    elif w.scalars and w.chance(0.5):
        message = w.one_of(("", ", msg='number'"))
        w.emit(f"T.print({w.one_of(w.scalars)[0]}{message})")
    else:
        w.emit('T.print(f"block {bx} of {by}")')


def while_loop(w: Writer) -> None:
    if w.depth > 3:
        return
    name = w.name("x")
    first = w.one_of(("0", "1", "bx"))
    if w.chance(0.5):
        w.emit(f'{name} = T.alloc_var("int32", init={first})')
    else:
        w.emit(f'{name} = T.alloc_var("int32")')
        w.emit(f"{name} = {first}")
    with w.block(f"while {name} < {w.between(1, 3)}:"):
        w.counters.append(name)
        inner(w)
        w.emit(f"{name} += 1")


def block_scalar(w: Writer) -> None:
    """A number that all threads read, and use from then on."""
    if not w.inputs:
        return
    tensor = w.one_of(w.inputs)
    if DTYPES[tensor.dtype].bits == 8 and DTYPES[tensor.dtype].is_float:
        return
    if w.chance(0.2):
        one, two = w.name("s"), w.name("s")
        w.emit(f"{one}, {two} = {element(w, Scope((('bx', 4),)), tensor)}, bx * 2 + by")
        w.scalars += [(one, tensor.dtype), (two, "int32")]
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
